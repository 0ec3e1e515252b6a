//! Types of the native interface. Names and units are part of it: none is renamed.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sterna_proto::plan::LANES_MAX;
use sterna_proto::quantity::readable_time;
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};
use sterna_sched::breaker::Blocked;
use sterna_sched::replica::Strategy;
use sterna_sched::state::JobKind;
use sterna_sched::time::UnixTime;
use sterna_sched::why::{Waits, Why};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::checksum;
use crate::command::{Entry, Pair, Submission};
use crate::endpoint::{is_directory, site_of};
use crate::job::{ChecksumPolicy, Cleanup, Extent, Failure, File, Job, JobOptions, Moved, OverwritePolicy};
use crate::listing::{ListingPhase, ListingState};
use crate::settings::{Ban, BanKind};
use crate::site::{SiteAccess, SiteRight};
use crate::store::{Attempt, Decided, Decision, Feed};
use crate::web::is_web;

/// Maximum time in the queue in seconds: a year. Reason: a longer one is a mistake.
const QUEUE_S_MAX: u64 = 366 * 86_400;

/// Maximum size of a file in bytes. Reason: databases have signed integers.
const SIZE_MAX: u64 = i64::MAX as u64;

/// Maximum number of further attempts of a file. Reason: a larger one is a mistake.
const RETRIES_MAX: u32 = 1000;

/// Maximum bytes of the metadata of a job or a file, as JSON.
const METADATA_BYTES_MAX: usize = 4096;

/// Names of the strategies that choose among several sources.
pub const STRATEGIES: [&str; 10] = Strategy::NAMES;

fn usage(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text)
}

/// Problem with a request.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Kind of the problem, such as `not_found`, `denied` or `usage`; never renamed.
    pub kind: String,
    /// Whose problem it is: `client`, `service`, `source`, `destination` or `path`.
    pub scope: String,
    /// Phase: `prepare`, `transfer`, `verify` or `finalise`.
    pub phase: String,
    /// Use of another attempt: `never`, `after` or `other_replica`.
    pub retry: String,
    /// Text for people.
    pub text: String,
}

impl From<&Error> for Problem {
    fn from(error: &Error) -> Self {
        Self {
            kind: error.kind.name().to_owned(),
            scope: error.scope.name().to_owned(),
            phase: error.phase.name().to_owned(),
            retry: error.retry.name().to_owned(),
            text: error.chain(),
        }
    }
}

impl Problem {
    /// Returns the failure that it describes. Names of a newer service become a failure of the service.
    pub fn to_error(&self) -> Error {
        let codes = || 1..=u8::MAX;
        let kind = codes().filter_map(ErrorKind::from_code).find(|kind| kind.name() == self.kind);
        let scope = codes().filter_map(Scope::from_code).find(|scope| scope.name() == self.scope);
        let phase = codes().filter_map(Phase::from_code).find(|phase| phase.name() == self.phase);
        let retry = codes().filter_map(Retry::from_code).find(|retry| retry.name() == self.retry);
        let (scope, phase) = (scope.unwrap_or(Scope::Service), phase.unwrap_or(Phase::Transfer));
        let error = Error::new(kind.unwrap_or(ErrorKind::Other(0)), scope, phase, self.text.clone());
        error.retry(retry.unwrap_or(Retry::Never))
    }
}

impl From<&Failure> for Problem {
    fn from(failure: &Failure) -> Self {
        Self::from(&failure.to_error())
    }
}

