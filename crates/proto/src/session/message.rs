//! Frames and messages on the wire, and their encoding.
//!
//! A *frame* belongs to one lane: hello, welcome, a batch of the control log. A *message* belongs to the session and
//! travels in the control log. The header and the trailer of a block travel with its data. See `docs/protocol.md`.
//!
//! Encodes values to bytes and decodes bytes to values. Refuses to trust a length, a count or a code that the peer
//! sent. It holds no state and needs no time.

use super::FileId;
use super::hello::{Capabilities, Hello, PathNumber};
use super::query::Answer;
use super::third_party::{AgentReport, Conclusion, Snapshot};
use crate::compress::{SLAB_BYTES, Slab, SlabEncoding, encoded_length, slab_count};
use crate::digest::FileDigests;
use crate::error::Error;
use crate::file::{FileEntry, PACKED_FILE_BYTES_MAX};
use crate::limit::{LimitReport, ReceiverReport};
use crate::rate::RateContract;
use crate::session::values::{read_contract, read_digests, read_text, write_contract, write_digests};
use crate::wire::{OPTIONAL_FROM, Reader, Writer};

/// Maximum number of ranges in one message. Reason: keeps a message near the size of one frame; more ranges take more
/// messages.
const RANGES_MAX: usize = 1024;

/// Maximum number of small files in one packed block. Reason: their entries, typically 100 bytes each, stay below the
/// header limit.
pub const PACK_FILES_MAX: usize = 256;

/// Maximum data bytes in one packed block. Reason: equals the smallest block of a large file.
pub const PACK_BYTES_MAX: u64 = 1 << 20;

/// Maximum bytes of entries in the header of a packed block. Reason: a lane refuses headers above 128 KiB.
pub(super) const PACK_HEADER_BYTES_MAX: usize = 64 << 10;

/// Maximum bytes of an incomplete block that travel in one tail. Reason: the receiver holds a tail in memory until it
/// is verified, as it does a packed block.
pub const TAIL_BYTES_MAX: u64 = 1 << 20;

/// Control frame of a lane.
#[derive(Debug)]
pub enum Frame {
    /// Client to agent: the first frame on each lane.
    Hello(Hello),
    /// Agent to client: the hello is accepted.
    Welcome(Capabilities),
    /// Agent to client: the hello is refused; the lane closes.
    Refuse(Error),
    /// A batch of the control log: consecutive encoded messages. The first message has number `first`.
    Messages {
        /// Number of the first message.
        first: u64,
        /// The encoded messages, concatenated.
        encoded: Vec<u8>,
    },
    /// Acknowledgement: the sender of this frame has accepted every message below `next`.
    Acknowledge {
        /// Number of the next expected message.
        next: u64,
    },
    /// Receiver to sender: the times that its threads have waited so far.
    Receiver(ReceiverReport),
    /// Sender to receiver: the limits of the session so far.
    Limits(Box<LimitReport>),
    /// Active agent to command: progress of the copy.
    Snapshot(Box<Snapshot>),
}

/// Message of the control log.
#[derive(Debug)]
pub enum Message {
    /// Sender: a file of the manifest.
    Offer {
        /// Number of the file: one more than in the previous offer.
        file: FileId,
        /// Entry of the file.
        entry: FileEntry,
    },
    /// Sender: a file that was offered cannot be sent.
    Withdraw {
        /// The file.
        file: FileId,
        /// The cause.
        error: Error,
    },
    /// Sender: a source, or a file in a source, cannot be offered.
    Unreadable {
        /// The source or file, and the cause.
        error: Error,
    },
    /// Sender: the manifest is complete.
    OffersEnd {
        /// Number of offered files.
        files: u64,
        /// Total size of the offered files, in bytes.
        bytes: u64,
    },
    /// Sender: it has received the outcome of every file; the session is over.
    Bye,
    /// Sender: a growing file has ended.
    Ended {
        /// The file.
        file: FileId,
        /// Final entry of the file, with its size.
        entry: FileEntry,
    },
    /// Sender: the BLAKE3 of a growing file, read as a whole after the file ended. The receiver publishes the file only
    /// with this digest.
    FinalDigest {
        /// The file.
        file: FileId,
        /// BLAKE3 of the whole file.
        blake3: [u8; 32],
    },
    /// Receiver: it has these blocks; the sender does not need to send them (again).
    Have {
        /// The file.
        file: FileId,
        /// Block indices as half-open ranges.
        blocks: Vec<(u64, u64)>,
    },
    /// Receiver: the sender must send these blocks again.
    Want {
        /// The file.
        file: FileId,
        /// Block indices as half-open ranges.
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
        /// Digests of the file.
        digests: FileDigests,
    },
    /// Receiver: the file cannot be received, or was withdrawn.
    Failed {
        /// The file.
        file: FileId,
        /// The cause.
        error: Error,
    },
    /// Either end: the session cannot continue.
    Abort {
        /// The cause.
        error: Error,
    },
    /// Receiver: a notice for the user, for example that a changed source starts over.
    Notice {
        /// The file.
        file: FileId,
        /// Text of the notice.
        text: String,
    },
    /// Receiver: every file of the manifest has its outcome. Directories have their mode and modification time, and all
    /// names are durable.
    Finished,
    /// Receiver: it cannot accept this file yet, for example because another session writes it. The sender sends
    /// nothing of the file until a [`Message::Want`] asks for it.
    Wait {
        /// The file.
        file: FileId,
    },
    /// Active agent: an event of the copy that it runs.
    Report(Box<AgentReport>),
    /// Agent of a control session: its work has ended.
    Concluded(Box<Conclusion>),
    /// Agent: an answer to a query.
    Answer(Answer),
    /// End that does not send the data, or command: new rate contract of a path, from now on. Optional; sent only to a
    /// peer with [`super::Features::CONTRACTS`].
    Contract {
        /// Path.
        path: PathNumber,
        /// Contract that replaces the former one.
        contract: RateContract,
    },
}

