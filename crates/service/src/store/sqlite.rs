//! Store in an SQLite database: one writer, several readers.
//!
//! Writes that arrive together share one transaction, and so one flush of the disk. Each runs in a savepoint of its
//! own, so that one that fails takes back nothing of the others.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteRow, SqliteSynchronous};
use sqlx::{Connection, QueryBuilder, Row, Sqlite, SqliteConnection, SqlitePool};
use sterna_doctor::monitor::Round;
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};
use sterna_sched::queue::FileNumber;
use sterna_sched::state::{Entries, FileState, JobState};
use sterna_sched::time::UnixTime;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::row::{
    FILE_COLUMNS, JOB_COLUMNS, count_of, file_of, file_state_of, from_json, id_of, job_of, job_state_of, json,
    kind_name, optional_json, signed, time_of,
};
use super::statements::{Counted, OfJob, count, entries_after, insert_files, record};
use super::{
    Added, Attempt, Audit, Change, Changed, Decided, Deletion, DeletionStep, Event, Feed, FileFilter, JobFilter,
    LateEnd, LinkState, Outcome, PrefixChange, PrefixFilter, Setting, Store, Stored, Submitted,
};
use super::{archive, credentials, decisions, deletions, prefixes, private, rounds, running};
use crate::credentials::{Credentials, Proxy};
use crate::job::{Extent, Failure, File, Job, Moved, NewFile, NewJob, Prefix};
use crate::paths::{ObservedRound, RoundFilter};

/// Maximum number of writes in one transaction. Reason: a reader of the log sees a change within some milliseconds.
const WRITES_TOGETHER_MAX: usize = 256;

/// Maximum number of connections that read. Reason: more than the cores of a small server gain nothing.
const READERS_MAX: u32 = 8;

type Pinned<'c, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'c>>;

/// Reports to the caller of a write whether its transaction was committed.
type Reply = Box<dyn FnOnce(Result<(), Error>) + Send>;

/// Write: runs statements; returns whether they stay, and the reply.
type Write = Box<dyn for<'c> FnOnce(&'c mut SqliteConnection) -> Pinned<'c, (bool, Reply)> + Send>;

/// Store in an SQLite database.
pub struct SqliteStore {
    readers: SqlitePool,
    writes: mpsc::Sender<Write>,
}

impl SqliteStore {
    /// Opens a database, or creates it. Runs within a tokio runtime.
    ///
    /// Errors: the file cannot be opened, is no database of Sterna, or is of a later release.
    pub async fn open(path: &Path) -> Result<Arc<Self>, Error> {
        let failed = |e: sqlx::Error| failure(&format!("open the database {}", path.display()), e);
        private::make_private(path).map_err(|e| failed(sqlx::Error::Io(e)))?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // A change that was reported survives a power cut.
            .synchronous(SqliteSynchronous::Full)
            // Deleted tokens and keys do not stay in free pages.
            .pragma("secure_delete", "FAST")
            .busy_timeout(Duration::from_secs(10))
            .foreign_keys(true);
        let mut writer = SqliteConnection::connect_with(&options).await.map_err(failed)?;
        let migrated = sqlx::migrate!("migrations/sqlite").run(&mut writer).await;
        migrated.map_err(|e| failed(sqlx::Error::Migrate(Box::new(e))))?;
        let readers = SqlitePoolOptions::new().max_connections(READERS_MAX);
        let readers = readers.connect_with(options.read_only(true)).await.map_err(failed)?;
        let (writes, queue) = mpsc::channel(WRITES_TOGETHER_MAX);
        tokio::spawn(run_writes(writer, queue));
        Ok(Arc::new(Self { readers, writes }))
    }

    /// Runs a write with others in one transaction, and waits until it is durable.
    async fn write<T, W>(&self, work: W) -> Result<T, Error>
    where
        T: Send + 'static,
        W: for<'c> FnOnce(&'c mut SqliteConnection) -> Pinned<'c, Result<T, sqlx::Error>> + Send + 'static,
    {
        let (reply, result) = oneshot::channel();
        let write: Write = Box::new(move |connection| {
            Box::pin(async move {
                let outcome = work(connection).await;
                let is_kept = outcome.is_ok();
                let outcome = outcome.map_err(|e| failure("write to the database", e));
                // A caller that has gone needs no reply.
                let reply: Reply = Box::new(move |committed| drop(reply.send(committed.and(outcome))));
                (is_kept, reply)
            })
        });
        let closed = || Error::new(ErrorKind::Cancelled, Scope::Service, Phase::Transfer, "the database is closed");
        self.writes.send(write).await.map_err(|_| closed())?;
        result.await.map_err(|_| closed())?
    }
}

/// Runs writes in their order until the store is dropped.
async fn run_writes(mut connection: SqliteConnection, mut queue: mpsc::Receiver<Write>) {
    let mut together = Vec::new();
    while queue.recv_many(&mut together, WRITES_TOGETHER_MAX).await > 0 {
        let mut replies = Vec::with_capacity(together.len());
        let committed = run_together(&mut connection, &mut together, &mut replies).await;
        let committed = committed.map_err(|e| failure("write to the database", e));
        together.clear();
        replies.into_iter().for_each(|reply| reply(committed.clone()));
    }
    let _ = connection.close().await;
}

