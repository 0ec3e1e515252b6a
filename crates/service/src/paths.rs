//! Measurements of the path between two agents: from the transfers that used it, and from agents that monitor it.
//!
//! Holds values and their rules only. Refuses to store them: the runner does.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sterna_doctor::evidence::Direction;
use sterna_doctor::monitor::{Alarm, Outcome, Round};
use sterna_net::identity::Fingerprint;
use sterna_sched::time::UnixTime;
use utoipa::ToSchema;

use crate::job::Moved;
use crate::worker::{End, Visited};

/// Least number of packets that give a loss. Reason: one lost packet of a few says nothing.
const PACKETS_MIN: u64 = 1000;

/// Maximum characters of an alarm. Reason: an error with its causes has some hundreds.
const ALARM_CHARS_MAX: usize = 600;

/// Age of a visit that is not shown any more. Reason: agents visit each peer once a day at least.
const VISIT_SHOWN: Duration = Duration::from_secs(2 * 24 * 3600);

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
    /// Last visits of the agents that monitor the path: at most one from each end.
    pub visits: Vec<Visit>,
}

/// Last visit of one end of a path to the other end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Visit {
    /// Visitor.
    pub by: End,
    /// Time, in milliseconds since 1970.
    pub at_ms: i64,
    /// Smallest round-trip time of all ports, in milliseconds.
    pub rtt_ms: Option<f64>,
    /// Fraction of the packets that were lost without load.
    pub loss: Option<f64>,
    /// Rate of one connection in the last throughput test, in bytes of payload per second. It has a cap.
    pub bytes_per_s: Option<f64>,
    /// Limit in this test, as the path doctor names it: `rate_cap` if the cap was reached.
    pub limited_by: Option<String>,
    /// Time of this test, in milliseconds since 1970.
    pub tested_at_ms: Option<i64>,
    /// Reason for which the visit has no measurements.
    pub failure: Option<String>,
    /// Open alarms, for people: "to the agent" is from the visitor to its peer.
    pub alarms: Vec<String>,
}

/// Round of an agent that monitors a peer.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedRound {
    /// Agent.
    pub observer: Fingerprint,
    /// Peer.
    pub peer: Fingerprint,
    /// Measurements.
    pub round: Round,
}

/// Selection of rounds: those of an agent and its peer after a time, the oldest first.
#[derive(Clone, Copy, Debug)]
pub struct RoundFilter {
    /// Agent.
    pub observer: Fingerprint,
    /// Peer.
    pub peer: Fingerprint,
    /// Seconds since 1970.
    pub after: u64,
    /// Maximum number of rounds.
    pub limit: u32,
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

    /// Sets the last visit of an end. Tests are rare, so the rate of an earlier one stays.
    pub fn set_visit(&mut self, mut visit: Visit) {
        let before = self.visits.iter().position(|before| before.by == visit.by).map(|at| self.visits.remove(at));
        if let Some(before) = before.filter(|_| visit.bytes_per_s.is_none()) {
            (visit.bytes_per_s, visit.limited_by) = (before.bytes_per_s, before.limited_by);
            visit.tested_at_ms = before.tested_at_ms;
        }
        self.visits.push(visit);
        self.visits.sort_by_key(|visit| visit.by);
    }
}

impl Visit {
    /// Returns true if it is recent enough to be shown.
    pub fn is_recent(&self, now: UnixTime) -> bool {
        now.since(UnixTime(self.at_ms)) <= VISIT_SHOWN
    }

    /// Returns a visit as it shows one direction of the path.
    fn new(visited: &Visited, direction: Direction) -> Self {
        let by = match direction {
            Direction::Forward => End::Source,
            Direction::Reverse => End::Destination,
        };
        let (measured, failure) = match &visited.round.outcome {
            Outcome::Measured(measured) => (Some(measured), None),
            Outcome::Failed(failure) => (None, Some(failure.text().to_owned())),
        };
        let echoes = measured.and_then(|measured| measured.echoes.as_ref());
        let test = measured.and_then(|measured| measured.test(direction));
        let is_here = |alarm: &&Alarm| alarm.direction().is_none_or(|of| of == direction);
        let words = |alarm: &Alarm| alarm.words().chars().take(ALARM_CHARS_MAX).collect();
        let at_ms = i64::try_from(visited.round.at.saturating_mul(1000)).unwrap_or(i64::MAX);
        Self {
            by,
            at_ms,
            rtt_ms: echoes.and_then(|echoes| echoes.fastest_s()).map(|rtt| rtt * 1e3),
            loss: echoes.and_then(|echoes| echoes.loss(direction)),
            bytes_per_s: test.map(|test| test.rate_bps as f64 / 8.0),
            limited_by: test.map(|test| test.limit.name()),
            tested_at_ms: test.map(|_| at_ms),
            failure,
            alarms: visited.alarms.iter().filter(is_here).map(words).collect(),
        }
    }
}

