//! iperf3: the agent answers the real client, our client runs tests with the real server, and hostile peers of both.
//!
//! Tests with the real iperf3 print a note and pass where it is not installed.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use sterna_net::engine::{Cancel, Engine};
use sterna_net::identity::Identity;
use sterna_net::measure::SocketSettings;
use sterna_net::measure::iperf3::{Iperf3Outcome, Iperf3Test, Iperf3Transport, run};
use sterna_proto::location::{HostPort, RemoteLocation};
use sterna_proto::path_cache::DataDirection;
use sterna_proto::{Error, ErrorKind, Location};
use sterna_seeded::{Seeded, for_seeds};

use crate::served::{Served, own_address};

/// Cookie of a hand-made client.
const COOKIE: &[u8; 37] = b"abcdefghijklmnopqrstuvwxyz234567abcd\0";

/// An agent that answers iperf3, and that address.
struct Host {
    served: Served,
    at: SocketAddr,
    _directory: tempfile::TempDir,
}

impl Host {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let served = Served::start(directory.path());
        let at = served.agent().answer_iperf3("127.0.0.1:0".parse().unwrap()).unwrap();
        Self { served, at, _directory: directory }
    }

    /// Runs the real client. Returns its report.
    fn iperf3(&self, flags: &[&str]) -> Value {
        let port = self.at.port().to_string();
        let command = ["-c", "127.0.0.1", "-p", &port, "-J"];
        let output = Command::new("iperf3").args(command).args(flags).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{flags:?}: {e}: {output:?}"))
    }
}

/// Returns true if the real iperf3 is there.
fn has_iperf3() -> bool {
    let found = Command::new("iperf3").arg("--version").output().is_ok();
    if !found {
        let _ = writeln!(std::io::stderr(), "skipped: iperf3 is not installed");
    }
    found
}

#[test]
fn the_real_client_measures_with_an_agent() {
    if !has_iperf3() {
        return;
    }
    let host = Host::start();
    for flags in [
        &["-t", "1"][..],
        &["-t", "1", "-R"],
        &["-t", "1", "-P", "4"],
        &["-t", "1", "-O", "1", "-R", "-P", "2"],
        &["-n", "5M"],
        &["-k", "10", "-R"],
        &["-t", "1", "-b", "80M", "-R", "-w", "64K", "-C", "reno"],
        &["-t", "1", "-Z", "-N", "-M", "1400", "-S", "8", "--extra-data", "x", "--get-server-output"],
    ] {
        let report = host.iperf3(flags);
        assert_eq!(report["error"], Value::Null, "{flags:?}: {report}");
        let sum = |end: &str| report["end"][end]["bytes"].as_u64().unwrap();
        assert!(sum("sum_received") > 1_000_000, "{flags:?}: {}", report["end"]);
        // The server stops with the blocks that the client asks for. The kernel counts the SYN as a byte.
        assert!(!flags.contains(&"-k") || sum("sum_sent") <= 10 * 131_072 + 1, "{flags:?}: {}", report["end"]);
        // Both ends count the same data, but for what moves between the moments at which they begin and end to count.
        let most = sum("sum_sent") + sum("sum_sent") / 10 + (16 << 20);
        assert!(sum("sum_received") <= most, "{flags:?}: {}", report["end"]);
        if flags.contains(&"80M") {
            assert!(sum("sum_received") < 30_000_000, "the rate of the client: {}", report["end"]);
            assert_eq!(report["end"]["sender_tcp_congestion"], "reno");
        }
        if flags.contains(&"--get-server-output") {
            let text = report["server_output_text"].as_str().unwrap();
            assert!(text.starts_with("sterna ") && text.contains("this end receives 1 stream over TCP"), "{text}");
        }
    }
}

