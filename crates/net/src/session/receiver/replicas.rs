//! Functions of a receiver for a file that comes from several replicas.

use std::sync::{Arc, Weak};

use sterna_proto::session::{FileId, LaneId};
use sterna_proto::{Digest, Error, ErrorKind, RangeSet};

use super::Receiver;
use crate::sink::SinkFile;
use crate::wake::Wake;

/// Judge that a receiver asks before it gives up a file with a wrong digest.
pub(in crate::session) trait Judge: Send + Sync {
    /// Returns the blocks to receive again, from other replicas; `None` if that cannot help.
    fn handle_wrong(&self) -> Option<RangeSet>;

    /// Handles blocks that were taken back. `asked`: those of them that were present, and are requested again.
    fn handle_taken_back(&self, blocks: &RangeSet, asked: &RangeSet);
}

impl Receiver {
    /// Withholds every file until [`Receiver::release`], and asks `judge` about wrong files. To be called before the
    /// first frame.
    pub(in crate::session) fn set_judge(&self, judge: Weak<dyn Judge>) {
        // Set once, by the creator of the receiver.
        let _ = self.judge.set(judge);
        self.session.lock().withhold_files();
    }

    /// Returns the event count of the feeders, for a second monitor that wakes them.
    pub(in crate::session) fn shared_wake(&self) -> &Arc<Wake> {
        &self.wake
    }

    /// Allows the publication of a file once it is complete.
    pub(in crate::session) fn release(&self, file: FileId) {
        self.session.lock().release(file);
        self.after_change();
    }

    /// Takes back blocks of a file that are of no use. Range: no lane is writing one of them.
    ///
    /// Errors: of the disk; the caller decides on the file.
    pub(in crate::session) fn take_back(&self, file: FileId, blocks: &RangeSet) -> Result<(), Error> {
        let slot = self.slots.lock().get(&file).cloned();
        let Some(incoming) = slot.and_then(|slot| slot.incoming()) else { return Ok(()) };
        incoming.forget(blocks)?;
        let asked = self.session.lock().take_back(file, blocks);
        if let Some(judge) = self.judge.get().and_then(Weak::upgrade) {
            judge.handle_taken_back(blocks, &asked);
        }
        self.after_change();
        Ok(())
    }

    /// Fails a file that can no longer be received. A file that already has its name remains.
    pub(in crate::session) fn fail(&self, file: FileId, error: Error) {
        self.session.lock().fail(file, error);
        self.after_change();
    }

    /// Checks a file before its publication; returns true if wrong blocks are received again. Errors: of the disk.
    pub(super) fn take_wrong_blocks_back(
        &self,
        file: FileId,
        incoming: &dyn SinkFile,
        expected: &[Digest],
    ) -> Result<bool, Error> {
        let Some(judge) = self.judge.get().and_then(Weak::upgrade).filter(|_| !expected.is_empty()) else {
            return Ok(false);
        };
        match incoming.verify(expected) {
            Ok(()) => Ok(false),
            Err(error) if error.kind == ErrorKind::Corrupt => match judge.handle_wrong() {
                None => Ok(false),
                Some(blocks) => {
                    self.take_back(file, &blocks)?;
                    Ok(true)
                }
            },
            Err(error) => Err(error),
        }
    }

    /// Releases the claim of `lane` on a block, because another lane delivers the block.
    pub(in crate::session) fn release_claim(&self, lane: LaneId, file: FileId, index: u64) {
        self.session.lock().release_claim(lane, file, index);
    }

    /// True if `lane` is the only lane that may write a block.
    pub(in crate::session) fn has_claim(&self, lane: LaneId, file: FileId, index: u64) -> bool {
        self.session.lock().has_claim(lane, file, index)
    }

    /// True if a block is present and verified; `None` if the file no longer takes blocks.
    pub(in crate::session) fn has_block(&self, file: FileId, index: u64) -> Option<bool> {
        let session = self.session.lock();
        let has = session.has_block(file, index);
        (has || session.is_receiving(file)).then_some(has)
    }
}
