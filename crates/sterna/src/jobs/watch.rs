//! `sterna watch`: follows a job until it has ended.
//!
//! Polls: the change feed has the changes of every job that the user may see, and no bytes. Reads the clock.

use std::collections::{HashMap, VecDeque};
use std::io::IsTerminal;
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget};
use sterna_proto::file::plain;
use sterna_proto::{BitRate, ByteCount, Error, ErrorKind};
use sterna_service::api::native::types::{FileList, FileView, JobView};

use super::client::{Answer, Client, encoded};
use super::table::{counts, json_line};
use crate::flags::service::WatchFlags;
use crate::limits::line_of_names;
use crate::output::{print_line, say};
use crate::progress::style;

/// First time between two requests; it doubles up to [`POLL_TIME_MAX`]. Reason: a small job ends within a second.
const POLL_TIME_MIN: Duration = Duration::from_millis(100);

/// Longest time between two requests. Reason: people see progress every second.
const POLL_TIME_MAX: Duration = Duration::from_secs(1);

/// Time for which a service that had replied may be out of reach. Reason: an upgrade; a copy waits as long.
const OUTAGE_TIME_MAX: Duration = Duration::from_secs(600);

/// Maximum number of files under way whose bytes are shown. Source: the maximum of a page.
const ACTIVE_FILES_MAX: usize = 1000;

/// Maximum number of failures that are named at the end. Reason: they fit on a screen; `sterna explain` has more.
const FAILURES_SHOWN: usize = 10;

/// Number of polls that the displayed goodput averages over. Reason: 5 s, as for a copy.
const GOODPUT_POLLS: usize = 5;

/// Exit codes of a job.
mod code {
    pub const DONE: u8 = 0;
    pub const SOME_FAILED: u8 = 1;
    pub const CANCELLED: u8 = 130;
}

/// Follows the job of the flags. Returns the exit code.
pub fn run(flags: &WatchFlags) -> Result<u8, Error> {
    to_end(&Client::new(&flags.service)?, &flags.job, flags.service.json)
}

/// Follows a job until it has ended. Returns the exit code.
pub fn to_end(client: &Client, job: &str, json: bool) -> Result<u8, Error> {
    let path = format!("/api/v1/jobs/{}", encoded(job));
    let mut display = Display::new(json);
    let (mut wait, mut answered) = (POLL_TIME_MIN, None);
    loop {
        match client.get::<JobView>(&path) {
            Ok(answer) => {
                answered = Some(Instant::now());
                if has_ended(&answer.value) {
                    display.end(&answer)?;
                    return end(client, &path, &answer.value, json);
                }
                // Without the bytes, the counts are shown all the same.
                let active = || client.get::<FileList>(&format!("{path}/files?state=active&limit={ACTIVE_FILES_MAX}"));
                let active = if display.shows_bytes() { active().map(|page| page.value.files) } else { Ok(Vec::new()) };
                display.show(&answer, &active.unwrap_or_default())?;
            }
            Err(error) if may_wait(&error, answered) => display.lose(&error),
            Err(error) => return Err(error),
        }
        thread::sleep(wait);
        wait = (wait * 2).min(POLL_TIME_MAX);
    }
}

/// Returns true if an error can be an outage of a service that had replied.
fn may_wait(error: &Error, answered: Option<Instant>) -> bool {
    error.kind == ErrorKind::Unreachable && answered.is_some_and(|at| at.elapsed() < OUTAGE_TIME_MAX)
}

/// Returns true if no state follows that of the job.
fn has_ended(job: &JobView) -> bool {
    matches!(job.state.as_str(), "finished" | "partly_finished" | "failed" | "cancelled")
}

