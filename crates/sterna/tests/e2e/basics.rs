//! Tests copies without faults.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::site::Site;
use crate::tree::{MIB, Seeded, assert_same_file, assert_same_tree, set_mode, set_mtime, write};

/// Sizes around the edges of packing (256 KiB) and of blocks (1 MiB).
const EDGES: [usize; 9] = [0, 1, 4096, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, MIB - 1, MIB, 3 * MIB + 17];

fn edge_files(top: &Path, seed: u64) {
    let mut seeded = Seeded::new(seed);
    for size in EDGES {
        write(&top.join(format!("size-{size}")), &seeded.bytes(size));
    }
}

/// Creates a tree of names, depths, modes and times that file systems allow and tools often handle wrong.
fn odd_tree(top: &Path) {
    let mut seeded = Seeded::new(7);
    let long = "n".repeat(255);
    let names: [&[u8]; 9] = [
        b"plain",
        b"-rf",
        b".hidden",
        b"new\nline",
        b"not utf-8 \xff\xfe",
        b"a b%20c?*[x]",
        "\u{1F30D}".as_bytes(),
        b"...",
        long.as_bytes(),
    ];
    for (index, name) in names.into_iter().enumerate() {
        let path = top.join(OsStr::from_bytes(name));
        write(&path, &seeded.bytes(index * 50_000));
        set_mode(&path, 0o600 + index as u32);
        set_mtime(&path, 1_000_000_000 + index as u64, 123_456_789);
    }
    let mut deep = top.to_owned();
    for _ in 0..60 {
        deep.push("deep");
    }
    write(&deep.join("leaf"), b"at the bottom");
    fs::create_dir_all(top.join("empty/inside")).unwrap();
    set_mode(&top.join("empty"), 0o750);
    set_mtime(&top.join("empty/inside"), 86_400, 1);
    set_mtime(&top.join("empty"), 1_234_567_890, 0);
}

#[test]
fn a_tree_of_odd_names_arrives_as_it_was_both_ways_by_both_transports() {
    let site = Site::new();
    let agent = site.agent();
    odd_tree(&site.local().join("odd"));
    edge_files(&site.local().join("odd/edges"), 1);
    for via in ["tcp", "quic"] {
        let pushed = site.copy(&agent).args(["--via", via]).arg("odd").arg(agent.url(&format!("{via}/"))).succeed();
        assert_eq!(pushed.summary()["failed"], 0);
        assert_same_tree(&site.local().join("odd"), &site.root().join(via).join("odd"));
        let back = format!("back-{via}/");
        site.copy(&agent).args(["--via", via]).arg(agent.url(&format!("{via}/odd"))).arg(&back).succeed();
        assert_same_tree(&site.local().join("odd"), &site.local().join(back).join("odd"));
    }
}

#[test]
fn a_setuid_file_is_copied_and_does_not_keep_the_bit() {
    let site = Site::new();
    let agent = site.agent();
    let tree = site.local().join("tree");
    for (name, size, mode) in [("small", 10, 0o4755), ("large", MIB, 0o2750), ("sticky", 5, 0o1640)] {
        write(&tree.join(name), &Seeded::new(size as u64).bytes(size));
        set_mode(&tree.join(name), mode);
    }
    set_mode(&tree, 0o3755);
    site.copy(&agent).arg("tree").arg(agent.url("")).succeed();
    site.copy(&agent).arg(agent.url("tree")).arg("back").succeed();
    for top in [site.root().join("tree"), site.local().join("back")] {
        for (name, mode) in [("small", 0o755), ("large", 0o750), ("sticky", 0o640), (".", 0o755)] {
            assert_eq!(fs::metadata(top.join(name)).unwrap().mode() & 0o7777, mode, "{name}");
        }
        assert_same_file(&tree.join("large"), &top.join("large"));
    }
}

#[test]
fn a_rate_is_taken_both_ways_by_both_transports() {
    let site = Site::new();
    let agent = site.agent();
    edge_files(&site.local().join("edges"), 2);
    for via in ["tcp", "quic", "auto"] {
        let rated = ["--via", via, "--rate", "400Mbit"];
        site.copy(&agent).args(rated).arg("edges").arg(agent.url(&format!("{via}/"))).succeed();
        assert_same_tree(&site.local().join("edges"), &site.root().join(via).join("edges"));
        site.copy(&agent).args(rated).arg(agent.url(&format!("{via}/edges"))).arg(format!("back-{via}")).succeed();
        assert_same_tree(&site.local().join("edges"), &site.local().join(format!("back-{via}")));
    }
}

