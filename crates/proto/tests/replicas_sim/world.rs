//! The receiver's host, hosts with one replica each, and the paths between them, in steps of virtual time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use sterna_proto::session::{
    Arrival, BlockClaim, BlockOrder, BlockTask, BlockUse, CONTROL, CopyId, FileId, FileOutcome, Frame, LINGER_DEFAULT,
    LaneId, PrepareOutcome, RecvEvent, RecvSession, ReplicaAccount, ReplicaEvent, ReplicaId, ReplicaPlan,
    ReplicaSession, SendSession, corrupt_block,
};
use sterna_proto::{
    Checks, EntryKind, Error, ErrorKind, FileDigests, FileEntry, FileTime, Phase, RangeSet, RelPath, Retry, Scope,
};
use sterna_seeded::Seeded;

/// Length of one step of time.
const STEP: Duration = Duration::from_millis(5);

const FILE: FileId = FileId(0);

/// Content of a correct block.
const RIGHT: u8 = 1;

/// Result of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Done,
    Failed,
    TooLate,
}

/// Properties of a host with a replica.
#[derive(Clone)]
pub struct Host {
    bytes_per_step: u64,
    delay: Duration,
    size: Option<u64>,
    wrong: Option<Range<u64>>,
    stuck_after: Option<Duration>,
    /// Mean time between failures, and the time away after each, in ms.
    dies: Option<(u64, u64)>,
    is_there: bool,
    /// True if the file is replaced by another one while the host is away.
    changes: bool,
    version: u64,
}

impl Host {
    /// Returns a host that sends at this rate, in Mbit/s, with a round-trip time of 20 ms.
    pub fn at(megabits: u64) -> Self {
        let bytes_per_step = megabits * 1_000_000 / 8 * STEP.as_millis() as u64 / 1000;
        let delay = Duration::from_millis(10);
        let (is_there, changes, version) = (true, false, 1);
        Self {
            bytes_per_step,
            delay,
            size: None,
            wrong: None,
            stuck_after: None,
            dies: None,
            is_there,
            changes,
            version,
        }
    }

    pub fn with_rtt(self, ms: u64) -> Self {
        Self { delay: Duration::from_micros(ms * 500), ..self }
    }

    pub fn with_size(self, size: u64) -> Self {
        Self { size: Some(size), ..self }
    }

    /// Makes all blocks from this one on differ.
    pub fn wrong_from(self, block: u64) -> Self {
        Self { wrong: Some(block..u64::MAX), ..self }
    }

    /// Makes this block differ.
    pub fn wrong_at(self, block: u64) -> Self {
        Self { wrong: Some(block..block + 1), ..self }
    }

    /// Makes the host stop sending after this time, while its lanes stay up.
    pub fn stuck_after(self, time: Duration) -> Self {
        Self { stuck_after: Some(time), ..self }
    }

    pub fn dying_every(self, mean_ms: u64, away_ms: u64) -> Self {
        Self { dies: Some((mean_ms, away_ms)), ..self }
    }

    /// Makes the host return from its first failure with another file of the same size.
    pub fn changing(self) -> Self {
        Self { changes: true, ..self }
    }

    /// Makes the host unreachable.
    pub fn never(self) -> Self {
        Self { is_there: false, ..self }
    }

    fn content(&self, block: u64, number: usize) -> [u8; 32] {
        let is_wrong = self.wrong.as_ref().is_some_and(|wrong| wrong.contains(&block));
        [if is_wrong { 100 + number as u8 } else { RIGHT }; 32]
    }
}

/// Items in flight to the receiver's host.
enum Item {
    Frame(Frame),
    Begin { block: u64, entry: FileEntry },
    End { block: u64, digest: [u8; 32] },
}

/// The only lane of a host, while it is up.
#[derive(Default)]
struct Lane {
    id: u32,
    /// The receiver's lane that represents this lane.
    inner: u32,
    sending: Option<(u64, u64, FileEntry)>,
    forth: VecDeque<(Instant, Item)>,
    back: VecDeque<(Instant, Frame)>,
    /// Blocks that have begun to arrive.
    open: BTreeMap<u64, (CopyId, BlockUse)>,
}

