//! UDP socket of a QUIC endpoint: buffers, batches that the kernel takes, and errors that the engine would ignore.
//!
//! The kernel refuses a batch (UDP segmentation offload) of more than 65,507 bytes as a whole, with EMSGSIZE. QUIC
//! engines take this for a lost MTU probe: at MTU 9000 the default batch of ten was lost and throughput fell to
//! 0.1 %. This module splits such batches.

use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket as StdUdpSocket};
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use noq::udp::{RecvMeta, Transmit, UdpSocketState};
use noq::{AsyncUdpSocket, Connection, PathId, UdpSender, WeakConnectionHandle};
use parking_lot::{Mutex, MutexGuard};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::sync::watch;
use tokio::time::Sleep;

use super::pace::Pace;
use crate::sys::{Readiness, UDP_PAYLOAD_MAX, readiness_of};

/// Use of the local port by the sockets of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortUse {
    /// One socket has the port alone.
    Alone,
    /// The kernel spreads peers over all sockets bound to the port.
    Shared,
}

/// Binds a UDP socket with buffers as large as the kernel allows.
pub(super) fn bind(addr: SocketAddr, port_use: PortUse) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(addr), Type::DGRAM, Some(Protocol::UDP))?;
    if addr.is_ipv6() {
        // An IPv6 wildcard also serves IPv4 peers, where the system allows it.
        let _ = socket.set_only_v6(false);
    }
    if port_use == PortUse::Shared {
        socket.set_reuse_port(true)?;
    }
    // The forced variants exceed net.core.[rw]mem_max and need CAP_NET_ADMIN. Without it, the kernel caps the
    // requested size.
    if rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_BYTES).is_err() {
        let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES);
    }
    if rustix::net::sockopt::set_socket_send_buffer_size_force(&socket, SEND_BUFFER_BYTES).is_err() {
        let _ = socket.set_send_buffer_size(SEND_BUFFER_BYTES);
    }
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    Ok(socket)
}

/// Returns the largest UDP payload that the route of a connected socket carries, as far as the kernel has recorded
/// it.
fn route_payload(socket: &Socket, peer: SocketAddr) -> Option<u16> {
    let mtu = match peer {
        SocketAddr::V4(_) => rustix::net::sockopt::ip_mtu(socket),
        SocketAddr::V6(_) => rustix::net::sockopt::ipv6_mtu(socket),
    };
    let payload = u64::from(mtu.ok()?).saturating_sub(super::transport::header_bytes(peer));
    Some(u16::try_from(payload).unwrap_or(u16::MAX))
}

/// Connects `socket` to `peer`; returns the largest UDP payload that is worth trying.
pub(super) fn connect(socket: &Socket, peer: SocketAddr) -> io::Result<Option<u16>> {
    socket.connect(&peer.into())?;
    Ok(route_payload(socket, peer))
}

/// Returns the same payload for a socket that serves many peers, from a temporary connected socket. Sends nothing.
pub(super) fn payload_towards(peer: SocketAddr) -> Option<u16> {
    let socket = Socket::new(Domain::for_address(peer), Type::DGRAM, Some(Protocol::UDP)).ok()?;
    connect(&socket, peer).ok()?
}

/// Last error of the socket, for callers that wait for a handshake.
#[derive(Debug)]
pub(super) struct SocketTrouble {
    last: watch::Sender<Option<io::ErrorKind>>,
}

impl SocketTrouble {
    fn note(&self, error: &io::Error) {
        // A datagram that is too big is a probe of MTU discovery, which detects its loss.
        if !noq::udp::is_msg_size_err(error) {
            self.last.send_replace(Some(error.kind()));
        }
    }

    /// Waits for an error which means that the peer is unreachable.
    pub(super) async fn unreachable(&self) -> io::ErrorKind {
        let mut last = self.last.subscribe();
        // The sender lives as long as `self`, so this wait cannot fail.
        match last.wait_for(Option::is_some).await {
            Ok(kind) => kind.unwrap_or(io::ErrorKind::Other),
            Err(_) => std::future::pending().await,
        }
    }
}

/// Socket of the engine.
#[derive(Debug)]
pub(super) struct LaneSocket {
    io: Arc<StdUdpSocket>,
    arrivals: Arrivals,
    state: Arc<UdpSocketState>,
    trouble: Arc<SocketTrouble>,
    /// Pace of the lane, when the socket serves this lane only.
    pace: Option<Arc<Pace>>,
    lanes: SocketLanes,
    /// Batches of coalesced datagrams (GRO) that are read at once.
    trains: usize,
}

/// Lanes of a socket. Their round trips decide if reading may pause, and their paces decide what is sent twice.
#[derive(Clone)]
pub(super) struct SocketLanes {
    lanes: Arc<Mutex<Vec<SocketLane>>>,
    socket: Arc<StdUdpSocket>,
}

