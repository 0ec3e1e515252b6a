//! Stretches: the units in which a block travels on QUIC streams, and their reassembly. Sans-IO.
//!
//! A block is cut into stretches of [`STRETCH_BYTES`], each on a separate stream. Reason: the engine keeps one
//! entry per received packet of a stream until it is read. At about 2048 entries it ends the *connection* ("too
//! many gaps"), with or without gaps. A sink that stalls would end its lane with the third megabyte of a block.

use std::collections::HashMap;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use sterna_proto::{Error, RangeSet};

use crate::lane::{BLOCK_BYTES_MAX, BLOCK_HEADER_BYTES_MAX, BLOCK_TRAILER_BYTES_MAX, LaneSink};

/// Prefix of each stretch on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefix {
    /// Number of the block on this lane and in this direction, from 0.
    pub(super) block: u64,
    /// Length of the data of the whole block, in bytes.
    pub(super) data_len: u64,
    /// Index of the stretch, from 0; [`ABANDONED`] abandons the block.
    pub(super) index: u32,
    /// Length of the header that follows, in bytes; 0 except for the first stretch.
    pub(super) header_len: usize,
}

impl Prefix {
    /// Returns the offset of the stretch's data in the block.
    pub(super) fn offset(&self) -> u64 {
        u64::from(self.index) * STRETCH_BYTES
    }

    /// Returns the length of the stretch's data.
    pub(super) fn length(&self) -> u64 {
        if self.index == ABANDONED { 0 } else { self.data_len.saturating_sub(self.offset()).min(STRETCH_BYTES) }
    }

    fn is_last(&self) -> bool {
        self.index != ABANDONED && self.offset() + self.length() == self.data_len
    }

    /// Returns the bytes on the wire, with room for a header behind them.
    pub(super) fn write(&self) -> BytesMut {
        let mut bytes = BytesMut::with_capacity(PREFIX_BYTES + self.header_len);
        bytes.put_u64(self.block);
        bytes.put_u64(self.data_len);
        bytes.put_u32(self.index);
        bytes.put_u32(self.header_len as u32);
        bytes
    }

    fn read(mut bytes: &[u8]) -> Result<Self, Error> {
        let (block, data_len) = (bytes.get_u64(), bytes.get_u64());
        let (index, header_len) = (bytes.get_u32(), bytes.get_u32() as usize);
        let stretches = data_len.div_ceil(STRETCH_BYTES).max(1);
        let header_max = if index == 0 { BLOCK_HEADER_BYTES_MAX } else { 0 };
        let known = index == ABANDONED || u64::from(index) < stretches;
        if block > BLOCK_NUMBER_MAX || data_len > BLOCK_BYTES_MAX || header_len > header_max || !known {
            let text = format!("stretch {index} of block {block} of {data_len} bytes with a header of {header_len}");
            return Err(Error::protocol(text));
        }
        Ok(Self { block, data_len, index, header_len })
    }
}

/// Splits one stream into prefix, header, data and trailer.
#[derive(Default)]
pub(super) struct StretchReading {
    /// Bytes that arrived before the header was complete.
    head: Vec<u8>,
    prefix: Option<Prefix>,
    front: Option<(Prefix, Vec<u8>)>,
    rest: Option<StretchRest>,
}

impl StretchReading {
    /// Takes the next bytes of the stream; returns their number. Adds data to `pieces`, with its offset in the
    /// block.
    pub(super) fn take(&mut self, mut bytes: Bytes, pieces: &mut Vec<(u64, Bytes)>) -> Result<usize, Error> {
        let length = bytes.len();
        if self.rest.is_none() {
            self.take_head(&mut bytes)?;
        }
        if let Some(rest) = &mut self.rest {
            rest.take(bytes, pieces)?;
        }
        Ok(length)
    }

