//! Decides for each interval which limit applied to each lane, and adds up the times.
//!
//! Judges samples of lanes, of their source and of the receiver, in the order from source to sink. If a lane's feeder
//! hardly waited for the transport, its own work is the limit: waits for storage, computing, or nothing to send. If
//! nothing comes back on a lane, silence is the limit, whatever the feeder does. If the feeder waited for the
//! transport, the first match is the limit: receiver that does not read, receive window, send buffer, given rate. The
//! threads of a receiver that does not read report whether storage or processors delay them. If none of these matches,
//! the congestion window is the limit, and the path shows the cause. A web server that receives reports nothing: a
//! closed window shows that it reads late, or that the window is too small. A lane within one process has one thread
//! that reads and writes in turn: the limit follows from the times of that thread. Refuses to read a clock or query a
//! kernel. Samples and reports come in with `now`, a [`LimitReport`] leaves.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::path::{Flow, PathHistory, PolicedRate, WindowCause};
use super::receiver::{ClosedWindow, ENGINE_BUSY, ReceiverKind, ReceiverView};
use super::split::Split;
use super::web::WebHistory;
use super::{Facts, Limit, LimitReport, LimitTimes, ReceiverReport, WebSample};
use crate::rate::RateState;
use crate::session::LaneId;
use crate::{BitRate, ByteCount};

/// Times of a thread since its start.
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

/// Sample of a lane at one moment; counters start with the lane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaneSample {
    /// Times of its feeder.
    pub feeder: Waits,
    /// Measurements of its transport.
    pub transport: TransportSample,
}

/// Measurements of a transport.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TransportSample {
    /// Measurements of the kernel for a TCP lane.
    Tcp(TcpSample),
    /// Measurements of the engine for a QUIC lane.
    Quic(QuicSample),
    /// No measurements: the lane is within this process. Its feeder's waits in sending are waits for the receiver's
    /// storage.
    InProcess,
}

/// Measurements of the source.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SourceSample {
    /// Rate of the source, over the time in which the lanes waited for it.
    pub rate: BitRate,
    /// Measurements of the web servers, if the source is on web servers.
    pub web: Option<WebSample>,
}

/// Measurements of the kernel for a TCP lane; zero if the kernel does not provide a value.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TcpSample {
    /// Time in which the peer's window stopped the lane.
    pub rwnd_limited: Duration,
    /// Time in which the send buffer stopped the lane.
    pub sndbuf_limited: Duration,
    /// Segments sent, repeats included.
    pub sent: u64,
    /// Segments sent again.
    pub lost: u64,
    /// Bytes acknowledged.
    pub delivered: u64,
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Smallest round-trip time.
    pub rtt_min: Duration,
    /// Congestion window.
    pub window: ByteCount,
    /// Bytes sent and not acknowledged.
    pub in_flight: ByteCount,
    /// Bytes given to the kernel and not sent.
    pub unsent: ByteCount,
    /// Window that the peer announces.
    pub receive_window: ByteCount,
    /// Current limit of the send buffer.
    pub send_buffer: ByteCount,
    /// Limit to which the send buffer may grow.
    pub send_buffer_max: ByteCount,
    /// Memory of the data in the send buffer.
    pub send_queued: ByteCount,
    /// The lane's part of the given rate, as paced by the kernel; `None` without a given rate.
    pub cap: Option<BitRate>,
    /// True if the window was never cut.
    pub is_growing: bool,
    /// True if windows are not scaled: neither end may announce more than 64 KiB.
    pub is_unscaled: bool,
    /// True if the congestion control yields to loss.
    pub yields_to_loss: bool,
}

/// Measurements of our rate control and of the engine for a QUIC lane.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QuicSample {
    /// Time in which the engine's thread computed or waited for a processor.
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
    /// Bytes sent and not acknowledged.
    pub in_flight: ByteCount,
    /// Rate at which the lane may send.
    pub rate: BitRate,
    /// State of the rate control.
    pub state: RateState,
    /// Memory that the lane may hold.
    pub memory: ByteCount,
}

/// Limit of a lane in one interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaneJudgement {
    /// Lane number.
    pub lane: LaneId,
    /// Limit with the largest part of the interval.
    pub limit: Limit,
    /// Sample that the judgement rests on.
    pub sample: LaneSample,
}

