//! Behaviour of a given rate on various paths, and guarantees of a contract.

use std::time::Duration;

use sterna_lab::LinkModel;
use sterna_lab::model::{Outage, Policer, Queue};
use sterna_proto::rate::{Fairness, PathControl, RateContract};
use sterna_proto::{BitRate, ByteCount};
use sterna_seeded::Seeded;

use crate::path::{Host, Path, Setup, Stall, Tally};

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn clean(mbit: u64, rtt_ms: u64) -> LinkModel {
    let mut link = LinkModel::clean(BitRate::megabits(mbit), Duration::from_millis(rtt_ms));
    // Smallest queue of real routers.
    link.forward.queue = Queue::Bytes(link.forward.queue_bytes(link.rtt).max(ByteCount(64 * 1500)));
    link
}

fn run(link: &LinkModel, contract: RateContract, length: u64) -> (Tally, PathControl) {
    let contract = RateContract { expected_rtt: Some(link.rtt), ..contract };
    let setup = Setup::new(link, contract, 1, seconds(length));
    Path::new(setup).run()
}

fn given(rate: BitRate) -> RateContract {
    RateContract::of_rate(Some(rate))
}

/// Returns the share of `rate` that arrived in these seconds.
fn share(tally: &Tally, from: u64, to: u64, rate: BitRate) -> f64 {
    tally.delivered(seconds(from), seconds(to)).0 as f64 / rate.0 as f64
}

#[test]
fn a_given_rate_is_reached_in_the_first_round_trip_and_loss_up_to_the_ceiling_is_noise() {
    for (mbit, rtt_ms) in [(1, 800), (50, 1), (50, 660), (100, 320), (1000, 8), (1000, 260)] {
        for loss_ppm in [0, 100, 1_000, 10_000, 20_000] {
            let mut link = clean(mbit, rtt_ms);
            link.forward.loss = loss_ppm as f64 / 1e6;
            let rate = link.forward.rate;
            let length = if mbit >= 1000 { 4 } else { 20 };
            let (tally, _) = run(&link, given(BitRate(rate.0 / 100 * 98)), length);
            // Nothing arrives in the first half of a round trip.
            let arriving = 1.0 - rtt_ms as f64 / 2000.0 / length as f64;
            let expected = 0.97 * 0.98 * (1.0 - loss_ppm as f64 / 1e6) * arriving;
            let share = share(&tally, 0, length, rate);
            assert!(share > expected - 0.02, "{mbit} Mbit/s {rtt_ms} ms {loss_ppm} ppm: {share:.3}");
        }
    }
}

#[test]
fn ten_gigabits_over_300_ms_are_filled_with_jumbo_packets() {
    let mut link = clean(10_000, 300);
    (link.forward.loss, link.mtu) = (0.0001, 9000);
    let (tally, _) = run(&link, given(BitRate::megabits(9_800)), 2);
    let share = share(&tally, 1, 2, link.forward.rate);
    assert!(share > 0.95, "{share:.3}");
}

#[test]
fn loss_above_the_ceiling_that_no_slowing_cures_does_not_stop_the_lane() {
    for loss in [0.03, 0.05, 0.2] {
        let mut link = clean(50, 300);
        link.forward.loss = loss;
        let (tally, _) = run(&link, given(BitRate::megabits(49)), 60);
        let share = share(&tally, 20, 60, link.forward.rate);
        assert!(share > 0.88 * (1.0 - loss), "{loss}: {share:.3}");
    }
}

fn policed(rate: BitRate, rtt_ms: u64) -> LinkModel {
    let mut link = clean(1000, rtt_ms);
    link.forward.policer = Some(Policer { rate, burst: ByteCount(64 << 10), udp_only: false });
    link
}

