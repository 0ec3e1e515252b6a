//! FTS3's requests for jobs: reads parameters and files of every spelling that clients use.
//!
//! Unknown keys are ignored, as FTS3 does: clients send keys of older and newer releases. A null means the default.

use axum::http::StatusCode;
use serde_json::{Map, Value, json};
use std::time::Duration;
use sterna_sched::replica::Strategy;
use sterna_sched::state::JobKind;
use uuid::Uuid;

use super::answer::Failed;
use crate::auth::vo_id;
use crate::caller::{Caller, Method};
use crate::command::{Entry, FILES_MAX, Pair, Submission};
use crate::credentials::{Credentials, Secret};
use crate::endpoint::endpoint_of;
use crate::job::{ChecksumPolicy, Extent, JobOptions, OverwritePolicy};

/// Maximum bytes of the metadata of a job and of a file, as JSON. Source: FTS3.
const JOB_METADATA_BYTES_MAX: usize = 2048;
const FILE_METADATA_BYTES_MAX: usize = 4096;
const STAGING_METADATA_BYTES_MAX: usize = 1024;

/// Strategy of a file that names none. Source: FTS3.
const STRATEGY_DEFAULT: &str = "auto";

/// Further attempts of a file of a job that asks for none, in a virtual organisation without a default. Source: FTS3.
const RETRIES_DEFAULT: u32 = 0;

/// Beginnings of locations at storages that can report whether a file is on tape. Source: FTS3.
const TAPE_SCHEMES: [&str; 3] = ["https://", "davs://", "mock://"];

/// Range of a SciTag. Source: FTS3.
const SCITAGS: std::ops::RangeInclusive<i64> = 65..=65535;

/// Maximum time in the queue, in hours. Reason: a year; a longer one is a mistake.
const QUEUE_HOURS_MAX: u64 = 24 * 366;

fn bad(message: impl Into<String>) -> Failed {
    Failed::new(StatusCode::BAD_REQUEST, message)
}

fn invalid(message: impl AsRef<str>) -> Failed {
    bad(format!("Invalid value within the request: {}", message.as_ref()))
}

/// Object whose keys are read.
struct Object<'a>(&'a Map<String, Value>);

impl<'a> Object<'a> {
    fn get(&self, key: &str) -> Option<&'a Value> {
        #[cfg(test)]
        tests::note(key);
        self.0.get(key).filter(|value| !value.is_null())
    }

    /// Returns a flag: a boolean, a number, or a word such as `Y`.
    fn flag(&self, key: &str) -> Result<bool, Failed> {
        match self.get(key) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(Value::Number(number)) => Ok(number.as_f64() != Some(0.0)),
            Some(Value::String(word)) => match word.to_ascii_lowercase().as_str() {
                "" | "n" | "no" | "false" | "0" => Ok(false),
                "y" | "yes" | "true" | "1" => Ok(true),
                _ => Err(invalid(format!("{key}: {word} is neither true nor false"))),
            },
            Some(other) => Err(invalid(format!("{key}: {other} is neither true nor false"))),
        }
    }

    /// Returns an integer: a number, or a text that holds one.
    fn integer(&self, key: &str) -> Result<Option<i64>, Failed> {
        let wrong = |value: &Value| invalid(format!("{key}: {value} is not an integer"));
        match self.get(key) {
            None => Ok(None),
            Some(value @ Value::Number(number)) => {
                // A float that is a whole number is one: some clients send file sizes so.
                let whole = |float: f64| (float.fract() == 0.0 && float.abs() < 9e15).then_some(float as i64);
                let integer = number.as_i64().or_else(|| number.as_f64().and_then(whole));
                integer.map(Some).ok_or_else(|| wrong(value))
            }
            Some(value @ Value::String(text)) => match text.trim() {
                "" => Ok(None),
                text => text.parse().map(Some).map_err(|_| wrong(value)),
            },
            Some(value) => Err(wrong(value)),
        }
    }

    fn text(&self, key: &str) -> Result<Option<&'a str>, Failed> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(invalid(format!("{key}: {other} is not a text"))),
        }
    }

    /// Returns an integer for an option that has no negative values: these mean the default.
    fn count(&self, key: &str) -> Result<Option<u32>, Failed> {
        Ok(self.integer(key)?.and_then(|value| u32::try_from(value).ok()))
    }

    /// Returns metadata: an object, or a text that becomes `{"label": text}`.
    fn metadata(&self, key: &str, bytes_max: usize) -> Result<Option<Value>, Failed> {
        let value = match self.get(key) {
            None => return Ok(None),
            Some(Value::String(label)) => json!({"label": label}),
            Some(value) => value.clone(),
        };
        let bytes = value.to_string().len();
        match bytes <= bytes_max {
            true => Ok(Some(value)),
            false => Err(invalid(format!("{key}: {bytes} bytes, the maximum is {bytes_max}"))),
        }
    }
}

