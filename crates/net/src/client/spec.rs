//! Types of a copy that its user and every kind of copy share: options, events, progress and summary.
//!
//! Holds data and traits, and runs nothing.

use std::fmt;
use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sterna_proto::budget::ClassId;
use sterna_proto::compress::CompressionPolicy;
use sterna_proto::follow::EndRule;
use sterna_proto::limit::LimitReport;
use sterna_proto::location::{HostPort, RemoteLocation};
use sterna_proto::plan::Via;
use sterna_proto::rate::RateContract;
use sterna_proto::session::{ActiveFile, LINGER_DEFAULT, Overwrite, PathNumber, SignedGrant, Target};
use sterna_proto::{BitRate, ByteCount, Checks, Counters, Digest, Error, Location};

use crate::cancel::Cancel;
use crate::disk::Root;
use crate::identity::{Fingerprint, Identity};
use crate::lane::{LaneStats, Transport};
use crate::session::{LimitsNow, Progress, SessionEvent, SettledPaths};
use crate::source::{SourceDisposition, SourcePlace};
use crate::web::TokenSource;

/// Default memory for data in flight over QUIC, for all lanes of a copy together. Reason: 10 Gbit/s over 200 ms.
pub const MEMORY_DEFAULT: ByteCount = ByteCount(256 << 20);

/// Maximum number of files in a progress snapshot. Reason: a person can follow that many lines.
pub(crate) const ACTIVE_FILES_SHOWN: usize = 4;

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
    /// Targets of a numbered copy: file N goes from source N to exactly target N. Empty: it is no such copy. Only for
    /// copies with `granted`.
    pub targets: Vec<Target>,
    /// Compression of the data that is sent.
    pub compress: CompressionPolicy,
    /// Maximum of data in the buffers of transports; less if the class has less left.
    pub memory: ByteCount,
    /// Class of the copy in the budgets of its engine.
    pub class: ClassId,
    /// True if the copy writes nothing.
    pub dry_run: bool,
    /// Time that the session waits without a lane before it fails.
    pub linger: Duration,
    /// Source of the bearer token for a web server.
    pub web_token: Option<TokenSource>,
    /// Hosts of web servers to which redirects may lead; `None`: all.
    pub web_hosts: Option<Vec<String>>,
    /// File with certificates of authorities that are accepted for web servers, in addition to the authorities of this
    /// host.
    pub web_authority: Option<PathBuf>,
    /// Follows the sources: sends files as they grow and appear. The rule defines how long a file must be unchanged to
    /// be at its end.
    pub follow: Option<EndRule>,
    /// Action on sources that have arrived.
    pub disposition: Option<SourceDisposition>,
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
            targets: Vec::new(),
            compress: CompressionPolicy::Auto,
            memory: MEMORY_DEFAULT,
            class: ClassId::ROOT,
            dry_run: false,
            linger: LINGER_DEFAULT,
            web_token: None,
            web_hosts: None,
            web_authority: None,
            follow: None,
            disposition: None,
            same: false,
            recording: None,
            granted: None,
            on_behalf_of: None,
            settled: SettledPaths::default(),
            cancel: Cancel::default(),
        }
    }

    /// Returns the maximum rate of all paths that are used together; `None` if it is not limited.
    pub(crate) fn ceiling(&self) -> Option<BitRate> {
        self.rate_together(|path| path.contract.ceiling)
    }

    /// Returns the sum of the given rates of all paths that are used together.
    pub(crate) fn target(&self) -> Option<BitRate> {
        self.rate_together(|path| path.contract.target)
    }

    /// Replaces the contracts of the paths that the owner of the copy has changed after its start.
    pub(super) fn with_changed_contracts(&self, observer: &dyn CopyObserver) -> Self {
        let mut changed = self.clone();
        for (number, path) in (0..).zip(&mut changed.paths) {
            path.contract = observer.contract(PathNumber(number)).unwrap_or(path.contract);
        }
        changed
    }

    /// Returns the sum of the rates of the paths ([`rate_together`]).
    pub(crate) fn rate_together(&self, rate: impl Fn(&PathOptions) -> Option<BitRate>) -> Option<BitRate> {
        rate_together(&self.paths, rate)
    }

    /// Returns the sum of the given lane counts of all paths.
    pub(crate) fn lanes(&self) -> Option<u32> {
        self.paths.iter().map(|path| path.lanes).sum()
    }
}

