//! Circuit breaker of a storage endpoint: stops new transfers while the endpoint refuses them.
//!
//! A full, overloaded or unavailable endpoint (HTTP 507, 429 and 503, or a full disk at an agent) gets no new transfer
//! for a time. Then one transfer tries it, and only that one closes the breaker: a transfer that began before the
//! refusal has got its place, its disk space or its connection earlier, and proves nothing. Refuses to read a clock.

use std::time::Duration;

use sterna_proto::{Error, ErrorKind};

use crate::queue::FileNumber;
use crate::time::UnixTime;

/// First pause after a refusal. Guess: an overload is over after some seconds; FTS3 tries every two seconds, and fails
/// 2,000 files in a minute.
const PAUSE_MIN: Duration = Duration::from_secs(15);

/// Longest pause. Reason: an operator who has made room sees its transfers go on within ten minutes.
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// State of an endpoint. Edges: closed -> open at a refusal; open -> trying when a transfer starts after the pause;
/// open -> open, for twice the time, at a refusal after the pause; trying -> closed when that transfer arrives, or
/// fails for a reason that is no refusal; trying -> open, for twice the time, at any refusal; trying -> open without a
/// pause when that transfer ends and the endpoint had no part in that. Ends of other transfers that are no refusals
/// change nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Takes transfers.
    #[default]
    Closed,
    /// Gets no transfer until this time.
    Open { until: UnixTime, pause: Duration },
    /// One transfer is under way after this pause.
    Trying { pause: Duration, trial: FileNumber },
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

    /// Returns true if the endpoint has refused transfers, and none has arrived since.
    pub fn is_unproven(&self) -> bool {
        self.0 != State::Closed
    }

    /// Records the start of a transfer. The first one after the pause is the trial.
    pub fn handle_start(&mut self, file: FileNumber) {
        if let State::Open { pause, .. } = self.0 {
            self.0 = State::Trying { pause, trial: file };
        }
    }

    /// Records that a transfer has arrived. If it is the trial, the endpoint works.
    pub fn handle_success(&mut self, file: FileNumber) {
        if self.is_trial(file) {
            self.0 = State::Closed;
        }
    }

    /// Records that a transfer has ended for a reason that has nothing to do with this endpoint: it was cancelled, or
    /// the other endpoint failed. After a trial, another one may try.
    pub fn handle_other_end(&mut self, file: FileNumber, now: UnixTime) {
        if let State::Trying { pause, trial } = self.0
            && trial == file
        {
            self.0 = State::Open { until: now, pause };
        }
    }

    /// Records a failure of this endpoint. `wait`: the time that the endpoint itself asks for (`Retry-After`).
    pub fn handle_failure(&mut self, file: FileNumber, error: &Error, wait: Option<Duration>, now: UnixTime) {
        if !matches!(error.kind, ErrorKind::NoSpace | ErrorKind::Busy | ErrorKind::Limit) {
            // A trial that fails for another reason has shown that the endpoint takes transfers.
            return self.handle_success(file);
        }
        let pause = match self.0 {
            // Transfers that began earlier report the same refusal.
            State::Open { until, .. } if now < until => return,
            State::Open { pause, .. } | State::Trying { pause, .. } => pause.saturating_mul(2).min(PAUSE_MAX),
            State::Closed => PAUSE_MIN,
        };
        self.0 = State::Open { until: now + wait.unwrap_or(pause).min(PAUSE_MAX), pause };
    }

    fn is_trial(&self, file: FileNumber) -> bool {
        matches!(self.0, State::Trying { trial, .. } if trial == file)
    }
}

#[cfg(test)]
mod tests {
    use sterna_proto::{Phase, Scope};
    use sterna_seeded::{Seeded, for_seeds};

    use super::*;

    const START: UnixTime = UnixTime(1_800_000_000_000);

