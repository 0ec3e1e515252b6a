//! The client: one copy, from its options to the outcome of every file.
//!
//! Dials the first lane, decides how many more there shall be, keeps every lane alive (a dead one is dialled again with
//! backoff), and starts the session anew when the agent was restarted. The loop is [`Keeper::tick_until_over`]: until
//! the session is over or the person stops it.

mod dial;
mod direct;
mod follow;
mod memory;
mod stall;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use sterna_proto::compress::Wish;
use sterna_proto::limit::{LimitReport, LimitTimes};
use sterna_proto::location::RemoteLocation;
use sterna_proto::memory::{PathRecord, PeakRate, Way};
use sterna_proto::plan::{self, Decision, TcpPath, Via};
use sterna_proto::rate::RateContract;
use sterna_proto::session::{ActiveFile, FileOutcome, Frame, Hello, Overwrite, Request, SOURCES_MAX, SessionId};
use sterna_proto::web::WebLocation;
use sterna_proto::{
    BitRate, ByteCount, Checks, Digest, EntryKind, Error, ErrorKind, FileEntry, Location, Phase, Retry, Scope,
};

use crate::buffer::BufferPool;
use crate::disk::{Destination, Root, Sources, has_wildcards, last_name};
use crate::identity::{Fingerprint, Identity};
use crate::lane::quic::SharedBudget;
use crate::lane::{Lane, LaneStats, Transport};
use crate::session::{
    ALIVE_EVERY, AskedNames, Compression, End, Follow, LaneIds, Lanes, LimitsNow, Observer, Origins, Progress,
    Receiver, ReceiverOptions, Sender, SessionEvent, SettledPaths, Source, Then, attach, close_all, lock,
};
use crate::web::{TokenSource, Web};

use self::dial::{FirstLane, dial, dial_first, lane_memory};
use self::memory::PathFile;
use self::stall::StallWatch;

/// First wait before a dead lane is dialled again; doubled up to [`BACKOFF_MAX`]. Reason: a short cut costs little.
const BACKOFF_MIN: Duration = Duration::from_millis(500);

/// Longest wait before a dead lane is dialled again. Reason: an outage that ends is noticed within this.
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// A lane that lived this long was well: the next wait is the shortest again.
const HEALTHY_LIFE: Duration = Duration::from_secs(10);

/// How long the last packets of a session get to leave this host. Reason: the thread of a lane wakes up within a few
/// milliseconds and paces its last packets within some more.
const DEPARTURE: Duration = Duration::from_millis(30);

/// How long the close of a lane gets to leave this host. Reason: it waits for no window and no pace, only for its thread.
const LAST_PACKET: Duration = Duration::from_millis(10);

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
pub struct CopyOptions {
    /// What to copy.
    pub sources: Vec<Location>,
    /// Where to.
    pub destination: Location,
    /// Transport.
    pub via: ViaChoice,
    /// Number of lanes; `None`: Sterna decides.
    pub lanes: Option<u32>,
    /// What is agreed about the rate of the path.
    pub contract: RateContract,
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
    /// Directory that keeps what is learnt about paths; `None`: nothing is remembered.
    pub memory_dir: Option<PathBuf>,
    /// Where the bearer token for a web server comes from.
    pub web_token: Option<TokenSource>,
    /// A file of certificates of authorities that web servers may have beside those of this host.
    pub web_authority: Option<PathBuf>,
    /// Sources are sent as they grow and appear; how long a file must stay as it is to have ended.
    pub follow: Option<Duration>,
    /// What is done with sources that have arrived.
    pub then: Option<Then>,
}

/// What the person who runs a copy sees and says; called from many threads.
pub trait CopyObserver: Send + Sync {
    /// Something happened.
    fn event(&self, event: CopyEvent);
    /// Called a few times a second.
    fn progress(&self, progress: &CopyProgress);
    /// Whether the agent at `remote` with this key is trusted. Errors: it is not, with the reason for the person.
    fn trust(&self, remote: &RemoteLocation, peer: &Fingerprint) -> Result<(), Error>;
    /// Whether the person wants to stop.
    fn stopped(&self) -> bool;
}

