//! Tests third-party copies: no file data passes through the command, and the command receives all events.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::chaos_proxy::{ChaosProxy, Reaction};
use crate::site::{Agent, BINARY, CopyCommand, Copying, Site, wait_until};
use crate::tree::{MIB, Seeded, assert_same_file, assert_same_tree, write};

/// Two agents and the host of a command, each with a separate identity.
struct Triangle {
    near: Site,
    far: Site,
}

impl Triangle {
    fn new() -> Self {
        Self { near: Site::new(), far: Site::on("127.0.0.2") }
    }

    /// Starts an agent of `site` that authorizes all peers, with these flags.
    fn agent(site: &Site, flags: &[&str]) -> Agent {
        Self::agent_at(site, &site.any_port(), flags)
    }

    fn agent_at(site: &Site, listen: &str, flags: &[&str]) -> Agent {
        let root = site.root();
        let mut all: Vec<&OsStr> = vec!["--root".as_ref(), root.as_os_str(), "--authorize-any".as_ref()];
        all.extend(flags.iter().map(OsStr::new));
        site.agent_with(listen, &all)
    }

    /// Starts an agent that has the sources and runs copies with any other agent.
    fn source(&self) -> Agent {
        Self::agent(&self.near, &["--third-party", "any"])
    }

    /// Starts an agent that authorizes the peers in `lines`.
    fn listed(site: &Site, lines: &str) -> Agent {
        let (authorize, root) = (site.path("authorize"), site.root());
        fs::write(&authorize, lines).unwrap();
        let flags: [&OsStr; 4] = ["--root".as_ref(), root.as_os_str(), "--authorize".as_ref(), authorize.as_os_str()];
        let third_party = ["--third-party", "any"].map(OsStr::new);
        site.agent_with(&site.any_port(), &[&flags[..], &third_party[..]].concat())
    }

    /// Starts an agent that runs no third-party copies.
    fn destination(&self) -> Agent {
        Self::agent(&self.far, &[])
    }

    fn copy(&self, one: &Agent, other: &Agent) -> CopyCommand {
        let mut copy = self.near.copy(one);
        copy.arg("--trust").arg(&other.fingerprint);
        copy
    }

    /// Writes a file with seeded bytes in the root of the source.
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
    let proxy = ChaosProxy::tcp(&source);
    let flags = ["--checksum", "sha256", "--compress", "never"];
    let mut copy = sites.copy(&source, &destination);
    let copied = copy.args(flags).arg(proxy.url("tree")).arg(destination.url("")).succeed();
    assert_same_tree(&sites.near.root().join("tree"), &sites.far.root().join("tree"));
    let (up, down) = proxy.passed();
    assert!(up > 0 && up + down < 200_000, "{up} and {down} bytes passed by the command: {}", copied.describe());
    let summary = copied.summary();
    assert_eq!((&summary["copied"], &summary["failed"]), (&Value::from(31), &Value::from(0)));
    assert_eq!(summary["bytes_carried"], summary["bytes"]);
    assert_eq!(copied.events.iter().filter(|e| e["event"] == "file" && e["digests"]["sha256"].is_string()).count(), 31);
    let up = copied.last("lane_up");
    assert_eq!(up["peer"], destination.addr.to_string(), "the lanes are those between the agents");
    copied.says("has the sources, and pushes");
}

#[test]
fn where_the_source_runs_no_copies_the_destination_pulls() {
    let sites = Triangle::new();
    let source = Triangle::agent(&sites.near, &[]);
    let destination = Triangle::agent(&sites.far, &["--third-party", &source.addr.to_string()]);
    sites.write("tree/large", 3 * MIB);
    sites.write("tree/small", 10);
    let proxy = ChaosProxy::tcp(&destination);
    let mut copy = sites.copy(&source, &destination);
    let copied = copy.args(["--via", "quic", "--rate", "200Mbit"]).arg(source.url("tree")).arg(proxy.url("")).succeed();
    assert_eq!(copied.last("lane_up")["transport"], "quic");
    assert_same_tree(&sites.near.root().join("tree"), &sites.far.root().join("tree"));
    copied.says("pulls from").says("its operator can allow 127.0.0.1:");
    let (up, down) = proxy.passed();
    assert!(up > 0 && up + down < 100_000, "{up} and {down} bytes passed by the command");
}

