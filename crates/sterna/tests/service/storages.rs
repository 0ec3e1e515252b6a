//! Transfers between real storages: XRootD and nginx. The storages move the bytes where they can, else the service.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde_json::{Value, json};
use sterna_seeded::Seeded;

use crate::client::Serve;
use crate::job_id;
use crate::servers::Storage;

/// Bytes of a large file: several ranges, and not a whole number of them.
pub const LARGE: usize = (40 << 20) + 12_345;

/// Configuration of nginx that sends 1 MB/s from one directory.
pub const SLOW: &str = "location /slow/ { limit_rate 1m; }";

/// File of a job, as the interface shows it.
pub struct Outcome {
    pub job: Value,
    pub native: Value,
    pub reason: String,
}

impl Outcome {
    /// Returns the way that the bytes went. Panics unless the file has arrived.
    pub fn way(&self) -> &str {
        assert_eq!(self.job["job_state"], "FINISHED", "{} {}", self.reason, self.job);
        self.native["by"].as_str().unwrap_or_default()
    }

    /// Panics unless the file has failed for a reason that begins so.
    pub fn assert_failed(&self, reason: &str) {
        assert!(self.job["job_state"] == "FAILED" && self.reason.starts_with(reason), "{} {}", self.reason, self.job);
    }
}

/// Submits one file. Returns the job.
pub fn submit(serve: &Serve, file: Value, params: &Value) -> String {
    let (status, body) = serve.request("POST", "/jobs", &json!({"files": [file], "params": params}).to_string());
    assert_eq!(status, 200, "{body}");
    let reply: Value = serde_json::from_str(&body).unwrap();
    reply["job_id"].as_str().unwrap().to_owned()
}

/// Returns the only file of a job that ends.
pub fn wait(serve: &Serve, id: &str) -> Outcome {
    let job = serve.wait_for_end(id);
    let json = |path: String| {
        let (status, body) = serve.request("GET", &path, "");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str::<Value>(&body).unwrap()
    };
    let files = json(format!("/jobs/{id}/files"));
    let native = json(format!("/api/v1/jobs/{id}/files"))["files"][0].clone();
    Outcome { job, native, reason: files[0]["reason"].as_str().unwrap_or_default().to_owned() }
}

/// Runs one file without further attempts.
pub fn run(serve: &Serve, source: &str, destination: &str, params: Value) -> Outcome {
    run_file(serve, json!({"sources": [source], "destinations": [destination]}), params)
}

pub fn run_file(serve: &Serve, file: Value, mut params: Value) -> Outcome {
    params["retry"] = json!(-1);
    wait(serve, &submit(serve, file, &params))
}

pub fn adler32(bytes: &[u8]) -> String {
    format!("ADLER32:{:08x}", simd_adler32::adler32(&bytes))
}

/// Waits until a condition holds.
pub fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        std::thread::yield_now();
    }
}

/// Returns true if a directory has a file with bytes.
pub fn has_bytes(directory: &Path) -> bool {
    let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).any(|file| file.is_file() && file.len() > 0)
}

#[test]
fn the_destination_pulls_with_the_client_of_fts3() {
    let (source, destination) = (Storage::xrootd(), Storage::xrootd());
    let serve = Serve::start();
    let bytes = Seeded::new(1).bytes(LARGE);
    source.put("f", &bytes);
    let arguments =
        ["-b", "-i", "1", "-K", &source.url_with("dav", "f"), &destination.url("in/dir/g"), &adler32(&bytes)];
    let said = serve.client("fts-rest-transfer-submit", &arguments).succeed();
    assert!(said.contains("FINISHED"), "{said}");
    let outcome = wait(&serve, &job_id(&said));
    assert_eq!(outcome.way(), "pull");
    assert_eq!(outcome.native["bytes"], LARGE);
    assert_eq!(outcome.native["checksum"], adler32(&bytes));
    assert!(destination.read("in/dir/g").unwrap() == bytes, "other bytes");
    assert_eq!(std::fs::read_dir(destination.path("in/dir")).unwrap().count(), 1, "a temporary file is left");
}

