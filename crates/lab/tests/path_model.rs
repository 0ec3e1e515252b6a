//! The path model in virtual time: tests of every promise of [`sterna_lab::model`], with figures.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::time::Duration;

use sterna_lab::LinkModel;
use sterna_lab::model::{
    BurstLoss, Delivery, Direction, DropCause, Flow, Outage, Policer, Queue, Reorder, Shaper, Verdict, Wire,
};
use sterna_proto::{BitRate, ByteCount};

const PACKET: usize = 1500;
/// Transmission time of 1500 bytes at 100 Mbit/s.
const PACKET_TIME: Duration = Duration::from_micros(120);

fn path() -> LinkModel {
    LinkModel::clean(BitRate::megabits(100), Duration::from_millis(40))
}

fn delivery(verdict: Verdict) -> Option<Delivery> {
    match verdict {
        Verdict::Deliver(delivery) => Some(delivery),
        Verdict::Drop(_) => None,
    }
}

/// Offers `count` packets exactly at the rate of [`path`] and returns the verdicts.
fn paced(model: &LinkModel, count: u32) -> Vec<Verdict> {
    let mut direction = Direction::forward(model);
    (0..count).map(|index| direction.offer(PACKET_TIME * index, PACKET, Flow::tcp(7))).collect()
}

/// Fails if `hits` of `trials` deviates from `probability` by more than five standard deviations of a binomial.
fn assert_binomial(hits: usize, trials: usize, probability: f64) {
    let expected = trials as f64 * probability;
    let deviation = (expected * (1.0 - probability)).sqrt();
    assert!(
        (hits as f64 - expected).abs() < 5.0 * deviation,
        "{hits} of {trials}, expected {expected:.0} ± {deviation:.1}"
    );
}

#[test]
fn packets_leave_at_the_rate_to_the_nanosecond() {
    for (rate, packets) in [(BitRate::megabits(100), 1000u64), (BitRate(2_999_999_977), 100_000), (BitRate(9600), 10)] {
        let mut model = LinkModel::clean(rate, Duration::from_millis(40));
        model.forward.queue = Queue::Time(Duration::from_secs(3600));
        let mut direction = Direction::forward(&model);
        let last = (0..packets)
            .filter_map(|_| delivery(direction.offer(Duration::ZERO, PACKET, Flow::tcp(1))))
            .last()
            .unwrap();
        let exact = rate.time_for(ByteCount(packets * PACKET as u64)) + Duration::from_millis(20);
        assert_eq!(last.at, exact, "{rate}");
    }
}

#[test]
fn an_idle_path_takes_half_a_round_trip_and_the_packet_itself() {
    let (mut forward, mut reverse) = Wire::pair(&path());
    forward.offer(Duration::from_secs(1), PACKET, Flow::tcp(1), "data");
    let arrival = forward.poll_timeout().unwrap();
    assert_eq!(arrival, Duration::from_secs(1) + Duration::from_millis(20) + PACKET_TIME);
    assert_eq!(forward.poll(arrival - Duration::from_nanos(1)), None);
    assert_eq!(forward.poll(arrival), Some("data"));
    reverse.offer(arrival, PACKET, Flow::tcp(1), "reply");
    assert_eq!(reverse.poll_timeout(), Some(arrival + Duration::from_millis(20) + PACKET_TIME));
}

#[test]
fn a_full_queue_drops_and_never_holds_more_than_its_length_and_one_packet() {
    for queue in [Queue::Bytes(ByteCount(50_000)), Queue::Time(Duration::from_millis(4)), Queue::Bdp(0.1)] {
        let mut model = path();
        model.forward.queue = queue;
        let limit = model.forward.queue_bytes(model.rtt).0;
        assert_eq!(limit, 50_000);
        let mut direction = Direction::forward(&model);
        let kept = (0..100).filter_map(|_| delivery(direction.offer(Duration::ZERO, PACKET, Flow::tcp(1)))).count();
        assert_eq!(kept as u64, limit / PACKET as u64 + 1);
        let counters = direction.counters();
        assert_eq!(counters.dropped.queue, 100 - kept as u64);
        assert!((limit..=limit + PACKET as u64).contains(&counters.queue_bytes_max), "{}", counters.queue_bytes_max);
        // After one packet time there is room for one more packet.
        assert!(delivery(direction.offer(PACKET_TIME, PACKET, Flow::tcp(1))).is_some());
    }
}

