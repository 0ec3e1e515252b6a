//! Numbers of an examination as its entry keeps them. The evidence is in the bundle beside the entries.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::moment::EntryTime;
use crate::bundle::Proof;
use crate::evidence::Direction;
use crate::report::{Report, text};
use crate::verdict::{Cause, Verdict};

/// Maximum length of the name of an examination, bytes: a time and a number.
const RUN_ID_BYTES_MAX: usize = 24;

/// Maximum length of a fix in an entry, bytes. Reason: a report shows it in one line; the bundle has all of it.
const REMEDY_BYTES_MAX: usize = 400;

/// Name of an examination in its case, and of its bundle: the time of its start, such as `20261125T221200Z`, and a
/// number if another one has that name.
///
/// Only digits, `T`, `Z` and `-`, so that no name leaves the directory of the bundles.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct RunId(String);

impl RunId {
    /// Returns the name for a start; `number` from 1 tells examinations of one second apart.
    pub fn new(started: EntryTime, number: usize) -> Self {
        match number {
            0 | 1 => Self(started.compact()),
            number => Self(format!("{}-{number}", started.compact())),
        }
    }

    /// Returns the name of the file, in the directory of the bundles.
    pub fn file_name(&self) -> String {
        format!("{}.json", self.0)
    }

    /// Reads the name of a file; `None`: it is no bundle of a case.
    pub fn of_file_name(name: &str) -> Option<Self> {
        name.strip_suffix(".json")?.parse().ok()
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl From<RunId> for String {
    fn from(id: RunId) -> Self {
        id.0
    }
}

impl TryFrom<String> for RunId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let is_valid = |c: char| c.is_ascii_digit() || matches!(c, 'T' | 'Z' | '-');
        match text.starts_with(|c: char| c.is_ascii_digit())
            && text.len() <= RUN_ID_BYTES_MAX
            && text.chars().all(is_valid)
        {
            true => Ok(Self(text)),
            false => Err("expected the name of an examination, such as 20261125T221200Z".to_owned()),
        }
    }
}

impl std::str::FromStr for RunId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::try_from(text.to_owned())
    }
}

/// Numbers of an examination. Rates in bit/s.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Examination {
    /// Name.
    pub id: RunId,
    /// Target.
    pub target: String,
    /// Address of the agent.
    pub address: String,
    /// SHA-256 of the signed evidence.
    pub digest: String,
    /// Fingerprints of the keys that signed it.
    pub signers: Vec<String>,
    /// Highest rate that the user has allowed, bit/s; absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_max_bps: Option<u64>,
    /// Smallest round trip, seconds.
    pub rtt_s: f64,
    /// Both directions.
    pub directions: Vec<DirectionResult>,
    /// Limits and trouble, the most binding one first.
    pub limits: Vec<LimitResult>,
}

/// Time of the train that shows a rate that the path carries at least, seconds.
const TRAIN_S: f64 = 0.4;

/// Numbers of one direction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DirectionResult {
    /// Direction.
    pub direction: Direction,
    /// Payload rate of one connection.
    pub measured_bps: u64,
    /// Rate of whole packets that the path carries; absent: not reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_bps: Option<u64>,
    /// Rate that the path carries at least.
    pub at_least_bps: u64,
    /// Part of the packets lost without load; absent: not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
}

impl DirectionResult {
    /// Returns the highest rate that was seen, also for less than a second.
    pub fn seen_bps(&self) -> u64 {
        self.sustained_bps().max(self.at_least_bps)
    }

    /// Returns the highest rate that was seen for seconds.
    pub fn sustained_bps(&self) -> u64 {
        self.measured_bps.max(self.capacity_bps.unwrap_or(0))
    }

    /// Returns the highest rate that was seen to pass a token bucket of this rate and burst, if it is there. A short
    /// packet train that fits into the burst shows nothing.
    pub fn passed_bps(&self, rate_bps: u64, burst_bytes: u64) -> u64 {
        let beyond = self.at_least_bps.saturating_sub(rate_bps) as f64 / 8.0 * TRAIN_S;
        if beyond > burst_bytes as f64 { self.seen_bps() } else { self.sustained_bps() }
    }
}

/// Limit that an examination found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitResult {
    /// Limit.
    pub limit: Cause,
    /// Direction.
    pub direction: Direction,
    /// Rate to which it holds one connection; absent: it does not bind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits_to_bps: Option<u64>,
    /// Rate of one connection without it.
    pub predicted_bps: u64,
    /// Rate of a policer or shaper, whole packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<u64>,
    /// Its bucket, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_bytes: Option<u64>,
    /// How sure the verdict is, from 0 to 1.
    pub confidence: f64,
    /// Fix, in words.
    pub remedy: String,
}

