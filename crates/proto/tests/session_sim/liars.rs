//! Peers that send invalid messages: each gives an error and ends the session, costs little, and never causes a panic.

use std::time::{Duration, Instant};

use sterna_proto::session::{
    BlockClaim, BlockOrder, BlockTask, ControlLog, FileId, FileOutcome, Frame, LINGER_DEFAULT, LaneId, Message,
    Overwrite, PrepareOutcome, RecvEvent, RecvSession, SendEvent, SendSession, UNSETTLED_FILES_MAX, corrupt_block,
};
use sterna_proto::{
    Checks, EntryKind, Error, ErrorKind, FileDigests, FileEntry, FileTime, Phase, RangeSet, RelPath, Scope,
};
use sterna_seeded::{Seeded, for_seeds};

const MIB: u64 = 1 << 20;
const LANE: LaneId = LaneId(0);

fn entry(name: &str, size: u64) -> FileEntry {
    let path = RelPath::new(name.as_bytes()).unwrap();
    let mtime = FileTime::default();
    FileEntry {
        path,
        kind: EntryKind::File,
        size,
        mtime,
        mode: 0o644,
        allocated: size,
        inode: 1,
        version: 1,
        growth: None,
    }
}

fn failure() -> Error {
    Error::new(ErrorKind::Io, Scope::Source, Phase::Transfer, "read")
}

fn digests() -> FileDigests {
    FileDigests::of(b"", Checks::NONE)
}

/// The log of a peer; sends one message after another.
struct Liar {
    next: u64,
}

impl Liar {
    fn tell_sender(&mut self, sender: &mut SendSession, message: &Message) -> Result<(), Error> {
        self.next += 1;
        sender.handle_messages(self.next - 1, &message.encode())
    }

    fn tell_receiver(&mut self, receiver: &mut RecvSession, message: &Message) -> Result<(), Error> {
        self.next += 1;
        receiver.handle_messages(self.next - 1, &message.encode())
    }
}

/// Returns a sender with a large and a small file, both sent.
fn sender() -> SendSession {
    let mut sender = SendSession::new(LINGER_DEFAULT);
    sender.handle_lane_up(LANE);
    sender.add_file(entry("large", 5 * MIB));
    sender.add_file(entry("small", 100));
    while sender.next_block(LANE).is_some() {}
    sender
}

/// Returns a receiver that was offered a large and a small file and has looked up both.
fn receiver(liar: &mut Liar) -> RecvSession {
    let mut receiver = RecvSession::new(LINGER_DEFAULT);
    receiver.handle_lane_up(LANE);
    for (id, entry) in [entry("large", 5 * MIB), entry("small", 100)].into_iter().enumerate() {
        liar.tell_receiver(&mut receiver, &Message::Offer { file: FileId(id as u64), entry }).unwrap();
        let ready = PrepareOutcome::Ready { have: RangeSet::default(), notice: None };
        receiver.handle_prepared(FileId(id as u64), ready);
    }
    receiver
}

#[test]
fn a_lying_receiver_is_an_error_and_ends_the_session() {
    let file = FileId(0);
    let lies = [
        Message::Have { file, blocks: vec![(0, 6)] },
        Message::Have { file, blocks: vec![(0, 1), (u64::MAX - 1, u64::MAX)] },
        Message::Want { file, blocks: vec![(5, 6)] },
        Message::Want { file: FileId(1), blocks: vec![(0, 2)] },
        Message::Have { file: FileId(2), blocks: vec![(0, 1)] },
        Message::Want { file: FileId(u64::MAX), blocks: vec![(0, 1)] },
        Message::Done { file: FileId(2), digests: digests() },
        Message::Skipped { file: FileId(u64::MAX) },
        Message::Failed { file: FileId(7), error: failure() },
        Message::Wait { file: FileId(2) },
        Message::Wait { file: FileId(u64::MAX) },
        Message::Offer { file, entry: entry("x", 1) },
        Message::Withdraw { file, error: failure() },
        Message::Unreadable { error: failure() },
        Message::OffersEnd { files: 2, bytes: 0 },
        Message::Bye,
    ];
    for lie in &lies {
        let mut sender = sender();
        let told = Liar { next: 0 }.tell_sender(&mut sender, lie);
        assert_eq!(told.unwrap_err().kind, ErrorKind::Protocol, "{lie:?}");
        assert!(matches!(sender.poll_event(), Some(SendEvent::Aborted(_))), "{lie:?}");
        assert_eq!(sender.next_block(LANE), None);
        while sender.poll_frame(LANE).is_some() {}
        assert!(sender.is_over(), "{lie:?}: the peer has been told why");
    }
    for next in [1, 3, u64::MAX] {
        let mut sender = sender();
        assert!(sender.handle_acknowledgement(next).is_err(), "nothing has been sent yet");
    }
    assert!(sender().handle_messages(1, &Message::Bye.encode()).is_err(), "a gap");
}

#[test]
fn why_a_peer_ends_the_session_is_told_as_its_own_words() {
    let abort = Message::Abort { error: failure() };
    let (mut sender, mut receiver) = (sender(), RecvSession::new(LINGER_DEFAULT));
    Liar { next: 0 }.tell_sender(&mut sender, &abort).unwrap();
    Liar { next: 0 }.tell_receiver(&mut receiver, &abort).unwrap();
    let Some(SendEvent::Aborted(of_receiver)) = sender.poll_event() else { panic!("the sender goes on") };
    let Some(RecvEvent::Aborted(of_sender)) = receiver.poll_event() else { panic!("the receiver goes on") };
    assert!(of_receiver.is_from_peer() && of_sender.is_from_peer());
    sender = self::sender();
    sender.abort(failure());
    let Some(SendEvent::Aborted(ours)) = sender.poll_event() else { panic!("the sender goes on") };
    assert!(!ours.is_from_peer(), "what ends here is not in the words of a peer");
}

