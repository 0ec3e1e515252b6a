//! Work of the driver at both ends: feeds lanes, receives items, writes and publishes files, and handles events.

use std::fmt::Debug;
use std::time::Duration;

use sterna_proto::session::{
    BlockClaim, BlockData, BlockHeader, BlockTask, FileId, FileOutcome, Frame, LaneId, RecvEvent, SendEvent,
    UNSETTLED_FILES_MAX, corrupt_block,
};
use sterna_proto::{Checks, Error, ErrorKind, FileDigests, FileEntry, Phase, Scope};

use super::lane::{Item, Open, Sending};
use super::trace::Traced;
use super::world::{Ended, Event, Side, World};

/// Items that a lane accepts before its feeder waits. Reason: a few blocks in flight on each lane, so that cuts hit
/// some.
pub const WINDOW_ITEMS: usize = 8;

/// Longest time that another session holds a file.
const HELD: Duration = Duration::from_secs(3);

impl World {
    /// Lets every feeder send as much as its lane accepts.
    pub fn feed(&mut self) {
        self.grow_manifest();
        self.feed_lanes();
        self.leave_when_over();
    }

    /// Lets lanes take what the state machines have for them.
    pub fn feed_lanes(&mut self) {
        loop {
            let mut sent = false;
            for index in 0..self.session.lanes.len() {
                sent |= self.feed_sender(index) | self.feed_receiver(index);
            }
            if !sent {
                break;
            }
        }
    }

