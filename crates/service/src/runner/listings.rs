//! Listings of the runner: which prefix is listed when and by whom, and what becomes of the files found.
//!
//! A listing adds the files to the job while it goes on, so that the first ones start at once. One that is cut off
//! starts again, and the store leaves out the files that it has. Refuses to list: agents and the client of WebDAV do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};
use sterna_sched::retry::{Next, Tried, after_failure};
use tokio::sync::mpsc;
use tracing::{info, warn};
use uuid::Uuid;

use super::ended::{ListingEnd, ListingEnded};
use super::{READ_TOGETHER_MAX, Runner, STORE_RETRY, random, rules_of};
use crate::command::{Entry, FILES_MAX, Pair, Progress};
use crate::endpoint::{LOCATION_BYTES_MAX, site_of};
use crate::job::{Failure, NewFile, Prefix};
use crate::listing::{BATCHES_MAX, Batch, FoundFile, ListingPhase, Unlisted, encoded};
use crate::service::{Listing, ListingRun, Service, now};
use crate::settings::BanKind;
use crate::store::{Added, PrefixChange, PrefixFilter};
use crate::worker::{NoLister, ToAgent};

/// Maximum number of listings under way. Reason: each has some MB of batches on their way.
const LISTINGS_MAX: usize = 32;

/// Maximum number of listings of one job. Reason: jobs with many prefixes leave room for others.
const LISTINGS_OF_JOB_MAX: usize = 4;

/// Maximum number of listings of one user. Reason: slow servers of a user leave room for others.
const LISTINGS_OF_USER_MAX: usize = 8;

/// Maximum characters of a long name in an error text.
const SHOWN_CHARS_MAX: usize = 60;

/// Maximum number of prefixes that wait and that one turn looks at. Reason: a turn takes some milliseconds. The next
/// turn goes on behind them.
const LOOKED_AT_MAX: usize = 1000;

/// Maximum number of listings of a prefix that end with the connection of their agent. Reason: a directory that ends
/// its agents must not go on for ever.
const LOST_MAX: u32 = 100;

/// Next step of a listing that waits.
enum Step {
    Waits(ListingPhase),
    Fails(Error),
    Starts(Lister),
}

/// Who lists.
enum Lister {
    /// This process.
    Web,
    /// A worker, and the messages to it.
    Agent(Arc<str>, mpsc::UnboundedSender<ToAgent>),
}

impl Runner {
    /// Reads prefixes of complete jobs: of one job, or all that were added since the last call.
    pub(super) async fn read_prefixes(&mut self, job: Option<Uuid>) {
        let mut after = if job.is_some() { 0 } else { self.read_prefix };
        loop {
            let filter = PrefixFilter { job, after, limit: READ_TOGETHER_MAX };
            let prefixes = self.insist("read prefixes", async || self.store().prefixes(filter).await).await;
            let Some(last) = prefixes.last().map(|prefix| prefix.number) else { break };
            let is_all = prefixes.len() < READ_TOGETHER_MAX as usize;
            after = last;
            let mut listings = self.service.shared.listings.lock();
            for prefix in prefixes {
                self.are_listings_due = true;
                listings.entry(prefix.number).or_insert_with(|| Listing::new(prefix));
            }
            if is_all {
                break;
            }
        }
        if job.is_none() {
            self.read_prefix = self.read_prefix.max(after);
        }
    }

