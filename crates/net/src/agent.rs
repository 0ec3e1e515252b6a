//! Agent: owns storage roots, accepts lanes on one port (TCP and UDP), and runs the agent's end of sessions.
//!
//! Threads: one accepts TCP connections, one takes accepted QUIC lanes, and each lane has two. [`Agent::run`] ticks the
//! sessions and removes those that are over. A crash loses no received data: the journals beneath the roots record it.

mod beneath;
#[cfg(test)]
mod captured;
mod claim;
mod commission;
mod granted;
mod guests;
mod limiter;
mod log;
mod measured;
mod query;
mod revocation;
mod runner;
mod sessions;
mod third_party;
mod used_grants;

use std::collections::BTreeMap;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sterna_proto::compress::CompressionPolicy;
use sterna_proto::path_cache::DataDirection;
use sterna_proto::session::{ActiveEnd, Capabilities, Frame, Hello, LaneId, Probe, Query, Request};
use sterna_proto::{Error, ErrorKind, Phase, RelPath, Scope, Setting};
use tracing::{Level, Span, error_span};

use crate::arrivals::{ARRIVALS_MAX, Arrivals, Arrived};
use crate::buffer::BufferPool;
use crate::descriptors;
use crate::disk::{Access, Destination, History, Root, Sources, last_name};
use crate::handshakes::{HANDSHAKES_MAX, Handshakes, Slot};
use crate::identity::{Answer, Authorized, Fingerprint, Grant, Identity, PublicKey, Rights};
use crate::lane::{Lane, LaneHandle, LaneSink, LaneTx, quic, tcp};
use crate::lister::QueryPlace;
use crate::measure::{Measurements, is_measurement};
use crate::session::{
    ALIVE_EVERY, End, Expected, JoinedLane, Observer, Receiver, ReceiverOptions, SESSION_OVER, Sender, SessionSink,
    all_within, close_all, cut_all, spawn_feeder,
};
use crate::sink::{Discard, Place};
use crate::source::{Generated, Roots, SourcePlace};
use crate::wake::Wake;

pub use self::beneath::{Beneath, FileBeneath};
use self::claim::Claim;
pub use self::commission::{Commission, CommissionSpec, FileEnd, OutgoingFile, WebServers, Work};
use self::limiter::{Cause, Kind, Limiter, Origin, cut, warn_operator};
use self::log::{ONLY_ROOT, SessionLog};
pub use self::measured::OwnPlace;
use self::sessions::{AgentSession, Seat, SessionKey, Sessions, Started};
use self::third_party::Assignment;
pub use self::third_party::{Reachable, ThirdPartyRules};
use self::used_grants::seconds_since_1970;

/// Interval at which sessions are ticked while data of one of them moves.
const TICK: Duration = Duration::from_millis(250);

/// The same while no data moves. Reason: an agent has hundreds of sessions that mostly wait, and silent lanes are
/// detected within seconds.
const IDLE_TICK: Duration = Duration::from_secs(1);

/// Maximum time for the closes of QUIC lanes to leave this host. Guess: a busy host sends them within this time, and an
/// operator does not notice it.
const FAREWELL_TIME_MAX: Duration = Duration::from_millis(500);

/// Maximum time that a stop waits for journals. Reason: service managers kill after 90 s, and lanes are closed after
/// the wait.
const CHECKPOINTS_TIME_MAX: Duration = Duration::from_secs(30);

/// Storage root, as peers name it.
pub struct NamedRoot {
    /// First name of file paths in the root; `None`: the only root, in which all file paths start.
    pub name: Option<String>,
    /// Directory.
    pub root: Root,
}

/// Peers that may use the agent.
pub enum Admission {
    /// Fingerprints in a file, with their rights.
    Listed(Authorized),
    /// Every peer that can connect.
    Anybody,
    /// Only peers with a grant of a transfer service.
    Granted,
}

/// Options of an agent.
pub struct AgentOptions {
    /// Storage roots, at least one.
    pub roots: Vec<NamedRoot>,
    /// Address and port, TCP and UDP.
    pub listen: SocketAddr,
    /// Peers that may use the agent.
    pub admission: Admission,
    /// Time that a session waits without a lane before it fails.
    pub linger: Duration,
    /// Rules for third-party copies.
    pub third_party: ThirdPartyRules,
    /// Web servers that the agent uses for a transfer service.
    pub web: WebServers,
    /// UDP port of the packet trains and echoes of measurements; `None`: a free one for each measurement.
    pub measure_port: Option<u16>,
}

struct Shared {
    roots: Vec<NamedRoot>,
    admission: Admission,
    linger: Duration,
    third_party: ThirdPartyRules,
    web: WebServers,
    identity: Identity,
    sessions: Sessions,
    pool: Arc<BufferPool>,
    log: Arc<Limiter>,
    /// Keys of the transfer services whose grants count, by service.
    services: Mutex<BTreeMap<String, PublicKey>>,
    measurements: Arc<Measurements>,
    stopping: AtomicBool,
    /// Notified when a session starts, and when the agent is to stop.
    wake: Wake,
    handshakes: Arc<Handshakes>,
    history: Arc<History>,
}

/// Running agent.
pub struct Agent {
    shared: Arc<Shared>,
    quic: Arc<quic::Listener>,
    local_addr: SocketAddr,
}

