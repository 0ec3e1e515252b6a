//! Runner of a copy: the one loop that drives a session to its end, the end of its lanes, and the rules for the session
//! after a lost one.
//!
//! A kind of copy is a [`Driven`] session. Does not dial, and does not know which ends a session has.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sterna_proto::session::SessionId;
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};

use super::spec::{CopyEvent, CopyObserver, CopyProgress};
use super::stall::StallDetector;
use crate::lane::{LaneHandle, LaneStats};
use crate::latch::Latch;
use crate::pace::Pace;
use crate::session::{SESSION_OVER, SessionEvent, close_all, cut_all};

/// Interval at which a session with lanes is ticked, measured and displayed.
pub(super) const TICK: Duration = Duration::from_millis(50);

/// Minimum of that interval while no data moves. Reason: a process runs a thousand copies that mostly wait, and a user
/// who stops one waits this long.
const IDLE_TICK: Duration = Duration::from_millis(250);

/// First wait before a dead lane is dialled again; doubled up to [`BACKOFF_MAX`]. Reason: a short interruption costs
/// little.
pub(super) const BACKOFF_MIN: Duration = Duration::from_millis(500);

/// Maximum wait before a dead lane is dialled again. Reason: the end of an outage is detected within this time.
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// Maximum wait before the session after a lost one. Reason: a user who stops the copy waits this long.
const RESTART_WAIT_MAX: Duration = Duration::from_secs(2);

/// Minimum life of a lane or session that resets the backoff to its minimum.
const HEALTHY_LIFE: Duration = Duration::from_secs(10);

/// Session of a copy, as [`drive`] sees it.
pub(super) trait Driven {
    /// Returns true if the session is over and its follow-up work is done.
    fn is_over(&self) -> bool;
    /// Returns the interval at which the session is ticked, measured and displayed while data moves.
    fn interval(&self) -> Duration {
        TICK
    }
    /// Returns the latest time for the next tick; `None`: the interval decides.
    fn deadline(&self) -> Option<Instant> {
        None
    }
    /// Waits for `time`, or until the session is over. May move data meanwhile.
    fn wait(&self, time: Duration);
    /// Advances the timers of the session.
    fn tick(&self);
    /// Returns the progress of the session, without the time since the start of the copy; `None`: there is none yet.
    fn progress(&self) -> Option<CopyProgress>;
    /// Updates the decisions about lanes from what they have measured.
    fn adapt(&self, _progress: &CopyProgress) {}
    /// Ends the session at every end.
    fn abort(&self, error: Error);
}

/// Drives a session until it is over. Aborts the session when the user wants to stop. `stall` reports to the user that
/// no data moves.
pub(super) fn drive(
    session: &dyn Driven,
    observer: &dyn CopyObserver,
    started: Instant,
    mut stall: Option<StallDetector>,
) {
    let show = || {
        let progress = CopyProgress { elapsed: started.elapsed(), ..session.progress()? };
        observer.progress(&progress);
        Some(progress)
    };
    let mut is_stopping = false;
    let mut pace = Pace::new(Instant::now());
    while !session.is_over() {
        let now = Instant::now();
        let due = session.deadline().map_or(Duration::MAX, |at| at.saturating_duration_since(now));
        let interval = if pace.is_idle(now) { session.interval().max(IDLE_TICK) } else { session.interval() };
        session.wait(interval.min(due));
        session.tick();
        if let Some(progress) = show() {
            session.adapt(&progress);
            let carried = progress.lanes.iter().map(LaneStats::wire_bytes);
            pace.observe(carried.clone().sum(), Instant::now());
            if let Some(text) = stall.as_mut().and_then(|stall| stall.observe(carried, Instant::now())) {
                observer.event(CopyEvent::Session(SessionEvent::Notice(text)));
            }
        }
        if observer.cancel().is_cancelled() && !std::mem::replace(&mut is_stopping, true) {
            session.abort(Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Transfer, "stopped by the user"));
        }
    }
    session.tick();
    show();
}

