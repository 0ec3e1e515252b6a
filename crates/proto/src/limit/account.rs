//! Decides for each interval what bound each lane, and adds it up.
//!
//! Order of precedence, from the data's source to its sink. A lane whose feeder hardly waited for the transport is bound by what
//! the feeder did instead: wait for storage, compute, or have nothing to send. A lane of which nothing comes back is bound by that
//! silence, whatever its feeder does. A lane whose feeder waited for the transport is bound by, in this order: a receiver that does
//! not read (its own threads say whether storage or processors hold them), the receive window, the send buffer, the given rate, and
//! else the congestion window, whose cause the path tells. A lane within one process has one thread that reads and writes in turn:
//! its time is what it did.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::path::{Flow, PathHistory, PolicedRate, WindowCause};
use super::web::WebHistory;
use super::{Facts, Limit, LimitReport, LimitTimes, ReceiverReport, WebSample};
use crate::rate::RateState;
use crate::session::LaneId;
use crate::{BitRate, ByteCount};

/// What a thread did since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Waited for storage.
    pub storage: Duration,
    /// Computed, or waited for a processor.
    pub compute: Duration,
    /// Waited for the transport: for room at a sender, for data at a receiver.
    pub transport: Duration,
    /// Had nothing to do.
    pub idle: Duration,
}

/// A lane at one moment; what counts, counts since its start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaneSample {
    /// What its feeder did.
    pub feeder: Waits,
    /// What its transport says.
    pub transport: TransportSample,
}

/// What a transport says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TransportSample {
    /// The kernel, of a TCP lane.
    Tcp(TcpSample),
    /// The engine, of a QUIC lane.
    Quic(QuicSample),
    /// None: the lane is within this process, and what its feeder waits for in sending is the receiver's storage.
    Inside,
}

/// What is known of the source.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SourceSample {
    /// The rate at which it gives data while it is waited for.
    pub rate: BitRate,
    /// What is measured of the web servers that it is on, if it is.
    pub web: Option<WebSample>,
}

/// What the kernel says of a TCP lane. What is zero it does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TcpSample {
    /// Time that the peer's window stopped the lane.
    pub rwnd_limited: Duration,
    /// Time that the send buffer stopped it.
    pub sndbuf_limited: Duration,
    /// Segments sent, repeats included.
    pub sent: u64,
    /// Segments sent again.
    pub lost: u64,
    /// Bytes acknowledged.
    pub delivered: u64,
    /// Smoothed and smallest round-trip time.
    pub rtt: Duration,
    /// Smallest round-trip time.
    pub rtt_min: Duration,
    /// Congestion window.
    pub window: ByteCount,
    /// Sent and not acknowledged.
    pub in_flight: ByteCount,
    /// Given to the kernel and not sent.
    pub unsent: ByteCount,
    /// Window that the peer announces.
    pub receive_window: ByteCount,
    /// Limit of the send buffer now, and what it may grow to.
    pub send_buffer: ByteCount,
    /// What the send buffer may grow to.
    pub send_buffer_max: ByteCount,
    /// Memory of what the send buffer holds.
    pub send_queued: ByteCount,
    /// The lane's part of the given rate, as the kernel paces it; `None` without.
    pub cap: Option<BitRate>,
    /// The window was never cut.
    pub is_growing: bool,
    /// Windows are not scaled: neither end may announce more than 64 KiB.
    pub is_unscaled: bool,
    /// The congestion control yields to loss.
    pub yields_to_loss: bool,
}

/// What our rate control and the engine say of a QUIC lane.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QuicSample {
    /// Time that the thread of the engine computed or waited for a processor.
    pub engine: Duration,
    /// Packets sent.
    pub sent: u64,
    /// Packets found lost.
    pub lost: u64,
    /// Bytes on the wire sent.
    pub wire_bytes: u64,
    /// Bytes on the wire received.
    pub heard: u64,
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Smallest round-trip time.
    pub rtt_min: Duration,
    /// Window of the rate control.
    pub window: ByteCount,
    /// Sent and not acknowledged.
    pub in_flight: ByteCount,
    /// The rate at which it may send.
    pub rate: BitRate,
    /// Where the rate control stands.
    pub state: RateState,
    /// Memory that the lane may hold.
    pub memory: ByteCount,
}

/// What bound a lane in one interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaneJudgement {
    /// Which lane.
    pub lane: LaneId,
    /// The limit with the largest part of the interval.
    pub limit: Limit,
    /// What was looked at.
    pub sample: LaneSample,
}