impl Agent {
    /// Binds the port and starts to accept lanes.
    ///
    /// Logs events of `tracing`. The parent of an event of a session is a span with the session, its peer and its path.
    ///
    /// Errors: the port is in use, or the process has no permission to use it.
    pub fn start(options: AgentOptions, identity: Identity) -> Result<Self, Error> {
        let AgentOptions { roots, listen, admission, linger, third_party, web, measure_port } = options;
        let (tcp, quic) = bind_both(listen, &identity)?;
        let local_addr = quic.local_addr();
        let roots = roots.into_iter().map(|NamedRoot { name, root }| {
            let root = match &name {
                Some(name) => root.called(&format!("root {name}")),
                None => root.called(ONLY_ROOT),
            };
            NamedRoot { name, root }
        });
        let shared = Arc::new(Shared {
            roots: roots.collect(),
            admission,
            linger,
            third_party,
            web,
            identity: identity.clone(),
            sessions: Sessions::default(),
            pool: BufferPool::new(),
            log: Arc::default(),
            services: Mutex::default(),
            measurements: Arc::new(Measurements::new(measure_port)),
            stopping: AtomicBool::new(false),
            wake: Wake::default(),
            history: Arc::default(),
            // Each handshake has two descriptors. Handshakes and arrivals use half of the descriptors; the other half
            // is for sessions.
            handshakes: Handshakes::new(HANDSHAKES_MAX.min(descriptors::limit() / 8).max(1)),
        });
        let quic = Arc::new(quic);
        let identity = Arc::new(identity);
        let tcp_shared = Arc::clone(&shared);
        let arrivals = Arrivals::new(tcp, ARRIVALS_MAX.min(descriptors::limit() / 4).max(1))
            .map_err(|e| crate::internal("watch the port for connections").caused_by(e))?;
        spawn("accept-tcp", move || tcp_shared.accept_tcp(arrivals, &identity))?;
        let (quic_shared, quic_lanes) = (Arc::clone(&shared), Arc::clone(&quic));
        let alive = Arc::clone(&shared);
        spawn("keep-alive", move || alive.keep_alive())?;
        if matches!(shared.admission, Admission::Listed(_)) {
            let watching = Arc::clone(&shared);
            spawn("watch-rights", move || {
                if let Admission::Listed(list) = &watching.admission {
                    watching.watch_rights(list);
                }
            })?;
        }
        spawn("accept-quic", move || quic_shared.accept_quic(&quic_lanes))?;
        Ok(Self { shared, quic, local_addr })
    }

    /// Returns the address that the agent listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Returns the number of sessions, with those that have ended within the last tick.
    pub fn session_count(&self) -> usize {
        self.shared.sessions.all().len()
    }

    /// Returns the fingerprint by which peers know the agent.
    pub fn fingerprint(&self) -> Fingerprint {
        self.shared.identity.fingerprint()
    }

    /// Accepts the grants of a transfer service from now on, and those by its earlier key no more. The caller has
    /// authenticated it.
    pub fn trust_service(&self, service: &str, key: PublicKey) {
        self.shared.services.lock().insert(service.to_owned(), key);
    }

    /// Prepares a copy that a transfer service asks of this agent.
    ///
    /// Errors: `Denied`, `NotFound`, for the end of the copy at this agent; `Usage`.
    pub fn commission(&self, spec: CommissionSpec) -> Result<Commission, Error> {
        self.shared.commission(spec)
    }

    /// Lists the regular files beneath a directory for a transfer service at an address, until `cancel` is called.
    ///
    /// Errors: `Denied`, `NotFound`; `Usage`, for a path that is no directory.
    pub fn beneath(
        &self,
        service: (&Fingerprint, SocketAddr),
        path: &[u8],
        cancel: &crate::engine::Cancel,
    ) -> Result<Beneath, Error> {
        self.shared.beneath(service, path, cancel)
    }

    /// Deletes a file beneath the roots of this agent for a transfer service, unless it is younger than `age`.
    ///
    /// Errors: `NotFound`, `Denied`; `Changed`: it was written since; of the storage.
    pub fn delete_for(&self, service: &Fingerprint, path: Vec<u8>, age: Duration) -> Result<(), Error> {
        self.shared.delete_for(service, path, age)
    }

    /// Returns the web servers that this agent uses for a transfer service.
    pub fn web_servers(&self) -> &WebServers {
        &self.shared.web
    }

