//! Limits of transfers with storages, and bytes of attempts that failed or were cancelled.

use serde_json::{Value, json};
use sterna_seeded::Seeded;

use crate::agents::Agent;
use crate::client::Serve;
use crate::relay::Relay;
use crate::servers::Storage;
use crate::storages::{LARGE, SLOW, has_bytes, run, submit, until, wait};

/// Number of looks with the same number of bytes after which a transfer stands still.
const SAME_LOOKS: usize = 4 * 40;

/// Returns the limits of a file, the largest share first. Panics unless the shares make a whole.
fn limits(file: &Value) -> Vec<(String, f64)> {
    let limits = file["limits"].as_array().unwrap_or_else(|| panic!("{file}"));
    let share = |limit: &Value| (limit["limit"].as_str().unwrap().to_owned(), limit["share"].as_f64().unwrap());
    let limits: Vec<_> = limits.iter().map(share).collect();
    let sum: f64 = limits.iter().map(|(_, share)| share).sum();
    assert!((sum - 1.0).abs() < 1e-6, "{file}");
    limits
}

/// Returns a storage with one slow file.
fn slow_source(bytes: usize) -> Storage {
    let source = Storage::nginx(SLOW);
    std::fs::create_dir(source.path("slow")).unwrap();
    source.put("slow/f", &Seeded::new(1).bytes(bytes));
    source
}

fn details(serve: &Serve, number: &Value) -> Value {
    let (_, body) = serve.request("GET", &format!("/api/v1/files/{number}"), "");
    serde_json::from_str(&body).unwrap()
}

/// Waits until the bytes of the only file of a job have not changed for some time. Returns its number.
fn wait_until_it_stands(serve: &Serve, id: &str) -> Value {
    let (mut file, mut same) = (Value::Null, 0);
    until(|| {
        let (_, body) = serve.request("GET", &format!("/api/v1/jobs/{id}/files"), "");
        let now = serde_json::from_str::<Value>(&body).unwrap()["files"][0].clone();
        let is_same = now["state"] == "active" && now["bytes"] == file["bytes"] && now["bytes"] != 0;
        same = if is_same { same + 1 } else { 0 };
        file = now;
        same >= SAME_LOOKS
    });
    file["number"].clone()
}

#[test]
fn a_slow_source_is_named() {
    let (source, streams, pulls) = (slow_source(3 << 20), Storage::nginx(""), Storage::xrootd());
    let serve = Serve::start();
    let streamed = run(&serve, &source.url("slow/f"), &streams.url("g"), json!({}));
    assert_eq!(streamed.way(), "streamed");
    let (first, share) = limits(&streamed.native).remove(0);
    assert!(first == "server_or_path" && share > 0.8, "{}", streamed.native);
    assert_eq!(streamed.native["stripes"], Value::Null);
    let watched = serve.sterna(&["watch", streamed.native["job"].as_str().unwrap()]).run();
    assert!(watched.stderr.contains("limited by: server or path"), "{watched:?}");
    // The service sees the markers of the storage, and nothing else.
    let pulled = run(&serve, &source.url("slow/f"), &pulls.url("g"), json!({}));
    assert_eq!(pulled.way(), "pull");
    let (first, share) = limits(&pulled.native).remove(0);
    assert!(first == "server_or_path" && share > 0.8, "{}", pulled.native);
}

/// The attempt is cancelled while the destination reads nothing, by the service and by an agent.
#[test]
fn a_destination_that_does_not_read_is_named() {
    let (source, destination) = (Storage::nginx(""), Storage::nginx(""));
    let serve = Serve::start();
    let agent = Agent::start(&serve, "near.example", &["--web", "localhost"]);
    let bytes = Seeded::new(2).bytes(LARGE);
    source.put("f", &bytes);
    std::fs::write(agent.path("f"), &bytes).unwrap();
    for (from, way) in [(source.url("f"), "streamed"), (agent.url("f"), "put")] {
        let held = Relay::before(&destination);
        let id = submit(&serve, json!({"sources": [from], "destinations": [held.url("g")]}), &json!({}));
        let number = wait_until_it_stands(&serve, &id);
        assert_eq!(serve.request("DELETE", &format!("/jobs/{id}"), "").0, 200);
        let mut file = Value::Null;
        until(|| {
            file = details(&serve, &number)["file"].clone();
            !file["limits"].as_array().unwrap().is_empty()
        });
        assert_eq!((&file["state"], &file["by"]), (&json!("cancelled"), &json!(way)), "{file}");
        let (first, share) = limits(&file).remove(0);
        assert!(first == "destination_disk" && share > 0.5, "{file}");
        // Those that this host has given to the connection.
        assert!(file["bytes"].as_u64().unwrap() >= 8 << 20, "{file}");
        let explained = serve.sterna(&["explain", &number.to_string()]).succeed();
        assert!(explained.contains("limited by: destination disk"), "{explained}");
    }
}

