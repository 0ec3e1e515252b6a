//! Copy between two agents: this client asks one of them to run the copy, and receives its progress.
//!
//! Chooses the agent to ask, and gets the key that the other agent must have. Module `control` keeps the session.
//! Starts a new session when the agent was restarted. Carries no blocks.
//!
//! The agent of the sources is asked first: it can read them without a network, and a destination is often behind a
//! firewall. If it does not run third-party copies, or cannot reach the other agent, the agent of the destination is
//! asked to pull.

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sterna_proto::location::RemoteLocation;
use sterna_proto::plan::Via;
use sterna_proto::rate::RateContract;
use sterna_proto::session::{
    ActiveEnd, AgentReport, Conclusion, ControlEvent, ControlSide, IpBytes, KEYS_MAX, Overwrite, PassiveAgent,
    PathNumber, Request, SETTLED_REPORTED_MAX, SOURCES_MAX, Snapshot, ThirdParty,
};
use sterna_proto::{Earlier, Error, ErrorKind, Location, Phase, Scope, Setting};

use super::control::ControlClient;
use super::run::{Again, Driven, Restarts, drive};
use super::spec::{CopyEvent, CopyObserver, CopyProgress, CopySpec, CopySummary, Initiator, ViaChoice};
use super::totals::TotalsState;
use crate::identity::Fingerprint;
use crate::lane::{Lane, LaneStats, Transport};
use crate::session::{ControlEnd, End, LimitsNow, SNAPSHOT_EVERY, SessionEvent, progress_of};

/// Error text for sources of two kinds.
pub(super) const TWO_KINDS: &str = "the sources are of two kinds, at an agent and not: copy each kind by itself";

/// Copy from one agent to another.
pub(crate) struct ThirdPartyCopy {
    sources: Vec<RemoteLocation>,
    destination: RemoteLocation,
}

/// Error of a copy that did not complete.
struct Failed {
    error: Error,
    /// True if the other agent may be able to run the copy.
    may_ask_other: bool,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { error, may_ask_other: false }
    }
}

impl ThirdPartyCopy {
    /// Returns the copy that the options describe; `None`: it is a copy of another kind. Errors: `Usage`.
    pub(super) fn plan(options: &CopySpec) -> Result<Option<Self>, Error> {
        let usage = |text: &str| Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text));
        let Location::Remote(destination) = &options.destination else { return Ok(None) };
        let remote = |source: &Location| match source {
            Location::Remote(remote) => Some(remote.clone()),
            _ => None,
        };
        let sources: Vec<RemoteLocation> = options.sources.iter().filter_map(remote).collect();
        if sources.is_empty() {
            return Ok(None);
        }
        if sources.len() < options.sources.len() {
            return usage(TWO_KINDS);
        }
        if sources.len() > SOURCES_MAX {
            return usage("more than 4096 sources: name their directory, or use a wildcard in quotes");
        }
        if options.paths.len() != 1 || options.paths.iter().any(|path| path.local.is_some() || path.remote.is_some()) {
            let text = "in a copy between agents no data passes this host, so that its networks are not used: leave the paths out";
            return Err(Error::usage(&[Setting::Paths], text));
        }
        let first = one_agent(&sources.iter().collect::<Vec<_>>())?;
        refuse_upward(destination)?;
        if (&first.host, first.port) == (&destination.host, destination.port) {
            return usage("both ends are at the same agent: use cp on its host");
        }
        Ok(Some(Self { sources, destination: destination.clone() }))
    }

    /// Runs the copy to its end. Errors: as [`super::run`].
    pub(super) fn copy(
        &self,
        options: &CopySpec,
        initiator: &Initiator,
        observer: &Arc<dyn CopyObserver>,
    ) -> Result<CopySummary, Error> {
        let asking = Asking { copy: self, options, initiator, observer };
        let (source, destination) = (self.sources[0].host_port(), self.destination.host_port());
        let say = |rationale: String| observer.event(CopyEvent::Decision { subject: "agent", rationale });
        say(format!("{source} is asked to run the copy: it has the sources, and pushes to {destination}"));
        let first = match asking.run(ActiveEnd::Source) {
            Err(failed) if failed.may_ask_other => failed.error,
            outcome => return outcome.map_err(|failed| failed.error),
        };
        say(format!("{destination} pulls from {source}, which cannot push: {}", first.chain()));
        asking.run(ActiveEnd::Destination).map_err(|Failed { error, may_ask_other }| {
            if !may_ask_other {
                return error;
            }
            let text = format!(
                "neither agent can run the copy; {source}, asked to push: {}; {destination}, asked to pull: {}",
                first.chain(),
                error.chain()
            );
            let settings = first.settings().to_vec();
            Error::new(first.kind, first.scope, first.phase, text).retry(first.retry).about(settings)
        })
    }
}

