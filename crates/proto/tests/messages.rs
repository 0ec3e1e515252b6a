//! Every frame, message and header decodes to its original value, and no input makes the decoders panic.

use std::time::Duration;

use sterna_proto::compress::{Slab, SlabEncoding, Wish};
use sterna_proto::limit::{Facts, Limit, LimitReport, ReceiverReport};
use sterna_proto::plan::Via;
use sterna_proto::rate::{Manner, RateContract};
use sterna_proto::session::{
    ActiveEnd, ActiveFile, BlockData, BlockHeader, BlockTask, Conclusion, FileId, FileOutcome, Frame, Hello, IpBytes,
    KEYS_MAX, LINGER_DEFAULT, LaneFigures, LaneId, Message, Overwrite, PACK_BYTES_MAX, PACK_FILES_MAX, PATHS_MAX,
    PassiveAgent, PathNumber, PeerAddress, Request, SETTLED_TOLD_MAX, SOURCES_MAX, SendSession, SessionId, Snapshot,
    Subject, ThirdParty, Told,
};
use sterna_proto::wire::ERROR_TEXT_BYTES_MAX;
use sterna_proto::{
    Algorithm, BitRate, ByteCount, Checks, Counters, Digest, EntryKind, Error, ErrorKind, FileDigests, FileEntry,
    FileTime, Growth, Phase, RelPath, Retry, Scope,
};

const MIB: u64 = 1 << 20;

/// SplitMix64 (Steele, Lea and Flood 2014): one seed determines a whole run.
struct Seeded(u64);

impl Seeded {
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.draw() % bound as u64) as usize
    }
}

fn entry(path: &[u8], size: u64) -> FileEntry {
    FileEntry {
        path: RelPath::new(path).unwrap(),
        kind: EntryKind::File,
        size,
        mtime: FileTime { seconds: i64::MIN, nanoseconds: 999_999_999 },
        mode: 0o777,
        allocated: u64::MAX,
        inode: u64::MAX,
        version: u64::MAX - 1,
        growth: None,
    }
}

fn directory() -> FileEntry {
    FileEntry { kind: EntryKind::Directory, mtime: FileTime::default(), ..entry(b"\xff\xfe/d", 0) }
}

fn errors() -> Vec<Error> {
    let kinds = (0..=255).filter_map(ErrorKind::from_code);
    let mut errors: Vec<Error> = kinds
        .map(|kind| Error::new(kind, Scope::Destination, Phase::Finalise, "write a: no space").retry(Retry::After))
        .collect();
    // Longer than the wire format permits: truncated at a character boundary.
    errors.push(Error::new(ErrorKind::Io, Scope::Source, Phase::Verify, "ö".repeat(10_000)));
    errors
}

fn digests() -> Vec<FileDigests> {
    (0..16u8)
        .map(|bits| {
            let wanted = |bit: u8| bits >> bit & 1 == 1;
            let checks = Checks { adler32: wanted(0), crc32c: wanted(1), md5: wanted(2), sha256: wanted(3) };
            FileDigests::of(b"sterna", checks)
        })
        .collect()
}

fn requests() -> Vec<Request> {
    let push = |overwrite, expect, flag| Request::Push {
        destination: b"a/\xff".to_vec(),
        several: flag,
        overwrite,
        checks: Checks { adler32: flag, crc32c: !flag, md5: flag, sha256: !flag },
        expect,
        dry_run: !flag,
    };
    let sha256 = FileDigests::of(b"x", Checks { sha256: true, ..Checks::NONE }).digest(Algorithm::Sha256);
    let blake3: Option<Digest> = FileDigests::of(b"x", Checks::NONE).digest(Algorithm::Blake3);
    let pull = |count: usize| Request::Pull {
        sources: vec![b"run/*.h5".to_vec(); count],
        dry_run: true,
        compress: [Wish::Auto, Wish::Never, Wish::Always][count % 3],
        on_demand: count % 2 == 1,
    };
    vec![
        push(Overwrite::Never, None, true),
        push(Overwrite::Always, sha256, false),
        push(Overwrite::IfChanged, blake3, true),
        pull(0),
        pull(1),
        pull(SOURCES_MAX),
        third_party(ActiveEnd::Source, "hub.example.org", 1),
        third_party(ActiveEnd::Destination, "::1", KEYS_MAX),
    ]
}

