//! Hostile names, bodies and sizes at every route: a clear refusal, no failure of the service.

use serde_json::{Value, json};

use crate::client::Serve;
use crate::http::{Http, Reply, operations};

/// Values of path parameters, percent-encoded.
fn names() -> Vec<String> {
    let long = |bytes: usize| "a".repeat(bytes);
    let mut names: Vec<String> = [
        "%00",
        "a%00b",
        "%0A",
        "a%0D%0Ab",
        "%FF%FE",
        "%C3",
        "..",
        "..%2F..%2Fetc%2Fpasswd",
        "%2F",
        "%25",
        "%2A",
        "%20",
        "'%20OR%201=1--",
        "%22",
        "%7B%22%7D",
        "%E2%80%AE",
        "%F0%9F%92%A5",
        "%1B%5B2J",
        "-1",
        "0",
        "1e309",
        "18446744073709551615",
        "18446744073709551616",
        "99999999999999999999999999",
        "NaN",
        ",",
        ",,,",
        "null",
    ]
    .map(str::to_owned)
    .to_vec();
    names.extend([long(255), long(8192), "%00".repeat(2000), "%F0%9F%92%A5".repeat(500)]);
    names.push(vec!["6f2c1c9e-0f5b-4f6a-9d0a-3a4a5d3c8a11"; 1500].join(","));
    names
}

