//! Tests power cuts: reported files are on the disk, each name has the bytes of its file, and the next run copies the
//! rest.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use sterna_seeded::with_seed;

use crate::chaos_proxy::{ChaosProxy, Reaction};
use crate::disks::Disk;
use crate::site::{Agent, Copying, Site, wait_until};
use crate::tree::{MIB, Seeded, write};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    /// With `--then delete`: a deleted source must be at the destination.
    Push,
    Pull,
}

/// Copy of one tree to a disk that loses power.
struct Voyage {
    // Fields in order of their drop: a file system is unmounted only after the processes that use it.
    agent: Agent,
    proxy: ChaosProxy,
    site: Site,
    disk: Disk,
    direction: Direction,
    seeded: Seeded,
    /// Contents of all files, by file path beneath the tree.
    files: BTreeMap<String, Vec<u8>>,
    source: PathBuf,
}

impl Voyage {
    fn new(seed: u64, direction: Direction, disk: Disk) -> Self {
        let site = Site::new();
        let mut seeded = Seeded::new(seed);
        let source = match direction {
            Direction::Push => site.local().join("tree"),
            Direction::Pull => site.root().join("tree"),
        };
        // A large file first, then small ones, then large ones. Reason: the sync of a file system for small files hides
        // a missing sync of the large files before them. A sync for more than four directories hides it too.
        let mut sizes = vec![("a", 9 * MIB + 12_345), ("a", 3 * MIB), ("c", MIB), ("c", 2 * MIB + 1)];
        sizes.extend((0..4).map(|_| ("c", (300 << 10) + seeded.below(MIB as u64) as usize)));
        sizes.extend((0..60).map(|_| ("b", seeded.below(30_000) as usize)));
        let mut files = BTreeMap::new();
        for (index, (directory, size)) in sizes.into_iter().enumerate() {
            let (path, bytes) = (format!("{directory}/f{index}"), seeded.bytes(size));
            write(&source.join(&path), &bytes);
            files.insert(path, bytes);
        }
        let agent = start_agent(&site, &disk, direction, &site.any_port());
        let proxy = ChaosProxy::tcp(&agent);
        Self { agent, proxy, site, disk, direction, seeded, files, source }
    }

    fn start(&self) -> Copying {
        let mut copy = self.site.copy(&self.agent);
        copy.args(["--via", "tcp", "--lanes", "2"]);
        match self.direction {
            Direction::Push => copy.args(["--then", "delete", "tree"]).arg(self.proxy.url("")),
            Direction::Pull => copy.arg(self.proxy.url("tree")).arg(self.disk.point()),
        };
        copy.start()
    }

    /// Continues the copy to a position from the seed. With `first`, half of the positions are in the largest file,
    /// after a checkpoint.
    fn sail_on(&mut self, copying: &mut Copying, first: bool) {
        let bytes = self.files.values().map(Vec::len).sum::<usize>() as u64;
        let waits = first && self.seeded.below(2) == 0;
        let last = 5 * MIB as u64;
        let place = match (waits, self.seeded.below(3)) {
            // Far more than two lanes have in flight, so that some blocks are complete.
            (true, _) => last + self.seeded.below(3 * MIB as u64),
            (false, 0) => self.seeded.below(bytes),
            (false, _) => bytes - last + self.seeded.below(2 * last),
        };
        let then = if waits || self.seeded.below(2) == 0 { Reaction::Hold } else { Reaction::Pass };
        let reached = self.proxy.marks_reached();
        self.proxy.mark(place, then);
        wait_until("the place of the cut", || self.proxy.marks_reached() > reached || copying.has_ended());
        if waits {
            wait_until("a journal", || self.hidden(".journal"));
        }
    }

    /// Returns true if the tree has a hidden file with this ending.
    fn hidden(&self, ending: &str) -> bool {
        let mut directories = ["a", "b", "c"].iter().filter_map(|name| fs::read_dir(self.target(name)).ok()).flatten();
        directories.any(|item| item.is_ok_and(|item| item.file_name().to_string_lossy().ends_with(ending)))
    }

