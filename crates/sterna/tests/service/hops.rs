//! Copies between the hops of a job: at storages and at agents they are deleted when nobody needs them any more.

use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use sterna_seeded::Seeded;

use crate::agents::Agent;
use crate::client::Serve;
use crate::relay::Relay;
use crate::servers::Storage;
use crate::storages::{LARGE, has_bytes, until};

/// Submits a job of hops over these locations.
fn submit(serve: &Serve, locations: &[String], more: Value) -> String {
    let hop = |pair: &[String]| json!({"sources": [pair[0]], "destination": pair[1]});
    let mut job = json!({"hops": true, "retries": 0, "files": locations.windows(2).map(hop).collect::<Vec<_>>()});
    job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let (status, body) = serve.request("POST", "/api/v1/jobs", &job.to_string());
    assert_eq!(status, 201, "{body}");
    serde_json::from_str::<Value>(&body).unwrap()["id"].as_str().unwrap().to_owned()
}

fn files(serve: &Serve, id: &str) -> Vec<Value> {
    let (_, body) = serve.request("GET", &format!("/api/v1/jobs/{id}/files"), "");
    serde_json::from_str::<Value>(&body).unwrap()["files"].as_array().unwrap().clone()
}

/// Waits until the deletion of the copy of the first hop is over. Returns its outcome.
fn cleanup(serve: &Serve, id: &str) -> String {
    let mut state = None;
    until(|| {
        state = files(serve, id)[0]["cleanup"]["state"].as_str().map(str::to_owned);
        state.is_some()
    });
    state.unwrap()
}

fn end(serve: &Serve, id: &str, expected: &str) {
    let job = serve.wait_for_end(id);
    assert_eq!(job["job_state"], expected, "{:?}", files(serve, id));
}

#[test]
fn copies_at_storages_are_deleted_when_the_file_has_arrived() {
    let (source, pulls, plain) = (Storage::xrootd(), Storage::xrootd(), Storage::nginx("create_full_put_path on;"));
    let serve = Serve::start();
    let bytes = Seeded::new(1).bytes(100_000);
    source.put("f", &bytes);
    // Two storages of one host and path could be one storage: each copy has a name of its own.
    let over = |name: &str| {
        let last = pulls.url(&format!("{name}.last"));
        vec![source.url("f"), pulls.url(&format!("{name}.1")), plain.url(&format!("{name}.2")), last]
    };
    let id = submit(&serve, &over("g"), json!({"checksum": "both"}));
    end(&serve, &id, "FINISHED");
    assert_eq!(cleanup(&serve, &id), "deleted");
    until(|| plain.names().is_empty() && pulls.names() == ["g.last"]);
    assert!(pulls.read("g.last").unwrap() == bytes && source.read("f").unwrap() == bytes);
    let id = submit(&serve, &over("h"), json!({"keeps_between": true}));
    end(&serve, &id, "FINISHED");
    assert_eq!((plain.names(), pulls.names().len()), (vec!["h.2".to_owned()], 3));
}

/// At a storage, and at an agent.
#[test]
fn a_later_hop_that_fails_leaves_no_copy() {
    let (source, between) = (Storage::xrootd(), Storage::nginx(""));
    let closed = Storage::nginx("location /closed/ { return 403; }");
    let serve = Serve::start();
    let agent = Agent::start(&serve, "relay.example", &["--web", "localhost"]);
    source.put("f", b"bytes");
    for (copy, is_there) in [
        (between.url("g"), &(|| between.read("g").is_some()) as &dyn Fn() -> bool),
        (agent.url("g"), &|| agent.path("g").exists()),
    ] {
        let id = submit(&serve, &[source.url("f"), copy.clone(), closed.url("closed/g")], json!({}));
        end(&serve, &id, "FAILED");
        assert_eq!(cleanup(&serve, &id), "deleted", "{copy}");
        assert!(!is_there() && source.read("f").is_some(), "{copy}");
    }
}

