//! Rate control against a bottleneck in virtual time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::{AckedPacket, LaneKey, RateBudget, RateConfig, RateControl};
use crate::{BitRate, ByteCount};

/// One direction of a path: what it carries and what it does to packets.
#[derive(Clone, Copy, Debug)]
struct Bottleneck {
    rate: BitRate,
    rtt: Duration,
    queue: ByteCount,
    /// Packets lost at random, in parts per million.
    loss_ppm: u64,
    /// A policer (rate, bucket) in front of the queue.
    policer: Option<(BitRate, ByteCount)>,
    outage: Option<(Duration, Duration)>,
    packet_bytes: u64,
    seed: u64,
}

impl Bottleneck {
    fn new(rate: BitRate, rtt_ms: u64) -> Self {
        let rtt = Duration::from_millis(rtt_ms);
        let queue = crate::quantity::bandwidth_delay_product(rate, rtt);
        Self {
            rate,
            rtt,
            queue: queue.max(ByteCount(64 * 1500)),
            loss_ppm: 0,
            policer: None,
            outage: None,
            packet_bytes: 1500,
            seed: 7,
        }
    }
}

#[derive(Default)]
struct Tally {
    sent: u64,
    delivered: u64,
    dropped_full: u64,
    /// Bytes delivered in each tenth of a second.
    tenths: Vec<u64>,
}

impl Tally {
    /// Mean rate delivered in `[from, to)` seconds as a share of `rate`.
    fn share(&self, from: f64, to: f64, rate: BitRate) -> f64 {
        let range = (from * 10.0) as usize..((to * 10.0) as usize).min(self.tenths.len());
        let bytes: u64 = self.tenths[range].iter().sum();
        bytes as f64 * 8.0 / (to - from) / rate.0 as f64
    }
}

struct InFlight {
    number: u64,
    sent: Instant,
    /// When its acknowledgement is back, if it was not dropped.
    back: Option<Instant>,
}

/// A sender that always has data, the bottleneck, and a peer that acknowledges in batches of 50 or 10 ms.
struct Run {
    path: Bottleneck,
    control: RateControl,
    start: Instant,
    now: Instant,
    flying: VecDeque<InFlight>,
    flying_bytes: u64,
    next_number: u64,
    link_free: Instant,
    bucket_bytes: f64,
    bucket_at: Instant,
    random: u64,
    tally: Tally,
}

impl Run {
    fn new(path: Bottleneck, given: Option<BitRate>) -> Self {
        // Virtual time needs some first instant; it is never read again.
        let start = Instant::now();
        let control = RateControl::new(RateConfig {
            given,
            loss_ceiling: 0.02,
            packet_bytes: path.packet_bytes,
            expected_rtt: Some(path.rtt),
        });
        Self {
            path,
            control,
            start,
            now: start,
            flying: VecDeque::new(),
            flying_bytes: 0,
            next_number: 1,
            link_free: start,
            bucket_bytes: path.policer.map_or(0.0, |(_, bucket)| bucket.0 as f64),
            bucket_at: start,
            random: path.seed,
            tally: Tally::default(),
        }
    }

    fn chance_ppm(&mut self) -> u64 {
        // xorshift64*: good enough for independent losses, and the same on every machine.
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        ((self.random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) * 1_000_000) >> 32
    }

    /// Puts one packet on the path; returns when its acknowledgement could be back.
    fn carry(&mut self) -> Option<Instant> {
        let path = self.path;
        let since = self.now - self.start;
        let bytes = path.packet_bytes;
        if self.chance_ppm() < path.loss_ppm || path.outage.is_some_and(|(from, to)| (from..to).contains(&since)) {
            return None;
        }
        if let Some((rate, bucket)) = path.policer {
            let refill = (self.now - self.bucket_at).as_secs_f64() * rate.0 as f64 / 8.0;
            self.bucket_bytes = (self.bucket_bytes + refill).min(bucket.0 as f64);
            self.bucket_at = self.now;
            if self.bucket_bytes < bytes as f64 {
                self.tally.dropped_full += 1;
                return None;
            }
            self.bucket_bytes -= bytes as f64;
        }
        let waiting = self.link_free.saturating_duration_since(self.now);
        if path.rate.bytes_in(waiting) > path.queue {
            self.tally.dropped_full += 1;
            return None;
        }
        self.link_free = self.link_free.max(self.now) + path.rate.time_for(ByteCount(bytes));
        let tenth = ((self.link_free - self.start).as_millis() / 100) as usize;
        if self.tally.tenths.len() <= tenth {
            self.tally.tenths.resize(tenth + 1, 0);
        }
        self.tally.tenths[tenth] += bytes;
        self.tally.delivered += 1;
        Some(self.link_free + path.rtt)
    }

