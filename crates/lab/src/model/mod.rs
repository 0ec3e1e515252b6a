//! The one description of a path, and the machine that carries packets by it.
//!
//! What it does: says for each packet when it arrives, or why it never does. What it refuses to do: read a clock, touch a
//! packet's bytes, allocate per packet. Time comes in as the [`Duration`] since the start of the path, packets come in as
//! a length and a flow, verdicts go out; the TUN router and the tests in virtual time use the same machine.
//!
//! A packet meets, in this order: the path MTU, the policer, the queue, the rate (whole IP packets, nothing below), the
//! outages, random and bursty loss, then delay, jitter, reordering and duplication. Loss comes after the rate, as on a
//! noisy radio link: a lost packet has used the link.

mod counters;
mod direction;
mod flight;
pub(crate) mod random;

use std::time::Duration;

use sterna_proto::quantity::bandwidth_delay_product;
use sterna_proto::{BitRate, ByteCount};

pub use counters::{DirectionCounters, DropCause, Dropped};
pub(crate) use direction::nanos;
pub use direction::{Delivery, Direction, Flow, Order, Verdict};
pub use flight::{InFlight, Wire};

/// A path between two hosts, both ways.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkModel {
    /// From host `a` to host `b`: the way data goes in every profile.
    pub forward: DirectionModel,
    /// From host `b` to host `a`.
    pub reverse: DirectionModel,
    /// Round-trip time of an empty path, half of it in each direction; the time to send a packet comes on top.
    pub rtt: Duration,
    /// MTU of both hosts' interfaces, bytes of an IP packet.
    pub mtu: u16,
    /// Largest IP packet that passes in the middle; `None` when the middle takes what the hosts can send.
    pub path_mtu: Option<u16>,
    /// Whether a packet that is too large for the middle is answered with ICMP "fragmentation needed".
    pub icmp: bool,
    /// Equal-cost paths by what each adds to the round trip (all of it forward); a flow keeps to one. Empty is one path.
    pub ecmp: Vec<Duration>,
    /// TCP options that a middle box removes from SYN packets.
    pub strip: StrippedOptions,
    /// When nothing passes, in either direction.
    pub outages: Vec<Outage>,
    /// A second network between the same two hosts.
    pub second: Option<Box<LinkModel>>,
    /// Seed of every random choice.
    pub seed: u64,
}

/// One direction of a path.
#[derive(Clone, Debug, PartialEq)]
pub struct DirectionModel {
    /// Rate of the bottleneck; counts whole IP packets.
    pub rate: BitRate,
    /// Drop-tail queue before the bottleneck.
    pub queue: Queue,
    /// Probability that a packet is lost, each by itself; in `[0, 1]`.
    pub loss: f64,
    /// Losses in bursts, besides `loss`.
    pub burst_loss: Option<BurstLoss>,
    /// Token bucket that drops what exceeds it.
    pub policer: Option<Policer>,
    /// Extra delay of each packet, uniform between zero and this; never reorders.
    pub jitter: Duration,
    /// Packets held back so that later ones overtake them.
    pub reorder: Option<Reorder>,
    /// Probability that a packet arrives twice; in `[0, 1]`.
    pub duplicate: f64,
}

/// How much a queue holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Queue {
    /// This many bytes.
    Bytes(ByteCount),
    /// What the bottleneck sends in this time.
    Time(Duration),
    /// This share of the bandwidth-delay product.
    Bdp(f64),
}

/// Gilbert-Elliott loss: a good and a bad state, and a chance to change at each packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BurstLoss {
    /// Probability to turn bad at a packet.
    pub to_bad: f64,
    /// Probability to turn good again; bursts last `1 / to_good` packets on average.
    pub to_good: f64,
    /// Probability of loss while bad.
    pub loss_bad: f64,
}

/// A token bucket: in time `t` at most `rate * t + burst` passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policer {
    /// Rate at which the bucket fills; counts whole IP packets.
    pub rate: BitRate,
    /// Size of the bucket; it starts full.
    pub burst: ByteCount,
    /// It takes UDP alone, as operators do that fear floods, and lets all else pass.
    pub udp_only: bool,
}

/// Packets held back so that later ones overtake them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reorder {
    /// Probability that a packet is held back; in `[0, 1]`.
    pub probability: f64,
    /// For how long.
    pub delay: Duration,
}

/// A time in which nothing passes: a packet whose last bit leaves the bottleneck within it is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// When it begins, since the start of the path.
    pub start: Duration,
    /// How long it lasts.
    pub length: Duration,
    /// From one beginning to the next, when it repeats.
    pub every: Option<Duration>,
}

/// TCP options that do not survive the path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StrippedOptions {
    /// Selective acknowledgement (kind 4).
    pub sack: bool,
    /// Window scaling (kind 3).
    pub window_scale: bool,
    /// Timestamps (kind 8).
    pub timestamps: bool,
}

/// Largest MTU that the lab offers: jumbo frames as used between science networks.
pub const MTU_BYTES_MAX: u16 = 9000;

/// Smallest MTU that the lab offers: what every IPv4 host must take (RFC 791).
pub const MTU_BYTES_MIN: u16 = 576;

impl LinkModel {
    /// A clean symmetric path: a queue of one BDP, MTU 1500, no impairment.
    pub fn clean(rate: BitRate, rtt: Duration) -> Self {
        let direction = DirectionModel::clean(rate);
        Self {
            forward: direction.clone(),
            reverse: direction,
            rtt,
            mtu: 1500,
            path_mtu: None,
            icmp: true,
            ecmp: Vec::new(),
            strip: StrippedOptions::default(),
            outages: Vec::new(),
            second: None,
            seed: 1,
        }
    }

    /// Round-trip time of the longest way through this path, queues empty.
    pub fn rtt_max(&self) -> Duration {
        self.rtt + self.ecmp.iter().copied().max().unwrap_or_default()
    }
}

impl DirectionModel {
    /// A direction of this rate without any impairment.
    pub fn clean(rate: BitRate) -> Self {
        Self {
            rate,
            queue: Queue::Bdp(1.0),
            loss: 0.0,
            burst_loss: None,
            policer: None,
            jitter: Duration::ZERO,
            reorder: None,
            duplicate: 0.0,
        }
    }

    /// How much the queue holds when the path has round-trip time `rtt`.
    pub fn queue_bytes(&self, rtt: Duration) -> ByteCount {
        match self.queue {
            Queue::Bytes(bytes) => bytes,
            Queue::Time(time) => self.rate.bytes_in(time),
            Queue::Bdp(share) => ByteCount((bandwidth_delay_product(self.rate, rtt).0 as f64 * share) as u64),
        }
    }
}

impl Outage {
    /// Whether `time` since the start of the path lies in the outage.
    pub fn covers(&self, time: Duration) -> bool {
        let Some(since) = time.checked_sub(self.start) else { return false };
        match self.every {
            Some(every) if !every.is_zero() => since.as_nanos() % every.as_nanos() < self.length.as_nanos(),
            _ => since < self.length,
        }
    }
}

impl StrippedOptions {
    /// Whether any option is removed.
    pub fn any(self) -> bool {
        self.sack || self.window_scale || self.timestamps
    }
}
