//! One value of every frame, message and header, or several.

use std::time::Duration;

use sterna_proto::compress::{CompressionPolicy, Slab, SlabEncoding};
use sterna_proto::limit::{Facts, Limit, LimitReport, ReceiverReport};
use sterna_proto::path_cache::DataDirection;
use sterna_proto::plan::Via;
use sterna_proto::rate::{Fairness, RateContract};
use sterna_proto::session::{
    ActiveEnd, ActiveFile, AgentReport, Answer, Attributes, BlockData, BlockHeader, Capabilities, Conclusion,
    DeleteDirectories, Details, DigestQuery, Features, FileId, FileOutcome, Filter, Frame, Grant, GrantedAccess, Hello,
    IpBytes, KEYS_MAX, LINGER_DEFAULT, LaneFigures, ListOptions, Listed, ListedKind, Message, Overwrite, Owner,
    PACK_FILES_MAX, PATHS_MAX, PROBE_BYTES_MAX, PROBE_BYTES_MIN, PassiveAgent, PathNumber, PeerAddress, Probe, Query,
    Request, SETTLED_REPORTED_MAX, SOURCES_MAX, SessionId, SignedGrant, Snapshot, Subject, Symlinks, Target,
    ThirdParty, Xattr,
};
use sterna_proto::{
    Algorithm, BitRate, ByteCount, Checks, Counters, Digest, EntryKind, Error, ErrorKind, FileDigests, FileEntry,
    FileTime, Phase, RelPath, Retry, Scope, Setting,
};

pub const MIB: u64 = 1 << 20;

