//! Digests of blocks that combine into digests of files.
//!
//! Hashes each block separately, in any order and on any thread. Merges the results into the ordinary digest of the
//! whole file. These are the BLAKE3 that `b3sum` prints, the Adler-32 of zlib and RFC 1950, and the CRC-32C of RFC
//! 3720. MD5 and SHA-256 do not combine; [`InOrder`] computes them in one pass over a finished file when a caller asks.
//! Refuses to read files. Bytes come in as slices; there is no clock.
//!
//! BLAKE3 is a binary tree over chunks of 1024 bytes. A block is an aligned group of chunks, their number a power of
//! two, so its subtree is a subtree of the file. Merging the chaining values of all blocks pairwise gives the root. A
//! file of one block has no node above that block, and its root is finalised differently. There the value of the block
//! *is* the hash of the file.

use std::fmt;
use std::str::FromStr;

use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use md5::{Digest as _, Md5};
use sha2::Sha256;

use crate::error::{Error, ErrorKind, Phase, Retry, Scope};
use crate::file::BlockMap;

/// Algorithm for the digest of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Adler-32 as in zlib (RFC 1950); combines.
    Adler32,
    /// CRC-32C, Castagnoli (RFC 3720); combines.
    Crc32c,
    /// MD5 (RFC 1321); in order only.
    Md5,
    /// SHA-256 (FIPS 180-4); in order only.
    Sha256,
    /// BLAKE3; combines, and is always computed.
    Blake3,
}

impl Algorithm {
    /// All algorithms, in the order in which `--checksum` lists them.
    pub const ALL: [Self; 5] = [Self::Adler32, Self::Crc32c, Self::Md5, Self::Sha256, Self::Blake3];

    /// Returns the name used in `--checksum`, `--expect` and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Adler32 => "adler32",
            Self::Crc32c => "crc32c",
            Self::Md5 => "md5",
            Self::Sha256 => "sha256",
            Self::Blake3 => "blake3",
        }
    }

    /// Returns the size of a digest in bytes.
    pub const fn value_bytes(self) -> usize {
        match self {
            Self::Adler32 | Self::Crc32c => 4,
            Self::Md5 => 16,
            Self::Sha256 | Self::Blake3 => 32,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name().eq_ignore_ascii_case(text)).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            usage(format!("checksum {:?} is not one of {known}", shortened(text)))
        })
    }
}

/// Digests to compute in addition to BLAKE3, which is always computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// Adler-32, combined from blocks.
    pub adler32: bool,
    /// CRC-32C, combined from blocks.
    pub crc32c: bool,
    /// MD5, in one pass over the finished file.
    pub md5: bool,
    /// SHA-256, in one pass over the finished file.
    pub sha256: bool,
}

impl Checks {
    /// BLAKE3 only.
    pub const NONE: Self = Self { adler32: false, crc32c: false, md5: false, sha256: false };

    /// Returns these checks plus `algorithm`.
    #[must_use]
    pub fn with(mut self, algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Adler32 => self.adler32 = true,
            Algorithm::Crc32c => self.crc32c = true,
            Algorithm::Md5 => self.md5 = true,
            Algorithm::Sha256 => self.sha256 = true,
            Algorithm::Blake3 => {}
        }
        self
    }

    /// Returns true if only BLAKE3 is requested.
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }
}

impl FromIterator<Algorithm> for Checks {
    fn from_iter<I: IntoIterator<Item = Algorithm>>(algorithms: I) -> Self {
        algorithms.into_iter().fold(Self::NONE, Self::with)
    }
}

/// Digest of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockDigest {
    /// Chaining value of the block's subtree at its offset. In a file of one block, the BLAKE3 of the file.
    pub chaining_value: [u8; 32],
    /// Adler-32 of the block, if requested.
    pub adler32: Option<u32>,
    /// CRC-32C of the block, if requested.
    pub crc32c: Option<u32>,
}

impl BlockDigest {
    /// Returns the digest of block `index` with the content `data`. Range: `index < blocks.count()`; `data` has the
    /// length of the block.
    pub fn of(blocks: &BlockMap, index: u64, checks: Checks, data: &[u8]) -> Self {
        let mut hasher = BlockHasher::new(blocks, index, checks);
        hasher.update(data);
        hasher.finish()
    }
}

