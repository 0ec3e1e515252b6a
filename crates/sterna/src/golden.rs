//! Golden files: the lines of `--json` and `--log` for representative values, in `golden/EVENT.jsonl` of this crate.
//!
//! Names and units in these lines are API. `STERNA_GOLDEN=write cargo test -p sterna --bins golden` writes the files
//! anew; without the variable, a difference fails the test.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::Value;
use sterna_net::engine::{CopyEvent, CopyProgress, CopySpec, CopySummary, PathPlan, ReplicaSummary, UnreachedPath};
use sterna_net::lane::{LaneStats, Transport};
use sterna_net::report::{self, Event, LogLine, Reporter, Sample, SessionHead, WireTotals};
use sterna_net::session::{LimitsNow, Progress, SessionEvent};
use sterna_proto::limit::{
    Facts, LaneJudgement, LaneSample, Limit, LimitReport, LimitTimes, QuicSample, TcpSample, TransportSample, Waits,
};
use sterna_proto::location::HostPort;
use sterna_proto::plan::Via;
use sterna_proto::rate::RateState;
use sterna_proto::session::{FileOutcome, LaneId, PathNumber};
use sterna_proto::{
    BitRate, ByteCount, Checks, Counters, EntryKind, Error, ErrorKind, FileDigests, FileEntry, FileTime, Location,
    Phase, RelPath, Retry, Scope, Setting,
};

use crate::flags::worded_event;

fn spec(dry_run: bool) -> CopySpec {
    let location = |text: &str| Location::parse(text.as_ref()).unwrap();
    let spec = CopySpec::new(vec![location("/data/a\u{202e}5h.h5")], location("sterna://hub/in/"));
    CopySpec { dry_run, ..spec }
}

fn printed(event: Event) -> String {
    report::line(&worded_event(event))
}

fn entry(path: &[u8], size: u64) -> FileEntry {
    FileEntry {
        path: RelPath::new(path).unwrap(),
        kind: EntryKind::File,
        size,
        mtime: FileTime::default(),
        mode: 0o644,
        allocated: size,
        inode: 1,
        version: 1,
        growth: None,
    }
}

/// Returns errors with and without settings, peer, system error and text that controls a terminal.
fn errors() -> [Error; 4] {
    let denied = Error::new(ErrorKind::Denied, Scope::Destination, Phase::Prepare, "write to /x\u{1b}[2J: not allowed");
    let full = Error::new(ErrorKind::NoSpace, Scope::Destination, Phase::Transfer, "write block 3 of a.h5");
    [
        Error::usage(&[Setting::Memory, Setting::Lanes], "1 MB of memory are too little for 64 lanes"),
        denied.from_peer().named(HostPort { host: "hub".to_owned(), port: 7373 }),
        full.retry(Retry::After).caused_by(io::Error::from_raw_os_error(28)),
        Error::new(ErrorKind::Corrupt, Scope::Source, Phase::Verify, "a.h5").retry(Retry::OtherReplica).from_peer(),
    ]
}

fn events() -> Vec<CopyEvent> {
    let all = Checks { adler32: true, crc32c: true, md5: true, sha256: true };
    let settled = |entry, outcome| CopyEvent::Session(SessionEvent::Settled { entry, outcome });
    let [usage, denied, full, corrupt] = errors();
    vec![
        CopyEvent::Decision { subject: "lanes", rationale: "2, one for each core on a short path".to_owned() },
        CopyEvent::Session(SessionEvent::Decision { subject: "compression", rationale: "none: noise".to_owned() }),
        CopyEvent::LaneUp {
            lane: 0,
            path: PathNumber(0),
            transport: Transport::Quic,
            peer: "[2001:db8::1]:7373".parse().unwrap(),
        },
        CopyEvent::LaneUp {
            lane: 7,
            path: PathNumber(1),
            transport: Transport::Tcp,
            peer: "192.0.2.1:7373".parse().unwrap(),
        },
        CopyEvent::LaneDown { lane: 7, reason: "closed: \u{1b}[2J".to_owned(), again: true },
        CopyEvent::Restarted,
        CopyEvent::Session(SessionEvent::Notice("a.h5 starts over: it has changed".to_owned())),
        CopyEvent::Session(SessionEvent::Unreadable(usage)),
        CopyEvent::Session(SessionEvent::Left(full.clone())),
        settled(
            entry(b"a\n\xff\x1b[31m\xc2\x85\xe2\x80\xae.h5", 6),
            FileOutcome::Done(FileDigests::of(b"sterna", all)),
        ),
        settled(entry("très/b".as_bytes(), 0), FileOutcome::Done(FileDigests::of(b"", Checks::NONE))),
        settled(entry(b"c", 5_000_000_000_000), FileOutcome::Skipped),
        settled(entry(b"d", 1), FileOutcome::Failed(denied)),
        settled(entry(b"e", 1), FileOutcome::Failed(full)),
        settled(entry(b"f", 1), FileOutcome::Failed(corrupt)),
        CopyEvent::Session(SessionEvent::Aborted(errors()[0].clone())),
    ]
}

