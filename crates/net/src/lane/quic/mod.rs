//! QUIC lanes: blocks over UDP at a given rate, for paths that lose packets.
//!
//! [`connect`] and [`Listener`] make [`Lane`]s from QUIC connections of the crate `noq`, with the rate control of this
//! project. Refuses to choose rates or the number of lanes. The engine reads the clock and passes it to
//! [`sterna_proto::rate`]. Each client lane has a separate UDP socket and thread. Reason: lanes spread over cores. The
//! engine's duplicate window (129 packets) also covers one lane only, so that it spans more time than a path reorders.
//! A listener has a socket and a thread per core.
//!
//! # On the wire
//! All numbers are big-endian. QUIC version 1, TLS 1.3, the ALPN of every lane, certificates in both directions.
//! - Bidirectional stream 0, which the client opens at once. The client first sends [`PREAMBLE`]. Then each end sends
//!   control frames, each `[u32 length][frame]`, length at most 256 KiB. The end of a direction means that no more
//!   control frames follow.
//! - A block travels in stretches of 1 MiB of its data; a block without data has one empty stretch. Each stretch has a
//!   separate unidirectional stream, from either end:
//!   `[u64 block][u64 data_len][u32 index][u32 header_len][header][data][trailer]`.
//!   `block` counts from 0 per lane and direction. `data_len` is the length of the whole block, at most 16 MiB. The
//!   header, at most 128 KiB, comes with index 0 only. The trailer, at most 64 KiB, comes with the last stretch only
//!   and extends to the end of its stream. Index 2^32 - 1 (no header, no data) abandons the block. A stream that is
//!   reset (code 1) belongs to an abandoned block.
//! - Close codes: 0 in order, with a reason for users; 1 the receiver could not continue, with a reason; 2 this end has
//!   left and did not wait to send its remaining data.

mod clock;
mod close;
mod credit;
mod fault;
#[cfg(test)]
mod floods;
mod listener;
mod pace;
mod receive;
mod send;
mod share;
mod shared;
mod shared_rate;
mod socket;
#[cfg(test)]
mod strangers;
mod stretch;
#[cfg(test)]
mod tests;
mod transport;
mod undelivered;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use noq::crypto::rustls::QuicClientConfig;
use noq::rustls::pki_types::CertificateDer;
use noq::{Connection, ConnectionError, Endpoint, EndpointConfig, PathId, RecvStream, SendStream, VarInt};
use sterna_proto::limit::{QuicSample, TransportSample};
use sterna_proto::{BitRate, ByteCount, Error, ErrorKind, Phase, Scope};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{Mutex, watch};

use crate::identity::{Fingerprint, Identity, peer_fingerprint};
use crate::lane::{Lane, LaneHandle, LaneStats, ReceiveMemory, Transport};
use crate::thread_clock::ThreadClock;

use clock::LaneRuntime;
use close::{CODE_LEFT, CODE_ORDERLY, shortened};
use credit::Credit;
pub use listener::{Listener, ListenerOptions};
use share::{Arriving, PathShare, RoundTrip};
use shared::Shared;
pub use shared_rate::SharedRate;
pub(crate) use stretch::{FuzzStep, fuzz as fuzz_stretches};
pub use transport::MEMORY_MIN;

/// Settings of [`connect`].
#[derive(Clone, Debug)]
pub struct QuicOptions {
    /// Address of the peer.
    pub remote: SocketAddr,
    /// Local address, for a host with several; `None` lets the system choose.
    pub local: Option<SocketAddr>,
    /// Rate that this lane shares with the other lanes of its session.
    pub rate: SharedRate,
    /// Number of lanes that share the rate, at least 1. A hint for the frequency of acknowledgements, the loss
    /// threshold, the first receive window and the size of reads.
    pub lanes: u32,
    /// Most memory that the lane may hold at each end; limits its flow-control windows. Twice the lane's share of
    /// the BDP carries the full rate.
    pub memory: ByteCount,
    /// Time limit for the connect and the handshake together.
    pub connect_timeout: Duration,
    /// Time without a packet after which a path is dead.
    pub idle_timeout: Duration,
    /// Largest UDP payload that MTU discovery tries.
    pub payload_max: u16,
}

impl QuicOptions {
    /// Creates the default options for a lane to `remote`.
    pub fn new(remote: SocketAddr, rate: SharedRate) -> Self {
        Self {
            remote,
            local: None,
            rate,
            lanes: 1,
            memory: MEMORY_DEFAULT,
            connect_timeout: CONNECT_TIMEOUT,
            idle_timeout: IDLE_TIMEOUT,
            payload_max: transport::PAYLOAD_MAX,
        }
    }