#[test]
fn a_policer_below_the_given_rate_is_found_and_not_flooded() {
    let rate = BitRate::megabits(30);
    for rtt_ms in [20, 320] {
        let (tally, path) = run(&policed(rate, rtt_ms), given(BitRate::megabits(100)), 120);
        let share = share(&tally, 20, 120, rate);
        assert!(share > 0.92, "{rtt_ms} ms: {share:.3}");
        let lost = tally.lost(seconds(30), seconds(120));
        assert!(lost < 0.01, "{rtt_ms} ms: {lost:.4} of the packets were dropped");
        assert!(path.control().yields());
        let found = path.control().policed().map(|found| found.0 as f64 / rate.0 as f64);
        assert!(found.is_some_and(|part| (0.97..1.03).contains(&part)), "{rtt_ms} ms: {found:?}");
    }
}

#[test]
fn a_policer_just_above_the_given_rate_costs_nothing() {
    let rate = BitRate::megabits(30);
    let (tally, path) = run(&policed(rate, 320), given(BitRate::megabits(29)), 20);
    assert!(share(&tally, 1, 20, rate) > 0.94);
    assert!(!path.control().yields() && path.control().policed().is_none());
}

#[test]
fn a_short_queue_below_the_given_rate_is_found() {
    let mut link = clean(50, 100);
    link.forward.queue = Queue::Bdp(0.1);
    let (tally, _) = run(&link, given(BitRate::megabits(80)), 60);
    let share = share(&tally, 20, 60, link.forward.rate);
    assert!(share > 0.9, "{share:.3}");
    let lost = tally.lost(seconds(20), seconds(60));
    assert!(lost < 0.01, "{lost:.4}");
}

#[test]
fn a_deep_queue_below_the_given_rate_is_drained() {
    let mut link = clean(50, 100);
    link.forward.queue = Queue::Bytes(ByteCount(64 << 20));
    let (tally, path) = run(&link, given(BitRate::megabits(80)), 30);
    assert!(share(&tally, 5, 30, link.forward.rate) > 0.85);
    assert!(path.control().rate() < BitRate::megabits(60), "{}", path.control().rate());
}

#[test]
fn an_outage_stops_sending_within_a_window_and_the_given_rate_is_back_at_once() {
    let mut link = clean(50, 660);
    link.outages = vec![Outage { start: seconds(10), length: seconds(10), every: None }];
    let (tally, path) = run(&link, given(BitRate::megabits(49)), 40);
    // Two BDP plus the data for batches, 8.25 MB and 0.2 MB; then only probes.
    let into_it = tally.sent(seconds(10), seconds(20));
    assert!(into_it < 9_000_000, "{into_it} bytes into the outage");
    let after = share(&tally, 23, 40, link.forward.rate);
    assert!(after > 0.95, "{after:.3}");
    assert!(!path.control().yields());
}

#[test]
fn after_short_outages_one_after_the_other_the_path_is_full_again_in_seconds() {
    let troubles = [(5, 10, 250), (20, 5, 250), (20, 10, 250), (100, 10, 250), (100, 20, 100), (320, 10, 400)];
    for (mtu, (rtt_ms, count, length_ms)) in
        [1500, 9000].into_iter().flat_map(|mtu| troubles.map(|trouble| (mtu, trouble)))
    {
        for target in [None, Some(BitRate::megabits(40))] {
            let mut link = clean(50, rtt_ms);
            link.mtu = mtu;
            let start = |number: u32| seconds(4) + Duration::from_millis(length_ms + 300) * number;
            let outage =
                |number| Outage { start: start(number), length: Duration::from_millis(length_ms), every: None };
            link.outages = (0..count).map(outage).collect();
            let rtt = Some(link.rtt);
            let contract = RateContract { target, ceiling: target, expected_rtt: rtt, ..RateContract::default() };
            let (tally, _) = run(&link, contract, 30);
            let later = share(&tally, 20, 30, target.unwrap_or(link.forward.rate));
            assert!(
                later > 0.9,
                "{later:.3} after {count} of {length_ms} ms, RTT {rtt_ms} ms, MTU {mtu}, {target:?} given"
            );
        }
    }
}