/// While the last hop is under way, and while the first one is.
#[test]
fn a_cancelled_job_leaves_no_copy() {
    // The service streams the last hop, through the relay that holds it.
    let (source, between, last) = (Storage::xrootd(), Storage::nginx(""), Storage::nginx(""));
    let serve = Serve::start();
    source.put("f", &Seeded::new(2).bytes(LARGE));
    let held = Relay::before(&last);
    let id = submit(&serve, &[source.url("f"), between.url("g"), held.url("h")], json!({}));
    until(|| has_bytes(&last.path("../body")));
    assert_eq!(between.names(), ["g"]);
    assert_eq!(serve.request("DELETE", &format!("/jobs/{id}"), "").0, 200);
    assert_eq!(cleanup(&serve, &id), "deleted");
    held.open();
    until(|| between.names().is_empty() && !has_bytes(&last.path("../body")));
    assert!(last.names().is_empty());
    // Nothing has been written that could be deleted.
    let held = Relay::before(&between);
    let id = submit(&serve, &[source.url("f"), held.url("g"), last.url("h")], json!({}));
    until(|| has_bytes(&between.path("../body")));
    assert_eq!(serve.request("DELETE", &format!("/jobs/{id}"), "").0, 200);
    held.open();
    until(|| between.names().is_empty() && !has_bytes(&between.path("../body")));
    assert_eq!(files(&serve, &id)[0]["cleanup"], Value::Null);
}

