//! Rate of one path, which its QUIC lanes share.
//!
//! Refuses to decide a rate: [`PathControl`] does. Time enters with its calls.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use sterna_proto::BitRate;
use sterna_proto::rate::{LaneKey, PathControl, RateContract};

use super::share::PathShare;

/// Rate of one path, for all QUIC lanes that share it; clones share the rate.
#[derive(Clone, Debug)]
pub struct SharedRate(Arc<Mutex<PathControl>>, Arc<PathShare>);

impl SharedRate {
    /// Creates the rate of a path with this contract.
    pub fn new(contract: RateContract) -> Self {
        Self(Arc::new(Mutex::new(PathControl::new(contract))), Arc::default())
    }

    /// Returns the contract.
    pub fn contract(&self) -> RateContract {
        *self.lock().contract()
    }

    /// Replaces the contract.
    pub fn set_contract(&self, contract: RateContract) {
        self.lock().set_contract(contract);
    }

    /// Sets the part of the ceiling that TCP lanes leave to QUIC lanes.
    pub fn set_fraction(&self, fraction: f64) {
        self.lock().set_fraction(fraction);
    }

    /// Returns the rate that the path was found to carry; `None` while it is still being measured.
    pub fn found(&self) -> Option<BitRate> {
        self.lock().control().found()
    }

    /// Returns true if both are the rate of one path.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the lanes of the path.
    pub(super) fn share(&self) -> Arc<PathShare> {
        Arc::clone(&self.1)
    }

    /// Locks the control of the path.
    pub(super) fn lock(&self) -> MutexGuard<'_, PathControl> {
        // No call into the control can panic halfway, so a poisoned control is consistent.
        self.0.lock()
    }
}

/// Membership of a lane in the rate of a path; ends when dropped.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) rate: SharedRate,
    pub(super) key: LaneKey,
}

impl Seat {
    /// Makes a lane a member of `rate`.
    pub(super) fn take(rate: &SharedRate) -> Self {
        rate.1.join();
        Self { rate: rate.clone(), key: rate.lock().join() }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.rate.lock().leave(self.key);
        self.rate.1.leave();
    }
}
