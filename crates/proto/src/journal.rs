//! The journal: the blocks of a file that a receiver holds durably. After a crash, at most the blocks in flight are
//! sent again.
//!
//! Encodes and decodes the bytes of a journal file. Refuses to read or write files, or trust what it reads. The decoder
//! never panics, needs no memory beyond one record, and accepts any bytes.
//!
//! A journal is one header, then records in the order in which blocks became durable. All numbers are little-endian.
//!
//! Header, 88 bytes:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | magic `STERNAJN` |
//! | 8 | 2 | version of this format, 1 |
//! | 10 | 1 | kind of the source: 1 file, 2 growing file |
//! | 11 | 1 | zero; a reader refuses another value |
//! | 12 | 4 | zero; a reader ignores another value |
//! | 16 | 8 | size of the file; 0 for a growing file |
//! | 24 | 8 | size of a block |
//! | 32 | 8 | modification time at the source, seconds; 0 for a growing file |
//! | 40 | 4 | modification time at the source, nanoseconds; 0 for a growing file |
//! | 44 | 4 | zero; a reader ignores another value |
//! | 48 | 8 | inode at the source |
//! | 56 | 8 | inode of the data file at the destination |
//! | 64 | 8 | nonce: differs between any two journals |
//! | 72 | 8 | version at the source |
//! | 80 | 4 | zero; a reader ignores another value |
//! | 84 | 4 | CRC-32C of bytes 0 to 84 |
//!
//! Record, 64 bytes:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | index of the block |
//! | 8 | 1 | bit 0: Adler-32 is present; bit 1: CRC-32C is present; a reader ignores other bits |
//! | 9 | 1 | zero; a reader skips a record with another value |
//! | 10 | 2 | zero; a reader ignores another value |
//! | 12 | 32 | BLAKE3 chaining value of the block (hash of the file if it has one block) |
//! | 44 | 4 | Adler-32, or zero |
//! | 48 | 4 | CRC-32C, or zero |
//! | 52 | 8 | zero; a reader ignores another value |
//! | 60 | 4 | CRC-32C of bytes 0 to 60, continued from the header's CRC |
//!
//! Each record is independent: a torn tail or a flipped bit loses only that record, and its block is sent again. A
//! flipped bit in the header loses everything, because nothing else identifies the file and the version of the records.
//! The CRC of a record continues the header's CRC, which covers the nonce. So a record that an earlier journal left in
//! the same disk blocks is not accepted.
//!
//! The size and times of a growing file change all the time. Its journal therefore identifies the file by inode and
//! creation time, and contains its block size. The digest that the sender gives at the end decides if the blocks still
//! match the source.
//!
//! A later release writes what an earlier one may ignore into the ignored bytes. It sets one of the refused or skipped
//! bytes if an earlier release must not use the journal, or the record. So this version number stays. The journals in
//! `tests/corpus` load in every release.
//!
//! A 5 TB file has 298,024 records, 19 MB.

use crate::digest::BlockDigest;
use crate::error::{Error, ErrorKind, Phase, Scope};
use crate::file::{BlockMap, EntryKind, FILE_BYTES_MAX, FileEntry, FileTime};
use crate::growth::Growth;

/// Size of the header in bytes.
pub const HEADER_BYTES: usize = 88;

/// Offset of the header's CRC.
const CRC_OFFSET: usize = HEADER_BYTES - 4;

/// Size of a record in bytes. Records are not aligned to disk sectors, because the header has 88 bytes. The CRC detects
/// a record that a crash has torn.
pub const RECORD_BYTES: usize = 64;

const MAGIC: &[u8; 8] = b"STERNAJN";
const VERSION: u16 = 1;
const KIND_FILE: u8 = 1;
const KIND_GROWING: u8 = 2;
const HAS_ADLER32: u8 = 1;
const HAS_CRC32C: u8 = 2;

/// Offset of the byte that a reader refuses unless it is zero.
const MANDATORY_OFFSET: usize = 11;