/// Adds up what bound the lanes of a session.
#[derive(Debug, Default)]
pub struct Accountant {
    before: BTreeMap<LaneId, Before>,
    path: PathHistory,
    receiver: ReceiverView,
    total: LimitTimes,
    recent: VecDeque<(Instant, LimitTimes)>,
    facts: Facts,
    judged: Vec<LaneJudgement>,
    /// Of the time of [`Limit::Cpu`], that in which the receiver's processors were short.
    cpu_at_receiver: Duration,
    /// Of the time of [`Limit::CongestionWindow`], that in which it was growing still.
    growing: Duration,
    /// Of the time of [`Limit::CongestionWindow`], that in which a queue stood before the path.
    queued: Duration,
    /// Packets sent, repeats included, and of them those lost.
    packets: (u64, u64),
    /// Bytes that came, of the time in which there was something to send.
    carried: (ByteCount, Duration),
    /// Time of [`Limit::Loss`] of QUIC lanes since a policer was last known: the rate control needs some losses at one rate to know one.
    unproven_loss: Duration,
    web: WebHistory,
}

/// What the last reports of the receiver say, as shares of the time between them.
#[derive(Clone, Debug, Default)]
struct ReceiverView {
    last: Option<(Instant, ReceiverReport)>,
    waiting: f64,
    storage: f64,
    compute: f64,
    publishing: f64,
    engine: f64,
    delays: ReturnDelays,
    /// When it last told of packets that its host dropped.
    dropped: Option<Instant>,
}

/// How long reports of the receiver travel. The clocks of the two ends differ by an unknown time, which the shortest way shows.
#[derive(Clone, Debug, Default)]
struct ReturnDelays {
    /// When the first one came, by both clocks.
    first: Option<(Instant, Duration)>,
    /// How much later than the first one the last few came, in seconds; and the least of all.
    latest: VecDeque<f64>,
    least: f64,
}

impl ReturnDelays {
    fn add(&mut self, now: Instant, sent_at: Duration) {
        if sent_at.is_zero() {
            return;
        }
        let (first, first_sent) = *self.first.get_or_insert((now, sent_at));
        let travelled =
            now.saturating_duration_since(first).as_secs_f64() - (sent_at.as_secs_f64() - first_sent.as_secs_f64());
        self.least = self.least.min(travelled);
        self.latest.push_back(travelled);
        if self.latest.len() > DELAYS_KEPT {
            self.latest.pop_front();
        }
    }

    /// Time that packets wait in the return direction. The least of the last reports: one alone may have waited for a busy host,
    /// or was lost and sent again.
    fn queue(&self) -> Duration {
        let least = self.latest.iter().copied().reduce(f64::min).unwrap_or(self.least);
        Duration::try_from_secs_f64(least - self.least).unwrap_or_default()
    }
}

/// The parts of an interval; they add up to 1.
#[derive(Clone, Copy, Debug, Default)]
struct Split([f64; Limit::ALL.len()]);

impl Split {
    fn all(limit: Limit) -> Self {
        let mut split = Self::default();
        split.add(limit, 1.0);
        split
    }

    fn add(&mut self, limit: Limit, part: f64) {
        self.0[limit.index()] += part;
    }

    fn blend(&mut self, other: &Self, weight: f64) {
        self.0.iter_mut().zip(other.0).for_each(|(ours, theirs)| *ours += theirs * weight);
    }

    fn largest(&self) -> Limit {
        let largest = Limit::ALL.into_iter().max_by(|a, b| self.0[a.index()].total_cmp(&self.0[b.index()]));
        largest.unwrap_or(Limit::NothingToSend)
    }
}

/// The parts of an interval for one lane.
#[derive(Clone, Copy, Debug, Default)]
struct LaneSplit {
    /// Of the time in which it had something to send.
    working: Split,
    /// The part of the interval in which it had nothing.
    idle: f64,
    /// What it waited for then.
    waiting: Split,
}

impl LaneSplit {
    fn whole(&self) -> Split {
        let mut whole = Split::default();
        whole.blend(&self.working, 1.0 - self.idle);
        whole.blend(&self.waiting, self.idle);
        whole
    }
}

/// The parts of an interval for all lanes together: by what those that had something to send did, and only where none had by what they waited
/// for. A lane that finds nothing left to take holds nobody back.
fn together(lanes: &[LaneSplit]) -> Split {
    let idle = lanes.iter().map(|lane| lane.idle).fold(1.0, f64::min);
    let work: f64 = lanes.iter().map(|lane| 1.0 - lane.idle).sum();
    let mut split = Split::default();
    for lane in lanes {
        if work > 0.0 {
            split.blend(&lane.working, (1.0 - lane.idle) / work * (1.0 - idle));
        }
        split.blend(&lane.waiting, idle / lanes.len() as f64);
    }
    split
}

