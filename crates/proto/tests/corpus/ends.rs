//! Ends of recorded sessions: the state machines, with drivers that follow a script. A driver does the same in every
//! run, so that a recorded peer can take the place of the other end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use sterna_proto::compress::{Slab, SlabEncoding};
use sterna_proto::session::{
    AgentReport, Answer, Attributes, BlockClaim, BlockData, BlockHeader, BlockTask, Conclusion, ControlEvent,
    ControlSession, ControlSide, FileId, FileOutcome, Frame, LINGER_DEFAULT, LaneId, PrepareOutcome, RecvEvent,
    RecvSession, SendEvent, SendSession, corrupt_block,
};
use sterna_proto::{
    Checks, EntryKind, Error, ErrorKind, FileDigests, FileEntry, Growth, Phase, RangeSet, Retry, Scope, Setting,
};

use crate::recording::Item;
use crate::samples::{MIB, answers, conclusion, directory, entry, limit_report, receiver_report, reports, snapshot};

/// One end of a session and its driver.
pub trait End {
    fn up(&mut self, lane: LaneId);
    fn down(&mut self, lane: LaneId);
    /// Takes a frame of the control log, or a report.
    fn frame(&mut self, frame: Frame) -> Result<(), Error>;
    fn block(&mut self, lane: LaneId, header: BlockHeader) -> Result<(), Error>;
    fn turn(&mut self);
    /// Returns the next item for a lane that is up.
    fn poll(&mut self, lane: LaneId) -> Option<Item>;
    fn is_over(&self) -> bool;
    /// Returns the outcomes so far.
    fn outcomes(&mut self) -> Vec<String>;
}

fn outcome_text(entry: &FileEntry, outcome: &FileOutcome) -> String {
    match outcome {
        FileOutcome::Done(digests) => format!("{}: done {:02x}", entry.path, digests.blake3[0]),
        FileOutcome::Skipped => format!("{}: skipped", entry.path),
        FileOutcome::Failed(error) => format!("{}: failed {}", entry.path, error_text(error)),
    }
}

fn error_text(error: &Error) -> String {
    let settings: Vec<_> = error.settings().iter().map(|setting| setting.name()).collect();
    let codes = [error.kind.name(), error.scope.name(), error.phase.name(), error.retry.name()];
    format!("{} {} {}", codes.join(" "), settings.join(","), error.text())
}

/// Story that both ends of a session follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Story {
    /// Files of all kinds and outcomes, over two lanes.
    Files,
    /// The same, and the second lane dies and comes back.
    LaneDies,
    /// A file that grows, pauses, ends and has a final digest.
    Grows,
    /// The receiver cannot go on.
    Aborted,
}

/// Sending end.
pub struct Sender {
    session: SendSession,
    story: Story,
    turn: u32,
    report: bool,
    outcomes: Vec<String>,
}

impl Sender {
    pub fn new(story: Story) -> Self {
        let mut sender =
            Self { session: SendSession::new(LINGER_DEFAULT), story, turn: 0, report: false, outcomes: Vec::new() };
        if story == Story::Grows {
            sender.session.add_file(growing(0));
            sender.session.end_files();
            return sender;
        }
        let session = &mut sender.session;
        session.add_file(directory());
        let packed = [("small", 10), ("empty", 0), ("largest-small", 256 << 10)];
        for (name, size) in packed {
            session.add_file(entry(name.as_bytes(), size));
        }
        let large = ["plain", "same", "denied", "left", "busy", "corrupt", "slabs", "sparse"];
        for name in large {
            session.add_file(entry(name.as_bytes(), 2 * MIB + 7));
        }
        let gone = session.add_file(entry(b"gone", 3 * MIB));
        let changed = Error::new(ErrorKind::Changed, Scope::Source, Phase::Transfer, "gone changed while it was read");
        session.withdraw(gone, changed.retry(Retry::After));
        let unreadable = Error::new(ErrorKind::Denied, Scope::Source, Phase::Prepare, "read secret: not allowed");
        session.add_unreadable(unreadable);
        session.end_files();
        sender
    }

