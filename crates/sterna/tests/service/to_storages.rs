//! Transfers from an agent to real storages, XRootD and nginx: the agent writes its own file there.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, symlink};

use serde_json::{Value, json};
use sterna_seeded::Seeded;

use crate::agents::Agent;
use crate::client::Serve;
use crate::relay::Relay;
use crate::servers::Storage;
use crate::storages::{LARGE, adler32, has_bytes, run, run_file, submit, until, wait};

/// Flags of an agent that may write to the storages of these tests.
const LOCAL: [&str; 2] = ["--web", "localhost"];

/// Returns a file of a job.
fn file(source: &str, destination: &str, checksum: &str) -> Value {
    json!({"sources": [source], "destinations": [destination], "checksum": checksum})
}

/// Panics if a file of the service itself stays at a storage.
fn wait_until_clean(storage: &Storage) {
    until(|| storage.names().iter().all(|name| !name.starts_with(".sterna")));
}

#[test]
fn an_agent_writes_its_files_to_storages() {
    let serve = Serve::start();
    let agent = Agent::start(&serve, "near.example", &LOCAL);
    for storage in [Storage::xrootd(), Storage::nginx("")] {
        for (name, size) in [("empty", 0), ("one", 1), ("block", 256 << 10), ("large", LARGE)] {
            let bytes = Seeded::new(3).bytes(size);
            fs::write(agent.path(name), &bytes).unwrap();
            let destination = storage.url_with("dav", name);
            let file = file(&agent.url(name), &destination, &adler32(&bytes));
            let outcome = run_file(&serve, file, json!({"verify_checksum": "both"}));
            assert_eq!(outcome.way(), "put", "{destination}");
            assert!(storage.read(name).unwrap() == bytes, "{destination}: other bytes");
            assert_eq!(outcome.native["bytes"], size, "{}", outcome.native);
            assert_eq!(outcome.native["checksum"], adler32(&bytes), "{}", outcome.native);
        }
        // Directories are made, and a name that no MOVE can give is written directly.
        assert_eq!(run(&serve, &agent.url("one"), &storage.url("a/b/c"), json!({})).way(), "put");
        assert_eq!(run(&serve, &agent.url("one"), &storage.url("a%20b"), json!({})).way(), "put");
        assert!(storage.read("a/b/c").is_some() && storage.read("a b").is_some());
        assert_eq!(storage.names(), ["a", "a b", "block", "empty", "large", "one"]);
    }
}

#[test]
fn a_wrong_checksum_gives_the_file_no_name() {
    let serve = Serve::start();
    let agent = Agent::start(&serve, "near.example", &LOCAL);
    let (xrootd, nginx) = (Storage::xrootd(), Storage::nginx(""));
    let bytes = Seeded::new(4).bytes(100_000);
    fs::write(agent.path("f"), &bytes).unwrap();
    let job = |storage: &Storage, to: &str, checksum: &str, policy: &str| {
        let file = file(&agent.url("f"), &storage.url(to), checksum);
        run_file(&serve, file, json!({"verify_checksum": policy}))
    };
    let crc32c = format!("CRC32C:{:08x}", crc32c::crc32c(&bytes));
    let wrong = "ADLER32:12345678";
    for storage in [&xrootd, &nginx] {
        for (number, good) in [&adler32(&bytes), &crc32c, "ADLER32"].into_iter().enumerate() {
            for policy in ["source", "target", "both"] {
                assert_eq!(job(storage, &format!("good-{number}-{policy}"), good, policy).way(), "put");
            }
        }
        assert_eq!(job(storage, "unchecked", wrong, "none").way(), "put");
        for (policy, expected) in [("source", "SOURCE [5] "), ("target", "DESTINATION [5] "), ("both", "SOURCE [5] ")] {
            job(storage, "wrong", wrong, policy).assert_failed(expected);
        }
        let file = json!({"sources": [agent.url("f")], "destinations": [storage.url("wrong")], "filesize": 7});
        let outcome = run_file(&serve, file, json!({}));
        outcome.assert_failed("SOURCE [5] Source and user provided file size mismatch");
        assert!(storage.read("wrong").is_none());
        wait_until_clean(storage);
    }
}

