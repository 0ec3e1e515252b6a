//! Transfers between agents: bytes go from agent to agent, and the service decides.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use sterna_seeded::Seeded;
use tempfile::TempDir;

use crate::client::Serve;

/// Agent that serves one directory to everybody.
struct Agent {
    process: Child,
    directory: TempDir,
    address: String,
    fingerprint: String,
}

impl Agent {
    fn start(ip: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("root")).unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_sterna"))
            .args(["agent", "--authorize-any", "--third-party", "any", "--listen"])
            .arg(format!("{ip}:0"))
            .arg("--root")
            .arg(directory.path().join("root"))
            .arg("--state")
            .arg(directory.path().join("state"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["listening", url, "fingerprint", fingerprint] = words[..] else { panic!("{line}") };
        let address = url.trim_start_matches("sterna://").to_owned();
        Self { process, directory, address, fingerprint: fingerprint.to_owned() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("root").join(name)
    }

    fn url(&self, name: &str) -> String {
        format!("sterna://{}/{name}", self.address)
    }

    fn known_host(&self) -> String {
        format!("{} {}\n", self.address, self.fingerprint)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts a service that knows two agents.
fn service_and_agents() -> (Serve, Agent, Agent) {
    let (near, far) = (Agent::start("127.0.0.1"), Agent::start("127.0.0.2"));
    let serve = Serve::start();
    let known = near.known_host() + &far.known_host();
    std::fs::write(serve.state_dir().join("known_hosts"), known).unwrap();
    (serve, near, far)
}

fn submit(serve: &Serve, pairs: &[(String, String)], params: Value) -> String {
    let file = |(source, destination): &(String, String)| json!({"sources": [source], "destinations": [destination]});
    let request = json!({"files": pairs.iter().map(file).collect::<Vec<_>>(), "params": params});
    let (status, body) = serve.request("POST", "/jobs", &request.to_string());
    assert_eq!(status, 200, "{body}");
    let reply: Value = serde_json::from_str(&body).unwrap();
    reply["job_id"].as_str().unwrap().to_owned()
}

#[test]
fn files_go_from_agent_to_agent_and_say_what_limited_them() {
    let (serve, near, far) = service_and_agents();
    let bytes = Seeded::new(7).bytes(128 << 20);
    std::fs::write(near.path("f"), &bytes).unwrap();
    let id = submit(&serve, &[(near.url("f"), far.url("in/g"))], json!({"verify_checksum": "both"}));
    let job = serve.wait_for_end(&id);
    assert_eq!(job["job_state"], "FINISHED", "{job}");
    assert!(std::fs::read(far.path("in/g")).unwrap() == bytes, "other bytes");
    let (_, body) = serve.request("GET", &format!("/api/v1/jobs/{id}/files"), "");
    let file = &serde_json::from_str::<Value>(&body).unwrap()["files"][0];
    assert_eq!((&file["state"], &file["bytes"]), (&json!("finished"), &json!(bytes.len())), "{body}");
    assert!(!file["limits"].as_array().unwrap().is_empty(), "{body}");
}

#[test]
fn failures_of_agents_have_scope_and_number() {
    let (serve, near, far) = service_and_agents();
    std::fs::write(near.path("f"), b"bytes").unwrap();
    std::fs::write(far.path("there"), b"other").unwrap();
    // Source, destination, and the reason.
    for (source, destination, expected) in [
        ("missing", "g", "SOURCE [2] "),
        ("f", "there", "DESTINATION [17] Destination file exists and overwrite is not enabled"),
    ] {
        let id = submit(&serve, &[(near.url(source), far.url(destination))], json!({"retry": -1}));
        let job = serve.wait_for_end(&id);
        let (_, body) = serve.request("GET", &format!("/jobs/{id}/files"), "");
        let files: Value = serde_json::from_str(&body).unwrap();
        let reason = files[0]["reason"].as_str().unwrap_or_default();
        assert!(job["job_state"] == "FAILED" && reason.starts_with(expected), "{job} {body}");
    }
    assert_eq!(std::fs::read(far.path("there")).unwrap(), b"other");
}

/// The process is killed at seeded times while files are under way. Every file arrives, and none fails because an
/// earlier attempt had published it.
#[test]
fn a_killed_service_delivers_every_file() {
    let (mut serve, near, far) = service_and_agents();
    let mut random = Seeded::new(std::process::id().into());
    let names: Vec<String> = (0..40).map(|number| format!("f{number}")).collect();
    for name in &names {
        let size = 1 + random.below(3 << 20) as usize;
        std::fs::write(near.path(name), random.bytes(size)).unwrap();
    }
    let pairs: Vec<_> = names.iter().map(|name| (near.url(name), far.url(name))).collect();
    let id = submit(&serve, &pairs, json!({}));
    for kill in 1..=4 {
        // Some files more have arrived.
        loop {
            let arrived = names.iter().filter(|name| far.path(name).exists()).count();
            if arrived >= names.len() * kill / 5 {
                break;
            }
            std::thread::yield_now();
        }
        serve.kill_and_start();
    }
    let job = serve.wait_for_end(&id);
    let (_, body) = serve.request("GET", &format!("/jobs/{id}/files"), "");
    assert_eq!(job["job_state"], "FINISHED", "{body}");
    for name in &names {
        assert!(std::fs::read(far.path(name)).unwrap() == std::fs::read(near.path(name)).unwrap(), "{name}");
    }
}

#[test]
fn an_agent_that_the_service_does_not_know_gets_no_job_done() {
    let (near, far) = (Agent::start("127.0.0.1"), Agent::start("127.0.0.2"));
    let serve = Serve::start();
    std::fs::write(near.path("f"), b"bytes").unwrap();
    let id = submit(&serve, &[(near.url("f"), far.url("g"))], json!({"retry": -1}));
    let job = serve.wait_for_end(&id);
    let (_, body) = serve.request("GET", &format!("/jobs/{id}/files"), "");
    assert_eq!(job["job_state"], "FAILED", "{body}");
    assert!(body.contains("known_hosts"), "{body}");
    assert!(!far.path("g").exists());
}
