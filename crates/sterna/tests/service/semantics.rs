//! What the parameters of an FTS3 job do to its files: replacing, and trying again.

use serde_json::{Value, json};

use crate::client::Serve;
use crate::servers::Storage;

/// File of a job.
fn file(source: &str, destination: &str) -> Value {
    json!({"sources": [source], "destinations": [destination]})
}

/// Submits a job. Returns its identifier.
fn submit(serve: &Serve, files: &Value, params: &Value) -> String {
    let (status, body) = serve.request("POST", "/jobs", &json!({"files": files, "params": params}).to_string());
    assert_eq!(status, 200, "{body}");
    let reply: Value = serde_json::from_str(&body).unwrap();
    reply["job_id"].as_str().unwrap().to_owned()
}

/// Returns the files of a job.
fn files_of(serve: &Serve, id: &str) -> Vec<Value> {
    let (status, body) = serve.request("GET", &format!("/jobs/{id}/files"), "");
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

/// Returns the states of the files of a job that ends.
fn states(serve: &Serve, id: &str) -> Vec<String> {
    serve.wait_for_end(id);
    files_of(serve, id).iter().map(|file| file["file_state"].as_str().unwrap_or_default().to_owned()).collect()
}

const EXISTS: &str = "DESTINATION [17] Destination file exists and overwrite is not enabled";

/// The file at the end may be the only copy on a tape. Copies on the way are of no use to anybody.
#[test]
fn a_job_of_hops_replaces_copies_on_the_way_and_not_the_last_file() {
    let (source, between, last) = (Storage::nginx(""), Storage::nginx(""), Storage::nginx(""));
    let serve = Serve::start();
    source.put("f", b"new bytes");
    let hops = json!([file(&source.url("f"), &between.url("f")), file(&between.url("f"), &last.url("f"))]);
    let run = |params: Value| {
        between.put("f", b"on the way");
        last.put("f", b"archived");
        let mut params = params;
        params["multihop"] = json!(true);
        let id = submit(&serve, &hops, &params);
        let states = states(&serve, &id);
        let reasons = files_of(&serve, &id);
        let reason = reasons.iter().find_map(|file| file["reason"].as_str()).unwrap_or_default().to_owned();
        (states, reason, between.read("f").unwrap(), last.read("f").unwrap())
    };
    let (states, reason, between_bytes, last_bytes) = run(json!({}));
    assert_eq!(states, ["FAILED", "NOT_USED"], "{reason}");
    assert_eq!((between_bytes.as_slice(), last_bytes.as_slice()), (&b"on the way"[..], &b"archived"[..]));
    let (states, reason, between_bytes, last_bytes) = run(json!({"overwrite_hop": true}));
    assert_eq!((states, reason.as_str()), (vec!["FINISHED".to_owned(), "FAILED".to_owned()], EXISTS));
    assert_eq!((between_bytes.as_slice(), last_bytes.as_slice()), (&b"new bytes"[..], &b"archived"[..]));
    let (states, _, _, last_bytes) = run(json!({"overwrite": true}));
    assert_eq!((states, last_bytes.as_slice()), (vec!["FINISHED".to_owned(); 2], &b"new bytes"[..]));
}

#[test]
fn a_file_that_may_be_on_tape_is_not_replaced() {
    let serve = Serve::start();
    let files = json!([file("mock://a.example/f?size=1", "mock://b.example/f?size_pre=1&size_post=1")]);
    let disk = json!({"overwrite_when_only_on_disk": true, "archive_timeout": 60});
    let id = submit(&serve, &files, &disk);
    assert_eq!(states(&serve, &id), ["FAILED"]);
    assert_eq!(files_of(&serve, &id)[0]["reason"], EXISTS);
    assert_eq!(states(&serve, &submit(&serve, &files, &json!({"overwrite": true}))), ["FINISHED"]);
    for (params, text) in [
        (json!({"overwrite_when_only_on_disk": true}), "'archive-timeout'"),
        (json!({"overwrite_hop": true}), "multihop"),
    ] {
        let (status, body) = serve.request("POST", "/jobs", &json!({"files": files, "params": params}).to_string());
        assert!(status == 400 && body.contains(text), "{status} {body}");
    }
}

/// The client sends `retry` 0 always, which is the number of the VO: without one there is no further attempt.
#[test]
fn a_job_tries_again_as_often_as_it_or_its_vo_asks_for() {
    let serve = Serve::start();
    // A failure that another attempt could mend.
    let fails = |name: &str| json!([file("mock://a.example/f?size=1", &format!("mock://{name}/f?transfer_errno=5"))]);
    // Each endpoint is of one job: the service pauses those that fail.
    let attempts = |name: &str, mut params: Value| {
        params["retry_delay"] = json!(1);
        let id = submit(&serve, &fails(name), &params);
        assert_eq!(states(&serve, &id), ["FAILED"]);
        files_of(&serve, &id)[0]["retry"].as_u64().unwrap()
    };
    assert_eq!(attempts("none.example", json!({})), 1);
    assert_eq!(attempts("zero.example", json!({"retry": 0})), 1);
    assert_eq!(attempts("below.example", json!({"retry": -1})), 1);
    assert_eq!(attempts("one.example", json!({"retry": 1})), 2);
    let ends = ["mock://a.example/f?size=1", "mock://client.example/f?transfer_errno=5"];
    let said = serve.client("fts-rest-transfer-submit", &["-b", "-i", "1", ends[0], ends[1]]).run();
    assert!(said.stdout.contains("FAILED"), "the client waits for no second attempt: {said:?}");
    let (_, whoami) = serve.request("GET", "/whoami", "");
    let whoami: Value = serde_json::from_str(&whoami).unwrap();
    serve.sterna(&["config", "vo", whoami["vos"][0].as_str().unwrap(), "--retries", "2"]).succeed();
    assert_eq!(attempts("vo.example", json!({"retry": 0})), 3);
    assert_eq!(attempts("not.example", json!({"retry": -1})), 1);
    // A job of the native interface has the default of the service without one of its own.
    serve.sterna(&["config", "vo", whoami["vos"][0].as_str().unwrap(), "--retries", "default"]).succeed();
    let id = serve.sterna(&["submit", "mock://a.example/f?size=1", "mock://native.example/f?transfer_errno=5"]).succeed();
    let (mut failures, mut state) = (0, String::new());
    while failures == 0 {
        let (_, body) = serve.request("GET", &format!("/api/v1/jobs/{}/files", id.trim()), "");
        let files: Value = serde_json::from_str(&body).unwrap();
        failures = files["files"][0]["failures"].as_u64().unwrap();
        state = files["files"][0]["state"].as_str().unwrap().to_owned();
    }
    assert_eq!(state, "waiting", "for its second attempt");
}
