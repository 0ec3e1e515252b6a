//! Ceiling of a path: what happens to packets without congestion control above its rate.
//!
//! A train at a higher rate than the path carries has one of three fates. A link delays the packets from the first one
//! on, until its queue is full. A shaper lets a burst pass before it delays. A policer drops and does not delay: the
//! bytes that pass in a time t are at most B + R·t. The line through them gives rate and bucket together, and losses
//! of another cause on top change both by their small part only.

use sterna_net::measure::{TRAIN_BIN, TrainBin, TrainReport, TrainSpec};

use crate::view::median;

/// Part of the rate of a train below which it was too fast for the path. Reason: a bin of 10 ms of sending may end
/// late.
const SATURATED: f64 = 0.96;

/// Bytes that a train may lose by chance. Reason: eight packets; a short train has some dozens.
const CHANCE_BYTES: u64 = 12_000;

/// Rise of the delay that shows a queue, microseconds. Reason: pauses of a busy host delay single bins, not their
/// median; the shallowest queues of routers hold about as much.
const QUEUE_MIN_US: f64 = 1000.0;

/// Part of the missing packets that our own hosts may have dropped. Reason: their drops look like those of a policer.
const OWN_DROPS: f64 = 0.1;

/// Rise of the delay that a shallow queue shows, microseconds. Reason: timestamps of the kernel are exact to some.
const SHALLOW_MIN_US: f64 = 50.0;

/// Part of the bytes of a bucket that a shallow queue must explain by its delay. Reason: packets that wait while one
/// leaves.
const SHALLOW_PART: f64 = 0.5;

/// Smallest burst of a shaper, bytes. Reason: network cards and routers pass short bursts at the rate of the line too.
const SHAPED_BURST_MIN: f64 = 40_000.0;

/// Shortest burst of a shaper, in seconds of its rate. Reason: the rate is known to some per mille of the train.
const SHAPED_TIME_MIN: f64 = 0.02;

/// Behaviour of a path above its rate. Rates count whole IP packets, bit/s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ceiling {
    /// The train passed: the path carries at least this rate.
    AtLeast(f64),
    /// Packets are delayed: the rate of a link, and the longest delay of its queue.
    Link {
        /// Rate.
        bps: f64,
        /// Longest delay, seconds.
        queue_s: f64,
    },
    /// Packets are delayed after a burst.
    Shaper {
        /// Rate after the burst.
        bps: f64,
        /// Rate at which the burst passed, at least.
        peak_bps: f64,
        /// Burst, bytes.
        burst: f64,
    },
    /// Packets are dropped.
    Policer {
        /// Rate.
        bps: f64,
        /// Bucket: tokens at the start of the train, bytes.
        burst: f64,
    },
}

impl Ceiling {
    /// Returns the judgement on a train; `None`: too few packets arrived.
    pub fn of(spec: &TrainSpec, train: &TrainReport) -> Option<Self> {
        let arrived: Vec<&TrainBin> = train.bins.iter().filter(|bin| bin.received > 0).collect();
        if arrived.len() < BINS_MIN {
            return None;
        }
        let missing = train.sent.saturating_sub(train.received);
        let own = train.receiver_drops.saturating_add(train.sender_drops);
        if own as f64 > missing as f64 * OWN_DROPS {
            // Our own hosts were too slow for the train: the path carries what arrived, and maybe more.
            return arrival_rate(&arrived, train).map(Self::AtLeast);
        }
        let sent_bps = sent_rate(&train.bins).min(spec.rate_bps as f64 * 1.05);
        let later = &arrived[arrived.len() / 2..];
        let bps = arrival_rate(later, train)?;
        let (start, rise) = (start(&arrived), rise(&arrived));
        let is_queue = rise > QUEUE_MIN_US;
        let sent: u64 = later.iter().map(|bin| bin.sent_bytes).sum();
        let received: u64 = later.iter().map(|bin| bin.received_bytes).sum();
        let drops = (received as f64) < sent as f64 * SATURATED && sent - received.min(sent) > CHANCE_BYTES;
        Some(match (is_queue, drops) {
            (true, _) if bps < sent_bps * SATURATED => Self::queue(&train.bins, bps, sent_bps, start, rise),
            (_, true) => {
                let (bps, burst) = bucket(&train.bins)?;
                // A shallow queue holds what looks like a bucket, and delays by as much.
                let queue = rise / 1e6 * bps / 8.0;
                match rise > SHALLOW_MIN_US && queue >= burst * SHALLOW_PART {
                    true => Self::Link { bps, queue_s: rise / 1e6 },
                    false => Self::Policer { bps, burst: burst.max(0.0) },
                }
            }
            _ => Self::AtLeast(bps.max(sent_bps * SATURATED)),
        })
    }