/// Returns what a visit shows of the paths from the agent to its peer, and back.
pub fn directions(observer: Fingerprint, peer: Fingerprint, visited: &Visited) -> [(PathEnds, Visit); 2] {
    let there = PathEnds { source: observer, destination: peer };
    let back = PathEnds { source: peer, destination: observer };
    [(there, Visit::new(visited, Direction::Forward)), (back, Visit::new(visited, Direction::Reverse))]
}

#[cfg(test)]
mod tests {
    use sterna_doctor::monitor::{Echoes, Failure, Measured, Test};
    use sterna_doctor::verdict::Cause;

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
            visits: Vec::new(),
        };
        assert_eq!(record, expected);
        record.add(&Moved::default(), 3);
        assert_eq!(record, PathRecord { transfers: 3, at: 3, ..expected }, "a transfer without measurements");
    }

    #[test]
    fn a_visit_shows_both_directions_and_keeps_the_last_test() {
        let (observer, peer) = (Fingerprint([1; 32]), Fingerprint([2; 32]));
        let echoes = Echoes { sent: 100, reflected: 90, returned: 90, rtt_us: vec![8000, 12_000], ..Echoes::default() };
        let test = Test {
            direction: Direction::Reverse,
            rate_bps: 8_000_000,
            cap_bps: 100_000_000,
            loss: 0.0,
            limit: Cause::ReceiveBuffer,
            remedy: String::new(),
        };
        let measured = Measured { echoes: Some(echoes), tests: vec![test], ..Measured::default() };
        let loss = Alarm::Loss { since: 1, direction: Direction::Forward, from: 0.0, to: 0.1 };
        let gone = Alarm::Unreachable { since: 1, reason: "x".repeat(9000) };
        let mut visited = Visited {
            peer: peer.to_string(),
            round: Round { at: 5, outcome: Outcome::Measured(measured) },
            alarms: vec![loss, gone],
        };
        let [(there, forth), (back, reverse)] = directions(observer, peer, &visited);
        assert_eq!((there.source, there.destination, back.source), (observer, peer, peer));
        assert_eq!((forth.by, forth.rtt_ms, forth.loss, forth.bytes_per_s), (End::Source, Some(8.0), Some(0.1), None));
        assert_eq!((reverse.by, reverse.loss, reverse.bytes_per_s), (End::Destination, Some(0.0), Some(1e6)));
        assert_eq!((forth.alarms.len(), reverse.alarms.len()), (2, 1));
        assert_eq!(forth.alarms[1].chars().count(), ALARM_CHARS_MAX);
        let mut record = PathRecord::default();
        record.set_visit(reverse);
        record.set_visit(Visit { by: End::Source, ..forth });
        visited.round.outcome = Outcome::Failed(Failure::Refused("no".to_owned()));
        let [_, (_, failed)] = directions(observer, peer, &visited);
        record.set_visit(failed);
        let [of_source, of_destination] = &record.visits[..] else { panic!("{record:?}") };
        assert_eq!((of_source.by, of_destination.by), (End::Source, End::Destination));
        assert_eq!((of_destination.rtt_ms, of_destination.bytes_per_s), (None, Some(1e6)));
        assert_eq!(of_destination.limited_by.as_deref(), Some("receive_buffer"));
        assert_eq!(of_destination.failure.as_deref(), Some("no"));
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<PathRecord>(&text).unwrap(), record);
    }

    #[test]
    fn a_name_is_read_as_it_was_written() {
        let ends = PathEnds { source: Fingerprint([1; 32]), destination: Fingerprint([2; 32]) };
        assert_eq!(PathEnds::by_name(&ends.name()), Some(ends));
        assert_eq!(PathEnds::by_name("x y"), None);
    }
}
