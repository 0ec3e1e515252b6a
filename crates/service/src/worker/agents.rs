//! Agents that take work from the service, as its runner knows them: their connections, addresses and load.
//!
//! Chooses the agents of a transfer. Refuses to know files and to speak to the network: a channel leads to each
//! connection.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use sterna_net::identity::Fingerprint;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::messages::{End, Key, RECLAIM_AFTER, ToAgent};

/// Connection of an agent.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Identifier of the connection.
    pub id: Uuid,
    /// Key of the agent.
    pub agent: Fingerprint,
    /// Release of the agent.
    pub release: String,
    /// Address at which other agents reach it.
    pub address: Option<String>,
    /// Transfers that the agent has.
    pub running: Vec<Key>,
    /// It lists the files beneath prefixes.
    pub lists: bool,
    /// Messages to the agent.
    pub messages: mpsc::UnboundedSender<ToAgent>,
}

/// Returns the name of a run of an agent, as the store keeps it.
pub fn worker_name(agent: &Fingerprint, run: Uuid) -> Arc<str> {
    format!("{agent}/{}", run.simple()).into()
}

/// Returns the agent of a worker; `None`: it is none.
pub fn agent_of(worker: &str) -> Option<Fingerprint> {
    worker.rsplit_once('/').and_then(|(agent, _)| agent.parse().ok())
}

/// State of the connection of an agent.
#[derive(Debug)]
enum Link {
    /// It is connected.
    Up(Connection),
    /// It was connected, or had transfers when the service stopped.
    Down(Instant),
}

/// One run of an agent.
#[derive(Debug)]
struct Worker {
    agent: Fingerprint,
    link: Link,
    /// Number of transfers that it takes part in.
    load: usize,
}

/// Agents of a transfer.
#[derive(Clone, Debug, PartialEq)]
pub struct Assignment {
    /// Worker that runs it.
    pub worker: Arc<str>,
    /// Key of that worker.
    pub agent: Fingerprint,
    /// Its end.
    pub end: End,
    /// Agent at the other end; `None`: a web server is there.
    pub peer: Option<Peer>,
}

/// Agent that another one dials.
#[derive(Clone, Debug, PartialEq)]
pub struct Peer {
    /// Worker.
    pub worker: Arc<str>,
    /// Key.
    pub agent: Fingerprint,
    /// Address.
    pub address: String,
}

/// Reason why two sites have no agents for a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unpaired {
    /// No agent of this end is connected.
    Absent(End),
    /// Both ends are at one agent.
    Same,
    /// No agent has an address that the other could dial.
    Unreachable,
}

/// Reason why a site has no agent that lists files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoLister {
    /// No agent is connected.
    Absent,
    /// Those that are connected cannot list.
    Unable,
}

/// All agents.
#[derive(Debug, Default)]
pub struct Agents {
    workers: BTreeMap<Arc<str>, Worker>,
    /// Pairs of an active and a passive agent that did not reach each other last time.
    unreached: BTreeSet<(Fingerprint, Fingerprint)>,
    /// Connections or loads have changed since the last call of [`Agents::take_changed`].
    has_changed: bool,
}

impl Agents {
    /// Adds a worker that had transfers when the service stopped, and may come back.
    pub fn handle_expected(&mut self, worker: &Arc<str>, now: Instant) {
        if let Some(agent) = agent_of(worker) {
            let link = Link::Down(now);
            self.workers.entry(Arc::clone(worker)).or_insert(Worker { agent, link, load: 0 });
        }
    }

    /// Records a connection. Returns earlier runs of the same agent, which have ended.
    pub fn handle_connected(&mut self, worker: &Arc<str>, connection: Connection) -> Vec<Arc<str>> {
        let agent = connection.agent;
        let is_earlier =
            |(name, other): (&Arc<str>, &Worker)| (other.agent == agent && name != worker).then(|| Arc::clone(name));
        let earlier: Vec<Arc<str>> = self.workers.iter().filter_map(is_earlier).collect();
        for name in &earlier {
            if self.workers.remove(name).is_some_and(|worker| matches!(worker.link, Link::Up(_))) {
                tracing::warn!("the agent {agent} was restarted, or two agents use this key and replace each other");
            }
        }
        let known = self.workers.entry(Arc::clone(worker));
        let known = known.or_insert_with(|| Worker { agent, link: Link::Down(Instant::now()), load: 0 });
        known.link = Link::Up(connection);
        self.has_changed = true;
        // It may have moved to another network.
        self.unreached.retain(|(active, passive)| *active != agent && *passive != agent);
        earlier
    }

