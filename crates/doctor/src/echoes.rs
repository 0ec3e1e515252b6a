//! Summary of echoes: loss, round trips and their modes by port. They come from an agent, or from any reflector of
//! STAMP.

use serde::{Deserialize, Serialize};
use sterna_net::measure::{EchoPort, EchoReport};

use crate::verdict::RttMode;
use crate::view::median;
use crate::words::{millis, percent};

/// Echoes over all ports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EchoSummary {
    /// Packets sent.
    pub sent: u64,
    /// Replies received, each counted once.
    pub returned: u64,
    /// Part of the packets without a reply: lost in either direction.
    pub loss: f64,
    /// Smallest round trip, seconds.
    pub rtt_min_s: f64,
    /// Median round trip, seconds.
    pub rtt_median_s: f64,
    /// Round trip that 99 % of the replies keep, seconds.
    pub rtt_p99_s: f64,
    /// Replies that arrived after one of the same port with a higher number.
    pub reordered: u64,
    /// Groups of ports by their smallest round trip.
    pub modes: Vec<RttMode>,
    /// Smallest TTL or hop limit with which a packet arrived at the reflector.
    pub forward_ttl: Option<u8>,
    /// Smallest TTL or hop limit with which a reply arrived.
    pub reverse_ttl: Option<u8>,
}

impl EchoSummary {
    /// Sums up echoes.
    pub fn new(report: &EchoReport) -> Self {
        let ports = &report.echoes;
        let mut rtts: Vec<u64> = ports.iter().flat_map(|port| port.rtt_us.iter().copied()).collect();
        rtts.sort_unstable();
        let seconds = |index: usize| rtts.get(index).map_or(0.0, |rtt| *rtt as f64 / 1e6);
        let sum = |count: fn(&EchoPort) -> u64| ports.iter().map(count).sum::<u64>();
        let (sent, returned) = (sum(|port| port.sent), sum(|port| port.returned));
        let rtt_min_s = seconds(0);
        Self {
            sent,
            returned,
            loss: 1.0 - returned as f64 / sent.max(1) as f64,
            rtt_min_s,
            rtt_median_s: seconds(rtts.len() / 2),
            rtt_p99_s: seconds((rtts.len() * 99).div_ceil(100).saturating_sub(1)),
            reordered: sum(|port| port.reordered),
            modes: rtt_modes(ports, rtt_min_s),
            forward_ttl: ports.iter().filter_map(|port| port.forward_ttl).min(),
            reverse_ttl: ports.iter().filter_map(|port| port.reverse_ttl).min(),
        }
    }

    /// Returns the lines for people.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            format!(
                "  replies      {} of {}: {} lost, in either direction",
                self.returned,
                self.sent,
                percent(self.loss)
            ),
            format!(
                "  round trip   {} at least, {} median, {} for 99 % of the replies",
                millis(self.rtt_min_s),
                millis(self.rtt_median_s),
                millis(self.rtt_p99_s)
            ),
        ];
        if let [first, others @ ..] = &self.modes[..]
            && !others.is_empty()
        {
            lines.push(format!("  modes        {} on {} of the ports", millis(first.rtt_s), percent(first.share)));
            lines.extend(others.iter().map(|mode| {
                let ports: Vec<String> = mode.ports.iter().take(PORTS_SHOWN).map(u16::to_string).collect();
                let more = if mode.ports.len() > PORTS_SHOWN { ", …" } else { "" };
                let share = percent(mode.share);
                format!("               {} on {share}: source ports {}{more}", millis(mode.rtt_s), ports.join(", "))
            }));
        }
        if self.reordered > 0 {
            let part = percent(self.reordered as f64 / self.returned.max(1) as f64);
            lines.push(format!("  reordered    {} replies, {part}", self.reordered));
        }
        let ttl = |ttl: Option<u8>| ttl.map_or("not reported".to_owned(), |ttl| ttl.to_string());
        lines.push(format!("  TTL          {} there, {} here", ttl(self.forward_ttl), ttl(self.reverse_ttl)));
        lines
    }
}

/// Returns the round trips of ports in groups: a new group begins at a gap. `rtt_s`: round trip of the path, seconds.
pub fn rtt_modes(echoes: &[EchoPort], rtt_s: f64) -> Vec<RttMode> {
    let mut ports: Vec<(f64, u16)> = echoes
        .iter()
        .filter(|port| port.rtt_us.len() >= 3)
        .filter_map(|port| Some((*port.rtt_us.iter().min()? as f64 / 1e6, port.port)))
        .collect();
    ports.sort_by(|a, b| a.0.total_cmp(&b.0));
    // Noise of one port: how far its second smallest round trip is above its smallest.
    let noise = |port: &EchoPort| {
        let mut rtt = port.rtt_us.clone();
        rtt.sort_unstable();
        rtt.get(1).zip(rtt.first()).map_or(0.0, |(second, first)| (second - first) as f64 / 1e6)
    };
    let noise = median(echoes.iter().map(noise).collect());
    let gap = (rtt_s * GAP).max(GAP_MIN_S).max(noise * 5.0);
    let mut modes: Vec<(f64, Vec<u16>)> = Vec::new();
    let mut before = f64::NEG_INFINITY;
    for (rtt, port) in &ports {
        match modes.last_mut() {
            Some((_, group)) if rtt - before < gap => group.push(*port),
            _ => modes.push((*rtt, vec![*port])),
        }
        before = *rtt;
    }
    let count = ports.len().max(1) as f64;
    modes.into_iter().map(|(rtt_s, ports)| RttMode { rtt_s, share: ports.len() as f64 / count, ports }).collect()
}

/// Smallest gap between two round trips, as part of the smaller one.
const GAP: f64 = 0.01;

/// Smallest gap between two round trips, seconds. Reason: hosts add some tenths of a millisecond.
const GAP_MIN_S: f64 = 0.0005;

/// Ports of a mode that a line shows. Reason: one is enough for a test, and the JSON has all.
const PORTS_SHOWN: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_of_some_ports_is_a_mode() {
        let port = |number: u16| {
            let rtt = if number.is_multiple_of(4) { 11_900 } else { 7_800 };
            let rtt_us = (0..10).map(|index| rtt + index * 20).collect();
            EchoPort { port: number, sent: 11, returned: 10, rtt_us, ..EchoPort::default() }
        };
        let summary = EchoSummary::new(&EchoReport { echoes: (1..=16).map(port).collect() });
        assert_eq!((summary.sent, summary.returned, summary.modes.len()), (176, 160, 2));
        assert_eq!(summary.modes[1].ports, [4, 8, 12, 16]);
        assert_eq!((summary.rtt_min_s, summary.rtt_p99_s), (0.0078, 0.01208));
        let lines = summary.lines();
        assert!(lines[0].contains("160 of 176: 9.1 % lost"), "{lines:?}");
        assert!(lines[3].contains("11.90 ms on 25 %: source ports 4, 8, 12, 16"), "{lines:?}");
        let nothing = EchoSummary::new(&EchoReport::default());
        assert_eq!((nothing.loss, nothing.modes.len(), nothing.lines().len()), (1.0, 0, 3));
    }
}