#[test]
fn the_source_pushes_where_the_destination_cannot_pull() {
    let (source, destination) = (Storage::xrootd(), Storage::nginx("create_full_put_path on;"));
    let serve = Serve::start();
    let bytes = Seeded::new(2).bytes(LARGE);
    source.put("f", &bytes);
    // The digest of the destination is computed here: nginx has none.
    let outcome = run(&serve, &source.url("f"), &destination.url("g"), json!({"verify_checksum": "both"}));
    assert_eq!(outcome.way(), "push");
    assert!(destination.read("g").unwrap() == bytes, "other bytes");
    assert_eq!(destination.names(), ["g"]);
}

/// Slow files take all the memory for ranges. Other transfers go on without.
#[test]
fn slow_storages_do_not_stop_the_transfers_of_others() {
    const SLOW_FILES: usize = 9;
    let (slow, source) = (Storage::nginx("location /slow/ { limit_rate 64k; }"), Storage::nginx(""));
    let destination = Storage::nginx("");
    let serve = Serve::start();
    std::fs::create_dir(slow.path("slow")).unwrap();
    std::fs::File::create(slow.path("slow/f")).unwrap().set_len(96 << 20).unwrap();
    let pair = |number: usize| json!({"sources": [slow.url("slow/f")], "destinations": [destination.url(&format!("slow{number}"))]});
    let files: Vec<Value> = (0..SLOW_FILES).map(pair).collect();
    let (status, body) = serve.request("POST", "/jobs", &json!({"files": files}).to_string());
    assert_eq!(status, 200, "{body}");
    let id = serde_json::from_str::<Value>(&body).unwrap()["job_id"].as_str().unwrap().to_owned();
    // Each has brought some bytes.
    let moving = || {
        let (_, body) = serve.request("GET", &format!("/api/v1/jobs/{id}/files"), "");
        let files: Value = serde_json::from_str(&body).unwrap();
        files["files"].as_array().unwrap().iter().filter(|file| file["bytes"] != 0).count() == SLOW_FILES
    };
    until(moving);
    let bytes = Seeded::new(4).bytes(LARGE);
    source.put("f", &bytes);
    assert_eq!(run(&serve, &source.url("f"), &destination.url("g"), json!({})).way(), "streamed");
    assert!(destination.read("g").unwrap() == bytes, "other bytes");
    assert_eq!(serve.request("DELETE", &format!("/jobs/{id}"), "").0, 200);
}

/// nginx takes a COPY with a destination for one within itself, and reports success.
#[test]
fn the_service_streams_where_no_storage_copies() {
    let (source, destination) = (Storage::nginx(""), Storage::nginx(""));
    let serve = Serve::start();
    for (name, size) in [("empty", 0), ("one", 1), ("block", 16 << 20), ("more", (16 << 20) + 1), ("large", LARGE)] {
        let bytes = Seeded::new(3).bytes(size);
        source.put(name, &bytes);
        let file = json!({"sources": [source.url(name)], "destinations": [destination.url(name)],
            "checksum": adler32(&bytes)});
        let outcome = run_file(&serve, file, json!({"verify_checksum": "both"}));
        assert_eq!(outcome.way(), "streamed", "{name}");
        assert!(destination.read(name).unwrap() == bytes, "{name}: other bytes");
        assert_eq!(outcome.native["checksum"], adler32(&bytes), "{name}");
    }
    assert_eq!(destination.names(), ["block", "empty", "large", "more", "one"]);
    assert_eq!(source.names(), destination.names(), "a copy within the source is left");
    // Directories are made.
    let outcome = run(&serve, &source.url("one"), &destination.url("a/b/c"), json!({}));
    assert_eq!(outcome.way(), "streamed");
    assert!(destination.read("a/b/c").is_some());
    // A name that no MOVE can give.
    let outcome = run(&serve, &source.url("one"), &destination.url("a%20b"), json!({}));
    assert_eq!(outcome.way(), "streamed");
    assert!(destination.read("a b").is_some());
}