    fn hints(&self) -> transport::PathHints {
        let contract = self.rate.contract();
        let window = transport::receive_window_first(self.lanes, self.memory);
        transport::PathHints {
            rate: contract.ceiling.map(|rate| BitRate(rate.0 / u64::from(self.lanes.max(1)))),
            rtt: contract.expected_rtt,
            memory: self.memory,
            idle_timeout: self.idle_timeout,
            payload_max: self.payload_max,
            window,
            stretches: transport::stretches(window),
        }
    }
}

/// Connects a lane; blocks until the handshake is done.
///
/// Errors: `Unreachable` (refused, unreachable, no answer; worth a retry), `Untrusted` (TLS), `Protocol`. The
/// caller decides if the peer is trusted: see [`Lane::peer`].
pub fn connect(options: &QuicOptions, identity: &Identity) -> Result<Lane, Error> {
    let (report, outcome) = mpsc::sync_channel(1);
    let options = options.clone();
    let crypto = QuicClientConfig::try_from(identity.client_config()).map_err(|e| {
        Error::new(ErrorKind::Internal, Scope::Client, Phase::Prepare, "set TLS up for QUIC").caused_by(e)
    })?;
    let endpoint_config = transport::client_endpoint();
    let runtime = lane_runtime()?;
    let lane_thread = move || {
        let handle = runtime.handle().clone();
        runtime.block_on(async move {
            match dial(&options, crypto, endpoint_config, handle).await {
                Ok((lane, end)) => {
                    // The caller waits for this message. If it does not, dropping the lane closes it.
                    let _ = report.send(Ok(lane));
                    end.wait().await;
                }
                Err(error) => {
                    let _ = report.send(Err(error));
                }
            }
        });
    };
    spawn_named("quic-lane", lane_thread)?;
    outcome.recv().unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::Internal, Scope::Client, Phase::Prepare, "the thread of a QUIC lane ended early"))
    })
}

/// Keeps the thread of a lane running until the last bytes are sent and passed on.
struct LaneEnd {
    endpoint: Endpoint,
    pump: tokio::task::JoinHandle<()>,
}

impl LaneEnd {
    async fn wait(self) {
        let _ = self.pump.await;
        // The close itself still has to reach the peer.
        self.endpoint.wait_all_draining().await;
        let _ = tokio::time::timeout(CLOSE_GRACE, self.endpoint.wait_idle()).await;
    }
}

async fn dial(
    options: &QuicOptions,
    crypto: QuicClientConfig,
    endpoint_config: EndpointConfig,
    runtime: Handle,
) -> Result<(Lane, LaneEnd), Error> {
    let peer = options.remote;
    let local = options.local.unwrap_or_else(|| match peer {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    });
    let bound = socket::bind(local, socket::PortUse::Alone).map_err(|e| fault::socket_error("bind", local, e))?;
    // A connected socket reports refusals (ICMP), and the kernel looks up the route once.
    let route = socket::connect(&bound, peer).map_err(|e| fault::unreachable(e.kind(), peer))?;
    let hints = options.hints().through(route);
    let pace = pace::Pace::new(&options.rate);
    let socket = socket::LaneSocket::new(bound, Some(Arc::clone(&pace)), options.lanes)
        .map_err(|e| fault::socket_error("set up", local, e))?;
    let (trouble, socket_lanes) = (socket.trouble(), socket.lanes());
    let endpoint = Endpoint::new_with_abstract_socket(endpoint_config, None, Box::new(socket), Arc::new(LaneRuntime))
        .map_err(|e| fault::socket_error("drive", local, e))?;
    let mut config = noq::ClientConfig::new(Arc::new(crypto));
    config.transport_config(Arc::new(transport::transport(&hints, peer, Some(Arc::clone(&pace)))));
    let connecting = endpoint.connect_with(config, peer, SERVER_NAME).map_err(|e| {
        Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, format!("connect to {peer} by QUIC")).caused_by(e)
    })?;
    let connected = async {
        let connection = connecting.await.map_err(|e| fault::handshake_error(&e, peer))?;
        let (mut send, receive) = connection.open_bi().await.map_err(|e| fault::handshake_error(&e, peer))?;
        // The stream exists for the peer only with its first bytes.
        send.write_all(PREAMBLE).await.map_err(|e| Error::protocol(format!("greet {peer}")).caused_by(e))?;
        Ok((connection, send, receive))
    };
    let (connection, send, receive) = tokio::select! {
        connected = connected => connected?,
        kind = trouble.unreachable() => return Err(fault::unreachable(kind, peer)),
        () = tokio::time::sleep(options.connect_timeout) => return Err(fault::timed_out(peer, options.connect_timeout)),
    };
    socket_lanes.add(&connection, peer, &pace);
    let local_addr = endpoint.local_addr().unwrap_or(local);
    let memory = options.memory;
    let parts = LaneParts { connection, send, receive, pace, memory, credit: None, local_addr, peer_addr: peer };
    let (lane, pump) = assemble(parts, runtime)?;
    Ok((lane, LaneEnd { endpoint, pump }))
}

