//! The receiving end for a file that comes from several replicas. It withholds publication until a release, and gives
//! back blocks that came from a wrong replica.

use super::{FileId, LaneId, RecvSession, Stage};
use crate::range_set::RangeSet;

impl RecvSession {
    /// Withholds every file from publication until [`RecvSession::release`]. Must be called before the first offer.
    pub fn withhold_files(&mut self) {
        self.withholds = true;
    }

    /// Releases a withheld file: it is published once every block has arrived.
    pub fn release(&mut self, id: FileId) {
        if let Some(file) = self.files.get_mut(&id) {
            file.withheld = false;
        }
        self.publish_if_complete(id);
    }

    /// Marks blocks of a file as missing and requests them, because their stored data is useless. Also applies to a
    /// file whose publication failed; the file is withheld again. Returns the blocks that had arrived.
    pub fn take_back(&mut self, id: FileId, blocks: &RangeSet) -> RangeSet {
        let open = |stage: &Stage| matches!(stage, Stage::Receiving | Stage::Publishing);
        let Some(file) = self.files.get_mut(&id).filter(|file| open(&file.stage) && !file.entry.is_packed()) else {
            return RangeSet::default();
        };
        file.stage = Stage::Receiving;
        file.withheld = self.withholds;
        self.miss(id, blocks)
    }

    /// Releases the claim of `lane` on a block without requesting the block: another lane delivers it.
    pub fn release_claim(&mut self, lane: LaneId, id: FileId, index: u64) {
        if let Some(file) = self.files.get_mut(&id)
            && file.claims.get(&index).is_some_and(|claim| claim.lane == lane)
        {
            file.claims.remove(&index);
        }
    }

    /// Returns true if `lane` has the claim on a block.
    pub fn has_claim(&self, lane: LaneId, id: FileId, index: u64) -> bool {
        let claim = self.files.get(&id).and_then(|file| file.claims.get(&index));
        claim.is_some_and(|claim| claim.lane == lane)
    }

    /// Returns true if a block of a file has arrived and is verified. For a packed file (index 0): true if the file is
    /// in publication.
    pub fn has_block(&self, id: FileId, index: u64) -> bool {
        self.files.get(&id).is_some_and(|file| match file.entry.is_packed() {
            true => file.stage == Stage::Publishing,
            false => file.arrived.contains(index),
        })
    }
}
