//! Files that still grow, spools, and what is done with sources that have arrived.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::site::{Agent, CopyCommand, Site, wait_until};
use crate::tree::{MIB, Seeded, assert_same_file, write};

/// An idle time that no test waits for.
const NEVER: &str = "--follow=1h";

/// A process that writes what it is told to a file, and holds it open meanwhile.
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

    /// Returns when the file has the bytes.
    fn write(&mut self, bytes: &[u8]) {
        self.pipe.as_mut().unwrap().write_all(bytes).unwrap();
        self.written += bytes.len() as u64;
        wait_until("the writer's turn", || fs::metadata(&self.path).unwrap().len() == self.written);
    }

    /// The end of the writer, and with it of its hold on the file.
    fn close(mut self) {
        drop(self.pipe.take());
        self.child.wait().unwrap();
    }
}

/// A copy of `source`, in `local`, to the agent's root.
fn follow(site: &Site, agent: &Agent, flags: &[&str], source: &str) -> CopyCommand {
    let mut copy = site.copy(agent);
    copy.args(flags).arg(source).arg(agent.url(""));
    copy
}

/// Whether what is hidden in `directory` holds `bytes` and nothing has the name yet.
fn has_hidden(directory: &Path, bytes: u64) -> bool {
    let hidden = fs::read_dir(directory).unwrap().map(|item| item.unwrap());
    hidden
        .filter(|item| item.file_name().to_string_lossy().ends_with(".part"))
        .any(|item| item.metadata().unwrap().len() >= bytes)
}

/// Whether a journal of `directory` speaks for `blocks` blocks.
fn has_journal(directory: &Path, blocks: u64) -> bool {
    let hidden = fs::read_dir(directory).unwrap().map(|item| item.unwrap());
    let journals = hidden.filter(|item| item.file_name().to_string_lossy().ends_with(".journal"));
    let record = sterna_proto::journal::RECORD_BYTES as u64;
    journals.filter_map(|item| item.metadata().ok()).any(|about| about.len() >= blocks * record)
}

#[test]
fn a_file_is_sent_as_it_grows_and_published_when_it_is_closed() {
    let site = Site::new();
    let agent = site.agent();
    let mut seeded = Seeded::new(1);
    let mut capture = Capture::start(site.local().join("capture.dat"));
    capture.write(&seeded.bytes(3 * MIB + 17));
    let copy = follow(&site, &agent, &[NEVER], "capture.dat").start();
    // It grows while it is followed.
    for blocks in 4..8 {
        capture.write(&seeded.bytes(MIB));
        wait_until("the next block's arrival", || has_hidden(&site.root(), blocks * MIB as u64));
    }
    assert!(!site.root().join("capture.dat").exists(), "it has its name before its end");
    let path = capture.path.clone();
    capture.write(&seeded.bytes(1000));
    capture.close();
    let outcome = copy.finish().expect(0);
    assert_same_file(&path, &site.root().join("capture.dat"));
    let digest = blake3::hash(&fs::read(&path).unwrap()).to_hex().to_string();
    assert_eq!(outcome.last("file")["digests"]["blake3"], digest.as_str());
    assert_eq!(outcome.summary()["copied"], 1);
}