    /// Reads as much of the prefix and the header as has arrived.
    fn take_head(&mut self, bytes: &mut Bytes) -> Result<(), Error> {
        loop {
            let wanted = PREFIX_BYTES + self.prefix.map_or(0, |prefix| prefix.header_len);
            let now = bytes.len().min(wanted - self.head.len());
            self.head.extend_from_slice(&bytes.split_to(now));
            if self.head.len() < wanted {
                return Ok(());
            }
            let Some(prefix) = self.prefix else {
                self.prefix = Some(Prefix::read(&self.head)?);
                continue;
            };
            self.front = Some((prefix, self.head.split_off(PREFIX_BYTES)));
            self.head = Vec::new();
            self.rest = Some(StretchRest::new(&prefix));
            return Ok(());
        }
    }

    /// Returns the prefix and the header, once.
    pub(super) fn take_front(&mut self) -> Option<(Prefix, Vec<u8>)> {
        self.front.take()
    }

    /// Returns the number of bytes that wait: for the rest of the header, or as a trailer for the end of the
    /// stream.
    pub(super) fn held_bytes(&self) -> usize {
        self.head.len() + self.rest.as_ref().map_or(0, |rest| rest.trailer.len())
    }

    /// Returns the trailer, when the stream has ended.
    pub(super) fn finish(self) -> Result<Vec<u8>, Error> {
        match self.rest {
            Some(rest) => rest.finish(),
            None => Err(Error::protocol("a stretch ended inside its header")),
        }
    }
}

/// Data and trailer, which follow the header.
struct StretchRest {
    /// Offset of the data in the block.
    block_offset: u64,
    data_len: u64,
    trailer_max: usize,
    data_got: u64,
    trailer: Vec<u8>,
}

impl StretchRest {
    fn new(prefix: &Prefix) -> Self {
        let trailer_max = if prefix.is_last() { BLOCK_TRAILER_BYTES_MAX } else { 0 };
        let (block_offset, data_len) = (prefix.offset(), prefix.length());
        Self { block_offset, data_len, trailer_max, data_got: 0, trailer: Vec::new() }
    }

    fn take(&mut self, mut data: Bytes, pieces: &mut Vec<(u64, Bytes)>) -> Result<(), Error> {
        let here = usize::try_from(self.data_len - self.data_got).unwrap_or(usize::MAX).min(data.len());
        if here > 0 {
            pieces.push((self.block_offset + self.data_got, data.split_to(here)));
            self.data_got += here as u64;
        }
        if self.trailer.len() + data.len() > self.trailer_max {
            return Err(Error::protocol(format!("a trailer beyond {} bytes", self.trailer_max)));
        }
        self.trailer.extend_from_slice(&data);
        Ok(())
    }

    fn finish(self) -> Result<Vec<u8>, Error> {
        if self.data_got != self.data_len {
            let text = format!("a stretch of {} bytes ended after {}", self.data_len, self.data_got);
            return Err(Error::protocol(text));
        }
        Ok(self.trailer)
    }
}

/// Content of a stretch that has arrived.
pub(super) enum Arrival {
    /// Prefix, and with the first stretch the header of the block.
    Front(Prefix, Vec<u8>),
    /// Number of the block, and data by offset in it.
    Data(u64, Vec<(u64, Bytes)>),
    /// End of the stretch; the last stretch brings the trailer of the block.
    End(Prefix, Vec<u8>),
}

/// Blocks in progress on a lane. Converts what arrives on stretches into the calls of a sink.
#[derive(Default)]
pub(super) struct Blocks {
    open: HashMap<u64, OpenBlock>,
    /// Blocks that have ended or were abandoned. Later data for them is dropped, so that no number stands for two
    /// blocks.
    closed: RangeSet,
    held_bytes: usize,
}

struct OpenBlock {
    data_len: u64,
    begun: bool,
    /// Stretches that have started, one bit each: none may arrive twice.
    stretches: u32,
    ended: u32,
    held: Vec<(u64, Bytes)>,
    trailer: Vec<u8>,
}

