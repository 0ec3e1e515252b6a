//! One replica: the control log with its sender, and what was asked of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use super::super::message::{Message, ranges_per_message};
use super::super::send::{FAREWELL_TIME_MAX, FileOutcome, unit_count};
use super::super::{ControlLog, FileId, LaneId, copied};
use crate::error::{Error, ErrorKind, Phase, Scope};
use crate::file::{EntryKind, FileEntry};
use crate::range_set::RangeSet;

/// The one file of a replica, as its sender numbers it and as the receiver knows it.
pub(super) const FILE: FileId = FileId(0);

/// Over how long what a replica delivers is measured. Reason: longer than the round trip of any path that Sterna is for, so that what was
/// delivered in it fills that path.
const MEASURED: Duration = Duration::from_secs(1);

/// Least that a replica is asked for at a time, in blocks. Reason: one is on its way while the other is asked for; what a slow one was asked for travels
/// in vain when a fast one takes it at the end.
const ASKED_BLOCKS_MIN: u64 = 2;

/// What becomes of a replica.
#[derive(Debug)]
pub(super) enum Standing {
    /// Nothing is known of it yet.
    Trying,
    /// There is a session with its sender.
    Present,
    /// There is none; it is tried again.
    Away(Error),
    /// It is not used any more.
    Dropped(Error),
}

