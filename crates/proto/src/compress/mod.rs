//! Compression of blocks: what a piece is, how it is encoded and decoded, and which way of encoding pays.
//!
//! A block that is compressed is cut into *pieces* of [`PIECE_BYTES`], each encoded by itself: raw, zstd, or its bytes shuffled by
//! their place in an element of 2, 4 or 8 bytes and then zstd. The header of the block says how each piece is encoded and how long
//! it is then; how long it is decoded follows from the file's entry, so that no peer can make us write or hold more than that.
//!
//! Refuses: to read the clock (costs are arguments) and to keep what it has encoded; bytes go from slice to slice.

mod choose;
mod path;
mod shuffle;

use zstd_safe::{CCtx, DCtx};

use crate::error::Error;

pub use self::choose::{Chooser, Measured, Plan, SAMPLE_BYTES, SAMPLES, Wish, choose, measure, sample_offsets};
pub use self::path::{LaneWork, PathFacts, PathMeter};
pub use self::shuffle::{shuffle, unshuffle};

/// Bytes of a block that are encoded together; the last piece of a block is shorter. Reason: one piece encoded and one decoded are
/// all that a receiver holds of a block in order, and zstd gains nothing more from larger ones at the levels in use.
pub const PIECE_BYTES: u64 = 1 << 20;

/// Share of a piece that encoding must save, as a divisor; below that it travels raw. Reason: decoding costs the receiver more
/// than a path of any rate gains from 3 %.
const SAVING_DIVISOR: usize = 32;

/// How the bytes of a piece are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PieceEncoding {
    /// As they are in the file.
    Raw,
    /// A zstd frame.
    Zstd,
    /// A zstd frame of the shuffled bytes.
    Shuffled(Width),
}

/// Bytes of an element, such as 4 of a 32-bit sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// 2 bytes.
    Two,
    /// 4 bytes.
    Four,
    /// 8 bytes.
    Eight,
}

impl Width {
    /// Every width.
    pub const ALL: [Self; 3] = [Self::Two, Self::Four, Self::Eight];

    /// In bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::Two => 2,
            Self::Four => 4,
            Self::Eight => 8,
        }
    }
}

impl PieceEncoding {
    /// Its code on the wire.
    pub fn code(self) -> u8 {
        match self {
            Self::Raw => 0,
            Self::Zstd => 1,
            Self::Shuffled(width) => width.bytes() as u8,
        }
    }

    /// The encoding of a code. Errors: there is none.
    pub fn from_code(code: u8) -> Result<Self, Error> {
        match code {
            0 => Ok(Self::Raw),
            1 => Ok(Self::Zstd),
            2 => Ok(Self::Shuffled(Width::Two)),
            4 => Ok(Self::Shuffled(Width::Four)),
            8 => Ok(Self::Shuffled(Width::Eight)),
            code => Err(Error::protocol(format!("piece of a block from the peer: unknown encoding {code}"))),
        }
    }
}

/// A piece as it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// How its bytes are encoded.
    pub encoding: PieceEncoding,
    /// How many they are then.
    pub length: u32,
}

/// How many pieces `block_bytes` are cut into.
pub fn piece_count(block_bytes: u64) -> u64 {
    block_bytes.div_ceil(PIECE_BYTES)
}

/// Length of piece `index` of a block of `block_bytes`, decoded.
pub fn decoded_length(block_bytes: u64, index: u64) -> u64 {
    block_bytes.saturating_sub(index * PIECE_BYTES).min(PIECE_BYTES)
}

/// What all pieces of a block of `block_bytes` take on a lane.
///
/// Errors: another number of pieces than belong to it; a raw piece of another length than its bytes have; an encoded one that is
/// empty or no shorter than its bytes, which would only cost memory.
pub fn encoded_length(pieces: &[Piece], block_bytes: u64) -> Result<u64, Error> {
    if pieces.len() as u64 != piece_count(block_bytes) {
        let (pieces, expected) = (pieces.len(), piece_count(block_bytes));
        return Err(Error::protocol(format!("block from the peer: {pieces} pieces where {expected} belong")));
    }
    let mut total = 0;
    for (index, piece) in pieces.iter().enumerate() {
        let (length, decoded) = (u64::from(piece.length), decoded_length(block_bytes, index as u64));
        let fits = match piece.encoding {
            PieceEncoding::Raw => length == decoded,
            PieceEncoding::Zstd | PieceEncoding::Shuffled(_) => 0 < length && length < decoded,
        };
        if !fits {
            let text = format!("piece {index} of a block from the peer: {length} bytes for {decoded}");
            return Err(Error::protocol(text));
        }
        total += length;
    }
    Ok(total)
}