    fn target(&self, path: &str) -> PathBuf {
        self.disk.point().join("tree").join(path)
    }

    /// Returns the file paths of the files that were reported as copied, or deleted for that reason.
    fn reported(&self, copying: &mut Copying) -> Vec<String> {
        let events = copying.events_so_far().iter().filter(|event| event["outcome"] == "copied");
        let paths = events.filter_map(|event| event["path"].as_str()?.strip_prefix("tree/"));
        let mut reported: Vec<String> =
            paths.filter(|path| self.files.contains_key(*path)).map(str::to_owned).collect();
        reported.extend(self.files.keys().filter(|path| !self.source.join(path).exists()).cloned());
        reported
    }

    /// Cuts the power and restarts from the data on the disk. Returns the number of files reported before.
    fn cut(&mut self, mut copying: Copying) -> usize {
        let reported = self.reported(&mut copying);
        let snapshot = self.disk.cut();
        copying.kill();
        self.agent.kill();
        self.proxy.release();
        self.disk.start_from(&snapshot);
        self.check_names();
        for path in &reported {
            assert!(self.target(path).exists(), "{path} was reported as copied and is not there");
        }
        self.agent = start_agent(&self.site, &self.disk, self.direction, &self.agent.addr.to_string());
        reported.len()
    }

    /// Checks that each name that exists has its complete file.
    fn check_names(&self) {
        for (path, bytes) in &self.files {
            match fs::read(self.target(path)) {
                Ok(found) => assert!(found == *bytes, "{path} has its name and not its bytes"),
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{path}"),
            }
        }
    }

    /// Runs the copy to the end, and checks that the journals listed only data on the disk.
    fn arrive(&self) {
        let outcome = self.start().finish().expect(0);
        assert!(!outcome.text().contains("damaged on disk"), "a journal claimed what was lost\n{}", outcome.describe());
        for (path, bytes) in &self.files {
            assert!(fs::read(self.target(path)).is_ok_and(|found| found == *bytes), "{path}");
        }
        assert!(!self.hidden(".part") && !self.hidden(".journal"), "hidden files are left");
    }
}

/// Starts an agent that serves the source of a pull, or the disk.
fn start_agent(site: &Site, disk: &Disk, direction: Direction, listen: &str) -> Agent {
    let root = site.root();
    let root: &Path = if direction == Direction::Push { disk.point() } else { &root };
    site.agent_with(listen, &["--root".as_ref(), root.as_os_str(), "--authorize-any".as_ref()])
}

/// Cuts the power twice in each of `voyages` copies.
fn cut_power(first_seed: u64, voyages: u64) {
    if !rustix::process::geteuid().is_root() {
        println!("left out: power cuts need root, to mount file systems");
        return;
    }
    let (mut cuts, mut reported) = (0, 0);
    for seed in first_seed..first_seed + voyages {
        let direction = if seed % 2 == 0 { Direction::Push } else { Direction::Pull };
        let disk = match Disk::new(if seed / 2 % 2 == 0 { "data=ordered" } else { "data=writeback" }) {
            Ok(disk) => disk,
            Err(reason) => {
                println!("left out: {reason}");
                return;
            }
        };
        println!("seed {seed}: {direction:?}");
        let mut voyage = Voyage::new(seed, direction, disk);
        for first in [true, false] {
            let mut copying = voyage.start();
            voyage.sail_on(&mut copying, first);
            reported += voyage.cut(copying);
            cuts += 1;
        }
        voyage.arrive();
    }
    println!("{cuts} power cuts, {reported} files reported before them");
}

#[test]
fn a_power_cut_takes_nothing_that_was_reported() {
    with_seed("a_power_cut_takes_nothing_that_was_reported", 1000, |seed| cut_power(seed, 4));
}

#[test]
#[ignore = "30 seeds take minutes: cargo test -p sterna --test e2e -- --ignored --nocapture power"]
fn sixty_power_cuts_take_nothing_that_was_reported() {
    with_seed("sixty_power_cuts_take_nothing_that_was_reported", 2000, |seed| cut_power(seed, 30));
}
