//! Circuit breaker of a storage endpoint: stops new transfers while the endpoint refuses them.
//!
//! A full, overloaded or unavailable endpoint (HTTP 507, 429 and 503, or a full disk at an agent) gets no new transfer
//! for a time. Then one transfer tries it. Refuses to know the transfers, or a clock.

use std::time::Duration;

use sterna_proto::{Error, ErrorKind};

use crate::time::UnixTime;

/// First pause after a refusal. Guess: an overload is over after some seconds; FTS3 tries every two seconds, and fails
/// 2,000 files in a minute.
const PAUSE_MIN: Duration = Duration::from_secs(15);

/// Longest pause. Reason: an operator who has made room sees its transfers go on within ten minutes.
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// State of an endpoint. Edges: closed -> open at a refusal; open -> trying when a transfer starts after the pause;
/// trying -> closed at a success; trying -> open, for twice the time, at a refusal; trying -> open without a pause when
/// the transfer ends and the endpoint had no part in that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Takes transfers.
    #[default]
    Closed,
    /// Gets no transfer until this time.
    Open { until: UnixTime, pause: Duration },
    /// One transfer is under way after this pause.
    Trying { pause: Duration },
}

/// Breaker of one endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breaker(State);

/// Reason why an endpoint gets no transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// It has refused transfers; one more tries it at this time.
    Until(UnixTime),
    /// A transfer is trying it.
    ByTrial,
}

impl Breaker {
    /// Returns the reason why no transfer may start now; `None`: one may.
    pub fn blocked(&self, now: UnixTime) -> Option<Blocked> {
        match self.0 {
            State::Open { until, .. } if now < until => Some(Blocked::Until(until)),
            State::Trying { .. } => Some(Blocked::ByTrial),
            State::Open { .. } | State::Closed => None,
        }
    }

    /// Records the start of a transfer.
    pub fn handle_start(&mut self) {
        if let State::Open { pause, .. } = self.0 {
            self.0 = State::Trying { pause };
        }
    }

    /// Records that a transfer has arrived: the endpoint works.
    pub fn handle_success(&mut self) {
        self.0 = State::Closed;
    }

    /// Records that a transfer has ended for a reason that has nothing to do with this endpoint: it was cancelled, or
    /// the other endpoint failed. Another one may try.
    pub fn handle_other_end(&mut self, now: UnixTime) {
        if let State::Trying { pause } = self.0 {
            self.0 = State::Open { until: now, pause };
        }
    }

    /// Records a failure of this endpoint. `wait`: the time that the endpoint itself asks for (`Retry-After`).
    pub fn handle_failure(&mut self, error: &Error, wait: Option<Duration>, now: UnixTime) {
        let refuses = matches!(error.kind, ErrorKind::NoSpace | ErrorKind::Busy | ErrorKind::Limit);
        let pause = match self.0 {
            // Transfers that began earlier report the same refusal.
            State::Open { until, .. } if now < until => return,
            State::Open { pause, .. } | State::Trying { pause } => pause.saturating_mul(2).min(PAUSE_MAX),
            State::Closed => PAUSE_MIN,
        };
        self.0 = match (refuses, self.0) {
            (true, _) => State::Open { until: now + wait.unwrap_or(pause).min(PAUSE_MAX), pause },
            // The trial failed for another reason, so that the endpoint takes transfers.
            (false, State::Trying { .. }) => State::Closed,
            (false, state) => state,
        };
    }
}

#[cfg(test)]
mod tests {
    use sterna_proto::{Phase, Scope};

    use super::*;

    const START: UnixTime = UnixTime(1_800_000_000_000);

    fn error(kind: ErrorKind) -> Error {
        Error::new(kind, Scope::Destination, Phase::Transfer, "refused")
    }

    fn at(seconds: u64) -> UnixTime {
        START + Duration::from_secs(seconds)
    }

    #[test]
    fn a_full_endpoint_is_tried_by_one_transfer_at_a_time_and_less_and_less_often() {
        let mut breaker = Breaker::default();
        assert_eq!(breaker.blocked(START), None);
        breaker.handle_failure(&error(ErrorKind::NoSpace), None, START);
        assert_eq!(breaker.blocked(at(14)), Some(Blocked::Until(at(15))));
        // The other transfers of the same moment change nothing.
        breaker.handle_failure(&error(ErrorKind::NoSpace), None, at(2));
        assert_eq!(breaker.blocked(at(15)), None);
        breaker.handle_start();
        assert_eq!(breaker.blocked(at(15)), Some(Blocked::ByTrial));
        let mut now = 15;
        let mut pauses = Vec::new();
        for _ in 0..7 {
            breaker.handle_failure(&error(ErrorKind::NoSpace), None, at(now));
            let Some(Blocked::Until(until)) = breaker.blocked(at(now)) else { panic!("{breaker:?}") };
            pauses.push(until.since(at(now)).as_secs());
            now += pauses.last().unwrap();
            assert_eq!(breaker.blocked(at(now)), None);
            breaker.handle_start();
        }
        assert_eq!(pauses, [30, 60, 120, 240, 480, 600, 600]);
        breaker.handle_success();
        assert_eq!(breaker, Breaker::default());
    }

    #[test]
    fn the_endpoint_may_ask_for_its_own_pause() {
        let mut breaker = Breaker::default();
        breaker.handle_failure(&error(ErrorKind::Busy), Some(Duration::from_secs(3)), START);
        assert_eq!(breaker.blocked(START), Some(Blocked::Until(at(3))));
        let mut breaker = Breaker::default();
        breaker.handle_failure(&error(ErrorKind::Busy), Some(Duration::from_secs(86_400)), START);
        assert_eq!(breaker.blocked(START), Some(Blocked::Until(at(600))));
    }

    #[test]
    fn failures_of_single_files_leave_an_endpoint_alone() {
        let mut breaker = Breaker::default();
        breaker.handle_failure(&error(ErrorKind::NotFound), None, START);
        assert_eq!(breaker.blocked(START), None);
        breaker.handle_failure(&error(ErrorKind::Limit), None, START);
        breaker.handle_start();
        breaker.handle_failure(&error(ErrorKind::Corrupt), None, at(20));
        assert_eq!(breaker.blocked(at(20)), None, "the endpoint took the transfer");
    }

    #[test]
    fn a_trial_that_proves_nothing_makes_room_for_another() {
        let mut breaker = Breaker::default();
        breaker.handle_failure(&error(ErrorKind::NoSpace), None, START);
        breaker.handle_start();
        breaker.handle_other_end(at(20));
        assert_eq!(breaker.blocked(at(20)), None);
        breaker.handle_start();
        assert_eq!(breaker.blocked(at(20)), Some(Blocked::ByTrial));
        breaker.handle_failure(&error(ErrorKind::NoSpace), None, at(20));
        assert_eq!(breaker.blocked(at(20)), Some(Blocked::Until(at(50))), "the pause still doubles");
        breaker.handle_other_end(at(20));
        assert_eq!(breaker.blocked(at(20)), Some(Blocked::Until(at(50))));
    }
}
