//! Statements that several writes of an SQLite database share: the files of a job, its counts, and the change feed.

use sqlx::{QueryBuilder, Sqlite, SqliteConnection};
use sterna_sched::queue::FileNumber;
use sterna_sched::state::{FileState, JobState};
use sterna_sched::time::UnixTime;

use super::row::{entries_of, job_state_of, json, kind_of, signed};
use super::{credentials, decisions, deletions};
use crate::job::{Extent, NewFile};

/// Maximum number of rows in one statement. Reason: 21 values each stay below the 32,766 parameters that SQLite takes.
const ROWS_TOGETHER_MAX: usize = 1000;

/// Values of a job that each of its files has.
pub(super) struct OfJob<'a> {
    /// Identifier.
    pub job: &'a str,
    /// Virtual organisation.
    pub vo: &'a str,
    /// Priority.
    pub priority: u8,
    /// Time of the submission.
    pub submitted: UnixTime,
    /// Prefix beneath which the files were found.
    pub prefix: Option<u64>,
}

/// Inserts files of a job. Leaves out prefixes.
pub(super) async fn insert_files(
    connection: &mut SqliteConnection,
    of: &OfJob<'_>,
    files: &[NewFile],
) -> Result<(), sqlx::Error> {
    let files: Vec<&NewFile> = files.iter().filter(|file| file.extent == Extent::File).collect();
    let credentials = credentials::insert(connection, of.job, files.iter().map(|file| &file.credentials)).await?;
    for (files, credentials) in files.chunks(ROWS_TOGETHER_MAX).zip(credentials.chunks(ROWS_TOGETHER_MAX)) {
        let mut query = QueryBuilder::<Sqlite>::new(
            "INSERT INTO files (job, entry, state, vo, priority, submitted, source, destination, source_endpoint, \
             destination_endpoint, activity, strategy, size, checksum, is_reserved, shares_session, deadline, metadata, fts, \
             credentials, prefix) ",
        );
        query.push_values(files.iter().zip(credentials), |mut row, (file, credentials)| {
            let state = if file.is_reserved { FileState::Reserved } else { FileState::Waiting };
            row.push_bind(of.job)
                .push_bind(signed(file.entry))
                .push_bind(state.name())
                .push_bind(of.vo)
                .push_bind(of.priority)
                .push_bind(of.submitted.0)
                .push_bind(&file.source)
                .push_bind(&file.destination)
                .push_bind(&file.source_endpoint)
                .push_bind(&file.destination_endpoint)
                .push_bind(&file.activity)
                .push_bind(&file.strategy)
                .push_bind(file.size.map(signed))
                .push_bind(&file.checksum)
                .push_bind(file.is_reserved)
                .push_bind(file.shares_session)
                .push_bind(file.deadline)
                .push_bind(file.metadata.as_ref().map(json))
                .push_bind(file.fts.as_ref().map(json))
                .push_bind(credentials)
                .push_bind(of.prefix.map(signed));
        });
        let last = query.build().execute(&mut *connection).await?.last_insert_rowid();
        decisions::insert_choices(connection, files, last, of.submitted).await?;
    }
    Ok(())
}

/// Returns the number of entries after the last one of some files.
pub(super) fn entries_after(files: &[NewFile]) -> i64 {
    let files = files.iter().filter(|file| file.extent == Extent::File);
    signed(files.map(|file| file.entry + 1).max().unwrap_or(0))
}

/// Adds a change to the feed.
pub(super) async fn record(
    connection: &mut SqliteConnection,
    at: UnixTime,
    job: &str,
    file: Option<(FileNumber, FileState)>,
    state: Option<JobState>,
) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO changes (at, job, file, file_state, job_state) VALUES (?, ?, ?, ?, ?)")
        .bind(at.0)
        .bind(job)
        .bind(file.map(|(number, _)| signed(number.0)))
        .bind(file.map(|(_, state)| state.name()))
        .bind(state.map(JobState::name))
        .execute(connection)
        .await?;
    Ok(())
}

/// Changes of the counts of a job.
#[derive(Clone, Copy, Default)]
pub(super) struct Counted {
    /// Files under way.
    pub active: i64,
    /// Entries that have arrived.
    pub finished: i64,
    /// Entries that have failed.
    pub failed: i64,
    /// Entries that were cancelled.
    pub cancelled: i64,
}

/// Adds to the counts of a job, and sets the state that follows. Returns the state if it changed.
pub(super) async fn count(
    connection: &mut SqliteConnection,
    job: &str,
    counted: Counted,
    at: UnixTime,
    reason: Option<&str>,
) -> Result<Option<JobState>, sqlx::Error> {
    let row = sqlx::query(
        "UPDATE jobs SET files_active = files_active + ?, entries_finished = entries_finished + ?, \
         entries_failed = entries_failed + ?, entries_cancelled = entries_cancelled + ? WHERE id = ? \
         RETURNING kind, state, is_open, entries, entries_finished, entries_failed, entries_cancelled, files_active, \
         listing",
    )
    .bind(counted.active)
    .bind(counted.finished)
    .bind(counted.failed)
    .bind(counted.cancelled)
    .bind(job)
    .fetch_one(&mut *connection)
    .await?;
    let (before, state) = (job_state_of(&row, "state")?, entries_of(&row)?.state(kind_of(&row)?));
    if before == state || before.is_final() {
        return Ok(None);
    }
    sqlx::query("UPDATE jobs SET state = ?, finished = ?, reason = COALESCE(reason, ?) WHERE id = ?")
        .bind(state.name())
        .bind(state.is_final().then_some(at.0))
        .bind(reason)
        .bind(job)
        .execute(&mut *connection)
        .await?;
    record(connection, at, job, None, Some(state)).await?;
    if state.is_final() {
        deletions::plan(connection, job, at).await?;
        credentials::delete_unneeded(connection, job).await?;
    }
    Ok(Some(state))
}