/// Offsets of the header bytes that a reader ignores, four at each.
const IGNORED_OFFSETS: [usize; 3] = [12, 44, 80];

/// Offset of the byte of a record that is zero in the records of blocks.
const RECORD_KIND_OFFSET: usize = 9;

/// Header of a journal: identifies the file of its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalHeader {
    /// Growth of the source, if it is sent while it grows.
    pub growth: Option<Growth>,
    /// Size of the source in bytes; 0 if it grows.
    pub size: u64,
    /// Modification time of the source; zero if it grows.
    pub mtime: FileTime,
    /// Inode of the source.
    pub source_inode: u64,
    /// Version of the source.
    pub source_version: u64,
    /// Inode of the hidden file that holds the data. If the data file was replaced, the journal is void.
    pub data_inode: u64,
    /// Differs between any two journals.
    pub nonce: u64,
    /// Bytes that only a later release knows. They are kept, because the CRC of each record continues theirs.
    pub ignored: [[u8; 4]; 3],
}

impl JournalHeader {
    /// Returns the header of a new journal for the file version in `entry`. Range: `entry` is a file.
    pub fn new(entry: &FileEntry, data_inode: u64, nonce: u64) -> Self {
        assert!(entry.kind == EntryKind::File, "only files have a journal");
        let FileEntry { inode: source_inode, version: source_version, growth, .. } = *entry;
        let (size, mtime) = if growth.is_some() { (0, FileTime::default()) } else { (entry.size, entry.mtime) };
        let ignored = Default::default();
        Self { growth, size, mtime, source_inode, source_version, data_inode, nonce, ignored }
    }

    /// Returns true if the blocks of this journal may complete the file version in `entry`.
    pub fn same_version(&self, entry: &FileEntry) -> bool {
        let same_file = (self.source_inode, self.source_version) == (entry.inode, entry.version);
        let same_state = match (self.growth, entry.growth) {
            (None, None) => (self.size, self.mtime) == (entry.size, entry.mtime),
            (Some(ours), Some(theirs)) => ours.block_bytes() == theirs.block_bytes(),
            _ => false,
        };
        entry.kind == EntryKind::File && same_file && same_state
    }

    /// Returns the cut of the file into blocks.
    pub fn blocks(&self) -> BlockMap {
        // A growing file may still get as many blocks as the largest file has.
        self.growth.map_or_else(|| BlockMap::new(self.size), |growth| BlockMap::growing(FILE_BYTES_MAX, growth))
    }

