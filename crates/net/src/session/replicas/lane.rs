//! Blocks that arrive on one lane from one replica.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use parking_lot::Mutex;
use sterna_proto::compress::Slab;
use sterna_proto::file::PACKED_FILE_BYTES_MAX;
use sterna_proto::session::{Arrival, BlockData, BlockHeader, BlockUse, CopyId, LaneId};
use sterna_proto::{Checks, Error, FileDigests, FileEntry};

use super::super::slabs::Decoding;
use super::super::{BlockSink, End};
use super::epoch::Epoch;
use super::{FILE, Gate};

/// Block that is being received.
enum OpenBlock {
    /// Read and dropped.
    Discard,
    /// Read and dropped; only its digest counts.
    Compare { copy: CopyId, index: u64 },
    /// Written by the receiver.
    Written { copy: CopyId, gate: Arc<Gate> },
    /// Small file, which is compared before it is written.
    Small { copy: CopyId, entry: FileEntry, slab: Option<Slab>, data: Vec<u8> },
}

impl OpenBlock {
    /// Returns the state of a block that is not written.
    fn read_past(becomes: BlockUse, copy: CopyId, index: u64) -> Self {
        match becomes {
            BlockUse::Compare => Self::Compare { copy, index },
            BlockUse::Take { .. } | BlockUse::Discard => Self::Discard,
        }
    }
}

/// Receiving side of one lane of one replica.
pub(super) struct ReplicaLane {
    epoch: Epoch,
    /// Lane number of the receiver for this lane.
    lane: LaneId,
    blocks: Box<dyn BlockSink>,
    open: HashMap<u64, OpenBlock>,
    /// File bytes and encoded bytes of each block that is being received.
    lengths: HashMap<u64, (u64, u64)>,
    decoding: Decoding,
}

impl ReplicaLane {
    pub(super) fn new(epoch: Epoch) -> Self {
        let lane = epoch.replicas.lanes.next();
        let blocks = Arc::clone(&epoch.replicas.receiver).block_sink(lane);
        Self { epoch, lane, blocks, open: HashMap::new(), lengths: HashMap::new(), decoding: Decoding::default() }
    }

    fn next_copy(&self) -> CopyId {
        CopyId(self.epoch.replicas.copies.fetch_add(1, Ordering::Relaxed))
    }

    /// Asks the state machine for the use of a block. A block from an ended session is dropped.
    fn ask(&self, copy: CopyId, entry: &FileEntry, index: u64) -> Result<BlockUse, Error> {
        let replica = self.epoch.replica;
        let asked = self.epoch.with_session(|session| session.handle_begun(replica, copy, entry, index));
        asked.unwrap_or(Ok(BlockUse::Discard))
    }

    fn begin_single(
        &mut self,
        block: u64,
        (entry, index): (FileEntry, u64),
        data: BlockData,
        data_len: u64,
    ) -> Result<OpenBlock, Error> {
        let (copy, replicas) = (self.next_copy(), Arc::clone(&self.epoch.replicas));
        let gate = Arc::new(Gate { revoked: Mutex::new(false), lane: self.lane, index });
        // The gate exists before any other thread can see, and so revoke, the copy.
        replicas.gates.lock().insert(copy, Arc::clone(&gate));
        let instead_of = match self.ask(copy, &entry, index) {
            Ok(BlockUse::Take { instead_of }) => instead_of,
            other => {
                replicas.gates.lock().remove(&copy);
                return Ok(OpenBlock::read_past(other?, copy, index));
            }
        };
        instead_of.into_iter().for_each(|other| replicas.revoke(other));
        let file = replicas.session.lock().file().cloned();
        let revoked = gate.revoked.lock();
        if let (Some(file), false) = (file, *revoked) {
            // The entry comes from the receiver: replicas differ in times and inodes.
            let header = BlockHeader::Single { file: FILE, entry: file, index, data };
            self.blocks.begin(block, &header.encode(), data_len)?;
            if !replicas.receiver.has_claim(self.lane, FILE, index) {
                // The claim is missing: an earlier copy was complete before it was revoked, its data is being taken
                // back, or the file has ended.
                self.blocks.abandoned(block)?;
                replicas.gates.lock().remove(&copy);
                drop(revoked);
                let refused = replicas.session.lock().handle_refused(self.epoch.replica, copy, index);
                replicas.wake().notify();
                return Ok(OpenBlock::read_past(refused, copy, index));
            }
        }
        drop(revoked);
        Ok(OpenBlock::Written { copy, gate })
    }

