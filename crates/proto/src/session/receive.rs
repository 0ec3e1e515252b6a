//! The receiving end of a session: what has arrived, what is claimed by which lane, and what the sender is told.

mod growing;
mod replicas;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use super::message::{Frame, Message, ranges_per_message};
use super::send::{FAREWELL_TIME_MAX, FileOutcome, lost_every_lane, unit_count};
use super::{
    ActiveFile, BLOCK_FAILURES_MAX, ControlLog, FileId, LaneId, UNSETTLED_FILES_MAX, UNSETTLED_PATH_BYTES_MAX, copied,
};
use crate::digest::FileDigests;
use crate::error::{Error, ErrorKind, Phase, Retry, Scope};
use crate::file::{FileEntry, RelPath};
use crate::range_set::RangeSet;

/// How long arrived blocks may wait before the sender is told. Reason: well below any round trip that matters, and a
/// handful of messages a second at most.
const REPORT_INTERVAL: Duration = Duration::from_millis(25);

/// Most bytes of messages that the sender may leave unacknowledged. Reason: an honest one stops at half of
/// [`UNSETTLED_FILES_MAX`] files without an outcome, whose outcomes with every path in them take half of this; a liar is cut off.
const UNACKNOWLEDGED_BYTES_MAX: usize = 64 << 20;

/// How long nothing comes by any lane that is heard, until a silent one is what holds up the rest. Reason: sources are read in less.
const STANDSTILL: Duration = Duration::from_secs(1);

/// What the storage said when a file was looked up before its first block.
#[derive(Debug)]
pub enum PrepareOutcome {
    /// Blocks can be written; these are here from an earlier run.
    Ready {
        /// Blocks in the journal; when there are any, a [`RecvEvent::Recheck`] follows.
        have: RangeSet,
        /// A remark for the person at the sender, such as why an earlier part was dropped.
        notice: Option<String>,
    },
    /// The destination is up to date.
    UpToDate,
    /// It is complete already (a directory, an empty file).
    Complete(FileDigests),
    /// It cannot be received.
    Failed(Error),
}

/// Whether a lane may write a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockClaim {
    /// Write and verify it.
    Take,
    /// Read past it: it is here, its file is settled or not looked up yet, or another lane is writing it. Where it is missed
    /// later, it is asked for again.
    Discard,
}

/// What the driver of a receiver must do or know.
#[derive(Debug)]
pub enum RecvEvent {
    /// Look this file up, then call [`RecvSession::handle_prepared`].
    Prepare {
        /// The file.
        file: FileId,
        /// Its entry.
        entry: FileEntry,
    },
    /// Read the blocks that an earlier run left of this file, then call [`RecvSession::handle_rechecked`].
    Recheck {
        /// The file.
        file: FileId,
    },
    /// Drop what has been written of this file, then call [`RecvSession::handle_discarded`].
    Discard {
        /// The file.
        file: FileId,
    },
    /// Every block of this file is here: verify the whole, make it durable, give it its name, then call
    /// [`RecvSession::handle_published`].
    Publish {
        /// The file.
        file: FileId,
    },
    /// A file ended.
    Settled {
        /// The file.
        file: FileId,
        /// Its entry.
        entry: FileEntry,
        /// How.
        outcome: FileOutcome,
    },
    /// Every file of a complete manifest has ended: give directories their mode and time and make every name durable, then
    /// call [`RecvSession::handle_finished`]. The sender stays until then.
    Finish {
        /// No file is missing that another run could bring.
        whole: bool,
    },
    /// The sender could not offer something.
    Unreadable(Error),
    /// The session cannot go on.
    Aborted(Error),
}

#[derive(Debug)]
struct Claim {
    lane: LaneId,
    /// Another lane brought the same block meanwhile and its copy was read past.
    discarded_copy: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// The storage has not answered yet.
    Preparing,
    /// Blocks may come.
    Receiving,
    /// Every block is here.
    Publishing,
    /// What is here of it is of no use.
    Discarding,
}

