//! Files that a process has open for writing when they are offered: a log that goes on, an image that a machine runs
//! from, a memory map.
//!
//! A write through a map leaves size and times as they were, for a while. So such a file is sent as a followed one that
//! has ended: it is read once more when all its blocks have arrived, and published only if it is what arrived. Then
//! each byte was the same from before the second reading began until it was read again, so that the copy is what the
//! file was at that moment.

use std::sync::Arc;

use sterna_proto::session::{BlockOrder, FileId};
use sterna_proto::{Error, FileEntry, Growth, RelPath};

use super::super::origin::Origin;
use super::super::seal::SealQueue;
use super::super::{SessionEvent, lock};
use super::Sender;
use crate::disk::{Root, SourceItem};

/// What reads held files once more; started with the first.
#[derive(Default)]
pub(super) struct HeldFiles(Option<SealQueue>);

impl HeldFiles {
    /// Offers a held file, and has it read once more.
    pub(super) fn offer(&mut self, sender: &Arc<Sender>, root: &Root, path: RelPath, entry: FileEntry) {
        if let Err(error) = self.try_offer(sender, root, path, entry) {
            sender.unreadable(error);
        }
    }

    fn try_offer(&mut self, sender: &Arc<Sender>, root: &Root, path: RelPath, entry: FileEntry) -> Result<(), Error> {
        let seals = match self.0.take() {
            Some(seals) => seals,
            None => SealQueue::start(sender)?,
        };
        let text = format!(
            "{path}: a process has it open for writing; it is read twice, and copied if it stays the same meanwhile"
        );
        sender.observer.session_event(SessionEvent::Notice(text));
        let origin = Origin::Disk { root: root.clone(), path: path.clone() };
        let id = sender.offer_in(entry.clone(), BlockOrder::Next, origin);
        self.0.insert(seals).push(id, (root.clone(), path), entry);
        Ok(())
    }
}

impl Sender {
    /// The entry by which a file of several reads goes that a process has open for writing; `None`: it goes by its own,
    /// as it is listed.
    pub(super) fn held_entry(&self, root: &Root, item: &SourceItem, order: BlockOrder) -> Option<FileEntry> {
        // What is sent on demand is compared with other replicas, block by block.
        if item.entry.is_packed() || order != BlockOrder::Next || self.dry_run {
            return None;
        }
        // One that cannot be opened fails when it is read.
        let source = root.open_source(&item.source).ok().filter(|source| source.is_being_written())?;
        let growth = Growth::of_complete(item.entry.size);
        source.growing_entry(item.entry.path.clone(), growth).ok().filter(|entry| entry.size > 0)
    }

    /// Whether the receiver has confirmed every block of a file, or wants no more of it.
    pub(in crate::session) fn has_arrived(&self, file: FileId) -> bool {
        lock(&self.session).has_arrived(file)
    }
}
