//! Client: runs one copy, from its options to the outcome of every file.
//!
//! Runs one session at a time until the copy is done. Starts a new session only when the agent was restarted. Module
//! `keeper` runs a session.

mod dial;
mod direct;
mod follow;
mod job;
mod keeper;
mod memory;
mod path;
mod replicas;
mod run;
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
use sterna_proto::{BitRate, ByteCount, Checks, Counters, Digest, Error, Location};

use crate::engine::{Cancel, CopyKind};
use crate::identity::{Fingerprint, Identity};
use crate::lane::{LaneStats, Transport};
use crate::session::{LimitsNow, Progress, SessionEvent, SettledPaths, lock};
use crate::source::Then;
use crate::web::TokenSource;

use self::direct::Direct;
pub use self::job::Granted;
use self::job::Job;
use self::keeper::run_session;
pub use self::path::{PathOptions, PathPlan, UnreachedPath};
use self::replicas::ReplicaCopy;
pub use self::replicas::ReplicaSummary;
use self::run::{Again, Restarts};
use self::tally::{AskedDigests, Tally};
use self::third_party::ThirdPartyCopy;

/// Default memory for data in flight over QUIC, for all lanes of a copy together. Reason: 10 Gbit/s over 200 ms.
pub const MEMORY_DEFAULT: ByteCount = ByteCount(256 << 20);

/// Maximum number of files in a progress snapshot. Reason: a person can follow that many lines.
const ACTIVE_FILES_SHOWN: usize = 4;

/// Choice of the transport of lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViaChoice {
    /// Sterna decides.
    Auto,
    /// Only this transport.
    Only(Via),
}

/// Options of one copy.
#[derive(Clone, Debug)]
pub struct CopySpec {
    /// Sources.
    pub sources: Vec<Location>,
    /// Destination.
    pub destination: Location,
    /// Paths to use together: at least one, at most [`sterna_proto::session::PATHS_MAX`].
    pub paths: Vec<PathOptions>,
    /// Congestion control of TCP lanes; `None`: the kernel's default, and bbr when the path loses packets.
    pub congestion: Option<String>,
    /// Treatment of a file that exists at the destination.
    pub overwrite: Overwrite,
    /// Digests wanted in addition to BLAKE3.
    pub checks: Checks,
    /// Digest that the only file must have.
    pub expect: Option<Digest>,
    /// Compression of the data that is sent.
    pub compress: Wish,
    /// Maximum of data in the buffers of transports.
    pub memory: ByteCount,
    /// True if the copy writes nothing.
    pub dry_run: bool,
    /// Time that the session waits without a lane before it fails.
    pub linger: Duration,
    /// Source of the bearer token for a web server.
    pub web_token: Option<TokenSource>,
    /// File with certificates of authorities that are accepted for web servers, in addition to the authorities of this
    /// host.
    pub web_authority: Option<PathBuf>,
    /// Follows the sources: sends files as they grow and appear. The rule defines how long a file must be unchanged to
    /// be at its end.
    pub follow: Option<EndRule>,
    /// Action on sources that have arrived.
    pub then: Option<Then>,
    /// True if the sources are replicas of one file.
    pub same: bool,
    /// File that receives the inputs of the limit accounting, if this host sends. Tests replay it.
    pub recording: Option<Arc<File>>,
    /// End of the copy at this host, beneath roots that this host has granted to `on_behalf_of`; `None`: a location
    /// names that end.
    pub granted: Option<Granted>,
    /// Peer that asked this host for the copy. At the other agent the copy has the rights that both have.
    pub on_behalf_of: Option<Fingerprint>,
    /// Files that are left out: an earlier run of the copy has settled them.
    pub settled: SettledPaths,
    /// Ends this copy, and all copies of clones of this specification, from outside.
    pub cancel: Cancel,
}

