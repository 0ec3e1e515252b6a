//! Tests that every store passes.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};
use sterna_sched::queue::FileNumber;
use sterna_sched::state::{FileState, JobKind, JobState};
use sterna_sched::time::UnixTime;
use sterna_seeded::{Seeded, for_seeds};
use uuid::Uuid;

use super::{
    Added, Audit, Change, Changed, Decision, DecisionKind, DeletionStep, Event, FileFilter, JobFilter, LateEnd,
    LinkState, Outcome, PrefixChange, PrefixFilter, SqliteStore, Store, Submitted,
};
use crate::credentials::{Credentials, Proxy, Secret};
use crate::job::{Cleanup, Extent, Failure, File, Job, JobOptions, Moved, NewFile, NewJob, Owner, Placed, Prefix};

mod rounds;

const NOW: UnixTime = UnixTime(1_800_000_000_000);

/// Store of a test, with the directory that it lives in.
struct Opened {
    store: Arc<dyn Store>,
    directory: tempfile::TempDir,
}

async fn open() -> Opened {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&directory.path().join("sterna.db")).await.unwrap();
    Opened { store, directory }
}

fn job(id: u128) -> NewJob {
    NewJob {
        id: Uuid::from_u128(id),
        kind: JobKind::Files,
        owner: Owner { credential: "c1".to_owned(), name: "/CN=one".to_owned(), vo: "vo".to_owned() },
        priority: 3,
        submitted: NOW,
        expires: None,
        options: JobOptions::default(),
        metadata: Some(json!({"k": [1, null, "ü"]})),
        idempotency_key: None,
    }
}

fn file(entry: u64, is_reserved: bool) -> NewFile {
    NewFile {
        entry,
        source: format!("mock://a/{entry}"),
        destination: format!("mock://b/{entry}"),
        source_endpoint: "mock://a".to_owned(),
        destination_endpoint: "mock://b".to_owned(),
        activity: "default".to_owned(),
        size: Some(7),
        checksum: Some("ADLER32".to_owned()),
        is_reserved,
        shares_session: entry % 2 == 1,
        metadata: Some(json!("text")),
        ..NewFile::default()
    }
}

fn failure() -> Failure {
    let error = Error::new(ErrorKind::NoSpace, Scope::Destination, Phase::Transfer, "full").retry(Retry::After);
    Failure::from(&error.caused_by(std::io::Error::from_raw_os_error(28)))
}

async fn one_job(store: &dyn Store, id: u128) -> Job {
    let filter = JobFilter { ids: vec![Uuid::from_u128(id)], ..JobFilter::default() };
    store.jobs(filter).await.unwrap().pop().unwrap()
}

async fn files_of(store: &dyn Store, id: u128) -> Vec<File> {
    store.files(FileFilter { jobs: vec![Uuid::from_u128(id)], ..FileFilter::default() }).await.unwrap()
}

async fn change(store: &dyn Store, file: &File, from: FileState, what: Event) -> Changed {
    decide(store, file, from, what, None).await
}

async fn decide(store: &dyn Store, file: &File, from: FileState, what: Event, decision: Option<Decision>) -> Changed {
    let change = Change { file: file.number, from, of_worker: None, what, decision, at: NOW };
    store.change(vec![change]).await.unwrap().pop().unwrap()
}

fn starts() -> Event {
    Event::Starts { worker: "w".to_owned(), rationale: "its turn".to_owned() }
}

fn finishes() -> Event {
    Event::Finishes { moved: Moved { bytes: 7, time_ms: 1000, ..Moved::default() } }
}

fn states(files: &[File]) -> Vec<FileState> {
    files.iter().map(|file| file.state).collect()
}

#[tokio::test]
async fn what_was_submitted_comes_back() {
    let opened = open().await;
    let store = &*opened.store;
    assert_eq!(store.submit(job(1), vec![file(0, false), file(1, false)], true).await.unwrap(), Submitted::New);
    let stored = one_job(store, 1).await;
    assert_eq!((stored.state, stored.entries.all, &stored.new.metadata), (JobState::Waiting, 2, &job(1).metadata));
    assert_eq!((stored.new.owner, stored.new.options), (job(1).owner, JobOptions::default()));
    let files = files_of(store, 1).await;
    assert_eq!(files.iter().map(|file| file.new.clone()).collect::<Vec<_>>(), [file(0, false), file(1, false)]);
    assert_eq!(states(&files), [FileState::Waiting; 2]);
    assert!(files[0].number < files[1].number);
}

/// Returns a prefix.
fn prefix() -> NewFile {
    let (source, destination) = ("sterna://a/d/".to_owned(), "mock://b/e/".to_owned());
    NewFile { extent: Extent::Prefix, source, destination, size: None, checksum: None, ..file(0, false) }
}

/// Returns a file beneath it. The store gives it its entry.
fn found(number: u64) -> NewFile {
    NewFile { source: format!("sterna://a/d/{number}"), destination: format!("mock://b/e/{number}"), ..file(99, false) }
}

/// Returns the prefixes of complete jobs.
async fn prefixes(store: &dyn Store) -> Vec<Prefix> {
    store.prefixes(PrefixFilter { limit: 10, ..PrefixFilter::default() }).await.unwrap()
}

fn nothing_found() -> PrefixChange {
    PrefixChange::Ends { nothing_found: failure() }
}