#[test]
fn agents_reach_for_nobody_unless_their_operators_say_so() {
    let sites = Triangle::new();
    sites.write("f", 100);
    let destination = sites.destination();
    let other = format!("{}:{}", destination.addr.ip(), destination.addr.port() ^ 1);
    for flags in [&[][..], &["--third-party", "hub.example.org"], &["--third-party", &other]] {
        let source = Triangle::agent(&sites.near, flags);
        let refused = sites.copy(&source, &destination).arg(source.url("f")).arg(destination.url("")).run().expect(5);
        // The error has what both operators can change, and nothing else that they allow.
        let can_allow = |agent: &Agent| format!("its operator can allow {}", agent.addr);
        refused.says(&can_allow(&destination)).says(&can_allow(&source)).says("(--third-party)");
        assert!(!refused.text().contains("hub.example.org") && !refused.text().contains(&other), "{}", refused.text());
        assert_eq!(refused.count("lane_up"), 0);
        assert!(!fs::read_to_string(&destination.log).unwrap().contains("push"), "it was reached");
    }
    assert!(!sites.far.root().join("f").exists());
}

#[test]
fn an_agent_with_another_key_than_the_command_expects_gets_nothing() {
    let sites = Triangle::new();
    sites.write("f", 100);
    let (source, mut destination) = (sites.source(), sites.destination());
    sites.copy(&source, &destination).arg(source.url("f")).arg(destination.url("f")).succeed();
    destination.kill();
    fs::remove_dir_all(sites.far.path("agent-state")).unwrap();
    let flags = ["--third-party", "any"];
    let stranger = Triangle::agent_at(&sites.far, &destination.addr.to_string(), &flags);
    assert_ne!(stranger.fingerprint, destination.fingerprint);
    let refused = sites.near.bare_copy().arg(source.url("f")).arg(stranger.url("g")).run().expect(6);
    refused.says(&stranger.fingerprint).says(&destination.fingerprint).says("somebody may be in between");
    assert!(!refused.text().contains("pulls from"), "the other way round was tried: {}", refused.describe());
    assert!(!sites.far.root().join("g").exists());
    // The command itself checks the key of the agent that it connects to.
    let swapped = sites.near.bare_copy().arg(stranger.url("f")).arg(source.url("g")).run().expect(6);
    swapped.says("has changed");
}

#[test]
fn an_agent_that_is_unknown_and_silent_needs_a_key() {
    let sites = Triangle::new();
    sites.write("f", 100);
    let (source, mut destination) = (sites.source(), sites.destination());
    destination.kill();
    let mut copy = sites.near.copy(&source);
    copy.arg(source.url("f"))
        .arg(destination.url("f"))
        .run()
        .expect(6)
        .says("give its fingerprint")
        .says("(--trust)")
        .says("does not answer");
    // With the key, only the active agent has to reach the passive one, and both keys are recorded.
    let mut copy = sites.copy(&source, &destination);
    copy.arg(source.url("f")).arg(destination.url("f")).run().expect(5).says("neither agent can run the copy");
    let known = fs::read_to_string(sites.near.path("client-state/known_hosts")).unwrap();
    assert!(known.contains(&format!("{} {}", destination.addr, destination.fingerprint)), "{known}");
}

#[test]
fn a_copy_may_do_what_both_the_command_and_the_agent_may() {
    let sites = Triangle::new();
    sites.write("f", 100);
    let command = fingerprint(&sites.near.path("client-state"));
    let agent = fingerprint(&sites.near.path("agent-state"));
    let here = |rights: &str| format!("{command} {rights}\n");
    let there = |of_agent: &str, of_command: &str| format!("{agent} {of_agent}\n{command} {of_command}\n");
    let cases = [
        (here("none"), there("rw", "rw"), 3, "read from"),
        (here("ro"), there("rw", "ro"), 4, "write to"),
        (here("ro"), there("ro", "rw"), 4, "write to"),
        (here("ro"), format!("{agent} rw\n"), 6, "for whom"),
        (here("ro"), there("rw", "rw"), 0, "copied"),
    ];
    let behind = format!("push to the agent's root, by {} for {} at ", &agent[..19], &command[..19]);
    for (of_source, of_destination, code, words) in cases {
        let source = Triangle::listed(&sites.near, &of_source);
        let destination = Triangle::listed(&sites.far, &of_destination);
        let run = sites.copy(&source, &destination).arg(source.url("f")).arg(destination.url("")).run().expect(code);
        run.says(words);
        assert_eq!(sites.far.root().join("f").exists(), code == 0, "{}", run.describe());
        if code == 0 {
            destination.wait_for_log(&behind);
        }
    }
    // A peer with read access only cannot have the agent pull.
    let source = Triangle::agent(&sites.near, &[]);
    let destination = Triangle::listed(&sites.far, &format!("{command} ro\n"));
    let run = sites.copy(&source, &destination).arg(source.url("f")).arg(destination.url("g")).run().expect(4);
    run.says("write to");
    assert!(!sites.far.root().join("g").exists());
}