    fn send(&mut self) {
        let back = self.carry();
        self.flying.push_back(InFlight { number: self.next_number, sent: self.now, back });
        self.flying_bytes += self.path.packet_bytes;
        self.control.handle_sent(self.now, self.next_number);
        self.next_number += 1;
        self.tally.sent += 1;
    }

    /// Hands over every acknowledgement that is back by now; a hole is lost once 100 later packets are acknowledged.
    fn acknowledge(&mut self) {
        let Some(last) = self.flying.iter().rposition(|p| p.back.is_some_and(|back| back <= self.now)) else { return };
        let largest = self.flying[last].number;
        let mut holes = VecDeque::new();
        for packet in self.flying.drain(..=last) {
            match packet.back {
                Some(_) => {
                    self.flying_bytes -= self.path.packet_bytes;
                    let acked = AckedPacket { number: packet.number, sent: packet.sent, bytes: self.path.packet_bytes };
                    self.control.handle_acked(self.now, acked);
                }
                None if packet.number + 100 <= largest => {
                    self.flying_bytes -= self.path.packet_bytes;
                    self.control.handle_lost(packet.number);
                }
                None => holes.push_back(packet),
            }
        }
        while let Some(hole) = holes.pop_back() {
            self.flying.push_front(hole);
        }
        self.control.handle_end_of_acks(self.now, false);
    }

    fn run(mut self, seconds: f64) -> (Tally, RateControl) {
        let end = self.start + Duration::from_secs_f64(seconds);
        let mut next_send = self.start;
        let mut next_ack = self.start;
        let mut last_progress = self.start;
        while self.now < end {
            if self.now >= next_ack {
                let before = self.flying.len();
                self.acknowledge();
                if self.flying.len() != before {
                    last_progress = self.now;
                }
                let batch = self.control.rate().time_for(ByteCount(50 * self.path.packet_bytes));
                next_ack = self.now + batch.min(Duration::from_millis(10)).max(Duration::from_micros(100));
            }
            let room = self.flying_bytes + self.path.packet_bytes <= self.control.window().0;
            // A probe after a silence, as every loss recovery sends one.
            let probe = self.now - last_progress > Duration::from_secs(1).max(self.path.rtt * 2);
            if self.now >= next_send && (room || probe) {
                if probe {
                    last_progress = self.now;
                }
                self.send();
                next_send = next_send.max(self.now - Duration::from_millis(2))
                    + self.control.rate().time_for(ByteCount(self.path.packet_bytes));
            }
            let blocked = !room && !probe;
            self.now = if blocked { next_ack } else { next_send.min(next_ack).max(self.now) };
        }
        (self.tally, self.control)
    }
}

#[test]
fn a_given_rate_is_reached_in_the_first_round_trip_and_loss_up_to_the_ceiling_is_noise() {
    for (megabits, rtt_ms) in [(1, 800), (50, 1), (50, 660), (100, 320), (1000, 8), (1000, 260)] {
        for loss_ppm in [0, 100, 1_000, 10_000, 20_000] {
            let link = BitRate::megabits(megabits);
            let given = BitRate(link.0 / 100 * 98);
            let path = Bottleneck { loss_ppm, ..Bottleneck::new(link, rtt_ms) };
            let seconds = if megabits >= 1000 { 4.0 } else { 20.0 };
            let (tally, _) = Run::new(path, Some(given)).run(seconds);
            let expected = 0.97 * (1.0 - loss_ppm as f64 / 1e6) * given.0 as f64 / link.0 as f64;
            let share = tally.share(0.0, seconds, link);
            assert!(share > expected - 0.02, "{megabits} Mbit/s {rtt_ms} ms {loss_ppm} ppm: {share:.3}");
        }
    }
}