fn counters() -> Counters {
    Counters {
        files_known: 12,
        bytes_known: 9_000_000,
        bytes_done: 5_000_000,
        bytes_held: 1_000_000,
        bytes_up_to_date: 500_000,
        bytes_holes: 250_000,
        bytes_carried: 3_300_000,
        bytes_encoded: 3_100_000,
        blocks_again: 3,
    }
}

fn limits() -> LimitReport {
    let mut times = LimitTimes::default();
    for (limit, percent) in [(Limit::ReceiveWindow, 66), (Limit::SourceDisk, 22), (Limit::NothingToSend, 12)] {
        times.add(limit, Duration::from_millis(percent * 33));
    }
    let facts = Facts {
        rtt: Duration::from_micros(8_125),
        rate: BitRate::megabits(412),
        reached: BitRate::megabits(400),
        rate_cap: BitRate::megabits(500),
        policed: BitRate::megabits(450),
        source: BitRate::megabits(800),
        destination: BitRate::megabits(1600),
        receive_window: ByteCount(3_145_728),
        receive_buffer: ByteCount(6_291_456),
        receive_buffer_max: ByteCount(6_291_456),
        send_buffer: ByteCount(4_194_304),
        send_buffer_max: ByteCount(8_388_608),
        loss_ppm: 200,
        lost: 20,
        overrun: 5,
        lanes: 2,
        is_growing: true,
        ..Facts::default()
    };
    LimitReport { recent: times, total: times, facts }
}

fn progress() -> CopyProgress {
    let lane = |rtt_ms, packets_lost| LaneStats {
        rtt: Duration::from_millis(rtt_ms),
        packets_sent: 1000,
        packets_lost,
        wire_bytes_sent: 1_500_000,
        ..LaneStats::default()
    };
    CopyProgress {
        session: Progress { counters: counters(), manifest_complete: true, lanes: 2 },
        elapsed: Duration::from_millis(2_500),
        lanes: vec![lane(8, 3), lane(10, 2)],
        files: Vec::new(),
        limits: LimitsNow { number: 1, report: limits(), lanes: judgements() },
    }
}

fn judgements() -> Vec<LaneJudgement> {
    let feeder = Waits {
        storage: Duration::from_millis(100),
        compute: Duration::from_millis(200),
        transport: Duration::from_millis(300),
        idle: Duration::from_millis(400),
    };
    let tcp = TcpSample {
        rwnd_limited: Duration::from_millis(50),
        sndbuf_limited: Duration::from_millis(60),
        sent: 1000,
        lost: 3,
        delivered: 1_400_000,
        rtt: Duration::from_millis(8),
        rtt_min: Duration::from_millis(7),
        window: ByteCount(60_000),
        in_flight: ByteCount(50_000),
        unsent: ByteCount(1000),
        receive_window: ByteCount(65_536),
        send_buffer: ByteCount(87_040),
        send_queued: ByteCount(70_000),
        is_growing: true,
        yields_to_loss: true,
        ..TcpSample::default()
    };
    let quic = QuicSample {
        engine: Duration::from_millis(70),
        sent: 1000,
        lost: 2,
        wire_bytes: 1_500_000,
        rtt: Duration::from_millis(10),
        rtt_min: Duration::from_millis(9),
        window: ByteCount(70_000),
        in_flight: ByteCount(40_000),
        rate: BitRate::megabits(200),
        state: RateState::Searching,
        ..QuicSample::default()
    };
    let policed = QuicSample { state: RateState::Policed(BitRate::megabits(48)), ..quic };
    let transports = [
        TransportSample::Tcp(tcp),
        TransportSample::Tcp(TcpSample { cap: Some(BitRate::megabits(25)), ..tcp }),
        TransportSample::Quic(quic),
        TransportSample::Quic(policed),
        TransportSample::InProcess,
    ];
    let judged = |(number, transport)| LaneJudgement {
        lane: LaneId(number),
        limit: Limit::ALL[number as usize],
        sample: LaneSample { feeder, transport },
    };
    (0..).zip(transports).map(judged).collect()
}