/// Adds up the limits of a session's lanes.
#[derive(Debug, Default)]
pub struct Accountant {
    before: BTreeMap<LaneId, Before>,
    path: PathHistory,
    receiver: ReceiverView,
    total: LimitTimes,
    recent: VecDeque<(Instant, LimitTimes)>,
    facts: Facts,
    judged: Vec<LaneJudgement>,
    /// Cause of the window's size in the last interval.
    cause: Option<WindowCause>,
    /// Part of the time of [`Limit::Cpu`] in which the receiver's processors were short.
    cpu_at_receiver: Duration,
    /// Part of the time of [`Limit::CongestionWindow`] in which the window still grew.
    growing: Duration,
    /// Part of the time of [`Limit::CongestionWindow`] in which a queue existed before the path.
    queued: Duration,
    /// Packets sent, repeats included, and the lost ones among them.
    packets: (u64, u64),
    /// Bytes delivered in the time with something to send, and that time.
    carried: (ByteCount, Duration),
    /// Time of [`Limit::Loss`] of QUIC lanes since a policer was last known. The rate control needs several losses at
    /// one rate to detect a policer.
    unproven_loss: Duration,
    web: WebHistory,
}

/// Parts of an interval for one lane.
#[derive(Clone, Copy, Debug, Default)]
struct LaneSplit {
    /// Limits of the time in which the lane had something to send.
    working: Split,
    /// Part of the interval in which it had nothing to send.
    idle: f64,
    /// Limits of that time.
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

/// Returns the parts of an interval for all lanes together. Lanes with something to send decide. The waits of the lanes
/// count only for the time in which no lane had any. A lane that finds no work left delays nobody.
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

/// Previous state of a lane.
#[derive(Clone, Copy, Debug)]
struct Before {
    at: Instant,
    sample: LaneSample,
    /// Start of the current window of one second, and bytes delivered by then; 0 bytes unless it is a TCP lane.
    second: (Instant, u64),
    /// Delivery rate in the last complete window.
    carried: BitRate,
    /// Largest receive window so far; 0 unless it is a TCP lane.
    window_max: ByteCount,
    /// Last time at which something came back on the lane, or nothing was in flight.
    heard: Instant,
}

impl Before {
    fn of(now: Instant, sample: LaneSample, before: Option<&Self>) -> Self {
        let heard = before.filter(|before| hears_nothing(&before.sample, &sample)).map_or(now, |before| before.heard);
        let (delivered, window) = match &sample.transport {
            TransportSample::Tcp(tcp) => (tcp.delivered, tcp.receive_window),
            TransportSample::Quic(_) | TransportSample::InProcess => (0, ByteCount(0)),
        };
        let first = Self { at: now, sample, second: (now, delivered), carried: BitRate(0), window_max: window, heard };
        let Some(before) = before else { return first };
        let window_max = before.window_max.max(window);
        let (since, bytes) = before.second;
        let elapsed = now.saturating_duration_since(since);
        if elapsed < SECOND {
            return Self { second: before.second, carried: before.carried, window_max, ..first };
        }
        let carried = BitRate::mean(ByteCount(delivered.saturating_sub(bytes)), elapsed);
        Self { carried, window_max, ..first }
    }
}

/// Change of a lane between two samples.
struct Change<'a> {
    time: Duration,
    before: &'a LaneSample,
    now: &'a LaneSample,
    /// Delivery rate in the last complete second.
    carried: BitRate,
    /// Largest receive window of the lane so far.
    window_max: ByteCount,
    /// Time for which nothing has come back while data is in flight.
    silent: Duration,
}

impl Accountant {
    /// Creates an accountant of a lane to a web server, which reports nothing: its windows show how it reads. Such a
    /// lane has nothing to do only while it waits for an answer.
    pub fn to_web_server() -> Self {
        Self::to(ReceiverKind::Server { window: ByteCount(0) })
    }

    /// Creates an accountant of connections of other programs. Reports about the receiver come only if it is on this
    /// host too; else its windows show how it reads.
    pub fn of_strangers() -> Self {
        Self::to(ReceiverKind::Stranger)
    }

    fn to(kind: ReceiverKind) -> Self {
        Self { receiver: ReceiverView::of(kind), ..Self::default() }
    }

    /// Sets the given rate of the session.
    pub fn set_rate_cap(&mut self, rate: Option<BitRate>) {
        self.facts.rate_cap = rate.unwrap_or_default();
    }

