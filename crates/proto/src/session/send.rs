//! The sending end of a session: the pool of blocks that lanes pull from, and what is known of each file.

mod growing;
mod shared;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use super::message::{Frame, Message, PACK_BYTES_MAX, PACK_FILES_MAX, PACK_HEADER_BYTES_MAX};
use super::runs::{BlockOrder, Runs};
use super::{ActiveFile, ControlLog, FileId, LaneId, UNSETTLED_FILES_MAX, UNSETTLED_PATH_BYTES_MAX, copied};
use crate::digest::FileDigests;
use crate::error::{Error, ErrorKind, Phase, Retry, Scope};
use crate::file::FileEntry;
use crate::range_set::RangeSet;

/// Bytes that an entry takes in a header beside its path, at most (eight integers with its file's number, a kind).
const ENTRY_FIXED_BYTES: usize = 80;

/// How long an end that leaves tries to say so. Reason: a lane that works takes a word within its queue and a round trip; a
/// peer that takes none is stuck, and finds out by itself.
pub const FAREWELL_TIME_MAX: Duration = Duration::from_secs(2);

/// Most stretches of a file that are sent in the order in which they were asked for; those beyond come when these have been sent, from the lowest on.
/// Reason: a receiver asks for some tens together; one that repeats itself must not cost memory.
const WANTS_MAX: usize = 1000;

/// What a lane sends next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockTask {
    /// One block of one file.
    Single {
        /// The file.
        file: FileId,
        /// Its entry.
        entry: FileEntry,
        /// Index of the block.
        index: u64,
    },
    /// Part of a block of a growing file that is not whole yet.
    Tail {
        /// The file.
        file: FileId,
        /// Its entry.
        entry: FileEntry,
        /// Its bytes, in the file.
        range: Range<u64>,
    },
    /// Small files, whole.
    Packed {
        /// Files with their entries.
        files: Vec<(FileId, FileEntry)>,
    },
}

/// How a file ended.
#[derive(Debug)]
pub enum FileOutcome {
    /// Verified, durable, in place.
    Done(FileDigests),
    /// The destination was up to date.
    Skipped,
    /// It failed.
    Failed(Error),
}

/// What the driver of a sender must know.
#[derive(Debug)]
pub enum SendEvent {
    /// A file ended.
    Settled {
        /// The file.
        file: FileId,
        /// Its entry.
        entry: FileEntry,
        /// How.
        outcome: FileOutcome,
    },
    /// The receiver has a remark on a file.
    Notice {
        /// The file.
        file: FileId,
        /// The remark.
        text: String,
    },
    /// The session cannot go on.
    Aborted(Error),
}

#[derive(Debug)]
struct SendFile {
    entry: FileEntry,
    order: BlockOrder,
    /// Its blocks are dear to begin in the wrong place: none is sent before the receiver has said what it has.
    unasked: bool,
    /// Blocks that no lane has and the receiver has not confirmed; a packed file counts as one block.
    pending: RangeSet,
    /// Blocks that a lane has taken and the receiver has not confirmed.
    in_flight: BTreeMap<u64, LaneId>,
    /// Pending blocks that a lane had taken which is dead: they may have arrived all the same.
    orphaned: RangeSet,
    /// It cannot be sent after all: its blocks stay pending until it settles.
    withdrawn: bool,
    /// The receiver cannot take it yet: its blocks stay pending until they are wanted.
    waits: bool,
    /// Of a file whose lanes are replicas: blocks that the receiver has asked for and nobody has looked at yet.
    wanted: RangeSet,
    /// What the receiver has asked for, in this order, and lanes have not all taken: it asks first for what it needs first.
    wants: VecDeque<Range<u64>>,
    /// Of a growing file whose writer pauses: where it ends now, and up to where the part of a block there has been sent.
    tail: Range<u64>,
}

impl SendFile {
    /// Whether a lane may take a block of it.
    fn is_ready(&self) -> bool {
        !self.withdrawn && !self.waits && !self.unasked && !self.pending.is_empty()
    }

