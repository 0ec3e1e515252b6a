//! Packets of a train by their number: sizes, ports and counts, as the specification orders them.

use std::time::Duration;

use super::super::TRAIN_TIME_MAX;
use super::super::message::{EchoSpec, SentTrain, TrainSpec};
use super::super::stamp::BASE_BYTES;

/// Maximum number of ports of a train. Reason: 64 random flows see most of 128 equal paths, and each is a socket.
pub(super) const TRAIN_PORTS_MAX: u32 = 64;

/// Maximum number of ports of echoes. Reason: 256 flows see 111 of 128 equal paths.
const ECHO_PORTS_MAX: u32 = 256;

/// Maximum number of echoes of a port. Reason: a minute of 256 ports at a packet every 250 us has fewer.
const ECHOES_PER_PORT_MAX: u32 = 1000;

/// Smallest time between two echoes. Reason: they measure delays, and must not load the path.
const ECHO_INTERVAL_MIN: Duration = Duration::from_micros(100);

/// Maximum rate of echoes, bit/s. Reason: as for the interval.
const ECHO_RATE_MAX: u64 = 100_000_000;

/// Maximum rate of a train, bit/s. Reason: faster ones are beyond one core.
pub(in crate::measure) const TRAIN_RATE_MAX: u64 = 10_000_000_000;

/// Maximum size of a train, bytes. Reason: 10 Gbit/s for 8 s shows every queue.
const TRAIN_BYTES_MAX: u64 = 10_000_000_000;

/// Maximum number of packets of a train. Reason: the receiver keeps one bit of each, here 4 MiB.
const TRAIN_PACKETS_MAX: u64 = 1 << 25;

/// Maximum number of sizes of a train. Reason: a sweep in steps of 32 bytes up to 8 KiB.
const SIZES_MAX: usize = 256;

/// Largest IP packet, bytes.
const PACKET_BYTES_MAX: u32 = 65_535;

/// Headers of IPv4 or IPv6, and of UDP, bytes.
pub(super) fn header_bytes(is_ipv4: bool) -> u32 {
    if is_ipv4 { 28 } else { 48 }
}

/// Packets of a train. Every size is used once over each port in turn.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// Sizes of IP packets in turn, bytes.
    sizes: Vec<u32>,
    /// Bytes of the headers.
    pub(super) header: u32,
    /// Number of ports.
    pub(super) ports: u32,
    /// Number of packets.
    pub(super) packets: u64,
    /// Rate of IP packets, bit/s.
    pub(super) rate_bps: u64,
    /// Time of the train at its rate.
    pub(super) time: Duration,
    /// Bytes of one packet of each size.
    turn_bytes: u64,
}

impl Plan {
    /// Plans a train. Errors: the limit that the specification exceeds, for people.
    pub(super) fn new(spec: &TrainSpec, is_ipv4: bool) -> Result<Self, String> {
        let header = header_bytes(is_ipv4);
        let smallest = header + BASE_BYTES as u32;
        if spec.time_ms == 0 || spec.time() > TRAIN_TIME_MAX {
            return Err(format!("a packet train of {} ms: give 1 ms to {} s", spec.time_ms, TRAIN_TIME_MAX.as_secs()));
        }
        if spec.rate_bps == 0 || spec.rate_bps > TRAIN_RATE_MAX {
            return Err(format!("a packet train of {} bit/s: give up to {TRAIN_RATE_MAX}", spec.rate_bps));
        }
        if spec.ports == 0 || spec.ports > TRAIN_PORTS_MAX {
            return Err(format!("a packet train over {} ports: give 1 to {TRAIN_PORTS_MAX}", spec.ports));
        }
        if spec.packet_bytes.is_empty() || spec.packet_bytes.len() > SIZES_MAX {
            return Err(format!("a packet train of {} sizes: give 1 to {SIZES_MAX}", spec.packet_bytes.len()));
        }
        if let Some(bytes) = spec.packet_bytes.iter().find(|bytes| !(smallest..=PACKET_BYTES_MAX).contains(bytes)) {
            return Err(format!("packets of {bytes} bytes: give {smallest} to {PACKET_BYTES_MAX}"));
        }
        let bytes = spec.rate_bps / 8 * spec.time_ms / 1000;
        if bytes > TRAIN_BYTES_MAX {
            return Err(format!("a packet train of {bytes} bytes: at most {TRAIN_BYTES_MAX}; give less rate or time"));
        }
        let turn_bytes = spec.packet_bytes.iter().map(|bytes| u64::from(*bytes)).sum();
        let mut plan = Self {
            sizes: spec.packet_bytes.clone(),
            header,
            ports: spec.ports,
            packets: 0,
            rate_bps: spec.rate_bps,
            time: spec.time(),
            turn_bytes,
        };
        plan.packets = plan.packets_of(bytes);
        if plan.packets > TRAIN_PACKETS_MAX {
            let text = format!("a packet train of {} packets: at most {TRAIN_PACKETS_MAX}", plan.packets);
            return Err(format!("{text}; give larger packets, or less rate or time"));
        }
        Ok(plan)
    }