struct Place {
    host: Host,
    sender: Option<SendSession>,
    lane: Option<Lane>,
    away_until: Option<Instant>,
    delivered: u64,
}

pub struct World {
    seeded: Seeded,
    /// Time until which the thread between both state machines does not run.
    late_until: Instant,
    begun: Instant,
    now: Instant,
    size: u64,
    places: Vec<Place>,
    session: ReplicaSession,
    receiver: RecvSession,
    is_expected: bool,
    /// Content of the disk, by block.
    disk: BTreeMap<u64, [u8; 32]>,
    left: RangeSet,
    revoked: BTreeSet<CopyId>,
    copies: BTreeMap<CopyId, (u32, u64)>,
    numbers: u32,
    sent_bytes: u64,
    outcome: Option<bool>,
    said: Vec<String>,
}

impl World {
    pub fn new(seed: u64, size: u64, hosts: Vec<Host>) -> Self {
        Self::with(seed, size, hosts, false)
    }

    /// Creates a world in which the digest of the file is known.
    pub fn expecting(seed: u64, size: u64, hosts: Vec<Host>) -> Self {
        Self::with(seed, size, hosts, true)
    }

    fn with(seed: u64, size: u64, hosts: Vec<Host>, is_expected: bool) -> Self {
        let now = Instant::now();
        let plan = ReplicaPlan {
            names: (0..hosts.len()).map(|number| format!("replica {number}")).collect(),
            path: RelPath::new(b"f").unwrap(),
            is_expected,
            linger: LINGER_DEFAULT,
            seed,
        };
        let mut receiver = RecvSession::new(LINGER_DEFAULT);
        receiver.withhold_files();
        receiver.handle_lane_up(CONTROL);
        let place = |host| Place { host, sender: None, lane: None, away_until: None, delivered: 0 };
        Self {
            seeded: Seeded::new(seed ^ 0x5eed),
            late_until: now,
            begun: now,
            now,
            size,
            places: hosts.into_iter().map(place).collect(),
            session: ReplicaSession::new(plan),
            receiver,
            is_expected,
            disk: BTreeMap::new(),
            left: RangeSet::default(),
            revoked: BTreeSet::new(),
            copies: BTreeMap::new(),
            numbers: 0,
            sent_bytes: 0,
            outcome: None,
            said: Vec::new(),
        }
    }

    /// Stores blocks that an earlier run received from this host.
    pub fn leave(&mut self, host: usize, blocks: Range<u64>) {
        for block in blocks.clone() {
            self.disk.insert(block, self.places[host].host.content(block, host));
        }
        self.left.insert(blocks);
    }

    /// Runs until the copy has ended.
    pub fn run(&mut self, most: Duration) -> Ending {
        while self.outcome.is_none() || !self.session.is_over() {
            if self.elapsed() > most {
                return Ending::TooLate;
            }
            self.step();
        }
        if self.outcome == Some(true) { Ending::Done } else { Ending::Failed }
    }

    fn step(&mut self) {
        self.now += STEP;
        for number in 0..self.places.len() {
            self.live(number);
            self.send(number);
            self.arrive(number);
            self.answer(number);
            let (id, delivered) = (ReplicaId(number as u32), self.places[number].delivered);
            self.session.handle_delivered(id, delivered, self.now);
        }
        self.session.handle_timeout(self.now);
        self.carry();
    }