#[test]
fn silent_lanes_are_closed_when_what_is_on_them_is_all_that_comes() {
    let mut receiver = receiver(&mut Liar { next: 0 });
    let (silent, other) = (LaneId(7), LaneId(8));
    [silent, other].iter().for_each(|lane| receiver.handle_lane_up(*lane));
    let (start, second) = (Instant::now(), Duration::from_secs(1));
    assert_eq!(receiver.handle_silence(&[silent], start), [], "it holds nothing up");
    assert_eq!(receiver.claim(silent, FileId(0), 0), BlockClaim::Take);
    assert_eq!(receiver.claim(other, FileId(0), 1), BlockClaim::Take);
    for ended in [start, start + second * 9] {
        assert_eq!(
            receiver.handle_silence(&[silent], ended),
            [],
            "it may be heard again while others have enough to do"
        );
    }
    receiver.handle_lane_down(other, start + second * 9);
    assert_eq!(receiver.handle_silence(&[silent], start + second * 10), [], "the other may be between two blocks");
    receiver.handle_lane_up(other);
    assert_eq!(receiver.claim(other, FileId(0), 1), BlockClaim::Take);
    receiver.handle_lane_down(other, start + second * 10);
    assert_eq!(receiver.handle_silence(&[silent], start + second * 11), [], "it was");
    assert_eq!(receiver.handle_silence(&[silent], start + second * 12), [silent]);
}

#[test]
fn a_lane_that_is_dead_is_given_nothing_more() {
    let mut sender = sender();
    let [dead, live] = [LaneId(7), LaneId(8)];
    [dead, live].iter().for_each(|lane| sender.handle_lane_up(*lane));
    sender.add_file(entry("other", 2 * MIB));
    assert!(sender.next_block(dead).is_some());
    sender.handle_lane_down(dead, Instant::now());
    assert_eq!(sender.next_block(dead), None);
    let taken = std::iter::from_fn(|| sender.next_block(live)).count();
    assert_eq!(taken, 2, "what the dead lane had goes by the other");
}

#[test]
fn a_lying_sender_is_an_error_and_ends_the_session() {
    let offer = |id, name, size| Message::Offer { file: FileId(id), entry: entry(name, size) };
    let lies: [&[Message]; 15] = [
        &[offer(3, "c", 1)],
        &[offer(0, "large", 5 * MIB)],
        &[offer(u64::MAX, "c", 1)],
        &[Message::Withdraw { file: FileId(2), error: failure() }],
        &[Message::Withdraw { file: FileId(u64::MAX), error: failure() }],
        &[Message::OffersEnd { files: 3, bytes: 0 }],
        &[Message::OffersEnd { files: 2, bytes: 0 }, Message::OffersEnd { files: 2, bytes: 0 }],
        &[Message::OffersEnd { files: 2, bytes: 0 }, offer(2, "c", 1)],
        &[Message::Bye],
        &[Message::OffersEnd { files: 2, bytes: 0 }, Message::Bye],
        &[Message::Have { file: FileId(0), blocks: vec![(0, 1)] }],
        &[Message::Want { file: FileId(0), blocks: vec![(0, 1)] }],
        &[Message::Done { file: FileId(0), digests: digests() }],
        &[Message::Notice { file: FileId(0), text: "boo".into() }],
        &[Message::Wait { file: FileId(0) }],
    ];
    for lie in lies {
        let mut liar = Liar { next: 0 };
        let mut receiver = receiver(&mut liar);
        while receiver.poll_event().is_some() {}
        let (last, before) = lie.split_last().unwrap();
        before.iter().for_each(|message| liar.tell_receiver(&mut receiver, message).unwrap());
        let told = liar.tell_receiver(&mut receiver, last);
        assert_eq!(told.unwrap_err().kind, ErrorKind::Protocol, "{lie:?}");
        assert!(matches!(receiver.poll_event(), Some(RecvEvent::Aborted(_))), "{lie:?}");
        while receiver.poll_frame(LANE, Instant::now()).is_some() {}
        assert!(receiver.is_over(), "{lie:?}: the peer has been told why");
    }
}

#[test]
fn headers_that_contradict_the_manifest_are_errors() {
    let contradictions = [
        (FileId(0), entry("large", 6 * MIB)),
        (FileId(1), entry("large", 100)),
        (FileId(2 + UNSETTLED_FILES_MAX as u64), entry("far", 1)),
        (FileId(u64::MAX), entry("far", 1)),
    ];
    for (file, entry) in contradictions {
        let mut receiver = receiver(&mut Liar { next: 0 });
        assert!(receiver.handle_entry(file, &entry).is_err(), "{file:?}");
    }
    let mut liar = Liar { next: 0 };
    let mut receiver = receiver(&mut liar);
    receiver.handle_entry(FileId(9), &entry("ahead", 1)).unwrap();
    let end = liar.tell_receiver(&mut receiver, &Message::OffersEnd { files: 2, bytes: 0 });
    assert!(end.is_err(), "a block of file 9 came, and the manifest ends with 2");
}

