//! Commands: what callers ask of the service, whatever interface they use.
//!
//! Checks that a request is complete and allowed, and carries it out on the store. Refuses to know the spelling of an
//! interface.

use std::collections::BTreeMap;
use std::time::Duration;

use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};
use sterna_sched::queue::FileNumber;
use sterna_sched::replica::{Placed, Strategy};
use sterna_sched::settings::{ACTIVITY_DEFAULT, Link};
use sterna_sched::state::{FileState, JobKind};
use sterna_sched::time::UnixTime;
use uuid::Uuid;

use crate::caller::{Caller, Level, Operation};
use crate::credentials::Credentials;
use crate::endpoint::{endpoint_of, endpoint_of_prefix, site_of};
use crate::job::{Extent, File, Job, JobOptions, NewFile, NewJob};
use crate::service::{Service, link_of, name_of, now};
use crate::store::{Change, Changed, Decision, DecisionKind, Event, FileFilter, JobFilter, Submitted};

/// Lowest and highest priority. Source: FTS3.
pub const PRIORITIES: (u8, u8) = (1, 5);

/// Priority of a job that asks for none. Source: FTS3.
pub const PRIORITY_DEFAULT: u8 = 3;

/// Maximum number of files in one job. Reason: a larger data set is several jobs, whose queues stay readable.
pub const FILES_MAX: u64 = 1_000_000;

/// Maximum number of sources of one entry. Reason: each failure looks at all of them, and real files have a few.
const REPLICAS_MAX: usize = 100;

/// Maximum number of hops of a job. Reason: each end looks at its neighbours, and real paths have two or three.
const HOPS_MAX: u64 = 100;

/// Maximum number of prefixes in one job. Reason: each is listed separately, and a manifest names most of them by one
/// prefix above.
pub const PREFIXES_MAX: usize = 1000;

/// Maximum bytes of a file that shares a session with others, unless its job asks for that. Reason: on a path of 10
/// Gbit/s with a round trip of 200 ms a larger file takes longer than the start of a session.
const SMALL_FILE_MAX: u64 = 64 << 20;

/// Maximum bytes of each location of a file that shares a session. Reason: the paths and digests of 100 files fit in
/// the 32 kB of a request.
const SHARED_LOCATION_BYTES_MAX: usize = 240;

/// Maximum bytes of a checksum with its algorithm. Reason: SHA-512 has 136.
const CHECKSUM_BYTES_MAX: usize = 256;

/// Reason of a job that its user cancelled. Source: the text of FTS3.
pub const CANCELLED_BY_USER: &str = "Job canceled by the user";

/// Replica of an entry, or its only source.
#[derive(Clone, Debug, Default)]
pub struct Pair {
    /// Source.
    pub source: String,
    /// Destination.
    pub destination: String,
    /// Credentials for both.
    pub credentials: Credentials,
}

/// Entry of a job that is submitted: one file that shall arrive, or all files beneath a prefix.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// Extent.
    pub extent: Extent,
    /// Pairs of source and destination; the first that arrives ends the entry.
    pub pairs: Vec<Pair>,
    /// Strategy that chooses among them.
    pub strategy: Strategy,
    /// Activity; `None`: `default`.
    pub activity: Option<String>,
    /// Size in bytes, if known.
    pub size: Option<u64>,
    /// Checksum, `ALGORITHM:value` or `ALGORITHM`.
    pub checksum: Option<String>,
    /// Latest time at which the file shall have arrived, in milliseconds since 1970.
    pub deadline: Option<i64>,
    /// Data of the user.
    pub metadata: Option<serde_json::Value>,
    /// Fields of an FTS3 request that only its replies need.
    pub fts: Option<serde_json::Value>,
}

