//! `sterna submit`: sends one file, or a manifest, to a service as a job.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value};
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use sterna_service::api::BODY_BYTES_MAX;
use sterna_service::api::native::MANIFEST_BYTES_MAX;
use time::OffsetDateTime;
use uuid::Uuid;

use super::client::{Client, Content};
use super::table::json_line;
use super::watch::to_end;
use crate::flags::service::{JobChecksum, SubmitFlags, name_of};
use crate::output::print_line;

/// Media type of one JSON object.
const JSON: &str = "application/json";

/// Media type of a manifest: JSON, one object per line.
const JSON_LINES: &str = "application/x-ndjson";

/// Maximum bytes of the first line of a manifest, with empty lines before it. Source: the maximum of the service.
const FIRST_LINE_BYTES_MAX: u64 = 1 << 20;

/// Manifest on stdin.
const STDIN: &str = "-";

/// Submits a job and prints its identifier. Returns the exit code.
pub fn run(flags: &SubmitFlags) -> Result<u8, Error> {
    let client = Client::new(&flags.service)?;
    let key = flags.idempotency_key.clone().unwrap_or_else(|| Uuid::new_v4().to_string());
    let accepted = match &flags.from {
        None => {
            let job = one_file(flags)?.to_string();
            client.submit(JSON, Content::Bytes(job.as_bytes()), &key)?
        }
        Some(path) if path == Path::new(STDIN) => {
            let manifest = read_stdin()?;
            let (head, rest) = with_options(&manifest, options(flags)).map_err(|e| e.at(path.display()))?;
            client.submit(JSON_LINES, Content::Bytes(&[&head, rest].concat()), &key)?
        }
        Some(path) => {
            let begin = read_begin(path)?;
            let (head, rest) = with_options(&begin, options(flags)).map_err(|e| e.at(path.display()))?;
            // The rest goes from the file to the service: a manifest can be larger than memory.
            let offset = (begin.len() - rest.len()) as u64;
            client.submit(JSON_LINES, Content::File { head: &head, path, offset }, &key)?
        }
    };
    let id = accepted.value.id.to_string();
    let line = if flags.service.json { json_line(&accepted.json) } else { id.clone() };
    print_line(line.as_bytes())?;
    match flags.wait {
        true => to_end(&client, &id, flags.service.json),
        false => Ok(0),
    }
}

fn usage(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text)
}

/// Returns the options of a job that the flags give.
fn options(flags: &SubmitFlags) -> Map<String, Value> {
    let mut options = Map::new();
    let mut add = |name: &str, value: Option<Value>| drop(value.map(|value| options.insert(name.to_owned(), value)));
    add("priority", flags.priority.map(Value::from));
    add("activity", flags.activity.clone().map(Value::from));
    add("retries", flags.retries.map(Value::from));
    add("overwrite", flags.overwrite.map(|when| name_of(when).into()));
    // Without a comparison, the service would not look at the expected checksum.
    let implied = flags.expect.as_ref().map(|_| JobChecksum::Both);
    add("checksum", flags.checksum.or(implied).map(|place| name_of(place).into()));
    // A part of a second counts as one: 0 would mean that no file may wait.
    let seconds = |time: std::time::Duration| time.as_millis().div_ceil(1000);
    let whole = |time| Value::from(u64::try_from(seconds(time)).unwrap_or(u64::MAX));
    add("queue_time_s", flags.queue_time.map(whole));
    add("deadline_ms", flags.deadline.map(|deadline| deadline.millis(OffsetDateTime::now_utc()).into()));
    add("timeout_s", flags.timeout.map(whole));
    add("metadata", flags.metadata.clone());
    options
}

