//! Budget for the texts of a peer that reach the user.
//!
//! A peer can send any number of notices, and each becomes a line on a terminal or an event of `--json`. Counts them,
//! one minute at a time; those above the budget are left out, and only their number is reported. Time is an argument.

use std::time::{Duration, Instant};

/// Maximum number of notices of one peer in a minute. Reason: more lines than a user reads, and more than a peer that
/// works has to send: one for each file that starts over, and two for each lane that is lost and dialled again.
pub(super) const NOTICES_MAX: u32 = 240;

/// Duration of a budget.
const MINUTE: Duration = Duration::from_secs(60);

/// Notices of one peer in the current minute.
#[derive(Debug, Default)]
pub(super) struct NoticeBudget {
    admitted: u32,
    left_out: u64,
    /// Start of the current minute; `None` before the first call of [`NoticeBudget::handle_timeout`].
    since: Option<Instant>,
}

impl NoticeBudget {
    /// Counts a notice. Returns true if the user receives it.
    pub(super) fn admit(&mut self) -> bool {
        let is_admitted = self.admitted < NOTICES_MAX;
        match is_admitted {
            true => self.admitted += 1,
            false => self.left_out += 1,
        }
        is_admitted
    }

    /// Begins a new minute if the last one is over. Returns the line about the notices that were left out, if any.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Option<String> {
        let since = *self.since.get_or_insert(now);
        if now.saturating_duration_since(since) < MINUTE {
            return None;
        }
        self.since = Some(now);
        self.admitted = 0;
        self.take_line()
    }

    /// Returns the line about the notices that were left out, if any. Called at the end of the session too.
    pub(super) fn take_line(&mut self) -> Option<String> {
        let left_out = std::mem::take(&mut self.left_out);
        (left_out > 0).then(|| {
            format!("the peer sent more than {NOTICES_MAX} notices in a minute; {left_out} of them are left out here")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_above_the_budget_of_a_minute_are_counted_and_told_in_one_line() {
        let mut budget = NoticeBudget::default();
        let start = Instant::now();
        assert_eq!(budget.handle_timeout(start), None);
        let admitted = (0..NOTICES_MAX + 7).filter(|_| budget.admit()).count();
        assert_eq!(admitted, NOTICES_MAX as usize);
        assert_eq!(budget.handle_timeout(start + MINUTE - Duration::from_nanos(1)), None);
        let line = budget.handle_timeout(start + MINUTE).unwrap();
        assert!(line.contains("; 7 of them"), "{line}");
        assert!(budget.admit(), "a new minute");
        assert_eq!((budget.handle_timeout(start + 3 * MINUTE), budget.take_line()), (None, None));
    }
}