/// Job that a caller submits.
#[derive(Clone, Debug, Default)]
pub struct Submission {
    /// Identifier; `None`: a random one.
    pub id: Option<Uuid>,
    /// Kind.
    pub kind: JobKind,
    /// Priority.
    pub priority: Option<u8>,
    /// Maximum time in the queue.
    pub queue_time: Option<Duration>,
    /// Options.
    pub options: JobOptions,
    /// Further attempts of a file if neither the options nor the virtual organisation have a number; `None`: those of
    /// the service.
    pub retries_else: Option<u32>,
    /// Data of the user.
    pub metadata: Option<serde_json::Value>,
    /// Key that makes a repeated request find the first job.
    pub idempotency_key: Option<String>,
    /// Entries.
    pub entries: Vec<Entry>,
}

/// Entries of a submission up to now.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Number of entries, without prefixes.
    entries: u64,
    /// Number of prefixes.
    prefixes: usize,
    /// Destination of the last hop, in a job of hops.
    reached: Option<String>,
    /// Files that wait.
    placed: Placed,
}

/// Outcome of a cancellation.
#[derive(Clone, Debug)]
pub enum Cancelled {
    /// The job is cancelled now.
    Now(Box<Job>),
    /// It had ended before.
    EndedBefore(Box<Job>),
}

fn usage(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text)
}

impl Service {
    /// Stores a job. Returns its identifier: that of the first job if the key was used before.
    ///
    /// Errors: `Denied`; `Usage`; `Exists`, when the identifier is taken.
    pub async fn submit(&self, caller: &Caller, mut submission: Submission) -> Result<Uuid, Error> {
        caller.check_level(Operation::Transfer, Level::Own)?;
        let entries = std::mem::take(&mut submission.entries);
        if entries.iter().all(|entry| entry.pairs.is_empty()) {
            return Err(usage("No valid pairs available"));
        }
        let files = self.files_of_entries(caller, submission.kind, &mut Progress::default(), entries)?;
        if files.len() as u64 > FILES_MAX {
            return Err(usage(format!("{} files: the maximum of a job is {FILES_MAX}", files.len())));
        }
        let job = self.new_job(caller, submission);
        let id = job.id;
        match self.store().submit(job, files, true).await? {
            Submitted::New => {
                self.handle_added();
                Ok(id)
            }
            Submitted::Repeated(first) => Ok(first),
            Submitted::IdTaken => {
                let text = "The sid provided by the user is duplicated";
                Err(Error::new(ErrorKind::Exists, Scope::Client, Phase::Prepare, text))
            }
        }
    }

    /// Returns the files of entries of a job. `progress`: what came before them.
    ///
    /// Errors: `Usage`; `Denied`, when an endpoint or the caller is banned.
    pub(crate) fn files_of_entries(
        &self,
        caller: &Caller,
        kind: JobKind,
        progress: &mut Progress,
        entries: Vec<Entry>,
    ) -> Result<Vec<NewFile>, Error> {
        let files = self.files_allowed(caller.vo(), kind, progress, entries)?;
        let mut endpoints: Vec<&str> = files.iter().map(|file: &NewFile| file.source_endpoint.as_str()).collect();
        endpoints.extend(files.iter().map(|file| file.destination_endpoint.as_str()));
        endpoints.sort_unstable();
        endpoints.dedup();
        self.check_bans(caller, endpoints.into_iter())?;
        Ok(files)
    }

    /// Returns the files of entries of a job of a virtual organisation, which was accepted before. As
    /// [`Service::files_of_entries`] in all else.
    pub(crate) fn files_allowed(
        &self,
        vo: &str,
        kind: JobKind,
        progress: &mut Progress,
        entries: Vec<Entry>,
    ) -> Result<Vec<NewFile>, Error> {
        let mut files = Vec::with_capacity(entries.len());
        for entry in entries {
            if kind == JobKind::Hops {
                if progress.entries >= HOPS_MAX {
                    return Err(usage(format!("more than {HOPS_MAX} hops: the maximum of a job")));
                }
                check_hop(&entry, &mut progress.reached)?;
            }
            let extent = entry.extent;
            self.add_entry(entry, (vo, kind), progress, &mut files)?;
            match extent {
                Extent::File => progress.entries += 1,
                // Its files get their numbers when they are found.
                Extent::Prefix => progress.prefixes += 1,
            }
        }
        if progress.prefixes > PREFIXES_MAX {
            let text = format!(
                "more than {PREFIXES_MAX} prefixes, the maximum of a job: split it, or name a prefix above them"
            );
            return Err(Error::new(ErrorKind::Limit, Scope::Client, Phase::Prepare, text));
        }
        for file in &files {
            self.check_sites(vo, file)?;
        }
        Ok(files)
    }