    /// Returns the number of the first packets that have at least `bytes` bytes, and at least 1.
    fn packets_of(&self, bytes: u64) -> u64 {
        let mut packets = bytes / self.turn_bytes * self.sizes.len() as u64;
        let mut left = bytes % self.turn_bytes;
        for size in &self.sizes {
            if left == 0 {
                break;
            }
            left = left.saturating_sub(u64::from(*size));
            packets += 1;
        }
        packets.max(1)
    }

    /// Returns the sizes in turn.
    pub(super) fn sizes(&self) -> &[u32] {
        &self.sizes
    }

    /// Returns the index of the size of a packet.
    pub(super) fn size_index(&self, number: u64) -> usize {
        // The remainder is smaller than a length.
        (number % self.sizes.len() as u64) as usize
    }

    /// Returns the size of a packet, headers included.
    pub(super) fn size(&self, number: u64) -> u32 {
        self.sizes[self.size_index(number)]
    }

    /// Returns the index of the port of a packet.
    pub(super) fn port_index(&self, number: u64) -> usize {
        // The remainder is smaller than `TRAIN_PORTS_MAX`.
        (number / self.sizes.len() as u64 % u64::from(self.ports)) as usize
    }

    /// Returns the time after which a sender ends that cannot keep its rate.
    pub(super) fn time_max(&self) -> Duration {
        self.time + (self.time / 4).max(Duration::from_millis(100))
    }

    /// Returns true if the sender refused a packet, by its record.
    pub(super) fn is_refused(&self, number: u64, sent: &SentTrain) -> bool {
        let size = sent.sizes.get(self.size_index(number));
        size.and_then(|size| size.refused_from).is_some_and(|from| number >= from)
    }
}

/// Checks echoes. Errors: the limit that the specification exceeds, for people.
pub(super) fn check_echoes(spec: &EchoSpec, is_ipv4: bool) -> Result<(), String> {
    let smallest = header_bytes(is_ipv4) + BASE_BYTES as u32;
    if spec.ports == 0 || spec.ports > ECHO_PORTS_MAX {
        return Err(format!("echoes over {} ports: give 1 to {ECHO_PORTS_MAX}", spec.ports));
    }
    if spec.per_port == 0 || spec.per_port > ECHOES_PER_PORT_MAX {
        return Err(format!("{} echoes for each port: give 1 to {ECHOES_PER_PORT_MAX}", spec.per_port));
    }
    if !(smallest..=PACKET_BYTES_MAX).contains(&spec.packet_bytes) {
        return Err(format!("echoes of {} bytes: give {smallest} to {PACKET_BYTES_MAX}", spec.packet_bytes));
    }
    let interval = Duration::from_micros(spec.interval_us);
    let bit_us = u64::from(spec.packet_bytes) * 8 * 1_000_000;
    if interval < ECHO_INTERVAL_MIN || bit_us / spec.interval_us > ECHO_RATE_MAX {
        let text = format!("echoes of {} bytes every {} us", spec.packet_bytes, spec.interval_us);
        return Err(format!("{text}: give 100 us or more, and at most {ECHO_RATE_MAX} bit/s"));
    }
    let echoes = u64::from(spec.ports) * u64::from(spec.per_port);
    if spec.interval_us.saturating_mul(echoes) > ECHO_TIME_MAX.as_micros() as u64 {
        return Err(format!("{echoes} echoes every {} us: at most {} s", spec.interval_us, ECHO_TIME_MAX.as_secs()));
    }
    Ok(())
}