#[test]
fn a_found_rate_stays_below_its_ceiling() {
    for (ceiling, rtt_ms) in [(5, 300), (40, 300), (400, 50)] {
        let link = clean(1000, rtt_ms);
        let contract = RateContract { ceiling: Some(BitRate::megabits(ceiling)), ..RateContract::default() };
        let (tally, _) = run(&link, contract, 10);
        let settled = share(&tally, 5, 10, BitRate::megabits(ceiling));
        assert!((0.95..=1.0).contains(&settled), "{ceiling} Mbit/s: {settled:.3}");
        let most = tally.most_in_a_second();
        assert!(most <= BitRate::megabits(ceiling), "{ceiling} Mbit/s: {most} in one second");
    }
}

#[test]
fn a_minimum_is_sent_whatever_is_lost() {
    let contract = RateContract {
        minimum: Some(BitRate::megabits(20)),
        target: Some(BitRate::megabits(40)),
        ..RateContract::default()
    };
    let (tally, path) = run(&policed(BitRate::megabits(10), 100), contract, 20);
    assert!(path.control().rate() >= BitRate::megabits(20));
    let lost = tally.lost(seconds(10), seconds(20));
    assert!(lost > 0.4, "{lost}: it does not yield below its minimum");
}

#[test]
fn a_ceiling_holds_where_the_path_is_known_to_carry_much_more() {
    let link = clean(1000, 100);
    let contract = RateContract {
        ceiling: Some(BitRate::megabits(100)),
        remembered: Some(BitRate::megabits(900)),
        expected_rtt: Some(link.rtt),
        ..RateContract::default()
    };
    let setup = Setup::new(&link, contract, 8, seconds(10));
    let (tally, _) = Path::new(setup).run();
    let most = tally.most_in_a_second();
    assert!(most <= BitRate::megabits(100), "{most} in one second");
    let settled = share(&tally, 2, 10, BitRate::megabits(100));
    assert!(settled > 0.9, "{settled:.3}");
}

#[test]
fn a_remembered_rate_of_next_to_nothing_does_not_hold_the_search_up() {
    for remembered in [1_000, 8_916, 300_000] {
        let contract = RateContract { remembered: Some(BitRate(remembered)), ..RateContract::default() };
        let link = clean(100, 200);
        let (tally, _) = run(&link, contract, 10);
        let settled = share(&tally, 5, 10, link.forward.rate);
        assert!(settled > 0.9, "{remembered} bit/s: {settled:.3}");
    }
}

#[test]
fn a_remembered_rate_is_used_within_four_seconds_at_660_ms_and_believed_only_when_it_comes() {
    for (now, part) in [(50, 0.8), (20, 0.7), (200, 0.5)] {
        let link = clean(now, 660);
        let contract = RateContract { remembered: Some(BitRate::megabits(50)), ..RateContract::default() };
        let (tally, _) = run(&link, contract, 20);
        let early = share(&tally, 3, 4, link.forward.rate);
        assert!(early > part, "{now} Mbit/s: {early:.3}");
        let settled = share(&tally, 10, 20, link.forward.rate);
        assert!(settled > 0.9, "{now} Mbit/s: {settled:.3}");
    }
}

#[test]
fn a_path_that_changes_is_followed_in_seconds() {
    for (before, after) in [(100, 20), (20, 100), (100, 1), (1, 100)] {
        let link = clean(before, 150);
        let rtt = link.rtt;
        let contract = RateContract { expected_rtt: Some(rtt), ..RateContract::default() };
        let setup = Setup::new(&link, contract, 1, seconds(60));
        let (tally, _) = Path::new(setup).change(seconds(30), LinkModel::clean(BitRate::megabits(after), rtt)).run();
        let settled = share(&tally, 45, 60, BitRate::megabits(after));
        assert!(settled > 0.85, "{before} to {after} Mbit/s: {settled:.3}");
        let lost = tally.lost(seconds(45), seconds(60));
        assert!(lost < 0.02, "{before} to {after} Mbit/s: {lost:.4}");
    }
}

