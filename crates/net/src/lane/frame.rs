//! Frames of a TCP lane: they carry control frames and blocks in one stream of bytes.
//!
//! Builds the heads of frames for the sender, and decodes frames for the receiver with a sans-IO [`FrameDecoder`].
//! Refuses to read control frames, headers and trailers, or hold the data of a block. Data leaves in the slices in
//! which it arrived.
//!
//! A frame is a head of 5 bytes and a payload. The head is the kind (1 byte) and the length of the payload in bytes
//! (unsigned 32 bits). All integers of the lane are little-endian.
//!
//! | kind | name | payload | length |
//! |---|---|---|---|
//! | 1 | CONTROL | a control frame of the session | 1 ..= 262,144 |
//! | 2 | BLOCK_BEGIN | length of the block's data (unsigned 64 bits), then the block's header | 8 ..= 8 + 131,072 |
//! | 3 | DATA | the next data of the block | 1 ..= 262,144 |
//! | 4 | BLOCK_END | the trailer of the block | 0 ..= 65,536 |
//! | 5 | ABANDON | nothing: the sender abandons the block | 0 |
//! | 6 | CLOSE | reason for closing the lane, UTF-8 | 0 ..= 1,024 |
//! | 7 | ALIVE | nothing: the sender of the frame is alive and has no data | 0 |
//!
//! Order: at most one block is open. BLOCK_BEGIN opens it. BLOCK_END closes it, and is valid only when exactly the
//! announced data has arrived. ABANDON also closes it, and is valid at any point. CONTROL and ALIVE are valid
//! anywhere, also between the DATA frames of a block. CLOSE is the last frame of a direction and abandons a block
//! that is still open. Any other order is an error and ends the lane.

use sterna_proto::Error;

use super::{BLOCK_BYTES_MAX, BLOCK_HEADER_BYTES_MAX, BLOCK_TRAILER_BYTES_MAX, CONTROL_FRAME_BYTES_MAX};

/// Length of the head of a frame, in bytes.
pub const HEAD_BYTES: usize = 5;

/// Most data in one DATA frame, in bytes. Reason: control frames can overtake after each DATA frame, every 42 ms at
/// 50 Mbit/s.
pub const DATA_FRAME_BYTES_MAX: usize = 256 << 10;

/// Longest reason for closing a lane, in bytes: one line of text for a user.
pub const CLOSE_REASON_BYTES_MAX: usize = 1024;

/// Length of the field in BLOCK_BEGIN that holds the length of the data, in bytes.
const DATA_LEN_BYTES: usize = 8;

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// Control frame of the session.
    Control = 1,
    /// Start of a block.
    BlockBegin = 2,
    /// Data of the open block.
    Data = 3,
    /// End of the open block, which is complete.
    BlockEnd = 4,
    /// End of the open block, which the sender abandons.
    Abandon = 5,
    /// End of the lane, which the sender closes.
    Close = 6,
    /// Sign of life of the sender.
    Alive = 7,
}

impl FrameKind {
    const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Control,
            2 => Self::BlockBegin,
            3 => Self::Data,
            4 => Self::BlockEnd,
            5 => Self::Abandon,
            6 => Self::Close,
            7 => Self::Alive,
            _ => return None,
        })
    }

    /// Returns the shortest and longest payload of this kind, in bytes.
    const fn length_range(self) -> (usize, usize) {
        match self {
            Self::Control => (1, CONTROL_FRAME_BYTES_MAX),
            Self::BlockBegin => (DATA_LEN_BYTES, DATA_LEN_BYTES + BLOCK_HEADER_BYTES_MAX),
            Self::Data => (1, DATA_FRAME_BYTES_MAX),
            Self::BlockEnd => (0, BLOCK_TRAILER_BYTES_MAX),
            Self::Abandon | Self::Alive => (0, 0),
            Self::Close => (0, CLOSE_REASON_BYTES_MAX),
        }
    }

    /// Returns true if a payload of `length` bytes is allowed.
    pub const fn allows(self, length: usize) -> bool {
        let (shortest, longest) = self.length_range();
        length >= shortest && length <= longest
    }

    /// Returns the head of a frame of this kind. Range: `length` must satisfy [`FrameKind::allows`].
    pub fn head(self, length: usize) -> [u8; HEAD_BYTES] {
        assert!(self.allows(length), "length {length} fits a {self:?} frame");
        let mut head = [self as u8; HEAD_BYTES];
        head[1..].copy_from_slice(&(length as u32).to_le_bytes());
        head
    }
}

