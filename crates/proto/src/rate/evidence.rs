//! Evidence about a path from acknowledgements: batches of one lane, rounds of all lanes.

use std::time::{Duration, Instant};

/// Acknowledgements and losses of one lane since its last report, for packets of the current epoch.
#[derive(Clone, Copy, Debug)]
pub struct AckBatch {
    /// Epoch in which the packets were sent; see [`super::Terms`].
    pub(super) epoch: u64,
    pub(super) acked_packets: u64,
    pub(super) lost_packets: u64,
    /// Packets of any epoch.
    pub(super) of_any_epoch: Losses,
    /// Acknowledged bytes on the wire.
    pub(super) bytes: u64,
    /// Send time of the newest acknowledged packet.
    pub(super) last_sent: Option<Instant>,
    /// Smallest round-trip time of all acknowledged packets, of older epochs too.
    pub(super) rtt_min: Option<Duration>,
    /// Latest round-trip time of all acknowledged packets.
    pub(super) rtt_latest: Option<Duration>,
    /// Smallest round-trip time of the packets of this epoch.
    pub(super) round_rtt_min: Duration,
    /// True if the last packet of the lane's train, or a later one, is acknowledged.
    pub(super) is_train_passed: bool,
    /// True if the lane's train had a pause because the lane had no data.
    pub(super) is_train_broken: bool,
    /// True if the lane received no acknowledgement for so long that packets in flight are no evidence.
    pub(super) is_after_silence: bool,
    /// True if the lane received nothing for longer than acknowledgements are delayed: a host stalled, and these piled
    /// up.
    pub(super) is_after_gap: bool,
    /// True if the lane had no data to send meanwhile.
    pub(super) is_app_limited: bool,
}

impl AckBatch {
    pub(super) fn of_epoch(epoch: u64) -> Self {
        Self {
            epoch,
            acked_packets: 0,
            lost_packets: 0,
            of_any_epoch: Losses::default(),
            bytes: 0,
            last_sent: None,
            rtt_min: None,
            rtt_latest: None,
            round_rtt_min: Duration::MAX,
            is_train_passed: false,
            is_train_broken: false,
            is_after_silence: false,
            is_after_gap: false,
            is_app_limited: false,
        }
    }
}

/// Packets with a known fate, and the lost ones among them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Losses {
    pub(super) packets: f64,
    pub(super) lost: f64,
}

impl Losses {
    pub(super) fn fraction(&self) -> f64 {
        self.lost / self.packets.max(1.0)
    }

    /// Returns true if the losses exceed `noise` by more than chance: three standard deviations and one packet.
    pub(super) fn exceeds(&self, noise: f64) -> bool {
        let expected = self.packets * noise;
        self.lost > expected + 3.0 * expected.sqrt() + 1.0
    }

    /// Adds the later losses `later`, and lets older ones fade.
    pub(super) fn add(&mut self, later: Losses) {
        self.packets = self.packets * FADES + later.packets;
        self.lost = self.lost * FADES + later.lost;
    }
}

/// Weight of older evidence after each round: about ten rounds count. Guess.
const FADES: f64 = 0.9;

/// Evidence of one epoch since the last verdict, over all lanes.
#[derive(Clone, Debug)]
pub(super) struct Round {
    lanes: Vec<LaneRound>,
    /// Acknowledged bytes of all lanes.
    pub(super) bytes: u64,
    pub(super) losses: Losses,
    pub(super) rtt_min: Duration,
    /// Smallest RTT of the last moments of the round.
    rtt_late: MinimumRtt,
    pub(super) app_limited: bool,
    rounds: u32,
}

/// Part of one lane in a round.
#[derive(Clone, Copy, Debug, Default)]
struct LaneRound {
    /// Time of the first and of the last batch. `bytes` excludes the first batch, so it took `last - first` to arrive.
    span: Option<(Instant, Instant)>,
    /// Send times of the newest packets in the first and in the last batch.
    sent: Option<(Instant, Instant)>,
    /// Time of the first batch after the last gap. The packets that piled up follow at once, but in several batches.
    resumed: Option<Instant>,
    bytes: u64,
}

impl LaneRound {
    fn length(&self) -> Duration {
        self.span.map_or(Duration::ZERO, |(first, last)| last.saturating_duration_since(first))
    }
}

impl Round {
    pub(super) fn new() -> Self {
        Self {
            lanes: Vec::new(),
            bytes: 0,
            losses: Losses::default(),
            rtt_min: Duration::MAX,
            rtt_late: MinimumRtt::default(),
            app_limited: false,
            rounds: 0,
        }
    }

    /// Starts the next round of the same epoch: acknowledgements from now on, with no gap before them.
    pub(super) fn next(&mut self) {
        for lane in &mut self.lanes {
            let anew = |span: Option<(Instant, Instant)>| span.map(|(_, last)| (last, last));
            *lane = LaneRound { span: anew(lane.span), sent: anew(lane.sent), resumed: None, bytes: 0 };
        }
        (self.bytes, self.losses) = (0, Losses::default());
        (self.rtt_min, self.rtt_late, self.app_limited) = (Duration::MAX, MinimumRtt::default(), false);
        self.rounds += 1;
    }

    /// Returns the rounds of this epoch before this one.
    pub(super) fn before(&self) -> u32 {
        self.rounds
    }