fn object_of(value: &Value) -> Result<Object<'_>, Failed> {
    value.as_object().map(Object).ok_or_else(|| bad("Malformed request: expected a JSON object"))
}

fn parse(body: &[u8]) -> Result<Value, Failed> {
    serde_json::from_slice(body).map_err(|_| bad("Badly formatted JSON request"))
}

/// Reads a request that changes the priority of jobs.
pub fn read_priority(body: &[u8]) -> Result<u8, Failed> {
    let request = parse(body)?;
    let empty = Map::new();
    let params = object_of(&request)?.get("params").map(object_of).transpose()?.unwrap_or(Object(&empty));
    let priority = params.integer("priority")?.ok_or_else(|| bad("Missing parameter: 'priority'"))?;
    Ok(priority.clamp(1, 5) as u8)
}

/// Reads a request for a job.
pub fn read(body: &[u8], caller: &Caller) -> Result<Submission, Failed> {
    let request = parse(body)?;
    let request = object_of(&request)?;
    if request.get("delete").is_some() {
        let text = "Deletion jobs are no longer supported by FTS";
        return Err(Failed::new(StatusCode::METHOD_NOT_ALLOWED, text));
    }
    let empty = Map::new();
    let params = request.get("params").map(object_of).transpose()?.unwrap_or(Object(&empty));
    let files = request.get("files").or_else(|| request.get("Files"));
    let files = files.and_then(Value::as_array).ok_or_else(|| bad("No transfer specified"))?;
    let is_multihop = params.flag("multihop")?;
    let is_reuse = params.flag("reuse")?;
    let mut entries = Vec::new();
    let mut has_replicas = false;
    for (index, file) in files.iter().enumerate() {
        let file = object_of(file)?;
        has_replicas |= add_file(&file, index, &mut entries)?;
    }
    if has_replicas && (files.len() > 1 || is_multihop || is_reuse) {
        return Err(bad("Can not specify reuse, multihop or several files with multiple replicas at the same time"));
    }
    if is_multihop && is_reuse {
        return Err(bad("Can not specify reuse and multihop at the same time"));
    }
    if is_reuse {
        check_one_link(&entries)?;
    }
    let job_type = match (is_multihop, has_replicas, is_reuse) {
        (true, _, _) => "H",
        (_, true, _) => "R",
        (_, _, true) => "Y",
        _ => "N",
    };
    let options = options(&params, job_type, &entries)?;
    let metadata = params.metadata("job_metadata", JOB_METADATA_BYTES_MAX)?;
    let metadata = Some(with_method(metadata, caller.method));
    let id = match params.text("id_generator")? {
        Some("deterministic") => {
            let sid = params.text("sid")?.ok_or_else(|| bad("Missing parameter: 'sid'"))?;
            Some(Uuid::new_v5(&vo_id(caller.vo()), sid.as_bytes()))
        }
        _ => None,
    };
    let priority = params.integer("priority")?.map(|priority| priority.clamp(1, 5) as u8);
    let queue_time = queue_time(&params)?;
    let kind = match (is_multihop, is_reuse) {
        (true, _) => JobKind::Hops,
        (false, true) => JobKind::Reuse,
        (false, false) => JobKind::Files,
    };
    Ok(Submission {
        id,
        kind,
        priority,
        queue_time,
        options,
        retries_else: Some(RETRIES_DEFAULT),
        metadata,
        idempotency_key: None,
        entries,
    })
}

