//! Other causes that the same observations exclude, or leave open, each with its number.
//!
//! A reader who doubts a verdict asks "could it not be …?". For each verdict this lists the causes that look alike, and
//! the observation that speaks against each. Without an observation a cause stays open: the report does not hide it.

use serde::Serialize;
use sterna_proto::BitRate;

use super::{PathDirection, Report, text};
use crate::ceiling::Ceiling;
use crate::evidence::{Direction, Evidence, Purpose};
use crate::facts::Facts;
use crate::verdict::Cause;
use crate::view::FlowView;

/// Judgement on another cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ruling {
    /// The report has a verdict of this cause in this direction.
    Found,
    /// Excluded, with the observation.
    Excluded(String),
    /// Neither found nor excluded, with the reason.
    Open(String),
}

/// Causes that are judged, in the order of a reader.
pub const CAUSES: [Cause; 19] = [
    Cause::ReceiveBuffer,
    Cause::SendBuffer,
    Cause::SlowRamp,
    Cause::RandomLoss,
    Cause::Congestion,
    Cause::Policer,
    Cause::Shaper,
    Cause::AckPath,
    Cause::RttModes,
    Cause::Reordering,
    Cause::PmtuBlackHole,
    Cause::NoWindowScaling,
    Cause::NoSack,
    Cause::NoTimestamps,
    Cause::ApplicationRead,
    Cause::ApplicationWrite,
    Cause::DiskRead,
    Cause::DiskWrite,
    Cause::Cpu,
];

/// Returns the causes that look like this one to somebody who sees only the rate.
pub fn alike(cause: Cause) -> &'static [Cause] {
    use Cause::{
        AckPath, ApplicationRead, ApplicationWrite, Congestion, Cpu, MssClamped, PmtuBlackHole, Policer, RandomLoss,
        ReceiveBuffer, Reordering, RttModes, SendBuffer, Shaper,
    };
    match cause {
        Cause::ReceiveBuffer | Cause::NoWindowScaling => {
            &[SendBuffer, RandomLoss, Congestion, Policer, ApplicationWrite, Cpu]
        }
        Cause::SendBuffer => &[ReceiveBuffer, RandomLoss, Congestion, Policer, ApplicationRead, Cpu],
        Cause::SlowRamp => &[ReceiveBuffer, SendBuffer, RandomLoss, ApplicationRead],
        Cause::RandomLoss => &[Congestion, Policer, Shaper, Reordering, PmtuBlackHole, Cpu],
        Cause::Congestion => &[RandomLoss, Policer, Shaper, AckPath, ReceiveBuffer],
        Cause::Policer => &[Shaper, Congestion, RandomLoss, ReceiveBuffer, SendBuffer, Cpu],
        Cause::Shaper => &[Policer, Congestion, RandomLoss, ReceiveBuffer, SendBuffer, Cpu],
        Cause::AckPath => &[RandomLoss, Policer, ReceiveBuffer, Reordering],
        Cause::RttModes => &[Congestion, Reordering],
        Cause::NoSack => &[RandomLoss, Congestion, Policer, ReceiveBuffer, SendBuffer],
        Cause::Reordering | Cause::NoTimestamps => &[RandomLoss, RttModes, Policer],
        Cause::PmtuBlackHole => &[RandomLoss, Policer],
        Cause::MssClamped => &[PmtuBlackHole, MssClamped],
        Cause::ApplicationRead | Cause::DiskRead => &[SendBuffer, ReceiveBuffer, Cpu],
        Cause::ApplicationWrite | Cause::DiskWrite => &[ReceiveBuffer, Cpu],
        Cause::Cpu => &[RandomLoss, ReceiveBuffer, SendBuffer, Policer],
        Cause::RateCap => &[Policer, Shaper, ReceiveBuffer, SendBuffer],
        Cause::Clean => &[ReceiveBuffer, SendBuffer, RandomLoss, Policer, Shaper, AckPath, PmtuBlackHole, Cpu],
    }
}

