//! Series: the rounds of one path in order, what holds now, and the changes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::alarm::{Alarm, Change, Kind, Turn};
use super::round::{Echoes, Failure, Measured, Outcome, Round, Test};
use super::shift::{Event, Level, Rule, Shift};
use crate::evidence::Direction;
use crate::verdict::Cause;
use crate::view::median;

/// Rounds that what holds now is computed from. Reason: an hour at the default interval.
const PRESENT: usize = 12;

/// Rounds without measurements in a row that are an alarm. Reason: an agent that is restarted misses one or two.
const ABSENT: usize = 3;

/// Number of changes that are kept. Reason: those of a month on a bad path.
const CHANGES_MAX: usize = 1000;

/// Tests in a row with a limit that is not the usual one, which are repeated soon.
const CONFIRMATIONS: usize = 4;

/// Round trips. Chance: 288 rounds a day and some comparisons for each are a
/// false alarm in some years. Margin: hosts add some
/// tenths of a millisecond.
const RTT: Rule = Rule { chance: 1e-6, margin: 0.000_5, relative: 0.01, spread: 5.0 };

/// Numbers of routers.
const HOPS: Rule = Rule { chance: 1e-6, margin: 0.5, relative: 0.0, spread: 0.0 };

/// Parts of lost packets: the test compares how often there is loss, so any margin would hide rare losses.
const LOSS: Rule = Rule { chance: 1e-6, margin: 0.0, relative: 0.0, spread: 0.0 };

/// Presence of a limit, 0 or 1. Chance: tests are rare, and more of them would take days.
const LIMIT: Rule = Rule { chance: 1e-3, margin: 0.5, relative: 0.0, spread: 0.0 };

/// Time within which changes of the round trip and of the number of routers are one, seconds. Reason: each is found
/// in a few rounds.
const SAME_TIME_S: u64 = 3600;

/// Presence of a limit above which it is the usual one.
const USUAL: f64 = 0.5;

/// Number of each round that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Quantity {
    Fastest,
    Typical,
    Slowest,
    Hops(Direction),
    Loss(Direction),
    Limit(Direction, Cause),
}

impl Quantity {
    fn rule(self) -> Rule {
        match self {
            Self::Fastest | Self::Typical | Self::Slowest => RTT,
            Self::Hops(_) => HOPS,
            Self::Loss(_) => LOSS,
            Self::Limit(..) => LIMIT,
        }
    }
}

/// Rounds of a path in order.
#[derive(Clone, Debug, Default)]
pub struct Series {
    levels: BTreeMap<Quantity, Level>,
    /// Last echoes with replies, and last tests by direction.
    echoes: VecDeque<(u64, Echoes)>,
    tests: BTreeMap<Direction, VecDeque<(u64, Test)>>,
    /// Tests of each direction.
    tested: BTreeMap<Direction, usize>,
    /// Last changes of the number of routers.
    hops: BTreeMap<Direction, Shift>,
    /// Limits that were there and went away.
    gone: BTreeSet<(Direction, Cause)>,
    /// Start of the failures in a row, their number, and the last one.
    absent: Option<(u64, usize, Failure)>,
    alarms: Vec<Alarm>,
    changes: VecDeque<Change>,
    counts: Counts,
}

/// Totals of a series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Rounds with measurements.
    pub rounds: u64,
    /// Rounds without.
    pub failures: u64,
    /// Throughput tests.
    pub tests: u64,
    /// Bytes over the path, without lower layers.
    pub bytes: u64,
    /// Time of the last round with measurements, seconds since 1970; 0 before it.
    pub last: u64,
}

/// State of a path now, from its last rounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Present {
    /// Smallest round trip of the fastest port, seconds; absent without echoes.
    pub fastest_s: Option<f64>,
    /// Smallest round trip of the median port.
    pub typical_s: Option<f64>,
    /// Smallest round trip of the slowest port.
    pub slowest_s: Option<f64>,
    /// Routers that packets pass, there and back.
    pub hops: [Option<u8>; 2],
    /// Part of the packets that is lost without load, there and back.
    pub loss: [Option<f64>; 2],
    /// Last tests, there and back.
    pub tests: [Option<Test>; 2],
    /// Totals.
    pub counts: Counts,
    /// Open alarms.
    pub alarms: Vec<Alarm>,
}

