//! JSON of a copy: the types of everything that a copy reports to other programs.
//!
//! Names and units of the fields are API and described in `docs/json.md`: sizes in bytes, rates in bit/s (`_bps`),
//! times in seconds (`_s`), shares from 0 to 1. Fields and events may be added; none is renamed or removed.
//! `sterna copy --json` prints the [`Event`]s of a copy, `--log` its [`LogLine`]s, each with [`line`].
//!
//! These types are not those of [`crate::engine`], because those change with the code. They are part of the library, so
//! that every program which runs copies reports them alike. Texts contain no flag: an [`ErrorReport`] names settings
//! and [`Limits`] have advice as values. A user interface adds its own words with [`Event::error_mut`] and
//! [`Event::limits_mut`].

mod limits;
mod plan;
mod sample;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;
use sterna_proto::file::drives_terminal;
use sterna_proto::session::{FileOutcome, PathNumber};
use sterna_proto::{
    BitRate, ByteCount, Error, ErrorKind, FileDigests, FileEntry, Phase, Retry, SaidBy, Scope, Setting,
};

pub use self::limits::{LimitFacts, Limits, Shares, shares};
pub use self::plan::{PlannedPath, TransferPlan, Unreached};
pub use self::sample::{LaneReport, LaneTransport, LogLine, QuicLane, Sample, SessionHead, TcpLane, WireTotals};

use crate::engine::{CopyEvent, CopyProgress, CopySpec, CopySummary};
use crate::lane::{LaneStats, Transport};
use crate::session::SessionEvent;

/// One line of `sterna copy --json`.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// Decision of Sterna.
    Decision {
        /// Subject: `transport`, `lanes`, `congestion`, `compression` or `agent`.
        subject: &'static str,
        /// Reason.
        rationale: String,
    },
    /// The agent has accepted a lane.
    LaneUp {
        /// Number of the lane.
        lane: u32,
        /// Number of its path, from 1.
        path: u32,
        /// Its transport.
        transport: Transport,
        /// Address of the agent.
        peer: SocketAddr,
    },
    /// A lane is down.
    LaneDown {
        /// Number of the lane.
        lane: u32,
        /// Reason.
        reason: String,
    },
    /// The agent lost the session; a new session continues.
    Restarted,
    /// Message for the user.
    Notice {
        /// The message.
        text: String,
    },
    /// Part of the sources cannot be read.
    Unreadable {
        /// Reason.
        error: ErrorReport,
    },
    /// A source has arrived and could not be deleted or moved.
    SourceLeft {
        /// Reason.
        error: ErrorReport,
    },
    /// A file or directory has ended.
    File(FileReport),
    /// Snapshot, once a second.
    Progress(Progress),
    /// Last line of a copy that has ended.
    Summary(Box<Summary>),
    /// Last line of a dry run.
    #[serde(rename = "summary")]
    DryRunSummary(DryRunSummary),
    /// Last line of a copy that failed as a whole.
    Error {
        /// Reason.
        error: ErrorReport,
        /// Exit code of `sterna copy` for this failure.
        exit_code: u8,
    },
}

impl Event {
    /// Returns the last line of a copy that failed as a whole.
    pub fn failure(error: &Error) -> Self {
        Self::Error { error: error.into(), exit_code: error.exit_code() }
    }

    /// Returns the limits of a summary: a user interface can add its words for the advice to the remedies.
    pub fn limits_mut(&mut self) -> Option<&mut Limits> {
        match self {
            Self::Summary(summary) => Some(&mut summary.limits),
            _ => None,
        }
    }

    /// Returns the error of the event, if it has one: a user interface can add words of its own to the text.
    pub fn error_mut(&mut self) -> Option<&mut ErrorReport> {
        match self {
            Self::Unreadable { error } | Self::SourceLeft { error } | Self::Error { error, .. } => Some(error),
            Self::File(FileReport { outcome: Outcome::Failed { error }, .. }) => Some(error),
            _ => None,
        }
    }
}