    /// Encodes the header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0u8; HEADER_BYTES];
        bytes[0..8].copy_from_slice(MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10] = if self.growth.is_some() { KIND_GROWING } else { KIND_FILE };
        bytes[16..24].copy_from_slice(&self.size.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.blocks().block_bytes().to_le_bytes());
        bytes[32..40].copy_from_slice(&self.mtime.seconds.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.mtime.nanoseconds.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.source_inode.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.data_inode.to_le_bytes());
        bytes[64..72].copy_from_slice(&self.nonce.to_le_bytes());
        bytes[72..80].copy_from_slice(&self.source_version.to_le_bytes());
        for (offset, ignored) in IGNORED_OFFSETS.iter().zip(&self.ignored) {
            bytes[*offset..offset + 4].copy_from_slice(ignored);
        }
        let crc = crc32c::crc32c(&bytes[..CRC_OFFSET]);
        bytes[CRC_OFFSET..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a header.
    ///
    /// Errors: `Corrupt` if the header is short, damaged, of another version, or for other block sizes than this
    /// version uses. The text is the reason why the file starts over.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let wrong = |why: &str| {
            Err(Error::new(ErrorKind::Corrupt, Scope::Destination, Phase::Prepare, format!("the journal {why}")))
        };
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else {
            return wrong("is shorter than its header");
        };
        if !bytes.starts_with(MAGIC) {
            return wrong("does not begin as a journal does");
        }
        if word(bytes, CRC_OFFSET) != crc32c::crc32c(&bytes[..CRC_OFFSET]) {
            return wrong("has a damaged header");
        }
        if u16::from_le_bytes([bytes[8], bytes[9]]) != VERSION {
            return wrong("is of another version of the format");
        }
        if bytes[MANDATORY_OFFSET] != 0 {
            return wrong("was written by a newer sterna, which this one does not understand");
        }
        let log2 = long(bytes, 24).trailing_zeros() as u8;
        let growth = match bytes[10] {
            KIND_GROWING => Growth::from_codes(false, log2, 0).ok(),
            _ => None,
        };
        let header = Self {
            growth,
            size: long(bytes, 16),
            mtime: FileTime { seconds: long(bytes, 32) as i64, nanoseconds: word(bytes, 40) },
            source_inode: long(bytes, 48),
            data_inode: long(bytes, 56),
            nonce: long(bytes, 64),
            source_version: long(bytes, 72),
            ignored: IGNORED_OFFSETS.map(|offset| word(bytes, offset).to_le_bytes()),
        };
        let kind = if header.growth.is_some() { KIND_GROWING } else { KIND_FILE };
        if bytes[10] != kind || header.size > FILE_BYTES_MAX || header.mtime.nanoseconds >= 1_000_000_000 {
            return wrong("describes no possible file");
        }
        if long(bytes, 24) != header.blocks().block_bytes() {
            return wrong("is of a file that was cut into other blocks");
        }
        Ok(header)
    }

    /// Returns the codec for the records of this journal.
    pub fn records(&self) -> RecordCodec {
        RecordCodec { header_crc: word(&self.encode(), CRC_OFFSET), block_count: self.blocks().count() }
    }
}

/// Record of one block that is durable at the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalRecord {
    /// Index of the block.
    pub index: u64,
    /// Digests of the block.
    pub digest: BlockDigest,
}

/// Codec for the records of one journal; see [`JournalHeader::records`].
#[derive(Clone, Copy, Debug)]
pub struct RecordCodec {
    header_crc: u32,
    block_count: u64,
}

impl RecordCodec {
    /// Encodes `record`.
    pub fn encode(&self, record: &JournalRecord) -> [u8; RECORD_BYTES] {
        let mut bytes = [0u8; RECORD_BYTES];
        let digest = &record.digest;
        bytes[0..8].copy_from_slice(&record.index.to_le_bytes());
        bytes[8] = if digest.adler32.is_some() { HAS_ADLER32 } else { 0 }
            | if digest.crc32c.is_some() { HAS_CRC32C } else { 0 };
        bytes[12..44].copy_from_slice(&digest.chaining_value);
        bytes[44..48].copy_from_slice(&digest.adler32.unwrap_or(0).to_le_bytes());
        bytes[48..52].copy_from_slice(&digest.crc32c.unwrap_or(0).to_le_bytes());
        let crc = crc32c::crc32c_append(self.header_crc, &bytes[..60]);
        bytes[60..64].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes one record. `None` if it is torn, damaged, of another journal, of a block beyond the end of the file, or
    /// of a kind that only a later release knows.
    pub fn decode(&self, bytes: &[u8]) -> Option<JournalRecord> {
        let bytes: &[u8; RECORD_BYTES] = bytes.try_into().ok()?;
        if word(bytes, 60) != crc32c::crc32c_append(self.header_crc, &bytes[..60]) {
            return None;
        }
        let index = long(bytes, 0);
        if index >= self.block_count || bytes[RECORD_KIND_OFFSET] != 0 {
            return None;
        }
        let mut chaining_value = [0u8; 32];
        chaining_value.copy_from_slice(&bytes[12..44]);
        let adler32 = (bytes[8] & HAS_ADLER32 != 0).then(|| word(bytes, 44));
        let crc32c = (bytes[8] & HAS_CRC32C != 0).then(|| word(bytes, 48));
        Some(JournalRecord { index, digest: BlockDigest { chaining_value, adler32, crc32c } })
    }

    /// Returns the offset of the next record in a journal of `journal_bytes` bytes; a torn tail is overwritten.
    pub fn append_offset(journal_bytes: u64) -> u64 {
        let header = HEADER_BYTES as u64;
        let records = journal_bytes.saturating_sub(header) / RECORD_BYTES as u64;
        header + records * RECORD_BYTES as u64
    }
}

/// Reads a little-endian number of 4 bytes at `offset`. Range: it lies inside `bytes`.
fn word(bytes: &[u8], offset: usize) -> u32 {
    let mut value = [0u8; 4];
    value.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_le_bytes(value)
}

/// Reads a little-endian number of 8 bytes at `offset`. Range: it lies inside `bytes`.
fn long(bytes: &[u8], offset: usize) -> u64 {
    let mut value = [0u8; 8];
    value.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(value)
}

#[cfg(test)]
mod tests {
    use sterna_seeded::Seeded;

