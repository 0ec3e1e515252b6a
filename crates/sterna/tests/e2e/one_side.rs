//! `sterna doctor HOST:PORT` and `sterna doctor http://HOST/FILE`: examinations from one side, over loopback.

use std::net::TcpListener;
use std::process::{Command, Output};

use serde_json::Value;

use crate::range_server::RangeServer;
use crate::site::BINARY;

fn doctor(flags: &[&str]) -> Output {
    Command::new(BINARY).arg("doctor").args(flags).output().unwrap()
}

#[test]
fn a_server_shows_its_options_route_and_sizes() {
    let server = RangeServer::start(TcpListener::bind("127.0.0.1:0").unwrap());
    let target = server.addr.to_string();
    let output = doctor(&[&target, "--time", "10s", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    assert_eq!((&report["target"], &report["path"]["address"]), (&target.clone().into(), &target.clone().into()));
    assert_eq!(report["verdicts"], Value::Array(vec![]), "{report}");
    let path = &report["path"];
    let agreed = &path["agreed"][0];
    assert_eq!(
        (&agreed["sack"], &agreed["timestamps"], &agreed["window_scaling"]),
        (&true.into(), &true.into(), &true.into())
    );
    assert!(path["server_receive_buffer"].as_str().unwrap().contains("MB"), "{report}");
    // A quarter of the time, at ten a second.
    let connections = path["connections"].as_u64().unwrap();
    assert!((10..=26).contains(&connections) && path["answered"] == connections, "{report}");
    assert_eq!((&path["lost_syns"], &path["is_reached"]), (&0.into(), &true.into()));
    assert_eq!((&path["hops"][0]["address"], &path["mtu"]["passes"]), (&"127.0.0.1".into(), &9216.into()));
    let limits: Vec<&str> =
        report["ladder"].as_array().unwrap().iter().map(|step| step["limit"].as_str().unwrap()).collect();
    assert!(limits.contains(&"receive_buffer") && limits.contains(&"send_buffer"), "{report}");
    let said = String::from_utf8(doctor(&[&target, "--time", "10s"]).stdout).unwrap();
    assert!(said.starts_with(&format!("{target}: a TCP server, over ")), "{said}");
    for expected in
        ["no trouble found in what one side shows", "window scale ", "not visible from one side:", "\ncost: "]
    {
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

#[test]
fn downloads_keep_to_the_given_rate_and_number_of_connections() {
    let server = RangeServer::start(TcpListener::bind("127.0.0.1:0").unwrap());
    for (file, takes_ranges) in [("moved", true), ("whole", false)] {
        let before = server.connections();
        let output = doctor(&[&server.url(file), "--time", "10s", "--max-rate", "80Mbit", "--json"]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
        let redirected = if file == "moved" { server.url("f").into() } else { Value::Null };
        assert_eq!((&report["redirected"], &report["takes_ranges"]), (&redirected, &takes_ranges.into()), "{report}");
        let flows = report["flows"].as_array().unwrap();
        let streams: Vec<u64> = flows.iter().map(|flow| flow["streams"].as_u64().unwrap()).collect();
        assert_eq!(streams, [1, 2, 4], "{report}");
        for flow in flows {
            let (bytes, seconds) = (flow["received_bytes"].as_u64().unwrap(), flow["seconds"].as_f64().unwrap());
            // One read of each connection may come early.
            assert!(bytes > 0 && bytes as f64 <= seconds * 10e6 + 4.0 * 65_536.0, "{flow}");
        }
        let verdict = &report["verdicts"][0];
        assert_eq!((&verdict["limit"], &verdict["direction"]), (&"rate_cap".into(), &"reverse".into()), "{report}");
        let cost = &report["cost"];
        assert!(cost["connections"].as_u64().unwrap() <= 130 && server.connections() - before <= 130, "{report}");
        assert!(cost["bytes"].as_u64().unwrap() >= flows[0]["received_bytes"].as_u64().unwrap(), "{report}");
    }
}

#[test]
fn targets_that_are_no_server_are_named() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for (target, flags, code, expected) in [
        (&closed[..], &[][..], 5, "refused: no program listens"),
        (&format!("http://{closed}/f"), &[], 5, "GET http://127.0.0.1"),
        ("example.org:", &[], 2, "the port is not a number"),
        ("example.org:70000", &[], 2, "the port is not a number"),
        ("::1", &[], 2, "IPv6 in brackets"),
        ("host:dir", &[], 2, "HOST:PORT of a TCP server"),
        ("example.org:22", &["--html", "x.html"], 2, "sterna://HOST"),
        ("example.org:22", &["--streams", "2"], 2, "iperf3://HOST"),
        ("http://example.org/f", &["--from", "127.0.0.1"], 2, "give HOST:PORT"),
    ] {
        let output = doctor(&[&[target], flags].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(code) && said.contains(expected), "{target}: {:?} {said}", output.status);
    }
}
