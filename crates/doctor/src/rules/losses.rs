//! Losses: at random, above a rate, by other traffic; and the return direction.

use std::time::Duration;

use sterna_proto::ByteCount;

use super::finding::{Finding, flag, percent, shown, time};
use super::path::REORDERED_MIN;
use crate::ceiling::Ceiling;
use crate::evidence::Purpose;
use crate::facts::{FULL, Facts, LOST_MIN};
use crate::response::{self, Control, PathFacts};
use crate::verdict::Cause;
use crate::view::FlowView;

/// Smallest part of lost packets that is trouble. Reason: below it, CUBIC over 100 ms has more than 140 Mbit/s.
const LOSS_MIN: f64 = 5e-5;

/// Part of the losses of a connection that are left when pacing ends them.
const ENDED: f64 = 0.25;

/// Part of the rate of a policer from which it holds a connection. Reason: below it, something else may as well.
const NEAR_POLICER: f64 = 0.5;

/// Expected number of losses without load whose absence refutes random loss. Reason: by chance one time in 150.
const REFUTED: f64 = 5.0;

/// Returns the findings about losses. `is_starved`: a host has too little processor time.
pub(super) fn find(facts: &Facts<'_>, is_starved: bool) -> Vec<Finding> {
    let Some(base) = &facts.base else { return Vec::new() };
    let mut findings = Vec::new();
    findings.extend(at_ceiling(facts, base));
    findings.extend(ack_path(facts, base));
    let has_policer = findings.iter().any(|finding| finding.cause == Cause::Policer);
    let has_ack_path = findings.iter().any(|finding| finding.cause == Cause::AckPath && finding.binds);
    findings.extend(random(facts, base, has_policer, has_ack_path));
    // A host without processor time yields to its own programs, and must not blame the network for it.
    if findings.iter().all(|finding| !finding.binds) && !is_starved {
        findings.extend(congestion(facts, base));
    }
    findings
}

/// Returns the finding of a policer or a shaper.
fn at_ceiling(facts: &Facts<'_>, base: &FlowView) -> Option<Finding> {
    let path = facts.path_bps()?;
    match facts.ceiling? {
        // A policer has no queue.
        Ceiling::Policer { .. } if is_shared(facts, base) => None,
        Ceiling::Policer { bps, burst } => Some(policer(facts, base, bps, burst)),
        Ceiling::Shaper { bps, peak_bps, burst } => {
            let remedy = format!(
                "send at {} or below, so that no queue builds (sterna copy --rate {}); ask the operator whether the rate is \
                 intended",
                shown(bps),
                flag(bps * 0.97)
            );
            let mut finding = Finding::new(Cause::Shaper, remedy).sure(0.9).because(format!(
                "{} passed at {} without delay, then packets were delayed and left at {}, and none was dropped before \
                 the queue was full",
                ByteCount(burst as u64),
                shown(peak_bps),
                shown(bps)
            ));
            finding.detail.rate_bps = Some(bps);
            finding.detail.burst_bytes = Some(burst);
            Some(finding.limits_to(path, facts.fills_path()))
        }
        Ceiling::AtLeast(_) | Ceiling::Link { .. } => None,
    }
}

fn policer(facts: &Facts<'_>, base: &FlowView, bps: f64, burst: f64) -> Finding {
    let path = facts.payload(bps);
    let needed = bps / 8.0 * facts.rtt_s;
    let remedy = format!(
        "send at {} or below (sterna copy --rate {}), or ask the operator of the limiter for a burst of at least {} \
         (rate times round trip), or for another rate",
        shown(bps * 0.95),
        flag(bps * 0.95),
        ByteCount(needed as u64)
    );
    let mut finding = Finding::new(Cause::Policer, remedy).sure(0.85).because(format!(
        "UDP above the rate: {} passed, the rest was dropped without delay; the bytes that passed are those of a token \
         bucket of {} that fills at {}",
        shown(bps),
        ByteCount(burst as u64),
        shown(bps)
    ));
    let first = facts.evidence.train(Purpose::Overload, facts.direction);
    if facts.evidence.has(Purpose::SecondOverload, facts.direction)
        && let Some(Ceiling::Policer { burst: first, .. }) = first.and_then(|(spec, train)| Ceiling::of(spec, train))
    {
        let text = format!("after a longer rest, {} passed at once instead of", ByteCount(burst as u64));
        finding = finding.because(format!("{text} {}", ByteCount(first as u64)));
    }
    // Losses that pacing ends are those of the policer, and others are not.
    let paced = facts.flow(Purpose::Paced);
    let ends = paced.as_ref().map(|paced| paced.loss() < base.loss() * ENDED);
    let ends_losses = ends == Some(true) && paced.as_ref().is_some_and(|paced| paced.rate_bps > base.rate_bps);
    if let Some(paced) = &paced {
        finding = finding.because(format!(
            "one connection paced at 95 % of the rate: {}, {} of the packets lost",
            shown(paced.rate_bps),
            percent(paced.loss())
        ));
        finding.confidence = if ends == Some(true) || base.lost < LOST_MIN { 0.95 } else { 0.6 };
    }
    finding.detail.rate_bps = Some(bps);
    finding.detail.burst_bytes = Some(burst);
    // Whatever the congestion control makes of it: the policer is the ceiling, and a gain is what pacing gives.
    finding.detail.reached_bps = Some(path * 0.95);
    // Packets without load that all arrive leave the policer as the cause of losses, at any rate of the connection.
    let has_losses = base.lost >= LOST_MIN && ends != Some(false) && is_refuted(facts, base);
    let binds = base.rate_bps >= path * NEAR_POLICER || ends_losses || has_losses;
    finding.limits_to(path, binds && !base.is_held_by_hosts())
}

