//! Both ends of a session in virtual time, with seeds: loss, reordering, duplicates, cut lanes, and crashes at every
//! step.
//!
//! Prints a failing seed with the command that replays it.

mod growing;
mod lane;
mod liars;
mod scale;
mod store;
mod trace;
mod traffic;
mod world;

use std::cell::Cell;
use std::time::Duration;

use sterna_proto::file::PACKED_FILE_BYTES_MAX;
use sterna_proto::{BitRate, BlockMap, ErrorKind};
use sterna_seeded::{Seeded, for_seeds};
use traffic::WINDOW_ITEMS;
use world::{Config, Side, World};

const MIB: u64 = 1 << 20;

/// Returns sizes of small files at all boundaries, empty files included, and of some files with several blocks.
fn mixed_sizes(random: &mut Seeded) -> Vec<u64> {
    let edges = [0, 1, 256 << 10, (256 << 10) + 1, MIB - 1, MIB, MIB + 1, 5 * MIB + 3];
    let count = 1 + random.below(12);
    let mut sizes: Vec<u64> = (0..count).map(|_| edges[random.below(edges.len() as u64) as usize]).collect();
    sizes.extend((0..random.below(40)).map(|_| random.below(100_000)));
    sizes
}

fn side(random: &mut Seeded) -> Side {
    if random.chance(500) { Side::Sender } else { Side::Receiver }
}

fn run(config: Config, seed: u64) -> World {
    let mut world = World::new(config, seed);
    world.run();
    world
}

#[test]
fn a_clean_path_delivers_every_file_and_sends_no_block_twice() {
    for_seeds("a_clean_path_delivers_every_file_and_sends_no_block_twice", 300, |seed| {
        let mut random = Seeded::new(seed);
        let mut config = Config::clean(mixed_sizes(&mut random));
        config.directories = random.below(5) as usize;
        config.lanes = 1 + random.below(6) as usize;
        config.client = side(&mut random);
        config.quic = random.chance(500);
        config.scan = Duration::from_millis(random.below(30));
        let world = run(config, seed);
        assert!(world.failed.is_empty(), "{:?}", world.failed);
        if world.config.client == Side::Sender {
            // In a pull the client leaves first. Its agent may lose a lane before the last outcome arrives.
            assert_eq!(world.session.send.sent_again_blocks(), 0);
        }
        assert_eq!(world.sessions, 1);
    });
}

#[test]
fn lossy_reordering_duplicating_lanes_that_die_all_the_time_deliver_every_file() {
    for_seeds("lossy_reordering_duplicating_lanes_that_die_all_the_time_deliver_every_file", 400, |seed| {
        let mut random = Seeded::new(seed);
        let mut config = hard(&mut random);
        config.sizes = mixed_sizes(&mut random);
        let world = run(config, seed);
        assert!(world.failed.is_empty(), "{:?}", world.failed);
    });
}

/// Returns a bad path with lanes that live for some round trips.
fn hard(random: &mut Seeded) -> Config {
    let mut config = Config::clean(Vec::new());
    config.directories = random.below(5) as usize;
    config.lanes = 1 + random.below(6) as usize;
    config.client = side(random);
    config.quic = random.chance(500);
    config.rate = BitRate::megabits(50 + random.below(1000));
    config.loss = random.below(10) as f64 / 100.0;
    config.duplicate = 0.02;
    config.reorder = random.chance(500);
    config.lane_life = Some(Duration::from_millis(300 + random.below(4000)));
    config.calm_after = Duration::from_millis(random.below(5_000));
    config.half_open = Duration::from_millis(random.below(3000));
    config.scan = Duration::from_millis(random.below(60));
    config.prepare = Duration::from_millis(random.below(300));
    config.publish = Duration::from_millis(random.below(300));
    config
}

#[test]
fn corruption_full_disks_and_changing_sources_end_each_file_once_and_alike_at_both_ends() {
    for_seeds("corruption_full_disks_and_changing_sources_end_each_file_once_and_alike_at_both_ends", 400, |seed| {
        let mut random = Seeded::new(seed);
        let mut config = hard(&mut random);
        config.sizes = mixed_sizes(&mut random);
        config.corrupt = random.below(200);
        config.disk_refuses = random.below(30);
        config.publish_fails = random.below(30);
        config.source_changes = random.below(30);
        run(config, seed);
    });
}

