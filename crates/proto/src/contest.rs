//! Whether the other transport carries more: measured in mid-transfer, beside the one in use.
//!
//! What it does: finds a session that QUIC holds back (a processor, or a device that drops what exceeds a rate) and that lasts
//! long enough, asks for TCP lanes beside QUIC's, and decides by what both have carried. What it refuses to do: dial,
//! close, read a clock. A path that is full whoever fills it needs no contest, and a lane that takes TCP's place in an
//! outage is none. What was found is remembered of the path, so that it is asked once.

use std::time::Duration;

use crate::limit::{Limit, LimitTimes};
use crate::plan::{Decision, Via};
use crate::quantity::readable_time;
use crate::{BitRate, ByteCount};

/// What is known of a session with one path at some time.
#[derive(Clone, Copy, Debug)]
pub struct ContestFacts<'a> {
    /// Time since the session began.
    pub now: Duration,
    /// Bytes that QUIC lanes have brought to the other end, on the wire.
    pub quic: u64,
    /// Bytes that TCP lanes have.
    pub tcp: u64,
    /// Bytes of files that are still to come, at least.
    pub left: ByteCount,
    /// Smallest round-trip time seen.
    pub rtt: Duration,
    /// What has limited the session until now.
    pub limits: &'a LimitTimes,
}

/// What is to be done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContestStep {
    /// TCP lanes are to come beside QUIC's.
    Begin(Decision<Via>),
    /// The lanes of the other transport are to end, and those of this one to be there.
    Take(Decision<Via>),
}

/// A contest between QUIC, which a path has begun with, and TCP.
#[derive(Clone, Debug, Default)]
pub struct Contest {
    phase: Phase,
}

#[derive(Clone, Debug, Default)]
enum Phase {
    /// None is held: the person, the contract of the path or what is remembered of it has decided.
    #[default]
    Off,
    /// Nothing has been seen.
    New,
    /// QUIC alone, and what it carried over the stretch before this one.
    Alone { since: Mark, before: Option<BitRate> },
    /// Both, since then; QUIC alone had carried this much.
    Both { begun: Duration, since: Option<Mark>, alone: BitRate },
    /// TCP alone: what it carries without QUIC is looked at once more.
    Proof { begun: Duration, since: Option<Mark>, alone: BitRate },
    /// It is over, and this transport is the path's.
    Over(Via),
}

/// A point in time from which a rate is taken.
#[derive(Clone, Debug)]
struct Mark {
    at: Duration,
    quic: u64,
    tcp: u64,
    limits: LimitTimes,
}

impl Contest {
    /// One that is held when the session gives cause.
    pub fn new() -> Self {
        Self { phase: Phase::New }
    }

    /// Whether both transports are being compared.
    pub fn is_on(&self) -> bool {
        matches!(self.phase, Phase::Both { .. } | Phase::Proof { .. })
    }

    /// The transport that carries less, as far as that was found, and whose lanes are not wanted.
    pub fn loser(&self) -> Option<Via> {
        match self.phase {
            Phase::Off | Phase::New | Phase::Alone { .. } | Phase::Both { .. } => None,
            Phase::Proof { .. } => Some(Via::Quic),
            Phase::Over(taken) => Some(taken.other()),
        }
    }