impl Series {
    /// Begins the totals again, and keeps the time of the last round. Reason: the stored rounds become fewer when old
    /// ones are removed, and totals of a process must not.
    pub fn begin_counts(&mut self) {
        self.counts = Counts { last: self.counts.last, ..Counts::default() };
    }

    /// Takes a round. Returns the changes that it shows.
    pub fn observe(&mut self, round: &Round) -> Vec<Change> {
        let mut improved = Vec::new();
        match &round.outcome {
            Outcome::Failed(failure) => {
                self.counts.failures += 1;
                let (since, count) = self.absent.take().map_or((round.at, 0), |(since, count, _)| (since, count));
                self.absent = Some((since, count + 1, failure.clone()));
            }
            Outcome::Measured(measured) => {
                self.absent = None;
                self.count(round.at, measured);
                for (quantity, value) in self.values(round.at, measured) {
                    improved.extend(self.watch(quantity, round.at, value));
                }
            }
        }
        let settled = std::mem::take(&mut improved);
        self.turn(round.at, settled)
    }

    /// Returns what holds now.
    pub fn present(&self) -> Present {
        let recent = |quantity| self.levels.get(&quantity).and_then(|level| level.recent(PRESENT));
        let last = self.echoes.back().map(|(_, echoes)| echoes);
        Present {
            fastest_s: recent(Quantity::Fastest),
            typical_s: recent(Quantity::Typical),
            slowest_s: recent(Quantity::Slowest),
            hops: [last.and_then(|echoes| echoes.forward_hops), last.and_then(|echoes| echoes.reverse_hops)],
            loss: Direction::ALL.map(|direction| self.loss_since(direction, 0)),
            tests: Direction::ALL.map(|direction| self.tests.get(&direction)?.back().map(|(_, test)| test.clone())),
            counts: self.counts,
            alarms: self.alarms.clone(),
        }
    }

    /// Returns the open alarms.
    pub fn alarms(&self) -> &[Alarm] {
        &self.alarms
    }

    /// Returns the last changes, in order.
    pub fn changes(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter()
    }

    /// Returns true if the last test of a direction shows a limit that is not the usual one: another test soon tells
    /// whether it lasts.
    pub fn wants_test(&self) -> bool {
        Direction::ALL.into_iter().any(|direction| {
            let Some((_, test)) = self.tests.get(&direction).and_then(VecDeque::back) else { return false };
            let Some(level) = self.levels.get(&Quantity::Limit(direction, test.limit)) else { return false };
            let run = level.run_above(USUAL);
            // Without earlier tests, nothing is usual yet.
            let has_earlier = self.tested.get(&direction).is_some_and(|tested| *tested > run);
            has_earlier
                && level.shift().is_none()
                && (1..=CONFIRMATIONS).contains(&run)
                && level.share_above(USUAL, run) < USUAL
        })
    }

    fn count(&mut self, at: u64, measured: &Measured) {
        let counts = &mut self.counts;
        counts.rounds += 1;
        counts.last = at;
        counts.tests += measured.tests.len() as u64;
        counts.bytes = counts.bytes.saturating_add(measured.bytes);
        if let Some(echoes) = &measured.echoes {
            self.echoes.push_back((at, echoes.clone()));
        }
        for test in &measured.tests {
            let tests = self.tests.entry(test.direction).or_default();
            tests.push_back((at, test.clone()));
            if tests.len() > PRESENT {
                tests.pop_front();
            }
        }
        if self.echoes.len() > PRESENT {
            self.echoes.pop_front();
        }
    }

    /// Returns the numbers of a round that are watched.
    fn values(&mut self, at: u64, measured: &Measured) -> Vec<(Quantity, f64)> {
        let mut values = Vec::new();
        if let Some(echoes) = &measured.echoes {
            let trips = [
                (Quantity::Fastest, echoes.fastest_s()),
                (Quantity::Typical, echoes.typical_s()),
                (Quantity::Slowest, echoes.slowest_s()),
                (Quantity::Hops(Direction::Forward), echoes.forward_hops.map(f64::from)),
                (Quantity::Hops(Direction::Reverse), echoes.reverse_hops.map(f64::from)),
            ];
            values.extend(trips.into_iter().filter_map(|(quantity, value)| Some((quantity, value?))));
            for direction in Direction::ALL {
                let (lost, sent) = echoes.losses(direction);
                // Nothing arrives at all: that shows one direction only.
                if sent > 0 {
                    values.push((Quantity::Loss(direction), lost as f64 / sent as f64));
                }
            }
        }
        for test in &measured.tests {
            let earlier = self.tested.get(&test.direction).copied().unwrap_or(0);
            let new = Quantity::Limit(test.direction, test.limit);
            if test.limit != Cause::RateCap {
                self.levels.entry(new).or_insert_with(|| Level::with(new.rule(), at, 0.0, earlier));
            }
            *self.tested.entry(test.direction).or_default() += 1;
            values.extend(self.levels.keys().filter_map(|quantity| match quantity {
                Quantity::Limit(direction, limit) if *direction == test.direction => {
                    Some((*quantity, if *limit == test.limit { 1.0 } else { 0.0 }))
                }
                _ => None,
            }));
        }
        values
    }