/// Event of the decoder. Slices borrow from the input or from the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameEvent<'a> {
    /// Control frame.
    Control(&'a [u8]),
    /// Start of a block.
    BlockBegin {
        /// Number of the block on this lane, from 0.
        block: u64,
        /// Header of the block.
        header: &'a [u8],
        /// Length of the data that follows, in bytes.
        data_len: u64,
    },
    /// Data of the open block. One DATA frame may produce several of these events.
    Data {
        /// Number of the open block.
        block: u64,
        /// Offset of the data in the block, in bytes.
        offset: u64,
        /// Data, never empty.
        data: &'a [u8],
    },
    /// End of the open block, which is complete.
    BlockEnd {
        /// Number of the block that was open.
        block: u64,
        /// Trailer of the block.
        trailer: &'a [u8],
    },
    /// End of the open block, which the sender abandoned.
    Abandoned {
        /// Number of the block that was open.
        block: u64,
    },
    /// Close of the lane by the peer; no frame may follow.
    Closed {
        /// Reason that the peer sent: not escaped, not trusted.
        reason: &'a str,
    },
    /// Sign of life of the peer.
    Alive,
}

/// Decodes the bytes of a lane, in slices of any length, into events.
///
/// The events do not depend on how the stream is cut; only data comes in other slices. Memory: at most the longest
/// frame other than DATA.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    head: [u8; HEAD_BYTES],
    head_bytes: usize,
    /// Frame in progress, once its head is complete.
    frame: Option<Frame>,
    /// Payload of a frame that is returned whole but arrived in several slices.
    payload: Vec<u8>,
    /// True if `payload` was returned and the next call has to clear it.
    payload_given: bool,
    order: Order,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    kind: FrameKind,
    /// Bytes of the payload that have not arrived yet.
    missing: usize,
}

impl FrameDecoder {
    /// Creates a decoder for the start of a lane.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of the open block, if there is one.
    pub fn open_block(&self) -> Option<u64> {
        self.order.open.map(|block| block.number)
    }

    /// Returns the next event and takes the bytes that it needs from `input`. `None` means that more input is
    /// needed; `input` is then empty.
    ///
    /// Errors: the peer broke the protocol. The decoder cannot be used after an error.
    pub fn next<'e, 'i: 'e>(&'e mut self, input: &mut &'i [u8]) -> Result<Option<FrameEvent<'e>>, Error> {
        if std::mem::take(&mut self.payload_given) {
            self.payload.clear();
        }
        let Some(frame) = self.frame.map_or_else(|| self.read_head(input), |frame| Ok(Some(frame)))? else {
            return Ok(None);
        };
        let taken = frame.missing.min(input.len());
        if taken == 0 && frame.missing > 0 {
            return Ok(None);
        }
        let (bytes, rest) = input.split_at(taken);
        *input = rest;
        let missing = frame.missing - taken;
        self.frame = (missing > 0).then_some(Frame { missing, ..frame });
        if frame.kind == FrameKind::Data {
            return Ok(self.order.pass_data(bytes));
        }
        if missing == 0 && self.payload.is_empty() {
            return self.order.complete(frame.kind, bytes).map(Some);
        }
        self.payload.extend_from_slice(bytes);
        if missing > 0 {
            return Ok(None);
        }
        self.payload_given = true;
        self.order.complete(frame.kind, &self.payload).map(Some)
    }

