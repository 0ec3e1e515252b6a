//! Removes recorded blocks that are useless because the replica that sent them has another file.

use sterna_proto::journal::JournalRecord;
use sterna_proto::{BlockMap, Digest, Error, FileDigester, RangeSet};

use super::super::fault::WRITING;
use super::{IncomingFile, Journal, Records, unlink_ours};

impl IncomingFile {
    /// Keeps the digest of every block from now on, so that blocks can be forgotten. Must be called before the first
    /// block is recorded.
    ///
    /// Cost: about 60 bytes per block; 18 MB for 5 TB.
    pub fn keep_digests(&self) {
        self.records().kept.get_or_insert_default();
    }

    /// Compares the whole file with every digest of `expected`. Does not change the file.
    ///
    /// Errors: `Corrupt` with `Retry::OtherReplica` if a digest differs; others as [`IncomingFile::publish`]. Cost: one
    /// pass over the file for MD5 and SHA-256.
    pub fn verify(&self, expected: &[Digest]) -> Result<(), Error> {
        let checks = expected.iter().fold(self.checks, |checks, digest| checks.with(digest.algorithm()));
        let digests = self.file_digests(checks)?;
        expected.iter().try_for_each(|digest| digest.check(&digests, &self.path))
    }

    /// Removes blocks from the received ones, durably: no later session finds them. Range: digests are kept, and no
    /// lane writes any of these blocks.
    ///
    /// The journal is deleted and written again. A crash between the two loses the received blocks, and never restores
    /// a forgotten block. Errors: as [`IncomingFile::checkpoint`].
    pub fn forget(&self, blocks: &RangeSet) -> Result<(), Error> {
        let mut journal = self.journal();
        self.refuse_closed(&journal)?;
        self.records().forget(blocks, self.blocks());
        if matches!(*journal, Journal::Open { .. }) {
            let failed =
                |errno| WRITING.failed(errno, format_args!("delete the journal of {} to begin it anew", self.path));
            unlink_ours(super::AsFd::as_fd(&self.directory), &self.names.journal).map_err(failed)?;
            rustix::fs::fsync(&self.directory).map_err(failed)?;
            *journal = Journal::None;
        }
        self.save(&mut journal).map(drop)
    }
}

impl Records {
    fn forget(&mut self, blocks: &RangeSet, map: BlockMap) {
        let kept = self.kept.get_or_insert_default();
        for index in blocks.iter().flatten() {
            self.have.remove(index..index + 1);
            self.claimed.remove(&index);
            kept.remove(&index);
        }
        self.digester = FileDigester::new(map);
        self.ahead = kept.clone();
        while let Some(digest) = self.ahead.remove(&self.digester.next_index()) {
            self.digester.push(&digest);
        }
        let record = |(index, digest): (&u64, &_)| JournalRecord { index: *index, digest: *digest };
        self.unsaved = self.claimed.iter().chain(kept.iter()).map(record).collect();
    }
}
