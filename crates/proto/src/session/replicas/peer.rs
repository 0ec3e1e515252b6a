//! State of one replica: the control log with its sender, and the blocks requested from it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use super::super::life::{Ending, LifeEvent, SessionCore, SessionKind};
use super::super::message::{Message, ranges_per_message};
use super::super::send::unit_count;
use super::super::{FileId, FileOutcome, LaneId};
use crate::error::{Error, ErrorKind, Phase, Scope};
use crate::file::{EntryKind, FileEntry};
use crate::range_set::RangeSet;

/// Number of the single file: at the sender of each replica and at the receiver.
pub(super) const FILE: FileId = FileId(0);

/// Time over which the delivery rate of a replica is measured. Reason: longer than the round trip of any path that
/// Sterna is for, so that the amount delivered in it fills that path.
const MEASURED: Duration = Duration::from_secs(1);

/// Minimum number of blocks requested from a replica at a time. Reason: one block travels while the next is requested.
/// More would be wasted if a fast replica takes over the blocks of a slow one at the end.
const ASKED_BLOCKS_MIN: u64 = 2;

/// State of the connection to a replica.
#[derive(Debug)]
pub(super) enum Standing {
    /// No answer yet.
    Trying,
    /// A session with its sender is open.
    Present,
    /// The session was lost or could not be opened; the replica is tried again.
    Away(Error),
    /// The replica is no longer used.
    Dropped(Error),
}

/// One replica. A lost session with its sender is followed by another; the blocks it gave still count.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) standing: Standing,
    /// True once a session with it was opened.
    pub(super) was_present: bool,
    /// True while the replica is not asked: the file is tested without its blocks, or it was too slow to be compared.
    pub(super) barred: bool,
    /// Blocks of the file that came from this replica.
    pub(super) given: RangeSet,
    /// Number of blocks that did not match their own digests.
    pub(super) corrupt: u64,
    /// Control log and life of the session with its sender.
    pub(super) core: SessionCore<()>,
    pub(super) entry: Option<FileEntry>,
    offers: u64,
    offers_ended: bool,
    /// Outcome of the file for its sender.
    outcome: Option<FileOutcome>,
    /// True once messages with the outcome were queued.
    told_outcome: bool,
    /// Entry that it offered in an earlier session.
    pub(super) former: Option<FileEntry>,
    /// True while it is a lane of the pool.
    pub(super) in_pool: bool,
    /// Blocks requested from it and not delivered, with the time of the request.
    pub(super) asked: BTreeMap<u64, Instant>,
    /// Blocks requested from it only for comparison.
    pub(super) comparing: BTreeSet<u64>,
    /// All blocks requested from it in this session.
    pub(super) tried: RangeSet,
    /// Total bytes delivered, sampled during the last second.
    delivered: VecDeque<(Instant, u64)>,
    /// Number of blocks that other replicas took over from it since its last delivered block.
    pub(super) lost: usize,
}

impl Peer {
    pub(super) fn new() -> Self {
        Self {
            standing: Standing::Trying,
            was_present: false,
            barred: false,
            given: RangeSet::default(),
            corrupt: 0,
            core: SessionCore::new(SessionKind::Replica),
            entry: None,
            former: None,
            offers: 0,
            offers_ended: false,
            outcome: None,
            told_outcome: false,
            in_pool: false,
            asked: BTreeMap::new(),
            comparing: BTreeSet::new(),
            tried: RangeSet::default(),
            delivered: VecDeque::new(),
            lost: 0,
        }
    }

    /// Resets the state for a new session with its sender.
    pub(super) fn begin_session(&mut self) {
        let Self { barred, corrupt, .. } = *self;
        let given = std::mem::take(&mut self.given);
        let former = self.entry.take().or_else(|| self.former.take());
        *self = Self { standing: Standing::Present, was_present: true, barred, given, corrupt, former, ..Self::new() };
    }

    /// Returns true if its file has another version than in an earlier session.
    pub(super) fn has_changed(&self) -> bool {
        self.former.as_ref().zip(self.entry.as_ref()).is_some_and(|(former, entry)| !former.same_version(entry))
    }

    pub(super) fn is_dropped(&self) -> bool {
        matches!(self.standing, Standing::Dropped(_))
    }

    pub(super) fn is_present(&self) -> bool {
        matches!(self.standing, Standing::Present)
    }

    /// Returns true if blocks can be requested from it.
    pub(super) fn is_usable(&self) -> bool {
        self.is_present()
            && self.entry.is_some()
            && self.core.log.lane_count() > 0
            && !self.barred
            && self.outcome.is_none()
    }

    /// Handles a message of its sender. Returns `Ok(Some(_))` if the replica cannot serve the file. Errors: the sender
    /// violated the protocol.
    pub(super) fn handle_message(&mut self, message: Message) -> Result<Option<Error>, Error> {
        match message {
            Message::Offer { file, entry } => {
                if file.0 != self.offers || self.offers_ended {
                    return Err(Error::protocol(format!("file {} offered by the peer out of turn", file.0)));
                }
                self.offers += 1;
                Ok(self.take_offer(entry))
            }
            Message::OffersEnd { files, .. } => {
                if files != self.offers || std::mem::replace(&mut self.offers_ended, true) {
                    return Err(Error::protocol("manifest from the peer: it ends with a wrong count"));
                }
                self.tell_outcome();
                let text = "it offers nothing of this name";
                Ok((files == 0).then(|| Error::new(ErrorKind::NotFound, Scope::Source, Phase::Prepare, text)))
            }
            Message::Withdraw { error, .. } | Message::Unreadable { error } => Ok(Some(error)),
            Message::Bye if self.core.is_leaving() => {
                self.core.turn(LifeEvent::Exit);
                Ok(None)
            }
            Message::Abort { error } => {
                self.core.turn(LifeEvent::Leave(Ending::Aborted));
                self.core.turn(LifeEvent::Exit);
                Ok(Some(error))
            }
            _ => Err(Error::protocol("the sender of a replica sent a message that has no place there")),
        }
    }