#[test]
fn blocks_that_fail_their_check_are_sent_again_though_no_lane_dies() {
    for_seeds("blocks_that_fail_their_check_are_sent_again_though_no_lane_dies", 200, |seed| {
        let mut random = Seeded::new(seed);
        let mut config = Config::clean(mixed_sizes(&mut random));
        config.lanes = 1 + random.below(6) as usize;
        config.client = side(&mut random);
        config.quic = random.chance(500);
        config.corrupt = 300;
        config.source_changes = random.below(30);
        let world = run(config, seed);
        // After five failures of one block its file fails.
        let excused = |kind: &ErrorKind| matches!(kind, ErrorKind::Corrupt | ErrorKind::Changed);
        assert!(world.failed.values().all(excused), "{:?}", world.failed);
    });
}

#[test]
fn a_block_read_past_while_its_writer_was_half_open_is_not_lost() {
    for_seeds("a_block_read_past_while_its_writer_was_half_open_is_not_lost", 200, |seed| {
        let mut random = Seeded::new(seed);
        let mut config = Config::clean(vec![(20 + random.below(40)) * MIB]);
        config.lanes = 2 + random.below(4) as usize;
        config.client = side(&mut random);
        config.quic = random.chance(500);
        config.rate = BitRate::megabits(20 + random.below(100));
        config.lane_life = Some(Duration::from_millis(1500));
        // Later cuts could release stuck blocks by chance.
        config.calm_after = Duration::from_millis(1500);
        config.half_open = Duration::from_millis(3000);
        let world = run(config, seed);
        assert!(world.failed.is_empty(), "{:?}", world.failed);
    });
}

#[test]
fn files_that_others_hold_and_blocks_that_rot_are_asked_for_again() {
    let rotten = Cell::new(0);
    for_seeds("files_that_others_hold_and_blocks_that_rot_are_asked_for_again", 300, |seed| {
        let mut random = Seeded::new(seed);
        let mut config = hard(&mut random);
        config.sizes = mixed_sizes(&mut random);
        config.sizes.push((20 + random.below(40)) * MIB);
        config.busy = 500;
        config.rot = random.below(500);
        config.crashes = (1..4).map(|crash| (crash * (100 + random.below(400)), side(&mut random))).collect();
        let world = run(config, seed);
        assert!(world.failed.is_empty(), "{:?}", world.failed);
        rotten.set(rotten.get() + world.rotten_blocks);
    });
    // A single replayed seed may have no damaged block.
    assert!(rotten.get() > 0 || std::env::var_os("STERNA_SEED").is_some(), "no block was ever damaged");
}

#[test]
fn files_that_others_hold_and_that_change_or_fail_end_once_and_alike_at_both_ends() {
    for_seeds("files_that_others_hold_and_that_change_or_fail_end_once_and_alike_at_both_ends", 300, |seed| {
        let mut random = Seeded::new(seed);
        let mut config = hard(&mut random);
        config.sizes = mixed_sizes(&mut random);
        config.sizes.push((20 + random.below(40)) * MIB);
        config.busy = 500;
        config.rot = random.below(200);
        config.source_changes = random.below(100);
        config.corrupt = random.below(100);
        config.publish_fails = random.below(30);
        config.crashes = (1..3).map(|crash| (crash * (100 + random.below(400)), side(&mut random))).collect();
        if random.chance(200) {
            config.abort = Some((Duration::from_millis(random.below(4000)), side(&mut random)));
        }
        run(config, seed);
    });
}

#[test]
fn an_outage_longer_than_the_linger_ends_both_sessions_and_the_next_goes_on() {
    for_seeds("an_outage_longer_than_the_linger_ends_both_sessions_and_the_next_goes_on", 200, |seed| {
        let mut random = Seeded::new(seed);
        let mut config = hard(&mut random);
        config.sizes = mixed_sizes(&mut random);
        config.linger = Duration::from_secs(5);
        config.outage = Some((Duration::from_millis(random.below(2000)), Duration::from_secs(60)));
        run(config, seed);
    });
}

