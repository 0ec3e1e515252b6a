//! Kills either side with kill -9 at positions from a seed, then resumes: no data is lost, and no partial file is
//! visible.

use std::fs;
use std::path::{Path, PathBuf};

use sterna_seeded::with_seed;

use crate::chaos_proxy::{ChaosProxy, Reaction};
use crate::site::{Agent, Copying, Site, wait_until};
use crate::tree::{MIB, Seeded, assert_same_tree, write};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Push,
    Pull,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Via {
    Tcp,
    Quic,
}

/// Copy of one tree through a proxy, while processes are killed.
struct Voyage {
    site: Site,
    agent: Agent,
    proxy: ChaosProxy,
    direction: Direction,
    via: Via,
    seeded: Seeded,
    source: PathBuf,
    target: PathBuf,
    bytes: u64,
}

impl Voyage {
    fn new(seed: u64, direction: Direction, via: Via) -> Self {
        let site = Site::new();
        let mut seeded = Seeded::new(seed);
        let (source, target) = match direction {
            Direction::Push => (site.local().join("tree"), site.root().join("tree")),
            Direction::Pull => (site.root().join("tree"), site.local().join("tree")),
        };
        let mut sizes = vec![6 * MIB + 12_345, 2 * MIB, 300 << 10];
        sizes.extend((0..40).map(|_| seeded.below(20_000) as usize));
        for (index, size) in sizes.iter().enumerate() {
            write(&source.join(format!("d{}/f{index}", index % 3)), &seeded.bytes(*size));
        }
        let agent = site.agent();
        let proxy = match via {
            Via::Tcp => ChaosProxy::tcp(&agent),
            Via::Quic => ChaosProxy::udp(&agent),
        };
        let bytes = sizes.iter().sum::<usize>() as u64;
        Self { site, agent, proxy, direction, via, seeded, source, target, bytes }
    }

    fn start(&self) -> Copying {
        let mut copy = self.site.copy(&self.agent);
        copy.args(["--via", if self.via == Via::Tcp { "tcp" } else { "quic" }, "--lanes", "2"]);
        match self.direction {
            Direction::Push => copy.arg("tree").arg(self.proxy.url("")),
            Direction::Pull => copy.arg(self.proxy.url("tree")).arg("."),
        };
        copy.start()
    }

    /// Continues the copy to a position from the seed, or to the end if that comes first.
    fn sail_on(&mut self, copying: &mut Copying) {
        // Most positions are in the data, some in the handshakes before and in the closing messages after.
        let place = match self.seeded.below(8) {
            0 => self.seeded.below(8_000),
            _ => self.seeded.below(self.bytes + self.bytes / 10),
        };
        let then = if self.seeded.below(2) == 0 { Reaction::Hold } else { Reaction::Pass };
        let reached = self.proxy.marks_reached();
        self.proxy.mark(place, then);
        let proxy = &self.proxy;
        wait_until("the place of the kill", || proxy.marks_reached() > reached || copying.has_ended());
    }

    /// Checks that each name that exists has its complete file.
    fn check_names(&self) {
        for (path, _) in source_files(&self.source) {
            let target = self.target.join(&path);
            match fs::read(&target) {
                Ok(bytes) => assert!(
                    bytes == fs::read(self.source.join(&path)).unwrap(),
                    "{} has its name and not its bytes",
                    path.display()
                ),
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{}", path.display()),
            }
        }
    }

    fn restart_agent(&mut self) {
        self.agent.kill();
        self.proxy.release();
        self.check_names();
        self.agent = self.site.agent_at(&self.agent.addr.to_string());
    }

    /// Runs the copy to the end and compares every byte.
    fn arrive(&self) {
        self.start().finish().expect(0);
        self.check_arrival();
    }

    fn check_arrival(&self) {
        assert_same_tree(&self.source, &self.target);
    }
}