impl Blocks {
    /// Passes content of a stretch to the sink.
    ///
    /// Errors: those of the sink, and `Protocol` when the peer breaks the protocol.
    pub(super) fn handle(&mut self, arrival: Arrival, sink: &mut dyn LaneSink) -> Result<(), Error> {
        match arrival {
            Arrival::Front(prefix, header) => self.handle_front(prefix, &header, sink),
            Arrival::Data(block, pieces) => self.handle_data(block, pieces, sink),
            Arrival::End(prefix, trailer) => self.handle_end(prefix, trailer, sink),
        }
    }

    fn handle_front(&mut self, prefix: Prefix, header: &[u8], sink: &mut dyn LaneSink) -> Result<(), Error> {
        let Prefix { block, data_len, index, .. } = prefix;
        if index == ABANDONED {
            return self.abandon(block, sink);
        }
        if self.closed.contains(block) {
            return Ok(());
        }
        if self.open.len() >= OPEN_BLOCKS_MAX && !self.open.contains_key(&block) {
            return Err(Error::protocol(format!("more than {OPEN_BLOCKS_MAX} blocks under way on one lane")));
        }
        let open = self.open.entry(block).or_insert_with(|| OpenBlock {
            data_len,
            begun: false,
            stretches: 0,
            ended: 0,
            held: Vec::new(),
            trailer: Vec::new(),
        });
        // In range: a block has at most 16 stretches, which `Prefix::read` has checked.
        let bit = 1u32 << index;
        if open.data_len != data_len || open.stretches & bit != 0 {
            return Err(Error::protocol(format!("stretch {index} of block {block} came twice, or does not fit")));
        }
        open.stretches |= bit;
        if index == 0 {
            open.begun = true;
            let held = std::mem::take(&mut open.held);
            sink.block_begin(block, header, data_len)?;
            for (offset, data) in held {
                self.held_bytes -= data.len();
                sink.block_data(block, offset, &data)?;
            }
        }
        Ok(())
    }

    fn handle_data(&mut self, block: u64, pieces: Vec<(u64, Bytes)>, sink: &mut dyn LaneSink) -> Result<(), Error> {
        let Some(open) = self.open.get_mut(&block) else { return Ok(()) };
        if open.begun {
            return pieces.iter().try_for_each(|(offset, data)| sink.block_data(block, *offset, data));
        }
        self.held_bytes += pieces.iter().map(|(_, data)| data.len()).sum::<usize>();
        open.held.extend(pieces);
        self.check_held()
    }

    fn handle_end(&mut self, prefix: Prefix, trailer: Vec<u8>, sink: &mut dyn LaneSink) -> Result<(), Error> {
        let Some(open) = self.open.get_mut(&prefix.block).filter(|_| prefix.index != ABANDONED) else { return Ok(()) };
        open.ended += 1;
        if prefix.is_last() {
            open.trailer = trailer;
            self.held_bytes += open.trailer.len();
        }
        if u64::from(open.ended) < open.data_len.div_ceil(STRETCH_BYTES).max(1) {
            return self.check_held();
        }
        match self.close(prefix.block)? {
            Some(OpenBlock { trailer, .. }) => sink.block_end(prefix.block, &trailer),
            None => Ok(()),
        }
    }

    fn abandon(&mut self, block: u64, sink: &mut dyn LaneSink) -> Result<(), Error> {
        match self.close(block)? {
            Some(open) if open.begun => sink.block_abandoned(block),
            _ => Ok(()),
        }
    }

    /// Removes a block and marks its number as used, so that no other block gets it. Errors: the peer skips too
    /// many numbers.
    fn close(&mut self, block: u64) -> Result<Option<OpenBlock>, Error> {
        self.closed.insert_from_peer(block..block + 1)?;
        let open = self.open.remove(&block);
        let held = |open: &OpenBlock| open.trailer.len() + open.held.iter().map(|(_, data)| data.len()).sum::<usize>();
        self.held_bytes -= open.as_ref().map_or(0, held);
        Ok(open)
    }

    fn check_held(&self) -> Result<(), Error> {
        if self.held_bytes > HELD_BYTES_MAX {
            return Err(Error::protocol(
                "too much came before the headers of its blocks, or trailers before their data",
            ));
        }
        Ok(())
    }
}