impl CopySpec {
    /// Returns the options of a copy of `sources` to `destination` over one path, with defaults for everything else.
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
            granted: None,
            on_behalf_of: None,
            settled: SettledPaths::default(),
            cancel: Cancel::default(),
        }
    }

    /// Returns the maximum rate of all paths that are used together; `None` if it is not limited.
    fn ceiling(&self) -> Option<BitRate> {
        self.rate_together(|path| path.contract.ceiling)
    }

    /// Returns the sum of the given rates of all paths that are used together.
    fn target(&self) -> Option<BitRate> {
        self.rate_together(|path| path.contract.target)
    }

    /// Returns the sum of the rates of the paths, or of the standby paths if theirs is higher: these are used only
    /// while no other path is up. `None` if one of the paths has no rate.
    fn rate_together(&self, rate: impl Fn(&PathOptions) -> Option<BitRate>) -> Option<BitRate> {
        let sum = |is_standby| BitRate::sum(self.paths.iter().filter(|path| path.standby == is_standby).map(&rate));
        Some(sum(false)?.max(sum(true)?))
    }

    /// Returns the sum of the given lane counts of all paths.
    fn lanes(&self) -> Option<u32> {
        self.paths.iter().map(|path| path.lanes).sum()
    }
}

/// User interface of a copy: receives events and progress, and answers questions. Called from many threads.
pub trait CopyObserver: Send + Sync {
    /// Reports an event.
    fn event(&self, event: CopyEvent);
    /// Reports progress; called a few times a second.
    fn progress(&self, progress: &CopyProgress);
    /// Checks that the agent at `remote` with this key is trusted. Errors: it is not trusted, with the reason for the
    /// user.
    fn trust(&self, remote: &RemoteLocation, peer: &Fingerprint) -> Result<(), Error>;
    /// Returns the keys that the agent at `remote` may have, as far as they are recorded, without a question to the
    /// user. `beside` is the key of the agent that will connect to it. Errors: the recorded keys cannot be read.
    fn expected_keys(&self, _remote: &RemoteLocation, _beside: &Fingerprint) -> Result<Vec<Fingerprint>, Error> {
        Ok(Vec::new())
    }
    /// Reports the summary of a copy that ended with an error.
    fn cut_short(&self, _summary: CopySummary) {}
    /// Returns true if the user wants to stop.
    fn stopped(&self) -> bool;
}

/// Event of a copy.
#[derive(Debug)]
pub enum CopyEvent {
    /// Decision, with its reason.
    Decision {
        /// Subject: `transport`, `lanes`, `congestion`, `compression` or `agent`.
        subject: &'static str,
        /// Reason.
        rationale: String,
    },
    /// A lane is up: the agent has accepted it.
    LaneUp {
        /// Number of the lane.
        lane: u32,
        /// Path of the lane.
        path: PathNumber,
        /// Transport of the lane.
        transport: Transport,
        /// Address of the agent.
        peer: SocketAddr,
    },
    /// A lane is down.
    LaneDown {
        /// Number of the lane.
        lane: u32,
        /// Reason.
        reason: String,
        /// True if the lane is dialled again.
        again: bool,
    },
    /// Event of the session.
    Session(SessionEvent),
    /// The agent lost the session because it was restarted; a new session continues the copy.
    Restarted,
}

/// Snapshot of a copy.
#[derive(Clone, Debug, Default)]
pub struct CopyProgress {
    /// Progress of the session.
    pub session: Progress,
    /// Time since the start.
    pub elapsed: Duration,
    /// Counters of each live lane.
    pub lanes: Vec<LaneStats>,
    /// Large files in transfer, at most the first few.
    pub files: Vec<ActiveFile>,
    /// Limits of the copy at this time.
    pub limits: LimitsNow,
}

/// Summary of a copy that has ended.
#[derive(Debug, Default)]
pub struct CopySummary {
    /// Number of files that were copied.
    pub done: u64,
    /// Number of files that were up to date.
    pub skipped: u64,
    /// Number of files, directories and sources that failed. `failures` has the reasons of the first
    /// [`FAILURES_KEPT_MAX`].
    pub failed: u64,
    /// Part of `failed`: sources that arrived, but could not be deleted or moved. Their files are also in `done`.
    pub left: u64,
    /// Bytes of the files that were copied.
    pub bytes: u64,
    /// Bytes of the files that were up to date.
    pub bytes_skipped: u64,
    /// Counters over all sessions of the copy.
    pub counters: Counters,
    /// Time from the start to the last outcome.
    pub elapsed: Duration,
    /// Reasons of failures.
    pub failures: Vec<Error>,
    /// Limits of the whole copy.
    pub limits: LimitReport,
    /// Blocks of the files that were copied; each packed file counts as one block.
    pub blocks: u64,
    /// Paths on which the agent was reached; empty for a copy from web servers to this host.
    pub paths: Vec<PathPlan>,
    /// Paths on which the agent was not reached. Standby paths are not dialled until no other path is up.
    pub unreached: Vec<UnreachedPath>,
    /// Replicas, in the order of the sources; empty for other copies.
    pub replicas: Vec<ReplicaSummary>,
}

