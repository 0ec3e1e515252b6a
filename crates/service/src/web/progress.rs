//! Progress of a transfer: the bytes that have moved, reported at intervals, and what limits them.
//!
//! It has the record of an attempt at any moment, so that one that fails or is cancelled has one too.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sterna_proto::limit::{Limit, LimitTimes};

use super::modes::Mode;
use crate::job::Moved;

/// Time between two reports of progress.
const REPORT_EVERY: Duration = Duration::from_millis(500);

/// Progress of a transfer.
pub struct Progress {
    report: Box<dyn Fn(u64) + Send + Sync>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    reported: Option<Instant>,
    size: Option<u64>,
    way: Option<Way>,
}

/// Way on which the bytes go at present.
struct Way {
    mode: Mode,
    began: Instant,
    /// Time to the end; `None`: it goes on.
    took: Option<Duration>,
    bytes: u64,
    stripes: Option<u32>,
    limits: LimitTimes,
}

impl Progress {
    /// Creates it. `report` gets the bytes that have moved.
    pub fn new(report: impl Fn(u64) + Send + Sync + 'static) -> Self {
        Self { report: Box::new(report), state: Mutex::default() }
    }

    /// Returns the bytes, time and limits until now.
    pub fn moved(&self, now: Instant) -> Moved {
        let state = self.state.lock();
        let moved = Moved { size: state.size, ..Moved::default() };
        let Some(way) = &state.way else { return moved };
        let took = way.took.unwrap_or_else(|| now.saturating_duration_since(way.began));
        let shares = way.limits.shares().into_iter();
        Moved {
            bytes: way.bytes,
            time_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            by: Some(way.mode.name().to_owned()),
            stripes: way.stripes,
            limits: shares.map(|(limit, share)| (limit.name().to_owned(), share)).collect(),
            ..moved
        }
    }

    /// Records the size of the file.
    pub(super) fn set_size(&self, size: u64) {
        self.state.lock().size = Some(size);
    }

    /// Records that the bytes go a way from now on, from the beginning of the file.
    pub(super) fn begin(&self, mode: Mode, now: Instant) {
        let (took, stripes, limits) = (None, None, LimitTimes::default());
        self.state.lock().way = Some(Way { mode, began: now, took, bytes: 0, stripes, limits });
    }

    /// Records that the way has ended.
    pub(super) fn end(&self, now: Instant) {
        self.change(|way| way.took = Some(now.saturating_duration_since(way.began)));
    }

    /// Records the number of bytes that have moved.
    pub(super) fn handle(&self, bytes: u64, now: Instant) {
        self.change(|way| way.bytes = bytes);
        let mut state = self.state.lock();
        if state.reported.is_none_or(|at| now.saturating_duration_since(at) >= REPORT_EVERY) {
            state.reported = Some(now);
            drop(state);
            (self.report)(bytes);
        }
    }

    /// Adds to the time of a limit.
    pub(super) fn add(&self, limit: Limit, time: Duration) {
        self.change(|way| way.limits.add(limit, time));
    }

    /// Sets the times of all limits.
    pub(super) fn set_limits(&self, limits: LimitTimes) {
        self.change(|way| way.limits = limits);
    }

    /// Records the number of stripes that the storage reports.
    pub(super) fn set_stripes(&self, stripes: u32) {
        self.change(|way| way.stripes = way.stripes.max(Some(stripes)));
    }

    fn change(&self, change: impl FnOnce(&mut Way)) {
        if let Some(way) = self.state.lock().way.as_mut() {
            change(way);
        }
    }
}
