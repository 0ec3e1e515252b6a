//! Clients against real sockets: servers that hang, flood, lie, or show another key. The program is tested against
//! recorded replies in `crates/sterna/tests/e2e/perfsonar.rs`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use sterna_proto::web::WebLocation;
use sterna_proto::{Error, ErrorKind, Setting};

use super::*;
use crate::engine::Cancel;

const TASK: &str = "/pscheduler/tasks/9c4a0b1e-6a30-4f02-a4ff-52b2ae5b4a21";

/// Stream of a client: a socket, with TLS or without.
trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

/// Serves connections, one request each. `reply` gets the first line of the request and writes what it likes; the
/// connection is closed afterwards. Returns the address and the first lines in order.
fn serve(
    tls: Option<Arc<ServerConfig>>,
    mut reply: impl FnMut(&str, &mut dyn Stream) + Send + 'static,
) -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, requests) = mpsc::channel();
    thread::spawn(move || {
        for socket in listener.incoming() {
            let socket = socket.unwrap();
            let mut stream: Box<dyn Stream> = match &tls {
                Some(config) => Box::new(StreamOwned::new(ServerConnection::new(Arc::clone(config)).unwrap(), socket)),
                None => Box::new(socket),
            };
            // A client that refuses the certificate sends no request.
            if let Some(first) = request(&mut *stream) {
                // The test may have ended.
                let _ = sender.send(first.clone());
                reply(&first, &mut *stream);
            }
        }
    });
    (address, requests)
}

/// Reads a request with its body. Returns its first line.
fn request(stream: &mut dyn Stream) -> Option<String> {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    let mut length = 0;
    let mut line = String::new();
    reader.read_line(&mut first).ok().filter(|count| *count > 0)?;
    while reader.read_line(&mut line).ok()? > 2 {
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        line.clear();
    }
    reader.read_exact(&mut vec![0; length]).ok()?;
    Some(first.trim_end().trim_end_matches(" HTTP/1.1").to_owned())
}

fn answer(stream: &mut dyn Stream, status: &str, body: &str) {
    let length = body.len();
    // The client may have given up.
    let _ = write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
    let _ = stream.flush();
}