/// Job to submit.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NewJob {
    /// Priority, from 1 (lowest) to 5; 3 without it.
    #[schema(minimum = 1, maximum = 5)]
    pub priority: Option<u8>,
    /// The files are the hops of one file, in order.
    pub hops: bool,
    /// Files between agents share sessions, whatever their size. Without it, only small files of a known size do.
    pub reuse: bool,
    /// Copies between hops stay. Without it, each is deleted when the next hop has arrived.
    pub keeps_between: bool,
    /// Activity of the files that name none.
    pub activity: Option<String>,
    /// Checksums: `none`, `source`, `target` or `both`. Transfers between agents are verified by BLAKE3 besides.
    pub checksum: Option<String>,
    /// Treatment of a destination that exists: `never`, `always` or `on_retry`.
    pub overwrite: Option<String>,
    /// Maximum number of further attempts of a file.
    #[schema(maximum = 1000)]
    pub retries: Option<u32>,
    /// First wait before another attempt, in seconds.
    pub retry_wait_s: Option<u32>,
    /// Time limit of one attempt, in seconds.
    pub timeout_s: Option<u32>,
    /// Number of lanes of a transfer between agents, or of streams of one between storages. Without it, found by
    /// measurement.
    #[schema(minimum = 1, maximum = 64)]
    pub lanes: Option<u32>,
    /// Maximum time in the queue, in seconds.
    pub queue_time_s: Option<u64>,
    /// Deadline of the files that name none.
    pub deadline_ms: Option<i64>,
    /// Data of the user, returned as it came.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Value>,
    /// Files.
    pub files: Vec<NewFile>,
}

/// File to submit.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NewFile {
    /// Sources: replicas of the file.
    pub sources: Vec<String>,
    /// Destination.
    pub destination: String,
    /// All files beneath the one source go beneath the destination, with the same relative paths. Both are directories:
    /// they end with `/`. The service lists the source in the background (an agent, or a WebDAV server). Symlinks are
    /// not followed.
    pub recursive: bool,
    /// Strategy that chooses among several sources; `best` without it.
    pub strategy: Option<String>,
    /// Activity.
    pub activity: Option<String>,
    /// Size in bytes.
    #[schema(maximum = 9_223_372_036_854_775_807_i64)]
    pub size: Option<u64>,
    /// Checksum, `ALGORITHM:value`, or `ALGORITHM`: adler32, crc32c, md5, sha256, or between agents blake3.
    pub checksum: Option<String>,
    /// Deadline: latest time at which the file shall have arrived, in milliseconds since 1970. A file without slack
    /// goes before all others of its virtual organisation on its link. A file whose deadline has passed is transferred
    /// still.
    pub deadline_ms: Option<i64>,
    /// Data of the user, returned as it came.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Value>,
}

impl NewJob {
    /// Returns the command, without the files that follow in a manifest. Errors: `Usage`, for a value that is not
    /// understood.
    pub fn into_submission(mut self, idempotency_key: Option<String>) -> Result<Submission, Error> {
        let files = std::mem::take(&mut self.files);
        let entries = files.into_iter().enumerate().map(|(index, file)| {
            let entry = file.into_entry(self.activity.as_deref(), self.deadline_ms);
            entry.map_err(|e| usage(format!("file {}: {}", index + 1, e.text())))
        });
        let entries = entries.collect::<Result<_, _>>()?;
        let checksum = match self.checksum.as_deref() {
            None | Some("none") => ChecksumPolicy::None,
            Some("source") => ChecksumPolicy::Source,
            Some("target") => ChecksumPolicy::Target,
            Some("both") => ChecksumPolicy::Both,
            Some(other) => return Err(usage(format!("checksum {other}: expected none, source, target or both"))),
        };
        let overwrite = match self.overwrite.as_deref() {
            None | Some("never") => OverwritePolicy::Never,
            Some("always") => OverwritePolicy::Always,
            Some("on_retry") => OverwritePolicy::OnRetry,
            Some(other) => return Err(usage(format!("overwrite {other}: expected never, always or on_retry"))),
        };
        if let Some(seconds) = self.queue_time_s.filter(|seconds| *seconds > QUEUE_S_MAX) {
            return Err(usage(format!("queue_time_s {seconds}: the maximum is {QUEUE_S_MAX}")));
        }
        if let Some(priority) = self.priority.filter(|priority| !(1..=5).contains(priority)) {
            return Err(usage(format!("priority {priority}: expected 1 to 5")));
        }
        if let Some(retries) = self.retries.filter(|retries| *retries > RETRIES_MAX) {
            return Err(usage(format!("retries {retries}: the maximum is {RETRIES_MAX}")));
        }
        if let Some(lanes) = self.lanes.filter(|lanes| !(1..=LANES_MAX).contains(lanes)) {
            return Err(usage(format!("lanes {lanes}: expected 1 to {LANES_MAX}")));
        }
        check_metadata(self.metadata.as_ref())?;
        let kind = match (self.hops, self.reuse) {
            (true, true) => return Err(usage("hops and reuse: hops have sessions of their own")),
            (true, false) => JobKind::Hops,
            (false, true) => JobKind::Reuse,
            (false, false) => JobKind::Files,
        };
        let options = JobOptions {
            checksum,
            overwrite,
            retries: self.retries,
            retry_wait_s: self.retry_wait_s,
            timeout_s: self.timeout_s,
            lanes: self.lanes,
            deletes_between: self.hops && !self.keeps_between,
            ..JobOptions::default()
        };
        Ok(Submission {
            id: None,
            kind,
            priority: self.priority,
            queue_time: self.queue_time_s.map(std::time::Duration::from_secs),
            options,
            retries_else: None,
            metadata: self.metadata,
            idempotency_key,
            entries,
        })
    }
}

