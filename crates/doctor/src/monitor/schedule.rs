//! Schedule: which peer is visited when, and whether a throughput test is due and within the budget.
//!
//! One visit at a time, and times with random parts: agents that start together and measure each other do not meet for
//! ever. Nothing waits for a place at a peer, so there is no deadlock.

use std::time::Duration;

use sterna_net::measure::EchoSpec;
use sterna_proto::BitRate;

/// Echoes of a visit. Reason: 16 flows see a path that one of five flows takes, with 97 % probability; 3.2 s and 320
/// packets of 100 kbit/s are no load.
pub const ECHOES: EchoSpec = EchoSpec { ports: 16, per_port: 20, interval_us: 10_000, packet_bytes: 128 };

/// Time between two tests of a peer, unless one is to be confirmed.
const TEST_EVERY: Duration = Duration::from_secs(3600);

/// Shortest and longest test in one direction: time beside slow start, and the most that an examination waits for.
const TEST_TIME_MIN: Duration = Duration::from_secs(2);
const TEST_TIME_MAX: Duration = Duration::from_secs(10);

/// Round trips of a test beyond [`TEST_TIME_MIN`]. Reason: slow start to 100 Mbit/s over 200 ms takes 8.
const TEST_ROUNDS: u32 = 12;

/// Lowest cap of a test. Reason: below it, a limit of a path for science data does not show.
const TEST_RATE_MIN: BitRate = BitRate(1_000_000);

/// Time over which a budget is spent.
const DAY: Duration = Duration::from_secs(86_400);

/// Part of the interval by which a visit is early or late at most.
const JITTER: f64 = 0.1;

/// First wait for a place that somebody else has. Reason: about the time of a visit without tests.
const BUSY_WAIT: Duration = Duration::from_secs(5);

/// Doublings of that wait.
const BUSY_DOUBLINGS: u32 = 4;

/// Part of the interval after which a peer that failed is visited again, and the number of failures after which it is
/// visited at the interval. Reason: three failures are an alarm, and a peer that is away holds the place for seconds.
const FAILED_PART: u32 = 4;
const FAILED_SOON: u32 = 4;

/// Settings of a schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Time between two visits of a peer.
    pub every: Duration,
    /// Bytes over all paths in a day.
    pub budget_bytes: u64,
    /// Cap of the rate of a throughput test.
    pub rate: BitRate,
}

/// Throughput test of a visit, in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TestPlan {
    /// Cap of the rate.
    pub rate: BitRate,
    /// Time of each direction.
    pub time: Duration,
    /// Maximum of data of each direction.
    pub bytes_max: u64,
}

impl TestPlan {
    /// Returns the bytes of both directions.
    pub fn cost_bytes(&self) -> u64 {
        self.bytes_max.saturating_mul(2)
    }
}

/// Visits of some peers. Times are since the start.
#[derive(Clone, Debug)]
pub struct Schedule {
    settings: Settings,
    peers: Vec<Peer>,
    random: u64,
}

#[derive(Clone, Debug)]
struct Peer {
    due: Duration,
    busy: u32,
    failed: u32,
    /// Earliest next test.
    test: Duration,
    /// Bytes that may be sent at `at`.
    left: f64,
    at: Duration,
    rtt: Duration,
}

impl Schedule {
    /// Makes a schedule. `spent`: bytes of the tests of the last day, by peer. `seed`: random.
    pub fn new(settings: Settings, spent: &[u64], seed: u64) -> Self {
        let mut schedule = Self { settings, peers: Vec::new(), random: seed };
        let share = settings.budget_bytes as f64 / spent.len().max(1) as f64;
        for spent in spent {
            let part = schedule.part();
            schedule.peers.push(Peer {
                due: settings.every.mul_f64(part),
                busy: 0,
                failed: 0,
                test: Duration::ZERO,
                left: share - *spent as f64,
                at: Duration::ZERO,
                rtt: Duration::ZERO,
            });
        }
        schedule
    }

    /// Returns the peer that is visited next, and when; `None` without peers.
    pub fn next(&self) -> Option<(usize, Duration)> {
        self.peers.iter().enumerate().map(|(index, peer)| (index, peer.due)).min_by_key(|(_, due)| *due)
    }