    /// Reads the head of a frame and checks that the frame is allowed at this point.
    fn read_head(&mut self, input: &mut &[u8]) -> Result<Option<Frame>, Error> {
        let taken = (HEAD_BYTES - self.head_bytes).min(input.len());
        let (bytes, rest) = input.split_at(taken);
        self.head[self.head_bytes..][..taken].copy_from_slice(bytes);
        self.head_bytes += taken;
        *input = rest;
        if self.head_bytes < HEAD_BYTES {
            return Ok(None);
        }
        self.head_bytes = 0;
        let [code, length @ ..] = self.head;
        let length = u32::from_le_bytes(length);
        let kind = FrameKind::from_code(code)
            .ok_or_else(|| Error::protocol(format!("peer sent a frame of unknown kind {code}")))?;
        let missing = usize::try_from(length).unwrap_or(usize::MAX);
        if !kind.allows(missing) {
            return Err(Error::protocol(format!("peer announced {length} bytes for a {kind:?} frame")));
        }
        self.order.check(kind, u64::from(length))?;
        let frame = Frame { kind, missing };
        self.frame = Some(frame);
        Ok(Some(frame))
    }
}

/// State that decides which frame may come next: the open block, and if the peer has closed the lane.
#[derive(Debug, Default)]
struct Order {
    open: Option<OpenBlock>,
    blocks_begun: u64,
    closed: bool,
}

#[derive(Clone, Copy, Debug)]
struct OpenBlock {
    number: u64,
    data_len: u64,
    received: u64,
}

impl Order {
    /// Checks that a frame of this kind, with a payload of `length` bytes, is allowed at this point.
    fn check(&self, kind: FrameKind, length: u64) -> Result<(), Error> {
        let wrong = match (kind, self.open) {
            _ if self.closed => "sent more after it closed the lane".to_owned(),
            (FrameKind::BlockBegin, Some(_)) => "began a block while another is open".to_owned(),
            (FrameKind::Data | FrameKind::BlockEnd | FrameKind::Abandon, None) => {
                format!("sent a {kind:?} frame outside a block")
            }
            (FrameKind::Data, Some(block)) if block.data_len - block.received < length => {
                format!("sent data beyond the {} bytes of block {}", block.data_len, block.number)
            }
            (FrameKind::BlockEnd, Some(block)) if block.received < block.data_len => {
                format!("ended block {} after {} of {} bytes", block.number, block.received, block.data_len)
            }
            _ => return Ok(()),
        };
        Err(Error::protocol(format!("peer {wrong}")))
    }

