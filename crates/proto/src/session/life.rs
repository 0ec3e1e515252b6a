//! Life of a session at one end: its states, the edges between them, and the limits of each state.
//!
//! Keeps the control log, the state and the events of one end. Both ends of a copy, both ends of the control session of
//! a third-party copy, and the replica ends share it. Refuses to know files or reports.
//!
//! [`Life::after`] is the table of edges. An event without an edge from the current state changes nothing: a second
//! abort, for example. The first [`Ending`] counts.
//!
//! | state | event | next state | examples |
//! |---|---|---|---|
//! | `Active` | `Conclude` | `Waiting` | receiver: directories are finished; active agent: the copy has ended |
//! | `Active` | `Leave` | `Leaving` | sender: the receiver has finished; any end: an abort, or no lane for too long |
//! | `Waiting` | `Leave` | `Leaving` | an abort; replica end: the manifest has ended |
//! | `Waiting` | `Exit` | `Left` | receiver: the sender has left; the limit; the end was over when a lane went down |
//! | `Leaving` | `Exit` | `Left` | the limit; the end was over when a lane went down |
//!
//! | state | over, so that lanes may close | limit of a copy | limit of a control session | limit of a replica end |
//! |---|---|---|---|---|
//! | `Active` | no | linger without a lane | linger without a lane | none |
//! | `Waiting` | the peer has every message; a replica end: no | linger without a lane | linger | farewell time |
//! | `Leaving` | a lane has taken every message, or no lane is up | farewell time | farewell time | farewell time |
//! | `Left` | yes | none | none | none |
//!
//! In a control session, an end that leaves also waits until its acknowledgement is on a lane. At the limit of `Active`
//! an end aborts; at the limits of the other states it leaves.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::hello::{Features, PathNumber};
use super::message::{Frame, Message};
use super::{ControlLog, LaneId};
use crate::error::{Error, ErrorKind, Phase, Retry, Scope};
use crate::rate::RateContract;

/// Maximum time in which an end that leaves tries to deliver its final message. Reason: a working lane accepts a
/// message within its queueing time and a round trip. A peer that accepts none is stuck and detects the end by a
/// timeout.
pub(super) const FAREWELL_TIME_MAX: Duration = Duration::from_secs(2);

/// Way in which a session has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Everything has its outcome.
    Complete,
    /// One end has given up.
    Aborted,
}

/// State of the life of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// The copy runs.
    Active,
    /// The result is in the log. The end stays until the peer has it.
    Waiting(Ending),
    /// The final message is in the log. The end stays until a lane has taken it; its arrival does not matter.
    Leaving(Ending),
    /// The end is over, whatever the log still holds.
    Left(Ending),
}

/// Event in the life of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LifeEvent {
    /// The result is known, and the peer must receive it.
    Conclude(Ending),
    /// Only a final message is left to send.
    Leave(Ending),
    /// Nothing is left to wait for.
    Exit,
}

impl Life {
    /// Returns the state after `event`. `None`: the event has no edge from this state.
    const fn after(self, event: LifeEvent) -> Option<Self> {
        match (self, event) {
            (Self::Active, LifeEvent::Conclude(ending)) => Some(Self::Waiting(ending)),
            (Self::Active, LifeEvent::Leave(ending)) => Some(Self::Leaving(ending)),
            (Self::Waiting(ending), LifeEvent::Leave(_)) => Some(Self::Leaving(ending)),
            (Self::Waiting(ending) | Self::Leaving(ending), LifeEvent::Exit) => Some(Self::Left(ending)),
            _ => None,
        }
    }
}

/// Kind of a session, with the time that it outlives its last lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionKind {
    /// Copy of files, at either end.
    Copy { linger: Duration },
    /// Control session of a third-party copy, at either end.
    Control { linger: Duration },
    /// Session with the sender of one replica, at the replica end. Its copy decides how long a lost one is awaited.
    Replica,
}

/// Limit of the time in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    None,
    /// Time without a lane.
    WithoutLane(Duration),
    /// Time since the end began to wait or to leave.
    Ending(Duration),
}

/// Event that a session emits when it is aborted.
pub(super) trait SessionEvent {
    fn aborted(error: Error) -> Self;
}

/// Log, life and events of one end.
#[derive(Debug)]
pub(super) struct SessionCore<E> {
    pub(super) log: ControlLog,
    kind: SessionKind,
    life: Life,
    /// Time of the first check of a [`Limit::Ending`].
    ending_since: Option<Instant>,
    events: VecDeque<E>,
    /// Latest contract of each path that the peer has changed, until the driver takes it.
    contracts: BTreeMap<PathNumber, RateContract>,
    /// Latest contract of each path that this end has changed.
    changed: BTreeMap<PathNumber, RateContract>,
    /// Features of the peer, from its last welcome; `None` at an end that sends welcomes.
    peer: Option<Features>,
}