    /// Transfer that starts after the pause, and one that began before the refusal.
    const TRIAL: FileNumber = FileNumber(1);
    const EARLIER: FileNumber = FileNumber(2);

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
        breaker.handle_failure(TRIAL, &error(ErrorKind::NoSpace), None, START);
        assert_eq!(breaker.blocked(at(14)), Some(Blocked::Until(at(15))));
        // The other transfers of the same moment change nothing.
        breaker.handle_failure(TRIAL, &error(ErrorKind::NoSpace), None, at(2));
        assert_eq!(breaker.blocked(at(15)), None);
        breaker.handle_start(TRIAL);
        assert_eq!(breaker.blocked(at(15)), Some(Blocked::ByTrial));
        let mut now = 15;
        let mut pauses = Vec::new();
        for _ in 0..7 {
            breaker.handle_failure(TRIAL, &error(ErrorKind::NoSpace), None, at(now));
            let Some(Blocked::Until(until)) = breaker.blocked(at(now)) else { panic!("{breaker:?}") };
            pauses.push(until.since(at(now)).as_secs());
            now += pauses.last().unwrap();
            assert_eq!(breaker.blocked(at(now)), None);
            breaker.handle_start(TRIAL);
        }
        assert_eq!(pauses, [30, 60, 120, 240, 480, 600, 600]);
        breaker.handle_success(TRIAL);
        assert_eq!(breaker, Breaker::default());
    }

    #[test]
    fn the_endpoint_may_ask_for_its_own_pause() {
        let mut breaker = Breaker::default();
        breaker.handle_failure(TRIAL, &error(ErrorKind::Busy), Some(Duration::from_secs(3)), START);
        assert_eq!(breaker.blocked(START), Some(Blocked::Until(at(3))));
        let mut breaker = Breaker::default();
        breaker.handle_failure(TRIAL, &error(ErrorKind::Busy), Some(Duration::from_secs(86_400)), START);
        assert_eq!(breaker.blocked(START), Some(Blocked::Until(at(600))));
    }

    #[test]
    fn failures_of_single_files_leave_an_endpoint_alone() {
        let mut breaker = Breaker::default();
        breaker.handle_failure(TRIAL, &error(ErrorKind::NotFound), None, START);
        assert_eq!(breaker.blocked(START), None);
        breaker.handle_failure(TRIAL, &error(ErrorKind::Limit), None, START);
        breaker.handle_start(TRIAL);
        breaker.handle_failure(TRIAL, &error(ErrorKind::Corrupt), None, at(20));
        assert_eq!(breaker.blocked(at(20)), None, "the endpoint took the transfer");
    }

    #[test]
    fn a_trial_that_proves_nothing_makes_room_for_another() {
        let mut breaker = Breaker::default();
        breaker.handle_failure(TRIAL, &error(ErrorKind::NoSpace), None, START);
        breaker.handle_start(TRIAL);
        breaker.handle_other_end(TRIAL, at(20));
        assert_eq!(breaker.blocked(at(20)), None);
        breaker.handle_start(TRIAL);
        assert_eq!(breaker.blocked(at(20)), Some(Blocked::ByTrial));
        breaker.handle_failure(TRIAL, &error(ErrorKind::NoSpace), None, at(20));
        assert_eq!(breaker.blocked(at(20)), Some(Blocked::Until(at(50))), "the pause still doubles");
        breaker.handle_other_end(TRIAL, at(20));
        assert_eq!(breaker.blocked(at(20)), Some(Blocked::Until(at(50))));
    }

    #[test]
    fn only_the_trial_closes_the_breaker_and_refusals_let_the_pause_grow() {
        let mut breaker = Breaker::default();
        breaker.handle_failure(EARLIER, &error(ErrorKind::NoSpace), None, START);
        breaker.handle_success(EARLIER);
        assert_eq!(breaker.blocked(at(14)), Some(Blocked::Until(at(15))), "it began before the refusal");
        breaker.handle_failure(EARLIER, &error(ErrorKind::NotFound), None, at(14));
        assert_eq!(breaker.blocked(at(14)), Some(Blocked::Until(at(15))));
        breaker.handle_start(TRIAL);
        breaker.handle_success(EARLIER);
        breaker.handle_failure(EARLIER, &error(ErrorKind::Corrupt), None, at(16));
        breaker.handle_other_end(EARLIER, at(16));
        assert_eq!(breaker.blocked(at(16)), Some(Blocked::ByTrial), "ends of other transfers leave the trial alone");
        // A refusal of a transfer that began earlier counts: the endpoint is still full.
        breaker.handle_failure(EARLIER, &error(ErrorKind::NoSpace), None, at(17));
        assert_eq!(breaker.blocked(at(17)), Some(Blocked::Until(at(47))));
        breaker.handle_success(TRIAL);
        assert_eq!(breaker.blocked(at(17)), Some(Blocked::Until(at(47))), "it began before the last refusal");
        // A refusal after the pause, before another trial.
        breaker.handle_failure(EARLIER, &error(ErrorKind::Busy), None, at(50));
        assert_eq!(breaker.blocked(at(50)), Some(Blocked::Until(at(110))));
        breaker.handle_start(TRIAL);
        breaker.handle_success(TRIAL);
        assert_eq!(breaker, Breaker::default());
    }

    #[test]
    fn random_ends_of_earlier_transfers_never_close_the_breaker_or_let_a_second_trial_in() {
        let name = "random_ends_of_earlier_transfers_never_close_the_breaker_or_let_a_second_trial_in";
        for_seeds(name, 200, |seed| {
            let mut random = Seeded::new(seed);
            let (mut breaker, mut now, mut pause) = (Breaker::default(), 0, 15);
            let mut number = 10;
            breaker.handle_failure(EARLIER, &error(ErrorKind::NoSpace), None, START);
            for _ in 0..20 {
                now += pause;
                number += 1;
                assert_eq!(breaker.blocked(at(now)), None);
                breaker.handle_start(FileNumber(number));
                for _ in 0..random.below(5) {
                    match random.below(3) {
                        0 => breaker.handle_success(EARLIER),
                        1 => breaker.handle_other_end(EARLIER, at(now)),
                        _ => breaker.handle_failure(EARLIER, &error(ErrorKind::Corrupt), None, at(now)),
                    }
                    assert_eq!(breaker.blocked(at(now)), Some(Blocked::ByTrial));
                }
                let refused = if random.chance(500) { EARLIER } else { FileNumber(number) };
                breaker.handle_failure(refused, &error(ErrorKind::Busy), None, at(now));
                pause = (pause * 2).min(600);
                assert_eq!(breaker.blocked(at(now)), Some(Blocked::Until(at(now + pause))));
            }
        });
    }
}
