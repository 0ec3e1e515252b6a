//! Storage that moves no bytes: `mock://host/path?key=value&…`, for test suites of clients.
//!
//! The keys are those of gfal2's mock plugin: `wait`, `errno`, `size` of a source; `size_pre`, `size_post`, `time`,
//! `transfer_errno`, `checksum` of a destination. Numbers that cannot be read are 0. Refuses `signal`: no transfer has
//! a process that could be ended.

use std::collections::HashMap;
use std::time::Duration;

use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};
use url::Url;

use crate::job::{ChecksumPolicy, Moved, OverwritePolicy, Task};

/// Scheme.
pub const SCHEME: &str = "mock";

/// Returns true for a location of this storage.
pub fn is_mock(location: &str) -> bool {
    location.split_once("://").is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case(SCHEME))
}

/// Values of a location.
struct Values(HashMap<String, String>);

impl Values {
    fn of(location: &str) -> Self {
        let url = Url::parse(location).ok();
        let pairs = url.iter().flat_map(|url| url.query_pairs().into_owned());
        // The first value of a key counts, as in gfal2.
        let mut values = HashMap::new();
        for (key, value) in pairs {
            values.entry(key).or_insert(value);
        }
        Self(values)
    }

    fn number(&self, key: &str) -> u64 {
        self.0.get(key).and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }
}

/// Returns the error of an error number, with the rules of a real file system for another attempt.
fn failed(number: u64, scope: Scope, phase: Phase, tried: &str) -> Error {
    let code = i32::try_from(number).unwrap_or(libc::EIO);
    let (kind, retry) = match code {
        libc::ENOENT => (ErrorKind::NotFound, Retry::OtherReplica),
        libc::EACCES | libc::EPERM => (ErrorKind::Denied, Retry::OtherReplica),
        libc::EEXIST => (ErrorKind::Exists, Retry::Never),
        libc::ENOSPC => (ErrorKind::NoSpace, Retry::After),
        libc::ECANCELED => (ErrorKind::Cancelled, Retry::Never),
        libc::ECONNREFUSED | libc::ETIMEDOUT => (ErrorKind::Unreachable, Retry::After),
        _ => (ErrorKind::Io, Retry::After),
    };
    Error::new(kind, scope, phase, tried).retry(retry).caused_by(std::io::Error::from_raw_os_error(code))
}

/// Runs a transfer.
///
/// Errors: those that the locations ask for; `Exists`, if the destination has a size before the transfer; `Corrupt`, if
/// sizes or checksums differ.
pub async fn transfer(task: &Task) -> Result<Moved, Error> {
    let (source, destination) = (Values::of(&task.source), Values::of(&task.destination));
    tokio::time::sleep(Duration::from_secs(source.number("wait"))).await;
    if let number @ 1.. = source.number("errno") {
        return Err(failed(number, Scope::Source, Phase::Prepare, &format!("stat {}", task.source)));
    }
    let size = source.number("size");
    if let Some(expected) = task.size.filter(|expected| *expected != size && *expected != 0) {
        let text = format!("Source and user provided file size mismatch: {size} and {expected}");
        let error = Error::new(ErrorKind::Corrupt, Scope::Source, Phase::Prepare, text);
        return Err(error.retry(Retry::OtherReplica));
    }
    if destination.number("size_pre") > 0 {
        let may_replace = match task.options.overwrite {
            OverwritePolicy::Never => false,
            OverwritePolicy::Always => true,
            OverwritePolicy::OnRetry => task.attempt > 1,
        };
        if !may_replace {
            // Clients look for these words. Source: FTS3.
            let text = "Destination file exists and overwrite is not enabled";
            return Err(Error::new(ErrorKind::Exists, Scope::Destination, Phase::Prepare, text));
        }
    }
    if let number @ 1.. = destination.number("errno") {
        return Err(failed(number, Scope::Destination, Phase::Prepare, &format!("create {}", task.destination)));
    }
    let time = Duration::from_secs(destination.number("time").max(source.number("time")));
    tokio::time::sleep(time).await;
    if let number @ 1.. = destination.number("transfer_errno") {
        return Err(failed(number, Scope::Destination, Phase::Transfer, &format!("write {}", task.destination)));
    }
    let arrived = destination.text("size_post").map(|_| destination.number("size_post"));
    if let Some(arrived) = arrived.filter(|arrived| *arrived != size) {
        let text = format!("Source and destination file size mismatch: {size} and {arrived}");
        return Err(Error::new(ErrorKind::Corrupt, Scope::Destination, Phase::Verify, text).retry(Retry::After));
    }
    let time_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let checksum = compare(task, &source, &destination)?;
    Ok(Moved { bytes: size, size: Some(size), time_ms, checksum, by: Some(SCHEME.to_owned()), ..Moved::default() })
}