#[test]
fn the_real_client_measures_over_udp() {
    if !has_iperf3() {
        return;
    }
    let host = Host::start();
    for flags in [
        &["-u", "-b", "20M", "-t", "1", "-l", "1460"][..],
        &["-u", "-b", "20M", "-t", "1", "-l", "1460", "-R"],
        &["-u", "-b", "10M", "-t", "1", "-P", "3", "-l", "500", "--udp-counters-64bit"],
        &["-u", "-b", "10M", "-t", "1", "-l", "1200", "-P", "2", "-R", "-O", "1"],
    ] {
        let report = host.iperf3(flags);
        assert_eq!(report["error"], Value::Null, "{flags:?}: {report}");
        let sum = &report["end"]["sum"];
        let (packets, lost) = (sum["packets"].as_u64().unwrap(), sum["lost_packets"].as_i64().unwrap());
        // 1 s at 20 Mbit/s are 1,700 packets of 1,460 bytes. A busy host sends and receives less: our end sends one
        // packet each time that it runs, and no bursts to catch up.
        assert!((10..20_000).contains(&packets), "{flags:?}: {sum}");
        assert!((0..=packets.cast_signed()).contains(&lost), "{flags:?}: {sum}");
    }
}

#[test]
fn tests_that_an_agent_does_not_run_are_refused_in_words() {
    if !has_iperf3() {
        return;
    }
    let host = Host::start();
    for (flags, expected) in [
        (&["-t", "1", "--bidir"][..], "not implemented"),
        (&["-t", "61"], "duration"),
        (&["-t", "1", "-P", "65"], "streams"),
        (&["-t", "1", "-R", "-C", "none"], "congestion"),
    ] {
        let report = host.iperf3(flags);
        let error = report["error"].as_str().unwrap_or_default();
        assert!(error.contains(expected), "{flags:?}: {report}");
    }
    assert_eq!(host.iperf3(&["-n", "1M"])["error"], Value::Null, "the place is free again");
}

fn of(served: &Served) -> RemoteLocation {
    match served.at("") {
        Location::Remote(remote) => remote,
        other => panic!("{other:?}"),
    }
}

fn test(direction: DataDirection, streams: u32, transport: Iperf3Transport) -> Iperf3Test {
    Iperf3Test { direction, streams, time: Duration::from_secs(1), transport }
}

fn tcp() -> Iperf3Transport {
    Iperf3Transport::Tcp { sockets: SocketSettings::default() }
}

fn measured(at: SocketAddr, test: &Iperf3Test) -> Result<Iperf3Outcome, Error> {
    run(&HostPort { host: at.ip().to_string(), port: at.port() }, None, test)
}

#[test]
fn a_test_never_runs_beside_another_measurement() {
    let host = Host::start();
    let engine = Engine::new(Identity::ephemeral().unwrap(), host.served.trust());
    let first = engine.measure(&of(&host.served), None, &Cancel::default()).unwrap();
    let error = measured(host.at, &test(DataDirection::Out, 1, tcp())).unwrap_err();
    assert!(error.kind == ErrorKind::Busy && error.text().contains("another test"), "{error}");
    drop(first);
    // A client of iperf3 that holds the place.
    let mut control = loop {
        let mut control = TcpStream::connect(host.at).unwrap();
        control.write_all(COOKIE).unwrap();
        let mut state = [0];
        control.read_exact(&mut state).unwrap();
        if state == [9] {
            break control;
        }
        assert_eq!(state, [0xff], "busy until the agent sees the end of the first one");
    };
    let Err(error) = engine.measure(&of(&host.served), None, &Cancel::default()) else { panic!("two at a time") };
    assert!(error.kind == ErrorKind::Busy && error.text().contains("127.0.0.1"), "{error}");
    // A stream with another cookie does not join, and neither does one before the streams are due.
    control.write_all(&message(&json!({"tcp": true, "time": 1}))).unwrap();
    let mut state = [0];
    control.read_exact(&mut state).unwrap();
    assert_eq!(state, [10]);
    let mut stranger = TcpStream::connect(host.at).unwrap();
    stranger.write_all(&[b'x'; 37]).unwrap();
    stranger.read_exact(&mut state).unwrap();
    assert_eq!(state, [0xff]);
}

/// JSON behind its length.
fn message(json: &Value) -> Vec<u8> {
    let text = json.to_string();
    [&u32::try_from(text.len()).unwrap().to_be_bytes()[..], text.as_bytes()].concat()
}

