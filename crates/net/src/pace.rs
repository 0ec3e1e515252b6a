//! Pace of a loop that looks at lanes: slower while no data moves.
//!
//! A process runs a thousand sessions that mostly wait. Changes wake their threads; only measurements need a clock.

use std::time::{Duration, Instant};

/// Time over which the bytes of lanes are compared, and after which lanes without data count as idle.
const WINDOW: Duration = Duration::from_secs(2);

/// Maximum bytes that idle lanes carry in a [`WINDOW`]. Reason: keep-alives and reports of eight lanes are about 8 kB.
/// A session at less than 128 kbit/s needs no fast looks.
const IDLE_BYTES: u64 = 32_000;

/// Detector of lanes that carry no data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Bytes that the lanes had carried at the start of the window, and that time.
    window: (u64, Instant),
    /// Last time when data moved; at first, the start.
    moved: Instant,
}

impl Pace {
    /// Creates the detector of lanes that have just started.
    pub(crate) fn new(now: Instant) -> Self {
        Self { window: (0, now), moved: now }
    }

    /// Records the bytes that the lanes have carried. Returns true if no data moves.
    pub(crate) fn observe(&mut self, carried: u64, now: Instant) -> bool {
        let (before, since) = self.window;
        // Fewer bytes than before: a lane has ended.
        let has_moved = carried.abs_diff(before) > IDLE_BYTES;
        if has_moved {
            self.moved = now;
        }
        if has_moved || now.saturating_duration_since(since) >= WINDOW {
            self.window = (carried, now);
        }
        self.is_idle(now)
    }

    /// Returns true if no data moves.
    pub(crate) fn is_idle(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.moved) >= WINDOW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_idle_after_two_seconds_with_no_more_than_reports() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut pace = Pace::new(start);
        assert!(!pace.is_idle(at(1999)), "lanes are being dialled");
        assert!(pace.is_idle(at(2000)));
        assert!(!pace.observe(32_001, at(2500)));
        // Reports of 4 kB a second, looked at every 250 ms, are no data.
        let looks: Vec<bool> = (1..=20).map(|look| pace.observe(32_001 + look * 1000, at(2500 + look * 250))).collect();
        assert_eq!(looks, [vec![false; 7], vec![true; 13]].concat());
        // 1 Mbit/s, looked at every 50 ms.
        let mut carried = 60_000;
        for look in 1..=100 {
            carried += 6250;
            let is_idle = pace.observe(carried, at(7500 + look * 50));
            assert!(!is_idle || look < 10, "look {look}");
        }
    }
}
