//! Frames and messages on the wire, and their encoding.
//!
//! A *frame* belongs to one lane (hello, welcome, a stretch of the control log); a *message* belongs to the session and rides in
//! the control log. Block headers and trailers travel with the data of their block. See `docs/protocol.md`.

use super::FileId;
use super::hello::Hello;
use super::third_party::{Conclusion, Snapshot, ThirdParty, Told};
use crate::compress::{SLAB_BYTES, Slab, SlabEncoding, Wish, encoded_length, slab_count};
use crate::digest::{Checks, Digest, FileDigests};
use crate::error::Error;
use crate::file::{FileEntry, PACKED_FILE_BYTES_MAX, drives_terminal};
use crate::limit::{LimitReport, ReceiverReport};
use crate::wire::{Reader, Writer};

/// Version of the protocol; a peer of another version is refused with a text that names both.
pub const PROTOCOL_VERSION: u64 = 1;

/// Most sources in one request. Reason: they fit in one control frame with room to spare.
pub const SOURCES_MAX: usize = 4096;

/// Most ranges in one message. Reason: keeps a message near one frame; more ranges take more messages.
const RANGES_MAX: usize = 1024;

/// Longest text for people in a message, in characters. Reason: a path and a sentence.
const TEXT_CHARS_MAX: usize = 4096;

/// Most small files in one packed block. Reason: their entries (100 bytes each as a rule) stay below the header limit.
pub const PACK_FILES_MAX: usize = 256;

/// Most bytes of data in one packed block. Reason: the smallest block of a large file is as large.
pub const PACK_BYTES_MAX: u64 = 1 << 20;

/// Most bytes of entries in the header of a packed block. Reason: a lane refuses headers above 128 KiB.
pub(super) const PACK_HEADER_BYTES_MAX: usize = 64 << 10;

/// Most bytes of the part of a block that travels before the block is whole. Reason: the receiver holds it in memory until it is verified, as it does a
/// packed block.
pub const TAIL_BYTES_MAX: u64 = 1 << 20;

/// What a receiver does when the destination exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overwrite {
    /// Leaves it and reports an error.
    Never,
    /// Replaces it.
    Always,
    /// Replaces it when size or modification time differ; otherwise it counts as done.
    IfChanged,
}

/// What a client asks of an agent. Paths are as in a location: beneath the agent's root, with wildcards in sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The client sends, the agent receives into `destination`.
    Push {
        /// Where to.
        destination: Vec<u8>,
        /// More than one source: the destination is a directory.
        several: bool,
        /// What to do when a file exists.
        overwrite: Overwrite,
        /// Digests wanted beside BLAKE3.
        checks: Checks,
        /// `--expect`: the digest that the one file must have.
        expect: Option<Digest>,
        /// Nothing is written: the agent only says what it would do.
        dry_run: bool,
    },
    /// The agent sends `sources`, the client receives.
    Pull {
        /// What to send.
        sources: Vec<Vec<u8>>,
        /// Nothing is sent but the manifest.
        dry_run: bool,
        /// Whether the agent compresses.
        compress: Wish,
        /// No block of a large file is sent before the client has said which it has: it asks others too.
        on_demand: bool,
    },
    /// The agent runs a session with another agent and tells what happens; no block passes on this lane.
    ThirdParty(Box<ThirdParty>),
}

/// A control frame of a lane.
#[derive(Debug)]
pub enum Frame {
    /// Client to agent, first on each lane.
    Hello(Hello),
    /// Agent to client: the hello is accepted.
    Welcome,
    /// Agent to client: it is not; the lane closes.
    Refuse(Error),
    /// A stretch of the control log: encoded messages, the first of which has number `first`.
    Messages {
        /// Number of the first message.
        first: u64,
        /// The messages, one behind the other.
        encoded: Vec<u8>,
    },
    /// Every message below `next` has been taken.
    Acknowledge {
        /// Number of the next message expected.
        next: u64,
    },
    /// Receiver to sender: what its threads have waited for until now.
    Receiver(ReceiverReport),
    /// Sender to receiver: what has limited the session until now.
    Limits(Box<LimitReport>),
    /// Active agent to command: how far the copy is.
    Snapshot(Box<Snapshot>),
}

