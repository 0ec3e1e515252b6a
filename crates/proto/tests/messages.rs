//! Every frame, message and header decodes to its original value, and no input makes the decoders panic.

mod samples;

use std::time::Duration;

use samples::{MIB, directory, entry, frames, headers, limit_report, messages, receiver_report, snapshot, third_party};
use sterna_proto::compress::{Slab, SlabEncoding};
use sterna_proto::limit::ReceiverReport;
use sterna_proto::session::{
    ActiveEnd, AgentReport, BlockData, BlockHeader, BlockTask, FileId, Frame, Hello, KEYS_MAX, LINGER_DEFAULT, LaneId,
    Message, PACK_BYTES_MAX, PACK_FILES_MAX, Request, SendSession, SessionId, ThirdParty,
};
use sterna_proto::wire::ERROR_TEXT_BYTES_MAX;
use sterna_proto::{BitRate, Error, ErrorKind, FileEntry, Growth, Phase, Scope};
use sterna_seeded::{Seeded, for_seeds};

#[test]
fn a_third_party_copy_that_cannot_be_is_an_error() {
    let read = |change: &dyn Fn(&mut ThirdParty)| {
        let Request::ThirdParty(mut copy) = third_party(ActiveEnd::Source, "hub", 1) else { panic!("it is one") };
        change(&mut copy);
        Frame::decode(&Frame::Hello(Hello::new(SessionId([1; 16]), Request::ThirdParty(copy))).encode())
    };
    assert!(read(&|_| {}).is_ok());
    type Change<'a> = &'a dyn Fn(&mut ThirdParty);
    let cases: [(&str, Change<'_>); 8] = [
        ("a host with a user", &|copy| copy.passive.host = "root@hub".to_owned()),
        ("no host", &|copy| copy.passive.host.clear()),
        ("an endless host", &|copy| copy.passive.host = "h".repeat(301)),
        ("no port", &|copy| copy.passive.port = 0),
        ("any key", &|copy| copy.passive.keys.clear()),
        ("too many keys", &|copy| copy.passive.keys = vec![[1; 32]; KEYS_MAX + 1]),
        ("too many lanes", &|copy| copy.lanes = Some(65)),
        ("a path for a congestion control", &|copy| copy.congestion = Some("x y".to_owned())),
    ];
    for (what, change) in cases {
        assert!(read(change).is_err(), "{what}");
    }
}

#[test]
fn snapshots_read_back_as_they_were() {
    for lanes in [0, 1, 64] {
        let frame = Frame::Snapshot(Box::new(snapshot(lanes)));
        let Some(Frame::Snapshot(read)) = Frame::decode(&frame.encode()).unwrap() else { panic!("it is one") };
        assert_eq!(*read, snapshot(lanes));
    }
}

#[test]
fn reports_read_back_and_absurd_times_are_held_within_a_year() {
    let read = |frame: Frame| Frame::decode(&frame.encode()).unwrap();
    let Some(Frame::Receiver(report)) = read(Frame::Receiver(receiver_report())) else { panic!() };
    assert_eq!(report, receiver_report());
    let Some(Frame::Limits(report)) = read(Frame::Limits(Box::new(limit_report()))) else { panic!() };
    assert_eq!(*report, limit_report());
    let absurd = ReceiverReport { storage: Duration::MAX, ..receiver_report() };
    let Some(Frame::Receiver(report)) = read(Frame::Receiver(absurd)) else { panic!() };
    assert!(report.storage < Duration::from_secs(367 * 24 * 3600));
}

/// Compares encoded bytes after a round trip, because types that contain an error cannot be compared.
#[test]
fn every_frame_reads_back() {
    for frame in frames() {
        let bytes = frame.encode();
        let read = Frame::decode(&bytes).unwrap().unwrap();
        assert_eq!(read.encode(), bytes, "{read:?}");
        if !matches!(frame, Frame::Messages { .. }) {
            let longer = [&bytes[..], b"x"].concat();
            assert!(Frame::decode(&longer).is_err(), "a byte too many: {frame:?}");
            assert!(Frame::decode(&bytes[..bytes.len() - 1]).is_err(), "a byte too few: {frame:?}");
        }
    }
}

#[test]
fn every_message_reads_back_alone_and_behind_others() {
    let all = messages();
    for message in &all {
        let bytes = message.encode();
        let read = Message::decode_all(&bytes).unwrap();
        assert_eq!(read.len(), 1);
        assert_eq!(read[0].encode(), bytes, "{message:?}");
        assert!(Message::decode_all(&bytes[..bytes.len() - 1]).is_err(), "a byte too few: {message:?}");
    }
    let bytes: Vec<u8> = all.iter().flat_map(Message::encode).collect();
    let read = Message::decode_all(&bytes).unwrap();
    assert_eq!(read.len(), all.len());
    assert_eq!(read.iter().flat_map(Message::encode).collect::<Vec<u8>>(), bytes);
}

#[test]
fn every_header_reads_back_and_only_with_its_own_length() {
    for (header, data_len) in headers() {
        let bytes = header.encode();
        assert_eq!(BlockHeader::decode(&bytes, data_len).unwrap(), header);
        for other in [data_len + 1, data_len.wrapping_sub(1), u64::MAX] {
            assert!(BlockHeader::decode(&bytes, other).is_err(), "{other} bytes: {header:?}");
        }
        assert!(BlockHeader::decode(&bytes[..bytes.len() - 1], data_len).is_err(), "{header:?}");
    }
}

#[test]
fn headers_of_blocks_that_cannot_be_are_errors() {
    let single =
        |entry: FileEntry, index| BlockHeader::Single { file: FileId(0), entry, index, data: BlockData::Raw }.encode();
    assert!(BlockHeader::decode(&single(entry(b"a", 5 * MIB), 5), MIB).is_err(), "beyond the end");
    assert!(BlockHeader::decode(&single(entry(b"a", 5 * MIB), u64::MAX), MIB).is_err(), "far beyond the end");
    assert!(BlockHeader::decode(&single(entry(b"a", 100), 0), 100).is_err(), "small files travel packed");
    assert!(BlockHeader::decode(&single(directory(), 0), 0).is_err(), "a directory has no blocks");
    let packed = |files: Vec<FileEntry>| {
        BlockHeader::Packed { files: files.into_iter().map(|entry| (FileId(0), entry)).collect(), slab: None }.encode()
    };
    assert!(BlockHeader::decode(&packed(vec![entry(b"a", 5 * MIB)]), 5 * MIB).is_err(), "a large file is not packed");
    let many = vec![entry(b"a", 0); PACK_FILES_MAX + 1];
    assert!(BlockHeader::decode(&packed(many), 0).is_err(), "too many files");
    let heavy = vec![entry(b"a", 256 << 10); 5];
    assert!(BlockHeader::decode(&packed(heavy), 5 * (256 << 10)).is_err(), "more than a packed block holds");
}

#[test]
fn setuid_setgid_and_sticky_bits_of_a_peer_are_refused() {
    let file = FileId(0);
    for mode in [0o4755, 0o2755, 0o1777, 0o1000, 0o7777, u16::MAX] {
        let refused = |decoded: Result<(), Error>| {
            let error = decoded.expect_err(&format!("mode {mode:o}"));
            assert_eq!(error.kind, ErrorKind::Protocol);
            assert!(error.text().contains("setuid") && error.text().contains(&format!("{mode:o}")), "{error}");
        };
        for entry in [FileEntry { mode, ..entry(b"a", 5) }, FileEntry { mode, ..directory() }] {
            let offer = Message::Offer { file, entry: entry.clone() }.encode();
            refused(Message::decode_all(&offer).map(drop));
        }
        let small = FileEntry { mode, ..entry(b"a", 5) };
        let packed = BlockHeader::Packed { files: vec![(file, small)], slab: None }.encode();
        refused(BlockHeader::decode(&packed, 5).map(drop));
        let large = FileEntry { mode, ..entry(b"a", MIB) };
        let single = BlockHeader::Single { file, entry: large, index: 0, data: BlockData::Raw }.encode();
        refused(BlockHeader::decode(&single, MIB).map(drop));
    }
}

#[test]
fn slabs_that_would_cost_more_than_their_block_are_errors() {
    let slab = |code, length| Slab { encoding: SlabEncoding::from_code(code).unwrap(), length };
    let refused = |slabs: Vec<Slab>, why: &str| {
        let data_len = slabs.iter().map(|slab| u64::from(slab.length)).sum();
        // Blocks of 4 MiB: the last block has one slab and a half.
        let size = 3072 * MIB + 3 * (MIB / 2);
        let header = BlockHeader::Single {
            file: FileId(0),
            entry: entry(b"a", size),
            index: 768,
            data: BlockData::Slabs(slabs),
        };
        assert_eq!(BlockHeader::decode(&header.encode(), data_len).is_err(), !why.is_empty(), "{why}");
    };
    refused(vec![slab(1, 100), slab(2, 100)], "");
    refused(vec![slab(0, 1 << 20), slab(1, 1)], "");
    refused(vec![slab(1, 100)], "too few");
    refused(vec![slab(1, 100), slab(1, 100), slab(1, 100)], "too many");
    refused(vec![slab(1, 100), slab(1, 0)], "encoded as nothing");
    refused(vec![slab(1, 1 << 20), slab(1, 100)], "no shorter than its bytes");
    refused(vec![slab(1, 100), slab(4, 1 << 19)], "the last, no shorter than its bytes");
    refused(vec![slab(0, (1 << 20) - 1), slab(1, 100)], "raw and cut short");
    for code in [3, 5, 7, 9, 16, 255] {
        assert!(SlabEncoding::from_code(code).is_err(), "{code}");
    }
    let packed = |slab| BlockHeader::Packed { files: vec![(FileId(0), entry(b"a", 100))], slab: Some(slab) }.encode();
    assert!(BlockHeader::decode(&packed(slab(1, 99)), 99).is_ok());
    assert!(BlockHeader::decode(&packed(slab(1, 100)), 100).is_err(), "packed, no shorter than its bytes");
    assert!(BlockHeader::decode(&packed(slab(0, 100)), 100).is_err(), "packed, two ways to say raw");
}

#[test]
fn unknown_numbers_are_skipped_if_they_are_optional_and_named_if_they_are_not() {
    assert!(Frame::decode(&[128, 1, 2, 3]).unwrap().is_none() && Frame::decode(&[255]).unwrap().is_none());
    assert!(Frame::decode(&[127]).unwrap_err().text().contains("127"));
    // An event of a third-party copy, and a decision about an unknown subject.
    let known = Message::Bye.encode();
    let event = |number: &[u8]| [&[15, number.len() as u8][..], number].concat();
    for skipped in [vec![200, 2, 7, 7], event(&[128, 7]), event(&[1, 200, 1, b'x'])] {
        let read = Message::decode_all(&[&known[..], &skipped, &known].concat()).unwrap();
        assert!(matches!(&read[..], [Message::Bye, Message::Bye]), "{skipped:?}: {read:?}");
    }
    for (refused, number) in [(vec![100, 0], "100"), (event(&[8]), "8"), (event(&[1, 6, 0]), "6")] {
        let error = Message::decode_all(&refused).unwrap_err();
        assert!(error.text().contains("unknown") && error.text().contains(number), "{error}");
    }
}

#[test]
fn skipped_messages_have_numbers_and_are_acknowledged() {
    let mut sender = SendSession::new(LINGER_DEFAULT);
    sender.handle_lane_up(LaneId(0));
    let skipped = [200, 1, 7].repeat(1000);
    sender.handle_messages(0, &skipped).unwrap();
    sender.handle_messages(500, &skipped).unwrap();
    assert!(matches!(sender.poll_frame(LaneId(0)), Some(Frame::Acknowledge { next: 1500 })));
    assert!(sender.handle_messages(1501, &skipped).is_err(), "a gap");
}

#[test]
fn errors_and_remarks_bring_no_control_characters_and_no_flood() {
    let nasty = "a\x1b[2Jb\nc".to_owned() + &"ö".repeat(20_000);
    let error = Error::new(ErrorKind::Io, Scope::Source, Phase::Verify, nasty.clone());
    let Ok(Some(Frame::Refuse(read))) = Frame::decode(&Frame::Refuse(error).encode()) else { panic!("it is one") };
    // A replacement character takes three bytes.
    assert!(!read.text().chars().any(char::is_control) && read.text().len() <= 3 * ERROR_TEXT_BYTES_MAX);
    let told = Message::Report(Box::new(AgentReport::Notice(nasty.clone()))).encode();
    let read = Message::decode_all(&told).unwrap();
    let [Message::Report(read)] = &read[..] else { panic!("{read:?}") };
    let AgentReport::Notice(text) = &**read else { panic!("{read:?}") };
    assert!(!text.chars().any(char::is_control) && text.chars().count() <= 4096);
    let notice = Message::Notice { file: FileId(0), text: nasty }.encode();
    let read = Message::decode_all(&notice).unwrap();
    let [Message::Notice { text, .. }] = &read[..] else { panic!("{read:?}") };
    assert!(!text.chars().any(char::is_control) && text.chars().count() <= 4096);
}

#[test]
fn packed_blocks_of_a_sender_fit_their_header_and_their_data() {
    let mut sender = SendSession::new(LINGER_DEFAULT);
    sender.handle_lane_up(LaneId(0));
    let long = |i: usize| [format!("{i:05}").as_bytes(), &vec![b"x".repeat(255); 15].join(&b'/')[..]].join(&b'/');
    let mut random = Seeded::new(1);
    for i in 0..2000 {
        let size = [0, 1, 100, 65_536, 256 << 10][random.index(5)];
        sender.add_file(if random.index(2) == 0 {
            entry(&long(i), size)
        } else {
            entry(format!("{i}").as_bytes(), size)
        });
    }
    let mut sent = 0;
    while let Some(BlockTask::Packed { files }) = sender.next_block(LaneId(0)) {
        sent += files.len();
        let bytes = files.iter().map(|(_, entry)| entry.size).sum();
        let header = BlockHeader::Packed { files, slab: None }.encode();
        // A lane rejects headers above 128 KiB.
        assert!(header.len() <= 128 << 10 && bytes <= PACK_BYTES_MAX, "{} {bytes}", header.len());
        BlockHeader::decode(&header, bytes).unwrap();
    }
    assert_eq!(sent, 2000);
}

/// Flips, truncates, inserts and repeats bytes.
fn mutate(random: &mut Seeded, bytes: &mut Vec<u8>) {
    for _ in 0..1 + random.index(4) {
        let len = bytes.len();
        match random.index(6) {
            0 if len > 0 => bytes.truncate(random.index(len)),
            1 => bytes.insert(random.index(len + 1), random.draw() as u8),
            2 if len > 0 => drop(bytes.remove(random.index(len))),
            3 if len > 0 => bytes[random.index(len)] = 0xff,
            4 if len > 8 => {
                // A varint of the largest size, at a random position.
                let at = random.index(len - 8);
                bytes.splice(at..at, [0xff; 9].into_iter().chain([0x01]));
            }
            _ if len > 0 => bytes[random.index(len)] ^= 1 << random.index(8),
            _ => {}
        }
    }
}

#[test]
fn no_bytes_make_a_reader_panic_and_what_is_read_can_be_written() {
    let mut corpus: Vec<Vec<u8>> = frames().iter().map(Frame::encode).collect();
    corpus.extend(messages().iter().map(Message::encode));
    corpus.extend(headers().iter().map(|(header, _)| header.encode()));
    corpus.retain(|bytes| bytes.len() < 4096);
    for_seeds("no_bytes_make_a_reader_panic_and_what_is_read_can_be_written", 40_000, |seed| {
        let mut random = Seeded::new(seed);
        let mut bytes = corpus[random.index(corpus.len())].clone();
        mutate(&mut random, &mut bytes);
        if let Ok(Some(frame)) = Frame::decode(&bytes) {
            let again = frame.encode();
            assert_eq!(Frame::decode(&again).unwrap().unwrap().encode(), again);
        }
        if let Ok(read) = Message::decode_all(&bytes) {
            let again: Vec<u8> = read.iter().flat_map(Message::encode).collect();
            assert_eq!(Message::decode_all(&again).unwrap().len(), read.len());
        }
        for data_len in [0, 1, MIB] {
            if let Ok(header) = BlockHeader::decode(&bytes, data_len) {
                assert_eq!(BlockHeader::decode(&header.encode(), data_len).unwrap(), header);
            }
        }
    });
}

/// Returns the entry of a growing file of `size` bytes.
pub fn growing(size: u64) -> FileEntry {
    FileEntry { growth: Some(Growth::for_rate(None)), ..entry(b"capture", size) }
}

#[test]
fn entries_of_growing_files_read_back_and_those_that_cannot_be_are_errors() {
    let ended = FileEntry { growth: Some(Growth::for_rate(None).end()), ..growing(5 * MIB + 3) };
    for entry in [growing(0), growing(7 * MIB), ended.clone()] {
        let bytes = Message::Offer { file: FileId(0), entry: entry.clone() }.encode();
        let read = Message::decode_all(&bytes).unwrap();
        assert!(matches!(&read[..], [Message::Offer { entry: read, .. }] if *read == entry), "{read:?}");
    }
    let refused = |entry: FileEntry| Message::decode_all(&Message::Offer { file: FileId(0), entry }.encode()).is_err();
    assert!(refused(growing(MIB + 1)), "part of a block before the end");
    assert!(refused(FileEntry { growth: growing(0).growth, ..directory() }), "a directory does not grow");
    // The block size of a growing entry precedes the length of its attributes.
    let mut bytes = Message::Offer { file: FileId(0), entry: growing(0) }.encode();
    let block_size = bytes.len() - 2;
    for (log2, is_right) in [(19, false), (20, true), (24, true), (25, false), (64, false), (255, false)] {
        bytes[block_size] = log2;
        assert_eq!(Message::decode_all(&bytes).is_ok(), is_right, "blocks of 2^{log2} bytes");
    }
}

#[test]
fn part_of_a_block_lies_behind_what_is_whole_and_in_one_block() {
    let decoded = |entry: FileEntry, offset, data_len| {
        let header = BlockHeader::Tail { file: FileId(1), entry, offset };
        let read = BlockHeader::decode(&header.encode(), data_len);
        read.is_ok_and(|read| read == header)
    };
    assert!(decoded(growing(0), 0, 1) && decoded(growing(3 * MIB), 3 * MIB + 5, 100));
    assert!(decoded(growing(MIB), MIB, MIB), "a block that no byte follows yet");
    assert!(!decoded(growing(MIB), MIB, 0), "nothing");
    assert!(!decoded(growing(MIB), MIB - 1, 1), "in a block that is whole");
    assert!(!decoded(growing(MIB), MIB, MIB + 1) && !decoded(growing(MIB), 2 * MIB, 1), "beyond one block");
    assert!(!decoded(growing(MIB), u64::MAX, 1), "beyond all numbers");
    let wide = FileEntry { growth: Some(Growth::for_rate(Some(BitRate::megabits(1000)))), ..growing(0) };
    assert!(decoded(wide.clone(), 9 * MIB, MIB) && !decoded(wide, 0, MIB + 1), "more than a receiver holds");
    assert!(!decoded(FileEntry { growth: growing(0).growth.map(Growth::end), ..growing(MIB) }, MIB, 1), "it has ended");
    assert!(!decoded(entry(b"a", MIB), MIB, 1), "it does not grow");
}
