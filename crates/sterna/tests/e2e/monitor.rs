//! `sterna agent --monitor`: agents on this host that measure each other, their alarms, metrics and history.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use serde_json::Value;

use crate::site::{Agent, BINARY, Site, free_port, wait_until};

/// Starts an agent of a site that monitors others, with a short interval.
fn monitoring(site: &Site, listen: &str, flags: &[&str]) -> Agent {
    let root = site.root();
    let own =
        ["--root".as_ref(), root.as_os_str(), "--authorize-any".as_ref(), "--monitor-every".as_ref(), "1s".as_ref()];
    site.agent_with(listen, &own.into_iter().chain(flags.iter().map(OsStr::new)).collect::<Vec<_>>())
}

fn metrics(at: &str) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Returns the value of the first sample whose line begins with `name`.
fn sample(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.rsplit(' ').next()?.parse().ok()
}

fn history(site: &Site, flags: &[&str]) -> (bool, String) {
    let mut command = Command::new(BINARY);
    command.args(["doctor", "history", "--state"]).arg(site.path("agent-state")).args(flags);
    let output = command.output().unwrap();
    (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

#[test]
fn a_monitor_measures_its_peer_alarms_when_it_is_gone_and_yields_to_examinations() {
    let (site, other) = (Site::new(), Site::new());
    let (at, port) = (format!("127.0.0.1:{}", free_port("127.0.0.1")), other.any_port());
    let mut peer = other.agent_at(&port);
    let (url, key) = (peer.url(""), peer.fingerprint.clone());
    assert!(history(&site, &[]).1.contains("start an agent with --monitor"));
    let flags = ["--monitor", &url, "--trust", &key, "--metrics", &at, "--monitor-rate", "20Mbit"];
    let mut agent = monitoring(&site, &site.any_port(), &flags);
    agent.wait_for_log(&format!("path to {port}: first round measured"));
    let text = metrics(&at);
    let rtt = sample(&text, &format!("sterna_path_rtt_seconds{{peer=\"{port}\",mode=\"fastest\"}}")).unwrap();
    assert!(rtt < 1.0 && text.contains("# TYPE sterna_path_loss_ratio gauge\n"), "{text}");
    for direction in ["forward", "reverse"] {
        let of = format!("{{peer=\"{port}\",direction=\"{direction}\"");
        let rate = sample(&text, &format!("sterna_path_rate_bytes_per_second{of}")).unwrap();
        // The cap is 2.5 MB/s.
        assert!((10_000.0..3_000_000.0).contains(&rate), "{text}");
        assert_eq!(sample(&text, &format!("sterna_path_limit{of}")), Some(1.0), "{text}");
    }
    assert!(sample(&text, "sterna_path_bytes_total{").unwrap() > 100_000.0, "{text}");
    let learnt = fs::read_to_string(site.path("agent-state").join("paths")).unwrap();
    assert!(learnt.contains(&format!("out 127.0.0.1 {port} tcp ")) && learnt.contains(" least "), "{learnt}");
    // The monitor of either end holds the place for measurements nearly all the time.
    let mut doctor = Command::new(BINARY);
    doctor.args(["doctor", &agent.url(""), "--trust", &agent.fingerprint, "--time", "10s", "--max-rate", "10Mbit"]);
    let output = doctor.arg("--state").arg(site.local()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    peer.kill();
    agent.wait_for_log(&format!("path to {port}: unreachable since 20"));
    assert_eq!(sample(&metrics(&at), &format!("sterna_path_alarm{{peer=\"{port}\",kind=\"unreachable\"")), Some(1.0));
    let peer = other.agent_at(&port);
    agent.wait_for_log(&format!("path to {port}: over: unreachable since"));
    assert_eq!(agent.terminate().code(), Some(0));
    drop(peer);
    shows_its_history(&site, &url, &port);
}

/// Checks what the command shows of the rounds in the state directory.
fn shows_its_history(site: &Site, url: &str, peer: &str) {
    let page = site.path("page.html");
    let (is_done, said) = history(site, &[url, "--html", page.to_str().unwrap()]);
    assert!(is_done && said.contains(peer) && said.contains(": unreachable since 20"), "{said}");
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("history-rtt-0") && page.contains("over: unreachable"), "{page}");
    let (_, json) = history(site, &["--json", "--since", "1d"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    let path = &json["paths"][0];
    assert_eq!(path["peer"], peer);
    assert!(path["rounds"].as_array().unwrap().len() >= 4, "{json}");
    let turns: Vec<&Value> = path["changes"].as_array().unwrap().iter().map(|change| &change["turn"]).collect();
    assert!(turns.contains(&&Value::from("raised")) && turns.contains(&&Value::from("cleared")), "{json}");
    let (is_done, said) = history(site, &["sterna://elsewhere"]);
    assert!(!is_done && said.contains("no path to elsewhere:7373"), "{said}");
}

#[test]
fn three_agents_in_a_ring_measure_each_other_in_turn() {
    let sites = [Site::new(), Site::new(), Site::new()];
    let ports: Vec<String> = sites.iter().map(Site::any_port).collect();
    let key = |site: &Site| {
        let output = Command::new(BINARY).args(["id", "--state"]).arg(site.path("agent-state")).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let keys: Vec<String> = sites.iter().map(key).collect();
    let _agents: Vec<Agent> = (0..3)
        .map(|index| {
            let next = (index + 1) % 3;
            let url = format!("sterna://{}", ports[next]);
            let flags = ["--monitor", &url, "--trust", &keys[next], "--monitor-budget", "0"];
            monitoring(&sites[index], &ports[index], &flags)
        })
        .collect();
    for (index, site) in sites.iter().enumerate() {
        let file = site.path("agent-state/monitor").join(format!("{}.jsonl", ports[(index + 1) % 3]));
        wait_until("the second round", || {
            fs::read_to_string(&file).unwrap_or_default().matches("\"measured\"").count() >= 2
        });
    }
}

#[test]
fn a_peer_with_an_unknown_key_is_named_with_the_flag_that_accepts_it() {
    let (site, other) = (Site::new(), Site::new());
    let peer = other.agent();
    let agent = monitoring(&site, &site.any_port(), &["--monitor", &peer.url("")]);
    agent.wait_for_log(&format!("give --trust {}", peer.fingerprint));
    for (flags, expected) in [
        (&["--metrics", "127.0.0.1:0"][..], "--monitor"),
        (&["--monitor", "sterna://a", "--monitor", "sterna://a:7373"], "for a:7373 twice"),
        (&["--monitor", "sterna://a/x"], "without a path"),
        (&["--monitor", "sterna://a", "--monitor-every", "10ms"], "1s to 24h"),
    ] {
        let mut command = Command::new(BINARY);
        command.args(["agent", "--authorize-any", "--listen", "127.0.0.1:0", "--root"]).arg(other.root()).args(flags);
        let output = command.arg("--state").arg(site.local()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains(expected), "{flags:?}: {said}");
    }
}
