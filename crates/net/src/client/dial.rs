//! Dials the lanes of a path, and chooses transport and address for the first one.
//!
//! Given values and the path cache decide before any dial. Otherwise both transports are dialled at the same time, and
//! the RTT of the first answer decides. If the slower answer is the better transport, the dial waits a short time for
//! it.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use sterna_proto::location::{HostPort, RemoteLocation};
use sterna_proto::path_cache::{DataDirection, PathRecord};
use sterna_proto::plan::{self, Decision, TransportFacts, Via};
use sterna_proto::quantity::readable_time;
use sterna_proto::{ByteCount, Error, ErrorKind, Location, Phase, Retry, Scope, Setting};

use super::path::{STANDBY_AFTER, named};
use super::path_cache::{PathCache, key_of, unix_time};
use super::spec::{CopyEvent, CopyObserver, CopySpec, Initiator, PathOptions, ViaChoice};
use crate::cancel::OnCancel;
use crate::identity::Fingerprint;
use crate::lane::quic::{self, SharedRate};
use crate::lane::{Lane, tcp};
use crate::session::SessionEvent;

/// Time to wait for the better transport after the other one has answered, in addition to two round trips. Reason: a
/// handshake over QUIC takes one round trip, and the retransmission of a lost packet another.
const BETTER_GRACE: Duration = Duration::from_millis(500);

/// Maximum number of tries for a first lane if the peer ends the connection before it has identified itself. Reason: an
/// agent under a flood of unknown clients ends one connection in two, so that four tries succeed with probability 0.94
/// (`handshakes`).
const DIAL_TRIES_MAX: u32 = 4;

/// Time that the chosen transport has to connect before the other one is dialled too. Reason: a handshake over a path
/// of 660 ms whose first packet is lost takes 1.7 s over QUIC and 3 s over TCP; a blocked port costs each copy this
/// time.
const HEAD_START: Duration = Duration::from_secs(3);

/// Maximum wait before the second try; doubles before each later try. Reason: three waits take at most 3.5 s, and
/// copies that started at the same time spread out.
const DIAL_PAUSE_MAX: Duration = Duration::from_millis(500);

/// Maximum time from the first try to the start of the last. Reason: duration of one handshake.
const DIAL_AGAIN_WITHIN: Duration = tcp::HANDSHAKE_TIME_MAX;

/// First lane of a path.
pub(super) struct FirstLane {
    pub(super) via: Via,
    pub(super) lane: Lane,
    pub(super) addr: SocketAddr,
    pub(super) rate: SharedRate,
    /// Record of the path by this transport, from the path cache.
    pub(super) remembered: Option<PathRecord>,
    /// True if the path cache has a record for the other transport.
    pub(super) is_other_known: bool,
    /// Time that the question about trust took.
    pub(super) trusted_after: Duration,
}

/// First path on which the agent was reached, with the dials of the other paths.
pub(super) struct PathDials {
    pub(super) first: FirstLane,
    /// Index of that path.
    pub(super) on: usize,
    pub(super) others: Vec<(usize, DialledPath)>,
}

/// Path that is being dialled; `None`: it is not dialled yet.
pub(super) struct DialledPath(Option<Receiver<Result<FirstLane, Error>>>);

impl DialledPath {
    /// Waits for the outcome; `None`: the path was not dialled.
    pub(super) fn wait(self) -> Option<Result<FirstLane, Error>> {
        self.0?.recv().ok()
    }
}

/// Dials the agent on paths.
#[derive(Clone)]
pub(super) struct Dialling {
    options: CopySpec,
    remote: RemoteLocation,
    direction: DataDirection,
    initiator: Initiator,
    observer: Arc<dyn CopyObserver>,
}

impl Dialling {
    pub(super) fn new(
        options: &CopySpec,
        remote: &RemoteLocation,
        direction: DataDirection,
        initiator: &Initiator,
        observer: &Arc<dyn CopyObserver>,
    ) -> Self {
        Self {
            options: options.clone(),
            remote: remote.clone(),
            direction,
            initiator: initiator.clone(),
            observer: Arc::clone(observer),
        }
    }

