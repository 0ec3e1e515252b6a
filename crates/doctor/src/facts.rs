//! Facts of one direction of a path: the experiments side by side, in the terms of the rules.

use std::time::Duration;

use sterna_net::measure::{EchoPort, FlowPair, FlowSpec, HostFacts, TrainReport, TrainSpec};

use crate::ceiling::Ceiling;
use crate::echoes::rtt_modes;
use crate::evidence::{Direction, Evidence, Purpose, Record};
use crate::response::bbr_share;
use crate::verdict::RttMode;
use crate::view::{FlowView, median};

/// Bytes of the headers of IPv4 and TCP, and of IPv6 and TCP.
const HEADERS: f64 = 40.0;
const HEADERS_V6: f64 = 60.0;

/// Bytes of the option timestamps in a TCP header.
const TIMESTAMPS: f64 = 12.0;

/// Part of the rate of the path at which a connection fills it.
pub(crate) const FULL: f64 = 0.85;

/// Number of losses that cannot be chance events of a queue.
pub(crate) const LOST_MIN: u64 = 3;

/// Part of the smallest round trip, and delay in seconds, from which packets wait in a queue of others. Reason: packets
/// of a busy host are late by milliseconds.
const QUEUED: f64 = 0.05;
const QUEUED_S: f64 = 0.003;

/// Delay of trains at a low rate from which others fill a queue in their direction, seconds, and how many times that of
/// the other direction it is. Reason: without others, hosts of the lab delay by up to 0.2 ms.
const DELAYS_S: f64 = 0.0005;
const DELAYS: f64 = 2.0;

/// Part of the delay of echoes that the handshake before them had too, if it is a queue. Reason: queues of others move.
const HANDSHAKE: f64 = 0.5;

/// Multiple of the part of the path in the other direction below which a part is smaller.
const SMALLER: f64 = 0.95;

/// Queue that others filled before the doctor sent anything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StandingQueue {
    /// Delay of it, seconds, at its smallest.
    pub delay_s: f64,
    /// Direction in which it stood.
    pub direction: Direction,
}

/// Facts of one direction.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// Everything that was observed.
    pub evidence: &'a Evidence,
    /// Direction.
    pub direction: Direction,
    /// Smallest round trip, seconds.
    pub rtt_s: f64,
    /// One connection as programs open it.
    pub base: Option<FlowView>,
    /// Rate up to which the path carries packets without congestion control, whole packets.
    pub ceiling: Option<Ceiling>,
    /// The same in the return direction.
    pub return_ceiling: Option<Ceiling>,
}

impl<'a> Facts<'a> {
    /// Returns the facts of a direction.
    pub fn new(evidence: &'a Evidence, direction: Direction) -> Self {
        Self {
            evidence,
            direction,
            rtt_s: evidence.rtt().as_secs_f64(),
            base: view(evidence, Purpose::Baseline, direction),
            ceiling: ceiling(evidence, direction),
            return_ceiling: ceiling(evidence, direction.opposite()),
        }
    }

    /// Returns the view of another flow of this direction.
    pub fn flow(&self, purpose: Purpose) -> Option<FlowView> {
        view(self.evidence, purpose, self.direction)
    }

    /// Returns the sender's host.
    pub fn sender(&self) -> &HostFacts {
        self.evidence.ends(self.direction).0
    }

    /// Returns the receiver's host.
    pub fn receiver(&self) -> &HostFacts {
        self.evidence.ends(self.direction).1
    }

    /// Returns the payload of a full segment, bytes.
    pub fn mss(&self) -> f64 {
        self.base.as_ref().map_or(1448.0, |base| f64::from(base.mss.max(1)))
    }

    /// Returns the TCP payload rate that a rate of whole packets carries.
    pub fn payload(&self, bps: f64) -> f64 {
        bps * self.mss() / self.packet_bytes()
    }