#[derive(Debug)]
struct RecvFile {
    entry: FileEntry,
    stage: Stage,
    arrived: RangeSet,
    arrived_count: u64,
    /// Those of them that an earlier session left.
    held: RangeSet,
    /// Some of them are from an earlier run and were not read yet: it is not published before that.
    rechecking: bool,
    /// Blocks to ask for once the storage has answered: those that were read past, or all when the sender was told to wait.
    passed: RangeSet,
    /// The sender was told to wait.
    waits: bool,
    unreported: RangeSet,
    claims: BTreeMap<u64, Claim>,
    failures: BTreeMap<u64, u32>,
    /// Why it fails, once the storage has answered.
    fails_by: Option<Error>,
    /// What a growing file must have as a whole, once its sender has said so.
    seal: Option<[u8; 32]>,
    /// It is not published before it was released.
    withheld: bool,
}

impl RecvFile {
    /// Bytes of it that are here; the last block counts as whole.
    fn arrived_bytes(&self) -> u64 {
        (self.arrived_count * self.entry.blocks().block_bytes()).min(self.entry.size)
    }

    /// Whether every block of it is here, nobody writes to it any more, and it may get its name.
    fn is_complete(&self) -> bool {
        let is_whole = self.arrived_count == self.entry.blocks().count() && !self.rechecking && !self.withheld;
        // Of a growing file a claim may be of a part of a block that is written behind its end.
        is_whole && self.is_closed() && (self.entry.growth.is_none() || self.claims.is_empty())
    }
}

/// The receiving end of a session.
#[derive(Debug)]
pub struct RecvSession {
    log: ControlLog,
    linger: Duration,
    files: HashMap<FileId, RecvFile>,
    /// The paths of `files`.
    open_paths: HashSet<RelPath>,
    /// Files whose arrived blocks the sender has not been told of.
    unreported: Vec<FileId>,
    last_report: Option<Instant>,
    path_bytes: usize,
    offered: u64,
    /// Every file that was named, in an offer or a header, is below this.
    files_seen: u64,
    offered_bytes: u64,
    offers_end: Option<(u64, u64)>,
    settled: RangeSet,
    settled_count: u64,
    /// [`RecvEvent::Finish`] was given.
    finishing: bool,
    finished: bool,
    /// A file failed, or could not be offered, that another run may bring.
    is_lacking: bool,
    arrived_bytes: u64,
    held_bytes: u64,
    up_to_date_bytes: u64,
    failed_blocks: u64,
    events: VecDeque<RecvEvent>,
    /// It said so, or has not come back.
    sender_left: bool,
    over: bool,
    /// When this end noticed that it has only its last words left to say.
    leaving_since: Option<Instant>,
    /// This end leaves as soon as every outcome has been handed to a lane.
    leaves_first: bool,
    /// Blocks, and parts of them, that were ever taken from a lane.
    claimed: u64,
    /// How many that were when nothing was on a lane that is heard any more, and since when; `None` while something is.
    standstill: Option<(u64, Instant)>,
    /// The session was over when a lane ended: what the log would send again is of no use any more.
    ended: bool,
    /// Files are published only when they have been released.
    withholds: bool,
}

impl RecvSession {
    /// A receiver that outlives its last lane by `linger`.
    pub fn new(linger: Duration) -> Self {
        Self {
            log: ControlLog::default(),
            linger,
            files: HashMap::new(),
            open_paths: HashSet::new(),
            unreported: Vec::new(),
            last_report: None,
            path_bytes: 0,
            offered: 0,
            files_seen: 0,
            offered_bytes: 0,
            offers_end: None,
            settled: RangeSet::default(),
            settled_count: 0,
            finishing: false,
            finished: false,
            is_lacking: false,
            arrived_bytes: 0,
            held_bytes: 0,
            up_to_date_bytes: 0,
            failed_blocks: 0,
            events: VecDeque::new(),
            sender_left: false,
            over: false,
            leaving_since: None,
            leaves_first: false,
            claimed: 0,
            standstill: None,
            ended: false,
            withholds: false,
        }
    }

    // Input.

    /// A lane is up.
    pub fn handle_lane_up(&mut self, lane: LaneId) {
        self.log.handle_lane_up(lane);
    }

