//! Rules: from facts to verdicts. Pure: the same evidence gives the same verdicts.
//!
//! Each rule looks for one kind of limit in one direction and returns findings. A finding binds if it explains the rate
//! of the baseline; others would bind at a higher rate, or are trouble without an effect on this connection. The order
//! of the rates is the ladder, and the rate of the next step is the prediction for a fix.

mod finding;
mod hosts;
mod losses;
mod path;
mod windows;

use self::finding::{Finding, shown};
use crate::evidence::{Direction, Evidence};
use crate::facts::Facts;
use crate::verdict::{Cause, Step, Verdict};

/// Result of the rules.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Diagnosis {
    /// Verdicts, the most binding one first.
    pub verdicts: Vec<Verdict>,
    /// Limits and their rates, by direction, the lowest first.
    pub ladder: Vec<Step>,
}

/// Returns the verdicts on both directions.
pub fn diagnose(evidence: &Evidence) -> Diagnosis {
    let mut diagnosis = Diagnosis::default();
    let mut all = Vec::new();
    for direction in Direction::ALL {
        let facts = Facts::new(evidence, direction);
        if facts.base.is_none() {
            continue;
        }
        let findings = of_direction(&facts);
        diagnosis.ladder.extend(ladder(&facts, &findings));
        all.extend(verdicts(&facts, findings));
    }
    // One thing that holds for both directions is one verdict: that of the direction with the first verdict.
    all.sort_by(|a: &Verdict, b| rank(b).total_cmp(&rank(a)));
    let first = all.first().map(|verdict| verdict.direction);
    all.sort_by(|a, b| {
        rank(b).total_cmp(&rank(a)).then((first != Some(a.direction)).cmp(&(first != Some(b.direction))))
    });
    let mut seen: Vec<Cause> = Vec::new();
    all.retain(|verdict| {
        let is_shared = verdict.limit.is_of_both() && verdict.limits_to_bps.is_none();
        let is_new = !is_shared || !seen.contains(&verdict.limit);
        seen.push(verdict.limit);
        is_new
    });
    let troubled: Vec<Direction> =
        all.iter().filter(|verdict| verdict.limit != Cause::Clean).map(|verdict| verdict.direction).collect();
    all.retain(|verdict| verdict.limit != Cause::Clean || !troubled.contains(&verdict.direction));
    diagnosis.verdicts = all;
    diagnosis
}

/// Returns the order of a verdict: what takes most comes first, then what is found by exclusion, then trouble without
/// effect, then a clean path.
fn rank(verdict: &Verdict) -> f64 {
    let base = match (verdict.limit, verdict.limits_to_bps) {
        (Cause::Clean, _) => 0.0,
        (_, None) => 1.0,
        (Cause::SlowRamp, Some(_)) => 2.0,
        (_, Some(_)) => 3.0,
    };
    base + verdict.share * 0.99
}

/// Returns the findings in one direction, the binding one first.
fn of_direction(facts: &Facts<'_>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    findings.extend(windows::find(facts));
    let hosts = hosts::find(facts);
    findings.extend(losses::find(facts, hosts.iter().any(|finding| finding.cause == Cause::Cpu)));
    findings.extend(hosts);
    let has_cause = findings.iter().any(|finding| finding.binds || finding.cause == Cause::Congestion);
    findings.extend(path::find(facts, has_cause));
    if let Some(ramp) = windows::slow_ramp(facts, &findings) {
        findings.push(ramp);
    }
    let rate = facts.base.as_ref().map_or(0.0, |base| base.rate_bps);
    let has_binding = findings.iter().any(|finding| finding.binds);
    if !has_binding && facts.path_bps().is_some() && !facts.fills_path() {
        // Something holds the connection that no rule names: the model says which limit is nearest.
        let nearest = findings
            .iter_mut()
            .filter(|finding| finding.limits_to.is_some_and(|limit| limit < rate * NEAR))
            .min_by(|a, b| a.limits_to.unwrap_or(0.0).total_cmp(&b.limits_to.unwrap_or(0.0)));
        if let Some(nearest) = nearest {
            nearest.binds = true;
            nearest.confidence = nearest.confidence.min(0.5);
        }
    }
    findings.sort_by(|a, b| {
        let model = |finding: &Finding| finding.limits_to.unwrap_or(f64::INFINITY);
        // A binding limit above the rate counts as the rate.
        let key = |finding: &Finding| if finding.binds { model(finding).min(rate) } else { model(finding).max(rate) };
        (!a.binds).cmp(&!b.binds).then(key(a).total_cmp(&key(b)))
    });
    findings
}

