//! Socket options of a lane, with the reason for each.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use sterna_proto::{BitRate, Error, ErrorKind, Phase, Retry, Scope};

use super::options::{ConnectOptions, TcpOptions};
use crate::sys::{self, TcpInfo};

/// Unsent bytes that the kernel takes ahead. Reason: a sender thread that wakes up to 0.4 ms late leaves no gap at
/// 10 Gbit/s. Control frames wait at most 84 ms behind these bytes at 50 Mbit/s, not seconds.
const NOTSENT_LOWAT_BYTES: u32 = 512 << 10;

/// Time for which a lane with a cap gives unsent bytes ahead to the kernel. Reason: the last frame of a lane waits
/// behind these bytes, and a close has 2 s. At 2.5 Mbit/s, 512 KiB take 1.7 s. Guess: a block is encoded within this
/// time.
const AHEAD_TIME_MS: u64 = 250;

/// Least number of unsent bytes that the kernel takes ahead. Reason: a TLS record.
const NOTSENT_LOWAT_BYTES_MIN: u32 = 16 << 10;

/// Unanswered keepalive probes after which the kernel ends an idle connection.
const KEEPALIVE_PROBES: u32 = 4;

/// Connects a socket. Errors: `Unreachable` for errors of the network, `Usage` for a local address that this host
/// does not have.
pub(super) fn connect(options: &ConnectOptions, deadline: Instant) -> Result<TcpStream, Error> {
    let remote = options.remote;
    let failed = |what: &str, error: io::Error| {
        let text = format!("connect to {remote} by TCP{what}");
        Error::new(ErrorKind::Unreachable, Scope::Path, Phase::Prepare, text).retry(Retry::After).caused_by(error)
    };
    let socket = Socket::new(Domain::for_address(remote), Type::STREAM, Some(Protocol::TCP))
        .map_err(|e| failed(": make a socket", e))?;
    if let Some(local) = options.local {
        socket.bind(&local.into()).map_err(|e| {
            let text = format!("connect to {remote}: use the local address {local}");
            Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text).caused_by(e)
        })?;
    }
    let time_left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    socket.connect_timeout(&remote.into(), time_left).map_err(|e| match e.kind() {
        io::ErrorKind::TimedOut => {
            failed(&format!(": no answer in {:.0} s", options.tcp.handshake_time_max.as_secs_f64()), e)
        }
        // The peer resets a connection when the last packet of the TCP handshake arrives too late.
        io::ErrorKind::ConnectionReset => failed(": the peer cut the connection", e).cut_in_handshake(),
        _ => failed("", e),
    })?;
    Ok(socket.into())
}

/// Sets the options that every lane needs. Leaves the buffers to the kernel's autotuning, which a set size would
/// end.
pub(super) fn tune(stream: &TcpStream, peer: SocketAddr, options: &TcpOptions) -> Result<(), Error> {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new()
        .with_time(options.dead_after / 3)
        .with_interval(options.dead_after / 6)
        .with_retries(KEEPALIVE_PROBES);
    // TCP_USER_TIMEOUT is not set. Reason: it also ends a connection whose live peer does not read for that long,
    // for instance a receiver with a stalled disk (tcp_probe_timer in net/ipv4/tcp_timer.c). The lane checks the
    // path in `PathMonitor` instead.
    let tuned = stream
        .set_nonblocking(false)
        .and_then(|()| socket.set_tcp_nodelay(true))
        .and_then(|()| socket.set_tcp_notsent_lowat(NOTSENT_LOWAT_BYTES))
        .and_then(|()| socket.set_tcp_keepalive(&keepalive));
    tuned.map_err(|e| {
        Error::new(ErrorKind::Io, Scope::Service, Phase::Prepare, format!("set up the socket to {peer}")).caused_by(e)
    })
}

/// Sets the congestion control of a socket by its name in the kernel.
pub(super) fn set_congestion(stream: &TcpStream, name: &str) -> Result<(), Error> {
    SockRef::from(stream).set_tcp_congestion(name.as_bytes()).map_err(|e| {
        let text = format!("use congestion control {name}: the kernel refuses; going on with {}", congestion(stream));
        Error::new(ErrorKind::Denied, Scope::Service, Phase::Prepare, text).caused_by(e)
    })
}

/// Returns the congestion control of a socket.
pub(crate) fn congestion(stream: &impl AsFd) -> String {
    let name = SockRef::from(stream).tcp_congestion().unwrap_or_default();
    String::from_utf8_lossy(name.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

/// Returns the header bytes of a full segment of this connection: IP, TCP and its options.
pub(super) fn segment_header_bytes(info: &TcpInfo, peer: SocketAddr) -> u64 {
    let ip = if peer.is_ipv4() { 20 } else { 40 };
    ip + 20 + if info.timestamps { 12 } else { 0 }
}

/// Caps the rate of a socket so that the packets on the wire, IP headers included, stay at `rate`.
///
/// The kernel's pacing counts payload only, so the headers of full segments are subtracted. Measured on Linux 6.18
/// over veth at MTU 1500: packets at 1.032 times the rate that was set, with cubic and bbr alike. The fq queueing
/// discipline counts whole packets. Where the interface has it, the lane stays that much (3 % at MTU 1500) below
/// its rate.
pub(super) fn set_rate(stream: &TcpStream, peer: SocketAddr, rate: Option<BitRate>) -> io::Result<()> {
    let info = sys::tcp_info(stream)?;
    let payload = u64::from(info.snd_mss.max(1));
    let packet = payload + segment_header_bytes(&info, peer);
    let payload_rate = rate.map(|rate| {
        let bytes = u128::from(rate.bytes_per_second()) * u128::from(payload) / u128::from(packet);
        // Not above the given rate, and not 0, which the kernel would take for no cap.
        u64::try_from(bytes).unwrap_or(u64::MAX).max(1)
    });
    sys::set_pacing_rate(stream, payload_rate)?;
    SockRef::from(stream).set_tcp_notsent_lowat(notsent_lowat(payload_rate))
}

/// Returns the unsent bytes that the kernel takes ahead on a lane that is capped at `rate`, in bytes/s.
fn notsent_lowat(rate: Option<u64>) -> u32 {
    let bytes = rate.map_or(u64::MAX, |rate| rate.saturating_mul(AHEAD_TIME_MS) / 1000);
    u32::try_from(bytes).unwrap_or(u32::MAX).clamp(NOTSENT_LOWAT_BYTES_MIN, NOTSENT_LOWAT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_with_a_low_cap_takes_less_ahead() {
        let ahead = |megabits: u64| notsent_lowat(Some(megabits * 125_000));
        assert_eq!(notsent_lowat(None), NOTSENT_LOWAT_BYTES);
        assert_eq!((ahead(10_000), ahead(100_000)), (NOTSENT_LOWAT_BYTES, NOTSENT_LOWAT_BYTES), "without effect");
        assert_eq!(ahead(10), 312_500);
        assert_eq!(notsent_lowat(Some(8_000)), NOTSENT_LOWAT_BYTES_MIN, "64 kbit/s");
    }
}