    /// Returns the event for data of the open block. `check` has verified that the data fits.
    fn pass_data<'a>(&mut self, data: &'a [u8]) -> Option<FrameEvent<'a>> {
        let block = self.open.as_mut()?;
        let offset = block.received;
        block.received += data.len() as u64;
        Some(FrameEvent::Data { block: block.number, offset, data })
    }

    /// Returns the event for a frame whose payload is complete.
    fn complete<'a>(&mut self, kind: FrameKind, payload: &'a [u8]) -> Result<FrameEvent<'a>, Error> {
        let block = self.open.map_or(self.blocks_begun, |open| open.number);
        match kind {
            // Data does not reach this line: `next` passes it on as it arrives.
            FrameKind::Control | FrameKind::Data => Ok(FrameEvent::Control(payload)),
            FrameKind::BlockBegin => {
                let (data_len, header) = payload
                    .split_first_chunk::<DATA_LEN_BYTES>()
                    .ok_or_else(|| Error::protocol("peer sent a block without a length"))?;
                let data_len = u64::from_le_bytes(*data_len);
                if data_len > BLOCK_BYTES_MAX {
                    return Err(Error::protocol(format!("peer announced a block of {data_len} bytes")));
                }
                self.open = Some(OpenBlock { number: block, data_len, received: 0 });
                self.blocks_begun += 1;
                Ok(FrameEvent::BlockBegin { block, header, data_len })
            }
            FrameKind::BlockEnd => {
                self.open = None;
                Ok(FrameEvent::BlockEnd { block, trailer: payload })
            }
            FrameKind::Abandon => {
                self.open = None;
                Ok(FrameEvent::Abandoned { block })
            }
            FrameKind::Alive => Ok(FrameEvent::Alive),
            FrameKind::Close => {
                let reason = std::str::from_utf8(payload)
                    .map_err(|_| Error::protocol("peer closed the lane with a reason that is not UTF-8"))?;
                self.closed = true;
                Ok(FrameEvent::Closed { reason })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sterna_seeded::{Seeded, for_seeds};

    use super::*;

    /// Events in a form that does not depend on how data was cut: adjacent data of a block is joined.
    #[derive(Clone, Debug, PartialEq, Eq)]
    enum Seen {
        Control(Vec<u8>),
        Begin(u64, Vec<u8>, u64),
        Data(u64, u64, Vec<u8>),
        End(u64, Vec<u8>),
        Abandoned(u64),
        Closed(String),
        Alive,
        Error(String),
    }

    fn decode<'a>(slices: impl Iterator<Item = &'a [u8]>) -> Vec<Seen> {
        let mut decoder = FrameDecoder::new();
        let mut seen = Vec::new();
        for mut slice in slices {
            loop {
                match decoder.next(&mut slice) {
                    Ok(None) => break,
                    Ok(Some(event)) => note(&mut seen, event),
                    Err(error) => {
                        seen.push(Seen::Error(error.to_string()));
                        return seen;
                    }
                }
            }
            assert!(slice.is_empty(), "the decoder takes all input before it asks for more");
        }
        seen
    }

    fn note(seen: &mut Vec<Seen>, event: FrameEvent<'_>) {
        match event {
            FrameEvent::Control(frame) => seen.push(Seen::Control(frame.to_vec())),
            FrameEvent::BlockBegin { block, header, data_len } => {
                seen.push(Seen::Begin(block, header.to_vec(), data_len));
            }
            FrameEvent::Data { block, offset, data } => {
                assert!(!data.is_empty());
                match seen.last_mut() {
                    Some(Seen::Data(b, o, so_far)) if *b == block && *o + so_far.len() as u64 == offset => {
                        so_far.extend_from_slice(data);
                    }
                    _ => seen.push(Seen::Data(block, offset, data.to_vec())),
                }
            }
            FrameEvent::BlockEnd { block, trailer } => seen.push(Seen::End(block, trailer.to_vec())),
            FrameEvent::Abandoned { block } => seen.push(Seen::Abandoned(block)),
            FrameEvent::Closed { reason } => seen.push(Seen::Closed(reason.to_owned())),
            FrameEvent::Alive => seen.push(Seen::Alive),
        }
    }

    fn frame(kind: FrameKind, payload: &[u8]) -> Vec<u8> {
        [&kind.head(payload.len()), payload].concat()
    }

    fn begin(data_len: u64, header: &[u8]) -> Vec<u8> {
        frame(FrameKind::BlockBegin, &[&data_len.to_le_bytes(), header].concat())
    }

    /// Returns a stream with every kind of frame and with lengths at the edges.
    fn sample() -> Vec<u8> {
        [
            frame(FrameKind::Control, b"hello"),
            begin(0, b""),
            frame(FrameKind::BlockEnd, b""),
            begin(7, b"head"),
            frame(FrameKind::Data, b"abc"),
            frame(FrameKind::Control, b"between"),
            frame(FrameKind::Alive, b""),
            frame(FrameKind::Data, b"defg"),
            frame(FrameKind::BlockEnd, b"trailer"),
            begin(3, &[7; 300]),
            frame(FrameKind::Data, b"x"),
            frame(FrameKind::Abandon, b""),
            begin(1, b""),
            frame(FrameKind::Close, "done, danke schön".as_bytes()),
        ]
        .concat()
    }

    #[test]
    fn every_split_of_the_stream_yields_the_same_events() {
        let stream = sample();
        let whole = decode(std::iter::once(stream.as_slice()));
        assert_eq!(whole.len(), 14, "{whole:?}");
        assert_eq!(whole.last(), Some(&Seen::Closed("done, danke schön".to_owned())));
        for cut in 0..=stream.len() {
            let (a, b) = stream.split_at(cut);
            assert_eq!(decode([a, b].into_iter()), whole, "cut at {cut}");
        }
        for length in 1..40 {
            assert_eq!(decode(stream.chunks(length)), whole, "slices of {length}");
        }
    }

    #[test]
    fn damaged_streams_are_errors_or_events_but_the_same_for_every_split() {
        for_seeds("damaged_streams_are_errors_or_events_but_the_same_for_every_split", 4000, |seed| {
            let mut random = Seeded::new(seed);
            let mut stream = sample();
            for _ in 0..=random.below(4) {
                let at = random.index(stream.len());
                if stream.len() < 2 {
                    break;
                }
                match random.below(4) {
                    0 => stream[at] = random.draw() as u8,
                    1 => stream[at] ^= 1 << random.below(8),
                    2 => drop(stream.remove(at)),
                    _ => stream.truncate(at.max(1)),
                }
            }
            let whole = decode(std::iter::once(stream.as_slice()));
            let length = 1 + random.index(9);
            let cut = decode(stream.chunks(length));
            // In both cases, data before an error is recorded as far as it arrived.
            assert_eq!(cut, whole, "slices of {length}");
        });
    }

    #[test]
    fn wrong_orders_and_lengths_are_refused_by_name() {
        let head = |kind: u8, length: u32| [&[kind][..], &length.to_le_bytes()].concat();
        let cases: [(Vec<u8>, &str); 16] = [
            (head(0, 0), "unknown kind 0"),
            (head(8, 1), "unknown kind 8"),
            (head(7, 1), "announced 1 bytes for a Alive frame"),
            (head(1, 0), "announced 0 bytes for a Control frame"),
            (head(1, CONTROL_FRAME_BYTES_MAX as u32 + 1), "announced 262145 bytes for a Control"),
            (head(1, u32::MAX), "announced 4294967295 bytes for a Control"),
            (head(2, 7), "announced 7 bytes for a BlockBegin"),
            (head(2, (8 + BLOCK_HEADER_BYTES_MAX) as u32 + 1), "bytes for a BlockBegin"),
            (begin(BLOCK_BYTES_MAX + 1, b""), "announced a block of 16777217 bytes"),
            (frame(FrameKind::Data, b"x"), "Data frame outside a block"),
            (frame(FrameKind::BlockEnd, b""), "BlockEnd frame outside a block"),
            (frame(FrameKind::Abandon, b""), "Abandon frame outside a block"),
            ([begin(1, b""), begin(1, b"")].concat(), "began a block while another is open"),
            ([begin(1, b""), frame(FrameKind::Data, b"xy")].concat(), "beyond the 1 bytes of block 0"),
            (
                [begin(2, b""), frame(FrameKind::Data, b"x"), frame(FrameKind::BlockEnd, b"")].concat(),
                "after 1 of 2 bytes",
            ),
            ([frame(FrameKind::Close, b""), frame(FrameKind::Control, b"x")].concat(), "more after it closed"),
        ];
        for (stream, expected) in cases {
            let seen = decode(std::iter::once(stream.as_slice()));
            let Some(Seen::Error(text)) = seen.last() else { panic!("{expected}: {seen:?}") };
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn the_longest_frames_pass_and_memory_stays_bounded() {
        let mut decoder = FrameDecoder::new();
        let stream = [
            frame(FrameKind::Control, &[1; CONTROL_FRAME_BYTES_MAX]),
            begin(BLOCK_BYTES_MAX, &[2; BLOCK_HEADER_BYTES_MAX]),
            frame(FrameKind::Data, &[3; DATA_FRAME_BYTES_MAX]).repeat(64),
            frame(FrameKind::BlockEnd, &[4; BLOCK_TRAILER_BYTES_MAX]),
        ]
        .concat();
        let mut ended = false;
        for mut slice in stream.chunks(10_007) {
            while let Some(event) = decoder.next(&mut slice).unwrap() {
                ended = matches!(event, FrameEvent::BlockEnd { block: 0, .. });
            }
        }
        assert!(ended);
        assert!(decoder.payload.capacity() <= 2 * CONTROL_FRAME_BYTES_MAX, "{}", decoder.payload.capacity());
    }
}
