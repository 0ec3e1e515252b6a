//! Either end of what a command and its active agent say to each other: the control log, and when the session is over.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::{Conclusion, Told};
use crate::error::Error;
use crate::session::log::ControlLog;
use crate::session::message::{Frame, Message};
use crate::session::send::{FAREWELL_TIME_MAX, lost_every_lane};
use crate::session::{LaneId, copied};

/// Which end this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchSide {
    /// It has asked, and listens.
    Command,
    /// It runs the copy, and tells.
    Agent,
}

/// What the driver must know.
#[derive(Debug)]
pub enum WatchEvent {
    /// Command: something happened.
    Told(Told),
    /// Command: the copy has come to its end.
    Concluded(Box<Conclusion>),
    /// The session ended early: of the copy, at the command; at the agent it is to be stopped.
    Aborted(Error),
}

/// One end. Its lanes carry no blocks.
#[derive(Debug)]
pub struct WatchSession {
    side: WatchSide,
    log: ControlLog,
    linger: Duration,
    events: VecDeque<WatchEvent>,
    /// Outcomes that were not told one by one, since the log was full.
    untold: u64,
    /// Everything was said or heard; only acknowledgements are left.
    over: bool,
    /// The outcome of the copy is among the last words: the command is to have it, also when it comes back for it.
    awaits_command: bool,
    leaving_since: Option<Instant>,
    ended: bool,
}

impl WatchSession {
    /// An end that outlives its last lane by `linger`.
    pub fn new(side: WatchSide, linger: Duration) -> Self {
        Self {
            side,
            log: ControlLog::default(),
            linger,
            events: VecDeque::new(),
            untold: 0,
            over: false,
            awaits_command: false,
            leaving_since: None,
            ended: false,
        }
    }

    // Input.

    /// A lane is up.
    pub fn handle_lane_up(&mut self, lane: LaneId) {
        self.log.handle_lane_up(lane);
    }

    /// A lane is dead.
    pub fn handle_lane_down(&mut self, lane: LaneId, now: Instant) {
        self.ended = self.is_over();
        self.log.handle_lane_down(lane, now);
    }

    /// A stretch of the peer's control log. Errors: the peer broke the protocol; the session is aborted.
    pub fn handle_messages(&mut self, first: u64, encoded: &[u8]) -> Result<(), Error> {
        let taken = self.log.handle_frame(first, encoded);
        let taken =
            taken.and_then(|messages| messages.into_iter().try_for_each(|message| self.handle_message(message)));
        taken.inspect_err(|error| self.abort(copied(error)))
    }

    /// The peer has taken our messages below `next`. Errors: it cannot have; the session is aborted.
    pub fn handle_acknowledgement(&mut self, next: u64) -> Result<(), Error> {
        self.log.handle_acknowledgement(next).inspect_err(|error| self.abort(copied(error)))
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.over && !self.is_over() && now >= *self.leaving_since.get_or_insert(now) + self.farewell() {
            self.ended = true;
        }
        if self.log.alone_since().is_some_and(|since| now >= since + self.linger) && !self.over {
            self.finish_with(lost_every_lane(self.linger));
        }
    }

    fn handle_message(&mut self, message: Message) -> Result<(), Error> {
        match (message, self.side) {
            (Message::Abort { error }, _) => self.finish_with(error.refused(true)),
            (Message::Told(told), WatchSide::Command) if !self.over => self.events.push_back(WatchEvent::Told(*told)),
            (Message::Concluded(conclusion), WatchSide::Command) if !self.over => {
                self.over = true;
                self.events.push_back(WatchEvent::Concluded(conclusion));
            }
            // Behind an end of ours that it had not heard of.
            (Message::Told(_) | Message::Concluded(_), WatchSide::Command) => {}
            _ => return Err(Error::protocol("a message from the peer that has no place in a third-party copy")),
        }
        Ok(())
    }

    // Commands.

