//! Report of an examination: verdicts, ladder, path, and what it cost, with the evidence.

pub mod compare;
pub mod exclude;
pub mod figures;
pub mod history;
pub mod html;
pub mod repeat;
pub mod text;

use serde::{Deserialize, Serialize};

use crate::evidence::{Direction, Evidence, Experiment, Outcome, Purpose, Record};
use crate::facts::Facts;
use crate::rules::diagnose;
use crate::verdict::{RttMode, Step, Verdict};

/// Version of the format.
pub const FORMAT: u32 = 1;

/// Report. The fields of the first block are those that programs read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Verdicts, the most binding one first.
    pub verdicts: Vec<Verdict>,
    /// Limits and their rates, by direction, the lowest first.
    pub ladder: Vec<Step>,
    /// Rate of one connection with the settings of both hosts, forward, payload in bit/s.
    pub measured_bps: u64,
    /// The same in the return direction.
    pub reverse_measured_bps: u64,
    /// Path.
    pub path: PathReport,
    /// Cost of the examination.
    pub cost: Cost,
    /// Version of the format.
    pub format: u32,
    /// Release of Sterna that made it.
    pub sterna: String,
    /// Start, seconds since 1970.
    pub started: u64,
    /// Target as the user gave it.
    pub target: String,
    /// Highest rate that the user has allowed, bit/s; absent: any.
    pub rate_max_bps: Option<u64>,
    /// Circumstances that may have changed a result, in words: pauses of the hosts, packets of UDP that did not pass,
    /// connections that ended early.
    pub notes: Vec<String>,
}

/// Path between the hosts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PathReport {
    /// Host of the doctor, as its kernel names the release.
    pub near_kernel: String,
    /// Host of the agent.
    pub far_kernel: String,
    /// Address of the agent.
    pub address: String,
    /// Smallest round trip, seconds.
    pub rtt_s: f64,
    /// Round trips of the ports in groups.
    pub rtt_modes: Vec<RttMode>,
    /// Both directions.
    pub directions: Vec<PathDirection>,
}

/// One direction of a path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathDirection {
    /// Direction.
    pub direction: Direction,
    /// Rate of whole packets that the path carries, bit/s; absent if it was not reached.
    pub capacity_bps: Option<u64>,
    /// Rate of whole packets that it carries at least, bit/s.
    pub at_least_bps: u64,
    /// Part of the packets lost far below that rate.
    pub loss: f64,
    /// Number of packets of that measurement.
    pub loss_packets: u64,
    /// Part of the packets reordered.
    pub reordered: f64,
    /// Largest packet that passes, bytes; absent if it is not known.
    pub mtu: Option<u32>,
    /// Payload of a full segment.
    pub mss: u32,
}

/// Cost of an examination.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Bytes over the path, both directions.
    pub bytes: u64,
    /// Time, seconds.
    pub time_s: f64,
    /// Parts, in order of time.
    pub parts: Vec<ExperimentCost>,
}

/// Cost of one experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExperimentCost {
    /// Question.
    pub purpose: Purpose,
    /// Direction.
    pub direction: Direction,
    /// Bytes over the path.
    pub bytes: u64,
    /// Time, seconds.
    pub time_s: f64,
    /// Reason for which it has no result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// Circumstances of an examination, beside its evidence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct About {
    /// Target as the user gave it.
    pub target: String,
    /// Address of the agent.
    pub address: String,
    /// Address of the host of the doctor; empty if it is not known.
    pub local: String,
    /// Fingerprint of the agent's key; empty if it is not known.
    pub agent_key: String,
    /// Start, seconds since 1970.
    pub started: u64,
    /// Highest rate that the user has allowed, bit/s; absent: any.
    pub rate_max_bps: Option<u64>,
}