    /// Returns an end that offers `entries` and follows no story.
    pub fn offering(entries: Vec<FileEntry>) -> Self {
        let mut session = SendSession::new(LINGER_DEFAULT);
        entries.into_iter().for_each(|entry| {
            session.add_file(entry);
        });
        session.end_files();
        Self { session, story: Story::Files, turn: 0, report: false, outcomes: Vec::new() }
    }

    fn encoded(task: BlockTask) -> Item {
        let trailer = |files: usize| vec![0xb3; 32 * files];
        let (header, data_len, files) = match task {
            BlockTask::Single { file, entry, index } => {
                let length = entry.blocks().length(index);
                let (data, data_len) = match entry.path.as_bytes() {
                    b"sparse" => (BlockData::Hole, 0),
                    b"slabs" if length > 100 => (BlockData::Slabs(vec![slab(4, 100)]), 100),
                    _ => (BlockData::Raw, length),
                };
                (BlockHeader::Single { file, entry, index, data }, data_len, 1)
            }
            BlockTask::Packed { files } => {
                let (count, bytes) = (files.len(), files.iter().map(|(_, entry)| entry.size).sum::<u64>());
                let slab = (bytes > 100).then(|| slab(1, 99));
                (BlockHeader::Packed { files, slab }, slab.map_or(bytes, |_| 99), count)
            }
            BlockTask::Tail { file, entry, range } => {
                (BlockHeader::Tail { file, entry, offset: range.start }, range.end - range.start, 1)
            }
        };
        Item::Block { header: header.encode(), data_len, trailer: trailer(files) }
    }
}

fn slab(code: u8, length: u32) -> Slab {
    Slab { encoding: SlabEncoding::from_code(code).unwrap(), length }
}

/// Entry of the growing file with `size` bytes in whole blocks.
fn growing(size: u64) -> FileEntry {
    FileEntry { growth: Some(Growth::for_rate(None)), ..entry(b"capture", size) }
}

impl End for Sender {
    fn up(&mut self, lane: LaneId) {
        self.session.handle_lane_up(lane);
    }

    fn down(&mut self, lane: LaneId) {
        self.session.handle_lane_down(lane, Instant::now());
    }

    fn frame(&mut self, frame: Frame) -> Result<(), Error> {
        match frame {
            Frame::Messages { first, encoded } => self.session.handle_messages(first, &encoded),
            Frame::Acknowledge { next } => self.session.handle_acknowledgement(next),
            Frame::Receiver(_) => Ok(()),
            other => Err(Error::protocol(format!("{other:?} out of place"))),
        }
    }

    fn block(&mut self, _: LaneId, header: BlockHeader) -> Result<(), Error> {
        Err(Error::protocol(format!("{header:?} from a receiver")))
    }

    fn turn(&mut self) {
        self.turn += 1;
        self.report = self.turn == 1;
        if self.story != Story::Grows {
            return;
        }
        let file = FileId(0);
        match self.turn {
            1 => self.session.grow(file, growing(2 * MIB)),
            2 => self.session.set_tail(file, 2 * MIB + 100),
            3 => {
                let end = Growth::for_rate(None).end();
                self.session.grow(file, FileEntry { growth: Some(end), ..growing(2 * MIB + 100) });
                self.session.final_digest(file, [0xb3; 32]);
            }
            _ => {}
        }
    }

    fn poll(&mut self, lane: LaneId) -> Option<Item> {
        if let Some(frame) = self.session.poll_frame(lane) {
            return Some(Item::Frame(frame.encode()));
        }
        if std::mem::take(&mut self.report) {
            return Some(Item::Frame(Frame::Limits(Box::new(limit_report())).encode()));
        }
        self.session.next_block(lane).map(Self::encoded)
    }

    fn is_over(&self) -> bool {
        self.session.is_over()
    }

