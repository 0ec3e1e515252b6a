//! Runner: owns the order of events of the service.
//!
//! One task reads files that wait from the store, starts those that the scheduler chooses, and handles the reports of
//! workers. Every change goes to the store first and then to the scheduler, so that a crash in between loses nothing:
//! the next start reads the store. Refuses to move bytes: workers do.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sterna_net::identity::Identity;
use sterna_proto::{ByteCount, Error, ErrorKind, Phase, Scope};
use sterna_sched::obstacle::Stuck;
use sterna_sched::queue::{FileNumber, QueuedFile};
use sterna_sched::replica::Placed;
use sterna_sched::retry::{Next, RetryRules, Tried, after_failure};
use sterna_sched::settings::QueueName;
use sterna_sched::state::{FileState, JobState};
use sterna_sched::time::UnixTime;
use tokio::sync::mpsc;
use tracing::{error, info, warn};
use uuid::Uuid;

use crate::credentials::{Credentials, Proxy};
use crate::job::{Failure, File, Job, JobOptions, Moved, Task};
use crate::paths::{ObservedRound, PathEnds};
use crate::service::{Order, Reserves, Running, Service, Stop, link_of, name_of, now};
use crate::settings::Applied;
use crate::store::{
    Change, Changed, Decision, DecisionKind, Event, FileFilter, JobFilter, LateEnd, Outcome, Store, failure_in_decision,
};
use crate::web::Web;
use crate::worker::{AgentReports, Agents, Embedded, Key, Report, Reports, ToAgent, agent_of};

mod agents;
mod cleanup;
mod deletions;
mod ended;
mod listings;
mod placement;
mod stuck;

use cleanup::Deletions;
use ended::ListingEnded;
use placement::{Placement, path_of};

/// Time after which the runner looks at retries and expiry times, without another event.
const TICK: Duration = Duration::from_secs(1);

/// Maximum number of files that are read from the store at once. Reason: some MB of memory.
const READ_TOGETHER_MAX: u32 = 5000;

/// Maximum number of files of an abandoned job that are removed at once. Reason: other writes wait some ms meanwhile.
const DISCARDED_TOGETHER_MAX: u32 = 5000;

/// Maximum number of reports that are handled in one transaction.
const REPORTS_TOGETHER_MAX: usize = 500;

/// Time after its end at which a job goes to the archive. Source: FTS3 keeps a week at hand.
const ARCHIVE_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);

/// Maximum number of jobs that go to the archive in one turn. Reason: other writes wait meanwhile.
const ARCHIVED_TOGETHER_MAX: u32 = 100;

/// Time after which a store that refused a change is asked again.
const STORE_RETRY: Duration = Duration::from_secs(1);

/// Reason of files that waited for longer than their job allows. Source of the text: FTS3.
const TOO_LONG_IN_QUEUE: &str =
    "Job has been canceled because it stayed in the queue for too long (max-time-in-queue timeout)";

/// Maximum number of reports of agents that wait. Reason: an agent that sends more waits, and keeps no other one from
/// its turn for long.
const AGENT_REPORTS_MAX: usize = 1024;

/// Part of the service that runs until the process ends.
pub struct Runner {
    service: Arc<Service>,
    orders: mpsc::UnboundedReceiver<Order>,
    reports: mpsc::UnboundedReceiver<(Arc<str>, Report)>,
    agent_reports: mpsc::Receiver<(Arc<str>, Report)>,
    /// Sender of reports of this process.
    reporter: Reports,
    embedded: Embedded,
    agents: Agents,
    /// Signs grants.
    identity: Identity,
    /// Endpoints with obstacles, whose files can leave them.
    stuck: Stuck,
    deletions: Deletions,
    /// Settings at the last turn.
    applied: Arc<Applied>,
    /// Paths whose measurements have changed since they were stored.
    changed_paths: BTreeSet<PathEnds>,
    /// Rounds of agents that monitor a peer, which are not stored yet.
    new_rounds: VecDeque<ObservedRound>,
    /// Last file that was read from the store.
    read: FileNumber,
    /// Last prefix that was read from the store.
    read_prefix: u64,
    /// Number of the prefix at which the next turn of listings begins.
    next_prefix: u64,
    /// A listing may start, or must end.
    are_listings_due: bool,
    /// Ends of listings, and the way of their tasks to them.
    ended_listings: mpsc::UnboundedReceiver<ListingEnded>,
    listing_ends: mpsc::UnboundedSender<ListingEnded>,
}

