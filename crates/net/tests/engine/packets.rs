//! Packet trains and echoes with an agent, over loopback.

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::sync::Arc;

use sterna_net::engine::Cancel;
use sterna_net::identity::Identity;
use sterna_net::measure::message::{Answer, Ask, Occasion};
use sterna_net::measure::{EchoReport, EchoSpec, Measurement, StampReflector, TrainReport, TrainSpec, stamp_echoes};
use sterna_proto::location::HostPort;
use sterna_proto::path_cache::DataDirection;
use sterna_proto::{ErrorKind, Location};

use crate::served::{Served, own_address};

const DIRECTIONS: [DataDirection; 2] = [DataDirection::Out, DataDirection::In];

fn measure(served: &Served) -> Measurement {
    let Location::Remote(remote) = served.at("") else { panic!("an agent is remote") };
    served.engine().measure(&remote, None, &Cancel::default()).unwrap()
}

fn spec(direction: DataDirection) -> TrainSpec {
    TrainSpec { direction, rate_bps: 50_000_000, time_ms: 300, packet_bytes: vec![1500], ports: 1 }
}

/// Checks that counts agree with each other.
fn check(report: &TrainReport) {
    let sum = |count: fn(&sterna_net::measure::TrainBin) -> u64| report.bins.iter().map(count).sum::<u64>();
    assert_eq!(sum(|bin| bin.sent.into()), report.sent);
    assert_eq!(sum(|bin| bin.received.into()), report.received);
    assert_eq!(sum(|bin| bin.sent_bytes), report.sent_bytes);
    assert_eq!(sum(|bin| bin.received_bytes), report.received_bytes);
    assert_eq!(report.sizes.iter().map(|size| size.sent).sum::<u64>(), report.sent);
    assert_eq!(report.ports.iter().map(|port| port.received).sum::<u64>(), report.received);
    assert_eq!(report.lost.len() as u64, report.sent - report.received);
    assert_eq!((report.duplicates, report.sender_drops), (0, 0));
    assert!(report.bins.iter().any(|bin| bin.received > 0 && bin.delay_min_us == 0), "the smallest delay");
}

#[test]
fn a_train_is_counted_in_both_directions() {
    let directory = tempfile::tempdir().unwrap();
    let served = Served::start(directory.path());
    let mut bench = measure(&served);
    for direction in DIRECTIONS {
        let report = bench.train(&spec(direction)).unwrap();
        check(&report);
        // 50 Mbit/s for 300 ms are 1250 packets, unless the host is busy: then the train ends early.
        assert!(report.sent == 1250 || report.behind, "{} sent", report.sent);
        assert!(report.received + report.receiver_drops >= report.sent, "{report:?}");
        assert_eq!((report.ports.len(), report.too_big_mtu), (1, None));
        assert!(report.ports[0].port > 0);
    }
}

#[test]
fn a_train_over_many_ports_uses_them_in_turn() {
    let directory = tempfile::tempdir().unwrap();
    let served = Served::start(directory.path());
    let mut bench = measure(&served);
    for direction in DIRECTIONS {
        let report = bench.train(&TrainSpec { ports: 32, ..spec(direction) }).unwrap();
        check(&report);
        let ports: std::collections::BTreeSet<u16> = report.ports.iter().map(|port| port.port).collect();
        assert_eq!(ports.len(), 32);
        let sent = report.ports.iter().map(|port| port.sent);
        assert!(sent.clone().max().unwrap() - sent.min().unwrap() <= 1, "{:?}", report.ports);
    }
}

#[test]
fn a_size_sweep_passes_over_loopback() {
    let directory = tempfile::tempdir().unwrap();
    let served = Served::start(directory.path());
    let mut bench = measure(&served);
    let packet_bytes = vec![72, 576, 1280, 1500, 9000, 65_535];
    for direction in DIRECTIONS {
        let report = bench.train(&TrainSpec { packet_bytes: packet_bytes.clone(), ..spec(direction) }).unwrap();
        check(&report);
        assert_eq!(report.sizes.iter().map(|size| size.bytes).collect::<Vec<_>>(), packet_bytes);
        assert!(report.sizes.iter().all(|size| size.received > 0 && size.refused == 0), "{:?}", report.sizes);
    }
}