#[test]
fn destinations_are_named_as_cp_names_them() {
    let site = Site::new();
    let agent = site.agent();
    write(&site.local().join("a"), b"first");
    write(&site.local().join("b"), b"second");
    write(&site.local().join("d/x"), b"third");
    // Destinations: new name, existing directory, missing directory, several sources, directory under a new name.
    site.copy(&agent).arg("a").arg(agent.url("renamed")).succeed();
    fs::create_dir(site.root().join("there")).unwrap();
    site.copy(&agent).arg("a").arg(agent.url("there")).succeed();
    site.copy(&agent).arg("a").arg(agent.url("new/")).succeed();
    site.copy(&agent).args(["a", "b"]).arg(agent.url("many")).succeed();
    site.copy(&agent).arg("d").arg(agent.url("e")).succeed();
    site.copy(&agent).arg("d/.").arg(agent.url("contents")).succeed();
    let root = site.root();
    for (path, bytes) in [
        ("renamed", &b"first"[..]),
        ("there/a", b"first"),
        ("new/a", b"first"),
        ("many/a", b"first"),
        ("many/b", b"second"),
        ("e/x", b"third"),
        ("contents/x", b"third"),
    ] {
        assert_eq!(fs::read(root.join(path)).unwrap_or_else(|e| panic!("{path}: {e}")), bytes, "{path}");
    }
    site.copy(&agent).arg(agent.url("renamed")).arg("again").succeed();
    assert_eq!(fs::read(site.local().join("again")).unwrap(), b"first");
}

#[test]
fn wildcards_work_at_both_ends() {
    let site = Site::new();
    let agent = site.agent();
    for name in ["s1/a.h5", "s1/b.h5", "s1/c.txt", "s2/d.h5", "s2/deep/e.h5"] {
        write(&site.local().join(name), name.as_bytes());
    }
    // Quoted, so that the shell does not expand the pattern.
    site.copy(&agent).arg("s?/*.h5").arg(agent.url("up/")).succeed();
    let names = |path: &Path| {
        let mut names: Vec<String> =
            fs::read_dir(path).unwrap().map(|item| item.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&site.root().join("up")), ["a.h5", "b.h5", "d.h5"]);
    site.copy(&agent).arg(agent.url("up/[a-b].h5")).arg("down").succeed();
    assert_eq!(names(&site.local().join("down")), ["a.h5", "b.h5"]);
    let nothing = site.copy(&agent).arg(agent.url("up/*.nc")).arg("down").run().expect(3);
    nothing.says("matches");
}

#[test]
fn two_thousand_small_files_arrive_as_one_pipeline() {
    let site = Site::new();
    let agent = site.agent();
    let mut seeded = Seeded::new(3);
    for index in 0..2000 {
        let size = seeded.below(2000) as usize;
        write(&site.local().join(format!("many/d{}/f{index}", index % 20)), &seeded.bytes(size));
    }
    let pushed = site.copy(&agent).arg("many").arg(agent.url("many")).succeed();
    assert_eq!(pushed.summary()["copied"], 2000);
    assert_same_tree(&site.local().join("many"), &site.root().join("many"));
    site.copy(&agent).arg(agent.url("many")).arg("back").succeed();
    assert_same_tree(&site.local().join("many"), &site.local().join("back"));
    let again = site.copy(&agent).arg("many/.").arg(agent.url("many")).succeed();
    assert_eq!(again.summary()["bytes"], 0, "nothing has changed");
}

#[test]
fn holes_stay_holes_and_cost_nothing() {
    let site = Site::new();
    let agent = site.agent();
    let file = File::create(site.local().join("sparse")).unwrap();
    // 8 GB with some bytes at the start, in the middle and at the end.
    let size = 8_000_000_000;
    file.set_len(size).unwrap();
    let mut seeded = Seeded::new(4);
    let islands: Vec<(u64, Vec<u8>)> =
        [0, 3_999_999_999, size - 5000].into_iter().map(|offset| (offset, seeded.bytes(5000))).collect();
    for (offset, bytes) in &islands {
        file.write_all_at(bytes, *offset).unwrap();
    }
    let pushed = site.copy(&agent).arg("sparse").arg(agent.url("sparse")).succeed();
    assert_eq!(pushed.summary()["bytes"], size);
    let arrived = File::open(site.root().join("sparse")).unwrap();
    let about = arrived.metadata().unwrap();
    assert_eq!(about.len(), size);
    // At most three blocks of 16 MiB have data.
    assert!(about.blocks() * 512 <= 3 * 16 * MIB as u64 + MIB as u64, "{} bytes are occupied", about.blocks() * 512);
    for (offset, bytes) in &islands {
        let mut read = vec![0; bytes.len()];
        arrived.read_exact_at(&mut read, *offset).unwrap();
        assert_eq!(&read, bytes);
    }
}