/// Rules for the session after a lost one.
pub(super) struct Restarts {
    linger: Duration,
    backoff: Backoff,
    /// Start of the current session.
    begun: Instant,
    /// Time of the last loss of the session by the agent; the agent is dialled again since then.
    lost_since: Option<Instant>,
}

/// Reason for one more session.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// The agent was restarted and has lost the session. The new one starts after this wait.
    Restarted(Duration),
    /// The agent was restarted, and cannot be reached yet. The next attempt starts after this wait.
    NotYetBack(Duration),
}

impl Restarts {
    pub(super) fn new(linger: Duration, now: Instant) -> Self {
        Self { linger, backoff: Backoff::new(), begun: now, lost_since: None }
    }

    /// Returns the reason for one more session after one that ended with `error`; `None`: the copy ends.
    pub(super) fn after(&mut self, error: &Error, now: Instant) -> Option<Again> {
        let life = now.saturating_duration_since(self.begun);
        self.begun = now;
        if error.kind == ErrorKind::SessionLost {
            self.lost_since = Some(now);
            // An agent that loses every session at once does not keep its client busy.
            return Some(Again::Restarted(self.backoff.after(life).min(RESTART_WAIT_MAX)));
        }
        // The agent may restart again before the new session has a lane.
        let since = self.lost_since?;
        let may_come_back = error.phase == Phase::Prepare && error.retry == Retry::After;
        (may_come_back && now.saturating_duration_since(since) < self.linger).then_some(Again::NotYetBack(BACKOFF_MIN))
    }

    /// Returns true if the agent has lost no session of this copy.
    pub(super) fn is_first(&self) -> bool {
        self.lost_since.is_none()
    }
}

/// Waits between attempts to connect: from [`BACKOFF_MIN`], doubled after each short-lived connection.
pub(super) struct Backoff(Duration);

impl Backoff {
    pub(super) fn new() -> Self {
        Self(BACKOFF_MIN)
    }

    /// Returns the wait after a connection, or an attempt, that lived for `life`.
    pub(super) fn after(&mut self, life: Duration) -> Duration {
        let wait = if life > HEALTHY_LIFE { BACKOFF_MIN } else { self.0 };
        self.0 = (wait * 2).min(BACKOFF_MAX);
        wait
    }
}

/// Returns a random number of a new session. Errors: the kernel gives no random bytes.
pub(crate) fn random_session() -> Result<SessionId, Error> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|e| crate::internal("ask the kernel for random bytes").caused_by(e))?;
    Ok(SessionId(id))
}

/// Time for the last packets of a session to leave this host. Reason: the thread of a lane wakes up within a few
/// milliseconds, and paces its last packets within a few more.
const DEPARTURE: Duration = Duration::from_millis(30);

/// Sets `over` and ends every lane, after the last messages have left this host. Waits for a TCP lane while the kernel
/// holds unsent data before them. Does not wait for their arrival: that would cost a round trip. An agent that does not
/// receive them aborts the session at the end of its last lane.
pub(super) fn depart(over: &Latch, lanes: Vec<Arc<dyn LaneHandle>>) {
    over.set();
    close_all(lanes.iter().map(Arc::clone), SESSION_OVER);
    thread::sleep(DEPARTURE);
    // Data that a full window held back until now is discarded. The close of the lane must leave even so. Otherwise
    // the agent takes the silence for an outage, and holds the files of the session for that time.
    cut_all(lanes, SESSION_OVER);
}

