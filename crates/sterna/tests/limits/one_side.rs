//! Examinations from one side over paths with known limits: a small receive buffer here, a clamped MSS, routes of
//! different length, and large packets that vanish.

use std::net::TcpListener;

use crate::range_server::RangeServer;

use super::*;

/// Starts a web server on host b.
fn served(lab: &Lab) -> RangeServer {
    let address = lab.host_b().address();
    RangeServer::start(lab.host_b().inside(|| TcpListener::bind((address, 0))).unwrap())
}

/// Runs the doctor on host a. Returns its report, after the end of the server.
fn examine(lab: &Lab, mut server: RangeServer, target: &str, time: &str) -> Value {
    let output = lab.host_a().command(BINARY).args(["doctor", target, "--json", "--time", time]).output().unwrap();
    // Only host b reaches the address of the server.
    lab.host_b()
        .inside(|| {
            server.stop();
            Ok(())
        })
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn verdict<'a>(report: &'a Value, limit: &str) -> &'a Value {
    let found = report["verdicts"].as_array().unwrap().iter().find(|verdict| verdict["limit"] == limit);
    found.unwrap_or_else(|| panic!("{limit} in {report}"))
}

#[test]
fn a_download_through_a_small_window_here_names_it_with_clamp_and_routes() {
    let _alone = alone();
    let mut model = path(500, 60);
    model.mss_clamp = Some(1200);
    model.ecmp = vec![Duration::ZERO, Duration::from_millis(8)];
    let small = ("net.ipv4.tcp_rmem", "4096 65536 262144");
    let Some(lab) = lab("one-side", &model, &[small]) else { return };
    let server = served(&lab);
    let (target, address) = (server.url("f"), server.addr.ip().to_string());
    let report = examine(&lab, server, &target, "20s");
    let window = verdict(&report, "receive_buffer");
    assert_eq!(window["direction"], "reverse", "{report}");
    let remedy = window["remedy"].as_str().unwrap();
    assert!(remedy.contains("at this host: sysctl -w net.ipv4.tcp_rmem="), "{remedy}");
    // Four connections have four windows.
    let rates: Vec<u64> =
        report["flows"].as_array().unwrap().iter().map(|flow| flow["measured_bps"].as_u64().unwrap()).collect();
    assert!(rates[2] > rates[0] * 2 && window["predicted_bps"] == rates[2], "{report}");
    assert!(verdict(&report, "mss_clamped")["evidence"][0].as_str().unwrap().contains("1200 bytes"), "{report}");
    // A busy host may add a group of its own.
    let modes = verdict(&report, "rtt_modes")["modes"].as_array().unwrap();
    let rtt_s: Vec<f64> = modes.iter().map(|mode| mode["rtt_s"].as_f64().unwrap()).collect();
    assert!(rtt_s.last().unwrap() - rtt_s[0] > 0.006, "{report}");
    assert_eq!(
        (&report["path"]["hops"][0]["address"], &report["path"]["mtu"]["passes"]),
        (&address.into(), &1500.into())
    );
}

#[test]
fn large_packets_that_vanish_are_found_from_one_side() {
    let _alone = alone();
    for (name, icmp) in [("one-side-hole", false), ("one-side-mtu", true)] {
        let mut model = path(100, 8);
        (model.path_mtu, model.icmp) = (Some(1400), icmp);
        let Some(lab) = lab(name, &model, &[]) else { return };
        let server = served(&lab);
        let target = server.addr.to_string();
        let report = examine(&lab, server, &target, "60s");
        let mtu = &report["path"]["mtu"];
        let passes = mtu["passes"].as_u64().unwrap();
        if icmp {
            assert_eq!((passes, &mtu["reports"][0]["mtu"], &mtu["vanishes"]), (1400, &1400.into(), &Value::Null));
        } else {
            assert!((1393..=1400).contains(&passes), "{report}");
            let hole = verdict(&report, "pmtu_black_hole");
            assert!(hole["confidence"].as_f64().unwrap() < 0.95, "an inference: {hole}");
        }
    }
}

