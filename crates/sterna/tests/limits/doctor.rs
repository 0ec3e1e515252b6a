//! Examinations of paths with properties that do not depend on the load of this host: options, sizes, ports, buckets.
//!
//! bench/doctor.py has statistics over all verdicts.

use sterna_lab::model::StrippedOptions;

use super::*;

/// Runs the doctor on host a against the agent, with flags. Returns its report.
fn examine(site: &Site, lab: &Lab, agent: &Agent, flags: &[&str]) -> Value {
    let mut doctor = lab.host_a().command(BINARY);
    doctor.args(["doctor", &agent.url(""), "--json", "--trust", &agent.fingerprint]).args(flags);
    let output = doctor.env("STERNA_STATE", site.local().join("state")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns the verdict with a name. Every verdict has its parts, and the rates of the ladder rise.
fn verdict(report: &Value, limit: &str) -> Option<Value> {
    let verdicts = report["verdicts"].as_array().unwrap();
    for verdict in verdicts {
        assert!(!verdict["evidence"].as_array().unwrap().is_empty() && verdict["remedy"] != "", "{verdict}");
        let (share, confidence) = (verdict["share"].as_f64().unwrap(), verdict["confidence"].as_f64().unwrap());
        assert!((0.0..=1.0).contains(&share) && (0.0..=1.0).contains(&confidence), "{verdict}");
    }
    for direction in ["forward", "reverse"] {
        let steps = report["ladder"].as_array().unwrap().iter().filter(|step| step["direction"] == direction);
        let rates: Vec<u64> = steps.map(|step| step["rate_bps"].as_u64().unwrap()).collect();
        assert!(rates.is_sorted(), "{report}");
    }
    verdicts.iter().find(|verdict| verdict["limit"] == limit).cloned()
}

#[test]
fn options_that_a_device_removes_are_named_with_their_place() {
    let _alone = alone();
    let mut model = path(100, 8);
    model.strip = StrippedOptions { sack: true, window_scale: true, timestamps: false };
    let Some(lab) = lab("options", &model, &[]) else { return };
    let site = Site::new();
    let agent = agent(&site, &lab);
    let report = examine(&site, &lab, &agent, &["--time", "20s"]);
    for limit in ["no_window_scaling", "no_sack"] {
        let verdict = verdict(&report, limit).unwrap_or_else(|| panic!("{limit} in {report}"));
        assert!(verdict["remedy"].as_str().unwrap().contains("a device on the way removes it"), "{verdict}");
    }
    assert_eq!(verdict(&report, "no_timestamps"), None);
}

#[test]
fn an_option_that_is_off_at_an_end_is_not_blamed_on_the_path() {
    let _alone = alone();
    let Some(lab) = lab("off", &path(100, 8), &[("net.ipv4.tcp_timestamps", "0")]) else { return };
    let site = Site::new();
    let agent = agent(&site, &lab);
    let verdict = verdict(&examine(&site, &lab, &agent, &["--time", "20s"]), "no_timestamps").unwrap();
    assert!(verdict["remedy"].as_str().unwrap().contains("sysctl -w net.ipv4.tcp_timestamps=1"), "{verdict}");
}

#[test]
fn large_packets_that_vanish_and_ports_of_a_longer_route_are_found() {
    let _alone = alone();
    let mut model = path(100, 8);
    (model.path_mtu, model.icmp) = (Some(1400), false);
    model.ecmp = vec![Duration::ZERO, Duration::from_millis(6)];
    let Some(lab) = lab("hole", &model, &[]) else { return };
    let site = Site::new();
    let agent = agent(&site, &lab);
    let bundle = site.local().join("bundle.json");
    let report = examine(&site, &lab, &agent, &["--time", "20s", "--bundle", bundle.to_str().unwrap()]);
    let hole = verdict(&report, "pmtu_black_hole").unwrap_or_else(|| panic!("{report}"));
    assert!(hole["evidence"][0].as_str().unwrap().contains("1400 bytes pass"), "{hole}");
    let modes = verdict(&report, "rtt_modes").unwrap_or_else(|| panic!("{report}"));
    let modes = modes["modes"].as_array().unwrap();
    assert_eq!(modes.len(), 2, "{modes:?}");
    // The report can be made again from its bundle, without a network.
    let shown = std::process::Command::new(BINARY).args(["doctor", "show", "--json"]).arg(&bundle).output().unwrap();
    let again: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(again, report);
}

/// Runs a command of a case on host a.
fn case(site: &Site, lab: &Lab, command: &str, flags: &[&str]) -> std::process::Output {
    let mut doctor = lab.host_a().command(BINARY);
    doctor.args(["doctor", "case", command]).arg(site.local().join("case")).args(flags);
    doctor.env("STERNA_STATE", site.local().join("state")).output().unwrap()
}

#[test]
fn a_retest_finds_a_policer_until_it_is_lifted() {
    let _alone = alone();
    let mut policed = path(100, 8);
    policed.forward.policer =
        Some(Policer { rate: BitRate::megabits(10), burst: ByteCount(64 << 10), udp_only: false });
    let (site, listen) = (Site::new(), |lab: &Lab| format!("{}:7373", lab.host_b().address()));
    let start = |lab: &Lab| {
        let root = site.root();
        let flags = ["--root".as_ref(), root.as_os_str(), "--authorize-any".as_ref()];
        site.agent_by(lab.host_b().command(BINARY), &listen(lab), &flags)
    };
    let retest = |lab: &Lab, agent: &Agent| {
        let flags = ["--trust", &agent.fingerprint, "--time", "20s", "--limit", "policer", "--json"];
        let output = case(&site, lab, "retest", &flags);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let json: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
        (output.status.code(), json["retest"]["limits"][0]["fate"].clone(), json["statements"].clone())
    };
    {
        let Some(lab) = lab("case", &policed, &[]) else { return };
        let agent = start(&lab);
        assert!(case(&site, &lab, "new", &["--target", &agent.url(""), "--title", "x"]).status.success());
        let run = case(&site, &lab, "run", &["--trust", &agent.fingerprint, "--time", "20s"]);
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        for value in ["rate_limit=10Mbit", "rate_limit=none"] {
            assert!(case(&site, &lab, "fact", &["--domain", "b", "--direction", "up", value]).status.success());
        }
        let (code, fate, statements) = retest(&lab, &agent);
        assert_eq!((code, fate.as_str()), (Some(1), Some("still_there")));
        assert_eq!(statements[0]["agreement"], "outdated", "{statements}");
    }
    let Some(lab) = lab("lifted", &path(100, 8), &[]) else { return };
    let agent = start(&lab);
    let (code, fate, statements) = retest(&lab, &agent);
    assert!(code == Some(0) && (fate == "gone" || fate == "replaced"), "{fate}");
    assert_eq!(statements[0]["agreement"], "agrees", "{statements}");
}