#[test]
fn of_two_open_files_of_one_path_the_second_fails_and_the_path_is_free_again_after_the_first() {
    let (mut liar, mut receiver) = (Liar { next: 0 }, RecvSession::new(LINGER_DEFAULT));
    receiver.handle_lane_up(LANE);
    for id in 0..3 {
        let same = entry("same", 100 + id);
        liar.tell_receiver(&mut receiver, &Message::Offer { file: FileId(id), entry: same }).unwrap();
        match (id, receiver.poll_event().unwrap()) {
            (0 | 2, RecvEvent::Prepare { file, .. }) => assert_eq!(file, FileId(id)),
            (1, RecvEvent::Settled { file: FileId(1), outcome: FileOutcome::Failed(error), .. }) => {
                assert_eq!(error.kind, ErrorKind::Exists);
                receiver.handle_prepared(FileId(0), PrepareOutcome::UpToDate);
                assert!(matches!(receiver.poll_event(), Some(RecvEvent::Settled { file: FileId(0), .. })));
            }
            (_, other) => panic!("{other:?}"),
        }
        assert!(receiver.poll_event().is_none());
    }
}

#[test]
fn a_flood_of_offers_or_paths_is_cut_off_at_its_limit() {
    let long = |id: u64| format!("{id}/{}", vec!["x".repeat(250); 15].join("/"));
    let names: [&dyn Fn(u64) -> String; 2] = [&|id| format!("f{id}"), &long];
    for name in names {
        let (mut liar, mut receiver) = (Liar { next: 0 }, RecvSession::new(LINGER_DEFAULT));
        receiver.handle_lane_up(LANE);
        let mut taken = 0u64;
        while liar
            .tell_receiver(&mut receiver, &Message::Offer { file: FileId(taken), entry: entry(&name(taken), 1) })
            .is_ok()
        {
            taken += 1;
            while receiver.poll_event().is_some() {}
            assert!(taken <= UNSETTLED_FILES_MAX as u64);
        }
        assert!(taken > 8000, "{taken} is too few for an honest sender");
    }
}

#[test]
fn a_sender_that_never_acknowledges_is_cut_off() {
    let (mut liar, mut receiver) = (Liar { next: 0 }, RecvSession::new(LINGER_DEFAULT));
    receiver.handle_lane_up(LANE);
    let text = "no space ".repeat(500);
    let mut taken = 0u64;
    let error = loop {
        let offer = Message::Offer { file: FileId(taken), entry: entry(&format!("f{taken}"), 1) };
        if let Err(error) = liar.tell_receiver(&mut receiver, &offer) {
            break error;
        }
        let failed = Error::new(ErrorKind::NoSpace, Scope::Destination, Phase::Prepare, text.clone());
        receiver.handle_prepared(FileId(taken), PrepareOutcome::Failed(failed));
        while receiver.poll_event().is_some() {}
        while receiver.poll_frame(LANE, Instant::now()).is_some() {}
        taken += 1;
        assert!(receiver.log_bytes() < 65 << 20, "{} bytes wait", receiver.log_bytes());
    };
    assert_eq!(error.kind, ErrorKind::Limit);
}

/// A receiver that did not take the data of a file claims that it was there.
#[test]
fn a_file_that_must_be_written_again_is_not_up_to_date() {
    let skipped = Message::Skipped { file: FileId(0) };
    for overwrite in [Overwrite::Always, Overwrite::Never] {
        let mut sender = sender();
        sender.set_overwrite(overwrite);
        let told = Liar { next: 0 }.tell_sender(&mut sender, &skipped).unwrap_err();
        assert!(told.kind == ErrorKind::Protocol && told.text().contains("large"), "{overwrite:?}: {told}");
        assert!(matches!(sender.poll_event(), Some(SendEvent::Aborted(_))), "{overwrite:?}");
    }
    let mut sender = sender();
    sender.set_overwrite(Overwrite::IfChanged);
    Liar { next: 0 }.tell_sender(&mut sender, &skipped).unwrap();
    assert!(matches!(sender.poll_event(), Some(SendEvent::Settled { outcome: FileOutcome::Skipped, .. })));
}