#[tokio::test]
async fn files_beneath_a_prefix_are_added_once_and_the_job_ends_after_its_listing() {
    let opened = open().await;
    let store = &*opened.store;
    store.submit(job(1), vec![file(0, false), prefix(), file(1, false)], true).await.unwrap();
    let stored = one_job(store, 1).await;
    assert_eq!((stored.entries.all, stored.entries.listing, stored.state), (2, 1, JobState::Waiting));
    let listed = prefixes(store).await.pop().unwrap();
    assert_eq!((listed.job, &listed.file, &listed.owner), (Uuid::from_u128(1), &prefix(), &job(1).owner));
    let number = listed.number;
    assert_eq!(store.add_found(number, vec![found(1), found(2)], 100).await.unwrap(), Added::All);
    // A listing that starts again finds them again, and others.
    assert_eq!(store.add_found(number, vec![found(2), found(3), found(1), found(3)], 100).await.unwrap(), Added::All);
    let files = files_of(store, 1).await;
    assert_eq!(files.iter().map(|file| file.new.entry).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert_eq!(files[4].new, NewFile { entry: 4, ..found(3) });
    for file in &files {
        change(store, file, FileState::Waiting, starts()).await;
        change(store, file, FileState::Active, finishes()).await;
    }
    assert_eq!(one_job(store, 1).await.state, JobState::Active, "it is still being listed");
    let retries = PrefixChange::Retries { failure: failure(), not_before: NOW };
    assert_eq!(store.change_prefix(number, retries, NOW).await.unwrap(), None);
    let again = prefixes(store).await.pop().unwrap();
    assert_eq!((again.failures, again.not_before, again.failure), (1, NOW, Some(failure())));
    assert_eq!(store.change_prefix(number, nothing_found(), NOW).await.unwrap(), Some(JobState::Finished));
    assert_eq!(store.change_prefix(number, nothing_found(), NOW).await.unwrap(), None, "it is gone");
    assert_eq!(store.add_found(number, vec![found(9)], 100).await.unwrap(), Added::Gone);
    let ended = one_job(store, 1).await;
    assert_eq!((ended.entries.listing, ended.entries.finished, ended.reason), (0, 5, None));
    assert_eq!(store.archive(NOW + std::time::Duration::from_secs(1), 10).await.unwrap(), 1);
    assert_eq!(store.archived(Uuid::from_u128(1)).await.unwrap().unwrap().1.len(), 5);
}

#[tokio::test]
async fn a_prefix_that_fails_or_is_empty_is_a_failed_file() {
    let opened = open().await;
    let store = &*opened.store;
    for (id, change) in [(1, nothing_found()), (2, PrefixChange::Fails { failure: failure() })] {
        store.submit(job(id), vec![prefix()], true).await.unwrap();
        assert_eq!(one_job(store, id).await.state, JobState::Waiting, "no success by accident");
        let number = prefixes(store).await.pop().unwrap().number;
        let before = store.feed_end().await.unwrap();
        assert_eq!(store.change_prefix(number, change, NOW).await.unwrap(), Some(JobState::Failed));
        let (files, ended) = (files_of(store, id).await, one_job(store, id).await);
        let failed = NewFile { extent: Extent::File, ..prefix() };
        assert_eq!((files.len(), &files[0].new, files[0].state), (1, &failed, FileState::Failed));
        assert_eq!((&files[0].failure, files[0].finished), (&Some(failure()), Some(NOW)));
        assert_eq!((ended.finished, ended.reason, ended.entries.failed), (Some(NOW), Some(failure().text), 1));
        let feed = store.feed(before, 10).await.unwrap();
        let seen: Vec<_> = feed.iter().map(|one| (one.file.map(|(_, state)| state), one.state)).collect();
        assert_eq!(seen, [(Some(FileState::Failed), None), (None, Some(JobState::Failed))]);
    }
}

#[tokio::test]
async fn a_job_takes_no_more_files_beneath_a_prefix_than_it_may_have() {
    let opened = open().await;
    let store = &*opened.store;
    store.submit(job(1), vec![file(0, false), prefix()], true).await.unwrap();
    let number = prefixes(store).await.pop().unwrap().number;
    assert_eq!(store.add_found(number, (0..3).map(found).collect(), 4).await.unwrap(), Added::All);
    assert_eq!(store.add_found(number, (0..3).map(found).collect(), 4).await.unwrap(), Added::All, "known files");
    assert_eq!(store.add_found(number, (2..9).map(found).collect(), 4).await.unwrap(), Added::Full);
    assert_eq!((one_job(store, 1).await.entries.all, files_of(store, 1).await.len()), (4, 4));
}

#[tokio::test]
async fn a_prefix_goes_with_its_job_and_waits_for_the_end_of_an_upload() {
    let opened = open().await;
    let store = &*opened.store;
    store.submit(job(1), vec![prefix()], false).await.unwrap();
    store.append(Uuid::from_u128(1), vec![prefix(), file(0, false)]).await.unwrap();
    assert!(prefixes(store).await.is_empty(), "the upload may end early");
    store.complete(Uuid::from_u128(1), None).await.unwrap();
    let filter = PrefixFilter { job: Some(Uuid::from_u128(1)), after: 0, limit: 10 };
    let both = store.prefixes(filter).await.unwrap();
    let other = PrefixFilter { job: Some(Uuid::from_u128(2)), ..filter };
    let last = PrefixFilter { after: both[0].number, ..filter };
    assert_eq!((both.len(), one_job(store, 1).await.entries.listing), (2, 2));
    assert_eq!(store.prefixes(other).await.unwrap().len(), 0);
    assert_eq!(store.prefixes(last).await.unwrap().len(), 1);
    assert_eq!(
        store.cancel(Uuid::from_u128(1), "why".to_owned(), NOW).await.unwrap().map(|files| files.len()),
        Some(1)
    );
    assert!(prefixes(store).await.is_empty());
    assert_eq!(store.add_found(both[0].number, vec![found(0)], 100).await.unwrap(), Added::Gone);
    assert_eq!((one_job(store, 1).await.state, one_job(store, 1).await.entries.listing), (JobState::Cancelled, 0));
    store.submit(job(2), vec![prefix()], false).await.unwrap();
    assert!(store.discard(Uuid::from_u128(2), 10).await.unwrap());
    assert!(prefixes(store).await.is_empty());
}

#[tokio::test]
async fn a_repeated_submission_finds_the_first_job() {
    let opened = open().await;
    let store = &*opened.store;
    let keyed = |id| NewJob { idempotency_key: Some("k".to_owned()), ..job(id) };
    assert_eq!(store.submit(keyed(1), vec![file(0, false)], true).await.unwrap(), Submitted::New);
    let again = store.submit(keyed(2), vec![file(0, false)], true).await.unwrap();
    assert_eq!(again, Submitted::Repeated(Uuid::from_u128(1)));
    assert_eq!(store.submit(job(1), vec![file(0, false)], true).await.unwrap(), Submitted::IdTaken);
    let mut other = keyed(3);
    other.owner.credential = "c2".to_owned();
    assert_eq!(
        store.submit(other, vec![file(0, false)], true).await.unwrap(),
        Submitted::New,
        "a key of another owner"
    );
    assert_eq!(store.files(FileFilter::default()).await.unwrap().len(), 2);
}

#[tokio::test]
async fn an_open_job_grows_until_it_is_complete() {
    let opened = open().await;
    let store = &*opened.store;
    store.submit(job(1), vec![file(0, false)], false).await.unwrap();
    assert_eq!(one_job(store, 1).await.state, JobState::Open);
    let many: Vec<NewFile> = (1..2500).map(|entry| file(entry, false)).collect();
    store.append(Uuid::from_u128(1), many).await.unwrap();
    assert_eq!(one_job(store, 1).await.state, JobState::Open);
    assert!(store.feed(0, 100).await.unwrap().is_empty(), "the feed has no job that is not accepted");
    assert_eq!(store.complete(Uuid::from_u128(1), None).await.unwrap(), Submitted::New);
    let stored = one_job(store, 1).await;
    assert_eq!((stored.state, stored.entries.all), (JobState::Waiting, 2500));
    assert_eq!(store.feed(0, 100).await.unwrap().len(), 1);
    let refused = store.append(Uuid::from_u128(1), vec![file(2500, false)]).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Exists);
    assert_eq!(store.complete(Uuid::from_u128(1), None).await.unwrap_err().kind, ErrorKind::Exists);
    let missing = store.append(Uuid::from_u128(9), vec![file(0, false)]).await.unwrap_err();
    assert_eq!(missing.kind, ErrorKind::NotFound);
    assert_eq!(files_of(store, 1).await.len(), 2500);
}

