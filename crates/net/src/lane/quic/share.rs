//! Lanes of one path at this end: how many share it, and the rate that they receive together.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sterna_proto::{BitRate, ByteCount};

/// Lanes of one path, for the code that divides memory between them.
#[derive(Debug, Default)]
pub(super) struct PathShare {
    lanes: AtomicU32,
    /// Current rate that all lanes receive, in bit/s.
    arriving: AtomicU64,
    /// Highest value of `arriving` so far.
    most: AtomicU64,
}

impl PathShare {
    /// Adds a lane.
    pub(super) fn join(&self) {
        self.lanes.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a lane.
    pub(super) fn leave(&self) {
        self.lanes.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number of lanes of the path, at least 1.
    pub(super) fn lanes(&self) -> u32 {
        self.lanes.load(Ordering::Relaxed).max(1)
    }

    /// Returns the highest rate that the lanes have received together.
    pub(super) fn most(&self) -> BitRate {
        BitRate(self.most.load(Ordering::Relaxed))
    }

    fn replace(&self, before: BitRate, now: BitRate) {
        // Each lane subtracts what it has added, so the sum does not wrap.
        let others = self.arriving.fetch_sub(before.0, Ordering::Relaxed) - before.0;
        self.arriving.fetch_add(now.0, Ordering::Relaxed);
        self.most.fetch_max(others + now.0, Ordering::Relaxed);
    }
}

/// Rate that one lane adds to the rate of its path, until it is dropped.
pub(super) struct Arriving {
    share: Arc<PathShare>,
    rate: BitRate,
}

impl Arriving {
    pub(super) fn new(share: Arc<PathShare>) -> Self {
        Self { share, rate: BitRate(0) }
    }

    /// Records that the lane receives at `rate`, as one of the lanes of `share`.
    pub(super) fn report(&mut self, share: Arc<PathShare>, rate: BitRate) {
        if !Arc::ptr_eq(&share, &self.share) {
            *self = Self::new(share);
        }
        self.share.replace(self.rate, rate);
        self.rate = rate;
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        self.share.replace(self.rate, BitRate(0));
    }
}

/// Bytes that a lane receives in a round trip.
///
/// Reason for a whole round trip: a host that was busy for a moment reads in milliseconds the data that its socket
/// has collected. It then reads at several times the rate of the path.
pub(super) struct RoundTrip {
    /// Times, and the bytes received by then, at least [`SAMPLE_EVERY`] apart; the first is older than a round
    /// trip.
    samples: VecDeque<(Instant, u64)>,
}

impl RoundTrip {
    /// Starts at `now`, when `bytes` have been received.
    pub(super) fn new(now: Instant, bytes: u64) -> Self {
        Self { samples: VecDeque::from([(now, bytes)]) }
    }

    /// Returns the mean rate over the last round trip of length `rtt`; a shorter one counts as [`SAMPLE_EVERY`].
    pub(super) fn rate(&mut self, now: Instant, bytes: u64, rtt: Duration) -> BitRate {
        let rtt = rtt.clamp(SAMPLE_EVERY, ROUND_TRIP_MAX);
        let is_old = |at: Instant, least| now.saturating_duration_since(at) >= least;
        while self.samples.get(1).is_some_and(|&(at, _)| is_old(at, rtt)) {
            self.samples.pop_front();
        }
        let &(first, before) = self.samples.front().unwrap_or(&(now, bytes));
        if self.samples.back().is_none_or(|&(at, _)| is_old(at, SAMPLE_EVERY)) {
            self.samples.push_back((now, bytes));
        }
        BitRate::mean(ByteCount(bytes - before), now.saturating_duration_since(first).max(rtt))
    }
}

/// Least time between samples. Reason: a timer of the runtime fires one or two milliseconds late.
const SAMPLE_EVERY: Duration = Duration::from_millis(25);

/// Longest round trip that is used. Reason: limits the samples to 40.
const ROUND_TRIP_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_busy_host_reads_at_once_is_no_rate_of_the_path() {
        let start = Instant::now();
        let (rtt, each) = (Duration::from_millis(150), 625_000);
        let mut trip = RoundTrip::new(start, 0);
        let mut most = BitRate(0);
        // 200 Mbit/s, read in portions of 100 ms.
        for step in 1..=80_u32 {
            let bytes = u64::from(step / 4 * 4) * each;
            most = most.max(trip.rate(start + step * Duration::from_millis(25), bytes, rtt));
        }
        assert!(most >= BitRate::megabits(200) && most <= BitRate::megabits(300), "{most}");
        assert!(trip.samples.len() <= 9);
    }

    #[test]
    fn a_lane_that_is_younger_than_a_round_trip_has_not_its_rate_yet() {
        let start = Instant::now();
        let mut trip = RoundTrip::new(start, 0);
        let rate = trip.rate(start + Duration::from_millis(50), 1_000_000, Duration::from_millis(100));
        assert_eq!(rate, BitRate::megabits(80));
    }

    #[test]
    fn what_lanes_receive_is_added_up_and_goes_with_them() {
        let (path, other) = (Arc::new(PathShare::default()), Arc::new(PathShare::default()));
        let mut lanes: Vec<Arriving> = (0..3).map(|_| Arriving::new(Arc::clone(&path))).collect();
        assert_eq!((path.lanes(), path.most()), (1, BitRate(0)));
        for (index, lane) in lanes.iter_mut().enumerate() {
            lane.report(Arc::clone(&path), BitRate(10 + index as u64));
        }
        assert_eq!(path.most(), BitRate(33));
        lanes[0].report(Arc::clone(&path), BitRate(1));
        assert_eq!(path.most(), BitRate(33), "the most so far");
        lanes[1].report(Arc::clone(&other), BitRate(40));
        assert_eq!((other.most(), path.arriving.load(Ordering::Relaxed)), (BitRate(40), 13));
        drop(lanes);
        assert_eq!((path.arriving.load(Ordering::Relaxed), other.arriving.load(Ordering::Relaxed)), (0, 0));
    }
}
