//! What the sending end does with a file that is sent while it grows.

use std::ops::Range;

use super::super::FileId;
use super::super::message::{Message, TAIL_BYTES_MAX};
use super::{BlockTask, SendFile, SendSession, unit_count};
use crate::file::FileEntry;

impl SendSession {
    /// A growing file has become `entry`: its new blocks join the pool, and the receiver is told when that is its end.
    ///
    /// Range: its entry until now grows into this one; otherwise, and when it has settled, nothing changes.
    pub fn grow(&mut self, id: FileId, entry: FileEntry) {
        let Some(file) = self.files.get_mut(&id).filter(|file| file.entry.grows_into(&entry)) else { return };
        let (before, now) = (unit_count(&file.entry), unit_count(&entry));
        self.offered_bytes += entry.size - file.entry.size;
        if !entry.is_growing() {
            self.log.push(&Message::Ended { file: id, entry: entry.clone() });
        }
        file.entry = entry;
        if now > before {
            file.pending.insert(before..now);
        }
        if file.is_ready() {
            self.mark_ready(id, false);
        }
    }

    /// A growing file that has ended was read once more as a whole, and has this BLAKE3: what was sent of it must have it too.
    pub fn seal(&mut self, id: FileId, blake3: [u8; 32]) {
        if self.files.get(&id).is_some_and(|file| !file.withdrawn && !file.entry.is_growing()) {
            self.log.push(&Message::Sealed { file: id, blake3 });
        }
    }

    /// The writer of a growing file pauses, and has written `size` bytes: the part of a block that is not whole goes when nothing else is to be sent.
    ///
    /// Each byte goes so once, and again with its block; what a lane loses of it, or the receiver could not take, goes when the writer pauses again or with the block.
    pub fn set_tail(&mut self, id: FileId, size: u64) {
        let Some(file) = self.files.get_mut(&id).filter(|file| file.entry.is_growing()) else { return };
        file.tail.end = size;
        if !file.tail_left().is_empty() {
            self.ready_tails.insert(id);
        }
    }

    /// The large file whose turn it is. In the order of the manifest; but a file that grows may never be done, and others take turns with it.
    pub(super) fn next_ready_large(&self) -> Option<FileId> {
        let first = self.ready_large.first().copied()?;
        if !self.grows(first) {
            return Some(first);
        }
        let behind = |last: FileId| self.ready_large.range(FileId(last.0 + 1)..).next().copied();
        self.last_large.and_then(behind).or(Some(first))
    }

    /// Whether small files go before the large file whose turn it is.
    pub(super) fn small_goes_first(&mut self, small: FileId, large: FileId) -> bool {
        if small < large || !self.grows(large) {
            return small < large;
        }
        self.small_gave_way = !self.small_gave_way;
        !self.small_gave_way
    }

    fn grows(&self, file: FileId) -> bool {
        self.files.get(&file).is_some_and(|file| file.entry.is_growing())
    }

    /// Takes a part of a block that is not whole.
    pub(super) fn next_tail(&mut self) -> Option<BlockTask> {
        while let Some(id) = self.ready_tails.first().copied() {
            let Some(file) = self.files.get_mut(&id) else { break };
            let left = file.tail_left();
            let range = left.start..left.end.min(left.start + TAIL_BYTES_MAX);
            file.tail.start = range.end;
            if range.end == left.end {
                self.ready_tails.remove(&id);
            }
            if !range.is_empty() {
                return Some(BlockTask::Tail { file: id, entry: file.entry.clone(), range });
            }
        }
        None
    }

    /// A lane is gone, and nobody knows what it carried of parts of blocks.
    pub(super) fn send_tails_again(&mut self) {
        for (id, file) in self.files.iter_mut().filter(|(_, file)| file.tail.end > 0) {
            file.tail.start = 0;
            if !file.tail_left().is_empty() {
                self.ready_tails.insert(*id);
            }
        }
    }
}

impl SendFile {
    /// What is to be sent of the part of a block that its writer has written.
    fn tail_left(&self) -> Range<u64> {
        let start = self.tail.start.max(self.entry.size);
        let may_go = self.entry.is_growing() && !self.withdrawn && !self.waits;
        // A writer that went on has a whole block instead.
        let end = self.tail.end.min(self.entry.size + self.entry.blocks().block_bytes());
        if may_go { start..end.max(start) } else { start..start }
    }
}
