//! Cause of a congestion window's size: it still grows, the path or its return direction is full, packets are lost, or
//! a policer drops them.
//!
//! All lanes of a path are judged together, since together they fill it. Several flows through one policer each look
//! like random loss, and their sum does not. The published passive test finds 12 % of such flows.

use std::collections::VecDeque;
use std::time::Duration;

use crate::{BitRate, ByteCount};

/// Events on a path in one interval, all lanes together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Flow {
    /// Length of the interval.
    pub time: Duration,
    /// Packets sent, repeats included.
    pub sent: u64,
    /// Packets lost, or sent again.
    pub lost: u64,
    /// Bytes delivered.
    pub delivered: u64,
    /// Delay above the smallest round-trip time, mean of the lanes, without the delay of the return direction.
    pub queue: Duration,
    /// Delay of the return direction, as a part of the delay above the smallest round-trip time.
    pub return_queue: Duration,
    /// Smallest round-trip time of the lanes.
    pub rtt_min: Duration,
    /// True if a lane yields to loss, as cubic and reno do; bbr and our rate control keep their rate at some loss.
    pub yields_to_loss: bool,
    /// True if no lane has cut its window yet.
    pub is_growing: bool,
    /// True if every lane opens its window until it loses packets. While it has lost none, it is unknown whether it
    /// fills the path.
    pub grows_until_loss: bool,
}

/// Cause of a congestion window's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowCause {
    /// The window has not been cut yet.
    Growing,
    /// A queue persists before the path: the path carries no more.
    Queue,
    /// The path carries no more, but no queue shows it.
    Full,
    /// The return direction is full: acknowledgements are delayed there.
    AckPath,
    /// Packets were lost without a queue.
    Loss,
    /// Packets above a rate were dropped without a queue.
    Policer,
}

/// Rate of a policer: payload of TCP lanes, whole packets of QUIC lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicedRate {
    /// Delivery rate while the sender stayed above the policer's rate.
    Exact(BitRate),
    /// Highest delivery rate between losses. A sender whose packets come in bursts loses packets at any mean rate if a
    /// burst is larger than the token bucket. The exact rate of the policer is then unknown.
    AtLeast(BitRate),
}

/// History of a path over the last seconds.
#[derive(Clone, Debug, Default)]
pub struct PathHistory {
    bins: VecDeque<Flow>,
    open: Flow,
    kept: Option<WindowCause>,
}

impl PathHistory {
    /// Adds an interval; returns the cause of the window's size now.
    pub fn add(&mut self, flow: &Flow) -> WindowCause {
        self.fill(flow);
        let cause = self.judge(flow);
        match cause {
            // The return direction is no limit any more once its queue is gone.
            WindowCause::Growing | WindowCause::AckPath => {}
            WindowCause::Queue => self.kept = Some(WindowCause::Full),
            WindowCause::Full | WindowCause::Loss | WindowCause::Policer => self.kept = Some(cause),
        }
        cause
    }

    /// Returns the delivery rate of the last seconds.
    pub fn rate(&self) -> BitRate {
        let time: Duration = self.bins.iter().map(|bin| bin.time).sum();
        let bytes: u64 = self.bins.iter().map(|bin| bin.delivered).sum();
        BitRate::mean(ByteCount(bytes), time)
    }

    /// Returns the rate of the policer as far as it is known; valid only if there is one.
    pub fn policed(&self) -> PolicedRate {
        let latest = self.latest_lossy();
        if is_even(&latest) {
            let (bytes, time) = sums(&latest);
            return PolicedRate::Exact(BitRate::mean(ByteCount(bytes), time));
        }
        PolicedRate::AtLeast(self.rate_between_losses())
    }

    /// Returns the highest delivery rate between two losses. The bucket of a policer is empty at both losses, so at
    /// most its rate has passed between them, for any size of the bucket. The rate is exact if the bucket was never
    /// full. The first loss may be at the beginning of its bin: the time of that bin counts, its bytes do not.
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

    /// Returns the rate of a full path: half of the bytes arrived at this rate or above. Reason for weights by bytes:
    /// the ramp-up, and an end with little data, are bins like others.
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

    /// Collects intervals into bins of a round trip, so that sent, lost and acknowledged packets of a bin belong
    /// together.
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
        // A growing window, or a search for the rate, is expected to cause losses.
        if flow.is_growing && lost >= LOST_MIN {
            return WindowCause::Growing;
        }
        if lost < LOST_MIN {
            return match self.kept {
                // A window that grows until it loses packets is not full while it has neither losses nor a queue.
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
            // One overshoot: it cost nothing, or the window grows back.
            true if !self.holds_its_rate() => WindowCause::Growing,
            true | false => WindowCause::Full,
        };
        match (self.pattern(), self.kept) {
            (LossPattern::OfPolicer, _) => WindowCause::Policer,
            // The last clear pattern is valid until the next clear one.
            (LossPattern::Unclear, Some(WindowCause::Policer)) => WindowCause::Policer,
            (LossPattern::Unclear | LossPattern::Random, _) => lossy,
        }
    }