    /// Dials every path that is not a standby path, all at the same time. Returns when the agent was reached on one
    /// path. Also dials standby paths if no path succeeds for [`STANDBY_AFTER`]. Errors: the agent was not reached on
    /// any path.
    pub(super) fn reach_paths(&self) -> Result<PathDials, Error> {
        let paths = &self.options.paths;
        if paths.len() == 1 {
            return self.reach_path(0).map(|first| PathDials { first, on: 0, others: Vec::new() });
        }
        let (notify, ended) = channel();
        let notify = Arc::new(notify);
        let _stop = self.observer.cancel().send_to(&notify, None);
        let mut failed: Vec<Error> = Vec::new();
        let mut dials: Vec<(usize, DialledPath)> = Vec::new();
        let (standby, main): (Vec<usize>, Vec<usize>) = (0..paths.len()).partition(|path| paths[*path].standby);
        // Standby paths wait until the others have failed, or have not succeeded in time.
        let mut rounds = [main, standby].into_iter().filter(|round| !round.is_empty());
        loop {
            if dials.is_empty() && !self.start_all(rounds.next(), &notify, &mut dials)? {
                return Err(together(failed));
            }
            let path = ended.recv_timeout(STANDBY_AFTER);
            stop_if_asked(&self.observer)?;
            let Ok(path) = path else {
                self.start_all(rounds.next(), &notify, &mut dials)?;
                continue;
            };
            let Some(place) = dials.iter().position(|(other, _)| Some(*other) == path) else { continue };
            let (on, dial) = dials.swap_remove(place);
            match dial.wait() {
                Some(Ok(first)) => {
                    // The session dials paths again later that have failed or have not been dialled.
                    let pending = |path: usize, dials: &mut Vec<(usize, DialledPath)>| {
                        let place = dials.iter().position(|(other, _)| *other == path);
                        place.map_or(DialledPath(None), |place| dials.swap_remove(place).1)
                    };
                    let rest = (0..paths.len()).filter(|other| *other != on);
                    let others = rest.map(|other| (other, pending(other, &mut dials))).collect();
                    return Ok(PathDials { first, on, others });
                }
                Some(Err(error)) => failed.push(error),
                None => {}
            }
        }
    }

    /// Starts to dial each of these paths. Returns false if there are none.
    fn start_all(
        &self,
        round: Option<Vec<usize>>,
        notify: &Arc<Sender<Option<usize>>>,
        dials: &mut Vec<(usize, DialledPath)>,
    ) -> Result<bool, Error> {
        let Some(round) = round else { return Ok(false) };
        for path in round {
            dials.push((path, self.start(path, Arc::clone(notify))?));
        }
        Ok(true)
    }

    /// Starts to dial a path; sends its number to `notify` when the outcome is available.
    fn start(&self, path: usize, notify: Arc<Sender<Option<usize>>>) -> Result<DialledPath, Error> {
        let (report, outcome) = channel();
        let dialling = self.clone();
        let spawned = thread::Builder::new().name("dial-path".to_owned()).spawn(move || {
            let _notice = EndNotice { notify, path };
            // If nobody waits any more, the lane ends here.
            let _ = report.send(dialling.reach_path(path));
        });
        spawned.map_err(|e| crate::no_thread("start a thread that dials", e))?;
        Ok(DialledPath(Some(outcome)))
    }

