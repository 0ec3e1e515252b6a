//! Copies of one file from several replicas in virtual time, with the state machines of `sterna_proto::session`.
//!
//! The simulation plays drivers, networks and disks, and replicas that are slow, stuck, temporarily away, or wrong.

mod world;

use std::time::Duration;

use sterna_seeded::{Seeded, for_seeds};
use world::{Ending, Host, World};

const MIB: u64 = 1 << 20;

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[test]
fn the_fast_one_does_more_and_nothing_travels_twice_but_what_is_compared() {
    for_seeds("the_fast_one_does_more_and_nothing_travels_twice_but_what_is_compared", 20, |seed| {
        let hosts = vec![Host::at(10), Host::at(40), Host::at(160)];
        let mut world = World::new(seed, 400 * MIB + 5, hosts);
        assert_eq!(world.run(seconds(120)), Ending::Done, "{}", world.describe());
        let bytes: Vec<u64> = world.accounts().iter().map(|account| account.bytes).collect();
        assert_eq!(bytes.iter().sum::<u64>(), 400 * MIB + 5);
        assert!(bytes[0] < bytes[1] && bytes[1] < bytes[2], "{bytes:?}");
        // About the time that all three together need: 16 s, plus start and end.
        assert!(world.elapsed() < seconds(22), "{:?} {bytes:?}", world.elapsed());
        // Sent bytes include the first flight, the compared blocks, and the last blocks of the slow replicas.
        assert!(world.sent_bytes() < 460 * MIB, "{} {bytes:?}", world.sent_bytes() / MIB);
    });
}

#[test]
fn a_replica_alone_fills_its_path_though_it_is_asked_block_by_block() {
    for rtt in [10, 200, 660] {
        let mut world = World::new(1, 600 * MIB, vec![Host::at(300).with_rtt(rtt), Host::at(300).never()]);
        assert_eq!(world.run(seconds(60)), Ending::Done, "{}", world.describe());
        // 17 s, plus some round trips in which the requests grow.
        assert!(world.elapsed() < seconds(22), "{rtt} ms: {:?}", world.elapsed());
    }
}

#[test]
fn replicas_that_die_and_return_cost_only_their_part() {
    for_seeds("replicas_that_die_and_return_cost_only_their_part", 60, |seed| {
        let mut seeded = Seeded::new(seed);
        let hosts = (0..2 + seeded.below(3)).map(|_| {
            let host = Host::at(20 + seeded.below(200)).with_rtt(1 + seeded.below(300));
            host.dying_every(500 + seeded.below(4000), 100 + seeded.below(3000))
        });
        let hosts = hosts.collect();
        let mut world = World::new(seed, (20 + seeded.below(300)) * MIB + seeded.below(MIB), hosts);
        assert_eq!(world.run(seconds(3600)), Ending::Done, "{}", world.describe());
        assert!(world.is_right());
    });
}

#[test]
fn a_replica_that_returns_with_another_file_is_dropped_with_all_that_it_gave() {
    for_seeds("a_replica_that_returns_with_another_file_is_dropped_with_all_that_it_gave", 60, |seed| {
        let mut seeded = Seeded::new(seed);
        let changing = Host::at(50 + seeded.below(100)).dying_every(300 + seeded.below(1500), 200).changing();
        let steady = Host::at(20 + seeded.below(100));
        let hosts = if seed % 2 == 0 { vec![changing, steady] } else { vec![steady, changing] };
        let mut world = World::new(seed, (50 + seeded.below(100)) * MIB, hosts);
        assert_eq!(world.run(seconds(600)), Ending::Done, "{}", world.describe());
        assert!(world.is_right(), "{}", world.describe());
    });
}

#[test]
fn a_stuck_or_slow_replica_does_not_hold_up_the_end() {
    for_seeds("a_stuck_or_slow_replica_does_not_hold_up_the_end", 40, |seed| {
        let mut seeded = Seeded::new(seed);
        let stuck = Host::at(100).stuck_after(Duration::from_millis(seeded.below(3000)));
        let slow = Host::at(1);
        let hosts = if seed % 2 == 0 { vec![stuck, slow, Host::at(100)] } else { vec![Host::at(100), slow, stuck] };
        let mut world = World::new(seed, 200 * MIB, hosts);
        assert_eq!(world.run(seconds(300)), Ending::Done, "{}", world.describe());
        // The good replica alone needs 17 s. The slow one would need half an hour for its share. The copy waits for
        // comparisons.
        assert!(world.elapsed() < seconds(40), "{}", world.describe());
        assert!(world.is_right());
    });
}

#[test]
fn a_liar_is_outvoted_or_loses_to_the_first_and_its_blocks_are_taken_anew() {
    for_seeds("a_liar_is_outvoted_or_loses_to_the_first_and_its_blocks_are_taken_anew", 60, |seed| {
        let mut seeded = Seeded::new(seed);
        let count = 2 + seeded.below(4);
        let liar = if count == 2 { 1 } else { seeded.below(count) };
        let speeds: Vec<u64> = (0..count).map(|_| 20 + seeded.below(200)).collect();
        let hosts = (0..count).map(|host| {
            let made = Host::at(speeds[host as usize]).with_rtt(1 + seeded.below(100));
            if host == liar { made.wrong_from(seeded.below(3)) } else { made }
        });
        let hosts = hosts.collect();
        let mut world = World::new(seed, (3 + seeded.below(100)) * MIB + 1, hosts);
        assert_eq!(world.run(seconds(600)), Ending::Done, "{}", world.describe());
        assert!(world.is_right(), "{}", world.describe());
        let accounts = world.accounts();
        for (host, account) in accounts.iter().enumerate() {
            // A replica that was too late to deliver anything was not compared.
            assert!(account.dropped.is_none() || host as u64 == liar, "{accounts:?}");
        }
        assert_eq!(accounts[liar as usize].bytes, 0, "{accounts:?}");
    });
}