struct SocketLane {
    connection: WeakConnectionHandle,
    peer: SocketAddr,
    pace: Weak<Pace>,
}

impl SocketLanes {
    /// Adds a lane whose peer has proven its address.
    pub(super) fn add(&self, lane: &Connection, peer: SocketAddr, pace: &Arc<Pace>) {
        pace.set_socket(&self.socket);
        let mut lanes = self.lock();
        lanes.retain(|lane| lane.connection.is_alive());
        lanes.push(SocketLane { connection: lane.weak_handle(), peer, pace: Arc::downgrade(pace) });
    }

    /// Returns how long packets may accumulate before they are read: a small part of the shortest round trip.
    /// `None` when that round trip is short.
    fn rest(&self) -> Option<Duration> {
        let lanes = self.lock();
        let rtts = lanes.iter().filter_map(|lane| lane.connection.upgrade()?.rtt(PathId::ZERO));
        rtts.min().filter(|rtt| *rtt >= LONG_RTT).map(|rtt| (rtt / REST_PART).clamp(REST_MIN, REST_MAX))
    }

    /// Returns the pace of the newest lane to `peer`.
    fn pace_to(&self, peer: SocketAddr) -> Option<Arc<Pace>> {
        self.lock().iter().rev().find(|lane| lane.peer == peer)?.pace.upgrade()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<SocketLane>> {
        self.lanes.lock()
    }
}

impl std::fmt::Debug for SocketLanes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SocketLanes")
    }
}

/// Receiving side of the socket.
///
/// When all is read and every lane has a long round trip, reading pauses so that packets accumulate. A wake-up for
/// each costs more than the packet. The runtime must not watch the socket meanwhile, because every arrival would
/// wake it.
#[derive(Debug)]
struct Arrivals {
    /// Second descriptor of the socket, so that the runtime can start and stop watching it separately.
    socket: Arc<StdUdpSocket>,
    watch: Option<Readiness>,
    timer: Option<Pin<Box<Sleep>>>,
    rest: Option<Duration>,
    asked: Option<Instant>,
}

impl Arrivals {
    fn new(socket: StdUdpSocket) -> Self {
        Self { socket: Arc::new(socket), watch: None, timer: None, rest: None, asked: None }
    }

    /// Starts a pause, if the lanes allow it.
    fn rest(&mut self, lanes: &SocketLanes) {
        let now = Instant::now();
        if self.asked.is_none_or(|asked| now - asked >= ASK_INTERVAL) {
            self.asked = Some(now);
            self.rest = lanes.rest();
        }
        if let Some(rest) = self.rest {
            self.timer = Some(Box::pin(tokio::time::sleep(rest)));
            self.watch = None;
        }
    }

    /// Waits for the end of the pause and for a packet, then returns the result of `read`; `WouldBlock` when all is
    /// read.
    fn poll<T>(&mut self, cx: &mut Context<'_>, read: impl FnOnce() -> io::Result<T>) -> Poll<io::Result<T>> {
        if let Some(timer) = &mut self.timer {
            ready!(timer.as_mut().poll(cx));
            self.timer = None;
        }
        let watched = match &mut self.watch {
            Some(watched) => watched,
            none => none.insert(readiness_of(&self.socket, Interest::READABLE)?),
        };
        let mut readable = ready!(watched.poll_read_ready(cx))?;
        Poll::Ready(readable.try_io(|_| read()).unwrap_or_else(|_| Err(io::ErrorKind::WouldBlock.into())))
    }
}

/// Time that packets accumulate: this part of the round trip, within these bounds. Reason: it adds to the round
/// trip that is measured, and the timer of the runtime is no finer than 1 ms. After 4 ms at 250 Mbit/s, 80 packets
/// share a wake-up.
const REST_PART: u32 = 64;
const REST_MIN: Duration = Duration::from_millis(1);
const REST_MAX: Duration = Duration::from_millis(4);

/// Round trip from which packets may accumulate. Reason: the pause, and the timer's delay, stay under a tenth of
/// it.
const LONG_RTT: Duration = Duration::from_millis(20);

/// Interval at which the round trips are read. Guess: lanes come and go within seconds.
const ASK_INTERVAL: Duration = Duration::from_millis(100);