/// The old file stays until the new one is complete: it is replaced by a rename, as a new inode.
#[test]
fn a_file_at_a_storage_is_replaced_only_when_the_job_asks_for_it() {
    let serve = Serve::start();
    let agent = Agent::start(&serve, "near.example", &LOCAL);
    fs::write(agent.path("f"), b"new bytes").unwrap();
    for storage in [Storage::xrootd(), Storage::nginx("")] {
        storage.put("g", b"old");
        let inode = || fs::metadata(storage.path("g")).unwrap().ino();
        let before = inode();
        let refused = run(&serve, &agent.url("f"), &storage.url("g"), json!({}));
        refused.assert_failed("DESTINATION [17] Destination file exists and overwrite is not enabled");
        assert_eq!((storage.read("g").unwrap(), inode()), (b"old".to_vec(), before));
        run(&serve, &agent.url("f"), &storage.url("g"), json!({"overwrite": true})).way();
        assert_eq!(storage.read("g").unwrap(), b"new bytes");
        assert_ne!(inode(), before);
        let wrong = file(&agent.url("f"), &storage.url("g"), "ADLER32:1");
        let failed = run_file(&serve, wrong, json!({"overwrite": true, "verify_checksum": "both"}));
        failed.assert_failed("SOURCE [5] ");
        assert_eq!(storage.read("g").unwrap(), b"new bytes", "a failure leaves the file");
        wait_until_clean(&storage);
    }
}