/// Answers as a node whose run is in `state`.
fn node(state: &'static str) -> impl FnMut(&str, &mut dyn Stream) + Send + 'static {
    move |first, stream| match first {
        "POST /pscheduler/tasks" => answer(stream, "200 OK", &json!(format!("http://elsewhere{TASK}")).to_string()),
        _ if first.starts_with("DELETE") => answer(stream, "200 OK", "OK\n"),
        _ if first.contains("/runs/first?") => {
            let merged = if state == "finished" { json!({"succeeded": true}) } else { Value::Null };
            answer(stream, "200 OK", &json!({"state": state, "result-merged": merged}).to_string());
        }
        _ => answer(stream, "200 OK", &json!({"tool": "iperf3", "test": {"type": "rtt"}}).to_string()),
    }
}

fn times() -> NodeTimes {
    let short = Duration::from_millis(1);
    NodeTimes { request: Duration::from_secs(30), pause: short, after_cancel: Duration::from_secs(30) }
}

fn client(address: SocketAddr, times: NodeTimes) -> Node {
    let url = WebLocation::parse(&format!("http://{address}")).unwrap();
    Node::new(&url, &NodeTrust::default(), times).unwrap()
}

/// Runs a task with a deadline far away.
fn run(address: SocketAddr) -> Result<RunOutcome, Error> {
    client(address, times()).run(&json!({"schema": 1}), Duration::from_secs(300), &Cancel::default(), |_| {})
}

#[test]
fn a_run_is_followed_until_its_result_at_the_url_that_was_given() {
    let (address, requests) = serve(None, node("finished"));
    let outcome = run(address).unwrap();
    assert_eq!((outcome.tool.as_deref(), outcome.task), (Some("iperf3"), format!("http://{address}{TASK}")));
    assert_eq!(outcome.run["result-merged"]["succeeded"], true);
    let seen: Vec<String> = requests.try_iter().collect();
    let look = format!("GET {TASK}/runs/first?wait=5&wait-merged=true");
    assert_eq!(seen, ["POST /pscheduler/tasks".to_owned(), format!("GET {TASK}?detail=1"), look], "and no removal");
}

#[test]
fn a_run_that_does_not_end_is_removed_at_the_deadline() {
    let (address, requests) = serve(None, node("running"));
    let cancel = Cancel::default();
    let error = client(address, times()).run(&json!({}), Duration::from_millis(300), &cancel, |_| {}).unwrap_err();
    assert!(error.kind == ErrorKind::Limit && error.text().contains("runs after 0 s"), "{error}");
    assert_eq!(requests.try_iter().last(), Some(format!("DELETE {TASK}")));
}

#[test]
fn a_node_that_hangs_is_given_up_at_the_limit_of_a_request() {
    // The sockets stay open without a reply.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, short) = (listener.local_addr().unwrap(), Duration::from_millis(200));
    let client = client(address, NodeTimes { request: short, ..times() });
    let error = client.run(&json!({}), Duration::from_secs(300), &Cancel::default(), |_| {}).unwrap_err();
    assert!(error.kind == ErrorKind::Unreachable && error.text().contains("no reply within 0.2 s"), "{error}");
}

#[test]
fn a_reply_byte_by_byte_ends_at_the_limit_of_a_request() {
    let (address, _requests) = serve(None, |_, stream| {
        let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n");
        while stream.write_all(b" ").is_ok() {}
    });
    let client = client(address, NodeTimes { request: Duration::from_millis(300), ..times() });
    let error = client.run(&json!({}), Duration::from_secs(300), &Cancel::default(), |_| {}).unwrap_err();
    // A fast host reaches the maximum of bytes before.
    assert!(matches!(error.kind, ErrorKind::Unreachable | ErrorKind::Limit), "{error}");
}

#[test]
fn a_reply_without_end_is_cut_at_the_maximum() {
    let (address, _requests) = serve(None, |_, stream| {
        let _ = write!(stream, "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n\"");
        while stream.write_all(&[b'x'; 1 << 16]).is_ok() {}
    });
    let error = run(address).unwrap_err();
    assert!(error.kind == ErrorKind::Limit && error.text().contains("more than 33 MB"), "{error}");
}

#[test]
fn replies_that_are_none_of_pscheduler_are_refused_with_their_begin() {
    for (status, body, expected) in [
        ("200 OK", "<html>login</html>", "not JSON; it begins with \"<html>login</html>\""),
        ("200 OK", "{}", "not the URL of a task"),
        ("200 OK", "\"https://h/pscheduler/tasks/../../admin\"", "not the URL of a task"),
        ("200 OK", "[[[[", "not JSON"),
        ("302 Found", "", "302 Found"),
        ("403 Forbidden", "Task forbidden by limits:\nHints: requester 127.0.0.1", "requester 127.0.0.1"),
        ("404 Not Found", "<html><h1>Not Found</h1></html>", "404 Not Found"),
        ("500 Internal Server Error", "Error getting tools from b: timed out", "timed out"),
    ] {
        let (address, requests) = serve(None, move |_, stream| answer(stream, status, body));
        let error = run(address).unwrap_err();
        assert!(error.text().contains(expected) && !error.text().contains("<h1>"), "{status} {body}: {error}");
        assert_eq!(requests.try_iter().count(), 1, "a task is posted once, and there is none to remove");
    }
}

#[test]
fn a_cancellation_removes_the_task() {
    let (address, requests) = serve(None, node("pending"));
    let cancel = Cancel::default();
    let stop = cancel.clone();
    let outcome = client(address, times()).run(&json!({}), Duration::from_secs(300), &cancel, |progress| {
        if matches!(progress, RunProgress::State { state: RunState::Pending, .. }) {
            stop.cancel();
        }
    });
    let error = outcome.unwrap_err();
    assert!(error.kind == ErrorKind::Cancelled && error.text().contains("was removed from the node"), "{error}");
    assert_eq!(requests.try_iter().last(), Some(format!("DELETE {TASK}")));
}

/// Returns a server configuration with a certificate that it has signed itself, the certificate in PEM, and its key.
fn own_certificate() -> (Arc<ServerConfig>, String, Fingerprint) {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
    let parsed = rustls::server::ParsedCertificate::try_from(certificate.der()).unwrap();
    let fingerprint = Fingerprint::of_key_info(&parsed.subject_public_key_info());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let private = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], private).unwrap();
    (Arc::new(config), certificate.pem(), fingerprint)
}

