//! Round: the stored measurements of one visit to a peer.

use serde::{Deserialize, Serialize};
use sterna_net::measure::{EchoReport, EchoSpec, FlowPair, FlowSpec, HostFacts};

use crate::evidence::{Direction, Evidence, Experiment, Outcome as Result, Purpose, Record};
use crate::facts::FULL;
use crate::rules::diagnose;
use crate::verdict::Cause;
use crate::view::FlowView;

/// TTL with which echoes leave.
const TTL: u8 = 255;

/// Maximum length of a text of a peer, characters. Reason: an error with its causes has some hundreds.
const TEXT_MAX: usize = 800;

/// One visit of a peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Time, seconds since 1970.
    pub at: u64,
    /// Observations.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Observations of a visit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The peer took part.
    Measured(Measured),
    /// It did not.
    Failed(Failure),
}

/// Measurements of a visit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Measured {
    /// Echoes; absent if they were not sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub echoes: Option<Echoes>,
    /// Throughput tests, one in each direction at most.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tests: Vec<Test>,
    /// Bytes over the path, without lower layers.
    pub bytes: u64,
    /// Part of them that counts for the budget: throughput tests, also those without a result.
    #[serde(skip_serializing_if = "is_zero")]
    pub test_bytes: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is that of serde")]
fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

impl Measured {
    /// Returns the throughput test of a direction.
    pub fn test(&self, direction: Direction) -> Option<&Test> {
        self.tests.iter().find(|test| test.direction == direction)
    }
}

/// Reason for which a visit has no measurements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// No connection, or it was lost.
    Unreachable(String),
    /// The peer is not trusted, or refuses.
    Refused(String),
}

impl Failure {
    /// Returns the reason in words.
    pub fn text(&self) -> &str {
        match self {
            Self::Unreachable(text) | Self::Refused(text) => text,
        }
    }

    /// Returns the failure with a text of limited length.
    #[must_use]
    pub fn cut(self) -> Self {
        let cut = |text: String| text.chars().take(TEXT_MAX).collect();
        match self {
            Self::Unreachable(text) => Self::Unreachable(cut(text)),
            Self::Refused(text) => Self::Refused(cut(text)),
        }
    }
}

/// Echoes of a visit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Echoes {
    /// Packets sent.
    pub sent: u64,
    /// Packets that the peer received and sent back.
    pub reflected: u64,
    /// Replies received.
    pub returned: u64,
    /// Smallest round trip of each port with replies, microseconds, the smallest first.
    pub rtt_us: Vec<u64>,
    /// Routers that packets to the peer passed, on the longest route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forward_hops: Option<u8>,
    /// Routers that replies passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reverse_hops: Option<u8>,
}

impl Echoes {
    /// Sums up the echoes of a visit.
    pub fn new(report: &EchoReport) -> Self {
        let ports = &report.echoes;
        let mut rtt_us: Vec<u64> = ports.iter().filter_map(|port| port.rtt_us.iter().min().copied()).collect();
        rtt_us.sort_unstable();
        let least = |ttl: fn(&sterna_net::measure::EchoPort) -> Option<u8>| ports.iter().filter_map(ttl).min();
        Self {
            sent: ports.iter().map(|port| port.sent).sum(),
            reflected: ports.iter().map(|port| port.reflected).sum(),
            returned: ports.iter().map(|port| port.returned).sum(),
            rtt_us,
            forward_hops: least(|port| port.forward_ttl).map(|ttl| TTL - ttl),
            reverse_hops: least(|port| port.reverse_ttl).map(|ttl| TTL - ttl),
        }
    }

    /// Returns packets lost and sent in a direction.
    pub fn losses(&self, direction: Direction) -> (u64, u64) {
        let (sent, arrived) = match direction {
            Direction::Forward => (self.sent, self.reflected),
            Direction::Reverse => (self.reflected, self.returned),
        };
        (sent.saturating_sub(arrived), sent)
    }

    /// Returns the part of the packets lost in a direction; `None` if none was sent.
    pub fn loss(&self, direction: Direction) -> Option<f64> {
        let (lost, sent) = self.losses(direction);
        (sent > 0).then(|| lost as f64 / sent as f64)
    }

    /// Returns the routers that packets of a direction passed.
    pub fn hops(&self, direction: Direction) -> Option<u8> {
        match direction {
            Direction::Forward => self.forward_hops,
            Direction::Reverse => self.reverse_hops,
        }
    }

    /// Returns the smallest round trip of all ports, seconds.
    pub fn fastest_s(&self) -> Option<f64> {
        self.rtt_us.first().map(|micros| *micros as f64 / 1e6)
    }

    /// Returns the median of the smallest round trips of the ports, seconds.
    pub fn typical_s(&self) -> Option<f64> {
        self.rtt_us.get(self.rtt_us.len() / 2).map(|micros| *micros as f64 / 1e6)
    }

