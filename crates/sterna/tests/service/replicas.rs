//! Jobs with several sources: which one goes first, which one follows, and why.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use super::agents::Agent;
use super::client::Serve;
use super::servers::Storage;

const A: &str = "mock://a.example";
const B: &str = "mock://b.example";
const TO: &str = "mock://to.example/f";

/// Maximum number of looks at a file. Reason: a busy machine, and a tick of the service each second.
const LOOKS_MAX: usize = 20_000;

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn submit(serve: &Serve, job: &Value) -> String {
    let (status, body) = serve.request("POST", "/api/v1/jobs", &job.to_string());
    assert_eq!(status, 201, "{body}");
    json_of(&body)["id"].as_str().unwrap().to_owned()
}

/// Submits a job of one file with these sources.
fn one_file(serve: &Serve, strategy: &str, sources: &[&str], destination: &str) -> String {
    let file = json!({"sources": sources, "destination": destination, "strategy": strategy});
    submit(serve, &json!({"files": [file], "retries": 0}))
}

fn files(serve: &Serve, job: &str) -> Vec<Value> {
    let (_, body) = serve.request("GET", &format!("/api/v1/jobs/{job}/files"), "");
    json_of(&body)["files"].as_array().unwrap_or_else(|| panic!("{body}")).clone()
}

/// Returns the states of the files of a job, in the order in which they were submitted.
fn states(serve: &Serve, job: &str) -> Vec<String> {
    files(serve, job).iter().map(|file| file["state"].as_str().unwrap().to_owned()).collect()
}

fn until_states(serve: &Serve, job: &str, expected: &[&str]) {
    let mut last = Vec::new();
    for _ in 0..LOOKS_MAX {
        last = states(serve, job);
        if last == expected {
            return;
        }
    }
    panic!("{last:?} does not become {expected:?}");
}

/// Returns the decisions about a file of a job: kind and reason.
fn decisions(serve: &Serve, job: &str, index: usize) -> Vec<(String, String)> {
    let number = files(serve, job)[index]["number"].clone();
    let (_, body) = serve.request("GET", &format!("/api/v1/files/{number}"), "");
    let details = json_of(&body);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let all = details["decisions"].as_array().unwrap_or_else(|| panic!("{body}"));
    all.iter().map(|decision| (text(&decision["kind"]), text(&decision["text"]))).collect()
}

fn drain(serve: &Serve, is_drained: bool) {
    let body = json!({"is_drained": is_drained}).to_string();
    assert_eq!(serve.request("PUT", "/api/v1/config/drain", &body).0, 200);
}

fn ban(serve: &Serve, endpoint: &str) {
    serve.sterna(&["ban", "--wait", endpoint]).succeed();
}

fn lift(serve: &Serve, endpoint: &str) {
    serve.sterna(&["ban", "--lift", endpoint]).succeed();
}

/// The batches of an upload have 1,000 files or so: those of the batches before count, too.
#[test]
fn the_files_of_one_job_go_to_all_its_sources() {
    const FILES: usize = 3000;
    let serve = Serve::start();
    drain(&serve, true);
    let directory = tempfile::tempdir().unwrap();
    let manifest = directory.path().join("manifest");
    for strategy in ["queue", "pending-data", "waiting-time", "waiting-time-with-error", "duration", "best"] {
        let file = |number: usize| {
            let sources = [A, B].map(|endpoint| format!("{endpoint}/{strategy}/{number}"));
            let destination = format!("mock://{strategy}.example/{number}");
            let file = json!({"sources": sources, "destination": destination, "strategy": strategy, "size": 1000});
            format!("{file}\n")
        };
        std::fs::write(&manifest, format!("{{}}\n{}", (0..FILES).map(file).collect::<String>())).unwrap();
        let id = serve.sterna(&["submit", "--from", manifest.to_str().unwrap()]).succeed();
        let pages = serve.sterna(&["status", id.trim_end(), "--files", "--json"]).succeed();
        let mut waiting: BTreeMap<String, usize> = BTreeMap::new();
        for page in pages.lines().skip(1) {
            let page = json_of(page);
            for file in page["files"].as_array().unwrap().iter().filter(|file| file["state"] == "waiting") {
                let endpoint = file["source"].as_str().unwrap().split('/').nth(2).unwrap().to_owned();
                *waiting.entry(endpoint).or_default() += 1;
            }
        }
        assert_eq!(waiting.values().copied().collect::<Vec<_>>(), [FILES / 2; 2], "{strategy}: {waiting:?}");
    }
}