/// Data of one stretch, in bytes. Reason: at 1200 bytes per packet it makes 912 of the engine's 2048 entries.
pub(super) const STRETCH_BYTES: u64 = 1 << 20;

/// Length of the prefix of a stretch, in bytes.
pub(super) const PREFIX_BYTES: usize = 24;

/// Index that abandons a block.
pub(super) const ABANDONED: u32 = u32::MAX;

/// Blocks that a peer may have in progress at once on a lane: as many as streams.
const OPEN_BLOCKS_MAX: usize = 1024;

/// Largest number of a block. Reason: a connection has at most that many streams (RFC 9000, section 4.6).
const BLOCK_NUMBER_MAX: u64 = (1 << 60) - 1;

/// Bytes of data that may wait for the headers of its blocks, and of trailers that may wait for their data. Reason:
/// four of the largest blocks without their first packet.
const HELD_BYTES_MAX: usize = 64 << 20;

/// Step of a peer that a fuzzer generates: bytes on one of its streams, which may end with them.
pub(crate) struct FuzzStep<'a> {
    /// Number of the stream.
    pub(crate) stream: u8,
    /// Restarts the stream with the prefix of this stretch, if given: block, length of its data, index, length of
    /// its header.
    pub(crate) front: Option<(u64, u64, u32, u32)>,
    /// Next bytes of the stream.
    pub(crate) bytes: &'a [u8],
    /// Number of zeros after these bytes, at most the length of a stretch.
    pub(crate) zeros: usize,
    /// True if the stream ends.
    pub(crate) ends: bool,
}

/// Processes the bytes of a peer as `receive` does, and checks the calls of the sink against their contract.
pub(crate) fn fuzz<'a>(steps: impl IntoIterator<Item = FuzzStep<'a>>) -> Result<(), Error> {
    static ZEROS: [u8; STRETCH_BYTES as usize] = [0; STRETCH_BYTES as usize];
    let (mut blocks, mut sink) = (Blocks::default(), FuzzSink::default());
    let mut streams: HashMap<u8, (StretchReading, Option<Prefix>)> = HashMap::new();
    for FuzzStep { stream, front, bytes, zeros, ends } in steps {
        let mut piece = BytesMut::new();
        if let Some((block, data_len, index, header_len)) = front {
            streams.remove(&stream);
            piece.put_u64(block);
            piece.put_u64(data_len);
            piece.put_u32(index);
            piece.put_u32(header_len);
        }
        piece.extend_from_slice(bytes);
        let (reading, known) = streams.entry(stream).or_default();
        let mut pieces = Vec::new();
        reading.take(piece.freeze(), &mut pieces)?;
        reading.take(Bytes::from_static(&ZEROS[..zeros.min(ZEROS.len())]), &mut pieces)?;
        if let Some((prefix, header)) = reading.take_front() {
            *known = Some(prefix);
            blocks.handle(Arrival::Front(prefix, header), &mut sink)?;
        }
        if let (Some(prefix), false) = (*known, pieces.is_empty()) {
            blocks.handle(Arrival::Data(prefix.block, pieces), &mut sink)?;
        }
        if ends && let Some((reading, Some(prefix))) = streams.remove(&stream) {
            blocks.handle(Arrival::End(prefix, reading.finish()?), &mut sink)?;
        }
        let waiting =
            |open: &OpenBlock| open.trailer.len() + open.held.iter().map(|(_, data)| data.len()).sum::<usize>();
        assert_eq!(blocks.held_bytes, blocks.open.values().map(waiting).sum::<usize>());
    }
    Ok(())
}

/// Sink that checks the contract of [`LaneSink`].
#[derive(Default)]
struct FuzzSink {
    /// Ranges that have arrived of each open block, and the length of the block.
    open: HashMap<u64, (RangeSet, u64)>,
    closed: RangeSet,
}

impl FuzzSink {
    fn close(&mut self, block: u64) -> (RangeSet, u64) {
        self.closed.insert(block..block + 1);
        self.open.remove(&block).unwrap_or_else(|| panic!("block {block} ended and was never open"))
    }
}

