//! Handshakes with a TCP server from several source ports, and what the kernel of this end learned from each.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use socket2::{Domain, Protocol, Socket, Type};
use sterna_proto::location::HostPort;
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};

use crate::client::dial::resolve;
use crate::measure::message::EchoPort;
use crate::sys;

/// Maximum number of source ports. Reason: 40 random flows see a route that one of eight flows takes with 99.5 %
/// probability.
pub const PORTS_MAX: u32 = 40;

/// Connections of a port. Reason: the smallest of three round trips is rarely delayed by a queue, and groups of ports
/// need three.
pub const PER_PORT: u32 = 3;

/// Maximum number of connections. Reason: a browser opens as many for some pages.
pub const CONNECTIONS_MAX: u32 = PORTS_MAX * PER_PORT;

/// Connections begun in a second. Reason: each is closed after one round trip, so that few are open at a time. Limits
/// of servers on unauthenticated connections count open ones (sshd: 10); those of firewalls are above ten a second.
pub const CONNECTIONS_A_SECOND: u32 = 10;

/// Time to connect. Reason: the kernel sends the SYN again after 1 s and 3 s.
const CONNECT_TIME_MAX: Duration = Duration::from_millis(3500);

/// Failed connections in a row after which no more are opened. Reason: a server that does not want them must be left
/// alone. One that is refused counts as many.
const FAILURES_MAX: u64 = 5;

/// Properties of a connection that both ends have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Agreed {
    /// Selective acknowledgements are in use.
    pub sack: bool,
    /// Timestamps are in use.
    pub timestamps: bool,
    /// Window scaling is in use.
    pub window_scaling: bool,
    /// Shift count of the windows of the server.
    pub server_scale: u8,
    /// Shift count of the windows of this end.
    pub own_scale: u8,
    /// Largest payload of a segment to the server, bytes, with the room for timestamps.
    pub mss: u32,
    /// Largest payload of a segment that this end offered to receive, bytes, with the room for timestamps.
    pub own_mss: u32,
    /// Path MTU by the record of this kernel, bytes.
    pub path_mtu: u32,
}

/// Number of connections with the same properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct AgreedCount {
    /// Properties.
    #[serde(flatten)]
    pub agreed: Agreed,
    /// Connections.
    pub connections: u64,
}

/// Handshakes with a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HandshakeReport {
    /// Address of the server.
    pub server: Option<SocketAddr>,
    /// Address of this host.
    pub local: Option<IpAddr>,
    /// Connections by source port: begun, established, and the round trips of those without a lost SYN.
    pub ports: Vec<EchoPort>,
    /// Properties of the connections, the most frequent first. More than one: several servers have the address.
    pub agreed: Vec<AgreedCount>,
    /// SYN packets that were sent again: they or their answers were lost.
    pub lost_syns: u64,
    /// Reason of the last failed connection.
    pub last_failure: Option<String>,
    /// Time of all connections.
    #[serde(skip)]
    pub time: Duration,
}

impl HandshakeReport {
    /// Returns the number of connections that were begun.
    pub fn connections(&self) -> u64 {
        self.ports.iter().map(|port| port.sent).sum()
    }
}

