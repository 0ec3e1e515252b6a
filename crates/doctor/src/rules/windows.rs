//! Windows and buffers: of the receiver, of the sender, and how fast they grow.

use sterna_net::measure::HostFacts;
use sterna_proto::ByteCount;

use super::finding::{FULL, Finding, percent, shown, time};
use crate::evidence::Purpose;
use crate::facts::Facts;
use crate::kernel::{self, KernelVersion};
use crate::response::{self, PathFacts};
use crate::verdict::Cause;
use crate::view::FlowView;

/// Share of the time in which a window is the limit.
const LIMITED: f64 = 0.25;

/// Part of a window that is in flight when it is the limit.
const IN_FLIGHT: f64 = 0.85;

/// Part of a full send buffer that is payload in flight. Source: `sterna_proto::limit`, less what waits unsent: with
/// bbr, 0.7 of the buffer was in flight in the lab.
const SENT: f64 = 0.65;

/// Part of the receive buffer with unread data that shows a slow reader.
const UNREAD: f64 = 0.3;

/// Returns the findings about windows.
pub(super) fn find(facts: &Facts<'_>) -> Vec<Finding> {
    let Some(base) = &facts.base else { return Vec::new() };
    if facts.path_bps().is_some_and(|path| base.rate_bps >= path * FULL) && base.window_scaling {
        return Vec::new();
    }
    let mut findings = Vec::new();
    if !base.window_scaling {
        findings.push(no_scaling(facts, base));
    } else if is_window_limited(base) && base.unread < UNREAD {
        findings.push(receive_buffer(facts, base));
    }
    if is_buffer_limited(base) {
        findings.push(send_buffer(facts, base));
    }
    findings
}

fn is_window_limited(base: &FlowView) -> bool {
    base.peer_window_share >= LIMITED || base.in_flight >= base.peer_window * IN_FLIGHT
}

fn is_buffer_limited(base: &FlowView) -> bool {
    // The second witness: the kernel counts the send buffer only when the program waits for it.
    let is_full = base.in_flight >= base.send_buffer as f64 * SENT && base.window > base.in_flight * 1.2;
    base.peer_window_share < 0.5 && (base.send_buffer_share >= LIMITED || is_full)
}

fn receive_buffer(facts: &Facts<'_>, base: &FlowView) -> Finding {
    let (rtt, most) = (facts.rtt_s, facts.least_bps());
    let kernel = version(facts.receiver());
    let window = most / 8.0 * rtt;
    let needed = kernel::buffer_for(ByteCount(window as u64), kernel).0 as f64 * 1.1;
    let remedy = format!(
        "at the receiver: sysctl -w net.ipv4.tcp_rmem='4096 131072 {:.0}' (a window of {} for {} over {}); until then, \
         several connections",
        needed,
        ByteCount(window as u64),
        shown(most),
        time(rtt),
    );
    let mut finding = Finding::new(Cause::ReceiveBuffer, remedy).limits_to(base.rate_bps, true).sure(0.75).because(format!(
        "the window of the receiver was the limit in {} of the time: {} in flight of a window of {}, which is {} of a \
         receive buffer of {}",
        percent(base.peer_window_share),
        ByteCount(base.in_flight as u64),
        ByteCount(base.peer_window as u64),
        percent(base.peer_window / (base.receive_buffer as f64).max(1.0)),
        ByteCount(base.receive_buffer),
    ));
    finding = finding.because(format!(
        "{} over {} is {}; the connection had {}",
        ByteCount(base.peer_window as u64),
        time(rtt),
        shown(base.peer_window * 8.0 / rtt),
        shown(base.rate_bps)
    ));
    prove(facts, base, finding, Purpose::HalfReceiveBuffer, "half the receive buffer")
}

fn send_buffer(facts: &Facts<'_>, base: &FlowView) -> Finding {
    let (rtt, most) = (facts.rtt_s, facts.least_bps());
    let needed = kernel::send_buffer_for(ByteCount((most / 8.0 * rtt) as u64)).0 * 2;
    let remedy = format!(
        "at the sender: sysctl -w net.ipv4.tcp_wmem='4096 16384 {needed}' (twice the data of {} over {}); until then, \
         several connections",
        shown(most),
        time(rtt)
    );
    let finding = Finding::new(Cause::SendBuffer, remedy).limits_to(base.rate_bps, true).sure(0.75).because(format!(
        "the send buffer was the limit in {} of the time: {} in flight of a buffer of {}, while the congestion window \
         was {} and the window of the receiver {}",
        percent(base.send_buffer_share),
        ByteCount(base.in_flight as u64),
        ByteCount(base.send_buffer),
        ByteCount(base.window as u64),
        ByteCount(base.peer_window as u64),
    ));
    prove(facts, base, finding, Purpose::HalfSendBuffer, "half the send buffer")
}

