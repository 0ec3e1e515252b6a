//! A lane's part in the control of its path: which of its packets count, and how fast it may send now.

use std::time::{Duration, Instant};

use super::evidence::AckBatch;
use super::path::Terms;
use crate::{BitRate, ByteCount};

/// One packet that the peer acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckedPacket {
    /// Its number; numbers rise in the order of sending.
    pub number: u64,
    /// When it was sent.
    pub sent: Instant,
    /// Its size on the wire in bytes.
    pub bytes: u64,
}

/// What one lane keeps of the control of its path, so that the path is asked once per arrival and not once per packet.
///
/// Told every packet sent, acknowledged and lost; [`LaneControl::take_batch`] gives what counts of it to
/// [`super::PathControl::handle_batch`], and [`LaneControl::follow`] takes the answer. Cost: O(1) each.
#[derive(Clone, Debug)]
pub struct LaneControl {
    terms: Terms,
    /// Packets up to this one were sent before the epoch.
    after: u64,
    train: TrainProgress,
    /// The train had a pause that the path has not heard of.
    has_paused: bool,
    largest_sent: u64,
    largest_acked: u64,
    last_sent: Option<Instant>,
    last_ack: Option<Instant>,
    /// The one before that, at another time.
    ack_before: Option<Instant>,
    /// The end of the last silence that counted.
    last_silence: Option<Instant>,
    batch: AckBatch,
}

/// Progress of the train that a lane sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TrainProgress {
    /// Another lane sends it, or there is none.
    None,
    /// Its first packet is yet to be sent.
    Due,
    /// So many bytes of it are left; it is broken once the lane had nothing to send.
    Sending { left: u64, since: Instant, is_broken: bool },
    /// All of it has been sent, up to this packet.
    Sent { last: u64, is_broken: bool },
}

impl LaneControl {
    /// A lane that goes by `terms` from its first packet.
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

    /// Packets up to `largest` have been sent, `bytes` on the wire.
    pub fn handle_sent(&mut self, now: Instant, largest: u64, bytes: u64) {
        let was_broken = self.train.is_broken();
        self.train = self.train_after(now, largest, bytes);
        self.has_paused |= self.train.is_broken() && !was_broken;
        self.largest_sent = self.largest_sent.max(largest);
        self.last_sent = Some(now);
    }

    /// Progress of the train when packets up to `largest` are sent. A pause breaks it: there was nothing to send, and what is left of it may
    /// still go at its pace. One that takes too long is over: a slow host shows what it sent.
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

    /// The peer has `packet`.
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

    /// Packet `number` is taken for lost, or was marked by the network (ECN), which is as good as a loss.
    pub fn handle_lost(&mut self, number: u64) {
        self.batch.of_any_epoch.packets += 1.0;
        self.batch.of_any_epoch.lost += 1.0;
        if number > self.after && !self.train.is_before(number) {
            self.batch.lost_packets += 1;
        }
    }

    /// What has been heard since the last call. `is_app_limited`: the lane had nothing to send meanwhile.
    pub fn take_batch(&mut self, is_app_limited: bool) -> AckBatch {
        self.batch.is_app_limited = is_app_limited;
        self.batch.is_train_passed = self.train.is_passed(self.largest_acked);
        self.batch.is_train_broken = self.train.is_broken();
        std::mem::replace(&mut self.batch, AckBatch::of_epoch(self.terms.epoch))
    }

    /// Whether the train of this lane had a pause since the last call.
    pub fn take_train_pause(&mut self) -> bool {
        std::mem::take(&mut self.has_paused)
    }

    /// Goes by `terms` from now on.
    pub fn follow(&mut self, terms: Terms) {
        let is_new = terms.is_first || terms.epoch != self.terms.epoch || terms.train != self.terms.train;
        self.terms = terms;
        if is_new {
            self.start_epoch();
        }
    }

    /// The rate to send at now, on the wire.
    pub fn rate(&self) -> BitRate {
        match self.terms.train {
            Some(train) if self.is_in_train() => train.pace,
            _ => self.terms.pace,
        }
    }

    /// Bytes on the wire that may be in flight.
    pub fn window(&self) -> ByteCount {
        self.terms.window
    }

    /// The terms in force.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    fn is_in_train(&self) -> bool {
        matches!(self.train, TrainProgress::Due | TrainProgress::Sending { .. })
    }

    /// Time that `bytes` take at the pace of the train.
    fn train_time(&self, bytes: u64) -> Duration {
        self.terms.train.map_or(Duration::ZERO, |train| train.pace.time_for(ByteCount(bytes)))
    }

    /// Time without a packet that breaks the train.
    fn train_pause(&self) -> Duration {
        TRAIN_PAUSE.max(self.train_time(TRAIN_PAUSE_BYTES))
    }

    /// Time after which the train is over, whatever has been sent of it.
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

    /// After a silence the packets from before it tell nothing about the rate that the path carries.
    fn notice_silence(&mut self, now: Instant, rtt: Duration) {
        if self.last_ack != Some(now) {
            (self.ack_before, self.last_ack) = (self.last_ack, Some(now));
            self.notice_outage(now);
        }
        // What was sent a round trip ago could not be heard of before.
        let is_late = rtt.saturating_sub(self.terms.rtt_min) > self.terms.ack_gap / 2;
        self.batch.is_after_gap |= is_late && self.unheard(now) > self.terms.ack_gap;
    }

    /// How long nothing had been heard before `now`.
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
    /// Whether the train ended before packet `number`.
    fn is_before(self, number: u64) -> bool {
        matches!(self, Self::Sent { last, .. } if number > last)
    }

    /// Whether the lane ran out of data for it.
    fn is_broken(self) -> bool {
        matches!(self, Self::Sending { is_broken: true, .. } | Self::Sent { is_broken: true, .. })
    }

    /// Whether its last packet, or a later one, is among those acknowledged up to `largest`.
    fn is_passed(self, largest: u64) -> bool {
        matches!(self, Self::Sent { last, .. } if largest >= last)
    }
}

/// Silences that are less than this many of them apart are no outages, but hosts that stall all the time: what was in flight counts.
const SILENCES_APART: u32 = 8;

/// Time without a packet that breaks a train: pacers wake at least every 10 ms, and wait for their packets at low rates.
const TRAIN_PAUSE: Duration = Duration::from_millis(15);
const TRAIN_PAUSE_BYTES: u64 = 4 * 1500;

/// Longest train. Guess: four times what one lasts, for hosts that send a quarter of its pace.
const TRAIN_LONGEST: Duration = Duration::from_millis(128);
