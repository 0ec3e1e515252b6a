//! The sessions of an agent: at most so many, fewer of one peer, and each started once by the first lane that asks.
//!
//! What it does: finds and adds sessions, counts their lanes, tells which have lost their client. What it refuses to do:
//! touch storage. A session is started by its caller, and while storage hangs only the lanes of that session wait for it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use sterna_proto::plan::LANES_MAX;
use sterna_proto::rate::RateContract;
use sterna_proto::session::{Hello, PathNumber, Request, SessionId, ThirdParty};
use sterna_proto::{BitRate, Error, ErrorKind, Phase, Retry, Scope};

use super::log::SessionLog;
use super::third_party::Runner;
use crate::identity::Fingerprint;
use crate::lane::quic::SharedRate;
use crate::session::{End, LaneIds, Lanes, Receiver, lock};

/// Sessions at once. Reason: each may hold some tens of MB; a busy relay serves about a hundred clients.
const SESSIONS_MAX: usize = 512;

/// Sessions of one peer at once. Reason: a host that copies many things at once runs some tens of them, and it takes eight
/// such hosts to fill an agent.
const SESSIONS_OF_PEER_MAX: usize = 64;

/// Silence after which a client counts as gone when its peer wants the same file in another session, or more sessions than
/// it may have. Reason: a client that lives says something every 2 s on each lane.
const DESERTED_AFTER: Duration = Duration::from_secs(6);

/// What names a session: its client and the number that this client gave it.
pub(super) type SessionKey = (Fingerprint, SessionId);

/// The end of a session that runs here.
pub(super) struct Started {
    pub(super) end: Arc<dyn End>,
    /// The same, when the session receives.
    pub(super) receiver: Option<Arc<Receiver>>,
    pub(super) log: Arc<SessionLog>,
    /// The copy that runs, when the session is of a command that asked for one.
    pub(super) runner: Option<Arc<Runner>>,
}

/// A session, from its first hello on.
pub(super) struct AgentSession {
    pub(super) peer: Fingerprint,
    /// The command that the peer acts for.
    pub(super) on_behalf_of: Option<Fingerprint>,
    pub(super) request: Request,
    pub(super) lanes: LaneIds,
    /// The rate of each path that the client's lanes have come on.
    rates: Mutex<HashMap<PathNumber, SharedRate>>,
    pub(super) live: Lanes,
    started: OnceLock<Started>,
    /// Held while the session is being started; then why that failed, if it did.
    failure: Mutex<Option<Error>>,
    /// Lanes that have joined and not ended.
    seats: AtomicU32,
    heard: Mutex<Heard>,
}

/// When the client of a session was last heard, as far as ticks see it.
struct Heard {
    bytes: u64,
    at: Instant,
}

impl AgentSession {
    fn new(peer: Fingerprint, hello: &Hello) -> Self {
        Self {
            peer,
            on_behalf_of: hello.on_behalf_of.map(Fingerprint),
            request: hello.request.clone(),
            lanes: LaneIds::default(),
            rates: Mutex::default(),
            live: Lanes::default(),
            started: OnceLock::new(),
            failure: Mutex::new(None),
            seats: AtomicU32::new(0),
            heard: Mutex::new(Heard { bytes: 0, at: Instant::now() }),
        }
    }

    /// The rate of path `path`, of which the client agrees to this.
    pub(super) fn rate_of(&self, path: PathNumber, contract: RateContract) -> SharedRate {
        let mut rates = lock(&self.rates);
        let rate = rates.entry(path).or_insert_with(|| SharedRate::new(contract));
        if rate.contract() != contract {
            rate.set_contract(contract);
        }
        rate.clone()
    }

    /// Tells `end` what its paths may carry together: known path by path, as their first lanes come.
    pub(super) fn agree_rates(&self, end: &dyn End) {
        let rates = lock(&self.rates);
        let contracts = || rates.values().map(|rate| rate.contract());
        end.agree_rates(
            BitRate::sum(contracts().map(|contract| contract.ceiling)),
            BitRate::sum(contracts().map(|contract| contract.target)),
        );
    }

    /// What runs here; `None` while it is being started, or when that failed.
    pub(super) fn started(&self) -> Option<&Started> {
        self.started.get()
    }

    /// Starts the session if no lane has; lanes that ask meanwhile wait and get the same answer.
    pub(super) fn start(&self, start: impl FnOnce() -> Result<Started, Error>) -> Result<&Started, Error> {
        if let Some(started) = self.started.get() {
            return Ok(started);
        }
        let mut failure = lock(&self.failure);
        if let Some(error) = &*failure {
            return Err(error.clone());
        }
        if let Some(started) = self.started.get() {
            return Ok(started);
        }
        let started = start().inspect_err(|error| *failure = Some(error.clone()))?;
        Ok(self.started.get_or_init(|| started))
    }

