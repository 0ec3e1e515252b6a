//! Measurement of the path's rate and of the cores' capacity while blocks travel: the input for the choice of an
//! encoding.
//!
//! Lanes report for every slab the time they waited for the transport and the time they worked. If they mostly wait,
//! the bytes they carry give the rate of the path. Otherwise the cores or the disk are the bottleneck, and the carried
//! rate is a lower bound of the path's rate.
//!
//! Refuses to read a clock. Times and work reports come in as arguments; [`PathFacts`] leave.

use std::time::{Duration, Instant};

use crate::quantity::BitRate;

/// Time over which rates are averaged. Reason: ten round trips of a path of 25 ms, whose rate varies from one round
/// trip to the next.
const WINDOW: Duration = Duration::from_millis(250);

/// The same time while nothing is known about the path. Reason: on a path that turns out to be fast, the loss is
/// limited to a fraction of this time.
const FIRST_WINDOW: Duration = Duration::from_millis(100);

/// Share of time that lanes wait for the transport at and above which the path counts as the bottleneck.
const WAITING: f64 = 0.5;

/// Share of time that lanes wait for the transport below which they do not count as waiting at all.
const NOT_WAITING: f64 = 0.2;

/// Idle time of all lanes after which a new window begins. Reason: bytes carried before and after an idle time do not
/// show the rate of the path.
const IDLE: Duration = Duration::from_millis(20);

/// Assumed rate of an unknown path. Reason: few paths between sites are faster, and a faster one is detected within
/// some tenths of a second. Blocks sent uncompressed on a slow path would take minutes.
const UNKNOWN_PATH: BitRate = BitRate::megabits(1000);

/// Assumed core time per byte, without encoding, while unknown: reading, hashing and encryption at 1.5 GB/s.
const UNKNOWN_BASE: f64 = 1.0 / 1.5e9;

/// Weight of the last window in the moving average of the cost per byte.
const COST_WEIGHT: f64 = 0.25;

/// Time for which the measured capacity of busy cores remains valid. Reason: other work on a host comes and goes in
/// minutes.
const CORES_BELIEVED: Duration = Duration::from_secs(60);

/// Interval between probes while the cores are the bottleneck. A probe sends blocks uncompressed for two windows, to
/// measure the path. The interval starts at `LOOK_FIRST` and grows by a factor of four up to `LOOK_LAST`. Reason: a
/// probe that changes nothing costs half a second at half the goodput.
const LOOK_FIRST: Duration = Duration::from_secs(2);
const LOOK_LAST: Duration = Duration::from_secs(128);

/// Input for the choice of an encoding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathFacts {
    /// Rate of the path; `None` while unknown.
    pub net: Option<BitRate>,
    /// Number of cores available to this session.
    pub cores: f64,
    /// Core time per file byte in seconds, without encoding.
    pub base_seconds_per_byte: f64,
    /// True during a probe: blocks are sent uncompressed to measure the path.
    pub looks: bool,
}

impl PathFacts {
    pub(super) fn net_bytes_per_second(&self) -> f64 {
        self.net.unwrap_or(UNKNOWN_PATH).0 as f64 / 8.0
    }
}

/// Work of one lane since its last report.
#[derive(Clone, Copy, Debug, Default)]
pub struct LaneWork {
    /// Bytes that the transport accepted.
    pub carried_bytes: u64,
    /// Time that the lane waited for the transport.
    pub waited: Duration,
    /// Time that the lane spent otherwise.
    pub worked: Duration,
    /// Core time of the lane, including encoding.
    pub core_time: Duration,
    /// Core time of the lane for encoding.
    pub encoding_time: Duration,
    /// File bytes that the lane read.
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

/// Meter of path and cores for one session.
#[derive(Debug)]
pub struct PathMeter {
    cores_max: f64,
    rate_given: Option<BitRate>,
    /// Rate of the path in bytes/s when the path was the bottleneck; otherwise the highest rate seen since.
    net: Option<f64>,
    /// Capacity of the cores when they were the bottleneck, and the time of that measurement.
    cores: Option<(f64, Instant)>,
    /// Capacity in the previous window, if the cores were the bottleneck then.
    given_before: Option<f64>,
    base: f64,
    window: Option<(Instant, LaneWork)>,
    /// Time of the last work report of a lane.
    heard: Option<Instant>,
    /// State of the probe. A probe starts and ends with a window.
    looks: Looks,
    look_interval: Duration,
    /// Time when the path was last the bottleneck, or last probed.
    net_seen: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Looks {
    No,
    /// The current window contains compressed and uncompressed blocks.
    Begun,
    /// The current window is measured.
    Counts,
}

impl PathMeter {
    /// Returns a meter for a host with `cores` cores.
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

    /// Sets the rate of the path that the user gave, if any.
    pub fn set_rate(&mut self, rate: Option<BitRate>) {
        self.rate_given = rate;
    }

    /// Records `work` of a lane, up to `now`.
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
        // A single window is not reliable: lanes may come up, or a file may end.
        if let Some(before) = std::mem::replace(&mut self.given_before, bound.then_some(given)).filter(|_| bound) {
            self.cores = Some((given.max(before), now));
        }
        self.turn_looks(waiting, carried, now);
    }

    /// Starts and ends probes of a path that the cores do not fill.
    fn turn_looks(&mut self, waiting: f64, carried: f64, now: Instant) {
        match self.looks {
            Looks::No => {
                let unseen = self.net_seen.map_or(Duration::ZERO, |seen| now.saturating_duration_since(seen));
                // A given rate needs no probe: if the path carries less, lanes start to wait as soon as they send more.
                let is_due = self.net.is_none() || unseen >= self.look_interval;
                if waiting < WAITING && is_due && self.rate_given.is_none() {
                    self.looks = Looks::Begun;
                }
            }
            Looks::Begun => self.looks = Looks::Counts,
            Looks::Counts => {
                // If lanes did not wait for the path, the carried rate is a lower bound.
                self.net = Some(self.net.filter(|_| waiting >= WAITING).unwrap_or(carried));
                self.net_seen = Some(now);
                self.looks = Looks::No;
                self.look_interval = (self.look_interval * 4).min(LOOK_LAST);
            }
        }
    }

    /// Returns the current figures.
    pub fn facts(&self, now: Instant) -> PathFacts {
        let cores = self.cores.filter(|(_, at)| now.saturating_duration_since(*at) < CORES_BELIEVED);
        let measured = self.net.map(|net| BitRate::from_bytes_per_second(net as u64));
        PathFacts {
            // A given rate is never exceeded; the path may carry less.
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

    /// Feeds `meter` for `time` with lanes that carry `megabits`, wait for the share `waiting` of their time and use
    /// `cores`.
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
        // A slower path shows within one window.
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
            // With compression, the cores deliver 400 Mbit/s on the wire. Without, blocks fill the path's 900 Mbit/s.
            let now_looks = meter.facts(now).looks;
            let does = if now_looks { (900, 0.9, 0.4) } else { (400, 0.05, 1.9) };
            run(&mut meter, &mut now, Duration::from_millis(10), does);
            looked += if now_looks { Duration::from_millis(10) } else { Duration::ZERO };
            looks += u32::from(now_looks && !before);
            before = now_looks;
        }
        assert_eq!(net(&meter, now), Some(900));
        // In one minute, probes after 2, 8 and 32 seconds.
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
