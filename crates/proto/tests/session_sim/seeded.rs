//! Random choices determined by one seed, and a loop that runs a scenario with many seeds.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

/// SplitMix64 (Steele, Lea and Flood 2014): one seed determines a whole run.
pub struct Seeded(u64);

impl Seeded {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x9e37_79b9_7f4a_7c15)
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a uniform value in `[0, bound)`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound.max(1)
    }

    /// Returns true `per_mille` times in a thousand.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// Returns a uniform value in `[0, bound]`, in steps of a microsecond.
    pub fn up_to(&mut self, bound: Duration) -> Duration {
        Duration::from_micros(self.below(bound.as_micros() as u64 + 1))
    }
}

/// Runs `scenario` with seeds from 0 to `count`, exclusive. `STERNA_SEEDS` sets another count, and `STERNA_SEED`
/// selects one seed. On failure prints the seed and the command that replays it.
#[expect(clippy::print_stderr, reason = "the seed must be seen whatever the panic says")]
pub fn for_seeds(name: &str, count: u64, scenario: impl Fn(u64)) {
    let number = |variable: &str| -> Option<u64> {
        std::env::var(variable).ok().map(|text| text.parse().expect("seeds are numbers"))
    };
    let seeds = match number("STERNA_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("STERNA_SEEDS").unwrap_or(count),
    };
    for seed in seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| scenario(seed))) {
            eprintln!("seed {seed} fails; replay: STERNA_SEED={seed} cargo test -p sterna-proto {name}");
            resume_unwind(panic);
        }
    }
}
