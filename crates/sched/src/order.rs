//! Order of the files in one queue: priorities with ageing, and deadlines by slack.
//!
//! Both orders have keys that do not change with time, so that a queue or a database keeps them sorted. A file of a
//! higher priority goes before files that were submitted up to [`LEVEL_TIME`] earlier for each level. So a waiting file
//! overtakes later ones of any priority, and nothing starves. A file with a deadline goes before all others once its
//! slack is used up. Refuses to know links or shares.

use std::time::Duration;

use crate::time::UnixTime;

/// Lowest and highest priority. Source: FTS3.
pub const PRIORITIES: (u8, u8) = (1, 5);

/// Waiting time that is worth one level of priority. Guess: a file of the lowest priority waits for at most four hours
/// more than one of the highest that was submitted at the same time.
pub const LEVEL_TIME: Duration = Duration::from_secs(3600);

/// Time before the latest start of a file at which it goes before all others. Guess: the choice of the next files and
/// the start of a transfer take a few seconds.
pub const SLACK_KEPT: Duration = Duration::from_secs(30);

/// Order of the queues of a mission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// By priority with ageing.
    #[default]
    Priority,
    /// By the time of the submission alone: first in, first out.
    Submission,
}

/// Key of a file in the order of its queue; the lowest goes first. Keys of one queue have the same [`Order`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank {
    /// Time of the submission, earlier by [`LEVEL_TIME`] for each level of priority.
    virtual_start: UnixTime,
    /// Number of the file: of equal files, the one that was stored first.
    file: u64,
}

impl Rank {
    /// Returns the key of a file. Priorities outside of [`PRIORITIES`] count as the nearest.
    pub fn new(order: Order, file: u64, priority: u8, submitted: UnixTime) -> Self {
        let level = u32::from(priority.clamp(PRIORITIES.0, PRIORITIES.1));
        let ahead = if order == Order::Priority { LEVEL_TIME * level } else { Duration::ZERO };
        Self { virtual_start: submitted - ahead, file }
    }

    /// Returns the number of the file.
    pub fn file(&self) -> u64 {
        self.file
    }
}

/// Key of a file in the order of deadlines; the lowest goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LatestStart {
    /// Time at which the file must start to end at its deadline.
    at: UnixTime,
    /// Number of the file.
    file: u64,
}

impl LatestStart {
    /// Returns the key of a file that must end at `deadline` and is expected to take `takes`.
    pub fn new(file: u64, deadline: UnixTime, takes: Duration) -> Self {
        Self { at: deadline - takes, file }
    }

    /// Returns true if the file goes before all files without slack.
    pub fn is_due(self, now: UnixTime) -> bool {
        self.at - SLACK_KEPT <= now
    }
}

/// First files of a queue in both orders; `None`: no file, or no file with a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// First by [`Rank`].
    pub by_rank: Option<Rank>,
    /// First by [`LatestStart`].
    pub by_deadline: Option<LatestStart>,
}

impl Heads {
    /// Returns the number of the file that goes first.
    pub fn first(self, now: UnixTime) -> Option<u64> {
        let due = self.by_deadline.filter(|latest| latest.is_due(now)).map(|latest| latest.file);
        due.or(self.by_rank.map(|rank| rank.file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const START: UnixTime = UnixTime(1_800_000_000_000);

    fn rank(file: u64, priority: u8, after: Duration) -> Rank {
        Rank::new(Order::Priority, file, priority, START + after)
    }

    #[test]
    fn priority_goes_first_until_the_others_have_waited_long_enough() {
        let old = rank(1, 3, Duration::ZERO);
        assert!(rank(2, 5, HOUR) < old, "two levels are worth two hours");
        assert!(rank(3, 5, HOUR * 3) > old);
        assert!(rank(4, 3, Duration::ZERO) > old, "of equal files, the one that was stored first");
        assert_eq!(rank(1, 9, HOUR), rank(1, 5, HOUR));
        assert_eq!(rank(1, 0, HOUR), rank(1, 1, HOUR));
    }

    #[test]
    fn no_file_waits_for_ever_beside_files_of_a_higher_priority() {
        // Later files of the highest priority go first for four hours.
        let low = rank(0, 1, Duration::ZERO);
        let overtaking = (1..100).filter(|minute| rank(*minute, 5, Duration::from_secs(minute * 600)) < low).count();
        assert_eq!(overtaking, 23, "one every ten minutes");
    }

    #[test]
    fn first_in_first_out_ignores_priorities() {
        let rank = |file, priority, after| Rank::new(Order::Submission, file, priority, START + after);
        assert!(rank(1, 1, Duration::ZERO) < rank(2, 5, Duration::from_millis(1)));
    }

    #[test]
    fn a_deadline_goes_first_when_its_slack_is_used_up() {
        let latest = LatestStart::new(7, START + HOUR * 2, HOUR);
        let heads = Heads { by_rank: Some(rank(1, 5, Duration::ZERO)), by_deadline: Some(latest) };
        assert_eq!(heads.first(START), Some(1));
        assert_eq!(heads.first(START + HOUR - SLACK_KEPT), Some(7));
        // The one with less slack: it takes longer, although its deadline is later.
        let longer = LatestStart::new(8, START + HOUR * 3, HOUR * 3);
        assert!(longer < latest);
        assert_eq!(Heads { by_rank: None, by_deadline: Some(longer) }.first(START + HOUR), Some(8));
        assert_eq!(Heads { by_rank: None, by_deadline: None }.first(START), None);
    }
}
