//! Combines similar messages to the user: lanes that go down together, and files that fail for the same reason.
//!
//! Decides only, and prints nothing; time enters as an argument, lines leave as values. Events of `--json` are never
//! combined.

use std::time::{Duration, Instant};

use sterna_proto::{Error, ErrorKind, Phase, Scope};

/// Lanes that go down within this time of each other share one line. Reason: when an agent ends, TCP lanes go down
/// within some 100 ms, and QUIC lanes 300 ms after each other. A delay of half a second disturbs no user.
const TOGETHER: Duration = Duration::from_millis(500);

/// Longest time that a line waits for more lanes. Reason: QUIC lanes detect a restarted agent one after the other,
/// within some 1.5 s.
const REPORTED_WITHIN: Duration = Duration::from_secs(2);

/// Failures of one kind that get one line each. Reason: enough to see the common cause, few enough to read.
pub const ALIKE_REPORTED_MAX: u64 = 5;

/// Most kinds of failures that are counted separately. Reason: more than the file systems of one copy produce. A peer
/// that invents error texts cannot fill memory.
const ALIKE_GROUPS_MAX: usize = 32;

/// Lanes that are down, but not yet reported to the user.
#[derive(Default)]
pub struct LanesDown {
    groups: Vec<LaneGroup>,
}

/// Lanes that went down for the same reason.
struct LaneGroup {
    reason: String,
    first_lane: u32,
    count: u32,
    since: Instant,
    last: Instant,
}

impl LanesDown {
    /// Records that a lane went down.
    pub fn handle_down(&mut self, lane: u32, reason: &str, now: Instant) {
        match self.groups.iter_mut().find(|group| group.reason == reason) {
            Some(group) => {
                group.count += 1;
                group.last = now;
            }
            None => {
                let reason = reason.to_owned();
                self.groups.push(LaneGroup { reason, first_lane: lane, count: 1, since: now, last: now });
            }
        }
    }

    /// Returns the lines of groups that are due: no lane joined for `TOGETHER`, or the line has waited for
    /// `REPORTED_WITHIN`.
    pub fn poll_lines(&mut self, now: Instant) -> Vec<String> {
        let is_due = |group: &LaneGroup| {
            now.duration_since(group.last) >= TOGETHER || now.duration_since(group.since) >= REPORTED_WITHIN
        };
        let (due, waiting) = std::mem::take(&mut self.groups).into_iter().partition(is_due);
        self.groups = waiting;
        due.iter().map(LaneGroup::line).collect()
    }

    /// Returns all lines, so that they appear before the message of a later event.
    pub fn take_lines(&mut self) -> Vec<String> {
        std::mem::take(&mut self.groups).iter().map(LaneGroup::line).collect()
    }
}

impl LaneGroup {
    fn line(&self) -> String {
        match self.count {
            1 => format!("lane {} is down: {}; dialling again", self.first_lane, self.reason),
            count => format!("{count} lanes are down: {}; dialling again", self.reason),
        }
    }
}

/// Failures of single files, grouped by kind and system error.
#[derive(Default)]
pub struct AlikeFailures {
    groups: Vec<FailureGroup>,
    /// Failures of kinds beyond [`ALIKE_GROUPS_MAX`].
    others: u64,
}

/// Failures with the same kind and system error.
struct FailureGroup {
    kind: (ErrorKind, Scope, Phase),
    /// Error number of the system, if there is one.
    os_code: Option<i32>,
    /// Line of the first failure, as printed.
    first_line: String,
    count: u64,
}

impl AlikeFailures {
    /// Records a failure and its line. Returns true if the line should be printed.
    pub fn handle_failure(&mut self, error: &Error, line: &str) -> bool {
        let kind = (error.kind, error.scope, error.phase);
        let os_code = error.os_code();
        let is_full = self.groups.len() == ALIKE_GROUPS_MAX;
        match self.groups.iter_mut().find(|group| group.kind == kind && group.os_code == os_code) {
            Some(group) => {
                group.count += 1;
                group.count <= ALIKE_REPORTED_MAX
            }
            None if is_full => {
                self.others += 1;
                false
            }
            None => {
                self.groups.push(FailureGroup { kind, os_code, first_line: line.to_owned(), count: 1 });
                true
            }
        }
    }

