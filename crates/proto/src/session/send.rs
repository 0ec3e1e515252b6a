//! The sending end of a session: the pool of blocks that lanes pull from, and the state of each file.
//!
//! Offers files, assigns blocks to lanes, and takes back the blocks of a lane that is down. Refuses to read files or
//! send bytes. Time is an argument; frames and events come in by `handle_*` and leave by `poll_*`.

mod growing;
mod shared;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use super::hello::PathNumber;
use super::life::{Ending, LifeEvent, SessionCore, SessionEvent, SessionKind};
use super::message::{Frame, Message, PACK_BYTES_MAX, PACK_FILES_MAX, PACK_HEADER_BYTES_MAX};
use super::notices::NoticeBudget;
use super::runs::{BlockOrder, Runs};
use super::values::Overwrite;
use super::{ActiveFile, FileId, FileOutcome, LaneId, UNSETTLED_FILES_MAX, UNSETTLED_PATH_BYTES_MAX};
use crate::error::Error;
use crate::file::{EntryKind, FileEntry};
use crate::range_set::RangeSet;
use crate::rate::RateContract;
use crate::setting::Setting;

/// Maximum bytes of an entry in a header besides its path: eight integers including the file number, and a kind.
const ENTRY_FIXED_BYTES: usize = 80;

/// Maximum number of ranges of a file that are sent in the order of the receiver's requests. Further ranges follow
/// after these, in ascending order. Reason: a receiver requests some tens at a time; a receiver that repeats requests
/// must not cost memory.
const WANTS_MAX: usize = 1000;

/// Next item for a lane to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockTask {
    /// One block of one file.
    Single {
        /// The file.
        file: FileId,
        /// Entry of the file.
        entry: FileEntry,
        /// Index of the block.
        index: u64,
    },
    /// Tail of a growing file: part of a block that is not complete yet.
    Tail {
        /// The file.
        file: FileId,
        /// Entry of the file.
        entry: FileEntry,
        /// Range of the tail in the file, in bytes.
        range: Range<u64>,
    },
    /// Whole small files.
    Packed {
        /// Files with their entries.
        files: Vec<(FileId, FileEntry)>,
    },
}

/// Event for the driver of a sender.
#[derive(Debug)]
pub enum SendEvent {
    /// A file has its outcome.
    Settled {
        /// The file.
        file: FileId,
        /// Entry of the file.
        entry: FileEntry,
        /// Outcome of the file.
        outcome: FileOutcome,
    },
    /// The receiver sent a notice about a file, or more notices than a user can read.
    Notice {
        /// The file.
        file: FileId,
        /// Text of the notice.
        text: String,
    },
    /// The session cannot continue.
    Aborted(Error),
}

impl SessionEvent for SendEvent {
    fn aborted(error: Error) -> Self {
        Self::Aborted(error)
    }
}

#[derive(Debug)]
struct SendFile {
    entry: FileEntry,
    order: BlockOrder,
    /// True until the receiver has reported which blocks it has, for a large file in another order than
    /// [`BlockOrder::Next`]. No block is sent before. Reason: in these orders, a block that the receiver has is
    /// expensive to send.
    unasked: bool,
    /// Blocks that no lane has and the receiver has not confirmed. A packed file counts as one block.
    pending: RangeSet,
    /// Blocks that a lane has taken and the receiver has not confirmed.
    in_flight: BTreeMap<u64, LaneId>,
    /// Pending blocks that were on a lane when it went down. The receiver may have them.
    orphaned: RangeSet,
    /// True if the file cannot be sent: its blocks stay pending until it settles.
    withdrawn: bool,
    /// Reason of the withdrawal, which the receiver sends back as the outcome.
    reason: Option<Error>,
    /// True while the receiver cannot accept the file: its blocks stay pending until the receiver asks for them.
    waits: bool,
    /// For [`BlockOrder::Shared`]: blocks that the receiver has requested since the last [`SendSession::take_wanted`].
    wanted: RangeSet,
    /// Ranges that the receiver has requested and lanes have not completely taken, in the order of the requests. The
    /// receiver requests first the blocks that it needs first.
    wants: VecDeque<Range<u64>>,
    /// Tail of a growing file: `start` is the offset up to which it has been sent, `end` the size of the file when its
    /// writer paused.
    tail: Range<u64>,
}

impl SendFile {
    /// Returns true if a lane may take a block of the file.
    fn is_ready(&self) -> bool {
        !self.withdrawn && !self.waits && !self.unasked && !self.pending.is_empty()
    }

