//! Tests `--compress`: all bytes arrive unchanged, fewer bytes travel, and a kill costs no more than without
//! compression.

use std::path::Path;

use serde_json::Value;
use sterna_seeded::with_seed;

use crate::chaos_proxy::{ChaosProxy, Reaction};
use crate::site::{Outcome, Site, wait_until};
use crate::tree::{MIB, Seeded, assert_same_file, assert_same_tree, write};

/// Returns 16-bit samples of a slow wave with four bits of noise.
fn samples(seeded: &mut Seeded, count: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count + 2);
    for time in 0..count.div_ceil(2) {
        let value = ((time as f64 / 3000.0).sin() * 8000.0) as i16 + seeded.below(16) as i16;
        bytes.extend_from_slice(&value.to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}

/// Creates files that compress in several ways or not at all, with sizes around the edges of packing and of blocks.
fn mixed_tree(top: &Path) {
    let mut seeded = Seeded::new(1);
    write(&top.join("pass.i16"), &samples(&mut seeded, 9 * MIB + 12_345));
    write(&top.join("one.i16"), &samples(&mut seeded, MIB + 1));
    write(&top.join("noise.bin"), &seeded.bytes(3 * MIB));
    let half = [samples(&mut seeded, 2 * MIB), seeded.bytes(2 * MIB)].concat();
    write(&top.join("half.dat"), &half);
    write(&top.join("zeros"), &vec![0; 2 * MIB + 1]);
    for index in 0..30_usize {
        write(&top.join(format!("small/{index}.txt")), &b"a line of a log\n".repeat(index * 100));
        write(&top.join(format!("small/{index}.bin")), &seeded.bytes(index * 500));
    }
}

/// Returns the file bytes that lanes carried, and their encoded bytes.
fn carried(outcome: &Outcome) -> (u64, u64) {
    let bytes = |name: &str| outcome.summary()[name].as_u64().unwrap();
    (bytes("bytes_carried"), bytes("bytes_encoded"))
}

#[test]
fn compressed_trees_arrive_as_they_were_both_ways_by_both_transports() {
    let site = Site::new();
    let agent = site.agent();
    mixed_tree(&site.local().join("mixed"));
    for via in ["tcp", "quic"] {
        for compress in ["always", "auto", "never"] {
            let flags = ["--via", via, "--compress", compress];
            let there = format!("{via}-{compress}/");
            let back = format!("back-{via}-{compress}/");
            let pushed = site.copy(&agent).args(flags).arg("mixed").arg(agent.url(&there)).succeed();
            assert_same_tree(&site.local().join("mixed"), &site.root().join(&there).join("mixed"));
            let pulled = site.copy(&agent).args(flags).arg(agent.url(&format!("{there}mixed"))).arg(&back).succeed();
            assert_same_tree(&site.local().join("mixed"), &site.local().join(&back).join("mixed"));
            for outcome in [pushed, pulled] {
                let (file_bytes, bytes) = carried(&outcome);
                assert!(file_bytes > 15 * MIB as u64, "{file_bytes} of {via} {compress}");
                match compress {
                    "never" => assert_eq!(file_bytes, bytes),
                    // 5 MiB of the data are noise; the rest compresses to half or less.
                    "always" => assert!(bytes * 3 < file_bytes * 2, "{file_bytes} became {bytes} by {via}"),
                    // The choice depends on the path and the CPU cores.
                    _ => assert!(bytes <= file_bytes, "{file_bytes} became {bytes} by {via}"),
                }
            }
        }
    }
}

#[test]
fn a_slow_path_is_told_to_bring_more_than_it_carries() {
    let site = Site::new();
    let agent = site.agent();
    write(&site.local().join("pass.i16"), &samples(&mut Seeded::new(2), 12 * MIB));
    for via in ["tcp", "quic"] {
        let outcome =
            site.copy(&agent).args(["--via", via, "--rate", "60Mbit", "pass.i16"]).arg(agent.url(via)).succeed();
        assert_same_file(&site.local().join("pass.i16"), &site.root().join(via));
        let (file_bytes, bytes) = carried(&outcome);
        assert!(bytes * 3 < file_bytes * 2, "{file_bytes} became {bytes} by {via}");
        let told = |event: &&Value| event["event"] == "decision" && event["subject"] == "compression";
        let decision = outcome.events.iter().find(told).expect("a decision of how files are compressed");
        let rationale = decision["rationale"].as_str().unwrap();
        assert!(rationale.contains("so that a path of") && rationale.ends_with("(*.i16)"), "{rationale}");
    }
}

/// Blocks of several slabs, over streams that deliver out of order.
#[test]
fn blocks_of_many_slabs_arrive_by_both_transports() {
    let site = Site::new();
    let agent = site.agent();
    let mut seeded = Seeded::new(3);
    let some = [samples(&mut seeded, 3 * MIB + 7), seeded.bytes(MIB)].concat();
    // Above 1 GiB, blocks have two slabs.
    let bytes: Vec<u8> = some.iter().copied().cycle().take(1025 * MIB + 5).collect();
    write(&site.local().join("pass"), &bytes);
    for via in ["tcp", "quic"] {
        let flags = ["--via", via, "--compress", "always"];
        let outcome = site.copy(&agent).args(flags).arg("pass").arg(agent.url(via)).succeed();
        assert_same_file(&site.local().join("pass"), &site.root().join(via));
        let (file_bytes, bytes) = carried(&outcome);
        assert!(bytes * 10 < file_bytes * 9, "{file_bytes} became {bytes} by {via}");
    }
}

/// kill -9 of the receiver and of the sender while compressed blocks are in flight.
#[test]
fn a_compressed_copy_survives_kills_of_either_side() {
    with_seed("a_compressed_copy_survives_kills_of_either_side", 700, |seed| {
        for (round, (push, via)) in
            [(true, "tcp"), (false, "tcp"), (true, "quic"), (false, "quic")].into_iter().enumerate()
        {
            let site = Site::new();
            let mut seeded = Seeded::new(seed + round as u64);
            let (source, target) = match push {
                true => (site.local().join("pass.i16"), site.root().join("pass.i16")),
                false => (site.root().join("pass.i16"), site.local().join("pass.i16")),
            };
            write(&source, &samples(&mut seeded, 16 * MIB));
            let mut agent = site.agent();
            let proxy = if via == "tcp" { ChaosProxy::tcp(&agent) } else { ChaosProxy::udp(&agent) };
            let mut copy = site.copy(&agent);
            copy.args(["--via", via, "--lanes", "2", "--compress", "always"]);
            match push {
                true => copy.arg("pass.i16").arg(proxy.url("pass.i16")),
                false => copy.arg(proxy.url("pass.i16")).arg("pass.i16"),
            };
            for kills_agent in [true, false] {
                let mut copying = copy.start();
                let reached = proxy.marks_reached();
                proxy.mark(MIB as u64 + seeded.below(4 * MIB as u64), Reaction::Hold);
                wait_until("the place of the kill", || proxy.marks_reached() > reached || copying.has_ended());
                if kills_agent {
                    agent.kill();
                    proxy.release();
                    agent = site.agent_at(&agent.addr.to_string());
                }
                copying.kill();
                proxy.release();
                assert!(!target.exists() || std::fs::read(&target).unwrap() == std::fs::read(&source).unwrap());
            }
            copy.succeed();
            assert_same_file(&source, &target);
        }
    });
}
