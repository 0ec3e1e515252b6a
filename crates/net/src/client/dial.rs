//! The first lane of each path: which transport, which address; and every later one.
//!
//! What is given or remembered decides before anything is dialled. Otherwise both transports are dialled at once, and the round
//! trip of the one that answers first decides; the other one is waited for when it is the better, and not for long.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use sterna_proto::location::{HostPort, RemoteLocation};
use sterna_proto::memory::{PathRecord, Way};
use sterna_proto::plan::{self, Decision, TransportFacts, Via};
use sterna_proto::quantity::readable_time;
use sterna_proto::{ByteCount, Error, ErrorKind, Location, Phase, Retry, Scope, Setting};

use super::memory::{PathFile, key_of, unix_time};
use super::path::{PathOptions, STANDBY_AFTER, named};
use super::{CopyEvent, CopyObserver, CopySpec, Initiator, ViaChoice};
use crate::identity::Fingerprint;
use crate::lane::quic::{self, SharedRate};
use crate::lane::{Lane, tcp};
use crate::session::SessionEvent;

/// How long the better transport is waited for when the other one has answered, beside two round trips. Reason: a handshake over QUIC
/// takes one of them; a lost packet, sent again, another.
const BETTER_GRACE: Duration = Duration::from_millis(500);

/// How often a first lane is dialled when the peer ends the connection before it is known who that is. Reason: an agent that
/// strangers flood ends one in two, so that four tries get in with 0.94 (`handshakes`).
const DIAL_TRIES_MAX: u32 = 4;

/// Longest wait before the second try; twice as long before each later one. Reason: three of them are 3.5 s at most, and
/// copies that were begun together come apart.
const DIAL_PAUSE_MAX: Duration = Duration::from_millis(500);

/// No try begins later than this after the first. Reason: one handshake's time.
const DIAL_AGAIN_WITHIN: Duration = tcp::HANDSHAKE_TIME_MAX;

/// How often a wait looks whether the person wants to stop.
const LOOK: Duration = Duration::from_millis(100);

/// The first lane of a path.
pub(super) struct FirstLane {
    pub(super) via: Via,
    pub(super) lane: Lane,
    pub(super) addr: SocketAddr,
    pub(super) rate: SharedRate,
    /// What is known of its path by this transport.
    pub(super) remembered: Option<PathRecord>,
    /// It is known what the other transport carries.
    pub(super) is_other_known: bool,
    /// How long the question of trust took.
    pub(super) trusted_after: Duration,
}

/// The first path on which the agent was reached, and what becomes of the others.
pub(super) struct PathDials {
    pub(super) first: FirstLane,
    /// Which path that is.
    pub(super) on: usize,
    pub(super) others: Vec<(usize, DialledPath)>,
}

/// A path that is being dialled, or is not yet.
pub(super) struct DialledPath(Option<Receiver<Result<FirstLane, Error>>>);

impl DialledPath {
    /// Waits for the outcome; `None`: it was not dialled.
    pub(super) fn wait(self) -> Option<Result<FirstLane, Error>> {
        self.0?.recv().ok()
    }
}

/// Reaches the agent on paths.
#[derive(Clone)]
pub(super) struct Dialling {
    options: CopySpec,
    remote: RemoteLocation,
    way: Way,
    initiator: Initiator,
    observer: Arc<dyn CopyObserver>,
}

impl Dialling {
    pub(super) fn new(
        options: &CopySpec,
        remote: &RemoteLocation,
        way: Way,
        initiator: &Initiator,
        observer: &Arc<dyn CopyObserver>,
    ) -> Self {
        Self {
            options: options.clone(),
            remote: remote.clone(),
            way,
            initiator: initiator.clone(),
            observer: Arc::clone(observer),
        }
    }

