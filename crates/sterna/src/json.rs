//! Formats the events of `--json`, one object per line. Names and units are API: sizes in bytes, rates in bit/s, times
//! in seconds.

use serde_json::{Map, Value, json};
use sterna_net::engine::{CopyEvent, CopyProgress, CopySummary, ReplicaSummary};
use sterna_net::session::SessionEvent;
use sterna_proto::file::drives_terminal;
use sterna_proto::session::FileOutcome;
use sterna_proto::{BitRate, ByteCount, Error, FileDigests, FileEntry};

use crate::flags::worded;
use crate::progress::path_figures;
use crate::{limits, plan};

/// Returns the line of an event; `None` if the event has no line.
pub fn event(event: &CopyEvent, dry_run: bool) -> Option<String> {
    let value = match event {
        CopyEvent::Decision { subject, rationale }
        | CopyEvent::Session(SessionEvent::Decision { subject, rationale }) => {
            json!({"event": "decision", "subject": subject, "rationale": rationale})
        }
        CopyEvent::LaneUp { lane, path, transport, peer } => {
            // Users number paths from 1.
            let (path, transport, peer) = (path.0 + 1, transport.to_string(), peer.to_string());
            json!({"event": "lane_up", "lane": lane, "path": path, "transport": transport, "peer": peer})
        }
        CopyEvent::LaneDown { lane, reason, .. } => json!({"event": "lane_down", "lane": lane, "reason": reason}),
        CopyEvent::Restarted => json!({"event": "restarted"}),
        CopyEvent::Session(SessionEvent::Notice(text)) => json!({"event": "notice", "text": text}),
        CopyEvent::Session(SessionEvent::Unreadable(error)) => {
            json!({"event": "unreadable", "error": error_value(error)})
        }
        CopyEvent::Session(SessionEvent::Left(error)) => {
            json!({"event": "source_left", "error": error_value(error)})
        }
        CopyEvent::Session(SessionEvent::Settled { entry, outcome }) => file(entry, outcome, dry_run),
        // The error of the whole copy is the last line of the output.
        CopyEvent::Session(SessionEvent::Aborted(_)) => return None,
    };
    Some(encoded(&value))
}

fn file(entry: &FileEntry, outcome: &FileOutcome, dry_run: bool) -> Value {
    let mut value =
        json!({"event": "file", "path": String::from_utf8_lossy(entry.path.as_bytes()), "size": entry.size});
    let (name, more) = match outcome {
        FileOutcome::Done(_) if dry_run => ("would_copy", Value::Null),
        FileOutcome::Done(digests) => ("copied", digests_value(digests)),
        FileOutcome::Skipped => ("up_to_date", Value::Null),
        FileOutcome::Failed(error) => ("failed", error_value(error)),
    };
    value["outcome"] = json!(name);
    match (name, more) {
        ("failed", error) => value["error"] = error,
        (_, Value::Null) => {}
        (_, digests) => value["digests"] = digests,
    }
    value
}

fn digests_value(digests: &FileDigests) -> Value {
    let pairs = digests.iter().map(|digest| (digest.algorithm().name().to_owned(), Value::from(digest.hex())));
    Value::Object(pairs.collect::<Map<_, _>>())
}

fn error_value(error: &Error) -> Value {
    json!({
        "kind": error.kind.name(),
        "scope": error.scope.name(),
        "phase": error.phase.name(),
        "retry": error.retry.name(),
        "text": worded(error),
        "settings": error.settings().iter().map(|setting| setting.name()).collect::<Vec<_>>(),
    })
}

/// Encodes a value on one line. Writes characters that control a terminal as JSON escapes, so that programs read the
/// same text.
fn encoded(value: &Value) -> String {
    let mut line = String::new();
    for c in value.to_string().chars() {
        match drives_terminal(c) {
            true => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| line.push_str(&format!("\\u{unit:04x}"))),
            false => line.push(c),
        }
    }
    line
}

/// Returns the line for the failure of the whole copy.
pub fn error(error: &Error) -> String {
    encoded(&json!({"event": "error", "error": error_value(error), "exit_code": error.exit_code()}))
}

/// Returns the line of a snapshot. In a dry run, leaves out the fields that only transferred data changes.
pub fn progress(progress: &CopyProgress, dry_run: bool) -> String {
    let session = &progress.session;
    if dry_run {
        return json!({
            "event": "progress",
            "elapsed_s": progress.elapsed.as_secs_f64(),
            "bytes_known": session.counters.bytes_known,
            "files_known": session.counters.files_known,
            "manifest_complete": session.manifest_complete,
            "lanes": session.lanes,
        })
        .to_string();
    }
    let (rtt, loss) = path_figures(&progress.lanes);
    let counters = &session.counters;
    json!({
        "event": "progress",
        "elapsed_s": progress.elapsed.as_secs_f64(),
        "bytes_done": counters.bytes_done,
        "bytes_known": counters.bytes_known,
        "files_known": counters.files_known,
        "manifest_complete": session.manifest_complete,
        "bytes_held": counters.bytes_held + counters.bytes_up_to_date,
        "bytes_holes": counters.bytes_holes,
        "goodput_bps": BitRate::mean(ByteCount(counters.bytes_brought()), progress.elapsed).0,
        "bytes_carried": counters.bytes_carried,
        "bytes_encoded": counters.bytes_encoded,
        "lanes": session.lanes,
        "rtt_s": rtt.map(|rtt| rtt.as_secs_f64()),
        "loss": loss,
        "blocks_again": counters.blocks_again,
        "limits": limits::shares(&progress.limits.report.recent),
    })
    .to_string()
}

/// Returns the line for the outcome of the whole copy; in a dry run, for the expected outcome.
pub fn summary(summary: &CopySummary, dry_run: bool) -> String {
    if dry_run {
        return json!({
            "event": "summary",
            "would_copy": summary.done,
            "up_to_date": summary.skipped,
            "failed": summary.failed,
            "bytes": summary.bytes,
            "bytes_up_to_date": summary.bytes_skipped,
            "plan": plan::value(summary),
        })
        .to_string();
    }
    let mut value = json!({
        "event": "summary",
        "copied": summary.done,
        "up_to_date": summary.skipped,
        "failed": summary.failed,
        "bytes": summary.bytes,
        "bytes_up_to_date": summary.bytes_skipped,
        "elapsed_s": summary.elapsed.as_secs_f64(),
        "bytes_held": summary.counters.bytes_held,
        "bytes_holes": summary.counters.bytes_holes,
        "goodput_bps": summary.goodput().0,
        "bytes_carried": summary.counters.bytes_carried,
        "bytes_encoded": summary.counters.bytes_encoded,
        "blocks_again": summary.counters.blocks_again,
        "limits": limits::value(&summary.limits),
    });
    if !summary.replicas.is_empty() {
        value["replicas"] = summary.replicas.iter().map(replica).collect();
    }
    encoded(&value)
}

fn replica(replica: &ReplicaSummary) -> Value {
    json!({"source": replica.source, "bytes": replica.bytes, "dropped": replica.dropped})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_holds_nothing_that_drives_a_terminal_and_reads_back_as_it_was() {
        let name = "a\u{85}b\u{9b}31m\u{202e}c\u{2066}\u{7f}d\u{200f}e\u{61c}f\ng\u{1b}[2J é";
        let line = encoded(&json!({"text": name}));
        assert!(!line.chars().any(drives_terminal) && line.contains(r"\u202e") && line.contains('é'), "{line}");
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["text"], name);
    }
}