/// Refuses a path with `..`, as its agent would. Errors: `Usage`, which is one of this end and not of a peer.
pub(super) fn refuse_upward(remote: &RemoteLocation) -> Result<(), Error> {
    if !remote.path.split(|&b| b == b'/').any(|name| name == b"..") {
        return Ok(());
    }
    let text = format!("{remote} has a .. in its path, which agents do not follow: write the path without");
    Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text))
}

/// Returns the first source; all sources must be at the same agent. Errors: `Usage`.
pub(super) fn one_agent<'a>(remotes: &[&'a RemoteLocation]) -> Result<&'a RemoteLocation, Error> {
    let usage = |text: &str| Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text));
    remotes.iter().try_for_each(|remote| refuse_upward(remote))?;
    let first = remotes[0];
    if remotes.iter().any(|r| (&r.host, r.port) != (&first.host, first.port)) {
        return usage("the sources are at several agents: copy from one at a time");
    }
    Ok(first)
}

struct Asking<'a> {
    copy: &'a ThirdPartyCopy,
    options: &'a CopySpec,
    initiator: &'a Initiator,
    observer: &'a Arc<dyn CopyObserver>,
}

impl Asking<'_> {
    /// Asks the agent of one end to run the copy, with a new session after each restart of the agent.
    fn run(&self, active: ActiveEnd) -> Result<CopySummary, Failed> {
        let (asked, passive) = match active {
            ActiveEnd::Source => (&self.copy.sources[0], &self.copy.destination),
            ActiveEnd::Destination => (&self.copy.destination, &self.copy.sources[0]),
        };
        let mut started = Instant::now();
        let first = self.control(asked).reach().map_err(|error| {
            let may_ask_other = error.kind == ErrorKind::Unreachable;
            Failed { error, may_ask_other }
        })?;
        let questions = Instant::now();
        self.observer.trust(asked, &first.peer).inspect_err(|_| first.handle.close("not trusted"))?;
        let keys = self.keys_of(passive, &first.peer)?;
        // The time that a user takes to answer a question is not part of the copy.
        started += questions.elapsed();
        let copy = Arc::new(ControlledCopy::new(Arc::clone(self.observer), self.options, started));
        let mut first = Some(first);
        let mut restarts = Restarts::new(self.options.linger, started);
        loop {
            let lane = match first.take() {
                Some(lane) => Ok(lane),
                None => self.control(asked).reach(),
            };
            let outcome = lane.and_then(|lane| self.run_session((active, asked, passive), &keys, lane, &copy));
            let error = match outcome {
                Ok(conclusion) => return Ok(copy.sum_up(conclusion)),
                Err(error) => error,
            };
            let is_first = restarts.is_first();
            let again =
                if self.observer.cancel().is_cancelled() { None } else { restarts.after(&error, Instant::now()) };
            match again {
                Some(Again::Restarted(wait)) => {
                    copy.start_over()?;
                    self.observer.cancel().wait(wait);
                }
                Some(Again::NotYetBack(wait)) => self.observer.cancel().wait(wait),
                None => {
                    let may_ask_other = is_first && copy.may_ask_other(&error);
                    return Err(Failed { error: error.named(asked.host_port()), may_ask_other });
                }
            }
        }
    }

    fn control(&self, remote: &RemoteLocation) -> ControlClient {
        ControlClient::new(remote, self.options, self.initiator, self.observer)
    }

    /// Returns the keys that the passive agent may have: the recorded keys, or the key that it presents to this client.
    fn keys_of(&self, passive: &RemoteLocation, active: &Fingerprint) -> Result<Vec<Fingerprint>, Error> {
        let mut known = self.observer.expected_keys(passive, active)?;
        if !known.is_empty() {
            known.truncate(KEYS_MAX);
            return Ok(known);
        }
        match self.control(passive).reach() {
            Ok(lane) => {
                lane.handle.close("only its key was asked for");
                self.observer.trust(passive, &lane.peer)?;
                Ok(vec![lane.peer])
            }
            Err(error) if error.kind == ErrorKind::Unreachable => {
                let text = format!(
                    "the key of {} is not recorded here, and it does not answer here ({}): give its fingerprint too. The agent printed it at its start: listening … fingerprint SHA256:…",
                    passive.host_port(),
                    error.chain()
                );
                Err(Error::new(ErrorKind::Untrusted, Scope::Client, Phase::Prepare, text).about(&[Setting::Trust]))
            }
            Err(error) => Err(error),
        }
    }

    fn request(
        &self,
        (active, passive, contract): (ActiveEnd, &RemoteLocation, RateContract),
        keys: &[Fingerprint],
        copy: &ControlledCopy,
    ) -> Request {
        let options = self.options;
        // There is only one path: `plan` refuses more.
        let path = options.paths.first().cloned().unwrap_or_default();
        Request::ThirdParty(Box::new(ThirdParty {
            active,
            passive: PassiveAgent {
                host: passive.host.clone(),
                port: passive.port,
                keys: keys.iter().map(|key| key.0).collect(),
            },
            sources: self.copy.sources.iter().map(|source| source.path.clone()).collect(),
            destination: self.copy.destination.path.clone(),
            overwrite: options.overwrite,
            checks: options.checks,
            expect: options.expect,
            dry_run: options.dry_run,
            compress: options.compress,
            via: match path.via {
                ViaChoice::Auto => None,
                ViaChoice::Only(via) => Some(via),
            },
            lanes: path.lanes,
            congestion: options.congestion.clone(),
            contract,
            linger: options.linger,
            settled: copy.settled(),
        }))
    }

    /// Runs one session with the active agent, from its first lane to the end of the copy.
    fn run_session(
        &self,
        (active, asked, passive): (ActiveEnd, &RemoteLocation, &RemoteLocation),
        keys: &[Fingerprint],
        first: Lane,
        copy: &Arc<ControlledCopy>,
    ) -> Result<Conclusion, Error> {
        let hear = Arc::clone(copy);
        let control =
            ControlEnd::new(ControlSide::Command, self.options.linger, Box::new(move |event| hear.handle_event(event)));
        let given = self.options.paths.first().map(|path| path.contract).unwrap_or_default();
        let contract = self.observer.contract(PathNumber(0)).unwrap_or(given);
        let request = self.request((active, passive, contract), keys, copy);
        self.control(asked).run(&control, request, first, || {
            let watched = Watched { control: &control, copy, contract: Cell::new(contract) };
            drive(&watched, &**self.observer, copy.started, None);
        })?;
        copy.take_outcome()
    }
}

