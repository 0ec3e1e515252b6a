//! Reports of the active agent to the command, and their encoding.

use crate::session::values::{read_digests, read_flag, read_many, read_text, write_digests};
use std::time::Duration;

use crate::counters::Counters;
use crate::error::Error;
use crate::file::{FILE_BYTES_MAX, FileEntry, RelPath};
use crate::limit::{LimitReport, read_time, write_time};
use crate::plan::{LANES_MAX, Via};

use crate::session::{ActiveFile, FileOutcome};
use crate::wire::{OPTIONAL_FROM, Reader, Writer};

/// Maximum number of lanes in a snapshot: as many as a session has.
const LANES_SHOWN_MAX: usize = LANES_MAX as usize;

/// Maximum number of files in a snapshot. Reason: more lines than a user follows.
const FILES_SHOWN_MAX: usize = 16;

/// Subject of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Transport: TCP or QUIC.
    Transport,
    /// Number of lanes.
    Lanes,
    /// Congestion control of a TCP lane.
    Congestion,
    /// Compression of blocks and its method.
    Compression,
    /// Agent that runs the copy.
    Agent,
}

impl Subject {
    /// All subjects; the code on the wire is the position, from 1.
    const ALL: [Self; 5] = [Self::Transport, Self::Lanes, Self::Congestion, Self::Compression, Self::Agent];

    /// Returns the name in JSON. It must never change.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Transport => "transport",
            Self::Lanes => "lanes",
            Self::Congestion => "congestion",
            Self::Compression => "compression",
            Self::Agent => "agent",
        }
    }

    /// Returns the subject with this name.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|subject| subject.name() == name)
    }
}

/// Event of the session between the two agents.
#[derive(Debug)]
pub enum AgentReport {
    /// A decision, with its reason.
    Decision {
        /// Subject of the decision.
        subject: Subject,
        /// Reason for the decision.
        rationale: String,
    },
    /// A lane to the passive agent is up.
    LaneUp {
        /// Number of the lane.
        lane: u32,
        /// Transport of the lane.
        via: Via,
        /// Address of the passive agent.
        peer: PeerAddress,
    },
    /// A lane is down.
    LaneDown {
        /// Number of the lane.
        lane: u32,
        /// Reason for the loss.
        reason: String,
        /// True if the lane is dialled again.
        again: bool,
    },
    /// A file has its outcome.
    Settled {
        /// Entry of the file.
        entry: FileEntry,
        /// Outcome of the file.
        outcome: FileOutcome,
    },
    /// A notice for the user.
    Notice(String),
    /// A source, or a file in a source, could not be read.
    Unreadable(Error),
    /// The passive agent was restarted; a new session continues the copy.
    Restarted,
}

impl AgentReport {
    pub(in crate::session) fn write(&self, w: &mut Writer) {
        match self {
            Self::Decision { subject, rationale } => {
                w.byte(1);
                // `ALL` has five entries, so the index fits.
                w.byte(Subject::ALL.iter().position(|other| other == subject).map_or(0, |index| index as u8 + 1));
                w.bytes(rationale.as_bytes());
            }
            Self::LaneUp { lane, via, peer } => {
                w.byte(2);
                w.integer(u64::from(*lane));
                w.byte(u8::from(*via == Via::Quic));
                peer.write(w);
            }
            Self::LaneDown { lane, reason, again } => {
                w.byte(3);
                w.integer(u64::from(*lane));
                w.bytes(reason.as_bytes());
                w.byte(u8::from(*again));
            }
            Self::Settled { entry, outcome } => {
                w.byte(4);
                w.entry(entry);
                match outcome {
                    FileOutcome::Done(digests) => {
                        w.byte(1);
                        write_digests(w, digests);
                    }
                    FileOutcome::Skipped => w.byte(2),
                    FileOutcome::Failed(error) => {
                        w.byte(3);
                        w.error(error);
                    }
                }
            }
            Self::Notice(text) => {
                w.byte(5);
                w.bytes(text.as_bytes());
            }
            Self::Unreadable(error) => {
                w.byte(6);
                w.error(error);
            }
            Self::Restarted => w.byte(7),
        }
    }

