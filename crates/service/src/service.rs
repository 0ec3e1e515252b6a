//! Service: the state that commands of all interfaces use, and their way to the runner.
//!
//! Shares its state with the runner, which owns the order of events. Refuses to speak HTTP.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use sterna_net::identity::Fingerprint;
use sterna_proto::{BitRate, ByteCount, Error, ErrorKind};
use sterna_sched::queue::FileNumber;
use sterna_sched::replica::{Candidate, Placed, Ranking, SourceStats, Strategy, Wanted, rank, rank_free};
use sterna_sched::scheduler::{QueuedOnLink, Scheduler};
use sterna_sched::settings::{Limits, Link, Name, Shares};
use sterna_sched::statistics::{Arrived, PERIOD, Statistics};
use sterna_sched::time::UnixTime;
use sterna_sched::why::Why;
use tokio::sync::{MutexGuard, Notify, mpsc};
use tokio::task::AbortHandle;
use uuid::Uuid;

use crate::endpoint::site_of;
use crate::job::{File, JobOptions, Prefix};
use crate::listing::{Batch, ListingPhase, ListingState};
use crate::paths::{PathEnds, PathRecord};
use crate::settings::Applied;
use crate::store::{Outcome, Store};
use crate::worker::Assignment;

/// Maximum number of outcomes that are read from the store at the start. Reason: some 10 MB, for less than a second.
/// The means of fewer outcomes are means all the same.
const OUTCOMES_READ_MAX: u32 = 50_000;

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
    /// Reason to stop, which its worker has received; `None`: it goes on. The worker has not reported the end yet.
    pub(crate) stop: Option<Stop>,
}

/// Reason why a transfer stops. A cancellation replaces a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The file was cancelled.
    Cancelled,
    /// The other agent has another address now: the transfer starts again, and that is no failed attempt.
    Moved,
}

/// Order for the runner.
pub(crate) enum Order {
    /// These files wait now.
    Waiting(Vec<File>),
    /// These files were cancelled, or are held back.
    Cancelled(Vec<FileNumber>),
    /// This job was cancelled: its prefixes are not listed any more.
    JobCancelled(Uuid),
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
    /// Prefixes whose listing has not ended, by number.
    pub(crate) listings: Mutex<BTreeMap<u64, Listing>>,
}

/// Listing of a prefix: under way, or waiting.
pub(crate) struct Listing {
    pub(crate) prefix: Arc<Prefix>,
    /// Phase, for the interfaces.
    pub(crate) phase: ListingPhase,
    /// Number of files that the present or last run has found.
    pub(crate) found: Arc<AtomicU64>,
    /// Number of runs that ended with the connection of their agent.
    pub(crate) losses: u32,
    /// Run; `None`: it waits.
    pub(crate) run: Option<ListingRun>,
}

/// Run of a listing.
pub(crate) struct ListingRun {
    pub(crate) id: Uuid,
    /// Task that adds the files to the job.
    pub(crate) task: AbortHandle,
    /// Worker that lists, and the way of its batches to the task; `None`: this process lists, or the worker is away.
    pub(crate) at: Option<(Arc<str>, mpsc::Sender<Batch>)>,
}

impl Drop for ListingRun {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Listing {
    /// Creates one that waits.
    pub(crate) fn new(prefix: Prefix) -> Self {
        let (prefix, found) = (Arc::new(prefix), Arc::default());
        Self { prefix, phase: ListingPhase::Queued, found, losses: 0, run: None }
    }

    /// Returns true if this run is under way.
    pub(crate) fn is_run(&self, id: Uuid) -> bool {
        self.run.as_ref().is_some_and(|run| run.id == id)
    }

    /// Returns the prefix, and the way of batches that a worker has found in this run.
    pub(crate) fn batches_of(&self, worker: &Arc<str>, id: Uuid) -> Option<(u64, mpsc::Sender<Batch>)> {
        let (at, batches) = self.run.as_ref().filter(|run| run.id == id)?.at.as_ref()?;
        (at == worker).then(|| (self.prefix.number, batches.clone()))
    }
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
            listings: Mutex::default(),
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
        scheduler.set_shares(shares, now());
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

