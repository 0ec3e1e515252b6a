//! The agent: owns storage roots, accepts lanes on one port (TCP and UDP), and runs the far end of sessions.
//!
//! Loops: one thread accepts TCP connections, one takes accepted QUIC lanes, each lane has its two threads, and
//! [`Agent::run`] ticks the sessions and forgets those that are over. Nothing is kept in memory that a crash would lose:
//! what has arrived is in the journals beneath the roots.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use sterna_proto::session::{Frame, Hello, Request, SessionId};
use sterna_proto::{BitRate, Error, ErrorKind, Phase, RelPath, Retry, Scope};

use crate::buffer::BufferPool;
use crate::disk::{Access, Destination, Root, Sources, last_name};
use crate::handshakes::Handshakes;
use crate::identity::{Authorized, Fingerprint, Grant, Identity, Rights};
use crate::lane::quic::{self, SharedBudget};
use crate::lane::{Lane, LaneHandle, LaneSink, LaneTx, Transport, tcp};
use crate::session::{
    AskedNames, End, JoinedLane, LaneIds, Lanes, Observer, Receiver, ReceiverOptions, Sender, SessionEvent,
    SessionSink, Source, lock, spawn_feeder,
};

/// Sessions at once. Reason: each may hold some tens of MB; a busy relay serves about a hundred clients.
const SESSIONS_MAX: usize = 512;

/// Silence after which the client of QUIC lanes counts as gone when its peer wants the same file in another session.
/// Reason: a client that lives says something every 5 s. A TCP lane of a killed client ends at once and need not be guessed.
const DESERTED_AFTER: Duration = Duration::from_secs(12);

/// How often sessions are looked after.
const TICK: Duration = Duration::from_millis(250);

/// A storage root as peers name it.
pub struct NamedRoot {
    /// The first name of paths to it; `None`: the only root, which paths start in.
    pub name: Option<String>,
    /// The directory.
    pub root: Root,
}

/// Who may use the agent.
pub enum Admission {
    /// Fingerprints in a file, with their rights.
    Listed(Authorized),
    /// Anybody who can connect.
    Anybody,
}

/// How an agent is set up.
pub struct AgentOptions {
    /// Storage roots, at least one.
    pub roots: Vec<NamedRoot>,
    /// Address and port, TCP and UDP.
    pub listen: SocketAddr,
    /// Who may use it.
    pub admission: Admission,
    /// How long a session outlives its last lane.
    pub linger: Duration,
}

/// Hears what an agent does, for its log.
pub trait AgentLog: Send + Sync {
    /// A peer did something; `line` is for people.
    fn line(&self, line: &str);
}

struct AgentSession {
    end: Arc<dyn End>,
    receiver: Option<Arc<Receiver>>,
    lanes: LaneIds,
    peer: Fingerprint,
    request: Request,
    /// The rate that the lanes of a sending session share.
    budget: SharedBudget,
    live: Lanes,
    heard: Mutex<Heard>,
}

/// When the client of a session was last heard, as far as ticks see it.
struct Heard {
    wire_bytes: u64,
    at: Instant,
}

type SessionKey = (Fingerprint, SessionId);

struct Shared {
    roots: Vec<NamedRoot>,
    admission: Admission,
    linger: Duration,
    sessions: Mutex<HashMap<SessionKey, Arc<AgentSession>>>,
    pool: Arc<BufferPool>,
    log: Arc<dyn AgentLog>,
    stopping: AtomicBool,
    handshakes: Handshakes,
}

/// A running agent.
pub struct Agent {
    shared: Arc<Shared>,
    quic: Arc<quic::Listener>,
    local_addr: SocketAddr,
}

