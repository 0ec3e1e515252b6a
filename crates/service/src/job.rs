//! Jobs and files, as the store keeps them and the interfaces show them.
//!
//! Holds values only. Refuses to decide: commands and the scheduler do.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sterna_proto::session::Overwrite;
use sterna_proto::wire::ERROR_TEXT_BYTES_MAX;
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};
use sterna_sched::queue::FileNumber;
use sterna_sched::state::{Entries, FileState, JobKind, JobState};
use sterna_sched::time::UnixTime;
use uuid::Uuid;

use crate::credentials::Credentials;

/// Who owns a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Credential: 16 hexadecimal digits. FTS3 calls it the delegation id.
    pub credential: String,
    /// Name of the user: a distinguished name, or issuer and subject of a token.
    pub name: String,
    /// Virtual organisation.
    pub vo: String,
}

/// Comparison of checksums, beyond the digest that lanes verify.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChecksumPolicy {
    /// None.
    #[default]
    None,
    /// The given checksum with that of the source.
    Source,
    /// The given checksum with that of the destination.
    Target,
    /// Source and destination with each other, and with the given one.
    Both,
}

/// Treatment of a destination that exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OverwritePolicy {
    /// The file fails.
    #[default]
    Never,
    /// It is replaced, by rename.
    Always,
    /// It is replaced from the second attempt on.
    OnRetry,
}

/// Options of a job that its transfers follow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobOptions {
    /// Checksums.
    pub checksum: ChecksumPolicy,
    /// Treatment of a destination that exists.
    pub overwrite: OverwritePolicy,
    /// Number of the last hop of a job whose earlier hops replace a destination that exists, whatever `overwrite` is.
    pub overwrites_before: Option<u64>,
    /// Maximum number of further attempts of a file; `None`: the default of the service.
    pub retries: Option<u32>,
    /// First wait before another attempt, in seconds; `None`: the default of the service.
    pub retry_wait_s: Option<u32>,
    /// Time limit of one attempt, in seconds; `None`: by the size of the file.
    pub timeout_s: Option<u32>,
    /// Number of lanes or streams of a transfer; `None`: found by measurement.
    pub lanes: Option<u32>,
    /// The part of a failed transfer at the destination stays.
    pub keeps_partial: bool,
    /// The copies of a job of hops at storages between source and destination are deleted at its end.
    pub deletes_between: bool,
    /// Parameters of an FTS3 request that only its replies need.
    #[serde(skip_serializing_if = "serde_json::Map::is_empty")]
    pub fts: serde_json::Map<String, serde_json::Value>,
}

impl JobOptions {
    /// Returns the options of an entry. A hop can have another treatment of a destination that exists than the last
    /// one.
    pub fn of_entry(&self, entry: u64) -> Self {
        let is_before = self.overwrites_before.is_some_and(|last| entry < last);
        let overwrite = if is_before { OverwritePolicy::Always } else { self.overwrite };
        Self { overwrite, overwrites_before: None, ..self.clone() }
    }
}

/// Job that is submitted.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// Identifier.
    pub id: Uuid,
    /// Kind.
    pub kind: JobKind,
    /// Owner.
    pub owner: Owner,
    /// Priority, 1 to 5.
    pub priority: u8,
    /// Time of the submission.
    pub submitted: UnixTime,
    /// Time after which files that still wait fail.
    pub expires: Option<UnixTime>,
    /// Options.
    pub options: JobOptions,
    /// Data of the user, returned as it came.
    pub metadata: Option<serde_json::Value>,
    /// Key that makes a repeated request find this job instead of a second one; unique for a credential.
    pub idempotency_key: Option<String>,
}

/// Job.
#[derive(Clone, Debug)]
pub struct Job {
    /// As submitted.
    pub new: NewJob,
    /// State.
    pub state: JobState,
    /// Outcomes of the entries.
    pub entries: Entries,
    /// Time at which the last entry ended.
    pub finished: Option<UnixTime>,
    /// Reason for the state, for people.
    pub reason: Option<String>,
}

/// Extent of the locations of a file that is submitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Extent {
    /// One file.
    #[default]
    File,
    /// All files beneath a directory: both locations are prefixes, and end with `/`.
    Prefix,
}

/// File that is submitted, or a prefix, which is the pattern of the files found beneath it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NewFile {
    /// Extent. The store keeps prefixes apart from files.
    #[serde(skip)]
    pub extent: Extent,
    /// Entry of the job, from 0.
    pub entry: u64,
    /// Source.
    pub source: String,
    /// Destination.
    pub destination: String,
    /// Endpoint of the source: scheme and host.
    pub source_endpoint: String,
    /// Endpoint of the destination.
    pub destination_endpoint: String,
    /// Activity.
    pub activity: String,
    /// Name of the strategy that chose among the replicas of the entry.
    pub strategy: Option<String>,
    /// Size in bytes, if the user gave it.
    pub size: Option<u64>,
    /// Checksum, `ALGORITHM:value` or `ALGORITHM`.
    pub checksum: Option<String>,
    /// Waits for another file of the job: a replica, or an earlier hop.
    pub is_reserved: bool,
    /// It may share a session with other files of the job.
    pub shares_session: bool,
    /// Latest time at which the file shall have arrived, in milliseconds since 1970.
    pub deadline: Option<i64>,
    /// Data of the user, returned as it came.
    pub metadata: Option<serde_json::Value>,
    /// Fields of an FTS3 request that only its replies need.
    pub fts: Option<serde_json::Value>,
    /// Reason why it was chosen among the replicas of its entry. Empty in a file that the store returns: it is a
    /// decision there.
    #[serde(skip)]
    pub choice: Option<String>,
    /// Credentials for the storages. Empty in a file that the store returns: it gives them to the runner alone.
    #[serde(skip)]
    pub credentials: Credentials,
}

