//! One file from several replicas: a receiver with an end in front of it for each sender.
//!
//! What it does: [`Replicas`] owns the receiver and the machine that says which replica is asked for what
//! ([`sterna_proto::session::ReplicaSession`]), and carries between the two. A [`ReplicaEnd`] is what the sender of one replica has before it: an
//! [`End`] as that of every session, so that a replica may be at an agent, on a web server or on this host. What it refuses to do: dial, and start
//! threads; its owner calls [`Replicas::turn`].
//!
//! Locks: that of the machine is never held while the receiver is called.

mod end;
mod lane;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::{Duration, Instant};

use sterna_proto::session::{
    Arrival, BlockHeader, CONTROL, CopyId, FileId, LaneId, ReplicaAccount, ReplicaEvent, ReplicaId, ReplicaPlan,
    ReplicaSession,
};
use sterna_proto::{Error, RangeSet};

pub use self::end::ReplicaEnd;
use super::receiver::Judge;
use super::{End, LaneIds, Observer, Receiver, ReceiverOptions, SessionEvent, Work, lock};

/// The one file.
const FILE: FileId = FileId(0);

/// A copy of a block on its way to the receiver.
#[derive(Debug)]
struct Gate {
    /// Held while something of it is written; set when nothing more of it may be.
    revoked: Mutex<bool>,
    /// The receiver's lane that it is on, and the block.
    lane: LaneId,
    index: u64,
}

/// The replicas of one file, and the receiver that writes it.
pub struct Replicas {
    session: Mutex<ReplicaSession>,
    /// Something may have changed for the ends.
    wake: Condvar,
    receiver: Arc<Receiver>,
    /// Numbers the receiver's lanes: one for each lane to a sender.
    lanes: LaneIds,
    copies: AtomicU64,
    gates: Mutex<HashMap<CopyId, Arc<Gate>>>,
    /// Bytes of blocks that each replica has delivered, whatever became of them.
    delivered: Vec<AtomicU64>,
    /// The number of each replica's present session.
    epochs: Vec<AtomicU64>,
    /// Of a small file: what each replica has sent.
    small: Mutex<HashMap<ReplicaId, Vec<u8>>>,
    expected: Option<sterna_proto::Digest>,
    observer: Arc<dyn Observer>,
}