#[test]
fn checksums_are_compared_at_both_ends() {
    let (source, destination, plain) = (Storage::xrootd(), Storage::xrootd(), Storage::nginx(""));
    let serve = Serve::start();
    let bytes = Seeded::new(4).bytes(100_000);
    source.put("f", &bytes);
    plain.put("f", &bytes);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let md5 = format!("md5:{}", hex(&<md5::Md5 as md5::Digest>::digest(&bytes)));
    let crc32c = format!("CRC32C:{:08x}", crc32c::crc32c(&bytes));
    let job = |from: &Storage, to: &str, checksum: &str, policy: &str| {
        let file = json!({"sources": [from.url("f")], "destinations": [destination.url(to)], "checksum": checksum});
        run_file(&serve, file, json!({"verify_checksum": policy}))
    };
    for (number, good) in [&adler32(&bytes), &md5, &crc32c, "ADLER32"].into_iter().enumerate() {
        for policy in ["source", "target", "both"] {
            job(&source, &format!("good-{number}-{policy}"), good, policy).way();
        }
    }
    let wrong = "ADLER32:12345678";
    job(&source, "none", wrong, "none").way();
    for (policy, expected) in [("source", "SOURCE [5] "), ("target", "DESTINATION [5] "), ("both", "SOURCE [5] ")] {
        job(&source, "wrong", wrong, policy).assert_failed(expected);
    }
    // nginx has no digests: XRootD pulls, and the service compares what has arrived.
    assert_eq!(job(&plain, "plain", &adler32(&bytes), "both").way(), "pull");
    job(&plain, "wrong", wrong, "both").assert_failed("SOURCE [5] ");
    assert!(destination.read("wrong").is_none());
    until(|| destination.names().iter().all(|name| !name.starts_with(".sterna")));
}

#[test]
fn failures_name_the_end_and_the_cause() {
    let full = "location /full/ { if ($request_method = PUT) { return 507; } }
        location /busy/ { return 503; } location /closed/ { return 403; }";
    let (source, destination, plain) = (Storage::xrootd(), Storage::xrootd(), Storage::nginx(full));
    let serve = Serve::start();
    source.put("f", b"bytes");
    destination.put("there", b"other");
    for (from, to, expected) in [
        (source.url("missing"), destination.url("g"), "SOURCE [2] HEAD "),
        (plain.url("missing"), destination.url("g"), "SOURCE [2] HEAD "),
        (plain.url("closed/f"), destination.url("g"), "SOURCE [13] HEAD "),
        (source.url("f"), plain.url("closed/g"), "DESTINATION [13] HEAD "),
        ("http://nosuch.invalid/f".to_owned(), destination.url("g"), "SOURCE ["),
        ("http://169.254.169.254/f".to_owned(), destination.url("g"), "SOURCE [13] "),
        ("root://h.example/f".to_owned(), destination.url("g"), "TRANSFER [22] no worker "),
        (
            source.url("f"),
            destination.url("there"),
            "DESTINATION [17] Destination file exists and overwrite is not enabled",
        ),
    ] {
        run(&serve, &from, &to, json!({})).assert_failed(expected);
    }
    let file = json!({"sources": [source.url("f")], "destinations": [destination.url("g")], "filesize": 7});
    run_file(&serve, file, json!({})).assert_failed("SOURCE [5] Source and user provided file size mismatch");
    assert_eq!(destination.read("there").unwrap(), b"other");
    assert_eq!(destination.names(), ["there"]);
    // A service pauses the transfers of an endpoint that is full or busy: each has one of its own.
    for (from, to, expected) in [
        (plain.url("busy/f"), destination.url("g"), "SOURCE [16] HEAD "),
        (source.url("f"), plain.url("full/g"), "DESTINATION [28] "),
    ] {
        run(&Serve::start(), &from, &to, json!({})).assert_failed(expected);
    }
}