/// Returns the finding of losses that do not depend on the rate. `has_ack_path`: acknowledgements wait in a queue,
/// which is no queue of data.
fn random(facts: &Facts<'_>, base: &FlowView, has_policer: bool, has_ack_path: bool) -> Option<Finding> {
    let (lost, sent) = facts.lost_without_load();
    let share = lost as f64 / sent.max(1) as f64;
    let of_tcp = base.loss();
    // Losses in a queue of others are theirs.
    let is_shared = facts.is_queued() || yields(facts, base) && !has_ack_path;
    // A connection that should have lost far more refutes the losses of a moment.
    let is_moment = base.segments as f64 * share > REFUTED && (base.lost as f64) < base.segments as f64 * share * ENDED;
    let by_udp = lost >= LOST_MIN && share >= LOSS_MIN && !is_shared && !is_moment;
    // A connection that never fills the path and has no queue loses at random too.
    let path = facts.path_bps().unwrap_or(f64::INFINITY);
    let has_queue = base.queue_s() > (facts.rtt_s * 0.1).max(0.004) && !has_ack_path;
    let fills = base.rate_bps > path * 0.8 || has_queue;
    // Packets without load refute losses of TCP: it repeats those that were only late, or too large.
    let is_refuted = is_refuted(facts, base) || facts.reordered().0 >= REORDERED_MIN;
    let is_too_large = facts.mtu().is_some_and(|mtu| f64::from(mtu) < facts.packet_bytes());
    let by_tcp = !has_policer
        && !is_refuted
        && !is_too_large
        && !fills
        && base.lost.saturating_sub(base.lost_in_ramp) >= LOST_MIN
        && of_tcp >= LOSS_MIN
        && base.window < base.peer_window * 0.8;
    if !by_udp && !by_tcp {
        return None;
    }
    let loss = if by_udp { share } else { of_tcp };
    let control = if base.is_bbr() { Control::Bbr } else { Control::Cubic };
    let model = PathFacts { rtt: Duration::from_secs_f64(facts.rtt_s), mss: base.mss.max(1), loss };
    let limit = response::of_loss(control, &model, sterna_proto::BitRate(facts.least_bps() as u64));
    let remedy = "find the link that loses packets (optics, duplex, radio, a full counter of errors); until then, a \
                  sender that does not yield to loss: sterna copy, or bbr; several connections for others";
    let mut finding = Finding::new(Cause::RandomLoss, remedy).sure(0.7);
    if by_udp {
        finding = finding
            .because(format!("{lost} of {sent} packets ({}) were lost far below the rate of the path", percent(share)));
        finding.confidence = 0.9;
    }
    finding = finding.because(format!(
        "the connection lost {} of its segments with a queue of {}; {} has {} by its response function at this loss",
        percent(of_tcp),
        time(base.queue_s()),
        base.congestion,
        if limit.is_finite() { shown(limit) } else { "any rate".to_owned() }
    ));
    if let Some(other) = facts.flow(Purpose::OtherControl) {
        finding = finding.because(format!("the same with {}: {}", other.congestion, shown(other.rate_bps)));
    }
    finding.detail.packets = Some(loss);
    let binds = !facts.fills_path() && !base.is_held_by_hosts();
    Some(finding.limits_to(limit, binds && !has_policer))
}

