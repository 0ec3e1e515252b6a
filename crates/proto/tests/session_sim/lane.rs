//! A lane in virtual time: two pipes, each reliable until it is cut.
//!
//! What TCP and QUIC promise is modelled, not TCP and QUIC: an item that the path loses is sent again after a
//! retransmission time, one that comes twice counts once, items of a stream are given out in order. What the session sees
//! of loss, reordering and duplication is therefore delay, and order between lanes (and between the blocks of a QUIC lane).
//! The path beneath is the lab's [`Wire`]; an item is one packet of it, with bytes scaled down so that it fits.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::time::Duration;

use sterna_lab::model::{Direction, Flow, LinkModel, Queue, Verdict, Wire};
use sterna_proto::session::{BlockClaim, BlockTask, FileId, LaneId};
use sterna_proto::{ByteCount, FileEntry};

/// What travels on a lane. Bytes are encoded, so that every run goes through the parsers too.
#[derive(Clone, Debug)]
pub enum Item {
    Hello,
    Frame(Vec<u8>),
    /// Header and the first half of the data.
    Begin {
        block: u64,
        header: Vec<u8>,
        data_len: u64,
    },
    /// The second half of the data and the trailer: whether each file's bytes match it.
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
    /// Items under way by stream and place.
    under_way: HashMap<(u64, u64), (Item, usize)>,
    streams: HashMap<u64, Stream>,
    again: BinaryHeap<Reverse<(Duration, u64, u64)>>,
    /// Each block has a stream of its own (QUIC); otherwise all share one (TCP).
    stream_per_block: bool,
    /// Once the lane is cut: what its sender has given it since, without knowing.
    swallowed: Option<usize>,
}

/// Largest item in units: what one packet of the lab holds.
const UNITS_MAX: u64 = 9000;

impl Pipe {
    pub fn new(direction: Direction, model_rtt: Duration, bytes_per_unit: u64, stream_per_block: bool) -> Self {
        Self {
            wire: Wire::new(direction),
            model_rtt,
            bytes_per_unit,
            under_way: HashMap::new(),
            streams: HashMap::new(),
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
            // Found missing after a round trip, as a rule.
            self.again.push(Reverse((now + self.model_rtt + self.model_rtt / 2, stream, place)));
        }
    }

    /// How many items are sent and have not arrived.
    pub fn load(&self) -> usize {
        self.swallowed.unwrap_or(self.under_way.len())
    }

    pub fn poll_timeout(&self) -> Option<Duration> {
        let again = self.again.peek().map(|Reverse((at, _, _))| *at);
        [again, self.wire.poll_timeout()].into_iter().flatten().min()
    }

    /// Items that have arrived by `now` and whose turn it is.
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
            // A copy of what has arrived is dropped here.
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

    /// The lane is cut: nothing that is under way arrives.
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
    /// Versions of the sources as their bytes were read.
    pub versions: Vec<i64>,
}

/// A block that a lane brings.
pub enum Open {
    /// Part of a block, which nothing counts on.
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

/// One lane, seen from both ends.
pub struct Lane {
    pub keeper: usize,
    /// What each end calls it; the agent's is known from the hello on.
    pub sender_id: Option<LaneId>,
    pub receiver_id: Option<LaneId>,
    pub sender_up: bool,
    pub receiver_up: bool,
    pub to_receiver: Pipe,
    pub to_sender: Pipe,
    /// Nothing passes any more, whatever the ends believe.
    pub cut: bool,
    /// An end that is over has closed it; the other end hears when all has arrived.
    pub closed_by_sender: bool,
    pub closed_by_receiver: bool,
    pub hello_seen: bool,
    /// What came before the hello (QUIC) or waits behind a file that is looked up.
    pub inbox: VecDeque<Item>,
    /// The file whose look-up holds up the lane.
    pub waits_for: Option<FileId>,
    pub sending: Option<Sending>,
    pub open: HashMap<u64, Open>,
    pub next_block: u64,
}

impl Lane {
    pub fn new(keeper: usize, model: &LinkModel, bytes_per_unit: u64, stream_per_block: bool) -> Self {
        let pipe = |direction| Pipe::new(direction, model.rtt, bytes_per_unit, stream_per_block);
        Self {
            keeper,
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
            open: HashMap::new(),
            next_block: 0,
        }
    }

    /// Nothing passes any more, and nothing that is under way arrives.
    pub fn cut(&mut self) {
        self.cut = true;
        self.to_receiver.cut();
        self.to_sender.cut();
    }

    pub fn is_dead(&self) -> bool {
        !self.sender_up && !self.receiver_up && (self.cut || self.closed_by_sender || self.closed_by_receiver)
    }
}

/// A queue that never overflows: a lane does not send more than its window.
pub fn endless_queue() -> Queue {
    Queue::Bytes(ByteCount(1 << 40))
}
