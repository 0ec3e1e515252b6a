//! Both ends of a copy in virtual time: the state machines of `sterna_proto::session`, with simulated drivers, network
//! and disks.
//!
//! [`World::run`] is the loop. It takes the next event (an item arrives, a timer fires) and passes it to the state
//! machine concerned. Then it lets every feeder send, and checks the invariants. A copy continues with a new session,
//! as the client does, until a session ends without an abort.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::{Duration, Instant};

use sterna_lab::model::{LinkModel, Reorder};
use sterna_proto::session::{FileId, LINGER_DEFAULT, LaneId, RecvSession, SendSession};
use sterna_proto::{BitRate, EntryKind, Error, ErrorKind, FileEntry, FileTime, Growth, Phase, RelPath, Retry, Scope};
use sterna_seeded::Seeded;

use super::lane::{Item, Lane, endless_queue};
use super::store::Store;
use super::trace::Trace;

/// One of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Sender,
    Receiver,
}

/// Description of a scenario.
#[derive(Clone)]
pub struct Config {
    pub sizes: Vec<u64>,
    /// Final sizes of files that grow while they are sent.
    pub growing: Vec<u64>,
    pub directories: usize,
    pub lanes: usize,
    pub client: Side,
    pub rtt: Duration,
    pub rate: BitRate,
    pub loss: f64,
    pub reorder: bool,
    pub duplicate: f64,
    pub quic: bool,
    /// Bytes represented by one byte on the lab's path.
    pub bytes_per_unit: u64,
    /// Mean lifetime of a lane.
    pub lane_life: Option<Duration>,
    /// Time after which lanes no longer die, so that stuck blocks stay stuck.
    pub calm_after: Duration,
    /// Longest time until an end notices that a lane is dead.
    pub half_open: Duration,
    /// Probabilities per thousand: a block fails its check, the disk refuses a block, publishing fails.
    pub corrupt: u64,
    pub disk_refuses: u64,
    pub publish_fails: u64,
    /// Probabilities per thousand: another session holds a file for some seconds, a journaled block rots.
    pub busy: u64,
    pub rot: u64,
    /// Probability per thousand blocks that the source of one changes.
    pub source_changes: u64,
    /// Longest time that the directory reader takes for a few files; zero: all files are present at once.
    pub scan: Duration,
    pub prepare: Duration,
    pub publish: Duration,
    pub linger: Duration,
    /// Time for which the first lane of the client carries nothing, without dying.
    pub first_lane_stalls: Option<Duration>,
    /// Start and end of a time in which no lane comes up.
    pub outage: Option<(Duration, Duration)>,
    /// Steps at which a host crashes.
    pub crashes: Vec<(u64, Side)>,
    /// Time at which an end aborts.
    pub abort: Option<(Duration, Side)>,
    /// Interval at which both ends are also checked between their deadlines.
    pub tick: Option<Duration>,
    /// Time by which everything must be over.
    pub deadline: Duration,
}

impl Config {
    pub fn clean(sizes: Vec<u64>) -> Self {
        Self {
            sizes,
            growing: Vec::new(),
            directories: 0,
            lanes: 2,
            client: Side::Sender,
            rtt: Duration::from_millis(100),
            rate: BitRate::megabits(1000),
            loss: 0.0,
            reorder: false,
            duplicate: 0.0,
            quic: false,
            bytes_per_unit: 1024,
            lane_life: None,
            calm_after: Duration::MAX,
            half_open: Duration::ZERO,
            corrupt: 0,
            disk_refuses: 0,
            publish_fails: 0,
            busy: 0,
            rot: 0,
            source_changes: 0,
            scan: Duration::ZERO,
            prepare: Duration::from_millis(2),
            publish: Duration::from_millis(5),
            linger: LINGER_DEFAULT,
            first_lane_stalls: None,
            outage: None,
            crashes: Vec::new(),
            abort: None,
            tick: None,
            deadline: Duration::from_secs(7200),
        }
    }
}

/// A file at the sender.
pub struct SourceFile {
    pub entry: FileEntry,
    /// True if the file changed during the copy. It may fail, and its old version may be in place.
    pub changed: bool,
    /// Final size.
    pub final_size: u64,
    /// Current size. The entry contains the size of the whole blocks.
    pub size: u64,
}

