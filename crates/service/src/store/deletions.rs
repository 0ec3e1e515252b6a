//! Deletions of copies between hops in an SQLite database.
//!
//! A deletion is planned in the transaction that records the end of the hop that reads the copy, or of the job. It is
//! known after a crash. The credentials that it needs stay until its own end. Refuses to delete anything itself.

use std::time::Duration;

use sqlx::{Row, SqliteConnection, SqlitePool};
use sterna_sched::queue::FileNumber;
use sterna_sched::time::UnixTime;

use super::row::{count_of, id_of, json, signed};
use super::{Deletion, DeletionStep, LateEnd, credentials};

/// Time after the cancellation of a hop by which its end is known. Reason: an agent that is away is given up after
/// 90 s.
const UNKNOWN_FOR: Duration = Duration::from_secs(120);

/// Maximum number of deletions of one storage that are returned as due. Reason: a storage that never answers leaves
/// room for others.
const OF_ENDPOINT_MAX: u32 = 20;

/// Maximum number of deletions of one user that are returned as due. Reason: a user with many such storages leaves room
/// for others.
const OF_USER_MAX: u32 = 50;

/// Plans the deletion of the copies of a job that nobody reads any more, and which no deletion has handled.
///
/// The copy of a cancelled hop is planned for the time by which a worker must have reported the end: a hop that was
/// under way may still write its copy.
pub(super) async fn plan(connection: &mut SqliteConnection, job: &str, at: UnixTime) -> Result<(), sqlx::Error> {
    let asked =
        sqlx::query("SELECT 1 FROM jobs WHERE id = ? AND kind = 'hops' AND json_extract(options, '$.deletes_between')");
    if asked.bind(job).fetch_optional(&mut *connection).await?.is_none() {
        return Ok(());
    }
    sqlx::query(
        "INSERT OR IGNORE INTO deletions (file, job, not_before) \
         SELECT files.number, files.job, CASE files.state WHEN 'finished' THEN ?2 ELSE ?3 END \
         FROM files JOIN jobs ON jobs.id = files.job \
         WHERE files.job = ?1 AND files.entry < jobs.entries - 1 AND files.cleanup IS NULL AND ( \
             files.state = 'finished' AND (jobs.finished IS NOT NULL OR EXISTS ( \
                 SELECT 1 FROM files AS later \
                 WHERE later.job = files.job AND later.entry = files.entry + 1 AND later.state = 'finished')) \
             OR files.state = 'cancelled' AND files.started IS NOT NULL AND jobs.finished IS NOT NULL)",
    )
    .bind(job)
    .bind(at.0)
    .bind((at + UNKNOWN_FOR).0)
    .execute(connection)
    .await
    .map(drop)
}

/// Records that the end of a cancelled hop is known. Its copy, if there is one, is deleted now.
pub(super) async fn end_late(connection: &mut SqliteConnection, late: &LateEnd) -> Result<(), sqlx::Error> {
    let updated = sqlx::query(
        "UPDATE files SET moved = ?1 WHERE number = ?2 AND state = 'cancelled' AND starts = ?3 AND worker = ?4 \
         RETURNING job",
    );
    let updated = updated.bind(json(&late.moved)).bind(signed(late.file.0)).bind(late.start).bind(&late.worker);
    let Some(row) = updated.fetch_optional(&mut *connection).await? else { return Ok(()) };
    let job: String = row.try_get("job")?;
    // The worker may report when the planned time is over.
    plan(connection, &job, late.at).await?;
    let due = sqlx::query("UPDATE deletions SET not_before = ?1 WHERE file = ?2 AND attempts = 0");
    due.bind(late.at.0).bind(signed(late.file.0)).execute(connection).await.map(drop)
}

/// Records the outcome of an attempt to delete a copy.
pub(super) async fn step(
    connection: &mut SqliteConnection,
    file: FileNumber,
    step: &DeletionStep,
) -> Result<(), sqlx::Error> {
    let number = signed(file.0);
    match step {
        DeletionStep::Again { not_before } => {
            let again = sqlx::query("UPDATE deletions SET attempts = attempts + 1, not_before = ? WHERE file = ?");
            again.bind(not_before.0).bind(number).execute(connection).await.map(drop)
        }
        DeletionStep::Waits { not_before } => {
            let waits = sqlx::query("UPDATE deletions SET not_before = ? WHERE file = ?");
            waits.bind(not_before.0).bind(number).execute(connection).await.map(drop)
        }
        DeletionStep::Ends { cleanup } => {
            let removed = sqlx::query("DELETE FROM deletions WHERE file = ? RETURNING job");
            let Some(row) = removed.bind(number).fetch_optional(&mut *connection).await? else { return Ok(()) };
            let job: String = row.try_get("job")?;
            if let Some(cleanup) = cleanup {
                let kept = sqlx::query("UPDATE files SET cleanup = ? WHERE number = ?");
                kept.bind(json(cleanup)).bind(number).execute(&mut *connection).await?;
            }
            let has_ended = sqlx::query("SELECT 1 FROM jobs WHERE id = ? AND finished IS NOT NULL");
            if has_ended.bind(&job).fetch_optional(&mut *connection).await?.is_some() {
                credentials::delete_unneeded(connection, &job).await?;
            }
            Ok(())
        }
    }
}

/// Returns the deletions that are due, those that wait for the longest time first. A storage and a user have a bounded
/// number of them, with those under way: these are due until their end is recorded.
pub(super) async fn due(readers: &SqlitePool, now: UnixTime, limit: u32) -> Result<Vec<Deletion>, sqlx::Error> {
    let query = sqlx::query(
        "WITH due AS ( \
             SELECT deletions.*, files.destination_endpoint AS endpoint, jobs.credential FROM deletions \
             LEFT JOIN files ON files.number = deletions.file LEFT JOIN jobs ON jobs.id = deletions.job \
             WHERE deletions.not_before <= ?1), \
         of_endpoint AS ( \
             SELECT *, ROW_NUMBER() OVER (PARTITION BY endpoint ORDER BY not_before, file) AS place FROM due), \
         of_user AS ( \
             SELECT file, job, attempts, not_before, \
                    ROW_NUMBER() OVER (PARTITION BY credential ORDER BY not_before, file) AS place \
             FROM of_endpoint WHERE place <= ?2) \
         SELECT file, job, attempts FROM of_user WHERE place <= ?3 ORDER BY not_before, file LIMIT ?4",
    );
    let rows = query.bind(now.0).bind(OF_ENDPOINT_MAX).bind(OF_USER_MAX).bind(limit).fetch_all(readers).await?;
    let deletion = |row| {
        let file = FileNumber(count_of(row, "file")?);
        Ok(Deletion { file, job: id_of(row, "job")?, attempts: row.try_get("attempts")? })
    };
    rows.iter().map(deletion).collect()
}
