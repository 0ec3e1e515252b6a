//! What a path takes and what cores give, measured while blocks go: the arguments of the choice.
//!
//! Lanes say of every slab of data how long they waited for the transport and how long they worked. Where they mostly wait, what
//! they carry is the rate of the path; where they do not, the cores (or the disk) are what bounds, and the rate is at least that.

use std::time::{Duration, Instant};

use crate::quantity::BitRate;

/// Time over which rates are averaged. Reason: ten of the intervals in which paths of 25 ms swing.
const WINDOW: Duration = Duration::from_millis(250);

/// The same while nothing is known of the path. Reason: what is lost on one that turns out fast is a part of this.
const FIRST_WINDOW: Duration = Duration::from_millis(100);

/// Share of their time that lanes wait for the path from which the path is what bounds them.
const WAITING: f64 = 0.5;

/// Share of their time below which they do not wait for it at all.
const NOT_WAITING: f64 = 0.2;

/// Time in which no lane has anything to do after which a window begins anew: what was carried before and after it says nothing of
/// the path.
const IDLE: Duration = Duration::from_millis(20);

/// Rate that a path is taken to have while nothing is known. Reason: few paths between sites are faster, and one that is shows so in
/// some tenths of a second; blocks that a slow path was given as they are take it minutes.
const UNKNOWN_PATH: BitRate = BitRate::megabits(1000);

/// What a byte costs beside its encoding while nothing is known: reading, hashing and sealing at 1.5 GB/s.
const UNKNOWN_BASE: f64 = 1.0 / 1.5e9;

/// Weight of the last window in the mean cost of a byte.
const COST_WEIGHT: f64 = 0.25;

/// How long what the cores gave while they were the bound is believed. Reason: other work on a host comes and goes in minutes.
const CORES_BELIEVED: Duration = Duration::from_secs(60);

/// After how long blocks are sent as they are for two windows, to see what the path takes, while the cores are the bound; four times as
/// long each time, up to the second. Reason: a look at a path that has changed nothing costs half a second of half the goodput.
const LOOK_FIRST: Duration = Duration::from_secs(2);
const LOOK_LAST: Duration = Duration::from_secs(128);

/// What the choice is made from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathFacts {
    /// What the path takes; `None` while that is not known.
    pub net: Option<BitRate>,
    /// Cores that this session gets.
    pub cores: f64,
    /// Time of one core for one file byte, beside its encoding.
    pub base_seconds_per_byte: f64,
    /// Blocks are to be sent as they are, to see what the path takes.
    pub looks: bool,
}

impl PathFacts {
    pub(super) fn net_bytes_per_second(&self) -> f64 {
        self.net.unwrap_or(UNKNOWN_PATH).0 as f64 / 8.0
    }
}

/// Work of one lane since it last said so.
#[derive(Clone, Copy, Debug, Default)]
pub struct LaneWork {
    /// Bytes that the transport took.
    pub carried_bytes: u64,
    /// Time in which the lane waited for the transport.
    pub waited: Duration,
    /// Time in which it did something else.
    pub worked: Duration,
    /// Time of a core that it used, encoding included.
    pub core_time: Duration,
    /// Time of a core that it used for encoding.
    pub encoding_time: Duration,
    /// File bytes that it read.
    pub file_bytes: u64,
}

impl LaneWork {
    fn add(&mut self, other: &Self) {
        self.carried_bytes += other.carried_bytes;
        self.waited += other.waited;
        self.worked += other.worked;
        self.core_time += other.core_time;
        self.encoding_time += other.encoding_time;
        self.file_bytes += other.file_bytes;
    }
}

/// Measures a path and cores for one session.
#[derive(Debug)]
pub struct PathMeter {
    cores_max: f64,
    rate_given: Option<BitRate>,
    /// What the path took when it was the bound, or the most that it took when it was not; bytes per second.
    net: Option<f64>,
    /// What the cores gave when they were the bound, and when that was.
    cores: Option<(f64, Instant)>,
    /// What they gave in the window before, if they were the bound then.
    given_before: Option<f64>,
    base: f64,
    window: Option<(Instant, LaneWork)>,
    /// When a lane last said what it had done.
    heard: Option<Instant>,
    /// Blocks go as they are, from one window's end to another's.
    looks: Looks,
    look_interval: Duration,
    /// When the path was last the bound, or looked at.
    net_seen: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Looks {
    No,
    /// The window that runs has blocks of both kinds.
    Begun,
    /// The window that runs counts.
    Counts,
}

impl PathMeter {
    /// A meter for a host of `cores`.
    pub fn new(cores: u32) -> Self {
        Self {
            cores_max: f64::from(cores.max(1)),
            rate_given: None,
            net: None,
            cores: None,
            given_before: None,
            base: UNKNOWN_BASE,
            window: None,
            heard: None,
            looks: Looks::No,
            look_interval: LOOK_FIRST,
            net_seen: None,
        }
    }