/// Connection with its control stream.
struct LaneParts {
    connection: Connection,
    send: SendStream,
    receive: RecvStream,
    pace: Arc<pace::Pace>,
    memory: ByteCount,
    /// Credit of a lane whose peer is not admitted yet; `None` when this end chose the peer.
    credit: Option<Credit>,
    local_addr: SocketAddr,
    peer_addr: SocketAddr,
}

/// Makes the lane of a connection and starts its tasks.
fn assemble(parts: LaneParts, runtime: Handle) -> Result<(Lane, tokio::task::JoinHandle<()>), Error> {
    let LaneParts { connection, send, receive, pace, memory, credit, local_addr, peer_addr } = parts;
    let peer = fingerprint_of(&connection, peer_addr)?;
    let path = connection.path(PathId::ZERO);
    let local_ip = path.and_then(|path| path.local_ip().ok().flatten()).unwrap_or(local_addr.ip());
    let _ = send.set_priority(CONTROL_PRIORITY);
    let shared = Arc::new(Shared {
        connection: connection.clone(),
        control: Arc::new(Mutex::new(send)),
        pace: Arc::clone(&pace),
        peer_addr,
        local_addr: SocketAddr::new(local_ip, local_addr.port()),
        runtime: runtime.clone(),
        closing: OnceLock::new(),
        header_bytes: transport::header_bytes(peer_addr),
        engine: ThreadClock::of_this_thread(),
        memory,
        receive_window: Arc::new(AtomicU64::new(0)),
        admitted: watch::Sender::new(credit.is_none()),
    });
    let (rx, inbox, room) = receive::receiver(Arc::clone(&shared));
    let announced = Arc::clone(&shared.receive_window);
    let windows = Windows { connection: connection.clone(), pace, memory, room, announced, receiving: None };
    runtime.spawn(windows.keep(shared.admitted.subscribe(), credit));
    runtime.spawn(probe_silence(connection.clone(), Arc::clone(&shared.pace)));
    let (orders, queue) = send::queue();
    runtime.spawn(send::feed(connection.clone(), queue, Arc::clone(&shared.pace)));
    let pump = runtime.spawn(receive::pump(connection, receive, inbox));
    let tx = send::QuicTx::new(Arc::clone(&shared), orders);
    let lane = Lane { peer, tx: Box::new(tx), rx: Box::new(rx), handle: Arc::new(QuicHandle(shared)) };
    Ok((lane, pump))
}

