//! Copy of one file from several replicas: `sterna copy --same`.
//!
//! Runs one thread for each replica, which keeps a session with the sender of that replica. An agent sends in an
//! ordinary pull (`supervisor`); a URL or a file path of this host has a sender in this process. All sessions end at
//! one receiver. The main thread moves data and runs the decisions ([`Replicas::turn`]). Does not decide which block
//! each replica sends.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sterna_proto::compress::CompressionPolicy;
use sterna_proto::session::{REPLICAS_MAX, ReplicaId, ReplicaPlan};
use sterna_proto::{ByteCount, Error, ErrorKind, Location, Phase, RelPath, Retry, Scope, Setting};

use super::direct::{CONTROL, Silent, receiver_options, start_lanes, web_options};
use super::job::{Direction, Job, local_source, may_mean_many, means_many};
use super::supervisor::run_session;

use super::run::{Backoff, Driven, TICK, drive};
use super::spec::{
    ACTIVE_FILES_SHOWN, CopyEvent, CopyObserver, CopyProgress, CopySpec, CopySummary, Initiator, PathOptions, PathPlan,
    ReplicaSummary, ViaChoice,
};
use super::stall::StallDetector;
use super::totals::CopyTotals;
use crate::buffer::BufferPool;
use crate::cancel::Cancel;
use crate::disk::{Destination, Root, Sources, last_name};
use crate::identity::Fingerprint;
use crate::lane::LaneStats;
use crate::session::{
    AskedNames, End, LaneIds, LimitsNow, Observer, ReplicaEnd, Replicas, Sender, SessionEvent, SettledPaths,
};
use crate::source::{Roots, Source};
use crate::web::Web;

/// Time for the senders to receive the outcome of the copy. Reason: each limits its last message to 2 s, and closes its
/// lanes in the same time.
const FAREWELLS: Duration = Duration::from_secs(5);

/// Lanes from a file path of this host. Guess: one reads while the other hashes.
const LOCAL_LANES: u32 = 2;

/// Copy from several replicas to this host.
pub(crate) struct ReplicaCopy {
    sources: Vec<Location>,
    destination: PathBuf,
    name: RelPath,
}

impl ReplicaCopy {
    /// Returns the copy that the options describe; `None`: the sources are not replicas. Errors: `Usage`.
    pub(super) fn plan(options: &CopySpec) -> Result<Option<Self>, Error> {
        if !options.same {
            return Ok(None);
        }
        let usage = |text: &str| Err(usage_error(text.to_owned()));
        let count = options.sources.len();
        if !(2..=REPLICAS_MAX).contains(&count) {
            let were = if count == 1 { "was" } else { "were" };
            let text =
                format!("2 to {REPLICAS_MAX} replicas of one file are read, and {count} {were} given as sources");
            return Err(usage_error(text));
        }
        let Location::Local(destination) = &options.destination else {
            return usage(
                "replicas are copied to this host, and the destination is at another one: run the copy there, or name one source",
            );
        };
        if options.follow.is_some() || options.disposition.is_some() {
            let text = "files are followed, deleted or moved only at this host, and replicas do not change: leave one of the two out";
            return Err(Error::usage(&[Setting::Follow, Setting::SourceDisposition, Setting::Replicas], text));
        }
        if options.paths.len() > 1 || options.paths.iter().any(|path| path.local.is_some() || path.remote.is_some()) {
            let text = "paths lead to one host, and replicas are at several: leave the paths out";
            return Err(Error::usage(&[Setting::Paths, Setting::Replicas], text));
        }
        let is_web = |source: &Location| matches!(source, Location::Web(_));
        let is_said = |path: &PathOptions| path.contract.ceiling.is_some() || path.via != ViaChoice::Auto;
        if options.sources.iter().all(is_web) && (options.paths.iter().any(is_said) || options.congestion.is_some()) {
            let text =
                "here web servers send and not Sterna: leave these settings out, or set the limits at the servers";
            return Err(Error::usage(&[Setting::Rate, Setting::Transport, Setting::Congestion], text));
        }
        options.sources.iter().try_for_each(check_source)?;
        for (index, source) in options.sources.iter().enumerate() {
            if options.sources[..index].contains(source) {
                return usage("replicas are different places, and one source was given twice: name each once");
            }
        }
        Ok(Some(Self {
            sources: options.sources.clone(),
            destination: destination.clone(),
            name: name_of(&options.sources[0])?,
        }))
    }