#[test]
fn goodput_counts_the_bytes_that_lanes_carried_and_no_holes() {
    let site = Site::new();
    let agent = site.agent();
    let (size, data) = (400_000_000, Seeded::new(6).bytes(MIB));
    let file = File::create(site.local().join("sparse")).unwrap();
    file.set_len(size).unwrap();
    file.write_all_at(&data, 0).unwrap();
    let pushed = site.copy(&agent).arg("sparse").arg(agent.url("sparse")).succeed();
    let pulled = site.copy(&agent).arg(agent.url("sparse")).arg("back").succeed();
    for outcome in [pushed, pulled] {
        let summary = outcome.summary();
        let holes = summary["bytes_holes"].as_u64().unwrap();
        // One block of 16 MiB has the data.
        assert!(summary["bytes"] == size && holes < size && holes >= size - 16 * MIB as u64, "{summary}");
        let carried = summary["goodput_bps"].as_f64().unwrap() * summary["elapsed_s"].as_f64().unwrap() / 8.0;
        assert!((carried - (size - holes) as f64).abs() < 1000.0, "{carried} in {summary}");
    }
    agent.wait_for_log(": over: 1 file, 400 MB in ");
    // Blocks are sent before the receiver reports that it wants none. These blocks do not count as copied.
    let again = site.copy(&agent).arg("sparse").arg(agent.url("sparse")).succeed();
    assert_eq!((&again.summary()["up_to_date"], &again.summary()["bytes_holes"]), (&1.into(), &0.into()));
}

#[test]
fn overwrite_keeps_replaces_or_compares_as_told() {
    let site = Site::new();
    let agent = site.agent();
    let (source, target) = (site.local().join("f"), site.root().join("f"));
    let push = |how: &str| site.copy(&agent).args(["--overwrite", how, "f"]).arg(agent.url("f")).run();
    write(&source, b"new bytes");
    write(&target, b"old bytes");
    set_mtime(&target, 5, 0);
    push("never").expect(4).says("exists");
    assert_eq!(fs::read(&target).unwrap(), b"old bytes");
    push("if-changed").expect(0);
    assert_eq!(fs::read(&target).unwrap(), b"new bytes");
    // A file with the same size and time counts as the same; only `always` ignores this.
    let mtime = fs::metadata(&source).unwrap().modified().unwrap();
    write(&target, b"bad bytes");
    File::options().write(true).open(&target).unwrap().set_modified(mtime).unwrap();
    assert_eq!(push("if-changed").expect(0).summary()["up_to_date"], 1);
    assert_eq!(fs::read(&target).unwrap(), b"bad bytes");
    push("always").expect(0);
    assert_eq!(fs::read(&target).unwrap(), b"new bytes");
}

/// Returns digests of `bytes` from independent libraries.
fn reference_digests(bytes: &[u8]) -> Vec<(&'static str, String)> {
    use md5::Digest;
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    vec![
        ("adler32", format!("{:08x}", simd_adler32::adler32(&bytes))),
        ("crc32c", format!("{:08x}", crc32c::crc32c(bytes))),
        ("md5", hex(&md5::Md5::digest(bytes))),
        ("sha256", hex(&sha2::Sha256::digest(bytes))),
        ("blake3", blake3::hash(bytes).to_string()),
    ]
}

#[test]
fn checksums_equal_those_of_the_usual_tools() {
    let site = Site::new();
    let agent = site.agent();
    for size in [0, 1000, 2 * MIB + 5] {
        let name = format!("f{size}");
        let bytes = Seeded::new(size as u64).bytes(size);
        write(&site.local().join(&name), &bytes);
        let digests = reference_digests(&bytes);
        let flags = digests.iter().flat_map(|(name, _)| ["--checksum", name]);
        let pushed = site.copy(&agent).args(flags.clone()).arg(&name).arg(agent.url(&name)).succeed();
        let pulled = site.copy(&agent).args(flags).arg(agent.url(&name)).arg("back-".to_owned() + &name).succeed();
        for (algorithm, hex) in &digests {
            assert_eq!(pushed.last("file")["digests"][algorithm], **hex, "{algorithm} of {size} bytes");
            assert_eq!(pulled.last("file")["digests"][algorithm], **hex, "{algorithm} of {size} bytes");
            let expect = format!("{algorithm}:{hex}");
            let target = format!("expected-{name}-{algorithm}");
            site.copy(&agent).args(["--expect", &expect, &name]).arg(agent.url(&target)).succeed();
            assert!(site.root().join(&target).exists());
        }
    }
}