    /// The first stretch of what was asked for first and no lane has; `None`: nothing was asked for, and the order does not matter.
    fn first_wanted(&mut self) -> Option<Range<u64>> {
        while let Some(wanted) = self.wants.front() {
            if let Some(range) = self.pending.within(wanted.clone()).next() {
                return Some(range);
            }
            self.wants.pop_front();
        }
        None
    }

    /// Takes the blocks of `range` back from their lanes. Cost: by how many they are, not by how many there are.
    fn take_in_flight(&mut self, range: Range<u64>) -> Vec<u64> {
        let taken: Vec<u64> = self.in_flight.range(range).map(|(index, _)| *index).collect();
        for index in &taken {
            self.in_flight.remove(index);
        }
        taken
    }
}

/// The sending end of a session.
#[derive(Debug)]
pub struct SendSession {
    log: ControlLog,
    linger: Duration,
    files: BTreeMap<FileId, SendFile>,
    /// Files with pending blocks; small and large apart so that small ones pack well when they alternate.
    ready_small: BTreeSet<FileId>,
    ready_large: BTreeSet<FileId>,
    /// Growing files with a part of a block to send, behind all that is whole.
    ready_tails: BTreeSet<FileId>,
    /// The large file of the last block: where one grows, files take turns.
    last_large: Option<FileId>,
    /// Small files gave way to a file that grows the last time.
    small_gave_way: bool,
    runs: Runs,
    path_bytes: usize,
    offered: u64,
    offered_bytes: u64,
    offers_ended: bool,
    /// The receiver has finished, and was told goodbye.
    finished: bool,
    confirmed_bytes: u64,
    held_bytes: u64,
    up_to_date_bytes: u64,
    sent_again_blocks: u64,
    events: VecDeque<SendEvent>,
    over: bool,
    /// When this end noticed that it has only its last words left to say.
    leaving_since: Option<Instant>,
    /// The session was over when a lane ended: what the log would send again is of no use any more.
    ended: bool,
}

impl SendSession {
    /// A sender that outlives its last lane by `linger`.
    pub fn new(linger: Duration) -> Self {
        Self {
            log: ControlLog::default(),
            linger,
            files: BTreeMap::new(),
            ready_small: BTreeSet::new(),
            ready_large: BTreeSet::new(),
            ready_tails: BTreeSet::new(),
            last_large: None,
            small_gave_way: false,
            runs: Runs::default(),
            path_bytes: 0,
            offered: 0,
            offered_bytes: 0,
            offers_ended: false,
            finished: false,
            confirmed_bytes: 0,
            held_bytes: 0,
            up_to_date_bytes: 0,
            sent_again_blocks: 0,
            events: VecDeque::new(),
            over: false,
            leaving_since: None,
            ended: false,
        }
    }

    // Input.

    /// A lane is up.
    pub fn handle_lane_up(&mut self, lane: LaneId) {
        self.log.handle_lane_up(lane);
    }

    /// A lane is dead: the blocks it had taken go back to the pool.
    pub fn handle_lane_down(&mut self, lane: LaneId, now: Instant) {
        self.ended = self.is_over();
        self.log.handle_lane_down(lane, now);
        self.runs.forget(lane);
        self.send_tails_again();
        let Self { files, ready_small, ready_large, sent_again_blocks, .. } = self;
        for (id, file) in files.iter_mut() {
            let lost: Vec<u64> = file.in_flight.iter().filter(|(_, l)| **l == lane).map(|(index, _)| *index).collect();
            for index in &lost {
                file.in_flight.remove(index);
                file.pending.insert(*index..index + 1);
                if !file.waits {
                    file.orphaned.insert(*index..index + 1);
                }
            }
            if !file.withdrawn {
                *sent_again_blocks += lost.len() as u64;
            }
            if file.is_ready() {
                if file.entry.is_packed() {
                    ready_small.insert(*id)
                } else {
                    ready_large.insert(*id)
                };
            }
        }
    }

