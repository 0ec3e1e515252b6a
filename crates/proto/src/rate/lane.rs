//! A lane's part in the rate control of its path: the packets that count as evidence, and the current send rate.

use std::time::{Duration, Instant};

use super::evidence::AckBatch;
use super::path::Terms;
use crate::{BitRate, ByteCount};

/// A packet that the peer acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckedPacket {
    /// Packet number; numbers rise in the order of sending.
    pub number: u64,
    /// Time of sending.
    pub sent: Instant,
    /// Size on the wire in bytes.
    pub bytes: u64,
}

/// State of one lane in the rate control of its path, so that the path is called once per arrival, not once per packet.
///
/// It records every packet that is sent, acknowledged or lost. [`LaneControl::take_batch`] returns the evidence for
/// [`super::PathControl::handle_batch`]; [`LaneControl::follow`] takes the answer. Cost: O(1) each.
#[derive(Clone, Debug)]
pub struct LaneControl {
    terms: Terms,
    /// Last packet that was sent before the epoch.
    after: u64,
    train: TrainProgress,
    /// True if the train had a pause that is not reported to the path yet.
    has_paused: bool,
    largest_sent: u64,
    largest_acked: u64,
    last_sent: Option<Instant>,
    last_ack: Option<Instant>,
    /// Time of the last acknowledgement before `last_ack` that came at another time.
    ack_before: Option<Instant>,
    /// End of the last silence that counted.
    last_silence: Option<Instant>,
    batch: AckBatch,
}

/// Progress of the train that a lane sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TrainProgress {
    /// No train, or another lane sends it.
    None,
    /// The first packet of the train is not sent yet.
    Due,
    /// Bytes of the train that are left. The train is broken once the lane had no data to send.
    Sending { left: u64, since: Instant, is_broken: bool },
    /// All of the train is sent; `last` is its last packet.
    Sent { last: u64, is_broken: bool },
}

impl LaneControl {
    /// Returns a lane that follows `terms` from its first packet.
    pub fn new(terms: Terms) -> Self {
        let mut lane = Self {
            terms,
            after: 0,
            train: TrainProgress::None,
            has_paused: false,
            largest_sent: 0,
            largest_acked: 0,
            last_sent: None,
            last_ack: None,
            ack_before: None,
            last_silence: None,
            batch: AckBatch::of_epoch(terms.epoch),
        };
        lane.start_epoch();
        lane
    }

    /// Records that packets up to `largest` were sent, `bytes` on the wire.
    pub fn handle_sent(&mut self, now: Instant, largest: u64, bytes: u64) {
        let was_broken = self.train.is_broken();
        self.train = self.train_after(now, largest, bytes);
        self.has_paused |= self.train.is_broken() && !was_broken;
        self.largest_sent = self.largest_sent.max(largest);
        self.last_sent = Some(now);
    }

    /// Returns the progress of the train after packets up to `largest` are sent. A pause breaks the train: the lane had
    /// no data, and the rest may still go at the train's pace. A train without a pause ends after its longest time: the
    /// part that a slow host has sent is evidence enough.
    fn train_after(&self, now: Instant, largest: u64, bytes: u64) -> TrainProgress {
        let (left, since, had_pause) = match self.train {
            TrainProgress::Due => (self.terms.train.map_or(0, |train| train.bytes.0), now, false),
            TrainProgress::Sending { left, since, is_broken } => {
                let pause = self.last_sent.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
                (left, since, is_broken || pause > self.train_pause())
            }
            other => return other,
        };
        let is_long = now.saturating_duration_since(since) > self.train_longest();
        match left.checked_sub(bytes) {
            Some(left) if left > 0 && (had_pause || !is_long) => {
                TrainProgress::Sending { left, since, is_broken: had_pause }
            }
            _ => TrainProgress::Sent { last: largest, is_broken: had_pause },
        }
    }

    /// Records that the peer has `packet`.
    pub fn handle_acked(&mut self, now: Instant, packet: AckedPacket) {
        let rtt = now.saturating_duration_since(packet.sent);
        self.notice_silence(now, rtt);
        let batch = &mut self.batch;
        batch.of_any_epoch.packets += 1.0;
        batch.rtt_latest = Some(rtt);
        batch.rtt_min = Some(batch.rtt_min.map_or(rtt, |least| least.min(rtt)));
        self.largest_acked = self.largest_acked.max(packet.number);
        if packet.number > self.after && !self.train.is_before(packet.number) {
            batch.acked_packets += 1;
            batch.bytes += packet.bytes;
            batch.last_sent = batch.last_sent.max(Some(packet.sent));
            batch.round_rtt_min = batch.round_rtt_min.min(rtt);
        }
    }

    /// Records that packet `number` is lost, or that the network marked it (ECN), which counts as a loss.
    pub fn handle_lost(&mut self, number: u64) {
        self.batch.of_any_epoch.packets += 1.0;
        self.batch.of_any_epoch.lost += 1.0;
        if number > self.after && !self.train.is_before(number) {
            self.batch.lost_packets += 1;
        }
    }

