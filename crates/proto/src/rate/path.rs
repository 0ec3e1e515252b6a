//! All QUIC lanes of one path: one search, one judgement, one rate.

use std::time::{Duration, Instant};

use super::budget::{LaneKey, RateBudget, Sent};
use super::contract::RateContract;
use super::control::RateControl;
use super::evidence::AckBatch;
use crate::{BitRate, ByteCount};

/// How fast one lane may send now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// Its part of the path's rate, on the wire.
    pub share: BitRate,
    /// The same, corrected so that the account of the path comes out even: what to pace by.
    pub pace: BitRate,
    /// Bytes on the wire that may be in flight on this lane: twice its rate times the smallest RTT, and what acknowledgements
    /// that come in batches need. It bounds what is sent into an outage and any queue that the path builds.
    pub window: ByteCount,
    /// Train to send before anything else of this epoch, when it is this lane's turn.
    pub train: Option<TrainOrder>,
    /// Grows whenever the rate changes: what was sent in an earlier epoch is not held against the new rate.
    pub epoch: u64,
    /// The lane has just joined this path: epochs of another one do not count.
    pub is_first: bool,
    /// How long nothing must be heard of a lane for what was in flight to say nothing.
    pub silence: Duration,
    /// How long nothing must be heard of a lane for a host to have stalled.
    pub ack_gap: Duration,
    /// The smallest RTT of the last half minute or so, or what was expected before the first sample.
    pub rtt_min: Duration,
}

/// A train for one lane to send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainOrder {
    /// How fast.
    pub pace: BitRate,
    /// Size of the whole train.
    pub bytes: ByteCount,
}

/// The rate of a path and its division among the lanes on it.
///
/// One for all lanes of a session on one path. Lanes report what they send and what comes back; each gets back its
/// [`Terms`]. Lanes that have something to send share the rate equally. Promise: over any second they send together at most the ceiling.
/// Cost: O(1) per call, and once per round and per millisecond a pass over the lanes.
#[derive(Debug)]
pub struct PathControl {
    control: RateControl,
    budget: RateBudget,
    /// The lane that sends the trains.
    scout: Option<LaneKey>,
    /// Lanes that have not had their terms yet.
    untold: Vec<LaneKey>,
}

impl PathControl {
    /// A path without lanes.
    pub fn new(contract: RateContract) -> Self {
        Self {
            budget: RateBudget::new(contract.ceiling),
            control: RateControl::new(contract),
            scout: None,
            untold: Vec::new(),
        }
    }

    /// What was agreed about the path.
    pub fn contract(&self) -> &RateContract {
        self.control.contract()
    }

    /// Agrees anew; lanes follow with their next packet. What the path has shown stays known.
    pub fn set_contract(&mut self, contract: RateContract) {
        self.control.set_contract(contract);
        self.budget.set_ceiling(self.control.ceiling_rate());
    }

    /// Takes a new lane in.
    pub fn join(&mut self) -> LaneKey {
        let key = self.budget.join();
        self.untold.push(key);
        key
    }

    /// Lets a lane go; its share is free at once, and another lane sends its train.
    pub fn leave(&mut self, key: LaneKey) {
        self.budget.leave(key);
        self.untold.retain(|lane| *lane != key);
        if self.scout == Some(key) {
            self.scout = None;
            self.control.restart_train();
        }
    }

    /// The part of the ceiling, above 0 and up to 1, that lanes of another transport leave to those that are here.
    pub fn set_fraction(&mut self, fraction: f64) {
        if self.control.set_fraction(fraction) {
            self.budget.set_ceiling(self.control.ceiling_rate());
        }
    }

    /// Changes the size of a full packet on the wire (path MTU discovery).
    pub fn set_packet_bytes(&mut self, bytes: u64) {
        self.control.set_packet_bytes(bytes);
    }

    /// Lane `key` has put `wire_bytes` on the wire.
    pub fn handle_sent(&mut self, key: LaneKey, now: Instant, wire_bytes: u64) {
        let scout = *self.scout.get_or_insert(key);
        // A train is sent above the rate on purpose.
        let charged = if scout == key && self.control.train().is_some() { 0 } else { wire_bytes };
        self.budget.handle_sent(key, now, Sent { wire_bytes, charged });
    }

    /// Lane `key` had nothing to send for a moment, in the midst of its train.
    pub fn handle_train_pause(&mut self, key: LaneKey) {
        if self.scout == Some(key) {
            self.control.handle_train_pause();
        }
    }

    /// Lane `key` has heard this.
    pub fn handle_batch(&mut self, key: LaneKey, now: Instant, batch: &AckBatch) {
        let is_scout = self.scout.is_none_or(|scout| scout == key);
        let part = is_scout.then(|| 1.0 / self.budget.active().max(1) as f64);
        self.control.handle_batch(now, key.index(), batch, part);
        if is_scout && batch.is_train_broken {
            self.hand_train_over(key);
        }
    }

    /// Leaves the train of lane `key` to a lane that has far more to send.
    fn hand_train_over(&mut self, key: LaneKey) {
        if let Some(busier) = self.budget.far_busier(key) {
            self.scout = Some(busier);
            self.control.restart_train();
        }
    }

    /// The receiving host dropped `packets` that the path had carried.
    pub fn handle_overrun(&mut self, now: Instant, packets: u64) {
        if packets > 0 {
            self.control.handle_overrun(now);
        }
    }

    /// How fast lane `key` may send now.
    pub fn terms(&mut self, key: LaneKey, now: Instant) -> Terms {
        let rate = self.control.rate();
        let train = self.control.train().filter(|_| self.scout.is_none_or(|scout| scout == key));
        // What follows a train tells that it is over, and is not to be late.
        let share = if train.is_some() { rate } else { self.budget.share(key, now, rate) };
        let pace = BitRate((share.0 as f64 * self.budget.pacing(now, rate)) as u64);
        let is_first = self.untold.contains(&key);
        self.untold.retain(|lane| *lane != key);
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

    /// What decides the rate, to ask it.
    pub fn control(&self) -> &RateControl {
        &self.control
    }
}
