//! One session of a copy: its paths, and the lanes on them.
//!
//! Reaches the agent on every path, decides the number of lanes of each path, and keeps every lane alive. A dead lane
//! is dialled again with backoff. Keeps standby paths unused while another path is up. Module `run` drives the session.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sterna_proto::limit::LimitTimes;
use sterna_proto::location::RemoteLocation;
use sterna_proto::path_cache::DataDirection;
use sterna_proto::plan::{self, Decision, TcpPath, Via};
use sterna_proto::rate::{Fairness, RateContract};
use sterna_proto::session::{Frame, Hello, LaneId, PathNumber};
use sterna_proto::transport_trial::{TransportTrial, TrialStep};
use sterna_proto::{ByteCount, Earlier, Error, ErrorKind, Phase, Retry, Scope};

use super::dial::{
    DialledPath, Dialling, FirstLane, PathDials, Target, cores, dial, lane_memory, lanes_asked, lanes_most, path_memory,
};
use super::job::Job;
use super::path::{KeptPath, ReachedPath, STANDBY_AFTER};
use super::path_cache::PathCache;
use super::run::{Backoff, Driven, TICK, depart, drive, ends_session, random_session};
use super::spec::{ACTIVE_FILES_SHOWN, CopyEvent, CopyObserver, CopyProgress, CopySpec, Initiator, ViaChoice};
use super::stall::StallDetector;
use super::totals::{CopyTotals, TotalsState};
use crate::identity::Fingerprint;
use crate::lane::{Lane, LaneHandle, quic};
use crate::latch::Latch;
use crate::session::{ALIVE_EVERY, End, LaneIds, LimitsNow, Progress, SessionEvent, attach, close_all};

/// Reason for the close of a lane whose transport carries less.
const OTHER_TRANSPORT: &str = "the other transport carries more";

/// State of one session, shared by the threads that keep paths and lanes alive.
struct Supervisor {
    end: Arc<dyn End>,
    lanes: Arc<LaneIds>,
    hello: Hello,
    direction: DataDirection,
    welcomed: AtomicBool,
    remote: RemoteLocation,
    initiator: Initiator,
    options: CopySpec,
    observer: Arc<dyn CopyObserver>,
    paths: Vec<Arc<KeptPath>>,
    /// Time when a path that is not a standby path was last seen up; at first, the start of the session.
    served: Mutex<Instant>,
    /// Counters of the earlier sessions of this copy.
    earlier: Earlier,
    /// Limits of the earlier sessions of this copy.
    limits_before: LimitTimes,
    /// Ends the waits of the backoff early.
    over: Latch,
    trusted: Mutex<Option<Fingerprint>>,
}

