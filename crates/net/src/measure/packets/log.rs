//! Receiver's record of a packet train, by the numbers of the packets. Pure: it sees numbers and times only.

use std::collections::VecDeque;

use super::super::message::{PortCount, SentTrain, SizeCount, TrainBin, TrainReport};
use super::super::{LOST_MAX, TRAIN_BIN};
use super::plan::Plan;
use super::skew::skew;

/// Arrivals of higher numbers that are kept for the lateness of reordered packets. Reason: 65 ms at a packet each
/// microsecond; the lateness of an older packet is counted from the oldest one here, and so is too small.
const HIGHEST_KEPT: usize = 1 << 16;

/// Time of a train after which the skew of the clocks is removed. Reason: 100 ppm of 2 s are 0.2 ms, and the skew of a
/// shorter train is lost in the queue.
const SKEW_FROM_NS: u64 = 2_000_000_000;

/// Interval of the smallest delays of a port. Reason: the skew within it is below 0.1 ms.
const PORT_BIN_NS: u64 = 1_000_000_000;

const BIN_NS: u64 = TRAIN_BIN.as_nanos() as u64;

/// Packet that has arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// Number of the packet.
    pub(super) number: u64,
    /// Time of sending since the start of the train, ns.
    pub(super) sent_ns: u64,
    /// Time of arrival by the clock of the receiver, ns.
    pub(super) arrived_ns: u64,
    /// Size of the IP packet.
    pub(super) bytes: u32,
}

/// Smallest, mean and largest of delays, ns.
#[derive(Clone, Copy, Debug, Default)]
struct Delays {
    count: u32,
    min: i64,
    max: i64,
    sum: i128,
    /// Time of sending of the smallest, ns.
    min_sent_ns: u64,
}

/// Arrivals of one interval of sending.
#[derive(Clone, Copy, Debug, Default)]
struct Bin {
    bytes: u64,
    delays: Delays,
    first_ns: u64,
    last_ns: u64,
}

/// Arrivals over one port.
#[derive(Clone, Debug, Default)]
struct Port {
    received: u64,
    reordered: u64,
    highest: Option<u64>,
    /// By interval of sending.
    delays: Vec<Delays>,
}

/// Record of a train.
#[derive(Debug)]
pub(super) struct Log {
    plan: Plan,
    /// One bit of each packet.
    seen: Vec<u64>,
    received: u64,
    received_bytes: u64,
    duplicates: u64,
    reordered: u64,
    extent_ns: u64,
    /// Numbers above all earlier ones, and their arrivals; the last is the highest.
    highest: VecDeque<(u64, u64)>,
    bins: Vec<Bin>,
    sizes: Vec<u64>,
    ports: Vec<Port>,
    /// First arrival, ns: delays count from it, so that sums stay small.
    first_ns: Option<u64>,
}

impl Log {
    /// Begins the record of a train.
    pub(super) fn new(plan: Plan) -> Self {
        let intervals = |length: u64| usize::try_from(plan.time_max().as_nanos() as u64 / length + 1).unwrap_or(1);
        let port = Port { delays: vec![Delays::default(); intervals(PORT_BIN_NS)], ..Port::default() };
        Self {
            seen: vec![0; usize::try_from(plan.packets.div_ceil(64)).unwrap_or(0)],
            received: 0,
            received_bytes: 0,
            duplicates: 0,
            reordered: 0,
            extent_ns: 0,
            highest: VecDeque::with_capacity(HIGHEST_KEPT),
            bins: vec![Bin::default(); intervals(BIN_NS)],
            sizes: vec![0; plan.sizes().len()],
            ports: vec![port; plan.ports as usize],
            first_ns: None,
            plan,
        }
    }

    /// Returns the bytes of headers of each packet.
    pub(super) fn header(&self) -> u32 {
        self.plan.header
    }