    /// Nothing has been heard of these lanes for a while, and something of others. Returns those that are to be closed: nothing but
    /// blocks on them is left to send.
    #[must_use]
    pub fn handle_silence(&mut self, silent: &[LaneId]) -> Vec<LaneId> {
        self.log.handle_silence(silent);
        if !self.ready_small.is_empty() || !self.ready_large.is_empty() {
            return Vec::new();
        }
        let holds =
            |lane: &&LaneId| self.files.values().any(|file| file.in_flight.values().any(|other| other == *lane));
        silent.iter().filter(holds).copied().collect()
    }

    /// A stretch of the peer's control log. Errors: the peer broke the protocol; the session is aborted, since the log is the
    /// same on every lane.
    pub fn handle_messages(&mut self, first: u64, encoded: &[u8]) -> Result<(), Error> {
        let taken = self.log.handle_frame(first, encoded);
        let taken =
            taken.and_then(|messages| messages.into_iter().try_for_each(|message| self.handle_message(message)));
        taken.inspect_err(|error| self.abort(copied(error)))
    }

    /// The peer has taken our messages below `next`. Errors: it cannot have; the session is aborted.
    pub fn handle_acknowledgement(&mut self, next: u64) -> Result<(), Error> {
        self.log.handle_acknowledgement(next).inspect_err(|error| self.abort(copied(error)))
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.is_leaving() && now >= *self.leaving_since.get_or_insert(now) + FAREWELL_TIME_MAX {
            self.ended = true;
        }
        if self.log.alone_since().is_some_and(|since| now >= since + self.linger) && !self.over {
            self.finish_with(lost_every_lane(self.linger));
        }
    }

    fn handle_message(&mut self, message: Message) -> Result<(), Error> {
        match message {
            Message::Have { file, blocks } => self.handle_have(file, &blocks),
            Message::Want { file, blocks } => self.handle_want(file, &blocks),
            Message::Skipped { file } => self.settle(file, FileOutcome::Skipped),
            Message::Done { file, digests } => self.settle(file, FileOutcome::Done(digests)),
            Message::Failed { file, error } => self.settle(file, FileOutcome::Failed(error)),
            Message::Notice { file, text } => {
                self.events.push_back(SendEvent::Notice { file, text });
                Ok(())
            }
            Message::Wait { file } => self.handle_wait(file),
            Message::Finished => self.handle_finished(),
            Message::Abort { error } => {
                self.finish_with(error.refused(true));
                Ok(())
            }
            Message::Offer { .. }
            | Message::Withdraw { .. }
            | Message::Unreadable { .. }
            | Message::OffersEnd { .. }
            | Message::Ended { .. }
            | Message::Sealed { .. }
            | Message::Bye
            | Message::Told(_)
            | Message::Concluded(_) => Err(Error::protocol("a receiver sent a message that receivers do not send")),
        }
    }

    fn handle_have(&mut self, id: FileId, blocks: &[(u64, u64)]) -> Result<(), Error> {
        let Some(file) = known(&mut self.files, self.offered, id)? else { return Ok(()) };
        let count = unit_count(&file.entry);
        for &(start, end) in blocks {
            if end > count {
                return Err(beyond_end(&file.entry));
            }
            for index in file.take_in_flight(start..end) {
                self.confirmed_bytes = self.confirmed_bytes.saturating_add(unit_bytes(&file.entry, index..index + 1));
            }
            for range in file.pending.within(start..end) {
                let bytes = unit_bytes(&file.entry, range.clone());
                let ours: u64 = file.orphaned.within(range).map(|range| unit_bytes(&file.entry, range)).sum();
                self.confirmed_bytes = self.confirmed_bytes.saturating_add(bytes);
                self.held_bytes = self.held_bytes.saturating_add(bytes - ours);
            }
            file.pending.remove(start..end);
            file.orphaned.remove(start..end);
        }
        let was_asked = !std::mem::replace(&mut file.unasked, false);
        // It was looked up. A file that had no block yet when it had to wait is told so by nothing else.
        let waited = file.entry.growth.is_some() && std::mem::replace(&mut file.waits, false);
        if waited {
            // What went of a part of a block was read past.
            file.tail.start = 0;
        }
        if file.pending.is_empty() {
            self.ready_small.remove(&id);
            self.ready_large.remove(&id);
        } else if (!was_asked || waited) && file.is_ready() {
            self.mark_ready(id, false);
        }
        Ok(())
    }

