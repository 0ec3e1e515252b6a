//! Recorded bytes of version 1: sessions from handshake to end, every frame, message and header, and journals. Every
//! later build has to read them, and to write the same bytes for the same values.
//!
//! A live end plays the part of one side of each recorded session, against the recorded other side. Most sessions are
//! between two such ends, with drivers that follow a story. Those of [`REAL`] are between processes. The files `*.future`
//! hold what a later release may add: types, fields, features and settings that this one has to skip.
//!
//! No test that runs by default writes a recording. `cargo test -p sterna-proto --test corpus record_what_is_missing --
//! --ignored` adds those of new stories, and `cargo test -p sterna --test e2e record_real -- --ignored` those of real
//! processes. Neither replaces a file. Delete one only to correct a recording that no release has written.

mod ends;
mod future;
mod recording;
#[path = "../samples/mod.rs"]
mod samples;

use std::fs;
use std::path::{Path, PathBuf};

use ends::{ControlEnd, End, Receiver, Sender, Story};
use recording::{Item, Recording, Side, Step};
use sterna_proto::journal::{HEADER_BYTES, JournalHeader, JournalRecord, RECORD_BYTES};
use sterna_proto::session::{
    ActiveEnd, BlockHeader, Capabilities, ControlSide, Features, FileId, Frame, Hello, LaneId, Message, Request,
    SessionId,
};
use sterna_proto::wire::{Reader, Writer};
use sterna_proto::{BlockDigest, Error, FileEntry, FileTime, Growth};

/// Version 1 without features: those of the recorded ends.
const FIRST: Capabilities = Capabilities { lowest: 1, highest: 1, features: Features(0) };

/// Maximum number of turns of a recorded session.
const TURNS_MAX: u32 = 20;

/// Maximum length of a recorded value. Reason: longer ones are the same value many times.
const SAMPLE_BYTES_MAX: usize = 1500;

/// Recorded session: its name, its request, and what happens.
struct Scenario {
    name: &'static str,
    request: Request,
    story: Story,
    lanes: u32,
}

fn scenarios() -> Vec<Scenario> {
    let requests = samples::requests();
    let push = |name, story, lanes| Scenario { name, request: requests[0].clone(), story, lanes };
    let pull = |name, story, lanes| Scenario { name, request: requests[4].clone(), story, lanes };
    let third_party = samples::third_party(ActiveEnd::Source, "hub.example.org", 1);
    vec![
        push("push", Story::Files, 2),
        push("push-lane-dies", Story::LaneDies, 2),
        push("push-grows", Story::Grows, 1),
        push("push-aborted", Story::Aborted, 1),
        pull("pull", Story::Files, 2),
        pull("pull-lane-dies", Story::LaneDies, 2),
        pull("pull-grows", Story::Grows, 1),
        pull("pull-aborted", Story::Aborted, 1),
        Scenario { name: "third-party", request: third_party, story: Story::Files, lanes: 1 },
        Scenario {
            name: "query",
            request: Request::Query(samples::queries()[0].clone()),
            story: Story::Files,
            lanes: 1,
        },
        Scenario { name: "probe", request: Request::Probe(samples::probes()[0]), story: Story::Files, lanes: 2 },
    ]
}

impl Scenario {
    fn end(&self, side: Side) -> Box<dyn End> {
        match (&self.request, side) {
            (Request::ThirdParty(_), Side::Client) => Box::new(ControlEnd::new(ControlSide::Command)),
            (Request::ThirdParty(_), Side::Agent) => Box::new(ControlEnd::new(ControlSide::Agent)),
            (Request::Query(_), Side::Client) => Box::new(ControlEnd::of_query(ControlSide::Command)),
            (Request::Query(_), Side::Agent) => Box::new(ControlEnd::of_query(ControlSide::Agent)),
            (Request::Push { .. } | Request::Probe(_), Side::Client) | (Request::Pull { .. }, Side::Agent) => {
                Box::new(Sender::new(self.story))
            }
            _ => Box::new(Receiver::new(self.story, side == Side::Client)),
        }
    }

    fn hello(&self, rejoin: bool) -> Item {
        let session = SessionId([0xa5; 16]);
        let hello = Hello { capabilities: FIRST, rejoin, ..Hello::new(session, self.request.clone()) };
        Item::Frame(Frame::Hello(hello).encode())
    }
}

/// A session between two live ends, while it is recorded.
struct Record {
    ends: [Box<dyn End>; 2],
    lanes: Vec<LaneId>,
    recording: Recording,
}

