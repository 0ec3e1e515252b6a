//! Local end of the session with the sender of one replica.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use parking_lot::Mutex;
use sterna_proto::session::{ActiveFile, BlockTask, Frame, LaneId, ReplicaId};
use sterna_proto::{Counters, Error, Retry};

use super::super::limits::{LimitMonitor, Role};
use super::super::silence::SilenceDetector;
use super::super::{BlockSink, End, Progress, Work};
use super::Replicas;
use super::epoch::Epoch;
use super::lane::ReplicaLane;
use crate::lane::LaneTx;
use crate::wake::Wake;

/// Local end of one session with the sender of one replica.
pub struct ReplicaEnd {
    epoch: Epoch,
    limits: Arc<LimitMonitor>,
    silence: Mutex<SilenceDetector>,
}

impl ReplicaEnd {
    /// Begins a session with the sender of a replica. A previous session of that replica is over. Errors: the host is
    /// out of threads.
    pub fn join(replicas: &Arc<Replicas>, replica: ReplicaId) -> Result<Arc<Self>, Error> {
        replicas.small.lock().remove(&replica);
        let epoch = Epoch::begin(replicas, replica);
        let limits = LimitMonitor::start(Role::Receiver, replicas.receiver.shared_wake())?;
        replicas.session.lock().handle_joined(replica, Instant::now());
        Ok(Arc::new(Self { epoch, limits, silence: Mutex::default() }))
    }
}

impl End for ReplicaEnd {
    fn next_work(&self, lane: LaneId) -> Work {
        let mut session = self.epoch.replicas.session.lock();
        if !self.epoch.is_current() {
            return Work::Over;
        }
        match session.poll_frame(self.epoch.replica, lane) {
            Some(frame) => Work::Frame(frame),
            None if session.is_left(self.epoch.replica) => Work::Over,
            None if !session.is_up(self.epoch.replica, lane) => Work::Down,
            None => {
                drop(session);
                self.limits.poll_frame(Instant::now()).map_or(Work::Idle(None), Work::Frame)
            }
        }
    }

    fn wake(&self) -> &Wake {
        self.epoch.replicas.wake()
    }

    fn send_block(&self, _lane: LaneId, _task: BlockTask, _tx: &mut dyn LaneTx) -> Result<(), Error> {
        Err(crate::internal("a receiver was asked to send a block"))
    }

    fn handle_frame(&self, frame: Frame) -> Result<(), Error> {
        let now = Instant::now();
        let handled = match frame {
            Frame::Limits(report) => {
                self.limits.handle_limits(&report);
                return Ok(());
            }
            Frame::Messages { first, encoded } => {
                self.epoch.with_session(|session| session.handle_messages(self.epoch.replica, first, &encoded, now))
            }
            Frame::Acknowledge { next } => {
                self.epoch.with_session(|session| session.handle_acknowledgement(self.epoch.replica, next, now))
            }
            Frame::Welcome(_) => return Ok(()),
            _ => return Err(Error::protocol("a frame from the peer out of place")),
        };
        handled.unwrap_or(Ok(()))
    }

    fn lane_up(&self, lane: LaneId) {
        self.epoch.with_session(|session| session.handle_lane_up(self.epoch.replica, lane));
    }

    fn lane_down(&self, lane: LaneId) {
        self.epoch.with_session(|session| session.handle_lane_down(self.epoch.replica, lane, Instant::now()));
    }

    fn block_sink(self: Arc<Self>, _lane: LaneId) -> Box<dyn BlockSink> {
        Box::new(ReplicaLane::new(self.epoch.clone()))
    }

    fn is_over(&self) -> bool {
        let session = self.epoch.replicas.session.lock();
        !self.epoch.is_current() || session.is_left(self.epoch.replica)
    }

    /// Always true: the observer belongs to the receiver, which all replicas share.
    fn has_followed_up(&self) -> bool {
        true
    }

    fn tick(&self) {
        let silent = self.silence.lock().observe(&self.limits.heard(), Instant::now());
        if !silent.is_empty() {
            self.epoch.with_session(|session| session.handle_silence(self.epoch.replica, &silent));
        }
    }

    /// Always `None`: [`Replicas::turn`] advances the timers.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn limits(&self) -> &LimitMonitor {
        &self.limits
    }

    /// Returns the progress of this replica alone.
    fn progress(&self) -> Progress {
        let session = self.epoch.replicas.session.lock();
        let delivered = self.epoch.replicas.delivered[self.epoch.replica.0 as usize].load(Ordering::Relaxed);
        let size = session.file().map_or(0, |file| file.size);
        let counters = Counters {
            files_known: session.file().map_or(0, |_| 1),
            bytes_known: size,
            bytes_done: delivered,
            bytes_carried: delivered,
            bytes_encoded: delivered,
            ..Counters::default()
        };
        Progress {
            counters,
            manifest_complete: session.file().is_some(),
            lanes: session.lane_count(self.epoch.replica),
        }
    }

    fn active_files(&self, _most: usize) -> Vec<ActiveFile> {
        Vec::new()
    }

    fn unsettled_bytes(&self) -> u64 {
        0
    }

    fn abort(&self, error: Error) {
        // The agent has restarted: a new session with it may succeed.
        let lost = error.kind == sterna_proto::ErrorKind::SessionLost;
        let error = if lost { error.retry(Retry::After) } else { error };
        self.epoch.with_session(|session| session.handle_left(self.epoch.replica, &error, Instant::now()));
    }
}
