//! Re-test: which limits of an earlier examination are gone.
//!
//! A limit is gone only if more than its rate passed since. A verdict that is missing proves nothing: a lower limit may
//! hide it.

use serde::{Deserialize, Serialize};

use super::examination::{Examination, LimitResult};
use crate::evidence::Direction;
use crate::report::compare::{Change, MET_WITHIN};
use crate::report::text;
use crate::verdict::Cause;

/// Multiple of the rate of a limit above which the limit is gone. Reason: rates of two runs differ by a few per cent.
const ABOVE: f64 = 1.05;

/// Limits to answer for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Limit; `None`: each that held a connection, and each policer and shaper.
    pub limit: Option<Cause>,
    /// Direction; `None`: both.
    pub direction: Option<Direction>,
}

/// Answer for one limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitOutcome {
    /// Limit.
    pub limit: Cause,
    /// Direction.
    pub direction: Direction,
    /// Answer.
    pub fate: Fate,
    /// Rate of the limit, bit/s; of a policer or shaper that of its packets.
    pub bps: Change<Option<u64>>,
    /// Bucket of a policer or shaper, bytes.
    pub burst_bytes: Change<Option<u64>>,
    /// Rate of one connection, bit/s.
    pub measured_bps: Change<u64>,
    /// Rate that was seen to pass now, bit/s: for a policer or shaper of any packets, else of one connection.
    pub passed_bps: u64,
    /// Limit that holds a connection now; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Cause>,
    /// Rate of that limit, bit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_bps: Option<u64>,
}

/// Fate of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// More than its rate passes, and nothing else holds the connection.
    Gone,
    /// More than its rate passes, and the next limit holds the connection.
    Replaced,
    /// It is there at a higher rate.
    Raised,
    /// It is there at a lower rate.
    Lowered,
    /// It is there at the same rate.
    StillThere,
    /// It was not found, but nothing faster than its rate passed.
    Open,
}

impl LimitOutcome {
    fn new(before: &Examination, old: &LimitResult, now: &Examination) -> Self {
        let (limit, direction) = (old.limit, old.direction);
        let found = now.limit(limit, direction);
        let measured = |one: &Examination| one.direction(direction).map_or(0, |one| one.measured_bps);
        // A policer and a shaper hold all packets, and other limits one connection.
        let passed_bps = match old.rate_bps {
            Some(bps) => now.direction(direction).map_or(0, |one| one.passed_bps(bps, old.burst_bytes.unwrap_or(0))),
            None => measured(now),
        };
        let next = now.binding(direction).filter(|next| next.limit != limit);
        Self {
            limit,
            direction,
            fate: fate(old, found, passed_bps, next.is_some()),
            bps: Change { before: old.bps(), after: found.and_then(LimitResult::bps) },
            burst_bytes: Change { before: old.burst_bytes, after: found.and_then(|found| found.burst_bytes) },
            measured_bps: Change { before: measured(before), after: measured(now) },
            passed_bps,
            next: next.map(|next| next.limit),
            next_bps: next.and_then(LimitResult::bps),
        }
    }

    /// Returns true if the limit is gone, or has the rate that it was raised to.
    pub fn is_met(&self, raised_to_bps: Option<u64>) -> bool {
        let is_enough = |bps: u64| raised_to_bps.is_some_and(|wanted| bps as f64 >= wanted as f64 * (1.0 - MET_WITHIN));
        match self.fate {
            Fate::Gone | Fate::Replaced => raised_to_bps.is_none() || is_enough(self.passed_bps),
            Fate::Raised | Fate::StillThere => self.bps.after.is_some_and(is_enough),
            Fate::Lowered | Fate::Open => false,
        }
    }

    /// Returns the answer in words.
    pub fn words(&self) -> String {
        let rate = |bps: Option<u64>| bps.map_or_else(|| "an unknown rate".to_owned(), text::rate);
        let bucket = |bytes: Option<u64>| {
            bytes.map_or_else(String::new, |bytes| format!(", burst {}", sterna_proto::ByteCount(bytes)))
        };
        let Change { before, after } = self.bps;
        let old = format!("{}{}", rate(before), bucket(self.burst_bytes.before));
        let new = format!("{}{}", rate(after), bucket(self.burst_bytes.after));
        let passed = text::rate(self.passed_bps);
        let next = match self.next {
            Some(next) => format!("; {} is the limit now, at {}", next.words(), rate(self.next_bps)),
            None => String::new(),
        };
        let answer = match (self.fate, before) {
            (Fate::Gone | Fate::Replaced, None) => format!("gone; {passed} pass{next}"),
            (Fate::Gone | Fate::Replaced, Some(_)) => format!("gone: it was at {old}, and {passed} pass now{next}"),
            (Fate::Raised, _) => format!("raised: {old} before, {new} now{next}"),
            (Fate::Lowered, _) => format!("lowered: {old} before, {new} now{next}"),
            (Fate::StillThere, None) => format!("still there{next}"),
            (Fate::StillThere, Some(_)) => format!("still there: {old} before, {new} now{next}"),
            (Fate::Open, _) => format!("not decided: it was at {old}, and nothing faster than {passed} passed{next}"),
        };
        let measured =
            Change { before: text::rate(self.measured_bps.before), after: text::rate(self.measured_bps.after) };
        format!(
            "{}, {}: {answer} (one connection: {} before, {} now)",
            self.limit.words(),
            text::arrow(self.direction),
            measured.before,
            measured.after
        )
    }
}