/// A message of the control log.
#[derive(Debug)]
pub enum Message {
    /// Sender: a file of the manifest.
    Offer {
        /// Its number: one above the last.
        file: FileId,
        /// What it is.
        entry: FileEntry,
    },
    /// Sender: a file offered before cannot be sent.
    Withdraw {
        /// Which.
        file: FileId,
        /// Why.
        error: Error,
    },
    /// Sender: something in the sources could not be offered at all.
    Unreadable {
        /// What and why.
        error: Error,
    },
    /// Sender: the manifest is complete.
    OffersEnd {
        /// How many files were offered.
        files: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// Sender: it knows the outcome of every file; the session is over.
    Bye,
    /// Sender: a growing file has ended.
    Ended {
        /// Which.
        file: FileId,
        /// What it is now, with its size.
        entry: FileEntry,
    },
    /// Sender: the BLAKE3 of a growing file, read as a whole after it had ended; nothing else is to be published.
    Sealed {
        /// Which.
        file: FileId,
        /// Its BLAKE3.
        blake3: [u8; 32],
    },
    /// Receiver: these blocks are here; they need not be sent (again).
    Have {
        /// The file.
        file: FileId,
        /// Blocks, half-open ranges.
        blocks: Vec<(u64, u64)>,
    },
    /// Receiver: these blocks are to be sent again.
    Want {
        /// The file.
        file: FileId,
        /// Blocks, half-open ranges.
        blocks: Vec<(u64, u64)>,
    },
    /// Receiver: the destination is up to date.
    Skipped {
        /// The file.
        file: FileId,
    },
    /// Receiver: the file is verified, durable and has its name.
    Done {
        /// The file.
        file: FileId,
        /// Its digests.
        digests: FileDigests,
    },
    /// Receiver: the file cannot be received, or was withdrawn.
    Failed {
        /// The file.
        file: FileId,
        /// Why.
        error: Error,
    },
    /// Either end: the session cannot go on.
    Abort {
        /// Why.
        error: Error,
    },
    /// Receiver: a remark for the person, such as a changed source that starts over.
    Notice {
        /// The file.
        file: FileId,
        /// The remark.
        text: String,
    },
    /// Receiver: every file of the manifest has its outcome, and directories have their mode, their time and durable names.
    Finished,
    /// Receiver: this file cannot be taken yet (another session writes it, say): nothing of it is to be sent before it is wanted.
    Wait {
        /// The file.
        file: FileId,
    },
    /// Active agent: something happened in the copy that it runs.
    Told(Box<Told>),
    /// Active agent: the copy has come to its end.
    Concluded(Box<Conclusion>),
}

/// What stands in front of the data of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockHeader {
    /// One block of one file. The entry travels with every block, so that no lane depends on another.
    Single {
        /// The file.
        file: FileId,
        /// Its entry.
        entry: FileEntry,
        /// Index of the block.
        index: u64,
        /// What its data is.
        data: BlockData,
    },
    /// Part of a block of a growing file that is not whole yet, since its writer pauses. It is no block: it is verified and written, and counts as nothing.
    Tail {
        /// The file.
        file: FileId,
        /// Its entry.
        entry: FileEntry,
        /// Where the data begins in the file, in bytes.
        offset: u64,
    },
    /// Small files, whole, one behind the other.
    Packed {
        /// Files with their entries, in the order of their data.
        files: Vec<(FileId, FileEntry)>,
        /// How their data is encoded, all of it as one slab; never [`SlabEncoding::Raw`]. `None`: it is not.
        slab: Option<Slab>,
    },
}

