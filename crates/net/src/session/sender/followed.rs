//! What a sender does with sources that are followed, for the thread that follows them.
//!
//! That thread holds the lock of what it follows meanwhile, which the hearing of outcomes takes too: nothing here waits, or passes events on.

use sterna_proto::session::{BlockOrder, FileId};
use sterna_proto::{Error, FileEntry};

use super::super::origin::Origin;
use super::super::{SessionEvent, lock};
use super::Sender;

impl Sender {
    /// Offers a file; the caller has found room.
    pub(in crate::session) fn offer_now(&self, entry: FileEntry, origin: Origin) -> FileId {
        let mut session = lock(&self.session);
        let id = session.add_file_in(entry, BlockOrder::Next);
        // Before a lane can take its blocks: the lock of the session is still held.
        lock(&self.names).insert(id, origin);
        id
    }

    /// Whether the manifest may grow now.
    pub(in crate::session) fn has_room(&self) -> bool {
        lock(&self.session).has_room()
    }

    /// A growing file has become `entry`.
    pub(in crate::session) fn grow(&self, id: FileId, entry: FileEntry) {
        lock(&self.session).grow(id, entry);
    }

    /// A growing file, read as a whole, has this BLAKE3.
    pub(in crate::session) fn seal(&self, id: FileId, blake3: [u8; 32]) {
        lock(&self.session).seal(id, blake3);
        self.wake.notify_all();
    }

    /// A file cannot be sent after all.
    pub(in crate::session) fn withdraw_now(&self, id: FileId, error: Error) {
        lock(&self.session).withdraw(id, error);
    }

    /// Whether a file has no outcome yet.
    pub(in crate::session) fn is_unsettled(&self, id: FileId) -> bool {
        lock(&self.session).is_unsettled(id)
    }

    /// A remark for the person.
    pub(in crate::session) fn notice(&self, text: String) {
        self.observer.session_event(SessionEvent::Notice(text));
    }
}
