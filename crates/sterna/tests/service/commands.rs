//! The commands submit, status, list, watch, cancel, explain and ban against a real service.

use std::path::Path;

use serde_json::Value;

use super::client::{Run, Serve};

const SOURCE: &str = "mock://a.example/f?size=10";
const DESTINATION: &str = "mock://b.example/f";

/// Maximum number of runs of a command that a test waits with. Reason: each takes some ms; a busy machine.
const RUNS_MAX: usize = 2000;

/// Submits a job with these arguments. Returns its identifier.
fn submit(serve: &Serve, arguments: &[&str]) -> String {
    let words: Vec<&str> = ["submit"].into_iter().chain(arguments.iter().copied()).collect();
    let id = serve.sterna(&words).succeed().trim_end().to_owned();
    assert_eq!((id.len(), id.lines().count()), (36, 1), "the identifier alone: {id}");
    id
}

/// Runs a command until its output has a text. Returns the output.
fn until(serve: &Serve, arguments: &[&str], text: &str) -> String {
    let mut last = String::new();
    for _ in 0..RUNS_MAX {
        last = serve.sterna(arguments).succeed();
        if last.contains(text) {
            return last;
        }
    }
    panic!("no {text:?} in {last}");
}

/// Runs a command that fails with this code. Returns its stderr.
fn fail(serve: &Serve, arguments: &[&str], code: i32) -> String {
    let run = serve.sterna(arguments).run();
    assert_eq!(run.code, Some(code), "{run:?}");
    assert!(run.stderr.starts_with("sterna: "), "{run:?}");
    run.stderr
}

fn json(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))
}

fn code(run: &Run) -> i32 {
    run.code.unwrap_or_else(|| panic!("{run:?}"))
}

#[test]
fn the_first_job_takes_a_submission_and_a_watch() {
    let serve = Serve::start();
    let id = submit(&serve, &[SOURCE, DESTINATION]);
    let run = serve.sterna(&["watch", &id]).run();
    assert!(run.success, "{run:?}");
    assert!(run.stderr.ends_with(&format!("job {id}: finished, 1 of 1 file arrived\n")), "{run:?}");
    let said = serve.sterna(&["status", "--files", &id]).succeed();
    assert!(said.contains("state      finished\n") && said.contains("submitted  20"), "{said}");
    let row = said.lines().last().unwrap_or_default();
    assert!(row.contains("finished") && row.contains("10 B") && row.ends_with(DESTINATION), "{said}");
    assert!(!serve.sterna(&["list"]).succeed().contains(&id), "the job has ended");
    for filter in [&["list", "--all"][..], &["list", "--only", "failed,finished"]] {
        let said = serve.sterna(filter).succeed();
        assert!(said.lines().any(|line| line.starts_with(&id) && line.contains("finished")), "{said}");
    }
}

#[test]
fn the_exit_code_of_a_watch_is_that_of_a_copy() {
    let serve = Serve::start();
    for (arguments, expected, text) in [
        (&["mock://a.example/f?errno=2", DESTINATION][..], 3, "stat mock://a.example/f?errno=2: No such file"),
        (&[SOURCE, "mock://b.example/f?errno=13"], 4, "create mock://b.example/f?errno=13: Permission denied"),
        (&["mock://c.example/f?errno=2", SOURCE, DESTINATION], 0, "finished, 1 of 1 file arrived"),
    ] {
        let words: Vec<&str> = ["submit", "--wait", "--retries=0"].iter().chain(arguments).copied().collect();
        let run = serve.sterna(&words).run();
        assert_eq!((code(&run), run.stdout.lines().count()), (expected, 1), "{run:?}");
        assert!(run.stderr.contains(text), "{run:?}");
    }
}

