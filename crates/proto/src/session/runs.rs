//! Runs: which stretch of a file each lane goes through, for sources that are dear to begin anew.
//!
//! A request to a web server costs a round trip, and one that is broken off a connection. A lane therefore gets a run of
//! consecutive blocks, and asks for three quarters of what is left of it at a time: few requests, small ones towards the end. What
//! it has asked for stays its own. A lane whose run is done takes what is in nobody's run, and where there is none half of what the
//! lane that has most left has not asked for yet, so that no request is broken off.

use std::collections::BTreeMap;
use std::ops::Range;

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

    /// The blocks that the lane has not asked for.
    fn unasked(&self) -> Range<u64> {
        self.asked.max(self.blocks.start)..self.blocks.end
    }
}

/// The runs of all lanes. Range: those of one file do not overlap.
#[derive(Debug, Default)]
pub(super) struct Runs {
    by_lane: BTreeMap<LaneId, Run>,
    lanes: u32,
}

impl Runs {
    pub(super) fn expect_lanes(&mut self, lanes: u32) {
        self.lanes = lanes;
    }

    /// The file of a lane's run, and the end of what the lane asks for now.
    pub(super) fn of(&self, lane: LaneId) -> Option<(FileId, u64)> {
        self.by_lane.get(&lane).map(|run| (run.file, run.asked))
    }

    /// A lane has no run any more.
    pub(super) fn end(&mut self, lane: LaneId) {
        self.by_lane.remove(&lane);
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
                if run.order == BlockOrder::Shared {
                    run.asked = run.blocks.start;
                } else if range.start >= run.asked {
                    run.asked = range.start + ((run.blocks.end - range.start) * ASKED_QUARTERS).div_ceil(4);
                }
                Some((run.file, range.start))
            }
            None => {
                self.end(lane);
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
        self.by_lane.insert(lane, Run::new(file, blocks, order));
        true
    }

    /// Gives `lane` the second half of what the lane that has most left has not asked for. `pending_of`: the blocks of a file whose runs may be split.
    pub(super) fn split_largest<'a>(&mut self, lane: LaneId, pending_of: impl Fn(FileId) -> Option<&'a RangeSet>) {
        let left = |run: &Run| {
            let pending = pending_of(run.file)?;
            pending.within(run.unasked()).max_by_key(|range| range.end - range.start)
        };
        let runs = self.by_lane.iter().filter(|(other, _)| **other != lane);
        let longest = runs.filter_map(|(other, run)| Some((*other, left(run)?)));
        let Some((other, range)) = longest.max_by_key(|(_, range)| range.end - range.start) else { return };
        let Some(run) = self.by_lane.get_mut(&other) else { return };
        let middle = range.start + (range.end - range.start) / 2;
        let half = Run::new(run.file, middle..run.blocks.end, run.order);
        run.blocks.end = middle;
        self.by_lane.insert(lane, half);
    }

    fn in_file(&self, file: FileId) -> impl Iterator<Item = Range<u64>> + '_ {
        self.by_lane.values().filter(move |run| run.file == file).map(|run| run.blocks.clone())
    }
}

/// Quarters of a run that are asked for at a time. Reason: fewer requests than with two; what is left is for lanes that are done.
const ASKED_QUARTERS: u64 = 3;

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
                    runs.split_largest(LaneId(lane), |_| Some(&left));
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
    fn what_a_lane_has_asked_for_is_not_taken_from_it() {
        let mut left = pending(&[(0, 16)]);
        let mut runs = Runs::default();
        assert!(runs.begin(LaneId(0), FILE, BlockOrder::Runs, &left, 1));
        let mut ends = Vec::new();
        while take(&mut runs, 0, &mut left).is_some() {
            let (_, end) = runs.of(LaneId(0)).unwrap();
            if ends.last() != Some(&end) {
                ends.push(end);
                runs.split_largest(LaneId(1), |_| Some(&left));
                assert!(runs.of(LaneId(1)).is_none_or(|_| run_of(&runs, 1).start >= end), "{ends:?}");
                runs.end(LaneId(1));
            }
        }
        // Fewer and fewer blocks, and few requests.
        assert!(ends[0] == 12 && ends.len() <= 3, "{ends:?}");
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
        runs.split_largest(LaneId(1), |_| None);
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