/// Returns the sum of the rates of paths, or of the standby paths if theirs is higher: these are used only while no
/// other path is up. `None` if one of the paths has no rate.
pub(crate) fn rate_together(paths: &[PathOptions], rate: impl Fn(&PathOptions) -> Option<BitRate>) -> Option<BitRate> {
    let sum = |is_standby| BitRate::sum(paths.iter().filter(|path| path.standby == is_standby).map(&rate));
    Some(sum(false)?.max(sum(true)?))
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
    /// Returns the rate contract of `path` if the owner of the copy has changed it, or a class limits it.
    fn contract(&self, _path: PathNumber) -> Option<RateContract> {
        None
    }
    /// Returns the cancellation of the copy: the user wants to stop.
    fn cancel(&self) -> &Cancel;
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
    /// Grant of a transfer service, which agents see in each hello.
    pub(crate) grant: Option<Box<SignedGrant>>,
}

impl Initiator {
    /// Returns a host that remembers nothing and has no grant.
    pub(crate) fn new(identity: Identity) -> Self {
        Self { identity, path_cache: None, grant: None }
    }
}

/// Options of one path of a copy.
#[derive(Clone, Debug)]
pub struct PathOptions {
    /// Local address to send from; `None`: the kernel chooses.
    pub local: Option<IpAddr>,
    /// Address of the agent on this path; `None`: that of the location.
    pub remote: Option<HostPort>,
    /// Transport.
    pub via: ViaChoice,
    /// Number of lanes; `None`: Sterna decides.
    pub lanes: Option<u32>,
    /// Requirements for the rate of the path.
    pub contract: RateContract,
    /// True if the path is used only while no other path has a lane.
    pub standby: bool,
}

impl Default for PathOptions {
    /// Options of the only path of a copy, without any given value.
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

/// Path on which the agent was reached, for the plan and the summary.
#[derive(Clone, Copy, Debug)]
pub struct PathPlan {
    /// Number of the path.
    pub path: PathNumber,
    /// Transport.
    pub via: Via,
    /// Address of the agent on this path.
    pub peer: SocketAddr,
    /// RTT.
    pub rtt: Duration,
    /// Number of lanes at the start.
    pub lanes: u32,
    /// Expected rate on the wire: given, or from the path cache; `None`: to be measured.
    pub rate: Option<BitRate>,
    /// True if the rate was given.
    pub is_given: bool,
    /// True if the path may carry more: another limit bound the copy that recorded the rate.
    pub is_least: bool,
    /// Maximum data that the lanes hold at this end; `None`: the kernel decides (TCP).
    pub memory: Option<ByteCount>,
    /// True if the path is used only while no other path is up.
    pub standby: bool,
}

/// Path on which the agent was not reached.
#[derive(Clone, Copy, Debug)]
pub struct UnreachedPath {
    /// Number of the path.
    pub path: PathNumber,
    /// True if the path waits until no other path is up.
    pub standby: bool,
}

/// End of a copy at this host, beneath roots that it has granted. Both locations of the copy then name the other end's
/// agent, as the request did.
#[derive(Clone)]
pub enum Granted {
    /// Sources that this host pushes.
    Sources(Vec<SourcePlace>),
    /// File path beneath this root, to which this host pulls.
    Destination(Root, Vec<u8>),
    /// File paths beneath this root, to which this host pulls the sources of a numbered copy.
    Targets(Root, Vec<Vec<u8>>),
}

impl fmt::Debug for Granted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sources(places) => write!(f, "{} granted sources", places.len()),
            Self::Destination(..) => f.write_str("a granted destination"),
            Self::Targets(_, paths) => write!(f, "{} granted targets", paths.len()),
        }
    }
}

/// One replica, for the summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaSummary {
    /// Source, as it was given.
    pub source: String,
    /// Bytes of the file that came from this replica.
    pub bytes: u64,
    /// Reason why the replica was dropped before the end; `None` if it was not.
    pub dropped: Option<String>,
}

/// Decides which agents a process connects to. Called from threads of copies; may block, for example to ask a person.
pub trait Trust: Send + Sync {
    /// Returns normally if the agent at `remote` may have the key `peer`. After `cancel` the copy
    /// no longer waits for the answer. Errors: the agent is not trusted, with the reason for the user.
    fn check(&self, remote: &RemoteLocation, peer: &Fingerprint, cancel: &Cancel) -> Result<(), Error>;

    /// Returns the keys that the agent at `remote` may have, as far as they are known without asking. `beside` is the
    /// key of the other agent of the copy. Errors: the list of known agents cannot be read.
    fn expected_keys(&self, remote: &RemoteLocation, beside: &Fingerprint) -> Result<Vec<Fingerprint>, Error>;
}

/// Kind of a copy, by its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyKind {
    /// Between this host, or web servers, and one agent.
    Agent,
    /// From web servers to this host.
    Direct,
    /// From one agent to another; no file data passes this host.
    ThirdParty,
    /// From several replicas of one file to this host.
    Replicas,
}