/// Multiple of the rate up to which a limit is near.
const NEAR: f64 = 1.5;

/// Returns the limits in the order in which they bind.
fn ladder(facts: &Facts<'_>, findings: &[Finding]) -> Vec<Step> {
    let step = |limit, bps: f64| Step { limit, direction: facts.direction, rate_bps: bps as u64 };
    let rate = facts.base.as_ref().map_or(0.0, |base| base.rate_bps);
    let limits = findings.iter().filter(|finding| finding.detail.reached_bps.is_none() || finding.binds);
    let mut steps: Vec<Step> =
        limits.filter_map(|finding| finding.holds_to(rate).map(|bps| step(finding.cause, bps))).collect();
    steps.extend(windows::steps(facts, findings).into_iter().map(|(cause, bps)| step(cause, bps)));
    steps.push(step(Cause::Clean, facts.reachable_bps()));
    steps.sort_by_key(|step| step.rate_bps);
    let end = steps.iter().position(|step| step.limit == Cause::Clean).unwrap_or(steps.len());
    steps.truncate(end + 1);
    steps
}

fn verdicts(facts: &Facts<'_>, findings: Vec<Finding>) -> Vec<Verdict> {
    let rate = facts.base.as_ref().map_or(0.0, |base| base.rate_bps);
    let hidden = windows::steps(facts, &findings);
    let mut verdicts: Vec<Verdict> = Vec::new();
    for (index, finding) in findings.iter().enumerate() {
        let others = findings.iter().enumerate().filter(|(other, _)| *other != index);
        let others = others.filter_map(|(_, other)| other.allows(rate).filter(|_| other.cause != finding.cause));
        let next = others.chain(hidden.iter().filter(|(cause, _)| *cause != finding.cause).map(|(_, bps)| *bps));
        let next = next.fold(facts.reachable_bps(), f64::min);
        let reached = finding.detail.reached_bps.map_or(next, |reached| reached.min(next)).max(rate);
        let predicted = if finding.binds { reached } else { rate };
        let limit = finding.holds_to(rate).unwrap_or(rate);
        verdicts.push(Verdict {
            limit: finding.cause,
            direction: facts.direction,
            share: if finding.binds { (1.0 - limit / predicted.max(1.0)).clamp(0.0, 1.0) } else { 0.0 },
            confidence: finding.confidence,
            evidence: finding.evidence.clone(),
            remedy: finding.remedy.clone(),
            predicted_bps: predicted as u64,
            predicted_is_least: finding.binds && facts.path_bps().is_none() && predicted >= facts.reachable_bps(),
            limits_to_bps: finding.holds_to(rate).filter(|_| finding.binds).map(|bps| bps as u64),
            rate_bps: finding.detail.rate_bps.map(|bps| bps as u64),
            burst_bytes: finding.detail.burst_bytes.map(|bytes| bytes as u64),
            packets: finding.detail.packets,
            modes: finding.detail.modes.clone(),
        });
    }
    if verdicts.is_empty() {
        verdicts.push(clean(facts, rate));
    }
    verdicts
}

fn clean(facts: &Facts<'_>, rate: f64) -> Verdict {
    let path = match facts.path_bps() {
        Some(path) => format!("one connection carries {} of the {} of the path", shown(rate), shown(path)),
        None => {
            format!("one connection carries {}; the path carries {} and more", shown(rate), shown(facts.least_bps()))
        }
    };
    let filled = facts.fills_path();
    Verdict {
        limit: Cause::Clean,
        direction: facts.direction,
        share: 0.0,
        confidence: if filled { 0.95 } else { 0.4 },
        evidence: vec![path],
        remedy: match filled {
            true => "nothing: the path itself is the limit",
            false => "none is known: no experiment was faster than the path, or its limit has no name here",
        }
        .to_owned(),
        predicted_bps: rate as u64,
        predicted_is_least: false,
        limits_to_bps: None,
        rate_bps: facts.ceiling.map(|ceiling| ceiling.bps() as u64),
        burst_bytes: None,
        packets: None,
        modes: Vec::new(),
    }
}
