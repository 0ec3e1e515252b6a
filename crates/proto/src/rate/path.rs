//! All QUIC lanes of one path: one search, one verdict, one rate.

use std::time::{Duration, Instant};

use super::budget::{LaneKey, RateBudget, Sent};
use super::contract::RateContract;
use super::control::RateControl;
use super::evidence::AckBatch;
use super::search::TrainOrder;
use crate::{BitRate, ByteCount};

/// Send permission of one lane, at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// Share of the lane in the rate of the path, on the wire.
    pub share: BitRate,
    /// Pacing rate: the share, corrected by the byte account of the path.
    pub pace: BitRate,
    /// Limit of the lane's bytes in flight, on the wire: twice its rate times the smallest RTT, and an allowance for
    /// batched acknowledgements. It bounds the data sent into an outage, and any queue on the path.
    pub window: ByteCount,
    /// Train to send before any other packet of this epoch, if this lane sends the trains.
    pub train: Option<TrainOrder>,
    /// Number that grows at each change of the rate: packets of an earlier epoch are no evidence about the new rate.
    pub epoch: u64,
    /// True if the lane has just joined this path: epochs of another path do not count.
    pub is_first: bool,
    /// Time without acknowledgements after which packets in flight are no evidence any more.
    pub silence: Duration,
    /// Time without acknowledgements after which a host is taken to have stalled.
    pub ack_gap: Duration,
    /// Smallest RTT of the last half minute or so; before the first sample the expected RTT.
    pub rtt_min: Duration,
}

/// Rate of a path, and its division among the lanes of the path.
///
/// One instance serves all lanes of a session on one path. Lanes report sent, acknowledged and lost packets; each
/// receives its [`Terms`]. Lanes with data to send share the rate equally. Promise: over any second all lanes together
/// send at most the ceiling. Cost: O(1) per call; a pass over the lanes once per round and once per millisecond.
#[derive(Debug)]
pub struct PathControl {
    control: RateControl,
    budget: RateBudget,
    /// Lane that sends the trains.
    scout: Option<LaneKey>,
    /// Lanes that have not received terms yet.
    unreported: Vec<LaneKey>,
}

impl PathControl {
    /// Returns a path without lanes.
    pub fn new(contract: RateContract) -> Self {
        Self {
            budget: RateBudget::new(contract.ceiling),
            control: RateControl::new(contract),
            scout: None,
            unreported: Vec::new(),
        }
    }

    /// Returns the contract of the path.
    pub fn contract(&self) -> &RateContract {
        self.control.contract()
    }

    /// Replaces the contract; lanes follow with their next packet. Measurements of the path are kept.
    pub fn set_contract(&mut self, contract: RateContract) {
        self.control.set_contract(contract);
        self.budget.set_ceiling(self.control.ceiling_rate());
    }

    /// Adds a new lane.
    pub fn join(&mut self) -> LaneKey {
        let key = self.budget.join();
        self.unreported.push(key);
        key
    }

    /// Removes a lane; its share is free at once. If it sent the trains, another lane sends the current train again.
    pub fn leave(&mut self, key: LaneKey) {
        self.budget.leave(key);
        self.unreported.retain(|lane| *lane != key);
        if self.scout == Some(key) {
            self.scout = None;
            self.control.restart_train();
        }
    }

    /// Sets the part of the ceiling for the lanes here, in (0, 1]: lanes of another transport have the rest.
    pub fn set_fraction(&mut self, fraction: f64) {
        if self.control.set_fraction(fraction) {
            self.budget.set_ceiling(self.control.ceiling_rate());
        }
    }

    /// Sets the size of a full packet on the wire (path MTU discovery).
    pub fn set_packet_bytes(&mut self, bytes: u64) {
        self.control.set_packet_bytes(bytes);
    }

    /// Records that lane `key` has put `wire_bytes` on the wire.
    pub fn handle_sent(&mut self, key: LaneKey, now: Instant, wire_bytes: u64) {
        let scout = *self.scout.get_or_insert(key);
        // A train is above the rate on purpose.
        let charged = if scout == key && self.control.train().is_some() { 0 } else { wire_bytes };
        self.budget.handle_sent(key, now, Sent { wire_bytes, charged });
    }

    /// Records that lane `key` ran out of data for a moment, in the middle of its train.
    pub fn handle_train_pause(&mut self, key: LaneKey) {
        if self.scout == Some(key) {
            self.control.handle_train_pause();
        }
    }

    /// Processes acknowledgements and losses of lane `key`.
    pub fn handle_batch(&mut self, key: LaneKey, now: Instant, batch: &AckBatch) {
        let is_scout = self.scout.is_none_or(|scout| scout == key);
        let part = is_scout.then(|| 1.0 / self.budget.active().max(1) as f64);
        self.control.handle_batch(now, key.index(), batch, part);
        if is_scout && batch.is_train_broken {
            self.hand_train_over(key);
        }
    }

    /// Moves the train from lane `key` to a lane that has far more data to send.
    fn hand_train_over(&mut self, key: LaneKey) {
        if let Some(busier) = self.budget.far_busier(key) {
            self.scout = Some(busier);
            self.control.restart_train();
        }
    }

    /// Records that the receiving host dropped `packets` which the path had carried.
    pub fn handle_overrun(&mut self, now: Instant, packets: u64) {
        if packets > 0 {
            self.control.handle_overrun(now);
        }
    }

    /// Returns the current terms of lane `key`.
    pub fn terms(&mut self, key: LaneKey, now: Instant) -> Terms {
        let rate = self.control.rate();
        let train = self.control.train().filter(|_| self.scout.is_none_or(|scout| scout == key));
        // The packets behind a train show its end, and must not be late.
        let share = if train.is_some() { rate } else { self.budget.share(key, now, rate) };
        let pace = BitRate((share.0 as f64 * self.budget.pacing(now, rate)) as u64);
        let is_first = self.unreported.contains(&key);
        self.unreported.retain(|lane| *lane != key);
        Terms {
            share,
            pace,
            window: self.control.window(share, train),
            train,
            epoch: self.control.epoch(),
            is_first,
            silence: self.control.silence(share),
            ack_gap: self.control.ack_gap(share),
            rtt_min: self.control.rtt_min(),
        }
    }

    /// Returns the controller of the rate, for queries.
    pub fn control(&self) -> &RateControl {
        &self.control
    }
}
