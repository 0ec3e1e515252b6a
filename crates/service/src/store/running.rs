//! Files that wait, are held or run, by link.
//!
//! Each query has the condition of the index of these files, word for word: without it, SQLite would read all files.

use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqlitePool};
use sterna_sched::queue::FileNumber;
use uuid::Uuid;

use super::LinkState;
use super::row::{FILE_COLUMNS, file_of, file_state_of, id_of, signed};
use crate::job::File;

/// Condition of the index.
const RUNNING: &str = "state IN ('waiting', 'held', 'active')";

/// Returns the links, by state.
pub(super) async fn links(readers: &SqlitePool) -> Result<Vec<LinkState>, sqlx::Error> {
    let statement = format!("SELECT DISTINCT state, source_endpoint, destination_endpoint FROM files WHERE {RUNNING}");
    let link = |row: &SqliteRow| {
        let state = file_state_of(row, "state")?;
        let (source, destination) = (row.try_get("source_endpoint")?, row.try_get("destination_endpoint")?);
        Ok(LinkState { state, source, destination })
    };
    sqlx::query(&statement).fetch_all(readers).await?.iter().map(link).collect()
}

/// Returns the files of a link after a number, by number.
pub(super) async fn files_of_link(
    readers: &SqlitePool,
    link: &LinkState,
    after: FileNumber,
    limit: u32,
) -> Result<Vec<File>, sqlx::Error> {
    let statement = format!(
        "SELECT {FILE_COLUMNS} FROM files WHERE {RUNNING} AND state = ? AND source_endpoint = ? \
         AND destination_endpoint = ? AND number > ? ORDER BY number LIMIT ?"
    );
    let query = sqlx::query(&statement).bind(link.state.name()).bind(&link.source).bind(&link.destination);
    query.bind(signed(after.0)).bind(limit).fetch_all(readers).await?.iter().map(file_of).collect()
}

/// Returns the jobs with files at an endpoint.
pub(super) async fn jobs_at(readers: &SqlitePool, endpoint: &str) -> Result<Vec<Uuid>, sqlx::Error> {
    let statement =
        format!("SELECT DISTINCT job FROM files WHERE {RUNNING} AND ? IN (source_endpoint, destination_endpoint)");
    sqlx::query(&statement).bind(endpoint).fetch_all(readers).await?.iter().map(|row| id_of(row, "job")).collect()
}