    /// Ends [`Agent::run`], also one that starts later.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.shared.wake.notify();
    }

    /// Ticks the sessions until [`Agent::stop`], then ends them. Received data is made durable.
    pub fn run(&self) {
        loop {
            let seen = self.shared.wake.seen();
            if self.shared.stopping.load(Ordering::Relaxed) {
                break;
            }
            let next = self.tick(Instant::now());
            self.shared.wake.wait_to(seen, Some(next));
        }
        self.quic.stop();
        let sessions = self.shared.sessions.all();
        let receivers = || sessions.iter().filter_map(|(_, session)| session.started()?.receiver.clone());
        all_within(CHECKPOINTS_TIME_MAX, receivers().map(|receiver| move || receiver.checkpoint()));
        let runners = sessions.iter().filter_map(|(_, session)| session.started()?.runner.clone());
        all_within(CHECKPOINTS_TIME_MAX, runners.map(|runner| move || runner.leave(CHECKPOINTS_TIME_MAX)));
        // Closes lanes, but does not abort sessions: clients connect to the restarted agent and resume there.
        close_all(sessions.iter().flat_map(|(_, session)| session.live.live()), "the agent is stopping");
        // Makes data durable that arrived meanwhile, and deletes part files that have none.
        all_within(CHECKPOINTS_TIME_MAX, receivers().map(|receiver| move || receiver.end_files()));
        // The close of a QUIC lane waits for its last frames, and would not leave before the process ends.
        cut_all(sessions.iter().flat_map(|(_, session)| session.live.live()), "the agent is stopping");
        self.quic.wait_until_ended(FAREWELL_TIME_MAX);
        sessions.iter().for_each(|(_, session)| session.log_end(Some("the agent is stopping")));
    }

    /// Ticks the sessions. Returns the time of the next tick.
    fn tick(&self, now: Instant) -> Instant {
        self.shared.log.tick(now);
        let (mut is_moving, mut next) = (false, now + IDLE_TICK);
        for (_, session) in self.shared.sessions.all() {
            let Some(started) = session.started() else { continue };
            started.end.tick();
            is_moving |= !session.listen(now);
            if started.receiver.is_none() {
                session.live.adapt_congestion().iter().for_each(|reason| started.log.detail(reason));
            }
            if session.is_over() {
                self.shared.sessions.remove(&session);
            } else {
                started.log.handle_lanes(session.lanes_joined(), now);
                next = started.end.deadline().map_or(next, |deadline| next.min(deadline));
            }
        }
        if is_moving { next.min(now + TICK) } else { next }
    }
}