/// Computes the digest of one block from consecutive slices.
///
/// Cost: 250 bytes to 2 kB of state. BLAKE3 uses the widest available SIMD for slices of 16 KiB and more.
pub struct BlockHasher {
    blake3: blake3::Hasher,
    adler32: Option<simd_adler32::Adler32>,
    crc32c: Option<u32>,
    is_whole_file: bool,
    left_bytes: u64,
}

impl BlockHasher {
    /// Starts block `index` of a file cut as in `blocks`. Range: `index < blocks.count()`.
    pub fn new(blocks: &BlockMap, index: u64, checks: Checks) -> Self {
        assert!(index < blocks.count(), "block {index} of {}", blocks.count());
        let mut blake3 = blake3::Hasher::new();
        blake3.set_input_offset(blocks.offset(index));
        Self {
            blake3,
            adler32: checks.adler32.then(simd_adler32::Adler32::new),
            crc32c: checks.crc32c.then_some(0),
            is_whole_file: blocks.is_one_block(),
            left_bytes: blocks.length(index),
        }
    }

    /// Returns the number of bytes of the block that are still missing.
    pub fn left_bytes(&self) -> u64 {
        self.left_bytes
    }

    /// Adds the next bytes of the block. Range: at most [`BlockHasher::left_bytes`].
    pub fn update(&mut self, data: &[u8]) {
        assert!(data.len() as u64 <= self.left_bytes, "{} bytes more, {} left", data.len(), self.left_bytes);
        self.left_bytes -= data.len() as u64;
        self.blake3.update(data);
        if let Some(adler32) = &mut self.adler32 {
            adler32.write(data);
        }
        if let Some(crc32c) = &mut self.crc32c {
            *crc32c = crc32c::crc32c_append(*crc32c, data);
        }
    }

    /// Returns the digest of the block. Range: all bytes of the block were added.
    pub fn finish(self) -> BlockDigest {
        assert!(self.left_bytes == 0, "{} bytes of the block have not come", self.left_bytes);
        let chaining_value = match self.is_whole_file {
            true => *self.blake3.finalize().as_bytes(),
            false => self.blake3.finalize_non_root(),
        };
        BlockDigest { chaining_value, adler32: self.adler32.map(|a| a.finish()), crc32c: self.crc32c }
    }
}

/// Merges the digests of a file's blocks, added in order, into the digests of the file.
///
/// Cost: memory is O(log n) in the number of blocks, below 2 kB for the largest file.
#[derive(Clone, Debug)]
pub struct FileDigester {
    blocks: BlockMap,
    next: u64,
    /// Subtrees whose right sibling is missing, left to right, each smaller than the previous one.
    subtrees: Vec<[u8; 32]>,
    adler32: Option<u32>,
    crc32c: Option<u32>,
}

impl FileDigester {
    /// Starts a file cut as in `blocks`.
    pub fn new(blocks: BlockMap) -> Self {
        Self { blocks, next: 0, subtrees: Vec::new(), adler32: Some(ADLER32_EMPTY), crc32c: Some(0) }
    }

    /// Updates the cut of a file that has grown. Range: `blocks` has the same block size.
    pub fn grow(&mut self, blocks: BlockMap) {
        self.blocks = blocks;
    }

    /// Returns the index of the next block.
    pub fn next_index(&self) -> u64 {
        self.next
    }

    /// Adds the digest of block [`FileDigester::next_index`]. Range: that index is below the number of blocks.
    pub fn push(&mut self, digest: &BlockDigest) {
        assert!(self.next < self.blocks.count(), "the file has {} blocks", self.blocks.count());
        // A merge waits until a block follows. Only then is it certain that a full subtree is not the root.
        while self.subtrees.len() > self.next.count_ones() as usize {
            self.merge_last_two();
        }
        self.subtrees.push(digest.chaining_value);
        let length = self.blocks.length(self.next);
        let both = |left: Option<u32>, right: Option<u32>| Some((left?, right?));
        self.adler32 = both(self.adler32, digest.adler32).map(|(left, right)| adler32_combine(left, right, length));
        // A block is at most 16 MiB, so its length fits usize on every platform.
        self.crc32c =
            both(self.crc32c, digest.crc32c).map(|(left, right)| crc32c::crc32c_combine(left, right, length as usize));
        self.next += 1;
    }