fn third_party(active: ActiveEnd, host: &str, count: usize) -> Request {
    let is_rich = count > 1;
    Request::ThirdParty(Box::new(ThirdParty {
        active,
        passive: PassiveAgent { host: host.to_owned(), port: u16::MAX, keys: vec![[7; 32]; count] },
        sources: vec![b"a/\xff*".to_vec(); count],
        destination: b"in/".to_vec(),
        overwrite: Overwrite::Never,
        checks: Checks { md5: true, ..Checks::NONE },
        expect: FileDigests::of(b"x", Checks::NONE).digest(Algorithm::Blake3),
        dry_run: is_rich,
        compress: Wish::Always,
        via: is_rich.then_some(Via::Quic),
        lanes: is_rich.then_some(64),
        congestion: is_rich.then(|| "bbr".to_owned()),
        contract: RateContract { ceiling: Some(BitRate(5)), ..RateContract::default() },
        linger: LINGER_DEFAULT,
        settled: vec![[9; 16]; if is_rich { SETTLED_TOLD_MAX } else { 0 }],
    }))
}

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

fn counters() -> Counters {
    Counters {
        files_known: 1,
        bytes_known: 1 << 62,
        bytes_done: 3,
        bytes_held: 4,
        bytes_up_to_date: 5,
        bytes_holes: 6,
        bytes_carried: 7,
        bytes_encoded: 8,
        blocks_again: 9,
    }
}

fn told() -> Vec<Told> {
    let settled = |outcome| Told::Settled { entry: entry(b"a", 7), outcome };
    let mut all = vec![
        Told::LaneUp {
            lane: u32::MAX,
            via: Via::Tcp,
            peer: PeerAddress { ip: IpBytes::V4([10, 0, 0, 7]), port: 7373 },
        },
        Told::LaneUp { lane: 0, via: Via::Quic, peer: PeerAddress { ip: IpBytes::V6([9; 16]), port: 1 } },
        Told::LaneDown { lane: 3, reason: "reset by peer".to_owned(), again: true },
        settled(FileOutcome::Skipped),
        Told::Notice("nöthing".to_owned()),
        Told::Restarted,
    ];
    let subjects = ["transport", "lanes", "congestion", "compression", "agent"].map(|name| Subject::of(name).unwrap());
    let decision = |subject| Told::Decision { subject, rationale: "so it is".to_owned() };
    all.extend(subjects.into_iter().map(decision));
    all.extend(digests().into_iter().map(|digests| settled(FileOutcome::Done(digests))));
    all.extend(errors().into_iter().map(|error| settled(FileOutcome::Failed(error))));
    all.extend(errors().into_iter().map(Told::Unreadable));
    all
}

fn conclusion(first_failure: Option<Error>) -> Conclusion {
    let (counters, limits) = (counters(), limit_report());
    Conclusion { done: 1, skipped: 2, failed: 3, bytes: 4, bytes_skipped: 5, first_failure, counters, limits }
}

fn snapshot(lanes: usize) -> Snapshot {
    let lane = LaneFigures {
        rtt: Duration::from_millis(660),
        rtt_min: Duration::from_millis(650),
        packets_sent: 1,
        packets_lost: 2,
        wire_bytes_sent: 3,
        wire_bytes_received: 4,
    };
    Snapshot {
        counters: counters(),
        manifest_complete: true,
        lanes_up: lanes as u64,
        lanes: vec![lane; lanes],
        files: vec![ActiveFile { path: RelPath::new(b"d/f").unwrap(), size: 9, done: 4 }; lanes.min(4)],
        limits: limit_report(),
    }
}

