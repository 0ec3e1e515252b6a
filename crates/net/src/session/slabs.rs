//! Decoding of the slabs of a received block: gathers their bytes, in any order, and decodes each slab once it is
//! complete.
//!
//! Over TCP, one slab is gathered at a time; over QUIC, as many as are in flight. The memory of a lane for this is
//! bounded ([`GATHERED_BYTES_MAX`]). Beyond the bound, the encoded bytes of a slab are stored in the file, at the
//! place of the decoded slab, which is longer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sterna_proto::Error;
use sterna_proto::compress::{Decoder, SLAB_BYTES, Slab, SlabEncoding, decoded_length};

use super::writer::BlockWriter;

/// Maximum of encoded bytes of incomplete slabs that a lane holds in memory. Reason: 250 Mbit/s of a QUIC lane for
/// half a second.
const GATHERED_BYTES_MAX: usize = 16 << 20;

/// Decoder and buffers that the blocks of one lane share.
#[derive(Default)]
pub(super) struct Decoding {
    decoder: Decoder,
    decoded: Vec<u8>,
    gathered_bytes: Arc<AtomicUsize>,
}

impl Decoding {
    /// Decodes `encoded` to `length` bytes. Errors: the data does not decode to that length.
    pub(super) fn decode(&mut self, slab: &Slab, encoded: &[u8], length: usize) -> Result<&[u8], Error> {
        if self.decoded.len() < length {
            self.decoded.resize(length.max(SLAB_BYTES as usize), 0);
        }
        let decoded = &mut self.decoded[..length];
        self.decoder.decode(slab.encoding, encoded, decoded)?;
        Ok(decoded)
    }

    /// Decodes `encoded` to `length` bytes; returns zeros if it does not decode.
    pub(super) fn decode_or_zeros(&mut self, slab: &Slab, encoded: &[u8], length: usize) -> &[u8] {
        if self.decode(slab, encoded, length).is_err() {
            self.decoded[..length].fill(0);
        }
        &self.decoded[..length]
    }

    /// Returns a buffer for `length` bytes; `None` if the lane has gathered too much.
    fn gather(&self, length: usize) -> Option<Gathered> {
        let before = self.gathered_bytes.fetch_add(length, Ordering::Relaxed);
        let gathered = Gathered { bytes: vec![0; length], total: Arc::clone(&self.gathered_bytes) };
        (before + length <= GATHERED_BYTES_MAX).then_some(gathered)
    }
}

/// Encoded bytes of a slab in memory.
struct Gathered {
    bytes: Vec<u8>,
    total: Arc<AtomicUsize>,
}

impl Drop for Gathered {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

/// Place of the encoded bytes of an incomplete slab.
enum Place {
    /// No bytes have arrived.
    Nowhere,
    Memory(Gathered),
    /// In the file, at the place of the decoded slab.
    Disk,
}

struct OpenSlab {
    slab: Slab,
    /// Start of the slab in the data of the block.
    data_offset: u64,
    /// Number of encoded bytes that have arrived; each arrives once.
    come: usize,
    place: Place,
}

/// Slabs of one block.
pub(super) struct BlockSlabs {
    slabs: Vec<OpenSlab>,
    block_bytes: u64,
    malformed: bool,
}

impl BlockSlabs {
    /// Creates the state of a block of `block_bytes` that arrives as `slabs`. The caller has checked that the slabs
    /// match the block.
    pub(super) fn new(slabs: Vec<Slab>, block_bytes: u64) -> Self {
        let mut data_offset = 0;
        let open = |slab: Slab| {
            let open = OpenSlab { slab, data_offset, come: 0, place: Place::Nowhere };
            data_offset += u64::from(slab.length);
            open
        };
        Self { slabs: slabs.into_iter().map(open).collect(), block_bytes, malformed: false }
    }

    /// True if a slab did not decode to its bytes. The block is then corrupt, as with a wrong digest.
    pub(super) fn is_malformed(&self) -> bool {
        self.malformed
    }

