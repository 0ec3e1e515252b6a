//! The receiving end of a session: the blocks that have arrived, the claims of lanes on blocks, and the reports to the
//! sender.
//!
//! Decides which blocks a lane may write, requests missing blocks, and asks the driver to look up, publish and discard
//! files. Refuses to read or write files, hash, or read a clock. Time is an argument; frames, entries and results come
//! in by `handle_*`; frames and events leave by `poll_*`.

mod growing;
mod replicas;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use super::hello::{Features, PathNumber};
use super::life::{Ending, LifeEvent, SessionCore, SessionEvent, SessionKind};
use super::message::{Frame, Message, ranges_per_message};
use super::send::unit_count;
use super::{
    ActiveFile, BLOCK_FAILURES_MAX, FileId, FileOutcome, LaneId, UNSETTLED_FILES_MAX, UNSETTLED_PATH_BYTES_MAX,
};
use crate::digest::FileDigests;
use crate::error::{Error, ErrorKind, Phase, Retry, Scope};
use crate::file::{FileEntry, RelPath};
use crate::range_set::RangeSet;
use crate::rate::RateContract;

/// Maximum delay before arrived blocks are reported to the sender. Reason: well below any round trip that matters, and
/// at most a few messages a second.
const REPORT_INTERVAL: Duration = Duration::from_millis(25);

/// Maximum bytes of messages that the sender may leave unacknowledged. Reason: a correct sender stops at half of
/// [`UNSETTLED_FILES_MAX`] files without an outcome. Their outcomes take half of this limit even if each of them
/// contains a path. A sender beyond the limit is disconnected.
const UNACKNOWLEDGED_BYTES_MAX: usize = 64 << 20;

/// Time without a new block on any active lane after which silent lanes count as holding up the rest. Reason: reading a
/// block from a source takes less.
const STANDSTILL: Duration = Duration::from_secs(1);

/// Result of the lookup of a file by the storage, before its first block.
#[derive(Debug)]
pub enum PrepareOutcome {
    /// Blocks can be written; an earlier run may have left some.
    Ready {
        /// Blocks in the journal. If there are any, a [`RecvEvent::Recheck`] follows.
        have: RangeSet,
        /// Notice for the user at the sender, for example the reason why an earlier partial file was dropped.
        notice: Option<String>,
    },
    /// The destination is up to date.
    UpToDate,
    /// The file is already complete: a directory, or an empty file.
    Complete(FileDigests),
    /// The file cannot be received.
    Failed(Error),
}

/// Answer to a lane that asks to write a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockClaim {
    /// The lane writes and verifies the block.
    Take,
    /// The lane reads past the block: it has arrived, its file has settled or is not looked up yet, or another lane
    /// writes it. If the block is missing later, it is requested again.
    Discard,
}

