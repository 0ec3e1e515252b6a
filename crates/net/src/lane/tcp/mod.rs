//! TCP lanes: TLS 1.3 over one TCP connection, on plain blocking threads.
//!
//! Connects and accepts, runs the handshake (rustls), and moves frames ([`super::frame`]) in TLS records. It encrypts
//! and decrypts records in place ([`record`]). A byte of a block is copied once on its way to the kernel. It is not
//! copied on its way from the kernel to the sink. Refuses to trust a peer, or choose the number of lanes.
//!
//! Where time enters: handshake and close have deadlines, and the reading thread checks the path while no data
//! arrives. Where bytes enter and leave: [`writer`] and [`reader`]. Both block in the kernel, which is the
//! back-pressure. Memory of a lane: 256 KiB to send, 256 KiB to receive, and one control frame; the kernel's
//! buffers are not included.

mod connection;
mod handshake;
mod options;
mod reader;
mod record;
mod send;
mod shared;
mod socket;
#[cfg(test)]
mod tests;
mod window;
mod writer;

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use sterna_proto::limit::{TcpSample, TransportSample};
use sterna_proto::{BitRate, ByteCount, Error, ErrorKind, Phase, Scope};

pub(crate) use self::handshake::is_whole_record;
pub use self::options::{ConnectOptions, DEAD_AFTER, HANDSHAKE_TIME_MAX, TcpOptions};
pub(crate) use self::socket::congestion;
pub use self::window::{buffer_limits, window_max};

use self::connection::Connection;
use self::handshake::{Established, Link};
use self::reader::TcpRx;
use self::record::{Opener, Sealer};
use self::send::TcpTx;
use self::shared::{Ending, Shared};
use self::writer::Writer;
use super::{Lane, LaneHandle, LaneRx, LaneStats, LaneTx, ReceiveMemory, Transport};
use crate::identity::{Fingerprint, Identity};
use crate::sys::{self, SocketMemory, TcpInfo};

/// TCP lane after its handshake; [`TcpLane::into_lane`] hides the transport.
pub struct TcpLane {
    /// Fingerprint of the peer's key.
    pub peer: Fingerprint,
    /// Sending half.
    pub tx: Box<dyn LaneTx>,
    /// Receiving half.
    pub rx: Box<dyn LaneRx>,
    /// Measurements and control.
    pub handle: Arc<TcpHandle>,
    /// Reason why the requested congestion control is not in use; the lane continues with another.
    pub congestion_refused: Option<Error>,
}

impl TcpLane {
    /// Converts the lane to the type that both transports share.
    pub fn into_lane(self) -> Lane {
        Lane { peer: self.peer, tx: self.tx, rx: self.rx, handle: self.handle }
    }
}

/// Connects a lane; blocks until the handshake is done.
///
/// Errors: `Unreachable` (refused, no answer, cut), `Protocol` (no TLS 1.3, another protocol), `Untrusted`
/// (certificate). A peer that refuses *our* certificate in the handshake reports it only at the first read. Reason:
/// the connecting end is done half a round trip before the other (RFC 8446, section 4.4.2.4).
pub fn connect(options: &ConnectOptions, identity: &Identity) -> Result<TcpLane, Error> {
    let deadline = Instant::now() + options.tcp.handshake_time_max;
    let stream = socket::connect(options, deadline)?;
    establish(stream, options.remote, &options.tcp, deadline, |link| {
        handshake::connect(link, identity, options.tcp.key_records_max)
    })
}

/// Makes a lane from an accepted connection; blocks until the handshake is done.
///
/// Errors: the same as for [`connect`].
pub fn accept(stream: TcpStream, identity: &Identity, options: &TcpOptions) -> Result<TcpLane, Error> {
    let deadline = Instant::now() + options.handshake_time_max;
    let peer_addr = stream.peer_addr().map_err(|e| {
        Error::new(ErrorKind::Unreachable, Scope::Path, Phase::Prepare, "accept a lane: it is gone").caused_by(e)
    })?;
    establish(stream, peer_addr, options, deadline, |link| handshake::accept(link, identity, options.key_records_max))
}

