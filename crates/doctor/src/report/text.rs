//! Report for people: the verdict first, then the ladder, then the evidence.

use sterna_proto::BitRate;
use sterna_proto::file::plain;

use super::{PathDirection, Report};
use crate::evidence::{Direction, Purpose};
use crate::verdict::{Cause, Verdict};
pub use crate::words::{percent, time};

/// Returns the lines of a report.
pub fn lines(report: &Report) -> Vec<String> {
    let mut lines = head(report);
    for (index, verdict) in report.verdicts.iter().enumerate() {
        lines.push(String::new());
        lines.extend(of_verdict(index, verdict));
    }
    for direction in Direction::ALL {
        let steps: Vec<_> = report.ladder.iter().filter(|step| step.direction == direction).collect();
        if steps.is_empty() {
            continue;
        }
        lines.push(String::new());
        lines.push(format!(
            "limits of one connection, {} (the next one binds when the one before is gone):",
            words(direction)
        ));
        for step in steps {
            let name = if step.limit == Cause::Clean { "the path" } else { step.limit.words() };
            lines.push(format!("  {:<15} {name}", rate(step.rate_bps)));
        }
    }
    lines.push(String::new());
    lines.extend(path(report));
    lines.extend(report.notes.iter().map(|line| format!("note: {line}")));
    // Releases of kernels and reasons of failures come from the peer.
    lines.into_iter().map(|line| plain(&line).into_owned()).collect()
}

/// Returns a direction in words.
pub fn words(direction: Direction) -> &'static str {
    match direction {
        Direction::Forward => "to the agent",
        Direction::Reverse => "from the agent",
    }
}

/// Returns a direction as the page names it: A is the host of the doctor, B that of the agent.
pub fn arrow(direction: Direction) -> &'static str {
    match direction {
        Direction::Forward => "A to B",
        Direction::Reverse => "B to A",
    }
}

/// Returns a purpose in words.
pub fn purpose(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Echoes => "round trips by port",
        Purpose::Sizes => "sizes of packets that pass",
        Purpose::Baseline => "one connection with the settings of the hosts",
        Purpose::HalfReceiveBuffer => "the same with half the receive buffer",
        Purpose::HalfSendBuffer => "the same with half the send buffer",
        Purpose::LargeBuffers => "the same with large buffers",
        Purpose::FourStreams => "four connections",
        Purpose::OtherControl => "the same with another congestion control",
        Purpose::Capacity => "rate that the path carries",
        Purpose::Overload => "behaviour above that rate",
        Purpose::SecondOverload => "behaviour above that rate, after a longer rest",
        Purpose::LowRate => "loss without load",
        Purpose::Paced => "one connection below the rate of the policer",
        Purpose::NearDisk => "disk of this host",
        Purpose::FarDisk => "disk of the agent",
    }
}

fn head(report: &Report) -> Vec<String> {
    let rtt = time(report.path.rtt_s);
    vec![format!(
        "{}: {} to the agent, {} from the agent, over {rtt}, one connection",
        report.target,
        rate(report.measured_bps),
        rate(report.reverse_measured_bps)
    )]
}

/// Smallest predicted gain that is shown as one. Reason: rates of two runs differ by as much.
pub(super) const GAIN_MIN: f64 = 1.05;

/// Returns the rate after the remedy, in words that follow the rate now; nothing if it is the same or not known.
pub(super) fn then(verdict: &Verdict) -> String {
    let Some(limit) = verdict.limits_to_bps else { return String::new() };
    let has_gain = verdict.predicted_bps as f64 >= limit as f64 * GAIN_MIN;
    let least = if verdict.predicted_is_least { " or more" } else { "" };
    match verdict.limit {
        _ if !has_gain => String::new(),
        Cause::Policer => format!("; {} if the sender is paced", rate(verdict.predicted_bps)),
        _ => format!("; {}{least} without it", rate(verdict.predicted_bps)),
    }
}

fn of_verdict(index: usize, verdict: &Verdict) -> Vec<String> {
    let direction = words(verdict.direction);
    if verdict.limit == Cause::Clean {
        let evidence = verdict.evidence.first().map_or("", String::as_str);
        return vec![format!("{}. {direction}: no trouble found", index + 1), format!("   {evidence}")];
    }
    let gain = match verdict.limits_to_bps {
        Some(limit) => format!(": holds it to {}{}", rate(limit), then(verdict)),
        None => ": does not limit this connection now".to_owned(),
    };
    with_evidence(index, direction, verdict, &gain)
}

/// Returns the lines of a verdict: what it is and what it costs (`gain`), its evidence, its fix, and how sure it is.
pub(crate) fn with_evidence(index: usize, direction: &str, verdict: &Verdict, gain: &str) -> Vec<String> {
    let mut lines = vec![format!("{}. {direction}: {}{gain}", index + 1, verdict.limit.words())];
    lines.extend(verdict.evidence.iter().map(|text| format!("   - {text}")));
    lines.push(format!("   fix: {}", verdict.remedy));
    lines.push(format!("   confidence {:.0} %", verdict.confidence * 100.0));
    lines
}

fn path(report: &Report) -> Vec<String> {
    let mut lines = vec![format!("path to {}:", report.path.address)];
    for direction in &report.path.directions {
        let capacity = format!("carries {}", carries(direction));
        let mtu = direction.mtu.map_or_else(String::new, |mtu| format!(", packets up to {mtu} bytes pass"));
        lines.push(format!(
            "  {:<15} {capacity}; {} of {} packets lost without load{mtu}, segments of {} bytes",
            words(direction.direction),
            (direction.loss * direction.loss_packets as f64).round(),
            direction.loss_packets,
            direction.mss
        ));
    }
    lines.push(format!(
        "cost: {} in {:.0} s; kernels {} here and {} there",
        sterna_proto::ByteCount(report.cost.bytes),
        report.cost.time_s,
        report.path.near_kernel,
        report.path.far_kernel
    ));
    let failed = report.cost.parts.iter().filter_map(|part| part.failed.as_ref().map(|reason| (part.purpose, reason)));
    lines.extend(failed.map(|(of, reason)| format!("without a result: {}: {reason}", purpose(of))));
    lines
}

/// Returns the rate that a path carries, or the largest rate that was seen to pass.
pub fn carries(path: &PathDirection) -> String {
    match path.capacity_bps {
        Some(bps) => rate(bps),
        None => format!("{} and more", rate(path.at_least_bps)),
    }
}

/// Returns a rate for people.
pub fn rate(bps: u64) -> String {
    BitRate(bps).to_string()
}