/// Compares the checksums as the job asks. Returns the one that was compared.
fn compare(task: &Task, source: &Values, destination: &Values) -> Result<Option<String>, Error> {
    let given = task.checksum.as_deref().and_then(|checksum| checksum.split_once(':'));
    let algorithm = given.map_or_else(|| task.checksum.clone().unwrap_or_default(), |(name, _)| name.to_owned());
    let mut known = Vec::from_iter(given.map(|(_, value)| (value, "user", Scope::Client)));
    let policy = task.options.checksum;
    if matches!(policy, ChecksumPolicy::Source | ChecksumPolicy::Both) {
        known.extend(source.text("checksum").map(|value| (value, "source", Scope::Source)));
    }
    if matches!(policy, ChecksumPolicy::Target | ChecksumPolicy::Both) {
        known.extend(destination.text("checksum").map(|value| (value, "destination", Scope::Destination)));
    }
    if policy == ChecksumPolicy::None {
        return Ok(None);
    }
    let normal = |value: &str| value.trim_start_matches('0').to_ascii_lowercase();
    for pair in known.windows(2) {
        if let [(one, of_one, _), (other, of_other, scope)] = pair
            && normal(one) != normal(other)
        {
            let text = format!("{algorithm} checksums of {of_one} and {of_other} differ: {one} and {other}");
            return Err(Error::new(ErrorKind::Corrupt, *scope, Phase::Verify, text).retry(Retry::After));
        }
    }
    Ok(known.first().map(|(value, _, _)| format!("{algorithm}:{value}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn run(source: &str, destination: &str, change: impl FnOnce(&mut Task)) -> Result<Moved, Error> {
        let mut task = Task {
            file: 1,
            start: 1,
            attempt: 1,
            notes_replaced: false,
            source: format!("mock://a/f?{source}"),
            destination: format!("mock://b/f?{destination}"),
            size: None,
            checksum: None,
            ..Task::default()
        };
        change(&mut task);
        transfer(&task).await
    }

    #[tokio::test]
    async fn the_keys_decide_the_outcome() {
        let arrived = run("size=10", "time=0&size_post=10", |_| {}).await.unwrap();
        assert_eq!((arrived.bytes, arrived.size), (10, Some(10)));
        // Keys of source and destination; kind, scope, phase and retry of the failure.
        for (source, destination, expected) in [
            ("errno=2", "", (ErrorKind::NotFound, Scope::Source, Phase::Prepare, Retry::OtherReplica)),
            ("size=1", "errno=13", (ErrorKind::Denied, Scope::Destination, Phase::Prepare, Retry::OtherReplica)),
            ("size=1", "transfer_errno=28", (ErrorKind::NoSpace, Scope::Destination, Phase::Transfer, Retry::After)),
            ("size=1", "size_pre=1", (ErrorKind::Exists, Scope::Destination, Phase::Prepare, Retry::Never)),
            ("size=1", "size_post=2", (ErrorKind::Corrupt, Scope::Destination, Phase::Verify, Retry::After)),
        ] {
            let error = run(source, destination, |_| {}).await.unwrap_err();
            assert_eq!((error.kind, error.scope, error.phase, error.retry), expected, "{source} {destination}");
        }
        assert!(run("size=1", "size_pre=1", |task| task.options.overwrite = OverwritePolicy::Always).await.is_ok());
    }

    #[tokio::test]
    async fn checksums_are_compared_as_the_job_asks() {
        let with = |policy| {
            move |task: &mut Task| {
                task.options.checksum = policy;
                task.checksum = Some("ADLER32:00aB".to_owned());
            }
        };
        use ChecksumPolicy::{Both, None, Source, Target};
        // Checksums of source and destination; policies under which the transfer arrives.
        for (source, destination, good) in [
            ("ab", "ab", vec![None, Source, Target, Both]),
            ("ab", "cd", vec![None, Source]),
            ("cd", "ab", vec![None, Target]),
            ("cd", "cd", vec![None]),
        ] {
            for policy in [None, Source, Target, Both] {
                let (source, destination) = (format!("checksum={source}"), format!("checksum={destination}"));
                let outcome = run(&source, &destination, with(policy)).await;
                assert_eq!(outcome.is_ok(), good.contains(&policy), "{source} {destination} {policy:?}: {outcome:?}");
            }
        }
    }
}