fn summary() -> CopySummary {
    let path = PathPlan {
        path: PathNumber(0),
        via: Via::Quic,
        peer: "[2001:db8::1]:7373".parse().unwrap(),
        rtt: Duration::from_millis(8),
        lanes: 2,
        rate: Some(BitRate::megabits(400)),
        is_given: false,
        is_least: true,
        memory: Some(ByteCount(33_554_432)),
        standby: false,
    };
    let replica = |source: &str, dropped: Option<&str>| ReplicaSummary {
        source: source.to_owned(),
        bytes: 1_000_000,
        dropped: dropped.map(str::to_owned),
    };
    CopySummary {
        done: 10,
        skipped: 2,
        failed: 1,
        bytes: 4_500_000,
        bytes_skipped: 500_000,
        counters: counters(),
        elapsed: Duration::from_millis(2_500),
        limits: limits(),
        blocks: 14,
        paths: vec![path],
        unreached: vec![UnreachedPath { path: PathNumber(1), standby: true }],
        replicas: vec![replica("sterna://hub/a.h5", None), replica("https://mirror/a.h5", Some("no\u{202e} answer"))],
        ..CopySummary::default()
    }
}

/// Returns the lines of a copy and of a dry run, and those of a log.
fn lines() -> Vec<String> {
    let mut lines = Vec::new();
    for is_dry in [false, true] {
        let reporter = Reporter::new(&spec(is_dry));
        let unplanned = CopySummary::default();
        let unmeasured = CopySummary { limits: LimitReport::default(), replicas: Vec::new(), ..summary() };
        lines.extend(events().iter().filter_map(|event| reporter.event(event)).map(printed));
        lines.extend([CopyProgress::default(), progress()].iter().map(|now| printed(reporter.progress(now))));
        lines.extend([unplanned, unmeasured, summary()].iter().map(|end| printed(reporter.summary(end))));
    }
    lines.extend(errors().iter().map(|error| printed(Event::failure(error))));
    let started = SystemTime::UNIX_EPOCH + Duration::from_millis(1_795_000_000_250);
    let head = SessionHead { version: "1.2.3", ..SessionHead::new(&spec(false), "gs1".to_owned(), started) };
    let totals = WireTotals { wire_bytes: 3_000_000, packets_sent: 2000, packets_lost: 5 };
    let samples = [Sample::new(&CopyProgress::default(), WireTotals::default()), Sample::new(&progress(), totals)];
    lines.push(report::line(&LogLine::Session(&head)));
    lines.extend(samples.iter().map(|sample| report::line(&LogLine::Sample(sample))));
    // Most events of a dry run are those of a copy.
    let mut seen = BTreeSet::new();
    lines.retain(|line| seen.insert(line.clone()));
    lines
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden")
}

/// Returns the golden files by event.
fn files() -> BTreeMap<String, String> {
    let file = |found: io::Result<fs::DirEntry>| {
        let path = found.unwrap().path();
        let event = path.file_stem().unwrap().to_str().unwrap().to_owned();
        (event, fs::read_to_string(path).unwrap())
    };
    fs::read_dir(directory()).map_or(BTreeMap::new(), |found| found.map(file).collect())
}

#[test]
fn golden_lines_are_printed_as_they_were() {
    let mut printed: BTreeMap<String, String> = BTreeMap::new();
    for line in lines() {
        let value: Value = serde_json::from_str(&line).unwrap();
        let event = value["event"].as_str().unwrap().to_owned();
        printed.entry(event).or_default().push_str(&format!("{line}\n"));
    }
    if std::env::var("STERNA_GOLDEN").is_ok_and(|word| word == "write") {
        fs::create_dir_all(directory()).unwrap();
        files().keys().for_each(|event| fs::remove_file(directory().join(format!("{event}.jsonl"))).unwrap());
        printed.iter().for_each(|(event, text)| fs::write(directory().join(format!("{event}.jsonl")), text).unwrap());
    }
    let golden = files();
    assert!(printed.keys().eq(golden.keys()), "events {:?}, files {:?}", printed.keys(), golden.keys());
    for (event, text) in &printed {
        assert_eq!(
            *text, golden[event],
            "{event}.jsonl; to accept: STERNA_GOLDEN=write cargo test -p sterna --bins golden"
        );
    }
}

/// Collects the names of all fields, at any depth.
fn names(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            found.insert(name.clone());
            names(value, found);
        }),
        Value::Array(values) => values.iter().for_each(|value| names(value, found)),
        _ => {}
    }
}

#[test]
fn golden_names_are_documented() {
    let page = include_str!("../../../docs/json.md");
    let (mut fields, golden) = (BTreeSet::new(), files());
    assert!(!golden.is_empty());
    for line in golden.values().flat_map(|text| text.lines()) {
        names(&serde_json::from_str(line).unwrap(), &mut fields);
    }
    let is_missing = |name: &&String| !page.contains(&format!("`{name}`"));
    let missing: Vec<_> = golden.keys().chain(&fields).filter(is_missing).collect();
    assert!(missing.is_empty(), "docs/json.md does not name {missing:?}");
}