    /// Returns the payload rate up to which the path carries, if its ceiling was reached. A ceiling for UDP only is no
    /// ceiling of TCP.
    pub fn path_bps(&self) -> Option<f64> {
        let ceiling = self.ceiling.filter(|ceiling| ceiling.is_reached())?;
        let path = self.payload(ceiling.bps());
        let bucket = match ceiling {
            Ceiling::Policer { burst, .. } => burst * 8.0,
            _ => 0.0,
        };
        let is_passed = self.flows().any(|view| view.rate_bps >= path * ABOVE + view.left_of(bucket, path));
        (!is_passed).then_some(path)
    }

    /// Returns the payload rate that a connection has if it fills the path, if the ceiling was reached: bbr pauses.
    pub fn usable_bps(&self) -> Option<f64> {
        let is_bbr = self.base.as_ref().is_some_and(FlowView::is_bbr);
        let share = if is_bbr { bbr_share(Duration::from_secs_f64(self.rtt_s)) } else { 1.0 };
        self.path_bps().map(|path| path * share)
    }

    /// Returns the payload rate that a connection can have: that of the path, or the highest rate seen.
    pub fn reachable_bps(&self) -> f64 {
        self.usable_bps().unwrap_or_else(|| self.least_bps())
    }

    /// Returns true if the baseline fills the path.
    pub fn fills_path(&self) -> bool {
        let rate = self.base.as_ref().map_or(0.0, |base| base.rate_bps);
        self.usable_bps().is_some_and(|usable| rate >= usable * FULL)
    }

    /// Returns the bytes of headers in a full segment.
    pub fn headers(&self) -> f64 {
        let timestamps = self.base.as_ref().is_none_or(|base| base.timestamps);
        let headers = if self.evidence.is_ipv6 { HEADERS_V6 } else { HEADERS };
        if timestamps { headers + TIMESTAMPS } else { headers }
    }

    /// Returns the size of the IP packet of a full segment.
    pub fn packet_bytes(&self) -> f64 {
        self.mss() + self.headers()
    }

    /// Returns the payload rate that the path carries at least.
    pub fn least_bps(&self) -> f64 {
        let carried = self.ceiling.map_or(0.0, |ceiling| self.payload(ceiling.bps()));
        if self.ceiling.is_some_and(Ceiling::is_reached) && self.path_bps().is_none() {
            return self.best_bps();
        }
        carried.max(self.best_bps())
    }

    /// Returns the rate to which the user bound the doctor, bit/s; `None`: to none.
    pub fn rate_cap_bps(&self) -> Option<f64> {
        let (spec, _) = self.evidence.flow(Purpose::Baseline, self.direction)?;
        Some(spec.sender.pacing_bps?.saturating_mul(spec.streams.into()) as f64)
    }

    /// Returns the highest payload rate of any flow.
    pub fn best_bps(&self) -> f64 {
        self.flows().map(|view| view.rate_bps).fold(0.0, f64::max)
    }

    /// Returns the views of the flows of this direction: of each purpose that of the last experiment.
    fn flows(&self) -> impl Iterator<Item = FlowView> {
        let is_last = |record: &&Record| {
            let last = self.evidence.record(record.purpose, self.direction);
            last.is_some_and(|last| std::ptr::eq(last, *record))
        };
        self.evidence.records.iter().filter(is_last).filter_map(|record| self.flow(record.purpose))
    }

    /// Returns the trains that the path carried: sent below its ceiling, in packets that pass.
    pub fn carried_trains(&self) -> Vec<(&'a TrainSpec, &'a TrainReport)> {
        let ceiling = self.ceiling.filter(|ceiling| ceiling.is_reached()).map_or(f64::INFINITY, Ceiling::bps);
        [Purpose::LowRate, Purpose::Capacity]
            .into_iter()
            .flat_map(|purpose| self.evidence.trains(purpose, self.direction))
            .filter(|(spec, _)| (spec.rate_bps as f64) < ceiling * BELOW)
            .filter(|(spec, _)| self.mtu().is_none_or(|mtu| spec.packet_bytes.iter().all(|bytes| *bytes <= mtu)))
            .collect()
    }