    /// Returns the job of a submission, without its entries.
    pub(crate) fn new_job(&self, caller: &Caller, mut submission: Submission) -> NewJob {
        self.add_defaults(caller, &mut submission);
        // Only between hops are there copies that nobody asked to keep.
        submission.options.deletes_between &= submission.kind == JobKind::Hops;
        let submitted = now();
        NewJob {
            id: submission.id.unwrap_or_else(Uuid::new_v4),
            kind: submission.kind,
            owner: caller.owner(),
            priority: submission.priority.unwrap_or(PRIORITY_DEFAULT).clamp(PRIORITIES.0, PRIORITIES.1),
            submitted,
            expires: submission.queue_time.map(|time| submitted + time),
            options: submission.options,
            metadata: submission.metadata,
            idempotency_key: submission.idempotency_key,
        }
    }

    /// Gives a job the defaults of its virtual organisation, where it asks for nothing else.
    fn add_defaults(&self, caller: &Caller, submission: &mut Submission) {
        let applied = self.applied();
        let options = &mut submission.options;
        if let Some(defaults) = applied.defaults_of(caller.vo()) {
            options.retries = options.retries.or(u32::try_from(defaults.retry).ok().filter(|retry| *retry > 0));
            options.timeout_s = options.timeout_s.or(Some(defaults.global_timeout).filter(|timeout| *timeout > 0));
            let hours = Some(u64::from(defaults.max_time_queue)).filter(|hours| *hours > 0);
            submission.queue_time = submission.queue_time.or(hours.map(|hours| Duration::from_secs(hours * 3600)));
        }
        options.retries = options.retries.or(submission.retries_else);
    }

    /// Adds the files of an entry. The best replica waits, the others are in reserve.
    fn add_entry(
        &self,
        entry: Entry,
        (vo, kind): (&str, JobKind),
        progress: &mut Progress,
        files: &mut Vec<NewFile>,
    ) -> Result<(), Error> {
        let number = progress.entries;
        if entry.pairs.len() > REPLICAS_MAX {
            let text = format!("an entry with {} sources: the maximum is {REPLICAS_MAX}", entry.pairs.len());
            return Err(usage(text));
        }
        let is_reserved = kind == JobKind::Hops && number > 0;
        let mut links: Vec<Link> = Vec::with_capacity(entry.pairs.len());
        for pair in &entry.pairs {
            links.push(match entry.extent {
                Extent::File => link_of(&endpoint_of(&pair.source)?, &endpoint_of(&pair.destination)?),
                Extent::Prefix => link_of(&endpoint_of_prefix(&pair.source)?, &endpoint_of_prefix(&pair.destination)?),
            });
        }
        if let Some(checksum) = entry.checksum.as_ref().filter(|checksum| checksum.len() > CHECKSUM_BYTES_MAX) {
            let text = format!("a checksum of {} bytes: the maximum is {CHECKSUM_BYTES_MAX}", checksum.len());
            return Err(usage(text));
        }
        let activity = entry.activity.clone().unwrap_or_else(|| ACTIVITY_DEFAULT.to_owned());
        let has_replicas = links.len() > 1;
        let (of, placed) = ((vo, activity.as_str()), &progress.placed);
        let ranking = has_replicas.then(|| self.rank(entry.strategy, entry.size, of, &links, placed));
        let best = ranking.as_ref().and_then(|ranking| ranking.order.first().copied()).unwrap_or(0);
        if let Some(link) = links.get(best).filter(|_| !is_reserved) {
            progress.placed.add(link, &self.wanted(entry.size, of));
        }
        let mut choice = ranking.map(|ranking| ranking.rationale);
        for (index, (pair, link)) in entry.pairs.into_iter().zip(links).enumerate() {
            let is_between_sites = [&link.source, &link.destination].into_iter().all(|end| site_of(end).is_some());
            let is_short = pair.source.len().max(pair.destination.len()) <= SHARED_LOCATION_BYTES_MAX;
            let is_small = entry.size.is_some_and(|size| size <= SMALL_FILE_MAX);
            let shares_session = match kind {
                JobKind::Files => is_between_sites && is_small && !has_replicas && is_short,
                JobKind::Reuse => is_between_sites && is_short,
                // The copy between two hops may be deleted after each.
                JobKind::Hops => false,
            };
            files.push(NewFile {
                extent: entry.extent,
                entry: number,
                source: pair.source,
                destination: pair.destination,
                source_endpoint: link.source.to_string(),
                destination_endpoint: link.destination.to_string(),
                activity: activity.clone(),
                strategy: has_replicas.then(|| entry.strategy.name().to_owned()),
                size: entry.size,
                checksum: entry.checksum.clone(),
                is_reserved: is_reserved || index != best,
                shares_session,
                deadline: entry.deadline,
                metadata: entry.metadata.clone(),
                fts: entry.fts.clone(),
                choice: if index == best { choice.take() } else { None },
                credentials: pair.credentials,
            });
        }
        Ok(())
    }

