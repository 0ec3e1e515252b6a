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
    /// It ended before the copy did.
    aborted: bool,
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
            aborted: false,
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
            (Message::Abort { error }, _) => self.finish_with(error),
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

    /// Ends the session at both ends.
    pub fn abort(&mut self, error: Error) {
        if !self.over {
            self.log.push(&Message::Abort { error: copied(&error) });
            self.finish_with(error);
        }
    }

    fn finish_with(&mut self, error: Error) {
        if !std::mem::replace(&mut self.over, true) {
            self.aborted = true;
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
        let said = if self.aborted { self.log.is_sent() } else { self.log.is_settled() };
        self.ended || self.over && said && !self.log.owes_acknowledgement()
    }

    /// How many lanes are up.
    pub fn lane_count(&self) -> usize {
        self.log.lane_count()
    }

    /// How long the last words are held for a peer: the outcome of a copy for as long as the command may come back for it.
    fn farewell(&self) -> Duration {
        match (self.side, self.aborted) {
            (WatchSide::Agent, false) => self.linger,
            _ => FAREWELL_TIME_MAX,
        }
    }
}