async fn run_together(
    connection: &mut SqliteConnection,
    writes: &mut Vec<Write>,
    replies: &mut Vec<Reply>,
) -> Result<(), sqlx::Error> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    for write in writes.drain(..) {
        let mut savepoint = transaction.begin().await?;
        let (is_kept, reply) = write(&mut savepoint).await;
        replies.push(reply);
        match is_kept {
            true => savepoint.commit().await?,
            false => savepoint.rollback().await?,
        }
    }
    transaction.commit().await
}

/// Stores a setting.
async fn set_setting(
    connection: &mut SqliteConnection,
    kind: &str,
    name: &str,
    value: &serde_json::Value,
) -> Result<(), sqlx::Error> {
    let query = sqlx::query("INSERT OR REPLACE INTO settings (kind, name, value) VALUES (?, ?, ?)");
    query.bind(kind).bind(name).bind(json(value)).execute(connection).await.map(drop)
}

/// Returns an error of the database, with what was tried.
fn failure(tried: &str, error: sqlx::Error) -> Error {
    let code = match &error {
        sqlx::Error::Database(error) => error.code().and_then(|code| code.parse::<u32>().ok()).map(|code| code & 0xff),
        _ => None,
    };
    // Primary result codes of SQLite: 13 SQLITE_FULL, 5 SQLITE_BUSY.
    let (kind, retry) = match code {
        Some(13) => (ErrorKind::NoSpace, Retry::After),
        Some(5) => (ErrorKind::Busy, Retry::After),
        _ => (ErrorKind::Io, Retry::After),
    };
    Error::new(kind, Scope::Service, Phase::Transfer, tried).retry(retry).caused_by(error)
}

