//! The client: one copy, from its options to the outcome of every file.
//!
//! Runs one session after another until the copy is done: a new one only when the agent was restarted. What a session does is in
//! `keeper`.

mod dial;
mod direct;
pub(crate) mod errand;
mod follow;
mod job;
mod keeper;
mod memory;
mod path;
mod replicas;
mod stall;
mod tally;
mod third_party;

use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sterna_proto::compress::Wish;
use sterna_proto::follow::EndRule;
use sterna_proto::limit::LimitReport;
use sterna_proto::location::RemoteLocation;
use sterna_proto::plan::Via;
use sterna_proto::session::{ActiveFile, LINGER_DEFAULT, Overwrite, PathNumber};
use sterna_proto::{BitRate, ByteCount, Checks, Counters, Digest, Error, ErrorKind, Location, Phase, Retry};

use crate::engine::CopyKind;
use crate::identity::{Fingerprint, Identity};
use crate::lane::{LaneStats, Transport};
use crate::session::{LimitsNow, Progress, SessionEvent, Then, lock};
use crate::web::TokenSource;

use self::direct::Direct;
use self::job::Job;
use self::keeper::run_session;
pub use self::path::{PathOptions, PathPlan, UnreachedPath};
use self::replicas::ReplicaCopy;
pub use self::replicas::ReplicaSummary;
use self::tally::Tally;
use self::third_party::ThirdPartyCopy;

/// Memory for data in flight over QUIC, all lanes of a copy together, where nothing else is given. Reason: 10 Gbit/s over 200 ms.
pub const MEMORY_DEFAULT: ByteCount = ByteCount(256 << 20);

/// First wait before a dead lane is dialled again; doubled up to [`BACKOFF_MAX`]. Reason: a short cut costs little.
const BACKOFF_MIN: Duration = Duration::from_millis(500);

/// How often the owner of a session looks after it.
const TICK: Duration = Duration::from_millis(50);

/// Files under way in a progress snapshot. Reason: as many lines as a person follows.
const ACTIVE_FILES_SHOWN: usize = 4;

/// Which lanes to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViaChoice {
    /// Sterna decides.
    Auto,
    /// These.
    Only(Via),
}

/// One copy.
#[derive(Clone, Debug)]
pub struct CopySpec {
    /// What to copy.
    pub sources: Vec<Location>,
    /// Where to.
    pub destination: Location,
    /// The paths to use together: one at least, at most [`sterna_proto::session::PATHS_MAX`].
    pub paths: Vec<PathOptions>,
    /// Congestion control of TCP lanes; `None`: the kernel's, and bbr when the path loses packets.
    pub congestion: Option<String>,
    /// What to do when a file exists.
    pub overwrite: Overwrite,
    /// Digests wanted beside BLAKE3.
    pub checks: Checks,
    /// The digest that the one file must have.
    pub expect: Option<Digest>,
    /// Whether what is sent is compressed.
    pub compress: Wish,
    /// Most that transports may hold.
    pub memory: ByteCount,
    /// Nothing is written.
    pub dry_run: bool,
    /// How long the session outlives its last lane.
    pub linger: Duration,
    /// Where the bearer token for a web server comes from.
    pub web_token: Option<TokenSource>,
    /// A file of certificates of authorities that web servers may have beside those of this host.
    pub web_authority: Option<PathBuf>,
    /// Sources are sent as they grow and appear; how long a file must stay as it is to have ended.
    pub follow: Option<EndRule>,
    /// What is done with sources that have arrived.
    pub then: Option<Then>,
    /// The sources are replicas of one file.
    pub same: bool,
    /// Takes what the account of limits is given, where this host sends; for tests that replay it.
    pub recording: Option<Arc<File>>,
}

impl CopySpec {
    /// A copy of `sources` to `destination` over one path, with the default of everything else.
    pub fn new(sources: Vec<Location>, destination: Location) -> Self {
        Self {
            sources,
            destination,
            paths: vec![PathOptions::default()],
            congestion: None,
            overwrite: Overwrite::IfChanged,
            checks: Checks::NONE,
            expect: None,
            compress: Wish::Auto,
            memory: MEMORY_DEFAULT,
            dry_run: false,
            linger: LINGER_DEFAULT,
            web_token: None,
            web_authority: None,
            follow: None,
            then: None,
            same: false,
            recording: None,
        }
    }

    /// The most that may be sent on all paths together, if that is limited.
    fn ceiling(&self) -> Option<BitRate> {
        BitRate::sum(self.paths.iter().map(|path| path.contract.ceiling))
    }

