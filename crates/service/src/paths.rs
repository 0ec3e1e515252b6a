//! Measurements of the path between two agents, from the transfers that used it.
//!
//! Holds values and their rules only. Refuses to store them: the runner does.

use serde::{Deserialize, Serialize};
use sterna_net::identity::Fingerprint;

use crate::job::Moved;

/// Least number of packets that give a loss. Reason: one lost packet of a few says nothing.
const PACKETS_MIN: u64 = 1000;

/// Agents of a path, by the direction of file data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathEnds {
    /// Agent that sends.
    pub source: Fingerprint,
    /// Agent that receives.
    pub destination: Fingerprint,
}

impl PathEnds {
    /// Returns the name in the store.
    pub fn name(&self) -> String {
        format!("{} {}", self.source, self.destination)
    }

    /// Reads a name of the store.
    pub fn by_name(name: &str) -> Option<Self> {
        let (source, destination) = name.split_once(' ')?;
        Some(Self { source: source.parse().ok()?, destination: destination.parse().ok()? })
    }
}

/// Measurements of a path.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PathRecord {
    /// Smallest round-trip time of the last transfer, in milliseconds.
    pub rtt_ms: Option<f64>,
    /// Fraction of packets that were lost in the last transfer that sent enough of them.
    pub loss: Option<f64>,
    /// Highest mean rate of a transfer, in bytes of files per second.
    pub best_bytes_per_s: Option<f64>,
    /// Mean rate of the last transfer.
    pub last_bytes_per_s: Option<f64>,
    /// Limit that bound the last transfer for most of its time.
    pub limited_by: Option<String>,
    /// Number of transfers.
    pub transfers: u64,
    /// Time of the last transfer, in milliseconds since 1970.
    pub at: i64,
}

impl PathRecord {
    /// Adds a transfer that has arrived.
    pub fn add(&mut self, moved: &Moved, at: i64) {
        self.transfers += 1;
        self.at = at;
        if let Some(path) = &moved.path {
            self.rtt_ms = Some(path.rtt_ms).filter(|rtt| *rtt > 0.0).or(self.rtt_ms);
            if path.packets_sent >= PACKETS_MIN {
                self.loss = Some(path.packets_lost as f64 / path.packets_sent as f64);
            }
        }
        if let Some(rate) = moved.bytes_per_s() {
            self.last_bytes_per_s = Some(rate);
            self.best_bytes_per_s = Some(self.best_bytes_per_s.map_or(rate, |best| best.max(rate)));
        }
        if let Some((limit, _)) = moved.limits.first() {
            self.limited_by = Some(limit.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::PathFacts;

    #[test]
    fn the_last_transfer_counts_and_the_best_rate_stays() {
        let mut record = PathRecord::default();
        let moved = |bytes, sent, lost, limit: &str| Moved {
            bytes,
            time_ms: 1000,
            limits: vec![(limit.to_owned(), 0.9), ("loss".to_owned(), 0.1)],
            path: Some(PathFacts { rtt_ms: 150.0, packets_sent: sent, packets_lost: lost }),
            ..Moved::default()
        };
        record.add(&moved(5_000_000, 4000, 40, "rate"), 1);
        record.add(&moved(1_000_000, 10, 5, "source"), 2);
        let expected = PathRecord {
            rtt_ms: Some(150.0),
            loss: Some(0.01),
            best_bytes_per_s: Some(5e6),
            last_bytes_per_s: Some(1e6),
            limited_by: Some("source".to_owned()),
            transfers: 2,
            at: 2,
        };
        assert_eq!(record, expected);
        record.add(&Moved::default(), 3);
        assert_eq!(record, PathRecord { transfers: 3, at: 3, ..expected }, "a transfer without measurements");
    }

    #[test]
    fn a_name_is_read_as_it_was_written() {
        let ends = PathEnds { source: Fingerprint([1; 32]), destination: Fingerprint([2; 32]) };
        assert_eq!(PathEnds::by_name(&ends.name()), Some(ends));
        assert_eq!(PathEnds::by_name("x y"), None);
    }
}