/// Adds the entries of a file: one for each destination, with all sources. Returns true if there are several sources.
fn add_file(file: &Object<'_>, index: usize, entries: &mut Vec<Entry>) -> Result<bool, Failed> {
    let locations = |key: &str| {
        let list = file.get(key).ok_or_else(|| bad(format!("Missing parameter: '{key}'")))?;
        let list = list.as_array().ok_or_else(|| invalid(format!("{key}: expected a list")))?;
        let one = |value: &Value| {
            let text = value.as_str().ok_or_else(|| invalid(format!("{key}: {value} is not a text")))?.trim();
            endpoint_of(text).map_err(|e| invalid(e.text()))?;
            Ok(text.to_owned())
        };
        list.iter().map(one).collect::<Result<Vec<String>, Failed>>()
    };
    let (sources, destinations) = (locations("sources")?, locations("destinations")?);
    let source_tokens = tokens(file, "source_tokens", sources.len())?;
    let destination_tokens = tokens(file, "destination_tokens", destinations.len())?;
    let strategy_name = file.text("selection_strategy")?.unwrap_or(STRATEGY_DEFAULT);
    let strategy = Strategy::by_name(strategy_name)
        .ok_or_else(|| invalid(format!("'{strategy_name}' is not a valid selection strategy")))?;
    // A request of some kB must not become entries without end.
    let pairs = sources.len().saturating_mul(destinations.len()) as u64;
    if entries.len() as u64 + pairs > FILES_MAX {
        return Err(bad(format!("more than {FILES_MAX} pairs of source and destination, the maximum of a job")));
    }
    let scitag = file.integer("scitag")?;
    if let Some(scitag) = scitag.filter(|scitag| !SCITAGS.contains(scitag)) {
        let (least, most) = (SCITAGS.start(), SCITAGS.end());
        return Err(invalid(format!("scitag {scitag}: the range is {least} to {most}")));
    }
    let only_object = |key: &str| match file.metadata(key, STAGING_METADATA_BYTES_MAX)? {
        Some(value) if file.get(key).is_some_and(Value::is_string) => {
            Err(invalid(format!("{key}: {value} is not an object")))
        }
        value => Ok(value),
    };
    let fts = json!({
        "file_index": index,
        "scitag": scitag,
        "staging_metadata": only_object("staging_metadata")?,
        "archive_metadata": only_object("archive_metadata")?,
        "selection_strategy": strategy_name,
    });
    let entry = Entry {
        extent: Extent::File,
        pairs: Vec::new(),
        strategy,
        activity: file.text("activity")?.filter(|activity| !activity.is_empty()).map(str::to_owned),
        size: file.integer("filesize")?.and_then(|size| u64::try_from(size).ok()).filter(|size| *size > 0),
        checksum: Some(file.text("checksum")?.filter(|checksum| !checksum.is_empty()).unwrap_or("ADLER32").to_owned()),
        deadline: None,
        metadata: file.metadata("metadata", FILE_METADATA_BYTES_MAX)?,
        fts: Some(fts),
    };
    let has_replicas = sources.len() > 1;
    for (destination, destination_token) in destinations.iter().zip(destination_tokens) {
        let pair = |(source, source_token): (&String, &Option<Secret>)| Pair {
            source: source.clone(),
            destination: destination.clone(),
            credentials: Credentials {
                source: source_token.clone(),
                destination: destination_token.clone(),
                proxy: None,
            },
        };
        entries.push(Entry { pairs: sources.iter().zip(&source_tokens).map(pair).collect(), ..entry.clone() });
    }
    Ok(has_replicas)
}

