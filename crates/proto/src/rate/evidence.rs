//! What acknowledgements say about a path: batches of one lane, rounds of all lanes.

use std::time::{Duration, Instant};

/// What one lane has heard since it last reported, of packets that it sent since the controller last changed its mind.
#[derive(Clone, Copy, Debug)]
pub struct AckBatch {
    /// The epoch that the packets were sent in; see [`super::Terms`].
    pub(super) epoch: u64,
    pub(super) acked_packets: u64,
    pub(super) lost_packets: u64,
    /// Packets of whatever epoch.
    pub(super) of_any_epoch: Losses,
    /// Acknowledged bytes on the wire.
    pub(super) bytes: u64,
    /// When the last of them to be sent was sent.
    pub(super) last_sent: Option<Instant>,
    /// Smallest and latest round-trip time of every packet acknowledged, also of older ones.
    pub(super) rtt_min: Option<Duration>,
    pub(super) rtt_latest: Option<Duration>,
    /// The smallest of those that count.
    pub(super) round_rtt_min: Duration,
    /// Something behind the lane's train has come.
    pub(super) is_train_passed: bool,
    /// The lane had a pause in its train, since it had nothing to send.
    pub(super) is_train_broken: bool,
    /// The lane had not heard anything for so long that what was in flight says nothing.
    pub(super) is_after_silence: bool,
    /// The lane had not heard anything for longer than acknowledgements wait: some host did nothing, and this piled up.
    pub(super) is_after_gap: bool,
    /// The lane had nothing to send meanwhile.
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

/// Packets that came and that did not.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Losses {
    pub(super) packets: f64,
    pub(super) lost: f64,
}

impl Losses {
    pub(super) fn fraction(&self) -> f64 {
        self.lost / self.packets.max(1.0)
    }

    /// Whether more was lost than `noise` and what chance adds to it: three standard deviations and one packet.
    pub(super) fn exceeds(&self, noise: f64) -> bool {
        let expected = self.packets * noise;
        self.lost > expected + 3.0 * expected.sqrt() + 1.0
    }

    /// Adds what came later, and lets what is older fade.
    pub(super) fn add(&mut self, later: Losses) {
        self.packets = self.packets * FADES + later.packets;
        self.lost = self.lost * FADES + later.lost;
    }
}

/// What is left of older evidence after each round: ten rounds or so count. Guess.
const FADES: f64 = 0.9;

/// What came back of one epoch since the last look, over all lanes.
#[derive(Clone, Debug)]
pub(super) struct Round {
    lanes: Vec<LaneRound>,
    /// Acknowledged bytes of all lanes.
    pub(super) bytes: u64,
    pub(super) losses: Losses,
    pub(super) rtt_min: Duration,
    /// The smallest RTT of its last moments.
    rtt_late: MinimumRtt,
    pub(super) app_limited: bool,
    rounds: u32,
}

/// One lane's part.
#[derive(Clone, Copy, Debug, Default)]
struct LaneRound {
    /// When acknowledgements came: bytes are those later than the first, which took `last - first` to come.
    span: Option<(Instant, Instant)>,
    /// When the last packets of the first and of the last of them were sent.
    sent: Option<(Instant, Instant)>,
    /// When they came again after the last gap: what had piled up meanwhile comes at once, but not in one piece.
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

    /// The next round of the same epoch: what comes from now on, with no gap before it.
    pub(super) fn next(&mut self) {
        for lane in &mut self.lanes {
            let anew = |span: Option<(Instant, Instant)>| span.map(|(_, last)| (last, last));
            *lane = LaneRound { span: anew(lane.span), sent: anew(lane.sent), resumed: None, bytes: 0 };
        }
        (self.bytes, self.losses) = (0, Losses::default());
        (self.rtt_min, self.rtt_late, self.app_limited) = (Duration::MAX, MinimumRtt::default(), false);
        self.rounds += 1;
    }

    /// Rounds of this epoch before this one.
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

    /// The smallest RTT of the last 20 to 40 ms of it; `None` before anything has come.
    pub(super) fn rtt_late(&self) -> Option<Duration> {
        self.rtt_late.value()
    }

    /// Bytes per second at which what arrived had been sent: a host that was late sent less than its rate.
    pub(super) fn sent(&self) -> f64 {
        let rate = |lane: &LaneRound| {
            let time = lane.sent.map_or(Duration::ZERO, |(first, last)| last.saturating_duration_since(first));
            lane.bytes as f64 / time.as_secs_f64().max(1e-6)
        };
        self.of_all(self.lanes.iter().filter(|lane| lane.bytes > 0).map(rate).sum())
    }

    /// What all lanes do, of which those that have been heard twice do `measured`. Lanes share the rate equally; behind the first
    /// round of an epoch one that was not heard again has nothing to send.
    fn of_all(&self, measured: f64) -> f64 {
        let heard = self.lanes.iter().filter(|lane| lane.span.is_some()).count();
        if self.rounds > 0 { measured } else { measured * heard as f64 / self.lanes().max(1) as f64 }
    }

    /// Whether any lane was heard again after a gap.
    pub(super) fn has_resumed(&self) -> bool {
        self.lanes.iter().any(|lane| lane.resumed.is_some())
    }

    /// Whether a lane is heard again, after a gap, for less than a moment: its round is not to end between the gap and what
    /// piled up in it, since a host that stalls is not a path that does.
    pub(super) fn has_just_resumed(&self, now: Instant) -> bool {
        self.lanes.iter().filter_map(|lane| lane.resumed).any(|at| now.saturating_duration_since(at) < CATCH_UP)
    }

    /// How long the longest lane has been heard.
    pub(super) fn length(&self) -> Duration {
        self.lanes.iter().map(LaneRound::length).max().unwrap_or_default()
    }

    /// Lanes that have been heard.
    pub(super) fn lanes(&self) -> usize {
        self.lanes.iter().filter(|lane| lane.bytes > 0).count()
    }

    /// Bytes per second that arrived, of all lanes together.
    pub(super) fn delivered(&self) -> f64 {
        let longest = self.length();
        // Acknowledgements of lanes come at different moments: each is measured over its own time. A lane that was heard
        // for less than half of the round has not sent in all of it, unless two acknowledgements explain what is missing.
        let rate = |lane: &LaneRound| {
            let elapsed = lane.length();
            let is_part = elapsed * 2 < longest && longest.saturating_sub(elapsed) > ACKS_APART * 2;
            let elapsed = if is_part { longest } else { elapsed };
            lane.bytes as f64 / elapsed.as_secs_f64().max(1e-6)
        };
        self.of_all(self.lanes.iter().filter(|lane| lane.bytes > 0).map(rate).sum())
    }
}

/// The smallest RTT of a time, kept in two halves so that it can rise when the path changes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MinimumRtt {
    current: Option<(Instant, Duration)>,
    previous: Option<Duration>,
}

impl MinimumRtt {
    /// Adds one; each counts for one to two `kept`.
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

/// How long an RTT counts as one of the last moments of a round. Reason: longer than a host is busy with something else, as a rule.
const RTT_LATE_KEPT: Duration = Duration::from_millis(20);

/// How far acknowledgements of a lane are apart (RFC 9000, 25 ms, and what a host adds).
const ACKS_APART: Duration = Duration::from_millis(30);

/// How long it takes to hear what piled up in a gap.
const CATCH_UP: Duration = Duration::from_millis(20);