fn fingerprint_of(connection: &Connection, peer: SocketAddr) -> Result<Fingerprint, Error> {
    let identity = connection.peer_identity().and_then(|any| any.downcast::<Vec<CertificateDer<'static>>>().ok());
    match identity {
        Some(certificates) => peer_fingerprint(&certificates),
        None => Err(Error::new(
            ErrorKind::Untrusted,
            Scope::Path,
            Phase::Prepare,
            format!("QUIC lane to {peer}: the peer showed no certificate"),
        )),
    }
}

/// Windows and buffers of a lane.
struct Windows {
    connection: Connection,
    pace: Arc<pace::Pace>,
    memory: ByteCount,
    room: receive::Room,
    /// Receive window, as published to other threads.
    announced: Arc<AtomicU64>,
    /// Receive window, once it was sized from the path.
    receiving: Option<ByteCount>,
}

impl Windows {
    /// Sizes windows and buffers from the path while the lane lives. The send window follows the controller, and
    /// the receive window follows the received rate. All depend on the number of lanes that share the path. Until
    /// the peer is admitted, it gets only its `credit`.
    ///
    /// Started with the lane; wakes forty times a second, and when the peer is admitted; ends with the connection.
    async fn keep(mut self, mut admitted: watch::Receiver<bool>, mut credit: Option<Credit>) {
        let mut sending = ByteCount(0);
        let mut brought = RoundTrip::new(Instant::now(), self.connection.stats().udp_rx.bytes);
        let mut arriving = Arriving::new(self.pace.share());
        loop {
            let share = self.pace.share();
            // RTT of the empty path. A sink slower than the path makes the current RTT longer, and would get a
            // larger window.
            let rtt = self.pace.rtt_min();
            let rate = brought.rate(Instant::now(), self.connection.stats().udp_rx.bytes, rtt);
            arriving.report(Arc::clone(&share), rate);
            self.room.resize(transport::inbox_bytes(share.lanes()));
            let wanted = transport::send_window(&self.pace.state(), share.lanes(), self.memory);
            if wanted != sending {
                self.connection.set_send_window(wanted.0);
                sending = wanted;
            }
            let is_admitted = *admitted.borrow_and_update();
            if is_admitted && credit.take().is_some() {
                self.grant(transport::receive_window_first(share.lanes(), self.memory));
            }
            if is_admitted && !rtt.is_zero() {
                self.size_receive_window(rate, &share, rtt);
            }
            tokio::select! {
                _ = self.connection.closed() => return,
                () = tokio::time::sleep(WINDOWS_EVERY) => {}
                // `admitted` cannot change back, and a dropped lane closes its connection.
                Ok(()) = admitted.changed() => {}
            }
        }
    }

    /// Shrinks the window only when the round trip becomes known and when lanes join. A low rate at one moment is
    /// no reason to shrink a window that was larger before.
    fn size_receive_window(&mut self, rate: BitRate, share: &PathShare, rtt: Duration) {
        let wanted = transport::receive_window(rate, share, rtt, self.memory);
        let most = transport::receive_window_most(share.lanes(), share.most(), rtt);
        let window = self.receiving.map_or(wanted, |before| before.max(wanted).min(most));
        if self.receiving != Some(window) {
            self.grant(window);
            self.receiving = Some(window);
            self.announced.store(window.0, Ordering::Relaxed);
        }
    }

    fn grant(&self, window: ByteCount) {
        self.connection.set_receive_window(transport::varint(window.0));
        self.connection.set_max_concurrent_uni_streams(VarInt::from_u32(transport::stretches(window)));
    }
}

/// Probes a silent path, so that a path that works again is found at once.
///
/// Started with the lane; wakes every [`pace::PROBE_EVERY`]; ends with the connection.
async fn probe_silence(connection: Connection, pace: Arc<pace::Pace>) {
    loop {
        tokio::select! {
            _ = connection.closed() => return,
            () = tokio::time::sleep(pace::PROBE_EVERY) => {}
        }
        if pace.make_room_to_probe()
            && let Some(path) = connection.path(PathId::ZERO)
        {
            // A path that was closed meanwhile needs no probe.
            let _ = path.ping();
        }
    }
}

/// Access to the lane from any thread.
struct QuicHandle(Arc<Shared>);

impl LaneHandle for QuicHandle {
    fn transport(&self) -> Transport {
        Transport::Quic
    }

    fn local_addr(&self) -> SocketAddr {
        self.0.local_addr
    }

    fn peer_addr(&self) -> SocketAddr {
        self.0.peer_addr
    }

    fn stats(&self) -> LaneStats {
        let path = self.0.connection.path_stats(PathId::ZERO).unwrap_or_default();
        let headers = |datagrams: u64| datagrams * self.0.header_bytes;
        LaneStats {
            rtt: path.rtt,
            rtt_min: self.0.pace.rtt_min(),
            packets_sent: path.sent_packets - path.sent_plpmtud_probes.min(path.sent_packets),
            packets_lost: path.lost_packets - path.lost_plpmtud_probes.min(path.lost_packets),
            wire_bytes_sent: path.udp_tx.bytes + headers(path.udp_tx.datagrams),
            wire_bytes_received: path.udp_rx.bytes + headers(path.udp_rx.datagrams),
            window_bytes: self.0.pace.window().0,
            in_flight_bytes: self.0.pace.in_flight().0,
            mtu: path.current_mtu.saturating_add(self.0.header_bytes as u16),
        }
    }

    fn sample(&self) -> Option<TransportSample> {
        let stats = self.stats();
        let pace = &self.0.pace;
        let engine = self.0.engine.as_ref().and_then(ThreadClock::wanted);
        Some(TransportSample::Quic(QuicSample {
            engine: engine.unwrap_or_default(),
            sent: stats.packets_sent,
            lost: stats.packets_lost,
            wire_bytes: stats.wire_bytes_sent,
            heard: stats.wire_bytes_received,
            rtt: stats.rtt,
            rtt_min: stats.rtt_min,
            window: pace.window(),
            in_flight: pace.in_flight(),
            rate: pace.state().rate,
            state: pace.rate_state(),
            memory: self.0.memory,
        }))
    }

    fn receive_memory(&self) -> Option<ReceiveMemory> {
        let window = ByteCount(self.0.receive_window.load(Ordering::Relaxed));
        Some(ReceiveMemory { window, ..self.0.pace.receive_memory() })
    }

    fn handle_overrun(&self, packets: u64) {
        self.0.pace.handle_overrun(packets);
    }

    fn share_rate(&self, rate: &SharedRate) {
        self.0.pace.join(rate);
    }

    fn admit(&self) {
        self.0.admitted.send_replace(true);
    }

    fn closed_by_peer(&self) -> Option<String> {
        match self.0.connection.close_reason()? {
            ConnectionError::ApplicationClosed(close) => {
                Some(String::from_utf8_lossy(&close.reason).escape_debug().to_string())
            }
            _ => None,
        }
    }

    fn close(&self, reason: &str) {
        if self.0.closing.set(reason.into()).is_err() {
            return;
        }
        let shared = Arc::clone(&self.0);
        let reason = shortened(reason).to_vec();
        self.0.runtime.spawn(async move {
            let rtt = shared.connection.rtt(PathId::ZERO).unwrap_or_default();
            let delivered = async {
                let mut control = shared.control.lock().await;
                let _ = control.finish();
                let _ = control.stopped().await;
                shared.pace.undelivered.none().await;
            };
            let _ = tokio::time::timeout(CLOSE_GRACE + rtt, delivered).await;
            shared.close(CODE_ORDERLY, &reason);
        });
    }

    fn cut(&self, reason: &str) {
        let _ = self.0.closing.set(reason.into());
        self.0.pace.repeat_last();
        self.0.close(CODE_LEFT, shortened(reason));
    }

    fn wait_until_cut(&self, deadline: Instant) {
        let connection = &self.0.connection;
        // The engine (noq-proto 1.4) paces a close like data. It counts the frame in the turn that sends the packet,
        // and this call sees the count after that turn.
        while matches!(connection.close_reason(), Some(ConnectionError::LocallyClosed))
            && connection.stats().frame_tx.connection_close == 0
            && Instant::now() < deadline
        {
            thread::sleep(CUT_CHECK_INTERVAL);
        }
    }
}

fn lane_runtime() -> Result<Runtime, Error> {
    Builder::new_current_thread().enable_all().build().map_err(|e| {
        Error::new(ErrorKind::Limit, Scope::Client, Phase::Prepare, "start the runtime of a QUIC lane").caused_by(e)
    })
}

fn spawn_named(name: &str, body: impl FnOnce() + Send + 'static) -> Result<thread::JoinHandle<()>, Error> {
    thread::Builder::new().name(name.to_owned()).spawn(body).map_err(|e| {
        Error::new(ErrorKind::Limit, Scope::Client, Phase::Prepare, "start the thread of a QUIC lane").caused_by(e)
    })
}

/// First bytes of the control stream from the client: the lane protocol and its version.
pub const PREAMBLE: &[u8; 4] = b"STQ1";

/// Server name in the handshake; peers are identified by their keys.
const SERVER_NAME: &str = "sterna";

/// Priority of the control stream: control frames go before blocks.
const CONTROL_PRIORITY: i32 = 1;

/// Time that a close waits for data in progress, and then for the close itself (the contract of
/// `LaneHandle::close`).
const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// Interval at which the end of a lane that was cut is looked for. Reason: short compared with the pace of a packet.
const CUT_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Interval at which the windows follow the path. Reason: a lane has data for twice as long.
const WINDOWS_EVERY: Duration = Duration::from_millis(25);

/// Default limit of a lane's windows: 1 Gbit/s over 660 ms in one lane, with a reserve.
const MEMORY_DEFAULT: ByteCount = ByteCount::mebibytes(128);

/// Default time limit to connect: a handshake over 660 ms with some packets lost.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Default time without a packet after which a path is dead: a lane survives an outage of 10 s.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