    /// Takes bytes at `offset` of the data of the block, and passes complete slabs to `writer`. Errors: of the disk.
    pub(super) fn write(
        &mut self,
        mut offset: u64,
        mut data: &[u8],
        writer: &mut BlockWriter,
        decoding: &mut Decoding,
    ) -> Result<(), Error> {
        while !data.is_empty() && !self.malformed {
            let index = self.slabs.partition_point(|open| open.data_offset <= offset) - 1;
            let open = &mut self.slabs[index];
            let within = (offset - open.data_offset) as usize;
            let here = (open.slab.length as usize - within).min(data.len());
            let (now, later) = data.split_at(here);
            let start = index as u64 * SLAB_BYTES;
            if open.slab.encoding == SlabEncoding::Raw {
                writer.write(start + within as u64, now)?;
            } else {
                open.take(within, now, start, writer, decoding)?;
                if open.come == open.slab.length as usize {
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

impl OpenSlab {
    /// Takes encoded bytes at `within`. `start` is the start of the slab in its block.
    fn take(
        &mut self,
        within: usize,
        data: &[u8],
        start: u64,
        writer: &BlockWriter,
        decoding: &Decoding,
    ) -> Result<(), Error> {
        if matches!(self.place, Place::Nowhere) {
            self.place = decoding.gather(self.slab.length as usize).map_or(Place::Disk, Place::Memory);
        }
        match &mut self.place {
            Place::Memory(gathered) => gathered.bytes[within..within + data.len()].copy_from_slice(data),
            _ => writer.park(start + within as u64, data)?,
        }
        self.come += data.len();
        Ok(())
    }

    /// Decodes a complete slab and writes its `length` bytes at `start`. Returns false if it does not decode.
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
                parked = writer.fetch(start, self.slab.length as usize)?;
                &parked
            }
        };
        match decoding.decode(&self.slab, encoded, length) {
            Ok(decoded) => writer.write(start, decoded).map(|()| true),
            Err(_) => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use sterna_proto::compress::{Encoder, Method, Width};
    use sterna_proto::session::{FileId, Overwrite};
    use sterna_proto::{BlockHasher, Checks, EntryKind, FileEntry, FileTime, RelPath};
    use sterna_seeded::Seeded;
    use tempfile::TempDir;

    use super::*;
    use crate::disk::{Access, Destination, IncomingFile, Root, Sources};
    use crate::session::limits::Meter;
    use crate::sink::{Prepared, Terms};

    fn meter() -> Arc<Meter> {
        Arc::new(Meter::new())
    }

    /// Payload of a QUIC packet, in bytes.
    const PACKET_BYTES: usize = 1371;

    /// Size of the blocks of the file, in bytes: four slabs.
    const BLOCK_BYTES: u64 = 4 << 20;

    fn incoming(directory: &TempDir) -> Arc<IncomingFile> {
        let root = Root::open(directory.path(), Access::ReadWrite).unwrap();
        let size = 2400 << 20;
        let entry = FileEntry {
            path: RelPath::new(&b"f"[..]).unwrap(),
            kind: EntryKind::File,
            size,
            mtime: FileTime { seconds: 1, nanoseconds: 0 },
            mode: 0o644,
            allocated: size,
            inode: 1,
            version: 1,
            growth: None,
        };
        let destination = Destination::resolve(&root, b"", Sources::Many).unwrap();
        let terms = Terms { overwrite: Overwrite::Always, checks: Checks::NONE };
        match destination.prepare(&entry, &terms).unwrap() {
            Prepared::Incoming(incoming) => Arc::from(incoming),
            _ => panic!("a large file takes blocks"),
        }
    }

    /// Returns a block of samples, then noise, then samples.
    fn block() -> Vec<u8> {
        let mut random = Seeded::new(1);
        let mut bytes = Vec::new();
        for index in 0..BLOCK_BYTES / 4 {
            let noise = random.draw() as u32;
            let is_noise = (1 << 18..2 << 18).contains(&index);
            bytes.extend_from_slice(&(if is_noise { noise } else { index as u32 + noise % 16 }).to_le_bytes());
        }
        bytes
    }

    fn encoded(block: &[u8]) -> (Vec<Slab>, Vec<u8>) {
        let (mut encoder, mut room) = (Encoder::default(), vec![0; SLAB_BYTES as usize]);
        let (mut slabs, mut data) = (Vec::new(), Vec::new());
        for raw in block.chunks(SLAB_BYTES as usize) {
            let slab = encoder.encode(Method::Shuffled { width: Width::Four, level: 1 }, raw, &mut room);
            let bytes = if slab.encoding == SlabEncoding::Raw { raw } else { &room[..slab.length as usize] };
            slabs.push(slab);
            data.extend_from_slice(bytes);
        }
        (slabs, data)
    }

    /// Writes the data of a block in packets, in an order given by `seed`. Returns its digest; `None` if the block is
    /// malformed.
    fn bring(directory: &TempDir, slabs: &[Slab], data: &[u8], decoding: &mut Decoding, seed: u64) -> Option<Vec<u8>> {
        let incoming = incoming(directory);
        let index = 3;
        let blocks = incoming.blocks();
        assert_eq!(blocks.length(index), BLOCK_BYTES);
        let mut writer = BlockWriter::new(FileId(0), index, &blocks, Checks::NONE, incoming, meter());
        let mut open = BlockSlabs::new(slabs.to_vec(), BLOCK_BYTES);
        let mut packets: Vec<(usize, &[u8])> =
            data.chunks(PACKET_BYTES).enumerate().map(|(number, bytes)| (number * PACKET_BYTES, bytes)).collect();
        if seed > 0 {
            Seeded::new(seed).shuffle(&mut packets);
        }
        for (offset, bytes) in packets {
            open.write(offset as u64, bytes, &mut writer, decoding).unwrap();
        }
        (!open.is_malformed()).then(|| writer.finish().unwrap().chaining_value.to_vec())
    }

    fn digest(directory: &TempDir, block: &[u8]) -> Vec<u8> {
        let mut hasher = BlockHasher::new(&incoming(directory).blocks(), 3, Checks::NONE);
        hasher.update(block);
        hasher.finish().chaining_value.to_vec()
    }

    #[test]
    fn slabs_in_any_order_make_the_block_with_and_without_room_in_memory() {
        let directory = tempfile::tempdir().unwrap();
        let block = block();
        let (slabs, data) = encoded(&block);
        let kinds: Vec<bool> = slabs.iter().map(|slab| slab.encoding == SlabEncoding::Raw).collect();
        assert_eq!(kinds, [false, true, false, false]);
        let expected = digest(&directory, &block);
        for seed in [0, 1, 2] {
            for gathered in [0, GATHERED_BYTES_MAX - (1 << 20), GATHERED_BYTES_MAX] {
                let mut decoding = Decoding::default();
                decoding.gathered_bytes.store(gathered, Ordering::Relaxed);
                let found = bring(&directory, &slabs, &data, &mut decoding, seed);
                assert_eq!(found.as_ref(), Some(&expected), "order {seed}, {gathered} bytes gathered elsewhere");
                assert_eq!(
                    decoding.gathered_bytes.load(Ordering::Relaxed),
                    gathered,
                    "what was gathered is given back"
                );
            }
        }
    }

    #[test]
    fn a_slab_that_decodes_to_something_else_spoils_its_block_and_nothing_more() {
        let directory = tempfile::tempdir().unwrap();
        let block = block();
        let (slabs, mut data) = encoded(&block);
        let mut decoding = Decoding::default();
        data[20] ^= 0xff;
        data[21..2000].fill(0);
        // The slab may decode to other bytes, which have another digest.
        assert_ne!(bring(&directory, &slabs, &data, &mut decoding, 1), Some(digest(&directory, &block)));
        // This frame decodes completely, but to less than a slab.
        let (shorter, frame) = encoded(&block[..1000 << 10]);
        let mut lying = slabs.clone();
        lying[0] = shorter[0];
        let rest = slabs[0].length as usize;
        let lie = [&frame[..], &data[rest..]].concat();
        assert_eq!(bring(&directory, &lying, &lie, &mut decoding, 0), None);
        let (slabs, data) = encoded(&block);
        assert_eq!(bring(&directory, &slabs, &data, &mut decoding, 1), Some(digest(&directory, &block)));
        assert_eq!(decoding.gathered_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_block_that_ends_early_gives_its_memory_back() {
        let (slabs, data) = encoded(&block());
        let directory = tempfile::tempdir().unwrap();
        let incoming = incoming(&directory);
        let mut writer = BlockWriter::new(FileId(0), 3, &{ incoming.blocks() }, Checks::NONE, incoming, meter());
        let (mut open, mut decoding) = (BlockSlabs::new(slabs, BLOCK_BYTES), Decoding::default());
        open.write(0, &data[..5000], &mut writer, &mut decoding).unwrap();
        assert!(decoding.gathered_bytes.load(Ordering::Relaxed) > 0);
        drop(open);
        assert_eq!(decoding.gathered_bytes.load(Ordering::Relaxed), 0);
    }
}
