//! The local file system as a sink.

use sterna_proto::{BlockDigest, BlockMap, Digest, Error, FileDigests, FileEntry, RangeSet, RelPath};

use super::IncomingFile;
use crate::sink::SinkFile;

impl SinkFile for IncomingFile {
    fn path(&self) -> &RelPath {
        self.path()
    }

    fn blocks(&self) -> BlockMap {
        self.blocks()
    }

    fn restarted(&self) -> Option<&str> {
        self.restarted()
    }

    fn have(&self) -> RangeSet {
        self.have()
    }

    fn grow(&self, entry: &FileEntry) -> Result<(), Error> {
        self.grow(entry)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.write_at(offset, data)
    }

    fn write_hole(&self, offset: u64, length: u64) -> Result<(), Error> {
        self.write_hole(offset, length)
    }

    fn write_tail(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.write_tail(offset, data)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        self.read_at(offset, buffer)
    }

    fn record(&self, index: u64, digest: BlockDigest) -> Result<(), Error> {
        self.record(index, digest)
    }

    fn checkpoint(&self) -> Result<u64, Error> {
        self.checkpoint()
    }

    fn next_claim(&self) -> Option<(u64, BlockDigest)> {
        self.next_claim()
    }

    fn settle_claim(&self, index: u64, digest: Option<BlockDigest>) {
        self.settle_claim(index, digest);
    }

    fn keep_digests(&self) {
        self.keep_digests();
    }

    fn forget(&self, blocks: &RangeSet) -> Result<(), Error> {
        self.forget(blocks)
    }

    fn verify(&self, expected: &[Digest]) -> Result<(), Error> {
        self.verify(expected)
    }

    fn check_seal(&self, blake3: [u8; 32]) -> Result<(), Error> {
        self.check_seal(blake3)
    }

    fn publish(&self, expected: &[Digest]) -> Result<FileDigests, Error> {
        self.publish(expected)
    }

    fn discard(&self) -> Result<(), Error> {
        self.discard()
    }
}
