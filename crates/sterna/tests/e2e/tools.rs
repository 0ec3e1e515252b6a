//! `sterna doctor` with tools of others at the other end, and an agent that answers them.
//!
//! Tests with tools that are not installed print a note and pass.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;
use sterna_lab::{Lab, LabOptions, LinkModel};
use sterna_proto::BitRate;

use crate::site::{BINARY, Site, free_port};

fn doctor(flags: &[&str]) -> Output {
    Command::new(BINARY).arg("doctor").args(flags).output().unwrap()
}

#[test]
fn an_agent_answers_iperf3_and_our_client_shows_the_limits_of_its_kernel() {
    let site = Site::new();
    let (root, at) = (site.root(), format!("127.0.0.1:{}", free_port("127.0.0.1")));
    let flags = ["--root".as_ref(), root.as_os_str(), "--authorize-any".as_ref(), "--iperf3".as_ref(), OsStr::new(&at)];
    let agent = site.agent_with("127.0.0.1:0", &flags);
    agent.wait_for_log("answers iperf3 clients at 127.0.0.1:");
    let output =
        doctor(&[&format!("iperf3://{at}/"), "--time", "10s", "--streams", "2", "--max-rate", "400Mbit", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    assert_eq!(report["target"], format!("iperf3://{at}"));
    let directions: Vec<&Value> = report["flows"].as_array().unwrap().iter().map(|flow| &flow["direction"]).collect();
    assert_eq!(directions, ["forward", "reverse"]);
    for flow in report["flows"].as_array().unwrap() {
        let (rate, bytes) = (flow["measured_bps"].as_u64().unwrap(), flow["received_bytes"].as_u64().unwrap());
        assert!((1_000_000..=420_000_000).contains(&rate) && bytes > 0, "{flow}");
    }
    let limits = report["flows"][0]["limits"].as_object().unwrap();
    let sum: f64 = limits.values().map(|share| share.as_f64().unwrap()).sum();
    assert!((sum - 1.0).abs() < 1e-6, "{limits:?}");
    assert!(report["flows"][1]["window_bytes"].as_u64().unwrap() > 0, "{report}");
    agent.wait_for_log("an iperf3 test has ended");
    for (wrong, expected) in [
        (&["iperf3://"][..], "host"),
        (&["iperf3://h:0"], "port"),
        (&["iperf3://h", "--streams", "65"], "64"),
        (&["iperf3://h", "--udp", "20Mbit", "--max-rate", "10Mbit"], "--max-rate"),
        (&["iperf3://h", "--bundle", "b"], "sterna://HOST"),
        (&["sterna://h", "--streams", "2"], "iperf3://HOST"),
    ] {
        let output = doctor(wrong);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains(expected), "{wrong:?}: {said}");
    }
}

/// The client has its results before the streams end, also if the network is full of data.
#[test]
fn the_real_iperf3_measures_over_a_long_path() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/net/tun").exists() {
        println!("skipped: the lab needs root and /dev/net/tun");
        return;
    }
    if Command::new("iperf3").arg("--version").output().is_err() {
        println!("skipped: iperf3 is not installed");
        return;
    }
    let model = LinkModel::clean(BitRate(100_000_000), Duration::from_millis(80));
    let name = format!("iperf3-{}", std::process::id());
    let lab = Lab::start(&model, &LabOptions { name: Some(name), ..LabOptions::default() }).unwrap();
    let (site, address) = (Site::new(), lab.host_b().address().to_string());
    let (root, listen) = (site.root(), format!("{address}:0"));
    let flags =
        ["--root".as_ref(), root.as_os_str(), "--authorize-any".as_ref(), "--iperf3".as_ref(), OsStr::new(&address)];
    let agent = site.agent_by(lab.host_b().command(BINARY), &listen, &flags);
    for flags in [&[][..], &["-R", "-P", "2"], &["-u", "-R", "-b", "5M"]] {
        let mut client = lab.host_a().command("iperf3");
        let output = client.args(["-c", &address, "-t", "1", "-J"]).args(flags).output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
        assert_eq!(report["error"], Value::Null, "{flags:?}: {report}");
    }
    drop(agent);
    lab.finish().unwrap();
}

