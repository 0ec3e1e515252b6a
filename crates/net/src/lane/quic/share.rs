//! Lanes of one path at this end: how many share it, and what they receive together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sterna_proto::BitRate;

/// Lanes of one path, for those that deal out memory.
#[derive(Debug, Default)]
pub(super) struct PathShare {
    lanes: AtomicU32,
    /// Rate that all lanes receive at now, in bit/s.
    arriving: AtomicU64,
    /// Highest of these rates so far.
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

    /// Lanes of the path, at least 1.
    pub(super) fn lanes(&self) -> u32 {
        self.lanes.load(Ordering::Relaxed).max(1)
    }

    /// Highest rate at which they have received together.
    pub(super) fn most(&self) -> BitRate {
        BitRate(self.most.load(Ordering::Relaxed))
    }

    fn replace(&self, before: BitRate, now: BitRate) {
        // Each lane takes back what it has added: the sum does not wrap.
        let others = self.arriving.fetch_sub(before.0, Ordering::Relaxed) - before.0;
        self.arriving.fetch_add(now.0, Ordering::Relaxed);
        self.most.fetch_max(others + now.0, Ordering::Relaxed);
    }
}

/// What one lane adds to the rate of its path, until it is dropped.
pub(super) struct Arriving {
    share: Arc<PathShare>,
    rate: BitRate,
}

impl Arriving {
    pub(super) fn new(share: Arc<PathShare>) -> Self {
        Self { share, rate: BitRate(0) }
    }

    /// Reports that the lane receives at `rate`, as one of those of `share`.
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

#[cfg(test)]
mod tests {
    use super::*;

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
