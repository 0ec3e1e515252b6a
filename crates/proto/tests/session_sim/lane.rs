//! A lane in virtual time: two pipes, each reliable until it is cut.
//!
//! The model covers the guarantees of TCP and QUIC, not the protocols. A lost item is sent again after a retransmission
//! time, a duplicate counts once, and items of a stream are delivered in order. The session therefore sees loss,
//! reordering and duplication only as delay and as order between lanes (and between blocks on a QUIC lane).
//!
//! The path below is the lab's [`Wire`]. An item is one packet, with its size scaled down to fit.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use sterna_lab::model::{Direction, Flow, LinkModel, Queue, Verdict, Wire};
use sterna_proto::session::{BlockClaim, BlockTask, FileId, LaneId};
use sterna_proto::{ByteCount, FileEntry};

/// Items that travel on a lane. Their bytes are encoded, so that every run also uses the parsers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    Hello,
    Frame(Vec<u8>),
    /// Header and first half of the data.
    Begin {
        block: u64,
        header: Vec<u8>,
        data_len: u64,
    },
    /// Second half of the data and the trailer; `intact` is true for each file whose bytes match the digest.
    End {
        block: u64,
        intact: Vec<bool>,
    },
    Abandon {
        block: u64,
    },
}

#[derive(Default)]
struct Stream {
    sent: u64,
    given: u64,
    early: BTreeMap<u64, Item>,
}

/// One direction of a lane.
pub struct Pipe {
    wire: Wire<(u64, u64)>,
    model_rtt: Duration,
    bytes_per_unit: u64,
    /// Items in flight, by stream and position.
    under_way: BTreeMap<(u64, u64), (Item, usize)>,
    streams: BTreeMap<u64, Stream>,
    again: BinaryHeap<Reverse<(Duration, u64, u64)>>,
    /// True if each block has a separate stream (QUIC); otherwise all blocks share one stream (TCP).
    stream_per_block: bool,
    /// After the cut: the number of items that the sender has passed to the lane without knowing about the cut.
    swallowed: Option<usize>,
}

/// Largest item in units: the size of one packet in the lab.
const UNITS_MAX: u64 = 9000;

impl Pipe {
    pub fn new(direction: Direction, model_rtt: Duration, bytes_per_unit: u64, stream_per_block: bool) -> Self {
        Self {
            wire: Wire::new(direction),
            model_rtt,
            bytes_per_unit,
            under_way: BTreeMap::new(),
            streams: BTreeMap::new(),
            again: BinaryHeap::new(),
            stream_per_block,
            swallowed: None,
        }
    }

    pub fn send(&mut self, now: Duration, item: Item, bytes: u64) {
        if let Some(swallowed) = &mut self.swallowed {
            *swallowed += 1;
            return;
        }
        let id = match &item {
            Item::Begin { block, .. } | Item::End { block, .. } | Item::Abandon { block } if self.stream_per_block => {
                block + 1
            }
            _ => 0,
        };
        let stream = self.streams.entry(id).or_default();
        let place = stream.sent;
        stream.sent += 1;
        let units = (40 + bytes.div_ceil(self.bytes_per_unit)).min(UNITS_MAX) as usize;
        self.under_way.insert((id, place), (item, units));
        self.offer(now, id, place, units);
    }

    fn offer(&mut self, now: Duration, stream: u64, place: u64, units: usize) {
        if let Verdict::Drop(_) = self.wire.offer(now, units, Flow::udp(0), (stream, place)) {
            // As a rule, a loss is detected after one round trip.
            self.again.push(Reverse((now + self.model_rtt + self.model_rtt / 2, stream, place)));
        }
    }

    /// Returns the number of items that were sent and have not arrived.
    pub fn load(&self) -> usize {
        self.swallowed.unwrap_or(self.under_way.len())
    }

    pub fn poll_timeout(&self) -> Option<Duration> {
        let again = self.again.peek().map(|Reverse((at, _, _))| *at);
        [again, self.wire.poll_timeout()].into_iter().flatten().min()
    }