impl LaneSocket {
    /// Wraps a bound, non-blocking socket; must be called within the runtime that will drive it.
    ///
    /// `lanes`: number of lanes of the session with a separate socket, this one included.
    pub(super) fn new(socket: Socket, pace: Option<Arc<Pace>>, lanes: u32) -> io::Result<Self> {
        let socket: StdUdpSocket = socket.into();
        let state = UdpSocketState::new((&socket).into())?;
        let trouble = SocketTrouble { last: watch::Sender::new(None) };
        let arrivals = Arrivals::new(socket.try_clone()?);
        let io = Arc::new(socket);
        Ok(Self {
            lanes: SocketLanes { lanes: Arc::default(), socket: Arc::clone(&io) },
            arrivals,
            io,
            state: Arc::new(state),
            trouble: Arc::new(trouble),
            pace,
            trains: super::transport::receive_trains(lanes),
        })
    }

    /// Returns the lanes that this socket serves; the code that makes a lane adds it.
    pub(super) fn lanes(&self) -> SocketLanes {
        self.lanes.clone()
    }

    pub(super) fn trouble(&self) -> Arc<SocketTrouble> {
        Arc::clone(&self.trouble)
    }
}

impl AsyncUdpSocket for LaneSocket {
    fn create_sender(&self) -> Pin<Box<dyn UdpSender>> {
        let socket = SendSocket {
            io: Arc::clone(&self.io),
            state: Arc::clone(&self.state),
            trouble: Arc::clone(&self.trouble),
            lanes: self.lanes.clone(),
        };
        Box::pin(LaneSender { socket, pace: self.pace.clone(), sent_bytes: 0, last: None, room: None })
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        // The engine offers 32 buffers, each as long as the longest batch of coalesced datagrams. Unused buffers
        // take no memory.
        let count = bufs.len().min(meta.len()).min(self.trains);
        let (bufs, meta) = (&mut bufs[..count], &mut meta[..count]);
        loop {
            let socket = Arc::clone(&self.arrivals.socket);
            let read = || self.state.recv((&*socket).into(), bufs, meta);
            match ready!(self.arrivals.poll(cx, read)) {
                Ok(count) => return Poll::Ready(Ok(count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.arrivals.rest(&self.lanes),
                // An ICMP error reports on an earlier datagram, and anyone may forge it. Each is returned once, so
                // this does not spin. A dial that waits for its handshake gets the error; an established lane
                // ignores it.
                Err(error) if is_report(&error) => self.trouble.note(&error),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.arrivals.socket.local_addr()
    }

    /// Returns the number of datagrams for which the engine sizes each buffer, at the largest size. A batch has at
    /// most 64 KiB.
    fn max_receive_segments(&self) -> NonZeroUsize {
        self.state.gro_segments().min(TRAIN_SEGMENTS)
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }
}

/// Number of the largest datagrams ([`super::transport::PAYLOAD_MAX`]) in a batch of 64 KiB, rounded up. Reason:
/// with the kernel's 64, the engine starts with 573 KB for each lane.
const TRAIN_SEGMENTS: NonZeroUsize =
    match NonZeroUsize::new((1usize << 16).div_ceil(super::transport::PAYLOAD_MAX as usize)) {
        Some(segments) => segments,
        None => NonZeroUsize::MIN,
    };

fn is_report(error: &io::Error) -> bool {
    use io::ErrorKind::{
        ConnectionRefused, ConnectionReset, HostUnreachable, NetworkDown, NetworkUnreachable, PermissionDenied,
    };
    matches!(
        error.kind(),
        ConnectionRefused | ConnectionReset | HostUnreachable | NetworkDown | NetworkUnreachable | PermissionDenied
    ) || noq::udp::is_msg_size_err(error)
}

/// Future that waits for room in a socket.
type Room = Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>;

/// Parts of a [`LaneSocket`] that sending needs.
#[derive(Debug)]
struct SendSocket {
    io: Arc<StdUdpSocket>,
    state: Arc<UdpSocketState>,
    trouble: Arc<SocketTrouble>,
    lanes: SocketLanes,
}

impl SendSocket {
    /// Makes one system call. Errors: `WouldBlock` when the socket is full, and other errors of the system.
    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.state.try_send((&*self.io).into(), transmit)
    }

    /// Waits until the socket has room. Each wait has a separate descriptor and watch. Reason: the connections of a
    /// listener share the socket, and all must be woken. A socket that is watched for room also wakes its runtime
    /// for each sent datagram.
    fn room(&self) -> io::Result<Room> {
        let watched = readiness_of(&Arc::new(self.io.try_clone()?), Interest::WRITABLE)?;
        Ok(Box::pin(async move { watched.writable().await.map(drop) }))
    }
}

/// Sends for one connection, or for the endpoint.
struct LaneSender {
    socket: SendSocket,
    /// Pace of the lane, once it is known. At a listener, this is when the peer has proven its address, so that
    /// nothing is sent twice to the victim of a forged address.
    pace: Option<Arc<Pace>>,
    /// Bytes of the current transmit that have been sent, when the socket became full in its middle.
    sent_bytes: usize,
    /// Time and length in bytes of the last transmit.
    last: Option<(Instant, usize)>,
    /// Wait for room; set while the socket is full.
    room: Option<Room>,
}

impl std::fmt::Debug for LaneSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LaneSender").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl UdpSender for LaneSender {
    fn poll_send(self: Pin<&mut Self>, transmit: &Transmit<'_>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let segment = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
        let mut batch = segments_per_batch(segment) * segment;
        while this.sent_bytes < transmit.contents.len() {
            if let Some(room) = &mut this.room {
                let outcome = ready!(room.as_mut().poll(cx));
                this.room = None;
                outcome?;
            }
            let end = transmit.contents.len().min(this.sent_bytes + batch);
            let part = Transmit { contents: &transmit.contents[this.sent_bytes..end], ..transmit.clone() };
            match this.socket.try_send(&part) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    this.room = Some(this.socket.room()?);
                    continue;
                }
                Err(error) if noq::udp::is_msg_size_err(&error) && part.contents.len() > segment => {
                    // The route does not take this batch: send the datagrams one by one, so that none is lost
                    // unnoticed.
                    batch = segment;
                    continue;
                }
                // The datagrams count as lost; loss recovery handles them like any other loss.
                Err(error) => this.socket.trouble.note(&error),
            }
            this.sent_bytes = end;
        }
        this.sent_bytes = 0;
        this.repeat(transmit, segment);
        this.last = Some((Instant::now(), transmit.contents.len()));
        Poll::Ready(Ok(()))
    }

