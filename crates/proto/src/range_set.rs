//! Sets of `u64` with mostly long ranges: blocks held, blocks wanted, bytes covered.
//!
//! Inserts and removes half-open ranges, finds gaps. Refuses to grow without limit on input from a peer; use
//! [`RangeSet::insert_from_peer`] there. It reads no clock and does no I/O.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use crate::error::Error;

/// Maximum number of separate ranges in a set fed by a peer.
///
/// Reason: lanes pull blocks nearly in order, so a set has a few ranges per lane. 65,536 ranges leave room for a
/// thousand lanes, and take 1 MiB on the wire and about 3 MB in memory.
pub const PEER_RANGES_MAX: usize = 1 << 16;

/// A set of `u64`, stored as sorted half-open ranges that neither touch nor overlap.
///
/// Cost: every operation is O(log n) in the number of ranges, plus the number of ranges that it merges or returns.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RangeSet {
    /// Map from the start of each range to its end.
    ends: BTreeMap<u64, u64>,
    /// Number of values in all ranges.
    len: u64,
}

impl RangeSet {
    /// Returns the empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds every value of `range`. An empty or reversed range adds nothing.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.start >= range.end {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&before, &before_end)) = self.ends.range(..=start).next_back() {
            if before_end >= end {
                return;
            }
            if before_end >= start {
                start = before;
            }
        }
        // Merges every range that starts inside the new range or at its end.
        while let Some((&next, &next_end)) = self.ends.range(start..=end).next() {
            self.ends.remove(&next);
            self.len -= next_end - next;
            end = end.max(next_end);
        }
        self.ends.insert(start, end);
        self.len += end - start;
    }

    /// Inserts like [`RangeSet::insert`], for ranges sent by a peer.
    ///
    /// Errors: `Protocol` for an empty or reversed range, and if the set would hold more than [`PEER_RANGES_MAX`]
    /// ranges.
    pub fn insert_from_peer(&mut self, range: Range<u64>) -> Result<(), Error> {
        if range.start >= range.end {
            return Err(Error::protocol(format!("range {}..{} from the peer is empty", range.start, range.end)));
        }
        if self.ends.len() >= PEER_RANGES_MAX && !self.touches(&range) {
            return Err(Error::protocol(format!("the peer named more than {PEER_RANGES_MAX} separate ranges")));
        }
        self.insert(range);
        Ok(())
    }

    /// Removes every value of `range`. An empty or reversed range removes nothing.
    pub fn remove(&mut self, range: Range<u64>) {
        if range.start >= range.end {
            return;
        }
        if let Some((&before, &before_end)) = self.ends.range(..range.start).next_back()
            && before_end > range.start
        {
            self.ends.insert(before, range.start);
            self.len -= before_end - range.start;
            if before_end > range.end {
                self.ends.insert(range.end, before_end);
                self.len += before_end - range.end;
                return;
            }
        }
        while let Some((&next, &next_end)) = self.ends.range(range.clone()).next() {
            self.ends.remove(&next);
            self.len -= next_end - next;
            if next_end > range.end {
                self.ends.insert(range.end, next_end);
                self.len += next_end - range.end;
            }
        }
    }

    /// Returns true if `value` is in the set.
    pub fn contains(&self, value: u64) -> bool {
        self.ends.range(..=value).next_back().is_some_and(|(_, &end)| value < end)
    }

    /// Returns true if every value of `range` is in the set; true for an empty range.
    pub fn contains_range(&self, range: Range<u64>) -> bool {
        range.start >= range.end
            || self.ends.range(..=range.start).next_back().is_some_and(|(_, &end)| range.end <= end)
    }

    /// Returns true if every value of this set is in `other`.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.iter().all(|range| other.contains_range(range))
    }

    /// Iterates over the ranges in ascending order; no two of them touch.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u64>> + '_ {
        self.ends.iter().map(|(&start, &end)| start..end)
    }

    /// Iterates over the parts of the set inside `bound`, in ascending order.
    pub fn within(&self, bound: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.ends.range(..bound.start).next_back().map_or(bound.start, |(&start, _)| start);
        // A reversed bound would panic in `BTreeMap::range`.
        self.ends
            .range(first..bound.end.max(first))
            .map(move |(&start, &end)| start.max(bound.start)..end.min(bound.end))
            .filter(|range| range.start < range.end)
    }

    /// Returns the first range of `bound` that is not in the set; `None` if all of `bound` is.
    pub fn first_gap(&self, bound: Range<u64>) -> Option<Range<u64>> {
        let mut start = bound.start;
        if let Some((_, &end)) = self.ends.range(..=start).next_back() {
            start = start.max(end);
        }
        if start >= bound.end {
            return None;
        }
        let end = self.ends.range(start..bound.end).next().map_or(bound.end, |(&next, _)| next);
        Some(start..end)
    }

    /// Iterates over the ranges of `bound` that are not in the set, in ascending order.
    pub fn gaps(&self, bound: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut start = bound.start;
        std::iter::from_fn(move || {
            let gap = self.first_gap(start..bound.end)?;
            start = gap.end;
            Some(gap)
        })
    }

    /// Returns the number of values in the set.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the number of separate ranges.
    pub fn range_count(&self) -> usize {
        self.ends.len()
    }

    /// Returns true if `range` overlaps or touches a range of the set, so that inserting it adds no range.
    fn touches(&self, range: &Range<u64>) -> bool {
        self.ends.range(..=range.end).next_back().is_some_and(|(_, &end)| end >= range.start)
    }
}