#[test]
fn snapshots_read_back_as_they_were() {
    for lanes in [0, 1, 64] {
        let frame = Frame::Snapshot(Box::new(snapshot(lanes)));
        let Frame::Snapshot(read) = Frame::decode(&frame.encode()).unwrap() else { panic!("it is one") };
        assert_eq!(*read, snapshot(lanes));
    }
}

fn messages() -> Vec<Message> {
    let file = FileId(u64::MAX);
    let ranges = vec![(0, 1), (5, 300_000), (u64::MAX - 1, u64::MAX)];
    let mut all = vec![
        Message::Offer { file, entry: entry(b"a", (1 << 62) - 1) },
        Message::Offer { file: FileId(0), entry: directory() },
        Message::OffersEnd { files: u64::MAX, bytes: u64::MAX },
        Message::Bye,
        Message::Have { file, blocks: ranges.clone() },
        Message::Have { file, blocks: Vec::new() },
        Message::Want { file, blocks: vec![(7, 8); 1024] },
        Message::Skipped { file },
        Message::Notice { file, text: "the source has changed: ünïcode".into() },
        Message::Wait { file },
        Message::Finished,
        Message::Ended { file, entry: entry(b"a", 5) },
        Message::Sealed { file, blake3: [0xb3; 32] },
    ];
    all.extend(told().into_iter().map(|told| Message::Told(Box::new(told))));
    let failures = [None, errors().pop()];
    all.extend(failures.map(|failure| Message::Concluded(Box::new(conclusion(failure)))));
    all.extend(digests().into_iter().map(|digests| Message::Done { file, digests }));
    all.extend(errors().into_iter().map(|error| Message::Withdraw { file, error }));
    all.extend(errors().into_iter().map(|error| Message::Unreadable { error }));
    all.extend(errors().into_iter().map(|error| Message::Failed { file, error }));
    all.extend(errors().into_iter().map(|error| Message::Abort { error }));
    all
}

fn frames() -> Vec<Frame> {
    let hello = |request: Request| {
        let rate = |bits| Some(BitRate(bits));
        let contract = RateContract {
            ceiling: rate(u64::MAX),
            minimum: rate(1),
            target: None,
            remembered: rate(7),
            loss_ceiling_ppm: 500_000,
            manner: Manner::Polite,
            expected_rtt: None,
        };
        let path = PathNumber(PATHS_MAX - 1);
        Frame::Hello(Hello { rejoin: true, path, contract, ..Hello::new(SessionId([0xa5; 16]), request) })
    };
    let mut all: Vec<Frame> = requests().into_iter().map(hello).collect();
    all.push(Frame::Welcome);
    all.extend(errors().into_iter().map(Frame::Refuse));
    all.push(Frame::Messages { first: u64::MAX, encoded: Message::Bye.encode() });
    all.push(Frame::Messages { first: 0, encoded: Vec::new() });
    all.push(Frame::Acknowledge { next: u64::MAX });
    all.push(Frame::Receiver(receiver_report()));
    all.push(Frame::Limits(Box::new(limit_report())));
    all.extend([0, 64].map(|lanes| Frame::Snapshot(Box::new(snapshot(lanes)))));
    let request = third_party(ActiveEnd::Source, "hub", 1);
    all.push(Frame::Hello(Hello { on_behalf_of: Some([8; 32]), ..Hello::new(SessionId([1; 16]), request) }));
    all
}

fn receiver_report() -> ReceiverReport {
    let seconds = Duration::from_secs;
    ReceiverReport {
        sent_at: seconds(11),
        lane_time: seconds(1),
        waiting: seconds(2),
        storage: seconds(3),
        publishing: seconds(4),
        engine: seconds(5),
        written: ByteCount(6),
        buffer: ByteCount(7),
        buffer_max: ByteCount(u64::MAX),
        unread: ByteCount(9),
        window: ByteCount(10),
        dropped: 11,
    }
}

