//! Queue of the files of one activity of one VO on one link.
//!
//! Keeps files sorted by rank and by deadline, and those that wait for a retry by time. Refuses to know limits, shares
//! or other queues.

use std::collections::{BTreeMap, BTreeSet};

use sterna_proto::{BitRate, ByteCount};

use crate::order::{Deadlines, Due, Order, Rank};
use crate::time::UnixTime;

/// Number of a file in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileNumber(pub u64);

/// File that waits to be transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuedFile {
    /// Number.
    pub number: FileNumber,
    /// Size; `None`: not known.
    pub size: Option<ByteCount>,
    /// Priority, from 1 to 5.
    pub priority: u8,
    /// Time of the submission.
    pub submitted: UnixTime,
    /// Latest time at which the file shall have arrived. It goes on after that.
    pub deadline: Option<UnixTime>,
    /// Time before which it must not start: it waits for a retry.
    pub not_before: UnixTime,
    /// Files of one queue with the same group may share a session; `None`: it goes alone.
    pub group: Option<u128>,
}

/// Size that counts for a file whose size is not known. Guess: the mean of WLCG transfers, 1.5 GB.
pub const SIZE_ASSUMED: ByteCount = ByteCount(1_500_000_000);

/// Rate of a link, or of a file on it, that nobody has measured. Guess: an ordinary site.
pub const RATE_ASSUMED: BitRate = BitRate(1_000_000_000);

impl QueuedFile {
    /// Returns the size, or the assumed one.
    pub fn assumed_size(&self) -> ByteCount {
        self.size.unwrap_or(SIZE_ASSUMED)
    }
}

/// File that goes first in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct First {
    /// Number.
    pub number: FileNumber,
    /// Size, or the assumed one.
    pub size: ByteCount,
    /// Its deadline, if the file goes first because of it.
    pub due: Option<Due>,
}

/// Queue in its order.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    order: Order,
    files: BTreeMap<FileNumber, QueuedFile>,
    by_rank: BTreeSet<Rank>,
    deadlines: Deadlines,
    /// Files that wait for a retry, by its time.
    later: BTreeSet<(UnixTime, FileNumber)>,
    /// Size of all files. Users give the sizes: their sum has room for any number of any size.
    bytes: u128,
}

impl Queue {
    /// Creates an empty queue.
    pub fn new(order: Order) -> Self {
        Self { order, ..Self::default() }
    }

    /// Returns the files, by number.
    pub fn into_files(self) -> impl Iterator<Item = QueuedFile> {
        self.files.into_values()
    }

    /// Adds a file. A file of the same number is replaced.
    pub fn add(&mut self, file: QueuedFile, now: UnixTime) {
        self.remove(file.number);
        self.bytes += u128::from(file.assumed_size().0);
        self.files.insert(file.number, file);
        if file.not_before > now {
            self.later.insert((file.not_before, file.number));
        } else {
            self.enter(&file);
        }
    }

    /// Removes a file, and returns it if it was there.
    pub fn remove(&mut self, number: FileNumber) -> Option<QueuedFile> {
        let file = self.files.remove(&number)?;
        self.bytes -= u128::from(file.assumed_size().0);
        self.later.remove(&(file.not_before, number));
        self.by_rank.remove(&self.rank(&file));
        if let Some(deadline) = file.deadline {
            self.deadlines.remove(number.0, deadline, file.assumed_size());
        }
        Some(file)
    }

    /// Returns the file that goes first now. `rate`: that of one file on the link, which decides when a file must start
    /// to end at its deadline.
    pub fn first(&mut self, rate: BitRate, now: UnixTime) -> Option<First> {
        while let Some((at, number)) = self.later.first().copied().filter(|(at, _)| *at <= now) {
            self.later.remove(&(at, number));
            if let Some(file) = self.files.get(&number).copied() {
                self.enter(&file);
            }
        }
        let due = self.deadlines.first(rate, now);
        let by_rank = || self.by_rank.first().map(Rank::file);
        let number = FileNumber(due.map(|due| due.file).or_else(by_rank)?);
        Some(First { number, size: self.files.get(&number)?.assumed_size(), due })
    }

    /// Returns the number of files that go before a file, and their size: none if the file goes first because of its
    /// deadline, and else those before it by rank that wait for no retry. `None`: the file is not in the queue.
    ///
    /// Cost: grows with the files before it.
    pub fn before(&self, number: FileNumber, rate: BitRate, now: UnixTime) -> Option<(usize, ByteCount)> {
        let rank = self.rank(self.files.get(&number)?);
        if self.deadlines.first(rate, now).is_some_and(|due| due.file == number.0) {
            return Some((0, ByteCount(0)));
        }
        let size = |rank: &Rank| self.files.get(&FileNumber(rank.file())).map_or(0, |file| file.assumed_size().0);
        let add = |(count, bytes): (usize, u64), rank| (count + 1, bytes.saturating_add(size(rank)));
        let (count, bytes) = self.by_rank.range(..rank).fold((0, 0), add);
        Some((count, ByteCount(bytes)))
    }

    /// Returns a file.
    pub fn file(&self, number: FileNumber) -> Option<&QueuedFile> {
        self.files.get(&number)
    }

    /// Returns the number of files, those that wait for a retry included.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Returns true if there is no file.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Returns the size of all files together; saturates.
    pub fn size(&self) -> ByteCount {
        ByteCount(u64::try_from(self.bytes).unwrap_or(u64::MAX))
    }

