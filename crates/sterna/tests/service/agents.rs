//! Transfers between agents that take work from the service: bytes go from agent to agent.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use sterna_proto::{Algorithm, Checks, FileDigests};
use sterna_seeded::{Seeded, with_seed};
use tempfile::TempDir;

use crate::client::Serve;
use crate::servers::Storage;

/// Agent that serves one directory to the transfers of a service.
pub struct Agent {
    process: Option<Child>,
    directory: TempDir,
    site: String,
    pub fingerprint: String,
    flags: Vec<String>,
    /// Variables of its environment.
    variables: Vec<(String, PathBuf)>,
}

impl Agent {
    /// Creates an agent that is not started.
    pub fn new(serve: &Serve, site: &str, flags: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("root")).unwrap();
        let state = directory.path().join("state");
        let id = Command::new(env!("CARGO_BIN_EXE_sterna")).args(["id", "--state"]).arg(&state).output().unwrap();
        let fingerprint = String::from_utf8(id.stdout).unwrap().trim().to_owned();
        let service = ["--service", serve.url(), "--capath", serve.capath()];
        let flags = service.iter().chain(flags).map(|flag| (*flag).to_owned()).collect();
        Self { process: None, directory, site: site.to_owned(), fingerprint, flags, variables: Vec::new() }
    }

    /// Starts an agent of a site.
    pub fn start(serve: &Serve, site: &str, flags: &[&str]) -> Self {
        Self::start_with(serve, site, flags, &[])
    }

    /// Starts an agent of a site with variables in its environment.
    pub fn start_with(serve: &Serve, site: &str, flags: &[&str], variables: &[(&str, &Path)]) -> Self {
        let mut agent = Self::new(serve, site, flags);
        agent.variables = variables.iter().map(|(name, value)| ((*name).to_owned(), value.to_path_buf())).collect();
        set_site(serve, site, &[&agent.fingerprint]);
        agent.run();
        agent
    }

    pub fn run(&mut self) {
        let mut process = Command::new(env!("CARGO_BIN_EXE_sterna"))
            .args(["agent", "--listen", "127.0.0.1:0", "--root"])
            .arg(self.directory.path().join("root"))
            .arg("--state")
            .arg(self.directory.path().join("state"))
            .args(&self.flags)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(self.directory.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("listening "), "{line}");
        self.process = Some(process);
    }

    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Returns the log of the last run.
    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    fn signal(&self, signal: &str) {
        let pid = self.process.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("root").join(name)
    }

    pub fn url(&self, name: &str) -> String {
        format!("sterna://{}/{name}", self.site)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
    }
}

pub fn set_site(serve: &Serve, site: &str, agents: &[&str]) {
    let (status, body) =
        serve.request("PUT", &format!("/api/v1/sites/{site}"), &json!({ "agents": agents }).to_string());
    assert_eq!(status, 200, "{body}");
}

fn submit(serve: &Serve, pairs: &[(String, String)], params: Value) -> String {
    let file = |(source, destination): &(String, String)| json!({"sources": [source], "destinations": [destination]});
    let request = json!({"files": pairs.iter().map(file).collect::<Vec<_>>(), "params": params});
    let (status, body) = serve.request("POST", "/jobs", &request.to_string());
    assert_eq!(status, 200, "{body}");
    let reply: Value = serde_json::from_str(&body).unwrap();
    reply["job_id"].as_str().unwrap().to_owned()
}

fn adler32(bytes: &[u8]) -> String {
    FileDigests::of(bytes, Checks { adler32: true, ..Checks::NONE }).digest(Algorithm::Adler32).unwrap().to_string()
}

/// Returns the first file of a job.
fn first_file(serve: &Serve, job: &str) -> Value {
    let (_, body) = serve.request("GET", &format!("/api/v1/jobs/{job}/files"), "");
    serde_json::from_str::<Value>(&body).unwrap()["files"][0].clone()
}

/// Returns the reason why the first file of a job waits.
fn why(serve: &Serve, job: &str) -> Value {
    let number = first_file(serve, job)["number"].clone();
    let (_, body) = serve.request("GET", &format!("/api/v1/files/{number}"), "");
    serde_json::from_str::<Value>(&body).unwrap()["why"].clone()
}

/// Looks until a condition holds. Panics with the last look after many.
fn until<T: std::fmt::Debug>(look: impl Fn() -> T, is_met: impl Fn(&T) -> bool) -> T {
    let mut last = look();
    for _ in 0..20_000 {
        if is_met(&last) {
            return last;
        }
        last = look();
    }
    panic!("does not happen: {last:?}");
}