fn fate(old: &LimitResult, found: Option<&LimitResult>, passed_bps: u64, has_next: bool) -> Fate {
    match (old.bps(), found.map(LimitResult::bps)) {
        (Some(before), Some(Some(after))) => match after as f64 / before.max(1) as f64 {
            ratio if ratio > 1.0 + MET_WITHIN => Fate::Raised,
            ratio if ratio < 1.0 - MET_WITHIN => Fate::Lowered,
            _ => Fate::StillThere,
        },
        // It is there, and no longer at a rate: another limit is below it, or it holds nothing now.
        (_, Some(_)) => Fate::StillThere,
        (Some(before), None) if passed_bps as f64 <= before as f64 * ABOVE => Fate::Open,
        (None, None) if passed_bps == 0 => Fate::Open,
        _ if has_next => Fate::Replaced,
        _ => Fate::Gone,
    }
}

/// Returns the answers for the limits of an earlier examination, in its order. Empty: it had none that was asked for.
pub fn judge(before: &Examination, now: &Examination, asked: &Asked) -> Vec<LimitOutcome> {
    let is_asked = |limit: &&LimitResult| match asked.limit {
        Some(cause) => limit.limit == cause,
        // The user gives that rate, and not the path.
        None => limit.bps().is_some() && limit.limit != Cause::RateCap,
    };
    let limits = before.limits.iter().filter(is_asked);
    limits
        .filter(|limit| asked.direction.is_none_or(|direction| limit.direction == direction))
        .map(|limit| LimitOutcome::new(before, limit, now))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{examination, limit_of};
    use super::*;

    const FORWARD: Direction = Direction::Forward;

    /// Returns the answer for a policer, from the rate and limits of one connection now.
    fn answer(before: u64, measured: u64, now: Vec<LimitResult>) -> LimitOutcome {
        let before = examination("1", before, vec![limit_of(Cause::Policer, Some(before))]);
        let now = examination("2", measured, now);
        let outcomes = judge(&before, &now, &Asked::default());
        assert_eq!(outcomes.len(), 1);
        outcomes[0].clone()
    }

    #[test]
    fn a_limit_is_gone_only_if_more_than_its_rate_passes() {
        let policer = |bps| limit_of(Cause::Policer, Some(bps));
        let buffer = |bps| limit_of(Cause::ReceiveBuffer, Some(bps));
        let m = 1_000_000;
        for (measured, now, fate, next) in [
            (200 * m, vec![], Fate::Gone, None),
            (60 * m, vec![buffer(60 * m)], Fate::Replaced, Some(Cause::ReceiveBuffer)),
            (5 * m, vec![policer(5 * m)], Fate::StillThere, None),
            (90 * m, vec![policer(90 * m)], Fate::Raised, None),
            (2 * m, vec![policer(2 * m)], Fate::Lowered, None),
            // The policer may be behind the buffer.
            (3 * m, vec![buffer(3 * m)], Fate::Open, Some(Cause::ReceiveBuffer)),
            (5 * m, vec![], Fate::Open, None),
            // The direction could not be measured.
            (0, vec![], Fate::Open, None),
        ] {
            let outcome = answer(5 * m, measured, now.clone());
            assert_eq!((outcome.fate, outcome.next), (fate, next), "{measured} {now:?}");
            assert!(!outcome.words().is_empty());
            assert_eq!(outcome.is_met(None), matches!(fate, Fate::Gone | Fate::Replaced), "{measured} {now:?}");
        }
        let raised = answer(5 * m, 80 * m, vec![policer(88 * m)]);
        assert!(raised.is_met(Some(90 * m)) && !raised.is_met(Some(155 * m)), "{raised:?}");
        assert!(raised.words().contains("raised: 5.00 Mbit/s, burst 100 kB before, 88.0 Mbit/s"), "{}", raised.words());
        // A limit that is gone below the rate that was named is not what was named.
        let replaced = answer(5 * m, 20 * m, vec![buffer(20 * m)]);
        assert!(replaced.is_met(None) && !replaced.is_met(Some(90 * m)), "{replaced:?}");
    }

    #[test]
    fn the_user_selects_limits_by_name_and_direction() {
        let mut modes = limit_of(Cause::RttModes, None);
        (modes.rate_bps, modes.burst_bytes) = (None, None);
        let mut back = limit_of(Cause::Policer, Some(7_000_000));
        back.direction = Direction::Reverse;
        let cap = limit_of(Cause::RateCap, Some(10_000_000));
        let before = examination("1", 5_000_000, vec![modes, back, cap]);
        let now = examination("2", 5_000_000, vec![]);
        let judged = |limit, direction| judge(&before, &now, &Asked { limit, direction });
        let causes = |outcomes: Vec<LimitOutcome>| outcomes.iter().map(|one| one.limit).collect::<Vec<_>>();
        assert_eq!(causes(judged(None, None)), [Cause::Policer]);
        assert_eq!(causes(judged(None, Some(FORWARD))), []);
        let modes = judged(Some(Cause::RttModes), None);
        assert_eq!((modes[0].limit, modes[0].fate), (Cause::RttModes, Fate::Gone));
        assert_eq!(causes(judged(Some(Cause::RateCap), None)), [Cause::RateCap]);
    }
}
