//! Tests growing files, spools, and the deletion or move of sources that have arrived.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use rustix::process::{Pid, Signal};

use crate::site::{Agent, BINARY, CopyCommand, Copying, Site, wait_until};
use crate::tree::{MIB, Seeded, assert_same_file, write};

/// Idle time that no test waits for. With an explicit idle time, closing a file does not end it.
const NEVER: &str = "--follow=1h";

/// Process that writes given bytes to a file, and keeps the file open meanwhile.
struct Capture {
    child: Child,
    pipe: Option<ChildStdin>,
    path: PathBuf,
    written: u64,
}

impl Capture {
    fn start(path: PathBuf) -> Self {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let file = File::create(&path).unwrap();
        let mut command = Command::new("cat");
        let mut child = command.stdin(Stdio::piped()).stdout(file).spawn().expect("start a writer");
        drop(command);
        let pipe = child.stdin.take();
        Self { child, pipe, path, written: 0 }
    }

    /// Writes `bytes`, and returns when the file has them.
    fn write(&mut self, bytes: &[u8]) {
        self.pipe.as_mut().unwrap().write_all(bytes).unwrap();
        self.written += bytes.len() as u64;
        wait_until("the writer's turn", || fs::metadata(&self.path).unwrap().len() == self.written);
    }

    /// Ends the writer, which closes the file.
    fn close(mut self) {
        drop(self.pipe.take());
        self.child.wait().unwrap();
    }

    /// Ends the writer, then creates the marker.
    fn end(self) {
        let marker = marker_of(&self.path);
        self.close();
        write(&marker, b"");
    }
}

/// Returns the file path of the marker of a file.
fn marker_of(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}.done", path.display()))
}

/// Returns a copy of `source`, in `local`, to the root of the agent.
fn follow(site: &Site, agent: &Agent, flags: &[&str], source: &str) -> CopyCommand {
    let mut copy = site.copy(agent);
    copy.args(flags).arg(source).arg(agent.url(""));
    copy
}

/// Returns true if an unpublished file in `directory` has the same bytes as `source`.
fn has_hidden(directory: &Path, source: &Path) -> bool {
    let bytes = fs::read(source).unwrap();
    let hidden = fs::read_dir(directory).unwrap().map(|item| item.unwrap());
    let parts = hidden.filter(|item| item.file_name().to_string_lossy().ends_with(".part"));
    parts.filter_map(|item| fs::read(item.path()).ok()).any(|part| part == bytes)
}

/// Returns true if a journal in `directory` has at least `blocks` blocks.
fn has_journal(directory: &Path, blocks: u64) -> bool {
    let hidden = fs::read_dir(directory).unwrap().map(|item| item.unwrap());
    let journals = hidden.filter(|item| item.file_name().to_string_lossy().ends_with(".journal"));
    let record = sterna_proto::journal::RECORD_BYTES as u64;
    journals.filter_map(|item| item.metadata().ok()).any(|about| about.len() >= blocks * record)
}

#[test]
fn a_file_is_sent_as_it_grows_and_published_when_it_has_ended() {
    let site = Site::new();
    let agent = site.agent();
    let mut seeded = Seeded::new(1);
    let mut capture = Capture::start(site.local().join("capture.dat"));
    capture.write(&seeded.bytes(3 * MIB + 17));
    let copy = follow(&site, &agent, &[NEVER], "capture.dat").start();
    // The file grows while it is followed.
    for blocks in 4..8 {
        capture.write(&seeded.bytes(MIB));
        wait_until("the next block's arrival", || has_journal(&site.root(), blocks));
    }
    // The written part of a block, after which the writer pauses.
    capture.write(&seeded.bytes(1234));
    wait_until("the last byte's arrival", || has_hidden(&site.root(), &capture.path));
    assert!(!site.root().join("capture.dat").exists(), "it has its name before its end");
    let path = capture.path.clone();
    capture.write(&seeded.bytes(1000));
    capture.end();
    let outcome = copy.finish().expect(0);
    assert_same_file(&path, &site.root().join("capture.dat"));
    let digest = blake3::hash(&fs::read(&path).unwrap()).to_hex().to_string();
    assert_eq!(outcome.last("file")["digests"]["blake3"], digest.as_str());
    assert_eq!(outcome.summary()["copied"], 1);
}