    fn handle_wait(&mut self, id: FileId) -> Result<(), Error> {
        let Some(file) = known(&mut self.files, self.offered, id)? else { return Ok(()) };
        file.waits = true;
        self.ready_small.remove(&id);
        self.ready_large.remove(&id);
        Ok(())
    }

    fn handle_finished(&mut self) -> Result<(), Error> {
        if !self.offers_ended || !self.files.is_empty() {
            return Err(Error::protocol("the receiver has finished before every file had its outcome"));
        }
        if !std::mem::replace(&mut self.finished, true) && !self.over {
            self.log.push(&Message::Bye);
        }
        Ok(())
    }

    fn handle_want(&mut self, id: FileId, blocks: &[(u64, u64)]) -> Result<(), Error> {
        let Some(file) = known(&mut self.files, self.offered, id)? else { return Ok(()) };
        let count = unit_count(&file.entry);
        file.waits = false;
        file.unasked = false;
        for &(start, end) in blocks {
            if end > count {
                return Err(beyond_end(&file.entry));
            }
            // What it had confirmed and misses now counts as missing again.
            let lost = unit_bytes(&file.entry, start..end) - missing_bytes(file, start..end);
            self.confirmed_bytes = self.confirmed_bytes.saturating_sub(lost);
            file.take_in_flight(start..end);
            let unsent: u64 = file.pending.within(start..end).map(|range| range.end - range.start).sum();
            file.pending.insert(start..end);
            match file.order {
                BlockOrder::Shared => file.wanted.insert(start..end),
                BlockOrder::OnDemand | BlockOrder::Runs if file.wants.len() < WANTS_MAX => {
                    file.wants.push_back(start..end)
                }
                BlockOrder::OnDemand | BlockOrder::Runs | BlockOrder::Next | BlockOrder::OneLane => {}
            }
            // What the receiver asks for of a withdrawn file stays unsent; the file settles when the receiver has heard.
            if !file.withdrawn {
                self.sent_again_blocks = self.sent_again_blocks.saturating_add(end - start - unsent);
            }
        }
        if file.is_ready() {
            let small = file.entry.is_packed();
            self.mark_ready(id, small);
        }
        Ok(())
    }

    fn settle(&mut self, id: FileId, outcome: FileOutcome) -> Result<(), Error> {
        if known(&mut self.files, self.offered, id)?.is_none() {
            return Ok(());
        }
        if let Some(file) = self.files.remove(&id) {
            self.ready_small.remove(&id);
            self.ready_large.remove(&id);
            self.ready_tails.remove(&id);
            self.path_bytes -= file.entry.path.as_bytes().len();
            let missing = missing_bytes(&file, 0..unit_count(&file.entry));
            if !matches!(outcome, FileOutcome::Failed(_)) {
                self.confirmed_bytes = self.confirmed_bytes.saturating_add(missing);
            }
            if matches!(outcome, FileOutcome::Skipped) {
                self.up_to_date_bytes = self.up_to_date_bytes.saturating_add(missing);
            }
            self.events.push_back(SendEvent::Settled { file: id, entry: file.entry, outcome });
        }
        Ok(())
    }

    // Commands.

    /// Adds a file to the manifest; its blocks join the pool at once.
    pub fn add_file(&mut self, entry: FileEntry) -> FileId {
        self.add_file_in(entry, BlockOrder::Next)
    }

    /// Adds a file whose blocks lanes take in this order. Those of a large file that are not in the order of [`BlockOrder::Next`]
    /// join the pool when the receiver has said which it has.
    pub fn add_file_in(&mut self, entry: FileEntry, order: BlockOrder) -> FileId {
        assert!(!self.offers_ended, "the manifest has ended");
        let id = FileId(self.offered);
        self.offered += 1;
        self.offered_bytes += entry.size;
        self.path_bytes += entry.path.as_bytes().len();
        self.log.push(&Message::Offer { file: id, entry: entry.clone() });
        let mut pending = RangeSet::default();
        pending.insert(0..unit_count(&entry));
        let small = entry.is_packed();
        let unasked = order != BlockOrder::Next && !small;
        let in_flight = BTreeMap::new();
        self.files.insert(
            id,
            SendFile {
                entry,
                order,
                unasked,
                pending,
                in_flight,
                orphaned: RangeSet::default(),
                withdrawn: false,
                waits: false,
                wanted: RangeSet::default(),
                wants: VecDeque::new(),
                tail: 0..0,
            },
        );
        if !unasked {
            self.mark_ready(id, small);
        }
        id
    }

