//! Random choices of tests and benches, determined by a seed.
//!
//! [`for_seeds`] and [`with_seed`] run a test; on failure they print the seed and the command that replays it.
//! `STERNA_SEED` selects one seed, and `STERNA_SEEDS` the number of seeds. Refuses to serve production code: tidy
//! allows this crate in dev-dependencies only.
//!
//! A separate crate, because unit tests of every crate use it.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

/// SplitMix64 (Steele, Lea and Flood 2014): one seed determines a whole run.
#[derive(Clone, Debug)]
pub struct Seeded(u64);

impl Seeded {
    /// Creates a generator. Adjacent seeds give independent runs.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ GOLDEN)
    }

    /// Returns a uniform value.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a uniform value in `[0, bound)`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound.max(1)
    }

    /// Returns a uniform index of a slice of this length; 0 if the slice is empty.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// Returns true `per_mille` times in a thousand.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// Returns a uniform value in `[0, bound]`, in steps of a microsecond.
    pub fn up_to(&mut self, bound: Duration) -> Duration {
        Duration::from_micros(self.below(bound.as_micros() as u64 + 1))
    }

    /// Returns `count` bytes that do not compress.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count + 8);
        while bytes.len() < count {
            bytes.extend_from_slice(&self.draw().to_le_bytes());
        }
        bytes.truncate(count);
        bytes
    }

    /// Puts values into a uniform order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        for last in (1..values.len()).rev() {
            values.swap(last, self.index(last + 1));
        }
    }
}

/// Increment of SplitMix64: 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Runs `scenario` with seeds from 0 to `count`, exclusive, or with the seeds of the environment.
pub fn for_seeds(name: &str, count: u64, scenario: impl Fn(u64)) {
    seeds(0..count).for_each(|seed| run(name, seed, || scenario(seed)));
}

/// Runs `scenario` with `seed`, or with the first seed of the environment. For tests that take seconds.
pub fn with_seed(name: &str, seed: u64, scenario: impl FnOnce(u64)) {
    let seed = number("STERNA_SEED").unwrap_or(seed);
    run(name, seed, || scenario(seed));
}

/// Returns the seeds of a test: `usual`, or those of the environment.
pub fn seeds(usual: Range<u64>) -> Range<u64> {
    match (number("STERNA_SEED"), number("STERNA_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, Some(count)) => usual.start..usual.start + count,
        (None, None) => usual,
    }
}

fn number(variable: &str) -> Option<u64> {
    // A typing error must not run another test than the one meant.
    std::env::var(variable).ok().map(|text| text.parse().expect("STERNA_SEED and STERNA_SEEDS are numbers"))
}

#[expect(clippy::print_stderr, reason = "the seed must be seen whatever the panic says")]
fn run(name: &str, seed: u64, scenario: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(scenario)) {
        // Cargo sets the name of the package whose tests it runs.
        let package = std::env::var("CARGO_PKG_NAME").map_or(String::new(), |package| format!(" -p {package}"));
        eprintln!("seed {seed} fails; replay: STERNA_SEED={seed} cargo test{package} {name}");
        resume_unwind(panic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_the_run_and_every_release_draws_the_same() {
        // State 0 gives the reference values of SplitMix64.
        let mut reference = Seeded(0);
        let first = [reference.draw(), reference.draw(), reference.draw()];
        assert_eq!(first, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
        assert_eq!(Seeded::new(7).bytes(100), Seeded::new(7).bytes(100));
        assert_ne!(Seeded::new(7).draw(), Seeded::new(8).draw());
    }

    #[test]
    fn draws_stay_within_their_bounds() {
        let mut random = Seeded::new(1);
        assert_eq!((random.below(0), random.below(1), random.index(0)), (0, 0, 0));
        assert!((0..1000).all(|_| random.below(3) < 3 && random.up_to(Duration::from_micros(5)).as_micros() <= 5));
        assert!((0..1000).all(|_| random.chance(1000) && !random.chance(0)));
        let mut values: Vec<u32> = (0..100).collect();
        random.shuffle(&mut values);
        assert!(!values.is_sorted());
        values.sort_unstable();
        assert!(values.into_iter().eq(0..100));
        assert_eq!((random.bytes(0).len(), random.bytes(9).len()), (0, 9));
    }

    #[test]
    fn a_failing_seed_ends_the_test() {
        let failed = catch_unwind(|| for_seeds("none", 3, |seed| assert!(seed < 2)));
        assert!(failed.is_err());
        for_seeds("none", 3, |_| ());
        with_seed("none", 3, |_| ());
    }
}
