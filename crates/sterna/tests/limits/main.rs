//! Tests copies over paths of the lab with known limits: the bytes arrive, and the report has known names of limits.
//!
//! Checks no values that depend on real time. `bench/limits.py` checks which limit is first; the recordings in
//! `crates/proto/tests/limit_traces` check it in virtual time. Needs root and `/dev/net/tun`; prints a message and
//! passes without them.

#![allow(clippy::print_stdout, clippy::print_stderr)]
mod doctor;
mod doctor_host;
mod follow;
mod one_side;
mod replicas;
mod web;
// Other end-to-end tests use the rest of this module.
#[allow(dead_code)]
#[path = "../e2e/chaos_proxy.rs"]
mod chaos_proxy;
#[allow(dead_code)]
#[path = "../e2e/range_server.rs"]
mod range_server;
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
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use sterna_lab::model::Policer;
use sterna_lab::{Lab, LabOptions, LinkModel};
use sterna_proto::limit::trace::{Input, read_trace};
use sterna_proto::limit::{Accountant, Limit};
use sterna_proto::{BitRate, ByteCount};

use chaos_proxy::ChaosProxy;
use site::{Agent, BINARY, CopyCommand, Outcome, Site, wait_until};
use tree::{Seeded, assert_same_file, write};

/// Held by the test with a running lab: one lab at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock()
}

/// Starts a lab whose hosts use cubic. Reason: bbr, the default of some kernels, hides the effects of loss.
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

/// Returns the limits of a successful copy. Checks that their names are known and that the sum of their shares is not
/// above 1. The first limit and its remedy depend on the load of this host: bench/limits.py has statistics, and
/// crates/proto/tests/limit_traces has recordings to replay.
#[track_caller]
fn account(outcome: &Outcome) -> Value {
    let limits = outcome.summary()["limits"].clone();
    let known: Vec<&str> = Limit::ALL.into_iter().map(Limit::name).collect();
    let shares = limits["shares"].as_object().unwrap();
    let named = shares.keys().chain(limits["remedies"].as_object().unwrap().keys());
    named.for_each(|name| assert!(known.contains(&name.as_str()), "{name} in {limits}"));
    assert!(limits["first"].is_null() || shares.contains_key(limits["first"].as_str().unwrap()), "{limits}");
    let sum: f64 = shares.values().map(|share| share.as_f64().unwrap()).sum();
    // Each share is rounded to a thousandth.
    assert!(sum <= 1.0 + 0.0005 * shares.len() as f64, "{limits}");
    limits
}

const ONE_CUBIC: [&str; 6] = ["--via", "tcp", "--lanes", "1", "--congestion", "cubic"];

#[test]
fn a_copy_through_a_small_window_arrives_with_an_account_both_ways() {
    let _alone = alone();
    let small = ("net.ipv4.tcp_rmem", "4096 65536 524288");
    let Some(lab) = lab("rmem", &path(1000, 40), &[small]) else { return };
    let site = Site::new();
    let agent = agent(&site, &lab);
    write(&site.local().join("f"), &Seeded::new(1).bytes(4_000_000));
    let pushed = copy(&site, &lab, &agent, &ONE_CUBIC).arg("f").arg(agent.url("f")).succeed();
    // The receiver reads the maximum of its kernel and sends it; load does not change it.
    assert_eq!(account(&pushed)["facts"]["receive_buffer_max_bytes"], 524_288);
    assert_same_file(&site.local().join("f"), &site.root().join("f"));
    // In a pull, the agent measures the limits and reports them to the client.
    account(&copy(&site, &lab, &agent, &ONE_CUBIC).arg(agent.url("f")).arg("back").succeed());
    assert_same_file(&site.local().join("f"), &site.local().join("back"));
}

#[test]
fn a_copy_arrives_with_an_account_through_losses_and_a_policer() {
    let _alone = alone();
    let mut lossy = path(500, 20);
    lossy.forward.loss = 0.01;
    let mut policed = path(500, 40);
    policed.forward.policer =
        Some(Policer { rate: BitRate::megabits(40), burst: ByteCount(128 << 10), udp_only: false });
    for (name, model) in [("loss", lossy), ("policer", policed)] {
        let Some(lab) = lab(name, &model, &[]) else { return };
        let site = Site::new();
        let agent = agent(&site, &lab);
        write(&site.local().join("f"), &Seeded::new(2).bytes(3_000_000));
        account(&copy(&site, &lab, &agent, &ONE_CUBIC).arg("f").arg(agent.url("f")).succeed());
        assert_same_file(&site.local().join("f"), &site.root().join("f"));
    }
}