    /// Records that a connection has ended. Returns false for one that was replaced, which does not count.
    pub fn handle_disconnected(&mut self, worker: &str, connection: Uuid, now: Instant) -> bool {
        if let Some(worker) = self.workers.get_mut(worker)
            && matches!(&worker.link, Link::Up(up) if up.id == connection)
        {
            worker.link = Link::Down(now);
            self.has_changed = true;
            return true;
        }
        false
    }

    /// Returns true if connections or loads have changed since the last call.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// Removes workers that are away for longer than their lease. Returns them.
    pub fn take_lapsed(&mut self, now: Instant) -> Vec<Arc<str>> {
        let is_lapsed = |worker: &Worker| match worker.link {
            Link::Up(_) => false,
            Link::Down(since) => now.saturating_duration_since(since) >= RECLAIM_AFTER,
        };
        let lapsed = self.workers.iter().filter(|(_, worker)| is_lapsed(worker));
        let lapsed: Vec<Arc<str>> = lapsed.map(|(name, _)| Arc::clone(name)).collect();
        lapsed.iter().for_each(|name| drop(self.workers.remove(name)));
        lapsed
    }

    /// Returns true if one of these agents is connected.
    pub fn has_any(&self, agents: &[Fingerprint]) -> bool {
        self.connected(agents).next().is_some()
    }

    /// Sends a message to a worker. One that is away does not get it.
    pub fn send(&self, worker: &str, message: ToAgent) {
        if let Some(Link::Up(connection)) = self.workers.get(worker).map(|worker| &worker.link) {
            // A connection that has just ended reports so.
            let _ = connection.messages.send(message);
        }
    }

    /// Counts a transfer.
    pub fn take(&mut self, assignment: &Assignment) {
        self.count(assignment, 1);
    }

    /// Counts a transfer no more.
    pub fn release(&mut self, assignment: &Assignment) {
        self.count(assignment, -1);
    }

    fn count(&mut self, assignment: &Assignment, change: isize) {
        for name in std::iter::once(&assignment.worker).chain(assignment.peer.iter().map(|peer| &peer.worker)) {
            if let Some(worker) = self.workers.get_mut(name) {
                worker.load = worker.load.saturating_add_signed(change);
                self.has_changed = true;
            }
        }
    }

    /// Records if an agent has reached the other one. The next transfer of agents that failed goes the other way, if
    /// that is possible.
    pub fn handle_reached(&mut self, assignment: &Assignment, is_reached: bool) {
        let Some(peer) = &assignment.peer else { return };
        let way = (assignment.agent, peer.agent);
        match is_reached {
            true => drop(self.unreached.remove(&way)),
            false => drop(self.unreached.insert(way)),
        }
    }

    /// Chooses the agents of a transfer between two sites: those with the least load. The source pushes, if it can
    /// reach the destination: a push saves a round trip.
    ///
    /// Errors: the reason why there are none.
    pub fn pair(&self, sources: &[Fingerprint], destinations: &[Fingerprint]) -> Result<Assignment, Unpaired> {
        let (from, source, source_up) = self.least(sources, None).ok_or(Unpaired::Absent(End::Source))?;
        if !self.has_any(destinations) {
            return Err(Unpaired::Absent(End::Destination));
        }
        let (to, destination, destination_up) = self.least(destinations, Some(source.agent)).ok_or_else(|| {
            let has_others = sources.iter().chain(destinations).any(|agent| *agent != source.agent);
            if has_others { Unpaired::Absent(End::Destination) } else { Unpaired::Same }
        })?;
        let way = |worker: &Arc<str>, agent, end, other: &Arc<str>, of_other, address: &Option<String>| {
            let peer = Peer { worker: Arc::clone(other), agent: of_other, address: address.clone()? };
            Some(Assignment { worker: Arc::clone(worker), agent, end, peer: Some(peer) })
        };
        let push = way(from, source.agent, End::Source, to, destination.agent, &destination_up.address);
        let pull = way(to, destination.agent, End::Destination, from, source.agent, &source_up.address);
        let has_failed =
            |way: &&Assignment| way.peer.as_ref().is_some_and(|peer| self.unreached.contains(&(way.agent, peer.agent)));
        let ways = [push, pull];
        let best = ways.iter().flatten().find(|way| !has_failed(way)).or_else(|| ways.iter().flatten().next());
        best.cloned().ok_or(Unpaired::Unreachable)
    }

