//! Results from archives: one value of each result by time, and what changed.

use serde::Serialize;
use serde_json::Value;
use sterna_net::perfsonar::{ArchiveReply, EsmondSeries};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::result::{Hop, millis, rate};
use super::spec::TestKind;
use super::{count, list, number, text};
use crate::words::percent;

/// Results on each side of a change, at least. Reason: fewer are chance.
const SIDE_MIN: usize = 5;

/// Ratio of the medians before and after a change, at least.
const CHANGE_MIN: f64 = 1.2;

/// Part of the results that a change leaves on its own side of the middle between both medians, at least. Reason:
/// values that vary from run to run are not a change.
const SEPARATED: f64 = 0.9;

/// Hops of a result that are read. Reason: traceroute ends after 30.
const HOPS_MAX: usize = 64;

/// Buckets of a histogram that are read.
const BUCKETS_MAX: usize = 10_000;

/// Result of one run. An absent value is one that the archive does not have.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Point {
    /// Start, seconds since 1970.
    pub at: i64,
    /// Leading value: rate in bit/s, smallest round trip or median one-way delay in seconds.
    pub value: Option<f64>,
    /// Segments sent again.
    pub resent: Option<u64>,
    /// Part of the packets that is lost.
    pub loss: Option<f64>,
    /// Addresses of the routers, in order; those without a reply are left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hops: Vec<String>,
    /// Reason for which the run has no result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// Results of one test between two hosts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct History {
    /// Type of the test.
    pub test: TestKind,
    /// Number of results that the archive has for the question.
    pub total: u64,
    /// Results that were read, the oldest first.
    pub points: Vec<Point>,
    /// Largest change of the leading value.
    pub change: Option<Change>,
}

/// Change of a value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Change {
    /// First result after the change, seconds since 1970.
    pub at: i64,
    /// Median before.
    pub before: f64,
    /// Median after.
    pub after: f64,
}

impl TestKind {
    /// Returns the fields of OpenSearch that a history needs. Source: pipeline of `perfsonar/logstash`.
    pub fn fields(self) -> &'static [&'static str] {
        match self {
            Self::Throughput => &[
                "pscheduler.start_time",
                "result.succeeded",
                "result.error",
                "result.throughput",
                "result.retransmits",
                "result.packets_sent",
                "result.packets_lost",
            ],
            Self::Rtt => {
                &["pscheduler.start_time", "result.succeeded", "result.error", "result.rtt.min", "result.packets.loss"]
            }
            Self::Latency => &[
                "pscheduler.start_time",
                "result.succeeded",
                "result.error",
                "result.latency.median",
                "result.packets.loss",
                "test.spec.bucket-width",
            ],
            Self::Trace => &["pscheduler.start_time", "result.succeeded", "result.error", "result.hop.ip"],
        }
    }

    /// Returns the types of events of esmond, the leading one first.
    pub fn events(self) -> &'static [&'static str] {
        match self {
            Self::Throughput => &["throughput", "packet-retransmits"],
            Self::Rtt => &["histogram-rtt", "packet-loss-rate-bidir"],
            Self::Latency => &["histogram-owdelay", "packet-loss-rate"],
            Self::Trace => &["packet-trace"],
        }
    }
}

impl History {
    /// Reads the reply of an archive. Results without a time are left out.
    pub fn new(test: TestKind, reply: &ArchiveReply) -> Self {
        let (mut points, total) = match reply {
            ArchiveReply::OpenSearch { documents, total } => {
                (documents.iter().filter_map(|document| Point::of_document(test, document)).collect(), *total)
            }
            ArchiveReply::Esmond(series) => {
                let points = of_esmond(test, series);
                let total = points.len() as u64;
                (points, total)
            }
        };
        points.sort_by_key(|point: &Point| point.at);
        let change = change(&points);
        Self { test, total, points, change }
    }