/// What happens in a copy.
#[derive(Debug)]
pub enum CopyEvent {
    /// A decision, with its reason.
    Decision {
        /// What about: `transport`, `lanes`, `congestion` or `compression`.
        subject: &'static str,
        /// Why.
        rationale: String,
    },
    /// A lane is up: the agent has welcomed it.
    LaneUp {
        /// Its number.
        lane: u32,
        /// Its transport.
        transport: Transport,
        /// The address of the agent.
        peer: SocketAddr,
    },
    /// A lane is down; it is dialled again.
    LaneDown {
        /// Its number.
        lane: u32,
        /// Why.
        reason: String,
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
    /// Bytes of the files that were copied.
    pub bytes: u64,
    /// Bytes of the files that were up to date.
    pub bytes_skipped: u64,
    /// Bytes that were there from an earlier run; goodput does not count them.
    pub bytes_held: u64,
    /// Bytes of holes that this run told instead of carrying; goodput does not count them either.
    pub bytes_holes: u64,
    /// File bytes that lanes carried, those of blocks that travelled again included.
    pub bytes_carried: u64,
    /// What these bytes became on the lanes: fewer where they were compressed.
    pub bytes_encoded: u64,
    /// Blocks that were sent or asked for again.
    pub blocks_again: u64,
    /// Time from the start to the last outcome.
    pub elapsed: Duration,
    /// Why files failed.
    pub failures: Vec<Error>,
    /// What limited it.
    pub limits: LimitReport,
}

impl CopySummary {
    /// Mean rate of the file bytes that lanes brought in this run.
    pub fn goodput(&self) -> BitRate {
        BitRate::mean(ByteCount(self.bytes.saturating_sub(self.bytes_held + self.bytes_holes)), self.elapsed)
    }
}

/// Failures whose reasons are kept. Reason: bounds memory; the observer has heard them all.
pub const FAILURES_KEPT_MAX: usize = 100;

/// Runs one copy to its end.
///
/// Errors: nothing could be done at all (usage, no agent, not trusted), or the session ended early. Files that failed on
/// their own are in the summary.
pub fn copy(
    options: &CopyOptions,
    identity: &Identity,
    observer: &Arc<dyn CopyObserver>,
) -> Result<CopySummary, Error> {
    let mut started = Instant::now();
    follow::check(options)?;
    if let Some(direct) = direct::Direct::plan(options)? {
        return direct.copy(options, observer);
    }
    let job = Job::plan(options)?;
    let tally = Arc::new(Tally { observer: Arc::clone(observer), state: Mutex::default() });
    lock(&tally.state).remembers_none = options.follow.is_some();
    // Since when the agent has been looked for again, after it lost a session.
    let mut lost_since: Option<Instant> = None;
    loop {
        match run_session(options, &job, identity, observer, &tally, &mut started) {
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
                let mut state = lock(&tally.state);
                state.summary.elapsed = started.elapsed();
                return outcome.map(|()| std::mem::take(&mut state.summary));
            }
        }
    }
}

/// Our end of a session; once more as a receiver if it is one.
type OurEnd = (Arc<dyn End>, Option<Arc<Receiver>>);

/// What is to be done, worked out of the locations.
struct Job {
    remote: RemoteLocation,
    direction: Direction,
    /// What follows the sources, over all sessions.
    follow: Option<Arc<Follow>>,
}

enum Direction {
    Push { sources: PushSources, destination: Vec<u8> },
    Pull { sources: Vec<Vec<u8>>, destination: PathBuf },
}

enum PushSources {
    Local(Vec<PathBuf>),
    Web(Vec<WebLocation>),
}

impl PushSources {
    /// The sources of a push. Errors: `Usage`: some are at an agent, or they are of two kinds.
    fn of(sources: &[Location]) -> Result<Self, Error> {
        let usage = |text: &str| Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text));
        let (mut local, mut web) = (Vec::new(), Vec::new());
        for source in sources {
            match source {
                Location::Local(path) => local.push(path.clone()),
                Location::Web(location) => web.push(location.clone()),
                Location::Remote(_) => return usage("both ends are remote: run the copy at one of the two hosts"),
            }
        }
        match (local.is_empty(), web.is_empty()) {
            (_, true) => Ok(Self::Local(local)),
            (true, false) => Ok(Self::Web(web)),
            (false, false) => usage(direct::TWO_KINDS),
        }
    }

    /// Whether they can mean more than one thing, so that the destination must be a directory.
    fn are_many(&self) -> bool {
        match self {
            Self::Local(paths) => paths.len() > 1 || paths.iter().any(|path| means_many(path)),
            Self::Web(locations) => locations.len() > 1,
        }
    }
}