    fn begin_small(&mut self, entry: FileEntry, slab: Option<Slab>, data_len: u64) -> Result<OpenBlock, Error> {
        if data_len > PACKED_FILE_BYTES_MAX {
            return Err(Error::protocol("packed block from the peer: more than the one small file of a replica"));
        }
        let copy = self.next_copy();
        Ok(match self.ask(copy, &entry, 0)? {
            BlockUse::Compare => OpenBlock::Small { copy, entry, slab, data: vec![0; data_len as usize] },
            BlockUse::Take { .. } | BlockUse::Discard => OpenBlock::Discard,
        })
    }

    /// Ends a block whose data has all gone to the receiver.
    fn end_written(&mut self, block: u64, (copy, gate): (CopyId, &Gate), trailer: &[u8]) -> Result<(), Error> {
        let (replicas, replica, index) = (Arc::clone(&self.epoch.replicas), self.epoch.replica, gate.index);
        let digest = digest_of(trailer)?;
        let revoked = gate.revoked.lock();
        if *revoked {
            self.blocks.abandoned(block)?;
            drop(revoked);
            // The digest counts even though the copy was revoked.
            let now = Instant::now();
            self.epoch
                .with_session(|session| session.handle_block(replica, copy, index, digest, Arrival::ReadPast, now));
            return Ok(());
        }
        let ended = self.blocks.end(block, trailer);
        let arrival = match replicas.receiver.has_block(FILE, index) {
            Some(true) => Arrival::Written,
            Some(false) => Arrival::Corrupt,
            None => Arrival::ReadPast,
        };
        // An ended session also reports here: data that was written must be recorded. The report precedes the release
        // of the gate, because a copy that takes over must find this block recorded.
        replicas.session.lock().handle_block(replica, copy, index, digest, arrival, Instant::now());
        replicas.gates.lock().remove(&copy);
        drop(revoked);
        replicas.wake().notify();
        ended
    }

    fn end_small(&mut self, copy: CopyId, entry: &FileEntry, data: &[u8], trailer: &[u8]) -> Result<(), Error> {
        let (replicas, replica, now) = (Arc::clone(&self.epoch.replicas), self.epoch.replica, Instant::now());
        let digest = digest_of(trailer)?;
        if *blake3::hash(data).as_bytes() != digest {
            self.epoch.with_session(|session| session.handle_block(replica, copy, 0, digest, Arrival::Corrupt, now));
            return Ok(());
        }
        let unexpected = replicas.expected.of(&entry.path).iter().find_map(|expected| {
            let computed = FileDigests::of(data, Checks::NONE.with(expected.algorithm()));
            expected.check(&computed, &entry.path).err()
        });
        // Only the first copy of a session is compared and written; later copies are ignored.
        let mut small = replicas.small.lock();
        if small.contains_key(&replica) {
            return Ok(());
        }
        small.insert(replica, data.to_vec());
        drop(small);
        self.epoch.with_session(|session| match unexpected {
            Some(error) => session.handle_unexpected(replica, &error, now),
            None => session.handle_block(replica, copy, 0, digest, Arrival::ReadPast, now),
        });
        Ok(())
    }
}

