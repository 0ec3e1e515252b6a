//! Receive window of connections to web servers, as a limit.

use std::time::{Duration, Instant};

use crate::ByteCount;

/// Kernel measurements of all connections to web servers since the start; times are sums over the connections.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WebSample {
    /// Time that the readers waited for bytes.
    pub waited: Duration,
    /// Part of `waited` in which a full receive window of this end arrived per round trip.
    pub window_full: Duration,
    /// Part of `waited` in which packets arrived out of order: some were lost or overtaken.
    pub disordered: Duration,
    /// Smallest round-trip time; zero while unknown.
    pub rtt_min: Duration,
    /// Largest window that this end announced.
    pub receive_window: ByteCount,
    /// Receive buffer of the connection with that window.
    pub receive_buffer: ByteCount,
    /// True if windows are not scaled.
    pub is_unscaled: bool,
}

impl WebSample {
    /// Returns the share of all time waited in which packets arrived out of order, in parts per million.
    pub(super) fn disordered_ppm(&self) -> u64 {
        let waited = self.waited.as_secs_f64();
        if waited > 0.0 { (self.disordered.as_secs_f64() / waited * 1e6) as u64 } else { 0 }
    }
}

/// Result of the latest samples of the connections.
#[derive(Debug, Default)]
pub(super) struct WebHistory {
    /// Last sample with more time waited than the sample before, and its time.
    last: Option<(Instant, WebSample)>,
    /// Part of the time in which the window was full, by that sample. Range: 0 to 1.
    full: f64,
}

/// Longest time between two measurements of a connection that delivers bytes, plus two round trips. Reason: a
/// measurement is made with the first bytes after a tenth of a second. The next sample, a tenth later, contains it. A
/// busy host may take twice as long.
const LOOKED_AT_WITHIN: Duration = Duration::from_millis(400);

impl WebHistory {
    /// Returns the part of the time since the sample before in which this end's window was full. Range: 0 to 1. Over a
    /// long path some samples have no new measurement. Then the last result stays valid for as long as the next bytes
    /// of a full window may take.
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
