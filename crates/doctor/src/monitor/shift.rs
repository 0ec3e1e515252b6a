//! Lasting shifts of a number that is measured again and again.
//!
//! The last rounds are compared with those before by the exact test of Fisher: how many are beyond a value, there and
//! here. The test needs no distribution, so jitter, outliers and several modes are no alarm; a value counts as beyond
//! only if it is so by a margin. A shift ends when rounds on its far side stay away for longer than chance.

use std::collections::VecDeque;

use crate::view::median;

/// Number of values that a level keeps. Reason: a day of rounds at the default interval, and the last ones.
const KEPT: usize = 324;

/// Numbers of last rounds that are compared with those before. Reason: three rounds at least, so that no single outlier
/// counts; some hours at most, for rare losses.
const RECENT: [usize; 12] = [3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 30, 36];

/// Parts of the last rounds that are beyond the value of a shift.
const BEYOND: [f64; 4] = [1.0, 0.75, 0.5, 0.35];

/// Smallest number of rounds beyond the value of a shift.
const BEYOND_MIN: usize = 3;

/// Chance of a false shift if each of the last rounds is far beyond all before, their smallest number, and the distance
/// as multiple of the range before. Reason: a path whose round trips differ by 0.1 ms and then by 6 ms needs no long
/// record.
const CLEAR: f64 = 1e-3;
const CLEAR_MIN: usize = 4;
const CLEAR_RANGES: f64 = 2.0;

/// Smallest number of rounds before a shift.
const BEFORE_MIN: usize = 8;

/// Chance that rounds on the far side of a shift stay away while it lasts, below which the shift has ended, as multiple
/// of the chance of a false shift. Reason: an alarm that goes and comes again costs less than a false one.
const ENDED: f64 = 10.0;

/// Part of the rounds before a shift that are below its edge. Reason: outliers are above it.
const BELOW_EDGE: f64 = 0.9;

/// Time after which a shift is the new normal, seconds. Reason: an operator has seen it, and the next one must show.
const SETTLED_S: u64 = 7 * 86_400;

/// How a level judges.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// Chance of a false shift in one comparison.
    pub chance: f64,
    /// Smallest shift.
    pub margin: f64,
    /// Smallest shift as part of the median.
    pub relative: f64,
    /// Smallest shift as multiple of the median distance from the median.
    pub spread: f64,
}

/// Level of a number, in the order of time.
#[derive(Clone, Debug)]
pub struct Level {
    rule: Rule,
    /// Values since the last shift, with their times.
    values: VecDeque<(u64, f64)>,
    centre: Centre,
    raised: Option<Raised>,
}

/// Shift of a level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shift {
    /// Time of the first value beyond it, seconds since 1970.
    pub since: u64,
    /// Median before.
    pub before: f64,
    /// Median of the values beyond its edge.
    pub after: f64,
    /// Value between both.
    pub edge: f64,
}

/// Event of a level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// The level rose.
    Raised(Shift),
    /// The level rose before, and moved again.
    Moved(Shift),
    /// It has fallen to where it was.
    Ended(Shift),
    /// It stays where it is, and is the new normal.
    Settled(Shift),
    /// It fell below where it was.
    Fell(Shift),
}

/// Level that rose.
#[derive(Clone, Debug)]
struct Raised {
    shift: Shift,
    /// Values before it.
    before: VecDeque<(u64, f64)>,
    /// Rounds since, and those beyond the edge.
    rounds: usize,
    beyond: usize,
    /// Rounds at the end that are not beyond the edge.
    back: usize,
}

/// Median and spread of the values, as of some rounds ago.
#[derive(Clone, Copy, Debug, Default)]
struct Centre {
    median: f64,
    spread: f64,
    /// Rounds until it is computed again.
    left: usize,
}

/// Rounds between two computations of the median. Reason: it moves slowly, and a year of rounds is read in seconds.
const CENTRE_EVERY: usize = 8;

impl Level {
    /// Makes a level without values.
    pub fn new(rule: Rule) -> Self {
        Self { rule, values: VecDeque::new(), centre: Centre::default(), raised: None }
    }

    /// Makes a level that had a value for some rounds before `at`.
    pub fn with(rule: Rule, at: u64, value: f64, count: usize) -> Self {
        Self { values: std::iter::repeat_n((at, value), count.min(KEPT)).collect(), ..Self::new(rule) }
    }

    /// Returns the shift that lasts.
    pub fn shift(&self) -> Option<&Shift> {
        self.raised.as_ref().map(|raised| &raised.shift)
    }