async fn submit(
    connection: &mut SqliteConnection,
    job: &NewJob,
    files: &[NewFile],
    is_complete: bool,
) -> Result<Submitted, sqlx::Error> {
    if let Some(key) = &job.idempotency_key
        && let Some(first) = job_of_key(connection, &job.owner.credential, key).await?
    {
        return Ok(Submitted::Repeated(first));
    }
    let id = job.id.to_string();
    let taken = sqlx::query("SELECT 1 FROM jobs WHERE id = ?1 UNION ALL SELECT 1 FROM jobs_archive WHERE id = ?1");
    if taken.bind(&id).fetch_optional(&mut *connection).await?.is_some() {
        return Ok(Submitted::IdTaken);
    }
    let entries = entries_after(files);
    let listing = files.iter().filter(|file| file.extent == Extent::Prefix).count() as u64;
    let counts = Entries { all: entries.unsigned_abs(), is_open: !is_complete, listing, ..Entries::default() };
    let state = counts.state(job.kind);
    let one = |endpoint: fn(&NewFile) -> &String| files.first().map(endpoint);
    sqlx::query(
        "INSERT INTO jobs (id, kind, state, credential, owner, vo, priority, submitted, expires, options, metadata, \
         idempotency_key, source_endpoint, destination_endpoint, is_open, entries) \
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(&id)
    .bind(kind_name(job.kind))
    .bind(state.name())
    .bind(&job.owner.credential)
    .bind(&job.owner.name)
    .bind(&job.owner.vo)
    .bind(job.priority)
    .bind(job.submitted.0)
    .bind(job.expires.map(|at| at.0))
    .bind(json(&job.options))
    .bind(job.metadata.as_ref().map(json))
    .bind(job.idempotency_key.as_ref().filter(|_| is_complete))
    .bind(one(|file| &file.source_endpoint))
    .bind(one(|file| &file.destination_endpoint))
    .bind(!is_complete)
    .bind(entries)
    .execute(&mut *connection)
    .await?;
    let of = OfJob { job: &id, vo: &job.owner.vo, priority: job.priority, submitted: job.submitted, prefix: None };
    insert_files(connection, &of, files).await?;
    prefixes::insert(connection, &id, files).await?;
    // The change feed has no job that may never be accepted.
    if is_complete {
        record(connection, job.submitted, &id, None, Some(state)).await?;
    }
    Ok(Submitted::New)
}

/// Returns the job of an owner that has an idempotency key.
async fn job_of_key(
    connection: &mut SqliteConnection,
    credential: &str,
    key: &str,
) -> Result<Option<Uuid>, sqlx::Error> {
    let known = sqlx::query("SELECT id FROM jobs WHERE credential = ? AND idempotency_key = ?");
    let row = known.bind(credential).bind(key).fetch_optional(connection).await?;
    row.map(|row| id_of(&row, "id")).transpose()
}

/// Outcome of a change of an open job.
enum OfOpen<T> {
    Done(T),
    Complete,
    Missing,
}

impl<T> OfOpen<T> {
    /// Returns the result. Errors: the job is complete, or does not exist.
    fn result(self, job: Uuid) -> Result<T, Error> {
        let refused = |kind, text: &str| {
            Err(Error::new(kind, Scope::Client, Phase::Prepare, format!("add files to the job {job}: {text}")))
        };
        match self {
            Self::Done(result) => Ok(result),
            Self::Complete => refused(ErrorKind::Exists, "it is complete, or was cancelled"),
            Self::Missing => refused(ErrorKind::NotFound, "there is no such job"),
        }
    }
}

/// Returns the columns `vo`, `priority`, `submitted` and `credential` of an open job.
async fn open_job(connection: &mut SqliteConnection, id: &str) -> Result<OfOpen<SqliteRow>, sqlx::Error> {
    let found = sqlx::query("SELECT vo, priority, submitted, credential, is_open FROM jobs WHERE id = ?");
    let Some(row) = found.bind(id).fetch_optional(connection).await? else { return Ok(OfOpen::Missing) };
    Ok(if row.try_get::<bool, _>("is_open")? { OfOpen::Done(row) } else { OfOpen::Complete })
}

async fn append(connection: &mut SqliteConnection, job: Uuid, files: &[NewFile]) -> Result<OfOpen<()>, sqlx::Error> {
    let id = job.to_string();
    let row = match open_job(connection, &id).await? {
        OfOpen::Done(row) => row,
        OfOpen::Complete => return Ok(OfOpen::Complete),
        OfOpen::Missing => return Ok(OfOpen::Missing),
    };
    let submitted = UnixTime(row.try_get("submitted")?);
    let (vo, priority) = (row.try_get("vo")?, row.try_get("priority")?);
    insert_files(connection, &OfJob { job: &id, vo, priority, submitted, prefix: None }, files).await?;
    prefixes::insert(connection, &id, files).await?;
    sqlx::query(
        "UPDATE jobs SET entries = MAX(entries, ?), \
         source_endpoint = COALESCE(source_endpoint, ?), destination_endpoint = COALESCE(destination_endpoint, ?) \
         WHERE id = ?",
    )
    .bind(entries_after(files))
    .bind(files.first().map(|file| &file.source_endpoint))
    .bind(files.first().map(|file| &file.destination_endpoint))
    .bind(&id)
    .execute(&mut *connection)
    .await?;
    Ok(OfOpen::Done(()))
}

async fn complete(
    connection: &mut SqliteConnection,
    job: Uuid,
    key: Option<&str>,
) -> Result<OfOpen<Submitted>, sqlx::Error> {
    let id = job.to_string();
    let row = match open_job(connection, &id).await? {
        OfOpen::Done(row) => row,
        OfOpen::Complete => return Ok(OfOpen::Complete),
        OfOpen::Missing => return Ok(OfOpen::Missing),
    };
    if let Some(key) = key
        && let Some(first) = job_of_key(connection, row.try_get("credential")?, key).await?
    {
        return Ok(OfOpen::Done(Submitted::Repeated(first)));
    }
    let closed = sqlx::query("UPDATE jobs SET is_open = 0, idempotency_key = ? WHERE id = ?");
    closed.bind(key).bind(&id).execute(&mut *connection).await?;
    count(connection, &id, Counted::default(), UnixTime(row.try_get("submitted")?), None).await?;
    Ok(OfOpen::Done(Submitted::New))
}

async fn discard(connection: &mut SqliteConnection, job: Uuid, limit: u32) -> Result<bool, sqlx::Error> {
    let id = job.to_string();
    let OfOpen::Done(_) = open_job(connection, &id).await? else { return Ok(true) };
    decisions::discard(connection, &id, limit).await?;
    // The same files as there.
    let files = sqlx::query(
        "DELETE FROM files WHERE number IN (SELECT number FROM files WHERE job = ? ORDER BY entry, number LIMIT ?)",
    );
    let removed = files.bind(&id).bind(limit).execute(&mut *connection).await?.rows_affected();
    if removed == u64::from(limit) {
        return Ok(false);
    }
    credentials::delete(connection, &id).await?;
    prefixes::delete(connection, &id).await?;
    sqlx::query("DELETE FROM changes WHERE job = ?").bind(&id).execute(&mut *connection).await?;
    sqlx::query("DELETE FROM jobs WHERE id = ?").bind(&id).execute(&mut *connection).await?;
    Ok(true)
}

/// Makes files of a job wait that were in reserve. Returns them.
async fn unreserve(
    connection: &mut SqliteConnection,
    job: &str,
    at: UnixTime,
    which: &str,
    value: i64,
) -> Result<Vec<File>, sqlx::Error> {
    let statement = format!(
        "UPDATE files SET state = 'waiting' WHERE job = ? AND {which} = ? AND state = 'reserved' RETURNING {FILE_COLUMNS}"
    );
    let rows = sqlx::query(&statement).bind(job).bind(value).fetch_all(&mut *connection).await?;
    let files = rows.iter().map(file_of).collect::<Result<Vec<File>, _>>()?;
    for file in &files {
        record(connection, at, job, Some((file.number, file.state)), None).await?;
    }
    Ok(files)
}

/// Reason of a job with failed files. Source: the text of FTS3, which clients show.
const SOME_FAILED: &str = "One or more files failed. Please have a look at the details for more information";

/// New values of the columns of a file; `None`: a column keeps its value.
#[derive(Default)]
struct Update<'a> {
    started: Option<i64>,
    worker: Option<&'a str>,
    rationale: Option<&'a str>,
    not_before: Option<i64>,
    failure: Option<Failure>,
    moved: Option<&'a Moved>,
    /// Replica of the same entry that goes next.
    successor: Option<FileNumber>,
}

