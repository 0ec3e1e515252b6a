//! What the receiving end does for a file that comes from several replicas: it waits for a word before it publishes, and gives back blocks that
//! turned out to be of a wrong one.

use super::{FileId, LaneId, RecvSession, Stage};
use crate::range_set::RangeSet;

impl RecvSession {
    /// Files are published only once [`RecvSession::release`] has been called for them. To be called before the first is offered.
    pub fn withhold_files(&mut self) {
        self.withholds = true;
    }

    /// A file that was withheld may be published when every block of it is here.
    pub fn release(&mut self, id: FileId) {
        if let Some(file) = self.files.get_mut(&id) {
            file.withheld = false;
        }
        self.publish_if_complete(id);
    }

    /// These blocks of a file count as missing again, and are asked for: what the storage has of them is of no use. Also of a file that was to be
    /// published and was not; it is withheld again. Returns those of them that were here.
    pub fn take_back(&mut self, id: FileId, blocks: &RangeSet) -> RangeSet {
        let open = |stage: &Stage| matches!(stage, Stage::Receiving | Stage::Publishing);
        let Some(file) = self.files.get_mut(&id).filter(|file| open(&file.stage) && !file.entry.is_packed()) else {
            return RangeSet::default();
        };
        file.stage = Stage::Receiving;
        file.withheld = self.withholds;
        self.miss(id, blocks)
    }

    /// Gives up the right of `lane` to write a block, without asking for the block: another lane brings it.
    pub fn release_claim(&mut self, lane: LaneId, id: FileId, index: u64) {
        if let Some(file) = self.files.get_mut(&id)
            && file.claims.get(&index).is_some_and(|claim| claim.lane == lane)
        {
            file.claims.remove(&index);
        }
    }

    /// Whether `lane` has the right to write a block.
    pub fn has_claim(&self, lane: LaneId, id: FileId, index: u64) -> bool {
        let claim = self.files.get(&id).and_then(|file| file.claims.get(&index));
        claim.is_some_and(|claim| claim.lane == lane)
    }

    /// Whether a block of a file is here, verified; also of a packed file (index 0) that is to be published.
    pub fn has_block(&self, id: FileId, index: u64) -> bool {
        self.files.get(&id).is_some_and(|file| match file.entry.is_packed() {
            true => file.stage == Stage::Publishing,
            false => file.arrived.contains(index),
        })
    }
}
