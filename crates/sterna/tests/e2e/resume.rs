//! Tests resume: which data is sent again after a stop, and how changes of files are detected.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use sterna_proto::journal::{HEADER_BYTES, JournalHeader, RECORD_BYTES};
use sterna_seeded::with_seed;

use crate::chaos_proxy::{ChaosProxy, Reaction};
use crate::site::{Agent, CopyCommand, Site, held_to_modes, wait_until};
use crate::tree::{MIB, Seeded, assert_same_file, set_mode, set_mtime, write};

/// Size of the file whose copy is stopped.
const BYTES: usize = 24 * MIB;

/// Most bytes that can be sent again, besides blocks that no journal has. Reason: the buffers of kernels, proxy and
/// lanes between the two ends. The sender also sends data before it receives the state of the receiver.
const IN_FLIGHT_BYTES: u64 = 8 * MIB as u64;

/// Rate of a copy that resumes. Reason: the sender sends data before it receives the state of the receiver. At this
/// rate a receiver on a busy host has 1.6 s before that data exceeds [`IN_FLIGHT_BYTES`].
const RESUME_RATE: [&str; 2] = ["--rate", "40Mbit"];

/// Copy of one file through a proxy, with the paths of source and target.
struct Crossing {
    site: Site,
    agent: Agent,
    proxy: ChaosProxy,
    push: bool,
    source: PathBuf,
    target: PathBuf,
}

impl Crossing {
    fn new(seed: u64, push: bool) -> Self {
        let site = Site::new();
        let (source, target) = match push {
            true => (site.local().join("f"), site.root().join("f")),
            false => (site.root().join("f"), site.local().join("f")),
        };
        write(&source, &Seeded::new(seed).bytes(BYTES));
        let agent = site.agent();
        let proxy = ChaosProxy::tcp(&agent);
        Self { site, agent, proxy, push, source, target }
    }

    fn copy(&self) -> CopyCommand {
        let mut copy = self.site.copy(&self.agent);
        copy.args(["--via", "tcp", "--lanes", "1"]);
        match self.push {
            true => copy.arg("f").arg(self.proxy.url("f")),
            false => copy.arg(self.proxy.url("f")).arg("f"),
        };
        copy
    }

    /// Runs until about half of the file has passed and most of that half is in the journal. Then kills the receiver.
    fn stop_half_way(&mut self) {
        self.proxy.mark(BYTES as u64 / 2, Reaction::Hold);
        let mut copying = self.copy().start();
        let directory = self.target.parent().unwrap().to_owned();
        wait_until("a journal of four blocks", || {
            journal(&directory).is_some_and(|file| journaled_bytes(&file) >= 4 * MIB as u64)
        });
        match self.push {
            true => self.agent.kill(),
            false => copying.kill(),
        }
        copying.kill();
        self.proxy.release();
        if self.push {
            self.agent = self.site.agent_at(&self.agent.addr.to_string());
        }
        assert!(!self.target.exists(), "half a file has its name");
    }

    fn hidden(&self, ending: &str) -> PathBuf {
        hidden(self.target.parent().unwrap(), ending).expect("something was left for the next run")
    }

    fn passed(&self) -> u64 {
        let (up, down) = self.proxy.passed();
        up + down
    }

    fn check_arrival(&self) {
        assert_same_file(&self.source, &self.target);
        let directory = self.target.parent().unwrap();
        assert!(
            hidden(directory, ".part").is_none() && hidden(directory, ".journal").is_none(),
            "hidden files are left"
        );
    }
}

fn hidden(directory: &Path, ending: &str) -> Option<PathBuf> {
    let names = fs::read_dir(directory).unwrap().map(|item| item.unwrap().path());
    names.into_iter().find(|path| path.to_string_lossy().ends_with(ending))
}

fn journal(directory: &Path) -> Option<PathBuf> {
    hidden(directory, ".journal")
}

/// Returns the bytes of the blocks in a journal.
fn journaled_bytes(path: &Path) -> u64 {
    let bytes = fs::read(path).unwrap_or_default();
    let Ok(header) = JournalHeader::decode(&bytes) else { return 0 };
    let (codec, blocks) = (header.records(), header.blocks());
    let records = bytes[HEADER_BYTES..].chunks_exact(RECORD_BYTES).filter_map(|record| codec.decode(record));
    records.map(|record| blocks.length(record.index)).sum()
}

