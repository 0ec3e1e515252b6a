//! Reception of a file whose source still grows.

use std::os::unix::fs::FileExt;

use sterna_proto::{BlockMap, Checks, Error, ErrorKind, FileEntry, Retry, Scope};

use super::{IncomingFile, Records};
use crate::disk::fault::{At, WRITING};

impl IncomingFile {
    /// Records that the source has grown or has ended, and makes room for all its blocks. An entry that is older than
    /// the recorded one changes nothing.
    ///
    /// Errors: those of the disk; `Corrupt` with `Retry::After` if the part file was truncated.
    pub fn grow(&self, entry: &FileEntry) -> Result<(), Error> {
        // Held to the end, so that an earlier entry cannot set its length after a later one.
        let mut records = self.records();
        let mut ours = self.entry_mut();
        if !ours.grows_into(entry) || *ours == *entry {
            return Ok(());
        }
        // A part file from an earlier session may be longer than the recorded size of its source. It is truncated only
        // when the source has ended.
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

    /// Writes the beginning of an incomplete block, behind all complete blocks.
    ///
    /// Errors: those of the disk; `Corrupt` with `Retry::After` if the part file was truncated.
    pub fn write_tail(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let size = self.entry_now().size;
        self.check_uncut(size)?;
        self.part.write_all_at(data, offset).map_err(|error| {
            WRITING.failed(error, format_args!("write {} bytes at {offset} of {}", data.len(), self.path))
        })
    }

    /// Compares the received file with the BLAKE3 of the source, which was computed over the whole source after its
    /// end.
    ///
    /// Errors: `Changed` with `Retry::After` if the received data differs from the current source. The received
    /// data is deleted, and the next attempt starts over.
    pub fn check_final_digest(&self, blake3: [u8; 32]) -> Result<(), Error> {
        let size = self.entry().size;
        // The tail of a block that was expected, but did not come, may lie behind the end.
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
    /// Forgets the block behind the last complete one. An earlier session took this incomplete block for the end of the
    /// file, but the file still grows.
    pub(super) fn forget_end(&mut self, blocks: &BlockMap) {
        let end = blocks.count();
        self.have.remove(end..end + 1);
        self.claimed.remove(&end);
    }

    /// Returns true if the journal claims blocks that a source with these `blocks` does not have.
    pub(super) fn are_beyond(&self, blocks: &BlockMap) -> bool {
        self.have.iter().next_back().is_some_and(|range| range.end > blocks.count())
    }
}