    /// Returns the rate up to which the path carries, whole packets.
    pub fn bps(self) -> f64 {
        match self {
            Self::AtLeast(bps) | Self::Link { bps, .. } | Self::Shaper { bps, .. } | Self::Policer { bps, .. } => bps,
        }
    }

    /// Returns true if the rate of the path is known, not only a bound.
    pub fn is_reached(self) -> bool {
        !matches!(self, Self::AtLeast(_))
    }

    fn queue(bins: &[TrainBin], bps: f64, sent_bps: f64, start: f64, rise: f64) -> Self {
        let burst = undelayed(bins, bps, start, rise);
        if burst >= SHAPED_BURST_MIN.max(bps / 8.0 * SHAPED_TIME_MIN) {
            return Self::Shaper { bps, peak_bps: sent_bps, burst };
        }
        Self::Link { bps, queue_s: rise / 1e6 }
    }
}

/// Smallest number of bins that show a ceiling. Reason: half of them are the start.
const BINS_MIN: usize = 8;

/// Bins at the start whose delay is that of an empty queue.
const START_BINS: usize = 2;

/// Returns the rate of sending, bit/s.
fn sent_rate(bins: &[TrainBin]) -> f64 {
    let (Some(first), Some(last)) = (bins.first(), bins.last()) else { return 0.0 };
    // The last bin may be short.
    let bytes: u64 = bins[..bins.len() - 1].iter().map(|bin| bin.sent_bytes).sum();
    bytes as f64 * 8.0 / (last.at_us.saturating_sub(first.at_us) as f64 / 1e6).max(1e-3)
}

/// Returns the rate at which bins of a train arrived, bit/s.
fn arrival_rate(bins: &[&TrainBin], train: &TrainReport) -> Option<f64> {
    let (first, last) = (bins.first()?, bins.last()?);
    // The last packet of a bin may be late by far more than the bin; one of its packets is not late.
    let is_late = train.reorder_extent_us as f64 > BIN_S * 1e6;
    let in_time = |bin: &TrainBin| match is_late {
        true => bin.at_us.saturating_add_signed(bin.delay_min_us),
        false => bin.last_arrival_us,
    };
    // From the first packets of bins, or from the last ones.
    let between = if is_late { &bins[..bins.len() - 1] } else { &bins[1..] };
    let bytes: u64 = between.iter().map(|bin| bin.received_bytes).sum();
    let time = in_time(last).saturating_sub(in_time(first)) as f64 / 1e6;
    (time > 0.0).then(|| bytes as f64 * 8.0 / time)
}

fn delay(bins: &[&TrainBin]) -> f64 {
    median(bins.iter().map(|bin| bin.delay_min_us as f64).collect())
}

/// Returns the rise of the delay from the start to the last quarter, microseconds.
fn rise(arrived: &[&TrainBin]) -> f64 {
    let end = &arrived[arrived.len() * 3 / 4..];
    delay(end) - start(arrived)
}

/// Returns the delay of the empty queue: a shallow one is full within a bin.
fn start(arrived: &[&TrainBin]) -> f64 {
    arrived.iter().take(START_BINS).map(|bin| bin.delay_min_us as f64).fold(f64::INFINITY, f64::min)
}

/// Returns the bytes that passed above the rate without delay: what a link of this rate would hold in its queue, less
/// what the delays show, while the queue fills. The queue follows from the bytes as they were sent, so a sender that
/// pauses changes nothing.
fn undelayed(bins: &[TrainBin], bps: f64, start: f64, rise: f64) -> f64 {
    let (bytes_per_us, mut queue) = (bps / 8e6, 0.0);
    let mut surplus = Vec::new();
    for (bin, next) in bins.iter().zip(bins.iter().skip(1)) {
        let before = queue;
        let time_us = next.at_us.saturating_sub(bin.at_us) as f64;
        queue = f64::max(queue + bin.sent_bytes as f64 - bytes_per_us * time_us, 0.0);
        let delay = bin.delay_mean_us as f64 - start;
        if bin.received == 0 || delay < rise * 0.1 {
            continue;
        }
        if delay > rise * 0.9 {
            break;
        }
        surplus.push(f64::midpoint(before, queue) - delay * bytes_per_us);
    }
    match surplus.is_empty() {
        // The queue was full within a bin: a shaper shows what it let pass before.
        true => bins
            .iter()
            .take_while(|bin| (bin.delay_mean_us as f64) < start + rise * 0.5)
            .fold(0.0, |held, bin| f64::max(held + bin.sent_bytes as f64 - bytes_per_us * BIN_S * 1e6, 0.0)),
        false => median(surplus).max(0.0),
    }
}

