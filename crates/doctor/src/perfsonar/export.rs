//! Our results as pScheduler gives them to an archiver: one document for each run, with the task and its test.
//!
//! The flows of an examination without changed settings are throughput tests, and its echoes are an rtt test. Source of
//! the form: the archiver daemon of pScheduler, and the schemas of its tests. `href` members are names: nothing answers
//! there.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde_json::{Map, Value, json};
use sterna_net::measure::{EchoReport, EchoSpec, FlowPair, FlowSample, FlowSpec, StreamReport};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::iso8601;
use crate::evidence::{Direction, Evidence, Experiment, Outcome, Purpose, Record};
use crate::report::About;
use crate::view::at_time;

/// Interval of the rates, seconds. Reason: that of perfSONAR's own tests.
const INTERVAL_S: f64 = 1.0;

/// Maximum number of intervals. Reason: the longest flow has 60 s; a peer may report any time.
const INTERVALS_MAX: usize = 120;

/// Maximum number of round trips in a document. Reason: the archive keeps them as they are.
const ROUND_TRIPS_MAX: usize = 10_000;

/// Returns the documents of an examination, in order of time.
pub fn documents(evidence: &Evidence, about: &About) -> Vec<Value> {
    let ends = Ends::of(about);
    let document = |record: &Record| match (&record.experiment, &record.outcome) {
        (Experiment::Flow { spec }, Outcome::Flow(pair))
            if matches!(record.purpose, Purpose::Baseline | Purpose::FourStreams) =>
        {
            throughput(&ends, record.direction, spec, pair).map(|test| run(&ends, about, record, test))
        }
        (Experiment::Echo { spec }, Outcome::Echo(report)) => {
            rtt(&ends, spec, report).map(|test| run(&ends, about, record, test))
        }
        _ => None,
    };
    evidence.records.iter().filter_map(document).collect()
}

/// Addresses of both hosts; absent in old bundles.
struct Ends {
    near: Option<IpAddr>,
    far: Option<IpAddr>,
}

impl Ends {
    fn of(about: &About) -> Self {
        let far = about.address.parse::<SocketAddr>().map(|address| address.ip());
        Self { near: about.local.parse().ok(), far: far.or_else(|_| about.address.parse()).ok() }
    }

    /// Returns the sender and the receiver of a direction.
    fn of_data(&self, direction: Direction) -> (Option<IpAddr>, Option<IpAddr>) {
        match direction {
            Direction::Forward => (self.near, self.far),
            Direction::Reverse => (self.far, self.near),
        }
    }
}

/// Test with its result.
struct Test {
    kind: &'static str,
    spec: Value,
    result: Value,
    participants: Vec<String>,
}

fn throughput(ends: &Ends, direction: Direction, spec: &FlowSpec, pair: &FlowPair) -> Option<Test> {
    let (source, dest) = ends.of_data(direction);
    let dest = dest?.to_string();
    let mut test = json!({
        "schema": 1,
        "dest": dest,
        "duration": iso8601::text(spec.time()),
        "interval": "PT1S",
    });
    if let Some(source) = source {
        test["source"] = json!(source.to_string());
    }
    if spec.streams > 1 {
        test["parallel"] = json!(spec.streams);
    }
    let first = pair.sender.streams.first()?;
    let end = (spec.time_ms as f64 / 1e3).min(pair.receiver.time_us.max(pair.sender.time_us) as f64 / 1e6);
    if end <= 0.0 {
        return None;
    }
    // The last interval has the rest.
    let count = ((end / INTERVAL_S).round() as usize).clamp(1, INTERVALS_MAX);
    let bound = |index: usize| if index == count { end } else { index as f64 * INTERVAL_S };
    let intervals: Vec<Value> = (0..count).map(|index| summary(pair, bound(index), bound(index + 1))).collect();
    let mut total = summary(pair, 0.0, bound(count));
    let received: f64 =
        pair.receiver.streams.iter().map(|stream| moved(stream, 0.0, bound(count), |s| s.received)).sum();
    total["summary"]["receiver-throughput-bits"] = json!(received * 8.0 / bound(count));
    let mut result = json!({
        "schema": 1,
        "succeeded": true,
        "diags": "",
        "intervals": intervals,
        "summary": total,
    });
    if first.mss > 0 {
        result["mss"] = json!(first.mss);
    }
    if first.path_mtu > 0 {
        result["mtu"] = json!(first.path_mtu);
    }
    let participants = [source.map(|source| source.to_string()), Some(dest)].into_iter().flatten().collect();
    Some(Test { kind: "throughput", spec: test, result, participants })
}

