//! Tails of growing files: written parts of blocks whose writers pause. They are kept in memory until they are
//! verified, then written. They do not count as received blocks.

use sterna_proto::session::{BlockClaim, FileId};
use sterna_proto::{Error, FileEntry};

use super::super::limits::Wait;
use super::{OpenBlock, ReceiverLane};

impl ReceiverLane {
    /// Begins a tail. Errors: its entry contradicts the recorded entry of its file.
    pub(super) fn begin_tail(
        &self,
        file: FileId,
        entry: FileEntry,
        offset: u64,
        data_len: u64,
    ) -> Result<OpenBlock, Error> {
        let receiver = &self.receiver;
        receiver.handle_entry(file, &entry)?;
        let Some(slot) = receiver.slot(file, &entry) else { return Ok(OpenBlock::Discard) };
        receiver.look_up(file, &slot, false);
        Ok(OpenBlock::Tail { file, entry, offset, data: vec![0; data_len as usize] })
    }

    /// Writes a tail with the right digest. Other data is dropped, and arrives again with its block.
    pub(super) fn end_tail(&self, (file, entry): (FileId, &FileEntry), offset: u64, data: &[u8], trailer: &[u8]) {
        let receiver = &self.receiver;
        let slot = receiver.slot(file, entry);
        let Some(incoming) = slot.and_then(|slot| slot.incoming()) else { return };
        let is_sound = blake3::hash(data).as_bytes() == trailer;
        if !is_sound || receiver.session.lock().claim_tail(self.lane, file, offset) == BlockClaim::Discard {
            return;
        }
        let meter = receiver.limits.reader(self.lane);
        let written = meter.during(Wait::Storage, data.len(), || incoming.write_tail(offset, data));
        let mut session = receiver.session.lock();
        // The failure comes first: otherwise the file could be published once nobody writes to it.
        if let Err(error) = written {
            session.fail(file, error);
        }
        session.handle_tail(self.lane, file, offset);
        drop(session);
        receiver.after_change();
    }
}
