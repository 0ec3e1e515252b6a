//! Sources of agents that are missing or have another size, and the files of the service on its disk.

use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::agents::Agent;
use crate::client::Serve;
use crate::servers::Storage;

/// Submits a job by the native interface. Returns its files after its end.
fn run(serve: &Serve, files: &Value) -> Vec<Value> {
    let (status, body) = serve.request("POST", "/api/v1/jobs", &json!({"files": files, "retries": 0}).to_string());
    assert_eq!(status, 201, "{body}");
    let id = serde_json::from_str::<Value>(&body).unwrap()["id"].as_str().unwrap().to_owned();
    serve.wait_for_end(&id);
    let (_, body) = serve.request("GET", &format!("/api/v1/jobs/{id}/files"), "");
    serde_json::from_str::<Value>(&body).unwrap()["files"].as_array().unwrap().clone()
}

fn states(files: &[Value]) -> Vec<&str> {
    files.iter().map(|file| file["state"].as_str().unwrap()).collect()
}

/// The first source has no such file, or a directory with its name: the next one has the file.
#[test]
fn a_file_that_is_missing_at_one_agent_comes_from_another() {
    let serve = Serve::start();
    let [empty, full, far] =
        ["empty.example", "full.example", "far.example"].map(|site| Agent::start(&serve, site, &[]));
    std::fs::create_dir(empty.path("directory")).unwrap();
    for name in ["missing", "directory"] {
        std::fs::write(full.path(name), name).unwrap();
        let sources = [empty.url(name), full.url(name)];
        let files = run(&serve, &json!([{"sources": sources, "destination": far.url(name), "strategy": "orderly"}]));
        assert_eq!(states(&files), ["failed", "finished"], "{files:?}");
        assert_eq!(std::fs::read_to_string(far.path(name)).unwrap(), name);
    }
}

#[test]
fn a_source_of_another_size_than_the_job_says_is_not_copied() {
    let serve = Serve::start();
    let storage = Storage::nginx("");
    let (near, far) =
        (Agent::start(&serve, "near.example", &[]), Agent::start(&serve, "far.example", &["--web", "localhost"]));
    storage.put("web", b"12345");
    for name in ["1", "2", "3"] {
        std::fs::write(near.path(name), name.repeat(5)).unwrap();
    }
    let file = |source: String, name: &str, size: u64| json!({"sources": [source], "destination": far.url(name), "size": size});
    let files = json!([
        file(near.url("1"), "1", 5),
        file(near.url("2"), "2", 6),
        file(near.url("3"), "3", 5),
        file(storage.url("web"), "web", 4),
        file(storage.url("web"), "same", 5),
    ]);
    let files = run(&serve, &files);
    assert_eq!(states(&files), ["finished", "failed", "finished", "failed", "finished"], "{files:?}");
    for (file, given) in [(&files[1], 6), (&files[3], 4)] {
        let expected = format!("Source and user provided file size mismatch: 5 and {given}");
        assert!(file.to_string().contains(&expected), "{file}");
    }
    let there = ["1", "2", "3", "web", "same"].map(|name| far.path(name).exists());
    assert_eq!(there, [true, false, true, false, true]);
}

/// Each start has a grant of its own, which the agent takes once.
#[test]
fn jobs_to_the_same_file_follow_each_other_at_once() {
    let serve = Serve::start();
    let [near, far] = ["near.example", "far.example"].map(|site| Agent::start(&serve, site, &[]));
    for number in 0..6 {
        std::fs::write(near.path("f"), number.to_string()).unwrap();
        let files = json!([{"sources": [near.url("f")], "destination": far.url("g")}]);
        let job = json!({"files": files, "overwrite": "always"});
        let (status, body) = serve.request("POST", "/api/v1/jobs", &job.to_string());
        assert_eq!(status, 201, "{body}");
        let id = serde_json::from_str::<Value>(&body).unwrap()["id"].as_str().unwrap().to_owned();
        assert_eq!(serve.wait_for_end(&id)["job_state"], "FINISHED");
        assert_eq!(std::fs::read_to_string(far.path("g")).unwrap(), number.to_string());
    }
}

#[test]
fn only_its_user_reads_the_database_and_only_one_service_uses_it() {
    let serve = Serve::start();
    let mode = |name: &str| serve.state_dir().join(name).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!([mode("service"), mode("service/sterna.db"), mode("service/sterna.db-wal")], [0o700, 0o600, 0o600]);
    let second = serve.sterna(&["serve", "--dev", "--listen", "127.0.0.1:0"]).run();
    assert!(second.code == Some(74) && second.stderr.contains("another `sterna serve` uses "), "{second:?}");
}

#[test]
fn a_certificate_that_is_given_leaves_the_authority_of_the_trial() {
    let serve = Serve::start();
    let (cert, key) = serve.pair();
    serve.sterna(&["list", "--cert", cert.to_str().unwrap(), "--key", key.to_str().unwrap()]).succeed();
}
