//! `sterna explain`: the reason why files of a job wait or have failed.

use std::time::Duration;

use sterna_proto::file::plain;
use sterna_proto::quantity::readable_time;
use sterna_proto::{ByteCount, Error};
use sterna_service::api::native::types::{
    ABSENT, BANNED, DRAINED, FileDetails, FileList, JobView, LIMIT, LimitShare, ListingView, Problem, TURN, Waiting,
};
use sterna_service::store::failure_in_decision;

use super::client::{Answer, Client, encoded};
use super::table::{json_line, utc};
use crate::flags::service::ExplainFlags;
use crate::limits::line_of_names;
use crate::output::{print_line, say};

/// Maximum number of files of a job that are explained. Reason: they fit on a few screens; each costs a request.
const FILES_SHOWN: usize = 20;

/// States of files that there is something to explain about: all but those that have arrived or were cancelled.
const STATES: &str = "waiting,held,reserved,active,failed,cancelled";

/// Explains a file, or the files of a job. Returns the exit code.
pub fn run(flags: &ExplainFlags) -> Result<u8, Error> {
    let client = Client::new(&flags.service)?;
    let show = |number: u64| -> Result<(), Error> {
        let answer: Answer<FileDetails> = client.get(&format!("/api/v1/files/{number}"))?;
        let text = if flags.service.json { json_line(&answer.json) } else { in_words(&answer.value) };
        print_line(text.as_bytes())
    };
    // The identifier of a job is never a number alone: it has hyphens.
    if let Ok(number) = flags.what.parse() {
        show(number)?;
        return Ok(0);
    }
    // One more than is shown, to know that there are more.
    let job: Answer<JobView> = client.get(&format!("/api/v1/jobs/{}", encoded(&flags.what)))?;
    let json = job.json["listings"].as_array().into_iter().flatten();
    for (listing, json) in job.value.listings.iter().zip(json) {
        let text = if flags.service.json { json_line(json) } else { of_listing(listing) };
        print_line(text.as_bytes())?;
    }
    let path = format!("/api/v1/jobs/{}/files?state={STATES}&limit={}", encoded(&flags.what), FILES_SHOWN + 1);
    let files = client.get::<FileList>(&path)?.value.files;
    for file in files.iter().take(FILES_SHOWN) {
        show(file.number)?;
    }
    if files.is_empty() && job.value.listings.is_empty() {
        say("every file of the job has arrived");
    } else if files.len() > FILES_SHOWN {
        say(&format!(
            "these are the first {FILES_SHOWN} files that have not arrived; sterna status --files {} lists all",
            flags.what
        ));
    }
    Ok(0)
}

/// Returns the listing of a prefix in lines: how far it is, or why it waits, and the last failure.
fn of_listing(listing: &ListingView) -> String {
    let mut lines = vec![format!("prefix {} -> {}: {}", listing.source, listing.destination, listing.text)];
    if let Some(failure) = &listing.failure {
        lines.push(format!("  listing {} failed: {}", listing.failures, problem(failure)));
    }
    let lines: Vec<_> = lines.iter().map(|line| plain(line)).collect();
    lines.join("\n")
}

