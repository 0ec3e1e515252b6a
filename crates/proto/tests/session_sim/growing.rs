//! Files that grow while they are sent: their writers, and the invariants.

use std::time::Duration;

use sterna_proto::session::{
    BlockClaim, BlockTask, FileId, LINGER_DEFAULT, LaneId, Message, PrepareOutcome, RecvEvent, RecvSession, SendSession,
};
use sterna_proto::{EntryKind, Error, ErrorKind, FileEntry, FileTime, Growth, RangeSet, RelPath};
use sterna_seeded::{Seeded, for_seeds};

use super::world::{Config, Event, World};
use super::{MIB, assert_resumed, hard, run, side};

/// Longest time between two writes.
const WRITE_EVERY: Duration = Duration::from_millis(200);

/// Longest time to read a file that has ended.
const SEAL_TIME: Duration = Duration::from_millis(500);

impl World {
    /// Lets every writer that has not closed its file write a random number of bytes, possibly none.
    pub fn grow_sources(&mut self) {
        for index in 0..self.sources.len() {
            self.grow_source(index);
        }
        let delay = self.random.up_to(WRITE_EVERY);
        if self.sources.iter().any(|source| source.entry.is_growing()) {
            self.after(delay, Event::Grow);
        }
    }

    fn grow_source(&mut self, index: usize) {
        let written = self.random.below(3 * MIB);
        let pauses = self.random.chance(300);
        let source = &mut self.sources[index];
        let Some(growth) = source.entry.growth.filter(|growth| !growth.has_ended()) else { return };
        source.size = (source.size + written).min(source.final_size);
        let has_ended = source.size == source.final_size;
        let (size, growth) =
            if has_ended { (source.size, growth.end()) } else { (growth.whole_bytes(source.size), growth) };
        source.entry = FileEntry { size, growth: Some(growth), ..source.entry.clone() };
        let (entry, size) = (source.entry.clone(), source.size);
        let Some(file) = self.offered_as(index) else { return };
        self.session.send.grow(file, entry);
        if has_ended {
            self.seal_soon(file);
        } else if pauses {
            self.session.send.set_tail(file, size);
        }
    }

    /// Schedules the final digest if the offered file has already ended.
    pub fn seal_if_ended(&mut self, index: usize) {
        if self.sources[index].entry.growth.is_some_and(|growth| growth.has_ended())
            && let Some(file) = self.offered_as(index)
        {
            self.seal_soon(file);
        }
    }

    fn seal_soon(&mut self, file: FileId) {
        let delay = self.random.up_to(SEAL_TIME);
        self.after(delay, Event::FinalDigest { file });
    }

    /// Returns the number of a source in this session, if it was offered.
    fn offered_as(&self, index: usize) -> Option<FileId> {
        let place = self.session.sources.iter().position(|source| *source == index)?;
        (place < self.session.next_source && !self.session.sender.gone).then_some(FileId(place as u64))
    }
}

/// Returns final sizes of every kind: nothing, less than a block, a block, one byte more, many blocks.
pub fn growing_sizes(random: &mut Seeded) -> Vec<u64> {
    let edges = [0, 1, MIB - 1, MIB, MIB + 1, 2 * MIB, 7 * MIB + 3, 30 * MIB];
    (0..1 + random.below(5)).map(|_| edges[random.below(edges.len() as u64) as usize]).collect()
}

fn growing(random: &mut Seeded) -> Config {
    let mut config = hard(random);
    config.growing = growing_sizes(random);
    config.sizes = (0..random.below(4)).map(|_| random.below(3 * MIB)).collect();
    config
}

#[test]
fn files_that_grow_arrive_over_lanes_that_die_all_the_time() {
    for_seeds("files_that_grow_arrive_over_lanes_that_die_all_the_time", 400, |seed| {
        let mut random = Seeded::new(seed);
        let mut config = growing(&mut random);
        config.busy = random.below(300);
        config.rot = random.below(200);
        let world = run(config, seed);
        assert!(world.failed.is_empty(), "{:?}", world.failed);
    });
}