    /// Returns the largest packet that passes, bytes; `None`: it is not known.
    pub fn mtu(&self) -> Option<u32> {
        let (_, train) = self.evidence.train(Purpose::Sizes, self.direction)?;
        train.sizes.iter().filter(|size| size.received > 0).map(|size| size.bytes).max()
    }

    /// Returns packets lost and sent without load: echoes in this direction, and trains below the ceiling.
    pub fn lost_without_load(&self) -> (u64, u64) {
        let trains = self.carried_trains();
        let drops = |train: &TrainReport| train.receiver_drops + train.sender_drops;
        let lost: u64 = trains
            .iter()
            .map(|(_, train)| (train.sent - train.received.min(train.sent)).saturating_sub(drops(train)))
            .sum();
        let sent: u64 = trains.iter().map(|(_, train)| train.sent).sum();
        let (echo_lost, echo_sent) = self.echo_losses();
        (lost + echo_lost, sent + echo_sent)
    }

    /// Returns echoes lost and sent in this direction.
    fn echo_losses(&self) -> (u64, u64) {
        let echoes = self.evidence.echoes().map_or(&[][..], |report| &report.echoes[..]);
        let sum = |of: fn(&EchoPort) -> u64| -> u64 { echoes.iter().map(of).sum() };
        match self.direction {
            Direction::Forward => (sum(|port| port.sent - port.reflected.min(port.sent)), sum(|port| port.sent)),
            Direction::Reverse => {
                (sum(|port| port.reflected - port.returned.min(port.reflected)), sum(|port| port.reflected))
            }
        }
    }

    /// Returns the part of packets that others overtook, in trains below the ceiling, and the largest lateness in
    /// seconds. Each port by itself: paths of different length are no reordering.
    pub fn reordered(&self) -> (f64, f64) {
        let trains = self.carried_trains();
        let reordered: u64 = trains.iter().flat_map(|(_, train)| &train.ports).map(|port| port.reordered).sum();
        let received: u64 = trains.iter().map(|(_, train)| train.received).sum();
        let extent = trains.iter().map(|(_, train)| train.reorder_extent_us).max().unwrap_or(0);
        (reordered as f64 / received.max(1) as f64, extent as f64 / 1e6)
    }

    /// Returns the delay of a queue that others fill, seconds: the median delay of a train at a low rate above its
    /// smallest. Without such a train, the median round trip of the echoes above the smallest one of its port, which is
    /// of both directions.
    pub fn queue_of_others_s(&self) -> f64 {
        let (_, low) = self.evidence.train(Purpose::LowRate, self.direction).unzip();
        if let Some(train) = low {
            return delay_s(train);
        }
        let echoes = self.evidence.echoes().map_or(&[][..], |report| &report.echoes[..]);
        let above = |port: &EchoPort| {
            let least = port.rtt_us.iter().min().copied().unwrap_or(0);
            port.rtt_us.iter().map(move |rtt| (rtt - least) as f64 / 1e6).collect::<Vec<f64>>()
        };
        median(echoes.iter().flat_map(above).collect())
    }

    /// Returns the queue that stood before the doctor sent anything: no echo had the smallest round trip. Echoes show
    /// no direction. It is the one in which trains at a low rate were delayed later; if there is none, the one whose
    /// connection had the smaller part of the path.
    pub fn standing_queue(&self) -> Option<StandingQueue> {
        let echoes = self.evidence.echoes()?.echoes.iter().flat_map(|port| &port.rtt_us);
        let delay_s = *echoes.min()? as f64 / 1e6 - self.rtt_s;
        // The handshake before is the witness of TCP: a device that answers for the far host, and a route of UDP that
        // is longer, are no queue.
        let of_handshake = self.evidence.connect_us as f64 / 1e6 - self.rtt_s;
        if delay_s < self.queue_least_s() || of_handshake < delay_s * HANDSHAKE {
            return None;
        }
        let [forward, reverse] = Direction::ALL.map(|direction| self.delays_s(direction));
        let is_clear = forward.max(reverse) > DELAYS_S.max(forward.min(reverse) * DELAYS);
        let direction = match is_clear {
            true if forward > reverse => Direction::Forward,
            true => Direction::Reverse,
            false => match Direction::ALL.map(|direction| self.part(direction)) {
                [forward, reverse] if forward < reverse * SMALLER => Direction::Forward,
                [forward, reverse] if reverse < forward * SMALLER => Direction::Reverse,
                _ => return None,
            },
        };
        Some(StandingQueue { delay_s, direction })
    }