#[test]
fn ten_gigabits_over_300_ms_are_filled_with_jumbo_packets() {
    let link = BitRate::megabits(10_000);
    let path = Bottleneck { loss_ppm: 100, packet_bytes: 9000, ..Bottleneck::new(link, 300) };
    let (tally, _) = Run::new(path, Some(BitRate::megabits(9_800))).run(2.0);
    let share = tally.share(0.0, 2.0, link);
    assert!(share > 0.95, "{share:.3}");
}

#[test]
fn loss_above_the_ceiling_that_no_slowing_cures_does_not_stop_the_lane() {
    for loss_ppm in [30_000, 50_000] {
        let link = BitRate::megabits(50);
        let path = Bottleneck { loss_ppm, ..Bottleneck::new(link, 300) };
        let (tally, _) = Run::new(path, Some(BitRate::megabits(49))).run(60.0);
        let share = tally.share(20.0, 60.0, link);
        assert!(share > 0.85, "{loss_ppm} ppm: {share:.3}");
    }
}

#[test]
fn a_policer_below_the_given_rate_is_used_and_not_flooded() {
    for rtt_ms in [20, 320] {
        let police = BitRate::megabits(30);
        let path = Bottleneck {
            policer: Some((police, ByteCount(64 << 10))),
            ..Bottleneck::new(BitRate::megabits(1000), rtt_ms)
        };
        let (tally, control) = Run::new(path, Some(BitRate::megabits(100))).run(60.0);
        let share = tally.share(20.0, 60.0, police);
        assert!(share > 0.85, "{rtt_ms} ms: {share:.3}");
        let dropped = tally.dropped_full as f64 / tally.sent as f64;
        // The first two round trips at the given rate are 2.5 % of all packets.
        assert!(dropped < 0.05, "{rtt_ms} ms: {dropped:.3} of the packets were dropped");
        assert!(control.yields());
    }
}

#[test]
fn a_policer_just_above_the_given_rate_costs_nothing() {
    let police = BitRate::megabits(30);
    let path =
        Bottleneck { policer: Some((police, ByteCount(64 << 10))), ..Bottleneck::new(BitRate::megabits(1000), 320) };
    let (tally, control) = Run::new(path, Some(BitRate::megabits(29))).run(20.0);
    assert!(tally.share(0.4, 20.0, police) > 0.95);
    assert!(!control.yields());
}

#[test]
fn a_short_queue_below_the_given_rate_is_found() {
    let link = BitRate::megabits(50);
    let mut path = Bottleneck::new(link, 100);
    path.queue = ByteCount(path.queue.0 / 10);
    let (tally, _) = Run::new(path, Some(BitRate::megabits(80))).run(60.0);
    let share = tally.share(20.0, 60.0, link);
    assert!(share > 0.85, "{share:.3}");
    assert!((tally.dropped_full as f64) < 0.03 * tally.sent as f64, "{} of {}", tally.dropped_full, tally.sent);
}

#[test]
fn a_deep_queue_below_the_given_rate_is_drained() {
    let link = BitRate::megabits(50);
    let path = Bottleneck { queue: ByteCount(64 << 20), ..Bottleneck::new(link, 100) };
    let (tally, control) = Run::new(path, Some(BitRate::megabits(80))).run(30.0);
    assert!(tally.share(5.0, 30.0, link) > 0.85);
    // In flight stays below two BDP of the given rate, so the queue never holds more than that either.
    assert!(control.rate() < BitRate::megabits(60), "{}", control.rate());
}

#[test]
fn an_outage_stops_sending_within_a_window_and_the_given_rate_is_back_at_once() {
    let link = BitRate::megabits(50);
    let path =
        Bottleneck { outage: Some((Duration::from_secs(10), Duration::from_secs(20))), ..Bottleneck::new(link, 660) };
    let (tally, control) = Run::new(path, Some(BitRate::megabits(49))).run(40.0);
    // Two BDP and what batches need: 8.25 MB and 0.2 MB, then probes only.
    assert!(tally.sent - tally.delivered < 6_000, "{} packets into the outage", tally.sent - tally.delivered);
    assert!(tally.share(23.0, 40.0, link) > 0.95, "{:.3}", tally.share(23.0, 40.0, link));
    assert!(!control.yields());
}