/// One replica. A session with its sender that is lost is followed by another; what it gave counts on.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) standing: Standing,
    /// There has been a session with it.
    pub(super) was_present: bool,
    /// It is left alone while the file is looked at without what it gave.
    pub(super) barred: bool,
    /// Blocks of the file that are from it.
    pub(super) given: RangeSet,
    /// Blocks that did not match their own digests.
    pub(super) corrupt: u64,
    /// Of the session with its sender.
    pub(super) log: ControlLog,
    pub(super) entry: Option<FileEntry>,
    offers: u64,
    offers_ended: bool,
    /// What its sender is told of the file, and how far that is.
    outcome: Option<FileOutcome>,
    told_outcome: bool,
    told_finished: bool,
    ended: bool,
    leaving_since: Option<Instant>,
    /// The file that it offered in an earlier session.
    pub(super) former: Option<FileEntry>,
    /// It is a lane of the pool.
    pub(super) in_pool: bool,
    /// Blocks that it was asked for and has not delivered, and when.
    pub(super) asked: BTreeMap<u64, Instant>,
    /// Blocks that it was asked for only to compare them.
    pub(super) comparing: BTreeSet<u64>,
    /// Every block that it was ever asked for in this session.
    pub(super) tried: RangeSet,
    /// Bytes that it had delivered, at times of the last second.
    delivered: VecDeque<(Instant, u64)>,
    /// Blocks that others took from it since it last gave one.
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
            log: ControlLog::default(),
            entry: None,
            former: None,
            offers: 0,
            offers_ended: false,
            outcome: None,
            told_outcome: false,
            told_finished: false,
            ended: false,
            leaving_since: None,
            in_pool: false,
            asked: BTreeMap::new(),
            comparing: BTreeSet::new(),
            tried: RangeSet::default(),
            delivered: VecDeque::new(),
            lost: 0,
        }
    }

    /// A session with its sender begins.
    pub(super) fn begin_session(&mut self) {
        let Self { barred, corrupt, .. } = *self;
        let given = std::mem::take(&mut self.given);
        let former = self.entry.take().or_else(|| self.former.take());
        *self = Self { standing: Standing::Present, was_present: true, barred, given, corrupt, former, ..Self::new() };
    }

    /// Whether it has another version of its file than in an earlier session.
    pub(super) fn has_changed(&self) -> bool {
        self.former.as_ref().zip(self.entry.as_ref()).is_some_and(|(former, entry)| !former.same_version(entry))
    }

    pub(super) fn is_dropped(&self) -> bool {
        matches!(self.standing, Standing::Dropped(_))
    }

    pub(super) fn is_present(&self) -> bool {
        matches!(self.standing, Standing::Present)
    }

    /// Whether blocks can be asked of it.
    pub(super) fn is_usable(&self) -> bool {
        self.is_present() && self.entry.is_some() && self.log.lane_count() > 0 && !self.barred && self.outcome.is_none()
    }

    /// Takes a message of its sender; what is wrong with the replica as such is returned as `Ok(Some(_))`. Errors: the sender broke the protocol.
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
            Message::Bye if self.told_finished => {
                self.ended = true;
                Ok(None)
            }
            Message::Abort { error } => {
                self.ended = true;
                Ok(Some(error))
            }
            _ => Err(Error::protocol("the sender of a replica sent a message that has no place there")),
        }
    }

    /// Takes its file, and has nothing of it sent before it is asked for.
    fn take_offer(&mut self, entry: FileEntry) -> Option<Error> {
        let wrong = |text: &str| Some(Error::new(ErrorKind::Usage, Scope::Source, Phase::Prepare, text));
        if self.outcome.is_some() {
            self.tell_outcome();
            return None;
        }
        if entry.kind != EntryKind::File || self.offers > 1 {
            return wrong("it is not one file: --same takes replicas of one regular file");
        }
        if entry.growth.is_some() {
            return wrong("it grows: --same takes files that have ended");
        }
        self.tell_have(0..unit_count(&entry));
        self.entry = Some(entry);
        None
    }

    fn tell_have(&mut self, blocks: std::ops::Range<u64>) {
        if blocks.start < blocks.end {
            self.log.push(&Message::Have { file: FILE, blocks: vec![(blocks.start, blocks.end)] });
        }
    }

    /// Tells its sender not to send a block, unless it is on its way.
    pub(super) fn call_off(&mut self, index: u64) {
        self.asked.remove(&index);
        if self.outcome.is_none() {
            self.tell_have(index..index + 1);
        }
    }

    /// What it was asked for of the pool goes to others.
    pub(super) fn call_all_off(&mut self) {
        let mut asked = RangeSet::default();
        std::mem::take(&mut self.asked).into_keys().for_each(|index| asked.insert(index..index + 1));
        if self.outcome.is_none() {
            asked.iter().for_each(|range| self.tell_have(range));
        }
    }

    /// Asks its sender for blocks.
    pub(super) fn ask(&mut self, blocks: &RangeSet) {
        blocks.iter().for_each(|range| self.tried.insert(range));
        let ranges: Vec<(u64, u64)> = blocks.iter().map(|range| (range.start, range.end)).collect();
        ranges_per_message(&ranges).for_each(|blocks| self.log.push(&Message::Want { file: FILE, blocks }));
    }

    /// Says what became of the file; its session ends with that.
    pub(super) fn settle(&mut self, outcome: FileOutcome) {
        if self.outcome.is_none() {
            self.outcome = Some(outcome);
            self.tell_outcome();
        }
    }

    fn tell_outcome(&mut self) {
        let Some(outcome) = &self.outcome else { return };
        if self.offers > 0 && !std::mem::replace(&mut self.told_outcome, true) {
            for file in (0..self.offers).map(FileId) {
                self.log.push(&match outcome {
                    FileOutcome::Done(digests) => Message::Done { file, digests: *digests },
                    FileOutcome::Skipped => Message::Skipped { file },
                    FileOutcome::Failed(error) => Message::Failed { file, error: copied(error) },
                });
            }
        }
        if self.offers_ended && !std::mem::replace(&mut self.told_finished, true) {
            self.log.push(&Message::Finished);
        }
    }

    /// Ends the session with its sender at both ends.
    pub(super) fn abort(&mut self, error: &Error) {
        if self.is_present() && !self.ended && !self.told_finished {
            self.log.push(&Message::Abort { error: copied(error) });
            self.told_finished = true;
            self.outcome.get_or_insert_with(|| FileOutcome::Failed(copied(error)));
        }
    }

    /// Whether the session with its sender is over.
    pub(super) fn is_over(&self) -> bool {
        let told = self.log.is_sent() || self.log.lane_count() == 0;
        self.ended || !self.is_present() && !self.is_dropped() || self.outcome.is_some() && self.told_finished && told
    }

    /// Time has passed: last words that no lane takes are not waited for.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.outcome.is_some() && now >= *self.leaving_since.get_or_insert(now) + FAREWELL_TIME_MAX {
            self.ended = true;
        }
    }

    /// It has delivered so many bytes in all.
    pub(super) fn handle_delivered(&mut self, bytes: u64, now: Instant) {
        self.delivered.push_back((now, bytes));
        // One older than the time that is measured stays: what was delivered since is measured from it.
        while self.delivered.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) >= MEASURED) {
            self.delivered.pop_front();
        }
    }

    /// Bytes that it delivered in the last second.
    pub(super) fn recent_bytes(&self) -> u64 {
        let bounds = self.delivered.front().zip(self.delivered.back());
        bounds.map_or(0, |((_, first), (_, last))| last.saturating_sub(*first))
    }

    /// How much it is to be asked for together, in bytes; more is asked for when half of it has come.
    pub(super) fn asked_bytes_wanted(&self, block_bytes: u64) -> u64 {
        (self.recent_bytes() * 2).max(ASKED_BLOCKS_MIN * block_bytes)
    }

    /// The lane of the pool that stands for replica number `index`.
    pub(super) fn lane(index: usize) -> LaneId {
        LaneId(index as u32 + 1)
    }
}
