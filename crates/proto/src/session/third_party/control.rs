//! Either end of the exchange between a command and its active agent: the control log, and the end of the session.
//!
//! Delivers reports in order and exactly once, and keeps the result for a command that reconnects. Refuses to read a
//! clock. Time and frames come in by `handle_*`; frames and events leave by `poll_*`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{AgentReport, Conclusion};
use crate::error::Error;
use crate::rate::RateContract;
use crate::session::LaneId;
use crate::session::hello::{Features, PathNumber};
use crate::session::life::{Ending, LifeEvent, SessionCore, SessionEvent, SessionKind};
use crate::session::message::{Frame, Message};
use crate::session::notices::NoticeBudget;
use crate::session::query::Answer;

/// End of the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlSide {
    /// The command: it has sent the request and receives reports.
    Command,
    /// The active agent: it runs the copy and sends reports.
    Agent,
}

/// Event for the driver.
#[derive(Debug)]
pub enum ControlEvent {
    /// Command: an event of the copy.
    Reported(AgentReport),
    /// Command: an answer to its query.
    Answered(Answer),
    /// Command: the work of the agent has ended.
    Concluded(Box<Conclusion>),
    /// The session ended early. At the command, the copy has failed; at the agent, the copy must be stopped.
    Aborted(Error),
}

impl SessionEvent for ControlEvent {
    fn aborted(error: Error) -> Self {
        Self::Aborted(error)
    }
}

/// One end of the exchange. Its lanes carry no blocks.
#[derive(Debug)]
pub struct ControlSession {
    side: ControlSide,
    pub(in crate::session) core: SessionCore<ControlEvent>,
    /// Number of outcomes that were not sent individually because the log was full.
    unreported: u64,
    /// Command: budget for what the agent reports besides outcomes.
    notices: NoticeBudget,
    /// Command: restarts of the passive agent in this minute.
    restarts: NoticeBudget,
}

impl ControlSession {
    /// Returns an end that outlives its last lane by `linger`.
    pub fn new(side: ControlSide, linger: Duration) -> Self {
        Self {
            side,
            core: SessionCore::new(SessionKind::Control { linger }),
            unreported: 0,
            notices: NoticeBudget::default(),
            restarts: NoticeBudget::default(),
        }
    }

    // Input.

    /// Records that a lane is up.
    pub fn handle_lane_up(&mut self, lane: LaneId) {
        self.core.log.handle_lane_up(lane);
    }

    /// Records that a lane is down.
    pub fn handle_lane_down(&mut self, lane: LaneId, now: Instant) {
        self.core.handle_lane_down(lane, now);
    }

    /// Accepts a batch of the peer's control log. Errors: the peer violated the protocol; the session is aborted.
    pub fn handle_messages(&mut self, first: u64, encoded: &[u8]) -> Result<(), Error> {
        let taken = self.core.log.handle_frame(first, encoded);
        let taken =
            taken.and_then(|messages| messages.into_iter().try_for_each(|message| self.handle_message(message)));
        taken.inspect_err(|error| self.abort(error.clone()))
    }

    /// Records that the peer has accepted our messages below `next`. Errors: such a message was never sent; the session
    /// is aborted.
    pub fn handle_acknowledgement(&mut self, next: u64) -> Result<(), Error> {
        self.core.log.handle_acknowledgement(next).inspect_err(|error| self.abort(error.clone()))
    }