/// Task or event for the driver of a receiver.
#[derive(Debug)]
pub enum RecvEvent {
    /// The driver looks this file up, then calls [`RecvSession::handle_prepared`].
    Prepare {
        /// The file.
        file: FileId,
        /// Entry of the file.
        entry: FileEntry,
    },
    /// The driver verifies the blocks that an earlier run left of this file, then calls
    /// [`RecvSession::handle_rechecked`].
    Recheck {
        /// The file.
        file: FileId,
    },
    /// The driver deletes the data written for this file, then calls [`RecvSession::handle_discarded`].
    Discard {
        /// The file.
        file: FileId,
    },
    /// Every block of this file has arrived. The driver verifies the whole, makes it durable, gives it its name, then
    /// calls [`RecvSession::handle_published`].
    Publish {
        /// The file.
        file: FileId,
    },
    /// A file has its outcome.
    Settled {
        /// The file.
        file: FileId,
        /// Entry of the file.
        entry: FileEntry,
        /// Outcome of the file.
        outcome: FileOutcome,
    },
    /// Every file of a complete manifest has settled. The driver sets mode and time of directories and makes every name
    /// durable, then calls [`RecvSession::handle_finished`]. The sender waits until then.
    Finish {
        /// True if no file is missing that another run could deliver.
        whole: bool,
    },
    /// The sender reported a source or file that it cannot offer.
    Unreadable(Error),
    /// Notice for the user.
    Notice(&'static str),
    /// The session cannot continue.
    Aborted(Error),
}

impl SessionEvent for RecvEvent {
    fn aborted(error: Error) -> Self {
        Self::Aborted(error)
    }
}

#[derive(Debug)]
struct Claim {
    lane: LaneId,
    /// True if another lane sent the same block in the meantime and that copy was discarded.
    discarded_copy: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// The storage looks the file up.
    Preparing,
    /// Blocks may arrive.
    Receiving,
    /// Every block has arrived.
    Publishing,
    /// The data of the file is useless and is being deleted.
    Discarding,
}

#[derive(Debug)]
struct RecvFile {
    entry: FileEntry,
    stage: Stage,
    arrived: RangeSet,
    arrived_count: u64,
    /// Blocks in `arrived` that an earlier session left.
    held: RangeSet,
    /// True while blocks of an earlier run are not verified. The file is not published before.
    rechecking: bool,
    /// Blocks to request once the storage has answered: discarded blocks, or all blocks after a [`Message::Wait`].
    passed: RangeSet,
    /// True if a [`Message::Wait`] was sent.
    waits: bool,
    unreported: RangeSet,
    claims: BTreeMap<u64, Claim>,
    failures: BTreeMap<u64, u32>,
    /// Error with which the file fails once the storage has answered.
    fails_by: Option<Error>,
    /// BLAKE3 that a growing file must have as a whole, once its sender has reported it.
    final_digest: Option<[u8; 32]>,
    /// True until [`RecvSession::release`]: the file is not published before.
    withheld: bool,
}

impl RecvFile {
    /// Returns the bytes of the file that have arrived. The last block counts with its full size.
    fn arrived_bytes(&self) -> u64 {
        (self.arrived_count * self.entry.blocks().block_bytes()).min(self.entry.size)
    }

    /// Returns true if every block has arrived, no lane writes to the file, and it may get its name.
    fn is_complete(&self) -> bool {
        let is_whole = self.arrived_count == self.entry.blocks().count() && !self.rechecking && !self.withheld;
        // For a growing file, a claim may belong to a tail that is written beyond the end of the file.
        is_whole && self.is_closed() && (self.entry.growth.is_none() || self.claims.is_empty())
    }
}

/// The receiving end of a session.
#[derive(Debug)]
pub struct RecvSession {
    pub(super) core: SessionCore<RecvEvent>,
    files: BTreeMap<FileId, RecvFile>,
    /// Paths of `files`.
    open_paths: BTreeSet<RelPath>,
    /// Files with arrived blocks that are not reported to the sender yet.
    unreported: Vec<FileId>,
    last_report: Option<Instant>,
    path_bytes: usize,
    offered: u64,
    /// Upper bound of the file numbers seen in offers and headers, exclusive.
    files_seen: u64,
    offered_bytes: u64,
    offers_end: Option<(u64, u64)>,
    settled: RangeSet,
    settled_count: u64,
    /// True once [`RecvEvent::Finish`] was emitted.
    finishing: bool,
    /// True if a file is missing that another run may deliver: it failed, or could not be offered.
    is_lacking: bool,
    arrived_bytes: u64,
    held_bytes: u64,
    up_to_date_bytes: u64,
    failed_blocks: u64,
    /// True if this end leaves as soon as every outcome has been handed to a lane.
    leaves_first: bool,
    /// Number of claims ever granted to lanes, for blocks and tails.
    claimed: u64,
    /// Value of `claimed` when the last claim on an active lane was gone, and that time. `None` while an active lane
    /// has a claim.
    standstill: Option<(u64, Instant)>,
    /// True if files are published only after [`RecvSession::release`].
    withholds: bool,
}

impl RecvSession {
    /// Returns a receiver that outlives its last lane by `linger`.
    pub fn new(linger: Duration) -> Self {
        Self {
            core: SessionCore::new(SessionKind::Copy { linger }),
            files: BTreeMap::new(),
            open_paths: BTreeSet::new(),
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
            is_lacking: false,
            arrived_bytes: 0,
            held_bytes: 0,
            up_to_date_bytes: 0,
            failed_blocks: 0,
            leaves_first: false,
            claimed: 0,
            standstill: None,
            withholds: false,
        }
    }

