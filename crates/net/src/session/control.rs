//! Control session without blocks: one end is a command, the other the agent that runs its third-party copy.
//!
//! Runs one control log over any number of lanes, and sends the latest snapshot beside it. Refuses to run the copy
//! (`agent::third_party` does) and to decide anything.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sterna_proto::Error;
use sterna_proto::rate::RateContract;
use sterna_proto::session::{
    ActiveFile, AgentReport, Answer, BlockTask, Conclusion, ControlEvent, ControlSession, ControlSide, Frame, LaneId,
    PathNumber, Snapshot,
};

use super::limits::{LimitMonitor, Role};
use super::{BlockSink, End, NoBlocks, Progress, Work};
use crate::lane::LaneTx;
use crate::wake::Wake;

/// Interval between snapshots. Reason: displays draw five times a second; a snapshot of four lanes has about 300
/// bytes.
pub(crate) const SNAPSHOT_EVERY: Duration = Duration::from_millis(200);

/// Callback for the events from the other end, in order, one at a time.
type Hear = Box<dyn Fn(ControlEvent) + Send + Sync>;

/// One end of a control session.
pub struct ControlEnd {
    side: ControlSide,
    session: Mutex<ControlSession>,
    wake: Wake,
    limits: Arc<LimitMonitor>,
    latest: Mutex<Latest>,
    hear: Hear,
    /// Held while events are passed on, to keep their order.
    passing_on: Mutex<()>,
}

#[derive(Default)]
struct Latest {
    /// Last snapshot, and the number of snapshots up to now.
    snapshot: Option<Snapshot>,
    number: u64,
    /// Number of the last snapshot sent, and the time of sending.
    sent: (u64, Option<Instant>),
}

impl Latest {
    fn set(&mut self, snapshot: Snapshot) {
        self.snapshot = Some(snapshot);
        self.number += 1;
    }
}

impl ControlEnd {
    /// Returns one end. Lane threads call `hear`.
    pub fn new(side: ControlSide, linger: Duration, hear: Hear) -> Arc<Self> {
        Arc::new(Self {
            side,
            session: Mutex::new(ControlSession::new(side, linger)),
            wake: Wake::default(),
            limits: LimitMonitor::idle(Role::Receiver),
            latest: Mutex::default(),
            hear,
            passing_on: Mutex::new(()),
        })
    }

    /// Agent: sends an event of the copy.
    pub fn report(&self, report: AgentReport) {
        self.session.lock().report(report);
        self.wake.notify();
    }

    /// Agent: sends an answer to a query. Waits while the log is full. Returns false if the session is over, or if
    /// `is_stopped` returns true, which is asked again after each change.
    pub fn answer(&self, answer: Answer, is_stopped: impl Fn() -> bool) -> bool {
        let mut waiting = Some(answer);
        loop {
            let seen = self.wake.seen();
            let mut session = self.session.lock();
            if session.is_concluded() || is_stopped() {
                return false;
            }
            waiting = waiting.and_then(|answer| session.answer(answer));
            drop(session);
            if waiting.is_none() {
                self.wake.notify();
                return true;
            }
            self.wake.wait_to(seen, None);
        }
    }

    /// Command: changes the rate contract of a path of the copy.
    pub fn send_contract(&self, path: PathNumber, contract: RateContract) {
        self.session.lock().send_contract(path, contract);
        self.wake.notify();
    }

    /// Agent: returns the contracts that the command has changed since the last call.
    pub fn take_contracts(&self) -> BTreeMap<PathNumber, RateContract> {
        self.session.lock().take_contracts()
    }

    /// Agent: sends the outcome of the copy.
    pub fn conclude(&self, conclusion: Conclusion) {
        self.session.lock().conclude(conclusion);
        self.wake.notify();
    }

    /// Agent: fails the copy.
    pub fn fail(&self, error: Error) {
        self.session.lock().fail(error);
        self.after_change();
    }

    /// Agent: sets the snapshot to send.
    pub fn show(&self, snapshot: Snapshot) {
        self.latest.lock().set(snapshot);
        self.wake.notify();
    }

    /// Command: returns the last snapshot, with a number that identifies it.
    pub fn latest(&self) -> Option<(u64, Snapshot)> {
        let latest = self.latest.lock();
        latest.snapshot.clone().map(|snapshot| (latest.number, snapshot))
    }

