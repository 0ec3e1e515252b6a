//! Ends of a connection: the direction of its data, and the limits of this host.

use serde::Serialize;

use crate::kernel::{Buffers, KernelVersion};

/// Direction of the data, seen from this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From this host.
    Out,
    /// To this host.
    In,
}

/// Settings of this host that limit its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLimits {
    /// Kernel.
    pub kernel: KernelVersion,
    /// Maximum buffers.
    pub buffers: Buffers,
}

/// Maximum number of connections that are judged at a time. Reason: a table of more helps nobody, and each sample costs
/// microseconds.
pub const JUDGED_MAX: usize = 1024;