impl Agent {
    /// Binds the port and starts to accept lanes.
    ///
    /// Errors: the port is taken or may not be used.
    pub fn start(options: AgentOptions, identity: Identity, log: Arc<dyn AgentLog>) -> Result<Self, Error> {
        let AgentOptions { roots, listen, admission, linger } = options;
        let (tcp, quic) = bind_both(listen, &identity)?;
        let local_addr = quic.local_addr();
        let shared = Arc::new(Shared {
            roots,
            admission,
            linger,
            sessions: Mutex::new(HashMap::new()),
            pool: BufferPool::new(),
            log,
            stopping: AtomicBool::new(false),
            handshakes: Handshakes::default(),
        });
        let quic = Arc::new(quic);
        let identity = Arc::new(identity);
        let tcp_shared = Arc::clone(&shared);
        spawn("accept-tcp", move || tcp_shared.accept_tcp(&tcp, &identity))?;
        let (quic_shared, quic_lanes) = (Arc::clone(&shared), Arc::clone(&quic));
        spawn("accept-quic", move || {
            while let Ok(lane) = quic_lanes.accept() {
                let shared = Arc::clone(&quic_shared);
                // Out of threads: the lane is dropped, and its client dials again.
                let _ = spawn("lane", move || shared.serve(lane));
            }
        })?;
        Ok(Self { shared, quic, local_addr })
    }

    /// The address that is listened on.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Looks after the sessions until `stop` says so, then ends them: what has arrived is made durable.
    pub fn run(&self, stop: impl Fn() -> bool) {
        while !stop() {
            thread::sleep(TICK);
            self.tick();
        }
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.quic.stop();
        let sessions: Vec<Arc<AgentSession>> =
            lock(&self.shared.sessions).drain().map(|(_, session)| session).collect();
        for session in sessions {
            // Lanes are cut and the session is not aborted: its client finds the next agent and goes on there.
            for handle in session.live.live() {
                handle.close("the agent is stopping");
            }
            session.receiver.iter().for_each(|receiver| receiver.checkpoint());
        }
    }

    fn tick(&self) {
        let sessions: Vec<(SessionKey, Arc<AgentSession>)> =
            lock(&self.shared.sessions).iter().map(|(key, session)| (*key, Arc::clone(session))).collect();
        for (key, session) in sessions {
            session.end.tick();
            session.listen();
            if session.receiver.is_none() {
                for reason in session.live.adapt_congestion() {
                    self.shared.log.line(&format!("session {} of {}: {reason}", short(&key.1), key.0));
                }
            }
            if session.end.is_over() {
                lock(&self.shared.sessions).remove(&key);
                self.shared.log.line(&format!("session {} of {} over", short(&key.1), key.0));
            }
        }
    }
}

/// Binds TCP and UDP to one port; with port 0, to one that both have free.
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
            Error::new(kind, Scope::Service, Phase::Prepare, format!("listen on {listen}, TCP")).caused_by(e)
        })?;
        let bound = tcp.local_addr().map_err(|e| crate::internal("ask for the port that was bound").caused_by(e))?;
        match quic::Listener::bind(bound, identity, &quic::ListenerOptions::default()) {
            Ok(quic) => return Ok((tcp, quic)),
            Err(error) if listen.port() == 0 && error.kind == ErrorKind::Busy && tries < PORT_TRIES => {}
            Err(error) => return Err(error),
        }
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(run);
    spawned.map(drop).map_err(|e| crate::internal("start a thread of the agent").caused_by(e))
}