#[test]
fn a_manifest_of_many_files_can_fail_partly() {
    let serve = Serve::start();
    let directory = tempfile::tempdir().unwrap();
    let manifest = directory.path().join("manifest");
    let file = |query: &str, number: usize| {
        format!(
            "{{\"sources\": [\"mock://a.example/{number}{query}\"], \"destination\": \"mock://b.example/{number}\"}}\n"
        )
    };
    let files: String =
        (0..1500).map(|number| file(if number == 7 { "?errno=2" } else { "?size=1" }, number)).collect();
    std::fs::write(&manifest, format!("{{\"activity\": \"passes\", \"retries\": 0}}\n{files}")).unwrap();
    let manifest = manifest.to_str().unwrap();
    let run = serve.sterna(&["submit", "--from", manifest, "--priority", "5", "--wait"]).run();
    assert_eq!(code(&run), 1, "{run:?}");
    assert!(run.stderr.contains("partly_finished, 1499 of 1500 files arrived, 1 failed"), "{run:?}");
    let id = run.stdout.trim_end();
    let said = serve.sterna(&["status", id, "--json"]).succeed();
    assert_eq!(json(&said)["priority"], 5, "a flag changes the manifest: {said}");
    let pages = serve.sterna(&["status", id, "--files", "--json"]).succeed();
    let files: usize = pages.lines().skip(1).filter_map(|page| json(page)["files"].as_array().map(Vec::len)).sum();
    assert_eq!((pages.lines().count(), files), (3, 1500), "the job and two pages");
    let said = serve.sterna(&["explain", id]).succeed();
    assert_eq!(said.lines().filter(|line| line.starts_with("file ")).count(), 1, "{said}");
    assert!(said.contains("source (prepare), not_found: stat mock://a.example/7?errno=2"), "{said}");
}

#[test]
fn a_banned_endpoint_makes_files_wait_until_the_ban_is_lifted() {
    let serve = Serve::start();
    let (source, destination) = ("mock://a.example", "mock://b.example");
    serve.sterna(&["ban", "--wait", "--message", "new disks", source]).succeed();
    let id = submit(&serve, &[SOURCE, DESTINATION]);
    let said = until(&serve, &["explain", &id], "banned");
    assert!(said.contains("waits: an operator has banned mock://a.example: new disks\n"), "{said}");
    let number = said.split_whitespace().nth(1).unwrap_or_default().to_owned();
    assert_eq!(serve.sterna(&["explain", &number]).succeed(), said, "the file by its number");
    assert!(serve.sterna(&["list"]).succeed().contains(&format!("{id}  waiting")));
    // The second ban finds the file waiting, and holds it back.
    assert_eq!(serve.sterna(&["ban", "--wait", destination]).succeed(), format!("{id}\n"));
    let bans = serve.sterna(&["ban", "--list"]).succeed();
    assert!(bans.lines().count() == 3 && bans.contains("new disks") && bans.contains(destination), "{bans}");
    serve.sterna(&["ban", "--lift", source]).succeed();
    let said = serve.sterna(&["explain", &id]).succeed();
    assert!(said.contains("held: ") && said.contains("an operator has banned mock://b.example\n"), "{said}");
    serve.sterna(&["ban", "--lift", "mock://b.example:99/"]).succeed();
    serve.sterna(&["watch", &id]).succeed();
    let said = fail(&serve, &["ban", "--lift", destination], 5);
    assert!(said.contains("mock://b.example is not banned"), "{said}");
    // Without --wait, files are cancelled, and new jobs are refused.
    let slow = submit(&serve, &[SOURCE, "mock://b.example/f?time=600"]);
    assert_eq!(serve.sterna(&["ban", destination]).succeed(), format!("{slow}\n"));
    assert_eq!(code(&serve.sterna(&["watch", &slow]).run()), 130);
    assert!(fail(&serve, &["submit", SOURCE, DESTINATION], 5).contains("mock://b.example is banned"));
    assert!(fail(&serve, &["ban", "b.example"], 5).contains("expected SCHEME://HOST"));
}