/// Notice to a user whose agent lacks [`Features::CONTRACTS`].
const KEEPS_ITS_RATE: &str = "the agent has a version of sterna that cannot change a rate in mid-copy: a new rate applies \
     from the next connection of a lane";

impl<E> SessionCore<E> {
    pub(super) fn new(kind: SessionKind) -> Self {
        Self {
            log: ControlLog::default(),
            kind,
            life: Life::Active,
            ending_since: None,
            events: VecDeque::new(),
            contracts: BTreeMap::new(),
            changed: BTreeMap::new(),
            peer: None,
        }
    }

    // Input.

    /// Records that a lane is down. An end that was over before stays over, although its last messages are queued
    /// again for another lane.
    pub(super) fn handle_lane_down(&mut self, lane: LaneId, now: Instant) {
        if self.is_over() {
            self.turn(LifeEvent::Exit);
        }
        self.log.handle_lane_down(lane, now);
    }

    /// Accepts a new rate contract of a path from the peer.
    pub(super) fn handle_contract(&mut self, path: PathNumber, contract: RateContract) {
        if self.is_active() {
            self.contracts.insert(path, contract);
        }
    }

    /// Returns the contracts that the peer has changed since the last call.
    pub(super) fn take_contracts(&mut self) -> BTreeMap<PathNumber, RateContract> {
        std::mem::take(&mut self.contracts)
    }

    /// Sends a new rate contract of a path to the peer, now or after its welcome. Returns a text for the user if the
    /// peer cannot change a rate.
    pub(super) fn send_contract(&mut self, path: PathNumber, contract: RateContract) -> Option<&'static str> {
        self.changed.insert(path, contract);
        self.send_changed(|changed| changed == path)
    }

    /// Accepts the welcome of a lane. Sends the changed contracts again: the hello of the lane may carry an older one,
    /// and the last that the peer receives counts. Returns a text as [`Self::send_contract`] does.
    pub(super) fn handle_welcome(&mut self, features: Features) -> Option<&'static str> {
        self.peer = Some(features);
        self.send_changed(|_| true)
    }

    fn send_changed(&mut self, which: impl Fn(PathNumber) -> bool) -> Option<&'static str> {
        let features = self.peer.filter(|_| self.is_active() && !self.changed.is_empty())?;
        if !features.has(Features::CONTRACTS) {
            self.changed.clear();
            return Some(KEEPS_ITS_RATE);
        }
        for (&path, &contract) in self.changed.iter().filter(|(path, _)| which(**path)) {
            self.log.push(&Message::Contract { path, contract });
        }
        None
    }

    /// Takes the edge of `event`. Returns the former state; `None`: there is no such edge, and nothing changes.
    pub(super) fn turn(&mut self, event: LifeEvent) -> Option<Life> {
        let next = self.life.after(event)?;
        Some(std::mem::replace(&mut self.life, next))
    }

    /// Checks the limit of the current state. Returns an error if an active end gives up.
    pub(super) fn check_limit(&mut self, now: Instant) -> Option<Error> {
        let (since, limit) = match self.limit() {
            Limit::None => return None,
            Limit::WithoutLane(limit) => (self.log.alone_since()?, limit),
            Limit::Ending(limit) => (*self.ending_since.get_or_insert(now), limit),
        };
        if now < since + limit {
            return None;
        }
        // A receiver that waits has every outcome: only the goodbye or an acknowledgement of the sender was lost.
        if self.turn(LifeEvent::Exit).is_some() {
            return None;
        }
        self.turn(LifeEvent::Leave(Ending::Aborted)).map(|_| lost_every_lane(limit))
    }

    /// Adds an event for the driver.
    pub(super) fn emit(&mut self, event: E) {
        self.events.push_back(event);
    }

    // Output.

    /// Returns the next control frame for `lane`.
    pub(super) fn poll_frame(&mut self, lane: LaneId) -> Option<Frame> {
        self.log.poll_frame(lane).or_else(|| self.log.poll_acknowledgement(lane))
    }

    /// Returns the next event.
    pub(super) fn poll_event(&mut self) -> Option<E> {
        self.events.pop_front()
    }

    /// Returns the time at which the limit of the current state ends. The time of an end that waits or leaves starts at
    /// the first check; before it, `now` is returned.
    pub(super) fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        match self.limit() {
            Limit::None => None,
            Limit::WithoutLane(limit) => self.log.alone_since().map(|since| since + limit),
            Limit::Ending(limit) => Some(self.ending_since.map_or(now, |since| since + limit)),
        }
    }

    // Getters.

    fn limit(&self) -> Limit {
        match (self.life, self.kind) {
            (Life::Active, SessionKind::Copy { linger } | SessionKind::Control { linger })
            | (Life::Waiting(_), SessionKind::Copy { linger }) => Limit::WithoutLane(linger),
            (Life::Waiting(_), SessionKind::Control { linger }) => Limit::Ending(linger),
            (Life::Waiting(_), SessionKind::Replica) | (Life::Leaving(_), _) => Limit::Ending(FAREWELL_TIME_MAX),
            (Life::Active, SessionKind::Replica) | (Life::Left(_), _) => Limit::None,
        }
    }

    /// Returns true if the end is over and its lanes may close.
    pub(super) fn is_over(&self) -> bool {
        let is_alone = self.log.lane_count() == 0;
        match (self.life, self.kind) {
            (Life::Active, _) | (Life::Waiting(_), SessionKind::Replica) => false,
            (Life::Waiting(_), SessionKind::Copy { .. } | SessionKind::Control { .. }) => self.log.is_settled(),
            (Life::Leaving(_), SessionKind::Control { .. }) => {
                is_alone || self.log.is_sent() && !self.log.owes_acknowledgement()
            }
            (Life::Leaving(_), SessionKind::Copy { .. } | SessionKind::Replica) => is_alone || self.log.is_sent(),
            (Life::Left(_), _) => true,
        }
    }

    #[cfg(test)]
    pub(super) fn life(&self) -> Life {
        self.life
    }

    /// Returns true while the copy runs.
    pub(super) fn is_active(&self) -> bool {
        self.life == Life::Active
    }

    /// Returns true once only a final message is left to send, or nothing.
    pub(super) fn is_leaving(&self) -> bool {
        matches!(self.life, Life::Leaving(_) | Life::Left(_))
    }

    /// Returns true if the session ended because everything has its outcome.
    pub(super) fn is_complete(&self) -> bool {
        match self.life {
            Life::Active => false,
            Life::Waiting(ending) | Life::Leaving(ending) | Life::Left(ending) => ending == Ending::Complete,
        }
    }
}