    /// Returns the throughput test of a visit; `None`: none is due, or the budget is used up. `is_wanted`: the last one
    /// is to be confirmed.
    pub fn test(&mut self, peer: usize, now: Duration, is_wanted: bool) -> Option<TestPlan> {
        let share = self.share();
        let rate = self.settings.rate;
        let peer = self.peers.get_mut(peer)?;
        let time = (TEST_TIME_MIN + peer.rtt * TEST_ROUNDS).min(TEST_TIME_MAX);
        // With many peers the tests are slower, so that the budget has one for each a day.
        let affordable = BitRate((share / 2.0 * 8.0 / time.as_secs_f64()) as u64);
        let rate = rate.min(affordable);
        if rate < TEST_RATE_MIN {
            return None;
        }
        let plan = TestPlan { rate, time, bytes_max: rate.bytes_in(time).0 };
        let cost = plan.cost_bytes() as f64;
        peer.left += share / DAY.as_secs_f64() * now.saturating_sub(peer.at).as_secs_f64();
        // Bytes that a day leaves over are not saved, except for one test.
        peer.left = peer.left.min(share.max(cost));
        peer.at = now;
        let is_due = now >= peer.test || is_wanted;
        (is_due && peer.left >= cost && share > 0.0).then_some(plan)
    }

    /// Records a visit with measurements that ended now. `bytes`: those of its tests.
    pub fn handle_round(&mut self, peer: usize, now: Duration, bytes: u64, test: Option<TestPlan>) {
        let late = self.settings.every.mul_f64(1.0 - JITTER + 2.0 * JITTER * self.part());
        let share = self.share();
        if let Some(peer) = self.peers.get_mut(peer) {
            (peer.busy, peer.failed, peer.due) = (0, 0, now + late);
            peer.left -= bytes as f64;
            if let Some(plan) = test {
                let within_budget = DAY.mul_f64((plan.cost_bytes() as f64 / share).min(365.0));
                peer.test = now + TEST_EVERY.max(within_budget.mul_f64(1.0 - JITTER));
            }
        }
    }

    /// Records the round trip of a peer, for the time of the next test.
    pub fn handle_rtt(&mut self, peer: usize, rtt: Duration) {
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.rtt = rtt;
        }
    }

    /// Records that this host or the peer has a measurement with somebody else.
    pub fn handle_busy(&mut self, peer: usize, now: Duration) {
        let part = self.part() + 0.5;
        let (every, first) = (self.settings.every, BUSY_WAIT.min(self.settings.every / 10));
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.due = now + (first * (1 << peer.busy)).min(every).mul_f64(part);
            peer.busy = (peer.busy + 1).min(BUSY_DOUBLINGS);
        }
    }

    /// Records a visit without measurements.
    pub fn handle_failure(&mut self, peer: usize, now: Duration) {
        let part = self.part() + 0.5;
        let every = self.settings.every;
        if let Some(peer) = self.peers.get_mut(peer) {
            let wait = if peer.failed < FAILED_SOON { every / FAILED_PART } else { every };
            (peer.busy, peer.due, peer.failed) = (0, now + wait.mul_f64(part), peer.failed.saturating_add(1));
        }
    }

    /// Returns the bytes of each peer in a day.
    fn share(&self) -> f64 {
        self.settings.budget_bytes as f64 / self.peers.len().max(1) as f64
    }

    /// Returns a random part from 0 to 1 (SplitMix64).
    fn part(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as f64 / u64::MAX as f64
    }
}

#[cfg(test)]
mod tests {
    use sterna_seeded::{Seeded, for_seeds};

    use super::*;

    fn settings(every_s: u64, budget_bytes: u64) -> Settings {
        Settings { every: Duration::from_secs(every_s), budget_bytes, rate: BitRate::megabits(100) }
    }

    /// Agent of a simulation: its schedule, and the end of the visit that holds its place.
    struct Agent {
        schedule: Schedule,
        held_until: Duration,
        visits: Vec<usize>,
    }

    /// Runs agents of which each visits the others. Returns the visits by agent and peer.
    fn simulate(seed: u64, agents: usize, peers_of: impl Fn(usize) -> Vec<usize>, time: Duration) -> Vec<Vec<usize>> {
        let mut random = Seeded::new(seed);
        let mut all: Vec<Agent> = (0..agents)
            .map(|agent| {
                let count = peers_of(agent).len();
                let schedule = Schedule::new(settings(300, 1_000_000_000), &vec![0; count], random.draw());
                Agent { schedule, held_until: Duration::ZERO, visits: vec![0; count] }
            })
            .collect();
        loop {
            let next = all.iter().enumerate().filter_map(|(agent, one)| Some((agent, one.schedule.next()?)));
            let Some((agent, (peer, due))) = next.min_by_key(|(_, (_, due))| *due) else { break };
            // A visit begins when the one before has ended: an agent has one thread for all.
            let now = due.max(Duration::ZERO);
            if now > time {
                break;
            }
            let other = peers_of(agent)[peer];
            if all[agent].held_until > now || all[other].held_until > now {
                all[agent].schedule.handle_busy(peer, now);
                continue;
            }
            let test = all[agent].schedule.test(peer, now, false);
            let length = Duration::from_secs(4) + test.map_or(Duration::ZERO, |test| test.time * 2);
            all[agent].held_until = now + length;
            all[other].held_until = now + length;
            let bytes = test.map_or(0, |test| test.cost_bytes());
            all[agent].schedule.handle_round(peer, now + length, bytes, test);
            all[agent].visits[peer] += 1;
        }
        all.into_iter().map(|agent| agent.visits).collect()
    }