/// Runs one session of a copy, from the first lane to the last outcome.
pub(super) fn run_session(
    options: &CopySpec,
    job: &Job,
    initiator: &Initiator,
    totals: &Arc<CopyTotals>,
    started: &mut Instant,
) -> Result<(), Error> {
    let observer = &totals.observer;
    let options = &options.with_changed_contracts(&**observer);
    let direction = job.direction.of_data();
    let dialling = Dialling::new(options, &job.remote, direction, initiator, observer);
    let PathDials { first, on, others } = dialling.reach_paths()?;
    // The time that a user takes to answer a question is not part of the copy.
    *started += first.trusted_after;
    let started = *started;
    let (earlier, limits_before) = {
        let mut state = totals.state.lock();
        state.aborted = None;
        (state.earlier(direction == DataDirection::In), state.summary.limits.total)
    };
    let paths = kept_paths(options);
    let first_path = Arc::clone(&paths[on]);
    let lane_count = decide_lanes(options, &first_path, &first, observer);
    if first.via == Via::Quic {
        lane_memory(options, &first_path.options, lane_count)?;
    }
    let (end, receiver) = job.start_end(options, totals)?;
    if let Some(file) = &options.recording {
        end.limits().record(Arc::clone(file));
    }
    end.agree_rates(options.ceiling(), options.target());
    let supervisor = Arc::new(Supervisor {
        end: Arc::clone(&end),
        lanes: job.lanes(),
        hello: Hello {
            on_behalf_of: options.on_behalf_of.map(|key| key.0),
            grant: initiator.grant.clone(),
            ..Hello::new(random_session()?, job.request(options))
        },
        direction,
        welcomed: AtomicBool::new(false),
        remote: job.remote.clone(),
        initiator: initiator.clone(),
        options: options.clone(),
        observer: Arc::clone(observer),
        paths,
        served: Mutex::new(Instant::now()),
        earlier,
        limits_before,
        over: Latch::default(),
        trusted: Mutex::new(Some(first.lane.peer)),
    });
    supervisor.begin_path(&first_path, first, lane_count)?;
    others.into_iter().try_for_each(|(number, dialled)| supervisor.start_path(&supervisor.paths[number], dialled))?;
    let alive = Arc::clone(&supervisor);
    let spawned = thread::Builder::new().name("keep-alive".to_owned()).spawn(move || alive.keep_alive());
    spawned.map_err(|e| crate::no_thread("start the thread that keeps lanes alive", e))?;
    // A spool may have nothing to send for days. A replica may have nothing to send while others are faster.
    let stall = (options.follow.is_none() && !options.same).then(StallDetector::of_lanes);
    drive(&supervisor, &**observer, started, stall);
    supervisor.learn();
    depart(&supervisor.over, supervisor.live());
    if let Some(receiver) = &receiver {
        receiver.join();
    }
    supervisor.sum_up(&mut totals.state.lock())
}

fn kept_paths(options: &CopySpec) -> Vec<Arc<KeptPath>> {
    let several = options.paths.len() > 1;
    let path_of = |(number, path)| {
        let name = several.then(|| format!("path {}", number + 1));
        Arc::new(KeptPath::new(PathNumber(number as u8), path, name))
    };
    options.paths.iter().enumerate().map(path_of).collect()
}

/// Minimum share of the limits of paths for a record that these paths carry no more. Reason: a copy with a slow source
/// measures nothing about its paths, and its record must not slow down the next copy.
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
    let mut decision = lanes_asked(options, given).unwrap_or_else(by_transport);
    let held = (path_memory(options).0 / quic::MEMORY_MIN.0).max(1);
    if given.lanes.is_none() && first.via == Via::Quic && u64::from(decision.value) > held {
        let (lanes, memory) = (held as u32, path_memory(options));
        decision = Decision { value: lanes, rationale: format!("{lanes}, as many as {memory} of memory hold") };
    }
    observer.event(CopyEvent::Decision { subject: "lanes", rationale: path.say(decision.rationale) });
    decision.value.clamp(1, plan::LANES_MAX)
}

impl Supervisor {
    /// Starts the lanes of a path on which the agent has been reached.
    fn begin_path(self: &Arc<Self>, path: &Arc<KeptPath>, first: FirstLane, lane_count: u32) -> Result<(), Error> {
        let has_trial = self.may_try(path, &first);
        let FirstLane { via, addr, rate, lane, remembered, .. } = first;
        let stats = lane.handle.stats();
        let rtt = if stats.rtt_min.is_zero() { stats.rtt } else { stats.rtt_min };
        let given = &path.options.contract;
        let expected = given.expected(remembered.map(|record| record.rate));
        // Set once: only one thread reaches the agent on this path.
        let is_least = given.target.is_none()
            && remembered.is_some_and(|record| !record.is_full && given.ceiling.is_none_or(|most| record.rate < most));
        let _ = path.reached.set(ReachedPath { via, addr, rate, lane_count, rtt, expected, is_least });
        if has_trial {
            *path.trial.lock() = TransportTrial::new();
        }
        let mut first = Some(lane);
        // The other lanes wait until the rate is measured. Reason: many lanes split the low initial rate to one packet
        // a second for each. The lane that sends packet trains then has too little to send.
        let begins_with = if via == Via::Quic && expected.is_none() { 1 } else { lane_count };
        (0..begins_with).try_for_each(|_| self.start_lane(path, via, first.take()))
    }