/// Transfer that has ended.
struct Ended {
    key: Key,
    running: Running,
    moved: Moved,
    failure: Option<Error>,
}

impl Runner {
    /// Creates a service on a store, its runner, and the way of agents to the runner. The identity signs grants.
    /// `patience`: time after which files leave a source with an obstacle.
    pub fn new(
        store: Arc<dyn Store>,
        identity: Identity,
        web: Web,
        host: String,
        patience: Duration,
    ) -> (Arc<Service>, Self, AgentReports) {
        let (service, orders) = Service::new(store, host);
        let (reporter, reports) = mpsc::unbounded_channel();
        let (agent_reporter, agent_reports) = mpsc::channel(AGENT_REPORTS_MAX);
        let (listing_ends, ended_listings) = mpsc::unbounded_channel();
        let name: Arc<str> = format!("embedded-{}", Uuid::new_v4().simple()).into();
        let runner = Self {
            service: Arc::clone(&service),
            orders,
            reports,
            agent_reports,
            reporter: reporter.clone(),
            embedded: Embedded::new(name, reporter, web),
            agents: Agents::default(),
            identity,
            stuck: Stuck::new(patience),
            deletions: Deletions::default(),
            applied: Arc::default(),
            changed_paths: BTreeSet::new(),
            new_rounds: VecDeque::new(),
            read: FileNumber(0),
            read_prefix: 0,
            next_prefix: 0,
            are_listings_due: false,
            ended_listings,
            listing_ends,
        };
        (service, runner, agent_reporter)
    }

