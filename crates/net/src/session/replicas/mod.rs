//! One file from several replicas: one receiver, with a separate local end for each sender.
//!
//! [`Replicas`] owns the receiver and the state machine that decides which replica sends which block
//! ([`sterna_proto::session::ReplicaSession`]), and passes frames between the two. A [`ReplicaEnd`] is the local end
//! for the sender of one replica. It is an [`End`] as in every session, so a replica can be at an agent, on a web
//! server or on this host. This module refuses to dial and to start threads: its owner calls [`Replicas::turn`].
//!
//! Locks: the lock of the state machine is never held during a call of the receiver.

mod end;
mod epoch;
mod lane;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use sterna_proto::session::{
    Arrival, BlockHeader, CONTROL, CopyId, FileId, LaneId, ReplicaAccount, ReplicaEvent, ReplicaId, ReplicaPlan,
    ReplicaSession,
};
use sterna_proto::{Error, RangeSet};

pub use self::end::ReplicaEnd;
use super::receiver::Judge;
use super::{End, Expected, LaneIds, Observer, Receiver, ReceiverOptions, SessionEvent, Work};
use crate::wake::Wake;

/// Number of the file; there is only one.
const FILE: FileId = FileId(0);

/// Gate for a copy of a block that goes to the receiver.
#[derive(Debug)]
struct Gate {
    /// Locked while data of the copy is written. True once no more data of it may be written.
    revoked: Mutex<bool>,
    /// Lane of the receiver that carries the copy, and the index of the block.
    lane: LaneId,
    index: u64,
}

/// Replicas of one file, and the receiver that writes the file.
pub struct Replicas {
    session: Mutex<ReplicaSession>,
    receiver: Arc<Receiver>,
    /// Counter for the lanes of the receiver: one for each lane to a sender.
    lanes: LaneIds,
    copies: AtomicU64,
    gates: Mutex<HashMap<CopyId, Arc<Gate>>>,
    /// Block bytes that each replica has delivered, used or not.
    delivered: Vec<AtomicU64>,
    /// Number of the current session of each replica.
    epochs: Vec<AtomicU64>,
    /// Content of a small file, as each replica has sent it.
    small: Mutex<HashMap<ReplicaId, Vec<u8>>>,
    expected: Expected,
    observer: Arc<dyn Observer>,
}

impl Replicas {
    /// Starts the receiver of a file that has the replicas of `plan`. Errors: as [`Receiver::start`].
    pub fn start(plan: ReplicaPlan, options: ReceiverOptions, observer: Arc<dyn Observer>) -> Result<Arc<Self>, Error> {
        let count = plan.names.len();
        let expected = options.expect.clone();
        let receiver = Receiver::start(options, Arc::clone(&observer))?;
        let counters = || (0..count).map(|_| AtomicU64::new(0)).collect();
        let replicas = Arc::new(Self {
            session: Mutex::new(ReplicaSession::new(plan)),
            receiver,
            lanes: LaneIds::default(),
            copies: AtomicU64::new(0),
            gates: Mutex::default(),
            delivered: counters(),
            epochs: counters(),
            small: Mutex::default(),
            expected,
            observer,
        });
        let judge = Arc::downgrade(&replicas);
        replicas.receiver.set_judge(judge as Weak<dyn Judge>);
        // The first number is that of the lane for control frames.
        replicas.receiver.lane_up(replicas.lanes.next());
        Ok(replicas)
    }

    /// Returns the event count that is notified when there may be work for [`Replicas::turn`], or for an end.
    pub fn wake(&self) -> &Wake {
        self.receiver.wake()
    }

    /// Returns the receiver that writes the file.
    pub fn receiver(&self) -> &Arc<Receiver> {
        &self.receiver
    }

    /// Handles a replica that was not reached or has left.
    pub fn leave(&self, replica: ReplicaId, error: &Error) {
        self.session.lock().handle_left(replica, error, Instant::now());
        self.wake().notify();
    }

    /// Passes frames between receiver and state machine, and carries out decisions. To be called after each change
    /// ([`Replicas::wake`]), and some times a second for the measurements.
    pub fn turn(&self) {
        let mut has_changed = false;
        loop {
            let carried = self.carry_to_receiver() | self.carry_from_receiver();
            let now = Instant::now();
            let mut session = self.session.lock();
            for (replica, bytes) in (0u32..).zip(&self.delivered) {
                session.handle_delivered(ReplicaId(replica), bytes.load(Ordering::Relaxed), now);
            }
            let before = session.changes();
            session.handle_timeout(now);
            let has_decided = session.changes() != before;
            drop(session);
            if !self.carry_out() && !carried && !has_decided {
                break;
            }
            has_changed = true;
        }
        if has_changed {
            self.wake().notify();
        }
    }