    /// Returns the lines for people.
    pub fn lines(&self, source: &str, dest: &str) -> Vec<String> {
        let name = self.test.name();
        let (Some(first), Some(last)) = (self.points.first(), self.points.last()) else {
            return vec![format!("{source} to {dest}: the archive has no {name} results of that time")];
        };
        let count = self.points.len();
        let results = if count == 1 { "result" } else { "results" };
        let mut lines =
            vec![format!("{source} to {dest}: {count} {name} {results}, {} to {}", date(first.at), date(last.at))];
        if self.total > count as u64 {
            lines.push(format!("  (of {}: the oldest; give a shorter --since for the latest)", self.total));
        }
        let failed: Vec<&Point> = self.points.iter().filter(|point| point.failed.is_some()).collect();
        if let Some(reason) = failed.last().and_then(|point| point.failed.as_ref()) {
            let reason = reason.lines().next().unwrap_or_default();
            lines.push(format!("  failed       {} of {count}, the last one: {reason}", failed.len()));
        }
        lines.extend(match self.test {
            TestKind::Trace => self.path_lines(),
            _ => self.value_lines(),
        });
        lines
    }

    fn value_lines(&self) -> Vec<String> {
        let (label, show): (&str, fn(f64) -> String) = match self.test {
            TestKind::Throughput => ("rate", |bps| rate(bps).to_string()),
            TestKind::Rtt => ("round trip", millis),
            _ => ("one way", millis),
        };
        let mut values: Vec<f64> = self.points.iter().filter_map(|point| point.value).collect();
        let latest = values.last().copied();
        values.sort_by(f64::total_cmp);
        let at = |part: f64| values.get(((values.len() - 1) as f64 * part).round() as usize).copied().unwrap_or(0.0);
        let mut lines = Vec::new();
        if let Some(latest) = latest {
            let (low, middle, high) = (show(at(0.05)), show(at(0.5)), show(at(0.95)));
            lines.push(format!("  {label:<12} {middle} median, {low} to {high} for 90 %, latest {}", show(latest)));
        }
        let mut resent: Vec<u64> = self.points.iter().filter_map(|point| point.resent).collect();
        resent.sort_unstable();
        if let Some(most) = resent.last() {
            lines.push(format!("  sent again   {} segments median, {most} at most", resent[resent.len() / 2]));
        }
        let losses: Vec<f64> = self.points.iter().filter_map(|point| point.loss).collect();
        if !losses.is_empty() {
            let with = losses.iter().filter(|loss| **loss > 0.0).count();
            let worst = losses.iter().copied().fold(0.0, f64::max);
            lines.push(format!("  loss         in {with} of {} results, {} at most", losses.len(), percent(worst)));
        }
        if let Some(Change { at, before, after }) = self.change {
            let verb = if after > before { "rose" } else { "fell" };
            lines.push(format!(
                "  change       the median {verb} from {} to {} at {}",
                show(before),
                show(after),
                date(at)
            ));
        }
        lines
    }

    fn path_lines(&self) -> Vec<String> {
        let traces: Vec<&Point> = self.points.iter().filter(|point| !point.hops.is_empty()).collect();
        let Some(last) = traces.last() else { return Vec::new() };
        let mut paths: Vec<&[String]> = traces.iter().map(|point| &point.hops[..]).collect();
        let changes = traces.windows(2).filter(|pair| pair[0].hops != pair[1].hops).map(|pair| pair[1].at);
        let changes: Vec<i64> = changes.collect();
        paths.sort_unstable();
        paths.dedup();
        let mut lines = vec![format!("  paths        {}, {} changes", paths.len(), changes.len())];
        if let Some(latest) = changes.last() {
            lines.push(format!("  change       the latest one at {}", date(*latest)));
        }
        lines.push(format!("  latest path  {}", last.hops.join(" ")));
        lines
    }
}