/// Opens connections to a server, from up to [`PORTS_MAX`] source ports, and closes each after the handshake by a
/// reset. `time`: time for them. `from`: address of this host, which selects the network.
///
/// Errors: `Unreachable`: the first connection fails at all addresses of the server.
pub fn handshakes(server: &HostPort, from: Option<IpAddr>, time: Duration) -> Result<HandshakeReport, Error> {
    let began = Instant::now();
    let (remote, first) = first_connection(server, from)?;
    let local = first.local;
    let every = Duration::from_secs(1) / CONNECTIONS_A_SECOND;
    // At most `CONNECTIONS_MAX`.
    let count = (time.as_millis() / every.as_millis()).clamp(u128::from(PER_PORT), u128::from(CONNECTIONS_MAX)) as u32;
    let ports = (count / PER_PORT).max(1);
    // Later than a first address that does not answer: the turns must not be overdue.
    let turns = Turns { began: Instant::now(), every, ports, failures: AtomicU64::new(0) };
    let outcomes = thread::scope(|scope| {
        // One thread for each port: connections of a port follow each other.
        let run = |index: u32| {
            let turns = &turns;
            let spawned = thread::Builder::new().name("handshakes".to_owned());
            spawned.spawn_scoped(scope, move || one_port(remote, local, index, turns))
        };
        let threads: Vec<_> = (0..ports).filter_map(|index| run(index).ok()).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect::<Vec<_>>()
    });
    let mut report = HandshakeReport { server: Some(remote), local: Some(local), ..HandshakeReport::default() };
    report.ports.push(EchoPort { port: first.port, sent: 1, returned: 1, reflected: 1, ..EchoPort::default() });
    report.add(0, &first);
    for port in outcomes {
        let index = report.ports.len();
        report.ports.push(EchoPort { port: port.number, sent: port.begun, ..EchoPort::default() });
        port.opened.iter().for_each(|opened| {
            report.ports[index].returned += 1;
            report.ports[index].reflected += 1;
            report.add(index, opened);
        });
        report.last_failure = port.failure.or(report.last_failure);
    }
    report.agreed.sort_by_key(|count| std::cmp::Reverse(count.connections));
    report.time = began.elapsed();
    Ok(report)
}

impl HandshakeReport {
    fn add(&mut self, index: usize, opened: &Opened) {
        self.lost_syns += opened.lost_syns;
        if let Some(rtt) = opened.rtt {
            self.ports[index].rtt_us.push(u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX));
        }
        match self.agreed.iter_mut().find(|count| count.agreed == opened.agreed) {
            Some(count) => count.connections += 1,
            None => self.agreed.push(AgreedCount { agreed: opened.agreed, connections: 1 }),
        }
    }
}

/// Connection that was established.
struct Opened {
    local: IpAddr,
    port: u16,
    agreed: Agreed,
    /// Round trip of the SYN; `None`: it was sent again.
    rtt: Option<Duration>,
    lost_syns: u64,
}

/// Connections of one port.
#[derive(Default)]
struct PortOutcome {
    number: u16,
    begun: u64,
    opened: Vec<Opened>,
    failure: Option<String>,
}

/// Connects to the first address of a server that answers.
fn first_connection(server: &HostPort, from: Option<IpAddr>) -> Result<(SocketAddr, Opened), Error> {
    let mut last = crate::internal("a host name without an address");
    for remote in resolve(server, from)? {
        let any: IpAddr = if remote.is_ipv4() { [0, 0, 0, 0].into() } else { [0; 16].into() };
        let local = SocketAddr::new(from.unwrap_or(any), 0);
        match bound(remote, local).and_then(|(socket, _)| establish(&socket, remote)) {
            Ok(opened) => return Ok((remote, opened)),
            Err(error) => {
                let text = format!("connect to {remote} by TCP: {}", words(&error));
                last = Error::new(ErrorKind::Unreachable, Scope::Path, Phase::Prepare, text)
                    .retry(Retry::After)
                    .caused_by(error);
            }
        }
    }
    Err(last.named(server.clone()))
}

fn words(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "refused: no program listens at that port, or a firewall refuses it",
        io::ErrorKind::TimedOut => "no answer: the host is down, or a firewall drops the packets",
        _ => "no connection",
    }
}

/// Times of the connections, and their failures.
struct Turns {
    began: Instant,
    every: Duration,
    ports: u32,
    /// Failures since the last success.
    failures: AtomicU64,
}

impl Turns {
    /// Waits for a turn of a port. Returns false if no more connections shall be opened.
    fn wait(&self, index: u32, turn: u32) -> bool {
        // The first connection was at the beginning.
        let at = self.began + self.every * (1 + index + self.ports * turn);
        thread::sleep(at.saturating_duration_since(Instant::now()));
        self.failures.load(Ordering::Relaxed) < FAILURES_MAX
    }