    /// Records a packet. Ignores one that the train does not have.
    pub(super) fn handle(&mut self, packet: &Arrival) {
        let bin = usize::try_from(packet.sent_ns / BIN_NS).unwrap_or(usize::MAX);
        if packet.number >= self.plan.packets || bin >= self.bins.len() || packet.bytes != self.plan.size(packet.number)
        {
            return;
        }
        // The number is smaller than that of the packets, whose bits are here.
        let (word, bit) = ((packet.number / 64) as usize, 1 << (packet.number % 64));
        if self.seen[word] & bit != 0 {
            self.duplicates += 1;
            return;
        }
        self.seen[word] |= bit;
        self.received += 1;
        self.received_bytes += u64::from(packet.bytes);
        let first = *self.first_ns.get_or_insert(packet.arrived_ns);
        let since_first = packet.arrived_ns.cast_signed().wrapping_sub(first.cast_signed());
        let delay = since_first.saturating_sub(i64::try_from(packet.sent_ns).unwrap_or(i64::MAX));
        self.bins[bin].add(packet, delay);
        self.sizes[self.plan.size_index(packet.number)] += 1;
        self.ports[self.plan.port_index(packet.number)].add(packet, delay);
        self.order(packet);
    }

    /// Records the order of a packet.
    fn order(&mut self, packet: &Arrival) {
        match self.highest.back() {
            Some((highest, _)) if *highest > packet.number => {
                let index = self.highest.partition_point(|(number, _)| *number < packet.number);
                // The last one is higher.
                let (_, arrived) = self.highest[index.min(self.highest.len() - 1)];
                // Sockets are read one after the other, so a packet may be read after one that arrived later.
                if packet.arrived_ns > arrived {
                    self.reordered += 1;
                    self.extent_ns = self.extent_ns.max(packet.arrived_ns - arrived);
                }
            }
            _ => {
                if self.highest.len() == HIGHEST_KEPT {
                    self.highest.pop_front();
                }
                self.highest.push_back((packet.number, packet.arrived_ns));
            }
        }
    }

    /// Returns true if all packets have arrived that were sent.
    pub(super) fn is_complete(&self, sent: &SentTrain) -> bool {
        self.received >= total(sent.sizes.iter().map(|size| size.sent))
    }

    /// Returns the report of the train. `drops`: packets that the socket dropped.
    pub(super) fn report(&self, sent: &SentTrain, drops: u64) -> TrainReport {
        let slope = if self.plan.time.as_nanos() >= u128::from(SKEW_FROM_NS) { skew(&self.points()) } else { 0.0 };
        let corrected = |delays: &Delays| delays.min - drift(slope, delays.min_sent_ns);
        let mins = self.bins.iter().filter(|bin| bin.delays.count > 0).map(|bin| corrected(&bin.delays));
        let smallest = mins.min().unwrap_or(0);
        let mut bins: Vec<TrainBin> =
            self.bins.iter().enumerate().map(|(index, bin)| self.bin(index as u64, bin, slope, smallest)).collect();
        for (bin, (packets, bytes)) in bins.iter_mut().zip(&sent.bins) {
            (bin.sent, bin.sent_bytes) = (*packets, *bytes);
        }
        while bins.last().is_some_and(|bin| bin.sent == 0 && bin.received == 0) {
            bins.pop();
        }
        let (lost, first_lost_bytes) = self.losses(sent);
        TrainReport {
            sent: total(sent.bins.iter().map(|(packets, _)| u64::from(*packets))),
            sent_bytes: total(sent.bins.iter().map(|(_, bytes)| *bytes)),
            received: self.received,
            received_bytes: self.received_bytes,
            duplicates: self.duplicates,
            reordered: self.reordered,
            reorder_extent_us: self.extent_ns / 1000,
            bins,
            lost,
            first_lost_bytes,
            sizes: self.size_counts(sent),
            too_big_mtu: sent.too_big_mtu,
            ports: self.port_counts(sent, slope, smallest),
            pause_us: sent.pause_us,
            behind: sent.behind,
            receiver_drops: drops,
            sender_drops: sent.drops,
            skew_ppb: (slope * 1e9).round() as i64,
        }
    }

    /// Returns the smallest delay of each interval with its time of sending.
    fn points(&self) -> Vec<(i64, i64)> {
        let arrived = self.bins.iter().map(|bin| &bin.delays).filter(|delays| delays.count > 0);
        arrived.map(|delays| (delays.min_sent_ns.cast_signed(), delays.min)).collect()
    }

