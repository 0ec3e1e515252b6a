//! Shares of time by limit.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::bound::Bound;

/// Time by limit.
pub type Times = BTreeMap<Bound, Duration>;

/// Share of time of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Share {
    /// Limit.
    pub limit: Bound,
    /// Share of the time, from 0 to 1.
    pub share: f64,
}

/// Returns the shares of time, the largest first, rounded to thousandths.
pub fn shares(times: &Times) -> Vec<Share> {
    let total: Duration = times.values().sum();
    let share = |time: &Duration| thousandths(time.as_secs_f64() / total.as_secs_f64().max(f64::MIN_POSITIVE));
    let mut shares: Vec<Share> =
        times.iter().map(|(limit, time)| Share { limit: *limit, share: share(time) }).collect();
    shares.retain(|share| share.share > 0.0);
    shares.sort_by(|one, other| other.share.total_cmp(&one.share));
    shares
}

/// Rounds to thousandths.
pub fn thousandths(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
