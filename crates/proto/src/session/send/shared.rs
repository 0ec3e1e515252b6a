//! A file of which each lane of a sender stands for a replica: what whoever asks replicas for its blocks needs to know and to change.

use super::{FileId, LaneId, RangeSet, SendSession};

impl SendSession {
    /// Whether the receiver has said which blocks of a file it has.
    pub(in crate::session) fn is_looked_up(&self, id: FileId) -> bool {
        self.files.get(&id).is_some_and(|file| !file.unasked && !file.waits)
    }

    /// The blocks of a file that the receiver has not confirmed. Cost: by how many ranges they are, and how many are on lanes.
    pub(in crate::session) fn missing(&self, id: FileId) -> RangeSet {
        let Some(file) = self.files.get(&id) else { return RangeSet::default() };
        let mut missing = file.pending.clone();
        file.in_flight.keys().for_each(|index| missing.insert(*index..*index + 1));
        missing
    }

    /// Whether the receiver has confirmed every block of a file that it has looked up.
    pub(in crate::session) fn is_confirmed(&self, id: FileId) -> bool {
        self.files.get(&id).is_some_and(|file| !file.unasked && file.pending.is_empty() && file.in_flight.is_empty())
    }

    /// The blocks of a file that the receiver has asked for since the last call, whatever has become of them since.
    pub(in crate::session) fn take_wanted(&mut self, id: FileId) -> RangeSet {
        self.files.get_mut(&id).map(|file| std::mem::take(&mut file.wanted)).unwrap_or_default()
    }

    /// Takes this block of a file for `lane`, if no lane has it and it is missing.
    pub(in crate::session) fn take_block(&mut self, lane: LaneId, id: FileId, index: u64) -> bool {
        let is_free = self.files.get(&id).is_some_and(|file| file.is_ready() && file.pending.contains(index));
        is_free && self.take_single(id, index, lane).is_some()
    }

    /// Takes these blocks of a file back from the lanes that have taken them, if any has.
    pub(in crate::session) fn give_back(&mut self, id: FileId, blocks: std::ops::Range<u64>) {
        let Some(file) = self.files.get_mut(&id) else { return };
        for index in file.take_in_flight(blocks) {
            file.pending.insert(index..index + 1);
        }
        if file.is_ready() {
            self.mark_ready(id, false);
        }
    }

    /// Gives a block that a lane has taken to another lane; whether a lane had it.
    pub(in crate::session) fn hand_over(&mut self, lane: LaneId, id: FileId, index: u64) -> bool {
        let owner = self.files.get_mut(&id).and_then(|file| file.in_flight.get_mut(&index));
        owner.map(|owner| *owner = lane).is_some()
    }
}