    fn carry_to_receiver(&self) -> bool {
        let mut carried = false;
        loop {
            let frame = self.session.lock().poll_receiver_frame();
            let Some(frame) = frame else { return carried };
            carried = true;
            if let Err(error) = self.receiver.handle_frame(frame) {
                // Both ends are in this process: this is a bug, and the receiver has aborted.
                self.session.lock().abort(error);
            }
        }
    }

    fn carry_from_receiver(&self) -> bool {
        let mut carried = false;
        while let Work::Frame(frame) = self.receiver.next_work(CONTROL) {
            carried = true;
            if let Err(error) = self.session.lock().handle_receiver_frame(frame) {
                self.session.lock().abort(error);
            }
        }
        carried
    }

    /// Carries out the requests of the state machine. Returns true if there were any.
    fn carry_out(&self) -> bool {
        let mut any = false;
        loop {
            let event = self.session.lock().poll_event();
            let Some(event) = event else { return any };
            any = true;
            match event {
                ReplicaEvent::Chosen(_) => {}
                ReplicaEvent::Notice(text) => self.observer.session_event(SessionEvent::Notice(text)),
                ReplicaEvent::Revoke(copy) => self.revoke(copy),
                ReplicaEvent::TakeBack(blocks) => {
                    if let Err(error) = self.receiver.take_back(FILE, &blocks) {
                        self.receiver.fail(FILE, error);
                    }
                }
                ReplicaEvent::Release => self.receiver.release(FILE),
                ReplicaEvent::PassOn(replica) => self.pass_on(replica),
            }
        }
    }

    /// Revokes a copy of a block: no more of its data is written after this call.
    fn revoke(&self, copy: CopyId) {
        let gate = self.gates.lock().remove(&copy);
        let Some(gate) = gate else { return };
        *gate.revoked.lock() = true;
        self.receiver.release_claim(gate.lane, FILE, gate.index);
    }

    /// Writes the copy of a small file that this replica has sent.
    fn pass_on(&self, replica: ReplicaId) {
        let data = self.small.lock().get(&replica).cloned();
        let file = self.session.lock().file().cloned();
        let (Some(data), Some(file)) = (data, file) else { return };
        let digest = *blake3::hash(&data).as_bytes();
        let header = BlockHeader::Packed { files: vec![(FILE, file)], slab: None }.encode();
        let mut sink = Arc::clone(&self.receiver).block_sink(self.lanes.next());
        let passed = sink
            .begin(0, &header, data.len() as u64)
            .and_then(|()| sink.data(0, 0, &data))
            .and_then(|()| sink.end(0, &digest));
        let now = Instant::now();
        let mut session = self.session.lock();
        match passed {
            Ok(()) => {
                let copy = CopyId(self.copies.fetch_add(1, Ordering::Relaxed));
                session.handle_block(replica, copy, 0, digest, Arrival::Written, now);
            }
            Err(error) => session.abort(error),
        }
    }

    /// Aborts the copy.
    pub fn abort(&self, error: Error) {
        // The receiver first: an abort by the state machine would reach it as that of a peer.
        self.receiver.abort(error.clone());
        self.session.lock().abort(error);
        self.wake().notify();
    }

    /// True if the copy has ended and its observer has received all events. Senders may still have to receive the
    /// end.
    pub fn is_over(&self) -> bool {
        let is_over = self.session.lock().is_over();
        is_over && self.receiver.is_over() && self.receiver.has_followed_up()
    }

    /// True if this replica is no longer needed, so that nobody has to reach it.
    pub fn is_done_with(&self, replica: ReplicaId) -> bool {
        let session = self.session.lock();
        session.is_over() || session.is_dropped(replica)
    }

    /// Returns the account of each replica, in order.
    pub fn accounts(&self) -> Vec<ReplicaAccount> {
        self.session.lock().accounts()
    }

    /// Returns the number of lanes that are up, to all senders.
    pub fn lane_count(&self) -> usize {
        let session = self.session.lock();
        (0u32..).zip(&self.delivered).map(|(replica, _)| session.lane_count(ReplicaId(replica))).sum()
    }
}

impl Judge for Replicas {
    fn handle_wrong(&self) -> Option<RangeSet> {
        self.session.lock().handle_wrong(Instant::now())
    }

    fn handle_taken_back(&self, blocks: &RangeSet, asked: &RangeSet) {
        self.session.lock().handle_taken_back(blocks, asked);
    }
}