#[test]
fn without_a_given_rate_the_path_is_found_by_trains() {
    for (megabits, rtt_ms) in [(20, 50), (50, 300), (1000, 8)] {
        let link = BitRate::megabits(megabits);
        let (tally, _) = Run::new(Bottleneck::new(link, rtt_ms), None).run(30.0);
        let share = tally.share(10.0, 30.0, link);
        assert!(share > 0.75, "{megabits} Mbit/s {rtt_ms} ms: {share:.3}");
        assert!(tally.dropped_full * 10 < tally.sent, "{} of {}", tally.dropped_full, tally.sent);
    }
}

/// Lanes that send whenever their pacer allows, as an engine does; returns the wire bytes of every millisecond.
fn run_lanes(rate: BitRate, sends_until_ms: &[u64], stall_every_ms: u64) -> Vec<u64> {
    let start = Instant::now();
    let mut budget = RateBudget::new(Some(rate));
    let keys: Vec<LaneKey> = sends_until_ms.iter().map(|_| budget.join()).collect();
    let mut tokens = vec![0.0f64; keys.len()];
    let mut per_ms = Vec::new();
    for ms in 0..4000u64 {
        let now = start + Duration::from_millis(ms);
        let mut sent_now = 0;
        for (lane, key) in keys.iter().enumerate() {
            let share = budget.share(*key, now).unwrap().0 as f64 / 8.0 * budget.pacing(now);
            // The pacer of the engine: 2 ms of the rate, at least ten packets but at most 10 ms, at least one packet.
            let most = (share * 0.002).max(15_000.0).min((share * 0.01).max(1500.0));
            tokens[lane] = (tokens[lane] + share * 0.001).min(most);
            let late = stall_every_ms > 0 && ms % stall_every_ms < 4;
            if ms >= sends_until_ms[lane] || late {
                continue;
            }
            while tokens[lane] >= 1500.0 {
                tokens[lane] -= 1500.0;
                budget.handle_sent(*key, now, 1500);
                sent_now += 1500;
            }
        }
        per_ms.push(sent_now);
    }
    per_ms
}

fn most_in_a_second(per_ms: &[u64]) -> u64 {
    per_ms.windows(1000).map(|second| second.iter().sum()).max().unwrap()
}

#[test]
fn no_second_carries_more_than_the_given_rate_however_many_lanes() {
    for megabits in [5, 50, 1000] {
        for lanes in [1usize, 4, 8] {
            for stall in [0, 20, 50] {
                let rate = BitRate::megabits(megabits);
                let per_ms = run_lanes(rate, &vec![4000; lanes], stall);
                let most = most_in_a_second(&per_ms);
                let context = format!("{megabits} Mbit/s {lanes} lanes stall {stall}: {most}");
                assert!(most <= rate.bytes_per_second(), "{context}");
                let mean = per_ms[1000..].iter().sum::<u64>() / 3;
                let least = if stall == 20 { 0.85 } else { 0.95 };
                assert!(mean as f64 > rate.bytes_per_second() as f64 * least, "{context}, mean {mean}");
            }
        }
    }
}

#[test]
fn the_share_of_a_lane_that_has_nothing_to_send_goes_to_the_others() {
    let rate = BitRate::megabits(50);
    let per_ms = run_lanes(rate, &[1000, 1000, 1000, 4000], 0);
    // 50 ms after three of four lanes ran dry the last one has all of the rate.
    let after: u64 = per_ms[1050..2050].iter().sum();
    assert!(after as f64 > rate.bytes_per_second() as f64 * 0.95, "{after}");
}

#[test]
fn a_lane_that_left_or_is_capped_takes_no_share() {
    let start = Instant::now();
    let mut budget = RateBudget::new(Some(BitRate::megabits(100)));
    let (one, two) = (budget.join(), budget.join());
    for key in [one, two] {
        budget.handle_sent(key, start, 1500);
    }
    let later = start + Duration::from_millis(2);
    assert!(budget.share(one, later).unwrap() < BitRate::megabits(50));
    budget.leave(two);
    assert!(budget.share(one, later).unwrap() > BitRate::megabits(95));
    budget.set_lane_cap(one, Some(BitRate::megabits(7)));
    assert_eq!(budget.share(one, later), Some(BitRate::megabits(7)));
    assert_eq!(budget.join(), two, "the place of a lane that left is used again");
}
