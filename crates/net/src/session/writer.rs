//! One block on its way to disk: positional writes of bytes in any order, and a hash that follows them.

use std::sync::Arc;

use sterna_proto::session::FileId;
use sterna_proto::{BlockDigest, BlockHasher, BlockMap, Checks, Error, RangeSet};

use super::limits::{Meter, Wait};
use crate::disk::IncomingFile;

/// Bytes that are gathered before they are written. Reason: a QUIC packet brings 1.4 kB at a time, and a write of 64 KiB
/// costs hardly more than one of that; the bytes are then hashed while they are still in the cache.
const RUN_BYTES_MAX: usize = 64 << 10;

/// Bytes read back at once when the hash catches up.
const CATCH_UP_BYTES: usize = 64 << 10;

/// Writes the bytes of one block and hashes them in order.
///
/// Bytes that continue the last ones are gathered into a run; a run is written at its place and, when it continues what is
/// hashed, hashed from memory. What arrived beyond a hole is read back from the file (the page cache) once the hole is filled.
pub struct BlockWriter {
    /// The file.
    pub file: FileId,
    /// Index of the block.
    pub index: u64,
    incoming: Arc<IncomingFile>,
    offset: u64,
    length: u64,
    hasher: BlockHasher,
    hashed: u64,
    /// What is written beyond `hashed`.
    ahead: RangeSet,
    run_start: u64,
    run: Vec<u8>,
    /// Of the thread that writes.
    meter: Arc<Meter>,
}

impl BlockWriter {
    /// A writer of block `index` of `incoming`.
    pub fn new(
        file: FileId,
        index: u64,
        blocks: &BlockMap,
        checks: Checks,
        incoming: Arc<IncomingFile>,
        meter: Arc<Meter>,
    ) -> Self {
        Self {
            file,
            index,
            incoming,
            offset: blocks.offset(index),
            length: blocks.length(index),
            hasher: BlockHasher::new(blocks, index, checks),
            hashed: 0,
            ahead: RangeSet::default(),
            run_start: 0,
            run: Vec::new(),
            meter,
        }
    }

    /// The file that is written.
    pub fn incoming(&self) -> &Arc<IncomingFile> {
        &self.incoming
    }

    /// Takes bytes at `offset` within the block. Errors: of the disk.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Error> {
        if offset != self.run_start + self.run.len() as u64 {
            self.write_run()?;
            self.run_start = offset;
        }
        if self.run.is_empty() && data.len() >= RUN_BYTES_MAX {
            self.write_at(offset, data)?;
            self.run_start = offset + data.len() as u64;
            return Ok(());
        }
        self.run.extend_from_slice(data);
        if self.run.len() >= RUN_BYTES_MAX {
            self.write_run()?;
        }
        Ok(())
    }

    /// Takes a block that is all zero: the file gets a hole there. Errors: of the disk.
    pub fn hole(&mut self) -> Result<(), Error> {
        self.incoming.write_hole(self.offset, self.length)?;
        let zeros = [0; 4096];
        while self.hashed < self.length {
            let size = (self.length - self.hashed).min(zeros.len() as u64);
            self.hasher.update(&zeros[..size as usize]);
            self.hashed += size;
        }
        Ok(())
    }

    /// Puts bytes that are not those of the file at `offset` within the block, where nothing was written yet. Errors: of the disk.
    pub(super) fn park(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.meter.during(Wait::Storage, data.len(), || self.incoming.write_at(self.offset + offset, data))
    }

    /// What was put there. Errors: of the disk.
    pub(super) fn fetch(&self, offset: u64, length: usize) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; length];
        self.meter.during(Wait::Storage, length, || self.incoming.read_at(self.offset + offset, &mut bytes))?;
        Ok(bytes)
    }

    /// Ends the block: every byte has been given. Errors: of the disk, or bytes are missing.
    pub fn finish(mut self) -> Result<BlockDigest, Error> {
        self.write_run()?;
        if self.hashed != self.length {
            return Err(crate::internal("a block ended before all its bytes had come"));
        }
        Ok(self.hasher.finish())
    }

    fn write_run(&mut self) -> Result<(), Error> {
        if self.run.is_empty() {
            return Ok(());
        }
        let run = std::mem::take(&mut self.run);
        self.write_at(self.run_start, &run)?;
        self.run_start += run.len() as u64;
        self.run = run;
        self.run.clear();
        Ok(())
    }

    fn write_at(&mut self, start: u64, data: &[u8]) -> Result<(), Error> {
        self.meter.during(Wait::Storage, data.len(), || self.incoming.write_at(self.offset + start, data))?;
        let end = start + data.len() as u64;
        if start != self.hashed {
            self.ahead.insert(start..end);
            return Ok(());
        }
        self.hasher.update(data);
        self.hashed = end;
        self.catch_up()
    }

    /// Hashes what was written beyond a hole that is filled now.
    fn catch_up(&mut self) -> Result<(), Error> {
        let Some(range) = self.ahead.iter().next().filter(|range| range.start <= self.hashed) else { return Ok(()) };
        self.ahead.remove(range.clone());
        let mut bytes = vec![0; CATCH_UP_BYTES.min((range.end - self.hashed) as usize)];
        while self.hashed < range.end {
            let size = bytes.len().min((range.end - self.hashed) as usize);
            let piece = &mut bytes[..size];
            self.meter.during(Wait::Storage, 0, || self.incoming.read_at(self.offset + self.hashed, piece))?;
            self.hasher.update(&bytes[..size]);
            self.hashed += size as u64;
        }
        Ok(())
    }
}