/// What the data of one block of one file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockData {
    /// The bytes of the block.
    Raw,
    /// Nothing: the block is all zero, and a hole at the source.
    Hole,
    /// Its slabs, each encoded by itself, one behind the other.
    Slabs(Vec<Slab>),
}

impl Frame {
    /// The frame as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        match self {
            Self::Hello(hello) => {
                w.byte(1);
                w.integer(PROTOCOL_VERSION);
                hello.write(&mut w);
            }
            Self::Welcome => {
                w.byte(2);
                w.integer(PROTOCOL_VERSION);
            }
            Self::Refuse(error) => {
                w.byte(3);
                w.error(error);
            }
            Self::Messages { first, encoded } => {
                w.byte(4);
                w.integer(*first);
                w.raw(encoded);
            }
            Self::Acknowledge { next } => {
                w.byte(5);
                w.integer(*next);
            }
            Self::Receiver(report) => {
                w.byte(6);
                report.write(&mut w);
            }
            Self::Limits(report) => {
                w.byte(7);
                report.write(&mut w);
            }
            Self::Snapshot(snapshot) => {
                w.byte(8);
                snapshot.write(&mut w);
            }
        }
        w.into_bytes()
    }

    /// Reads a frame. Errors: malformed, or a hello of another version of the protocol.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let mut r = Reader::new(bytes);
        let frame = match r.byte()? {
            1 => {
                expect_version(&mut r)?;
                Self::Hello(Hello::read(&mut r)?)
            }
            2 => {
                expect_version(&mut r)?;
                Self::Welcome
            }
            3 => Self::Refuse(r.error()?.refused(true)),
            4 => {
                let first = r.integer()?;
                Self::Messages { first, encoded: r.rest().to_vec() }
            }
            5 => Self::Acknowledge { next: r.integer()? },
            6 => Self::Receiver(ReceiverReport::read(&mut r)?),
            7 => Self::Limits(Box::new(LimitReport::read(&mut r)?)),
            8 => Self::Snapshot(Box::new(Snapshot::read(&mut r)?)),
            code => return Err(Error::protocol(format!("frame from the peer: unknown type {code}"))),
        };
        r.finish()?;
        Ok(frame)
    }
}

fn expect_version(r: &mut Reader<'_>) -> Result<(), Error> {
    match r.integer()? {
        PROTOCOL_VERSION => Ok(()),
        other => Err(Error::protocol(format!(
            "the peer speaks version {other} of the protocol, this sterna speaks {PROTOCOL_VERSION}: use the same release at both ends"
        ))),
    }
}

impl Request {
    pub(super) fn write(&self, w: &mut Writer) {
        match self {
            Self::Push { destination, several, overwrite, checks, expect, dry_run } => {
                w.byte(1);
                w.bytes(destination);
                w.byte(u8::from(*several));
                write_overwrite(w, *overwrite);
                write_checks(w, *checks);
                write_expect(w, *expect);
                w.byte(u8::from(*dry_run));
            }
            Self::Pull { sources, dry_run, compress, on_demand } => {
                w.byte(2);
                w.integer(sources.len() as u64);
                for source in sources {
                    w.bytes(source);
                }
                w.byte(u8::from(*dry_run));
                write_wish(w, *compress);
                w.byte(u8::from(*on_demand));
            }
            Self::ThirdParty(copy) => {
                w.byte(3);
                copy.write(w);
            }
        }
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        match r.byte()? {
            1 => Ok(Self::Push {
                destination: r.bytes()?.to_vec(),
                several: read_flag(r)?,
                overwrite: read_overwrite(r)?,
                checks: read_checks(r)?,
                expect: read_expect(r)?,
                dry_run: read_flag(r)?,
            }),
            2 => {
                let count = r.integer_up_to(SOURCES_MAX as u64)?;
                let mut sources = Vec::new();
                for _ in 0..count {
                    sources.push(r.bytes()?.to_vec());
                }
                let (dry_run, compress) = (read_flag(r)?, read_wish(r)?);
                Ok(Self::Pull { sources, dry_run, compress, on_demand: read_flag(r)? })
            }
            3 => ThirdParty::read(r).map(|copy| Self::ThirdParty(Box::new(copy))),
            code => Err(Error::protocol(format!("request from the peer: unknown kind {code}"))),
        }
    }
}