impl Job {
    fn plan(options: &CopyOptions) -> Result<Self, Error> {
        let usage = |text: &str| Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text));
        if options.sources.is_empty() {
            return usage("nothing to copy: name at least one source");
        }
        if options.sources.len() > SOURCES_MAX {
            return usage("more than 4096 sources: name their directory, or use a wildcard in quotes");
        }
        match &options.destination {
            Location::Web(_) => usage("a web server is no destination: copy from one to this host or to an agent"),
            Location::Remote(remote) => {
                let sources = PushSources::of(&options.sources)?;
                let follow = match &sources {
                    PushSources::Local(paths) => follow::prepare(options, paths)?,
                    PushSources::Web(_) => None,
                };
                let direction = Direction::Push { sources, destination: remote.path.clone() };
                Ok(Self { remote: remote.clone(), direction, follow })
            }
            Location::Local(destination) => {
                let mut remotes = Vec::new();
                for source in &options.sources {
                    match source {
                        Location::Local(_) => {
                            let text = "neither end is at an agent: write that one as sterna://host[:port]/path, or use cp \
                                        for copies on one host";
                            return usage(text);
                        }
                        Location::Remote(remote) => remotes.push(remote),
                        Location::Web(_) => return usage(direct::TWO_KINDS),
                    }
                }
                let upward = |remote: &&&RemoteLocation| remote.path.split(|&b| b == b'/').any(|name| name == b"..");
                if let Some(remote) = remotes.iter().find(upward) {
                    return usage(&format!(
                        "{remote} has a .. in its path, which agents do not follow: write the path without"
                    ));
                }
                let first = remotes[0].clone();
                if remotes.iter().any(|r| (&r.host, r.port) != (&first.host, first.port)) {
                    return usage("the sources are at several agents: copy from one at a time");
                }
                let sources = remotes.iter().map(|remote| remote.path.clone()).collect();
                let direction = Direction::Pull { sources, destination: destination.clone() };
                Ok(Self { remote: first, direction, follow: None })
            }
        }
    }

    /// What the agent is asked for.
    fn request(&self, options: &CopyOptions) -> Request {
        match &self.direction {
            Direction::Push { sources, destination } => Request::Push {
                destination: destination.clone(),
                several: sources.are_many(),
                overwrite: follow::overwrite(options),
                checks: options.checks,
                expect: options.expect,
                dry_run: options.dry_run,
            },
            Direction::Pull { sources, .. } => {
                Request::Pull { sources: sources.clone(), dry_run: options.dry_run, compress: options.compress }
            }
        }
    }

    /// Our end of the session.
    fn start_end(&self, options: &CopyOptions, tally: &Arc<Tally>) -> Result<OurEnd, Error> {
        let observer = Arc::clone(tally) as Arc<dyn Observer>;
        match &self.direction {
            Direction::Push { sources: PushSources::Web(locations), .. } => {
                let web = Web::new(&direct::web_options(options), locations.clone(), None, Arc::clone(&observer))?;
                let sources = Origins::Web(Arc::new(web));
                let (settled, pool) = (tally.settled(), BufferPool::new());
                let compression = Compression::default();
                let sender =
                    Sender::start(sources, options.linger, options.dry_run, settled, compression, pool, observer)?;
                Ok((sender, None))
            }
            Direction::Push { sources: PushSources::Local(sources), .. } => {
                let mut missing = Vec::new();
                let found = |path: &PathBuf| local_source(path).map_err(|error| missing.push(error)).ok();
                let sources: Vec<Source> = sources.iter().filter_map(found).collect();
                if sources.is_empty() {
                    return Err(missing.swap_remove(0));
                }
                let settled = tally.settled();
                let pool = BufferPool::new();
                let compression = Compression { wish: options.compress, rate: options.contract.target };
                let sources = match &self.follow {
                    Some(follow) => Origins::Followed(Arc::clone(follow)),
                    None => Origins::Roots(sources),
                };
                let sender =
                    Sender::start(sources, options.linger, options.dry_run, settled, compression, pool, observer)?;
                options.then.iter().cloned().for_each(|then| sender.set_then(then));
                missing.into_iter().for_each(|error| sender.unreadable(error));
                Ok((sender, None))
            }
            Direction::Pull { sources, destination } => {
                use std::os::unix::ffi::OsStrExt;
                let (root, path) = Root::for_local_destination(destination.as_os_str().as_bytes())?;
                let many = sources.len() > 1 || sources.iter().any(|source| may_mean_many(source));
                let asked = AskedNames::of(sources.iter().map(Vec::as_slice));
                let receiver = Receiver::start(
                    ReceiverOptions {
                        destination: Destination::resolve(
                            &root,
                            &path,
                            if many { Sources::Many } else { Sources::One },
                        )?,
                        overwrite: options.overwrite,
                        checks: options.checks,
                        expect: options.expect,
                        dry_run: options.dry_run,
                        linger: options.linger,
                        leaves_first: true,
                        asked,
                        settled: tally.settled(),
                        on_busy: Box::new(|_, _| {}),
                    },
                    observer,
                )?;
                Ok((Arc::clone(&receiver) as Arc<dyn End>, Some(receiver)))
            }
        }
    }
}