#[test]
fn echoes_return_over_each_port() {
    let directory = tempfile::tempdir().unwrap();
    let served = Served::start(directory.path());
    let mut bench = measure(&served);
    let report = bench.echo(&EchoSpec { ports: 16, per_port: 10, interval_us: 500, packet_bytes: 200 }).unwrap();
    assert_eq!(report.echoes.len(), 16);
    for port in &report.echoes {
        assert_eq!((port.sent, port.reflected, port.returned, port.rtt_us.len()), (10, 10, 10, 10), "{port:?}");
        assert_eq!((port.forward_ttl, port.reverse_ttl), (Some(255), Some(255)));
    }
    // Given ports are the same each time, and one that is in use is replaced.
    let used = UdpSocket::bind("127.0.0.1:0").unwrap();
    let first = used.local_addr().unwrap().port().clamp(1, u16::MAX - 3);
    let few = EchoSpec { ports: 2, per_port: 3, interval_us: 500, packet_bytes: 100 };
    let of = |report: EchoReport| report.echoes.iter().map(|port| (port.port, port.returned)).collect::<Vec<_>>();
    let ports = of(bench.echo_from(&few, first).unwrap());
    assert!(ports[0].0 != first && ports.iter().all(|(_, returned)| *returned == 3), "{ports:?} {first}");
    drop(used);
    assert_eq!(of(bench.echo_from(&few, first).unwrap())[0], (first, 3));
    let wrong = EchoSpec { ports: 0, per_port: 1, interval_us: 1000, packet_bytes: 100 };
    assert_eq!(bench.echo(&wrong).unwrap_err().kind, ErrorKind::Usage);
    let wrong = TrainSpec { rate_bps: 20_000_000_000, ..spec(DataDirection::In) };
    assert_eq!(bench.train(&wrong).unwrap_err().kind, ErrorKind::Usage);
}

/// A sender of STAMP that is no sterna gets replies while a measurement with its host runs; a stranger gets none.
#[test]
fn plain_stamp_gets_replies_from_the_measure_port() {
    let directory = tempfile::tempdir().unwrap();
    let at = own_address();
    let served = Served::with_measure_port(directory.path(), at);
    let mut bench = measure(&served);
    bench.echo(&EchoSpec { ports: 1, per_port: 1, interval_us: 1000, packet_bytes: 100 }).unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.connect(at).unwrap();
    sender.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    // Number 258, time, error estimate, then zeros.
    let mut packet = [0; 44];
    packet[..14].copy_from_slice(&[0, 0, 1, 2, 0xe9, 1, 2, 3, 0x80, 0, 0, 0, 0x8f, 7]);
    let mut wrong = packet;
    wrong[14..16].copy_from_slice(&[0xde, 0xad]);
    let stranger = UdpSocket::bind("127.0.0.2:0").unwrap();
    stranger.send_to(&packet, at).unwrap();
    stranger.set_nonblocking(true).unwrap();
    sender.send(&wrong).unwrap();
    sender.send(&packet[..40]).unwrap();
    sender.send(&packet).unwrap();
    let mut reply = [0; 100];
    assert_eq!(sender.recv(&mut reply).unwrap(), 44, "the first reply is to the third packet");
    assert_eq!((&reply[..4], &reply[24..38], reply[40]), (&packet[..4], &packet[..14], 64));
    assert_eq!((reply[14], reply[15]), (0, 0));
    assert!(reply[4..12] >= reply[16..24], "sent after it was received");
    assert!(stranger.recv(&mut reply).is_err(), "a stranger gets no reply");
}