impl Point {
    fn of_document(test: TestKind, document: &Value) -> Option<Self> {
        let member = |path: &str| path.split('.').try_fold(document, |value, name| value.get(name));
        let start = member("pscheduler.start_time")?.as_str()?;
        let at = OffsetDateTime::parse(start, &Rfc3339).ok()?.unix_timestamp();
        let result = member("result")?;
        let failed = (result.get("succeeded") == Some(&Value::Bool(false)))
            .then(|| text(result, "error").unwrap_or_else(|| "no reason is reported".to_owned()));
        let part = |name: &str| number(result.get("packets")?, name).map(|loss| loss.min(1.0));
        let mut point = Self { at, failed, ..Self::default() };
        match test {
            TestKind::Throughput => {
                point.value = number(result, "throughput");
                point.resent = count(result, "retransmits");
                let datagrams = count(result, "packets_sent").zip(count(result, "packets_lost"));
                point.loss = datagrams.map(|(sent, lost)| (lost as f64 / sent.max(1) as f64).min(1.0));
            }
            TestKind::Rtt => {
                // The pipeline has turned the duration into seconds.
                point.value = result.get("rtt").and_then(|rtt| number(rtt, "min"));
                point.loss = part("loss");
            }
            TestKind::Latency => {
                let width = member("test.spec").and_then(|spec| number(spec, "bucket-width")).unwrap_or(1e-3);
                let median = result.get("latency").and_then(|latency| number(latency, "median"));
                point.value = median.map(|buckets| buckets * width);
                point.loss = part("loss");
            }
            TestKind::Trace => {
                let hop = result.get("hop");
                let hops = hop.into_iter().flat_map(|hop| list(hop, "ip")).take(HOPS_MAX);
                point.hops = hops.filter_map(|ip| Some(ip.as_str()?.chars().take(64).collect())).collect();
            }
        }
        Some(point)
    }
}

/// Returns the results of esmond: the leading values, with the others of the same time.
fn of_esmond(test: TestKind, series: &[EsmondSeries]) -> Vec<Point> {
    let [leading, others @ ..] = test.events() else { return Vec::new() };
    let mut points = Vec::new();
    for own in series.iter().filter(|series| series.event == *leading) {
        let beside = series
            .iter()
            .find(|other| other.measurement == own.measurement && others.iter().any(|event| *event == other.event));
        let mut second: std::collections::BTreeMap<i64, f64> = std::collections::BTreeMap::new();
        for value in beside.iter().flat_map(|series| &series.values) {
            if let Some((at, value)) = at_of(value).zip(number(value, "val")) {
                second.insert(at, value);
            }
        }
        for value in &own.values {
            let Some(at) = at_of(value) else { continue };
            let mut point = Point { at, ..Point::default() };
            match test {
                TestKind::Throughput => {
                    point.value = number(value, "val");
                    point.resent = second.get(&at).map(|count| *count as u64);
                }
                TestKind::Rtt => point.value = quantile_ms(value, 0.0).map(|millis| millis / 1e3),
                TestKind::Latency => point.value = quantile_ms(value, 0.5).map(|millis| millis / 1e3),
                TestKind::Trace => {
                    let hops = list(value, "val").filter(|hop| hop.get("query").is_none_or(|query| query == 1));
                    point.hops = hops.take(HOPS_MAX).filter_map(|hop| Hop::read(hop).ip).collect();
                }
            }
            if test != TestKind::Throughput {
                point.loss = second.get(&at).map(|loss| loss.min(1.0));
            }
            points.push(point);
        }
    }
    points
}

fn at_of(value: &Value) -> Option<i64> {
    // Up to the year 9999.
    count(value, "ts").filter(|at| *at < 253_402_300_800).and_then(|at| i64::try_from(at).ok())
}

/// Returns a quantile of a histogram of esmond, whose names are milliseconds.
fn quantile_ms(value: &Value, part: f64) -> Option<f64> {
    let members = value.get("val")?.as_object()?.iter().take(BUCKETS_MAX);
    let mut buckets: Vec<(f64, u64)> =
        members.filter_map(|(name, count)| Some((name.parse::<f64>().ok()?, count.as_u64()?))).collect();
    buckets.retain(|(millis, count)| millis.is_finite() && *count > 0);
    buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    super::result::quantile(&buckets, part)
}