/// Judgements on other causes in one direction.
pub struct Rulings<'a> {
    report: &'a Report,
    facts: Facts<'a>,
    base: FlowView,
    /// Bytes of headers in a full segment.
    headers: u32,
    path: Option<&'a PathDirection>,
}

/// Share of time below which a limit of the sender's kernel did not hold the connection. Reason: the kernel counts in
/// steps of 4 ms.
const SHARE_NONE: f64 = 0.05;

/// Part of the samples that may be late on a host with time for its processes.
const LATE_NONE: f64 = 0.05;

/// Part of lost acknowledgements that is no trouble. Reason: each acknowledges all before it.
const ACKS_LOST: f64 = 0.02;

/// Packets without a loss that exclude random loss. Reason: fewer exclude only loss above 0.6 %.
const PACKETS_MIN: u64 = 500;

impl<'a> Rulings<'a> {
    /// Returns the judgements of one direction; `None` without a baseline.
    pub fn new(evidence: &'a Evidence, report: &'a Report, direction: Direction) -> Option<Self> {
        let mut facts = Facts::new(evidence, direction);
        let headers = facts.headers() as u32;
        let base = facts.base.take()?;
        let path = report.path.directions.iter().find(|path| path.direction == direction);
        Some(Self { report, facts, base, headers, path })
    }

    /// Returns the judgement on a cause.
    pub fn of(&self, cause: Cause) -> Ruling {
        // Some causes hold for both directions and have one verdict.
        let is_shared = cause.is_of_both();
        let found = |verdict: &crate::verdict::Verdict| {
            verdict.limit == cause && (is_shared || verdict.direction == self.facts.direction)
        };
        if self.report.verdicts.iter().any(found) {
            return Ruling::Found;
        }
        match cause {
            Cause::ReceiveBuffer | Cause::SendBuffer | Cause::SlowRamp => self.of_window(cause),
            Cause::NoWindowScaling => option(self.base.window_scaling, "window scaling"),
            Cause::NoSack => option(self.base.sack, "selective acknowledgements"),
            Cause::NoTimestamps => option(self.base.timestamps, "timestamps"),
            Cause::RandomLoss | Cause::Congestion | Cause::AckPath | Cause::Reordering => self.of_loss(cause),
            Cause::Policer | Cause::Shaper => self.of_ceiling(cause),
            Cause::RttModes => self.of_round_trips(),
            Cause::PmtuBlackHole | Cause::MssClamped => self.of_sizes(),
            Cause::DiskRead | Cause::DiskWrite => self.of_disks(cause == Cause::DiskRead),
            Cause::ApplicationRead | Cause::ApplicationWrite | Cause::Cpu | Cause::RateCap => self.of_hosts(cause),
            Cause::Clean => Ruling::Open("there are verdicts".to_owned()),
        }
    }

    fn of_window(&self, cause: Cause) -> Ruling {
        let base = &self.base;
        let (share, words, size) = match cause {
            Cause::ReceiveBuffer => (base.peer_window_share, "window of the receiver", base.peer_window),
            Cause::SendBuffer => (base.send_buffer_share, "send buffer", base.send_buffer as f64),
            _ if base.growth < GROWTH_NONE => {
                let ramp = text::time(base.ramp_s);
                return Ruling::Excluded(format!("the rate was steady {ramp} after the start of the connection"));
            }
            _ => {
                let growth = (base.growth - 1.0) * 100.0;
                return Ruling::Open(format!("the rate still grew by {growth:.0} % in the last quarter"));
            }
        };
        let observed = format!(
            "the {words} was the limit in {} of the time, with {} in flight and a {words} of {}",
            text::percent(share),
            bytes(base.in_flight),
            bytes(size)
        );
        if share < SHARE_NONE { Ruling::Excluded(observed) } else { Ruling::Open(observed) }
    }