impl LaneSink for FuzzSink {
    fn control(&mut self, _: &[u8]) -> Result<(), Error> {
        Ok(())
    }

    fn block_begin(&mut self, block: u64, header: &[u8], data_len: u64) -> Result<(), Error> {
        assert!(header.len() <= BLOCK_HEADER_BYTES_MAX && data_len <= BLOCK_BYTES_MAX);
        assert!(!self.closed.contains(block), "block {block} came back");
        assert!(self.open.insert(block, (RangeSet::new(), data_len)).is_none(), "block {block} began twice");
        Ok(())
    }

    fn block_data(&mut self, block: u64, offset: u64, data: &[u8]) -> Result<(), Error> {
        let range = offset..offset + data.len() as u64;
        let (arrived, data_len) =
            self.open.get_mut(&block).unwrap_or_else(|| panic!("data of block {block}, not open"));
        assert!(range.end <= *data_len, "{range:?} of block {block} of {data_len} bytes");
        assert_eq!(arrived.within(range.clone()).count(), 0, "{range:?} of block {block} twice");
        arrived.insert(range);
        Ok(())
    }

    fn block_end(&mut self, block: u64, trailer: &[u8]) -> Result<(), Error> {
        assert!(trailer.len() <= BLOCK_TRAILER_BYTES_MAX);
        let (arrived, data_len) = self.close(block);
        assert_eq!(arrived.len(), data_len, "block {block} ended before its data was there");
        Ok(())
    }

