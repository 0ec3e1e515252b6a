//! The next experiment of an examination: a decision from what was observed so far.
//!
//! Each direction begins with what programs do, one connection with the settings of both hosts. Packets without
//! congestion control then show what the path carries and how it fails above that. The rest is proof: the same
//! connection with one thing changed, for the limits that the evidence suggests, as far as the time allows.

use std::time::Duration;

use sterna_net::measure::{EchoSpec, FlowSpec, SocketSettings, TrainReport, TrainSpec};
use sterna_proto::BitRate;

use crate::ceiling::Ceiling;
use crate::evidence::{Direction, Evidence, Experiment, Purpose, Record, buffers};
use crate::facts::{Facts, LOST_MIN};
use crate::view::FlowView;

/// Bounds of an examination.
#[derive(Clone, Debug, PartialEq)]
pub struct Bounds {
    /// Time for all experiments; `None`: that of [`default_time`] over the round trip of the path.
    pub time: Option<Duration>,
    /// Highest rate of all packets together; `None`: TCP is not bound, and packet trains have at most
    /// [`TRAIN_RATE_MAX_BPS`].
    pub rate_max: Option<BitRate>,
    /// Directory of this host whose disk is measured.
    pub near_disk: Option<String>,
    /// Directory of the agent whose disk is measured.
    pub far_disk: Option<String>,
}

/// Experiment that is to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Next {
    /// Question.
    pub purpose: Purpose,
    /// Direction.
    pub direction: Direction,
    /// How it is asked.
    pub experiment: Experiment,
}

impl Bounds {
    /// Returns the time for all experiments over a path, seconds.
    fn time_s(&self, rtt: Duration) -> f64 {
        self.time.unwrap_or_else(|| default_time(rtt)).as_secs_f64()
    }

    /// Returns the smaller one of a rate and the highest allowed rate, bit/s.
    fn allowed(&self, bps: f64) -> f64 {
        self.rate_max.map_or(bps, |most| bps.min(most.0 as f64))
    }

    /// Returns the highest rate of a packet train, bit/s.
    fn train_max(&self) -> f64 {
        self.allowed(TRAIN_RATE_MAX_BPS)
    }
}

/// Returns the default time of an examination over a path: 60 s up to 200 ms of round trip, and 120 s from 660 ms on.
pub fn default_time(rtt: Duration) -> Duration {
    let above = rtt.saturating_sub(Duration::from_millis(200)).as_secs_f64();
    Duration::from_secs_f64((60.0 + above * 60.0 / 0.46).min(120.0))
}

/// Returns the next experiment; `None`: the examination is complete, or its time is used up.
pub fn next(evidence: &Evidence, bounds: &Bounds) -> Option<Next> {
    if !evidence.has(Purpose::Echoes, Direction::Forward) {
        return Some(echoes(bounds));
    }
    for (purpose, path) in [(Purpose::NearDisk, &bounds.near_disk), (Purpose::FarDisk, &bounds.far_disk)] {
        if let Some(path) = path.clone().filter(|_| !evidence.has(purpose, Direction::Forward)) {
            return Some(Next { purpose, direction: Direction::Forward, experiment: Experiment::Disk { path } });
        }
    }
    let used = evidence.records.last().map_or(0, |record| record.start_ms + record.time_ms);
    let left_s = bounds.time_s(evidence.rtt()) - used as f64 / 1e3;
    let baseline = |direction| Question { facts: &Facts::new(evidence, direction), bounds, left_s }.baseline();
    let missing = Direction::ALL.into_iter().find(|direction| !evidence.has(Purpose::Baseline, *direction));
    if let Some(direction) = missing {
        return baseline(direction);
    }
    Direction::ALL.into_iter().find_map(|direction| {
        // The first direction leaves the rest to the second.
        let kept_s = if direction == Direction::Forward { left_of_reverse(evidence, bounds) } else { 0.0 };
        Question { facts: &Facts::new(evidence, direction), bounds, left_s: left_s - kept_s }.next()
    })
}

/// Returns the time that the experiments of the return direction are to have, seconds: half of all after the baselines.
fn left_of_reverse(evidence: &Evidence, bounds: &Bounds) -> f64 {
    let baseline = evidence.record(Purpose::Baseline, Direction::Reverse);
    let begin = baseline.map_or(0, |record| record.start_ms + record.time_ms);
    (bounds.time_s(evidence.rtt()) - begin as f64 / 1e3) / 2.0
}

