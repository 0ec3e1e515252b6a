//! One session of a copy: its paths, and the lanes on them.
//!
//! What it does: reaches the agent on every path, decides how many lanes each shall have, keeps every lane alive (a dead one is
//! dialled again with backoff), holds standby paths back while another one is up. The loop is [`Keeper::tick_until_over`]:
//! until the session is over or the person stops it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use sterna_proto::contest::{Contest, ContestStep};
use sterna_proto::limit::LimitTimes;
use sterna_proto::location::RemoteLocation;
use sterna_proto::memory::Way;
use sterna_proto::plan::{self, TcpPath, Via};
use sterna_proto::rate::Manner;
use sterna_proto::session::{Frame, Hello, LaneId, PathNumber, SessionId};
use sterna_proto::{ByteCount, Earlier, Error, ErrorKind, Phase, Retry, Scope};

use super::dial::{
    DialledPath, Dialling, FirstLane, PathDials, Target, cores, dial, lane_memory, lanes_asked, lanes_most, path_memory,
};
use super::job::{Direction, Job};
use super::memory::PathFile;
use super::path::{KeptPath, ReachedPath, STANDBY_AFTER};
use super::stall::StallWatch;
use super::tally::{Tally, TallyState};
use super::{
    ACTIVE_FILES_SHOWN, BACKOFF_MIN, CopyEvent, CopyObserver, CopyProgress, CopySpec, Initiator, TICK, ViaChoice,
};
use crate::identity::Fingerprint;
use crate::lane::Lane;
use crate::session::{ALIVE_EVERY, End, LaneIds, LimitsNow, Progress, SessionEvent, attach, close_all, lock};

/// Longest wait before a dead lane is dialled again. Reason: an outage that ends is noticed within this.
pub(super) const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// A lane that lived this long was well: the next wait is the shortest again.
pub(super) const HEALTHY_LIFE: Duration = Duration::from_secs(10);

/// How long the last packets of a session get to leave this host. Reason: the thread of a lane wakes up within a few
/// milliseconds and paces its last packets within some more.
pub(super) const DEPARTURE: Duration = Duration::from_millis(30);

/// How long the close of a lane gets to leave this host. Reason: it waits for no window and no pace, only for its thread.
pub(super) const LAST_PACKET: Duration = Duration::from_millis(10);

/// Why a lane is closed whose transport carries less.
const OTHER_TRANSPORT: &str = "the other transport carries more";

/// What the threads that keep paths and lanes alive share.
struct Keeper {
    end: Arc<dyn End>,
    lanes: Arc<LaneIds>,
    hello: Hello,
    way: Way,
    welcomed: AtomicBool,
    remote: RemoteLocation,
    initiator: Initiator,
    options: CopySpec,
    observer: Arc<dyn CopyObserver>,
    paths: Vec<Arc<KeptPath>>,
    /// When a path that is no standby was last seen up, or the session began.
    served: Mutex<Instant>,
    /// Counters of the earlier sessions of this copy.
    earlier: Earlier,
    /// What limited the earlier sessions of this copy.
    limits_before: LimitTimes,
    /// Ends the waits of backoff early.
    over: (Mutex<bool>, Condvar),
    trusted: Mutex<Option<Fingerprint>>,
}

