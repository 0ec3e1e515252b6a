//! One path of a copy: its options, its lanes and its measurements.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sterna_proto::path_cache::{DataDirection, PathRecord, PeakRate};
use sterna_proto::plan::{FoundPath, MTU_USUAL, Via};
use sterna_proto::rate::Fairness;
use sterna_proto::session::PathNumber;
use sterna_proto::transport_trial::{TransportTrial, TrialFacts, TrialStep};
use sterna_proto::{BitRate, ByteCount, Error};

use super::path_cache::{self, PathCache};
use super::spec::{CopyProgress, PathOptions, PathPlan, UnreachedPath};
use crate::lane::LaneStats;
use crate::lane::quic::SharedRate;
use crate::session::{Lanes, SILENT_AFTER};

/// Time without another live path before a standby path is used. Reason: a lane that was cut is up again sooner if its
/// path still carries data. Also, a new session has no lane for its first round trips.
pub(super) const STANDBY_AFTER: Duration = Duration::from_secs(2);

/// Path of a session, with its lanes.
pub(super) struct KeptPath {
    pub(super) number: PathNumber,
    pub(super) options: PathOptions,
    /// Name of the path in messages to users; `None` if there is only one path.
    pub(super) name: Option<String>,
    /// Set when the agent has been reached on this path.
    pub(super) reached: OnceLock<ReachedPath>,
    pub(super) live: Lanes,
    /// Number of lanes that the agent has accepted and that have not ended.
    pub(super) up: AtomicUsize,
    /// Bytes received on the lanes, and the time of the last change of that number.
    pub(super) heard: Mutex<LastReceived>,
    /// Number of lanes to keep for each transport; grows if they turn out to be too few.
    lanes_wanted: [AtomicU32; 2],
    /// Bytes and rates of the lanes of each transport.
    carried: Mutex<[Carried; 2]>,
    /// Transport trial: decides which of the two transports carries more.
    pub(super) trial: Mutex<TransportTrial>,
}

/// Bytes and rate of the lanes of one transport.
#[derive(Clone, Copy, Debug, Default)]
struct Carried {
    /// Peak rate over some seconds.
    peak: PeakRate,
    /// Bytes that the lanes delivered to the other end, on the wire; decreases when a lane ends.
    bytes: u64,
    /// Last counters of the lanes.
    stats: Option<LaneStats>,
}

/// Result of the first connection to the agent on a path.
pub(super) struct ReachedPath {
    pub(super) via: Via,
    pub(super) addr: SocketAddr,
    pub(super) rate: SharedRate,
    /// Number of lanes at the start.
    pub(super) lane_count: u32,
    /// RTT when the agent was reached.
    pub(super) rtt: Duration,
    /// Expected rate: given, or from the path cache.
    pub(super) expected: Option<BitRate>,
    /// True if the path may carry more than the expected rate.
    pub(super) is_least: bool,
}

/// Last data that the lanes of a path received.
#[derive(Debug)]
pub(super) struct LastReceived {
    /// Sum over the live lanes; `None` while a lane still processes earlier data.
    bytes: Option<u64>,
    /// Time of the last data.
    at: Instant,
}

impl LastReceived {
    /// Records how many bytes the live lanes have received.
    fn observe(&mut self, bytes: Option<u64>, now: Instant) {
        // The sum falls when a dead lane leaves, which is no received data.
        if bytes.is_none() || bytes > self.bytes {
            self.at = now;
        }
        self.bytes = bytes;
    }
}

impl KeptPath {
    pub(super) fn new(number: PathNumber, options: &PathOptions, name: Option<String>) -> Self {
        Self {
            number,
            options: options.clone(),
            name,
            reached: OnceLock::new(),
            live: Lanes::default(),
            up: AtomicUsize::new(0),
            heard: Mutex::new(LastReceived { bytes: None, at: Instant::now() }),
            lanes_wanted: Default::default(),
            carried: Mutex::default(),
            trial: Mutex::default(),
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed) > 0
    }