#[test]
fn both_of_our_ends_agree() {
    let host = Host::start();
    for direction in [DataDirection::Out, DataDirection::In] {
        let outcome = measured(host.at, &test(direction, 2, tcp())).unwrap();
        assert_eq!((outcome.near.streams.len(), outcome.server), (2, Some(host.at)));
        assert!(outcome.received_bytes > 1_000_000 && outcome.resent.is_some(), "{outcome:?}");
        assert!(outcome.near.streams.iter().all(|stream| stream.samples.len() > 5), "{outcome:?}");
        let udp = Iperf3Transport::Udp { rate_bps: 8_000_000, datagram_bytes: 1000 };
        let outcome = measured(host.at, &test(direction, 2, udp)).unwrap();
        let datagrams = outcome.datagrams.unwrap();
        assert!(datagrams.packets > 10 && datagrams.lost <= datagrams.packets, "{datagrams:?}");
    }
    for (streams, seconds) in [(0, 1), (65, 1), (1, 0), (1, 61)] {
        let wrong = Iperf3Test { time: Duration::from_secs(seconds), ..test(DataDirection::In, streams, tcp()) };
        assert_eq!(measured(host.at, &wrong).unwrap_err().kind, ErrorKind::Usage);
    }
    let unknown = SocketSettings { congestion: Some("none".to_owned()), ..SocketSettings::default() };
    let wrong = test(DataDirection::In, 1, Iperf3Transport::Tcp { sockets: unknown });
    assert!(measured(host.at, &wrong).is_err());
}

/// The real server, until it is dropped.
struct RealServer {
    process: Child,
    at: SocketAddr,
}

impl RealServer {
    fn start() -> Self {
        let at = own_address();
        let (ip, port) = (at.ip().to_string(), at.port().to_string());
        let command = ["-s", "-p", &port, "-B", &ip, "--forceflush"];
        let mut process =
            Command::new("iperf3").args(command).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.is_ok_and(|line| line.contains("listening"))), "iperf3 does not listen at {at}");
        // Reads on, so that the server can print.
        thread::spawn(move || lines.for_each(drop));
        Self { process, at: at.into() }
    }
}

impl Drop for RealServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn our_client_measures_with_the_real_server() {
    if !has_iperf3() {
        return;
    }
    let server = RealServer::start();
    for (direction, streams) in
        [(DataDirection::Out, 1), (DataDirection::In, 1), (DataDirection::Out, 3), (DataDirection::In, 3)]
    {
        let outcome = measured(server.at, &test(direction, streams, tcp())).unwrap();
        assert_eq!(outcome.near.streams.len(), streams as usize);
        assert!(outcome.received_bytes > 1_000_000, "{direction:?}: {}", outcome.received_bytes);
        assert!(outcome.resent.is_some() && outcome.time > Duration::ZERO, "{direction:?}");
        assert!(outcome.server_congestion.is_some(), "{direction:?}");
    }
    for direction in [DataDirection::Out, DataDirection::In] {
        let udp = Iperf3Transport::Udp { rate_bps: 10_000_000, datagram_bytes: 1200 };
        let outcome = measured(server.at, &test(direction, 2, udp)).unwrap();
        let datagrams = outcome.datagrams.unwrap();
        assert!(datagrams.packets > 10 && datagrams.lost <= datagrams.packets, "{direction:?}: {datagrams:?}");
        assert!(outcome.received_bytes > 10_000, "{direction:?}: {}", outcome.received_bytes);
    }
    let refused = SocketSettings { congestion: Some("none".to_owned()), ..SocketSettings::default() };
    let wrong = Iperf3Test { streams: 1, ..test(DataDirection::Out, 1, Iperf3Transport::Tcp { sockets: refused }) };
    assert!(measured(server.at, &wrong).unwrap_err().text().contains("congestion"));
}