    /// Processes a report of the receiver about its threads.
    pub fn handle_report(&mut self, now: Instant, report: &ReceiverReport) {
        self.receiver.update(now, report);
        let facts = &mut self.facts;
        // A lane within this process has no buffer.
        if report.buffer.0 > 0 {
            facts.receive_buffer = report.buffer;
        }
        facts.receive_buffer_max = report.buffer_max;
        facts.receive_window = facts.receive_window.max(report.window);
        // The count does not fall when lanes end.
        facts.overrun = facts.overrun.max(report.dropped);
    }

    /// Processes a sample of every lane that is up, and of their source. Call it about ten times a second.
    pub fn handle_samples(&mut self, now: Instant, lanes: &[(LaneId, LaneSample)], source: &SourceSample) {
        let of = |(lane, sample): &(LaneId, LaneSample)| (*lane, Before::of(now, *sample, self.before.get(lane)));
        let after: BTreeMap<LaneId, Before> = lanes.iter().map(of).collect();
        let before = std::mem::replace(&mut self.before, after);
        let changes: Vec<(LaneId, Change<'_>)> = lanes
            .iter()
            .filter_map(|(lane, sample)| {
                let Before { at, sample: before, carried, window_max, .. } = before.get(lane)?;
                let time = now.saturating_duration_since(*at);
                let silent = now.saturating_duration_since(self.before.get(lane)?.heard);
                (!time.is_zero()).then_some((
                    *lane,
                    Change { time, before, now: sample, carried: *carried, window_max: *window_max, silent },
                ))
            })
            .collect();
        self.facts.lanes = self.facts.lanes.max(lanes.len() as u64);
        self.facts.source = source.rate;
        if let Some(gap) = changes.iter().map(|(_, change)| change.time).max().filter(|gap| *gap >= STOPPED) {
            let idle = changes.iter().map(|(_, change)| idle_part(change)).fold(1.0, f64::min);
            // Data that came in the meantime was not seen when it came.
            self.before.values_mut().for_each(|lane| lane.heard = now);
            return self.count_stop(now, gap, idle);
        }
        let reading = self.handle_source(now, source, lanes);
        self.judge(now, &changes, &reading);
    }

    /// Counts `gap`, a time without samples: this process did not run. The part `idle` of it had nothing to send. Says
    /// nothing about the path.
    fn count_stop(&mut self, now: Instant, gap: Duration, idle: f64) {
        self.judged.clear();
        let mut interval = LimitTimes::default();
        interval.add(Limit::NothingToSend, gap.mul_f64(idle));
        interval.add(Limit::Cpu, gap.mul_f64(1.0 - idle));
        self.total.merge(&interval);
        self.keep_recent(now, interval);
    }

    fn keep_recent(&mut self, now: Instant, interval: LimitTimes) {
        self.recent.push_back((now, interval));
        while self.recent.front().is_some_and(|(at, _)| now.saturating_duration_since(*at) > RECENT) {
            self.recent.pop_front();
        }
    }

    /// Processes the sample of the source; returns the limits of a lane that waits for the source.
    fn handle_source(&mut self, now: Instant, source: &SourceSample, lanes: &[(LaneId, LaneSample)]) -> Split {
        let Some(web) = source.web else { return Split::all(Limit::SourceDisk) };
        let facts = &mut self.facts;
        facts.disordered_ppm = web.disordered_ppm();
        facts.is_web |= lanes.iter().any(|(_, sample)| sample.transport == TransportSample::InProcess);
        if !facts.is_web {
            // The window measurements belong to the lanes, not to the web servers.
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

    /// Returns the results until now.
    pub fn report(&self) -> LimitReport {
        let mut recent = LimitTimes::default();
        self.recent.iter().for_each(|(_, times)| recent.merge(times));
        let (mut total, mut facts) = (self.total, self.facts);
        // A path with a queue has no policer of the same rate. Its queue overflowed in a burst of a late host, which
        // looked like a policer.
        let policed = total.of(Limit::Policer);
        let is_as_full = facts.policed.0 as f64 > on_wire(facts.rate, facts.is_quic).0 as f64 * AS_FULL;
        if self.queued > policed && is_as_full {
            total.rename(Limit::Policer, Limit::CongestionWindow, policed);
            (facts.policed, facts.policed_is_least) = (BitRate(0), false);
        }
        LimitReport { recent, total, facts }
    }

    /// Returns the result for each lane in the last interval.
    pub fn judgements(&self) -> &[LaneJudgement] {
        &self.judged
    }

    /// Returns the cause of the window's size in the last interval; `None` before the first.
    pub fn window_cause(&self) -> Option<WindowCause> {
        self.cause
    }

    fn judge(&mut self, now: Instant, changes: &[(LaneId, Change<'_>)], reading: &Split) {
        self.judged.clear();
        let Some(time) = changes.iter().map(|(_, change)| change.time).max() else { return };
        let flow = flow_of(changes, time, self.receiver.delays.queue());
        let cause = self.path.add(&flow);
        self.cause = Some(cause);
        self.packets = (self.packets.0 + flow.sent, self.packets.1 + flow.lost);
        self.take_facts(changes, cause);
        let lanes: Vec<LaneSplit> =
            changes.iter().map(|(_, change)| judge_lane(change, &self.receiver, reading, cause)).collect();
        for ((lane, change), judged) in changes.iter().zip(&lanes) {
            self.judged.push(LaneJudgement { lane: *lane, limit: judged.whole().largest(), sample: *change.now });
        }
        let split = together(&lanes);
        // With nothing to send, or with silence, the earlier measurements of the path stay valid.
        if !matches!(split.largest(), Limit::NothingToSend | Limit::Silence) {
            self.carried = (self.carried.0 + ByteCount(flow.delivered), self.carried.1 + time);
            self.facts.reached = on_wire(BitRate::mean(self.carried.0, self.carried.1), self.facts.is_quic);
            // The rate of a full path is its capacity. A mean would include the ramp-up.
            self.facts.rate = if matches!(cause, WindowCause::Queue | WindowCause::Full) {
                self.path.usual()
            } else {
                self.path.rate()
            };
        }
        let mut interval = LimitTimes::default();
        for limit in Limit::ALL {
            // Sums of parts have a rounding error, which may be negative.
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
        self.keep_recent(now, interval);
    }

    /// Attributes losses from before a policer was detected to that policer; `loss`: lost time of the last interval.
    fn name_policer(&mut self, changes: &[(LaneId, Change<'_>)], loss: Duration, has_queue: bool) {
        let states = changes.iter().filter_map(|(_, change)| match &change.now.transport {
            TransportSample::Quic(quic) => Some(quic.state),
            TransportSample::Tcp(_) | TransportSample::InProcess => None,
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

    /// Stores the measurements that the remedies need; of windows and buffers the largest.
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
            // The highest rate of all windows counts; an exact rate is not replaced.
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
                TransportSample::InProcess => continue,
            };
            if facts.rtt.is_zero() || !rtt.is_zero() && rtt < facts.rtt {
                facts.rtt = rtt;
            }
        }
        if facts.policed != known {
            facts.policed_over_quic = facts.is_quic;
        }
        if let ReceiverKind::Server { window } = &mut self.receiver.kind {
            *window = facts.receive_window;
        }
    }
}

/// Returns true if a lane has data on its way and nothing came back between two samples. Without a route, as after a
/// pulled cable, the kernel counts all its data as unsent.
fn hears_nothing(before: &LaneSample, now: &LaneSample) -> bool {
    match (&before.transport, &now.transport) {
        // A peer that announces no window is alive.
        (TransportSample::Tcp(before), TransportSample::Tcp(now)) => {
            let has_data = now.in_flight.0 > 0 || now.unsent.0 > 0;
            has_data && now.delivered == before.delivered && now.rwnd_limited == before.rwnd_limited
        }
        (TransportSample::Quic(before), TransportSample::Quic(now)) => now.in_flight.0 > 0 && now.heard == before.heard,
        _ => false,
    }
}

/// Returns the part of an interval in which a lane had nothing to send.
fn idle_part(change: &Change<'_>) -> f64 {
    let (before, now) = (&change.before.feeder, &change.now.feeder);
    let idle = now.idle.saturating_sub(before.idle).as_secs_f64();
    (idle / change.time.as_secs_f64()).clamp(0.0, 1.0)
}

/// Returns the parts of an interval for one lane; `reading`: its limits while it waits for the source.
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
    let is_inside = change.now.transport == TransportSample::InProcess;
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
        // The data that the lane has given to the transport is still on its way.
        let mut working = Split::default();
        working.blend(&held, 1.0 - idle);
        working.blend(&judge_transport(change, receiver, cause), idle);
        return LaneSplit { working, ..LaneSplit::default() };
    }
    LaneSplit { working: held, idle, waiting: judge_idle(receiver) }
}

/// Returns the smallest round-trip time of a lane; zero if there is none.
fn rtt_min(sample: &LaneSample) -> Duration {
    match &sample.transport {
        TransportSample::Tcp(tcp) => tcp.rtt_min,
        TransportSample::Quic(quic) => quic.rtt_min,
        TransportSample::InProcess => Duration::ZERO,
    }
}

/// Returns true if a lane without a block still has data to deliver.
fn is_sending(change: &Change<'_>) -> bool {
    match &change.now.transport {
        TransportSample::Tcp(tcp) => tcp.unsent.0 > 0,
        TransportSample::Quic(quic) => quic.in_flight.0 * 4 > quic.window.0,
        TransportSample::InProcess => false,
    }
}

/// Returns the limits of a lane without a block and without data to deliver: the receiver's storage or processors, or a
/// lack of work.
fn judge_idle(receiver: &ReceiverView) -> Split {
    Split::all(match () {
        () if matches!(receiver.kind, ReceiverKind::Server { .. }) => Limit::DestinationDisk,
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

/// Judges a TCP lane. `window`: the limit behind a full congestion window.
fn judge_tcp(
    change: &Change<'_>,
    before: &TcpSample,
    now: &TcpSample,
    receiver: &ReceiverView,
    window: Limit,
) -> Split {
    let time = change.time;
    // The network does not delay threads that hardly wait for data, whatever its window shows at this moment.
    if receiver.is_slow() {
        return receiver.split();
    }
    let share = |total: Duration, earlier: Duration| {
        (total.saturating_sub(earlier).as_secs_f64() / time.as_secs_f64()).min(1.0)
    };
    let window_share = share(now.rwnd_limited, before.rwnd_limited);
    // A program that waited for room writes again when a third of the buffer is free.
    let window_is_free = now.in_flight.0 * 10 < now.window.0 * 9;
    let full_tenths = if window_is_free { 6 } else { 8 };
    let fills_buffer = now.send_buffer.0 >= now.send_buffer_max.0 / 10 * 9
        && now.send_queued.0 >= now.send_buffer.0 / 10 * full_tenths
        && now.unsent.0 * 8 < now.in_flight.0;
    let buffer_share = match now.send_buffer_max.0 > 0 && fills_buffer {
        true => 1.0 - window_share,
        false => share(now.sndbuf_limited, before.sndbuf_limited).min(1.0 - window_share),
    };
    let delivered = BitRate::mean(ByteCount(now.delivered.saturating_sub(before.delivered)), time);
    // Over a second too: at a low rate one interval contains a whole burst or nothing.
    let rate = delivered.max(change.carried);
    let is_capped = now.cap.is_some_and(|cap| rate.0 as f64 > cap.0 as f64 * AT_CAP);
    let closed = ClosedWindow {
        rate,
        rtt: now.rtt,
        rtt_min: now.rtt_min,
        window: now.receive_window,
        largest: change.window_max,
    };
    let of_closed_window = receiver.of_closed_window(&closed, window);
    let mut split = Split::default();
    split.add(of_closed_window, window_share);
    split.add(Limit::SendBuffer, buffer_share);
    // A sender that paces itself by its delivery rate leaves a little of the window free. The kernel does not count
    // that as limited by the window.
    let fills_window = now.in_flight.0 * 10 > now.receive_window.0 * 8 && window_share > 0.0;
    let remaining = match (is_capped, fills_window) {
        (true, _) => Limit::RateCap,
        (false, true) => of_closed_window,
        (false, false) => window,
    };
    split.add(remaining, 1.0 - window_share - buffer_share);
    split
}

/// Judges a QUIC lane. `window`: the limit behind a full window, and true if a queue exists before the path.
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
        // Neither pace nor window limits the lane. The memory at one end remains, unless the path has just changed.
        // Windows are sized for three bandwidth-delay products of the path. So a window with half of it in flight could
        // not grow.
        return Split::all(match () {
            () if now.in_flight.0 * 2 > now.memory.0 => Limit::SendBuffer,
            () if receiver.announces_less_than(ByteCount(now.in_flight.0 * 2)) => Limit::ReceiveWindow,
            () if engine > ENGINE_LATE => Limit::Cpu,
            () => window,
        });
    }
    Split::all(match (now.state, window) {
        // A window that is full below the given rate is one from which nothing came back.
        (RateState::Given, window) if !is_paced => window,
        (RateState::Given, _) => Limit::RateCap,
        (RateState::Searching, Limit::AckPath) => Limit::AckPath,
        (RateState::Searching, _) => Limit::CongestionWindow,
        // A policer has no queue: if a queue exists, the path is full.
        (RateState::Policed(_), window) if has_queue => window,
        (RateState::Policed(_), _) => Limit::Policer,
        (RateState::Found | RateState::Losing, window) => window,
    })
}

/// Returns the packets and bytes of a QUIC lane whose fate became known, and the lost packets among them. Reason:
/// losses show a round trip after sending. Compared with the packets sent meanwhile, losses at a changed rate look like
/// bursts.
fn settled(before: &QuicSample, now: &QuicSample) -> (u64, u64, u64) {
    let sent = now.sent.saturating_sub(before.sent);
    let sent_bytes = now.wire_bytes.saturating_sub(before.wire_bytes);
    let bytes = (sent_bytes + before.in_flight.0).saturating_sub(now.in_flight.0);
    let packet_bytes = now.wire_bytes.checked_div(now.sent).unwrap_or(0);
    let lost = now.lost.saturating_sub(before.lost);
    // Mean of all packets so far: a short interval has few packets.
    let packets = bytes.checked_div(packet_bytes).unwrap_or(sent).max(lost);
    (packets, bytes.max(lost * packet_bytes), lost)
}

/// Converts a rate of delivered payload to whole packets on the wire. QUIC lanes count whole packets already.
fn on_wire(rate: BitRate, is_quic: bool) -> BitRate {
    if is_quic { rate } else { BitRate((rate.0 as f64 * TCP_HEADERS) as u64) }
}

/// Returns the events of all lanes together; `return_queue`: delay of the return direction.
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
                // A found rate is the capacity of the path; losses below the ceiling do not lower it.
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

/// Time without samples from which this process was stopped, or got no processor. Reason: samples are some 0.1 s apart,
/// and with many lanes 0.3 s.
const STOPPED: Duration = Duration::from_secs(2);

/// Length of the recent past. Reason: the same as for the goodput of the progress display.
const RECENT: Duration = Duration::from_secs(5);

/// Time without anything coming back, at least four round trips, from which silence is the limit. Reason: busy hosts
/// are silent for less.
const SILENCE: Duration = Duration::from_secs(1);
/// The same for TCP. Reason: its retransmission timer backs off when repeats are lost too.
const SILENCE_TCP: Duration = Duration::from_secs(3);

/// Part of its busy time for which a feeder waits, from which the transport limits it. Reason: a feeder that is the
/// bottleneck finds room at once. A feeder that is not the bottleneck waits for the rest of its time. On busy hosts a
/// part of this size is noise.
const HELD_MIN: f64 = 0.15;

/// Part of the time in which a receiver's storage works, from which a sender without work waits for it.
const PUBLISHING_MIN: f64 = 0.5;

/// Longer period over which a rate is compared with a cap, beside the interval. Reason: it contains several bursts of a
/// path with an MTU of 64 KiB at 5 Mbit/s.
const SECOND: Duration = Duration::from_secs(1);

/// Part of the given rate that counts as reached. Reason: pacing wakes up late, and payload is 3 % less than packets.
const AT_CAP: f64 = 0.85;

/// Ratio of a policer's apparent rate to the rate of a full path, from which both are the same.
const AS_FULL: f64 = 0.9;

/// Part of its pace that a QUIC lane reaches if nothing else limits it. Reason: the pace is up to a quarter above the
/// rate, to catch up.
const AT_PACE: f64 = 0.7;

/// Ratio of packets on the wire to their payload, in a lane of full segments at MTU 1500.
const TCP_HEADERS: f64 = 1.036;

/// As [`ENGINE_BUSY`], for an engine below its pace that nothing else limits: it is late for its timers.
const ENGINE_LATE: f64 = 0.3;