/// Result of one file or directory.
#[derive(Clone, Debug, Serialize)]
pub struct FileReport {
    /// File path beneath the destination; bytes that are not UTF-8 are replaced.
    pub path: String,
    /// Size in bytes; 0 for a directory.
    pub size: u64,
    /// Outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Outcome of one file or directory.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// Copied.
    Copied {
        /// Digests in hexadecimal, by algorithm; `blake3` is always present.
        digests: BTreeMap<&'static str, String>,
    },
    /// Present at the destination before the copy.
    UpToDate,
    /// Not copied.
    Failed {
        /// Reason.
        error: ErrorReport,
    },
    /// A run without `--dry-run` would copy it.
    WouldCopy,
}

/// Failure of a file, a source or a copy.
#[derive(Clone, Debug, Serialize)]
pub struct ErrorReport {
    /// Kind of the failure.
    pub kind: ErrorKind,
    /// End of the transfer that it belongs to.
    pub scope: Scope,
    /// Phase of the transfer.
    pub phase: Phase,
    /// Use of another attempt.
    pub retry: Retry,
    /// Agent that reported the failure, as `host:port`, or `peer` if its name is not recorded; `None`: this process.
    pub said_by: Option<String>,
    /// Error number of the operating system (errno) of this host.
    pub os_code: Option<i32>,
    /// Message with its causes.
    pub text: String,
    /// Settings that the user can change to avoid the failure.
    pub settings: Vec<Setting>,
}

impl From<&Error> for ErrorReport {
    fn from(error: &Error) -> Self {
        Self {
            kind: error.kind,
            scope: error.scope,
            phase: error.phase,
            retry: error.retry,
            said_by: match &error.said_by {
                SaidBy::Us => None,
                SaidBy::Peer => Some("peer".to_owned()),
                SaidBy::Host(peer) => Some(peer.to_string()),
            },
            os_code: error.os_code(),
            text: error.chain(),
            settings: error.settings().to_vec(),
        }
    }
}

/// Snapshot of a copy.
#[derive(Clone, Debug, Serialize)]
pub struct Progress {
    /// Time since the start.
    pub elapsed_s: f64,
    /// Bytes of the files listed until now.
    pub bytes_known: u64,
    /// Files listed until now.
    pub files_known: u64,
    /// True when all files are listed.
    pub manifest_complete: bool,
    /// Live lanes.
    pub lanes: usize,
    /// Transferred data; `None` in a dry run, which transfers none.
    #[serde(flatten)]
    pub transfer: Option<TransferProgress>,
}

/// Data that a copy has transferred until now.
#[derive(Clone, Debug, Serialize)]
pub struct TransferProgress {
    /// Bytes that are present at the receiver.
    pub bytes_done: u64,
    /// Part of them that this run did not bring: from earlier runs, or of files that were up to date.
    pub bytes_held: u64,
    /// Part of them that are holes; no lane carries these.
    pub bytes_holes: u64,
    /// Mean goodput since the start.
    pub goodput_bps: u64,
    /// File bytes that lanes carried, with blocks that were sent again.
    pub bytes_carried: u64,
    /// Their size on the lanes, after compression.
    pub bytes_encoded: u64,
    /// Mean RTT of the lanes.
    pub rtt_s: Option<f64>,
    /// Share of the sent packets that were lost.
    pub loss: Option<f64>,
    /// Blocks that were sent again.
    pub blocks_again: u64,
    /// Shares of the limits in the last 5 s.
    pub limits: Shares,
}

/// Result of a copy.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Files and directories that were copied.
    pub copied: u64,
    /// Files and directories that were up to date.
    pub up_to_date: u64,
    /// Files, directories and sources that failed.
    pub failed: u64,
    /// Bytes of the copied files; a resumed file counts in full.
    pub bytes: u64,
    /// Bytes of the files that were up to date; no other field counts them.
    pub bytes_up_to_date: u64,
    /// Time from the start to the last outcome.
    pub elapsed_s: f64,
    /// Part of `bytes` that earlier runs brought.
    pub bytes_held: u64,
    /// Part of `bytes` that are holes; no lane carries these.
    pub bytes_holes: u64,
    /// Mean goodput.
    pub goodput_bps: u64,
    /// File bytes that lanes carried, with blocks that were sent again.
    pub bytes_carried: u64,
    /// Their size on the lanes, after compression.
    pub bytes_encoded: u64,
    /// Blocks that were sent again.
    pub blocks_again: u64,
    /// Limits of the whole copy.
    pub limits: Limits,
    /// Replicas, in the order of the sources; absent without replicas.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<Replica>,
}