    /// Returns the digests of the file, with Adler-32 and CRC-32C if every block had them. Range: every block was
    /// added.
    pub fn finish(mut self) -> FileDigests {
        assert!(self.next == self.blocks.count(), "{} of {} blocks", self.next, self.blocks.count());
        while self.subtrees.len() > 2 {
            self.merge_last_two();
        }
        let blake3 = match self.subtrees[..] {
            [] => *blake3::hash(b"").as_bytes(),
            [only] => only,
            [left, right, ..] => *merge_subtrees_root(&left, &right, Mode::Hash).as_bytes(),
        };
        FileDigests { blake3, adler32: self.adler32, crc32c: self.crc32c, md5: None, sha256: None }
    }

    fn merge_last_two(&mut self) {
        if let (Some(right), Some(left)) = (self.subtrees.pop(), self.subtrees.pop()) {
            self.subtrees.push(merge_subtrees_non_root(&left, &right, Mode::Hash));
        }
    }
}

/// Digests of a whole file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileDigests {
    /// BLAKE3, as `b3sum` prints it.
    pub blake3: [u8; 32],
    /// Adler-32, if computed.
    pub adler32: Option<u32>,
    /// CRC-32C, if computed.
    pub crc32c: Option<u32>,
    /// MD5, if computed.
    pub md5: Option<[u8; 16]>,
    /// SHA-256, if computed.
    pub sha256: Option<[u8; 32]>,
}

impl FileDigests {
    /// Returns the digests of a file with the content `data`.
    pub fn of(data: &[u8], checks: Checks) -> Self {
        let mut rest = InOrder::new(checks);
        rest.update(data);
        let mut digests =
            Self { blake3: *blake3::hash(data).as_bytes(), adler32: None, crc32c: None, md5: None, sha256: None };
        rest.finish_into(&mut digests);
        digests
    }

    /// Returns the digest by `algorithm`, if it was computed.
    pub fn digest(&self, algorithm: Algorithm) -> Option<Digest> {
        match algorithm {
            Algorithm::Adler32 => self.adler32.map(Digest::Adler32),
            Algorithm::Crc32c => self.crc32c.map(Digest::Crc32c),
            Algorithm::Md5 => self.md5.map(Digest::Md5),
            Algorithm::Sha256 => self.sha256.map(Digest::Sha256),
            Algorithm::Blake3 => Some(Digest::Blake3(self.blake3)),
        }
    }

    /// Iterates over the computed digests.
    pub fn iter(&self) -> impl Iterator<Item = Digest> + '_ {
        Algorithm::ALL.into_iter().filter_map(|algorithm| self.digest(algorithm))
    }

    /// Returns the checks of `wanted` whose digests are missing here.
    pub fn missing(&self, wanted: Checks) -> Checks {
        Checks {
            adler32: wanted.adler32 && self.adler32.is_none(),
            crc32c: wanted.crc32c && self.crc32c.is_none(),
            md5: wanted.md5 && self.md5.is_none(),
            sha256: wanted.sha256 && self.sha256.is_none(),
        }
    }
}

/// Computes digests over the bytes of a file in order: digests that do not combine, or that are missing for a resumed
/// file.
#[derive(Clone)]
pub struct InOrder {
    adler32: Option<simd_adler32::Adler32>,
    crc32c: Option<u32>,
    md5: Option<Md5>,
    sha256: Option<Sha256>,
}

impl InOrder {
    /// Starts the digests requested in `checks`.
    pub fn new(checks: Checks) -> Self {
        Self {
            adler32: checks.adler32.then(simd_adler32::Adler32::new),
            crc32c: checks.crc32c.then_some(0),
            md5: checks.md5.then(Md5::new),
            sha256: checks.sha256.then(Sha256::new),
        }
    }