/// Control session with the active agent.
struct Watched<'a> {
    control: &'a ControlEnd,
    copy: &'a ControlledCopy,
    /// Rate contract that the active agent has, or was sent last.
    contract: Cell<RateContract>,
}

impl Driven for Watched<'_> {
    fn is_over(&self) -> bool {
        self.control.is_over()
    }

    fn interval(&self) -> Duration {
        SNAPSHOT_EVERY
    }

    fn wait(&self, time: Duration) {
        self.control.wait_until_over(time);
    }

    fn tick(&self) {
        if let Some(asked) = self.copy.observer.contract(PathNumber(0)).filter(|asked| *asked != self.contract.get()) {
            self.contract.set(asked);
            self.control.send_contract(PathNumber(0), asked);
        }
        self.control.tick();
    }

    fn deadline(&self) -> Option<Instant> {
        self.control.deadline()
    }

    fn progress(&self) -> Option<CopyProgress> {
        self.control.latest().map(|(number, snapshot)| self.copy.progress(number, snapshot))
    }

    fn abort(&self, error: Error) {
        self.control.abort(error);
    }
}

/// Progress and results of a copy, over every session with the active agent.
struct ControlledCopy {
    observer: Arc<dyn CopyObserver>,
    overwrite: Overwrite,
    dry_run: bool,
    started: Instant,
    state: Mutex<ControlledState>,
}