    /// Something in the sources cannot be offered.
    pub fn add_unreadable(&mut self, error: Error) {
        self.log.push(&Message::Unreadable { error });
    }

    /// The manifest is complete.
    pub fn end_files(&mut self) {
        self.offers_ended = true;
        self.log.push(&Message::OffersEnd { files: self.offered, bytes: self.offered_bytes });
    }

    /// A file cannot be sent after all; it settles as failed when the receiver has dropped it.
    pub fn withdraw(&mut self, id: FileId, error: Error) {
        let Some(file) = self.files.get_mut(&id).filter(|file| !file.withdrawn) else { return };
        file.withdrawn = true;
        self.ready_small.remove(&id);
        self.ready_large.remove(&id);
        self.log.push(&Message::Withdraw { file: id, error });
    }

    /// Takes the next block for `lane`; `None` when nothing is to be sent now.
    pub fn next_block(&mut self, lane: LaneId) -> Option<BlockTask> {
        // Who feeds a lane asks once more before it learns that the lane is dead: nobody would take such a block back.
        if self.over || !self.log.is_up(lane) {
            return None;
        }
        if let Some((file, index)) = self.next_of_run(lane) {
            return self.take_single(file, index, lane);
        }
        let large = self.next_ready_large();
        match (self.ready_small.first().copied(), large) {
            (Some(small), Some(large)) if self.small_goes_first(small, large) => self.next_packed(lane),
            (Some(_), None) => self.next_packed(lane),
            (_, Some(large)) => self.next_large(large, lane),
            (None, None) => self.next_tail(),
        }
    }

    fn next_large(&mut self, first: FileId, lane: LaneId) -> Option<BlockTask> {
        let file = self.files.get_mut(&first)?;
        if !file.order.has_runs() {
            let next = file.first_wanted().or_else(|| file.pending.iter().next())?;
            return self.take_single(first, next.start, lane);
        }
        self.begin_run(lane);
        match self.next_of_run(lane) {
            Some((file, index)) => self.take_single(file, index, lane),
            // What is left is one lane's alone.
            None => self.next_packed(lane),
        }
    }

    /// Says how many lanes there are to be, so that the first leaves to the others what is theirs.
    pub fn expect_lanes(&mut self, lanes: u32) {
        self.runs.expect_lanes(lanes);
    }

    /// The source of runs is `round_trip` away; zero: nobody knows.
    pub fn handle_round_trip(&mut self, round_trip: Duration, now: Instant) {
        self.runs.handle_round_trip(round_trip, now);
    }

    /// The file whose run `lane` is in, and a block: those before it the lane will be given next, if they are not here already, and
    /// no other lane will. `None`: it has no run.
    pub fn run_of(&self, lane: LaneId) -> Option<(FileId, u64)> {
        self.runs.of(lane)
    }

    /// Whether a block of a file has not arrived, as far as this end knows.
    pub fn is_missing(&self, id: FileId, index: u64) -> bool {
        self.files.get(&id).is_some_and(|file| file.pending.contains(index) || file.in_flight.contains_key(&index))
    }

    /// The next block of the run of `lane`; ends a run that has none left.
    fn next_of_run(&mut self, lane: LaneId) -> Option<(FileId, u64)> {
        let Self { runs, files, .. } = self;
        runs.next(lane, |id| files.get(&id).filter(|file| file.is_ready()).map(|file| &file.pending))
    }

