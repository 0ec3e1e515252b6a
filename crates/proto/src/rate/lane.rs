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
    /// The last packet of the train, when this lane sends one.
    train_last: Option<u64>,
    /// The train had a gap, since there was nothing to send: it tells nothing.
    is_train_broken: bool,
    largest_sent: u64,
    last_sent: Option<Instant>,
    last_ack: Option<Instant>,
    /// The one before that, at another time.
    ack_before: Option<Instant>,
    /// The end of the last silence that counted.
    last_silence: Option<Instant>,
    batch: AckBatch,
}

impl LaneControl {
    /// A lane that goes by `terms` from its first packet.
    pub fn new(terms: Terms) -> Self {
        let mut lane = Self {
            terms,
            after: 0,
            train_last: None,
            is_train_broken: false,
            largest_sent: 0,
            last_sent: None,
            last_ack: None,
            ack_before: None,
            last_silence: None,
            batch: AckBatch::of_epoch(terms.epoch),
        };
        lane.start_epoch();
        lane
    }

    /// Packets up to `largest` have been sent.
    pub fn handle_sent(&mut self, now: Instant, largest: u64) {
        let has_gap = self.last_sent.is_some_and(|last| now.saturating_duration_since(last) > self.train_gap());
        self.is_train_broken |= self.is_in_train() && self.largest_sent > self.after && has_gap;
        self.largest_sent = self.largest_sent.max(largest);
        self.last_sent = Some(now);
    }

    /// The peer has `packet`.
    pub fn handle_acked(&mut self, now: Instant, packet: AckedPacket) {
        let rtt = now.saturating_duration_since(packet.sent);
        self.notice_silence(now, rtt);
        let batch = &mut self.batch;
        batch.of_any_epoch.packets += 1.0;
        batch.rtt_latest = Some(rtt);
        batch.rtt_min = Some(batch.rtt_min.map_or(rtt, |least| least.min(rtt)));
        if let Some(last) = self.train_last
            && packet.number > last
        {
            batch.is_train_passed = true;
            return;
        }
        if packet.number > self.after {
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
        if number > self.after && self.train_last.is_none_or(|last| number <= last) {
            self.batch.lost_packets += 1;
        }
    }

    /// What has been heard since the last call. `is_app_limited`: the lane had nothing to send meanwhile.
    pub fn take_batch(&mut self, is_app_limited: bool) -> AckBatch {
        self.batch.is_app_limited = is_app_limited;
        std::mem::replace(&mut self.batch, AckBatch::of_epoch(self.terms.epoch))
    }

    /// Whether the train that this lane was to send is to be sent again; asked once.
    pub fn take_train_broken(&mut self) -> bool {
        std::mem::take(&mut self.is_train_broken)
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
        self.train_last.is_some_and(|last| self.largest_sent < last)
    }

    /// Time without a packet that breaks the train.
    fn train_gap(&self) -> Duration {
        let packets = self.terms.train.map(|train| train.pace.time_for(ByteCount(TRAIN_GAP_BYTES)));
        TRAIN_GAP.max(packets.unwrap_or_default())
    }

    fn start_epoch(&mut self) {
        self.after = self.largest_sent;
        self.train_last = self.terms.train.map(|train| self.largest_sent + train.packets);
        self.is_train_broken = false;
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
        let is_silence = self.train_last.is_none() && self.unheard(now) > self.terms.silence;
        let is_another = |before| now.saturating_duration_since(before) < self.terms.silence * SILENCES_APART;
        if is_silence && !self.last_silence.is_some_and(is_another) {
            self.last_silence = Some(now);
            self.after = self.largest_sent;
            self.batch = AckBatch { is_after_silence: true, ..AckBatch::of_epoch(self.terms.epoch) };
        }
    }
}

/// Silences that are less than this many of them apart are no outages, but hosts that stall all the time: what was in flight counts.
const SILENCES_APART: u32 = 8;

/// Time without a packet that ends a train: pacers wake at least every 10 ms, and wait for their packets at low rates.
const TRAIN_GAP: Duration = Duration::from_millis(15);
const TRAIN_GAP_BYTES: u64 = 4 * 1500;
