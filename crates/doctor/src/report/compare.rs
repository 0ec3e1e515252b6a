//! Comparison of two reports of a path: the effect of a fix, and whether the prediction of the first report was met.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use sterna_net::measure::HostFacts;

use super::{Report, text};
use crate::evidence::{Direction, Evidence};
use crate::verdict::{Cause, Verdict};

/// Deviation from a prediction up to which it was met. Reason: the bound that the doctor promises.
pub const MET_WITHIN: f64 = 0.15;

/// Change of a value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change<T> {
    /// In the first report.
    pub before: T,
    /// In the second one.
    pub after: T,
}

/// Verdict by its name and place.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Named {
    /// Limit.
    pub limit: Cause,
    /// Direction.
    pub direction: Direction,
    /// Rate to which it holds one connection; of the second report if both have it. Absent: it does not bind.
    pub limits_to_bps: Option<u64>,
}

/// Changes in one direction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DirectionChange {
    /// Direction.
    pub direction: Direction,
    /// Payload rate of one connection, bit/s.
    pub measured_bps: Change<u64>,
    /// Rate of whole packets that the path carries, bit/s; `None`: not reached.
    pub capacity_bps: Change<Option<u64>>,
    /// Part of the packets lost without load; `None`: not measured.
    pub loss: Change<Option<f64>>,
    /// Largest packet that passes, bytes; `None`: not measured.
    pub mtu: Change<Option<u32>>,
}

/// Prediction of the first report beside the rate of the second one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PredictionCheck {
    /// Direction.
    pub direction: Direction,
    /// Limits that are gone.
    pub gone: Vec<Cause>,
    /// Rate that the first report predicts without them, payload in bit/s.
    pub predicted_bps: u64,
    /// Rate of one connection in the second report.
    pub measured_bps: u64,
    /// Measured rate as a part of the predicted one.
    pub part: f64,
    /// The two differ by at most [`MET_WITHIN`].
    pub is_met: bool,
}

/// Setting of a host that differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SettingChange {
    /// Host: `A` is that of the doctor, `B` that of the agent.
    pub host: &'static str,
    /// Name, as in `/proc/sys/net`, with `.` for `/`.
    pub name: String,
    /// Values; empty if it was not read.
    pub value: Change<String>,
}

/// Comparison of two reports.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Starts, seconds since 1970.
    pub started: Change<u64>,
    /// Differences that are no effect of a fix: other ends, or another maximum of the rate.
    pub differences: Vec<String>,
    /// Settings of the hosts that differ.
    pub settings: Vec<SettingChange>,
    /// Directions.
    pub directions: Vec<DirectionChange>,
    /// Smallest round trip, seconds.
    pub rtt_s: Change<f64>,
    /// Smallest round trips of the groups of ports, seconds.
    pub rtt_modes_s: Change<Vec<f64>>,
    /// Verdicts of the first report only.
    pub gone: Vec<Named>,
    /// Verdicts of the second report only.
    pub came: Vec<Named>,
    /// Verdicts of both.
    pub stayed: Vec<Named>,
    /// Predictions of the first report that can be checked.
    pub predictions: Vec<PredictionCheck>,
}

impl Comparison {
    /// Compares two reports and their evidence, in the order of time.
    pub fn new((before, old): (&Report, &Evidence), (after, new): (&Report, &Evidence)) -> Self {
        let lacks = |report: &Report, verdict: &Verdict| !report.verdicts.iter().any(|other| is_same(verdict, other));
        let named = |verdicts: &[Verdict], keep: &dyn Fn(&Verdict) -> bool| -> Vec<Named> {
            verdicts.iter().filter(|v| v.limit != Cause::Clean && keep(v)).map(name).collect()
        };
        let modes = |report: &Report| report.path.rtt_modes.iter().map(|mode| mode.rtt_s).collect();
        let rtt_s = Change { before: before.path.rtt_s, after: after.path.rtt_s };
        Self {
            started: Change { before: before.started, after: after.started },
            differences: differences(before, after),
            settings: [settings("A", &old.near, &new.near), settings("B", &old.far, &new.far)].concat(),
            directions: Direction::ALL.into_iter().map(|direction| change(before, after, direction)).collect(),
            rtt_s,
            rtt_modes_s: Change { before: modes(before), after: modes(after) },
            gone: named(&before.verdicts, &|verdict| lacks(after, verdict)),
            came: named(&after.verdicts, &|verdict| lacks(before, verdict)),
            stayed: named(&after.verdicts, &|verdict| !lacks(before, verdict)),
            predictions: Direction::ALL.into_iter().filter_map(|direction| check(before, after, direction)).collect(),
        }
    }

