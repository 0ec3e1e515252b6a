//! Results of pScheduler (`result-merged` of a run) in our terms: rates in bit/s, times in seconds.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use sterna_proto::{BitRate, ByteCount};

use super::spec::TestKind;
use super::{count, iso8601, list, number, text};
use crate::view::median;
use crate::words::{percent, time};

/// Maximum number of intervals, echoes, hops or paths that are read. Reason: an hour of seconds.
const ITEMS_MAX: usize = 3600;

/// Width of a bucket of a latency test without another one, seconds.
const BUCKET_WIDTH: f64 = 0.001;

/// Result of a test.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "test", rename_all = "snake_case")]
pub enum TestResult {
    /// Rate of TCP.
    Throughput(Throughput),
    /// Round trips.
    Rtt(RoundTrips),
    /// One-way delays.
    Latency(Delays),
    /// Routers on the way.
    Trace(Trace),
}

/// Rate of TCP. An absent value is one that the tool does not report.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Throughput {
    /// Rate of sending.
    pub rate_bps: f64,
    /// Rate of receiving.
    pub received_bps: Option<f64>,
    /// Number of streams.
    pub streams: u32,
    /// Segments sent again.
    pub resent: Option<u64>,
    /// Payload of a full segment, bytes.
    pub mss: Option<u32>,
    /// Datagrams sent and lost, of a test over UDP.
    pub datagrams: Option<(u64, u64)>,
    /// Mean round trip that the sender measured.
    pub rtt_s: Option<f64>,
    /// Congestion control of the sender.
    pub congestion: Option<String>,
    /// Intervals in order.
    pub intervals: Vec<Interval>,
}

/// Interval of a throughput test, all streams together.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Interval {
    /// Start, seconds since the start of the test.
    pub start_s: f64,
    /// End.
    pub end_s: f64,
    /// Rate.
    pub rate_bps: f64,
    /// Segments sent again.
    pub resent: Option<u64>,
    /// Round trip: the mean of the streams.
    pub rtt_s: Option<f64>,
    /// Congestion window: the sum of the streams, bytes.
    pub window: Option<f64>,
    /// It does not count for the mean rate.
    pub omitted: bool,
}

/// Round trips.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RoundTrips {
    /// Packets sent.
    pub sent: u64,
    /// Replies.
    pub received: u64,
    /// Part of the packets without a reply.
    pub loss: f64,
    /// Smallest round trip.
    pub min_s: Option<f64>,
    /// Mean.
    pub mean_s: Option<f64>,
    /// Largest.
    pub max_s: Option<f64>,
    /// Standard deviation.
    pub deviation_s: Option<f64>,
    /// Replies out of order.
    pub reordered: u64,
}

/// One-way delays. They include the error of the clocks.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Delays {
    /// Packets sent.
    pub sent: u64,
    /// Packets received.
    pub received: u64,
    /// Part of the packets that is lost.
    pub loss: f64,
    /// Packets out of order.
    pub reordered: u64,
    /// Copies.
    pub duplicated: u64,
    /// Smallest delay; less than zero if the clocks differ.
    pub min_s: Option<f64>,
    /// Median.
    pub median_s: Option<f64>,
    /// Delay that 95 % of the packets keep.
    pub p95_s: Option<f64>,
    /// Largest.
    pub max_s: Option<f64>,
    /// Estimate of the error of both clocks.
    pub clock_error_s: Option<f64>,
    /// Packets by the TTL with which they arrived.
    pub ttls: BTreeMap<u8, u64>,
}

/// Routers on the way.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Trace {
    /// Paths; a tool that knows one flow has one.
    pub paths: Vec<Vec<Hop>>,
}

/// Router on the way.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Hop {
    /// Address; absent if no reply came.
    pub ip: Option<String>,
    /// Name.
    pub hostname: Option<String>,
    /// Round trip.
    pub rtt_s: Option<f64>,
    /// Number of its autonomous system.
    pub asn: Option<u64>,
    /// Largest packet that reaches it, bytes.
    pub mtu: Option<u32>,
    /// Error that it reports.
    pub error: Option<String>,
}

