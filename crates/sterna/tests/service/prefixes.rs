//! Jobs from a prefix: the service lists a directory, and its files start while the listing goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use serde_json::{Value, json};
use sterna_seeded::Seeded;

use crate::agents::{Agent, set_site};
use crate::client::Serve;
use crate::servers::Storage;

/// Maximum number of looks for a state. Reason: a busy machine; each takes some 10 ms.
const LOOKS_MAX: usize = 20_000;

/// Looks until a condition holds. Panics with the last look after many.
fn until<T: std::fmt::Debug>(look: impl Fn() -> T, is_met: impl Fn(&T) -> bool) -> T {
    let mut last = look();
    for _ in 0..LOOKS_MAX {
        if is_met(&last) {
            return last;
        }
        last = look();
    }
    panic!("does not happen: {last:?}");
}

/// Returns a job of one prefix.
fn of_prefix(source: &str, destination: &str, options: Value) -> Value {
    let mut job = options;
    job["files"] = json!([{"sources": [source], "destination": destination, "recursive": true}]);
    job
}

/// Submits a job of one prefix. Returns its identifier.
fn submit(serve: &Serve, source: &str, destination: &str, options: Value) -> String {
    let (status, body) = serve.request("POST", "/api/v1/jobs", &of_prefix(source, destination, options).to_string());
    assert_eq!(status, 201, "{body}");
    serde_json::from_str::<Value>(&body).unwrap()["id"].as_str().unwrap().to_owned()
}

