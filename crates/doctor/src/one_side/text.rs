//! Report of one side for people: the verdicts first, then what was seen, then the cost.

use sterna_net::measure::any_server::{Agreed, Hop, MtuReport};
use sterna_proto::file::plain;
use sterna_proto::{BitRate, ByteCount};

use super::download::DownloadView;
use super::report::OneSideReport;
use crate::evidence::Direction;
use crate::kernel;
use crate::report::text::with_evidence;
use crate::verdict::{Cause, Verdict};
use crate::words::{percent, time};

/// Returns the lines of a report.
pub fn lines(report: &OneSideReport) -> Vec<String> {
    let mut lines = vec![head(report)];
    lines.extend(report.redirected.iter().map(|to| format!("redirected to {to}")));
    if report.verdicts.is_empty() {
        lines.extend([String::new(), "no trouble found in what one side shows".to_owned()]);
    }
    for (index, verdict) in report.verdicts.iter().enumerate() {
        lines.push(String::new());
        lines.extend(of_verdict(index, verdict));
    }
    for direction in Direction::ALL {
        let steps: Vec<_> = report.ladder.iter().filter(|step| step.direction == direction).collect();
        if steps.is_empty() {
            continue;
        }
        let settings = "that windows and buffers set to one connection";
        lines.push(String::new());
        lines.push(format!("limits {settings}, {}:", words(direction)));
        lines.extend(steps.iter().map(|step| {
            let place = match (step.limit, direction) {
                (Cause::ReceiveBuffer, Direction::Forward) => " of the server, at most",
                (Cause::NoWindowScaling, _) => "",
                _ => " of this host",
            };
            format!("  {:<15} {}{place}", rate(step.rate_bps), step.limit.words())
        }));
    }
    lines.push(String::new());
    lines.extend(path(report));
    lines.extend(report.failed.iter().map(|why| format!("without a result: {why}")));
    lines.push("not visible from one side:".to_owned());
    lines.extend(report.not_visible.iter().map(|what| format!("  {what}")));
    lines.push(format!(
        "cost: {} connections, {} UDP packets, {} in {:.0} s",
        report.cost.connections,
        report.cost.packets,
        ByteCount(report.cost.bytes),
        report.cost.time_s
    ));
    // Errors and locations come from others.
    lines.into_iter().map(|line| plain(&line).into_owned()).collect()
}

fn head(report: &OneSideReport) -> String {
    let path = &report.path;
    let rtt = if path.rtt_s > 0.0 { time(path.rtt_s) } else { "an unknown time".to_owned() };
    let to = format!("over {rtt} to {}", path.address);
    if report.flows.is_empty() {
        return format!("{}: a TCP server, {to}, seen from one side", report.target);
    }
    let rates: Vec<String> =
        report.flows.iter().map(|flow| format!("{} with {}", rate(flow.measured_bps), count(flow.streams))).collect();
    format!("{}: {}, {to}, seen from one side", report.target, rates.join(", "))
}

fn count(streams: u32) -> String {
    if streams == 1 { "one connection".to_owned() } else { format!("{streams} connections") }
}

fn of_verdict(index: usize, verdict: &Verdict) -> Vec<String> {
    let direction = words(verdict.direction);
    if verdict.limit == Cause::Clean {
        let mut lines = vec![format!("{}. {direction}: no limit of one connection found", index + 1)];
        lines.extend(verdict.evidence.iter().map(|text| format!("   - {text}")));
        lines.push(format!("   {}", verdict.remedy));
        lines.push(format!("   confidence {:.0} % (inferred)", verdict.confidence * 100.0));
        return lines;
    }
    let gain = match verdict.limits_to_bps {
        Some(limit) if verdict.predicted_bps > limit => {
            format!(": holds one connection to {}; {} without it", rate(limit), rate(verdict.predicted_bps))
        }
        Some(limit) => format!(": holds one connection to {}", rate(limit)),
        None => ": effect on the rate not measured".to_owned(),
    };
    let mut lines = with_evidence(index, direction, verdict, &gain);
    // The last line is the confidence. One side proves nothing.
    if let Some(confidence) = lines.last_mut() {
        confidence.push_str(" (inferred)");
    }
    lines
}

