//! Runs: ranges of consecutive blocks of one file, each assigned to one lane. They serve sources where starting a new
//! request is expensive.
//!
//! A request to a web server costs a round trip, and cancelling a request costs a connection. A lane therefore gets a
//! run and requests three quarters of its remaining blocks at a time: few requests, and small ones towards the end. A
//! lane that has finished its run takes blocks that belong to no run. If there are none, it takes over part of the run
//! of the lane that would finish last. The split is proportional to the blocks that each of the two lanes has done so
//! far. Blocks that a lane has already requested move only when no others are left. The gain in time must then exceed
//! the cost of cancelling the request.
//!
//! Refuses to read a clock or send a request. Times come in as arguments.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::{FileId, LaneId};
use crate::range_set::RangeSet;

/// Order in which lanes take the blocks of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOrder {
    /// Each lane takes the next block: every block costs the same to read.
    Next,
    /// Like `Next`, but no lane takes a block before the receiver has reported which blocks it has.
    OnDemand,
    /// Each lane works through a separate run.
    Runs,
    /// Like `Runs`, but a lane requests one block at a time, so that all blocks it has not taken can move to another
    /// lane. Each lane represents a replica.
    Shared,
    /// One lane takes all blocks in order: the source can only be read sequentially.
    OneLane,
}

impl BlockOrder {
    /// Returns true if lanes work through runs.
    pub(super) fn has_runs(self) -> bool {
        !matches!(self, Self::Next | Self::OnDemand)
    }

    /// Returns true if a lane may take over part of another lane's run.
    pub(super) fn splits_runs(self) -> bool {
        matches!(self, Self::Runs | Self::Shared)
    }
}

#[derive(Clone, Debug)]
struct Run {
    file: FileId,
    blocks: Range<u64>,
    order: BlockOrder,
    /// End of the blocks that the lane has requested so far.
    asked: u64,
}

impl Run {
    fn new(file: FileId, blocks: Range<u64>, order: BlockOrder) -> Self {
        Self { file, asked: blocks.start, blocks, order }
    }
}

/// Progress of a lane.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    /// Number of blocks that the lane has taken.
    done: u64,
    /// True if the lane's last request was cancelled: the next one needs a new connection, which starts slowly.
    is_cold: bool,
}

/// Runs of all lanes. Range: the runs of one file do not overlap.
#[derive(Debug, Default)]
pub(super) struct Runs {
    by_lane: BTreeMap<LaneId, Run>,
    paces: BTreeMap<LaneId, Pace>,
    lanes: u32,
    /// Time of the first round-trip report while lanes had runs.
    began: Option<Instant>,
    /// Round-trip time to the source, as a fraction of the time since `began`; `None` while unknown.
    round_trip: Option<f64>,
}

impl Runs {
    pub(super) fn expect_lanes(&mut self, lanes: u32) {
        self.lanes = lanes;
    }

    /// Records the delay between a request to the source and its first byte; zero means unknown.
    pub(super) fn handle_round_trip(&mut self, round_trip: Duration, now: Instant) {
        if self.by_lane.is_empty() {
            return;
        }
        let time = now.saturating_duration_since(*self.began.get_or_insert(now));
        if !time.is_zero() && !round_trip.is_zero() {
            self.round_trip = Some(round_trip.div_duration_f64(time));
        }
    }

    /// Returns the file of the lane's run and the end of the blocks that the lane requests now.
    pub(super) fn of(&self, lane: LaneId) -> Option<(FileId, u64)> {
        self.by_lane.get(&lane).map(|run| (run.file, run.asked))
    }

    /// Removes a lane that is down.
    pub(super) fn forget(&mut self, lane: LaneId) {
        self.by_lane.remove(&lane);
        self.paces.remove(&lane);
    }