    #[test]
    fn agents_in_a_ring_and_in_a_mesh_never_starve() {
        for_seeds("agents_in_a_ring_and_in_a_mesh_never_starve", 30, |seed| {
            let day = Duration::from_secs(86_400);
            let ring = simulate(seed, 3, |agent| vec![(agent + 1) % 3], day);
            for visits in ring.iter().flatten() {
                // 288 without others.
                assert!((250..=300).contains(visits), "{ring:?}");
            }
            let mesh = simulate(seed, 8, |agent| (0..8).filter(|other| *other != agent).collect(), day);
            for visits in mesh.iter().flatten() {
                assert!((150..=300).contains(visits), "{mesh:?}");
            }
        });
    }

    #[test]
    fn tests_keep_the_budget_of_the_day_over_restarts() {
        for_seeds("tests_keep_the_budget_of_the_day_over_restarts", 20, |seed| {
            let of = settings(300, 1_000_000_000);
            for peers in [1, 3, 40] {
                let mut spent = vec![0; peers];
                let mut tests = 0;
                // The agent starts anew four times a day.
                for start in 0..4 {
                    let mut schedule = Schedule::new(of, &spent, seed * 4 + start);
                    while let Some((peer, now)) = schedule.next().filter(|(_, now)| *now < DAY / 4) {
                        let test = schedule.test(peer, now, false);
                        let bytes = test.map_or(0, |test| test.cost_bytes());
                        spent[peer] += bytes;
                        tests += usize::from(test.is_some());
                        schedule.handle_round(peer, now, bytes, test);
                    }
                }
                let sum: u64 = spent.iter().sum();
                // The share of the first day, and what comes in during it.
                assert!(sum <= 2 * of.budget_bytes, "{peers} peers: {sum}");
                assert!(tests > 0, "{peers} peers without a test");
            }
        });
    }

    #[test]
    fn a_test_is_due_hourly_or_when_it_is_wanted_and_never_without_a_budget() {
        let mut schedule = Schedule::new(settings(300, 10_000_000_000), &[0], 1);
        let now = Duration::from_secs(100);
        schedule.handle_rtt(0, Duration::from_millis(100));
        let plan = schedule.test(0, now, false).unwrap();
        assert_eq!((plan.time, plan.bytes_max), (Duration::from_millis(3200), 40_000_000));
        schedule.handle_round(0, now, plan.cost_bytes(), Some(plan));
        let soon = now + Duration::from_secs(300);
        assert_eq!(schedule.test(0, soon, false), None);
        assert!(schedule.test(0, soon, true).is_some());
        assert!(schedule.test(0, now + TEST_EVERY, false).is_some());
        for (budget, spent) in [(0, 0), (10_000_000_000, 9_990_000_000)] {
            assert_eq!(Schedule::new(settings(300, budget), &[spent], 1).test(0, now, true), None);
        }
        assert_eq!(Schedule::new(settings(300, 1), &[], 1).next(), None);
    }

    #[test]
    fn waits_for_a_place_grow_and_stay_below_the_interval() {
        let mut schedule = Schedule::new(settings(300, 0), &[0], 7);
        let wait = |schedule: &mut Schedule| {
            schedule.handle_busy(0, Duration::ZERO);
            schedule.next().map(|(_, due)| due.as_secs_f64()).unwrap_or_default()
        };
        assert!((2.5..=7.5).contains(&wait(&mut schedule)));
        let last = (0..10).map(|_| wait(&mut schedule)).last().unwrap();
        assert!((40.0..=120.0).contains(&last), "{last}");
        schedule.handle_failure(0, Duration::ZERO);
        assert!((37.0..=113.0).contains(&schedule.next().unwrap().1.as_secs_f64()));
        (0..9).for_each(|_| schedule.handle_failure(0, Duration::ZERO));
        assert!((150.0..=450.0).contains(&schedule.next().unwrap().1.as_secs_f64()));
    }
}
