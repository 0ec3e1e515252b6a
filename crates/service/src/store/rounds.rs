//! Rounds of agents that monitor a peer, in the SQLite store.

use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection, SqlitePool};
use sterna_doctor::monitor::Round;

use super::row::{from_json, json, signed};
use crate::paths::{ObservedRound, RoundFilter};

/// Seconds of which the last round is kept. Reason: an agent can visit a peer each second, and a path then has no more
/// rows.
const TOGETHER_S: u64 = 60;

/// Age at which rounds are deleted, minutes: a year. Reason: with a round every 5 min, a path has 100,000 rows of 300
/// bytes.
const KEPT_MINUTES: i64 = 366 * 24 * 60;

/// Adds a round, and deletes those of the path that are too old.
pub(super) async fn add(connection: &mut SqliteConnection, observed: &ObservedRound) -> Result<(), sqlx::Error> {
    let ObservedRound { observer, peer, round } = observed;
    let (observer, peer, minute) = (observer.to_string(), peer.to_string(), signed(round.at / TOGETHER_S));
    sqlx::query("INSERT OR REPLACE INTO rounds (observer, peer, minute, round) VALUES (?, ?, ?, ?)")
        .bind(&observer)
        .bind(&peer)
        .bind(minute)
        .bind(json(round))
        .execute(&mut *connection)
        .await?;
    let old = sqlx::query("DELETE FROM rounds WHERE observer = ? AND peer = ? AND minute < ?");
    old.bind(observer).bind(peer).bind(minute - KEPT_MINUTES).execute(connection).await.map(drop)
}

/// Returns rounds, the oldest first.
pub(super) async fn find(readers: &SqlitePool, filter: &RoundFilter) -> Result<Vec<Round>, sqlx::Error> {
    let query =
        sqlx::query("SELECT round FROM rounds WHERE observer = ? AND peer = ? AND minute > ? ORDER BY minute LIMIT ?");
    let query = query.bind(filter.observer.to_string()).bind(filter.peer.to_string());
    let rows = query.bind(signed(filter.after / TOGETHER_S)).bind(filter.limit).fetch_all(readers).await?;
    rows.iter().map(|row: &SqliteRow| from_json("round", row.try_get("round")?)).collect()
}