fn local_source(path: &std::path::Path) -> Result<Source, Error> {
    use std::os::unix::ffi::OsStrExt;
    let (root, pattern) = Root::for_local_source(path.as_os_str().as_bytes())?;
    Ok(Source { root, pattern, name: None })
}

/// Whether a local source can mean more than one thing, so that the destination must be a directory.
fn means_many(path: &std::path::Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let bytes = path.as_os_str().as_bytes();
    means_contents(bytes) || !path.exists() && has_wildcards(bytes)
}

/// Whether a remote source can; only the agent knows whether a name with a wildcard in it exists as it is written.
fn may_mean_many(path: &[u8]) -> bool {
    last_name(path).is_none() || has_wildcards(path)
}

/// Whether a local path means the contents of a directory and not the directory: `.`, `..`, `/`, or one that ends so.
fn means_contents(path: &[u8]) -> bool {
    let end = path.iter().rposition(|&b| b != b'/').map_or(0, |last| last + 1);
    matches!(path[..end].rsplit(|&b| b == b'/').next(), None | Some(b"" | b"." | b".."))
}

/// Counts outcomes, over every session of one copy, and passes events on.
struct Tally {
    observer: Arc<dyn CopyObserver>,
    state: Mutex<TallyState>,
}

#[derive(Default)]
struct TallyState {
    summary: CopySummary,
    /// Files that earlier sessions of this copy have settled well: the session that took over leaves them out.
    earlier: Arc<SettledPaths>,
    /// Those of the session that runs.
    settled: SettledPaths,
    /// Bytes that the last session brought of files that it did not settle: the session that took over finds them.
    unsettled_bytes: u64,
    aborted: Option<Error>,
    /// What has settled is known elsewhere, and may come again under the same name.
    remembers_none: bool,
}

impl Tally {
    fn settled(&self) -> Arc<SettledPaths> {
        Arc::clone(&lock(&self.state).earlier)
    }
}

impl Observer for Tally {
    fn session_event(&self, event: SessionEvent) {
        let mut state = lock(&self.state);
        match &event {
            SessionEvent::Settled { entry, outcome } => state.count(entry, outcome),
            SessionEvent::Unreadable(error) | SessionEvent::Left(error) => state.fail(error),
            SessionEvent::Aborted(error) => {
                state.aborted.get_or_insert_with(|| crate::copy_of(error));
            }
            SessionEvent::Notice(_) | SessionEvent::Decision { .. } => {}
        }
        drop(state);
        self.observer.event(CopyEvent::Session(event));
    }
}

impl TallyState {
    fn count(&mut self, entry: &FileEntry, outcome: &FileOutcome) {
        match outcome {
            FileOutcome::Failed(error) => self.fail(error),
            _ if entry.kind == EntryKind::Directory => {}
            // The receiver of a session that took over reports files again that an earlier one had settled.
            _ if self.earlier.contains(&entry.path) => {}
            FileOutcome::Done(_) => {
                self.remember(entry);
                self.summary.done += 1;
                self.summary.bytes += entry.size;
            }
            FileOutcome::Skipped => {
                self.remember(entry);
                self.summary.skipped += 1;
                self.summary.bytes_skipped += entry.size;
            }
        }
    }

    fn remember(&mut self, entry: &FileEntry) {
        if !self.remembers_none {
            self.settled.insert(&entry.path);
        }
    }

    /// A session was lost: the next leaves out what has settled well and tries again what has failed.
    fn start_over(&mut self) {
        Arc::make_mut(&mut self.earlier).extend(std::mem::take(&mut self.settled));
        self.summary.failed = 0;
        self.summary.failures.clear();
    }

    fn fail(&mut self, error: &Error) {
        self.summary.failed += 1;
        if self.summary.failures.len() < FAILURES_KEPT_MAX {
            self.summary.failures.push(crate::copy_of(error));
        }
    }
}

