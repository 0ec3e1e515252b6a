//! Compression of blocks: the slab, its encoding and decoding, and the choice of the method.
//!
//! A compressed block is cut into *slabs* of [`SLAB_BYTES`]. Each slab is encoded separately: raw, zstd, or byte
//! shuffle and zstd. The shuffle groups bytes by their position in an element of 2, 4 or 8 bytes. The header of the
//! block contains the encoding and the encoded length of each slab. The decoded length follows from the file's entry,
//! so that no peer can make this host write or hold more than that.
//!
//! Refuses to read the clock (costs are arguments), or keep what it has encoded. Bytes go from slice to slice.

mod choose;
mod path;
mod shuffle;

use zstd_safe::{CCtx, DCtx};

use crate::error::Error;

pub use self::choose::{
    Chooser, CompressionPolicy, Measured, Plan, SAMPLE_BYTES, SAMPLES, choose, measure, sample_offsets,
};
pub use self::path::{LaneWork, PathFacts, PathMeter};
pub use self::shuffle::{shuffle, unshuffle};

/// Size of a slab in bytes; the last slab of a block is shorter. Reason: a receiver holds at most one encoded and one
/// decoded slab of a block, and zstd gains nothing from larger slabs at the levels in use.
pub const SLAB_BYTES: u64 = 1 << 20;

/// Minimum saving of an encoded slab, as a divisor of its size; with less, the slab travels raw. Reason: decoding costs
/// the receiver more than any path gains from 3 %.
const SAVING_DIVISOR: usize = 32;

/// Encoding of the bytes of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SlabEncoding {
    /// The bytes of the file, not encoded.
    Raw,
    /// A zstd frame.
    Zstd,
    /// A zstd frame of the shuffled bytes.
    Shuffled(Width),
}

/// Size of an element, for example 4 bytes for a 32-bit sample.
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

    /// Returns the size in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::Two => 2,
            Self::Four => 4,
            Self::Eight => 8,
        }
    }
}

impl SlabEncoding {
    /// Returns the code on the wire.
    pub fn code(self) -> u8 {
        match self {
            Self::Raw => 0,
            Self::Zstd => 1,
            Self::Shuffled(width) => width.bytes() as u8,
        }
    }

    /// Returns the encoding of a code. Errors: unknown code.
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

/// Description of a slab on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slab {
    /// Encoding of its bytes.
    pub encoding: SlabEncoding,
    /// Encoded length in bytes.
    pub length: u32,
}

/// Returns the number of slabs in a block of `block_bytes`.
pub fn slab_count(block_bytes: u64) -> u64 {
    block_bytes.div_ceil(SLAB_BYTES)
}

/// Returns the decoded length of slab `index` in a block of `block_bytes`.
pub fn decoded_length(block_bytes: u64, index: u64) -> u64 {
    block_bytes.saturating_sub(index * SLAB_BYTES).min(SLAB_BYTES)
}

/// Returns the length of all slabs of a block of `block_bytes` on a lane.
///
/// Errors: a wrong number of slabs; a raw slab with a length different from its decoded length; an encoded slab that is
/// empty or not shorter than its decoded length. Such a slab would only cost memory.
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

/// Method by which the sender tries to encode a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// No encoding.
    Raw,
    /// Encoding with zstd.
    Zstd {
        /// Level of zstd.
        level: i8,
    },
    /// Byte shuffle, then zstd.
    Shuffled {
        /// Size of an element.
        width: Width,
        /// Level of zstd.
        level: i8,
    },
}

impl Method {
    /// Returns the encoding of a slab that this method makes smaller.
    pub fn encoding(self) -> SlabEncoding {
        match self {
            Self::Raw => SlabEncoding::Raw,
            Self::Zstd { .. } => SlabEncoding::Zstd,
            Self::Shuffled { width, .. } => SlabEncoding::Shuffled(width),
        }
    }

    /// Returns the level of zstd; it means nothing for [`Method::Raw`].
    fn level(self) -> i32 {
        match self {
            Self::Raw => 0,
            Self::Zstd { level } | Self::Shuffled { level, .. } => i32::from(level),
        }
    }
}

impl std::fmt::Display for Method {
    /// Writes the text for users: `none`, `zstd 1`, `shuffle 4 and zstd 1`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Raw => f.write_str("none"),
            Self::Zstd { level } => write!(f, "zstd {level}"),
            Self::Shuffled { width, level } => write!(f, "shuffle {} and zstd {level}", width.bytes()),
        }
    }
}

/// Encoder of slabs. Memory: zstd's tables (about 1 MB at the levels in use) and one shuffled slab.
#[derive(Default)]
pub struct Encoder {
    context: Option<CCtx<'static>>,
    shuffled: Vec<u8>,
}

impl Encoder {
    /// Encodes `raw` into the start of `encoded` and returns the resulting slab.
    ///
    /// If [`Method`] saves less than a thirty-second of the slab, the result is [`SlabEncoding::Raw`] with the length
    /// of `raw`, and the content of `encoded` is undefined. `encoded` must be at least as long as `raw`.
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
        // An error means that the output does not fit: with a new frame and no dictionary there is no other cause.
        match context.compress(&mut encoded[..length_max], bytes, method.level()) {
            Ok(length) if length > 0 => Slab { encoding, length: length as u32 },
            _ => travels_raw,
        }
    }
}

/// Decoder of slabs. Memory: zstd's tables (about 160 kB) and one shuffled slab.
#[derive(Default)]
pub struct Decoder {
    context: Option<DCtx<'static>>,
    shuffled: Vec<u8>,
}

impl Decoder {
    /// Decodes `encoded` into `raw` and fills it completely.
    ///
    /// Errors: `encoded` is no zstd frame, or its decoded length differs from the length of `raw`. Nothing is written
    /// beyond `raw`; the content of `raw` is then undefined.
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
