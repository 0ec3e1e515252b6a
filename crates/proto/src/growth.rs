//! Files that are sent while they grow: how they are cut, and which entry may follow which.
//!
//! A growing file's blocks appear as they are complete. Its cut is fixed when it is first offered, since its size is not
//! known then; its entry says how far it is, in whole blocks, until the last one says its size. Nothing here reads a file or a clock.

use crate::error::Error;
use crate::file::{BlockMap, FileEntry};
use crate::quantity::BitRate;

/// Smallest block of a growing file. Reason: 50 Mbit/s carry it in 0.17 s, and its last block has a second.
pub const GROWING_BLOCK_BYTES_MIN: u64 = 1 << 20;

/// Largest block of a growing file: that of any file.
pub const GROWING_BLOCK_BYTES_MAX: u64 = 16 << 20;

/// The part of a second, as a divisor, in which the path carries a block of a growing file. Reason: what is left of the second that the
/// last byte has is for noticing the end, reading and verifying.
const BLOCK_TIME_DIVISOR: u64 = 4;

/// That a file is, or was first, sent while it grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Growth {
    block_bytes: u64,
    stage: Stage,
}

/// How far a growing file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Grows,
    Ended,
}

impl Growth {
    /// Of a file that grows, cut for a path of `rate`: a block is what it carries in a quarter of a second, from 1 MiB (also when the rate is not
    /// known) to 16 MiB. A pure function of the rate, so that a later run cuts the same file in the same way.
    pub fn for_rate(rate: Option<BitRate>) -> Self {
        let bytes = rate.map_or(0, |rate| rate.0 / 8 / BLOCK_TIME_DIVISOR);
        let mut block_bytes = GROWING_BLOCK_BYTES_MIN;
        while block_bytes < GROWING_BLOCK_BYTES_MAX && block_bytes * 2 <= bytes {
            block_bytes *= 2;
        }
        Self { block_bytes, stage: Stage::Grows }
    }

    /// Of a file that has ended before it was offered, with `size` bytes: cut as any file of this size.
    pub fn of_complete(size: u64) -> Self {
        Self { block_bytes: BlockMap::new(size).block_bytes(), stage: Stage::Ended }
    }

    /// The same of a file that has ended.
    pub fn end(self) -> Self {
        Self { stage: Stage::Ended, ..self }
    }

    /// Whether the file has ended: its entry says its size.
    pub fn has_ended(self) -> bool {
        self.stage == Stage::Ended
    }

    /// Size of every block but the last, in bytes.
    pub fn block_bytes(self) -> u64 {
        self.block_bytes
    }

    /// The bytes of whole blocks that can be sent of a file that has `size` bytes and grows on.
    ///
    /// A block is whole once a byte follows it: the digest of a file of one block is another than that of its first of two, so a
    /// block must not go before it is known which it is.
    pub fn whole_bytes(self, size: u64) -> u64 {
        size.saturating_sub(1) / self.block_bytes * self.block_bytes
    }

    /// As on the wire: 0 or 1 for whether it has ended, and the block size as a power of two.
    pub(crate) fn to_codes(self) -> (u8, u8) {
        (u8::from(self.has_ended()), self.block_bytes.trailing_zeros() as u8)
    }

    /// Reads what [`Growth::to_codes`] wrote, of a file of `size`. Errors: no size of blocks that there is, or part of a block of a file that has not ended.
    pub(crate) fn from_codes(ended: bool, log2: u8, size: u64) -> Result<Self, Error> {
        let block_bytes = 1u64.checked_shl(u32::from(log2)).unwrap_or(0);
        let growth = Self { block_bytes, stage: if ended { Stage::Ended } else { Stage::Grows } };
        if !(GROWING_BLOCK_BYTES_MIN..=GROWING_BLOCK_BYTES_MAX).contains(&block_bytes) {
            return Err(Error::protocol(format!("growing file from the peer: blocks of 2^{log2} bytes")));
        }
        if !ended && !size.is_multiple_of(block_bytes) {
            return Err(Error::protocol("growing file from the peer: part of a block before its end"));
        }
        Ok(growth)
    }
}

impl FileEntry {
    /// Whether the file may still grow.
    pub fn is_growing(&self) -> bool {
        self.growth.is_some_and(|growth| !growth.has_ended())
    }

    /// Whether `other` is the same growing file, at any time: its blocks are blocks of this one.
    pub fn same_growing_file(&self, other: &Self) -> bool {
        let (Some(ours), Some(theirs)) = (self.growth, other.growth) else { return false };
        let identity = |entry: &Self| (entry.kind, entry.inode, entry.version);
        ours.block_bytes == theirs.block_bytes && identity(self) == identity(other)
    }

    /// Whether `later` may follow this entry of a growing file: it has grown on, or has ended.
    pub fn grows_into(&self, later: &Self) -> bool {
        self.is_growing() && self.path == later.path && self.same_growing_file(later) && self.size <= later.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{EntryKind, FileTime, RelPath};

    const MIB: u64 = 1 << 20;

    fn entry(size: u64, growth: Growth) -> FileEntry {
        let path = RelPath::new(b"capture.dat").unwrap();
        let (kind, mtime) = (EntryKind::File, FileTime { seconds: 1, nanoseconds: 0 });
        FileEntry { path, kind, size, mtime, mode: 0o644, allocated: size, inode: 1, version: 7, growth: Some(growth) }
    }

    #[test]
    fn the_last_block_of_a_growing_file_takes_a_quarter_of_a_second_at_most() {
        for (megabits, block) in
            [(None, MIB), (Some(1), MIB), (Some(50), MIB), (Some(1000), 16 * MIB), (Some(100_000), 16 * MIB)]
        {
            assert_eq!(Growth::for_rate(megabits.map(BitRate::megabits)).block_bytes(), block, "{megabits:?}");
        }
    }

    #[test]
    fn a_block_is_whole_once_a_byte_follows_it() {
        let growth = Growth::for_rate(None);
        for (size, whole) in [(0, 0), (1, 0), (MIB, 0), (MIB + 1, MIB), (2 * MIB, MIB), (5 * MIB + 1, 5 * MIB)] {
            assert_eq!(growth.whole_bytes(size), whole, "{size}");
        }
    }

    #[test]
    fn a_growing_file_grows_and_ends_and_does_nothing_else() {
        let growth = Growth::for_rate(None);
        let start = entry(2 * MIB, growth);
        assert!(start.grows_into(&entry(2 * MIB, growth)) && start.grows_into(&entry(9 * MIB, growth)));
        let end = entry(2 * MIB + 5, growth.end());
        assert!(start.grows_into(&end));
        assert!(!end.grows_into(&end) && !end.grows_into(&start), "it has ended");
        assert!(!start.grows_into(&entry(MIB, growth)), "it does not shrink");
        assert!(!start.grows_into(&FileEntry { inode: 2, ..end.clone() }));
        assert!(!start.grows_into(&FileEntry { version: 8, ..end.clone() }));
        assert!(!start.grows_into(&FileEntry { growth: None, ..end.clone() }));
        let wide = Growth::for_rate(Some(BitRate::megabits(1000)));
        assert!(!start.grows_into(&entry(16 * MIB, wide)), "another cut");
    }
}