/// What the threads that keep lanes alive share.
struct Keeper {
    end: Arc<dyn End>,
    lanes: LaneIds,
    hello: Hello,
    welcomed: AtomicBool,
    remote: RemoteLocation,
    addr: SocketAddr,
    identity: Identity,
    options: CopyOptions,
    lane_count: u32,
    budget: SharedBudget,
    observer: Arc<dyn CopyObserver>,
    live: Lanes,
    /// Bytes that the earlier sessions of this copy found, and those that the last one left for this one to find.
    held_before: u64,
    found_bytes: u64,
    /// Bytes of holes that the earlier sessions of this copy told.
    holes_before: u64,
    /// What limited the earlier sessions of this copy.
    limits_before: LimitTimes,
    /// Lanes that the agent has welcomed and that have not ended.
    up: AtomicUsize,
    /// Lanes that are kept; grows when they turn out too few.
    lanes_wanted: AtomicU32,
    /// The transport of its lanes.
    via: Via,
    /// The most that they have carried over some seconds, and what they said last of their path.
    carried: Mutex<(PeakRate, Option<LaneStats>)>,
    /// Ends the waits of backoff early.
    over: (Mutex<bool>, Condvar),
    trusted: Mutex<Option<Fingerprint>>,
}

/// One session of a copy, from the first lane to the last outcome.
fn run_session(
    options: &CopyOptions,
    job: &Job,
    identity: &Identity,
    observer: &Arc<dyn CopyObserver>,
    tally: &Arc<Tally>,
    started: &mut Instant,
) -> Result<(), Error> {
    let FirstLane { via, lane: first, addr, budget, remembered, trusted_after } =
        dial_first(options, job, identity, observer)?;
    // The time that a person takes to answer is not the copy's.
    *started += trusted_after;
    let started = *started;
    let lane_count = decide_lanes(options, via, &first, remembered.as_ref(), observer);
    if via == Via::Quic {
        lane_memory(options, lane_count)?;
    }
    let (held_before, holes_before, found_bytes, limits_before) = {
        let mut state = lock(&tally.state);
        state.aborted = None;
        (state.summary.bytes_held, state.summary.bytes_holes, state.unsettled_bytes, state.summary.limits.total)
    };
    let (end, receiver) = job.start_end(options, tally)?;
    end.limits().set_rate_cap(options.contract.ceiling);
    let keeper = Arc::new(Keeper {
        end: Arc::clone(&end),
        lanes: LaneIds::default(),
        hello: Hello { contract: budget.contract(), ..Hello::new(random_session()?, job.request(options)) },
        welcomed: AtomicBool::new(false),
        remote: job.remote.clone(),
        addr,
        identity: identity.clone(),
        options: options.clone(),
        lane_count,
        budget,
        observer: Arc::clone(observer),
        live: Lanes::default(),
        held_before,
        found_bytes,
        holes_before,
        limits_before,
        up: AtomicUsize::new(0),
        lanes_wanted: AtomicU32::new(0),
        via,
        carried: Mutex::default(),
        over: (Mutex::new(false), Condvar::new()),
        trusted: Mutex::new(Some(first.peer)),
    });
    let mut first = Some(first);
    for _ in 0..lane_count {
        keeper.start_lane(via, first.take())?;
    }
    let alive = Arc::clone(&keeper);
    let spawned = thread::Builder::new().name("keep-alive".to_owned()).spawn(move || alive.keep_alive());
    spawned.map_err(|e| crate::internal("start the thread that keeps lanes alive").caused_by(e))?;
    keeper.tick_until_over(started);
    keeper.learn();
    keeper.finish();
    if let Some(receiver) = &receiver {
        receiver.join();
    }
    keeper.sum_up(&mut lock(&tally.state))
}

fn random_session() -> Result<SessionId, Error> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|e| crate::internal("ask the kernel for random bytes").caused_by(e))?;
    Ok(SessionId(id))
}

fn decide_lanes(
    options: &CopyOptions,
    via: Via,
    first: &Lane,
    remembered: Option<&PathRecord>,
    observer: &Arc<dyn CopyObserver>,
) -> u32 {
    let rate = options.contract.target.or(remembered.map(|record| record.rate));
    let decision = match (options.lanes, via) {
        (Some(lanes), _) => Decision { value: lanes, rationale: format!("{lanes}, as asked for with --lanes") },
        // Each lane is one connection to the web server, which may be far away.
        _ if options.sources.iter().all(|source| matches!(source, Location::Web(_))) => plan::choose_web_lanes(),
        (None, Via::Quic) => plan::choose_quic_lanes(rate),
        (None, Via::Tcp) => plan::choose_tcp_lanes(&TcpPath {
            rtt: first.handle.stats().rtt_min,
            rate,
            window_max: first.handle.window_max(),
            cores: thread::available_parallelism().map_or(1, |n| n.get() as u32),
        }),
    };
    observer.event(CopyEvent::Decision { subject: "lanes", rationale: decision.rationale });
    decision.value.clamp(1, plan::LANES_MAX)
}