/// Tokens are given to the runner alone, survive a restart, and are gone when their job has ended.
#[tokio::test]
async fn credentials_are_kept_until_their_job_has_ended() {
    let opened = open().await;
    let store = &*opened.store;
    let credentials = |token: &str| Credentials { source: Secret::new(token), ..Credentials::default() };
    let with = |entry, token| NewFile { credentials: credentials(token), ..file(entry, false) };
    store.submit(job(1), vec![with(0, "t-1"), with(1, "t-2"), file(2, false)], false).await.unwrap();
    store.append(Uuid::from_u128(1), vec![with(3, "t-1"), with(4, "t-3")]).await.unwrap();
    store.complete(Uuid::from_u128(1), None).await.unwrap();
    store.submit(NewJob { idempotency_key: None, ..job(2) }, vec![with(0, "t-4")], true).await.unwrap();
    let (files, others) = (files_of(store, 1).await, files_of(store, 2).await);
    assert!(files.iter().all(|file| file.new.credentials.has_no_token()), "{files:?}");
    let numbers: Vec<_> = files.iter().chain(&others).map(|file| file.number).collect();
    let found = async |store: &dyn Store| {
        let found = store.credentials(numbers.clone()).await.unwrap();
        numbers.iter().map(|number| found.get(number).cloned()).collect::<Vec<_>>()
    };
    let expected = [Some("t-1"), Some("t-2"), None, Some("t-1"), Some("t-3"), Some("t-4")];
    assert_eq!(found(store).await, expected.map(|token| token.map(credentials)));
    let again = SqliteStore::open(&opened.directory.path().join("sterna.db")).await.unwrap();
    assert_eq!(found(&*again).await, expected.map(|token| token.map(credentials)));
    store.cancel(Uuid::from_u128(1), "no more".to_owned(), NOW).await.unwrap();
    change(store, &others[0], FileState::Waiting, starts()).await;
    change(store, &others[0], FileState::Active, finishes()).await;
    assert_eq!(found(store).await, [const { None }; 6]);
}

#[tokio::test]
async fn an_open_job_takes_its_key_when_it_is_complete_and_can_be_discarded_before() {
    let opened = open().await;
    let store = &*opened.store;
    let keyed = |id| NewJob { idempotency_key: Some("k".to_owned()), ..job(id) };
    for id in [1, 2, 3] {
        let many = (0..100).map(|entry| file(entry, false)).collect();
        assert_eq!(store.submit(keyed(id), many, false).await.unwrap(), Submitted::New);
    }
    // The first that is complete has the key; another upload of the same finds it.
    let key = || Some("k".to_owned());
    assert_eq!(store.complete(Uuid::from_u128(2), key()).await.unwrap(), Submitted::New);
    let first = Submitted::Repeated(Uuid::from_u128(2));
    assert_eq!(store.complete(Uuid::from_u128(1), key()).await.unwrap(), first);
    assert_eq!(one_job(store, 1).await.state, JobState::Open);
    assert_eq!(store.submit(keyed(4), vec![file(0, false)], false).await.unwrap(), first);
    // In batches, the job last.
    for (left, is_gone) in [(60, false), (20, false), (0, true)] {
        assert_eq!(store.discard(Uuid::from_u128(1), 40).await.unwrap(), is_gone);
        assert_eq!(files_of(store, 1).await.len(), left);
    }
    assert!(store.discard(Uuid::from_u128(1), 40).await.unwrap(), "again");
    let gone = JobFilter { ids: vec![Uuid::from_u128(1)], ..JobFilter::default() };
    assert!(store.jobs(gone).await.unwrap().is_empty());
    assert!(store.discard(Uuid::from_u128(2), 40).await.unwrap(), "a complete job stays");
    assert_eq!(files_of(store, 2).await.len(), 100);
    // One that is cancelled during its upload takes no more files.
    store.cancel(Uuid::from_u128(3), "x".to_owned(), NOW).await.unwrap();
    assert_eq!(store.append(Uuid::from_u128(3), Vec::new()).await.unwrap_err().kind, ErrorKind::Exists);
    assert!(store.discard(Uuid::from_u128(3), 40).await.unwrap(), "a cancelled job stays");
    assert_eq!(files_of(store, 3).await.len(), 100);
}

#[tokio::test]
async fn a_proxy_replaces_the_one_before_and_goes_after_its_end() {
    let opened = open().await;
    let store = &*opened.store;
    let at = |seconds: i64| UnixTime(seconds * 1000);
    let proxy = |credential: &str, expires: i64| Proxy {
        credential: credential.to_owned(),
        expires,
        certificates: "certificates".into(),
        key: "key".into(),
    };
    for (credential, expires) in [("c1", 100), ("c1", 200), ("c2", 150)] {
        store.set_proxy(proxy(credential, expires), at(50)).await.unwrap();
    }
    let found = async |credential: &str| store.proxy(credential.to_owned()).await.unwrap();
    assert_eq!((found("c1").await, found("c2").await), (Some(proxy("c1", 200)), Some(proxy("c2", 150))));
    store.set_proxy(proxy("c3", 300), at(160)).await.unwrap();
    assert_eq!((found("c2").await, found("c3").await), (None, Some(proxy("c3", 300))));
    store.delete_proxy("c1".to_owned()).await.unwrap();
    assert_eq!(found("c1").await, None);
}

#[tokio::test]
async fn a_change_needs_the_expected_state_and_worker() {
    let opened = open().await;
    let store = &*opened.store;
    store.submit(job(1), vec![file(0, false)], true).await.unwrap();
    let file = files_of(store, 1).await.remove(0);
    assert!(matches!(change(store, &file, FileState::Active, finishes()).await, Changed::Conflict), "it waits");
    assert!(matches!(change(store, &file, FileState::Waiting, finishes()).await, Changed::Conflict), "no such edge");
    let Changed::Done { job, .. } = change(store, &file, FileState::Waiting, starts()).await else { panic!() };
    assert_eq!(job, Some(JobState::Active));
    assert!(matches!(change(store, &file, FileState::Waiting, starts()).await, Changed::Conflict), "started twice");
    let of_other = Change {
        file: file.number,
        from: FileState::Active,
        of_worker: Some("x".to_owned()),
        what: finishes(),
        decision: None,
        at: NOW,
    };
    assert!(matches!(store.change(vec![of_other]).await.unwrap()[0], Changed::Conflict), "another worker");
    let Changed::Done { file, job, .. } = change(store, &file, FileState::Active, finishes()).await else { panic!() };
    assert_eq!((file.state, file.moved.bytes, job), (FileState::Finished, 7, Some(JobState::Finished)));
    assert_eq!((file.rationale.as_deref(), file.starts), (Some("its turn"), 1));
    for from in FileState::ALL {
        for what in [starts(), finishes(), Event::Holds, Event::Releases] {
            assert!(matches!(change(store, &file, from, what).await, Changed::Conflict), "nothing leaves an end");
        }
    }
    assert_eq!(one_job(store, 1).await.finished, Some(NOW));
}