    /// The rate that is given of the path, if it is.
    pub fn set_rate(&mut self, rate: Option<BitRate>) {
        self.rate_given = rate;
    }

    /// A lane has done `work`, which ends `now`.
    pub fn handle_work(&mut self, work: &LaneWork, now: Instant) {
        let began = now.checked_sub(work.waited + work.worked).unwrap_or(now);
        if self.heard.replace(now).is_some_and(|heard| began.saturating_duration_since(heard) > IDLE) {
            self.window = None;
        }
        let (start, sum) = self.window.get_or_insert((began, LaneWork::default()));
        sum.add(work);
        let elapsed = now.saturating_duration_since(*start);
        if elapsed >= if self.net.is_some() { WINDOW } else { FIRST_WINDOW } {
            let sum = *sum;
            self.window = Some((now, LaneWork::default()));
            self.close_window(&sum, elapsed.as_secs_f64(), now);
        }
    }

    fn close_window(&mut self, sum: &LaneWork, elapsed_s: f64, now: Instant) {
        let (waited, worked) = (sum.waited.as_secs_f64(), sum.worked.as_secs_f64());
        if waited + worked == 0.0 || sum.carried_bytes == 0 {
            return;
        }
        if sum.file_bytes > 0 {
            let cost = sum.core_time.saturating_sub(sum.encoding_time).as_secs_f64() / sum.file_bytes as f64;
            self.base += (cost - self.base) * COST_WEIGHT;
        }
        let waiting = waited / (waited + worked);
        let carried = sum.carried_bytes as f64 / elapsed_s;
        let seen = self.net_seen.get_or_insert(now);
        if waiting >= WAITING {
            self.net = Some(carried);
            *seen = now;
        } else {
            self.net = self.net.map(|net| net.max(carried));
        }
        let given = (sum.core_time.as_secs_f64() / elapsed_s).min(self.cores_max);
        let bound = waiting < NOT_WAITING && !sum.encoding_time.is_zero();
        // One window says little: lanes come up, or a file ends.
        if let Some(before) = std::mem::replace(&mut self.given_before, bound.then_some(given)).filter(|_| bound) {
            self.cores = Some((given.max(before), now));
        }
        self.turn_looks(waiting, carried, now);
    }

    /// Begins and ends the looks at a path that the cores do not fill.
    fn turn_looks(&mut self, waiting: f64, carried: f64, now: Instant) {
        match self.looks {
            Looks::No => {
                let unseen = self.net_seen.map_or(Duration::ZERO, |seen| now.saturating_duration_since(seen));
                // A rate that is given needs none: should the path take less, lanes wait for it as soon as they send more.
                let is_due = self.net.is_none() || unseen >= self.look_interval;
                if waiting < WAITING && is_due && self.rate_given.is_none() {
                    self.looks = Looks::Begun;
                }
            }
            Looks::Begun => self.looks = Looks::Counts,
            Looks::Counts => {
                // Also when the path did not make them wait: it takes this much at least.
                self.net = Some(self.net.filter(|_| waiting >= WAITING).unwrap_or(carried));
                self.net_seen = Some(now);
                self.looks = Looks::No;
                self.look_interval = (self.look_interval * 4).min(LOOK_LAST);
            }
        }
    }