    /// Accepts the offer of its file and reports every block as present, so that the sender waits for requests.
    fn take_offer(&mut self, entry: FileEntry) -> Option<Error> {
        let wrong = |text: &str| Some(Error::new(ErrorKind::Usage, Scope::Source, Phase::Prepare, text));
        if self.outcome.is_some() {
            self.tell_outcome();
            return None;
        }
        if entry.kind != EntryKind::File || self.offers > 1 {
            return wrong("it is not one file: replicas are of one regular file");
        }
        if entry.growth.is_some() {
            return wrong("it grows: replicas are files that have ended");
        }
        self.tell_have(0..unit_count(&entry));
        self.entry = Some(entry);
        None
    }

    fn tell_have(&mut self, blocks: std::ops::Range<u64>) {
        if blocks.start < blocks.end {
            self.core.log.push(&Message::Have { file: FILE, blocks: vec![(blocks.start, blocks.end)] });
        }
    }

    /// Cancels the request for a block. A block in flight still arrives.
    pub(super) fn call_off(&mut self, index: u64) {
        self.asked.remove(&index);
        if self.outcome.is_none() {
            self.tell_have(index..index + 1);
        }
    }

    /// Cancels all its requests for blocks of the pool; other replicas get them.
    pub(super) fn call_all_off(&mut self) {
        let mut asked = RangeSet::default();
        std::mem::take(&mut self.asked).into_keys().for_each(|index| asked.insert(index..index + 1));
        if self.outcome.is_none() {
            asked.iter().for_each(|range| self.tell_have(range));
        }
    }

    /// Requests blocks from its sender.
    pub(super) fn ask(&mut self, blocks: &RangeSet) {
        blocks.iter().for_each(|range| self.tried.insert(range));
        let ranges: Vec<(u64, u64)> = blocks.iter().map(|range| (range.start, range.end)).collect();
        ranges_per_message(&ranges).for_each(|blocks| self.core.log.push(&Message::Want { file: FILE, blocks }));
    }

    /// Reports the outcome of the file to its sender, which ends the session.
    pub(super) fn settle(&mut self, outcome: FileOutcome) {
        if self.outcome.is_none() {
            self.outcome = Some(outcome);
            self.core.turn(LifeEvent::Conclude(Ending::Complete));
            self.tell_outcome();
        }
    }

    fn tell_outcome(&mut self) {
        let Some(outcome) = &self.outcome else { return };
        if self.offers > 0 && !std::mem::replace(&mut self.told_outcome, true) {
            for file in (0..self.offers).map(FileId) {
                self.core.log.push(&match outcome {
                    FileOutcome::Done(digests) => Message::Done { file, digests: *digests },
                    FileOutcome::Skipped => Message::Skipped { file },
                    FileOutcome::Failed(error) => Message::Failed { file, error: error.clone() },
                });
            }
        }
        if self.offers_ended && self.core.turn(LifeEvent::Leave(Ending::Complete)).is_some() {
            self.core.log.push(&Message::Finished);
        }
    }

    /// Ends the session with its sender at both ends.
    pub(super) fn abort(&mut self, error: &Error) {
        if self.is_present() && self.core.turn(LifeEvent::Leave(Ending::Aborted)).is_some() {
            self.core.log.push(&Message::Abort { error: error.clone() });
            self.outcome.get_or_insert_with(|| FileOutcome::Failed(error.clone()));
        }
    }

    /// Returns true if the session with its sender is over.
    pub(super) fn is_over(&self) -> bool {
        self.core.is_over() || !self.is_present() && !self.is_dropped()
    }

    /// Checks the timeout of the final message, which no lane may accept.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        let lost = self.core.check_limit(now);
        debug_assert!(lost.is_none(), "the copy decides how long a lost replica is awaited");
    }

    /// Records the total bytes that it has delivered.
    pub(super) fn handle_delivered(&mut self, bytes: u64, now: Instant) {
        self.delivered.push_back((now, bytes));
        // One sample older than the measured time stays, as the base of the difference.
        while self.delivered.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) >= MEASURED) {
            self.delivered.pop_front();
        }
    }

    /// Returns the bytes delivered in the last second.
    pub(super) fn recent_bytes(&self) -> u64 {
        let bounds = self.delivered.front().zip(self.delivered.back());
        bounds.map_or(0, |((_, first), (_, last))| last.saturating_sub(*first))
    }

    /// Returns the target for outstanding requests, in bytes. More blocks are requested when half of it has arrived.
    pub(super) fn asked_bytes_wanted(&self, block_bytes: u64) -> u64 {
        (self.recent_bytes() * 2).max(ASKED_BLOCKS_MIN * block_bytes)
    }

    /// Returns the lane of the pool for replica number `index`.
    pub(super) fn lane(index: usize) -> LaneId {
        LaneId(index as u32 + 1)
    }
}