#[test]
fn an_abort_at_any_time_ends_both_sessions() {
    for_seeds("an_abort_at_any_time_ends_both_sessions", 300, |seed| {
        let mut random = Seeded::new(seed);
        let mut config = hard(&mut random);
        config.sizes = mixed_sizes(&mut random);
        config.linger = Duration::from_secs(20);
        config.abort = Some((Duration::from_millis(random.below(1500)), side(&mut random)));
        if random.chance(300) {
            // No lane ever comes up again.
            config.outage = Some((Duration::from_millis(random.below(1500)), Duration::from_secs(7000)));
        }
        run(config, seed);
    });
}

/// Checks the result after crashes: every file is in place, and journaled blocks were not written again.
fn assert_resumed(world: &World, what: &str) {
    assert!(world.failed.is_empty(), "{what}: {:?}", world.failed);
    let count = |size: u64| if size <= PACKED_FILE_BYTES_MAX { 1 } else { BlockMap::new(size).count() };
    let growing = world.config.growing.iter().map(|size| size.div_ceil(MIB));
    let blocks: u64 = world.config.sizes.iter().map(|size| count(*size)).chain(growing).sum();
    let again = world.store.written_blocks - blocks;
    assert!(again <= world.lost_blocks, "{what}: {again} blocks written again, {} were lost", world.lost_blocks);
}

#[test]
fn a_crash_of_either_end_at_every_step_loses_at_most_what_was_not_journaled() {
    for client in [Side::Sender, Side::Receiver] {
        let mut config = Config::clean(vec![0, 1000, 3 * MIB + 1, 200_000, MIB]);
        config.client = client;
        config.rate = BitRate::megabits(10);
        let steps = run(config.clone(), 1).steps;
        assert!(steps > 40, "{steps} steps are too few to mean anything");
        for crashed in [Side::Sender, Side::Receiver] {
            for step in 1..=steps {
                config.crashes = vec![(step, crashed)];
                assert_resumed(&run(config.clone(), 1), &format!("crash of the {crashed:?} at step {step} of {steps}"));
            }
        }
    }
}

#[test]
fn a_crash_at_every_step_on_dying_lanes_loses_at_most_what_was_not_journaled() {
    for_seeds("a_crash_at_every_step_on_dying_lanes_loses_at_most_what_was_not_journaled", 8, |seed| {
        let mut random = Seeded::new(seed);
        let mut config = hard(&mut random);
        config.sizes = mixed_sizes(&mut random);
        let steps = run(config.clone(), seed).steps;
        for crashed in [Side::Sender, Side::Receiver] {
            for step in 1..=steps {
                config.crashes = vec![(step, crashed)];
                let world = run(config.clone(), seed);
                assert_resumed(&world, &format!("crash of the {crashed:?} at step {step} of {steps}"));
            }
        }
    });
}

#[test]
fn a_copy_whose_ends_crash_again_and_again_ends_well() {
    for_seeds("a_copy_whose_ends_crash_again_and_again_ends_well", 300, |seed| {
        let mut random = Seeded::new(seed);
        let mut config = hard(&mut random);
        config.sizes = mixed_sizes(&mut random);
        config.crashes = (0..1 + random.below(8)).map(|_| (random.below(600), side(&mut random))).collect();
        assert_resumed(&run(config, seed), "crashes");
    });
}

#[test]
fn after_a_crash_the_sender_sends_little_of_what_is_journaled() {
    let mut config = Config::clean(vec![200 * MIB]);
    config.rate = BitRate::megabits(100);
    config.lanes = 4;
    let steps = run(config.clone(), 1).steps;
    for crashed in [Side::Sender, Side::Receiver] {
        for step in (1..=steps).step_by(7) {
            config.crashes = vec![(step, crashed)];
            let world = run(config.clone(), 1);
            assert_resumed(&world, "crash");
            // Blocks in flight at the crash, and blocks sent before the new session knew the blocks at the receiver.
            let window = 2 * (config.lanes * WINDOW_ITEMS) as u64;
            let again = world.sent_blocks - 200;
            let lost = world.lost_blocks;
            assert!(again <= lost + window, "crash of the {crashed:?} at step {step}: {again} sent again, {lost} lost");
        }
    }
}
