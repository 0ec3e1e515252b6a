//! `sterna status`, `sterna list` and `sterna cancel`: jobs in tables.

use clap::ValueEnum;
use serde_json::Value;
use sterna_proto::file::plain;
use sterna_proto::{BitRate, ByteCount, Error};
use sterna_service::api::native::types::{FileList, FileView, JobList, JobView};
use uuid::Uuid;

use super::client::{CancelOutcome, Client, encoded};
use super::table::{Table, counts, json_line, utc};
use crate::flags::service::{CancelFlags, JobStateFlag, ListFlags, StatusFlags, name_of};
use crate::output::{print_line, say};

/// Number of files or jobs that are requested at once. Source: the maximum of the interface.
const PAGE: usize = 1000;

/// Exit code of a cancellation that came too late.
const ENDED_BEFORE: u8 = 1;

/// Shows a job, and its files. Returns the exit code.
pub fn run(flags: &StatusFlags) -> Result<u8, Error> {
    let client = Client::new(&flags.service)?;
    let path = format!("/api/v1/jobs/{}", encoded(&flags.job));
    let job = client.get::<JobView>(&path)?;
    let text = if flags.service.json { json_line(&job.json) } else { in_words(&job.value) };
    print_line(text.as_bytes())?;
    if flags.files {
        show_files(&client, &path, flags.service.json)?;
    }
    Ok(0)
}

/// Returns a job as lines of a name and a value each.
fn in_words(job: &JobView) -> String {
    let mut lines = vec![
        ("job", job.id.to_string()),
        ("state", job.state.clone()),
        ("files", counts(&job.entries)),
        ("owner", job.owner.clone()),
        ("vo", job.vo.clone()),
        ("priority", job.priority.to_string()),
        ("submitted", utc(job.submitted_ms)),
    ];
    lines.extend(job.listings.iter().map(|one| ("listing", format!("{}: {}", one.source, one.text))));
    lines.extend(job.finished_ms.map(|at| ("ended", utc(at))));
    lines.extend(job.reason.clone().map(|reason| ("reason", reason)));
    let lines: Vec<String> = lines.iter().map(|(name, value)| format!("{name:<9}  {}", plain(value))).collect();
    lines.join("\n")
}

/// Shows the files of a job, a page at a time: a job can have a million.
fn show_files(client: &Client, path: &str, json: bool) -> Result<(), Error> {
    let mut after = 0;
    loop {
        let page = client.get::<FileList>(&format!("{path}/files?limit={PAGE}&after={after}"))?;
        let Some(last) = page.value.files.last().map(|file| file.number) else { return Ok(()) };
        let text = if json { json_line(&page.json) } else { file_table(&page.value.files) };
        print_line(text.as_bytes())?;
        // A cursor that does not move would repeat the page for ever.
        if page.value.files.len() < PAGE || last <= after {
            return Ok(());
        }
        after = last;
    }
}

fn file_table(files: &[FileView]) -> String {
    let mut table =
        Table::new(&["file", "state", "size", "arrived", "rate", "failures", "source", "destination"], 2..6);
    let unknown = || "-".to_owned();
    for file in files {
        let rate = file.bytes_per_s.map(|rate| BitRate((rate * 8.0) as u64).to_string());
        table.add(vec![
            file.number.to_string(),
            file.state.clone(),
            file.size.map_or_else(unknown, |size| ByteCount(size).to_string()),
            ByteCount(file.bytes).to_string(),
            rate.unwrap_or_else(unknown),
            file.failures.to_string(),
            file.source.clone(),
            file.destination.clone(),
        ]);
    }
    table.text()
}

/// Lists jobs. Returns the exit code.
pub fn list(flags: &ListFlags) -> Result<u8, Error> {
    let client = Client::new(&flags.service)?;
    let states: &[JobStateFlag] = if flags.all { JobStateFlag::value_variants() } else { &flags.states };
    let states: Vec<String> = states.iter().map(|state| name_of(*state)).collect();
    let filter = if states.is_empty() { String::new() } else { format!("&state={}", states.join(",")) };
    let (mut jobs, mut before, mut left) = (Vec::new(), None, flags.limit);
    while left > 0 {
        let page = left.min(PAGE as u32);
        let cursor = before.map_or_else(String::new, |before: Uuid| format!("&before={before}"));
        let list = client.get::<JobList>(&format!("/api/v1/jobs?limit={page}{filter}{cursor}"))?;
        if flags.service.json {
            print_line(json_line(&list.json).as_bytes())?;
        }
        left -= page;
        jobs.extend(list.value.jobs);
        // A cursor that does not move would repeat the page for ever.
        if list.value.next.is_none() || list.value.next == before {
            before = None;
            break;
        }
        before = list.value.next;
    }
    if flags.service.json {
        return Ok(0);
    }
    let mut table = Table::new(&["job", "state", "submitted", "files", "arrived", "failed", "vo", "owner"], 3..6);
    for job in &jobs {
        table.add(vec![
            job.id.to_string(),
            job.state.clone(),
            utc(job.submitted_ms),
            job.entries.all.to_string(),
            job.entries.finished.to_string(),
            job.entries.failed.to_string(),
            job.vo.clone(),
            job.owner.clone(),
        ]);
    }
    print_line(table.text().as_bytes())?;
    if before.is_some() {
        say(&format!("these are the latest {} jobs; there can be more: --limit N shows them", flags.limit));
    }
    Ok(0)
}

