//! Statements of operators beside what an examination measured: "geant.net states 90 Mbit/s; a policer of 5 Mbit/s was
//! measured".
//!
//! A path has one lowest rate limit. A statement is contradicted only if no other domain states the rate that was
//! measured; else the lower limit is in that domain.

use serde::Serialize;

use super::examination::{DirectionResult, Examination, LimitResult};
use super::facts::{FactKey, FactValue};
use super::history::{FactHistory, Stated};
use super::moment::EntryTime;
use crate::evidence::Direction;
use crate::report::compare::MET_WITHIN;
use crate::report::text;
use crate::verdict::Cause;

/// Deviation of a measured bucket from the stated one. Reason: devices count in steps, and others use tokens too.
const BURST_WITHIN: f64 = 0.3;

/// Statement and its judgement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StatementCheck {
    /// Network.
    pub domain: String,
    /// Direction.
    pub direction: Direction,
    /// Property.
    pub key: FactKey,
    /// Judgement.
    pub agreement: Agreement,
    /// Statement and measurement in words.
    pub words: String,
}

/// Judgement on a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Agreement {
    /// The measurement shows the stated value.
    Agrees,
    /// The measurement contradicts it.
    Contradicted,
    /// The measurement shows an earlier value of the same statement.
    Outdated,
    /// The lower limit of another domain was measured, or nothing faster was sent.
    Untested,
}

/// Returns the judgements on the rate limits and bursts that are stated at the time of an examination.
pub fn check(facts: &[FactHistory], examination: &Examination, time: EntryTime) -> Vec<StatementCheck> {
    let mut checks = Vec::new();
    for direction in Direction::ALL {
        let Some(result) = examination.direction(direction).filter(|one| one.seen_bps() > 0) else { continue };
        let limiter = limiter_of(examination, direction);
        let view = View { direction, result, limiter, opposite: limiter_of(examination, direction.opposite()), time };
        let rates = view.of(facts, &FactKey::RateLimit);
        let explained =
            rates.iter().find(|(_, values)| view.shows(values.last())).map(|(fact, _)| fact.domain.as_str());
        checks.extend(rates.iter().filter_map(|(fact, values)| view.rate(fact, values, explained)));
        let bursts = view.of(facts, &FactKey::Burst);
        // Without a domain that explains the limiter, its bucket belongs to nobody.
        let of_limiter =
            bursts.iter().filter(|(fact, _)| explained.map_or(rates.len() <= 1, |domain| domain == fact.domain));
        checks.extend(of_limiter.filter_map(|(fact, values)| view.burst(fact, values)));
    }
    checks
}

/// One direction of an examination.
struct View<'a> {
    direction: Direction,
    result: &'a DirectionResult,
    limiter: Option<&'a LimitResult>,
    /// Policer or shaper of the opposite direction.
    opposite: Option<&'a LimitResult>,
    time: EntryTime,
}

/// Returns the policer or shaper of a direction.
fn limiter_of(examination: &Examination, direction: Direction) -> Option<&LimitResult> {
    let mut limits = examination.limits(direction);
    limits.find(|limit| matches!(limit.limit, Cause::Policer | Cause::Shaper) && limit.rate_bps.is_some())
}