#[test]
fn a_node_is_trusted_by_its_key_or_by_an_authority_and_never_without() {
    let (config, pem, key) = own_certificate();
    let (address, requests) = serve(Some(config), node("finished"));
    let url = WebLocation::parse(&format!("https://localhost:{}", address.port())).unwrap();
    let run = |trust: &NodeTrust| {
        let node = Node::new(&url, trust, times()).unwrap();
        node.run(&json!({}), Duration::from_secs(300), &Cancel::default(), |_| {})
    };
    let unknown = run(&NodeTrust::default()).unwrap_err();
    assert!(unknown.kind == ErrorKind::Untrusted && unknown.text().contains(&key.to_string()), "{unknown}");
    assert_eq!(unknown.settings(), [Setting::WebAuthority, Setting::Trust]);
    let other = run(&NodeTrust { keys: vec![Fingerprint([7; 32])], ..NodeTrust::default() }).unwrap_err();
    assert!(other.kind == ErrorKind::Untrusted, "{other}");
    for fingerprint in [key, Fingerprint([7; 32])] {
        assert!(other.text().contains(&fingerprint.to_string()), "{other}");
    }
    assert_eq!(requests.try_iter().count(), 0, "nothing was sent");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), pem).unwrap();
    let authority = NodeTrust { authority: Some(file.path().to_owned()), ..NodeTrust::default() };
    run(&authority).unwrap();
    run(&NodeTrust { keys: vec![Fingerprint([7; 32]), key], ..NodeTrust::default() }).unwrap();
    assert!(requests.try_iter().count() >= 6);
}

fn query<'a>() -> ArchiveQuery<'a> {
    let (events, fields) = (&["throughput", "packet-retransmits"][..], &["result.throughput"][..]);
    ArchiveQuery { test: "throughput", events, fields, source: "192.0.2.1", dest: "b.example", since_s: 3600 }
}

fn read(address: SocketAddr, path: &str) -> Result<ArchiveReply, Error> {
    let url = WebLocation::parse(&format!("http://{address}{path}")).unwrap();
    read_archive(&url, &query(), &NodeTrust::default(), times(), &Cancel::default())
}

#[test]
fn an_archive_that_never_ends_is_read_to_the_maximum() {
    // Each page is full, and the total is a lie.
    let page: Vec<Value> = (0..500).map(|n| json!({"_source": {"n": n}})).collect();
    let body = json!({"hits": {"total": {"value": u64::MAX, "relation": "gte"}, "hits": page}}).to_string();
    let (address, requests) = serve(None, move |_, stream| answer(stream, "200 OK", &body));
    let ArchiveReply::OpenSearch { documents, total } = read(address, "").unwrap() else { panic!("no OpenSearch") };
    assert_eq!((documents.len(), total, requests.try_iter().count()), (10_000, u64::MAX, 20));
}

#[test]
fn an_archive_of_esmond_names_no_other_server() {
    for base in ["http://192.0.2.9/esmond/x/base", "//192.0.2.9/x", "", "/x/base?format=xml"] {
        let types = json!([{"event-types": [{"event-type": "throughput", "base-uri": base}]}]).to_string();
        let (address, requests) = serve(None, move |_, stream| answer(stream, "200 OK", &types));
        let error = read(address, "/esmond/perfsonar/archive/").unwrap_err();
        assert!(error.kind == ErrorKind::Protocol && error.text().contains("another server"), "{base}: {error}");
        assert_eq!(requests.try_iter().count(), 1);
    }
}

#[test]
fn an_archive_without_the_index_is_refused_with_its_reason() {
    let (address, _requests) = serve(None, |_, stream| answer(stream, "200 OK", "{\"hits\": {\"total\": 3}}"));
    assert!(read(address, "/opensearch").unwrap_err().text().contains("the hits are no list"));
    let (address, _requests) = serve(None, |_, stream| answer(stream, "401 Unauthorized", "Unauthorized"));
    assert_eq!(read(address, "/opensearch").unwrap_err().kind, ErrorKind::Denied);
}