impl Keeper {
    /// Starts the thread of one more lane; the first one comes connected.
    fn start_lane(self: &Arc<Self>, via: Via, connected: Option<Lane>) -> Result<(), Error> {
        let keeper = Arc::clone(self);
        let spawned = thread::Builder::new().name("keep-lane".to_owned()).spawn(move || keeper.keep(via, connected));
        spawned.map_err(|e| crate::internal("start the thread of a lane").caused_by(e))?;
        self.lanes_wanted.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Keeps one lane alive until the session is over. The first lane comes connected.
    fn keep(&self, via: Via, first: Option<Lane>) {
        let mut next = first;
        let mut backoff = BACKOFF_MIN;
        while !self.end.is_over() {
            let born = Instant::now();
            let lane = match next.take() {
                Some(lane) => Ok(lane),
                // What the first lane was refused was said then.
                None => dial(via, self.addr, &self.options, self.lane_count, &self.budget, &self.identity)
                    .map(|(lane, _)| lane),
            };
            let id = self.lanes.next();
            let outcome = lane.and_then(|lane| self.run_lane(id, lane));
            // A copy that was stopped needs no more lanes; the agent has heard of it, or sees the last lane end.
            if self.end.is_over() || self.observer.stopped() {
                return;
            }
            // What a dead TCP lane had of the rate goes to the others.
            if self.sends() {
                self.live.share_rate();
            }
            let reason = match outcome {
                Ok(()) => "closed by the agent".to_owned(),
                Err(error) if ends_session(&error) => return self.end.abort(error),
                Err(error) => error.chain(),
            };
            self.observer.event(CopyEvent::LaneDown { lane: id.0, reason });
            backoff = if born.elapsed() > HEALTHY_LIFE { BACKOFF_MIN } else { (backoff * 2).min(BACKOFF_MAX) };
            self.wait(backoff);
        }
    }

    fn run_lane(&self, id: sterna_proto::session::LaneId, lane: Lane) -> Result<(), Error> {
        self.check_trust(&lane)?;
        self.live.add(&lane.handle, self.budget.clone(), self.options.congestion.is_some());
        if self.sends() {
            self.live.share_rate();
        }
        let hello = Hello { rejoin: self.welcomed.load(Ordering::Relaxed), ..self.hello.clone() };
        let (transport, peer) = (lane.handle.transport(), lane.handle.peer_addr());
        // An agent that was restarted, or that refuses, answers a connection all the same: only its welcome says that it is ours.
        let is_up = AtomicBool::new(false);
        let on_welcome = || {
            self.welcomed.store(true, Ordering::Relaxed);
            if !is_up.swap(true, Ordering::Relaxed) {
                self.up.fetch_add(1, Ordering::Relaxed);
                self.observer.event(CopyEvent::LaneUp { lane: id.0, transport, peer });
            }
        };
        let outcome = attach(Arc::clone(&self.end), id, lane, Some(Frame::Hello(hello)), &on_welcome);
        if is_up.into_inner() {
            self.up.fetch_sub(1, Ordering::Relaxed);
        }
        outcome
    }

    /// Every lane must end at the agent that the first one reached.
    fn check_trust(&self, lane: &Lane) -> Result<(), Error> {
        let trusted = *lock(&self.trusted);
        if trusted == Some(lane.peer) {
            return Ok(());
        }
        self.observer.trust(&self.remote, &lane.peer)?;
        *lock(&self.trusted) = Some(lane.peer);
        Ok(())
    }

    fn wait(&self, time: Duration) {
        let (over, wake) = &self.over;
        let guard = lock(over);
        if !*guard {
            // A poisoned lock only ends the wait early.
            let _ = wake.wait_timeout(guard, time);
        }
    }

    /// Tells the agent that this end lives, until the session is over. A thread of its own: what the person sees may block.
    fn keep_alive(&self) {
        while !*lock(&self.over.0) {
            self.live.say_alive();
            self.wait(ALIVE_EVERY);
        }
    }

    fn sends(&self) -> bool {
        matches!(self.hello.request, Request::Push { .. })
    }

    /// Ticks the session until it is over; ends it when the person wants to stop.
    fn tick_until_over(self: &Arc<Self>, started: Instant) {
        let mut stopping = false;
        let mut stall = StallWatch::default();
        while !self.end.is_over() {
            thread::sleep(TICK);
            self.end.tick();
            self.adapt();
            let progress = self.progress(started);
            self.observer.progress(&progress);
            self.watch_rate(&progress);
            let carried = progress.lanes.iter().map(|lane| lane.wire_bytes_sent + lane.wire_bytes_received);
            // A spool may have nothing to send for days.
            let told = stall.observe(carried, Instant::now()).filter(|_| self.options.follow.is_none());
            if let Some(text) = told {
                self.observer.event(CopyEvent::Session(SessionEvent::Notice(text)));
            }
            if self.observer.stopped() && !stopping {
                stopping = true;
                let text = "the copy was stopped; run the same command again to go on from here";
                self.end.abort(Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Transfer, text));
            }
        }
        // What a lane has heard last is done with when this returns: a source that was to go has gone.
        self.end.tick();
        self.observer.progress(&self.progress(started));
    }