    /// Chooses the agent of a transfer between a site and a web server; `None`: no agent is connected.
    pub fn single(&self, agents: &[Fingerprint], end: End) -> Option<Assignment> {
        let (worker, of_agent, _) = self.least(agents, None)?;
        Some(Assignment { worker: Arc::clone(worker), agent: of_agent.agent, end, peer: None })
    }

    /// Returns the worker with the least load among agents, other than `other`.
    fn least(&self, agents: &[Fingerprint], other: Option<Fingerprint>) -> Option<(&Arc<str>, &Worker, &Connection)> {
        let able = self.connected(agents).filter(|(_, worker, _)| Some(worker.agent) != other);
        able.min_by_key(|(_, worker, _)| worker.load)
    }

    /// Returns the connection of the agent with the least load that lists files, and its worker.
    ///
    /// Errors: the reason why there is none.
    pub fn lister(&self, agents: &[Fingerprint]) -> Result<(Arc<str>, mpsc::UnboundedSender<ToAgent>), NoLister> {
        let able = self.connected(agents).filter(|(_, _, connection)| connection.lists);
        let least = able.min_by_key(|(_, worker, _)| worker.load);
        let lister = least.map(|(name, _, connection)| (Arc::clone(name), connection.messages.clone()));
        lister.ok_or_else(|| if self.has_any(agents) { NoLister::Unable } else { NoLister::Absent })
    }

    /// Returns the workers that are connected, each with its load.
    pub fn all_connected(&self) -> impl Iterator<Item = (&Connection, usize)> {
        self.workers.values().filter_map(|worker| match &worker.link {
            Link::Up(connection) => Some((connection, worker.load)),
            Link::Down(_) => None,
        })
    }