    fn bin(&self, index: u64, bin: &Bin, slope: f64, smallest: i64) -> TrainBin {
        let at_us = index * BIN_NS / 1000;
        let delays = &bin.delays;
        if delays.count == 0 {
            return TrainBin { at_us, ..TrainBin::default() };
        }
        // The skew within an interval is below the resolution.
        let relative = |delay: i64| (delay - drift(slope, delays.min_sent_ns) - smallest) / 1000;
        let first = self.first_ns.unwrap_or(0);
        TrainBin {
            at_us,
            received: delays.count,
            received_bytes: bin.bytes,
            delay_min_us: relative(delays.min),
            delay_mean_us: relative(i64::try_from(delays.sum / i128::from(delays.count)).unwrap_or(0)),
            delay_max_us: relative(delays.max),
            first_arrival_us: bin.first_ns.saturating_sub(first) / 1000,
            last_arrival_us: bin.last_ns.saturating_sub(first) / 1000,
            ..TrainBin::default()
        }
    }

    /// Returns the numbers of the first lost packets, and the bytes sent before the first.
    fn losses(&self, sent: &SentTrain) -> (Vec<u64>, Option<u64>) {
        let (mut lost, mut bytes, mut first) = (Vec::new(), 0, None);
        for number in 0..sent.packets.min(self.plan.packets) {
            if self.plan.is_refused(number, sent) {
                continue;
            }
            if self.seen[(number / 64) as usize] >> (number % 64) & 1 == 0 {
                first = first.or(Some(bytes));
                lost.push(number);
                if lost.len() == LOST_MAX {
                    break;
                }
            }
            bytes += u64::from(self.plan.size(number));
        }
        (lost, first)
    }

    fn size_counts(&self, sent: &SentTrain) -> Vec<SizeCount> {
        let counts = self.plan.sizes().iter().zip(&self.sizes).enumerate();
        counts
            .map(|(index, (bytes, received))| {
                let sent = sent.sizes.get(index).copied().unwrap_or_default();
                SizeCount { bytes: *bytes, sent: sent.sent, refused: sent.refused, received: *received }
            })
            .collect()
    }

    /// Returns the counts by port, whose numbers the client adds.
    fn port_counts(&self, sent: &SentTrain, slope: f64, smallest: i64) -> Vec<PortCount> {
        let count = |(index, port): (usize, &Port)| {
            let arrived = port.delays.iter().filter(|delays| delays.count > 0);
            let min = arrived.map(|delays| delays.min - drift(slope, delays.min_sent_ns)).min();
            PortCount {
                port: 0,
                sent: sent.ports.get(index).copied().unwrap_or(0),
                received: port.received,
                reordered: port.reordered,
                delay_min_us: min.map_or(0, |min| u64::try_from(min - smallest).unwrap_or(0) / 1000),
            }
        };
        self.ports.iter().enumerate().map(count).collect()
    }
}

impl Delays {
    fn add(&mut self, delay: i64, sent_ns: u64) {
        if self.count == 0 || delay < self.min {
            (self.min, self.min_sent_ns) = (delay, sent_ns);
        }
        self.max = if self.count == 0 { delay } else { self.max.max(delay) };
        self.sum += i128::from(delay);
        self.count = self.count.saturating_add(1);
    }
}

impl Bin {
    fn add(&mut self, packet: &Arrival, delay: i64) {
        if self.delays.count == 0 {
            (self.first_ns, self.last_ns) = (packet.arrived_ns, packet.arrived_ns);
        }
        self.first_ns = self.first_ns.min(packet.arrived_ns);
        self.last_ns = self.last_ns.max(packet.arrived_ns);
        self.bytes += u64::from(packet.bytes);
        self.delays.add(delay, packet.sent_ns);
    }
}

impl Port {
    fn add(&mut self, packet: &Arrival, delay: i64) {
        self.received += 1;
        if self.highest.is_some_and(|highest| highest > packet.number) {
            self.reordered += 1;
        } else {
            self.highest = Some(packet.number);
        }
        let index = usize::try_from(packet.sent_ns / PORT_BIN_NS).unwrap_or(usize::MAX);
        if let Some(delays) = self.delays.get_mut(index) {
            delays.add(delay, packet.sent_ns);
        }
    }
}

/// Delay that the skew of the clocks adds at a time, ns.
fn drift(slope: f64, sent_ns: u64) -> i64 {
    (slope * sent_ns as f64) as i64
}

