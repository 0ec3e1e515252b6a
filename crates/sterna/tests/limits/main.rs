//! What limits a copy is named: limits imposed in the lab, one at a time. `bench/limits.py` does the same with many more.
//!
//! A program of its own, so that no other test takes the processors that the lab needs to be the path it is told to be. Needs
//! root and `/dev/net/tun`; says so and passes where they are missing.

#![allow(clippy::print_stdout, clippy::print_stderr)]
mod follow;
mod replicas;
mod web;
// What the other end-to-end tests need of it stands idle here.
#[allow(dead_code)]
#[path = "../e2e/site.rs"]
mod site;
#[allow(dead_code)]
#[path = "../e2e/tree.rs"]
mod tree;
#[allow(dead_code)]
#[path = "../e2e/webserver.rs"]
mod webserver;

use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use sterna_lab::model::Policer;
use sterna_lab::{Lab, LabOptions, LinkModel};
use sterna_proto::{BitRate, ByteCount};

use site::{Agent, BINARY, CopyCommand, Outcome, Site};
use tree::{Seeded, write};

/// Held by the one lab that is up.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lab whose hosts use cubic: bbr, which a kernel may have as its default, hides what losses do.
fn lab(name: &str, model: &LinkModel, sysctls: &[(&str, &str)]) -> Option<Lab> {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/net/tun").exists() {
        println!("skipped: the lab needs root and /dev/net/tun");
        return None;
    }
    let mut settings =
        vec![("net.ipv4.tcp_rmem", "4096 131072 33554432"), ("net.ipv4.tcp_wmem", "4096 16384 33554432")];
    settings.extend(sysctls);
    let options = LabOptions {
        name: Some(format!("limits-{name}-{}", std::process::id())),
        sysctls: settings.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        congestion_control: Some("cubic".to_owned()),
        ..LabOptions::default()
    };
    Some(Lab::start(model, &options).unwrap())
}

fn path(megabits: u64, rtt_ms: u64) -> LinkModel {
    LinkModel::clean(BitRate::megabits(megabits), Duration::from_millis(rtt_ms))
}

fn agent(site: &Site, lab: &Lab) -> Agent {
    let (root, address) = (site.root(), lab.host_b().address());
    let flags = ["--root".as_ref(), root.as_os_str(), "--authorize-any".as_ref()];
    site.agent_by(lab.host_b().command(BINARY), &format!("{address}:0"), &flags)
}

fn copy(site: &Site, lab: &Lab, agent: &Agent, flags: &[&str]) -> CopyCommand {
    let mut copy = site.copy_by(lab.host_a().command(BINARY));
    copy.args(["--trust", &agent.fingerprint]).args(flags);
    copy
}

/// The limits of a copy of which the first is `expected`. A host that is busy with something else while it is measured is a limit
/// too, and named: a copy then has up to two more tries.
#[track_caller]
fn named(expected: &str, copy_as: impl Fn(&str) -> Outcome) -> Value {
    let mut outcome = copy_as("first");
    for name in ["second", "third"] {
        if outcome.summary()["limits"]["first"] != expected {
            outcome = copy_as(name);
        }
    }
    let limits = &outcome.summary()["limits"];
    assert_eq!(limits["first"], expected, "{}", outcome.describe());
    let shares: f64 = limits["shares"].as_object().unwrap().values().map(|share| share.as_f64().unwrap()).sum();
    assert!((shares - 1.0).abs() < 0.01, "shares add up: {limits}");
    limits.clone()
}

const ONE_CUBIC: [&str; 6] = ["--via", "tcp", "--lanes", "1", "--congestion", "cubic"];

