//! One path of a copy: what is given about it, and what becomes of it.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use sterna_proto::contest::{Contest, ContestFacts, ContestStep};
use sterna_proto::location::HostPort;
use sterna_proto::memory::{PathRecord, PeakRate, Way};
use sterna_proto::plan::{FoundPath, MTU_USUAL, Via};
use sterna_proto::rate::{Manner, RateContract};
use sterna_proto::session::PathNumber;
use sterna_proto::{BitRate, ByteCount, Error};

use super::memory::{self, PathFile};
use super::{CopyProgress, ViaChoice};
use crate::lane::LaneStats;
use crate::lane::quic::SharedRate;
use crate::session::{Lanes, SILENT_AFTER, lock};

/// How long no other path must be up before a standby one is used. Reason: a lane that is cut is up again sooner where its path
/// still carries, and a session has none for its first round trips.
pub(super) const STANDBY_AFTER: Duration = Duration::from_secs(2);

/// What is given about one path of a copy.
#[derive(Clone, Debug)]
pub struct PathOptions {
    /// The address of this host to send from; `None`: the one that the kernel chooses.
    pub local: Option<IpAddr>,
    /// Where the agent is on this path; `None`: where the location says.
    pub remote: Option<HostPort>,
    /// Transport.
    pub via: ViaChoice,
    /// Number of lanes; `None`: Sterna decides.
    pub lanes: Option<u32>,
    /// What is agreed about its rate.
    pub contract: RateContract,
    /// It is used only while no other path has a lane.
    pub standby: bool,
}

impl Default for PathOptions {
    /// The only path of a copy, of which nothing is said.
    fn default() -> Self {
        Self {
            local: None,
            remote: None,
            via: ViaChoice::Auto,
            lanes: None,
            contract: RateContract::default(),
            standby: false,
        }
    }
}

/// A path of a session, with its lanes.
pub(super) struct KeptPath {
    pub(super) number: PathNumber,
    pub(super) options: PathOptions,
    /// How people are told of it, when there are several.
    pub(super) name: Option<String>,
    /// Set when the agent has been reached on it.
    pub(super) reached: OnceLock<ReachedPath>,
    pub(super) live: Lanes,
    /// Lanes that the agent has welcomed and that have not ended.
    pub(super) up: AtomicUsize,
    /// What was heard of its lanes, and when that was more or less than before.
    pub(super) heard: Mutex<(Option<u64>, Instant)>,
    /// Lanes that are kept by each transport; grows when they turn out too few.
    lanes_wanted: [AtomicU32; 2],
    /// What the lanes of each transport have carried.
    carried: Mutex<[Carried; 2]>,
    /// Whether the other transport carries more.
    pub(super) contest: Mutex<Contest>,
}

/// What lanes of one transport have carried.
#[derive(Clone, Copy, Debug, Default)]
struct Carried {
    /// The most over some seconds.
    peak: PeakRate,
    /// Bytes that they brought to the other end, on the wire; less when one of them ends.
    bytes: u64,
    /// What they said last.
    stats: Option<LaneStats>,
}

/// How the agent was reached on a path.
pub(super) struct ReachedPath {
    pub(super) via: Via,
    pub(super) addr: SocketAddr,
    pub(super) rate: SharedRate,
    /// Lanes that it began with.
    pub(super) lane_count: u32,
    /// Its round trip when it was reached.
    pub(super) rtt: Duration,
    /// What it is expected to carry: given, or remembered.
    pub(super) expected: Option<BitRate>,
    /// It may carry more than that.
    pub(super) is_least: bool,
}

/// A path on which the agent was reached, as a plan tells it.
#[derive(Clone, Copy, Debug)]
pub struct PathPlan {
    /// Its number.
    pub path: PathNumber,
    /// Its transport.
    pub via: Via,
    /// Where the agent is on it.
    pub peer: SocketAddr,
    /// Its round trip.
    pub rtt: Duration,
    /// Lanes that it begins with.
    pub lanes: u32,
    /// What it is expected to carry on the wire: given, or remembered; `None`: that is to be found out.
    pub rate: Option<BitRate>,
    /// The rate was given.
    pub is_given: bool,
    /// The path may carry more: what is remembered is a copy that something else held.
    pub is_least: bool,
    /// Data that its lanes may hold at this end; `None`: the kernel decides (TCP).
    pub memory: Option<ByteCount>,
    /// It is used only while no other is up.
    pub standby: bool,
}