    /// Adds the next bytes of the file.
    pub fn update(&mut self, data: &[u8]) {
        if let Some(adler32) = &mut self.adler32 {
            adler32.write(data);
        }
        if let Some(crc32c) = &mut self.crc32c {
            *crc32c = crc32c::crc32c_append(*crc32c, data);
        }
        if let Some(md5) = &mut self.md5 {
            md5.update(data);
        }
        if let Some(sha256) = &mut self.sha256 {
            sha256.update(data);
        }
    }

    /// Writes the computed digests into `digests` and keeps the others.
    pub fn finish_into(self, digests: &mut FileDigests) {
        digests.adler32 = self.adler32.map(|a| a.finish()).or(digests.adler32);
        digests.crc32c = self.crc32c.or(digests.crc32c);
        digests.md5 = self.md5.map(|m| m.finalize().into()).or(digests.md5);
        digests.sha256 = self.sha256.map(|s| s.finalize().into()).or(digests.sha256);
    }
}

/// One digest of a file, with its algorithm; written as `ALG:HEX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Digest {
    /// Adler-32.
    Adler32(u32),
    /// CRC-32C.
    Crc32c(u32),
    /// MD5.
    Md5([u8; 16]),
    /// SHA-256.
    Sha256([u8; 32]),
    /// BLAKE3.
    Blake3([u8; 32]),
}

impl Digest {
    /// Returns the algorithm of the digest.
    pub const fn algorithm(&self) -> Algorithm {
        match self {
            Self::Adler32(_) => Algorithm::Adler32,
            Self::Crc32c(_) => Algorithm::Crc32c,
            Self::Md5(_) => Algorithm::Md5,
            Self::Sha256(_) => Algorithm::Sha256,
            Self::Blake3(_) => Algorithm::Blake3,
        }
    }

    /// Returns the digest in lower-case hexadecimal, as common tools print it (32-bit checksums with 8 digits).
    pub fn hex(&self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        match self {
            Self::Adler32(value) | Self::Crc32c(value) => format!("{value:08x}"),
            Self::Md5(bytes) => hex(bytes),
            Self::Sha256(bytes) | Self::Blake3(bytes) => hex(bytes),
        }
    }

    /// Compares this digest with the digests computed for the file `name`.
    ///
    /// Errors: `Corrupt` at the source, with retry from another replica, if they differ. The path is not the cause,
    /// because each block was checked against the bytes that the sender read. `Internal` if this algorithm was not
    /// computed.
    pub fn check(&self, computed: &FileDigests, name: &dyn fmt::Display) -> Result<(), Error> {
        let algorithm = self.algorithm();
        match computed.digest(algorithm) {
            Some(found) if found == *self => Ok(()),
            Some(found) => {
                let text = format!(
                    "verify {name}: {algorithm} is {}, expected {}; the file is not published",
                    found.hex(),
                    self.hex()
                );
                Err(Error::new(ErrorKind::Corrupt, Scope::Source, Phase::Verify, text).retry(Retry::OtherReplica))
            }
            None => {
                let text = format!("verify {name}: {algorithm} was expected but not computed");
                Err(Error::new(ErrorKind::Internal, Scope::Destination, Phase::Verify, text))
            }
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm(), self.hex())
    }
}

impl FromStr for Digest {
    type Err = Error;