    /// Reports that a job was cancelled with these files.
    pub(crate) fn handle_job_cancelled(&self, job: Uuid, files: Vec<FileNumber>) {
        let _ = self.orders.send(Order::JobCancelled(job));
        self.handle_cancelled(files);
    }

    /// Returns the states of the listings of a job.
    pub fn listings(&self, job: Uuid) -> Vec<ListingState> {
        let listings = self.shared.listings.lock();
        let of_job = listings.values().filter(|listing| listing.prefix.job == job);
        of_job.map(|one| ListingState::new(&one.prefix, one.phase.clone(), &one.found)).collect()
    }

    /// Reports that the priority of a job has changed.
    pub(crate) fn handle_reordered(&self, job: Uuid) {
        let _ = self.orders.send(Order::Reordered(job));
    }

    /// Gives the statistics the outcomes of the last hour in the store, so that a restart does not forget which links
    /// are good.
    pub(crate) async fn read_outcomes(&self) -> Result<(), Error> {
        let outcomes = self.store.outcomes(now() - PERIOD, OUTCOMES_READ_MAX).await?;
        outcomes.iter().for_each(|outcome| self.handle_outcome(outcome));
        Ok(())
    }

    /// Adds an outcome to the statistics. One that was cancelled says nothing about its link.
    pub(crate) fn handle_outcome(&self, outcome: &Outcome) {
        let Outcome { source_endpoint, destination_endpoint, started, ended, moved, failure } = outcome;
        let link = link_of(source_endpoint, destination_endpoint);
        let mut statistics = self.shared.statistics.lock();
        match failure {
            None => {
                let under_way = started.map_or(moved.time(), |started| ended.since(started));
                let arrived = Arrived { size: ByteCount(moved.bytes), under_way, moving: moved.time() };
                statistics.handle_arrived(&link, &arrived, *ended);
            }
            Some(failure) if failure.error_kind() == ErrorKind::Cancelled => {}
            Some(_) => statistics.handle_failed(&link, *ended),
        }
    }

    /// Gives the scheduler the measured rates of files, which decide when files with a deadline must start.
    pub(crate) fn refresh_file_rates(&self) {
        let (mut statistics, at) = (self.shared.statistics.lock(), now());
        self.shared.scheduler.lock().set_file_rates(|link| statistics.of(link, at).file_throughput);
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
            let state = LinkState { most, queued: scheduler.queued(&link), stats: statistics.latest(&link, at) };
            (link, state)
        };
        links.into_iter().map(state).collect()
    }

    /// Returns the reason why a file waits, and its place; `None`: it does not wait.
    pub fn why(&self, file: &File) -> Option<Why> {
        let link = link_of(&file.new.source_endpoint, &file.new.destination_endpoint);
        let rate = self.shared.statistics.lock().latest(&link, now()).throughput;
        self.shared.scheduler.lock().why(file.number, rate, now())
    }

    /// Ranks the replicas of an entry, for an activity of a VO. `placed`: files that no queue has yet.
    pub(crate) fn rank(
        &self,
        strategy: Strategy,
        size: Option<u64>,
        of: (&str, &str),
        links: &[Link],
        placed: &Placed,
    ) -> Ranking {
        let (wanted, candidates) = self.candidates(size, of, links, placed);
        rank(strategy, &wanted, &candidates)
    }

    /// Chooses the replica that follows a file among those in reserve, and adds it to the files that were placed.
    /// Returns it with the reason; `None`: there is none.
    pub(crate) fn successor(
        &self,
        file: &File,
        reserves: &[File],
        which: Reserves,
        placed: &mut Placed,
    ) -> Option<(FileNumber, String)> {
        let link = |file: &File| link_of(&file.new.source_endpoint, &file.new.destination_endpoint);
        let links: Vec<Link> = reserves.iter().map(link).collect();
        let strategy = file.new.strategy.as_deref().and_then(Strategy::by_name).unwrap_or_default();
        let of = (file.vo.as_str(), file.new.activity.as_str());
        let (wanted, candidates) = self.candidates(file.new.size, of, &links, placed);
        let ranking = match which {
            Reserves::All => rank(strategy, &wanted, &candidates),
            Reserves::Free => rank_free(strategy, &wanted, &candidates)?,
        };
        let best = ranking.order.first().copied()?;
        placed.add(links.get(best)?, &wanted);
        let next = reserves.get(best)?;
        Some((next.number, format!("{} is next; {}", name_of(next), ranking.rationale)))
    }

