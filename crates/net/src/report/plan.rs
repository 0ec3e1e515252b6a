//! JSON of the plan of a dry run, and the figures of a plan.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;
use sterna_proto::plan::{Via, expect_time};
use sterna_proto::{BitRate, ByteCount};

use super::{measured, number_of};
use crate::engine::{CopySummary, PathPlan, UnreachedPath};

/// Plan of a copy.
#[derive(Clone, Debug, Serialize)]
pub struct TransferPlan {
    /// Paths on which the agent was reached.
    pub paths: Vec<PlannedPath>,
    /// Paths on which the agent was not reached.
    pub unreached: Vec<Unreached>,
    /// Number of blocks.
    pub blocks: u64,
    /// Memory for data in flight over QUIC at this end.
    pub memory_bytes: u64,
    /// Expected time; `None` if the rate of a path is unknown.
    pub time_s: Option<f64>,
}

/// Path on which the agent was reached.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedPath {
    /// Number of the path, from 1.
    pub path: u32,
    /// Transport of its lanes.
    pub transport: Via,
    /// Address of the agent.
    pub peer: SocketAddr,
    /// RTT; `None`: not measured.
    pub rtt_s: Option<f64>,
    /// Number of lanes at the start.
    pub lanes: u32,
    /// Expected rate on the wire, given or remembered; `None`: to be measured.
    pub rate_bps: Option<u64>,
    /// True if the path may carry more than the remembered rate.
    pub rate_is_least: bool,
    /// True if the path is used only while no other path is up.
    pub standby: bool,
}

/// Path on which the agent was not reached.
#[derive(Clone, Debug, Serialize)]
pub struct Unreached {
    /// Number of the path, from 1.
    pub path: u32,
    /// True if the path is dialled only when no other path is up.
    pub standby: bool,
}

impl From<&CopySummary> for TransferPlan {
    fn from(summary: &CopySummary) -> Self {
        let path = |path: &PathPlan| PlannedPath {
            path: number_of(path.path),
            transport: path.via,
            peer: path.peer,
            rtt_s: measured(path.rtt),
            lanes: path.lanes,
            rate_bps: path.rate.map(|rate| rate.0),
            rate_is_least: path.is_least,
            standby: path.standby,
        };
        let unreached = |path: &UnreachedPath| Unreached { path: number_of(path.path), standby: path.standby };
        Self {
            paths: summary.paths.iter().map(path).collect(),
            unreached: summary.unreached.iter().map(unreached).collect(),
            blocks: summary.blocks,
            memory_bytes: summary.quic_memory().0,
            time_s: summary.expected_time().map(|time| time.as_secs_f64()),
        }
    }
}

impl CopySummary {
    /// Returns the expected time of the copy; `None` if the rate of a path is unknown.
    pub fn expected_time(&self) -> Option<Duration> {
        let used: Vec<&PathPlan> = self.paths.iter().filter(|path| !path.standby).collect();
        let rates = used.iter().map(|path| path.rate).collect::<Option<Vec<BitRate>>>()?;
        let rtt = used.iter().map(|path| path.rtt).max()?;
        Some(expect_time(ByteCount(self.bytes), &rates, rtt))
    }

    /// Returns the most memory for QUIC lanes at this end.
    pub fn quic_memory(&self) -> ByteCount {
        ByteCount(self.paths.iter().filter_map(|path| path.memory).map(|memory| memory.0).sum())
    }
}