    /// Reads `ALG:HEX`, such as `adler32:1c2b3a4f`. Leading zeros of 32-bit checksums are optional, because some
    /// catalogues omit them.
    fn from_str(text: &str) -> Result<Self, Error> {
        let Some((name, digits)) = text.split_once(':') else {
            return Err(usage(format!("digest {:?} is not ALG:HEX, such as blake3:af13…", shortened(text))));
        };
        let algorithm: Algorithm = name.parse()?;
        let expected = algorithm.value_bytes() * 2;
        let short_form = algorithm.value_bytes() == 4 && !digits.is_empty() && digits.len() <= expected;
        if digits.len() != expected && !short_form {
            let found = digits.len();
            return Err(usage(format!("digest {:?}: {algorithm} has {expected} digits, not {found}", shortened(text))));
        }
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(usage(format!("digest {:?}: expected hexadecimal digits (0-9, a-f)", shortened(text))));
        }
        let mut bytes = [0u8; 32];
        for (place, digit) in digits.bytes().rev().enumerate() {
            // Every byte of `digits` was checked above to be a hexadecimal digit.
            let value = (digit as char).to_digit(16).unwrap_or(0) as u8;
            bytes[expected / 2 - 1 - place / 2] |= value << (4 * (place % 2));
        }
        let word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        Ok(match algorithm {
            Algorithm::Adler32 => Self::Adler32(word),
            Algorithm::Crc32c => Self::Crc32c(word),
            Algorithm::Md5 => {
                let mut short = [0u8; 16];
                short.copy_from_slice(&bytes[..16]);
                Self::Md5(short)
            }
            Algorithm::Sha256 => Self::Sha256(bytes),
            Algorithm::Blake3 => Self::Blake3(bytes),
        })
    }
}

/// Adler-32 of the empty string (RFC 1950 section 8.2).
const ADLER32_EMPTY: u32 = 1;

/// Modulus of Adler-32: the largest prime below 2^16 (RFC 1950 section 8.2).
const ADLER32_BASE: u64 = 65521;

/// Returns the Adler-32 of two concatenated strings, from the checksum of each and the length of the second.
///
/// The low half is 1 plus the sum of the bytes; the high half is the sum of all low halves. In the concatenation, the
/// low halves of the second string start from the low half of `left` instead of 1.
fn adler32_combine(left: u32, right: u32, right_bytes: u64) -> u32 {
    let (left_low, left_high) = (u64::from(left & 0xffff), u64::from(left >> 16));
    let (right_low, right_high) = (u64::from(right & 0xffff), u64::from(right >> 16));
    let carried = left_low + ADLER32_BASE - 1;
    let low = (carried + right_low) % ADLER32_BASE;
    let high = (left_high + right_high + right_bytes % ADLER32_BASE * (carried % ADLER32_BASE)) % ADLER32_BASE;
    // Both halves are below 65521 and fit in 16 bits.
    (high as u32) << 16 | low as u32
}

fn usage(text: String) -> Error {
    Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text)
}