impl Record {
    fn of(scenario: &Scenario) -> Recording {
        let ends = [Side::Client, Side::Agent].map(|side| scenario.end(side));
        let mut record = Self { ends, lanes: Vec::new(), recording: Recording::default() };
        (0..scenario.lanes).for_each(|lane| record.join(scenario, LaneId(lane), false));
        for turn in 0..TURNS_MAX {
            record.deliver();
            for side in [Side::Client, Side::Agent] {
                record.ends[side as usize].turn();
                record.recording.steps.push(Step { side, lane: LaneId(0), item: Item::Turn });
            }
            if scenario.story == Story::LaneDies && turn == 0 {
                record.lose(LaneId(1));
                record.join(scenario, LaneId(2), true);
            }
        }
        record.deliver();
        for (end, outcomes) in record.ends.iter_mut().zip(&mut record.recording.outcomes) {
            assert!(end.is_over(), "{}", scenario.name);
            *outcomes = sorted(end.outcomes());
        }
        record.recording
    }

    fn join(&mut self, scenario: &Scenario, lane: LaneId, rejoin: bool) {
        let welcome = Item::Frame(Frame::Welcome(FIRST).encode());
        for (side, item) in [(Side::Client, scenario.hello(rejoin)), (Side::Agent, welcome)] {
            self.recording.steps.push(Step { side, lane, item });
            self.ends[side as usize].up(lane);
        }
        self.lanes.push(lane);
    }

    fn lose(&mut self, lane: LaneId) {
        for side in [Side::Client, Side::Agent] {
            self.recording.steps.push(Step { side, lane, item: Item::Down });
            self.ends[side as usize].down(lane);
        }
        self.lanes.retain(|other| *other != lane);
    }

    /// Delivers what the ends send until both have nothing left.
    fn deliver(&mut self) {
        let mut is_quiet = false;
        while !std::mem::replace(&mut is_quiet, true) {
            for (lane, side) in self.lanes.iter().flat_map(|lane| [(*lane, Side::Client), (*lane, Side::Agent)]) {
                let Some(item) = self.ends[side as usize].poll(lane) else { continue };
                is_quiet = false;
                let peer = 1 - side as usize;
                take(&mut *self.ends[peer], lane, &item).unwrap();
                self.recording.steps.push(Step { side, lane, item });
            }
        }
    }
}

fn sorted(mut outcomes: Vec<String>) -> Vec<String> {
    outcomes.sort();
    outcomes
}

/// Passes an item of the peer to `end`.
fn take(end: &mut dyn End, lane: LaneId, item: &Item) -> Result<(), Error> {
    match item {
        Item::Frame(frame) => match Frame::decode(frame)? {
            Some(Frame::Hello(_) | Frame::Welcome(_)) | None => Ok(()),
            Some(frame) => end.frame(frame),
        },
        Item::Block { header, data_len, .. } => end.block(lane, BlockHeader::decode(header, *data_len)?),
        Item::Down | Item::Turn => Ok(()),
    }
}

/// A live end in a recorded session.
struct Live {
    end: Box<dyn End>,
    lanes: Vec<LaneId>,
    /// Number of messages that the live end has sent. The recorded peer acknowledges no more: a later build may send
    /// other messages than the recorded one.
    sent: u64,
}

impl Live {
    /// Plays `side` with `end` against the recorded other side. Returns the outcomes.
    fn play(end: Box<dyn End>, recording: &Recording, side: Side) -> Result<Vec<String>, Error> {
        let mut live = Self { end, lanes: Vec::new(), sent: 0 };
        for step in &recording.steps {
            match (&step.item, step.side == side) {
                (Item::Turn, true) => live.end.turn(),
                (Item::Down, true) => live.down(step.lane),
                (Item::Frame(frame), true) => {
                    if matches!(Frame::decode(frame)?, Some(Frame::Hello(_) | Frame::Welcome(_))) {
                        live.lanes.push(step.lane);
                        live.end.up(step.lane);
                    }
                }
                (item, false) => {
                    let item = live.possible(item)?;
                    take(&mut *live.end, step.lane, &item)?;
                }
                (Item::Block { .. }, true) => {}
            }
            live.drain()?;
        }
        let rest = Item::Frame(Frame::Acknowledge { next: live.sent }.encode());
        take(&mut *live.end, LaneId(0), &rest)?;
        assert!(live.end.is_over(), "the {side:?} goes on: {:?}", live.end.outcomes());
        Ok(sorted(live.end.outcomes()))
    }

    fn down(&mut self, lane: LaneId) {
        self.lanes.retain(|other| *other != lane);
        self.end.down(lane);
    }