    /// Returns true if data was received on the path lately. Lanes on a path that was cut stay up for a long time.
    pub(super) fn is_heard(&self) -> bool {
        self.heard.lock().at.elapsed() < SILENT_AFTER
    }

    /// Records how many bytes the lanes have received.
    pub(super) fn listen(&self) {
        // `None` from a lane counts as received data: the lane does not read, because it still processes earlier data.
        let bytes = self.live.live().iter().map(|lane| lane.heard()).sum::<Option<u64>>();
        self.heard.lock().observe(bytes, Instant::now());
    }

    /// Returns `text`, after the name of the path if there are several paths.
    pub(super) fn say(&self, text: String) -> String {
        named(self.name.as_deref(), text)
    }

    /// Returns the transport of the lanes: the other one if all lanes use that.
    pub(super) fn via(&self, reached: &ReachedPath) -> Via {
        self.live.transport().map_or(reached.via, Via::from)
    }

    /// Returns the transport that is dialled first: that of the first connection, or the winner of the trial.
    pub(super) fn chosen_via(&self, reached: &ReachedPath) -> Via {
        self.trial.lock().loser().map_or(reached.via, Via::other)
    }

    /// Returns true if the trial showed that lanes by `via` carry less than the other transport.
    pub(super) fn is_retired(&self, via: Via) -> bool {
        self.trial.lock().loser() == Some(via)
    }

    /// Returns the counter of lanes to keep by `via`.
    pub(super) fn lanes_wanted(&self, via: Via) -> &AtomicU32 {
        &self.lanes_wanted[via as usize]
    }

    /// Returns the rate of QUIC on this path, as measured until now.
    pub(super) fn found_rate(&self, direction: DataDirection) -> Option<BitRate> {
        match direction {
            DataDirection::Out => self.reached.get()?.rate.found(),
            DataDirection::In => self.carried.lock()[Via::Quic as usize].peak.value(),
        }
    }

    /// Returns the measured properties of the path; `lane_memory` is the memory of each lane. Path MTU discovery may
    /// still be in progress. Its first probe is in the middle of the range: it detects jumbo frames one round trip
    /// before any rate is measured.
    pub(super) fn found(&self, direction: DataDirection, lane_memory: Option<ByteCount>) -> Option<FoundPath> {
        let rate = self.found_rate(direction)?;
        let stats = self.carried.lock()[Via::Quic as usize].stats?;
        Some(FoundPath { rate, mtu: stats.mtu.max(MTU_USUAL), rtt: stats.rtt_min, lane_memory: lane_memory? })
    }

    /// Records what the lanes have carried until now, for each transport.
    pub(super) fn watch_rate(&self, direction: DataDirection, progress: &CopyProgress) {
        let live = self.live.live();
        for via in [Via::Tcp, Via::Quic] {
            let lanes = live.iter().filter(|handle| Via::from(handle.transport()) == via).map(|handle| handle.stats());
            let together = lanes.reduce(|one, other| LaneStats {
                rtt_min: one.rtt_min.min(other.rtt_min),
                packets_sent: one.packets_sent + other.packets_sent,
                packets_lost: one.packets_lost + other.packets_lost,
                wire_bytes_sent: one.wire_bytes_sent + other.wire_bytes_sent,
                wire_bytes_received: one.wire_bytes_received + other.wire_bytes_received,
                mtu: one.mtu.max(other.mtu),
                ..one
            });
            let Carried { peak, bytes, stats } = &mut self.carried.lock()[via as usize];
            *bytes = together.map_or(0, |lanes| match direction {
                DataDirection::Out => (lanes.wire_bytes_sent as f64 * (1.0 - loss_of(&lanes))) as u64,
                DataDirection::In => lanes.wire_bytes_received,
            });
            peak.observe(progress.elapsed, *bytes);
            *stats = together.or(*stats);
        }
    }