fn check_metadata(metadata: Option<&Value>) -> Result<(), Error> {
    let bytes = metadata.map_or(0, |value| value.to_string().len());
    match bytes <= METADATA_BYTES_MAX {
        true => Ok(()),
        false => Err(usage(format!("metadata of {bytes} bytes: the maximum is {METADATA_BYTES_MAX}"))),
    }
}

impl NewFile {
    /// Returns the extent. Errors: `Usage`, for a directory that is not to be listed, or one that cannot be listed.
    fn extent(&self) -> Result<Extent, Error> {
        let mut locations = self.sources.iter().chain([&self.destination]);
        if !self.recursive {
            return match locations.find(|location| is_directory(location)) {
                None => Ok(Extent::File),
                Some(directory) => Err(usage(format!(
                    "{directory} names a directory: with \"recursive\": true (sterna submit --recursive) all files \
                     beneath it are copied"
                ))),
            };
        }
        let [source] = self.sources.as_slice() else {
            return Err(usage("a recursive entry has one source: replicas of a directory cannot be listed as one"));
        };
        if self.size.is_some() || self.checksum.is_some() || self.strategy.is_some() {
            return Err(usage("size, checksum and strategy are of one file, and not of a recursive entry"));
        }
        if site_of(source).is_none() && !is_web(source) {
            let text = format!("{source} cannot be listed: expected sterna://, or a WebDAV server (davs://, https://)");
            return Err(usage(text));
        }
        Ok(Extent::Prefix)
    }

    /// Returns the entry of a job. `activity` and `deadline_ms`: those of a file that names none. Errors: `Usage`.
    pub fn into_entry(self, activity: Option<&str>, deadline_ms: Option<i64>) -> Result<Entry, Error> {
        if self.sources.is_empty() || self.destination.is_empty() {
            return Err(usage("expected sources and a destination"));
        }
        let extent = self.extent()?;
        let strategy = match self.strategy.as_deref() {
            None => Strategy::default(),
            Some(name) => Strategy::by_name(name).ok_or_else(|| usage(format!("there is no strategy {name}")))?,
        };
        if let Some(size) = self.size.filter(|size| *size > SIZE_MAX) {
            return Err(usage(format!("size {size}: the maximum is {SIZE_MAX}")));
        }
        self.checksum.as_deref().map(checksum::read).transpose()?;
        check_metadata(self.metadata.as_ref())?;
        let destination = self.destination;
        let pair = |source| Pair { source, destination: destination.clone(), ..Pair::default() };
        Ok(Entry {
            extent,
            pairs: self.sources.into_iter().map(pair).collect(),
            strategy,
            activity: self.activity.or_else(|| activity.map(str::to_owned)),
            size: self.size,
            checksum: self.checksum,
            deadline: self.deadline_ms.or(deadline_ms),
            metadata: self.metadata,
            fts: None,
        })
    }
}

/// Job that was accepted.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Accepted {
    /// Job.
    pub id: Uuid,
    /// Number of files of the request.
    pub files: u64,
}