    /// Dials every path that is no standby, all at once, and returns when the agent was reached on one; standby paths too, when it was
    /// reached on none for [`STANDBY_AFTER`]. Errors: it was not reached on any.
    pub(super) fn reach_paths(&self) -> Result<PathDials, Error> {
        let paths = &self.options.paths;
        if paths.len() == 1 {
            return self.reach_path(0).map(|first| PathDials { first, on: 0, others: Vec::new() });
        }
        let (tell, told) = channel();
        let mut failed: Vec<Error> = Vec::new();
        let mut dials: Vec<(usize, DialledPath)> = Vec::new();
        let (standby, main): (Vec<usize>, Vec<usize>) = (0..paths.len()).partition(|path| paths[*path].standby);
        // Standby paths wait for the others to fail, or to take their time.
        let mut rounds = [main, standby].into_iter().filter(|round| !round.is_empty());
        loop {
            if dials.is_empty() && !self.start_all(rounds.next(), &tell, &mut dials)? {
                return Err(together(failed));
            }
            let Ok(path) = told.recv_timeout(STANDBY_AFTER) else {
                self.start_all(rounds.next(), &tell, &mut dials)?;
                stop_if_asked(&self.observer)?;
                continue;
            };
            let Some(place) = dials.iter().position(|(other, _)| *other == path) else { continue };
            match dials.swap_remove(place).1.wait() {
                Some(Ok(first)) => {
                    // Those that have failed are dialled again later, as those are that were not dialled yet.
                    let pending = |path: usize, dials: &mut Vec<(usize, DialledPath)>| {
                        let place = dials.iter().position(|(other, _)| *other == path);
                        place.map_or(DialledPath(None), |place| dials.swap_remove(place).1)
                    };
                    let rest = (0..paths.len()).filter(|other| *other != path);
                    let others = rest.map(|other| (other, pending(other, &mut dials))).collect();
                    return Ok(PathDials { first, on: path, others });
                }
                Some(Err(error)) => failed.push(error),
                None => {}
            }
            stop_if_asked(&self.observer)?;
        }
    }

    /// Starts to dial each of these paths; whether there are any.
    fn start_all(
        &self,
        round: Option<Vec<usize>>,
        tell: &Sender<usize>,
        dials: &mut Vec<(usize, DialledPath)>,
    ) -> Result<bool, Error> {
        let Some(round) = round else { return Ok(false) };
        for path in round {
            dials.push((path, self.start(path, tell.clone())?));
        }
        Ok(true)
    }

    /// Starts to dial a path; its number is told when the outcome is there.
    fn start(&self, path: usize, tell: Sender<usize>) -> Result<DialledPath, Error> {
        let (report, outcome) = channel();
        let dialling = self.clone();
        let spawned = thread::Builder::new().name("dial-path".to_owned()).spawn(move || {
            let _told = Told { tell, path };
            // Nobody waits any more: the lane ends here.
            let _ = report.send(dialling.reach_path(path));
        });
        spawned.map_err(|e| crate::internal("start a thread that dials").caused_by(e))?;
        Ok(DialledPath(Some(outcome)))
    }

    /// Dials the first lane of a path: by the transport chosen, or by the other one when that was our choice and it fails.
    pub(super) fn reach_path(&self, path: usize) -> Result<FirstLane, Error> {
        let several = self.options.paths.len() > 1;
        let options = &self.options.paths[path];
        let on = PathDialling { dialling: self, options, name: several.then(|| format!("path {}", path + 1)) };
        let mut errors: Vec<Error> = Vec::new();
        for addr in resolve(&options.remote.clone().unwrap_or_else(|| self.remote.host_port()), options.local)? {
            let remembered = self.recall(options.local, addr);
            match on.reach(addr, &remembered) {
                Ok(Reached { via, lane, rate, congestion_refused }) => {
                    if let Some(error) = congestion_refused {
                        self.observer.event(CopyEvent::Session(SessionEvent::Notice(error.chain())));
                    }
                    let asked = Instant::now();
                    if let Err(error) = self.observer.trust(&self.remote, &lane.peer) {
                        lane.handle.close("not trusted");
                        let elsewhere = options.remote.as_ref().filter(|named| **named != self.remote.host_port());
                        return Err(elsewhere.map_or(error, |named| self.another_agent(named, &lane.peer)));
                    }
                    let known = |via| remembered.iter().find(|record| record.via == via).copied();
                    let (remembered, is_other_known) = (known(via), known(via.other()).is_some());
                    let trusted_after = asked.elapsed();
                    return Ok(FirstLane { via, lane, addr, rate, remembered, is_other_known, trusted_after });
                }
                Err(failed) if failed.iter().any(|error| error.retry == Retry::Never) => {
                    let ends = |error: &Error| error.retry == Retry::Never;
                    return Err(failed.into_iter().find(ends).unwrap_or_else(|| crate::internal("no error was found")));
                }
                Err(failed) => errors.extend(failed),
            }
            stop_if_asked(&self.observer)?;
        }
        Err(together(errors))
    }