/// Returns the offset of the first block in a journal.
fn journaled_block(path: &Path) -> u64 {
    let bytes = fs::read(path).unwrap();
    let header = JournalHeader::decode(&bytes).unwrap();
    let record = header.records().decode(&bytes[HEADER_BYTES..HEADER_BYTES + RECORD_BYTES]).unwrap();
    header.blocks().offset(record.index)
}

/// Inverts one bit of a file.
fn flip_bit(path: &Path, offset: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
}

#[test]
fn a_second_run_sends_only_what_no_journal_names() {
    with_seed("a_second_run_sends_only_what_no_journal_names", 1, |seed| {
        for push in [true, false] {
            let mut crossing = Crossing::new(seed, push);
            crossing.stop_half_way();
            let kept = journaled_bytes(&crossing.hidden(".journal"));
            let before = crossing.passed();
            crossing.copy().args(RESUME_RATE).succeed();
            let sent = crossing.passed() - before;
            let most = BYTES as u64 - kept + IN_FLIGHT_BYTES;
            assert!(sent <= most, "push {push}: {sent} bytes passed, with {kept} of {BYTES} in the journal");
            crossing.check_arrival();
        }
    });
}

#[test]
fn a_file_that_a_killed_client_still_holds_waits_and_is_not_sent_in_vain() {
    let site = Site::new();
    let (source, target) = (site.local().join("f"), site.root().join("f"));
    write(&source, &Seeded::new(21).bytes(BYTES));
    let agent = site.agent();
    let proxy = ChaosProxy::udp(&agent);
    // A killed client sends no close over QUIC, so its session counts as abandoned only after some seconds.
    let copy = || {
        let mut copy = site.copy(&agent);
        copy.args(["--via", "quic", "--rate", "40Mbit", "f"]).arg(proxy.url("f"));
        copy
    };
    // Nothing passes after the mark, so that the file cannot become whole before the journal is looked at.
    proxy.mark(BYTES as u64 * 3 / 4, Reaction::Hold);
    let mut killed = copy().start();
    let directory = site.root();
    wait_until("a journal of half the file", || {
        journal(&directory).is_some_and(|file| journaled_bytes(&file) >= BYTES as u64 / 2)
    });
    killed.kill();
    proxy.release();
    let kept = journaled_bytes(&journal(&directory).unwrap());
    let before = proxy.passed();
    let outcome = copy().run().expect(0);
    let after = proxy.passed();
    let sent = after.0 - before.0 + after.1 - before.1;
    assert_same_file(&source, &target);
    outcome.says("held by another session; waiting");
    assert!(sent < BYTES as u64 - kept + IN_FLIGHT_BYTES, "{sent} bytes were sent, and {kept} were there");
    assert!(outcome.summary()["bytes_held"].as_u64() >= Some(kept - IN_FLIGHT_BYTES), "{}", outcome.describe());
}

#[test]
fn what_a_killed_client_left_under_way_never_replaces_what_came_later() {
    with_seed("what_a_killed_client_left_under_way_never_replaces_what_came_later", 3, |seed| {
        let site = Site::new();
        let mut agent = site.agent();
        let tree = site.local().join("t");
        let name = |index: usize| format!("f{index:04}");
        for index in 0..3000 {
            write(&tree.join(name(index)), &Seeded::new(seed + index as u64).bytes(1000));
        }
        let mut killed = site.copy(&agent).arg("t").arg(agent.url("")).start();
        let there = |index: usize| site.root().join("t").join(name(index)).exists();
        wait_until("the first files", || (0..3000).any(there));
        killed.kill();
        // Replaces some files whose bytes are at the agent already.
        let newer: Vec<usize> = (0..3000).filter(|index| !there(*index)).take(300).step_by(5).collect();
        for index in &newer {
            write(&tree.join(name(*index)), b"newer");
        }
        if newer.is_empty() {
            // All files were published before the kill.
            return;
        }
        let paths = newer.iter().map(|index| format!("t/{}", name(*index)));
        site.copy(&agent).args(paths).arg(agent.url("t/")).succeed();
        // Orderly end: files in progress are complete or given up.
        agent.terminate();
        for index in newer {
            assert_eq!(fs::read(site.root().join("t").join(name(index))).unwrap(), b"newer", "{}", name(index));
        }
    });
}