    /// Starts the listings that can start, and ends those that must.
    pub(super) async fn start_listings(&mut self) {
        if !std::mem::take(&mut self.are_listings_due) {
            return;
        }
        let (mut running, waiting) = self.listings_now();
        for prefix in waiting {
            let count = |is_like: &dyn Fn(&Prefix) -> bool| running.iter().filter(|one| is_like(one)).count();
            let has_room = running.len() < LISTINGS_MAX
                && count(&|one| one.job == prefix.job) < LISTINGS_OF_JOB_MAX
                && count(&|one| one.owner.credential == prefix.owner.credential) < LISTINGS_OF_USER_MAX;
            match self.step(&prefix, has_room) {
                Step::Waits(phase) => {
                    let mut listings = self.service.shared.listings.lock();
                    listings.get_mut(&prefix.number).into_iter().for_each(|listing| listing.phase = phase.clone());
                }
                Step::Fails(error) => self.fail_prefix(&prefix, &error).await,
                Step::Starts(lister) => {
                    running.push(Arc::clone(&prefix));
                    self.start_listing(prefix, lister).await;
                }
            }
        }
    }

    /// Returns the prefixes that are being listed, and the next ones that wait, or whose listing must end.
    fn listings_now(&mut self) -> (Vec<Arc<Prefix>>, Vec<Arc<Prefix>>) {
        let (mut running, mut waiting) = (Vec::new(), Vec::new());
        let listings = self.service.shared.listings.lock();
        for listing in listings.values().filter(|listing| listing.run.is_some()) {
            match self.banned(&listing.prefix) {
                Some((_, BanKind::Cancel)) => waiting.push(Arc::clone(&listing.prefix)),
                _ => running.push(Arc::clone(&listing.prefix)),
            }
        }
        let from = self.next_prefix;
        let mut idle = listings.range(from..).chain(listings.range(..from)).filter(|(_, one)| one.run.is_none());
        waiting.extend(idle.by_ref().take(LOOKED_AT_MAX).map(|(_, listing)| Arc::clone(&listing.prefix)));
        if let Some((next, _)) = idle.next() {
            (self.next_prefix, self.are_listings_due) = (*next, true);
        }
        (running, waiting)
    }

    /// Returns the endpoint of a prefix that is banned, and the effect.
    fn banned(&self, prefix: &Prefix) -> Option<(String, BanKind)> {
        let ends = [&prefix.file.source_endpoint, &prefix.file.destination_endpoint];
        ends.into_iter().find_map(|end| Some((end.clone(), self.applied.bans.get(end.as_str())?.kind)))
    }

    fn step(&self, prefix: &Prefix, has_room: bool) -> Step {
        let at = now();
        let error = |kind, scope, text: &str| Step::Fails(Error::new(kind, scope, Phase::Prepare, text));
        match self.banned(prefix) {
            Some((_, BanKind::Cancel)) => return error(ErrorKind::Cancelled, Scope::Service, "Storage banned"),
            Some((endpoint, BanKind::Wait)) => return Step::Waits(ListingPhase::Banned(endpoint)),
            None => {}
        }
        if prefix.expires.is_some_and(|expires| expires < at) {
            return error(ErrorKind::Limit, Scope::Service, super::TOO_LONG_IN_QUEUE);
        }
        if prefix.not_before > at {
            return Step::Waits(ListingPhase::Retry(prefix.not_before));
        }
        // An operator may have changed the access since the submission.
        if let Err(error) = self.service.check_sites(&prefix.owner.vo, &prefix.file) {
            return Step::Fails(error);
        }
        let lister = match site_of(&prefix.file.source_endpoint) {
            None => Lister::Web,
            Some(site) => match self.agents.lister(self.members(site)) {
                Ok((worker, messages)) => Lister::Agent(worker, messages),
                Err(NoLister::Absent) => return Step::Waits(ListingPhase::Absent(site.to_owned())),
                Err(NoLister::Unable) => return Step::Waits(ListingPhase::Unable(site.to_owned())),
            },
        };
        if has_room { Step::Starts(lister) } else { Step::Waits(ListingPhase::Queued) }
    }

