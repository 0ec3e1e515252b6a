//! Comparison of the two transports during a session: TCP lanes run beside QUIC's, to measure which carries more.
//!
//! Finds a long session that QUIC limits, by a processor or by a device that drops packets above a rate. It requests
//! TCP lanes beside QUIC's, and decides by the bytes that both have carried. Refuses to dial, close or read a clock.
//! Time and byte counts come in as [`TrialFacts`], a [`TrialStep`] leaves.
//!
//! A path that is full with any transport needs no trial. A QUIC lane that replaces TCP's in an outage starts none.
//! The result is stored with the path, so that it is measured once.

use std::time::Duration;

use crate::limit::{Limit, LimitTimes};
use crate::plan::{Decision, Via};
use crate::quantity::readable_time;
use crate::{BitRate, ByteCount};

/// Measurements of a session with one path at one moment.
#[derive(Clone, Copy, Debug)]
pub struct TrialFacts<'a> {
    /// Time since the session began.
    pub now: Duration,
    /// Bytes that QUIC lanes have delivered to the other end, on the wire.
    pub quic: u64,
    /// Bytes that TCP lanes have delivered to the other end, on the wire.
    pub tcp: u64,
    /// Bytes of files still to come, at least.
    pub left: ByteCount,
    /// Smallest round-trip time seen.
    pub rtt: Duration,
    /// Limits of the session until now.
    pub limits: &'a LimitTimes,
}

/// Action to take now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrialStep {
    /// Open TCP lanes beside QUIC's.
    Begin(Decision<Via>),
    /// Close the lanes of the other transport, and open those of this one.
    Take(Decision<Via>),
}

/// Trial between QUIC, with which a path began, and TCP.
#[derive(Clone, Debug, Default)]
pub struct TransportTrial {
    phase: Phase,
}

#[derive(Clone, Debug, Default)]
enum Phase {
    /// No trial: the user, the contract of the path or the path record has decided.
    #[default]
    Off,
    /// No measurement yet.
    New,
    /// QUIC alone; `before`: its rate over the previous stretch.
    Alone { since: Mark, before: Option<BitRate> },
    /// Both since `begun`; `alone`: rate of QUIC alone.
    Both { begun: Duration, since: Option<Mark>, alone: BitRate },
    /// TCP alone: its rate without QUIC is measured once more.
    Proof { begun: Duration, since: Option<Mark>, alone: BitRate },
    /// The trial is over, and the path uses this transport.
    Over(Via),
}

/// Start of a rate measurement.
#[derive(Clone, Debug)]
struct Mark {
    at: Duration,
    quic: u64,
    tcp: u64,
    limits: LimitTimes,
}

impl TransportTrial {
    /// Returns a trial that begins when the session gives a reason.
    pub fn new() -> Self {
        Self { phase: Phase::New }
    }

    /// Returns true if both transports are being compared.
    pub fn is_on(&self) -> bool {
        matches!(self.phase, Phase::Both { .. } | Phase::Proof { .. })
    }

    /// Returns the transport that carries less, as far as it is known; its lanes are not wanted.
    pub fn loser(&self) -> Option<Via> {
        match self.phase {
            Phase::Off | Phase::New | Phase::Alone { .. } | Phase::Both { .. } => None,
            Phase::Proof { .. } => Some(Via::Quic),
            Phase::Over(taken) => Some(taken.other()),
        }
    }

    /// Evaluates the session; call it several times a second.
    pub fn observe(&mut self, facts: &TrialFacts<'_>) -> Option<TrialStep> {
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
                return Some(TrialStep::Begin(Decision { value: Via::Tcp, rationale }));
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
                return Some(TrialStep::Take(Decision { value, rationale }));
            }
            Phase::Proof { begun, since: Some(since), alone } if facts.now.saturating_sub(*begun) >= stretch => {
                let (tcp, alone) = (since.tcp_rate(facts), *alone);
                if tcp >= alone {
                    self.phase = Phase::Over(Via::Tcp);
                    return None;
                }
                self.phase = Phase::Over(Via::Quic);
                let rationale = format!("quic: it had {alone}, and tcp alone carries {tcp}");
                return Some(TrialStep::Take(Decision { value: Via::Quic, rationale }));
            }
            _ => {}
        }
        None
    }
}

impl Mark {
    fn quic_rate(&self, facts: &TrialFacts<'_>) -> BitRate {
        self.rate(facts.now, self.quic, facts.quic)
    }

    fn tcp_rate(&self, facts: &TrialFacts<'_>) -> BitRate {
        self.rate(facts.now, self.tcp, facts.tcp)
    }

    /// Computes a rate. The count falls when a lane ends: then the rate is zero.
    fn rate(&self, now: Duration, before: u64, bytes: u64) -> BitRate {
        BitRate::mean(ByteCount(bytes.saturating_sub(before)), now.saturating_sub(self.at))
    }

