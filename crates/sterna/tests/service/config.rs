//! `sterna config`: settings of a real service, and that the scheduler follows them.

use serde_json::{Value, json};

use super::client::Serve;

const SOURCE: &str = "mock://a.example/f?size=10";
const SLOW: &str = "mock://b.example/f?time=600";

/// Maximum number of runs of a command that a test waits with. Reason: each takes some ms; a busy machine.
const RUNS_MAX: usize = 2000;

fn config(serve: &Serve, arguments: &[&str]) -> String {
    let words: Vec<&str> = ["config"].into_iter().chain(arguments.iter().copied()).collect();
    serve.sterna(&words).succeed()
}

/// Runs a command that fails with this code. Returns its stderr.
fn fail(serve: &Serve, arguments: &[&str], code: i32) -> String {
    let words: Vec<&str> = ["config"].into_iter().chain(arguments.iter().copied()).collect();
    let run = serve.sterna(&words).run();
    assert_eq!(run.code, Some(code), "{run:?}");
    run.stderr
}

fn submit(serve: &Serve, arguments: &[&str]) -> String {
    let words: Vec<&str> = ["submit"].into_iter().chain(arguments.iter().copied()).collect();
    serve.sterna(&words).succeed().trim_end().to_owned()
}

/// Explains a job until a text is there.
fn until_explained(serve: &Serve, job: &str, text: &str) {
    let mut last = String::new();
    for _ in 0..RUNS_MAX {
        last = serve.sterna(&["explain", job]).run().all();
        if last.contains(text) {
            return;
        }
    }
    panic!("no {text:?} in {last}");
}

/// Returns the settings as JSON.
fn settings(serve: &Serve) -> Value {
    serde_json::from_str(&config(serve, &["--json"])).unwrap()
}

/// Words of the last line of a text.
fn last_words(text: &str) -> Vec<&str> {
    text.lines().last().unwrap_or_default().split_whitespace().collect()
}

#[test]
fn limits_of_links_and_endpoints_are_followed_at_once() {
    let serve = Serve::start();
    let shown = config(&serve, &[]);
    assert!(
        shown.contains(": transfers start\n") && shown.contains("10000 transfers in all, 66 on a link, 200 to"),
        "{shown}"
    );
    assert_eq!(shown.lines().count(), 3, "no setting: {shown}");
    let said = config(&serve, &["link", "mock://a.example:99/", "mock://b.example", "--max", "1"]);
    assert_eq!(last_words(&said), ["mock://a.example", "mock://b.example", "1"], "{said}");
    submit(&serve, &[SOURCE, SLOW]);
    let second = submit(&serve, &[SOURCE, SLOW]);
    until_explained(&serve, &second, "link: 1 transfers are under way, the maximum");
    config(&serve, &["link", "mock://a.example", "mock://b.example", "--remove"]);
    config(&serve, &["endpoint", "mock://b.example", "--in", "2", "--out", "9"]);
    let said = config(&serve, &["endpoint", "mock://b.example", "--in", "1"]);
    assert_eq!(last_words(&said), ["mock://b.example", "1", "9"], "the other limit stays: {said}");
    let third = submit(&serve, &[SOURCE, SLOW]);
    until_explained(&serve, &third, "destination: 1 transfers are under way, the maximum");
    let said = config(&serve, &["endpoint", "mock://b.example", "--in", "default"]);
    assert_eq!(last_words(&said), ["mock://b.example", "default", "9"], "{said}");
    // The same setting at the other interface.
    let (_, body) = serve.request("GET", "/config/se", "");
    let of_fts3: Value = serde_json::from_str(&body).unwrap();
    let info = &of_fts3["mock://b.example"]["se_info"];
    assert_eq!((&info["inbound_max_active"], &info["outbound_max_active"]), (&Value::Null, &9.into()), "{body}");
    let said = fail(&serve, &["link", "mock://a.example", "mock://b.example", "--remove"], 5);
    assert!(said.contains("there is no setting for the link from mock://a.example to mock://b.example"), "{said}");
    assert!(fail(&serve, &["endpoint", "b.example", "--in", "1"], 5).contains("expected SCHEME://HOST"));
}

#[test]
fn the_limit_of_the_service_counts_all_links_and_survives_a_restart() {
    let mut serve = Serve::start();
    assert_eq!(config(&serve, &["service", "--max", "1"]), "transfers of the service: 1\n");
    serve.kill_and_start();
    assert!(config(&serve, &[]).contains("\ntransfers of the service: 1\n"));
    submit(&serve, &[SOURCE, SLOW]);
    let second = submit(&serve, &[SOURCE, "mock://c.example/f"]);
    until_explained(&serve, &second, "service: 1 transfers are under way, the maximum");
    config(&serve, &["drain", "on"]);
    until_explained(&serve, &second, "an operator has drained the service");
    config(&serve, &["drain", "off"]);
    let said = fail(&serve, &["service", "--max", "0"], 5);
    assert!(said.contains("a drained host starts none"), "{said}");
    assert_eq!(config(&serve, &["service", "--max", "default"]), "transfers of the service: default\n");
    serve.sterna(&["watch", &second]).succeed();
    assert_eq!(settings(&serve)["max"], Value::Null);
}

