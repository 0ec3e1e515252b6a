//! Sessions of an agent: limits their number in total and for each peer. The first lane of a session starts it, once.
//!
//! Finds and adds sessions, counts their lanes, and detects which have lost their client. Does not access storage: the
//! caller starts a session. While storage hangs, only the lanes of that session wait for it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sterna_proto::plan::LANES_MAX;
use sterna_proto::rate::RateContract;
use sterna_proto::session::{Hello, PathNumber, Request, SessionId, ThirdParty};
use sterna_proto::{BitRate, Error, ErrorKind, Phase, Retry, Scope};

use super::claim::Claim;
use super::log::SessionLog;
use super::runner::Runner;
use super::used_grants::UsedGrants;
use crate::identity::Fingerprint;
use crate::lane::quic::SharedRate;
use crate::pace::Pace;
use crate::session::{End, LaneIds, Lanes, Receiver};

/// Maximum number of sessions. Reason: each may hold some tens of MB; a busy relay serves about a hundred clients.
const SESSIONS_MAX: usize = 512;

/// Maximum number of sessions of one peer with its own rights. Reason: a host that runs many copies at the same time
/// has some tens of sessions. It takes eight such hosts to fill an agent. A transfer service has other limits for
/// the sessions that it grants.
const SESSIONS_OF_PEER_MAX: usize = 64;

/// Silence after which a client counts as gone, if its peer wants the same file in another session, or exceeds its
/// maximum number of sessions. Reason: a live client sends a keep-alive every 2 s on each lane.
const DESERTED_AFTER: Duration = Duration::from_secs(6);

/// Key of a session: its client, and the number that the client gave to it.
pub(super) type SessionKey = (Fingerprint, SessionId);

/// Local end of a session that has been started.
pub(super) struct Started {
    pub(super) end: Arc<dyn End>,
    /// The same end, if the session receives.
    pub(super) receiver: Option<Arc<Receiver>>,
    pub(super) log: Arc<SessionLog>,
    /// Work for the client, if the session is a control session.
    pub(super) runner: Option<Arc<Runner>>,
}

/// Session, from its first hello on.
pub(super) struct AgentSession {
    pub(super) peer: Fingerprint,
    /// Claim of the peer to its rights.
    pub(super) claim: Claim,
    pub(super) request: Request,
    pub(super) lanes: LaneIds,
    /// Rate of each path on which lanes of the client have joined.
    rates: Mutex<HashMap<PathNumber, SharedRate>>,
    pub(super) live: Lanes,
    started: OnceLock<Started>,
    /// Locked while the session is being started; then the error of the start, if it failed.
    failure: Mutex<Option<Error>>,
    /// Number of lanes that have joined and not ended.
    seats: AtomicU32,
    /// True once the client has closed a lane because its end of the session is over.
    has_left: AtomicBool,
    heard: Mutex<LastReceived>,
}

/// Last time at which a tick saw new data from the client.
struct LastReceived {
    bytes: u64,
    at: Instant,
    pace: Pace,
}

impl AgentSession {
    fn new(peer: Fingerprint, hello: &Hello) -> Self {
        Self {
            peer,
            claim: Claim::of(hello, true),
            request: hello.request.clone(),
            lanes: LaneIds::default(),
            rates: Mutex::default(),
            live: Lanes::default(),
            started: OnceLock::new(),
            failure: Mutex::new(None),
            seats: AtomicU32::new(0),
            has_left: AtomicBool::new(false),
            heard: Mutex::new(LastReceived { bytes: 0, at: Instant::now(), pace: Pace::new(Instant::now()) }),
        }
    }

    /// Returns the shared rate of `path`, after an update to the contract that the client sent.
    pub(super) fn rate_of(&self, path: PathNumber, contract: RateContract) -> SharedRate {
        let mut rates = self.rates.lock();
        let rate = rates.entry(path).or_insert_with(|| SharedRate::new(contract));
        if rate.contract() != contract {
            rate.set_contract(contract);
        }
        rate.clone()
    }

    /// Applies the rate contracts that the client has changed.
    pub(super) fn follow_contracts(&self) {
        let Some(started) = self.started() else { return };
        let changed = started.end.take_contracts();
        if changed.is_empty() {
            return;
        }
        for (path, contract) in changed {
            self.rate_of(path, contract);
        }
        self.agree_rates(&*started.end);
        self.live.share_rate();
    }

