//! The first lane of a session: which transport, which address; and every later one.
//!
//! What is given or remembered decides before anything is dialled. Otherwise both transports are dialled at once, and the round
//! trip of the one that answers first decides; the other one is waited for when it is the better, and not for long.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use sterna_proto::location::RemoteLocation;
use sterna_proto::memory::{PathRecord, Way};
use sterna_proto::plan::{self, Decision, TransportFacts, Via};
use sterna_proto::quantity::readable_time;
use sterna_proto::{ByteCount, Error, ErrorKind, Phase, Retry, Scope};

use super::memory::{PathFile, key_of, unix_time};
use super::{CopyEvent, CopyObserver, CopyOptions, Direction, Job, ViaChoice};
use crate::identity::Identity;
use crate::lane::quic::{self, SharedBudget};
use crate::lane::{Lane, tcp};
use crate::session::SessionEvent;

/// How long the better transport is waited for when the other one has answered, beside two round trips. Reason: a handshake over QUIC
/// takes one of them; a lost packet, sent again, another.
const BETTER_GRACE: Duration = Duration::from_millis(500);

/// How often a wait looks whether the person wants to stop.
const LOOK: Duration = Duration::from_millis(100);

/// The first lane.
pub(super) struct FirstLane {
    pub(super) via: Via,
    pub(super) lane: Lane,
    pub(super) addr: SocketAddr,
    pub(super) budget: SharedBudget,
    /// What is known of its path by this transport.
    pub(super) remembered: Option<PathRecord>,
    /// How long the question of trust took.
    pub(super) trusted_after: Duration,
}

/// Dials the first lane: by the transport chosen, or by the other one when that was our choice and it fails.
pub(super) fn dial_first(
    options: &CopyOptions,
    job: &Job,
    identity: &Identity,
    observer: &Arc<dyn CopyObserver>,
) -> Result<FirstLane, Error> {
    let dialling = Dialling { options, identity, observer };
    let mut errors: Vec<Error> = Vec::new();
    for addr in resolve(&job.remote)? {
        let remembered = recall(options, job, addr);
        match dialling.reach(addr, &remembered) {
            Ok(Reached { via, lane, budget, congestion_refused }) => {
                if let Some(error) = congestion_refused {
                    observer.event(CopyEvent::Session(SessionEvent::Notice(error.chain())));
                }
                let asked = Instant::now();
                if let Err(error) = observer.trust(&job.remote, &lane.peer) {
                    lane.handle.close("not trusted");
                    return Err(error);
                }
                let remembered = remembered.into_iter().find(|record| record.via == via);
                return Ok(FirstLane { via, lane, addr, budget, remembered, trusted_after: asked.elapsed() });
            }
            Err(failed) if failed.iter().any(|error| error.retry == Retry::Never) => {
                let ends = |error: &Error| error.retry == Retry::Never;
                return Err(failed.into_iter().find(ends).unwrap_or_else(|| crate::internal("no error was found")));
            }
            Err(failed) => errors.extend(failed),
        }
        stop_if_asked(observer)?;
    }
    let Some(last) = errors.pop() else { return Err(crate::internal("no address was tried")) };
    // A reader of one alone would suspect what lets that transport through and not the other.
    Err(errors.into_iter().rev().fold(last, |after, error| {
        Error::new(error.kind, error.scope, error.phase, format!("{}; {}", error.chain(), after.chain()))
            .retry(error.retry)
    }))
}

/// What is known of the path to `addr`.
fn recall(options: &CopyOptions, job: &Job, addr: SocketAddr) -> Vec<PathRecord> {
    let way = match job.direction {
        Direction::Push { .. } => Way::Out,
        Direction::Pull { .. } => Way::In,
    };
    // Without a route the dial fails too, and says so.
    let key = key_of(way, addr).ok();
    let file = options.memory_dir.as_deref().map(PathFile::new);
    file.zip(key).map(|(file, key)| file.recall(&key)).unwrap_or_default()
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
    budget: SharedBudget,
    congestion_refused: Option<Error>,
}

struct Dialling<'a> {
    options: &'a CopyOptions,
    identity: &'a Identity,
    observer: &'a Arc<dyn CopyObserver>,
}

