//! Store: jobs, files, settings and history, on disk.
//!
//! Every change is durable before its call returns. A change of a file names the state that it expects: if the file has
//! another one, nothing is changed. Refuses to schedule and to decide what follows a failure.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;

use sterna_doctor::monitor::Round;
use sterna_proto::Error;
use sterna_sched::queue::FileNumber;
use sterna_sched::state::{FileState, JobState};
use sterna_sched::time::UnixTime;
use uuid::Uuid;

use crate::credentials::{Credentials, Proxy};
use crate::job::{Cleanup, Failure, File, Job, Moved, NewFile, NewJob, Prefix};
use crate::paths::{ObservedRound, RoundFilter};

mod archive;
#[cfg(test)]
mod conformance;
mod credentials;
mod decisions;
mod deletions;
mod prefixes;
mod private;
mod rounds;
mod row;
mod running;
mod sqlite;
mod statements;

pub use sqlite::SqliteStore;

/// Result that a store computes in the background.
pub type Stored<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// Outcome of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// The job is new.
    New,
    /// A job with this idempotency key exists already.
    Repeated(Uuid),
    /// A job with this identifier exists already.
    IdTaken,
}

/// Change of a file from one state to another.
#[derive(Clone, Debug)]
pub struct Change {
    /// File.
    pub file: FileNumber,
    /// State that it must have.
    pub from: FileState,
    /// Worker that must have it, if it is under way.
    pub of_worker: Option<String>,
    /// Event.
    pub what: Event,
    /// Decision that led to it. Kept with the file, and with the replica that goes next.
    pub decision: Option<Decision>,
    /// Time.
    pub at: UnixTime,
}

/// Kind of a decision about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionKind {
    /// The file goes first among the replicas of its entry.
    Choice,
    /// Another attempt follows.
    Retry,
    /// Another replica follows a failure or a cancellation.
    Failover,
    /// Another replica takes the place of a file whose source has an obstacle.
    Swap,
    /// Nothing follows.
    End,
}

impl DecisionKind {
    /// Every kind, with its name in the store and the API; never changed.
    const NAMES: [(Self, &'static str); 5] = [
        (Self::Choice, "choice"),
        (Self::Retry, "retry"),
        (Self::Failover, "failover"),
        (Self::Swap, "swap"),
        (Self::End, "end"),
    ];

    /// Returns the name in the store and the API.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].1
    }

    /// Returns the kind of this name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(_, known)| *known == name).map(|(kind, _)| kind)
    }
}

/// Maximum characters of the reason of a decision. Reason: a strategy with the values of five sources, and an error.
const REASON_CHARS_MAX: usize = 800;

/// Decision about a file, with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Kind.
    pub kind: DecisionKind,
    /// Reason, for people.
    pub text: String,
}

impl Decision {
    /// Creates a decision. A longer reason is cut.
    pub fn new(kind: DecisionKind, text: impl Into<String>) -> Self {
        let mut text = text.into();
        let end = text.char_indices().nth(REASON_CHARS_MAX).map(|(at, _)| at);
        end.into_iter().for_each(|end| text.truncate(end));
        Self { kind, text }
    }
}

/// Maximum characters of a failure in the reason of a decision. Reason: the whole text is with the attempt.
const FAILURE_CHARS_MAX: usize = 200;

/// Returns the text of a failure as a decision has it.
pub fn failure_in_decision(text: &str) -> &str {
    text.char_indices().nth(FAILURE_CHARS_MAX).map_or(text, |(end, _)| &text[..end])
}

/// Decision at its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    /// Time.
    pub at: UnixTime,
    /// Decision.
    pub decision: Decision,
}

/// Event in the life of a file.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A worker starts an attempt.
    Starts {
        /// Worker.
        worker: String,
        /// Reason why it starts now.
        rationale: String,
    },
    /// The attempt has failed, and another one follows.
    Retries {
        /// Failure; `None`: the worker was lost, which does not count as an attempt.
        failure: Option<Failure>,
        /// Bytes and limits of the attempt.
        moved: Moved,
        /// Earliest time of the next attempt.
        not_before: UnixTime,
    },
    /// The file has arrived.
    Finishes {
        /// Bytes and limits of the attempt.
        moved: Moved,
    },
    /// The file has failed.
    Fails {
        /// Failure.
        failure: Failure,
        /// Bytes and limits of the attempt.
        moved: Moved,
        /// Replica of the same entry that goes next.
        successor: Option<FileNumber>,
    },
    /// The file is cancelled.
    Cancels {
        /// Reason, for people.
        reason: String,
        /// Replica of the same entry that goes next.
        successor: Option<FileNumber>,
    },
    /// The file goes back to the reserve, and another replica of its entry waits instead. If that one is not in reserve
    /// any more, nothing is changed.
    Yields {
        /// The other replica.
        successor: FileNumber,
    },
    /// The file is held back.
    Holds,
    /// The file is no longer held back.
    Releases,
}