/// A path on which the agent was not reached.
#[derive(Clone, Copy, Debug)]
pub struct UnreachedPath {
    /// Its number.
    pub path: PathNumber,
    /// It waits until no other is up.
    pub standby: bool,
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
            heard: Mutex::new((None, Instant::now())),
            lanes_wanted: Default::default(),
            carried: Mutex::default(),
            contest: Mutex::default(),
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed) > 0
    }

    /// Whether something has come by it lately: a path that is cut has lanes for long.
    pub(super) fn is_heard(&self) -> bool {
        lock(&self.heard).1.elapsed() < SILENT_AFTER
    }

    /// Listens to its lanes.
    pub(super) fn listen(&self) {
        // A lane that does not listen has more to hear than it takes.
        let bytes = self.live.live().iter().map(|lane| lane.heard()).sum::<Option<u64>>();
        let mut heard = lock(&self.heard);
        if bytes.is_none() || bytes != heard.0 {
            *heard = (bytes, Instant::now());
        }
    }

    /// `text`, with the name of the path in front when there are several.
    pub(super) fn say(&self, text: String) -> String {
        named(self.name.as_deref(), text)
    }

    /// The transport of its lanes: the other one when it has lanes by that alone.
    pub(super) fn via(&self, reached: &ReachedPath) -> Via {
        self.live.transport().map_or(reached.via, Via::from)
    }

    /// The transport that its lanes are dialled by first: what it was reached by, or what has turned out to carry more.
    pub(super) fn chosen_via(&self, reached: &ReachedPath) -> Via {
        lock(&self.contest).loser().map_or(reached.via, Via::other)
    }

    /// Whether lanes by `via` were found to carry less than the other transport.
    pub(super) fn is_retired(&self, via: Via) -> bool {
        lock(&self.contest).loser() == Some(via)
    }

    /// How many lanes are kept by `via`.
    pub(super) fn lanes_wanted(&self, via: Via) -> &AtomicU32 {
        &self.lanes_wanted[via as usize]
    }

    /// The rate that QUIC was found to carry until now.
    pub(super) fn found_rate(&self, way: Way) -> Option<BitRate> {
        match way {
            Way::Out => self.reached.get()?.rate.found(),
            Way::In => lock(&self.carried)[Via::Quic as usize].peak.value(),
        }
    }

    /// What its lanes have found it to be; `lane_memory`: of each of them. Path MTU discovery may go on: its first probe is in the middle,
    /// so that jumbo frames are seen a round trip before any rate is found.
    pub(super) fn found(&self, way: Way, lane_memory: Option<ByteCount>) -> Option<FoundPath> {
        let rate = self.found_rate(way)?;
        let stats = lock(&self.carried)[Via::Quic as usize].stats?;
        Some(FoundPath { rate, mtu: stats.mtu.max(MTU_USUAL), rtt: stats.rtt_min, lane_memory: lane_memory? })
    }

    /// Takes note of what its lanes have carried until now, by each transport.
    pub(super) fn watch_rate(&self, way: Way, progress: &CopyProgress) {
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
            let Carried { peak, bytes, stats } = &mut lock(&self.carried)[via as usize];
            *bytes = together.map_or(0, |lanes| match way {
                Way::Out => (lanes.wire_bytes_sent as f64 * (1.0 - loss_of(&lanes))) as u64,
                Way::In => lanes.wire_bytes_received,
            });
            peak.observe(progress.elapsed, *bytes);
            *stats = together.or(*stats);
        }
    }

    /// What the contest of its transports asks for now.
    pub(super) fn contest(&self, progress: &CopyProgress) -> Option<ContestStep> {
        let [tcp, quic] = *lock(&self.carried);
        let session = &progress.session;
        lock(&self.contest).observe(&ContestFacts {
            now: progress.elapsed,
            quic: quic.bytes,
            tcp: tcp.bytes,
            left: ByteCount(session.counters.bytes_known.saturating_sub(session.counters.bytes_done)),
            rtt: quic.stats.or(tcp.stats)?.rtt_min,
            limits: &progress.limits.report.total,
        })
    }

    /// What is to be used of it, once the agent has been reached on it; `memory`: of its lanes together, if they are QUIC's.
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
            // What is remembered is cut to a ceiling, which is given too.
            is_given: expected.is_some() && [contract.target, contract.ceiling].contains(expected),
            is_least: *is_least,
            memory: (*via == Via::Quic).then_some(memory),
            standby: self.options.standby,
        })
    }

    /// Itself, as long as the agent has not been reached on it.
    pub(super) fn unreached(&self) -> Option<UnreachedPath> {
        let unreached = UnreachedPath { path: self.number, standby: self.options.standby };
        self.reached.get().is_none().then_some(unreached)
    }

    /// Keeps in `file` what the session has taught about it, which paths held if `is_bound`. Errors: the file cannot be written.
    pub(super) fn learn(&self, way: Way, file: &PathFile, is_bound: bool) -> Result<(), Error> {
        let Some(reached) = self.reached.get() else { return Ok(()) };
        let Ok(key) = memory::key_of(way, self.options.local, reached.addr) else { return Ok(()) };
        let (carried, loser) = (*lock(&self.carried), lock(&self.contest).loser());
        for via in [Via::Tcp, Via::Quic] {
            let Carried { peak, stats, .. } = carried[via as usize];
            let (Some(rate), Some(stats)) = (peak.value(), stats) else { continue };
            let loss_ppm = (loss_of(&stats) * 1e6) as u32;
            // A polite sender yields to others: what it was held to is theirs, and not all that the path carries. What has lost against
            // the other transport carries no more, whatever held it.
            let is_full = is_bound && self.options.contract.manner == Manner::Fair || loser == Some(via);
            let at = memory::unix_time();
            file.learn(PathRecord { key, via, rate, is_full, rtt: stats.rtt_min, loss_ppm, mtu: stats.mtu, at })?;
        }
        Ok(())
    }
}

/// The part of what lanes have sent that was lost. Range: 0 to 1.
fn loss_of(lanes: &LaneStats) -> f64 {
    let sent = lanes.packets_sent.max(1);
    lanes.packets_lost.min(sent) as f64 / sent as f64
}

/// `text` about the path with this name.
pub(super) fn named(name: Option<&str>, text: String) -> String {
    match name {
        Some(name) => format!("{name}: {text}"),
        None => text,
    }
}