#[test]
fn hostile_clients_leave_the_agent_in_order() {
    let host = Host::start();
    let knock = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(host.at).unwrap();
        // The agent may close before it has read all.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    };
    let after_cookie = |bytes: &[u8]| knock(&[COOKIE, bytes].concat());
    let error = [9, 0xfe, 0, 0, 0, 114, 0, 0, 0, 0];
    // The place may still be held by the client before. The answer to that is lost if the agent closes before it has
    // read all: the kernel then resets the connection.
    let answers = |bytes: &[u8], expected: &[u8]| {
        let is_busy = |answer: &Vec<u8>| answer.is_empty() || answer == &[0xff];
        let found = (0..10_000).map(|_| after_cookie(bytes)).find(|answer| !is_busy(answer)).unwrap();
        assert_eq!(found, expected, "{bytes:?}");
    };
    answers(&u32::MAX.to_be_bytes(), &error);
    answers(&[0, 0, 32, 1], &error);
    answers(&[0, 0, 0, 9, b'{'], &error);
    answers(&message(&json!({"time": -1})), &error);
    answers(&message(&json!([])), &[9, 10]);
    answers(&message(&json!({"tcp": true, "time": 1, "parallel": 1e300})), &[9, 0xfe, 0, 0, 0, 6, 0, 0, 0, 0]);
    // Before the streams are asked for: a privileged agent would load the kernel module of that name.
    let of_root = json!({"tcp": true, "time": 1, "congestion": "none"});
    answers(&message(&of_root), &[9, 0xfe, 0, 0, 0, 134, 0, 0, 0, 0]);
    let deep = vec![b'['; 8000];
    answers(&[&8000_u32.to_be_bytes()[..], &deep].concat(), &error);
    assert_eq!(knock(b"GET / HTTP/1.1\r\n\r\n"), b"");
    for_seeds("hostile_clients_leave_the_agent_in_order", 200, |seed| {
        let mut random = Seeded::new(seed);
        let count = random.index(300);
        knock(&random.bytes(count));
        after_cookie(&random.bytes(count));
    });
    let outcome = (0..10_000).find_map(|_| measured(host.at, &test(DataDirection::Out, 1, tcp())).ok()).unwrap();
    assert!(outcome.received_bytes > 0);
}

/// Runs our client with a server that sends `bytes`, whatever the client does.
fn with_server(bytes: Vec<u8>, transport: Iperf3Transport) -> Result<Iperf3Outcome, Error> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while let Ok((mut control, _)) = listener.accept()
                && !is_over.load(Ordering::Relaxed)
            {
                // The client may close before it has read all.
                let _ = control.write_all(&bytes);
                let _ = control.shutdown(Shutdown::Write);
                scope.spawn(move || control.read_to_end(&mut Vec::new()));
            }
        });
        let outcome = measured(at, &test(DataDirection::In, 1, transport));
        is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(at);
        outcome
    })
}

#[test]
fn hostile_servers_end_in_errors() {
    let results = |json: &Value| [&[9, 10, 1, 2][..], &message(json)].concat();
    for (bytes, expected) in [
        (vec![], "wait for the peer"),
        (vec![0xff], "another test"),
        (vec![77], "unknown"),
        (vec![9, 9], "ParamExchange"),
        (vec![9, 1], "TestStart"),
        (vec![9, 0xfe, 0, 0, 0, 142, 0, 0, 0, 0], "a user and a password"),
        (vec![9, 0xfe, 0, 0, 1, 0, 0, 0, 0, 13], "error 256 of iperf3 (Permission denied"),
        (vec![9, 0xfe, 0], "receive the error"),
        (vec![9, 11], "stopped the test"),
        (vec![9, 10, 1, 2, 13], "ExchangeResults"),
        (results(&json!({"streams": []})), "unknown"),
    ] {
        let error = with_server(bytes.clone(), tcp()).unwrap_err();
        assert!(error.chain().contains(expected), "{bytes:?}: {}", error.chain());
    }
    for_seeds("hostile_servers_end_in_errors", 30, |seed| {
        let mut random = Seeded::new(seed);
        let count = random.index(200);
        let start = [&[9, 10, 1, 2][..random.index(5)], &random.bytes(count)].concat();
        assert!(with_server(start, tcp()).is_err());
    });
}