#[test]
fn a_queue_of_zero_still_passes_what_is_paced() {
    let mut model = path();
    model.forward.queue = Queue::Bytes(ByteCount(0));
    assert!(paced(&model, 1000).into_iter().all(|verdict| delivery(verdict).is_some()));
}

#[test]
fn random_loss_is_binomial_and_independent() {
    for probability in [0.0001, 0.01, 0.3] {
        let mut model = path();
        model.forward.loss = probability;
        let lost: Vec<bool> = paced(&model, 1_000_000).iter().map(|v| *v == Verdict::Drop(DropCause::Loss)).collect();
        assert_binomial(lost.iter().filter(|lost| **lost).count(), lost.len(), probability);
        let pairs = lost.windows(2).filter(|pair| pair[0] && pair[1]).count();
        assert_binomial(pairs, lost.len(), probability * probability);
    }
}

#[test]
fn loss_of_nothing_and_of_everything_are_exact() {
    let mut model = path();
    assert!(paced(&model, 10_000).iter().all(|v| matches!(v, Verdict::Deliver(_))));
    model.forward.loss = 1.0;
    assert!(paced(&model, 10_000).iter().all(|v| *v == Verdict::Drop(DropCause::Loss)));
}

#[test]
fn bursts_last_and_come_as_often_as_gilbert_and_elliott_say() {
    let mut model = path();
    model.forward.burst_loss = Some(BurstLoss { to_bad: 0.001, to_good: 0.1, loss_bad: 1.0 });
    let mut lost: Vec<bool> = Vec::new();
    for seed in 0..10 {
        model.seed = seed;
        lost.extend(paced(&model, 1_000_000).iter().map(|v| *v == Verdict::Drop(DropCause::BurstLoss)));
    }
    // About 9900 bursts of 10 ± 9.5 packets: the mean is within 0.48 of 10 at five standard deviations.
    let bursts: Vec<usize> = lost.chunk_by(|a, b| a == b).filter(|run| run[0]).map(<[bool]>::len).collect();
    let mean = bursts.iter().sum::<usize>() as f64 / bursts.len() as f64;
    assert!((9.52..10.48).contains(&mean), "{} bursts of {mean} packets", bursts.len());
    // In the long run the path is bad for p / (p + r) of the packets.
    let share = lost.iter().filter(|lost| **lost).count() as f64 / lost.len() as f64;
    assert!((0.0092..0.0106).contains(&share), "{share}");
}

#[test]
fn a_policer_passes_rate_times_time_plus_bucket_and_not_a_packet_more() {
    let policer = Policer { rate: BitRate::megabits(30), burst: ByteCount(64 << 10), udp_only: false };
    let mut model = path();
    model.forward.policer = Some(policer);
    for seconds in [0.1f64, 1.0, 10.0] {
        let count = (seconds / PACKET_TIME.as_secs_f64()) as u32;
        let passed = paced(&model, count).into_iter().filter_map(delivery).count() as u64 * PACKET as u64;
        let bound = policer.rate.bytes_in(PACKET_TIME * (count - 1)).0 + policer.burst.0;
        assert!(passed <= bound && passed + PACKET as u64 > bound, "{passed} of {bound} bytes in {seconds} s");
    }
}

/// Returns the times at which paced packets leave [`path`], without its delay. Fails if one is lost.
fn departures(model: &LinkModel, count: u32) -> Vec<Duration> {
    let arrivals = paced(model, count).into_iter().map(|verdict| delivery(verdict).unwrap().at);
    arrivals.map(|at| at - Duration::from_millis(20)).collect()
}

