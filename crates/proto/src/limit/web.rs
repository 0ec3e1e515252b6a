//! What web servers say of themselves by how their bytes come.

use std::time::Duration;

use crate::ByteCount;

/// What the kernel says of all connections to web servers together, since the start; times are added up over the connections.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WebSample {
    /// Time that their readers waited for bytes.
    pub waited: Duration,
    /// Of it, the time in which as much came in a round trip as this end's window allows.
    pub window_full: Duration,
    /// Of it, the time in which packets came out of order: some were lost, or overtaken.
    pub disordered: Duration,
    /// Smallest round-trip time; zero while unknown.
    pub rtt_min: Duration,
    /// Largest window that this end announced.
    pub receive_window: ByteCount,
    /// Receive buffer of the connection with that window.
    pub receive_buffer: ByteCount,
    /// Windows are not scaled.
    pub is_unscaled: bool,
}

impl WebSample {
    /// The part of the time waited since `before` in which this end's window was full. Range: 0 to 1.
    pub(super) fn full_since(&self, before: &Self) -> f64 {
        let waited = self.waited.saturating_sub(before.waited).as_secs_f64();
        let full = self.window_full.saturating_sub(before.window_full).as_secs_f64();
        if waited > 0.0 { (full / waited).min(1.0) } else { 0.0 }
    }

    /// The share of all time waited in which packets came out of order, in parts per million.
    pub(super) fn disordered_ppm(&self) -> u64 {
        let waited = self.waited.as_secs_f64();
        if waited > 0.0 { (self.disordered.as_secs_f64() / waited * 1e6) as u64 } else { 0 }
    }
}
