//! `sterna doctor perfsonar` against servers that replay recorded exchanges, strictly: another request, in another
//! order or with another body, fails the test. The recordings are in `perfsonar/`, each with its source.
//!
//! Servers that hang, flood or lie: `crates/net/src/perfsonar/tests.rs`.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;

use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::site::BINARY;

/// Ends of the recorded tests.
const BETWEEN: [&str; 4] = ["--source", "ps1.example.org", "--dest", "ps2.example.org"];

/// Connection of a client, with TLS or without.
trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

/// Server that replays a recording.
struct Recorded {
    scheme: &'static str,
    port: u16,
    count: usize,
    state: Arc<Mutex<State>>,
    /// A reply is held.
    held: Receiver<()>,
}

#[derive(Default)]
struct State {
    done: usize,
    faults: Vec<String>,
}

impl Recorded {
    fn new(name: &str) -> Self {
        Self::serve(name, None)
    }

    fn serve(name: &str, tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/e2e/perfsonar/{name}.json"));
        let text = fs::read_to_string(path).unwrap().replace("{port}", &port.to_string());
        let text = text.replace("{base}", &format!("{scheme}://localhost:{port}/pscheduler"));
        let recording: Value = serde_json::from_str(&text).unwrap();
        let exchanges = recording["exchanges"].as_array().unwrap().clone();
        let (count, state) = (exchanges.len(), Arc::new(Mutex::new(State::default())));
        let (holds, held) = mpsc::channel();
        let replay = Replay { exchanges, state: state.clone() };
        thread::spawn(move || {
            // Connections without a reply stay open.
            let mut open: Vec<Box<dyn Stream>> = Vec::new();
            for socket in listener.incoming() {
                let socket = socket.unwrap();
                let mut stream: Box<dyn Stream> = match &tls {
                    Some(config) => Box::new(StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), socket)),
                    None => Box::new(socket),
                };
                if replay.answer(&mut *stream, &holds) {
                    open.push(stream);
                }
            }
        });
        Self { scheme, port, count, state, held }
    }

    fn url(&self) -> String {
        format!("{}://localhost:{}", self.scheme, self.port)
    }

    /// Fails if a request was not the recorded one, or if one is missing.
    fn check(&self) {
        let state = self.state.lock().unwrap();
        assert!(state.faults.is_empty(), "{}", state.faults.join("\n"));
        assert_eq!(state.done, self.count, "exchanges of the recording");
    }
}

struct Replay {
    exchanges: Vec<Value>,
    state: Arc<Mutex<State>>,
}