    /// Runs the copy to its end. Errors: as [`super::run`].
    pub(super) fn copy(
        self,
        options: &CopySpec,
        initiator: &Initiator,
        observer: &Arc<dyn CopyObserver>,
    ) -> Result<CopySummary, Error> {
        let started = Instant::now();
        let totals = CopyTotals::new(observer);
        totals.state.lock().destination = Some(options.destination.clone());
        let names: Vec<String> = self.sources.iter().map(shown).collect();
        let replicas = self.start(options, &names, &totals)?;
        let set = Arc::new(ReplicaSet {
            replicas: Arc::clone(&replicas),
            options: each_options(options, self.sources.len()),
            initiator: initiator.clone(),
            observer: Arc::clone(observer),
            lanes: Arc::default(),
            busy: AtomicUsize::new(0),
            cancels: names.iter().map(|_| Cancel::default()).collect(),
            figures: names.iter().map(|_| Mutex::default()).collect(),
            paths: Mutex::default(),
        });
        for (number, source) in (0u32..).zip(&self.sources) {
            let worker = ReplicaWorker {
                set: Arc::clone(&set),
                replica: ReplicaId(number),
                name: names[number as usize].clone(),
            };
            let source = source.clone();
            let spawned =
                thread::Builder::new().name("replica".to_owned()).spawn(move || Arc::new(worker).keep(&source));
            spawned.map_err(|e| crate::no_thread("start the thread of a replica", e)).inspect_err(|error| {
                replicas.abort(error.clone());
                set.turn();
            })?;
        }
        drive(&*set, &**observer, started, Some(StallDetector::of_lanes()));
        set.part();
        replicas.receiver().join();
        set.sum_up(&totals, &names, started)
    }

    fn start(&self, options: &CopySpec, names: &[String], totals: &Arc<CopyTotals>) -> Result<Arc<Replicas>, Error> {
        let (root, path) = Root::for_local_destination(self.destination.as_os_str().as_bytes())?;
        let sink = Arc::new(Destination::resolve(&root, &path, Sources::One)?);
        // This host chooses the name, whatever name a sender gives its file.
        let receiver = receiver_options(options, sink, AskedNames::Any, totals);
        let plan = ReplicaPlan {
            names: names.to_vec(),
            path: self.name.clone(),
            is_expected: options.expect.is_some(),
            linger: options.linger,
            // The standard library seeds its hashers at random.
            seed: RandomState::new().build_hasher().finish(),
        };
        Replicas::start(plan, receiver, Arc::clone(totals) as Arc<dyn Observer>)
    }
}

fn usage_error(text: String) -> Error {
    Error::usage(&[Setting::Replicas], text)
}

/// Returns a source as text for users.
fn shown(source: &Location) -> String {
    match source {
        Location::Local(path) => path.display().to_string(),
        Location::Remote(remote) => remote.to_string(),
        Location::Web(location) => location.to_string(),
    }
}

/// Checks that a source means one file. Errors: `Usage`: it can match several files.
fn check_source(source: &Location) -> Result<(), Error> {
    let is_many = match source {
        Location::Local(path) => path.is_dir() || means_many(path),
        Location::Remote(remote) => remote.path.ends_with(b"/") || may_mean_many(&remote.path),
        Location::Web(_) => false,
    };
    if !is_many {
        return Ok(());
    }
    let text = format!(
        "{}: replicas are of one file, and have neither wildcards nor directories: name the file",
        shown(source)
    );
    Err(usage_error(text))
}

/// Returns the name of a source in a destination directory.
fn name_of(source: &Location) -> Result<RelPath, Error> {
    let nameless = || usage_error(format!("{}: it names no file", shown(source)));
    match source {
        Location::Local(path) => RelPath::new(path.file_name().ok_or_else(nameless)?.as_bytes()),
        Location::Remote(remote) => RelPath::new(last_name(&remote.path).ok_or_else(nameless)?),
        Location::Web(location) => location.name(),
    }
}

/// Returns the options of one replica, with its part of the memory.
fn each_options(options: &CopySpec, count: usize) -> CopySpec {
    CopySpec { memory: ByteCount(options.memory.0 / count as u64), ..options.clone() }
}

/// State that all replicas of a copy share.
struct ReplicaSet {
    replicas: Arc<Replicas>,
    options: CopySpec,
    initiator: Initiator,
    observer: Arc<dyn CopyObserver>,
    /// Counter that numbers the lanes of all agents, so that users see each number once.
    lanes: Arc<LaneIds>,
    /// Number of replicas with a session that has not ended.
    busy: AtomicUsize,
    /// Cancellation of the sessions with each replica.
    cancels: Vec<Cancel>,
    /// Lane counters and limits of each replica.
    figures: Vec<Mutex<(Vec<LaneStats>, LimitsNow)>>,
    /// Paths of the last session with each agent.
    paths: Mutex<BTreeMap<ReplicaId, Vec<PathPlan>>>,
}