    async fn start_listing(&mut self, prefix: Arc<Prefix>, lister: Lister) {
        let (id, number) = (Uuid::new_v4(), prefix.number);
        let (sender, batches) = mpsc::channel(BATCHES_MAX + 1);
        let found = Arc::new(AtomicU64::new(0));
        let adding = Adding { service: Arc::clone(&self.service), prefix: Arc::clone(&prefix), found: found.clone() };
        let (source, ended) = (prefix.file.source.clone(), self.listing_ends.clone());
        let report = move |end| {
            // The service is stopping if nobody receives.
            let _ = ended.send(ListingEnded { prefix: number, run: id, end });
        };
        let (task, at) = match lister {
            Lister::Web => {
                let proxy =
                    self.proxies_of(std::iter::once(prefix.owner.credential.as_str())).await.into_values().next();
                let web = self.embedded.web().clone();
                let lists = async move {
                    let outcome = web.list(&source, proxy, &sender).await;
                    // The files are not wanted any more if nobody receives.
                    let _ = sender.send(Batch::Ended(outcome)).await;
                };
                let task = async move { report(tokio::join!(lists, adding.run(batches, || {})).1) };
                (tokio::spawn(task), None)
            }
            Lister::Agent(worker, messages) => {
                let _ = messages.send(ToAgent::List { listing: id, prefix: source });
                let more = move || drop(messages.send(ToAgent::More { listing: id }));
                let task = async move { report(adding.run(batches, more).await) };
                (tokio::spawn(task), Some((worker, sender)))
            }
        };
        let run = ListingRun { id, task: task.abort_handle(), at };
        let mut listings = self.service.shared.listings.lock();
        if let Some(listing) = listings.get_mut(&number) {
            listing.phase = ListingPhase::Runs;
            listing.found = found;
            listing.run = Some(run);
        }
    }

    /// Passes a batch from an agent to its listing.
    pub(super) fn handle_batch(&self, worker: &Arc<str>, id: Uuid, batch: Batch) {
        let listings = self.service.shared.listings.lock();
        let Some((number, sender)) = listings.values().find_map(|listing| listing.batches_of(worker, id)) else {
            // It has ended here.
            return self.agents.send(worker, ToAgent::StopList { listing: id });
        };
        if sender.try_send(batch).is_err() {
            let text = "the agent sent more batches of a listing than it was asked for";
            let end = ListingEnd::Listed(Err(Error::protocol(text).retry(Retry::After)));
            let _ = self.listing_ends.send(ListingEnded { prefix: number, run: id, end });
        }
    }

    /// Ends the listings of a worker whose connection has ended. They start again.
    pub(super) fn handle_lister_lost(&mut self, worker: &str) {
        for listing in self.service.shared.listings.lock().values_mut() {
            let Some(run) = listing.run.as_mut() else { continue };
            // Its task stores the batches that have arrived, and then reports the loss.
            run.at.take_if(|(at, _)| **at == *worker);
        }
        self.are_listings_due = true;
    }

    /// Ends the listings of a job that was cancelled.
    pub(super) fn handle_job_cancelled(&mut self, job: Uuid) {
        let mut listings = self.service.shared.listings.lock();
        let gone: Vec<u64> =
            listings.values().filter(|one| one.prefix.job == job).map(|one| one.prefix.number).collect();
        let gone: Vec<Listing> = gone.iter().filter_map(|number| listings.remove(number)).collect();
        drop(listings);
        gone.iter().for_each(|listing| self.stop_run(listing));
        self.are_listings_due = true;
    }

    /// Stops the agent of a listing, whose files have no use any more.
    fn stop_run(&self, listing: &Listing) {
        if let Some(ListingRun { id, at: Some((worker, _)), .. }) = &listing.run {
            self.agents.send(worker, ToAgent::StopList { listing: *id });
        }
    }