    /// Dials the first lane of a path by the chosen transport. If that fails and Sterna chose it, dials by the other
    /// one.
    pub(super) fn reach_path(&self, path: usize) -> Result<FirstLane, Error> {
        let several = self.options.paths.len() > 1;
        let options = &self.options.paths[path];
        let on = PathDialling { dialling: self, options, name: several.then(|| format!("path {}", path + 1)) };
        let mut errors: Vec<Error> = Vec::new();
        let remote = options.remote.clone().unwrap_or_else(|| self.remote.host_port());
        let local = options.local;
        for addr in unless_stopped(&*self.observer, "resolve", move || resolve(&remote, local))? {
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
        Err(unreached(errors))
    }

    /// Returns the error of a path that leads to another agent.
    fn another_agent(&self, named: &HostPort, peer: &Fingerprint) -> Error {
        let text = format!(
            "the path to {named} leads to an agent with the key {peer}, which is not that of {}: every path must lead to the same agent",
            self.remote.host_port()
        );
        Error::new(ErrorKind::Untrusted, Scope::Path, Phase::Prepare, text).about(&[Setting::Paths])
    }

    /// Returns the records of the path from `local` to `addr`.
    fn recall(&self, local: Option<IpAddr>, addr: SocketAddr) -> Vec<PathRecord> {
        // Without a route the dial fails too, and returns the error.
        let key = key_of(self.direction, local, addr).ok();
        let file = self.initiator.path_cache.as_deref().map(PathCache::new);
        file.zip(key).map(|(file, key)| file.recall(&key)).unwrap_or_default()
    }
}

/// Reports that the dial of a path has ended, also after a panic.
struct EndNotice {
    notify: Arc<Sender<Option<usize>>>,
    path: usize,
}

impl Drop for EndNotice {
    fn drop(&mut self) {
        // Nobody may be waiting any more.
        let _ = self.notify.send(Some(self.path));
    }
}

/// Checks for the user after a refused connection.
const CHECKS_WHEN_REFUSED: &str =
    "check that the agent runs there, that the port is right, and that no firewall rejects the connection";

/// Joins the errors of all dials of an agent to one. If a dial was refused, adds the checks for the user.
pub(super) fn unreached(errors: Vec<Error>) -> Error {
    let was_refused = errors.iter().any(is_refusal);
    let error = together(errors);
    if !was_refused {
        return error;
    }
    let text = format!("{}; {CHECKS_WHEN_REFUSED}", error.chain());
    error.reworded(text)
}

/// Returns true if the host of the peer, or a firewall, refused the connection.
fn is_refusal(error: &Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<io::Error>());
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::ConnectionRefused)
}

/// Joins all errors to one. Reason: one error alone suggests a wrong cause, such as a firewall that blocks one
/// transport only.
fn together(mut errors: Vec<Error>) -> Error {
    let Some(last) = errors.pop() else { return crate::internal("no address was tried") };
    errors.into_iter().rev().fold(last, |after, error| {
        Error::new(error.kind, error.scope, error.phase, format!("{}; {}", error.chain(), after.chain()))
            .retry(error.retry)
    })
}

fn stop_if_asked(observer: &Arc<dyn CopyObserver>) -> Result<(), Error> {
    if observer.cancel().is_cancelled() { Err(stopped()) } else { Ok(()) }
}

/// Runs `work` in a separate thread called `name`, and waits for its result or for the user to stop the copy. Work that
/// nobody waits for any more goes on until it ends by itself.
///
/// Errors: as `work`; `Cancelled`; the host gives no thread.
pub(super) fn unless_stopped<T: Send + 'static>(
    observer: &dyn CopyObserver,
    name: &str,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let (notify, result) = channel();
    let notify = Arc::new(notify);
    let _stop = observer.cancel().send_to(&notify, Err(stopped()));
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(move || {
        // If nobody waits any more, the result ends here, such as a lane.
        let _ = notify.send(work());
    });
    spawned.map_err(|e| crate::no_thread("start a thread that dials", e))?;
    result.recv().unwrap_or_else(|_| Err(crate::internal("a thread that dials has ended")))
}

/// Returns the error of a dial that the user has stopped.
fn stopped() -> Error {
    Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Prepare, "stopped").retry(Retry::Never)
}

/// Connected lane, by the transport that was chosen.
struct Reached {
    via: Via,
    lane: Lane,
    rate: SharedRate,
    congestion_refused: Option<Error>,
}

/// Dials the agent on one path.
struct PathDialling<'a> {
    dialling: &'a Dialling,
    options: &'a PathOptions,
    name: Option<String>,
}