    /// Gives an item to a lane and records it.
    pub fn give(&mut self, index: usize, from: Side, item: Item, bytes: u64) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            trace.record(now, Traced::Item { lane: index, from, item: item.clone() });
        }
        let lane = &mut self.session.lanes[index];
        let pipe = if from == Side::Sender { &mut lane.to_receiver } else { &mut lane.to_sender };
        pipe.send(now, item, bytes);
    }

    fn give_frame(&mut self, index: usize, from: Side, frame: &Frame) {
        let encoded = frame.encode();
        let size = encoded.len() as u64;
        self.give(index, from, Item::Frame(encoded), size);
    }

    fn record_event(&mut self, at: Side, event: &impl Debug) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            trace.record(now, Traced::Event { at, event: format!("{event:?}") });
        }
    }

    fn grow_manifest(&mut self) {
        let session = &mut self.session;
        if session.sender.gone {
            return;
        }
        let mut offered = Vec::new();
        let most = session.found.min(session.sources.len());
        while session.next_source < most && session.send.has_room() {
            let id = session.send.add_file(self.sources[session.sources[session.next_source]].entry.clone());
            assert_eq!(id.0, session.next_source as u64);
            session.next_source += 1;
            offered.push(session.sources[id.0 as usize]);
        }
        if session.next_source == session.sources.len() && !session.ended {
            session.ended = true;
            session.send.end_files();
            self.hear_sender();
        }
        offered.into_iter().for_each(|source| self.seal_if_ended(source));
    }

    /// Sends one item of the sender's feeder. Returns true if there was one.
    fn feed_sender(&mut self, index: usize) -> bool {
        let lane = &mut self.session.lanes[index];
        if !lane.sender_up || self.session.sender.gone || lane.to_receiver.load() >= WINDOW_ITEMS {
            return false;
        }
        let id = lane.sender_id.expect("a lane that is up has a number");
        if let Some(frame) = self.session.send.poll_frame(id) {
            self.give_frame(index, Side::Sender, &frame);
            return true;
        }
        if let Some(sending) = lane.sending.take() {
            self.finish_block(index, sending);
            return true;
        }
        if self.session.send.is_over() {
            return false;
        }
        match self.session.send.next_block(id) {
            Some(task) => {
                self.begin_block(index, task);
                true
            }
            None => false,
        }
    }

    fn begin_block(&mut self, index: usize, task: BlockTask) {
        let (mut versions, mut data_len) = (Vec::new(), 0);
        let task = match task {
            BlockTask::Single { file, entry, index: block } => {
                versions.push(self.source_version(file));
                data_len = entry.blocks().length(block);
                self.maybe_change(file);
                BlockTask::Single { file, entry, index: block }
            }
            BlockTask::Tail { file, entry, range } => {
                data_len = range.end - range.start;
                BlockTask::Tail { file, entry, range }
            }
            BlockTask::Packed { files } => {
                let mut kept = Vec::new();
                for (file, entry) in files {
                    if self.source_version(file) == entry.mtime.seconds {
                        data_len += entry.size;
                        kept.push((file, entry));
                    } else {
                        self.session.send.withdraw(file, changed());
                    }
                    self.maybe_change(file);
                }
                BlockTask::Packed { files: kept }
            }
        };
        let header = match &task {
            BlockTask::Single { file, entry, index } => {
                BlockHeader::Single { file: *file, entry: entry.clone(), index: *index, data: BlockData::Raw }
            }
            BlockTask::Tail { file, entry, range } => {
                BlockHeader::Tail { file: *file, entry: entry.clone(), offset: range.start }
            }
            BlockTask::Packed { files } if files.is_empty() => return,
            BlockTask::Packed { files } => BlockHeader::Packed { files: files.clone(), slab: None },
        };
        let lane = &mut self.session.lanes[index];
        let block = lane.next_block;
        lane.next_block += 1;
        lane.sending = Some(Sending { task, block, data_len, versions });
        self.give(index, Side::Sender, Item::Begin { block, header: header.encode(), data_len }, data_len / 2);
    }

    fn finish_block(&mut self, index: usize, sending: Sending) {
        let Sending { task, block, data_len, versions } = sending;
        let files = match &task {
            BlockTask::Packed { files } => files.len(),
            BlockTask::Single { .. } | BlockTask::Tail { .. } => 1,
        };
        if let BlockTask::Single { file, entry, .. } = &task
            && (self.source_version(*file) != versions[0] || versions[0] != entry.mtime.seconds)
        {
            self.give(index, Side::Sender, Item::Abandon { block }, 0);
            self.session.send.withdraw(*file, changed());
            return;
        }
        self.sent_blocks += 1;
        let intact = (0..files).map(|_| !self.random.chance(self.config.corrupt)).collect();
        self.give(index, Side::Sender, Item::End { block, intact }, data_len / 2);
    }

    fn source_version(&self, file: FileId) -> i64 {
        self.sources[self.session.sources[file.0 as usize]].entry.mtime.seconds
    }

    fn maybe_change(&mut self, file: FileId) {
        let grows = self.sources[self.session.sources[file.0 as usize]].entry.growth.is_some();
        if self.random.chance(self.config.source_changes) && !grows {
            let source = &mut self.sources[self.session.sources[file.0 as usize]];
            source.entry.mtime.seconds += 1;
            source.changed = true;
        }
    }

    fn feed_receiver(&mut self, index: usize) -> bool {
        let instant = self.instant();
        let lane = &mut self.session.lanes[index];
        if !lane.receiver_up || self.session.receiver.gone || lane.to_sender.load() >= WINDOW_ITEMS {
            return false;
        }
        let id = lane.receiver_id.expect("a lane that is up has a number");
        match self.session.recv.poll_frame(id, instant) {
            Some(frame) => {
                self.give_frame(index, Side::Receiver, &frame);
                true
            }
            None => false,
        }
    }

    /// Closes the lanes of an end that is over. Occasionally does so before the last frames are sent.
    pub fn leave_when_over(&mut self) {
        let instant = self.instant();
        let polite = !self.random.chance(50);
        let lanes = 0..self.session.lanes.len();
        if !self.session.sender.gone && self.session.send.is_over() {
            for index in lanes.clone().filter(|index| self.session.lanes[*index].sender_up).collect::<Vec<_>>() {
                let id = self.session.lanes[index].sender_id.expect("a lane that is up has a number");
                while let Some(frame) = self.session.send.poll_frame(id).filter(|_| polite) {
                    self.give_frame(index, Side::Sender, &frame);
                }
                self.session.lanes[index].closed_by_sender = true;
            }
            self.session.sender.gone = true;
            (0..self.session.lanes.len()).for_each(|index| self.lane_down(index, Side::Sender));
        }
        if !self.session.receiver.gone && self.session.recv.is_over() {
            for index in lanes.filter(|index| self.session.lanes[*index].receiver_up).collect::<Vec<_>>() {
                let id = self.session.lanes[index].receiver_id.expect("a lane that is up has a number");
                while let Some(frame) = self.session.recv.poll_frame(id, instant).filter(|_| polite) {
                    self.give_frame(index, Side::Receiver, &frame);
                }
                self.session.lanes[index].closed_by_receiver = true;
            }
            self.session.receiver.gone = true;
            (0..self.session.lanes.len()).for_each(|index| self.lane_down(index, Side::Receiver));
        }
    }

    /// Ends a lane that one end closed at the other end, after all items have arrived there. Returns true if there was
    /// such a lane.
    pub fn close_drained_lanes(&mut self) -> bool {
        let mut any = false;
        for index in 0..self.session.lanes.len() {
            let lane = &self.session.lanes[index];
            if lane.closed_by_sender && lane.receiver_up && lane.to_receiver.load() == 0 && lane.inbox.is_empty() {
                self.lane_down(index, Side::Receiver);
                any = true;
            }
            let lane = &self.session.lanes[index];
            if lane.closed_by_receiver && lane.sender_up && lane.to_sender.load() == 0 {
                self.lane_down(index, Side::Sender);
                any = true;
            }
        }
        any
    }

    /// Receives the items that have arrived on all lanes.
    pub fn arrivals(&mut self) {
        for index in 0..self.session.lanes.len() {
            let now = self.now;
            if self.session.lanes[index].cut {
                continue;
            }
            for item in self.session.lanes[index].to_receiver.poll(now) {
                match item {
                    Item::Hello => self.hello(index, Side::Receiver),
                    item => self.session.lanes[index].inbox.push_back(item),
                }
            }
            self.read_inbox(index);
            for item in self.session.lanes[index].to_sender.poll(now) {
                match item {
                    Item::Hello => self.hello(index, Side::Sender),
                    Item::Frame(bytes) if self.session.lanes[index].sender_up => self.sender_frame(&bytes),
                    _ => {}
                }
            }
        }
    }

    fn hello(&mut self, index: usize, agent: Side) {
        self.session.lanes[index].hello_seen = true;
        if self.is_gone(agent) {
            let back = self.config.rtt / 2;
            return self.after(back, Event::Refused { lane: index });
        }
        let id = Some(self.session.next_lane_id(agent));
        match agent {
            Side::Sender => self.session.lanes[index].sender_id = id,
            Side::Receiver => self.session.lanes[index].receiver_id = id,
        }
        self.session.up(index, agent);
        let lane = &self.session.lanes[index];
        if !(lane.sender_up && lane.receiver_up) {
            // The client closed the lane while the hello was in flight.
            let delay = self.random.up_to(self.config.half_open);
            self.after(delay, Event::Notice { lane: index, side: agent });
        }
    }

    fn sender_frame(&mut self, bytes: &[u8]) {
        let taken = match Frame::decode(bytes).expect("our own frame").expect("of a known type") {
            Frame::Messages { first, encoded } => self.session.send.handle_messages(first, &encoded),
            Frame::Acknowledge { next } => self.session.send.handle_acknowledgement(next),
            other => panic!("{other:?} does not travel here"),
        };
        taken.unwrap_or_else(|e| panic!("an honest receiver broke the protocol: {e}"));
        self.hear_sender();
    }

    fn receiver_frame(&mut self, bytes: &[u8]) {
        let taken = match Frame::decode(bytes).expect("our own frame").expect("of a known type") {
            Frame::Messages { first, encoded } => self.session.recv.handle_messages(first, &encoded),
            Frame::Acknowledge { next } => self.session.recv.handle_acknowledgement(next),
            other => panic!("{other:?} does not travel here"),
        };
        taken.unwrap_or_else(|e| panic!("an honest sender broke the protocol: {e}"));
        self.hear_receiver();
    }

    /// Reads the items that arrived on a lane, up to a block whose file is still being looked up.
    fn read_inbox(&mut self, index: usize) {
        loop {
            let lane = &mut self.session.lanes[index];
            if lane.waits_for.is_some() {
                return;
            }
            if !lane.receiver_up {
                if lane.hello_seen || self.config.client == Side::Receiver {
                    lane.inbox.clear();
                }
                return;
            }
            let Some(item) = lane.inbox.pop_front() else { return };
            match item {
                Item::Frame(bytes) => self.receiver_frame(&bytes),
                Item::Begin { block, header, data_len } => {
                    if !self.begin_open(index, block, &header, data_len) {
                        self.session.lanes[index].inbox.push_front(Item::Begin { block, header, data_len });
                        return;
                    }
                }
                Item::End { block, intact } => self.end_open(index, block, &intact),
                Item::Abandon { block } => self.abandon_open(index, block),
                Item::Hello => {}
            }
        }
    }

    /// Begins a block. Returns false while one of its files is being looked up.
    fn begin_open(&mut self, index: usize, block: u64, header: &[u8], data_len: u64) -> bool {
        let header = BlockHeader::decode(header, data_len).expect("our own header");
        let lane = self.session.lanes[index].receiver_id.expect("a lane that is up has a number");
        let files: Vec<(FileId, FileEntry)> = match &header {
            BlockHeader::Single { file, entry, .. } | BlockHeader::Tail { file, entry, .. } => {
                vec![(*file, entry.clone())]
            }
            BlockHeader::Packed { files, .. } => files.clone(),
        };
        let mut waits_for = None;
        for (file, entry) in &files {
            self.session.recv.handle_entry(*file, entry).expect("an honest sender's entry");
            self.hear_receiver();
            let looked_up = self.session.looked_up.get(file) == Some(&true);
            if self.session.recv.is_open(*file) && !looked_up && !self.session.busy.contains(file) {
                waits_for = Some(*file);
            }
        }
        self.session.lanes[index].waits_for = waits_for;
        if waits_for.is_some() {
            return false;
        }
        let open = match header {
            BlockHeader::Single { file, entry, index, .. } => {
                let claim = self.claim(lane, file, &entry, index);
                Open::Single { file, entry, index, claim }
            }
            BlockHeader::Tail { file, offset, .. } => {
                Open::Tail { file, offset, claim: self.session.recv.claim_tail(lane, file, offset) }
            }
            BlockHeader::Packed { files, .. } => {
                let claimed = files.into_iter().map(|(file, entry)| {
                    let claim = self.claim(lane, file, &entry, 0);
                    (file, entry, claim)
                });
                Open::Packed { files: claimed.collect() }
            }
        };
        self.session.lanes[index].open.insert(block, open);
        true
    }

    fn claim(&mut self, lane: LaneId, file: FileId, entry: &FileEntry, index: u64) -> BlockClaim {
        let claim = self.session.recv.claim(lane, file, index);
        if claim == BlockClaim::Take {
            self.store.begin(entry, index, lane);
        }
        claim
    }

    fn end_open(&mut self, index: usize, block: u64, intact: &[bool]) {
        let lane = self.session.lanes[index].receiver_id.expect("a lane that is up has a number");
        match self.session.lanes[index].open.remove(&block) {
            Some(Open::Single { file, entry, index, claim: BlockClaim::Take }) => {
                if self.random.chance(self.config.disk_refuses) {
                    self.store.end(&entry.path, index, lane, false);
                    let text = "no space";
                    let error = Error::new(ErrorKind::NoSpace, Scope::Destination, Phase::Transfer, text);
                    self.session.recv.fail(file, error);
                } else {
                    self.store.end(&entry.path, index, lane, intact[0]);
                    let check = if intact[0] { Ok(()) } else { Err(corrupt_block(&entry, index)) };
                    self.session.recv.handle_block(lane, file, index, check);
                }
            }
            Some(Open::Tail { file, offset, claim: BlockClaim::Take }) => {
                self.session.recv.handle_tail(lane, file, offset);
            }
            Some(Open::Packed { files }) => {
                assert_eq!(files.len(), intact.len());
                for ((file, entry, claim), intact) in files.into_iter().zip(intact) {
                    if claim == BlockClaim::Discard {
                        continue;
                    }
                    let check = if *intact { Ok(()) } else { Err(corrupt_block(&entry, 0)) };
                    let taken = self.session.recv.handle_block(lane, file, 0, check) == BlockClaim::Take;
                    assert!(!taken || *intact, "a corrupt small file was taken");
                    self.store.end(&entry.path, 0, lane, taken);
                    if taken {
                        let delay = self.random.up_to(self.config.publish);
                        self.after(delay, Event::Published { file });
                    }
                }
            }
            _ => {}
        }
        self.hear_receiver();
    }

    fn abandon_open(&mut self, index: usize, block: u64) {
        let lane = self.session.lanes[index].receiver_id.expect("a lane that is up has a number");
        if let Some(Open::Single { file, entry, index, claim: BlockClaim::Take }) =
            self.session.lanes[index].open.remove(&block)
        {
            self.store.end(&entry.path, index, lane, false);
            self.session.recv.handle_block_abandoned(lane, file, index);
        }
        self.hear_receiver();
    }

    /// Ends the unfinished blocks of a dead lane.
    pub fn abandon_open_blocks(&mut self, index: usize, lane: LaneId) {
        for open in std::mem::take(&mut self.session.lanes[index].open).into_values() {
            match open {
                Open::Tail { .. } => {}
                Open::Single { entry, index, .. } => self.store.end(&entry.path, index, lane, false),
                Open::Packed { files } => {
                    files.iter().for_each(|(_, entry, _)| self.store.end(&entry.path, 0, lane, false));
                }
            }
        }
    }

    pub fn prepared(&mut self, file: FileId) {
        self.session.looked_up.insert(file, true);
        if self.session.recv.is_open(file) && !self.session.receiver.gone {
            let outcome = self.store.prepare(&self.session.entries[&file]);
            self.session.recv.handle_prepared(file, outcome);
            self.hear_receiver();
        }
        for index in 0..self.session.lanes.len() {
            if self.session.lanes[index].waits_for == Some(file) {
                self.session.lanes[index].waits_for = None;
                self.read_inbox(index);
            }
        }
    }

    pub fn rechecked(&mut self, file: FileId) {
        if self.session.receiver.gone || !self.session.recv.is_open(file) {
            return;
        }
        let Self { store, random, config, session, .. } = self;
        let lost = store.recheck(&session.entries[&file].path, || random.chance(config.rot));
        self.rotten_blocks += lost.len();
        self.session.recv.handle_rechecked(file, &lost, None);
        self.hear_receiver();
    }

    pub fn publish(&mut self, file: FileId) {
        if self.session.receiver.gone {
            return;
        }
        assert!(self.session.recv.is_open(file), "a file settled while it was published");
        let outcome = if self.random.chance(self.config.publish_fails) {
            Err(Error::new(ErrorKind::Io, Scope::Destination, Phase::Finalise, "rename"))
        } else {
            let entry = self.session.recv.open_entry(file).map(|(entry, _)| entry.clone());
            let entry = entry.expect("a file that is open");
            assert!(!entry.is_growing(), "{} is published while it grows", entry.path);
            self.store.grow(&entry);
            self.store.publish(&entry);
            Ok(FileDigests::of(b"", Checks::NONE))
        };
        self.session.recv.handle_published(file, outcome);
        self.hear_receiver();
    }

    pub fn discard(&mut self, file: FileId) {
        if self.session.receiver.gone {
            return;
        }
        assert!(self.session.recv.is_open(file), "a file settled while it was discarded");
        self.store.discard(&self.session.entries[&file].path);
        self.session.recv.handle_discarded(file);
        self.hear_receiver();
    }

    pub fn finished(&mut self) {
        self.session.directories_done = true;
        if !self.session.receiver.gone {
            self.session.recv.handle_finished();
            self.hear_receiver();
        }
    }

    pub fn hear_sender(&mut self) {
        while let Some(event) = self.session.send.poll_event() {
            self.record_event(Side::Sender, &event);
            match event {
                SendEvent::Settled { file, entry, outcome } => {
                    let ended = ended(&outcome);
                    let before = self.session.sender.settled.insert(file, ended);
                    assert!(before.is_none(), "{} settled twice at the sender", entry.path);
                    let there = self.session.receiver.settled.get(&file);
                    assert_eq!(there, Some(&ended), "{} ended otherwise at the receiver", entry.path);
                }
                SendEvent::Notice { .. } => {}
                SendEvent::Aborted(error) => {
                    let before = self.session.sender.aborted.replace(error.kind);
                    assert!(before.is_none(), "the sender was aborted twice");
                }
            }
        }
    }

    pub fn hear_receiver(&mut self) {
        while let Some(event) = self.session.recv.poll_event() {
            self.record_event(Side::Receiver, &event);
            match event {
                RecvEvent::Prepare { file, entry } => {
                    let before = self.session.entries.insert(file, entry);
                    assert!(before.is_none(), "{file:?} was to be looked up twice");
                    self.session.looked_up.insert(file, false);
                    let mut delay = self.random.up_to(self.config.prepare);
                    if self.random.chance(self.config.busy) {
                        self.session.busy.insert(file);
                        self.session.recv.handle_busy(file, None);
                        delay += self.random.up_to(HELD);
                    }
                    self.after(delay, Event::Prepared { file });
                }
                RecvEvent::Recheck { file } => {
                    let delay = self.random.up_to(self.config.prepare);
                    self.after(delay, Event::Rechecked { file });
                }
                RecvEvent::Discard { file } => {
                    let delay = self.random.up_to(self.config.publish);
                    self.after(delay, Event::Discarded { file });
                }
                RecvEvent::Publish { file } => {
                    let delay = self.random.up_to(self.config.publish);
                    self.after(delay, Event::Published { file });
                }
                RecvEvent::Settled { file, entry, outcome } => {
                    let ended = ended(&outcome);
                    let before = self.session.receiver.settled.insert(file, ended);
                    assert!(before.is_none(), "{} settled twice at the receiver", entry.path);
                    if let Ended::Failed(kind) = ended {
                        self.failed.insert(entry.path, kind);
                    }
                }
                RecvEvent::Finish { .. } => {
                    assert_eq!(
                        self.session.receiver.settled.len(),
                        self.session.sources.len(),
                        "finished before the last"
                    );
                    let delay = self.random.up_to(self.config.publish);
                    self.after(delay, Event::Finished);
                }
                RecvEvent::Notice(_) | RecvEvent::Unreadable(_) => {}
                RecvEvent::Aborted(error) => {
                    let before = self.session.receiver.aborted.replace(error.kind);
                    assert!(before.is_none(), "the receiver was aborted twice");
                }
            }
        }
    }

    /// Checks the invariants after every step.
    pub fn check(&mut self) {
        let session = &mut self.session;
        let open = session.entries.len() - session.receiver.settled.len();
        session.open_files_max = session.open_files_max.max(open);
        if !session.lane_ids.contains(&0) {
            assert!(!session.sender.gone || session.send.is_over(), "the sender was over, and is not any more");
            assert!(!session.receiver.gone || session.recv.is_over(), "the receiver was over, and is not any more");
        }
        let may_leave = session.send.is_complete();
        assert!(!may_leave || session.directories_done, "the sender may leave before the directories are finished");
        assert!(open <= UNSETTLED_FILES_MAX, "{open} files open at the receiver");
        // A message may exceed the limit. The limit stops producers, but not the message that is being added.
        let (sent, received) = (session.send.log_bytes(), session.recv.log_bytes());
        assert!(sent <= LOG_BYTES_BOUND && received <= LOG_BYTES_BOUND, "log of {sent} and {received} bytes");
    }

    /// Checks the invariants when both ends of a session are over.
    pub fn check_session(&self) {
        let session = &self.session;
        if session.lane_ids.contains(&0) {
            return;
        }
        assert!(session.sender.aborted.is_some() || session.send.is_complete(), "over, but not complete: sender");
        assert!(session.receiver.aborted.is_some() || session.recv.is_complete(), "over, but not complete: receiver");
        let given_up = session.receiver.aborted == Some(ErrorKind::Unreachable);
        assert!(!(session.recv.is_complete() && given_up), "every file has its outcome, and yet the receiver gave up");
        if session.sender.aborted.is_none() {
            assert_eq!(session.sender.settled.len(), session.sources.len(), "files without an outcome");
            assert_eq!(session.sender.settled, session.receiver.settled, "the ends disagree");
        }
    }

    /// Checks the result when the copy is finished.
    pub fn check_end(&self) {
        if self.config.abort.is_some() {
            return;
        }
        for source in &self.sources {
            let path = &source.entry.path;
            let there = self.store.published.get(path);
            let current = there == Some(&source.entry.mtime.seconds);
            assert!(current || source.changed || self.failed.contains_key(path), "{path} is not in place: {there:?}");
        }
    }
}

/// Most bytes of messages that wait at one end in any scenario.
const LOG_BYTES_BOUND: usize = sterna_proto::session::LOG_BYTES_MAX + (64 << 10);

fn changed() -> Error {
    Error::new(ErrorKind::Changed, Scope::Source, Phase::Transfer, "the source changed while it was read")
}

fn ended(outcome: &FileOutcome) -> Ended {
    match outcome {
        FileOutcome::Done(_) => Ended::Done,
        FileOutcome::Skipped => Ended::Skipped,
        FileOutcome::Failed(error) => Ended::Failed(error.kind),
    }
}
