//! Why a congestion window is no larger: it grows still, the path is full, packets are lost, or a policer drops them.
//!
//! Looks at all lanes of a path together, since together they fill it: several flows through one policer each look like random
//! loss (the published passive test finds 12 % of them), and their sum does not.

use std::collections::VecDeque;
use std::time::Duration;

use crate::BitRate;

/// What happened on a path in one interval, all lanes together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Flow {
    /// How long the interval was.
    pub time: Duration,
    /// Packets sent, repeats included.
    pub sent: u64,
    /// Packets lost, or sent again.
    pub lost: u64,
    /// Bytes delivered.
    pub delivered: u64,
    /// Delay above the smallest round-trip time, mean of the lanes.
    pub queue: Duration,
    /// Smallest round-trip time of the lanes.
    pub rtt_min: Duration,
    /// A lane yields to loss, as cubic and reno do; bbr and ours keep their rate through some of it.
    pub yields_to_loss: bool,
    /// No lane has cut its window yet.
    pub is_growing: bool,
}

/// Why a congestion window is no larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowCause {
    /// It has not been cut yet.
    Growing,
    /// The path carries no more.
    Full,
    /// Packets were lost while no queue stood.
    Loss,
    /// Packets were dropped above a rate while no queue stood.
    Policer,
}

/// The last seconds of a path.
#[derive(Clone, Debug, Default)]
pub struct PathHistory {
    bins: VecDeque<Flow>,
    open: Flow,
    kept: Option<WindowCause>,
}

impl PathHistory {
    /// Takes note of an interval; why windows are no larger now.
    pub fn add(&mut self, flow: &Flow) -> WindowCause {
        self.fill(flow);
        let cause = self.judge(flow);
        if cause != WindowCause::Growing {
            self.kept = Some(cause);
        }
        cause
    }

    /// The rate of delivery of the last seconds.
    pub fn rate(&self) -> BitRate {
        let time: Duration = self.bins.iter().map(|bin| bin.time).sum();
        let bytes: u64 = self.bins.iter().map(|bin| bin.delivered).sum();
        BitRate::mean(crate::ByteCount(bytes), time)
    }

    /// The most that came through for longer than a moment: the rate of a policer, when there is one.
    pub fn carried(&self) -> BitRate {
        BitRate((self.rate_carried() * 8.0) as u64)
    }

    /// The rate of a path that is full: half of the bytes came at this or more. By bytes, since the way there, and an end with
    /// little left to send, are bins like others.
    pub fn usual(&self) -> BitRate {
        let mut bins: Vec<(f64, u64)> = self.bins.iter().map(|bin| (rate_of(bin), bin.delivered)).collect();
        bins.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let mut left = bins.iter().map(|(_, bytes)| bytes).sum::<u64>() / 2;
        let middle = bins.iter().find(|(_, bytes)| {
            let is_middle = *bytes >= left;
            left = left.saturating_sub(*bytes);
            is_middle
        });
        BitRate((middle.map_or(0.0, |(rate, _)| *rate) * 8.0) as u64)
    }

    /// Gathers intervals into bins of a round trip, in which what is sent, lost and acknowledged belongs together.
    fn fill(&mut self, flow: &Flow) {
        let open = &mut self.open;
        let weight = flow.time.as_secs_f64() / (open.time + flow.time).as_secs_f64().max(1e-9);
        let weight = weight.clamp(0.0, 1.0);
        open.queue = open.queue.mul_f64(1.0 - weight) + flow.queue.mul_f64(weight);
        open.time += flow.time;
        open.sent += flow.sent;
        open.lost += flow.lost;
        open.delivered += flow.delivered;
        open.rtt_min = flow.rtt_min;
        if open.time < BIN_MIN.max(flow.rtt_min) {
            return;
        }
        self.bins.push_back(std::mem::take(open));
        let mut kept = Duration::ZERO;
        let count = self.bins.iter().rev().take_while(|bin| {
            kept += bin.time;
            kept <= HISTORY.max(bin.rtt_min * HISTORY_ROUNDS)
        });
        let surplus = self.bins.len() - count.count();
        self.bins.drain(..surplus);
    }