    /// A lane is dead. Blocks it was bringing are free again; those of which another lane brought a copy that was read
    /// past are asked for, the rest the sender gives to another lane by itself.
    pub fn handle_lane_down(&mut self, lane: LaneId, now: Instant) {
        self.ended = self.is_over();
        self.log.handle_lane_down(lane, now);
        for (id, file) in &mut self.files {
            let lost: Vec<u64> = file.claims.iter().filter(|(_, c)| c.lane == lane).map(|(index, _)| *index).collect();
            for index in lost {
                if file.claims.remove(&index).is_some_and(|claim| claim.discarded_copy) {
                    self.log.push(&Message::Want { file: *id, blocks: vec![(index, index + 1)] });
                }
            }
        }
    }

    /// Nothing has been heard of these lanes for a while, and something of others. Returns those that are to be closed: a block is
    /// under way on them of which the peer has sent another copy, or for [`STANDSTILL`] nothing has come by any other lane, and what is on them
    /// holds up the rest. The peer may hear of such a lane all the same, when only the way here is cut.
    #[must_use]
    pub fn handle_silence(&mut self, silent: &[LaneId], now: Instant) -> Vec<LaneId> {
        self.log.handle_silence(silent);
        let claims = || self.files.values().flat_map(|file| file.claims.values());
        let stands_still = !silent.is_empty() && claims().all(|claim| silent.contains(&claim.lane));
        let before = self.standstill.filter(|(claimed, _)| *claimed == self.claimed);
        self.standstill = stands_still.then(|| before.unwrap_or((self.claimed, now)));
        let is_last = self.standstill.is_some_and(|(_, since)| now.saturating_duration_since(since) >= STANDSTILL);
        let keeps = |lane: &&LaneId| claims().any(|claim| claim.lane == **lane && (claim.discarded_copy || is_last));
        silent.iter().filter(keeps).copied().collect()
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
        if self.log.alone_since().is_none_or(|since| now < since + self.linger) || self.over {
            return;
        }
        if self.is_complete() {
            // Every file has its outcome; only the sender's last word, or its last acknowledgement, was lost with a lane.
            self.sender_left = true;
        } else {
            self.finish_with(lost_every_lane(self.linger));
        }
    }

    /// A file named in the header of a block. Errors: it contradicts its offer, or too many files are open; the session is
    /// aborted.
    pub fn handle_entry(&mut self, id: FileId, entry: &FileEntry) -> Result<(), Error> {
        self.open_file(id, entry).inspect_err(|error| self.abort(copied(error)))
    }

    fn open_file(&mut self, id: FileId, entry: &FileEntry) -> Result<(), Error> {
        if self.log.waiting_bytes() > UNACKNOWLEDGED_BYTES_MAX {
            let text = format!("the peer has not acknowledged the last {UNACKNOWLEDGED_BYTES_MAX} bytes of messages");
            return Err(Error::new(ErrorKind::Limit, Scope::Path, Phase::Transfer, text));
        }
        if self.settled.contains(id.0) {
            return Ok(());
        }
        if let Some(file) = self.files.get_mut(&id) {
            return file.take_entry(id, entry);
        }
        let end = self.offers_end.map_or(u64::MAX, |(files, _)| files);
        if id.0 >= self.offered.saturating_add(UNSETTLED_FILES_MAX as u64) || id.0 >= end {
            return Err(Error::protocol(format!("file {} from the peer: too far ahead of the manifest", id.0)));
        }
        let path_bytes = self.path_bytes + entry.path.as_bytes().len();
        if self.files.len() >= UNSETTLED_FILES_MAX || path_bytes > UNSETTLED_PATH_BYTES_MAX {
            return Err(Error::protocol("manifest from the peer: too many files that are not settled"));
        }
        self.path_bytes = path_bytes;
        self.files_seen = self.files_seen.max(id.0 + 1);
        self.files.insert(
            id,
            RecvFile {
                entry: entry.clone(),
                stage: Stage::Preparing,
                arrived: RangeSet::default(),
                arrived_count: 0,
                held: RangeSet::default(),
                rechecking: false,
                passed: RangeSet::default(),
                waits: false,
                unreported: RangeSet::default(),
                claims: BTreeMap::new(),
                failures: BTreeMap::new(),
                fails_by: None,
                seal: None,
                withheld: self.withholds,
            },
        );
        if self.open_paths.insert(entry.path.clone()) {
            self.events.push_back(RecvEvent::Prepare { file: id, entry: entry.clone() });
        } else {
            // Our senders never do this; blocks of two files must not meet in one.
            let text = format!("write {}: the peer offers two files of this name at once", entry.path);
            let error = Error::new(ErrorKind::Exists, Scope::Source, Phase::Prepare, text);
            self.settle_one(id, FileOutcome::Failed(error));
        }
        Ok(())
    }