    /// Passes the rates of all paths together to `end`. Each path adds its rate when its first lane joins.
    pub(super) fn agree_rates(&self, end: &dyn End) {
        let rates = self.rates.lock();
        let contracts = || rates.values().map(|rate| rate.contract());
        end.agree_rates(
            BitRate::sum(contracts().map(|contract| contract.ceiling)),
            BitRate::sum(contracts().map(|contract| contract.target)),
        );
    }

    /// Returns the local end; `None` while it is being started, or if that failed.
    pub(super) fn started(&self) -> Option<&Started> {
        self.started.get()
    }

    /// Starts the session if no lane has started it. Other lanes wait meanwhile and get the same result.
    pub(super) fn start(&self, start: impl FnOnce() -> Result<Started, Error>) -> Result<&Started, Error> {
        if let Some(started) = self.started.get() {
            return Ok(started);
        }
        let mut failure = self.failure.lock();
        if let Some(error) = &*failure {
            return Err(error.clone());
        }
        if let Some(started) = self.started.get() {
            return Ok(started);
        }
        let started = start().inspect_err(|error| *failure = Some(error.clone()))?;
        Ok(self.started.get_or_init(|| started))
    }

    /// Returns a seat for one more lane. Errors: `Limit` if [`LANES_MAX`] lanes have joined and not ended.
    pub(super) fn seat(self: &Arc<Self>) -> Result<Seat, Error> {
        let taken = self
            .seats
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |seats| (seats < LANES_MAX).then_some(seats + 1));
        match taken {
            Ok(_) => Ok(Seat(Arc::clone(self))),
            Err(_) => Err(limit(format!("the session has {LANES_MAX} lanes already; no more are taken"))),
        }
    }

    /// Ends the session at both ends, if it has started.
    pub(super) fn abort(&self, error: &Error) {
        self.started().iter().for_each(|started| started.end.abort(error.clone()));
    }

    /// Records that the client has closed a lane because its end of the session is over.
    pub(super) fn handle_leave(&self) {
        self.has_left.store(true, Ordering::Relaxed);
    }

    /// Returns true if the client has left and its last lane has ended: no message of it is still on the way.
    pub(super) fn is_left(&self) -> bool {
        self.has_left.load(Ordering::Relaxed) && self.lanes_joined() == 0
    }

    /// Returns the number of lanes that have joined and not ended.
    pub(super) fn lanes_joined(&self) -> u32 {
        self.seats.load(Ordering::Relaxed)
    }

    /// Writes the last line of the session to the log, unless it was written or the session never started. `cut` is the
    /// reason if the agent ends the session early.
    pub(super) fn log_end(&self, cut: Option<&str>) {
        self.started().iter().for_each(|started| started.log.end(&started.end.progress(), cut));
    }

    /// Returns true if the session has started, and has published no file.
    fn has_published_nothing(&self) -> bool {
        self.started().is_some_and(|started| started.log.published() == 0)
    }

    /// Returns true if the session is over and its log has received every event.
    pub(super) fn is_over(&self) -> bool {
        let has_ended = |started: &Started| started.runner.as_ref().is_none_or(|runner| runner.has_ended());
        self.started()
            .is_some_and(|started| started.end.is_over() && has_ended(started) && started.end.has_followed_up())
    }

    /// Records if new data has arrived from the client. Returns true if no data moves.
    pub(super) fn listen(&self, now: Instant) -> bool {
        let bytes = self.live.live().iter().map(|lane| lane.heard()).sum::<Option<u64>>();
        let mut heard = self.heard.lock();
        // A lane that waits for local storage counts as active: more data has arrived than this end can process.
        if bytes.is_none_or(|bytes| bytes != heard.bytes) {
            heard.at = now;
        }
        heard.bytes = bytes.unwrap_or(heard.bytes);
        let live = self.live.live();
        let stats = live.iter().map(|lane| lane.stats());
        let is_idle = heard.pace.observe(stats.map(|lane| lane.wire_bytes()).sum(), now);
        // A silent lane beside others is detected by looks that are close to each other.
        is_idle && live.len() < 2
    }

    /// Returns true if the client is gone: no lane has joined, or all lanes are silent.
    pub(super) fn is_deserted(&self) -> bool {
        let is_silent = || self.heard.lock().at.elapsed() > DESERTED_AFTER;
        self.started().is_some() && (self.lanes_joined() == 0 || is_silent())
    }
}