#[test]
fn a_file_that_is_followed_ends_when_it_is_closed() {
    let site = Site::new();
    let agent = site.agent();
    let mut capture = Capture::start(site.local().join("capture.dat"));
    capture.write(&Seeded::new(9).bytes(MIB + 17));
    let mut copy = follow(&site, &agent, &["--follow"], "capture.dat").start();
    copy.wait_for("a lane", |event| event["event"] == "lane_up");
    let path = capture.path.clone();
    capture.close();
    copy.finish().expect(0);
    assert_same_file(&path, &site.root().join("capture.dat"));
}

#[test]
fn a_close_does_not_end_a_file_before_the_idle_time_that_was_given() {
    let site = Site::new();
    let agent = site.agent();
    let mut seeded = Seeded::new(10);
    let mut capture = Capture::start(site.local().join("capture.dat"));
    capture.write(&seeded.bytes(10));
    let mut copy = follow(&site, &agent, &[NEVER], "capture.dat").start();
    copy.wait_for("a lane", |event| event["event"] == "lane_up");
    capture.write(&seeded.bytes(MIB + 17));
    let path = capture.path.clone();
    capture.close();
    // The last bytes of an open block travel only if the file stays unchanged for longer than a close would need to end
    // it.
    wait_until("the last byte's arrival", || has_hidden(&site.root(), &path));
    let mut again = File::options().append(true).open(&path).unwrap();
    again.write_all(&seeded.bytes(2 * MIB)).unwrap();
    drop(again);
    wait_until("the last byte's arrival", || has_hidden(&site.root(), &path));
    write(&marker_of(&path), b"");
    copy.finish().expect(0);
    assert_same_file(&path, &site.root().join("capture.dat"));
}

#[test]
fn a_marker_with_content_stays_and_so_does_its_file() {
    let site = Site::new();
    let agent = site.agent();
    let spool = site.local().join("spool");
    write(&spool.join("capture"), b"captured");
    write(&spool.join("capture.done"), b"md5 of it");
    let mut copy = follow(&site, &agent, &[NEVER, "--then", "delete"], "spool/.").start();
    copy.wait_for("word of what stays", |event| event["event"] == "source_left");
    copy.interrupt();
    copy.finish().expect(130).says("capture.done has 9 bytes, which nobody has copied");
    assert_eq!(fs::read(spool.join("capture")).unwrap(), b"captured");
    assert_eq!(fs::read(spool.join("capture.done")).unwrap(), b"md5 of it");
    assert_same_file(&spool.join("capture"), &site.root().join("capture"));
    // An empty marker is deleted with its file.
    write(&spool.join("capture.done"), b"");
    let mut copy = follow(&site, &agent, &[NEVER, "--then", "delete"], "spool/.").start();
    wait_until("both to be deleted", || !spool.join("capture").exists() && !spool.join("capture.done").exists());
    copy.interrupt();
    copy.finish().expect(130);
}

#[test]
fn a_file_that_is_held_open_is_copied_when_it_stays_as_it_is() {
    let site = Site::new();
    let agent = site.agent();
    let mut seeded = Seeded::new(11);
    fs::create_dir(site.root().join("pushed")).unwrap();
    fs::create_dir(site.local().join("pulled")).unwrap();
    // Each file is read twice during the copy, and once more as a whole.
    for (name, length) in [("small", 1000), ("large", 3 * MIB + 5)] {
        let mut here = Capture::start(site.local().join(name));
        here.write(&seeded.bytes(length));
        site.copy(&agent).arg(name).arg(agent.url("pushed/")).succeed();
        assert_same_file(&here.path, &site.root().join("pushed").join(name));
        let outcome = site.copy(&agent).arg(name).arg(agent.url("pushed/")).succeed();
        assert_eq!(outcome.last("file")["outcome"], "up_to_date");
        let mut there = Capture::start(site.root().join("there").join(name));
        there.write(&seeded.bytes(length));
        site.copy(&agent).arg(agent.url(&format!("there/{name}"))).arg("pulled/").succeed();
        assert_same_file(&there.path, &site.local().join("pulled").join(name));
        here.close();
        there.close();
    }
}