    /// Returns the comparison in words.
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.differences.iter().map(|text| format!("note: {text}")).collect();
        lines.extend(self.settings.iter().map(|setting| {
            let Change { before, after } = &setting.value;
            format!("setting of {}: {}: {before} → {after}", setting.host, setting.name)
        }));
        for change in &self.directions {
            lines.extend(change.lines());
        }
        lines.push(format!("round trip: {}", pair(text::time(self.rtt_s.before), text::time(self.rtt_s.after))));
        let count = |modes: &[f64]| match modes {
            [] => "not measured".to_owned(),
            modes => modes.iter().map(|rtt| format!("{:.1} ms", rtt * 1e3)).collect::<Vec<_>>().join(" and "),
        };
        lines.push(format!(
            "round trips by port: {}",
            pair(count(&self.rtt_modes_s.before), count(&self.rtt_modes_s.after))
        ));
        for (word, verdicts) in [("gone", &self.gone), ("new", &self.came), ("still there", &self.stayed)] {
            lines.extend(verdicts.iter().map(|verdict| format!("{word}: {}", verdict.words())));
        }
        if self.gone.is_empty() && self.came.is_empty() && self.stayed.is_empty() {
            lines.push("verdicts: neither report names trouble".to_owned());
        }
        lines.extend(self.predictions.iter().map(PredictionCheck::words));
        lines.into_iter().map(|line| sterna_proto::file::plain(&line).into_owned()).collect()
    }
}

impl DirectionChange {
    fn lines(&self) -> Vec<String> {
        let name = text::arrow(self.direction);
        let (before, after) = (self.measured_bps.before, self.measured_bps.after);
        let factor = match before {
            0 => String::new(),
            before => format!(" ({:.2} times)", after as f64 / before as f64),
        };
        let or_none = |value: Option<String>| value.unwrap_or_else(|| "not measured".to_owned());
        let rate = |bps: Option<u64>| bps.map_or_else(|| "not reached".to_owned(), text::rate);
        let loss = |part: Option<f64>| or_none(part.map(text::percent));
        let mtu = |bytes: Option<u32>| or_none(bytes.map(|bytes| format!("{bytes} bytes")));
        vec![
            format!("{name}, one connection: {}{factor}", pair(text::rate(before), text::rate(after))),
            format!(
                "{name}, rate of the path: {}",
                pair(rate(self.capacity_bps.before), rate(self.capacity_bps.after))
            ),
            format!("{name}, loss without load: {}", pair(loss(self.loss.before), loss(self.loss.after))),
            format!("{name}, largest packet: {}", pair(mtu(self.mtu.before), mtu(self.mtu.after))),
        ]
    }
}

impl Named {
    fn words(&self) -> String {
        let held = match self.limits_to_bps {
            Some(bps) => format!(", held the connection to {}", text::rate(bps)),
            None => String::new(),
        };
        format!("{}, {}{held}", self.limit.words(), text::arrow(self.direction))
    }
}

impl PredictionCheck {
    fn words(&self) -> String {
        let causes: Vec<&str> = self.gone.iter().map(|cause| cause.words()).collect();
        let (met, name) = (if self.is_met { "met" } else { "not met" }, text::arrow(self.direction));
        format!(
            "prediction {met}, {name}: {} without {}, measured {} ({:.0} % of it)",
            text::rate(self.predicted_bps),
            causes.join(" and "),
            text::rate(self.measured_bps),
            self.part * 100.0
        )
    }
}

fn pair(before: String, after: String) -> String {
    if before == after { format!("{after}, as before") } else { format!("{before} → {after}") }
}