/// What a lane was before.
#[derive(Clone, Copy, Debug)]
struct Before {
    at: Instant,
    sample: LaneSample,
    /// Where the second began that is under way, and what was delivered in the last one, if it is a TCP lane.
    second: (Instant, u64),
    carried: BitRate,
    /// When something came back of it last, or nothing was in flight.
    heard: Instant,
}

impl Before {
    fn of(now: Instant, sample: LaneSample, before: Option<&Self>) -> Self {
        let heard = before.filter(|before| hears_nothing(&before.sample, &sample)).map_or(now, |before| before.heard);
        let delivered = match &sample.transport {
            TransportSample::Tcp(tcp) => tcp.delivered,
            TransportSample::Quic(_) | TransportSample::Inside => 0,
        };
        let Some(Self { second: (since, bytes), carried, .. }) = before.copied() else {
            return Self { at: now, sample, second: (now, delivered), carried: BitRate(0), heard };
        };
        let elapsed = now.saturating_duration_since(since);
        if elapsed < SECOND {
            return Self { at: now, sample, second: (since, bytes), carried, heard };
        }
        let carried = BitRate::mean(ByteCount(delivered.saturating_sub(bytes)), elapsed);
        Self { at: now, sample, second: (now, delivered), carried, heard }
    }
}

/// What changed on a lane between two samples.
struct Change<'a> {
    time: Duration,
    before: &'a LaneSample,
    now: &'a LaneSample,
    /// What it carried in the last second that is over.
    carried: BitRate,
    /// How long nothing has come back of what is in flight.
    silent: Duration,
}

impl Accountant {
    /// The rate that was given for the session.
    pub fn set_rate_cap(&mut self, rate: Option<BitRate>) {
        self.facts.rate_cap = rate.unwrap_or_default();
    }

    /// The receiver has said what its threads did.
    pub fn handle_report(&mut self, now: Instant, report: &ReceiverReport) {
        self.receiver.update(now, report);
        let facts = &mut self.facts;
        // A lane within this process has none.
        if report.buffer.0 > 0 {
            facts.receive_buffer = report.buffer;
        }
        facts.receive_buffer_max = report.buffer_max;
        facts.receive_window = facts.receive_window.max(report.window);
        // Lanes that have ended count no more.
        facts.overrun = facts.overrun.max(report.dropped);
    }

