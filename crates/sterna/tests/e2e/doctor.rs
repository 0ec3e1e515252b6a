//! `sterna doctor`: examinations on this host, the plan of a path, the connections of this host, and their errors.
//! `limits/doctor_host.rs` has the settings.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::site::{BINARY, Site};

fn plan(flags: &[&str]) -> Output {
    Command::new(BINARY).args(["doctor", "plan"]).args(flags).output().unwrap()
}

#[test]
fn a_plan_is_the_same_for_people_and_for_programs() {
    // GRNET: 6 MB of buffer at 8 ms.
    let of = ["--rate", "10Gbit", "--rtt", "8ms", "--kernel", "4.9"];
    let said = String::from_utf8(plan(&of).stdout).unwrap();
    assert!(said.contains("\n  3.15 Gbit/s     receive buffer\n  4.07 Gbit/s     send buffer\n"), "{said}");
    let json: Value = serde_json::from_slice(&plan(&[&of[..], &["--json"]].concat()).stdout).unwrap();
    let limits: Vec<&str> =
        json["ladder"].as_array().unwrap().iter().map(|step| step["limit"].as_str().unwrap()).collect();
    assert_eq!(limits, ["receive_buffer", "send_buffer", "path"]);
    assert_eq!((&json["window_bytes"], &json["streams_with_defaults"]), (&10_000_000.into(), &4.into()));
    // Without a version, the kernel of this host.
    assert!(plan(&of[..4]).status.success());
}

#[test]
fn a_path_that_cannot_be_is_wrong_usage() {
    for (flags, expected) in [
        (&["--rate", "1Gbit"][..], "--rtt"),
        (&["--rate", "0Gbit", "--rtt", "8ms"], "a rate of zero"),
        (&["--rate", "1Gbit", "--rtt", "8"], "expected a number and a unit"),
        (&["--rate", "1Gbit", "--rtt", "8ms", "--loss", "1"], "from 0 to below 1"),
        (&["--rate", "1Gbit", "--rtt", "8ms", "--kernel", "new"], "as in 6.1"),
        (&["--rate", "1Gbit", "--rtt", "8ms", "--mtu", "100"], "576"),
    ] {
        let output = plan(flags);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains(expected), "{flags:?}: {said}");
    }
}

fn examine(site: &Site, arguments: &[&str]) -> Output {
    let mut doctor = Command::new(BINARY);
    doctor.arg("doctor").args(arguments).env("STERNA_STATE", site.local().join("state")).output().unwrap()
}