pub(super) fn write_overwrite(w: &mut Writer, overwrite: Overwrite) {
    w.byte(match overwrite {
        Overwrite::Never => 1,
        Overwrite::Always => 2,
        Overwrite::IfChanged => 3,
    });
}

pub(super) fn read_overwrite(r: &mut Reader<'_>) -> Result<Overwrite, Error> {
    match r.byte()? {
        1 => Ok(Overwrite::Never),
        2 => Ok(Overwrite::Always),
        3 => Ok(Overwrite::IfChanged),
        code => Err(Error::protocol(format!("request from the peer: overwrite rule {code}"))),
    }
}

pub(super) fn write_expect(w: &mut Writer, expect: Option<Digest>) {
    w.bytes(expect.map_or(String::new(), |digest| digest.to_string()).as_bytes());
}

pub(super) fn read_expect(r: &mut Reader<'_>) -> Result<Option<Digest>, Error> {
    match r.bytes()? {
        b"" => Ok(None),
        text => String::from_utf8_lossy(text).parse().map(Some),
    }
}

pub(super) fn write_wish(w: &mut Writer, wish: Wish) {
    w.byte(match wish {
        Wish::Auto => 1,
        Wish::Never => 2,
        Wish::Always => 3,
    });
}

pub(super) fn read_wish(r: &mut Reader<'_>) -> Result<Wish, Error> {
    match r.byte()? {
        1 => Ok(Wish::Auto),
        2 => Ok(Wish::Never),
        3 => Ok(Wish::Always),
        code => Err(Error::protocol(format!("request from the peer: compression {code}"))),
    }
}

/// Reads a text for people, without what would drive their terminal and what is beyond [`TEXT_CHARS_MAX`].
pub(super) fn read_text(r: &mut Reader<'_>) -> Result<String, Error> {
    let text = String::from_utf8_lossy(r.bytes()?);
    Ok(text.chars().filter(|c| !drives_terminal(*c)).take(TEXT_CHARS_MAX).collect())
}

pub(super) fn read_flag(r: &mut Reader<'_>) -> Result<bool, Error> {
    Ok(r.integer_up_to(1)? == 1)
}