    /// The error of a path that leads to another agent than the copy's.
    fn another_agent(&self, named: &HostPort, peer: &Fingerprint) -> Error {
        let text = format!(
            "the path to {named} leads to an agent with the key {peer}, which is not that of {}: every path must lead to the same agent",
            self.remote.host_port()
        );
        Error::new(ErrorKind::Untrusted, Scope::Path, Phase::Prepare, text).about(&[Setting::Paths])
    }

    /// What is known of the path from `local` to `addr`.
    fn recall(&self, local: Option<IpAddr>, addr: SocketAddr) -> Vec<PathRecord> {
        // Without a route the dial fails too, and says so.
        let key = key_of(self.way, local, addr).ok();
        let file = self.initiator.path_cache.as_deref().map(PathFile::new);
        file.zip(key).map(|(file, key)| file.recall(&key)).unwrap_or_default()
    }
}

/// Tells that the dial of a path is over, however it ended.
struct Told {
    tell: Sender<usize>,
    path: usize,
}

impl Drop for Told {
    fn drop(&mut self) {
        // Nobody waits any more.
        let _ = self.tell.send(self.path);
    }
}

/// All failures as one. A reader of one alone would suspect what lets that transport through and not the other.
fn together(mut errors: Vec<Error>) -> Error {
    let Some(last) = errors.pop() else { return crate::internal("no address was tried") };
    errors.into_iter().rev().fold(last, |after, error| {
        Error::new(error.kind, error.scope, error.phase, format!("{}; {}", error.chain(), after.chain()))
            .retry(error.retry)
    })
}

fn stop_if_asked(observer: &Arc<dyn CopyObserver>) -> Result<(), Error> {
    if observer.stopped() {
        return Err(Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Prepare, "stopped").retry(Retry::Never));
    }
    Ok(())
}

/// A lane that is connected, by the transport that was chosen.
struct Reached {
    via: Via,
    lane: Lane,
    rate: SharedRate,
    congestion_refused: Option<Error>,
}

/// Reaches the agent on one path.
struct PathDialling<'a> {
    dialling: &'a Dialling,
    options: &'a PathOptions,
    name: Option<String>,
}