/// Change of a job.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Patch {
    /// Priority, from 1 (lowest) to 5.
    #[schema(minimum = 1, maximum = 5)]
    pub priority: u8,
}

/// Numbers of the entries of a job: each is a destination, with one or more sources.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Entries {
    /// All.
    pub all: u64,
    /// Arrived.
    pub finished: u64,
    /// Failed.
    pub failed: u64,
    /// Cancelled.
    pub cancelled: u64,
    /// Transfers under way.
    pub active: u64,
    /// Prefixes whose files are still being listed: more entries come.
    #[serde(default)]
    pub listing: u64,
}

/// Job.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct JobView {
    /// Identifier.
    pub id: Uuid,
    /// State: `open`, `waiting`, `active`, `finished`, `partly_finished`, `failed` or `cancelled`.
    pub state: String,
    /// Name of the owner.
    pub owner: String,
    /// Virtual organisation.
    pub vo: String,
    /// Priority.
    pub priority: u8,
    /// Time of the submission, in milliseconds since 1970.
    pub submitted_ms: i64,
    /// End, in milliseconds since 1970.
    pub finished_ms: Option<i64>,
    /// Reason for the state.
    pub reason: Option<String>,
    /// Entries.
    pub entries: Entries,
    /// Prefixes whose files are still being listed, in the reply to a request for one job.
    #[serde(default)]
    pub listings: Vec<ListingView>,
    /// The job is in the archive, where nothing changes.
    #[serde(default)]
    pub is_archived: bool,
    /// Data of the user.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Value>,
}

impl From<&Job> for JobView {
    fn from(job: &Job) -> Self {
        let entries = &job.entries;
        Self {
            id: job.new.id,
            state: job.state.name().to_owned(),
            owner: job.new.owner.name.clone(),
            vo: job.new.owner.vo.clone(),
            priority: job.new.priority,
            submitted_ms: job.new.submitted.0,
            finished_ms: job.finished.map(|at| at.0),
            reason: job.reason.clone(),
            entries: Entries {
                all: entries.all,
                finished: entries.finished,
                failed: entries.failed,
                cancelled: entries.cancelled,
                active: entries.active,
                listing: entries.listing,
            },
            listings: Vec::new(),
            is_archived: false,
            metadata: job.new.metadata.clone(),
        }
    }
}

/// Prefix of a job whose files are still being listed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ListingView {
    /// Source.
    pub source: String,
    /// Destination.
    pub destination: String,
    /// Number of files that this listing has found up to now.
    pub found: u64,
    /// Number of listings that have failed.
    pub failures: u32,
    /// Failure of the last one.
    pub failure: Option<Problem>,
    /// Text for people: that it is being listed, or why it waits.
    pub text: String,
}

impl ListingView {
    /// Creates the view of a state at a time.
    pub fn new(state: &ListingState, now: UnixTime) -> Self {
        let text = match &state.phase {
            ListingPhase::Runs => format!("being listed, {} files found", state.found),
            ListingPhase::Queued => "waits for other listings".to_owned(),
            ListingPhase::Absent(site) => format!("waits: no agent of {site} is connected"),
            ListingPhase::Unable(site) => format!("waits: the agent of {site} is of a release that lists no files"),
            ListingPhase::Banned(endpoint) => format!("waits: an operator has banned {endpoint}"),
            ListingPhase::Retry(then) => {
                format!("the listing has failed; the next attempt starts in {}", readable_time(then.since(now)))
            }
        };
        Self {
            source: state.source.clone(),
            destination: state.destination.clone(),
            found: state.found,
            failures: state.failures,
            failure: state.failure.as_ref().map(Problem::from),
            text,
        }
    }
}

/// Jobs.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct JobList {
    /// Jobs, the latest first.
    pub jobs: Vec<JobView>,
    /// Value of `before` for the next page; null: this is the last one.
    #[serde(default)]
    pub next: Option<Uuid>,
}

/// Share of the time in which a limit bound a transfer.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LimitShare {
    /// Name of the limit.
    pub limit: String,
    /// Share, from 0 to 1.
    pub share: f64,
}

