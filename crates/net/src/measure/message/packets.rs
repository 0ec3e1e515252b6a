//! Messages of packet trains and echoes.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sterna_proto::path_cache::DataDirection;

use super::list::{BINS_MAX, ECHOES_MAX, ITEMS_MAX, list};
use crate::measure::LOST_MAX;

/// Packet train: UDP packets that one end sends at a rate and the other end counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainSpec {
    /// Direction of the packets, as the client sees it.
    #[serde(with = "super::direction")]
    pub direction: DataDirection,
    /// Rate of whole IP packets, bit/s.
    pub rate_bps: u64,
    /// Time for which the sender sends, in milliseconds, up to [`super::super::TRAIN_TIME_MAX`].
    pub time_ms: u64,
    /// Sizes of IP packets in turn, headers included, in bytes: one size for a train, many for a size sweep.
    pub packet_bytes: Vec<u32>,
    /// Number of ports of the client that are used in turn, from 1 to 64.
    pub ports: u32,
}

impl TrainSpec {
    /// Returns the time for which the sender sends.
    pub fn time(&self) -> Duration {
        Duration::from_millis(self.time_ms)
    }
}

/// Observations of a packet train: what the receiver counted, and what the sender sent. Bytes are those of whole IP
/// packets. A packet that the sender's kernel refused for its size is not sent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrainReport {
    /// Packets sent.
    pub sent: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Packets received, each counted once.
    pub received: u64,
    /// Bytes of the received packets.
    pub received_bytes: u64,
    /// Further copies of received packets.
    pub duplicates: u64,
    /// Packets that arrived after one with a higher number (reordered, RFC 4737).
    pub reordered: u64,
    /// Largest lateness of a reordered packet, microseconds: the time since the first arrival of a higher number (late
    /// time offset, RFC 4737 section 4.2.3).
    pub reorder_extent_us: u64,
    /// Counts and delays by time of sending, [`super::super::TRAIN_BIN`] each, in order.
    #[serde(deserialize_with = "list::<_, _, BINS_MAX>")]
    pub bins: Vec<TrainBin>,
    /// Numbers of the first [`super::super::LOST_MAX`] lost packets, in order. The first packet has number 0.
    #[serde(deserialize_with = "list::<_, _, LOST_MAX>")]
    pub lost: Vec<u64>,
    /// Bytes sent before the first lost packet; `None`: no packet is lost.
    pub first_lost_bytes: Option<u64>,
    /// Counts by size, in the order of the specification.
    #[serde(deserialize_with = "list::<_, _, ITEMS_MAX>")]
    pub sizes: Vec<SizeCount>,
    /// Smallest MTU of an ICMP message "fragmentation needed" or "packet too big" that the sender received.
    pub too_big_mtu: Option<u32>,
    /// Counts by port of the client.
    #[serde(deserialize_with = "list::<_, _, ITEMS_MAX>")]
    pub ports: Vec<PortCount>,
    /// Longest lateness of the sender against its schedule, microseconds.
    pub pause_us: u64,
    /// The sender kept less than 98 % of its rate, because its host was busy or its interface slower than the rate.
    pub behind: bool,
    /// Packets that the socket of the receiver dropped, because its reader was late.
    pub receiver_drops: u64,
    /// Packets that a queue of the sender's host dropped. They are among those sent.
    pub sender_drops: u64,
    /// Rate of the receiver's clock against that of the sender that was removed from the delays, in 10^-9.
    pub skew_ppb: i64,
}

/// Packets of a train that were sent in one interval. Delays are one-way and relative to the smallest of the train;
/// they are 0 without arrivals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrainBin {
    /// Start of the interval since the start of the train, microseconds.
    pub at_us: u64,
    /// Packets sent.
    pub sent: u32,
    /// Packets received of those.
    pub received: u32,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes received of those.
    pub received_bytes: u64,
    /// Smallest delay, microseconds.
    pub delay_min_us: i64,
    /// Mean delay, microseconds.
    pub delay_mean_us: i64,
    /// Largest delay, microseconds.
    pub delay_max_us: i64,
    /// First arrival since the first arrival of the train, microseconds.
    pub first_arrival_us: u64,
    /// Last arrival since the first arrival of the train, microseconds.
    pub last_arrival_us: u64,
}

