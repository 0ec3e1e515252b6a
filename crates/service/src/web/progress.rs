//! Progress of a transfer: bytes moved, reported at intervals.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Time between two reports of progress.
const REPORT_EVERY: Duration = Duration::from_millis(500);

/// Progress of a transfer.
pub(super) struct Progress {
    report: Box<dyn Fn(u64) + Send + Sync>,
    reported: Mutex<Option<Instant>>,
}

impl Progress {
    /// Creates it. `report` gets the bytes that have moved.
    pub fn new(report: impl Fn(u64) + Send + Sync + 'static) -> Self {
        Self { report: Box::new(report), reported: Mutex::new(None) }
    }

    /// Records the number of bytes that have moved.
    pub fn handle(&self, bytes: u64, now: Instant) {
        let mut reported = self.reported.lock();
        if reported.is_none_or(|at| now.saturating_duration_since(at) >= REPORT_EVERY) {
            *reported = Some(now);
            drop(reported);
            (self.report)(bytes);
        }
    }
}