fn get(serve: &Serve, path: &str) -> Value {
    let (status, body) = serve.request("GET", path, "");
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

fn job(serve: &Serve, id: &str) -> Value {
    get(serve, &format!("/api/v1/jobs/{id}"))
}

/// Waits for the end of a job. Returns it.
fn end(serve: &Serve, id: &str) -> Value {
    until(|| job(serve, id), |job| !job["finished_ms"].is_null())
}

/// Returns the files of a job.
fn files(serve: &Serve, id: &str) -> Vec<Value> {
    let (mut files, mut after) = (Vec::new(), 0);
    loop {
        let page = get(serve, &format!("/api/v1/jobs/{id}/files?limit=1000&after={after}"));
        let page = page["files"].as_array().unwrap().clone();
        let Some(last) = page.last() else { return files };
        after = last["number"].as_u64().unwrap();
        files.extend(page);
    }
}

/// Returns the failed files of a job that has ended in this state, as source and reason.
fn failures(serve: &Serve, id: &str, state: &str) -> Vec<(String, String)> {
    let ended = end(serve, id);
    let files = files(serve, id);
    assert_eq!(ended["state"], state, "{ended} {files:?}");
    let failed = files.iter().filter(|file| file["state"] == "failed");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    failed.map(|file| (text(&file["source"]), text(&file["failure"]["text"]))).collect()
}

/// Returns the regular files beneath a directory, by their paths.
fn tree(directory: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let (mut found, mut queue) = (BTreeMap::new(), vec![directory.to_path_buf()]);
    while let Some(at) = queue.pop() {
        for entry in fs::read_dir(&at).unwrap() {
            let entry = entry.unwrap();
            match entry.file_type().unwrap() {
                kind if kind.is_dir() => queue.push(entry.path()),
                kind if kind.is_file() => {
                    let path = entry.path().strip_prefix(directory).unwrap().as_os_str().as_bytes().to_vec();
                    found.insert(path, fs::read(entry.path()).unwrap());
                }
                _ => {}
            }
        }
    }
    found
}

/// Makes files beneath a directory.
fn make(directory: &Path, names: &[&[u8]]) {
    for (number, name) in names.iter().enumerate() {
        let path = directory.join(OsStr::from_bytes(name));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // The first one is empty.
        fs::write(path, Seeded::new(number as u64).bytes(number * 777)).unwrap();
    }
}

/// Makes many files of one byte, 1000 in each directory.
fn make_many(directory: &Path, count: usize) {
    for number in 0..count {
        let at = directory.join(format!("d{}", number / 1000));
        if number % 1000 == 0 {
            fs::create_dir_all(&at).unwrap();
        }
        fs::write(at.join(format!("f{number}")), b"x").unwrap();
    }
}

/// Lets no transfer start.
fn drain(serve: &Serve, is_on: bool) {
    serve.sterna(&["config", "drain", if is_on { "on" } else { "off" }]).succeed();
}

/// Names that every storage takes.
const NAMES: [&[u8]; 6] = [b"empty", b"a", b"deep/er/b", b"deep/c d", b"deep/er/still/d+e=f", "deep/ü".as_bytes()];

/// Names with a meaning in URLs and in XML.
const IN_XML: [&[u8]; 5] = [b"a&amp;b", b"<c>", b"#d", b"e+f", b"g;h"];

/// Names that only file systems take.
const ODD: [&[u8]; 8] =
    [b"100%", b"a%20b", b"q?x=1#y", b"line\nbreak/\x1b[31m", b"latin\xff\xfe", b"star*[1]{2}", b"'\"\\", b" . "];

#[test]
fn a_tree_goes_from_agent_to_agent() {
    let serve = Serve::start();
    let (near, far) = (Agent::start(&serve, "near.example", &[]), Agent::start(&serve, "far.example", &[]));
    let names: Vec<&[u8]> = NAMES.into_iter().chain(ODD).collect();
    make(&near.path("data/run 7"), &names);
    make(&near.path("data/other"), &[b"x", b"not this one"]);
    fs::create_dir(near.path("data/run 7/nothing")).unwrap();
    std::os::unix::fs::symlink("../other", near.path("data/run 7/link")).unwrap();
    std::os::unix::fs::symlink("../other/x", near.path("data/run 7/to a file")).unwrap();
    let (source, destination) = (near.url("data/run%207/"), far.url("in/"));
    let said = serve.sterna(&["submit", "--recursive", "--wait", &source, &destination]).run();
    assert!(said.success, "{said:?}");
    assert_eq!(tree(&far.path("in")), tree(&near.path("data/run 7")));
    assert!(!far.path("in/link").exists() && !far.path("in/to a file").exists(), "symlinks are not followed");
    let job = job(&serve, said.stdout.trim());
    assert_eq!((&job["entries"]["all"], &job["entries"]["listing"]), (&json!(names.len()), &json!(0)), "{job}");
    // The root itself, to a directory within a job of several entries.
    let mut several = of_prefix(&near.url(""), &far.url("all/"), json!({}));
    several["files"]
        .as_array_mut()
        .unwrap()
        .push(json!({"sources": [near.url("data/other/x")], "destination": far.url("y")}));
    let (status, body) = serve.request("POST", "/api/v1/jobs", &several.to_string());
    assert_eq!(status, 201, "{body}");
    let id = serde_json::from_str::<Value>(&body).unwrap()["id"].as_str().unwrap().to_owned();
    assert_eq!(failures(&serve, &id, "finished"), []);
    assert_eq!(tree(&far.path("all")), tree(&near.path("")));
    assert!(far.path("y").exists());
}

#[test]
fn a_tree_goes_from_a_storage_to_an_agent_and_back() {
    let serve = Serve::start();
    let storage = Storage::xrootd();
    let agent = Agent::start(&serve, "near.example", &["--web", "localhost"]);
    make(&storage.path("data/d"), &NAMES.into_iter().chain(IN_XML).chain([&b"100%"[..], b"a%20b"]).collect::<Vec<_>>());
    let id = submit(&serve, &storage.url("data/d/"), &agent.url("in/"), json!({}));
    assert_eq!(failures(&serve, &id, "finished"), []);
    assert_eq!(tree(&agent.path("in")), tree(&storage.path("data/d")));
    let id = submit(&serve, &agent.url("in/"), &storage.url_with("dav", "back/"), json!({}));
    assert_eq!(failures(&serve, &id, "finished"), []);
    assert_eq!(tree(&storage.path("back")), tree(&storage.path("data/d")));
}

#[test]
fn a_tree_goes_between_storages() {
    let serve = Serve::start();
    let (from, to) = (Storage::xrootd(), Storage::xrootd());
    make(&from.path("data/d"), &NAMES);
    let id = submit(&serve, &from.url_with("dav", "/data//d/"), &to.url_with("dav", "x/y/"), json!({}));
    assert_eq!(failures(&serve, &id, "finished"), []);
    assert_eq!(tree(&to.path("x/y")), tree(&from.path("data/d")));
    for (prefix, expected) in [("data/none/", "404"), ("data/d/a/", "")] {
        let id = submit(&serve, &from.url(prefix), &to.url("z/"), json!({"retries": 0}));
        let failed = failures(&serve, &id, "failed");
        assert!(failed.len() == 1 && failed[0].1.contains(expected), "{failed:?}");
    }
}

#[test]
fn what_cannot_be_listed_is_one_failed_file_with_the_reason() {
    let serve = Serve::start();
    let (near, far) = (Agent::start(&serve, "near.example", &[]), Agent::start(&serve, "far.example", &[]));
    let plain = Storage::nginx("");
    fs::create_dir_all(near.path("empty/of files")).unwrap();
    fs::write(near.path("file"), b"bytes").unwrap();
    std::os::unix::fs::symlink("empty", near.path("link")).unwrap();
    for (source, expected) in [
        (near.url("empty/"), "no file is beneath sterna://near.example/empty/"),
        (near.url("missing/"), "missing"),
        (near.url("file/"), "it is no directory"),
        (near.url("link/"), "it is a symlink"),
        (near.url("e*y/"), "there is no such directory"),
        (near.url("empty/../"), ".."),
        (near.url("%2e%2e/"), ".."),
        (plain.url("d/"), "405: the server lists no directories (it has no WebDAV PROPFIND)"),
        ("https://nosuch.invalid/d/".to_owned(), "nosuch.invalid"),
    ] {
        let id = submit(&serve, &source, &far.url("in/"), json!({"retries": 0}));
        let failed = failures(&serve, &id, "failed");
        let [(of, reason)] = failed.as_slice() else { panic!("{source}: {failed:?}") };
        assert!(*of == source && reason.contains(expected), "{source}: {reason}");
        assert_eq!(job(&serve, &id)["reason"], json!(reason), "the reason of the job is that of its prefix");
    }
    assert!(!far.path("in").exists());
    // A listing that fails is tried again, and explain tells why.
    let id = submit(&serve, "https://nosuch.invalid/d/", &far.url("in/"), json!({"retry_wait_s": 1}));
    let listing = until(|| job(&serve, &id)["listings"][0].clone(), |listing| listing["failures"] == 1);
    assert!(listing["text"].as_str().unwrap().contains("the next attempt starts in"), "{listing}");
    let said = serve.sterna(&["explain", &id]).succeed();
    assert!(said.contains("prefix https://nosuch.invalid/d/") && said.contains("listing 1 failed"), "{said}");
    assert_eq!(serve.request("POST", &format!("/api/v1/jobs/{id}/cancel"), "").0, 200);
}

#[test]
fn a_prefix_is_refused_where_it_has_no_meaning() {
    let serve = Serve::start();
    let near = Agent::start(&serve, "near.example", &[]);
    let (from, to) = (near.url("d/"), near.url("e/"));
    let entry = |more: Value| {
        let mut entry = json!({"sources": [from], "destination": to, "recursive": true});
        entry.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"files": [entry]})
    };
    for (job, expected) in [
        (entry(json!({"recursive": false})), "names a directory: with \"recursive\": true (sterna submit --recursive)"),
        (entry(json!({"recursive": false, "sources": [near.url("f")]})), "sterna submit --recursive"),
        (entry(json!({"sources": [near.url("d")]})), "expected a location that ends with /"),
        (entry(json!({"destination": near.url("d")})), "expected a location that ends with /"),
        (entry(json!({"destination": "https://se.example/d/?x=1"})), "without a query"),
        (entry(json!({"sources": [from, from]})), "has one source"),
        (entry(json!({"size": 7})), "are of one file"),
        (entry(json!({"checksum": "adler32:1"})), "are of one file"),
        (entry(json!({"sources": ["mock://a/d/"]})), "mock://a/d/ cannot be listed"),
        (entry(json!({"sources": ["sterna://else.example/d/"]})), "no site else.example"),
    ] {
        let (status, body) = serve.request("POST", "/api/v1/jobs", &job.to_string());
        assert!(status == 400 && body.contains(&expected.replace('"', "\\\"")), "{job}: {status} {body}");
    }
    let mut hops = entry(json!({}));
    hops["hops"] = json!(true);
    let (status, body) = serve.request("POST", "/api/v1/jobs", &hops.to_string());
    assert!(status == 400 && body.contains("a job of hops has no prefixes"), "{body}");
    let many: Vec<Value> = vec![hops["files"][0].clone(); 1001];
    let (status, body) = serve.request("POST", "/api/v1/jobs", &json!({"files": many}).to_string());
    assert!(status >= 400 && body.contains("more than 1000 prefixes"), "{status} {body}");
}