    fn failed(&self, error: &io::Error) {
        let weight = if error.kind() == io::ErrorKind::ConnectionRefused { FAILURES_MAX } else { 1 };
        self.failures.fetch_add(weight, Ordering::Relaxed);
    }
}

/// Opens the connections of a port, one in each turn.
fn one_port(remote: SocketAddr, local: IpAddr, index: u32, turns: &Turns) -> PortOutcome {
    let mut outcome = PortOutcome::default();
    for turn in 0..PER_PORT {
        if !turns.wait(index, turn) {
            return outcome;
        }
        // Fails if another program took the port in between.
        let Ok((socket, port)) = bound(remote, SocketAddr::new(local, outcome.number)) else { continue };
        outcome.number = port;
        outcome.begun += 1;
        match establish(&socket, remote) {
            Ok(opened) => {
                turns.failures.store(0, Ordering::Relaxed);
                outcome.opened.push(opened);
            }
            Err(error) => {
                turns.failed(&error);
                outcome.failure = Some(error.to_string());
            }
        }
    }
    outcome
}

/// Opens a socket, and binds it to a port. Returns its port too.
fn bound(remote: SocketAddr, local: SocketAddr) -> io::Result<(Socket, u16)> {
    let socket = Socket::new(Domain::for_address(remote), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    // A reset at the end frees the port, and the server too.
    socket.set_linger(Some(Duration::ZERO))?;
    socket.bind(&local.into())?;
    let port = socket.local_addr()?.as_socket().map_or(0, |local| local.port());
    Ok((socket, port))
}

/// Connects a socket, and reads its state.
fn establish(socket: &Socket, remote: SocketAddr) -> io::Result<Opened> {
    socket.connect_timeout(&remote.into(), CONNECT_TIME_MAX)?;
    let info = sys::tcp_info(socket)?;
    let own = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::InvalidData)?;
    let lost_syns = u64::from(info.total_retrans);
    // The kernel counts payload without options.
    let options = if info.timestamps { TIMESTAMP_BYTES } else { 0 };
    Ok(Opened {
        local: own.ip(),
        port: own.port(),
        agreed: Agreed {
            sack: info.selective_acks,
            timestamps: info.timestamps,
            window_scaling: info.window_scaling,
            server_scale: info.snd_wnd_scale,
            own_scale: info.rcv_wnd_scale,
            mss: info.snd_mss + options,
            own_mss: info.adv_mss + options,
            path_mtu: info.pmtu,
        },
        rtt: Some(info.rtt).filter(|rtt| lost_syns == 0 && !rtt.is_zero()),
        lost_syns,
    })
}

/// Bytes of the option timestamps in each segment.
const TIMESTAMP_BYTES: u32 = 12;

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_server_shows_its_options_and_every_port_has_its_round_trips() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let server = HostPort { host: at.ip().to_string(), port: at.port() };
        let report = handshakes(&server, None, Duration::from_millis(600)).unwrap();
        assert_eq!((report.server, report.local, report.lost_syns), (Some(at), Some(at.ip()), 0));
        // The first connection, and two ports.
        assert_eq!(report.connections(), 7, "{report:?}");
        for port in &report.ports[1..] {
            assert_eq!((port.sent, port.returned, port.rtt_us.len()), (3, 3, 3), "{report:?}");
        }
        let [only] = report.agreed[..] else { panic!("{report:?}") };
        assert!(only.connections == 7 && only.agreed.mss > 500 && only.agreed.own_mss >= only.agreed.mss, "{only:?}");
    }

    #[test]
    fn a_closed_port_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        drop(listener);
        let server = HostPort { host: at.ip().to_string(), port: at.port() };
        let error = handshakes(&server, None, Duration::from_secs(1)).unwrap_err();
        assert!(error.kind == ErrorKind::Unreachable && error.text().contains("refused"), "{error:?}");
    }
}