#[test]
fn a_shaper_passes_its_bucket_at_the_rate_of_the_link_and_delays_the_rest_to_its_own() {
    let mut model = path();
    let queue = Queue::Time(Duration::from_secs(3600));
    // The bucket also fills while it empties: 60 packets at 100 Mbit/s, of which 40 % are not refilled.
    model.forward.shaper = Some(Shaper { rate: BitRate::megabits(60), burst: ByteCount(24 * 1500), queue });
    let times = departures(&model, 1000);
    // Packet 57 is the last that finds its tokens: 24 + 0.6 * 57 >= 58.
    for (index, at) in times[..58].iter().enumerate() {
        assert_eq!(*at, PACKET_TIME * (index as u32 + 1), "packet {index}");
    }
    for (index, pair) in times.windows(2).enumerate().skip(58) {
        assert!((pair[1] - pair[0]).abs_diff(Duration::from_micros(200)) <= Duration::from_nanos(1), "packet {index}");
    }
    let passed = 1000 * 1500;
    let bound = BitRate::megabits(60).bytes_in(times[999] - PACKET_TIME).0 + 24 * 1500;
    assert!((passed - 1..=passed + 1).contains(&bound), "{passed} bytes passed, {bound} may");
}

#[test]
fn a_shaper_without_a_bucket_is_a_slower_link_and_an_idle_one_fills_its_bucket_again() {
    let mut model = path();
    model.forward.shaper = Some(Shaper { rate: BitRate::megabits(50), burst: ByteCount(0), queue: Queue::Bdp(1.0) });
    let times = departures(&model, 100);
    assert!(times.iter().enumerate().all(|(index, at)| *at == PACKET_TIME * (2 * index as u32 + 3)), "{times:?}");
    let burst = ByteCount(10 * 1500);
    model.forward.shaper = Some(Shaper { rate: BitRate::megabits(10), burst, queue: Queue::Bdp(1.0) });
    let mut direction = Direction::forward(&model);
    // 12 ms fill the bucket. 3 ms fill a quarter of it: 2 of 3 packets do not wait.
    for (start_ms, undelayed) in [(0, 10), (24, 10), (24 + 3, 2)] {
        let start = Duration::from_millis(start_ms);
        let count = if start_ms == 24 + 3 { 3 } else { 10 };
        let times: Vec<Duration> = (0..count)
            .map(|_| {
                delivery(direction.offer(start, PACKET, Flow::tcp(1))).unwrap().at - Duration::from_millis(20) - start
            })
            .collect();
        let at_once = (1u32..).zip(&times).filter(|(index, at)| **at == PACKET_TIME * *index).count();
        assert_eq!(at_once, undelayed, "from {start:?}: {times:?}");
    }
}

#[test]
fn a_full_shaper_drops_and_delays_by_its_queue_at_most() {
    for (queue, bytes) in [
        (Queue::Bytes(ByteCount(30_000)), 30_000),
        (Queue::Time(Duration::from_millis(4)), 10_000),
        // 20 Mbit/s over 40 ms: the BDP is that of the shaper, not of the link.
        (Queue::Bdp(0.5), 50_000),
    ] {
        let mut model = path();
        model.reverse.shaper = Some(Shaper { rate: BitRate::megabits(20), burst: ByteCount(3000), queue });
        let mut direction = Direction::reverse(&model);
        let kept = (0..100).filter_map(|_| delivery(direction.offer(Duration::ZERO, PACKET, Flow::tcp(1))));
        let kept: Vec<Delivery> = kept.collect();
        // The bucket, the queue, and the packet whose tokens arrive next.
        assert_eq!(kept.len() as u64, 2 + bytes / PACKET as u64 + 1);
        let counters = direction.counters();
        assert_eq!((counters.dropped.shaper, counters.dropped.queue), (100 - kept.len() as u64, 0));
        assert_eq!(counters.shaped_packets, kept.len() as u64 - 2);
        let longest = kept[kept.len() - 1].at - Duration::from_millis(20) - PACKET_TIME;
        assert_eq!(longest, BitRate::megabits(20).time_for(ByteCount(1500 * (kept.len() as u64 - 2))));
        assert!(direction.bytes_in_flight_max() as u64 >= 500_000 + bytes, "{}", direction.bytes_in_flight_max());
    }
}