#[test]
fn a_banned_source_is_the_last_choice_except_in_the_order_of_the_user() {
    let serve = Serve::start();
    let sources = ["mock://a.example/f?size=1", "mock://b.example/f?size=1"];
    ban(&serve, A);
    let best = one_file(&serve, "best", &sources, TO);
    until_states(&serve, &best, &["reserved", "finished"]);
    let (kind, why) = decisions(&serve, &best, 1).remove(0);
    assert!(kind == "choice" && why.starts_with("best: mock://b.example is expected in "), "{why}");
    assert!(why.contains("; mock://a.example is banned, is expected in "), "{why}");
    let orderly = one_file(&serve, "orderly", &sources, "mock://to.example/g");
    until_states(&serve, &orderly, &["waiting", "reserved"]);
    lift(&serve, A);
    until_states(&serve, &orderly, &["finished", "reserved"]);
}

#[test]
fn a_source_without_agents_is_the_last_choice_also_for_the_first_job() {
    let serve = Serve::start();
    let (near, to) = (Agent::start(&serve, "near.example", &[]), Agent::start(&serve, "to.example", &[]));
    let mut away = Agent::start(&serve, "away.example", &[]);
    away.kill();
    std::fs::write(near.path("f"), b"bytes").unwrap();
    let absent = |agents: Value| {
        let is_away = |site: &&Value| site["name"] == "away.example";
        agents["sites"].as_array().unwrap().iter().find(is_away).unwrap()["agents"][0]["is_connected"] == false
    };
    for _ in 0..LOOKS_MAX {
        if absent(json_of(&serve.request("GET", "/api/v1/sites", "").1)) {
            break;
        }
    }
    let id = one_file(&serve, "queue", &[&away.url("f"), &near.url("f")], &to.url("g"));
    until_states(&serve, &id, &["reserved", "finished"]);
    let (_, why) = decisions(&serve, &id, 1).remove(0);
    assert!(why.ends_with("; sterna://away.example has no agent, has 0 files in its queue"), "{why}");
}

/// Files of a source that is banned for long go to the other one, and come back when that is banned. A file that an
/// operator holds back and one that waits behave in the same way. A kill in between loses nothing.
#[test]
fn a_stuck_file_goes_to_a_free_replica_and_comes_back() {
    let mut serve = Serve::start();
    serve.restart_with(("UNUSED", Path::new("")), "[replicas]\npatience_s = 0\n");
    drain(&serve, true);
    let sources = ["mock://a.example/f?size=1", "mock://b.example/f?size=1"];
    let held = one_file(&serve, "queue", &sources, TO);
    until_states(&serve, &held, &["waiting", "reserved"]);
    ban(&serve, A);
    until_states(&serve, &held, &["reserved", "waiting"]);
    // In the order of the user, the banned source goes first and is left as soon as it has been banned for long.
    let waits = one_file(&serve, "orderly", &sources, "mock://to.example/g");
    until_states(&serve, &waits, &["reserved", "waiting"]);
    let alone = one_file(&serve, "queue", &sources[..1], "mock://to.example/h");
    serve.kill_and_start();
    ban(&serve, B);
    lift(&serve, A);
    for job in [&held, &waits] {
        until_states(&serve, job, &["waiting", "reserved"]);
    }
    assert_eq!(states(&serve, &alone), ["waiting"]);
    let (first, second) = (decisions(&serve, &held, 0), decisions(&serve, &held, 1));
    let kinds: Vec<&str> = first.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!((kinds, second.len()), (vec!["choice", "swap", "swap"], 2), "{first:?} {second:?}");
    assert_eq!(first[1..], second[..], "both have the same reasons");
    let (number, other) = (files(&serve, &held)[0]["number"].clone(), files(&serve, &held)[1]["number"].clone());
    let begins = format!("{A} (file {number}) waits: its source is banned, since ");
    let ends = format!("; {B} (file {other}) is next; queue: {B} has ");
    assert!(first[1].1.starts_with(&begins) && first[1].1.contains(&ends), "{first:?}");
    let said = serve.sterna(&["explain", &number.to_string()]).succeed();
    assert!(said.contains("  swap at 20") && said.contains(&begins), "{said}");
    drain(&serve, false);
    for job in [&held, &waits] {
        until_states(&serve, job, &["finished", "reserved"]);
    }
    lift(&serve, B);
}