    /// Returns the median of the last `count` values.
    pub fn recent(&self, count: usize) -> Option<f64> {
        (!self.values.is_empty())
            .then(|| median(self.values.iter().rev().take(count).map(|(_, value)| *value).collect()))
    }

    /// Returns the part of the values before the last `skip` that are above a value.
    pub fn share_above(&self, value: f64, skip: usize) -> f64 {
        let count = self.values.len().saturating_sub(skip);
        let above = self.values.iter().take(count).filter(|(_, one)| *one > value).count();
        above as f64 / count.max(1) as f64
    }

    /// Returns the number of values at the end that are above a value.
    pub fn run_above(&self, value: f64) -> usize {
        self.values.iter().rev().take_while(|(_, one)| *one > value).count()
    }

    /// Takes the value of a round. Values that are no numbers are skipped.
    pub fn observe(&mut self, at: u64, value: f64) -> Option<Event> {
        if !value.is_finite() {
            return None;
        }
        if self.values.len() >= KEPT {
            self.values.pop_front();
        }
        self.values.push_back((at, value));
        self.keep_centre();
        let ended = self.raised.as_mut().and_then(|raised| raised.observe(at, value, self.rule.chance));
        if let Some(event) = ended {
            self.finish(event);
            return Some(event);
        }
        // Most rounds end here.
        if (value - self.centre.median).abs() <= self.margin() {
            return None;
        }
        let (shift, count) = self.find(value > self.centre.median)?;
        Some(self.follow(shift, count))
    }

    fn margin(&self) -> f64 {
        let Rule { margin, relative, spread, .. } = self.rule;
        margin.max(self.centre.median.abs() * relative).max(self.centre.spread * spread)
    }

    fn keep_centre(&mut self) {
        if self.centre.left > 0 {
            self.centre.left -= 1;
            return;
        }
        let middle = median(self.values.iter().map(|(_, value)| *value).collect());
        let spread = median(self.values.iter().map(|(_, value)| (value - middle).abs()).collect());
        self.centre = Centre { median: middle, spread, left: CENTRE_EVERY.min(self.values.len() / 4) };
    }

    /// Ends a raised level: its values join those from before, unless they are the new normal.
    fn finish(&mut self, event: Event) {
        let Some(raised) = self.raised.take() else { return };
        if let Event::Ended(_) = event {
            let back = self.values.split_off(self.values.len().saturating_sub(raised.back));
            self.values = raised.before;
            self.values.extend(back);
            while self.values.len() > KEPT {
                self.values.pop_front();
            }
        }
        self.centre.left = 0;
    }

    /// Returns the most certain shift of the last rounds in one direction, and the number of those rounds.
    fn find(&self, is_up: bool) -> Option<(Shift, usize)> {
        let sign = if is_up { 1.0 } else { -1.0 };
        let margin = self.margin();
        let mut best: Option<(f64, f64, usize)> = None;
        for count in RECENT {
            let Some(split) = self.values.len().checked_sub(count).filter(|split| *split >= BEFORE_MIN) else { break };
            let mut recent: Vec<f64> = self.values.range(split..).map(|(_, value)| value * sign).collect();
            recent.sort_by(f64::total_cmp);
            for part in BEYOND {
                let beyond = (count as f64 * part).ceil() as usize;
                if beyond < BEYOND_MIN {
                    continue;
                }
                let value = recent[count - beyond];
                let before = self.values.range(..split).filter(|(_, one)| one * sign >= value - margin).count();
                let chance = chance_of(beyond, count, before, split);
                let is_clear = part >= 1.0 && beyond >= CLEAR_MIN && self.is_clear(value, sign, split);
                let most = if is_clear { self.rule.chance.max(CLEAR) } else { self.rule.chance };
                if chance < most && best.is_none_or(|(least, ..)| chance < least) {
                    best = Some((chance, value, count));
                }
            }
        }
        let (_, value, count) = best?;
        let split = self.values.len() - count;
        let before = median(self.values.range(..split).map(|(_, value)| *value).collect());
        let is_beyond = |one: f64| one * sign >= value;
        let after: Vec<(u64, f64)> = self.values.range(split..).filter(|(_, one)| is_beyond(*one)).copied().collect();
        let since = after.first()?.0;
        let after = median(after.into_iter().map(|(_, value)| value).collect());
        let mut below: Vec<f64> =
            self.values.range(..split).map(|(_, one)| one * sign).filter(|one| *one < value - margin).collect();
        below.sort_by(f64::total_cmp);
        let usual = below.get((below.len() as f64 * BELOW_EDGE) as usize).copied().unwrap_or(value - margin);
        let edge = f64::midpoint(usual, value) * sign;
        Some((Shift { since, before, after, edge }, count))
    }

