//! Offers of the source of a session: the manifest, seen from the source.

use std::sync::Arc;

use sterna_proto::session::{BlockOrder, FileId};
use sterna_proto::{EntryKind, Error, FileEntry};

use super::super::{End, SessionEvent};
use super::Sender;
use crate::source::{OfferedFile, Offers};
use crate::wake::Wake;

impl Offers for Sender {
    fn offer(&self, entry: FileEntry, order: BlockOrder, file: Arc<dyn OfferedFile>) -> FileId {
        let session = self.session_with_room();
        let id = self.add_file(session, entry, order, file);
        self.wake.notify();
        id
    }

    fn try_offer(&self, entry: FileEntry, file: Arc<dyn OfferedFile>) -> Option<FileId> {
        let session = self.session.lock();
        let id = session.has_room().then(|| self.add_file(session, entry, BlockOrder::Next, file));
        self.wake.notify();
        id
    }

    fn has_room(&self) -> bool {
        self.session.lock().has_room()
    }

    fn unreadable(&self, error: Error) {
        Self::unreadable(self, error);
    }

    fn notice(&self, text: String) {
        self.observer.session_event(SessionEvent::Notice(text));
    }

    fn has_settled(&self, entry: &FileEntry) -> bool {
        // A directory gets its mode and time at the end of its session, so a takeover session needs the directory
        // again.
        entry.kind == EntryKind::File && self.settled.contains(&entry.path)
    }

    fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    fn is_closed(&self) -> bool {
        self.is_over()
    }

    fn wake(&self) -> &Wake {
        &self.wake
    }

    fn grow(&self, id: FileId, entry: FileEntry) {
        self.session.lock().grow(id, entry);
        self.wake.notify();
    }

    fn set_tail(&self, id: FileId, size: u64) {
        self.session.lock().set_tail(id, size);
        self.wake.notify();
    }

    fn final_digest(&self, id: FileId, blake3: [u8; 32]) {
        self.record(id, |sweeper| sweeper.record_whole(id, blake3));
        self.session.lock().final_digest(id, blake3);
        self.wake.notify();
    }

    fn withdraw(&self, id: FileId, error: Error) {
        self.session.lock().withdraw(id, error);
        self.wake.notify();
    }

    fn has_arrived(&self, id: FileId) -> bool {
        self.session.lock().has_arrived(id)
    }

    fn is_unsettled(&self, id: FileId) -> bool {
        self.session.lock().is_unsettled(id)
    }

    fn deliver(&self) {
        self.after_change();
    }

    fn fail(&self, error: Error) {
        self.abort(error);
    }
}