#[test]
fn where_the_agent_of_the_source_is_unknown_the_other_one_may_pull() {
    let sites = Triangle::new();
    sites.write("f", 100);
    let command = fingerprint(&sites.near.path("client-state"));
    let destination = Triangle::listed(&sites.far, &format!("{command}\n"));
    let source = sites.source();
    let copied = sites.copy(&source, &destination).arg(source.url("f")).arg(destination.url("")).succeed();
    copied.says("is not authorized here").says("pulls from");
}

/// Returns the fingerprint that `sterna id` prints for a state directory.
fn fingerprint(state: &std::path::Path) -> String {
    let said = Command::new(BINARY).args(["id", "--state"]).arg(state).output().unwrap();
    String::from_utf8(said.stdout).unwrap().trim().to_owned()
}

#[test]
fn a_dry_run_and_failures_read_as_those_of_every_copy() {
    let sites = Triangle::new();
    sites.write("tree/f", 1000);
    sites.write("tree/g", 2000);
    let (source, destination) = (sites.source(), sites.destination());
    let copy = |flags: &[&str], from: &str| {
        let mut copy = sites.copy(&source, &destination);
        copy.args(flags).arg(source.url(from)).arg(destination.url("")).run()
    };
    let dry = copy(&["--dry-run"], "tree").expect(0);
    assert_eq!((&dry.summary()["would_copy"], &dry.summary()["bytes"]), (&Value::from(2), &Value::from(3000)));
    assert!(!sites.far.root().join("tree").exists());
    copy(&[], "no-such").expect(3).says("no-such");
    std::os::unix::fs::symlink("nowhere", sites.near.root().join("tree/dangling")).unwrap();
    let some = copy(&[], "tree").expect(1);
    assert_eq!((&some.summary()["copied"], &some.summary()["failed"]), (&Value::from(2), &Value::from(1)));
    assert_eq!(some.count("unreadable"), 1);
    let again = copy(&[], "tree/f").expect(0);
    assert_eq!(again.summary()["copied"], 1, "it goes by another name there");
    copy(&["--overwrite", "never"], "tree/f").expect(4).says("exists");
    let sha = "sha256:0000000000000000000000000000000000000000000000000000000000000000";
    copy(&["--overwrite", "always", "--expect", sha], "tree/f").expect(3).says("the file is not published");
}

#[test]
fn what_makes_no_sense_between_agents_is_wrong_usage() {
    let sites = Triangle::new();
    let (source, destination) = (sites.source(), sites.destination());
    let (from, to) = (source.url("f"), destination.url(""));
    let other = destination.url("x");
    let cases: [(&[&str], &str); 6] = [
        (&[&from, &source.url("g")], "same agent"),
        (&["f", &from, &to], "two kinds"),
        (&[&from, &other, &source.url("g")], "several agents"),
        (&["--log", "log", &from, &to], "--log"),
        (&["--memory", "64MiB", &from, &to], "--memory"),
        (&[&source.url("a/../f"), &to], ".."),
    ];
    for (args, words) in cases {
        sites.copy(&source, &destination).args(args).run().expect(2).says(words);
    }
}

#[test]
fn a_command_that_has_lost_its_rights_loses_its_copy_with_its_next_lane() {
    let sites = Triangle::new();
    sites.write("f", LARGE_BYTES);
    let command = fingerprint(&sites.near.path("client-state"));
    let source = Triangle::listed(&sites.near, &format!("{command} ro\n"));
    let destination = sites.destination();
    let proxy = ChaosProxy::tcp(&source);
    let mut copy = sites.copy(&source, &destination);
    copy.args(["--rate", "20Mbit"]).arg(proxy.url("f")).arg(destination.url("f"));
    let mut copying = copy.start();
    copying.wait_for("a lane between the agents", |event| event["event"] == "lane_up");
    fs::write(sites.near.path("authorize"), "# nobody\n").unwrap();
    proxy.cut();
    copying.finish().expect(6).says("is not authorized here");
    source.wait_for_log("ended early");
    destination.wait_for_log("ended early");
    assert!(!sites.far.root().join("f").exists());
}