#[test]
fn files_go_from_agent_to_agent_and_say_what_limited_them() {
    let serve = Serve::start();
    let (near, far) = (Agent::start(&serve, "near.example", &[]), Agent::start(&serve, "far.example", &[]));
    let bytes = Seeded::new(7).bytes(128 << 20);
    std::fs::write(near.path("f"), &bytes).unwrap();
    let id = submit(&serve, &[(near.url("f"), far.url("in/g"))], json!({"verify_checksum": "both"}));
    let job = serve.wait_for_end(&id);
    let file = first_file(&serve, &id);
    assert_eq!(job["job_state"], "FINISHED", "{job} {file}");
    assert!(std::fs::read(far.path("in/g")).unwrap() == bytes, "other bytes");
    assert_eq!((&file["state"], &file["bytes"]), (&json!("finished"), &json!(bytes.len())), "{file}");
    assert!(!file["limits"].as_array().unwrap().is_empty(), "{file}");
    let (_, body) = serve.request("GET", "/api/v1/paths", "");
    let path = &serde_json::from_str::<Value>(&body).unwrap()["paths"][0];
    assert_eq!(path["source_agent"], json!(near.fingerprint), "{body}");
    assert!(path["rtt_ms"].as_f64().unwrap() > 0.0 && path["best_bytes_per_s"].as_f64().unwrap() > 1e6, "{body}");
}

/// Returns the last visits on the paths from one agent to another.
fn visits(serve: &Serve, from: &Agent, to: &Agent) -> Vec<Value> {
    let (_, body) = serve.request("GET", "/api/v1/paths", "");
    let paths = serde_json::from_str::<Value>(&body).unwrap()["paths"].as_array().unwrap().clone();
    let is_it =
        |path: &&Value| path["source_agent"] == *from.fingerprint && path["destination_agent"] == *to.fingerprint;
    paths.iter().find(is_it).map_or(Vec::new(), |path| path["visits"].as_array().unwrap().clone())
}

#[test]
fn rounds_of_monitors_are_stored_and_shown() {
    let serve = Serve::start();
    let mut far = Agent::start(&serve, "far.example", &["--authorize-any"]);
    let address = || {
        let (_, body) = serve.request("GET", "/api/v1/sites", "");
        serde_json::from_str::<Value>(&body).unwrap()["sites"][0]["agents"][0]["address"].clone()
    };
    let peer = format!("sterna://{}", until(address, Value::is_string).as_str().unwrap());
    let flags = ["--monitor", &peer, "--trust", &far.fingerprint, "--monitor-every", "1s", "--monitor-rate", "20Mbit"];
    let near = Agent::start(&serve, "near.example", &flags);
    let there = until(|| visits(&serve, &near, &far), |visits| visits.iter().any(|v| v["bytes_per_s"].is_f64()));
    assert_eq!((there.len(), &there[0]["by"]), (1, &json!("source")), "{there:?}");
    assert!(there[0]["rtt_ms"].as_f64().unwrap() > 0.0 && there[0]["loss"].is_f64(), "{there:?}");
    // The limit is the cap, unless this host is slower.
    assert!(there[0]["limited_by"].is_string(), "{there:?}");
    let back = visits(&serve, &far, &near);
    assert_eq!((back.len(), &back[0]["by"]), (1, &json!("destination")), "{back:?}");
    let rounds = format!("/api/v1/paths/rounds?agent={}&peer={}", near.fingerprint, far.fingerprint);
    let stored = || serde_json::from_str::<Value>(&serve.request("GET", &rounds, "").1).unwrap()["rounds"].clone();
    let first = until(stored, |rounds| rounds[0]["rtt_ms"].is_f64());
    assert!(first[0]["forward"]["hops"].is_u64() && first[0]["at_ms"].as_u64().unwrap() > 1_700_000_000_000, "{first}");
    assert_eq!(serve.request("GET", "/api/v1/paths/rounds?agent=x&peer=y", "").0, 400);
    far.kill();
    let is_alarm = |visits: &Vec<Value>| {
        visits[0]["alarms"]
            .as_array()
            .unwrap()
            .iter()
            .any(|alarm| alarm.as_str().unwrap().contains("unreachable since"))
    };
    until(|| visits(&serve, &near, &far), is_alarm);
    let (_, page) = serve.request("GET", "/ui/", "");
    assert!(page.contains("Monitored paths") && page.contains("unreachable since"), "{page}");
}

