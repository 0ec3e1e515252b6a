//! Token buckets: the policer, which drops the packets above its rate, and the shaper, which delays them.
//!
//! Time enters as nanoseconds since the start of the path. Neither reads a clock nor allocates.

use std::time::Duration;

use super::time::{BITS_NS_PER_BYTE, nanos};
use super::{Policer, Shaper};

/// A bucket that fills with time.
#[derive(Clone, Debug)]
struct Tokens {
    rate_bits: u64,
    depth: u128,
    /// Tokens in bits times 10^9, so that filling by nanoseconds is exact.
    level: u128,
    filled_ns: u64,
}

impl Tokens {
    fn full(rate_bits: u64, burst_bytes: u64) -> Self {
        let depth = u128::from(burst_bytes) * u128::from(BITS_NS_PER_BYTE);
        Self { rate_bits, depth, level: depth, filled_ns: 0 }
    }

    fn fill(&mut self, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(self.filled_ns);
        self.filled_ns = self.filled_ns.max(now_ns);
        let filled = u128::from(elapsed_ns) * u128::from(self.rate_bits);
        self.level = self.level.saturating_add(filled).min(self.depth);
    }
}

fn cost(len: usize) -> u128 {
    len as u128 * u128::from(BITS_NS_PER_BYTE)
}

/// State of a [`Policer`].
#[derive(Clone, Debug)]
pub(super) struct PolicerBucket {
    tokens: Tokens,
    udp_only: bool,
}

impl PolicerBucket {
    pub(super) fn full(model: Policer) -> Self {
        Self { tokens: Tokens::full(model.rate.0, model.burst.0), udp_only: model.udp_only }
    }

    /// Returns true if the policer limits only UDP.
    pub(super) fn is_udp_only(&self) -> bool {
        self.udp_only
    }

    /// Returns true if the packet passes, and takes its tokens.
    pub(super) fn passes(&mut self, now_ns: u64, len: usize) -> bool {
        self.tokens.fill(now_ns);
        let passes = self.tokens.level >= cost(len);
        if passes {
            self.tokens.level -= cost(len);
        }
        passes
    }
}

/// State of a [`Shaper`].
#[derive(Clone, Debug)]
pub(super) struct ShaperBucket {
    tokens: Tokens,
    queue_bytes: u64,
    queue_ns: u64,
    /// Time when the last accepted packet has its tokens.
    last_ns: u64,
}

impl ShaperBucket {
    pub(super) fn full(model: Shaper, rtt: Duration) -> Self {
        let rate_bits = model.rate.0.max(1);
        let queue = model.queue.bytes(model.rate, rtt);
        let queue_ns = nanos(model.rate.time_for(queue));
        Self { tokens: Tokens::full(rate_bits, model.burst.0), queue_bytes: queue.0, queue_ns, last_ns: 0 }
    }

    /// Returns the time when a packet of `len` bytes leaves the shaper, or `None` when the queue is full.
    pub(super) fn pass(&mut self, now_ns: u64, len: usize) -> Option<u64> {
        // While packets wait the bucket is empty, so the waiting bytes are the time until the last has its tokens.
        if self.last_ns.saturating_sub(now_ns) > self.queue_ns {
            return None;
        }
        let tokens = &mut self.tokens;
        let head_ns = self.last_ns.max(now_ns);
        tokens.fill(head_ns);
        let missing = cost(len).saturating_sub(tokens.level);
        let rate = u128::from(tokens.rate_bits);
        let wait_ns = u64::try_from(missing.div_ceil(rate)).unwrap_or(u64::MAX);
        self.last_ns = head_ns.saturating_add(wait_ns);
        // The tokens of the wait are used at once, so the size of the bucket does not limit them.
        tokens.level = (tokens.level + u128::from(wait_ns) * rate).saturating_sub(cost(len));
        tokens.filled_ns = self.last_ns;
        Some(self.last_ns)
    }

    /// Returns the most bytes that wait for tokens.
    pub(super) fn queue_bytes(&self) -> u128 {
        u128::from(self.queue_bytes)
    }
}
