//! Stall detector: reports to the user that no data moves although lanes are up.
//!
//! Compares the bytes that lanes have carried, one minute at a time. Does not end anything. Reason: storage that hangs
//! for an hour may recover, and a person would have to start a copy again that had ended meanwhile.

use std::time::{Duration, Instant};

/// Time with almost no data before the user is notified. Reason: longer than pauses that end without action, and dead
/// lanes are detected earlier.
const REPORTED_AFTER: Duration = Duration::from_secs(60);

/// Maximum bytes that an idle lane carries in [`REPORTED_AFTER`]: keep-alives and reports of waits. Reason: these are
/// 35 kB, and a path of 10 kbit/s carries 75 kB.
const IDLE_BYTES_MAX: u64 = 50_000;

/// Stall detector for the lanes of one session.
#[derive(Debug)]
pub(super) struct StallDetector {
    /// Text with the suspected cause.
    suspect: &'static str,
    /// Bytes that the lanes had carried at the start of the current minute, and that time.
    begun: Option<(u64, Instant)>,
    is_stalled: bool,
}

impl StallDetector {
    /// Detector for lanes between two hosts.
    pub(super) fn of_lanes() -> Self {
        Self { suspect: "though lanes are up: storage at one end is busy or hangs", begun: None, is_stalled: false }
    }

    /// Detector for connections to web servers.
    pub(super) fn of_web() -> Self {
        Self { suspect: "from the web server, or storage here hangs", begun: None, is_stalled: false }
    }

    /// Records the bytes that each live lane has carried, in both directions. Returns a message for the user, once
    /// until data moves again.
    pub(super) fn observe(&mut self, lanes: impl ExactSizeIterator<Item = u64>, now: Instant) -> Option<String> {
        let idle_bytes = lanes.len() as u64 * IDLE_BYTES_MAX;
        let bytes: u64 = lanes.sum();
        let (before, since) = *self.begun.get_or_insert((bytes, now));
        if now.saturating_duration_since(since) < REPORTED_AFTER {
            return None;
        }
        self.begun = Some((bytes, now));
        // Fewer bytes than before: a lane has ended, which is reported to the user separately.
        let is_stalled = idle_bytes > 0 && bytes.checked_sub(before).is_some_and(|moved| moved <= idle_bytes);
        let is_reported = std::mem::replace(&mut self.is_stalled, is_stalled);
        (is_stalled && !is_reported).then(|| {
            let seconds = REPORTED_AFTER.as_secs();
            format!("nothing has come for {seconds} s {}; waiting", self.suspect)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_person_is_reported_once_that_nothing_moves_and_again_when_something_did() {
        let (mut watch, start) = (StallDetector::of_lanes(), Instant::now());
        let mut reported = Vec::new();
        for second in 0..1200 {
            // Each lane sends keep-alives; one lane moves data for some time.
            let idle = second * 150;
            let moved = if second < 300 { second * 5000 } else { 1_500_000 };
            let more = if second < 610 { 0 } else { 1_000_000 };
            let lanes = [idle + moved + more, idle];
            if watch.observe(lanes.into_iter(), start + Duration::from_secs(second)).is_some() {
                reported.push(second);
            }
        }
        assert_eq!(reported, [360, 720]);
    }

    #[test]
    fn a_path_that_is_down_is_no_stall() {
        let (mut watch, start) = (StallDetector::of_lanes(), Instant::now());
        assert!((0..1000).all(|second| watch.observe([].into_iter(), start + Duration::from_secs(second)).is_none()));
    }
}