/// Header in front of the data of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockHeader {
    /// One block of one file. The entry travels with every block, so that no lane depends on another.
    Single {
        /// The file.
        file: FileId,
        /// Entry of the file.
        entry: FileEntry,
        /// Index of the block.
        index: u64,
        /// Form of the data.
        data: BlockData,
    },
    /// Tail: the bytes of an incomplete block of a growing file, sent because the writer pauses. The receiver verifies
    /// and writes a tail, but does not count it as a block.
    Tail {
        /// The file.
        file: FileId,
        /// Entry of the file.
        entry: FileEntry,
        /// Offset of the data in the file, in bytes.
        offset: u64,
    },
    /// Whole small files; their data is concatenated.
    Packed {
        /// Files with their entries, in the order of their data.
        files: Vec<(FileId, FileEntry)>,
        /// Encoding of the data, all of it as one slab; never [`SlabEncoding::Raw`]. `None`: the data is not encoded.
        slab: Option<Slab>,
    },
}

/// Form of the data of one block of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockData {
    /// The bytes of the block, not encoded.
    Raw,
    /// No data: the block is all zero, and a hole at the source.
    Hole,
    /// The slabs of the block, each encoded separately, concatenated.
    Slabs(Vec<Slab>),
}

impl Frame {
    /// Encodes the frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        match self {
            Self::Hello(hello) => {
                w.byte(1);
                hello.write(&mut w);
            }
            Self::Welcome(capabilities) => {
                w.byte(2);
                capabilities.write(&mut w);
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

    /// Decodes a frame. Returns `None` for an optional frame of an unknown type, which the reader skips.
    ///
    /// Errors: malformed frame, an unknown type that is not optional, or a hello or welcome without a common version.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, Error> {
        let mut r = Reader::new(bytes);
        let frame = match r.byte()? {
            1 => return Ok(Some(Self::Hello(Hello::read(r)?))),
            2 => Self::Welcome(Capabilities::read(&mut r, ["agent", "client"])?),
            3 => Self::Refuse(r.error()?),
            4 => {
                let first = r.integer()?;
                Self::Messages { first, encoded: r.rest().to_vec() }
            }
            5 => Self::Acknowledge { next: r.integer()? },
            6 => Self::Receiver(ReceiverReport::read(&mut r)?),
            7 => Self::Limits(Box::new(LimitReport::read(&mut r)?)),
            8 => Self::Snapshot(Box::new(Snapshot::read(&mut r)?)),
            OPTIONAL_FROM.. => return Ok(None),
            code => return Err(Error::protocol(format!("frame from the peer: unknown type {code}"))),
        };
        r.skip_fields()?;
        Ok(Some(frame))
    }
}