    fn outcomes(&mut self) -> Vec<String> {
        while let Some(event) = self.session.poll_event() {
            self.outcomes.push(match event {
                SendEvent::Settled { entry, outcome, .. } => outcome_text(&entry, &outcome),
                SendEvent::Notice { file, text } => format!("notice {}: {text}", file.0),
                SendEvent::Aborted(error) => format!("aborted {}", error_text(&error)),
            });
        }
        self.outcomes.clone()
    }
}

/// Receiving end.
pub struct Receiver {
    session: RecvSession,
    story: Story,
    turn: u32,
    report: bool,
    origin: Instant,
    outcomes: Vec<String>,
    /// Files that wait for their storage.
    busy: VecDeque<FileId>,
    /// Names of files of which a block was corrupt once.
    corrupted: BTreeSet<FileId>,
    entries: BTreeMap<FileId, FileEntry>,
}

impl Receiver {
    pub fn new(story: Story, is_client: bool) -> Self {
        let mut session = RecvSession::new(LINGER_DEFAULT);
        if is_client {
            session.leave_first();
        }
        let (turn, report, origin, outcomes) = (0, false, Instant::now(), Vec::new());
        let (busy, corrupted, entries) = Default::default();
        Self { session, story, turn, report, origin, outcomes, busy, corrupted, entries }
    }

    fn ready(have: std::ops::Range<u64>) -> PrepareOutcome {
        let mut blocks = RangeSet::default();
        let notice = (!have.is_empty()).then(|| "left: resumes with 1 block".to_owned());
        blocks.insert(have);
        PrepareOutcome::Ready { have: blocks, notice }
    }

    fn prepare(&mut self, file: FileId, entry: FileEntry) {
        let outcome = match entry.path.as_bytes() {
            _ if entry.kind == EntryKind::Directory => PrepareOutcome::Complete(digests()),
            b"same" => PrepareOutcome::UpToDate,
            b"left" => Self::ready(0..1),
            b"busy" => {
                self.busy.push_back(file);
                return self.session.handle_busy(file, Some("busy: another session writes it".to_owned()));
            }
            b"denied" => {
                let error = Error::new(ErrorKind::Exists, Scope::Destination, Phase::Prepare, "write denied: exists");
                PrepareOutcome::Failed(error.about(&[Setting::Overwrite]))
            }
            _ => Self::ready(0..0),
        };
        self.session.handle_prepared(file, outcome);
    }

    /// Carries out everything that the session asks for.
    fn follow_up(&mut self) {
        while let Some(event) = self.session.poll_event() {
            match event {
                RecvEvent::Prepare { file, entry } => {
                    self.entries.insert(file, entry.clone());
                    self.prepare(file, entry);
                }
                RecvEvent::Recheck { file } => self.session.handle_rechecked(file, &RangeSet::default(), None),
                RecvEvent::Discard { file } => self.session.handle_discarded(file),
                RecvEvent::Publish { file } => self.session.handle_published(file, Ok(digests())),
                RecvEvent::Settled { entry, outcome, .. } => self.outcomes.push(outcome_text(&entry, &outcome)),
                RecvEvent::Finish { .. } => self.session.handle_finished(),
                RecvEvent::Notice(text) => self.outcomes.push(format!("notice {text}")),
                RecvEvent::Unreadable(error) => self.outcomes.push(format!("unreadable {}", error_text(&error))),
                RecvEvent::Aborted(error) => self.outcomes.push(format!("aborted {}", error_text(&error))),
            }
        }
    }

    fn take_block(&mut self, lane: LaneId, file: FileId, entry: &FileEntry, index: u64) -> Result<(), Error> {
        self.session.handle_entry(file, entry)?;
        self.follow_up();
        if self.session.claim(lane, file, index) == BlockClaim::Take {
            let is_corrupt = entry.path.as_bytes() == b"corrupt" && self.corrupted.insert(file);
            let verified = if is_corrupt { Err(corrupt_block(entry, index)) } else { Ok(()) };
            let taken = self.session.handle_block(lane, file, index, verified);
            if taken == BlockClaim::Take && entry.is_packed() {
                self.session.handle_published(file, Ok(digests()));
            }
        }
        self.follow_up();
        Ok(())
    }
}