/// Returns a file in lines: its state, the reason why it waits, its failed attempts, and the decisions about it.
fn in_words(details: &FileDetails) -> String {
    let file = &details.file;
    let mut lines = vec![format!("file {} {}: {} -> {}", file.number, file.state, file.source, file.destination)];
    match (&details.why, file.state.as_str()) {
        (Some(why), _) => lines.push(waits(why)),
        (None, "waiting") => lines.push("  waits, and the service has not queued it yet".to_owned()),
        (None, _) => {}
    }
    for attempt in &details.attempts {
        let worker = attempt.worker.as_ref().map_or_else(String::new, |worker| format!(" at {worker}"));
        let failure = problem(&attempt.failure);
        lines.push(format!("  attempt {}{worker} failed at {}: {failure}", attempt.number, utc(attempt.ended_ms)));
        lines.extend(
            came_to(attempt.bytes, file.size, Some(attempt.time_ms), &attempt.limits).map(|far| format!("    {far}")),
        );
    }
    // The failures of this file are with its attempts.
    let failures: Vec<String> = details
        .attempts
        .iter()
        .map(|one| failure_in_decision(&one.failure.text))
        .map(|text| format!(": {text}; "))
        .collect();
    for decision in &details.decisions {
        let text = failures.iter().fold(decision.text.clone(), |text, failure| text.replacen(failure, "; ", 1));
        lines.push(format!("  {} at {}: {text}", decision.kind, utc(decision.at_ms)));
    }
    // The last failure is an attempt too, unless the file failed while it waited.
    let last = details.attempts.last().map(|attempt| &attempt.failure.text);
    if let Some(failure) = file.failure.as_ref().filter(|failure| Some(&failure.text) != last) {
        lines.push(format!("  failed: {}", problem(failure)));
    }
    // A failed attempt has its own line.
    if matches!(file.state.as_str(), "finished" | "cancelled") {
        let time_ms = file.bytes_per_s.map(|rate| (file.bytes as f64 * 1000.0 / rate) as u64);
        lines.extend(came_to(file.bytes, file.size, time_ms, &file.limits).map(|far| format!("  {far}")));
    }
    if let Some(cleanup) = &file.cleanup {
        let text = cleanup.text.as_ref().map_or_else(String::new, |text| format!(": {text}"));
        lines.push(format!("  copy between hops: {}{text}", cleanup.state.replace('_', " ")));
    }
    let lines: Vec<_> = lines.iter().map(|line| plain(line)).collect();
    lines.join("\n")
}

/// Returns how far an attempt came, and what held it. `None`: no byte has moved, and no limit is known.
fn came_to(bytes: u64, size: Option<u64>, time_ms: Option<u64>, limits: &[LimitShare]) -> Option<String> {
    let limited = line_of_names(limits.iter().map(|limit| (limit.limit.as_str(), limit.share)));
    if bytes == 0 && limited.is_none() {
        return None;
    }
    let of = size.map_or_else(String::new, |size| format!(" of {}", ByteCount(size)));
    let time = time_ms.filter(|time| *time > 0).map(|time| readable_time(Duration::from_millis(time)));
    let time = time.map_or_else(String::new, |time| format!(" in {time}"));
    let limited = limited.map_or_else(String::new, |limited| format!("; {limited}"));
    Some(format!("moved {}{of}{time}{limited}", ByteCount(bytes)))
}

fn waits(why: &Waiting) -> String {
    let kind = why.kind.as_str();
    let mut text = format!("  waits: {}", why.text);
    // The text of a turn has them.
    if let Some((files, bytes)) = why.files_before.zip(why.bytes_before).filter(|(files, _)| *files > 0 && kind != TURN)
    {
        text += &format!("; {files} files with {} go first", ByteCount(bytes));
    }
    let expected = why.expected_s.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).map(readable_time);
    match (kind, expected) {
        (TURN | LIMIT, Some(time)) => text += &format!("; starts in about {time}"),
        // The first file starts at once then.
        (BANNED | ABSENT | DRAINED, Some(time)) if why.expected_s >= Some(1.0) => {
            text += &format!("; starts about {time} after that")
        }
        // The text has the time of a retry or a pause.
        (_, Some(time)) if why.files_before.is_some_and(|files| files > 0) => {
            text += &format!("; starts in about {time}")
        }
        (TURN, None) => text += "; its start is not known, because no transfer has ended there lately",
        _ => {}
    }
    if why.is_late {
        text += "; its deadline has passed, and it starts all the same";
    }
    text
}