/// Returns the limits of an attempt.
fn limit_shares(moved: &Moved) -> Vec<LimitShare> {
    moved.limits.iter().map(|(limit, share)| LimitShare { limit: limit.clone(), share: *share }).collect()
}

/// Deletion of a copy between the hops of a job.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CleanupView {
    /// Outcome: `deleted`; `kept`: the file is not only a copy of this job; `given_up`: the copy may still be there.
    pub state: String,
    /// Reason, for people.
    pub text: Option<String>,
}

impl From<&Cleanup> for CleanupView {
    fn from(cleanup: &Cleanup) -> Self {
        let (state, text) = match cleanup {
            Cleanup::Deleted => ("deleted", None),
            Cleanup::Kept { reason } => ("kept", Some(reason.clone())),
            Cleanup::GivenUp { attempts, failure } => {
                ("given_up", Some(format!("{}; given up after {attempts} attempts", failure.text)))
            }
        };
        Self { state: state.to_owned(), text }
    }
}

/// File: a transfer from one source to one destination.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct FileView {
    /// Number.
    pub number: u64,
    /// Job.
    pub job: Uuid,
    /// Entry of the job; files of the same entry are replicas.
    pub entry: u64,
    /// State: `waiting`, `reserved`, `held`, `active`, `finished`, `failed` or `cancelled`.
    pub state: String,
    /// Source.
    pub source: String,
    /// Destination.
    pub destination: String,
    /// Activity.
    pub activity: String,
    /// Size in bytes, if known.
    pub size: Option<u64>,
    /// Bytes that the present or last attempt has moved.
    pub bytes: u64,
    /// Mean rate of the last attempt, in bytes/s.
    pub bytes_per_s: Option<f64>,
    /// Limits of the last attempt, the largest share first.
    pub limits: Vec<LimitShare>,
    /// Way of the bytes: `sterna` (from agent to agent), `pull` (the destination read), `push` (the source wrote),
    /// `streamed` (through the service), `put` (an agent wrote) or `mock`.
    pub by: Option<String>,
    /// Number of stripes of a third-party copy, as the storage reports it.
    #[serde(default)]
    pub stripes: Option<u32>,
    /// Checksum that was compared, `ALGORITHM:value`.
    pub checksum: Option<String>,
    /// Deletion of the copy that this hop has written, once it has ended. Null: there is none, or it is not over.
    #[serde(default)]
    pub cleanup: Option<CleanupView>,
    /// Start of the present or last attempt, in milliseconds since 1970.
    pub started_ms: Option<i64>,
    /// End, in milliseconds since 1970.
    pub finished_ms: Option<i64>,
    /// Number of attempts that have failed.
    pub failures: u32,
    /// Worker that runs it, or ran it last.
    pub worker: Option<String>,
    /// Reason why the present or last attempt started when it did.
    pub rationale: Option<String>,
    /// Failure of the last attempt.
    pub failure: Option<Problem>,
    /// Data of the user.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Value>,
}

impl FileView {
    /// Creates the view. `progress`: bytes of a transfer under way.
    pub fn new(file: &File, progress: Option<u64>) -> Self {
        let moved: &Moved = &file.moved;
        Self {
            number: file.number.0,
            job: file.job,
            entry: file.new.entry,
            state: file.state.name().to_owned(),
            source: file.new.source.clone(),
            destination: file.new.destination.clone(),
            activity: file.new.activity.clone(),
            size: moved.size.or(file.new.size),
            bytes: progress.unwrap_or(moved.bytes),
            bytes_per_s: moved.bytes_per_s(),
            limits: limit_shares(moved),
            by: moved.by.clone(),
            stripes: moved.stripes,
            cleanup: file.cleanup.as_ref().map(CleanupView::from),
            checksum: moved.checksum.clone(),
            started_ms: file.started.map(|at| at.0),
            finished_ms: file.finished.map(|at| at.0),
            failures: file.failures,
            worker: file.worker.clone(),
            rationale: file.rationale.clone(),
            failure: file.failure.as_ref().map(Problem::from),
            metadata: file.new.metadata.clone(),
        }
    }
}