/// Returns true if packets without load refute that the losses of the connection are random: all of them arrived.
fn is_refuted(facts: &Facts<'_>, base: &FlowView) -> bool {
    let (lost, sent) = facts.lost_without_load();
    lost == 0 && sent as f64 * base.loss() > REFUTED
}

/// Returns the finding of a return direction that is too slow for acknowledgements.
fn ack_path(facts: &Facts<'_>, base: &FlowView) -> Option<Finding> {
    let back = facts.return_ceiling.filter(|ceiling| ceiling.is_reached())?.bps();
    // Acknowledgements per segment that the receiver would send if they all passed.
    let ratio =
        (base.acks_sent as f64 / base.segments.max(1) as f64).clamp(0.02, 1.0) * facts.headers() / facts.packet_bytes();
    let limit = facts.payload(back / ratio);
    let top = facts.path_bps().unwrap_or_else(|| facts.least_bps());
    if limit > top * 1.2 {
        return None;
    }
    let queue = base.queue_s();
    // Near its limit, or with acknowledgements that were lost.
    let is_near = limit < top || base.ack_loss() > ACKS_LOST;
    let binds = is_near && !facts.fills_path() && !base.is_held_by_hosts();
    let remedy = format!(
        "ask for at least {} in the return direction, or for queues there that pass small packets first",
        shown(top * ratio)
    );
    let finding = Finding::new(Cause::AckPath, remedy).sure(0.85).because(format!(
        "the return direction carries {}, and the acknowledgements of {} need {}; {} of them were lost, and the round \
         trip grew by {}",
        shown(back),
        shown(top),
        shown(top * ratio),
        percent(base.ack_loss()),
        time(queue)
    ));
    Some(finding.limits_to(limit, binds))
}

/// Part of the acknowledgements whose loss shows that the return direction is full.
const ACKS_LOST: f64 = 0.02;

/// Returns the finding of traffic of others: the path carries more for packets that do not yield than for a connection
/// that does, and its queue is full nevertheless.
fn congestion(facts: &Facts<'_>, base: &FlowView) -> Option<Finding> {
    let top = facts.path_bps().unwrap_or_else(|| facts.least_bps());
    let standing = facts.standing_queue();
    let stood_here = standing.filter(|queue| queue.direction == facts.direction);
    // A connection whose acknowledgements wait in a queue of others has less, too.
    let is_other = standing.is_some() && stood_here.is_none() && !facts.is_delayed();
    let yields = match stood_here {
        Some(_) => base.rate_bps < facts.reachable_bps() * FULL && !base.is_held_by_hosts(),
        None => is_shared(facts, base) && !is_other,
    };
    if !yields && stood_here.is_none() && !facts.is_queued() {
        return None;
    }
    let remedy = "the path is shared: more rate needs a larger share (several connections), another time of day, or \
                  another path";
    // Without packet trains, the rate is that of the best experiment.
    let (what, sure) = match (facts.ceiling, yields) {
        (None, _) => ("the fastest experiment reaches", 0.5),
        (Some(_), true) => ("packets without congestion control reach", 0.8),
        (Some(_), false) => ("packets without congestion control reach", 0.6),
    };
    let turn = if yields { "it yields to others" } else { "others yield to it" };
    let mut finding = Finding::new(Cause::Congestion, remedy).sure(sure).because(format!(
        "{what} {}, one connection {}: {turn}; the queue was {} without our load, and {} with it",
        shown(top),
        shown(base.rate_bps),
        time(facts.queue_of_others_s()),
        time(base.queue_s())
    ));
    if let Some(queue) = stood_here {
        finding = finding.because(format!(
            "before the doctor sent anything, the smallest round trip was {} above {}: others filled a queue",
            time(queue.delay_s),
            time(facts.rtt_s)
        ));
    }
    Some(finding.limits_to(base.rate_bps, yields))
}

/// Returns true if a connection yields to others, and nothing else explains its rate.
fn is_shared(facts: &Facts<'_>, base: &FlowView) -> bool {
    // Without selective acknowledgements a connection is slow after losses in its own queue too.
    base.sack && yields(facts, base)
}

/// Returns true if a connection has lost packets in a queue, and the path carries more.
fn yields(facts: &Facts<'_>, base: &FlowView) -> bool {
    let top = facts.reachable_bps();
    let has_queue = base.queue_s() > (facts.rtt_s * 0.1).max(0.003);
    // A sender that fills the path with what it sends again has the queue for itself.
    base.rate_bps < top * FULL && base.sent_bps < top && has_queue && base.lost > 0 && !base.is_held_by_hosts()
}