    /// Returns the closing lines, with the numbers of failures that got no line. Then resets all counts.
    pub fn take_lines(&mut self) -> Vec<String> {
        let Self { groups, others } = std::mem::take(self);
        let told = groups.iter().filter(|group| group.count > ALIKE_REPORTED_MAX).map(FailureGroup::line);
        let others = (others > 0).then(|| format!("{others} more failed in other ways (-v names each)"));
        told.chain(others).collect()
    }
}

impl FailureGroup {
    fn line(&self) -> String {
        let more = self.count - ALIKE_REPORTED_MAX;
        match self.os_code.map(std::io::Error::from_raw_os_error) {
            None => format!("{more} more failed in the same way as: {} (-v names each)", self.first_line),
            Some(error) => format!("{more} more failed in the same way: {error} (-v names each)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_that_go_down_together_are_one_line() {
        let (mut lanes, start) = (LanesDown::default(), Instant::now());
        for lane in 0..16 {
            let reason = if lane == 3 { "reset" } else { "closed by the peer" };
            lanes.handle_down(lane, reason, start + Duration::from_millis(10) * lane);
        }
        let last = start + Duration::from_millis(150);
        assert_eq!(lanes.poll_lines(last), [""; 0]);
        assert_eq!(lanes.poll_lines(start + Duration::from_millis(530)), ["lane 3 is down: reset; dialling again"]);
        assert_eq!(lanes.poll_lines(last + TOGETHER), ["15 lanes are down: closed by the peer; dialling again"]);
        // Lanes that keep going down do not delay the line for ever.
        let told: Vec<usize> = (0u32..60)
            .map(|step| {
                let now = start + Duration::from_secs(1) + Duration::from_millis(100) * step;
                lanes.handle_down(step, "reset", now);
                lanes.poll_lines(now).len()
            })
            .collect();
        assert_eq!(told.iter().sum::<usize>(), 2);
        assert_eq!(lanes.take_lines(), ["18 lanes are down: reset; dialling again"]);
        assert!(lanes.take_lines().is_empty());
    }

    #[test]
    fn failures_alike_are_told_five_times_and_then_counted() {
        let mut failures = AlikeFailures::default();
        let mut told = |name: &str, os_code: Option<i32>| {
            let error = Error::new(ErrorKind::Denied, Scope::Destination, Phase::Prepare, format!("{name}: refused"));
            let error = match os_code {
                Some(code) => error.caused_by(std::io::Error::from_raw_os_error(code)),
                None => error,
            };
            failures.handle_failure(&error, &error.chain())
        };
        let (read_only, not_permitted) = (Some(30), Some(13));
        assert_eq!((0..300).filter(|index| told(&format!("f{index}"), read_only)).count(), 5);
        // Each reason has five lines.
        assert!(told("g", not_permitted));
        assert_eq!((0..7).filter(|index| told(&format!("h{index}"), None)).count(), 5);
        let said = [
            "295 more failed in the same way: Read-only file system (os error 30) (-v names each)",
            "2 more failed in the same way as: h0: refused (-v names each)",
        ];
        assert_eq!(failures.take_lines(), said);
        assert!(failures.take_lines().is_empty());
        // A peer that invents a new reason each time.
        let mut told = |code: i32| {
            let error = Error::new(ErrorKind::Denied, Scope::Source, Phase::Prepare, "f");
            let error = error.caused_by(std::io::Error::from_raw_os_error(code));
            failures.handle_failure(&error, &error.chain())
        };
        assert_eq!((1..=100).filter(|code| told(*code)).count(), ALIKE_GROUPS_MAX);
        assert_eq!(failures.take_lines(), ["68 more failed in other ways (-v names each)"]);
    }
}