    /// Agent: tells what happened. Nobody waits for a command that hears too little: what the log has no room for is
    /// counted, and the counts of the conclusion are complete.
    pub fn tell(&mut self, told: Told) {
        if self.over {
            return;
        }
        match self.log.has_room() {
            true => self.log.push(&Message::Told(Box::new(told))),
            false => self.untold += u64::from(matches!(told, Told::Settled { .. } | Told::Unreadable(_))),
        }
    }

    /// Agent: the copy has come to its end.
    pub fn conclude(&mut self, conclusion: Conclusion) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        self.awaits_command = true;
        if self.untold > 0 {
            let text = format!(
                "{} outcomes were not told one by one, since the connection to the agent carried less than they took; the \
                 counts are complete",
                self.untold
            );
            self.log.push(&Message::Told(Box::new(Told::Notice(text))));
        }
        self.log.push(&Message::Concluded(Box::new(conclusion)));
    }

    /// Agent: the copy has failed. Its command is to hear of it, also when it comes back later.
    pub fn fail(&mut self, error: Error) {
        if !self.over {
            self.abort(error);
            self.awaits_command = true;
        }
    }

    /// Ends the session at both ends; who is not there now does not hear of it.
    pub fn abort(&mut self, error: Error) {
        self.awaits_command = false;
        if !self.over {
            self.log.push(&Message::Abort { error: copied(&error) });
            self.finish_with(error);
        }
    }

    fn finish_with(&mut self, error: Error) {
        if !std::mem::replace(&mut self.over, true) {
            self.events.push_back(WatchEvent::Aborted(error));
        }
    }

    // Output.

    /// The next frame for `lane`, if there is anything to say.
    pub fn poll_frame(&mut self, lane: LaneId) -> Option<Frame> {
        self.log.poll_frame(lane).or_else(|| self.log.poll_acknowledgement(lane))
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<WatchEvent> {
        self.events.pop_front()
    }

    // Questions.

    /// Whether everything was said that there is to say.
    pub fn is_concluded(&self) -> bool {
        self.over
    }

    /// Whether the session is over and its last words have arrived, or no lane takes them.
    pub fn is_over(&self) -> bool {
        let said = match self.awaits_command {
            true => self.log.is_settled(),
            // Nobody is there to be told.
            false => self.log.is_sent() && !self.log.owes_acknowledgement() || self.log.lane_count() == 0,
        };
        self.ended || self.over && said
    }

    /// How many lanes are up.
    pub fn lane_count(&self) -> usize {
        self.log.lane_count()
    }

    /// How long the last words are held for a peer: the outcome of a copy for as long as the command may come back for it.
    fn farewell(&self) -> Duration {
        if self.awaits_command { self.linger } else { FAREWELL_TIME_MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{ErrorKind, Phase, Scope};

    const LANE: LaneId = LaneId(0);
    const LINGER: Duration = Duration::from_secs(600);

    fn ends() -> (WatchSession, WatchSession) {
        let mut ends = (WatchSession::new(WatchSide::Command, LINGER), WatchSession::new(WatchSide::Agent, LINGER));
        connect(&mut ends, LANE);
        ends
    }

    fn connect((command, agent): &mut (WatchSession, WatchSession), lane: LaneId) {
        command.handle_lane_up(lane);
        agent.handle_lane_up(lane);
    }

    fn notice(number: usize) -> Told {
        Told::Notice(number.to_string())
    }

    /// Carries what `from` has to say on `lane` to `to`.
    fn carry(from: &mut WatchSession, to: &mut WatchSession, lane: LaneId) {
        while let Some(frame) = from.poll_frame(lane) {
            match frame {
                Frame::Messages { first, encoded } => to.handle_messages(first, &encoded).unwrap(),
                Frame::Acknowledge { next } => to.handle_acknowledgement(next).unwrap(),
                other => panic!("{other:?} is no frame of the log"),
            }
        }
    }

    fn heard(command: &mut WatchSession) -> Vec<String> {
        std::iter::from_fn(|| command.poll_event())
            .map(|event| match event {
                WatchEvent::Told(Told::Notice(text)) => text,
                WatchEvent::Concluded(conclusion) => format!("{} done", conclusion.done),
                WatchEvent::Aborted(error) => error.text().to_owned(),
                other => panic!("{other:?} was never told"),
            })
            .collect()
    }

    #[test]
    fn what_a_dead_lane_took_along_is_heard_on_the_next_and_once() {
        let mut ends = ends();
        ends.1.tell(notice(0));
        carry(&mut ends.1, &mut ends.0, LANE);
        ends.1.tell(notice(1));
        // On its way when the lane dies, with the acknowledgement of the first.
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
            ends.1.tell(Told::Unreadable(error()));
        }
        assert!(ends.1.log.waiting_bytes() < 16 << 20);
        ends.1.conclude(Conclusion { failed: 100_000, ..Conclusion::default() });
        carry(&mut ends.1, &mut ends.0, LANE);
        let mut count = 0;
        let mut last = Vec::new();
        while let Some(event) = ends.0.poll_event() {
            match event {
                WatchEvent::Told(Told::Unreadable(_)) => count += 1,
                other => last.push(other),
            }
        }
        let [WatchEvent::Told(Told::Notice(text)), WatchEvent::Concluded(conclusion)] = &last[..] else {
            panic!("{last:?}")
        };
        assert!(text.starts_with(&format!("{} outcomes were not told", 100_000 - count)), "{text}");
        assert!(count > 0 && conclusion.failed == 100_000);
    }

    #[test]
    fn a_stop_reaches_the_agent_and_one_whose_command_is_gone_stops_by_itself() {
        let stopped = || Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Transfer, "stopped");
        let mut ends = ends();
        ends.0.abort(stopped());
        carry(&mut ends.0, &mut ends.1, LANE);
        assert_eq!(heard(&mut ends.1), ["stopped"]);
        ends.1.tell(notice(0));
        carry(&mut ends.1, &mut ends.0, LANE);
        assert_eq!(heard(&mut ends.0), ["stopped"], "nothing is told behind the end");
        assert!(ends.0.is_over() && ends.1.is_over());

        let (_, mut alone) = self::ends();
        let now = Instant::now();
        alone.handle_lane_down(LANE, now);
        alone.handle_timeout(now + LINGER - Duration::from_millis(1));
        assert!(alone.poll_event().is_none());
        alone.handle_timeout(now + LINGER);
        assert!(matches!(alone.poll_event(), Some(WatchEvent::Aborted(_))) && alone.is_over());
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
        // Not for ever, and not when the agent needs the place or has been told to forget the command.
        let mut forgotten = WatchSession::new(WatchSide::Agent, LINGER);
        forgotten.conclude(Conclusion::default());
        forgotten.handle_timeout(now);
        forgotten.handle_timeout(now + LINGER - Duration::from_millis(1));
        assert!(!forgotten.is_over());
        forgotten.handle_timeout(now + LINGER);
        assert!(forgotten.is_over());
        let mut revoked = WatchSession::new(WatchSide::Agent, LINGER);
        revoked.conclude(Conclusion::default());
        assert!(!revoked.is_over());
        revoked.abort(Error::new(ErrorKind::Untrusted, Scope::Client, Phase::Prepare, "not authorized"));
        assert!(revoked.is_over());
    }

    #[test]
    fn neither_end_takes_what_only_the_other_one_says() {
        let (mut command, mut agent) = ends();
        let told = Message::Told(Box::new(notice(0))).encode();
        assert!(agent.handle_messages(0, &told).is_err() && agent.is_concluded());
        assert!(command.handle_messages(0, &Message::Bye.encode()).is_err() && command.is_concluded());
    }
}