    use super::*;
    use crate::file::RelPath;

    fn entry(size: u64) -> FileEntry {
        FileEntry {
            path: RelPath::new(b"a/b.h5").unwrap(),
            kind: EntryKind::File,
            size,
            mtime: FileTime { seconds: -5, nanoseconds: 999_999_999 },
            mode: 0o640,
            allocated: size,
            inode: 77,
            version: 1_700_000_000_123_456_789,
            growth: None,
        }
    }

    fn record(index: u64) -> JournalRecord {
        let chaining_value = [index as u8 ^ 0x5a; 32];
        let adler32 = index.is_multiple_of(2).then_some(index as u32 + 1);
        let crc32c = index.is_multiple_of(3).then_some(index as u32);
        JournalRecord { index, digest: BlockDigest { chaining_value, adler32, crc32c } }
    }

    /// Returns a header and a journal of `count` records.
    fn journal(count: u64) -> (JournalHeader, Vec<u8>) {
        let header = JournalHeader::new(&entry(count << 20), 42, 0x1234_5678_9abc_def0);
        let mut bytes = header.encode().to_vec();
        for index in 0..count {
            bytes.extend_from_slice(&header.records().encode(&record(index)));
        }
        (header, bytes)
    }

    fn decode_all(bytes: &[u8]) -> Option<Vec<JournalRecord>> {
        let header = JournalHeader::decode(bytes).ok()?;
        let codec = header.records();
        Some(bytes[HEADER_BYTES..].chunks(RECORD_BYTES).filter_map(|bytes| codec.decode(bytes)).collect())
    }

    #[test]
    fn a_journal_reads_back_whole() {
        for size in [1, 1 << 20, 5_000_000_000_000, FILE_BYTES_MAX] {
            let header = JournalHeader::new(&entry(size), 1, 2);
            assert_eq!(JournalHeader::decode(&header.encode()).unwrap(), header);
            assert!(header.same_version(&entry(size)));
        }
        let (_, bytes) = journal(20);
        assert_eq!(decode_all(&bytes).unwrap(), (0..20).map(record).collect::<Vec<_>>());
    }

    #[test]
    fn another_version_of_the_source_is_told_apart() {
        let header = JournalHeader::new(&entry(100), 1, 2);
        let same = entry(100);
        assert!(header.same_version(&FileEntry { mode: 0o600, path: RelPath::new(b"x").unwrap(), ..same.clone() }));
        let later = FileTime { nanoseconds: 0, ..same.mtime };
        assert!(!header.same_version(&FileEntry { mtime: later, ..same.clone() }));
        assert!(!header.same_version(&FileEntry { size: 101, ..same.clone() }));
        assert!(!header.same_version(&FileEntry { inode: 78, ..same.clone() }));
        assert!(!header.same_version(&FileEntry { version: same.version + 1, ..same.clone() }));
        assert!(!header.same_version(&FileEntry { kind: EntryKind::Directory, ..same }));
    }