fn path(report: &OneSideReport) -> Vec<String> {
    let path = &report.path;
    let mut lines = vec!["seen from this side:".to_owned()];
    let answered = format!("{} of {} answered", path.answered, path.connections);
    lines.push(format!("  {:<13} {answered}; {} SYN packets sent again", "connections", path.lost_syns));
    for count in &path.agreed {
        let agreed = &count.agreed;
        let of = if path.agreed.len() > 1 { format!(" ({} connections)", count.connections) } else { String::new() };
        lines.push(format!("  {:<13} {}{of}", "options", options(agreed)));
        lines.push(format!(
            "  {:<13} up to {} bytes to the server, {} bytes offered by this host",
            "segments", agreed.mss, agreed.own_mss
        ));
    }
    if path.agreed.len() > 1 {
        lines.push(format!("  {:<13} the options differ: several servers have the address", ""));
    }
    if !path.silent_ports.is_empty() {
        let ports: Vec<String> = path.silent_ports.iter().take(PORTS_SHOWN).map(u16::to_string).collect();
        lines.push(format!(
            "  {:<13} never from source ports {}: one of several routes may be broken",
            "answers",
            ports.join(", ")
        ));
    }
    lines.push(format!("  {:<13} {}", "hops", hops(report)));
    lines.extend(path.mtu.as_ref().map(|mtu| format!("  {:<13} {}", "packets", sizes(mtu))));
    lines.extend(report.flows.iter().map(flow));
    lines.extend(report.flows.iter().filter_map(|flow| Some(format!("  {:<13} {}", "", flow.failure.as_ref()?))));
    if !report.flows.is_empty() && !report.takes_ranges {
        lines.push(format!("  {:<13} the server sends no ranges: every connection gets the whole file", "file"));
    }
    if report.flows.iter().any(DownloadView::is_too_short) {
        lines.push(format!("  {:<13} too small for a rate: name one of some hundred megabytes", "file"));
    }
    if report.is_proxied {
        lines.push(format!(
            "  {:<13} downloads go through a proxy of the environment: their rates are of its path",
            "proxy"
        ));
    }
    lines
}

/// Ports of a line. Reason: one is enough for a test, and the JSON has all.
const PORTS_SHOWN: usize = 4;

fn options(agreed: &Agreed) -> String {
    let is_used = |is_used: bool| if is_used { "" } else { "no " };
    let scale = match agreed.window_scaling {
        true => format!(
            "window scale {} there (the larger of tcp_rmem max and rmem_max there is {}) and {} here",
            agreed.server_scale,
            kernel::setting_of_scale(agreed.server_scale),
            agreed.own_scale
        ),
        false => "no window scaling".to_owned(),
    };
    format!("{}SACK, {}timestamps, {scale}", is_used(agreed.sack), is_used(agreed.timestamps))
}

fn hops(report: &OneSideReport) -> String {
    let path = &report.path;
    if path.hops.is_empty() {
        return "none answers".to_owned();
    }
    let one = |hop: &Hop| match (hop.address, hop.rtt_us) {
        (Some(address), Some(rtt)) => format!("{} {address} ({})", hop.ttl, time(rtt as f64 / 1e6)),
        _ => format!("{} *", hop.ttl),
    };
    let hops: Vec<String> = path.hops.iter().map(one).collect();
    let end = if path.is_reached { "" } else { "; no answer beyond" };
    format!("{}{end}", hops.join(", "))
}

fn sizes(mtu: &MtuReport) -> String {
    let mut text = match mtu.passes {
        Some(bytes) => format!("up to {bytes} bytes pass to hop {}", mtu.hop),
        None => format!("hop {} stopped answering", mtu.hop),
    };
    for report in &mtu.reports {
        let by = report.router.map_or("this host".to_owned(), |router| router.to_string());
        text.push_str(&format!("; {by} reports an MTU of {} bytes", report.mtu));
    }
    if let Some(bytes) = mtu.vanishes {
        text.push_str(&format!("; {bytes} bytes vanish without a report"));
    }
    text
}

fn flow(flow: &DownloadView) -> String {
    let short = if flow.is_short { ", file ended and was read again" } else { "" };
    format!(
        "  {:<13} {}: {}, {} in {:.1} s; window here up to {}, full in {} of the time; {} of the segments out of \
         order{short}",
        "download",
        count(flow.streams),
        rate(flow.measured_bps),
        ByteCount(flow.received_bytes),
        flow.seconds,
        ByteCount(flow.window_bytes),
        percent(flow.window_share),
        percent(flow.out_of_order)
    )
}

fn words(direction: Direction) -> &'static str {
    match direction {
        Direction::Forward => "to the server",
        Direction::Reverse => "from the server",
    }
}

fn rate(bps: u64) -> String {
    BitRate(bps).to_string()
}