/// The service ends after the ban was lifted and before its files were released.
#[test]
fn files_that_no_ban_holds_any_more_go_on_after_a_restart() {
    let mut serve = Serve::start();
    let id = submit(&serve, &[SOURCE, "mock://b.example/f?time=1"]);
    serve.sterna(&["watch", &id]).succeed();
    serve.sterna(&["ban", "--wait", "mock://b.example"]).succeed();
    let id = submit(&serve, &[SOURCE, "mock://b.example/g?time=1"]);
    serve.sterna(&["ban", "--wait", "mock://b.example"]).succeed();
    assert!(until(&serve, &["explain", &id], "held: ").contains("an operator has banned mock://b.example"));
    let lift = "import sqlite3, sys; base = sqlite3.connect(sys.argv[1], timeout=60); \
        print(base.execute(\"DELETE FROM settings WHERE kind = 'ban'\").rowcount); base.commit()";
    serve.kill();
    let database = serve.state_dir().join("service/sterna.db");
    let lifted = std::process::Command::new("python3").args(["-c", lift]).arg(database).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&lifted.stdout), "1\n");
    serve.kill_and_start();
    serve.sterna(&["watch", &id]).succeed();
}

#[test]
fn a_file_that_is_tried_again_is_explained_with_its_attempts() {
    let serve = Serve::start();
    let id = submit(&serve, &[SOURCE, "mock://b.example/f?transfer_errno=28"]);
    let said = until(&serve, &["explain", &id], "attempt 1");
    assert!(said.contains("waits: the next attempt starts in "), "{said}");
    assert!(said.contains("destination (transfer), no_space: write mock://b.example/f"), "{said}");
    let said = serve.sterna(&["explain", &id, "--json"]).succeed();
    assert_eq!((&json(&said)["why"]["kind"], &json(&said)["file"]["failures"]), (&"retry".into(), &1.into()), "{said}");
    serve.sterna(&["cancel", &id]).succeed();
    let said = serve.sterna(&["explain", &id]).succeed();
    assert!(said.contains("cancelled: ") && said.contains("Job canceled by the user"), "{said}");
    let id = submit(&serve, &[SOURCE, DESTINATION]);
    serve.sterna(&["watch", &id]).succeed();
    let run = serve.sterna(&["explain", &id]).run();
    assert!(run.success && run.stderr.contains("every file of the job has arrived"), "{run:?}");
}

