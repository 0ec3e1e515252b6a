//! One file from several replicas: agents, web servers, paths of this host, and what is wrong with them.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::site::{Agent, CopyCommand, Outcome, Site};
use crate::tree::{MIB, Seeded, assert_same_file, write};

/// The client's host, and hosts that have a replica each.
struct Replicas {
    client: Site,
    hosts: Vec<Site>,
}

impl Replicas {
    /// So many hosts that have a file `f` of so many bytes.
    fn new(hosts: usize, bytes: usize) -> Self {
        let replicas = Self { client: Site::new(), hosts: (0..hosts).map(|_| Site::new()).collect() };
        (0..hosts).for_each(|host| write(&replicas.at(host), &content(bytes)));
        replicas
    }

    /// The file at a host.
    fn at(&self, host: usize) -> PathBuf {
        self.hosts[host].root().join("f")
    }

    fn agents(&self) -> Vec<Agent> {
        self.hosts.iter().map(Site::agent).collect()
    }

    /// A copy of replicas that trusts these agents.
    fn copy(&self, agents: &[Agent]) -> CopyCommand {
        let mut copy = self.client.bare_copy();
        agents.iter().for_each(|agent| drop(copy.arg("--trust").arg(&agent.fingerprint)));
        copy.args(["--same", "--compress", "never"]);
        copy
    }

    fn result(&self) -> PathBuf {
        self.client.local().join("f")
    }
}

fn content(bytes: usize) -> Vec<u8> {
    Seeded::new(11).bytes(bytes)
}

/// What the summary says of each replica: bytes from it, and why it was dropped.
fn accounts(outcome: &Outcome) -> Vec<(u64, Value)> {
    let replicas = outcome.summary()["replicas"].as_array().unwrap();
    replicas.iter().map(|replica| (replica["bytes"].as_u64().unwrap(), replica["dropped"].clone())).collect()
}

#[test]
fn two_agents_give_one_file_together() {
    for size in [0, 1000, 300 << 10, 48 * MIB + 5] {
        let replicas = Replicas::new(2, size);
        let agents = replicas.agents();
        let outcome =
            replicas.copy(&agents).args(agents.iter().map(|agent| agent.url("f"))).arg(".").succeed();
        assert_same_file(&replicas.at(0), &replicas.result());
        let accounts = accounts(&outcome);
        assert_eq!(accounts.iter().map(|(bytes, _)| bytes).sum::<u64>(), size as u64, "{}", outcome.describe());
        assert!(accounts.iter().all(|(_, dropped)| dropped.is_null()), "{accounts:?}");
        if size > 10 * MIB {
            assert!(accounts.iter().all(|(bytes, _)| *bytes > 0), "{accounts:?}");
        }
        assert!(fs::read_dir(replicas.client.local()).unwrap().count() == 1);
    }
}
