//! Large sessions in virtual time: one file of 5 TB, and a hundred thousand files.

use std::time::Duration;

use sterna_proto::BitRate;
use sterna_proto::session::UNSETTLED_FILES_MAX;
use sterna_seeded::for_seeds;

use super::world::{Config, Side, World};

fn run(config: Config, seed: u64) -> World {
    let mut world = World::new(config, seed);
    world.run();
    assert!(world.failed.is_empty());
    world
}

#[test]
fn a_file_of_5_tb_passes_over_eight_lanes_that_die_now_and_then() {
    for_seeds("a_file_of_5_tb_passes_over_eight_lanes_that_die_now_and_then", 1, |seed| {
        let mut config = Config::clean(vec![5_000_000_000_000]);
        config.lanes = 8;
        config.bytes_per_unit = 4096;
        config.rate = BitRate::megabits(5000);
        config.lane_life = Some(Duration::from_secs(60));
        config.half_open = Duration::from_secs(2);
        config.deadline = Duration::from_secs(7200);
        let world = run(config, seed);
        assert_eq!(world.store.written_blocks, 298_024);
        // A lane that dies has at most one window of blocks in flight.
        assert!(world.sent_blocks - 298_024 < 20_000, "{} blocks sent again", world.sent_blocks - 298_024);
    });
}

#[test]
fn a_hundred_thousand_small_files_pass_with_bounded_memory() {
    for_seeds("a_hundred_thousand_small_files_pass_with_bounded_memory", 1, |seed| {
        let mut config = Config::clean((0..100_000).map(|i| i * 7 % 10_000).collect());
        config.lanes = 8;
        config.rate = BitRate::megabits(1000);
        config.lane_life = Some(Duration::from_secs(2));
        config.half_open = Duration::from_secs(1);
        let world = run(config, seed);
        // The sender stops at half of the number that the receiver accepts.
        assert!(world.session.open_files_max <= UNSETTLED_FILES_MAX / 2, "{} open", world.session.open_files_max);
    });
}

#[test]
fn a_hundred_thousand_directories_pass() {
    for_seeds("a_hundred_thousand_directories_pass", 1, |seed| {
        for client in [Side::Sender, Side::Receiver] {
            let mut config = Config::clean(Vec::new());
            config.directories = 100_000;
            config.client = client;
            run(config, seed);
        }
    });
}

#[test]
fn small_files_that_outrun_their_offers_are_taken() {
    // The lane of the log carries nothing for seconds while the other lanes carry all data. Files settle before they
    // are offered.
    for_seeds("small_files_that_outrun_their_offers_are_taken", 1, |seed| {
        let mut config = Config::clean(vec![1; 150_000]);
        config.lanes = 4;
        config.first_lane_stalls = Some(Duration::from_secs(30));
        config.publish = Duration::ZERO;
        config.prepare = Duration::ZERO;
        run(config, seed);
    });
}
