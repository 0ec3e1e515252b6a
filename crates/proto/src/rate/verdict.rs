//! Verdict on a round: evidence in, one name out.

use super::contract::Manner;

/// Evidence of a round, and of the rounds before it at the same rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evidence {
    pub(super) manner: Manner,
    /// Less is sent than our part beside flows that keep a queue full.
    pub(super) is_below_part: bool,
    /// More packets were lost than noise explains, in this round or over all of them.
    pub(super) has_excess: bool,
    pub(super) cure: Cure,
    /// Rounds in a row with a queue, and whether it stood for longer than a host stalls.
    pub(super) queued_rounds: u32,
    pub(super) queue_stands: bool,
    /// What arrived, as a part of the rate.
    pub(super) arrived: f64,
    /// The lane ran out of data, or the host sends so much less than it may that more would change nothing.
    pub(super) is_unused: bool,
    /// What arrived is enough, losses taken off, for more to be tried.
    pub(super) keeps_up: bool,
    pub(super) probe: Option<ProbeEvidence>,
}

/// Evidence of a probe, bytes/s.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProbeEvidence {
    /// Rate that was known to be carried, and the one that is tried.
    pub(super) known: f64,
    pub(super) tried: f64,
    /// What arrived, losses that were there before added.
    pub(super) arrived: f64,
    /// Packets were dropped above the rate that is tried before, and it has not been tried for long enough to empty a bucket of tokens.
    pub(super) is_short: bool,
    /// What is missing is in a queue that has grown since, or was lost: a host that is busy for a moment makes neither.
    pub(super) is_explained: bool,
    /// It has been tried for as long as a queue needs to show.
    pub(super) is_long: bool,
}

/// Effect of a cut on the loss that it was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cure {
    /// There was no cut for a loss.
    None,
    /// Most of the loss is gone: our rate caused it.
    Done,
    /// Too few packets to tell.
    Unknown,
    /// As much is lost as before.
    Useless,
}

/// Name of what a round has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Others keep a queue full, and we send less than our part.
    BelowPart,
    /// More is lost than noise, at this rate.
    Excess,
    /// A queue grows: a tenth and more of the rate does not arrive.
    QueueGrows,
    /// A queue stands for several rounds, and 2 % and more of the rate do not arrive.
    QueueStands,
    /// A cut is still on trial.
    OnTrial,
    /// The rate was not used: nothing can be said about it.
    Unused,
    /// What a probe added has not arrived.
    ProbeFailed,
    /// What a probe added has arrived, but a bucket of tokens may have passed it; or has not, and no queue or loss says why yet.
    ProbeUnproven,
    /// What a probe added has arrived.
    ProbePassed,
    /// All that was sent has arrived, and more may be tried.
    Clean,
    /// Less arrives than was sent, without losses or a queue.
    Behind,
}

impl Evidence {
    /// Classifies a round.
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

    /// Whether less than this part of the rate arrived; a polite sender yields to any queue.
    fn falls_behind(&self, part: f64) -> bool {
        self.manner == Manner::Polite || self.arrived < part
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

/// Part of the rate at which delivery keeps up: bursts and late wake-ups cost a few per cent. With a queue that has stood for
/// [`QUEUED_ROUNDS`] less is enough to yield: somebody else takes what we do not get.
pub(super) const KEEPS_UP: f64 = 0.9;
const KEEPS_UP_LONG: f64 = 0.98;
pub(super) const QUEUED_ROUNDS: u32 = 3;

/// Part of a step up that must arrive for it to be kept.
const PROBE_ADDS: f64 = 0.5;

#[cfg(test)]
mod tests {
    use super::*;

    fn clean() -> Evidence {
        Evidence {
            manner: Manner::Fair,
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
            (Evidence { manner: Manner::Polite, ..queue }, Verdict::QueueGrows),
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
