//! The local file system as a sink.

use std::sync::Arc;

use sterna_proto::session::Overwrite;
use sterna_proto::{BlockDigest, BlockMap, Digest, Error, FileDigests, FileEntry, RangeSet, RelPath};

use super::destination::Destination;
use super::incoming::IncomingFile;
use crate::sink::{DirectoryModes, Inspected, PackedFile, PackedOutcome, Place, Prepared, Sink, SinkFile, Terms};

impl Sink for Destination {
    fn place_of(&self, path: &RelPath) -> Result<Place, Error> {
        Ok(self.root().place(self.place(path)?))
    }

    fn prepare(&self, entry: &FileEntry, terms: &Terms) -> Result<Prepared, Error> {
        Ok(match self.prepare(entry, terms)? {
            Prepared::UpToDate => Prepared::UpToDate,
            Prepared::Directory => Prepared::Directory,
            Prepared::Packed(seen) => Prepared::Packed(seen),
            Prepared::Incoming(incoming) => Prepared::Incoming(Arc::<IncomingFile>::from(incoming)),
        })
    }

    fn inspect(&self, entry: &FileEntry, overwrite: Overwrite) -> Result<Inspected, Error> {
        self.inspect(entry, overwrite)
    }

    fn claim_settled(&self, entry: &FileEntry) {
        self.claim_settled(entry);
    }

    fn publish_packed(&self, files: &[PackedFile<'_>], terms: &Terms) -> Vec<PackedOutcome> {
        let mut batch = self.packed(terms.overwrite, terms.checks);
        files.iter().for_each(|file| batch.add(*file));
        batch.publish()
    }

    fn finish(&self, modes: DirectoryModes) -> Result<(), Error> {
        self.finish(modes)
    }

    fn sync_names(&self) -> Result<(), Error> {
        self.settle()
    }
}

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

    fn check_final_digest(&self, blake3: [u8; 32]) -> Result<(), Error> {
        self.check_final_digest(blake3)
    }

    fn publish(&self, expected: &[Digest]) -> Result<FileDigests, Error> {
        self.publish(expected)
    }

    fn discard(&self) -> Result<(), Error> {
        self.discard()
    }

    fn end(&self) {
        self.end();
    }
}