    fn packets(&self) -> (u64, u64) {
        let bins: Vec<Flow> = self.bins.iter().copied().collect();
        packets(&bins)
    }

    /// Returns true if most of the last `count` bins had such a queue.
    fn stands(&self, has_queue: impl Fn(&Flow) -> bool, count: usize) -> bool {
        let latest: Vec<&Flow> = self.bins.iter().rev().take(count).collect();
        latest.len() == count && latest.iter().filter(|bin| has_queue(bin)).count() * 4 >= count * 3
    }

    /// Returns the bins with a queue or directly after one (`wanted` true), or the others. Reason: a queue that
    /// overflowed drains before its losses are known.
    fn bins_with_queue(&self, wanted: bool) -> Vec<Flow> {
        let queued: Vec<bool> = self.bins.iter().map(has_queue).collect();
        let near = |index: usize| queued[index.saturating_sub(1)..=index].contains(&true);
        self.bins.iter().enumerate().filter(|(index, _)| near(*index) == wanted).map(|(_, bin)| *bin).collect()
    }

    /// Returns the packets lost in bins with a queue.
    fn lost_with_queue(&self) -> u64 {
        self.bins_with_queue(true).iter().map(|bin| bin.lost).sum()
    }

    /// Returns the number of loss bursts. Losses in consecutive bins are one burst.
    fn bursts(&self) -> usize {
        let is_lossy: Vec<bool> = self.bins.iter().map(|bin| bin.lost > 0).collect();
        let begins = is_lossy.windows(2).filter(|pair| !pair[0] && pair[1]).count()
            + usize::from(is_lossy.first() == Some(&true));
        // Losses that never stop for a bin are many bursts.
        begins.max(is_lossy.iter().filter(|is_lossy| **is_lossy).count() / BURST_BINS_MAX)
    }

    /// Returns true if the last bins have nearly the highest rate of the history.
    fn holds_its_rate(&self) -> bool {
        let latest: Vec<f64> = self.bins.iter().rev().take(RISING_BINS).map(rate_of).collect();
        mean(&latest) > self.rate_carried() * HELD
    }

    /// Returns the last bins without a queue that can show whether losses are even.
    fn latest_lossy(&self) -> Vec<Flow> {
        let all = self.bins_with_queue(false);
        all[all.len().saturating_sub(EVEN_BINS)..].to_vec()
    }

    /// Returns true if the last bin has a higher rate than the bins before it, or if there are too few bins.
    fn rate_rises(&self) -> bool {
        let latest: Vec<f64> = self.bins.iter().rev().take(RISING_BINS).map(rate_of).collect();
        latest.len() < RISING_BINS || latest[0] > mean(&latest[1..]) * RISING
    }

    /// Compares the spread of losses over the bins with random losses, which come one by one at any rate.
    ///
    /// A policer drops in bursts, when its bucket is empty, and only while the send rate is at least the highest
    /// delivery rate. If the sender stays above the policer's rate, the policer drops all packets above it. Then each
    /// bin has the same number of losses, much more evenly than by chance.
    ///
    /// A policer has no queue: losses in bins with a queue, or directly after one, belong to the queue.
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

    /// Returns the 95th percentile of the bin rates, bytes per second.
    fn rate_carried(&self) -> f64 {
        let mut rates: Vec<f64> = self.bins.iter().map(rate_of).collect();
        rates.sort_by(f64::total_cmp);
        rates.get((rates.len() as f64 * 0.95) as usize).copied().unwrap_or(0.0)
    }
}

/// Cause of losses, by their spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LossPattern {
    Random,
    OfPolicer,
    Unclear,
}

/// Returns the mean squared deviation of losses from their expectation, in variances of random losses: about 1 for
/// random losses. The expectation of a bin follows from the mean loss of all bins.
fn surprise(bins: &[Flow]) -> f64 {
    let (sent, lost) = packets(bins);
    let share = lost as f64 / sent.max(1) as f64;
    let of_bin = |bin: &Flow| {
        let expected = bin.sent as f64 * share;
        (bin.lost as f64 - expected).powi(2) / (expected * (1.0 - share)).max(1.0)
    };
    mean(&bins.iter().map(of_bin).collect::<Vec<f64>>())
}

/// Returns the packets sent, and the lost ones among them.
fn packets(bins: &[Flow]) -> (u64, u64) {
    bins.iter().fold((0, 0), |(sent, lost), bin| (sent + bin.sent, lost + bin.lost))
}

