//! Verdicts: the limits of a path by name, with their evidence, remedy and predicted gain.

use serde::{Deserialize, Serialize};

use crate::evidence::Direction;

/// Limit of transfers on a path, or trouble that will limit them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Receive buffer of the receiver.
    ReceiveBuffer,
    /// Send buffer of the sender.
    SendBuffer,
    /// Window that grows slowly: transfers end before it fills the path.
    SlowRamp,
    /// Window scaling is off, or removed on the way.
    NoWindowScaling,
    /// Selective acknowledgements are off, or removed on the way.
    NoSack,
    /// Timestamps are off, or removed on the way.
    NoTimestamps,
    /// Round trips that depend on the port: paths of different length side by side.
    RttModes,
    /// Losses that do not depend on the rate.
    RandomLoss,
    /// Traffic of others.
    Congestion,
    /// Device that drops packets above a rate.
    Policer,
    /// Device that delays packets above a rate.
    Shaper,
    /// Return direction too slow for acknowledgements.
    AckPath,
    /// Packets that overtake others.
    Reordering,
    /// Large packets vanish without an answer.
    PmtuBlackHole,
    /// A device on the way reduces the size of segments.
    MssClamped,
    /// The program at the sender.
    ApplicationRead,
    /// The program at the receiver.
    ApplicationWrite,
    /// Disk of the sender.
    DiskRead,
    /// Disk of the receiver.
    DiskWrite,
    /// Processors of a host.
    Cpu,
    /// Rate that the user has given.
    RateCap,
    /// Nothing: the path is full and shows no trouble.
    Clean,
}

impl Cause {
    /// Returns the name in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::ReceiveBuffer => "receive buffer",
            Self::SendBuffer => "send buffer",
            Self::SlowRamp => "slow ramp",
            Self::NoWindowScaling => "no window scaling",
            Self::NoSack => "no selective acknowledgements",
            Self::NoTimestamps => "no timestamps",
            Self::RttModes => "several round-trip times",
            Self::RandomLoss => "random loss",
            Self::Congestion => "congestion",
            Self::Policer => "policer",
            Self::Shaper => "shaper",
            Self::AckPath => "return direction",
            Self::Reordering => "reordering",
            Self::PmtuBlackHole => "large packets vanish",
            Self::MssClamped => "segments made smaller",
            Self::ApplicationRead => "program at the sender",
            Self::ApplicationWrite => "program at the receiver",
            Self::DiskRead => "disk of the sender",
            Self::DiskWrite => "disk of the receiver",
            Self::Cpu => "processors",
            Self::RateCap => "given rate",
            Self::Clean => "the path is full and clean",
        }
    }

    /// Returns true for what both directions have: options of the connection, and round trips.
    pub fn is_of_both(self) -> bool {
        matches!(self, Self::NoSack | Self::NoTimestamps | Self::RttModes)
    }

    /// Returns the name for programs.
    pub fn name(self) -> String {
        serde_json::to_value(self).ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
    }
}

/// Judgement on one limit in one direction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Limit.
    pub limit: Cause,
    /// Direction of the data.
    pub direction: Direction,
    /// Part of the reachable rate that the limit takes, from 0 to 1.
    pub share: f64,
    /// How sure the verdict is, from 0 to 1.
    pub confidence: f64,
    /// Observations that lead to it, in words and numbers.
    pub evidence: Vec<String>,
    /// Fix, in words and numbers.
    pub remedy: String,
    /// Rate of one connection once this limit is gone, payload in bit/s.
    pub predicted_bps: u64,
    /// This rate is a lower bound: no experiment has reached the rate of the path.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub predicted_is_least: bool,
    /// Rate to which the limit holds one connection, payload in bit/s; absent if it does not bind now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits_to_bps: Option<u64>,
    /// Rate of a policer or shaper, whole packets, bit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<u64>,
    /// Size of its bucket, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_bytes: Option<u64>,
    /// Part of the packets that is lost or reordered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<f64>,
    /// Round trips and their ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modes: Vec<RttMode>,
}

/// Ports with nearly the same round trip.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RttMode {
    /// Smallest round trip, seconds.
    pub rtt_s: f64,
    /// Part of the ports.
    pub share: f64,
    /// Ports of the sender.
    pub ports: Vec<u16>,
}

/// Limit and the rate to which it holds one connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Limit.
    pub limit: Cause,
    /// Direction of the data.
    pub direction: Direction,
    /// Rate, payload in bit/s.
    pub rate_bps: u64,
}