impl PathDialling<'_> {
    /// Connects to the agent at `addr`. Errors: one for each transport that was tried.
    fn reach(&self, addr: SocketAddr, remembered: &[PathRecord]) -> Result<Reached, Vec<Error>> {
        let contract = &self.options.contract;
        let facts = TransportFacts { contract, remembered, rtt: None, now: unix_time() };
        let decision = match self.options.via {
            ViaChoice::Only(via) => {
                let rationale = format!("{via}, as given");
                self.say(&rationale);
                let dial = self.detached(via, addr, remembered);
                return unless_stopped(&*self.dialling.observer, "dial", dial).map_err(|error| vec![error]);
            }
            ViaChoice::Auto => plan::choose_transport(&facts),
        };
        let Some(Decision { value: via, rationale }) = decision else { return self.race(addr, facts) };
        self.say(&rationale);
        self.prefer(via, addr, remembered)
    }

    /// Dials by `via`, and by the other transport too if `via` fails or does not answer within [`HEAD_START`]. Takes
    /// the first one that connects. Errors: one for each transport.
    fn prefer(&self, via: Via, addr: SocketAddr, remembered: &[PathRecord]) -> Result<Reached, Vec<Error>> {
        let (notify, answers) = channel();
        let notify = Arc::new(notify);
        let _stop = self.stop(&notify);
        self.start_dial(via, addr, remembered, Arc::clone(&notify)).map_err(|error| vec![error])?;
        let (other, mut failed) = (via.other(), Vec::new());
        match self.next_answer(&answers, Some(HEAD_START)).map_err(|error| vec![error])? {
            Some(Err(error)) if error.retry != Retry::Never => {
                self.say(&format!("{other}: no {via} to {addr}: {}", error.chain()));
                failed.push(error);
            }
            Some(reached) => return reached.map_err(|error| vec![error]),
            None => {
                let time = readable_time(HEAD_START);
                self.say(&format!("{other} too: no answer by {via} from {addr} within {time}"));
            }
        }
        self.start_dial(other, addr, remembered, notify).map_err(|error| vec![error])?;
        while let Some(answer) = self.next_answer(&answers, None).map_err(|error| vec![error])? {
            match answer {
                Ok(reached) if reached.via == other => {
                    let port = if via == Via::Quic { "UDP" } else { "TCP" };
                    let reason = failed.pop().map_or("no answer".to_owned(), |error| error.chain());
                    let text = format!(
                        "no {via} to {addr} ({reason}), so that {other} is used; does a firewall block {port}?"
                    );
                    let text = named(self.name.as_deref(), text);
                    self.dialling.observer.event(CopyEvent::Session(SessionEvent::Notice(text)));
                    return Ok(reached);
                }
                Ok(reached) => return Ok(reached),
                Err(error) => {
                    let is_final = error.retry == Retry::Never;
                    failed.push(error);
                    if is_final {
                        break;
                    }
                }
            }
        }
        Err(failed)
    }

    /// Dials by `via` in a separate thread, which sends the outcome to `notify`.
    fn start_dial(
        &self,
        via: Via,
        addr: SocketAddr,
        remembered: &[PathRecord],
        notify: Arc<Sender<Result<Reached, Error>>>,
    ) -> Result<(), Error> {
        let dial = self.detached(via, addr, remembered);
        let dialled = thread::Builder::new().name("dial".to_owned()).spawn(move || {
            // If nobody waits any more, the lane ends here.
            let _ = notify.send(dial());
        });
        dialled.map(drop).map_err(|e| crate::no_thread("start a thread that dials", e))
    }

    /// Returns a dial by `via` for another thread.
    fn detached(
        &self,
        via: Via,
        addr: SocketAddr,
        remembered: &[PathRecord],
    ) -> impl FnOnce() -> Result<Reached, Error> + Send + use<> {
        let (dialling, options, name) = (self.dialling.clone(), self.options.clone(), self.name.clone());
        let remembered = remembered.to_vec();
        move || {
            let on = PathDialling { dialling: &dialling, options: &options, name };
            on.dial(via, addr, &remembered)
        }
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

    /// Dials both transports at the same time, and takes the one that suits the measured RTT.
    fn race(&self, addr: SocketAddr, facts: TransportFacts<'_>) -> Result<Reached, Vec<Error>> {
        let (notify, answers) = channel();
        let notify = Arc::new(notify);
        let _stop = self.stop(&notify);
        for via in [Via::Quic, Via::Tcp] {
            self.start_dial(via, addr, &[], Arc::clone(&notify)).map_err(|error| vec![error])?;
        }
        drop(notify);
        let first = self.next_answer(&answers, None).map_err(|error| vec![error])?;
        let first = match first {
            Some(Ok(reached)) => reached,
            // If the memory is too small for QUIC lanes, it is still enough for TCP.
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

    /// Takes the remaining transport after the first one has failed.
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

    /// Waits for a transport to answer. Returns `None` if none answered in the time, or none is left. Errors: the user
    /// wants to stop.
    fn next_answer(
        &self,
        answers: &Receiver<Result<Reached, Error>>,
        within: Option<Duration>,
    ) -> Result<Option<Result<Reached, Error>>, Error> {
        let answer = match within {
            Some(time) => answers.recv_timeout(time).ok(),
            None => answers.recv().ok(),
        };
        stop_if_asked(&self.dialling.observer)?;
        Ok(answer)
    }

    /// Ends waits for `answers` when the user wants to stop.
    fn stop(&self, answers: &Arc<Sender<Result<Reached, Error>>>) -> OnCancel {
        self.dialling.observer.cancel().send_to(answers, Err(stopped()))
    }
}

/// Dials a first lane of a path. Dials again if the peer ends the connection before it has identified itself.
///
/// Calls `say` before each further try. Errors: that of the last try; `Cancelled` if the user wants to stop.
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
        // If the kernel returns no random number, the pause is the longest.
        let pause = pause_after(tries, getrandom::u32().unwrap_or(u32::MAX));
        if begun.elapsed() + pause > DIAL_AGAIN_WITHIN {
            return Err(error);
        }
        tries += 1;
        let again = format!("try {tries} of {DIAL_TRIES_MAX} in {}", readable_time(pause));
        say(&format!("{}: {}; {again}", target.via, error.chain()));
        observer.cancel().wait(pause);
        stop_if_asked(observer)?;
    }
}

