//! Active agent of a third-party copy: runs a session with another agent at the request of a command.
//!
//! Checks the request against the rules of the operator, runs the copy as any client does, and reports progress to the
//! command. Does not connect to a host that the operator has not allowed. Ends the copy when the command is gone longer
//! than the linger time. At this agent the copy has the rights of the key of the command; at the passive agent, the
//! rights that both keys have.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sterna_proto::location::HostPort;
use sterna_proto::location::RemoteLocation;
use sterna_proto::plan::Via;
use sterna_proto::session::{
    ActiveEnd, AgentReport, Conclusion, IpBytes, LaneFigures, PassiveAgent, PeerAddress, Snapshot, Subject, ThirdParty,
};
use sterna_proto::{Error, ErrorKind, Location, Phase, Scope, Setting};

use super::log::SessionLog;
use super::runner::Runner;
use crate::engine::{
    Cancel, CopyEvent, CopyFailure, CopyHandle, CopyProgress, CopySpec, CopySummary, Engine, Granted, Next,
    PathOptions, Trust, ViaChoice,
};
use crate::identity::{Fingerprint, Identity};
use crate::lane::{LaneStats, Transport};
use crate::pace::Pace;
use crate::session::{Observer, SNAPSHOT_EVERY, SessionEvent, SettledPaths};
use crate::source::SourcePlace;

/// Maximum time that a new copy waits for an older copy of the same command to the same place, whose command is gone.
/// Reason: the older copy detects its stop within a tick, and sends its final messages for at most 2 s.
const TAKEOVER_TIME_MAX: Duration = Duration::from_secs(5);

/// Interval between snapshots for the command while no data moves. Reason: a command has a thousand copies that mostly
/// wait.
const SNAPSHOT_IDLE_EVERY: Duration = Duration::from_secs(1);

/// Agents to which this agent may connect for a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reachable {
    /// Only these agents. An empty list refuses all third-party copies.
    These(Vec<HostPort>),
    /// Any agent that this host can reach.
    Any,
}

/// Rules for third-party copies.
pub struct ThirdPartyRules {
    /// Allowed passive agents.
    pub reachable: Reachable,
    /// Directory of the path cache; `None`: nothing is recorded about paths.
    pub path_cache: Option<PathBuf>,
}

impl ThirdPartyRules {
    /// Checks that copies with this passive agent are allowed. Errors: `Denied` with scope `Service`, so that the
    /// command may ask the other agent.
    pub(super) fn check(&self, passive: &PassiveAgent) -> Result<(), Error> {
        let PassiveAgent { host, port, .. } = passive;
        let is_meant = |known: &HostPort| known.host.eq_ignore_ascii_case(host) && known.port == *port;
        let what = match &self.reachable {
            Reachable::Any => return Ok(()),
            Reachable::These(hosts) if hosts.iter().any(is_meant) => return Ok(()),
            Reachable::These(hosts) if hosts.is_empty() => "runs no copies with other agents",
            Reachable::These(_) => "runs no copies with that agent",
        };
        let name = HostPort { host: host.clone(), port: *port };
        let text = format!("this agent {what}: its operator can allow {name}");
        let refused = Error::new(ErrorKind::Denied, Scope::Service, Phase::Prepare, text);
        Err(refused.about(&[Setting::ThirdParty]))
    }
}

/// Input of the thread of a copy.
pub(super) struct Assignment {
    pub(super) request: ThirdParty,
    /// Key of the command.
    pub(super) command: Fingerprint,
    /// Places of the copy at this agent: its sources, or its destination.
    pub(super) places: Vec<SourcePlace>,
    pub(super) identity: Identity,
    pub(super) path_cache: Option<PathBuf>,
    pub(super) linger: Duration,
    /// Copies of the same command to the same place that have lost their command.
    pub(super) deserted: Vec<Arc<Runner>>,
}

impl Assignment {
    /// Returns the copy that the command asked for.
    fn spec(&mut self) -> Result<CopySpec, Error> {
        let places = std::mem::take(&mut self.places);
        let granted = granted_to(&self.request, places)?;
        Ok(CopySpec { on_behalf_of: Some(self.command), ..spec_of(&self.request, granted) })
    }
}

/// Returns the place of the end of a copy at this agent.
fn granted_to(request: &ThirdParty, places: Vec<SourcePlace>) -> Result<Granted, Error> {
    Ok(match request.active {
        ActiveEnd::Source => Granted::Sources(places),
        ActiveEnd::Destination => {
            let place = places.into_iter().next().ok_or_else(|| crate::internal("a pull to no place"))?;
            Granted::Destination(place.root, place.pattern)
        }
    })
}

/// Returns the copy of a request, whose end at this agent is `granted`.
pub(super) fn spec_of(request: &ThirdParty, granted: Granted) -> CopySpec {
    let path = PathOptions {
        via: request.via.map_or(ViaChoice::Auto, ViaChoice::Only),
        lanes: request.lanes,
        contract: request.contract,
        ..PathOptions::default()
    };
    let sources = request.sources.iter().map(|source| at(&request.passive, source)).collect();
    CopySpec {
        paths: vec![path],
        congestion: request.congestion.clone(),
        overwrite: request.overwrite,
        checks: request.checks,
        expect: request.expect,
        compress: request.compress,
        dry_run: request.dry_run,
        linger: request.linger,
        granted: Some(granted),
        settled: SettledPaths::of_hashes(request.settled.iter().copied()),
        // This host alone sets the memory limit; a command cannot change it.
        ..CopySpec::new(sources, at(&request.passive, &request.destination))
    }
}

