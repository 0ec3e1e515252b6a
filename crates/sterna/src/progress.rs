//! Draws the progress display: the total and the active files, with goodput, remaining time, lanes, RTT and loss.

use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;
use sterna_net::engine::CopyProgress;
use sterna_net::report;
use sterna_proto::quantity::readable_time;
use sterna_proto::{BitRate, ByteCount};

use crate::limits;
use crate::output::say;

/// Time between two drawings of the display. Reason: short enough to look live, long enough to read.
const DRAW_INTERVAL: Duration = Duration::from_millis(200);

/// Time between two progress events of `--json`.
const JSON_INTERVAL: Duration = Duration::from_secs(1);

/// Time that the displayed goodput averages over. Reason: a shorter mean jumps with every block, a longer one shows an
/// outage late.
const GOODPUT_WINDOW: Duration = Duration::from_secs(5);

/// Progress display on stderr; draws nothing if stderr is not a terminal.
pub struct Display {
    bars: Option<Bars>,
    state: Mutex<State>,
}

struct Bars {
    all: MultiProgress,
    total: ProgressBar,
    files: Mutex<Vec<ProgressBar>>,
}

#[derive(Default)]
struct State {
    drawn: Option<Instant>,
    json: Option<Instant>,
    samples: Vec<(Duration, u64)>,
}

impl Display {
    /// Creates a display. It draws nothing if `terminal` is false.
    pub fn new(terminal: bool) -> Self {
        let bars = terminal.then(|| {
            let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(10));
            let total = all.add(ProgressBar::new(0));
            total.set_style(style("{bar:28} {percent:>3}% {msg}"));
            Bars { all, total, files: Mutex::default() }
        });
        Self { bars, state: Mutex::default() }
    }

    /// Draws a snapshot, at most once per `DRAW_INTERVAL`.
    pub fn show(&self, progress: &CopyProgress) {
        let Some(bars) = &self.bars else { return };
        let mut state = self.state.lock();
        if state.drawn.is_some_and(|drawn| drawn.elapsed() < DRAW_INTERVAL) {
            return;
        }
        state.drawn = Some(Instant::now());
        let goodput = state.goodput(progress);
        drop(state);
        let session = &progress.session;
        bars.total.set_length(session.counters.bytes_known);
        bars.total.set_position(session.counters.bytes_done);
        bars.total.set_message(total_words(progress, goodput));
        let mut lines = bars.files.lock();
        while lines.len() < progress.files.len() {
            let line = bars.all.add(ProgressBar::new(0));
            line.set_style(style("  {bar:26} {percent:>3}% {msg}"));
            lines.push(line);
        }
        while lines.len() > progress.files.len() {
            lines.pop().iter().for_each(ProgressBar::finish_and_clear);
        }
        for (line, file) in lines.iter().zip(&progress.files) {
            line.set_length(file.size);
            line.set_position(file.done);
            line.set_message(format!("{} of {}  {}", ByteCount(file.done), ByteCount(file.size), file.path));
        }
    }

    /// Returns true, at most once per `JSON_INTERVAL`, if a progress event is due.
    pub fn json_due(&self) -> bool {
        let mut state = self.state.lock();
        let due = state.json.is_none_or(|printed| printed.elapsed() >= JSON_INTERVAL);
        if due {
            state.json = Some(Instant::now());
        }
        due
    }

    /// Prints a line above the display.
    pub fn line(&self, line: &str) {
        self.suspend(|| say(line));
    }

    /// Clears the display while `print` runs.
    pub fn suspend(&self, print: impl FnOnce()) {
        match &self.bars {
            Some(bars) => {
                // `suspend` panics if its terminal is gone, so the display loses its target before.
                if bars.all.clear().is_err() {
                    bars.all.set_draw_target(ProgressDrawTarget::hidden());
                }
                bars.all.suspend(print);
            }
            None => print(),
        }
    }

    /// Removes the display from the terminal.
    pub fn finish(&self) {
        if let Some(bars) = &self.bars {
            // A terminal that is gone needs no clearing.
            let _ = bars.all.clear();
            // Without a target: a bar with a target draws once more when it is dropped.
            bars.all.set_draw_target(ProgressDrawTarget::hidden());
        }
    }
}

/// Returns the style of a bar with this template.
pub fn style(template: &str) -> ProgressStyle {
    // The templates are constants of this file; a wrong one shows the default bar.
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━╸─")
}

impl State {
    fn goodput(&mut self, progress: &CopyProgress) -> BitRate {
        let session = &progress.session;
        // Holes are reported before they are confirmed, so this count can fall for a moment. The goodput is then 0.
        self.samples.push((progress.elapsed, session.counters.bytes_brought()));
        let horizon = progress.elapsed.saturating_sub(GOODPUT_WINDOW);
        self.samples.retain(|(at, _)| *at >= horizon);
        match (self.samples.first(), self.samples.last()) {
            (Some((start, before)), Some((end, now))) if end > start => {
                BitRate::mean(ByteCount(now.saturating_sub(*before)), *end - *start)
            }
            _ => BitRate(0),
        }
    }
}

fn total_words(progress: &CopyProgress, goodput: BitRate) -> String {
    let session = &progress.session;
    let mut words =
        format!("{} of {}  {goodput}", ByteCount(session.counters.bytes_done), ByteCount(session.counters.bytes_known));
    if !session.manifest_complete {
        words.push_str("  (still listing)");
    } else if goodput.0 > 0 {
        let left =
            goodput.time_for(ByteCount(session.counters.bytes_known.saturating_sub(session.counters.bytes_done)));
        words.push_str(&format!("  ETA {}", clock(left)));
    }
    if let Some(ratio) = compression_ratio(session.counters.bytes_carried, session.counters.bytes_encoded) {
        words.push_str(&format!("  compressed {ratio:.1} : 1"));
    }
    words.push_str(&format!("  {} lane{}", session.lanes, if session.lanes == 1 { "" } else { "s" }));
    if let Some(rtt) = report::mean_rtt(&progress.lanes) {
        words.push_str(&format!("  RTT {}", readable_time(rtt)));
    }
    if let Some(loss) = report::loss(&progress.lanes) {
        words.push_str(&format!("  loss {:.2} %", loss * 100.0));
    }
    if let Some(limit) = limits::now(&progress.limits.report) {
        words.push_str(&format!("  {limit}"));
    }
    words
}

/// Returns the number of file bytes per encoded byte on the lanes. `None` without encoded bytes, or if the ratio is
/// below 1.05, which would be displayed as 1.0.
pub fn compression_ratio(bytes_carried: u64, bytes_encoded: u64) -> Option<f64> {
    let ratio = bytes_carried as f64 / bytes_encoded.max(1) as f64;
    (bytes_encoded > 0 && ratio >= 1.05).then_some(ratio)
}

/// Formats a time as `1:02:03` or `2:03`.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, minutes, seconds) => format!("{minutes}:{seconds:02}"),
        (hours, minutes, seconds) => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}