impl Message {
    /// The message as bytes: its type, the length of its body, its body.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        self.write_body(&mut w);
        let body = w.into_bytes();
        let mut out = Writer::default();
        out.byte(self.code());
        out.bytes(&body);
        out.into_bytes()
    }

    fn code(&self) -> u8 {
        match self {
            Self::Offer { .. } => 1,
            Self::Withdraw { .. } => 2,
            Self::Unreadable { .. } => 3,
            Self::OffersEnd { .. } => 4,
            Self::Bye => 5,
            Self::Have { .. } => 6,
            Self::Want { .. } => 7,
            Self::Skipped { .. } => 8,
            Self::Done { .. } => 9,
            Self::Failed { .. } => 10,
            Self::Abort { .. } => 11,
            Self::Notice { .. } => 12,
            Self::Wait { .. } => 13,
            Self::Finished => 14,
            Self::Told(_) => 15,
            Self::Concluded(_) => 16,
            Self::Ended { .. } => 17,
            Self::Sealed { .. } => 18,
        }
    }

    fn write_body(&self, w: &mut Writer) {
        match self {
            Self::Offer { file, entry } | Self::Ended { file, entry } => {
                w.integer(file.0);
                w.entry(entry);
            }
            Self::Withdraw { file, error } | Self::Failed { file, error } => {
                w.integer(file.0);
                w.error(error);
            }
            Self::Unreadable { error } | Self::Abort { error } => w.error(error),
            Self::OffersEnd { files, bytes } => {
                w.integer(*files);
                w.integer(*bytes);
            }
            Self::Bye | Self::Finished => {}
            Self::Have { file, blocks } | Self::Want { file, blocks } => write_ranges(w, *file, blocks),
            Self::Skipped { file } | Self::Wait { file } => w.integer(file.0),
            Self::Done { file, digests } => {
                w.integer(file.0);
                write_digests(w, digests);
            }
            Self::Notice { file, text } => {
                w.integer(file.0);
                w.bytes(text.as_bytes());
            }
            Self::Told(told) => told.write(w),
            Self::Concluded(conclusion) => conclusion.write(w),
            Self::Sealed { file, blake3 } => {
                w.integer(file.0);
                w.raw(blake3);
            }
        }
    }

    /// Reads messages one behind the other until the bytes end.
    pub fn decode_all(bytes: &[u8]) -> Result<Vec<Self>, Error> {
        let mut r = Reader::new(bytes);
        let mut messages = Vec::new();
        while !r.is_empty() {
            let code = r.byte()?;
            let mut body = Reader::new(r.bytes()?);
            messages.push(Self::read_body(code, &mut body)?);
            body.finish()?;
        }
        Ok(messages)
    }

    fn read_body(code: u8, r: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(match code {
            1 => Self::Offer { file: FileId(r.integer()?), entry: r.entry()? },
            2 => Self::Withdraw { file: FileId(r.integer()?), error: r.error()? },
            3 => Self::Unreadable { error: r.error()? },
            4 => Self::OffersEnd { files: r.integer()?, bytes: r.integer()? },
            5 => Self::Bye,
            6 => {
                let (file, blocks) = read_ranges(r)?;
                Self::Have { file, blocks }
            }
            7 => {
                let (file, blocks) = read_ranges(r)?;
                Self::Want { file, blocks }
            }
            8 => Self::Skipped { file: FileId(r.integer()?) },
            9 => Self::Done { file: FileId(r.integer()?), digests: read_digests(r)? },
            10 => Self::Failed { file: FileId(r.integer()?), error: r.error()? },
            11 => Self::Abort { error: r.error()? },
            12 => {
                let file = FileId(r.integer()?);
                Self::Notice { file, text: read_text(r)? }
            }
            13 => Self::Wait { file: FileId(r.integer()?) },
            14 => Self::Finished,
            15 => Self::Told(Box::new(Told::read(r)?)),
            16 => Self::Concluded(Box::new(Conclusion::read(r)?)),
            17 => Self::Ended { file: FileId(r.integer()?), entry: r.entry()? },
            18 => Self::Sealed { file: FileId(r.integer()?), blake3: r.array()? },
            other => return Err(Error::protocol(format!("message from the peer: unknown type {other}"))),
        })
    }
}

fn write_ranges(w: &mut Writer, file: FileId, blocks: &[(u64, u64)]) {
    w.integer(file.0);
    w.integer(blocks.len() as u64);
    for (start, end) in blocks {
        w.integer(*start);
        w.integer(end - start);
    }
}

fn read_ranges(r: &mut Reader<'_>) -> Result<(FileId, Vec<(u64, u64)>), Error> {
    let file = FileId(r.integer()?);
    let count = r.integer_up_to(RANGES_MAX as u64)?;
    let mut blocks = Vec::new();
    for _ in 0..count {
        let start = r.integer()?;
        let end = start.checked_add(r.integer()?).filter(|end| *end > start);
        let end = end.ok_or_else(|| Error::protocol("ranges from the peer: empty or beyond 2^64"))?;
        blocks.push((start, end));
    }
    Ok((file, blocks))
}

