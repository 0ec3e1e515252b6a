//! `sterna doctor watch`: limits of the connections of this host, of any program.
//!
//! Reads the clock, the kernel and `/proc`; [`Watch`] judges. On a terminal a table is redrawn every second. Otherwise
//! there is a line for each connection and second, or an object with `--json`. The summary ends both.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget};
use serde::Serialize;
use sterna_doctor::kernel::Buffers;
use sterna_doctor::watch::{Direction, HostLimits, PathSummary, Row, Share, Verdict, Watch};
use sterna_net::engine::{Cancel, OnCancel};
use sterna_net::measure::{Connections, Process, family_of, host_facts, is_in_other_network, sockets_of};
use sterna_proto::quantity::readable_time;
use sterna_proto::{BitRate, ByteCount, Error, ErrorKind, Phase, Scope};

use super::own_kernel;
use crate::flags::DoctorWatchFlags;
use crate::jobs::table::{Table, json_of};
use crate::output::print_line;
use crate::progress::style;
use crate::trust::cancel_at_signal;

/// Shortest time between two samples. Reason: the accountant of limits is tuned for it.
const SAMPLE_EVERY: Duration = Duration::from_millis(100);

/// Part of the time that samples may take. Reason: a host with very many connections is sampled less often.
const SAMPLING_PART: u32 = 10;

/// Length of an interval.
const INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of rows of the table on a terminal. Reason: it fits on a screen.
const ROWS_SHOWN_MAX: usize = 16;

/// Maximum number of paths in the summary for people. Reason: as for the rows.
const PATHS_SHOWN_MAX: usize = 8;

/// Connection of an interval, with its process.
#[derive(Serialize)]
struct Line<'a> {
    event: &'static str,
    /// Time since the start, s.
    at_s: f64,
    #[serde(flatten)]
    row: &'a Row,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<&'a str>,
}

/// Last object of the output.
#[derive(Serialize)]
struct Summary<'a> {
    event: &'static str,
    /// Time of the observation, s.
    time_s: f64,
    /// Paths, those with the most bytes first.
    paths: &'a [PathSummary],
    /// Verdicts of all paths, those with the most bytes first.
    verdicts: Vec<PathVerdict<'a>>,
}

/// Verdict with the path that it is about.
#[derive(Serialize)]
struct PathVerdict<'a> {
    local: std::net::IpAddr,
    remote: std::net::IpAddr,
    direction: Direction,
    #[serde(flatten)]
    verdict: &'a Verdict,
}

impl<'a> PathVerdict<'a> {
    fn of_path(path: &'a PathSummary) -> impl Iterator<Item = Self> {
        let PathSummary { local, remote, direction, .. } = *path;
        path.verdicts.iter().map(move |verdict| Self { local, remote, direction, verdict })
    }
}

/// Watches until the time is over or a signal comes. Returns the exit code.
pub fn run(flags: &DoctorWatchFlags) -> Result<u8, Error> {
    check_process(flags.pid)?;
    let mut watch = Watch::new(host_limits()?, flags.rate_min);
    let mut connections = Connections::open()?;
    let stop = Stop::at_signal()?;
    let screen = Screen::new(flags.json);
    let begun = Instant::now();
    let end = flags.time.map(|time| begun + time);
    let (mut next_interval, mut owners) = (begun + INTERVAL, Owners::new(flags.pid));
    loop {
        let now = Instant::now();
        let mut found = connections.read()?;
        if flags.pid.is_some() {
            owners.refresh(now);
            found.retain(|one| owners.by_inode.contains_key(&one.inode));
        }
        watch.handle(now, &found);
        let is_over = end.is_some_and(|end| now >= end);
        if now >= next_interval || is_over {
            let rows = watch.end_interval(now);
            owners.learn(now, &rows);
            screen.show(&rows, &owners.by_inode, now - begun)?;
            next_interval = now + INTERVAL;
        }
        let rest = SAMPLE_EVERY.max(now.elapsed() * SAMPLING_PART);
        if is_over || stop.is_over_within(rest) {
            break;
        }
    }
    screen.end(&watch.summary(), begun.elapsed(), flags.rate_min)?;
    Ok(0)
}

/// Checks that the connections of a process can be seen.
fn check_process(pid: Option<u32>) -> Result<(), Error> {
    let Some(pid) = pid else { return Ok(()) };
    let usage = |text: String| Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text);
    if family_of(pid).is_empty() {
        return Err(usage(format!("no process {pid} on this host; --pid takes the number of a running process")));
    }
    if is_in_other_network(pid) {
        let text = format!(
            "process {pid} is in another network namespace, whose connections are not visible here; run: nsenter -t \
             {pid} -n sterna doctor watch"
        );
        return Err(usage(text));
    }
    Ok(())
}