fn problem(problem: &Problem) -> String {
    format!("{} ({}), {}: {}", problem.scope, problem.phase, problem.kind, problem.text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn details(state: &str, why: serde_json::Value, attempts: serde_json::Value) -> FileDetails {
        let problem = serde_json::json!({
            "kind": "not_found", "scope": "source", "phase": "prepare", "retry": "never", "text": "stat x: gone",
        });
        let failure = (state == "failed").then_some(problem);
        let json = serde_json::json!({
            "file": {
                "number": 7, "job": "6f2c1c9e-0f5b-4f6a-9d0a-3a4a5d3c8a11", "entry": 0, "state": state,
                "source": "mock://a/f", "destination": "mock://b/\u{1b}", "activity": "default", "size": null,
                "bytes": 0, "bytes_per_s": null, "limits": [], "started_ms": null, "finished_ms": null, "failures": 0,
                "worker": null, "failure": failure, "metadata": null,
            },
            "why": why, "attempts": attempts,
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_file_that_waits_has_its_reason_and_expected_start() {
        let turn = |text: &str, files: u64, expected_s: Option<u64>| serde_json::json!({"kind": "turn", "text": text, "files_before": files, "expected_s": expected_s});
        for (why, expected) in [
            (
                turn("3 files with 1 MB go first", 3, Some(12)),
                "  waits: 3 files with 1 MB go first; starts in about 12 s",
            ),
            (
                turn("0 files go first", 0, None),
                "  waits: 0 files go first; its start is not known, because no transfer has ended there lately",
            ),
            (
                serde_json::json!({"kind": "retry", "text": "starts in 9 s", "files_before": 0, "expected_s": 9.0}),
                "  waits: starts in 9 s",
            ),
            (
                serde_json::json!({"kind": "retry", "text": "starts in 9 s", "files_before": 2, "bytes_before": 5000000, "expected_s": 30.0}),
                "  waits: starts in 9 s; 2 files with 5.00 MB go first; starts in about 30 s",
            ),
            (
                serde_json::json!({"kind": "limit", "text": "link: 1", "files_before": 1, "bytes_before": 5000000, "expected_s": 12}),
                "  waits: link: 1; 1 files with 5.00 MB go first; starts in about 12 s",
            ),
            (
                serde_json::json!({"kind": "drained", "text": "x", "files_before": 0, "expected_s": 12, "is_late": true}),
                "  waits: x; starts about 12 s after that; its deadline has passed, and it starts all the same",
            ),
            (
                serde_json::json!({"kind": "hop", "text": "hop 1 of the job has not arrived yet", "files_before": null, "expected_s": null}),
                "  waits: hop 1 of the job has not arrived yet",
            ),
            (serde_json::Value::Null, "  waits, and the service has not queued it yet"),
        ] {
            let shown = in_words(&details("waiting", why, serde_json::json!([])));
            assert_eq!(shown, format!("file 7 waiting: mock://a/f -> mock://b/\\u{{1b}}\n{expected}"));
        }
    }

    #[test]
    fn a_file_that_failed_has_its_attempts_and_no_failure_twice() {
        let failed = details("failed", serde_json::Value::Null, serde_json::json!([]));
        assert!(in_words(&failed).ends_with("\n  failed: source (prepare), not_found: stat x: gone"));
        let failure = serde_json::to_value(failed.file.failure).unwrap();
        let limits = serde_json::json!([{"limit": "server_or_path", "share": 0.9}, {"limit": "new", "share": 0.1}]);
        let attempts = serde_json::json!([{"number": 1, "ended_ms": 0, "worker": "w1", "failure": failure,
            "bytes": 5_000_000, "time_ms": 2000, "limits": limits}]);
        let mut failed = details("failed", serde_json::Value::Null, attempts);
        let decision =
            serde_json::json!({"at_ms": 0, "kind": "end", "text": "mock://a (file 7) failed: stat x: gone; no more"});
        failed.decisions.push(serde_json::from_value(decision).unwrap());
        let expected = [
            "  attempt 1 at w1 failed at 1970-01-01T00:00:00Z: source (prepare), not_found: stat x: gone",
            "    moved 5.00 MB in 2 s; limited by: server or path 90 %, new 10 %",
            "  end at 1970-01-01T00:00:00Z: mock://a (file 7) failed; no more",
        ];
        assert_eq!(in_words(&failed).lines().skip(1).collect::<Vec<_>>(), expected);
    }
}