impl<'a> Update<'a> {
    fn of(change: &'a Change) -> Self {
        match &change.what {
            Event::Starts { worker, rationale } => {
                Self { started: Some(change.at.0), worker: Some(worker), rationale: Some(rationale), ..Self::default() }
            }
            Event::Retries { failure, moved, not_before } => {
                Self { failure: failure.clone(), moved: Some(moved), not_before: Some(not_before.0), ..Self::default() }
            }
            Event::Finishes { moved } => Self { moved: Some(moved), ..Self::default() },
            Event::Fails { failure, moved, successor } => {
                Self { failure: Some(failure.clone()), moved: Some(moved), successor: *successor, ..Self::default() }
            }
            Event::Cancels { reason, successor } => {
                let error = Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Transfer, reason.clone());
                Self { failure: Some(Failure::from(&error)), successor: *successor, ..Self::default() }
            }
            Event::Yields { successor } => Self { successor: Some(*successor), ..Self::default() },
            Event::Holds | Event::Releases => Self::default(),
        }
    }
}

async fn change(connection: &mut SqliteConnection, change: &Change) -> Result<Changed, sqlx::Error> {
    let to = change.what.state();
    if !change.from.next().contains(&to) {
        return Ok(Changed::Conflict);
    }
    let update = Update::of(change);
    if let Event::Yields { successor } = change.what
        && !is_reserved(connection, successor).await?
    {
        return Ok(Changed::Conflict);
    }
    let is_attempt = change.from == FileState::Active && update.failure.is_some() && to != FileState::Cancelled;
    let Some(file) = update_file(connection, change, &update, is_attempt).await? else { return Ok(Changed::Conflict) };
    let job = file.job.to_string();
    record(connection, change.at, &job, Some((file.number, to)), None).await?;
    if let Some(failure) = update.failure.as_ref().filter(|_| is_attempt) {
        let statement =
            "INSERT OR REPLACE INTO attempts (file, number, ended, worker, failure, moved) VALUES (?, ?, ?, ?, ?, ?)";
        sqlx::query(statement)
            .bind(signed(file.number.0))
            .bind(file.failures)
            .bind(change.at.0)
            .bind(&file.worker)
            .bind(json(failure))
            .bind(update.moved.map(json))
            .execute(&mut *connection)
            .await?;
    }
    let mut waiting = Vec::new();
    if let Some(successor) = update.successor {
        waiting = unreserve(connection, &job, change.at, "number", signed(successor.0)).await?;
    }
    if let Some(decision) = &change.decision {
        for file in waiting.iter().map(|file| file.number).chain([file.number]) {
            decisions::add(connection, file, change.at, decision).await?;
        }
    }
    let has_ended = to.is_final() && waiting.is_empty();
    let counted = Counted {
        active: i64::from(to == FileState::Active) - i64::from(change.from == FileState::Active),
        finished: i64::from(to == FileState::Finished),
        failed: i64::from(has_ended && to == FileState::Failed),
        cancelled: i64::from(has_ended && to == FileState::Cancelled),
    };
    let reason = (to == FileState::Failed).then_some(SOME_FAILED);
    let state = count(connection, &job, counted, change.at, reason).await?;
    if to == FileState::Finished && state.is_none_or(|state| !state.is_final()) {
        let hops = sqlx::query("SELECT 1 FROM jobs WHERE id = ? AND kind = 'hops'");
        if hops.bind(&job).fetch_optional(&mut *connection).await?.is_some() {
            waiting = unreserve(connection, &job, change.at, "entry", signed(file.new.entry + 1)).await?;
            deletions::plan(connection, &job, change.at).await?;
        }
    }
    Ok(Changed::Done { file: Box::new(file), waiting, job: state })
}

/// Returns true if a file is in reserve.
async fn is_reserved(connection: &mut SqliteConnection, file: FileNumber) -> Result<bool, sqlx::Error> {
    let found = sqlx::query("SELECT 1 FROM files WHERE number = ? AND state = 'reserved'");
    Ok(found.bind(signed(file.0)).fetch_optional(connection).await?.is_some())
}

/// Updates the row of a file if it has the expected state and worker. Returns the file after that.
async fn update_file(
    connection: &mut SqliteConnection,
    change: &Change,
    update: &Update<'_>,
    is_attempt: bool,
) -> Result<Option<File>, sqlx::Error> {
    let to = change.what.state();
    let statement = format!(
        "UPDATE files SET state = ?1, started = COALESCE(?2, started), finished = ?3, worker = COALESCE(?4, worker), \
         not_before = COALESCE(?5, not_before), failures = failures + ?6, starts = starts + ?12, \
         failure = CASE WHEN ?1 = 'finished' THEN NULL ELSE COALESCE(?7, failure) END, moved = COALESCE(?8, moved), \
         rationale = COALESCE(?13, rationale) \
         WHERE number = ?9 AND state = ?10 AND (?11 IS NULL OR worker = ?11) RETURNING {FILE_COLUMNS}"
    );
    let row = sqlx::query(&statement)
        .bind(to.name())
        .bind(update.started)
        .bind(to.is_final().then_some(change.at.0))
        .bind(update.worker)
        .bind(update.not_before)
        .bind(i64::from(is_attempt))
        .bind(update.failure.as_ref().map(json))
        .bind(update.moved.map(json))
        .bind(signed(change.file.0))
        .bind(change.from.name())
        .bind(&change.of_worker)
        .bind(i64::from(to == FileState::Active))
        .bind(update.rationale)
        .fetch_optional(&mut *connection)
        .await?;
    row.as_ref().map(file_of).transpose()
}

