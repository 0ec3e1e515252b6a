//! Tests faults: outages of paths, cut lanes, flipped bits, full disks, and concurrent copies to one destination.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use sterna_lab::{Lab, LabOptions, LinkModel};
use sterna_proto::BitRate;
use sterna_seeded::with_seed;

use crate::chaos_proxy::{ChaosProxy, Reaction};
use crate::site::{BINARY, Site, wait_until, with_descriptors};
use crate::tree::{MIB, Seeded, assert_same_file, assert_same_tree, set_mode, write};

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Creates a site whose client has `bytes` bytes of data in the file `f`.
fn site_with(seed: u64, bytes: usize) -> Site {
    let site = Site::new();
    write(&site.local().join("f"), &Seeded::new(seed).bytes(bytes));
    site
}

#[test]
fn lanes_that_are_cut_again_and_again_bring_everything() {
    with_seed("lanes_that_are_cut_again_and_again_bring_everything", 1, |seed| {
        let mut seeded = Seeded::new(seed);
        let site = site_with(seed, 24 * MIB);
        let agent = site.agent();
        let proxy = ChaosProxy::tcp(&agent);
        let mut copying = site.copy(&agent).args(["--via", "tcp", "--lanes", "4", "f"]).arg(proxy.url("f")).start();
        for cut in 1..=3 {
            proxy.mark(seeded.below(7 * MIB as u64), Reaction::Cut);
            wait_until("a cut", || proxy.marks_reached() == cut || copying.has_ended());
        }
        let outcome = copying.finish().expect(0);
        assert!(outcome.count("lane_down") > 0, "{}", outcome.describe());
        assert_same_file(&site.local().join("f"), &site.root().join("f"));
    });
}

#[test]
fn a_flipped_bit_on_the_wire_is_never_in_the_file() {
    with_seed("a_flipped_bit_on_the_wire_is_never_in_the_file", 2, |seed| {
        let mut seeded = Seeded::new(seed);
        let site = site_with(seed, 6 * MIB);
        let agent = site.agent();
        for round in 0..6 {
            let udp = round % 3 == 2;
            let (proxy, via) = if udp { (ChaosProxy::udp(&agent), "quic") } else { (ChaosProxy::tcp(&agent), "tcp") };
            let name = format!("f{round}");
            // After the handshakes: a flipped bit in a handshake ends the attempt, which another test covers.
            proxy.mark(60_000 + seeded.below(5 * MIB as u64), Reaction::Flip);
            let outcome = site.copy(&agent).args(["--via", via, "--lanes", "1", "f"]).arg(proxy.url(&name)).succeed();
            assert_eq!(proxy.marks_reached(), 1);
            // QUIC drops the packet; a TCP lane ends.
            assert!(udp || outcome.count("lane_down") > 0, "{}", outcome.describe());
            assert_same_file(&site.local().join("f"), &site.root().join(&name));
        }
    });
}

#[test]
fn a_flipped_bit_in_a_handshake_lets_nothing_through() {
    let site = site_with(3, MIB);
    let agent = site.agent();
    for place in [20, 300, 700, 1100] {
        let proxy = ChaosProxy::tcp(&agent);
        proxy.mark(place, Reaction::Flip);
        let outcome = site.copy(&agent).args(["--via", "tcp", "--lanes", "1", "f"]).arg(proxy.url("f")).run();
        match outcome.code {
            // The flipped bit was after the handshake, and the client dialled the lane again.
            Some(0) => assert_same_file(&site.local().join("f"), &site.root().join("f")),
            Some(5 | 6) => assert!(!site.root().join("f").exists()),
            _ => panic!("{}", outcome.describe()),
        }
        let _ = fs::remove_file(site.root().join("f"));
    }
}

#[test]
fn a_first_connection_that_is_cut_in_the_handshake_is_dialled_again() {
    let site = site_with(3, MIB);
    let agent = site.agent();
    let proxy = ChaosProxy::tcp(&agent);
    proxy.mark(100, Reaction::Cut);
    let copied = site.copy(&agent).args(["--via", "tcp", "--lanes", "1", "f"]).arg(proxy.url("f")).succeed();
    assert_eq!(proxy.marks_reached(), 1);
    copied.says("the connection during the handshake; try 2 of 4 in ");
    assert_same_file(&site.local().join("f"), &site.root().join("f"));
    // All connections are cut: the client reports the number of tries and ends.
    proxy.mark(100, Reaction::Shut);
    let failed = site.copy(&agent).args(["--via", "tcp", "f"]).arg(proxy.url("g")).run().expect(5);
    failed.says("try 4 of 4 in ");
}