impl Event {
    /// Returns the state that follows.
    pub fn state(&self) -> FileState {
        match self {
            Self::Starts { .. } => FileState::Active,
            Self::Retries { .. } | Self::Releases => FileState::Waiting,
            Self::Finishes { .. } => FileState::Finished,
            Self::Fails { .. } => FileState::Failed,
            Self::Cancels { .. } => FileState::Cancelled,
            Self::Yields { .. } => FileState::Reserved,
            Self::Holds => FileState::Held,
        }
    }
}

/// Result of a change.
#[derive(Clone, Debug)]
pub enum Changed {
    /// It was made.
    Done {
        /// File after it.
        file: Box<File>,
        /// Files that wait now because of it: the successor, or the next hop.
        waiting: Vec<File>,
        /// State of the job, if that changed.
        job: Option<JobState>,
    },
    /// The file has another state, or another worker.
    Conflict,
}

/// Filter for jobs. Every given field restricts.
#[derive(Clone, Debug, Default)]
pub struct JobFilter {
    /// Identifiers.
    pub ids: Vec<Uuid>,
    /// Virtual organisation.
    pub vo: Option<String>,
    /// Credential of the owner.
    pub credential: Option<String>,
    /// Name of the owner.
    pub owner: Option<String>,
    /// States; empty: those that have not ended.
    pub states: Vec<JobState>,
    /// Endpoint of a source of the job.
    pub source_endpoint: Option<String>,
    /// Endpoint of a destination of the job.
    pub destination_endpoint: Option<String>,
    /// Earliest submission.
    pub since: Option<UnixTime>,
    /// Jobs that were submitted before this one.
    pub before: Option<Uuid>,
    /// Jobs of the archive instead of the others.
    pub is_archived: bool,
    /// Maximum number of jobs.
    pub limit: Option<u32>,
}

/// Files of a link in one state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// State: waiting, held or active.
    pub state: FileState,
    /// Endpoint of the source.
    pub source: String,
    /// Endpoint of the destination.
    pub destination: String,
}

/// Filter for files. Every given field restricts.
#[derive(Clone, Debug, Default)]
pub struct FileFilter {
    /// Numbers.
    pub numbers: Vec<FileNumber>,
    /// Jobs.
    pub jobs: Vec<Uuid>,
    /// Entry of the job.
    pub entry: Option<u64>,
    /// Entries, each of a job.
    pub entries: Vec<(Uuid, u64)>,
    /// States; empty: all.
    pub states: Vec<FileState>,
    /// Virtual organisation.
    pub vo: Option<String>,
    /// Endpoint of the source.
    pub source_endpoint: Option<String>,
    /// Endpoint of the destination.
    pub destination_endpoint: Option<String>,
    /// Destination.
    pub destination: Option<String>,
    /// Worker.
    pub worker: Option<String>,
    /// Files after this number.
    pub after: Option<FileNumber>,
    /// Files of the archive instead of the others.
    pub is_archived: bool,
    /// Maximum number of files.
    pub limit: Option<u32>,
}

/// Filter for prefixes of complete jobs.
#[derive(Clone, Copy, Debug, Default)]
pub struct PrefixFilter {
    /// Job.
    pub job: Option<Uuid>,
    /// Prefixes after this number.
    pub after: u64,
    /// Maximum number of prefixes.
    pub limit: u32,
}

/// Outcome of adding files that were found beneath a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// All are stored, or were stored before.
    All,
    /// The job has the maximum of files. Some may not be stored.
    Full,
    /// The prefix is gone: its job was cancelled.
    Gone,
}

/// Change of a prefix.
#[derive(Clone, Debug)]
pub enum PrefixChange {
    /// Its listing has failed, and another one follows.
    Retries {
        /// Failure.
        failure: Failure,
        /// Earliest time of the next listing.
        not_before: UnixTime,
    },
    /// All its files are stored. Without any, it has failed.
    Ends {
        /// Failure of a prefix without files.
        nothing_found: Failure,
    },
    /// It has failed: it becomes a failed file of its job.
    Fails {
        /// Failure.
        failure: Failure,
    },
}

/// Failed attempt.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// File.
    pub file: FileNumber,
    /// Number of the attempt, from 1.
    pub number: u32,
    /// End.
    pub ended: UnixTime,
    /// Worker.
    pub worker: Option<String>,
    /// Failure.
    pub failure: Failure,
    /// Bytes and limits until then.
    pub moved: Moved,
}

/// Copy between the hops of a job that is to be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// Hop that has written the copy, as its destination.
    pub file: FileNumber,
    /// Job.
    pub job: Uuid,
    /// Number of attempts that have failed.
    pub attempts: u32,
}