    // Input.

    /// Records that a lane is up.
    pub fn handle_lane_up(&mut self, lane: LaneId) {
        self.core.log.handle_lane_up(lane);
    }

    /// Records that a lane is down and releases its claims. If another lane has sent a copy of such a block and the
    /// copy was discarded, requests the block. The sender assigns the others to another lane without a request.
    pub fn handle_lane_down(&mut self, lane: LaneId, now: Instant) {
        self.core.handle_lane_down(lane, now);
        for (id, file) in &mut self.files {
            let lost: Vec<u64> = file.claims.iter().filter(|(_, c)| c.lane == lane).map(|(index, _)| *index).collect();
            for index in lost {
                if file.claims.remove(&index).is_some_and(|claim| claim.discarded_copy) {
                    self.core.log.push(&Message::Want { file: *id, blocks: vec![(index, index + 1)] });
                }
            }
        }
    }

    /// Records lanes that are silent while others are active. Returns the lanes to close. A lane is closed if it holds
    /// a claim on a block and the peer has sent another copy of that block. It is also closed if nothing has arrived on
    /// any other lane for [`STANDSTILL`], so that its blocks hold up the rest. The peer may still receive from such a
    /// lane if only the direction to this end is cut.
    #[must_use]
    pub fn handle_silence(&mut self, silent: &[LaneId], now: Instant) -> Vec<LaneId> {
        self.core.log.handle_silence(silent);
        let claims = || self.files.values().flat_map(|file| file.claims.values());
        let stands_still = !silent.is_empty() && claims().all(|claim| silent.contains(&claim.lane));
        let before = self.standstill.filter(|(claimed, _)| *claimed == self.claimed);
        self.standstill = stands_still.then(|| before.unwrap_or((self.claimed, now)));
        let is_last = self.standstill.is_some_and(|(_, since)| now.saturating_duration_since(since) >= STANDSTILL);
        let keeps = |lane: &&LaneId| claims().any(|claim| claim.lane == **lane && (claim.discarded_copy || is_last));
        silent.iter().filter(keeps).copied().collect()
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
        self.core.handle_timeout(now);
    }

    /// Records a file named in the header of a block. Errors: it contradicts its offer, or too many files are open; the
    /// session is aborted.
    pub fn handle_entry(&mut self, id: FileId, entry: &FileEntry) -> Result<(), Error> {
        self.open_file(id, entry).inspect_err(|error| self.abort(error.clone()))
    }

    fn open_file(&mut self, id: FileId, entry: &FileEntry) -> Result<(), Error> {
        if self.core.log.waiting_bytes() > UNACKNOWLEDGED_BYTES_MAX {
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
                final_digest: None,
                withheld: self.withholds,
            },
        );
        if self.open_paths.insert(entry.path.clone()) {
            self.core.emit(RecvEvent::Prepare { file: id, entry: entry.clone() });
        } else {
            // Senders of Sterna never do this. Blocks of two files must not be written to one file.
            let text = format!("write {}: the peer offers two files of this name at once", entry.path);
            let error = Error::new(ErrorKind::Exists, Scope::Source, Phase::Prepare, text);
            self.settle_one(id, FileOutcome::Failed(error));
        }
        Ok(())
    }