impl fmt::Debug for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl FromIterator<Range<u64>> for RangeSet {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Self {
        let mut set = Self::new();
        for range in ranges {
            set.insert(range);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use sterna_seeded::{Seeded, for_seeds};

    use super::*;

    const UNIVERSE: u64 = 120;

    /// Returns the ranges of a plain set of numbers, found one number at a time.
    fn model_ranges(model: &BTreeSet<u64>, wanted: bool, bound: Range<u64>) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for value in bound.filter(|value| model.contains(value) == wanted) {
            match ranges.last_mut() {
                Some(last) if last.end == value => last.end += 1,
                _ => ranges.push(value..value + 1),
            }
        }
        ranges
    }

    fn assert_agrees(set: &RangeSet, model: &BTreeSet<u64>, bound: Range<u64>) {
        assert_eq!(set.iter().collect::<Vec<_>>(), model_ranges(model, true, 0..UNIVERSE));
        assert_eq!(set.len(), model.len() as u64);
        assert_eq!(set.is_empty(), model.is_empty());
        assert_eq!(set.range_count(), set.iter().count());
        let gaps = model_ranges(model, false, bound.clone());
        assert_eq!(set.gaps(bound.clone()).collect::<Vec<_>>(), gaps, "{bound:?}");
        assert_eq!(set.first_gap(bound.clone()), gaps.first().cloned(), "{bound:?}");
        assert_eq!(set.contains_range(bound.clone()), gaps.is_empty(), "{bound:?}");
        let inside = model_ranges(model, true, bound.clone());
        assert_eq!(set.within(bound.clone()).collect::<Vec<_>>(), inside, "{bound:?}");
        for value in 0..UNIVERSE {
            assert_eq!(set.contains(value), model.contains(&value), "{value}");
        }
    }

    #[test]
    fn any_run_of_inserts_and_removes_agrees_with_a_plain_set() {
        for_seeds("any_run_of_inserts_and_removes_agrees_with_a_plain_set", 200, |seed| {
            let mut random = Seeded::new(seed);
            let (mut set, mut model) = (RangeSet::new(), BTreeSet::new());
            let longest = 1 + random.below(20);
            for _ in 0..100 {
                let start = random.below(UNIVERSE);
                let end = (start + random.below(longest + 1)).min(UNIVERSE);
                if random.below(5) < 3 {
                    set.insert(start..end);
                    model.extend(start..end);
                } else {
                    set.remove(start..end);
                    model.retain(|value| !(start..end).contains(value));
                }
                let from = random.below(UNIVERSE);
                let bound = from..from + random.below(UNIVERSE - from + 1);
                assert_agrees(&set, &model, bound);
            }
            let mut smaller = set.clone();
            smaller.remove(0..random.below(UNIVERSE));
            assert!(smaller.is_subset(&set));
            assert_eq!(set.is_subset(&smaller), set == smaller);
        });
    }

    #[test]
    fn the_far_end_of_u64_and_reversed_ranges_do_no_harm() {
        let mut set = RangeSet::new();
        set.insert(5..5);
        #[allow(clippy::reversed_empty_ranges)]
        set.insert(9..3);
        assert!(set.is_empty());
        set.insert(u64::MAX - 1..u64::MAX);
        set.insert(0..u64::MAX - 1);
        assert_eq!((set.range_count(), set.len()), (1, u64::MAX));
        assert_eq!(set.first_gap(0..u64::MAX), None);
        #[allow(clippy::reversed_empty_ranges)]
        let reversed = 9..3;
        assert_eq!((set.first_gap(reversed.clone()), set.within(reversed.clone()).count()), (None, 0));
        set.remove(reversed);
        set.remove(0..u64::MAX);
        assert!(set.is_empty());
    }

    #[test]
    fn a_peer_cannot_make_the_set_grow_past_its_limit() {
        let mut set = RangeSet::new();
        for i in 0..PEER_RANGES_MAX as u64 {
            set.insert_from_peer(i * 2..i * 2 + 1).unwrap();
        }
        assert!(set.insert_from_peer(1 << 40..(1 << 40) + 1).is_err());
        assert_eq!(set.range_count(), PEER_RANGES_MAX);
        set.insert_from_peer(1..2).unwrap();
        assert_eq!(set.range_count(), PEER_RANGES_MAX - 1);
        assert!(RangeSet::new().insert_from_peer(7..7).is_err());
    }
}