    /// Returns the part of the path that the baseline of a direction had.
    fn part(&self, direction: Direction) -> f64 {
        let facts = Facts::new(self.evidence, direction);
        let rate = facts.base.as_ref().map_or(f64::INFINITY, |base| base.rate_bps);
        rate / facts.reachable_bps().max(1.0)
    }

    /// Returns the delay from which a queue is more than the turns of hosts, seconds.
    fn queue_least_s(&self) -> f64 {
        (self.rtt_s * QUEUED).max(QUEUED_S)
    }

    /// Returns true if others keep a queue while the doctor sends little.
    pub fn is_queued(&self) -> bool {
        self.queue_of_others_s() > self.queue_least_s()
    }

    /// Returns true if trains at a low rate were delayed in this direction.
    pub fn is_delayed(&self) -> bool {
        self.delays_s(self.direction) > DELAYS_S
    }

    /// Returns the larger of the median delays of the trains at a low rate in a direction, seconds.
    fn delays_s(&self, direction: Direction) -> f64 {
        let trains = [Purpose::Sizes, Purpose::LowRate]
            .into_iter()
            .filter_map(|purpose| self.evidence.train(purpose, direction));
        trains.map(|(_, train)| delay_s(train)).fold(0.0, f64::max)
    }

    /// Returns the round trips of the ports in groups.
    pub fn rtt_modes(&self) -> Vec<RttMode> {
        rtt_modes(self.evidence.echoes().map_or(&[][..], |report| &report.echoes[..]), self.rtt_s)
    }

    /// Returns the value of a setting of a host: its numbers.
    pub fn setting(host: &HostFacts, name: &str) -> Vec<u64> {
        let text = host.settings.get(name).map_or("", String::as_str);
        text.split_whitespace().filter_map(|value| value.parse().ok()).collect()
    }
}

/// Multiple of a ceiling above which TCP has passed it.
const ABOVE: f64 = 1.1;

/// Part of the ceiling up to which a train is no load.
const BELOW: f64 = 0.85;

/// Returns the median delay of a train above its smallest, seconds.
fn delay_s(train: &TrainReport) -> f64 {
    let bins = train.bins.iter().filter(|bin| bin.received > 0);
    median(bins.map(|bin| bin.delay_min_us as f64 / 1e6).collect())
}

/// Returns the view of a flow.
fn view(evidence: &Evidence, purpose: Purpose, direction: Direction) -> Option<FlowView> {
    let (spec, pair): (&FlowSpec, &FlowPair) = evidence.flow(purpose, direction)?;
    Some(FlowView::new(pair, spec.time_ms as f64 / 1e3))
}

/// Returns the ceiling that the longest train shows.
fn ceiling(evidence: &Evidence, direction: Direction) -> Option<Ceiling> {
    let of =
        |purpose| evidence.trains(purpose, direction).filter_map(|(spec, train)| Ceiling::of(spec, train)).next_back();
    let long = [Purpose::SecondOverload, Purpose::Overload].into_iter().find_map(of).filter(|long| long.is_reached());
    long.or_else(|| {
        let short = evidence.trains(Purpose::Capacity, direction).filter_map(|(spec, train)| Ceiling::of(spec, train));
        short.fold(None, |best: Option<Ceiling>, next| match best {
            // A train may pass at once what the bucket of a policer holds: a ceiling that was reached counts more.
            Some(best) if best.is_reached() || (!next.is_reached() && best.bps() > next.bps()) => Some(best),
            _ => Some(next),
        })
    })
}