/// The old file stays until the new one is complete: it is replaced by a rename, as a new inode.
#[test]
fn a_file_is_replaced_when_the_job_asks_for_it() {
    let (source, destination, plain) = (Storage::xrootd(), Storage::xrootd(), Storage::nginx(""));
    let serve = Serve::start();
    source.put("f", b"new bytes");
    for to in [&destination, &plain] {
        to.put("g", b"old");
        let before = std::fs::metadata(to.path("g")).unwrap().ino();
        let arrived = run(&serve, &source.url("f"), &to.url("g"), json!({"overwrite": true}));
        arrived.way();
        assert_eq!(to.read("g").unwrap(), b"new bytes");
        assert_ne!(std::fs::metadata(to.path("g")).unwrap().ino(), before);
        let wrong = json!({"sources": [source.url("f")], "destinations": [to.url("g")], "checksum": "ADLER32:1"});
        let failed = run_file(&serve, wrong, json!({"overwrite": true, "verify_checksum": "target"}));
        failed.assert_failed("DESTINATION [5] ");
        assert_eq!(to.read("g").unwrap(), b"new bytes", "a failure leaves the file");
        until(|| to.names() == ["g"]);
    }
}

/// One at the destination, which pulls, and one at the service, which streams.
#[test]
fn a_cancelled_transfer_leaves_nothing() {
    let (source, pulls, streams) = (Storage::nginx(SLOW), Storage::xrootd(), Storage::nginx(""));
    let serve = Serve::start();
    std::fs::create_dir(source.path("slow")).unwrap();
    source.put("slow/f", &Seeded::new(5).bytes(LARGE));
    for to in [&pulls, &streams] {
        let file = json!({"sources": [source.url("slow/f")], "destinations": [to.url("g")]});
        let id = submit(&serve, file, &json!({}));
        // nginx stores a body elsewhere until it is complete.
        let body = to.path("../body");
        until(|| has_bytes(&to.path("")) || has_bytes(&body));
        let (status, reply) = serve.request("DELETE", &format!("/jobs/{id}"), "");
        assert_eq!(status, 200, "{reply}");
        assert_eq!(serve.wait_for_end(&id)["job_state"], "CANCELED");
        until(|| to.names().is_empty() && !has_bytes(&body));
    }
}

/// The process is killed while the destination pulls. The next one starts again, and removes what is left.
#[test]
fn a_killed_service_starts_the_transfer_again_and_leaves_nothing() {
    let (source, destination) = (Storage::nginx(SLOW), Storage::xrootd());
    let mut serve = Serve::start();
    std::fs::create_dir(source.path("slow")).unwrap();
    let bytes = Seeded::new(7).bytes(4 << 20);
    source.put("slow/f", &bytes);
    let file = json!({"sources": [source.url("slow/f")], "destinations": [destination.url("g")]});
    let id = submit(&serve, file, &json!({}));
    until(|| has_bytes(&destination.path("")));
    serve.kill_and_start();
    assert_eq!(wait(&serve, &id).way(), "pull");
    assert!(destination.read("g").unwrap() == bytes, "other bytes");
    assert_eq!(destination.names(), ["g"]);
}

#[test]
fn a_storage_that_dies_is_named() {
    for dies_at_source in [true, false] {
        let (mut source, mut destination) = (Storage::nginx(SLOW), Storage::xrootd());
        let serve = Serve::start();
        std::fs::create_dir(source.path("slow")).unwrap();
        source.put("slow/f", &Seeded::new(6).bytes(LARGE));
        let file = json!({"sources": [source.url("slow/f")], "destinations": [destination.url("g")]});
        let id = submit(&serve, file, &json!({"retry": -1}));
        until(|| has_bytes(&destination.path("")));
        let (dies, expected) =
            if dies_at_source { (&mut source, "SOURCE [1") } else { (&mut destination, "DESTINATION [1") };
        dies.stop();
        wait(&serve, &id).assert_failed(expected);
        assert!(destination.read("g").is_none());
        if dies_at_source {
            until(|| destination.names().is_empty());
        }
    }
}

