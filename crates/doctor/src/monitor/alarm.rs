//! Alarms: what is worse on a path than before, since when, and its cause in words.

use serde::{Deserialize, Serialize};
use sterna_proto::BitRate;

use crate::evidence::Direction;
use crate::verdict::Cause;
use crate::words::{date, millis, percent};

/// Trouble on a path that was not there before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Alarm {
    /// Packets take a longer way.
    Rerouted {
        /// Start, seconds since 1970.
        since: u64,
        /// Smallest round trip before, seconds.
        from_s: f64,
        /// Smallest round trip now, seconds.
        to_s: f64,
        /// Ports with the new round trip.
        ports: usize,
        /// Ports of a round.
        of: usize,
        /// Routers that packets passed before and pass now, if their number has changed.
        hops: Option<(u8, u8)>,
    },
    /// Packets are lost without load.
    Loss {
        /// Start, seconds since 1970.
        since: u64,
        /// Direction of the packets.
        direction: Direction,
        /// Lost part before.
        from: f64,
        /// Lost part now.
        to: f64,
    },
    /// A limit holds throughput tests below their cap.
    Limit {
        /// Start, seconds since 1970.
        since: u64,
        /// Direction of the data.
        direction: Direction,
        /// Limit.
        limit: Cause,
        /// Rate, payload in bit/s.
        rate_bps: u64,
        /// The limit was there earlier, and was gone for some time.
        is_back: bool,
        /// Remedy; empty if nothing is known.
        remedy: String,
    },
    /// No connection to the peer.
    Unreachable {
        /// Start, seconds since 1970.
        since: u64,
        /// Last reason.
        reason: String,
    },
    /// The peer does not take part, or is not trusted.
    Refused {
        /// Start, seconds since 1970.
        since: u64,
        /// Last reason.
        reason: String,
    },
}

/// Identity of an alarm: another one of the same kind replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Route,
    Loss(Direction),
    Limit(Direction, Cause),
    Absent,
}

/// Turn of an alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Turn {
    /// It was raised.
    Raised,
    /// It holds, and its numbers have changed.
    Moved,
    /// It has ended.
    Cleared,
    /// It holds for so long that it is the new normal.
    Settled,
    /// No alarm: the path became better than it was.
    Improved,
}

/// Change of a path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Time at which it was found, seconds since 1970.
    pub at: u64,
    /// Turn.
    pub turn: Turn,
    /// Alarm; if the path improved, the trouble that is gone.
    pub alarm: Alarm,
}

impl Change {
    /// Returns the change in words, for a log.
    pub fn words(&self) -> String {
        match self.turn {
            Turn::Raised => self.alarm.words(),
            Turn::Moved => format!("changed: {}", self.alarm.words()),
            Turn::Cleared => format!("over: {}", self.alarm.words()),
            Turn::Settled => format!("stays, and is no alarm any more: {}", self.alarm.words()),
            Turn::Improved => format!("better: {}", self.alarm.improvement()),
        }
    }
}

impl Alarm {
    /// Returns the start, seconds since 1970.
    pub fn since(&self) -> u64 {
        match self {
            Self::Rerouted { since, .. }
            | Self::Loss { since, .. }
            | Self::Limit { since, .. }
            | Self::Unreachable { since, .. }
            | Self::Refused { since, .. } => *since,
        }
    }