/// Reads the tokens for a list of locations: none, or one for each. No message has a token in it.
fn tokens(file: &Object<'_>, key: &str, count: usize) -> Result<Vec<Option<Secret>>, Failed> {
    let Some(list) = file.get(key) else { return Ok(vec![None; count]) };
    let list = list.as_array().ok_or_else(|| invalid(format!("{key}: expected a list")))?;
    if list.is_empty() {
        return Ok(vec![None; count]);
    }
    if list.len() != count {
        return Err(invalid(format!("{key}: {} tokens for {count} locations", list.len())));
    }
    let one = |value: &Value| match value {
        Value::Null => Ok(None),
        Value::String(text) if text.is_empty() => Ok(None),
        Value::String(text) => {
            Secret::new(text).map(Some).ok_or_else(|| invalid(format!("{key}: a text that cannot be a token")))
        }
        _ => Err(invalid(format!("{key}: a value that is not a text"))),
    };
    list.iter().map(one).collect()
}

/// Checks that all files have the same endpoints.
fn check_one_link(entries: &[Entry]) -> Result<(), Failed> {
    let link = |entry: &Entry| {
        let pair = entry.pairs.first()?;
        Some((endpoint_of(&pair.source).ok()?, endpoint_of(&pair.destination).ok()?))
    };
    let mut links = entries.iter().filter_map(link);
    let first = links.next();
    match links.all(|link| Some(&link) == first.as_ref()) {
        true => Ok(()),
        false => Err(bad("Reuse jobs can only contain transfers for the same source and destination storage")),
    }
}

/// Returns the metadata of a job with the method by which its owner was authenticated. Rucio needs an object.
fn with_method(metadata: Option<Value>, method: Method) -> Value {
    let mut object = match metadata {
        Some(Value::Object(object)) => object,
        Some(other) => Map::from_iter([("label".to_owned(), other)]),
        None => Map::new(),
    };
    let method = if method == Method::Token { "oauth2" } else { "certificate" };
    object.insert("auth_method".to_owned(), method.into());
    Value::Object(object)
}

/// Reads the options of a job.
fn options(params: &Object<'_>, job_type: &str, entries: &[Entry]) -> Result<JobOptions, Failed> {
    let has_checksum = entries.iter().any(|entry| entry.checksum.as_ref().is_some_and(|value| value.contains(':')));
    let (checksum, letter) = checksum_policy(params, has_checksum)?;
    let overwriting = overwriting(params, job_type, entries)?;
    let retry = params.integer("retry")?.unwrap_or(0);
    let retry_delay = params.integer("retry_delay")?.unwrap_or(0);
    let mut internal = Vec::new();
    for (key, name) in [("nostreams", "nostreams"), ("timeout", "timeout"), ("buffer_size", "buffersize")] {
        internal.extend(params.integer(key)?.map(|value| format!("{name}:{value}")));
    }
    for (key, name) in [("strict_copy", "strict"), ("ipv4", "ipv4"), ("ipv6", "ipv6"), ("s3alternate", "s3alternate")] {
        let is_shadowed = key == "ipv6" && params.flag("ipv4")?;
        if params.flag(key)? && !is_shadowed {
            internal.push(name.to_owned());
        }
    }
    // A job with replicas has no single source.
    let pair = entries.iter().find_map(|entry| entry.pairs.first()).filter(|_| job_type != "R");
    let endpoint = |location: Option<&String>| location.and_then(|location| endpoint_of(location).ok());
    let fts = json!({
        "job_type": job_type,
        "source_se": endpoint(pair.map(|pair| &pair.source)),
        "dest_se": endpoint(entries.iter().rev().find_map(|entry| entry.pairs.last()).map(|pair| &pair.destination)),
        "source_spacetoken": params.text("source_spacetoken")?,
        "destination_spacetoken": params.text("destination_spacetoken")?,
        "internal_job_params": (!internal.is_empty()).then(|| internal.join(",")),
        "overwrite_flag": overwriting.letter,
        "dst_file_report": params.flag("dst_file_report")?,
        "copy_pin_lifetime": params.integer("copy_pin_lifetime")?.unwrap_or(-1),
        "bring_online": params.integer("bring_online")?.unwrap_or(-1),
        "archive_timeout": params.integer("archive_timeout")?.unwrap_or(-1),
        "target_qos": params.text("target_qos")?,
        "verify_checksum": letter,
        "retry": retry,
        "retry_delay": retry_delay,
    });
    Ok(JobOptions {
        checksum,
        overwrite: overwriting.policy,
        overwrites_before: overwriting.before,
        // 0: the default of the virtual organisation; below 0: none.
        retries: (retry != 0).then(|| u32::try_from(retry).unwrap_or(0)),
        retry_wait_s: u32::try_from(retry_delay).ok().filter(|delay| *delay > 0),
        timeout_s: params.count("timeout")?.filter(|timeout| *timeout > 0),
        // FTS3's Python bindings send 1 with every job: nobody has chosen it.
        lanes: params.count("nostreams")?.filter(|streams| *streams > 1),
        keeps_partial: params.flag("disable_cleanup")?,
        deletes_between: false,
        fts: match fts {
            Value::Object(fts) => fts,
            _ => Map::new(),
        },
    })
}

