//! Tests of the division of a rate among lanes.

use std::time::{Duration, Instant};

use super::budget::{LaneKey, RateBudget, Sent};
use super::contract::RateContract;
use super::path::PathControl;
use crate::BitRate;

const PACKET: Sent = Sent { wire_bytes: 1500, charged: 1500 };

/// Runs lanes that send whenever their pacer allows, as an engine does; returns the wire bytes of every millisecond.
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
            let share = budget.share(*key, now, rate).0 as f64 / 8.0 * budget.pacing(now, rate);
            // The pacer of the engine: 2 ms of the rate, at least ten packets but at most 10 ms, at least one packet.
            let most = (share * 0.002).max(15_000.0).min((share * 0.01).max(1500.0));
            tokens[lane] = (tokens[lane] + share * 0.001).min(most);
            let late = stall_every_ms > 0 && ms % stall_every_ms < 4;
            if ms >= sends_until_ms[lane] || late {
                continue;
            }
            while tokens[lane] >= 1500.0 {
                tokens[lane] -= 1500.0;
                budget.handle_sent(*key, now, PACKET);
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
    // 50 ms after three of four lanes ran out of data, the last one has all of the rate.
    let after: u64 = per_ms[1050..2050].iter().sum();
    assert!(after as f64 > rate.bytes_per_second() as f64 * 0.95, "{after}");
}

#[test]
fn lanes_of_another_transport_have_their_part_of_the_ceiling() {
    let mut path = PathControl::new(RateContract {
        minimum: Some(BitRate::megabits(90)),
        ..RateContract::of_rate(Some(BitRate::megabits(100)))
    });
    let key = path.join();
    path.set_fraction(0.75);
    let terms = path.terms(key, Instant::now());
    assert_eq!(path.control().rate(), BitRate::megabits(75));
    assert!(terms.share < BitRate::megabits(75), "{terms:?}");
    path.set_contract(RateContract::of_rate(Some(BitRate::megabits(40))));
    assert_eq!(path.control().rate(), BitRate::megabits(30));
    path.set_fraction(1.0);
    path.set_contract(RateContract::of_rate(Some(BitRate::megabits(50))));
    assert_eq!(path.control().rate(), BitRate::megabits(50));
}

#[test]
fn a_path_whose_given_rate_was_the_limit_is_searched_when_the_contract_allows_more() {
    let given = |megabits| RateContract::of_rate(Some(BitRate::megabits(megabits)));
    let ceiling = |megabits| RateContract { ceiling: Some(BitRate::megabits(megabits)), ..RateContract::default() };
    // Former contract, new contract, rate and pace of the train afterwards.
    for (before, after, rate, train) in [
        (given(10), RateContract::default(), 10, Some(80)),
        (given(10), ceiling(20), 10, Some(20)),
        (given(2), RateContract::default(), 2, Some(50)),
        (given(10), given(5), 5, None),
        (given(10), given(20), 20, None),
        (given(10), ceiling(5), 5, None),
    ] {
        let mut path = PathControl::new(before);
        let key = path.join();
        path.set_contract(after);
        let terms = path.terms(key, Instant::now());
        let seen = (path.control().rate(), terms.train.map(|train| train.pace));
        assert_eq!(seen, (BitRate::megabits(rate), train.map(BitRate::megabits)), "{before:?} {after:?}");
    }
}

#[test]
fn a_lane_that_left_takes_no_share() {
    let start = Instant::now();
    let rate = BitRate::megabits(100);
    let mut budget = RateBudget::new(Some(rate));
    let (one, two) = (budget.join(), budget.join());
    for key in [one, two] {
        budget.handle_sent(key, start, PACKET);
    }
    let later = start + Duration::from_millis(2);
    assert!(budget.share(one, later, rate) < BitRate::megabits(50));
    budget.leave(two);
    assert!(budget.share(one, later, rate) > BitRate::megabits(95));
    assert_eq!(budget.join(), two, "the place of a lane that left is used again");
}
