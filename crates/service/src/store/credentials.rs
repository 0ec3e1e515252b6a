//! Credentials of files in an SQLite database: apart from the files, and only until their job has ended.
//!
//! Files with equal credentials share a row: a job of a million files has few tokens.

use std::collections::{BTreeMap, HashMap};

use sqlx::{QueryBuilder, Row, Sqlite, SqliteConnection, SqlitePool};
use sterna_sched::queue::FileNumber;

use crate::credentials::{Credentials, Proxy, Secret};

/// Maximum number of files in one statement. Reason: below the 32,766 parameters that SQLite takes.
const FILES_TOGETHER_MAX: usize = 10_000;

/// Stores the credentials of files of a job. Returns the number for each file; `None`: it has none.
pub(super) async fn insert<'a>(
    connection: &mut SqliteConnection,
    job: &str,
    files: impl Iterator<Item = &'a Credentials>,
) -> Result<Vec<Option<i64>>, sqlx::Error> {
    let mut known: HashMap<&Credentials, i64> = HashMap::new();
    let mut numbers = Vec::new();
    for credentials in files {
        let number = match known.get(credentials) {
            _ if credentials.has_no_token() => None,
            Some(number) => Some(*number),
            None => {
                let row = sqlx::query(
                    "INSERT INTO credentials (job, number, source, destination) \
                     SELECT ?1, COALESCE(MAX(number), 0) + 1, ?2, ?3 FROM credentials WHERE job = ?1 RETURNING number",
                )
                .bind(job)
                .bind(credentials.source.as_ref().map(Secret::reveal))
                .bind(credentials.destination.as_ref().map(Secret::reveal))
                .fetch_one(&mut *connection)
                .await?;
                let number = row.try_get("number")?;
                known.insert(credentials, number);
                Some(number)
            }
        };
        numbers.push(number);
    }
    Ok(numbers)
}

/// Deletes the credentials of a job.
pub(super) async fn delete(connection: &mut SqliteConnection, job: &str) -> Result<(), sqlx::Error> {
    sqlx::query("DELETE FROM credentials WHERE job = ?").bind(job).execute(connection).await.map(drop)
}

/// Deletes the credentials of a job that has ended, except those that its deletions need.
pub(super) async fn delete_unneeded(connection: &mut SqliteConnection, job: &str) -> Result<(), sqlx::Error> {
    let unneeded = sqlx::query(
        "DELETE FROM credentials WHERE job = ?1 AND number NOT IN (SELECT files.credentials FROM files \
         JOIN deletions ON deletions.file = files.number WHERE deletions.job = ?1 AND files.credentials IS NOT NULL)",
    );
    unneeded.bind(job).execute(connection).await.map(drop)
}

/// Stores a proxy instead of an earlier one of the same credential, and deletes those that have expired at `now`, in
/// seconds since 1970.
pub(super) async fn set_proxy(connection: &mut SqliteConnection, proxy: &Proxy, now: i64) -> Result<(), sqlx::Error> {
    sqlx::query("DELETE FROM proxies WHERE expires < ?").bind(now).execute(&mut *connection).await?;
    sqlx::query("INSERT OR REPLACE INTO proxies (credential, expires, certificates, key) VALUES (?, ?, ?, ?)")
        .bind(&proxy.credential)
        .bind(proxy.expires)
        .bind(&*proxy.certificates)
        .bind(&*proxy.key)
        .execute(connection)
        .await
        .map(drop)
}

/// Deletes the proxy of a credential.
pub(super) async fn delete_proxy(connection: &mut SqliteConnection, credential: &str) -> Result<(), sqlx::Error> {
    sqlx::query("DELETE FROM proxies WHERE credential = ?").bind(credential).execute(connection).await.map(drop)
}

/// Returns the proxy of a credential.
pub(super) async fn proxy(readers: &SqlitePool, credential: &str) -> Result<Option<Proxy>, sqlx::Error> {
    let query = sqlx::query("SELECT expires, certificates, key FROM proxies WHERE credential = ?");
    let Some(row) = query.bind(credential).fetch_optional(readers).await? else { return Ok(None) };
    Ok(Some(Proxy {
        credential: credential.to_owned(),
        expires: row.try_get("expires")?,
        certificates: row.try_get::<&str, _>("certificates")?.into(),
        key: row.try_get::<&str, _>("key")?.into(),
    }))
}

/// Returns the credentials of those files that have some.
pub(super) async fn of_files(
    readers: &SqlitePool,
    files: &[FileNumber],
) -> Result<BTreeMap<FileNumber, Credentials>, sqlx::Error> {
    let mut found = BTreeMap::new();
    for files in files.chunks(FILES_TOGETHER_MAX) {
        let mut query = QueryBuilder::<Sqlite>::new(
            "SELECT files.number AS file, known.source, known.destination FROM files \
             JOIN credentials AS known ON known.job = files.job AND known.number = files.credentials \
             WHERE files.number IN (",
        );
        let mut list = query.separated(", ");
        for file in files {
            list.push_bind(i64::try_from(file.0).unwrap_or(i64::MAX));
        }
        query.push(")");
        for row in query.build().fetch_all(readers).await? {
            let secret =
                |column: &str| Ok::<_, sqlx::Error>(row.try_get::<Option<&str>, _>(column)?.and_then(Secret::new));
            let number = u64::try_from(row.try_get::<i64, _>("file")?).unwrap_or(0);
            let credentials =
                Credentials { source: secret("source")?, destination: secret("destination")?, proxy: None };
            found.insert(FileNumber(number), credentials);
        }
    }
    Ok(found)
}