/// Binds TCP and UDP to one port. Port 0: to a port that is free for both.
fn bind_both(listen: SocketAddr, identity: &Identity) -> Result<(TcpListener, quic::Listener), Error> {
    const PORT_TRIES: u32 = 16;
    let mut tries = 0;
    loop {
        tries += 1;
        let tcp = TcpListener::bind(listen).map_err(|e| {
            let kind = match e.kind() {
                std::io::ErrorKind::AddrInUse => ErrorKind::Busy,
                std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
                _ => ErrorKind::Io,
            };
            let text = format!("listen on TCP {listen}{}", why_not_listening(&e));
            Error::new(kind, Scope::Client, Phase::Prepare, text).about(&[Setting::Listen]).caused_by(e)
        })?;
        let bound = tcp.local_addr().map_err(|e| crate::internal("ask for the port that was bound").caused_by(e))?;
        match quic::Listener::bind(bound, identity, &quic::ListenerOptions::default()) {
            Ok(quic) => return Ok((tcp, quic)),
            Err(error) if listen.port() == 0 && error.kind == ErrorKind::Busy && tries < PORT_TRIES => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns advice for an operator if the agent cannot listen on an address. The error of the kernel follows it.
fn why_not_listening(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => ", where another program listens; stop that program or give another port",
        std::io::ErrorKind::AddrNotAvailable => ", which is not an address of this host; give one that is",
        std::io::ErrorKind::PermissionDenied => ", which is not allowed; give a port from 1024 on",
        _ => "",
    }
}

/// Returns the span of lines about a peer outside a session. Its level is that of errors, so that warnings have its
/// fields too.
fn peer_span(peer: &Fingerprint, from: SocketAddr) -> Span {
    error_span!("peer", peer = peer.short(), from = %from)
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(run);
    spawned.map(drop).map_err(|e| crate::no_thread("start a thread of the agent", e))
}

impl Shared {
    /// Accepts TCP connections until the agent stops.
    fn accept_tcp(self: &Arc<Self>, mut arrivals: Arrivals, identity: &Arc<Identity>) {
        while !self.stopping.load(Ordering::Relaxed) {
            let turned = arrivals.turn(TICK, |from, arrived| match arrived {
                Arrived::Ready(stream) => self.shake_hands(stream, from, identity),
                Arrived::Left => self.log_stranger_detail(&format!("{from} knocked and left without a ClientHello")),
                Arrived::Evicted => {
                    self.log_stranger(&format!("{from} sent no ClientHello and made room: too many knock"))
                }
            });
            if let Err(error) = turned {
                // Usually the process is out of descriptors: waits until lanes end.
                self.log_stranger(&format!("accept a TCP connection: {error}; trying again"));
                thread::sleep(TICK);
            }
        }
    }

    /// Starts the thread of a connection whose ClientHello has arrived.
    fn shake_hands(self: &Arc<Self>, stream: TcpStream, from: SocketAddr, identity: &Arc<Identity>) {
        let watched = match stream.try_clone() {
            Ok(watched) => watched,
            Err(e) => return self.log_stranger(&format!("accept a TCP connection: {e}")),
        };
        let slot = self.handshakes.begin(from.ip(), Instant::now(), move || {
            // The thread of the connection sees the end of the stream. An error means that the stream has ended
            // already.
            let _ = watched.shutdown(Shutdown::Both);
        });
        let (shared, identity) = (Arc::clone(self), Arc::clone(identity));
        // If the host refuses a thread, the connection is dropped and its client dials again.
        let _ = spawn("lane", move || {
            if is_measurement(&stream) {
                return shared.serve_measurement(stream, from, &identity, slot);
            }
            match tcp::accept(stream, &identity, &tcp::TcpOptions::default()) {
                Ok(lane) => shared.serve(lane.into_lane(), slot),
                Err(error) if slot.stays() => shared.log_handshake(&error),
                // Ended in favour of another handshake, and not logged: a flood must not fill the log.
                Err(_) => {}
            }
        });
    }

    /// Logs a handshake that failed. A peer that connects and leaves is logged as a detail. Reason: a client does that
    /// if its copy is done before its last lane is up.
    fn log_handshake(&self, error: &Error) {
        match error.kind {
            ErrorKind::Unreachable => self.log_stranger_detail(&cut(&error.chain())),
            _ => self.log_stranger(&cut(&error.chain())),
        }
    }

    fn log_stranger(&self, line: &str) {
        self.log.line(&Origin::strangers(), (Kind::Refusals, Level::WARN), line, Instant::now());
    }

    fn log_stranger_detail(&self, line: &str) {
        self.log.detail(&Origin::strangers(), line, Instant::now());
    }

    /// Sends keep-alives to clients, and ends lanes that send no hello in time. Runs in a separate thread: a session
    /// that hangs must not end the others, nor keep unknown peers connected.
    fn keep_alive(&self) {
        while !self.stopping.load(Ordering::Relaxed) {
            thread::sleep(ALIVE_EVERY);
            self.handshakes.end_late(Instant::now());
            self.sessions.all().iter().for_each(|(_, session)| session.live.say_alive());
        }
    }

    /// Takes accepted QUIC lanes until the listener stops.
    fn accept_quic(self: &Arc<Self>, listener: &quic::Listener) {
        while let Some(accepted) = listener.accept() {
            let lane = match accepted {
                Ok(lane) => lane,
                Err(error) => {
                    self.log_handshake(&error);
                    continue;
                }
            };
            let handle = Arc::clone(&lane.handle);
            let slot = self.handshakes.begin(handle.peer_addr().ip(), Instant::now(), move || {
                // Cuts the lane instead of an orderly close: a peer that acknowledges nothing would keep its thread
                // until the close ends.
                handle.cut("no hello came in time, or too many others knock");
            });
            let shared = Arc::clone(self);
            // If the host refuses a thread, the lane is dropped and its client dials again.
            let _ = spawn("lane", move || shared.serve(lane, slot));
        }
    }

    /// Serves one lane until it ends; the calling thread reads it. `slot` is released when the peer has sent its hello.
    fn serve(self: &Arc<Self>, lane: Lane, slot: Slot) {
        let Lane { peer, tx, rx, handle } = lane;
        let mut sink = AgentSink {
            shared: self,
            peer,
            handle: Arc::clone(&handle),
            tx: Some(tx),
            slot: Some(slot),
            joined: None,
            refused: false,
        };
        // Refuses an unauthorized peer at once: it may never send a hello.
        let outcome = match self.grant(&peer) {
            Ok(_) => Ok(()),
            // Its hello may have a grant of a service.
            Err(_) if !self.services.lock().is_empty() => Ok(()),
            Err(error) => sink.refuse(&error),
        };
        let outcome = outcome.and_then(|()| rx.run(&mut sink));
        handle.close("lane ended");
        let AgentSink { joined, slot, .. } = sink;
        let is_stranger = joined.is_none();
        if let Some(Joined { up, feeder, id, sink, seat }) = joined {
            drop((up, sink));
            // The feeder has sent its error through the lane; a panic has been reported by its thread.
            let _ = feeder.join();
            let session = Arc::clone(&seat.0);
            session.live.remove(&handle);
            session.live.share_rate();
            if handle.closed_by_peer().as_deref() == Some(SESSION_OVER) {
                session.handle_leave();
            }
            drop(seat);
            // Only a client that cut its lane causes this error. A close by this end does not: this end may be about to
            // restart, and the session must survive that. A client that closed every lane in order has left too.
            let is_cut = |error: &Error| (error.kind, error.scope) == (ErrorKind::Cancelled, Scope::Path);
            if outcome.as_ref().is_err_and(is_cut) || session.is_left() {
                // The client may have had no time to send this message. Without it, the session would hold its files
                // for the linger time.
                let left = Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Transfer, "its client has left");
                session.abort(&left);
            }
            if let Some(started) = session.started() {
                let reason = outcome.as_ref().err().map_or("closed by the client".to_owned(), Error::chain);
                started.log.lane_down(id, reason);
            }
        }
        let Err(error) = outcome else { return };
        let line = format!("{} at {}: {}", peer.short(), handle.peer_addr(), cut(&error.chain()));
        // Only breaches of the protocol are logged for the operator. Clients that leave and networks that fail are
        // normal.
        match (error.kind, slot.is_none_or(|slot| slot.stays())) {
            (ErrorKind::Protocol, true) if is_stranger => self.log_stranger(&line),
            (ErrorKind::Protocol, true) => {
                let origin = Origin { cause: Cause::Peer(peer), span: peer_span(&peer, handle.peer_addr()) };
                self.log.line(&origin, (Kind::Sessions, Level::WARN), &line, Instant::now());
            }
            (_, true) if is_stranger => self.log_stranger_detail(&line),
            _ => {}
        }
    }

    /// Returns the rights of a peer. Errors: the peer is not authorized.
    fn grant(&self, peer: &Fingerprint) -> Result<Grant, Error> {
        let granted = match &self.admission {
            Admission::Anybody => Some(Grant::everywhere(Rights::ReadWrite)),
            Admission::Granted => None,
            Admission::Listed(list) => {
                let Answer { grant, damage } = list.ask(peer);
                damage.iter().for_each(|text| warn_operator(text));
                grant
            }
        };
        granted.ok_or_else(|| {
            let text = format!(
                "{peer} is not authorized here: the operator of the agent must add a line with that fingerprint (alone for all \
                 rights, or with ro behind it to read only) to its list of authorized keys; the next try counts"
            );
            Error::new(ErrorKind::Untrusted, Scope::Client, Phase::Prepare, text).refusing_key(Some(peer.0))
        })
    }

    /// Returns a note for the log about a missing right, if the agent does not use the current contents of the list.
    /// Only the operator sees it.
    fn why_not_in_list(&self, error: &Error) -> String {
        let Admission::Listed(list) = &self.admission else { return String::new() };
        let is_of_rights = matches!(error.kind, ErrorKind::Untrusted | ErrorKind::Denied);
        let damage = list.why_not_in_use().filter(|_| is_of_rights);
        damage.map_or(String::new(), |damage| format!("; but {damage}"))
    }

    /// Reduces a grant to the rights of both peers: the peer asks on behalf of another one. The other key needs no
    /// proof, because it can only remove rights. Errors: the other peer is not authorized here.
    fn narrowed(&self, grant: Grant, peer: &Fingerprint, other: Fingerprint) -> Result<Grant, Error> {
        let others = match &self.admission {
            Admission::Anybody => return Ok(grant),
            Admission::Granted => None,
            Admission::Listed(list) => list.ask(&other).grant,
        };
        others.map(|others| grant.and(&others)).ok_or_else(|| {
            let text = format!(
                "{other}, for whom {} asks, is not authorized here: the operator of the agent must add a line with that \
                 fingerprint too; a copy between agents may do what both of them may",
                peer.short()
            );
            // A request in the other direction would get the same answer from this agent.
            Error::new(ErrorKind::Untrusted, Scope::Service, Phase::Prepare, text)
        })
    }

    /// Returns the present grant of the peer, if it suffices for a request. Errors: it does not.
    fn grant_for(&self, peer: &Fingerprint, claim: &Claim, request: &Request) -> Result<Grant, Error> {
        let grant = match claim {
            Claim::Own => self.grant(peer)?,
            Claim::OnBehalfOf(other) => self.narrowed(self.grant(peer)?, peer, *other)?,
            Claim::Granted { grant, is_running } => self.granted_by_service(peer, grant, request, *is_running)?,
        };
        match request {
            Request::Query(query) => self.query_places(query, &grant).map(drop)?,
            Request::Probe(_) => self.may_probe(&grant)?,
            copy => self.places(copy, &grant).map(drop)?,
        }
        Ok(grant)
    }

    /// Returns a seat in the session of a hello: the running session, or a new one. Checks the rights for each lane.
    fn session(self: &Arc<Self>, peer: Fingerprint, from: SocketAddr, hello: &Hello) -> Result<Seat, Error> {
        let key = (peer, hello.session);
        let running = self.sessions.find(&key, &hello.request);
        let claim = Claim::of(hello, running.is_some());
        let grant = self.grant_for(&peer, &claim, &hello.request).inspect_err(|error| {
            running.iter().for_each(|session| session.abort(error));
        })?;
        let seat = self.sessions.find_or_add(key, hello)?.seat()?;
        let session = &seat.0;
        let mut is_new = false;
        session
            .start(|| {
                is_new = true;
                self.start_once(&claim, &hello.request, || self.start_session(session, &key, from, &grant, hello))
            })
            .inspect_err(|_| self.sessions.remove(session))?;
        if is_new {
            // The pace of the ticks is that of a session with data from now on.
            self.wake.notify();
        }
        Ok(seat)
    }

    /// Starts a session. One that writes with a grant uses the grant up.
    fn start_once(
        &self,
        claim: &Claim,
        request: &Request,
        start: impl FnOnce() -> Result<Started, Error>,
    ) -> Result<Started, Error> {
        let Some(grant) = claim.used_up_by(request) else { return start() };
        self.sessions.used_grants.lock().take(grant, seconds_since_1970())?;
        start().inspect_err(|_| self.sessions.used_grants.lock().give_back(grant))
    }

    fn start_session(
        self: &Arc<Self>,
        session: &AgentSession,
        (peer, id): &SessionKey,
        from: SocketAddr,
        grant: &Grant,
        hello: &Hello,
    ) -> Result<Started, Error> {
        let AgentSession { request, .. } = session;
        let peer = *peer;
        let log = || Arc::new(SessionLog::start(&self.log, (&peer, id), from, hello, self.linger));
        match request {
            Request::Push { several, overwrite, checks, expect, dry_run, targets, .. } => {
                // A refused request logs the line of the refusal, and no session.
                let (root, paths) = one_root(self.places(request, grant)?)?;
                let destination = destination_of(&root, &paths, *several, !targets.is_empty())?;
                let expect = if targets.is_empty() { (*expect).into() } else { Expected::of_targets(targets) };
                destination.set_history(self.history.begin(peer));
                let (agent, log) = (Arc::downgrade(self), log());
                let receiver = Receiver::start(
                    ReceiverOptions {
                        overwrite: *overwrite,
                        checks: *checks,
                        expect,
                        dry_run: *dry_run,
                        linger: self.linger,
                        on_busy: Box::new(move |place| {
                            agent.upgrade().iter().for_each(|agent| agent.end_abandoned(&peer, place));
                        }),
                        ..ReceiverOptions::new(Arc::new(destination))
                    },
                    Arc::clone(&log) as Arc<dyn Observer>,
                )?;
                Ok(Started { end: Arc::clone(&receiver) as Arc<dyn End>, receiver: Some(receiver), log, runner: None })
            }
            Request::Pull { dry_run, compress, on_demand, numbered, .. } => {
                let (log, pool) = (log(), Arc::clone(&self.pool));
                let observer = Arc::clone(&log) as Arc<dyn Observer>;
                let places = self.places(request, grant)?;
                let source = match (*on_demand, *numbered) {
                    (true, _) => Roots::on_demand(places),
                    (false, true) => Roots::numbered(places),
                    (false, false) => Roots::new(places),
                };
                let end = Sender::start(source, self.linger, *dry_run, Arc::default(), *compress, pool, observer)?;
                Ok(Started { end, receiver: None, log, runner: None })
            }
            Request::ThirdParty(copy) => {
                self.third_party.check(&copy.passive)?;
                let log = log();
                let assignment = Assignment {
                    request: (**copy).clone(),
                    command: peer,
                    places: self.places(request, grant)?,
                    identity: self.identity.clone(),
                    path_cache: self.third_party.path_cache.clone(),
                    linger: self.linger,
                    deserted: self.sessions.deserted_copies(&peer, copy),
                };
                let runner = third_party::start(assignment, &log)?;
                Ok(Started { end: Arc::clone(runner.control()) as _, receiver: None, log, runner: Some(runner) })
            }
            Request::Query(query) => {
                let log = log();
                let runner = query::start(query.clone(), self.query_places(query, grant)?, self.linger, &log)?;
                Ok(Started { end: Arc::clone(runner.control()) as _, receiver: None, log, runner: Some(runner) })
            }
            Request::Probe(probe) => self.start_probe(*probe, log()),
        }
    }

    fn start_probe(&self, probe: Probe, log: Arc<SessionLog>) -> Result<Started, Error> {
        let observer = Arc::clone(&log) as Arc<dyn Observer>;
        match probe.direction {
            DataDirection::Out => {
                let sink = Arc::new(Discard::new(probe));
                let options = ReceiverOptions { linger: self.linger, ..ReceiverOptions::new(sink) };
                let receiver = Receiver::start(options, observer)?;
                Ok(Started { end: Arc::clone(&receiver) as Arc<dyn End>, receiver: Some(receiver), log, runner: None })
            }
            DataDirection::In => {
                let (source, pool) = (Generated::new(probe)?, Arc::clone(&self.pool));
                let compress = CompressionPolicy::Never;
                let end = Sender::start(source, self.linger, false, Arc::default(), compress, pool, observer)?;
                Ok(Started { end, receiver: None, log, runner: None })
            }
        }
    }

    /// Returns the places of a copy at this agent: its destination, or its sources. Queries and probes have none of
    /// them. Errors: the grant does not allow one of them.
    fn places(&self, request: &Request, grant: &Grant) -> Result<Vec<SourcePlace>, Error> {
        let place = |path: &[u8], needed| self.place(path, grant, needed);
        match request {
            Request::Push { targets, .. } if !targets.is_empty() => {
                targets.iter().map(|target| place(&target.path, Rights::ReadWrite)).collect()
            }
            Request::Push { destination, .. } => Ok(vec![place(destination, Rights::ReadWrite)?]),
            Request::Pull { sources, .. } => sources.iter().map(|source| place(source, Rights::Read)).collect(),
            Request::ThirdParty(copy) => match copy.active {
                ActiveEnd::Source => copy.sources.iter().map(|source| place(source, Rights::Read)).collect(),
                ActiveEnd::Destination => Ok(vec![place(&copy.destination, Rights::ReadWrite)?]),
            },
            Request::Query(_) | Request::Probe(_) => Ok(Vec::new()),
        }
    }

    /// Returns the place of a path. Errors: as [`Self::root_of`].
    fn place(&self, path: &[u8], grant: &Grant, needed: Rights) -> Result<SourcePlace, Error> {
        let (root, rest) = self.root_of(path, grant, needed)?;
        // A request for a whole named root uses the name of the root as the name of the directory.
        let whole = last_name(path).filter(|_| rest.iter().all(|&b| b == b'/'));
        let name = whole.map(RelPath::new).transpose()?;
        Ok(SourcePlace { root, pattern: rest.to_vec(), name })
    }

    /// Checks the right to a probe: a probe is about no file, and any right to read is enough. Errors: there is none.
    fn may_probe(&self, grant: &Grant) -> Result<(), Error> {
        let may_read = |root: &NamedRoot| grant.rights(root.name.as_deref().unwrap_or("")).may_read();
        if self.roots.iter().any(may_read) {
            return Ok(());
        }
        let text = format!("probe the path: not allowed to you, who may read nothing here; {GRANTED_BY}");
        Err(Error::new(ErrorKind::Denied, Scope::Service, Phase::Prepare, text))
    }

    /// Returns the places of a query. Errors: the grant does not allow one of them.
    fn query_places(&self, query: &Query, grant: &Grant) -> Result<Vec<QueryPlace>, Error> {
        let needed = if matches!(query, Query::List { .. }) { Rights::Read } else { Rights::Manage };
        let mut places = Vec::new();
        for path in query.paths() {
            let is_above_roots = path.iter().all(|&b| b == b'/') && self.roots.iter().all(|root| root.name.is_some());
            if is_above_roots && needed == Rights::Read {
                let named = self.roots.iter().filter_map(|named| Some((named.name.as_deref()?, &named.root)));
                for (name, root) in named.filter(|(name, _)| grant.rights(name).may_read()) {
                    let prefix = Some(RelPath::new(name.as_bytes())?);
                    places.push(QueryPlace { root: root.clone(), pattern: Vec::new(), prefix, levels_above: 1 });
                }
                continue;
            }
            let (root, rest) = self.root_of(path, grant, needed)?;
            let behind = path.len() - rest.len();
            let prefix =
                (behind > 0).then(|| RelPath::new(path[..behind].strip_suffix(b"/").unwrap_or(&path[..behind])));
            places.push(QueryPlace { root, pattern: rest.to_vec(), prefix: prefix.transpose()?, levels_above: 0 });
        }
        Ok(places)
    }

    /// Returns the root that `path` starts in, and the rest of `path`. Errors: there is no such root; the grant is
    /// below `needed`; the root is read-only, and names would change.
    fn root_of<'p>(&self, path: &'p [u8], grant: &Grant, needed: Rights) -> Result<(Root, &'p [u8]), Error> {
        let refused = |kind, text: String| {
            let scope = if needed == Rights::Read { Scope::Source } else { Scope::Destination };
            Err(Error::new(kind, scope, Phase::Prepare, text))
        };
        let (named, rest) = match self.roots.as_slice() {
            [only] if only.name.is_none() => (only, path),
            roots => {
                let end = path.iter().position(|&b| b == b'/').unwrap_or(path.len());
                let name = String::from_utf8_lossy(&path[..end]);
                let rest = path.get(end + 1..).unwrap_or_default();
                match roots.iter().find(|root| root.name.as_deref() == Some(&*name)) {
                    Some(root) => (root, rest),
                    None => return refused(ErrorKind::NotFound, no_such_root(&name, roots, grant)),
                }
            }
        };
        let rights = grant.rights(named.name.as_deref().unwrap_or(""));
        let root = &named.root;
        let tried = match needed {
            Rights::None | Rights::Read => "read from",
            Rights::ReadWrite => "write to",
            Rights::Manage => "delete or rename in",
        };
        if rights < needed {
            return refused(ErrorKind::Denied, format!("{tried} {root}: not allowed to you; {GRANTED_BY}"));
        }
        if needed == Rights::Manage && root.access() == Access::ReadOnly {
            return refused(ErrorKind::Denied, format!("{tried} {root}: this root is read-only"));
        }
        Ok((named.root.clone(), rest))
    }

    /// Ends the session of `peer` that holds `place` and has no client any more. Reason: another session wants the
    /// file.
    fn end_abandoned(&self, peer: &Fingerprint, place: &Place) {
        for session in self.sessions.of_peer(peer) {
            let Some(receiver) = session.started().and_then(|started| started.receiver.as_ref()) else { continue };
            if session.is_deserted() && receiver.holds(place) {
                let text = "another session of the same peer took over the destination";
                receiver.abort(Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Transfer, text));
            }
        }
    }
}