    /// Passes received events on. After this call, the events taken by other threads have also been passed on. Returns
    /// true if there were any.
    fn pass_on(&self) -> bool {
        let _one = self.passing_on.lock();
        let mut is_any = false;
        loop {
            let event = self.session.lock().poll_event();
            let Some(event) = event else { return is_any };
            is_any = true;
            (self.hear)(event);
        }
    }

    fn after_change(&self) {
        self.pass_on();
        self.wake.notify();
    }

    /// Returns the latest snapshot if it is new and due, or the time at which it is due.
    fn poll_snapshot(&self, now: Instant) -> Work {
        let mut latest = self.latest.lock();
        let (number, at) = latest.sent;
        if number == latest.number {
            return Work::Idle(None);
        }
        if let Some(due) = at.map(|at| at + SNAPSHOT_EVERY).filter(|due| *due > now) {
            return Work::Idle(Some(due));
        }
        latest.sent = (latest.number, Some(now));
        let snapshot = latest.snapshot.clone();
        snapshot.map_or(Work::Idle(None), |snapshot| Work::Frame(Frame::Snapshot(Box::new(snapshot))))
    }
}

impl End for ControlEnd {
    fn next_work(&self, lane: LaneId) -> Work {
        let mut session = self.session.lock();
        if let Some(frame) = session.poll_frame(lane) {
            return Work::Frame(frame);
        }
        if session.is_over() {
            return Work::Over;
        }
        if !session.is_up(lane) {
            return Work::Down;
        }
        // Only the agent sends snapshots, and none after the conclusion.
        let has_snapshots = self.side == ControlSide::Agent && !session.is_concluded();
        drop(session);
        if has_snapshots { self.poll_snapshot(Instant::now()) } else { Work::Idle(None) }
    }

    fn wake(&self) -> &Wake {
        &self.wake
    }

    fn send_block(&self, _lane: LaneId, _task: BlockTask, _tx: &mut dyn LaneTx) -> Result<(), Error> {
        Err(crate::internal("a block in a session without blocks"))
    }

    fn handle_frame(&self, frame: Frame) -> Result<(), Error> {
        let handled = match frame {
            Frame::Messages { first, encoded } => self.session.lock().handle_messages(first, &encoded),
            Frame::Acknowledge { next } => self.session.lock().handle_acknowledgement(next),
            Frame::Welcome(capabilities) => {
                self.session.lock().handle_welcome(capabilities.features);
                Ok(())
            }
            Frame::Snapshot(snapshot) if self.side == ControlSide::Command => {
                self.latest.lock().set(*snapshot);
                return Ok(());
            }
            _ => Err(Error::protocol("a frame from the peer out of place")),
        };
        // An error has ended the session: the other lanes have to send that.
        self.after_change();
        handled
    }

    fn lane_up(&self, lane: LaneId) {
        self.session.lock().handle_lane_up(lane);
        self.wake.notify();
    }

    fn lane_down(&self, lane: LaneId) {
        self.session.lock().handle_lane_down(lane, Instant::now());
        self.after_change();
    }

    fn block_sink(self: Arc<Self>, _lane: LaneId) -> Box<dyn BlockSink> {
        Box::new(NoBlocks)
    }

    fn is_over(&self) -> bool {
        self.session.lock().is_over()
    }

    fn has_followed_up(&self) -> bool {
        self.pass_on();
        true
    }

    fn tick(&self) {
        let now = Instant::now();
        let mut session = self.session.lock();
        let is_due = session.poll_timeout(now).is_some_and(|due| due <= now);
        session.handle_timeout(now);
        drop(session);
        if self.pass_on() || is_due {
            self.wake.notify();
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.session.lock().poll_timeout(Instant::now())
    }

    fn limits(&self) -> &LimitMonitor {
        &self.limits
    }

    fn progress(&self) -> Progress {
        self.latest.lock().snapshot.as_ref().map(progress_of).unwrap_or_default()
    }

    fn active_files(&self, most: usize) -> Vec<ActiveFile> {
        let latest = self.latest.lock();
        latest.snapshot.iter().flat_map(|snapshot| snapshot.files.iter().take(most).cloned()).collect()
    }

    fn unsettled_bytes(&self) -> u64 {
        0
    }

    fn abort(&self, error: Error) {
        self.session.lock().abort(error);
        self.after_change();
    }
}

/// Returns the progress of the session between the agents, from a snapshot.
pub fn progress_of(snapshot: &Snapshot) -> Progress {
    Progress {
        counters: snapshot.counters,
        manifest_complete: snapshot.manifest_complete,
        lanes: usize::try_from(snapshot.lanes_up).unwrap_or(usize::MAX),
    }
}