    /// Reads an event. Returns `None`, and skips the event, if its number or its subject is an unknown optional one.
    pub(in crate::session) fn read(r: &mut Reader<'_>) -> Result<Option<Self>, Error> {
        Ok(Some(match r.byte()? {
            1 => {
                let code = r.byte()?;
                let Some(subject) = Subject::ALL.get(usize::from(code).wrapping_sub(1)) else {
                    return skipped(r, "subject", code);
                };
                Self::Decision { subject: *subject, rationale: read_text(r)? }
            }
            2 => Self::LaneUp {
                lane: read_lane(r)?,
                via: if read_flag(r)? { Via::Quic } else { Via::Tcp },
                peer: PeerAddress::read(r)?,
            },
            3 => Self::LaneDown { lane: read_lane(r)?, reason: read_text(r)?, again: read_flag(r)? },
            4 => Self::Settled {
                entry: r.entry()?,
                outcome: match r.byte()? {
                    1 => FileOutcome::Done(read_digests(r)?),
                    2 => FileOutcome::Skipped,
                    3 => FileOutcome::Failed(r.error()?),
                    code => return Err(unknown("outcome", code)),
                },
            },
            5 => Self::Notice(read_text(r)?),
            6 => Self::Unreadable(r.error()?),
            7 => Self::Restarted,
            code => return skipped(r, "event", code),
        }))
    }
}

/// Skips the rest of an event with an unknown optional number. Errors: the number is mandatory.
fn skipped(r: &mut Reader<'_>, what: &str, code: u8) -> Result<Option<AgentReport>, Error> {
    r.rest();
    if code >= OPTIONAL_FROM { Ok(None) } else { Err(unknown(what, code)) }
}

fn unknown(what: &str, code: u8) -> Error {
    Error::protocol(format!("news of a third-party copy from the peer: unknown {what} {code}"))
}

fn read_lane(r: &mut Reader<'_>) -> Result<u32, Error> {
    r.integer_up_to(u64::from(u32::MAX)).map(|lane| lane as u32)
}

/// Address as a plain value; it opens no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    /// IP address.
    pub ip: IpBytes,
    /// TCP or UDP port.
    pub port: u16,
}

/// IP address in network byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpBytes {
    /// IPv4.
    V4([u8; 4]),
    /// IPv6.
    V6([u8; 16]),
}

impl PeerAddress {
    fn write(self, w: &mut Writer) {
        match &self.ip {
            IpBytes::V4(ip) => w.bytes(ip),
            IpBytes::V6(ip) => w.bytes(ip),
        }
        w.integer(u64::from(self.port));
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        let bytes = r.bytes()?;
        let ip = match (bytes.try_into(), bytes.try_into()) {
            (Ok(v4), _) => IpBytes::V4(v4),
            (_, Ok(v6)) => IpBytes::V6(v6),
            _ => return Err(Error::protocol("address from the peer: neither 4 nor 16 bytes")),
        };
        Ok(Self { ip, port: r.integer_up_to(u64::from(u16::MAX))? as u16 })
    }
}

/// Path statistics of a lane of the active agent. Times, packets and bytes count from the start of the lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneFigures {
    /// Smoothed round-trip time; zero while unknown.
    pub rtt: Duration,
    /// Smallest round-trip time; zero while unknown.
    pub rtt_min: Duration,
    /// Packets sent.
    pub packets_sent: u64,
    /// Sent packets that were lost.
    pub packets_lost: u64,
    /// Bytes that the active agent sent on the wire.
    pub wire_bytes_sent: u64,
    /// Bytes that the active agent received on the wire.
    pub wire_bytes_received: u64,
}

/// Writes [`Counters`].
fn write_counters(counters: &Counters, w: &mut Writer) {
    let Counters { files_known, bytes_known, bytes_done, bytes_held, bytes_up_to_date, .. } = *counters;
    let Counters { bytes_holes, bytes_carried, bytes_encoded, blocks_again, .. } = *counters;
    for count in [files_known, bytes_known, bytes_done, bytes_held, bytes_up_to_date] {
        w.integer(count);
    }
    for count in [bytes_holes, bytes_carried, bytes_encoded, blocks_again] {
        w.integer(count);
    }
}

/// Reads [`Counters`].
fn read_counters(r: &mut Reader<'_>) -> Result<Counters, Error> {
    // The limit keeps the sum of two counters far below the largest integer.
    let mut count = || r.integer_up_to(FILE_BYTES_MAX);
    Ok(Counters {
        files_known: count()?,
        bytes_known: count()?,
        bytes_done: count()?,
        bytes_held: count()?,
        bytes_up_to_date: count()?,
        bytes_holes: count()?,
        bytes_carried: count()?,
        bytes_encoded: count()?,
        blocks_again: count()?,
    })
}