    /// The rate that was given for all paths together.
    fn target(&self) -> Option<BitRate> {
        BitRate::sum(self.paths.iter().map(|path| path.contract.target))
    }

    /// The number of lanes that was given for all paths together.
    fn lanes(&self) -> Option<u32> {
        self.paths.iter().map(|path| path.lanes).sum()
    }
}

/// What the person who runs a copy sees and says; called from many threads.
pub trait CopyObserver: Send + Sync {
    /// Something happened.
    fn event(&self, event: CopyEvent);
    /// Called a few times a second.
    fn progress(&self, progress: &CopyProgress);
    /// Whether the agent at `remote` with this key is trusted. Errors: it is not, with the reason for the person.
    fn trust(&self, remote: &RemoteLocation, peer: &Fingerprint) -> Result<(), Error>;
    /// The keys that the agent at `remote` may have, as far as they are known without asking anybody; the agent that is to reach
    /// it has the key `beside`. Errors: what is known cannot be read.
    fn expected_keys(&self, _remote: &RemoteLocation, _beside: &Fingerprint) -> Result<Vec<Fingerprint>, Error> {
        Ok(Vec::new())
    }
    /// Called when the copy ends with an error, with what was copied before.
    fn cut_short(&self, _summary: CopySummary) {}
    /// Whether the person wants to stop.
    fn stopped(&self) -> bool;
}

/// What happens in a copy.
#[derive(Debug)]
pub enum CopyEvent {
    /// A decision, with its reason.
    Decision {
        /// What about: `transport`, `lanes`, `congestion`, `compression` or `agent`.
        subject: &'static str,
        /// Why.
        rationale: String,
    },
    /// A lane is up: the agent has welcomed it.
    LaneUp {
        /// Its number.
        lane: u32,
        /// The path that it is on.
        path: PathNumber,
        /// Its transport.
        transport: Transport,
        /// The address of the agent.
        peer: SocketAddr,
    },
    /// A lane is down.
    LaneDown {
        /// Its number.
        lane: u32,
        /// Why.
        reason: String,
        /// It is dialled again.
        again: bool,
    },
    /// Something happened in the session.
    Session(SessionEvent),
    /// The agent lost the session (it was restarted); a new one goes on.
    Restarted,
}

/// A snapshot of a copy.
#[derive(Clone, Debug, Default)]
pub struct CopyProgress {
    /// How far the session is.
    pub session: Progress,
    /// Time since the start.
    pub elapsed: Duration,
    /// Each live lane's figures.
    pub lanes: Vec<LaneStats>,
    /// Large files under way, the first few.
    pub files: Vec<ActiveFile>,
    /// What limits it.
    pub limits: LimitsNow,
}

/// How a copy ended.
#[derive(Debug, Default)]
pub struct CopySummary {
    /// Files that were copied.
    pub done: u64,
    /// Files that were up to date.
    pub skipped: u64,
    /// Files, directories and sources that failed, with the reasons of the first [`FAILURES_KEPT_MAX`].
    pub failed: u64,
    /// Of those that failed, the sources that have arrived, in files that count as copied, and could not be deleted or moved.
    pub left: u64,
    /// Bytes of the files that were copied.
    pub bytes: u64,
    /// Bytes of the files that were up to date.
    pub bytes_skipped: u64,
    /// Counters over all sessions of the copy.
    pub counters: Counters,
    /// Time from the start to the last outcome.
    pub elapsed: Duration,
    /// Why files failed.
    pub failures: Vec<Error>,
    /// What limited it.
    pub limits: LimitReport,
    /// Blocks of the files that were copied; those that travel packed together count as one each.
    pub blocks: u64,
    /// The paths on which the agent was reached; none in a copy from web servers to this host.
    pub paths: Vec<PathPlan>,
    /// The paths on which it was not: those of standby wait until no other is up.
    pub unreached: Vec<UnreachedPath>,
    /// The replicas, in the order in which they were named, where there were several.
    pub replicas: Vec<ReplicaSummary>,
}

impl CopySummary {
    /// Mean rate of the file bytes that lanes brought in this run.
    pub fn goodput(&self) -> BitRate {
        BitRate::mean(
            ByteCount(self.bytes.saturating_sub(self.counters.bytes_held + self.counters.bytes_holes)),
            self.elapsed,
        )
    }
}

/// Failures whose reasons are kept. Reason: bounds memory; the observer has heard them all.
pub const FAILURES_KEPT_MAX: usize = 100;