#[test]
fn an_examination_tells_what_it_cost_and_moves_no_more() {
    let site = Site::new();
    let agent = site.agent();
    let flags = [&agent.url(""), "--trust", &agent.fingerprint, "--time", "10s", "--max-rate", "50Mbit"];
    let output = examine(&site, &[&flags[..], &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let bytes = report["cost"]["bytes"].as_u64().unwrap();
    let parts = report["cost"]["parts"].as_array().unwrap();
    assert_eq!(parts.iter().map(|one| one["bytes"].as_u64().unwrap()).sum::<u64>(), bytes);
    // Ten seconds at the given rate.
    assert!((1_000_000..=62_500_000).contains(&bytes), "{report}");
    assert!(report["measured_bps"].as_u64().unwrap() > 0 && report["reverse_measured_bps"].as_u64().unwrap() > 0);
    let at = |name: &str| site.local().join(name).display().to_string();
    let (bundle, page, plots) = (at("one.json"), at("one.html"), at("plots"));
    let words = examine(&site, &[&flags[..], &["--bundle", &bundle, "--html", &page, "--svg", &plots]].concat());
    let said = String::from_utf8(words.stdout).unwrap();
    assert!(said.starts_with(&agent.url("")) && said.contains("\n1. ") && said.contains("\ncost: "), "{said}");
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("Rate over time, A to B") && page.contains(&agent.fingerprint), "{page}");
    assert!(fs::read_to_string(Path::new(&plots).join("rate-forward.svg")).unwrap().contains("<svg"));
    shows_a_bundle_again(&site, &bundle, &said);
}

/// Checks what `show` and `compare` make of a bundle whose report was `said`, and of a changed one.
fn shows_a_bundle_again(site: &Site, bundle: &str, said: &str) {
    let key = Command::new(BINARY).args(["id", "--state"]).arg(site.local().join("state")).output().unwrap();
    let key = String::from_utf8(key.stdout).unwrap().trim().to_owned();
    let shown = examine(site, &["show", bundle, "--signer", &key]);
    assert_eq!(String::from_utf8(shown.stdout).unwrap(), said);
    let proof = String::from_utf8(shown.stderr).unwrap();
    assert!(proof.contains(&format!("unchanged since it was signed by {key}")), "{proof}");
    let json = examine(site, &["show", bundle, "--json"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((json["signed"]["signers"][0].as_str(), json["format"].as_u64()), (Some(&key[..]), Some(1)));
    let exported = String::from_utf8(examine(site, &["show", bundle, "--pscheduler"]).stdout).unwrap();
    let tests: Vec<Value> =
        exported.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["test"]["type"].clone()).collect();
    assert!(tests.contains(&"throughput".into()) && tests.contains(&"rtt".into()), "{exported}");
    let same = examine(site, &["compare", bundle, bundle]);
    assert!(same.status.success() && String::from_utf8(same.stdout).unwrap().contains("as before"));
    let changed = bundle.replace("one", "changed");
    fs::write(&changed, fs::read_to_string(bundle).unwrap().replacen("127.0.0.1", "127.0.0.2", 1)).unwrap();
    for (arguments, expected) in [
        (["show", &changed], "was changed after"),
        (["show", "/dev/zero"], "more than 64 MiB"),
        (["show", "/nowhere"], "read the bundle /nowhere"),
    ] {
        let output = examine(site, &arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(expected), "{arguments:?}: {said}");
    }
    let other = examine(site, &["show", bundle, "--signer", &format!("SHA256:{}", "A".repeat(43))]);
    assert_eq!(other.status.code(), Some(6), "{}", String::from_utf8_lossy(&other.stderr));
}

#[test]
fn a_target_that_is_no_agent_is_named() {
    let site = Site::new();
    let agent = site.agent();
    for (target, flags, code, expected) in [
        ("/data", &[][..], 2, "is no agent: give sterna://HOST"),
        ("sterna://127.0.0.1:1", &[], 5, "connect to the agent 127.0.0.1:1"),
        (&agent.url("")[..], &[], 6, "is unknown to this host"),
        (&agent.url(""), &["--time", "1s"], 2, "from 10 s to 600 s"),
    ] {
        let output = examine(&site, &[&[target], flags].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(code) && said.contains(expected), "{target}: {said}");
    }
    let shown = examine(&site, &["show", "/dev/null"]);
    let said = String::from_utf8(shown.stderr).unwrap();
    assert!(shown.status.code() != Some(0) && said.contains("no bundle of the doctor"), "{said}");
}

fn doctor(flags: &[&str]) -> Output {
    Command::new(BINARY).arg("doctor").args(flags).output().unwrap()
}

#[test]
fn connections_of_a_process_are_shown_with_verdicts_at_the_end() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (receiver, _) = listener.accept().unwrap();
    let (local, pid) = (sender.local_addr().unwrap().to_string(), std::process::id().to_string());
    let is_over = AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        scope.spawn(|| {
            let data = [7; 65_536];
            while (&sender).write_all(&data).is_ok() {}
        });
        scope.spawn(|| {
            let mut data = [0; 65_536];
            loop {
                let read = (&receiver).read(&mut data);
                if read.is_err() || is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let output = doctor(&["--watch", "--pid", &pid, "--time", "3s", "--json"]);
        is_over.store(true, Ordering::Relaxed);
        // Ends a write that waits for room, and a read that waits for data.
        sender.shutdown(Shutdown::Both).unwrap();
        output
    });
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}");
    let objects: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (summary, rows) = objects.split_last().unwrap();
    let row = rows.iter().rfind(|row| row["local"] == local.as_str()).unwrap();
    assert_eq!(
        (&row["pid"], &row["direction"], &row["event"]),
        (&std::process::id().into(), &"out".into(), &"connection".into())
    );
    assert!(row["rate_bps"].as_u64().unwrap() > 1_000_000, "{row}");
    assert_eq!(summary["event"], "summary");
    assert!(summary["paths"].as_array().unwrap().iter().any(|path| path["remote"] == "127.0.0.1"), "{summary}");
}

#[test]
fn what_cannot_be_watched_is_wrong_usage() {
    // No process has the largest number.
    for (flags, expected) in [
        (&["--watch", "--pid", "4294967295"][..], "no process 4294967295"),
        (&["watch", "--time", "3"], "expected a whole number and a unit"),
        (&["watch", "--rate-min", "0"], "rate"),
        (&["host", "--rollback", "--apply"], "cannot be used with"),
        (&["host", "--persist", "f"], "--apply"),
    ] {
        let output = doctor(flags);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains(expected), "{flags:?}: {said}");
    }
}