fn limit_report() -> LimitReport {
    let mut report = LimitReport::default();
    for (index, limit) in (1..).zip(Limit::ALL) {
        report.recent.add(limit, Duration::from_micros(index));
        report.total.add(limit, Duration::from_secs(index));
    }
    report.facts = Facts {
        rtt: Duration::from_millis(660),
        rate: BitRate(1),
        reached: BitRate(13),
        rate_cap: BitRate(2),
        policed: BitRate(3),
        source: BitRate(4),
        destination: BitRate(5),
        receive_window: ByteCount(6),
        receive_buffer: ByteCount(7),
        receive_buffer_max: ByteCount(8),
        send_buffer: ByteCount(9),
        send_buffer_max: ByteCount(10),
        loss_ppm: 11,
        lost: 14,
        lanes: 12,
        is_quic: true,
        is_growing: false,
        is_unscaled: true,
        is_web: true,
        disordered_ppm: 23,
        overrun: 24,
        cpu_at_receiver: true,
        policed_is_least: true,
        policed_over_quic: true,
    };
    report
}

#[test]
fn reports_read_back_and_absurd_times_are_held_within_a_year() {
    let Frame::Receiver(read) = Frame::decode(&Frame::Receiver(receiver_report()).encode()).unwrap() else { panic!() };
    assert_eq!(read, receiver_report());
    let Frame::Limits(read) = Frame::decode(&Frame::Limits(Box::new(limit_report())).encode()).unwrap() else {
        panic!()
    };
    assert_eq!(*read, limit_report());
    let absurd = ReceiverReport { storage: Duration::MAX, ..receiver_report() };
    let Frame::Receiver(read) = Frame::decode(&Frame::Receiver(absurd).encode()).unwrap() else { panic!() };
    assert!(read.storage < Duration::from_secs(367 * 24 * 3600));
}

fn headers() -> Vec<(BlockHeader, u64)> {
    let single =
        |size: u64, index, data| BlockHeader::Single { file: FileId(3), entry: entry(b"b", size), index, data };
    let slab = |code, length| Slab { encoding: SlabEncoding::from_code(code).unwrap(), length };
    let longest = [b"n".repeat(255), b"n".repeat(255)].join(&b'/');
    let packed: Vec<(FileId, FileEntry)> =
        (0..PACK_FILES_MAX as u64).map(|i| (FileId(i), entry(b"p", i % 2 * 4096))).collect();
    let bytes = packed.iter().map(|(_, entry)| entry.size).sum();
    vec![
        (single(MIB + 1, 0, BlockData::Raw), MIB),
        (single(MIB + 1, 1, BlockData::Raw), 1),
        (single(MIB + 1, 1, BlockData::Hole), 0),
        (single(MIB + 2, 1, BlockData::Slabs(vec![slab(8, 1)])), 1),
        (single(MIB + 1, 1, BlockData::Slabs(vec![slab(0, 1)])), 1),
        (
            single(
                3072 * MIB,
                5,
                BlockData::Slabs([1, 2, 0, 4].map(|code| slab(code, if code == 0 { 1 << 20 } else { 300 })).to_vec()),
            ),
            MIB + 900,
        ),
        (single(5_000_000_000_000, 298_023, BlockData::Raw), 5_000_000_000_000 % (16 * MIB)),
        (BlockHeader::Packed { files: packed.clone(), slab: None }, bytes),
        (BlockHeader::Packed { files: packed, slab: Some(slab(2, 4096)) }, 4096),
        (
            BlockHeader::Packed {
                files: vec![(FileId(1), directory()), (FileId(2), entry(&longest, 256 << 10))],
                slab: None,
            },
            256 << 10,
        ),
        (BlockHeader::Packed { files: Vec::new(), slab: None }, 0),
    ]
}

