//! The pieces of a block on their way in: gathered as their bytes come, in any order, and decoded when they are whole.
//!
//! Over TCP one piece is gathered at a time; over QUIC as many as are in flight. What a lane gathers in memory has an end
//! ([`GATHERED_BYTES_MAX`]); beyond it the encoded bytes of a piece wait where the piece itself will be written, which is longer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sterna_proto::Error;
use sterna_proto::compress::{Decoder, PIECE_BYTES, Piece, PieceEncoding, decoded_length};

use super::writer::BlockWriter;

/// Encoded bytes of pieces that are not whole which a lane holds in memory. Reason: a QUIC lane's 250 Mbit/s over half a second.
const GATHERED_BYTES_MAX: usize = 16 << 20;

/// What the blocks of one lane share.
#[derive(Default)]
pub(super) struct Decoding {
    decoder: Decoder,
    decoded: Vec<u8>,
    gathered_bytes: Arc<AtomicUsize>,
}

impl Decoding {
    /// Decodes `encoded` to `length` bytes. Errors: it does not decode to that.
    pub(super) fn decode(&mut self, piece: &Piece, encoded: &[u8], length: usize) -> Result<&[u8], Error> {
        if self.decoded.len() < length {
            self.decoded.resize(length.max(PIECE_BYTES as usize), 0);
        }
        let decoded = &mut self.decoded[..length];
        self.decoder.decode(piece.encoding, encoded, decoded)?;
        Ok(decoded)
    }

    /// The same; zeros where it does not decode.
    pub(super) fn decode_or_zeros(&mut self, piece: &Piece, encoded: &[u8], length: usize) -> &[u8] {
        if self.decode(piece, encoded, length).is_err() {
            self.decoded[..length].fill(0);
        }
        &self.decoded[..length]
    }

    /// Room for `length` bytes; `None` when the lane has gathered too much.
    fn gather(&self, length: usize) -> Option<Gathered> {
        let before = self.gathered_bytes.fetch_add(length, Ordering::Relaxed);
        let gathered = Gathered { bytes: vec![0; length], total: Arc::clone(&self.gathered_bytes) };
        (before + length <= GATHERED_BYTES_MAX).then_some(gathered)
    }
}

/// Encoded bytes of a piece, in memory.
struct Gathered {
    bytes: Vec<u8>,
    total: Arc<AtomicUsize>,
}

impl Drop for Gathered {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

/// Where the encoded bytes of a piece are until it is whole.
enum Place {
    /// None have come.
    Nowhere,
    Memory(Gathered),
    /// Where the piece will be written.
    Disk,
}

struct OpenPiece {
    piece: Piece,
    /// Where it begins in the data of the block.
    data_offset: u64,
    /// Encoded bytes that have come; each comes once.
    come: usize,
    place: Place,
}

/// The pieces of one block.
pub(super) struct BlockPieces {
    pieces: Vec<OpenPiece>,
    block_bytes: u64,
    malformed: bool,
}

impl BlockPieces {
    /// For a block of `block_bytes` that comes as `pieces`, which belong to it.
    pub(super) fn new(pieces: Vec<Piece>, block_bytes: u64) -> Self {
        let mut data_offset = 0;
        let open = |piece: Piece| {
            let open = OpenPiece { piece, data_offset, come: 0, place: Place::Nowhere };
            data_offset += u64::from(piece.length);
            open
        };
        Self { pieces: pieces.into_iter().map(open).collect(), block_bytes, malformed: false }
    }

    /// Whether a piece did not decode to its bytes: the block is then as corrupt as one with another digest.
    pub(super) fn is_malformed(&self) -> bool {
        self.malformed
    }

    /// Takes bytes at `offset` of the block's data; pieces that are whole go to `writer`. Errors: of the disk.
    pub(super) fn write(
        &mut self,
        mut offset: u64,
        mut data: &[u8],
        writer: &mut BlockWriter,
        decoding: &mut Decoding,
    ) -> Result<(), Error> {
        while !data.is_empty() && !self.malformed {
            let index = self.pieces.partition_point(|open| open.data_offset <= offset) - 1;
            let open = &mut self.pieces[index];
            let within = (offset - open.data_offset) as usize;
            let here = (open.piece.length as usize - within).min(data.len());
            let (now, later) = data.split_at(here);
            let start = index as u64 * PIECE_BYTES;
            if open.piece.encoding == PieceEncoding::Raw {
                writer.write(start + within as u64, now)?;
            } else {
                open.take(within, now, start, writer, decoding)?;
                if open.come == open.piece.length as usize {
                    let length = decoded_length(self.block_bytes, index as u64) as usize;
                    self.malformed = !open.finish(start, length, writer, decoding)?;
                }
            }
            offset += here as u64;
            data = later;
        }
        Ok(())
    }
}

impl OpenPiece {
    /// Takes encoded bytes at `within`; `start` is where the piece begins in its block.
    fn take(
        &mut self,
        within: usize,
        data: &[u8],
        start: u64,
        writer: &BlockWriter,
        decoding: &Decoding,
    ) -> Result<(), Error> {
        if matches!(self.place, Place::Nowhere) {
            self.place = decoding.gather(self.piece.length as usize).map_or(Place::Disk, Place::Memory);
        }
        match &mut self.place {
            Place::Memory(gathered) => gathered.bytes[within..within + data.len()].copy_from_slice(data),
            _ => writer.park(start + within as u64, data)?,
        }
        self.come += data.len();
        Ok(())
    }

    /// Decodes a piece that is whole and writes its `length` bytes at `start`; whether it could be decoded.
    fn finish(
        &mut self,
        start: u64,
        length: usize,
        writer: &mut BlockWriter,
        decoding: &mut Decoding,
    ) -> Result<bool, Error> {
        let (parked, gathered);
        let encoded = match std::mem::replace(&mut self.place, Place::Nowhere) {
            Place::Memory(memory) => {
                gathered = memory;
                &gathered.bytes
            }
            _ => {
                parked = writer.fetch(start, self.piece.length as usize)?;
                &parked
            }
        };
        match decoding.decode(&self.piece, encoded, length) {
            Ok(decoded) => writer.write(start, decoded).map(|()| true),
            Err(_) => Ok(false),
        }
    }
}
