//! Measurements with an agent: what both ends of a flow observe, and who may measure.

use std::net::TcpStream;
use std::path::Path;
use std::thread;

use sterna_net::disk::{Access, Root};
use sterna_net::engine::{Cancel, Engine};
use sterna_net::identity::Identity;
use sterna_net::measure::{EchoSpec, FlowSpec, Measurement, SocketSettings};
use sterna_proto::location::RemoteLocation;
use sterna_proto::path_cache::DataDirection;
use sterna_proto::{Error, ErrorKind, Location};

use crate::served::Served;

fn location(served: &Served) -> RemoteLocation {
    match served.at("") {
        Location::Remote(remote) => remote,
        other => panic!("{other:?}"),
    }
}

fn bench(served: &Served, identity: Identity) -> Result<Measurement, Error> {
    Engine::new(identity, served.trust()).measure(&location(served), None, &Cancel::default())
}

fn spec(direction: DataDirection) -> FlowSpec {
    FlowSpec {
        direction,
        streams: 2,
        time_ms: 400,
        bytes_max: 1 << 30,
        sender: SocketSettings::default(),
        receiver: SocketSettings::default(),
    }
}

fn serve(directory: &Path) -> Served {
    Served::start(directory)
}

#[test]
fn both_ends_of_a_flow_observe_it() {
    let directory = tempfile::tempdir().unwrap();
    let served = serve(directory.path());
    let mut bench = bench(&served, Identity::ephemeral().unwrap()).unwrap();
    assert!(!bench.far_host().kernel.is_empty() && bench.far_host().settings.contains_key("ipv4.tcp_rmem"));
    for direction in [DataDirection::Out, DataDirection::In] {
        // Several flows over one connection, with limits at both ends. Loopback has segments of 64 KiB.
        let receiver = SocketSettings { receive_buffer: Some(256 << 10), ..SocketSettings::default() };
        let sender = SocketSettings { congestion: Some("cubic".to_owned()), ..SocketSettings::default() };
        let pair = bench.flow(&FlowSpec { sender, receiver, ..spec(direction) }).unwrap();
        assert_eq!((pair.sender.streams.len(), pair.receiver.streams.len()), (2, 2));
        for (sent, received) in pair.sender.streams.iter().zip(&pair.receiver.streams) {
            let (last, first) = (sent.samples.last().unwrap(), sent.samples.first().unwrap());
            let there = received.samples.last().unwrap();
            assert!(last.acked > first.acked && there.received >= last.acked - 1, "{last:?} {there:?}");
            assert!(last.peer_window > 0 && last.peer_window <= 256 << 10, "{last:?}");
            assert_eq!((sent.congestion.as_str(), sent.sack, sent.window_scaling), ("cubic", true, true));
            assert_eq!((&sent.error, &received.error), (&None, &None));
        }
        let sent: u64 = pair.sender.streams.iter().map(|stream| stream.samples.last().unwrap().acked).sum();
        assert!(pair.sender.time_us >= 400_000 || sent >= 1 << 30, "it ends with its time or its bytes: {sent}");
    }
}

#[test]
fn a_flow_ends_with_its_bytes_and_keeps_its_rate() {
    let directory = tempfile::tempdir().unwrap();
    let served = serve(directory.path());
    let mut bench = bench(&served, Identity::ephemeral().unwrap()).unwrap();
    let pair = bench.flow(&FlowSpec { time_ms: 30_000, bytes_max: 1 << 20, ..spec(DataDirection::Out) }).unwrap();
    let sum: u64 = pair.receiver.streams.iter().map(|stream| stream.samples.last().unwrap().received).sum();
    // TLS records of the greeting come on top.
    assert!((1 << 20..(1 << 20) + 20_000).contains(&sum), "{sum}");
    for wrong in [
        FlowSpec { streams: 0, ..spec(DataDirection::In) },
        FlowSpec { streams: 65, ..spec(DataDirection::In) },
        FlowSpec { time_ms: 61_000, ..spec(DataDirection::In) },
    ] {
        assert_eq!(bench.flow(&wrong).unwrap_err().kind, ErrorKind::Usage);
    }
    let unknown = SocketSettings { congestion: Some("none".to_owned()), ..SocketSettings::default() };
    let error = bench.flow(&FlowSpec { sender: unknown, ..spec(DataDirection::In) }).unwrap_err();
    assert!(error.kind == ErrorKind::Denied && error.text().contains("congestion control none"), "{error}");
    bench.flow(&spec(DataDirection::In)).unwrap();
}