fn establish(
    stream: TcpStream,
    peer_addr: SocketAddr,
    options: &TcpOptions,
    deadline: Instant,
    shake_hands: impl FnOnce(&mut Link<'_>) -> Result<Established, Error>,
) -> Result<TcpLane, Error> {
    socket::tune(&stream, peer_addr, options)?;
    let congestion_refused = options.congestion.as_deref().and_then(|name| socket::set_congestion(&stream, name).err());
    let mut link = Link { stream: &stream, peer_addr, deadline, is_dialled: false };
    let Established { peer, tx, rx, secrets, early } = shake_hands(&mut link)?;
    let ready = stream.set_write_timeout(None).and_then(|()| stream.local_addr());
    let local_addr = ready.map_err(|e| {
        let text = format!("connect with {peer_addr}: the connection is gone");
        Error::new(ErrorKind::Unreachable, Scope::Path, Phase::Prepare, text).caused_by(e)
    })?;
    let connection = Connection::new(stream, (local_addr, peer_addr), secrets);
    let shared = Arc::new(Shared::new(connection, Writer::new(Sealer::new(tx))));
    let handle = Arc::new(TcpHandle { shared: Arc::clone(&shared) });
    handle.set_rate(options.rate);
    Ok(TcpLane {
        peer,
        tx: Box::new(TcpTx { shared: Arc::clone(&shared) }),
        rx: Box::new(TcpRx { shared, opener: Opener::new(rx, &early), dead_after: options.dead_after }),
        handle,
        congestion_refused,
    })
}

/// Access to a TCP lane from any thread.
pub struct TcpHandle {
    shared: Arc<Shared>,
}

impl TcpHandle {
    /// Returns the congestion control in use, by its name in the kernel.
    pub fn congestion(&self) -> String {
        socket::congestion(&self.shared.connection.stream)
    }

    /// Changes the congestion control of the live lane, for instance to bbr when the path loses packets.
    ///
    /// Errors: the kernel does not have this congestion control or does not allow it. The lane then keeps its
    /// current one.
    pub fn set_congestion(&self, name: &str) -> Result<(), Error> {
        socket::set_congestion(&self.shared.connection.stream, name)
    }

    /// Returns the kernel's state of the connection; all zero once the connection is gone.
    pub fn tcp_info(&self) -> TcpInfo {
        sys::tcp_info(&self.shared.connection.stream).unwrap_or_default()
    }

    /// Returns the memory that the kernel holds for the connection; all zero once the connection is gone.
    pub fn socket_memory(&self) -> SocketMemory {
        sys::socket_memory(&self.shared.connection.stream).unwrap_or_default()
    }

    /// Returns the largest number of bytes that this lane can have in flight, by this host's limits and the peer's
    /// window scaling. `None` when the kernel does not report them.
    pub fn window_max(&self) -> Option<ByteCount> {
        window::window_max_of(&self.tcp_info())
    }

    /// Returns the reason that the peer sent when it closed the lane, with special characters escaped. `None` while
    /// it is open.
    pub fn closed_by_peer(&self) -> Option<String> {
        match self.shared.ending() {
            Some(Ending::ByPeer { reason }) => Some(reason),
            _ => None,
        }
    }
}

impl LaneHandle for TcpHandle {
    fn held_to(&self) -> Option<ByteCount> {
        window::held_to(&self.tcp_info(), &self.socket_memory())
    }

    fn window_max(&self) -> Option<ByteCount> {
        TcpHandle::window_max(self)
    }

    fn set_congestion(&self, name: &str) -> Result<(), Error> {
        TcpHandle::set_congestion(self, name)
    }

    fn closed_by_peer(&self) -> Option<String> {
        TcpHandle::closed_by_peer(self)
    }

    fn transport(&self) -> Transport {
        Transport::Tcp
    }

    fn local_addr(&self) -> SocketAddr {
        self.shared.connection.local_addr
    }

    fn peer_addr(&self) -> SocketAddr {
        self.shared.connection.peer_addr
    }

    fn stats(&self) -> LaneStats {
        let info = self.tcp_info();
        let header_bytes = socket::segment_header_bytes(&info, self.shared.connection.peer_addr);
        let bytes = |count: Option<ByteCount>| count.unwrap_or_default().0;
        let segments = |count: Option<u32>| u64::from(count.unwrap_or(0));
        LaneStats {
            rtt: info.rtt,
            rtt_min: info.min_rtt.unwrap_or_default(),
            packets_sent: segments(info.data_segs_out),
            packets_lost: u64::from(info.total_retrans),
            wire_bytes_sent: bytes(info.bytes_sent.or(info.bytes_acked)) + segments(info.segs_out) * header_bytes,
            wire_bytes_received: bytes(info.bytes_received) + segments(info.segs_in) * header_bytes,
            window_bytes: u64::from(info.snd_cwnd) * u64::from(info.snd_mss),
            in_flight_bytes: u64::from(info.unacked) * u64::from(info.snd_mss),
            mtu: u16::try_from(info.pmtu).unwrap_or(u16::MAX),
        }
    }

    fn sample(&self) -> Option<TransportSample> {
        let info = sys::tcp_info(&self.shared.connection.stream).ok()?;
        Some(TransportSample::Tcp(tcp_sample(&info, &self.socket_memory(), &self.congestion())))
    }

    fn receive_memory(&self) -> Option<ReceiveMemory> {
        let (info, memory) = (sys::tcp_info(&self.shared.connection.stream).ok()?, self.socket_memory());
        let window = info.rcv_wnd.unwrap_or_default();
        Some(ReceiveMemory { unread: memory.receive_used, buffer: memory.receive_limit, window, dropped: 0, socket: 0 })
    }

    fn heard(&self) -> Option<u64> {
        self.shared.listens.load(Ordering::Relaxed).then(|| self.tcp_info().bytes_received.unwrap_or_default().0)
    }

    fn set_rate(&self, rate: Option<BitRate>) {
        // Fails only when the connection is gone, which needs no rate.
        let _ = socket::set_rate(&self.shared.connection.stream, self.shared.connection.peer_addr, rate);
    }

    fn say_alive(&self) {
        send::say_alive(&self.shared);
    }

    fn close(&self, reason: &str) {
        self.shared.close(reason);
    }
}

/// Slow start threshold of a connection that never left slow start (`TCP_INFINITE_SSTHRESH`).
const NO_THRESHOLD: u32 = 0x7fff_ffff;

/// Returns the measurements of the kernel for any TCP connection, such as one to a web server.
pub fn sample_of(stream: &impl AsFd) -> io::Result<TcpSample> {
    let info = sys::tcp_info(stream)?;
    // Without the memory, only a full send buffer is not recognised.
    let memory = sys::socket_memory(stream).unwrap_or_default();
    Ok(tcp_sample(&info, &memory, &socket::congestion(stream)))
}

/// Returns the measurements of the kernel as a sample for the accountant of limits.
pub(crate) fn tcp_sample(info: &TcpInfo, memory: &SocketMemory, congestion: &str) -> TcpSample {
    let of_mss = |segments: u32| ByteCount(u64::from(segments) * u64::from(info.snd_mss));
    TcpSample {
        rwnd_limited: info.rwnd_limited.unwrap_or_default(),
        sndbuf_limited: info.sndbuf_limited.unwrap_or_default(),
        sent: u64::from(info.data_segs_out.unwrap_or_default()),
        lost: u64::from(info.total_retrans),
        // Includes data acknowledged out of order. Otherwise, the data behind a gap would appear in one large step.
        delivered: info.delivered.map_or(info.bytes_acked.unwrap_or_default(), of_mss).0,
        rtt: info.rtt,
        rtt_min: info.min_rtt.unwrap_or(info.rtt),
        window: of_mss(info.snd_cwnd),
        in_flight: of_mss(info.unacked),
        unsent: info.notsent.unwrap_or_default(),
        receive_window: info.snd_wnd.unwrap_or_default(),
        send_buffer: memory.send_limit,
        // A limit of the host and not of the connection; the caller that takes the sample fills it in.
        send_buffer_max: ByteCount(0),
        send_queued: memory.send_queued,
        cap: info.max_pacing_rate,
        is_growing: info.total_retrans == 0 && info.snd_ssthresh >= NO_THRESHOLD,
        is_unscaled: !info.window_scaling,
        yields_to_loss: !congestion.starts_with("bbr"),
    }
}