    /// Returns the name for programs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Rerouted { .. } => "rerouted",
            Self::Loss { .. } => "loss",
            Self::Limit { .. } => "limit",
            Self::Unreachable { .. } => "unreachable",
            Self::Refused { .. } => "refused",
        }
    }

    /// Returns the direction of an alarm of one direction.
    pub fn direction(&self) -> Option<Direction> {
        match self {
            Self::Loss { direction, .. } | Self::Limit { direction, .. } => Some(*direction),
            Self::Rerouted { .. } | Self::Unreachable { .. } | Self::Refused { .. } => None,
        }
    }

    /// Returns the limit of an alarm about a limit.
    pub fn limit(&self) -> Option<Cause> {
        match self {
            Self::Limit { limit, .. } => Some(*limit),
            _ => None,
        }
    }

    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Rerouted { .. } => Kind::Route,
            Self::Loss { direction, .. } => Kind::Loss(*direction),
            Self::Limit { direction, limit, .. } => Kind::Limit(*direction, *limit),
            Self::Unreachable { .. } | Self::Refused { .. } => Kind::Absent,
        }
    }

    /// Returns the alarm in words: cause, numbers, and start.
    pub fn words(&self) -> String {
        let since = date(self.since());
        match self {
            Self::Rerouted { from_s, to_s, ports, of, hops: Some((before, now)), .. } => format!(
                "rerouted: {} → {} on {ports} of {of} ports since {since}, hops {before} → {now}",
                millis(*from_s),
                millis(*to_s)
            ),
            Self::Rerouted { from_s, to_s, ports, of, hops: None, .. } => format!(
                "longer round trip: {} → {} on {ports} of {of} ports since {since}, as many hops: a longer route below IP, \
                 or a queue that stands",
                millis(*from_s),
                millis(*to_s)
            ),
            Self::Loss { direction, from, to, .. } => {
                let earlier = if *from > 0.0 { format!(" (before: {})", percent(*from)) } else { String::new() };
                format!("new loss: {} {} since {since}{earlier}", percent(*to), way(*direction))
            }
            Self::Limit { direction, limit, rate_bps, is_back, remedy, .. } => {
                let begin = if *is_back { "the limit is back" } else { "new limit" };
                let rate = BitRate(*rate_bps);
                let next = if remedy.is_empty() { String::new() } else { format!("; do: {remedy}") };
                format!("{begin}: {}, {rate} {} since {since}{next}", name_of(*limit), way(*direction))
            }
            Self::Unreachable { reason, .. } => format!("unreachable since {since}: {reason}"),
            Self::Refused { reason, .. } => format!("not measured since {since}: {reason}"),
        }
    }

    /// Returns the words for trouble that is gone.
    fn improvement(&self) -> String {
        let since = date(self.since());
        match self {
            Self::Rerouted { from_s, to_s, .. } => {
                format!("round trip {} → {} since {since}", millis(*from_s), millis(*to_s))
            }
            Self::Loss { direction, from, to, .. } => {
                format!("loss {} → {} {} since {since}", percent(*from), percent(*to), way(*direction))
            }
            Self::Limit { direction, limit, .. } => {
                format!("the limit {} is gone {} since {since}", name_of(*limit), way(*direction))
            }
            Self::Unreachable { .. } | Self::Refused { .. } => "measured again".to_owned(),
        }
    }
}

/// Returns the name of a limit in words.
fn name_of(limit: Cause) -> &'static str {
    if limit == Cause::Clean { "the path itself" } else { limit.words() }
}

/// Returns a direction in words.
fn way(direction: Direction) -> &'static str {
    match direction {
        Direction::Forward => "to the agent",
        Direction::Reverse => "from the agent",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_names_its_cause_numbers_and_start() {
        let since = 1_800_000_000;
        let rerouted = |hops| Alarm::Rerouted { since, from_s: 0.0079, to_s: 0.0119, ports: 1, of: 16, hops };
        let limit = |is_back, remedy: &str| Alarm::Limit {
            since,
            direction: Direction::Forward,
            limit: Cause::ReceiveBuffer,
            rate_bps: 180_000_000,
            is_back,
            remedy: remedy.to_owned(),
        };
        for (alarm, expected) in [
            (
                rerouted(Some((9, 12))),
                "rerouted: 7.90 ms → 11.90 ms on 1 of 16 ports since 2027-01-15 08:00:00 UTC, hops 9 → 12",
            ),
            (rerouted(None), "as many hops"),
            (
                Alarm::Loss { since, direction: Direction::Reverse, from: 0.0, to: 0.003 },
                "new loss: 0.3 % from the agent since 2027-01-15 08:00:00 UTC",
            ),
            (limit(true, "grow"), "the limit is back: receive buffer, 180 Mbit/s to the agent since 2027"),
            (limit(false, "grow"), "UTC; do: grow"),
            (
                Alarm::Unreachable { since, reason: "connect".to_owned() },
                "unreachable since 2027-01-15 08:00:00 UTC: connect",
            ),
        ] {
            assert!(alarm.words().contains(expected), "{}", alarm.words());
            let json = serde_json::to_value(&alarm).unwrap();
            assert_eq!(json["kind"], alarm.name());
            assert_eq!(serde_json::from_value::<Alarm>(json).unwrap(), alarm);
        }
    }
}