    /// What is known now.
    pub fn facts(&self, now: Instant) -> PathFacts {
        let cores = self.cores.filter(|(_, at)| now.saturating_duration_since(*at) < CORES_BELIEVED);
        let measured = self.net.map(|net| BitRate::from_bytes_per_second(net as u64));
        PathFacts {
            // A rate that is given is never exceeded; less may be what there is.
            net: measured.into_iter().chain(self.rate_given).min(),
            cores: cores.map_or(self.cores_max, |(cores, _)| cores),
            base_seconds_per_byte: self.base,
            looks: self.looks != Looks::No,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `meter` for `time` with lanes that carry `megabits`, wait for `waiting` of their time and use `cores`.
    fn run(meter: &mut PathMeter, now: &mut Instant, time: Duration, (megabits, waiting, cores): (u64, f64, f64)) {
        let step = Duration::from_millis(10);
        let end = *now + time;
        while *now < end {
            *now += step;
            let bytes = BitRate::megabits(megabits).bytes_in(step).0;
            let core_time = step.mul_f64(cores);
            let work = LaneWork {
                carried_bytes: bytes,
                // Two lanes.
                waited: step.mul_f64(2.0 * waiting),
                worked: step.mul_f64(2.0 * (1.0 - waiting)),
                core_time,
                encoding_time: core_time / 2,
                file_bytes: 2 * bytes,
            };
            meter.handle_work(&work, *now);
        }
    }

    fn net(meter: &PathMeter, now: Instant) -> Option<u64> {
        meter.facts(now).net.map(|rate| rate.0 / 1_000_000)
    }

    #[test]
    fn a_rate_that_is_given_is_not_looked_for_however_busy_the_cores_are() {
        let (mut given, mut found) = (PathMeter::new(2), PathMeter::new(2));
        given.set_rate(Some(BitRate::megabits(60)));
        let mut now = Instant::now();
        let (mut given_looks, mut found_looks) = (false, false);
        for _ in 0..40 {
            let mut until = now;
            run(&mut given, &mut until, Duration::from_millis(100), (20, 0.1, 1.5));
            run(&mut found, &mut now, Duration::from_millis(100), (20, 0.1, 1.5));
            (given_looks, found_looks) = (given_looks || given.facts(now).looks, found_looks || found.facts(now).looks);
        }
        assert!(found_looks && !given_looks);
    }

    #[test]
    fn a_path_that_lanes_wait_for_is_as_fast_as_what_they_carry() {
        let (mut meter, mut now) = (PathMeter::new(2), Instant::now());
        assert_eq!(net(&meter, now), None);
        run(&mut meter, &mut now, Duration::from_secs(2), (100, 0.9, 0.1));
        assert_eq!(net(&meter, now), Some(100));
        // It becomes slower, which shows within a window.
        run(&mut meter, &mut now, Duration::from_secs(1), (30, 0.95, 0.1));
        assert_eq!(net(&meter, now), Some(30));
        assert!(!meter.facts(now).looks);
        let mut slow = PathMeter::new(2);
        slow.set_rate(Some(BitRate::megabits(5)));
        assert_eq!(net(&slow, now), Some(5), "what is given is known at once");
    }

    #[test]
    fn cores_that_are_the_bound_are_counted_for_a_while() {
        let (mut meter, mut now) = (PathMeter::new(8), Instant::now());
        assert_eq!(meter.facts(now).cores, 8.0);
        run(&mut meter, &mut now, Duration::from_secs(1), (500, 0.1, 1.5));
        assert!((meter.facts(now).cores - 1.5).abs() < 0.1, "{}", meter.facts(now).cores);
        assert_eq!(meter.facts(now + CORES_BELIEVED * 2).cores, 8.0);
    }

    #[test]
    fn a_path_that_nobody_waits_for_is_looked_at_now_and_then() {
        let (mut meter, mut now) = (PathMeter::new(2), Instant::now());
        run(&mut meter, &mut now, Duration::from_secs(1), (100, 0.9, 0.1));
        let (mut looked, mut looks) = (Duration::ZERO, 0);
        let mut before = false;
        for _ in 0..6000 {
            // Compressed, the cores give 400 Mbit/s on the wire; as they are, blocks fill the path's 900.
            let now_looks = meter.facts(now).looks;
            let does = if now_looks { (900, 0.9, 0.4) } else { (400, 0.05, 1.9) };
            run(&mut meter, &mut now, Duration::from_millis(10), does);
            looked += if now_looks { Duration::from_millis(10) } else { Duration::ZERO };
            looks += u32::from(now_looks && !before);
            before = now_looks;
        }
        assert_eq!(net(&meter, now), Some(900));
        // After two seconds, eight, and thirty-two, of a minute.
        assert_eq!(looks, 3);
        assert!(looked < Duration::from_secs(3), "{looked:?}");
    }

    #[test]
    fn a_path_of_which_nothing_is_known_is_looked_at_soon() {
        let (mut meter, mut now) = (PathMeter::new(2), Instant::now());
        let start = now;
        while net(&meter, now).is_none() {
            let does = if meter.facts(now).looks { (9000, 0.3, 1.9) } else { (3000, 0.05, 1.9) };
            run(&mut meter, &mut now, Duration::from_millis(10), does);
        }
        assert!(net(&meter, now) >= Some(8900), "{:?}", net(&meter, now));
        assert!(now - start < Duration::from_millis(400), "{:?}", now - start);
    }

    #[test]
    fn lanes_without_work_say_nothing_of_the_path() {
        let (mut meter, mut now) = (PathMeter::new(2), Instant::now());
        run(&mut meter, &mut now, Duration::from_secs(1), (100, 0.9, 0.1));
        for _ in 0..100 {
            now += Duration::from_millis(240);
            let work = LaneWork { carried_bytes: 1000, waited: Duration::from_millis(10), ..LaneWork::default() };
            meter.handle_work(&work, now);
        }
        assert_eq!(net(&meter, now), Some(100));
    }
}
