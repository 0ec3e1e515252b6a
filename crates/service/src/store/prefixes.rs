//! Prefixes of jobs in an SQLite database, and the files found beneath them.

use std::collections::HashSet;

use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Row, Sqlite, SqliteConnection, SqlitePool};
use sterna_sched::state::{FileState, JobState};
use sterna_sched::time::UnixTime;

use super::row::{count_of, from_json, id_of, json, kind_of, optional_json, signed, time_of};
use super::statements::{Counted, OfJob, count, insert_files, record};
use super::{Added, PrefixChange, PrefixFilter};
use crate::job::{Extent, Failure, NewFile, Owner, Prefix};

/// Maximum number of destinations in one statement. Reason: below the 32,766 parameters that SQLite takes.
const DESTINATIONS_TOGETHER_MAX: usize = 10_000;

/// Stores the prefixes among the files of a job.
pub(super) async fn insert(connection: &mut SqliteConnection, job: &str, files: &[NewFile]) -> Result<(), sqlx::Error> {
    let mut inserted = 0;
    for file in files.iter().filter(|file| file.extent == Extent::Prefix) {
        let query = sqlx::query("INSERT INTO prefixes (job, file) VALUES (?, ?)");
        query.bind(job).bind(json(file)).execute(&mut *connection).await?;
        inserted += 1;
    }
    if inserted > 0 {
        let counted = sqlx::query("UPDATE jobs SET listing = listing + ? WHERE id = ?");
        counted.bind(inserted).bind(job).execute(connection).await?;
    }
    Ok(())
}

/// Deletes the prefixes of a job.
pub(super) async fn delete(connection: &mut SqliteConnection, job: &str) -> Result<(), sqlx::Error> {
    sqlx::query("DELETE FROM prefixes WHERE job = ?").bind(job).execute(connection).await.map(drop)
}

/// Returns prefixes of complete jobs, by number.
pub(super) async fn of(readers: &SqlitePool, filter: &PrefixFilter) -> Result<Vec<Prefix>, sqlx::Error> {
    let mut query = QueryBuilder::<Sqlite>::new(
        "SELECT prefixes.number, job, kind, credential, owner, vo, options, expires, file, failures, not_before, failure \
         FROM prefixes JOIN jobs ON jobs.id = prefixes.job WHERE NOT is_open AND prefixes.number > ",
    );
    query.push_bind(signed(filter.after));
    if let Some(job) = filter.job {
        query.push(" AND job = ").push_bind(job.to_string());
    }
    query.push(" ORDER BY prefixes.number LIMIT ").push_bind(filter.limit);
    let rows = query.build().fetch_all(readers).await?;
    rows.iter().map(prefix_of).collect()
}

fn prefix_of(row: &SqliteRow) -> Result<Prefix, sqlx::Error> {
    Ok(Prefix {
        number: count_of(row, "number")?,
        job: id_of(row, "job")?,
        kind: kind_of(row)?,
        owner: Owner { credential: row.try_get("credential")?, name: row.try_get("owner")?, vo: row.try_get("vo")? },
        options: from_json("options", row.try_get("options")?)?,
        expires: time_of(row, "expires")?,
        file: NewFile { extent: Extent::Prefix, ..from_json("file", row.try_get("file")?)? },
        failures: row.try_get("failures")?,
        not_before: UnixTime(row.try_get("not_before")?),
        failure: optional_json(row, "failure")?,
    })
}

/// Job of a prefix.
struct JobOf {
    id: String,
    vo: String,
    priority: u8,
    submitted: UnixTime,
    entries: u64,
    file: NewFile,
}

/// Returns the job of a prefix; `None`: the prefix is gone.
async fn job_of(connection: &mut SqliteConnection, prefix: u64) -> Result<Option<JobOf>, sqlx::Error> {
    let found = sqlx::query(
        "SELECT id, vo, priority, submitted, entries, file FROM prefixes JOIN jobs ON jobs.id = prefixes.job \
         WHERE prefixes.number = ?",
    );
    let row = found.bind(signed(prefix)).fetch_optional(connection).await?;
    let read = |row: SqliteRow| {
        Ok(JobOf {
            id: row.try_get("id")?,
            vo: row.try_get("vo")?,
            priority: row.try_get("priority")?,
            submitted: UnixTime(row.try_get("submitted")?),
            entries: count_of(&row, "entries")?,
            file: from_json("file", row.try_get("file")?)?,
        })
    };
    row.map(read).transpose()
}

/// Adds files that were found beneath a prefix.
pub(super) async fn add_found(
    connection: &mut SqliteConnection,
    prefix: u64,
    mut files: Vec<NewFile>,
    most: u64,
) -> Result<Added, sqlx::Error> {
    let Some(job) = job_of(connection, prefix).await? else { return Ok(Added::Gone) };
    let mut known = found_before(connection, prefix, &files).await?;
    files.retain(|file| known.insert(file.destination.clone()));
    let room = usize::try_from(most.saturating_sub(job.entries)).unwrap_or(usize::MAX);
    let is_full = files.len() > room;
    files.truncate(room);
    (job.entries..).zip(&mut files).for_each(|(entry, file)| file.entry = entry);
    insert_of(connection, &job, Some(prefix), &files).await?;
    Ok(if is_full { Added::Full } else { Added::All })
}

