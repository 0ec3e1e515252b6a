//! Known capacity of a path: the last rate that was too high, a policer, the rate before an outage.

use crate::BitRate;

/// Known capacity of a path. Rates are bytes/s on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capacity {
    /// Delivery rate when the send rate was last found too high; infinite after a probe above it passed.
    pub(super) carried: f64,
    /// True if losses showed that the rate was too high: a token bucket may pass more for a while.
    pub(super) by_loss: bool,
    /// Send rate before a sudden loss of more than half; 0 once a train has measured the path again.
    pub(super) fallen_from: f64,
    policer: PolicerDetector,
}

/// Detector of policers: repeated losses without a queue at the same rate.
#[derive(Clone, Copy, Debug, Default)]
struct PolicerDetector {
    /// Delivery rate at the losses.
    rate: f64,
    times: u32,
}

impl Capacity {
    /// Returns the capacity of an unknown path.
    pub(super) fn unknown() -> Self {
        Self { carried: f64::INFINITY, by_loss: false, fallen_from: 0.0, policer: PolicerDetector::default() }
    }

    /// Records that the rate was too high while `carried` arrived. `by_loss`: losses showed it, without a queue.
    pub(super) fn note(&mut self, carried: f64, by_loss: bool) {
        (self.carried, self.by_loss) = (carried, by_loss);
        if by_loss {
            let is_same = (carried - self.policer.rate).abs() < self.policer.rate * SAME_RATE;
            let times = if is_same { self.policer.times + 1 } else { 1 };
            self.policer = PolicerDetector { rate: carried, times };
        }
    }

    /// Forgets everything that was derived from losses. Reason: the receiving host dropped these packets, not the path.
    pub(super) fn forget_losses(&mut self) {
        (self.carried, self.by_loss, self.policer) = (f64::INFINITY, false, PolicerDetector::default());
    }

    /// Returns the rate of a policer, if enough losses show one and the send rate `limit` is near it or below.
    pub(super) fn policed(&self, limit: f64) -> Option<BitRate> {
        let PolicerDetector { rate, times } = self.policer;
        (times >= POLICER_TIMES && limit < rate * 1.1).then_some(BitRate((rate * 8.0) as u64))
    }
}

/// Relative difference below which two rates are the same.
const SAME_RATE: f64 = 0.04;
/// Losses at the same rate after which they are attributed to a policer.
const POLICER_TIMES: u32 = 3;