impl TestResult {
    /// Reads a result. `spec`: specification of the test, `merged`: `result-merged` of the run.
    ///
    /// Errors: the reason in words, if the result is none of this test.
    pub fn read(kind: TestKind, spec: &Value, merged: &Value) -> Result<Self, String> {
        if merged.get("succeeded") != Some(&Value::Bool(true)) {
            let reason = text(merged, "error").unwrap_or_else(|| "no reason is reported".to_owned());
            return Err(format!("the test did not succeed: {reason}"));
        }
        let missing = |what: &str| format!("the result has no {what}");
        Ok(match kind {
            TestKind::Throughput => {
                Self::Throughput(Throughput::read(spec, merged).ok_or_else(|| missing("rate (throughput-bits)"))?)
            }
            TestKind::Rtt => Self::Rtt(RoundTrips::read(merged).ok_or_else(|| missing("loss"))?),
            TestKind::Latency => {
                Self::Latency(Delays::read(spec, merged).ok_or_else(|| missing("number of packets sent"))?)
            }
            TestKind::Trace => Self::Trace(Trace::read(merged).ok_or_else(|| missing("path"))?),
        })
    }

    /// Returns the lines for people, without a judgement.
    pub fn lines(&self) -> Vec<String> {
        match self {
            Self::Throughput(result) => result.lines(),
            Self::Rtt(result) => result.lines(),
            Self::Latency(result) => result.lines(),
            Self::Trace(result) => result.lines(),
        }
    }
}

impl Throughput {
    fn read(spec: &Value, merged: &Value) -> Option<Self> {
        let summary = merged.get("summary")?;
        let total = summary.get("summary")?;
        let streams: Vec<&Value> = list(summary, "streams").take(ITEMS_MAX).collect();
        let rtts: Vec<f64> = streams.iter().filter_map(|stream| micros(stream)).collect();
        let planned = count(spec, "parallel").unwrap_or(1);
        let is_udp = spec.get("udp") == Some(&Value::Bool(true));
        Some(Self {
            rate_bps: number(total, "throughput-bits")?,
            received_bps: number(total, "receiver-throughput-bits"),
            streams: u32::try_from(planned.max(streams.len() as u64)).unwrap_or(u32::MAX),
            resent: count(total, "retransmits"),
            mss: count(merged, "mss").and_then(|mss| u32::try_from(mss).ok()).filter(|mss| *mss > 0),
            datagrams: count(total, "sent").zip(count(total, "lost")).filter(|_| is_udp),
            rtt_s: micros(total).or_else(|| (!rtts.is_empty()).then(|| rtts.iter().sum::<f64>() / rtts.len() as f64)),
            congestion: text(spec, "congestion").or_else(|| congestion_in(merged.get("diags")?.as_str()?)),
            intervals: list(merged, "intervals").take(ITEMS_MAX).filter_map(Interval::read).collect(),
        })
    }

    /// Returns the intervals of the second half, in which slow start is over, without those that do not count.
    pub fn steady(&self) -> &[Interval] {
        let counted = self.intervals.iter().take_while(|interval| interval.omitted).count();
        let counted = &self.intervals[counted..];
        &counted[counted.len() / 2..]
    }

    /// Returns the rate of the steady intervals; without intervals, that of the test.
    pub fn steady_bps(&self) -> f64 {
        let steady = self.steady();
        let time: f64 = steady.iter().map(|one| one.end_s - one.start_s).sum();
        let bits: f64 = steady.iter().map(|one| one.rate_bps * (one.end_s - one.start_s)).sum();
        if time > 0.0 { bits / time } else { self.rate_bps }
    }

    fn lines(&self) -> Vec<String> {
        let streams = if self.streams == 1 { "one stream".to_owned() } else { format!("{} streams", self.streams) };
        let mut lines = vec![format!("  rate         {}, {streams}", rate(self.rate_bps))];
        if let Some(received) = self.received_bps {
            lines.push(format!("  received     {}", rate(received)));
        }
        if let Some((sent, lost)) = self.datagrams {
            let part = percent(lost as f64 / sent.max(1) as f64);
            lines.push(format!("  lost         {lost} of {sent} datagrams, {part}"));
        }
        if let Some(resent) = self.resent.filter(|_| self.datagrams.is_none()) {
            lines.push(format!("  sent again   {resent} segments"));
        }
        let rtts: Vec<f64> = self.intervals.iter().filter_map(|one| one.rtt_s).collect();
        match (rtts.iter().copied().reduce(f64::min), self.rtt_s) {
            (Some(least), _) => {
                lines.push(format!("  round trip   {} at least, {} median", time(least), time(median(rtts))));
            }
            (None, Some(mean)) => lines.push(format!("  round trip   {} mean", time(mean))),
            (None, None) => {}
        }
        let windows: Vec<f64> = self.steady().iter().filter_map(|one| one.window).collect();
        if !windows.is_empty() {
            let window = ByteCount(median(windows) as u64);
            let control = self.congestion.as_ref().map_or(String::new(), |name| format!(" of {name}"));
            lines.push(format!("  window       {window} (congestion window{control}, second half of the test)"));
        }
        lines
    }
}