/// Packets of a train with one size. Sent and not received without [`TrainReport::too_big_mtu`] is a black hole;
/// refused is the MTU of the sender's own interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SizeCount {
    /// Size of the IP packet.
    pub bytes: u32,
    /// Packets sent.
    pub sent: u64,
    /// Packets that the sender's kernel refused, because its interface takes no packets of this size (`EMSGSIZE`).
    pub refused: u64,
    /// Packets received.
    pub received: u64,
}

/// Packets of a train over one port of the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PortCount {
    /// Port of the client, as its host numbers it.
    pub port: u16,
    /// Packets sent.
    pub sent: u64,
    /// Packets received.
    pub received: u64,
    /// Packets that arrived after one of the same port with a higher number.
    pub reordered: u64,
    /// Smallest one-way delay relative to the smallest of the train, microseconds; 0 without arrivals.
    pub delay_min_us: u64,
}

/// Record of the sender of a packet train, for its receiver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SentTrain {
    /// Numbers in use: packets sent and refused.
    pub packets: u64,
    /// Packets and bytes sent, by interval of [`super::super::TRAIN_BIN`].
    #[serde(deserialize_with = "list::<_, _, BINS_MAX>")]
    pub bins: Vec<(u32, u64)>,
    /// Counts by size, in the order of the specification.
    #[serde(deserialize_with = "list::<_, _, ITEMS_MAX>")]
    pub sizes: Vec<SentSize>,
    /// Packets sent by port of the client.
    #[serde(deserialize_with = "list::<_, _, ITEMS_MAX>")]
    pub ports: Vec<u64>,
    /// See [`TrainReport::too_big_mtu`].
    pub too_big_mtu: Option<u32>,
    /// See [`TrainReport::pause_us`].
    pub pause_us: u64,
    /// See [`TrainReport::behind`].
    pub behind: bool,
    /// See [`TrainReport::sender_drops`].
    pub drops: u64,
}

/// Sent packets of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SentSize {
    /// Packets sent.
    pub sent: u64,
    /// Packets refused.
    pub refused: u64,
    /// Number of the first refused packet: all later ones of the size are refused too.
    pub refused_from: Option<u64>,
}

/// Echoes: packets that the agent sends back at once (STAMP, RFC 8762).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EchoSpec {
    /// Number of ports of the client that are used in turn, from 1 to 256.
    pub ports: u32,
    /// Packets of each port, up to 1000.
    pub per_port: u32,
    /// Time between two packets, over all ports, in microseconds; 100 at least.
    pub interval_us: u64,
    /// Size of the IP packets, headers included, in bytes.
    pub packet_bytes: u32,
}

/// Observations of echoes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EchoReport {
    /// Counts and times by port of the client.
    #[serde(deserialize_with = "list::<_, _, ITEMS_MAX>")]
    pub echoes: Vec<EchoPort>,
}

/// Echoes over one port of the client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EchoPort {
    /// Port of the client.
    pub port: u16,
    /// Packets sent.
    pub sent: u64,
    /// Packets that the agent received and sent back, each counted once.
    pub reflected: u64,
    /// Replies received, each counted once.
    pub returned: u64,
    /// Round-trip times in microseconds without the time at the agent, in order of sending.
    #[serde(deserialize_with = "list::<_, _, ECHOES_MAX>")]
    pub rtt_us: Vec<u64>,
    /// Replies that arrived after one of the same port with a higher number.
    pub reordered: u64,
    /// Smallest TTL or hop limit with which a packet arrived at the agent. It was sent with 255.
    pub forward_ttl: Option<u8>,
    /// Smallest TTL or hop limit with which a reply arrived.
    pub reverse_ttl: Option<u8>,
}
