//! Steps up from a rate that is carried: their size, and the waits between them.

use std::time::{Duration, Instant};

/// Steps up: how large the next one is, and when it may be taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steps {
    /// The next step, as a fraction of the rate.
    pub(super) size: f64,
    /// Wait after a step that failed, and when it ends.
    hold: Duration,
    until: Option<Instant>,
}

impl Steps {
    /// The smallest step, at once.
    pub(super) fn new() -> Self {
        Self { size: STEP_MIN, hold: Duration::ZERO, until: None }
    }

    /// Whether a step may be taken at `now`.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now >= until)
    }

    /// No step before `least` has passed.
    pub(super) fn wait(&mut self, now: Instant, least: Duration) {
        self.until = Some(now + HOLD_MIN.max(least));
    }

    /// A step may be taken at once.
    pub(super) fn allow(&mut self) {
        (self.hold, self.until) = (Duration::ZERO, None);
    }

    /// A step, or the rate itself, was too much: waits longer each time, so that a policer is not flooded every round.
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

    /// The step was kept: the next one is larger while nothing above it is known to be too much.
    pub(super) fn pass(&mut self, is_open: bool) {
        self.allow();
        if is_open {
            self.size = (self.size * 2.0).min(STEP_MAX);
        }
    }
}

/// Reason for a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The rate itself was too high, without a step.
    Rate,
    /// A step into a policer that is known.
    Policed,
    /// A step that lost packets.
    Loss,
    /// A step that only made a queue.
    Queue,
    /// The same beside flows that keep a queue full.
    Shared,
}

/// Steps up, as fractions of the rate.
pub(super) const STEP_MIN: f64 = 0.05;
pub(super) const STEP_MAX: f64 = 0.4;

/// Waits before a step up after one that failed; doubled by each. Reason for the longest: losses to probes stay below 1 %, and more
/// capacity is noticed within them. A probe into a queue loses nothing.
pub(super) const HOLD_MIN: Duration = Duration::from_millis(500);
const HOLD_QUEUE_MAX: Duration = Duration::from_secs(4);
const HOLD_FACTOR_LOSS: u32 = 4;
const HOLD_MAX: Duration = Duration::from_secs(16);
const HOLD_POLICED: Duration = Duration::from_secs(30);
