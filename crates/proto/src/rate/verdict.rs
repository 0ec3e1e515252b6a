//! Verdict on a round: a pure function from evidence to one verdict.

use super::contract::Fairness;

/// Evidence of a round, and of the rounds before it at the same rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evidence {
    pub(super) fairness: Fairness,
    /// True if the rate is below our part beside flows that keep a queue full.
    pub(super) is_below_part: bool,
    /// True if more packets were lost than noise explains, in this round or over all of them.
    pub(super) has_excess: bool,
    pub(super) cure: Cure,
    /// Rounds in a row with a queue.
    pub(super) queued_rounds: u32,
    /// True if the queue persists for longer than a host stall.
    pub(super) queue_stands: bool,
    /// Delivery rate, as a part of the send rate.
    pub(super) arrived: f64,
    /// True if the lane ran out of data, or if the host sends so far below the rate that more would change nothing.
    pub(super) is_unused: bool,
    /// True if the delivery rate, with noise allowed for, is high enough to try a higher rate.
    pub(super) keeps_up: bool,
    pub(super) probe: Option<ProbeEvidence>,
}

/// Evidence of a probe, bytes/s.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProbeEvidence {
    /// Rate that the path is known to carry.
    pub(super) known: f64,
    /// Rate under test.
    pub(super) tried: f64,
    /// Delivery rate, corrected for the losses from before the probe.
    pub(super) arrived: f64,
    /// True if packets were dropped above this rate before, and the probe is too short to empty a token bucket.
    pub(super) is_short: bool,
    /// True if a queue that grew since, or losses, explain the missing rate. A host that is busy for a moment causes
    /// neither.
    pub(super) is_explained: bool,
    /// True if the probe has lasted as long as a queue needs to show.
    pub(super) is_long: bool,
}

/// Effect of a cut on the loss that caused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cure {
    /// No cut for a loss was made.
    None,
    /// Most of the loss is gone: our rate caused it.
    Done,
    /// Too few packets to decide.
    Unknown,
    /// The loss is as high as before.
    Useless,
}

/// Verdict on a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Competing flows keep a queue full, and the rate is below our part.
    BelowPart,
    /// Losses at this rate are above the noise.
    Excess,
    /// A queue grows: a tenth or more of the rate does not arrive.
    QueueGrows,
    /// A queue persists for several rounds, and 2 % or more of the rate do not arrive.
    QueueStands,
    /// A cut is still on trial.
    OnTrial,
    /// The rate was not used: the round is no evidence.
    Unused,
    /// The added rate of a probe has not arrived.
    ProbeFailed,
    /// The added rate of a probe has arrived, but a token bucket may have passed it. Or it has not arrived, and no
    /// queue or loss explains that yet.
    ProbeUnproven,
    /// The added rate of a probe has arrived.
    ProbePassed,
    /// All packets have arrived, and a higher rate may be tried.
    Clean,
    /// Delivery is below the send rate, without losses or a queue.
    Behind,
}

impl Evidence {
    /// Classifies the round.
    pub(super) fn classify(&self) -> Verdict {
        if self.is_below_part {
            return Verdict::BelowPart;
        }
        if self.has_excess || self.cure == Cure::Useless {
            return Verdict::Excess;
        }
        if self.queue_stands && self.falls_behind(KEEPS_UP) {
            return Verdict::QueueGrows;
        }
        if self.queue_stands && self.queued_rounds >= QUEUED_ROUNDS && self.falls_behind(KEEPS_UP_LONG) {
            return Verdict::QueueStands;
        }
        match self.probe {
            _ if self.cure == Cure::Unknown => Verdict::OnTrial,
            _ if self.is_unused => Verdict::Unused,
            Some(probe) => probe.classify(),
            None if self.keeps_up => Verdict::Clean,
            None => Verdict::Behind,
        }
    }

    /// Returns true if less than `part` of the rate arrived. In scavenger mode always true: any queue is enough to
    /// yield.
    fn falls_behind(&self, part: f64) -> bool {
        self.fairness == Fairness::Scavenger || self.arrived < part
    }
}