impl Dialling<'_> {
    /// Reaches the agent at `addr`. Errors: one for each transport that was tried.
    fn reach(&self, addr: SocketAddr, remembered: &[PathRecord]) -> Result<Reached, Vec<Error>> {
        let contract = &self.options.contract;
        let facts = TransportFacts { contract, remembered, rtt: None, now: unix_time() };
        let decision = match self.options.via {
            ViaChoice::Only(via) => {
                let rationale = format!("{via}, as asked for with --via");
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
        let other = if via == Via::Tcp { Via::Quic } else { Via::Tcp };
        self.say(&format!("{other}: no {via} to {addr}: {}", failed.chain()));
        stop_if_asked(self.observer).map_err(|error| vec![error])?;
        self.dial(other, addr, remembered).map_err(|error| vec![failed, error])
    }

    fn say(&self, rationale: &str) {
        self.observer.event(CopyEvent::Decision { subject: "transport", rationale: rationale.to_owned() });
    }

    fn dial(&self, via: Via, addr: SocketAddr, remembered: &[PathRecord]) -> Result<Reached, Error> {
        let mut contract = self.options.contract;
        if let Some(record) = remembered.iter().find(|record| record.via == via) {
            contract.remembered = Some(record.rate);
            contract.expected_rtt = Some(record.rtt);
        }
        let budget = SharedBudget::new(contract);
        let (lane, congestion_refused) = dial(via, addr, self.options, 1, &budget, self.identity)?;
        Ok(Reached { via, lane, budget, congestion_refused })
    }

    /// Dials both transports at once, and takes the one that suits the round trip that is found.
    fn race(&self, addr: SocketAddr, facts: TransportFacts<'_>) -> Result<Reached, Vec<Error>> {
        let (tell, answers) = channel();
        for via in [Via::Quic, Via::Tcp] {
            let (tell, options, identity) = (tell.clone(), self.options.clone(), self.identity.clone());
            let dialled = thread::Builder::new().name("dial".to_owned()).spawn(move || {
                let budget = SharedBudget::new(options.contract);
                let reached = dial(via, addr, &options, 1, &budget, &identity)
                    .map(|(lane, congestion_refused)| Reached { via, lane, budget, congestion_refused });
                // Nobody waits any more: the lane ends here.
                let _ = tell.send(reached);
            });
            dialled.map_err(|e| vec![crate::internal("start a thread that dials").caused_by(e)])?;
        }
        drop(tell);
        let first = self.next_answer(&answers, None).map_err(|error| vec![error])?;
        let first = match first {
            Some(Ok(reached)) => reached,
            Some(Err(error)) if error.retry == Retry::Never => return Err(vec![error]),
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
            stop_if_asked(self.observer)?;
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

/// The addresses of a host. Errors: `Unreachable`.
pub(super) fn resolve(remote: &RemoteLocation) -> Result<Vec<SocketAddr>, Error> {
    if let Ok(ip) = remote.host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, remote.port)]);
    }
    let failed = |text: String| Error::new(ErrorKind::Unreachable, Scope::Path, Phase::Prepare, text);
    let found = (remote.host.as_str(), remote.port)
        .to_socket_addrs()
        .map_err(|e| failed(format!("look up host {}", remote.host)).caused_by(e))?;
    let addrs: Vec<SocketAddr> = found.collect();
    if addrs.is_empty() {
        return Err(failed(format!("look up host {}: it has no address", remote.host)));
    }
    Ok(addrs)
}

/// A lane, and why the congestion control that was asked for is not in use.
type DialledLane = (Lane, Option<Error>);

/// Dials one lane.
pub(super) fn dial(
    via: Via,
    addr: SocketAddr,
    options: &CopyOptions,
    lanes: u32,
    budget: &SharedBudget,
    identity: &Identity,
) -> Result<DialledLane, Error> {
    match via {
        Via::Tcp => {
            let tcp = tcp::TcpOptions { congestion: options.congestion.clone(), ..tcp::TcpOptions::default() };
            let mut lane = tcp::connect(&tcp::ConnectOptions { remote: addr, local: None, tcp }, identity)?;
            let congestion_refused = lane.congestion_refused.take();
            Ok((lane.into_lane(), congestion_refused))
        }
        Via::Quic => {
            let mut quic = quic::QuicOptions::new(addr, budget.clone());
            quic.lanes = lanes;
            quic.memory = lane_memory(options, lanes)?;
            Ok((quic::connect(&quic, identity)?, None))
        }
    }
}

/// What each QUIC lane may hold. Errors: `Usage`, when that is too little for a lane to work.
pub(super) fn lane_memory(options: &CopyOptions, lanes: u32) -> Result<ByteCount, Error> {
    // Lanes that come when the rate is found have their part set aside.
    let parts = if options.lanes.is_none() && options.contract.target.is_none() {
        lanes.max(plan::LANES_FOUND_MAX)
    } else {
        lanes
    };
    let memory = ByteCount((options.memory.0 / u64::from(parts)).max(quic::MEMORY_MIN.0));
    if ByteCount(memory.0 * u64::from(lanes)) > options.memory {
        let text = format!(
            "--memory {} is too little for {lanes} QUIC lane{}: each needs {} at least; give more, or fewer --lanes",
            options.memory,
            if lanes == 1 { "" } else { "s" },
            quic::MEMORY_MIN
        );
        return Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text));
    }
    Ok(memory)
}
