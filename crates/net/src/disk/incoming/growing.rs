//! What a file on its way in does when its source grows.

use std::os::unix::fs::FileExt;

use sterna_proto::{BlockMap, Checks, Error, ErrorKind, FileEntry, Retry, Scope};

use super::{IncomingFile, Records};
use crate::disk::fault::{At, WRITING};

impl IncomingFile {
    /// Takes note that the source has grown, or has ended: there is room for all its blocks then. An entry that is older than what is
    /// known changes nothing.
    ///
    /// Errors: of the disk; `Corrupt`, after, when the part file was cut.
    pub fn grow(&self, entry: &FileEntry) -> Result<(), Error> {
        // Held to the end: a length that was set later must not be that of an earlier entry.
        let mut records = self.records();
        let mut ours = self.entry_mut();
        if !ours.grows_into(entry) || *ours == *entry {
            return Ok(());
        }
        // A part file that an earlier session left may be longer than what is known of its source now; only its end cuts it.
        self.check_uncut(ours.size)?;
        let size = rustix::fs::fstat(&self.part).map_or(0, |stat| stat.st_size as u64);
        if size < entry.size || !entry.is_growing() {
            rustix::fs::ftruncate(&self.part, entry.size).map_err(|errno| {
                WRITING.failed(errno, format_args!("let {} grow to {} bytes", self.path, entry.size))
            })?;
        }
        *ours = entry.clone();
        records.digester.grow(entry.blocks());
        Ok(())
    }

    /// Writes part of a block that is not whole yet, behind all that is.
    ///
    /// Errors: of the disk; `Corrupt`, after, when the part file was cut.
    pub fn write_tail(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let size = self.entry_now().size;
        self.check_uncut(size)?;
        self.part.write_all_at(data, offset).map_err(|error| {
            WRITING.failed(error, format_args!("write {} bytes at {offset} of {}", data.len(), self.path))
        })
    }

    /// Compares what was received with the BLAKE3 of the source, read as a whole after it had ended.
    ///
    /// Errors: `Changed`, after: what was sent is not what the source has now; it is deleted, and the next attempt starts over.
    pub fn check_seal(&self, blake3: [u8; 32]) -> Result<(), Error> {
        let size = self.entry().size;
        // Parts of blocks that were thought to come may have been written behind its end.
        if rustix::fs::fstat(&self.part).is_ok_and(|stat| stat.st_size as u64 > size) {
            rustix::fs::ftruncate(&self.part, size)
                .map_err(|errno| WRITING.failed(errno, format_args!("cut {} to its {size} bytes", self.path)))?;
        }
        if self.file_digests(Checks::NONE)?.blake3 == blake3 {
            return Ok(());
        }
        self.discard()?;
        let text = format!(
            "{} was rewritten or cut while it was sent: what was sent of it is not what it holds now; nothing was \
             published, and the next attempt starts it over",
            self.path
        );
        Err(At(Scope::Source, sterna_proto::Phase::Verify).refused(ErrorKind::Changed, text).retry(Retry::After))
    }
}

impl Records {
    /// Forgets the block behind the last whole one: an earlier session took its part for the end of the file, and it grows on.
    pub(super) fn forget_end(&mut self, blocks: &BlockMap) {
        let end = blocks.count();
        self.have.remove(end..end + 1);
        self.claimed.remove(&end);
    }

    /// Whether a journal speaks of blocks that a source, cut as `blocks`, does not have.
    pub(super) fn are_beyond(&self, blocks: &BlockMap) -> bool {
        self.have.iter().next_back().is_some_and(|range| range.end > blocks.count())
    }
}