/// Reads `verify_checksum`: a boolean, a word, or its first letter. Returns the policy and the letter.
fn checksum_policy(params: &Object<'_>, has_checksum: bool) -> Result<(ChecksumPolicy, &'static str), Failed> {
    let word = match params.get("verify_checksum") {
        Some(Value::String(word)) => word.to_ascii_lowercase(),
        Some(Value::Bool(true)) => "both".to_owned(),
        Some(Value::Bool(false)) | None => {
            if has_checksum {
                "target".to_owned()
            } else {
                "none".to_owned()
            }
        }
        Some(other) => return Err(invalid(format!("verify_checksum: {other}"))),
    };
    Ok(match word.chars().next() {
        Some('b' | 'y') => (ChecksumPolicy::Both, "b"),
        Some('s') => (ChecksumPolicy::Source, "s"),
        Some('t') => (ChecksumPolicy::Target, "t"),
        Some('n') | None => (ChecksumPolicy::None, "n"),
        Some(_) => return Err(invalid(format!("verify_checksum: {word}; expected none, source, target or both"))),
    })
}

/// Treatment of a destination that exists, as the flags of a request ask for it.
struct Overwriting {
    policy: OverwritePolicy,
    /// Number of the last hop, if the hops before it replace what exists.
    before: Option<u64>,
    /// FTS3's letter.
    letter: Option<&'static str>,
}

/// Reads the flags of overwriting. Errors: flags that exclude each other, or lack what they need; their texts are those
/// of FTS3.
fn overwriting(params: &Object<'_>, job_type: &str, entries: &[Entry]) -> Result<Overwriting, Failed> {
    let flags = ["overwrite", "overwrite_on_retry", "overwrite_when_only_on_disk", "overwrite_hop"];
    let mut given = [false; 4];
    for (flag, key) in given.iter_mut().zip(flags) {
        *flag = params.flag(key)?;
    }
    let (policy, letter) = match given {
        [false, false, false, false] => (OverwritePolicy::Never, None),
        [true, false, false, false] => (OverwritePolicy::Always, Some("Y")),
        [false, true, false, false] => (OverwritePolicy::OnRetry, Some("R")),
        // Nobody can tell yet whether a file is on tape too, where it must not be lost.
        [false, false, true, false] => (OverwritePolicy::Never, Some("D")),
        // The last hop replaces nothing.
        [false, false, false, true] => (OverwritePolicy::Never, Some("M")),
        [false, false, true, true] => (OverwritePolicy::Never, Some("Q")),
        _ => return Err(bad("Multiple overwrite flags cannot be used at the same time")),
    };
    let [.., is_on_disk, is_hop] = given;
    let is_multihop = job_type == "H";
    if is_on_disk {
        check_disk(params, entries, is_multihop)?;
    }
    if is_hop && !is_multihop {
        return Err(bad("'overwrite-hop' requires multihop job submission"));
    }
    let before = is_hop.then(|| (entries.len() as u64).saturating_sub(1));
    Ok(Overwriting { policy, before, letter })
}

