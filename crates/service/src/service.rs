//! Service: the state that commands of all interfaces use, and their way to the runner.
//!
//! Shares its state with the runner, which owns the order of events. Refuses to speak HTTP.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use sterna_net::identity::Fingerprint;
use sterna_proto::ByteCount;
use sterna_sched::queue::FileNumber;
use sterna_sched::replica::{SourceStats, Strategy, Wanted, rank};
use sterna_sched::scheduler::{Limits, Link, Name, QueuedOnLink, Scheduler, Shares, Waits};
use sterna_sched::statistics::Statistics;
use sterna_sched::time::UnixTime;
use tokio::sync::{MutexGuard, Notify, mpsc};
use uuid::Uuid;

use crate::job::{File, JobOptions};
use crate::paths::{PathEnds, PathRecord};
use crate::settings::Applied;
use crate::store::Store;
use crate::worker::Assignment;

/// Returns the present time.
pub fn now() -> UnixTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixTime(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Returns the link of a file.
pub fn link_of(source_endpoint: &str, destination_endpoint: &str) -> Link {
    Link { source: source_endpoint.into(), destination: destination_endpoint.into() }
}

/// Transfer under way.
pub(crate) struct Running {
    pub(crate) file: File,
    pub(crate) options: Arc<JobOptions>,
    /// Worker that runs it.
    pub(crate) worker: Arc<str>,
    /// Agents that take part in it.
    pub(crate) assignment: Option<Assignment>,
    pub(crate) bytes: u64,
    /// It was cancelled; its worker has not reported the end yet.
    pub(crate) is_cancelled: bool,
    /// The other agent has another address now: a failure starts it again, and is no failed attempt.
    pub(crate) has_moved: bool,
}

/// Order for the runner.
pub(crate) enum Order {
    /// These files wait now.
    Waiting(Vec<File>),
    /// These files were cancelled, or are held back.
    Cancelled(Vec<FileNumber>),
    /// The priority of the files of this job has changed.
    Reordered(Uuid),
    /// The upload of this job is complete: its files can start.
    Uploaded(Uuid),
    /// The upload of this job has ended early: the job goes.
    Abandoned(Uuid),
}

/// State that the runner and the interfaces share.
pub(crate) struct Shared {
    pub(crate) scheduler: Mutex<Scheduler>,
    pub(crate) statistics: Mutex<Statistics>,
    pub(crate) running: Mutex<HashMap<FileNumber, Running>>,
    pub(crate) applied: Mutex<Arc<Applied>>,
    /// Jobs whose files still come, or that go because their upload ended early. Their files do not start.
    pub(crate) uploads: Mutex<BTreeSet<Uuid>>,
    pub(crate) agents: Mutex<Vec<AgentState>>,
    pub(crate) paths: Mutex<BTreeMap<PathEnds, PathRecord>>,
}

/// Agent that is connected.
#[derive(Clone, Debug)]
pub struct AgentState {
    /// Key.
    pub agent: Fingerprint,
    /// Release.
    pub release: String,
    /// Address at which other agents reach it.
    pub address: Option<String>,
    /// Number of transfers that it takes part in.
    pub transfers: usize,
}

/// State of a link.
pub struct LinkState {
    /// Maximum of transfers.
    pub most: usize,
    /// Files that wait and that are under way.
    pub queued: QueuedOnLink,
    /// Statistics of the last hour.
    pub stats: SourceStats,
}

/// Service.
pub struct Service {
    store: Arc<dyn Store>,
    pub(crate) shared: Shared,
    orders: mpsc::UnboundedSender<Order>,
    /// Files may have been added to the store.
    pub(crate) added: Notify,
    /// Held while an operator changes settings.
    operators: tokio::sync::Mutex<()>,
    /// Name of this host, in replies.
    host: String,
}

impl Service {
    /// Creates a service on a store. The runner receives its orders.
    pub(crate) fn new(store: Arc<dyn Store>, host: String) -> (Arc<Self>, mpsc::UnboundedReceiver<Order>) {
        let (orders, received) = mpsc::unbounded_channel();
        let shared = Shared {
            scheduler: Mutex::new(Scheduler::new(Limits::default(), Shares::default())),
            statistics: Mutex::default(),
            running: Mutex::default(),
            applied: Mutex::default(),
            uploads: Mutex::default(),
            agents: Mutex::default(),
            paths: Mutex::default(),
        };
        let operators = tokio::sync::Mutex::default();
        (Arc::new(Self { store, shared, orders, added: Notify::new(), operators, host }), received)
    }

    /// Returns the store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns the name of this host.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Reports that files were added to the store.
    pub(crate) fn handle_added(&self) {
        self.added.notify_one();
    }

    /// Reports that files wait which the runner may have read in another state.
    pub(crate) fn handle_waiting(&self, files: Vec<File>) {
        let _ = self.orders.send(Order::Waiting(files));
    }

    /// Waits until no other operator changes settings.
    pub(crate) async fn operator_turn(&self) -> MutexGuard<'_, ()> {
        self.operators.lock().await
    }

    /// Keeps the files of a job from starting, until its upload has ended.
    pub(crate) fn handle_upload(&self, job: Uuid) {
        self.shared.uploads.lock().insert(job);
    }

    /// Reports that the upload of a job is complete.
    pub(crate) fn handle_uploaded(&self, job: Uuid) {
        self.shared.uploads.lock().remove(&job);
        let _ = self.orders.send(Order::Uploaded(job));
    }

    /// Reports that the upload of a job has ended early.
    pub(crate) fn handle_abandoned(&self, job: Uuid) {
        let _ = self.orders.send(Order::Abandoned(job));
    }

    /// Replaces the settings.
    pub(crate) fn apply(&self, limits: Limits, shares: Shares, applied: Applied) {
        let banned: Vec<Name> = applied.bans.keys().map(|endpoint| endpoint.as_str().into()).collect();
        *self.shared.applied.lock() = Arc::new(applied);
        let mut scheduler = self.shared.scheduler.lock();
        scheduler.set_limits(limits);
        scheduler.set_shares(shares);
        scheduler.set_bans(&banned);
        drop(scheduler);
        self.added.notify_one();
    }

    /// Returns the settings.
    pub fn applied(&self) -> Arc<Applied> {
        Arc::clone(&self.shared.applied.lock())
    }

    /// Reports that files were cancelled, or are held back.
    pub(crate) fn handle_cancelled(&self, files: Vec<FileNumber>) {
        // The process is ending if nobody receives; the store has the change.
        let _ = self.orders.send(Order::Cancelled(files));
    }

    /// Reports that the priority of a job has changed.
    pub(crate) fn handle_reordered(&self, job: Uuid) {
        let _ = self.orders.send(Order::Reordered(job));
    }

    /// Returns the agents that are connected, by key.
    pub fn agents(&self) -> Vec<AgentState> {
        self.shared.agents.lock().clone()
    }

    /// Returns the measurements of the paths between agents.
    pub fn paths(&self) -> BTreeMap<PathEnds, PathRecord> {
        self.shared.paths.lock().clone()
    }

    /// Returns the numbers of files that wait and that are under way.
    pub fn counts(&self) -> (usize, usize) {
        self.shared.scheduler.lock().counts()
    }

    /// Returns the bytes that a transfer under way has moved; `None`: it is not under way.
    pub fn progress(&self, file: FileNumber) -> Option<u64> {
        self.shared.running.lock().get(&file).map(|running| running.bytes)
    }

    /// Returns the links that have files, each with its maximum of transfers.
    pub fn links(&self) -> BTreeMap<Link, usize> {
        self.shared.scheduler.lock().links()
    }

    /// Returns the states of the links that have files.
    pub fn link_states(&self) -> Vec<(Link, LinkState)> {
        let (links, at) = (self.links(), now());
        let statistics = self.shared.statistics.lock();
        let scheduler = self.shared.scheduler.lock();
        let state = |(link, most): (Link, usize)| {
            let state = LinkState { most, queued: scheduler.queued(&link), stats: statistics.of(&link, at) };
            (link, state)
        };
        links.into_iter().map(state).collect()
    }

    /// Returns the reason why a file waits; `None`: it does not wait.
    pub fn why(&self, file: &File) -> Option<Waits> {
        let link = link_of(&file.new.source_endpoint, &file.new.destination_endpoint);
        let rate = self.shared.statistics.lock().of(&link, now()).throughput;
        self.shared.scheduler.lock().why(file.number, rate, now())
    }

    /// Chooses among replicas of an entry, for an activity of a VO. Returns the index of the best one, and the reason.
    pub(crate) fn choose(
        &self,
        strategy: Strategy,
        size: Option<u64>,
        (vo, activity): (&str, &str),
        links: &[Link],
    ) -> (usize, String) {
        let statistics = self.shared.statistics.lock();
        let scheduler = self.shared.scheduler.lock();
        let at = now();
        let stats: Vec<_> = links
            .iter()
            .map(|link| {
                let mut stats = statistics.of(link, at);
                let queued = scheduler.queued(link);
                stats.queued_files = queued.files;
                stats.pending = queued.pending;
                stats.is_being_tried = stats.ended_files == 0 && queued.files + queued.active > 0;
                stats
            })
            .collect();
        let wanted = Wanted { size: size.map(ByteCount), weight: scheduler.weight(&vo.into(), &activity.into()) };
        let ranking = rank(strategy, &wanted, &stats);
        (ranking.order.first().copied().unwrap_or(0), ranking.rationale)
    }
}