/// Events that occur at a scheduled time.
#[derive(Clone, Debug)]
pub enum Event {
    Dial {
        dialler: usize,
    },
    ClientUp {
        lane: usize,
    },
    /// The agent does not know the session and informs the client.
    Refused {
        lane: usize,
    },
    Cut {
        lane: usize,
    },
    Notice {
        lane: usize,
        side: Side,
    },
    Prepared {
        file: FileId,
    },
    Rechecked {
        file: FileId,
    },
    Published {
        file: FileId,
    },
    Discarded {
        file: FileId,
    },
    /// The modes of directories are set.
    Finished,
    Checkpoint,
    /// Writers write to their files and close them.
    Grow,
    /// A growing file that has ended was read as a whole.
    FinalDigest {
        file: FileId,
    },
    /// The directory reader has found more files.
    Scan,
    Abort {
        side: Side,
    },
    NewSession,
}

/// Outcome of a file, for comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Done,
    Skipped,
    Failed(ErrorKind),
}

/// Events that one end of a session has reported so far.
#[derive(Default)]
pub struct Heard {
    pub settled: BTreeMap<FileId, Ended>,
    pub aborted: Option<ErrorKind>,
    pub gone: bool,
}

/// One session with all its lanes.
pub struct Session {
    pub send: SendSession,
    pub recv: RecvSession,
    pub lanes: Vec<Lane>,
    pub sender: Heard,
    pub receiver: Heard,
    pub sources: Vec<usize>,
    /// Number of sources that the directory reader has found, and number of sources in the manifest.
    pub found: usize,
    pub next_source: usize,
    pub ended: bool,
    pub lane_ids: [u32; 2],
    /// True once directories are finished.
    pub directories_done: bool,
    /// Files whose look-up has begun; true once the look-up has ended.
    pub looked_up: BTreeMap<FileId, bool>,
    /// Files that another session holds. Lanes do not wait for them.
    pub busy: BTreeSet<FileId>,
    pub entries: BTreeMap<FileId, FileEntry>,
    pub open_files_max: usize,
}

/// The whole simulation.
pub struct World {
    pub config: Config,
    pub random: Seeded,
    origin: Instant,
    pub now: Duration,
    next_tick: Duration,
    pub steps: u64,
    events: BinaryHeap<Reverse<(Duration, u64, u32)>>,
    payloads: BTreeMap<u64, Event>,
    sequence: u64,
    generation: u32,
    pub sources: Vec<SourceFile>,
    pub store: Store,
    pub session: Session,
    pub finished: bool,
    /// Files that failed in some session, with the cause.
    pub failed: BTreeMap<RelPath, ErrorKind>,
    pub settled_well: BTreeSet<RelPath>,
    /// Number of blocks whose data was sent, and number of blocks lost in crashes.
    pub sent_blocks: u64,
    pub lost_blocks: u64,
    /// Number of damaged blocks found from earlier sessions.
    pub rotten_blocks: u64,
    pub sessions: u32,
    /// Record of the run; `None`: nothing is recorded.
    pub trace: Option<Trace>,
}

/// Time that a client waits before it dials again.
pub const BACKOFF: Duration = Duration::from_millis(500);

impl World {
    pub fn new(config: Config, seed: u64) -> Self {
        let mut sources: Vec<SourceFile> = (0..config.directories).map(|i| directory(i as u64)).collect();
        sources.extend(config.sizes.iter().enumerate().map(|(i, size)| file(i as u64, *size)));
        sources.extend(config.growing.iter().enumerate().map(|(i, size)| growing_file(1000 + i as u64, *size)));
        let session = Session::new(&config, (0..sources.len()).collect());
        let mut world = Self {
            config,
            random: Seeded::new(seed),
            // The only reading of the clock, because an `Instant` has no other origin. Virtual time is added to it.
            origin: Instant::now(),
            now: Duration::ZERO,
            next_tick: Duration::ZERO,
            steps: 0,
            events: BinaryHeap::new(),
            payloads: BTreeMap::new(),
            sequence: 0,
            generation: 0,
            sources,
            store: Store::default(),
            session,
            finished: false,
            failed: BTreeMap::new(),
            settled_well: BTreeSet::new(),
            sent_blocks: 0,
            lost_blocks: 0,
            rotten_blocks: 0,
            sessions: 1,
            trace: None,
        };
        world.start_session();
        if let Some((at, side)) = world.config.abort {
            world.at(at, Event::Abort { side });
        }
        world
    }