pub fn entry(path: &[u8], size: u64) -> FileEntry {
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

pub fn directory() -> FileEntry {
    FileEntry { kind: EntryKind::Directory, mtime: FileTime::default(), ..entry(b"\xff\xfe/d", 0) }
}

pub fn errors() -> Vec<Error> {
    let kinds = (0..=255).filter_map(ErrorKind::from_code);
    let mut errors: Vec<Error> = kinds
        .map(|kind| Error::new(kind, Scope::Destination, Phase::Finalise, "write a: no space").retry(Retry::After))
        .collect();
    errors.push(Error::usage(&[Setting::Memory, Setting::Lanes], "too little memory"));
    errors.push(Error::new(ErrorKind::Other(200), Scope::Path, Phase::Transfer, "of a newer release"));
    // Longer than the wire format permits: truncated at a character boundary.
    errors.push(Error::new(ErrorKind::Io, Scope::Source, Phase::Verify, "ö".repeat(10_000)));
    errors
}

pub fn digests() -> Vec<FileDigests> {
    (0..16u8)
        .map(|bits| {
            let wanted = |bit: u8| bits >> bit & 1 == 1;
            let checks = Checks { adler32: wanted(0), crc32c: wanted(1), md5: wanted(2), sha256: wanted(3) };
            FileDigests::of(b"sterna", checks)
        })
        .collect()
}

pub fn requests() -> Vec<Request> {
    let push = |overwrite, expect, flag| Request::Push {
        destination: b"a/\xff".to_vec(),
        several: flag,
        overwrite,
        checks: Checks { adler32: flag, crc32c: !flag, md5: flag, sha256: !flag },
        expect,
        dry_run: !flag,
        targets: Vec::new(),
    };
    let sha256 = FileDigests::of(b"x", Checks { sha256: true, ..Checks::NONE }).digest(Algorithm::Sha256);
    let blake3: Option<Digest> = FileDigests::of(b"x", Checks::NONE).digest(Algorithm::Blake3);
    let pull = |count: usize| Request::Pull {
        sources: vec![b"run/*.h5".to_vec(); count],
        dry_run: true,
        compress: [CompressionPolicy::Auto, CompressionPolicy::Never, CompressionPolicy::Always][count % 3],
        on_demand: count % 2 == 1,
        numbered: false,
    };
    let target = |number: usize| Target { path: format!("in/{number}").into_bytes(), expect: sha256 };
    let push_to = |targets: usize| Request::Push {
        destination: Vec::new(),
        several: false,
        overwrite: Overwrite::Never,
        checks: Checks::NONE,
        expect: None,
        dry_run: false,
        targets: (0..targets).map(target).collect(),
    };
    let numbered = Request::Pull {
        sources: vec![b"a".to_vec(), b"b/c".to_vec()],
        dry_run: false,
        compress: CompressionPolicy::Auto,
        on_demand: false,
        numbered: true,
    };
    vec![
        push(Overwrite::Never, None, true),
        push(Overwrite::Always, sha256, false),
        push(Overwrite::IfChanged, blake3, true),
        pull(0),
        pull(1),
        pull(SOURCES_MAX),
        push_to(1),
        push_to(100),
        numbered,
        third_party(ActiveEnd::Source, "hub.example.org", 1),
        third_party(ActiveEnd::Destination, "::1", KEYS_MAX),
    ]
    .into_iter()
    .chain(queries().into_iter().map(Request::Query))
    .chain(probes().into_iter().map(Request::Probe))
    .collect()
}

pub fn probes() -> Vec<Probe> {
    vec![
        Probe { direction: DataDirection::Out, bytes: PROBE_BYTES_MIN },
        Probe { direction: DataDirection::In, bytes: PROBE_BYTES_MAX },
    ]
}

pub fn queries() -> Vec<Query> {
    let path = |name: &[u8]| vec![name.to_vec()];
    let list = |paths, options| Query::List { paths, options: Box::new(options) };
    let time = |seconds| Some(FileTime { seconds, nanoseconds: 999_999_999 });
    let everything = ListOptions {
        symlinks: Symlinks::Followed,
        filter: Filter {
            names: vec![b"*.h5".to_vec(), b"\xff?".to_vec()],
            size_min: Some(1),
            size_max: Some(u64::MAX),
            modified_from: time(-7),
            modified_before: time(i64::MAX),
        },
        details: Details { owner: true, xattrs: true },
        digest: Some(DigestQuery {
            checks: Checks { md5: true, ..Checks::NONE },
            range: Some((1 << 61, (1 << 62) - (1 << 61))),
        }),
        ..ListOptions::new(Some(u32::MAX))
    };
    let digest = Some(DigestQuery { checks: Checks::NONE, range: None });
    vec![
        list(path(b"data/*/"), everything),
        list(path(b""), ListOptions { digest, ..ListOptions::new(None) }),
        list(vec![b"a".to_vec(); SOURCES_MAX], ListOptions::new(Some(0))),
        Query::Delete { paths: path(b"old"), directories: DeleteDirectories::WithContents },
        Query::Delete { paths: path(b"empty/"), directories: DeleteDirectories::Empty },
        Query::Rename { from: b"a".to_vec(), to: b"b/\xff".to_vec(), overwrite: Overwrite::Never },
    ]
}

pub fn answers() -> Vec<Answer> {
    let path = |bytes: &[u8]| RelPath::new(bytes).unwrap();
    let listed = |kind, attributes, digests| Listed {
        path: Some(path(b"data/\xff")),
        kind,
        size: 1 << 62,
        mtime: FileTime { seconds: -1, nanoseconds: 0 },
        mode: 0o7777,
        allocated: u64::MAX,
        attributes,
        digests,
    };
    let attributes = Attributes {
        target: Some(b"../x".to_vec()),
        owner: Some(Owner { user: u32::MAX, group: 0, user_name: b"pi".to_vec(), group_name: Vec::new() }),
        xattrs: vec![
            Xattr { name: b"user.mission".to_vec(), value: b"S1A".to_vec() },
            Xattr { name: b"user.empty".to_vec(), value: Vec::new() },
        ],
        hard_link: Some((u64::MAX, 7)),
    };
    let kinds = [ListedKind::File, ListedKind::Directory, ListedKind::Symlink, ListedKind::Other];
    let mut all: Vec<Answer> = kinds
        .map(|kind| Answer::Listed(Box::new(listed(kind, Attributes::default(), None))))
        .into_iter()
        .chain(digests().into_iter().map(|digests| {
            Answer::Listed(Box::new(Listed {
                path: None,
                ..listed(ListedKind::File, attributes.clone(), Some(digests))
            }))
        }))
        .collect();
    all.push(Answer::Deleted { path: path(b"a/b") });
    all.extend(errors().into_iter().map(Answer::Failed));
    all
}

pub fn third_party(active: ActiveEnd, host: &str, count: usize) -> Request {
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
        compress: CompressionPolicy::Always,
        via: is_rich.then_some(Via::Quic),
        lanes: is_rich.then_some(64),
        congestion: is_rich.then(|| "bbr".to_owned()),
        contract: RateContract { ceiling: Some(BitRate(5)), ..RateContract::default() },
        linger: LINGER_DEFAULT,
        settled: vec![[9; 16]; if is_rich { SETTLED_REPORTED_MAX } else { 0 }],
    }))
}

