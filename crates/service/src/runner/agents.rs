//! Agents of the runner: where a transfer runs, the orders for it, and what becomes of it when an agent is lost.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::sync::Arc;

use sterna_net::identity::Fingerprint;
use sterna_proto::session::{Grant, GrantedAccess, Overwrite, SignedGrant};
use sterna_proto::{Error, ErrorKind, Location, Phase, Retry, Scope};
use sterna_sched::queue::FileNumber;
use sterna_sched::settings::{Link, Name};
use sterna_sched::state::FileState;
use tracing::{debug, info, warn};

use super::placement::Placement;
use super::{Runner, TICK, cancelled};
use crate::endpoint::{AGENTS, site_of};
use crate::job::{Failure, File, Moved, Task};
use crate::paths::{ObservedRound, PathEnds, directions};
use crate::service::{AgentState, Running, Stop, now};
use crate::settings::{kind, read};
use crate::site::Site;
use crate::store::{Change, Changed, Event};
use crate::worker::{Assignment, Connection, End, Key, Order, Other, ToAgent, Unpaired, Visited, agent_of, to_base64};

/// Maximum number of starts of a file whose agents were lost. Reason: a file that ends its agents must not go on for
/// ever, and agents that are restarted every day must not fail a file that waits for weeks.
const LOST_STARTS_MAX: u32 = 100;

/// Time for which a grant starts sessions, in seconds. Reason: an agent starts its session at once, and a restarted one
/// of a long transfer soon after. A transfer whose grant has expired gets another one with its next attempt.
const GRANT_SECONDS: u64 = 3600;

/// Age of a visit that is not kept, in seconds. Reason: an agent holds those of an hour or some back while the service
/// is away, and an agent that lies has no more rows at once.
const VISIT_AGE_MAX: u64 = 24 * 3600;

/// Maximum number of rounds that wait for the store. Reason: some MB. More are left out; their agents have them.
const ROUNDS_WAITING_MAX: usize = 10_000;

/// Maximum number of records of paths, and of rounds, that are stored in one turn. Reason: the runner waits meanwhile,
/// some ms.
const MEASURED_TOGETHER_MAX: usize = 500;

impl Running {
    /// Returns true if this start of the transfer is at this worker.
    pub(super) fn is_start(&self, worker: &Arc<str>, key: Key) -> bool {
        self.worker == *worker && self.file.starts == key.start
    }

    /// Returns true if the transfer starts again, and its failure is no failed attempt: the other agent has moved, or
    /// the agent was told to stop for another reason than the file. Reasons are another file of the session that was
    /// cancelled, and a move that an earlier run of the service has noticed.
    pub(super) fn goes_again(&self, failure: Option<&Error>) -> bool {
        failure.is_some_and(|error| match self.stop {
            Some(Stop::Cancelled) => false,
            Some(Stop::Moved) => true,
            None => error.kind == ErrorKind::Cancelled,
        })
    }
}

impl Runner {
    /// Returns the place where a transfer of a link runs. Agents count it from here on.
    pub(super) fn place(&mut self, link: &Link) -> Placement {
        let failed = |kind, retry, text: String| {
            Placement::Nowhere(Error::new(kind, Scope::Service, Phase::Prepare, text).retry(retry))
        };
        let absent =
            |site: &str| failed(ErrorKind::Unreachable, Retry::After, format!("no agent of {site} is connected"));
        let assignment = match (site_of(&link.source), site_of(&link.destination)) {
            (None, None) => return Placement::Embedded,
            (Some(source), Some(destination)) => {
                match self.agents.pair(self.members(source), self.members(destination)) {
                    Ok(pair) => pair,
                    Err(Unpaired::Absent(End::Source)) => return absent(source),
                    Err(Unpaired::Absent(End::Destination)) => return absent(destination),
                    Err(Unpaired::Same) => {
                        let text = format!("{source} and {destination} have one agent, which cannot send to itself");
                        return failed(ErrorKind::Usage, Retry::Never, text);
                    }
                    Err(Unpaired::Unreachable) => {
                        let text = format!(
                            "no agent of {source} and {destination} has an address for the other: start one with \
                             --reachable-at"
                        );
                        return failed(ErrorKind::Unreachable, Retry::After, text);
                    }
                }
            }
            (Some(site), None) => match self.agents.single(self.members(site), End::Source) {
                Some(single) => single,
                None => return absent(site),
            },
            (None, Some(site)) => match self.agents.single(self.members(site), End::Destination) {
                Some(single) => single,
                None => return absent(site),
            },
        };
        self.agents.take(&assignment);
        Placement::Agents(assignment)
    }