fn short(session: &SessionId) -> String {
    session.0[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Shared {
    /// Accepts TCP connections for as long as the process runs.
    fn accept_tcp(self: &Arc<Self>, listener: &TcpListener, identity: &Arc<Identity>) {
        let mut number = 0;
        loop {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) => {
                    // Out of descriptors, as a rule: wait for lanes to end.
                    self.log.line(&format!("accept a TCP connection: {e}; trying again"));
                    thread::sleep(TICK);
                    continue;
                }
            };
            if self.stopping.load(Ordering::Relaxed) {
                return;
            }
            number += 1;
            if let Err(e) = self.handshakes.begin(number, &stream) {
                self.log.line(&format!("accept a TCP connection: {e}"));
                continue;
            }
            let (shared, identity) = (Arc::clone(self), Arc::clone(identity));
            let served = spawn("lane", move || {
                let lane = tcp::accept(stream, &identity, &tcp::TcpOptions::default());
                let stayed = shared.handshakes.end(number);
                match lane {
                    Ok(lane) => shared.serve(lane.into_lane()),
                    Err(error) if stayed => shared.log.line(&error.chain()),
                    // Ended in favour of another: a flood must not fill the log too.
                    Err(_) => {}
                }
            });
            if served.is_err() {
                self.handshakes.end(number);
            }
        }
    }

    /// Serves one lane until it ends; the calling thread reads it.
    fn serve(self: &Arc<Self>, lane: Lane) {
        let Lane { peer, tx, rx, handle } = lane;
        let mut sink =
            AgentSink { shared: self, peer, handle: Arc::clone(&handle), tx: Some(tx), joined: None, refused: false };
        let outcome = rx.run(&mut sink);
        handle.close("lane ended");
        if let Some(Joined { up, feeder, .. }) = sink.joined {
            drop(up);
            // The feeder has said why through the lane; a panic of it has been reported by its thread.
            let _ = feeder.join();
        }
        if let Err(error) = outcome {
            self.log.line(&format!("lane of {peer} from {}: {}", handle.peer_addr(), error.chain()));
        }
    }

    fn grant(&self, peer: &Fingerprint) -> Result<Grant, Error> {
        let granted = match &self.admission {
            Admission::Anybody => Some(Grant::everywhere(Rights::ReadWrite)),
            Admission::Listed(list) => list.grant(peer).map_err(|error| {
                self.log.line(&format!("nobody is let in: {}", error.chain()));
                let text = "the agent cannot read its list of authorized peers, and lets nobody in; its log says why";
                Error::new(error.kind, Scope::Service, Phase::Prepare, text)
            })?,
        };
        granted.ok_or_else(|| {
            let text = format!(
                "{peer} is not authorized here: its operator must add that line to the agent's --authorize file"
            );
            Error::new(ErrorKind::Untrusted, Scope::Client, Phase::Prepare, text)
        })
    }

    /// The session of a hello: the one that is running, or a new one.
    fn session(self: &Arc<Self>, peer: Fingerprint, hello: Hello) -> Result<Arc<AgentSession>, Error> {
        let grant = self.grant(&peer)?;
        let key = (peer, hello.session);
        let mut sessions = lock(&self.sessions);
        if let Some(session) = sessions.get(&key) {
            if session.request != hello.request {
                return Err(Error::protocol("hello from the peer: another request than the session has"));
            }
            return Ok(Arc::clone(session));
        }
        if hello.rejoin {
            let text =
                "the agent was restarted and does not know the session any more; a new one goes on from the journal";
            return Err(Error::new(ErrorKind::SessionLost, Scope::Path, Phase::Transfer, text).retry(Retry::After));
        }
        if sessions.len() >= SESSIONS_MAX {
            let text = format!("the agent serves {SESSIONS_MAX} sessions already; try again later");
            return Err(Error::new(ErrorKind::Limit, Scope::Service, Phase::Prepare, text).retry(Retry::After));
        }
        let session = Arc::new(self.start_session(peer, &grant, &hello.request)?);
        self.log.line(&format!("session {} of {peer}: {}", short(&key.1), described(&hello.request)));
        sessions.insert(key, Arc::clone(&session));
        Ok(session)
    }

    fn start_session(
        self: &Arc<Self>,
        peer: Fingerprint,
        grant: &Grant,
        request: &Request,
    ) -> Result<AgentSession, Error> {
        let observer: Arc<dyn Observer> = Arc::new(SessionLog { log: Arc::clone(&self.log), peer });
        let budget = SharedBudget::new(None);
        let (end, receiver): (Arc<dyn End>, _) = match request {
            Request::Push { destination, several, overwrite, checks, expect, dry_run } => {
                let (root, path) = self.root_of(destination, grant, Access::ReadWrite)?;
                let sources = if *several { Sources::Many } else { Sources::One };
                let agent = Arc::downgrade(self);
                let receiver = Receiver::start(
                    ReceiverOptions {
                        destination: Destination::resolve(&root, path, sources)?,
                        overwrite: *overwrite,
                        checks: *checks,
                        expect: *expect,
                        dry_run: *dry_run,
                        linger: self.linger,
                        leaves_first: false,
                        asked: AskedNames::Any,
                        settled: Arc::default(),
                        on_busy: Box::new(move |destination, path| {
                            agent.upgrade().iter().for_each(|agent| agent.end_abandoned(&peer, destination, path));
                        }),
                    },
                    observer,
                )?;
                (Arc::clone(&receiver) as Arc<dyn End>, Some(receiver))
            }
            Request::Pull { sources, rate_bps, loss_ceiling_ppm, dry_run } => {
                let mut found = Vec::with_capacity(sources.len());
                for source in sources {
                    let (root, path) = self.root_of(source, grant, Access::ReadOnly)?;
                    // A named root that is asked for by its name goes by that name, as any directory.
                    let whole = last_name(source).filter(|_| path.iter().all(|&b| b == b'/'));
                    let name = whole.map(RelPath::new).transpose()?;
                    found.push(Source { root, pattern: path.to_vec(), name });
                }
                let sender =
                    Sender::start(found, self.linger, *dry_run, Arc::default(), Arc::clone(&self.pool), observer)?;
                budget.set_rate((*rate_bps > 0).then_some(BitRate(*rate_bps)));
                budget.set_loss_ceiling(*loss_ceiling_ppm as f64 / 1e6);
                (sender as Arc<dyn End>, None)
            }
        };
        Ok(AgentSession {
            end,
            receiver,
            lanes: LaneIds::default(),
            peer,
            request: request.clone(),
            budget,
            live: Lanes::default(),
            heard: Mutex::new(Heard { wire_bytes: 0, at: Instant::now() }),
        })
    }

    /// The root that `path` starts in, and the rest of the path.
    fn root_of<'p>(&self, path: &'p [u8], grant: &Grant, access: Access) -> Result<(Root, &'p [u8]), Error> {
        let refused = |kind, text: String| {
            let scope = if access == Access::ReadOnly { Scope::Source } else { Scope::Destination };
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
                    None => {
                        let known: Vec<&str> = roots.iter().filter_map(|root| root.name.as_deref()).collect();
                        let text = format!("root {name:?} is not served here; served are {}", known.join(", "));
                        return refused(ErrorKind::NotFound, text);
                    }
                }
            }
        };
        let rights = grant.rights(named.name.as_deref().unwrap_or(""));
        let shown = named.name.as_deref().unwrap_or("/");
        match (access, rights) {
            (Access::ReadOnly, rights) if rights.may_read() => {}
            (Access::ReadWrite, rights) if rights.may_write() => {}
            (Access::ReadOnly, _) => {
                return refused(ErrorKind::Denied, format!("read from root {shown}: not allowed to you"));
            }
            (Access::ReadWrite, _) => {
                return refused(ErrorKind::Denied, format!("write to root {shown}: not allowed to you"));
            }
        }
        Ok((named.root.clone(), rest))
    }

    /// Ends the session of `peer` that holds `path` and whose client is gone: another wants the file.
    fn end_abandoned(&self, peer: &Fingerprint, destination: &Destination, path: &RelPath) {
        let sessions: Vec<Arc<AgentSession>> = lock(&self.sessions).values().cloned().collect();
        for session in sessions {
            let Some(receiver) = session.receiver.as_ref().filter(|_| session.peer == *peer) else { continue };
            if session.is_deserted() && receiver.holds(destination, path) {
                let text = "another session of the same peer took over the destination";
                receiver.abort(Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Transfer, text));
            }
        }
    }
}

