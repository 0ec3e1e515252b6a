//! Access for `replicas` to a file in the order `BlockOrder::Shared`, where each lane of the sender represents a
//! replica.

use super::{FileId, LaneId, RangeSet, SendSession};

impl SendSession {
    /// Returns true if the receiver has reported which blocks of a file it has.
    pub(in crate::session) fn is_looked_up(&self, id: FileId) -> bool {
        self.files.get(&id).is_some_and(|file| !file.unasked && !file.waits)
    }

    /// Returns the blocks of a file that the receiver has not confirmed. Cost: proportional to the number of pending
    /// ranges and of blocks in flight.
    pub(in crate::session) fn missing(&self, id: FileId) -> RangeSet {
        let Some(file) = self.files.get(&id) else { return RangeSet::default() };
        let mut missing = file.pending.clone();
        file.in_flight.keys().for_each(|index| missing.insert(*index..*index + 1));
        missing
    }

    /// Returns true if the receiver has looked up a file and confirmed every block of it.
    pub(in crate::session) fn is_confirmed(&self, id: FileId) -> bool {
        self.files.get(&id).is_some_and(|file| !file.unasked && file.pending.is_empty() && file.in_flight.is_empty())
    }

    /// Returns the blocks of a file that the receiver has requested since the last call, including blocks that have
    /// arrived since.
    pub(in crate::session) fn take_wanted(&mut self, id: FileId) -> RangeSet {
        self.files.get_mut(&id).map(|file| std::mem::take(&mut file.wanted)).unwrap_or_default()
    }

    /// Takes a block for `lane` if it is missing and no lane has it. Returns true if the block was taken.
    pub(in crate::session) fn take_block(&mut self, lane: LaneId, id: FileId, index: u64) -> bool {
        let is_free = self.files.get(&id).is_some_and(|file| file.is_ready() && file.pending.contains(index));
        is_free && self.take_single(id, index, lane).is_some()
    }

    /// Returns blocks of a file from their lanes to the pool.
    pub(in crate::session) fn give_back(&mut self, id: FileId, blocks: std::ops::Range<u64>) {
        let Some(file) = self.files.get_mut(&id) else { return };
        for index in file.take_in_flight(blocks) {
            file.pending.insert(index..index + 1);
        }
        if file.is_ready() {
            self.mark_ready(id, false);
        }
    }

    /// Moves a block from its lane to `lane`. Returns false if no lane had the block.
    pub(in crate::session) fn hand_over(&mut self, lane: LaneId, id: FileId, index: u64) -> bool {
        let owner = self.files.get_mut(&id).and_then(|file| file.in_flight.get_mut(&index));
        owner.map(|owner| *owner = lane).is_some()
    }
}