/// A token reaches its own storage, by whoever reads there, and appears nowhere else.
#[test]
fn tokens_reach_their_storages_and_no_reply() {
    let needs = |token: &str| format!("if ($http_authorization != \"Bearer {token}\") {{ return 403; }}");
    // A storage that repeats the header in its answer.
    let echoes = "location /echo/ { if ($request_method = PUT) { return 403 \"no $http_authorization\"; } }";
    let (source, streams) =
        (Storage::nginx(&needs("s3cret-a")), Storage::nginx(&format!("{} {echoes}", needs("s3cret-b"))));
    let pulls = Storage::xrootd();
    let serve = Serve::start();
    source.put("f", b"bytes");
    let file = |to: String, source_token: &str| {
        json!({"sources": [source.url("f")], "destinations": [to],
            "source_tokens": [source_token], "destination_tokens": ["s3cret-b"]})
    };
    assert_eq!(run_file(&serve, file(pulls.url("g"), "s3cret-a"), json!({})).way(), "pull");
    assert_eq!(run_file(&serve, file(streams.url("g"), "s3cret-a"), json!({})).way(), "streamed");
    let id = submit(&serve, file(pulls.url("h"), "s3cret-c"), &json!({"retry": -1}));
    wait(&serve, &id).assert_failed("SOURCE [13] HEAD ");
    let echoed = run_file(&serve, file(streams.url("echo/g"), "s3cret-a"), json!({}));
    echoed.assert_failed("DESTINATION [13] PUT ");
    assert!(echoed.reason.contains("no Bearer …") && !echoed.reason.contains("s3cret"), "{}", echoed.reason);
    for path in [
        format!("/jobs/{id}"),
        format!("/jobs/{id}/files"),
        format!("/jobs/{id}/files/3/retries"),
        format!("/api/v1/jobs/{id}"),
        format!("/api/v1/jobs/{id}/files"),
    ] {
        let (_, body) = serve.request("GET", &path, "");
        assert!(!body.contains("s3cret"), "{path}: {body}");
    }
    let without = run(&serve, &source.url("f"), &pulls.url("i"), json!({}));
    without.assert_failed("SOURCE [13] HEAD ");
}

/// A redirect is followed, also to another storage; TLS is verified by the authorities of the system.
#[test]
fn redirects_and_tls_are_followed_where_they_may_be() {
    let (source, destination) = (Storage::xrootd(), Storage::xrootd());
    let away = Storage::nginx(&format!("location /r/ {{ rewrite ^/r/(.*) {} redirect; }}", source.url("$1")));
    source.put("f", b"bytes");
    let serve = Serve::start();
    assert_eq!(run(&serve, &away.url("r/f"), &destination.url("g"), json!({})).way(), "pull");
    let strange = run(&serve, &source.url_with("davs", "f"), &destination.url("h"), json!({}));
    strange.assert_failed("SOURCE [13] connect to https://localhost:");
    let trusting = Serve::start_with(&[("SSL_CERT_FILE", &source.authority())]);
    let outcome = run(&trusting, &source.url_with("davs", "f"), &destination.url("h"), json!({}));
    assert_eq!(outcome.way(), "pull");
    assert_eq!(destination.read("h").unwrap(), b"bytes");
}