#[test]
fn a_prefix_needs_the_rights_of_the_virtual_organisation() {
    let serve = Serve::start();
    let (near, far) = (Agent::start(&serve, "near.example", &[]), Agent::start(&serve, "far.example", &[]));
    make(&near.path("open"), &NAMES);
    make(&near.path("closed"), &NAMES);
    let vo = get(&serve, "/whoami")["vos"][0].as_str().unwrap().to_owned();
    let access = json!({"agents": [near.fingerprint], "access": [{"vo": vo, "right": "read", "path": "open"}]});
    assert_eq!(serve.request("PUT", "/api/v1/sites/near.example", &access.to_string()).0, 200);
    for source in ["closed/", "", "open/../closed/"] {
        let request = of_prefix(&near.url(source), &far.url("in/"), json!({})).to_string();
        let (status, body) = serve.request("POST", "/api/v1/jobs", &request);
        assert!(status == 403 && body.contains("may not read"), "{source}: {status} {body}");
    }
    let id = submit(&serve, &near.url("open/%2e%2e/closed/"), &far.url("in/"), json!({"retries": 0}));
    assert_eq!(failures(&serve, &id, "failed").len(), 1);
    let id = submit(&serve, &near.url("open/"), &far.url("in/"), json!({}));
    assert_eq!(failures(&serve, &id, "finished"), []);
    assert_eq!(tree(&far.path("in")), tree(&near.path("open")));
}

