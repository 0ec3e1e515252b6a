//! Division of a path's rate among its lanes.

use std::time::{Duration, Instant};

use crate::BitRate;

/// Identifier of a lane on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaneKey(usize);

/// Divides the rate of a path among the lanes with data to send, and keeps the sum below a ceiling.
///
/// Each lane reports its bytes on the wire and receives its current rate. Lanes share the rate equally. The unused part
/// of a share goes to the lanes that use theirs. A lane that stops sending loses its share within [`ACTIVE_FOR`]. So
/// one lane with data beside seven that send only window updates has nearly all of the rate. An account of all bytes
/// (repeats, acknowledgements and handshakes included) corrects the errors of pacing: late wake-ups are caught up,
/// overdrafts are paid back.
///
/// Promise: over any second all lanes together send at most the ceiling. Cost: one pass over the lanes every
/// [`RECOUNT_AFTER`], otherwise O(1) per call.
#[derive(Debug)]
pub(super) struct RateBudget {
    ceiling: Option<BitRate>,
    lanes: Vec<Option<LaneShare>>,
    active: usize,
    /// Number of lanes that use their share.
    busy: usize,
    /// Send rate of the other active lanes, bytes/s.
    light_bytes: f64,
    counted_at: Option<Instant>,
    /// Bytes that may be sent at once; negative when overdrawn.
    credit_bytes: f64,
    credited_at: Option<Instant>,
    second: LastSecond,
}

/// Bytes that a lane has sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    /// Bytes on the wire.
    pub(super) wire_bytes: u64,
    /// Part of these bytes that is charged to the rate.
    pub(super) charged: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct LaneShare {
    last_sent: Option<Instant>,
    /// Bytes since the lanes were last counted.
    uncounted: u64,
    /// Average send rate of the lane, bytes/s.
    sends: f64,
}

impl LaneKey {
    /// Returns the index among the lanes of the path; it is used again once the lane has left.
    pub(super) fn index(self) -> usize {
        self.0
    }
}

impl RateBudget {
    /// Returns a budget of at most `ceiling` on the wire.
    pub(super) fn new(ceiling: Option<BitRate>) -> Self {
        Self {
            ceiling,
            lanes: Vec::new(),
            active: 0,
            busy: 0,
            light_bytes: 0.0,
            counted_at: None,
            credit_bytes: 0.0,
            credited_at: None,
            second: LastSecond::default(),
        }
    }

    /// Changes the ceiling; lanes follow with their next packet.
    pub(super) fn set_ceiling(&mut self, ceiling: Option<BitRate>) {
        self.ceiling = ceiling;
        self.credit_bytes = self.credit_bytes.min(0.0);
    }

    /// Adds a new lane.
    pub(super) fn join(&mut self) -> LaneKey {
        let lane = Some(LaneShare::default());
        self.counted_at = None;
        if let Some(free) = self.lanes.iter().position(Option::is_none) {
            self.lanes[free] = lane;
            return LaneKey(free);
        }
        self.lanes.push(lane);
        LaneKey(self.lanes.len() - 1)
    }

    /// Removes a lane; its share is free at once.
    pub(super) fn leave(&mut self, key: LaneKey) {
        if let Some(lane) = self.lanes.get_mut(key.0) {
            *lane = None;
        }
        self.counted_at = None;
    }

    /// Records the bytes that lane `key` has put on the wire.
    pub(super) fn handle_sent(&mut self, key: LaneKey, now: Instant, sent: Sent) {
        let Some(Some(lane)) = self.lanes.get_mut(key.0) else { return };
        if lane.last_sent.is_none() {
            self.counted_at = None;
        }
        lane.last_sent = Some(now);
        lane.uncounted += sent.wire_bytes;
        self.credit_bytes -= sent.charged as f64;
        self.second.add(now, sent.wire_bytes);
    }

    /// Returns the share of lane `key` in `rate`: its target rate, and the basis of its window. The correction of
    /// [`RateBudget::pacing`] is not included.
    pub(super) fn share(&mut self, key: LaneKey, now: Instant, rate: BitRate) -> BitRate {
        self.recount(now, rate);
        let Some(lane) = self.lanes.get(key.0).copied().flatten() else { return BitRate(0) };
        // A lane that has not sent yet is about to: it counts itself in.
        let idle = lane.last_sent.is_none_or(|at| now.saturating_duration_since(at) > active_for(rate, self.active));
        let sharing = (self.active + usize::from(idle)).max(1);
        let equal = self.usable(rate) / sharing as f64;
        if idle || !is_busy(lane.sends, equal / 8.0) {
            return BitRate(equal as u64);
        }
        let left = (self.usable(rate) - self.light_bytes * 8.0 * LIGHT_RESERVE) / self.busy.max(1) as f64;
        BitRate(equal.max(left) as u64)
    }