/// Names the failures of a job that has ended, and the limits of one with a single file. Returns the exit code, as that
/// of a copy: if no file has arrived, the code of the first failure.
fn end(client: &Client, path: &str, job: &JobView, json: bool) -> Result<u8, Error> {
    if !json && job.entries.all == 1 {
        say_limits(client, path)?;
    }
    if job.entries.failed == 0 {
        return Ok(if job.state == "cancelled" { code::CANCELLED } else { code::DONE });
    }
    let failed = client.get::<FileList>(&format!("{path}/files?state=failed&limit={FAILURES_SHOWN}"))?.value.files;
    if !json {
        failed.iter().take(FAILURES_SHOWN).for_each(|file| say(&failure(file)));
        if job.entries.failed > failed.len() as u64 {
            say(&format!("sterna explain {} names more failures", job.id));
        }
    }
    let first = failed.iter().find_map(|file| file.failure.as_ref()).map(|problem| problem.to_error().from_peer());
    Ok(match (job.state.as_str(), first) {
        ("failed", Some(error)) => error.exit_code(),
        ("cancelled", _) => code::CANCELLED,
        _ => code::SOME_FAILED,
    })
}

/// Prints what limited the only file of a job.
fn say_limits(client: &Client, path: &str) -> Result<(), Error> {
    let files = client.get::<FileList>(&format!("{path}/files?limit=1"))?.value.files;
    let limits = files.iter().flat_map(|file| &file.limits).map(|limit| (limit.limit.as_str(), limit.share));
    line_of_names(limits).iter().for_each(|line| say(line));
    Ok(())
}

fn failure(file: &FileView) -> String {
    let why = file.failure.as_ref().map_or("no reason is recorded", |failure| failure.text.as_str());
    format!("file {} has failed: {} -> {}: {why}", file.number, file.source, file.destination)
}

/// Progress of a job on stderr: a bar on a terminal, otherwise a line for each change. With `--json`, the reply on
/// stdout for each change.
struct Display {
    bar: Option<ProgressBar>,
    json: bool,
    /// Line that was printed last.
    shown: String,
    is_lost: bool,
    goodput: Goodput,
}

impl Display {
    fn new(json: bool) -> Self {
        let bar = (!json && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(10));
            bar.set_style(style("{bar:28} {percent:>3}% {msg}"));
            bar
        });
        Self { bar, json, shown: String::new(), is_lost: false, goodput: Goodput::default() }
    }

    fn shows_bytes(&self) -> bool {
        self.bar.is_some()
    }

    fn show(&mut self, job: &Answer<JobView>, active: &[FileView]) -> Result<(), Error> {
        let entries = &job.value.entries;
        self.is_lost = false;
        let Some(bar) = &self.bar else { return self.change(job) };
        let mut words = counts(entries);
        if let Some(bytes) = self.goodput.words(active, Instant::now()) {
            words.push_str(&format!("; {bytes}"));
        }
        let ended = entries.finished.saturating_add(entries.failed).saturating_add(entries.cancelled);
        let of_active: u64 = active.iter().map(permille).fold(0, u64::saturating_add);
        bar.set_length(entries.all.saturating_mul(1000));
        bar.set_position(ended.saturating_mul(1000).saturating_add(of_active));
        bar.set_message(words);
        Ok(())
    }

    /// Prints the job if it has changed.
    fn change(&mut self, job: &Answer<JobView>) -> Result<(), Error> {
        let line = if self.json { json_line(&job.json) } else { line(&job.value) };
        if line == self.shown {
            return Ok(());
        }
        match self.json {
            true => print_line(line.as_bytes())?,
            false => say(&line),
        }
        self.shown = line;
        Ok(())
    }

    /// Shows that the service is out of reach.
    fn lose(&mut self, error: &Error) {
        let words = format!("{}; trying again", error.chain());
        match &self.bar {
            Some(bar) => bar.set_message(plain(&words).into_owned()),
            None if !self.is_lost => say(&words),
            None => {}
        }
        self.is_lost = true;
    }

    fn end(&mut self, job: &Answer<JobView>) -> Result<(), Error> {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
            // Without a target: a bar with a target draws once more when it is dropped.
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        self.change(job)
    }
}

/// Returns the part of a file that has arrived, in thousandths; 0 if its size is not known.
fn permille(file: &FileView) -> u64 {
    let Some(size) = file.size.filter(|size| *size > 0) else { return 0 };
    u64::try_from(u128::from(file.bytes.min(size)) * 1000 / u128::from(size)).unwrap_or(0)
}