    /// Starts, fails and restarts the host.
    fn live(&mut self, number: usize) {
        let (id, place) = (ReplicaId(number as u32), &mut self.places[number]);
        if !place.host.is_there {
            if place.away_until.is_none() {
                place.away_until = Some(self.now);
                let error = Error::new(ErrorKind::Unreachable, Scope::Path, Phase::Prepare, "nobody there");
                self.session.handle_left(id, &error.retry(Retry::After), self.now);
            }
            return;
        }
        if self.session.is_dropped(id) && self.session.is_left(id) || self.session.is_over() {
            return;
        }
        if place.lane.is_none() && place.away_until.is_none_or(|until| self.now >= until) {
            // A restarted process, or a lane that was dialled again.
            if place.sender.is_none() || self.seeded.below(2) == 0 {
                if place.sender.is_some() && place.host.changes {
                    (place.host.wrong, place.host.version) = (Some(0..u64::MAX), 2);
                }
                place.sender = Some(sender(&place.host, number, self.size));
                self.session.handle_joined(id, self.now);
            }
            let lane = Lane { id: self.numbers, inner: self.numbers + 1, ..Lane::default() };
            self.numbers += 1;
            place.sender.iter_mut().for_each(|sender| sender.handle_lane_up(LaneId(lane.id)));
            self.session.handle_lane_up(id, LaneId(lane.id));
            place.lane = Some(lane);
        }
        let Some((mean, away)) = place.host.dies else { return };
        // A host whose file changes before anyone has received data from it is a replica that differs.
        if place.host.changes && place.delivered == 0 {
            return;
        }
        if place.lane.is_some() && self.seeded.below(mean) < STEP.as_millis() as u64 {
            place.away_until = Some(self.now + Duration::from_millis(away));
            let Some(lane) = place.lane.take() else { return };
            place.sender.iter_mut().for_each(|sender| sender.handle_lane_down(LaneId(lane.id), self.now));
            for (block, (copy, _)) in &lane.open {
                self.session.handle_block_lost(*copy, *block);
            }
            self.receiver.handle_lane_down(LaneId(lane.inner), self.now);
            self.session.handle_lane_down(id, LaneId(lane.id), self.now);
        }
    }

    /// Sends as much as the host may send on its lane.
    fn send(&mut self, number: usize) {
        let (now, place) = (self.now, &mut self.places[number]);
        let (Some(sender), Some(lane)) = (&mut place.sender, &mut place.lane) else { return };
        let arrives = now + place.host.delay;
        while let Some(frame) = sender.poll_frame(LaneId(lane.id)) {
            lane.forth.push_back((arrives, Item::Frame(frame)));
        }
        if place.host.stuck_after.is_some_and(|after| now >= self.begun + after) {
            return;
        }
        let mut room = place.host.bytes_per_step;
        while room > 0 {
            let Some((block, left, entry)) = &mut lane.sending else {
                let Some(BlockTask::Single { entry, index, .. }) = sender.next_block(LaneId(lane.id)) else { return };
                lane.forth.push_back((arrives, Item::Begin { block: index, entry: entry.clone() }));
                lane.sending = Some((index, entry.blocks().length(index), entry));
                continue;
            };
            let now_sent = room.min(*left);
            (room, *left) = (room - now_sent, *left - now_sent);
            self.sent_bytes += now_sent;
            place.delivered += now_sent;
            if *left == 0 {
                let digest = place.host.content(*block, number);
                // A file of another size also has different content.
                let digest = if entry.size == self.size { digest } else { [200; 32] };
                lane.forth.push_back((arrives, Item::End { block: *block, digest }));
                lane.sending = None;
            }
        }
    }

    /// Processes the items that have arrived.
    fn arrive(&mut self, number: usize) {
        let id = ReplicaId(number as u32);
        while let Some(item) = self.next_item(number) {
            let Some(lane) = &mut self.places[number].lane else { return };
            match item {
                Item::Frame(Frame::Messages { first, encoded }) => {
                    self.session.handle_messages(id, first, &encoded, self.now).unwrap();
                }
                Item::Frame(Frame::Acknowledge { next }) => {
                    self.session.handle_acknowledgement(id, next, self.now).unwrap();
                }
                Item::Frame(_) => {}
                Item::Begin { block, entry } => {
                    let copy = CopyId(self.copies.len() as u64);
                    self.copies.insert(copy, (lane.inner, block));
                    let mut taken = self.session.handle_begun(id, copy, &entry, block).unwrap();
                    if let BlockUse::Take { instead_of } = taken {
                        let inner = LaneId(lane.inner);
                        lane.open.insert(block, (copy, taken));
                        let is_late = instead_of.is_some_and(|other| self.finish_just_now(other, block));
                        instead_of.filter(|_| !is_late).into_iter().for_each(|other| self.revoke(other));
                        taken = BlockUse::Take { instead_of: None };
                        if self.receiver.claim(inner, FILE, block) == BlockClaim::Discard {
                            assert!(
                                is_late,
                                "block {block} of {number} was to be written, and the receiver does not want it"
                            );
                            taken = self.session.handle_refused(id, copy, block);
                        }
                    }
                    let Some(lane) = &mut self.places[number].lane else { return };
                    lane.open.insert(block, (copy, taken));
                }
                Item::End { block, digest } => self.end_block(number, block, digest),
            }
        }
    }

