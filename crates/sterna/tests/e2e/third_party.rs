//! Copies between two agents that a command asks for: no file data passes by it, and it knows all that happens.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::site::{Agent, BINARY, CopyCommand, Site, wait_until};
use crate::strait::{Strait, Then};
use crate::tree::{MIB, Seeded, assert_same_file, assert_same_tree, write};

/// Two agents and the host of a command, each with an identity of its own.
struct Triangle {
    near: Site,
    far: Site,
}

impl Triangle {
    fn new() -> Self {
        Self { near: Site::new(), far: Site::new() }
    }

    /// An agent of `site` that lets everybody in, with these flags.
    fn agent(site: &Site, listen: &str, flags: &[&str]) -> Agent {
        let root = site.root();
        let mut all: Vec<&OsStr> = vec!["--root".as_ref(), root.as_os_str(), "--authorize-any".as_ref()];
        all.extend(flags.iter().map(OsStr::new));
        site.agent_with(listen, &all)
    }

    /// An agent that has the sources and runs copies with any other.
    fn source(&self) -> Agent {
        Self::agent(&self.near, "127.0.0.1:0", &["--third-party", "any"])
    }

    /// An agent that runs no copies with others.
    fn destination(&self) -> Agent {
        Self::agent(&self.far, "127.0.0.1:0", &[])
    }

    fn copy(&self, one: &Agent, other: &Agent) -> CopyCommand {
        let mut copy = self.near.copy(one);
        copy.arg("--trust").arg(&other.fingerprint);
        copy
    }

    /// A file of the source's root, with seeded bytes.
    fn write(&self, name: &str, bytes: usize) -> PathBuf {
        let path = self.near.root().join(name);
        write(&path, &Seeded::new(7).bytes(bytes));
        path
    }
}

#[test]
fn an_agent_pushes_to_another_and_no_data_passes_by_the_command() {
    let sites = Triangle::new();
    let (source, destination) = (sites.source(), sites.destination());
    for index in 0..30 {
        sites.write(&format!("tree/d/small{index}"), 3000 + index);
    }
    sites.write("tree/large", 20 * MIB);
    let strait = Strait::tcp(&source);
    let flags = ["--checksum", "sha256", "--compress", "never"];
    let copied = sites.copy(&source, &destination);
    let copied = { copied }.args(flags).arg(strait.url("tree")).arg(destination.url("")).succeed();
    assert_same_tree(&sites.near.root().join("tree"), &sites.far.root().join("tree"));
    let (up, down) = strait.passed();
    assert!(up > 0 && up + down < 200_000, "{up} and {down} bytes passed by the command: {}", copied.describe());
    let summary = copied.summary();
    assert_eq!((&summary["copied"], &summary["failed"]), (&Value::from(31), &Value::from(0)));
    assert_eq!(summary["bytes_carried"], summary["bytes"]);
    assert_eq!(copied.events.iter().filter(|e| e["event"] == "file" && e["digests"]["sha256"].is_string()).count(), 31);
    let up = copied.last("lane_up");
    assert_eq!(up["peer"], destination.addr.to_string(), "the lanes are those between the agents");
    copied.says("has the sources, and pushes");
}