#[test]
fn a_prefix_waits_for_an_agent_and_says_so() {
    let serve = Serve::start();
    let far = Agent::start(&serve, "far.example", &[]);
    let mut near = Agent::new(&serve, "near.example", &[]);
    set_site(&serve, "near.example", &[&near.fingerprint]);
    make(&near.path("d"), &NAMES);
    let id = submit(&serve, &near.url("d/"), &far.url("in/"), json!({}));
    let expected = "waits: no agent of near.example is connected";
    until(|| job(&serve, &id)["listings"][0]["text"].clone(), |text| text == expected);
    let said = serve.sterna(&["explain", &id]).succeed();
    assert!(said.contains(expected), "{said}");
    let said = serve.sterna(&["status", &id]).succeed();
    assert!(said.contains("more are being listed") && said.contains(expected), "{said}");
    near.run();
    assert_eq!(failures(&serve, &id, "finished"), []);
    assert_eq!(tree(&far.path("in")), tree(&near.path("d")));
    assert_eq!(job(&serve, &id)["listings"], json!([]));
}

/// The service is killed while it lists, and the agent too. Every file is added once.
#[test]
fn kills_while_listing_lose_no_file_and_add_none_twice() {
    const COUNT: usize = 30_000;
    let mut serve = Serve::start();
    let far = Agent::start(&serve, "far.example", &[]);
    let mut near = Agent::start(&serve, "near.example", &[]);
    make_many(&near.path("d"), COUNT);
    drain(&serve, true);
    let id = submit(&serve, &near.url("d/"), &far.url("in/"), json!({}));
    for (kill, part) in [5, 20, 40, 60, 80].into_iter().enumerate() {
        let is_far = |job: &Value| job["entries"]["all"].as_u64().unwrap() >= (COUNT * part / 100) as u64;
        until(|| job(&serve, &id), is_far);
        match kill % 2 {
            0 => serve.kill_and_start(),
            _ => {
                near.kill();
                near.run();
            }
        }
    }
    let listed = until(|| job(&serve, &id), |job| job["entries"]["listing"] == 0);
    assert_eq!((&listed["entries"]["all"], &listed["state"]), (&json!(COUNT), &json!("waiting")), "{listed}");
    let files = files(&serve, &id);
    let of = |name: &str| files.iter().map(|file| file[name].to_string()).collect::<BTreeSet<_>>().len();
    assert_eq!((files.len(), of("destination"), of("source"), of("entry")), (COUNT, COUNT, COUNT, COUNT));
    assert_eq!(files[0]["size"], 1);
    assert_eq!(serve.request("POST", &format!("/api/v1/jobs/{id}/cancel"), "").0, 200);
}

