//! Notices that nothing moves though lanes are up, so that the person is told.
//!
//! What it does: compares what lanes have carried, a minute at a time. What it refuses to do: end anything. Storage that
//! hangs for an hour may come back, and a copy that was given up meanwhile must be started again by someone.

use std::time::{Duration, Instant};

/// How long next to nothing is carried before the person is told. Reason: longer than what passes by itself, and dead lanes
/// have been found out by then.
const TOLD_AFTER: Duration = Duration::from_secs(60);

/// What a lane carries in that time while its ends only keep it alive and report what they wait for, at most. Reason: that is
/// 35 kB, and a path of 10 kbit/s carries 75 kB.
const IDLE_BYTES_MAX: u64 = 50_000;

/// Watches the lanes of one session.
#[derive(Debug)]
pub(super) struct StallWatch {
    /// What it may be.
    suspect: &'static str,
    /// What they had carried when the minute began, and when that was.
    begun: Option<(u64, Instant)>,
    is_stalled: bool,
}

impl StallWatch {
    /// Of lanes between two hosts.
    pub(super) fn of_lanes() -> Self {
        Self { suspect: "though lanes are up: storage at one end is busy or hangs", begun: None, is_stalled: false }
    }

    /// Of connections to web servers.
    pub(super) fn of_web() -> Self {
        Self { suspect: "from the web server, or storage here hangs", begun: None, is_stalled: false }
    }

    /// Takes note of the bytes that each lane that is up has carried, both ways; what the person is to be told now: once, until
    /// something has moved.
    pub(super) fn observe(&mut self, lanes: impl ExactSizeIterator<Item = u64>, now: Instant) -> Option<String> {
        let idle_bytes = lanes.len() as u64 * IDLE_BYTES_MAX;
        let bytes: u64 = lanes.sum();
        let (before, since) = *self.begun.get_or_insert((bytes, now));
        if now.saturating_duration_since(since) < TOLD_AFTER {
            return None;
        }
        self.begun = Some((bytes, now));
        // Fewer than before: a lane has ended, of which the person hears.
        let is_stalled = idle_bytes > 0 && bytes.checked_sub(before).is_some_and(|moved| moved <= idle_bytes);
        let is_told = std::mem::replace(&mut self.is_stalled, is_stalled);
        (is_stalled && !is_told).then(|| {
            let seconds = TOLD_AFTER.as_secs();
            format!("nothing has come for {seconds} s {}; waiting", self.suspect)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_person_is_told_once_that_nothing_moves_and_again_when_something_did() {
        let (mut watch, start) = (StallWatch::of_lanes(), Instant::now());
        let mut told = Vec::new();
        for second in 0..1200 {
            // Each lane keeps itself alive; for some time one moves something.
            let idle = second * 150;
            let moved = if second < 300 { second * 5000 } else { 1_500_000 };
            let more = if second < 610 { 0 } else { 1_000_000 };
            let lanes = [idle + moved + more, idle];
            if watch.observe(lanes.into_iter(), start + Duration::from_secs(second)).is_some() {
                told.push(second);
            }
        }
        assert_eq!(told, [360, 720]);
    }

    #[test]
    fn a_path_that_is_down_is_no_stall() {
        let (mut watch, start) = (StallWatch::of_lanes(), Instant::now());
        assert!((0..1000).all(|second| watch.observe([].into_iter(), start + Duration::from_secs(second)).is_none()));
    }
}