#[test]
fn a_policer_of_udp_lets_tcp_pass_and_the_packets_of_tcp_empty_no_bucket() {
    let mut model = path();
    model.forward.policer = Some(Policer { rate: BitRate::megabits(30), burst: ByteCount(64 << 10), udp_only: true });
    let mut direction = Direction::forward(&model);
    let (mut tcp, mut udp) = (0, 0);
    for index in 0..10_000 {
        let is_there = |verdict| u32::from(delivery(verdict).is_some());
        tcp += is_there(direction.offer(PACKET_TIME * (2 * index), PACKET, Flow::tcp(1)));
        udp += is_there(direction.offer(PACKET_TIME * (2 * index + 1), PACKET, Flow::udp(2)));
    }
    // The bucket plus 2.4 s at 30 Mbit/s are 9,065,536 bytes: 6043 packets.
    assert_eq!((tcp, udp), (10_000, 6043));
}

#[test]
fn an_outage_cuts_what_leaves_within_it_and_repeats_on_schedule() {
    let mut model = path();
    let [start, length, every] = [2, 1, 5].map(Duration::from_secs);
    model.outages = vec![Outage { start, length, every: Some(every) }];
    for (index, verdict) in paced(&model, 100_000).into_iter().enumerate() {
        let leaves = PACKET_TIME * (index as u32 + 1);
        let dark = leaves >= start && (leaves - start).as_nanos() % every.as_nanos() < length.as_nanos();
        assert_eq!(verdict == Verdict::Drop(DropCause::Outage), dark, "a packet that leaves at {leaves:?}");
    }
    model.outages = vec![Outage { start, length, every: None }];
    let cut = paced(&model, 100_000).iter().filter(|v| **v == Verdict::Drop(DropCause::Outage)).count();
    assert_eq!(cut, 8333, "one second holds 8333 packets of 120 us");
}

#[test]
fn jitter_delays_by_at_most_its_bound_and_never_reorders() {
    let mut model = path();
    model.forward.jitter = Duration::from_millis(3);
    let base = Duration::from_millis(20) + PACKET_TIME;
    let extra: Vec<Duration> = paced(&model, 10_000)
        .into_iter()
        .enumerate()
        .map(|(index, verdict)| delivery(verdict).unwrap().at - PACKET_TIME * index as u32 - base)
        .collect();
    assert!(extra.iter().all(|extra| *extra <= model.forward.jitter));
    assert!(extra.iter().max() > Some(&Duration::from_micros(2900)));
    let mut wire = Wire::new(Direction::forward(&model));
    for index in 0..1000 {
        wire.offer(PACKET_TIME * index, PACKET, Flow::tcp(1), index);
    }
    let order: Vec<u32> = std::iter::from_fn(|| wire.poll(Duration::from_secs(9))).collect();
    assert!(order.is_sorted());
}

#[test]
fn a_packet_held_back_is_overtaken_by_those_sent_in_the_meantime() {
    let mut model = path();
    model.forward.reorder = Some(Reorder { probability: 0.01, delay: Duration::from_millis(5) });
    let mut wire = Wire::new(Direction::forward(&model));
    for index in 0..100_000u32 {
        wire.offer(PACKET_TIME * index, PACKET, Flow::tcp(1), index);
    }
    let order: Vec<u32> = std::iter::from_fn(|| wire.poll(Duration::from_secs(99))).collect();
    assert_eq!(order.len(), 100_000);
    let held = wire.counters().reordered_packets as usize;
    assert_binomial(held, order.len(), 0.01);
    // 5 ms are 41.7 packets: each delayed packet arrives after the 41 packets that followed it.
    let mut newest = 0;
    let behind: Vec<u32> = order
        .iter()
        .map(|index| {
            newest = newest.max(*index);
            newest - index
        })
        .filter(|b| *b > 0)
        .collect();
    assert_eq!(behind.len(), held);
    assert!(behind.iter().all(|behind| (40..=42).contains(behind)), "{behind:?}");
}

#[test]
fn a_duplicate_comes_right_after_its_original() {
    let mut model = path();
    model.forward.duplicate = 0.1;
    let mut wire = Wire::new(Direction::forward(&model));
    for index in 0..10_000u32 {
        wire.offer(PACKET_TIME * index, PACKET, Flow::tcp(1), index);
    }
    let order: Vec<u32> = std::iter::from_fn(|| wire.poll(Duration::from_secs(99))).collect();
    assert!(order.is_sorted());
    let copies = order.windows(2).filter(|pair| pair[0] == pair[1]).count();
    assert_binomial(copies, 10_000, 0.1);
    assert_eq!(wire.counters().duplicated_packets as usize, copies);
}