    /// Returns jobs of these identifiers, in their order. Each that does not exist, or that the caller may not see, has
    /// its error.
    pub async fn jobs(&self, caller: &Caller, ids: &[String]) -> Result<Vec<Result<Job, Error>>, Error> {
        let parsed: Vec<Option<Uuid>> = ids.iter().map(|id| Uuid::try_parse(id).ok()).collect();
        let filter = JobFilter { ids: parsed.iter().flatten().copied().collect(), ..JobFilter::default() };
        let found = match filter.ids.is_empty() {
            true => Vec::new(),
            false => self.store().jobs(filter).await?,
        };
        let by_id: BTreeMap<Uuid, Job> = found.into_iter().map(|job| (job.new.id, job)).collect();
        let mut jobs = Vec::with_capacity(ids.len());
        for (id, text) in parsed.into_iter().zip(ids) {
            let job = id.and_then(|id| by_id.get(&id).cloned());
            jobs.push(match job {
                Some(job) => caller.check(Operation::Transfer, &job.new.owner).map(|()| job),
                None => Err(no_job(text)),
            });
        }
        Ok(jobs)
    }

    /// Returns one job. Errors: `NotFound`, `Denied`.
    pub async fn job(&self, caller: &Caller, id: &str) -> Result<Job, Error> {
        let jobs = self.jobs(caller, &[id.to_owned()]).await?;
        jobs.into_iter().next().unwrap_or_else(|| Err(no_job(id)))
    }