    fn judge(&self, flow: &Flow) -> WindowCause {
        let (_, lost) = self.packets();
        if self.queue_stands() {
            return WindowCause::Full;
        }
        // One that is searched for is found with losses.
        if flow.is_growing && lost >= LOST_MIN {
            return WindowCause::Growing;
        }
        if lost < LOST_MIN {
            return match self.kept {
                Some(cause) if !flow.is_growing => cause,
                _ if self.rate_rises() => WindowCause::Growing,
                _ => WindowCause::Full,
            };
        }
        if self.lost_with_queue() * 2 > lost {
            return WindowCause::Full;
        }
        let lossy = match flow.yields_to_loss {
            true => WindowCause::Loss,
            false => WindowCause::Full,
        };
        match (self.pattern(), self.kept) {
            (LossPattern::OfPolicer, _) => WindowCause::Policer,
            // What the last clear pattern said holds until another is clear.
            (LossPattern::Unclear, Some(WindowCause::Policer)) => WindowCause::Policer,
            (LossPattern::Unclear | LossPattern::Random, _) => lossy,
        }
    }

    fn packets(&self) -> (u64, u64) {
        self.bins.iter().fold((0, 0), |(sent, lost), bin| (sent + bin.sent, lost + bin.lost))
    }

    /// Whether packets have waited in a queue for most of the last bins.
    fn queue_stands(&self) -> bool {
        let latest: Vec<&Flow> = self.bins.iter().rev().take(STANDING_BINS).collect();
        latest.len() == STANDING_BINS && latest.iter().filter(|bin| has_queue(bin)).count() * 4 >= STANDING_BINS * 3
    }

    /// Packets lost in bins with a queue or right behind one: a queue that ran over drains before its losses are known.
    fn lost_with_queue(&self) -> u64 {
        let queued: Vec<bool> = self.bins.iter().map(has_queue).collect();
        let near = |index: usize| queued[index.saturating_sub(1)..=index].contains(&true);
        self.bins.iter().enumerate().filter(|(index, _)| near(*index)).map(|(_, bin)| bin.lost).sum()
    }

    /// Whether the last bin brought more than those before it, or there are too few to tell.
    fn rate_rises(&self) -> bool {
        let latest: Vec<f64> = self.bins.iter().rev().take(RISING_BINS).map(rate_of).collect();
        latest.len() < RISING_BINS || latest[0] > mean(&latest[1..]) * RISING
    }

    /// How losses are spread over the bins, against random ones that come one by one, whatever the rate.
    ///
    /// A policer drops in bursts, when its bucket has run empty, and only while as much is sent as ever came through. Where a
    /// sender stays above its rate it drops all that exceeds it: as many in each bin, much more evenly than chance would.
    fn pattern(&self) -> LossPattern {
        let (sent, lost) = self.packets();
        if lost < POLICED_LOST_MIN || self.bins.len() < POLICED_BINS_MIN {
            return LossPattern::Unclear;
        }
        let share = lost as f64 / sent.max(1) as f64;
        let is_quiet = |bin: &&Flow| (bin.lost as f64) < bin.sent as f64 * share / QUIET_DIVISOR;
        let quiet = self.bins.iter().filter(is_quiet).count() as f64 / self.bins.len() as f64;
        let all: Vec<Flow> = self.bins.iter().copied().collect();
        let surprise = surprise(&all);
        if quiet > QUIET && surprise > BURSTS && self.sent_at_loss() > self.rate_carried() * NEAR_CARRIED {
            return LossPattern::OfPolicer;
        }
        let latest = &all[all.len().saturating_sub(EVEN_BINS)..];
        let lost_lately: u64 = latest.iter().map(|bin| bin.lost).sum();
        if latest.len() == EVEN_BINS && lost_lately >= EVEN_LOST_MIN && self::surprise(latest) < EVEN {
            return LossPattern::OfPolicer;
        }
        match latest.len() >= RANDOM_BINS_MIN && (EVEN..BURSTS).contains(&surprise) {
            true => LossPattern::Random,
            false => LossPattern::Unclear,
        }
    }