    /// Returns true if a trial between TCP and QUIC is allowed on a path that was reached by QUIC. Conditions: Sterna
    /// chose the transport, the contract has nothing that TCP cannot keep, and the rate by TCP is not recorded yet. The
    /// session must have one path and no replicas. Reason: several paths or replicas limit a copy together, and the one
    /// that does cannot be determined.
    fn may_try(&self, path: &KeptPath, first: &FirstLane) -> bool {
        let contract = &path.options.contract;
        let is_free = contract.target.is_none() && contract.minimum.is_none() && contract.fairness == Fairness::Fair;
        let is_alone = self.paths.len() == 1 && !self.options.same;
        let is_ours = path.options.via == ViaChoice::Auto && first.via == Via::Quic && !first.is_other_known;
        is_free && is_alone && is_ours
    }

    /// Starts a path that has been dialled, if the agent was reached on it.
    fn begin_dialled(self: &Arc<Self>, path: &Arc<KeptPath>, dialled: DialledPath) {
        match dialled.wait() {
            Some(Ok(first)) => {
                let lane_count = decide_lanes(&self.options, path, &first, &self.observer);
                // If the host refuses more threads, the path keeps the lanes that it has.
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
            // A dry run reports the paths that would be used.
            self.begin_dialled(path, dialled);
            return Ok(());
        }
        let (supervisor, path) = (Arc::clone(self), Arc::clone(path));
        let spawned =
            thread::Builder::new().name("keep-path".to_owned()).spawn(move || supervisor.reach_path(&path, dialled));
        spawned.map(drop).map_err(|e| crate::no_thread("start the thread of a path", e))
    }

    /// Tries until the agent is reached on a path, or the session is over.
    fn reach_path(self: &Arc<Self>, path: &Arc<KeptPath>, dialled: DialledPath) {
        let dialling = Dialling::new(&self.options, &self.remote, self.direction, &self.initiator, &self.observer);
        let mut outcome = dialled.wait();
        let mut reported = String::new();
        let mut backoff = Backoff::new();
        while !self.is_ending() {
            let tried = match outcome.take() {
                Some(tried) => tried,
                None => match self.held_back(path) {
                    Some(time) => {
                        self.over.wait(time);
                        continue;
                    }
                    None => dialling.reach_path(usize::from(path.number.0)),
                },
            };
            let error = match tried {
                Ok(first) if Some(first.lane.peer) != *self.trusted.lock() => {
                    first.lane.handle.close("another agent");
                    let text = format!("{} is another agent, with the key {}: not used", first.addr, first.lane.peer);
                    Error::new(ErrorKind::Untrusted, Scope::Path, Phase::Prepare, text)
                }
                Ok(first) => {
                    let lane_count = decide_lanes(&self.options, path, &first, &self.observer);
                    // If the host refuses more threads, the path keeps the lanes that it has.
                    let _ = self.begin_path(path, first, lane_count);
                    return;
                }
                Err(error) => error,
            };
            let text = error.chain();
            if text != reported {
                let again = path.say(format!("{text}; it is tried again"));
                self.observer.event(CopyEvent::Session(SessionEvent::Notice(again)));
                reported = text;
            }
            self.over.wait(backoff.after(Duration::ZERO));
        }
    }

    /// Returns true if a path that is not a standby path is up and receives data.
    fn is_served(&self) -> bool {
        self.paths.iter().any(|path| !path.options.standby && path.is_up() && path.is_heard())
    }

    /// Returns the time for which the path must not be used at least, because it is a standby path; `None`: it may be
    /// used now.
    fn held_back(&self, path: &KeptPath) -> Option<Duration> {
        if !path.options.standby {
            return None;
        }
        self.note_served();
        STANDBY_AFTER.checked_sub(self.served.lock().elapsed()).filter(|left| !left.is_zero())
    }

    /// Records the time at which a path that is not a standby path is up.
    fn note_served(&self) {
        if self.is_served() {
            *self.served.lock() = Instant::now();
        }
    }

    fn is_ending(&self) -> bool {
        self.end.is_over() || self.observer.cancel().is_cancelled()
    }

    /// Starts the thread of one more lane. The first lane of a path is already connected.
    fn start_lane(self: &Arc<Self>, path: &Arc<KeptPath>, via: Via, connected: Option<Lane>) -> Result<(), Error> {
        let (supervisor, on) = (Arc::clone(self), Arc::clone(path));
        let run = move || supervisor.keep(&on, via, connected);
        let spawned = thread::Builder::new().name("keep-lane".to_owned()).spawn(run);
        spawned.map_err(|e| crate::no_thread("start the thread of a lane", e))?;
        path.lanes_wanted(via).fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Keeps one lane alive until the session is over, by `via` as long as that transport connects. The first lane of a
    /// path is already connected.
    fn keep(&self, path: &KeptPath, via: Via, first: Option<Lane>) {
        let Some(reached) = path.reached.get() else { return };
        let mut next = first;
        let mut backoff = Backoff::new();
        while !self.end.is_over() {
            if next.is_none() {
                let trial = path.trial.lock();
                let (is_retired, is_decided) = (trial.loser() == Some(via), !trial.is_on());
                drop(trial);
                if is_retired && is_decided {
                    return;
                }
                if let Some(time) = if is_retired { Some(TICK) } else { self.held_back(path) } {
                    self.over.wait(time);
                    continue;
                }
            }
            let born = Instant::now();
            let dialled = match next.take() {
                Some(lane) => Ok(lane),
                None => self.dial_again(path, reached, via),
            };
            let id = self.lanes.next();
            let was_dialled = dialled.is_ok();
            let handle = dialled.as_ref().ok().map(|lane| Arc::clone(&lane.handle));
            let outcome = dialled.and_then(|lane| self.run_lane(id, path, via, lane));
            // Drops the handle: a lane counts as live while a handle exists.
            let closed = handle.and_then(|handle| handle.closed_by_peer()).filter(|why| !why.is_empty());
            // A copy that was stopped needs no more lanes. The agent has received the abort, or detects the end of
            // the last lane.
            if self.is_ending() {
                return;
            }
            // The other lanes get the rate of a dead TCP lane.
            if self.sends() {
                path.live.share_rate();
            }
            let is_retired = path.is_retired(via);
            // Only errors of a lane that the copy needs end the session. A path whose network is down may come back. A
            // path or transport that carries no data yet, or no longer, must not end the session.
            let is_needed = (was_dialled || self.paths.len() == 1) && via == path.chosen_via(reached);
            let reason = match outcome {
                Err(error) if is_needed && ends_session(&error) => return self.end.abort(error),
                _ if is_retired => OTHER_TRANSPORT.to_owned(),
                Ok(()) if path.options.standby && self.is_served() => "another path is up again".to_owned(),
                Ok(()) => closed.map_or("closed by the agent".to_owned(), |why| format!("closed by the agent: {why}")),
                Err(error) => error.chain(),
            };
            self.observer.event(CopyEvent::LaneDown { lane: id.0, reason: path.say(reason), again: !is_retired });
            self.over.wait(backoff.after(born.elapsed()));
        }
    }

    /// Dials one more lane of a path. Uses the other transport if the own one no longer connects and Sterna chose it.
    fn dial_again(&self, path: &KeptPath, reached: &ReachedPath, via: Via) -> Result<Lane, Error> {
        let ReachedPath { addr, ref rate, lane_count: lanes, .. } = *reached;
        let by = |via| {
            let target = Target { via, addr, rate, lanes };
            // Limits that the host set for the first lane were reported then.
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
        // Neither transport connects: the path is down, and the error of the own transport is the reason.
        let Ok(lane) = by(other) else { return Err(failed) };
        self.decide("transport", path, format!("{other} for a lane: no {via} to {addr} any more: {}", failed.chain()));
        Ok(lane)
    }

    fn run_lane(&self, id: LaneId, path: &KeptPath, via: Via, lane: Lane) -> Result<(), Error> {
        let Some(reached) = path.reached.get() else { return Ok(()) };
        self.check_trust(&lane, self.paths.len() == 1 && via == path.chosen_via(reached))?;
        path.live.add(&lane.handle, reached.rate.clone(), self.options.congestion.is_some());
        // [`Self::compare_transports`] closes the lanes of the losing transport that it sees. This lane was still being
        // connected then.
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
        // An agent that was restarted, or that refuses the session, also accepts connections. Only its welcome confirms
        // the session.
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

    /// Checks that a lane ends at the agent that the first lane reached. For a lane that the copy needs, asks the user
    /// to trust another key.
    fn check_trust(&self, lane: &Lane, is_needed: bool) -> Result<(), Error> {
        let trusted = *self.trusted.lock();
        if trusted == Some(lane.peer) {
            return Ok(());
        }
        if !is_needed {
            // A path or transport that leads to another host must not end the lanes of the others.
            lane.handle.close("another agent");
            let text = format!("{} is another agent, with the key {}: not used", lane.handle.peer_addr(), lane.peer);
            return Err(Error::new(ErrorKind::Untrusted, Scope::Path, Phase::Prepare, text).retry(Retry::After));
        }
        self.observer.trust(&self.remote, &lane.peer)?;
        *self.trusted.lock() = Some(lane.peer);
        Ok(())
    }

    /// Sends keep-alives to the agent until the session is over. Runs in a separate thread, because the user interface
    /// may block.
    fn keep_alive(&self) {
        while !self.over.is_set() {
            self.paths.iter().for_each(|path| path.live.say_alive());
            self.over.wait(ALIVE_EVERY);
        }
    }

    /// Applies the rate contracts that the owner of the copy has changed.
    fn follow_contracts(&self) {
        let mut is_changed = false;
        for path in &self.paths {
            let (Some(asked), Some(reached)) = (self.observer.contract(path.number), path.reached.get()) else {
                continue;
            };
            let current = reached.rate.contract();
            let contract = RateContract { remembered: current.remembered, expected_rtt: current.expected_rtt, ..asked };
            if contract == current {
                continue;
            }
            is_changed = true;
            reached.rate.set_contract(contract);
            match self.sends() {
                true => path.live.share_rate(),
                false => self.end.send_contract(path.number, contract),
            }
        }
        if is_changed {
            let options = self.options.with_changed_contracts(&*self.observer);
            self.end.agree_rates(options.ceiling(), options.target());
        }
    }

    fn sends(&self) -> bool {
        self.direction == DataDirection::Out
    }

    /// Starts a trial of the transports on a path when the session gives a reason, and then uses the winner.
    fn compare_transports(self: &Arc<Self>, path: &Arc<KeptPath>, progress: &CopyProgress) {
        match path.trial(progress) {
            None => {}
            Some(TrialStep::Begin(decision)) => {
                let lanes = lanes_asked(&self.options, &path.options).map_or(plan::TRIAL_LANES, |lanes| lanes.value);
                self.decide("transport", path, decision.rationale);
                self.start_more(path, decision.value, 0, lanes);
            }
            Some(TrialStep::Take(decision)) => {
                let loser = decision.value.other();
                self.decide("transport", path, decision.rationale);
                let lanes = path.live.live().into_iter().filter(|lane| Via::from(lane.transport()) == loser);
                close_all(lanes, OTHER_TRANSPORT);
            }
        }
    }

    /// Updates the decisions about a path from what its lanes have measured.
    fn adapt_path(self: &Arc<Self>, path: &Arc<KeptPath>) {
        let Some(reached) = path.reached.get() else { return };
        if path.options.standby && path.is_up() && self.is_served() {
            return close_all(path.live.live(), "another path is up again");
        }
        for rationale in if self.sends() { path.live.adapt_congestion() } else { Vec::new() } {
            self.decide("congestion", path, rationale);
        }
        let given = &path.options;
        if path.trial.lock().is_on() {
            return;
        }
        let (chosen, via) = (path.chosen_via(reached), path.via(reached));
        let wanted = path.lanes_wanted(chosen).load(Ordering::Relaxed);
        if chosen == reached.via && wanted < reached.lane_count {
            // Only the search for the rate needs a lane alone on the path.
            if via == Via::Tcp || path.found_rate(self.direction).is_some() {
                self.start_more(path, chosen, wanted, reached.lane_count);
            }
            return;
        }
        if given.lanes.is_some() {
            return;
        }
        let more = match via {
            // Adds lanes if the measured rate is above what the present lanes can carry.
            Via::Quic if given.contract.target.is_some() => None,
            Via::Quic => {
                let most = lanes_most(path_memory(&self.options), given, reached.lane_count);
                let found = path.found(self.direction, lane_memory(&self.options, given, reached.lane_count).ok());
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

    /// Starts lanes of a path by `via`, from `there` to `wanted`.
    fn start_more(self: &Arc<Self>, path: &Arc<KeptPath>, via: Via, there: u32, wanted: u32) {
        // If the host refuses more threads, the path keeps the lanes that it has.
        let _ = (there..wanted).try_for_each(|_| self.start_lane(path, via, None));
    }

    fn decide(&self, subject: &'static str, path: &KeptPath, rationale: String) {
        self.observer.event(CopyEvent::Decision { subject, rationale: path.say(rationale) });
    }

    /// Writes the measured properties of the paths to the path cache.
    fn learn(&self) {
        let Some(dir) = &self.initiator.path_cache else { return };
        let file = PathCache::new(dir);
        let is_bound = self.limits().report.total.of_path() >= PATH_BOUND;
        for error in self.paths.iter().filter_map(|path| path.learn(self.direction, &file, is_bound).err()) {
            self.observer.event(CopyEvent::Session(SessionEvent::Notice(error.chain())));
        }
    }

    fn live(&self) -> Vec<Arc<dyn LaneHandle>> {
        self.paths.iter().flat_map(|path| path.live.live()).collect()
    }

    /// Returns the limits of the copy, with those of its earlier sessions.
    fn limits(&self) -> LimitsNow {
        let mut limits = self.end.limits().now();
        limits.report.total.merge(&self.limits_before);
        limits
    }

    /// Returns the progress of the copy. Data from earlier sessions of this copy does not count as present before the
    /// copy.
    fn session_progress(&self) -> Progress {
        let mut progress = self.end.progress();
        progress.counters = self.earlier.and(&progress.counters);
        progress.lanes = self.paths.iter().map(|path| path.up.load(Ordering::Relaxed)).sum();
        progress
    }

    /// Adds the results of the session to those of the copy. Errors: the session ended early.
    fn sum_up(&self, state: &mut TotalsState) -> Result<(), Error> {
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
}

impl Driven for Arc<Supervisor> {
    fn is_over(&self) -> bool {
        // On return, the last message of a lane is fully processed: sources to delete or move are gone.
        self.end.is_over() && self.end.has_followed_up()
    }

    fn wait(&self, time: Duration) {
        self.end.wait_until_over(time);
    }

    fn tick(&self) {
        self.follow_contracts();
        self.end.tick();
    }

    fn deadline(&self) -> Option<Instant> {
        self.end.deadline()
    }

    fn progress(&self) -> Option<CopyProgress> {
        let lanes = self.live().iter().map(|handle| handle.stats()).collect();
        let (session, files) = (self.session_progress(), self.end.active_files(ACTIVE_FILES_SHOWN));
        Some(CopyProgress { session, lanes, files, limits: self.limits(), ..CopyProgress::default() })
    }

    fn adapt(&self, progress: &CopyProgress) {
        self.paths.iter().for_each(|path| path.listen());
        self.note_served();
        for path in &self.paths {
            path.watch_rate(self.direction, progress);
            self.compare_transports(path, progress);
            self.adapt_path(path);
        }
    }

    fn abort(&self, error: Error) {
        self.end.abort(error);
    }
}