/// Returns at most 80 characters of a text from a user or a peer, for an error text.
fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use sterna_seeded::Seeded;

    use super::*;

    const ALL_CHECKS: Checks = Checks { adler32: true, crc32c: true, md5: true, sha256: true };

    /// Returns digests merged from blocks. The order of hashing follows from `seed`; each block is hashed in slices.
    fn from_blocks(data: &[u8], seed: u64) -> FileDigests {
        let blocks = BlockMap::new(data.len() as u64);
        let mut order: Vec<u64> = (0..blocks.count()).collect();
        Seeded::new(seed).shuffle(&mut order);
        let mut digests = vec![None; order.len()];
        for index in order {
            let start = blocks.offset(index) as usize;
            let mut hasher = BlockHasher::new(&blocks, index, ALL_CHECKS);
            for slice in data[start..start + blocks.length(index) as usize].chunks(100_003) {
                hasher.update(slice);
            }
            digests[index as usize] = Some(hasher.finish());
        }
        let mut file = FileDigester::new(blocks);
        for digest in digests {
            file.push(&digest.unwrap());
        }
        file.finish()
    }

    #[test]
    fn blocks_in_any_order_give_the_digests_of_the_whole_file() {
        let mib = 1 << 20;
        // Sizes one byte around a block, around powers of two of blocks, and the first file with larger blocks.
        let sizes =
            [0, 1, mib - 1, mib, mib + 1, 2 * mib, 2 * mib + 1, 3 * mib, 4 * mib + 5, 7 * mib + 1024, 33 * mib - 1];
        let data = Seeded::new(1).bytes(1025 * mib);
        for (seed, size) in sizes.into_iter().chain([1025 * mib]).enumerate() {
            let whole = FileDigests::of(&data[..size], ALL_CHECKS);
            let merged = from_blocks(&data[..size], seed as u64);
            let expected = FileDigests { md5: None, sha256: None, ..whole };
            assert_eq!(merged, expected, "{size} bytes, seed {seed}");
        }
    }

    #[test]
    fn reference_values_are_met() {
        let digests = FileDigests::of(b"123456789", ALL_CHECKS);
        let hex = |algorithm| digests.digest(algorithm).unwrap().hex();
        // Check values of RFC 3720 and the zlib manual; output of md5sum, sha256sum and b3sum for the same nine bytes.
        assert_eq!(hex(Algorithm::Crc32c), "e3069283");
        assert_eq!(hex(Algorithm::Adler32), "091e01de");
        assert_eq!(hex(Algorithm::Md5), "25f9e794323b453885f5181f1b624d0b");
        assert_eq!(hex(Algorithm::Sha256), "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225");
        let empty = FileDigester::new(BlockMap::new(0)).finish();
        let root = "blake3:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        assert_eq!(empty.digest(Algorithm::Blake3), Some(root.parse().unwrap()));
        assert_eq!((empty.adler32, empty.crc32c), (Some(1), Some(0)));
    }

    #[test]
    fn a_block_without_a_checksum_leaves_the_file_without_it() {
        let data = Seeded::new(1).bytes((2 << 20) + 7);
        let blocks = BlockMap::new(data.len() as u64);
        let mut file = FileDigester::new(blocks);
        for index in 0..blocks.count() {
            let start = blocks.offset(index) as usize;
            let checks = Checks { crc32c: true, adler32: index != 1, ..Checks::NONE };
            let bytes = &data[start..start + blocks.length(index) as usize];
            file.push(&BlockDigest::of(&blocks, index, checks, bytes));
        }
        let digests = file.finish();
        assert_eq!((digests.adler32, digests.crc32c), (None, Some(crc32c::crc32c(&data))));
        let missing = digests.missing(ALL_CHECKS);
        assert_eq!(missing, Checks { adler32: true, md5: true, sha256: true, crc32c: false });
        let (mut digests, mut rest) = (digests, InOrder::new(missing));
        data.chunks(70_001).for_each(|slice| rest.update(slice));
        rest.finish_into(&mut digests);
        assert_eq!(digests, FileDigests::of(&data, ALL_CHECKS));
    }

    #[test]
    fn one_flipped_bit_is_corrupt_and_names_both_values() {
        let computed = FileDigests::of(b"abc", ALL_CHECKS);
        for expected in computed.iter() {
            expected.check(&computed, &"a.h5").unwrap();
            let other = FileDigests::of(b"abb", ALL_CHECKS).digest(expected.algorithm()).unwrap();
            let error = other.check(&computed, &"a.h5").unwrap_err();
            assert_eq!((error.kind, error.retry), (ErrorKind::Corrupt, Retry::OtherReplica));
            assert!(error.text().contains(&other.hex()) && error.text().contains(&expected.hex()), "{error}");
        }
        let error = Digest::Md5([0; 16]).check(&FileDigests::of(b"abc", Checks::NONE), &"a").unwrap_err();
        assert_eq!(error.kind, ErrorKind::Internal);
    }

    #[test]
    fn digests_read_back_as_they_are_written() {
        for digest in FileDigests::of(b"tern", ALL_CHECKS).iter() {
            assert_eq!(digest.to_string().parse::<Digest>().unwrap(), digest);
            assert_eq!(digest.to_string().to_uppercase().parse::<Digest>().unwrap(), digest);
        }
        assert_eq!("adler32:1e01de".parse::<Digest>().unwrap(), Digest::Adler32(0x1e01de));
        for wrong in ["", "blake3", "blake3:", "md5:12", "sha1:00", "crc32c:zzzzzzzz", "adler32:123456789", "md5:é"] {
            let error = wrong.parse::<Digest>().unwrap_err();
            assert_eq!(error.kind, ErrorKind::Usage, "{wrong}: {error}");
        }
    }

    #[test]
    fn every_algorithm_reads_back_by_its_name() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.to_string().parse::<Algorithm>().unwrap(), algorithm);
        }
        assert!("sha512".parse::<Algorithm>().unwrap_err().text().contains("adler32, crc32c, md5, sha256, blake3"));
    }
}