    /// Looks at the session again; called several times a second.
    pub fn observe(&mut self, facts: &ContestFacts<'_>) -> Option<ContestStep> {
        let stretch = (facts.rtt * STRETCH_ROUND_TRIPS).max(STRETCH_MIN);
        let mark = Mark { at: facts.now, quic: facts.quic, tcp: facts.tcp, limits: *facts.limits };
        match &mut self.phase {
            Phase::New => self.phase = Phase::Alone { since: mark, before: None },
            Phase::Alone { since, before } if facts.now.saturating_sub(since.at) >= stretch => {
                let alone = since.quic_rate(facts);
                let is_steady = before.is_some_and(|before| alone.0 as f64 <= before.0 as f64 * STEADY);
                let time_left = facts.left.0 as f64 * 8.0 / alone.0.max(1) as f64;
                let is_worth = time_left >= stretch.as_secs_f64() * WORTH_STRETCHES;
                let held_by = since.held_by(facts).filter(|_| is_steady && is_worth);
                let Some(held_by) = held_by else {
                    self.phase = Phase::Alone { since: mark, before: Some(alone) };
                    return None;
                };
                self.phase = Phase::Both { begun: facts.now, since: None, alone };
                let rationale =
                    format!("tcp beside quic for {}: {held_by} holds quic at {alone}", readable_time(stretch));
                return Some(ContestStep::Begin(Decision { value: Via::Tcp, rationale }));
            }
            Phase::Both { begun, since, .. } | Phase::Proof { begun, since, .. }
                if since.is_none() && facts.now.saturating_sub(*begun) >= stretch.mul_f64(GROWING) =>
            {
                *since = Some(mark);
            }
            Phase::Both { begun, since: Some(since), alone } if facts.now.saturating_sub(*begun) >= stretch => {
                let (quic, tcp, alone) = (since.quic_rate(facts), since.tcp_rate(facts), *alone);
                let is_more = (quic.0 + tcp.0) as f64 > alone.0 as f64 * GAIN && tcp > quic;
                let (value, phase) = match is_more {
                    true => (Via::Tcp, Phase::Proof { begun: facts.now, since: None, alone }),
                    false => (Via::Quic, Phase::Over(Via::Quic)),
                };
                self.phase = phase;
                let rationale = format!("{value}: tcp carried {tcp} beside {quic} by quic, which alone had {alone}");
                return Some(ContestStep::Take(Decision { value, rationale }));
            }
            Phase::Proof { begun, since: Some(since), alone } if facts.now.saturating_sub(*begun) >= stretch => {
                let (tcp, alone) = (since.tcp_rate(facts), *alone);
                if tcp >= alone {
                    self.phase = Phase::Over(Via::Tcp);
                    return None;
                }
                self.phase = Phase::Over(Via::Quic);
                let rationale = format!("quic: it had {alone}, and tcp alone carries {tcp}");
                return Some(ContestStep::Take(Decision { value: Via::Quic, rationale }));
            }
            _ => {}
        }
        None
    }
}

impl Mark {
    fn quic_rate(&self, facts: &ContestFacts<'_>) -> BitRate {
        self.rate(facts.now, self.quic, facts.quic)
    }

    fn tcp_rate(&self, facts: &ContestFacts<'_>) -> BitRate {
        self.rate(facts.now, self.tcp, facts.tcp)
    }

    /// A lane that has ended took its count with it: what is less than before is nothing.
    fn rate(&self, now: Duration, before: u64, bytes: u64) -> BitRate {
        BitRate::mean(ByteCount(bytes.saturating_sub(before)), now.saturating_sub(self.at))
    }

    /// What has held QUIC for most of the time since, if TCP may do without it.
    fn held_by(&self, facts: &ContestFacts<'_>) -> Option<&'static str> {
        let grown = |limit| facts.limits.of(limit).saturating_sub(self.limits.of(limit)).as_secs_f64();
        let total = facts.limits.total().saturating_sub(self.limits.total()).as_secs_f64();
        let held = |limit| grown(limit) > total * HELD;
        [(Limit::Policer, "a policer"), (Limit::Cpu, "a processor")]
            .into_iter()
            .find(|(limit, _)| held(*limit))
            .map(|(_, words)| words)
    }
}

/// Time in which TCP lanes come up, grow and are measured. Reason: three round trips to be welcomed, and a window that
/// doubles in each reaches a product of 80 MB over eight lanes in ten.
const STRETCH_ROUND_TRIPS: u32 = 20;

/// The least of it. Reason: a host stalls for tenths of a second.
const STRETCH_MIN: Duration = Duration::from_secs(3);

/// The part of a stretch in which lanes grow, and nothing is measured.
const GROWING: f64 = 0.6;

/// How many stretches the copy must still take. Reason: a contest that TCP loses costs a fraction of one; a tenth of it is a per cent of
/// what is left.
const WORTH_STRETCHES: f64 = 10.0;

/// The part of a stretch that must have been lost to one cause.
const HELD: f64 = 0.5;

/// How much more QUIC may have carried than the stretch before, and not be growing.
const STEADY: f64 = 1.15;

/// How much more both must carry than QUIC alone had. Reason: rates of two stretches differ by some per cent by themselves.
const GAIN: f64 = 1.1;

#[cfg(test)]
mod tests {
    use super::*;

    /// A session seen every 50 ms: what each transport carries in Mbit/s, and what limits it.
    struct Session {
        contest: Contest,
        now: Duration,
        carried: [f64; 2],
        limits: LimitTimes,
        left: ByteCount,
    }