/// One session of a copy, from the first lane to the last outcome.
pub(super) fn run_session(
    options: &CopySpec,
    job: &Job,
    initiator: &Initiator,
    tally: &Arc<Tally>,
    started: &mut Instant,
) -> Result<(), Error> {
    let observer = &tally.observer;
    let way = match job.direction {
        Direction::Push { .. } => Way::Out,
        Direction::Pull { .. } | Direction::Replica { .. } => Way::In,
    };
    let dialling = Dialling::new(options, &job.remote, way, initiator, observer);
    let PathDials { first, on, others } = dialling.reach_paths()?;
    // The time that a person takes to answer is not the copy's.
    *started += first.trusted_after;
    let started = *started;
    let (earlier, limits_before) = {
        let mut state = lock(&tally.state);
        state.aborted = None;
        let earlier = Earlier { counters: state.summary.counters, unsettled_bytes: state.unsettled_bytes };
        (earlier, state.summary.limits.total)
    };
    let paths = kept_paths(options);
    let first_path = Arc::clone(&paths[on]);
    let lane_count = decide_lanes(options, &first_path, &first, observer);
    if first.via == Via::Quic {
        lane_memory(options, &first_path.options, lane_count)?;
    }
    let (end, receiver) = job.start_end(options, tally)?;
    if let Some(file) = &options.recording {
        end.limits().record(Arc::clone(file));
    }
    end.agree_rates(options.ceiling(), options.target());
    let keeper = Arc::new(Keeper {
        end: Arc::clone(&end),
        lanes: job.lanes(),
        hello: Hello {
            on_behalf_of: initiator.on_behalf_of.map(|key| key.0),
            ..Hello::new(random_session()?, job.request(options))
        },
        way,
        welcomed: AtomicBool::new(false),
        remote: job.remote.clone(),
        initiator: initiator.clone(),
        options: options.clone(),
        observer: Arc::clone(observer),
        paths,
        served: Mutex::new(Instant::now()),
        earlier,
        limits_before,
        over: (Mutex::new(false), Condvar::new()),
        trusted: Mutex::new(Some(first.lane.peer)),
    });
    keeper.begin_path(&first_path, first, lane_count)?;
    others.into_iter().try_for_each(|(number, dialled)| keeper.start_path(&keeper.paths[number], dialled))?;
    let alive = Arc::clone(&keeper);
    let spawned = thread::Builder::new().name("keep-alive".to_owned()).spawn(move || alive.keep_alive());
    spawned.map_err(|e| crate::internal("start the thread that keeps lanes alive").caused_by(e))?;
    keeper.tick_until_over(started);
    keeper.learn();
    keeper.finish();
    if let Some(receiver) = &receiver {
        receiver.join();
    }
    keeper.sum_up(&mut lock(&tally.state))
}

fn kept_paths(options: &CopySpec) -> Vec<Arc<KeptPath>> {
    let several = options.paths.len() > 1;
    let path_of = |(number, path)| {
        let name = several.then(|| format!("path {}", number + 1));
        Arc::new(KeptPath::new(PathNumber(number as u8), path, name))
    };
    options.paths.iter().enumerate().map(path_of).collect()
}

pub(super) fn random_session() -> Result<SessionId, Error> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|e| crate::internal("ask the kernel for random bytes").caused_by(e))?;
    Ok(SessionId(id))
}

/// The part of its time in which a copy must have been held by its paths, for these to be slower than was known. Reason: a copy whose
/// source trickles says nothing of them, and what it leaves must not hold the next one back.
const PATH_BOUND: f64 = 0.5;

fn decide_lanes(options: &CopySpec, path: &KeptPath, first: &FirstLane, observer: &Arc<dyn CopyObserver>) -> u32 {
    let given = &path.options;
    let rate = given.contract.expected(first.remembered.map(|record| record.rate));
    let by_transport = || match first.via {
        Via::Quic => plan::choose_quic_lanes(rate, first.remembered.map_or(plan::MTU_USUAL, |record| record.mtu)),
        Via::Tcp => plan::choose_tcp_lanes(&TcpPath {
            rtt: first.lane.handle.stats().rtt_min,
            rate,
            window_max: first.lane.handle.window_max(),
            cores: cores(),
        }),
    };
    let decision = lanes_asked(options, given).unwrap_or_else(by_transport);
    observer.event(CopyEvent::Decision { subject: "lanes", rationale: path.say(decision.rationale) });
    decision.value.clamp(1, plan::LANES_MAX)
}

