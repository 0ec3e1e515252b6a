//! Files that a process has open for writing when they are offered: a growing log, the image of a running virtual
//! machine, a memory map.
//!
//! A write through a memory map can leave size and times unchanged for a while. So such a file is sent like a
//! followed file that has ended. It is read again when all its blocks have arrived, and published only if both reads
//! agree. Then each byte was unchanged from the start of the second read until it was read again. The copy is thus
//! the state of the file at the start of the second read.

use std::sync::Arc;

use sterna_proto::session::BlockOrder;
use sterna_proto::{Error, FileEntry, Growth};

use super::Offers;
use super::file::DiskFile;
use super::final_digest::FinalDigestQueue;
use crate::disk::{Root, SourceItem};

/// Queue of held files to be read again; started with the first of them.
#[derive(Default)]
pub(super) struct HeldFiles(Option<FinalDigestQueue>);

impl HeldFiles {
    /// Offers a held file and queues it for its second read.
    pub(super) fn offer(&mut self, offers: &Arc<dyn Offers>, file: Arc<DiskFile>, entry: FileEntry) {
        if let Err(error) = self.try_offer(offers, file, entry) {
            offers.unreadable(error);
        }
    }

    fn try_offer(&mut self, offers: &Arc<dyn Offers>, file: Arc<DiskFile>, entry: FileEntry) -> Result<(), Error> {
        let seals = match self.0.take() {
            Some(seals) => seals,
            None => FinalDigestQueue::start(offers)?,
        };
        let seals = self.0.insert(seals);
        offers.notice(format!(
            "{file}: a process has it open for writing; it is read twice, and copied if it stays the same meanwhile"
        ));
        let source = (file.root.clone(), file.path.clone());
        let id = offers.offer(entry.clone(), BlockOrder::Next, file);
        seals.push(id, source, entry);
        Ok(())
    }
}

/// Returns the entry for a file of several reads that a process has open for writing; `None` if the listed entry is
/// used.
pub(super) fn entry_of(offers: &dyn Offers, root: &Root, item: &SourceItem, order: BlockOrder) -> Option<FileEntry> {
    // Files sent on demand are excluded: their blocks are compared with other replicas.
    if item.entry.is_packed() || order != BlockOrder::Next || offers.is_dry_run() {
        return None;
    }
    // A file that cannot be opened fails when it is read.
    let source = root.open_source(&item.source).ok().filter(|source| source.is_being_written())?;
    let growth = Growth::of_complete(item.entry.size);
    source.growing_entry(item.entry.path.clone(), growth).ok().filter(|entry| entry.size > 0)
}