/// The interface of FTS3 has `nostreams`, which the Python bindings set to 1 with every job.
#[test]
fn a_transfer_has_the_lanes_that_its_job_asks_for() {
    let serve = Serve::start();
    let near = Agent::start(&serve, "near.example", &[]);
    let far = Agent::start(&serve, "far.example", &["--log-level", "debug"]);
    std::fs::write(near.path("f"), Seeded::new(3).bytes(64 << 20)).unwrap();
    let lanes_up = || far.log().lines().filter(|line| line.contains(" is up: ")).count();
    let id = submit(&serve, &[(near.url("f"), far.url("g"))], json!({"nostreams": 3}));
    assert_eq!(serve.wait_for_end(&id)["job_state"], "FINISHED");
    assert_eq!(lanes_up(), 3, "{}", far.log());
    let file = json!({"sources": [near.url("f")], "destination": far.url("h")});
    let (status, body) = serve.request("POST", "/api/v1/jobs", &json!({"files": [file], "lanes": 2}).to_string());
    assert_eq!(status, 201, "{body}");
    let id = serde_json::from_str::<Value>(&body).unwrap()["id"].as_str().unwrap().to_owned();
    assert_eq!(serve.wait_for_end(&id)["job_state"], "FINISHED");
    assert_eq!(lanes_up(), 3 + 2, "{}", far.log());
}

/// An agent without an open port pushes and pulls: it dials the other.
#[test]
fn an_agent_without_an_open_port_sends_and_receives() {
    let serve = Serve::start();
    let inside = Agent::start(&serve, "inside.example", &["--reachable-at", "none"]);
    let hub = Agent::start(&serve, "hub.example", &[]);
    std::fs::write(inside.path("f"), b"from inside").unwrap();
    std::fs::write(hub.path("f"), b"from the hub").unwrap();
    let pairs = [(inside.url("f"), hub.url("g")), (hub.url("f"), inside.url("g"))];
    let job = serve.wait_for_end(&submit(&serve, &pairs, json!({})));
    assert_eq!(job["job_state"], "FINISHED", "{job}");
    assert_eq!(std::fs::read(hub.path("g")).unwrap(), b"from inside");
    assert_eq!(std::fs::read(inside.path("g")).unwrap(), b"from the hub");
    // Nobody can dial the one or the other.
    let other = Agent::start(&serve, "other.example", &["--reachable-at", "none"]);
    let id = submit(&serve, &[(inside.url("f"), other.url("g"))], json!({"retry": -1}));
    assert_eq!(serve.wait_for_end(&id)["job_state"], "FAILED");
    let file = first_file(&serve, &id);
    assert!(file.to_string().contains("--reachable-at"), "{file}");
}