/// Bodies in JSON, and others.
fn bodies() -> Vec<Vec<u8>> {
    let deep = |open: &str, count: usize| open.repeat(count).into_bytes();
    let mut bodies: Vec<Vec<u8>> = [
        "",
        " ",
        "\0",
        "null",
        "true",
        "7",
        "-1e999",
        "1e400",
        "\"text\"",
        "[]",
        "{}",
        "[[]]",
        "{",
        "{\"a\":",
        "\u{feff}{}",
        "{\"files\": null}",
        "{\"files\": {}}",
        "{\"files\": [7]}",
        "{\"files\": [{}]}",
        "{\"files\": [{\"sources\": 7}]}",
        "{\"params\": [], \"files\": []}",
        "{\"priority\": 1e30}",
        "{\"priority\": -1}",
        "{\"priority\": \"5\"}",
        "{\"weight\": 1e309}",
        "{\"weight\": -1}",
        "{\"weights\": {\"\\u0000\": 1}}",
        "{\"weights\": {}}",
        "{\"max\": -1}",
        "{\"max\": 1e99}",
        "{\"max\": 4294967296}",
        "{\"max\": \"x\"}",
        "{\"retries\": 99999999999}",
        "{\"kind\": 7}",
        "{\"kind\": \"\\u0000\"}",
        "{\"storage\": \"\\n\"}",
        "{\"vo\": \"v\", \"share\": {\"a\": 1e300}}",
        "{\"vo\": \"v\", \"share\": [7, null, {\"a\": {}}]}",
        "{\"hostname\": 1}",
        "{\"retry\": 1e99}",
        "{\"retry\": {}}",
        "{\"is_drained\": 7}",
        "{\"max_active\": -5, \"source\": \"a://b\", \"destination\": \"*\", \"symbolicname\": \"n\"}",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec();
    bodies.extend([deep("[", 100_000), deep("{\"a\":", 100_000), vec![0xff; 1000], vec![b' '; 100_000]]);
    let long = "x".repeat(200_000);
    bodies
        .push(json!({"storage": format!("mock://{long}"), "message": long, "dn": long, "vo": long}).to_string().into());
    bodies
}

/// Checks that a reply is an answer: no failure of the service, and a refusal has its reason in JSON.
fn check(reply: &Reply, request: &str) {
    assert!((200..500).contains(&reply.status), "{request}: {reply:?}");
    if reply.status >= 400 && !reply.media.starts_with("text/html") {
        let problem = reply.json();
        // A list has one problem for each job.
        let one = problem.get(0).unwrap_or(&problem);
        let text = ["message", "text", "http_message", "state"].iter().find_map(|key| one[key].as_str());
        assert!(text.is_some_and(|text| !text.is_empty()), "{request}: {reply:?}");
    }
}

/// Returns the path with every parameter replaced.
fn filled(template: &str, value: &str) -> String {
    let mut path = String::new();
    for (index, part) in template.split(['{', '}']).enumerate() {
        path.push_str(if index % 2 == 0 { part } else { value });
    }
    path
}

fn shown(text: &str) -> &str {
    text.get(..80).unwrap_or(text)
}

#[test]
fn hostile_names_are_refused_at_every_route() {
    let serve = Serve::start();
    let http = serve.http();
    let names = names();
    for (method, template, _) in operations(&http).iter().filter(|(_, path, _)| path.contains('{')) {
        for name in &names {
            let path = filled(template, name);
            // The library that sends takes no longer ones.
            if path.len() < 1 << 16 {
                let reply = http.send(method, &path, None, b"{}");
                check(&reply, &format!("{method} {}", shown(&path)));
            }
        }
    }
    assert_eq!(http.send("GET", "/api/v1/jobs", None, b"").status, 200, "it goes on");
}

#[test]
fn hostile_queries_are_refused_at_every_route() {
    let serve = Serve::start();
    let http = serve.http();
    let long = "a".repeat(8192);
    for (method, template, operation) in operations(&http) {
        let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
        for parameter in parameters.iter().filter(|parameter| parameter["in"] == "query") {
            let name = parameter["name"].as_str().unwrap();
            for value in
                ["", "%00", "%0A", "%FF", "-1", "1e309", "18446744073709551616", "a,b,,c", "99999999:99999999", &long]
            {
                let path = format!("{}?{name}={value}", filled(&template, "x"));
                let reply = http.send(&method, &path, None, b"{}");
                check(&reply, &format!("{method} {}", shown(&path)));
            }
        }
    }
}

#[test]
fn hostile_bodies_are_refused_at_every_route() {
    let serve = Serve::start();
    let http = serve.http();
    let bodies = bodies();
    for (method, template, _) in operations(&http).iter().filter(|(method, ..)| method != "GET" && method != "DELETE") {
        let path = filled(template, "mock%3A%2F%2Fx.example");
        for (index, body) in bodies.iter().enumerate() {
            let reply = http.send(method, &path, None, body);
            check(&reply, &format!("{method} {path}, body {index}"));
        }
    }
    for body in &bodies {
        let reply = http.send_as("POST", "/api/v1/jobs", None, "application/x-ndjson", body);
        check(&reply, "a manifest");
    }
    check(&http.send_as("POST", "/api/v1/jobs", None, "text/plain", b"x"), "another media type");
    assert_eq!(http.send_as("POST", "/api/v1/jobs", None, "text/plain", b"x").status, 415);
}

/// Returns a job of one file with this location as its source.
fn job_of(source: &str) -> Value {
    // Nobody listens at this port.
    let destination = if source.starts_with("sterna") { "sterna://127.0.0.1:1/f" } else { "mock://b.example/f?time=0" };
    json!({"files": [{"sources": [source], "destinations": [destination]}], "params": {"retry": -1}})
}

#[test]
fn hostile_locations_are_refused_or_fail_as_files() {
    let serve = Serve::start();
    let http = serve.http();
    for (source, is_taken) in [
        ("mock://a.example/\0x", true),
        ("mock://a.example/\n\rlog: forged", true),
        ("sterna://127.0.0.1:1/\0x", false),
        ("sterna://127.0.0.1:1/a\nb", false),
        ("sterna://127.0.0.1:1/../../etc/passwd", false),
        ("mock://a.example/\u{202e}\u{1f4a5}", true),
        ("mock://a.example/f?size=99999999999999999999&errno=x&time=-1", true),
        ("mock://a.example/f?wait=1e999", true),
        ("mock://a.example/f?errno=99999999999", true),
        ("mock:///f", false),
        ("https://[::1/f", false),
        ("https://a.example:99999/f", false),
        ("javascript:alert(1)", false),
        ("", false),
        ("\u{feff}mock://a/f", false),
        (&format!("mock://a.example/{}", "a".repeat(9000)), false),
    ] {
        let reply = http.send("POST", "/jobs", None, job_of(source).to_string().as_bytes());
        check(&reply, source);
        assert_eq!(reply.status == 200, is_taken, "{source:?}: {reply:?}");
        if is_taken {
            let id = reply.json()["job_id"].as_str().unwrap().to_owned();
            serve.wait_for_end(&id);
        }
    }
    assert!(!serve.log().contains("\nlog: forged"), "a name has made a line of the log");
}

#[test]
fn sizes_at_the_maximum_are_added_up_everywhere() {
    let serve = Serve::start();
    let http = serve.http();
    let file = |number: u64| {
        let (size, place) = (i64::MAX, number % 2);
        json!({
            "sources": [format!("mock://a{place}.example/{number}?size={size}"), "mock://c.example/x?size=1"],
            "destination": format!("mock://b.example/{number}"), "size": size, "strategy": "pending-data",
        })
    };
    let job = json!({"files": (0..20).map(file).collect::<Vec<_>>()}).to_string();
    let reply = http.send("POST", "/api/v1/jobs", None, job.as_bytes());
    assert_eq!(reply.status, 201, "{reply:?}");
    assert_eq!(serve.wait_for_end(reply.json()["id"].as_str().unwrap())["job_state"], "FINISHED");
    assert_eq!(http.send("GET", "/ui/", None, b"").status, 200);
    // A second one is chosen by the statistics of the first.
    assert_eq!(http.send("POST", "/api/v1/jobs", None, job.as_bytes()).status, 201);
    let larger = json!({"files": [{"sources": ["mock://a/f"], "destination": "mock://b/f", "size": u64::MAX}]});
    let reply = http.send("POST", "/api/v1/jobs", None, larger.to_string().as_bytes());
    assert!(reply.status == 400 && reply.body.contains("the maximum is"), "{reply:?}");
}

#[test]
fn a_small_request_does_not_become_entries_without_end() {
    let serve = Serve::start();
    let http = serve.http();
    let many = |host: &str| (0..3000).map(|number| format!("mock://{host}.example/{number}")).collect::<Vec<_>>();
    let job = json!({"files": [{"sources": many("a"), "destinations": many("b")}]});
    let reply = http.send("POST", "/jobs", None, job.to_string().as_bytes());
    assert!(reply.status == 400 && reply.body.contains("more than 1000000 pairs"), "{reply:?}");
    let replicas = |count: usize| {
        let sources: Vec<String> = many("a").into_iter().take(count).collect();
        let job = json!({"files": [{"sources": sources, "destination": "mock://b.example/f"}]});
        http.send("POST", "/api/v1/jobs", None, job.to_string().as_bytes())
    };
    assert_eq!(replicas(100).status, 201);
    let reply = replicas(101);
    assert!(reply.status == 400 && reply.body.contains("101 sources: the maximum is 100"), "{reply:?}");
    let hops = |count: usize| {
        let at = many("a");
        let hop = |number: usize| json!({"sources": [at[number]], "destination": at[number + 1]});
        let job = json!({"hops": true, "files": (0..count).map(hop).collect::<Vec<_>>()});
        http.send("POST", "/api/v1/jobs", None, job.to_string().as_bytes())
    };
    assert_eq!(hops(100).status, 201);
    let reply = hops(101);
    assert!(reply.status == 400 && reply.body.contains("more than 100 hops"), "{reply:?}");
}

/// Runs curl with a body of a size. Returns the status, also if the service does not take the body.
fn status_of(serve: &Serve, method: &str, path: &str, arguments: &[&str]) -> u16 {
    let (cert, key) = serve.pair();
    let mut command = std::process::Command::new("curl");
    command.args(["-sS", "-X", method, "-o", "/dev/null", "-w", "%{http_code}", "--capath", serve.capath(), "--cert"]);
    command.arg(cert).arg("--key").arg(key).args(arguments).arg(format!("{}{path}", serve.url()));
    let output = command.stdin(std::process::Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    said.parse().unwrap_or_else(|e| panic!("{e}: {said} {}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn bodies_that_are_too_large_are_refused_early() {
    let serve = Serve::start();
    let large = serve.state_dir().join("large");
    // A file of 300 MB without blocks on disk.
    std::fs::File::create(&large).unwrap().set_len(300 << 20).unwrap();
    let large = large.to_str().unwrap();
    for (method, path) in [
        ("POST", "/jobs"),
        ("PUT", "/jobs"),
        ("POST", "/jobs/x"),
        ("POST", "/config/se"),
        ("PUT", "/api/v1/config/drain"),
        ("PATCH", "/api/v1/jobs/6f2c1c9e-0f5b-4f6a-9d0a-3a4a5d3c8a11"),
        ("PUT", "/api/v1/bans/mock%3A%2F%2Fx"),
    ] {
        // curl asks first (Expect: 100-continue), and sends no byte of the body to who refuses.
        let json = ["-T", large, "-H", "Content-Type: application/json"];
        assert_eq!(status_of(&serve, method, path, &json), 413, "{method} {path}");
    }
    let json = ["-T", large, "-H", "Content-Type: application/json"];
    assert_eq!(status_of(&serve, "POST", "/api/v1/jobs", &json), 413);
    // Without a length, and without an end.
    let endless = ["-T", "/dev/zero", "-H", "Content-Type: application/x-ndjson"];
    assert_eq!(status_of(&serve, "POST", "/api/v1/jobs", &endless), 400, "a line has an end");
    assert_eq!(status_of(&serve, "PUT", "/api/v1/config/drain", &["-T", "/dev/zero"]), 413);
    let nobody = Http::new(serve.url(), std::path::Path::new(serve.capath()), None);
    assert_eq!(nobody.send("GET", "/", None, b"").status, 200, "it goes on");
}