/// Returns the location of a path at the passive agent.
pub(super) fn at(passive: &PassiveAgent, path: &[u8]) -> Location {
    let PassiveAgent { host, port, .. } = passive;
    Location::Remote(RemoteLocation { host: host.clone(), port: *port, path: path.to_vec() })
}

/// Starts a copy in a separate thread. Errors: the host refuses a thread.
pub(super) fn start(mut assignment: Assignment, log: &Arc<SessionLog>) -> Result<Arc<Runner>, Error> {
    let spec = assignment.spec()?;
    let (cancel, running_log) = (spec.cancel.clone(), Arc::clone(log));
    Runner::start("third-party", assignment.linger, cancel, log, move |runner| {
        run(runner, &assignment, spec, &running_log);
    })
}

fn run(runner: &Runner, assignment: &Assignment, spec: CopySpec, log: &SessionLog) {
    assignment.deserted.iter().for_each(|other| other.end_within(TAKEOVER_TIME_MAX));
    let passive = assignment.request.passive.clone();
    let trust = Arc::new(PassiveKeys(passive.clone()));
    let mut engine = Engine::new(assignment.identity.clone(), trust);
    if let Some(directory) = &assignment.path_cache {
        engine = engine.with_path_cache(directory.clone());
    }
    let outcome = match engine.start(spec) {
        Ok(copy) => relay(runner, copy, log).map_err(|failure| failure.error),
        Err(error) => Err(error),
    };
    match outcome {
        _ if runner.is_leaving() => {}
        Ok(summary) => runner.control().conclude(conclusion_of(&summary)),
        Err(error) => runner.control().fail(as_reported(&error, &passive)),
    }
}

/// Forwards the events and the progress of a copy to the command, and its events to the log of this agent.
fn relay(runner: &Runner, copy: CopyHandle, log: &SessionLog) -> Result<CopySummary, CopyFailure> {
    let mut shown = Instant::now();
    let mut pace = Pace::new(shown);
    loop {
        let every = if pace.is_idle(Instant::now()) { SNAPSHOT_IDLE_EVERY } else { SNAPSHOT_EVERY };
        match copy.next(every) {
            Next::Event(event) => {
                report_of(&event).into_iter().for_each(|event| runner.control().report(event));
                record(log, event);
            }
            Next::Nothing => {}
            Next::Ended => return copy.wait(),
        }
        for (path, contract) in runner.control().take_contracts() {
            // The engine of the command has checked the contract. A wrong one of another peer changes nothing.
            let _ = copy.set_rate(path, contract);
        }
        if shown.elapsed() >= every {
            shown = Instant::now();
            if let Some(progress) = copy.snapshot() {
                pace.observe(progress.lanes.iter().map(LaneStats::wire_bytes).sum(), shown);
                runner.control().show(snapshot_of(&progress));
            }
        }
    }
}

/// Converts an error for the command: a failure of this host is a failure of the agent (scope `Service`) for the
/// command.
fn as_reported(error: &Error, passive: &PassiveAgent) -> Error {
    let scope = match (error.kind, error.scope) {
        (ErrorKind::Cancelled | ErrorKind::Usage | ErrorKind::Untrusted | ErrorKind::Internal, scope) => scope,
        (_, Scope::Client) => Scope::Service,
        (_, scope) => scope,
    };
    let mut report = error.clone();
    report.scope = scope;
    match (error.kind, error.scope) {
        // "Here" in the text means the passive agent, which rejects the key of this agent or of the command. The text
        // is marked with its name.
        (ErrorKind::Untrusted, Scope::Client | Scope::Service) => {
            report.from_peer().named(HostPort { host: passive.host.clone(), port: passive.port })
        }
        _ => report,
    }
}

/// Trust in the keys that the command expects of the passive agent.
pub(super) struct PassiveKeys(pub(super) PassiveAgent);

impl Trust for PassiveKeys {
    fn check(&self, remote: &RemoteLocation, peer: &Fingerprint, _cancel: &Cancel) -> Result<(), Error> {
        if self.0.keys.contains(&peer.0) {
            return Ok(());
        }
        let keys: Vec<String> = self.0.keys.iter().map(|key| Fingerprint(*key).to_string()).collect();
        let text = format!(
            "{}:{} shows {peer} and the command expects {}: somebody may be in between, or it was set up anew; nothing was \
             sent",
            remote.host,
            remote.port,
            keys.join(" or ")
        );
        // Scope `Path`: a wrong key is not a missing authorization, so that the command does not ask the other agent.
        Err(Error::new(ErrorKind::Untrusted, Scope::Path, Phase::Prepare, text))
    }