impl ReplicaSet {
    /// Returns the limits of the copy: the sum over all replicas.
    fn limits(&self) -> LimitsNow {
        let mut limits = LimitsNow::default();
        for figures in &self.figures {
            let (_, now) = &*figures.lock();
            limits.number += now.number;
            limits.report.total.merge(&now.report.total);
            limits.report.recent.merge(&now.report.recent);
        }
        limits
    }

    /// Waits until the senders have received the outcome of the copy, at most for [`FAREWELLS`].
    fn part(&self) {
        let until = Instant::now() + FAREWELLS;
        loop {
            let seen = self.replicas.wake().seen();
            self.turn();
            if self.busy.load(Ordering::Acquire) == 0 || Instant::now() >= until {
                return;
            }
            self.replicas.wake().wait_to(seen, Some(until.min(Instant::now() + TICK)));
        }
    }

    /// Moves data, decides, and ends the sessions with replicas that are no longer needed.
    fn turn(&self) {
        self.replicas.turn();
        for (number, cancel) in (0u32..).zip(&self.cancels) {
            if !cancel.is_cancelled() && self.replicas.is_done_with(ReplicaId(number)) {
                cancel.cancel();
            }
        }
    }

    fn sum_up(&self, totals: &CopyTotals, names: &[String], started: Instant) -> Result<CopySummary, Error> {
        let mut state = totals.state.lock();
        let summary = &mut state.summary;
        summary.counters = self.replicas.receiver().progress().counters;
        summary.limits = self.limits().report;
        summary.paths = self.paths.lock().values().flatten().copied().collect();
        let account = |(account, name): (sterna_proto::session::ReplicaAccount, &String)| ReplicaSummary {
            source: name.clone(),
            bytes: account.bytes,
            dropped: account.dropped,
        };
        summary.replicas = self.replicas.accounts().into_iter().zip(names).map(account).collect();
        let outcome = state.aborted.take().map_or(Ok(()), Err);
        drop(state);
        totals.conclude(outcome, started.elapsed())
    }
}

impl Driven for ReplicaSet {
    fn is_over(&self) -> bool {
        self.replicas.is_over()
    }

    /// Moves data and decides meanwhile.
    fn wait(&self, time: Duration) {
        let until = Instant::now() + time;
        loop {
            let seen = self.replicas.wake().seen();
            self.turn();
            if self.replicas.is_over() || Instant::now() >= until {
                return;
            }
            self.replicas.wake().wait_to(seen, Some(until));
        }
    }

    fn tick(&self) {
        self.replicas.receiver().tick();
    }

    fn progress(&self) -> Option<CopyProgress> {
        let receiver = self.replicas.receiver();
        let mut session = receiver.progress();
        session.lanes = self.replicas.lane_count();
        let lanes = self.figures.iter().flat_map(|figures| figures.lock().0.clone()).collect();
        let (files, limits) = (receiver.active_files(ACTIVE_FILES_SHOWN), self.limits());
        Some(CopyProgress { session, lanes, files, limits, ..CopyProgress::default() })
    }

    fn abort(&self, error: Error) {
        self.replicas.abort(error);
    }
}

/// One replica of a copy.
struct ReplicaWorker {
    set: Arc<ReplicaSet>,
    replica: ReplicaId,
    name: String,
}

impl ReplicaWorker {
    /// Keeps a session with the sender of the replica until the copy is over, or the replica is dropped.
    fn keep(self: Arc<Self>, source: &Location) {
        // One totals for all sessions of the replica: the limits of earlier sessions count.
        let totals = CopyTotals::new(&(Arc::clone(&self) as Arc<dyn CopyObserver>));
        let mut backoff = Backoff::new();
        while !self.set.replicas.is_done_with(self.replica) {
            let begun = Instant::now();
            let kept = match source {
                Location::Remote(_) => self.keep_agent(source, &totals),
                Location::Local(path) => self.keep_local(path),
                Location::Web(location) => self.keep_web(location),
            };
            if self.set.replicas.is_done_with(self.replica) {
                return;
            }
            if let Err(error) = kept {
                self.set.replicas.leave(self.replica, &error);
            }
            self.cancel().wait(backoff.after(begun.elapsed()));
        }
    }

    fn keep_agent(&self, source: &Location, totals: &Arc<CopyTotals>) -> Result<(), Error> {
        let Location::Remote(remote) = source else { return Ok(()) };
        let options = CopySpec { sources: vec![source.clone()], ..self.set.options.clone() };
        let direction = Direction::Replica {
            source: remote.path.clone(),
            replica: self.replica,
            replicas: Arc::clone(&self.set.replicas),
            lanes: Arc::clone(&self.set.lanes),
        };
        let job = Job { remote: remote.clone(), direction, follow: None };
        let mut started = Instant::now();
        let _busy = Busy::new(&self.set);
        let outcome = run_session(&options, &job, &self.set.initiator, totals, &mut started);
        self.set.paths.lock().insert(self.replica, totals.state.lock().summary.paths.clone());
        outcome
    }