#[test]
fn a_path_that_becomes_half_as_fast_behind_a_deep_buffer_is_not_taken_for_one_with_others() {
    for after in [54, 50, 45] {
        let (link, mut slower) = (clean(100, 100), clean(after, 100));
        slower.forward.queue = Queue::Bytes(ByteCount(8 * link.forward.queue_bytes(link.rtt).0));
        let contract = RateContract { expected_rtt: Some(link.rtt), ..RateContract::default() };
        let setup = Setup::new(&link, contract, 1, seconds(150));
        let (tally, control) = Path::new(setup).change(seconds(30), slower.clone()).run();
        let settled = share(&tally, 120, 150, slower.forward.rate);
        assert!(settled > 0.85, "100 to {after} Mbit/s: {settled:.3}");
        let found = control.control().found().unwrap();
        assert!(found <= slower.forward.rate, "100 to {after} Mbit/s: {found:?} is sent into a queue");
    }
}

#[test]
fn a_path_that_becomes_longer_or_shorter_is_followed_within_two_minutes() {
    for (before, after) in [(50, 600), (600, 50), (150, 230)] {
        let (link, other) = (clean(50, before), clean(50, after));
        let contract = RateContract { expected_rtt: Some(link.rtt), ..RateContract::default() };
        let setup = Setup::new(&link, contract, 1, seconds(200));
        let (tally, _) = Path::new(setup).change(seconds(30), other.clone()).run();
        let settled = share(&tally, 150, 200, other.forward.rate);
        assert!(settled > 0.85, "{before} to {after} ms: {settled:.3}");
    }
}

#[test]
fn a_polite_sender_leaves_the_path_to_others_and_takes_it_when_it_is_free() {
    let link = clean(50, 100);
    let contract =
        RateContract { fairness: Fairness::Scavenger, expected_rtt: Some(link.rtt), ..RateContract::default() };
    let alone = Setup::new(&link, contract, 1, seconds(60));
    let (tally, _) = Path::new(alone.clone()).run();
    let share_alone = share(&tally, 20, 60, link.forward.rate);
    assert!(share_alone > 0.8, "{share_alone:.3}");
    let (tally, _) = Path::new(Setup { competitors: 1, duration: seconds(120), ..alone }).run();
    let other = tally.delivered_by_others(seconds(60), seconds(120)).0 as f64 / link.forward.rate.0 as f64;
    assert!(other > 0.8, "the other flow keeps {other:.3}");
}

#[test]
fn lanes_together_find_what_one_finds() {
    for (mbit, mtu, lanes) in [(100, 1500, 1), (100, 1500, 4), (100, 1500, 16), (10_000, 9000, 40)] {
        let mut link = clean(mbit, 50);
        link.mtu = mtu;
        let contract = RateContract { expected_rtt: Some(link.rtt), ..RateContract::default() };
        let setup = Setup::new(&link, contract, lanes, seconds(4));
        let (tally, _) = Path::new(setup).run();
        let settled = share(&tally, 2, 4, link.forward.rate);
        assert!(settled > 0.93, "{mbit} Mbit/s, {lanes} lanes: {settled:.3}");
        let lost = tally.lost(seconds(2), seconds(4));
        assert!(lost < 0.01, "{lanes} lanes: {lost:.4}");
    }
}

#[test]
fn lanes_that_were_heard_once_only_are_not_taken_for_silent() {
    let mut link = clean(10_000, 8);
    (link.mtu, link.forward.loss) = (9000, 0.01);
    let contract = RateContract { expected_rtt: Some(link.rtt), ..RateContract::default() };
    let stalls = Vec::new();
    let setup = Setup { stalls, ..Setup::new(&link, contract, 40, seconds(4)) };
    let (tally, _) = Path::new(setup).run();
    let settled = share(&tally, 2, 4, link.forward.rate);
    assert!(settled > 0.85, "{settled:.3}");
}

#[test]
fn loss_both_ways_does_not_wear_a_found_rate_down() {
    for (seed, remembered) in [(1, None), (2, Some(BitRate::megabits(52)))] {
        let mut link = clean(50, 660);
        (link.forward.loss, link.reverse.loss, link.seed) = (0.01, 0.01, seed);
        let (tally, _) = run(&link, RateContract { remembered, ..RateContract::default() }, 60);
        let late = share(&tally, 30, 60, link.forward.rate);
        assert!(late > 0.88, "{remembered:?}: {late:.3}");
    }
}