    /// Bytes per second that were offered while packets were lost, by losses.
    fn sent_at_loss(&self) -> f64 {
        let (_, lost) = self.packets();
        let offered = |bin: &Flow| {
            let came = bin.sent.saturating_sub(bin.lost).max(1) as f64;
            rate_of(bin).max(0.0) * bin.sent as f64 / came
        };
        let weighed: f64 = self.bins.iter().map(|bin| offered(bin) * bin.lost as f64).sum();
        weighed / lost.max(1) as f64
    }

    /// Bytes per second that came through in all but the best few of the bins.
    fn rate_carried(&self) -> f64 {
        let mut rates: Vec<f64> = self.bins.iter().map(rate_of).collect();
        rates.sort_by(f64::total_cmp);
        rates.get((rates.len() as f64 * 0.95) as usize).copied().unwrap_or(0.0)
    }
}

/// What the spread of losses speaks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LossPattern {
    Random,
    OfPolicer,
    Unclear,
}

/// How far the losses of bins are from those that their mean share makes expected, in variances of random losses: about 1 when
/// they are random.
fn surprise(bins: &[Flow]) -> f64 {
    let (sent, lost) = bins.iter().fold((0, 0), |(sent, lost), bin| (sent + bin.sent, lost + bin.lost));
    let share = lost as f64 / sent.max(1) as f64;
    let of_bin = |bin: &Flow| {
        let expected = bin.sent as f64 * share;
        (bin.lost as f64 - expected).powi(2) / (expected * (1.0 - share)).max(1.0)
    };
    mean(&bins.iter().map(of_bin).collect::<Vec<f64>>())
}

fn has_queue(bin: &Flow) -> bool {
    bin.queue > (bin.rtt_min / QUEUE_DIVISOR).max(QUEUE_MIN)
}

/// Bytes per second.
fn rate_of(bin: &Flow) -> f64 {
    bin.delivered as f64 / bin.time.as_secs_f64().max(1e-9)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Length of a bin, at least; a round trip where that is longer. Reason: shorter ones hold few packets of slow lanes.
const BIN_MIN: Duration = Duration::from_millis(200);

/// How long the past counts, at least, and in round trips. Reason: cubic cuts its window about every 5 s on a path of 100 ms.
const HISTORY: Duration = Duration::from_secs(8);
const HISTORY_ROUNDS: u32 = 30;

/// Losses below this say nothing.
const LOST_MIN: u64 = 3;

/// Bins that must show a queue, three of four of them, for it to stand.
const STANDING_BINS: usize = 8;

/// Bins that are looked at for whether a rate still rises, and by how much the last one must then exceed the others.
const RISING_BINS: usize = 5;
const RISING: f64 = 1.1;

/// Delay above the smallest round trip that is a queue: this part of that round trip, and at least so much. Reason: busy
/// hosts delay by some milliseconds (2 to 5 at a load of 5 on two cores, bench/runs/2026-11-21-vm-limits).
const QUEUE_DIVISOR: u32 = 8;
const QUEUE_MIN: Duration = Duration::from_millis(5);

/// Bins, and losses, below which bursts cannot be told (Flach et al., SIGCOMM 2016, want 15 losses too).
const POLICED_BINS_MIN: usize = 3;
const POLICED_LOST_MIN: u64 = 15;

/// Mean surprise at the losses of a bin from which they come in bursts: 1 when they are random, some tens behind a policer.
const BURSTS: f64 = 4.0;

/// The same from which down they are too even to be random, in so many bins with so many losses. Reason: fifteen bins of random
/// losses are as even once in a thousand times.
const EVEN: f64 = 0.25;
const EVEN_BINS: usize = 15;
const EVEN_LOST_MIN: u64 = 150;

/// Bins from which on losses may count as random.
const RANDOM_BINS_MIN: usize = 10;

/// Bins that lose less than this part of the mean, as a part of all, at least: between two bursts a policer drops nothing, and
/// where others lose at random meanwhile, bursts are those of a queue that ran over.
const QUIET: f64 = 0.2;
const QUIET_DIVISOR: f64 = 4.0;

/// What is sent while packets are lost, as a part of what the path carries: a policer drops only what exceeds it.
const NEAR_CARRIED: f64 = 0.8;