    /// Takes a sample of every lane that is up, and of their source; call it about ten times a second.
    pub fn handle_samples(&mut self, now: Instant, lanes: &[(LaneId, LaneSample)], source: &SourceSample) {
        let of = |(lane, sample): &(LaneId, LaneSample)| (*lane, Before::of(now, *sample, self.before.get(lane)));
        let after: BTreeMap<LaneId, Before> = lanes.iter().map(of).collect();
        let before = std::mem::replace(&mut self.before, after);
        let changes: Vec<(LaneId, Change<'_>)> = lanes
            .iter()
            .filter_map(|(lane, sample)| {
                let Before { at, sample: before, carried, .. } = before.get(lane)?;
                let time = now.saturating_duration_since(*at);
                let silent = now.saturating_duration_since(self.before.get(lane)?.heard);
                (!time.is_zero()).then_some((*lane, Change { time, before, now: sample, carried: *carried, silent }))
            })
            .collect();
        self.facts.lanes = self.facts.lanes.max(lanes.len() as u64);
        self.facts.source = source.rate;
        let reading = self.handle_source(now, source, lanes);
        self.judge(now, &changes, &reading);
    }

    /// Takes note of the source; what a lane that waits for it is bound by.
    fn handle_source(&mut self, now: Instant, source: &SourceSample, lanes: &[(LaneId, LaneSample)]) -> Split {
        let Some(web) = source.web else { return Split::all(Limit::SourceDisk) };
        let facts = &mut self.facts;
        facts.disordered_ppm = web.disordered_ppm();
        facts.is_web |= lanes.iter().any(|(_, sample)| sample.transport == TransportSample::Inside);
        if !facts.is_web {
            // What is known of windows is of the lanes.
            return Split::all(Limit::ServerOrPath);
        }
        (facts.rtt, facts.is_unscaled) = (web.rtt_min, web.is_unscaled);
        (facts.receive_window, facts.receive_buffer) = (web.receive_window, web.receive_buffer);
        let full = self.web.full_at(now, &web);
        let mut split = Split::default();
        split.add(Limit::ReceiveWindow, full);
        split.add(Limit::ServerOrPath, 1.0 - full);
        split
    }

    /// What was found until now.
    pub fn report(&self) -> LimitReport {
        let mut recent = LimitTimes::default();
        self.recent.iter().for_each(|(_, times)| recent.merge(times));
        let (mut total, mut facts) = (self.total, self.facts);
        // A path that has a queue has no policer of the same rate. What looked like one was its queue, run over in a burst of a host that was late.
        let policed = total.of(Limit::Policer);
        let is_as_full = facts.policed.0 as f64 > on_wire(facts.rate, facts.is_quic).0 as f64 * AS_FULL;
        if self.queued > policed && is_as_full {
            total.rename(Limit::Policer, Limit::CongestionWindow, policed);
            (facts.policed, facts.policed_is_least) = (BitRate(0), false);
        }
        LimitReport { recent, total, facts }
    }

    /// What was found of each lane in the last interval.
    pub fn judgements(&self) -> &[LaneJudgement] {
        &self.judged
    }

    fn judge(&mut self, now: Instant, changes: &[(LaneId, Change<'_>)], reading: &Split) {
        self.judged.clear();
        let Some(time) = changes.iter().map(|(_, change)| change.time).max() else { return };
        let flow = flow_of(changes, time, self.receiver.delays.queue());
        let cause = self.path.add(&flow);
        self.packets = (self.packets.0 + flow.sent, self.packets.1 + flow.lost);
        self.take_facts(changes, cause);
        let lanes: Vec<LaneSplit> =
            changes.iter().map(|(_, change)| judge_lane(change, &self.receiver, reading, cause)).collect();
        for ((lane, change), judged) in changes.iter().zip(&lanes) {
            self.judged.push(LaneJudgement { lane: *lane, limit: judged.whole().largest(), sample: *change.now });
        }
        let split = together(&lanes);
        // With nothing to send, or nothing that comes, what came before tells of the path.
        if !matches!(split.largest(), Limit::NothingToSend | Limit::Silence) {
            self.carried = (self.carried.0 + ByteCount(flow.delivered), self.carried.1 + time);
            self.facts.reached = on_wire(BitRate::mean(self.carried.0, self.carried.1), self.facts.is_quic);
            // A full path is told by what it carries, and not by the mean with the way there.
            self.facts.rate = if matches!(cause, WindowCause::Queue | WindowCause::Full) {
                self.path.usual()
            } else {
                self.path.rate()
            };
        }
        let mut interval = LimitTimes::default();
        for limit in Limit::ALL {
            // Sums of parts are off by a rounding error, which may be below nothing.
            interval.add(limit, time.mul_f64(split.0[limit.index()].clamp(0.0, 1.0)));
        }
        let overrun = interval.of(Limit::Loss) + interval.of(Limit::Policer);
        let overrun = if self.receiver.drops(now) { overrun } else { Duration::ZERO };
        for limit in [Limit::Loss, Limit::Policer] {
            interval.rename(limit, Limit::Cpu, overrun);
        }
        self.cpu_at_receiver += overrun;
        self.total.merge(&interval);
        self.name_policer(changes, interval.of(Limit::Loss), cause == WindowCause::Queue);
        if self.receiver.lacks_processor() {
            self.cpu_at_receiver += interval.of(Limit::Cpu).saturating_sub(overrun);
        }
        if cause == WindowCause::Growing {
            self.growing += interval.of(Limit::CongestionWindow);
        }
        if cause == WindowCause::Queue {
            self.queued += interval.of(Limit::CongestionWindow);
        }
        self.facts.is_growing = self.growing * 2 > self.total.of(Limit::CongestionWindow);
        self.facts.cpu_at_receiver = self.cpu_at_receiver * 2 > self.total.of(Limit::Cpu);
        self.recent.push_back((now, interval));
        while self.recent.front().is_some_and(|(at, _)| now.saturating_duration_since(*at) > RECENT) {
            self.recent.pop_front();
        }
    }

    /// What was lost before a policer was known was lost to that; `loss`: of the last interval.
    fn name_policer(&mut self, changes: &[(LaneId, Change<'_>)], loss: Duration, has_queue: bool) {
        let states = changes.iter().filter_map(|(_, change)| match &change.now.transport {
            TransportSample::Quic(quic) => Some(quic.state),
            TransportSample::Tcp(_) | TransportSample::Inside => None,
        });
        let mut is_quic = false;
        for state in states {
            is_quic = true;
            if matches!(state, RateState::Policed(_)) && !has_queue {
                return self.total.rename(Limit::Loss, Limit::Policer, std::mem::take(&mut self.unproven_loss));
            }
        }
        if is_quic {
            self.unproven_loss += loss;
        }
    }

    /// Keeps what the remedies need; windows and buffers are those at their largest.
    fn take_facts(&mut self, changes: &[(LaneId, Change<'_>)], cause: WindowCause) {
        let facts = &mut self.facts;
        let mut lanes = changes.iter().map(|(_, change)| &change.now.transport).peekable();
        if lanes.peek().is_some() {
            facts.is_quic = lanes.any(|transport| matches!(transport, TransportSample::Quic(_)));
        }
        let known = facts.policed;
        facts.lost = self.packets.1.saturating_sub(facts.overrun);
        facts.loss_ppm = (facts.lost * 1_000_000).checked_div(self.packets.0).unwrap_or(0);
        facts.destination = self.receiver.rate(facts.lanes);
        match (cause, self.path.policed()) {
            (WindowCause::Policer, PolicedRate::Exact(rate)) => {
                (facts.policed, facts.policed_is_least) = (on_wire(rate, facts.is_quic), false);
            }
            // The most of all windows; what was known for certain stays.
            (WindowCause::Policer, PolicedRate::AtLeast(rate)) if facts.policed.0 == 0 || facts.policed_is_least => {
                (facts.policed, facts.policed_is_least) = (facts.policed.max(on_wire(rate, facts.is_quic)), true);
            }
            _ => {}
        }
        for (_, change) in changes {
            let rtt = match &change.now.transport {
                TransportSample::Tcp(tcp) => {
                    facts.receive_window = facts.receive_window.max(tcp.receive_window);
                    facts.is_unscaled = tcp.is_unscaled;
                    facts.send_buffer = facts.send_buffer.max(tcp.send_buffer);
                    facts.send_buffer_max = tcp.send_buffer_max;
                    tcp.rtt_min
                }
                TransportSample::Quic(quic) => {
                    if let (RateState::Policed(rate), false) = (quic.state, cause == WindowCause::Queue) {
                        (facts.policed, facts.policed_is_least) = (rate, false);
                    }
                    quic.rtt_min
                }
                TransportSample::Inside => continue,
            };
            if facts.rtt.is_zero() || !rtt.is_zero() && rtt < facts.rtt {
                facts.rtt = rtt;
            }
        }
        if facts.policed != known {
            facts.policed_over_quic = facts.is_quic;
        }
    }
}

impl ReceiverView {
    fn update(&mut self, now: Instant, report: &ReceiverReport) {
        self.delays.add(now, report.sent_at);
        if self.last.map_or(0, |(_, last)| last.dropped) < report.dropped {
            self.dropped = Some(now);
        }
        let Some((at, last)) = &self.last else {
            self.last = Some((now, *report));
            return;
        };
        let lanes = report.lane_time.saturating_sub(last.lane_time).as_secs_f64();
        let elapsed = now.saturating_duration_since(*at).as_secs_f64();
        // Reports that were held up come together; they count as one.
        if elapsed < REPORT_SPACING_MIN.as_secs_f64() {
            return;
        }
        let share = |now: Duration, before: Duration, of: f64| {
            if of > 0.0 { (now.saturating_sub(before).as_secs_f64() / of).min(1.0) } else { 0.0 }
        };
        self.waiting = if lanes > 0.0 { share(report.waiting, last.waiting, lanes) } else { 1.0 };
        self.storage = share(report.storage, last.storage, lanes);
        self.compute = (1.0 - self.waiting - self.storage).max(0.0);
        self.publishing = share(report.publishing, last.publishing, elapsed);
        self.engine = share(report.engine, last.engine, elapsed);
        self.last = Some((now, *report));
    }

    /// Whether its threads hardly wait for data.
    fn is_slow(&self) -> bool {
        self.last.is_some() && self.waiting < RECEIVER_WAITS_MIN && self.storage + self.compute > 0.0
    }

    /// Whether every lane's window is known and smaller.
    fn announces_less_than(&self, bytes: ByteCount) -> bool {
        self.last.as_ref().is_some_and(|(_, report)| (1..bytes.0).contains(&report.window.0))
    }

    /// Whether losses are those of the receiving host, which told of some a moment ago.
    fn drops(&self, now: Instant) -> bool {
        self.dropped.is_some_and(|at| now.saturating_duration_since(at) < OVERRUN_LASTS)
    }

    fn lacks_processor(&self) -> bool {
        self.is_slow() && self.compute > self.storage || self.engine > ENGINE_BUSY
    }

    /// What holds its threads.
    fn split(&self) -> Split {
        let mut split = Split::default();
        let busy = (self.storage + self.compute).max(f64::MIN_POSITIVE);
        split.add(Limit::DestinationDisk, self.storage / busy);
        split.add(Limit::Cpu, self.compute / busy);
        split
    }

    /// The rate at which storage took data, over all of the session; lanes wait for it at the same time.
    fn rate(&self, lanes: u64) -> BitRate {
        self.last.as_ref().map_or(BitRate(0), |(_, report)| {
            BitRate::mean(report.written, report.storage / lanes.max(1) as u32 + report.publishing)
        })
    }
}

/// Whether something of a lane is in flight and nothing came back between two samples.
fn hears_nothing(before: &LaneSample, now: &LaneSample) -> bool {
    match (&before.transport, &now.transport) {
        // A peer that announces no window is there.
        (TransportSample::Tcp(before), TransportSample::Tcp(now)) => {
            now.in_flight.0 > 0 && now.delivered == before.delivered && now.rwnd_limited == before.rwnd_limited
        }
        (TransportSample::Quic(before), TransportSample::Quic(now)) => now.in_flight.0 > 0 && now.heard == before.heard,
        _ => false,
    }
}

/// The parts of an interval for one lane; `reading`: what it is bound by while it waits for the source.
fn judge_lane(change: &Change<'_>, receiver: &ReceiverView, reading: &Split, cause: WindowCause) -> LaneSplit {
    let least = if matches!(change.now.transport, TransportSample::Tcp(_)) { SILENCE_TCP } else { SILENCE };
    if change.silent > least.max(rtt_min(change.now) * 4) {
        return LaneSplit { working: Split::all(Limit::Silence), ..LaneSplit::default() };
    }
    let (before, now) = (&change.before.feeder, &change.now.feeder);
    let part = |now: Duration, before: Duration| now.saturating_sub(before).as_secs_f64();
    let storage = part(now.storage, before.storage);
    let compute = part(now.compute, before.compute);
    let transport = part(now.transport, before.transport);
    let idle = part(now.idle, before.idle);
    let total = (storage + compute + transport + idle).max(f64::MIN_POSITIVE);
    let busy = storage + compute + transport;
    let is_inside = change.now.transport == TransportSample::Inside;
    let held = if transport > busy * HELD_MIN && !is_inside {
        judge_transport(change, receiver, cause)
    } else {
        let written = if is_inside { transport } else { 0.0 };
        let own = (storage + compute + written).max(f64::MIN_POSITIVE);
        let mut feeder = Split::default();
        feeder.blend(reading, storage / own);
        feeder.add(Limit::Cpu, compute / own);
        feeder.add(Limit::DestinationDisk, written / own);
        feeder
    };
    let idle = (total - busy) / total;
    if is_sending(change) {
        // What it has given the transport is on its way still.
        let mut working = Split::default();
        working.blend(&held, 1.0 - idle);
        working.blend(&judge_transport(change, receiver, cause), idle);
        return LaneSplit { working, ..LaneSplit::default() };
    }
    LaneSplit { working: held, idle, waiting: judge_idle(receiver) }
}

/// The smallest round trip of a lane; zero where there is none.
fn rtt_min(sample: &LaneSample) -> Duration {
    match &sample.transport {
        TransportSample::Tcp(tcp) => tcp.rtt_min,
        TransportSample::Quic(quic) => quic.rtt_min,
        TransportSample::Inside => Duration::ZERO,
    }
}

/// Whether a lane without a block has something in flight.
fn is_sending(change: &Change<'_>) -> bool {
    match &change.now.transport {
        TransportSample::Tcp(tcp) => tcp.unsent.0 > 0,
        TransportSample::Quic(quic) => quic.in_flight.0 * 4 > quic.window.0,
        TransportSample::Inside => false,
    }
}

/// What a lane waited for that had no block, and nothing on its way: the receiver's storage or processors, or new work.
fn judge_idle(receiver: &ReceiverView) -> Split {
    Split::all(match () {
        () if receiver.publishing + receiver.storage >= PUBLISHING_MIN => Limit::DestinationDisk,
        () if receiver.compute.max(receiver.engine) >= PUBLISHING_MIN => Limit::Cpu,
        () => Limit::NothingToSend,
    })
}

fn judge_transport(change: &Change<'_>, receiver: &ReceiverView, cause: WindowCause) -> Split {
    let window = match cause {
        WindowCause::Growing | WindowCause::Queue | WindowCause::Full => Limit::CongestionWindow,
        WindowCause::AckPath => Limit::AckPath,
        WindowCause::Loss => Limit::Loss,
        WindowCause::Policer => Limit::Policer,
    };
    match (&change.before.transport, &change.now.transport) {
        (TransportSample::Tcp(before), TransportSample::Tcp(now)) => judge_tcp(change, before, now, receiver, window),
        (TransportSample::Quic(before), TransportSample::Quic(now)) => {
            judge_quic(change.time, before, now, receiver, (window, cause == WindowCause::Queue))
        }
        _ => Split::all(window),
    }
}

fn judge_tcp(
    change: &Change<'_>,
    before: &TcpSample,
    now: &TcpSample,
    receiver: &ReceiverView,
    window: Limit,
) -> Split {
    let time = change.time;
    // Threads that hardly wait for data are not held up by the network, whatever its window says of this moment.
    if receiver.is_slow() {
        return receiver.split();
    }
    let part =
        |now: Duration, before: Duration| (now.saturating_sub(before).as_secs_f64() / time.as_secs_f64()).min(1.0);
    let by_receiver = part(now.rwnd_limited, before.rwnd_limited);
    let fills_buffer = now.send_buffer.0 >= now.send_buffer_max.0 / 10 * 9
        && now.send_queued.0 >= now.send_buffer.0 / 10 * 8
        && now.unsent.0 * 8 < now.in_flight.0;
    let by_buffer = match now.send_buffer_max.0 > 0 && fills_buffer {
        true => 1.0 - by_receiver,
        false => part(now.sndbuf_limited, before.sndbuf_limited).min(1.0 - by_receiver),
    };
    let delivered = BitRate::mean(ByteCount(now.delivered.saturating_sub(before.delivered)), time);
    // Over a second too: at a low rate an interval has all of a burst or nothing.
    let most = delivered.max(change.carried);
    let is_capped = now.cap.is_some_and(|cap| most.0 as f64 > cap.0 as f64 * AT_CAP);
    let mut split = Split::default();
    split.add(Limit::ReceiveWindow, by_receiver);
    split.add(Limit::SendBuffer, by_buffer);
    // A sender that paces itself by what came through leaves a little of the window free, and the kernel does not count that.
    let fills_window = now.in_flight.0 * 10 > now.receive_window.0 * 8 && by_receiver > 0.0;
    let rest = match (is_capped, fills_window) {
        (true, _) => Limit::RateCap,
        (false, true) => Limit::ReceiveWindow,
        (false, false) => window,
    };
    split.add(rest, 1.0 - by_receiver - by_buffer);
    split
}

/// `window`: what holds a window, and whether a queue stands before the path.
fn judge_quic(
    time: Duration,
    before: &QuicSample,
    now: &QuicSample,
    receiver: &ReceiverView,
    (window, has_queue): (Limit, bool),
) -> Split {
    let engine = now.engine.saturating_sub(before.engine).as_secs_f64() / time.as_secs_f64();
    let sent = BitRate::mean(ByteCount(now.wire_bytes.saturating_sub(before.wire_bytes)), time);
    let is_paced = sent.0 as f64 > now.rate.0 as f64 * AT_PACE;
    let fills_window = now.in_flight.0 * 10 > now.window.0 * 9;
    if engine > ENGINE_BUSY || receiver.engine > ENGINE_BUSY {
        return Split::all(Limit::Cpu);
    }
    if !is_paced && !fills_window {
        if receiver.is_slow() {
            return receiver.split();
        }
        // Neither pace nor window hold it: what is left is the memory at one end, unless the path has just changed. Windows are sized to hold
        // three products of the path, so that half a window in flight is one that could not grow.
        return Split::all(match () {
            () if now.in_flight.0 * 2 > now.memory.0 => Limit::SendBuffer,
            () if receiver.announces_less_than(ByteCount(now.in_flight.0 * 2)) => Limit::ReceiveWindow,
            () if engine > ENGINE_LATE => Limit::Cpu,
            () => window,
        });
    }
    Split::all(match (now.state, window) {
        // A window that is full at less than the rate is one of which nothing came back.
        (RateState::Given, window) if !is_paced => window,
        (RateState::Given, _) => Limit::RateCap,
        (RateState::Searching, Limit::AckPath) => Limit::AckPath,
        (RateState::Searching, _) => Limit::CongestionWindow,
        // A policer has no queue: with one that stands, the path is full.
        (RateState::Policed(_), window) if has_queue => window,
        (RateState::Policed(_), _) => Limit::Policer,
        (RateState::Found | RateState::Losing, window) => window,
    })
}

/// Packets and bytes of a QUIC lane whose fate became known, and of the packets those lost. What is lost shows a round trip after it was
/// sent: beside what was sent meanwhile, the losses of a rate that has changed look like bursts.
fn settled(before: &QuicSample, now: &QuicSample) -> (u64, u64, u64) {
    let sent = now.sent.saturating_sub(before.sent);
    let sent_bytes = now.wire_bytes.saturating_sub(before.wire_bytes);
    let bytes = (sent_bytes + before.in_flight.0).saturating_sub(now.in_flight.0);
    let packet_bytes = now.wire_bytes.checked_div(now.sent).unwrap_or(0);
    let lost = now.lost.saturating_sub(before.lost);
    // Of all packets so far the mean: few were sent in a short interval.
    let packets = bytes.checked_div(packet_bytes).unwrap_or(sent).max(lost);
    (packets, bytes.max(lost * packet_bytes), lost)
}

/// A rate of payload delivered as that of whole packets on the wire; QUIC lanes count those.
fn on_wire(rate: BitRate, is_quic: bool) -> BitRate {
    if is_quic { rate } else { BitRate((rate.0 as f64 * TCP_HEADERS) as u64) }
}

/// What all lanes did together; `return_queue`: the delay of the return direction.
fn flow_of(changes: &[(LaneId, Change<'_>)], time: Duration, return_queue: Duration) -> Flow {
    let mut flow = Flow { time, is_growing: true, grows_until_loss: true, ..Flow::default() };
    let mut queue = Duration::ZERO;
    for (_, change) in changes {
        let (rtt, rtt_min) = match (&change.before.transport, &change.now.transport) {
            (TransportSample::Tcp(before), TransportSample::Tcp(now)) => {
                flow.sent += now.sent.saturating_sub(before.sent);
                flow.lost += now.lost.saturating_sub(before.lost);
                flow.delivered += now.delivered.saturating_sub(before.delivered);
                flow.yields_to_loss |= now.yields_to_loss;
                flow.grows_until_loss &= now.yields_to_loss;
                flow.is_growing &= now.is_growing;
                (now.rtt, now.rtt_min)
            }
            (TransportSample::Quic(before), TransportSample::Quic(now)) => {
                let (packets, bytes, lost) = settled(before, now);
                flow.sent += packets;
                flow.lost += lost;
                flow.delivered += bytes - (bytes * lost).checked_div(packets).unwrap_or(0);
                // A rate that was found is what the path carries; losses below the ceiling take nothing from it.
                flow.yields_to_loss |= matches!(now.state, RateState::Losing | RateState::Policed(_));
                flow.is_growing &= now.state == RateState::Searching;
                flow.grows_until_loss = false;
                (now.rtt, now.rtt_min)
            }
            _ => continue,
        };
        queue += rtt.saturating_sub(rtt_min);
        if flow.rtt_min.is_zero() || rtt_min < flow.rtt_min {
            flow.rtt_min = rtt_min;
        }
    }
    let queue = queue / changes.len().max(1) as u32;
    flow.return_queue = return_queue.min(queue);
    flow.queue = queue - flow.return_queue;
    flow
}

/// Reports of the receiver that the delay of the return direction is taken from. Reason: of three one came at once.
const DELAYS_KEPT: usize = 3;

/// How long the recent past is. Reason: as the goodput of the progress display.
const RECENT: Duration = Duration::from_secs(5);

/// How long nothing comes back, or four round trips, until that is what holds a lane. Reason: busy hosts are silent for less.
/// TCP waits longer and longer when what it repeats is lost too.
const SILENCE: Duration = Duration::from_secs(1);
const SILENCE_TCP: Duration = Duration::from_secs(3);

/// Part of its busy time that a feeder waits for a transport that holds it. Reason: a feeder that is the bottleneck finds room
/// at once; one that is not spends in waiting what it does not need for itself, and this much is noise on busy hosts.
const HELD_MIN: f64 = 0.15;

/// Part of their time that the threads of a receiver wait for data, below which they are the bottleneck; likewise.
const RECEIVER_WAITS_MIN: f64 = 0.2;

/// Part of the time in which a receiver's storage is at work, above which a sender without work waits for it.
const PUBLISHING_MIN: f64 = 0.5;

/// Over how long a rate is compared with a cap beside the interval itself. Reason: some bursts of a path with an MTU of 64 KiB at 5 Mbit/s.
const SECOND: Duration = Duration::from_secs(1);

/// Part of the given rate that counts as having reached it. Reason: pacing wakes up late, and payload is 3 % less than packets.
const AT_CAP: f64 = 0.85;

/// How near what a policer seems to let through must be to the rate of a full path, to be the same.
const AS_FULL: f64 = 0.9;

/// Part of its pace that a QUIC lane reaches when nothing else holds it. Reason: the pace is up to a quarter above the rate, to
/// catch up.
const AT_PACE: f64 = 0.7;

/// Part of its time that the engine's thread wants a processor, from which it is the bottleneck. Reason: one that is late for a
/// quarter of its timers neither paces nor measures a path.
const ENGINE_BUSY: f64 = 0.75;

/// Packets on the wire, as a multiple of their payload, in a lane of full segments at MTU 1500.
const TCP_HEADERS: f64 = 1.036;

/// The same of an engine that does not reach its pace though nothing else holds it: it is late for its timers.
const ENGINE_LATE: f64 = 0.3;

/// How long losses are those of the receiving host once it has told of packets that it dropped. Reason: it tells of them within a quarter
/// second, and the sender finds them lost a round trip later.
const OVERRUN_LASTS: Duration = Duration::from_secs(1);

/// Reports closer together than this came in one burst.
const REPORT_SPACING_MIN: Duration = Duration::from_millis(50);