impl Replicas {
    /// Starts the receiver of a file that has the replicas of `plan`. Errors: as [`Receiver::start`].
    pub fn start(plan: ReplicaPlan, options: ReceiverOptions, observer: Arc<dyn Observer>) -> Result<Arc<Self>, Error> {
        let count = plan.names.len();
        let expected = options.expect;
        let receiver = Receiver::start(options, Arc::clone(&observer))?;
        let counters = || (0..count).map(|_| AtomicU64::new(0)).collect();
        let replicas = Arc::new(Self {
            session: Mutex::new(ReplicaSession::new(plan)),
            wake: Condvar::new(),
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
        // The first number is that of the lane that carries control frames.
        replicas.receiver.lane_up(replicas.lanes.next());
        Ok(replicas)
    }

    /// The receiver that writes the file.
    pub fn receiver(&self) -> &Arc<Receiver> {
        &self.receiver
    }

    /// A session with the sender of a replica begins; the one before, if any, is over.
    pub fn join(self: &Arc<Self>, replica: ReplicaId) -> Result<Arc<ReplicaEnd>, Error> {
        lock(&self.small).remove(&replica);
        let end = ReplicaEnd::new(self, replica, self.epochs[replica.0 as usize].fetch_add(1, Ordering::Relaxed) + 1)?;
        lock(&self.session).handle_joined(replica, Instant::now());
        Ok(end)
    }

    /// A replica was not reached, or has gone.
    pub fn leave(&self, replica: ReplicaId, error: &Error) {
        lock(&self.session).handle_left(replica, error, Instant::now());
        self.wake.notify_all();
    }

    /// Carries what is to be carried, and decides what is to be decided. To be called some tens of times a second.
    pub fn turn(&self) {
        loop {
            let carried = self.carry_to_receiver() | self.carry_from_receiver();
            let now = Instant::now();
            let mut session = lock(&self.session);
            for (replica, bytes) in (0u32..).zip(&self.delivered) {
                session.handle_delivered(ReplicaId(replica), bytes.load(Ordering::Relaxed), now);
            }
            session.handle_timeout(now);
            drop(session);
            if !self.carry_out() && !carried {
                break;
            }
        }
        self.wake.notify_all();
    }

    /// Waits until there may be something for [`Replicas::turn`] to do, at most `nap`.
    pub fn wait(&self, nap: Duration) {
        self.receiver.wait_for_work(nap);
    }

    fn carry_to_receiver(&self) -> bool {
        let mut carried = false;
        loop {
            let frame = lock(&self.session).poll_receiver_frame();
            let Some(frame) = frame else { return carried };
            carried = true;
            if let Err(error) = self.receiver.handle_frame(frame) {
                // Both ends are ours: this is a bug, and the receiver has aborted.
                lock(&self.session).abort(error);
            }
        }
    }

    fn carry_from_receiver(&self) -> bool {
        let mut carried = false;
        while let Work::Frame(frame) = self.receiver.next_work(CONTROL) {
            carried = true;
            if let Err(error) = lock(&self.session).handle_receiver_frame(frame) {
                lock(&self.session).abort(error);
            }
        }
        carried
    }

    /// Carries out what the machine asks for; whether there was anything.
    fn carry_out(&self) -> bool {
        let mut any = false;
        loop {
            let event = lock(&self.session).poll_event();
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

    /// Nothing more of a copy is written when this returns.
    fn revoke(&self, copy: CopyId) {
        let gate = lock(&self.gates).remove(&copy);
        let Some(gate) = gate else { return };
        *lock(&gate.revoked) = true;
        self.receiver.release_claim(gate.lane, FILE, gate.index);
    }

    /// Has the copy of a small file written that this replica has sent.
    fn pass_on(&self, replica: ReplicaId) {
        let data = lock(&self.small).get(&replica).cloned();
        let file = lock(&self.session).file().cloned();
        let (Some(data), Some(file)) = (data, file) else { return };
        let digest = *blake3::hash(&data).as_bytes();
        let header = BlockHeader::Packed { files: vec![(FILE, file)], slab: None }.encode();
        let mut sink = Arc::clone(&self.receiver).block_sink(self.lanes.next());
        let passed = sink
            .begin(0, &header, data.len() as u64)
            .and_then(|()| sink.data(0, 0, &data))
            .and_then(|()| sink.end(0, &digest));
        let now = Instant::now();
        let mut session = lock(&self.session);
        match passed {
            Ok(()) => {
                let copy = CopyId(self.copies.fetch_add(1, Ordering::Relaxed));
                session.handle_block(replica, copy, 0, digest, Arrival::Written, now);
            }
            Err(error) => session.abort(error),
        }
    }

    /// Ends the copy.
    pub fn abort(&self, error: Error) {
        lock(&self.session).abort(error);
        self.wake.notify_all();
    }

    /// Whether the copy has come to its end, and its observer has heard everything; senders may still have to hear of it.
    pub fn is_over(&self) -> bool {
        let is_over = lock(&self.session).is_over();
        is_over && self.receiver.is_over() && self.receiver.has_followed_up()
    }

    /// Whether nobody need try to reach this replica any more.
    pub fn is_done_with(&self, replica: ReplicaId) -> bool {
        let session = lock(&self.session);
        session.is_over() || session.is_dropped(replica)
    }

    /// What each replica gave, in order.
    pub fn accounts(&self) -> Vec<ReplicaAccount> {
        lock(&self.session).accounts()
    }

    /// Lanes that are up, to all senders.
    pub fn lane_count(&self) -> usize {
        let session = lock(&self.session);
        (0u32..).zip(&self.delivered).map(|(replica, _)| session.lane_count(ReplicaId(replica))).sum()
    }
}

impl Judge for Replicas {
    fn handle_wrong(&self) -> Option<RangeSet> {
        lock(&self.session).handle_wrong(Instant::now())
    }

    fn handle_taken_back(&self, blocks: &RangeSet, asked: &RangeSet) {
        lock(&self.session).handle_taken_back(blocks, asked);
    }
}