fn host_limits() -> Result<HostLimits, Error> {
    let (kernel, facts) = (own_kernel::version()?, host_facts());
    let defaults = Buffers::default_of(kernel);
    // The last of three numbers. A kernel that does not show them has its defaults.
    let max = |name: &str| facts.settings.get(name)?.split(' ').next_back()?.parse().ok().map(ByteCount);
    let buffers = Buffers {
        receive_max: max("ipv4.tcp_rmem").unwrap_or(defaults.receive_max),
        send_max: max("ipv4.tcp_wmem").unwrap_or(defaults.send_max),
    };
    Ok(HostLimits { kernel, buffers })
}

/// End of the observation by SIGTERM or SIGINT.
struct Stop {
    /// Closed at the signal.
    stopped: Receiver<()>,
    _at_stop: OnCancel,
}

impl Stop {
    fn at_signal() -> Result<Self, Error> {
        let (sender, stopped) = channel();
        let cancel = Cancel::default();
        let at_stop = cancel.on_cancel(move || drop(sender));
        cancel_at_signal(&cancel).map_err(|e| {
            Error::new(ErrorKind::Internal, Scope::Client, Phase::Prepare, "listen for signals").caused_by(e)
        })?;
        Ok(Self { stopped, _at_stop: at_stop })
    }

    /// Waits for `time`. Returns true if a signal came.
    fn is_over_within(&self, time: Duration) -> bool {
        self.stopped.recv_timeout(time) != Err(RecvTimeoutError::Timeout)
    }
}

/// Processes by their sockets.
struct Owners {
    pid: Option<u32>,
    by_inode: BTreeMap<u64, Process>,
    read_at: Option<Instant>,
    unknown: BTreeSet<u64>,
}

impl Owners {
    fn new(pid: Option<u32>) -> Self {
        Self { pid, by_inode: BTreeMap::new(), read_at: None, unknown: BTreeSet::new() }
    }

    /// Reads the processes, at most once per interval.
    fn refresh(&mut self, now: Instant) {
        if self.read_at.is_some_and(|at| now.saturating_duration_since(at) < INTERVAL) {
            return;
        }
        self.read_at = Some(now);
        self.by_inode = sockets_of(self.pid.map(family_of).as_ref());
    }

    /// Reads the processes if a row has a socket that was not seen before. Sockets of processes that may not be
    /// inspected stay unknown.
    fn learn(&mut self, now: Instant, rows: &[Row]) {
        let is_new = |row: &&Row| !self.by_inode.contains_key(&row.inode) && !self.unknown.contains(&row.inode);
        let new: Vec<u64> = rows.iter().filter(is_new).map(|row| row.inode).collect();
        if !new.is_empty() {
            self.refresh(now);
            self.unknown = rows.iter().map(|row| row.inode).filter(|one| !self.by_inode.contains_key(one)).collect();
        }
    }
}

/// Output of the observation.
enum Screen {
    Json,
    Lines,
    Table(ProgressBar),
}

impl Screen {
    fn new(json: bool) -> Self {
        if json {
            return Self::Json;
        }
        if !std::io::stdout().is_terminal() {
            return Self::Lines;
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stdout());
        bar.set_style(style("{msg}"));
        Self::Table(bar)
    }

    fn show(&self, rows: &[Row], owners: &BTreeMap<u64, Process>, at: Duration) -> Result<(), Error> {
        match self {
            Self::Json => rows.iter().try_for_each(|row| {
                let owner = owners.get(&row.inode);
                let (pid, process) = (owner.map(|one| one.pid), owner.map(|one| one.name.as_str()));
                let at_s = seconds(at);
                print_line(json_of(&Line { event: "connection", at_s, row, pid, process })?.as_bytes())
            }),
            Self::Lines => rows.iter().try_for_each(|row| {
                let line = format!("{:>4} s  {}", at.as_secs(), cells(row, owners).join("  "));
                print_line(sterna_proto::file::plain(&line).as_bytes())
            }),
            Self::Table(bar) => {
                bar.set_message(table(rows, owners, at));
                Ok(())
            }
        }
    }