    /// The storage cannot take a file yet and will be asked again: the sender is told to send nothing of it before, and
    /// `notice` is the remark on it for the person there, who may be told later than the sender: by another call.
    pub fn handle_busy(&mut self, id: FileId, notice: Option<String>) {
        let Some(file) = self.files.get_mut(&id).filter(|file| file.stage == Stage::Preparing) else { return };
        if let Some(error) = file.fails_by.take() {
            return self.settle(id, FileOutcome::Failed(error));
        }
        if !std::mem::replace(&mut file.waits, true) {
            file.passed.insert(0..unit_count(&file.entry));
            self.log.push(&Message::Wait { file: id });
        }
        if let Some(text) = notice {
            self.log.push(&Message::Notice { file: id, text });
        }
    }

    /// The storage has looked a file up.
    pub fn handle_prepared(&mut self, id: FileId, outcome: PrepareOutcome) {
        let Some(file) = self.files.get_mut(&id).filter(|file| file.stage == Stage::Preparing) else { return };
        file.stage = Stage::Receiving;
        if let Some(error) = file.fails_by.take() {
            if let PrepareOutcome::Ready { have, .. } = outcome {
                file.arrived = have;
            }
            return self.end_failed(id, error);
        }
        match outcome {
            PrepareOutcome::Ready { have, notice } => {
                let blocks = file.entry.blocks();
                let ranges: Vec<(u64, u64)> = have.iter().map(|r| (r.start, r.end)).collect();
                file.arrived_count = have.iter().map(|r| r.end - r.start).sum();
                let held: u64 = have.iter().flatten().map(|index| blocks.length(index)).sum();
                self.arrived_bytes += held;
                self.held_bytes += held;
                let mut missed = std::mem::take(&mut file.passed);
                have.iter().for_each(|range| missed.remove(range));
                file.held = have.clone();
                file.arrived = have;
                if !ranges.is_empty() {
                    file.rechecking = true;
                    self.events.push_back(RecvEvent::Recheck { file: id });
                }
                // A sender whose source is dear to begin in the wrong place waits for this word, also when nothing is here.
                if ranges.is_empty() && !file.entry.is_packed() {
                    self.log.push(&Message::Have { file: id, blocks: Vec::new() });
                }
                for blocks in ranges_per_message(&ranges) {
                    self.log.push(&Message::Have { file: id, blocks });
                }
                if let Some(text) = notice {
                    self.log.push(&Message::Notice { file: id, text });
                }
                self.want(id, &missed);
                // It may have ended, and have been sealed, without a block that is missing.
                if self.files.get(&id).is_some_and(|file| file.entry.growth.is_some()) {
                    self.publish_if_complete(id);
                }
            }
            PrepareOutcome::UpToDate => self.settle(id, FileOutcome::Skipped),
            PrepareOutcome::Complete(digests) => self.settle(id, FileOutcome::Done(digests)),
            PrepareOutcome::Failed(error) => self.settle(id, FileOutcome::Failed(error)),
        }
    }

    /// The blocks that an earlier run left of a file have been read; those in `lost` are not what its journal says. They count
    /// as missing again, and `notice` is the remark on them for the person at the sender.
    pub fn handle_rechecked(&mut self, id: FileId, lost: &RangeSet, notice: Option<String>) {
        let Some(file) = self.files.get_mut(&id).filter(|file| file.rechecking) else { return };
        file.rechecking = false;
        self.miss(id, lost);
        if let Some(text) = notice {
            self.log.push(&Message::Notice { file: id, text });
        }
        self.publish_if_complete(id);
    }