    /// Returns the first pending range of the oldest request. `None`: nothing is requested, and any order is right.
    fn first_wanted(&mut self) -> Option<Range<u64>> {
        while let Some(wanted) = self.wants.front() {
            if let Some(range) = self.pending.within(wanted.clone()).next() {
                return Some(range);
            }
            self.wants.pop_front();
        }
        None
    }

    /// Takes the blocks of `range` back from their lanes. Cost: proportional to the blocks in flight in `range`, not to
    /// its length.
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
    pub(super) core: SessionCore<SendEvent>,
    files: BTreeMap<FileId, SendFile>,
    /// Files with pending blocks. Small and large files are separate, so that small files pack well when the two
    /// alternate.
    ready_small: BTreeSet<FileId>,
    ready_large: BTreeSet<FileId>,
    /// Growing files with a tail to send, after all complete blocks.
    ready_tails: BTreeSet<FileId>,
    /// Large file of the last block: where a file grows, large files take turns.
    last_large: Option<FileId>,
    /// True if small files yielded to a growing file the last time.
    small_gave_way: bool,
    runs: Runs,
    path_bytes: usize,
    offered: u64,
    offered_bytes: u64,
    offers_ended: bool,
    confirmed_bytes: u64,
    held_bytes: u64,
    up_to_date_bytes: u64,
    sent_again_blocks: u64,
    notices: NoticeBudget,
    /// True if the receiver may report that files are up to date.
    may_skip: bool,
    /// True if the manifest must be one file.
    is_for_one_file: bool,
    /// True if the manifest has a directory, or more than one file.
    has_several: bool,
}

impl SendSession {
    /// Returns a sender that outlives its last lane by `linger`.
    pub fn new(linger: Duration) -> Self {
        Self {
            core: SessionCore::new(SessionKind::Copy { linger }),
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
            confirmed_bytes: 0,
            held_bytes: 0,
            up_to_date_bytes: 0,
            sent_again_blocks: 0,
            notices: NoticeBudget::default(),
            may_skip: true,
            is_for_one_file: false,
            has_several: false,
        }
    }

    /// Sets the treatment of existing files that this end has requested. Only [`Overwrite::IfChanged`] lets the
    /// receiver leave files out.
    pub fn set_overwrite(&mut self, overwrite: Overwrite) {
        self.may_skip = overwrite == Overwrite::IfChanged;
    }

    /// Limits the manifest to one file, because a digest of one file was given. Any other manifest ends the session as
    /// wrong usage. The receiver refuses it too, but only this end knows that its own user is wrong.
    pub fn expect_one_file(&mut self) {
        self.is_for_one_file = true;
        self.refuse_several();
    }

    fn refuse_several(&mut self) {
        if self.is_for_one_file && self.has_several {
            let text = "a digest was given, which is of one file: give one file as the source";
            self.abort(Error::usage(&[Setting::Expect], text));
        }
    }

    // Input.

    /// Records that a lane is up.
    pub fn handle_lane_up(&mut self, lane: LaneId) {
        self.core.log.handle_lane_up(lane);
    }

    /// Records that a lane is down; returns its blocks to the pool.
    pub fn handle_lane_down(&mut self, lane: LaneId, now: Instant) {
        self.core.handle_lane_down(lane, now);
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

    /// Records lanes that are silent while others are active. Returns the lanes to close: those with unconfirmed
    /// blocks, once no other block is left to send.
    #[must_use]
    pub fn handle_silence(&mut self, silent: &[LaneId]) -> Vec<LaneId> {
        self.core.log.handle_silence(silent);
        if !self.ready_small.is_empty() || !self.ready_large.is_empty() {
            return Vec::new();
        }
        let holds =
            |lane: &&LaneId| self.files.values().any(|file| file.in_flight.values().any(|other| other == *lane));
        silent.iter().filter(holds).copied().collect()
    }

    /// Accepts a batch of the peer's control log. Errors: the peer violated the protocol. The session is aborted,
    /// because the log is the same on every lane.
    pub fn handle_messages(&mut self, first: u64, encoded: &[u8]) -> Result<(), Error> {
        let taken = self.core.log.handle_frame(first, encoded);
        let taken =
            taken.and_then(|messages| messages.into_iter().try_for_each(|message| self.handle_message(message)));
        taken.inspect_err(|error| self.abort(error.clone()))
    }

    /// Records that the peer has accepted our messages below `next`. Errors: such a message was never sent; the session
    /// is aborted.
    pub fn handle_acknowledgement(&mut self, next: u64) -> Result<(), Error> {
        self.core.handle_acknowledgement(next)
    }

    /// Checks the timeouts against `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        let line = self.notices.handle_timeout(now);
        self.tell_left_out(line);
        self.core.handle_timeout(now);
    }

