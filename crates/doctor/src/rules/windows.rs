//! Windows and buffers: of the receiver, of the sender, and how fast they grow.

use sterna_net::measure::HostFacts;
use sterna_proto::ByteCount;

use super::finding::{Finding, percent, shown, time};
use crate::evidence::Purpose;
use crate::facts::{FULL, Facts};
use crate::kernel::{self, KernelVersion};
use crate::response::{self, PathFacts};
use crate::verdict::Cause;
use crate::view::FlowView;

/// Returns the findings about windows.
pub(super) fn find(facts: &Facts<'_>) -> Vec<Finding> {
    let Some(base) = &facts.base else { return Vec::new() };
    if facts.fills_path() && base.window_scaling {
        return Vec::new();
    }
    let mut findings = Vec::new();
    if !base.window_scaling {
        findings.push(no_scaling(facts, base));
    } else if base.is_window_limited() && !base.has_unread() {
        findings.push(receive_buffer(facts, base));
    }
    if base.is_buffer_limited() {
        findings.push(send_buffer(facts, base));
    }
    findings
}

fn receive_buffer(facts: &Facts<'_>, base: &FlowView) -> Finding {
    let (rtt, most) = (facts.rtt_s, facts.least_bps());
    let kernel = version(facts.receiver());
    let window = most / 8.0 * rtt;
    let needed = kernel::buffer_for(ByteCount(window as u64), kernel).0 as f64 * 1.1;
    let remedy = format!(
        "at the receiver: {} (a window of {} for {} over {}); until then, several connections",
        kernel::receive_setting(ByteCount(needed as u64).min(kernel::BUFFER_MAX)),
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
    let needed = kernel::send_buffer_for(ByteCount((most / 8.0 * rtt) as u64)).0.saturating_mul(2);
    let remedy = format!(
        "at the sender: {} (twice the data of {} over {}); until then, several connections",
        kernel::send_setting(ByteCount(needed).min(kernel::BUFFER_MAX)),
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
    let binds = base.is_window_limited();
    let mut finding = Finding::new(Cause::NoWindowScaling, place).sure(0.95).because(format!(
        "the connection has no window scaling: at most 65535 bytes in flight, which is {} over {}",
        shown(65535.0 * 8.0 / facts.rtt_s),
        time(facts.rtt_s)
    ));
    finding = if binds { finding.limits_to(base.rate_bps, true) } else { finding };
    finding
}

/// Adds the results of the experiments with other buffers. Without a privilege, a host gives no more than its maximum
/// (`rmem_max`, `wmem_max`): such a result shows nothing about the path.
fn prove(facts: &Facts<'_>, base: &FlowView, mut finding: Finding, half: Purpose, words: &str) -> Finding {
    let is_receiver = half == Purpose::HalfReceiveBuffer;
    let buffer = |view: &FlowView| if is_receiver { view.receive_buffer } else { view.send_buffer } as f64;
    if let Some(less) = facts.flow(half) {
        if HALF.contains(&(buffer(&less) / buffer(base).max(1.0))) {
            let ratio = less.rate_bps / base.rate_bps.max(1.0);
            finding = finding.because(format!("with {words}: {}, {ratio:.2} times the rate", shown(less.rate_bps)));
            finding.confidence += if (0.35..0.7).contains(&ratio) { 0.12 } else { -0.25 };
        } else {
            finding = finding.because(refused(words, &less, is_receiver));
        }
    }
    if let Some(large) = facts.flow(Purpose::LargeBuffers) {
        let given = ByteCount(buffer(&large) as u64);
        if buffer(&large) < buffer(base) * LARGER {
            finding = finding.because(refused("a larger buffer", &large, is_receiver));
        } else {
            let ratio = large.rate_bps / base.rate_bps.max(1.0);
            let text = format!("with buffers of {given}: {}, {ratio:.2} times the rate", shown(large.rate_bps));
            finding = finding.because(text);
            finding.confidence += if ratio > GAINS { 0.12 } else { -0.1 };
            // A window that the shift count of the receiver bounds is no measure of the path, and a rate that still
            // grows is none either.
            if !large.is_window_limited() && ratio > GAINS && large.growth < RISES {
                finding.detail.reached_bps = Some(large.rate_bps);
            }
        }
    }
    finding.confidence = finding.confidence.clamp(0.1, 0.99);
    finding
}

/// Returns the sentence about a buffer that the host did not give.
fn refused(words: &str, flow: &FlowView, is_receiver: bool) -> String {
    let (end, buffer) = if is_receiver { ("receiver", flow.receive_buffer) } else { ("sender", flow.send_buffer) };
    format!("{words} was not tested: the {end} gives {} to a program without CAP_NET_ADMIN", ByteCount(buffer))
}

/// Buffer of the experiment with half of it, as part of the buffer of the baseline. Reason: the kernel rounds.
const HALF: std::ops::Range<f64> = 0.4..0.7;

/// Part of a send buffer that is in flight on average while it is the limit. Reason: a program that waits for space
/// goes on when a third of the buffer is free (`sk_stream_is_writeable` of Linux); in the lab it was 0.66 to 0.8.
const SENT_MEAN: f64 = 0.75;

/// Multiple of the buffer of the baseline from which a buffer is larger.
const LARGER: f64 = 1.2;

/// Multiple of the rate from which an experiment gains.
const GAINS: f64 = 1.15;

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
        steps.push((Cause::SendBuffer, *most as f64 * SENT_MEAN * 8.0 / facts.rtt_s));
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
    let path = facts.reachable_bps();
    let window = ByteCount((path / 8.0 * facts.rtt_s) as u64);
    let model = PathFacts { rtt: std::time::Duration::from_secs_f64(facts.rtt_s), mss: base.mss.max(1), loss: 0.0 };
    let ideal = response::ramp(window, &model).as_secs_f64();
    // The rate of the second half is the mean of its quarters.
    let at_end = base.rate_bps * 2.0 * base.growth / (1.0 + base.growth);
    let rises = at_end < path * FULL && base.growth > RISES && base.lost <= base.segments / 10_000;
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