impl AgentSession {
    /// Takes note of whether anything has come from the client.
    fn listen(&self) {
        let wire_bytes = self.live.live().iter().map(|lane| lane.stats().wire_bytes_received).sum();
        let mut heard = lock(&self.heard);
        if heard.wire_bytes != wire_bytes {
            *heard = Heard { wire_bytes, at: Instant::now() };
        }
    }

    /// Whether its client is gone, as far as can be told.
    fn is_deserted(&self) -> bool {
        let only_quic = || self.live.live().iter().all(|lane| lane.transport() == Transport::Quic);
        self.end.progress().lanes == 0 || only_quic() && lock(&self.heard).at.elapsed() > DESERTED_AFTER
    }
}

fn described(request: &Request) -> String {
    match request {
        Request::Push { destination, .. } => format!("push to {:?}", String::from_utf8_lossy(destination)),
        Request::Pull { sources, .. } => {
            let shown: Vec<_> = sources.iter().take(3).map(|s| String::from_utf8_lossy(s)).collect();
            format!("pull of {shown:?}{}", if sources.len() > 3 { " and more" } else { "" })
        }
    }
}

struct Joined {
    up: JoinedLane,
    feeder: thread::JoinHandle<Result<(), Error>>,
    sink: SessionSink,
}

/// What a lane calls: waits for the hello, then belongs to its session.
struct AgentSink<'a> {
    shared: &'a Arc<Shared>,
    peer: Fingerprint,
    handle: Arc<dyn LaneHandle>,
    tx: Option<Box<dyn LaneTx>>,
    joined: Option<Joined>,
    /// The lane has been told that it is not wanted, and closes; what still comes is read past.
    refused: bool,
}

