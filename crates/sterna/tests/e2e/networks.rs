//! Tests copies over several paths.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use crate::chaos_proxy::{ChaosProxy, Reaction};
use crate::site::{Agent, Site, wait_until};
use crate::tree::{Seeded, assert_same_file, write};

const MIB: usize = 1 << 20;

/// Creates a site whose client has `bytes` bytes of data in the file `f`, and its agent.
fn site_with(bytes: usize) -> (Site, Agent) {
    let site = Site::new();
    write(&site.local().join("f"), &Seeded::new(7).bytes(bytes));
    let agent = site.agent();
    (site, agent)
}

/// Returns a `--path` flag through `proxy`, with the keys in `more`.
fn path(proxy: &ChaosProxy, more: &str) -> String {
    format!("--path=remote={},{more}", proxy.addr)
}

#[test]
fn two_paths_carry_one_copy_and_one_that_is_held_is_not_waited_for() {
    // The proxy holds the path of the first lane, or the other path.
    for (via, other) in [("tcp", "quic"), ("quic", "tcp")] {
        let (site, agent) = site_with(16 * MIB);
        let open = |via| if via == "tcp" { ChaosProxy::tcp(&agent) } else { ChaosProxy::udp(&agent) };
        let (held, free) = (open(via), open(other));
        // No path can finish the copy before the first one is held.
        held.mark(2 * MIB as u64, Reaction::Hold);
        free.mark(4 * MIB as u64, Reaction::Hold);
        let paths = [
            path(&held, &format!("via={via},rate=40Mbit")),
            path(&free, &format!("via={other},lanes=2,rate-max=40Mbit")),
        ];
        // The copy ends while the path is held: its blocks have gone over the other path.
        let copying = site.copy(&agent).args(paths).args(["--compress", "never", "f"]).arg(agent.url("f")).start();
        wait_until("the first path to be held", || held.marks_reached() == 1);
        free.release();
        let outcome = copying.finish().expect(0);
        assert_same_file(&site.local().join("f"), &site.root().join("f"));
        let lanes: Vec<(&Value, &Value)> = outcome
            .events
            .iter()
            .filter(|event| event["event"] == "lane_up")
            .map(|event| (&event["path"], &event["transport"]))
            .collect();
        assert!(lanes.contains(&(&1.into(), &via.into())) && lanes.contains(&(&2.into(), &other.into())), "{lanes:?}");
        assert!(free.passed().0 > 8 * MIB as u64, "{:?}", free.passed());
    }
}

#[test]
fn a_pull_uses_both_paths_with_a_cap_for_each() {
    let site = Site::new();
    write(&site.root().join("f"), &Seeded::new(8).bytes(8 * MIB));
    let agent = site.agent();
    let (slow, fast) = (ChaosProxy::udp(&agent), ChaosProxy::udp(&agent));
    let paths = [path(&slow, "via=quic,rate=8Mbit"), path(&fast, "via=quic,rate=32Mbit")];
    // No path can finish the copy alone. bench/paths.sh measures the part of each path.
    let proxies = [&slow, &fast];
    proxies.iter().for_each(|proxy| proxy.mark(MIB as u64, Reaction::Hold));
    let pull = ["--compress", "never"];
    let copying = site.copy(&agent).args(paths).args(pull).arg(agent.url("f")).arg("f").start();
    wait_until("both paths to carry data", || proxies.iter().all(|proxy| proxy.marks_reached() == 1));
    proxies.iter().for_each(|proxy| proxy.release());
    copying.finish().expect(0);
    assert_same_file(&site.root().join("f"), &site.local().join("f"));
    assert!(slow.passed().1 + fast.passed().1 >= 8 * MIB as u64, "all of it came by the two");
}

#[test]
fn a_standby_path_is_used_while_no_other_is_up_and_left_when_one_is() {
    let (site, agent) = site_with(48 * MIB);
    let (main, standby) = (ChaosProxy::tcp(&agent), ChaosProxy::tcp(&agent));
    let paths = [path(&main, "via=tcp,rate-max=40Mbit"), path(&standby, "via=tcp,rate-max=20Mbit,standby")];
    main.mark(MIB as u64, Reaction::Pass);
    let mut copying = site.copy(&agent).args(paths).args(["--compress", "never", "f"]).arg(agent.url("f")).start();
    wait_until("the copy is on its way", || main.marks_reached() == 1 || copying.has_ended());
    assert_eq!(standby.passed(), (0, 0), "nobody has dialled it");
    main.mark(MIB as u64, Reaction::Shut);
    copying.wait_for("a lane on the standby path", |event| event["event"] == "lane_up" && event["path"] == 2);
    main.release();
    copying.wait_for("the standby path is left", |event| {
        event["event"] == "lane_down" && event["reason"].as_str().is_some_and(|why| why.contains("up again"))
    });
    copying.finish().expect(0);
    assert_same_file(&site.local().join("f"), &site.root().join("f"));
}

