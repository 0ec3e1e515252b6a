//! Tests copies of one file from several replicas: agents, web servers, files of this host, and faulty replicas.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::chaos_proxy::{ChaosProxy, Reaction};
use crate::site::{Agent, CopyCommand, Outcome, Site, wait_until};
use crate::tree::{MIB, Seeded, assert_same_file, write};
use crate::webserver::{Kind, WebServer};

/// Host of the client, and hosts with one replica each.
struct Replicas {
    client: Site,
    hosts: Vec<Site>,
}

impl Replicas {
    /// Creates `hosts` hosts with a file `f` of `bytes` bytes.
    fn new(hosts: usize, bytes: usize) -> Self {
        let replicas = Self { client: Site::new(), hosts: (0..hosts).map(|_| Site::new()).collect() };
        (0..hosts).for_each(|host| write(&replicas.at(host), &content(bytes)));
        replicas
    }

    /// Returns the file path of the replica at a host.
    fn at(&self, host: usize) -> PathBuf {
        self.hosts[host].root().join("f")
    }

    fn agents(&self) -> Vec<Agent> {
        self.hosts.iter().map(Site::agent).collect()
    }

    /// Returns a copy by the client that trusts these agents.
    fn copy(&self, agents: &[Agent]) -> CopyCommand {
        let mut copy = self.client.bare_copy();
        for agent in agents {
            copy.arg("--trust").arg(&agent.fingerprint);
        }
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

/// Returns the summary of each replica: bytes from it, and the reason why it was dropped.
fn accounts(outcome: &Outcome) -> Vec<(u64, Value)> {
    let replicas = outcome.summary()["replicas"].as_array().unwrap();
    replicas.iter().map(|replica| (replica["bytes"].as_u64().unwrap(), replica["dropped"].clone())).collect()
}

#[test]
fn two_agents_give_one_file_together() {
    for size in [0, 1000, 300 << 10, 48 * MIB + 5] {
        let replicas = Replicas::new(2, size);
        let agents = replicas.agents();
        let proxies: Vec<ChaosProxy> = agents.iter().map(ChaosProxy::tcp).collect();
        let is_large = size > 10 * MIB;
        if is_large {
            // No replica can finish the copy alone.
            proxies.iter().for_each(|proxy| proxy.mark(4 * MIB as u64, Reaction::Hold));
        }
        let sources = proxies.iter().map(|proxy| proxy.url("f"));
        let copying = replicas.copy(&agents).args(["--via", "tcp"]).args(sources).arg(".").start();
        if is_large {
            wait_until("both replicas have begun", || proxies.iter().all(|proxy| proxy.marks_reached() == 1));
            proxies.iter().for_each(ChaosProxy::release);
        }
        let outcome = copying.finish().expect(0);
        assert_same_file(&replicas.at(0), &replicas.result());
        let accounts = accounts(&outcome);
        assert_eq!(accounts.iter().map(|(bytes, _)| bytes).sum::<u64>(), size as u64, "{}", outcome.describe());
        assert!(accounts.iter().all(|(_, dropped)| dropped.is_null()), "{accounts:?}");
        if is_large {
            assert!(accounts.iter().all(|(bytes, _)| *bytes > 0), "{accounts:?}");
        }
        assert!(fs::read_dir(replicas.client.local()).unwrap().count() == 1);
    }
}

/// Inverts one bit of a file, and keeps its modification time.
fn flip(path: &std::path::Path, offset: usize) {
    let modified = fs::metadata(path).unwrap().modified().unwrap();
    let mut bytes = fs::read(path).unwrap();
    bytes[offset] ^= 1;
    fs::write(path, bytes).unwrap();
    fs::File::options().write(true).open(path).unwrap().set_modified(modified).unwrap();
}

fn expected(bytes: usize) -> String {
    format!("blake3:{}", blake3::hash(&content(bytes)).to_hex())
}

/// Fails unless a replica was dropped for a reason with these words.
#[track_caller]
fn assert_dropped(outcome: &Outcome, replica: usize, words: &str) {
    let reason = accounts(outcome)[replica].1.clone();
    assert!(reason.as_str().is_some_and(|reason| reason.contains(words)), "{reason}\n{}", outcome.describe());
    outcome.says(words);
}

#[test]
fn an_agent_a_web_server_and_a_path_of_this_host_give_one_file_together() {
    let size = 40 * MIB + 9;
    let replicas = Replicas::new(1, size);
    let agents = replicas.agents();
    let server = WebServer::start(Kind::Nginx);
    write(&server.root().join("g.h5"), &content(size));
    let disk = replicas.client.path("disk");
    write(&disk, &content(size));
    for sources in [
        vec![agents[0].url("f"), server.url("g.h5")],
        vec![disk.display().to_string(), server.url("g.h5")],
        vec![server.url("g.h5"), agents[0].url("f"), disk.display().to_string()],
    ] {
        let outcome = replicas.copy(&agents).args(&sources).args(["out", "--overwrite", "always"]).succeed();
        assert_same_file(&replicas.at(0), &replicas.client.local().join("out"));
        let given: u64 = accounts(&outcome).iter().map(|(bytes, _)| bytes).sum();
        assert_eq!(given, size as u64, "{}", outcome.describe());
        assert!(accounts(&outcome).iter().all(|(_, dropped)| dropped.is_null()), "{}", outcome.describe());
    }
    // If the destination does not name the file, it has the name of the first replica.
    replicas.copy(&agents).args([&server.url("g.h5"), &agents[0].url("f")]).arg(".").succeed();
    assert_same_file(&replicas.at(0), &replicas.client.local().join("g.h5"));
}

#[test]
fn a_replica_that_is_killed_or_never_there_costs_only_its_part() {
    let size = 64 * MIB;
    for killed in [0, 1] {
        let replicas = Replicas::new(2, size);
        let mut agents = replicas.agents();
        let proxies: Vec<ChaosProxy> = agents.iter().map(ChaosProxy::tcp).collect();
        // Both replicas have begun, and neither can finish the copy alone.
        proxies.iter().for_each(|proxy| proxy.mark(4 * MIB as u64, Reaction::Hold));
        let mut copy = replicas.copy(&agents);
        copy.args(["--via", "tcp"]).args(proxies.iter().map(|proxy| proxy.url("f")));
        // No process listens at this address.
        copy.args(["sterna://127.0.0.1:9/f", "."]);
        let copying = copy.start();
        wait_until("both replicas have begun", || proxies.iter().all(|proxy| proxy.marks_reached() == 1));
        agents[killed].kill();
        proxies.iter().for_each(ChaosProxy::release);
        let outcome = copying.finish().expect(0);
        assert_same_file(&replicas.at(0), &replicas.result());
        let accounts = accounts(&outcome);
        let given: u64 = accounts.iter().map(|(bytes, _)| bytes).sum();
        assert_eq!(given, size as u64, "{accounts:?}");
        assert!(accounts[1 - killed].0 > size as u64 / 2 && accounts[2].0 == 0, "{accounts:?}");
        assert!(accounts[1 - killed].1.is_null() && accounts[2].1.is_string(), "{accounts:?}");
    }
}

#[test]
fn a_replica_that_stops_in_the_middle_does_not_hold_up_the_end() {
    let size = 32 * MIB;
    let replicas = Replicas::new(2, size);
    let agents = replicas.agents();
    let (other, proxy) = (ChaosProxy::tcp(&agents[0]), ChaosProxy::tcp(&agents[1]));
    proxy.mark(2 * MIB as u64, Reaction::Hold);
    other.mark(4 * MIB as u64, Reaction::Hold);
    let sources = [other.url("f"), proxy.url("f")];
    let copying = replicas.copy(&agents).args(["--via", "tcp"]).args(&sources).arg(".").start();
    wait_until("the one to stop", || proxy.marks_reached() == 1);
    other.release();
    // The copy ends while the first replica is still held.
    copying.finish().expect(0);
    assert_same_file(&replicas.at(0), &replicas.result());
}

#[test]
fn an_interrupt_ends_the_copy_with_its_code() {
    let replicas = Replicas::new(2, 64 * MIB);
    let agents = replicas.agents();
    let proxies: Vec<ChaosProxy> = agents.iter().map(ChaosProxy::tcp).collect();
    proxies.iter().for_each(|proxy| proxy.mark(4 * MIB as u64, Reaction::Hold));
    let sources: Vec<String> = proxies.iter().map(|proxy| proxy.url("f")).collect();
    let mut copying = replicas.copy(&agents).args(["--via", "tcp", "--lanes", "1"]).args(sources).arg(".").start();
    wait_until("both replicas have begun", || proxies.iter().all(|proxy| proxy.marks_reached() == 1));
    copying.interrupt();
    copying.finish().expect(130).says("run the same command again");
}

#[test]
fn a_replica_that_returns_is_used_again() {
    let size = 64 * MIB;
    let replicas = Replicas::new(2, size);
    let mut agents = replicas.agents();
    let proxies: Vec<ChaosProxy> = agents.iter().map(ChaosProxy::tcp).collect();
    proxies.iter().for_each(|proxy| proxy.mark(4 * MIB as u64, Reaction::Hold));
    let sources: Vec<String> = proxies.iter().map(|proxy| proxy.url("f")).collect();
    let mut copying = replicas.copy(&agents).args(["--via", "tcp", "--lanes", "1"]).args(sources).arg(".").start();
    wait_until("both replicas have begun", || proxies.iter().all(|proxy| proxy.marks_reached() == 1));
    let addr = agents[1].addr;
    agents[1].kill();
    proxies[1].release();
    copying.wait_for("the lane to the one that was killed goes down", |event| event["event"] == "lane_down");
    let again = replicas.hosts[1].agent_at(&addr.to_string());
    let peer = proxies[1].addr.to_string();
    let is_back = |event: &Value| event["event"] == "lane_up" && event["peer"] == *peer;
    wait_until("it is dialled again", || {
        again.log.exists() && fs::read_to_string(&again.log).unwrap().matches("pull of").count() > 1
    });
    proxies[0].release();
    let outcome = copying.finish().expect(0);
    assert!(outcome.events.iter().filter(|event| is_back(event)).count() > 1, "{}", outcome.describe());
    assert_same_file(&replicas.at(0), &replicas.result());
    assert!(accounts(&outcome)[1].1.is_null(), "{}", outcome.describe());
}

#[test]
fn a_replica_of_another_size_is_named_and_left_out() {
    let size = 20 * MIB;
    for other in [size - 1, 1000] {
        let replicas = Replicas::new(3, size);
        write(&replicas.at(1), &content(other));
        let agents = replicas.agents();
        let sources: Vec<String> = agents.iter().map(|agent| agent.url("f")).collect();
        let outcome = replicas.copy(&agents).args(&sources).arg(".").succeed();
        assert_same_file(&replicas.at(0), &replicas.result());
        assert_dropped(&outcome, 1, "wrong size");
        assert_eq!(accounts(&outcome)[1].0, 0);
        outcome.says(&sources[1]);
    }
}

#[test]
fn a_replica_with_another_content_is_outvoted_or_loses_to_the_first() {
    let size = 12 * MIB;
    // The first of three replicas is wrong; the second of two.
    for (count, wrong, words) in [(3, 0, "most replicas have"), (2, 1, "named first")] {
        for bytes in [size, 100_000] {
            let replicas = Replicas::new(count, bytes);
            flip(&replicas.at(wrong), bytes - 1);
            let agents = replicas.agents();
            let proxies: Vec<ChaosProxy> = agents.iter().map(ChaosProxy::tcp).collect();
            // The compared block, the last one, travels first on the one lane of each replica. The proxies hold the
            // rest of the correct replicas until the wrong replica is detected. The file is incomplete without that
            // rest, so the comparison happens at any load of the host.
            let is_large = bytes == size;
            for (host, proxy) in proxies.iter().enumerate() {
                proxy.mark(
                    if !is_large {
                        500
                    } else if host == wrong {
                        MIB
                    } else {
                        4 * MIB
                    } as u64,
                    Reaction::Hold,
                );
            }
            let sources = proxies.iter().map(|proxy| proxy.url("f"));
            let mut copying =
                replicas.copy(&agents).args(["--via", "tcp", "--lanes", "1"]).args(sources).arg(".").start();
            let begun = |host: usize| proxies[host].marks_reached() == 1;
            if is_large {
                wait_until("the wrong one has begun", || begun(wrong));
                proxies[wrong].release();
                copying
                    .wait_for("the verdict", |event| event["text"].as_str().is_some_and(|text| text.contains(words)));
            } else {
                wait_until("every replica has begun", || (0..count).all(begun));
                // A small file is published when two replicas agree, so the content of the wrong one is there first.
                proxies[wrong].release();
                wait_until("the wrong content has passed", || proxies[wrong].passed().1 >= bytes as u64);
            }
            proxies.iter().for_each(ChaosProxy::release);
            let outcome = copying.finish().expect(0);
            assert_dropped(&outcome, wrong, if is_large { words } else { "differs from" });
            assert_eq!(accounts(&outcome)[wrong].0, 0, "{}", outcome.describe());
            let is_same = fs::read(replicas.result()).unwrap() == fs::read(replicas.at(1 - wrong)).unwrap();
            assert!(is_same, "{count} {bytes}: {}", outcome.describe());
        }
    }
}

#[test]
fn a_digest_finds_the_replica_that_is_wrong_in_one_byte_anywhere() {
    // The last block is compared, the third block is not; small files are compared as a whole.
    for (size, offset) in [(12 * MIB, 12 * MIB - 1), (12 * MIB, 2 * MIB + 7), (100_000, 50_000)] {
        for wrong in [0, 1] {
            let replicas = Replicas::new(2, size);
            flip(&replicas.at(wrong), offset);
            let agents = replicas.agents();
            let proxies: Vec<ChaosProxy> = agents.iter().map(ChaosProxy::tcp).collect();
            let sources = proxies.iter().map(|proxy| proxy.url("f"));
            let flags = ["--via", "tcp", "--expect", &expected(size)];
            let outcome = replicas.copy(&agents).args(flags).args(sources).arg(".").succeed();
            assert_same_file(&replicas.at(1 - wrong), &replicas.result());
            // The wrong replica may have sent no block with the wrong byte, or may have connected too late to send any.
            let accounts = accounts(&outcome);
            let named = accounts[wrong].1.is_string();
            assert!(named || offset == 2 * MIB + 7 || accounts[wrong].0 == 0, "{}", outcome.describe());
            assert!(accounts[1 - wrong].1.is_null(), "{}", outcome.describe());
        }
    }
}

#[test]
fn a_copy_of_which_every_replica_is_wrong_fails_and_leaves_nothing() {
    for size in [12 * MIB, 1000] {
        let replicas = Replicas::new(2, size);
        (0..2).for_each(|host| flip(&replicas.at(host), 500 + host));
        let agents = replicas.agents();
        let sources = agents.iter().map(|agent| agent.url("f"));
        let outcome = replicas.copy(&agents).args(["--expect", &expected(size)]).args(sources).arg(".").run().expect(3);
        outcome.says("expected");
        assert_eq!(fs::read_dir(replicas.client.local()).unwrap().count(), 0, "{}", outcome.describe());
    }
    // No replica has the file.
    let replicas = Replicas::new(2, 10);
    let agents = replicas.agents();
    let sources = agents.iter().map(|agent| agent.url("g"));
    let outcome = replicas.copy(&agents).args(sources).arg(".").run().expect(3);
    outcome.says("no replica is left").says(&agents[0].url("g")).says(&agents[1].url("g"));
}

#[test]
fn a_copy_that_was_killed_goes_on_from_its_journal() {
    let size = 48 * MIB;
    let replicas = Replicas::new(2, size);
    let agents = replicas.agents();
    let proxies: Vec<ChaosProxy> = agents.iter().map(ChaosProxy::tcp).collect();
    proxies.iter().for_each(|proxy| proxy.mark(8 * MIB as u64, Reaction::Hold));
    let sources: Vec<String> = proxies.iter().map(|proxy| proxy.url("f")).collect();
    let mut copying = replicas.copy(&agents).args(["--via", "tcp"]).args(&sources).arg(".").start();
    wait_until("both have stopped", || proxies.iter().all(|proxy| proxy.marks_reached() == 1));
    let is_journal = |name: &std::ffi::OsStr| name.as_encoded_bytes().ends_with(b".journal");
    let journal = || {
        let items = fs::read_dir(replicas.client.local()).unwrap().map(|item| item.unwrap());
        items.filter(|item| is_journal(&item.file_name())).map(|item| item.metadata().unwrap().len()).sum::<u64>()
    };
    // A header of 88 bytes and some records of 64 bytes.
    wait_until("a journal of some blocks", || journal() > 88 + 4 * 64);
    copying.kill();
    proxies.iter().for_each(ChaosProxy::release);
    let outcome = replicas.copy(&agents).args(["--via", "tcp"]).args(&sources).arg(".").succeed();
    assert_same_file(&replicas.at(0), &replicas.result());
    let summary = outcome.summary();
    let held = summary["bytes_held"].as_u64().unwrap();
    assert!(held >= 4 * MIB as u64, "{}", outcome.describe());
    let given: u64 = accounts(&outcome).iter().map(|(bytes, _)| bytes).sum();
    assert_eq!(given + held, size as u64, "{}", outcome.describe());
    // A further run finds the file up to date.
    let again = replicas.copy(&agents).args(&sources).arg(".").succeed();
    assert_eq!(again.summary()["up_to_date"], 1);
}

#[test]
fn what_cannot_be_done_with_replicas_is_wrong_usage() {
    let replicas = Replicas::new(1, 1000);
    let agents = replicas.agents();
    let url = agents[0].url("f");
    let wrong = |args: &[&str], words: &str| {
        replicas.copy(&agents).args(args).run().expect(2).says(words);
    };
    wrong(&[&url, "."], "2 to 8");
    wrong(&[&url, &url, &agents[0].url("x")], "copied to this host");
    wrong(&[&url, &agents[0].url("*"), "."], "neither wildcards");
    wrong(&[&url, "/tmp", "."], "neither wildcards nor directories");
    wrong(&["--follow", &url, &url, "."], "--follow");
    wrong(&["--then=delete", &url, &url, "."], "--then");
    wrong(&["--explain", &url, &url, "."], "--explain");
    wrong(&["--path=via=tcp", &url, &url, "."], "--path");
    wrong(&[&url, "/tmp/f", &url, "."], "given twice");
    // A dry run reports what it would copy.
    let here = replicas.at(0).display().to_string();
    let planned = replicas.copy(&agents).args(["--dry-run", &url, &here, "."]).succeed();
    assert_eq!(planned.summary()["would_copy"], 1);
    assert!(!replicas.result().exists());
}
