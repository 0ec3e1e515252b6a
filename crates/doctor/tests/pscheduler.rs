//! Export of examinations to pScheduler: every document fits the schemas of pScheduler, read strictly, and has the
//! rates of the report.
//!
//! Source of the members and their types: `validate.py` of the throughput and rtt tests, `jsonval.py` (Cardinal,
//! Duration, Host, Probability, TaskSpecification), and the archiver daemon, of pscheduler 5.2.5.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::path::Path;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use sterna_doctor::evidence::{Direction, Evidence, Purpose};
use sterna_doctor::perfsonar::export::documents;
use sterna_doctor::perfsonar::result::TestResult;
use sterna_doctor::perfsonar::spec::TestKind;
use sterna_doctor::report::About;

/// Largest evidence, bytes.
const EVIDENCE_BYTES_MAX: usize = 16 << 20;

/// Duration by the pattern of pScheduler.
#[derive(Debug)]
struct IsoDuration;

impl<'de> Deserialize<'de> for IsoDuration {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let number = text.strip_prefix("PT").and_then(|rest| rest.strip_suffix('S')).unwrap_or_default();
        let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
        let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match is_digits(whole) && is_digits(part) {
            true => Ok(Self),
            false => Err(D::Error::custom(format!("no duration: {text}"))),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[allow(dead_code)]
struct ThroughputSpec {
    schema: u8,
    source: IpAddr,
    dest: IpAddr,
    duration: IsoDuration,
    interval: IsoDuration,
    parallel: Option<NonZeroU64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[allow(dead_code)]
struct ThroughputData {
    throughput_bits: f64,
    throughput_bytes: f64,
    receiver_throughput_bits: Option<f64>,
    sent: Option<i64>,
    lost: Option<i64>,
    jitter: Option<f64>,
    stream_id: Option<i64>,
    start: f64,
    end: f64,
    rtt: Option<f64>,
    tcp_window_size: Option<i64>,
    retransmits: Option<i64>,
    omitted: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Streams {
    streams: Vec<ThroughputData>,
    summary: ThroughputData,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[allow(dead_code)]
struct ThroughputResult {
    schema: NonZeroU64,
    succeeded: bool,
    diags: String,
    mss: i64,
    mtu: i64,
    intervals: Vec<Streams>,
    summary: Streams,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[allow(dead_code)]
struct RttSpec {
    schema: u8,
    count: NonZeroU64,
    source: IpAddr,
    dest: IpAddr,
    interval: IsoDuration,
    length: NonZeroU64,
    protocol: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[allow(dead_code)]
struct RoundTrip {
    ip: IpAddr,
    length: NonZeroU64,
    rtt: IsoDuration,
    ttl: Option<NonZeroU64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[allow(dead_code)]
struct RttResult {
    schema: NonZeroU64,
    succeeded: bool,
    roundtrips: Vec<RoundTrip>,
    sent: NonZeroU64,
    received: u64,
    lost: u64,
    reorders: u64,
    duplicates: u64,
    loss: f64,
    min: IsoDuration,
    max: IsoDuration,
    mean: IsoDuration,
    stddev: IsoDuration,
}

/// Test as tasks and documents name it.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct TestSpecification {
    #[serde(rename = "type")]
    kind: String,
    spec: Value,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
struct Schedule {
    start: String,
    duration: IsoDuration,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
struct Tool {
    name: String,
    version: String,
}

/// Task with what the server adds to it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
struct Task {
    schema: u8,
    test: TestSpecification,
    tool: String,
    schedule: BTreeMap<String, Value>,
    detail: BTreeMap<String, IsoDuration>,
    href: String,
}

/// Run of `run_json`, without what the archiver removes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[allow(dead_code)]
struct Run {
    start_time: String,
    end_time: String,
    added: String,
    duration: IsoDuration,
    participant: u8,
    participants: Vec<IpAddr>,
    state: String,
    state_display: String,
    errors: Option<String>,
    priority: Option<i64>,
    limit_diags: Option<String>,
    result_full: Vec<Value>,
    result_merged: Value,
    href: String,
    task_href: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
struct Document {
    id: String,
    schedule: Schedule,
    test: TestSpecification,
    tool: Tool,
    run: Run,
    task: Task,
    participants: Vec<IpAddr>,
    result: Value,
    reference: Value,
}

fn evidence(name: &str) -> Evidence {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bundles");
    let mut paths: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let path = paths.iter().find(|path| path.file_name().unwrap().to_string_lossy().starts_with(name)).unwrap();
    let mut json = vec![0; EVIDENCE_BYTES_MAX];
    let length = zstd_safe::decompress(&mut json[..], &fs::read(path).unwrap()).unwrap();
    serde_json::from_slice(&json[..length]).unwrap()
}

fn about() -> About {
    About {
        target: "sterna://hub.example.org/".to_owned(),
        address: "[2001:db8::7]:7373".to_owned(),
        local: "2001:db8::1".to_owned(),
        started: 1_800_000_000,
        ..About::default()
    }
}

/// Reads a document strictly.
fn checked(value: &Value) -> Document {
    let document: Document = serde_json::from_value(value.clone()).unwrap_or_else(|e| panic!("{e}: {value}"));
    assert_eq!(document.id.len(), 36);
    assert_eq!((&document.test, &document.result), (&document.task.test, &document.run.result_merged));
    assert!(document.task.href.starts_with("https://[2001:db8::"), "{}", document.task.href);
    assert_eq!(document.run.href, format!("{}/runs/{}", document.task.href, document.id));
    assert_eq!((document.run.state.as_str(), !document.participants.is_empty()), ("finished", true));
    match document.test.kind.as_str() {
        "throughput" => {
            serde_json::from_value::<ThroughputSpec>(document.test.spec.clone()).unwrap();
            let result: ThroughputResult = serde_json::from_value(document.result.clone()).unwrap();
            for interval in result.intervals.iter().chain([&result.summary]) {
                let sum: f64 = interval.streams.iter().map(|stream| stream.throughput_bits).sum();
                assert!((sum - interval.summary.throughput_bits).abs() <= 1.0, "{interval:?}");
            }
            let last = result.intervals.last().unwrap();
            assert_eq!(last.summary.end, result.summary.summary.end);
        }
        "rtt" => {
            serde_json::from_value::<RttSpec>(document.test.spec.clone()).unwrap();
            let result: RttResult = serde_json::from_value(document.result.clone()).unwrap();
            assert_eq!(result.sent.get(), result.received + result.lost);
            assert!((0.0..=1.0).contains(&result.loss));
        }
        other => panic!("{other}"),
    }
    document
}

#[test]
fn every_document_fits_the_schemas_of_pscheduler() {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for name in ["clean", "random_loss", "receive_buffer", "policer", "ack_path"] {
        let documents = documents(&evidence(name), &about());
        for document in &documents {
            *kinds.entry(checked(document).test.kind).or_default() += 1;
        }
        let mut ids: Vec<_> = documents.iter().map(|document| document["id"].to_string()).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), documents.len(), "{name}: two documents have the same id");
    }
    assert!(kinds["throughput"] >= 10 && kinds["rtt"] >= 5, "{kinds:?}");
}

#[test]
fn the_exported_rates_are_those_of_the_report() {
    let evidence = evidence("clean");
    let (_, pair) = evidence.flow(Purpose::Baseline, Direction::Forward).unwrap();
    let documents = documents(&evidence, &about());
    let forward = documents.iter().find(|document| {
        document["reference"]["sterna"]["purpose"] == "baseline"
            && document["reference"]["sterna"]["direction"] == "forward"
    });
    let document = forward.unwrap();
    assert_eq!(document["test"]["spec"]["source"], "2001:db8::1");
    let read = TestResult::read(TestKind::Throughput, &document["test"]["spec"], &document["result"]).unwrap();
    let TestResult::Throughput(read) = read else { panic!("{read:?}") };
    let end_s = read.intervals.last().unwrap().end_s;
    let samples = pair.receiver.streams[0].samples.iter();
    let received = samples.take_while(|sample| sample.at_us as f64 / 1e6 <= end_s).last().unwrap().received as f64;
    for bps in [read.rate_bps, read.received_bps.unwrap()] {
        let part = bps * end_s / 8.0 / received;
        assert!((0.97..=1.03).contains(&part), "{part} of the bytes that the receiver counted: {read:?}");
    }
    assert!(read.intervals.iter().all(|interval| interval.rtt_s.is_some() && interval.window.is_some()), "{read:?}");
    let rtt = documents.iter().find(|document| document["test"]["type"] == "rtt").unwrap();
    let read = TestResult::read(TestKind::Rtt, &rtt["test"]["spec"], &rtt["result"]).unwrap();
    let TestResult::Rtt(read) = read else { panic!("{read:?}") };
    let least = evidence.echoes().unwrap().echoes.iter().flat_map(|port| &port.rtt_us).min().unwrap();
    assert_eq!(read.min_s, Some(*least as f64 / 1e6));
}

#[test]
fn a_bundle_without_addresses_has_no_documents() {
    assert!(documents(&evidence("clean"), &About::default()).is_empty());
    assert!(documents(&Evidence::default(), &about()).is_empty());
}