#[derive(Default)]
struct ControlledState {
    /// Outcomes that the agent has reported, and the files that are settled.
    totals: TotalsState,
    outcome: Option<Result<Conclusion, Error>>,
    latest: Option<(u64, Snapshot)>,
    /// True once the agents have a lane or have settled a file.
    has_begun: bool,
    before: Before,
}

/// Results of the earlier sessions with the active agent.
#[derive(Clone, Copy, Default)]
struct Before {
    done: u64,
    bytes: u64,
    /// Counters of these sessions.
    earlier: Earlier,
}

impl ControlledCopy {
    fn new(observer: Arc<dyn CopyObserver>, options: &CopySpec, started: Instant) -> Self {
        let CopySpec { overwrite, dry_run, .. } = *options;
        let mut totals = TotalsState::default();
        totals.destination = Some(options.destination.clone());
        let state = Mutex::new(ControlledState { totals, ..ControlledState::default() });
        Self { observer, overwrite, dry_run, started, state }
    }

    fn handle_event(&self, event: ControlEvent) {
        match event {
            ControlEvent::Reported(report) => self.handle_report(report),
            // Answers belong to queries.
            ControlEvent::Answered(_) => {}
            ControlEvent::Concluded(conclusion) => self.state.lock().outcome = Some(Ok(*conclusion)),
            ControlEvent::Aborted(error) => {
                self.state.lock().outcome.get_or_insert(Err(error));
            }
        }
    }

    fn handle_report(&self, mut report: AgentReport) {
        let mut state = self.state.lock();
        if let AgentReport::Settled { outcome, .. } = &mut report {
            state.totals.locate(outcome);
        }
        state.has_begun |= matches!(report, AgentReport::LaneUp { .. } | AgentReport::Settled { .. });
        match &report {
            AgentReport::Settled { entry, outcome } => state.totals.count(entry, outcome),
            AgentReport::Unreadable(error) => state.totals.fail(error),
            AgentReport::Restarted => state.totals.start_over(),
            _ => {}
        }
        drop(state);
        self.observer.event(event_of(report));
    }

    /// Converts the snapshot with this number to the progress of the copy.
    fn progress(&self, number: u64, snapshot: Snapshot) -> CopyProgress {
        let mut state = self.state.lock();
        let before = state.before;
        state.latest = Some((number, snapshot.clone()));
        drop(state);
        let mut session = progress_of(&snapshot);
        session.counters = before.earlier.and(&snapshot.counters);
        let lane = |lane: &sterna_proto::session::LaneFigures| LaneStats {
            rtt: lane.rtt,
            rtt_min: lane.rtt_min,
            packets_sent: lane.packets_sent,
            packets_lost: lane.packets_lost,
            wire_bytes_sent: lane.wire_bytes_sent,
            wire_bytes_received: lane.wire_bytes_received,
            ..LaneStats::default()
        };
        CopyProgress {
            session,
            lanes: snapshot.lanes.iter().map(lane).collect(),
            files: snapshot.files,
            limits: LimitsNow { number, report: snapshot.limits, lanes: Vec::new() },
            ..CopyProgress::default()
        }
    }

    /// Returns the files that the next session leaves out. Returns none if that session compares existing files: it
    /// finds these files up to date.
    fn settled(&self) -> Vec<[u8; 16]> {
        let state = self.state.lock();
        if self.overwrite == Overwrite::IfChanged || self.dry_run {
            return Vec::new();
        }
        state.totals.earlier.hashes().take(SETTLED_REPORTED_MAX).collect()
    }

