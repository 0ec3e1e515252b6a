//! First-flight credit: the data that peers may send before a listener has admitted them. Sans-IO.
//!
//! A push sends data right behind the handshake, one round trip before this end can answer. A small window for all
//! peers would therefore cost every push that round trip. Windows come out of one pool instead: each new lane gets
//! a quarter of the rest of the pool. A few lanes at a time get all that they can use, and a flood shares an amount
//! that does not grow.

use std::sync::Arc;

use parking_lot::Mutex;
use sterna_proto::ByteCount;

/// Pool of receive windows that a listener may grant to peers it has not admitted yet; clones share the pool.
#[derive(Clone, Debug)]
pub(super) struct CreditPool(Arc<Mutex<ByteCount>>);

impl CreditPool {
    /// Creates a full pool.
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(CREDIT_BYTES_MAX)))
    }

    /// Takes the credit of one new lane: a quarter of the rest, at most `most`.
    pub(super) fn take(&self, most: ByteCount) -> Credit {
        let mut left = self.0.lock();
        let share = ByteCount(left.0 / 4).min(most);
        let taken = if share < SHARE_BYTES_MIN { ByteCount(0) } else { share };
        left.0 -= taken.0;
        Credit { taken, pool: self.clone() }
    }
}

/// Credit of one lane. It returns to the pool when it is dropped: when the lane is admitted or has ended.
#[derive(Debug)]
pub(super) struct Credit {
    taken: ByteCount,
    pool: CreditPool,
}

impl Credit {
    /// Returns the receive window of the lane.
    pub(super) fn window(&self) -> ByteCount {
        self.taken.max(WINDOW_BYTES_MIN)
    }

    /// Returns the number of block streams that the peer may open; with 0 there is room for control frames only.
    pub(super) fn streams(&self) -> u32 {
        u32::try_from(self.taken.0 / BYTES_PER_STREAM).unwrap_or(u32::MAX)
    }
}

impl Drop for Credit {
    fn drop(&mut self) {
        self.pool.0.lock().0 += self.taken.0;
    }
}

/// Credit of all lanes of a listener that are not admitted. Reason: when eight lanes arrive at once, the last gets
/// what 250 Mbit/s delivers in 70 ms, and the first what it delivers in 500 ms.
const CREDIT_BYTES_MAX: ByteCount = ByteCount::mebibytes(64);

/// Window of a lane that arrives when the pool is used up: a few packets, in which a hello fits. It is not taken
/// from the pool. 1,024 handshakes on each of four sockets use 64 MiB of it.
const WINDOW_BYTES_MIN: ByteCount = ByteCount(16 << 10);

/// Smallest share that is taken from the pool.
const SHARE_BYTES_MIN: ByteCount = ByteCount(BYTES_PER_STREAM);

/// Credit per stream. Reason: a stretch has 1 MiB, and the last one of a block has less. The engine uses up to
/// 150 KiB for the gaps of a stream, whatever its window is.
const BYTES_PER_STREAM: u64 = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: ByteCount = ByteCount::mebibytes(20);

    #[test]
    fn few_lanes_get_a_first_flight_and_many_share_what_does_not_grow() {
        let pool = CreditPool::new();
        let credits: Vec<Credit> = (0..1000).map(|_| pool.take(MOST)).collect();
        let windows: Vec<ByteCount> = credits.iter().map(Credit::window).collect();
        assert_eq!(windows[..4], [16 << 20, 12 << 20, 9 << 20, 27 << 18].map(ByteCount));
        assert!(windows.is_sorted_by(|one, next| one >= next));
        assert_eq!((windows[999], credits[999].streams()), (WINDOW_BYTES_MIN, 0));
        let sum: u64 = windows.iter().map(|window| window.0).sum();
        assert!(sum <= CREDIT_BYTES_MAX.0 + 1000 * WINDOW_BYTES_MIN.0, "{sum}");
        let streams: u32 = credits.iter().map(Credit::streams).sum();
        assert!(u64::from(streams) <= CREDIT_BYTES_MAX.0 / BYTES_PER_STREAM, "{streams}");
    }

    #[test]
    fn credit_returns_when_a_lane_is_admitted_or_ends() {
        let pool = CreditPool::new();
        let credits: Vec<Credit> = (0..100).map(|_| pool.take(MOST)).collect();
        drop(credits);
        assert_eq!(pool.take(MOST).window(), ByteCount::mebibytes(16));
        assert_eq!(pool.take(ByteCount(1 << 20)).window(), ByteCount(1 << 20), "no more than a lane may hold");
        assert_eq!(pool.take(ByteCount(1)).window(), WINDOW_BYTES_MIN);
    }
}