/// Splits `blocks` so that each part fits in one message.
pub(super) fn ranges_per_message(blocks: &[(u64, u64)]) -> impl Iterator<Item = Vec<(u64, u64)>> + '_ {
    blocks.chunks(RANGES_MAX).map(<[(u64, u64)]>::to_vec)
}

pub(super) fn write_checks(w: &mut Writer, checks: Checks) {
    w.byte(check_bits(checks));
}

fn check_bits(checks: Checks) -> u8 {
    let kinds = [checks.adler32, checks.crc32c, checks.md5, checks.sha256];
    kinds.iter().enumerate().fold(0, |bits, (bit, wanted)| bits | u8::from(*wanted) << bit)
}

pub(super) fn read_checks(r: &mut Reader<'_>) -> Result<Checks, Error> {
    let bits = r.byte()?;
    if bits > 0b1111 {
        return Err(Error::protocol(format!("digests from the peer: unknown kinds {bits:#b}")));
    }
    let wanted = |bit: u8| bits >> bit & 1 == 1;
    Ok(Checks { adler32: wanted(0), crc32c: wanted(1), md5: wanted(2), sha256: wanted(3) })
}

pub(super) fn write_digests(w: &mut Writer, digests: &FileDigests) {
    let FileDigests { blake3, adler32, crc32c, md5, sha256 } = digests;
    w.byte(check_bits(Checks {
        adler32: adler32.is_some(),
        crc32c: crc32c.is_some(),
        md5: md5.is_some(),
        sha256: sha256.is_some(),
    }));
    w.raw(blake3);
    adler32.iter().chain(crc32c).for_each(|sum| w.raw(&sum.to_be_bytes()));
    md5.iter().for_each(|sum| w.raw(sum));
    sha256.iter().for_each(|sum| w.raw(sum));
}

pub(super) fn read_digests(r: &mut Reader<'_>) -> Result<FileDigests, Error> {
    let checks = read_checks(r)?;
    Ok(FileDigests {
        blake3: r.array()?,
        adler32: checks.adler32.then(|| r.array().map(u32::from_be_bytes)).transpose()?,
        crc32c: checks.crc32c.then(|| r.array().map(u32::from_be_bytes)).transpose()?,
        md5: checks.md5.then(|| r.array()).transpose()?,
        sha256: checks.sha256.then(|| r.array()).transpose()?,
    })
}

impl BlockHeader {
    /// The header as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        match self {
            Self::Single { file, entry, index, data } => {
                w.byte(match data {
                    BlockData::Raw => 1,
                    BlockData::Hole => 2,
                    BlockData::Slabs(_) => 4,
                });
                w.integer(file.0);
                w.entry(entry);
                w.integer(*index);
                if let BlockData::Slabs(slabs) = data {
                    slabs.iter().for_each(|slab| write_slab(&mut w, slab));
                }
            }
            Self::Tail { file, entry, offset } => {
                w.byte(6);
                w.integer(file.0);
                w.entry(entry);
                w.integer(*offset);
            }
            Self::Packed { files, slab } => {
                w.byte(if slab.is_some() { 5 } else { 3 });
                slab.iter().for_each(|slab| write_slab(&mut w, slab));
                w.integer(files.len() as u64);
                for (file, entry) in files {
                    w.integer(file.0);
                    w.entry(entry);
                }
            }
        }
        w.into_bytes()
    }

    /// Reads a header and holds it against `data_len`, the length of the data that the lane announced.
    ///
    /// Errors: malformed, a block beyond the end of its file, a length that does not fit, a file that must (not) be packed.
    pub fn decode(bytes: &[u8], data_len: u64) -> Result<Self, Error> {
        let mut r = Reader::new(bytes);
        let kind = r.byte()?;
        let (header, expected) = match kind {
            1 | 2 | 4 => read_single(&mut r, kind)?,
            3 | 5 => read_packed(&mut r, kind)?,
            6 => (read_tail(&mut r, data_len)?, data_len),
            code => return Err(Error::protocol(format!("block from the peer: unknown kind {code}"))),
        };
        r.finish()?;
        if expected != data_len {
            return Err(Error::protocol(format!("block from the peer: {data_len} bytes where {expected} belong")));
        }
        Ok(header)
    }
}