#[test]
fn a_path_that_leads_nowhere_costs_a_notice_and_one_to_another_agent_is_not_used() {
    let (site, agent) = site_with(4 * MIB);
    let stranger = Site::new();
    let other = stranger.agent();
    let paths = [
        // No process listens at the first address, and this host does not have the second.
        "--path=remote=127.0.0.1:9,via=tcp".to_owned(),
        format!("--path=local=192.0.2.1,remote={},via=quic", agent.addr),
        format!("--path=local=127.0.0.1,remote={},rate-max=20Mbit", agent.addr),
    ];
    let outcome = site.copy(&agent).args(paths).args(["--compress", "never", "f"]).arg(agent.url("f")).succeed();
    outcome.says("path 1: ").says("path 2: ").says("it is tried again");
    assert_same_file(&site.local().join("f"), &site.root().join("f"));
    let paths = [format!("--path=remote={},rate-max=10Mbit", agent.addr), format!("--path=remote={}", other.addr)];
    let outcome = site.copy(&agent).args(paths).args(["--compress", "never", "f"]).arg(agent.url("g")).run();
    assert!(!stranger.root().join("g").exists());
    assert!(outcome.code == Some(6) || outcome.text().contains("path 2: "), "{}", outcome.describe());
}

#[test]
fn paths_that_cannot_be_meant_are_wrong_usage() {
    let (site, agent) = site_with(1);
    let nine = ["--path=via=tcp"; 9];
    for (flags, said) in [
        (&["--path=eth0"][..], "local=ADDR"),
        (&["--path=via=tcp", "--rate=5Mbit"], "--rate"),
        (&["--path=standby", "--path=via=tcp,standby"], "at least one"),
        (&nine, "at most 8"),
    ] {
        site.copy(&agent).args(flags).arg("f").arg(agent.url("f")).run().expect(2).says(said);
    }
}

#[test]
fn a_plan_is_printed_and_nothing_is_copied() {
    let (site, agent) = site_with(3 * MIB);
    let paths = [
        format!("--path=remote={},via=quic,rate=40Mbit", agent.addr),
        format!("--path=remote={},via=tcp,lanes=2,standby", agent.addr),
    ];
    let plan = |flags: &[String]| {
        let outcome = site.copy(&agent).args(flags).args(["--explain", "f"]).arg(agent.url("f")).succeed();
        outcome.summary()["plan"].clone()
    };
    let planned = plan(&paths);
    let (first, blocks) = (&planned["paths"][0], &planned["blocks"]);
    assert_eq!((&first["transport"], &first["rate_bps"], blocks), (&"quic".into(), &40_000_000.into(), &3.into()));
    assert_eq!(planned["paths"].as_array().unwrap().len(), 1, "a standby path is not dialled: {planned}");
    assert_eq!(planned["unreached"], json!([{ "path": 2, "standby": true }]));
    assert!(planned["memory_bytes"].as_u64() > Some(0), "{planned}");
    let found = plan(&["--via=quic".to_owned(), "--memory=64MiB".to_owned()]);
    assert_eq!(found["memory_bytes"], 64 << 20, "all lanes that may come are counted: {found}");
    // 25 Mbit at 93 % of 40 Mbit/s, and some measured round trips.
    assert!(planned["time_s"].as_f64() > Some(0.6), "{planned}");
    assert!(!site.root().join("f").exists());
    // The rate is unknown; then the file exists already.
    assert_eq!(plan(&[])["time_s"], Value::Null);
    site.copy(&agent).arg("f").arg(agent.url("f")).succeed();
    assert_eq!(plan(&paths)["blocks"], 0);
}

#[test]
fn a_network_that_lets_udp_through_no_more_gets_lanes_over_tcp() {
    let (site, agent) = site_with(16 * MIB);
    let (tcp, udp) = ChaosProxy::tcp_and_udp(Ipv4Addr::LOCALHOST, &agent, &agent);
    udp.mark(4 * MIB as u64, Reaction::Hold);
    // With a given rate, Sterna selects QUIC.
    let flags = ["--rate", "40Mbit", "--lanes", "1", "--compress", "never", "f"];
    let outcome = site.copy(&agent).args(flags).arg(tcp.url("f")).succeed();
    assert_eq!(udp.marks_reached(), 1);
    assert_same_file(&site.local().join("f"), &site.root().join("f"));
    let transports: Vec<&Value> =
        outcome.events.iter().filter(|event| event["event"] == "lane_up").map(|event| &event["transport"]).collect();
    assert_eq!(transports, ["quic", "tcp"]);
    outcome.says("no quic to");
}