/// Returns the members `streams` and `summary` of a time of a flow.
fn summary(pair: &FlowPair, from: f64, to: f64) -> Value {
    let streams = &pair.sender.streams;
    let each: Vec<Value> = streams.iter().enumerate().map(|(index, stream)| data(index, stream, from, to)).collect();
    let sum = |name: &str| each.iter().filter_map(|stream| stream[name].as_f64()).sum::<f64>();
    let total = json!({
        "start": from,
        "end": to,
        "throughput-bytes": sum("throughput-bytes"),
        "throughput-bits": sum("throughput-bits"),
        "retransmits": sum("retransmits") as u64,
        "omitted": false,
    });
    json!({"streams": each, "summary": total})
}

/// Returns the values of a stream in a time, in the units of iperf3: round trips in microseconds.
fn data(index: usize, stream: &StreamReport, from: f64, to: f64) -> Value {
    // Data that arrived, also behind a hole.
    let segments = moved(stream, from, to, |sample| sample.delivered);
    let bytes = match stream.samples.last().is_some_and(|last| last.delivered > 0) {
        true => segments * f64::from(stream.mss),
        false => moved(stream, from, to, |sample| sample.acked),
    };
    json!({
        "stream-id": index + 1,
        "start": from,
        "end": to,
        "throughput-bytes": bytes,
        "throughput-bits": bytes * 8.0 / (to - from).max(1e-3),
        "retransmits": moved(stream, from, to, |sample| sample.resent).round() as u64,
        "rtt": at_time(stream, to, |sample| sample.rtt_us).round(),
        "tcp-window-size": at_time(stream, to, |sample| sample.window).round() as u64,
        "omitted": false,
    })
}

/// Returns the growth of a counter.
fn moved(stream: &StreamReport, from: f64, to: f64, of: fn(&FlowSample) -> u64) -> f64 {
    (at_time(stream, to, of) - if from > 0.0 { at_time(stream, from, of) } else { 0.0 }).max(0.0)
}

fn rtt(ends: &Ends, spec: &EchoSpec, report: &EchoReport) -> Option<Test> {
    let dest = ends.far?.to_string();
    let sum = |of: fn(&sterna_net::measure::EchoPort) -> u64| report.echoes.iter().map(of).sum::<u64>();
    let (sent, received, reordered) = (sum(|port| port.sent), sum(|port| port.returned), sum(|port| port.reordered));
    if sent == 0 {
        return None;
    }
    let mut test = json!({
        "schema": 2,
        "dest": dest,
        "count": sent,
        "interval": iso8601::text(Duration::from_micros(spec.interval_us)),
        "length": spec.packet_bytes.max(1),
        // STAMP, whose packets are those of TWAMP.
        "protocol": "twamp",
    });
    if let Some(source) = ends.near {
        test["source"] = json!(source.to_string());
    }
    let trips = report.echoes.iter().flat_map(|port| port.rtt_us.iter().map(move |rtt| (port.reverse_ttl, *rtt)));
    let round_trip = |(ttl, micros): (Option<u8>, u64)| {
        let mut trip = json!({
            "ip": dest,
            "length": spec.packet_bytes.max(1),
            "rtt": iso8601::text(Duration::from_micros(micros)),
        });
        if let Some(ttl) = ttl.filter(|ttl| *ttl > 0) {
            trip["ttl"] = json!(ttl);
        }
        trip
    };
    let round_trips: Vec<Value> = trips.take(ROUND_TRIPS_MAX).map(round_trip).collect();
    let lost = sent.saturating_sub(received);
    let mut result = json!({
        "schema": 1,
        "succeeded": true,
        "roundtrips": round_trips,
        "sent": sent,
        "received": received,
        "lost": lost,
        "loss": lost as f64 / sent as f64,
        "reorders": reordered,
        "duplicates": 0,
    });
    let times: Vec<f64> = report.echoes.iter().flat_map(|port| &port.rtt_us).map(|rtt| *rtt as f64).collect();
    for (name, micros) in moments(&times) {
        // Not negative: a time, or the deviation of times.
        result[name] = json!(iso8601::text(Duration::from_micros(micros.round() as u64)));
    }
    let participants = ends.near.map(|near| near.to_string()).into_iter().collect();
    Some(Test { kind: "rtt", spec: test, result, participants })
}