/// Maximum time of echoes. Reason: as for a flow.
const ECHO_TIME_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use sterna_proto::path_cache::DataDirection;

    use super::*;

    fn spec(rate_bps: u64, time_ms: u64, packet_bytes: Vec<u32>, ports: u32) -> TrainSpec {
        TrainSpec { direction: DataDirection::Out, rate_bps, time_ms, packet_bytes, ports }
    }

    #[test]
    fn a_plan_has_as_many_packets_as_its_rate_and_time_need() {
        let packets = |rate, ms, sizes: Vec<u32>| Plan::new(&spec(rate, ms, sizes, 1), true).unwrap().packets;
        assert_eq!(packets(100_000_000, 1000, vec![1500]), 8334);
        assert_eq!(packets(8_000, 1000, vec![500]), 2);
        assert_eq!(packets(1, 1, vec![1500]), 1);
        assert_eq!(packets(80_000, 1000, vec![1000, 2000, 3000]), 6, "3 + 1000, 2000, 3000 for 4000 bytes");
        assert_eq!(packets(10_000_000_000, 8000, vec![1500]), 6_666_667);
    }

    #[test]
    fn sizes_turn_before_ports() {
        let plan = Plan::new(&spec(1_000_000, 1000, vec![100, 200], 3), true).unwrap();
        let turn: Vec<_> = (0..8).map(|number| (plan.size(number), plan.port_index(number))).collect();
        assert_eq!(turn, [(100, 0), (200, 0), (100, 1), (200, 1), (100, 2), (200, 2), (100, 0), (200, 0)]);
    }

    #[test]
    fn limits_are_named() {
        for (wrong, text) in [
            (spec(0, 1, vec![1500], 1), "0 bit/s"),
            (spec(10_000_000_001, 1, vec![1500], 1), "10000000001 bit/s"),
            (spec(1, 0, vec![1500], 1), "0 ms"),
            (spec(1, 30_001, vec![1500], 1), "30001 ms"),
            (spec(1, 1, vec![], 1), "0 sizes"),
            (spec(1, 1, vec![1500; 257], 1), "257 sizes"),
            (spec(1, 1, vec![71], 1), "71 bytes"),
            (spec(1, 1, vec![1500, 65_536], 1), "65536 bytes"),
            (spec(1, 1, vec![1500], 0), "0 ports"),
            (spec(1, 1, vec![1500], 65), "65 ports"),
            (spec(10_000_000_000, 8001, vec![1500], 1), "give less rate or time"),
            (spec(10_000_000_000, 8000, vec![72], 1), "give larger packets"),
        ] {
            let error = Plan::new(&wrong, true).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
        assert!(
            Plan::new(&spec(1, 1, vec![91], 1), false).is_err() && Plan::new(&spec(1, 1, vec![92], 1), false).is_ok()
        );
        let echoes = EchoSpec { ports: 64, per_port: 10, interval_us: 1000, packet_bytes: 72 };
        check_echoes(&echoes, true).unwrap();
        for wrong in [
            EchoSpec { ports: 0, ..echoes },
            EchoSpec { ports: 257, ..echoes },
            EchoSpec { per_port: 0, ..echoes },
            EchoSpec { per_port: 1001, ..echoes },
            EchoSpec { interval_us: 99, ..echoes },
            EchoSpec { interval_us: 0, ..echoes },
            EchoSpec { interval_us: u64::MAX, ..echoes },
            EchoSpec { interval_us: 100, packet_bytes: 9000, ..echoes },
            EchoSpec { packet_bytes: 71, ..echoes },
        ] {
            assert!(check_echoes(&wrong, true).is_err(), "{wrong:?}");
        }
    }
}