impl Keeper {
    /// Starts the lanes of a path on which the agent has been reached.
    fn begin_path(self: &Arc<Self>, path: &Arc<KeptPath>, first: FirstLane, lane_count: u32) -> Result<(), Error> {
        let is_contested = self.may_contest(path, &first);
        let FirstLane { via, addr, rate, lane, remembered, .. } = first;
        let stats = lane.handle.stats();
        let rtt = if stats.rtt_min.is_zero() { stats.rtt } else { stats.rtt_min };
        let given = &path.options.contract;
        let expected = given.expected(remembered.map(|record| record.rate));
        // Set once: by the one thread that reaches the agent on this path.
        let is_least = given.target.is_none()
            && remembered.is_some_and(|record| !record.is_full && given.ceiling.is_none_or(|most| record.rate < most));
        let _ = path.reached.set(ReachedPath { via, addr, rate, lane_count, rtt, expected, is_least });
        if is_contested {
            *lock(&path.contest) = Contest::new();
        }
        let mut first = Some(lane);
        // Lanes that are asked for wait until the rate is found: among many a rate that begins small is a packet a second for each, and the
        // one that sends trains has too little to send.
        let begins_with = if via == Via::Quic && expected.is_none() { 1 } else { lane_count };
        (0..begins_with).try_for_each(|_| self.start_lane(path, via, first.take()))
    }

    /// Whether TCP may turn out to carry more on a path than QUIC, by which it was reached: the choice was ours, nothing is agreed that
    /// TCP cannot hold, and it is not known yet. Several paths, or replicas, limit a copy together: which one does cannot be told.
    fn may_contest(&self, path: &KeptPath, first: &FirstLane) -> bool {
        let contract = &path.options.contract;
        let is_free = contract.target.is_none() && contract.minimum.is_none() && contract.manner == Manner::Fair;
        let is_alone = self.paths.len() == 1 && !self.options.same;
        let is_ours = path.options.via == ViaChoice::Auto && first.via == Via::Quic && !first.is_other_known;
        is_free && is_alone && is_ours
    }

    /// Begins a path that has been dialled, if the agent was reached on it.
    fn begin_dialled(self: &Arc<Self>, path: &Arc<KeptPath>, dialled: DialledPath) {
        match dialled.wait() {
            Some(Ok(first)) => {
                let lane_count = decide_lanes(&self.options, path, &first, &self.observer);
                // A host that gives no more threads keeps the lanes that it has.
                let _ = self.begin_path(path, first, lane_count);
            }
            Some(Err(error)) => {
                self.observer.event(CopyEvent::Session(SessionEvent::Notice(path.say(error.chain()))));
            }
            None => {}
        }
    }

    /// Starts the thread that reaches the agent on one more path.
    fn start_path(self: &Arc<Self>, path: &Arc<KeptPath>, dialled: DialledPath) -> Result<(), Error> {
        if self.options.dry_run {
            // What would be used is to be told.
            self.begin_dialled(path, dialled);
            return Ok(());
        }
        let (keeper, path) = (Arc::clone(self), Arc::clone(path));
        let spawned =
            thread::Builder::new().name("keep-path".to_owned()).spawn(move || keeper.reach_path(&path, dialled));
        spawned.map(drop).map_err(|e| crate::internal("start the thread of a path").caused_by(e))
    }

