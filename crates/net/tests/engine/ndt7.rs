//! NDT7: our client with the agent, over TLS and without, and hostile peers of both.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use sterna_net::engine::{Cancel, Engine};
use sterna_net::identity::Identity;
use sterna_net::measure::ndt7::{Ndt7Outcome, Ndt7Security, Ndt7Test, run};
use sterna_proto::location::HostPort;
use sterna_proto::path_cache::DataDirection;
use sterna_proto::{Error, ErrorKind, Location};
use sterna_seeded::{Seeded, for_seeds};
use tungstenite::Message;
use tungstenite::handshake::server::{Request, Response};

use crate::served::Served;

/// An agent that answers NDT7, and that address.
struct Host {
    served: Served,
    at: SocketAddr,
    _directory: tempfile::TempDir,
}

impl Host {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let served = Served::start(directory.path());
        let at = served.agent().answer_ndt7("127.0.0.1:0".parse().unwrap()).unwrap();
        Self { served, at, _directory: directory }
    }
}

fn measured(at: SocketAddr, security: Ndt7Security, direction: DataDirection) -> Result<Ndt7Outcome, Error> {
    let server = HostPort { host: at.ip().to_string(), port: at.port() };
    let test = Ndt7Test { direction, time: Duration::from_secs(1), rate_max_bps: None };
    run(&server, None, security, &Identity::ephemeral().unwrap(), &test)
}

#[test]
fn both_of_our_ends_agree_with_and_without_tls() {
    let host = Host::start();
    for security in [Ndt7Security::Clear, Ndt7Security::Key(host.served.key())] {
        for direction in [DataDirection::Out, DataDirection::In] {
            let outcome = measured(host.at, security, direction).unwrap();
            assert!(outcome.bytes > 1_000_000 && outcome.time > Duration::ZERO, "{security:?} {direction:?}");
            assert_eq!((outcome.server, outcome.near.streams.len()), (Some(host.at), 1));
            let last = *outcome.near.streams[0].samples.last().unwrap();
            let kernel = outcome.kernel.unwrap();
            // Counters of both kernels, taken a moment apart. TLS and headers come on top of the messages.
            match direction {
                DataDirection::Out => {
                    assert!(
                        last.acked > 1_000_000 && kernel.bytes_received.unwrap() > 1_000_000,
                        "{kernel:?} {last:?}"
                    );
                }
                DataDirection::In => {
                    assert!(last.received >= outcome.bytes && kernel.bytes_acked.unwrap() > 1_000_000, "{kernel:?}");
                    assert!(kernel.busy_time.unwrap() <= kernel.elapsed_time.unwrap() * 2, "{kernel:?}");
                }
            }
        }
    }
}

#[test]
fn a_server_without_a_known_key_is_not_trusted() {
    let host = Host::start();
    let other = Identity::ephemeral().unwrap().fingerprint();
    for (security, expected) in [(Ndt7Security::Key(other), "not connected"), (Ndt7Security::Authorities, "--trust")] {
        let error = measured(host.at, security, DataDirection::In).unwrap_err();
        assert!(error.kind == ErrorKind::Untrusted && error.text().contains(expected), "{error}");
    }
}

#[test]
fn a_test_never_runs_beside_another_measurement() {
    let host = Host::start();
    let Location::Remote(agent) = host.served.at("") else { panic!("no location") };
    let engine = Engine::new(Identity::ephemeral().unwrap(), host.served.trust());
    let first = engine.measure(&agent, None, &Cancel::default()).unwrap();
    let error = measured(host.at, Ndt7Security::Clear, DataDirection::In).unwrap_err();
    assert!(error.kind == ErrorKind::Busy && error.text().contains("another test"), "{error}");
    drop(first);
    assert!((0..100).any(|_| measured(host.at, Ndt7Security::Clear, DataDirection::In).is_ok()));
}

/// Sends `bytes` and returns the answer.
fn knock(at: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    // The agent may close before it has read all.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn request(path: &str, protocol: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: DOdm+5/Cm3WwvhfcAlhJoQ==\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n"
    )
}