/// Returns the files beneath `top`: relative file path and size.
fn source_files(top: &Path) -> Vec<(PathBuf, u64)> {
    use std::os::unix::ffi::OsStrExt;
    let tree = crate::tree::read_tree(top);
    let files = tree.into_iter().filter(|(_, leaf)| !leaf.is_directory);
    files.map(|(path, leaf)| (PathBuf::from(std::ffi::OsStr::from_bytes(&path)), leaf.size)).collect()
}

/// Kills the client `kills` times in each of `voyages` copies.
fn kill_clients(seed: u64, direction: Direction, via: Via, voyages: u64, kills: u64) {
    for voyage in 0..voyages {
        let mut voyage = Voyage::new(seed + voyage, direction, via);
        for _ in 0..kills {
            let mut copying = voyage.start();
            voyage.sail_on(&mut copying);
            copying.kill();
            voyage.proxy.release();
            voyage.check_names();
        }
        voyage.arrive();
    }
}

/// Kills the agent `kills` times in each of `voyages` copies; also stops the client and restarts it.
fn kill_agents(seed: u64, direction: Direction, via: Via, voyages: u64, kills: u64) {
    for voyage in 0..voyages {
        let mut voyage = Voyage::new(seed + voyage, direction, via);
        for _ in 0..kills {
            let mut copying = voyage.start();
            voyage.sail_on(&mut copying);
            voyage.restart_agent();
            copying.kill();
        }
        voyage.arrive();
    }
}

/// Kills the agent `kills` times in each of `voyages` copies, while one client stays up.
fn kill_agents_under_a_client(seed: u64, direction: Direction, via: Via, voyages: u64, kills: u64) {
    for voyage in 0..voyages {
        let mut voyage = Voyage::new(seed + voyage, direction, via);
        let mut copying = voyage.start();
        for _ in 0..kills {
            voyage.sail_on(&mut copying);
            voyage.restart_agent();
        }
        copying.finish().expect(0);
        voyage.check_arrival();
    }
}

// 200 kills in total: 60 + 60 of clients and of agents over TCP, 32 under a running client, 48 over QUIC.

#[test]
fn a_push_survives_60_kills_of_either_side() {
    with_seed("a_push_survives_60_kills_of_either_side", 100, |seed| {
        kill_clients(seed, Direction::Push, Via::Tcp, 6, 5);
        kill_agents(seed + 50, Direction::Push, Via::Tcp, 6, 5);
    });
}

#[test]
fn a_pull_survives_60_kills_of_either_side() {
    with_seed("a_pull_survives_60_kills_of_either_side", 200, |seed| {
        kill_clients(seed, Direction::Pull, Via::Tcp, 6, 5);
        kill_agents(seed + 50, Direction::Pull, Via::Tcp, 6, 5);
    });
}

#[test]
fn a_running_push_survives_16_kills_of_its_agent() {
    with_seed("a_running_push_survives_16_kills_of_its_agent", 300, |seed| {
        kill_agents_under_a_client(seed, Direction::Push, Via::Tcp, 8, 2);
    });
}

#[test]
fn a_running_pull_survives_16_kills_of_its_agent() {
    with_seed("a_running_pull_survives_16_kills_of_its_agent", 400, |seed| {
        kill_agents_under_a_client(seed, Direction::Pull, Via::Tcp, 8, 2);
    });
}

#[test]
fn a_push_over_quic_survives_24_kills_of_either_side() {
    with_seed("a_push_over_quic_survives_24_kills_of_either_side", 500, |seed| {
        kill_clients(seed, Direction::Push, Via::Quic, 3, 4);
        kill_agents(seed + 50, Direction::Push, Via::Quic, 3, 4);
    });
}

#[test]
fn a_pull_over_quic_survives_24_kills_of_either_side() {
    with_seed("a_pull_over_quic_survives_24_kills_of_either_side", 600, |seed| {
        kill_clients(seed, Direction::Pull, Via::Quic, 3, 4);
        kill_agents(seed + 50, Direction::Pull, Via::Quic, 3, 4);
    });
}