#[test]
fn a_growing_file_goes_on_after_kills_of_its_client() {
    let site = Site::new();
    let agent = site.agent();
    let mut seeded = Seeded::new(2);
    let mut capture = Capture::start(site.local().join("capture.dat"));
    capture.write(&seeded.bytes(MIB + 1));
    let mut blocks = 1;
    for _ in 0..3 {
        let mut copy = follow(&site, &agent, &[NEVER], "capture.dat").start();
        copy.wait_for("a lane", |event| event["event"] == "lane_up");
        blocks += 2;
        capture.write(&seeded.bytes(2 * MIB));
        wait_until("a journal of all that is whole", || has_journal(&site.root(), blocks));
        copy.kill();
        assert!(!site.root().join("capture.dat").exists());
    }
    let mut copy = follow(&site, &agent, &[NEVER], "capture.dat").start();
    copy.wait_for("a lane", |event| event["event"] == "lane_up");
    let path = capture.path.clone();
    capture.write(&seeded.bytes(MIB / 2));
    capture.end();
    let outcome = copy.finish().expect(0);
    assert_same_file(&path, &site.root().join("capture.dat"));
    assert!(!outcome.text().contains("starts over"), "{}", outcome.describe());
}

#[test]
fn a_growing_file_goes_on_after_kills_of_its_agent() {
    let site = Site::new();
    let mut agent = site.agent();
    let mut seeded = Seeded::new(3);
    let mut capture = Capture::start(site.local().join("capture.dat"));
    capture.write(&seeded.bytes(10));
    let mut copy = follow(&site, &agent, &[NEVER, "--via", "tcp"], "capture.dat").start();
    copy.wait_for("a lane", |event| event["event"] == "lane_up");
    for kill in 1..4 {
        capture.write(&seeded.bytes(2 * MIB));
        wait_until("a journal of all that is whole", || has_journal(&site.root(), 2 * kill));
        agent.kill();
        capture.write(&seeded.bytes(5));
        agent = site.agent_at(&agent.addr.to_string());
    }
    let path = capture.path.clone();
    capture.end();
    let outcome = copy.finish().expect(0);
    assert_same_file(&path, &site.root().join("capture.dat"));
    assert_eq!(outcome.count("restarted"), 3);
    assert_eq!((&outcome.summary()["copied"], &outcome.summary()["failed"]), (&1.into(), &0.into()));
}

#[test]
fn a_file_ends_by_its_marker_and_by_its_idle_time() {
    let site = Site::new();
    let agent = site.agent();
    let mut seeded = Seeded::new(4);
    let mut marked = Capture::start(site.local().join("marked.dat"));
    marked.write(&seeded.bytes(2 * MIB));
    let copy = follow(&site, &agent, &[NEVER], "marked.dat").start();
    marked.write(&seeded.bytes(MIB / 2));
    write(&site.local().join("marked.dat.done"), b"");
    copy.finish().expect(0);
    assert_same_file(&marked.path, &site.root().join("marked.dat"));

    let mut idle = Capture::start(site.local().join("idle.dat"));
    idle.write(&seeded.bytes(2 * MIB));
    follow(&site, &agent, &["--follow=200ms"], "idle.dat").succeed();
    assert_same_file(&idle.path, &site.root().join("idle.dat"));
    assert!(!site.root().join("marked.dat.done").exists(), "the marker was copied");
}

#[test]
fn a_file_that_is_cut_or_rewritten_while_it_is_followed_is_not_published() {
    for (case, words) in [("cut", "it was cut to"), ("rewritten", "was rewritten or cut while it was sent")] {
        let site = Site::new();
        let agent = site.agent();
        let mut seeded = Seeded::new(5);
        let mut capture = Capture::start(site.local().join("capture.dat"));
        capture.write(&seeded.bytes(10));
        let mut copy = follow(&site, &agent, &[NEVER], "capture.dat").start();
        copy.wait_for("a lane", |event| event["event"] == "lane_up");
        capture.write(&seeded.bytes(3 * MIB));
        wait_until("all whole blocks' arrival", || has_journal(&site.root(), 3));
        let file = File::options().write(true).open(&capture.path).unwrap();
        match case {
            "cut" => file.set_len(100).unwrap(),
            _ => std::os::unix::fs::FileExt::write_all_at(&file, b"patched", 0).unwrap(),
        }
        drop(file);
        capture.end();
        copy.finish().expect(3).says(words);
        assert!(!site.root().join("capture.dat").exists(), "{case}: it has its name");
        // The next run sends the file from the start.
        follow(&site, &agent, &["--follow=10ms"], "capture.dat").succeed();
        assert_same_file(&site.local().join("capture.dat"), &site.root().join("capture.dat"));
    }
}

