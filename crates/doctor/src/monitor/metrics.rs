//! State of monitored paths in the text format of Prometheus.
//!
//! Source: <https://prometheus.io/docs/instrumenting/exposition_formats/>, version 0.0.4. Names and labels are API.

use std::fmt::Write;

use super::series::Present;
use crate::evidence::Direction;

/// Content type of the format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Metrics of one name.
struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    samples: Vec<(Vec<(&'static str, String)>, f64)>,
}

/// Returns the metrics of paths, by the name of the peer.
pub fn text(paths: &[(String, Present)]) -> String {
    let mut text = String::new();
    for family in families(paths) {
        // Writing to a string succeeds always.
        let _ = writeln!(text, "# HELP {} {}\n# TYPE {} {}", family.name, family.help, family.name, family.kind);
        for (labels, value) in family.samples {
            let labels: Vec<String> =
                labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
            let _ = writeln!(text, "{}{{{}}} {value}", family.name, labels.join(","));
        }
    }
    text
}

/// Escapes the value of a label.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn families(paths: &[(String, Present)]) -> Vec<Family> {
    let mut families = states(paths);
    let total = |name, help, of: fn(&Present) -> u64| {
        let samples = paths.iter().map(|(peer, now)| (vec![("peer", peer.clone())], of(now) as f64)).collect();
        Family { name, kind: "counter", help, samples }
    };
    families.extend([
        total("sterna_path_rounds_total", "Rounds with measurements.", |now| now.counts.rounds),
        total("sterna_path_failures_total", "Rounds without measurements.", |now| now.counts.failures),
        total("sterna_path_tests_total", "Throughput tests, each direction by itself.", |now| now.counts.tests),
        total("sterna_path_bytes_total", "Bytes of all measurements.", |now| now.counts.bytes),
    ]);
    families
}

/// Returns the metrics that rise and fall.
fn states(paths: &[(String, Present)]) -> Vec<Family> {
    let gauge = |name, help| Family { name, kind: "gauge", help, samples: Vec::new() };
    let mut rtt =
        gauge("sterna_path_rtt_seconds", "Smallest round trip of the fastest, the median and the slowest port.");
    let mut hops = gauge("sterna_path_hops", "Routers that packets pass on the longest route.");
    let mut loss =
        gauge("sterna_path_loss_ratio", "Part of the packets that is lost without load, over the last rounds.");
    let mut rate = gauge("sterna_path_rate_bytes_per_second", "Payload rate of the last throughput test.");
    let mut limit = gauge("sterna_path_limit", "Limit of the last throughput test; rate_cap: its cap was reached.");
    let mut alarm = gauge("sterna_path_alarm", "Open alarms; limit is empty unless kind is limit.");
    let mut last = gauge("sterna_path_last_round_timestamp_seconds", "Time of the last round with measurements.");
    for (peer, now) in paths {
        let of = |labels: &[(&'static str, &str)]| -> Vec<(&'static str, String)> {
            let more = labels.iter().map(|(name, value)| (*name, (*value).to_owned()));
            std::iter::once(("peer", peer.clone())).chain(more).collect()
        };
        for (mode, value) in [("fastest", now.fastest_s), ("typical", now.typical_s), ("slowest", now.slowest_s)] {
            rtt.samples.extend(value.map(|value| (of(&[("mode", mode)]), value)));
        }
        for (index, direction) in Direction::ALL.into_iter().enumerate() {
            let way = ("direction", direction.name());
            hops.samples.extend(now.hops[index].map(|hops| (of(&[way]), f64::from(hops))));
            loss.samples.extend(now.loss[index].map(|loss| (of(&[way]), loss)));
            let Some(test) = &now.tests[index] else { continue };
            rate.samples.push((of(&[way]), test.rate_bps as f64 / 8.0));
            limit.samples.push((of(&[way, ("limit", &test.limit.name())]), 1.0));
        }
        for one in &now.alarms {
            let limit = one.limit().map_or_else(String::new, crate::verdict::Cause::name);
            let direction = one.direction().map_or("", Direction::name);
            alarm.samples.push((of(&[("kind", one.name()), ("direction", direction), ("limit", &limit)]), 1.0));
        }
        if now.counts.last > 0 {
            last.samples.push((of(&[]), now.counts.last as f64));
        }
    }
    vec![rtt, hops, loss, rate, limit, alarm, last]
}
