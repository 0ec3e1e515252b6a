//! Rounds of agents that monitor a peer, in the SQLite store.

use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection, SqlitePool};
use sterna_doctor::monitor::Round;

use super::row::{from_json, json, signed};
use crate::paths::{ObservedRound, RoundFilter};

/// Seconds of which the last round is kept. Reason: an agent can visit a peer each second, and a path then has no more
/// rows.
const TOGETHER_S: u64 = 60;

/// Age at which rounds are deleted, minutes: a year. Reason: with a round every 5 min, a path has 100,000 rows of some
/// hundred bytes.
const KEPT_MINUTES: i64 = 366 * 24 * 60;

/// Adds rounds, and deletes those that are older than the latest of them by more than a year.
pub(super) async fn add(connection: &mut SqliteConnection, observed: &[ObservedRound]) -> Result<(), sqlx::Error> {
    let Some(latest) = observed.iter().map(|observed| observed.round.at).max() else { return Ok(()) };
    for ObservedRound { observer, peer, round } in observed {
        sqlx::query("INSERT OR REPLACE INTO rounds (observer, peer, minute, round) VALUES (?, ?, ?, ?)")
            .bind(observer.to_string())
            .bind(peer.to_string())
            .bind(signed(round.at / TOGETHER_S))
            .bind(json(round))
            .execute(&mut *connection)
            .await?;
    }
    let old = sqlx::query("DELETE FROM rounds WHERE minute < ?");
    old.bind(signed(latest / TOGETHER_S) - KEPT_MINUTES).execute(connection).await.map(drop)
}

/// Returns rounds, the oldest first.
pub(super) async fn find(readers: &SqlitePool, filter: &RoundFilter) -> Result<Vec<Round>, sqlx::Error> {
    let query =
        sqlx::query("SELECT round FROM rounds WHERE observer = ? AND peer = ? AND minute > ? ORDER BY minute LIMIT ?");
    let query = query.bind(filter.observer.to_string()).bind(filter.peer.to_string());
    let rows = query.bind(signed(filter.after / TOGETHER_S)).bind(filter.limit).fetch_all(readers).await?;
    let texts = rows.iter().map(|row: &SqliteRow| row.try_get::<&str, _>("round"));
    let texts = texts.collect::<Result<Vec<_>, _>>()?;
    Ok(texts.into_iter().filter_map(|text| from_json("round", text).ok()).collect())
}
