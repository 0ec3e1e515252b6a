//! What a receiver does for a file that comes from several replicas.

use std::sync::{Arc, Weak};

use sterna_proto::session::{FileId, LaneId};
use sterna_proto::{Error, ErrorKind, RangeSet};

use super::Receiver;
use crate::disk::IncomingFile;
use crate::session::lock;

/// Whom a receiver asks before it gives up a file that has not the digest that it must have.
pub(in crate::session) trait Judge: Send + Sync {
    /// The blocks that are to be taken anew, from others; `None`: nothing can help.
    fn handle_wrong(&self) -> Option<RangeSet>;

    /// Blocks have been taken back; `asked`: those of them that were here, and are asked for.
    fn handle_taken_back(&self, blocks: &RangeSet, asked: &RangeSet);
}

impl Receiver {
    /// Publishes nothing before [`Receiver::release`], and asks `judge` about files that are wrong. To be called before the first frame.
    pub(in crate::session) fn set_judge(&self, judge: Weak<dyn Judge>) {
        // Set once, by who has just made it.
        let _ = self.judge.set(judge);
        lock(&self.session).withhold_files();
    }

    /// A file may be published when it is whole.
    pub(in crate::session) fn release(&self, file: FileId) {
        lock(&self.session).release(file);
        self.after_change();
    }

    /// These blocks of a file are of no use. Range: no lane is writing one of them.
    ///
    /// Errors: of the disk; the caller says what becomes of the file.
    pub(in crate::session) fn take_back(&self, file: FileId, blocks: &RangeSet) -> Result<(), Error> {
        let slot = lock(&self.slots).get(&file).cloned();
        let Some(incoming) = slot.and_then(|slot| slot.incoming()) else { return Ok(()) };
        incoming.forget(blocks)?;
        let asked = lock(&self.session).take_back(file, blocks);
        if let Some(judge) = self.judge.get().and_then(Weak::upgrade) {
            judge.handle_taken_back(blocks, &asked);
        }
        self.after_change();
        Ok(())
    }

    /// A file cannot be received any more; one that has its name by now stays as it is.
    pub(in crate::session) fn fail(&self, file: FileId, error: Error) {
        lock(&self.session).fail(file, error);
        self.after_change();
    }

    /// Before a file is published: whether blocks of it are wrong and are taken anew. Errors: of the disk.
    pub(super) fn take_wrong_blocks_back(&self, file: FileId, incoming: &Arc<IncomingFile>) -> Result<bool, Error> {
        let Some(judge) = self.judge.get().and_then(Weak::upgrade).filter(|_| self.options.expect.is_some()) else {
            return Ok(false);
        };
        match incoming.verify(self.options.expect.as_slice()) {
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

    /// Another lane brings what `lane` was bringing of a block.
    pub(in crate::session) fn release_claim(&self, lane: LaneId, file: FileId, index: u64) {
        lock(&self.session).release_claim(lane, file, index);
    }

    /// Whether `lane` may write a block, and no other.
    pub(in crate::session) fn has_claim(&self, lane: LaneId, file: FileId, index: u64) -> bool {
        lock(&self.session).has_claim(lane, file, index)
    }

    /// Whether a block is here and verified; `None`: blocks of this file are of no use any more.
    pub(in crate::session) fn has_block(&self, file: FileId, index: u64) -> Option<bool> {
        let session = lock(&self.session);
        let has = session.has_block(file, index);
        (has || session.is_receiving(file)).then_some(has)
    }
}