/// Reads what is behind the kind of a block of one file; returns the length of its data too.
fn read_single(r: &mut Reader<'_>, kind: u8) -> Result<(BlockHeader, u64), Error> {
    let (file, entry) = (FileId(r.integer()?), r.entry()?);
    let index = r.integer()?;
    let blocks = entry.blocks();
    if entry.is_packed() || index >= blocks.count() {
        return Err(Error::protocol(format!("block {index} of {} from the peer: there is none", entry.path)));
    }
    let length = blocks.length(index);
    let (data, expected) = match kind {
        1 => (BlockData::Raw, length),
        2 => (BlockData::Hole, 0),
        _ => {
            let slabs = (0..slab_count(length)).map(|_| read_slab(r)).collect::<Result<Vec<_>, _>>()?;
            let expected = encoded_length(&slabs, length)?;
            (BlockData::Slabs(slabs), expected)
        }
    };
    Ok((BlockHeader::Single { file, entry, index, data }, expected))
}

/// The same of a part of a block of a growing file, of `data_len` bytes.
fn read_tail(r: &mut Reader<'_>, data_len: u64) -> Result<BlockHeader, Error> {
    let (file, entry) = (FileId(r.integer()?), r.entry()?);
    let offset = r.integer()?;
    // Behind what is whole there is one block at most.
    let end = entry.size + entry.blocks().block_bytes();
    let fits = offset >= entry.size && offset.checked_add(data_len).is_some_and(|last| last <= end);
    if !entry.is_growing() || !fits || data_len == 0 || data_len > TAIL_BYTES_MAX {
        return Err(Error::protocol(format!("tail of {} from the peer: it cannot be there", entry.path)));
    }
    Ok(BlockHeader::Tail { file, entry, offset })
}

/// The same of a block of small files.
fn read_packed(r: &mut Reader<'_>, kind: u8) -> Result<(BlockHeader, u64), Error> {
    let slab = (kind == 5).then(|| read_slab(r)).transpose()?;
    let count = r.integer_up_to(PACK_FILES_MAX as u64)?;
    let mut files = Vec::new();
    for _ in 0..count {
        let (file, entry) = (FileId(r.integer()?), r.entry()?);
        if !entry.is_packed() {
            return Err(Error::protocol(format!("packed block from the peer: {} is too large", entry.path)));
        }
        files.push((file, entry));
    }
    let bytes = files.iter().map(|(_, entry)| entry.size).sum();
    if bytes > PACK_BYTES_MAX.max(PACKED_FILE_BYTES_MAX) {
        return Err(Error::protocol(format!("packed block from the peer: {bytes} bytes are too many")));
    }
    let expected = match slab {
        None => bytes,
        Some(Slab { encoding: SlabEncoding::Raw, .. }) => {
            return Err(Error::protocol("packed block from the peer: encoded as nothing"));
        }
        Some(slab) => encoded_length(&[slab], bytes)?,
    };
    Ok((BlockHeader::Packed { files, slab }, expected))
}

fn write_slab(w: &mut Writer, slab: &Slab) {
    w.byte(slab.encoding.code());
    w.integer(u64::from(slab.length));
}

fn read_slab(r: &mut Reader<'_>) -> Result<Slab, Error> {
    Ok(Slab { encoding: SlabEncoding::from_code(r.byte()?)?, length: r.integer_up_to(SLAB_BYTES)? as u32 })
}

// One slab holds a packed block, and no block has more slabs than its header has room for.
const _: () = assert!(PACK_BYTES_MAX <= SLAB_BYTES && PACKED_FILE_BYTES_MAX <= SLAB_BYTES);