impl AgentSink<'_> {
    fn join(&mut self, frame: &[u8]) -> Result<(), Error> {
        let outcome = match Frame::decode(frame) {
            Ok(Frame::Hello(hello)) => self.shared.session(self.peer, hello),
            Ok(_) => Err(Error::protocol("the first frame from the peer is not a hello")),
            Err(error) => Err(error),
        };
        let mut tx = self.tx.take().ok_or_else(|| crate::internal("a lane that has joined twice"))?;
        let session = match outcome {
            Ok(session) => session,
            Err(error) => {
                self.shared.log.line(&format!("lane of {} refused: {}", self.peer, error.chain()));
                // The peer may be gone already. Closing in order lets it hear the reason before the end.
                let _ = tx.control(&Frame::Refuse(crate::copy_of(&error)).encode()).and_then(|()| tx.flush());
                self.refused = true;
                self.handle.close("refused");
                return Ok(());
            }
        };
        let id = session.lanes.next();
        let end = Arc::clone(&session.end);
        session.live.add(&self.handle, false);
        session.live.share_rate(&session.budget);
        let up = JoinedLane::new(&end, id, &self.handle);
        let feeder = spawn_feeder(Arc::clone(&end), id, tx, Some(Frame::Welcome), Arc::clone(&self.handle))?;
        self.joined = Some(Joined { up, feeder, sink: SessionSink::new(end, id) });
        Ok(())
    }

    /// The sink of the session; `None` on a lane that was refused.
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
            Some(joined) => joined.sink.control(frame),
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

/// Writes what happens in a session to the log of the agent.
struct SessionLog {
    log: Arc<dyn AgentLog>,
    peer: Fingerprint,
}

impl Observer for SessionLog {
    fn session_event(&self, event: SessionEvent) {
        use sterna_proto::session::FileOutcome;
        let line = match event {
            SessionEvent::Settled { entry, outcome: FileOutcome::Done(_) } => format!("done {}", entry.path),
            SessionEvent::Settled { entry, outcome: FileOutcome::Skipped } => format!("up to date {}", entry.path),
            SessionEvent::Settled { entry, outcome: FileOutcome::Failed(e) } => {
                format!("failed {}: {}", entry.path, e.chain())
            }
            SessionEvent::Notice(text) => text,
            SessionEvent::Unreadable(error) | SessionEvent::Aborted(error) => error.chain(),
        };
        self.log.line(&format!("{}: {line}", self.peer));
    }
}