impl View<'_> {
    /// Returns the facts of a key that apply to the direction, with the values known at the time.
    fn of<'f>(&self, facts: &'f [FactHistory], key: &FactKey) -> Vec<(&'f FactHistory, &'f [Stated])> {
        let applies = facts.iter().filter(|fact| fact.key == *key && fact.is_of(self.direction));
        applies.map(|fact| (fact, fact.at(self.time))).filter(|(_, values)| !values.is_empty()).collect()
    }

    /// Returns true if the limiter has the stated rate.
    fn shows(&self, stated: Option<&Stated>) -> bool {
        has_rate(self.limiter, stated)
    }

    fn rate(&self, fact: &FactHistory, values: &[Stated], explained: Option<&str>) -> Option<StatementCheck> {
        let (current, earlier) = values.split_last()?;
        let statement = format!("{} states {}", fact.domain, says(fact, current));
        let check = |agreement, words: String| {
            Some(self.check(fact, agreement, format!("{statement}; {}: {words}", self.measured())))
        };
        // A statement that names no direction is about one at least.
        if fact.direction.is_none() && !self.shows(Some(current)) && has_rate(self.opposite, Some(current)) {
            return None;
        }
        // A short train may fit into the bucket of a policer.
        let passed = self.result.sustained_bps();
        let Some(limiter) = self.limiter else {
            let FactValue::Number(stated) = current.value else {
                return check(Agreement::Agrees, "nothing contradicts that".to_owned());
            };
            return match passed as f64 / stated.max(1) as f64 {
                ratio if ratio > 1.0 + MET_WITHIN => check(Agreement::Contradicted, "more passes".to_owned()),
                ratio if ratio >= 1.0 - MET_WITHIN => check(Agreement::Agrees, "about that passes".to_owned()),
                _ => check(Agreement::Untested, "nothing faster was sent".to_owned()),
            };
        };
        if self.shows(Some(current)) {
            return check(Agreement::Agrees, "it is the limit that is stated".to_owned());
        }
        let measured = limiter.rate_bps.unwrap_or(0);
        if let FactValue::Number(stated) = current.value
            && measured > stated
        {
            return check(Agreement::Contradicted, "more than that passes".to_owned());
        }
        if let Some(domain) = explained {
            return check(Agreement::Untested, format!("the lower limit of {domain} hides it"));
        }
        match earlier.iter().rev().find(|value| self.shows(Some(value))) {
            Some(old) => check(
                Agreement::Outdated,
                format!("the limit is still there, at the rate stated on {}", old.since.date()),
            ),
            None => check(Agreement::Contradicted, "the limit is still there".to_owned()),
        }
    }

    fn burst(&self, fact: &FactHistory, values: &[Stated]) -> Option<StatementCheck> {
        let current = values.last()?;
        let measured = self.limiter?.burst_bytes?;
        let statement = format!("{} states {}", fact.domain, says(fact, current));
        let found = format!("{} measured, {}", sterna_proto::ByteCount(measured), text::arrow(self.direction));
        let (agreement, words) = match current.value {
            FactValue::Number(stated) if is_near(measured, stated, BURST_WITHIN) => (Agreement::Agrees, "as stated"),
            FactValue::Number(stated) if measured < stated => {
                (Agreement::Contradicted, "the bucket is smaller than stated")
            }
            FactValue::Number(_) => (Agreement::Contradicted, "the bucket is larger than stated"),
            FactValue::Unlimited => (Agreement::Contradicted, "there is a bucket"),
            FactValue::Text(_) => return None,
        };
        Some(self.check(fact, agreement, format!("{statement}; {found}: {words}")))
    }

    fn check(&self, fact: &FactHistory, agreement: Agreement, words: String) -> StatementCheck {
        let (domain, key) = (fact.domain.clone(), fact.key.clone());
        StatementCheck { domain, direction: self.direction, key, agreement, words }
    }

    /// Returns the measurement in words.
    fn measured(&self) -> String {
        let arrow = text::arrow(self.direction);
        match self.limiter {
            Some(limiter) => {
                format!("{} of {} measured, {arrow}", limiter.limit.words(), text::rate(limiter.rate_bps.unwrap_or(0)))
            }
            None => format!("no policer or shaper found up to {}, {arrow}", text::rate(self.result.seen_bps())),
        }
    }
}

/// Returns a statement in words, with its date.
fn says(fact: &FactHistory, stated: &Stated) -> String {
    let (since, value) = (stated.since.date(), fact.shown(&stated.value));
    match (&fact.key, &stated.value) {
        (FactKey::RateLimit, FactValue::Unlimited) => format!("no rate limit ({since})"),
        (FactKey::RateLimit, _) => format!("a rate limit of {value} ({since})"),
        (key, _) => format!("{} {value} ({since})", key.name()),
    }
}

fn has_rate(limiter: Option<&LimitResult>, stated: Option<&Stated>) -> bool {
    match (limiter.and_then(|limiter| limiter.rate_bps), stated.map(|stated| &stated.value)) {
        (Some(measured), Some(FactValue::Number(stated))) => is_near(measured, *stated, MET_WITHIN),
        _ => false,
    }
}

fn is_near(measured: u64, stated: u64, within: f64) -> bool {
    (measured as f64 / stated.max(1) as f64 - 1.0).abs() <= within
}

#[cfg(test)]
mod tests {
    use super::super::tests::{examination, limit_of};
    use super::*;

    fn stated(day: u64, value: FactValue) -> Stated {
        Stated { since: EntryTime::from_unix(day as i64 * 86_400), by: "x".to_owned(), value }
    }

    fn fact(domain: &str, key: FactKey, values: &[FactValue]) -> FactHistory {
        let values = values.iter().enumerate().map(|(day, value)| stated(day as u64, value.clone())).collect();
        FactHistory { domain: domain.to_owned(), direction: Some(Direction::Forward), key, values }
    }