fn digests() -> FileDigests {
    FileDigests::of(b"sterna", Checks { adler32: true, ..Checks::NONE })
}

impl End for Receiver {
    fn up(&mut self, lane: LaneId) {
        self.session.handle_lane_up(lane);
    }

    fn down(&mut self, lane: LaneId) {
        self.session.handle_lane_down(lane, self.origin);
        self.follow_up();
    }

    fn frame(&mut self, frame: Frame) -> Result<(), Error> {
        match frame {
            Frame::Messages { first, encoded } => self.session.handle_messages(first, &encoded)?,
            Frame::Acknowledge { next } => self.session.handle_acknowledgement(next)?,
            Frame::Limits(_) => {}
            other => return Err(Error::protocol(format!("{other:?} out of place"))),
        }
        self.follow_up();
        Ok(())
    }

    fn block(&mut self, lane: LaneId, header: BlockHeader) -> Result<(), Error> {
        match header {
            BlockHeader::Single { file, entry, index, .. } => self.take_block(lane, file, &entry, index),
            BlockHeader::Packed { files, .. } => {
                files.iter().try_for_each(|(file, entry)| self.take_block(lane, *file, entry, 0))
            }
            BlockHeader::Tail { file, entry, offset } => {
                self.session.handle_entry(file, &entry)?;
                self.follow_up();
                if self.session.claim_tail(lane, file, offset) == BlockClaim::Take {
                    self.session.handle_tail(lane, file, offset);
                }
                Ok(())
            }
        }
    }

    fn turn(&mut self) {
        self.turn += 1;
        self.report = self.turn == 1;
        if let Some(file) = self.busy.pop_front() {
            self.session.handle_prepared(file, Self::ready(0..0));
        }
        if self.story == Story::Aborted {
            let text = "write plain: no space left";
            let error = Error::new(ErrorKind::NoSpace, Scope::Destination, Phase::Transfer, text);
            self.session.abort(error.retry(Retry::After));
        }
        self.follow_up();
    }

    fn poll(&mut self, lane: LaneId) -> Option<Item> {
        let now = self.origin + Duration::from_secs(u64::from(self.turn));
        if let Some(frame) = self.session.poll_frame(lane, now) {
            return Some(Item::Frame(frame.encode()));
        }
        std::mem::take(&mut self.report).then(|| Item::Frame(Frame::Receiver(receiver_report()).encode()))
    }

    fn is_over(&self) -> bool {
        self.session.is_over()
    }

    fn outcomes(&mut self) -> Vec<String> {
        self.outcomes.clone()
    }
}

/// End of a session between a command and its active agent.
pub struct ControlEnd {
    session: ControlSession,
    side: ControlSide,
    /// True for the answer to a query, false for a third-party copy.
    answers: bool,
    turn: u32,
    report: bool,
    outcomes: Vec<String>,
}

impl ControlEnd {
    pub fn new(side: ControlSide) -> Self {
        let session = ControlSession::new(side, LINGER_DEFAULT);
        Self { session, side, answers: false, turn: 0, report: false, outcomes: Vec::new() }
    }

    pub fn of_query(side: ControlSide) -> Self {
        Self { answers: true, ..Self::new(side) }
    }
}

impl End for ControlEnd {
    fn up(&mut self, lane: LaneId) {
        self.session.handle_lane_up(lane);
    }

    fn down(&mut self, lane: LaneId) {
        self.session.handle_lane_down(lane, Instant::now());
    }

    fn frame(&mut self, frame: Frame) -> Result<(), Error> {
        match frame {
            Frame::Messages { first, encoded } => self.session.handle_messages(first, &encoded),
            Frame::Acknowledge { next } => self.session.handle_acknowledgement(next),
            Frame::Snapshot(_) => Ok(()),
            other => Err(Error::protocol(format!("{other:?} out of place"))),
        }
    }

    fn block(&mut self, _: LaneId, header: BlockHeader) -> Result<(), Error> {
        Err(Error::protocol(format!("{header:?} in a session without blocks")))
    }