    /// Returns the limit of QUIC for most of the time since the mark, if TCP may avoid that limit.
    fn held_by(&self, facts: &TrialFacts<'_>) -> Option<&'static str> {
        let grown = |limit| facts.limits.of(limit).saturating_sub(self.limits.of(limit)).as_secs_f64();
        let total = facts.limits.total().saturating_sub(self.limits.total()).as_secs_f64();
        let held = |limit| grown(limit) > total * HELD;
        [(Limit::Policer, "a policer"), (Limit::Cpu, "a processor")]
            .into_iter()
            .find(|(limit, _)| held(*limit))
            .map(|(_, words)| words)
    }
}

/// Round trips in which TCP lanes open, grow and are measured. Reason: three to be accepted by the agent. A window that
/// doubles in each reaches a bandwidth-delay product of 80 MB over eight lanes in ten.
const STRETCH_ROUND_TRIPS: u32 = 20;

/// Shortest such stretch. Reason: hosts stall for tenths of a second.
const STRETCH_MIN: Duration = Duration::from_secs(3);

/// Part of a stretch in which lanes grow, and nothing is measured.
const GROWING: f64 = 0.6;

/// Stretches that the copy must still take. Reason: a trial that TCP loses costs a fraction of one stretch; a tenth
/// of a stretch is one per cent of the rest.
const WORTH_STRETCHES: f64 = 10.0;

/// Part of a stretch that must be lost to one limit.
const HELD: f64 = 0.5;

/// Growth of QUIC's rate since the previous stretch, as a factor, up to which it counts as steady.
const STEADY: f64 = 1.15;

/// Ratio of both transports' rate to that of QUIC alone, from which TCP can win. Reason: rates of two stretches differ
/// by some per cent by chance.
const GAIN: f64 = 1.1;

#[cfg(test)]
mod tests {
    use super::*;

    /// Session observed every 50 ms: the rate of each transport in Mbit/s, and its limit.
    struct Session {
        trial: TransportTrial,
        now: Duration,
        carried: [f64; 2],
        limits: LimitTimes,
        left: ByteCount,
    }

    impl Session {
        fn new() -> Self {
            let (now, limits) = (Duration::ZERO, LimitTimes::default());
            Self { trial: TransportTrial::new(), now, carried: [0.0; 2], limits, left: ByteCount(10 << 30) }
        }

        /// Runs for `seconds`, or until the first step; returns that step and its time.
        fn run(&mut self, seconds: u32, [quic, tcp]: [f64; 2], limit: Limit) -> Option<(TrialStep, f64)> {
            let tick = Duration::from_millis(50);
            for _ in 0..seconds * 20 {
                self.now += tick;
                self.limits.add(limit, tick);
                self.carried[0] += quic * 1e6 / 8.0 * tick.as_secs_f64();
                self.carried[1] += tcp * 1e6 / 8.0 * tick.as_secs_f64();
                let step = self.trial.observe(&TrialFacts {
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

    fn taken(step: Option<(TrialStep, f64)>) -> Option<Via> {
        match step?.0 {
            TrialStep::Begin(_) => None,
            TrialStep::Take(decision) => Some(decision.value),
        }
    }

    #[test]
    fn tcp_is_taken_where_it_carries_more_and_stays_when_it_does_so_alone() {
        let mut session = Session::new();
        let (step, at) = session.run(60, [50.0, 0.0], Limit::Policer).unwrap();
        assert!(matches!(step, TrialStep::Begin(_)) && at < 10.0, "{step:?} after {at} s");
        assert!(session.trial.is_on() && session.trial.loser().is_none());
        assert_eq!(taken(session.run(60, [50.0, 400.0], Limit::Policer)), Some(Via::Tcp));
        assert_eq!(session.trial.loser(), Some(Via::Quic));
        assert_eq!(session.run(600, [0.0, 390.0], Limit::CongestionWindow), None);
        assert!(!session.trial.is_on());
        assert_eq!(session.trial.loser(), Some(Via::Quic));
    }

    #[test]
    fn quic_stays_where_both_together_carry_what_it_had_alone_and_nothing_is_asked_again() {
        let mut session = Session::new();
        session.run(60, [50.0, 0.0], Limit::Policer).unwrap();
        assert_eq!(taken(session.run(60, [20.0, 32.0], Limit::Policer)), Some(Via::Quic));
        assert_eq!(session.trial.loser(), Some(Via::Tcp));
        assert_eq!(session.run(600, [50.0, 0.0], Limit::Policer), None);
    }

    #[test]
    fn quic_comes_back_when_tcp_alone_carries_less() {
        let mut session = Session::new();
        session.run(60, [50.0, 0.0], Limit::Cpu).unwrap();
        assert_eq!(taken(session.run(60, [20.0, 60.0], Limit::Cpu)), Some(Via::Tcp));
        assert_eq!(taken(session.run(60, [0.0, 40.0], Limit::Loss)), Some(Via::Quic));
        assert_eq!(session.trial.loser(), Some(Via::Tcp));
    }

    #[test]
    fn lanes_that_never_come_lose() {
        let mut session = Session::new();
        session.run(60, [50.0, 0.0], Limit::Policer).unwrap();
        assert_eq!(taken(session.run(60, [50.0, 0.0], Limit::Policer)), Some(Via::Quic));
    }

    #[test]
    fn no_trial_without_cause_nor_while_quic_grows_nor_for_the_end_of_a_copy() {
        assert_eq!(Session::new().run(600, [50.0, 0.0], Limit::CongestionWindow), None);
        assert_eq!(
            Session { trial: TransportTrial::default(), ..Session::new() }.run(60, [5.0, 0.0], Limit::Cpu),
            None
        );
        // 50 Mbit/s take 30 s for 187.5 MB.
        let short = Session { left: ByteCount(180_000_000), ..Session::new() }.run(60, [50.0, 0.0], Limit::Policer);
        assert_eq!(short, None);
        let mut growing = Session::new();
        for second in 0..30 {
            assert_eq!(growing.run(1, [5.0 * 1.08f64.powi(second), 0.0], Limit::Policer), None, "second {second}");
        }
    }
}