/// Over QUIC only, the policer would pass these 250 MB in seven minutes. The test gives up after 300 s.
#[test]
fn tcp_takes_a_copy_over_in_its_middle_where_a_policer_holds_only_udp() {
    let _alone = alone();
    let mut model = path(300, 20);
    let policer = Policer { rate: BitRate::megabits(5), burst: ByteCount(64 << 10), udp_only: true };
    (model.forward.policer, model.reverse.policer) = (Some(policer), Some(policer));
    let Some(lab) = lab("udp", &model, &[]) else { return };
    let site = Site::new();
    let agent = agent(&site, &lab);
    write(&site.local().join("f"), &Seeded::new(5).bytes(250_000_000));
    let pushed = copy(&site, &lab, &agent, &[]).arg("f").arg(agent.url("f")).succeed();
    account(&pushed);
    assert_same_file(&site.local().join("f"), &site.root().join("f"));
    let chosen: Vec<String> = pushed
        .events
        .iter()
        .filter(|event| event["event"] == "decision" && event["subject"] == "transport")
        .map(|event| event["rationale"].as_str().unwrap().to_owned())
        .collect();
    assert!(chosen.len() >= 3 && chosen[0].starts_with("quic: "), "{chosen:?}");
    assert!(chosen.iter().any(|rationale| rationale.starts_with("tcp: tcp carried ")), "{chosen:?}");
}

/// The two transports can reach different hosts at one port: TCP can be forwarded elsewhere, or a device can answer it.
#[test]
fn another_agent_that_answers_by_tcp_does_not_end_what_quic_carries() {
    let _alone = alone();
    let mut model = path(300, 20);
    model.forward.policer = Some(Policer { rate: BitRate::megabits(5), burst: ByteCount(64 << 10), udp_only: true });
    let Some(lab) = lab("stranger", &model, &[]) else { return };
    let (site, elsewhere) = (Site::new(), Site::new());
    let (ours, other) = (agent(&site, &lab), agent(&elsewhere, &lab));
    let (address, host) = (lab.host_b().address(), lab.host_b());
    let (tcp, udp) = host.inside(|| Ok(ChaosProxy::tcp_and_udp(address, &other, &ours))).unwrap();
    write(&site.local().join("f"), &Seeded::new(6).bytes(250_000_000));
    let mut copying = copy(&site, &lab, &ours, &[]).arg("f").arg(udp.url("f")).start();
    copying.wait_for("a lane that met another agent", |event| {
        event["event"] == "lane_down" && event["reason"].as_str().unwrap().contains(&other.fingerprint)
    });
    copying.wait_for("the end of the trial", |event| {
        event["rationale"].as_str().is_some_and(|rationale| rationale.starts_with("quic: tcp carried 0 "))
    });
    let before = udp.passed().0;
    wait_until("QUIC to go on", || udp.passed().0 > before + (1 << 20));
    copying.kill();
    // Dropping a proxy connects to its address, which only that host can reach.
    host.inside(|| {
        drop((tcp, udp));
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_given_rate_is_a_fact_and_the_log_is_a_page() {
    let _alone = alone();
    let Some(lab) = lab("cap", &path(500, 20), &[]) else { return };
    let site = Site::new();
    let agent = agent(&site, &lab);
    write(&site.root().join("f"), &Seeded::new(3).bytes(5_000_000));
    let flags = ["--via", "quic", "--rate", "20Mbit", "--log", "log.html"];
    account(&copy(&site, &lab, &agent, &flags).arg(agent.url("f")).arg("f").succeed());
    assert_same_file(&site.root().join("f"), &site.local().join("f"));
    let page = fs::read_to_string(site.local().join("log.html")).unwrap();
    assert!(page.contains(&format!("<p>{} to ", agent.url("f"))) && page.ends_with("</html>\n"), "{page}");
}

#[test]
fn a_recording_is_one_that_replays_to_the_account() {
    let _alone = alone();
    let site = Site::new();
    let agent = site.agent();
    write(&site.local().join("f"), &Seeded::new(4).bytes(8_000_000));
    let flags = ["--via", "tcp", "--rate", "100Mbit", "--record-samples", "trace", "f"];
    account(&site.copy(&agent).args(flags).arg(agent.url("f")).succeed());
    let recording = read_trace(&fs::read_to_string(site.local().join("trace")).unwrap()).unwrap();
    let (mut accountant, start) = (Accountant::default(), Instant::now());
    recording.iter().for_each(|(at, input)| input.apply(start + *at, &mut accountant));
    let given = BitRate::megabits(100);
    assert!(recording.iter().any(|(_, input)| *input == Input::RateCap(Some(given))), "{recording:?}");
    assert_eq!(accountant.report().facts.rate_cap, given);
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
    let between = &lines[1..lines.len() - 1];
    assert!(between.iter().all(|line| line["event"] == "sample" && line["lanes"].is_array()), "{log}");
    assert_eq!(lines.last().unwrap()["event"], "summary");
    let head = (&lines[0]["event"], &lines[0]["sources"], &lines[0]["destination"]);
    assert_eq!(head, (&"session".into(), &json!(["f"]), &agent.url("f").into()), "{log}");
    // A log that cannot be created is an error before any data is sent.
    let refused = site.copy(&agent).args(["--log", "missing/log.jsonl", "f"]).arg(agent.url("g")).run();
    refused.expect(74).says("write the log missing/log.jsonl");
    assert!(!site.root().join("g").exists());
    // A copy continues without its log, but its exit code shows that the log is missing.
    std::os::unix::fs::symlink("/dev/full", site.local().join("full.html")).unwrap();
    site.copy(&agent)
        .args(["--log", "full.html", "f"])
        .arg(agent.url("g"))
        .run()
        .expect(74)
        .says("write the log full.html");
    assert!(site.root().join("g").exists());
}