    fn keep_local(&self, path: &Path) -> Result<(), Error> {
        let source = local_source(path)?;
        self.keep_inside(Roots::on_demand(vec![source]), LOCAL_LANES, None)
    }

    fn keep_web(self: &Arc<Self>, location: &sterna_proto::web::WebLocation) -> Result<(), Error> {
        let options = web_options(&self.set.options);
        let lanes = options.connections;
        let observer = Arc::clone(self) as Arc<dyn Observer>;
        let web = Arc::new(Web::new(&options, vec![location.clone()], Some(CONTROL), observer)?);
        self.keep_inside(Arc::clone(&web) as _, lanes, Some(web))
    }

    /// Joins a sender in this process to the local end, until the session is over.
    fn keep_inside(&self, source: Arc<dyn Source>, lanes: u32, web: Option<Arc<Web>>) -> Result<(), Error> {
        let _busy = Busy::new(&self.set);
        let (settled, pool) = (Arc::new(SettledPaths::default()), BufferPool::new());
        let CopySpec { linger, dry_run, .. } = self.set.options;
        let end: Arc<dyn End> = ReplicaEnd::join(&self.set.replicas, self.replica)?;
        let sender = Sender::start(source, linger, dry_run, settled, CompressionPolicy::Never, pool, Arc::new(Silent))?;
        let sender = sender as Arc<dyn End>;
        let feeders = start_lanes(&sender, &end, lanes)?;
        let ends = InProcess { sender: Arc::clone(&sender), end, web };
        drive(&ends, self, Instant::now(), None);
        ends.web.iter().for_each(|web| web.stop());
        let text = "the session with this replica is over";
        sender.abort(Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Transfer, text).retry(Retry::After));
        feeders.into_iter().for_each(|feeder| drop(feeder.join()));
        Ok(())
    }
}

/// Session with a sender in this process.
struct InProcess {
    sender: Arc<dyn End>,
    end: Arc<dyn End>,
    web: Option<Arc<Web>>,
}

impl Driven for InProcess {
    fn is_over(&self) -> bool {
        self.end.is_over() || self.sender.is_over()
    }

    fn wait(&self, time: Duration) {
        self.end.wait_until_over(time);
    }

    fn tick(&self) {
        self.sender.tick();
        self.end.tick();
    }

    fn progress(&self) -> Option<CopyProgress> {
        let stats = |web: &Arc<Web>| LaneStats { wire_bytes_received: web.received_bytes(), ..LaneStats::default() };
        let (lanes, limits) = (self.web.iter().map(stats).collect(), self.sender.limits().now());
        Some(CopyProgress { lanes, limits, ..CopyProgress::default() })
    }

    fn abort(&self, error: Error) {
        self.sender.abort(error.clone());
        self.end.abort(error);
    }
}

/// Counts a session while it exists.
struct Busy<'a>(&'a ReplicaSet);

impl<'a> Busy<'a> {
    fn new(set: &'a ReplicaSet) -> Self {
        set.busy.fetch_add(1, Ordering::Relaxed);
        Self(set)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Release);
        self.0.replicas.wake().notify();
    }
}

/// Receives events and questions of the session with an agent.
impl CopyObserver for ReplicaWorker {
    fn event(&self, event: CopyEvent) {
        let named = |text: String| format!("{}: {text}", self.name);
        self.set.observer.event(match event {
            CopyEvent::Decision { subject, rationale } => CopyEvent::Decision { subject, rationale: named(rationale) },
            CopyEvent::LaneDown { lane, reason, again } => CopyEvent::LaneDown { lane, reason: named(reason), again },
            CopyEvent::Session(SessionEvent::Notice(text)) => CopyEvent::Session(SessionEvent::Notice(named(text))),
            other => other,
        });
    }

    fn progress(&self, progress: &CopyProgress) {
        let figures = (progress.lanes.clone(), progress.limits.clone());
        *self.set.figures[self.replica.0 as usize].lock() = figures;
    }

    fn trust(&self, remote: &sterna_proto::location::RemoteLocation, peer: &Fingerprint) -> Result<(), Error> {
        self.set.observer.trust(remote, peer)
    }

    /// The main thread detects that the user wants to stop, or that the replica is no longer needed.
    fn cancel(&self) -> &Cancel {
        &self.set.cancels[self.replica.0 as usize]
    }
}

/// Receives the events of a session with a web server.
impl Observer for ReplicaWorker {
    fn session_event(&self, event: SessionEvent) {
        if let SessionEvent::Notice(text) = event {
            self.set.observer.event(CopyEvent::Session(SessionEvent::Notice(text)));
        }
    }
}