/// Part that one replica had in a copy.
#[derive(Clone, Debug, Serialize)]
pub struct Replica {
    /// Source, as it was given.
    pub source: String,
    /// Bytes of the file that came from it.
    pub bytes: u64,
    /// Reason why it was not used to the end.
    pub dropped: Option<String>,
}

/// Expected result of a copy.
#[derive(Clone, Debug, Serialize)]
pub struct DryRunSummary {
    /// Files and directories that would be copied.
    pub would_copy: u64,
    /// Files and directories that are up to date.
    pub up_to_date: u64,
    /// Files, directories and sources that failed.
    pub failed: u64,
    /// Bytes of the files that would be copied.
    pub bytes: u64,
    /// Bytes of the files that are up to date.
    pub bytes_up_to_date: u64,
    /// Paths, blocks, memory and expected time.
    pub plan: TransferPlan,
}

/// Converts the reports of one copy.
#[derive(Clone, Copy, Debug)]
pub struct Reporter {
    is_dry_run: bool,
}

impl Reporter {
    /// Creates the reporter of a copy.
    pub fn new(spec: &CopySpec) -> Self {
        Self { is_dry_run: spec.dry_run }
    }

    /// Converts an event. Returns `None` for the error that ends a session: [`Event::failure`] reports it.
    pub fn event(&self, event: &CopyEvent) -> Option<Event> {
        Some(match event {
            CopyEvent::Decision { subject, rationale }
            | CopyEvent::Session(SessionEvent::Decision { subject, rationale }) => {
                Event::Decision { subject, rationale: rationale.clone() }
            }
            CopyEvent::LaneUp { lane, path, transport, peer } => {
                Event::LaneUp { lane: *lane, path: number_of(*path), transport: *transport, peer: *peer }
            }
            CopyEvent::LaneDown { lane, reason, .. } => Event::LaneDown { lane: *lane, reason: reason.clone() },
            CopyEvent::Restarted => Event::Restarted,
            CopyEvent::Session(SessionEvent::Notice(text)) => Event::Notice { text: text.clone() },
            CopyEvent::Session(SessionEvent::Unreadable(error)) => Event::Unreadable { error: error.into() },
            CopyEvent::Session(SessionEvent::Left(error)) => Event::SourceLeft { error: error.into() },
            CopyEvent::Session(SessionEvent::Settled { entry, outcome }) => Event::File(self.file(entry, outcome)),
            CopyEvent::Session(SessionEvent::Aborted(_)) => return None,
        })
    }

    fn file(&self, entry: &FileEntry, outcome: &FileOutcome) -> FileReport {
        let outcome = match outcome {
            FileOutcome::Done(_) if self.is_dry_run => Outcome::WouldCopy,
            FileOutcome::Done(digests) => Outcome::Copied { digests: digests_by_name(digests) },
            FileOutcome::Skipped => Outcome::UpToDate,
            FileOutcome::Failed(error) => Outcome::Failed { error: error.into() },
        };
        FileReport { path: String::from_utf8_lossy(entry.path.as_bytes()).into_owned(), size: entry.size, outcome }
    }

    /// Converts a snapshot.
    pub fn progress(&self, progress: &CopyProgress) -> Event {
        let counters = &progress.session.counters;
        let transfer = || TransferProgress {
            bytes_done: counters.bytes_done,
            bytes_held: counters.bytes_held + counters.bytes_up_to_date,
            bytes_holes: counters.bytes_holes,
            goodput_bps: BitRate::mean(ByteCount(counters.bytes_brought()), progress.elapsed).0,
            bytes_carried: counters.bytes_carried,
            bytes_encoded: counters.bytes_encoded,
            rtt_s: mean_rtt(&progress.lanes).map(|rtt| rtt.as_secs_f64()),
            loss: loss(&progress.lanes),
            blocks_again: counters.blocks_again,
            limits: shares(&progress.limits.report.recent),
        };
        Event::Progress(Progress {
            elapsed_s: progress.elapsed.as_secs_f64(),
            bytes_known: counters.bytes_known,
            files_known: counters.files_known,
            manifest_complete: progress.session.manifest_complete,
            lanes: progress.session.lanes,
            transfer: (!self.is_dry_run).then(transfer),
        })
    }