    /// Returns a file of this size and activity as choices see it.
    pub(crate) fn wanted(&self, size: Option<u64>, (vo, activity): (&str, &str)) -> Wanted {
        let weight = self.shared.scheduler.lock().weight(&vo.into(), &activity.into());
        Wanted { size: size.map(ByteCount), weight }
    }

    fn candidates(
        &self,
        size: Option<u64>,
        of: (&str, &str),
        links: &[Link],
        placed: &Placed,
    ) -> (Wanted, Vec<Candidate>) {
        let wanted = self.wanted(size, of);
        let mut statistics = self.shared.statistics.lock();
        let scheduler = self.shared.scheduler.lock();
        let (applied, paths) = (self.applied(), self.shared.paths.lock());
        let at = now();
        let candidate = |link: &Link| {
            let queued = scheduler.queued(link);
            let mut stats = SourceStats {
                queued_files: queued.files,
                active: queued.active,
                pending: queued.pending,
                path_rate: path_rate(link, &applied, &paths),
                obstacle: scheduler.obstacle(link, at),
                ..statistics.of(link, at)
            };
            placed.add_to(link, &mut stats);
            Candidate { name: Arc::clone(&link.source), stats }
        };
        let candidates = links.iter().map(candidate).collect();
        (wanted, candidates)
    }
}

/// Replicas in reserve among which a successor is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserves {
    /// All.
    All,
    /// Those without an obstacle.
    Free,
}

/// Returns the name of a replica in the reason of a decision.
pub(crate) fn name_of(file: &File) -> String {
    format!("{} (file {})", file.new.source_endpoint, file.number.0)
}