    impl Session {
        fn new() -> Self {
            let (now, limits) = (Duration::ZERO, LimitTimes::default());
            Self { contest: Contest::new(), now, carried: [0.0; 2], limits, left: ByteCount(10 << 30) }
        }

        /// Runs for `seconds`, or to the first step; returns that, and when it came.
        fn run(&mut self, seconds: u32, [quic, tcp]: [f64; 2], limit: Limit) -> Option<(ContestStep, f64)> {
            let tick = Duration::from_millis(50);
            for _ in 0..seconds * 20 {
                self.now += tick;
                self.limits.add(limit, tick);
                self.carried[0] += quic * 1e6 / 8.0 * tick.as_secs_f64();
                self.carried[1] += tcp * 1e6 / 8.0 * tick.as_secs_f64();
                let step = self.contest.observe(&ContestFacts {
                    now: self.now,
                    quic: self.carried[0] as u64,
                    tcp: self.carried[1] as u64,
                    left: self.left,
                    rtt: Duration::from_millis(50),
                    limits: &self.limits,
                });
                if let Some(step) = step {
                    return Some((step, self.now.as_secs_f64()));
                }
            }
            None
        }
    }

    fn taken(step: Option<(ContestStep, f64)>) -> Option<Via> {
        match step?.0 {
            ContestStep::Begin(_) => None,
            ContestStep::Take(decision) => Some(decision.value),
        }
    }

    #[test]
    fn tcp_is_taken_where_it_carries_more_and_stays_when_it_does_so_alone() {
        let mut session = Session::new();
        let (step, at) = session.run(60, [50.0, 0.0], Limit::Policer).unwrap();
        assert!(matches!(step, ContestStep::Begin(_)) && at < 10.0, "{step:?} after {at} s");
        assert!(session.contest.is_on() && session.contest.loser().is_none());
        assert_eq!(taken(session.run(60, [50.0, 400.0], Limit::Policer)), Some(Via::Tcp));
        assert_eq!(session.contest.loser(), Some(Via::Quic));
        assert_eq!(session.run(600, [0.0, 390.0], Limit::CongestionWindow), None);
        assert!(!session.contest.is_on());
        assert_eq!(session.contest.loser(), Some(Via::Quic));
    }

    #[test]
    fn quic_stays_where_both_together_carry_what_it_had_alone_and_nothing_is_asked_again() {
        let mut session = Session::new();
        session.run(60, [50.0, 0.0], Limit::Policer).unwrap();
        assert_eq!(taken(session.run(60, [20.0, 32.0], Limit::Policer)), Some(Via::Quic));
        assert_eq!(session.contest.loser(), Some(Via::Tcp));
        assert_eq!(session.run(600, [50.0, 0.0], Limit::Policer), None);
    }

    #[test]
    fn quic_comes_back_when_tcp_alone_carries_less() {
        let mut session = Session::new();
        session.run(60, [50.0, 0.0], Limit::Cpu).unwrap();
        assert_eq!(taken(session.run(60, [20.0, 60.0], Limit::Cpu)), Some(Via::Tcp));
        assert_eq!(taken(session.run(60, [0.0, 40.0], Limit::Loss)), Some(Via::Quic));
        assert_eq!(session.contest.loser(), Some(Via::Tcp));
    }

    #[test]
    fn lanes_that_never_come_lose() {
        let mut session = Session::new();
        session.run(60, [50.0, 0.0], Limit::Policer).unwrap();
        assert_eq!(taken(session.run(60, [50.0, 0.0], Limit::Policer)), Some(Via::Quic));
    }

    #[test]
    fn no_contest_without_cause_nor_while_quic_grows_nor_for_the_end_of_a_copy() {
        assert_eq!(Session::new().run(600, [50.0, 0.0], Limit::CongestionWindow), None);
        assert_eq!(Session { contest: Contest::default(), ..Session::new() }.run(60, [5.0, 0.0], Limit::Cpu), None);
        // 50 Mbit/s take 30 s for 187.5 MB.
        let short = Session { left: ByteCount(180_000_000), ..Session::new() }.run(60, [50.0, 0.0], Limit::Policer);
        assert_eq!(short, None);
        let mut growing = Session::new();
        for second in 0..30 {
            assert_eq!(growing.run(1, [5.0 * 1.08f64.powi(second), 0.0], Limit::Policer), None, "second {second}");
        }
    }
}
