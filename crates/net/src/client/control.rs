//! Client end of a control session: one lane of control frames to an agent, which is dialled again when it is lost.
//!
//! Third-party copies and queries share it. Does not know what the session reports.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use parking_lot::Mutex;
use sterna_proto::location::RemoteLocation;
use sterna_proto::plan::Via;
use sterna_proto::session::{Frame, Hello, LaneId, Request};
use sterna_proto::{Error, ErrorKind};

use super::dial::{Target, dial_first, resolve, unless_stopped, unreached};
use super::run::{Backoff, depart, ends_session, random_session};
use super::spec::{CopyEvent, CopyObserver, CopySpec, Initiator, PathOptions};
use crate::identity::Fingerprint;
use crate::lane::quic::SharedRate;
use crate::lane::{Lane, LaneHandle};
use crate::latch::Latch;
use crate::session::{ALIVE_EVERY, ControlEnd, End, LaneIds, SessionEvent, attach};

/// Agent with which control sessions are held, and the means to connect to it.
pub(super) struct ControlClient {
    remote: RemoteLocation,
    /// Options of the lane.
    options: CopySpec,
    initiator: Initiator,
    observer: Arc<dyn CopyObserver>,
}

impl ControlClient {
    /// Returns a client that connects as copies with `options` do.
    pub(super) fn new(
        remote: &RemoteLocation,
        options: &CopySpec,
        initiator: &Initiator,
        observer: &Arc<dyn CopyObserver>,
    ) -> Self {
        let paths = vec![PathOptions { lanes: Some(1), ..PathOptions::default() }];
        Self {
            remote: remote.clone(),
            options: CopySpec { paths, congestion: None, ..options.clone() },
            initiator: initiator.clone(),
            observer: Arc::clone(observer),
        }
    }

    /// Connects a lane to the agent: by TCP, since the lane needs no rate control, or by QUIC if TCP does not connect.
    pub(super) fn reach(&self) -> Result<Lane, Error> {
        let (remote, options, initiator) = (self.remote.clone(), self.options.clone(), self.initiator.clone());
        let observer = Arc::clone(&self.observer);
        unless_stopped(&*self.observer, "dial", move || dial_any(&remote, &options, &initiator, &observer))
    }

    /// Runs one session with `request`, from its first lane to its end. `drive` waits for the end of `control`.
    ///
    /// Errors: the host gives no thread.
    pub(super) fn run(
        self,
        control: &Arc<ControlEnd>,
        request: Request,
        first: Lane,
        drive: impl FnOnce(),
    ) -> Result<(), Error> {
        let supervisor = Arc::new(LaneSupervisor {
            control: Arc::clone(control),
            lanes: LaneIds::default(),
            hello: Hello { grant: self.initiator.grant.clone(), ..Hello::new(random_session()?, request) },
            welcomed: AtomicBool::new(false),
            key: Mutex::new(first.peer),
            client: self,
            handle: Mutex::default(),
            over: Latch::default(),
        });
        let (dialler, alive) = (Arc::clone(&supervisor), Arc::clone(&supervisor));
        let spawned = thread::Builder::new().name("keep-lane".to_owned()).spawn(move || dialler.keep(first));
        spawned.map_err(|e| crate::no_thread("start the thread of a lane", e))?;
        let spawned = thread::Builder::new().name("keep-alive".to_owned()).spawn(move || alive.keep_alive());
        spawned.map_err(|e| crate::no_thread("start the thread that keeps lanes alive", e))?;
        drive();
        depart(&supervisor.over, supervisor.handle.lock().take().into_iter().collect());
        Ok(())
    }
}

/// Connects a lane to an agent, by any of its addresses and either transport. Errors: those of all attempts.
fn dial_any(
    remote: &RemoteLocation,
    options: &CopySpec,
    initiator: &Initiator,
    observer: &Arc<dyn CopyObserver>,
) -> Result<Lane, Error> {
    let say = |rationale: &str| {
        observer.event(CopyEvent::Decision { subject: "transport", rationale: rationale.to_owned() });
    };
    let mut errors: Vec<Error> = Vec::new();
    let path = PathOptions { lanes: Some(1), ..PathOptions::default() };
    for addr in resolve(&remote.host_port(), None)? {
        for via in [Via::Tcp, Via::Quic] {
            let rate = SharedRate::new(path.contract);
            let target = Target { via, addr, rate: &rate, lanes: 1 };
            match dial_first((options, &path), &target, initiator, observer, say) {
                Ok((lane, _)) => return Ok(lane),
                Err(error) if error.kind != ErrorKind::Unreachable => return Err(error),
                Err(error) => errors.push(error),
            }
        }
    }
    Err(unreached(errors))
}

/// Keeps the lane to the agent alive.
struct LaneSupervisor {
    control: Arc<ControlEnd>,
    lanes: LaneIds,
    hello: Hello,
    welcomed: AtomicBool,
    /// Key of the agent, as presented on the last lane; at first, on the first lane.
    key: Mutex<Fingerprint>,
    client: ControlClient,
    handle: Mutex<Option<Arc<dyn LaneHandle>>>,
    over: Latch,
}

impl LaneSupervisor {
    fn keep(&self, first: Lane) {
        let ControlClient { remote, options, initiator, observer } = &self.client;
        let mut next = Some(first);
        let mut backoff = Backoff::new();
        let mut is_reported = false;
        while !self.control.is_over() {
            let born = Instant::now();
            let lane = match next.take() {
                Some(lane) => Ok(lane),
                None => dial_any(remote, options, initiator, observer),
            };
            let outcome = lane.and_then(|lane| self.run_lane(self.lanes.next(), lane, &mut is_reported));
            if self.control.is_over() || self.over.is_set() {
                return;
            }
            let reason = match outcome {
                Ok(()) => "closed by the agent".to_owned(),
                Err(error) if ends_session(&error) => return self.control.abort(error),
                Err(error) => error.chain(),
            };
            if !std::mem::replace(&mut is_reported, true) {
                self.notice(format!("no connection to the agent ({reason}), which goes on; dialling again"));
            }
            self.over.wait(backoff.after(born.elapsed()));
        }
    }

    fn run_lane(&self, id: LaneId, lane: Lane, is_reported: &mut bool) -> Result<(), Error> {
        if *self.key.lock() != lane.peer {
            self.client.observer.trust(&self.client.remote, &lane.peer)?;
            *self.key.lock() = lane.peer;
        }
        *self.handle.lock() = Some(Arc::clone(&lane.handle));
        let hello = Hello { rejoin: self.welcomed.load(Ordering::Relaxed), ..self.hello.clone() };
        let was_reported = std::mem::take(is_reported);
        let is_back = AtomicBool::new(false);
        let on_welcome = || {
            self.welcomed.store(true, Ordering::Relaxed);
            if !is_back.swap(true, Ordering::Relaxed) && was_reported {
                self.notice("the agent is connected again".to_owned());
            }
        };
        let end: Arc<dyn End> = Arc::clone(&self.control) as _;
        let outcome = attach(end, id, lane, Some(Frame::Hello(hello)), &on_welcome);
        *is_reported = was_reported && !is_back.into_inner();
        outcome
    }

    fn notice(&self, text: String) {
        self.client.observer.event(CopyEvent::Session(SessionEvent::Notice(text)));
    }

    /// Sends keep-alives of the client to the agent. Runs in a separate thread, because the user interface may block.
    fn keep_alive(&self) {
        while !self.over.is_set() {
            self.handle.lock().iter().for_each(|handle| handle.say_alive());
            self.over.wait(ALIVE_EVERY);
        }
    }
}