/// The client delegates a proxy when it submits. The storages know the user by it, and the destination pulls with a
/// macaroon of the source.
#[test]
fn storages_that_need_a_certificate_get_the_delegated_proxy() {
    let mut serve = Serve::start();
    let (_, whoami) = serve.request("GET", "/whoami", "");
    let whoami: Value = serde_json::from_str(&whoami).unwrap();
    let user = whoami["user_dn"].as_str().unwrap();
    let users = std::fs::read_dir(serve.capath()).unwrap().next().unwrap().unwrap().path();
    let (source, destination) = (Storage::xrootd_of(user, &users), Storage::xrootd_of(user, &users));
    let bytes = Seeded::new(8).bytes(100_000);
    source.put("f", &bytes);
    let locations = |to: &str| [source.url_with("davs", "f"), destination.url_with("davs", to)];
    let submit = |serve: &Serve, to: &str| {
        let [from, to] = &locations(to);
        let arguments = ["-b", "-i", "1", "--retry", "-1", "-K", from, to];
        wait(serve, &job_id(&serve.client("fts-rest-transfer-submit", &arguments).run().stdout))
    };
    serve.restart_with(("SSL_CERT_FILE", &source.authority()), "");
    submit(&serve, "g").assert_failed("SOURCE [13] HEAD ");
    serve.restart_with(("SSL_CERT_FILE", &source.authority()), "[storages]\ndelegation = true\n");
    assert_eq!(submit(&serve, "in/g").way(), "pull");
    assert!(destination.read("in/g").unwrap() == bytes, "other bytes");
    let (status, _) =
        serve.request("DELETE", &format!("/delegation/{}", whoami["delegation_id"].as_str().unwrap()), "");
    assert_eq!(status, 204);
    let [from, to] = locations("h");
    let job = json!({"files": [{"sources": [from], "destinations": [to]}]});
    let (status, body) = serve.request("POST", "/jobs", &job.to_string());
    assert!(status == 419 && body.contains("No delegation found"), "{status} {body}");
}

/// Configuration of nginx that logs requests.
const LOGGED: &str = "access_log access.log;";

/// Returns the requests that nginx has logged.
fn log(storage: &Storage) -> String {
    std::fs::read_to_string(storage.path("../access.log")).unwrap_or_default()
}

