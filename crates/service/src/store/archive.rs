//! Archive of an SQLite database: jobs that ended long ago, with their files, attempts and decisions.

use sqlx::{Row, SqliteConnection, SqlitePool};
use sterna_sched::time::UnixTime;
use uuid::Uuid;

use super::row::{FILE_COLUMNS, JOB_COLUMNS, file_of, job_of};
use crate::job::{File, Job};

/// Moves jobs that ended before a time to the archive, except those with a copy that is to be deleted. Returns the
/// number of jobs.
pub(super) async fn archive(
    connection: &mut SqliteConnection,
    before: UnixTime,
    limit: u32,
) -> Result<u64, sqlx::Error> {
    let ended = sqlx::query(
        "SELECT id FROM jobs WHERE finished < ? AND id NOT IN (SELECT job FROM deletions) ORDER BY finished LIMIT ?",
    );
    let rows = ended.bind(before.0).bind(limit).fetch_all(&mut *connection).await?;
    for row in &rows {
        let job: &str = row.try_get("id")?;
        for statement in [
            "INSERT INTO attempts_archive SELECT * FROM attempts WHERE file IN (SELECT number FROM files WHERE job = ?)",
            "DELETE FROM attempts WHERE file IN (SELECT number FROM files WHERE job = ?)",
            "INSERT INTO decisions_archive SELECT * FROM decisions WHERE file IN (SELECT number FROM files WHERE job = ?)",
            "DELETE FROM decisions WHERE file IN (SELECT number FROM files WHERE job = ?)",
            "INSERT INTO files_archive SELECT * FROM files WHERE job = ?",
            "DELETE FROM files WHERE job = ?",
            "INSERT INTO jobs_archive SELECT * FROM jobs WHERE id = ?",
            "DELETE FROM jobs WHERE id = ?",
            // A cursor that is older than the archive reads the job there.
            "DELETE FROM changes WHERE job = ?",
        ] {
            sqlx::query(statement).bind(job).execute(&mut *connection).await?;
        }
    }
    Ok(rows.len() as u64)
}

/// Returns an archived job with its files.
pub(super) async fn job(readers: &SqlitePool, job: Uuid) -> Result<Option<(Job, Vec<File>)>, sqlx::Error> {
    let id = job.to_string();
    let statement = format!("SELECT {JOB_COLUMNS} FROM jobs_archive WHERE id = ?");
    let Some(row) = sqlx::query(&statement).bind(&id).fetch_optional(readers).await? else { return Ok(None) };
    let statement = format!("SELECT {FILE_COLUMNS} FROM files_archive WHERE job = ? ORDER BY number");
    let files = sqlx::query(&statement).bind(&id).fetch_all(readers).await?;
    Ok(Some((job_of(&row)?, files.iter().map(file_of).collect::<Result<Vec<File>, _>>()?)))
}