    /// Decides anew what the lanes themselves have taught since.
    fn adapt(self: &Arc<Self>) {
        for rationale in if self.sends() { self.live.adapt_congestion() } else { Vec::new() } {
            self.observer.event(CopyEvent::Decision { subject: "congestion", rationale });
        }
        let wanted = self.lanes_wanted.load(Ordering::Relaxed);
        if self.via == Via::Quic {
            return self.adapt_quic(wanted);
        }
        let held = self
            .live
            .held(self.options.contract.target)
            .filter(|held| self.options.lanes.is_none() && held.lanes == wanted);
        if let Some(more) = held.and_then(|held| plan::choose_more_tcp_lanes(&held)) {
            self.observer.event(CopyEvent::Decision { subject: "lanes", rationale: more.rationale });
            // A host that gives no more threads keeps the lanes that it has.
            let _ = (wanted..more.value).try_for_each(|_| self.start_lane(Via::Tcp, None));
        }
    }

    /// Opens more QUIC lanes when the path was found to carry more than those that are there are good for.
    fn adapt_quic(self: &Arc<Self>, wanted: u32) {
        if self.options.lanes.is_some() || self.options.contract.target.is_some() {
            return;
        }
        let found = if self.sends() { self.budget.found() } else { lock(&self.carried).0.value() };
        if let Some(more) = found.and_then(|rate| plan::choose_more_quic_lanes(wanted, rate)) {
            self.observer.event(CopyEvent::Decision { subject: "lanes", rationale: more.rationale });
            // A host that gives no more threads keeps the lanes that it has.
            let _ = (wanted..more.value).try_for_each(|_| self.start_lane(Via::Quic, None));
        }
    }

    /// Takes note of what lanes have carried until now.
    fn watch_rate(&self, progress: &CopyProgress) {
        let carried = |lane: &LaneStats| if self.sends() { lane.wire_bytes_sent } else { lane.wire_bytes_received };
        let bytes = progress.lanes.iter().map(carried).sum();
        let together = progress.lanes.iter().copied().reduce(|one, other| LaneStats {
            rtt_min: one.rtt_min.min(other.rtt_min),
            packets_sent: one.packets_sent + other.packets_sent,
            packets_lost: one.packets_lost + other.packets_lost,
            mtu: one.mtu.max(other.mtu),
            ..one
        });
        let (peak, stats) = &mut *lock(&self.carried);
        peak.observe(progress.elapsed, bytes);
        *stats = together.or(*stats);
    }

    /// Keeps what the session has taught about the path.
    fn learn(&self) {
        let Some(dir) = &self.options.memory_dir else { return };
        let (peak, stats) = *lock(&self.carried);
        let (Some(sent_rate), Some(stats)) = (peak.value(), stats) else { return };
        let way = if self.sends() { Way::Out } else { Way::In };
        let Ok(key) = memory::key_of(way, self.addr) else { return };
        let sent = stats.packets_sent.max(1);
        let loss_ppm = (stats.packets_lost.min(sent) * 1_000_000 / sent) as u32;
        // What was dropped was not carried.
        let rate = BitRate((sent_rate.0 as f64 * (1.0 - f64::from(loss_ppm) / 1e6)) as u64);
        let (via, at) = (self.via, memory::unix_time());
        let record = PathRecord { key, via, rate, rtt: stats.rtt_min, loss_ppm, mtu: stats.mtu, at };
        if let Err(error) = PathFile::new(dir).learn(record) {
            self.observer.event(CopyEvent::Session(SessionEvent::Notice(error.chain())));
        }
    }