#[test]
fn a_client_that_is_stopped_leaves_no_file_held() {
    let site = Site::new();
    write(&site.local().join("f"), &Seeded::new(22).bytes(BYTES));
    let agent = site.agent();
    let proxy = ChaosProxy::udp(&agent);
    let directory = site.root();
    // The lanes have more data than the path carries, so the last control messages queue behind the data.
    for round in 0..4 {
        let target = format!("f{round}");
        let copy = || {
            let mut copy = site.copy(&agent);
            copy.args(["--via", "quic", "--rate", "1Gbit", "f"]).arg(proxy.url(&target));
            copy
        };
        let marks = proxy.marks_reached();
        proxy.mark(BYTES as u64 / 4, Reaction::Pass);
        let mut stopped = copy().start();
        wait_until("a quarter of the file", || proxy.marks_reached() > marks);
        wait_until("the file at the agent", || {
            hidden(&directory, ".part").is_some() || directory.join(&target).exists()
        });
        stopped.interrupt();
        let code = stopped.finish().code;
        assert!(matches!(code, Some(0 | 130)), "{code:?}");
        // The stop reaches the agent, or the end of the lanes does: it does not wait for the client to come back.
        let is_free = |part: PathBuf| File::open(part).map_or(true, |file| file.try_lock().is_ok());
        wait_until("the release of the file", || hidden(&directory, ".part").is_none_or(is_free));
        let again = copy().succeed();
        assert!(!again.text().contains("held by another session"), "{}", again.describe());
    }
}

#[test]
fn a_flipped_bit_in_a_record_of_the_journal_costs_its_block() {
    let mut crossing = Crossing::new(2, true);
    crossing.stop_half_way();
    let journal = crossing.hidden(".journal");
    flip_bit(&journal, (HEADER_BYTES + RECORD_BYTES + 20) as u64);
    crossing.copy().succeed();
    crossing.check_arrival();
}

#[test]
fn a_flipped_bit_in_the_header_of_the_journal_starts_the_file_over_and_says_so() {
    let mut crossing = Crossing::new(3, true);
    crossing.stop_half_way();
    flip_bit(&crossing.hidden(".journal"), 20);
    crossing.copy().succeed().says("starts over");
    crossing.check_arrival();
}

#[test]
fn blocks_that_were_cut_from_a_part_file_are_sent_again_with_a_message() {
    let mut crossing = Crossing::new(4, true);
    crossing.stop_half_way();
    File::options().write(true).open(crossing.hidden(".part")).unwrap().set_len(MIB as u64 / 2).unwrap();
    crossing.copy().succeed().says("cut its unfinished data to 524288 bytes");
    crossing.check_arrival();
}

#[test]
fn a_flipped_bit_in_data_that_the_journal_names_costs_its_block_and_is_reported() {
    for push in [true, false] {
        let mut crossing = Crossing::new(5, push);
        crossing.stop_half_way();
        flip_bit(&crossing.hidden(".part"), journaled_block(&crossing.hidden(".journal")) + 100);
        let before = crossing.passed();
        let digest = blake3::hash(&fs::read(&crossing.source).unwrap()).to_hex();
        crossing
            .copy()
            .arg("--expect")
            .arg(format!("blake3:{digest}"))
            .succeed()
            .says("damaged on disk and are sent again: 1");
        assert!(crossing.passed() - before < BYTES as u64, "everything was sent again");
        crossing.check_arrival();
    }
}

#[test]
fn a_source_that_changed_between_two_runs_starts_over_and_says_so() {
    for push in [true, false] {
        let mut crossing = Crossing::new(6, push);
        crossing.stop_half_way();
        write(&crossing.source, &Seeded::new(60).bytes(BYTES));
        set_mtime(&crossing.source, 1_700_000_000, 5);
        crossing.copy().succeed().says("not the version");
        crossing.check_arrival();
    }
}

#[test]
fn a_source_that_changed_under_its_old_size_and_time_starts_over_and_says_so() {
    for push in [true, false] {
        let mut crossing = Crossing::new(13, push);
        crossing.stop_half_way();
        let time = fs::metadata(&crossing.source).unwrap().modified().unwrap();
        flip_bit(&crossing.source, 100);
        File::options().write(true).open(&crossing.source).unwrap().set_modified(time).unwrap();
        crossing.copy().succeed().says("not the version");
        crossing.check_arrival();
    }
}