impl<E: SessionEvent> SessionCore<E> {
    /// Records that the peer has accepted our messages below `next`. Errors: such a message was never sent; the session
    /// is aborted.
    pub(super) fn handle_acknowledgement(&mut self, next: u64) -> Result<(), Error> {
        self.log.handle_acknowledgement(next).inspect_err(|error| self.abort(error.clone()))
    }

    /// Checks the limit of the current state against `now`.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if let Some(error) = self.check_limit(now) {
            self.emit(E::aborted(error));
        }
    }

    /// Ends the session at both ends.
    pub(super) fn abort(&mut self, error: Error) {
        let former = self.turn(LifeEvent::Leave(Ending::Aborted));
        if former.is_some() {
            self.log.push(&Message::Abort { error: error.clone() });
        }
        self.report(former, error);
    }

    /// Ends the session because the peer has aborted it.
    pub(super) fn handle_abort(&mut self, error: Error) {
        let former = self.turn(LifeEvent::Leave(Ending::Aborted));
        self.report(former, error.from_peer());
    }

    /// Reports an abort if the session had no other ending before. Both ends may abort at the same time, or after the
    /// session is complete.
    fn report(&mut self, former: Option<Life>, error: Error) {
        if former == Some(Life::Active) {
            self.emit(E::aborted(error));
        }
    }
}

/// Error that both ends report when no lane has come back in time.
pub(super) fn lost_every_lane(linger: Duration) -> Error {
    let text =
        format!("no lane to the peer for {} s: given up; run the same command again to resume", linger.as_secs());
    Error::new(ErrorKind::Unreachable, Scope::Path, Phase::Transfer, text).retry(Retry::After)
}

#[cfg(test)]
mod tests {
    use super::Ending::{Aborted, Complete};
    use super::Life::{Active, Leaving, Left, Waiting};
    use super::LifeEvent::{Conclude, Exit, Leave};
    use super::*;