    fn progress(&self, started: Instant) -> CopyProgress {
        let lanes = self.live.live().iter().map(|handle| handle.stats()).collect();
        CopyProgress {
            session: self.session_progress(),
            elapsed: started.elapsed(),
            lanes,
            files: self.end.active_files(ACTIVE_FILES_SHOWN),
            limits: self.limits(),
        }
    }

    /// What limits the copy, with what earlier sessions of it found.
    fn limits(&self) -> LimitsNow {
        let mut limits = self.end.limits().now();
        limits.report.total.merge(&self.limits_before);
        limits
    }

    /// How far the session is; what earlier sessions of this copy brought does not count as there before it.
    fn session_progress(&self) -> Progress {
        let mut progress = self.end.progress();
        progress.bytes_held = self.held_before + progress.bytes_held.saturating_sub(self.found_bytes);
        progress.bytes_holes += self.holes_before;
        progress.lanes = self.up.load(Ordering::Relaxed);
        progress
    }

    /// Adds what the session has brought to the copy. Errors: it ended early.
    fn sum_up(&self, state: &mut TallyState) -> Result<(), Error> {
        let progress = self.session_progress();
        state.summary.blocks_again += progress.blocks_again;
        state.summary.bytes_carried += progress.bytes_carried;
        state.summary.bytes_encoded += progress.bytes_encoded;
        state.summary.bytes_held = progress.bytes_held;
        state.summary.bytes_holes = progress.bytes_holes;
        state.summary.limits = self.limits().report;
        state.unsettled_bytes = self.end.unsettled_bytes();
        match state.aborted.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Ends every lane. What was said last leaves this host, and its arrival is not waited for: that would cost a round trip,
    /// and an agent that misses it notices the lane's end.
    fn finish(&self) {
        let (over, wake) = &self.over;
        *lock(over) = true;
        wake.notify_all();
        let lanes = self.live.live();
        close_all(lanes.iter().map(Arc::clone), "session over");
        thread::sleep(DEPARTURE);
        // What a full window held back until now stays here; that nobody is here any more must leave all the same, or the agent
        // holds the files for as long as it takes the silence for an outage.
        lanes.iter().for_each(|lane| lane.cut("session over"));
        thread::sleep(LAST_PACKET);
    }
}

/// Whether a lane's failure would meet every other lane too.
fn ends_session(error: &Error) -> bool {
    error.kind == ErrorKind::SessionLost || error.retry == Retry::Never && error.kind != ErrorKind::Protocol
}

#[cfg(test)]
mod tests {
    use sterna_proto::{FileDigests, FileTime, RelPath};

    use super::*;

    fn entry(path: &str, kind: EntryKind) -> FileEntry {
        let path = RelPath::new(path.as_bytes()).unwrap();
        let mtime = FileTime { seconds: 1, nanoseconds: 0 };
        FileEntry { path, kind, size: 7, mtime, mode: 0o644, allocated: 7, inode: 1, version: 1, growth: None }
    }

    fn counts(state: &TallyState) -> (u64, u64, u64) {
        (state.summary.done, state.summary.skipped, state.summary.failed)
    }

    #[test]
    fn outcomes_count_once_for_a_copy_and_failures_always() {
        let mut state = TallyState::default();
        let done = || FileOutcome::Done(FileDigests::of(b"", Checks::NONE));
        let failed = || FileOutcome::Failed(Error::new(ErrorKind::Busy, Scope::Destination, Phase::Prepare, "busy"));
        let (file, other) = (entry("f", EntryKind::File), entry("g", EntryKind::File));
        state.count(&file, &done());
        // Another file of the same name in the same session is a failure that must be seen.
        state.count(&file, &failed());
        state.count(&other, &failed());
        state.count(&entry("d", EntryKind::Directory), &FileOutcome::Skipped);
        assert_eq!(counts(&state), (1, 0, 2));
        assert!(!state.earlier.contains(&file.path), "only what an earlier session has settled is left out");
        state.start_over();
        assert!(state.earlier.contains(&file.path) && !state.earlier.contains(&other.path));
        // The session that took over: what had settled is not counted again, and what had failed has another chance.
        state.count(&file, &FileOutcome::Skipped);
        state.count(&other, &done());
        assert_eq!(counts(&state), (2, 0, 0));
        state.count(&file, &failed());
        assert_eq!(counts(&state), (2, 0, 1));
    }
}