    fn connected(&self, agents: &[Fingerprint]) -> impl Iterator<Item = (&Arc<str>, &Worker, &Connection)> {
        self.workers.iter().filter_map(move |(name, worker)| match &worker.link {
            Link::Up(connection) if agents.contains(&worker.agent) => Some((name, worker, connection)),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u8) -> Fingerprint {
        Fingerprint([number; 32])
    }

    fn run(number: u8) -> Uuid {
        Uuid::from_bytes([number; 16])
    }

    /// Connects an agent. Returns its name as a worker, and the messages to it.
    fn connect(
        agents: &mut Agents,
        agent: u8,
        of_run: u8,
        address: Option<&str>,
    ) -> (Arc<str>, mpsc::UnboundedReceiver<ToAgent>) {
        let (messages, received) = mpsc::unbounded_channel();
        let name = worker_name(&key(agent), run(of_run));
        let connection = Connection {
            id: run(of_run),
            agent: key(agent),
            release: String::new(),
            address: address.map(str::to_owned),
            running: Vec::new(),
            lists: true,
            messages,
        };
        agents.handle_connected(&name, connection);
        (name, received)
    }

    #[test]
    fn the_source_pushes_unless_it_cannot_reach_the_destination() {
        for (source, destination, unreached, expected) in [
            (Some("a:1"), Some("b:1"), None, Ok((End::Source, "b:1"))),
            (None, Some("b:1"), None, Ok((End::Source, "b:1"))),
            (Some("a:1"), None, None, Ok((End::Destination, "a:1"))),
            (None, None, None, Err(Unpaired::Unreachable)),
            (Some("a:1"), Some("b:1"), Some((1, 2)), Ok((End::Destination, "a:1"))),
            (Some("a:1"), Some("b:1"), Some((2, 1)), Ok((End::Source, "b:1"))),
            (None, Some("b:1"), Some((1, 2)), Ok((End::Source, "b:1"))),
        ] {
            let mut agents = Agents::default();
            let _near = connect(&mut agents, 1, 1, source);
            let _far = connect(&mut agents, 2, 2, destination);
            if let Some((active, passive)) = unreached {
                agents.unreached.insert((key(active), key(passive)));
            }
            let pair = agents.pair(&[key(1)], &[key(2)]);
            let address = |pair: &Assignment| (pair.end, pair.peer.clone().unwrap().address);
            let chosen = pair.as_ref().map(address).map_err(|e| *e);
            let expected = expected.map(|(end, address): (End, &str)| (end, address.to_owned()));
            assert_eq!(chosen, expected, "{source:?} {destination:?} {unreached:?}");
        }
    }

    #[test]
    fn agents_of_a_site_share_its_transfers() {
        let mut agents = Agents::default();
        let (near, _messages) = connect(&mut agents, 1, 1, None);
        let (one, _messages) = connect(&mut agents, 2, 2, Some("b:1"));
        let (other, _messages) = connect(&mut agents, 3, 3, Some("b:2"));
        let site = [key(2), key(3), key(4)];
        let first = agents.pair(&[key(1)], &site).unwrap();
        let peer = |assignment: &Assignment| assignment.peer.clone().unwrap().worker;
        assert_eq!((&first.worker, peer(&first)), (&near, one));
        agents.take(&first);
        assert_eq!(peer(&agents.pair(&[key(1)], &site).unwrap()), other);
        assert_eq!(agents.single(&site, End::Destination).unwrap().worker, other);
        agents.release(&first);
        assert_eq!(agents.pair(&[key(1)], &site).unwrap(), first);
        agents.take(&first);
        assert_eq!(agents.pair(&[key(1)], &[key(1)]), Err(Unpaired::Same));
        let within = agents.pair(&site, &site).unwrap();
        assert_ne!(within.worker, peer(&within), "within a site");
        assert_eq!(agents.pair(&[key(9)], &site), Err(Unpaired::Absent(End::Source)));
        assert_eq!(agents.pair(&site, &[]), Err(Unpaired::Absent(End::Destination)));
    }

    #[test]
    fn a_dial_that_failed_is_forgotten_when_one_succeeds_or_the_agent_moves() {
        let mut agents = Agents::default();
        let _near = connect(&mut agents, 1, 1, Some("a:1"));
        let _far = connect(&mut agents, 2, 2, Some("b:1"));
        let push = agents.pair(&[key(1)], &[key(2)]).unwrap();
        agents.handle_reached(&push, false);
        assert_eq!(agents.pair(&[key(1)], &[key(2)]).unwrap().end, End::Destination);
        agents.handle_reached(&push, true);
        assert_eq!(agents.pair(&[key(1)], &[key(2)]).unwrap().end, End::Source);
        agents.handle_reached(&push, false);
        let _far = connect(&mut agents, 2, 3, Some("c:1"));
        assert_eq!(agents.pair(&[key(1)], &[key(2)]).unwrap().end, End::Source);
    }

    #[test]
    fn a_worker_that_stays_away_lapses_and_a_restarted_agent_replaces_it() {
        let mut agents = Agents::default();
        let start = Instant::now();
        let (first, _messages) = connect(&mut agents, 1, 1, None);
        agents.handle_disconnected(&first, run(9), start);
        assert!(agents.has_any(&[key(1)]), "another connection has ended");
        agents.handle_disconnected(&first, run(1), start);
        assert!(!agents.has_any(&[key(1)]));
        assert!(agents.take_lapsed(start + RECLAIM_AFTER / 2).is_empty());
        let (second, mut messages) = connect(&mut agents, 1, 2, None);
        assert!(agents.take_lapsed(start + RECLAIM_AFTER).is_empty(), "the first run is gone already");
        agents.send(&second, ToAgent::Cancel { key: Key { file: 1, start: 1 } });
        agents.send(&first, ToAgent::Cancel { key: Key { file: 2, start: 1 } });
        assert_eq!(messages.try_recv().unwrap(), ToAgent::Cancel { key: Key { file: 1, start: 1 } });
        assert!(messages.try_recv().is_err());
        agents.handle_disconnected(&second, run(2), start);
        assert_eq!(agents.take_lapsed(start + RECLAIM_AFTER), [Arc::clone(&second)]);
        agents.handle_expected(&second, start);
        assert_eq!(agents.take_lapsed(start + RECLAIM_AFTER), [second]);
    }

    #[test]
    fn the_name_of_a_worker_has_its_agent() {
        assert_eq!(agent_of(&worker_name(&key(7), run(1))), Some(key(7)));
        assert_eq!(agent_of("embedded-0123"), None);
    }
}