/// Files.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct FileList {
    /// Files, by number.
    pub files: Vec<FileView>,
}

/// Kind of a [`Waiting`] that ends when an operator lifts a ban.
pub const BANNED: &str = "banned";

/// Kind of a [`Waiting`] that ends when the service is not drained any more.
pub const DRAINED: &str = "drained";

/// Kind of a [`Waiting`] that ends when an agent connects.
pub const ABSENT: &str = "absent";

/// Kind of a [`Waiting`] that ends when the files before it have started.
pub const TURN: &str = "turn";

/// Kind of a [`Waiting`] that ends when a transfer under way ends.
pub const LIMIT: &str = "limit";

/// Reason why a file waits, and its place.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Waiting {
    /// Kind: `retry`, `limit`, `banned`, `absent`, `drained`, `refusing` or `turn`. For a file in reserve: `hop` (an
    /// earlier hop has not arrived) or `replica` (another replica is tried first).
    pub kind: String,
    /// Text for people.
    pub text: String,
    /// Number of files before it in its queue, whatever the kind; null: it is in no queue.
    pub files_before: Option<u64>,
    /// Size of these files, in bytes.
    #[serde(default)]
    pub bytes_before: Option<u64>,
    /// Expected time until the start, in seconds: that of the files before it, and at least that of a retry or a pause.
    /// It counts from the end of the reason if that end is not known (`banned`, `absent`, `drained`). Null: the rate of
    /// the link is not known.
    pub expected_s: Option<f64>,
    /// Its deadline has passed. It starts all the same.
    #[serde(default)]
    pub is_late: bool,
}

impl Waiting {
    /// Creates the view of a file in no queue.
    fn without_place(kind: &str, text: String) -> Self {
        let kind = kind.to_owned();
        Self { kind, text, files_before: None, bytes_before: None, expected_s: None, is_late: false }
    }

    /// Creates the view of a hop in reserve. `entry`: its number, from 0.
    pub fn of_hop(entry: u64) -> Self {
        Self::without_place("hop", format!("hop {} of the job has not arrived yet", entry.max(1)))
    }

    /// Creates the view of a replica in reserve. `first`: file that is tried first, if it is known.
    pub fn of_replica(first: Option<u64>) -> Self {
        let first = first.map_or_else(String::new, |first| format!(", file {first},"));
        Self::without_place("replica", format!("another replica{first} is tried first"))
    }

    /// Creates the view of a file that an operator holds back.
    pub fn of_banned(endpoint: &str) -> Self {
        Self::without_place(BANNED, format!("an operator has banned {endpoint}"))
    }

    /// Creates the view of a reason at a time.
    pub fn new(why: &Why, now: UnixTime) -> Self {
        let of = Self::without_place;
        let at =
            |kind: &str, what: String, at: UnixTime| of(kind, format!("{what} in {}", readable_time(at.since(now))));
        let waiting = match &why.waits {
            Waits::Drained => of(DRAINED, "an operator has drained the service: it starts no transfers".to_owned()),
            Waits::Retry(then) => at("retry", "the next attempt starts".to_owned(), *then),
            Waits::Limit { of: what, most } => {
                of(LIMIT, format!("{what}: {most} transfers are under way, the maximum"))
            }
            Waits::Banned(endpoint) => Self::of_banned(endpoint),
            Waits::Absent(endpoint) => of(ABSENT, format!("no agent of {endpoint} is connected")),
            Waits::Refusing { endpoint, blocked: Blocked::Until(then) } => {
                at("refusing", format!("{endpoint} has refused transfers; one tries it again"), *then)
            }
            Waits::Refusing { endpoint, blocked: Blocked::ByTrial } => {
                of("refusing", format!("{endpoint} has refused transfers; one is trying it"))
            }
            Waits::Turn => of(TURN, format!("{} files with {} go first", why.files, why.size)),
        };
        Self {
            files_before: Some(why.files as u64),
            bytes_before: Some(why.size.0),
            expected_s: why.expected.map(|time| time.as_secs_f64()),
            is_late: why.is_late,
            ..waiting
        }
    }
}