    /// Gives `lane` a run: of the first file that has blocks in nobody's run, or its part of what the slowest lane has before it.
    fn begin_run(&mut self, lane: LaneId) {
        let Self { runs, files, ready_large, .. } = self;
        let ready = ready_large.len();
        for id in ready_large.iter() {
            let Some(file) = files.get_mut(id).filter(|file| file.order.has_runs()) else { continue };
            let mut first = RangeSet::default();
            file.first_wanted().into_iter().for_each(|range| first.insert(range));
            if [&first, &file.pending].into_iter().any(|blocks| runs.begin(lane, *id, file.order, blocks, ready)) {
                return;
            }
        }
        let splits = |id: FileId| {
            let file = files.get(&id).filter(|file| file.is_ready() && file.order.splits_runs());
            file.map(|file| &file.pending)
        };
        runs.take_from_slowest(lane, splits);
    }

    /// Ends the session at both ends.
    pub fn abort(&mut self, error: Error) {
        if !self.over {
            self.log.push(&Message::Abort { error: copied(&error) });
            self.finish_with(error);
        }
    }

    fn take_single(&mut self, id: FileId, index: u64, lane: LaneId) -> Option<BlockTask> {
        let file = self.files.get_mut(&id)?;
        file.pending.remove(index..index + 1);
        file.in_flight.insert(index, lane);
        self.last_large = Some(id);
        if file.pending.is_empty() {
            self.ready_large.remove(&id);
        }
        Some(BlockTask::Single { file: id, entry: file.entry.clone(), index })
    }

    fn next_packed(&mut self, lane: LaneId) -> Option<BlockTask> {
        let (mut bytes, mut header_bytes) = (0, 0);
        let mut files = Vec::new();
        for id in &self.ready_small {
            let Some(file) = self.files.get_mut(id) else { continue };
            let entry_bytes = file.entry.path.as_bytes().len() + ENTRY_FIXED_BYTES;
            let fits = bytes + file.entry.size <= PACK_BYTES_MAX && header_bytes + entry_bytes <= PACK_HEADER_BYTES_MAX;
            if !files.is_empty() && !fits || files.len() == PACK_FILES_MAX {
                break;
            }
            bytes += file.entry.size;
            header_bytes += entry_bytes;
            file.pending = RangeSet::default();
            file.in_flight.insert(0, lane);
            files.push((*id, file.entry.clone()));
        }
        for (id, _) in &files {
            self.ready_small.remove(id);
        }
        (!files.is_empty()).then_some(BlockTask::Packed { files })
    }

    fn mark_ready(&mut self, id: FileId, small: bool) {
        if small {
            self.ready_small.insert(id)
        } else {
            self.ready_large.insert(id)
        };
    }

    fn finish_with(&mut self, error: Error) {
        // Both ends may abort at once: the first word counts. What is complete only ends.
        if !std::mem::replace(&mut self.over, true) && !self.is_complete() {
            self.events.push_back(SendEvent::Aborted(error));
        }
    }

    // Output.

    /// The next control frame for `lane`.
    pub fn poll_frame(&mut self, lane: LaneId) -> Option<Frame> {
        self.log.poll_frame(lane).or_else(|| self.log.poll_acknowledgement(lane))
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<SendEvent> {
        self.events.pop_front()
    }

    /// When [`SendSession::handle_timeout`] must be called at the latest.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let alone = self.log.alone_since().map(|since| since + self.linger);
        let left = self.leaving_since.map(|since| since + FAREWELL_TIME_MAX);
        [alone, left].into_iter().flatten().min()
    }

    // Questions.

    /// Whether the manifest may grow now; the reader of directories waits while it may not.
    pub fn has_room(&self) -> bool {
        self.log.has_room()
            && self.files.len() < UNSETTLED_FILES_MAX / 2
            && self.path_bytes < UNSETTLED_PATH_BYTES_MAX / 2
    }

    /// Whether every file of a complete manifest has settled, and the receiver has finished.
    pub fn is_complete(&self) -> bool {
        self.finished
    }

    /// Whether the session is over: complete and said so, or aborted.
    pub fn is_over(&self) -> bool {
        self.ended || self.is_leaving() && (self.log.is_sent() || self.log.lane_count() == 0)
    }

    /// Whether only its last words are left to say.
    fn is_leaving(&self) -> bool {
        self.over || self.finished
    }