#[test]
fn an_error_that_the_receiver_sends_back_is_that_of_its_author() {
    let (mut sender, mut liar) = (sender(), Liar { next: 0 });
    let own = Error::new(ErrorKind::Internal, Scope::Source, Phase::Transfer, "a bug at this end");
    sender.withdraw(FileId(0), own.clone());
    liar.tell_sender(&mut sender, &Message::Failed { file: FileId(0), error: own.clone() }).unwrap();
    liar.tell_sender(&mut sender, &Message::Failed { file: FileId(1), error: own }).unwrap();
    let codes: Vec<u8> = std::iter::from_fn(|| sender.poll_event())
        .map(|event| match event {
            SendEvent::Settled { outcome: FileOutcome::Failed(error), .. } => error.exit_code(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(codes, [70, 5]);
}

#[test]
fn several_files_for_one_digest_are_wrong_usage_at_the_end_that_offers_them() {
    for is_early in [true, false] {
        let mut sender = SendSession::new(LINGER_DEFAULT);
        if is_early {
            sender.expect_one_file();
        }
        sender.add_file(entry("one", 100));
        assert!(sender.poll_event().is_none());
        sender.add_file(entry("two", 100));
        if !is_early {
            sender.expect_one_file();
        }
        let Some(SendEvent::Aborted(error)) = sender.poll_event() else { panic!("the sender goes on") };
        assert_eq!(error.exit_code(), 2);
    }
}

#[test]
fn notices_without_end_become_one_line() {
    let (mut sender, mut liar) = (sender(), Liar { next: 0 });
    let notice = |number: u32| Message::Notice { file: FileId(0), text: number.to_string() };
    let mut said = Vec::new();
    let mut hear = |sender: &mut SendSession| {
        while let Some(event) = sender.poll_event() {
            if let SendEvent::Notice { text, .. } = event {
                said.push(text);
            }
        }
    };
    for number in 0..10_000 {
        liar.tell_sender(&mut sender, &notice(number)).unwrap();
        hear(&mut sender);
    }
    liar.tell_sender(&mut sender, &Message::Abort { error: failure() }).unwrap();
    hear(&mut sender);
    assert!(said.len() < 1000, "{} lines", said.len());
    let left_out = 10_000 - (said.len() - 1);
    assert!(said.last().is_some_and(|line| line.contains(&format!("{left_out} of them"))), "{:?}", said.last());
}

#[test]
fn a_storm_of_wants_and_haves_costs_no_more_than_its_ranges() {
    // 2^38 blocks: a state machine that iterates over them never returns.
    let mut sender = SendSession::new(LINGER_DEFAULT);
    sender.handle_lane_up(LANE);
    let large = entry("sparse", 1 << 62);
    let count = large.blocks().count();
    sender.add_file(large);
    for _ in 0..1000 {
        sender.next_block(LANE).unwrap();
    }
    let mut liar = Liar { next: 0 };
    for turn in 0..1000 {
        let blocks = if turn % 2 == 0 { vec![(0, count)] } else { (0..1024).map(|i| (i * 2, i * 2 + 1)).collect() };
        liar.tell_sender(&mut sender, &Message::Want { file: FileId(0), blocks }).unwrap();
        liar.tell_sender(&mut sender, &Message::Have { file: FileId(0), blocks: vec![(0, count)] }).unwrap();
    }
    liar.tell_sender(&mut sender, &Message::Want { file: FileId(0), blocks: vec![(0, count)] }).unwrap();
    assert_eq!(sender.active_files(10).len(), 0);
}

#[test]
fn a_block_that_never_verifies_ends_its_file_after_a_few_tries() {
    let mut receiver = receiver(&mut Liar { next: 0 });
    let large = entry("large", 5 * MIB);
    let mut tries = 0;
    while receiver.is_receiving(FileId(0)) {
        assert_eq!(receiver.claim(LANE, FileId(0), 3), BlockClaim::Take);
        assert_eq!(receiver.handle_block(LANE, FileId(0), 3, Err(corrupt_block(&large, 3))), BlockClaim::Discard);
        tries += 1;
    }
    assert_eq!(tries, sterna_proto::session::BLOCK_FAILURES_MAX);
    assert_eq!(receiver.failed_blocks(), u64::from(tries));
}

#[test]
fn a_withdrawn_file_is_not_sent_again_when_an_abandoned_block_is_asked_for() {
    let (mut sender, mut liar) = (sender(), Liar { next: 0 });
    sender.withdraw(FileId(0), failure());
    liar.tell_sender(&mut sender, &Message::Want { file: FileId(0), blocks: vec![(0, 5)] }).unwrap();
    assert_eq!((sender.next_block(LANE), sender.sent_again_blocks()), (None, 0));
    sender.handle_lane_down(LANE, Instant::now());
    sender.handle_lane_up(LaneId(1));
    let again = sender.next_block(LaneId(1));
    assert!(
        matches!(&again, Some(sterna_proto::session::BlockTask::Packed { files }) if files.len() == 1),
        "{again:?}"
    );
    assert_eq!(sender.next_block(LaneId(1)), None);
}

#[test]
fn of_a_withdrawn_file_only_what_the_receiver_has_confirmed_counts() {
    let (mut sender, mut liar) = (sender(), Liar { next: 0 });
    let file = FileId(0);
    liar.tell_sender(&mut sender, &Message::Have { file, blocks: vec![(0, 2)] }).unwrap();
    sender.withdraw(file, failure());
    assert_eq!((sender.unsettled_bytes(), sender.confirmed_bytes()), (2 * MIB, 2 * MIB));
    // Blocks in flight still arrive, but blocks that a lane loses do not.
    liar.tell_sender(&mut sender, &Message::Have { file, blocks: vec![(2, 3)] }).unwrap();
    sender.handle_lane_down(LANE, Instant::now());
    liar.tell_sender(&mut sender, &Message::Want { file, blocks: vec![(0, 1)] }).unwrap();
    assert_eq!((sender.unsettled_bytes(), sender.confirmed_bytes()), (2 * MIB, 2 * MIB));
    // The withdrawal came too late: the file is in place.
    sender.withdraw(FileId(1), failure());
    liar.tell_sender(&mut sender, &Message::Done { file: FileId(1), digests: digests() }).unwrap();
    liar.tell_sender(&mut sender, &Message::Failed { file, error: failure() }).unwrap();
    assert_eq!((sender.unsettled_bytes(), sender.confirmed_bytes()), (0, 2 * MIB + 100));
}

#[test]
fn a_read_past_copy_is_asked_for_when_the_lane_that_wrote_dies_and_the_sender_does_not_know() {
    let mut receiver = receiver(&mut Liar { next: 0 });
    let other = LaneId(1);
    receiver.handle_lane_up(other);
    while receiver.poll_frame(LANE, Instant::now()).is_some() {}
    assert_eq!(receiver.claim(LANE, FileId(0), 2), BlockClaim::Take);
    assert_eq!(receiver.claim(other, FileId(0), 2), BlockClaim::Discard);
    receiver.handle_lane_down(LANE, Instant::now());
    let mut wanted = Vec::new();
    while let Some(frame) = receiver.poll_frame(other, Instant::now()) {
        if let Frame::Messages { encoded, .. } = frame {
            wanted.extend(Message::decode_all(&encoded).unwrap());
        }
    }
    let last = wanted.last();
    assert!(matches!(last, Some(Message::Want { file: FileId(0), blocks }) if blocks == &[(2, 3)]), "{wanted:?}");
    assert_eq!(receiver.claim(other, FileId(0), 2), BlockClaim::Take);
}

/// Returns the messages that the receiver sends on a lane, and its events.
fn heard(receiver: &mut RecvSession) -> (Vec<Message>, Vec<RecvEvent>) {
    let mut messages = Vec::new();
    while let Some(frame) = receiver.poll_frame(LANE, Instant::now()) {
        if let Frame::Messages { encoded, .. } = frame {
            messages.extend(Message::decode_all(&encoded).unwrap());
        }
    }
    (messages, std::iter::from_fn(|| receiver.poll_event()).collect())
}

#[test]
fn the_sender_does_not_hear_that_all_is_finished_before_directories_are() {
    // The manifest ends before the last file, or after it if directories are read slowly.
    for ends_late in [false, true] {
        let mut liar = Liar { next: 0 };
        let mut receiver = receiver(&mut liar);
        heard(&mut receiver);
        let end = Message::OffersEnd { files: 2, bytes: 0 };
        if !ends_late {
            liar.tell_receiver(&mut receiver, &end).unwrap();
        }
        receiver.fail(FileId(0), failure());
        receiver.handle_discarded(FileId(0));
        receiver.fail(FileId(1), failure());
        // Too early: there was nothing to finish yet.
        if ends_late {
            receiver.handle_finished();
            liar.tell_receiver(&mut receiver, &end).unwrap();
        }
        let (messages, events) = heard(&mut receiver);
        let failed = |message: &Message| matches!(message, Message::Failed { .. });
        assert!(messages.len() == 2 && messages.iter().all(failed), "{messages:?}");
        let settled = |event: &&RecvEvent| matches!(event, RecvEvent::Settled { .. });
        assert_eq!(events.iter().filter(settled).count(), 2, "{events:?}");
        assert!(matches!(events.last(), Some(RecvEvent::Finish { whole: false })), "{events:?}");
        assert!(!receiver.is_complete());
        receiver.handle_finished();
        let (messages, events) = heard(&mut receiver);
        assert!(matches!(messages[..], [Message::Finished]) && events.is_empty(), "{messages:?}");
        assert!(receiver.is_complete());
    }
}

#[test]
fn directories_count_as_whole_unless_something_is_missing_that_another_run_may_bring() {
    let refused = |kind, scope| Error::new(kind, scope, Phase::Prepare, "not now");
    let exists = refused(ErrorKind::Exists, Scope::Destination);
    // No later run delivers a fifo or a name that is gone. A user may grant missing rights or restore the destination.
    let no_file = || refused(ErrorKind::NotFound, Scope::Source);
    let closed = refused(ErrorKind::Denied, Scope::Source);
    let gone = refused(ErrorKind::NotFound, Scope::Destination);
    for (error, unreadable, whole) in [
        (None, None, true),
        (Some(exists), None, true),
        (Some(no_file()), None, true),
        (Some(gone), None, false),
        (Some(closed), None, false),
        (Some(failure()), None, false),
        (None, Some(no_file()), true),
        (None, Some(failure()), false),
    ] {
        let (mut liar, mut receiver) = (Liar { next: 0 }, RecvSession::new(LINGER_DEFAULT));
        liar.tell_receiver(&mut receiver, &Message::Offer { file: FileId(0), entry: entry("f", 1) }).unwrap();
        if let Some(error) = unreadable {
            liar.tell_receiver(&mut receiver, &Message::Unreadable { error }).unwrap();
        }
        liar.tell_receiver(&mut receiver, &Message::OffersEnd { files: 1, bytes: 1 }).unwrap();
        receiver.handle_prepared(FileId(0), error.map_or(PrepareOutcome::UpToDate, PrepareOutcome::Failed));
        let (_, events) = heard(&mut receiver);
        let said = events.iter().find_map(|event| match event {
            RecvEvent::Finish { whole } => Some(*whole),
            _ => None,
        });
        assert_eq!(said, Some(whole), "{events:?}");
    }
}

#[test]
fn a_file_that_is_withdrawn_before_it_is_found_to_wait_settles_without_waiting() {
    let (mut liar, mut receiver) = (Liar { next: 0 }, receiver(&mut Liar { next: 0 }));
    liar.next = 2;
    let offer = Message::Offer { file: FileId(2), entry: entry("held", 5 * MIB) };
    liar.tell_receiver(&mut receiver, &offer).unwrap();
    liar.tell_receiver(&mut receiver, &Message::Withdraw { file: FileId(2), error: failure() }).unwrap();
    assert!(receiver.is_open(FileId(2)), "the storage is being asked");
    heard(&mut receiver);
    receiver.handle_busy(FileId(2), None);
    let (messages, _) = heard(&mut receiver);
    assert!(matches!(messages[..], [Message::Failed { file: FileId(2), .. }]), "{messages:?}");
}

#[test]
fn a_file_that_is_withdrawn_while_it_waits_settles_when_the_storage_is_next_asked() {
    for (kind, is_free) in [(ErrorKind::Changed, false), (ErrorKind::Changed, true), (ErrorKind::Io, true)] {
        let (mut liar, mut receiver) = (Liar { next: 0 }, RecvSession::new(LINGER_DEFAULT));
        receiver.handle_lane_up(LANE);
        for (id, name) in [(0, "held"), (1, "other")] {
            let entry = entry(name, 5 * MIB);
            liar.tell_receiver(&mut receiver, &Message::Offer { file: FileId(id), entry }).unwrap();
        }
        receiver.handle_busy(FileId(0), None);
        receiver.handle_busy(FileId(0), None);
        assert!(matches!(heard(&mut receiver).0[..], [Message::Wait { file: FileId(0) }]), "it is said once");
        let error = Error::new(kind, Scope::Source, Phase::Transfer, "gone");
        liar.tell_receiver(&mut receiver, &Message::Withdraw { file: FileId(0), error }).unwrap();
        // The storage may be asked again at this moment, and blocks in flight still arrive on the lanes.
        assert_eq!(receiver.claim(LANE, FileId(0), 0), BlockClaim::Discard);
        assert!(heard(&mut receiver).0.is_empty());
        if is_free {
            receiver.handle_prepared(FileId(0), PrepareOutcome::Ready { have: RangeSet::default(), notice: None });
            let (messages, events) = heard(&mut receiver);
            assert!(
                messages.is_empty() && matches!(events[..], [RecvEvent::Discard { file: FileId(0) }]),
                "{events:?}"
            );
            receiver.handle_discarded(FileId(0));
        } else {
            receiver.handle_busy(FileId(0), None);
        }
        let (messages, _) = heard(&mut receiver);
        assert!(matches!(messages[..], [Message::Failed { file: FileId(0), .. }]), "{messages:?}");
    }
}

#[test]
fn blocks_of_an_earlier_run_outlive_a_passing_error_of_the_source_and_not_its_change() {
    for (kind, is_kept) in [(ErrorKind::Io, true), (ErrorKind::Changed, false)] {
        let (mut liar, mut receiver) = (Liar { next: 0 }, RecvSession::new(LINGER_DEFAULT));
        let offer = Message::Offer { file: FileId(0), entry: entry("large", 5 * MIB) };
        let error = Error::new(kind, Scope::Source, Phase::Transfer, "read");
        liar.tell_receiver(&mut receiver, &offer).unwrap();
        liar.tell_receiver(&mut receiver, &Message::Withdraw { file: FileId(0), error }).unwrap();
        let mut have = RangeSet::default();
        have.insert(0..4);
        receiver.handle_prepared(FileId(0), PrepareOutcome::Ready { have, notice: None });
        let (_, events) = heard(&mut receiver);
        let discarded = events.iter().any(|event| matches!(event, RecvEvent::Discard { .. }));
        assert_eq!(discarded, !is_kept, "{kind:?}: {events:?}");
    }
}

#[test]
fn a_file_ends_when_what_is_of_no_use_of_it_is_gone() {
    let mut liar = Liar { next: 0 };
    let mut receiver = receiver(&mut liar);
    let (file, other) = (FileId(0), LaneId(1));
    receiver.handle_lane_up(other);
    receiver.fail(FileId(1), failure());
    liar.tell_receiver(&mut receiver, &Message::OffersEnd { files: 2, bytes: 0 }).unwrap();
    assert_eq!(receiver.claim(LANE, file, 0), BlockClaim::Take);
    assert_eq!(receiver.claim(other, file, 1), BlockClaim::Take);
    receiver.handle_block(LANE, file, 0, Ok(()));
    heard(&mut receiver);
    let error = Error::new(ErrorKind::Changed, Scope::Source, Phase::Transfer, "it grew");
    liar.tell_receiver(&mut receiver, &Message::Withdraw { file, error }).unwrap();
    // Otherwise the directories would be finished while the part file is being removed.
    let (messages, events) = heard(&mut receiver);
    assert!(messages.is_empty(), "{messages:?}");
    assert!(matches!(events[..], [RecvEvent::Discard { file: FileId(0) }]), "{events:?}");
    // Neither blocks in flight nor later errors change this state.
    assert_eq!(receiver.claim(LANE, file, 2), BlockClaim::Discard);
    assert_eq!(receiver.handle_block(other, file, 1, Ok(())), BlockClaim::Discard);
    receiver.handle_block_abandoned(other, file, 1);
    receiver.fail(file, failure());
    liar.tell_receiver(&mut receiver, &Message::Withdraw { file, error: failure() }).unwrap();
    let (messages, events) = heard(&mut receiver);
    assert!(messages.is_empty() && events.is_empty(), "{messages:?} {events:?}");
    receiver.handle_discarded(file);
    let (messages, events) = heard(&mut receiver);
    assert!(
        matches!(&messages[..], [Message::Failed { error, .. }] if error.kind == ErrorKind::Changed),
        "{messages:?}"
    );
    assert!(matches!(events[..], [RecvEvent::Settled { .. }, RecvEvent::Finish { .. }]), "{events:?}");
}

#[test]
fn a_receiver_that_says_wait_to_all_gets_nothing_sent_and_costs_nothing_more() {
    let (mut sender, mut liar) = (sender(), Liar { next: 0 });
    for _ in 0..1000 {
        for id in [0, 1] {
            liar.tell_sender(&mut sender, &Message::Wait { file: FileId(id) }).unwrap();
        }
        // Blocks that its lanes lose wait with the others.
        sender.handle_lane_down(LANE, Instant::now());
        sender.handle_lane_up(LANE);
        assert_eq!(sender.next_block(LANE), None);
    }
    // The receiver may still send these messages for a settled file, because they were in flight.
    liar.tell_sender(&mut sender, &Message::Skipped { file: FileId(1) }).unwrap();
    liar.tell_sender(&mut sender, &Message::Wait { file: FileId(1) }).unwrap();
    liar.tell_sender(&mut sender, &Message::Want { file: FileId(1), blocks: vec![(0, 1)] }).unwrap();
    assert_eq!(sender.next_block(LANE), None);
    // A withdrawn file neither waits nor resumes.
    sender.withdraw(FileId(0), failure());
    for message in [Message::Wait { file: FileId(0) }, Message::Want { file: FileId(0), blocks: vec![(0, 5)] }] {
        liar.tell_sender(&mut sender, &message).unwrap();
        assert_eq!(sender.next_block(LANE), None);
    }
    liar.tell_sender(&mut sender, &Message::Failed { file: FileId(0), error: failure() }).unwrap();
    // The receiver must not finish before the manifest.
    sender.end_files();
    assert!(!sender.is_complete());
    liar.tell_sender(&mut sender, &Message::Finished).unwrap();
    assert!(sender.is_complete());
}

#[test]
fn a_receiver_that_has_finished_too_early_is_an_error() {
    for ended in [false, true] {
        let (mut sender, mut liar) = (sender(), Liar { next: 0 });
        if ended {
            sender.end_files();
        } else {
            let settled = [0, 1].map(|id| Message::Skipped { file: FileId(id) });
            settled.iter().for_each(|message| liar.tell_sender(&mut sender, message).unwrap());
        }
        assert!(liar.tell_sender(&mut sender, &Message::Finished).is_err());
        assert!(!sender.is_complete());
    }
}

/// The first requested blocks of a replica are compared with those of the others. Later requests must not overtake
/// them.
#[test]
fn what_is_asked_for_first_is_sent_first_and_the_rest_from_the_lowest_on() {
    for order in [BlockOrder::OnDemand, BlockOrder::Runs] {
        let (mut sender, mut receiver) = (SendSession::new(LINGER_DEFAULT), Liar { next: 0 });
        sender.handle_lane_up(LANE);
        let large = entry("large", 80 << 30);
        let count = large.blocks().count();
        let file = sender.add_file_in(large, order);
        receiver.tell_sender(&mut sender, &Message::Have { file, blocks: vec![(0, count)] }).unwrap();
        let mut want = |sender: &mut SendSession, start: u64, end: u64| {
            receiver.tell_sender(sender, &Message::Want { file, blocks: vec![(start, end)] }).unwrap();
        };
        let next = |sender: &mut SendSession| match sender.next_block(LANE) {
            Some(BlockTask::Single { index, .. }) => Some(index),
            None => None,
            other => panic!("{other:?}"),
        };
        want(&mut sender, count - 1, count);
        want(&mut sender, 7, 9);
        assert_eq!(next(&mut sender), Some(count - 1));
        want(&mut sender, 2, 3);
        let rest: Vec<u64> = std::iter::from_fn(|| next(&mut sender)).collect();
        assert_eq!(rest, [7, 8, 2], "{order:?}");
        // A receiver that requests every second block, from the last on, is also served. Blocks beyond the bound come
        // at the end.
        (10..2010).rev().for_each(|index| want(&mut sender, index * 2, index * 2 + 1));
        let sent: Vec<u64> = std::iter::from_fn(|| next(&mut sender)).collect();
        assert!(sent[..900].is_sorted_by(|earlier, later| earlier > later), "{order:?}");
        assert!(sent[1000..].is_sorted() && sent.len() == 2000, "{order:?}");
    }
}

/// Returns a random message with numbers near all boundaries.
fn any_message(random: &mut Seeded) -> Message {
    let file = FileId(match random.below(6) {
        0 => u64::MAX,
        1 => random.below(100_000),
        _ => random.below(3),
    });
    let mut blocks = Vec::new();
    for _ in 0..random.below(4) {
        let start = random.below(7);
        let longest = if random.chance(50) { u64::MAX - 8 } else { 3 };
        blocks.push((start, start + 1 + random.below(longest)));
    }
    match random.below(14) {
        0 => {
            let sizes = [0, 1, 256 << 10, 5 * MIB, 1 << 62];
            let size = sizes[random.below(5) as usize];
            Message::Offer { file, entry: entry(["large", "small", "x"][random.below(3) as usize], size) }
        }
        1 => Message::Withdraw { file, error: failure() },
        2 => Message::Unreadable { error: failure() },
        3 => Message::OffersEnd { files: file.0, bytes: random.draw() },
        4 => Message::Bye,
        5 | 6 => Message::Have { file, blocks },
        7 => Message::Want { file, blocks },
        8 => Message::Skipped { file },
        9 => Message::Done { file, digests: digests() },
        10 => Message::Failed { file, error: failure() },
        11 => Message::Wait { file },
        12 => Message::Finished,
        _ => Message::Notice { file, text: "boo".into() },
    }
}

#[test]
fn a_small_file_whose_place_another_session_holds_is_asked_for_again() {
    let (mut liar, mut receiver) = (Liar { next: 0 }, RecvSession::new(LINGER_DEFAULT));
    receiver.handle_lane_up(LANE);
    liar.tell_receiver(&mut receiver, &Message::Offer { file: FileId(0), entry: entry("small", 7) }).unwrap();
    let ready = || PrepareOutcome::Ready { have: RangeSet::default(), notice: None };
    receiver.handle_prepared(FileId(0), ready());
    assert!(!receiver.handle_unpublished(FileId(0)), "nothing of it has come");
    assert_eq!(receiver.claim(LANE, FileId(0), 0), BlockClaim::Take);
    assert_eq!(receiver.handle_block(LANE, FileId(0), 0, Ok(())), BlockClaim::Take);
    assert!(receiver.handle_unpublished(FileId(0)));
    assert_eq!(receiver.claim(LANE, FileId(0), 0), BlockClaim::Discard);
    receiver.handle_prepared(FileId(0), ready());
    let (messages, _) = heard(&mut receiver);
    assert!(matches!(&messages[..], [Message::Want { blocks, .. }] if blocks[..] == [(0, 1)]), "{messages:?}");
    assert_eq!(receiver.claim(LANE, FileId(0), 0), BlockClaim::Take);
    assert_eq!(receiver.arrived_bytes(), 0);
}

#[test]
fn a_small_file_that_is_withdrawn_while_its_place_is_tried_fails_when_it_is_held() {
    let (mut liar, mut receiver) = (Liar { next: 0 }, RecvSession::new(LINGER_DEFAULT));
    receiver.handle_lane_up(LANE);
    liar.tell_receiver(&mut receiver, &Message::Offer { file: FileId(0), entry: entry("small", 7) }).unwrap();
    receiver.handle_prepared(FileId(0), PrepareOutcome::Ready { have: RangeSet::default(), notice: None });
    assert_eq!(receiver.claim(LANE, FileId(0), 0), BlockClaim::Take);
    assert_eq!(receiver.handle_block(LANE, FileId(0), 0, Ok(())), BlockClaim::Take);
    liar.tell_receiver(&mut receiver, &Message::Withdraw { file: FileId(0), error: failure() }).unwrap();
    assert!(receiver.is_open(FileId(0)), "it may still get its name");
    assert!(!receiver.handle_unpublished(FileId(0)), "its sender will not send it again");
    assert!(!receiver.is_open(FileId(0)));
}

#[test]
fn an_aborted_session_opens_nothing_more() {
    let (mut liar, mut receiver) = (Liar { next: 0 }, RecvSession::new(LINGER_DEFAULT));
    receiver.handle_lane_up(LANE);
    liar.tell_receiver(&mut receiver, &Message::Offer { file: FileId(0), entry: entry("large", 5 * MIB) }).unwrap();
    let ready = || PrepareOutcome::Ready { have: RangeSet::default(), notice: None };
    receiver.handle_prepared(FileId(0), ready());
    liar.tell_receiver(&mut receiver, &Message::Abort { error: failure() }).unwrap();
    // Independent of the messages left to send, the state does not change.
    while receiver.poll_frame(LANE, Instant::now()).is_some() {
        assert!(receiver.is_ending());
    }
    assert!(receiver.is_ending());
    assert_eq!(receiver.claim(LANE, FileId(0), 0), BlockClaim::Discard);
    // A late thread: the first result is kept.
    receiver.handle_prepared(FileId(0), ready());
}

#[test]
fn a_small_file_that_another_session_has_brought_meanwhile_counts_once() {
    let (mut liar, mut receiver) = (Liar { next: 0 }, RecvSession::new(LINGER_DEFAULT));
    receiver.handle_lane_up(LANE);
    liar.tell_receiver(&mut receiver, &Message::Offer { file: FileId(0), entry: entry("small", 7) }).unwrap();
    receiver.handle_up_to_date(FileId(0));
    assert!(receiver.is_open(FileId(0)), "nothing of it has come");
    receiver.handle_prepared(FileId(0), PrepareOutcome::Ready { have: RangeSet::default(), notice: None });
    assert_eq!(receiver.claim(LANE, FileId(0), 0), BlockClaim::Take);
    assert_eq!(receiver.handle_block(LANE, FileId(0), 0, Ok(())), BlockClaim::Take);
    receiver.handle_up_to_date(FileId(0));
    assert!(matches!(heard(&mut receiver).0[..], [Message::Skipped { file: FileId(0) }]));
    assert_eq!((receiver.arrived_bytes(), receiver.up_to_date_bytes()), (0, 7));
}

#[test]
fn any_sequence_of_messages_and_calls_never_panics() {
    for_seeds("any_sequence_of_messages_and_calls_never_panics", 3000, |seed| {
        let mut random = Seeded::new(seed);
        let (mut to_sender, mut to_receiver) = (Liar { next: 0 }, Liar { next: 0 });
        let (mut sender, mut receiver) = (sender(), receiver(&mut to_receiver));
        let start = Instant::now();
        for turn in 0..60 {
            let now = start + Duration::from_millis(turn * 10);
            let lane = LaneId(random.below(3) as u32);
            let _ = to_sender.tell_sender(&mut sender, &any_message(&mut random));
            let _ = to_receiver.tell_receiver(&mut receiver, &any_message(&mut random));
            let (file, index) = (FileId(random.below(4)), random.below(7));
            match random.below(16) {
                0 => sender.handle_lane_up(lane),
                1 => sender.handle_lane_down(lane, now),
                2 => drop(sender.next_block(lane)),
                3 => sender.withdraw(file, failure()),
                4 => drop(receiver.handle_entry(file, &entry("large", 5 * MIB))),
                5 => receiver.handle_lane_down(lane, now),
                6 => drop(sender.handle_acknowledgement(random.below(5))),
                7 => receiver.handle_block_abandoned(lane, file, index),
                8 => receiver.fail(file, failure()),
                9 => receiver.handle_busy(file, None),
                10 => receiver.handle_finished(),
                11 => drop(receiver.handle_unpublished(file)),
                12 => receiver.handle_discarded(file),
                _ if receiver.claim(lane, file, index.min(4)) == BlockClaim::Take => {
                    receiver.handle_block(lane, file, index.min(4), Ok(()));
                }
                _ => receiver.handle_lane_up(lane),
            }
            while sender.poll_frame(lane).is_some() {}
            while receiver.poll_frame(lane, now).is_some() {}
        }
    });
}

#[test]
fn a_log_that_is_acknowledged_wrongly_by_one_is_an_error() {
    let mut log = ControlLog::default();
    log.handle_lane_up(LANE);
    log.push(&Message::Bye);
    assert!(matches!(log.poll_frame(LANE), Some(Frame::Messages { first: 0, .. })));
    assert!(log.handle_acknowledgement(2).is_err());
}
