//! `sterna doctor host` and `watch` on hosts of the lab: settings are changed only in their network namespaces.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{BINARY, Lab, alone, lab, path, wait_until};

/// Settings that the command may change in a network namespace.
const SETTINGS: [&str; 6] = [
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_sack",
    "net.ipv4.tcp_window_scaling",
    "net.ipv4.tcp_no_metrics_save",
];

/// Returns the settings of host a.
fn settings(lab: &Lab) -> BTreeMap<String, String> {
    let read = |name: &str| {
        let file = format!("/proc/sys/{}", name.replace('.', "/"));
        let output = lab.host_a().command("cat").arg(file).output().unwrap();
        (name.to_owned(), String::from_utf8(output.stdout).unwrap())
    };
    SETTINGS.iter().map(|name| read(name)).collect()
}

fn host(lab: &Lab, state: &Path, flags: &[&str]) -> Command {
    let mut command = lab.host_a().command(BINARY);
    command.args(["doctor", "host", "--json", "--state"]).arg(state).args(flags);
    command
}

fn json(command: &mut Command) -> Value {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns a state directory whose path cache knows a path of 148 ms.
fn state() -> tempfile::TempDir {
    let state = tempfile::tempdir().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let record = format!("out 10.77.0.1 10.77.1.1:7373 quic 50000000 full 148000 0 1500 {now}\n");
    std::fs::write(state.path().join("paths"), record).unwrap();
    state
}

const SMALL: [(&str, &str); 3] = [
    ("net.ipv4.tcp_rmem", "4096 131072 6291456"),
    ("net.ipv4.tcp_wmem", "4096 16384 4194304"),
    ("net.ipv4.tcp_sack", "0"),
];

#[test]
fn settings_are_applied_and_rolled_back_exactly() {
    let _alone = alone();
    let Some(lab) = lab("host", &path(1000, 10), &SMALL) else { return };
    let state = state();
    let persisted = state.path().join("90.conf");
    let before = settings(&lab);
    let report = json(&mut host(&lab, state.path(), &["--rate", "1Gbit"]));
    let rmem = report["findings"].as_array().unwrap().iter().find(|one| one["setting"] == "ipv4.tcp_rmem").unwrap();
    assert_eq!((&rmem["effect"], &rmem["path"]), (&"hurts".into(), &"10.77.1.1".into()), "{report}");
    assert_eq!(settings(&lab), before, "a report changes nothing");
    // Without a terminal, there is nobody to ask.
    let refused = host(&lab, state.path(), &["--rate", "1Gbit", "--apply"]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert_eq!(settings(&lab), before);
    let flags = ["--rate", "1Gbit", "--apply", "--yes", "--persist", persisted.to_str().unwrap()];
    let applied = json(&mut host(&lab, state.path(), &flags));
    assert!(applied["changed"].as_array().unwrap().len() >= 3, "{applied}");
    let after = settings(&lab);
    assert_eq!(after["net.ipv4.tcp_sack"], "1\n");
    let text = std::fs::read_to_string(&persisted).unwrap();
    assert!(text.contains("net.ipv4.tcp_sack = 1\n") && text.contains("net.ipv4.tcp_rmem = 4096 131072 "), "{text}");
    // A higher wish keeps the oldest values.
    json(&mut host(&lab, state.path(), &["--rate", "2Gbit", "--apply", "--yes"]));
    assert_ne!(settings(&lab), after);
    json(&mut host(&lab, state.path(), &["--rollback"]));
    assert_eq!(settings(&lab), before);
    assert!(!persisted.exists(), "the file was not there before");
    let again = host(&lab, state.path(), &["--rollback"]).output().unwrap();
    assert!(String::from_utf8_lossy(&again.stderr).contains("nothing to roll back"));
}

#[test]
fn a_kill_between_two_changes_leaves_what_the_rollback_needs() {
    let _alone = alone();
    let Some(lab) = lab("kill", &path(1000, 10), &SMALL) else { return };
    let before = settings(&lab);
    for _ in 0..5 {
        let state = state();
        let flags = ["--rate", "1Gbit", "--apply", "--yes"];
        let mut applies = host(&lab, state.path(), &flags).stdout(Stdio::null()).spawn().unwrap();
        let record = state.path().join("host-settings");
        wait_until("the old values are durable", || record.exists());
        applies.kill().unwrap();
        applies.wait().unwrap();
        json(&mut host(&lab, state.path(), &["--rollback"]));
        assert_eq!(settings(&lab), before);
        assert!(!record.exists());
    }
}

#[test]
fn a_record_of_another_network_namespace_is_refused() {
    let _alone = alone();
    let Some(lab) = lab("other", &path(1000, 10), &SMALL) else { return };
    let state = state();
    json(&mut host(&lab, state.path(), &["--rate", "1Gbit", "--apply", "--yes"]));
    let mut other = lab.host_b().command(BINARY);
    let output = other.args(["doctor", "host", "--rollback", "--state"]).arg(state.path()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && said.contains("another network namespace"), "{said}");
    json(&mut host(&lab, state.path(), &["--rollback"]));
}