#[test]
fn files_that_grow_go_on_where_they_were_when_either_end_crashes() {
    for_seeds("files_that_grow_go_on_where_they_were_when_either_end_crashes", 400, |seed| {
        let mut random = Seeded::new(seed);
        let mut config = growing(&mut random);
        config.crashes = (0..1 + random.below(8)).map(|_| (random.below(600), side(&mut random))).collect();
        assert_resumed(&run(config, seed), "crashes");
    });
}

#[test]
fn files_that_grow_and_fail_end_once_and_alike_at_both_ends() {
    for_seeds("files_that_grow_and_fail_end_once_and_alike_at_both_ends", 300, |seed| {
        let mut random = Seeded::new(seed);
        let mut config = growing(&mut random);
        config.corrupt = random.below(200);
        config.disk_refuses = random.below(30);
        config.publish_fails = random.below(30);
        config.busy = random.below(300);
        config.source_changes = random.below(30);
        if random.chance(200) {
            config.abort = Some((Duration::from_millis(random.below(4000)), side(&mut random)));
        }
        run(config, seed);
    });
}

fn growing_entry(size: u64) -> FileEntry {
    let (path, mtime) = (RelPath::new(b"capture").unwrap(), FileTime::default());
    let growth = Some(Growth::for_rate(None));
    FileEntry { path, kind: EntryKind::File, size, mtime, mode: 0o644, allocated: size, inode: 1, version: 1, growth }
}

fn ended(size: u64) -> FileEntry {
    FileEntry { growth: Some(Growth::for_rate(None).end()), ..growing_entry(size) }
}

/// Returns the receiver's result for messages that follow the offer of a growing file of 2 MiB.
fn receiver_of(messages: &[Message]) -> Result<RecvSession, Error> {
    let mut receiver = RecvSession::new(LINGER_DEFAULT);
    receiver.handle_lane_up(LaneId(0));
    let offer = Message::Offer { file: FileId(0), entry: growing_entry(2 * MIB) };
    for (number, message) in (0..).zip(std::iter::once(&offer).chain(messages)) {
        receiver.handle_messages(number, &message.encode())?;
    }
    Ok(receiver)
}

#[test]
fn a_sender_that_lies_about_a_growing_file_ends_the_session() {
    let file = FileId(0);
    let end = |size| Message::Ended { file, entry: ended(size) };
    let final_digest = |byte| Message::FinalDigest { file, blake3: [byte; 32] };
    let lies: [&[Message]; 9] = [
        &[end(MIB)],
        &[end(3 * MIB), end(4 * MIB)],
        &[Message::Ended { file, entry: growing_entry(4 * MIB) }],
        &[Message::Ended { file, entry: FileEntry { growth: None, ..ended(3 * MIB) } }],
        &[Message::Ended { file, entry: FileEntry { inode: 2, ..ended(3 * MIB) } }],
        &[Message::Ended { file: FileId(1), entry: ended(3 * MIB) }],
        &[final_digest(1)],
        &[Message::FinalDigest { file: FileId(u64::MAX), blake3: [0; 32] }],
        &[end(3 * MIB), final_digest(1), final_digest(2)],
    ];
    for lie in lies {
        assert_eq!(receiver_of(lie).unwrap_err().kind, ErrorKind::Protocol, "{lie:?}");
    }
    // A file that has ended does not grow, even if a block header claims so. A late block from a slow lane is valid.
    let mut receiver = receiver_of(&[end(3 * MIB + 1), final_digest(1), final_digest(1)]).unwrap();
    assert!(receiver.handle_entry(file, &growing_entry(MIB)).is_ok());
    assert!(receiver.handle_entry(file, &growing_entry(4 * MIB)).is_err());
}