    fn of_loss(&self, cause: Cause) -> Ruling {
        let base = &self.base;
        let (loss, packets) = self.path.map_or((0.0, 0), |path| (path.loss, path.loss_packets));
        let (is_excluded, observed) = match cause {
            Cause::RandomLoss if packets == 0 => (
                base.lost == 0 && base.segments >= PACKETS_MIN,
                format!("{} segments lost of {}", base.lost, base.segments),
            ),
            Cause::RandomLoss => {
                let lost = (loss * packets as f64).round();
                let bound = 3.0 / packets as f64;
                let none = format!("none of {packets} packets far below the rate was lost: the loss is below ");
                match lost {
                    0.0 => (packets >= PACKETS_MIN, format!("{none}{} with 95 % confidence", text::percent(bound))),
                    _ => (false, format!("{lost:.0} of {packets} packets far below the rate were lost")),
                }
            }
            Cause::Congestion if matches!(self.facts.ceiling, Some(Ceiling::Policer { .. })) => {
                let others = self.facts.queue_of_others_s();
                let observed = format!(
                    "the delay stayed flat while packets were lost, so no queue was full; it was {} without our load",
                    text::time(others)
                );
                (others < QUEUE_NONE_S, observed)
            }
            Cause::Congestion => {
                let others = self.facts.queue_of_others_s();
                let observed = format!(
                    "the queue without our load was {}; the connection lost {} of {} segments",
                    text::time(others),
                    base.lost,
                    base.segments
                );
                (self.facts.evidence.echoes().is_some() && others < QUEUE_NONE_S && base.lost == 0, observed)
            }
            Cause::AckPath => {
                let observed = format!("{} of the acknowledgements were lost", text::percent(base.ack_loss()));
                (base.ack_loss() < ACKS_LOST, observed)
            }
            _ => {
                let part = self.path.map_or(0.0, |path| path.reordered);
                let observed = format!(
                    "{} of the packets of trains arrived late, and the sender detected {} such events",
                    text::percent(part),
                    base.reordered
                );
                (part < REORDERED_NONE && base.reordered == 0, observed)
            }
        };
        if is_excluded { Ruling::Excluded(observed) } else { Ruling::Open(observed) }
    }

    fn of_ceiling(&self, cause: Cause) -> Ruling {
        let rate = |bps: f64| text::rate(bps as u64);
        match (cause, self.facts.ceiling) {
            (_, None) => Ruling::Open("no packet train has a result".to_owned()),
            (_, Some(Ceiling::AtLeast(bps))) => {
                Ruling::Excluded(format!("packets at {} passed: there is none up to that rate", rate(bps)))
            }
            (Cause::Policer, Some(Ceiling::Link { bps, queue_s })) => Ruling::Excluded(format!(
                "above {} packets were delayed, by {} more at the end; a policer drops and does not delay",
                rate(bps),
                text::time(queue_s)
            )),
            (Cause::Policer, Some(Ceiling::Shaper { bps, .. })) => Ruling::Excluded(format!(
                "above {} packets were delayed; a policer drops and does not delay",
                rate(bps)
            )),
            (Cause::Shaper, Some(Ceiling::Link { .. })) => Ruling::Excluded(
                "the delay rose from the first packets on; a shaper lets a burst pass first".to_owned(),
            ),
            (Cause::Shaper, Some(Ceiling::Policer { bps, .. })) => Ruling::Excluded(format!(
                "above {} packets were dropped while the delay stayed flat; a shaper delays them",
                rate(bps)
            )),
            _ => Ruling::Open("the train is not clear".to_owned()),
        }
    }

    fn of_round_trips(&self) -> Ruling {
        let ports = self.facts.evidence.echoes().map_or(0, |report| report.echoes.len());
        match self.report.path.rtt_modes.as_slice() {
            [] => Ruling::Open("no echoes have a result".to_owned()),
            [_] => Ruling::Excluded(format!("{ports} ports have the same round trip")),
            modes => Ruling::Open(format!("{ports} ports have round trips in {} groups", modes.len())),
        }
    }