    /// Returns `bytes` with `value` at `offset` and the CRC of the header made right.
    fn changed(mut bytes: Vec<u8>, offset: usize, value: u8) -> Vec<u8> {
        bytes[offset] = value;
        let crc = crc32c::crc32c(&bytes[..CRC_OFFSET]);
        bytes[CRC_OFFSET..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    #[test]
    fn a_later_release_may_use_ignored_bytes_and_refuses_readers_by_the_others() {
        let (header, bytes) = journal(3);
        for offset in IGNORED_OFFSETS {
            let later = JournalHeader::decode(&changed(bytes.clone(), offset + 3, 9)).unwrap();
            assert!(later.same_version(&entry(3 << 20)) && later != header);
            let written = later.records().encode(&record(1));
            assert_eq!(JournalHeader::decode(&later.encode()).unwrap().records().decode(&written), Some(record(1)));
        }
        let refused = JournalHeader::decode(&changed(bytes, MANDATORY_OFFSET, 1)).unwrap_err();
        assert!(refused.text().contains("newer"), "{refused}");
        let sealed = |offset: usize| {
            let mut bytes = header.records().encode(&record(2));
            bytes[offset] |= 0x80;
            let crc = crc32c::crc32c_append(header.records().header_crc, &bytes[..60]);
            bytes[60..].copy_from_slice(&crc.to_le_bytes());
            header.records().decode(&bytes)
        };
        assert_eq!(sealed(RECORD_KIND_OFFSET), None);
        assert_eq!([8, 10, 11, 52, 59].map(sealed), [Some(record(2)); 5]);
    }

    #[test]
    fn any_flipped_bit_loses_one_record_and_in_the_header_all() {
        let (_, bytes) = journal(6);
        let all: Vec<_> = (0..6).map(record).collect();
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            match decode_all(&damaged) {
                None => assert!(bit / 8 < HEADER_BYTES, "bit {bit}"),
                Some(found) => {
                    let mut expected = all.clone();
                    expected.remove((bit / 8).checked_sub(HEADER_BYTES).unwrap() / RECORD_BYTES);
                    assert_eq!(found, expected, "bit {bit}");
                }
            }
        }
    }

    #[test]
    fn a_torn_tail_loses_only_the_record_it_tears() {
        let (_, bytes) = journal(6);
        for length in 0..=bytes.len() {
            let found = decode_all(&bytes[..length]).unwrap_or_default();
            let whole = length.saturating_sub(HEADER_BYTES) / RECORD_BYTES;
            assert_eq!(found, (0..whole as u64).map(record).collect::<Vec<_>>(), "{length} bytes");
            let offset = RecordCodec::append_offset(length as u64);
            assert_eq!(offset, (HEADER_BYTES + whole * RECORD_BYTES) as u64);
        }
    }

    #[test]
    fn records_of_another_journal_or_beyond_the_file_are_not_taken() {
        let (header, bytes) = journal(6);
        let other = JournalHeader { nonce: header.nonce + 1, ..header };
        assert_eq!(other.records().decode(&bytes[HEADER_BYTES..HEADER_BYTES + RECORD_BYTES]), None);
        let beyond = header.records().encode(&record(6));
        assert_eq!(header.records().decode(&beyond), None);
    }

    #[test]
    fn garbage_is_refused_without_a_panic() {
        let mut seeded = Seeded::new(1);
        for length in 0..300 {
            let garbage = seeded.bytes(length);
            assert!(JournalHeader::decode(&garbage).is_err());
            assert_eq!(journal(3).0.records().decode(&garbage), None);
        }
        // A header with a correct CRC and a size beyond any file.
        let mut bytes = journal(1).1;
        bytes[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..CRC_OFFSET]);
        bytes[CRC_OFFSET..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        assert!(JournalHeader::decode(&bytes).unwrap_err().text().contains("no possible file"));
    }
}