impl Message {
    /// Encodes the message: its type, the length of its body, its body.
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
            Self::Report(_) => 15,
            Self::Concluded(_) => 16,
            Self::Ended { .. } => 17,
            Self::FinalDigest { .. } => 18,
            Self::Answer(_) => 19,
            Self::Contract { .. } => OPTIONAL_FROM,
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
            Self::Report(told) => told.write(w),
            Self::Answer(answer) => answer.write(w),
            Self::Concluded(conclusion) => conclusion.write(w),
            Self::Contract { path, contract } => {
                w.byte(path.0);
                write_contract(w, contract);
            }
            Self::FinalDigest { file, blake3 } => {
                w.integer(file.0);
                w.raw(blake3);
            }
        }
    }

    /// Decodes the concatenated messages in `bytes`, without those that the reader skips.
    pub fn decode_all(bytes: &[u8]) -> Result<Vec<Self>, Error> {
        Ok(Self::decode_each(bytes)?.into_iter().flatten().collect())
    }

    /// Decodes the concatenated messages in `bytes`. An optional message of an unknown type is `None`: the reader skips
    /// the message and counts it.
    pub(super) fn decode_each(bytes: &[u8]) -> Result<Vec<Option<Self>>, Error> {
        let mut r = Reader::new(bytes);
        let mut messages = Vec::new();
        while !r.is_empty() {
            let code = r.byte()?;
            let mut body = Reader::new(r.bytes()?);
            let message = Self::read_body(code, &mut body)?;
            if message.is_some() {
                body.skip_fields()?;
            }
            messages.push(message);
        }
        Ok(messages)
    }

    fn read_body(code: u8, r: &mut Reader<'_>) -> Result<Option<Self>, Error> {
        Ok(Some(match code {
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
            15 => return Ok(AgentReport::read(r)?.map(|told| Self::Report(Box::new(told)))),
            16 => Self::Concluded(Box::new(Conclusion::read(r)?)),
            17 => Self::Ended { file: FileId(r.integer()?), entry: r.entry()? },
            18 => Self::FinalDigest { file: FileId(r.integer()?), blake3: r.array()? },
            19 => Self::Answer(Answer::read(r)?),
            OPTIONAL_FROM => Self::Contract { path: PathNumber::read(r)?, contract: read_contract(r)? },
            code if code >= OPTIONAL_FROM => return Ok(None),
            other => return Err(Error::protocol(format!("message from the peer: unknown type {other}"))),
        }))
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

/// Splits `blocks` into lists that each fit in one message.
pub(super) fn ranges_per_message(blocks: &[(u64, u64)]) -> impl Iterator<Item = Vec<(u64, u64)>> + '_ {
    blocks.chunks(RANGES_MAX).map(<[(u64, u64)]>::to_vec)
}

impl BlockHeader {
    /// Encodes the header.
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

    /// Decodes a header and checks it against `data_len`, the data length that the lane announced.
    ///
    /// Errors: malformed header; a block beyond the end of its file; a wrong length; a file that must be packed and is
    /// not, or the reverse.
    pub fn decode(bytes: &[u8], data_len: u64) -> Result<Self, Error> {
        let mut r = Reader::new(bytes);
        let kind = r.byte()?;
        let (header, expected) = match kind {
            1 | 2 | 4 => read_single(&mut r, kind)?,
            3 | 5 => read_packed(&mut r, kind)?,
            6 => (read_tail(&mut r, data_len)?, data_len),
            code => return Err(Error::protocol(format!("block from the peer: unknown kind {code}"))),
        };
        r.skip_fields()?;
        if expected != data_len {
            return Err(Error::protocol(format!("block from the peer: {data_len} bytes where {expected} belong")));
        }
        Ok(header)
    }
}

/// Reads the rest of a header for one block of one file, after its kind. Returns the header and the length of its data.
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

/// Reads the rest of a header for a tail of `data_len` bytes.
fn read_tail(r: &mut Reader<'_>, data_len: u64) -> Result<BlockHeader, Error> {
    let (file, entry) = (FileId(r.integer()?), r.entry()?);
    let offset = r.integer()?;
    // At most one block follows the complete blocks.
    let end = entry.size + entry.blocks().block_bytes();
    let fits = offset >= entry.size && offset.checked_add(data_len).is_some_and(|last| last <= end);
    if !entry.is_growing() || !fits || data_len == 0 || data_len > TAIL_BYTES_MAX {
        return Err(Error::protocol(format!("tail of {} from the peer: it cannot be there", entry.path)));
    }
    Ok(BlockHeader::Tail { file, entry, offset })
}

/// Reads the rest of a header for a packed block. Returns the header and the length of its data.
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

// A packed block fits in one slab, and a block has at most as many slabs as its header has room for.
const _: () = assert!(PACK_BYTES_MAX <= SLAB_BYTES && PACKED_FILE_BYTES_MAX <= SLAB_BYTES);
