//! Manifests that arrive in parts: no file starts before the end, and an upload that is cut off leaves nothing.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::client::Serve;
use crate::http::Http;

/// Maximum number of looks for a state. Reason: a busy machine; each takes a millisecond.
const LOOKS_MAX: usize = 100_000;

/// Returns lines of files.
fn lines(from: usize, count: usize) -> String {
    let line = |number| {
        format!(
            "{{\"sources\": [\"mock://a.example/{number}?size=1\"], \"destination\": \"mock://b.example/{number}\"}}\n"
        )
    };
    (from..from + count).map(line).collect()
}

/// Returns all jobs.
fn jobs(http: &Http) -> Vec<Value> {
    let states = "open,waiting,active,finished,partly_finished,failed,cancelled";
    let reply = http.send("GET", &format!("/api/v1/jobs?state={states}"), None, b"");
    reply.json()["jobs"].as_array().unwrap_or_else(|| panic!("{reply:?}")).clone()
}

/// Looks until a condition holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    assert!((0..LOOKS_MAX).any(|_| holds()), "{what}");
}

/// Upload whose lines this process writes.
struct Upload {
    curl: Child,
}

impl Upload {
    fn start(serve: &Serve, key: &str) -> Self {
        let (cert, value) = serve.pair();
        let mut command = Command::new("curl");
        command.args([
            "-sS",
            "-X",
            "POST",
            "-T",
            "-",
            "-w",
            "\n%{http_code}",
            "--no-buffer",
            "--capath",
            serve.capath(),
        ]);
        command.arg("--cert").arg(cert).arg("--key").arg(value).args(["-H", "Expect:", "-H"]);
        command.args(["Content-Type: application/x-ndjson", "-H", &format!("Idempotency-Key: {key}")]);
        command.arg(format!("{}/api/v1/jobs", serve.url())).stdin(Stdio::piped()).stdout(Stdio::piped());
        Self { curl: command.spawn().unwrap() }
    }