    /// Takes one number of a round. Returns changes that are no alarm.
    fn watch(&mut self, quantity: Quantity, at: u64, value: f64) -> Option<(Turn, Alarm)> {
        let level = self.levels.entry(quantity).or_insert_with(|| Level::new(quantity.rule()));
        let event = level.observe(at, value)?;
        if let (Quantity::Limit(direction, limit), Event::Ended(_) | Event::Fell(_)) = (quantity, event) {
            self.gone.insert((direction, limit));
        }
        if let (Quantity::Hops(direction), Event::Raised(shift) | Event::Moved(shift) | Event::Fell(shift)) =
            (quantity, event)
        {
            self.hops.insert(direction, shift);
        }
        match event {
            Event::Fell(shift) => self.alarm_of(quantity, &shift).map(|alarm| (Turn::Improved, alarm)),
            Event::Settled(shift) => self.alarm_of(quantity, &shift).map(|alarm| (Turn::Settled, alarm)),
            Event::Raised(_) | Event::Moved(_) | Event::Ended(_) => None,
        }
    }

    /// Returns the alarm for a shift of one quantity; `None` for numbers of routers, which go with round trips.
    fn alarm_of(&self, quantity: Quantity, shift: &Shift) -> Option<Alarm> {
        let since = shift.since;
        match quantity {
            Quantity::Fastest | Quantity::Typical | Quantity::Slowest => Some(self.rerouted(shift)),
            Quantity::Hops(_) => None,
            Quantity::Loss(direction) => {
                let to = self.loss_since(direction, since).unwrap_or(shift.after);
                Some(Alarm::Loss { since, direction, from: shift.before, to })
            }
            Quantity::Limit(direction, limit) => {
                let tests = self.tests.get(&direction).into_iter().flatten();
                let held: Vec<&Test> =
                    tests.filter(|(at, test)| *at >= since && test.limit == limit).map(|(_, test)| test).collect();
                let is_back = self.gone.contains(&(direction, limit));
                let is_same = |alarm: &&Alarm| matches!(alarm, Alarm::Limit { direction: of, limit: by, .. } if (*of, *by) == (direction, limit));
                // A limit that the last tests did not see has the numbers of its open alarm, or went away.
                if held.is_empty()
                    && let Some(open) = self.alarms.iter().find(is_same)
                {
                    return Some(open.clone());
                }
                let rate_bps = median(held.iter().map(|test| test.rate_bps as f64).collect()) as u64;
                let remedy = held.last().map_or(String::new(), |test| test.remedy.clone());
                Some(Alarm::Limit { since, direction, limit, rate_bps, is_back, remedy })
            }
        }
    }

    fn rerouted(&self, shift: &Shift) -> Alarm {
        let since = self.echoes.iter().filter(|(at, _)| *at >= shift.since);
        let beyond = |echoes: &Echoes| echoes.rtt_us.iter().filter(|rtt| **rtt as f64 / 1e6 >= shift.edge).count();
        let of = self.echoes.back().map_or(0, |(_, echoes)| echoes.rtt_us.len());
        let ports = median(since.map(|(_, echoes)| beyond(echoes) as f64).collect()) as usize;
        let ports = ports.clamp(1, of.max(1));
        let changed = Direction::ALL.into_iter().find_map(|direction| {
            let hops = self.hops.get(&direction)?;
            let is_same_time = hops.since.abs_diff(shift.since) <= SAME_TIME_S;
            is_same_time.then_some((hops.before as u8, hops.after as u8))
        });
        Alarm::Rerouted { since: shift.since, from_s: shift.before, to_s: shift.after, ports, of, hops: changed }
    }