#[test]
fn a_host_that_stalls_does_not_wear_the_rate_down() {
    for link in [clean(50, 320), clean(20, 20), policed(BitRate::megabits(30), 320)] {
        let possible = link.forward.policer.map_or(link.forward.rate, |policer| policer.rate);
        let stalls = [(200, 4000), (700, 4000), (40, 200)];
        for (host, (stall_ms, every_ms)) in
            [Host::Sender, Host::Receiver].map(|host| stalls.map(|stall| (host, stall))).concat()
        {
            let contract = RateContract { expected_rtt: Some(link.rtt), ..RateContract::default() };
            let (length, every) = (Duration::from_millis(stall_ms), Duration::from_millis(every_ms));
            let ends = (1..).map(|count| every * count).take_while(|end| *end <= seconds(60));
            let stalls = ends.map(|end| Stall { host, when: end - length..end }).collect();
            let setup = Setup { stalls, ..Setup::new(&link, contract, 1, seconds(60)) };
            let (tally, _) = Path::new(setup).run();
            let running = if host == Host::Sender { 1.0 - stall_ms as f64 / every_ms as f64 } else { 1.0 };
            let late = share(&tally, 20, 60, possible) / running;
            assert!(late > 0.75, "{possible}, {host:?}, {stall_ms} ms every {every_ms} ms: {late:.3}");
        }
    }
}

/// Returns stalls of a machine that runs both hosts, until `end`. Each takes up to `longest` ms, with at most `apart`
/// ms between them.
pub fn busy_machine(seed: u64, longest: u64, apart: u64, end: Duration) -> Vec<Stall> {
    let mut seeded = Seeded::new(seed);
    let mut pick = |least: u64, most: u64| Duration::from_millis(least + seeded.below(most - least));
    let (mut stalls, mut now) = (Vec::new(), Duration::ZERO);
    while now < end {
        let start = now + pick(5, apart);
        now = start + pick(5, longest);
        stalls.push(Stall { host: Host::Both, when: start..now });
    }
    stalls
}

#[test]
fn a_machine_that_was_busy_finds_the_rate_when_it_is_no_more() {
    let mut lossy = clean(100, 320);
    lossy.forward.loss = 0.005;
    for (link, lanes) in [(lossy, 2), (clean(50, 660), 1), (policed(BitRate::megabits(30), 320), 2)] {
        let possible = link.forward.policer.map_or(link.forward.rate, |policer| policer.rate);
        // Lower limit of the share during the stalls. A machine stalled for a fifth of the time must reach it. For a
        // machine stalled for two thirds of the time the result is random.
        for (longest, apart, least) in [(100, 400, 0.5), (400, 200, 0.0)] {
            for seed in 1..=8 {
                let contract = RateContract { expected_rtt: Some(link.rtt), ..RateContract::default() };
                let stalls = busy_machine(seed, longest, apart, seconds(15));
                let setup = Setup { stalls, ..Setup::new(&link, contract, lanes, seconds(45)) };
                let (tally, _) = Path::new(setup).run();
                let (busy, late) = (share(&tally, 5, 15, possible), share(&tally, 30, 45, possible));
                let case = format!("{possible}, stalls of {longest} ms, seed {seed}: {busy:.2} then {late:.2}");
                assert!(busy > least && late > 0.9, "{case}");
            }
        }
    }
}

#[test]
fn a_rate_that_fell_to_the_least_rises_again() {
    for lanes in [1, 2, 4] {
        let mut link = clean(100, 320);
        link.forward.loss = 0.005;
        let target = Some(BitRate(64_000));
        let contract = RateContract { expected_rtt: Some(link.rtt), target, ..RateContract::default() };
        let setup = Setup::new(&link, contract, lanes, seconds(90));
        let (tally, _) = Path::new(setup).run();
        let late = share(&tally, 60, 90, link.forward.rate);
        assert!(late > 0.9, "{lanes} lanes: {late:.3}");
    }
}