    fn next_item(&mut self, number: usize) -> Option<Item> {
        let now = self.now;
        let lane = self.places[number].lane.as_mut()?;
        let due = lane.forth.front().is_some_and(|(at, _)| *at <= now);
        if due { lane.forth.pop_front().map(|(_, item)| item) } else { None }
    }

    fn end_block(&mut self, number: usize, block: u64, digest: [u8; 32]) {
        let Some(lane) = &mut self.places[number].lane else { return };
        let opened = lane.open.remove(&block).filter(|(_, taken)| *taken != BlockUse::Discard);
        let Some((copy, taken)) = opened else { return };
        let inner = LaneId(lane.inner);
        let mut arrival = Arrival::ReadPast;
        if matches!(taken, BlockUse::Take { .. }) && !self.revoked.contains(&copy) {
            let file = self.session.file().unwrap().clone();
            // Some blocks are corrupt, at random.
            let is_sound = self.seeded.below(200) > 0;
            let verified = if is_sound { Ok(()) } else { Err(corrupt_block(&file, block)) };
            if is_sound {
                self.disk.insert(block, digest);
            }
            self.receiver.handle_block(inner, FILE, block, verified);
            arrival = if self.receiver.has_block(FILE, block) { Arrival::Written } else { Arrival::Corrupt };
            self.copies.insert(copy, (u32::MAX, block));
        }
        self.session.handle_block(ReplicaId(number as u32), copy, block, digest, arrival, self.now);
    }

    /// Randomly completes a copy just before its revocation. Returns true if it did.
    fn finish_just_now(&mut self, copy: CopyId, block: u64) -> bool {
        let holds = |place: &Place| {
            place.lane.as_ref().is_some_and(|lane| lane.open.get(&block).is_some_and(|open| open.0 == copy))
        };
        let Some(number) = self.places.iter().position(holds).filter(|_| self.seeded.chance(300)) else { return false };
        let digest = self.places[number].host.content(block, number);
        self.end_block(number, block, digest);
        true
    }

    fn revoke(&mut self, copy: CopyId) {
        if let Some((inner, block)) = self.copies.get(&copy).filter(|(inner, _)| *inner != u32::MAX) {
            self.receiver.release_claim(LaneId(*inner), FILE, *block);
            self.revoked.insert(copy);
        }
    }

    /// Sends the frames of the receiver's host back to the sender.
    fn answer(&mut self, number: usize) {
        let (id, now, place) = (ReplicaId(number as u32), self.now, &mut self.places[number]);
        let (Some(sender), Some(lane)) = (&mut place.sender, &mut place.lane) else { return };
        while let Some(frame) = self.session.poll_frame(id, LaneId(lane.id)) {
            lane.back.push_back((now + place.host.delay, frame));
        }
        while lane.back.front().is_some_and(|(at, _)| *at <= now) {
            match lane.back.pop_front() {
                Some((_, Frame::Messages { first, encoded })) => sender.handle_messages(first, &encoded).unwrap(),
                Some((_, Frame::Acknowledge { next })) => sender.handle_acknowledgement(next).unwrap(),
                _ => {}
            }
        }
        while sender.poll_event().is_some() {}
        sender.handle_timeout(now);
    }