    /// Returns true if a value is far beyond all values of the first `split` rounds: by twice their range.
    fn is_clear(&self, value: f64, sign: f64, split: usize) -> bool {
        let before = || self.values.range(..split).map(|(_, one)| one * sign);
        let (least, most) = (before().fold(f64::INFINITY, f64::min), before().fold(f64::NEG_INFINITY, f64::max));
        self.rule.margin > 0.0 && value - most > CLEAR_RANGES * (most - least) + self.margin()
    }

    /// Records a shift of the last `count` rounds.
    fn follow(&mut self, shift: Shift, count: usize) -> Event {
        let recent = self.values.split_off(self.values.len() - count);
        let before = std::mem::replace(&mut self.values, recent);
        self.centre.left = 0;
        let first = self.raised.take();
        let from = first.as_ref().map_or(shift.before, |first| first.shift.before);
        let has_moved = first.is_some();
        let before = first.map_or(before, |first| first.before);
        // An edge is above the level that was normal.
        if shift.after <= from || shift.after < shift.before && shift.after <= from + self.rule.margin {
            let whole = Shift { before: from, ..shift };
            return if has_moved { Event::Ended(whole) } else { Event::Fell(whole) };
        }
        let edge = if shift.after > shift.before { shift.edge } else { f64::midpoint(from, shift.after) };
        let shift = Shift { before: from, edge, ..shift };
        let beyond = self.values.iter().filter(|(_, value)| *value >= edge).count();
        let back = self.values.iter().rev().take_while(|(_, value)| *value < edge).count();
        self.raised = Some(Raised { shift, before, rounds: count, beyond, back });
        if has_moved { Event::Moved(shift) } else { Event::Raised(shift) }
    }
}

impl Raised {
    /// Takes the value of a round. `chance`: of a false shift. Returns the end of the shift.
    fn observe(&mut self, at: u64, value: f64, chance: f64) -> Option<Event> {
        self.rounds += 1;
        if value >= self.shift.edge {
            (self.beyond, self.back) = (self.beyond + 1, 0);
        } else {
            self.back += 1;
        }
        // Laplace's rule, and a standard deviation less: a young shift may have more rounds below its edge than it has
        // shown, since those that led to it were selected.
        let lasted = self.rounds.saturating_sub(self.back) as f64;
        let part = (self.beyond as f64 + 1.0) / (lasted + 2.0);
        let part = part - (part * (1.0 - part) / (lasted + 2.0)).sqrt();
        let stays = (1.0 - part).powi(i32::try_from(self.back).unwrap_or(i32::MAX));
        if self.back > 0 && stays <= chance * ENDED {
            return Some(Event::Ended(self.shift));
        }
        (at.saturating_sub(self.shift.since) >= SETTLED_S).then_some(Event::Settled(self.shift))
    }
}

/// Returns the chance that at least `beyond` of `count` rounds are beyond a value if they are like the `before_count`
/// rounds before, of which `before` are beyond: the exact test of Fisher, one-sided.
pub fn chance_of(beyond: usize, count: usize, before: usize, before_count: usize) -> f64 {
    let (all, marked) = (count + before_count, beyond + before);
    let most = count.min(marked);
    let whole = ln_choose(all, count);
    let one = |drawn: usize| (ln_choose(marked, drawn) + ln_choose(all - marked, count - drawn) - whole).exp();
    // Not more can be drawn from the others than there are.
    (beyond.max(count.saturating_sub(all - marked))..=most).map(one).sum::<f64>().min(1.0)
}

/// Returns the logarithm of the number of ways to draw `count` of `all`.
fn ln_choose(all: usize, count: usize) -> f64 {
    ln_factorial(all) - ln_factorial(count) - ln_factorial(all - count.min(all))
}

/// Returns the logarithm of a factorial, by the series of Stirling from 16 on (an error below 1e-9).
fn ln_factorial(number: usize) -> f64 {
    if number < 16 {
        return (2..=number).map(|factor| (factor as f64).ln()).sum();
    }
    let n = number as f64;
    n * n.ln() - n + 0.5 * (2.0 * std::f64::consts::PI * n).ln() + 1.0 / (12.0 * n) - 1.0 / (360.0 * n.powi(3))
}

#[cfg(test)]
mod tests {
    use sterna_seeded::{Seeded, for_seeds};

    use super::*;

    const RULE: Rule = Rule { chance: 1e-6, margin: 0.5, relative: 0.01, spread: 5.0 };

