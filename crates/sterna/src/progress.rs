//! The progress display: total and files under way, with goodput, time left, lanes, round trip and loss.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use sterna_net::engine::CopyProgress;
use sterna_net::lane::LaneStats;
use sterna_proto::quantity::readable_time;
use sterna_proto::{BitRate, ByteCount};

use crate::{limits, say};

/// How often the display is drawn. Reason: often enough to look alive, seldom enough to read.
const DRAW_INTERVAL: Duration = Duration::from_millis(200);

/// How often `--json` prints a progress event.
const JSON_INTERVAL: Duration = Duration::from_secs(1);

/// Goodput shown is the mean of about this long. Reason: shorter jumps with every block, longer lags behind an outage.
const GOODPUT_WINDOW: Duration = Duration::from_secs(5);

/// What is drawn on stderr; draws nothing when that is no terminal.
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
    /// A display, or one that draws nothing.
    pub fn new(terminal: bool) -> Self {
        let bars = terminal.then(|| {
            let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(10));
            let total = all.add(ProgressBar::new(0));
            total.set_style(style("{bar:28} {percent:>3}% {msg}"));
            Bars { all, total, files: Mutex::default() }
        });
        Self { bars, state: Mutex::default() }
    }

    /// Draws a snapshot, if it is time.
    pub fn show(&self, progress: &CopyProgress) {
        let Some(bars) = &self.bars else { return };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
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
        let mut lines = bars.files.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Whether it is time for a progress event in JSON.
    pub fn json_due(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Runs `print` while nothing is drawn.
    pub fn suspend(&self, print: impl FnOnce()) {
        match &self.bars {
            Some(bars) => {
                // The display panics while it is suspended when its terminal is gone: then it draws no more.
                if bars.all.clear().is_err() {
                    bars.all.set_draw_target(ProgressDrawTarget::hidden());
                }
                bars.all.suspend(print);
            }
            None => print(),
        }
    }

    /// Takes the display away.
    pub fn finish(&self) {
        if let Some(bars) = &self.bars {
            // A terminal that is gone needs no clearing.
            let _ = bars.all.clear();
            // A bar that is dropped would be drawn once more.
            bars.all.set_draw_target(ProgressDrawTarget::hidden());
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    // The templates are constants of this file; a wrong one shows the default bar.
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━╸─")
}

impl State {
    fn goodput(&mut self, progress: &CopyProgress) -> BitRate {
        let session = &progress.session;
        // Holes are told before they are confirmed, so that this may fall for a moment: then nothing has come.
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
    let (rtt, loss) = path_figures(&progress.lanes);
    words.push_str(&format!("  {} lane{}", session.lanes, if session.lanes == 1 { "" } else { "s" }));
    if let Some(rtt) = rtt {
        words.push_str(&format!("  RTT {}", readable_time(rtt)));
    }
    if let Some(loss) = loss {
        words.push_str(&format!("  loss {:.2} %", loss * 100.0));
    }
    if let Some(limit) = limits::now(&progress.limits.report) {
        words.push_str(&format!("  {limit}"));
    }
    words
}

/// The mean round trip of the lanes, and the share of packets that they lost; `None` while unknown.
pub fn path_figures(lanes: &[LaneStats]) -> (Option<Duration>, Option<f64>) {
    let rtts: Vec<Duration> = lanes.iter().map(|lane| lane.rtt).filter(|rtt| !rtt.is_zero()).collect();
    let rtt = (!rtts.is_empty()).then(|| rtts.iter().sum::<Duration>() / rtts.len() as u32);
    let sent: u64 = lanes.iter().map(|lane| lane.packets_sent).sum();
    let lost: u64 = lanes.iter().map(|lane| lane.packets_lost).sum();
    (rtt, (sent > 0).then(|| lost as f64 / sent as f64))
}

/// File bytes for each byte that lanes carried of them; `None` where that is no more than one, to the digit that is shown.
pub fn compression_ratio(bytes_carried: u64, bytes_encoded: u64) -> Option<f64> {
    let ratio = bytes_carried as f64 / bytes_encoded.max(1) as f64;
    (bytes_encoded > 0 && ratio >= 1.05).then_some(ratio)
}

/// `1:02:03` or `2:03`.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, minutes, seconds) => format!("{minutes}:{seconds:02}"),
        (hours, minutes, seconds) => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}
