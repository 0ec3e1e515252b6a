//! Why a congestion window is no larger: it grows still, the path or its return direction is full, packets are lost, or a policer drops them.
//!
//! Looks at all lanes of a path together, since together they fill it: several flows through one policer each look like random
//! loss (the published passive test finds 12 % of them), and their sum does not.

use std::collections::VecDeque;
use std::time::Duration;

use crate::{BitRate, ByteCount};

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
    /// Delay above the smallest round-trip time, mean of the lanes, without that of the return direction.
    pub queue: Duration,
    /// Of the delay above the smallest round-trip time, that of the return direction.
    pub return_queue: Duration,
    /// Smallest round-trip time of the lanes.
    pub rtt_min: Duration,
    /// A lane yields to loss, as cubic and reno do; bbr and ours keep their rate through some of it.
    pub yields_to_loss: bool,
    /// No lane has cut its window yet.
    pub is_growing: bool,
    /// Every lane opens its window until it loses packets: one that has lost none is not known to fill the path.
    pub grows_until_loss: bool,
}

/// Why a congestion window is no larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowCause {
    /// It has not been cut yet.
    Growing,
    /// A queue stands before the path: it carries no more.
    Queue,
    /// The path carries no more, though no queue shows it.
    Full,
    /// The return direction is full: acknowledgements wait there.
    AckPath,
    /// Packets were lost while no queue stood.
    Loss,
    /// Packets were dropped above a rate while no queue stood.
    Policer,
}