/// Returns true if the failure of a lane would occur on every other lane too. This end may have read damaged bytes on
/// one lane only; an agent that refuses the protocol of a hello refuses every hello.
pub(super) fn ends_session(error: &Error) -> bool {
    let may_be_of_lane = error.kind == ErrorKind::Protocol && !error.is_from_peer();
    error.kind == ErrorKind::SessionLost || error.retry == Retry::Never && !may_be_of_lane
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use sterna_proto::location::RemoteLocation;

    use super::*;
    use crate::cancel::Cancel;
    use crate::identity::Fingerprint;

    /// Session that is over after some turns, or once it is aborted.
    struct Scripted {
        turns: Cell<u32>,
        log: RefCell<Vec<String>>,
    }

    impl Scripted {
        fn note(&self, text: &str) {
            self.log.borrow_mut().push(text.to_owned());
        }
    }

    impl Driven for Scripted {
        fn is_over(&self) -> bool {
            self.turns.get() == 0
        }

        fn wait(&self, _time: Duration) {
            self.note("wait");
        }

        fn tick(&self) {
            self.note("tick");
            self.turns.set(self.turns.get().saturating_sub(1));
        }

        fn progress(&self) -> Option<CopyProgress> {
            // Nothing is known before the second turn.
            (self.turns.get() < 2)
                .then(|| CopyProgress { lanes: vec![LaneStats::default()], ..CopyProgress::default() })
        }

        fn adapt(&self, _progress: &CopyProgress) {
            self.note("adapt");
        }

        fn abort(&self, error: Error) {
            self.note(error.kind.name());
            self.turns.set(0);
        }
    }

    /// Observer with this cancellation.
    struct Watching(Cancel);

    impl CopyObserver for Watching {
        fn event(&self, _event: CopyEvent) {}
        fn progress(&self, _progress: &CopyProgress) {}
        fn trust(&self, _remote: &RemoteLocation, _peer: &Fingerprint) -> Result<(), Error> {
            Ok(())
        }
        fn cancel(&self) -> &Cancel {
            &self.0
        }
    }

    fn driven(turns: u32, stops: bool) -> Vec<String> {
        let session = Scripted { turns: Cell::new(turns), log: RefCell::default() };
        let cancel = Cancel::default();
        if stops {
            cancel.cancel();
        }
        drive(&session, &Watching(cancel), Instant::now(), None);
        session.log.into_inner()
    }

    #[test]
    fn a_session_is_ticked_measured_and_adapted_until_it_is_over() {
        assert_eq!(driven(3, false), ["wait", "tick", "wait", "tick", "adapt", "wait", "tick", "adapt", "tick"]);
        assert_eq!(driven(0, false), ["tick"], "a session that is over is only concluded");
    }

    #[test]
    fn a_user_who_stops_ends_the_session_once() {
        assert_eq!(driven(9, true), ["wait", "tick", "cancelled", "tick"]);
    }

    #[test]
    fn only_a_restarted_agent_gets_another_session() {
        let now = Instant::now();
        let mut restarts = Restarts::new(Duration::from_secs(60), now);
        let lost = Error::new(ErrorKind::SessionLost, Scope::Service, Phase::Transfer, "gone");
        let refused = Error::new(ErrorKind::Unreachable, Scope::Path, Phase::Prepare, "refused").retry(Retry::After);
        assert_eq!(restarts.after(&refused, now), None, "an agent that was never there is an error");
        assert_eq!(restarts.after(&lost, now), Some(Again::Restarted(BACKOFF_MIN)));
        let still_down = Some(Again::NotYetBack(BACKOFF_MIN));
        assert_eq!(restarts.after(&refused, now + Duration::from_secs(59)), still_down);
        assert_eq!(restarts.after(&refused, now + Duration::from_secs(60)), None);
        assert_eq!(restarts.after(&refused.clone().retry(Retry::Never), now), None);
        assert!(!restarts.is_first());
        // Sessions that are lost at once begin again more and more slowly.
        let mut restarts = Restarts::new(Duration::from_secs(60), now);
        let waits: Vec<_> = (0..4).map(|_| restarts.after(&lost, now)).collect();
        assert_eq!(waits, [500, 1000, 2000, 2000].map(|ms| Some(Again::Restarted(Duration::from_millis(ms)))));
    }

    #[test]
    fn the_backoff_doubles_to_its_maximum_and_starts_again_after_a_long_life() {
        let mut backoff = Backoff::new();
        let waits: Vec<u128> = (0..6).map(|_| backoff.after(Duration::ZERO).as_millis()).collect();
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 10_000]);
        assert_eq!(backoff.after(Duration::from_secs(11)), BACKOFF_MIN);
    }
}