/// Starts nginx that answers 500 to requests of a method while it has a file `held` beside its files.
fn holding(method: &str) -> Storage {
    let storage = Storage::nginx(&format!(
        "{LOGGED} set $held $request_method; if (-f $document_root/../held) {{ set $held \"$held held\"; }}
        if ($held = \"{method} held\") {{ return 500; }}"
    ));
    hold(&storage);
    storage
}

fn hold(storage: &Storage) {
    std::fs::write(storage.path("../held"), b"").unwrap();
}

fn release(storage: &Storage) {
    std::fs::remove_file(storage.path("../held")).unwrap();
}

/// The name is one that no MOVE can give. A DELETE that comes late would delete the file of the next attempt.
#[test]
fn a_failed_write_to_a_final_name_deletes_nothing() {
    let (source, destination) = (Storage::nginx(""), holding("PUT"));
    let serve = Serve::start();
    source.put("f", b"bytes");
    let refused = run(&serve, &source.url("f"), &destination.url("a%20b"), json!({}));
    refused.assert_failed("DESTINATION [");
    assert!(refused.reason.contains("a part of the file may be at http://localhost:"), "{}", refused.reason);
    let file = json!({"sources": [source.url("f")], "destinations": [destination.url("c%20d")]});
    let id = submit(&serve, file, &json!({"retry": 3, "retry_delay": 1}));
    until(|| log(&destination).contains("PUT /c%20d"));
    release(&destination);
    assert_eq!(wait(&serve, &id).way(), "streamed");
    assert_eq!(destination.read("c d").unwrap(), b"bytes");
    assert!(!log(&destination).contains("DELETE"), "{}", log(&destination));
    // A wrong file that an attempt has written is deleted before the attempt ends.
    let wrong = json!({"sources": [source.url("f")], "destinations": [destination.url("e%20f")],
        "checksum": "ADLER32:1"});
    run_file(&serve, wrong.clone(), json!({"verify_checksum": "target"})).assert_failed("DESTINATION [5] ");
    assert_eq!(destination.names(), ["c d"]);
    let replaced = run_file(&serve, wrong, json!({"verify_checksum": "target", "overwrite": true}));
    replaced.assert_failed("DESTINATION [5] ");
    assert_eq!(destination.names(), ["c d", "e f"]);
}

/// Somebody has made it since the worker has looked.
#[test]
fn a_file_that_appears_at_a_final_name_stays() {
    let appears = "location \"/new \" { if ($request_method = HEAD) { return 404; } }";
    let condition = "if ($http_if_none_match = \"*\") { return 412; }";
    let (source, destination) = (Storage::nginx(""), Storage::nginx(&format!("{LOGGED} {condition} {appears}")));
    let serve = Serve::start();
    source.put("f", b"bytes");
    destination.put("new b", b"other");
    let refused = run(&serve, &source.url("f"), &destination.url("new%20b"), json!({}));
    refused.assert_failed("DESTINATION [17] Destination file exists and overwrite is not enabled: PUT ");
    assert_eq!(destination.read("new b").unwrap(), b"other");
    assert!(!log(&destination).contains("DELETE"), "{}", log(&destination));
    // A temporary name has no condition, and neither has a file that may be replaced.
    run(&serve, &source.url("f"), &destination.url("c"), json!({})).way();
    run(&serve, &source.url("f"), &destination.url("c%20d"), json!({"overwrite": true})).way();
    assert_eq!(destination.names(), ["c", "c d", "new b"]);
}

#[test]
fn a_deletion_and_a_renaming_are_sent_to_no_other_domain() {
    let (source, victim) = (Storage::nginx(""), Storage::nginx(LOGGED));
    let serve = Serve::start();
    source.put("f", b"bytes");
    victim.put("precious", b"precious");
    let away = format!("return 307 http://127.0.0.1:{}/precious;", victim.port());
    let cannot_rename = "if ($request_method = MOVE) { return 405; }";
    let deletes = Storage::nginx(&format!("{cannot_rename} if ($request_method = DELETE) {{ {away} }}"));
    let renames = Storage::nginx(&format!("if ($request_method = MOVE) {{ {away} }}"));
    for (storage, method) in [(&deletes, "DELETE"), (&renames, "MOVE")] {
        let refused = run(&serve, &source.url("f"), &storage.url("g"), json!({}));
        refused.assert_failed(&format!("DESTINATION [13] {method} "));
        assert!(refused.reason.contains("is sent to no other domain"), "{}", refused.reason);
    }
    assert_eq!((victim.read("precious").unwrap(), log(&victim)), (b"precious".to_vec(), String::new()));
    until(|| renames.names().is_empty());
}

/// nginx reports no digest, and the first attempt has not come to the destination.
#[test]
fn a_file_of_the_same_size_is_recognised_by_its_digest() {
    let (source, destination) = (holding("HEAD"), Storage::nginx(""));
    let serve = Serve::start();
    source.put("f", b"new bytes");
    for (number, (policy, checksum)) in
        [("both", adler32(b"new bytes")), ("both", "MD5".to_owned()), ("none", "ADLER32".to_owned())]
            .into_iter()
            .enumerate()
    {
        for (bytes, is_same) in [(b"old bytes", false), (b"new bytes", true)] {
            let name = format!("{number}-{is_same}");
            destination.put(&name, bytes);
            let inode = std::fs::metadata(destination.path(&name)).unwrap().ino();
            hold(&source);
            let failures = || log(&source).matches("\" 500 ").count();
            let before = failures();
            let file = json!({"sources": [source.url("f")], "destinations": [destination.url(&name)],
                "checksum": checksum});
            let id = submit(&serve, file, &json!({"verify_checksum": policy, "retry": 3, "retry_delay": 1}));
            until(|| failures() > before);
            release(&source);
            let outcome = wait(&serve, &id);
            match is_same {
                true => drop(outcome.way()),
                false => outcome.assert_failed("DESTINATION [17] Destination file exists"),
            }
            assert_eq!(destination.read(&name).unwrap(), bytes);
            assert_eq!(std::fs::metadata(destination.path(&name)).unwrap().ino(), inode);
        }
    }
}