    pub fn instant(&self) -> Instant {
        self.origin + self.now
    }

    pub fn at(&mut self, time: Duration, event: Event) {
        self.sequence += 1;
        self.payloads.insert(self.sequence, event);
        self.events.push(Reverse((time, self.sequence, self.generation)));
    }

    pub fn after(&mut self, delay: Duration, event: Event) {
        self.at(self.now + delay, event);
    }

    fn start_session(&mut self) {
        for dialler in 0..self.config.lanes {
            let delay = self.random.up_to(self.config.rtt / 4);
            self.after(delay, Event::Dial { dialler });
        }
        self.after(Duration::from_secs(1), Event::Checkpoint);
        if !self.config.growing.is_empty() {
            self.after(Duration::ZERO, Event::Grow);
        }
        if self.config.scan.is_zero() {
            self.session.found = self.session.sources.len();
        } else {
            self.after(Duration::ZERO, Event::Scan);
        }
        self.feed();
    }

    /// Runs until the copy is finished.
    pub fn run(&mut self) {
        let (mut same_time, mut last) = (0u64, Duration::ZERO);
        while !self.finished {
            self.step();
            if self.now > last {
                (same_time, last) = (0, self.now);
            }
            same_time += 1;
            assert!(same_time < 1_000_000, "time stands still at {:?}", self.now);
            assert!(self.now < self.config.deadline, "not over after {:?}: {}", self.now, self.summary());
        }
        self.check_end();
    }

    /// Processes the next event.
    pub fn step(&mut self) {
        self.steps += 1;
        let crashed = self.config.crashes.iter().find(|(step, _)| *step == self.steps);
        if let Some((_, side)) = crashed {
            self.crash(*side);
        }
        let next = self.next_time();
        let next = next.unwrap_or_else(|| panic!("nothing will ever happen again: {}", self.summary()));
        self.tick_until(next);
        self.now = self.now.max(next);
        self.arrivals();
        self.timers();
        while let Some(Reverse((at, sequence, generation))) = self.events.peek().copied() {
            if at > self.now {
                break;
            }
            self.events.pop();
            // Always removed: the event belongs to an earlier session, or it occurs now.
            if let Some(event) = self.payloads.remove(&sequence).filter(|_| generation == self.generation) {
                self.handle(event);
            }
        }
        self.feed();
        // An end that notices a dead lane has its blocks to send again.
        while self.close_drained_lanes() {
            self.feed();
        }
        self.check();
        self.end_session_if_over();
    }

    /// Checks both ends at every tick before `next`, like a driver that ignores their deadlines.
    fn tick_until(&mut self, next: Duration) {
        let Some(tick) = self.config.tick else { return };
        while self.next_tick < next {
            self.now = self.now.max(self.next_tick);
            self.next_tick += tick;
            self.timers();
            self.feed_lanes();
            let is_left = |gone: bool, is_over: bool| !gone && is_over;
            let session = &self.session;
            if is_left(session.sender.gone, session.send.is_over())
                || is_left(session.receiver.gone, session.recv.is_over())
            {
                self.leave_when_over();
            }
        }
    }

    fn next_time(&self) -> Option<Duration> {
        let session = &self.session;
        let pipes = session.lanes.iter().filter(|lane| !lane.cut).flat_map(|lane| [&lane.to_receiver, &lane.to_sender]);
        let arrival = pipes.filter_map(|pipe| pipe.poll_timeout()).min();
        let event = self.events.peek().map(|Reverse((at, _, _))| *at);
        let now = self.instant();
        let send = session.send.poll_timeout(now).filter(|_| !session.sender.gone);
        let recv = session.recv.poll_timeout(now).filter(|_| !session.receiver.gone);
        let report = session.recv.next_report(now).filter(|_| !session.receiver.gone);
        let timer =
            [send, recv, report].into_iter().flatten().min().map(|at| at.saturating_duration_since(self.origin));
        [arrival, event, timer].into_iter().flatten().min()
    }

