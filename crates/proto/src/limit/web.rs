//! What web servers say of themselves by how their bytes come.

use std::time::{Duration, Instant};

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
    /// The share of all time waited in which packets came out of order, in parts per million.
    pub(super) fn disordered_ppm(&self) -> u64 {
        let waited = self.waited.as_secs_f64();
        if waited > 0.0 { (self.disordered.as_secs_f64() / waited * 1e6) as u64 } else { 0 }
    }
}

/// What the last looks at the connections told.
#[derive(Debug, Default)]
pub(super) struct WebHistory {
    /// The last sample with time waited that the one before had not, and when it came.
    last: Option<(Instant, WebSample)>,
    /// What it told; range: 0 to 1.
    full: f64,
}

/// Longest time between looks at a connection that brings bytes, beside two round trips. Reason: a look is taken with the first
/// bytes after a tenth of a second, and seen by the next sample, a tenth later; as much again for a host that is busy.
const LOOKED_AT_WITHIN: Duration = Duration::from_millis(400);

impl WebHistory {
    /// The part of the time in which this end's window was full, by the looks since the sample before. Range: 0 to 1. Over a long
    /// path there are samples without one: what was seen last holds for as long as the next bytes of a full window may take.
    pub(super) fn full_at(&mut self, now: Instant, sample: &WebSample) -> f64 {
        let (at, before) = *self.last.get_or_insert((now, *sample));
        let waited = sample.waited.saturating_sub(before.waited);
        if !waited.is_zero() {
            let full = sample.window_full.saturating_sub(before.window_full);
            self.full = full.div_duration_f64(waited).min(1.0);
            self.last = Some((now, *sample));
        } else if now.saturating_duration_since(at) > LOOKED_AT_WITHIN + 2 * sample.rtt_min {
            self.full = 0.0;
        }
        self.full
    }
}