impl ProbeEvidence {
    fn classify(&self) -> Verdict {
        let has_arrived = self.arrived >= self.known + (self.tried - self.known) * PROBE_ADDS;
        match self {
            _ if !has_arrived && self.is_explained => Verdict::ProbeFailed,
            _ if !has_arrived && !self.is_long => Verdict::ProbeUnproven,
            _ if self.is_short => Verdict::ProbeUnproven,
            _ => Verdict::ProbePassed,
        }
    }
}

/// Part of the rate at which delivery keeps up. Reason: bursts and late wake-ups cost a few per cent.
pub(super) const KEEPS_UP: f64 = 0.9;
/// The same when a queue has persisted for [`QUEUED_ROUNDS`]: other flows take the missing part.
const KEEPS_UP_LONG: f64 = 0.98;
/// Rounds in a row with a queue after which it counts as persistent.
pub(super) const QUEUED_ROUNDS: u32 = 3;

/// Part of a step up that must arrive for the step to be kept.
const PROBE_ADDS: f64 = 0.5;

#[cfg(test)]
mod tests {
    use super::*;

    fn clean() -> Evidence {
        Evidence {
            fairness: Fairness::Fair,
            is_below_part: false,
            has_excess: false,
            cure: Cure::None,
            queued_rounds: 0,
            queue_stands: false,
            arrived: 1.0,
            is_unused: false,
            keeps_up: true,
            probe: None,
        }
    }

    fn probe(arrived: f64, is_short: bool) -> Evidence {
        let (known, tried) = (100.0, 105.0);
        let evidence = ProbeEvidence { known, tried, arrived, is_short, is_explained: true, is_long: false };
        Evidence { probe: Some(evidence), ..clean() }
    }

    fn unexplained(arrived: f64, is_long: bool) -> Evidence {
        let probe = probe(arrived, false).probe.map(|probe| ProbeEvidence { is_explained: false, is_long, ..probe });
        Evidence { probe, ..clean() }
    }

    #[test]
    fn each_verdict_has_its_evidence() {
        let queue = Evidence { queue_stands: true, queued_rounds: 2, ..clean() };
        let rows = [
            (clean(), Verdict::Clean),
            (Evidence { keeps_up: false, ..clean() }, Verdict::Behind),
            (Evidence { is_unused: true, ..clean() }, Verdict::Unused),
            (Evidence { is_below_part: true, has_excess: true, ..clean() }, Verdict::BelowPart),
            (Evidence { has_excess: true, ..clean() }, Verdict::Excess),
            (Evidence { cure: Cure::Useless, ..clean() }, Verdict::Excess),
            (Evidence { cure: Cure::Unknown, ..clean() }, Verdict::OnTrial),
            (Evidence { cure: Cure::Done, ..clean() }, Verdict::Clean),
            (queue, Verdict::Clean),
            (Evidence { arrived: 0.85, ..queue }, Verdict::QueueGrows),
            (Evidence { fairness: Fairness::Scavenger, ..queue }, Verdict::QueueGrows),
            (Evidence { arrived: 0.97, ..queue }, Verdict::Clean),
            (Evidence { arrived: 0.97, queued_rounds: 3, ..queue }, Verdict::QueueStands),
            (probe(102.0, false), Verdict::ProbeFailed),
            (probe(104.0, true), Verdict::ProbeUnproven),
            (probe(104.0, false), Verdict::ProbePassed),
            (unexplained(102.0, false), Verdict::ProbeUnproven),
            (unexplained(102.0, true), Verdict::ProbePassed),
            (Evidence { is_unused: true, ..probe(102.0, false) }, Verdict::Unused),
            (Evidence { has_excess: true, ..probe(104.0, false) }, Verdict::Excess),
        ];
        for (evidence, verdict) in rows {
            assert_eq!(evidence.classify(), verdict, "{evidence:?}");
        }
    }
}