fn digest_of(trailer: &[u8]) -> Result<[u8; 32], Error> {
    trailer.try_into().map_err(|_| Error::protocol("block from the peer: its trailer is no digest"))
}

impl BlockSink for ReplicaLane {
    fn begin(&mut self, block: u64, header: &[u8], data_len: u64) -> Result<(), Error> {
        let open = match BlockHeader::decode(header, data_len)? {
            BlockHeader::Single { file: FILE, entry, index, data } => {
                self.lengths.insert(block, (entry.blocks().length(index), data_len.max(1)));
                self.begin_single(block, (entry, index), data, data_len)?
            }
            BlockHeader::Packed { mut files, slab } if files.len() == 1 && files[0].0 == FILE => {
                let (_, entry) = files.swap_remove(0);
                self.begin_small(entry, slab, data_len)?
            }
            // The source has more than one file, and its sender does not yet have the refusal: its blocks are
            // dropped.
            _ => OpenBlock::Discard,
        };
        self.open.insert(block, open);
        Ok(())
    }

    fn data(&mut self, block: u64, offset: u64, data: &[u8]) -> Result<(), Error> {
        // Delivered bytes are counted in bytes of the file, like requested bytes.
        let (length, encoded) = self.lengths.get(&block).copied().unwrap_or((1, 1));
        let bytes = (data.len() as u64).saturating_mul(length) / encoded;
        self.epoch.replicas.delivered[self.epoch.replica.0 as usize].fetch_add(bytes, Ordering::Relaxed);
        match self.open.get_mut(&block) {
            Some(OpenBlock::Written { gate, .. }) => {
                let revoked = gate.revoked.lock();
                if *revoked { Ok(()) } else { self.blocks.data(block, offset, data) }
            }
            Some(OpenBlock::Small { data: whole, .. }) => {
                let start = offset as usize;
                let place = whole.get_mut(start..start + data.len());
                place.ok_or_else(|| crate::internal("a lane gave data beyond its block"))?.copy_from_slice(data);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn end(&mut self, block: u64, trailer: &[u8]) -> Result<(), Error> {
        self.lengths.remove(&block);
        match self.open.remove(&block) {
            Some(OpenBlock::Written { copy, gate }) => self.end_written(block, (copy, &gate), trailer),
            Some(OpenBlock::Compare { copy, index }) => {
                let (replica, digest, now) = (self.epoch.replica, digest_of(trailer)?, Instant::now());
                self.epoch.with_session(|s| s.handle_block(replica, copy, index, digest, Arrival::ReadPast, now));
                Ok(())
            }
            Some(OpenBlock::Small { copy, entry, slab, data }) => {
                let data = match &slab {
                    None => data,
                    Some(slab) => self.decoding.decode_or_zeros(slab, &data, entry.size as usize).to_vec(),
                };
                self.end_small(copy, &entry, &data, trailer)
            }
            Some(OpenBlock::Discard) | None => Ok(()),
        }
    }

    fn abandoned(&mut self, block: u64) -> Result<(), Error> {
        self.lengths.remove(&block);
        match self.open.remove(&block) {
            Some(OpenBlock::Written { copy, gate }) => {
                let revoked = gate.revoked.lock();
                let abandoned = self.blocks.abandoned(block);
                self.epoch.replicas.gates.lock().remove(&copy);
                drop(revoked);
                self.epoch.replicas.session.lock().handle_block_lost(copy, gate.index);
                self.epoch.replicas.wake().notify();
                abandoned
            }
            _ => Ok(()),
        }
    }
}

impl Drop for ReplicaLane {
    fn drop(&mut self) {
        let replicas = &self.epoch.replicas;
        for open in self.open.values() {
            if let OpenBlock::Written { copy, gate } = open {
                replicas.revoke(*copy);
                replicas.session.lock().handle_block_lost(*copy, gate.index);
            }
        }
        // Its blocks are available to other lanes again.
        replicas.receiver.lane_down(self.lane);
    }
}