    fn timers(&mut self) {
        let now = self.instant();
        if !self.session.sender.gone {
            self.session.send.handle_timeout(now);
            self.hear_sender();
        }
        if !self.session.receiver.gone {
            self.session.recv.handle_timeout(now);
            self.hear_receiver();
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Dial { dialler } => self.dial(dialler),
            Event::ClientUp { lane } => self.client_up(lane),
            Event::Refused { lane } => {
                let text = "the agent does not know the session";
                let error = Error::new(ErrorKind::SessionLost, Scope::Path, Phase::Transfer, text).retry(Retry::After);
                self.session.lanes[lane].cut();
                self.lane_down(lane, self.config.client);
                self.abort(self.config.client, error);
            }
            Event::Cut { lane } => self.cut(lane),
            Event::Notice { lane, side } => self.lane_down(lane, side),
            Event::Prepared { file } => self.prepared(file),
            Event::Rechecked { file } => self.rechecked(file),
            Event::Published { file } => self.publish(file),
            Event::Discarded { file } => self.discard(file),
            Event::Finished => self.finished(),
            Event::Grow => self.grow_sources(),
            Event::FinalDigest { file } => self.session.send.final_digest(file, FINAL_DIGEST),
            Event::Checkpoint => {
                self.store.checkpoint();
                self.after(Duration::from_secs(1), Event::Checkpoint);
            }
            Event::Scan => {
                self.session.found += 1 + self.random.below(4) as usize;
                if self.session.found < self.session.sources.len() {
                    let delay = self.random.up_to(self.config.scan);
                    self.after(delay, Event::Scan);
                }
            }
            Event::Abort { side } => {
                let error = Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Transfer, "stopped");
                self.abort(side, error);
            }
            Event::NewSession => self.start_session(),
        }
    }

    fn abort(&mut self, side: Side, error: Error) {
        match side {
            Side::Sender if !self.session.sender.gone => self.session.send.abort(error),
            Side::Receiver if !self.session.receiver.gone => self.session.recv.abort(error),
            _ => return,
        }
        self.hear_sender();
        self.hear_receiver();
    }

    fn dial(&mut self, dialler: usize) {
        if self.is_gone(self.config.client) {
            return;
        }
        if self.config.outage.is_some_and(|(from, to)| self.now >= from && self.now < to) {
            return self.after(BACKOFF, Event::Dial { dialler });
        }
        let mut model = LinkModel::clean(self.config.rate, self.config.rtt);
        model.mtu = 9000;
        model.seed = self.random.draw();
        for direction in [&mut model.forward, &mut model.reverse] {
            direction.rate = BitRate((self.config.rate.0 / self.config.bytes_per_unit).max(8000));
            direction.queue = endless_queue();
            direction.loss = self.config.loss;
            direction.duplicate = self.config.duplicate;
            let delay = self.config.rtt / 3;
            direction.reorder = self.config.reorder.then_some(Reorder { probability: 0.05, delay });
        }
        if let Some(length) = self.config.first_lane_stalls.filter(|_| self.session.lanes.is_empty()) {
            // From the hello on: lost items are sent again until they pass.
            let start = Duration::ZERO;
            model.outages.push(sterna_lab::model::Outage { start, length, every: None });
        }
        let mut lane = Lane::new(dialler, &model, self.config.bytes_per_unit, self.config.quic);
        // The client assigns the number first, and the lane is up a moment later. Another thread may run in between.
        let id = Some(self.session.next_lane_id(self.config.client));
        match self.config.client {
            Side::Sender => lane.sender_id = id,
            Side::Receiver => lane.receiver_id = id,
        }
        self.session.lanes.push(lane);
        let (lane, delay) = (self.session.lanes.len() - 1, self.random.up_to(self.config.rtt / 4));
        self.after(self.config.rtt + delay, Event::ClientUp { lane });
    }

    fn client_up(&mut self, index: usize) {
        if self.is_gone(self.config.client) {
            return self.session.lanes[index].cut();
        }
        let client = self.config.client;
        self.session.up(index, client);
        self.give(index, client, Item::Hello, 100);
        if let Some(life) = self.config.lane_life {
            let life = self.random.up_to(life * 2);
            self.after(life, Event::Cut { lane: index });
        }
    }

    fn cut(&mut self, index: usize) {
        let lane = &self.session.lanes[index];
        if lane.is_dead() || lane.cut || self.now > self.config.calm_after {
            return;
        }
        if self.random.chance(400) {
            return self.close_at_one_end(index);
        }
        self.session.lanes[index].cut();
        for side in [Side::Sender, Side::Receiver] {
            let delay = self.random.up_to(self.config.half_open);
            self.after(delay, Event::Notice { lane: index, side });
        }
    }

    /// Closes a lane at one end while the other still receives the items in flight. Copies of its blocks arrive on
    /// other lanes in the meantime.
    fn close_at_one_end(&mut self, index: usize) {
        let ends = [(Side::Sender, Side::Receiver), (Side::Receiver, Side::Sender)];
        let by_client = !self.session.lanes[index].hello_seen || self.random.chance(500);
        let (first, second) = if by_client == (self.config.client == Side::Sender) { ends[0] } else { ends[1] };
        self.lane_down(index, first);
        let delay = self.config.rtt / 2 + self.random.up_to(self.config.half_open);
        self.after(delay, Event::Notice { lane: index, side: second });
    }

    /// Handles the moment when an end notices that a lane is dead.
    pub fn lane_down(&mut self, index: usize, side: Side) {
        let now = self.instant();
        let lane = &mut self.session.lanes[index];
        let was_up = match side {
            Side::Sender => std::mem::take(&mut lane.sender_up),
            Side::Receiver => std::mem::take(&mut lane.receiver_up),
        };
        let id = if side == Side::Sender { lane.sender_id } else { lane.receiver_id };
        let dialler = lane.dialler;
        if was_up && let Some(id) = id {
            match side {
                Side::Sender => {
                    lane.sending = None;
                    self.session.send.handle_lane_down(id, now);
                }
                Side::Receiver => {
                    lane.inbox.clear();
                    lane.waits_for = None;
                    self.abandon_open_blocks(index, id);
                    self.session.recv.handle_lane_down(id, now);
                }
            }
        }
        if was_up && side == self.config.client && !self.is_gone(side) {
            self.after(BACKOFF, Event::Dial { dialler });
        }
        let lane = &mut self.session.lanes[index];
        if !lane.sender_up && !lane.receiver_up && lane.hello_seen {
            lane.cut();
        }
        self.hear_sender();
        self.hear_receiver();
    }

    pub fn is_gone(&self, side: Side) -> bool {
        match side {
            Side::Sender => self.session.sender.gone,
            Side::Receiver => self.session.receiver.gone,
        }
    }

    /// Crashes one host, which forgets its session at once. The other end notices, and the client starts a new session.
    fn crash(&mut self, side: Side) {
        match side {
            Side::Receiver => {
                self.lost_blocks += self.store.unjournaled_blocks();
                self.store.crash();
            }
            // The receiver notices, publishes complete files, and makes the other blocks durable.
            Side::Sender => self.store.end_session(),
        }
        self.next_session();
    }

    fn end_session_if_over(&mut self) {
        // An agent that never received a hello of the session has nothing to end.
        let agent = if self.config.client == Side::Sender { Side::Receiver } else { Side::Sender };
        if self.is_gone(self.config.client) && self.session.lane_ids[agent as usize] == 0 && !self.is_gone(agent) {
            let lane = self.session.lanes.iter().any(|lane| !lane.cut && !lane.hello_seen);
            match agent {
                Side::Sender => self.session.sender.gone = !lane,
                Side::Receiver => self.session.receiver.gone = !lane,
            }
        }
        let session = &self.session;
        if !(session.sender.gone && session.receiver.gone) {
            return;
        }
        self.check_session();
        self.store.end_session();
        let stopped = matches!(self.session.sender.aborted, Some(ErrorKind::Cancelled))
            || matches!(self.session.receiver.aborted, Some(ErrorKind::Cancelled));
        let client = if self.config.client == Side::Sender { &self.session.sender } else { &self.session.receiver };
        if client.aborted.is_none() || stopped {
            self.finished = true;
            return;
        }
        self.next_session();
    }

    fn next_session(&mut self) {
        self.sessions += 1;
        assert!(self.sessions < 1000, "the copy never ends");
        // A push skips files that had settled at the client. A pull offers all files again.
        let client = if self.config.client == Side::Sender { &self.session.sender } else { &self.session.receiver };
        for (id, ended) in &client.settled {
            if matches!(ended, Ended::Done | Ended::Skipped) {
                self.settled_well.insert(self.session.entries[id].path.clone());
            }
        }
        let wanted = (0..self.sources.len()).filter(|&index| {
            self.config.client == Side::Receiver || !self.settled_well.contains(&self.sources[index].entry.path)
        });
        self.generation += 1;
        self.session = Session::new(&self.config, wanted.collect());
        self.after(BACKOFF, Event::NewSession);
    }

    pub fn summary(&self) -> String {
        let s = &self.session;
        format!(
            "step {}, session {}, sender {:?} gone {} complete {} offered {:?}, receiver {:?} gone {} complete {}, lanes {:?}",
            self.steps,
            self.sessions,
            s.sender.settled.len(),
            s.sender.gone,
            s.send.is_complete(),
            s.send.offered(),
            s.receiver.settled.len(),
            s.receiver.gone,
            s.recv.is_complete(),
            s.lanes.iter().filter(|l| !l.is_dead()).map(|l| (l.sender_up, l.receiver_up, l.cut)).collect::<Vec<_>>(),
        )
    }
}