impl CopySummary {
    /// Returns the mean rate of the file bytes that lanes delivered in this run.
    pub fn goodput(&self) -> BitRate {
        BitRate::mean(
            ByteCount(self.bytes.saturating_sub(self.counters.bytes_held + self.counters.bytes_holes)),
            self.elapsed,
        )
    }
}

/// Maximum number of failures whose reasons are kept. Reason: bounds memory; the observer has received all failures.
pub const FAILURES_KEPT_MAX: usize = 100;

/// Host that starts the sessions of a copy.
#[derive(Clone)]
pub(crate) struct Initiator {
    /// Key of this host.
    pub(crate) identity: Identity,
    /// Directory of the path cache; `None`: nothing is remembered about paths.
    pub(crate) path_cache: Option<PathBuf>,
}

/// Copy that has been checked, by the kind of its ends.
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
    /// Returns the kind of the copy.
    pub(crate) fn kind(&self) -> CopyKind {
        match self {
            Self::Replicas(_) => CopyKind::Replicas,
            Self::Direct(_) => CopyKind::Direct,
            Self::ThirdParty(_) => CopyKind::ThirdParty,
            Self::Agent(_) => CopyKind::Agent,
        }
    }
}

/// Checks a copy and decides its kind. Does not dial.
///
/// Errors: `Usage`; a source on this host does not exist, if it is followed, deleted or moved.
pub(crate) fn plan(options: &CopySpec) -> Result<PlannedCopy, Error> {
    if let Some(granted) = &options.granted {
        return Job::granted(options, granted).map(PlannedCopy::Agent);
    }
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
/// Errors: nothing was copied (no agent, or agent not trusted), or the session ended early. Failures of single files
/// are in the summary.
pub(crate) fn run(
    copy: PlannedCopy,
    options: &CopySpec,
    initiator: &Initiator,
    observer: &Arc<dyn CopyObserver>,
) -> Result<CopySummary, Error> {
    match copy {
        PlannedCopy::Replicas(replicas) => replicas.copy(options, initiator, observer),
        PlannedCopy::Direct(direct) => direct.copy(options, observer),
        PlannedCopy::ThirdParty(third_party) => third_party.copy(options, initiator, observer),
        PlannedCopy::Agent(job) => {
            let tally = Tally::new(observer);
            lock(&tally.state).remembers_none = options.follow.is_some();
            // The command of a granted copy names the destination itself.
            lock(&tally.state).destination = options.granted.is_none().then(|| options.destination.clone());
            tally.leave_out(options.settled.clone());
            let CopySpec { checks, expect, dry_run, .. } = *options;
            lock(&tally.state).asked = (!dry_run).then_some(AskedDigests { checks, expect });
            copy_job(options, &job, initiator, &tally)
        }
    }
}

/// Runs one job to its end. Errors: as [`run`].
fn copy_job(options: &CopySpec, job: &Job, initiator: &Initiator, tally: &Arc<Tally>) -> Result<CopySummary, Error> {
    let mut started = Instant::now();
    let observer = &tally.observer;
    let mut restarts = Restarts::new(options.linger, started);
    loop {
        let outcome = run_session(options, job, initiator, tally, &mut started);
        let again = outcome.as_ref().err().filter(|_| !observer.stopped());
        match again.and_then(|error| restarts.after(error, Instant::now())) {
            Some(Again::Restarted(wait)) => {
                lock(&tally.state).start_over();
                observer.event(CopyEvent::Restarted);
                thread::sleep(wait);
            }
            Some(Again::NotYetBack(wait)) => thread::sleep(wait),
            None => {
                let outcome = outcome.map_err(|error| error.named(job.remote.host_port()));
                return tally.conclude(outcome, started.elapsed());
            }
        }
    }
}
