//! Hosts: their processors, and the rate that the user has given.

use super::finding::{FULL, Finding, percent, shown, time};
use crate::facts::Facts;
use crate::verdict::Cause;
use crate::view::FlowView;

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
    let given = facts.rate_cap_bps();
    let carried = facts.ceiling.is_some_and(|ceiling| !ceiling.is_reached()) && base.rate_bps > given * 0.85;
    if carried {
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

fn cpu(facts: &Facts<'_>, base: &FlowView) -> Option<Finding> {
    let processors = |count: u32| f64::from(count.max(1));
    let (sender, receiver) = (facts.sender(), facts.receiver());
    let is_starved = |host: f64, count: u32, late: f64| host >= processors(count) * BUSY && late > 0.05 || late >= LATE;
    let (at_sender, at_receiver) = (
        is_starved(base.sender.host, sender.processors, base.sender.late),
        is_starved(base.receiver.host, receiver.processors, base.receiver.late),
    );
    if !at_sender && !at_receiver {
        return None;
    }
    let path = facts.path_bps().unwrap_or(f64::INFINITY);
    let (place, busy, late) = if at_receiver && base.receiver.late > base.sender.late || !at_sender {
        ("receiver", base.receiver.host, base.receiver.late)
    } else {
        ("sender", base.sender.host, base.sender.late)
    };
    let remedy = format!("end other programs at the {place}, raise its quota, or give it more processors");
    let finding = Finding::new(Cause::Cpu, remedy).sure(0.7).because(format!(
        "the {place} had no processor time when it was due in {} of the samples (longest pause {}); its host used {busy:.1} \
         processors",
        percent(late),
        time(base.pause_s)
    ));
    Some(finding.limits_to(base.rate_bps, base.rate_bps < path * FULL))
}
