//! Digests of the bytes of a file without a version, by which a later answer is recognised as the same file.
//!
//! A server that sends neither an ETag nor a Last-Modified may send another file in each answer. Such a file is read in
//! answers that start at its first byte. Each answer is compared, block by block, with all bytes that earlier answers
//! have delivered. So the bytes that lanes read always begin one and the same answer. Reads no clock and no socket.

use blake3::{Hash, Hasher};
use parking_lot::Mutex;
use sterna_proto::file::BlockMap;

/// Digests of the blocks of one file, from its first block on.
#[derive(Debug)]
pub(super) struct PrefixDigests {
    blocks: BlockMap,
    /// Size: 32 bytes for each block, so 10 MB for a file of 5 TB.
    known: Mutex<Vec<Hash>>,
}

impl PrefixDigests {
    pub(super) fn new(blocks: BlockMap) -> Self {
        Self { blocks, known: Mutex::default() }
    }

    /// Returns the end of the block that contains the byte at `offset`.
    fn end_of_block(&self, offset: u64) -> u64 {
        let index = offset / self.blocks.block_bytes();
        self.blocks.offset(index) + self.blocks.length(index)
    }

    /// Compares the digest of the block that ends at `end` with that of an earlier answer. The first answer that
    /// reaches the block sets it.
    fn is_same(&self, end: u64, digest: Hash) -> bool {
        let index = ((end - 1) / self.blocks.block_bytes()) as usize;
        let mut known = self.known.lock();
        match known.get(index) {
            Some(before) => *before == digest,
            None => {
                debug_assert_eq!(known.len(), index, "every answer starts at the first byte");
                known.push(digest);
                true
            }
        }
    }
}

/// Bytes of a block that a reader got before its answer was cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct CutBlock {
    /// Offset in the file of the first byte that is missing.
    offset: u64,
    /// Digest of the bytes of the block before it.
    digest: Hash,
}

/// Comparison of one answer with the earlier ones.
#[derive(Debug, Default)]
pub(super) struct AnswerDigest {
    /// Offset in the file of the next byte of the answer.
    offset: u64,
    /// Bytes of the answer in the current block.
    block: Hasher,
}

impl AnswerDigest {
    /// Returns the number of bytes after which the next comparison is due.
    pub(super) fn bytes_to_compare(&self, digests: &PrefixDigests, cut: Option<&CutBlock>) -> u64 {
        let end = digests.end_of_block(self.offset);
        let next = cut.filter(|cut| cut.offset > self.offset).map_or(end, |cut| cut.offset.min(end));
        next - self.offset
    }

    /// Adds the next `bytes`, at most those to the next comparison. Returns false if the answer is another file.
    pub(super) fn add(&mut self, bytes: &[u8], digests: &PrefixDigests, cut: Option<&CutBlock>) -> bool {
        let end = digests.end_of_block(self.offset);
        self.block.update(bytes);
        self.offset += bytes.len() as u64;
        if self.offset == end {
            let digest = self.block.finalize();
            self.block.reset();
            return digests.is_same(end, digest);
        }
        cut.is_none_or(|cut| cut.offset != self.offset || cut.digest == self.block.finalize())
    }

    /// Returns what a reader has got of the current block, at the end of the answer.
    pub(super) fn cut(&self) -> CutBlock {
        CutBlock { offset: self.offset, digest: self.block.finalize() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = (2 << 20) + 7;

    /// Reads an answer in reads of at most `step` bytes, up to `until`. Returns false if it is another file.
    fn read(
        digests: &PrefixDigests,
        answer: &mut AnswerDigest,
        bytes: &[u8],
        (until, step): (usize, usize),
        cut: Option<&CutBlock>,
    ) -> bool {
        while (answer.offset as usize) < until {
            let from = answer.offset as usize;
            let most = answer.bytes_to_compare(digests, cut) as usize;
            if !answer.add(&bytes[from..until.min(from + most.min(step))], digests, cut) {
                return false;
            }
        }
        true
    }

    /// The last byte that was delivered counts as much as the first.
    #[test]
    fn one_changed_byte_before_the_cut_makes_another_file() {
        let bytes = vec![7; SIZE as usize];
        let mib = 1 << 20;
        for cut_at in [1, mib - 1, mib, mib + 1, 2 * mib, 2 * mib + 3] {
            let digests = PrefixDigests::new(BlockMap::new(SIZE));
            let mut first = AnswerDigest::default();
            assert!(read(&digests, &mut first, &bytes, (cut_at, 100_000), None));
            let cut = first.cut();
            for (changed_at, is_same) in [(None, true), (Some(0), false), (Some(cut_at - 1), false)] {
                let mut later = bytes.clone();
                if let Some(at) = changed_at {
                    later[at] = 8;
                }
                let mut answer = AnswerDigest::default();
                let until = cut_at.max(1);
                assert_eq!(read(&digests, &mut answer, &later, (until, 65_536), Some(&cut)), is_same, "{cut_at}");
            }
            // Bytes that nobody has got may differ.
            let mut later = bytes.clone();
            later[cut_at..].fill(9);
            assert!(read(&digests, &mut AnswerDigest::default(), &later, (SIZE as usize, 1 << 20), Some(&cut)));
            // They are the file from now on.
            let again = read(&digests, &mut AnswerDigest::default(), &bytes, (SIZE as usize, 1 << 20), None);
            assert!(!again, "{cut_at}: two files were taken for one");
        }
    }
}