impl PathDialling<'_> {
    /// Reaches the agent at `addr`. Errors: one for each transport that was tried.
    fn reach(&self, addr: SocketAddr, remembered: &[PathRecord]) -> Result<Reached, Vec<Error>> {
        let contract = &self.options.contract;
        let facts = TransportFacts { contract, remembered, rtt: None, now: unix_time() };
        let decision = match self.options.via {
            ViaChoice::Only(via) => {
                let rationale = format!("{via}, as given");
                self.say(&rationale);
                return self.dial(via, addr, remembered).map_err(|error| vec![error]);
            }
            ViaChoice::Auto => plan::choose_transport(&facts),
        };
        let Some(Decision { value: via, rationale }) = decision else { return self.race(addr, facts) };
        self.say(&rationale);
        let failed = match self.dial(via, addr, remembered) {
            Err(error) if error.retry != Retry::Never => error,
            reached => return reached.map_err(|error| vec![error]),
        };
        let other = via.other();
        self.say(&format!("{other}: no {via} to {addr}: {}", failed.chain()));
        stop_if_asked(&self.dialling.observer).map_err(|error| vec![error])?;
        self.dial(other, addr, remembered).map_err(|error| vec![failed, error])
    }

    fn say(&self, rationale: &str) {
        let rationale = named(self.name.as_deref(), rationale.to_owned());
        self.dialling.observer.event(CopyEvent::Decision { subject: "transport", rationale });
    }

    fn dial(&self, via: Via, addr: SocketAddr, remembered: &[PathRecord]) -> Result<Reached, Error> {
        let mut contract = self.options.contract;
        let known = remembered.iter().find(|record| record.via == via);
        if let Some(record) = known {
            contract.remembered = Some(record.rate);
            contract.expected_rtt = Some(record.rtt);
        }
        let rate = SharedRate::new(contract);
        let lanes = lanes_to_come(&self.dialling.options, self.options, known);
        let (lane, congestion_refused) = self.dial_first(&Target { via, addr, rate: &rate, lanes })?;
        Ok(Reached { via, lane, rate, congestion_refused })
    }

    fn dial_first(&self, target: &Target<'_>) -> Result<DialledLane, Error> {
        let Dialling { options, initiator, observer, .. } = &self.dialling;
        dial_first((options, self.options), target, initiator, observer, |rationale| self.say(rationale))
    }

    /// Dials both transports at once, and takes the one that suits the round trip that is found.
    fn race(&self, addr: SocketAddr, facts: TransportFacts<'_>) -> Result<Reached, Vec<Error>> {
        let (tell, answers) = channel();
        for via in [Via::Quic, Via::Tcp] {
            let (tell, dialling, options) = (tell.clone(), self.dialling.clone(), self.options.clone());
            let name = self.name.clone();
            let dialled = thread::Builder::new().name("dial".to_owned()).spawn(move || {
                let rate = SharedRate::new(options.contract);
                let lanes = lanes_to_come(&dialling.options, &options, None);
                let on = PathDialling { dialling: &dialling, options: &options, name };
                let reached = on
                    .dial_first(&Target { via, addr, rate: &rate, lanes })
                    .map(|(lane, congestion_refused)| Reached { via, lane, rate, congestion_refused });
                // Nobody waits any more: the lane ends here.
                let _ = tell.send(reached);
            });
            dialled.map_err(|e| vec![crate::internal("start a thread that dials").caused_by(e)])?;
        }
        drop(tell);
        let first = self.next_answer(&answers, None).map_err(|error| vec![error])?;
        let first = match first {
            Some(Ok(reached)) => reached,
            // Too little memory for QUIC's lanes is enough for TCP.
            Some(Err(error)) if error.retry == Retry::Never && error.kind != ErrorKind::Usage => {
                return Err(vec![error]);
            }
            Some(Err(error)) => return self.left_over(&answers, addr, error),
            None => return Err(vec![crate::internal("no transport was dialled")]),
        };
        let stats = first.lane.handle.stats();
        let rtt = if stats.rtt_min.is_zero() { stats.rtt } else { stats.rtt_min };
        let Some(choice) = plan::choose_transport(&TransportFacts { rtt: Some(rtt), ..facts }) else {
            return Ok(first);
        };
        if choice.value == first.via {
            self.say(&choice.rationale);
            return Ok(first);
        }
        let grace = rtt * 2 + BETTER_GRACE;
        let via = first.via;
        match self.next_answer(&answers, Some(grace)).map_err(|error| vec![error])? {
            Some(Ok(better)) => {
                self.say(&choice.rationale);
                first.lane.handle.close("another transport was chosen");
                Ok(better)
            }
            Some(Err(error)) => {
                self.say(&format!("{via}: no {} to {addr}: {}", choice.value, error.chain()));
                Ok(first)
            }
            None => {
                self.say(&format!("{via}: no answer by {} from {addr} within {}", choice.value, readable_time(grace)));
                Ok(first)
            }
        }
    }

    /// One transport has failed: the other one, whichever it is.
    fn left_over(
        &self,
        answers: &Receiver<Result<Reached, Error>>,
        addr: SocketAddr,
        failed: Error,
    ) -> Result<Reached, Vec<Error>> {
        match self.next_answer(answers, None).map_err(|error| vec![error])? {
            Some(Ok(reached)) => {
                self.say(&format!("{}: the other transport does not reach {addr}: {}", reached.via, failed.chain()));
                Ok(reached)
            }
            Some(Err(error)) => Err(vec![failed, error]),
            None => Err(vec![failed]),
        }
    }

    /// Waits for a transport to answer; `None`: none within the time, or no more is left. Errors: the person wants to stop.
    fn next_answer(
        &self,
        answers: &Receiver<Result<Reached, Error>>,
        within: Option<Duration>,
    ) -> Result<Option<Result<Reached, Error>>, Error> {
        let begun = Instant::now();
        loop {
            stop_if_asked(&self.dialling.observer)?;
            let left = within.map_or(LOOK, |within| within.saturating_sub(begun.elapsed()).min(LOOK));
            match answers.recv_timeout(left) {
                Ok(answer) => return Ok(Some(answer)),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) if within.is_some_and(|within| begun.elapsed() >= within) => {
                    return Ok(None);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

/// Dials a first lane of a path, and again when the peer ends the connection before it is known who that is.
///
/// `say` hears of each further try. Errors: that of the last try; `Cancelled` when the person wants to stop.
pub(super) fn dial_first(
    (options, path): (&CopySpec, &PathOptions),
    target: &Target<'_>,
    initiator: &Initiator,
    observer: &Arc<dyn CopyObserver>,
    say: impl Fn(&str),
) -> Result<DialledLane, Error> {
    let begun = Instant::now();
    let mut tries = 1;
    loop {
        let error = match dial(options, path, target, initiator) {
            Err(error) if error.is_cut_in_handshake() && tries < DIAL_TRIES_MAX => error,
            outcome => return outcome,
        };
        // Without random numbers of the kernel the pause is the longest.
        let pause = pause_after(tries, getrandom::u32().unwrap_or(u32::MAX));
        if begun.elapsed() + pause > DIAL_AGAIN_WITHIN {
            return Err(error);
        }
        tries += 1;
        let again = format!("try {tries} of {DIAL_TRIES_MAX} in {}", readable_time(pause));
        say(&format!("{}: {}; {again}", target.via, error.chain()));
        let until = Instant::now() + pause;
        while Instant::now() < until {
            stop_if_asked(observer)?;
            thread::sleep(until.saturating_duration_since(Instant::now()).min(LOOK));
        }
    }
}

/// How long to wait after try number `tries`: between half of the longest pause and all of it, by a random number.
fn pause_after(tries: u32, random: u32) -> Duration {
    let longest = DIAL_PAUSE_MAX * (1 << (tries - 1));
    longest.mul_f64(0.5 + f64::from(random) / f64::from(u32::MAX) / 2.0)
}

/// The addresses of an agent, of the family of `local` when that is given. Errors: `Unreachable`.
pub(super) fn resolve(remote: &HostPort, local: Option<IpAddr>) -> Result<Vec<SocketAddr>, Error> {
    let failed = |text: String| Error::new(ErrorKind::Unreachable, Scope::Path, Phase::Prepare, text);
    let found: Vec<SocketAddr> = match remote.host.parse::<IpAddr>() {
        Ok(ip) => vec![SocketAddr::new(ip, remote.port)],
        Err(_) => (remote.host.as_str(), remote.port)
            .to_socket_addrs()
            .map_err(|e| failed(format!("look up host {}", remote.host)).caused_by(e))?
            .collect(),
    };
    if found.is_empty() {
        return Err(failed(format!("look up host {}: it has no address", remote.host)));
    }
    let suits = |addr: &SocketAddr| local.is_none_or(|local| local.is_ipv4() == addr.is_ipv4());
    let addrs: Vec<SocketAddr> = found.into_iter().filter(suits).collect();
    match (addrs.is_empty(), local) {
        (true, Some(local)) => Err(failed(format!("reach {remote} from {local}: it has no address of that family"))),
        _ => Ok(addrs),
    }
}

/// A lane, and why the congestion control that was asked for is not in use.
type DialledLane = (Lane, Option<Error>);

/// Where a lane is dialled, and how.
pub(super) struct Target<'a> {
    pub(super) via: Via,
    pub(super) addr: SocketAddr,
    /// The rate that it shares with the other lanes of its path.
    pub(super) rate: &'a SharedRate,
    /// How many these are, with it.
    pub(super) lanes: u32,
}

/// Dials one lane of a path.
pub(super) fn dial(
    options: &CopySpec,
    path: &PathOptions,
    target: &Target<'_>,
    initiator: &Initiator,
) -> Result<DialledLane, Error> {
    let Target { via, addr, rate, lanes } = target;
    let local = path.local.map(|ip| SocketAddr::new(ip, 0));
    match via {
        Via::Tcp => {
            let tcp = tcp::TcpOptions { congestion: options.congestion.clone(), ..tcp::TcpOptions::default() };
            let mut lane = tcp::connect(&tcp::ConnectOptions { remote: *addr, local, tcp }, &initiator.identity)?;
            let congestion_refused = lane.congestion_refused.take();
            Ok((lane.into_lane(), congestion_refused))
        }
        Via::Quic => {
            let mut quic = quic::QuicOptions::new(*addr, (*rate).clone());
            quic.local = local;
            quic.lanes = *lanes;
            quic.memory = lane_memory(options, path, *lanes)?;
            Ok((quic::connect(&quic, &initiator.identity)?, None))
        }
    }
}

/// How many QUIC lanes a path will have, for the first of them, which has its part of the memory and no more.
fn lanes_to_come(options: &CopySpec, path: &PathOptions, remembered: Option<&PathRecord>) -> u32 {
    let rate = path.contract.expected(remembered.map(|record| record.rate));
    let by_rate = || plan::choose_quic_lanes(rate, remembered.map_or(plan::MTU_USUAL, |record| record.mtu));
    let lanes = lanes_asked(options, path).unwrap_or_else(by_rate).value;
    // Too little memory for them is told when QUIC is what was chosen.
    if lane_memory(options, path, lanes).is_ok() { lanes } else { 1 }
}

/// How many lanes a path gets whatever its transport; `None`: what that and the rate say.
pub(super) fn lanes_asked(options: &CopySpec, path: &PathOptions) -> Option<Decision<u32>> {
    if let Some(lanes) = path.lanes {
        return Some(Decision { value: lanes, rationale: format!("{lanes}, as given") });
    }
    // Each lane is one connection to the web server, which may be far away.
    let is_web = options.sources.iter().all(|source| matches!(source, Location::Web(_)));
    is_web.then(plan::choose_web_lanes)
}

/// Processor cores of this host.
pub(super) fn cores() -> u32 {
    thread::available_parallelism().map_or(1, |count| count.get() as u32)
}

/// Most QUIC lanes that a path which begins with `lanes` may have in the end: others come when its rate is found, and there is memory for them.
///
/// `memory`: of all lanes of the path.
pub(super) fn lanes_most(memory: ByteCount, path: &PathOptions, lanes: u32) -> u32 {
    let held = memory.0 / quic::MEMORY_MIN.0;
    match (path.lanes, path.contract.target) {
        (None, None) => lanes.max(held.min(u64::from(plan::quic_lanes_found_most(cores()))) as u32),
        _ => lanes,
    }
}

/// What the lanes of one path may hold together.
pub(super) fn path_memory(options: &CopySpec) -> ByteCount {
    ByteCount(options.memory.0 / options.paths.len().max(1) as u64)
}

/// What each QUIC lane of a path may hold, with a part set aside for those that come later. Errors: `Usage`, when that is too little for a lane to work.
pub(super) fn lane_memory(options: &CopySpec, path: &PathOptions, lanes: u32) -> Result<ByteCount, Error> {
    let available = path_memory(options);
    let memory = ByteCount((available.0 / u64::from(lanes_most(available, path, lanes))).max(quic::MEMORY_MIN.0));
    if ByteCount(memory.0 * u64::from(lanes)) > available {
        let text = format!(
            "{} of memory are too little for {lanes} QUIC lane{}{}: each needs {} at least; give more, or fewer lanes",
            options.memory,
            if lanes == 1 { "" } else { "s" },
            if options.paths.len() > 1 { format!(" on each of {} paths", options.paths.len()) } else { String::new() },
            quic::MEMORY_MIN
        );
        return Err(Error::usage(&[Setting::Memory, Setting::Lanes], text));
    }
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_between_tries_grow_apart_and_have_an_end() {
        let millis = |tries, random| pause_after(tries, random).as_millis();
        assert_eq!([1, 2, 3].map(|tries| millis(tries, 0)), [250, 500, 1000]);
        assert_eq!([1, 2, 3].map(|tries| millis(tries, u32::MAX)), [500, 1000, 2000]);
    }

    #[test]
    fn no_more_lanes_come_than_there_is_memory_for() {
        let most = |lanes: u64, path: &PathOptions| lanes_most(ByteCount(quic::MEMORY_MIN.0 * lanes), path, 1);
        let free = PathOptions::default();
        assert_eq!((most(1, &free), most(3, &free), most(1000, &free)), (1, 3, plan::quic_lanes_found_most(cores())));
        assert_eq!(most(1000, &PathOptions { lanes: Some(1), ..free }), 1, "as many as were asked for");
    }
}