/// A way to encode a piece, as the sender tries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Not at all.
    Raw,
    /// zstd.
    Zstd {
        /// Its level.
        level: i8,
    },
    /// Shuffled and then zstd.
    Shuffled {
        /// Bytes of an element.
        width: Width,
        /// zstd's level.
        level: i8,
    },
}

impl Method {
    /// What a piece becomes by it, if it becomes smaller.
    pub fn encoding(self) -> PieceEncoding {
        match self {
            Self::Raw => PieceEncoding::Raw,
            Self::Zstd { .. } => PieceEncoding::Zstd,
            Self::Shuffled { width, .. } => PieceEncoding::Shuffled(width),
        }
    }

    /// zstd's level; of no meaning for [`Method::Raw`].
    fn level(self) -> i32 {
        match self {
            Self::Raw => 0,
            Self::Zstd { level } | Self::Shuffled { level, .. } => i32::from(level),
        }
    }
}

impl std::fmt::Display for Method {
    /// As people read it: `none`, `zstd 1`, `shuffle 4 and zstd 1`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Raw => f.write_str("none"),
            Self::Zstd { level } => write!(f, "zstd {level}"),
            Self::Shuffled { width, level } => write!(f, "shuffle {} and zstd {level}", width.bytes()),
        }
    }
}

/// Encodes pieces. Memory: zstd's tables (about 1 MB at the levels in use) and one piece shuffled.
#[derive(Default)]
pub struct Encoder {
    context: Option<CCtx<'static>>,
    shuffled: Vec<u8>,
}

impl Encoder {
    /// Encodes `raw` to the front of `encoded`; returns what it has become.
    ///
    /// A piece of which [`Method`] saves less than a thirty-second part is [`PieceEncoding::Raw`] with the length of `raw`, and
    /// `encoded` is then of no use. `encoded` must be as long as `raw` at least.
    pub fn encode(&mut self, method: Method, raw: &[u8], encoded: &mut [u8]) -> Piece {
        let travels_raw = Piece { encoding: PieceEncoding::Raw, length: raw.len() as u32 };
        let encoding = method.encoding();
        let bytes = match encoding {
            PieceEncoding::Raw => return travels_raw,
            PieceEncoding::Zstd => raw,
            PieceEncoding::Shuffled(width) => {
                self.shuffled.resize(raw.len(), 0);
                shuffle(width, raw, &mut self.shuffled);
                &self.shuffled
            }
        };
        let length_max = raw.len() - raw.len().div_ceil(SAVING_DIVISOR);
        let context = self.context.get_or_insert_with(CCtx::create);
        // An error says that the room does not suffice: nothing else can go wrong with a fresh frame and no dictionary.
        match context.compress(&mut encoded[..length_max], bytes, method.level()) {
            Ok(length) if length > 0 => Piece { encoding, length: length as u32 },
            _ => travels_raw,
        }
    }
}

/// Decodes pieces. Memory: zstd's tables (about 160 kB) and one piece shuffled.
#[derive(Default)]
pub struct Decoder {
    context: Option<DCtx<'static>>,
    shuffled: Vec<u8>,
}

impl Decoder {
    /// Decodes `encoded` to `raw`, all of it.
    ///
    /// Errors: it is no zstd frame, or decodes to another length than `raw` has; nothing is written beyond `raw`, whose bytes
    /// are then of no use.
    pub fn decode(&mut self, encoding: PieceEncoding, encoded: &[u8], raw: &mut [u8]) -> Result<(), Error> {
        let width = match encoding {
            PieceEncoding::Raw if encoded.len() == raw.len() => {
                raw.copy_from_slice(encoded);
                return Ok(());
            }
            PieceEncoding::Raw => return Err(other_length(encoded.len(), raw.len())),
            PieceEncoding::Zstd => None,
            PieceEncoding::Shuffled(width) => Some(width),
        };
        let context = self.context.get_or_insert_with(DCtx::create);
        if width.is_some() {
            self.shuffled.resize(raw.len(), 0);
        }
        let target = if width.is_some() { &mut self.shuffled[..] } else { &mut *raw };
        let expected = target.len();
        let length = context.decompress(target, encoded).map_err(|code| {
            let what = zstd_safe::get_error_name(code);
            Error::protocol(format!("decode a piece of a block from the peer: {what}"))
        })?;
        if length != expected {
            return Err(other_length(length, expected));
        }
        if let Some(width) = width {
            unshuffle(width, &self.shuffled, raw);
        }
        Ok(())
    }
}

fn other_length(length: usize, expected: usize) -> Error {
    Error::protocol(format!("decode a piece of a block from the peer: {length} bytes where {expected} belong"))
}

#[cfg(test)]
mod tests;