    const LANE: LaneId = LaneId(0);
    const LINGER: Duration = Duration::from_secs(600);
    const STATES: [Life; 7] = [
        Active,
        Waiting(Complete),
        Waiting(Aborted),
        Leaving(Complete),
        Leaving(Aborted),
        Left(Complete),
        Left(Aborted),
    ];
    const EVENTS: [LifeEvent; 5] = [Conclude(Complete), Conclude(Aborted), Leave(Complete), Leave(Aborted), Exit];
    const EDGES: [(Life, LifeEvent, Life); 12] = [
        (Active, Conclude(Complete), Waiting(Complete)),
        (Active, Conclude(Aborted), Waiting(Aborted)),
        (Active, Leave(Complete), Leaving(Complete)),
        (Active, Leave(Aborted), Leaving(Aborted)),
        (Waiting(Complete), Leave(Complete), Leaving(Complete)),
        (Waiting(Complete), Leave(Aborted), Leaving(Complete)),
        (Waiting(Aborted), Leave(Complete), Leaving(Aborted)),
        (Waiting(Aborted), Leave(Aborted), Leaving(Aborted)),
        (Waiting(Complete), Exit, Left(Complete)),
        (Waiting(Aborted), Exit, Left(Aborted)),
        (Leaving(Complete), Exit, Left(Complete)),
        (Leaving(Aborted), Exit, Left(Aborted)),
    ];

    fn core(kind: SessionKind, life: Life) -> SessionCore<()> {
        SessionCore { life, ..SessionCore::new(kind) }
    }

    #[test]
    fn every_edge_is_taken_and_every_other_pair_of_state_and_event_is_refused() {
        for state in STATES {
            for event in EVENTS {
                let edge = EDGES.iter().find(|(from, on, _)| (*from, *on) == (state, event));
                let mut core = core(SessionKind::Replica, state);
                assert_eq!(core.turn(event), edge.map(|_| state), "{state:?} {event:?}");
                assert_eq!(core.life, edge.map_or(state, |(_, _, next)| *next), "{state:?} {event:?}");
            }
        }
    }

    /// Returns true for each of these situations in which an end is over: a message is not sent, a feeder hands it to a
    /// lane, the lane has taken it, it is acknowledged, a message of the peer is not acknowledged, no lane is up.
    fn over(kind: SessionKind, life: Life) -> [bool; 6] {
        let mut core = core(kind, life);
        core.log.handle_lane_up(LANE);
        core.log.push(&Message::Bye);
        let unsent = core.is_over();
        assert!(core.poll_frame(LANE).is_some());
        let handed = core.is_over();
        assert!(core.poll_frame(LANE).is_none());
        let sent = core.is_over();
        core.log.handle_acknowledgement(1).unwrap();
        let settled = core.is_over();
        core.log.handle_frame(0, &Message::Bye.encode()).unwrap();
        let owing = core.is_over();
        core.log.push(&Message::Bye);
        core.log.handle_lane_down(LANE, Instant::now());
        [unsent, handed, sent, settled, owing, core.is_over()]
    }

    #[test]
    fn an_end_is_over_as_its_state_and_kind_demand() {
        let (copy, control) = (SessionKind::Copy { linger: LINGER }, SessionKind::Control { linger: LINGER });
        let (never, always) = ([false; 6], [true; 6]);
        for ending in [Complete, Aborted] {
            for kind in [copy, control, SessionKind::Replica] {
                assert_eq!(over(kind, Active), never);
                assert_eq!(over(kind, Left(ending)), always);
            }
            assert_eq!(over(copy, Waiting(ending)), [false, false, false, true, true, false]);
            assert_eq!(over(control, Waiting(ending)), [false, false, false, true, true, false]);
            assert_eq!(over(SessionKind::Replica, Waiting(ending)), never);
            assert_eq!(over(copy, Leaving(ending)), [false, false, true, true, true, true]);
            assert_eq!(over(control, Leaving(ending)), [false, false, true, true, false, true]);
            assert_eq!(over(SessionKind::Replica, Leaving(ending)), [false, false, true, true, true, true]);
        }
    }

    /// Returns the time that an end stays in a state with a lane, and without one.
    fn limits(kind: SessionKind, life: Life) -> [Option<Duration>; 2] {
        [true, false].map(|has_lane| {
            let (mut core, start) = (core(kind, life), Instant::now());
            core.log.handle_lane_up(LANE);
            if !has_lane {
                core.log.handle_lane_down(LANE, start);
            }
            let first = core.poll_timeout(start)?;
            assert!(core.check_limit(start).is_none());
            let end = core.poll_timeout(start)?;
            assert!(first == start || first == end, "an unknown time starts now");
            assert!(core.check_limit(end - Duration::from_nanos(1)).is_none());
            assert_eq!(core.life, life, "{kind:?} {has_lane}");
            let (next, error) = match life {
                Active => (Leaving(Aborted), Some(ErrorKind::Unreachable)),
                Waiting(ending) | Leaving(ending) | Left(ending) => (Left(ending), None),
            };
            assert_eq!((core.check_limit(end).map(|error| error.kind), core.life), (error, next), "{kind:?} {life:?}");
            Some(end - start)
        })
    }

