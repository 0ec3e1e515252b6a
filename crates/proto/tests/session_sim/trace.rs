//! Record of a run, and the proof that a seed determines it: every item that a lane takes and every event of both state
//! machines, with its time.

use std::time::Duration;

use sterna_proto::BitRate;
use sterna_seeded::{Seeded, for_seeds};

use super::growing::growing_sizes;
use super::lane::Item;
use super::world::{Config, Side, World};
use super::{MIB, hard, mixed_sizes, side};

/// Output of one end.
#[derive(Debug, PartialEq, Eq)]
pub enum Traced {
    /// A lane has taken an item.
    Item { lane: usize, from: Side, item: Item },
    /// A state machine has emitted an event.
    Event { at: Side, event: String },
}

/// Outputs of both ends in order, each with its time.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Trace(Vec<(Duration, Traced)>);

impl Trace {
    pub fn record(&mut self, now: Duration, traced: Traced) {
        self.0.push((now, traced));
    }
}

/// Returns a scenario in which everything happens: files of all kinds, dying lanes, failures, crashes and aborts.
fn everything(random: &mut Seeded) -> Config {
    let mut config = hard(random);
    config.sizes = mixed_sizes(random);
    // Small files travel together: a lane that dies takes several with it.
    config.sizes.extend((0..random.below(200)).map(|_| random.below(100_000)));
    config.sizes.push(random.below(20) * MIB);
    config.rate = BitRate::megabits(10 + random.below(200));
    if random.chance(300) {
        config.growing = growing_sizes(random);
    }
    config.busy = random.below(300);
    config.rot = random.below(200);
    config.corrupt = random.below(100);
    config.disk_refuses = random.below(10);
    config.publish_fails = random.below(30);
    config.source_changes = random.below(30);
    config.crashes = (0..random.below(3)).map(|_| (random.below(600), side(random))).collect();
    if random.chance(200) {
        config.abort = Some((Duration::from_millis(random.below(4000)), side(random)));
    }
    config
}

/// Runs a scenario and returns its trace.
fn traced(config: Config, seed: u64) -> Trace {
    let mut world = World::new(config, seed);
    world.trace = Some(Trace::default());
    world.run();
    world.trace.unwrap_or_default()
}

/// Panics at the first difference of two traces.
fn assert_same(one: &Trace, other: &Trace) {
    for (index, (one, other)) in one.0.iter().zip(&other.0).enumerate() {
        assert_eq!(one, other, "output {index}");
    }
    assert_eq!(one.0.len(), other.0.len(), "one trace goes on");
}

#[test]
fn the_same_seed_gives_the_same_frames_events_and_times() {
    for_seeds("the_same_seed_gives_the_same_frames_events_and_times", 100, |seed| {
        let run = || traced(everything(&mut Seeded::new(seed)), seed);
        assert_same(&run(), &run());
    });
}

/// Interval of the loops that check a session without knowing its deadlines.
const TICK: Duration = Duration::from_millis(25);

#[test]
fn checks_between_the_deadlines_of_a_session_change_nothing() {
    for_seeds("checks_between_the_deadlines_of_a_session_change_nothing", 100, |seed| {
        let config = || {
            let mut random = Seeded::new(seed);
            let mut config = everything(&mut random);
            // Lost sessions are given up within the run.
            config.linger = Duration::from_secs(5);
            config.outage = random.chance(300).then(|| (Duration::from_millis(500), Duration::from_secs(20)));
            config
        };
        let ticked = Config { tick: Some(TICK), ..config() };
        assert_same(&traced(config(), seed), &traced(ticked, seed));
    });
}