/// Returns a job of one file. Errors: `Usage`, for a location that the service cannot reach.
fn one_file(flags: &SubmitFlags) -> Result<Value, Error> {
    let Some((destination, sources)) = flags.locations.split_last().filter(|(_, sources)| !sources.is_empty()) else {
        return Err(usage("a job needs a SOURCE and, last, a DESTINATION: sterna submit SOURCE DESTINATION"));
    };
    if let Some(local) = flags.locations.iter().find(|location| !location.contains("://")) {
        let text = format!(
            "{local} is no URL: a service copies between storages, such as sterna://HOST/PATH; sterna copy copies files \
             of this host"
        );
        return Err(usage(text));
    }
    let mut file = Map::new();
    file.insert("sources".to_owned(), sources.into());
    file.insert("destination".to_owned(), destination.clone().into());
    let mut add = |name: &str, value: Option<Value>| drop(value.map(|value| file.insert(name.to_owned(), value)));
    add("checksum", flags.expect.clone().map(Value::from));
    add("size", flags.size.map(|size| size.0.into()));
    add("strategy", flags.strategy.clone().map(Value::from));
    add("recursive", flags.recursive.then(|| true.into()));
    let mut job = options(flags);
    job.insert("files".to_owned(), Value::Array(vec![file.into()]));
    Ok(job.into())
}

/// Reads a manifest from stdin. It is kept in memory, because a request may be repeated. Errors: `Usage`, if it cannot
/// be read or is too large to be kept.
fn read_stdin() -> Result<Vec<u8>, Error> {
    let most = BODY_BYTES_MAX as u64;
    let mut manifest = Vec::new();
    let done = std::io::stdin().lock().take(most + 1).read_to_end(&mut manifest);
    done.map_err(|e| usage("read the manifest from stdin").caused_by(e))?;
    match manifest.len() as u64 <= most {
        true => Ok(manifest),
        false => Err(usage(format!("the manifest on stdin has more than {most} bytes: give it as a file"))),
    }
}

/// Reads the beginning of a manifest, with its first line. Errors: `Usage`, if it cannot be read, or is larger than a
/// service takes.
fn read_begin(path: &Path) -> Result<Vec<u8>, Error> {
    let failed = |e| usage(format!("read the manifest {}", path.display())).caused_by(e);
    let file = File::open(path).map_err(failed)?;
    let size = file.metadata().map_err(failed)?.len();
    if size > MANIFEST_BYTES_MAX {
        let text = format!("the manifest {} has more than {MANIFEST_BYTES_MAX} bytes: split it", path.display());
        return Err(usage(text));
    }
    let mut begin = Vec::new();
    file.take(FIRST_LINE_BYTES_MAX).read_to_end(&mut begin).map_err(failed)?;
    Ok(begin)
}