/// Returns the file paths of all files beneath a directory, sorted.
fn files_beneath(top: &Path) -> Vec<String> {
    let leaves = crate::tree::read_tree(top).into_iter().filter(|(_, leaf)| !leaf.is_directory);
    leaves.map(|(path, _)| String::from_utf8(path).unwrap()).collect()
}

#[test]
fn sources_that_have_arrived_are_deleted_or_moved() {
    let site = Site::new();
    let agent = site.agent();
    let tree = site.local().join("tree");
    let sizes = [("a", 0), ("b/small", 1000), ("b/large", 3 * MIB)];
    let make = || {
        let mut seeded = Seeded::new(6);
        sizes.iter().for_each(|(name, size)| write(&tree.join(name), &seeded.bytes(*size)));
    };
    make();
    fs::create_dir(site.local().join("sent")).unwrap();
    write(&site.local().join("sent/tree/a"), b"taken");
    let outcome = follow(&site, &agent, &["--then", "move=sent"], "tree").run().expect(1);
    outcome.says("the name is taken");
    assert_eq!(outcome.count("source_left"), 1);
    assert_eq!((&outcome.summary()["copied"], &outcome.summary()["failed"]), (&3.into(), &1.into()));
    assert_eq!(files_beneath(&tree), ["a"]);
    assert_same_file(&site.root().join("tree/b/large"), &site.local().join("sent/tree/b/large"));

    make();
    let outcome = follow(&site, &agent, &["--then", "delete"], "tree").succeed();
    assert_eq!(files_beneath(&tree), Vec::<String>::new());
    assert_same_file(&site.root().join("tree/b/large"), &site.local().join("sent/tree/b/large"));
    assert_eq!(outcome.summary()["copied"], 3);
}

#[test]
fn a_source_that_does_not_arrive_stays() {
    let site = Site::new();
    let agent = site.agent();
    write(&site.local().join("file"), b"ours");
    write(&site.root().join("file"), b"theirs");
    follow(&site, &agent, &["--then", "delete", "--overwrite", "never"], "file").run().expect(4);
    assert_eq!(fs::read(site.local().join("file")).unwrap(), b"ours");
    // Same size and time, other bytes: a destination that looks up to date is not enough to delete the source.
    crate::tree::set_mtime(&site.local().join("file"), 1_000, 0);
    write(&site.root().join("file"), b"them");
    crate::tree::set_mtime(&site.root().join("file"), 1_000, 0);
    follow(&site, &agent, &["--then", "delete"], "file").succeed();
    assert_eq!(fs::read(site.root().join("file")).unwrap(), b"ours");
    assert!(!site.local().join("file").exists());
}

#[test]
fn what_only_a_push_can_do_is_refused_elsewhere() {
    let site = Site::new();
    let agent = site.agent();
    write(&site.root().join("file"), b"x");
    for flag in ["--follow", "--then=delete"] {
        let mut copy = site.copy(&agent);
        copy.arg(flag)
            .arg(agent.url("file"))
            .arg(".")
            .run()
            .expect(2)
            .says("run the copy at the host that has the sources");
    }
    for directory in ["spool/sent", "other"] {
        fs::create_dir_all(site.local().join(directory)).unwrap();
    }
    follow(&site, &agent, &["--follow", "--then", "move=spool/sent"], "spool").run().expect(2).says("lies within");
    follow(&site, &agent, &["--then", "move=nowhere"], "spool").run().expect(2).says("nowhere");
    // A run that copies nothing deletes nothing.
    for flag in ["--dry-run", "--explain"] {
        follow(&site, &agent, &[flag, "--then", "delete"], "spool").run().expect(2).says(flag);
    }
    // Two spools can have files with the same name, and the later file would replace the earlier one.
    let two = ["--follow", "--then", "delete", "spool/."];
    follow(&site, &agent, &two, "other/.").run().expect(2).says("of the same name");
}