impl Replay {
    /// Answers one request. Returns true if the reply is held.
    fn answer(&self, stream: &mut dyn Stream, holds: &Sender<()>) -> bool {
        // A client that does not trust the certificate sends no request.
        let Some(request) = read(stream) else { return false };
        let mut state = self.state.lock().unwrap();
        let exchange = self.exchanges.get(state.done).cloned().unwrap_or_default();
        state.done += 1;
        if exchange["request"] != request {
            state.faults.push(format!("expected {}, and got {request}", exchange["request"]));
            let _ = stream.write_all(b"HTTP/1.1 500 Unexpected\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            return false;
        }
        drop(state);
        if exchange["hold"] == true {
            holds.send(()).unwrap();
            return true;
        }
        let reply = &exchange["reply"];
        let (media, text) = match reply["text"].as_str() {
            Some(text) => ("text/plain; charset=utf-8", text.to_owned()),
            None => ("application/json", reply["json"].to_string()),
        };
        let text = format!("{text}\n");
        let (status, length) = (&reply["status"], text.len());
        let head = format!("HTTP/1.1 {status} Recorded\r\ncontent-type: {media}\r\ncontent-length: {length}\r\n");
        // The client may be gone.
        let _ = write!(stream, "{head}connection: close\r\n\r\n{text}").and_then(|()| stream.flush());
        false
    }
}

/// Reads a request: method, path and body, as recordings have them.
fn read(stream: &mut dyn Stream) -> Option<Value> {
    let mut reader = BufReader::new(stream);
    let (mut first, mut line, mut length) = (String::new(), String::new(), 0);
    reader.read_line(&mut first).ok().filter(|count| *count > 0)?;
    while reader.read_line(&mut line).ok()? > 2 {
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let mut words = first.split_whitespace();
    let mut request = json!({"method": words.next()?, "path": words.next()?});
    if length > 0 {
        request["body"] = serde_json::from_slice(&body).unwrap();
    }
    Some(request)
}

fn command(state: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.args(["doctor", "perfsonar"]).args(arguments).env("STERNA_STATE", state.path());
    command
}

/// Runs a test on a recorded node, at which the source is another host.
fn run(server: &Recorded, test: &str, more: &[&str]) -> Output {
    let state = tempfile::tempdir().unwrap();
    let url = server.url();
    let node = ["--node", &url];
    command(&state, &[&["run", test][..], &BETWEEN, &node, more].concat()).output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn the_four_tests_run_on_a_node_and_are_judged() {
    for (test, more, expected) in [
        (
            "throughput",
            &["--time", "10s"][..],
            &[
                "ps1.example.org to ps2.example.org: throughput for 10 s by iperf3 (http://localhost:",
                "\n  rate         2.74 Gbit/s, one stream\n",
                "\n  sent again   0 segments\n",
                "\n  window       4.96 MB (congestion window of cubic, second half of the test)\n",
                "\n  window or buffer of a host: 3.1",
                "that is the default receive buffer before Linux 6.6 (6 MiB)",
            ][..],
        ),
        (
            "rtt",
            &[],
            &[
                "by ping",
                "\n  replies      9 of 10: 10 % lost\n",
                "  loss: 10 % of 10 packets: with such a loss one CUBIC",
            ],
        ),
        (
            "latency",
            &["--time", "10s"],
            &[
                "by owping",
                "99 of 100: 1.0 % lost",
                "4.01 ms at least, 4.02 ms median",
                "(clocks: ±0.31 ms)",
                "58 (99)",
            ],
        ),
        (
            "trace",
            &[],
            &[
                "by traceroute",
                "\n     1  0.20 ms    192.0.2.254 gw.example.org AS64496\n",
                "198.51.100.9 (communication-administratively-prohibited)\n     3  no reply\n",
                "203.0.113.14 AS64511 MTU 1500\n",
            ],
        ),
    ] {
        let server = Recorded::new(test);
        let output = run(&server, test, more);
        let said = out(&output);
        assert!(output.status.success(), "{test}: {}", err(&output));
        server.check();
        for text in expected {
            assert!(said.contains(text), "{test}: {text:?} is missing:\n{said}");
        }
    }
}

#[test]
fn a_result_for_programs_has_its_intervals_and_its_judgement() {
    let server = Recorded::new("throughput");
    let output = run(&server, "throughput", &["--time", "10s", "--json"]);
    server.check();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", err(&output)));
    assert_eq!((&report["tool"], &report["test"]["spec"]["duration"]), (&json!("iperf3"), &json!("PT10S")));
    assert_eq!((&report["result"]["test"], &report["result"]["streams"]), (&json!("throughput"), &json!(1)));
    assert_eq!(report["result"]["intervals"].as_array().unwrap().len(), 10);
    assert_eq!(report["judgements"][0]["limit"], "window");
    assert!(report["judgements"][0]["allows_bps"].as_u64().unwrap() > 3_000_000_000, "{report}");
}

#[test]
fn a_node_that_refuses_or_fails_tells_why() {
    for (name, code, expected) in [
        ("denied", 5, &["403 Forbidden: Task forbidden by limits", "duration PT10S is longer than PT5S"][..]),
        ("no_tool", 5, &["422", "None of the participants could run this test", "Offered nothing"]),
        ("failed", 5, &["failed: iperf3 returned an error: unable to connect to server: Connection refused"]),
        ("nonstart", 5, &["could not be scheduled: Unable to find a time slot", "a longer --wait"]),
    ] {
        let server = Recorded::new(name);
        let output = run(&server, "throughput", &["--time", "10s"]);
        let said = err(&output);
        assert_eq!(output.status.code(), Some(code), "{name}: {said}");
        server.check();
        assert!(expected.iter().all(|text| said.contains(text)) && out(&output).is_empty(), "{name}: {said}");
    }
}

#[test]
fn an_interrupt_removes_the_task_from_the_node() {
    let (server, state) = (Recorded::new("stopped"), tempfile::tempdir().unwrap());
    let (url, flags) = (server.url(), ["run", "throughput", "--time", "10s"]);
    let node = ["--node", &url];
    let child = command(&state, &[&flags[..], &BETWEEN, &node].concat()).stderr(Stdio::piped()).spawn().unwrap();
    server.held.recv().unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = err(&output);
    assert!(output.status.code() == Some(130) && said.contains("the task was removed from the node"), "{said}");
    server.check();
}

#[test]
fn a_node_with_its_own_certificate_is_trusted_once_and_remembered() {
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![certified.cert.der().clone()], key).unwrap();
    let (config, state) = (Arc::new(config), tempfile::tempdir().unwrap());
    let server = Recorded::serve("archive_empty", Some(config));
    let url = server.url();
    let read = |more: &[&str]| {
        let flags = ["read", &url, "--test", "rtt"];
        command(&state, &[&flags[..], &BETWEEN, more].concat()).output().unwrap()
    };
    let refused = read(&[]);
    let said = err(&refused);
    assert!(refused.status.code() == Some(6) && said.contains("(--http-ca, --trust)"), "{said}");
    let fingerprint = said.split_whitespace().find(|word| word.starts_with("SHA256:")).unwrap();
    let trusted = read(&["--trust", fingerprint]);
    assert!(trusted.status.success(), "{}", err(&trusted));
    server.check();
    let known = fs::read_to_string(state.path().join("known_hosts")).unwrap();
    assert_eq!(known, format!("{url} {fingerprint}\n"));
    // The next request is one too many for the recording, and it is sent: the key is remembered.
    assert!(err(&read(&[])).contains("500"), "the recorded key is trusted");
    let other = format!("SHA256:{}", "A".repeat(43));
    let changed = read(&["--trust", &other]);
    assert!(changed.status.code() == Some(6) && err(&changed).contains(fingerprint), "{}", err(&changed));
}

#[test]
fn archives_of_both_kinds_are_read_and_changes_are_found() {
    let read = |name: &str, path: &str, more: &[&str]| {
        let (server, state) = (Recorded::new(name), tempfile::tempdir().unwrap());
        let url = format!("{}{path}", server.url());
        let output = command(&state, &[&["read", &url][..], &BETWEEN, more].concat()).output().unwrap();
        assert!(output.status.success(), "{name}: {}", err(&output));
        server.check();
        out(&output)
    };
    let said = read("archive", "", &["--test", "throughput"]);
    for text in [
        "ps1.example.org to ps2.example.org: 28 throughput results, 2026-11-19T00:03:11Z to 2026-11-25T18:03:11Z\n",
        "\n  failed       1 of 28, the last one: iperf3 returned an error: the server is busy",
        "\n  sent again   3 segments median, 6 at most\n",
        "\n  change       the median fell from 9.3",
        " at 2026-11-23T06:03:11Z\n",
    ] {
        assert!(said.contains(text), "{text:?} is missing:\n{said}");
    }
    let json: Value =
        serde_json::from_str(&read("archive", "/opensearch/", &["--test", "throughput", "--json"])).unwrap();
    assert_eq!((&json["total"], json["points"].as_array().unwrap().len()), (&json!(28), 28));
    assert!(json["change"]["after"].as_f64().unwrap() < 3.2e9, "{json}");
    assert!(read("archive_empty", "", &["--test", "rtt"]).contains("the archive has no rtt results of that time"));
    let old = read("esmond", "/esmond/perfsonar/archive/", &["--test", "throughput", "--since", "24h"]);
    assert!(old.contains("3 throughput results, 2025-11-24T16:00:00Z") && old.contains("9.30 Gbit/s median"), "{old}");
}

#[test]
fn flags_of_another_test_are_wrong_usage() {
    let state = tempfile::tempdir().unwrap();
    for (arguments, expected) in [
        (&["run", "rtt", "--streams", "4"][..], "are for throughput tests, and not for rtt"),
        (&["run", "trace", "--time", "10s"], "--time is not for a trace"),
        (&["run", "rtt", "--time", "1500ms"], "in whole seconds"),
        (&["run", "speed"], "throughput"),
        (&["run", "rtt", "--node", "ftp://ps1"], "neither http nor https"),
        (&["read", "https://h/?a=b", "--test", "rtt"], "a URL with a query"),
        (&["run", "rtt", "--http-ca", "/nowhere", "--node", "https://127.0.0.1:1"], "/nowhere"),
    ] {
        let output = command(&state, &[arguments, &BETWEEN].concat()).output().unwrap();
        let said = err(&output);
        assert!(output.status.code() == Some(2) && said.contains(expected), "{arguments:?}: {said}");
    }
}
