//! Properties of the path: options of TCP, sizes of packets, order, and round trips by port.

use sterna_net::measure::HostFacts;

use super::finding::{Finding, percent, time};
use crate::evidence::Purpose;
use crate::facts::{Facts, LOST_MIN};
use crate::verdict::Cause;
use crate::view::FlowView;

/// Smallest part of reordered packets that is trouble.
pub(super) const REORDERED_MIN: f64 = 0.001;

/// Returns the findings about the path itself. `has_cause`: something was found that explains the rate.
pub(super) fn find(facts: &Facts<'_>, has_cause: bool) -> Vec<Finding> {
    let Some(base) = &facts.base else { return Vec::new() };
    let mut findings = Vec::new();
    if !base.sack {
        findings.push(no_sack(facts, base, has_cause));
    }
    if !base.timestamps {
        findings.push(option(
            facts,
            Cause::NoTimestamps,
            "ipv4.tcp_timestamps",
            "round trips are measured less often, and numbers may wrap at high rates",
        ));
    }
    findings.extend(reordering(facts, base));
    findings.extend(sizes(facts, base));
    findings.extend(modes(facts));
    findings
}

/// Returns the finding of a connection without selective acknowledgements. It explains the rate after losses that
/// nothing else explains, such as those at the end of slow start.
fn no_sack(facts: &Facts<'_>, base: &FlowView, has_cause: bool) -> Finding {
    let effect = "after a burst of losses, one loss a round trip is repaired";
    let finding = option(facts, Cause::NoSack, "ipv4.tcp_sack", effect);
    if base.lost < LOST_MIN {
        return finding;
    }
    let finding =
        finding.because(format!("the connection repaired {} losses so, over {}", base.lost, time(facts.rtt_s)));
    // Without the rate of the path, it may be full.
    let is_full = facts.path_bps().is_none() || facts.fills_path();
    match has_cause || is_full || base.is_held_by_hosts() {
        true => finding,
        false => finding.limits_to(base.rate_bps, true).sure(0.6),
    }
}

fn option(facts: &Facts<'_>, cause: Cause, setting: &str, effect: &str) -> Finding {
    let off = |host: &HostFacts| Facts::setting(host, setting) == [0];
    let place = match (off(facts.sender()), off(facts.receiver())) {
        (true, _) => format!("switch it on at the sender: sysctl -w net.{setting}=1"),
        (_, true) => format!("switch it on at the receiver: sysctl -w net.{setting}=1"),
        _ => "both hosts offer it, so a device on the way removes it: ask the operators for firewalls that change TCP \
              options"
            .to_owned(),
    };
    Finding::new(cause, place).sure(0.95).because(format!("the connection has {}: {effect}", cause.words()))
}

fn reordering(facts: &Facts<'_>, base: &FlowView) -> Option<Finding> {
    let (share, extent) = facts.reordered();
    if share < REORDERED_MIN {
        return None;
    }
    let remedy = "ask the operators for devices that spread the packets of one connection over several links; senders \
                  with RACK (Linux from 4.18) and sterna copy cope with it";
    let binds = facts.path_bps().is_some() && !facts.fills_path() && !base.is_held_by_hosts();
    let mut finding = Finding::new(Cause::Reordering, remedy).sure(0.9).because(format!(
        "{} of the packets of a port arrived after later ones, up to {} late; the connection saw {} events, and sent {} \
         segments again without need",
        percent(share),
        time(extent),
        base.reordered,
        base.spurious
    ));
    finding.detail.packets = Some(share);
    Some(if binds { finding.limits_to(base.rate_bps, true) } else { finding })
}

/// Returns the findings about sizes of packets.
fn sizes(facts: &Facts<'_>, base: &FlowView) -> Option<Finding> {
    let (_, train) = facts.evidence.train(Purpose::Sizes, facts.direction)?;
    let passed = train.sizes.iter().filter(|size| size.received > 0).map(|size| size.bytes).max()?;
    let lost = train.sizes.iter().filter(|size| size.bytes > passed && size.sent >= 3 && size.received == 0);
    let lost = lost.map(|size| size.bytes).min();
    let segment = facts.packet_bytes() as u32;
    match (lost, train.too_big_mtu) {
        (Some(lost), None) => {
            let remedy = "let ICMP \"fragmentation needed\" pass, or set the MTU of the hosts to what passes; until then: \
                          sysctl -w net.ipv4.tcp_mtu_probing=1 at both hosts";
            let finding = Finding::new(Cause::PmtuBlackHole, remedy).sure(0.95).because(format!(
                "packets of {passed} bytes pass, those of {lost} bytes vanish, and no device reports it (ICMP)"
            ));
            let stalls = segment > passed;
            Some(if stalls { finding.limits_to(base.rate_bps, true) } else { finding })
        }
        _ if segment + CLAMP_MIN <= passed.min(JUMBO_MIN) => {
            let remedy = "a device changes the segment size that the hosts agree on: raise or remove its MSS clamp";
            Some(Finding::new(Cause::MssClamped, remedy).sure(0.9).because(format!(
                "segments carry {} bytes, although packets of {passed} bytes pass: {} more would fit",
                base.mss,
                passed - segment
            )))
        }
        _ => None,
    }
}

/// Bytes that a segment can be smaller than the path without a clamp. Reason: options of TCP.
const CLAMP_MIN: u32 = 24;

/// Size above which a smaller segment is no clamp of a device. Reason: hosts of one path may have different MTUs.
const JUMBO_MIN: u32 = 1500;

/// Returns the finding of several round trips.
fn modes(facts: &Facts<'_>) -> Option<Finding> {
    let modes = facts.rtt_modes();
    let (first, last) = (modes.first()?, modes.last()?);
    if modes.len() < 2 {
        return None;
    }
    let remedy = format!(
        "ask the operators of the path for its equal-cost routes: {} of the ports take one that is {} longer",
        percent(last.share),
        time(last.rtt_s - first.rtt_s)
    );
    let words: Vec<String> =
        modes.iter().map(|mode| format!("{} on {} of the ports", time(mode.rtt_s), percent(mode.share))).collect();
    let mut finding = Finding::new(Cause::RttModes, remedy).sure(0.9).because(words.join(", "));
    finding.detail.modes = modes;
    Some(finding)
}
