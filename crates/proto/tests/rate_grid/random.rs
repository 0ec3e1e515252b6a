//! Random paths and hosts: measures the share of the achievable rate at which the rate control settles.
//!
//! A seed determines each cell and is printed with its result. `STERNA_SEED=7` runs this cell only. `STERNA_SEEDS=500`
//! runs 500 cells with fresh seeds.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use sterna_lab::LinkModel;
use sterna_lab::model::{Policer, Queue, Reorder};
use sterna_proto::rate::RateContract;
use sterna_proto::{BitRate, ByteCount};
use sterna_seeded::{Seeded, seeds};

use crate::given::busy_machine;
use crate::lanes_for;
use crate::path::{Hosts, Path, Setup, Socket};

/// Cells per run. Reason: takes some seconds.
const CELLS: u64 = 16;

/// Smallest share of the achievable rate at which a cell must settle.
const LEAST: f64 = 0.8;

/// Most packets per cell. Reason: takes one second of real time.
const PACKETS_MOST: u64 = 1_000_000;

/// One cell: the setup and the achievable rate.
struct Cell {
    setup: Setup,
    achievable: BitRate,
    name: String,
}

/// Returns a value from a log-uniform distribution between `least` and `most`.
fn between(random: &mut Seeded, least: f64, most: f64) -> f64 {
    let part = random.below(1 << 20) as f64 / f64::from(1 << 20);
    least * (most / least).powf(part)
}

impl Cell {
    fn new(seed: u64) -> Self {
        let mut random = Seeded::new(seed);
        let rate = BitRate((between(&mut random, 4.0, 2000.0) * 1e6) as u64);
        let rtt = Duration::from_micros((between(&mut random, 8.0, 660.0) * 1e3) as u64);
        let mut link = LinkModel::clean(rate, rtt);
        link.seed = seed;
        let mut name = format!("{rate}, {} ms", rtt.as_millis());
        let mut add = |what: String| name = format!("{name}, {what}");
        if rate > BitRate::megabits(500) && random.chance(500) {
            link.mtu = 9000;
            add("MTU 9000".to_owned());
        }
        let queue = between(&mut random, 0.1, 1.5);
        // Two bursts of a pacer, as for policers.
        let least = ByteCount((16 * u64::from(link.mtu)).max((rate.0 as f64 / 8.0 * 0.004) as u64));
        link.forward.queue = Queue::Bdp(queue);
        link.forward.queue = Queue::Bytes(link.forward.queue_bytes(rtt).max(least));
        add(format!("queue of {queue:.2} BDP"));
        let mut achievable = rate;
        if random.chance(200) {
            achievable = BitRate((rate.0 as f64 * between(&mut random, 0.3, 0.9)) as u64);
            // At least two bursts of a pacer: a smaller bucket passes almost nothing.
            let least = (achievable.0 as f64 / 8.0 * 0.004).max(32e3);
            let burst = ByteCount(between(&mut random, least, least * 30.0) as u64);
            link.forward.policer = Some(Policer { rate: achievable, burst, udp_only: false });
            add(format!("policer of {achievable} with {burst}"));
        }
        if random.chance(500) {
            link.forward.loss = between(&mut random, 1e-5, 0.03);
            achievable = BitRate((achievable.0 as f64 * (1.0 - link.forward.loss)) as u64);
            add(format!("loss of {:.5}", link.forward.loss));
        }
        if random.chance(250) {
            let (probability, delay) = (between(&mut random, 1e-3, 0.05), random.up_to(Duration::from_millis(5)));
            link.forward.reorder = Some(Reorder { probability, delay });
            add(format!("{probability:.4} late by {} us", delay.as_micros()));
        }
        if random.chance(150) {
            link.forward.jitter = random.up_to(Duration::from_millis(5));
            add(format!("jitter of {} us", link.forward.jitter.as_micros()));
        }
        if random.chance(200) {
            link.reverse.rate = BitRate(rate.0 / (60 + random.below(140)));
            link.reverse.queue = Queue::Bytes(ByteCount(75_000));
            add(format!("{} back", link.reverse.rate));
        }
        let mut hosts = Hosts::default();
        if random.chance(250) {
            let read = BitRate((rate.0 as f64 * between(&mut random, 0.5, 1.0)) as u64);
            let buffer = ByteCount(between(&mut random, 2e6, 16e6) as u64);
            hosts.receives = Some(Socket { rate: read, buffer });
            achievable = achievable.min(read);
            add(format!("host that reads {read} from {buffer}"));
        }
        let duration = (rtt * 60).clamp(Duration::from_secs(10), Duration::from_secs(30));
        let most = Duration::from_secs_f64(PACKETS_MOST as f64 * f64::from(link.mtu) * 8.0 / rate.0 as f64);
        let duration = duration.min(most.max(rtt * 20));
        let contract = RateContract { expected_rtt: Some(rtt), ..RateContract::default() };
        let mut setup = Setup { hosts, ..Setup::new(&link, contract, lanes_for(rate, link.mtu), duration) };
        if random.chance(150) {
            let (longest, apart) = (6 + random.below(12), 150 + random.below(400));
            setup.stalls = busy_machine(seed, longest, apart, duration);
            add(format!("both hosts stall for up to {longest} ms each {apart}"));
        }
        Self { setup, achievable, name }
    }

    /// Returns the share of the achievable rate and the share of lost packets, both in the second half.
    fn run(&self) -> (f64, f64) {
        let (from, to) = (self.setup.duration / 2, self.setup.duration);
        let (tally, _) = Path::new(self.setup.clone()).run();
        let running = 1.0 - self.stalled(from..to);
        (tally.delivered(from, to).0 as f64 / (self.achievable.0 as f64 * running), tally.lost(from, to))
    }

    /// Returns the share of a time range in which the hosts are stalled.
    fn stalled(&self, time: std::ops::Range<Duration>) -> f64 {
        let within = self.setup.stalls.iter().filter(|stall| time.contains(&stall.when.start));
        within.map(|stall| (stall.when.end - stall.when.start).as_secs_f64()).sum::<f64>()
            / (time.end - time.start).as_secs_f64()
    }
}

#[test]
fn random_cells_reach_what_is_achievable() {
    let first = RandomState::new().build_hasher().finish() >> 32;
    let mut failed = Vec::new();
    for seed in seeds(first..first + CELLS) {
        let cell = Cell::new(seed);
        let (settled, lost) = cell.run();
        let said = format!("STERNA_SEED={seed}: {settled:.2} of {}, lost {lost:.4}: {}", cell.achievable, cell.name);
        println!("{said}");
        if settled < LEAST {
            failed.push(said);
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
