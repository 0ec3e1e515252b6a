//! Service: carries out commands, starts transfers and decides what follows their end.
//!
//! One task, the runner, owns the order of events: it reads files that wait from the store, starts those that the
//! scheduler chooses, and handles the reports of workers. Every change goes to the store first and then to the
//! scheduler, so that a crash in between loses nothing: the next start reads the store. Refuses to speak HTTP.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use sterna_proto::{ByteCount, Error, ErrorKind, Phase, Scope};
use sterna_sched::queue::{FileNumber, QueuedFile};
use sterna_sched::replica::{SourceStats, Strategy, Wanted, rank};
use sterna_sched::retry::{Next, RetryRules, Tried, after_failure};
use sterna_sched::scheduler::{Limits, Link, Name, QueueName, QueuedOnLink, Scheduler, Shares, Waits};
use sterna_sched::state::FileState;
use sterna_sched::statistics::Statistics;
use sterna_sched::time::UnixTime;
use tokio::sync::{Notify, mpsc};
use tracing::{error, info, warn};
use uuid::Uuid;

use crate::copies::Copies;
use crate::credentials::Credentials;
use crate::job::{Failure, File, JobOptions, Moved, Task};
use crate::settings::Applied;
use crate::store::{Change, Changed, Event, FileFilter, JobFilter, Store};
use crate::web::Web;
use crate::worker::{Embedded, Report, Reports};

/// Time after which the runner looks at retries and expiry times, without another event.
const TICK: Duration = Duration::from_secs(1);

/// Maximum number of files that are read from the store at once. Reason: some MB of memory.
const READ_TOGETHER_MAX: u32 = 5000;

/// Maximum number of reports that are handled in one transaction.
const REPORTS_TOGETHER_MAX: usize = 500;

/// Time after its end at which a job goes to the archive. Source: FTS3 keeps a week at hand.
const ARCHIVE_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);

/// Maximum number of jobs that go to the archive in one turn. Reason: other writes wait meanwhile.
const ARCHIVED_TOGETHER_MAX: u32 = 100;

/// Time after which a store that refused a change is asked again.
const STORE_RETRY: Duration = Duration::from_secs(1);

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
struct Running {
    file: File,
    options: Arc<JobOptions>,
    bytes: u64,
}

/// Order for the runner.
enum Order {
    /// These files wait now.
    Waiting(Vec<File>),
    /// These files were cancelled, or are held back.
    Cancelled(Vec<FileNumber>),
    /// The priority of the files of this job has changed.
    Reordered(Uuid),
}

/// State that the runner and the interfaces share.
struct Shared {
    scheduler: Mutex<Scheduler>,
    statistics: Mutex<Statistics>,
    running: Mutex<HashMap<FileNumber, Running>>,
    applied: Mutex<Arc<Applied>>,
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
    shared: Shared,
    orders: mpsc::UnboundedSender<Order>,
    /// Files may have been added to the store.
    added: Notify,
    /// Name of this host, in replies.
    host: String,
}

/// Part of the service that runs until the process ends.
pub struct Runner {
    service: Arc<Service>,
    orders: mpsc::UnboundedReceiver<Order>,
    reports: mpsc::UnboundedReceiver<(Arc<str>, Report)>,
    embedded: Embedded,
    /// Last file that was read from the store.
    read: FileNumber,
}

impl Service {
    /// Creates a service on a store.
    pub fn new(store: Arc<dyn Store>, copies: Copies, web: Web, host: String) -> (Arc<Self>, Runner) {
        let (orders, received) = mpsc::unbounded_channel();
        let (reports, reported): (Reports, _) = mpsc::unbounded_channel();
        let shared = Shared {
            scheduler: Mutex::new(Scheduler::new(Limits::default(), Shares::default())),
            statistics: Mutex::default(),
            running: Mutex::default(),
            applied: Mutex::default(),
        };
        let service = Arc::new(Self { store, shared, orders, added: Notify::new(), host });
        let name: Arc<str> = format!("embedded-{}", Uuid::new_v4().simple()).into();
        let runner = Runner {
            service: Arc::clone(&service),
            orders: received,
            reports: reported,
            embedded: Embedded::new(name, reports, copies, web),
            read: FileNumber(0),
        };
        (service, runner)
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

    /// Chooses among replicas of an entry. Returns the index of the best one, and the reason.
    pub(crate) fn choose(&self, strategy: Strategy, size: Option<u64>, links: &[Link]) -> (usize, String) {
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
        let wanted = Wanted { size: size.map(ByteCount), weight: 0.0 };
        let ranking = rank(strategy, &wanted, &stats);
        (ranking.order.first().copied().unwrap_or(0), ranking.rationale)
    }
}

impl Runner {
    /// Runs until the service is dropped.
    pub async fn run(mut self) {
        self.insist("read settings", async || self.service.apply_settings().await).await;
        self.recover().await;
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut reports = Vec::new();
        loop {
            let service = Arc::clone(&self.service);
            tokio::select! {
                () = service.added.notified() => {}
                Some(order) = self.orders.recv() => self.handle_order(order).await,
                count = self.reports.recv_many(&mut reports, REPORTS_TOGETHER_MAX) => {
                    if count == 0 {
                        return;
                    }
                    self.handle_reports(std::mem::take(&mut reports)).await;
                }
                _ = tick.tick() => self.expire().await,
            }
            self.read_added().await;
            self.start().await;
        }
    }

