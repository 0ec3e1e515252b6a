//! Tests contracts for the rate of paths, and the path cache.

use std::fs;

use crate::site::Site;
use crate::tree::{Seeded, write};

/// Returns the records of the path cache of the client, split into fields.
fn remembered(site: &Site) -> Vec<Vec<String>> {
    let text = fs::read_to_string(site.path("client-state").join("paths")).unwrap_or_default();
    let records = text.lines().filter(|line| !line.starts_with('#'));
    records.map(|line| line.split(' ').map(str::to_owned).collect()).collect()
}

#[test]
fn what_a_path_carried_is_kept_and_chooses_the_next_transport() {
    let site = Site::new();
    let agent = site.agent();
    write(&site.local().join("f"), &Seeded::new(3).bytes(6_000_000));
    // A given rate needs no probing, which is difficult on a busy host.
    let slowly = ["--compress", "never", "--via"];
    site.copy(&agent).args(slowly).args(["quic", "--rate", "20Mbit", "f"]).arg(agent.url("q")).succeed();
    site.copy(&agent).args(slowly).args(["tcp", "--rate-max", "8Mbit", "f"]).arg(agent.url("t")).succeed();
    let records = remembered(&site);
    assert_eq!(records.len(), 2, "{records:?}");
    for (record, via) in records.iter().zip(["quic", "tcp"]) {
        assert_eq!((&record[0][..], &record[1][..], &record[3][..]), ("out", "127.0.0.1", via));
        assert_eq!(record[2], agent.addr.to_string());
        assert!(record[4].parse::<u64>().unwrap() > 0, "{record:?}");
    }
    // The opposite direction is another path, without a record.
    let pulled = site.copy(&agent).arg(agent.url("q")).arg("back").succeed();
    assert!(!pulled.text().contains("it carried"), "{}", pulled.text());
    write(&site.local().join("g"), b"bytes");
    // A copy below its rate cap does not show which transport carries more; a busy host can have limited it below the
    // cap.
    let memory = site.path("client-state").join("paths");
    let text = fs::read_to_string(&memory).unwrap();
    fs::write(&memory, text.replace(" full ", " least ")).unwrap();
    site.copy(&agent).arg("g").arg(agent.url("g")).succeed().says("tcp: on a short path");
    let text = fs::read_to_string(&memory).unwrap();
    fs::write(&memory, text.replace(" least ", " full ")).unwrap();
    site.copy(&agent).args(["--overwrite", "always", "g"]).arg(agent.url("g")).succeed().says("quic: it carried");
    // A damaged path cache is no error, and is replaced.
    fs::write(site.path("client-state").join("paths"), b"\xffnonsense\n").unwrap();
    site.copy(&agent).args(slowly).args(["quic", "--rate-max", "20Mbit", "f"]).arg(agent.url("q2")).succeed();
    assert_eq!(remembered(&site).len(), 1);
}

#[test]
fn a_contract_that_cannot_be_kept_is_wrong_usage() {
    let site = Site::new();
    let agent = site.agent();
    write(&site.local().join("f"), b"bytes");
    for (flags, named) in [
        (["--rate", "10Mbit", "--rate-max", "20Mbit"], "--rate-max"),
        (["--rate-max", "10Mbit", "--rate-min", "20Mbit"], "--rate-min"),
        (["--rate", "10Mbit", "--rate-min", "20Mbit"], "--rate-min"),
    ] {
        site.copy(&agent).args(flags).arg("f").arg(agent.url("f")).run().expect(2).says(named);
    }
    let polite = ["--polite", "--rate-min", "20Mbit"];
    site.copy(&agent).args(polite).arg("f").arg(agent.url("f")).run().expect(2).says("--polite");
    for flags in [["--rate", "63kbit"], ["--rate-max", "1bit"]] {
        site.copy(&agent).args(flags).arg("f").arg(agent.url("f")).run().expect(2).says("at least 64.0 kbit/s");
    }
}