impl Session {
    fn new(config: &Config, sources: Vec<usize>) -> Self {
        let mut recv = RecvSession::new(config.linger);
        if config.client == Side::Receiver {
            recv.leave_first();
        }
        Self {
            send: SendSession::new(config.linger),
            recv,
            lanes: Vec::new(),
            sender: Heard::default(),
            receiver: Heard::default(),
            sources,
            found: 0,
            next_source: 0,
            ended: false,
            lane_ids: [0, 0],
            directories_done: false,
            looked_up: BTreeMap::new(),
            busy: BTreeSet::new(),
            entries: BTreeMap::new(),
            open_files_max: 0,
        }
    }

    pub fn next_lane_id(&mut self, side: Side) -> LaneId {
        let next = &mut self.lane_ids[side as usize];
        *next += 1;
        LaneId(*next - 1)
    }

    /// Marks a lane as up at one end. Its number must be known.
    pub fn up(&mut self, index: usize, side: Side) {
        let lane = &mut self.lanes[index];
        match (side, lane.sender_id, lane.receiver_id) {
            (Side::Sender, Some(id), _) => {
                lane.sender_up = true;
                self.send.handle_lane_up(id);
            }
            (Side::Receiver, _, Some(id)) => {
                lane.receiver_up = true;
                self.recv.handle_lane_up(id);
            }
            _ => panic!("a lane without a number comes up"),
        }
    }
}

fn file(number: u64, size: u64) -> SourceFile {
    let path = RelPath::new(format!("dir/f{number}").as_bytes()).expect("a plain path");
    let mtime = FileTime { seconds: 1, nanoseconds: 0 };
    let kind = EntryKind::File;
    let entry =
        FileEntry { path, kind, size, mtime, mode: 0o644, allocated: size, inode: number, version: 0, growth: None };
    SourceFile { entry, changed: false, final_size: size, size }
}

fn growing_file(number: u64, final_size: u64) -> SourceFile {
    let mut source = file(number, 0);
    source.entry.growth = Some(Growth::for_rate(None));
    SourceFile { final_size, ..source }
}

/// Digest of every growing file, because the store compares no bytes.
const FINAL_DIGEST: [u8; 32] = [7; 32];

fn directory(number: u64) -> SourceFile {
    let mut source = file(number, 0);
    source.entry.kind = EntryKind::Directory;
    source.entry.path = RelPath::new(format!("d{number}").as_bytes()).expect("a plain path");
    source
}
