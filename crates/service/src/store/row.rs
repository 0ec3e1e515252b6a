//! Rows of an SQLite database, as jobs and files.

use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use sterna_sched::queue::FileNumber;
use sterna_sched::state::{Entries, FileState, JobKind, JobState};
use sterna_sched::time::UnixTime;
use uuid::Uuid;

use crate::credentials::Credentials;
use crate::job::{Extent, File, Job, NewFile, NewJob, Owner};

/// Returns a value as JSON text. Every type that is stored can be written as JSON.
pub(super) fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Reads a value of JSON text.
pub(super) fn from_json<T: DeserializeOwned>(column: &str, text: &str) -> Result<T, sqlx::Error> {
    serde_json::from_str(text).map_err(|e| sqlx::Error::ColumnDecode { index: column.to_owned(), source: Box::new(e) })
}

/// Returns the decoding error of a name that this release does not have.
pub(super) fn unknown(column: &str, name: &str) -> sqlx::Error {
    sqlx::Error::ColumnDecode { index: column.to_owned(), source: format!("unknown {column} {name}").into() }
}

/// Converts a count for SQLite, which has signed integers only.
pub(super) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

pub(super) const JOB_COLUMNS: &str = "id, kind, state, reason, credential, owner, vo, priority, submitted, expires, finished, options, \
     metadata, idempotency_key, is_open, entries, entries_finished, entries_failed, entries_cancelled, files_active, listing";

pub(super) const FILE_COLUMNS: &str = "number, job, entry, state, vo, priority, submitted, source, destination, source_endpoint, \
     destination_endpoint, activity, strategy, size, checksum, is_reserved, shares_session, deadline, metadata, fts, started, finished, \
     not_before, starts, failures, worker, rationale, failure, moved, cleanup";

pub(super) fn kind_name(kind: JobKind) -> &'static str {
    match kind {
        JobKind::Files => "files",
        JobKind::Hops => "hops",
        JobKind::Reuse => "reuse",
    }
}

pub(super) fn kind_of(row: &SqliteRow) -> Result<JobKind, sqlx::Error> {
    match row.try_get("kind")? {
        "files" => Ok(JobKind::Files),
        "hops" => Ok(JobKind::Hops),
        "reuse" => Ok(JobKind::Reuse),
        other => Err(unknown("kind", other)),
    }
}

pub(super) fn optional_json<T: DeserializeOwned>(row: &SqliteRow, column: &str) -> Result<Option<T>, sqlx::Error> {
    row.try_get::<Option<&str>, _>(column)?.map(|text| from_json(column, text)).transpose()
}

pub(super) fn count_of(row: &SqliteRow, column: &str) -> Result<u64, sqlx::Error> {
    Ok(u64::try_from(row.try_get::<i64, _>(column)?).unwrap_or(0))
}

pub(super) fn time_of(row: &SqliteRow, column: &str) -> Result<Option<UnixTime>, sqlx::Error> {
    Ok(row.try_get::<Option<i64>, _>(column)?.map(UnixTime))
}

pub(super) fn id_of(row: &SqliteRow, column: &str) -> Result<Uuid, sqlx::Error> {
    let text: &str = row.try_get(column)?;
    Uuid::parse_str(text).map_err(|_| unknown(column, text))
}

pub(super) fn entries_of(row: &SqliteRow) -> Result<Entries, sqlx::Error> {
    Ok(Entries {
        all: count_of(row, "entries")?,
        finished: count_of(row, "entries_finished")?,
        failed: count_of(row, "entries_failed")?,
        cancelled: count_of(row, "entries_cancelled")?,
        active: count_of(row, "files_active")?,
        is_open: row.try_get("is_open")?,
        listing: count_of(row, "listing")?,
    })
}

pub(super) fn job_state_of(row: &SqliteRow, column: &str) -> Result<JobState, sqlx::Error> {
    let name: &str = row.try_get(column)?;
    JobState::by_name(name).ok_or_else(|| unknown(column, name))
}

pub(super) fn file_state_of(row: &SqliteRow, column: &str) -> Result<FileState, sqlx::Error> {
    let name: &str = row.try_get(column)?;
    FileState::by_name(name).ok_or_else(|| unknown(column, name))
}

pub(super) fn job_of(row: &SqliteRow) -> Result<Job, sqlx::Error> {
    Ok(Job {
        new: NewJob {
            id: id_of(row, "id")?,
            kind: kind_of(row)?,
            owner: Owner {
                credential: row.try_get("credential")?,
                name: row.try_get("owner")?,
                vo: row.try_get("vo")?,
            },
            priority: row.try_get("priority")?,
            submitted: UnixTime(row.try_get("submitted")?),
            expires: time_of(row, "expires")?,
            options: from_json("options", row.try_get("options")?)?,
            metadata: optional_json(row, "metadata")?,
            idempotency_key: row.try_get("idempotency_key")?,
        },
        state: job_state_of(row, "state")?,
        entries: entries_of(row)?,
        finished: time_of(row, "finished")?,
        reason: row.try_get("reason")?,
    })
}

pub(super) fn file_of(row: &SqliteRow) -> Result<File, sqlx::Error> {
    Ok(File {
        number: FileNumber(count_of(row, "number")?),
        job: id_of(row, "job")?,
        new: NewFile {
            extent: Extent::File,
            entry: count_of(row, "entry")?,
            source: row.try_get("source")?,
            destination: row.try_get("destination")?,
            source_endpoint: row.try_get("source_endpoint")?,
            destination_endpoint: row.try_get("destination_endpoint")?,
            activity: row.try_get("activity")?,
            strategy: row.try_get("strategy")?,
            size: row.try_get::<Option<i64>, _>("size")?.and_then(|size| u64::try_from(size).ok()),
            checksum: row.try_get("checksum")?,
            is_reserved: row.try_get("is_reserved")?,
            shares_session: row.try_get("shares_session")?,
            deadline: row.try_get("deadline")?,
            metadata: optional_json(row, "metadata")?,
            fts: optional_json(row, "fts")?,
            choice: None,
            credentials: Credentials::default(),
        },
        vo: row.try_get("vo")?,
        priority: row.try_get("priority")?,
        state: file_state_of(row, "state")?,
        submitted: UnixTime(row.try_get("submitted")?),
        started: time_of(row, "started")?,
        finished: time_of(row, "finished")?,
        not_before: UnixTime(row.try_get("not_before")?),
        starts: row.try_get("starts")?,
        failures: row.try_get("failures")?,
        worker: row.try_get("worker")?,
        rationale: row.try_get("rationale")?,
        failure: optional_json(row, "failure")?,
        moved: optional_json(row, "moved")?.unwrap_or_default(),
        cleanup: optional_json(row, "cleanup")?,
    })
}