/// Returns the echoes of an examination. They are slower than usual if the highest rate demands it.
fn echoes(bounds: &Bounds) -> Next {
    let at_rate_us = f64::from(ECHO_BYTES) * 8e6 / bounds.allowed(f64::INFINITY);
    let interval_us = ECHO_INTERVAL_US.max(at_rate_us.ceil() as u64);
    let time_us = bounds.time.map_or(ECHO_TIME, |time| ECHO_TIME.min(time / 4)).as_micros() as u64;
    let most = u32::try_from(time_us / (interval_us * u64::from(ECHO_PORTS))).unwrap_or(u32::MAX);
    let spec =
        EchoSpec { ports: ECHO_PORTS, per_port: most.clamp(1, ECHO_COUNT), interval_us, packet_bytes: ECHO_BYTES };
    Next { purpose: Purpose::Echoes, direction: Direction::Forward, experiment: Experiment::Echo { spec } }
}

/// Ports of the echoes. Reason: of 128 paths, this many flows see a third; of two paths, each is seen.
const ECHO_PORTS: u32 = 64;

/// Echoes of each port.
const ECHO_COUNT: u32 = 8;

/// Size of the IP packets of echoes.
const ECHO_BYTES: u32 = 128;

/// Longest time of the echoes. Reason: a rate below 0.5 Mbit/s makes them slow, and fewer of them show modes too.
const ECHO_TIME: Duration = Duration::from_secs(8);

/// Time from one echo to the next, microseconds. Reason: all of them take a second, at 0.5 Mbit/s.
const ECHO_INTERVAL_US: u64 = 2000;

/// Sizes of packets that the sweep sends: those of tunnels, of Ethernet and of jumbo frames.
const SIZES: [u32; 16] =
    [576, 1006, 1280, 1300, 1350, 1400, 1420, 1440, 1460, 1480, 1492, 1500, 2000, 4352, 8000, 9000];

/// Smallest and largest packets of a train. Reason: the host that receives them handles each one.
const PACKET_MIN: u32 = 576;
const PACKET_MAX: u32 = 1500;

/// Events of reordering of a connection from which packets without load show more. Reason: RACK hides reordering from
/// the rate, and without selective acknowledgements a sender counts events that were none.
const REORDERED: u64 = 3;

/// Rate of a connection that stands still, bit/s.
const STALLED: f64 = 1e5;

/// Rate of the packets of several sizes on a path where connections stand still, bit/s.
const STALLED_SIZES: f64 = 2e6;

/// Lowest rate of the packets of several sizes, bit/s. Reason: they take five seconds.
const SIZES_MIN: f64 = 5e5;

/// Packets of each size.
const PER_SIZE: u32 = 6;

/// Lowest rate of a train that searches the rate of a path, bit/s.
const SEARCH_MIN: f64 = 4e6;

/// Highest rate of a packet train, bit/s. Reason: one processor sends and one receives it.
pub const TRAIN_RATE_MAX_BPS: f64 = 2e9;

/// Factor from one search to the next.
const SEARCH_FACTOR: f64 = 4.0;

/// Number of searches.
const SEARCHES_MAX: usize = 5;

/// Rate of the long train, as a multiple of the rate of the path.
const OVERLOAD: f64 = 1.6;

/// Rest before a long train: queues drain, and buckets fill.
const REST_MS: u64 = 1500;

/// Time that the receiver of a train waits for late packets, and that hosts need, seconds.
const LATE_S: f64 = 1.5;

/// Round trips of a train beside its packets: questions and answers, its queue, and its report.
const TRAIN_ROUNDS: f64 = 7.0;

/// Round trips of a flow beside its data: questions and answers, handshakes, and its report.
const FLOW_ROUNDS: f64 = 8.0;

/// Time of hosts for a flow, seconds.
const HOST_S: f64 = 0.3;

/// Next question in one direction.
struct Question<'a> {
    facts: &'a Facts<'a>,
    bounds: &'a Bounds,
    left_s: f64,
}