    /// Returns the item of the peer without the acknowledgement of a message that the live end has not sent.
    fn possible(&self, item: &Item) -> Result<Item, Error> {
        let Item::Frame(frame) = item else { return Ok(item.clone()) };
        Ok(match Frame::decode(frame)? {
            Some(Frame::Acknowledge { next }) if next > self.sent => {
                Item::Frame(Frame::Acknowledge { next: self.sent }.encode())
            }
            _ => item.clone(),
        })
    }

    /// Takes everything that the live end sends.
    fn drain(&mut self) -> Result<(), Error> {
        for lane in &self.lanes {
            while let Some(item) = self.end.poll(*lane) {
                if let Item::Frame(frame) = &item
                    && let Some(Frame::Messages { first, encoded }) = Frame::decode(frame)?
                {
                    self.sent = self.sent.max(first + Message::decode_all(&encoded)?.len() as u64);
                }
            }
        }
        Ok(())
    }
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/v1")
}

fn read(name: &str) -> Vec<u8> {
    let path = corpus().join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn recorded(name: &str) -> Recording {
    Recording::decode(&read(&format!("{name}.session"))).unwrap()
}

#[test]
fn every_recorded_session_plays_to_its_end_against_today_at_both_sides() {
    for scenario in scenarios() {
        let recording = recorded(scenario.name);
        for side in [Side::Client, Side::Agent] {
            let outcomes = Live::play(scenario.end(side), &recording, side);
            let outcomes = outcomes.unwrap_or_else(|error| panic!("{} at the {side:?}: {error}", scenario.name));
            assert_eq!(outcomes, recording.outcomes[side as usize], "{} at the {side:?}", scenario.name);
        }
    }
}

#[test]
fn a_later_peer_that_adds_only_what_is_optional_changes_nothing() {
    for scenario in scenarios() {
        let recording = Recording::decode(&read(&format!("{}.future", scenario.name))).unwrap();
        assert_ne!(recording.steps, recorded(scenario.name).steps);
        for side in [Side::Client, Side::Agent] {
            let outcomes = Live::play(scenario.end(side), &recording, side);
            let outcomes = outcomes.unwrap_or_else(|error| panic!("{} at the {side:?}: {error}", scenario.name));
            assert_eq!(outcomes, recording.outcomes[side as usize], "{} at the {side:?}", scenario.name);
        }
    }
}

/// Sessions between real processes; `crates/sterna/tests/e2e/record.rs` records them.
const REAL: [&str; 3] = ["real-push", "real-pull", "real-third-party"];

/// Returns the entries that `recording` offers.
fn offers(recording: &Recording) -> Vec<FileEntry> {
    let mut entries = Vec::new();
    for step in &recording.steps {
        let Item::Frame(frame) = &step.item else { continue };
        let Frame::Messages { encoded, .. } = Frame::decode(frame).unwrap().unwrap() else { continue };
        for message in Message::decode_all(&encoded).unwrap() {
            if let Message::Offer { entry, .. } = message {
                entries.push(entry);
            }
        }
    }
    entries
}

#[test]
fn recorded_sessions_of_real_processes_play_to_their_end() {
    let receiver = |is_client| Box::new(Receiver::new(Story::Files, is_client)) as Box<dyn End>;
    for name in ["real-push", "real-pull"] {
        let recording = recorded(name);
        let entries = offers(&recording);
        assert!(entries.len() > 5, "{name}");
        for side in [Side::Client, Side::Agent] {
            let is_sender = (name == "real-push") == (side == Side::Client);
            let sender = || Box::new(Sender::offering(entries.clone())) as Box<dyn End>;
            let end = if is_sender { sender() } else { receiver(side == Side::Client) };
            let outcomes = Live::play(end, &recording, side).unwrap_or_else(|error| panic!("{name}: {error}"));
            let done = outcomes.iter().filter(|outcome| outcome.contains(": done")).count();
            assert_eq!(done, entries.len(), "{name} at the {side:?}: {outcomes:?}");
        }
    }
    let command = Box::new(ControlEnd::new(ControlSide::Command));
    let outcomes = Live::play(command, &recorded("real-third-party"), Side::Client).unwrap();
    assert!(outcomes.iter().any(|outcome| outcome.contains("0 skipped, 0 failed")), "{outcomes:?}");
}

/// Encodes an item that was decoded.
fn again(item: &Item) -> Option<Item> {
    match item {
        Item::Frame(frame) => match Frame::decode(frame).unwrap().expect("of version 1") {
            Frame::Messages { first, encoded } => {
                let encoded = Message::decode_all(&encoded).unwrap().iter().flat_map(Message::encode).collect();
                Some(Item::Frame(Frame::Messages { first, encoded }.encode()))
            }
            frame => Some(Item::Frame(frame.encode())),
        },
        Item::Block { header, data_len, trailer } => {
            let header = BlockHeader::decode(header, *data_len).unwrap().encode();
            Some(Item::Block { header, data_len: *data_len, trailer: trailer.clone() })
        }
        Item::Down | Item::Turn => None,
    }
}

#[test]
fn everything_in_a_recorded_session_encodes_to_the_recorded_bytes() {
    for name in scenarios().iter().map(|scenario| scenario.name).chain(REAL) {
        for step in recorded(name).steps {
            if let Some(again) = again(&step.item) {
                assert_eq!(again, step.item, "{name}");
            }
        }
    }
}

/// Encodings of every sample that is not too long.
fn encoded_samples() -> Vec<Vec<u8>> {
    let tail = BlockHeader::Tail { file: FileId(9), entry: growing(3 << 20), offset: (3 << 20) + 5 };
    let mut all: Vec<Vec<u8>> = samples::frames().iter().map(Frame::encode).collect();
    all.extend(samples::messages().iter().map(Message::encode));
    all.extend(samples::headers().iter().map(|(header, _)| header.encode()));
    all.push(tail.encode());
    all.retain(|bytes| bytes.len() <= SAMPLE_BYTES_MAX);
    all
}

fn growing(size: u64) -> FileEntry {
    FileEntry { growth: Some(Growth::for_rate(None)), ..samples::entry(b"capture", size) }
}

#[test]
fn every_recorded_value_still_has_its_bytes() {
    let (bytes, today) = (read("values"), encoded_samples());
    let mut r = Reader::new(&bytes);
    let count = r.integer().unwrap();
    for index in 0..count {
        let value = r.bytes().unwrap().to_vec();
        assert!(today.contains(&value), "value {index}: no sample of today has the bytes {value:x?}");
    }
    r.finish().unwrap();
}

/// Journals of a file and of a growing file, with their bytes.
fn journals() -> [(JournalHeader, Vec<JournalRecord>); 2] {
    let mtime = FileTime { seconds: -5, nanoseconds: 999_999_999 };
    let entry = |size, growth| FileEntry { mtime, inode: 77, version: 78, growth, ..samples::entry(b"a", size) };
    let record = |index: u64| {
        let adler32 = index.is_multiple_of(2).then_some(index as u32 + 1);
        let crc32c = index.is_multiple_of(3).then_some(index as u32);
        JournalRecord { index, digest: BlockDigest { chaining_value: [index as u8 ^ 0x5a; 32], adler32, crc32c } }
    };
    [entry(7 << 20, None), entry(3 << 20, Some(Growth::for_rate(None)))]
        .map(|entry| (JournalHeader::new(&entry, 42, 0x1234_5678_9abc_def0), [6, 0, 3, 2].map(record).to_vec()))
}

fn journal_bytes((header, records): &(JournalHeader, Vec<JournalRecord>)) -> Vec<u8> {
    let codec = header.records();
    let records = records.iter().flat_map(|record| codec.encode(record));
    header.encode().into_iter().chain(records).collect()
}

#[test]
fn journals_of_version_1_load_with_every_block() {
    for (name, journal) in ["file.journal", "growing.journal"].iter().zip(journals()) {
        let bytes = read(name);
        let header = JournalHeader::decode(&bytes).unwrap();
        assert_eq!(header, journal.0, "{name}");
        let records = bytes[HEADER_BYTES..].chunks(RECORD_BYTES).map(|record| header.records().decode(record));
        assert_eq!(records.collect::<Option<Vec<_>>>().as_ref(), Some(&journal.1), "{name}");
        assert_eq!(journal_bytes(&journal), bytes, "{name}");
    }
}

/// Writes `bytes` to the file `name` of the corpus, unless it exists.
fn add(name: &str, bytes: &[u8]) {
    let path = corpus().join(name);
    if !path.exists() {
        fs::write(path, bytes).unwrap();
    }
}

#[test]
#[ignore = "writes recordings that are missing; see the head of this file"]
fn record_what_is_missing() {
    fs::create_dir_all(corpus()).unwrap();
    for scenario in scenarios() {
        let recording = Record::of(&scenario);
        add(&format!("{}.session", scenario.name), &recording.encode());
        add(&format!("{}.future", scenario.name), &future::of(&recorded(scenario.name)).encode());
    }
    let samples = encoded_samples();
    let mut w = Writer::default();
    w.integer(samples.len() as u64);
    samples.iter().for_each(|value| w.bytes(value));
    add("values", &w.into_bytes());
    for (name, journal) in ["file.journal", "growing.journal"].iter().zip(journals()) {
        add(name, &journal_bytes(&journal));
    }
}