    fn write(&mut self, text: &str) {
        self.curl.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Ends the body. Returns the status and the reply.
    fn end(mut self) -> (u16, String) {
        drop(self.curl.stdin.take());
        let output = self.curl.wait_with_output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let (reply, status) = said.rsplit_once('\n').unwrap();
        (status.parse().unwrap(), reply.to_owned())
    }

    /// Ends the connection.
    fn cut(mut self) {
        self.curl.kill().unwrap();
        self.curl.wait().unwrap();
    }
}

/// Starts an upload, and waits until a batch of it is stored. Returns it and its job.
fn begun(serve: &Serve, http: &Http, key: &str) -> (Upload, String) {
    begun_with(serve, http, key, &lines(0, 3000))
}

fn begun_with(serve: &Serve, http: &Http, key: &str, lines: &str) -> (Upload, String) {
    let mut upload = Upload::start(serve, key);
    upload.write("{\"metadata\": {\"upload\": true}}\n");
    upload.write(lines);
    let mut job = String::new();
    until("no job is open", || {
        let open = jobs(http).into_iter().find(|job| job["state"] == "open");
        open.is_some_and(|open| {
            job = open["id"].as_str().unwrap().to_owned();
            true
        })
    });
    (upload, job)
}

#[test]
fn no_file_starts_before_the_upload_is_complete() {
    let serve = Serve::start();
    let http = serve.http();
    let (mut upload, job) = begun(&serve, &http, "k1");
    // A job that came later runs meanwhile.
    let later = format!("{{}}\n{}", lines(0, 1));
    let later = http.send_as("POST", "/api/v1/jobs", None, "application/x-ndjson", later.as_bytes()).json();
    serve.wait_for_end(later["id"].as_str().unwrap());
    let view = http.send("GET", &format!("/api/v1/jobs/{job}"), None, b"").json();
    assert_eq!((&view["state"], &view["entries"]["finished"]), (&"open".into(), &0.into()), "{view}");
    upload.write(&lines(3000, 2000));
    let (status, reply) = upload.end();
    let accepted: Value = serde_json::from_str(&reply).unwrap();
    assert_eq!((status, &accepted["id"], &accepted["files"]), (201, &job.as_str().into(), &5000.into()), "{reply}");
    assert_eq!(serve.wait_for_end(&job)["job_state"], "FINISHED");
    let view = http.send("GET", &format!("/api/v1/jobs/{job}"), None, b"").json();
    assert_eq!(view["entries"]["finished"], 5000, "{view}");
    // The key finds it, without its lines.
    let mut again = Upload::start(&serve, "k1");
    again.write(&format!("{{}}\n{}", lines(0, 1)));
    let (status, reply) = again.end();
    assert!(status == 201 && reply.contains(&job), "{status} {reply}");
}

/// A ban of the source, and its end, start no file of an upload either.
#[test]
fn files_of_an_upload_leave_a_banned_source_only_when_it_is_complete() {
    let mut serve = Serve::start();
    serve.restart_with(("UNUSED", Path::new("")), "[replicas]\npatience_s = 0\n");
    let http = serve.http();
    let line = |number: usize| {
        let sources = format!("\"mock://a.example/{number}?size=1\", \"mock://b.example/{number}?size=1\"");
        format!(
            "{{\"sources\": [{sources}], \"destination\": \"mock://c.example/{number}\", \"strategy\": \"orderly\"}}\n"
        )
    };
    let drain = |is_drained: bool| {
        let body = format!("{{\"is_drained\": {is_drained}}}");
        assert_eq!(http.send("PUT", "/api/v1/config/drain", None, body.as_bytes()).status, 200);
    };
    drain(true);
    let manifest = format!("{{}}\n{}", line(0));
    let first = http.send_as("POST", "/api/v1/jobs", None, "application/x-ndjson", manifest.as_bytes()).json();
    let first = first["id"].as_str().unwrap().to_owned();
    let (upload, job) = begun_with(&serve, &http, "k1", &(0..3000).map(line).collect::<String>());
    let states = |job: &str| {
        let page = http.send("GET", &format!("/api/v1/jobs/{job}/files?limit=4"), None, b"").json();
        let files = page["files"].as_array().unwrap();
        files.iter().map(|file| file["state"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    serve.sterna(&["ban", "--wait", "mock://a.example"]).succeed();
    // The same look has found the files of the upload.
    until("the file stays", || states(&first) == ["reserved", "waiting"]);
    assert_eq!(states(&job), ["held", "reserved", "held", "reserved"]);
    serve.sterna(&["ban", "--lift", "mock://a.example"]).succeed();
    drain(false);
    serve.wait_for_end(&first);
    assert_eq!(states(&job), ["waiting", "reserved", "waiting", "reserved"]);
    assert_eq!(upload.end().0, 201);
    assert_eq!(serve.wait_for_end(&job)["job_state"], "FINISHED");
}

#[test]
fn an_upload_that_is_cut_off_leaves_no_job_and_its_key_is_free() {
    let serve = Serve::start();
    let http = serve.http();
    let (upload, _) = begun(&serve, &http, "k1");
    upload.cut();
    until("the job stays", || jobs(&http).is_empty());
    let whole = format!("{{}}\n{}", lines(0, 3000));
    let mut again = Upload::start(&serve, "k1");
    again.write(&whole);
    let (status, reply) = again.end();
    assert_eq!(status, 201, "{reply}");
    assert_eq!(jobs(&http).len(), 1);
}

#[test]
fn a_wrong_line_is_named_and_leaves_no_job() {
    let serve = Serve::start();
    let http = serve.http();
    for (wrong, expected) in [
        ("{\"sources\": [\"mock://a.example/x\"]}", "line 5002: expected sources and a destination"),
        ("{\"nosuch\": 1}", "line 5002: unknown field `nosuch`"),
        ("{", "line 5002: EOF"),
        ("{\"sources\": [\"mock://a.example/x\"], \"destination\": \"b\"}", "b is not a URL"),
    ] {
        let body = format!("{{}}\n{}{wrong}\n{}", lines(0, 5000), lines(5000, 10));
        let reply = http.send_as("POST", "/api/v1/jobs", None, "application/x-ndjson", body.as_bytes());
        assert!(reply.status == 400 && reply.body.contains(expected), "{wrong}: {reply:?}");
        until("the job stays", || jobs(&http).is_empty());
    }
}

#[test]
fn a_job_that_is_cancelled_during_its_upload_stays_cancelled() {
    let serve = Serve::start();
    let http = serve.http();
    let (mut upload, job) = begun(&serve, &http, "k1");
    assert_eq!(http.send("POST", &format!("/api/v1/jobs/{job}/cancel"), None, b"").json()["state"], "cancelled");
    upload.write(&lines(3000, 10));
    let (status, reply) = upload.end();
    assert!(status == 409 && reply.contains("was cancelled"), "{status} {reply}");
    let view = http.send("GET", &format!("/api/v1/jobs/{job}"), None, b"").json();
    assert_eq!((&view["state"], &view["entries"]["finished"]), (&"cancelled".into(), &0.into()), "{view}");
}

#[test]
fn a_killed_service_removes_the_jobs_whose_upload_it_cut_off() {
    let mut serve = Serve::start();
    let http = serve.http();
    let (upload, _) = begun(&serve, &http, "k1");
    serve.kill_and_start();
    upload.cut();
    let http = serve.http();
    until("the job stays", || jobs(&http).is_empty());
    let files = http.send("GET", "/files", None, b"").json();
    assert_eq!(files, serde_json::json!([]));
}
