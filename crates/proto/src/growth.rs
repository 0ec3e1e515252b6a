//! Growth of files that are sent while they grow: block size, and the blocks that are complete.
//!
//! The blocks of a growing file appear when they are complete. Its block size is fixed at the first offer, because its
//! size is unknown then. Its entry contains the size of the complete blocks; the last entry contains the final size.
//! Refuses to read a file or a clock. Sizes and rates come in as arguments.

use crate::error::Error;
use crate::quantity::BitRate;

/// Minimum block size of a growing file. Reason: 50 Mbit/s carry it in 0.17 s, within the one-second budget for the
/// last block.
pub const GROWING_BLOCK_BYTES_MIN: u64 = 1 << 20;

/// Maximum block size of a growing file, equal to the maximum for any file.
pub const GROWING_BLOCK_BYTES_MAX: u64 = 16 << 20;

/// Divisor of a second that gives the time in which the path carries a block of a growing file. Reason: the rest of the
/// one-second budget for the last byte is for detecting the end, reading and verifying.
const BLOCK_TIME_DIVISOR: u64 = 4;

/// State and block size of a file that is, or was at its first offer, sent while it grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Growth {
    block_bytes: u64,
    stage: Stage,
}

/// Stage of a growing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Grows,
    Ended,
}

impl Growth {
    /// Returns the growth of a growing file on a path of `rate`. A block is the amount that the path carries in a
    /// quarter of a second, from 1 MiB (also for an unknown rate) to 16 MiB. A pure function of the rate, so that a
    /// later run cuts the same file in the same way.
    pub fn for_rate(rate: Option<BitRate>) -> Self {
        let bytes = rate.map_or(0, |rate| rate.0 / 8 / BLOCK_TIME_DIVISOR);
        let mut block_bytes = GROWING_BLOCK_BYTES_MIN;
        while block_bytes < GROWING_BLOCK_BYTES_MAX && block_bytes * 2 <= bytes {
            block_bytes *= 2;
        }
        Self { block_bytes, stage: Stage::Grows }
    }

    /// Returns the growth of a file that ended with `size` bytes before its first offer; it is cut as any file of this
    /// size.
    pub fn of_complete(size: u64) -> Self {
        Self { block_bytes: block_bytes_of(size), stage: Stage::Ended }
    }

    /// Returns the same growth for a file that has ended.
    pub fn end(self) -> Self {
        Self { stage: Stage::Ended, ..self }
    }

    /// Returns true if the file has ended, so that its entry contains its size.
    pub fn has_ended(self) -> bool {
        self.stage == Stage::Ended
    }

    /// Returns the size of every block except the last, in bytes.
    pub fn block_bytes(self) -> u64 {
        self.block_bytes
    }

    /// Returns the bytes in complete blocks that can be sent of a file that has `size` bytes and still grows.
    ///
    /// A block is complete once a byte follows it. Reason: the digest of a file of one block differs from the digest of
    /// the first of two blocks. So a block must not be sent before the case is known.
    pub fn whole_bytes(self, size: u64) -> u64 {
        size.saturating_sub(1) / self.block_bytes * self.block_bytes
    }

    /// Returns the codes on the wire: 1 if the file has ended, otherwise 0; and the block size as a power of two.
    pub(crate) fn to_codes(self) -> (u8, u8) {
        (u8::from(self.has_ended()), self.block_bytes.trailing_zeros() as u8)
    }

    /// Reads the codes written by [`Growth::to_codes`], of a file of `size`. Errors: an invalid block size, or an
    /// incomplete block in a file that has not ended.
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

/// Returns the size of every block except the last of a complete file of `size` bytes.
///
/// Blocks have 1 MiB while a file has at most 1024 of them. Then the size doubles, up to 16 MiB. Such blocks are small
/// enough that a lost lane costs little, and that 16 lanes finish within a sixtieth of the total time of each other.
/// They are large enough that a 5 TB file has 300,000 blocks instead of five million.
pub(crate) fn block_bytes_of(size: u64) -> u64 {
    let mut block_bytes = 1u64 << 20;
    while block_bytes < 16 << 20 && size > block_bytes * 1024 {
        block_bytes *= 2;
    }
    block_bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{EntryKind, FileEntry, FileTime, RelPath};

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
