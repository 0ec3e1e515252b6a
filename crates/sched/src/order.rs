//! Order of the files in one queue: priorities with ageing, and deadlines by slack.
//!
//! The keys of priorities do not change with time, so that a queue or a database keeps them sorted. A file of a higher
//! priority goes before files that were submitted up to [`LEVEL_TIME`] earlier for each level. So a waiting file
//! overtakes later ones of any priority, and nothing starves. A file with a deadline goes before all others once its
//! slack is used up, at the rate of a file on its link. One that is late goes on: it may still be of use. Refuses to
//! know links or shares.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sterna_proto::{BitRate, ByteCount};

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

/// File that goes first because of its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// Number of the file.
    pub file: u64,
    /// Its deadline.
    pub deadline: UnixTime,
    /// Time at which it must start to end in time. In the past for a file that cannot any more.
    pub latest_start: UnixTime,
}

impl Due {
    /// Returns true if the deadline has passed.
    pub fn is_late(&self, now: UnixTime) -> bool {
        self.deadline <= now
    }

    /// Returns the key by which due files go: those that are not late first, by the time at which they must start.
    pub fn urgency(&self, now: UnixTime) -> (bool, UnixTime, u64) {
        (self.is_late(now), self.latest_start, self.file)
    }
}

/// Files with a deadline, by classes of size: of two files of a class, the one with the earlier deadline must start
/// first, at any rate. So a new rate of the link costs nothing, however many files wait.
#[derive(Clone, Debug, Default)]
pub struct Deadlines {
    classes: BTreeMap<u64, BTreeSet<(UnixTime, u64)>>,
}

/// Classes for each doubling of the size, as a power of two. Reason: a file counts as the largest of its class, and so
/// starts early by a quarter of its time at most.
const CLASS_BITS: u32 = 2;

/// Returns the largest size of the class of a size.
fn class_of(size: ByteCount) -> u64 {
    let bits = u64::BITS - size.0.leading_zeros();
    let low = bits.saturating_sub(CLASS_BITS + 1);
    size.0 | ((1 << low) - 1)
}

impl Deadlines {
    /// Adds a file.
    pub fn add(&mut self, file: u64, deadline: UnixTime, size: ByteCount) {
        self.classes.entry(class_of(size)).or_default().insert((deadline, file));
    }

    /// Removes a file.
    pub fn remove(&mut self, file: u64, deadline: UnixTime, size: ByteCount) {
        let class = class_of(size);
        if let Some(files) = self.classes.get_mut(&class) {
            files.remove(&(deadline, file));
            if files.is_empty() {
                self.classes.remove(&class);
            }
        }
    }

    /// Returns the file that goes before all files without a deadline: one whose slack is used up, at this rate of a
    /// file. Late files go after those that can end in time. `None`: every file has slack.
    pub fn first(&self, rate: BitRate, now: UnixTime) -> Option<Due> {
        let due = |(class, (deadline, file)): (u64, (UnixTime, u64))| {
            let latest_start = deadline - rate.time_for(ByteCount(class));
            Some(Due { file, deadline, latest_start }).filter(|due| due.latest_start - SLACK_KEPT <= now)
        };
        // The first one that is not late, and the first one of all.
        let in_time = |files: &BTreeSet<(UnixTime, u64)>| files.range((now, u64::MAX)..).next().copied();
        let heads = self.classes.iter().flat_map(|(class, files)| {
            let heads = [in_time(files), files.first().copied()];
            heads.into_iter().flatten().map(|head| (*class, head))
        });
        heads.filter_map(due).min_by_key(|due| due.urgency(now))
    }
}

#[cfg(test)]
mod tests {
    use sterna_seeded::{Seeded, for_seeds};

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

    /// Rate at which a GB takes 8 s.
    const GIGABIT: BitRate = BitRate(1_000_000_000);