    /// Returns the next pending block of the lane's run; ends the run if there is none. `pending_of` returns the blocks
    /// of a file that may be taken.
    pub(super) fn next<'a>(
        &mut self,
        lane: LaneId,
        pending_of: impl Fn(FileId) -> Option<&'a RangeSet>,
    ) -> Option<(FileId, u64)> {
        let run = self.by_lane.get_mut(&lane)?;
        let next = pending_of(run.file).and_then(|pending| pending.within(run.blocks.clone()).next());
        match next {
            Some(range) => {
                run.blocks.start = range.start + 1;
                self.paces.entry(lane).or_default().done += 1;
                if run.order == BlockOrder::Shared {
                    run.asked = run.blocks.start;
                } else if range.start >= run.asked {
                    run.asked = range.start + ((run.blocks.end - range.start) * ASKED_QUARTERS).div_ceil(4);
                }
                Some((run.file, range.start))
            }
            None => {
                self.by_lane.remove(&lane);
                None
            }
        }
    }

    /// Starts a run of `lane` in `file` on pending blocks that belong to no run. Returns false if there are none.
    /// `files` is the number of files with pending blocks.
    pub(super) fn begin(
        &mut self,
        lane: LaneId,
        file: FileId,
        order: BlockOrder,
        pending: &RangeSet,
        files: usize,
    ) -> bool {
        let mut taken: Vec<Range<u64>> = self.in_file(file).collect();
        let (Some(first), Some(last)) = (pending.iter().next(), pending.iter().last()) else { return false };
        let blocks = if order == BlockOrder::OneLane {
            if !taken.is_empty() {
                return false;
            }
            first.start..last.end
        } else {
            taken.sort_by_key(|range| range.start);
            let Some(free) = first_free(pending, &taken) else { return false };
            // With at least as many files as lanes, each lane takes a whole file. With one file, each lane takes an
            // equal share.
            let lanes_a_file = u64::from(self.lanes.max(1)).div_ceil(files.max(1) as u64);
            let fair = pending.len().div_ceil(lanes_a_file);
            free.start..free.end.min(free.start + fair)
        };
        self.insert(lane, Run::new(file, blocks, order));
        true
    }

    fn insert(&mut self, lane: LaneId, run: Run) {
        self.by_lane.insert(lane, run);
        self.paces.entry(lane).or_default().is_cold = false;
    }

    /// Moves to `lane` part of the run of the lane that needs longest for its remaining blocks. The split lets both
    /// lanes finish together if they keep their pace. `pending_of` returns the blocks of a file whose runs may be
    /// split.
    pub(super) fn take_from_slowest<'a>(&mut self, lane: LaneId, pending_of: impl Fn(FileId) -> Option<&'a RangeSet>) {
        let left = |run: &Run| {
            let pending = pending_of(run.file)?;
            pending.within(run.blocks.clone()).max_by_key(|range| range.end - range.start)
        };
        let runs = self.by_lane.iter().filter(|(other, _)| **other != lane);
        let mut others: Vec<(LaneId, Range<u64>)> =
            runs.filter_map(|(other, run)| Some((*other, left(run)?))).collect();
        let time = |(other, range): &(LaneId, Range<u64>)| (range.end - range.start) as f64 / self.done(*other);
        others.sort_by(|one, other| time(other).total_cmp(&time(one)));
        let is_cold = self.paces.get(&lane).is_some_and(|pace| pace.is_cold);
        for breaks_off in [false, true] {
            if (!breaks_off || !is_cold)
                && others.iter().any(|(other, left)| self.split(*other, left, lane, breaks_off))
            {
                return;
            }
        }
    }

    /// Returns the number of blocks that a lane has taken, plus its current block.
    fn done(&self, lane: LaneId) -> f64 {
        self.paces.get(&lane).map_or(0, |pace| pace.done) as f64 + 1.0
    }

    /// Returns the minimum gain that justifies cancelling a request, as a fraction of the time so far.
    fn worth_breaking_off(&self) -> f64 {
        self.round_trip.map_or(BROKEN_OFF_GAIN, |part| (part * BROKEN_OFF_ROUND_TRIPS).min(BROKEN_OFF_GAIN))
    }

    /// Moves to `lane` part of `left`, a range of pending blocks in the run of `other`. Returns false if `lane` may
    /// take none of them.
    fn split(&mut self, other: LaneId, left: &Range<u64>, lane: LaneId, breaks_off: bool) -> bool {
        let (done, others_done, worth) = (self.done(lane), self.done(other), self.worth_breaking_off());
        let Some(run) = self.by_lane.get_mut(&other) else { return false };
        let count = (left.end - left.start) as f64;
        let part = (count * done / (done + others_done)).floor().max(1.0);
        // All times are fractions of the time so far. The gain is the time that `other` needs for its remaining blocks
        // and half of its current block, less the time that `lane` needs for its part.
        let won = (count + 0.5) / others_done - part / done;
        let first = if breaks_off && won >= worth { left.start } else { run.asked.max(left.start) };
        let middle = (left.end - part as u64).max(first);
        if middle >= left.end {
            return false;
        }
        let taken = Run::new(run.file, middle..run.blocks.end, run.order);
        run.blocks.end = middle;
        if middle < run.asked {
            run.asked = middle;
            self.paces.entry(other).or_default().is_cold = true;
        }
        self.insert(lane, taken);
        true
    }

    fn in_file(&self, file: FileId) -> impl Iterator<Item = Range<u64>> + '_ {
        self.by_lane.values().filter(move |run| run.file == file).map(|run| run.blocks.clone())
    }
}

/// Quarters of a run's remaining blocks that one request covers. Reason: fewer requests than with two; the last quarter
/// stays available to lanes that finish early.
const ASKED_QUARTERS: u64 = 3;