    fn expected_keys(&self, _remote: &RemoteLocation, _beside: &Fingerprint) -> Result<Vec<Fingerprint>, Error> {
        Ok(self.0.keys.iter().map(|key| Fingerprint(*key)).collect())
    }
}

/// Records an event of a copy in the log of this agent.
pub(super) fn record(log: &SessionLog, event: CopyEvent) {
    match event {
        // [`run`] reports the end of the copy.
        CopyEvent::Session(SessionEvent::Aborted(_)) => {}
        CopyEvent::Session(event) => log.session_event(event),
        CopyEvent::Decision { subject, rationale } => log.detail(&format!("{subject}: {rationale}")),
        CopyEvent::LaneUp { lane, transport, peer, .. } => {
            log.detail(&format!("lane {lane} to the other agent is up: {transport} to {peer}"));
        }
        CopyEvent::LaneDown { lane, reason, .. } => {
            log.detail(&format!("lane {lane} to the other agent is down: {reason}"));
        }
        CopyEvent::Restarted => log.session_event(SessionEvent::Notice("the other agent was restarted".into())),
    }
}

/// Converts an event of a copy for the command; `None`: the command does not receive it.
fn report_of(event: &CopyEvent) -> Option<AgentReport> {
    Some(match event {
        CopyEvent::Decision { subject, rationale }
        | CopyEvent::Session(SessionEvent::Decision { subject, rationale }) => {
            AgentReport::Decision { subject: Subject::of(subject)?, rationale: rationale.clone() }
        }
        CopyEvent::LaneUp { lane, transport, peer, .. } => {
            let via = if *transport == Transport::Quic { Via::Quic } else { Via::Tcp };
            let ip = match peer.ip() {
                IpAddr::V4(ip) => IpBytes::V4(ip.octets()),
                IpAddr::V6(ip) => IpBytes::V6(ip.octets()),
            };
            AgentReport::LaneUp { lane: *lane, via, peer: PeerAddress { ip, port: peer.port() } }
        }
        CopyEvent::LaneDown { lane, reason, again } => {
            AgentReport::LaneDown { lane: *lane, reason: reason.clone(), again: *again }
        }
        CopyEvent::Restarted => AgentReport::Restarted,
        CopyEvent::Session(SessionEvent::Settled { entry, outcome }) => {
            AgentReport::Settled { entry: entry.clone(), outcome: outcome.clone() }
        }
        CopyEvent::Session(SessionEvent::Notice(text)) => AgentReport::Notice(text.clone()),
        CopyEvent::Session(SessionEvent::Unreadable(error) | SessionEvent::Left(error)) => {
            AgentReport::Unreadable(error.clone())
        }
        CopyEvent::Session(SessionEvent::Aborted(_)) => return None,
    })
}

fn snapshot_of(progress: &CopyProgress) -> Snapshot {
    let lanes = progress.lanes.iter().map(|lane| LaneFigures {
        rtt: lane.rtt,
        rtt_min: lane.rtt_min,
        packets_sent: lane.packets_sent,
        packets_lost: lane.packets_lost,
        wire_bytes_sent: lane.wire_bytes_sent,
        wire_bytes_received: lane.wire_bytes_received,
    });
    Snapshot {
        counters: progress.session.counters,
        manifest_complete: progress.session.manifest_complete,
        lanes_up: progress.session.lanes as u64,
        lanes: lanes.collect(),
        files: progress.files.clone(),
        limits: progress.limits.report,
    }
}

fn conclusion_of(summary: &CopySummary) -> Conclusion {
    Conclusion {
        done: summary.done,
        skipped: summary.skipped,
        failed: summary.failed,
        bytes: summary.bytes,
        bytes_skipped: summary.bytes_skipped,
        first_failure: summary.failures.first().cloned(),
        counters: summary.counters,
        limits: summary.limits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(reachable: Reachable, host: &str, port: u16) -> Option<String> {
        let rules = ThirdPartyRules { reachable, path_cache: None };
        let passive = PassiveAgent { host: host.to_owned(), port, keys: vec![[0; 32]] };
        let error = rules.check(&passive).err()?;
        assert_eq!(error.settings(), [Setting::ThirdParty]);
        Some(error.text().to_owned())
    }

    #[test]
    fn only_hosts_that_the_operator_named_are_reached() {
        let hub = || Reachable::These(vec![HostPort { host: "hub".to_owned(), port: 7373 }]);
        assert_eq!(refusal(hub(), "hub", 7373), None);
        assert_eq!(refusal(hub(), "HUB", 7373), None, "names of hosts have no case");
        assert_eq!(refusal(Reachable::Any, "169.254.169.254", 80), None);
        for (host, port) in [("hub", 22), ("hub.", 7373), ("127.0.0.1", 7373), ("hub.evil", 7373)] {
            let said = refusal(hub(), host, port).unwrap();
            assert!(said.ends_with(&format!("can allow {host}:{port}")), "{said}");
        }
        let said = refusal(Reachable::These(Vec::new()), "::1", 7373).unwrap();
        assert!(said.contains("runs no copies with other agents") && said.contains("[::1]:7373"), "{said}");
    }
}