    /// A place for one more lane. Errors: `Limit` when [`LANES_MAX`] have joined and not ended.
    pub(super) fn seat(self: &Arc<Self>) -> Result<Seat, Error> {
        let taken = self
            .seats
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |seats| (seats < LANES_MAX).then_some(seats + 1));
        match taken {
            Ok(_) => Ok(Seat(Arc::clone(self))),
            Err(_) => Err(limit(format!("the session has {LANES_MAX} lanes already; no more are taken"))),
        }
    }

    /// Ends the session at both ends, if it has begun.
    pub(super) fn abort(&self, error: &Error) {
        self.started().iter().for_each(|started| started.end.abort(error.clone()));
    }

    /// Lanes that have joined and not ended.
    pub(super) fn lanes_joined(&self) -> u32 {
        self.seats.load(Ordering::Relaxed)
    }

    /// Writes its last line to the log, with why it is `cut` if it is, unless that is done or it never began.
    pub(super) fn log_end(&self, cut: Option<&str>) {
        self.started().iter().for_each(|started| started.log.end(&started.end.progress(), cut));
    }

    /// Whether it has come to its end, and its log has heard of everything.
    pub(super) fn is_over(&self) -> bool {
        let has_ended = |started: &Started| started.runner.as_ref().is_none_or(|runner| runner.has_ended());
        self.started()
            .is_some_and(|started| started.end.is_over() && has_ended(started) && started.end.has_followed_up())
    }

    /// Takes note of whether anything has come from the client.
    pub(super) fn listen(&self) {
        let bytes = self.live.live().iter().map(|lane| lane.heard()).sum::<Option<u64>>();
        let mut heard = lock(&self.heard);
        // A lane that waits for our storage has been heard: there is more from it than we take.
        if bytes.is_none_or(|bytes| bytes != heard.bytes) {
            *heard = Heard { bytes: bytes.unwrap_or(heard.bytes), at: Instant::now() };
        }
    }

    /// Whether its client is gone, as far as can be told.
    pub(super) fn is_deserted(&self) -> bool {
        let is_silent = || lock(&self.heard).at.elapsed() > DESERTED_AFTER;
        self.started().is_some() && (self.lanes_joined() == 0 || is_silent())
    }
}

/// The place of one lane in its session, until it is dropped.
pub(super) struct Seat(pub(super) Arc<AgentSession>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.seats.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Every session of an agent.
#[derive(Default)]
pub(super) struct Sessions(Mutex<HashMap<SessionKey, Arc<AgentSession>>>);

impl Sessions {
    /// The session of a hello: the one that is there, or a new one that its caller starts.
    ///
    /// Errors: it asks for something else than its session does, for a session that is not known any more, or for one
    /// session too many. In that case sessions of the same peer whose client is gone are ended first.
    pub(super) fn find_or_add(&self, key: SessionKey, hello: &Hello) -> Result<Arc<AgentSession>, Error> {
        if self.of_peer(&key.0).len() >= SESSIONS_OF_PEER_MAX {
            self.end_deserted(&key.0);
        }
        let mut sessions = lock(&self.0);
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
        if sessions.keys().filter(|(peer, _)| *peer == key.0).count() >= SESSIONS_OF_PEER_MAX {
            let text =
                format!("the agent serves {SESSIONS_OF_PEER_MAX} sessions of this client already; try again later");
            return Err(limit(text));
        }
        if sessions.len() >= SESSIONS_MAX {
            return Err(limit(format!("the agent serves {SESSIONS_MAX} sessions already; try again later")));
        }
        let session = Arc::new(AgentSession::new(key.0, hello));
        sessions.insert(key, Arc::clone(&session));
        Ok(session)
    }

    /// The session `key`, if it has this request.
    pub(super) fn find(&self, key: &SessionKey, request: &Request) -> Option<Arc<AgentSession>> {
        lock(&self.0).get(key).filter(|session| session.request == *request).cloned()
    }

    /// Every session of a peer.
    pub(super) fn of_peer(&self, peer: &Fingerprint) -> Vec<Arc<AgentSession>> {
        lock(&self.0).values().filter(|session| session.peer == *peer).cloned().collect()
    }

    /// The copies between agents that run for `peer` to the place of `request` and have lost their command.
    pub(super) fn deserted_copies(&self, peer: &Fingerprint, request: &ThirdParty) -> Vec<Arc<Runner>> {
        let same_place = |session: &AgentSession| match &session.request {
            Request::ThirdParty(other) => {
                (other.active, &other.passive.host, other.passive.port, &other.sources, &other.destination)
                    == (
                        request.active,
                        &request.passive.host,
                        request.passive.port,
                        &request.sources,
                        &request.destination,
                    )
            }
            _ => false,
        };
        let sessions = self.of_peer(peer).into_iter().filter(|session| same_place(session) && session.is_deserted());
        sessions.filter_map(|session| session.started()?.runner.clone()).collect()
    }

    /// Every session with its key.
    pub(super) fn all(&self) -> Vec<(SessionKey, Arc<AgentSession>)> {
        lock(&self.0).iter().map(|(key, session)| (*key, Arc::clone(session))).collect()
    }

    /// Forgets `session`, with its last line in the log.
    pub(super) fn remove(&self, session: &Arc<AgentSession>) {
        lock(&self.0).retain(|_, other| !Arc::ptr_eq(other, session));
        session.log_end(None);
    }

    /// Ends the sessions of a peer whose client is gone; those that are over by that are forgotten at once.
    fn end_deserted(&self, peer: &Fingerprint) {
        let text = format!("its client is gone, and has {SESSIONS_OF_PEER_MAX} sessions here");
        let gone = Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Transfer, text);
        for session in self.of_peer(peer).into_iter().filter(|session| session.is_deserted()) {
            session.abort(&gone);
            if session.is_over() {
                self.remove(&session);
            }
        }
    }
}