    /// Counts those of these blocks as missing that are here, and asks for them; which they were. Others are asked for already.
    fn miss(&mut self, id: FileId, blocks: &RangeSet) -> RangeSet {
        let mut missed = RangeSet::default();
        let Some(file) = self.files.get_mut(&id) else { return missed };
        blocks.iter().flat_map(|range| file.arrived.within(range)).for_each(|range| missed.insert(range));
        let map = file.entry.blocks();
        let bytes = |range: Range<u64>| range.map(|index| map.length(index)).sum::<u64>();
        for range in missed.iter() {
            self.arrived_bytes -= bytes(range.clone());
            self.held_bytes -= file.held.within(range.clone()).map(bytes).sum::<u64>();
            file.arrived_count -= range.end - range.start;
            for blocks in [&mut file.arrived, &mut file.unreported, &mut file.held] {
                blocks.remove(range.clone());
            }
        }
        self.want(id, &missed);
        missed
    }

    /// Asks for blocks again.
    fn want(&mut self, id: FileId, blocks: &RangeSet) {
        let ranges: Vec<(u64, u64)> = blocks.iter().map(|r| (r.start, r.end)).collect();
        for blocks in ranges_per_message(&ranges) {
            self.log.push(&Message::Want { file: id, blocks });
        }
    }