struct Joined {
    up: JoinedLane,
    feeder: thread::JoinHandle<Result<(), Error>>,
    id: LaneId,
    sink: SessionSink,
    seat: Seat,
}

/// Sink of a lane of the agent: waits for the hello, then passes everything to the session.
struct AgentSink<'a> {
    shared: &'a Arc<Shared>,
    peer: Fingerprint,
    handle: Arc<dyn LaneHandle>,
    tx: Option<Box<dyn LaneTx>>,
    /// Limits the time to the hello, and the number of lanes without a hello.
    slot: Option<Slot>,
    joined: Option<Joined>,
    /// True if the lane was refused and closes. Further data from the peer is read and discarded.
    refused: bool,
}

/// Advice for a user whose rights do not suffice.
const GRANTED_BY: &str = "the operator of the agent can grant it";

/// Returns the error text for a file path that starts in no root. Lists only roots that the peer may read.
/// Returns the destination of a push: a directory or a new name, or the targets of a numbered copy. Errors: as
/// [`Destination::resolve`].
fn destination_of(root: &Root, paths: &[Vec<u8>], several: bool, is_numbered: bool) -> Result<Destination, Error> {
    match paths {
        [path] if !is_numbered => Destination::resolve(root, path, if several { Sources::Many } else { Sources::One }),
        paths => Destination::numbered(root, paths.iter().map(Vec::as_slice)),
    }
}

