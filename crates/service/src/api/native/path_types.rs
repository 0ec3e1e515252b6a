//! Types of the native interface for paths between agents.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::paths::Visit;

/// Measurements of the path between two agents.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PathView {
    /// Fingerprint of the agent that sends.
    pub source_agent: String,
    /// Fingerprint of the agent that receives.
    pub destination_agent: String,
    /// Smallest round-trip time of the last transfer, in milliseconds.
    pub rtt_ms: Option<f64>,
    /// Fraction of packets that were lost in the last transfer that sent a thousand or more.
    pub loss: Option<f64>,
    /// Highest mean rate of a transfer, in bytes of files per second.
    pub best_bytes_per_s: Option<f64>,
    /// Mean rate of the last transfer.
    pub last_bytes_per_s: Option<f64>,
    /// Limit that bound the last transfer for most of its time.
    pub limited_by: Option<String>,
    /// Number of transfers.
    pub transfers: u64,
    /// Time of the last transfer, in milliseconds since 1970; 0 without one.
    pub at_ms: i64,
    /// Last visits of the agents that monitor the path: at most one from each end, and none that is older than two
    /// days.
    #[serde(default)]
    pub visits: Vec<Visit>,
}

/// Measurements of one visit, one direction of the path.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RoundDirection {
    /// Fraction of the packets that were lost without load.
    pub loss: Option<f64>,
    /// Routers on the way.
    pub hops: Option<u8>,
    /// Rate of one connection in the throughput test, in bytes of payload per second.
    pub bytes_per_s: Option<f64>,
    /// Limit in this test.
    pub limited_by: Option<String>,
}

/// Visit of an agent to a peer that it monitors.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RoundView {
    /// Time, in milliseconds since 1970.
    pub at_ms: u64,
    /// Smallest round-trip time of the fastest port, in milliseconds.
    pub rtt_ms: Option<f64>,
    /// Smallest round-trip time of the slowest port, in milliseconds.
    pub slowest_rtt_ms: Option<f64>,
    /// From the agent to the peer.
    pub forward: RoundDirection,
    /// From the peer to the agent.
    pub reverse: RoundDirection,
    /// Reason for which the visit has no measurements.
    pub failure: Option<String>,
}

/// Visits of an agent to a peer.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RoundList {
    /// Visits, the oldest first.
    pub rounds: Vec<RoundView>,
}

/// Paths between agents.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PathList {
    /// Paths, by agents.
    pub paths: Vec<PathView>,
}
