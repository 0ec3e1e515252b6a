//! Change feed of the native interface, by pages and as a stream.

use serde_json::{Value, json};

use crate::client::Serve;

/// Submits a job of three files that take long. Returns its identifier.
fn submit_slow(serve: &Serve) -> String {
    let file = |name: &str| json!({"sources": ["mock://a.example/f?size=1"], "destination": format!("mock://b.example/{name}?time=600")});
    let files = ["x", "y", "z"].map(file);
    let (status, body) = serve.request("POST", "/api/v1/jobs", &json!({"files": files}).to_string());
    assert_eq!(status, 201, "{body}");
    serde_json::from_str::<Value>(&body).unwrap()["id"].as_str().unwrap().to_owned()
}

fn page(serve: &Serve, query: &str) -> Value {
    let (status, body) = serve.request("GET", &format!("/api/v1/changes{query}"), "");
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

fn cancel(serve: &Serve, id: &str) {
    let (status, body) = serve.request("POST", &format!("/api/v1/jobs/{id}/cancel"), "{}");
    assert_eq!(status, 200, "{body}");
}

#[test]
fn a_follower_starts_at_the_present_and_sees_every_file_end() {
    let serve = Serve::start();
    let old = submit_slow(&serve);
    cancel(&serve, &old);
    let begin = page(&serve, "?after=latest");
    assert_eq!(begin["changes"], json!([]), "nothing of the past");
    let end = page(&serve, "")["changes"].as_array().unwrap().last().unwrap()["sequence"].clone();
    assert_eq!(begin["cursor"], end);
    let mut events = serve.events("/api/v1/changes?after=latest");
    let id = submit_slow(&serve);
    cancel(&serve, &id);
    let mut streamed = Vec::new();
    while streamed.last().is_none_or(|last: &Value| last["file"] != json!(null) || last["state"] != "cancelled") {
        streamed.push(events.next());
    }
    assert!(streamed.iter().all(|change| change["job"] == id), "{streamed:?}");
    let ended = |changes: &[Value]| {
        let of_files = changes.iter().filter(|change| !change["file"].is_null() && change["state"] == "cancelled");
        of_files.map(|change| change["file"].as_u64().unwrap()).collect::<Vec<u64>>()
    };
    assert_eq!(ended(&streamed).len(), 3, "{streamed:?}");
    let paged = page(&serve, &format!("?after={}", begin["cursor"]));
    assert_eq!(paged["changes"].as_array().unwrap(), &streamed, "pages have the same");
}

#[test]
fn a_place_in_the_feed_that_is_none_is_refused() {
    let serve = Serve::start();
    for wrong in ["last", "-1", "1e3", "99999999999999999999", "LATEST"] {
        let (status, body) = serve.request("GET", &format!("/api/v1/changes?after={wrong}"), "");
        assert!(status == 400 && body.contains("expected a cursor, or latest"), "{wrong}: {status} {body}");
    }
}