    /// Returns the next step of the trial between the transports, if any.
    pub(super) fn trial(&self, progress: &CopyProgress) -> Option<TrialStep> {
        let [tcp, quic] = *self.carried.lock();
        let session = &progress.session;
        self.trial.lock().observe(&TrialFacts {
            now: progress.elapsed,
            quic: quic.bytes,
            tcp: tcp.bytes,
            left: ByteCount(session.counters.bytes_known.saturating_sub(session.counters.bytes_done)),
            rtt: quic.stats.or(tcp.stats)?.rtt_min,
            limits: &progress.limits.report.total,
        })
    }

    /// Returns the plan of the path, once the agent has been reached on it. `memory` is the memory of all its lanes
    /// together, if they use QUIC.
    pub(super) fn plan(&self, memory: ByteCount) -> Option<PathPlan> {
        let ReachedPath { via, addr, lane_count, rtt, expected, is_least, .. } = self.reached.get()?;
        let contract = &self.options.contract;
        Some(PathPlan {
            path: self.number,
            via: *via,
            peer: *addr,
            rtt: *rtt,
            lanes: *lane_count,
            rate: *expected,
            // A recorded rate is cut to the ceiling, which is also a given value.
            is_given: expected.is_some() && [contract.target, contract.ceiling].contains(expected),
            is_least: *is_least,
            memory: (*via == Via::Quic).then_some(memory),
            standby: self.options.standby,
        })
    }

    /// Returns the path while the agent has not been reached on it.
    pub(super) fn unreached(&self) -> Option<UnreachedPath> {
        let unreached = UnreachedPath { path: self.number, standby: self.options.standby };
        self.reached.get().is_none().then_some(unreached)
    }

    /// Writes the measured properties of the path to `file`. `is_bound` is true if paths limited the session. Errors:
    /// the file cannot be written.
    pub(super) fn learn(&self, direction: DataDirection, file: &PathCache, is_bound: bool) -> Result<(), Error> {
        let Some(reached) = self.reached.get() else { return Ok(()) };
        let Ok(key) = path_cache::key_of(direction, self.options.local, reached.addr) else { return Ok(()) };
        let (carried, loser) = (*self.carried.lock(), self.trial.lock().loser());
        for via in [Via::Tcp, Via::Quic] {
            let Carried { peak, stats, .. } = carried[via as usize];
            let (Some(rate), Some(stats)) = (peak.value(), stats) else { continue };
            let loss_ppm = (loss_of(&stats) * 1e6) as u32;
            // A polite sender yields to other traffic: its rate is not the full rate of the path. The transport that
            // lost the trial carries no more than its rate, whatever the limit was.
            let is_full = is_bound && self.options.contract.fairness == Fairness::Fair || loser == Some(via);
            let at = path_cache::unix_time();
            file.learn(PathRecord { key, via, rate, is_full, rtt: stats.rtt_min, loss_ppm, mtu: stats.mtu, at })?;
        }
        Ok(())
    }
}

/// Returns the fraction of the sent packets that were lost. Range: 0 to 1.
fn loss_of(lanes: &LaneStats) -> f64 {
    let sent = lanes.packets_sent.max(1);
    lanes.packets_lost.min(sent) as f64 / sent as f64
}

/// Returns `text`, after the name of the path if it has one.
pub(super) fn named(name: Option<&str>, text: String) -> String {
    match name {
        Some(name) => format!("{name}: {text}"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_more_bytes_or_a_busy_lane_are_received_data() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut heard = LastReceived { bytes: None, at: start };
        for (second, bytes, at) in
            [(1, Some(100), 1), (2, Some(100), 1), (3, Some(60), 1), (4, Some(61), 4), (5, None, 5), (6, Some(61), 6)]
        {
            heard.observe(bytes, after(second));
            assert_eq!(heard.at, after(at), "second {second}");
        }
    }
}