    fn judged(facts: &[FactHistory], measured: u64, policer: Option<u64>) -> Vec<(Agreement, String)> {
        let limits = policer.map(|bps| limit_of(Cause::Policer, Some(bps))).into_iter().collect();
        let now = EntryTime::from_unix(100 * 86_400);
        let checks = check(facts, &examination("1", measured, limits), now);
        checks.into_iter().map(|check| (check.agreement, check.words)).collect()
    }

    #[test]
    fn a_limit_that_was_said_to_be_lifted_is_still_there() {
        // SMART-1: 90 Mbit/s was said to be 155 Mbit/s, and was not.
        let m = 1_000_000;
        let raised = fact("redclara.net", FactKey::RateLimit, &[FactValue::Number(90 * m), FactValue::Number(155 * m)]);
        let lifted = fact("redclara.net", FactKey::RateLimit, &[FactValue::Number(5 * m), FactValue::Unlimited]);
        for (fact, measured, policer, agreement, words) in [
            (&raised, 80 * m, Some(89 * m), Agreement::Outdated, "still there, at the rate stated on 1970-01-01"),
            (&raised, 140 * m, Some(150 * m), Agreement::Agrees, "it is the limit that is stated"),
            (&raised, 20 * m, Some(25 * m), Agreement::Contradicted, "the limit is still there"),
            (&raised, 200 * m, Some(300 * m), Agreement::Contradicted, "more than that passes"),
            (&raised, 20 * m, None, Agreement::Untested, "nothing faster was sent"),
            (&raised, 150 * m, None, Agreement::Agrees, "about that passes"),
            (&raised, 500 * m, None, Agreement::Contradicted, "more passes"),
            (&lifted, 5 * m, Some(5 * m), Agreement::Outdated, "states no rate limit (1970-01-02); policer of 5.00"),
            (&lifted, 80 * m, None, Agreement::Agrees, "no policer or shaper found up to 80.0 Mbit/s, A to B"),
        ] {
            let found = judged(std::slice::from_ref(fact), measured, policer);
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].0, agreement, "{found:?}");
            assert!(found[0].1.contains(words), "{found:?}");
        }
    }

    #[test]
    fn the_lowest_limit_of_a_path_is_in_the_domain_that_states_it() {
        let m = 1_000_000;
        let facts = [
            fact("reuna.cl", FactKey::RateLimit, &[FactValue::Number(5 * m)]),
            fact("reuna.cl", FactKey::Burst, &[FactValue::Number(16 * m)]),
            fact("geant.net", FactKey::RateLimit, &[FactValue::Number(155 * m)]),
            fact("geant.net", FactKey::Burst, &[FactValue::Number(100_000)]),
        ];
        let found = judged(&facts, 4 * m, Some(5 * m));
        let agreements: Vec<Agreement> = found.iter().map(|(agreement, _)| *agreement).collect();
        assert_eq!(agreements, [Agreement::Agrees, Agreement::Untested, Agreement::Contradicted], "{found:?}");
        assert!(found[1].1.contains("the lower limit of reuna.cl hides it"), "{found:?}");
        assert!(found[2].1.contains("100 kB measured, A to B: the bucket is smaller than stated"), "{found:?}");
    }

    #[test]
    fn a_statement_counts_from_its_date_on_and_in_its_direction() {
        let later = fact("x", FactKey::RateLimit, &[FactValue::Number(1), FactValue::Number(90_000_000)]);
        let before = EntryTime::from_unix(3600);
        let limits = vec![limit_of(Cause::Policer, Some(90_000_000))];
        let found = check(std::slice::from_ref(&later), &examination("1", 80_000_000, limits), before);
        assert_eq!(found[0].agreement, Agreement::Contradicted, "{found:?}");
        // Without a direction, the one that shows the limit answers.
        let any = FactHistory { direction: None, values: later.values[1..].to_vec(), ..later.clone() };
        let limits = vec![limit_of(Cause::Policer, Some(90_000_000))];
        let found = check(&[any], &examination("1", 200_000_000, limits), EntryTime::from_unix(100 * 86_400));
        assert_eq!(
            found.iter().map(|one| (one.direction, one.agreement)).collect::<Vec<_>>(),
            [(Direction::Forward, Agreement::Agrees)]
        );
        let back = FactHistory { direction: Some(Direction::Reverse), ..later };
        let limits = vec![limit_of(Cause::Policer, Some(90_000_000))];
        let found = check(&[back], &examination("1", 80_000_000, limits), before);
        assert_eq!(found.iter().map(|one| one.direction).collect::<Vec<_>>(), [Direction::Reverse]);
    }
}