pub fn counters() -> Counters {
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

pub fn reports() -> Vec<AgentReport> {
    let settled = |outcome| AgentReport::Settled { entry: entry(b"a", 7), outcome };
    let mut all = vec![
        AgentReport::LaneUp {
            lane: u32::MAX,
            via: Via::Tcp,
            peer: PeerAddress { ip: IpBytes::V4([10, 0, 0, 7]), port: 7373 },
        },
        AgentReport::LaneUp { lane: 0, via: Via::Quic, peer: PeerAddress { ip: IpBytes::V6([9; 16]), port: 1 } },
        AgentReport::LaneDown { lane: 3, reason: "reset by peer".to_owned(), again: true },
        settled(FileOutcome::Skipped),
        AgentReport::Notice("nöthing".to_owned()),
        AgentReport::Restarted,
    ];
    let subjects = ["transport", "lanes", "congestion", "compression", "agent"].map(|name| Subject::of(name).unwrap());
    let decision = |subject| AgentReport::Decision { subject, rationale: "so it is".to_owned() };
    all.extend(subjects.into_iter().map(decision));
    all.extend(digests().into_iter().map(|digests| settled(FileOutcome::Done(digests))));
    all.extend(errors().into_iter().map(|error| settled(FileOutcome::Failed(error))));
    all.extend(errors().into_iter().map(AgentReport::Unreadable));
    all
}

pub fn conclusion(first_failure: Option<Error>) -> Conclusion {
    let (counters, limits) = (counters(), limit_report());
    Conclusion { done: 1, skipped: 2, failed: 3, bytes: 4, bytes_skipped: 5, first_failure, counters, limits }
}

pub fn snapshot(lanes: usize) -> Snapshot {
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

pub fn messages() -> Vec<Message> {
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
        Message::Contract {
            path: PathNumber(PATHS_MAX - 1),
            contract: RateContract::of_rate(Some(BitRate::megabits(40))),
        },
        Message::Ended { file, entry: entry(b"a", 5) },
        Message::FinalDigest { file, blake3: [0xb3; 32] },
    ];
    all.extend(reports().into_iter().map(|report| Message::Report(Box::new(report))));
    let failures = [None, errors().pop()];
    all.extend(failures.map(|failure| Message::Concluded(Box::new(conclusion(failure)))));
    all.extend(digests().into_iter().map(|digests| Message::Done { file, digests }));
    all.extend(errors().into_iter().map(|error| Message::Withdraw { file, error }));
    all.extend(errors().into_iter().map(|error| Message::Unreadable { error }));
    all.extend(errors().into_iter().map(|error| Message::Failed { file, error }));
    all.extend(errors().into_iter().map(|error| Message::Abort { error }));
    all.extend(answers().into_iter().map(Message::Answer));
    all
}

/// Returns a hello of an end that speaks version 1 alone.
fn hello_of(session: [u8; 16], request: Request) -> Hello {
    let capabilities = Capabilities { lowest: 1, highest: 1, features: Features(0) };
    Hello { capabilities, ..Hello::new(SessionId(session), request) }
}

pub fn frames() -> Vec<Frame> {
    let hello = |request: Request| {
        let rate = |bits| Some(BitRate(bits));
        let contract = RateContract {
            ceiling: rate(u64::MAX),
            minimum: rate(1),
            target: None,
            remembered: rate(7),
            loss_ceiling_ppm: 500_000,
            fairness: Fairness::Scavenger,
            expected_rtt: None,
        };
        let path = PathNumber(PATHS_MAX - 1);
        Frame::Hello(Hello { rejoin: true, path, contract, ..hello_of([0xa5; 16], request) })
    };
    let mut all: Vec<Frame> = requests().into_iter().map(hello).collect();
    all.push(Frame::Welcome(Capabilities { lowest: 0, highest: u64::MAX, features: Features(u64::MAX) }));
    all.extend(errors().into_iter().map(Frame::Refuse));
    all.push(Frame::Messages { first: u64::MAX, encoded: Message::Bye.encode() });
    all.push(Frame::Messages { first: 0, encoded: Vec::new() });
    all.push(Frame::Acknowledge { next: u64::MAX });
    all.push(Frame::Receiver(receiver_report()));
    all.push(Frame::Limits(Box::new(limit_report())));
    all.extend([0, 64].map(|lanes| Frame::Snapshot(Box::new(snapshot(lanes)))));
    let request = third_party(ActiveEnd::Source, "hub", 1);
    all.push(Frame::Hello(Hello { on_behalf_of: Some([8; 32]), ..hello_of([1; 16], request) }));
    let grant = Grant {
        service: [4; 32],
        holder: [5; 32],
        at: [6; 32],
        access: GrantedAccess::Write(Overwrite::Never),
        paths: vec![b"in/f".to_vec(), b"in/g".to_vec()],
        expires: 1_800_000_000,
        nonce: [8; 16],
    };
    let grant = Some(Box::new(SignedGrant { grant, signature: [7; 64] }));
    all.extend(
        requests()
            .into_iter()
            .take(1)
            .map(|request| Frame::Hello(Hello { grant: grant.clone(), ..hello_of([2; 16], request) })),
    );
    all
}

pub fn receiver_report() -> ReceiverReport {
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

pub fn limit_report() -> LimitReport {
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

pub fn headers() -> Vec<(BlockHeader, u64)> {
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