/// Minimum gain that justifies cancelling a request: a fraction of the time so far, or the time of this many round
/// trips if that is less. Reason: cancelling costs a connection, and the lane that takes over the blocks waits a round
/// trip for them. Data in flight for the cancelled request is wasted.
const BROKEN_OFF_GAIN: f64 = 1.0 / 16.0;
const BROKEN_OFF_ROUND_TRIPS: f64 = 4.0;

/// Returns the first range of `pending` that overlaps none of `taken`, which is sorted.
fn first_free(pending: &RangeSet, taken: &[Range<u64>]) -> Option<Range<u64>> {
    pending.iter().find_map(|range| {
        let mut start = range.start;
        for run in taken.iter().filter(|run| run.end > range.start && run.start < range.end) {
            if run.start > start {
                return Some(start..run.start);
            }
            start = start.max(run.end);
        }
        (start < range.end).then_some(start..range.end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId(0);

    fn pending(ranges: &[(u64, u64)]) -> RangeSet {
        let mut set = RangeSet::default();
        ranges.iter().for_each(|&(start, end)| set.insert(start..end));
        set
    }

    fn run_of(runs: &Runs, lane: u32) -> Range<u64> {
        runs.by_lane[&LaneId(lane)].blocks.clone()
    }

    /// Takes the next block of a lane out of `left`, as a session does.
    fn take(runs: &mut Runs, lane: u32, left: &mut RangeSet) -> Option<u64> {
        let (_, index) = runs.next(LaneId(lane), |_| Some(&*left))?;
        left.remove(index..index + 1);
        Some(index)
    }

    #[test]
    fn lanes_that_are_expected_share_a_file_in_equal_runs() {
        let mut left = pending(&[(0, 160)]);
        let mut runs = Runs::default();
        runs.expect_lanes(16);
        for lane in 0..16 {
            assert!(runs.begin(LaneId(lane), FILE, BlockOrder::Runs, &left, 1));
            let start = u64::from(lane) * 10;
            // Blocks in flight on other lanes make a run slightly shorter.
            let run = run_of(&runs, lane);
            assert!(run.start <= start && run.end - run.start >= 9, "{lane}: {run:?}");
            take(&mut runs, lane, &mut left);
        }
    }

    #[test]
    fn every_block_is_taken_once_however_lanes_differ() {
        let mut left = pending(&[(0, 37), (50, 51), (60, 100)]);
        let count = left.len();
        let mut runs = Runs::default();
        runs.expect_lanes(5);
        let mut taken = std::collections::BTreeSet::new();
        for turn in 0.. {
            // Lane 0 is ten times as fast as the others.
            let lane = if turn % 10 == 0 { 1 + (turn / 10) % 4 } else { 0 };
            let next = take(&mut runs, lane, &mut left).or_else(|| {
                if !runs.begin(LaneId(lane), FILE, BlockOrder::Runs, &left, 1) {
                    runs.take_from_slowest(LaneId(lane), |_| Some(&left));
                }
                take(&mut runs, lane, &mut left)
            });
            if let Some(index) = next {
                assert!(taken.insert(index), "block {index} went twice");
            } else if left.is_empty() {
                break;
            }
            assert!(turn < 10_000, "{left:?} is taken by nobody");
        }
        assert_eq!(taken.len() as u64, count);
    }

    #[test]
    fn a_lane_asks_for_much_at_a_time_and_for_less_and_less() {
        let mut left = pending(&[(0, 16)]);
        let mut runs = Runs::default();
        assert!(runs.begin(LaneId(0), FILE, BlockOrder::Runs, &left, 1));
        let mut ends = Vec::new();
        while take(&mut runs, 0, &mut left).is_some() {
            ends.extend(runs.of(LaneId(0)).map(|(_, end)| end));
        }
        ends.dedup();
        assert_eq!(ends, [12, 15, 16]);
    }

    /// Returns two lanes with equal runs of `length` blocks. The first lane has taken `taken` blocks, the second lane
    /// one.
    fn unequal(length: u64, taken: u64) -> (Runs, RangeSet) {
        let (mut left, mut runs) = (pending(&[(0, 2 * length)]), Runs::default());
        for (lane, start, count) in [(0, 0, taken), (1, length, 1)] {
            runs.insert(LaneId(lane), Run::new(FILE, start..start + length, BlockOrder::Runs));
            assert!((0..count).all(|_| take(&mut runs, lane, &mut left).is_some()));
        }
        (runs, left)
    }

    /// Reports a round-trip time that is `part` of the time so far.
    fn tell_round_trip(runs: &mut Runs, part: f64) {
        let began = Instant::now();
        runs.handle_round_trip(Duration::ZERO, began);
        runs.handle_round_trip(Duration::from_secs_f64(1000.0 * part), began + Duration::from_secs(1000));
    }

    #[test]
    fn a_fast_lane_takes_its_part_of_what_a_slow_one_has_asked_for() {
        let (mut runs, left) = unequal(100, 100);
        assert_eq!(runs.of(LaneId(1)).unwrap().1, 175, "three quarters are asked for");
        // Blocks that are not requested move first.
        runs.take_from_slowest(LaneId(0), |_| Some(&left));
        assert_eq!((run_of(&runs, 0), run_of(&runs, 1)), (175..200, 101..175));
        let mut left = left;
        while take(&mut runs, 0, &mut left).is_some() {}
        // The slow lane does two of 74 blocks while the fast lane does the rest.
        runs.take_from_slowest(LaneId(0), |_| Some(&left));
        assert_eq!((run_of(&runs, 0), run_of(&runs, 1)), (103..175, 101..103));
        assert_eq!(runs.of(LaneId(1)).unwrap().1, 103, "nor does it ask for more");
        // A lane that has lost its connection cancels no other request, however fast it was before.
        assert_eq!(take(&mut runs, 0, &mut left), Some(103));
        let asked = runs.of(LaneId(0)).unwrap().1;
        runs.paces.entry(LaneId(1)).or_default().done = 1000;
        runs.take_from_slowest(LaneId(1), |_| Some(&left));
        assert_eq!(run_of(&runs, 1), asked..175);
    }

    /// Lets a finished lane take over blocks from a lane with two blocks left in a request of three. Returns the blocks
    /// that the second lane still requests afterwards.
    fn still_asked(round_trip: Option<f64>) -> Range<u64> {
        let (mut runs, mut left) = unequal(100, 100);
        (1..98).for_each(|_| assert!(take(&mut runs, 1, &mut left).is_some()));
        round_trip.into_iter().for_each(|part| tell_round_trip(&mut runs, part));
        let (_, asked) = runs.of(LaneId(1)).unwrap();
        // Blocks that are not requested move first.
        runs.take_from_slowest(LaneId(0), |_| Some(&left));
        while take(&mut runs, 0, &mut left).is_some() {}
        runs.take_from_slowest(LaneId(0), |_| Some(&left));
        run_of(&runs, 1).start..asked.min(run_of(&runs, 1).end)
    }

    #[test]
    fn a_request_that_holds_nothing_up_is_not_broken_off() {
        // In the first case three of 100 blocks are left, which take a thirtieth of the time so far. In the second case
        // two of 20 are left, and the finished lane would need as long for the last one.
        for (length, taken) in [(100, 97), (20, 18)] {
            let (mut runs, mut left) = unequal(length, length);
            (1..taken).for_each(|_| assert!(take(&mut runs, 1, &mut left).is_some()));
            let (_, asked) = runs.of(LaneId(1)).unwrap();
            // Only blocks that are not requested move.
            runs.take_from_slowest(LaneId(0), |_| Some(&left));
            while take(&mut runs, 0, &mut left).is_some() {}
            assert!(left.iter().flatten().eq(length + taken..asked), "{left:?}");
            runs.take_from_slowest(LaneId(0), |_| Some(&left));
            assert_eq!((runs.of(LaneId(0)), run_of(&runs, 1).end), (None, asked));
        }
    }

    #[test]
    fn over_short_paths_less_is_worth_breaking_a_request_off() {
        // A block takes a hundredth of the time so far, and the gain would be one and a half blocks.
        let whole = still_asked(None);
        assert!(!whole.is_empty());
        assert_eq!(still_asked(Some(1.0 / 100.0)), whole, "where it costs four blocks");
        assert_eq!(still_asked(Some(1.0)), whole);
        let broken = still_asked(Some(1.0 / 10_000.0));
        assert!(broken.end < whole.end, "{broken:?} of {whole:?}");
    }

    #[test]
    fn a_source_that_is_read_in_one_way_only_has_one_lane() {
        let left = pending(&[(0, 8)]);
        let mut runs = Runs::default();
        runs.expect_lanes(4);
        assert!(runs.begin(LaneId(0), FILE, BlockOrder::OneLane, &left, 1));
        assert!(!runs.begin(LaneId(1), FILE, BlockOrder::OneLane, &left, 1));
        assert_eq!(run_of(&runs, 0), 0..8);
        // The run is not split either: the session offers none of its blocks for splitting.
        runs.take_from_slowest(LaneId(1), |_| None);
        assert_eq!(runs.of(LaneId(1)), None);
    }

    #[test]
    fn as_many_files_as_lanes_are_read_whole() {
        let left = pending(&[(0, 40)]);
        let mut runs = Runs::default();
        runs.expect_lanes(4);
        for lane in 0..4 {
            assert!(runs.begin(LaneId(lane), FileId(lane.into()), BlockOrder::Runs, &left, 4));
            assert_eq!(run_of(&runs, lane), 0..40);
        }
    }
}