    fn turn(&mut self) {
        self.turn += 1;
        if self.side == ControlSide::Command {
            return;
        }
        self.report = self.turn == 1 && !self.answers;
        match self.turn {
            1 if self.answers => answers().into_iter().for_each(|answer| {
                let is_long = matches!(&answer, Answer::Failed(error) if error.text().len() > 1000);
                if !is_long {
                    assert!(self.session.answer(answer).is_none(), "the log has room");
                }
            }),
            // Errors with long texts would fill the recording.
            1 => reports().into_iter().filter(|report| !matches!(report, AgentReport::Unreadable(_))).for_each(
                |report| {
                    let is_long = matches!(&report, AgentReport::Settled { outcome: FileOutcome::Failed(error), .. }
                    if error.text().len() > 1000);
                    if !is_long {
                        self.session.report(report);
                    }
                },
            ),
            2 => self.session.conclude(conclusion(Some(Error::usage(&[Setting::Memory], "too little memory")))),
            _ => {}
        }
    }

    fn poll(&mut self, lane: LaneId) -> Option<Item> {
        if let Some(frame) = self.session.poll_frame(lane) {
            return Some(Item::Frame(frame.encode()));
        }
        std::mem::take(&mut self.report).then(|| Item::Frame(Frame::Snapshot(Box::new(snapshot(2))).encode()))
    }

    fn is_over(&self) -> bool {
        self.session.is_over()
    }

    fn outcomes(&mut self) -> Vec<String> {
        while let Some(event) = self.session.poll_event() {
            self.outcomes.push(match event {
                ControlEvent::Reported(report) => told_text(&report),
                ControlEvent::Answered(answer) => answer_text(&answer),
                ControlEvent::Concluded(conclusion) => conclusion_text(&conclusion),
                ControlEvent::Aborted(error) => format!("aborted {}", error_text(&error)),
            });
        }
        self.outcomes.clone()
    }
}

fn answer_text(answer: &Answer) -> String {
    match answer {
        Answer::Listed(listed) => {
            let path = listed.path.as_ref().map_or("the root".to_owned(), ToString::to_string);
            let Attributes { target, owner, xattrs, hard_link } = &listed.attributes;
            let owner = owner.as_ref().map(|owner| (owner.user, owner.group, &owner.user_name, &owner.group_name));
            let xattrs: Vec<_> = xattrs.iter().map(|xattr| (&xattr.name, &xattr.value)).collect();
            let digests: Vec<String> =
                listed.digests.iter().flat_map(FileDigests::iter).map(|digest| digest.to_string()).collect();
            format!(
                "{path}: {}, {} bytes, {:o}, {target:?} {owner:?} {xattrs:?} {hard_link:?} {digests:?}",
                listed.kind as u8, listed.size, listed.mode
            )
        }
        Answer::Deleted { path } => format!("deleted {path}"),
        Answer::Failed(error) => format!("failed {}", error_text(error)),
    }
}

fn told_text(report: &AgentReport) -> String {
    match report {
        AgentReport::Decision { subject, rationale } => format!("{}: {rationale}", subject.name()),
        AgentReport::LaneUp { lane, via, peer } => format!("lane {lane} up by {via} to port {}", peer.port),
        AgentReport::LaneDown { lane, reason, again } => format!("lane {lane} down: {reason}, again: {again}"),
        AgentReport::Settled { entry, outcome } => outcome_text(entry, outcome),
        AgentReport::Notice(text) => format!("notice {text}"),
        AgentReport::Unreadable(error) => format!("unreadable {}", error_text(error)),
        AgentReport::Restarted => "restarted".to_owned(),
    }
}

fn conclusion_text(conclusion: &Conclusion) -> String {
    let Conclusion { done, skipped, failed, bytes, bytes_skipped, first_failure, .. } = conclusion;
    let failure = first_failure.as_ref().map(error_text);
    format!("{done} done, {skipped} skipped, {failed} failed, {bytes} and {bytes_skipped} bytes, {failure:?}")
}