#[test]
fn an_agent_answers_ndt7_and_our_client_shows_the_limits_of_both_kernels() {
    let site = Site::new();
    let (root, at) = (site.root(), format!("127.0.0.1:{}", free_port("127.0.0.1")));
    let flags = ["--root".as_ref(), root.as_os_str(), "--authorize-any".as_ref(), "--ndt7".as_ref(), OsStr::new(&at)];
    let agent = site.agent_with("127.0.0.1:0", &flags);
    agent.wait_for_log("answers NDT7 clients at 127.0.0.1:");
    let state = site.path("doctor-state");
    let ndt7 = |target: &str, more: &[&str]| {
        let mut command = Command::new(BINARY);
        command.arg("doctor").arg(target).args(["--time", "10s", "--json", "--state"]).arg(&state).args(more);
        command.output().unwrap()
    };
    let output = ndt7(&format!("ndt7://{at}"), &["--trust", &agent.fingerprint, "--max-rate", "400Mbit"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    for (index, direction) in ["forward", "reverse"].iter().enumerate() {
        let flow = &report["flows"][index];
        assert_eq!(flow["direction"], *direction);
        assert!(flow["measured_bps"].as_u64().unwrap() > 1_000_000, "{flow}");
        let limits = flow["limits"].as_object().unwrap();
        let sum: f64 = limits.values().map(|share| share.as_f64().unwrap()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{limits:?}");
        assert!(flow["server_kernel"]["BytesReceived"].as_u64().unwrap() > 0, "{flow}");
    }
    agent.wait_for_log("an NDT7 download has ended");
    for (target, more, code, expected) in [
        (format!("ndt7://{at}"), &[][..], 6, "--trust FINGERPRINT"),
        (format!("ndt7+ws://{at}"), &["--streams", "2"], 2, "--streams"),
    ] {
        let output = ndt7(&target, more);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(code) && said.contains(expected), "{target}: {:?} {said}", output.status);
    }
}

#[test]
fn the_ndt7_client_of_measurement_lab_measures_with_an_agent() {
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/ndt7-client/run.cjs");
    if !client.exists() {
        println!("skipped: scripts/ndt7-client.sh installs the client");
        return;
    }
    let site = Site::new();
    let (root, at) = (site.root(), format!("127.0.0.1:{}", free_port("127.0.0.1")));
    let flags = ["--root".as_ref(), root.as_os_str(), "--authorize-any".as_ref(), "--ndt7".as_ref(), OsStr::new(&at)];
    let agent = site.agent_with("127.0.0.1:0", &flags);
    for protocol in ["ws", "wss"] {
        let output = Command::new("node").arg(&client).args([&at, protocol]).output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
        assert_eq!((&report["code"], &report["errors"]), (&0.into(), &Value::Array(vec![])), "{protocol}");
        for test in ["download", "upload"] {
            let server = &report[test]["LastServerMeasurement"];
            assert_eq!((&server["Origin"], &server["Test"]), (&"server".into(), &test.into()), "{protocol}");
            assert!(server["AppInfo"]["NumBytes"].as_u64().unwrap() > 1_000_000, "{protocol} {test}: {server}");
            assert!(server["TCPInfo"]["RTT"].as_u64().is_some(), "{protocol} {test}: {server}");
        }
    }
    drop(agent);
}

#[test]
fn a_reflector_of_an_agent_answers_stamp() {
    let site = Site::new();
    let (root, at) = (site.root(), format!("127.0.0.1:{}", free_port("127.0.0.1")));
    let flags = ["--root".as_ref(), root.as_os_str(), "--authorize-any".as_ref(), "--stamp".as_ref(), OsStr::new(&at)];
    let agent = site.agent_with("127.0.0.1:0", &flags);
    agent.wait_for_log(&format!("answers STAMP at {at}"));
    let target = format!("stamp://{at}");
    let output = doctor(&[&target]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && said.contains("replies      320 of 320: 0 % lost"), "{said}");
    assert!(said.contains("TTL          255 there, 255 here"), "{said}");
    let report: Value = serde_json::from_slice(&doctor(&[&target, "--json"]).stdout).unwrap();
    assert_eq!(report["summary"]["sent"], 320);
    assert_eq!(report["ports"]["echoes"].as_array().unwrap().len(), 32);
    for (wrong, expected) in [
        (&["stamp://host:port"][..], "the port is not a number"),
        (&[&target, "--html", "x.html"], "sterna://HOST"),
        (&[&target, "--streams", "2"], "iperf3"),
    ] {
        let output = doctor(wrong);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains(expected), "{said}");
    }
}
