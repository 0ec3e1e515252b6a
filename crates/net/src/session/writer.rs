//! Writer of one received block: positional writes of bytes in any order, and a hash that follows them.

use std::sync::Arc;

use sterna_proto::session::FileId;
use sterna_proto::{BlockDigest, BlockHasher, BlockMap, Checks, Error, RangeSet};

use super::limits::{Meter, Wait};
use crate::sink::SinkFile;

/// Maximum of bytes that are gathered for one write. Reason: a QUIC packet has 1.4 kB, and a write of 64 KiB costs
/// hardly more than a write of 1.4 kB. The bytes are then hashed while they are still in the CPU cache.
const RUN_BYTES_MAX: usize = 64 << 10;

/// Bytes that are read back in one step when the hash catches up.
const CATCH_UP_BYTES: usize = 64 << 10;

/// Writes the bytes of one block and hashes them in order.
///
/// Consecutive bytes are gathered into a run, which is written as a whole. A run that continues the hashed bytes is
/// hashed from memory. Bytes behind a gap are read back from the file (the page cache) and hashed once the gap is
/// filled.
pub struct BlockWriter {
    /// Number of the file.
    pub file: FileId,
    /// Index of the block.
    pub index: u64,
    incoming: Arc<dyn SinkFile>,
    offset: u64,
    length: u64,
    hasher: BlockHasher,
    hashed: u64,
    /// Ranges that are written beyond `hashed`.
    ahead: RangeSet,
    run_start: u64,
    run: Vec<u8>,
    /// Meter of the thread that writes.
    meter: Arc<Meter>,
}

impl BlockWriter {
    /// Creates a writer of block `index` of `incoming`.
    pub fn new(
        file: FileId,
        index: u64,
        blocks: &BlockMap,
        checks: Checks,
        incoming: Arc<dyn SinkFile>,
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

    /// Returns the file that is written.
    pub fn incoming(&self) -> &Arc<dyn SinkFile> {
        &self.incoming
    }

    /// Writes bytes at `offset` within the block. Errors: of the disk.
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

    /// Writes a block of zeros as a hole in the file. Errors: of the disk.
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

    /// Stores encoded bytes at `offset` within the block, where nothing is written yet. Errors: of the disk.
    pub(super) fn park(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.meter.during(Wait::Storage, data.len(), || self.incoming.write_at(self.offset + offset, data))
    }

    /// Reads back bytes that [`BlockWriter::park`] stored. Errors: of the disk.
    pub(super) fn fetch(&self, offset: u64, length: usize) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; length];
        self.meter.during(Wait::Storage, length, || self.incoming.read_at(self.offset + offset, &mut bytes))?;
        Ok(bytes)
    }

    /// Ends the block, after all its bytes. Errors: of the disk, or bytes are missing.
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

    /// Hashes the bytes that were written behind a gap which is now filled.
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
