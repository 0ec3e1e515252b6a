//! Packet memory of one direction: a ring that holds packets in order of arrival until the last use of each.

use std::collections::VecDeque;

use crate::packet::{OFFLOAD_HEADER_BYTES, PACKET_BYTES_MAX, Shape};

/// Largest record: the kernel's header and the longest packet.
pub(crate) const RECORD_BYTES_MAX: usize = OFFLOAD_HEADER_BYTES + PACKET_BYTES_MAX;

/// A ring of packets, allocated once. Memory pages are touched only as far as they are used.
///
/// A packet that stays longer than its neighbours (held back for reordering) blocks the memory after it until it
/// leaves.
pub(crate) struct PacketRing {
    bytes: Box<[u8]>,
    /// Start of the next record.
    tail: usize,
    records: VecDeque<Record>,
    /// Number of the oldest record in `records`.
    first: u64,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    start: usize,
    len: usize,
    shape: Shape,
    uses: u32,
}

impl PacketRing {
    /// Creates a ring that holds at least four records of the largest size.
    pub(crate) fn new(capacity_bytes: usize) -> Self {
        let capacity = capacity_bytes.max(4 * RECORD_BYTES_MAX);
        Self { bytes: vec![0; capacity].into_boxed_slice(), tail: 0, records: VecDeque::new(), first: 0 }
    }

    /// Returns room for the largest record, or `None` when the ring is full.
    pub(crate) fn spare(&mut self) -> Option<&mut [u8]> {
        let Some(oldest) = self.records.front() else {
            self.tail = 0;
            return Some(&mut self.bytes[..RECORD_BYTES_MAX]);
        };
        let head = oldest.start;
        if self.tail > head {
            if self.bytes.len() - self.tail < RECORD_BYTES_MAX {
                if head <= RECORD_BYTES_MAX {
                    return None;
                }
                self.tail = 0;
            }
        } else if head - self.tail <= RECORD_BYTES_MAX {
            return None;
        }
        Some(&mut self.bytes[self.tail..self.tail + RECORD_BYTES_MAX])
    }

    /// Keeps the first `len` bytes of the room from [`PacketRing::spare`], for `uses` calls of [`PacketRing::release`].
    pub(crate) fn keep(&mut self, len: usize, shape: Shape, uses: u32) -> u64 {
        assert!(len <= RECORD_BYTES_MAX, "a record is within the spare room");
        let id = self.first + self.records.len() as u64;
        self.records.push_back(Record { start: self.tail, len, shape, uses });
        self.tail += len.max(1);
        id
    }

    /// Returns the bytes of record `id`, starting with the kernel's header, and its shape.
    pub(crate) fn record(&self, id: u64) -> (&[u8], Shape) {
        let record = &self.records[(id - self.first) as usize];
        (&self.bytes[record.start..record.start + record.len], record.shape)
    }

    /// Ends `uses` uses of record `id`.
    pub(crate) fn release(&mut self, id: u64, uses: u32) {
        let record = &mut self.records[(id - self.first) as usize];
        assert!(record.uses >= uses, "a record is released as often as it was used");
        record.uses -= uses;
        while self.records.front().is_some_and(|oldest| oldest.uses == 0) {
            self.records.pop_front();
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::random::Random;
    use crate::packet::Transport;

    const SHAPE: Shape =
        Shape { network_bytes: 20, header_bytes: 20, segment_bytes: 0, payload_bytes: 0, transport: Transport::Other };

    fn keep(ring: &mut PacketRing, len: usize, uses: u32) -> Option<u64> {
        let id = ring.first + ring.records.len() as u64;
        ring.spare()?[..len].fill(id as u8);
        assert_eq!(ring.keep(len, SHAPE, uses), id);
        Some(id)
    }

    #[test]
    fn records_keep_their_bytes_until_their_last_use_in_whatever_order_they_go() {
        let mut random = Random::new(3, 0);
        let mut ring = PacketRing::new(5 * RECORD_BYTES_MAX);
        let mut live: Vec<(u64, usize, u32)> = Vec::new();
        let mut full = 0;
        for _ in 0..20_000 {
            let len = random.up_to(RECORD_BYTES_MAX as u64) as usize;
            let uses = 1 + random.up_to(2) as u32;
            match keep(&mut ring, len, uses) {
                Some(id) => live.push((id, len, uses)),
                None => full += 1,
            }
            while live.len() > 8 || (!live.is_empty() && random.up_to(2) == 0) {
                let index = random.up_to(live.len().min(3) as u64 - 1) as usize;
                let (id, len, uses) = &mut live[index];
                let (bytes, _) = ring.record(*id);
                assert!(bytes.len() == *len && bytes.iter().all(|byte| *byte == *id as u8), "record {id}");
                ring.release(*id, 1);
                *uses -= 1;
                if *uses == 0 {
                    live.remove(index);
                }
            }
        }
        assert!((200..18_000).contains(&full), "the ring was full {full} times");
    }

    #[test]
    fn a_full_ring_says_so_and_has_room_again_after_the_oldest_is_gone() {
        let mut ring = PacketRing::new(0);
        let ids: Vec<u64> = std::iter::from_fn(|| keep(&mut ring, RECORD_BYTES_MAX, 1)).take(100).collect();
        assert_eq!(ids.len(), 4);
        ring.release(ids[1], 1);
        assert!(ring.spare().is_none(), "what lies before it still holds the memory");
        ring.release(ids[0], 1);
        assert!(ring.spare().is_some());
    }
}