#[test]
fn where_tcp_does_not_pass_the_command_asks_by_quic() {
    let sites = Triangle::new();
    sites.write("f", LARGE_BYTES);
    let (source, destination) = (sites.source(), sites.destination());
    let proxy = ChaosProxy::udp(&source);
    sites.copy(&source, &destination).args(["--via", "tcp"]).arg(proxy.url("f")).arg(destination.url("f")).succeed();
    assert_same_file(&sites.near.root().join("f"), &sites.far.root().join("f"));
    let (up, down) = proxy.passed();
    // Path MTU discovery takes some tens of packets of several kilobytes.
    assert!(up > 0 && up + down < LARGE_BYTES as u64 / 10, "{up} and {down} bytes passed by the command");
}

#[test]
fn a_command_whose_connection_is_cut_comes_back_and_knows_all() {
    let sites = Triangle::new();
    for index in 0..400 {
        sites.write(&format!("tree/f{index}"), 40_000);
    }
    let (source, destination) = (sites.source(), sites.destination());
    let (asking, between) = (ChaosProxy::tcp(&source), ChaosProxy::tcp(&destination));
    between.mark(4_000_000, Reaction::Hold);
    let mut copy = sites.copy(&source, &destination);
    copy.args(["--via", "tcp", "--compress", "never"]).arg(asking.url("tree")).arg(between.url(""));
    let mut copying = copy.start();
    copying.wait_for("a file", |event| event["event"] == "file");
    wait_until("the place of the cut", || between.marks_reached() == 1);
    asking.cut();
    copying.wait_for("word of it", |event| event["text"].as_str().is_some_and(|text| text.contains("dialling again")));
    between.release();
    let copied = copying.finish().expect(0);
    assert_eq!(copied.summary()["copied"], 400);
    assert_eq!(copied.count("file"), 401, "each file and their directory, once: {}", copied.describe());
    copied.says("connected again");
}

/// Size of the file whose copy is stopped. Reason: kernel buffers hold less than half of it.
const LARGE_BYTES: usize = 12 * MIB;

/// Agent that runs the copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Active {
    Source,
    Destination,
}

const BOTH: [Active; 2] = [Active::Source, Active::Destination];

/// Third-party copy that can be held in the middle.
struct Held {
    sites: Triangle,
    active: Active,
    flags: Vec<&'static str>,
    source: Agent,
    destination: Agent,
    /// Proxy in front of the passive agent.
    between: ChaosProxy,
}