#[test]
fn failures_of_agents_have_scope_and_number() {
    let serve = Serve::start();
    let (near, far) = (Agent::start(&serve, "near.example", &[]), Agent::start(&serve, "far.example", &[]));
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

/// Version of a published file. A second delivery would change its inode.
fn version(path: &Path) -> Option<u64> {
    path.metadata().ok().map(|found| found.ino())
}

/// The service and both agents are killed at seeded points while files are under way, alone and together. Every file
/// arrives once, none fails because an earlier attempt had published it, and the limit of the link is kept.
/// `STERNA_KILLS` sets the number of kills, and `STERNA_SEED` the points.
#[test]
fn kills_of_the_service_and_of_agents_lose_no_file() {
    let seed = std::process::id().into();
    with_seed("kills_of_the_service_and_of_agents_lose_no_file", seed, |seed| kill_and_compare(seed, false));
}

/// The same, with sessions that files share.
#[test]
fn kills_lose_no_file_of_a_shared_session() {
    let seed = std::process::id().into();
    with_seed("kills_lose_no_file_of_a_shared_session", seed, |seed| kill_and_compare(seed, true));
}

#[allow(clippy::print_stdout)]
fn kill_and_compare(seed: u64, is_shared: bool) {
    const ACTIVE_MAX: usize = 5;
    let kills = std::env::var("STERNA_KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(6);
    let mut serve = Serve::start();
    let mut agents = [Agent::start(&serve, "near.example", &[]), Agent::start(&serve, "far.example", &[])];
    let link = json!({"symbolicname": "all", "source": "*", "destination": "*", "min_active": 1,
        "max_active": ACTIVE_MAX});
    assert_eq!(serve.request("POST", "/config/links", &link.to_string()).0, 201);
    println!("seed {seed}, {kills} kills");
    let mut random = Seeded::new(seed);
    let names: Vec<String> = (0..10 + 8 * kills).map(|number| format!("f{number}")).collect();
    for name in &names {
        let size = 1 + random.below(3 << 20) as usize;
        std::fs::write(agents[0].path(name), random.bytes(size)).unwrap();
    }
    let pairs: Vec<_> = names.iter().map(|name| (agents[0].url(name), agents[1].url(name))).collect();
    let id = submit(&serve, &pairs, json!({"retry": 100, "retry_delay": 1, "reuse": is_shared}));
    let mut seen: BTreeMap<&String, u64> = BTreeMap::new();
    let mut look = |far: &Agent| {
        for name in &names {
            if let Some(version) = version(&far.path(name)) {
                assert_eq!(*seen.entry(name).or_insert(version), version, "{name} was delivered twice");
            }
        }
        seen.len()
    };
    for kill in 1..=kills {
        // Some files more have arrived.
        while look(&agents[1]) < names.len() * kill / (kills + 2) {
            let (_, body) = serve.request("GET", &format!("/jobs/{id}/files"), "");
            let active = body.matches(r#""file_state":"ACTIVE""#).count();
            assert!(is_shared || active <= ACTIVE_MAX, "{active} transfers on the link");
        }
        let which = random.below(4);
        let chosen = |process| which == process || which == 3;
        let mut killed: Vec<&mut Agent> = Vec::new();
        for (number, agent) in agents.iter_mut().enumerate().filter(|(number, _)| chosen(*number as u64 + 1)) {
            println!("kill {kill}: agent {number}");
            agent.kill();
            killed.push(agent);
        }
        if chosen(0) {
            println!("kill {kill}: service");
            serve.kill_and_start();
        }
        killed.into_iter().for_each(Agent::run);
    }
    let job = serve.wait_for_end(&id);
    look(&agents[1]);
    let (_, body) = serve.request("GET", &format!("/api/v1/jobs/{id}/files?state=failed"), "");
    assert_eq!(job["job_state"], "FINISHED", "{body}");
    for name in &names {
        let read = |agent: &Agent| std::fs::read(agent.path(name)).unwrap();
        assert!(read(&agents[0]) == read(&agents[1]), "{name}");
    }
}

#[test]
fn files_wait_for_an_agent_of_their_site() {
    let serve = Serve::start();
    let near = Agent::start(&serve, "near.example", &[]);
    let mut far = Agent::new(&serve, "far.example", &[]);
    std::fs::write(near.path("f"), b"bytes").unwrap();
    let other = Agent::new(&serve, "far.example", &[]);
    set_site(&serve, "far.example", &[&other.fingerprint]);
    let id = submit(&serve, &[(near.url("f"), far.url("g"))], json!({}));
    let reason = until(|| why(&serve, &id), |why| why["kind"] == "absent");
    assert!(reason["text"].as_str().unwrap().contains("sterna://far.example"), "{reason}");
    // An agent of no site does not get in.
    far.run();
    let dial = |path: &str| serve.request("GET", path, "");
    assert_eq!(dial("/api/v1/agents/connect").0, 400, "no WebSocket");
    assert_eq!(why(&serve, &id)["kind"], "absent");
    set_site(&serve, "far.example", &[&far.fingerprint]);
    assert_eq!(serve.wait_for_end(&id)["job_state"], "FINISHED");
    let (_, body) = serve.request("GET", "/api/v1/sites", "");
    let sites: Value = serde_json::from_str(&body).unwrap();
    let agent = &sites["sites"][0]["agents"][0];
    assert_eq!((&agent["agent"], &agent["is_connected"]), (&json!(far.fingerprint), &json!(true)), "{body}");
    // Only members of a VO with a right may use the site.
    let restricted = json!({"agents": [far.fingerprint], "access": [{"vo": "else", "right": "write"}]});
    assert_eq!(serve.request("PUT", "/api/v1/sites/far.example", &restricted.to_string()).0, 200);
    let request = json!({"files": [{"sources": [near.url("f")], "destinations": [far.url("h")]}]});
    let (status, body) = serve.request("POST", "/jobs", &request.to_string());
    assert!(status == 403 && body.contains("may not write sterna://far.example/h"), "{status} {body}");
    // A site has no agent that was removed, and files of a site that was removed fail.
    set_site(&serve, "far.example", &[&other.fingerprint]);
    let id = submit(&serve, &[(near.url("f"), far.url("h"))], json!({"retry": -1}));
    until(|| why(&serve, &id), |why| why["kind"] == "absent");
    assert_eq!(serve.request("DELETE", "/api/v1/sites/far.example", "").0, 204);
    assert_eq!(serve.wait_for_end(&id)["job_state"], "FAILED");
    let (status, body) = serve.request("POST", "/jobs", &request.to_string());
    assert!(status == 400 && body.contains("there is no site far.example"), "{status} {body}");
}

/// Small files of a job share a session, which counts once. Each of them ends by itself.
#[test]
fn small_files_share_sessions_and_end_by_themselves() {
    const COUNT: usize = 300;
    let serve = Serve::start();
    // The first pushes, and pulls because nobody can dial it.
    let inside = Agent::start(&serve, "inside.example", &["--reachable-at", "none"]);
    let hub = Agent::start(&serve, "hub.example", &[]);
    let limit = json!({"symbolicname": "all", "source": "*", "destination": "*", "min_active": 1, "max_active": 1});
    assert_eq!(serve.request("POST", "/config/links", &limit.to_string()).0, 201);
    for (from, to) in [(&inside, &hub), (&hub, &inside)] {
        let mut random = Seeded::new(5);
        let contents: Vec<Vec<u8>> = (0..COUNT)
            .map(|_| {
                let size = random.index(20_000);
                random.bytes(size)
            })
            .collect();
        let mut files = Vec::new();
        std::fs::create_dir_all(from.path("from")).unwrap();
        for (number, content) in contents.iter().enumerate() {
            let name = format!("from/{number}");
            if number != 7 {
                std::fs::write(from.path(&name), content).unwrap();
            }
            let sum = if number == 9 { "adler32:00000001".to_owned() } else { adler32(content) };
            files.push(
                json!({"sources": [from.url(&name)], "destination": to.url(&format!("to/{}/{number}", number % 9)),
                "size": content.len(), "checksum": sum}),
            );
        }
        std::fs::create_dir_all(to.path("to/2")).unwrap();
        std::fs::write(to.path("to/2/11"), b"taken").unwrap();
        let job = json!({"files": files, "checksum": "both", "retries": 0}).to_string();
        let (status, body) = serve.request("POST", "/api/v1/jobs", &job);
        assert_eq!(status, 201, "{body}");
        let id = serde_json::from_str::<Value>(&body).unwrap()["id"].as_str().unwrap().to_owned();
        serve.wait_for_end(&id);
        let (_, body) = serve.request("GET", &format!("/api/v1/jobs/{id}/files?limit=1000"), "");
        let files: Value = serde_json::from_str(&body).unwrap();
        let files = files["files"].as_array().unwrap();
        assert_eq!(files.len(), COUNT);
        for (number, file) in files.iter().enumerate() {
            let expected = match number {
                7 => "No such file",
                9 => "adler32",
                11 => "exists",
                _ => "",
            };
            let is_well = (file["state"] == "finished") == expected.is_empty();
            assert!(is_well && file.to_string().contains(expected), "{number}: {file}");
            if expected.is_empty() {
                let arrived = std::fs::read(to.path(&format!("to/{}/{number}", number % 9))).unwrap();
                assert!(arrived == contents[number], "{number}");
            }
        }
        // All files of a session start at one time.
        let starts: BTreeSet<i64> = files.iter().map(|file| file["started_ms"].as_i64().unwrap()).collect();
        assert!(starts.len() <= 4, "{} sessions", starts.len());
    }
}

/// A file that is cancelled ends its session, and the other files of the session start again.
#[test]
fn a_cancelled_file_fails_no_other_file_of_its_session() {
    let serve = Serve::start();
    let (near, far) = (Agent::start(&serve, "near.example", &[]), Agent::start(&serve, "far.example", &[]));
    let sites = || serve.request("GET", "/api/v1/sites", "").1;
    until(sites, |sites| sites.matches(r#""is_connected":true"#).count() == 2);
    let pairs: Vec<_> = (0..3).map(|n| (near.url(&n.to_string()), far.url(&n.to_string()))).collect();
    (0..3).for_each(|n| std::fs::write(near.path(&n.to_string()), b"bytes").unwrap());
    far.signal("-STOP");
    let file = |(source, destination): &(String, String)| json!({"sources": [source], "destinations": [destination], "filesize": 5});
    let request = json!({"files": pairs.iter().map(file).collect::<Vec<_>>(), "params": {"retry": -1}});
    let (_, body) = serve.request("POST", "/jobs", &request.to_string());
    let id = serde_json::from_str::<Value>(&body).unwrap()["job_id"].as_str().unwrap().to_owned();
    let states = || serve.request("GET", &format!("/jobs/{id}/files"), "").1;
    let files = until(states, |states| states.matches("ACTIVE").count() == 3);
    let files: Value = serde_json::from_str(&files).unwrap();
    let number = files[1]["file_id"].as_u64().unwrap();
    let started = || {
        let (_, body) = serve.request("GET", &format!("/api/v1/jobs/{id}/files"), "");
        serde_json::from_str::<Value>(&body).unwrap()["files"][0]["started_ms"].as_i64()
    };
    let before = started();
    assert_eq!(serve.request("DELETE", &format!("/jobs/{id}/files/{number}"), "").0, 200);
    // The session has ended, and the others have started again.
    until(started, |started| started.is_some() && *started != before);
    far.signal("-CONT");
    assert_eq!(serve.wait_for_end(&id)["job_state"], "CANCELED");
    assert_eq!(states().matches("FINISHED").count(), 2, "{}", states());
    assert_eq!([0, 1, 2].map(|n: u8| far.path(&n.to_string()).exists()), [true, false, true]);
}

/// The service is killed after it has told an agent to stop, because the other one has moved. The next run of the
/// service learns that the transfer was stopped, and starts it again.
#[test]
fn a_transfer_that_an_earlier_run_of_the_service_stopped_starts_again() {
    let mut serve = Serve::start();
    let (near, mut far) = (Agent::start(&serve, "near.example", &[]), Agent::start(&serve, "far.example", &[]));
    let sites = || serve.request("GET", "/api/v1/sites", "").1;
    let address = || serde_json::from_str::<Value>(&sites()).unwrap()["sites"][0]["agents"][0]["address"].clone();
    until(sites, |sites| sites.matches(r#""is_connected":true"#).count() == 2);
    let before = address();
    std::fs::write(near.path("f"), b"bytes").unwrap();
    far.signal("-STOP");
    let id = submit(&serve, &[(near.url("f"), far.url("g"))], json!({"retry": -1}));
    until(|| first_file(&serve, &id), |file| file["state"] == "active");
    near.signal("-STOP");
    far.kill();
    far.run();
    until(address, |address| address.is_string() && *address != before);
    serve.kill();
    near.signal("-CONT");
    serve.kill_and_start();
    let job = serve.wait_for_end(&id);
    assert_eq!(job["job_state"], "FINISHED", "{}", first_file(&serve, &id));
    assert_eq!(std::fs::read(far.path("g")).unwrap(), b"bytes");
}

/// A transfer to an agent that does not answer is cancelled, and its agent stops it.
#[test]
fn a_cancellation_reaches_the_agent() {
    let serve = Serve::start();
    let (near, far) = (Agent::start(&serve, "near.example", &[]), Agent::start(&serve, "far.example", &[]));
    std::fs::write(near.path("f"), b"bytes").unwrap();
    let sites = || serve.request("GET", "/api/v1/sites", "").1;
    until(sites, |sites| sites.matches(r#""is_connected":true"#).count() == 2);
    far.signal("-STOP");
    let id = submit(&serve, &[(near.url("f"), far.url("g"))], json!({}));
    let transfers = || {
        let (_, body) = serve.request("GET", "/api/v1/sites", "");
        let sites: Value = serde_json::from_str(&body).unwrap();
        sites["sites"][1]["agents"][0]["transfers"].as_u64().unwrap()
    };
    until(|| first_file(&serve, &id), |file| file["state"] == "active");
    assert_eq!(serve.request("DELETE", &format!("/jobs/{id}"), "").0, 200);
    until(transfers, |transfers| *transfers == 0);
    far.signal("-CONT");
    assert!(!far.path("g").exists());
}

/// Agents that work for a service only let nobody else in.
#[test]
fn a_stranger_gets_nothing_from_an_agent_of_a_service() {
    let serve = Serve::start();
    let near = Agent::start(&serve, "near.example", &[]);
    std::fs::write(near.path("f"), b"bytes").unwrap();
    let (_, body) = serve.request("GET", "/api/v1/sites", "");
    let sites: Value = serde_json::from_str(&body).unwrap();
    let address = sites["sites"][0]["agents"][0]["address"].as_str().unwrap().to_owned();
    let stranger = tempfile::tempdir().unwrap();
    let copy = Command::new(env!("CARGO_BIN_EXE_sterna"))
        .args(["copy", "--trust", &near.fingerprint, "--state"])
        .arg(stranger.path())
        .arg(format!("sterna://{address}/f"))
        .arg(stranger.path().join("f"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&copy.stderr);
    assert!(copy.status.code() == Some(6) && said.contains("not authorized"), "{said}");
}

/// A file on a real web server goes to a site, by its agent, which reads only from servers that its operator allows.
#[test]
fn an_agent_reads_from_a_web_server_that_its_operator_allows() {
    let serve = Serve::start();
    let content = tempfile::tempdir().unwrap();
    let bytes = Seeded::new(11).bytes(9 << 20);
    std::fs::write(content.path().join("f"), &bytes).unwrap();
    let mut server = Command::new("python3")
        .args(["-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory"])
        .arg(content.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let port = line.split_whitespace().skip_while(|word| *word != "port").nth(1).unwrap_or_else(|| panic!("{line}"));
    let source = format!("http://127.0.0.1:{port}/f");
    let open = Agent::start(&serve, "open.example", &["--web", "127.0.0.1"]);
    let closed = Agent::start(&serve, "closed.example", &["--web", "data.example"]);
    let id = submit(&serve, &[(source.clone(), open.url("in/g"))], json!({}));
    let job = serve.wait_for_end(&id);
    assert_eq!(job["job_state"], "FINISHED", "{}", first_file(&serve, &id));
    assert!(std::fs::read(open.path("in/g")).unwrap() == bytes, "other bytes");
    let id = submit(&serve, &[(source, closed.url("g"))], json!({"retry": -1}));
    assert_eq!(serve.wait_for_end(&id)["job_state"], "FAILED");
    let file = first_file(&serve, &id);
    assert!(file.to_string().contains("--web 127.0.0.1") && !closed.path("g").exists(), "{file}");
    let _ = server.kill();
    let _ = server.wait();
}

/// The service is killed while an agent reads from a web server, and the agent after it has published the file. The
/// next start finds the file, and takes it for its own if the job or the server has the same digest.
#[test]
fn a_file_from_a_web_server_that_had_arrived_is_recognised() {
    let mut serve = Serve::start();
    // The kill comes first: the file takes seconds.
    let server = Storage::nginx("limit_rate 500k;");
    let mut open = Agent::start(&serve, "open.example", &["--web", "any"]);
    let bytes = Seeded::new(12).bytes(4 << 20);
    server.put("f", &bytes);
    let given = adler32(&bytes);
    // Name, checksum of the job, and true if somebody has replaced the file meanwhile.
    for (name, checksum, is_other) in [("read", None, false), ("given", Some(&given), false), ("other", None, true)] {
        let names = || std::fs::read_dir(open.path("")).unwrap().count();
        let before = names();
        let file = json!({"sources": [server.url("f")], "destinations": [open.url(name)], "checksum": checksum});
        let params = json!({"retry": -1, "nostreams": 2, "verify_checksum": checksum.map_or("none", |_| "both")});
        let (_, body) = serve.request("POST", "/jobs", &json!({"files": [file], "params": params}).to_string());
        let id = serde_json::from_str::<Value>(&body).unwrap()["job_id"].as_str().unwrap().to_owned();
        // The agent has begun.
        until(|| (names(), first_file(&serve, &id)), |(names, _)| *names > before);
        serve.kill();
        while !open.path(name).exists() {
            std::thread::yield_now();
        }
        open.kill();
        if is_other {
            std::fs::write(open.path(name), vec![7; bytes.len()]).unwrap();
        }
        let before = version(&open.path(name));
        serve.kill_and_start();
        open.run();
        let state = serve.wait_for_end(&id)["job_state"].clone();
        let file = first_file(&serve, &id);
        assert_eq!(state, if is_other { "FAILED" } else { "FINISHED" }, "{file}");
        let is_recognised = if is_other { file.to_string().contains("exists") } else { file["bytes"] == 0 };
        assert!(is_recognised, "{file}");
        assert_eq!((std::fs::read(open.path(name)).unwrap() == bytes, version(&open.path(name))), (!is_other, before));
    }
}

/// An agent stops no transfers of another site by what it reports about it, and those of its own site.
#[test]
fn an_agent_is_believed_about_its_own_site_only() {
    let serve = Serve::start();
    let near = Agent::start(&serve, "near.example", &[]);
    // Its agent pulls, and the agent of the other one gets a push.
    let closed = Agent::start(&serve, "closed.example", &["--reachable-at", "none"]);
    let open = Agent::start(&serve, "open.example", &[]);
    std::fs::write(near.path("f"), b"bytes").unwrap();
    // A destination that another process writes is busy. This one has the lock of its hidden file.
    let hidden = format!(".sterna-{}.part", &blake3::hash(b"held").to_hex()[..32]);
    for (far, is_believed) in [(&open, false), (&closed, true)] {
        let held = std::fs::File::create(far.path(&hidden)).unwrap();
        held.lock().unwrap();
        let id = submit(&serve, &[(near.url("f"), far.url("held"))], json!({"retry": -1}));
        assert_eq!(serve.wait_for_end(&id)["job_state"], "FAILED");
        let failed = first_file(&serve, &id)["failure"].clone();
        assert_eq!((&failed["kind"], &failed["scope"]), (&json!("busy"), &json!("destination")), "{failed}");
        let id = submit(&serve, &[(near.url("f"), far.url("g"))], json!({}));
        let look = || (first_file(&serve, &id)["state"].clone(), why(&serve, &id).to_string());
        let is_refused = |why: &str| why.contains("has refused transfers");
        let (state, why) = until(look, |(state, why)| *state == "finished" || is_refused(why));
        assert_eq!(is_refused(&why), is_believed, "{state} {why}");
    }
}

/// Nobody deletes a file by naming it as the source of a hop: a hop starts where the one before ended.
#[test]
fn a_hop_starts_where_the_one_before_ended() {
    let serve = Serve::start();
    let victim = "sterna://victim.example/data/important";
    let hop = |sources: &[&str], to: &str| json!({"sources": sources, "destination": to});
    let (a, b) = ("sterna://mine.example/a", "sterna://mine.example/b");
    for files in [
        json!([hop(&[a], b), hop(&[victim], "sterna://mine.example/c")]),
        json!([hop(&[a], b), hop(&[b, victim], "sterna://mine.example/c")]),
    ] {
        let job = json!({"hops": true, "files": files});
        let (status, body) = serve.request("POST", "/api/v1/jobs", &job.to_string());
        assert!(status == 400 && body.to_lowercase().contains("hop"), "{status} {body}");
    }
}

/// Access that an operator takes away counts for jobs that wait.
#[test]
fn access_is_checked_again_when_a_file_starts() {
    let serve = Serve::start();
    let near = Agent::start(&serve, "near.example", &[]);
    let mut far = Agent::new(&serve, "far.example", &[]);
    std::fs::write(near.path("f"), b"bytes").unwrap();
    set_site(&serve, "far.example", &[&far.fingerprint]);
    let id = submit(&serve, &[(near.url("f"), far.url("g"))], json!({"retry": -1}));
    let restricted = json!({"agents": [far.fingerprint], "access": [{"vo": "else", "right": "write"}]});
    assert_eq!(serve.request("PUT", "/api/v1/sites/far.example", &restricted.to_string()).0, 200);
    far.run();
    assert_eq!(serve.wait_for_end(&id)["job_state"], "FAILED");
    let file = first_file(&serve, &id);
    assert!(file.to_string().contains("may not write sterna://far.example/g"), "{file}");
    assert!(!far.path("g").exists());
}

/// A transfer moves one file to one name.
#[test]
fn directories_are_no_ends_of_a_transfer() {
    let serve = Serve::start();
    let near = Agent::start(&serve, "near.example", &["--reachable-at", "none"]);
    let far = Agent::start(&serve, "far.example", &[]);
    std::fs::create_dir(near.path("directory")).unwrap();
    std::fs::write(near.path("directory/f"), b"bytes").unwrap();
    std::fs::write(far.path("f"), b"bytes").unwrap();
    // A push of a directory, and a pull into one.
    for (source, destination) in [(near.url("directory"), far.url("g")), (far.url("f"), near.url("directory"))] {
        let id = submit(&serve, &[(source, destination)], json!({"retry": -1}));
        let job = serve.wait_for_end(&id);
        assert_eq!(job["job_state"], "FAILED", "{}", first_file(&serve, &id));
    }
    assert!(!far.path("g").exists());
    assert_eq!(std::fs::read_dir(near.path("directory")).unwrap().count(), 1);
}

/// A file goes over a relay. The copy there is deleted when the last hop has arrived, by a push and by a pull.
#[test]
fn the_copy_between_two_hops_is_deleted() {
    let serve = Serve::start();
    let relay = Agent::start(&serve, "relay.example", &[]);
    // The agent of the destination pulls from the relay; that of the second one gets a push.
    let inside = Agent::start(&serve, "inside.example", &["--reachable-at", "none"]);
    let outside = Agent::start(&serve, "outside.example", &[]);
    let source = Agent::start(&serve, "source.example", &[]);
    std::fs::write(source.path("f"), b"bytes").unwrap();
    for (destination, keeps) in [(&inside, false), (&outside, false), (&outside, true)] {
        let name = if keeps { "kept" } else { "g" };
        let job = json!({"hops": true, "keeps_between": keeps, "files": [
            {"sources": [source.url("f")], "destination": relay.url(name)},
            {"sources": [relay.url(name)], "destination": destination.url(name)},
        ]});
        let (status, body) = serve.request("POST", "/api/v1/jobs", &job.to_string());
        assert_eq!(status, 201, "{body}");
        let id = serde_json::from_str::<Value>(&body).unwrap()["id"].as_str().unwrap().to_owned();
        let job = serve.wait_for_end(&id);
        assert_eq!(job["job_state"], "FINISHED", "{}", first_file(&serve, &id));
        assert_eq!(std::fs::read(destination.path(name)).unwrap(), b"bytes");
        // It goes when the service has recorded the last hop.
        let cleanup = || first_file(&serve, &id)["cleanup"]["state"].clone();
        until(cleanup, |state| keeps || *state == "deleted");
        assert_eq!(relay.path(name).exists(), keeps);
        assert!(source.path("f").exists(), "the source of the user stays");
    }
}