async fn cancel(
    connection: &mut SqliteConnection,
    job: Uuid,
    reason: &str,
    at: UnixTime,
) -> Result<Option<Vec<FileNumber>>, sqlx::Error> {
    let id = job.to_string();
    let changed = sqlx::query(
        "UPDATE jobs SET state = 'cancelled', finished = ?, reason = ?, is_open = 0, listing = 0, files_active = 0, \
         entries_cancelled = entries - entries_finished - entries_failed WHERE id = ? AND finished IS NULL",
    );
    if changed.bind(at.0).bind(reason).bind(&id).execute(&mut *connection).await?.rows_affected() == 0 {
        return Ok(None);
    }
    // Before the files lose their states, by which they are found. A follower sees them end before their job.
    let recorded = sqlx::query(
        "INSERT INTO changes (at, job, file, file_state) SELECT ?1, job, number, 'cancelled' FROM files \
         WHERE job = ?2 AND state IN ('waiting', 'reserved', 'held', 'active') ORDER BY number",
    );
    recorded.bind(at.0).bind(&id).execute(&mut *connection).await?;
    let failure = Failure::from(&Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Transfer, reason));
    let rows = sqlx::query(
        "UPDATE files SET state = 'cancelled', finished = ?, failure = ? \
         WHERE job = ? AND state IN ('waiting', 'reserved', 'held', 'active') RETURNING number",
    )
    .bind(at.0)
    .bind(json(&failure))
    .bind(&id)
    .fetch_all(&mut *connection)
    .await?;
    record(connection, at, &id, None, Some(JobState::Cancelled)).await?;
    deletions::plan(connection, &id, at).await?;
    credentials::delete_unneeded(connection, &id).await?;
    prefixes::delete(connection, &id).await?;
    let number = |row: &SqliteRow| Ok(FileNumber(count_of(row, "number")?));
    rows.iter().map(number).collect::<Result<Vec<FileNumber>, _>>().map(Some)
}

/// Adds ` AND column IN (...)` if there are values.
fn push_in<'a, T>(query: &mut QueryBuilder<'a, Sqlite>, column: &str, values: &'a [T], bind: impl Fn(&'a T) -> String) {
    if values.is_empty() {
        return;
    }
    query.push(format!(" AND {column} IN ("));
    let mut list = query.separated(", ");
    values.iter().for_each(|value| {
        list.push_bind(bind(value));
    });
    query.push(")");
}

/// Adds ` AND column = value` if there is a value.
fn push_is<'a>(query: &mut QueryBuilder<'a, Sqlite>, column: &str, value: &'a Option<String>) {
    if let Some(value) = value {
        query.push(format!(" AND {column} = ")).push_bind(value);
    }
}