    fn store(&self) -> &Arc<dyn Store> {
        &self.service.store
    }

    /// Repeats an access to the store until it succeeds: without the store nothing can go on.
    async fn insist<T, F>(&self, what: &str, access: F) -> T
    where
        F: AsyncFn() -> Result<T, Error>,
    {
        loop {
            match access().await {
                Ok(value) => return value,
                Err(e) => {
                    error!("{what}: {}; trying again in {STORE_RETRY:?}", e.chain());
                    tokio::time::sleep(STORE_RETRY).await;
                }
            }
        }
    }

    async fn change(&self, changes: Vec<Change>) -> Vec<Changed> {
        if changes.is_empty() {
            return Vec::new();
        }
        self.insist("change files", async || self.store().change(changes.clone()).await).await
    }

    async fn files(&self, filter: FileFilter) -> Vec<File> {
        self.insist("read files", async || self.store().files(filter.clone()).await).await
    }

    /// Makes the transfers of workers that do not exist any more wait again.
    async fn recover(&mut self) {
        let lost = self.files(FileFilter { states: vec![FileState::Active], ..FileFilter::default() }).await;
        if lost.is_empty() {
            return;
        }
        info!("{} transfers were under way when the service ended; they start again", lost.len());
        let at = now();
        let again = |file: File| Change {
            file: file.number,
            from: FileState::Active,
            of_worker: file.worker,
            what: Event::Retries { failure: None, moved: file.moved, not_before: at },
            at,
        };
        self.change(lost.into_iter().map(again).collect()).await;
    }

    /// Reads files that were added to the store.
    async fn read_added(&mut self) {
        loop {
            let filter = FileFilter {
                states: vec![FileState::Waiting],
                after: Some(self.read),
                limit: Some(READ_TOGETHER_MAX),
                ..FileFilter::default()
            };
            let files = self.files(filter).await;
            let Some(last) = files.last() else { return };
            self.read = last.number;
            let is_all = files.len() < READ_TOGETHER_MAX as usize;
            self.queue(&files);
            if is_all {
                return;
            }
        }
    }

    /// Puts files that wait into their queues.
    fn queue(&self, files: &[File]) {
        let mut scheduler = self.service.shared.scheduler.lock();
        let at = now();
        for file in files {
            let queued = QueuedFile {
                number: file.number,
                size: file.new.size.map(ByteCount),
                priority: file.priority,
                submitted: file.submitted,
                deadline: file.new.deadline.map(UnixTime),
                not_before: file.not_before,
            };
            scheduler.handle_queued(queue_of(file), queued, at);
        }
    }

    /// Starts the files that the scheduler chooses.
    async fn start(&mut self) {
        let starts = self.service.shared.scheduler.lock().poll(now());
        if starts.is_empty() {
            return;
        }
        let at = now();
        let starts_at = |start: &sterna_sched::scheduler::Start| Change {
            file: start.file,
            from: FileState::Waiting,
            of_worker: None,
            what: Event::Starts { worker: self.embedded.name().to_string(), rationale: start.rationale.clone() },
            at,
        };
        let changed = self.change(starts.iter().map(starts_at).collect()).await;
        let mut files = Vec::new();
        for (start, changed) in starts.iter().zip(changed) {
            match changed {
                Changed::Done { file, .. } => files.push(*file),
                // It was cancelled meanwhile, or held.
                Changed::Conflict => self.free(start.file, &cancelled()),
            }
        }
        let options = self.options_of(&files).await;
        let numbers: Vec<FileNumber> = files.iter().map(|file| file.number).collect();
        let mut credentials = match numbers.is_empty() {
            true => BTreeMap::new(),
            false => self.insist("read credentials", async || self.store().credentials(numbers.clone()).await).await,
        };
        for file in files {
            let Some(options) = options.get(&file.job).map(Arc::clone) else { continue };
            let credentials = credentials.remove(&file.number).unwrap_or_default();
            self.start_one(file, options, credentials);
        }
    }