    fn publish_if_complete(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id) else { return };
        if file.stage == Stage::Receiving && file.is_complete() {
            file.stage = Stage::Publishing;
            self.events.push_back(RecvEvent::Publish { file: id });
        }
    }

    /// A lane has brought a block that it had claimed; `verified` says whether it matches its digest.
    ///
    /// A packed file counts as block 0 and is published by the caller when this returns `Take`; for others a
    /// [`RecvEvent::Publish`] follows the last block. `Discard` means that the file has ended meanwhile.
    pub fn handle_block(&mut self, lane: LaneId, id: FileId, index: u64, verified: Result<(), Error>) -> BlockClaim {
        let Some(file) = self.files.get_mut(&id) else { return BlockClaim::Discard };
        if file.claims.get(&index).is_none_or(|claim| claim.lane != lane) {
            return BlockClaim::Discard;
        }
        file.claims.remove(&index);
        if let Err(error) = verified {
            self.failed_blocks += 1;
            let failures = file.failures.entry(index).or_default();
            *failures += 1;
            if *failures >= BLOCK_FAILURES_MAX {
                self.fail(id, error);
            } else {
                self.log.push(&Message::Want { file: id, blocks: vec![(index, index + 1)] });
            }
            return BlockClaim::Discard;
        }
        if file.entry.is_packed() {
            file.stage = Stage::Publishing;
            self.arrived_bytes += file.entry.size;
            return BlockClaim::Take;
        }
        let blocks = file.entry.blocks();
        self.arrived_bytes += blocks.length(index);
        file.arrived.insert(index..index + 1);
        file.arrived_count += 1;
        if file.unreported.is_empty() {
            self.unreported.push(id);
        }
        file.unreported.insert(index..index + 1);
        self.publish_if_complete(id);
        BlockClaim::Take
    }

    /// A block that a lane had claimed did not come whole: the sender gave it up. It is free again; the sender says with a
    /// message what becomes of its file.
    pub fn handle_block_abandoned(&mut self, lane: LaneId, id: FileId, index: u64) {
        let Some(file) = self.files.get_mut(&id) else { return };
        if file.claims.get(&index).is_some_and(|claim| claim.lane == lane) {
            file.claims.remove(&index);
            self.log.push(&Message::Want { file: id, blocks: vec![(index, index + 1)] });
        }
    }

    /// A packed file could not be published, since another session holds its place: its storage will be asked again, and then
    /// [`RecvSession::handle_prepared`] called once more. Returns whether the file is still open.
    pub fn handle_unpublished(&mut self, id: FileId) -> bool {
        let Some(file) = self.take_back_packed(id) else { return false };
        if let Some(error) = file.fails_by.take() {
            self.settle(id, FileOutcome::Failed(error));
            return false;
        }
        file.stage = Stage::Preparing;
        file.passed.insert(0..1);
        true
    }

    /// A packed file that was to be published, whose bytes count as not arrived again.
    fn take_back_packed(&mut self, id: FileId) -> Option<&mut RecvFile> {
        let publishing = |file: &&mut RecvFile| file.stage == Stage::Publishing && file.entry.is_packed();
        let file = self.files.get_mut(&id).filter(publishing)?;
        self.arrived_bytes -= file.entry.size;
        Some(file)
    }

    /// What [`RecvEvent::Discard`] asked for is done, as far as it can be.
    pub fn handle_discarded(&mut self, id: FileId) {
        let discarding = |file: &&mut RecvFile| file.stage == Stage::Discarding;
        let file = self.files.get_mut(&id).filter(discarding);
        if let Some(error) = file.and_then(|file| file.fails_by.take()) {
            self.settle(id, FileOutcome::Failed(error));
        }
    }

    /// A packed file was there already when it was to be published.
    pub fn handle_up_to_date(&mut self, id: FileId) {
        if self.take_back_packed(id).is_some() {
            self.settle(id, FileOutcome::Skipped);
        }
    }

    /// A file has been published, or could not be.
    pub fn handle_published(&mut self, id: FileId, outcome: Result<FileDigests, Error>) {
        match outcome {
            Ok(digests) => self.settle(id, FileOutcome::Done(digests)),
            Err(error) => self.settle(id, FileOutcome::Failed(error)),
        }
    }

    /// Directories have their mode and time, and every name is durable: what [`RecvEvent::Finish`] asked for.
    pub fn handle_finished(&mut self) {
        if self.finishing && !std::mem::replace(&mut self.finished, true) {
            self.log.push(&Message::Finished);
        }
    }

    fn handle_message(&mut self, message: Message) -> Result<(), Error> {
        match message {
            Message::Offer { file, entry } => {
                if file.0 != self.offered || self.offers_end.is_some() {
                    return Err(Error::protocol(format!("file {} offered by the peer out of turn", file.0)));
                }
                self.open_file(file, &entry)?;
                self.offered += 1;
                self.offered_bytes = self.offered_bytes.saturating_add(entry.size);
                Ok(())
            }
            Message::Withdraw { file, error } => self.handle_withdraw(file, error),
            Message::Ended { file, entry } => self.handle_ended(file, &entry),
            Message::Sealed { file, blake3 } => self.handle_sealed(file, blake3),
            Message::Unreadable { error } => {
                self.is_lacking |= is_missing(&error);
                self.events.push_back(RecvEvent::Unreadable(error));
                Ok(())
            }
            Message::OffersEnd { files, bytes } => {
                if files != self.offered || files < self.files_seen || self.offers_end.is_some() {
                    return Err(Error::protocol("manifest from the peer: it ends with a wrong count"));
                }
                self.offers_end = Some((files, bytes));
                self.finish_after_last();
                Ok(())
            }
            Message::Bye => {
                if !self.is_complete() {
                    return Err(Error::protocol("the sender left before every file had its outcome"));
                }
                self.sender_left = true;
                Ok(())
            }
            Message::Abort { error } => {
                self.finish_with(error.refused(true));
                Ok(())
            }
            Message::Have { .. }
            | Message::Want { .. }
            | Message::Skipped { .. }
            | Message::Done { .. }
            | Message::Failed { .. }
            | Message::Wait { .. }
            | Message::Finished
            | Message::Notice { .. }
            | Message::Told(_)
            | Message::Concluded(_) => Err(Error::protocol("a sender sent a message that senders do not send")),
        }
    }

    fn handle_withdraw(&mut self, id: FileId, error: Error) -> Result<(), Error> {
        if id.0 >= self.offered {
            return Err(Error::protocol(format!("file {} withdrawn by the peer: it was never offered", id.0)));
        }
        match self.files.get_mut(&id) {
            // While the storage looks, also once more when it has said that the file must wait; and it may say so of a small
            // file that is to be published.
            Some(file) if file.stage == Stage::Preparing => file.fails_by = Some(error),
            Some(file) if file.stage == Stage::Publishing && file.entry.is_packed() => file.fails_by = Some(error),
            // Settled, or too late: its outcome stands.
            _ => self.fail(id, error),
        }
        Ok(())
    }

    // Commands.

    /// Asks for the right to write a block (index 0 for a packed file).
    pub fn claim(&mut self, lane: LaneId, id: FileId, index: u64) -> BlockClaim {
        let Some(file) = self.files.get_mut(&id).filter(|_| !self.over) else { return BlockClaim::Discard };
        if file.stage == Stage::Preparing {
            file.passed.insert(index..index + 1);
            return BlockClaim::Discard;
        }
        if file.stage != Stage::Receiving || file.arrived.contains(index) {
            return BlockClaim::Discard;
        }
        if let Some(claim) = file.claims.get_mut(&index) {
            claim.discarded_copy = true;
            return BlockClaim::Discard;
        }
        file.claims.insert(index, Claim { lane, discarded_copy: false });
        self.claimed += 1;
        BlockClaim::Take
    }

    /// Lets this end leave as soon as it has told every outcome, without waiting for the sender to have heard: for a client,
    /// whose files are in place by then.
    pub fn leave_first(&mut self) {
        self.leaves_first = true;
    }

    /// A file cannot be received after all (the disk is full, say). What has arrived stays for a later run, unless it is
    /// corrupt or its source has changed.
    pub fn fail(&mut self, id: FileId, error: Error) {
        if self.is_receiving(id) {
            self.end_failed(id, error);
        }
    }

    /// Ends a file that the storage has opened. What is of no use goes first: directories are finished behind the last file,
    /// and what goes from one later would change its time, or find it closed.
    fn end_failed(&mut self, id: FileId, error: Error) {
        let Some(file) = self.files.get_mut(&id) else { return };
        let is_useless = matches!(error.kind, ErrorKind::Changed | ErrorKind::Corrupt) || file.arrived.is_empty();
        if file.entry.is_packed() || !is_useless {
            return self.settle(id, FileOutcome::Failed(error));
        }
        file.stage = Stage::Discarding;
        file.fails_by = Some(error);
        file.claims.clear();
        file.rechecking = false;
        self.events.push_back(RecvEvent::Discard { file: id });
    }

    /// Ends the session at both ends.
    pub fn abort(&mut self, error: Error) {
        if !self.over {
            self.log.push(&Message::Abort { error: copied(&error) });
            self.finish_with(error);
        }
    }

    fn settle(&mut self, id: FileId, outcome: FileOutcome) {
        if let Some(file) = self.files.get(&id) {
            self.open_paths.remove(&file.entry.path);
        }
        self.settle_one(id, outcome);
    }

    /// Settles a file, and leaves its path to another file that is open.
    fn settle_one(&mut self, id: FileId, outcome: FileOutcome) {
        let Some(file) = self.files.remove(&id) else { return };
        self.path_bytes -= file.entry.path.as_bytes().len();
        self.settled.insert(id.0..id.0 + 1);
        self.settled_count += 1;
        if matches!(outcome, FileOutcome::Skipped) {
            self.up_to_date_bytes += file.entry.size;
        }
        self.log.push(&match &outcome {
            FileOutcome::Done(digests) => Message::Done { file: id, digests: *digests },
            FileOutcome::Skipped => Message::Skipped { file: id },
            FileOutcome::Failed(error) => Message::Failed { file: id, error: copied(error) },
        });
        self.is_lacking |= matches!(&outcome, FileOutcome::Failed(error) if is_missing(error));
        self.events.push_back(RecvEvent::Settled { file: id, entry: file.entry, outcome });
        self.finish_after_last();
    }

    /// Has directories finished once every file of a complete manifest has settled.
    fn finish_after_last(&mut self) {
        if self.offers_end.is_some_and(|(files, _)| files == self.settled_count) && !self.finishing {
            self.finishing = true;
            self.events.push_back(RecvEvent::Finish { whole: !self.is_lacking });
        }
    }

    fn finish_with(&mut self, error: Error) {
        // Both ends may abort at once: the first word counts. What is complete only ends.
        if !std::mem::replace(&mut self.over, true) && !self.is_complete() {
            self.events.push_back(RecvEvent::Aborted(error));
        }
    }

    // Output.

    /// The next control frame for `lane`.
    pub fn poll_frame(&mut self, lane: LaneId, now: Instant) -> Option<Frame> {
        // Blocks gather into few ranges while the peer does not acknowledge, and the log stays short.
        let due = self.last_report.is_none_or(|last| now >= last + REPORT_INTERVAL) && self.log.has_room();
        if due && !self.unreported.is_empty() {
            self.last_report = Some(now);
            for id in std::mem::take(&mut self.unreported) {
                let Some(file) = self.files.get_mut(&id) else { continue };
                let ranges: Vec<(u64, u64)> =
                    std::mem::take(&mut file.unreported).iter().map(|r| (r.start, r.end)).collect();
                for blocks in ranges_per_message(&ranges) {
                    self.log.push(&Message::Have { file: id, blocks });
                }
            }
        }
        self.log.poll_frame(lane).or_else(|| self.log.poll_acknowledgement(lane))
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<RecvEvent> {
        self.events.pop_front()
    }

    /// When [`RecvSession::handle_timeout`] or [`RecvSession::poll_frame`] must be called at the latest.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let reports = !self.unreported.is_empty() && self.log.has_room() && self.log.lane_count() > 0;
        let report = self.last_report.filter(|_| reports).map(|last| last + REPORT_INTERVAL);
        let alone = self.log.alone_since().map(|since| since + self.linger);
        let left = self.leaving_since.map(|since| since + FAREWELL_TIME_MAX);
        [report, alone, left].into_iter().flatten().min()
    }

    // Questions.

    /// Whether every file of a complete manifest has settled, and directories are finished.
    pub fn is_complete(&self) -> bool {
        self.finished
    }

    /// Whether the session is over: the sender knows every outcome and has left, or it was aborted.
    pub fn is_over(&self) -> bool {
        let told = self.log.is_sent() || self.log.lane_count() == 0;
        let heard = self.is_complete() && self.log.is_settled();
        self.ended || self.sender_left || heard || self.is_leaving() && told
    }

    /// Whether nothing more is opened or written: it is over, or was aborted and has that left to say.
    pub fn is_ending(&self) -> bool {
        self.over || self.is_over()
    }

    /// Whether only its last words are left to say, and it need not know that they arrive.
    fn is_leaving(&self) -> bool {
        self.over || self.leaves_first && self.is_complete()
    }

    /// File bytes here, those from an earlier run included, and those of files that were up to date not.
    pub fn arrived_bytes(&self) -> u64 {
        self.arrived_bytes
    }

    /// Those of the arrived bytes that were here from an earlier run.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Bytes of files that were up to date.
    pub fn up_to_date_bytes(&self) -> u64 {
        self.up_to_date_bytes
    }

    /// Bytes here of files that have no outcome: when this session is lost, the next one finds them.
    pub fn unsettled_bytes(&self) -> u64 {
        self.files.values().map(RecvFile::arrived_bytes).sum()
    }

    /// Files and bytes offered, and whether the manifest is complete.
    pub fn offered(&self) -> (u64, u64, bool) {
        (self.offered, self.offered_bytes, self.offers_end.is_some())
    }

    /// Whether a file is known and not settled.
    pub fn is_open(&self, file: FileId) -> bool {
        self.files.contains_key(&file)
    }

    /// Whether blocks of a file may still come.
    pub fn is_receiving(&self, file: FileId) -> bool {
        self.files.get(&file).is_some_and(|file| file.stage == Stage::Receiving)
    }

    /// Large files under way, the first `most` of the manifest.
    pub fn active_files(&self, most: usize) -> Vec<ActiveFile> {
        let mut under_way: Vec<(&FileId, &RecvFile)> =
            self.files.iter().filter(|(_, file)| !file.claims.is_empty() && !file.entry.is_packed()).collect();
        under_way.sort_unstable_by_key(|(id, _)| **id);
        let shown = |(_, file): (&FileId, &RecvFile)| ActiveFile {
            path: file.entry.path.clone(),
            size: file.entry.size,
            done: file.arrived_bytes(),
        };
        under_way.into_iter().take(most).map(shown).collect()
    }

    /// Blocks that failed their check and were asked for again.
    pub fn failed_blocks(&self) -> u64 {
        self.failed_blocks
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

/// Whether what failed by `error` may come in another run: what has the name already keeps it, and what the source has not
/// never comes.
fn is_missing(error: &Error) -> bool {
    !matches!((error.kind, error.scope), (ErrorKind::Exists, _) | (ErrorKind::NotFound, Scope::Source))
}

/// What a block that does not match its digest is reported as.
pub fn corrupt_block(entry: &FileEntry, index: u64) -> Error {
    let text = format!("block {index} of {}: does not match the digest of its sender; asked for again", entry.path);
    Error::new(ErrorKind::Corrupt, Scope::Path, Phase::Verify, text).retry(Retry::After)
}