#[test]
fn a_cancelled_read_of_an_agent_has_its_bytes_and_limits() {
    let source = slow_source(LARGE);
    let serve = Serve::start();
    let agent = Agent::start(&serve, "near.example", &["--web", "localhost"]);
    let file = json!({"sources": [source.url("slow/f")], "destinations": [agent.url("g")]});
    let id = submit(&serve, file, &json!({}));
    let file = || {
        let (_, body) = serve.request("GET", &format!("/api/v1/jobs/{id}/files"), "");
        serde_json::from_str::<Value>(&body).unwrap()["files"][0].clone()
    };
    until(|| file()["bytes"].as_u64().unwrap() > 1 << 20);
    assert_eq!(serve.request("DELETE", &format!("/jobs/{id}"), "").0, 200);
    until(|| !file()["limits"].as_array().unwrap().is_empty());
    let file = file();
    assert_eq!((&file["state"], &file["by"]), (&json!("cancelled"), &json!("sterna")), "{file}");
    assert_eq!(limits(&file).remove(0).0, "server_or_path", "{file}");
    assert!(file["bytes"].as_u64().unwrap() > 1 << 20 && !agent.path("g").exists(), "{file}");
}

/// By a third-party copy, by the service, and by an agent.
#[test]
fn a_failed_attempt_has_its_bytes_and_limits() {
    let serve = Serve::start();
    for streams in [false, true] {
        let mut source = slow_source(LARGE);
        let destination = if streams { Storage::nginx("") } else { Storage::xrootd() };
        let file = json!({"sources": [source.url("slow/f")], "destinations": [destination.url("g")]});
        let id = submit(&serve, file, &json!({"retry": -1}));
        until(|| has_bytes(&destination.path("")) || has_bytes(&destination.path("../body")));
        source.stop();
        assert_failed_attempt(&serve, &id, if streams { "streamed" } else { "pull" });
    }
    let agent = Agent::start(&serve, "near.example", &["--web", "localhost"]);
    std::fs::write(agent.path("f"), Seeded::new(3).bytes(LARGE)).unwrap();
    let mut destination = Storage::nginx("");
    let held = Relay::before(&destination);
    let file = json!({"sources": [agent.url("f")], "destinations": [held.url("g")]});
    let id = submit(&serve, file, &json!({"retry": -1}));
    wait_until_it_stands(&serve, &id);
    destination.stop();
    held.open();
    assert_failed_attempt(&serve, &id, "put");
}

/// Panics unless the only attempt of a job has failed and has its way, bytes and limits.
fn assert_failed_attempt(serve: &Serve, id: &str, way: &str) {
    let failed = wait(serve, id);
    assert_eq!(failed.job["job_state"], "FAILED", "{}", failed.native);
    let number = &failed.native["number"];
    let attempt = details(serve, number)["attempts"][0].clone();
    assert_eq!(attempt["by"], json!(way), "{attempt}");
    assert!(attempt["time_ms"].as_u64().unwrap() > 0 && !limits(&attempt).is_empty(), "{attempt}");
    // XRootD sends a marker every 5 s.
    assert!(way == "pull" || attempt["bytes"].as_u64().unwrap() > 0, "{attempt}");
    let explained = serve.sterna(&["explain", &number.to_string()]).succeed();
    assert!(explained.contains("\n    moved ") && explained.contains("limited by: "), "{explained}");
}
