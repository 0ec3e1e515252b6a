//! Runs: which stretch of a file each lane goes through, for sources that are dear to begin anew.
//!
//! A request to a web server costs a round trip, and one that is broken off a connection. A lane therefore gets a run of
//! consecutive blocks, and asks for three quarters of what is left of it at a time: few requests, small ones towards the end. A lane
//! whose run is done takes what is in nobody's run, and where there is none its part, by how much each has done, of what the lane
//! that needs longest has before it. What lanes have asked for already is taken only when nothing else is left, and where it would hold
//! up the end by more than what breaking a request off costs.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::{FileId, LaneId};
use crate::range_set::RangeSet;

/// In which order lanes take the blocks of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOrder {
    /// Each takes the next one: every block costs the same to read.
    Next,
    /// Likewise, and none is taken before the receiver has said which it has.
    OnDemand,
    /// Each lane goes through a run of its own.
    Runs,
    /// Likewise, and a lane asks for a block at a time, so that all that it has not taken can go to another: each lane is a replica.
    Shared,
    /// One lane takes them all, from the first to the last: the source can be read in no other way.
    OneLane,
}

impl BlockOrder {
    /// Whether lanes go through runs.
    pub(super) fn has_runs(self) -> bool {
        !matches!(self, Self::Next | Self::OnDemand)
    }

    /// Whether a lane may take part of the run of another.
    pub(super) fn splits_runs(self) -> bool {
        matches!(self, Self::Runs | Self::Shared)
    }
}

#[derive(Clone, Debug)]
struct Run {
    file: FileId,
    blocks: Range<u64>,
    order: BlockOrder,
    /// The lane has asked for the blocks before this one.
    asked: u64,
}

impl Run {
    fn new(file: FileId, blocks: Range<u64>, order: BlockOrder) -> Self {
        Self { file, asked: blocks.start, blocks, order }
    }
}

/// What a lane has shown that it can do.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    /// Blocks that it has taken.
    done: u64,
    /// Its last request was broken off, so that its next one begins slowly.
    is_cold: bool,
}

/// The runs of all lanes. Range: those of one file do not overlap.
#[derive(Debug, Default)]
pub(super) struct Runs {
    by_lane: BTreeMap<LaneId, Run>,
    paces: BTreeMap<LaneId, Pace>,
    lanes: u32,
    /// When lanes were first seen to have runs.
    began: Option<Instant>,
    /// A round trip to the source, as a part of the time until now; `None` while that is not known.
    round_trip: Option<f64>,
}

impl Runs {
    pub(super) fn expect_lanes(&mut self, lanes: u32) {
        self.lanes = lanes;
    }

    /// A request to the source takes `round_trip` before its first byte comes; zero: nobody knows.
    pub(super) fn handle_round_trip(&mut self, round_trip: Duration, now: Instant) {
        if self.by_lane.is_empty() {
            return;
        }
        let time = now.saturating_duration_since(*self.began.get_or_insert(now));
        if !time.is_zero() && !round_trip.is_zero() {
            self.round_trip = Some(round_trip.div_duration_f64(time));
        }
    }

    /// The file of a lane's run, and the end of what the lane asks for now.
    pub(super) fn of(&self, lane: LaneId) -> Option<(FileId, u64)> {
        self.by_lane.get(&lane).map(|run| (run.file, run.asked))
    }

    /// A lane is no more.
    pub(super) fn forget(&mut self, lane: LaneId) {
        self.by_lane.remove(&lane);
        self.paces.remove(&lane);
    }

    /// Moves on to the next block of the lane's run that is pending; ends the run when there is none. `pending_of`: the blocks
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

    /// Begins a run of `lane` in `file`, where blocks are in nobody's run; whether there are any. `files`: how many have
    /// pending blocks.
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
            // Where there are as many files as lanes each lane takes a file; where there is one each takes its part.
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

    /// Gives `lane` its part of what the lane that needs longest for what it has before it: both are to be done together, if they go on as they did.
    /// `pending_of`: the blocks of a file whose runs may be split.
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

    /// Blocks that a lane has taken, and the one that it is at.
    fn done(&self, lane: LaneId) -> f64 {
        self.paces.get(&lane).map_or(0, |pace| pace.done) as f64 + 1.0
    }

    /// The part of the time until now by which a request that is broken off must bring the end nearer.
    fn worth_breaking_off(&self) -> f64 {
        self.round_trip.map_or(BROKEN_OFF_GAIN, |part| (part * BROKEN_OFF_ROUND_TRIPS).min(BROKEN_OFF_GAIN))
    }