impl Interval {
    fn read(value: &Value) -> Option<Self> {
        let summary = value.get("summary")?;
        let streams: Vec<&Value> = list(value, "streams").take(ITEMS_MAX).collect();
        let rtts: Vec<f64> = streams.iter().filter_map(|stream| micros(stream)).collect();
        let windows: Vec<f64> = streams.iter().filter_map(|stream| number(stream, "tcp-window-size")).collect();
        let (start_s, end_s) = (number(summary, "start")?, number(summary, "end")?);
        (end_s > start_s).then_some(Self {
            start_s,
            end_s,
            rate_bps: number(summary, "throughput-bits")?,
            resent: count(summary, "retransmits"),
            rtt_s: micros(summary).or_else(|| (!rtts.is_empty()).then(|| rtts.iter().sum::<f64>() / rtts.len() as f64)),
            window: number(summary, "tcp-window-size")
                .or_else(|| (!windows.is_empty()).then(|| windows.iter().sum::<f64>())),
            omitted: summary.get("omitted") == Some(&Value::Bool(true)),
        })
    }
}

/// Returns the congestion control in the output of iperf3, which pScheduler keeps as text.
fn congestion_in(diags: &str) -> Option<String> {
    let (_, rest) = diags.split_once("\"sender_tcp_congestion\"")?;
    let name = rest.trim_start_matches([':', ' ', '\t']).strip_prefix('"')?.split('"').next()?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (!name.is_empty() && name.len() <= CONGESTION_CHARS_MAX && name.chars().all(is_name)).then(|| name.to_owned())
}

/// Maximum characters of the name of a congestion control. Source: `TCP_CA_NAME_MAX` of Linux.
const CONGESTION_CHARS_MAX: usize = 16;

/// Returns the round trip of a stream, seconds. iperf3 reports microseconds, and pScheduler keeps them; 0 is none.
fn micros(of: &Value) -> Option<f64> {
    number(of, "rtt").filter(|rtt| *rtt > 0.0).map(|micros| micros / 1e6)
}

impl RoundTrips {
    fn read(merged: &Value) -> Option<Self> {
        let duration = |name: &str| iso8601::seconds(merged.get(name)?.as_str()?);
        Some(Self {
            sent: count(merged, "sent").unwrap_or(0),
            received: count(merged, "received").unwrap_or(0),
            loss: number(merged, "loss")?.min(1.0),
            min_s: duration("min"),
            mean_s: duration("mean"),
            max_s: duration("max"),
            deviation_s: duration("stddev"),
            reordered: count(merged, "reorders").unwrap_or(0),
        })
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("  replies      {} of {}: {} lost", self.received, self.sent, percent(self.loss))];
        if let (Some(min), Some(mean), Some(max)) = (self.min_s, self.mean_s, self.max_s) {
            lines.push(format!(
                "  round trip   {} at least, {} mean, {} at most",
                millis(min),
                millis(mean),
                millis(max)
            ));
        }
        if self.reordered > 0 {
            lines.push(format!("  reordered    {} replies", self.reordered));
        }
        lines
    }
}

impl Delays {
    fn read(spec: &Value, merged: &Value) -> Option<Self> {
        let width = number(spec, "bucket-width").unwrap_or(BUCKET_WIDTH);
        let (sent, received) = (count(merged, "packets-sent")?, count(merged, "packets-received").unwrap_or(0));
        let lost = count(merged, "packets-lost").unwrap_or_else(|| sent.saturating_sub(received));
        let delays = histogram(merged, "histogram-latency", |name| {
            name.parse::<f64>().ok().filter(|bucket| bucket.is_finite()).map(|bucket| bucket * width)
        });
        let at = |part: f64| quantile(&delays, part);
        Some(Self {
            sent,
            received,
            loss: (lost as f64 / sent.max(1) as f64).min(1.0),
            reordered: count(merged, "packets-reordered").unwrap_or(0),
            duplicated: count(merged, "packets-duplicated").unwrap_or(0),
            min_s: at(0.0),
            median_s: at(0.5),
            p95_s: at(0.95),
            max_s: at(1.0),
            clock_error_s: number(merged, "max-clock-error").map(|millis| millis / 1e3),
            ttls: histogram(merged, "histogram-ttl", |name| name.parse().ok()).into_iter().collect(),
        })
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("  packets      {} of {}: {} lost", self.received, self.sent, percent(self.loss))];
        if let (Some(min), Some(median), Some(p95)) = (self.min_s, self.median_s, self.p95_s) {
            let clocks = self.clock_error_s.map_or(String::new(), |error| format!(" (clocks: ±{})", millis(error)));
            lines.push(format!(
                "  one way      {} at least, {} median, {} for 95 % of the packets{clocks}",
                millis(min),
                millis(median),
                millis(p95)
            ));
        }
        if self.reordered > 0 || self.duplicated > 0 {
            lines.push(format!("  reordered    {} packets; {} copies", self.reordered, self.duplicated));
        }
        if !self.ttls.is_empty() {
            let each: Vec<String> = self.ttls.iter().map(|(ttl, count)| format!("{ttl} ({count})")).collect();
            lines.push(format!("  TTL          {}", each.join(", ")));
        }
        lines
    }
}

