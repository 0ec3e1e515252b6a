//! Exact arithmetic of time and rates: nanoseconds, and bits times 10^9.

use std::time::Duration;

/// One byte is 8 bits. Times 10^9, so that division by bit/s gives nanoseconds.
pub(super) const BITS_NS_PER_BYTE: u64 = 8_000_000_000;

/// Returns a time in nanoseconds; saturates after 584 years.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