impl Question<'_> {
    fn next(&self) -> Option<Next> {
        let asked = |purpose| self.facts.evidence.has(purpose, self.facts.direction);
        let base = self.facts.base.as_ref()?;
        // Packets of the other trains are no larger than those that pass.
        if !asked(Purpose::Sizes)
            && let Some(sizes) = self.sizes()
        {
            return Some(sizes);
        }
        if let Some(search) = self.search(base) {
            return Some(search);
        }
        if !asked(Purpose::Overload)
            && let Some(ceiling) = self.facts.ceiling.filter(|ceiling| ceiling.is_reached())
        {
            return self.overload(Purpose::Overload, ceiling.bps() * OVERLOAD, REST_MS);
        }
        self.proof(base)
    }

    /// Returns one connection as programs open it.
    fn baseline(&self) -> Option<Next> {
        self.flow(Purpose::Baseline, 1, SocketSettings::default(), SocketSettings::default())
    }

    /// Returns the experiment that changes one thing.
    fn proof(&self, base: &FlowView) -> Option<Next> {
        let asked = |purpose| self.facts.evidence.has(purpose, self.facts.direction);
        let default = SocketSettings::default;
        let (is_windowed, is_buffered) = (base.is_window_limited(), base.is_buffer_limited());
        let reaches = self.facts.fills_path();
        if (is_windowed || is_buffered) && !reaches {
            if !asked(Purpose::LargeBuffers) {
                let large = self.large_buffer();
                return self.flow(Purpose::LargeBuffers, 1, buffers(None, Some(large)), buffers(Some(large), None));
            }
            if is_windowed && !asked(Purpose::HalfReceiveBuffer) {
                let half = buffers(Some(base.receive_buffer / 2), None);
                return self.flow(Purpose::HalfReceiveBuffer, 1, default(), half);
            }
            if is_buffered && !asked(Purpose::HalfSendBuffer) {
                let half = buffers(None, Some(base.send_buffer / 2));
                return self.flow(Purpose::HalfSendBuffer, 1, half, default());
            }
        }
        let loses = base.lost.saturating_sub(base.lost_in_ramp) > 2 || base.lost > 20;
        let reorders = base.sack && base.reordered >= REORDERED;
        if (loses || reorders || !reaches) && !asked(Purpose::LowRate) {
            return self.low_rate(base);
        }
        // One or two lost packets may be chance, or a loss of one in ten thousand: more packets tell.
        let (lost, _) = self.facts.lost_without_load();
        let is_low_rate =
            |record: &&Record| record.purpose == Purpose::LowRate && record.direction == self.facts.direction;
        let times = self.facts.evidence.records.iter().filter(is_low_rate).count();
        if times == 1
            && (1..LOST_MIN).contains(&lost)
            && let Some(again) = self.low_rate(base)
        {
            return Some(again);
        }
        if let Some(Ceiling::Policer { bps, burst }) = self.facts.ceiling {
            if !asked(Purpose::SecondOverload) && burst > bps / 8.0 * REST_MS as f64 / 1e3 * 0.8 {
                return self.overload(Purpose::SecondOverload, bps * OVERLOAD, REST_MS * 4);
            }
            if !asked(Purpose::Paced) {
                let paced = SocketSettings { pacing_bps: Some((bps * 0.95) as u64), ..default() };
                return self.flow(Purpose::Paced, 1, paced, default());
            }
        }
        if !reaches
            && !asked(Purpose::OtherControl)
            && let Some(control) = self.other_control(base)
        {
            let sender = SocketSettings { congestion: Some(control), ..default() };
            return self.flow(Purpose::OtherControl, 1, sender, default());
        }
        if !reaches && !asked(Purpose::FourStreams) {
            return self.flow(Purpose::FourStreams, 4, default(), default());
        }
        None
    }

    /// Returns a train that searches the rate of the path: above the rate of the baseline, then faster.
    fn search(&self, base: &FlowView) -> Option<Next> {
        let trains: Vec<_> = self.facts.evidence.trains(Purpose::Capacity, self.facts.direction).collect();
        let failed = self.facts.evidence.has(Purpose::Capacity, self.facts.direction) && trains.is_empty();
        if failed || trains.len() >= SEARCHES_MAX || self.facts.ceiling.is_some_and(Ceiling::is_reached) {
            return None;
        }
        let most = self.bounds.train_max();
        let rate = match trains.last() {
            // Packets without congestion control would show less than the connection did.
            None if base.rate_bps >= TRAIN_RATE_MAX_BPS => return None,
            None => (base.rate_bps * 3.0).max(SEARCH_MIN),
            Some((spec, train)) if is_outrun(spec, train) || spec.rate_bps as f64 >= most * 0.99 => return None,
            Some((spec, _)) => spec.rate_bps as f64 * SEARCH_FACTOR,
        };
        self.train(Purpose::Capacity, rate.min(most), 400, vec![self.packet()], 0)
    }

    fn overload(&self, purpose: Purpose, bps: f64, rest_ms: u64) -> Option<Next> {
        // Long enough that a queue of a round trip fills.
        let time = (self.facts.rtt_s / (OVERLOAD - 1.0) * 1.5 + 1.0).clamp(2.0, 4.0);
        self.train(purpose, bps.min(self.bounds.train_max()), (time * 1e3) as u64, vec![self.packet()], rest_ms)
    }

    fn low_rate(&self, base: &FlowView) -> Option<Next> {
        let ceiling = self.facts.ceiling.map_or(base.rate_bps * 4.0, Ceiling::bps);
        // A twentieth of the rate of the path, in packets that make many of it.
        let rate = self.bounds.allowed((ceiling / 20.0).clamp(2e5, 8e6));
        self.train(Purpose::LowRate, rate, 2500, vec![LOW_RATE_PACKET], 300)
    }

    fn sizes(&self) -> Option<Next> {
        // A connection that stands still may do so for the size of its packets.
        let carried = if self.facts.best_bps() < STALLED { STALLED_SIZES } else { self.facts.best_bps() / 4.0 };
        let bits: u32 = SIZES.iter().sum::<u32>() * 8 * PER_SIZE;
        let rate = self.bounds.allowed(carried.clamp(SIZES_MIN, 2e7));
        let time_ms = (f64::from(bits) / rate * 1e3) as u64;
        self.train(Purpose::Sizes, rate, time_ms.max(1), SIZES.to_vec(), 200)
    }

    fn train(&self, purpose: Purpose, rate: f64, time_ms: u64, packet_bytes: Vec<u32>, rest_ms: u64) -> Option<Next> {
        let cost = (time_ms + rest_ms) as f64 / 1e3 + LATE_S + self.facts.rtt_s * TRAIN_ROUNDS;
        let direction = self.facts.direction;
        let spec = TrainSpec { direction: direction.of_data(), rate_bps: rate as u64, time_ms, packet_bytes, ports: 1 };
        (cost < self.left_s).then_some(Next { purpose, direction, experiment: Experiment::Train { spec, rest_ms } })
    }

    fn flow(&self, purpose: Purpose, streams: u32, sender: SocketSettings, receiver: SocketSettings) -> Option<Next> {
        let rtt = self.facts.rtt_s;
        let time = match purpose {
            Purpose::Baseline => (rtt * 20.0 + 3.0).clamp(4.0, 16.0).min(self.time_s() / 4.0),
            _ => (rtt * 12.0 + 2.0).clamp(3.0, 10.0),
        };
        if time + rtt * FLOW_ROUNDS + HOST_S > self.left_s {
            return None;
        }
        let direction = self.facts.direction;
        let cap = self.bounds.rate_max.map(|most| most.0 / u64::from(streams));
        let pacing_bps = [sender.pacing_bps, cap].into_iter().flatten().min();
        let spec = FlowSpec {
            direction: direction.of_data(),
            streams,
            time_ms: (time * 1e3) as u64,
            bytes_max: u64::MAX,
            sender: SocketSettings { pacing_bps, ..sender },
            receiver,
        };
        Some(Next { purpose, direction, experiment: Experiment::Flow { spec } })
    }

    /// Returns the time for all experiments, seconds.
    fn time_s(&self) -> f64 {
        self.bounds.time_s(self.facts.evidence.rtt())
    }

    /// Returns a buffer for twice the data of the path, bookkeeping included.
    fn large_buffer(&self) -> u64 {
        let data = self.facts.least_bps().max(1e6) / 8.0 * self.facts.rtt_s;
        (data * 4.0).clamp(1e6, 1e9) as u64
    }

    /// Returns the size of an IP packet of a train: that of a full segment, if it passes.
    fn packet(&self) -> u32 {
        let passes = self.facts.mtu().unwrap_or(PACKET_MAX);
        (self.facts.packet_bytes() as u32).min(passes).clamp(PACKET_MIN, PACKET_MAX)
    }

    /// Returns a congestion control of the other kind that the sender may use.
    fn other_control(&self, base: &FlowView) -> Option<String> {
        let known = self.facts.sender().settings.get("ipv4.tcp_available_congestion_control");
        let other = if base.is_bbr() { "cubic" } else { "bbr" };
        known.is_some_and(|known| known.split(' ').any(|name| name == other)).then(|| other.to_owned())
    }
}

/// Returns true if the sender had far less than the rate of the train: faster ones show nothing new.
fn is_outrun(spec: &TrainSpec, train: &TrainReport) -> bool {
    (train.sent_bytes as f64) * 8.0 < spec.rate_bps as f64 * spec.time().as_secs_f64() * OUTRUN
}

/// Part of the rate below which a sender is outrun.
const OUTRUN: f64 = 0.6;

/// Size of the IP packets of a train at a low rate.
const LOW_RATE_PACKET: u32 = 160;