    fn enter(&mut self, file: &QueuedFile) {
        self.by_rank.insert(self.rank(file));
        if let Some(deadline) = file.deadline {
            self.deadlines.add(file.number.0, deadline, file.assumed_size());
        }
    }

    fn rank(&self, file: &QueuedFile) -> Rank {
        Rank::new(self.order, file.number.0, file.priority, file.submitted)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: UnixTime = UnixTime(1_800_000_000_000);

    fn file(number: u64, priority: u8) -> QueuedFile {
        QueuedFile {
            number: FileNumber(number),
            size: Some(ByteCount(number * 100)),
            priority,
            submitted: NOW,
            deadline: None,
            not_before: NOW,
            group: None,
        }
    }

    fn first(queue: &mut Queue, now: UnixTime) -> Option<u64> {
        queue.first(RATE_ASSUMED, now).map(|first| first.number.0)
    }

    fn before(queue: &Queue, number: u64) -> Option<(usize, ByteCount)> {
        queue.before(FileNumber(number), RATE_ASSUMED, NOW)
    }

    #[test]
    fn sizes_at_the_maximum_are_added_up() {
        let mut queue = Queue::default();
        let huge = |number| QueuedFile { size: Some(ByteCount(u64::MAX)), ..file(number, 3) };
        (1..4).for_each(|number| queue.add(huge(number), NOW));
        let huge = ByteCount(u64::MAX);
        assert_eq!((queue.size(), before(&queue, 3)), (huge, Some((2, huge))));
        assert!((1..3).all(|number| queue.remove(FileNumber(number)).is_some()));
        assert_eq!(queue.size(), ByteCount(u64::MAX));
        queue.remove(FileNumber(3));
        assert_eq!(queue.size(), ByteCount(0));
    }

    #[test]
    fn files_leave_in_order_and_their_bytes_with_them() {
        let mut queue = Queue::default();
        for (number, priority) in [(1, 3), (2, 5), (3, 1), (4, 5)] {
            queue.add(file(number, priority), NOW);
        }
        queue.add(QueuedFile { size: None, ..file(5, 4) }, NOW);
        assert_eq!((queue.len(), queue.size()), (5, ByteCount(1000 + SIZE_ASSUMED.0)));
        assert_eq!(before(&queue, 1), Some((3, ByteCount(600 + SIZE_ASSUMED.0))));
        let mut order = Vec::new();
        while let Some(first) = first(&mut queue, NOW) {
            order.push(first);
            assert_eq!(queue.remove(FileNumber(first)).map(|file| file.number.0), Some(first));
        }
        assert_eq!((order, queue.is_empty(), queue.size()), (vec![2, 4, 5, 1, 3], true, ByteCount(0)));
        assert_eq!((queue.remove(FileNumber(1)), before(&queue, 1)), (None, None));
    }

    #[test]
    fn a_retry_waits_for_its_time_and_then_takes_its_old_place() {
        let mut queue = Queue::default();
        let later = NOW + Duration::from_secs(60);
        queue.add(QueuedFile { not_before: later, ..file(1, 5) }, NOW);
        queue.add(file(2, 3), NOW);
        assert_eq!((first(&mut queue, NOW), before(&queue, 1)), (Some(2), Some((0, ByteCount(0)))));
        assert_eq!(first(&mut queue, later), Some(1));
        assert_eq!(before(&queue, 2), Some((1, ByteCount(100))));
        // Replaced by a file that waits again.
        queue.add(QueuedFile { not_before: later + Duration::from_secs(1), ..file(1, 5) }, later);
        assert_eq!((first(&mut queue, later), queue.len()), (Some(2), 2));
        queue.remove(FileNumber(1));
        assert_eq!(first(&mut queue, later + Duration::from_secs(9)), Some(2));
    }

    #[test]
    fn a_file_near_its_deadline_goes_first() {
        let mut queue = Queue::new(Order::Submission);
        queue.add(file(1, 1), NOW);
        // 25 GB take 200 s at 1 Gbit/s, and 250 s at 0.8 Gbit/s.
        let deadline = NOW + Duration::from_secs(600);
        let urgent = QueuedFile { size: Some(ByteCount(25_000_000_000)), deadline: Some(deadline), ..file(2, 1) };
        queue.add(urgent, NOW);
        assert_eq!(first(&mut queue, NOW), Some(1));
        let late = NOW + Duration::from_secs(371);
        assert_eq!(first(&mut queue, late), Some(2));
        let early = NOW + Duration::from_secs(330);
        assert_eq!(first(&mut queue, early), Some(1));
        let due = queue.first(BitRate(800_000_000), early).unwrap();
        assert_eq!((due.number.0, due.due.map(|due| due.deadline)), (2, Some(deadline)));
        assert_eq!(before(&queue, 2), Some((1, ByteCount(100))));
        assert_eq!(queue.before(FileNumber(2), RATE_ASSUMED, late), Some((0, ByteCount(0))));
        // It goes on when the deadline has passed.
        assert_eq!(first(&mut queue, deadline + Duration::from_secs(9)), Some(2));
        queue.remove(FileNumber(2));
        assert_eq!(queue.first(RATE_ASSUMED, late).unwrap().due, None);
    }
}