/// Files arrive while others are found, and the service is killed meanwhile.
#[test]
fn files_that_were_found_arrive_once_after_a_kill() {
    let mut serve = Serve::start();
    let (near, far) = (Agent::start(&serve, "near.example", &[]), Agent::start(&serve, "far.example", &[]));
    make_many(&near.path("d"), 4500);
    let id = submit(&serve, &near.url("d/"), &far.url("in/"), json!({}));
    until(|| job(&serve, &id), |job| job["entries"]["finished"].as_u64().unwrap() > 0);
    serve.kill_and_start();
    assert_eq!(failures(&serve, &id, "finished"), []);
    assert_eq!(job(&serve, &id)["entries"]["finished"], 4500);
    assert_eq!(tree(&far.path("in")), tree(&near.path("d")));
}

#[test]
fn a_cancelled_job_is_not_listed_any_more() {
    const COUNT: usize = 30_000;
    let serve = Serve::start();
    let (near, far) = (Agent::start(&serve, "near.example", &[]), Agent::start(&serve, "far.example", &[]));
    make_many(&near.path("d"), COUNT);
    drain(&serve, true);
    let id = submit(&serve, &near.url("d/"), &far.url("in/"), json!({}));
    let found = until(|| job(&serve, &id), |job| job["entries"]["all"].as_u64().unwrap() > 0);
    let text = found["listings"][0]["text"].as_str().unwrap_or("has ended");
    assert!(text.contains("being listed, ") && text.contains(" files found"), "{found}");
    let (status, body) = serve.request("POST", &format!("/api/v1/jobs/{id}/cancel"), "");
    let cancelled: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &cancelled["state"]), (200, &json!("cancelled")), "{body}");
    // Another job is listed after it: the agent is free.
    drain(&serve, false);
    make(&near.path("e"), &NAMES);
    let next = submit(&serve, &near.url("e/"), &far.url("next/"), json!({}));
    assert_eq!(failures(&serve, &next, "finished"), []);
    let after = job(&serve, &id);
    let entries = &after["entries"];
    assert_eq!((&entries["all"], &after["listings"]), (&cancelled["entries"]["all"], &json!([])), "{after}");
    assert_eq!(entries["cancelled"], entries["all"], "{after}");
    assert!(!far.path("in").exists());
}

/// Server of a test, which answers `PROPFIND` as a test wants.
struct Liar {
    origin: String,
}

impl Liar {
    /// Starts it. `answer` gets the path of a request, and writes the body of the answer.
    fn start(answer: impl Fn(&str, &mut dyn Write) -> std::io::Result<()> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let origin = format!("http://localhost:{}", listener.local_addr().unwrap().port());
        let answer = Arc::new(answer);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let answer = Arc::clone(&answer);
                thread::spawn(move || serve_liar(client, &*answer));
            }
        });
        Self { origin }
    }

    /// Starts one whose answer is the same for every path.
    fn with(body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        Self::start(move |_, to| to.write_all(&body))
    }

    fn prefix(&self) -> String {
        format!("{}/d/", self.origin)
    }
}

type Answer = dyn Fn(&str, &mut dyn Write) -> std::io::Result<()> + Send + Sync;

