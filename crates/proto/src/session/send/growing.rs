//! The sending end for a file that is sent while it grows.

use std::ops::Range;

use super::super::FileId;
use super::super::message::{Message, TAIL_BYTES_MAX};
use super::{BlockTask, SendFile, SendSession, unit_count};
use crate::file::FileEntry;

impl SendSession {
    /// Replaces the entry of a growing file by `entry`. New blocks join the pool. If `entry` has ended, the receiver is
    /// notified.
    ///
    /// Range: the current entry grows into `entry`. Otherwise, or if the file has settled, nothing changes.
    pub fn grow(&mut self, id: FileId, entry: FileEntry) {
        let Some(file) = self.files.get_mut(&id).filter(|file| file.entry.grows_into(&entry)) else { return };
        let (before, now) = (unit_count(&file.entry), unit_count(&entry));
        self.offered_bytes += entry.size - file.entry.size;
        if !entry.is_growing() {
            self.core.log.push(&Message::Ended { file: id, entry: entry.clone() });
        }
        file.entry = entry;
        if now > before {
            file.pending.insert(before..now);
        }
        if file.is_ready() {
            self.mark_ready(id, false);
        }
    }

    /// Sends the BLAKE3 of a growing file that has ended and was read again as a whole. The blocks that were sent must
    /// have the same digest.
    pub fn final_digest(&mut self, id: FileId, blake3: [u8; 32]) {
        if self.files.get(&id).is_some_and(|file| !file.withdrawn && !file.entry.is_growing()) {
            self.core.log.push(&Message::FinalDigest { file: id, blake3 });
        }
    }

    /// Queues the tail of a growing file whose writer pauses at `size` bytes: the incomplete block. A tail is sent only
    /// when nothing else is left to send.
    ///
    /// Each byte travels once in a tail and again with its block. When a lane goes down, the tail is sent again from
    /// its start. Bytes that the receiver discarded travel with their block.
    pub fn set_tail(&mut self, id: FileId, size: u64) {
        let Some(file) = self.files.get_mut(&id).filter(|file| file.entry.is_growing()) else { return };
        file.tail.end = size;
        if !file.tail_left().is_empty() {
            self.ready_tails.insert(id);
        }
    }

    /// Returns the large file whose turn it is, in manifest order. If the first one grows, large files take turns,
    /// because that file may never be done.
    pub(super) fn next_ready_large(&self) -> Option<FileId> {
        let first = self.ready_large.first().copied()?;
        if !self.grows(first) {
            return Some(first);
        }
        let behind = |last: FileId| self.ready_large.range(FileId(last.0 + 1)..).next().copied();
        self.last_large.and_then(behind).or(Some(first))
    }

    /// Returns true if small files go before the large file whose turn it is. They go in manifest order, but alternate
    /// with a growing file.
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

    /// Takes the next tail to send.
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

    /// Queues all tails again from their start: nothing records which tail bytes were on the lane that went down.
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
    /// Returns the bytes of the tail that are left to send.
    fn tail_left(&self) -> Range<u64> {
        let start = self.tail.start.max(self.entry.size);
        let may_go = self.entry.is_growing() && !self.withdrawn && !self.waits;
        // If the writer continued, the tail belongs to a complete block instead.
        let end = self.tail.end.min(self.entry.size + self.entry.blocks().block_bytes());
        if may_go { start..end.max(start) } else { start..start }
    }
}