#[test]
fn an_agent_takes_part_in_one_measurement_at_a_time_with_peers_that_may_read() {
    let directory = tempfile::tempdir().unwrap();
    let served = serve(directory.path());
    let first = bench(&served, Identity::ephemeral().unwrap()).unwrap();
    let Err(error) = bench(&served, Identity::ephemeral().unwrap()) else { panic!("two at a time") };
    assert!(error.kind == ErrorKind::Busy && error.text().contains("127.0.0.1"), "{error}");
    drop(first);
    // The agent sees the end of the first one soon.
    let ended = (0..10_000).any(|_| bench(&served, Identity::ephemeral().unwrap()).is_ok());
    assert!(ended, "the first one holds its place");
    let (friend, stranger) = (Identity::ephemeral().unwrap(), Identity::ephemeral().unwrap());
    let root = || Root::open(directory.path(), Access::ReadWrite).unwrap();
    let listed = Served::with_rights(vec![("r", root())], &friend, "r=ro");
    bench(&listed, friend).unwrap();
    let Err(error) = bench(&listed, stranger) else { panic!("a stranger") };
    assert!(error.kind == ErrorKind::Untrusted && error.text().contains("not authorized"), "{error}");
    // Something else than TLS leaves the agent in order.
    std::io::Write::write_all(&mut TcpStream::connect(listed.addr()).unwrap(), b"GET / HTTP/1.1\r\n\r\n").unwrap();
}

/// A user waits for an examination, and nobody for a monitor.
#[test]
fn monitors_yield_to_an_examination_and_never_to_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let served = serve(directory.path());
    let monitor = || {
        let engine = Engine::new(Identity::ephemeral().unwrap(), served.trust());
        engine.monitor(&location(&served), &Cancel::default())
    };
    let examine = || bench(&served, Identity::ephemeral().unwrap());
    let own = served.agent().take_place().unwrap();
    assert!(served.agent().take_place().is_err() && !own.is_wanted());
    let Err(error) = monitor() else { panic!("two monitors at a time") };
    assert!(error.kind == ErrorKind::Busy && error.text().contains("--monitor"), "{error}");
    thread::scope(|scope| {
        let waiting = scope.spawn(examine);
        while !own.is_wanted() {
            thread::yield_now();
        }
        // Whoever waits comes first.
        assert_eq!(monitor().err().map(|error| error.kind), Some(ErrorKind::Busy));
        drop(own);
        assert!(served.agent().take_place().is_err());
        drop(waiting.join().unwrap().unwrap());
    });
    // The place is free soon after the end of the examination.
    let mut visit = std::iter::repeat_with(monitor).find_map(Result::ok).unwrap();
    let echoes = EchoSpec { ports: 1, per_port: 3, interval_us: 1000, packet_bytes: 128 };
    visit.echo(&echoes).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(examine);
        let refused = std::iter::repeat_with(|| visit.echo(&echoes)).find_map(Result::err).unwrap();
        assert_eq!(refused.kind, ErrorKind::Busy, "{refused}");
        waiting.join().unwrap().unwrap();
    });
}

#[test]
fn a_cancellation_ends_a_question_that_waits() {
    let directory = tempfile::tempdir().unwrap();
    let served = serve(directory.path());
    let cancel = Cancel::default();
    let engine = Engine::new(Identity::ephemeral().unwrap(), served.trust());
    let mut visit = engine.monitor(&location(&served), &cancel).unwrap();
    let _end = visit.end_at(&cancel);
    cancel.cancel();
    assert!(visit.flow(&spec(DataDirection::In)).is_err());
}

/// An agent of an earlier release knows the protocol of lanes only.
#[test]
fn an_agent_without_measurements_is_named() {
    let (old, listener) = (Identity::ephemeral().unwrap(), std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let at = listener.local_addr().unwrap();
    let config = old.server_config();
    let agent = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let connection = rustls::ServerConnection::new(config).unwrap();
        let mut tls = rustls::StreamOwned::new(connection, stream);
        std::io::Read::read(&mut tls, &mut [0; 1]).is_err()
    });
    let Ok(Location::Remote(remote)) = Location::parse(format!("sterna://{at}/").as_ref()) else { panic!("{at}") };
    let engine = Engine::new(Identity::ephemeral().unwrap(), std::sync::Arc::new(crate::served::Keys(vec![])));
    let Err(error) = engine.measure(&remote, None, &Cancel::default()) else { panic!("it measures") };
    assert!(error.kind == ErrorKind::Protocol && error.text().contains("earlier release"), "{error}");
    assert!(agent.join().unwrap(), "no message of a lane is read");
}