    /// Whether a file still waits for its outcome.
    pub fn is_unsettled(&self, file: FileId) -> bool {
        self.files.contains_key(&file)
    }

    /// Whether the receiver has confirmed every block of a file, or wants no more of it.
    pub fn has_arrived(&self, file: FileId) -> bool {
        self.files.get(&file).is_none_or(|file| file.pending.is_empty() && file.in_flight.is_empty())
    }

    /// File bytes that the receiver has confirmed, those it had before included.
    pub fn confirmed_bytes(&self) -> u64 {
        self.confirmed_bytes
    }

    /// Those of the confirmed bytes that an earlier run had left of files that this one finishes.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Those of the confirmed bytes that are of files that were up to date.
    pub fn up_to_date_bytes(&self) -> u64 {
        self.up_to_date_bytes
    }

    /// Confirmed bytes of files that have no outcome: when this session is lost, the next one finds them at the receiver.
    pub fn unsettled_bytes(&self) -> u64 {
        self.files.values().map(|file| file.entry.size - missing_bytes(file, 0..unit_count(&file.entry))).sum()
    }

    /// Files and bytes offered, and whether the manifest is complete.
    pub fn offered(&self) -> (u64, u64, bool) {
        (self.offered, self.offered_bytes, self.offers_ended)
    }

    /// Large files under way, the first `most` of the manifest.
    pub fn active_files(&self, most: usize) -> Vec<ActiveFile> {
        let under_way = self.files.values().filter(|file| !file.entry.is_packed() && !file.in_flight.is_empty());
        let shown = |file: &SendFile| ActiveFile {
            path: file.entry.path.clone(),
            size: file.entry.size,
            done: file.entry.size - missing_bytes(file, 0..unit_count(&file.entry)),
        };
        under_way.take(most).map(shown).collect()
    }

    /// Blocks that were sent again: their lane died, or their check failed.
    pub fn sent_again_blocks(&self) -> u64 {
        self.sent_again_blocks
    }

    /// Bytes of messages that the peer has not acknowledged.
    pub fn log_bytes(&self) -> usize {
        self.log.waiting_bytes()
    }

    /// How many lanes are up.
    pub fn lane_count(&self) -> usize {
        self.log.lane_count()
    }
}

/// How many blocks a file counts for; a packed file is one, whatever its size.
pub(super) fn unit_count(entry: &FileEntry) -> u64 {
    if entry.is_packed() { 1 } else { entry.blocks().count() }
}

/// Bytes of a range of blocks, which is not empty and within the file. Cost: constant, however many blocks there are.
fn unit_bytes(entry: &FileEntry, range: Range<u64>) -> u64 {
    if entry.is_packed() {
        return entry.size;
    }
    let (blocks, last) = (entry.blocks(), range.end - 1);
    blocks.offset(last) + blocks.length(last) - blocks.offset(range.start)
}

/// Bytes within a range of blocks that the receiver has not confirmed.
fn missing_bytes(file: &SendFile, range: Range<u64>) -> u64 {
    let in_flight = file.in_flight.range(range.clone()).map(|(&index, _)| index..index + 1);
    file.pending.within(range).chain(in_flight).map(|range| unit_bytes(&file.entry, range)).sum()
}

/// The file `id` if it is not settled yet. Errors: it was never offered.
fn known(files: &mut BTreeMap<FileId, SendFile>, offered: u64, id: FileId) -> Result<Option<&mut SendFile>, Error> {
    if id.0 >= offered {
        return Err(Error::protocol(format!("file {} from the peer: it was never offered", id.0)));
    }
    Ok(files.get_mut(&id))
}

fn beyond_end(entry: &FileEntry) -> Error {
    Error::protocol(format!("blocks from the peer: beyond the end of {}", entry.path))
}

/// What both ends report when no lane has come back in time.
pub(super) fn lost_every_lane(linger: Duration) -> Error {
    let text =
        format!("no lane to the peer for {} s: given up; run the same command again to resume", linger.as_secs());
    Error::new(ErrorKind::Unreachable, Scope::Path, Phase::Transfer, text).retry(Retry::After)
}