    /// Converts the summary of a copy that has ended.
    pub fn summary(&self, summary: &CopySummary) -> Event {
        if self.is_dry_run {
            return Event::DryRunSummary(DryRunSummary {
                would_copy: summary.done,
                up_to_date: summary.skipped,
                failed: summary.failed,
                bytes: summary.bytes,
                bytes_up_to_date: summary.bytes_skipped,
                plan: summary.into(),
            });
        }
        let replicas = summary.replicas.iter().map(|replica| Replica {
            source: replica.source.clone(),
            bytes: replica.bytes,
            dropped: replica.dropped.clone(),
        });
        Event::Summary(Box::new(Summary {
            copied: summary.done,
            up_to_date: summary.skipped,
            failed: summary.failed,
            bytes: summary.bytes,
            bytes_up_to_date: summary.bytes_skipped,
            elapsed_s: summary.elapsed.as_secs_f64(),
            bytes_held: summary.counters.bytes_held,
            bytes_holes: summary.counters.bytes_holes,
            goodput_bps: summary.goodput().0,
            bytes_carried: summary.counters.bytes_carried,
            bytes_encoded: summary.counters.bytes_encoded,
            blocks_again: summary.counters.blocks_again,
            limits: (&summary.limits).into(),
            replicas: replicas.collect(),
        }))
    }
}

/// Returns a measured time in seconds; `None` for zero, which stands for a measurement that is missing.
fn measured(time: Duration) -> Option<f64> {
    (!time.is_zero()).then_some(time.as_secs_f64())
}

/// Returns the number of a path for users, from 1.
fn number_of(path: PathNumber) -> u32 {
    u32::from(path.0) + 1
}

fn digests_by_name(digests: &FileDigests) -> BTreeMap<&'static str, String> {
    digests.iter().map(|digest| (digest.algorithm().name(), digest.hex())).collect()
}

/// Returns the mean RTT of the lanes; `None` without a measurement.
pub fn mean_rtt(lanes: &[LaneStats]) -> Option<Duration> {
    let rtts: Vec<Duration> = lanes.iter().map(|lane| lane.rtt).filter(|rtt| !rtt.is_zero()).collect();
    (!rtts.is_empty()).then(|| rtts.iter().sum::<Duration>() / rtts.len() as u32)
}

/// Returns the share of the sent packets that were lost, from 0 to 1; `None` before the first packet.
pub fn loss(lanes: &[LaneStats]) -> Option<f64> {
    let sent: u64 = lanes.iter().map(|lane| lane.packets_sent).sum();
    let lost: u64 = lanes.iter().map(|lane| lane.packets_lost).sum();
    (sent > 0).then(|| lost as f64 / sent as f64)
}

/// Encodes a report as one line of JSON without a line end.
///
/// Keys are in alphabetical order, so that moving a field in the code changes no line. Characters that control a
/// terminal are JSON escapes, because names and texts of peers end up on terminals.
pub fn line(report: &impl Serialize) -> String {
    // The types of this module have string keys and no fallible conversion, so encoding does not fail.
    let plain = serde_json::to_value(report).unwrap().to_string();
    let mut line = String::with_capacity(plain.len());
    for c in plain.chars() {
        match drives_terminal(c) {
            true => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| line.push_str(&format!("\\u{unit:04x}"))),
            false => line.push(c),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_was_not_measured_is_null() {
        let facts = sterna_proto::limit::Facts::default();
        assert_eq!(serde_json::to_value(LimitFacts::from(&facts)).unwrap()["rtt_s"], serde_json::Value::Null);
        assert_eq!(measured(Duration::from_millis(8)), Some(0.008));
    }

    #[test]
    fn a_line_holds_nothing_that_drives_a_terminal_and_reads_back_as_it_was() {
        let name = "a\u{85}b\u{9b}31m\u{202e}c\u{2066}\u{7f}d\u{200f}e\u{61c}f\ng\u{1b}[2J é";
        let line = line(&Event::Notice { text: name.to_owned() });
        assert!(!line.chars().any(drives_terminal) && line.contains(r"\u202e") && line.contains('é'), "{line}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line).unwrap()["text"], name);
    }
}
