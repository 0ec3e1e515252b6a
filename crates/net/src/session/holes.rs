//! Count of the holes in the data of a session: file bytes that no lane carries.
//!
//! Refuses to decide what a hole is: the code that sends or writes a block reports it.

use std::collections::HashMap;
use std::ops::Range;

use parking_lot::Mutex;
use sterna_proto::RangeSet;
use sterna_proto::session::{FileId, FileOutcome};

/// Counter of hole bytes. Each byte counts once, even if its block is sent several times.
#[derive(Debug, Default)]
pub(super) struct HoleCount(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    /// Holes by file, for files without an outcome.
    open: HashMap<FileId, RangeSet>,
    open_bytes: u64,
    settled_bytes: u64,
}

impl HoleCount {
    /// Adds the hole `range` of a file. The caller prevents the file from settling during the call.
    pub(super) fn add(&self, file: FileId, range: Range<u64>) {
        let mut counted = self.0.lock();
        let holes = counted.open.entry(file).or_default();
        let known: u64 = holes.within(range.clone()).map(|part| part.end - part.start).sum();
        holes.insert(range.clone());
        counted.open_bytes += range.end - range.start - known;
    }

    /// Handles the outcome of a file. The holes of a file that was not copied do not count.
    pub(super) fn settle(&self, file: FileId, outcome: &FileOutcome) {
        let mut counted = self.0.lock();
        let Some(holes) = counted.open.remove(&file) else { return };
        let bytes: u64 = holes.iter().map(|part| part.end - part.start).sum();
        counted.open_bytes -= bytes;
        if matches!(outcome, FileOutcome::Done(_)) {
            counted.settled_bytes += bytes;
        }
    }

    /// Returns the hole bytes up to now.
    pub(super) fn bytes(&self) -> u64 {
        let counted = self.0.lock();
        counted.open_bytes + counted.settled_bytes
    }
}

#[cfg(test)]
mod tests {
    use sterna_proto::{Checks, Error, FileDigests};

    use super::*;

    #[test]
    fn a_hole_counts_once_and_only_of_a_file_that_is_copied() {
        let holes = HoleCount::default();
        for range in [0..4, 4..8, 2..6, 16..20] {
            holes.add(FileId(1), range);
        }
        holes.add(FileId(2), 0..100);
        assert_eq!(holes.bytes(), 112);
        holes.settle(FileId(1), &FileOutcome::Done(FileDigests::of(b"", Checks::NONE)));
        holes.settle(FileId(2), &FileOutcome::Failed(Error::protocol("x")));
        holes.settle(FileId(3), &FileOutcome::Skipped);
        assert_eq!(holes.bytes(), 12);
    }
}