    /// Checks the timeouts against `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        let line = self.notices.handle_timeout(now);
        self.tell_left_out(line);
        self.restarts.handle_timeout(now);
        self.core.handle_timeout(now);
    }

    /// Reports the notices that were left out until now. Called before the last event.
    fn flush_notices(&mut self) {
        let line = self.notices.take_line();
        self.tell_left_out(line);
    }

    /// Command: reports the notices that were left out, if any.
    fn tell_left_out(&mut self, line: Option<String>) {
        if let Some(text) = line.filter(|_| self.core.is_active()) {
            self.core.emit(ControlEvent::Reported(AgentReport::Notice(text)));
        }
    }

    fn handle_message(&mut self, message: Message) -> Result<(), Error> {
        let is_active = self.core.is_active();
        match (message, self.side) {
            (Message::Abort { error }, _) if is_active => {
                self.flush_notices();
                self.core.handle_abort(error);
            }
            // A result waits for the command even if the command gives up at the same time.
            (Message::Abort { .. }, _) => {}
            (Message::Report(report), ControlSide::Command) if is_active => {
                // Each has an effect, so that none can be left out.
                if matches!(*report, AgentReport::Restarted) && !self.restarts.admit() {
                    return Err(Error::protocol(
                        "the agent reports more restarts of the other agent than there can be",
                    ));
                }
                // Outcomes count in the summary, and the reporter joins those that are alike.
                if matches!(*report, AgentReport::Settled { .. } | AgentReport::Unreadable(_) | AgentReport::Restarted)
                    || self.notices.admit()
                {
                    self.core.emit(ControlEvent::Reported(*report));
                }
            }
            (Message::Contract { path, contract }, ControlSide::Agent) => self.core.handle_contract(path, contract),
            (Message::Answer(answer), ControlSide::Command) if is_active => {
                self.core.emit(ControlEvent::Answered(answer))
            }
            (Message::Concluded(conclusion), ControlSide::Command) if is_active => {
                self.flush_notices();
                self.core.turn(LifeEvent::Leave(Ending::Complete));
                self.core.emit(ControlEvent::Concluded(conclusion));
            }
            // The agent sent these before it received our abort.
            (Message::Report(_) | Message::Answer(_) | Message::Concluded(_), ControlSide::Command) => {}
            _ => return Err(Error::protocol("a message from the peer that has no place in a third-party copy")),
        }
        Ok(())
    }

    // Commands.

    /// Agent: reports an event. The copy never waits for a slow command. Outcomes for which the log has no room are
    /// only counted; the counters of the conclusion are complete.
    pub fn report(&mut self, report: AgentReport) {
        if !self.core.is_active() {
            return;
        }
        match self.core.log.has_room() {
            true => self.core.log.push(&Message::Report(Box::new(report))),
            false => {
                self.unreported += u64::from(matches!(report, AgentReport::Settled { .. } | AgentReport::Unreadable(_)))
            }
        }
    }

    /// Agent: sends an answer to the query of the command. Returns it if the log has no room: the caller waits for an
    /// acknowledgement and tries again. An answer after the end of the session is dropped.
    pub fn answer(&mut self, answer: Answer) -> Option<Answer> {
        if self.core.is_active() && !self.core.log.has_room() {
            return Some(answer);
        }
        if self.core.is_active() {
            self.core.log.push(&Message::Answer(answer));
        }
        None
    }

    /// Command: changes the rate contract of a path of the copy. An agent without [`Features::CONTRACTS`] ignores it,
    /// and the user gets a notice.
    pub fn send_contract(&mut self, path: PathNumber, contract: RateContract) {
        let notice = self.core.send_contract(path, contract);
        self.emit_notice(notice);
    }

    /// Command: records the features of the agent, from the welcome of a lane.
    pub fn handle_welcome(&mut self, features: Features) {
        let notice = self.core.handle_welcome(features);
        self.emit_notice(notice);
    }

    fn emit_notice(&mut self, text: Option<&str>) {
        let notice = text.map(|text| ControlEvent::Reported(AgentReport::Notice(text.to_owned())));
        notice.into_iter().for_each(|notice| self.core.emit(notice));
    }

    /// Agent: returns the contracts that the command has changed since the last call.
    pub fn take_contracts(&mut self) -> BTreeMap<PathNumber, RateContract> {
        self.core.take_contracts()
    }

    /// Agent: ends the exchange with the result of the copy.
    pub fn conclude(&mut self, conclusion: Conclusion) {
        if self.core.turn(LifeEvent::Conclude(Ending::Complete)).is_none() {
            return;
        }
        if self.unreported > 0 {
            let text = format!(
                "{} outcomes were not reported one by one, since the connection to the agent carried less than they took; the \
                 counts are complete",
                self.unreported
            );
            self.core.log.push(&Message::Report(Box::new(AgentReport::Notice(text))));
        }
        self.core.log.push(&Message::Concluded(Box::new(conclusion)));
    }

    /// Agent: ends the exchange because the copy has failed. The command receives the error, even if it reconnects
    /// later.
    pub fn fail(&mut self, error: Error) {
        if self.core.turn(LifeEvent::Conclude(Ending::Aborted)).is_some() {
            self.core.log.push(&Message::Abort { error: error.clone() });
            self.core.emit(ControlEvent::Aborted(error));
        }
    }

    /// Ends the session at both ends. A peer without a lane at this moment does not receive the error. A result that
    /// waits for the command is not kept any longer.
    pub fn abort(&mut self, error: Error) {
        if self.core.is_active() {
            self.flush_notices();
            self.core.abort(error);
        } else {
            self.core.turn(LifeEvent::Leave(Ending::Aborted));
        }
    }

    // Output.

    /// Returns the next frame for `lane`, if one is due.
    pub fn poll_frame(&mut self, lane: LaneId) -> Option<Frame> {
        self.core.poll_frame(lane)
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<ControlEvent> {
        self.core.poll_event()
    }

    /// Returns the latest time for the next call of [`ControlSession::handle_timeout`]. It may change with every input
    /// and command.
    pub fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        self.core.poll_timeout(now)
    }

    // Getters.

    /// Returns true once the conclusion or an abort was queued or received.
    pub fn is_concluded(&self) -> bool {
        !self.core.is_active()
    }

    /// Returns true if the session is over: its final messages have arrived, or no lane accepts them.
    pub fn is_over(&self) -> bool {
        self.core.is_over()
    }

    /// Returns true if `lane` is up.
    pub fn is_up(&self, lane: LaneId) -> bool {
        self.core.log.is_up(lane)
    }

    /// Returns the number of lanes that are up.
    pub fn lane_count(&self) -> usize {
        self.core.log.lane_count()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Subject;
    use super::*;
    use crate::error::{ErrorKind, Phase, Scope};
    use crate::session::notices::NOTICES_MAX;

    const LANE: LaneId = LaneId(0);
    const LINGER: Duration = Duration::from_secs(600);

    fn ends() -> (ControlSession, ControlSession) {
        let mut ends =
            (ControlSession::new(ControlSide::Command, LINGER), ControlSession::new(ControlSide::Agent, LINGER));
        connect(&mut ends, LANE);
        ends
    }

    fn connect((command, agent): &mut (ControlSession, ControlSession), lane: LaneId) {
        command.handle_lane_up(lane);
        agent.handle_lane_up(lane);
    }

    fn notice(number: usize) -> AgentReport {
        AgentReport::Notice(number.to_string())
    }

    /// Moves all frames of `from` on `lane` to `to`.
    fn carry(from: &mut ControlSession, to: &mut ControlSession, lane: LaneId) {
        while let Some(frame) = from.poll_frame(lane) {
            match frame {
                Frame::Messages { first, encoded } => to.handle_messages(first, &encoded).unwrap(),
                Frame::Acknowledge { next } => to.handle_acknowledgement(next).unwrap(),
                other => panic!("{other:?} is no frame of the log"),
            }
        }
    }

    fn heard(command: &mut ControlSession) -> Vec<String> {
        std::iter::from_fn(|| command.poll_event())
            .map(|event| match event {
                ControlEvent::Reported(AgentReport::Notice(text)) => text,
                ControlEvent::Concluded(conclusion) => format!("{} done", conclusion.done),
                ControlEvent::Aborted(error) => error.text().to_owned(),
                other => panic!("{other:?} was never report"),
            })
            .collect()
    }

    #[test]
    fn what_a_dead_lane_took_along_is_heard_on_the_next_and_once() {
        let mut ends = ends();
        ends.1.report(notice(0));
        carry(&mut ends.1, &mut ends.0, LANE);
        ends.1.report(notice(1));
        // In flight when the lane goes down, and the first message is not acknowledged.
        assert!(ends.1.poll_frame(LANE).is_some());
        let now = Instant::now();
        ends.0.handle_lane_down(LANE, now);
        ends.1.handle_lane_down(LANE, now);
        ends.1.conclude(Conclusion { done: 7, ..Conclusion::default() });
        ends.1.handle_timeout(now + LINGER / 2);
        assert!(!ends.1.is_over(), "the outcome is kept for a command that comes back");
        connect(&mut ends, LaneId(1));
        carry(&mut ends.1, &mut ends.0, LaneId(1));
        assert_eq!(heard(&mut ends.0), ["0", "1", "7 done"]);
        assert!(!ends.0.is_over(), "the agent does not know yet that it was heard");
        carry(&mut ends.0, &mut ends.1, LaneId(1));
        assert!(ends.0.is_over() && ends.1.is_over());
    }

    #[test]
    fn a_command_that_hears_too_little_holds_nothing_up_and_the_end_says_so() {
        let mut ends = ends();
        let error = || Error::new(ErrorKind::Io, Scope::Source, Phase::Transfer, "x");
        for _ in 0..100_000 {
            ends.1.report(AgentReport::Unreadable(error()));
        }
        assert!(ends.1.core.log.waiting_bytes() < 16 << 20);
        ends.1.conclude(Conclusion { failed: 100_000, ..Conclusion::default() });
        carry(&mut ends.1, &mut ends.0, LANE);
        let mut count = 0;
        let mut last = Vec::new();
        while let Some(event) = ends.0.poll_event() {
            match event {
                ControlEvent::Reported(AgentReport::Unreadable(_)) => count += 1,
                other => last.push(other),
            }
        }
        let [ControlEvent::Reported(AgentReport::Notice(text)), ControlEvent::Concluded(conclusion)] = &last[..] else {
            panic!("{last:?}")
        };
        assert!(text.starts_with(&format!("{} outcomes were not reported", 100_000 - count)), "{text}");
        assert!(count > 0 && conclusion.failed == 100_000);
    }

    #[test]
    fn a_stop_reaches_the_agent_and_one_whose_command_is_gone_stops_by_itself() {
        let stopped = || Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Transfer, "stopped");
        let mut ends = ends();
        ends.0.abort(stopped());
        carry(&mut ends.0, &mut ends.1, LANE);
        assert_eq!(heard(&mut ends.1), ["stopped"]);
        ends.1.report(notice(0));
        carry(&mut ends.1, &mut ends.0, LANE);
        assert_eq!(heard(&mut ends.0), ["stopped"], "nothing is report behind the end");
        assert!(ends.0.is_over() && ends.1.is_over());

        let (_, mut alone) = self::ends();
        let now = Instant::now();
        alone.handle_lane_down(LANE, now);
        alone.handle_timeout(now + LINGER - Duration::from_millis(1));
        assert!(alone.poll_event().is_none());
        alone.handle_timeout(now + LINGER);
        assert!(matches!(alone.poll_event(), Some(ControlEvent::Aborted(_))) && alone.is_over());
    }

    #[test]
    fn a_copy_that_fails_while_nobody_listens_is_told_to_a_command_that_comes_back() {
        let mut ends = ends();
        let now = Instant::now();
        ends.0.handle_lane_down(LANE, now);
        ends.1.handle_lane_down(LANE, now);
        ends.1.fail(Error::new(ErrorKind::NoSpace, Scope::Destination, Phase::Transfer, "no space"));
        ends.1.handle_timeout(now + LINGER / 2);
        assert!(!ends.1.is_over());
        connect(&mut ends, LaneId(1));
        carry(&mut ends.1, &mut ends.0, LaneId(1));
        assert_eq!(heard(&mut ends.0), ["no space"]);
        carry(&mut ends.0, &mut ends.1, LaneId(1));
        assert!(ends.0.is_over() && ends.1.is_over());
        // The result is not kept forever. It is dropped early if the agent needs the memory or the command's key is
        // revoked.
        let mut forgotten = ControlSession::new(ControlSide::Agent, LINGER);
        forgotten.conclude(Conclusion::default());
        forgotten.handle_timeout(now);
        forgotten.handle_timeout(now + LINGER - Duration::from_millis(1));
        assert!(!forgotten.is_over());
        forgotten.handle_timeout(now + LINGER);
        assert!(forgotten.is_over());
        let mut revoked = ControlSession::new(ControlSide::Agent, LINGER);
        revoked.conclude(Conclusion::default());
        assert!(!revoked.is_over());
        revoked.abort(Error::new(ErrorKind::Untrusted, Scope::Client, Phase::Prepare, "not authorized"));
        assert!(revoked.is_over());
    }

    #[test]
    fn an_agent_that_reports_without_end_is_cut_to_a_budget_and_its_outcomes_all_count() {
        let (mut command, _) = ends();
        let (start, mut first) = (Instant::now(), 0);
        command.handle_timeout(start);
        let mut deliver = |command: &mut ControlSession, report: AgentReport| {
            first += 1;
            command.handle_messages(first - 1, &Message::Report(Box::new(report)).encode())
        };
        let error = || Error::new(ErrorKind::Io, Scope::Source, Phase::Transfer, "x");
        let (mut shown, mut failed) = (0, 0);
        for number in 0..100_000 {
            let report = match number % 4 {
                0 => notice(number),
                1 => AgentReport::Decision { subject: Subject::Lanes, rationale: number.to_string() },
                2 => AgentReport::LaneDown { lane: number as u32, reason: number.to_string(), again: true },
                _ => AgentReport::Unreadable(error()),
            };
            deliver(&mut command, report).unwrap();
            while let Some(event) = command.poll_event() {
                match event {
                    ControlEvent::Reported(AgentReport::Unreadable(_)) => failed += 1,
                    _ => shown += 1,
                }
            }
        }
        assert_eq!((shown, failed), (NOTICES_MAX, 25_000));
        command.handle_timeout(start + Duration::from_secs(60));
        let said = heard(&mut command);
        assert!(said.len() == 1 && said[0].contains(&format!("{} of them", 75_000 - NOTICES_MAX)), "{said:?}");
        // The rest is reported at the end.
        for number in 0..NOTICES_MAX + 3 {
            deliver(&mut command, notice(number as usize)).unwrap();
        }
        command.abort(error());
        let said = heard(&mut command);
        assert_eq!(said.len(), NOTICES_MAX as usize + 2);
        assert!(said[NOTICES_MAX as usize].contains("3 of them"), "{said:?}");
    }

    #[test]
    fn an_agent_that_reports_restarts_without_end_ends_the_copy() {
        let (mut command, _) = ends();
        let restarted = Message::Report(Box::new(AgentReport::Restarted)).encode();
        let first_refused = (0..10_000).find(|number| command.handle_messages(*number, &restarted).is_err());
        assert!(first_refused.is_some() && command.is_concluded());
    }

    #[test]
    fn neither_end_takes_what_only_the_other_one_says() {
        let (mut command, mut agent) = ends();
        let report = Message::Report(Box::new(notice(0))).encode();
        assert!(agent.handle_messages(0, &report).is_err() && agent.is_concluded());
        assert!(command.handle_messages(0, &Message::Bye.encode()).is_err() && command.is_concluded());
    }
}