/// The process is killed while the storage has the request to delete the copy, and has not answered.
#[test]
fn a_killed_service_deletes_the_copy_after_its_restart() {
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let refuses = format!(
        "set $held $request_method; if (-f $document_root/../held) {{ set $held \"$held held\"; }}
        location / {{ if ($held = \"DELETE held\") {{ proxy_pass http://127.0.0.1:{}; }} }}",
        silent.local_addr().unwrap().port()
    );
    let (source, between, last) = (Storage::xrootd(), Storage::nginx(&refuses), Storage::xrootd());
    let mut serve = Serve::start();
    source.put("f", b"bytes");
    std::fs::write(between.path("../held"), b"").unwrap();
    let id = submit(&serve, &[source.url("f"), between.url("g"), last.url("h")], json!({}));
    end(&serve, &id, "FINISHED");
    let _request = silent.accept().unwrap();
    serve.kill();
    assert_eq!(between.names(), ["g"]);
    std::fs::remove_file(between.path("../held")).unwrap();
    serve.kill_and_start();
    assert_eq!(cleanup(&serve, &id), "deleted");
    assert!(between.names().is_empty());
    assert_eq!(last.read("h").unwrap(), b"bytes");
}

/// Between the arrival of the copy and its deletion, somebody has put another file at its place: at a storage while the
/// service was away, and at an agent while the next hop waited.
#[test]
fn a_file_that_has_come_to_the_place_of_a_copy_stays() {
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let holds = format!(
        "location / {{ if ($request_method = DELETE) {{ proxy_pass http://127.0.0.1:{}; }} }}",
        silent.local_addr().unwrap().port()
    );
    let (source, between, last) = (Storage::xrootd(), Storage::nginx(&holds), Storage::xrootd());
    let busy = Storage::nginx("location / { if ($request_method = PUT) { return 503; } }");
    let mut serve = Serve::start();
    let agent = Agent::start(&serve, "relay.example", &["--web", "localhost"]);
    source.put("f", b"bytes");
    let id = submit(&serve, &[source.url("f"), between.url("g"), last.url("h")], json!({}));
    end(&serve, &id, "FINISHED");
    let _request = silent.accept().unwrap();
    serve.kill();
    // nginx makes an ETag of the size and the second: another size makes another one at once.
    between.put("g", b"another file");
    serve.kill_and_start();
    assert_eq!(cleanup(&serve, &id), "given_up");
    let file = &files(&serve, &id)[0];
    assert!(file["cleanup"]["text"].as_str().unwrap().contains("another file is there"), "{file}");
    assert_eq!(between.read("g").unwrap(), b"another file");
    let id =
        submit(&serve, &[source.url("f"), agent.url("g"), busy.url("h")], json!({"retries": 9, "retry_wait_s": 3600}));
    until(|| files(&serve, &id)[1]["failures"] == 1);
    let age = || {
        let changed = std::fs::metadata(agent.path("g")).unwrap().ctime();
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64 - changed
    };
    until(|| age() >= 2);
    std::fs::write(agent.path("g"), b"other").unwrap();
    assert_eq!(serve.request("POST", &format!("/api/v1/jobs/{id}/cancel"), "").0, 200);
    assert_eq!(cleanup(&serve, &id), "given_up");
    assert_eq!(std::fs::read(agent.path("g")).unwrap(), b"other");
}

#[test]
fn a_file_that_was_there_before_stays() {
    let (source, between, last) = (Storage::xrootd(), Storage::nginx(""), Storage::xrootd());
    let serve = Serve::start();
    let agent = Agent::start(&serve, "relay.example", &["--web", "localhost"]);
    source.put("f", b"bytes");
    between.put("g", b"other");
    std::fs::write(agent.path("g"), b"other").unwrap();
    for (number, copy) in [between.url("g"), agent.url("g")].into_iter().enumerate() {
        let over = |name: &str| vec![source.url("f"), copy.clone(), last.url(&format!("{name}-{number}"))];
        let id = submit(&serve, &over("refused"), json!({}));
        end(&serve, &id, "FAILED");
        // It is replaced, because the job asks for that, and is not only a copy between hops.
        let id = submit(&serve, &over("replaced"), json!({"overwrite": "always"}));
        end(&serve, &id, "FINISHED");
        assert_eq!(cleanup(&serve, &id), "kept", "{copy}");
        // One that is new goes, whatever the job may replace.
        let new = vec![source.url("f"), format!("{copy}-new"), last.url(&format!("new-{number}"))];
        let id = submit(&serve, &new, json!({"overwrite": "always"}));
        end(&serve, &id, "FINISHED");
        assert_eq!(cleanup(&serve, &id), "deleted", "{copy}");
    }
    assert_eq!((between.names(), between.read("g").unwrap()), (vec!["g".to_owned()], b"bytes".to_vec()));
    assert_eq!(std::fs::read(agent.path("g")).unwrap(), b"bytes");
    assert!(!agent.path("g-new").exists());
}

/// The source of the user, and the file at the end, are never a copy between hops.
#[test]
fn a_way_that_comes_back_keeps_its_ends() {
    let (near, far) = (Storage::xrootd(), Storage::nginx("create_full_put_path on;"));
    let serve = Serve::start();
    near.put("f", b"bytes");
    // The copy has the name of the last file, by another scheme.
    let over = [near.url("f"), far.url("g"), near.url("h"), far.url_with("dav", "g")];
    let id = submit(&serve, &over, json!({"overwrite": "always"}));
    end(&serve, &id, "FINISHED");
    assert_eq!(cleanup(&serve, &id), "kept");
    until(|| near.names() == ["f"]);
    assert_eq!(far.names(), ["g"]);
}

#[test]
fn a_copy_that_cannot_be_deleted_is_given_up_and_reported() {
    let refuses = "location / { if ($request_method = DELETE) { return 403; } }";
    let (source, between, last) = (Storage::xrootd(), Storage::nginx(refuses), Storage::xrootd());
    let serve = Serve::start();
    source.put("f", b"bytes");
    let id = submit(&serve, &[source.url("f"), between.url("g"), last.url("h")], json!({}));
    end(&serve, &id, "FINISHED");
    assert_eq!(cleanup(&serve, &id), "given_up");
    let file = &files(&serve, &id)[0];
    assert!(file["cleanup"]["text"].as_str().unwrap().contains("403"), "{file}");
    let explained = serve.sterna(&["explain", &file["number"].to_string()]).succeed();
    assert!(explained.contains("copy between hops: given up: DELETE http"), "{explained}");
    assert!(serve.log().contains("given up after 1 attempts"), "{}", serve.log());
}
