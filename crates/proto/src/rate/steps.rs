//! Steps up from a rate that the path carries: their size, and the waits between them.

use std::time::{Duration, Instant};

/// Size of the next step up, and the time from which it may be taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steps {
    /// Size of the next step, as a fraction of the rate.
    pub(super) size: f64,
    /// Wait after a failed step.
    hold: Duration,
    /// End of the current wait.
    until: Option<Instant>,
}

impl Steps {
    /// Returns the smallest step, due at once.
    pub(super) fn new() -> Self {
        Self { size: STEP_MIN, hold: Duration::ZERO, until: None }
    }

    /// Returns true if a step may be taken at `now`.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now >= until)
    }

    /// Delays the next step by at least `least`.
    pub(super) fn wait(&mut self, now: Instant, least: Duration) {
        self.until = Some(now + HOLD_MIN.max(least));
    }

    /// Allows a step at once.
    pub(super) fn allow(&mut self) {
        (self.hold, self.until) = (Duration::ZERO, None);
    }

    /// Records that a step, or the rate itself, was too high. The wait grows with each failure. Reason: a policer must
    /// not be flooded every round.
    pub(super) fn fail(&mut self, now: Instant, least: Duration, failure: Failure) {
        let (factor, most) = match failure {
            Failure::Rate => (0, HOLD_MIN),
            Failure::Policed => (HOLD_FACTOR_LOSS, HOLD_POLICED),
            Failure::Loss => (HOLD_FACTOR_LOSS, HOLD_MAX),
            Failure::Queue => (2, HOLD_QUEUE_MAX),
            Failure::Shared => (1, HOLD_MIN),
        };
        self.hold = (self.hold * factor).clamp(HOLD_MIN, most);
        self.until = Some(now + self.hold.max(least));
        self.size = STEP_MIN;
    }

    /// Records that a step passed. The next step is larger if no rate above is known to be too high (`is_open`).
    pub(super) fn pass(&mut self, is_open: bool) {
        self.allow();
        if is_open {
            self.size = (self.size * 2.0).min(STEP_MAX);
        }
    }
}

/// Reason of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The rate itself was too high, without a step.
    Rate,
    /// A step went above a known policer.
    Policed,
    /// A step lost packets.
    Loss,
    /// A step only built a queue.
    Queue,
    /// A step only built a queue, while competing flows keep a queue full.
    Shared,
}

/// Smallest and largest step up, as fractions of the rate.
pub(super) const STEP_MIN: f64 = 0.05;
pub(super) const STEP_MAX: f64 = 0.4;

/// Waits before a step up after a failed one. Reason for the longest: losses by probes stay below 1 %, and added
/// capacity is still found within such a wait. A probe into a queue loses nothing, so its wait is shorter.
pub(super) const HOLD_MIN: Duration = Duration::from_millis(500);
const HOLD_QUEUE_MAX: Duration = Duration::from_secs(4);
const HOLD_FACTOR_LOSS: u32 = 4;
const HOLD_MAX: Duration = Duration::from_secs(16);
const HOLD_POLICED: Duration = Duration::from_secs(30);