#[test]
fn an_agent_that_is_not_trusted_is_dialled_once() {
    let site = site_with(3, MIB);
    let agent = site.agent();
    let copy = |via| site.bare_copy().args(["--via", via, "f"]).arg(agent.url("f")).run().expect(6);
    for via in ["tcp", "quic"] {
        assert!(!copy(via).text().contains("try 2 of"), "a refusal is final");
    }
}

#[test]
fn an_outage_of_ten_seconds_costs_ten_seconds_and_no_byte() {
    let site = site_with(4, 24 * MIB);
    let agent = site.agent();
    for (via, proxy) in [("tcp", ChaosProxy::tcp(&agent)), ("quic", ChaosProxy::udp(&agent))] {
        proxy.mark(10 * MIB as u64, Reaction::Hold);
        let copying = site.copy(&agent).args(["--via", via, "--rate", "200Mbit", "f"]).arg(proxy.url(via)).start();
        wait_until("the outage", || proxy.marks_reached() == 1);
        let dark = Instant::now();
        wait_until("the end of the outage", || dark.elapsed() >= Duration::from_secs(10));
        proxy.release();
        copying.finish().expect(0);
        assert_same_file(&site.local().join("f"), &site.root().join(via));
    }
}

#[test]
fn an_outage_in_the_lab_is_survived_by_both_transports() {
    if !is_root() || !Path::new("/dev/net/tun").exists() {
        println!("skipped: the lab needs root and /dev/net/tun");
        return;
    }
    for via in ["tcp", "quic"] {
        let model = LinkModel::clean(BitRate::megabits(50), Duration::from_millis(100));
        let name = format!("e2e-outage-{via}-{}", std::process::id());
        let lab = Lab::start(&model, &LabOptions { name: Some(name), ..LabOptions::default() }).unwrap();
        let site = site_with(5, 20 * MIB);
        let root = site.root();
        let listen = format!("{}:0", lab.host_b().address());
        let flags = ["--root".as_ref(), root.as_os_str(), "--authorize-any".as_ref()];
        let agent = site.agent_by(lab.host_b().command(BINARY), &listen, &flags);
        let mut copy = site.copy_by(lab.host_a().command(BINARY));
        let copying = copy
            .args(["--trust", &agent.fingerprint, "--via", via, "--rate", "50Mbit", "f"])
            .arg(agent.url("f"))
            .start();
        // The router has not published counters yet when the lab starts.
        let forward = || lab.counters().networks.first().map(|network| network.forward).unwrap_or_default();
        wait_until("data on the path", || forward().carried_bytes > 5 * MIB as u64);
        lab.cut(0);
        let dark = Instant::now();
        wait_until("the end of the outage", || dark.elapsed() >= Duration::from_secs(10));
        assert!(forward().dropped.outage > 0, "the sender went on for a round trip at least");
        lab.connect(0);
        copying.finish().expect(0);
        assert_same_file(&site.local().join("f"), &site.root().join("f"));
        drop(agent);
        lab.finish().unwrap();
    }
}

