//! `sterna doctor`: the plan of a path.

use std::process::{Command, Output};

use serde_json::Value;

use crate::site::BINARY;

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