/// Inserts files after the last entry of a job.
async fn insert_of(
    connection: &mut SqliteConnection,
    job: &JobOf,
    prefix: Option<u64>,
    files: &[NewFile],
) -> Result<(), sqlx::Error> {
    let JobOf { id, vo, priority, submitted, .. } = job;
    insert_files(connection, &OfJob { job: id, vo, priority: *priority, submitted: *submitted, prefix }, files).await?;
    let counted = sqlx::query(
        "UPDATE jobs SET entries = entries + ?, source_endpoint = COALESCE(source_endpoint, ?), \
         destination_endpoint = COALESCE(destination_endpoint, ?) WHERE id = ?",
    );
    let first = files.first();
    counted
        .bind(signed(files.len() as u64))
        .bind(first.map(|file| &file.source_endpoint))
        .bind(first.map(|file| &file.destination_endpoint))
        .bind(id)
        .execute(connection)
        .await?;
    Ok(())
}

/// Returns the destinations of files that were found beneath a prefix before.
async fn found_before(
    connection: &mut SqliteConnection,
    prefix: u64,
    files: &[NewFile],
) -> Result<HashSet<String>, sqlx::Error> {
    let mut known = HashSet::new();
    for files in files.chunks(DESTINATIONS_TOGETHER_MAX) {
        let mut query = QueryBuilder::<Sqlite>::new("SELECT destination FROM files WHERE prefix = ");
        query.push_bind(signed(prefix)).push(" AND destination IN (");
        let mut list = query.separated(", ");
        files.iter().for_each(|file| {
            list.push_bind(&file.destination);
        });
        query.push(")");
        for row in query.build().fetch_all(&mut *connection).await? {
            known.insert(row.try_get("destination")?);
        }
    }
    Ok(known)
}

/// Changes a prefix. Returns the state of the job, if that changed.
pub(super) async fn change(
    connection: &mut SqliteConnection,
    prefix: u64,
    change: &PrefixChange,
    at: UnixTime,
) -> Result<Option<JobState>, sqlx::Error> {
    let failure = match change {
        PrefixChange::Retries { failure, not_before } => {
            let again = sqlx::query(
                "UPDATE prefixes SET failures = failures + 1, not_before = ?, failure = ? WHERE number = ?",
            );
            again.bind(not_before.0).bind(json(failure)).bind(signed(prefix)).execute(connection).await?;
            return Ok(None);
        }
        PrefixChange::Fails { failure } => Some(failure),
        PrefixChange::Ends { nothing_found } => {
            let found = sqlx::query("SELECT 1 FROM files WHERE prefix = ? LIMIT 1");
            let found = found.bind(signed(prefix)).fetch_optional(&mut *connection).await?;
            found.is_none().then_some(nothing_found)
        }
    };
    let Some(job) = job_of(connection, prefix).await? else { return Ok(None) };
    sqlx::query("DELETE FROM prefixes WHERE number = ?").bind(signed(prefix)).execute(&mut *connection).await?;
    let listed = sqlx::query("UPDATE jobs SET listing = listing - 1 WHERE id = ?");
    listed.bind(&job.id).execute(&mut *connection).await?;
    let Some(failure) = failure else { return count(connection, &job.id, Counted::default(), at, None).await };
    insert_failed(connection, &job, failure, at).await?;
    let failed = Counted { failed: 1, ..Counted::default() };
    count(connection, &job.id, failed, at, Some(&failure.text)).await
}

/// Stores a prefix as a failed file of its job.
async fn insert_failed(
    connection: &mut SqliteConnection,
    job: &JobOf,
    failure: &Failure,
    at: UnixTime,
) -> Result<(), sqlx::Error> {
    let file = NewFile { entry: job.entries, extent: Extent::File, ..job.file.clone() };
    insert_of(connection, job, None, &[file]).await?;
    let failed = sqlx::query(
        "UPDATE files SET state = 'failed', finished = ?, failure = ? WHERE job = ? AND entry = ? RETURNING number",
    );
    let row = failed
        .bind(at.0)
        .bind(json(failure))
        .bind(&job.id)
        .bind(signed(job.entries))
        .fetch_one(&mut *connection)
        .await?;
    let number = sterna_sched::queue::FileNumber(count_of(&row, "number")?);
    record(connection, at, &job.id, Some((number, FileState::Failed)), None).await?;
    // The reason of the prefix is clearer than that some files have failed.
    let reason = sqlx::query("UPDATE jobs SET reason = COALESCE(reason, ?) WHERE id = ?");
    reason.bind(&failure.text).bind(&job.id).execute(connection).await?;
    Ok(())
}