/// Step of a copy that is to be deleted.
#[derive(Clone, Debug, PartialEq)]
pub enum DeletionStep {
    /// The attempt has failed, and another one follows.
    Again {
        /// Earliest time.
        not_before: UnixTime,
    },
    /// It is looked at later. That is no failed attempt.
    Waits {
        /// Earliest time.
        not_before: UnixTime,
    },
    /// It is over.
    Ends {
        /// Outcome, for the record of the file; `None`: there was no copy.
        cleanup: Option<Cleanup>,
    },
}

/// End of a transfer whose file was cancelled before.
#[derive(Clone, Debug, PartialEq)]
pub struct LateEnd {
    /// File.
    pub file: FileNumber,
    /// Number of the start.
    pub start: u32,
    /// Worker.
    pub worker: String,
    /// Bytes and limits.
    pub moved: Moved,
    /// Time.
    pub at: UnixTime,
}

/// Outcome of an attempt, for the statistics of its link.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Endpoint of the source.
    pub source_endpoint: String,
    /// Endpoint of the destination.
    pub destination_endpoint: String,
    /// Start of an attempt that arrived; `None`: it failed.
    pub started: Option<UnixTime>,
    /// End.
    pub ended: UnixTime,
    /// Bytes and limits; without content for an attempt that failed.
    pub moved: Moved,
    /// Failure; `None`: it arrived.
    pub failure: Option<Failure>,
}

/// Entry of the change feed.
#[derive(Clone, Debug, PartialEq)]
pub struct Feed {
    /// Cursor: later changes have higher numbers.
    pub sequence: u64,
    /// Time.
    pub at: UnixTime,
    /// Job.
    pub job: Uuid,
    /// File and its state; `None`: the change is of the job.
    pub file: Option<(FileNumber, FileState)>,
    /// State of the job after the change, if it changed.
    pub state: Option<JobState>,
}

/// Settings that operators change: one document for each name of a kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Kind, such as `link` or `ban`.
    pub kind: String,
    /// Name within the kind.
    pub name: String,
    /// Value.
    pub value: serde_json::Value,
}

/// Change of a setting, for the audit log.
#[derive(Clone, Debug, PartialEq)]
pub struct Audit {
    /// Time.
    pub at: UnixTime,
    /// Name of the user.
    pub by: String,
    /// Action, such as `set-globals`.
    pub action: String,
    /// Value.
    pub value: String,
}

/// Store.
pub trait Store: Send + Sync {
    /// Stores a job with files and prefixes. `is_complete`: no more files follow. An open job gets its idempotency key
    /// when it is complete, so that an upload that ends early does not take the key.
    fn submit(&self, job: NewJob, files: Vec<NewFile>, is_complete: bool) -> Stored<'_, Submitted>;

    /// Adds files to an open job. Errors: `NotFound`; `Exists`, when the job is complete or was cancelled.
    fn append(&self, job: Uuid, files: Vec<NewFile>) -> Stored<'_, ()>;

    /// Completes an open job, and gives it an idempotency key. Returns `Repeated`, and leaves the job open, if another
    /// job of the owner has the key. Errors: as of `append`.
    fn complete(&self, job: Uuid, idempotency_key: Option<String>) -> Stored<'_, Submitted>;

    /// Removes up to `limit` files of an open job, and the job with its last file. Returns true if nothing is left, or
    /// if the job is not open.
    fn discard(&self, job: Uuid, limit: u32) -> Stored<'_, bool>;

    /// Makes changes, all in one transaction; each on its own may conflict.
    fn change(&self, changes: Vec<Change>) -> Stored<'_, Vec<Changed>>;

    /// Cancels all files of a job that have not ended, and the job. Returns these files. `None`: the job has ended, or
    /// does not exist.
    fn cancel(&self, job: Uuid, reason: String, at: UnixTime) -> Stored<'_, Option<Vec<FileNumber>>>;

    /// Sets the priority of a job and its files. Returns false if the job has ended, or does not exist.
    fn set_priority(&self, job: Uuid, priority: u8) -> Stored<'_, bool>;

    /// Returns jobs, the latest first.
    fn jobs(&self, filter: JobFilter) -> Stored<'_, Vec<Job>>;

    /// Returns files, by number.
    fn files(&self, filter: FileFilter) -> Stored<'_, Vec<File>>;

    /// Returns the credentials of files for their storages, of those that have some. They are deleted when the job of a
    /// file ends, except those that a deletion needs: they are deleted with it.
    fn credentials(&self, files: Vec<FileNumber>) -> Stored<'_, BTreeMap<FileNumber, Credentials>>;

    /// Returns prefixes of complete jobs whose listing has not ended, by number.
    fn prefixes(&self, filter: PrefixFilter) -> Stored<'_, Vec<Prefix>>;