/// Each measurement opens the port anew, at once after the one before.
#[test]
fn the_measure_port_is_free_when_the_place_is() {
    let directory = tempfile::tempdir().unwrap();
    let served = Served::with_measure_port(directory.path(), own_address());
    let Location::Remote(remote) = served.at("") else { panic!("an agent is remote") };
    let engine = served.engine();
    for _ in 0..3 {
        // Busy until the agent sees the end of the one before.
        let mut bench = loop {
            match engine.measure(&remote, None, &Cancel::default()) {
                Ok(bench) => break bench,
                Err(error) => assert_eq!(error.kind, ErrorKind::Busy, "{error}"),
            }
        };
        bench.echo(&EchoSpec { ports: 1, per_port: 1, interval_us: 1000, packet_bytes: 100 }).unwrap();
    }
}

#[test]
fn a_reflector_that_stands_alone_answers_our_own_sender() {
    for local in ["127.0.0.1:0", "[::1]:0"] {
        let Ok(reflector) = StampReflector::start(local.parse().unwrap()) else { continue };
        let at = reflector.local_addr();
        let host = HostPort { host: at.ip().to_string(), port: at.port() };
        let spec = EchoSpec { ports: 4, per_port: 5, interval_us: 1000, packet_bytes: 1000 };
        let (to, report) = stamp_echoes(&host, None, &spec).unwrap();
        assert_eq!(to, at);
        for port in &report.echoes {
            assert_eq!((port.sent, port.returned, port.reflected, port.forward_ttl), (5, 5, 5, Some(255)), "{port:?}");
        }
        let error = StampReflector::start(at).err().unwrap();
        assert!(error.text().contains(&format!("UDP port {at} for STAMP")), "{error}");
        drop(reflector);
        let error = stamp_echoes(&host, None, &spec).unwrap_err();
        assert!(error.kind == ErrorKind::Unreachable && error.text().contains("no reply"), "{error}");
    }
}

/// Client that asks by hand, so that it can leave out its packets.
struct ByHand(rustls::StreamOwned<rustls::ClientConnection, TcpStream>);

impl ByHand {
    fn connect(served: &Served) -> Self {
        let mut config = (*Identity::ephemeral().unwrap().client_config()).clone();
        config.alpn_protocols = vec![b"sterna-measure/1".to_vec()];
        let name = rustls::pki_types::ServerName::try_from("sterna").unwrap();
        let connection = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        Self(rustls::StreamOwned::new(connection, TcpStream::connect(served.addr()).unwrap()))
    }

    fn ask(&mut self, ask: &Ask) -> Answer {
        let json = serde_json::to_vec(ask).unwrap();
        self.0.write_all(&u32::try_from(json.len()).unwrap().to_be_bytes()).unwrap();
        self.0.write_all(&json).unwrap();
        let mut length = [0; 4];
        self.0.read_exact(&mut length).unwrap();
        let mut json = vec![0; u32::from_be_bytes(length) as usize];
        self.0.read_exact(&mut json).unwrap();
        serde_json::from_slice(&json).unwrap()
    }
}

#[test]
fn a_closed_udp_port_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let served = Served::start(directory.path());
    let mut client = ByHand::connect(&served);
    client.ask(&Ask::Hello { version: 1, occasion: Occasion::Examination });
    for direction in DIRECTIONS {
        assert!(matches!(client.ask(&Ask::Train(spec(direction))), Answer::Packets { .. }));
        let Answer::Refused { code, reason } = client.ask(&Ask::StartTrain) else { panic!("it starts") };
        assert_eq!(ErrorKind::of_peer(code), ErrorKind::Unreachable);
        assert!(reason.contains("no UDP packet of 127.0.0.1 arrived at 127.0.0.1:"), "{reason}");
        assert!(reason.contains("--measure-port"), "{reason}");
    }
    // Questions out of their turn are refused, and harm nothing.
    for ask in [Ask::StartTrain, Ask::FinishTrain, Ask::FinishEcho, Ask::TrainSent(Box::default())] {
        assert!(matches!(client.ask(&ask), Answer::Refused { .. }), "{ask:?}");
    }
    let beyond = TrainSpec { rate_bps: 11_000_000_000, ..spec(DataDirection::In) };
    let Answer::Refused { reason, .. } = client.ask(&Ask::Train(beyond)) else { panic!("it agrees") };
    assert!(reason.contains("11000000000 bit/s"), "{reason}");
}