/// Small file system; unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts a file system of this size; `None` without the permission to mount.
    fn mount(at: PathBuf, mebibytes: u32) -> Option<Self> {
        let size = format!("size={mebibytes}m");
        let mounted = is_root()
            && Command::new("mount")
                .args(["-t", "tmpfs", "-o", &size, "sterna-e2e"])
                .arg(&at)
                .status()
                .unwrap()
                .success();
        if !mounted {
            println!("skipped: mounting a small disk needs root");
        }
        mounted.then_some(Self(at))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazy, because an agent may still have open files there.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_file_above_the_size_limit_of_the_agent_fails_alone() {
    let site = site_with(5, 2 * MIB);
    std::fs::write(site.local().join("small"), b"small").unwrap();
    let mut limited = Command::new("prlimit");
    limited.args(["--fsize=1000000", BINARY]);
    let root = site.root();
    let agent =
        site.agent_by(limited, "127.0.0.1:0", &["--root".as_ref(), root.as_os_str(), "--authorize-any".as_ref()]);
    // The kernel's signal for such a write would end the agent with all its sessions.
    let outcome = site.copy(&agent).args(["--overwrite", "always", "f", "small"]).arg(agent.url("")).run();
    outcome.says("File too large");
    assert_same_file(&site.local().join("small"), &site.root().join("small"));
    assert!(!site.root().join("f").exists());
}

#[test]
fn a_full_disk_is_said_before_a_byte_is_sent() {
    let site = site_with(6, 12 * MIB);
    let Some(_disk) = SmallDisk::mount(site.root(), 8) else { return };
    let agent = site.agent();
    let outcome = site.copy(&agent).arg("f").arg(agent.url("f")).run().expect(4);
    outcome.says("needs");
    assert_eq!(fs::read_dir(site.root()).unwrap().count(), 0);
}

#[test]
fn a_disk_that_fills_up_on_the_way_fails_those_files_and_no_others() {
    let site = Site::new();
    // Each large file fits when its space is checked, but not all of them. Small files find no space when they are
    // written.
    for index in 0..4 {
        write(&site.local().join(format!("t/large{index}")), &Seeded::new(index).bytes(4 * MIB));
    }
    for index in 0..100 {
        write(&site.local().join(format!("t/small{index}")), &Seeded::new(index).bytes(30_000));
    }
    let Some(disk) = SmallDisk::mount(site.root(), 10) else { return };
    let agent = site.agent();
    let outcome = site.copy(&agent).arg("t").arg(agent.url("t")).run().expect(1);
    assert_eq!(outcome.summary()["failed"].as_u64().unwrap() + outcome.summary()["copied"].as_u64().unwrap(), 104);
    outcome.says("no_space");
    for item in fs::read_dir(site.root().join("t")).unwrap() {
        let path = item.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if !name.starts_with(".sterna-") {
            assert_same_file(&site.local().join("t").join(name), &path);
        }
    }
    // With enough space, the same command resumes.
    let bigger = Command::new("mount").args(["-o", "remount,size=40m"]).arg(&disk.0).status().unwrap();
    assert!(bigger.success());
    site.copy(&agent).args(["t/."]).arg(agent.url("t")).succeed();
    assert_same_tree(&site.local().join("t"), &site.root().join("t"));
}

#[test]
fn a_full_disk_at_the_client_is_an_error_of_the_destination() {
    let site = Site::new();
    write(&site.root().join("f"), &Seeded::new(7).bytes(12 * MIB));
    fs::create_dir(site.local().join("small")).unwrap();
    let Some(_disk) = SmallDisk::mount(site.local().join("small"), 8) else { return };
    let agent = site.agent();
    site.copy(&agent).arg(agent.url("f")).arg("small/f").run().expect(4).says("needs");
}

#[test]
fn a_read_only_destination_is_an_error_of_the_destination() {
    let site = site_with(8, 2 * MIB);
    write(&site.local().join("small"), b"small");
    let Some(disk) = SmallDisk::mount(site.root(), 8) else { return };
    assert!(Command::new("mount").args(["-o", "remount,ro"]).arg(&disk.0).status().unwrap().success());
    let agent = site.agent();
    for name in ["f", "small"] {
        site.copy(&agent).arg(name).arg(agent.url(name)).run().expect(4);
    }
    site.copy(&agent).args(["f", "small"]).arg(agent.url("new/")).run().expect(4);
}

#[test]
fn a_directory_without_write_permission_is_an_error_of_the_destination() {
    if is_root() {
        println!("skipped: nothing is forbidden to root");
        return;
    }
    let site = site_with(9, 2 * MIB);
    let agent = site.agent();
    set_mode(&site.root(), 0o555);
    site.copy(&agent).arg("f").arg(agent.url("f")).run().expect(4);
    set_mode(&site.root(), 0o755);
}

#[test]
fn more_files_than_descriptors_arrive_at_either_end() {
    let site = Site::new();
    let mut seeded = Seeded::new(11);
    for index in 0..300 {
        // Smallest size that is sent in blocks.
        write(&site.local().join(format!("t/f{index}")), &seeded.bytes((256 << 10) + 1));
    }
    let root = site.root();
    let flags = ["--root".as_ref(), root.as_os_str(), "--authorize-any".as_ref()];
    let agent = site.agent_by(with_descriptors(200), "127.0.0.1:0", &flags);
    for via in ["tcp", "quic"] {
        let mut push = site.copy_by(with_descriptors(200));
        push.args(["--trust", &agent.fingerprint, "--via", via, "t"]).arg(agent.url(via)).succeed();
        assert_same_tree(&site.local().join("t"), &site.root().join(via));
        let mut pull = site.copy_by(with_descriptors(200));
        pull.args(["--trust", &agent.fingerprint, "--via", via]).arg(agent.url(via)).arg("back").succeed();
        assert_same_tree(&site.local().join("t"), &site.local().join("back"));
        fs::remove_dir_all(site.local().join("back")).unwrap();
    }
}

#[test]
fn files_that_another_session_writes_hold_up_no_other() {
    let site = Site::new();
    let names = ["f1", "f2", "f3", "f4"];
    for (seed, name) in names.into_iter().enumerate() {
        write(&site.local().join(name), &Seeded::new(seed as u64).bytes(2 * MIB));
    }
    write(&site.local().join("z"), &Seeded::new(9).bytes(2 * MIB));
    let agent = site.agent();
    let proxy = ChaosProxy::tcp(&agent);
    proxy.mark(MIB as u64, Reaction::Hold);
    let slow = site.copy(&agent).args(["--via", "tcp", "--lanes", "1"]).args(names).arg(proxy.url("")).start();
    wait_until("every file being written", || {
        let items = fs::read_dir(site.root()).unwrap().map(|item| item.unwrap().path());
        items.filter(|path| path.extension() == Some("part".as_ref())).count() == names.len()
    });
    let mut other =
        site.copy(&agent).args(["--via", "tcp", "--lanes", "2"]).args(names).arg("z").arg(agent.url("")).start();
    other.wait_for("z", |event| event["event"] == "file" && event["path"] == "z");
    proxy.release();
    slow.finish().expect(0);
    // The second copy found the files complete, or copied them.
    other.finish().expect(0);
    for name in names.into_iter().chain(["z"]) {
        assert_same_file(&site.local().join(name), &site.root().join(name));
    }
}

#[test]
fn two_copies_to_one_destination_leave_one_of_them_whole() {
    with_seed("two_copies_to_one_destination_leave_one_of_them_whole", 10, |seed| {
        for size in [100_000, 6 * MIB] {
            for round in 0..4 {
                let site = Site::new();
                let mut seeded = Seeded::new(seed + round);
                let versions = [seeded.bytes(size), seeded.bytes(size)];
                write(&site.local().join("a"), &versions[0]);
                write(&site.local().join("b"), &versions[1]);
                let agent = site.agent();
                let copies = ["a", "b"].map(|name| {
                    site.copy(&agent).args(["--overwrite", "always", name]).arg(agent.url("target")).start()
                });
                let outcomes = copies.map(|copy| copy.finish());
                for outcome in &outcomes {
                    // Each copy waited, or names the other session in its error.
                    match outcome.code {
                        Some(0) => {}
                        Some(4) => drop(outcome.says("another session")),
                        _ => panic!("{}", outcome.describe()),
                    }
                }
                assert!(outcomes.iter().any(|outcome| outcome.code == Some(0)));
                let result = fs::read(site.root().join("target")).unwrap();
                assert!(versions.contains(&result), "the result is neither of the two");
                assert_eq!(fs::read_dir(site.root()).unwrap().count(), 1, "hidden files are left");
            }
        }
    });
}

#[test]
fn an_interrupt_ends_a_client_whose_agent_is_stuck() {
    // More data than passes before the test freezes the agent, on a host with any load.
    let site = site_with(12, 192 * MIB);
    let agent = site.agent();
    for via in ["tcp", "quic"] {
        let flags = ["--via", via, "--lanes", "4", "--rate", "100Mbit", "f"];
        let mut copying = site.copy(&agent).args(flags).arg(agent.url(via)).start();
        let progress = |event: &serde_json::Value| {
            (event["event"] == "progress" && event["bytes_done"].as_u64() > Some(0))
                .then(|| event["elapsed_s"].as_f64())
        };
        let started = progress(&copying.wait_for("data", |event| progress(event).is_some())).flatten().unwrap();
        agent.freeze();
        // Waits until kernel buffers are full and all lanes are blocked.
        copying.wait_for("some seconds more", |event| progress(event).flatten() > Some(started + 3.0));
        copying.interrupt();
        copying.finish().expect(130);
        agent.thaw();
    }
}

#[test]
fn a_client_that_is_stuck_gives_its_file_up_to_the_next_run() {
    let site = site_with(13, 40 * MIB);
    let agent = site.agent();
    let mut copying = site.copy(&agent).args(["--via", "tcp", "--rate", "100Mbit", "f"]).arg(agent.url("f")).start();
    copying.wait_for("data", |event| event["event"] == "progress" && event["bytes_done"].as_u64() > Some(0));
    copying.freeze();
    site.copy(&agent).arg("f").arg(agent.url("f")).succeed();
    assert_same_file(&site.local().join("f"), &site.root().join("f"));
}