/// Agent of a site.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AgentView {
    /// Fingerprint of its key.
    pub agent: String,
    /// It is connected to the service.
    pub is_connected: bool,
    /// Release, if it is connected.
    pub release: Option<String>,
    /// Address at which other agents reach it.
    pub address: Option<String>,
    /// Number of transfers that it takes part in.
    pub transfers: u64,
}

/// Site.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SiteView {
    /// Host of its locations.
    pub name: String,
    /// Agents, by key.
    pub agents: Vec<AgentView>,
    /// Access; empty: every user of the service reads and writes.
    pub access: Vec<AccessView>,
}

/// Access of a virtual organisation to a site.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AccessView {
    /// Virtual organisation.
    pub vo: String,
    /// Right: `read`, or `write`, which includes it.
    pub right: String,
    /// Directory beneath which it holds; empty: all paths.
    #[serde(default)]
    pub path: String,
}

impl From<&SiteAccess> for AccessView {
    fn from(access: &SiteAccess) -> Self {
        let right = match access.right {
            SiteRight::Read => "read",
            SiteRight::Write => "write",
        };
        Self { vo: access.vo.clone(), right: right.to_owned(), path: access.path.clone() }
    }
}

impl AccessView {
    /// Returns the access. Errors: `Usage`, for another right.
    pub fn to_access(&self) -> Result<SiteAccess, Error> {
        let right = match self.right.as_str() {
            "read" => SiteRight::Read,
            "write" => SiteRight::Write,
            other => {
                let text = format!("the right {other:?}: expected read or write");
                return Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text));
            }
        };
        Ok(SiteAccess { vo: self.vo.clone(), right, path: self.path.clone() })
    }
}

/// Sites.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SiteList {
    /// Sites, by name.
    pub sites: Vec<SiteView>,
}

/// Agents that a site gets.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSite {
    /// Fingerprints, as `sterna id` prints them at each agent.
    pub agents: Vec<String>,
    /// Access; empty: every user of the service reads and writes.
    #[serde(default)]
    pub access: Vec<AccessView>,
}

/// Failed attempt of a file.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AttemptView {
    /// Number, from 1.
    pub number: u32,
    /// End, in milliseconds since 1970.
    pub ended_ms: i64,
    /// Worker.
    pub worker: Option<String>,
    /// Failure.
    pub failure: Problem,
    /// Bytes that had moved.
    #[serde(default)]
    pub bytes: u64,
    /// Time from the first to the last of them, in milliseconds.
    #[serde(default)]
    pub time_ms: u64,
    /// Way of the bytes, as in a file.
    #[serde(default)]
    pub by: Option<String>,
    /// Limits, the largest share first.
    #[serde(default)]
    pub limits: Vec<LimitShare>,
}

/// Decision about a file.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DecisionView {
    /// Time, in milliseconds since 1970.
    pub at_ms: i64,
    /// Kind: `choice` (the file goes first among the replicas of its entry), `retry`, `failover` (another replica
    /// follows a failure or a cancellation), `swap` (another replica takes the place of a file whose source is banned,
    /// has no agent or refuses transfers) or `end` (nothing follows a failure).
    pub kind: String,
    /// Reason, for people: the strategy with the values of the sources, or the failure and what follows it.
    pub text: String,
}

impl From<&Decided> for DecisionView {
    fn from(decided: &Decided) -> Self {
        let Decision { kind, text } = &decided.decision;
        Self { at_ms: decided.at.0, kind: kind.name().to_owned(), text: text.clone() }
    }
}

/// File with its history.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct FileDetails {
    /// File.
    pub file: FileView,
    /// Reason why it waits; null if it does not.
    pub why: Option<Waiting>,
    /// Failed attempts.
    pub attempts: Vec<AttemptView>,
    /// Decisions with their reasons, the oldest first: the first one, and the latest 31.
    #[serde(default)]
    pub decisions: Vec<DecisionView>,
}