    /// Tries until the agent is reached on a path, or the session is over.
    fn reach_path(self: &Arc<Self>, path: &Arc<KeptPath>, dialled: DialledPath) {
        let dialling = Dialling::new(&self.options, &self.remote, self.way, &self.initiator, &self.observer);
        let mut outcome = dialled.wait();
        let mut told = String::new();
        let mut backoff = BACKOFF_MIN;
        while !self.is_ending() {
            let tried = match outcome.take() {
                Some(tried) => tried,
                None if self.is_held_back(path) => {
                    self.wait(TICK);
                    continue;
                }
                None => dialling.reach_path(usize::from(path.number.0)),
            };
            let error = match tried {
                Ok(first) if Some(first.lane.peer) != *lock(&self.trusted) => {
                    first.lane.handle.close("another agent");
                    let text = format!("{} is another agent, with the key {}: not used", first.addr, first.lane.peer);
                    Error::new(ErrorKind::Untrusted, Scope::Path, Phase::Prepare, text)
                }
                Ok(first) => {
                    let lane_count = decide_lanes(&self.options, path, &first, &self.observer);
                    // A host that gives no more threads keeps the lanes that it has.
                    let _ = self.begin_path(path, first, lane_count);
                    return;
                }
                Err(error) => error,
            };
            let text = error.chain();
            if text != told {
                let again = path.say(format!("{text}; it is tried again"));
                self.observer.event(CopyEvent::Session(SessionEvent::Notice(again)));
                told = text;
            }
            self.wait(backoff);
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    /// Whether a path that is no standby is up, and something comes by it.
    fn is_served(&self) -> bool {
        self.paths.iter().any(|path| !path.options.standby && path.is_up() && path.is_heard())
    }

    /// Whether it is a standby path that is not to be used, or not yet.
    fn is_held_back(&self, path: &KeptPath) -> bool {
        if !path.options.standby {
            return false;
        }
        let now = Instant::now();
        let mut served = lock(&self.served);
        if self.is_served() {
            *served = now;
        }
        now.saturating_duration_since(*served) < STANDBY_AFTER
    }

    fn is_ending(&self) -> bool {
        self.end.is_over() || self.observer.stopped()
    }

    /// Whether lanes by `via` are not to be used on a path, or not yet.
    fn is_lane_held_back(&self, path: &KeptPath, via: Via) -> bool {
        self.is_held_back(path) || path.is_retired(via)
    }

    /// Starts the thread of one more lane; the first one of a path comes connected.
    fn start_lane(self: &Arc<Self>, path: &Arc<KeptPath>, via: Via, connected: Option<Lane>) -> Result<(), Error> {
        let (keeper, on) = (Arc::clone(self), Arc::clone(path));
        let run = move || keeper.keep(&on, via, connected);
        let spawned = thread::Builder::new().name("keep-lane".to_owned()).spawn(run);
        spawned.map_err(|e| crate::internal("start the thread of a lane").caused_by(e))?;
        path.lanes_wanted(via).fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Keeps one lane alive until the session is over, by `via` as long as that gets through. The first one of a path comes connected.
    fn keep(&self, path: &KeptPath, via: Via, first: Option<Lane>) {
        let Some(reached) = path.reached.get() else { return };
        let mut next = first;
        let mut backoff = BACKOFF_MIN;
        while !self.end.is_over() {
            if next.is_none() && self.is_lane_held_back(path, via) {
                self.wait(TICK);
                continue;
            }
            let born = Instant::now();
            let dialled = match next.take() {
                Some(lane) => Ok(lane),
                None => self.dial_again(path, reached, via),
            };
            let id = self.lanes.next();
            let was_dialled = dialled.is_ok();
            let outcome = dialled.and_then(|lane| self.run_lane(id, path, via, lane));
            // A copy that was stopped needs no more lanes; the agent has heard of it, or sees the last lane end.
            if self.is_ending() {
                return;
            }
            // What a dead TCP lane had of the rate goes to the others.
            if self.sends() {
                path.live.share_rate();
            }
            let is_retired = path.is_retired(via);
            // A path whose network is away may come back, and what carries no copy yet, or no more, must not end it.
            let is_needed = (was_dialled || self.paths.len() == 1) && via == path.chosen_via(reached);
            let reason = match outcome {
                Err(error) if is_needed && ends_session(&error) => return self.end.abort(error),
                _ if is_retired => OTHER_TRANSPORT.to_owned(),
                Ok(()) if path.options.standby && self.is_served() => "another path is up again".to_owned(),
                Ok(()) => "closed by the agent".to_owned(),
                Err(error) => error.chain(),
            };
            self.observer.event(CopyEvent::LaneDown { lane: id.0, reason: path.say(reason), again: !is_retired });
            backoff = if born.elapsed() > HEALTHY_LIFE { BACKOFF_MIN } else { (backoff * 2).min(BACKOFF_MAX) };
            self.wait(backoff);
        }
    }

    /// Dials one more lane of a path: by the other transport when its own does not get through any more, and the choice was ours.
    fn dial_again(&self, path: &KeptPath, reached: &ReachedPath, via: Via) -> Result<Lane, Error> {
        let ReachedPath { addr, ref rate, lane_count: lanes, .. } = *reached;
        let by = |via| {
            let target = Target { via, addr, rate, lanes };
            // What the first lane was refused was said then.
            dial(&self.options, &path.options, &target, &self.initiator).map(|(lane, _)| lane)
        };
        let failed = match by(via) {
            Err(error)
                if path.options.via == ViaChoice::Auto
                    && error.retry != Retry::Never
                    && via == path.chosen_via(reached) =>
            {
                error
            }
            dialled => return dialled,
        };
        let other = via.other();
        if self.is_ending() {
            return Err(failed);
        }
        // Neither: the path is away, and what its own transport says is the reason.
        let Ok(lane) = by(other) else { return Err(failed) };
        self.decide("transport", path, format!("{other} for a lane: no {via} to {addr} any more: {}", failed.chain()));
        Ok(lane)
    }

    fn run_lane(&self, id: LaneId, path: &KeptPath, via: Via, lane: Lane) -> Result<(), Error> {
        let Some(reached) = path.reached.get() else { return Ok(()) };
        self.check_trust(&lane, self.paths.len() == 1 && via == path.chosen_via(reached))?;
        path.live.add(&lane.handle, reached.rate.clone(), self.options.congestion.is_some());
        // Lanes that are seen there when their transport loses are closed then; this one was on its way.
        if path.is_retired(via) {
            lane.handle.close(OTHER_TRANSPORT);
        }
        if self.sends() {
            path.live.share_rate();
        }
        let hello = Hello {
            rejoin: self.welcomed.load(Ordering::Relaxed),
            path: path.number,
            contract: reached.rate.contract(),
            ..self.hello.clone()
        };
        let (transport, peer) = (lane.handle.transport(), lane.handle.peer_addr());
        // An agent that was restarted, or that refuses, answers a connection all the same: only its welcome says that it is ours.
        let is_up = AtomicBool::new(false);
        let on_welcome = || {
            self.welcomed.store(true, Ordering::Relaxed);
            if !is_up.swap(true, Ordering::Relaxed) {
                path.up.fetch_add(1, Ordering::Relaxed);
                self.observer.event(CopyEvent::LaneUp { lane: id.0, path: path.number, transport, peer });
            }
        };
        let outcome = attach(Arc::clone(&self.end), id, lane, Some(Frame::Hello(hello)), &on_welcome);
        if is_up.into_inner() {
            path.up.fetch_sub(1, Ordering::Relaxed);
        }
        outcome
    }

    /// Every lane must end at the agent that the first one reached; one that the copy needs may be trusted anew.
    fn check_trust(&self, lane: &Lane, is_needed: bool) -> Result<(), Error> {
        let trusted = *lock(&self.trusted);
        if trusted == Some(lane.peer) {
            return Ok(());
        }
        if !is_needed {
            // A path, or a transport, that leads elsewhere must not end what the others carry.
            lane.handle.close("another agent");
            let text = format!("{} is another agent, with the key {}: not used", lane.handle.peer_addr(), lane.peer);
            return Err(Error::new(ErrorKind::Untrusted, Scope::Path, Phase::Prepare, text).retry(Retry::After));
        }
        self.observer.trust(&self.remote, &lane.peer)?;
        *lock(&self.trusted) = Some(lane.peer);
        Ok(())
    }

    fn wait(&self, time: Duration) {
        let (over, wake) = &self.over;
        let guard = lock(over);
        if !*guard {
            // A poisoned lock only ends the wait early.
            let _ = wake.wait_timeout(guard, time);
        }
    }

    /// Tells the agent that this end lives, until the session is over. A thread of its own: what the person sees may block.
    fn keep_alive(&self) {
        while !*lock(&self.over.0) {
            self.paths.iter().for_each(|path| path.live.say_alive());
            self.wait(ALIVE_EVERY);
        }
    }

    fn sends(&self) -> bool {
        self.way == Way::Out
    }

    /// Ticks the session until it is over; ends it when the person wants to stop.
    fn tick_until_over(self: &Arc<Self>, started: Instant) {
        let mut stopping = false;
        let mut stall = StallWatch::of_lanes();
        // What a lane has heard last is done with when this returns: a source that was to go has gone.
        while !self.end.is_over() || !self.end.has_followed_up() {
            self.end.wait_until_over(TICK);
            self.end.tick();
            let progress = self.progress(started);
            self.observer.progress(&progress);
            for path in &self.paths {
                path.listen();
                path.watch_rate(self.way, &progress);
                self.compare_transports(path, &progress);
                self.adapt(path);
            }
            let carried = progress.lanes.iter().map(|lane| lane.wire_bytes_sent + lane.wire_bytes_received);
            // A spool may have nothing to send for days, and a replica nothing while others are faster.
            let told =
                stall.observe(carried, Instant::now()).filter(|_| self.options.follow.is_none() && !self.options.same);
            if let Some(text) = told {
                self.observer.event(CopyEvent::Session(SessionEvent::Notice(text)));
            }
            if self.observer.stopped() && !stopping {
                stopping = true;
                let text = "the copy was stopped; run the same command again to go on from here";
                self.end.abort(Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Transfer, text));
            }
        }
        self.end.tick();
        self.observer.progress(&self.progress(started));
    }

    /// Lets the other transport show whether it carries more on a path, when the session gives cause; and takes the one that does.
    fn compare_transports(self: &Arc<Self>, path: &Arc<KeptPath>, progress: &CopyProgress) {
        match path.contest(progress) {
            None => {}
            Some(ContestStep::Begin(decision)) => {
                let lanes = lanes_asked(&self.options, &path.options).map_or(plan::CONTEST_LANES, |lanes| lanes.value);
                self.decide("transport", path, decision.rationale);
                self.start_more(path, decision.value, 0, lanes);
            }
            Some(ContestStep::Take(decision)) => {
                let loser = decision.value.other();
                self.decide("transport", path, decision.rationale);
                let lanes = path.live.live().into_iter().filter(|lane| Via::from(lane.transport()) == loser);
                close_all(lanes, OTHER_TRANSPORT);
            }
        }
    }

    /// Decides anew what the lanes of a path themselves have taught since.
    fn adapt(self: &Arc<Self>, path: &Arc<KeptPath>) {
        let Some(reached) = path.reached.get() else { return };
        if path.options.standby && path.is_up() && self.is_served() {
            return close_all(path.live.live(), "another path is up again");
        }
        for rationale in if self.sends() { path.live.adapt_congestion() } else { Vec::new() } {
            self.decide("congestion", path, rationale);
        }
        let given = &path.options;
        if lock(&path.contest).is_on() {
            return;
        }
        let (chosen, via) = (path.chosen_via(reached), path.via(reached));
        let wanted = path.lanes_wanted(chosen).load(Ordering::Relaxed);
        if chosen == reached.via && wanted < reached.lane_count {
            // Only a search needs to be alone.
            if via == Via::Tcp || path.found_rate(self.way).is_some() {
                self.start_more(path, chosen, wanted, reached.lane_count);
            }
            return;
        }
        if given.lanes.is_some() {
            return;
        }
        let more = match via {
            // More when the path was found to carry more than those that are there are good for.
            Via::Quic if given.contract.target.is_some() => None,
            Via::Quic => {
                let most = lanes_most(path_memory(&self.options), given, reached.lane_count);
                let found = path.found(self.way, lane_memory(&self.options, given, reached.lane_count).ok());
                found.and_then(|found| plan::choose_more_quic_lanes(wanted, &found, most))
            }
            Via::Tcp => path
                .live
                .held(given.contract.target)
                .filter(|held| held.lanes == wanted)
                .and_then(|held| plan::choose_more_tcp_lanes(&held)),
        };
        if let Some(more) = more {
            self.decide("lanes", path, more.rationale);
            self.start_more(path, chosen, wanted, more.value);
        }
    }

    /// Starts the lanes of a path by `via` that are missing to `wanted`.
    fn start_more(self: &Arc<Self>, path: &Arc<KeptPath>, via: Via, there: u32, wanted: u32) {
        // A host that gives no more threads keeps the lanes that it has.
        let _ = (there..wanted).try_for_each(|_| self.start_lane(path, via, None));
    }

    fn decide(&self, subject: &'static str, path: &KeptPath, rationale: String) {
        self.observer.event(CopyEvent::Decision { subject, rationale: path.say(rationale) });
    }

    /// Keeps what the session has taught about its paths.
    fn learn(&self) {
        let Some(dir) = &self.initiator.path_cache else { return };
        let file = PathFile::new(dir);
        let is_bound = self.limits().report.total.of_path() >= PATH_BOUND;
        for error in self.paths.iter().filter_map(|path| path.learn(self.way, &file, is_bound).err()) {
            self.observer.event(CopyEvent::Session(SessionEvent::Notice(error.chain())));
        }
    }

    fn live(&self) -> Vec<Arc<dyn crate::lane::LaneHandle>> {
        self.paths.iter().flat_map(|path| path.live.live()).collect()
    }

    fn progress(&self, started: Instant) -> CopyProgress {
        let lanes = self.live().iter().map(|handle| handle.stats()).collect();
        CopyProgress {
            session: self.session_progress(),
            elapsed: started.elapsed(),
            lanes,
            files: self.end.active_files(ACTIVE_FILES_SHOWN),
            limits: self.limits(),
        }
    }

    /// What limits the copy, with what earlier sessions of it found.
    fn limits(&self) -> LimitsNow {
        let mut limits = self.end.limits().now();
        limits.report.total.merge(&self.limits_before);
        limits
    }

    /// How far the session is; what earlier sessions of this copy brought does not count as there before it.
    fn session_progress(&self) -> Progress {
        let mut progress = self.end.progress();
        progress.counters = self.earlier.and(&progress.counters);
        progress.lanes = self.paths.iter().map(|path| path.up.load(Ordering::Relaxed)).sum();
        progress
    }

    /// Adds what the session has brought to the copy. Errors: it ended early.
    fn sum_up(&self, state: &mut TallyState) -> Result<(), Error> {
        state.summary.counters = self.session_progress().counters;
        state.summary.limits = self.limits().report;
        let memory = |path: &Arc<KeptPath>| {
            let lanes = path.reached.get().map_or(1, |reached| reached.lane_count);
            let each = lane_memory(&self.options, &path.options, lanes).unwrap_or(ByteCount(0));
            ByteCount(each.0 * u64::from(lanes_most(path_memory(&self.options), &path.options, lanes)))
        };
        state.summary.paths = self.paths.iter().filter_map(|path| path.plan(memory(path))).collect();
        state.summary.unreached = self.paths.iter().filter_map(|path| path.unreached()).collect();
        state.unsettled_bytes = self.end.unsettled_bytes();
        match state.aborted.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Ends every lane. What was said last leaves this host, and its arrival is not waited for: that would cost a round trip,
    /// and an agent that misses it notices the lane's end.
    fn finish(&self) {
        let (over, wake) = &self.over;
        *lock(over) = true;
        wake.notify_all();
        let lanes = self.live();
        close_all(lanes.iter().map(Arc::clone), "session over");
        thread::sleep(DEPARTURE);
        // What a full window held back until now stays here; that nobody is here any more must leave all the same, or the agent
        // holds the files for as long as it takes the silence for an outage.
        lanes.iter().for_each(|lane| lane.cut("session over"));
        thread::sleep(LAST_PACKET);
    }
}

/// Whether a lane's failure would meet every other lane too.
pub(super) fn ends_session(error: &Error) -> bool {
    error.kind == ErrorKind::SessionLost || error.retry == Retry::Never && error.kind != ErrorKind::Protocol
}