#[test]
fn replicas_that_bring_what_is_compared_together_are_compared() {
    for_seeds("replicas_that_bring_what_is_compared_together_are_compared", 200, |seed| {
        let mut seeded = Seeded::new(seed);
        let hosts = (0..2 + seeded.below(2)).map(|_| Host::at(60).with_rtt(1 + seeded.below(30))).collect();
        let mut world = World::new(seed, (3 + seeded.below(20)) * MIB, hosts);
        assert_eq!(world.run(seconds(600)), Ending::Done, "{}", world.describe());
        assert!(world.is_right() && !world.describe().contains("compared"), "{}", world.describe());
    });
}

#[test]
fn a_digest_finds_a_liar_in_one_block_wherever_it_is() {
    for_seeds("a_digest_finds_a_liar_in_one_block_wherever_it_is", 60, |seed| {
        let mut seeded = Seeded::new(seed);
        let count = 2 + seeded.below(3);
        let liar = seeded.below(count);
        let blocks = 1 + seeded.below(60);
        let wrong = seeded.below(blocks);
        let hosts = (0..count).map(|host| {
            let made = Host::at(20 + seeded.below(200));
            if host == liar { made.wrong_at(wrong) } else { made }
        });
        let hosts = hosts.collect();
        let mut world = World::expecting(seed, blocks * MIB, hosts);
        assert_eq!(world.run(seconds(600)), Ending::Done, "{}", world.describe());
        assert!(world.is_right(), "{}", world.describe());
        let accounts = world.accounts();
        let innocent = accounts.iter().enumerate().filter(|(host, _)| *host as u64 != liar);
        assert!(innocent.clone().all(|(_, account)| account.dropped.is_none()), "{accounts:?} {}", world.describe());
    });
}

#[test]
fn a_digest_finds_the_one_that_is_right() {
    for_seeds("a_digest_finds_the_one_that_is_right", 60, |seed| {
        let mut seeded = Seeded::new(seed);
        let count = 3 + seeded.below(3);
        let right = seeded.below(count);
        let blocks = 1 + seeded.below(60);
        let hosts = (0..count).map(|host| {
            let made = Host::at(20 + seeded.below(200));
            if host == right { made } else { made.wrong_at(seeded.below(blocks)) }
        });
        let hosts = hosts.collect();
        let mut world = World::expecting(seed, blocks * MIB, hosts);
        assert_eq!(world.run(seconds(600)), Ending::Done, "{}", world.describe());
        assert!(world.is_right(), "{}", world.describe());
        assert!(world.accounts()[right as usize].dropped.is_none(), "{}", world.describe());
    });
}

#[test]
fn where_all_are_wrong_the_copy_fails_and_ends() {
    for_seeds("where_all_are_wrong_the_copy_fails_and_ends", 20, |seed| {
        let hosts = (0..3).map(|host| Host::at(50 + host).wrong_at(0)).collect();
        let mut world = World::expecting(seed, 30 * MIB, hosts);
        assert_eq!(world.run(seconds(600)), Ending::Failed, "{}", world.describe());
    });
}

#[test]
fn a_replica_of_another_size_takes_no_part() {
    for_seeds("a_replica_of_another_size_takes_no_part", 20, |seed| {
        let hosts = vec![Host::at(50), Host::at(50).with_size(7 * MIB), Host::at(50).with_size(1000)];
        let mut world = World::new(seed, 30 * MIB, hosts);
        assert_eq!(world.run(seconds(60)), Ending::Done, "{}", world.describe());
        let accounts = world.accounts();
        assert!(world.is_right() && accounts[0].bytes == 30 * MIB, "{accounts:?}");
        assert!(accounts[1..].iter().all(|account| account.dropped.as_ref().is_some_and(|why| why.contains("size"))));
    });
}

#[test]
fn what_an_earlier_run_left_is_taken_anew_when_a_replica_turns_out_wrong() {
    for_seeds("what_an_earlier_run_left_is_taken_anew_when_a_replica_turns_out_wrong", 20, |seed| {
        let hosts = vec![Host::at(50), Host::at(50), Host::at(50).wrong_from(0)];
        let mut world = World::new(seed, 64 * MIB, hosts);
        // From the wrong replica.
        world.leave(2, 10..40);
        assert_eq!(world.run(seconds(60)), Ending::Done, "{}", world.describe());
        assert!(world.is_right(), "{}", world.describe());
    });
    let mut world = World::new(3, 64 * MIB, vec![Host::at(50), Host::at(50)]);
    world.leave(0, 10..40);
    assert_eq!(world.run(seconds(60)), Ending::Done);
    let given: u64 = world.accounts().iter().map(|account| account.bytes).sum();
    assert_eq!(given, 34 * MIB, "what was there is not asked for");
}

#[test]
fn with_nobody_left_the_copy_ends_at_once_or_after_the_linger_time() {
    let mut nobody = World::new(1, 30 * MIB, vec![Host::at(50).never(), Host::at(50).never()]);
    assert_eq!(nobody.run(seconds(10)), Ending::Failed);
    let gone = || Host::at(5).dying_every(1000, 10_000_000);
    let mut left = World::new(1, 300 * MIB, vec![gone(), gone()]);
    assert_eq!(left.run(seconds(7200)), Ending::Failed);
    assert!(left.elapsed() > seconds(600), "{:?}", left.elapsed());
}