    /// Returns the options of the jobs of files.
    async fn options_of(&self, files: &[File]) -> BTreeMap<Uuid, Arc<JobOptions>> {
        let mut ids: Vec<Uuid> = files.iter().map(|file| file.job).collect();
        ids.sort_unstable();
        ids.dedup();
        if ids.is_empty() {
            return BTreeMap::new();
        }
        let filter = JobFilter { ids, ..JobFilter::default() };
        let jobs = self.insist("read jobs", async || self.store().jobs(filter.clone()).await).await;
        jobs.into_iter().map(|job| (job.new.id, Arc::new(job.new.options))).collect()
    }

    fn start_one(&self, file: File, options: Arc<JobOptions>, credentials: Credentials) {
        let task = Task {
            file: file.number.0,
            attempt: file.failures + 1,
            is_repeated: file.starts > 1,
            source: file.new.source.clone(),
            destination: file.new.destination.clone(),
            size: file.new.size,
            checksum: file.new.checksum.clone(),
            options: (*options).clone(),
            credentials,
        };
        self.service.shared.running.lock().insert(file.number, Running { file, options, bytes: 0 });
        self.embedded.start(task);
    }

    /// Frees the place of a file that does not run.
    fn free(&self, file: FileNumber, error: &Error) {
        self.service.shared.scheduler.lock().handle_ended(file, Err(error), None, now());
    }

    async fn handle_order(&mut self, order: Order) {
        match order {
            Order::Waiting(files) => self.queue(&files),
            Order::Cancelled(files) => {
                let mut scheduler = self.service.shared.scheduler.lock();
                for file in files {
                    // One that is under way frees its place when the worker reports its end.
                    if !scheduler.handle_cancelled(file) {
                        self.embedded.cancel(file);
                    }
                }
            }
            Order::Reordered(job) => {
                let waiting = vec![FileState::Waiting];
                let files = self.files(FileFilter { jobs: vec![job], states: waiting, ..FileFilter::default() }).await;
                let read = self.read;
                let known: Vec<File> = files.into_iter().filter(|file| file.number <= read).collect();
                let mut scheduler = self.service.shared.scheduler.lock();
                let removed = |file: &File| scheduler.handle_cancelled(file.number);
                let again: Vec<File> = known.into_iter().filter(removed).collect();
                drop(scheduler);
                self.queue(&again);
            }
        }
    }

    /// Handles the ends of transfers.
    async fn handle_reports(&mut self, reports: Vec<(Arc<str>, Report)>) {
        let mut ended = Vec::new();
        for (worker, report) in reports {
            match report {
                Report::Progress(progress) => {
                    let mut running = self.service.shared.running.lock();
                    for (file, bytes) in progress {
                        running.entry(file).and_modify(|running| running.bytes = bytes);
                    }
                }
                Report::Ended { file, moved, failure } => {
                    let Some(running) = self.service.shared.running.lock().remove(&file) else { continue };
                    ended.push((worker, running, moved, failure));
                }
            }
        }
        let mut changes = Vec::with_capacity(ended.len());
        for (worker, running, moved, failure) in &ended {
            let what = match failure {
                None => Event::Finishes { moved: moved.clone() },
                Some(error) => self.after(running, error, moved.clone()).await,
            };
            let of_worker = Some(worker.to_string());
            changes.push(Change { file: running.file.number, from: FileState::Active, of_worker, what, at: now() });
        }
        let changed = self.change(changes).await;
        for ((_, running, moved, failure), changed) in ended.iter().zip(changed) {
            self.handle_end(running, moved, failure.as_ref());
            if let Changed::Done { file, waiting, job } = changed {
                if let Some(state) = job.filter(|state| state.is_final()) {
                    info!("job {}: {}", file.job, state.name());
                }
                self.queue(&waiting);
                if file.state == FileState::Waiting {
                    self.queue(std::slice::from_ref(&file));
                }
            }
        }
    }