    #[test]
    fn the_exact_test_counts_draws() {
        // Three of three after none of seven: one way of C(10, 3) = 120.
        assert!((chance_of(3, 3, 0, 7) - 1.0 / 120.0).abs() < 1e-12);
        // Two or three of three after one of seven: (C(3,2) 7 + 1) / 120.
        assert!((chance_of(2, 3, 1, 7) - 22.0 / 120.0).abs() < 1e-12);
        assert!((chance_of(0, 5, 3, 9) - 1.0).abs() < 1e-12);
        let exact = 1.0 / 161_700.0;
        assert!((chance_of(3, 3, 0, 97) / exact - 1.0).abs() < 1e-6);
        assert_eq!(chance_of(3, 3, 97, 97), 1.0);
    }

    fn noisy(random: &mut Seeded, level: f64) -> f64 {
        let jitter = random.below(1000) as f64 / 5000.0;
        // One round of a hundred has a queue or a pause of a host.
        level + jitter + if random.chance(10) { random.below(20_000) as f64 / 1000.0 } else { 0.0 }
    }

    #[test]
    fn a_step_is_found_soon_and_its_end_too() {
        for_seeds("a_step_is_found_soon_and_its_end_too", 50, |seed| {
            let (mut random, mut level) = (Seeded::new(seed), Level::new(RULE));
            let mut at = 0;
            let mut rounds = |level: &mut Level, random: &mut Seeded, value: f64, count: usize| {
                (0..count).find_map(|round| {
                    at += 300;
                    level.observe(at, noisy(random, value)).map(|event| (round + 1, event))
                })
            };
            assert_eq!(rounds(&mut level, &mut random, 7.9, 150), None, "no step yet");
            let Some((round, Event::Raised(shift))) = rounds(&mut level, &mut random, 11.9, 8) else {
                panic!("no shift: {level:?}")
            };
            assert!(round >= 3 && (7.9..8.2).contains(&shift.before) && shift.after > 11.8, "{round} {shift:?}");
            assert_eq!(rounds(&mut level, &mut random, 11.9, 40), None, "it lasts");
            let Some((round, Event::Ended(_))) = rounds(&mut level, &mut random, 7.9, 14) else {
                panic!("no end: {level:?}")
            };
            assert!(round >= 3 && level.shift().is_none());
            // The values from before count again.
            assert_eq!(rounds(&mut level, &mut random, 7.9, 30), None);
            let again = rounds(&mut level, &mut random, 12.9, 12);
            assert!(matches!(again, Some((_, Event::Raised(_)))), "{again:?}");
            assert_eq!(rounds(&mut level, &mut random, 12.9, 40), None);
            let more = rounds(&mut level, &mut random, 20.0, 60);
            assert!(matches!(more, Some((_, Event::Moved(shift))) if shift.before < 8.2), "{more:?} {level:?}");
        });
    }

    #[test]
    fn a_fall_is_no_rise_and_a_long_shift_is_the_new_normal() {
        let (mut random, mut level) = (Seeded::new(1), Level::new(RULE));
        let mut at = 0;
        let mut first = |level: &mut Level, value: f64, count: usize| {
            (0..count).find_map(|_| {
                at += 300;
                level.observe(at, noisy(&mut random, value))
            })
        };
        assert_eq!(first(&mut level, 11.9, 100), None);
        assert!(matches!(first(&mut level, 7.9, 6), Some(Event::Fell(shift)) if shift.after < 8.2));
        assert!(level.shift().is_none());
        assert_eq!(first(&mut level, 7.9, 100), None);
        assert!(matches!(first(&mut level, 9.9, 6), Some(Event::Raised(_))));
        assert!(matches!(first(&mut level, 9.9, 3000), Some(Event::Settled(_))));
        assert_eq!(first(&mut level, 9.9, 100), None);
        assert!(level.shift().is_none());
    }

    #[test]
    fn a_clear_step_needs_no_long_record() {
        let mut level = Level::new(RULE);
        let values = (0..11).map(|round| 20.2 + f64::from(round % 3) / 50.0).chain([26.2, 26.1, 26.2, 26.2]);
        let events: Vec<u64> =
            (0..).zip(values).filter_map(|(at, value)| level.observe(at, value).map(|_| at)).collect();
        assert_eq!((events, level.shift().map(|shift| shift.since)), (vec![14], Some(11)));
    }

    #[test]
    fn one_outlier_and_two_are_no_shift() {
        for outliers in [1, 2] {
            let mut level = Level::new(RULE);
            let values = std::iter::repeat_n(8.0, 300).chain(std::iter::repeat_n(500.0, outliers));
            let events: Vec<Event> = (0..).zip(values).filter_map(|(at, value)| level.observe(at, value)).collect();
            assert_eq!(events, []);
            assert_eq!(level.observe(999, f64::NAN), None);
        }
    }
}