#[test]
fn a_server_without_options_is_not_blamed_alone() {
    let _alone = alone();
    let mut model = path(100, 20);
    model.strip = sterna_lab::model::StrippedOptions { sack: true, window_scale: true, timestamps: true };
    let Some(lab) = lab("one-side-options", &model, &[]) else { return };
    let server = served(&lab);
    let target = server.addr.to_string();
    let report = examine(&lab, server, &target, "10s");
    for limit in ["no_window_scaling", "no_sack", "no_timestamps"] {
        let remedy = verdict(&report, limit)["remedy"].as_str().unwrap();
        assert!(remedy.contains("not visible from one side"), "{remedy}");
    }
    assert_eq!(report["ladder"][0]["limit"], "no_window_scaling", "{report}");
}

/// Three hosts in a row, of which the kernel of the middle one routes: `a`, `r`, `b`. Deleted when dropped.
struct Chain {
    name: String,
}

impl Chain {
    /// Connects the hosts; the link from `r` to `b` has an MTU. Returns `None` if this host has no `ip`, or no right.
    fn start(mtu: &str) -> Option<Self> {
        let chain = Self { name: format!("chain{}", std::process::id()) };
        if !["a", "r", "b"].iter().all(|host| ip(&["netns", "add", &chain.host(host)])) {
            println!("skipped: a chain of hosts needs root and ip");
            return None;
        }
        chain.link(["a", "10.91.1.1/24"], ["r", "10.91.1.2/24"], "1500");
        chain.link(["r", "10.91.2.1/24"], ["b", "10.91.2.2/24"], mtu);
        for (host, gateway) in [("a", "10.91.1.2"), ("b", "10.91.2.1")] {
            assert!(ip(&["-n", &chain.host(host), "route", "add", "default", "via", gateway]));
        }
        let routes = chain.command("r", "sysctl").args(["-qw", "net.ipv4.ip_forward=1"]).status().unwrap();
        assert!(routes.success());
        Some(chain)
    }

    fn host(&self, host: &str) -> String {
        format!("{}-{host}", self.name)
    }

    fn link(&self, from: [&str; 2], to: [&str; 2], mtu: &str) {
        let ([from, from_address], [to, to_address]) = (from, to);
        let (here, there) = (self.host(from), self.host(to));
        assert!(ip(&["-n", &here, "link", "add", "name", to, "type", "veth", "peer", "name", from, "netns", &there]));
        for (host, device, address) in [(here, to, from_address), (there, from, to_address)] {
            assert!(ip(&["-n", &host, "addr", "add", address, "dev", device]));
            assert!(ip(&["-n", &host, "link", "set", "dev", device, "mtu", mtu, "up"]));
        }
    }

    /// Returns a command that runs a program on a host.
    fn command(&self, host: &str, program: &str) -> std::process::Command {
        let mut command = std::process::Command::new("ip");
        command.args(["netns", "exec", &self.host(host), program]);
        command
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        for host in ["a", "r", "b"] {
            // It is gone, or was never there.
            let _ = ip(&["netns", "del", &self.host(host)]);
        }
    }
}

fn ip(flags: &[&str]) -> bool {
    let output = std::process::Command::new("ip").args(flags).output();
    output.is_ok_and(|output| output.status.success())
}

#[test]
fn hops_of_real_routers_and_the_mtu_that_one_reports_are_found() {
    let _alone = alone();
    let Some(chain) = Chain::start("1400") else { return };
    let site = Site::new();
    let root = site.root();
    let flags = ["--root".as_ref(), root.as_os_str(), "--authorize-any".as_ref()];
    // An agent is a TCP server too.
    let agent = site.agent_by(chain.command("b", BINARY), "10.91.2.2:0", &flags);
    let target = agent.addr.to_string();
    let output = chain.command("a", BINARY).args(["doctor", &target, "--json", "--time", "10s"]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    let path = &report["path"];
    let hops: Vec<&Value> = path["hops"].as_array().unwrap().iter().map(|hop| &hop["address"]).collect();
    assert_eq!((hops, &path["is_reached"]), (vec![&"10.91.1.2".into(), &"10.91.2.2".into()], &true.into()), "{report}");
    let mtu = &path["mtu"];
    assert_eq!((&mtu["passes"], &mtu["hop"], &mtu["vanishes"]), (&1400.into(), &2.into(), &Value::Null), "{report}");
    assert_eq!(mtu["reports"][0], json!({"router": "10.91.1.2", "bytes": 1500, "mtu": 1400}), "{report}");
    // The server's own MTU is small: no proof of a clamp.
    assert_eq!(report["verdicts"], json!([]), "{report}");
}