#[test]
fn hostile_clients_leave_the_agent_in_order() {
    const NDT7: &str = "net.measurementlab.ndt.v7";
    let host = Host::start();
    for (path, protocol, expected) in [
        ("/ndt/v7/other", NDT7, "404 Not Found"),
        ("/ndt/v7/download", "other", "400 Bad Request"),
        (&format!("/ndt/v7/upload?a={}", "x".repeat(5000)), NDT7, "400 Bad Request"),
    ] {
        let answer = knock(host.at, request(path, protocol).as_bytes());
        assert!(answer.contains(expected), "{path}: {answer}");
    }
    let answer = knock(host.at, request("/ndt/v7/upload", &format!("x, {NDT7}")).as_bytes());
    assert!(answer.starts_with("HTTP/1.1 101") && answer.contains("net.measurementlab.ndt.v7\r\n"), "{answer}");
    for_seeds("hostile_clients_leave_the_agent_in_order", 100, |seed| {
        let mut random = Seeded::new(seed);
        let count = random.index(300);
        let bytes = random.bytes(count);
        knock(host.at, &bytes);
        knock(host.at, &[&[22, 3, 1], &bytes[..]].concat());
        knock(host.at, &[request("/ndt/v7/upload", NDT7).as_bytes(), &bytes].concat());
        knock(host.at, &[request("/ndt/v7/download", NDT7).as_bytes(), &bytes].concat());
    });
    let outcome = (0..100).find_map(|_| measured(host.at, Ndt7Security::Clear, DataDirection::Out).ok()).unwrap();
    assert!(outcome.bytes > 0);
}

#[test]
fn hostile_servers_end_in_errors() {
    for_seeds("hostile_servers_end_in_errors", 20, |seed| {
        let mut random = Seeded::new(seed);
        let count = random.index(200);
        let bytes = match seed {
            0 => b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n".to_vec(),
            1 => b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n".to_vec(),
            _ => random.bytes(count),
        };
        let (listener, is_over) = (TcpListener::bind("127.0.0.1:0").unwrap(), AtomicBool::new(false));
        let at = listener.local_addr().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                while let Ok((mut stream, _)) = listener.accept()
                    && !is_over.load(Ordering::Relaxed)
                {
                    // The client may close before it has read all.
                    let _ = stream.write_all(&bytes);
                    let _ = stream.shutdown(Shutdown::Write);
                    scope.spawn(move || stream.read_to_end(&mut Vec::new()));
                }
            });
            let security = if seed % 2 == 0 { Ndt7Security::Clear } else { Ndt7Security::Authorities };
            let outcome = measured(at, security, DataDirection::In);
            is_over.store(true, Ordering::Relaxed);
            let _ = TcpStream::connect(at);
            assert!(outcome.is_err(), "{outcome:?}");
        });
    });
}

/// A server that sends more measurements than a test has: a client that takes all of them reads on without an end.
#[test]
fn a_flood_of_measurements_ends_the_test() {
    const FLOOD: usize = 1000;
    for (direction, text, expected) in [
        (DataDirection::Out, "{}".to_owned(), "more than 130 measurements"),
        (DataDirection::In, "{}".to_owned(), "more than 130 measurements"),
        (DataDirection::Out, format!("{{\"Origin\":\"{}\"}}", "x".repeat(100_000)), "100013 bytes"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let (stream, _) = listener.accept().unwrap();
                #[allow(clippy::result_large_err, reason = "the type is that of the library")]
                let accept = |_: &Request, mut response: Response| {
                    let protocol = "net.measurementlab.ndt.v7".parse().unwrap();
                    response.headers_mut().insert("Sec-WebSocket-Protocol", protocol);
                    Ok(response)
                };
                let mut websocket = tungstenite::accept_hdr(stream, accept).unwrap();
                // The client leaves before it has read all.
                (0..FLOOD).take_while(|_| websocket.send(Message::text(text.clone())).is_ok()).count()
            });
            let error = measured(at, Ndt7Security::Clear, direction).unwrap_err();
            assert!(error.kind == ErrorKind::Protocol && error.text().contains(expected), "{error}");
        });
    }
}