    #[test]
    fn every_state_ends_at_the_limit_of_its_kind() {
        let (copy, control) = (SessionKind::Copy { linger: LINGER }, SessionKind::Control { linger: LINGER });
        let (linger, farewell) = (Some(LINGER), Some(FAREWELL_TIME_MAX));
        for kind in [copy, control] {
            assert_eq!(limits(kind, Active), [None, linger]);
        }
        assert_eq!(limits(SessionKind::Replica, Active), [None, None]);
        for ending in [Complete, Aborted] {
            assert_eq!(limits(copy, Waiting(ending)), [None, linger]);
            assert_eq!(limits(control, Waiting(ending)), [linger, linger]);
            assert_eq!(limits(SessionKind::Replica, Waiting(ending)), [farewell, farewell]);
            for kind in [copy, control, SessionKind::Replica] {
                assert_eq!(limits(kind, Leaving(ending)), [farewell, farewell]);
                assert_eq!(limits(kind, Left(ending)), [None, None]);
            }
        }
    }

    #[test]
    fn an_end_that_was_over_stays_over_when_a_lane_goes_down() {
        let mut core = core(SessionKind::Copy { linger: LINGER }, Leaving(Complete));
        [LANE, LaneId(1)].into_iter().for_each(|lane| core.log.handle_lane_up(lane));
        core.log.push(&Message::Bye);
        assert!(core.poll_frame(LANE).is_some() && core.poll_frame(LANE).is_none() && core.is_over());
        core.handle_lane_down(LANE, Instant::now());
        assert!(core.is_over() && !core.log.is_sent(), "the message is queued again for the other lane");
    }

    #[test]
    fn changed_contracts_wait_for_the_welcome_and_are_sent_again_after_each() {
        let mut core = SessionCore::<()>::new(SessionKind::Copy { linger: LINGER });
        core.log.handle_lane_up(LANE);
        let rate = |megabits| RateContract::of_rate(Some(crate::BitRate::megabits(megabits)));
        let sent = |core: &mut SessionCore<()>| {
            let mut messages = Vec::new();
            while let Some(frame) = core.poll_frame(LANE) {
                let Frame::Messages { encoded, .. } = frame else { continue };
                messages.extend(Message::decode_all(&encoded).unwrap().into_iter().map(|message| match message {
                    Message::Contract { path, contract } => (path, contract),
                    other => panic!("{other:?}"),
                }));
            }
            messages
        };
        let message = |path, megabits| (PathNumber(path), rate(megabits));
        assert_eq!(core.send_contract(PathNumber(1), rate(1)), None);
        assert_eq!(core.send_contract(PathNumber(1), rate(2)), None);
        assert_eq!(sent(&mut core), []);
        assert_eq!(core.handle_welcome(Features::CONTRACTS), None);
        assert_eq!(sent(&mut core), [message(1, 2)]);
        core.send_contract(PathNumber(0), rate(3));
        assert_eq!(sent(&mut core), [message(0, 3)]);
        // The hello of another lane may have carried an older contract.
        core.handle_welcome(Features(u64::MAX));
        assert_eq!(sent(&mut core), [message(0, 3), message(1, 2)]);
    }

    #[test]
    fn a_peer_that_cannot_change_a_rate_is_reported_once_for_each_change() {
        let mut core = SessionCore::<()>::new(SessionKind::Copy { linger: LINGER });
        core.log.handle_lane_up(LANE);
        core.send_contract(PathNumber(0), RateContract::default());
        assert_eq!(core.handle_welcome(Features::QUERIES), Some(KEEPS_ITS_RATE));
        assert_eq!(core.handle_welcome(Features::QUERIES), None);
        assert_eq!(core.send_contract(PathNumber(0), RateContract::default()), Some(KEEPS_ITS_RATE));
        assert!(core.poll_frame(LANE).is_none());
    }

    #[test]
    fn the_latest_contract_of_each_path_is_taken_once() {
        let mut core = SessionCore::<()>::new(SessionKind::Copy { linger: LINGER });
        let rate = |megabits| RateContract::of_rate(Some(crate::BitRate::megabits(megabits)));
        for (path, megabits) in [(0, 1), (3, 2), (0, 4)] {
            core.handle_contract(PathNumber(path), rate(megabits));
        }
        let taken = core.take_contracts();
        assert_eq!(taken.into_iter().collect::<Vec<_>>(), [(PathNumber(0), rate(4)), (PathNumber(3), rate(2))]);
        assert!(core.take_contracts().is_empty());
    }
}