#[test]
fn files_in_reserve_and_late_files_are_explained() {
    let serve = Serve::start();
    let id = submit(&serve, &["mock://a.example/f?size=9&time=600", "mock://c.example/f?size=9", "mock://b.example/f"]);
    let said = until(&serve, &["explain", &id], "is tried first");
    assert!(said.contains("reserved: mock://") && said.contains("waits: another replica, file "), "{said}");
    let hops = serde_json::json!({"hops": true, "files": [
        {"sources": ["mock://a.example/g?size=9&time=600"], "destination": "mock://b.example/g"},
        {"sources": ["mock://b.example/g"], "destination": "mock://c.example/g"},
    ]});
    let (status, accepted) = serve.request("POST", "/api/v1/jobs", &hops.to_string());
    assert!((200..300).contains(&status), "{accepted}");
    let hops = json(&accepted)["id"].as_str().unwrap().to_owned();
    let said = until(&serve, &["explain", &hops], "has not arrived yet");
    assert!(said.contains("waits: hop 1 of the job has not arrived yet"), "{said}");
    assert_eq!(serve.request("PUT", "/api/v1/config/drain", r#"{"is_drained": true}"#).0, 200);
    let first = submit(&serve, &["--deadline=1h", SOURCE, "mock://b.example/1"]);
    let late = submit(&serve, &["--deadline=2001-01-01T00:00:00Z", SOURCE, "mock://b.example/2"]);
    until(&serve, &["explain", &first], "drained");
    let said = until(&serve, &["explain", &late], "drained");
    assert!(said.contains("its deadline has passed, and it starts all the same"), "{said}");
    assert_eq!(serve.request("PUT", "/api/v1/config/drain", r#"{"is_drained": false}"#).0, 200);
    serve.sterna(&["watch", &late]).succeed();
    let files = serve.request("GET", &format!("/api/v1/jobs/{late}/files"), "").1;
    assert!(files.contains("first because its deadline has passed"), "{files}");
}

#[test]
fn a_job_is_cancelled_once() {
    let serve = Serve::start();
    let id = submit(&serve, &[SOURCE, "mock://b.example/f?time=600"]);
    assert_eq!(serve.sterna(&["cancel", &id]).succeed(), format!("{id}: cancelled\n"));
    let run = serve.sterna(&["cancel", &id]).run();
    assert_eq!((code(&run), run.stdout), (1, format!("{id}: had ended before, cancelled\n")));
    let run = serve.sterna(&["watch", &id]).run();
    assert!(code(&run) == 130 && run.stderr.contains("cancelled, 0 of 1 file arrived, 1 cancelled"), "{run:?}");
    let other = submit(&serve, &[SOURCE, "mock://b.example/f?time=600"]);
    let run = serve.sterna(&["cancel", "nosuch", &other]).run();
    assert!(code(&run) == 5 && run.stdout.starts_with(&other), "the others are cancelled: {run:?}");
}

#[test]
fn a_repeated_submission_finds_the_first_job() {
    let serve = Serve::start();
    let once = submit(&serve, &["--idempotency-key=k1", SOURCE, DESTINATION]);
    assert_eq!(submit(&serve, &["--idempotency-key=k1", SOURCE, DESTINATION]), once);
    assert_ne!(submit(&serve, &[SOURCE, DESTINATION]), once, "each command has its own key");
}

#[test]
fn replies_are_lines_of_json() {
    let serve = Serve::start();
    let run = serve.sterna(&["submit", "--json", "--wait", SOURCE, "mock://b.example/f?time=1"]).run();
    assert!(run.success && run.stderr.is_empty(), "{run:?}");
    let lines: Vec<Value> = run.stdout.lines().map(json).collect();
    let id = lines[0]["id"].as_str().unwrap_or_else(|| panic!("{lines:?}"));
    assert_eq!(lines[0]["files"], 1);
    assert!(lines[1..].iter().all(|line| line["id"] == id), "{lines:?}");
    assert_eq!(lines.last().map(|line| &line["state"]), Some(&"finished".into()));
    let list = json(&serve.sterna(&["list", "--all", "--json"]).succeed());
    assert_eq!(list["jobs"][0]["id"], id);
    let banned = json(&serve.sterna(&["ban", "--json", "mock://z.example"]).succeed());
    assert_eq!(banned, serde_json::json!({"endpoint": "mock://z.example", "jobs": []}));
    let bans = json(&serve.sterna(&["ban", "--list", "--json"]).succeed());
    assert_eq!((&bans["bans"][0]["kind"], &bans["bans"][0]["takes_jobs"]), (&"cancel".into(), &false.into()));
    assert_eq!(json(&serve.sterna(&["cancel", "--json", id]).run().stdout)["state"], "finished");
}

#[test]
fn an_error_names_the_request_and_the_next_step() {
    let serve = Serve::start();
    let nobody = tempfile::tempdir().unwrap();
    let nobody = nobody.path().to_str().unwrap();
    let missing = "6f2c1c9e-0f5b-4f6a-9d0a-3a4a5d3c8a11";
    for (arguments, code, texts) in [
        (&["status", missing][..], 5, &["GET https://localhost:", "/api/v1/jobs/6f2c1c9e", "No job"][..]),
        (&["watch", "../../x"], 5, &["..%2F..%2Fx", "No job"]),
        (&["explain", "999999"], 5, &["there is no file 999999"]),
        (&["submit", SOURCE, "mock://b.example"], 5, &["mock://b.example has no path"]),
        (
            &["list", "--service", "https://localhost:1"],
            5,
            &["https://localhost:1/", "connection refused", "--service"],
        ),
        (&["list", "--service", "https://nosuch.invalid"], 5, &["https://nosuch.invalid/", "check the host"]),
        // No certificate is in this state directory.
        (&["list", "--state", nobody, "--capath", serve.capath()], 6, &["no certificate", "--cert FILE"]),
        (&["list", "--state", nobody], 6, &["no authority in the list of this host", "--capath DIR"]),
    ] {
        let said = fail(&serve, arguments, code);
        assert!(texts.iter().all(|text| said.contains(text)), "{arguments:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

/// Writes a certificate that no authority of the service has signed, and its key, to one file.
fn write_foreign(directory: &Path) -> String {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
    let path = directory.join("foreign.pem");
    std::fs::write(&path, format!("{}{}", certificate.pem(), key.serialize_pem())).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_foreign_certificate_is_named_at_either_end() {
    let serve = Serve::start();
    let directory = tempfile::tempdir().unwrap();
    let foreign = write_foreign(directory.path());
    let said = fail(&serve, &["list", "--cert", &foreign, "--capath", serve.capath()], 6);
    assert!(said.contains("the service refuses the certificate in ") && said.contains("foreign.pem"), "{said}");
    let said = fail(&serve, &["list", "--capath", directory.path().to_str().unwrap()], 6);
    assert!(said.contains("no authority in ") && said.contains("--capath DIR"), "{said}");
}

/// The files are more than go into one transaction. An entry with a replica elsewhere goes on there, and one whose
/// other replica is banned too ends.
#[test]
fn a_ban_ends_every_file_of_an_endpoint_but_those_with_another_replica() {
    const PLAIN: usize = 2500;
    let serve = Serve::start();
    let directory = tempfile::tempdir().unwrap();
    let manifest = directory.path().join("manifest");
    let mut lines = String::from("{\"retries\": 0}\n");
    let mut add = |sources: &[&str], name: &str| {
        let sources: Vec<String> =
            sources.iter().map(|host| format!("\"mock://{host}.example/{name}?size=1\"")).collect();
        let destination = format!("mock://to.example/{name}?time=600&size_post=1");
        lines.push_str(&format!(
            "{{\"sources\": [{}], \"destination\": \"{destination}\", \"strategy\": \"orderly\"}}\n",
            sources.join(", ")
        ));
    };
    (0..PLAIN).for_each(|number| add(&["bad"], &number.to_string()));
    add(&["bad", "good"], "elsewhere");
    add(&["bad", "worse"], "nowhere");
    add(&["good"], "untouched");
    std::fs::write(&manifest, lines).unwrap();
    serve.sterna(&["ban", "mock://worse.example", "--wait"]).succeed();
    let id = submit(&serve, &["--from", manifest.to_str().unwrap()]);
    assert_eq!(serve.sterna(&["ban", "mock://bad.example"]).succeed(), format!("{id}\n"));
    let pages = serve.sterna(&["status", &id, "--files", "--json"]).succeed();
    let files: Vec<Value> =
        pages.lines().skip(1).flat_map(|page| json(page)["files"].as_array().unwrap().clone()).collect();
    assert_eq!(files.len(), PLAIN + 5);
    for file in files {
        let (source, name) = (file["source"].as_str().unwrap(), file["destination"].as_str().unwrap());
        let state = file["state"].as_str().unwrap();
        let expected: &[&str] = match source.split(['/', '.']).nth(2).unwrap() {
            "bad" => &["cancelled"],
            "worse" => &["reserved"],
            _ => &["waiting", "active"],
        };
        assert!(expected.contains(&state), "{source} {name}: {state}");
        if state == "cancelled" {
            assert_eq!(file["failure"]["text"], "Storage banned", "{file}");
        }
    }
    let entries = &json(pages.lines().next().unwrap())["entries"];
    assert_eq!((&entries["cancelled"], &entries["all"]), (&(PLAIN + 1).into(), &(PLAIN + 3).into()), "{entries}");
}

#[test]
fn single_files_are_cancelled_and_the_others_go_on() {
    let serve = Serve::start();
    let directory = tempfile::tempdir().unwrap();
    let manifest = directory.path().join("manifest");
    let file = |sources: &[&str], name: &str, time: u32| {
        let sources: Vec<String> = sources.iter().map(|host| format!("\"mock://{host}.example/f?size=1\"")).collect();
        format!("{{\"sources\": [{}], \"destination\": \"mock://b.example/{name}?time={time}\"}}\n", sources.join(", "))
    };
    let lines = [file(&["a"], "x", 600), file(&["a", "c"], "y", 600), file(&["a"], "z", 0)].concat();
    std::fs::write(&manifest, format!("{{}}\n{lines}")).unwrap();
    let id = submit(&serve, &["--from", manifest.to_str().unwrap()]);
    let said = serve.sterna(&["status", &id, "--files", "--json"]).succeed();
    let files = json(said.lines().nth(1).unwrap())["files"].as_array().unwrap().clone();
    let number = |index: usize| files[index]["number"].to_string();
    let is_reserved = |index: usize| files[index]["state"] == "reserved";
    let (reserved, first) = if is_reserved(1) { (1, 2) } else { (2, 1) };
    assert!(is_reserved(reserved) && !is_reserved(first), "{said}");
    let said = serve.sterna(&["cancel", &number(0)]).succeed();
    assert_eq!(said, format!("file {}: cancelled\n", number(0)));
    let run = serve.sterna(&["cancel", &number(0)]).run();
    assert_eq!((code(&run), run.stdout), (1, format!("file {}: had ended before, cancelled\n", number(0))));
    let said = fail(&serve, &["cancel", &number(reserved)], 5);
    assert!(said.contains("waits for another replica"), "{said}");
    let said = serve.sterna(&["cancel", "--json", &number(first)]).succeed();
    assert_eq!(
        (&json(&said)["state"], &json(&said)["failure"]["text"]),
        (&"cancelled".into(), &"Job canceled by the user".into())
    );
    assert!(fail(&serve, &["cancel", "999999"], 5).contains("there is no file 999999"));
    // The job ends with its last file: no replica goes on for the one that was cancelled.
    let run = serve.sterna(&["watch", &id]).run();
    assert!(run.stderr.contains("1 of 3 files arrived, 2 cancelled"), "{run:?}");
}

#[test]
fn every_job_is_listed_a_page_at_a_time() {
    const JOBS: usize = 1003;
    let serve = Serve::start();
    let http = serve.http();
    let body = serde_json::json!({"files": [{"sources": [SOURCE], "destination": "mock://b.example/f?time=600"}]});
    let post = || http.send("POST", "/api/v1/jobs", None, body.to_string().as_bytes());
    let ids: Vec<String> = (0..JOBS).map(|_| post().json()["id"].as_str().unwrap().to_owned()).collect();
    let get = |query: &str| http.send("GET", &format!("/api/v1/jobs{query}"), None, b"");
    let (mut seen, mut next) = (Vec::new(), String::new());
    loop {
        let page = get(&format!("?limit=500{next}")).json();
        seen.extend(page["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_owned()));
        let Some(last) = page["next"].as_str() else { break };
        next = format!("&before={last}");
        // A later job is on no later page.
        post();
    }
    assert!(seen.iter().eq(ids.iter().rev()), "{} of {JOBS} jobs", seen.len());
    assert_eq!(get("?before=6f2c1c9e-0f5b-4f6a-9d0a-3a4a5d3c8a11").status, 404, "an unknown job is no cursor");
    assert_eq!(get("?before=x").status, 400);
    let run = serve.sterna(&["list", "--limit", "1002"]).run();
    assert_eq!(run.stdout.lines().count(), 1 + 1002, "a head and the jobs");
    assert!(run.stderr.contains("these are the latest 1002 jobs"), "{}", run.stderr);
    let run = serve.sterna(&["list", "--limit", "5000", "--json"]).run();
    assert_eq!((run.stdout.lines().count(), run.stderr.as_str()), (2, ""), "two pages");
}

/// The flags reach the service, which follows them.
#[test]
fn flags_of_one_file_are_followed() {
    let serve = Serve::start();
    let sources = ["mock://bad.example/f?errno=2", "mock://a.example/f?size=10"];
    let id = submit(
        &serve,
        &["--strategy=orderly", "--size=10", "--metadata={\"run\": 7}", sources[0], sources[1], DESTINATION],
    );
    assert!(serve.sterna(&["watch", &id]).run().success);
    let said = serve.sterna(&["status", &id, "--files", "--json"]).succeed();
    let (job, page) = (json(said.lines().next().unwrap()), json(said.lines().nth(1).unwrap()));
    assert_eq!(job["metadata"], serde_json::json!({"run": 7}));
    let states: Vec<&str> =
        page["files"].as_array().unwrap().iter().map(|file| file["state"].as_str().unwrap()).collect();
    assert_eq!(
        (states, &page["files"][0]["size"]),
        (vec!["failed", "finished"], &10.into()),
        "the first goes first: {said}"
    );
}
