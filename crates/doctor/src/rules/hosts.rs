//! Hosts: their processors, and the rate that the user has given.

use sterna_net::measure::HostFacts;

use super::finding::{Finding, percent, shown, time};
use crate::facts::{FULL, Facts};
use crate::verdict::Cause;
use crate::view::{FlowView, Load};

/// Part of all processors of a host that are busy when they are the limit.
const BUSY: f64 = 0.95;

/// Part of late samples that shows a process without processor time.
const LATE: f64 = 0.3;

/// Returns the findings about hosts.
pub(super) fn find(facts: &Facts<'_>) -> Vec<Finding> {
    let Some(base) = &facts.base else { return Vec::new() };
    let mut findings = Vec::new();
    findings.extend(cpu(facts, base));
    findings.extend(disks(facts, base));
    let carries_more = facts.ceiling.is_some_and(|ceiling| !ceiling.is_reached());
    if let Some(given) = facts.rate_cap_bps().filter(|given| carries_more && base.rate_bps > given * FULL) {
        let finding = Finding::new(Cause::RateCap, "give a higher --max-rate").sure(0.95).because(format!(
            "one connection carries {}, and --max-rate is {}: the path would carry more",
            shown(base.rate_bps),
            shown(given)
        ));
        findings.push(finding.limits_to(base.rate_bps, true));
    }
    findings
}

/// Returns the findings about disks that are slower than one connection.
fn disks(facts: &Facts<'_>, base: &FlowView) -> Vec<Finding> {
    let read = facts.evidence.disk(facts.direction, true).map(|disk| (Cause::DiskRead, "reads", disk.read_bps));
    let write = facts.evidence.disk(facts.direction, false).map(|disk| (Cause::DiskWrite, "writes", disk.write_bps));
    let slow = [read, write].into_iter().flatten().filter(|(_, _, bps)| *bps > 0);
    slow.filter(|(_, _, bps)| (*bps as f64) < base.rate_bps * SLOW_DISK)
        .map(|(cause, verb, bps)| {
            let place = if cause == Cause::DiskRead { "sender" } else { "receiver" };
            let remedy = format!(
                "a faster disk at the {place}, or several disks; look for other programs that use it (iostat -x 1)"
            );
            let finding = Finding::new(cause, remedy).sure(0.85).because(format!(
                "the disk of the {place} {verb} {}, and one connection from memory to memory has {}",
                shown(bps as f64),
                shown(base.rate_bps)
            ));
            finding.limits_to(bps as f64, true)
        })
        .collect()
}

/// Part of the rate of a connection below which a disk is slower.
const SLOW_DISK: f64 = 0.95;

/// Returns the finding of a host whose process gets no processor, or whose thread has used one up.
fn cpu(facts: &Facts<'_>, base: &FlowView) -> Option<Finding> {
    if facts.fills_path() {
        return None;
    }
    let ends = [("sender", &base.sender, facts.sender()), ("receiver", &base.receiver, facts.receiver())];
    let shortage = |load: &Load, host: &HostFacts| {
        let all = f64::from(host.processors.max(1));
        let is_starved = load.host >= all * BUSY && load.late > LATE_WHEN_BUSY || load.late >= LATE;
        // One connection has one thread at each end.
        is_starved || load.process >= BUSY
    };
    let short = ends.into_iter().filter(|(_, load, host)| shortage(load, host));
    let (place, load, _) = short.max_by(|a, b| (a.1.late + a.1.process).total_cmp(&(b.1.late + b.1.process)))?;
    let remedy = format!(
        "end other programs at the {place}, raise its quota, or give it more processors; several connections use several"
    );
    let finding = Finding::new(Cause::Cpu, remedy).sure(0.7).because(format!(
        "the {place} used {:.2} processors for one connection, its host {:.1}, and it had no processor when it was due in \
         {} of the samples (longest pause {})",
        load.process,
        load.host,
        percent(load.late),
        time(base.pause_s)
    ));
    Some(finding.limits_to(base.rate_bps, true))
}

/// Part of late samples that shows a process without processor time on a host that is busy.
const LATE_WHEN_BUSY: f64 = 0.05;