/// Also after a redirect.
#[test]
fn an_agent_writes_only_to_hosts_that_its_operator_allows() {
    let serve = Serve::start();
    let storage = Storage::xrootd();
    fs::create_dir(storage.path("r")).unwrap();
    fs::set_permissions(storage.path("r"), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let to = format!("http://127.0.0.1:{}", storage.port());
    let away = Storage::nginx(&format!("location /r/ {{ rewrite ^(/r/.*)$ {to}$1 redirect; }}"));
    let refuses_put = format!("if ($request_method = PUT) {{ return 307 {to}$request_uri; }}");
    // A redirector in front of the disk of the other server.
    let data = storage.path("").display().to_string();
    let later = Storage::nginx(&format!("location /r/ {{ root {data}; {refuses_put} }}"));
    let closed = Agent::start(&serve, "closed.example", &["--web", "data.example"]);
    let near = Agent::start(&serve, "near.example", &LOCAL);
    let open = Agent::start(&serve, "open.example", &["--web", "localhost", "--web", "127.0.0.1"]);
    for agent in [&closed, &near, &open] {
        fs::write(agent.path("f"), b"bytes").unwrap();
    }
    let refused = run(&serve, &closed.url("f"), &storage.url("r/g"), json!({}));
    assert!(refused.reason.contains("--web localhost"), "{}", refused.reason);
    assert_eq!(refused.job["job_state"], "FAILED");
    for storage in [&away, &later] {
        let refused = run(&serve, &near.url("f"), &storage.url("r/g"), json!({}));
        refused.assert_failed("DESTINATION [13] ");
        let expected = format!("a redirect to {to}/r/");
        assert!(refused.reason.contains(&expected), "{}", refused.reason);
        assert!(refused.reason.contains("--web 127.0.0.1"), "{}", refused.reason);
    }
    assert!(fs::read_dir(storage.path("r")).unwrap().next().is_none(), "bytes reached another host");
    assert_eq!(run(&serve, &open.url("f"), &later.url("r/g"), json!({})).way(), "put");
    assert_eq!(storage.read("r/g").unwrap(), b"bytes");
}

/// The file arrives while the service is away, and the agent is killed before it reports that. The next start finds
/// the file, and compares its digest.
#[test]
fn a_repeated_start_takes_a_file_that_has_arrived_for_delivered() {
    let bytes = Seeded::new(6).bytes(LARGE);
    let other = Seeded::new(7).bytes(LARGE);
    for is_same in [true, false] {
        let mut serve = Serve::start();
        let storage = Storage::xrootd();
        let relay = Relay::before(&storage);
        let mut agent = Agent::start(&serve, "near.example", &LOCAL);
        fs::write(agent.path("f"), &bytes).unwrap();
        let file = file(&agent.url("f"), &relay.url("g"), &adler32(&bytes));
        let id = submit(&serve, file, &json!({"verify_checksum": "both", "retry": -1}));
        until(|| has_bytes(&storage.path("")));
        serve.kill();
        relay.open();
        until(|| storage.names() == ["g"]);
        agent.kill();
        if !is_same {
            // XRootD keeps the digest of an inode.
            fs::remove_file(storage.path("g")).unwrap();
            storage.put("g", &other);
        }
        let inode = fs::metadata(storage.path("g")).unwrap().ino();
        serve.kill_and_start();
        agent.run();
        let outcome = wait(&serve, &id);
        match is_same {
            true => drop(outcome.way()),
            false => outcome.assert_failed("DESTINATION [17] Destination file exists"),
        }
        assert_eq!(fs::metadata(storage.path("g")).unwrap().ino(), inode, "it was delivered twice");
        assert!(storage.read("g").unwrap() == if is_same { &bytes[..] } else { &other[..] });
        assert_eq!(storage.names(), ["g"]);
    }
}

#[test]
fn a_cancelled_write_leaves_nothing_at_the_storage() {
    let serve = Serve::start();
    let (xrootd, nginx) = (Storage::xrootd(), Storage::nginx(""));
    let agent = Agent::start(&serve, "near.example", &LOCAL);
    fs::write(agent.path("f"), Seeded::new(5).bytes(LARGE)).unwrap();
    for storage in [&xrootd, &nginx] {
        let relay = Relay::before(storage);
        let id = submit(&serve, file(&agent.url("f"), &relay.url("g"), "ADLER32"), &json!({}));
        // nginx stores a body elsewhere until it is complete.
        let body = storage.path("../body");
        until(|| has_bytes(&storage.path("")) || has_bytes(&body));
        let (status, reply) = serve.request("DELETE", &format!("/jobs/{id}"), "");
        assert_eq!(status, 200, "{reply}");
        assert_eq!(serve.wait_for_end(&id)["job_state"], "CANCELED");
        until(|| storage.names().is_empty());
        relay.open();
        until(|| storage.names().is_empty() && !has_bytes(&body));
    }
}

#[test]
fn an_attempt_that_takes_too_long_ends_and_leaves_nothing() {
    let serve = Serve::start();
    let storage = Storage::xrootd();
    let relay = Relay::before(&storage);
    let agent = Agent::start(&serve, "near.example", &LOCAL);
    fs::write(agent.path("f"), Seeded::new(8).bytes(LARGE)).unwrap();
    let outcome = run(&serve, &agent.url("f"), &relay.url("g"), json!({"timeout": 1}));
    assert!(outcome.reason.contains("did not end within 1 s"), "{}", outcome.reason);
    until(|| storage.names().is_empty());
}

#[test]
fn a_file_that_changes_while_it_is_read_fails() {
    let serve = Serve::start();
    let agent = Agent::start(&serve, "near.example", &LOCAL);
    let storage = Storage::xrootd();
    let bytes = Seeded::new(9).bytes(LARGE);
    // With a process that has the file open for writing, and without one.
    for (name, is_held) in [("held", true), ("loose", false)] {
        fs::write(agent.path(name), &bytes).unwrap();
        let open = || OpenOptions::new().append(true).open(agent.path(name)).unwrap();
        let mut held = is_held.then(open);
        let relay = Relay::before(&storage);
        let id = submit(&serve, file(&agent.url(name), &relay.url("g"), "ADLER32"), &json!({"retry": -1}));
        until(|| has_bytes(&storage.path("")));
        held.get_or_insert_with(open).write_all(b"x").unwrap();
        relay.open();
        let outcome = wait(&serve, &id);
        assert!(outcome.reason.starts_with("SOURCE ["), "{}", outcome.reason);
        assert!(outcome.reason.contains("changed while it was read"), "{}", outcome.reason);
        until(|| storage.names().is_empty());
    }
    // A file that a process has open, and leaves alone, arrives.
    let _held = OpenOptions::new().append(true).open(agent.path("held")).unwrap();
    let bytes = fs::read(agent.path("held")).unwrap();
    assert_eq!(run(&serve, &agent.url("held"), &storage.url("g"), json!({})).way(), "put");
    assert!(storage.read("g").unwrap() == bytes);
}

#[test]
fn the_source_of_a_write_is_one_file_beneath_a_root() {
    let serve = Serve::start();
    let agent = Agent::start(&serve, "near.example", &LOCAL);
    let storage = Storage::nginx("");
    fs::create_dir(agent.path("directory")).unwrap();
    fs::write(agent.path("directory/f"), b"bytes").unwrap();
    fs::write(agent.path("../secret"), b"secret").unwrap();
    symlink("../secret", agent.path("out")).unwrap();
    symlink(agent.path("../secret").canonicalize().unwrap(), agent.path("absolute")).unwrap();
    symlink("..", agent.path("above")).unwrap();
    symlink("directory/f", agent.path("within")).unwrap();
    symlink("nowhere", agent.path("dangling")).unwrap();
    fs::write(agent.path(".sterna-x.part"), b"part").unwrap();
    make_fifo(&agent);
    let no_file = "the source is no single file: a transfer moves one file";
    let leaves = "leaves the root";
    for (source, reason) in [
        ("directory", no_file),
        ("directory/", no_file),
        ("direct*/f", no_file),
        ("out", leaves),
        ("absolute", leaves),
        ("above/secret", leaves),
        ("dangling", "a symlink whose target does not exist"),
        ("missing", "look for"),
        ("fifo", "fifo"),
        (".sterna-x.part", "unfinished files"),
    ] {
        let outcome = run(&serve, &agent.url(source), &storage.url("g"), json!({}));
        assert_eq!(outcome.job["job_state"], "FAILED", "{source}");
        assert!(outcome.reason.contains(reason), "{source}: {}", outcome.reason);
    }
    assert!(storage.names().is_empty(), "{:?}", storage.names());
    assert_eq!(run(&serve, &agent.url("within"), &storage.url("g"), json!({})).way(), "put");
    assert_eq!(storage.read("g").unwrap(), b"bytes");
}

fn make_fifo(agent: &Agent) {
    let made = std::process::Command::new("mkfifo").arg(agent.path("fifo")).status().unwrap();
    assert!(made.success());
}

/// The token of the user reaches the storage, and nothing else.
#[test]
fn the_token_for_a_storage_goes_with_the_order() {
    let serve = Serve::start();
    let needs = "if ($http_authorization != \"Bearer s3cret\") { return 403 \"no $http_authorization\"; }";
    let storage = Storage::nginx(needs);
    let agent = Agent::start(&serve, "near.example", &LOCAL);
    fs::write(agent.path("f"), b"bytes").unwrap();
    let with = |to: &str, token: &str| {
        let mut file = file(&agent.url("f"), &storage.url(to), "ADLER32");
        file["source_tokens"] = json!(["unused"]);
        file["destination_tokens"] = json!([token]);
        run_file(&serve, file, json!({}))
    };
    assert_eq!(with("g", "s3cret").way(), "put");
    let refused = with("h", "s4cret");
    refused.assert_failed("DESTINATION [13] HEAD ");
    assert!(!refused.reason.contains("s4cret"), "{}", refused.reason);
    run(&serve, &agent.url("f"), &storage.url("h"), json!({})).assert_failed("DESTINATION [13] HEAD ");
    assert_eq!(storage.names(), ["g"]);
}

/// As when it reads: the authorities of its service do not count for storages.
#[test]
fn an_agent_verifies_storages_by_the_authorities_of_its_host() {
    let serve = Serve::start();
    let storage = Storage::xrootd();
    let strange = Agent::start(&serve, "strange.example", &LOCAL);
    let trusting = Agent::start_with(&serve, "trusting.example", &LOCAL, &[("SSL_CERT_FILE", &storage.authority())]);
    for agent in [&strange, &trusting] {
        fs::write(agent.path("f"), b"bytes").unwrap();
    }
    let refused = run(&serve, &strange.url("f"), &storage.url_with("davs", "g"), json!({}));
    refused.assert_failed("DESTINATION [13] connect to https://localhost:");
    assert_eq!(run(&serve, &trusting.url("f"), &storage.url_with("davs", "g"), json!({})).way(), "put");
    assert_eq!(storage.read("g").unwrap(), b"bytes");
}

/// The copy at the agent in between is deleted when the service has recorded the end of the last hop.
#[test]
fn a_hop_to_a_storage_deletes_the_copy_before_it() {
    let serve = Serve::start();
    let storage = Storage::xrootd();
    let source = Agent::start(&serve, "source.example", &[]);
    let relay = Agent::start(&serve, "relay.example", &LOCAL);
    fs::write(source.path("f"), b"bytes").unwrap();
    for keeps in [false, true] {
        let name = if keeps { "kept" } else { "g" };
        let job = json!({"hops": true, "keeps_between": keeps, "files": [
            {"sources": [source.url("f")], "destination": relay.url(name)},
            {"sources": [relay.url(name)], "destination": storage.url(name)},
        ]});
        let (status, body) = serve.request("POST", "/api/v1/jobs", &job.to_string());
        assert_eq!(status, 201, "{body}");
        let id = serde_json::from_str::<Value>(&body).unwrap()["id"].as_str().unwrap().to_owned();
        let job = serve.wait_for_end(&id);
        assert_eq!(job["job_state"], "FINISHED", "{job}");
        assert_eq!(storage.read(name).unwrap(), b"bytes");
        until(|| relay.path(name).exists() == keeps);
        assert!(source.path("f").exists(), "the source of the user stays");
    }
}