    fn of_sizes(&self) -> Ruling {
        let Some((_, train)) = self.facts.evidence.train(Purpose::Sizes, self.facts.direction) else {
            return Ruling::Open("no sweep of packet sizes has a result".to_owned());
        };
        let segment = self.base.mss.saturating_add(self.headers);
        let vanished = train.sizes.iter().find(|size| size.sent > 0 && size.received == 0 && size.bytes <= segment);
        match (vanished, train.sizes.iter().filter(|size| size.received > 0).map(|size| size.bytes).max()) {
            (None, Some(largest)) => {
                Ruling::Excluded(format!("packets up to {largest} bytes pass, and segments need {segment}"))
            }
            (Some(size), _) => Ruling::Open(format!("no packet of {} bytes arrived", size.bytes)),
            (None, None) => Ruling::Open("no packet of the sweep arrived".to_owned()),
        }
    }

    fn of_disks(&self, of_sender: bool) -> Ruling {
        let (bps, verb) = match self.facts.evidence.disk(self.facts.direction, of_sender) {
            Some(disk) if of_sender => (disk.read_bps, "reads"),
            Some(disk) => (disk.write_bps, "writes"),
            None => {
                return Ruling::Open("no disk was measured; the data of flows is generated and discarded".to_owned());
            }
        };
        let carried = self.facts.least_bps() as u64;
        let observed = format!("the disk {verb} {}, and the path carries {}", text::rate(bps), text::rate(carried));
        if bps > carried { Ruling::Excluded(observed) } else { Ruling::Open(observed) }
    }

    fn of_hosts(&self, cause: Cause) -> Ruling {
        let base = &self.base;
        let (is_excluded, observed) = match cause {
            Cause::ApplicationRead => (
                base.busy_share > 1.0 - SHARE_NONE,
                format!("the sender had data to send in {} of the time", text::percent(base.busy_share)),
            ),
            Cause::ApplicationWrite => (
                base.unread < UNREAD_NONE,
                format!("unread data filled {} of the receive buffer", text::percent(base.unread)),
            ),
            Cause::Cpu => (
                base.sender.late.max(base.receiver.late) < LATE_NONE,
                format!(
                    "{4} of the samples of the two processes were late; the hosts used {0:.1} of {1} and {2:.1} of {3} processors",
                    base.sender.host,
                    self.facts.sender().processors,
                    base.receiver.host,
                    self.facts.receiver().processors,
                    text::percent(base.sender.late.max(base.receiver.late))
                ),
            ),
            _ => match self.report.rate_max_bps {
                None => (true, "no rate was given".to_owned()),
                Some(most) => {
                    let rate = text::rate(base.rate_bps as u64);
                    (base.rate_bps < most as f64 * 0.8, format!("the rate is {rate} of the {} allowed", BitRate(most)))
                }
            },
        };
        if is_excluded { Ruling::Excluded(observed) } else { Ruling::Open(observed) }
    }
}

/// Growth between the last quarters of a flow below which its rate is steady.
const GROWTH_NONE: f64 = 1.15;

/// Queue of others that is no congestion, seconds. Reason: hosts add as much.
const QUEUE_NONE_S: f64 = 0.002;

/// Part of late packets that is no trouble. Reason: fewer than a retransmission by mistake in a thousand windows.
const REORDERED_NONE: f64 = 1e-4;

/// Part of the receive buffer with unread data below which the program reads in time.
const UNREAD_NONE: f64 = 0.25;

fn option(is_used: bool, name: &str) -> Ruling {
    match is_used {
        true => Ruling::Excluded(format!("the connection uses {name}")),
        false => Ruling::Open(format!("the connection does not use {name}")),
    }
}

fn bytes(count: f64) -> String {
    sterna_proto::ByteCount(count as u64).to_string()
}