    /// Returns the items that have arrived by `now` and are next in their stream.
    pub fn poll(&mut self, now: Duration) -> Vec<Item> {
        while let Some(Reverse((at, stream, place))) = self.again.peek().copied() {
            if at > now {
                break;
            }
            self.again.pop();
            let units = self.under_way.get(&(stream, place)).map_or(40, |(_, units)| *units);
            self.offer(now, stream, place, units);
        }
        let mut given = Vec::new();
        while let Some((id, place)) = self.wire.poll(now) {
            // A duplicate of an item that has arrived is dropped here.
            let Some((item, _)) = self.under_way.remove(&(id, place)) else { continue };
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            stream.early.insert(place, item);
            while let Some(item) = stream.early.remove(&stream.given) {
                stream.given += 1;
                given.push(item);
            }
        }
        given
    }

    /// Cuts the lane: nothing in flight arrives.
    pub fn cut(&mut self) {
        self.under_way.clear();
        self.again.clear();
        self.streams.clear();
        self.swallowed = Some(0);
    }
}

/// A block that the feeder of a lane has begun.
pub struct Sending {
    pub task: BlockTask,
    pub block: u64,
    pub data_len: u64,
    /// Versions of the sources at the time when their bytes were read.
    pub versions: Vec<i64>,
}

/// A block that arrives on a lane.
pub enum Open {
    /// A part of a block, on which nothing depends.
    Tail {
        file: FileId,
        offset: u64,
        claim: BlockClaim,
    },
    Single {
        file: FileId,
        entry: FileEntry,
        index: u64,
        claim: BlockClaim,
    },
    Packed {
        files: Vec<(FileId, FileEntry, BlockClaim)>,
    },
}

/// One lane with the state of both ends.
pub struct Lane {
    pub dialler: usize,
    /// Number of the lane at each end. The agent assigns its number on receipt of the hello.
    pub sender_id: Option<LaneId>,
    pub receiver_id: Option<LaneId>,
    pub sender_up: bool,
    pub receiver_up: bool,
    pub to_receiver: Pipe,
    pub to_sender: Pipe,
    /// True once nothing passes any more, even if the ends have not noticed.
    pub cut: bool,
    /// True if an end that is over has closed the lane. The other end notices after all items have arrived.
    pub closed_by_sender: bool,
    pub closed_by_receiver: bool,
    pub hello_seen: bool,
    /// Items that arrived before the hello (QUIC), or that wait behind a file that is being looked up.
    pub inbox: VecDeque<Item>,
    /// The file whose look-up blocks the lane.
    pub waits_for: Option<FileId>,
    pub sending: Option<Sending>,
    pub open: BTreeMap<u64, Open>,
    pub next_block: u64,
}

impl Lane {
    pub fn new(dialler: usize, model: &LinkModel, bytes_per_unit: u64, stream_per_block: bool) -> Self {
        let pipe = |direction| Pipe::new(direction, model.rtt, bytes_per_unit, stream_per_block);
        Self {
            dialler,
            sender_id: None,
            receiver_id: None,
            sender_up: false,
            receiver_up: false,
            to_receiver: pipe(Direction::forward(model)),
            to_sender: pipe(Direction::reverse(model)),
            cut: false,
            closed_by_sender: false,
            closed_by_receiver: false,
            hello_seen: false,
            inbox: VecDeque::new(),
            waits_for: None,
            sending: None,
            open: BTreeMap::new(),
            next_block: 0,
        }
    }

    /// Cuts both directions: nothing passes any more, and nothing in flight arrives.
    pub fn cut(&mut self) {
        self.cut = true;
        self.to_receiver.cut();
        self.to_sender.cut();
    }

    pub fn is_dead(&self) -> bool {
        !self.sender_up && !self.receiver_up && (self.cut || self.closed_by_sender || self.closed_by_receiver)
    }
}

/// Returns a queue that never overflows, because a lane does not send more than its window.
pub fn endless_queue() -> Queue {
    Queue::Bytes(ByteCount(1 << 40))
}