    /// Adds files that were found beneath a prefix to its job, up to `most` files in the job. The store numbers their
    /// entries. Files whose destination was found beneath the prefix before are left out: a listing that starts again
    /// adds no file twice.
    fn add_found(&self, prefix: u64, files: Vec<NewFile>, most: u64) -> Stored<'_, Added>;

    /// Changes a prefix. One that is gone stays so. Returns the state of the job, if that changed.
    fn change_prefix(&self, prefix: u64, change: PrefixChange, at: UnixTime) -> Stored<'_, Option<JobState>>;

    /// Stores the proxy of a user instead of an earlier one, and deletes those that have expired.
    fn set_proxy(&self, proxy: Proxy, now: UnixTime) -> Stored<'_, ()>;

    /// Deletes the proxy of a credential.
    fn delete_proxy(&self, credential: String) -> Stored<'_, ()>;

    /// Returns the proxy of a credential, which may have expired.
    fn proxy(&self, credential: String) -> Stored<'_, Option<Proxy>>;

    /// Returns files that wait or are held after the time that their jobs allow.
    fn expired(&self, now: UnixTime) -> Stored<'_, Vec<File>>;

    /// Returns the failed attempts of a file, also of one in the archive.
    fn attempts(&self, file: FileNumber) -> Stored<'_, Vec<Attempt>>;

    /// Returns the decisions about a file, the oldest first, also of one in the archive. Of many, the first and the
    /// latest are kept.
    fn decisions(&self, file: FileNumber) -> Stored<'_, Vec<Decided>>;

    /// Returns files that wait or are held, and have other replicas, from an endpoint and after a number, by number.
    /// Cost: grows with `limit` only.
    fn replaceable(&self, source_endpoint: &str, after: FileNumber, limit: u32) -> Stored<'_, Vec<File>>;

    /// Returns the links of files that wait, are held or run, by state.
    fn links_in_use(&self) -> Stored<'_, Vec<LinkState>>;

    /// Returns the files of a link in its state after a number, by number. Cost: grows with `limit` only.
    fn files_of_link(&self, link: &LinkState, after: FileNumber, limit: u32) -> Stored<'_, Vec<File>>;

    /// Returns the jobs with files that wait, are held or run at an endpoint, in any order.
    fn jobs_at(&self, endpoint: &str) -> Stored<'_, Vec<Uuid>>;

    /// Records ends of transfers whose files were cancelled before. A start that is not the last one of its file, and a
    /// report of another worker, change nothing.
    fn end_late(&self, ends: Vec<LateEnd>) -> Stored<'_, ()>;

    /// Returns the deletions of copies between hops that are due, those that wait for the longest time first.
    fn deletions(&self, now: UnixTime, limit: u32) -> Stored<'_, Vec<Deletion>>;

    /// Records steps of copies that are to be deleted.
    fn step_deletions(&self, steps: Vec<(FileNumber, DeletionStep)>) -> Stored<'_, ()>;

    /// Returns the outcomes of attempts that ended after a time, in order of time: the latest `limit`. Those of
    /// archived jobs, and of files that were cancelled, are not among them.
    fn outcomes(&self, after: UnixTime, limit: u32) -> Stored<'_, Vec<Outcome>>;

    /// Returns changes after a cursor.
    fn feed(&self, after: u64, limit: u32) -> Stored<'_, Vec<Feed>>;

    /// Returns the cursor of the last change; 0 without any.
    fn feed_end(&self) -> Stored<'_, u64>;

    /// Stores measurements: settings of one kind by their names, and rounds of agents that monitor a peer. Of each
    /// minute the last round is kept, for a year.
    fn set_measured(
        &self,
        kind: &str,
        records: Vec<(String, serde_json::Value)>,
        rounds: Vec<ObservedRound>,
    ) -> Stored<'_, ()>;

    /// Returns rounds after the minute of a time, the oldest first. Those of a later release are left out.
    fn rounds(&self, filter: RoundFilter) -> Stored<'_, Vec<Round>>;

    /// Returns all settings of a kind, by name.
    fn settings(&self, kind: &str) -> Stored<'_, Vec<Setting>>;

    /// Stores a setting, or removes it (`value` is `None`), with its entry in the audit log.
    fn set(&self, kind: &str, name: &str, value: Option<serde_json::Value>, audit: Option<Audit>) -> Stored<'_, ()>;

    /// Returns the audit log, the latest first.
    fn audit(&self, limit: u32) -> Stored<'_, Vec<Audit>>;

    /// Moves jobs that ended before a time to the archive, except those with a copy that is to be deleted. Returns the
    /// number of jobs.
    fn archive(&self, before: UnixTime, limit: u32) -> Stored<'_, u64>;

    /// Returns an archived job with its files.
    fn archived(&self, job: Uuid) -> Stored<'_, Option<(Job, Vec<File>)>>;
}