/// Two operators who change different limits of an endpoint at the same time lose nothing.
#[test]
fn changes_at_the_same_time_are_all_kept() {
    let serve = Serve::start();
    let change = |field: &str| {
        let http = serve.http();
        for number in 1..=300 {
            let body = json!({field: number}).to_string();
            let reply = http.send("PATCH", "/api/v1/config/endpoints/mock%3A%2F%2Fb.example", None, body.as_bytes());
            assert_eq!(reply.status, 200, "{reply:?}");
            let there = http.send("GET", "/api/v1/config", None, b"").json();
            assert_eq!(there["endpoints"][0][field], number, "nobody else changes it: {there}");
        }
    };
    std::thread::scope(|scope| ["max_in", "max_out"].map(|field| scope.spawn(move || change(field))).map(drop));
    let expected = json!([{"endpoint": "mock://b.example", "max_in": 300, "max_out": 300}]);
    assert_eq!(settings(&serve)["endpoints"], expected);
}

#[test]
fn a_link_with_a_name_of_fts3_is_the_same_link() {
    let serve = Serve::start();
    let link =
        r#"{"symbolicname": "l1", "source": "mock://a.example", "destination": "*", "max_active": 7, "nostreams": 3}"#;
    assert_eq!(serve.request("POST", "/config/links", link).0, 201);
    let expected = json!([{"source": "mock://a.example", "destination": "*", "max": 7}]);
    assert_eq!(settings(&serve)["links"], expected);
    config(&serve, &["link", "mock://a.example", "*", "--max", "8"]);
    let (_, body) = serve.request("GET", "/config/links", "");
    let links: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(links.as_array().map(Vec::len), Some(1), "{body}");
    assert_eq!((&links[0]["max_active"], &links[0]["nostreams"]), (&8.into(), &3.into()), "{body}");
    config(&serve, &["link", "mock://a.example", "*", "--remove"]);
    assert_eq!(serve.request("GET", "/config/links", "").1, "[]");
}

#[test]
fn shares_activities_and_grants_are_set_shown_and_removed() {
    let serve = Serve::start();
    config(&serve, &["share", "atlas", "70", "--destination", "mock://b.example"]);
    config(&serve, &["share", "public", "0.5", "--guarantee", "0.1"]);
    let activities = ["activities", "atlas", "production=3", "default=1", "--ignored", "--guarantee", "production=0.5"];
    config(&serve, &activities);
    config(&serve, &["grant", "/DC=org/CN=Operator, x", "config"]);
    let expected = json!({
        "shares": [
            {"vo": "public", "source": "*", "destination": "*", "weight": 0.5, "guarantee": 0.1},
            {"vo": "atlas", "source": "*", "destination": "mock://b.example", "weight": 70.0, "guarantee": 0.0},
        ],
        "activities": [{
            "vo": "atlas",
            "is_followed": false,
            "weights": {"production": 3.0, "default": 1.0},
            "guarantees": {"production": 0.5},
        }],
        "grants": [{"operation": "config", "user": "/DC=org/CN=Operator, x"}],
    });
    let there = settings(&serve);
    for (kind, expected) in expected.as_object().unwrap() {
        assert_eq!(&there[kind], expected, "{there}");
    }
    // The interface of FTS3 has no guarantees, shows none, and keeps them.
    let share = json!({"source": "*", "destination": "*", "vo": "public", "share": 0.5});
    assert_eq!(serve.request("POST", "/config/shares", &share.to_string()).0, 200);
    assert!(!serve.request("GET", "/config/shares", "").1.contains("guarantee"));
    assert_eq!(settings(&serve)["shares"][0]["guarantee"], json!(0.1));
    for (path, body) in [
        ("shares/*/*/v", json!({"weight": 1, "guarantee": 1.01})),
        ("shares/*/*/v", json!({"weight": 1, "guarantee": -0.1})),
        ("activities/v", json!({"weights": {"a": 1}, "guarantees": {"a": 2}})),
        ("activities/v", json!({"weights": {"a": 1}, "guarantees": {"b": 0.5}})),
    ] {
        let (status, text) = serve.request("PUT", &format!("/api/v1/config/{path}"), &body.to_string());
        assert!(status == 400 && text.contains("guarantee"), "{body}: {status} {text}");
    }
    let shown = config(&serve, &[]);
    for title in ["SHARES\n", "ACTIVITIES\n", "GRANTS\n"] {
        assert!(shown.contains(title), "{shown}");
    }
    config(&serve, &["share", "atlas", "--destination", "mock://b.example", "--remove"]);
    config(&serve, &["share", "public", "--remove"]);
    config(&serve, &["activities", "atlas", "--remove"]);
    config(&serve, &["grant", "/DC=org/CN=Operator, x", "config", "--remove"]);
    let there = settings(&serve);
    assert!(["shares", "activities", "grants"].iter().all(|kind| there[kind] == json!([])), "{there}");
    assert!(fail(&serve, &["share", "atlas", "--remove"], 5).contains("there is no setting for the share of atlas"));
}