    #[test]
    fn a_file_is_due_when_its_slack_is_used_up() {
        let mut deadlines = Deadlines::default();
        // 3.5 GiB is the largest size of its class, and takes 30.06 s.
        let size = ByteCount((7 << 29) - 1);
        deadlines.add(7, START + HOUR, size);
        let latest_start = START + HOUR - GIGABIT.time_for(size);
        assert_eq!(deadlines.first(GIGABIT, latest_start - SLACK_KEPT - Duration::from_millis(1)), None);
        let due = Due { file: 7, deadline: START + HOUR, latest_start };
        assert_eq!(deadlines.first(GIGABIT, latest_start - SLACK_KEPT), Some(due));
        // At a tenth of the rate, it must start ten times as early.
        let slow = BitRate(GIGABIT.0 / 10);
        let latest_start = START + HOUR - slow.time_for(size);
        assert_eq!(deadlines.first(slow, latest_start - SLACK_KEPT), Some(Due { latest_start, ..due }));
        assert!(!due.is_late(START) && due.is_late(START + HOUR));
        deadlines.remove(7, START + HOUR, size);
        assert!(deadlines.first(GIGABIT, START + HOUR * 2).is_none() && deadlines.classes.is_empty());
    }

    #[test]
    fn the_file_that_must_start_first_goes_first_and_late_ones_after_those_that_can_end_in_time() {
        let mut deadlines = Deadlines::default();
        let gigabyte = ByteCount(1_000_000_000);
        // 100 GB take 800 s: it has less slack than 1 GB with an earlier deadline.
        deadlines.add(1, START + HOUR, gigabyte);
        deadlines.add(2, START + HOUR + Duration::from_secs(60), ByteCount(gigabyte.0 * 100));
        let first = |deadlines: &Deadlines, now| deadlines.first(GIGABIT, now).map(|due| due.file);
        assert_eq!(first(&deadlines, START + HOUR - Duration::from_secs(20)), Some(2));
        deadlines.add(3, START, gigabyte);
        deadlines.add(4, START, ByteCount(0));
        assert_eq!(first(&deadlines, START + HOUR - Duration::from_secs(20)), Some(2), "3 and 4 are late");
        assert_eq!(first(&deadlines, START + Duration::from_secs(1)), Some(3), "late, while the others have slack");
        deadlines.remove(3, START, gigabyte);
        assert_eq!(first(&deadlines, START + Duration::from_secs(1)), Some(4));
    }

    #[test]
    fn classes_hold_sizes_that_differ_by_a_quarter_at_most() {
        for_seeds("classes_hold_sizes_that_differ_by_a_quarter_at_most", 200, |seed| {
            let mut random = Seeded::new(seed);
            let shift = random.below(64);
            let size = random.below(u64::MAX) >> shift;
            let largest = class_of(ByteCount(size));
            assert!(largest >= size && largest - size <= size / 4, "{size}: {largest}");
            assert_eq!(class_of(ByteCount(largest)), largest, "{size}");
        });
        assert_eq!([0, 1, 7, 8, 9].map(|size| class_of(ByteCount(size))), [0, 1, 7, 9, 9]);
        assert_eq!(class_of(ByteCount(u64::MAX)), u64::MAX);
    }

    #[test]
    fn the_first_due_file_is_that_of_a_search_over_all() {
        for_seeds("the_first_due_file_is_that_of_a_search_over_all", 200, |seed| {
            let mut random = Seeded::new(seed);
            let mut deadlines = Deadlines::default();
            let mut files = Vec::new();
            for number in 0..40 {
                let deadline = START + Duration::from_secs(random.below(7200));
                let most = 1 << random.below(40);
                let size = ByteCount(random.below(most));
                deadlines.add(number, deadline, size);
                files.push((number, deadline, size));
            }
            while !files.is_empty() {
                let now = START + Duration::from_secs(random.below(7200));
                let rate = BitRate(1 + random.below(10 * GIGABIT.0));
                let dues = files.iter().map(|(file, deadline, size)| {
                    let latest_start = *deadline - rate.time_for(ByteCount(class_of(*size)));
                    Due { file: *file, deadline: *deadline, latest_start }
                });
                let due = dues.filter(|due| due.latest_start <= now + SLACK_KEPT);
                assert_eq!(deadlines.first(rate, now), due.min_by_key(|due| due.urgency(now)));
                let (file, deadline, size) = files.swap_remove(random.index(files.len()));
                deadlines.remove(file, deadline, size);
            }
        });
    }
}