fn name(verdict: &Verdict) -> Named {
    Named { limit: verdict.limit, direction: verdict.direction, limits_to_bps: verdict.limits_to_bps }
}

fn is_same(one: &Verdict, other: &Verdict) -> bool {
    one.limit == other.limit && (one.direction == other.direction || one.limit.is_of_both())
}

/// Returns the differences of the two examinations themselves.
fn differences(before: &Report, after: &Report) -> Vec<String> {
    let mut texts = Vec::new();
    let mut differ = |what: &str, before: &str, after: &str| {
        if before != after {
            texts.push(format!("{what} differs: {before} before, {after} after"));
        }
    };
    differ("the address of B", &before.path.address, &after.path.address);
    differ("the kernel of A", &before.path.near_kernel, &after.path.near_kernel);
    differ("the kernel of B", &before.path.far_kernel, &after.path.far_kernel);
    let most = |report: &Report| report.rate_max_bps.map_or("none".to_owned(), text::rate);
    differ("the maximum of the rate", &most(before), &most(after));
    if before.started > after.started {
        texts.push("the first report is later than the second one".to_owned());
    }
    texts
}

/// Returns the settings of a host that differ.
fn settings(host: &'static str, before: &HostFacts, after: &HostFacts) -> Vec<SettingChange> {
    let names: BTreeSet<&String> = before.settings.keys().chain(after.settings.keys()).collect();
    let value = |facts: &HostFacts, name: &String| facts.settings.get(name).cloned().unwrap_or_default();
    let changes = names.into_iter().map(|name| SettingChange {
        host,
        name: name.clone(),
        value: Change { before: value(before, name), after: value(after, name) },
    });
    changes.filter(|change| change.value.before != change.value.after).collect()
}

fn change(before: &Report, after: &Report, direction: Direction) -> DirectionChange {
    let path = |report: &Report| report.path.directions.iter().find(|path| path.direction == direction).cloned();
    let (old, new) = (path(before), path(after));
    let loss =
        |path: &Option<super::PathDirection>| path.as_ref().filter(|path| path.loss_packets > 0).map(|path| path.loss);
    DirectionChange {
        direction,
        measured_bps: Change { before: measured(before, direction), after: measured(after, direction) },
        capacity_bps: Change {
            before: old.as_ref().and_then(|path| path.capacity_bps),
            after: new.as_ref().and_then(|path| path.capacity_bps),
        },
        loss: Change { before: loss(&old), after: loss(&new) },
        mtu: Change { before: old.and_then(|path| path.mtu), after: new.and_then(|path| path.mtu) },
    }
}

fn measured(report: &Report, direction: Direction) -> u64 {
    match direction {
        Direction::Forward => report.measured_bps,
        Direction::Reverse => report.reverse_measured_bps,
    }
}

/// Checks the prediction for the limits that bound before and are gone; `None`: none of them is gone.
fn check(before: &Report, after: &Report, direction: Direction) -> Option<PredictionCheck> {
    let still = |cause: Cause| after.verdicts.iter().any(|v| v.limit == cause && v.direction == direction);
    let gone: Vec<&Verdict> = before
        .verdicts
        .iter()
        .filter(|verdict| verdict.direction == direction && verdict.limits_to_bps.is_some() && !still(verdict.limit))
        .filter(|verdict| verdict.limit != Cause::Clean)
        .collect();
    let measured_bps = measured(after, direction);
    let predicted_bps = match gone.as_slice() {
        [] => return None,
        [one] => one.predicted_bps,
        // The lowest limit that is not gone.
        several => {
            let is_gone = |cause: Cause| several.iter().any(|verdict| verdict.limit == cause);
            let steps = before.ladder.iter().filter(|step| step.direction == direction && !is_gone(step.limit));
            steps.map(|step| step.rate_bps).min()?
        }
    };
    let part = measured_bps as f64 / predicted_bps.max(1) as f64;
    Some(PredictionCheck {
        direction,
        gone: gone.iter().map(|verdict| verdict.limit).collect(),
        predicted_bps,
        measured_bps,
        part,
        is_met: (part - 1.0).abs() <= MET_WITHIN,
    })
}