/// Returns the buckets of a histogram in order, those whose name can be read.
fn histogram<K: PartialOrd>(of: &Value, name: &str, key: impl Fn(&str) -> Option<K>) -> Vec<(K, u64)> {
    let members = of.get(name).and_then(Value::as_object);
    let mut buckets: Vec<(K, u64)> = members
        .into_iter()
        .flatten()
        .filter_map(|(name, count)| Some((key(name)?, count.as_u64().filter(|count| *count > 0)?)))
        .collect();
    // Keys that cannot be compared were not read.
    buckets.sort_by(|a, b| a.0.partial_cmp(&b.0).unwrap_or(std::cmp::Ordering::Equal));
    buckets
}

/// Returns the value that a part of the packets keeps.
pub(super) fn quantile(buckets: &[(f64, u64)], part: f64) -> Option<f64> {
    let total = buckets.iter().map(|(_, count)| count).fold(0_u64, |sum, count| sum.saturating_add(*count));
    let mut left = (total as f64 * part).ceil().max(1.0);
    for (value, count) in buckets {
        left -= *count as f64;
        if left <= 0.0 {
            return Some(*value);
        }
    }
    buckets.last().map(|(value, _)| *value)
}

impl Trace {
    fn read(merged: &Value) -> Option<Self> {
        let paths = merged.get("paths")?.as_array()?;
        let path = |path: &Value| path.as_array().into_iter().flatten().take(ITEMS_MAX).map(Hop::read).collect();
        Some(Self { paths: paths.iter().take(ITEMS_MAX).map(path).collect() })
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (index, path) in self.paths.iter().take(PATHS_SHOWN).enumerate() {
            if self.paths.len() > 1 {
                lines.push(format!("  path {} of {}", index + 1, self.paths.len()));
            }
            lines.extend(path.iter().take(HOPS_SHOWN).enumerate().map(|(index, hop)| hop.line(index + 1)));
        }
        lines
    }
}

/// Paths of a trace that are shown. Reason: a screen; the JSON has all.
const PATHS_SHOWN: usize = 4;

/// Hops of a path that are shown. Reason: traceroute ends after 30.
const HOPS_SHOWN: usize = 64;

impl Hop {
    /// Reads a hop.
    pub(super) fn read(value: &Value) -> Self {
        Self {
            ip: text(value, "ip"),
            hostname: text(value, "hostname"),
            rtt_s: value.get("rtt").and_then(Value::as_str).and_then(iso8601::seconds),
            asn: value.get("as").and_then(|system| count(system, "number")),
            mtu: count(value, "mtu").and_then(|mtu| u32::try_from(mtu).ok()),
            error: text(value, "error"),
        }
    }

    fn line(&self, number: usize) -> String {
        let Some(ip) = &self.ip else { return format!("  {number:>4}  no reply") };
        let rtt = self.rtt_s.map_or(String::new(), millis);
        let name = self.hostname.as_ref().filter(|name| *name != ip).map_or(String::new(), |name| format!(" {name}"));
        let system = self.asn.map_or(String::new(), |number| format!(" AS{number}"));
        let mtu = self.mtu.map_or(String::new(), |mtu| format!(" MTU {mtu}"));
        let error = self.error.as_ref().map_or(String::new(), |error| format!(" ({error})"));
        format!("  {number:>4}  {rtt:<10} {ip}{name}{system}{mtu}{error}")
    }
}

/// Returns a rate for people.
pub(super) fn rate(bps: f64) -> BitRate {
    // Saturates.
    BitRate(bps as u64)
}

/// Returns a time in milliseconds for people: differences of tenths matter.
pub(super) fn millis(seconds: f64) -> String {
    format!("{:.2} ms", seconds * 1e3)
}