#[test]
fn a_flow_keeps_to_its_equal_cost_path_and_flows_spread() {
    let mut model = path();
    model.ecmp = [0, 4_100].map(Duration::from_micros).to_vec();
    let mut direction = Direction::forward(&model);
    let mut long = 0;
    for flow in 0..1000 {
        let delays: Vec<Duration> = (0..5u32)
            .map(|round| {
                let now = PACKET_TIME * (flow * 5 + round);
                delivery(direction.offer(now, PACKET, Flow::tcp(u64::from(flow)))).unwrap().at - now - PACKET_TIME
            })
            .collect();
        assert!(delays.iter().all(|delay| *delay == delays[0]), "flow {flow}: {delays:?}");
        long += usize::from(delays[0] == Duration::from_micros(24_100));
    }
    assert_binomial(long, 1000, 0.5);
}

#[test]
fn a_packet_above_the_path_mtu_is_dropped_and_uses_no_rate() {
    let mut model = path();
    model.path_mtu = Some(1400);
    let mut direction = Direction::forward(&model);
    assert_eq!(direction.offer(Duration::ZERO, 1401, Flow::tcp(1)), Verdict::Drop(DropCause::Mtu));
    let next = delivery(direction.offer(Duration::ZERO, 1400, Flow::tcp(1))).unwrap();
    assert_eq!(next.at, Duration::from_millis(20) + Duration::from_micros(112));
}

#[test]
fn the_same_seed_gives_the_same_path_and_another_seed_another() {
    let mut model = path();
    model.forward.loss = 0.05;
    model.forward.jitter = Duration::from_millis(1);
    model.forward.reorder = Some(Reorder { probability: 0.05, delay: Duration::from_millis(5) });
    let once = paced(&model, 10_000);
    assert_eq!(once, paced(&model, 10_000));
    model.seed = 2;
    assert_ne!(once, paced(&model, 10_000));
}

#[test]
fn turning_one_impairment_on_leaves_the_choices_of_the_others() {
    let losses = |model: &LinkModel| {
        let verdicts = paced(model, 50_000);
        verdicts.iter().map(|v| *v == Verdict::Drop(DropCause::Loss)).collect::<Vec<_>>()
    };
    let mut model = path();
    model.forward.loss = 0.02;
    let alone = losses(&model);
    model.forward.jitter = Duration::from_millis(2);
    model.forward.duplicate = 0.1;
    assert_eq!(alone, losses(&model));
}

#[test]
fn every_packet_is_counted_once() {
    let mut model = path();
    model.forward.loss = 0.1;
    model.forward.policer = Some(Policer { rate: BitRate::megabits(80), burst: ByteCount(10_000), udp_only: false });
    model.outages = vec![Outage { start: Duration::from_millis(200), length: Duration::from_millis(50), every: None }];
    let mut direction = Direction::forward(&model);
    let mut carried = 0;
    for index in 0..10_000 {
        carried += u64::from(delivery(direction.offer(PACKET_TIME * index, PACKET, Flow::tcp(1))).is_some());
    }
    let counters = direction.counters();
    assert_eq!(counters.carried_packets, carried);
    assert_eq!(counters.offered_packets, carried + counters.dropped.total());
    assert!(
        [counters.dropped.loss, counters.dropped.policer, counters.dropped.outage].iter().all(|count| *count > 100)
    );
}

#[test]
fn the_slowest_path_with_the_longest_queue_never_overflows() {
    let mut model = LinkModel::clean(BitRate(1), Duration::from_secs(3600));
    model.forward.queue = Queue::Bytes(ByteCount(u64::MAX));
    model.forward.jitter = Duration::from_secs(3600);
    let mut direction = Direction::forward(&model);
    for _ in 0..1_000_000 {
        direction.offer(Duration::ZERO, 65_535, Flow::tcp(1));
    }
    assert_eq!(direction.counters().offered_packets, 1_000_000);
}