#[test]
fn a_small_receive_buffer_is_named_with_the_one_to_set() {
    let _alone = alone();
    let small = ("net.ipv4.tcp_rmem", "4096 65536 524288");
    let Some(lab) = lab("rmem", &path(1000, 40), &[small]) else { return };
    let site = Site::new();
    let agent = agent(&site, &lab);
    write(&site.local().join("f"), &Seeded::new(1).bytes(16_000_000));
    let push = |name: &str| copy(&site, &lab, &agent, &ONE_CUBIC).arg("f").arg(agent.url(name)).succeed();
    let limits = named("receive_window", push);
    let remedy = limits["remedies"]["receive_window"].as_str().unwrap();
    assert!(
        remedy.starts_with("peer rmem max 524 kB; 1.05 MB would allow ") && remedy.ends_with(" at 40 ms"),
        "{remedy}"
    );
    // In a pull the agent sees it, and tells the client.
    let pull = |name: &str| copy(&site, &lab, &agent, &ONE_CUBIC).arg(agent.url("first")).arg(name).succeed();
    named("receive_window", pull);
}

#[test]
fn loss_and_a_policer_are_told_apart() {
    let _alone = alone();
    let mut lossy = path(500, 20);
    lossy.forward.loss = 0.01;
    let mut policed = path(500, 40);
    policed.forward.policer = Some(Policer { rate: BitRate::megabits(40), burst: ByteCount(128 << 10) });
    for (model, size, expected) in [(lossy, 3_000_000, "loss"), (policed, 16_000_000, "policer")] {
        let Some(lab) = lab(expected, &model, &[]) else { return };
        let site = Site::new();
        let agent = agent(&site, &lab);
        write(&site.local().join("f"), &Seeded::new(2).bytes(size));
        let push = |name: &str| copy(&site, &lab, &agent, &ONE_CUBIC).arg("f").arg(agent.url(name)).succeed();
        named(expected, push);
    }
}

#[test]
fn a_given_rate_is_named_over_quic_and_the_log_is_a_page() {
    let _alone = alone();
    let Some(lab) = lab("cap", &path(500, 20), &[]) else { return };
    let site = Site::new();
    let agent = agent(&site, &lab);
    write(&site.root().join("f"), &Seeded::new(3).bytes(5_000_000));
    let flags = ["--via", "quic", "--rate", "20Mbit", "--log", "log.html"];
    let pull = |name: &str| copy(&site, &lab, &agent, &flags).arg(agent.url("f")).arg(name).succeed();
    let limits = named("rate_cap", pull);
    assert_eq!(limits["remedies"]["rate_cap"], "20.0 Mbit/s as given");
    let page = fs::read_to_string(site.local().join("log.html")).unwrap();
    assert!(page.contains(&format!("<p>{} to ", agent.url("f"))), "{page}");
    assert!(page.contains("rate cap") && page.contains("<svg") && page.ends_with("</html>\n"), "{page}");
}

#[test]
fn a_log_has_a_line_for_each_sample_and_ends_with_the_outcome() {
    let _alone = alone();
    let site = Site::new();
    let agent = site.agent();
    write(&site.local().join("f"), &Seeded::new(4).bytes(8_000_000));
    site.copy(&agent)
        .args(["--via", "tcp", "--rate", "100Mbit", "--log", "log.jsonl", "f"])
        .arg(agent.url("f"))
        .succeed();
    let log = fs::read_to_string(site.local().join("log.jsonl")).unwrap();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let samples = lines.iter().filter(|line| line["event"] == "sample" && line["lanes"] != Value::Array(Vec::new()));
    assert!(samples.count() >= 1, "{log}");
    assert_eq!(lines.last().unwrap()["event"], "summary");
    let head = (&lines[0]["event"], &lines[0]["sources"], &lines[0]["destination"]);
    assert_eq!(head, (&"session".into(), &json!(["f"]), &agent.url("f").into()), "{log}");
    // One that cannot be made is told before anything is sent.
    let refused = site.copy(&agent).args(["--log", "missing/log.jsonl", "f"]).arg(agent.url("g")).run();
    refused.expect(74).says("write the log missing/log.jsonl");
    assert!(!site.root().join("g").exists());
    // The copy is worth finishing without a log, and is not what was asked for.
    std::os::unix::fs::symlink("/dev/full", site.local().join("full.html")).unwrap();
    site.copy(&agent)
        .args(["--log", "full.html", "f"])
        .arg(agent.url("g"))
        .run()
        .expect(74)
        .says("write the log full.html");
    assert!(site.root().join("g").exists());
}
