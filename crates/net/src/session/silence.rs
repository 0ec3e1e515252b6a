//! Detector of silent lanes: lanes without received data while other lanes are active. A cut path looks like this
//! long before its transport detects the cut.
//!
//! Compares the receive counters of the lanes at every tick. Refuses to end a lane: the session decides if a silent
//! lane is in the way, and a lane that is not in the way may recover.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sterna_proto::session::LaneId;

use super::ALIVE_EVERY;
use crate::lane::LaneHandle;

/// Time without received data after which a lane counts as silent. Reason: the peer sends two keep-alives in this
/// time, and the second one has time to cross a long path.
pub(crate) const SILENT_AFTER: Duration = Duration::from_millis(ALIVE_EVERY.as_millis() as u64 * 5 / 2);

/// Longest time between two observations that count. Reason: a host that was suspended did not read its sockets, so
/// its peers were not silent. An idle session is looked at once a second, and its thread may be late.
const LOOKS_APART_MAX: Duration = Duration::from_secs(2);

/// Closes silent lanes without a wait: a close takes some seconds to give up on its peer.
pub(super) fn close_aside(lanes: Vec<Arc<dyn LaneHandle>>) {
    for lane in lanes {
        let close = move || lane.close("silent, while other lanes are active");
        // The host is out of threads: the lane ends by itself later.
        let _ = thread::Builder::new().name("ending".to_owned()).spawn(close);
    }
}

/// Detector of silence for the lanes of one end of a session.
#[derive(Debug, Default)]
pub(super) struct SilenceDetector {
    lanes: BTreeMap<LaneId, LastReceived>,
    looked: Option<Instant>,
}

/// Receive counter of a lane, and the time of its last change.
#[derive(Clone, Copy, Debug)]
struct LastReceived {
    bytes: Option<u64>,
    at: Instant,
}

impl SilenceDetector {
    /// Records the receive counter of every lane that is up ([`crate::lane::LaneHandle::heard`]), and returns the
    /// silent lanes. Returns none if all lanes are silent: no other lane could take over their blocks.
    pub(super) fn observe(&mut self, lanes: &[(LaneId, Option<u64>)], now: Instant) -> Vec<LaneId> {
        let was_asleep = self.looked.is_none_or(|at| now.saturating_duration_since(at) > LOOKS_APART_MAX);
        self.looked = Some(now);
        let before = std::mem::take(&mut self.lanes);
        for (lane, bytes) in lanes {
            // A lane without a counter does not read: it has more data than it takes, so it is not silent.
            let since = before.get(lane).filter(|heard| !was_asleep && bytes.is_some() && heard.bytes == *bytes);
            self.lanes.insert(*lane, LastReceived { bytes: *bytes, at: since.map_or(now, |heard| heard.at) });
        }
        let is_silent = |heard: &LastReceived| now.saturating_duration_since(heard.at) > SILENT_AFTER;
        let silent: Vec<LaneId> =
            self.lanes.iter().filter(|(_, heard)| is_silent(heard)).map(|(lane, _)| *lane).collect();
        if silent.len() < self.lanes.len() { silent } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_is_silent_when_others_are_heard_and_not_after_a_sleep() {
        let start = Instant::now();
        let mut watch = SilenceDetector::default();
        let mut look = |ms: u64, heard: &[(u32, Option<u64>)]| {
            let lanes: Vec<_> = heard.iter().map(|(lane, bytes)| (LaneId(*lane), *bytes)).collect();
            watch.observe(&lanes, start + Duration::from_millis(ms)).iter().map(|lane| lane.0).collect::<Vec<_>>()
        };
        for tick in 0..=50 {
            assert_eq!(look(tick * 100, &[(0, Some(7)), (1, Some(tick)), (2, None)]), [0u32; 0]);
        }
        assert_eq!(look(5100, &[(0, Some(7)), (1, Some(99)), (2, None)]), [0]);
        assert_eq!(look(5200, &[(0, Some(7)), (3, Some(1))]), [0], "one that has just come up was heard");
        assert_eq!(look(5300, &[(0, Some(7))]), [0u32; 0], "there is no better one");
        assert_eq!(look(5400, &[(0, Some(8)), (3, Some(1))]), [0u32; 0]);
        assert_eq!(look(60_000, &[(0, Some(8)), (3, Some(2))]), [0u32; 0], "this host was asleep");
    }
}
