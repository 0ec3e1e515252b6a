//! Compression of blocks: what a slab is, how it is encoded and decoded, and which way of encoding pays.
//!
//! A block that is compressed is cut into *slabs* of [`SLAB_BYTES`], each encoded by itself: raw, zstd, or its bytes shuffled by
//! their place in an element of 2, 4 or 8 bytes and then zstd. The header of the block says how each slab is encoded and how long
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

/// Bytes of a block that are encoded together; the last slab of a block is shorter. Reason: one slab encoded and one decoded are
/// all that a receiver holds of a block in order, and zstd gains nothing more from larger ones at the levels in use.
pub const SLAB_BYTES: u64 = 1 << 20;

/// Share of a slab that encoding must save, as a divisor; below that it travels raw. Reason: decoding costs the receiver more
/// than a path of any rate gains from 3 %.
const SAVING_DIVISOR: usize = 32;

/// How the bytes of a slab are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SlabEncoding {
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

impl SlabEncoding {
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
            code => Err(Error::protocol(format!("slab of a block from the peer: unknown encoding {code}"))),
        }
    }
}

/// A slab as it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slab {
    /// How its bytes are encoded.
    pub encoding: SlabEncoding,
    /// How many they are then.
    pub length: u32,
}

/// How many slabs `block_bytes` are cut into.
pub fn slab_count(block_bytes: u64) -> u64 {
    block_bytes.div_ceil(SLAB_BYTES)
}

/// Length of slab `index` of a block of `block_bytes`, decoded.
pub fn decoded_length(block_bytes: u64, index: u64) -> u64 {
    block_bytes.saturating_sub(index * SLAB_BYTES).min(SLAB_BYTES)
}

/// What all slabs of a block of `block_bytes` take on a lane.
///
/// Errors: another number of slabs than belong to it; a raw slab of another length than its bytes have; an encoded one that is
/// empty or no shorter than its bytes, which would only cost memory.
pub fn encoded_length(slabs: &[Slab], block_bytes: u64) -> Result<u64, Error> {
    if slabs.len() as u64 != slab_count(block_bytes) {
        let (slabs, expected) = (slabs.len(), slab_count(block_bytes));
        return Err(Error::protocol(format!("block from the peer: {slabs} slabs where {expected} belong")));
    }
    let mut total = 0;
    for (index, slab) in slabs.iter().enumerate() {
        let (length, decoded) = (u64::from(slab.length), decoded_length(block_bytes, index as u64));
        let fits = match slab.encoding {
            SlabEncoding::Raw => length == decoded,
            SlabEncoding::Zstd | SlabEncoding::Shuffled(_) => 0 < length && length < decoded,
        };
        if !fits {
            let text = format!("slab {index} of a block from the peer: {length} bytes for {decoded}");
            return Err(Error::protocol(text));
        }
        total += length;
    }
    Ok(total)
}

/// A way to encode a slab, as the sender tries it.
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
    /// What a slab becomes by it, if it becomes smaller.
    pub fn encoding(self) -> SlabEncoding {
        match self {
            Self::Raw => SlabEncoding::Raw,
            Self::Zstd { .. } => SlabEncoding::Zstd,
            Self::Shuffled { width, .. } => SlabEncoding::Shuffled(width),
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

/// Encodes slabs. Memory: zstd's tables (about 1 MB at the levels in use) and one slab shuffled.
#[derive(Default)]
pub struct Encoder {
    context: Option<CCtx<'static>>,
    shuffled: Vec<u8>,
}

impl Encoder {
    /// Encodes `raw` to the front of `encoded`; returns what it has become.
    ///
    /// A slab of which [`Method`] saves less than a thirty-second part is [`SlabEncoding::Raw`] with the length of `raw`, and
    /// `encoded` is then of no use. `encoded` must be as long as `raw` at least.
    pub fn encode(&mut self, method: Method, raw: &[u8], encoded: &mut [u8]) -> Slab {
        let travels_raw = Slab { encoding: SlabEncoding::Raw, length: raw.len() as u32 };
        let encoding = method.encoding();
        let bytes = match encoding {
            SlabEncoding::Raw => return travels_raw,
            SlabEncoding::Zstd => raw,
            SlabEncoding::Shuffled(width) => {
                self.shuffled.resize(raw.len(), 0);
                shuffle(width, raw, &mut self.shuffled);
                &self.shuffled
            }
        };
        let length_max = raw.len() - raw.len().div_ceil(SAVING_DIVISOR);
        let context = self.context.get_or_insert_with(CCtx::create);
        // An error says that the room does not suffice: nothing else can go wrong with a fresh frame and no dictionary.
        match context.compress(&mut encoded[..length_max], bytes, method.level()) {
            Ok(length) if length > 0 => Slab { encoding, length: length as u32 },
            _ => travels_raw,
        }
    }
}

/// Decodes slabs. Memory: zstd's tables (about 160 kB) and one slab shuffled.
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
    pub fn decode(&mut self, encoding: SlabEncoding, encoded: &[u8], raw: &mut [u8]) -> Result<(), Error> {
        let width = match encoding {
            SlabEncoding::Raw if encoded.len() == raw.len() => {
                raw.copy_from_slice(encoded);
                return Ok(());
            }
            SlabEncoding::Raw => return Err(other_length(encoded.len(), raw.len())),
            SlabEncoding::Zstd => None,
            SlabEncoding::Shuffled(width) => Some(width),
        };
        let context = self.context.get_or_insert_with(DCtx::create);
        if width.is_some() {
            self.shuffled.resize(raw.len(), 0);
        }
        let target = if width.is_some() { &mut self.shuffled[..] } else { &mut *raw };
        let expected = target.len();
        let length = context.decompress(target, encoded).map_err(|code| {
            let what = zstd_safe::get_error_name(code);
            Error::protocol(format!("decode a slab of a block from the peer: {what}"))
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
    Error::protocol(format!("decode a slab of a block from the peer: {length} bytes where {expected} belong"))
}

#[cfg(test)]
mod tests;
