//! Points in time of the service, as its database keeps them.

use std::ops::{Add, Sub};
use std::time::Duration;

/// Milliseconds since 1970, UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixTime(pub i64);

impl UnixTime {
    /// Returns the time from `earlier` to this time; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl Add<Duration> for UnixTime {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(time.as_millis()).unwrap_or(i64::MAX)))
    }
}

impl Sub<Duration> for UnixTime {
    type Output = Self;

    fn sub(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(time.as_millis()).unwrap_or(i64::MAX)))
    }
}