#[test]
fn a_source_that_is_cut_while_it_is_read_fails_and_is_not_published() {
    for push in [true, false] {
        let crossing = Crossing::new(7, push);
        crossing.proxy.mark(BYTES as u64 / 3, Reaction::Hold);
        let copying = crossing.copy().start();
        wait_until("a third of the file", || crossing.proxy.marks_reached() == 1);
        File::options().write(true).open(&crossing.source).unwrap().set_len(BYTES as u64 / 2).unwrap();
        crossing.proxy.release();
        copying.finish().expect(3).says("changed");
        assert!(!crossing.target.exists());
        // The next run copies the current version of the file.
        crossing.copy().succeed();
        crossing.check_arrival();
    }
}

#[test]
fn a_source_that_is_written_while_it_is_read_fails_and_is_not_published() {
    let crossing = Crossing::new(8, true);
    crossing.proxy.mark(BYTES as u64 / 3, Reaction::Hold);
    let copying = crossing.copy().start();
    wait_until("a third of the file", || crossing.proxy.marks_reached() == 1);
    flip_bit(&crossing.source, BYTES as u64 - 100);
    crossing.proxy.release();
    copying.finish().expect(3).says("changed");
    assert!(!crossing.target.exists());
    crossing.copy().succeed();
    crossing.check_arrival();
}

#[test]
fn ctrl_c_ends_with_130_and_the_next_run_goes_on() {
    for push in [true, false] {
        let crossing = Crossing::new(9, push);
        crossing.proxy.mark(BYTES as u64 / 2, Reaction::Pass);
        let mut copying = crossing.copy().args(["--rate", "200Mbit"]).start();
        wait_until("half of the file", || crossing.proxy.marks_reached() == 1);
        copying.interrupt();
        copying.finish().expect(130).says("to resume it");
        assert!(!crossing.target.exists());
        let before = crossing.passed();
        crossing.copy().args(RESUME_RATE).succeed();
        let sent = crossing.passed() - before;
        assert!(sent <= BYTES as u64 / 2 + IN_FLIGHT_BYTES, "push {push}: {sent} bytes passed again");
        crossing.check_arrival();
    }
}

#[test]
fn an_agent_that_is_stopped_in_order_keeps_all_and_the_client_goes_on() {
    for push in [true, false] {
        let mut crossing = Crossing::new(10, push);
        crossing.proxy.mark(BYTES as u64 / 2, Reaction::Pass);
        let mut copying = crossing.copy().args(RESUME_RATE).start();
        wait_until("half of the file", || crossing.proxy.marks_reached() == 1);
        assert!(crossing.agent.terminate().success());
        crossing.agent = crossing.site.agent_at(&crossing.agent.addr.to_string());
        copying.wait_for("the new agent", |event| event["event"] == "restarted");
        copying.finish().expect(0);
        assert!(crossing.passed() <= BYTES as u64 + IN_FLIGHT_BYTES, "{} bytes passed", crossing.passed());
        crossing.check_arrival();
    }
}

#[test]
fn an_agent_that_is_stopped_says_so() {
    for (via, push) in [("tcp", true), ("tcp", false), ("quic", true), ("quic", false)] {
        let site = Site::new();
        let (here, there) = (site.local().join("f"), site.root().join("f"));
        write(if push { &here } else { &there }, &Seeded::new(11).bytes(BYTES));
        let mut agent = site.agent();
        let mut copy = site.copy(&agent);
        copy.args(["--via", via, "--rate", "10Mbit"]);
        let (from, to) = if push { ("f".to_owned(), agent.url("")) } else { (agent.url("f"), ".".to_owned()) };
        let mut copying = copy.arg(from).arg(to).start();
        copying.wait_for("a lane", |event| event["event"] == "lane_up");
        assert!(agent.terminate().success());
        copying.wait_for("the reason", |event| {
            let reason = event["reason"].as_str().unwrap_or_default();
            event["event"] == "lane_down" && reason.contains("the agent is stopping")
        });
        let _again = site.agent_at(&agent.addr.to_string());
        copying.wait_for("the new agent", |event| event["event"] == "restarted");
        copying.interrupt();
        copying.finish().expect(130);
    }
}