/// Returns the wait after try number `tries`: at random between half of its maximum and its maximum.
fn pause_after(tries: u32, random: u32) -> Duration {
    let longest = DIAL_PAUSE_MAX * (1 << (tries - 1));
    longest.mul_f64(0.5 + f64::from(random) / f64::from(u32::MAX) / 2.0)
}

/// Returns the addresses of an agent, of the address family of `local` if that is given. Errors: `Unreachable`.
pub(crate) fn resolve(remote: &HostPort, local: Option<IpAddr>) -> Result<Vec<SocketAddr>, Error> {
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

/// Lane, and the error if the host refused the requested congestion control.
type DialledLane = (Lane, Option<Error>);

/// Target of a dial: transport, address, rate and number of lanes.
pub(super) struct Target<'a> {
    pub(super) via: Via,
    pub(super) addr: SocketAddr,
    /// Rate that the lane shares with the other lanes of its path.
    pub(super) rate: &'a SharedRate,
    /// Number of lanes of the path, including this one.
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

/// Returns the number of QUIC lanes that a path will have. The first lane uses it to take only its part of the memory.
fn lanes_to_come(options: &CopySpec, path: &PathOptions, remembered: Option<&PathRecord>) -> u32 {
    let rate = path.contract.expected(remembered.map(|record| record.rate));
    let by_rate = || plan::choose_quic_lanes(rate, remembered.map_or(plan::MTU_USUAL, |record| record.mtu));
    let lanes = lanes_asked(options, path).unwrap_or_else(by_rate).value;
    // If the memory is too small for these lanes, the user gets that error once QUIC is chosen.
    if lane_memory(options, path, lanes).is_ok() { lanes } else { 1 }
}

/// Returns the number of lanes of a path for every transport; `None`: transport and rate decide.
pub(super) fn lanes_asked(options: &CopySpec, path: &PathOptions) -> Option<Decision<u32>> {
    if let Some(lanes) = path.lanes {
        return Some(Decision { value: lanes, rationale: format!("{lanes}, as given") });
    }
    // Each lane is one connection to the web server, which may be far away.
    let is_web = options.sources.iter().all(|source| matches!(source, Location::Web(_)));
    is_web.then(plan::choose_web_lanes)
}

/// Returns the number of processor cores of this host.
pub(super) fn cores() -> u32 {
    thread::available_parallelism().map_or(1, |count| count.get() as u32)
}

/// Returns the maximum number of QUIC lanes that a path with `lanes` lanes at the start may get. Lanes are added when
/// the rate has been measured and there is memory for them.
///
/// `memory`: for all lanes of the path.
pub(super) fn lanes_most(memory: ByteCount, path: &PathOptions, lanes: u32) -> u32 {
    let held = memory.0 / quic::MEMORY_MIN.0;
    match (path.lanes, path.contract.target) {
        (None, None) => lanes.max(held.min(u64::from(plan::quic_lanes_found_most(cores()))) as u32),
        _ => lanes,
    }
}

/// Returns the maximum of data that all lanes of one path may hold together.
pub(super) fn path_memory(options: &CopySpec) -> ByteCount {
    ByteCount(options.memory.0 / options.paths.len().max(1) as u64)
}

/// Returns the maximum of data that each QUIC lane of a path may hold, with a reserve for lanes that are added later.
/// Errors: `Usage`, if that is too small for a lane.
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

    /// Observer that records decisions and stops on request.
    #[derive(Default)]
    struct Recorder {
        decisions: parking_lot::Mutex<Vec<String>>,
        stop: crate::cancel::Cancel,
    }

    impl CopyObserver for Recorder {
        fn event(&self, event: CopyEvent) {
            if let CopyEvent::Decision { rationale, .. } = event {
                self.decisions.lock().push(rationale);
            }
        }

        fn progress(&self, _: &crate::client::spec::CopyProgress) {}

        fn trust(&self, _: &RemoteLocation, _: &Fingerprint) -> Result<(), Error> {
            Ok(())
        }

        fn cancel(&self) -> &crate::cancel::Cancel {
            &self.stop
        }
    }

    #[test]
    fn the_other_transport_is_dialled_too_if_the_chosen_one_does_not_answer() {
        // No process answers at the UDP port, as behind a firewall that drops packets.
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = other.local_addr().unwrap();
        let _silent = std::net::UdpSocket::bind(addr).unwrap();
        let (accepted, dialled) = channel();
        thread::spawn(move || accepted.send(other.accept().unwrap()));
        let location = |text: &str| Location::parse(text.as_ref()).unwrap();
        let Location::Remote(remote) = location("sterna://127.0.0.1/") else { panic!() };
        let options = CopySpec::new(vec![location("/x")], Location::Remote(remote.clone()));
        let initiator = Initiator::new(crate::identity::Identity::ephemeral().unwrap());
        let recorder = Arc::new(Recorder::default());
        let observer: Arc<dyn CopyObserver> = Arc::clone(&recorder) as Arc<dyn CopyObserver>;
        let dialling = Dialling::new(&options, &remote, DataDirection::Out, &initiator, &observer);
        thread::scope(|scope| {
            let dial = scope.spawn(|| {
                let on = PathDialling { dialling: &dialling, options: &options.paths[0], name: None };
                on.prefer(Via::Quic, addr, &[]).map(|reached| reached.via)
            });
            // The dial by TCP gets no further than its connection.
            let connection = dialled.recv_timeout(Duration::from_secs(120));
            recorder.stop.cancel();
            let failed = dial.join().unwrap().unwrap_err();
            connection.expect("a second dial");
            assert!(failed.iter().any(|error| error.kind == ErrorKind::Cancelled), "{failed:?}");
        });
        let decisions = recorder.decisions.lock().clone();
        assert!(decisions.iter().any(|text| text.starts_with("tcp too: no answer by quic")), "{decisions:?}");
    }

    #[test]
    fn no_more_lanes_come_than_there_is_memory_for() {
        let most = |lanes: u64, path: &PathOptions| lanes_most(ByteCount(quic::MEMORY_MIN.0 * lanes), path, 1);
        let free = PathOptions::default();
        assert_eq!((most(1, &free), most(3, &free), most(1000, &free)), (1, 3, plan::quic_lanes_found_most(cores())));
        assert_eq!(most(1000, &PathOptions { lanes: Some(1), ..free }), 1, "as many as were asked for");
    }
}