/// Puts options into the first line of a manifest, which is the job. Returns that line, and the rest that was given.
/// Errors: `Usage`, if the line is no JSON object.
fn with_options(manifest: &[u8], options: Map<String, Value>) -> Result<(Vec<u8>, &[u8]), Error> {
    let manifest = manifest.trim_ascii_start();
    let end = manifest.iter().position(|byte| *byte == b'\n').unwrap_or(manifest.len());
    let (first, rest) = manifest.split_at(end);
    if options.is_empty() {
        return Ok((first.to_owned(), rest));
    }
    let mut job: Map<String, Value> = serde_json::from_slice(first).map_err(|e| {
        usage("the first line of the manifest is the job: expected a JSON object, such as {}").caused_by(e)
    })?;
    job.extend(options);
    Ok((Value::Object(job).to_string().into_bytes(), rest))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::flags::{Command, Flags};

    fn flags(arguments: &[&str]) -> SubmitFlags {
        let words = ["sterna", "submit"].into_iter().chain(arguments.iter().copied());
        match Flags::try_parse_from(words).unwrap().command {
            Command::Submit(flags) => flags,
            _ => unreachable!("the command is submit"),
        }
    }

    #[test]
    fn a_job_of_one_file_has_what_the_flags_give_and_nothing_else() {
        let job = one_file(&flags(&["mock://a/f", "mock://b/f"])).unwrap();
        assert_eq!(job, serde_json::json!({"files": [{"sources": ["mock://a/f"], "destination": "mock://b/f"}]}));
        let all = [
            "--priority=5",
            "--activity=x",
            "--retries=7",
            "--overwrite=on_retry",
            "--expect=adler32:1",
            "--queue-time=1500ms",
            "--deadline=2027-01-15T08:00:00Z",
            "--timeout=2min",
            "--size=4KiB",
            "--strategy=orderly",
            "--metadata={\"run\": [7]}",
            "mock://a/f",
            "mock://b/f",
            "mock://c/f",
        ];
        let expected = serde_json::json!({
            "priority": 5, "activity": "x", "retries": 7, "overwrite": "on_retry", "checksum": "both",
            "queue_time_s": 2, "deadline_ms": 1_800_000_000_000_i64, "timeout_s": 120, "metadata": {"run": [7]},
            "files": [{
                "sources": ["mock://a/f", "mock://b/f"], "destination": "mock://c/f", "checksum": "adler32:1",
                "size": 4096, "strategy": "orderly",
            }],
        });
        assert_eq!(one_file(&flags(&all)).unwrap(), expected);
    }

    #[test]
    fn a_recursive_job_names_directories() {
        let job = one_file(&flags(&["--recursive", "sterna://a/d/", "davs://b/e/"])).unwrap();
        let files =
            serde_json::json!([{"sources": ["sterna://a/d/"], "destination": "davs://b/e/", "recursive": true}]);
        assert_eq!(job["files"], files);
        for flag in ["--from=-", "--expect=adler32:1", "--size=1", "--strategy=orderly"] {
            let words = ["sterna", "submit", "--recursive", flag, "sterna://a/d/", "sterna://b/e/"];
            assert!(Flags::try_parse_from(words).is_err(), "{flag}");
        }
    }

    #[test]
    fn values_that_the_service_would_refuse_are_refused_here() {
        for (flag, expected) in [
            ("--strategy=fastest", "expected one of orderly, queue, "),
            ("--metadata={run: 7}", "expected JSON"),
            ("--size=large", "a size such as"),
            ("--timeout=2", "whole number"),
        ] {
            let error = Flags::try_parse_from(["sterna", "submit", flag, "mock://a/f", "mock://b/f"]).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
        // They are of one file.
        for flag in ["--strategy=orderly", "--size=1"] {
            assert!(Flags::try_parse_from(["sterna", "submit", "--from=-", flag]).is_err());
        }
    }

    #[test]
    fn locations_that_a_service_cannot_reach_are_refused_here() {
        for (locations, expected) in [
            (vec!["mock://a/f"], "SOURCE and, last, a DESTINATION"),
            (vec!["/data/f", "mock://b/f"], "/data/f is no URL"),
        ] {
            let error = one_file(&flags(&locations)).unwrap_err();
            assert!(error.chain().contains(expected), "{}", error.chain());
            assert_eq!(error.exit_code(), 2);
        }
    }

    #[test]
    fn flags_change_the_first_line_of_a_manifest_only() {
        let manifest = b"\n{\"priority\": 2, \"metadata\": {\"a\": 1}}\n{\"sources\": [\"x://y\"]}\n";
        let whole = |options| with_options(manifest, options).map(|(first, rest)| [&first, rest].concat());
        assert_eq!(whole(Map::new()).unwrap(), manifest.trim_ascii_start());
        let options = options(&flags(&["--from=-", "--priority=4"]));
        let changed = whole(options.clone()).unwrap();
        let expected = b"{\"metadata\":{\"a\":1},\"priority\":4}\n{\"sources\": [\"x://y\"]}\n";
        assert_eq!(String::from_utf8_lossy(&changed), String::from_utf8_lossy(expected));
        assert_eq!(with_options(b"[]", options).unwrap_err().exit_code(), 2);
    }
}