impl Held {
    fn new(active: Active, flags: &[&'static str]) -> Self {
        let sites = Triangle::new();
        sites.write("tree/early", 1000);
        sites.write("tree/large", LARGE_BYTES);
        let flags = [&["--third-party", "any"], flags].concat();
        let of = |end| if active == end { &flags[..] } else { &[] };
        let source = Triangle::agent(&sites.near, of(Active::Source));
        let destination = Triangle::agent(&sites.far, of(Active::Destination));
        let between = ChaosProxy::tcp(if active == Active::Source { &destination } else { &source });
        Self { sites, active, flags, source, destination, between }
    }

    fn command(&self, flags: &[&str]) -> CopyCommand {
        let mut copy = self.sites.copy(&self.source, &self.destination);
        copy.args(["--via", "tcp", "--lanes", "2", "--compress", "never"]).args(flags);
        match self.active {
            Active::Source => copy.arg(self.source.url("tree")).arg(self.between.url("")),
            Active::Destination => copy.arg(self.between.url("tree")).arg(self.destination.url("")),
        };
        copy
    }

    /// Starts a copy and waits until the proxy holds it.
    fn start(&self, flags: &[&str]) -> Copying {
        self.between.mark(6_000_000, Reaction::Hold);
        let copying = self.command(flags).start();
        wait_until("the middle of the copy", || self.between.marks_reached() > 0);
        copying
    }

    /// Starts a copy that takes some seconds, and waits until its small file has arrived.
    fn start_slowly(&self, flags: &[&str]) -> Copying {
        let mut copying = self.command(&[&["--rate", "20Mbit"], flags].concat()).start();
        copying.wait_for("the small file", |event| event["path"] == "tree/early");
        copying
    }

    fn running(&self) -> &Agent {
        if self.active == Active::Source { &self.source } else { &self.destination }
    }

    fn passive(&self) -> &Agent {
        if self.active == Active::Source { &self.destination } else { &self.source }
    }

    /// Ends the agent of one end with `end`, and starts it again.
    fn restart(&mut self, which: Active, end: impl FnOnce(&mut Agent)) {
        let flags = if which == self.active { &self.flags[..] } else { &[] };
        let (site, agent) = match which {
            Active::Source => (&self.sites.near, &mut self.source),
            Active::Destination => (&self.sites.far, &mut self.destination),
        };
        end(agent);
        *agent = Triangle::agent_at(site, &agent.addr.to_string(), flags);
    }

    fn check(&self) {
        assert_same_tree(&self.sites.near.root().join("tree"), &self.sites.far.root().join("tree"));
    }
}

#[test]
fn a_copy_survives_the_death_of_the_agent_that_was_reached() {
    for active in BOTH {
        let mut held = Held::new(active, &[]);
        let copying = held.start(&[]);
        let passive = if active == Active::Source { Active::Destination } else { Active::Source };
        held.restart(passive, Agent::kill);
        held.between.release();
        let copied = copying.finish().expect(0);
        let count = |name: &str| copied.summary()[name].as_u64().unwrap();
        // The small file can be published before the message about it was held. It is up to date then.
        assert_eq!((count("copied") + count("up_to_date"), count("failed")), (2, 0), "{}", copied.describe());
        assert!(copied.count("restarted") > 0);
        held.check();
    }
}

#[test]
fn a_copy_survives_the_end_of_the_agent_that_runs_it() {
    let kill = |agent: &mut Agent| agent.kill();
    let stop = |agent: &mut Agent| assert!(agent.terminate().success());
    type End<'a> = &'a dyn Fn(&mut Agent);
    let ends: [(Active, &str, End<'_>); 4] = [
        (Active::Source, "if-changed", &kill),
        (Active::Source, "never", &kill),
        (Active::Destination, "if-changed", &kill),
        (Active::Destination, "never", &stop),
    ];
    for (active, overwrite, end) in ends {
        let mut held = Held::new(active, &[]);
        let copying = held.start_slowly(&["--overwrite", overwrite]);
        held.restart(active, end);
        let copied = copying.finish().expect(0);
        assert!(copied.count("restarted") > 0);
        let summary = copied.summary();
        assert_eq!((&summary["copied"], &summary["up_to_date"]), (&Value::from(2), &Value::from(0)));
        held.check();
    }
}

#[test]
fn a_killed_command_leaves_a_copy_that_the_next_one_takes_over() {
    for active in BOTH {
        let held = Held::new(active, &[]);
        let mut copying = held.start(&[]);
        copying.kill();
        held.between.release();
        held.command(&[]).succeed();
        held.check();
    }
}

#[test]
fn a_copy_whose_command_does_not_come_back_is_stopped() {
    let held = Held::new(Active::Source, &["--linger", "1s"]);
    let mut copying = held.start_slowly(&[]);
    copying.kill();
    held.running().wait_for_log("ended early: no lane to the peer for 1 s");
    held.passive().wait_for_log("ended early");
    assert!(!held.sites.far.root().join("tree/large").exists());
}

#[test]
fn a_person_who_stops_the_command_stops_the_copy() {
    for active in BOTH {
        let held = Held::new(active, &[]);
        let mut copying = held.start_slowly(&[]);
        copying.interrupt();
        held.running().wait_for_log("ended early: stopped by the user");
        copying.finish().expect(130);
        held.passive().wait_for_log("ended early");
        assert!(!held.sites.far.root().join("tree/large").exists());
        held.command(&[]).succeed();
        held.check();
    }
}

#[test]
fn a_command_that_is_revoked_at_either_agent_stops_its_copy() {
    let sites = Triangle::new();
    let id = |site: &Site, state: &str| {
        let said = Command::new(BINARY).args(["id", "--state"]).arg(site.path(state)).output().unwrap();
        String::from_utf8(said.stdout).unwrap().trim().to_owned()
    };
    let (command, runner) = (id(&sites.near, "client-state"), id(&sites.near, "agent-state"));
    let lines = format!("{command}\n{runner}\n");
    sites.write("large", 24 * MIB);
    for revoked_at in [&sites.near, &sites.far] {
        let (source, destination) = (Triangle::listed(&sites.near, &lines), Triangle::listed(&sites.far, &lines));
        let mut copy = sites.copy(&source, &destination);
        let copying = copy.args(["--rate", "20Mbit"]).arg(source.url("large")).arg(destination.url("")).start();
        destination.wait_for_log("push to ");
        fs::write(revoked_at.path("authorize"), format!("{runner}\n")).unwrap();
        let refused = copying.finish().expect(6);
        refused.says("no longer authorized: ").says(&command);
        for agent in [&source, &destination] {
            agent.wait_for_log("ended early: ");
        }
        assert!(!sites.far.root().join("large").exists());
        for site in [&sites.near, &sites.far] {
            fs::remove_file(site.path("agent.log")).unwrap();
        }
    }
}