/// Checks what `overwrite_when_only_on_disk` needs: a wait for the tape, and destinations that report where a file is.
/// Only the last hop counts.
fn check_disk(params: &Object<'_>, entries: &[Entry], is_multihop: bool) -> Result<(), Failed> {
    if params.integer("archive_timeout")?.unwrap_or(-1) <= 0 {
        return Err(bad("'overwrite-when-only-on-disk' requires 'archive-timeout' to be set"));
    }
    let first = if is_multihop { entries.len().saturating_sub(1) } else { 0 };
    let mut pairs = entries.iter().skip(first).flat_map(|entry| &entry.pairs);
    let reports = |location: &str| TAPE_SCHEMES.iter().any(|scheme| location.starts_with(scheme));
    match pairs.all(|pair| reports(&pair.destination)) {
        true => Ok(()),
        false => {
            Err(bad("'overwrite-when-only-on-disk' requires destination to be HTTPs endpoint (Tape REST API required)"))
        }
    }
}

/// Reads `max_time_in_queue`: hours, or a text with the unit s, m, h or d. 0 is no maximum.
fn queue_time(params: &Object<'_>) -> Result<Option<Duration>, Failed> {
    let wrong =
        |value: &Value| invalid(format!("max_time_in_queue: {value}; expected hours, or a number with s, m, h or d"));
    let Some(value) = params.get("max_time_in_queue") else { return Ok(None) };
    let (number, unit_s) = match value {
        Value::Number(number) => (number.as_u64().ok_or_else(|| wrong(value))?, 3600),
        Value::String(text) => {
            let unit = text.chars().next_back().filter(char::is_ascii_alphabetic);
            let digits = unit.map_or(text.as_str(), |_| &text[..text.len() - 1]);
            let unit_s = match unit.map(|unit| unit.to_ascii_lowercase()) {
                Some('s') => 1,
                Some('m') => 60,
                Some('h') | None => 3600,
                Some('d') => 86_400,
                Some(_) => return Err(wrong(value)),
            };
            (digits.trim().parse::<u64>().map_err(|_| wrong(value))?, unit_s)
        }
        _ => return Err(wrong(value)),
    };
    let seconds = number.saturating_mul(unit_s);
    match seconds {
        0 => Ok(None),
        _ if seconds > QUEUE_HOURS_MAX * 3600 => Err(wrong(value)),
        _ => Ok(Some(Duration::from_secs(seconds))),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    use super::*;

    thread_local! {
        static READ: RefCell<BTreeSet<String>> = RefCell::default();
    }

    /// Notes that a key was read.
    pub(super) fn note(key: &str) {
        READ.with_borrow_mut(|read| read.insert(key.to_owned()));
    }

    /// Returns the keys that are read while a function runs.
    pub(in super::super) fn keys_read(run: impl FnOnce()) -> BTreeSet<String> {
        READ.take();
        run();
        READ.take()
    }

    fn caller() -> Caller {
        Caller { vos: vec!["testvo".to_owned()], method: Method::Certificate, ..Caller::default() }
    }

    fn submission(request: &Value) -> Result<Submission, String> {
        read(request.to_string().as_bytes(), &caller()).map_err(|failed| failed.message)
    }

    /// One file, and parameters.
    fn with(params: &Value) -> Result<Submission, String> {
        let files = json!([{"sources": ["https://a.example/f"], "destinations": ["https://b.example/f"]}]);
        submission(&json!({"files": files, "params": params}))
    }

    #[test]
    fn identifiers_are_those_of_fts3() {
        // Computed by the FTS3 server.
        assert_eq!(vo_id("testvo").to_string(), "477b9065-8416-5b27-be32-ff1573788e71");
        let job = with(&json!({"id_generator": "deterministic", "sid": "rid-1"})).unwrap();
        assert_eq!(job.id.unwrap().to_string(), "d92558a7-eed7-59f4-94f0-d2c28b932666");
    }

    #[test]
    fn requests_that_no_server_takes_have_the_texts_of_fts3() {
        for (request, expected) in [
            (json!({"files": [{"destinations": ["https://a/b"]}]}), "Missing parameter: 'sources'"),
            (
                json!({"files": [{"sources": ["file:///x"], "destinations": ["https://a/b"]}]}),
                "Invalid value within the request: Can not transfer local files (file:///x)",
            ),
            (json!({"delete": ["https://a/b"]}), "Deletion jobs are no longer supported by FTS"),
            (json!([]), "Malformed request: expected a JSON object"),
        ] {
            assert_eq!(submission(&request).unwrap_err(), expected, "{request}");
        }
        assert_eq!(
            read(b"{bad", &caller()).map_err(|failed| failed.message).unwrap_err(),
            "Badly formatted JSON request"
        );
    }

    #[test]
    fn every_spelling_of_a_parameter_is_read() {
        for (value, policy) in [
            (json!(true), ChecksumPolicy::Both),
            (json!("both"), ChecksumPolicy::Both),
            (json!("n"), ChecksumPolicy::None),
            (json!("source"), ChecksumPolicy::Source),
            (json!("t"), ChecksumPolicy::Target),
            (Value::Null, ChecksumPolicy::None),
        ] {
            assert_eq!(with(&json!({"verify_checksum": value})).unwrap().options.checksum, policy, "{value}");
        }
        for (value, seconds) in [
            (json!(6), Some(6 * 3600)),
            (json!("90m"), Some(5400)),
            (json!("30s"), Some(30)),
            (json!("2d"), Some(172_800)),
            (json!(0), None),
            (Value::Null, None),
        ] {
            let time = with(&json!({"max_time_in_queue": value})).unwrap().queue_time;
            assert_eq!(time.map(|time| time.as_secs()), seconds, "{value}");
        }
        for (retry, retries) in [(0, None), (-1, Some(0)), (3, Some(3))] {
            assert_eq!(with(&json!({"retry": retry})).unwrap().options.retries, retries, "{retry}");
        }
        assert_eq!(with(&json!({"priority": 99})).unwrap().priority, Some(5));
        let job = with(&json!({"account": "root", "timeout": "30", "reuse": "N", "job_metadata": "x"})).unwrap();
        assert_eq!(
            (job.options.timeout_s, job.metadata),
            (Some(30), Some(json!({"label": "x", "auth_method": "certificate"})))
        );
    }

    /// Policies of the hops or files, and the letter.
    fn overwriting_of(files: &Value, params: &Value) -> Result<(Vec<OverwritePolicy>, String), String> {
        let job = submission(&json!({"files": files, "params": params}))?;
        let policies = (0..job.entries.len() as u64).map(|entry| job.options.of_entry(entry).overwrite).collect();
        Ok((policies, job.options.fts["overwrite_flag"].as_str().unwrap_or_default().to_owned()))
    }

    #[test]
    fn only_flags_that_allow_it_replace_a_file() {
        let file = |source: &str, destination: &str| json!({"sources": [source], "destinations": [destination]});
        let (a, b, c) = ("https://a.example/f", "https://b.example/f", "https://c.example/f");
        let (one, hops) = (json!([file(a, b)]), json!([file(a, b), file(b, c)]));
        let to_http = json!([file(a, b), file(b, "http://c.example/f")]);
        let (archive, zero) = (json!({"archive_timeout": 60}), json!({"archive_timeout": 0}));
        let with = |flags: &[&str], more: &Value, is_multihop: bool| {
            let mut params = more.clone();
            flags.iter().for_each(|flag| params[*flag] = json!(true));
            params["multihop"] = json!(is_multihop);
            params
        };
        let (disk, hop) = ("overwrite_when_only_on_disk", "overwrite_hop");
        use OverwritePolicy::{Always, Never, OnRetry};
        for (files, params, expected) in [
            (&one, with(&[], &json!({}), false), (vec![Never], "")),
            (&one, with(&["overwrite"], &json!({}), false), (vec![Always], "Y")),
            (&hops, with(&["overwrite"], &json!({}), true), (vec![Always, Always], "Y")),
            (&one, with(&["overwrite_on_retry"], &json!({}), false), (vec![OnRetry], "R")),
            // Nobody knows whether the file is on tape.
            (&one, with(&[disk], &archive, false), (vec![Never], "D")),
            (&hops, with(&[disk], &archive, true), (vec![Never, Never], "D")),
            (&hops, with(&[hop], &json!({}), true), (vec![Always, Never], "M")),
            (&hops, with(&[hop, disk], &archive, true), (vec![Always, Never], "Q")),
        ] {
            let expected = (expected.0, expected.1.to_owned());
            assert_eq!(overwriting_of(files, &params), Ok(expected), "{params}");
        }
        for (files, params, expected) in [
            (&one, with(&["overwrite", "overwrite_on_retry"], &json!({}), false), "Multiple overwrite flags"),
            (&hops, with(&["overwrite", hop], &json!({}), true), "Multiple overwrite flags"),
            (&hops, with(&[hop, disk, "overwrite"], &archive, true), "Multiple overwrite flags"),
            (&one, with(&[hop], &json!({}), false), "requires multihop"),
            (&one, with(&[disk], &json!({}), false), "requires 'archive-timeout'"),
            (&one, with(&[disk], &zero, false), "requires 'archive-timeout'"),
            (&hops, with(&[hop, disk], &json!({}), true), "requires 'archive-timeout'"),
            (&to_http, with(&[disk], &archive, true), "requires destination to be HTTPs"),
            (&to_http, with(&[disk], &archive, false), "requires destination to be HTTPs"),
        ] {
            let message = overwriting_of(files, &params).unwrap_err();
            assert!(message.contains(expected), "{params}: {message}");
        }
    }

    #[test]
    fn each_pair_has_the_tokens_of_its_ends_and_no_message_has_one() {
        let (a, b, c) = ("https://a.example/f", "https://b.example/f", "https://c.example/f");
        let file = |source_tokens: Value, destination_tokens: Value| {
            let file = json!({"sources": [a, b], "destinations": [c],
                "source_tokens": source_tokens, "destination_tokens": destination_tokens});
            submission(&json!({"files": [file]}))
        };
        let job = file(json!(["for-a", "for-b"]), json!(["for-c"])).unwrap();
        let found: Vec<_> = job.entries[0].pairs.iter().map(|pair| pair.credentials.clone()).collect();
        let expected =
            |source| Credentials { source: Secret::new(source), destination: Secret::new("for-c"), proxy: None };
        assert_eq!(found, [expected("for-a"), expected("for-b")]);
        assert!(!format!("{job:?}").contains("for-"), "{job:?}");
        for none in [json!(null), json!([]), json!(["", null])] {
            let job = file(none, json!(null)).unwrap();
            assert!(job.entries[0].pairs.iter().all(|pair| pair.credentials.has_no_token()));
        }
        for wrong in [json!(["s3cret"]), json!(["s3 cret", "x"]), json!("s3cret"), json!([{"s3cret": 1}, "x"])] {
            let message = file(wrong, json!(null)).unwrap_err();
            assert!(message.contains("source_tokens") && !message.contains("cret"), "{message}");
        }
    }

    #[test]
    fn the_kind_of_a_job_follows_from_its_files() {
        let file = |sources: &[&str], destination: &str| json!({"sources": sources, "destinations": [destination]});
        let (a, b, c) = ("https://a.example/f", "https://b.example/f", "https://c.example/f");
        let kind = |files: Value, params: Value| {
            let job = submission(&json!({"files": files, "params": params}))?;
            Ok::<_, String>(job.options.fts["job_type"].as_str().unwrap_or_default().to_owned())
        };
        assert_eq!(kind(json!([file(&[a], b)]), json!({})), Ok("N".to_owned()));
        assert_eq!(kind(json!([file(&[a, c], b)]), json!({})), Ok("R".to_owned()));
        assert_eq!(kind(json!([file(&[a], b), file(&[b], c)]), json!({"multihop": true})), Ok("H".to_owned()));
        assert_eq!(kind(json!([file(&[a], b), file(&[a], b)]), json!({"reuse": true})), Ok("Y".to_owned()));
        assert!(kind(json!([file(&[a], b), file(&[c], b)]), json!({"reuse": true})).is_err(), "two links");
        assert!(kind(json!([file(&[a, c], b), file(&[a], b)]), json!({})).is_err(), "replicas and another file");
    }
}