/// Returns the file paths in file events with the outcome "copied", in order.
fn event_texts(events: &[serde_json::Value]) -> Vec<String> {
    let files = events.iter().filter(|event| event["event"] == "file" && event["outcome"] == "copied");
    files.map(|event| event["path"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_spool_takes_what_was_there_and_what_appears_and_each_once() {
    let site = Site::new();
    let agent = site.agent();
    let spool = site.local().join("spool");
    let mut seeded = Seeded::new(7);
    write(&spool.join("survivor"), &seeded.bytes(1000));
    write(&spool.join("old/deep/survivor"), &seeded.bytes(2 * MIB));
    let mut copy = follow(&site, &agent, &["--follow=2s"], "spool/.").start();
    let arrives = |copy: &mut crate::site::Copying, name: &str| {
        copy.wait_for(name, |event| event["path"] == name && event["outcome"] == "copied");
        assert_same_file(&spool.join(name), &site.root().join(name));
    };
    arrives(&mut copy, "survivor");
    arrives(&mut copy, "old/deep/survivor");
    // Case: written in a new directory.
    write(&spool.join("new/written"), &seeded.bytes(5000));
    arrives(&mut copy, "new/written");
    // Case: moved into the spool.
    write(&site.local().join("elsewhere"), &seeded.bytes(MIB));
    fs::rename(site.local().join("elsewhere"), spool.join("new/moved")).unwrap();
    arrives(&mut copy, "new/moved");
    // Case: in a directory with the name of a removed one.
    fs::remove_dir_all(spool.join("new")).unwrap();
    write(&spool.join("new/again"), &seeded.bytes(10));
    arrives(&mut copy, "new/again");
    // Case: in a renamed directory. Its files have the new directory name.
    fs::rename(spool.join("old/deep"), spool.join("renamed")).unwrap();
    arrives(&mut copy, "renamed/survivor");
    write(&spool.join("renamed/inside"), &seeded.bytes(10));
    arrives(&mut copy, "renamed/inside");
    // Case: growing, with a marker.
    let mut capture = Capture::start(spool.join("old/capture"));
    capture.write(&seeded.bytes(3 * MIB + 77));
    write(&spool.join("old/capture.done"), b"");
    arrives(&mut copy, "old/capture");
    capture.close();
    // Case: written again, which is another version.
    write(&spool.join("survivor"), &seeded.bytes(2000));
    copy.wait_for("the second version", |event| event["path"] == "survivor" && event["size"] == 2000);
    copy.interrupt();
    let outcome = copy.finish().expect(130);
    let mut names = event_texts(&outcome.events);
    names.sort();
    let once = [
        "new/again",
        "new/moved",
        "new/written",
        "old/capture",
        "old/deep/survivor",
        "renamed/inside",
        "renamed/survivor",
        "survivor",
        "survivor",
    ];
    assert_eq!(names, once);
    assert!(!site.root().join("old/capture.done").exists());

    // The next run does not send files that are up to date.
    write(&spool.join("late"), b"late");
    let mut copy = follow(&site, &agent, &["--follow=2s"], "spool/.").start();
    arrives(&mut copy, "late");
    copy.wait_for("the rest", |event| event["path"] == "old/capture" && event["outcome"] == "up_to_date");
    copy.interrupt();
    assert_eq!(event_texts(&copy.finish().expect(130).events), ["late"]);
}

#[test]
fn a_spool_that_is_stopped_says_what_it_has_copied() {
    let site = Site::new();
    let agent = site.agent();
    write(&site.local().join("spool/one"), b"one");
    write(&site.local().join("spool/two"), b"two");
    let mut command = Command::new(BINARY);
    command.args(["copy", "--state"]).arg(site.path("client-state")).args(["--trust", &agent.fingerprint]);
    command.args(["-v", "--follow=50ms", "spool/."]).arg(agent.url("")).current_dir(site.local());
    let mut copy = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(copy.stderr.take().unwrap()).lines().map(Result::unwrap);
    let is_file = |line: &String| line.starts_with("copied     ");
    assert_eq!(lines.by_ref().filter(is_file).take(2).count(), 2);
    rustix::process::kill_process(Pid::from_child(&copy), Signal::TERM).unwrap();
    let rest: Vec<String> = lines.collect();
    assert_eq!(copy.wait().unwrap().code(), Some(130), "{rest:?}");
    assert!(rest.iter().any(|line| line.starts_with("copied 2 files, 6 B")), "{rest:?}");
}

#[test]
fn what_appears_in_a_spool_and_cannot_be_copied_is_reported_once() {
    let site = Site::new();
    let agent = site.agent();
    let spool = site.local().join("spool");
    fs::create_dir(&spool).unwrap();
    write(&spool.join("first"), b"1");
    let mut copy = follow(&site, &agent, &["--follow=1s"], "spool/.").start();
    copy.wait_for("the first file", |event| event["outcome"] == "copied");
    let pipe = |name: &str| rustix::fs::mkfifoat(rustix::fs::CWD, spool.join(name), rustix::fs::Mode::RWXU).unwrap();
    std::os::unix::fs::symlink("nothing", spool.join("dangling")).unwrap();
    pipe("pipe");
    copy.wait_for("the pipe", |event| event["error"]["text"].as_str().is_some_and(|text| text.contains("pipe")));
    write(&spool.join("last"), b"2");
    copy.wait_for("the last file", |event| event["outcome"] == "copied" && event["path"] == "last");
    copy.interrupt();
    let outcome = copy.finish().expect(130);
    let event_texts = outcome.events.iter().filter(|event| event["event"] == "unreadable");
    assert_eq!(event_texts.count(), 2, "{}", outcome.describe());
}

#[test]
fn a_file_is_not_taken_away_while_a_writer_has_it() {
    let site = Site::new();
    let agent = site.agent();
    let spool = site.local().join("spool");
    fs::create_dir(&spool).unwrap();
    let start = |idle| follow(&site, &agent, &[idle, "--then", "delete"], "spool/.").start();
    // A file without a writer is deleted at the moment when the other file would be deleted without its writer.
    let ends_with = |name: &str, mut writer: File, mut copy: Copying| {
        wait_until("the other file to be taken away", || !spool.join("other").exists());
        assert!(spool.join(name).exists(), "{name}");
        writer.write_all(b"second").unwrap();
        drop(writer);
        wait_until("the file to be taken away", || !spool.join(name).exists());
        assert_eq!(fs::read(site.root().join(name)).unwrap(), b"first second", "{name}");
        copy.interrupt();
        copy.finish().expect(130);
    };
    let begun = |name: &str| {
        let mut writer = File::create(spool.join(name)).unwrap();
        writer.write_all(b"first ").unwrap();
        writer
    };
    write(&spool.join("there"), b"");
    write(&spool.join("there.done"), b"");
    let mut copy = start("--follow");
    copy.wait_for("the directory to be watched", |event| event["outcome"] == "copied");
    let writer = begun("closed by another");
    drop(File::options().append(true).open(spool.join("closed by another")).unwrap());
    write(&spool.join("other"), b"closed");
    ends_with("closed by another", writer, copy);
    let writer = begun("idle");
    write(&spool.join("other"), b"idle");
    ends_with("idle", writer, start("--follow=1s"));
}

#[test]
fn an_idle_time_in_which_a_writer_only_pauses_is_wrong_usage_where_files_are_taken_away() {
    let site = Site::new();
    let agent = site.agent();
    fs::create_dir(site.local().join("spool")).unwrap();
    let mut copy = follow(&site, &agent, &["--follow=0s", "--then", "delete"], "spool/.");
    copy.run().expect(2).says("1 s or more (--follow, --then)");
}

#[test]
fn a_spool_is_emptied_though_its_ends_are_killed() {
    let site = Site::new();
    let mut agent = site.agent();
    let spool = site.local().join("spool");
    let mut seeded = Seeded::new(8);
    let mut sent = Vec::new();
    for turn in 0..3 {
        for file in 0..10 {
            let name = format!("d{}/t{turn}f{file}", file % 2);
            let bytes = seeded.bytes(if file == 3 { 3 * MIB } else { 1000 });
            write(&spool.join(&name), &bytes);
            sent.push((name, bytes));
        }
        let mut copy = follow(&site, &agent, &["--follow=1s", "--then", "delete", "--via", "tcp"], "spool/.").start();
        copy.wait_for("some file", |event| event["outcome"] == "copied");
        agent.kill();
        agent = site.agent_at(&agent.addr.to_string());
        copy.wait_for("the next session", |event| event["event"] == "restarted");
        copy.kill();
    }
    let mut copy = follow(&site, &agent, &["--follow=1s", "--then", "delete"], "spool/.").start();
    wait_until("the spool's emptying", || sent.iter().all(|(name, _)| !spool.join(name).exists()));
    // A marker is deleted with its file: the next file of that name is a new one.
    write(&spool.join("d0/capture.done"), b"");
    write(&site.local().join("elsewhere"), b"first");
    fs::rename(site.local().join("elsewhere"), spool.join("d0/capture")).unwrap();
    wait_until("the marker's end", || !spool.join("d0/capture").exists() && !spool.join("d0/capture.done").exists());
    sent.push(("d0/capture".to_owned(), b"first".to_vec()));
    copy.interrupt();
    copy.finish().expect(130);
    for (name, bytes) in sent {
        assert!(fs::read(site.root().join(&name)).unwrap() == bytes, "{name}");
    }
}