    /// Ends a run. Returns its prefix, the number of files found, and that of lost runs. `None`: it is not under way.
    fn take_run(&self, ended: &ListingEnded) -> Option<(Arc<Prefix>, u64, u32)> {
        let mut listings = self.service.shared.listings.lock();
        let listing = listings.get_mut(&ended.prefix).filter(|listing| listing.is_run(ended.run))?;
        self.stop_run(listing);
        listing.run = None;
        listing.phase = ListingPhase::Queued;
        listing.losses += u32::from(matches!(ended.end, ListingEnd::Lost));
        Some((Arc::clone(&listing.prefix), listing.found.load(Ordering::Relaxed), listing.losses))
    }

    /// Handles the end of a listing: the job may end with it, or another listing follows.
    pub(super) async fn handle_listing_ended(&mut self, ended: ListingEnded) {
        self.are_listings_due = true;
        let Some((prefix, found, losses)) = self.take_run(&ended) else { return };
        let source = &prefix.file.source;
        match ended.end {
            ListingEnd::Gone => drop(self.service.shared.listings.lock().remove(&prefix.number)),
            ListingEnd::Lost if losses <= LOST_MAX => {
                info!("job {}: the agent that listed {source} is away", prefix.job)
            }
            ListingEnd::Lost => {
                let text = format!("the agents that listed it were lost {LOST_MAX} times");
                let error = Error::new(ErrorKind::Internal, Scope::Service, Phase::Prepare, text);
                self.fail_prefix(&prefix, &error).await;
            }
            ListingEnd::Listed(Ok(())) => {
                info!("job {}: {found} files are beneath {source}", prefix.job);
                let text = format!("no file is beneath {source}");
                let nothing = Error::new(ErrorKind::NotFound, Scope::Source, Phase::Prepare, text);
                self.end_prefix(&prefix, PrefixChange::Ends { nothing_found: Failure::from(&nothing) }).await;
            }
            ListingEnd::Listed(Err(error)) => self.retry_prefix(&prefix, &error).await,
        }
    }

    /// Lists a prefix again by the retry rules of its job, or ends it.
    async fn retry_prefix(&mut self, prefix: &Prefix, error: &Error) {
        let tried = Tried { at_source: prefix.failures + 1, replicas_left: 0 };
        let after = after_failure(error, tried, &rules_of(&prefix.options), random());
        let source = &prefix.file.source;
        warn!("job {}: list {source}: {}: {}", prefix.job, error.chain(), after.rationale);
        let Next::Again(wait) = after.next else { return self.fail_prefix(prefix, error).await };
        let (failure, not_before) = (Failure::from(error), now() + wait);
        let change = PrefixChange::Retries { failure: failure.clone(), not_before };
        let write = async || self.store().change_prefix(prefix.number, change.clone(), now()).await;
        self.insist("change a prefix", write).await;
        if let Some(listing) = self.service.shared.listings.lock().get_mut(&prefix.number) {
            let failures = prefix.failures + 1;
            listing.prefix = Arc::new(Prefix { failures, not_before, failure: Some(failure), ..prefix.clone() });
            listing.phase = ListingPhase::Retry(not_before);
        }
    }

    async fn fail_prefix(&mut self, prefix: &Prefix, error: &Error) {
        warn!("job {}: {} has failed: {}", prefix.job, prefix.file.source, error.chain());
        self.end_prefix(prefix, PrefixChange::Fails { failure: Failure::from(error) }).await;
    }

    async fn end_prefix(&mut self, prefix: &Prefix, change: PrefixChange) {
        let write = async || self.store().change_prefix(prefix.number, change.clone(), now()).await;
        let state = self.insist("change a prefix", write).await;
        if let Some(state) = state.filter(|state| state.is_final()) {
            info!("job {}: {}", prefix.job, state.name());
        }
        let listing = self.service.shared.listings.lock().remove(&prefix.number);
        listing.iter().for_each(|listing| self.stop_run(listing));
    }
}

/// Adds the files of a listing to its job.
struct Adding {
    service: Arc<Service>,
    prefix: Arc<Prefix>,
    found: Arc<AtomicU64>,
}