fn no_scaling(facts: &Facts<'_>, base: &FlowView) -> Finding {
    let off = |host: &HostFacts| Facts::setting(host, "ipv4.tcp_window_scaling") == [0];
    let place = match (off(facts.sender()), off(facts.receiver())) {
        (true, _) => "it is off at the sender: sysctl -w net.ipv4.tcp_window_scaling=1",
        (_, true) => "it is off at the receiver: sysctl -w net.ipv4.tcp_window_scaling=1",
        _ => {
            "both hosts offer it, so a device on the way removes it: ask the operators for firewalls that change TCP \
              options"
        }
    };
    let binds = is_window_limited(base);
    let mut finding = Finding::new(Cause::NoWindowScaling, place).sure(0.95).because(format!(
        "the connection has no window scaling: at most 65535 bytes in flight, which is {} over {}",
        shown(65535.0 * 8.0 / facts.rtt_s),
        time(facts.rtt_s)
    ));
    finding = if binds { finding.limits_to(base.rate_bps, true) } else { finding };
    finding
}

/// Adds what the experiments with other buffers show.
fn prove(facts: &Facts<'_>, base: &FlowView, mut finding: Finding, half: Purpose, words: &str) -> Finding {
    if let Some(less) = facts.flow(half) {
        let ratio = less.rate_bps / base.rate_bps.max(1.0);
        finding = finding.because(format!("with {words}: {}, {:.2} times the rate", shown(less.rate_bps), ratio));
        finding.confidence += if (0.35..0.7).contains(&ratio) { 0.12 } else { -0.25 };
    }
    if let Some(large) = facts.flow(Purpose::LargeBuffers) {
        let ratio = large.rate_bps / base.rate_bps.max(1.0);
        finding = finding.because(format!(
            "with buffers of {}: {}, {ratio:.2} times the rate",
            ByteCount(large.receive_buffer.max(large.send_buffer)),
            shown(large.rate_bps)
        ));
        finding.confidence += if ratio > 1.15 { 0.12 } else { -0.1 };
        // A window that the shift count of the receiver bounds is no measure of the path.
        if !is_window_limited(&large) && ratio > 1.15 {
            finding.detail.reached_bps = Some(large.rate_bps);
        }
    }
    finding.confidence = finding.confidence.clamp(0.1, 0.99);
    finding
}

/// Returns limits of buffers that do not bind yet: the ladder above the first step.
pub(super) fn steps(facts: &Facts<'_>, findings: &[Finding]) -> Vec<(Cause, f64)> {
    let Some(base) = &facts.base else { return Vec::new() };
    let has = |cause| findings.iter().any(|finding| finding.cause == cause);
    let mut steps = Vec::new();
    let ratio = match base.peer_window / (base.receive_buffer as f64).max(1.0) {
        measured if (0.3..1.0).contains(&measured) => measured,
        _ => 0.5,
    };
    if !has(Cause::ReceiveBuffer)
        && !has(Cause::NoWindowScaling)
        && let Some(most) = Facts::setting(facts.receiver(), "ipv4.tcp_rmem").get(2)
    {
        steps.push((Cause::ReceiveBuffer, *most as f64 * ratio * 8.0 / facts.rtt_s));
    }
    if !has(Cause::SendBuffer)
        && let Some(most) = Facts::setting(facts.sender(), "ipv4.tcp_wmem").get(2)
    {
        steps.push((Cause::SendBuffer, kernel::in_flight_of(ByteCount(*most)).0 as f64 * 8.0 / facts.rtt_s));
    }
    let rate = base.rate_bps;
    steps.into_iter().map(|(cause, bps)| (cause, bps.max(rate))).collect()
}

/// Returns the finding of a window that grows slowly: nothing else binds, and the rate still rises, or rose far later
/// than slow start needs.
pub(super) fn slow_ramp(facts: &Facts<'_>, findings: &[Finding]) -> Option<Finding> {
    let base = facts.base.as_ref()?;
    if findings.iter().any(|finding| finding.binds) {
        return None;
    }
    let path = facts.path_bps().unwrap_or_else(|| facts.least_bps());
    let window = ByteCount((path / 8.0 * facts.rtt_s) as u64);
    let model = PathFacts { rtt: std::time::Duration::from_secs_f64(facts.rtt_s), mss: base.mss.max(1), loss: 0.0 };
    let ideal = response::ramp(window, &model).as_secs_f64();
    let rises = base.rate_bps < path * FULL && base.growth > RISES && base.lost <= base.segments / 10_000;
    let late = base.ramp_s > ideal * SLOW_RAMP + SLOW_RAMP_S;
    if !rises && !late {
        return None;
    }
    let remedy = "use connections that stay open, or several at once; bbr at the sender; a receive buffer that starts \
                  larger (second value of net.ipv4.tcp_rmem)";
    let finding = Finding::new(Cause::SlowRamp, remedy).limits_to(base.rate_bps, true).sure(0.6);
    Some(finding.because(format!(
        "the rate reached {} of its steady value after {}, and slow start over {} needs {}; at the end it grew by {}",
        percent(0.8),
        time(base.ramp_s),
        time(facts.rtt_s),
        time(ideal),
        percent(base.growth - 1.0)
    )))
}

/// Growth of the rate from one quarter of a flow to the next that is a ramp.
const RISES: f64 = 1.15;

/// Multiple of the time of slow start that is a slow ramp.
const SLOW_RAMP: f64 = 2.5;

/// Time beyond it, seconds. Reason: the rates have a grain of 0.2 s.
const SLOW_RAMP_S: f64 = 1.0;

fn version(host: &HostFacts) -> KernelVersion {
    host.kernel.parse().unwrap_or(KernelVersion::new(6, 1))
}