/// Cancels jobs and files. Returns the exit code. Errors: the first one, after all were tried.
pub fn cancel(flags: &CancelFlags) -> Result<u8, Error> {
    let client = Client::new(&flags.service)?;
    let (mut code, mut first) = (0, None);
    for what in &flags.what {
        // The identifier of a job is never a number alone: it has hyphens.
        let outcome = match what.parse() {
            Ok(number) => client.cancel_file(number).map(|outcome| {
                summary(outcome, |file: &FileView| (format!("file {}", file.number), file.state.clone()))
            }),
            Err(_) => client
                .cancel(what)
                .map(|outcome| summary(outcome, |job: &JobView| (job.id.to_string(), job.state.clone()))),
        };
        let (json, words, had_ended) = match outcome {
            Ok(summary) => summary,
            Err(error) if first.is_none() => {
                first = Some(error);
                continue;
            }
            Err(error) => {
                say(&format!("sterna: {}", error.chain()));
                continue;
            }
        };
        if had_ended {
            code = ENDED_BEFORE;
        }
        let line = if flags.service.json { json_line(&json) } else { plain(&words).into_owned() };
        print_line(line.as_bytes())?;
    }
    first.map_or(Ok(code), Err)
}

/// Returns the reply to a cancellation, its words, and true if it came too late. `of`: name and state.
fn summary<T>(outcome: CancelOutcome<T>, of: impl Fn(&T) -> (String, String)) -> (Value, String, bool) {
    match outcome {
        CancelOutcome::Now(answer) => {
            let (name, state) = of(&answer.value);
            (answer.json, format!("{name}: {state}"), false)
        }
        CancelOutcome::EndedBefore(answer) => {
            let (name, state) = of(&answer.value);
            (answer.json, format!("{name}: had ended before, {state}"), true)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> JobView {
        let json = serde_json::json!({
            "id": "6f2c1c9e-0f5b-4f6a-9d0a-3a4a5d3c8a11", "state": "active", "owner": "/CN=\u{1b}[2J", "vo": "x",
            "priority": 3, "submitted_ms": 0, "finished_ms": null, "reason": null, "metadata": null,
            "entries": {"all": 2, "finished": 1, "failed": 0, "cancelled": 0, "active": 1}, "new_field": 1,
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_job_is_shown_in_lines_that_drive_no_terminal() {
        let shown = in_words(&job());
        assert!(shown.contains("files      1 of 2 files arrived, 1 under way\n"), "{shown}");
        assert!(shown.contains("owner      /CN=\\u{1b}[2J\n") && !shown.contains("ended"), "{shown}");
        let ended = JobView { finished_ms: Some(1000), reason: Some("over".to_owned()), ..job() };
        assert!(in_words(&ended).ends_with("ended      1970-01-01T00:00:01Z\nreason     over"));
    }

    #[test]
    fn a_file_is_a_row() {
        let json = serde_json::json!({
            "number": 7, "job": "6f2c1c9e-0f5b-4f6a-9d0a-3a4a5d3c8a11", "entry": 0, "state": "finished",
            "source": "mock://a/f", "destination": "mock://b/f", "activity": "default", "size": null, "bytes": 10,
            "bytes_per_s": 125_000_000.0, "limits": [], "started_ms": null, "finished_ms": null, "failures": 0,
            "worker": null, "failure": null, "metadata": null,
        });
        let table = file_table(&[serde_json::from_value(json).unwrap()]);
        let row: Vec<&str> = table.lines().nth(1).unwrap_or_default().split_whitespace().collect();
        assert_eq!(row, ["7", "finished", "-", "10", "B", "1.00", "Gbit/s", "0", "mock://a/f", "mock://b/f"]);
    }
}
