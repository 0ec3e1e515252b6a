//! State machine of one path direction: takes a packet, returns the time of its arrival or the cause of its loss.

use std::time::Duration;

use super::bucket::{PolicerBucket, ShaperBucket};
use super::counters::{BusiestSecond, DirectionCounters, DropCause};
use super::random::{Random, mix, threshold};
use super::time::{BITS_NS_PER_BYTE, nanos};
use super::{BurstLoss, DirectionModel, LinkModel, Outage, Reorder};

/// A flow, as routers distinguish flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Hash over addresses, protocol and ports.
    pub hash: u64,
    /// True if the packets of the flow are UDP.
    pub is_udp: bool,
}

impl Flow {
    /// Returns a TCP flow with this hash.
    pub fn tcp(hash: u64) -> Self {
        Self { hash, is_udp: false }
    }

    /// Returns a UDP flow with this hash.
    pub fn udp(hash: u64) -> Self {
        Self { hash, is_udp: true }
    }
}

/// Result for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet arrives.
    Deliver(Delivery),
    /// The packet is lost.
    Drop(DropCause),
}

/// Time and order of a packet's arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Arrival time of the last bit, since the start of the path.
    pub at: Duration,
    /// Position among the other packets.
    pub order: Order,
    /// Arrival time of a duplicate, if any.
    pub copy_at: Option<Duration>,
}

/// Order of a packet relative to the others on its equal-cost path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// In order, after the earlier packets of the equal-cost path with this index.
    InOrder(usize),
    /// Independent of other packets.
    Alone,
}

/// One direction of a path in operation.
///
/// `now` must not go backwards between calls. Cost: no allocation, one random draw for each active impairment.
#[derive(Clone, Debug)]
pub struct Direction {
    rate_bits: u64,
    queue_ns: u64,
    policer: Option<PolicerBucket>,
    shaper: Option<ShaperBucket>,
    outages: Vec<Outage>,
    /// An outage that lasts until it is ended by [`Direction::set_cut`].
    cut: bool,
    loss: Chance,
    burst: Option<Burst>,
    /// Delay of each equal-cost path, and the latest arrival on it.
    ways: Vec<Way>,
    way_seed: u64,
    jitter_ns: u64,
    jitter_random: Random,
    reorder: Option<(Reorder, Chance)>,
    duplicate: Chance,
    mtu: usize,
    /// Time when the bottleneck has sent all packets that it accepted; the fraction of a nanosecond (in 1/rate) is the
    /// carry.
    busy_until_ns: u64,
    busy_carry: u64,
    counters: DirectionCounters,
    busiest: BusiestSecond,
}

#[derive(Clone, Debug)]
struct Way {
    delay_ns: u64,
    latest_ns: u64,
}

#[derive(Clone, Debug)]
struct Chance {
    threshold: u64,
    random: Random,
}

#[derive(Clone, Debug)]
struct Burst {
    model: BurstLoss,
    bad: bool,
    random: Random,
}

/// One of the two directions of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Forward,
    Reverse,
}

impl Direction {
    /// Returns the direction from host `a` to host `b`.
    pub fn forward(model: &LinkModel) -> Self {
        Self::new(model, &model.forward, Side::Forward)
    }

    /// Returns the direction from host `b` to host `a`.
    pub fn reverse(model: &LinkModel) -> Self {
        Self::new(model, &model.reverse, Side::Reverse)
    }

    fn new(model: &LinkModel, direction: &DirectionModel, side: Side) -> Self {
        let half_ns = nanos(model.rtt / 2);
        let seed = mix(model.seed).wrapping_add(side as u64);
        let random = |purpose| Random::new(seed, purpose);
        let extra: &[Duration] = if side == Side::Forward && !model.ecmp.is_empty() { &model.ecmp } else { &[ZERO] };
        let rate_bits = direction.rate.0.max(1);
        Self {
            rate_bits,
            queue_ns: nanos(direction.rate.time_for(direction.queue_bytes(model.rtt))),
            policer: direction.policer.map(PolicerBucket::full),
            shaper: direction.shaper.map(|shaper| ShaperBucket::full(shaper, model.rtt)),
            outages: model.outages.clone(),
            cut: false,
            loss: Chance::new(direction.loss, random(PURPOSE_LOSS)),
            burst: direction.burst_loss.map(|model| Burst { model, bad: false, random: random(PURPOSE_BURST) }),
            ways: extra.iter().map(|e| Way { delay_ns: half_ns + nanos(*e), latest_ns: 0 }).collect(),
            way_seed: random(PURPOSE_WAY).draw(),
            jitter_ns: nanos(direction.jitter),
            jitter_random: random(PURPOSE_JITTER),
            reorder: direction.reorder.map(|r| (r, Chance::new(r.probability, random(PURPOSE_REORDER)))),
            duplicate: Chance::new(direction.duplicate, random(PURPOSE_DUPLICATE)),
            mtu: usize::from(model.path_mtu.unwrap_or(model.mtu)),
            busy_until_ns: 0,
            busy_carry: 0,
            counters: DirectionCounters::default(),
            busiest: BusiestSecond::new(),
        }
    }

    /// Accepts a packet of `len` bytes (IP header included) at `now` and returns the verdict.
    pub fn offer(&mut self, now: Duration, len: usize, flow: Flow) -> Verdict {
        self.counters.offered_packets += 1;
        self.counters.offered_bytes += len as u64;
        self.counters.busiest_second_bytes = self.busiest.add(nanos(now), len as u64);
        match self.pass(nanos(now), len, flow) {
            Ok(delivery) => {
                self.counters.carried_packets += 1;
                self.counters.carried_bytes += len as u64;
                self.counters.duplicated_packets += u64::from(delivery.copy_at.is_some());
                Verdict::Deliver(delivery)
            }
            Err(cause) => {
                self.counters.dropped.add(cause);
                Verdict::Drop(cause)
            }
        }
    }

