//! The description of a path, and the state machine that carries packets over it.
//!
//! Returns for each packet the time of arrival or the cause of its loss. Refuses to read a clock, to touch a packet's
//! bytes and to allocate per packet. Time enters as the [`Duration`] since the start of the path. Packets enter as a
//! length and a flow, and verdicts leave. The TUN router and the tests in virtual time use the same state machine.
//!
//! A packet passes first the path MTU, the policer, the shaper and the queue. Then follow the rate (whole IP packets,
//! no lower layers), the outages, bursty loss and random loss. Delay, jitter, reordering and duplication come last.
//! Loss follows the rate, as on a noisy radio link: a lost packet has used the link.

mod bucket;
mod counters;
mod direction;
mod flight;
pub(crate) mod random;
mod time;

use std::time::Duration;

use sterna_proto::quantity::bandwidth_delay_product;
use sterna_proto::{BitRate, ByteCount};

pub use counters::{DirectionCounters, DropCause, Dropped};
pub use direction::{Delivery, Direction, Flow, Order, Verdict};
pub use flight::{InFlight, Wire};
pub(crate) use time::nanos;

/// A path between two hosts, both directions.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkModel {
    /// From host `a` to host `b`: the direction of the data in every profile.
    pub forward: DirectionModel,
    /// From host `b` to host `a`.
    pub reverse: DirectionModel,
    /// Round-trip time without queueing, half in each direction; the transmission time of a packet is added.
    pub rtt: Duration,
    /// MTU of both hosts' interfaces, bytes of an IP packet.
    pub mtu: u16,
    /// Largest IP packet that passes inside the path; `None` if the path carries all packets that the hosts can send.
    pub path_mtu: Option<u16>,
    /// True if the path answers a packet that exceeds its MTU with ICMP "fragmentation needed".
    pub icmp: bool,
    /// Equal-cost paths, each given by its extra round-trip time (all of it forward). A flow stays on one. Empty: one
    /// path.
    pub ecmp: Vec<Duration>,
    /// TCP options that a middlebox removes from SYN packets.
    pub strip: StrippedOptions,
    /// Largest MSS that a middlebox leaves in the SYN packets of both directions, bytes; `None`: no change.
    pub mss_clamp: Option<u16>,
    /// Times when no packet passes in either direction.
    pub outages: Vec<Outage>,
    /// A second network between the same two hosts.
    pub second: Option<Box<LinkModel>>,
    /// Seed of all random choices.
    pub seed: u64,
}

/// One direction of a path.
#[derive(Clone, Debug, PartialEq)]
pub struct DirectionModel {
    /// Rate of the bottleneck; counts whole IP packets.
    pub rate: BitRate,
    /// Drop-tail queue before the bottleneck.
    pub queue: Queue,
    /// Probability that a packet is lost, independent of other packets; in `[0, 1]`.
    pub loss: f64,
    /// Losses in bursts, in addition to `loss`.
    pub burst_loss: Option<BurstLoss>,
    /// Token bucket that drops excess packets.
    pub policer: Option<Policer>,
    /// Token bucket that delays excess packets.
    pub shaper: Option<Shaper>,
    /// Largest extra delay of a packet, uniform from zero; never reorders packets.
    pub jitter: Duration,
    /// Delay of some packets so that later packets overtake them.
    pub reorder: Option<Reorder>,
    /// Probability that a packet arrives twice; in `[0, 1]`.
    pub duplicate: f64,
}

/// Capacity of a queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Queue {
    /// Number of bytes.
    Bytes(ByteCount),
    /// Bytes that the bottleneck sends in this time.
    Time(Duration),
    /// Share of the bandwidth-delay product.
    Bdp(f64),
}

/// Gilbert-Elliott loss: a good and a bad state, with a probability of change at each packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BurstLoss {
    /// Probability of the change from good to bad, per packet.
    pub to_bad: f64,
    /// Probability of the change from bad to good; bursts last `1 / to_good` packets on average.
    pub to_good: f64,
    /// Probability of loss in the bad state.
    pub loss_bad: f64,
}