    /// Returns the factor for the pace of every lane, so that all lanes together send `rate` and never exceed the
    /// ceiling.
    pub(super) fn pacing(&mut self, now: Instant, rate: BitRate) -> f64 {
        let bytes_per_second = self.usable(rate) / 8.0;
        let credit_max = (bytes_per_second * CREDIT.as_secs_f64()).max(CREDIT_LEAST);
        if let Some(before) = self.credited_at {
            let elapsed = now.saturating_duration_since(before).as_secs_f64();
            self.credit_bytes = (self.credit_bytes + elapsed * bytes_per_second).min(credit_max);
        }
        self.credited_at = Some(now);
        let correction = self.credit_bytes / (bytes_per_second * CORRECT_WITHIN.as_secs_f64()).max(CORRECT_LEAST);
        if self.ceiling.is_some_and(|ceiling| self.second.bytes(now) as f64 > ceiling.0 as f64 * FULL_SECOND / 8.0) {
            // Catching up after a stall would put the data of two intervals at full rate into one second.
            return (FULL_PACKET_BYTES / bytes_per_second.max(1.0) / FULL_WAIT.as_secs_f64())
                .clamp(PACING_FULL, PACING_FULL_MAX);
        }
        (1.0 + correction).clamp(PACING_MIN, PACING_MAX)
    }

    /// Returns the bit/s that all lanes together may aim at: `rate`, but slightly below the ceiling.
    fn usable(&self, rate: BitRate) -> f64 {
        self.ceiling.map_or(rate.0 as f64, |ceiling| (rate.0 as f64).min(ceiling.0 as f64 * USABLE))
    }

    /// Returns the lane that sends most, if it sends many times as much as lane `key`.
    pub(super) fn far_busier(&self, key: LaneKey) -> Option<LaneKey> {
        let sends = |lane: &Option<LaneShare>| lane.as_ref().map_or(0.0, |lane| lane.sends);
        let least = sends(self.lanes.get(key.0)?) * FAR_BUSIER;
        let others = self.lanes.iter().enumerate().map(|(index, lane)| (sends(lane), LaneKey(index)));
        others.filter(|(sends, _)| *sends > least).max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, key)| key)
    }

    /// Returns the number of lanes with data to send, as last counted.
    pub(super) fn active(&self) -> usize {
        self.active
    }

    /// Counts the lanes with data to send, at most once every [`RECOUNT_AFTER`].
    fn recount(&mut self, now: Instant, rate: BitRate) {
        if self.counted_at.is_some_and(|at| now.saturating_duration_since(at) < RECOUNT_AFTER) {
            return;
        }
        let active_for = active_for(rate, self.active);
        let elapsed = self.counted_at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.counted_at = Some(now);
        let weight = (elapsed.as_secs_f64() / active_for.as_secs_f64()).min(1.0);
        for lane in self.lanes.iter_mut().flatten().filter(|_| !elapsed.is_zero()) {
            let sent = std::mem::take(&mut lane.uncounted) as f64 / elapsed.as_secs_f64();
            lane.sends += (sent - lane.sends) * weight;
        }
        let sends =
            |lane: &&LaneShare| lane.last_sent.is_some_and(|at| now.saturating_duration_since(at) <= active_for);
        let active = || self.lanes.iter().flatten().filter(sends);
        let count = active().count();
        let equal = self.usable(rate) / 8.0 / count.max(1) as f64;
        let light = || active().map(|lane| lane.sends).filter(|sends| !is_busy(*sends, equal));
        (self.active, self.busy, self.light_bytes) = (count, count - light().count(), light().sum());
    }
}

/// Returns true if a lane with the send rate `sends` uses its share.
fn is_busy(sends: f64, share: f64) -> bool {
    sends > share * BUSY
}

/// Part of its share from which a lane uses it. Guess: a lane that starts to send gets its own share at once. Until it
/// is counted, the account of the path corrects the excess.
const BUSY: f64 = 0.5;
/// Rate reserved for lanes below [`BUSY`], as a multiple of their send rate. Guess.
const LIGHT_RESERVE: f64 = 1.25;