    fn pass(&mut self, now_ns: u64, len: usize, flow: Flow) -> Result<Delivery, DropCause> {
        if len > self.mtu {
            return Err(DropCause::Mtu);
        }
        let policer = self.policer.as_mut().filter(|policer| flow.is_udp || !policer.is_udp_only());
        if policer.is_some_and(|policer| !policer.passes(now_ns, len)) {
            return Err(DropCause::Policer);
        }
        let shaped_ns = match &mut self.shaper {
            Some(shaper) => shaper.pass(now_ns, len).ok_or(DropCause::Shaper)?,
            None => now_ns,
        };
        self.counters.shaped_packets += u64::from(shaped_ns > now_ns);
        let sent_ns = self.transmit(shaped_ns, len).ok_or(DropCause::Queue)?;
        let sent = Duration::from_nanos(sent_ns);
        if self.cut || self.outages.iter().any(|outage| outage.covers(sent)) {
            return Err(DropCause::Outage);
        }
        if self.burst.as_mut().is_some_and(Burst::lost) {
            return Err(DropCause::BurstLoss);
        }
        if self.loss.hit() {
            return Err(DropCause::Loss);
        }
        Ok(self.propagate(sent_ns, flow))
    }

    /// Returns the time when the bottleneck has sent the packet, or `None` when the queue is full.
    fn transmit(&mut self, now_ns: u64, len: usize) -> Option<u64> {
        let wait_ns = self.busy_until_ns.saturating_sub(now_ns);
        // The queue length limits the waiting packets; the packet in transmission is not part of it.
        if wait_ns > self.queue_ns {
            return None;
        }
        if wait_ns == 0 {
            self.busy_until_ns = now_ns;
            self.busy_carry = 0;
        }
        let work = (len as u64) * BITS_NS_PER_BYTE + self.busy_carry;
        self.busy_until_ns = self.busy_until_ns.saturating_add(work / self.rate_bits);
        self.busy_carry = work % self.rate_bits;
        let backlog_ns = self.busy_until_ns - now_ns;
        let backlog_bytes = u128::from(backlog_ns) * u128::from(self.rate_bits) / u128::from(BITS_NS_PER_BYTE);
        self.counters.queue_bytes_max = self.counters.queue_bytes_max.max(backlog_bytes as u64);
        Some(self.busy_until_ns)
    }

    fn propagate(&mut self, sent_ns: u64, flow: Flow) -> Delivery {
        let count = self.ways.len() as u64;
        // Most paths have one equal-cost path and need no hash and no division.
        let index = if count == 1 { 0 } else { (mix(flow.hash ^ self.way_seed) % count) as usize };
        let jitter_ns = if self.jitter_ns == 0 { 0 } else { self.jitter_random.up_to(self.jitter_ns) };
        let way = &mut self.ways[index];
        let arrival_ns = sent_ns.saturating_add(way.delay_ns).saturating_add(jitter_ns);
        let copy_at = self.duplicate.hit().then_some(arrival_ns);
        if let Some((reorder, chance)) = &mut self.reorder
            && chance.hit()
        {
            self.counters.reordered_packets += 1;
            let at = Duration::from_nanos(arrival_ns) + reorder.delay;
            return Delivery { at, order: Order::Alone, copy_at: copy_at.map(|_| at) };
        }
        way.latest_ns = way.latest_ns.max(arrival_ns);
        let at = Duration::from_nanos(way.latest_ns);
        Delivery { at, order: Order::InOrder(index), copy_at: copy_at.map(|_| at) }
    }

    /// Starts an outage (`true`) or ends it. It applies to all packets that are offered from now on.
    pub fn set_cut(&mut self, cut: bool) {
        self.cut = cut;
    }

    /// Returns the most bytes that can be in flight: full queues, plus the longest delay including jitter and
    /// reordering.
    pub fn bytes_in_flight_max(&self) -> usize {
        let longest_ns = self.ways.iter().map(|way| way.delay_ns).max().unwrap_or(0);
        let held_ns = self.reorder.as_ref().map_or(0, |(reorder, _)| nanos(reorder.delay));
        let ns =
            [self.queue_ns, longest_ns, self.jitter_ns, held_ns].iter().fold(0, |sum: u64, ns| sum.saturating_add(*ns));
        let on_the_way = u128::from(ns) * u128::from(self.rate_bits) / u128::from(BITS_NS_PER_BYTE);
        let shaped = self.shaper.as_ref().map_or(0, ShaperBucket::queue_bytes);
        usize::try_from(on_the_way.saturating_add(shaped)).unwrap_or(usize::MAX)
    }

    /// Returns the counters since the start.
    pub fn counters(&self) -> &DirectionCounters {
        &self.counters
    }
}

impl Chance {
    fn new(probability: f64, random: Random) -> Self {
        Self { threshold: threshold(probability), random }
    }

    fn hit(&mut self) -> bool {
        self.random.chance(self.threshold)
    }
}

impl Burst {
    fn lost(&mut self) -> bool {
        let change = if self.bad { self.model.to_good } else { self.model.to_bad };
        if self.random.chance(threshold(change)) {
            self.bad = !self.bad;
        }
        self.bad && self.random.chance(threshold(self.model.loss_bad))
    }
}

const ZERO: Duration = Duration::ZERO;

const PURPOSE_LOSS: u64 = 1;
const PURPOSE_BURST: u64 = 2;
const PURPOSE_WAY: u64 = 3;
const PURPOSE_JITTER: u64 = 4;
const PURPOSE_REORDER: u64 = 5;
const PURPOSE_DUPLICATE: u64 = 6;