/// Returns the smallest, largest and mean value and the standard deviation, by name; nothing without values.
fn moments(values: &[f64]) -> Vec<(&'static str, f64)> {
    let Some(min) = values.iter().copied().reduce(f64::min) else { return Vec::new() };
    let max = values.iter().copied().fold(min, f64::max);
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
    vec![("min", min), ("max", max), ("mean", mean), ("stddev", variance.sqrt())]
}

/// Returns the document of a run, as an archiver gets it.
fn run(ends: &Ends, about: &About, record: &Record, test: Test) -> Value {
    let Test { kind, spec, result, participants } = test;
    let start = about.started.saturating_add(record.start_ms / 1000);
    let end = start.saturating_add(record.time_ms.div_ceil(1000).max(1));
    let duration = iso8601::text(Duration::from_secs(end - start));
    let tested = json!({"type": kind, "spec": spec});
    // One task for each specification, as if it were repeated.
    let (task_id, run_id) = (uuid(&[&tested]), uuid(&[&tested, &json!(start), &json!(record.start_ms)]));
    let host = ends.near.map_or_else(|| "localhost".to_owned(), host_in_url);
    let task_href = format!("https://{host}/pscheduler/tasks/{task_id}");
    let run_href = format!("{task_href}/runs/{run_id}");
    let (start, end) = (date(start), date(end));
    let run = json!({
        "start-time": start,
        "end-time": end,
        "added": end,
        "duration": duration,
        "participant": 0,
        "participants": participants,
        "state": "finished",
        "state-display": "Finished",
        "errors": null,
        "priority": 0,
        "limit-diags": null,
        "result-full": [result],
        "result-merged": result,
        "href": run_href,
        "task-href": task_href,
    });
    json!({
        "id": run_id,
        "schedule": {"start": start, "duration": duration},
        "test": tested,
        "tool": {"name": "sterna", "version": env!("CARGO_PKG_VERSION")},
        "run": run,
        "task": {
            "schema": 1,
            "test": tested,
            "tool": "sterna",
            "schedule": Map::new(),
            "detail": {"duration": duration},
            "href": task_href,
        },
        "participants": participants,
        "result": result,
        "reference": {"sterna": {"target": about.target, "purpose": record.purpose, "direction": record.direction}},
    })
}

fn host_in_url(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    }
}

/// Returns a UUID of values (version 8, RFC 9562), so that the same result has the same one.
fn uuid(of: &[&Value]) -> String {
    let text: String = of.iter().map(|value| value.to_string()).collect();
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest.as_ref()[..16]);
    bytes[6] = (bytes[6] & 0x0f) | 0x80;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// Returns a time as pScheduler writes it; one that has no date is the last one that has.
fn date(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    time.and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_else(|| "9999-12-31T23:59:59Z".to_owned())
}
