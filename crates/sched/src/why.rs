//! Reasons why files wait, for people.

use std::time::Duration;

use sterna_proto::ByteCount;

use crate::breaker::Blocked;
use crate::settings::Name;
use crate::time::UnixTime;

/// Reason why a file waits, and its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Why {
    /// Obstacle.
    pub waits: Waits,
    /// Number of the files before it in its queue.
    pub files: usize,
    /// Size of these files.
    pub size: ByteCount,
    /// Expected time until it starts: that of the files before it, and at least that of a retry or a pause. After the
    /// end of a ban, of a drain or of the absence of agents: nobody knows when they end. `None`: the rate of the link
    /// is not known.
    pub expected: Option<Duration>,
    /// Its deadline has passed. It starts all the same.
    pub is_late: bool,
}

/// Obstacle to the start of a file.
#[derive(Clone, Debug, PartialEq)]
pub enum Waits {
    /// An operator has drained the service.
    Drained,
    /// Its last attempt has failed; the next one starts at this time at the earliest.
    Retry(UnixTime),
    /// The maximum of transfers under way is reached.
    Limit {
        /// Limit, for people: `link`, `source`, `destination`, `VO` or `service`.
        of: &'static str,
        /// Maximum.
        most: usize,
    },
    /// An operator has banned an endpoint.
    Banned(Name),
    /// No agent of an endpoint is connected.
    Absent(Name),
    /// An endpoint has refused transfers.
    Refusing {
        /// Endpoint.
        endpoint: Name,
        /// Reason and time.
        blocked: Blocked,
    },
    /// Other files go first.
    Turn,
}

impl Waits {
    /// Returns the time until this reason ends; `None`: it is not known.
    pub(crate) fn ends_in(&self, now: UnixTime) -> Option<Duration> {
        match self {
            Self::Retry(then) | Self::Refusing { blocked: Blocked::Until(then), .. } => Some(then.since(now)),
            _ => None,
        }
    }
}