/// File.
#[derive(Clone, Debug)]
pub struct File {
    /// Number.
    pub number: FileNumber,
    /// Job.
    pub job: Uuid,
    /// As submitted.
    pub new: NewFile,
    /// Virtual organisation of the job.
    pub vo: String,
    /// Priority of the job.
    pub priority: u8,
    /// State.
    pub state: FileState,
    /// Time of the submission.
    pub submitted: UnixTime,
    /// Start of the present or last attempt.
    pub started: Option<UnixTime>,
    /// End of the file.
    pub finished: Option<UnixTime>,
    /// Time before which the next attempt does not start.
    pub not_before: UnixTime,
    /// Number of attempts that workers have begun.
    pub starts: u32,
    /// Number of attempts that have failed. Attempts of a lost worker do not count.
    pub failures: u32,
    /// Worker that runs it, or ran it last.
    pub worker: Option<String>,
    /// Reason why the present or last attempt started when it did.
    pub rationale: Option<String>,
    /// Failure of the last attempt.
    pub failure: Option<Failure>,
    /// Bytes and limits of the last attempt.
    pub moved: Moved,
    /// Outcome of the deletion of the copy that this hop has written.
    pub cleanup: Option<Cleanup>,
}

/// Outcome of the deletion of a copy between the hops of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Cleanup {
    /// The copy is deleted.
    Deleted,
    /// The file stays.
    Kept {
        /// Reason, for people.
        reason: String,
    },
    /// The copy may still be there: attempts to delete it have failed.
    GivenUp {
        /// Number of attempts.
        attempts: u32,
        /// Failure of the last one.
        failure: Failure,
    },
}

/// Prefix of a job whose files are being listed.
#[derive(Clone, Debug)]
pub struct Prefix {
    /// Number.
    pub number: u64,
    /// Job.
    pub job: Uuid,
    /// Kind of the job.
    pub kind: JobKind,
    /// Owner of the job.
    pub owner: Owner,
    /// Options of the job.
    pub options: JobOptions,
    /// Time after which the job waits no longer.
    pub expires: Option<UnixTime>,
    /// Pattern of the files: its locations are the prefixes of theirs.
    pub file: NewFile,
    /// Number of listings that have failed.
    pub failures: u32,
    /// Time before which the next listing does not start.
    pub not_before: UnixTime,
    /// Failure of the last listing.
    pub failure: Option<Failure>,
}

/// Transfer that a worker runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Number of the file.
    pub file: u64,
    /// Number of the start, from 1. After the first one, an earlier start may have published the file.
    pub start: u32,
    /// Number of the attempt, from 1. Starts of a lost worker are no attempts.
    pub attempt: u32,
    /// The worker reports if the destination was there before ([`Moved::placed`]), also where it may be replaced.
    /// Reason: a copy between hops is deleted only if it is new.
    #[serde(default)]
    pub notes_replaced: bool,
    /// Source.
    pub source: String,
    /// Destination.
    pub destination: String,
    /// Size that the user gave, in bytes.
    pub size: Option<u64>,
    /// Checksum, `ALGORITHM:value` or `ALGORITHM`.
    pub checksum: Option<String>,
    /// Options of the job.
    pub options: JobOptions,
    /// The bytes must not go through the worker, if both ends are at storages.
    #[serde(default)]
    pub forbids_streams: bool,
    /// Credentials for the storages. They leave this process only towards their storages.
    #[serde(skip)]
    pub credentials: Credentials,
}

impl Task {
    /// Checks the size of the source against the one that the user gave; 0 is no size. Errors: `Corrupt`.
    pub fn check_size(&self, size: u64) -> Result<(), Error> {
        match self.size.filter(|given| *given != size && *given != 0) {
            Some(given) => {
                // Source of the text: FTS3.
                let text = format!("Source and user provided file size mismatch: {size} and {given}");
                let error = Error::new(ErrorKind::Corrupt, Scope::Source, Phase::Prepare, text);
                Err(error.retry(Retry::OtherReplica))
            }
            None => Ok(()),
        }
    }

    /// Returns true if an earlier start may have published the file.
    pub fn is_repeated(&self) -> bool {
        self.start > 1
    }