    /// Records the end of a transfer in the scheduler and the statistics.
    fn handle_end(&self, running: &Running, moved: &Moved, failure: Option<&Error>) {
        let (file, at) = (&running.file, now());
        let link = link_of(&file.new.source_endpoint, &file.new.destination_endpoint);
        let outcome = failure.map_or(Ok(ByteCount(moved.bytes)), Err);
        self.service.shared.scheduler.lock().handle_ended(file.number, outcome, failure.and_then(Error::wait), at);
        let mut statistics = self.service.shared.statistics.lock();
        match failure {
            None => statistics.handle_arrived(&link, ByteCount(moved.bytes), moved.time(), at),
            Some(error) if error.kind == ErrorKind::Cancelled => {}
            Some(_) => statistics.handle_failed(&link, at),
        }
    }

    /// Decides what follows a failed attempt.
    async fn after(&self, running: &Running, error: &Error, moved: Moved) -> Event {
        let file = &running.file;
        let siblings = FileFilter {
            jobs: vec![file.job],
            entry: Some(file.new.entry),
            states: vec![FileState::Reserved],
            ..FileFilter::default()
        };
        let replicas = self.files(siblings).await;
        let mut rules = RetryRules::default();
        rules.attempts = running.options.retries.unwrap_or(rules.attempts);
        if let Some(seconds) = running.options.retry_wait_s {
            rules.wait = Duration::from_secs(u64::from(seconds));
        }
        let tried = Tried { at_source: file.failures + 1, replicas_left: replicas.len() };
        let after = after_failure(error, tried, &rules, random());
        warn!("file {} of job {}: {}: {}", file.number.0, file.job, error.chain(), after.rationale);
        let failure = Failure::from(error);
        match after.next {
            Next::Again(wait) => Event::Retries { failure: Some(failure), moved, not_before: now() + wait },
            Next::NextReplica => {
                let links: Vec<Link> = replicas
                    .iter()
                    .map(|replica| link_of(&replica.new.source_endpoint, &replica.new.destination_endpoint))
                    .collect();
                let strategy = file.new.strategy.as_deref().and_then(Strategy::by_name).unwrap_or_default();
                let (best, _) = self.service.choose(strategy, file.new.size, &links);
                let successor = replicas.get(best).map(|replica| replica.number);
                Event::Fails { failure, moved, successor }
            }
            Next::Fails => Event::Fails { failure, moved, successor: None },
        }
    }

    /// Moves jobs that ended long ago to the archive. Fails files that have waited longer than their jobs allow.
    async fn expire(&mut self) {
        let at = now();
        if let Err(error) = self.store().archive(at - ARCHIVE_AFTER, ARCHIVED_TOGETHER_MAX).await {
            warn!("archive jobs: {}; trying again in {TICK:?}", error.chain());
        }
        let expired = self.insist("read expired files", async || self.store().expired(at).await).await;
        if expired.is_empty() {
            return;
        }
        // Source of the text: FTS3.
        let text = "Job has been canceled because it stayed in the queue for too long (max-time-in-queue timeout)";
        let failure = Failure::from(&Error::new(ErrorKind::Limit, Scope::Service, Phase::Prepare, text));
        let fails = |file: &File| Change {
            file: file.number,
            from: file.state,
            of_worker: None,
            what: Event::Fails { failure: failure.clone(), moved: Moved::default(), successor: None },
            at,
        };
        let changed = self.change(expired.iter().map(fails).collect()).await;
        let mut scheduler = self.service.shared.scheduler.lock();
        for changed in changed {
            if let Changed::Done { file, .. } = changed {
                scheduler.handle_cancelled(file.number);
            }
        }
    }
}

/// Returns the queue of a file.
fn queue_of(file: &File) -> QueueName {
    QueueName {
        link: link_of(&file.new.source_endpoint, &file.new.destination_endpoint),
        vo: file.vo.as_str().into(),
        activity: file.new.activity.as_str().into(),
    }
}

fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Transfer, "the transfer was cancelled")
}

/// Returns a random number from 0 to 1; 0.5 on a system without random numbers.
fn random() -> f64 {
    getrandom::u32().map_or(0.5, |number| f64::from(number) / f64::from(u32::MAX))
}
