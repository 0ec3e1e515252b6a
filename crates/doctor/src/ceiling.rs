//! Ceiling of a path: what happens to packets without congestion control above its rate.
//!
//! A train at a higher rate than the path carries has one of three fates. A link delays the packets from the first one
//! on, until its queue is full. A shaper lets a burst pass before it delays. A policer drops and does not delay: the
//! bytes that pass in a time t are at most B + R·t. The line through them gives rate and bucket together, and losses
//! of another cause on top change both by their small part only.

use sterna_net::measure::{TrainBin, TrainReport, TrainSpec};

use crate::view::median;

/// Part of the rate of a train below which it was too fast for the path. Reason: a bin of 10 ms of sending may end
/// late.
const SATURATED: f64 = 0.96;

/// Rise of the delay that shows a queue, microseconds. Reason: pauses of a busy host delay single bins, not their
/// median; the shallowest queues of routers hold about as much.
const QUEUE_MIN_US: f64 = 1000.0;

/// Smallest burst of a shaper, bytes. Reason: network cards and routers pass short bursts at the rate of the line too.
const SHAPED_BURST_MIN: f64 = 40_000.0;

/// Shortest burst of a shaper, seconds. Reason: three bins.
const SHAPED_TIME_MIN: f64 = 0.03;

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
        let sent_bps = sent_rate(&train.bins).min(spec.rate_bps as f64 * 1.05);
        let later = &arrived[arrived.len() / 2..];
        let bps = arrival_rate(later)?;
        let (start, rise) = (start(&arrived), rise(&arrived));
        let is_queue = rise > QUEUE_MIN_US;
        let sent: u64 = later.iter().map(|bin| bin.sent_bytes).sum();
        let received: u64 = later.iter().map(|bin| bin.received_bytes).sum();
        let drops = received as f64 / (sent as f64).max(1.0) < SATURATED;
        Some(match (is_queue, drops) {
            (true, _) if bps < sent_bps * SATURATED => Self::queue(&arrived, bps, sent_bps, start, rise),
            (_, true) => {
                let (bps, burst) = line(&train.bins)?;
                Self::Policer { bps, burst: burst.max(0.0) }
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

    fn queue(arrived: &[&TrainBin], bps: f64, sent_bps: f64, start: f64, rise: f64) -> Self {
        let onset_s = onset(arrived, start, rise);
        let burst = onset_s * (sent_bps - bps).max(0.0) / 8.0;
        if onset_s >= SHAPED_TIME_MIN && burst >= SHAPED_BURST_MIN {
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

/// Returns the rate at which bins arrived, bit/s.
fn arrival_rate(bins: &[&TrainBin]) -> Option<f64> {
    let (first, last) = (bins.first()?, bins.last()?);
    let bytes: u64 = bins[1..].iter().map(|bin| bin.received_bytes).sum();
    let time = last.last_arrival_us.saturating_sub(first.last_arrival_us) as f64 / 1e6;
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

/// Returns the time at which the delay begins to rise, seconds: the line through the rising bins, back to the start, but
/// not after the first bin with a delay. Reason: a sender that pauses bends the line.
fn onset(arrived: &[&TrainBin], start: f64, rise: f64) -> f64 {
    let above = |bin: &&TrainBin| bin.delay_min_us as f64 - start;
    let first = arrived.iter().position(|bin| above(bin) > QUEUE_MIN_US).unwrap_or(0);
    let first_s = arrived.get(first).map_or(0.0, |bin| bin.at_us as f64 / 1e6);
    let rising: Vec<(f64, f64)> = arrived
        .iter()
        .take_while(|bin| above(bin) < rise * 0.9)
        .filter(|bin| above(bin) > rise * 0.1)
        .map(|bin| (bin.at_us as f64 / 1e6, above(bin)))
        .collect();
    match fit(&rising) {
        Some((slope, intercept)) if slope > 0.0 => (-intercept / slope).clamp(0.0, first_s),
        // The queue was full within few bins.
        _ => (first_s - 0.01).max(0.0),
    }
}

/// Returns slope (bit/s) and intercept (bytes) of the bytes that had passed by the time of sending, while the path
/// dropped.
fn line(bins: &[TrainBin]) -> Option<(f64, f64)> {
    let mut passed = 0.0;
    let points: Vec<(f64, f64)> = bins
        .iter()
        .zip(bins.iter().skip(1))
        .map(|(bin, next)| {
            passed += bin.received_bytes as f64;
            (next.at_us as f64 / 1e6, passed)
        })
        .collect();
    // The bucket is empty once the path drops as much as later on.
    let half = points.len() / 2;
    let (slope, _) = fit(&points[half..])?;
    let drops = |index: &usize| {
        let window = &bins[*index..(*index + EMPTY_BINS).min(bins.len())];
        let received: u64 = window.iter().map(|bin| bin.received_bytes).sum();
        let sent: u64 = window.iter().map(|bin| bin.sent_bytes).sum();
        let time = 0.01 * window.len() as f64;
        received < sent && (received as f64) < slope * time * EMPTY_PART
    };
    let empty = (0..half).find(drops).unwrap_or(half);
    let (slope, _) = fit(&points[empty..])?;
    // Near the start: later on, losses of another cause wander away from the line.
    let near = &points[empty..(empty + NEAR_BINS).min(points.len())];
    let burst: f64 = near.iter().map(|(at, passed)| passed - slope * at).sum::<f64>() / near.len().max(1) as f64;
    Some((slope * 8.0, burst))
}

/// Bins in a row that show an empty bucket.
const EMPTY_BINS: usize = 4;

/// Bins after the bucket is empty that tell its size.
const NEAR_BINS: usize = 20;

/// Multiple of the later rate below which the bucket is empty.
const EMPTY_PART: f64 = 1.15;

/// Returns slope and intercept of the least squares line.
fn fit(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let count = points.len() as f64;
    if points.len() < 3 {
        return None;
    }
    let (x, y) = points.iter().fold((0.0, 0.0), |(x, y), point| (x + point.0 / count, y + point.1 / count));
    let xx: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    let xy: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    (xx > 0.0).then(|| (xy / xx, y - xy / xx * x))
}
