//! Front door of the crate: the copies of a process, and what they share.
//!
//! [`Engine::start`] checks a copy, starts it on a thread and returns a [`CopyHandle`]. The handle gives events,
//! snapshots and the outcome, and cancels the copy. The engine dials and moves bytes; it asks nobody a question except
//! through [`Trust`]. Each copy reads the clock itself.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use std::time::{Duration, Instant};
//! # use sterna_net::engine::{CopySpec, Engine, Next, Trust};
//! # fn example(identity: sterna_net::identity::Identity, trust: Arc<dyn Trust>) -> Result<(), sterna_proto::Error> {
//! let engine = Engine::new(identity, trust);
//! let source = sterna_proto::Location::parse("passes/S1A_0412.h5".as_ref())?;
//! let destination = sterna_proto::Location::parse("sterna://hub/in/".as_ref())?;
//! let copy = engine.start(CopySpec::new(vec![source], destination))?;
//! loop {
//!     match copy.next(Duration::from_millis(500)) {
//!         Next::Event(event) => println!("{event:?}"),
//!         Next::Nothing => println!("{:?}", copy.snapshot().map(|now| now.session.counters)),
//!         Next::Ended => break,
//!     }
//! }
//! println!("{} files", copy.wait().map_err(|failure| failure.error)?.done);
//! # Ok(())
//! # }
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sterna_proto::budget::Budgets;
use sterna_proto::location::RemoteLocation;
use sterna_proto::rate::{RATE_LEAST, RateContract};
use sterna_proto::session::{
    Answer, DeleteDirectories, Details, ListOptions, Listed, Overwrite, PathNumber, Query, SignedGrant,
};
use sterna_proto::{Error, ErrorKind, Location, Phase, Scope};

pub use crate::cancel::{Cancel, OnCancel};
pub use crate::client::probe::ProbeSpec;
pub use crate::client::query::Answers;
pub use crate::client::spec::{
    CopyEvent, CopyKind, CopyProgress, CopySpec, CopySummary, Granted, MEMORY_DEFAULT, PathOptions, PathPlan,
    ReplicaSummary, Trust, UnreachedPath, ViaChoice,
};
pub use crate::client::{Observed, observe_path, recorded_paths};

use crate::budget::{Ledger, Part};
use crate::client::spec::{CopyObserver, Initiator};
use crate::client::{self, PlannedCopy, query};
use crate::identity::{Fingerprint, Identity};
use crate::measure::Measurement;
use crate::measure::message::Occasion;
use crate::wake::Wake;

/// Events of a copy that wait for their reader. Reason: a display that draws five times a second; a copy of small files
/// settles some thousand files in that time and waits for the rest.
const EVENTS_MAX: usize = 1024;

/// Longest wait for an event: as good as forever, and no clock overflows.
const FOREVER: Duration = Duration::from_secs(365 * 86_400);

/// Copies of a process, and what they share: its key, its trust in agents, its path cache. Clones share all of it.
#[derive(Clone)]
pub struct Engine {
    initiator: Initiator,
    trust: Arc<dyn Trust>,
    ledger: Arc<Ledger>,
}

impl Engine {
    /// Creates an engine that remembers nothing about paths.
    pub fn new(identity: Identity, trust: Arc<dyn Trust>) -> Self {
        Self { initiator: Initiator::new(identity), trust, ledger: Arc::default() }
    }

    /// Sets the directory of the path cache: rates and transports of earlier copies, by path.
    #[must_use]
    pub fn with_path_cache(mut self, directory: PathBuf) -> Self {
        self.initiator.path_cache = Some(directory);
        self
    }

    /// Sets the grant of a transfer service: agents grant what it allows, and nothing else.
    #[must_use]
    pub fn with_grant(mut self, grant: SignedGrant) -> Self {
        self.initiator.grant = Some(Box::new(grant));
        self
    }

    /// Sets the budgets of the process: classes that share its rate and its memory ([`CopySpec::class`]). At first
    /// there is one class without limits. Earlier copies stay with the budgets that they began with.
    ///
    /// A class divides its rate among its running copies, whenever one starts or ends; a copy that cannot use its part
    /// lends nothing. It gives memory in the order in which copies start.
    #[must_use]
    pub fn with_budgets(mut self, budgets: Budgets) -> Self {
        self.ledger = Arc::new(Ledger::new(budgets));
        self
    }

