//! Accepting side: several sockets on one port, each with a thread.

use std::net::SocketAddr;
use std::sync::{Arc, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use noq::crypto::rustls::QuicServerConfig;
use noq::{Connection, Endpoint, EndpointConfig, Incoming, PathId, ServerConfig};
use parking_lot::Mutex;
use sterna_proto::{ByteCount, Error, ErrorKind, Phase, Scope};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::watch;

use super::clock::LaneRuntime;
use super::close::CODE_FAULT;
use super::credit::{Credit, CreditPool};
use super::pace::PaceController;
use super::socket::{LaneSocket, PortUse, SocketLanes};
use super::{CLOSE_GRACE, IDLE_TIMEOUT, LaneParts, MEMORY_DEFAULT, PREAMBLE, assemble, fault, transport};
use crate::handshakes::Handshakes;
use crate::identity::Identity;
use crate::lane::Lane;

/// Settings of the lanes that a [`Listener`] accepts; `QuicOptions` explains the terms.
#[derive(Clone, Debug)]
pub struct ListenerOptions {
    /// Most memory that one lane may hold.
    pub memory: ByteCount,
    /// Time without a packet after which a path is dead.
    pub idle_timeout: Duration,
    /// Largest UDP payload that MTU discovery tries.
    pub payload_max: u16,
    /// Most handshakes in progress on a socket; a handshake ends with the first bytes of the control stream.
    pub handshakes_max: usize,
}

impl Default for ListenerOptions {
    fn default() -> Self {
        Self {
            memory: MEMORY_DEFAULT,
            idle_timeout: IDLE_TIMEOUT,
            payload_max: transport::PAYLOAD_MAX,
            handshakes_max: HANDSHAKES_MAX,
        }
    }
}

/// Accepts QUIC lanes on one UDP port. Dropping it refuses new lanes; accepted lanes continue.
pub struct Listener {
    local_addr: SocketAddr,
    /// Accepted lanes; `None`: the listener was stopped.
    lanes: Mutex<mpsc::Receiver<Option<Result<Lane, Error>>>>,
    /// Sender of the sockets to that queue, while one of them is open.
    accepted: Weak<mpsc::SyncSender<Option<Result<Lane, Error>>>>,
    /// Closed when all sockets have ended.
    ended: Mutex<mpsc::Receiver<()>>,
    stop: watch::Sender<bool>,
}

impl Listener {
    /// Binds `addr` with a socket and a thread for each core, at most [`SOCKETS_MAX`].
    ///
    /// Errors: `Busy` when the port is taken, `Denied`, `Io`.
    pub fn bind(addr: SocketAddr, identity: &Identity, options: &ListenerOptions) -> Result<Self, Error> {
        let crypto = QuicServerConfig::try_from(identity.server_config()).map_err(|e| {
            Error::new(ErrorKind::Internal, Scope::Client, Phase::Prepare, "set TLS up for QUIC").caused_by(e)
        })?;
        let crypto = Arc::new(crypto);
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let (sender, lanes) = mpsc::sync_channel(ACCEPTED_WAITING_MAX);
        let sender = Arc::new(sender);
        let (stop, stopped) = watch::channel(false);
        let (running, ended) = mpsc::channel::<()>();
        let mut local_addr = addr;
        let credit = CreditPool::new();
        for index in 0..cores.min(SOCKETS_MAX) {
            let bound = super::socket::bind(local_addr, PortUse::Shared)
                .map_err(|e| fault::socket_error("listen on", local_addr, e))?;
            // With port 0, the system chooses a port for the first socket, which the others share.
            local_addr = bound.local_addr().ok().and_then(|a| a.as_socket()).unwrap_or(local_addr);
            let runtime = super::lane_runtime()?;
            let (endpoint, socket_lanes) = open(
                &runtime,
                bound,
                transport::listener_endpoint(identity, index),
                // Default settings; each lane gets separate ones.
                server_config(crypto.clone(), options, local_addr, &credit.take(ByteCount(0))),
            )
            .map_err(|e| fault::socket_error("listen on", local_addr, e))?;
            let door = Door {
                crypto: Arc::clone(&crypto),
                options: options.clone(),
                lanes: Arc::clone(&sender),
                stopped: stopped.clone(),
                local_addr,
                handshakes: Handshakes::new(options.handshakes_max),
                credit: credit.clone(),
                socket_lanes,
            };
            let running = running.clone();
            super::spawn_named("quic-listen", move || {
                let handle = runtime.handle().clone();
                runtime.block_on(door.serve(endpoint, handle));
                drop(running);
            })?;
        }
        Ok(Self {
            local_addr,
            lanes: Mutex::new(lanes),
            accepted: Arc::downgrade(&sender),
            stop,
            ended: Mutex::new(ended),
        })
    }

    /// Returns the local address, with the port that the system chose.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Waits for the next lane whose handshake is done, or for the error of a failed handshake. Callable from
    /// several threads. The peer can send little until `LaneHandle::admit`.
    ///
    /// Returns `None` after [`Listener::stop`].
    pub fn accept(&self) -> Option<Result<Lane, Error>> {
        let lanes = self.lanes.lock();
        if *self.stop.borrow() {
            return None;
        }
        // An error: all sockets have ended.
        lanes.recv().ok().flatten()
    }

    /// Waits until the sockets have ended, which follows the end of their lanes after [`Listener::stop`]: the closes of
    /// lanes have then left this host. Waits for at most `time_max`.
    pub fn wait_until_ended(&self, time_max: Duration) {
        // Nothing is sent on this channel: it closes when the last socket ends.
        let _ = self.ended.lock().recv_timeout(time_max);
    }

    /// Refuses new lanes from now on and ends every [`Listener::accept`].
    pub fn stop(&self) {
        self.stop.send_replace(true);
        // If the queue is full, no thread waits for it. The next call returns at once.
        self.accepted.upgrade().into_iter().for_each(|accepted| drop(accepted.try_send(None)));
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop();
    }
}

fn open(
    runtime: &Runtime,
    bound: socket2::Socket,
    endpoint_config: EndpointConfig,
    config: ServerConfig,
) -> std::io::Result<(Endpoint, SocketLanes)> {
    let _guard = runtime.enter();
    let socket = LaneSocket::new(bound, None, 1)?;
    let lanes = socket.lanes();
    let runtime = Arc::new(LaneRuntime);
    Ok((Endpoint::new_with_abstract_socket(endpoint_config, Some(config), Box::new(socket), runtime)?, lanes))
}

/// Returns the settings of a lane from `peer`, which has this credit until it is admitted.
fn server_config(
    crypto: Arc<QuicServerConfig>,
    options: &ListenerOptions,
    peer: SocketAddr,
    credit: &Credit,
) -> ServerConfig {
    let hints = transport::PathHints {
        rate: None,
        rtt: None,
        memory: options.memory,
        idle_timeout: options.idle_timeout,
        payload_max: options.payload_max,
        window: credit.window(),
        stretches: credit.streams(),
    }
    .through(super::socket::payload_towards(peer));
    let mut config = ServerConfig::with_crypto(crypto);
    config
        .transport_config(Arc::new(transport::transport(&hints, peer, None)))
        // Another address may belong to another of our sockets, which does not have the lane. The client redials
        // instead.
        .migration(false)
        .max_incoming(INCOMING_MAX)
        .incoming_buffer_size(INCOMING_BYTES_MAX)
        .incoming_buffer_size_total(INCOMING_BYTES_MAX * 64);
    config
}

/// Accepts the connections of one socket.
struct Door {
    crypto: Arc<QuicServerConfig>,
    options: ListenerOptions,
    lanes: Arc<mpsc::SyncSender<Option<Result<Lane, Error>>>>,
    stopped: watch::Receiver<bool>,
    local_addr: SocketAddr,
    handshakes: Arc<Handshakes>,
    credit: CreditPool,
    socket_lanes: SocketLanes,
}

impl Door {
    /// Accepts until it is stopped, then waits until its lanes have ended.
    ///
    /// Started by `Listener::bind` on a separate thread; woken by packets; a turn is one connection attempt.
    async fn serve(mut self, endpoint: Endpoint, runtime: Handle) {
        loop {
            let incoming = tokio::select! {
                incoming = endpoint.accept() => incoming,
                _ = self.stopped.wait_for(|stopped| *stopped) => None,
            };
            let Some(incoming) = incoming else { break };
            self.admit(incoming, &runtime);
        }
        close(endpoint).await;
    }

    /// Starts a handshake. While many are in progress, first requires each address to prove itself.
    fn admit(&self, incoming: Incoming, runtime: &Handle) {
        if self.handshakes.count() >= HANDSHAKES_UNPROVEN_MAX && !incoming.remote_address_validated() {
            // A second retry is never needed: a validated address does not come here.
            let _ = incoming.retry();
            return;
        }
        let (cut, mut is_cut) = watch::channel(false);
        let slot = self.handshakes.begin(incoming.remote_address().ip(), Instant::now(), move || {
            cut.send_replace(true);
        });
        let (lanes, socket_lanes) = (self.lanes.clone(), self.socket_lanes.clone());
        let runtime_of_lane = runtime.clone();
        let peer = incoming.remote_address();
        let (memory, local_addr) = (self.options.memory, self.local_addr);
        let credit = self.credit.take(transport::receive_window_first(1, memory));
        let config = Arc::new(server_config(Arc::clone(&self.crypto), &self.options, peer, &credit));
        runtime.spawn(async move {
            let greet = greet(incoming, config, credit, memory, local_addr);
            let greeted = tokio::select! {
                greeted = tokio::time::timeout(HANDSHAKE_TIMEOUT, greet) => greeted,
                // Ended in favour of another handshake, without a report: a flood must not fill the log too.
                // Dropping the connection closes it.
                _ = is_cut.changed() => return,
            };
            drop(slot);
            let parts = match greeted {
                Ok(Ok(parts)) => parts,
                // Reported to the caller of `accept`, for its log. While accepted lanes fill the queue, the report
                // is dropped.
                Ok(Err(error)) => return drop(lanes.try_send(Some(Err(error)))),
                Err(_) => return drop(lanes.try_send(Some(Err(fault::timed_out(peer, HANDSHAKE_TIMEOUT))))),
            };
            let connection = parts.connection.clone();
            socket_lanes.add(&parts.connection, parts.peer_addr, &parts.pace);
            let Ok((lane, _pump)) = assemble(parts, runtime_of_lane) else { return };
            if lanes.try_send(Some(Ok(lane))).is_err() {
                connection.close(CODE_FAULT, b"too many lanes wait to be taken");
            }
        });
    }
}

/// Waits until the lanes of an endpoint have ended, and refuses new ones.
///
/// The endpoint keeps its server configuration. Without it, the endpoint panics at the second datagram of a dial that
/// nobody has taken (noq-proto 1.4.0).
pub(super) async fn close(endpoint: Endpoint) {
    let refuse = async {
        while let Some(incoming) = endpoint.accept().await {
            incoming.refuse();
        }
    };
    let lanes_end = async {
        endpoint.wait_all_draining().await;
        let _ = tokio::time::timeout(CLOSE_GRACE, endpoint.wait_idle()).await;
    };
    tokio::select! { () = refuse => {}, () = lanes_end => {} }
}

async fn greet(
    incoming: Incoming,
    config: Arc<ServerConfig>,
    credit: Credit,
    memory: ByteCount,
    local_addr: SocketAddr,
) -> Result<LaneParts, Error> {
    let peer = incoming.remote_address();
    let connection = incoming.accept_with(config).map_err(|e| fault::handshake_error(&e, peer))?;
    let connection = connection.await.map_err(|e| fault::handshake_error(&e, peer))?;
    let ungreeted = Ungreeted(Some(connection.clone()));
    let (send, mut receive) = connection.accept_bi().await.map_err(|e| fault::handshake_error(&e, peer))?;
    let mut preamble = [0; PREAMBLE.len()];
    let greeted = receive.read_exact(&mut preamble).await;
    if greeted.is_err() || preamble != *PREAMBLE {
        connection.close(CODE_FAULT, b"this port serves sterna's lane protocol, version 1");
        return Err(Error::protocol(format!("QUIC lane from {peer}: not a lane")));
    }
    let controller =
        connection.congestion_state(PathId::ZERO).and_then(|c| c.into_any().downcast::<PaceController>().ok());
    let Some(controller) = controller else {
        return Err(Error::new(ErrorKind::Internal, Scope::Path, Phase::Prepare, "a lane has lost its controller"));
    };
    let pace = controller.pace();
    ungreeted.greeted();
    Ok(LaneParts { connection, send, receive, pace, memory, credit: Some(credit), local_addr, peer_addr: peer })
}

/// Connection that has not become a lane yet. Dropping it sends a close, because for the peer the handshake was
/// over.
struct Ungreeted(Option<Connection>);

impl Ungreeted {
    /// Marks the connection as a lane, which stays open.
    fn greeted(mut self) {
        self.0 = None;
    }
}

impl Drop for Ungreeted {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            connection.close(CODE_FAULT, b"the first words of the lane took too long, or too many others knock");
        }
    }
}

/// Most sockets on the port. Guess: four cores process more packets than the path of one agent carries.
pub(super) const SOCKETS_MAX: usize = 4;

/// Handshakes in progress on a socket: before an address has to prove itself, and at most. Reason: beyond the
/// first, a flood has to use its real addresses. Beyond the second, one handshake ends to make room, most likely
/// one of a crowded network (`crowd`). An honest lane needs a round trip here once its address is proven; see the
/// arithmetic of `handshakes`, for each socket.
const HANDSHAKES_UNPROVEN_MAX: usize = 32;
const HANDSHAKES_MAX: usize = 1024;

/// Time limit for a handshake, with the first bytes of the control stream. Reason: 660 ms paths with losses need
/// some seconds.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Connection attempts, and bytes of their early packets, that wait to be processed.
const INCOMING_MAX: usize = 512;
const INCOMING_BYTES_MAX: u64 = 64 << 10;

/// Most lanes that wait for [`Listener::accept`].
const ACCEPTED_WAITING_MAX: usize = 64;