    /// Returns one job, also from the archive, and true if it is there. Errors: `NotFound`, `Denied`.
    pub async fn job_of_any_age(&self, caller: &Caller, id: &str) -> Result<(Job, bool), Error> {
        match self.job(caller, id).await {
            Ok(job) => Ok((job, false)),
            Err(error) if error.kind == ErrorKind::NotFound => {
                let Ok(parsed) = Uuid::try_parse(id) else { return Err(error) };
                let filter = JobFilter { ids: vec![parsed], is_archived: true, ..JobFilter::default() };
                let job = self.store().jobs(filter).await?.pop().ok_or(error)?;
                caller.check(Operation::Transfer, &job.new.owner).map(|()| (job, true))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns one file, also from the archive. Errors: `NotFound`, also if the caller may not see its job.
    pub async fn file_of_any_age(&self, caller: &Caller, number: &str) -> Result<File, Error> {
        let missing = || {
            let text = format!("there is no file {number}");
            Error::new(ErrorKind::NotFound, Scope::Client, Phase::Prepare, text)
        };
        let parsed = number.parse().map(FileNumber).map_err(|_| missing())?;
        let filter = FileFilter { numbers: vec![parsed], ..FileFilter::default() };
        let mut found = self.store().files(filter.clone()).await?;
        if found.is_empty() {
            found = self.store().files(FileFilter { is_archived: true, ..filter }).await?;
        }
        let file = found.pop().ok_or_else(missing)?;
        match self.job_of_any_age(caller, &file.job.to_string()).await {
            Ok(_) => Ok(file),
            // Who may not see the job learns nothing about the file.
            Err(error) if error.kind == ErrorKind::Denied => Err(missing()),
            Err(error) => Err(error),
        }
    }

    /// Cancels one file. Returns it, and true if it had ended before.
    ///
    /// Errors: `NotFound`; `Usage`, for a replica or a hop that waits for another file: its entry goes on without it.
    pub async fn cancel_one(&self, caller: &Caller, number: &str) -> Result<(File, bool), Error> {
        let file = self.file_of_any_age(caller, number).await?;
        if file.state.is_final() {
            return Ok((file, true));
        }
        if file.state == FileState::Reserved {
            let text = format!(
                "file {number} waits for another replica or an earlier hop: cancel the file that goes first, or the job"
            );
            return Err(usage(text));
        }
        let state = self.cancel_file(&file, CANCELLED_BY_USER, None).await?;
        let after = self.file_of_any_age(caller, number).await?;
        Ok((after, state != FileState::Cancelled))
    }

    /// Returns the files of a job. Errors: `NotFound`, `Denied`.
    pub async fn files(&self, caller: &Caller, id: &str) -> Result<Vec<File>, Error> {
        let job = self.job(caller, id).await?;
        self.store().files(FileFilter { jobs: vec![job.new.id], ..FileFilter::default() }).await
    }

    /// Returns the files of jobs that the caller may see, by job.
    pub(crate) async fn files_of(&self, jobs: impl Iterator<Item = &Job>) -> Result<BTreeMap<Uuid, Vec<File>>, Error> {
        let ids: Vec<Uuid> = jobs.map(|job| job.new.id).collect();
        let mut by_job: BTreeMap<Uuid, Vec<File>> = BTreeMap::new();
        // A filter without jobs would select those of everybody.
        if !ids.is_empty() {
            for file in self.store().files(FileFilter { jobs: ids, ..FileFilter::default() }).await? {
                by_job.entry(file.job).or_default().push(file);
            }
        }
        Ok(by_job)
    }

    /// Cancels a job. Errors: `NotFound`, `Denied`.
    pub async fn cancel(&self, caller: &Caller, id: &str) -> Result<Cancelled, Error> {
        let job = self.job(caller, id).await?;
        let cancelled = self.store().cancel(job.new.id, CANCELLED_BY_USER.to_owned(), now()).await?;
        let after = Box::new(self.job(caller, id).await?);
        Ok(match cancelled {
            Some(files) => {
                self.handle_job_cancelled(job.new.id, files);
                Cancelled::Now(after)
            }
            None => Cancelled::EndedBefore(after),
        })
    }

    /// Cancels all jobs that have not ended, or those of a virtual organisation. Returns the numbers of jobs and files.
    /// Needs the level `all` of `transfer`.
    ///
    /// Errors: `Denied`.
    pub async fn cancel_all_jobs(&self, caller: &Caller, vo: Option<String>) -> Result<(usize, usize), Error> {
        caller.check_level(Operation::Transfer, Level::All)?;
        let (mut jobs, mut files) = (0, 0);
        for job in self.store().jobs(JobFilter { vo, ..JobFilter::default() }).await? {
            if let Some(cancelled) = self.store().cancel(job.new.id, CANCELLED_BY_USER.to_owned(), now()).await? {
                jobs += 1;
                files += cancelled.len();
                self.handle_job_cancelled(job.new.id, cancelled);
            }
        }
        Ok((jobs, files))
    }

    /// Cancels files of a job. Returns the state of each: cancelled, or the one in which it had ended.
    ///
    /// Errors: `NotFound`, `Denied`.
    pub async fn cancel_files(
        &self,
        caller: &Caller,
        id: &str,
        numbers: &[u64],
    ) -> Result<Vec<Option<FileState>>, Error> {
        let files = self.files(caller, id).await?;
        let files: BTreeMap<u64, File> = files.into_iter().map(|file| (file.number.0, file)).collect();
        let mut states = Vec::with_capacity(numbers.len());
        for number in numbers {
            let Some(file) = files.get(number) else {
                states.push(None);
                continue;
            };
            states.push(Some(self.cancel_file(file, CANCELLED_BY_USER, None).await?));
        }
        Ok(states)
    }

    /// Returns the change that cancels a file in a state. `successor`: the replica that goes next, with the reason.
    pub(crate) fn cancellation(
        &self,
        file: &File,
        from: FileState,
        reason: &str,
        successor: Option<&(FileNumber, String)>,
        at: UnixTime,
    ) -> Change {
        let decision = successor.map(|(_, why)| {
            let text = format!("{} was cancelled: {reason}; {why}", name_of(file));
            Decision::new(DecisionKind::Failover, text)
        });
        let what = Event::Cancels { reason: reason.to_owned(), successor: successor.map(|(number, _)| *number) };
        Change { file: file.number, from, of_worker: None, what, decision, at }
    }

    /// Cancels a file. `successor`: the replica of its entry that goes next, with the reason. Returns its state then:
    /// cancelled, or the one in which it had ended.
    pub(crate) async fn cancel_file(
        &self,
        file: &File,
        reason: &str,
        successor: Option<&(FileNumber, String)>,
    ) -> Result<FileState, Error> {
        let mut from = file.state;
        // It may start or end at the same time: then its new state counts.
        loop {
            if from.is_final() {
                return Ok(from);
            }
            let change = self.cancellation(file, from, reason, successor, now());
            match self.store().change(vec![change]).await?.into_iter().next() {
                Some(Changed::Done { waiting, .. }) => {
                    self.handle_waiting(waiting);
                    self.handle_cancelled(vec![file.number]);
                    return Ok(FileState::Cancelled);
                }
                _ => {
                    let filter = FileFilter { numbers: vec![file.number], ..FileFilter::default() };
                    let now = self.store().files(filter).await?.into_iter().next();
                    from = now.ok_or_else(|| no_job(&file.job.to_string()))?.state;
                }
            }
        }
    }

    /// Sets the priority of a job. Errors: `NotFound`, `Denied`.
    pub async fn set_priority(&self, caller: &Caller, id: &str, priority: u8) -> Result<Job, Error> {
        let job = self.job(caller, id).await?;
        let priority = priority.clamp(PRIORITIES.0, PRIORITIES.1);
        if self.store().set_priority(job.new.id, priority).await? {
            self.handle_reordered(job.new.id);
        }
        self.job(caller, id).await
    }

    /// Returns jobs that the caller may see.
    pub async fn list(&self, caller: &Caller, mut filter: JobFilter) -> Result<Vec<Job>, Error> {
        match caller.level(Operation::Transfer) {
            Level::None => caller.check_level(Operation::Transfer, Level::Own)?,
            Level::Own => filter.credential = Some(caller.credential.clone()),
            Level::Vo => filter.vo = Some(caller.vo().to_owned()),
            Level::All => {}
        }
        self.store().jobs(filter).await
    }
}

/// Checks that a hop has one source, which is the destination of the hop before: its copy there may be deleted.
fn check_hop(entry: &Entry, reached: &mut Option<String>) -> Result<(), Error> {
    let [pair] = entry.pairs.as_slice() else {
        return Err(usage("a hop has one source and one destination"));
    };
    if entry.extent == Extent::Prefix {
        return Err(usage("a hop is one file: a job of hops has no prefixes"));
    }
    if let Some(end) = reached.as_ref().filter(|end| **end != pair.source) {
        let start = &pair.source;
        return Err(usage(format!("Hops must be consecutive: one ends at {end}, and the next starts at {start}")));
    }
    *reached = Some(pair.destination.clone());
    Ok(())
}

fn no_job(id: &str) -> Error {
    // Source of the text: FTS3.
    Error::new(
        ErrorKind::NotFound,
        Scope::Client,
        Phase::Prepare,
        format!("No job with the id \"{id}\" has been found"),
    )
    .retry(Retry::Never)
}