/// Returns the best rate that the agents of both sites of a link have recorded; `None`: an end is at no agents, or none
/// of their pairs has a record.
fn path_rate(link: &Link, applied: &Applied, paths: &BTreeMap<PathEnds, PathRecord>) -> Option<BitRate> {
    let agents = |endpoint: &Name| Some(applied.sites.get(site_of(endpoint)?)?.agents.as_slice());
    let (sources, destinations) = (agents(&link.source)?, agents(&link.destination)?);
    let pairs = sources.iter().flat_map(|source| destinations.iter().map(move |destination| (source, destination)));
    let ends = pairs.map(|(source, destination)| PathEnds { source: *source, destination: *destination });
    let best = ends.filter_map(|ends| paths.get(&ends)?.best_bytes_per_s).max_by(f64::total_cmp)?;
    Some(BitRate((best * 8.0) as u64))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sterna_proto::{Phase, Scope};
    use sterna_sched::state::{FileState, JobKind};

    use super::*;
    use crate::job::{Failure, Moved, NewFile, NewJob, Owner};
    use crate::site::Site;
    use crate::store::{Change, Event, FileFilter, SqliteStore};

    /// Returns a service on a new store, with the directory of the store.
    async fn service() -> (Arc<Service>, tempfile::TempDir) {
        let directory = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&directory.path().join("sterna.db")).await.unwrap();
        (Service::new(store, "host".to_owned()).0, directory)
    }

    fn job() -> NewJob {
        NewJob {
            id: Uuid::from_u128(1),
            kind: JobKind::Files,
            owner: Owner { credential: "c".to_owned(), name: "/CN=one".to_owned(), vo: "vo".to_owned() },
            priority: 3,
            submitted: now(),
            expires: None,
            options: JobOptions::default(),
            metadata: None,
            idempotency_key: None,
        }
    }

    #[tokio::test]
    async fn a_restart_does_not_forget_the_statistics_of_links() {
        let (first, directory) = service().await;
        let file = |entry| NewFile {
            entry,
            source: format!("mock://a/{entry}"),
            destination: format!("mock://b/{entry}"),
            source_endpoint: "mock://a".to_owned(),
            destination_endpoint: "mock://b".to_owned(),
            ..NewFile::default()
        };
        first.store().submit(job(), (0..4).map(file).collect(), true).await.unwrap();
        let files = first.store().files(FileFilter::default()).await.unwrap();
        let at = now();
        let moved = Moved { bytes: 10_000_000, time_ms: 1000, ..Moved::default() };
        let fails = |kind| {
            let failure = Failure::from(&sterna_proto::Error::new(kind, Scope::Source, Phase::Transfer, "text"));
            Event::Fails { failure, moved: Moved::default(), successor: None }
        };
        // Two arrive within 4 s, one fails, and the worker of the last reports that it was cancelled.
        let arrives = Event::Finishes { moved: moved.clone() };
        let ends = [arrives.clone(), arrives, fails(ErrorKind::NotFound), fails(ErrorKind::Cancelled)];
        for (file, end) in files.iter().zip(ends) {
            let starts = Event::Starts { worker: "w".to_owned(), rationale: String::new() };
            let change = |from, what, at| Change { file: file.number, from, of_worker: None, what, decision: None, at };
            let changes = vec![
                change(FileState::Waiting, starts, at - Duration::from_secs(4)),
                change(FileState::Active, end, at),
            ];
            first.store().change(changes).await.unwrap();
        }
        drop(first);
        let store = SqliteStore::open(&directory.path().join("sterna.db")).await.unwrap();
        let again = Service::new(store, "host".to_owned()).0;
        let link = link_of("mock://a", "mock://b");
        assert_eq!(again.shared.statistics.lock().of(&link, now()), SourceStats::default());
        again.read_outcomes().await.unwrap();
        let stats = again.shared.statistics.lock().of(&link, now());
        assert_eq!((stats.ended_files, stats.success), (3, Some(2.0 / 3.0)));
        assert_eq!(stats.throughput, Some(BitRate(40_000_000)), "20 MB in 4 s");
        assert_eq!(stats.file_throughput, Some(BitRate(80_000_000)), "10 MB in 1 s each");
    }

    #[tokio::test]
    async fn the_best_source_without_transfers_is_that_with_the_best_recorded_path() {
        let (service, _directory) = service().await;
        let agent = |number| Fingerprint([number; 32]);
        let site = |agents: &[u8]| Site { agents: agents.iter().map(|one| agent(*one)).collect(), access: Vec::new() };
        let sites = [("one", site(&[1, 2])), ("two", site(&[3])), ("to", site(&[8, 9])), ("empty", site(&[]))];
        let sites = sites.into_iter().map(|(name, site)| (name.to_owned(), site)).collect();
        let applied = Applied { sites, ..Applied::default() };
        // From the first site 1 and 20 MB/s, from the second one 5 MB/s; a path in the other direction does not count.
        let mut paths = BTreeMap::new();
        for (source, destination, rate) in
            [(1, 8, Some(1e6)), (2, 9, Some(20e6)), (3, 8, Some(5e6)), (3, 9, None), (8, 3, Some(90e6))]
        {
            let ends = PathEnds { source: agent(source), destination: agent(destination) };
            paths.insert(ends, PathRecord { best_bytes_per_s: rate, ..PathRecord::default() });
        }
        let to = |source: &str| link_of(source, "sterna://to");
        for (source, expected) in [
            ("sterna://one", Some(160_000_000)),
            ("sterna://two", Some(40_000_000)),
            ("sterna://empty", None),
            ("sterna://unknown", None),
            ("https://one", None),
        ] {
            assert_eq!(path_rate(&to(source), &applied, &paths), expected.map(BitRate), "{source}");
        }
        *service.shared.applied.lock() = Arc::new(applied);
        *service.shared.paths.lock() = paths;
        // 10 GB at the rates of the paths; a source without a record counts as one of 1 Gbit/s.
        let size = Some(10_000_000_000);
        let best = |links: &[Link]| {
            service.rank(Strategy::Best, size, ("vo", "x"), links, &Placed::default()).order.first().copied()
        };
        assert_eq!(best(&[to("sterna://two"), to("sterna://one")]), Some(1));
        assert_eq!(best(&[to("sterna://two"), to("sterna://one"), to("https://web")]), Some(2));
    }
}