    /// Returns the evidence since the last call. `is_app_limited`: the lane had no data to send meanwhile.
    pub fn take_batch(&mut self, is_app_limited: bool) -> AckBatch {
        self.batch.is_app_limited = is_app_limited;
        self.batch.is_train_passed = self.train.is_passed(self.largest_acked);
        self.batch.is_train_broken = self.train.is_broken();
        std::mem::replace(&mut self.batch, AckBatch::of_epoch(self.terms.epoch))
    }

    /// Returns true if the train of this lane had a pause since the last call.
    pub fn take_train_pause(&mut self) -> bool {
        std::mem::take(&mut self.has_paused)
    }

    /// Applies `terms` from now on.
    pub fn follow(&mut self, terms: Terms) {
        let is_new = terms.is_first || terms.epoch != self.terms.epoch || terms.train != self.terms.train;
        self.terms = terms;
        if is_new {
            self.start_epoch();
        }
    }

    /// Returns the current send rate, on the wire.
    pub fn rate(&self) -> BitRate {
        match self.terms.train {
            Some(train) if self.is_in_train() => train.pace,
            _ => self.terms.pace,
        }
    }

    /// Returns the limit of bytes in flight, on the wire.
    pub fn window(&self) -> ByteCount {
        self.terms.window
    }

    /// Returns the current terms.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    fn is_in_train(&self) -> bool {
        matches!(self.train, TrainProgress::Due | TrainProgress::Sending { .. })
    }

    /// Returns the time that `bytes` take at the pace of the train.
    fn train_time(&self, bytes: u64) -> Duration {
        self.terms.train.map_or(Duration::ZERO, |train| train.pace.time_for(ByteCount(bytes)))
    }

    /// Returns the time without a packet that breaks the train.
    fn train_pause(&self) -> Duration {
        TRAIN_PAUSE.max(self.train_time(TRAIN_PAUSE_BYTES))
    }

    /// Returns the time after which the train is over, even if a part is unsent.
    fn train_longest(&self) -> Duration {
        TRAIN_LONGEST.max(self.train_time(self.terms.train.map_or(0, |train| train.bytes.0)) * 2)
    }

    fn start_epoch(&mut self) {
        self.after = self.largest_sent;
        self.train = if self.terms.train.is_some() { TrainProgress::Due } else { TrainProgress::None };
        self.batch = AckBatch {
            rtt_min: self.batch.rtt_min,
            of_any_epoch: self.batch.of_any_epoch,
            ..AckBatch::of_epoch(self.terms.epoch)
        };
    }

    /// Discards evidence after a silence: packets from before it show nothing about the rate of the path.
    fn notice_silence(&mut self, now: Instant, rtt: Duration) {
        if self.last_ack != Some(now) {
            (self.ack_before, self.last_ack) = (self.last_ack, Some(now));
            self.notice_outage(now);
        }
        // A packet sent a round trip ago could not be acknowledged earlier.
        let is_late = rtt.saturating_sub(self.terms.rtt_min) > self.terms.ack_gap / 2;
        self.batch.is_after_gap |= is_late && self.unheard(now) > self.terms.ack_gap;
    }

    /// Returns the time without acknowledgements before `now`.
    fn unheard(&self, now: Instant) -> Duration {
        self.ack_before.map_or(Duration::ZERO, |last| now.saturating_duration_since(last))
    }

    fn notice_outage(&mut self, now: Instant) {
        let is_silence = self.train == TrainProgress::None && self.unheard(now) > self.terms.silence;
        let is_another = |before| now.saturating_duration_since(before) < self.terms.silence * SILENCES_APART;
        if is_silence && !self.last_silence.is_some_and(is_another) {
            self.last_silence = Some(now);
            self.after = self.largest_sent;
            self.batch = AckBatch { is_after_silence: true, ..AckBatch::of_epoch(self.terms.epoch) };
        }
    }
}

impl TrainProgress {
    /// Returns true if the train ended before packet `number`.
    fn is_before(self, number: u64) -> bool {
        matches!(self, Self::Sent { last, .. } if number > last)
    }

    /// Returns true if the lane ran out of data for the train.
    fn is_broken(self) -> bool {
        matches!(self, Self::Sending { is_broken: true, .. } | Self::Sent { is_broken: true, .. })
    }

    /// Returns true if the last packet of the train, or a later one, is acknowledged; `largest`: largest acknowledged.
    fn is_passed(self, largest: u64) -> bool {
        matches!(self, Self::Sent { last, .. } if largest >= last)
    }
}

/// Distance of outages, as a multiple of the silence time. Silences closer together come from hosts that stall all the
/// time: packets in flight still count as evidence.
const SILENCES_APART: u32 = 8;

/// Time without a packet that breaks a train: pacers wake at least every 10 ms.
const TRAIN_PAUSE: Duration = Duration::from_millis(15);
/// Bytes of the train at its pace that a pause must exceed too. Reason: at low rates pacers wait for their packets.
const TRAIN_PAUSE_BYTES: u64 = 4 * 1500;

/// Longest train. Guess: four times its duration, for hosts that send at a quarter of the pace.
const TRAIN_LONGEST: Duration = Duration::from_millis(128);