/// The rate of a policer. Payload of TCP lanes, whole packets of QUIC ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicedRate {
    /// What came through while the sender stayed above it.
    Exact(BitRate),
    /// The most that came through between losses. A sender whose packets come in clumps loses them at any mean rate, when a
    /// clump is larger than the bucket; what then is the rate of the policer shows nowhere.
    AtLeast(BitRate),
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
        match cause {
            // Without its queue the return direction holds nothing back.
            WindowCause::Growing | WindowCause::AckPath => {}
            WindowCause::Queue => self.kept = Some(WindowCause::Full),
            WindowCause::Full | WindowCause::Loss | WindowCause::Policer => self.kept = Some(cause),
        }
        cause
    }

    /// The rate of delivery of the last seconds.
    pub fn rate(&self) -> BitRate {
        let time: Duration = self.bins.iter().map(|bin| bin.time).sum();
        let bytes: u64 = self.bins.iter().map(|bin| bin.delivered).sum();
        BitRate::mean(ByteCount(bytes), time)
    }

    /// The rate of a policer, when there is one, as far as it is known.
    pub fn policed(&self) -> PolicedRate {
        let latest = self.latest_lossy();
        if is_even(&latest) {
            let (bytes, time) = sums(&latest);
            return PolicedRate::Exact(BitRate::mean(ByteCount(bytes), time));
        }
        PolicedRate::AtLeast(self.rate_between_losses())
    }

    /// The most that came through between two losses. The bucket of a policer is empty at both: no more than its rate has passed
    /// between them, whatever the bucket holds, and as much when the bucket was never full. The first loss may be at the
    /// beginning of its bin: the time of that bin counts, its bytes do not.
    fn rate_between_losses(&self) -> BitRate {
        let mut most = BitRate(0);
        for (first, bin) in self.bins.iter().enumerate().filter(|(_, bin)| bin.lost > 0) {
            let (mut bytes, mut time) = (0, bin.time);
            for bin in self.bins.iter().skip(first + 1) {
                bytes += bin.delivered;
                time += bin.time;
                if bin.lost > 0 {
                    most = most.max(BitRate::mean(ByteCount(bytes), time));
                }
            }
        }
        most
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
        open.return_queue = open.return_queue.mul_f64(1.0 - weight) + flow.return_queue.mul_f64(weight);
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
        if self.stands(has_queue, STANDING_BINS) {
            return WindowCause::Queue;
        }
        if self.stands(has_return_queue, RETURN_BINS) {
            return WindowCause::AckPath;
        }
        // One that is searched for is found with losses.
        if flow.is_growing && lost >= LOST_MIN {
            return WindowCause::Growing;
        }
        if lost < LOST_MIN {
            return match self.kept {
                // A window that grows until it loses packets is not full for as long as it neither does nor waits in a queue.
                Some(WindowCause::Full) if flow.grows_until_loss => WindowCause::Growing,
                Some(cause) if !flow.is_growing => cause,
                _ if flow.grows_until_loss || self.rate_rises() => WindowCause::Growing,
                _ => WindowCause::Full,
            };
        }
        if self.lost_with_queue() * 2 > lost {
            return WindowCause::Full;
        }
        let lossy = match flow.yields_to_loss {
            true if self.bursts() >= LOSS_BURSTS_MIN || self.kept == Some(WindowCause::Loss) => WindowCause::Loss,
            // One overshoot: it took nothing, or the window grows back.
            true if !self.holds_its_rate() => WindowCause::Growing,
            true | false => WindowCause::Full,
        };
        match (self.pattern(), self.kept) {
            (LossPattern::OfPolicer, _) => WindowCause::Policer,
            // What the last clear pattern said holds until another is clear.
            (LossPattern::Unclear, Some(WindowCause::Policer)) => WindowCause::Policer,
            (LossPattern::Unclear | LossPattern::Random, _) => lossy,
        }
    }

    fn packets(&self) -> (u64, u64) {
        let bins: Vec<Flow> = self.bins.iter().copied().collect();
        packets(&bins)
    }

    /// Whether packets have waited in such a queue for most of the last `count` bins.
    fn stands(&self, has_queue: impl Fn(&Flow) -> bool, count: usize) -> bool {
        let latest: Vec<&Flow> = self.bins.iter().rev().take(count).collect();
        latest.len() == count && latest.iter().filter(|bin| has_queue(bin)).count() * 4 >= count * 3
    }

    /// The bins with a queue or right behind one, or the others: a queue that ran over drains before its losses are known.
    fn bins_with_queue(&self, wanted: bool) -> Vec<Flow> {
        let queued: Vec<bool> = self.bins.iter().map(has_queue).collect();
        let near = |index: usize| queued[index.saturating_sub(1)..=index].contains(&true);
        self.bins.iter().enumerate().filter(|(index, _)| near(*index) == wanted).map(|(_, bin)| *bin).collect()
    }

    /// Packets lost in them.
    fn lost_with_queue(&self) -> u64 {
        self.bins_with_queue(true).iter().map(|bin| bin.lost).sum()
    }

    /// How often losses began: those of bins in a row are one burst.
    fn bursts(&self) -> usize {
        let is_lossy: Vec<bool> = self.bins.iter().map(|bin| bin.lost > 0).collect();
        let begins = is_lossy.windows(2).filter(|pair| !pair[0] && pair[1]).count()
            + usize::from(is_lossy.first() == Some(&true));
        // Losses that never stop for a bin are many bursts.
        begins.max(is_lossy.iter().filter(|is_lossy| **is_lossy).count() / BURST_BINS_MAX)
    }

    /// Whether the last bins brought nearly the most that ever came.
    fn holds_its_rate(&self) -> bool {
        let latest: Vec<f64> = self.bins.iter().rev().take(RISING_BINS).map(rate_of).collect();
        mean(&latest) > self.rate_carried() * HELD
    }

    /// The last bins without a queue that show whether losses are even.
    fn latest_lossy(&self) -> Vec<Flow> {
        let all = self.bins_with_queue(false);
        all[all.len().saturating_sub(EVEN_BINS)..].to_vec()
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
    ///
    /// A policer has no queue: losses in bins with one, or right behind one, are those of the queue.
    fn pattern(&self) -> LossPattern {
        let bins = self.bins_with_queue(false);
        let (sent, lost) = packets(&bins);
        if lost < POLICED_LOST_MIN || bins.len() < POLICED_BINS_MIN {
            return LossPattern::Unclear;
        }
        let share = lost as f64 / sent.max(1) as f64;
        let is_quiet = |bin: &&Flow| (bin.lost as f64) < bin.sent as f64 * share / QUIET_DIVISOR;
        let quiet = bins.iter().filter(is_quiet).count() as f64 / bins.len() as f64;
        let surprise = surprise(&bins);
        if quiet > QUIET && surprise > BURSTS && sent_at_loss(&bins) > self.rate_carried() * NEAR_CARRIED {
            return LossPattern::OfPolicer;
        }
        if is_even(&self.latest_lossy()) {
            return LossPattern::OfPolicer;
        }
        match bins.len() >= RANDOM_BINS_MIN && (EVEN..BURSTS).contains(&surprise) {
            true => LossPattern::Random,
            false => LossPattern::Unclear,
        }
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
    let (sent, lost) = packets(bins);
    let share = lost as f64 / sent.max(1) as f64;
    let of_bin = |bin: &Flow| {
        let expected = bin.sent as f64 * share;
        (bin.lost as f64 - expected).powi(2) / (expected * (1.0 - share)).max(1.0)
    };
    mean(&bins.iter().map(of_bin).collect::<Vec<f64>>())
}

/// Packets sent, and of them those lost.
fn packets(bins: &[Flow]) -> (u64, u64) {
    bins.iter().fold((0, 0), |(sent, lost), bin| (sent + bin.sent, lost + bin.lost))
}

/// Bytes that came, and the time that they took.
fn sums(bins: &[Flow]) -> (u64, Duration) {
    bins.iter().fold((0, Duration::ZERO), |(bytes, time), bin| (bytes + bin.delivered, time + bin.time))
}

/// Bytes per second that were offered while packets were lost, by losses.
fn sent_at_loss(bins: &[Flow]) -> f64 {
    let offered = |bin: &Flow| {
        let came = bin.sent.saturating_sub(bin.lost).max(1) as f64;
        rate_of(bin).max(0.0) * bin.sent as f64 / came
    };
    let weighed: f64 = bins.iter().map(|bin| offered(bin) * bin.lost as f64).sum();
    weighed / packets(bins).1.max(1) as f64
}

/// Whether losses are more even than chance would have them.
fn is_even(bins: &[Flow]) -> bool {
    bins.len() == EVEN_BINS && packets(bins).1 >= EVEN_LOST_MIN && surprise(bins) < EVEN
}

fn has_queue(bin: &Flow) -> bool {
    // What does not fit the return direction may be its jitter as well.
    is_queue(bin.queue, bin) && bin.queue > bin.return_queue
}

fn has_return_queue(bin: &Flow) -> bool {
    is_queue(bin.return_queue, bin) && bin.return_queue >= bin.queue
}

fn is_queue(delay: Duration, bin: &Flow) -> bool {
    delay > (bin.rtt_min / QUEUE_DIVISOR).max(QUEUE_MIN)
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

/// Bursts of losses from which on they hold a window, and bins in a row that are one burst. Reason: slow start runs over once, and the
/// losses of that come within some round trips.
const LOSS_BURSTS_MIN: usize = 2;
const BURST_BINS_MAX: usize = 3;

/// Part of the most that ever came which the last bins bring when losses took nothing.
const HELD: f64 = 0.9;

/// Bins that must show a queue, three of four of them, for it to stand.
const STANDING_BINS: usize = 8;

/// The same of the return direction. Reason: its delay is measured by the reports of a second, and not by one sample.
const RETURN_BINS: usize = 4;

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