impl Store for SqliteStore {
    fn submit(&self, job: NewJob, files: Vec<NewFile>, is_complete: bool) -> Stored<'_, Submitted> {
        Box::pin(
            self.write(move |connection| Box::pin(async move { submit(connection, &job, &files, is_complete).await })),
        )
    }

    fn append(&self, job: Uuid, files: Vec<NewFile>) -> Stored<'_, ()> {
        let appended = self.write(move |connection| Box::pin(async move { append(connection, job, &files).await }));
        Box::pin(async move { appended.await?.result(job) })
    }

    fn complete(&self, job: Uuid, idempotency_key: Option<String>) -> Stored<'_, Submitted> {
        let completed = self.write(move |connection| {
            Box::pin(async move { complete(connection, job, idempotency_key.as_deref()).await })
        });
        Box::pin(async move { completed.await?.result(job) })
    }

    fn discard(&self, job: Uuid, limit: u32) -> Stored<'_, bool> {
        Box::pin(self.write(move |connection| Box::pin(async move { discard(connection, job, limit).await })))
    }

    fn change(&self, changes: Vec<Change>) -> Stored<'_, Vec<Changed>> {
        Box::pin(self.write(move |connection| {
            Box::pin(async move {
                let mut results = Vec::with_capacity(changes.len());
                for one in &changes {
                    results.push(change(connection, one).await?);
                }
                Ok(results)
            })
        }))
    }

    fn cancel(&self, job: Uuid, reason: String, at: UnixTime) -> Stored<'_, Option<Vec<FileNumber>>> {
        Box::pin(self.write(move |connection| Box::pin(async move { cancel(connection, job, &reason, at).await })))
    }

    fn set_priority(&self, job: Uuid, priority: u8) -> Stored<'_, bool> {
        Box::pin(self.write(move |connection| {
            Box::pin(async move {
                let id = job.to_string();
                let jobs = sqlx::query("UPDATE jobs SET priority = ? WHERE id = ? AND finished IS NULL");
                if jobs.bind(priority).bind(&id).execute(&mut *connection).await?.rows_affected() == 0 {
                    return Ok(false);
                }
                let files = sqlx::query(
                    "UPDATE files SET priority = ? WHERE job = ? AND state IN ('waiting', 'reserved', 'held', 'active')",
                );
                files.bind(priority).bind(&id).execute(&mut *connection).await?;
                Ok(true)
            })
        }))
    }

    fn jobs(&self, filter: JobFilter) -> Stored<'_, Vec<Job>> {
        Box::pin(async move {
            let table = if filter.is_archived { "jobs_archive" } else { "jobs" };
            let mut query = QueryBuilder::new(format!("SELECT {JOB_COLUMNS} FROM {table} WHERE 1"));
            push_in(&mut query, "id", &filter.ids, Uuid::to_string);
            push_in(&mut query, "state", &filter.states, |state| state.name().to_owned());
            if filter.ids.is_empty() && filter.states.is_empty() && !filter.is_archived {
                query.push(" AND finished IS NULL");
            }
            if let Some(before) = filter.before {
                // It may have gone to the archive since the last page.
                query.push(" AND number < COALESCE((SELECT number FROM jobs WHERE id = ").push_bind(before.to_string());
                query.push("), (SELECT number FROM jobs_archive WHERE id = ").push_bind(before.to_string());
                query.push("), 0)");
            }
            push_is(&mut query, "vo", &filter.vo);
            push_is(&mut query, "credential", &filter.credential);
            push_is(&mut query, "owner", &filter.owner);
            push_is(&mut query, "source_endpoint", &filter.source_endpoint);
            push_is(&mut query, "destination_endpoint", &filter.destination_endpoint);
            if let Some(since) = filter.since {
                query.push(" AND submitted >= ").push_bind(since.0);
            }
            query.push(" ORDER BY number DESC");
            if let Some(limit) = filter.limit {
                query.push(" LIMIT ").push_bind(limit);
            }
            let rows = query.build().fetch_all(&self.readers).await.and_then(|rows| rows.iter().map(job_of).collect());
            rows.map_err(|e| failure("read jobs from the database", e))
        })
    }

    fn files(&self, filter: FileFilter) -> Stored<'_, Vec<File>> {
        Box::pin(async move {
            let table = if filter.is_archived { "files_archive" } else { "files" };
            let mut query = QueryBuilder::new(format!("SELECT {FILE_COLUMNS} FROM {table} WHERE 1"));
            if !filter.numbers.is_empty() {
                query.push(" AND number IN (");
                let mut list = query.separated(", ");
                filter.numbers.iter().for_each(|number| {
                    list.push_bind(signed(number.0));
                });
                query.push(")");
            }
            push_in(&mut query, "job", &filter.jobs, Uuid::to_string);
            push_in(&mut query, "state", &filter.states, |state| state.name().to_owned());
            if let Some(entry) = filter.entry {
                query.push(" AND entry = ").push_bind(signed(entry));
            }
            if !filter.entries.is_empty() {
                // With a row value, SQLite would read all files.
                query.push(" AND number IN (SELECT sibling.number FROM json_each(");
                query.push_bind(json(&filter.entries));
                query.push(format!(
                    ") AS wanted CROSS JOIN {table} AS sibling ON sibling.job = wanted.value ->> 0 \
                     AND sibling.entry = wanted.value ->> 1)"
                ));
            }
            push_is(&mut query, "vo", &filter.vo);
            push_is(&mut query, "source_endpoint", &filter.source_endpoint);
            push_is(&mut query, "destination_endpoint", &filter.destination_endpoint);
            push_is(&mut query, "destination", &filter.destination);
            push_is(&mut query, "worker", &filter.worker);
            if let Some(after) = filter.after {
                query.push(" AND number > ").push_bind(signed(after.0));
            }
            query.push(" ORDER BY number");
            if let Some(limit) = filter.limit {
                query.push(" LIMIT ").push_bind(limit);
            }
            let rows = query.build().fetch_all(&self.readers).await.and_then(|rows| rows.iter().map(file_of).collect());
            rows.map_err(|e| failure("read files from the database", e))
        })
    }

    fn credentials(&self, files: Vec<FileNumber>) -> Stored<'_, BTreeMap<FileNumber, Credentials>> {
        Box::pin(async move {
            let found = credentials::of_files(&self.readers, &files).await;
            found.map_err(|e| failure("read credentials from the database", e))
        })
    }

    fn prefixes(&self, filter: PrefixFilter) -> Stored<'_, Vec<Prefix>> {
        Box::pin(async move {
            let found = prefixes::of(&self.readers, &filter).await;
            found.map_err(|e| failure("read prefixes from the database", e))
        })
    }

    fn add_found(&self, prefix: u64, files: Vec<NewFile>, most: u64) -> Stored<'_, Added> {
        Box::pin(self.write(move |connection| {
            Box::pin(async move { prefixes::add_found(connection, prefix, files, most).await })
        }))
    }

    fn change_prefix(&self, prefix: u64, change: PrefixChange, at: UnixTime) -> Stored<'_, Option<JobState>> {
        Box::pin(
            self.write(move |connection| {
                Box::pin(async move { prefixes::change(connection, prefix, &change, at).await })
            }),
        )
    }

    fn set_proxy(&self, proxy: Proxy, now: UnixTime) -> Stored<'_, ()> {
        let now = now.0.div_euclid(1000);
        Box::pin(
            self.write(move |connection| {
                Box::pin(async move { credentials::set_proxy(connection, &proxy, now).await })
            }),
        )
    }

    fn delete_proxy(&self, credential: String) -> Stored<'_, ()> {
        Box::pin(
            self.write(move |connection| {
                Box::pin(async move { credentials::delete_proxy(connection, &credential).await })
            }),
        )
    }

    fn proxy(&self, credential: String) -> Stored<'_, Option<Proxy>> {
        Box::pin(async move {
            let found = credentials::proxy(&self.readers, &credential).await;
            found.map_err(|e| failure("read a proxy from the database", e))
        })
    }

    fn expired(&self, now: UnixTime) -> Stored<'_, Vec<File>> {
        Box::pin(async move {
            let statement = format!(
                "SELECT {FILE_COLUMNS} FROM files WHERE state IN ('waiting', 'held') \
                 AND job IN (SELECT id FROM jobs WHERE finished IS NULL AND expires < ?)"
            );
            let rows = sqlx::query(&statement).bind(now.0).fetch_all(&self.readers).await;
            let rows = rows.and_then(|rows| rows.iter().map(file_of).collect());
            rows.map_err(|e| failure("read files from the database", e))
        })
    }

    fn attempts(&self, file: FileNumber) -> Stored<'_, Vec<Attempt>> {
        Box::pin(async move {
            let query = sqlx::query(
                "SELECT number, ended, worker, failure, moved FROM attempts WHERE file = ?1 UNION ALL \
                 SELECT number, ended, worker, failure, moved FROM attempts_archive WHERE file = ?1 ORDER BY number",
            );
            let rows = query.bind(signed(file.0)).fetch_all(&self.readers).await;
            let attempt = |row: &SqliteRow| {
                Ok(Attempt {
                    file,
                    number: row.try_get("number")?,
                    ended: UnixTime(row.try_get("ended")?),
                    worker: row.try_get("worker")?,
                    failure: from_json("failure", row.try_get("failure")?)?,
                    moved: optional_json(row, "moved")?.unwrap_or_default(),
                })
            };
            let rows = rows.and_then(|rows| rows.iter().map(attempt).collect());
            rows.map_err(|e| failure("read attempts from the database", e))
        })
    }

    fn decisions(&self, file: FileNumber) -> Stored<'_, Vec<Decided>> {
        Box::pin(async move {
            let found = decisions::of_file(&self.readers, file).await;
            found.map_err(|e| failure("read decisions from the database", e))
        })
    }

    fn links_in_use(&self) -> Stored<'_, Vec<LinkState>> {
        Box::pin(
            async move { running::links(&self.readers).await.map_err(|e| failure("read links from the database", e)) },
        )
    }

    fn files_of_link(&self, link: &LinkState, after: FileNumber, limit: u32) -> Stored<'_, Vec<File>> {
        let link = link.clone();
        Box::pin(async move {
            let found = running::files_of_link(&self.readers, &link, after, limit).await;
            found.map_err(|e| failure("read files of a link from the database", e))
        })
    }

    fn jobs_at(&self, endpoint: &str) -> Stored<'_, Vec<Uuid>> {
        let endpoint = endpoint.to_owned();
        Box::pin(async move {
            let found = running::jobs_at(&self.readers, &endpoint).await;
            found.map_err(|e| failure("read jobs of an endpoint from the database", e))
        })
    }

    fn replaceable(&self, source_endpoint: &str, after: FileNumber, limit: u32) -> Stored<'_, Vec<File>> {
        let endpoint = source_endpoint.to_owned();
        Box::pin(async move {
            let found = decisions::replaceable(&self.readers, &endpoint, after, limit).await;
            found.map_err(|e| failure("read files from the database", e))
        })
    }

    fn end_late(&self, ends: Vec<LateEnd>) -> Stored<'_, ()> {
        Box::pin(self.write(move |connection| {
            Box::pin(async move {
                for end in &ends {
                    deletions::end_late(connection, end).await?;
                }
                Ok(())
            })
        }))
    }

    fn set_measured(
        &self,
        kind: &str,
        records: Vec<(String, serde_json::Value)>,
        observed: Vec<ObservedRound>,
    ) -> Stored<'_, ()> {
        let kind = kind.to_owned();
        Box::pin(self.write(move |connection| {
            Box::pin(async move {
                for (name, value) in &records {
                    set_setting(connection, &kind, name, value).await?;
                }
                rounds::add(connection, &observed).await
            })
        }))
    }

    fn rounds(&self, filter: RoundFilter) -> Stored<'_, Vec<Round>> {
        Box::pin(async move {
            let found = rounds::find(&self.readers, &filter).await;
            found.map_err(|e| failure("read rounds from the database", e))
        })
    }

    fn deletions(&self, now: UnixTime, limit: u32) -> Stored<'_, Vec<Deletion>> {
        Box::pin(async move {
            let due = deletions::due(&self.readers, now, limit).await;
            due.map_err(|e| failure("read deletions from the database", e))
        })
    }

    fn step_deletions(&self, steps: Vec<(FileNumber, DeletionStep)>) -> Stored<'_, ()> {
        Box::pin(self.write(move |connection| {
            Box::pin(async move {
                for (file, step) in &steps {
                    deletions::step(connection, *file, step).await?;
                }
                Ok(())
            })
        }))
    }

    fn outcomes(&self, after: UnixTime, limit: u32) -> Stored<'_, Vec<Outcome>> {
        Box::pin(async move {
            let query = sqlx::query(
                "SELECT source_endpoint, destination_endpoint, started, finished AS ended, moved, NULL AS failure \
                 FROM files WHERE state = 'finished' AND finished > ?1 \
                 UNION ALL \
                 SELECT source_endpoint, destination_endpoint, NULL, attempts.ended, NULL, attempts.failure \
                 FROM attempts JOIN files ON files.number = attempts.file WHERE attempts.ended > ?1 \
                 ORDER BY ended DESC LIMIT ?2",
            );
            let rows = query.bind(after.0).bind(limit).fetch_all(&self.readers).await;
            let outcome = |row: &SqliteRow| {
                Ok(Outcome {
                    source_endpoint: row.try_get("source_endpoint")?,
                    destination_endpoint: row.try_get("destination_endpoint")?,
                    started: time_of(row, "started")?,
                    ended: UnixTime(row.try_get("ended")?),
                    moved: optional_json(row, "moved")?.unwrap_or_default(),
                    failure: optional_json(row, "failure")?,
                })
            };
            let outcomes = rows.and_then(|rows| rows.iter().rev().map(outcome).collect());
            outcomes.map_err(|e| failure("read outcomes from the database", e))
        })
    }

    fn feed(&self, after: u64, limit: u32) -> Stored<'_, Vec<Feed>> {
        Box::pin(async move {
            let query = sqlx::query("SELECT * FROM changes WHERE sequence > ? ORDER BY sequence LIMIT ?");
            let rows = query.bind(signed(after)).bind(limit).fetch_all(&self.readers).await;
            let entry = |row: &SqliteRow| {
                let file: Option<i64> = row.try_get("file")?;
                let number = file.and_then(|number| u64::try_from(number).ok()).map(FileNumber);
                let has_state = row.try_get::<Option<&str>, _>("job_state")?.is_some();
                Ok(Feed {
                    sequence: count_of(row, "sequence")?,
                    at: UnixTime(row.try_get("at")?),
                    job: id_of(row, "job")?,
                    file: number
                        .map(|number| Ok::<_, sqlx::Error>((number, file_state_of(row, "file_state")?)))
                        .transpose()?,
                    state: has_state.then(|| job_state_of(row, "job_state")).transpose()?,
                })
            };
            let rows = rows.and_then(|rows| rows.iter().map(entry).collect());
            rows.map_err(|e| failure("read changes from the database", e))
        })
    }

    fn feed_end(&self) -> Stored<'_, u64> {
        Box::pin(async move {
            let query = sqlx::query("SELECT COALESCE(MAX(sequence), 0) AS sequence FROM changes");
            let row = query.fetch_one(&self.readers).await.and_then(|row| count_of(&row, "sequence"));
            row.map_err(|e| failure("read changes from the database", e))
        })
    }

    fn settings(&self, kind: &str) -> Stored<'_, Vec<Setting>> {
        let kind = kind.to_owned();
        Box::pin(async move {
            let query = sqlx::query("SELECT name, value FROM settings WHERE kind = ? ORDER BY name");
            let rows = query.bind(&kind).fetch_all(&self.readers).await;
            let setting = |row: &SqliteRow| {
                let value = from_json("value", row.try_get("value")?)?;
                Ok(Setting { kind: kind.clone(), name: row.try_get("name")?, value })
            };
            let rows = rows.and_then(|rows| rows.iter().map(setting).collect());
            rows.map_err(|e| failure("read settings from the database", e))
        })
    }

    fn set(&self, kind: &str, name: &str, value: Option<serde_json::Value>, audit: Option<Audit>) -> Stored<'_, ()> {
        let (kind, name) = (kind.to_owned(), name.to_owned());
        Box::pin(self.write(move |connection| {
            Box::pin(async move {
                match value {
                    Some(value) => set_setting(connection, &kind, &name, &value).await?,
                    None => {
                        let gone = sqlx::query("DELETE FROM settings WHERE kind = ? AND name = ?");
                        gone.bind(kind).bind(name).execute(&mut *connection).await?;
                    }
                }
                if let Some(audit) = audit {
                    sqlx::query("INSERT INTO audit (at, by, action, value) VALUES (?, ?, ?, ?)")
                        .bind(audit.at.0)
                        .bind(audit.by)
                        .bind(audit.action)
                        .bind(audit.value)
                        .execute(&mut *connection)
                        .await?;
                }
                Ok(())
            })
        }))
    }

    fn audit(&self, limit: u32) -> Stored<'_, Vec<Audit>> {
        Box::pin(async move {
            let query = sqlx::query("SELECT at, by, action, value FROM audit ORDER BY number DESC LIMIT ?");
            let rows = query.bind(limit).fetch_all(&self.readers).await;
            let entry = |row: &SqliteRow| {
                Ok(Audit {
                    at: UnixTime(row.try_get("at")?),
                    by: row.try_get("by")?,
                    action: row.try_get("action")?,
                    value: row.try_get("value")?,
                })
            };
            let rows = rows.and_then(|rows| rows.iter().map(entry).collect());
            rows.map_err(|e| failure("read the audit log from the database", e))
        })
    }

    fn archive(&self, before: UnixTime, limit: u32) -> Stored<'_, u64> {
        Box::pin(
            self.write(move |connection| Box::pin(async move { archive::archive(connection, before, limit).await })),
        )
    }

    fn archived(&self, job: Uuid) -> Stored<'_, Option<(Job, Vec<File>)>> {
        Box::pin(async move {
            let found = archive::job(&self.readers, job).await;
            found.map_err(|e| failure("read the archive of the database", e))
        })
    }
}