/// Progress of a third-party copy. Each snapshot is complete in itself, so a lost one costs nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Counters of the copy.
    pub counters: Counters,
    /// True if the manifest is complete.
    pub manifest_complete: bool,
    /// Number of lanes that the passive agent has welcomed.
    pub lanes_up: u64,
    /// Statistics of each lane, at most [`LANES_MAX`].
    pub lanes: Vec<LaneFigures>,
    /// Large files in progress, the first few.
    pub files: Vec<ActiveFile>,
    /// Limits of the copy.
    pub limits: LimitReport,
}

impl Snapshot {
    pub(in crate::session) fn write(&self, w: &mut Writer) {
        write_counters(&self.counters, w);
        w.byte(u8::from(self.manifest_complete));
        w.integer(self.lanes_up);
        let lanes = &self.lanes[..self.lanes.len().min(LANES_SHOWN_MAX)];
        w.integer(lanes.len() as u64);
        for lane in lanes {
            write_time(w, lane.rtt);
            write_time(w, lane.rtt_min);
            let counts = [lane.packets_sent, lane.packets_lost, lane.wire_bytes_sent, lane.wire_bytes_received];
            counts.iter().for_each(|count| w.integer(*count));
        }
        let files = &self.files[..self.files.len().min(FILES_SHOWN_MAX)];
        w.integer(files.len() as u64);
        for file in files {
            w.bytes(file.path.as_bytes());
            w.integer(file.size);
            w.integer(file.done);
        }
        self.limits.write(w);
    }

    pub(in crate::session) fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Self {
            counters: read_counters(r)?,
            manifest_complete: read_flag(r)?,
            lanes_up: r.integer_up_to(u64::from(u32::MAX))?,
            lanes: read_many(r, LANES_SHOWN_MAX, read_lane_figures)?,
            files: read_many(r, FILES_SHOWN_MAX, |r| {
                let path = RelPath::new(r.bytes()?).map_err(|e| Error::protocol(e.text()))?;
                Ok(ActiveFile { path, size: r.integer_up_to(FILE_BYTES_MAX)?, done: r.integer_up_to(FILE_BYTES_MAX)? })
            })?,
            limits: LimitReport::read(r)?,
        })
    }
}

fn read_lane_figures(r: &mut Reader<'_>) -> Result<LaneFigures, Error> {
    let (rtt, rtt_min) = (read_time(r)?, read_time(r)?);
    let mut count = || r.integer_up_to(FILE_BYTES_MAX);
    let (packets_sent, packets_lost) = (count()?, count()?);
    Ok(LaneFigures {
        rtt,
        rtt_min,
        packets_sent,
        packets_lost,
        wire_bytes_sent: count()?,
        wire_bytes_received: count()?,
    })
}

/// Result of a third-party copy, as counted by the active agent.
#[derive(Debug, Default)]
pub struct Conclusion {
    /// Number of files that were copied.
    pub done: u64,
    /// Number of files that were up to date.
    pub skipped: u64,
    /// Number of files, directories and sources that failed.
    pub failed: u64,
    /// Bytes of the files that were copied.
    pub bytes: u64,
    /// Bytes of the files that were up to date.
    pub bytes_skipped: u64,
    /// Cause of the first failure.
    pub first_failure: Option<Error>,
    /// Counters over all sessions of the copy.
    pub counters: Counters,
    /// Limits of the copy.
    pub limits: LimitReport,
}

impl Conclusion {
    pub(in crate::session) fn write(&self, w: &mut Writer) {
        for count in [self.done, self.skipped, self.failed, self.bytes, self.bytes_skipped] {
            w.integer(count);
        }
        w.byte(u8::from(self.first_failure.is_some()));
        self.first_failure.iter().for_each(|error| w.error(error));
        write_counters(&self.counters, w);
        self.limits.write(w);
    }

    pub(in crate::session) fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        let mut count = || r.integer_up_to(FILE_BYTES_MAX);
        let (done, skipped, failed, bytes, bytes_skipped) = (count()?, count()?, count()?, count()?, count()?);
        let first_failure = read_flag(r)?.then(|| r.error()).transpose()?;
        let (counters, limits) = (read_counters(r)?, LimitReport::read(r)?);
        Ok(Self { done, skipped, failed, bytes, bytes_skipped, first_failure, counters, limits })
    }
}