    /// Gives `lane` its part of `left`, the blocks before `other`; whether there are any that it may have.
    fn split(&mut self, other: LaneId, left: &Range<u64>, lane: LaneId, breaks_off: bool) -> bool {
        let (done, others_done, worth) = (self.done(lane), self.done(other), self.worth_breaking_off());
        let Some(run) = self.by_lane.get_mut(&other) else { return false };
        let count = (left.end - left.start) as f64;
        let part = (count * done / (done + others_done)).floor().max(1.0);
        // As parts of the time until now: what the other needs for what is left and half of the block that it is at, and this lane for its part.
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

/// Quarters of a run that are asked for at a time. Reason: fewer requests than with two; what is left is for lanes that are done.
const ASKED_QUARTERS: u64 = 3;

/// By how much a request that is broken off must bring the end of its blocks nearer: a part of the time until now, or as many round trips
/// where these are less. Reason: it costs a connection, who takes the blocks waits a round trip for them, and what was on its way for
/// whoever had asked for them comes for nothing.
const BROKEN_OFF_GAIN: f64 = 1.0 / 16.0;
const BROKEN_OFF_ROUND_TRIPS: f64 = 4.0;

/// The first stretch of `pending` that is in none of `taken`, which is sorted.
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
            // What others have in flight makes runs a little shorter, not much.
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

    /// Two lanes with equal runs of `length` blocks, of which the first has taken `taken` and the second one.
    fn unequal(length: u64, taken: u64) -> (Runs, RangeSet) {
        let (mut left, mut runs) = (pending(&[(0, 2 * length)]), Runs::default());
        for (lane, start, count) in [(0, 0, taken), (1, length, 1)] {
            runs.insert(LaneId(lane), Run::new(FILE, start..start + length, BlockOrder::Runs));
            assert!((0..count).all(|_| take(&mut runs, lane, &mut left).is_some()));
        }
        (runs, left)
    }

    /// Says that a round trip is this part of the time until now.
    fn tell_round_trip(runs: &mut Runs, part: f64) {
        let began = Instant::now();
        runs.handle_round_trip(Duration::ZERO, began);
        runs.handle_round_trip(Duration::from_secs_f64(1000.0 * part), began + Duration::from_secs(1000));
    }

    #[test]
    fn a_fast_lane_takes_its_part_of_what_a_slow_one_has_asked_for() {
        let (mut runs, left) = unequal(100, 100);
        assert_eq!(runs.of(LaneId(1)).unwrap().1, 175, "three quarters are asked for");
        // What is not asked for goes first.
        runs.take_from_slowest(LaneId(0), |_| Some(&left));
        assert_eq!((run_of(&runs, 0), run_of(&runs, 1)), (175..200, 101..175));
        let mut left = left;
        while take(&mut runs, 0, &mut left).is_some() {}
        // 74 blocks, of which the slow one does two while the fast one does the rest.
        runs.take_from_slowest(LaneId(0), |_| Some(&left));
        assert_eq!((run_of(&runs, 0), run_of(&runs, 1)), (103..175, 101..103));
        assert_eq!(runs.of(LaneId(1)).unwrap().1, 103, "nor does it ask for more");
        // Who has lost its connection breaks off no other, fast as it was.
        assert_eq!(take(&mut runs, 0, &mut left), Some(103));
        let asked = runs.of(LaneId(0)).unwrap().1;
        runs.paces.entry(LaneId(1)).or_default().done = 1000;
        runs.take_from_slowest(LaneId(1), |_| Some(&left));
        assert_eq!(run_of(&runs, 1), asked..175);
    }

    /// Lets a lane that is done take from one that has two blocks before it in a request of three; what that still asks for then.
    fn still_asked(round_trip: Option<f64>) -> Range<u64> {
        let (mut runs, mut left) = unequal(100, 100);
        (1..98).for_each(|_| assert!(take(&mut runs, 1, &mut left).is_some()));
        round_trip.into_iter().for_each(|part| tell_round_trip(&mut runs, part));
        let (_, asked) = runs.of(LaneId(1)).unwrap();
        // What is not asked for goes first.
        runs.take_from_slowest(LaneId(0), |_| Some(&left));
        while take(&mut runs, 0, &mut left).is_some() {}
        runs.take_from_slowest(LaneId(0), |_| Some(&left));
        run_of(&runs, 1).start..asked.min(run_of(&runs, 1).end)
    }

    #[test]
    fn a_request_that_holds_nothing_up_is_not_broken_off() {
        // Of a hundred blocks three are left, which need a thirtieth of the time until now; of twenty two, for the last of which the other needs as long.
        for (length, taken) in [(100, 97), (20, 18)] {
            let (mut runs, mut left) = unequal(length, length);
            (1..taken).for_each(|_| assert!(take(&mut runs, 1, &mut left).is_some()));
            let (_, asked) = runs.of(LaneId(1)).unwrap();
            // What is not asked for goes, and nothing else.
            runs.take_from_slowest(LaneId(0), |_| Some(&left));
            while take(&mut runs, 0, &mut left).is_some() {}
            assert!(left.iter().flatten().eq(length + taken..asked), "{left:?}");
            runs.take_from_slowest(LaneId(0), |_| Some(&left));
            assert_eq!((runs.of(LaneId(0)), run_of(&runs, 1).end), (None, asked));
        }
    }

    #[test]
    fn over_short_paths_less_is_worth_breaking_a_request_off() {
        // A block is a hundredth of the time until now, and a block and a half would be won.
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
        // Nor is it split: the session gives no blocks of it to split.
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