fn line(job: &JobView) -> String {
    format!("job {}: {}, {}", job.id, job.state, counts(&job.entries))
}

/// Mean rate of the files under way.
#[derive(Default)]
struct Goodput {
    /// Bytes of each file at the last poll.
    before: HashMap<u64, u64>,
    /// Bytes that have arrived up to a time.
    samples: VecDeque<(Instant, u64)>,
}

impl Goodput {
    /// Returns the bytes of files under way in words, with the rate once it is known. `None`: no byte has arrived.
    fn words(&mut self, active: &[FileView], now: Instant) -> Option<String> {
        // An attempt that starts again has fewer bytes than the one before.
        let grown = |file: &FileView| file.bytes.saturating_sub(self.before.get(&file.number).copied().unwrap_or(0));
        let arrived: u64 = active.iter().map(grown).fold(0, u64::saturating_add);
        // The bytes of the first poll came before it.
        let total = self.samples.back().map_or(0, |(_, total)| total.saturating_add(arrived));
        self.samples.push_back((now, total));
        if self.samples.len() > GOODPUT_POLLS + 1 {
            self.samples.pop_front();
        }
        self.before = active.iter().map(|file| (file.number, file.bytes)).collect();
        let bytes: ByteCount = active.iter().map(|file| ByteCount(file.bytes)).sum();
        let size: Option<u64> =
            active.iter().map(|file| file.size).try_fold(0, |sum: u64, size| sum.checked_add(size?));
        let of = size.map_or_else(String::new, |size| format!(" of {}", ByteCount(size)));
        let rate = match (self.samples.front(), self.samples.back()) {
            (Some((start, before)), Some((end, after))) => {
                BitRate::mean(ByteCount(after.saturating_sub(*before)), end.saturating_duration_since(*start))
            }
            _ => BitRate(0),
        };
        let rate = if rate.0 > 0 { format!(", {rate}") } else { String::new() };
        (bytes.0 > 0).then(|| format!("{bytes}{of}{rate}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(number: u64, bytes: u64, size: Option<u64>) -> FileView {
        let json = serde_json::json!({
            "number": number, "job": "6f2c1c9e-0f5b-4f6a-9d0a-3a4a5d3c8a11", "entry": 0, "state": "active",
            "source": "mock://a/f", "destination": "mock://b/f", "activity": "default", "size": size, "bytes": bytes,
            "bytes_per_s": null, "limits": [], "started_ms": null, "finished_ms": null, "failures": 0, "worker": null,
            "failure": null, "metadata": null,
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn goodput_counts_the_bytes_since_the_first_poll() {
        let start = Instant::now();
        let mut goodput = Goodput::default();
        let words = goodput.words(&[file(1, 500, Some(1000))], start);
        assert_eq!(words.as_deref(), Some("500 B of 1.00 kB"), "no rate before a second poll");
        // A second file has begun since; the first one began again from 0.
        let words = goodput.words(&[file(1, 0, Some(1000)), file(2, 1000, None)], start + Duration::from_secs(1));
        assert_eq!(words.as_deref(), Some("1.00 kB, 8.00 kbit/s"));
        assert_eq!(goodput.words(&[], start + Duration::from_secs(2)), None);
    }

    #[test]
    fn the_bar_counts_the_bytes_of_files_under_way() {
        for (bytes, size, expected) in [(0, Some(10), 0), (5, Some(10), 500), (11, Some(10), 1000), (7, None, 0)] {
            assert_eq!(permille(&file(1, bytes, size)), expected);
        }
        assert_eq!((permille(&file(1, 0, Some(0))), permille(&file(1, u64::MAX, Some(u64::MAX)))), (0, 1000));
    }

    #[test]
    fn only_a_service_that_had_replied_may_be_out_of_reach() {
        use sterna_proto::{Phase, Scope};
        let lost = Error::new(ErrorKind::Unreachable, Scope::Service, Phase::Prepare, "");
        let refused = Error::new(ErrorKind::Denied, Scope::Service, Phase::Prepare, "");
        assert!(!may_wait(&lost, None) && may_wait(&lost, Some(Instant::now())));
        assert!(!may_wait(&refused, Some(Instant::now())));
    }
}