    /// Carries frames between both state machines of the receiver's host, and executes their requests.
    fn carry(&mut self) {
        for _ in 0..4 {
            while let Some(event) = self.session.poll_event() {
                match event {
                    ReplicaEvent::Chosen(_) => {}
                    ReplicaEvent::Notice(text) => self.said.push(text),
                    ReplicaEvent::Revoke(copy) => self.revoke(copy),
                    ReplicaEvent::TakeBack(blocks) => self.take_back(&blocks),
                    ReplicaEvent::Release => self.receiver.release(FILE),
                    ReplicaEvent::PassOn(_) => panic!("no file is small"),
                }
            }
            while let Some(frame) = self.session.poll_receiver_frame() {
                match frame {
                    Frame::Messages { first, encoded } => self.receiver.handle_messages(first, &encoded).unwrap(),
                    Frame::Acknowledge { next } => self.receiver.handle_acknowledgement(next).unwrap(),
                    _ => {}
                }
            }
            while let Some(event) = self.receiver.poll_event() {
                self.serve(event);
            }
            self.receiver.handle_timeout(self.now);
            // The thread may be late. Then the frames of the receiver arrive all at once.
            if self.now >= self.late_until && self.seeded.chance(30) {
                self.late_until = self.now + Duration::from_millis(self.seeded.below(400));
            }
            while self.now >= self.late_until
                && let Some(frame) = self.receiver.poll_frame(CONTROL, self.now)
            {
                self.session.handle_receiver_frame(frame).unwrap();
            }
            self.session.handle_timeout(self.now);
        }
    }

    fn serve(&mut self, event: RecvEvent) {
        match event {
            RecvEvent::Prepare { file, .. } => {
                let ready = PrepareOutcome::Ready { have: self.left.clone(), notice: None };
                self.receiver.handle_prepared(file, ready);
            }
            RecvEvent::Recheck { file } => self.receiver.handle_rechecked(file, &RangeSet::default(), None),
            RecvEvent::Discard { file } => self.receiver.handle_discarded(file),
            RecvEvent::Publish { file } => self.publish(file),
            RecvEvent::Settled { outcome, .. } => {
                if let FileOutcome::Failed(error) = &outcome {
                    self.said.push(error.chain());
                }
                self.outcome = Some(matches!(outcome, FileOutcome::Done(_)));
            }
            RecvEvent::Finish { .. } => self.receiver.handle_finished(),
            RecvEvent::Notice(text) => panic!("a notice without a cause: {text}"),
            RecvEvent::Unreadable(error) | RecvEvent::Aborted(error) => {
                self.said.push(error.chain());
                self.outcome.get_or_insert(false);
            }
        }
    }

    fn publish(&mut self, file: FileId) {
        if self.is_expected && !self.is_right() {
            if let Some(blocks) = self.session.handle_wrong(self.now) {
                return self.take_back(&blocks);
            }
            let error = Error::new(ErrorKind::Corrupt, Scope::Source, Phase::Verify, "another digest is expected");
            return self.receiver.handle_published(file, Err(error));
        }
        self.receiver.handle_published(file, Ok(FileDigests::of(b"", Checks::NONE)));
    }

    fn take_back(&mut self, blocks: &RangeSet) {
        for block in blocks.iter().flatten() {
            self.disk.remove(&block);
        }
        let asked = self.receiver.take_back(FILE, blocks);
        self.session.handle_taken_back(blocks, &asked);
    }

    /// Returns true if every block is present and correct.
    pub fn is_right(&self) -> bool {
        let count = self.session.file().map_or(0, |file| file.blocks().count());
        self.disk.len() as u64 == count && self.disk.values().all(|content| *content == [RIGHT; 32])
    }

    pub fn accounts(&self) -> Vec<ReplicaAccount> {
        self.session.accounts()
    }

    pub fn elapsed(&self) -> Duration {
        self.now - self.begun
    }

    /// Returns the sent bytes of blocks, including blocks that were read and discarded.
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    pub fn describe(&self) -> String {
        let here = self.disk.len();
        format!("after {:?}, {here} blocks are here: {:#?}\n{:#?}", self.elapsed(), self.said, self.accounts())
    }
}

fn sender(host: &Host, number: usize, size: u64) -> SendSession {
    let mut sender = SendSession::new(LINGER_DEFAULT);
    let size = host.size.unwrap_or(size);
    let entry = FileEntry {
        path: RelPath::new(format!("replica{number}").as_bytes()).unwrap(),
        kind: EntryKind::File,
        size,
        mtime: FileTime { seconds: number as i64, nanoseconds: 0 },
        mode: 0o644,
        allocated: size,
        inode: number as u64,
        version: host.version,
        growth: None,
    };
    sender.add_file_in(entry, BlockOrder::OnDemand);
    sender.end_files();
    sender
}