    /// Checks a copy and returns its kind. Dials nothing.
    ///
    /// Errors: `Usage`, also if the class of the copy can never hold it; a source on this host that does not exist,
    /// when it is followed or taken away.
    pub fn plan(&self, spec: &CopySpec) -> Result<CopyKind, Error> {
        let kind = client::plan(spec)?.kind();
        self.ledger.check(spec, kind).map(|()| kind)
    }

    /// Lists names: those of `locations` and those below them, as far as `options` want them. All locations are at one
    /// agent, or all on this host.
    ///
    /// A path of an answer begins with the name of the agent's root, as in a location. For this host it is the path
    /// beneath the directory that holds the named file. Errors: `Usage`; the host gives no thread. All other failures
    /// are the last item of the iterator.
    pub fn list(&self, locations: &[Location], options: &ListOptions) -> Result<Answers, Error> {
        query::list(locations, options, &self.initiator, &self.trust)
    }

    /// Returns the description of one name, with its owner.
    ///
    /// Errors: as [`Engine::list`]; the name does not exist, or several match its wildcards (`Usage`).
    pub fn stat(&self, location: &Location) -> Result<Listed, Error> {
        let details = Details { owner: true, ..Details::default() };
        let mut answers =
            self.list(std::slice::from_ref(location), &ListOptions { details, ..ListOptions::new(Some(0)) })?;
        let usage = || {
            let text = format!("{location} matches several names: name one");
            Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text)
        };
        match (answers.next(), answers.next()) {
            (Some(Ok(Answer::Listed(listed))), None) => Ok(*listed),
            (Some(Ok(Answer::Failed(error)) | Err(error)), _) | (_, Some(Err(error))) => Err(error),
            (Some(Ok(Answer::Listed(_))), Some(_)) => Err(usage()),
            (None | Some(Ok(Answer::Deleted { .. })), _) => Err(crate::internal("a list without an answer")),
        }
    }

    /// Deletes names at one agent, which must grant the right to manage. Answers name each deleted name; they are
    /// durable.
    ///
    /// Errors: as [`Engine::list`]. Paths have no wildcards.
    pub fn delete(&self, locations: &[Location], directories: DeleteDirectories) -> Result<Answers, Error> {
        let (agent, paths) = query::at_one_agent(locations)?;
        query::start(&agent, Query::Delete { paths, directories }, &self.initiator, &self.trust)
    }

    /// Renames a file or directory within a root of one agent, which must grant the right to manage. Waits for the end.
    ///
    /// Errors: as [`Engine::list`]; `NotFound`, `Exists`, `Denied`.
    pub fn rename(&self, from: &Location, to: &Location, overwrite: Overwrite) -> Result<(), Error> {
        let (agent, paths) = query::at_one_agent(&[from.clone(), to.clone()])?;
        let [from, to] = <[Vec<u8>; 2]>::try_from(paths).map_err(|_| crate::internal("a rename without two paths"))?;
        let query = Query::Rename { from, to, overwrite };
        match query::start(&agent, query, &self.initiator, &self.trust)?.next() {
            Some(Err(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Starts a copy in a separate thread (`copy`).
    ///
    /// Errors: as [`Engine::plan`]; the other copies of the class have its memory or its rate (`Limit`); the host gives
    /// no thread. All other failures are the outcome of [`CopyHandle::wait`].
    pub fn start(&self, spec: CopySpec) -> Result<CopyHandle, Error> {
        let planned = client::plan(&spec)?;
        self.launch(spec, planned, self.initiator.clone())
    }

    /// Starts a probe: a copy of generated data, which is verified and then discarded. It has the events, the progress
    /// (with the counters of each lane) and the summary (with the limits) of a copy.
    ///
    /// The path cache is neither used nor updated. A session that the agent loses ends the probe. Errors: `Usage`; as
    /// [`Engine::start`]. An agent of an earlier release refuses a probe with `Protocol`.
    pub fn probe(&self, spec: ProbeSpec) -> Result<CopyHandle, Error> {
        let (spec, planned) = spec.plan()?;
        self.launch(spec, planned, Initiator { path_cache: None, ..self.initiator.clone() })
    }

    /// Starts measurements with an agent, for the path doctor. `local`: address of this host, which selects the
    /// network.
    ///
    /// Errors: `Unreachable`, `Untrusted`; `Busy`: the agent takes part in another measurement; `Protocol`: no agent,
    /// or one of an earlier release; `Denied`.
    pub fn measure(
        &self,
        agent: &RemoteLocation,
        local: Option<IpAddr>,
        cancel: &Cancel,
    ) -> Result<Measurement, Error> {
        let proof = (&self.initiator.identity, &self.trust);
        Measurement::connect(agent, local, proof, Occasion::Examination, cancel)
    }

    /// Starts measurements of a monitor with an agent: they end if an examination asks the agent for its place.
    ///
    /// Errors: as [`Engine::measure`].
    pub fn monitor(&self, agent: &RemoteLocation, cancel: &Cancel) -> Result<Measurement, Error> {
        let proof = (&self.initiator.identity, &self.trust);
        Measurement::connect(agent, None, proof, Occasion::Monitoring, cancel)
    }

    fn launch(&self, mut spec: CopySpec, planned: PlannedCopy, initiator: Initiator) -> Result<CopyHandle, Error> {
        let part = self.ledger.admit(&spec, planned.kind())?;
        spec.memory = part.memory();
        for (path, options) in spec.paths.iter_mut().enumerate() {
            // A specification with more paths is wrong usage.
            let number = PathNumber(u8::try_from(path).unwrap_or(u8::MAX));
            options.contract = part.contract(number, None).unwrap_or(options.contract);
        }
        let rated_paths = match planned.kind() {
            CopyKind::Agent => spec.paths.len(),
            CopyKind::ThirdParty => 1,
            CopyKind::Direct | CopyKind::Replicas => 0,
        };
        let running = Arc::new(Running::new(Arc::clone(&self.trust), spec.cancel.child(), Some(part)));
        let observed = Arc::clone(&running);
        let thread = thread::Builder::new().name("copy".to_owned()).spawn(move || {
            let ending = Ending(Arc::clone(&observed));
            let outcome = client::run(planned, &spec, &initiator, &(observed as Arc<dyn CopyObserver>));
            drop(ending);
            outcome
        });
        let thread = thread.map_err(|e| crate::no_thread("start the thread of a copy", e))?;
        Ok(CopyHandle { reader: Reader(running), thread, rated_paths })
    }
}

/// A copy that ended with an error.
#[derive(Debug)]
pub struct CopyFailure {
    /// Reason.
    pub error: Error,
    /// Files that were copied before it; `None` when the copy did not start.
    pub summary: Option<Box<CopySummary>>,
}

/// Next event of a copy.
#[derive(Debug)]
pub enum Next {
    /// An event.
    Event(CopyEvent),
    /// No event in the given time.
    Nothing,
    /// The copy has ended: [`CopyHandle::wait`] returns at once.
    Ended,
}

/// A copy that runs, or has ended. Dropped, it lets the copy run on without a reader of its events.
///
/// The copy waits for a reader that is [`EVENTS_MAX`] events behind: call [`CopyHandle::next`] until it returns
/// [`Next::Ended`], or [`CopyHandle::wait`], which discards events.
pub struct CopyHandle {
    reader: Reader,
    thread: JoinHandle<Result<CopySummary, Error>>,
    /// Number of paths whose rate can be changed.
    rated_paths: usize,
}

impl CopyHandle {
    /// Returns the next event, in order, or waits for one for `time`.
    pub fn next(&self, time: Duration) -> Next {
        let running = &self.reader.0;
        let until = Instant::now().checked_add(time);
        loop {
            let seen = running.changed.seen();
            let mut events = running.events.lock();
            let next = events.queue.pop_front();
            let (was_full, have_ended) = (events.queue.len() + 1 >= EVENTS_MAX, events.have_ended);
            drop(events);
            match next {
                Some(event) => {
                    if was_full {
                        running.changed.notify();
                    }
                    return Next::Event(event);
                }
                None if have_ended => return Next::Ended,
                None if until.is_some_and(|until| until <= Instant::now()) => return Next::Nothing,
                None => running.changed.wait_to(seen, until),
            }
        }
    }

    /// Returns the latest progress; `None` before the first session begins. The copy updates it about 20 times a
    /// second while data moves, and 4 times a second otherwise.
    pub fn snapshot(&self) -> Option<CopyProgress> {
        self.reader.0.progress.lock().clone()
    }

    /// Replaces the rate contract of a path, numbered from 0 as in [`CopySpec::paths`]. The sending end follows within
    /// some 50 ms and a one-way delay, also when it is an agent (while no data moves, within some 0.3 s; in a
    /// third-party copy 1.5 s). Measurements of the path are kept. A session that starts later begins with it.
    ///
    /// The kernel keeps the departure time of the segment that a TCP lane sent last. After a very low rate, the lane
    /// sends at the new one only then: after at most 2.2 s for 64 kbit/s over six lanes at MTU 1500.
    ///
    /// Errors: `Usage`: the copy has no such path, its rates are given at its start only (several replicas, or no agent
    /// among the ends), or the minimum or the target is above the ceiling.
    pub fn set_rate(&self, path: PathNumber, contract: RateContract) -> Result<(), Error> {
        let usage = |text: String| Err(Error::usage(&[], text));
        if usize::from(path.0) >= self.rated_paths {
            return match self.rated_paths {
                0 => usage("set a rate: the rates of a copy of this kind are given at its start only".to_owned()),
                paths => usage(format!("set the rate of path {}: the copy has {paths}, numbered from 0", path.0)),
            };
        }
        for (what, rate) in [("minimum", contract.minimum), ("target", contract.target)] {
            if let (Some(rate), Some(ceiling)) = (rate, contract.ceiling)
                && rate > ceiling
            {
                return usage(format!("set a rate: the {what} {rate} is above the ceiling {ceiling}"));
            }
        }
        if let Some(rate) = contract.ceiling.filter(|rate| *rate < RATE_LEAST) {
            return usage(format!("set a rate of {rate}: the least is {RATE_LEAST}, to detect whether the path is up"));
        }
        let running = &self.reader.0;
        let contracts = {
            let mut contracts = running.contracts.lock();
            contracts.insert(path, contract);
            contracts.clone()
        };
        running.part.lock().iter().for_each(|part| part.handle_contracts(&contracts));
        Ok(())
    }

    /// Stops the copy. What has arrived stays in the journal of the receiver, and the same copy resumes from it.
    pub fn cancel(&self) {
        self.reader.0.cancel.cancel();
    }

    /// Waits for the end of the copy and discards the events that were not read.
    ///
    /// Errors: nothing was copied (no agent, not trusted), the copy was cancelled, or the session ended early. Files
    /// that failed by themselves are in the summary.
    pub fn wait(self) -> Result<CopySummary, CopyFailure> {
        while !matches!(self.next(FOREVER), Next::Ended) {}
        let outcome = self.thread.join().unwrap_or_else(|_| Err(crate::internal("the thread of a copy panicked")));
        outcome.map_err(|error| CopyFailure { error, summary: self.reader.0.cut_short.lock().take().map(Box::new) })
    }
}

/// State that a copy and its handle share.
struct Running {
    events: Mutex<Events>,
    /// Notified when there are events again or room for them, and at the cancellation.
    changed: Arc<Wake>,
    progress: Mutex<Option<CopyProgress>>,
    cut_short: Mutex<Option<CopySummary>>,
    /// Part of the cancellation of the specification; set by the handle.
    cancel: Cancel,
    _wakes: OnCancel,
    /// Rate contracts of paths that the handle has changed.
    contracts: Mutex<BTreeMap<PathNumber, RateContract>>,
    /// Part of the copy in the budgets, until the copy has ended.
    part: Mutex<Option<Part>>,
    trust: Arc<dyn Trust>,
}

impl Running {
    fn new(trust: Arc<dyn Trust>, cancel: Cancel, part: Option<Part>) -> Self {
        let changed = Arc::new(Wake::default());
        let cancelled = Arc::clone(&changed);
        Self {
            events: Mutex::default(),
            changed,
            progress: Mutex::default(),
            cut_short: Mutex::default(),
            _wakes: cancel.on_cancel(move || cancelled.notify()),
            cancel,
            contracts: Mutex::default(),
            part: Mutex::new(part),
            trust,
        }
    }
}

/// Events that wait for their reader.
#[derive(Default)]
struct Events {
    queue: VecDeque<CopyEvent>,
    /// True once the copy has reported its last event.
    have_ended: bool,
    /// True once nobody reads events any more.
    are_unread: bool,
}

/// The one reader of the events. Dropped, it lets the copy run on without one.
struct Reader(Arc<Running>);

impl Drop for Reader {
    fn drop(&mut self) {
        let mut events = self.0.events.lock();
        events.are_unread = true;
        events.queue.clear();
        drop(events);
        self.0.changed.notify();
    }
}

/// Marks the end of the events, also when the thread of the copy panics.
struct Ending(Arc<Running>);

impl Drop for Ending {
    fn drop(&mut self) {
        // A handle may be kept long after the end of its copy.
        drop(self.0.part.lock().take());
        self.0.events.lock().have_ended = true;
        self.0.changed.notify();
    }
}

impl CopyObserver for Running {
    /// Waits while the reader is [`EVENTS_MAX`] events behind, unless the copy is cancelled: a copy ends although
    /// nobody reads.
    fn event(&self, event: CopyEvent) {
        loop {
            let seen = self.changed.seen();
            let mut events = self.events.lock();
            if events.are_unread {
                return;
            }
            if events.queue.len() < EVENTS_MAX || self.cancel.is_cancelled() {
                events.queue.push_back(event);
                break;
            }
            drop(events);
            self.changed.wait_to(seen, None);
        }
        self.changed.notify();
    }

    fn progress(&self, progress: &CopyProgress) {
        *self.progress.lock() = Some(progress.clone());
    }

    fn trust(&self, remote: &RemoteLocation, peer: &Fingerprint) -> Result<(), Error> {
        self.trust.check(remote, peer, &self.cancel)
    }

    fn expected_keys(&self, remote: &RemoteLocation, beside: &Fingerprint) -> Result<Vec<Fingerprint>, Error> {
        self.trust.expected_keys(remote, beside)
    }

    fn cut_short(&self, summary: CopySummary) {
        *self.cut_short.lock() = Some(summary);
    }

    fn contract(&self, path: PathNumber) -> Option<RateContract> {
        let asked = self.contracts.lock().get(&path).copied();
        self.part.lock().as_ref().map_or(asked, |part| part.contract(path, asked))
    }

    fn cancel(&self) -> &Cancel {
        &self.cancel
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::session::SessionEvent;

    struct Anybody;

    impl Trust for Anybody {
        fn check(&self, _: &RemoteLocation, _: &Fingerprint, _: &Cancel) -> Result<(), Error> {
            Ok(())
        }

        fn expected_keys(&self, _: &RemoteLocation, _: &Fingerprint) -> Result<Vec<Fingerprint>, Error> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn a_cancelled_copy_ends_although_nobody_reads_its_events() {
        let running = Arc::new(Running::new(Arc::new(Anybody), Cancel::default(), None));
        let (ended, end) = channel();
        let copy = Arc::clone(&running);
        let thread = thread::spawn(move || {
            for number in 0..2 * EVENTS_MAX {
                copy.event(CopyEvent::Session(SessionEvent::Notice(number.to_string())));
            }
            let _ = ended.send(());
        });
        while running.events.lock().queue.len() < EVENTS_MAX {
            thread::yield_now();
        }
        assert!(end.try_recv().is_err(), "the copy waits for its reader");
        running.cancel.cancel();
        end.recv_timeout(FOREVER_IN_A_TEST).expect("the copy has ended");
        thread.join().unwrap();
    }

    /// Longest wait of a test for a condition.
    const FOREVER_IN_A_TEST: Duration = Duration::from_secs(120);
}