    /// Returns the policy of this attempt for a destination that exists.
    pub fn overwrite(&self) -> Overwrite {
        match self.options.overwrite {
            OverwritePolicy::Never => Overwrite::Never,
            OverwritePolicy::Always => Overwrite::Always,
            OverwritePolicy::OnRetry if self.attempt > 1 => Overwrite::Always,
            OverwritePolicy::OnRetry => Overwrite::Never,
        }
    }
}

/// Bytes that an attempt moved, and its limits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Moved {
    /// Bytes of the file.
    pub bytes: u64,
    /// Size of the source, in bytes.
    pub size: Option<u64>,
    /// Time from the first to the last byte, in milliseconds.
    pub time_ms: u64,
    /// Checksum that was compared, `ALGORITHM:value`.
    pub checksum: Option<String>,
    /// How the bytes went: by agents, or by a third-party copy that a storage pulls or pushes, or through a
    /// worker, or written by the agent of the source.
    pub by: Option<String>,
    /// Number of stripes of a third-party copy, as the storage reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stripes: Option<u32>,
    /// Limits, each with its share of the time, the largest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<(String, f64)>,
    /// Path, if agents moved the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathFacts>,
    /// State of the destination before; `None`: the file has not arrived, or the worker does not know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placed: Option<Placed>,
    /// Identity of the file at a storage, if it may be deleted later: its ETag, or else its checksum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// State of the destination before a file arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placed {
    /// There was no file: this start wrote it.
    New,
    /// It replaced a file, or may have.
    Replaced,
    /// The same file was there when this start began.
    Found,
}

impl File {
    /// Returns the minimum age of the copy that a hop has written. That of a cancelled hop is not known: it may have
    /// arrived after the cancellation.
    pub fn age_of_copy(&self, now: UnixTime) -> Duration {
        let arrived = self.finished.filter(|_| self.state == FileState::Finished);
        arrived.map_or(Duration::ZERO, |arrived| now.since(arrived))
    }
}

impl Moved {
    /// Returns the mean rate in bytes/s; `None`: nothing was moved.
    pub fn bytes_per_s(&self) -> Option<f64> {
        (self.time_ms > 0 && self.bytes > 0).then(|| self.bytes as f64 * 1000.0 / self.time_ms as f64)
    }

    /// Returns the same without more than a worker has to say. Reason: the store keeps it for each file.
    #[must_use]
    pub fn clipped(mut self) -> Self {
        const LIMITS_MAX: usize = 32;
        const NAME_CHARS_MAX: usize = 64;
        const CHECKSUM_CHARS_MAX: usize = 256;
        let clip = |text: &str, max: usize| text.chars().take(max).collect::<String>();
        self.limits.truncate(LIMITS_MAX);
        self.limits.iter_mut().for_each(|(name, _)| *name = clip(name, NAME_CHARS_MAX));
        self.by = self.by.map(|by| clip(&by, NAME_CHARS_MAX));
        self.checksum = self.checksum.map(|checksum| clip(&checksum, CHECKSUM_CHARS_MAX));
        self
    }

    /// Returns the time from the first to the last byte.
    pub fn time(&self) -> Duration {
        Duration::from_millis(self.time_ms)
    }
}

/// Path between two agents, as an attempt measured it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PathFacts {
    /// Smallest round-trip time in milliseconds.
    pub rtt_ms: f64,
    /// Number of packets that the sender sent.
    pub packets_sent: u64,
    /// Number of them that were lost.
    pub packets_lost: u64,
}

/// Failure of an attempt, as stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// Kind, by its code on the wire.
    pub kind: u8,
    /// Scope, by its name.
    pub scope: String,
    /// Phase, by its name.
    pub phase: String,
    /// Use of another attempt, by its name.
    pub retry: String,
    /// Error number of the operating system.
    pub os_code: Option<i32>,
    /// Text for people.
    pub text: String,
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Self {
            kind: error.kind.code(),
            scope: error.scope.name().to_owned(),
            phase: error.phase.name().to_owned(),
            retry: error.retry.name().to_owned(),
            os_code: error.os_code(),
            text: error.chain(),
        }
    }
}

impl Failure {
    /// Returns the kind.
    pub fn error_kind(&self) -> ErrorKind {
        ErrorKind::of_peer(self.kind)
    }

    /// Returns the failure as an error; unknown names become those of an internal failure of the service.
    pub fn to_error(&self) -> Error {
        let named = |code: u8| (Scope::from_code(code), Phase::from_code(code), Retry::from_code(code));
        let codes = || 1..=8u8;
        let scope = codes().filter_map(|code| named(code).0).find(|scope| scope.name() == self.scope);
        let phase = codes().filter_map(|code| named(code).1).find(|phase| phase.name() == self.phase);
        let retry = codes().filter_map(|code| named(code).2).find(|retry| retry.name() == self.retry);
        let (scope, phase) = (scope.unwrap_or(Scope::Service), phase.unwrap_or(Phase::Transfer));
        let text = self.text.chars().take(ERROR_TEXT_BYTES_MAX).collect::<String>();
        let error = Error::new(self.error_kind(), scope, phase, text);
        error.retry(retry.unwrap_or(Retry::Never)).with_peer_os_code(self.os_code)
    }
}