/// Compares encoded bytes after a round trip, because types that contain an error cannot be compared.
#[test]
fn every_frame_reads_back() {
    for frame in frames() {
        let bytes = frame.encode();
        let read = Frame::decode(&bytes).unwrap();
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
fn a_peer_of_another_version_is_told_both_versions() {
    let mut bytes = Frame::Welcome.encode();
    bytes[1] = 99;
    let error = Frame::decode(&bytes).unwrap_err();
    assert!(error.text().contains("99") && error.text().contains("version"), "{error}");
}

#[test]
fn errors_and_remarks_bring_no_control_characters_and_no_flood() {
    let nasty = "a\x1b[2Jb\nc".to_owned() + &"ö".repeat(20_000);
    let error = Error::new(ErrorKind::Io, Scope::Source, Phase::Verify, nasty.clone());
    let Ok(Frame::Refuse(read)) = Frame::decode(&Frame::Refuse(error).encode()) else { panic!("it is a refusal") };
    // A replacement character takes three bytes.
    assert!(!read.text().chars().any(char::is_control) && read.text().len() <= 3 * ERROR_TEXT_BYTES_MAX);
    let told = Message::Told(Box::new(Told::Notice(nasty.clone()))).encode();
    let read = Message::decode_all(&told).unwrap();
    let [Message::Told(read)] = &read[..] else { panic!("{read:?}") };
    let Told::Notice(text) = &**read else { panic!("{read:?}") };
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
    let mut random = Seeded(1);
    for i in 0..2000 {
        let size = [0, 1, 100, 65_536, 256 << 10][random.below(5)];
        sender.add_file(if random.below(2) == 0 {
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
    for _ in 0..1 + random.below(4) {
        let len = bytes.len();
        match random.below(6) {
            0 if len > 0 => bytes.truncate(random.below(len)),
            1 => bytes.insert(random.below(len + 1), random.draw() as u8),
            2 if len > 0 => drop(bytes.remove(random.below(len))),
            3 if len > 0 => bytes[random.below(len)] = 0xff,
            4 if len > 8 => {
                // A varint of the largest size, at a random position.
                let at = random.below(len - 8);
                bytes.splice(at..at, [0xff; 9].into_iter().chain([0x01]));
            }
            _ if len > 0 => bytes[random.below(len)] ^= 1 << random.below(8),
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
    for seed in 0..40_000 {
        let mut random = Seeded(seed);
        let mut bytes = corpus[random.below(corpus.len())].clone();
        mutate(&mut random, &mut bytes);
        let replay = format!("seed {seed}: cargo test -p sterna-proto --test messages no_bytes_make");
        if let Ok(frame) = Frame::decode(&bytes) {
            let again = frame.encode();
            assert_eq!(Frame::decode(&again).unwrap().encode(), again, "{replay}");
        }
        if let Ok(read) = Message::decode_all(&bytes) {
            let again: Vec<u8> = read.iter().flat_map(Message::encode).collect();
            assert_eq!(Message::decode_all(&again).unwrap().len(), read.len(), "{replay}");
        }
        for data_len in [0, 1, MIB] {
            if let Ok(header) = BlockHeader::decode(&bytes, data_len) {
                assert_eq!(BlockHeader::decode(&header.encode(), data_len).unwrap(), header, "{replay}");
            }
        }
    }
}

/// Returns the entry of a growing file of `size` bytes.
fn growing(size: u64) -> FileEntry {
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
    // The last byte of a growing entry is the block size.
    let mut bytes = Message::Offer { file: FileId(0), entry: growing(0) }.encode();
    for (log2, is_right) in [(19, false), (20, true), (24, true), (25, false), (64, false), (255, false)] {
        *bytes.last_mut().unwrap() = log2;
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
