//! The receiving end for a file that is sent while it grows.

use super::super::message::Message;
use super::super::{FileId, LaneId};
use super::{BlockClaim, Claim, RecvFile, RecvSession, Stage};
use crate::error::Error;
use crate::file::FileEntry;

impl RecvSession {
    /// Claims an incomplete block for writing its tail, which begins at `offset`. A lane that gets [`BlockClaim::Take`]
    /// must release the claim with [`RecvSession::handle_tail`].
    pub fn claim_tail(&mut self, lane: LaneId, id: FileId, offset: u64) -> BlockClaim {
        let is_active = self.core.is_active();
        let Some(file) = self.files.get_mut(&id).filter(|file| is_active && file.entry.is_growing()) else {
            return BlockClaim::Discard;
        };
        let index = offset / file.entry.blocks().block_bytes();
        if file.stage != Stage::Receiving || file.arrived.contains(index) || file.claims.contains_key(&index) {
            return BlockClaim::Discard;
        }
        file.claims.insert(index, Claim { lane, discarded_copy: false });
        self.claimed += 1;
        BlockClaim::Take
    }

    /// Releases the claim on the tail that begins at `offset`, whether it was written or not. If the complete block
    /// arrived in the meantime and was discarded, requests that block again.
    pub fn handle_tail(&mut self, lane: LaneId, id: FileId, offset: u64) {
        let Some(file) = self.files.get_mut(&id) else { return };
        let index = offset / file.entry.blocks().block_bytes();
        if file.claims.get(&index).is_none_or(|claim| claim.lane != lane) {
            return;
        }
        if file.claims.remove(&index).is_some_and(|claim| claim.discarded_copy) {
            self.core.log.push(&Message::Want { file: id, blocks: vec![(index, index + 1)] });
        }
        self.publish_if_complete(id);
    }

    /// Records that a growing file has ended.
    pub(super) fn handle_ended(&mut self, id: FileId, entry: &FileEntry) -> Result<(), Error> {
        self.check_offered(id)?;
        if entry.growth.is_none() || entry.is_growing() {
            return Err(Error::protocol(format!("file {} from the peer: it has ended, and grows on", id.0)));
        }
        if let Some(file) = self.files.get_mut(&id) {
            file.take_entry(id, entry)?;
            self.publish_if_complete(id);
        }
        Ok(())
    }

    /// Records the digest of a growing file that has ended and that its sender has read as a whole.
    pub(super) fn handle_final_digest(&mut self, id: FileId, blake3: [u8; 32]) -> Result<(), Error> {
        self.check_offered(id)?;
        let Some(file) = self.files.get_mut(&id) else { return Ok(()) };
        if file.entry.growth.is_none()
            || file.entry.is_growing()
            || file.final_digest.is_some_and(|final_digest| final_digest != blake3)
        {
            return Err(Error::protocol(format!("file {} from the peer: its digest comes out of place", id.0)));
        }
        file.final_digest = Some(blake3);
        self.publish_if_complete(id);
        Ok(())
    }

    /// Checks that a file was offered in the log. Errors: no file of this number was offered.
    fn check_offered(&self, id: FileId) -> Result<(), Error> {
        if id.0 >= self.offered {
            return Err(Error::protocol(format!("file {} of the peer: it was never offered", id.0)));
        }
        Ok(())
    }

    /// Returns the current entry of an open file, which may have grown since its offer. Also returns the BLAKE3 that
    /// the file must have, if its sender has reported it.
    pub fn open_entry(&self, file: FileId) -> Option<(&FileEntry, Option<[u8; 32]>)> {
        self.files.get(&file).map(|file| (&file.entry, file.final_digest))
    }
}

impl RecvFile {
    /// Returns true if the file may get its name once its blocks have arrived: it does not grow, or it has ended and
    /// has its final digest.
    pub(super) fn is_closed(&self) -> bool {
        self.entry.growth.is_none() || !self.entry.is_growing() && self.final_digest.is_some()
    }

    /// Adopts an entry that came with a block or a message. Errors: the entry belongs to another file.
    pub(super) fn take_entry(&mut self, id: FileId, entry: &FileEntry) -> Result<(), Error> {
        if self.entry.grows_into(entry) {
            self.entry = entry.clone();
        } else if self.entry != *entry && !entry.grows_into(&self.entry) {
            // An older entry of a growing file is no error, because its blocks may arrive in any order.
            return Err(Error::protocol(format!("file {} from the peer: two entries for it", id.0)));
        }
        Ok(())
    }
}