    fn block_abandoned(&mut self, block: u64) -> Result<(), Error> {
        self.close(block);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(block: u64, data_len: u64, index: u32, header_len: usize) -> Prefix {
        Prefix { block, data_len, index, header_len }
    }

    #[test]
    fn prefix_header_data_and_trailer_are_distinguished_wherever_the_stream_is_cut() {
        let mut stream = prefix(7, 5, 0, 4).write().to_vec();
        stream.extend(b"headabcdetrailer");
        let stream: &'static [u8] = stream.leak();
        for cuts in [&[0, 40][..], &[0, 1, 5, 24, 25, 28, 32, 36, 40], &[0, 26, 40], &[0, 28, 33, 40], &[0, 33, 40]] {
            let mut reading = StretchReading::default();
            let mut pieces = Vec::new();
            for cut in cuts.windows(2) {
                let bytes = Bytes::from_static(&stream[cut[0]..cut[1]]);
                assert_eq!(reading.take(bytes, &mut pieces).unwrap(), cut[1] - cut[0]);
                let held = if cut[1] < 28 { cut[1] } else { cut[1].saturating_sub(33) };
                assert_eq!(reading.held_bytes(), held);
            }
            assert_eq!(reading.take_front(), Some((prefix(7, 5, 0, 4), b"head".to_vec())), "{cuts:?}");
            assert_eq!(reading.take_front(), None);
            let data: Vec<u8> = pieces.iter().flat_map(|(_, piece)| piece.to_vec()).collect();
            assert_eq!(data, b"abcde", "{cuts:?}");
            let offsets: Vec<u64> = pieces.iter().map(|(offset, _)| *offset).collect();
            assert!(offsets.is_sorted() && offsets[0] == 0, "{cuts:?}");
            assert_eq!(reading.finish().unwrap(), b"trailer", "{cuts:?}");
        }
    }

    #[test]
    fn a_stretch_that_ends_early_or_runs_on_is_refused() {
        let stream: &'static [u8] = prefix(0, 5, 0, 0).write().to_vec().leak();
        let take = |reading: &mut StretchReading, bytes| reading.take(Bytes::from_static(bytes), &mut Vec::new());
        let mut reading = StretchReading::default();
        take(&mut reading, &stream[..11]).unwrap();
        assert!(reading.finish().is_err());
        let mut reading = StretchReading::default();
        take(&mut reading, stream).unwrap();
        take(&mut reading, b"abcd").unwrap();
        let beyond: &'static [u8] = vec![0; 2 + BLOCK_TRAILER_BYTES_MAX].leak();
        assert!(take(&mut reading, beyond).is_err());
        let mut short = StretchReading::default();
        take(&mut short, stream).unwrap();
        take(&mut short, b"abcd").unwrap();
        assert!(short.finish().is_err());
    }

    #[test]
    fn prefixes_beyond_the_limits_are_refused() {
        let largest = BLOCK_BYTES_MAX;
        for good in [prefix(0, 0, 0, 9), prefix(1, largest, 15, 0), prefix(2, 1, ABANDONED, 0)] {
            assert_eq!(Prefix::read(&good.write()).unwrap(), good);
        }
        for bad in [
            prefix(0, largest + 1, 0, 0),
            prefix(0, largest, 16, 0),
            prefix(0, 0, 1, 0),
            prefix(0, STRETCH_BYTES, 1, 0),
            prefix(0, largest, 1, 1),
            prefix(0, 0, 0, BLOCK_HEADER_BYTES_MAX + 1),
            prefix(0, u64::MAX, u32::MAX - 1, 0),
            prefix(u64::MAX, 0, 0, 0),
        ] {
            assert!(Prefix::read(&bad.write()).is_err(), "{bad:?}");
        }
    }

    /// Records the calls that it gets.
    #[derive(Default)]
    struct Calls(Vec<String>);

    impl LaneSink for Calls {
        fn control(&mut self, _frame: &[u8]) -> Result<(), Error> {
            Ok(())
        }
        fn block_begin(&mut self, block: u64, _header: &[u8], data_len: u64) -> Result<(), Error> {
            self.0.push(format!("begin {block} {data_len}"));
            Ok(())
        }
        fn block_data(&mut self, block: u64, offset: u64, data: &[u8]) -> Result<(), Error> {
            self.0.push(format!("data {block} {offset}+{}", data.len()));
            Ok(())
        }
        fn block_end(&mut self, block: u64, trailer: &[u8]) -> Result<(), Error> {
            self.0.push(format!("end {block} {}", trailer.len()));
            Ok(())
        }
        fn block_abandoned(&mut self, block: u64) -> Result<(), Error> {
            self.0.push(format!("abandoned {block}"));
            Ok(())
        }
    }

    const TWO: u64 = STRETCH_BYTES + 3;

    #[test]
    fn a_later_stretch_that_comes_first_waits_for_the_header() {
        let (mut blocks, mut calls) = (Blocks::default(), Calls::default());
        let piece = |offset, bytes: &'static [u8]| Arrival::Data(4, vec![(offset, Bytes::from_static(bytes))]);
        for arrival in [
            Arrival::Front(prefix(4, TWO, 1, 0), vec![]),
            piece(STRETCH_BYTES, b"xyz"),
            Arrival::End(prefix(4, TWO, 1, 0), b"trailer".to_vec()),
            Arrival::Front(prefix(4, TWO, 0, 2), b"hd".to_vec()),
            piece(0, b"a"),
            Arrival::End(prefix(4, TWO, 0, 2), vec![]),
        ] {
            blocks.handle(arrival, &mut calls).unwrap();
        }
        assert_eq!(calls.0, ["begin 4 1048579", "data 4 1048576+3", "data 4 0+1", "end 4 7"]);
        assert!(blocks.open.is_empty() && blocks.held_bytes == 0);
    }

    #[test]
    fn what_comes_of_an_abandoned_block_is_dropped() {
        let (mut blocks, mut calls) = (Blocks::default(), Calls::default());
        for arrival in [
            Arrival::Front(prefix(4, TWO, 0, 0), vec![]),
            Arrival::Front(prefix(4, TWO, ABANDONED, 0), vec![]),
            Arrival::Front(prefix(4, TWO, 1, 0), vec![]),
            Arrival::Data(4, vec![(0, Bytes::from_static(b"x"))]),
            Arrival::Front(prefix(5, TWO, ABANDONED, 0), vec![]),
        ] {
            blocks.handle(arrival, &mut calls).unwrap();
        }
        assert_eq!(calls.0, [format!("begin 4 {TWO}"), "abandoned 4".to_owned()]);
    }

    #[test]
    fn a_number_never_stands_for_two_blocks() {
        let (mut blocks, mut calls) = (Blocks::default(), Calls::default());
        let data = |offset| Arrival::Data(4, vec![(offset, Bytes::from_static(b"x"))]);
        // A stretch of the first block is still in progress when a shorter block uses its number.
        blocks.handle(Arrival::Front(prefix(4, TWO, 1, 0), vec![]), &mut calls).unwrap();
        for block in 0..1000 {
            blocks.handle(Arrival::Front(prefix(block, 0, ABANDONED, 0), vec![]), &mut calls).unwrap();
        }
        blocks.handle(Arrival::Front(prefix(4, 1, 0, 0), vec![]), &mut calls).unwrap();
        blocks.handle(data(STRETCH_BYTES), &mut calls).unwrap();
        // The end of the abandon notice is not the end of a stretch.
        blocks.handle(Arrival::Front(prefix(2000, TWO, 0, 0), vec![]), &mut calls).unwrap();
        for _ in 0..2 {
            blocks.handle(Arrival::End(prefix(2000, TWO, ABANDONED, 0), vec![]), &mut calls).unwrap();
        }
        assert_eq!(calls.0, [format!("begin 2000 {TWO}")]);
        // Skipped numbers are stored, and their count is limited.
        let skip = |block: u64| Arrival::Front(prefix(2 * block, 0, ABANDONED, 0), vec![]);
        assert!((0..1 << 20).try_for_each(|block| blocks.handle(skip(block), &mut calls)).is_err());
    }

    #[test]
    fn trailers_that_wait_for_their_data_have_an_end() {
        let (mut blocks, mut calls) = (Blocks::default(), Calls::default());
        let flood = (0..OPEN_BLOCKS_MAX as u64).try_for_each(|block| {
            blocks.handle(Arrival::Front(prefix(block, TWO, 1, 0), vec![]), &mut calls)?;
            blocks.handle(Arrival::End(prefix(block, TWO, 1, 0), vec![0; BLOCK_TRAILER_BYTES_MAX + 1]), &mut calls)
        });
        assert!(flood.is_err());
        let mut reading = StretchReading::default();
        let stream: &'static [u8] = prefix(0, 0, 0, 0).write().to_vec().leak();
        reading.take(Bytes::from_static(stream), &mut Vec::new()).unwrap();
        reading.take(Bytes::from_static(b"trailer"), &mut Vec::new()).unwrap();
        assert_eq!(reading.held_bytes(), 7);
    }

    #[test]
    fn a_peer_that_lies_about_stretches_is_refused() {
        let (mut blocks, mut calls) = (Blocks::default(), Calls::default());
        blocks.handle(Arrival::Front(prefix(4, TWO, 1, 0), vec![]), &mut calls).unwrap();
        assert!(blocks.handle(Arrival::Front(prefix(4, TWO, 1, 0), vec![]), &mut calls).is_err(), "twice");
        assert!(blocks.handle(Arrival::Front(prefix(4, TWO + 1, 0, 0), vec![]), &mut calls).is_err(), "other length");
        let mut flood = Ok(());
        for block in 0..2 * OPEN_BLOCKS_MAX as u64 {
            flood = flood.and(blocks.handle(Arrival::Front(prefix(block, TWO, 1, 0), vec![]), &mut Calls::default()));
        }
        assert!(flood.is_err());
        let mut blocks = Blocks::default();
        blocks.handle(Arrival::Front(prefix(0, TWO, 1, 0), vec![]), &mut calls).unwrap();
        let piece = Bytes::from(vec![0; 1 << 20]);
        let held = (0..=64).try_for_each(|_| blocks.handle(Arrival::Data(0, vec![(0, piece.clone())]), &mut calls));
        assert!(held.is_err());
    }
}