/// Adds counts, of which some come from a peer.
fn total(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use sterna_proto::path_cache::DataDirection;
    use sterna_seeded::{Seeded, for_seeds};

    use super::super::super::message::{SentSize, TrainSpec};
    use super::*;

    fn plan(time_ms: u64, packet_bytes: Vec<u32>, ports: u32) -> Plan {
        let spec = TrainSpec { direction: DataDirection::Out, rate_bps: 8_000_000, time_ms, packet_bytes, ports };
        Plan::new(&spec, true).unwrap()
    }

    /// Time of sending of a packet, ns: 1000 bytes each millisecond.
    fn sent_ns(number: u64) -> u64 {
        number * 1_000_000
    }

    /// Record of a sender without refusals.
    fn sent_all(plan: &Plan) -> SentTrain {
        let mut sent = SentTrain { packets: plan.packets, ports: vec![0; plan.ports as usize], ..SentTrain::default() };
        sent.sizes = vec![SentSize::default(); plan.sizes().len()];
        for number in 0..plan.packets {
            let bin = (sent_ns(number) / BIN_NS) as usize;
            sent.bins.resize(sent.bins.len().max(bin + 1), (0, 0));
            sent.bins[bin].0 += 1;
            sent.bins[bin].1 += u64::from(plan.size(number));
            sent.sizes[plan.size_index(number)].sent += 1;
            sent.ports[plan.port_index(number)] += 1;
        }
        sent
    }

    fn arrival(plan: &Plan, number: u64, arrived_ns: u64) -> Arrival {
        Arrival { number, sent_ns: sent_ns(number), arrived_ns, bytes: plan.size(number) }
    }

    #[test]
    fn random_loss_duplicates_and_order_are_counted_as_a_model_counts_them() {
        for_seeds("random_loss_duplicates_and_order", 30, |seed| {
            let mut random = Seeded::new(seed);
            let plan = plan(400, vec![1000], 1 + u32::try_from(random.below(4)).unwrap());
            let (start, loss) = (1_700_000_000_000_000_000, random.below(200));
            let mut arrivals = Vec::new();
            for number in 0..plan.packets {
                if random.chance(loss) {
                    continue;
                }
                let late = if random.chance(100) { random.below(5_000_000) } else { random.below(500_000) };
                arrivals.push(arrival(&plan, number, start + sent_ns(number) + late));
                if random.chance(20) {
                    arrivals.push(arrival(&plan, number, start + sent_ns(number) + late + random.below(9_000_000)));
                }
            }
            arrivals.sort_by_key(|packet| packet.arrived_ns);
            let mut log = Log::new(plan.clone());
            arrivals.iter().for_each(|packet| log.handle(packet));
            let report = log.report(&sent_all(&plan), 3);
            // The model keeps every arrival.
            let mut firsts: Vec<Arrival> = Vec::new();
            for packet in &arrivals {
                if firsts.iter().all(|first| first.number != packet.number) {
                    firsts.push(*packet);
                }
            }
            let lateness: Vec<u64> = (0..firsts.len())
                .filter_map(|index| {
                    let earlier = firsts[..index].iter().find(|other| other.number > firsts[index].number);
                    earlier.map(|other| firsts[index].arrived_ns - other.arrived_ns)
                })
                .collect();
            let arrived: BTreeSet<u64> = firsts.iter().map(|packet| packet.number).collect();
            let lost: Vec<u64> = (0..plan.packets).filter(|number| !arrived.contains(number)).collect();
            assert_eq!(report.received, firsts.len() as u64);
            assert_eq!(report.duplicates, (arrivals.len() - firsts.len()) as u64);
            assert_eq!(
                (report.reordered, report.sent, report.receiver_drops),
                (lateness.len() as u64, plan.packets, 3)
            );
            assert_eq!(report.reorder_extent_us, lateness.iter().max().copied().unwrap_or(0) / 1000);
            assert_eq!(report.first_lost_bytes, lost.first().map(|number| number * 1000));
            assert_eq!(report.lost, lost);
            let delay = |packet: &Arrival| packet.arrived_ns - start - packet.sent_ns;
            let smallest = firsts.iter().map(delay).min().unwrap();
            for (index, bin) in report.bins.iter().enumerate() {
                let of_bin = firsts.iter().filter(|packet| packet.sent_ns / BIN_NS == index as u64);
                let delays: Vec<u64> = of_bin.map(|packet| delay(packet) - smallest).collect();
                assert_eq!((bin.sent, bin.received as usize), (10, delays.len()));
                let max = delays.iter().max().map_or(0, |delay| delay / 1000);
                assert!(u64::try_from(bin.delay_max_us).unwrap().abs_diff(max) <= 1, "{bin:?} {max}");
            }
            assert_eq!(report.ports.iter().map(|port| port.received).sum::<u64>(), report.received);
            assert!(report.ports.iter().any(|port| port.delay_min_us == 0));
        });
    }

    #[test]
    fn refused_sizes_are_no_losses_and_silent_ones_are() {
        let plan = plan(10, vec![1000, 1400, 1600], 1);
        let mut sent = sent_all(&plan);
        // The interface refuses 1600 bytes, and the path drops 1400.
        let refused = std::mem::take(&mut sent.sizes[2].sent);
        sent.sizes[2] = SentSize { sent: 0, refused, refused_from: Some(2) };
        let mut log = Log::new(plan.clone());
        (0..plan.packets).step_by(3).for_each(|number| log.handle(&arrival(&plan, number, sent_ns(number))));
        let report = log.report(&sent, 0);
        assert_eq!((report.lost, report.first_lost_bytes), (vec![1, 4, 7], Some(1000)));
        let sizes: Vec<_> =
            report.sizes.iter().map(|size| (size.bytes, size.sent, size.refused, size.received)).collect();
        assert_eq!(sizes, [(1000, 3, 0, 3), (1400, 3, 0, 0), (1600, 0, refused, 0)]);
    }

    #[test]
    fn skew_is_removed_from_long_trains() {
        let plan = plan(3000, vec![1000], 2);
        let mut log = Log::new(plan.clone());
        // 100 ppm; the second port is 4.5 ms longer.
        let delay = |number: u64| sent_ns(number) / 10_000 + number % 2 * 4_500_000;
        let arrived = |number: u64| 9_000_000_000 + sent_ns(number) + delay(number);
        let mut arrivals: Vec<Arrival> =
            (0..plan.packets).map(|number| arrival(&plan, number, arrived(number))).collect();
        arrivals.sort_by_key(|packet| packet.arrived_ns);
        arrivals.iter().for_each(|packet| log.handle(packet));
        let report = log.report(&sent_all(&plan), 0);
        assert!(report.skew_ppb.abs_diff(100_000) < 10, "{}", report.skew_ppb);
        assert!(report.bins.iter().all(|bin| bin.delay_min_us <= 1 && (4499..=4502).contains(&bin.delay_max_us)));
        assert!(report.ports[0].delay_min_us == 0 && report.ports[1].delay_min_us.abs_diff(4500) <= 1);
        assert_eq!((report.reordered, report.ports[1].reordered), (plan.packets / 2 - 1, 0));
    }

    #[test]
    fn packets_of_no_train_and_counts_of_a_liar_do_no_harm() {
        let plan = plan(100, vec![1000], 1);
        let mut log = Log::new(plan.clone());
        for (number, sent_ns, bytes) in
            [(plan.packets, 0, 1000), (u64::MAX, 0, 1000), (0, u64::MAX, 1000), (0, 1_000_000_000, 1000), (0, 0, 999)]
        {
            log.handle(&Arrival { number, sent_ns, arrived_ns: 5, bytes });
        }
        assert_eq!(log.received, 0);
        log.handle(&arrival(&plan, 5, u64::MAX));
        log.handle(&arrival(&plan, 6, 0));
        let liar = SentTrain {
            packets: u64::MAX,
            bins: vec![(u32::MAX, u64::MAX); 5000],
            sizes: vec![SentSize { sent: u64::MAX, refused: 1, refused_from: Some(99) }; 3],
            ports: vec![7; 900],
            ..SentTrain::default()
        };
        let report = log.report(&liar, 0);
        assert_eq!((report.received, report.lost.len() as u64, log.is_complete(&liar)), (2, 97, false));
    }
}