/// Seat of one lane in its session, until it is dropped.
pub(super) struct Seat(pub(super) Arc<AgentSession>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.seats.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All sessions of an agent.
#[derive(Default)]
pub(super) struct Sessions {
    all: Mutex<HashMap<SessionKey, Arc<AgentSession>>>,
    /// Grants to write that have started a session.
    pub(super) used_grants: Mutex<UsedGrants>,
}

impl Sessions {
    /// Returns the session of a hello: the existing session, or a new one that the caller starts.
    ///
    /// Errors: the hello has another request than the session, belongs to a session that was lost, or exceeds the
    /// maximum number of sessions. Before that last error, ends sessions of the same peer whose client is gone. The
    /// caller has checked a grant.
    pub(super) fn find_or_add(&self, key: SessionKey, hello: &Hello) -> Result<Arc<AgentSession>, Error> {
        let is_granted = hello.grant.is_some();
        if !is_granted && self.of_peer(&key.0).len() >= SESSIONS_OF_PEER_MAX {
            self.end_deserted(&key.0);
        }
        let mut sessions = self.all.lock();
        if let Some(session) = sessions.get(&key) {
            if session.request != hello.request {
                return Err(Error::protocol("hello from the peer: another request than the session has"));
            }
            return Ok(Arc::clone(session));
        }
        if hello.rejoin {
            let text = "the agent was restarted and has no record of the session";
            return Err(Error::new(ErrorKind::SessionLost, Scope::Path, Phase::Transfer, text).retry(Retry::After));
        }
        if !is_granted && sessions.keys().filter(|(peer, _)| *peer == key.0).count() >= SESSIONS_OF_PEER_MAX {
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

    /// Returns the session `key`, if it has this request.
    pub(super) fn find(&self, key: &SessionKey, request: &Request) -> Option<Arc<AgentSession>> {
        self.all.lock().get(key).filter(|session| session.request == *request).cloned()
    }

    /// Returns every session of a peer.
    pub(super) fn of_peer(&self, peer: &Fingerprint) -> Vec<Arc<AgentSession>> {
        self.all.lock().values().filter(|session| session.peer == *peer).cloned().collect()
    }

    /// Returns the third-party copies for `peer` to the same place as `request` that have lost their command.
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

    /// Returns every session with its key.
    pub(super) fn all(&self) -> Vec<(SessionKey, Arc<AgentSession>)> {
        self.all.lock().iter().map(|(key, session)| (*key, Arc::clone(session))).collect()
    }

    /// Removes `session`, and writes its last line to the log.
    pub(super) fn remove(&self, session: &Arc<AgentSession>) {
        self.all.lock().retain(|_, other| !Arc::ptr_eq(other, session));
        session.log_end(None);
        // After an outage that was longer than this end waits, the client starts another session with its grant. A
        // session that has started took its grant; others must not give back what they did not take.
        let taken = session.claim.used_up_by(&session.request).filter(|_| session.has_published_nothing());
        if let Some(grant) = taken {
            self.used_grants.lock().give_back(grant);
        }
    }

    /// Ends the sessions of a peer whose client is gone. Removes those at once that are over by that.
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

    use sterna_proto::compress::CompressionPolicy;

    use super::*;
    use crate::agent::limiter::Limiter;
    use crate::buffer::BufferPool;
    use crate::session::{Observer, Sender};
    use crate::source::Roots;

    fn hello(number: u8) -> Hello {
        let request = Request::Pull {
            sources: Vec::new(),
            dry_run: true,
            compress: CompressionPolicy::Never,
            on_demand: false,
            numbered: false,
        };
        Hello::new(SessionId([number; 16]), request)
    }

    fn key(peer: u8, number: u8) -> SessionKey {
        (Fingerprint([peer; 32]), SessionId([number; 16]))
    }

    fn started() -> Result<Started, Error> {
        let (key, from) = (key(1, 1), "127.0.0.1:1".parse().unwrap());
        let limiter = Arc::new(Limiter::default());
        let log = Arc::new(SessionLog::start(&limiter, (&key.0, &key.1), from, &hello(1), Duration::MAX));
        let observer = Arc::clone(&log) as Arc<dyn Observer>;
        let end = Sender::start(
            Roots::new(Vec::new()),
            Duration::MAX,
            true,
            Arc::default(),
            CompressionPolicy::Never,
            BufferPool::new(),
            observer,
        )?;
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