    /// Reports the notices that were left out until now. Called before the last event.
    fn flush_notices(&mut self) {
        let line = self.notices.take_line();
        self.tell_left_out(line);
    }

    /// Reports the notices that were left out, if any.
    fn tell_left_out(&mut self, line: Option<String>) {
        if let Some(text) = line {
            // It is about no file alone; this is the last one that the receiver can know.
            self.core.emit(SendEvent::Notice { file: FileId(self.offered.saturating_sub(1)), text });
        }
    }

    fn handle_message(&mut self, message: Message) -> Result<(), Error> {
        match message {
            Message::Have { file, blocks } => self.handle_have(file, &blocks),
            Message::Want { file, blocks } => self.handle_want(file, &blocks),
            Message::Skipped { file } => self.handle_skipped(file),
            Message::Done { file, digests } => self.settle(file, FileOutcome::Done(digests)),
            Message::Failed { file, error } => {
                let error = self.own_reason(file, &error).unwrap_or(error);
                self.settle(file, FileOutcome::Failed(error))
            }
            Message::Notice { file, text } => {
                if self.notices.admit() {
                    self.core.emit(SendEvent::Notice { file, text });
                }
                Ok(())
            }
            Message::Wait { file } => self.handle_wait(file),
            Message::Contract { path, contract } => {
                self.core.handle_contract(path, contract);
                Ok(())
            }
            Message::Finished => self.handle_finished(),
            Message::Abort { error } => {
                self.flush_notices();
                self.core.handle_abort(error);
                Ok(())
            }
            Message::Offer { .. }
            | Message::Withdraw { .. }
            | Message::Unreadable { .. }
            | Message::OffersEnd { .. }
            | Message::Ended { .. }
            | Message::FinalDigest { .. }
            | Message::Bye
            | Message::Answer(_)
            | Message::Report(_)
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
        // The receiver has looked the file up. For a growing file that had no block when it had to wait, no other
        // message ends the wait.
        let waited = file.entry.growth.is_some() && std::mem::replace(&mut file.waits, false);
        if waited {
            // The receiver discarded tails while the file waited: the tail starts over.
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

    /// Returns the reason for which this end has withdrawn the file, if the receiver sends it back as `told`. It is an
    /// error of this end, and not of the peer.
    fn own_reason(&self, id: FileId, told: &Error) -> Option<Error> {
        let own = self.files.get(&id)?.reason.as_ref()?;
        let of = |error: &Error| (error.kind, error.scope, error.phase, error.retry);
        (of(own) == of(told)).then(|| own.clone())
    }

    /// Settles a file that the receiver reports as up to date. Errors: this end asked for its data in any case.
    fn handle_skipped(&mut self, id: FileId) -> Result<(), Error> {
        if !self.may_skip
            && let Some(file) = known(&mut self.files, self.offered, id)?
            && file.entry.kind == EntryKind::File
        {
            let text = format!(
                "the receiver reports {} as up to date, and did not take its data; this copy has to write every file again",
                file.entry.path
            );
            return Err(Error::protocol(text));
        }
        self.settle(id, FileOutcome::Skipped)
    }

    fn handle_finished(&mut self) -> Result<(), Error> {
        if !self.offers_ended || !self.files.is_empty() {
            return Err(Error::protocol("the receiver has finished before every file had its outcome"));
        }
        self.flush_notices();
        if self.core.turn(LifeEvent::Leave(Ending::Complete)).is_some() {
            self.core.log.push(&Message::Bye);
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
            // Blocks that were confirmed and are missing now count as missing again.
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
            // Requested blocks of a withdrawn file stay unsent. The file settles once the receiver has processed the
            // withdrawal.
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
            self.core.emit(SendEvent::Settled { file: id, entry: file.entry, outcome });
        }
        Ok(())
    }

    // Commands.

    /// Adds a file to the manifest. Its blocks join the pool at once.
    pub fn add_file(&mut self, entry: FileEntry) -> FileId {
        self.add_file_in(entry, BlockOrder::Next)
    }

    /// Adds a file whose blocks lanes take in `order`. The blocks of a large file join the pool at once with
    /// [`BlockOrder::Next`]; with any other order, once the receiver has reported which blocks it has.
    pub fn add_file_in(&mut self, entry: FileEntry, order: BlockOrder) -> FileId {
        assert!(!self.offers_ended, "the manifest has ended");
        let id = FileId(self.offered);
        self.has_several |= self.offered > 0 || entry.kind == EntryKind::Directory;
        self.offered += 1;
        self.offered_bytes += entry.size;
        self.path_bytes += entry.path.as_bytes().len();
        self.core.log.push(&Message::Offer { file: id, entry: entry.clone() });
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
                reason: None,
                waits: false,
                wanted: RangeSet::default(),
                wants: VecDeque::new(),
                tail: 0..0,
            },
        );
        if !unasked {
            self.mark_ready(id, small);
        }
        self.refuse_several();
        id
    }

    /// Reports to the receiver a source, or a file in a source, that cannot be offered.
    pub fn add_unreadable(&mut self, error: Error) {
        self.core.log.push(&Message::Unreadable { error });
    }

    /// Ends the manifest.
    pub fn end_files(&mut self) {
        self.offers_ended = true;
        self.core.log.push(&Message::OffersEnd { files: self.offered, bytes: self.offered_bytes });
    }

    /// Withdraws a file that cannot be sent. It settles as failed when the receiver has dropped it.
    pub fn withdraw(&mut self, id: FileId, error: Error) {
        let Some(file) = self.files.get_mut(&id).filter(|file| !file.withdrawn) else { return };
        file.withdrawn = true;
        file.reason = Some(error.clone());
        self.ready_small.remove(&id);
        self.ready_large.remove(&id);
        self.core.log.push(&Message::Withdraw { file: id, error });
    }

    /// Takes the next block for `lane`. `None`: nothing can be sent now.
    pub fn next_block(&mut self, lane: LaneId) -> Option<BlockTask> {
        // The feeder of a lane may ask once more before it learns that the lane is down. No event would return such a
        // block to the pool.
        if !self.core.is_active() || !self.core.log.is_up(lane) {
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
            // No run is left for this lane: other lanes keep theirs.
            None => self.next_packed(lane),
        }
    }

    /// Sets the expected number of lanes, so that the first lane leaves the others their share.
    pub fn expect_lanes(&mut self, lanes: u32) {
        self.runs.expect_lanes(lanes);
    }

    /// Records the round-trip time to the source of runs; zero means unknown.
    pub fn handle_round_trip(&mut self, round_trip: Duration, now: Instant) {
        self.runs.handle_round_trip(round_trip, now);
    }

    /// Returns the file of the lane's run, and the end of the blocks that the lane requests now. The lane gets the
    /// blocks before that end next, unless the receiver has them, and no other lane gets them. `None`: the lane has no
    /// run.
    pub fn run_of(&self, lane: LaneId) -> Option<(FileId, u64)> {
        self.runs.of(lane)
    }

    /// Returns true if the receiver has not confirmed a block.
    pub fn is_missing(&self, id: FileId, index: u64) -> bool {
        self.files.get(&id).is_some_and(|file| file.pending.contains(index) || file.in_flight.contains_key(&index))
    }

    /// Returns the next block of the run of `lane`; ends a run that has none left.
    fn next_of_run(&mut self, lane: LaneId) -> Option<(FileId, u64)> {
        let Self { runs, files, .. } = self;
        runs.next(lane, |id| files.get(&id).filter(|file| file.is_ready()).map(|file| &file.pending))
    }

    /// Assigns a run to `lane`: in the first file with blocks in no run, or else part of the run of the slowest lane.
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
        self.flush_notices();
        self.core.abort(error);
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

    // Output.

    /// Returns the next control frame for `lane`.
    pub fn poll_frame(&mut self, lane: LaneId) -> Option<Frame> {
        self.core.poll_frame(lane)
    }

    /// Returns the rate contracts that the receiver has changed since the last call.
    pub fn take_contracts(&mut self) -> BTreeMap<PathNumber, RateContract> {
        self.core.take_contracts()
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<SendEvent> {
        self.core.poll_event()
    }

    /// Returns the latest time for the next call of [`SendSession::handle_timeout`]. It may change with every input and
    /// command. Silent lanes have no deadline here: see [`SendSession::handle_silence`].
    pub fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        self.core.poll_timeout(now)
    }

    // Getters.

    /// Returns true if the manifest may grow now. The reader of directories waits while this is false.
    pub fn has_room(&self) -> bool {
        self.core.log.has_room()
            && self.files.len() < UNSETTLED_FILES_MAX / 2
            && self.path_bytes < UNSETTLED_PATH_BYTES_MAX / 2
    }

    /// Returns true if every file of a complete manifest has settled and the receiver has finished.
    pub fn is_complete(&self) -> bool {
        self.core.is_complete()
    }

    /// Returns true if the session is over: it is complete and has sent its goodbye, or it was aborted.
    pub fn is_over(&self) -> bool {
        self.core.is_over()
    }

    /// Returns true once the session sends no more blocks: it is over, or only its final message is left to send.
    pub fn is_ending(&self) -> bool {
        self.core.is_leaving()
    }

    /// Returns true if a file does not have its outcome yet.
    pub fn is_unsettled(&self, file: FileId) -> bool {
        self.files.contains_key(&file)
    }

    /// Returns true if the receiver has confirmed every block of a file, or the file has settled.
    pub fn has_arrived(&self, file: FileId) -> bool {
        self.files.get(&file).is_none_or(|file| file.pending.is_empty() && file.in_flight.is_empty())
    }

    /// Returns the file bytes that the receiver has confirmed, including those it had before.
    pub fn confirmed_bytes(&self) -> u64 {
        self.confirmed_bytes
    }

    /// Returns the confirmed bytes that an earlier run left at the receiver, of files that this session completes.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Returns the confirmed bytes of files that were up to date.
    pub fn up_to_date_bytes(&self) -> u64 {
        self.up_to_date_bytes
    }

    /// Returns the confirmed bytes of files without an outcome. If this session is lost, the next one finds them at the
    /// receiver.
    pub fn unsettled_bytes(&self) -> u64 {
        self.files.values().map(|file| file.entry.size - missing_bytes(file, 0..unit_count(&file.entry))).sum()
    }

    /// Returns the number of offered files, their bytes, and true if the manifest is complete.
    pub fn offered(&self) -> (u64, u64, bool) {
        (self.offered, self.offered_bytes, self.offers_ended)
    }

    /// Returns the large files in progress, at most the first `most` of the manifest.
    pub fn active_files(&self, most: usize) -> Vec<ActiveFile> {
        let under_way = self.files.values().filter(|file| !file.entry.is_packed() && !file.in_flight.is_empty());
        let shown = |file: &SendFile| ActiveFile {
            path: file.entry.path.clone(),
            size: file.entry.size,
            done: file.entry.size - missing_bytes(file, 0..unit_count(&file.entry)),
        };
        under_way.take(most).map(shown).collect()
    }

    /// Returns the number of blocks sent again because their lane went down or their check failed.
    pub fn sent_again_blocks(&self) -> u64 {
        self.sent_again_blocks
    }

    /// Returns the bytes of messages that the peer has not acknowledged.
    pub fn log_bytes(&self) -> usize {
        self.core.log.waiting_bytes()
    }

    /// Returns true if `lane` is up.
    pub fn is_up(&self, lane: LaneId) -> bool {
        self.core.log.is_up(lane)
    }

    /// Returns the number of lanes that are up.
    pub fn lane_count(&self) -> usize {
        self.core.log.lane_count()
    }
}

/// Returns the number of blocks that a file counts for. A packed file counts for one, whatever its size.
pub(super) fn unit_count(entry: &FileEntry) -> u64 {
    if entry.is_packed() { 1 } else { entry.blocks().count() }
}

/// Returns the bytes of a range of blocks. Range: not empty, within the file. Cost: constant, whatever the number of
/// blocks.
fn unit_bytes(entry: &FileEntry, range: Range<u64>) -> u64 {
    if entry.is_packed() {
        return entry.size;
    }
    let (blocks, last) = (entry.blocks(), range.end - 1);
    blocks.offset(last) + blocks.length(last) - blocks.offset(range.start)
}

/// Returns the bytes within a range of blocks that the receiver has not confirmed.
fn missing_bytes(file: &SendFile, range: Range<u64>) -> u64 {
    let in_flight = file.in_flight.range(range.clone()).map(|(&index, _)| index..index + 1);
    file.pending.within(range).chain(in_flight).map(|range| unit_bytes(&file.entry, range)).sum()
}

/// Returns file `id` if it has not settled yet. Errors: it was never offered.
fn known(files: &mut BTreeMap<FileId, SendFile>, offered: u64, id: FileId) -> Result<Option<&mut SendFile>, Error> {
    if id.0 >= offered {
        return Err(Error::protocol(format!("file {} from the peer: it was never offered", id.0)));
    }
    Ok(files.get_mut(&id))
}

fn beyond_end(entry: &FileEntry) -> Error {
    Error::protocol(format!("blocks from the peer: beyond the end of {}", entry.path))
}