    /// Returns the largest of the smallest round trips of the ports, seconds.
    pub fn slowest_s(&self) -> Option<f64> {
        self.rtt_us.last().map(|micros| *micros as f64 / 1e6)
    }
}

/// Throughput test: one connection for some seconds, at a capped rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Test {
    /// Direction of the data.
    pub direction: Direction,
    /// Rate of delivery, payload in bit/s.
    pub rate_bps: u64,
    /// Cap of the rate, bit/s.
    pub cap_bps: u64,
    /// Part of the segments that was lost.
    pub loss: f64,
    /// Limit: [`Cause::RateCap`] if the cap was reached, and [`Cause::Clean`] if the path was the limit without other
    /// trouble.
    pub limit: Cause,
    /// Remedy for the limit; empty without one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub remedy: String,
}

impl Test {
    /// Judges the test of a direction by the rules of examinations; `None`: it did not run.
    pub fn of(evidence: &Evidence, direction: Direction) -> Option<Self> {
        let (spec, pair) = evidence.flow(Purpose::Baseline, direction)?;
        let view = FlowView::new(pair, spec.time_ms as f64 / 1e3);
        let cap = spec.sender.pacing_bps.unwrap_or(u64::MAX);
        let (limit, remedy) = if view.rate_bps >= cap as f64 * FULL {
            (Cause::RateCap, String::new())
        } else {
            let verdicts = diagnose(evidence).verdicts;
            let mut binding = verdicts.into_iter().filter(|verdict| verdict.direction == direction);
            let found = binding.find(|verdict| verdict.limits_to_bps.is_some());
            found.map_or((Cause::Clean, String::new()), |verdict| (verdict.limit, verdict.remedy))
        };
        Some(Self { direction, rate_bps: view.rate_bps as u64, cap_bps: cap, loss: view.loss(), limit, remedy })
    }
}

/// Returns the evidence of a visit, for the rules of examinations.
pub fn evidence(
    hosts: (&HostFacts, &HostFacts),
    is_ipv6: bool,
    echoes: Option<(EchoSpec, EchoReport)>,
    flows: Vec<(Direction, FlowSpec, FlowPair)>,
) -> Evidence {
    let record = |purpose, direction, experiment, outcome| Record {
        purpose,
        direction,
        start_ms: 0,
        time_ms: 0,
        experiment,
        outcome,
    };
    let echoes = echoes.into_iter().map(|(spec, report)| {
        record(Purpose::Echoes, Direction::Forward, Experiment::Echo { spec }, Result::Echo(report))
    });
    let flows = flows.into_iter().map(|(direction, spec, pair)| {
        record(Purpose::Baseline, direction, Experiment::Flow { spec }, Result::Flow(pair))
    });
    let (near, far) = (hosts.0.clone(), hosts.1.clone());
    Evidence { near, far, connect_us: 0, is_ipv6, records: echoes.chain(flows).collect() }
}

#[cfg(test)]
mod tests {
    use sterna_net::measure::EchoPort;

    use super::*;

    #[test]
    fn a_round_reads_back_from_its_line() {
        let port = |number: u16, rtt: u64| EchoPort {
            port: number,
            sent: 20,
            reflected: 19,
            returned: 18,
            rtt_us: vec![rtt + 50, rtt, rtt + 9],
            reordered: 0,
            forward_ttl: Some(246),
            reverse_ttl: (number > 1).then_some(243),
        };
        let echoes = Echoes::new(&EchoReport { echoes: vec![port(1, 11_900), port(2, 7_800), port(3, 7_900)] });
        assert_eq!(echoes.rtt_us, [7_800, 7_900, 11_900]);
        assert_eq!((echoes.forward_hops, echoes.reverse_hops), (Some(9), Some(12)));
        assert_eq!((echoes.losses(Direction::Forward), echoes.losses(Direction::Reverse)), ((3, 60), (3, 57)));
        let test = Test {
            direction: Direction::Reverse,
            rate_bps: 42,
            cap_bps: 100,
            loss: 0.5,
            limit: Cause::ReceiveBuffer,
            remedy: "more".to_owned(),
        };
        let measured = Measured { echoes: Some(echoes), tests: vec![test], bytes: 7, test_bytes: 5 };
        for outcome in [Outcome::Measured(measured), Outcome::Failed(Failure::Unreachable("no".to_owned()))] {
            let round = Round { at: 1_800_000_000, outcome };
            let line = serde_json::to_string(&round).unwrap();
            assert_eq!(serde_json::from_str::<Round>(&line).unwrap(), round, "{line}");
        }
        assert_eq!(Echoes::new(&EchoReport::default()).typical_s(), None);
        assert_eq!(Failure::Refused("ä".repeat(1000)).cut().text().chars().count(), 800);
    }
}