#[test]
fn a_vo_has_defaults_a_limit_and_an_order() {
    let serve = Serve::start();
    let (_, whoami) = serve.request("GET", "/whoami", "");
    let whoami: Value = serde_json::from_str(&whoami).unwrap();
    let vo = whoami["vos"][0].as_str().unwrap();
    config(&serve, &["vo", vo, "--max", "1", "--retries", "2", "--queue-time", "48h", "--timeout", "10min"]);
    let said = config(&serve, &["vo", vo, "--order", "submission"]);
    assert_eq!(last_words(&said), [vo, "submission", "1", "2", "48h", "600s"], "{said}");
    let (_, body) = serve.request("GET", "/config/global", "");
    let of_fts3: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&of_fts3[vo]["retry"], &of_fts3[vo]["max_time_queue"]), (&2.into(), &48.into()), "{body}");
    submit(&serve, &[SOURCE, SLOW]);
    let low = submit(&serve, &["--priority", "1", SOURCE, SLOW]);
    let high = submit(&serve, &["--priority", "5", SOURCE, SLOW]);
    until_explained(&serve, &low, "VO: 1 transfers are under way, the maximum");
    // The limit goes: by submission, the first of the two goes first, although its priority is lower.
    config(&serve, &["link", "*", "*", "--max", "2"]);
    config(&serve, &["vo", vo, "--max", "default"]);
    until_explained(&serve, &low, " active: mock://a.example/");
    until_explained(&serve, &high, "link: 2 transfers are under way, the maximum");
    config(&serve, &["vo", vo, "--remove"]);
    assert_eq!(settings(&serve)["vos"], json!([]));
    assert!(fail(&serve, &["vo", "*", "--order", "submission"], 5).contains("in defaults only"));
    assert!(fail(&serve, &["vo", vo, "--queue-time", "90min"], 2).contains("whole hours"));
}

#[test]
fn a_drained_host_starts_nothing_until_it_may_again() {
    let serve = Serve::start();
    assert_eq!(config(&serve, &["drain", "on"]), "no transfer starts: the host is drained\n");
    let job = submit(&serve, &[SOURCE, "mock://b.example/f"]);
    until_explained(&serve, &job, "an operator has drained the service: it starts no transfers");
    assert!(config(&serve, &[]).contains("no transfer starts"));
    assert_eq!(config(&serve, &["drain", "off"]), "transfers start\n");
    serve.sterna(&["watch", &job]).succeed();
}

#[test]
fn every_change_is_in_the_audit_log() {
    let mut serve = Serve::start();
    for change in [
        &["service", "--max", "500"][..],
        &["link", "*", "mock://b.example", "--max", "5"],
        &["endpoint", "*", "--in", "5"],
        &["share", "v", "1"],
        &["activities", "v", "a=1"],
        &["vo", "v", "--retries", "1"],
        &["vo", "v", "--max", "1"],
        &["grant", "u", "transfer"],
        &["drain", "on"],
        &["drain", "off"],
        &["vo", "v", "--remove"],
    ] {
        config(&serve, change);
    }
    // A change that is refused is no change.
    fail(&serve, &["link", "nonsense", "*", "--max", "5"], 5);
    let shown = config(&serve, &["audit"]);
    let actions: Vec<&str> = shown.lines().skip(1).filter_map(|line| line.split("  ").nth(2)).map(str::trim).collect();
    let expected = [
        "vo-delete",
        "delete-globals",
        "drain",
        "drain",
        "authorize",
        "vo-config",
        "set-globals",
        "activity-share",
        "share-config",
        "set-se-config",
        "link-config",
        "service-config",
    ];
    assert_eq!(actions, expected, "{shown}");
    let entry: Value = serde_json::from_str(&config(&serve, &["audit", "--limit", "1", "--json"])).unwrap();
    assert_eq!(entry["entries"].as_array().map(Vec::len), Some(1), "{entry}");
    // Settings are there after a power cut.
    let before = settings(&serve);
    serve.kill_and_start();
    assert_eq!(settings(&serve), before);
}