/// A token bucket: in time `t` at most `rate * t + burst` passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policer {
    /// Rate at which the bucket fills; counts whole IP packets.
    pub rate: BitRate,
    /// Size of the bucket; it starts full.
    pub burst: ByteCount,
    /// True if the policer limits only UDP, as operators configure against floods; other traffic passes.
    pub udp_only: bool,
}

/// A token bucket with a queue: `burst` bytes pass at the rate of the link, and the rest follows at `rate`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shaper {
    /// Rate at which the bucket fills; counts whole IP packets.
    pub rate: BitRate,
    /// Size of the bucket; it starts full. 0: every packet waits for the tokens of its own length.
    pub burst: ByteCount,
    /// Drop-tail queue of packets that wait for tokens. A share of the bandwidth-delay product is that of `rate`.
    pub queue: Queue,
}

/// Packets held back so that later packets overtake them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reorder {
    /// Probability that a packet is held back; in `[0, 1]`.
    pub probability: f64,
    /// Extra delay of a packet that is held back.
    pub delay: Duration,
}

/// A time without connectivity. A packet is lost if its last bit leaves the bottleneck during the outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Start of the outage, since the start of the path.
    pub start: Duration,
    /// Length of the outage.
    pub length: Duration,
    /// Interval from one start to the next, if the outage repeats.
    pub every: Option<Duration>,
}

/// TCP options that the path removes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StrippedOptions {
    /// Selective acknowledgement (kind 4).
    pub sack: bool,
    /// Window scaling (kind 3).
    pub window_scale: bool,
    /// Timestamps (kind 8).
    pub timestamps: bool,
}

/// Largest MTU of the lab: jumbo frames as used between science networks.
pub const MTU_BYTES_MAX: u16 = 9000;

/// Smallest MTU of the lab: the size that every IPv4 host must accept (RFC 791).
pub const MTU_BYTES_MIN: u16 = 576;

impl LinkModel {
    /// Returns a clean symmetric path: a queue of one BDP, MTU 1500, no impairment.
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
            mss_clamp: None,
            outages: Vec::new(),
            second: None,
            seed: 1,
        }
    }

    /// Returns the round-trip time of the longest equal-cost path, without queueing.
    pub fn rtt_max(&self) -> Duration {
        self.rtt + self.ecmp.iter().copied().max().unwrap_or_default()
    }
}

impl DirectionModel {
    /// Returns a direction of this rate without any impairment.
    pub fn clean(rate: BitRate) -> Self {
        Self {
            rate,
            queue: Queue::Bdp(1.0),
            loss: 0.0,
            burst_loss: None,
            policer: None,
            shaper: None,
            jitter: Duration::ZERO,
            reorder: None,
            duplicate: 0.0,
        }
    }

    /// Returns the capacity of the queue on a path with round-trip time `rtt`.
    pub fn queue_bytes(&self, rtt: Duration) -> ByteCount {
        self.queue.bytes(self.rate, rtt)
    }
}

impl Queue {
    /// Returns the capacity before a bottleneck of `rate`, on a path with round-trip time `rtt`.
    pub fn bytes(self, rate: BitRate, rtt: Duration) -> ByteCount {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Time(time) => rate.bytes_in(time),
            Self::Bdp(share) => ByteCount((bandwidth_delay_product(rate, rtt).0 as f64 * share) as u64),
        }
    }
}

impl Outage {
    /// Returns true if `time` since the start of the path is inside the outage.
    pub fn covers(&self, time: Duration) -> bool {
        let Some(since) = time.checked_sub(self.start) else { return false };
        match self.every {
            Some(every) if !every.is_zero() => since.as_nanos() % every.as_nanos() < self.length.as_nanos(),
            _ => since < self.length,
        }
    }
}

impl StrippedOptions {
    /// Returns true if any option is removed.
    pub fn any(self) -> bool {
        self.sack || self.window_scale || self.timestamps
    }
}