impl Report {
    /// Judges the evidence of an examination.
    pub fn new(evidence: &Evidence, about: &About) -> Self {
        let diagnosis = diagnose(evidence);
        let rate = |direction| Facts::new(evidence, direction).base.map_or(0, |base| base.rate_bps as u64);
        let modes = Facts::new(evidence, Direction::Forward).rtt_modes();
        Self {
            verdicts: diagnosis.verdicts,
            ladder: diagnosis.ladder,
            measured_bps: rate(Direction::Forward),
            reverse_measured_bps: rate(Direction::Reverse),
            path: PathReport {
                near_kernel: evidence.near.kernel.clone(),
                far_kernel: evidence.far.kernel.clone(),
                address: about.address.clone(),
                rtt_s: evidence.rtt().as_secs_f64(),
                rtt_modes: modes,
                directions: Direction::ALL.into_iter().map(|direction| path_direction(evidence, direction)).collect(),
            },
            cost: cost(evidence),
            format: FORMAT,
            sterna: env!("CARGO_PKG_VERSION").to_owned(),
            started: about.started,
            target: about.target.clone(),
            rate_max_bps: about.rate_max_bps,
            notes: notes(evidence),
        }
    }
}

fn path_direction(evidence: &Evidence, direction: Direction) -> PathDirection {
    let facts = Facts::new(evidence, direction);
    let (lost, sent) = facts.lost_without_load();
    let sizes = evidence.train(Purpose::Sizes, direction).map(|(_, train)| &train.sizes);
    let mtu = sizes.and_then(|sizes| sizes.iter().filter(|size| size.received > 0).map(|size| size.bytes).max());
    PathDirection {
        direction,
        capacity_bps: facts.ceiling.filter(|ceiling| ceiling.is_reached()).map(|ceiling| ceiling.bps() as u64),
        at_least_bps: facts.least_bps() as u64,
        loss: lost as f64 / sent.max(1) as f64,
        loss_packets: sent,
        reordered: facts.reordered().0,
        mtu,
        mss: facts.base.as_ref().map_or(0, |base| base.mss),
    }
}

fn cost(evidence: &Evidence) -> Cost {
    let parts: Vec<ExperimentCost> = evidence
        .records
        .iter()
        .map(|record| ExperimentCost {
            purpose: record.purpose,
            direction: record.direction,
            bytes: record.cost_bytes(),
            time_s: record.time_ms as f64 / 1e3,
            failed: match &record.outcome {
                Outcome::Failed(reason) => Some(reason.clone()),
                _ => None,
            },
        })
        .collect();
    let last = evidence.records.last().map_or(0, |record| record.start_ms + record.time_ms);
    Cost { bytes: parts.iter().map(|part| part.bytes).fold(0, u64::saturating_add), time_s: last as f64 / 1e3, parts }
}

/// Pause of our own process that may change a result, seconds.
const OWN_PAUSE_S: f64 = 0.2;

/// Returns the circumstances that may have changed a result.
fn notes(evidence: &Evidence) -> Vec<String> {
    let mut notes = Vec::new();
    if !has_udp_passed(evidence) {
        let text = "no packet of UDP passed, so the verdicts rest on TCP alone: let UDP to the agent pass, to a fixed \
                    port with `sterna agent --measure-port PORT`";
        notes.push(text.to_owned());
    }
    for direction in Direction::ALL {
        let Some(base) = Facts::new(evidence, direction).base else { continue };
        let name = direction.name();
        if base.pause_s > OWN_PAUSE_S {
            notes.push(format!("{name}: a host of ours paused for {:.0} ms during the baseline", base.pause_s * 1e3));
        }
        // Each of several streams has the same words.
        notes.extend(base.errors.first().map(|error| format!("{name}: the baseline ended early: {error}")));
    }
    notes
}

/// Returns true if packets of UDP arrived, or none was sent.
fn has_udp_passed(evidence: &Evidence) -> bool {
    let arrived = |record: &Record| match &record.outcome {
        Outcome::Echo(report) => report.echoes.iter().any(|port| port.reflected > 0 || !port.rtt_us.is_empty()),
        Outcome::Train(report) => report.received > 0,
        _ => false,
    };
    let is_udp = |record: &&Record| matches!(record.experiment, Experiment::Echo { .. } | Experiment::Train { .. });
    let mut packets = evidence.records.iter().filter(is_udp).peekable();
    packets.peek().is_none() || packets.any(arrived)
}
