//! Parameters of an FTS3 job, and their effect on its files: replacing, and trying again.

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
    let id =
        serve.sterna(&["submit", "mock://a.example/f?size=1", "mock://native.example/f?transfer_errno=5"]).succeed();
    let (mut failures, mut state) = (0, String::new());
    while failures == 0 {
        let (_, body) = serve.request("GET", &format!("/api/v1/jobs/{}/files", id.trim()), "");
        let files: Value = serde_json::from_str(&body).unwrap();
        failures = files["files"][0]["failures"].as_u64().unwrap();
        state = files["files"][0]["state"].as_str().unwrap().to_owned();
    }
    assert_eq!(state, "waiting", "for its second attempt");
}

/// A job that would go on anonymously is refused, so that the client delegates.
#[test]
fn a_job_without_the_proxy_that_its_storages_need_is_refused() {
    let mut serve = Serve::start();
    let needs = json!({"files": [file("https://a.invalid/f", "davs://b.invalid/f")], "params": {"retry": -1}});
    let post = |serve: &Serve, body: &Value| serve.request("POST", "/jobs", &body.to_string());
    assert_eq!(post(&serve, &needs).0, 200, "proxies are not asked for");
    let nowhere = serve.state_dir().join("nowhere");
    serve.restart_with(("SSL_CERT_DIR", &nowhere), "[storages]\ndelegation = true\n");
    let assert_refused = |serve: &Serve, text: &str| {
        for method in ["POST", "PUT"] {
            let (status, body) = serve.request(method, "/jobs", &needs.to_string());
            let reply: Value = serde_json::from_str(&body).unwrap();
            assert_eq!((status, &reply["status"]), (419, &"419 Authentication Timeout".into()), "{body}");
            assert!(reply["message"].as_str().unwrap().starts_with(text), "{body}");
        }
    };
    assert_refused(&serve, "No delegation found for \"/");
    let mut one_token = needs.clone();
    one_token["files"][0]["source_tokens"] = json!(["x"]);
    assert_eq!(post(&serve, &one_token).0, 419, "the other storage would see nobody");
    let mut tokens = one_token.clone();
    tokens["files"][0]["destination_tokens"] = json!(["y"]);
    assert_eq!(post(&serve, &tokens).0, 200, "tokens are enough");
    let plain = json!({"files": [file("http://a.invalid/f", "mock://b.invalid/f")], "params": {"retry": -1}});
    assert_eq!(post(&serve, &plain).0, 200, "there is nobody to show a certificate to");
    let script = r#"
import datetime, sys
import fts3.rest.client.easy as fts3
from fts3.rest.client.exceptions import NeedDelegation
from fts3.rest.client.submitter import Submitter
endpoint, cert, key, capath, minutes = sys.argv[1:6]
context = fts3.Context(endpoint, ucert=cert, ukey=key, verify=True, capath=capath)
job = fts3.new_job([fts3.new_transfer("https://a.invalid/f", "davs://b.invalid/f")])
try:
    Submitter(context).submit(transfers=job["files"], params=job["params"])
except NeedDelegation:
    fts3.delegate(context, lifetime=datetime.timedelta(minutes=int(minutes)), force=True)
    print("delegated")
"#;
    assert_eq!(serve.python(script, &["30"]).succeed(), "delegated\n");
    assert_refused(&serve, "The delegated credentials has less than one hour left (");
    let database = serve.state_dir().join("service/sterna.db");
    let age = "import sqlite3, sys; base = sqlite3.connect(sys.argv[1], timeout=60); \
        base.execute('UPDATE proxies SET expires = 1'); base.commit()";
    let aged = std::process::Command::new("python3").args(["-c", age]).arg(database).status();
    assert!(aged.unwrap().success());
    assert_refused(&serve, "The delegated credentials expired ");
    assert_eq!(serve.python(script, &["120"]).succeed(), "delegated\n");
    assert_eq!(post(&serve, &needs).0, 200);
    assert_eq!(serve.python(script, &["120"]).succeed(), "", "the proxy is there");
}

/// The bindings give up after 30 s.
#[test]
fn the_bindings_submit_and_cancel_many_files_before_they_give_up() {
    let serve = Serve::start();
    let script = r#"
import json, sys
import fts3.rest.client.easy as fts3
endpoint, cert, key, capath = sys.argv[1:5]
context = fts3.Context(endpoint, ucert=cert, ukey=key, verify=True, capath=capath)
transfers = [fts3.new_transfer("mock://a.example/%d?size=1" % n, "mock://b.example/%d?time=600" % n) for n in range(20000)]
job = fts3.submit(context, fts3.new_job(transfers))
files = fts3.get_jobs_statuses(context, [job], list_files=True)
files = (files if isinstance(files, list) else [files])[0]["files"]
print(len(files), fts3.cancel(context, job)["job_state"])
"#;
    assert_eq!(serve.python(script, &[]).succeed(), "20000 CANCELED\n");
}