    /// Allows batches for data. A packet that may be a probe of a silent path is sent alone.
    ///
    /// Reason: noq-proto 1.4 cuts the second probe of a batch to the length of the first. It then writes frames
    /// without a check for room (IMMEDIATE_ACK, ACK), and panics if they do not fit. The whole process ends,
    /// because its destructors panic too.
    fn max_transmit_segments(&self) -> NonZeroUsize {
        match self.last {
            Some((at, bytes)) if bytes >= BURST_BYTES_MIN && at.elapsed() < BURST_PAUSE_MAX => {
                self.socket.state.max_gso_segments()
            }
            _ => NonZeroUsize::MIN,
        }
    }
}

impl LaneSender {
    /// Sends a transmit once more when the lane has unused rate. A copy that does not fit is skipped.
    fn repeat(&mut self, transmit: &Transmit<'_>, segment: usize) {
        if self.pace.is_none() {
            self.pace = self.socket.lanes.pace_to(transmit.destination);
        }
        let Some(pace) = &self.pace else { return };
        let datagrams = transmit.contents.len().div_ceil(segment);
        let fits = transmit.contents.len() <= BATCH_BYTES_MAX;
        if fits && pace.repeats(Instant::now(), datagrams as u64, transmit.contents.len() as u64) {
            match self.socket.try_send(transmit) {
                // The refusal of the first copy may be reported on the second.
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => self.socket.trouble.note(&error),
                _ => {}
            }
        }
    }
}

/// Length from which a transmit counts as data, in bytes. Reason: a full datagram of the smallest MTU, minus
/// headers.
const BURST_BYTES_MIN: usize = 1000;

/// Longest pause within a burst. Reason: a probe is sent at least 25 ms (the longest delay of an acknowledgement)
/// after the packet that it probes for.
const BURST_PAUSE_MAX: Duration = Duration::from_millis(10);

/// Returns how many datagrams of `segment` bytes the kernel takes at once.
fn segments_per_batch(segment: usize) -> usize {
    (BATCH_BYTES_MAX / segment).max(1)
}

/// Largest batch of datagrams for one system call, in bytes. Reason: the kernel takes it as one payload.
const BATCH_BYTES_MAX: usize = UDP_PAYLOAD_MAX;

/// Requested receive buffer, in bytes. Reason: a busy host may not read for 50 ms, which is 16 MB at 2.5 Gbit/s.
/// The kernel counts about twice the payload. UDP has no autotuning.
const RECEIVE_BUFFER_BYTES: usize = 32 << 20;

/// Requested send buffer, in bytes. Reason: a pacing interval of 10 ms at 2.5 Gbit/s is 3 MB.
const SEND_BUFFER_BYTES: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_batch_exceeds_what_udp_carries() {
        for segment in [1, 1200, 1452, 1472, 6550, 8952, 8972, 32_000, UDP_PAYLOAD_MAX, 65_527] {
            let count = segments_per_batch(segment);
            assert!(count >= 1);
            assert!(count == 1 || count * segment <= UDP_PAYLOAD_MAX, "{segment}: {count}");
        }
        assert_eq!(segments_per_batch(8952), 7);
    }
}