    /// Returns the lost part of the packets of the last rounds, not before `since`.
    fn loss_since(&self, direction: Direction, since: u64) -> Option<f64> {
        let rounds = self.echoes.iter().filter(|(at, _)| *at >= since).map(|(_, echoes)| echoes.losses(direction));
        let (lost, sent) = rounds.fold((0, 0), |(lost, sent), (more, of)| (lost + more, sent + of));
        (sent > 0).then(|| lost as f64 / sent as f64)
    }

    /// Returns the alarms that hold.
    fn holding(&self) -> Vec<Alarm> {
        let mut alarms = Vec::new();
        if let Some((since, count, failure)) = &self.absent
            && *count >= ABSENT
        {
            let since = *since;
            alarms.push(match failure.clone() {
                Failure::Unreachable(reason) => Alarm::Unreachable { since, reason },
                Failure::Refused(reason) => Alarm::Refused { since, reason },
            });
        }
        let shift = |quantity| self.levels.get(&quantity).and_then(Level::shift);
        // The typical port stands for all.
        let trips = [Quantity::Typical, Quantity::Slowest, Quantity::Fastest];
        if let Some(shift) = trips.into_iter().find_map(shift) {
            alarms.push(self.rerouted(shift));
        } else if let Some(hops) = Direction::ALL.into_iter().find_map(|direction| shift(Quantity::Hops(direction))) {
            let before = self.levels.get(&Quantity::Typical).and_then(|level| level.recent(usize::MAX)).unwrap_or(0.0);
            let rounds = self.echoes.iter().filter(|(at, _)| *at >= hops.since);
            let after = median(rounds.filter_map(|(_, echoes)| echoes.typical_s()).collect());
            alarms.push(self.rerouted(&Shift { since: hops.since, before, after, edge: 0.0 }));
        }
        for (quantity, level) in &self.levels {
            if let (Quantity::Loss(_) | Quantity::Limit(..), Some(shift)) = (quantity, level.shift()) {
                alarms.extend(self.alarm_of(*quantity, shift));
            }
        }
        alarms
    }

    /// Compares the alarms that hold with those before. Returns the changes.
    fn turn(&mut self, at: u64, others: Vec<(Turn, Alarm)>) -> Vec<Change> {
        let holding = self.holding();
        let before = std::mem::replace(&mut self.alarms, holding);
        let mut changes: Vec<Change> = others.into_iter().map(|(turn, alarm)| Change { at, turn, alarm }).collect();
        let settled: Vec<Kind> =
            changes.iter().filter(|change| change.turn == Turn::Settled).map(|change| change.alarm.kind()).collect();
        let is_open = |alarms: &[Alarm], kind: Kind| alarms.iter().any(|alarm| alarm.kind() == kind);
        for alarm in &self.alarms {
            match before.iter().find(|old| old.kind() == alarm.kind()) {
                None => changes.push(Change { at, turn: Turn::Raised, alarm: alarm.clone() }),
                // The first alarm of a path may be joined by another quantity that moved at the same time.
                Some(old) if has_moved(old, alarm) => {
                    changes.push(Change { at, turn: Turn::Moved, alarm: alarm.clone() });
                }
                Some(_) => {}
            }
        }
        for old in before {
            if !is_open(&self.alarms, old.kind()) && !settled.contains(&old.kind()) {
                changes.push(Change { at, turn: Turn::Cleared, alarm: old });
            }
        }
        // Ports of one path improve together.
        changes.dedup_by(|one, other| {
            one.turn == Turn::Improved && one.turn == other.turn && one.alarm.kind() == other.alarm.kind()
        });
        self.changes.extend(changes.iter().cloned());
        while self.changes.len() > CHANGES_MAX {
            self.changes.pop_front();
        }
        changes
    }
}

/// Returns true if an alarm tells something else than before, and not only another measurement of the same.
fn has_moved(old: &Alarm, new: &Alarm) -> bool {
    match (old, new) {
        (Alarm::Rerouted { hops: before, .. }, Alarm::Rerouted { hops, .. }) if before != hops => true,
        (Alarm::Unreachable { .. }, Alarm::Refused { .. }) | (Alarm::Refused { .. }, Alarm::Unreachable { .. }) => true,
        // Several numbers of one route shift within some rounds.
        _ => old.since().abs_diff(new.since()) > SAME_TIME_S,
    }
}
