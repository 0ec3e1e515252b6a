//! Local end of the session with the sender of one replica.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use parking_lot::Mutex;
use sterna_proto::session::{ActiveFile, BlockTask, Frame, LaneId, ReplicaId, ReplicaSession};
use sterna_proto::{Counters, Error, Retry};

use super::super::limits::{LimitMonitor, Role};
use super::super::silence::SilenceDetector;
use super::super::{BlockSink, End, Progress, Work};
use super::Replicas;
use super::lane::ReplicaLane;
use crate::lane::LaneTx;
use crate::wake::Wake;

/// Local end of one session with the sender of one replica.
pub struct ReplicaEnd {
    pub(super) replicas: Arc<Replicas>,
    pub(super) replica: ReplicaId,
    /// Number of this session among those of the replica. A later session ends this one.
    epoch: u64,
    limits: Arc<LimitMonitor>,
    silence: Mutex<SilenceDetector>,
}

impl ReplicaEnd {
    pub(super) fn new(replicas: &Arc<Replicas>, replica: ReplicaId, epoch: u64) -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self {
            replicas: Arc::clone(replicas),
            replica,
            epoch,
            limits: LimitMonitor::start(Role::Receiver, replicas.receiver.shared_wake())?,
            silence: Mutex::default(),
        }))
    }

    /// True if no later session has replaced this one.
    fn is_current(&self) -> bool {
        self.replicas.epochs[self.replica.0 as usize].load(Ordering::Relaxed) == self.epoch
    }

    /// Passes an event of this session to the state machine, if the session is the current one of its replica.
    pub(super) fn with_session<T>(&self, what: impl FnOnce(&mut ReplicaSession) -> T) -> Option<T> {
        let mut session = self.replicas.session.lock();
        let result = self.is_current().then(|| what(&mut session));
        drop(session);
        self.replicas.wake().notify();
        result
    }
}

impl End for ReplicaEnd {
    fn next_work(&self, lane: LaneId) -> Work {
        let mut session = self.replicas.session.lock();
        if !self.is_current() {
            return Work::Over;
        }
        match session.poll_frame(self.replica, lane) {
            Some(frame) => Work::Frame(frame),
            None if session.is_left(self.replica) => Work::Over,
            None if !session.is_up(self.replica, lane) => Work::Down,
            None => {
                drop(session);
                self.limits.poll_frame(Instant::now()).map_or(Work::Idle(None), Work::Frame)
            }
        }
    }

    fn wake(&self) -> &Wake {
        self.replicas.wake()
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
                self.with_session(|session| session.handle_messages(self.replica, first, &encoded, now))
            }
            Frame::Acknowledge { next } => {
                self.with_session(|session| session.handle_acknowledgement(self.replica, next, now))
            }
            Frame::Welcome(_) => return Ok(()),
            _ => return Err(Error::protocol("a frame from the peer out of place")),
        };
        handled.unwrap_or(Ok(()))
    }

    fn lane_up(&self, lane: LaneId) {
        self.with_session(|session| session.handle_lane_up(self.replica, lane));
    }

    fn lane_down(&self, lane: LaneId) {
        self.with_session(|session| session.handle_lane_down(self.replica, lane, Instant::now()));
    }

    fn block_sink(self: Arc<Self>, _lane: LaneId) -> Box<dyn BlockSink> {
        Box::new(ReplicaLane::new(self))
    }

    fn is_over(&self) -> bool {
        let session = self.replicas.session.lock();
        !self.is_current() || session.is_left(self.replica)
    }

    /// Always true: the observer belongs to the receiver, which all replicas share.
    fn has_followed_up(&self) -> bool {
        true
    }

    fn tick(&self) {
        let silent = self.silence.lock().observe(&self.limits.heard(), Instant::now());
        if !silent.is_empty() {
            self.with_session(|session| session.handle_silence(self.replica, &silent));
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
        let session = self.replicas.session.lock();
        let delivered = self.replicas.delivered[self.replica.0 as usize].load(Ordering::Relaxed);
        let size = session.file().map_or(0, |file| file.size);
        let counters = Counters {
            files_known: session.file().map_or(0, |_| 1),
            bytes_known: size,
            bytes_done: delivered,
            bytes_carried: delivered,
            bytes_encoded: delivered,
            ..Counters::default()
        };
        Progress { counters, manifest_complete: session.file().is_some(), lanes: session.lane_count(self.replica) }
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
        self.with_session(|session| session.handle_left(self.replica, &error, Instant::now()));
    }
}