#[test]
fn a_read_only_directory_can_be_written_until_all_its_files_have_come() {
    for push in [true, false] {
        let site = Site::new();
        let (source, target) = match push {
            true => (site.local().join("d"), site.root().join("d")),
            false => (site.root().join("d"), site.local().join("d")),
        };
        write(&source.join("f"), &Seeded::new(12).bytes(BYTES));
        set_mode(&source, 0o555);
        let mut agent = site.agent();
        let proxy = ChaosProxy::tcp(&agent);
        let copy = |agent: &Agent| {
            let mut copy = site.copy(agent);
            copy.args(["--via", "tcp", "--rate", "200Mbit"]);
            match push {
                true => copy.arg("d").arg(proxy.url("")),
                false => copy.arg(proxy.url("d")).arg("."),
            };
            copy.start()
        };
        proxy.mark(BYTES as u64 / 2, Reaction::Pass);
        let mut copying = copy(&agent);
        wait_until("half of the file", || proxy.marks_reached() == 1);
        copying.interrupt();
        copying.finish().expect(130);
        // After this, the session of the agent has ended too.
        assert!(agent.terminate().success());
        assert_ne!(mode(&target) & 0o200, 0, "push {push}: the directory is closed and its file is not there");
        let agent = site.agent_at(&agent.addr.to_string());
        copy(&agent).finish().expect(0);
        wait_until("the mode of the directory", || mode(&target) == 0o555);
        assert_same_file(&source.join("f"), &target.join("f"));
        [source, target].iter().for_each(|directory| set_mode(directory, 0o755));
    }
}

#[test]
fn a_read_only_directory_that_lacks_a_file_can_be_written_by_the_next_run() {
    for push in [true, false] {
        let site = Site::new();
        let (source, target) = match push {
            true => (site.local().join("d"), site.root().join("d")),
            false => (site.root().join("d"), site.local().join("d")),
        };
        let closed = [source.join("small"), source.join("large")];
        write(&source.join("f"), b"bytes");
        write(&closed[0], &Seeded::new(14).bytes(1000));
        write(&closed[1], &Seeded::new(15).bytes(2 * MIB));
        closed.iter().for_each(|file| set_mode(file, 0));
        set_mode(&source, 0o555);
        let root = site.root();
        let agent = site.agent_by(
            held_to_modes(),
            "127.0.0.1:0",
            &["--root".as_ref(), root.as_ref(), "--authorize-any".as_ref()],
        );
        let copy = || {
            let mut copy = site.copy_by(held_to_modes());
            copy.arg("--trust").arg(&agent.fingerprint);
            match push {
                true => copy.arg("d").arg(agent.url("")),
                false => copy.arg(agent.url("d")).arg("."),
            };
            copy.run()
        };
        copy().expect(1);
        assert_eq!(mode(&target), 0o755, "push {push}");
        closed.iter().for_each(|file| set_mode(file, 0o644));
        copy().expect(0);
        assert_eq!(mode(&target), 0o555, "push {push}");
        closed.iter().for_each(|file| assert_same_file(file, &target.join(file.file_name().unwrap())));
        [source, target].iter().for_each(|directory| set_mode(directory, 0o755));
    }
}

#[test]
fn a_fifo_keeps_no_directory_open() {
    for push in [true, false] {
        let site = Site::new();
        let (source, target) = match push {
            true => (site.local().join("d"), site.root().join("d")),
            false => (site.root().join("d"), site.local().join("d")),
        };
        write(&source.join("f"), b"bytes");
        assert!(Command::new("mkfifo").arg(source.join("fifo")).status().unwrap().success());
        set_mode(&source, 0o555);
        let agent = site.agent();
        let mut copy = site.copy(&agent);
        match push {
            true => copy.arg("d").arg(agent.url("")),
            false => copy.arg(agent.url("d")).arg("."),
        };
        copy.run().expect(1);
        assert_same_file(&source.join("f"), &target.join("f"));
        assert_eq!(mode(&target), 0o555, "push {push}");
        [source, target].iter().for_each(|directory| set_mode(directory, 0o755));
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}