    fn end(&self, paths: &[PathSummary], time: Duration, rate_min: BitRate) -> Result<(), Error> {
        match self {
            Self::Json => return print_line(json_of(&summary_of(paths, time))?.as_bytes()),
            Self::Lines => {}
            // The last table stays above the summary.
            Self::Table(bar) => bar.abandon(),
        }
        summary_lines(paths, time, rate_min).iter().try_for_each(|line| print_line(line.as_bytes()))
    }
}

fn summary_of(paths: &[PathSummary], time: Duration) -> Summary<'_> {
    let verdicts = paths.iter().flat_map(PathVerdict::of_path).collect();
    Summary { event: "summary", time_s: seconds(time), paths, verdicts }
}

/// Returns seconds, rounded to thousandths.
fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}

const HEAD: [&str; 8] = ["PROGRAM", "CONNECTION", "RATE", "RTT (MIN)", "IN FLIGHT", "WINDOW", "RESENT", "LIMITED BY"];

fn table(rows: &[Row], owners: &BTreeMap<u64, Process>, at: Duration) -> String {
    let mut table = Table::new(&HEAD, 2..7);
    rows.iter().take(ROWS_SHOWN_MAX).for_each(|row| table.add(cells(row, owners).to_vec()));
    let more = rows.len().saturating_sub(ROWS_SHOWN_MAX);
    let rest = if more > 0 { format!("\nand {more} more") } else { String::new() };
    format!("{}{rest}\n{} s; Ctrl-C ends with the verdicts", table.text(), at.as_secs())
}

/// Returns the cells of a connection, in the order of [`HEAD`].
fn cells(row: &Row, owners: &BTreeMap<u64, Process>) -> [String; 8] {
    let micros = |micros: u64| readable_time(Duration::from_micros(micros));
    let owner = owners.get(&row.inode).map_or("-".to_owned(), |one| format!("{}({})", one.name, one.pid));
    let (arrow, window) = match row.direction {
        Direction::Out => ('>', row.congestion_window_bytes.min(row.peer_window_bytes)),
        Direction::In => ('<', row.own_window_bytes),
    };
    [
        owner,
        format!("{} {arrow} {}", row.local, row.remote),
        BitRate(row.rate_bps).to_string(),
        format!("{} ({})", micros(row.rtt_us), micros(row.rtt_min_us)),
        ByteCount(row.in_flight_bytes).to_string(),
        ByteCount(window).to_string(),
        format!("{:.1} %", row.retransmitted * 100.0),
        limits(&row.limits),
    ]
}

/// Smallest share of a limit in the text, and the most limits in it. Reason: as in the last line of a copy.
const SHARE_SHOWN_MIN: f64 = 0.05;
const LIMITS_SHOWN_MAX: usize = 3;

fn limits(shares: &[Share]) -> String {
    let shown = shares.iter().filter(|share| share.share >= SHARE_SHOWN_MIN).take(LIMITS_SHOWN_MAX);
    let words: Vec<String> =
        shown.map(|share| format!("{} {:.0} %", share.limit.words(), share.share * 100.0)).collect();
    if words.is_empty() { "-".to_owned() } else { words.join(", ") }
}

fn summary_lines(paths: &[PathSummary], time: Duration, rate_min: BitRate) -> Vec<String> {
    if paths.is_empty() {
        let text = format!(
            "no connection carried {rate_min} for a second within {}; --rate-min takes less",
            readable_time(time)
        );
        return vec![text];
    }
    let mut lines = Vec::new();
    for path in paths.iter().take(PATHS_SHOWN_MAX) {
        let way = if path.direction == Direction::Out { "to" } else { "from" };
        let plural = if path.connections == 1 { "" } else { "s" };
        lines.push(String::new());
        lines.push(format!(
            "{way} {}: {} at {} over {} connection{plural}, RTT {}; limited by {}",
            path.remote,
            ByteCount(path.bytes),
            BitRate(path.rate_bps),
            path.connections,
            readable_time(Duration::from_micros(path.rtt_min_us)),
            limits(&path.limits)
        ));
        for verdict in &path.verdicts {
            lines.push(format!("  {} ({:.0} % of the time)", verdict.limit.words(), verdict.share * 100.0));
            lines.extend(verdict.evidence.iter().map(|evidence| format!("    because: {evidence}")));
            lines.push(format!("    do: {}", verdict.remedy));
            let predicted = verdict.predicted_bps.map(|rate| format!("    then: about {}", BitRate(rate)));
            lines.extend(predicted);
        }
    }
    if paths.len() > PATHS_SHOWN_MAX {
        lines.push(format!("and {} more paths: --json has them all", paths.len() - PATHS_SHOWN_MAX));
    }
    lines
}
