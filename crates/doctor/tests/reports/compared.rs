//! Comparisons of two examinations.

use sterna_doctor::evidence::{Direction, Evidence, Purpose};
use sterna_doctor::report::Report;
use sterna_doctor::report::compare::Comparison;
use sterna_doctor::verdict::Cause;

use super::examined::{Held, Records, about, flow, policed};

fn report(evidence: &Evidence, started: u64) -> Report {
    Report::new(evidence, &sterna_doctor::report::About { started, ..about() })
}

/// Compares two examinations that ran one after the other.
fn compared(before: &Evidence, after: &Evidence) -> Comparison {
    Comparison::new((&report(before, 1000), before), (&report(after, 2000), after))
}

/// Returns [`policed`] with a rate of this baseline in the return direction, whose window is large.
fn fixed(bps: u64) -> Evidence {
    let mut evidence = policed();
    let kept = evidence
        .records
        .iter()
        .filter(|record| record.direction == Direction::Forward || record.purpose == Purpose::Capacity);
    let mut records = Records(kept.cloned().collect());
    records.flow(Purpose::Baseline, Direction::Reverse, flow(bps, Held::Path));
    evidence.records = records.0;
    evidence.near.settings.insert("ipv4.tcp_rmem".to_owned(), "4096 131072 67108864".to_owned());
    evidence
}

#[test]
fn a_fix_takes_its_verdict_away_and_meets_the_prediction() {
    let before = report(&policed(), 1000);
    let predicted = before.verdicts.iter().find(|verdict| verdict.limit == Cause::ReceiveBuffer).unwrap().predicted_bps;
    let met = compared(&policed(), &fixed(predicted * 95 / 100));
    assert_eq!(met.gone.iter().map(|named| named.limit).collect::<Vec<_>>(), [Cause::ReceiveBuffer]);
    assert!(met.stayed.iter().any(|named| named.limit == Cause::Policer), "{met:?}");
    let check = &met.predictions[0];
    assert!(check.is_met && check.gone == [Cause::ReceiveBuffer] && (check.part - 0.95).abs() < 0.01, "{check:?}");
    assert_eq!(met.predictions.len(), 1, "the policer is still there");
    let lines = met.lines().join("\n");
    assert!(lines.contains("gone: receive buffer, B to A") && lines.contains("prediction met, B to A"), "{lines}");
    assert!(lines.contains("setting of A: ipv4.tcp_rmem: 4096 131072 33554432 → 4096 131072 67108864"), "{lines}");
    let missed = compared(&policed(), &fixed(predicted / 2));
    assert!(!missed.predictions[0].is_met);
    assert!(missed.lines().join("\n").contains("prediction not met"));
}

#[test]
fn the_way_back_brings_the_verdict_and_has_no_prediction() {
    let (before, after) = (policed(), fixed(200_000_000));
    let back = Comparison::new((&report(&after, 2000), &after), (&report(&before, 1000), &before));
    assert_eq!(back.came.iter().map(|named| named.limit).collect::<Vec<_>>(), [Cause::ReceiveBuffer]);
    assert!(back.predictions.is_empty());
    assert!(back.lines()[0].contains("the first report is later"), "{:?}", back.lines());
}

#[test]
fn an_examination_beside_itself_shows_no_change() {
    let (evidence, one) = (policed(), report(&policed(), 1000));
    let same = Comparison::new((&one, &evidence), (&one, &evidence));
    assert!(same.gone.is_empty() && same.came.is_empty() && same.predictions.is_empty() && same.differences.is_empty());
    assert!(same.lines().iter().all(|line| !line.contains('→')), "{:?}", same.lines());
}

#[test]
fn other_ends_are_named() {
    let (evidence, one) = (policed(), report(&policed(), 1000));
    let mut other = one.clone();
    other.path.address = "192.0.2.9:7373".to_owned();
    other.path.far_kernel = "5.4.0\u{1b}[2J".to_owned();
    let lines = Comparison::new((&one, &evidence), (&other, &evidence)).lines();
    assert!(lines[0].contains("the address of B differs: 192.0.2.7:7373 before, 192.0.2.9:7373 after"), "{lines:?}");
    assert!(lines[1].contains("the kernel of B") && !lines[1].contains('\u{1b}'), "{lines:?}");
}
