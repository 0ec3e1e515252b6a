//! Capacity of a path as far as it is known: the rate found too high, a policer, the rate before an outage.

use crate::BitRate;

/// Known capacity of a path. Rates are bytes/s on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capacity {
    /// Rate that arrived when the rate was last found too high; infinite after a probe above it passed.
    pub(super) carried: f64,
    /// Losses showed it: a bucket of tokens may pass more for a while.
    pub(super) by_loss: bool,
    /// Rate before losses took more than half of it at once; 0 once a train has measured the path again.
    pub(super) fallen_from: f64,
    policer: PolicerWatch,
}

/// Losses without a queue at the same rate, again and again, are a policer's.
#[derive(Clone, Copy, Debug, Default)]
struct PolicerWatch {
    /// Rate that arrived.
    rate: f64,
    times: u32,
}

impl Capacity {
    /// A path of which nothing is known.
    pub(super) fn unknown() -> Self {
        Self { carried: f64::INFINITY, by_loss: false, fallen_from: 0.0, policer: PolicerWatch::default() }
    }

    /// The rate was too high, and `carried` arrived. `by_loss`: losses showed it, without a queue.
    pub(super) fn note(&mut self, carried: f64, by_loss: bool) {
        (self.carried, self.by_loss) = (carried, by_loss);
        if by_loss {
            let is_same = (carried - self.policer.rate).abs() < self.policer.rate * SAME_RATE;
            let times = if is_same { self.policer.times + 1 } else { 1 };
            self.policer = PolicerWatch { rate: carried, times };
        }
    }

    /// The receiving host dropped packets: what was learned of the path by them is forgotten.
    pub(super) fn forget_losses(&mut self) {
        (self.carried, self.by_loss, self.policer) = (f64::INFINITY, false, PolicerWatch::default());
    }

    /// Rate of a policer, if its losses have been seen often enough and `limit` is what is sent now.
    pub(super) fn policed(&self, limit: f64) -> Option<BitRate> {
        let PolicerWatch { rate, times } = self.policer;
        (times >= POLICER_TIMES && limit < rate * 1.1).then_some(BitRate((rate * 8.0) as u64))
    }
}

/// Rates that differ by less than this are the same; a policer has shown this many losses at one.
const SAME_RATE: f64 = 0.04;
const POLICER_TIMES: u32 = 3;