#[test]
fn a_file_with_another_digest_than_expected_is_not_published() {
    let site = Site::new();
    let agent = site.agent();
    for size in [1000, 2 * MIB] {
        write(&site.local().join("f"), &Seeded::new(9).bytes(size));
        for (algorithm, hex) in reference_digests(b"something else") {
            let expect = format!("{algorithm}:{hex}");
            let pushed = site.copy(&agent).args(["--expect", &expect, "f"]).arg(agent.url("f")).run();
            assert!(matches!(pushed.code, Some(3 | 4)), "{}", pushed.describe());
            let pulled_to = site.local().join("pulled");
            assert_eq!(fs::read_dir(site.root()).unwrap().count(), 0, "something of it was left");
            write(&site.path("keep/f"), b"");
            assert!(!pulled_to.exists());
        }
    }
}

#[test]
fn one_expected_digest_and_more_than_one_file_is_wrong_usage() {
    let site = Site::new();
    let agent = site.agent();
    for place in [site.local(), site.root()] {
        write(&place.join("d/f"), b"bytes");
        write(&place.join("d/g"), b"bytes");
    }
    let expect = format!("md5:{}", "0".repeat(32));
    let copy = || {
        let mut copy = site.copy(&agent);
        copy.args(["--expect", &expect]);
        copy
    };
    for pattern in ["d", "d/*"] {
        copy().arg(pattern).arg(agent.url("up/")).run().expect(2).says("one file");
        copy().arg(agent.url(pattern)).arg("down/").run().expect(2).says("one file");
    }
}

#[test]
fn a_source_whose_directory_is_missing_fails_alone() {
    let site = Site::new();
    let agent = site.agent();
    write(&site.local().join("f"), b"bytes");
    site.copy(&agent).args(["missing/a", "f"]).arg(agent.url("up/")).run().expect(1).says("missing");
    assert_same_file(&site.local().join("f"), &site.root().join("up/f"));
    site.copy(&agent).args(["missing/a", "missing/b"]).arg(agent.url("up/")).run().expect(3);
}

#[test]
fn a_dry_run_changes_nothing() {
    let site = Site::new();
    let agent = site.agent();
    edge_files(&site.local().join("edges"), 5);
    let dry = site.copy(&agent).args(["--dry-run", "edges"]).arg(agent.url("x/")).succeed();
    assert_eq!(dry.summary()["would_copy"], EDGES.len());
    assert_eq!(dry.last("file")["outcome"], "would_copy");
    assert_eq!(fs::read_dir(site.root()).unwrap().count(), 0);
    fs::rename(site.local().join("edges"), site.root().join("edges")).unwrap();
    site.copy(&agent).arg("--dry-run").arg(agent.url("edges")).arg("y").succeed();
    assert_eq!(fs::read_dir(site.local()).unwrap().count(), 0);
}

#[test]
fn json_events_end_with_the_summary() {
    let site = Site::new();
    let agent = site.agent();
    edge_files(&site.local().join("edges"), 6);
    let pushed = site.copy(&agent).arg("edges").arg(agent.url("")).succeed();
    let kinds =
        ["decision", "lane_up", "lane_down", "restarted", "notice", "unreadable", "file", "progress", "summary"];
    for event in &pushed.events {
        assert!(kinds.iter().any(|kind| event["event"] == *kind), "{event}");
    }
    let last = pushed.events.last().unwrap();
    assert_eq!(last["event"], "summary");
    assert_eq!(last["bytes"], EDGES.iter().sum::<usize>());
    assert_eq!(pushed.count("file"), EDGES.len() + 1);
}

#[test]
fn every_way_to_end_has_its_exit_code() {
    let site = Site::new();
    let mut agent = site.agent();
    write(&site.local().join("good"), b"good");
    let code = |args: &[&str]| site.copy(&agent).args(args).run().code;
    let url = agent.url("");
    assert_eq!(code(&["good", &url]), Some(0));
    // One of two sources is missing.
    assert_eq!(code(&["good", "missing", &url]), Some(1));
    assert_eq!(code(&["--no-such-flag", "good", &url]), Some(2));
    assert_eq!(code(&["good", "neither-end-is-remote"]), Some(2));
    assert_eq!(code(&["missing", &url]), Some(3));
    assert_eq!(code(&[&agent.url("missing"), "here"]), Some(3));
    fs::create_dir(site.root().join("taken")).unwrap();
    fs::create_dir(site.root().join("taken/good")).unwrap();
    assert_eq!(code(&["good", &agent.url("taken/")]), Some(4));
    let wrong = "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    assert_eq!(site.bare_copy().args(["--trust", wrong, "good", &url]).run().code, Some(6));
    agent.kill();
    assert_eq!(site.copy(&agent).args(["good", &url]).run().code, Some(5));
}