impl FileDetails {
    /// Creates the view.
    pub fn new(file: FileView, why: Option<Waiting>, attempts: &[Attempt], decisions: &[Decided]) -> Self {
        let attempt = |attempt: &Attempt| AttemptView {
            number: attempt.number,
            ended_ms: attempt.ended.0,
            worker: attempt.worker.clone(),
            failure: Problem::from(&attempt.failure),
            bytes: attempt.moved.bytes,
            time_ms: attempt.moved.time_ms,
            by: attempt.moved.by.clone(),
            limits: limit_shares(&attempt.moved),
        };
        let decisions = decisions.iter().map(DecisionView::from).collect();
        Self { file, why, attempts: attempts.iter().map(attempt).collect(), decisions }
    }
}

/// Change of a job or of a file.
#[derive(Debug, Serialize, ToSchema)]
pub struct Change {
    /// Cursor.
    pub sequence: u64,
    /// Time, in milliseconds since 1970.
    pub at_ms: i64,
    /// Job.
    pub job: Uuid,
    /// File; null: the change is of the job.
    pub file: Option<u64>,
    /// State of the file, or of the job.
    pub state: String,
}

impl From<&Feed> for Change {
    fn from(feed: &Feed) -> Self {
        let of_job = feed.state.map_or("", |state| state.name());
        Self {
            sequence: feed.sequence,
            at_ms: feed.at.0,
            job: feed.job,
            file: feed.file.map(|(number, _)| number.0),
            state: feed.file.map_or(of_job, |(_, state)| state.name()).to_owned(),
        }
    }
}

/// Changes.
#[derive(Debug, Serialize, ToSchema)]
pub struct Changes {
    /// Changes, the oldest first.
    pub changes: Vec<Change>,
    /// Cursor for the next request.
    pub cursor: u64,
}

/// Ban of an endpoint that an operator asks for.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewBan {
    /// Effect on files from and to the endpoint: `cancel`, or `wait` until the ban is lifted.
    pub kind: String,
    /// New jobs with the endpoint are taken, and wait. Without it: true for `wait`; `cancel` refuses them always.
    #[serde(default)]
    pub takes_jobs: Option<bool>,
    /// Reason, for people.
    #[serde(default)]
    pub message: String,
}

impl NewBan {
    /// Returns the effect, and true if new jobs are taken. Errors: `Usage`, for values that contradict each other.
    pub fn effect(&self) -> Result<(BanKind, bool), Error> {
        match (self.kind.as_str(), self.takes_jobs) {
            ("cancel", Some(true)) => Err(usage("takes_jobs is for bans of the kind wait")),
            ("cancel", _) => Ok((BanKind::Cancel, false)),
            ("wait", takes_jobs) => Ok((BanKind::Wait, takes_jobs.unwrap_or(true))),
            (other, _) => Err(usage(format!("kind {other}: expected cancel or wait"))),
        }
    }
}

/// Ban of an endpoint.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct BanView {
    /// Endpoint: scheme and host.
    pub endpoint: String,
    /// Effect on its files: `cancel` or `wait`.
    pub kind: String,
    /// New jobs with the endpoint are taken, and wait.
    pub takes_jobs: bool,
    /// Reason, for people.
    pub message: String,
    /// Name of the operator.
    pub by: String,
    /// Time, in milliseconds since 1970.
    pub at_ms: i64,
}

impl BanView {
    /// Creates the view.
    pub fn new(endpoint: &str, ban: &Ban) -> Self {
        let kind = match ban.kind {
            BanKind::Cancel => "cancel",
            BanKind::Wait => "wait",
        };
        Self {
            endpoint: endpoint.to_owned(),
            kind: kind.to_owned(),
            takes_jobs: ban.allows_submission,
            message: ban.message.clone(),
            by: ban.by.clone(),
            at_ms: ban.at,
        }
    }
}

/// Bans.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct BanList {
    /// Bans, by endpoint.
    pub bans: Vec<BanView>,
}

/// Ban that was made.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Banned {
    /// Endpoint: scheme and host.
    pub endpoint: String,
    /// Jobs with files that were to start, or were under way, from or to the endpoint.
    pub jobs: Vec<Uuid>,
}
