//! The options of a lane's socket, and what each is for.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use sterna_proto::{BitRate, Error, ErrorKind, Phase, Retry, Scope};

use super::{ConnectOptions, TcpOptions};
use crate::sys::{self, TcpInfo};

/// Unsent bytes that the kernel takes ahead, in bytes. Reason: enough that a sender thread that is woken late leaves no
/// gap at 10 Gbit/s for 0.4 ms, and little enough that control frames wait 84 ms behind it at 50 Mbit/s, not seconds.
const NOTSENT_LOWAT_BYTES: u32 = 512 << 10;

/// Keepalive probes that stay unanswered before the kernel gives an idle connection up.
const KEEPALIVE_PROBES: u32 = 4;

/// Connects a socket. Errors: `Unreachable` for what the network says, `Usage` for an address of ours that is not.
pub(super) fn connect(options: &ConnectOptions, deadline: Instant) -> Result<TcpStream, Error> {
    let remote = options.remote;
    let failed = |what: &str, error: io::Error| {
        let text = format!("connect to {remote}: {what}");
        Error::new(ErrorKind::Unreachable, Scope::Path, Phase::Prepare, text).retry(Retry::After).caused_by(error)
    };
    let socket = Socket::new(Domain::for_address(remote), Type::STREAM, Some(Protocol::TCP))
        .map_err(|e| failed("make a socket", e))?;
    if let Some(local) = options.local {
        socket.bind(&local.into()).map_err(|e| {
            let text = format!("connect to {remote}: use the local address {local}");
            Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text).caused_by(e)
        })?;
    }
    let time_left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    socket.connect_timeout(&remote.into(), time_left).map_err(|e| match e.kind() {
        io::ErrorKind::TimedOut => {
            failed(&format!("no answer in {:.0} s", options.tcp.handshake_time_max.as_secs_f64()), e)
        }
        // Sent to a client whose last packet of the connection's own handshake came too late.
        io::ErrorKind::ConnectionReset => failed("the peer cut the connection", e).cut_in_handshake(),
        io::ErrorKind::ConnectionRefused => failed("nobody listens there", e),
        _ => failed("no way there", e),
    })?;
    Ok(socket.into())
}

/// Sets what every lane wants. The buffers are left to the kernel's own tuning, which setting a size would end.
pub(super) fn tune(stream: &TcpStream, peer: SocketAddr, options: &TcpOptions) -> Result<(), Error> {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new()
        .with_time(options.dead_after / 3)
        .with_interval(options.dead_after / 6)
        .with_retries(KEEPALIVE_PROBES);
    // TCP_USER_TIMEOUT is not set: it also ends a connection whose peer is alive and does not read for that long, as a
    // receiver with a stalled disk (tcp_probe_timer in net/ipv4/tcp_timer.c). The lane watches the path itself.
    let tuned = stream
        .set_nonblocking(false)
        .and_then(|()| socket.set_tcp_nodelay(true))
        .and_then(|()| socket.set_tcp_notsent_lowat(NOTSENT_LOWAT_BYTES))
        .and_then(|()| socket.set_tcp_keepalive(&keepalive));
    tuned.map_err(|e| {
        Error::new(ErrorKind::Io, Scope::Service, Phase::Prepare, format!("set up the socket to {peer}")).caused_by(e)
    })
}

/// Chooses the congestion control of a socket by its name in the kernel.
pub(super) fn set_congestion(stream: &TcpStream, name: &str) -> Result<(), Error> {
    SockRef::from(stream).set_tcp_congestion(name.as_bytes()).map_err(|e| {
        let text = format!("use congestion control {name}: the kernel refuses; going on with {}", congestion(stream));
        Error::new(ErrorKind::Denied, Scope::Service, Phase::Prepare, text).caused_by(e)
    })
}

/// The congestion control of a socket.
pub(super) fn congestion(stream: &TcpStream) -> String {
    let name = SockRef::from(stream).tcp_congestion().unwrap_or_default();
    String::from_utf8_lossy(name.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

/// Headers of a full segment of this connection, in bytes: IP, TCP and its options.
pub(super) fn segment_header_bytes(info: &TcpInfo, peer: SocketAddr) -> u64 {
    let ip = if peer.is_ipv4() { 20 } else { 40 };
    ip + 20 + if info.timestamps { 12 } else { 0 }
}

/// Caps what a socket sends so that the packets on the wire, IP headers included, stay at `rate`.
///
/// The kernel's own pacing counts payload only, so the headers of full segments are taken off (measured on Linux 6.18
/// over veth at MTU 1500: packets at 1.032 times the rate that was set, cubic and bbr alike). Where the interface has
/// the fq queueing discipline, which counts whole packets, the lane stays that much (3 % at MTU 1500) below its rate.
pub(super) fn set_rate(stream: &TcpStream, peer: SocketAddr, rate: Option<BitRate>) -> io::Result<()> {
    let info = sys::tcp_info(stream)?;
    let payload = u64::from(info.snd_mss.max(1));
    let packet = payload + segment_header_bytes(&info, peer);
    let payload_rate = rate.map(|rate| {
        let bytes = u128::from(rate.bytes_per_second()) * u128::from(payload) / u128::from(packet);
        // Not above what was given, and not the zero that the kernel would take for no cap at all.
        u64::try_from(bytes).unwrap_or(u64::MAX).max(1)
    });
    sys::set_pacing_rate(stream, payload_rate)
}
