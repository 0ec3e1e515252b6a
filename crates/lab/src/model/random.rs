//! A small seeded generator: the same seed gives the same path on every machine and in every release.

/// SplitMix64: one addition and three mixing steps per draw. Every seed is a good seed.
///
/// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014. Not for secrets.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: u64,
}

impl Random {
    /// Creates an independent stream for each `purpose`. Enabling one impairment does not change the choices of the
    /// others.
    pub(crate) fn new(seed: u64, purpose: u64) -> Self {
        Self { state: mix(seed ^ mix(purpose.wrapping_add(GOLDEN))) }
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// Returns true with probability `threshold` / 2^64, see [`threshold`].
    pub(crate) fn chance(&mut self, threshold: u64) -> bool {
        threshold != 0 && self.draw() <= threshold
    }

    /// Returns a uniform value in `[0, bound]`.
    pub(crate) fn up_to(&mut self, bound: u64) -> u64 {
        ((u128::from(self.draw()) * (u128::from(bound) + 1)) >> 64) as u64
    }
}

/// Returns the threshold for [`Random::chance`] of a probability in `[0, 1]`.
pub(crate) fn threshold(probability: f64) -> u64 {
    // The cast saturates at both ends. 1.0 gives u64::MAX, and no draw exceeds this value.
    (probability * 2f64.powi(64)) as u64
}

/// Finaliser of the generator; also hashes flows.
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