/// Ratio of send rates at which another lane takes over the trains. Guess: lanes that share a rate differ by less.
const FAR_BUSIER: f64 = 4.0;

/// Returns the time after its last packet for which a lane counts as sending. Longer at rates where a share is few
/// packets.
fn active_for(rate: BitRate, active: usize) -> Duration {
    let packets = rate.time_for(crate::ByteCount(ACTIVE_PACKETS * 1500)).saturating_mul(active.max(1) as u32);
    ACTIVE_FOR.max(packets.min(ACTIVE_FOR_MAX))
}

/// Bytes of the last second, in [`BINS`] bins.
#[derive(Debug)]
struct LastSecond {
    bins: Box<[u64; BINS]>,
    sum: u64,
    /// First instant that was recorded.
    start: Option<Instant>,
    /// Number of the current bin, counted from `start`.
    current: u64,
}

impl Default for LastSecond {
    fn default() -> Self {
        Self { bins: Box::new([0; BINS]), sum: 0, start: None, current: 0 }
    }
}

impl LastSecond {
    fn add(&mut self, now: Instant, bytes: u64) {
        self.advance(now);
        self.bins[(self.current % BINS as u64) as usize] += bytes;
        self.sum += bytes;
    }

    fn bytes(&mut self, now: Instant) -> u64 {
        self.advance(now);
        self.sum
    }

    /// Empties the bins that are older than a second.
    fn advance(&mut self, now: Instant) {
        let start = *self.start.get_or_insert(now);
        let part = now.saturating_duration_since(start).as_millis() as u64 / BIN_MS;
        let passed = part.saturating_sub(self.current).min(BINS as u64);
        for _ in 0..passed {
            self.current += 1;
            let oldest = &mut self.bins[(self.current % BINS as u64) as usize];
            self.sum -= std::mem::take(oldest);
        }
        self.current = self.current.max(part);
    }
}

/// Length of a bin of the last second.
const BIN_MS: u64 = 1;
/// Bins of the last second, and one more because the first and the last are incomplete. Reason: the observed time is at
/// most 1.001 s. This excess of 0.1 % fits between [`USABLE`] and [`FULL_SECOND`].
const BINS: usize = 1001;

/// Part of the ceiling from which a second counts as full, and pacing slows down.
const FULL_SECOND: f64 = 0.995;

/// Part of the ceiling that pacing aims at. The rest covers the bursts of the pacers (2 to 10 ms each) and [`CREDIT`],
/// so that no second exceeds the ceiling.
const USABLE: f64 = 0.992;

/// Highest credit from a time when nothing could be sent. Reason: late wake-ups of a busy host are of this order.
const CREDIT: Duration = Duration::from_millis(8);

/// Lower bound of that credit, in bytes: at very low rates less would not pay for a packet.
const CREDIT_LEAST: f64 = 3000.0;

/// Time in which a debt or credit is evened out, about.
const CORRECT_WITHIN: Duration = Duration::from_millis(40);

/// Lower bound of the bytes sent in that time. Reason: at rates so low that a packet takes longer, each packet would be
/// a debt that halves the rate until the next. A packet of 9000 bytes must cost three eighths at most.
const CORRECT_LEAST: f64 = 24_000.0;

/// Bounds of the correction of pacing. Guess: enough to catch up 8 ms within 40 ms, and to pay for a handshake quickly.
const PACING_MIN: f64 = 0.25;
const PACING_MAX: f64 = 1.25;

/// Smallest factor on the pace while the last second is full: not zero, so that timers stay short.
const PACING_FULL: f64 = 0.02;
/// Largest factor on the pace while the last second is full. In between, one packet goes within [`FULL_WAIT`]. Reason:
/// at low rates a second holds few packets. It then counts as full only because the measure is coarse, and an empty
/// second must not follow.
const PACING_FULL_MAX: f64 = 0.5;
const FULL_WAIT: Duration = Duration::from_millis(50);
const FULL_PACKET_BYTES: f64 = 1500.0;

/// Time without a packet after which a lane has no data to send (pacers wake at least every 10 ms).
pub(super) const ACTIVE_FOR: Duration = Duration::from_millis(25);

/// The same at low rates: the time of this many packets of the lane, up to [`ACTIVE_FOR_MAX`].
const ACTIVE_PACKETS: u64 = 4;
const ACTIVE_FOR_MAX: Duration = Duration::from_secs(1);

/// Interval of counting the lanes: the delay after which a free share is in use.
const RECOUNT_AFTER: Duration = Duration::from_millis(1);