impl Adding {
    /// Adds batches until the last one. Calls `more` after each that is stored.
    async fn run(self, mut batches: mpsc::Receiver<Batch>, more: impl Fn()) -> ListingEnd {
        let mut unlisted = Unlisted::default();
        let mut together = Vec::with_capacity(BATCHES_MAX);
        while batches.recv_many(&mut together, BATCHES_MAX).await > 0 {
            let (mut files, mut count, mut outcome) = (Vec::new(), 0, None);
            for batch in together.drain(..) {
                match batch {
                    Batch::Files(more) => {
                        files.extend(more.into_iter().filter(|file| self.has_locations(file, &mut unlisted)));
                        count += 1;
                    }
                    Batch::Ended(ended) => outcome = Some(ended),
                }
            }
            if !files.is_empty() {
                match self.add(&files).await {
                    Ok(Added::All) => {}
                    Ok(Added::Full) => return ListingEnd::Listed(Err(self.too_many())),
                    Ok(Added::Gone) => return ListingEnd::Gone,
                    Err(error) => return ListingEnd::Listed(Err(error)),
                }
                self.found.fetch_add(files.len() as u64, Ordering::Relaxed);
            }
            (0..count).for_each(|_| more());
            if let Some(outcome) = outcome {
                return ListingEnd::Listed(outcome.and_then(|()| unlisted.outcome()));
            }
        }
        ListingEnd::Lost
    }

    /// Returns true if both locations of a file are short enough. Counts it as not listed otherwise.
    fn has_locations(&self, found: &FoundFile, unlisted: &mut Unlisted) -> bool {
        let prefix = &self.prefix.file;
        let bytes = prefix.source.len().max(prefix.destination.len()) + encoded(&found.path).len();
        if bytes > LOCATION_BYTES_MAX {
            let start: String = found.path.to_string().chars().take(SHOWN_CHARS_MAX).collect();
            let text = format!("{start}…: a location of {bytes} bytes: the maximum is {LOCATION_BYTES_MAX}");
            unlisted.add(Error::new(ErrorKind::Limit, Scope::Source, Phase::Prepare, text).retry(Retry::Never));
        }
        bytes <= LOCATION_BYTES_MAX
    }

    /// Adds files. Errors: the access has changed.
    async fn add(&self, found: &[FoundFile]) -> Result<Added, Error> {
        let prefix = &self.prefix;
        let entries = found.iter().map(|file| entry_of(&prefix.file, file)).collect();
        let files = self.service.files_allowed(&prefix.owner.vo, prefix.kind, &mut Progress::default(), entries)?;
        loop {
            match self.service.store().add_found(prefix.number, files.clone(), FILES_MAX).await {
                Ok(added) => {
                    self.service.handle_added();
                    return Ok(added);
                }
                Err(e) => {
                    let source = &prefix.file.source;
                    warn!("add files beneath {source}: {}; trying again in {STORE_RETRY:?}", e.chain());
                    tokio::time::sleep(STORE_RETRY).await;
                }
            }
        }
    }

    fn too_many(&self) -> Error {
        let text = format!(
            "beneath {} are more files than the {FILES_MAX} that a job can have: those found first are copied; split the \
             prefix into several jobs",
            self.prefix.file.source
        );
        Error::new(ErrorKind::Limit, Scope::Client, Phase::Prepare, text)
    }
}

/// Returns the entry of a file that was found beneath a prefix.
fn entry_of(prefix: &NewFile, found: &FoundFile) -> Entry {
    let path = encoded(&found.path);
    let pair = Pair {
        source: format!("{}{path}", prefix.source),
        destination: format!("{}{path}", prefix.destination),
        credentials: prefix.credentials.clone(),
    };
    Entry {
        pairs: vec![pair],
        activity: Some(prefix.activity.clone()),
        size: found.size,
        deadline: prefix.deadline,
        metadata: prefix.metadata.clone(),
        ..Entry::default()
    }
}