#[test]
fn a_growing_file_is_published_once_it_has_ended_and_was_read_as_a_whole_and_every_block_is_here() {
    let (file, lane) = (FileId(0), LaneId(0));
    let mut receiver = receiver_of(&[]).unwrap();
    receiver.handle_prepared(file, PrepareOutcome::Ready { have: RangeSet::new(), notice: None });
    let is_published = |receiver: &mut RecvSession| {
        let events: Vec<RecvEvent> = std::iter::from_fn(|| receiver.poll_event()).collect();
        events.iter().any(|event| matches!(event, RecvEvent::Publish { .. }))
    };
    let bring = |receiver: &mut RecvSession, index| {
        assert_eq!(receiver.claim(lane, file, index), BlockClaim::Take);
        receiver.handle_block(lane, file, index, Ok(()));
    };
    bring(&mut receiver, 0);
    bring(&mut receiver, 1);
    assert!(!is_published(&mut receiver), "it grows");
    receiver.handle_messages(1, &Message::Ended { file, entry: ended(2 * MIB + 1) }.encode()).unwrap();
    bring(&mut receiver, 2);
    assert!(!is_published(&mut receiver), "nobody has read it as a whole");
    receiver.handle_messages(2, &Message::FinalDigest { file, blake3: [1; 32] }.encode()).unwrap();
    assert!(is_published(&mut receiver));
}

#[test]
fn a_growing_file_is_not_published_while_a_lane_writes_behind_its_end() {
    let (file, lane, slow) = (FileId(0), LaneId(0), LaneId(1));
    let mut receiver = receiver_of(&[]).unwrap();
    receiver.handle_lane_up(slow);
    receiver.handle_prepared(file, PrepareOutcome::Ready { have: RangeSet::new(), notice: None });
    for index in 0..2 {
        assert_eq!(receiver.claim(lane, file, index), BlockClaim::Take);
        receiver.handle_block(lane, file, index, Ok(()));
    }
    assert_eq!(receiver.claim_tail(slow, file, 2 * MIB), BlockClaim::Take);
    for (number, message) in
        [(1, Message::Ended { file, entry: ended(2 * MIB) }), (2, Message::FinalDigest { file, blake3: [1; 32] })]
    {
        receiver.handle_messages(number, &message.encode()).unwrap();
    }
    let is_published = |receiver: &mut RecvSession| {
        std::iter::from_fn(|| receiver.poll_event()).any(|event| matches!(event, RecvEvent::Publish { .. }))
    };
    assert!(!is_published(&mut receiver));
    receiver.handle_tail(slow, file, 2 * MIB);
    assert!(is_published(&mut receiver));
}

#[test]
fn files_take_turns_with_one_that_grows_and_may_never_be_done() {
    let lane = LaneId(0);
    let mut sender = SendSession::new(LINGER_DEFAULT);
    sender.handle_lane_up(lane);
    let named = |name: &str, entry: FileEntry| FileEntry { path: RelPath::new(name.as_bytes()).unwrap(), ..entry };
    let growing = sender.add_file(growing_entry(100 * MIB));
    let large = sender.add_file(named("large", FileEntry { growth: None, ..growing_entry(2 * MIB) }));
    let small = sender.add_file(named("small", FileEntry { growth: None, ..growing_entry(1) }));
    let taken: Vec<FileId> = (0..6)
        .map(|_| match sender.next_block(lane).expect("blocks are left") {
            BlockTask::Single { file, .. } | BlockTask::Tail { file, .. } => file,
            BlockTask::Packed { files } => files[0].0,
        })
        .collect();
    assert_eq!(taken.iter().filter(|file| **file == large).count(), 2, "{taken:?}");
    assert_eq!(taken.iter().filter(|file| **file == small).count(), 1, "{taken:?}");
    assert_eq!(taken.iter().filter(|file| **file == growing).count(), 3, "{taken:?}");
}