    pub(super) fn add(&mut self, now: Instant, lane: usize, batch: &AckBatch) {
        if self.lanes.len() <= lane {
            self.lanes.resize(lane + 1, LaneRound::default());
        }
        self.losses.packets += (batch.acked_packets + batch.lost_packets) as f64;
        self.losses.lost += batch.lost_packets as f64;
        self.bytes += batch.bytes;
        self.rtt_min = self.rtt_min.min(batch.round_rtt_min);
        if batch.acked_packets > 0 {
            self.rtt_late.add(now, batch.round_rtt_min, RTT_LATE_KEPT);
        }
        self.app_limited |= batch.is_app_limited;
        if batch.acked_packets == 0 {
            return;
        }
        let lane = &mut self.lanes[lane];
        if batch.is_after_gap {
            lane.resumed = Some(now);
        }
        if let Some(sent) = batch.last_sent {
            lane.sent.get_or_insert((sent, sent)).1 = sent;
        }
        match &mut lane.span {
            None => lane.span = Some((now, now)),
            Some((_, last)) => {
                *last = now;
                lane.bytes += batch.bytes;
            }
        }
    }

    /// Returns the smallest RTT of the round's last 20 to 40 ms; `None` before the first packet.
    pub(super) fn rtt_late(&self) -> Option<Duration> {
        self.rtt_late.value()
    }

    /// Returns the send rate of the arrived bytes, in bytes per second. A host that was late has sent below its rate.
    pub(super) fn sent(&self) -> f64 {
        let rate = |lane: &LaneRound| {
            let time = lane.sent.map_or(Duration::ZERO, |(first, last)| last.saturating_duration_since(first));
            lane.bytes as f64 / time.as_secs_f64().max(1e-6)
        };
        self.of_all(self.lanes.iter().filter(|lane| lane.bytes > 0).map(rate).sum())
    }

    /// Extrapolates `measured`, the sum over lanes with two batches or more, to all lanes. In the first round of an
    /// epoch lanes with one batch count too, since lanes share the rate equally. In later rounds such a lane has no
    /// data to send.
    fn of_all(&self, measured: f64) -> f64 {
        let heard = self.lanes.iter().filter(|lane| lane.span.is_some()).count();
        if self.rounds > 0 { measured } else { measured * heard as f64 / self.lanes().max(1) as f64 }
    }

    /// Returns true if a lane received acknowledgements again after a gap.
    pub(super) fn has_resumed(&self) -> bool {
        self.lanes.iter().any(|lane| lane.resumed.is_some())
    }

    /// Returns true if a lane received acknowledgements again, after a gap, only a moment ago. The round must not end
    /// between the gap and the packets that piled up in it, since a stalled host is not a stalled path.
    pub(super) fn has_just_resumed(&self, now: Instant) -> bool {
        self.lanes.iter().filter_map(|lane| lane.resumed).any(|at| now.saturating_duration_since(at) < CATCH_UP)
    }

    /// Returns the longest measured time of a lane.
    pub(super) fn length(&self) -> Duration {
        self.lanes.iter().map(LaneRound::length).max().unwrap_or_default()
    }

    /// Returns the number of lanes with a measurement: bytes after their first batch.
    pub(super) fn lanes(&self) -> usize {
        self.lanes.iter().filter(|lane| lane.bytes > 0).count()
    }

    /// Returns the delivery rate of all lanes together, bytes per second.
    pub(super) fn delivered(&self) -> f64 {
        let longest = self.length();
        // Acknowledgements of lanes come at different moments: each lane is measured over its own time. A lane measured
        // for less than half of the round did not send in all of it, unless two acknowledgement delays explain the
        // difference.
        let rate = |lane: &LaneRound| {
            let elapsed = lane.length();
            let is_part = elapsed * 2 < longest && longest.saturating_sub(elapsed) > ACKS_APART * 2;
            let elapsed = if is_part { longest } else { elapsed };
            lane.bytes as f64 / elapsed.as_secs_f64().max(1e-6)
        };
        self.of_all(self.lanes.iter().filter(|lane| lane.bytes > 0).map(rate).sum())
    }
}

/// Minimum RTT over a time window, kept in two halves so that it can rise when the path changes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MinimumRtt {
    current: Option<(Instant, Duration)>,
    previous: Option<Duration>,
}

impl MinimumRtt {
    /// Adds a sample; it counts for one to two times `kept`.
    pub(super) fn add(&mut self, now: Instant, rtt: Duration, kept: Duration) {
        match &mut self.current {
            Some((since, least)) if now.saturating_duration_since(*since) < kept => *least = (*least).min(rtt),
            current => {
                self.previous = current.map(|(_, least)| least);
                *current = Some((now, rtt));
            }
        }
    }

    pub(super) fn value(&self) -> Option<Duration> {
        let current = self.current.map(|(_, least)| least);
        match (current, self.previous) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

/// Time for which an RTT belongs to the last moments of a round. Reason: usually longer than a host is busy with other
/// work.
const RTT_LATE_KEPT: Duration = Duration::from_millis(20);

/// Distance of a lane's acknowledgements (RFC 9000: 25 ms, plus the delay of a host).
const ACKS_APART: Duration = Duration::from_millis(30);

/// Time in which the packets that piled up in a gap are acknowledged.
const CATCH_UP: Duration = Duration::from_millis(20);