impl LimitResult {
    /// Returns the rate of the limit: of a policer or shaper that of its packets, else the one to which it holds a
    /// connection.
    pub fn bps(&self) -> Option<u64> {
        self.rate_bps.or(self.limits_to_bps)
    }

    /// Returns the limit in words, with its numbers.
    pub fn words(&self) -> String {
        let name = self.limit.words();
        let burst = self
            .burst_bytes
            .map_or_else(String::new, |burst| format!(" with a burst of {}", sterna_proto::ByteCount(burst)));
        match (self.rate_bps, self.limits_to_bps) {
            (Some(rate), _) => format!("{name} of {}{burst}", text::rate(rate)),
            (None, Some(bps)) => format!("{name} at {}", text::rate(bps)),
            (None, None) => name.to_owned(),
        }
    }
}

impl Examination {
    /// Returns the numbers of a report.
    pub fn new(id: RunId, report: &Report, proof: &Proof) -> Self {
        let measured = |direction| match direction {
            Direction::Forward => report.measured_bps,
            Direction::Reverse => report.reverse_measured_bps,
        };
        let directions = report.path.directions.iter().map(|path| DirectionResult {
            direction: path.direction,
            measured_bps: measured(path.direction),
            capacity_bps: path.capacity_bps,
            at_least_bps: path.at_least_bps,
            loss: (path.loss_packets > 0).then_some(path.loss),
        });
        Self {
            id,
            target: report.target.clone(),
            address: report.path.address.clone(),
            digest: proof.digest.clone(),
            signers: proof.signers.clone(),
            rate_max_bps: report.rate_max_bps,
            rtt_s: report.path.rtt_s,
            directions: directions.collect(),
            limits: report.verdicts.iter().filter(|verdict| verdict.limit != Cause::Clean).map(limit).collect(),
        }
    }

    /// Returns the numbers of a direction.
    pub fn direction(&self, direction: Direction) -> Option<&DirectionResult> {
        self.directions.iter().find(|one| one.direction == direction)
    }

    /// Returns the limits of a direction.
    pub fn limits(&self, direction: Direction) -> impl Iterator<Item = &LimitResult> {
        self.limits.iter().filter(move |limit| limit.direction == direction)
    }

    /// Returns a limit of a direction.
    pub fn limit(&self, cause: Cause, direction: Direction) -> Option<&LimitResult> {
        self.limits(direction).find(|limit| limit.limit == cause)
    }

    /// Returns the limit that holds one connection.
    pub fn binding(&self, direction: Direction) -> Option<&LimitResult> {
        self.limits(direction).filter(|limit| limit.limits_to_bps.is_some()).min_by_key(|limit| limit.limits_to_bps)
    }

    /// Returns the rates of one connection in words.
    pub fn rates(&self) -> String {
        let rates = self
            .directions
            .iter()
            .map(|one| format!("{} {}", text::arrow(one.direction), text::rate(one.measured_bps)));
        format!("{}, over {}", rates.collect::<Vec<_>>().join(", "), text::time(self.rtt_s))
    }

    /// Returns the limits of one direction in words; `None`: that direction was not measured.
    pub fn verdict(&self, direction: Direction) -> Option<String> {
        let mut words: Vec<String> = self.limits(direction).map(LimitResult::words).collect();
        if words.is_empty() {
            self.direction(direction).filter(|one| one.measured_bps > 0)?;
            words.push("no trouble found".to_owned());
        }
        Some(format!("{}: {}", text::arrow(direction), words.join("; ")))
    }
}

fn limit(verdict: &Verdict) -> LimitResult {
    let mut remedy = verdict.remedy.clone();
    if let Some(end) = (0..=REMEDY_BYTES_MAX).rev().find(|end| remedy.is_char_boundary(*end))
        && remedy.len() > REMEDY_BYTES_MAX
    {
        remedy.truncate(end);
        remedy.push('…');
    }
    LimitResult {
        limit: verdict.limit,
        direction: verdict.direction,
        limits_to_bps: verdict.limits_to_bps,
        predicted_bps: verdict.predicted_bps,
        rate_bps: verdict.rate_bps,
        burst_bytes: verdict.burst_bytes,
        confidence: verdict.confidence,
        remedy,
    }
}