    /// Prepares for the session after the active agent lost one. Errors: the next session could not distinguish files
    /// that this copy wrote from files that existed before.
    fn start_over(&self) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.outcome = None;
        state.totals.start_over();
        if self.overwrite != Overwrite::IfChanged && state.totals.earlier.hashes().len() > SETTLED_REPORTED_MAX {
            let text = format!(
                "the agent was restarted after more than {SETTLED_REPORTED_MAX} files, and the next one cannot distinguish those that this \
                 copy wrote, since existing files are always or never replaced; to go on, run the same copy so that files are \
                 replaced if they have changed"
            );
            let error = Error::new(ErrorKind::SessionLost, Scope::Service, Phase::Transfer, text);
            return Err(error.about(&[Setting::Overwrite]));
        }
        if !self.dry_run {
            let last = state.latest.take().map(|(_, snapshot)| snapshot.counters).unwrap_or_default();
            let summary = &state.totals.summary;
            let (done, bytes) = (summary.done, summary.bytes);
            let settled = bytes.saturating_sub(state.before.bytes).saturating_add(last.bytes_up_to_date);
            let unsettled_bytes = last.bytes_done.saturating_sub(settled);
            let earlier = Earlier {
                counters: state.before.earlier.and(&last),
                unsettled_bytes,
                copied_bytes: bytes,
                are_found_again: self.overwrite == Overwrite::IfChanged,
            };
            state.before = Before { done, bytes, earlier };
        }
        drop(state);
        self.observer.event(CopyEvent::Restarted);
        Ok(())
    }

    fn take_outcome(&self) -> Result<Conclusion, Error> {
        let outcome = self.state.lock().outcome.take();
        outcome.unwrap_or_else(|| Err(crate::internal("a copy between agents without an outcome")))
    }

    /// Returns true if the other agent may be able to run the copy that this agent could not run.
    fn may_ask_other(&self, error: &Error) -> bool {
        let cannot_run = (error.kind, error.scope) == (ErrorKind::Denied, Scope::Service);
        let cannot_reach = error.kind == ErrorKind::Unreachable;
        let is_unknown_there = (error.kind, error.scope) == (ErrorKind::Untrusted, Scope::Client);
        error.phase == Phase::Prepare
            && (cannot_run || cannot_reach || is_unknown_there)
            && !self.state.lock().has_begun
    }

    fn sum_up(&self, conclusion: Conclusion) -> CopySummary {
        let mut state = self.state.lock();
        let before = state.before;
        // The last session reports files of earlier sessions as up to date, unless its request left them out.
        let found_again = if self.overwrite == Overwrite::IfChanged { before } else { Before::default() };
        let mut failures = std::mem::take(&mut state.totals.summary.failures);
        if failures.is_empty() {
            failures.extend(conclusion.first_failure);
        }
        CopySummary {
            done: before.done.saturating_add(conclusion.done),
            skipped: conclusion.skipped.saturating_sub(found_again.done),
            failed: conclusion.failed,
            // Third-party copies do not delete or move sources.
            left: 0,
            bytes: before.bytes.saturating_add(conclusion.bytes),
            bytes_skipped: conclusion.bytes_skipped.saturating_sub(found_again.bytes),
            counters: before.earlier.and(&conclusion.counters),
            elapsed: self.started.elapsed(),
            failures,
            limits: conclusion.limits,
            blocks: state.totals.summary.blocks,
            // The paths belong to the agent.
            paths: Vec::new(),
            unreached: Vec::new(),
            replicas: Vec::new(),
        }
    }
}

/// Converts a reported event of the active agent to an event of a copy.
fn event_of(report: AgentReport) -> CopyEvent {
    match report {
        AgentReport::Decision { subject, rationale } => CopyEvent::Decision { subject: subject.name(), rationale },
        AgentReport::LaneUp { lane, via, peer } => {
            let transport = if via == Via::Quic { Transport::Quic } else { Transport::Tcp };
            let ip = match peer.ip {
                IpBytes::V4(ip) => IpAddr::from(ip),
                IpBytes::V6(ip) => IpAddr::from(ip),
            };
            // The active agent uses one path.
            CopyEvent::LaneUp { lane, path: PathNumber(0), transport, peer: SocketAddr::new(ip, peer.port) }
        }
        AgentReport::LaneDown { lane, reason, again } => CopyEvent::LaneDown { lane, reason, again },
        AgentReport::Settled { entry, outcome } => CopyEvent::Session(SessionEvent::Settled { entry, outcome }),
        AgentReport::Notice(text) => CopyEvent::Session(SessionEvent::Notice(text)),
        AgentReport::Unreadable(error) => CopyEvent::Session(SessionEvent::Unreadable(error)),
        AgentReport::Restarted => CopyEvent::Restarted,
    }
}