/// Host that starts the sessions of a copy.
#[derive(Clone)]
pub(crate) struct Initiator {
    /// Key of this host.
    pub(crate) identity: Identity,
    /// Peer that requested the copy from this agent. At the other agent the copy has the rights that both peers have.
    pub(crate) on_behalf_of: Option<Fingerprint>,
    /// Directory of the path cache; `None`: nothing is remembered about paths.
    pub(crate) path_cache: Option<PathBuf>,
}

/// A copy that has been checked, by the kind of its ends.
pub(crate) enum PlannedCopy {
    /// From several replicas of one file to this host.
    Replicas(ReplicaCopy),
    /// From web servers to this host.
    Direct(Direct),
    /// From one agent to another.
    ThirdParty(ThirdPartyCopy),
    /// Between this host, or web servers, and one agent.
    Agent(Job),
}

impl PlannedCopy {
    /// Kind of the copy.
    pub(crate) fn kind(&self) -> CopyKind {
        match self {
            Self::Replicas(_) => CopyKind::Replicas,
            Self::Direct(_) => CopyKind::Direct,
            Self::ThirdParty(_) => CopyKind::ThirdParty,
            Self::Agent(_) => CopyKind::Agent,
        }
    }
}

/// Checks a copy and decides its kind. Dials nothing.
///
/// Errors: `Usage`; a source on this host that does not exist, when it is followed or taken away.
pub(crate) fn plan(options: &CopySpec) -> Result<PlannedCopy, Error> {
    if let Some(replicas) = ReplicaCopy::plan(options)? {
        return Ok(PlannedCopy::Replicas(replicas));
    }
    follow::check(options)?;
    if let Some(direct) = Direct::plan(options)? {
        return Ok(PlannedCopy::Direct(direct));
    }
    if let Some(third_party) = ThirdPartyCopy::plan(options)? {
        return Ok(PlannedCopy::ThirdParty(third_party));
    }
    Job::plan(options).map(PlannedCopy::Agent)
}

/// Runs one copy to its end.
///
/// Errors: nothing was copied (no agent, not trusted), or the session ended early. Files that failed by themselves are in the summary.
pub(crate) fn run(
    copy: PlannedCopy,
    options: &CopySpec,
    initiator: &Initiator,
    observer: &Arc<dyn CopyObserver>,
) -> Result<CopySummary, Error> {
    let outcome = match copy {
        PlannedCopy::Replicas(replicas) => return replicas.copy(options, initiator, observer),
        PlannedCopy::Direct(direct) => return direct.copy(options, observer),
        PlannedCopy::ThirdParty(third_party) => third_party.copy(options, initiator, observer),
        PlannedCopy::Agent(job) => {
            let tally = Tally::new(observer);
            lock(&tally.state).remembers_none = options.follow.is_some();
            copy_job(options, &job, initiator, &tally)
        }
    };
    outcome.map_err(|error| with_line(error, &initiator.identity))
}

/// The refusal of an agent that does not know us, with the line that its operator needs, alone on one of ours: it is pasted into a mail.
fn with_line(error: Error, identity: &Identity) -> Error {
    let ours = identity.fingerprint().to_string();
    if !error.is_from_peer() || error.kind != ErrorKind::Untrusted || !error.text().contains(&ours) {
        return error;
    }
    let text = format!("{}\n{ours}", error.text());
    error.reworded(text)
}

/// Runs one job to its end. Errors: as [`run`].
fn copy_job(options: &CopySpec, job: &Job, initiator: &Initiator, tally: &Arc<Tally>) -> Result<CopySummary, Error> {
    let mut started = Instant::now();
    let observer = &tally.observer;
    // Since when the agent has been looked for again, after it lost a session.
    let mut lost_since: Option<Instant> = None;
    loop {
        match run_session(options, job, initiator, tally, &mut started) {
            Err(error) if error.kind == ErrorKind::SessionLost && !observer.stopped() => {
                lost_since = Some(Instant::now());
                lock(&tally.state).start_over();
                observer.event(CopyEvent::Restarted);
            }
            // It may be gone again before the new session has a lane.
            Err(error)
                if error.phase == Phase::Prepare
                    && error.retry == Retry::After
                    && lost_since.is_some_and(|since| since.elapsed() < options.linger)
                    && !observer.stopped() =>
            {
                thread::sleep(BACKOFF_MIN);
            }
            outcome => {
                let outcome = outcome.map_err(|error| error.named(job.remote.host_port()));
                return tally.conclude(outcome, started.elapsed());
            }
        }
    }
}
