//! Calls on a sender from the thread that follows sources.
//!
//! The calling thread holds the lock of the followed source during these calls, and the handler of outcomes takes the
//! same lock. So these calls neither wait nor pass events on.

use std::ops::Range;

use bytes::Bytes;
use sterna_proto::session::{BlockHeader, BlockOrder, FileId, LaneId};
use sterna_proto::{Error, FileEntry};

use super::super::limits::Wait;
use super::super::origin::Origin;
use super::super::{SessionEvent, lock};
use super::{READ_BYTES, Sender};
use crate::lane::LaneTx;

impl Sender {
    /// Offers a file. The caller has checked that the manifest has room.
    pub(in crate::session) fn offer_now(&self, entry: FileEntry, origin: Origin) -> FileId {
        let mut session = lock(&self.session);
        let id = session.add_file_in(entry, BlockOrder::Next);
        // The lock of the session is still held: no lane can take a block of the file before its origin is stored.
        lock(&self.names).insert(id, origin);
        id
    }

    /// True if the manifest may grow now.
    pub(in crate::session) fn has_room(&self) -> bool {
        lock(&self.session).has_room()
    }

    /// Updates a growing file to `entry`.
    pub(in crate::session) fn grow(&self, id: FileId, entry: FileEntry) {
        lock(&self.session).grow(id, entry);
    }

    /// Reports that the writer of a growing file pauses at `size` bytes.
    pub(in crate::session) fn set_tail(&self, id: FileId, size: u64) {
        lock(&self.session).set_tail(id, size);
    }

    /// Sends part of an incomplete block. Errors: of the lane; an unreadable source is reported to the session.
    pub(super) fn send_tail(
        &self,
        lane: LaneId,
        (id, entry): (FileId, &FileEntry),
        range: Range<u64>,
        tx: &mut dyn LaneTx,
    ) -> Result<(), Error> {
        let meter = self.limits.feeder(lane);
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let read = meter.during(Wait::Storage, bytes.len(), || {
            let source = self.open_source(id)?;
            source.read_at(range.start, &mut bytes)?;
            source.check_unchanged(entry)
        });
        if let Err(error) = read {
            self.withdraw(id, error);
            return Ok(());
        }
        let header = BlockHeader::Tail { file: id, entry: entry.clone(), offset: range.start };
        let digest = blake3::hash(&bytes);
        let length = bytes.len() as u64;
        tx.block_begin(&header.encode(), length)?;
        let mut bytes = Bytes::from(bytes);
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(READ_BYTES));
            tx.block_data(piece)?;
            self.send_waiting_frames(lane, tx)?;
        }
        tx.block_end(digest.as_bytes())
    }

    /// Sets the final digest of a growing file: its BLAKE3, read as a whole.
    pub(in crate::session) fn seal(&self, id: FileId, blake3: [u8; 32]) {
        self.record(id, |sweeper| sweeper.record_whole(id, blake3));
        lock(&self.session).seal(id, blake3);
        self.wake.notify();
    }

    /// Withdraws a file that cannot be sent after all.
    pub(in crate::session) fn withdraw_now(&self, id: FileId, error: Error) {
        lock(&self.session).withdraw(id, error);
    }

    /// True if a file has no outcome yet.
    pub(in crate::session) fn is_unsettled(&self, id: FileId) -> bool {
        lock(&self.session).is_unsettled(id)
    }

    /// Sends a notice to the user.
    pub(in crate::session) fn notice(&self, text: String) {
        self.observer.session_event(SessionEvent::Notice(text));
    }
}