    /// Gives back a place that is not used.
    pub(super) fn release(&mut self, placement: &Placement) {
        placement.assignment().into_iter().for_each(|assignment| self.agents.release(assignment));
    }

    /// Returns the agents of a site.
    pub(super) fn members(&self, site: &str) -> &[Fingerprint] {
        self.applied.sites.get(site).map_or(&[], |site| site.agents.as_slice())
    }

    /// Returns the order for transfers that share a session. Errors: `Usage`, for a location that agents do not
    /// understand.
    pub(super) fn order(&self, mut tasks: Vec<Task>, assignment: &Assignment) -> Result<Order, Error> {
        // Only replies of FTS3 need them.
        tasks.iter_mut().for_each(|task| task.options.fts.clear());
        let Assignment { agent, end, peer, .. } = assignment;
        let Some(peer) = peer else {
            let secret = tasks.first().and_then(|task| match end {
                End::Source => task.credentials.destination.as_ref(),
                End::Destination => task.credentials.source.as_ref(),
            });
            let token = secret.map(|secret| secret.reveal().to_owned());
            return Ok(Order { tasks, end: *end, other: Other::Web { token } });
        };
        let access = match end {
            // Files that share a session have one policy: that of the first.
            End::Source => GrantedAccess::Write(tasks.first().map_or(Overwrite::Never, Task::overwrite)),
            End::Destination => GrantedAccess::Read,
        };
        let path = |task: &Task| {
            let there = if *end == End::Source { &task.destination } else { &task.source };
            match Location::parse(OsStr::new(there))? {
                Location::Remote(there) => Ok(there.path),
                _ => {
                    let text = format!("{there} is not at an agent");
                    Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text))
                }
            }
        };
        let mut nonce = [0; 16];
        getrandom::fill(&mut nonce).map_err(|e| {
            let text = "ask the kernel for random bytes";
            Error::new(ErrorKind::Internal, Scope::Service, Phase::Prepare, text).caused_by(e)
        })?;
        let grant = Grant {
            service: self.identity.fingerprint().0,
            holder: agent.0,
            at: peer.agent.0,
            access,
            paths: tasks.iter().map(path).collect::<Result<_, _>>()?,
            expires: u64::try_from(now().0 / 1000).unwrap_or(0) + GRANT_SECONDS,
            nonce,
        };
        let signature = self.identity.sign(&grant.signed_bytes());
        let other = Other::Agent {
            address: peer.address.clone(),
            key: peer.agent.to_string(),
            grant: to_base64(&SignedGrant { grant, signature }.encode()),
        };
        Ok(Order { tasks, end: *end, other })
    }

    /// Returns a failure as it counts for the two endpoints. An agent is believed about its site, and about a web
    /// storage, of which it is the only witness. It is not believed about another site: a lie would stop transfers of
    /// all others with that site.
    pub(super) fn as_counted(&self, running: &Running, error: &Error) -> Error {
        let endpoint = match error.scope {
            Scope::Source => &running.file.new.source_endpoint,
            Scope::Destination => &running.file.new.destination_endpoint,
            _ => return error.clone(),
        };
        let mut counted = error.clone();
        if let (Some(agent), Some(site)) = (agent_of(&running.worker), site_of(endpoint))
            && !self.members(site).contains(&agent)
        {
            counted.scope = Scope::Path;
        }
        counted
    }

    /// Records the connection of an agent. Returns its transfers that have got lost.
    pub(super) fn handle_connected(&mut self, worker: &Arc<str>, connection: Connection) -> Vec<Running> {
        let sites: Vec<String> = self.applied.sites_of(&connection.agent).into_iter().map(str::to_owned).collect();
        info!("agent {} of {} is connected, release {}", connection.agent, sites.join(", "), connection.release);
        let at_agent: HashSet<Key> = connection.running.iter().copied().collect();
        self.handle_moved(connection.agent, connection.address.as_deref());
        let earlier = self.agents.handle_connected(worker, connection);
        let welcome = ToAgent::Welcome { key: to_base64(&self.identity.public_key().0), sites };
        self.agents.send(worker, welcome);
        // An earlier run of the agent has ended, with all its transfers.
        earlier.iter().for_each(|worker| self.handle_lister_lost(worker));
        let mut lost = self.of_workers(&earlier);
        let mut running = self.service.shared.running.lock();
        let mine = running.values().filter(|running| running.worker == *worker);
        let known: Vec<(Key, bool)> = mine.map(|one| (key_of(one), one.stop.is_some())).collect();
        for (key, is_stopping) in &known {
            match at_agent.contains(key) {
                // The agent was away when the service sent the order to stop.
                true if *is_stopping => self.agents.send(worker, ToAgent::Cancel { key: *key }),
                true => {}
                // The order did not arrive.
                false => lost.extend(running.remove(&key.number())),
            }
        }
        drop(running);
        let known: HashSet<Key> = known.into_iter().map(|(key, _)| key).collect();
        for key in at_agent.difference(&known) {
            // It was cancelled, or given to another worker, while the agent was away.
            self.agents.send(worker, ToAgent::Cancel { key: *key });
        }
        self.refresh_agents();
        lost
    }

    /// Ends transfers with an agent that has another address now. They start again with that one.
    fn handle_moved(&self, agent: Fingerprint, address: Option<&str>) {
        for running in self.service.shared.running.lock().values_mut() {
            let peer = running.assignment.as_ref().and_then(|assignment| assignment.peer.as_ref());
            if peer.is_some_and(|peer| peer.agent == agent && Some(peer.address.as_str()) != address) {
                running.stop = running.stop.or(Some(Stop::Moved));
                self.agents.send(&running.worker, ToAgent::Cancel { key: key_of(running) });
            }
        }
    }

    /// Removes the transfers of workers from those under way.
    pub(super) fn of_workers(&mut self, workers: &[Arc<str>]) -> Vec<Running> {
        if workers.is_empty() {
            return Vec::new();
        }
        let mut running = self.service.shared.running.lock();
        let is_lost = |one: &Running| workers.contains(&one.worker);
        let lost: Vec<FileNumber> = running.iter().filter(|(_, one)| is_lost(one)).map(|(number, _)| *number).collect();
        lost.iter().filter_map(|number| running.remove(number)).collect()
    }

    /// Lets transfers of lost workers start again. That is no failed attempt.
    pub(super) async fn reclaim(&mut self, lost: Vec<Running>) {
        if lost.is_empty() {
            return;
        }
        warn!(
            "{} transfers start again: their agent is away, was restarted or has moved, or a file of their session was \
             cancelled",
            lost.len()
        );
        let at = now();
        let lost_too_often = || {
            let text = format!("its agents were lost {LOST_STARTS_MAX} times while they ran it");
            Failure::from(&Error::new(ErrorKind::Internal, Scope::Service, Phase::Transfer, text))
        };
        let what = |file: &File| match file.starts.saturating_sub(file.failures) > LOST_STARTS_MAX {
            true => Event::Fails { failure: lost_too_often(), moved: file.moved.clone(), successor: None },
            false => Event::Retries { failure: None, moved: file.moved.clone(), not_before: at },
        };
        let again = |running: &Running| Change {
            file: running.file.number,
            from: FileState::Active,
            of_worker: Some(running.worker.to_string()),
            what: what(&running.file),
            decision: None,
            at,
        };
        let changed = self.change(lost.iter().map(again).collect()).await;
        for (running, changed) in lost.iter().zip(changed) {
            running.assignment.iter().for_each(|assignment| self.agents.release(assignment));
            self.free(running.file.number, &cancelled());
            if let Changed::Done { file, waiting, .. } = changed {
                self.queue(&waiting);
                if file.state == FileState::Waiting {
                    self.queue(std::slice::from_ref(&file));
                }
            }
        }
    }

    /// Follows a change of the agents or of their sites: which endpoints have none. Files of a site that an operator
    /// has removed start, and fail.
    pub(super) fn refresh_agents(&self) {
        let is_absent = |(_, site): &(&String, &Site)| !self.agents.has_any(&site.agents);
        let absent = self.applied.sites.iter().filter(is_absent);
        let absent: Vec<Name> = absent.map(|(site, _)| format!("{AGENTS}{site}").into()).collect();
        self.service.shared.scheduler.lock().set_absent(&absent);
    }

    /// Shows the agents to the interfaces, if they or their loads have changed.
    pub(super) fn show_agents(&mut self) {
        if !self.agents.take_changed() {
            return;
        }
        let state = |(connection, transfers): (&Connection, usize)| AgentState {
            agent: connection.agent,
            release: connection.release.clone(),
            address: connection.address.clone(),
            transfers,
        };
        let mut states: Vec<AgentState> = self.agents.all_connected().map(state).collect();
        states.sort_by_key(|state| state.agent);
        *self.service.shared.agents.lock() = states;
    }

    /// Reads the measurements of paths.
    pub(super) async fn read_paths(&self) {
        let stored = self.insist("read measurements of paths", async || self.store().settings(kind::PATH).await).await;
        let known = stored.iter().filter_map(|setting| Some((PathEnds::by_name(&setting.name)?, read(setting)?)));
        *self.service.shared.paths.lock() = known.collect();
    }

    /// Adds a transfer to the measurements of its path.
    pub(super) fn handle_measured(&mut self, path: &PathEnds, moved: &Moved) {
        self.service.shared.paths.lock().entry(*path).or_default().add(moved, now().0);
        self.changed_paths.insert(*path);
    }

    /// Adds the visit of an agent that monitors a peer. An agent is believed about the paths at its own end.
    pub(super) fn handle_visited(&mut self, worker: &str, mut visited: Visited) {
        let (Some(observer), Ok(peer)) = (agent_of(worker), visited.peer()) else { return };
        let is_known = |agent| !self.applied.sites_of(agent).is_empty();
        if observer == peer || !is_known(&peer) || !is_known(&observer) {
            return debug!("agent {observer} monitors {peer}: one of them is no agent of a site, and nothing is kept");
        }
        let seconds = u64::try_from(now().0 / 1000).unwrap_or(0);
        if visited.round.at.saturating_add(VISIT_AGE_MAX) < seconds {
            return debug!("agent {observer} reports a visit of {}, which is too old to be kept", visited.round.at);
        }
        // The clock of the agent may be ahead.
        visited.round.at = visited.round.at.min(seconds);
        for (path, visit) in directions(observer, peer, &visited) {
            self.service.shared.paths.lock().entry(path).or_default().set_visit(visit);
            self.changed_paths.insert(path);
        }
        match self.new_rounds.len() < ROUNDS_WAITING_MAX {
            true => self.new_rounds.push_back(ObservedRound { observer, peer, round: visited.round }),
            false => debug!("{ROUNDS_WAITING_MAX} rounds wait for the store: one of agent {observer} is left out"),
        }
    }

    /// Stores the measurements that have changed. Those of the last seconds may be lost in a crash.
    pub(super) async fn store_paths(&mut self) {
        let ends: Vec<PathEnds> = self.changed_paths.iter().take(MEASURED_TOGETHER_MAX).copied().collect();
        let rounds: Vec<_> = self.new_rounds.iter().take(MEASURED_TOGETHER_MAX).cloned().collect();
        if ends.is_empty() && rounds.is_empty() {
            return;
        }
        let records = {
            let paths = self.service.shared.paths.lock();
            let record = |ends: &PathEnds| Some((ends.name(), serde_json::to_value(paths.get(ends)?).ok()?));
            ends.iter().filter_map(record).collect()
        };
        let stored = rounds.len();
        match self.store().set_measured(kind::PATH, records, rounds).await {
            Ok(()) => {
                self.changed_paths.retain(|path| !ends.contains(path));
                self.new_rounds.drain(..stored);
            }
            Err(error) => warn!("store measurements of paths: {}; trying again in {TICK:?}", error.chain()),
        }
    }

    /// Follows a change of the settings: agents of a site.
    pub(super) fn follow_settings(&mut self) {
        let applied = self.service.applied();
        if !Arc::ptr_eq(&applied, &self.applied) {
            self.applied = applied;
            self.refresh_agents();
            self.are_listings_due = true;
        }
    }
}

fn key_of(running: &Running) -> Key {
    Key { file: running.file.number.0, start: running.file.starts }
}