/// Returns the bytes delivered, and the time that they took.
fn sums(bins: &[Flow]) -> (u64, Duration) {
    bins.iter().fold((0, Duration::ZERO), |(bytes, time), bin| (bytes + bin.delivered, time + bin.time))
}

/// Returns the bytes per second offered while packets were lost, weighted by losses.
fn sent_at_loss(bins: &[Flow]) -> f64 {
    let offered = |bin: &Flow| {
        let came = bin.sent.saturating_sub(bin.lost).max(1) as f64;
        rate_of(bin).max(0.0) * bin.sent as f64 / came
    };
    let weighed: f64 = bins.iter().map(|bin| offered(bin) * bin.lost as f64).sum();
    weighed / packets(bins).1.max(1) as f64
}

/// Returns true if losses are more even than by chance.
fn is_even(bins: &[Flow]) -> bool {
    bins.len() == EVEN_BINS && packets(bins).1 >= EVEN_LOST_MIN && surprise(bins) < EVEN
}

fn has_queue(bin: &Flow) -> bool {
    // Delay that does not belong to the return direction may still be jitter of that direction.
    is_queue(bin.queue, bin) && bin.queue > bin.return_queue
}

fn has_return_queue(bin: &Flow) -> bool {
    is_queue(bin.return_queue, bin) && bin.return_queue >= bin.queue
}

fn is_queue(delay: Duration, bin: &Flow) -> bool {
    delay > (bin.rtt_min / QUEUE_DIVISOR).max(QUEUE_MIN)
}

/// Returns bytes per second.
fn rate_of(bin: &Flow) -> f64 {
    bin.delivered as f64 / bin.time.as_secs_f64().max(1e-9)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Shortest bin; a round trip if that is longer. Reason: shorter ones hold few packets of slow lanes.
const BIN_MIN: Duration = Duration::from_millis(200);

/// Shortest history. Reason: cubic cuts its window about every 5 s on a path of 100 ms.
const HISTORY: Duration = Duration::from_secs(8);
/// Shortest history in round trips.
const HISTORY_ROUNDS: u32 = 30;

/// Losses below which there is no evidence.
const LOST_MIN: u64 = 3;

/// Bursts of losses from which they limit a window. Reason: slow start overshoots once.
const LOSS_BURSTS_MIN: usize = 2;
/// Consecutive bins of one burst, at most. Reason: the losses of slow start come within some round trips.
const BURST_BINS_MAX: usize = 3;

/// Part of the highest rate that the last bins reach if losses cost nothing.
const HELD: f64 = 0.9;

/// Bins that show a persistent queue: three of four of them must have a queue.
const STANDING_BINS: usize = 8;

/// The same for the return direction. Reason: its delay comes from the reports of a second, not from one sample.
const RETURN_BINS: usize = 4;

/// Bins that show whether the rate still rises.
const RISING_BINS: usize = 5;
/// Ratio of the last bin's rate to the others' mean from which the rate rises.
const RISING: f64 = 1.1;

/// Divisor of the smallest round-trip time: a longer delay counts as a queue.
const QUEUE_DIVISOR: u32 = 8;
/// Lower bound of that delay. Reason: busy hosts delay by some milliseconds (2 to 5 at a load of 5 on two cores,
/// bench/runs/2026-11-21-vm-limits).
const QUEUE_MIN: Duration = Duration::from_millis(5);

/// Bins below which bursts cannot be detected.
const POLICED_BINS_MIN: usize = 3;
/// Losses below which bursts cannot be detected (Flach et al., SIGCOMM 2016, require 15 too).
const POLICED_LOST_MIN: u64 = 15;

/// Value of [`surprise`] from which losses come in bursts: 1 for random losses, some tens behind a policer.
const BURSTS: f64 = 4.0;

/// Value of [`surprise`] below which losses are too even to be random, in [`EVEN_BINS`] bins with [`EVEN_LOST_MIN`]
/// losses. Reason: fifteen bins of random losses are as even once in a thousand times.
const EVEN: f64 = 0.25;
const EVEN_BINS: usize = 15;
const EVEN_LOST_MIN: u64 = 150;

/// Bins from which losses may count as random.
const RANDOM_BINS_MIN: usize = 10;

/// Smallest part of the bins that must be quiet. Reason: between two bursts a policer drops nothing. If random losses
/// come meanwhile, the bursts belong to a queue that overflowed.
const QUIET: f64 = 0.2;
/// Divisor of the mean loss below which a bin is quiet.
const QUIET_DIVISOR: f64 = 4.0;

/// Offered rate at losses, as a part of the path's rate, at least. Reason: a policer drops only packets above its rate.
const NEAR_CARRIED: f64 = 0.8;