fn limit(text: String) -> Error {
    Error::new(ErrorKind::Limit, Scope::Service, Phase::Prepare, text).retry(Retry::After)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use sterna_proto::compress::Wish;

    use super::*;
    use crate::agent::limiter::Limiter;
    use crate::agent::log::AgentLog;
    use crate::buffer::BufferPool;
    use crate::session::{Observer, Sender};

    struct Deaf;

    impl AgentLog for Deaf {
        fn line(&self, _: &str) {}
        fn detail(&self, _: &str) {}
    }

    fn hello(number: u8) -> Hello {
        let request = Request::Pull { sources: Vec::new(), dry_run: true, compress: Wish::Never, on_demand: false };
        Hello::new(SessionId([number; 16]), request)
    }

    fn key(peer: u8, number: u8) -> SessionKey {
        (Fingerprint([peer; 32]), SessionId([number; 16]))
    }

    fn started() -> Result<Started, Error> {
        let (key, from) = (key(1, 1), "127.0.0.1:1".parse().unwrap());
        let deaf = Limiter::new(Arc::new(Deaf) as Arc<dyn AgentLog>);
        let log = Arc::new(SessionLog::start(&deaf, (&key.0, &key.1), from, &hello(1), Duration::MAX));
        let observer = Arc::clone(&log) as Arc<dyn Observer>;
        let end =
            Sender::start(Vec::new(), Duration::MAX, true, Arc::default(), Wish::Never, BufferPool::new(), observer)?;
        Ok(Started { end, receiver: None, log, runner: None })
    }

    #[test]
    fn a_start_that_hangs_keeps_only_its_own_lanes_waiting() {
        let sessions = Arc::new(Sessions::default());
        let hung = sessions.find_or_add(key(1, 1), &hello(1)).unwrap();
        let (let_go, wait) = channel::<()>();
        let (begun, has_begun) = channel();
        let starting = Arc::clone(&hung);
        let thread = thread::spawn(move || {
            let outcome = starting.start(|| {
                begun.send(()).unwrap();
                let _ = wait.recv();
                Err(crate::internal("the root hung"))
            });
            outcome.err().unwrap().text().to_owned()
        });
        has_begun.recv().unwrap();
        assert!(hung.started().is_none() && !hung.is_over() && !hung.is_deserted());
        let other = sessions.find_or_add(key(1, 2), &hello(2)).unwrap();
        assert!(other.start(started).is_ok());
        assert_eq!(sessions.all().len(), 2);
        drop(let_go);
        let said = thread.join().unwrap();
        assert_eq!(hung.start(started).err().unwrap().text(), said, "a start is tried once");
    }

    #[test]
    fn a_session_takes_so_many_lanes_and_a_new_one_for_each_that_ends() {
        let session = Sessions::default().find_or_add(key(1, 1), &hello(1)).unwrap();
        let mut seats: Vec<Seat> = (0..LANES_MAX).map(|_| session.seat().unwrap()).collect();
        assert_eq!(session.seat().err().unwrap().kind, ErrorKind::Limit);
        seats.pop();
        assert!(session.seat().is_ok());
    }

    #[test]
    fn one_peer_cannot_fill_the_agent_and_its_abandoned_sessions_make_room() {
        let sessions = Sessions::default();
        let mut seats = Vec::new();
        for number in 0..SESSIONS_OF_PEER_MAX as u8 {
            let session = sessions.find_or_add(key(1, number), &hello(number)).unwrap();
            session.start(started).unwrap();
            seats.push(session.seat().unwrap());
        }
        assert_eq!(sessions.find_or_add(key(1, 255), &hello(255)).err().unwrap().kind, ErrorKind::Limit);
        assert!(sessions.find_or_add(key(2, 255), &hello(255)).is_ok(), "another peer is let in");
        assert!(sessions.find_or_add(key(1, 3), &hello(3)).is_ok(), "a lane of a session that is there is let in");
        seats.pop();
        assert!(sessions.find_or_add(key(1, 255), &hello(255)).is_ok());
        assert_eq!(sessions.of_peer(&Fingerprint([1; 32])).len(), SESSIONS_OF_PEER_MAX);
    }
}