/// Returns the largest change of the leading value: the split with the largest sum of deviations (CUSUM), if the values
/// before and after it are apart.
fn change(points: &[Point]) -> Option<Change> {
    let values: Vec<(i64, f64)> = points.iter().filter_map(|point| Some((point.at, point.value?))).collect();
    let mean = values.iter().map(|(_, value)| value).sum::<f64>() / values.len().max(1) as f64;
    let mut sum = 0.0;
    let deviations = values.iter().map(|(_, value)| {
        sum += value - mean;
        f64::abs(sum)
    });
    let (last, _) = deviations.enumerate().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let (before, after) = values.split_at(last + 1);
    if before.len() < SIDE_MIN || after.len() < SIDE_MIN {
        return None;
    }
    let middle = |side: &[(i64, f64)]| crate::view::median(side.iter().map(|(_, value)| *value).collect());
    let (old, new) = (middle(before), middle(after));
    let (low, high) = (old.min(new), old.max(new));
    let half = f64::midpoint(low, high);
    let own_side = before.iter().filter(|(_, value)| (*value > half) == (old > new)).count()
        + after.iter().filter(|(_, value)| (*value > half) == (new > old)).count();
    let is_apart = own_side as f64 >= values.len() as f64 * SEPARATED;
    let change = Change { at: after.first()?.0, before: old, after: new };
    (low > 0.0 && high >= low * CHANGE_MIN && is_apart).then_some(change)
}

/// Returns a time for people, UTC.
fn date(at: i64) -> String {
    let time = OffsetDateTime::from_unix_timestamp(at).ok();
    time.and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_else(|| at.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn points(values: &[f64]) -> Vec<Point> {
        let point = |(index, value): (usize, &f64)| Point {
            at: 1_700_000_000 + index as i64 * 3600,
            value: Some(*value),
            ..Point::default()
        };
        values.iter().enumerate().map(point).collect()
    }

    #[test]
    fn a_change_is_a_step_and_neither_noise_nor_one_bad_result() {
        let step = [[9.0; 12].as_slice(), &[5.0; 9]].concat();
        let found = change(&points(&step)).unwrap();
        assert_eq!((found.before, found.after, found.at), (9.0, 5.0, 1_700_000_000 + 12 * 3600));
        let noise: Vec<f64> = (0..40).map(|index| if index % 2 == 0 { 9.0 } else { 5.0 }).collect();
        assert_eq!(change(&points(&noise)), None);
        let one_bad = [[9.0; 12].as_slice(), &[1.0], &[9.0; 12]].concat();
        assert_eq!(change(&points(&one_bad)), None);
        let small = [[9.0; 12].as_slice(), &[8.5; 12]].concat();
        assert_eq!(change(&points(&small)), None);
        assert_eq!(change(&[]), None);
    }

    #[test]
    fn values_of_esmond_are_joined_by_measurement_and_time() {
        let series = |measurement, event: &str, values: Value| EsmondSeries {
            measurement,
            event: event.to_owned(),
            values: values.as_array().unwrap().clone(),
        };
        let reply = ArchiveReply::Esmond(vec![
            series(0, "packet-retransmits", json!([{"ts": 20, "val": 7}])),
            series(0, "throughput", json!([{"ts": 20, "val": 9e9}, {"ts": 10, "val": 8e9}, {"ts": "x", "val": 1}])),
            series(1, "throughput", json!([{"ts": 15, "val": "fast"}])),
        ]);
        let history = History::new(TestKind::Throughput, &reply);
        let seen: Vec<_> = history.points.iter().map(|point| (point.at, point.value, point.resent)).collect();
        assert_eq!(seen, [(10, Some(8e9), None), (15, None, None), (20, Some(9e9), Some(7))]);
        let delays = json!([{"ts": 5, "val": {"10.5": 90, "12.0": 10, "x": 3}}]);
        let history =
            History::new(TestKind::Latency, &ArchiveReply::Esmond(vec![series(0, "histogram-owdelay", delays)]));
        assert_eq!(history.points[0].value, Some(0.0105));
    }

    #[test]
    fn an_archive_without_results_says_so() {
        let reply = ArchiveReply::OpenSearch { documents: vec![json!({"result": {}})], total: 0 };
        let lines = History::new(TestKind::Rtt, &reply).lines("a", "b");
        assert_eq!(lines, ["a to b: the archive has no rtt results of that time"]);
    }
}