#[tokio::test]
async fn a_retry_counts_its_attempt_and_a_lost_worker_does_not() {
    let opened = open().await;
    let store = &*opened.store;
    store.submit(job(1), vec![file(0, false)], true).await.unwrap();
    let file = files_of(store, 1).await.remove(0);
    let later = NOW + std::time::Duration::from_secs(60);
    for (of, failures) in [(Some(failure()), 1), (None, 1), (Some(failure()), 2)] {
        change(store, &file, FileState::Waiting, starts()).await;
        let what = Event::Retries { failure: of, moved: Moved::default(), not_before: later };
        let Changed::Done { file, job, .. } = change(store, &file, FileState::Active, what).await else { panic!() };
        assert_eq!((file.state, file.failures, file.not_before), (FileState::Waiting, failures, later));
        assert_eq!(job, Some(JobState::Waiting));
    }
    let attempts = store.attempts(file.number).await.unwrap();
    assert_eq!(attempts.iter().map(|attempt| attempt.number).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(attempts[0].failure.to_error().kind, ErrorKind::NoSpace);
    assert_eq!((attempts[0].failure.os_code, attempts[0].failure.to_error().retry), (Some(28), Retry::After));
}

#[tokio::test]
async fn outcomes_are_those_of_attempts_that_ended_lately() {
    let opened = open().await;
    let store = &*opened.store;
    store.submit(job(1), vec![file(0, false), file(1, false), file(2, false), file(3, false)], true).await.unwrap();
    let files = files_of(store, 1).await;
    let at = |seconds| NOW + std::time::Duration::from_secs(seconds);
    let step = async |number: usize, from, what, seconds| {
        let file = files[number].number;
        let change = Change { file, from, of_worker: None, what, decision: None, at: at(seconds) };
        assert!(matches!(store.change(vec![change]).await.unwrap().remove(0), Changed::Done { .. }));
    };
    let moved = Moved { bytes: 7, time_ms: 3000, ..Moved::default() };
    let arrives = Event::Finishes { moved: moved.clone() };
    // File 0 arrives at 10 s. File 1 fails at 20 s, and for the last time at 40 s. File 2 arrives at 30 s. File 3 is
    // cancelled while it is under way.
    for number in 0..4 {
        step(number, FileState::Waiting, starts(), 5).await;
    }
    step(0, FileState::Active, arrives.clone(), 10).await;
    let retries = Event::Retries { failure: Some(failure()), moved: Moved::default(), not_before: NOW };
    step(1, FileState::Active, retries, 20).await;
    step(2, FileState::Active, arrives, 30).await;
    step(1, FileState::Waiting, starts(), 35).await;
    let fails = Event::Fails { failure: failure(), moved: Moved::default(), successor: None };
    step(1, FileState::Active, fails, 40).await;
    step(3, FileState::Active, Event::Cancels { reason: "why".to_owned(), successor: None }, 50).await;
    let outcome = |seconds, is_arrived: bool| Outcome {
        source_endpoint: "mock://a".to_owned(),
        destination_endpoint: "mock://b".to_owned(),
        started: is_arrived.then(|| at(5)),
        ended: at(seconds),
        moved: if is_arrived { moved.clone() } else { Moved::default() },
        failure: (!is_arrived).then(failure),
    };
    let all = [outcome(10, true), outcome(20, false), outcome(30, true), outcome(40, false)];
    assert_eq!(store.outcomes(NOW, 10).await.unwrap(), all);
    assert_eq!(store.outcomes(at(20), 10).await.unwrap(), all[2..]);
    assert_eq!(store.outcomes(NOW, 3).await.unwrap(), all[1..], "the latest");
    assert_eq!(store.outcomes(at(50), 10).await.unwrap(), []);
}

#[tokio::test]
async fn a_failed_replica_makes_its_successor_wait() {
    let opened = open().await;
    let store = &*opened.store;
    store.submit(job(1), vec![file(0, false), file(0, true), file(1, false)], true).await.unwrap();
    let files = files_of(store, 1).await;
    assert_eq!(states(&files), [FileState::Waiting, FileState::Reserved, FileState::Waiting]);
    change(store, &files[0], FileState::Waiting, starts()).await;
    let fails = |successor| Event::Fails { failure: failure(), moved: Moved::default(), successor };
    let what = fails(Some(files[1].number));
    let Changed::Done { waiting, .. } = change(store, &files[0], FileState::Active, what).await else { panic!() };
    assert_eq!(waiting.iter().map(|file| file.number).collect::<Vec<_>>(), [files[1].number]);
    assert_eq!(one_job(store, 1).await.entries.failed, 0, "the entry goes on");
    for file in &files[1..] {
        change(store, file, FileState::Waiting, starts()).await;
    }
    change(store, &files[1], FileState::Active, finishes()).await;
    let Changed::Done { job, .. } = change(store, &files[2], FileState::Active, fails(None)).await else { panic!() };
    assert_eq!(job, Some(JobState::PartlyFinished));
}

/// Returns the kinds and texts of the decisions about a file.
async fn decisions_of(store: &dyn Store, file: &File) -> Vec<(DecisionKind, String)> {
    let found = store.decisions(file.number).await.unwrap();
    found.into_iter().map(|decided| (decided.decision.kind, decided.decision.text)).collect()
}

#[tokio::test]
async fn a_file_gives_its_place_to_a_replica_and_gets_it_back() {
    let opened = open().await;
    let store = &*opened.store;
    store.submit(job(1), vec![file(0, false), file(0, true), file(1, false)], true).await.unwrap();
    let files = files_of(store, 1).await;
    let before = store.feed_end().await.unwrap();
    let yields = |to: &File| Event::Yields { successor: to.number };
    let Changed::Done { file: first, waiting, job } =
        change(store, &files[0], FileState::Waiting, yields(&files[1])).await
    else {
        panic!()
    };
    assert_eq!((first.state, waiting.len(), waiting[0].number, job), (FileState::Reserved, 1, files[1].number, None));
    let of_feed = store.feed(before, 10).await.unwrap().into_iter().filter_map(|change| change.file);
    let expected = [(files[0].number, FileState::Reserved), (files[1].number, FileState::Waiting)];
    assert_eq!(of_feed.collect::<Vec<_>>(), expected);
    // An operator holds the other one, and the first comes back.
    change(store, &files[1], FileState::Waiting, Event::Holds).await;
    let Changed::Done { waiting, .. } = change(store, &files[1], FileState::Held, yields(&files[0])).await else {
        panic!()
    };
    assert_eq!(waiting[0].number, files[0].number);
    // Neither a file that has started, nor for one that is not in reserve: then nothing is changed.
    change(store, &files[0], FileState::Waiting, starts()).await;
    for (file, from, to) in [
        (&files[0], FileState::Active, &files[1]),
        (&files[0], FileState::Waiting, &files[1]),
        (&files[2], FileState::Waiting, &files[0]),
    ] {
        assert!(matches!(change(store, file, from, yields(to)).await, Changed::Conflict), "{from:?}");
    }
    assert_eq!(states(&files_of(store, 1).await), [FileState::Active, FileState::Reserved, FileState::Waiting]);
    // A cancelled job ends the replica in reserve, too.
    store.cancel(Uuid::from_u128(1), "why".to_owned(), NOW).await.unwrap();
    assert_eq!(states(&files_of(store, 1).await), [FileState::Cancelled; 3]);
}

#[tokio::test]
async fn files_that_can_give_their_place_are_those_of_a_source_with_replicas() {
    let opened = open().await;
    let store = &*opened.store;
    let of = |entry, is_reserved, source: &str| NewFile {
        source_endpoint: source.to_owned(),
        strategy: Some("queue".to_owned()),
        ..file(entry, is_reserved)
    };
    let mut files: Vec<NewFile> = Vec::new();
    for entry in 0..10 {
        let sources = if entry % 2 == 0 { ["mock://x", "mock://y"] } else { ["mock://y", "mock://x"] };
        files.extend([of(entry, false, sources[0]), of(entry, true, sources[1])]);
    }
    // Without replicas.
    files.push(NewFile { strategy: None, ..of(10, false, "mock://x") });
    store.submit(job(1), files, true).await.unwrap();
    let all = files_of(store, 1).await;
    change(store, &all[4], FileState::Waiting, Event::Holds).await;
    change(store, &all[8], FileState::Waiting, starts()).await;
    let found = async |after: FileNumber, limit| {
        let found = store.replaceable("mock://x", after, limit).await.unwrap();
        found.iter().map(|file| file.new.entry).collect::<Vec<_>>()
    };
    assert_eq!(found(FileNumber(0), 10).await, [0, 2, 6, 8]);
    assert_eq!(found(FileNumber(0), 2).await, [0, 2]);
    assert_eq!(found(all[4].number, 10).await, [6, 8]);
    assert_eq!(store.replaceable("mock://z", FileNumber(0), 10).await.unwrap().len(), 0);
}

#[tokio::test]
async fn decisions_stay_with_both_files_and_go_with_them() {
    let opened = open().await;
    let store = &*opened.store;
    let chosen = |file: NewFile, text: &str| NewFile { choice: Some(text.to_owned()), ..file };
    let files = vec![file(0, true), chosen(file(0, false), "best: x"), chosen(file(1, false), "best: y")];
    store.submit(job(1), files, true).await.unwrap();
    let files = files_of(store, 1).await;
    let choice = |text: &str| (DecisionKind::Choice, text.to_owned());
    assert_eq!(decisions_of(store, &files[1]).await, [choice("best: x")]);
    assert_eq!(decisions_of(store, &files[2]).await, [choice("best: y")]);
    let swap = Decision::new(DecisionKind::Swap, "ü".repeat(1000));
    let yields = Event::Yields { successor: files[0].number };
    // A change that is not made leaves no decision.
    decide(store, &files[1], FileState::Held, yields.clone(), Some(swap.clone())).await;
    assert_eq!(decisions_of(store, &files[1]).await.len(), 1);
    decide(store, &files[1], FileState::Waiting, yields, Some(swap.clone())).await;
    assert_eq!(decisions_of(store, &files[1]).await, [choice("best: x"), (DecisionKind::Swap, "ü".repeat(800))]);
    assert_eq!(decisions_of(store, &files[0]).await, [(DecisionKind::Swap, "ü".repeat(800))]);
    // The first and the latest of many stay.
    for number in 0..100 {
        change(store, &files[2], FileState::Waiting, starts()).await;
        let retries = Event::Retries { failure: Some(failure()), moved: Moved::default(), not_before: NOW };
        let decision = Decision::new(DecisionKind::Retry, number.to_string());
        decide(store, &files[2], FileState::Active, retries, Some(decision)).await;
    }
    let kept = decisions_of(store, &files[2]).await;
    let texts: Vec<&str> = kept.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!((texts.len(), texts[0], texts[1], texts[31]), (32, "best: y", "69", "99"));
    // They go to the archive with their job, and with a job that was never complete.
    store.cancel(Uuid::from_u128(1), "why".to_owned(), NOW).await.unwrap();
    store.archive(NOW + std::time::Duration::from_secs(1), 10).await.unwrap();
    assert_eq!(decisions_of(store, &files[2]).await, kept);
    store.submit(job(2), vec![chosen(file(0, false), "best: z")], false).await.unwrap();
    let open = files_of(store, 2).await.remove(0);
    assert_eq!(decisions_of(store, &open).await.len(), 1);
    assert!(store.discard(Uuid::from_u128(2), 10).await.unwrap());
    assert_eq!(decisions_of(store, &open).await.len(), 0);
}

#[tokio::test]
async fn hops_go_one_after_the_other_and_end_with_the_first_failure() {
    let opened = open().await;
    let store = &*opened.store;
    for (id, fails) in [(1, false), (2, true)] {
        let hops = NewJob { kind: JobKind::Hops, ..job(id) };
        store.submit(hops, vec![file(0, false), file(1, true), file(2, true)], true).await.unwrap();
        let files = files_of(store, id).await;
        change(store, &files[0], FileState::Waiting, starts()).await;
        let Changed::Done { waiting, job, .. } = change(store, &files[0], FileState::Active, finishes()).await else {
            panic!()
        };
        assert_eq!((waiting.len(), waiting[0].number, job), (1, files[1].number, None));
        change(store, &files[1], FileState::Waiting, starts()).await;
        if fails {
            let what = Event::Fails { failure: failure(), moved: Moved::default(), successor: None };
            let Changed::Done { job, .. } = change(store, &files[1], FileState::Active, what).await else { panic!() };
            assert_eq!(job, Some(JobState::Failed));
            assert_eq!(files_of(store, id).await[2].state, FileState::Reserved, "no hop follows");
        } else {
            change(store, &files[1], FileState::Active, finishes()).await;
            change(store, &files[2], FileState::Waiting, starts()).await;
            let Changed::Done { job, .. } = change(store, &files[2], FileState::Active, finishes()).await else {
                panic!()
            };
            assert_eq!(job, Some(JobState::Finished));
        }
    }
}

#[tokio::test]
async fn a_cancelled_job_ends_all_that_has_not_ended() {
    let opened = open().await;
    let store = &*opened.store;
    store.submit(job(1), (0..4).map(|entry| file(entry, entry == 3)).collect(), true).await.unwrap();
    let files = files_of(store, 1).await;
    change(store, &files[0], FileState::Waiting, starts()).await;
    change(store, &files[0], FileState::Active, finishes()).await;
    change(store, &files[1], FileState::Waiting, starts()).await;
    let cancelled = store.cancel(Uuid::from_u128(1), "why".to_owned(), NOW).await.unwrap().unwrap();
    assert_eq!(cancelled, [files[1].number, files[2].number, files[3].number]);
    use FileState::{Cancelled, Finished};
    assert_eq!(states(&files_of(store, 1).await), [Finished, Cancelled, Cancelled, Cancelled]);
    let stored = one_job(store, 1).await;
    assert_eq!((stored.state, stored.reason.as_deref()), (JobState::Cancelled, Some("why")));
    assert!(matches!(change(store, &files[1], FileState::Active, finishes()).await, Changed::Conflict), "too late");
    assert_eq!(store.cancel(Uuid::from_u128(1), String::new(), NOW).await.unwrap(), None);
    assert_eq!(store.cancel(Uuid::from_u128(9), String::new(), NOW).await.unwrap(), None);
}

/// Returns the files with a deletion that is due some time after now.
async fn due(store: &dyn Store, after: Duration) -> Vec<FileNumber> {
    store.deletions(NOW + after, 100).await.unwrap().into_iter().map(|deletion| deletion.file).collect()
}

async fn step(store: &dyn Store, file: FileNumber, step: DeletionStep) {
    store.step_deletions(vec![(file, step)]).await.unwrap();
}

/// Submits a job of three hops whose copies are to be deleted, each with a token for its destination.
async fn submit_hops(store: &dyn Store, id: u128) -> Vec<File> {
    let options = JobOptions { deletes_between: true, ..JobOptions::default() };
    let hops = NewJob { kind: JobKind::Hops, options, idempotency_key: None, ..job(id) };
    let token = |entry: u64| Credentials { destination: Secret::new(&format!("t-{entry}")), ..Credentials::default() };
    let hop = |entry| NewFile { credentials: token(entry), ..file(entry, entry > 0) };
    store.submit(hops, (0..3).map(hop).collect(), true).await.unwrap();
    files_of(store, id).await
}

async fn arrives(store: &dyn Store, file: &File) {
    change(store, file, FileState::Waiting, starts()).await;
    change(store, file, FileState::Active, finishes()).await;
}

#[tokio::test]
async fn copies_between_hops_are_deleted_when_nobody_reads_them() {
    let opened = open().await;
    let store = &*opened.store;
    let files = submit_hops(store, 1).await;
    let numbers: Vec<FileNumber> = files.iter().map(|file| file.number).collect();
    let with_token = async || {
        let found = store.credentials(numbers.clone()).await.unwrap();
        numbers.iter().map(|number| found.contains_key(number)).collect::<Vec<bool>>()
    };
    arrives(store, &files[0]).await;
    assert!(due(store, Duration::ZERO).await.is_empty(), "the next hop reads it");
    arrives(store, &files[1]).await;
    assert_eq!(due(store, Duration::ZERO).await, numbers[..1]);
    step(store, numbers[0], DeletionStep::Again { not_before: NOW + Duration::from_secs(30) }).await;
    assert!(due(store, Duration::from_secs(29)).await.is_empty());
    assert_eq!(with_token().await, [true; 3]);
    let failure_of_last = Event::Fails { failure: failure(), moved: Moved::default(), successor: None };
    change(store, &files[2], FileState::Waiting, starts()).await;
    change(store, &files[2], FileState::Active, failure_of_last).await;
    assert_eq!(with_token().await, [true, true, false], "those that the deletions need");
    // A restart forgets nothing, and the archive waits.
    let again = SqliteStore::open(&opened.directory.path().join("sterna.db")).await.unwrap();
    let later = again.deletions(NOW + Duration::from_secs(30), 100).await.unwrap();
    let attempts: Vec<_> = later.iter().map(|one| (one.file, one.attempts)).collect();
    assert_eq!(attempts, [(numbers[1], 0), (numbers[0], 1)]);
    assert_eq!(store.archive(NOW + Duration::from_secs(1), 10).await.unwrap(), 0);
    step(store, numbers[0], DeletionStep::Ends { cleanup: Some(Cleanup::Deleted) }).await;
    assert_eq!(with_token().await, [false, true, false]);
    let given_up = Cleanup::GivenUp { attempts: 3, failure: failure() };
    step(store, numbers[1], DeletionStep::Ends { cleanup: Some(given_up.clone()) }).await;
    assert_eq!(with_token().await, [false; 3]);
    assert_eq!(store.archive(NOW + Duration::from_secs(1), 10).await.unwrap(), 1);
    let (_, archived) = store.archived(Uuid::from_u128(1)).await.unwrap().unwrap();
    let ends: Vec<_> = archived.into_iter().map(|file| file.cleanup).collect();
    assert_eq!(ends, [Some(Cleanup::Deleted), Some(given_up), None]);
    // A job that keeps its copies.
    store.submit(NewJob { kind: JobKind::Hops, ..job(2) }, vec![file(0, false), file(1, true)], true).await.unwrap();
    arrives(store, &files_of(store, 2).await[0]).await;
    store.cancel(Uuid::from_u128(2), "why".to_owned(), NOW).await.unwrap();
    assert!(due(store, Duration::from_secs(3600)).await.is_empty());
}

#[tokio::test]
async fn a_storage_and_a_user_leave_deletions_of_others_room() {
    let opened = open().await;
    let store = &*opened.store;
    let mut id = 0;
    let mut submit = async |user: &str, endpoint: &str| {
        id += 1;
        let options = JobOptions { deletes_between: true, ..JobOptions::default() };
        let owner = Owner { credential: user.to_owned(), ..job(id).owner };
        let hops = NewJob { kind: JobKind::Hops, options, idempotency_key: None, owner, ..job(id) };
        let hop = |entry| NewFile { destination_endpoint: endpoint.to_owned(), ..file(entry, entry > 0) };
        store.submit(hops, (0..2).map(hop).collect(), true).await.unwrap();
        let files = files_of(store, id).await;
        arrives(store, &files[0]).await;
        arrives(store, &files[1]).await;
        files[0].number
    };
    let mut of_silent = Vec::new();
    for _ in 0..30 {
        of_silent.push(submit("c1", "https://silent.example").await);
    }
    let at_another = submit("c1", "https://b.example").await;
    assert_eq!(due(store, Duration::ZERO).await, [&of_silent[..20], &[at_another]].concat());
    for number in 0..60 {
        submit("c1", &format!("https://{number}.silent.example")).await;
    }
    let of_another = submit("c2", "https://b.example").await;
    let found = due(store, Duration::ZERO).await;
    assert_eq!((found.len(), found.last()), (51, Some(&of_another)));
    step(store, of_silent[0], DeletionStep::Ends { cleanup: None }).await;
    assert_eq!(due(store, Duration::ZERO).await[19], of_silent[20], "an end makes room");
}

/// The worker of a cancelled hop may have written the copy before it heard of the cancellation.
#[tokio::test]
async fn the_copy_of_a_cancelled_hop_is_deleted_when_its_end_is_known() {
    let opened = open().await;
    let store = &*opened.store;
    let files = submit_hops(store, 1).await;
    let first = files[0].number;
    change(store, &files[0], FileState::Waiting, starts()).await;
    store.cancel(Uuid::from_u128(1), "why".to_owned(), NOW).await.unwrap();
    assert!(due(store, Duration::from_secs(60)).await.is_empty());
    assert_eq!(due(store, Duration::from_secs(120)).await, [first], "nothing was reported");
    let moved = Moved { bytes: 7, placed: Some(Placed::New), ..Moved::default() };
    let late = |start, worker: &str| {
        vec![LateEnd { file: first, start, worker: worker.to_owned(), moved: moved.clone(), at: NOW }]
    };
    store.end_late([late(2, "w"), late(1, "another")].concat()).await.unwrap();
    assert!(due(store, Duration::ZERO).await.is_empty(), "another start, and another worker");
    store.end_late(late(1, "w")).await.unwrap();
    assert_eq!(due(store, Duration::ZERO).await, [first]);
    assert_eq!(files_of(store, 1).await[0].moved, moved);
    // It is reported again after the deletion.
    step(store, first, DeletionStep::Ends { cleanup: Some(Cleanup::Deleted) }).await;
    store.end_late(late(1, "w")).await.unwrap();
    assert!(due(store, Duration::from_secs(3600)).await.is_empty());
}

#[tokio::test]
async fn files_of_a_link_are_read_in_steps() {
    let opened = open().await;
    let store = &*opened.store;
    store.submit(job(1), (0..5).map(|entry| file(entry, entry == 4)).collect(), true).await.unwrap();
    let other = NewFile { destination_endpoint: "mock://c".to_owned(), ..file(0, false) };
    store.submit(job(2), vec![other], true).await.unwrap();
    let files = files_of(store, 1).await;
    change(store, &files[0], FileState::Waiting, Event::Holds).await;
    let link = |state, destination: &str| LinkState {
        state,
        source: "mock://a".to_owned(),
        destination: destination.to_owned(),
    };
    let mut links = store.links_in_use().await.unwrap();
    links.sort_by_key(|link| (link.state.name(), link.destination.clone()));
    use FileState::{Held, Waiting};
    assert_eq!(links, [link(Held, "mock://b"), link(Waiting, "mock://b"), link(Waiting, "mock://c")]);
    let read = async |after: usize| {
        let found = store.files_of_link(&link(Waiting, "mock://b"), files[after].number, 2).await.unwrap();
        found.into_iter().map(|file| file.new.entry).collect::<Vec<_>>()
    };
    assert_eq!((read(0).await, read(2).await, read(3).await), (vec![1, 2], vec![3], vec![]));
    let jobs = async |endpoint: &str| {
        let mut jobs = store.jobs_at(endpoint).await.unwrap();
        jobs.sort();
        jobs.iter().map(Uuid::as_u128).collect::<Vec<_>>()
    };
    assert_eq!((jobs("mock://a").await, jobs("mock://c").await, jobs("mock://d").await), (vec![1, 2], vec![2], vec![]));
}

#[tokio::test]
async fn a_failed_attempt_keeps_its_bytes_and_limits() {
    let opened = open().await;
    let store = &*opened.store;
    store.submit(job(1), vec![file(0, false)], true).await.unwrap();
    let file = files_of(store, 1).await.remove(0);
    let moved = Moved { bytes: 3, limits: vec![("silence".to_owned(), 1.0)], ..Moved::default() };
    change(store, &file, FileState::Waiting, starts()).await;
    let retries = Event::Retries { failure: Some(failure()), moved: moved.clone(), not_before: NOW };
    change(store, &file, FileState::Active, retries).await;
    assert_eq!(store.attempts(file.number).await.unwrap()[0].moved, moved);
}

#[tokio::test]
async fn lists_have_only_what_was_asked_for() {
    let opened = open().await;
    let store = &*opened.store;
    for id in 1..=4 {
        let mut new = job(id);
        new.owner.vo = if id == 1 { "other" } else { "vo" }.to_owned();
        new.expires = (id == 4).then_some(NOW);
        store.submit(new, vec![file(0, false)], true).await.unwrap();
    }
    store.cancel(Uuid::from_u128(2), String::new(), NOW).await.unwrap();
    let ids = |filter| async {
        let jobs = store.jobs(filter).await.unwrap();
        jobs.iter().map(|job| job.new.id.as_u128()).collect::<Vec<_>>()
    };
    assert_eq!(ids(JobFilter::default()).await, [4, 3, 1], "the latest first, without those that have ended");
    assert_eq!(ids(JobFilter { states: vec![JobState::Cancelled], ..JobFilter::default() }).await, [2]);
    assert_eq!(ids(JobFilter { vo: Some("other".to_owned()), ..JobFilter::default() }).await, [1]);
    assert_eq!(ids(JobFilter { limit: Some(1), ..JobFilter::default() }).await, [4]);
    assert_eq!(ids(JobFilter { source_endpoint: Some("mock://x".to_owned()), ..JobFilter::default() }).await, []);
    let after = FileFilter { after: Some(FileNumber(2)), states: vec![FileState::Waiting], ..FileFilter::default() };
    assert_eq!(store.files(after).await.unwrap().len(), 2);
    let expired = store.expired(NOW + std::time::Duration::from_millis(1)).await.unwrap();
    assert_eq!(expired.iter().map(|file| file.job.as_u128()).collect::<Vec<_>>(), [4]);
    assert!(store.expired(NOW).await.unwrap().is_empty());
}

#[tokio::test]
async fn the_feed_has_every_change_once_and_in_order() {
    let opened = open().await;
    let store = &*opened.store;
    store.submit(job(1), vec![file(0, false)], true).await.unwrap();
    let number = files_of(store, 1).await.remove(0);
    change(store, &number, FileState::Waiting, starts()).await;
    change(store, &number, FileState::Waiting, starts()).await;
    change(store, &number, FileState::Active, finishes()).await;
    let feed = store.feed(0, 100).await.unwrap();
    let seen: Vec<_> = feed.iter().map(|one| (one.file.map(|(_, state)| state), one.state)).collect();
    use FileState::{Active, Finished};
    let expected = [
        (None, Some(JobState::Waiting)),
        (Some(Active), None),
        (None, Some(JobState::Active)),
        (Some(Finished), None),
        (None, Some(JobState::Finished)),
    ];
    assert_eq!(seen, expected);
    assert_eq!(store.feed(feed[2].sequence, 1).await.unwrap(), feed[3..4]);
}

#[tokio::test]
async fn the_feed_has_the_end_of_every_file_of_a_cancelled_job() {
    let opened = open().await;
    let store = &*opened.store;
    assert_eq!(store.feed_end().await.unwrap(), 0);
    store.submit(job(1), (0..3).map(|entry| file(entry, entry == 2)).collect(), true).await.unwrap();
    let files = files_of(store, 1).await;
    change(store, &files[0], FileState::Waiting, starts()).await;
    change(store, &files[0], FileState::Active, finishes()).await;
    let before = store.feed_end().await.unwrap();
    assert_eq!(before, store.feed(0, 100).await.unwrap().last().unwrap().sequence);
    store.cancel(Uuid::from_u128(1), "why".to_owned(), NOW).await.unwrap();
    let feed = store.feed(before, 100).await.unwrap();
    let seen: Vec<_> = feed.iter().map(|one| (one.file, one.state)).collect();
    let ended = |file: &File| (Some((file.number, FileState::Cancelled)), None);
    assert_eq!(seen, [ended(&files[1]), ended(&files[2]), (None, Some(JobState::Cancelled))], "the job comes last");
    store.cancel(Uuid::from_u128(1), "again".to_owned(), NOW).await.unwrap();
    assert_eq!(store.feed_end().await.unwrap(), feed.last().unwrap().sequence, "nothing is recorded twice");
}

#[tokio::test]
async fn settings_are_replaced_and_audited() {
    let opened = open().await;
    let store = &*opened.store;
    let audit = |action: &str| {
        Some(Audit { at: NOW, by: "/CN=x".to_owned(), action: action.to_owned(), value: "v".to_owned() })
    };
    store.set("ban", "b", Some(json!({"n": 1})), audit("one")).await.unwrap();
    store.set("ban", "a", Some(json!(2)), None).await.unwrap();
    store.set("ban", "b", Some(json!({"n": 3})), audit("two")).await.unwrap();
    store.set("link", "a", Some(json!(4)), None).await.unwrap();
    let named =
        |settings: Vec<super::Setting>| settings.into_iter().map(|one| (one.name, one.value)).collect::<Vec<_>>();
    let expected = [("a".to_owned(), json!(2)), ("b".to_owned(), json!({"n": 3}))];
    assert_eq!(named(store.settings("ban").await.unwrap()), expected);
    store.set("ban", "a", None, None).await.unwrap();
    assert_eq!(named(store.settings("ban").await.unwrap()), expected[1..]);
    let actions: Vec<String> = store.audit(10).await.unwrap().into_iter().map(|audit| audit.action).collect();
    assert_eq!(actions, ["two", "one"]);
}

#[tokio::test]
async fn the_archive_takes_jobs_that_have_ended() {
    let opened = open().await;
    let store = &*opened.store;
    for id in [1, 2] {
        store.submit(job(id), vec![file(0, false)], true).await.unwrap();
    }
    store.cancel(Uuid::from_u128(1), "why".to_owned(), NOW).await.unwrap();
    assert_eq!(store.archive(NOW, 10).await.unwrap(), 0, "not old enough");
    let later = NOW + std::time::Duration::from_secs(1);
    assert_eq!(store.archive(later, 10).await.unwrap(), 1);
    assert_eq!(store.archive(later, 10).await.unwrap(), 0);
    let (archived, files) = store.archived(Uuid::from_u128(1)).await.unwrap().unwrap();
    assert_eq!((archived.state, states(&files)), (JobState::Cancelled, vec![FileState::Cancelled]));
    assert!(store.archived(Uuid::from_u128(2)).await.unwrap().is_none());
    assert!(files_of(store, 1).await.is_empty() && files_of(store, 2).await.len() == 1);
    assert_eq!(store.submit(job(1), vec![file(0, false)], true).await.unwrap(), Submitted::IdTaken);
}

#[tokio::test]
async fn all_of_it_is_there_after_the_store_is_opened_again() {
    let Opened { store, directory } = open().await;
    store.submit(job(1), vec![file(0, false)], true).await.unwrap();
    store.set("ban", "a", Some(json!(1)), None).await.unwrap();
    drop(store);
    let store = SqliteStore::open(&directory.path().join("sterna.db")).await.unwrap();
    assert_eq!(files_of(&*store, 1).await.len(), 1);
    assert_eq!(store.settings("ban").await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_write_that_fails_takes_back_nothing_of_the_others() {
    let opened = open().await;
    let store = Arc::clone(&opened.store);
    // An open job that does not exist fails within a transaction that it shares with good ones.
    let writes = (0..64u128).map(|id| {
        let store = Arc::clone(&store);
        async move {
            match id % 2 {
                0 => store.submit(job(id), vec![file(0, false)], true).await.is_ok(),
                _ => store.append(Uuid::from_u128(1000 + id), vec![file(0, false)]).await.is_ok(),
            }
        }
    });
    let tasks: Vec<_> = writes.map(tokio::spawn).collect();
    for (id, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.await.unwrap(), id % 2 == 0);
    }
    assert_eq!(store.files(FileFilter::default()).await.unwrap().len(), 32);
}

/// Draws events at random, and compares the counts of the job with those of its files after each.
#[test]
fn counts_of_a_job_are_those_of_its_files() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for_seeds("counts_of_a_job_are_those_of_its_files", 20, |seed| {
        let mut random = Seeded::new(seed);
        runtime.block_on(async {
            let opened = open().await;
            let store = &*opened.store;
            let entries = 1 + random.below(5);
            let mut new = Vec::new();
            for entry in 0..entries {
                (0..=random.below(3)).for_each(|replica| new.push(file(entry, replica > 0)));
            }
            store.submit(job(1), new, true).await.unwrap();
            for _ in 0..60 {
                let files = files_of(store, 1).await;
                let file = &files[random.below(files.len() as u64) as usize];
                let sibling = files.iter().find(|other| {
                    other.new.entry == file.new.entry
                        && other.state == FileState::Reserved
                        && other.number != file.number
                });
                let successor = sibling.map(|file| file.number);
                let what = match random.below(7) {
                    0 | 1 => starts(),
                    2 => finishes(),
                    3 => Event::Fails { failure: failure(), moved: Moved::default(), successor },
                    4 => Event::Retries { failure: Some(failure()), moved: Moved::default(), not_before: NOW },
                    5 => Event::Holds,
                    _ => Event::Releases,
                };
                // A file in reserve waits only as a successor.
                if file.state != FileState::Reserved {
                    change(store, file, file.state, what).await;
                }
                let (job, files) = (one_job(store, 1).await, files_of(store, 1).await);
                let of = |entry: u64, state| {
                    files.iter().filter(|file| file.new.entry == entry && file.state == state).count() as u64
                };
                let finished = (0..entries).filter(|entry| of(*entry, FileState::Finished) > 0).count() as u64;
                let running = [FileState::Waiting, FileState::Held, FileState::Active];
                let has_failed = |entry: &u64| {
                    of(*entry, FileState::Finished) == 0 && running.iter().all(|state| of(*entry, *state) == 0)
                };
                let failed = (0..entries).filter(has_failed).count() as u64;
                let active = files.iter().filter(|file| file.state == FileState::Active).count() as u64;
                let counts = (job.entries.finished, job.entries.failed, job.entries.active);
                assert_eq!(counts, (finished, failed, active), "{files:?}");
                assert_eq!(job.state, job.entries.state(job.new.kind));
            }
        });
    });
}
