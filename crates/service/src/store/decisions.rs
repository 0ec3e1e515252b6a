//! Decisions about files in the SQLite store, and the files about which one can be made.

use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Row, Sqlite, SqliteConnection, SqlitePool};
use sterna_sched::queue::FileNumber;
use sterna_sched::time::UnixTime;

use super::row::{FILE_COLUMNS, file_of, signed};
use super::{Decided, Decision, DecisionKind};
use crate::job::{File, NewFile};

/// Maximum number of decisions that are kept of a file: the first one, and the latest. Reason: a file that is tried a
/// thousand times has some kB.
const KEPT_MAX: i64 = 32;

/// Inserts the choices of files that were inserted in one statement. `last`: number of the last one.
pub(super) async fn insert_choices(
    connection: &mut SqliteConnection,
    files: &[&NewFile],
    last: i64,
    at: UnixTime,
) -> Result<(), sqlx::Error> {
    // Nobody else inserts, so that the numbers of one statement follow each other.
    let first = last - files.len() as i64 + 1;
    let choices = (first..).zip(files).filter_map(|(number, file)| Some((number, file.choice.as_deref()?)));
    let choices: Vec<_> = choices.collect();
    if choices.is_empty() {
        return Ok(());
    }
    let mut query = QueryBuilder::<Sqlite>::new("INSERT INTO decisions (file, number, at, kind, text) ");
    query.push_values(choices, |mut row, (file, text)| {
        let Decision { kind, text } = Decision::new(DecisionKind::Choice, text);
        row.push_bind(file).push_bind(1).push_bind(at.0).push_bind(kind.name()).push_bind(text);
    });
    query.build().execute(connection).await.map(drop)
}

/// Adds a decision about a file.
pub(super) async fn add(
    connection: &mut SqliteConnection,
    file: FileNumber,
    at: UnixTime,
    decision: &Decision,
) -> Result<(), sqlx::Error> {
    let row = sqlx::query(
        "INSERT INTO decisions (file, number, at, kind, text) \
         SELECT ?1, COALESCE(MAX(number), 0) + 1, ?2, ?3, ?4 FROM decisions WHERE file = ?1 RETURNING number",
    )
    .bind(signed(file.0))
    .bind(at.0)
    .bind(decision.kind.name())
    .bind(&decision.text)
    .fetch_one(&mut *connection)
    .await?;
    let number: i64 = row.try_get("number")?;
    let old = sqlx::query("DELETE FROM decisions WHERE file = ? AND number BETWEEN 2 AND ?");
    old.bind(signed(file.0)).bind(number - KEPT_MAX + 1).execute(connection).await.map(drop)
}

/// Deletes the decisions about the first files of a job.
pub(super) async fn discard(connection: &mut SqliteConnection, job: &str, limit: u32) -> Result<(), sqlx::Error> {
    let statement = "DELETE FROM decisions WHERE file IN \
                     (SELECT number FROM files WHERE job = ? ORDER BY entry, number LIMIT ?)";
    sqlx::query(statement).bind(job).bind(limit).execute(connection).await.map(drop)
}

/// Returns the decisions about a file.
pub(super) async fn of_file(readers: &SqlitePool, file: FileNumber) -> Result<Vec<Decided>, sqlx::Error> {
    let query = sqlx::query(
        "SELECT number, at, kind, text FROM decisions WHERE file = ?1 UNION ALL \
         SELECT number, at, kind, text FROM decisions_archive WHERE file = ?1 ORDER BY number",
    );
    let rows = query.bind(signed(file.0)).fetch_all(readers).await?;
    let decided = |row: &SqliteRow| {
        let kind: &str = row.try_get("kind")?;
        let unknown = || sqlx::Error::Decode(format!("there is no kind of decision {kind}").into());
        let kind = DecisionKind::by_name(kind).ok_or_else(unknown)?;
        let (at, text) = (UnixTime(row.try_get("at")?), row.try_get("text")?);
        Ok(Decided { at, decision: Decision { kind, text } })
    };
    rows.iter().map(decided).collect()
}

/// Returns files that can give their place to another replica.
pub(super) async fn replaceable(
    readers: &SqlitePool,
    source_endpoint: &str,
    after: FileNumber,
    limit: u32,
) -> Result<Vec<File>, sqlx::Error> {
    // The states and the condition are those of the index, word for word.
    let statement = format!(
        "SELECT {FILE_COLUMNS} FROM files WHERE state IN ('waiting', 'held') AND strategy IS NOT NULL \
         AND source_endpoint = ? AND number > ? ORDER BY number LIMIT ?"
    );
    let query = sqlx::query(&statement).bind(source_endpoint).bind(signed(after.0)).bind(limit);
    query.fetch_all(readers).await?.iter().map(file_of).collect()
}