    /// Records that the storage cannot accept a file yet; the storage will be asked again. Sends [`Message::Wait`]
    /// once, so that the sender sends nothing of the file until then. `notice` is the message about it for the user
    /// there; it may follow in a later call.
    pub fn handle_busy(&mut self, id: FileId, notice: Option<String>) {
        let Some(file) = self.files.get_mut(&id).filter(|file| file.stage == Stage::Preparing) else { return };
        if let Some(error) = file.fails_by.take() {
            return self.settle(id, FileOutcome::Failed(error));
        }
        if !std::mem::replace(&mut file.waits, true) {
            file.passed.insert(0..unit_count(&file.entry));
            self.core.log.push(&Message::Wait { file: id });
        }
        if let Some(text) = notice {
            self.core.log.push(&Message::Notice { file: id, text });
        }
    }

    /// Records the result of looking a file up.
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
                    self.core.emit(RecvEvent::Recheck { file: id });
                }
                // A sender whose source is expensive to start at a wrong block waits for this message, even if it is
                // empty.
                if ranges.is_empty() && !file.entry.is_packed() {
                    self.core.log.push(&Message::Have { file: id, blocks: Vec::new() });
                }
                for blocks in ranges_per_message(&ranges) {
                    self.core.log.push(&Message::Have { file: id, blocks });
                }
                if let Some(text) = notice {
                    self.core.log.push(&Message::Notice { file: id, text });
                }
                self.want(id, &missed);
                // A growing file may have ended and its final digest may have come, with no block missing.
                if self.files.get(&id).is_some_and(|file| file.entry.growth.is_some()) {
                    self.publish_if_complete(id);
                }
            }
            PrepareOutcome::UpToDate => self.settle(id, FileOutcome::Skipped),
            PrepareOutcome::Complete(digests) => self.settle(id, FileOutcome::Done(digests)),
            PrepareOutcome::Failed(error) => self.settle(id, FileOutcome::Failed(error)),
        }
    }

    /// Records that the blocks left by an earlier run were verified. Those in `lost` do not match the journal and count
    /// as missing again. `notice` is the message about them for the user at the sender.
    pub fn handle_rechecked(&mut self, id: FileId, lost: &RangeSet, notice: Option<String>) {
        let Some(file) = self.files.get_mut(&id).filter(|file| file.rechecking) else { return };
        file.rechecking = false;
        self.miss(id, lost);
        if let Some(text) = notice {
            self.core.log.push(&Message::Notice { file: id, text });
        }
        self.publish_if_complete(id);
    }

    /// Marks blocks that have arrived as missing, requests them and returns them. The other blocks of `blocks` are
    /// already requested.
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

    /// Requests blocks again.
    fn want(&mut self, id: FileId, blocks: &RangeSet) {
        let ranges: Vec<(u64, u64)> = blocks.iter().map(|r| (r.start, r.end)).collect();
        for blocks in ranges_per_message(&ranges) {
            self.core.log.push(&Message::Want { file: id, blocks });
        }
    }

    fn publish_if_complete(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id) else { return };
        if file.stage == Stage::Receiving && file.is_complete() {
            file.stage = Stage::Publishing;
            self.core.emit(RecvEvent::Publish { file: id });
        }
    }

    /// Records that a lane has delivered a block that it had claimed. `verified` is the result of checking the block's
    /// digest.
    ///
    /// On `Take`, a packed file (block 0) is published by the caller; for other files, a [`RecvEvent::Publish`] follows
    /// the last block. `Discard`: the check failed, or the file or the claim no longer exists.
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
                self.core.log.push(&Message::Want { file: id, blocks: vec![(index, index + 1)] });
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

    /// Records that the sender abandoned a block that a lane had claimed. Releases the claim and requests the block.
    /// The sender reports the fate of the file in a message.
    pub fn handle_block_abandoned(&mut self, lane: LaneId, id: FileId, index: u64) {
        let Some(file) = self.files.get_mut(&id) else { return };
        if file.claims.get(&index).is_some_and(|claim| claim.lane == lane) {
            file.claims.remove(&index);
            self.core.log.push(&Message::Want { file: id, blocks: vec![(index, index + 1)] });
        }
    }

    /// Records that a packed file could not be published because another session holds its path. The storage is asked
    /// again, then [`RecvSession::handle_prepared`] is called once more. Returns true if the file is still open.
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

    /// Returns a packed file in publication, after removing its bytes from the arrived bytes.
    fn take_back_packed(&mut self, id: FileId) -> Option<&mut RecvFile> {
        let publishing = |file: &&mut RecvFile| file.stage == Stage::Publishing && file.entry.is_packed();
        let file = self.files.get_mut(&id).filter(publishing)?;
        self.arrived_bytes -= file.entry.size;
        Some(file)
    }

    /// Records that the driver has handled a [`RecvEvent::Discard`], as far as possible.
    pub fn handle_discarded(&mut self, id: FileId) {
        let discarding = |file: &&mut RecvFile| file.stage == Stage::Discarding;
        let file = self.files.get_mut(&id).filter(discarding);
        if let Some(error) = file.and_then(|file| file.fails_by.take()) {
            self.settle(id, FileOutcome::Failed(error));
        }
    }

    /// Records that a packed file turned out to be up to date when it was to be published.
    pub fn handle_up_to_date(&mut self, id: FileId) {
        if self.take_back_packed(id).is_some() {
            self.settle(id, FileOutcome::Skipped);
        }
    }

    /// Records that a file was published, or could not be.
    pub fn handle_published(&mut self, id: FileId, outcome: Result<FileDigests, Error>) {
        match outcome {
            Ok(digests) => self.settle(id, FileOutcome::Done(digests)),
            Err(error) => self.settle(id, FileOutcome::Failed(error)),
        }
    }

    /// Records that the driver has handled [`RecvEvent::Finish`]: directories have their mode and time, and every name
    /// is durable.
    pub fn handle_finished(&mut self) {
        let ending = Ending::Complete;
        let event = if self.leaves_first { LifeEvent::Leave(ending) } else { LifeEvent::Conclude(ending) };
        if self.finishing && self.core.turn(event).is_some() {
            self.core.log.push(&Message::Finished);
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
            Message::FinalDigest { file, blake3 } => self.handle_final_digest(file, blake3),
            Message::Unreadable { error } => {
                self.is_lacking |= is_missing(&error);
                self.core.emit(RecvEvent::Unreadable(error));
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
                self.core.turn(LifeEvent::Exit);
                Ok(())
            }
            Message::Abort { error } => {
                self.core.handle_abort(error);
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
            | Message::Answer(_)
            | Message::Contract { .. }
            | Message::Report(_)
            | Message::Concluded(_) => Err(Error::protocol("a sender sent a message that senders do not send")),
        }
    }

    fn handle_withdraw(&mut self, id: FileId, error: Error) -> Result<(), Error> {
        if id.0 >= self.offered {
            return Err(Error::protocol(format!("file {} withdrawn by the peer: it was never offered", id.0)));
        }
        match self.files.get_mut(&id) {
            // The file fails once the storage has answered. This includes a file that waits and is looked up again, and
            // a packed file whose publication may turn into a wait.
            Some(file) if file.stage == Stage::Preparing => file.fails_by = Some(error),
            Some(file) if file.stage == Stage::Publishing && file.entry.is_packed() => file.fails_by = Some(error),
            // In other stages the file fails now if blocks may still arrive. Otherwise it has settled or its outcome is
            // already decided.
            _ => self.fail(id, error),
        }
        Ok(())
    }

    // Commands.

    /// Claims a block for writing by `lane` (index 0 for a packed file).
    pub fn claim(&mut self, lane: LaneId, id: FileId, index: u64) -> BlockClaim {
        let Some(file) = self.files.get_mut(&id).filter(|_| self.core.is_active()) else { return BlockClaim::Discard };
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

    /// Lets this end leave as soon as it has sent every outcome, without waiting for the acknowledgement of the sender.
    /// For a client, whose files are in place by then.
    pub fn leave_first(&mut self) {
        self.leaves_first = true;
    }

    /// Fails a file that cannot be received, for example because the disk is full. Blocks that have arrived stay for a
    /// later run, unless they are corrupt or the source has changed.
    pub fn fail(&mut self, id: FileId, error: Error) {
        if self.is_receiving(id) {
            self.end_failed(id, error);
        }
    }

    /// Ends a file that the storage has opened. Useless data is deleted before the file settles. Reason: directories
    /// are finished after the last file. A later deletion would change a directory's modification time, or fail because
    /// the directory is already read-only.
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
        self.core.emit(RecvEvent::Discard { file: id });
    }

    /// Changes the rate contract of a path for the sender. A sender without
    /// [`Features::CONTRACTS`] ignores it, and the user gets a notice.
    pub fn send_contract(&mut self, path: PathNumber, contract: RateContract) {
        let notice = self.core.send_contract(path, contract);
        notice.into_iter().for_each(|text| self.core.emit(RecvEvent::Notice(text)));
    }

    /// Records the features of the sender, from the welcome of a lane.
    pub fn handle_welcome(&mut self, features: Features) {
        let notice = self.core.handle_welcome(features);
        notice.into_iter().for_each(|text| self.core.emit(RecvEvent::Notice(text)));
    }

    /// Ends the session at both ends.
    pub fn abort(&mut self, error: Error) {
        self.core.abort(error);
    }

    fn settle(&mut self, id: FileId, outcome: FileOutcome) {
        if let Some(file) = self.files.get(&id) {
            self.open_paths.remove(&file.entry.path);
        }
        self.settle_one(id, outcome);
    }

    /// Settles a file without releasing its path, which may belong to another open file.
    fn settle_one(&mut self, id: FileId, outcome: FileOutcome) {
        let Some(file) = self.files.remove(&id) else { return };
        self.path_bytes -= file.entry.path.as_bytes().len();
        self.settled.insert(id.0..id.0 + 1);
        self.settled_count += 1;
        if matches!(outcome, FileOutcome::Skipped) {
            self.up_to_date_bytes += file.entry.size;
        }
        self.core.log.push(&match &outcome {
            FileOutcome::Done(digests) => Message::Done { file: id, digests: *digests },
            FileOutcome::Skipped => Message::Skipped { file: id },
            FileOutcome::Failed(error) => Message::Failed { file: id, error: error.clone() },
        });
        self.is_lacking |= matches!(&outcome, FileOutcome::Failed(error) if is_missing(error));
        self.core.emit(RecvEvent::Settled { file: id, entry: file.entry, outcome });
        self.finish_after_last();
    }

    /// Emits [`RecvEvent::Finish`] once every file of a complete manifest has settled.
    fn finish_after_last(&mut self) {
        if self.offers_end.is_some_and(|(files, _)| files == self.settled_count) && !self.finishing {
            self.finishing = true;
            self.core.emit(RecvEvent::Finish { whole: !self.is_lacking });
        }
    }

    // Output.

    /// Returns the next control frame for `lane`.
    pub fn poll_frame(&mut self, lane: LaneId, now: Instant) -> Option<Frame> {
        // While the peer does not acknowledge, blocks accumulate in few ranges and the log stays short.
        let due = self.last_report.is_none_or(|last| now >= last + REPORT_INTERVAL) && self.core.log.has_room();
        if due && !self.unreported.is_empty() {
            self.last_report = Some(now);
            for id in std::mem::take(&mut self.unreported) {
                let Some(file) = self.files.get_mut(&id) else { continue };
                let ranges: Vec<(u64, u64)> =
                    std::mem::take(&mut file.unreported).iter().map(|r| (r.start, r.end)).collect();
                for blocks in ranges_per_message(&ranges) {
                    self.core.log.push(&Message::Have { file: id, blocks });
                }
            }
        }
        self.core.poll_frame(lane)
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<RecvEvent> {
        self.core.poll_event()
    }

    /// Returns the latest time for the next call of [`RecvSession::handle_timeout`]. It may change with every input and
    /// command. Silent lanes have no deadline here: see [`RecvSession::handle_silence`].
    pub fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        self.core.poll_timeout(now)
    }

    /// Returns the time after `now` at which [`RecvSession::poll_frame`] has a report of new blocks for the lanes, even
    /// without an input or a command. A report that is due has no such time: it leaves with the next frame that a lane
    /// has room for.
    pub fn next_report(&self, now: Instant) -> Option<Instant> {
        let reports = !self.unreported.is_empty() && self.core.log.has_room() && self.core.log.lane_count() > 0;
        let report = self.last_report.filter(|_| reports).map(|last| last + REPORT_INTERVAL);
        report.filter(|due| *due > now)
    }

    // Getters.

    /// Returns true if every file of a complete manifest has settled and directories are finished.
    pub fn is_complete(&self) -> bool {
        self.core.is_complete()
    }

    /// Returns true if the session is over: the sender has received every outcome and has left, or the session was
    /// aborted.
    pub fn is_over(&self) -> bool {
        self.core.is_over()
    }

    /// Returns true once the session opens and writes no more files: it is over, or it was aborted and only the final
    /// message is left to send.
    pub fn is_ending(&self) -> bool {
        self.core.is_leaving() || self.core.is_over()
    }

    /// Returns the file bytes that have arrived, including those from an earlier run. Files that were up to date are
    /// not counted.
    pub fn arrived_bytes(&self) -> u64 {
        self.arrived_bytes
    }

    /// Returns the arrived bytes that an earlier run left.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Returns the bytes of files that were up to date.
    pub fn up_to_date_bytes(&self) -> u64 {
        self.up_to_date_bytes
    }

    /// Returns the arrived bytes of files without an outcome. If this session is lost, the next one finds them.
    pub fn unsettled_bytes(&self) -> u64 {
        self.files.values().map(RecvFile::arrived_bytes).sum()
    }

    /// Returns the number of offered files, their bytes, and true if the manifest is complete.
    pub fn offered(&self) -> (u64, u64, bool) {
        (self.offered, self.offered_bytes, self.offers_end.is_some())
    }

    /// Returns true if a file is known and has not settled.
    pub fn is_open(&self, file: FileId) -> bool {
        self.files.contains_key(&file)
    }

    /// Returns true if blocks of a file may still arrive.
    pub fn is_receiving(&self, file: FileId) -> bool {
        self.files.get(&file).is_some_and(|file| file.stage == Stage::Receiving)
    }

    /// Returns the large files in progress, at most the first `most` of the manifest.
    pub fn active_files(&self, most: usize) -> Vec<ActiveFile> {
        let under_way = self.files.values().filter(|file| !file.claims.is_empty() && !file.entry.is_packed());
        let shown = |file: &RecvFile| ActiveFile {
            path: file.entry.path.clone(),
            size: file.entry.size,
            done: file.arrived_bytes(),
        };
        under_way.take(most).map(shown).collect()
    }

    /// Returns the number of blocks that failed their check and were requested again.
    pub fn failed_blocks(&self) -> u64 {
        self.failed_blocks
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

/// Returns true if another run may deliver the file that failed with `error`. False if the name at the destination is
/// taken, or if the source does not have the file.
fn is_missing(error: &Error) -> bool {
    !matches!((error.kind, error.scope), (ErrorKind::Exists, _) | (ErrorKind::NotFound, Scope::Source))
}

/// Error for a block that does not match its digest.
pub fn corrupt_block(entry: &FileEntry, index: u64) -> Error {
    let text = format!("block {index} of {}: does not match the digest of its sender; asked for again", entry.path);
    Error::new(ErrorKind::Corrupt, Scope::Path, Phase::Verify, text).retry(Retry::After)
}