/// Returns the root of places, and their paths in it. Errors: `Usage`: they are in several roots.
fn one_root(places: Vec<SourcePlace>) -> Result<(Root, Vec<Vec<u8>>), Error> {
    let root = places.first().ok_or_else(|| crate::internal("a copy to no place"))?.root.clone();
    if let Some(other) = places.iter().find(|place| !place.root.is_same(&root)) {
        let text = format!("the targets of one session are in {root} and in {}", other.root);
        return Err(Error::new(ErrorKind::Usage, Scope::Destination, Phase::Prepare, text));
    }
    Ok((root, places.into_iter().map(|place| place.pattern).collect()))
}

fn no_such_root(name: &str, roots: &[NamedRoot], grant: &Grant) -> String {
    let granted = roots.iter().filter_map(|root| root.name.as_deref()).filter(|name| grant.rights(name).may_read());
    let granted = match granted.collect::<Vec<_>>().join(", ") {
        names if names.is_empty() => format!("none is open to you; {GRANTED_BY}"),
        names => format!("begin the path with one of those that are open to you: {names}"),
    };
    match name {
        "" => format!("a path that names no root is not served here; {granted}"),
        name => format!("root {} is not served here; {granted}", cut(&format!("{name:?}"))),
    }
}

impl AgentSink<'_> {
    fn join(&mut self, frame: &[u8]) -> Result<(), Error> {
        let outcome = match Frame::decode(frame) {
            Ok(Some(Frame::Hello(hello))) => {
                // From here on the peer is known and the session counts the lane. Storage may take some time.
                self.slot = None;
                let seat = self.shared.session(self.peer, self.handle.peer_addr(), &hello);
                seat.map(|seat| (seat.0.rate_of(hello.path, hello.contract), seat))
            }
            Ok(_) => Err(Error::protocol("the first frame from the peer is not a hello")),
            Err(error) => Err(error),
        };
        let (rate, seat) = match outcome {
            Ok(seated) => seated,
            Err(error) => return self.refuse(&error),
        };
        self.handle.admit();
        let tx = self.tx.take().ok_or_else(|| crate::internal("a lane that has joined twice"))?;
        let session = &seat.0;
        let started = session.started().ok_or_else(|| crate::internal("a session that was never started"))?;
        let (id, end) = (session.lanes.next(), Arc::clone(&started.end));
        session.agree_rates(&*end);
        session.live.add(&self.handle, rate, false);
        session.live.share_rate();
        let up = JoinedLane::new(&end, id, &self.handle);
        let welcome = Some(Frame::Welcome(Capabilities::OURS));
        let feeder = spawn_feeder(Arc::clone(&end), id, tx, welcome, Arc::clone(&self.handle))?;
        started.log.lane_up(id, format_args!("{} from {}", self.handle.transport(), self.handle.peer_addr()));
        self.joined = Some(Joined { up, feeder, id, sink: SessionSink::new(end, id), seat });
        Ok(())
    }

    /// Sends the peer the reason of the refusal, and closes the lane.
    fn refuse(&mut self, error: &Error) -> Result<(), Error> {
        let reason = format!("{}{}", error.chain(), self.shared.why_not_in_list(error));
        let line = format!("refused {} at {}: {reason}", self.peer.short(), self.handle.peer_addr());
        match error.kind {
            // After a restart of the agent, the session that takes over logs its own lines.
            ErrorKind::SessionLost => self.shared.log_stranger_detail(&line),
            _ => {
                let span = peer_span(&self.peer, self.handle.peer_addr());
                let origin = Origin { cause: Cause::Strangers, span };
                self.shared.log.refusal(&origin, self.peer, (reason, &line), Instant::now());
            }
        }
        let mut tx = self.tx.take().ok_or_else(|| crate::internal("a lane that is refused twice"))?;
        self.refused = true;
        // The peer may be gone already. An orderly close lets the peer receive the reason before the end of the lane.
        let _ = tx.control(&Frame::Refuse(error.clone()).encode()).and_then(|()| tx.flush());
        self.handle.close("refused");
        Ok(())
    }

    /// Returns the sink of the session; `None` on a lane that was refused.
    fn sink(&mut self) -> Result<Option<&mut SessionSink>, Error> {
        match &mut self.joined {
            Some(joined) => Ok(Some(&mut joined.sink)),
            None if self.refused => Ok(None),
            None => Err(Error::protocol("a block from the peer before its hello")),
        }
    }
}

impl LaneSink for AgentSink<'_> {
    fn awaits_control(&self) -> bool {
        self.joined.is_none() && !self.refused
    }

    fn control(&mut self, frame: &[u8]) -> Result<(), Error> {
        match &mut self.joined {
            Some(joined) => {
                joined.sink.control(frame)?;
                joined.seat.0.follow_contracts();
                Ok(())
            }
            None if self.refused => Ok(()),
            None => self.join(frame),
        }
    }

    fn block_begin(&mut self, block: u64, header: &[u8], data_len: u64) -> Result<(), Error> {
        self.sink()?.map_or(Ok(()), |sink| sink.block_begin(block, header, data_len))
    }

    fn block_data(&mut self, block: u64, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.sink()?.map_or(Ok(()), |sink| sink.block_data(block, offset, data))
    }

    fn block_end(&mut self, block: u64, trailer: &[u8]) -> Result<(), Error> {
        self.sink()?.map_or(Ok(()), |sink| sink.block_end(block, trailer))
    }

    fn block_abandoned(&mut self, block: u64) -> Result<(), Error> {
        self.sink()?.map_or(Ok(()), |sink| sink.block_abandoned(block))
    }
}