    /// Runs until the service is dropped.
    pub async fn run(mut self) {
        self.insist("read settings", async || self.service.apply_settings().await).await;
        self.discard_cut_off().await;
        self.read_paths().await;
        self.insist("read outcomes", async || self.service.read_outcomes().await).await;
        self.recover().await;
        self.service.settle_soon(None).await;
        self.read_prefixes(None).await;
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut reports, mut of_agents) = (Vec::new(), Vec::new());
        loop {
            let service = Arc::clone(&self.service);
            tokio::select! {
                () = service.added.notified() => self.read_prefixes(None).await,
                Some(order) = self.orders.recv() => self.handle_order(order).await,
                _ = self.reports.recv_many(&mut reports, REPORTS_TOGETHER_MAX) => {
                    self.handle_reports(std::mem::take(&mut reports)).await;
                }
                count = self.agent_reports.recv_many(&mut of_agents, REPORTS_TOGETHER_MAX), if !self.agent_reports.is_closed() => {
                    if count > 0 {
                        self.handle_reports(std::mem::take(&mut of_agents)).await;
                    }
                }
                Some(ended) = self.ended_listings.recv() => self.handle_listing_ended(ended).await,
                _ = tick.tick() => self.handle_tick().await,
            }
            self.follow_settings();
            self.read_added().await;
            self.start_listings().await;
            self.start().await;
            self.show_agents();
        }
    }

    fn store(&self) -> &Arc<dyn Store> {
        self.service.store()
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

    /// Removes the jobs whose upload the end of the last process cut off. Nobody was told that they were accepted.
    async fn discard_cut_off(&self) {
        let open = JobFilter { states: vec![JobState::Open], ..JobFilter::default() };
        let jobs = self.insist("read open jobs", async || self.store().jobs(open.clone()).await).await;
        for job in jobs {
            // The interfaces may have begun to take jobs meanwhile.
            if self.service.shared.uploads.lock().insert(job.new.id) {
                self.discard(job.new.id);
            }
        }
    }

    /// Removes an open job in the background, a batch of files at a time, so that other writes do not wait.
    fn discard(&self, job: Uuid) {
        info!("job {job}: its upload ended early; the job is removed");
        let service = Arc::clone(&self.service);
        tokio::spawn(async move {
            loop {
                match service.store().discard(job, DISCARDED_TOGETHER_MAX).await {
                    Ok(true) => break,
                    Ok(false) => {}
                    Err(e) => {
                        error!("remove the job {job}: {}; trying again in {STORE_RETRY:?}", e.chain());
                        tokio::time::sleep(STORE_RETRY).await;
                    }
                }
            }
            service.shared.uploads.lock().remove(&job);
        });
    }

    /// Takes over the transfers of the last run: those at agents go on, and those of other workers, which do not exist
    /// any more, start again.
    async fn recover(&mut self) {
        let active = self.files(FileFilter { states: vec![FileState::Active], ..FileFilter::default() }).await;
        let is_at_agent = |file: &File| file.worker.as_deref().is_some_and(|worker| agent_of(worker).is_some());
        let (at_agents, lost): (Vec<File>, Vec<File>) = active.into_iter().partition(is_at_agent);
        if !lost.is_empty() || !at_agents.is_empty() {
            let (lost, kept) = (lost.len(), at_agents.len());
            info!("transfers under way when the service ended: {lost} start again, {kept} go on at agents");
        }
        let at = now();
        let again = |file: File| Change {
            file: file.number,
            from: FileState::Active,
            of_worker: file.worker,
            what: Event::Retries { failure: None, moved: file.moved, not_before: at },
            decision: None,
            at,
        };
        self.change(lost.into_iter().map(again).collect()).await;
        let options = self.options_of(&at_agents).await;
        for file in at_agents {
            let Some((options, _)) = options.get(&file.job).cloned() else { continue };
            let Some(worker) = file.worker.as_deref().map(Arc::<str>::from) else { continue };
            self.agents.handle_expected(&worker, Instant::now());
            self.service.shared.scheduler.lock().handle_running(queue_of(&file), queued(&file));
            let running = Running { options, worker, assignment: None, bytes: 0, stop: None, file };
            self.service.shared.running.lock().insert(running.file.number, running);
        }
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
            // Looked up after the read: a job whose upload ends later reports its files itself.
            let uploads = self.service.shared.uploads.lock().clone();
            let complete: Vec<File> = files.into_iter().filter(|file| !uploads.contains(&file.job)).collect();
            self.queue(&complete);
            if is_all {
                return;
            }
        }
    }

    /// Reads the files of a job whose upload is complete.
    async fn read_uploaded(&mut self, job: Uuid) {
        let mut after = None;
        loop {
            let filter = FileFilter {
                jobs: vec![job],
                states: vec![FileState::Waiting],
                after,
                limit: Some(READ_TOGETHER_MAX),
                ..FileFilter::default()
            };
            let files = self.files(filter).await;
            self.queue(&files);
            after = files.last().map(|file| file.number);
            if files.len() < READ_TOGETHER_MAX as usize {
                return;
            }
        }
    }

    /// Puts files that wait into their queues.
    fn queue(&mut self, files: &[File]) {
        let mut scheduler = self.service.shared.scheduler.lock();
        let at = now();
        for file in files {
            scheduler.handle_queued(queue_of(file), queued(file), at);
        }
    }

    /// Starts the files that the scheduler chooses.
    async fn start(&mut self) {
        let starts = self.service.shared.scheduler.lock().poll(now());
        if starts.is_empty() {
            return;
        }
        let at = now();
        let mut placed = Vec::with_capacity(starts.len());
        for (session, start) in starts.iter().enumerate() {
            let placement = self.place(&start.queue.link);
            let worker = placement.worker().unwrap_or_else(|| self.embedded.name()).to_string();
            for file in std::iter::once(start.file).chain(start.with.iter().copied()) {
                if file != start.file {
                    placement.assignment().into_iter().for_each(|assignment| self.agents.take(assignment));
                }
                let what = Event::Starts { worker: worker.clone(), rationale: start.rationale.clone() };
                let change = Change { file, from: FileState::Waiting, of_worker: None, what, decision: None, at };
                placed.push(((session, placement.clone()), change));
            }
        }
        let changes = placed.iter().map(|(_, change)| change.clone()).collect();
        let changed = self.change(changes).await;
        let mut files = Vec::new();
        for ((place, change), changed) in placed.into_iter().zip(changed) {
            match changed {
                Changed::Done { file, .. } => files.push((*file, place)),
                // It was cancelled meanwhile, or held.
                Changed::Conflict => {
                    self.release(&place.1);
                    self.free(change.file, &cancelled());
                }
            }
        }
        let numbers: Vec<File> = files.iter().map(|(file, _)| file.clone()).collect();
        let options = self.options_of(&numbers).await;
        let numbers: Vec<FileNumber> = numbers.iter().map(|file| file.number).collect();
        let mut credentials = match numbers.is_empty() {
            true => BTreeMap::new(),
            false => self.insist("read credentials", async || self.store().credentials(numbers.clone()).await).await,
        };
        let proxies = self.proxies_of(options.values().map(|(_, credential)| credential.as_str())).await;
        let mut sessions: BTreeMap<usize, (Placement, Vec<Task>)> = BTreeMap::new();
        for (file, (session, placement)) in files {
            let Some((options, credential)) = options.get(&file.job).cloned() else { continue };
            let mut credentials = credentials.remove(&file.number).unwrap_or_default();
            credentials.proxy = proxies.get(&credential).cloned();
            if let Some(task) = self.begin(file, options, credentials, &placement) {
                sessions.entry(session).or_insert_with(|| (placement, Vec::new())).1.push(task);
            }
        }
        sessions.into_values().for_each(|(placement, tasks)| self.start_session(tasks, placement));
    }

    /// Returns the proxies of credentials that have a valid one.
    async fn proxies_of<'a>(&self, credentials: impl Iterator<Item = &'a str>) -> BTreeMap<String, Proxy> {
        let credentials: BTreeSet<&str> = credentials.collect();
        let mut proxies = BTreeMap::new();
        for credential in credentials {
            let read = async || self.store().proxy(credential.to_owned()).await;
            let proxy = self.insist("read a proxy", read).await;
            let is_valid = |proxy: &Proxy| UnixTime(proxy.expires.saturating_mul(1000)) > now();
            proxies.extend(proxy.filter(is_valid).map(|proxy| (credential.to_owned(), proxy)));
        }
        proxies
    }

    /// Returns the options of the jobs of files, and the credentials of their owners.
    async fn options_of(&self, files: &[File]) -> BTreeMap<Uuid, (Arc<JobOptions>, String)> {
        let mut ids: Vec<Uuid> = files.iter().map(|file| file.job).collect();
        ids.sort_unstable();
        ids.dedup();
        if ids.is_empty() {
            return BTreeMap::new();
        }
        let filter = JobFilter { ids, ..JobFilter::default() };
        let jobs = self.insist("read jobs", async || self.store().jobs(filter.clone()).await).await;
        let of_job = |job: Job| (job.new.id, (Arc::new(job.new.options), job.new.owner.credential));
        jobs.into_iter().map(of_job).collect()
    }

    /// Records that a file is under way. Returns its task; `None`: it has failed already.
    fn begin(
        &mut self,
        file: File,
        options: Arc<JobOptions>,
        credentials: Credentials,
        placement: &Placement,
    ) -> Option<Task> {
        let task = Task {
            file: file.number.0,
            start: file.starts,
            attempt: file.failures + 1,
            notes_replaced: options.deletes_between,
            source: file.new.source.clone(),
            destination: file.new.destination.clone(),
            size: file.new.size,
            checksum: file.new.checksum.clone(),
            options: options.of_entry(file.new.entry),
            forbids_streams: self.applied.defaults_of(&file.vo).is_some_and(|defaults| defaults.no_streaming),
            credentials,
        };
        let worker = Arc::clone(placement.worker().unwrap_or_else(|| self.embedded.name()));
        let assignment = placement.assignment().cloned();
        // An operator may have changed the access since the submission.
        let allowed = self.service.check_sites(&file.vo, &file.new);
        let running = Running { file, options, worker, assignment, bytes: 0, stop: None };
        self.service.shared.running.lock().insert(running.file.number, running);
        match allowed {
            Ok(()) => Some(task),
            Err(error) => {
                self.fail(Key::of(&task), placement, error);
                None
            }
        }
    }

    /// Starts the transfers of a session.
    fn start_session(&mut self, tasks: Vec<Task>, placement: Placement) {
        let keys: Vec<Key> = tasks.iter().map(Key::of).collect();
        let error = match &placement {
            Placement::Embedded => return tasks.into_iter().for_each(|task| self.embedded.start(task)),
            Placement::Agents(assignment) => match self.order(tasks, assignment) {
                Ok(order) => return self.agents.send(&assignment.worker, ToAgent::Run(Box::new(order))),
                Err(error) => error,
            },
            Placement::Nowhere(error) => error.clone(),
        };
        keys.into_iter().for_each(|key| self.fail(key, &placement, error.clone()));
    }

    /// Ends a transfer that no worker has got.
    fn fail(&self, key: Key, placement: &Placement, error: Error) {
        let worker = Arc::clone(placement.worker().unwrap_or_else(|| self.embedded.name()));
        let ended = Report::Ended { key, moved: Moved::default(), failure: Some(error) };
        // The runner itself receives.
        let _ = self.reporter.send((worker, ended));
    }

    /// Frees the place of a file that does not run.
    fn free(&self, file: FileNumber, error: &Error) {
        self.service.shared.scheduler.lock().handle_ended(file, Err(error), None, now());
    }

    async fn handle_order(&mut self, order: Order) {
        match order {
            Order::Waiting(mut files) => {
                // Those of an open job are read when it is complete.
                let uploads = self.service.shared.uploads.lock().clone();
                files.retain(|file| !uploads.contains(&file.job));
                self.queue(&files);
            }
            Order::Cancelled(files) => files.into_iter().for_each(|file| self.cancel(file)),
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
            Order::Uploaded(job) => {
                self.read_uploaded(job).await;
                self.read_prefixes(Some(job)).await;
            }
            Order::JobCancelled(job) => self.handle_job_cancelled(job),
            Order::Abandoned(job) => self.discard(job),
        }
    }

    /// Stops a file. One that is under way frees its place when its worker reports the end.
    fn cancel(&self, number: FileNumber) {
        if self.service.shared.scheduler.lock().handle_cancelled(number) {
            return;
        }
        let mut running = self.service.shared.running.lock();
        let Some(running) = running.get_mut(&number) else { return };
        running.stop = Some(Stop::Cancelled);
        let key = Key { file: number.0, start: running.file.starts };
        match agent_of(&running.worker) {
            Some(_) => self.agents.send(&running.worker, ToAgent::Cancel { key }),
            None => self.embedded.cancel(key),
        }
    }

    /// Handles reports, in their order.
    async fn handle_reports(&mut self, reports: Vec<(Arc<str>, Report)>) {
        let (mut ended, mut lost, mut late, mut deleted) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (worker, report) in reports {
            match report {
                Report::Progress(transfers) => self.handle_progress(&worker, transfers),
                Report::Ended { key, moved, failure } => match self.take_running(&worker, key) {
                    Some(running) if running.goes_again(failure.as_ref()) => {
                        self.agents.send(&worker, ToAgent::Recorded { key });
                        // It counts no more.
                        lost.push(Running { assignment: None, ..running });
                    }
                    Some(running) => ended.push(Ended { key, running, moved, failure }),
                    // It was cancelled before a restart of the service, or given to another worker, or ended long ago.
                    None => late.push((worker, key, moved)),
                },
                Report::Connected(connection) => {
                    self.handle_lister_lost(&worker);
                    lost.extend(self.handle_connected(&worker, *connection));
                }
                Report::Visited(visited) => self.handle_visited(&worker, *visited),
                Report::Listing { id, batch } => self.handle_batch(&worker, id, batch),
                Report::Deleted { file, failure } if self.deletions.is_at(file, &worker) => {
                    deleted.push((file, failure))
                }
                // It was given up, or belongs to the service before a restart: then it is tried again.
                Report::Deleted { .. } => {}
                Report::Disconnected(connection) => {
                    if self.agents.handle_disconnected(&worker, connection, Instant::now()) {
                        self.handle_lister_lost(&worker);
                    }
                    self.refresh_agents();
                }
            }
        }
        self.record(ended, late).await;
        self.reclaim(lost).await;
        self.handle_deleted(deleted).await;
    }

    fn handle_progress(&self, worker: &Arc<str>, transfers: Vec<(Key, u64)>) {
        let mut running = self.service.shared.running.lock();
        for (key, bytes) in transfers {
            if let Some(running) = running.get_mut(&key.number()).filter(|running| running.is_start(worker, key)) {
                running.bytes = bytes;
            }
        }
    }

    /// Removes a transfer that has ended from those under way; `None`: this start of it is not under way there.
    fn take_running(&mut self, worker: &Arc<str>, key: Key) -> Option<Running> {
        let mut all = self.service.shared.running.lock();
        all.get(&key.number()).filter(|running| running.is_start(worker, key))?;
        let running = all.remove(&key.number())?;
        drop(all);
        running.assignment.iter().for_each(|assignment| self.agents.release(assignment));
        Some(running)
    }

    /// Records the ends of transfers. `late`: of those that are not under way any more.
    async fn record(&mut self, ended: Vec<Ended>, mut late: Vec<(Arc<str>, Key, Moved)>) {
        let (mut changes, mut placed) = (Vec::with_capacity(ended.len()), Placed::default());
        for Ended { running, moved, failure, .. } in &ended {
            let (what, decision) = match failure {
                None => (Event::Finishes { moved: moved.clone() }, None),
                Some(error) => self.after(running, error, moved.clone(), &mut placed).await,
            };
            let (from, of_worker) = (FileState::Active, Some(running.worker.to_string()));
            changes.push(Change { file: running.file.number, from, of_worker, what, decision, at: now() });
        }
        let changed = self.change(changes).await;
        for (Ended { key, running, moved, failure }, changed) in ended.iter().zip(changed) {
            self.handle_end(running, moved, failure.as_ref());
            match changed {
                Changed::Done { file, waiting, job } => {
                    self.agents.send(&running.worker, ToAgent::Recorded { key: *key });
                    if let Some(state) = job.filter(|state| state.is_final()) {
                        info!("job {}: {}", file.job, state.name());
                    }
                    self.queue(&waiting);
                    if file.state == FileState::Waiting {
                        self.queue(std::slice::from_ref(&file));
                    }
                }
                // It was cancelled.
                Changed::Conflict => late.push((Arc::clone(&running.worker), *key, moved.clone())),
            }
        }
        self.record_late(late).await;
    }

    /// Records the ends of transfers whose files were cancelled before.
    async fn record_late(&self, late: Vec<(Arc<str>, Key, Moved)>) {
        if late.is_empty() {
            return;
        }
        let of = |(worker, key, moved): &(Arc<str>, Key, Moved)| LateEnd {
            file: key.number(),
            start: key.start,
            worker: worker.to_string(),
            moved: moved.clone(),
            at: now(),
        };
        let ends: Vec<LateEnd> = late.iter().map(of).collect();
        self.insist("record ends of cancelled files", async || self.store().end_late(ends.clone()).await).await;
        for (worker, key, _) in late {
            self.agents.send(&worker, ToAgent::Recorded { key });
        }
    }

    /// Records the end of a transfer in the scheduler and the statistics.
    fn handle_end(&mut self, running: &Running, moved: &Moved, failure: Option<&Error>) {
        let (file, at) = (&running.file, now());
        if let Some(assignment) = &running.assignment {
            let is_unreached = failure.is_some_and(|error| error.kind == ErrorKind::Unreachable);
            self.agents.handle_reached(assignment, !is_unreached);
            if let Some(path) = path_of(assignment).filter(|_| failure.is_none()) {
                self.handle_measured(&path, moved);
            }
        }
        let counted = failure.map(|error| self.as_counted(running, error));
        let outcome = counted.as_ref().map_or(Ok(ByteCount(moved.bytes)), Err);
        self.service.shared.scheduler.lock().handle_ended(file.number, outcome, failure.and_then(Error::wait), at);
        let outcome = Outcome {
            source_endpoint: file.new.source_endpoint.clone(),
            destination_endpoint: file.new.destination_endpoint.clone(),
            started: file.started,
            ended: at,
            moved: moved.clone(),
            failure: failure.map(Failure::from),
        };
        self.service.handle_outcome(&outcome);
    }

    /// Decides what follows a failed attempt. `placed`: successors of failures that are recorded together.
    async fn after(
        &self,
        running: &Running,
        error: &Error,
        moved: Moved,
        placed: &mut Placed,
    ) -> (Event, Option<Decision>) {
        let file = &running.file;
        let siblings = FileFilter {
            jobs: vec![file.job],
            entry: Some(file.new.entry),
            states: vec![FileState::Reserved],
            ..FileFilter::default()
        };
        let replicas = self.files(siblings).await;
        let rules = rules_of(&running.options);
        let tried = Tried { at_source: file.failures + 1, replicas_left: replicas.len() };
        let after = after_failure(error, tried, &rules, random());
        warn!("file {} of job {}: {}: {}", file.number.0, file.job, error.chain(), after.rationale);
        let failure = Failure::from(error);
        let next = match after.next {
            Next::NextReplica => self.service.successor(file, &replicas, Reserves::All, placed),
            Next::Again(_) | Next::Fails => None,
        };
        let decision = |kind, then: &str| {
            let reason = failure_in_decision(&failure.text);
            Some(Decision::new(kind, format!("{} failed: {reason}; {then}", name_of(file))))
        };
        match (after.next, next) {
            (Next::Again(wait), _) => {
                let decision = decision(DecisionKind::Retry, &after.rationale);
                (Event::Retries { failure: Some(failure), moved, not_before: now() + wait }, decision)
            }
            (_, Some((successor, why))) => {
                let decision = decision(DecisionKind::Failover, &format!("{}: {why}", after.rationale));
                (Event::Fails { failure, moved, successor: Some(successor) }, decision)
            }
            (_, None) => {
                let decision = decision(DecisionKind::End, &after.rationale);
                (Event::Fails { failure, moved, successor: None }, decision)
            }
        }
    }

    /// Handles what is due by time.
    async fn handle_tick(&mut self) {
        let lapsed = self.agents.take_lapsed(Instant::now());
        let lost = self.of_workers(&lapsed);
        self.reclaim(lost).await;
        self.store_paths().await;
        self.service.refresh_file_rates();
        self.expire().await;
        self.replace_stuck().await;
        self.are_listings_due = true;
        self.delete_copies().await;
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
        let failure = Failure::from(&Error::new(ErrorKind::Limit, Scope::Service, Phase::Prepare, TOO_LONG_IN_QUEUE));
        let fails = |file: &File| Change {
            file: file.number,
            from: file.state,
            of_worker: None,
            what: Event::Fails { failure: failure.clone(), moved: Moved::default(), successor: None },
            decision: None,
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

/// Returns the rules for retries in a job.
fn rules_of(options: &JobOptions) -> RetryRules {
    let mut rules = RetryRules::default();
    rules.attempts = options.retries.unwrap_or(rules.attempts);
    if let Some(seconds) = options.retry_wait_s {
        rules.wait = Duration::from_secs(u64::from(seconds));
    }
    rules
}

/// Returns the queue of a file.
fn queue_of(file: &File) -> QueueName {
    QueueName {
        link: link_of(&file.new.source_endpoint, &file.new.destination_endpoint),
        vo: file.vo.as_str().into(),
        activity: file.new.activity.as_str().into(),
    }
}

/// Returns a file as the scheduler keeps it.
fn queued(file: &File) -> QueuedFile {
    QueuedFile {
        number: file.number,
        size: file.new.size.map(ByteCount),
        priority: file.priority,
        submitted: file.submitted,
        deadline: file.new.deadline.map(sterna_sched::time::UnixTime),
        not_before: file.not_before,
        // A file that has failed goes alone: it may be the one that ends the session.
        group: (file.new.shares_session && file.failures == 0).then(|| file.job.as_u128()),
    }
}

fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Transfer, "the transfer was cancelled")
}

/// Returns a random number from 0 to 1; 0.5 on a system without random numbers.
fn random() -> f64 {
    getrandom::u32().map_or(0.5, |number| f64::from(number) / f64::from(u32::MAX))
}