/// Returns the rate (bit/s) and the bucket (bytes) of a policer. Once the bucket is empty, the bytes that passed by a
/// time t are B + R·t, less the tokens that overflow while the sender pauses.
fn bucket(bins: &[TrainBin]) -> Option<(f64, f64)> {
    let half = bins.len() / 2;
    // The last bin may be short.
    let received =
        |from: usize| -> f64 { bins[from..bins.len() - 1].iter().map(|bin| bin.received_bytes as f64).sum() };
    let time = |from: usize| (bins.len() - 1 - from) as f64 * BIN_S;
    // The bucket is empty once the path drops about the part that it drops later on. The bytes that pass do not show
    // it: a sender that pauses has fewer of them too.
    let share = received(half) / bins[half..bins.len() - 1].iter().map(|bin| bin.sent_bytes as f64).sum::<f64>();
    let packets: u64 = bins.iter().map(|bin| u64::from(bin.sent)).sum();
    let width = (EMPTY_PACKETS * bins.len()).div_ceil(usize::try_from(packets).unwrap_or(usize::MAX).max(1));
    let width = width.max(EMPTY_BINS);
    let drops = |index: &usize| {
        let window = &bins[*index..(*index + width).min(bins.len())];
        let received: u64 = window.iter().map(|bin| bin.received_bytes).sum();
        let sent: u64 = window.iter().map(|bin| bin.sent_bytes).sum();
        (received as f64) < sent as f64 * f64::midpoint(share, 1.0)
    };
    let empty = (0..half).find(drops).unwrap_or(half);
    // Its last bin drops: the bucket is empty there.
    let is_lossy = |index: &usize| bins[*index].received_bytes < bins[*index].sent_bytes;
    let end = (empty..(empty + width).min(bins.len() - 1)).rfind(is_lossy)?;
    // A router that pauses gives the bytes of one bin to a later one, so several ends are asked: until the sender
    // pauses, and the bucket fills.
    let sent = median(bins.iter().map(|bin| bin.sent_bytes as f64).collect());
    let most = (end + ENDS).min(half.max(end + 1));
    let ends = (end..most).take_while(|at| *at == end || bins[*at].sent_bytes as f64 >= sent * PAUSED);
    let ends: Vec<usize> = ends.collect();
    let bucket_at = |end: usize, rate: f64| {
        let start = &bins[..=end];
        let passed: f64 = start.iter().map(|bin| bin.received_bytes as f64).sum();
        solve(0.0, passed, |burst| passed_by(start, rate, burst, burst) < passed)
    };
    let mut rate = received(end + 1) / time(end + 1);
    let mut burst = 0.0;
    for _ in 0..FITS {
        burst = median(ends.iter().map(|end| bucket_at(*end, rate)).collect());
        let later = &bins[end + 1..bins.len() - 1];
        rate = solve(rate * 0.7, rate * 1.5, |rate| passed_by(later, rate, burst, 0.0) < received(end + 1));
    }
    Some((rate * 8.0, burst)).filter(|(rate, _)| *rate > 0.0)
}

/// Ends of the start of a train for which the bucket is computed.
const ENDS: usize = 5;

/// Part of the usual bytes of a bin below which its sender paused.
const PAUSED: f64 = 0.5;

/// Returns the value between two at which a condition that holds below it ends.
fn solve(mut least: f64, mut most: f64, is_below: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(least, most);
        if is_below(middle) { least = middle } else { most = middle }
    }
    f64::midpoint(least, most)
}

/// Returns the bytes that pass a bucket that has some tokens at first.
fn passed_by(bins: &[TrainBin], rate: f64, burst: f64, mut tokens: f64) -> f64 {
    let mut passed = 0.0;
    for bin in bins {
        let there = tokens + rate * BIN_S;
        let now = there.min(bin.sent_bytes as f64);
        passed += now;
        tokens = (there - now).min(burst);
    }
    passed
}

/// Length of a bin, seconds.
const BIN_S: f64 = TRAIN_BIN.as_micros() as f64 / 1e6;

/// Turns of the fit of rate and bucket. Reason: each depends on the other by the pauses of the sender only.
const FITS: usize = 12;

/// Halvings of the interval of the rate: to a part in 10^6.
const HALVINGS: usize = 20;

/// Bins in a row that show an empty bucket.
const EMPTY_BINS: usize = 4;

/// Packets that show an empty bucket. Reason: a chance loss of one of five would look like it.
const EMPTY_PACKETS: usize = 20;