fn serve_liar(client: TcpStream, answer: &Answer) {
    let mut lines = BufReader::new(client.try_clone().unwrap()).lines().map_while(Result::ok);
    let first = lines.next().unwrap_or_default();
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    lines.find(String::is_empty);
    let mut client = std::io::BufWriter::new(client);
    // The service may close the connection at any time.
    let head = client.write_all(b"HTTP/1.1 207 Multi-Status\r\nContent-Type: text/xml\r\nConnection: close\r\n\r\n");
    let _ = head.and_then(|()| answer(&path, &mut client)).and_then(|()| client.flush());
}

fn response(href: &str, is_directory: bool) -> String {
    let kind = if is_directory { "<D:collection/>" } else { "" };
    format!(
        "<D:response><D:href>{href}</D:href><D:propstat><D:prop><D:resourcetype>{kind}</D:resourcetype></D:prop>\
         <D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>"
    )
}

fn multistatus(responses: &[String]) -> String {
    format!("<D:multistatus xmlns:D=\"DAV:\">{}</D:multistatus>", responses.concat())
}

#[test]
fn a_server_that_lies_harms_nobody() {
    let serve = Serve::start();
    let far = Agent::start(&serve, "far.example", &["--web", "localhost"]);
    let of = |href: &str, is_directory| Liar::with(multistatus(&[response("/d/", true), response(href, is_directory)]));
    let endless = |begin: &'static str, part: &'static str| {
        Liar::start(move |_, to| {
            to.write_all(begin.as_bytes())?;
            let block = part.repeat((1 << 16) / part.len() + 1);
            loop {
                to.write_all(block.as_bytes())?;
            }
        })
    };
    let deep = Liar::start(|path, to| {
        to.write_all(multistatus(&[response(path, true), response(&format!("{path}e/"), true)]).as_bytes())
    });
    let wide = Liar::start(|path, to| {
        let below = (0..20_000).map(|number| response(&format!("{path}{number}/"), true));
        to.write_all(multistatus(&std::iter::once(response(path, true)).chain(below).collect::<Vec<_>>()).as_bytes())
    });
    let outside = "which is not directly beneath it";
    for (liar, expected) in [
        (of("/etc/passwd", false), outside),
        (of("/d/../../etc/passwd", false), outside),
        (of("/d/%2e%2e/x", false), outside),
        (of("/d/%2e%2e", true), outside),
        (of("/d/a%2fb", false), outside),
        (of("/d/e/f", false), outside),
        (of("/", true), outside),
        (of("http://169.254.169.254/latest", false), outside),
        (of("/d/x%00y", false), "1 name or directory could not be listed"),
        (Liar::with(multistatus(&[response("/d/", false)])), "it is no directory"),
        (Liar::with(multistatus(&[])), "it is no directory"),
        (Liar::with("<html>hello</html>"), "no list of WebDAV"),
        (Liar::with("<D:multistatus xmlns:D=\"DAV:\"><D:response>"), "ends too early"),
        (Liar::with("\u{0}\u{1}\u{2}"), "no list of WebDAV"),
        (endless("<D:multistatus>", "<a>"), "elements in each other"),
        (endless("<D:multistatus>", "<a/>"), "without a resource"),
        (endless("<D:multistatus><D:response><D:href>/d/", "x"), "more than"),
        (endless("<D:multistatus><!--", "x"), "more than"),
        (deep, "1 name or directory could not be listed"),
        (wide, "more than 1000000 directories"),
    ] {
        let id = submit(&serve, &liar.prefix(), &far.url("in/"), json!({"retries": 0}));
        let failed = failures(&serve, &id, "failed");
        let [(source, reason)] = failed.as_slice() else { panic!("{expected}: {failed:?}") };
        assert!(*source == liar.prefix() && reason.contains(expected), "{expected}: {reason}");
    }
    assert!(!far.path("in").exists());
    // The name of another host in a reference is not dialled: only its path counts.
    let other =
        Liar::with(multistatus(&[response("http://other.invalid/d/", true), response("http://x.invalid/d/f", false)]));
    let id = submit(&serve, &other.prefix(), &far.url("in/"), json!({"retries": 0}));
    let ended = end(&serve, &id);
    assert_eq!((&ended["entries"]["all"], &ended["entries"]["listing"]), (&json!(1), &json!(0)), "{ended}");
    assert_eq!(files(&serve, &id)[0]["source"], json!(format!("{}f", other.prefix())));
}