#[test]
fn failures_are_followed_by_a_decision_with_its_reason() {
    let serve = Serve::start();
    let sources = ["mock://a.example/f?errno=2", "mock://b.example/f?size=1", "mock://c.example/f?size=1"];
    let id = one_file(&serve, "orderly", &sources, TO);
    until_states(&serve, &id, &["failed", "finished", "reserved"]);
    let (first, second) = (decisions(&serve, &id, 0), decisions(&serve, &id, 1));
    let expected = "orderly: mock://a.example in the order of the user; mock://b.example in the order of the user; \
                    mock://c.example in the order of the user";
    assert_eq!(first[0], ("choice".to_owned(), expected.to_owned()));
    let numbers: Vec<String> = files(&serve, &id).iter().map(|file| file["number"].to_string()).collect();
    let begins = format!("{A} (file {}) failed: stat mock://a.example/f?errno=2: No such file", numbers[0]);
    let ends = format!("; one of 2 other replicas, at once: {B} (file {}) is next; orderly: ", numbers[1]);
    assert_eq!((first.len(), &first[1]), (2, &second[0]));
    let (kind, text) = &first[1];
    assert!(kind == "failover" && text.starts_with(&begins) && text.contains(&ends), "{text}");
    // A retry, and the end.
    let full = submit(
        &serve,
        &json!({"files": [{"sources": [A.to_owned() + "/f"], "destination": "mock://full.example/f?transfer_errno=28"}]}),
    );
    let mut retry = Vec::new();
    for _ in 0..LOOKS_MAX {
        retry = decisions(&serve, &full, 0);
        if !retry.is_empty() {
            break;
        }
    }
    assert!(retry[0].0 == "retry" && retry[0].1.contains("; attempt 2 of 4 in "), "{retry:?}");
    assert!(retry[0].1.contains("because the failure may pass: the pause is 60 s to 2 min, at random"), "{retry:?}");
    let ended = one_file(&serve, "best", &["mock://a.example/f?errno=2"], "mock://to.example/i");
    until_states(&serve, &ended, &["failed"]);
    let end = decisions(&serve, &ended, 0);
    assert!(end.len() == 1 && end[0].0 == "end" && end[0].1.contains("failed: stat "), "{end:?}");
}

#[test]
fn a_checksum_that_nobody_knows_is_refused_or_fails_its_file() {
    let serve = Serve::start();
    let job = |checksum: &str| {
        let file = json!({"sources": [A.to_owned() + "/f"], "destination": TO, "checksum": checksum});
        serve.request("POST", "/api/v1/jobs", &json!({"files": [file], "checksum": "both"}).to_string())
    };
    for (checksum, expected) in [
        ("WHIRLPOOL:00", "is not known: expected one of adler32, crc32c, md5, sha256, blake3"),
        ("ADLER32:xyz", "is no adler32 checksum"),
    ] {
        let (status, body) = job(checksum);
        let text = json_of(&body)["text"].to_string();
        assert!(status == 400 && text.contains("file 1: ") && text.contains(expected), "{status} {body}");
    }
    assert_eq!(job("SHA-256").0, 201);
    // FTS3 takes every text, and fails the file.
    let (near, to) = (Agent::start(&serve, "near.example", &[]), Agent::start(&serve, "to.example", &[]));
    std::fs::write(near.path("f"), b"bytes").unwrap();
    let file = json!({"sources": [near.url("f")], "destinations": [to.url("g")], "checksum": "WHIRLPOOL:00"});
    let request = json!({"files": [file], "params": {"verify_checksum": "both", "retry": -1}});
    let (status, body) = serve.request("POST", "/jobs", &request.to_string());
    assert_eq!(status, 200, "{body}");
    let id = json_of(&body)["job_id"].as_str().unwrap().to_owned();
    assert_eq!(serve.wait_for_end(&id)["job_state"], "FAILED");
    let (_, body) = serve.request("GET", &format!("/jobs/{id}/files"), "");
    assert!(body.contains("is not known: expected one of adler32"), "{body}");
    assert!(!to.path("g").exists());
}

/// nginx copies nothing to another storage, so that the service streams.
#[test]
fn a_virtual_organisation_can_forbid_streams_through_the_service() {
    let serve = Serve::start();
    let (from, to) = (Storage::nginx(""), Storage::nginx(""));
    from.put("f", b"bytes");
    let forbid = |forbids: bool| {
        let request = json!({"vo_name": "*", "no_streaming": forbids}).to_string();
        assert_eq!(serve.request("POST", "/config/global", &request).0, 200);
    };
    forbid(true);
    for name in ["g1", "g2"] {
        let id = one_file(&serve, "best", &[&from.url("f")], &to.url(name));
        until_states(&serve, &id, &["failed"]);
        let failure = files(&serve, &id)[0]["failure"]["text"].to_string();
        assert!(failure.contains("forbids streams through the service (no_streaming)"), "{failure}");
        assert_eq!(to.read(name), None);
    }
    // A change of the native interface keeps it.
    serve.sterna(&["config", "vo", "*", "--retries", "1"]).succeed();
    assert!(serve.request("GET", "/config/global", "").1.contains(r#""no_streaming":true"#));
    forbid(false);
    let id = one_file(&serve, "best", &[&from.url("f")], &to.url("g3"));
    until_states(&serve, &id, &["finished"]);
    assert_eq!((to.read("g3").as_deref(), &files(&serve, &id)[0]["by"]), (Some(&b"bytes"[..]), &json!("streamed")));
}
