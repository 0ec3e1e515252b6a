//! Session driver: carries out the decisions of the session state machines of `sterna-proto`.
//!
//! One [`Sender`] or [`Receiver`] owns a state machine behind a lock. Each lane of the session has two threads: one
//! feeds the lane ([`attach`]), and one reads it. This module hashes blocks, and reads and writes files through the
//! traits of `source` and `sink`. It refuses to dial or accept lanes (`client` and `agent` do), and to decide anything
//! about blocks.
//!
//! [`attach`] starts the loop of a lane. The loop wakes when the state machine has work for the lane, and one turn
//! sends one control frame or one block. The loop ends when the lane dies or the session is over.

mod control;
mod encode;
mod holes;
pub mod limits;
mod names;
mod receiver;
mod recheck;
mod replicas;
mod sender;
mod silence;
mod slabs;
mod slot;
mod sweep;
#[cfg(test)]
mod tests;
mod writer;

pub(crate) use control::SNAPSHOT_EVERY;
pub use control::{ControlEnd, progress_of};
pub use limits::{LimitMonitor, LimitsNow};
pub use names::{AskedNames, SETTLED_PATHS_MAX, SettledPaths};
pub use receiver::{Expected, Receiver, ReceiverOptions};
pub use replicas::{ReplicaEnd, Replicas};
pub use sender::Sender;
pub(crate) use silence::SILENT_AFTER;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sterna_proto::plan::{HeldLanes, choose_congestion};
use sterna_proto::rate::RateContract;
use sterna_proto::session::{ActiveFile, Frame, LaneId, PathNumber};
use sterna_proto::{BitRate, ByteCount, Counters, Error};

use self::limits::MeteredTx;
use self::limits::Wait;
use crate::lane::quic::SharedRate;
use crate::lane::{Lane, LaneHandle, LaneSink, LaneTx, Transport};
use crate::wake::Wake;

pub use crate::observer::{Observer, SessionEvent};

/// Bytes that are read and hashed in one step.
const READ_BYTES: usize = crate::lane::PIECE_BYTES;

/// Interval of the keep-alive frames of an end. Reason: the same as the keep-alive of QUIC lanes. After three
/// intervals without data, a peer considers the client gone if another client wants its place. After fifteen
/// intervals, a peer considers the lane dead.
pub const ALIVE_EVERY: Duration = Duration::from_secs(2);

/// Reason for the close of a lane whose session is over at this end. Part of the protocol: a client that has closed a
/// lane for this reason connects no lane again, and the agent aborts a session that has lost its last lane then.
pub(crate) const SESSION_OVER: &str = "session over";

/// Longest time to close all lanes. Reason: each lane limits its own close to 2 s and one round trip.
const CLOSE_ALL_TIME_MAX: Duration = Duration::from_secs(3);

/// Progress of a session, as a snapshot for displays.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Files, bytes and blocks up to now.
    pub counters: Counters,
    /// True once the manifest is complete.
    pub manifest_complete: bool,
    /// Lanes that are up. At a client: only lanes that the agent has welcomed.
    pub lanes: usize,
}

/// Next action of a feeder.
pub enum Work {
    /// Send this frame.
    Frame(Frame),
    /// Send a block with [`End::send_block`].
    Block(sterna_proto::session::BlockTask),
    /// Wait for a change of the session: there is no work now. With a time, there is work at that time even without a
    /// change.
    Idle(Option<Instant>),
    /// Stop: the lane is down.
    Down,
    /// Flush and stop: the session is over.
    Over,
}

/// One end of a session, as seen by its lanes.
pub trait End: Send + Sync + 'static {
    /// Returns the next work for `lane`; never blocks.
    fn next_work(&self, lane: LaneId) -> Work;
    /// Returns the event count that every change of the session notifies.
    fn wake(&self) -> &Wake;
    /// Reads and sends one block. Errors: of the lane only; an unreadable source is reported to the session.
    fn send_block(
        &self,
        lane: LaneId,
        task: sterna_proto::session::BlockTask,
        tx: &mut dyn LaneTx,
    ) -> Result<(), Error>;
    /// Handles a control frame of the session.
    fn handle_frame(&self, frame: Frame) -> Result<(), Error>;
    /// Handles the start of a lane.
    fn lane_up(&self, lane: LaneId);
    /// Handles the death of a lane.
    fn lane_down(&self, lane: LaneId);
    /// Handles the end of the thread that feeds `lane`: releases everything that is held for that thread.
    fn lane_fed(&self, _lane: LaneId) {}
    /// Returns the sink for the blocks that arrive on `lane`.
    fn block_sink(self: Arc<Self>, lane: LaneId) -> Box<dyn BlockSink>;
    /// True if the session is over.
    fn is_over(&self) -> bool;
    /// Waits for `time`, or until the session and its follow-up work are done. Reason: a finished copy ends at once,
    /// not at the next tick.
    fn wait_until_over(&self, time: Duration) {
        self.wake().wait_until(time, || self.is_over() && self.has_followed_up());
    }
    /// True if the follow-up work is done: the observer has received all events, and sources are deleted or moved.
    /// Only valid once the session is over.
    fn has_followed_up(&self) -> bool;
    /// Advances timers, and detects silent lanes. The owner of the session calls it at [`End::deadline`], and at least
    /// once a second.
    fn tick(&self);
    /// Returns the latest time for the next [`End::tick`]. It may change with every change of the session.
    fn deadline(&self) -> Option<Instant>;
    /// Returns the sampler that finds the limits of the lanes.
    fn limits(&self) -> &LimitMonitor;
    /// Sets the total rates of all paths, where given: `ceiling` is the maximum, `_target` is the expected rate.
    fn agree_rates(&self, ceiling: Option<BitRate>, _target: Option<BitRate>) {
        self.limits().set_rate_cap(ceiling);
    }
    /// Sends a new rate contract of a path to the peer, if the peer can follow. An end that sends the data
    /// has nothing to send.
    fn send_contract(&self, _path: PathNumber, _contract: RateContract) {}
    /// Returns the contracts that the peer has changed since the last call, for an end that sends the data.
    fn take_contracts(&self) -> BTreeMap<PathNumber, RateContract> {
        BTreeMap::new()
    }
    /// Returns the progress of the session.
    fn progress(&self) -> Progress;
    /// Returns the large files in progress, at most `most` of them.
    fn active_files(&self, most: usize) -> Vec<ActiveFile>;
    /// Returns the bytes that the receiver has of files without an outcome. A takeover session finds these bytes
    /// there.
    fn unsettled_bytes(&self) -> u64;
    /// Ends the session at both ends.
    fn abort(&self, error: Error);
}

/// Calls of [`LaneSink`] for blocks, implemented by the end that receives them.
pub trait BlockSink: Send {
    /// See [`LaneSink::block_begin`].
    fn begin(&mut self, block: u64, header: &[u8], data_len: u64) -> Result<(), Error>;
    /// See [`LaneSink::block_data`].
    fn data(&mut self, block: u64, offset: u64, data: &[u8]) -> Result<(), Error>;
    /// See [`LaneSink::block_end`].
    fn end(&mut self, block: u64, trailer: &[u8]) -> Result<(), Error>;
    /// See [`LaneSink::block_abandoned`].
    fn abandoned(&mut self, block: u64) -> Result<(), Error>;
}

/// Block sink of an end that receives no blocks.
pub(super) struct NoBlocks;

impl BlockSink for NoBlocks {
    fn begin(&mut self, _block: u64, _header: &[u8], _data_len: u64) -> Result<(), Error> {
        Err(Error::protocol("a receiver sent a block"))
    }
    fn data(&mut self, _block: u64, _offset: u64, _data: &[u8]) -> Result<(), Error> {
        Err(Error::protocol("a receiver sent a block"))
    }
    fn end(&mut self, _block: u64, _trailer: &[u8]) -> Result<(), Error> {
        Err(Error::protocol("a receiver sent a block"))
    }
    fn abandoned(&mut self, _block: u64) -> Result<(), Error> {
        Err(Error::protocol("a receiver sent a block"))
    }
}

/// Counter that numbers the lanes of one end of a session.
#[derive(Debug, Default)]
pub struct LaneIds(AtomicU32);

impl LaneIds {
    /// Returns the next lane number.
    pub fn next(&self) -> LaneId {
        LaneId(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// Part of the given rate at which TCP lanes are paced. Reason: the kernel sends handshakes, acknowledgements and
/// retransmissions without pacing. Measured: in one second, eight lanes sent 0.15 % more than their rate.
const TCP_USABLE: f64 = 0.996;

/// Lanes of a session, for statistics and for decisions about all lanes together.
#[derive(Default)]
pub struct Lanes {
    live: Mutex<Vec<KnownLane>>,
}

struct KnownLane {
    handle: Weak<dyn LaneHandle>,
    /// Rate of the path of the lane.
    rate: SharedRate,
    /// True if the congestion control was chosen, by the user or by Sterna.
    settled: bool,
}

impl Lanes {
    /// Adds a lane with the rate of its path. `congestion_given`: the user has chosen the congestion control.
    pub fn add(&self, handle: &Arc<dyn LaneHandle>, rate: SharedRate, congestion_given: bool) {
        let mut live = self.live.lock();
        live.retain(|lane| lane.handle.strong_count() > 0);
        live.push(KnownLane { handle: Arc::downgrade(handle), rate, settled: congestion_given });
    }

    /// Removes a lane that has ended, even if other code still holds its handle.
    pub fn remove(&self, handle: &Arc<dyn LaneHandle>) {
        self.live.lock().retain(|lane| !std::ptr::addr_eq(lane.handle.as_ptr(), Arc::as_ptr(handle)));
    }

    /// Returns every lane that is up.
    pub fn live(&self) -> Vec<Arc<dyn LaneHandle>> {
        self.live.lock().iter().filter_map(|lane| lane.handle.upgrade()).collect()
    }

    /// Sends a keep-alive on every lane. The owner calls it every [`ALIVE_EVERY`], even while storage is slow.
    pub fn say_alive(&self) {
        self.live().iter().for_each(|lane| lane.say_alive());
    }

    /// Divides the rate of each path. Each TCP lane gets an equal part of its ceiling; QUIC lanes together get the
    /// sum of their equal parts.
    pub fn share_rate(&self) {
        let known: Vec<(Arc<dyn LaneHandle>, SharedRate)> =
            self.live.lock().iter().filter_map(|lane| Some((lane.handle.upgrade()?, lane.rate.clone()))).collect();
        for (handle, rate) in &known {
            let beside = known.iter().filter(|(_, other)| other.is(rate));
            let (over_quic, over_tcp): (Vec<_>, Vec<_>) =
                beside.partition(|(other, _)| other.transport() == Transport::Quic);
            let lanes = (over_quic.len() + over_tcp.len()) as f64;
            match (handle.transport(), rate.contract().ceiling) {
                (Transport::Quic, _) => {
                    rate.set_fraction(over_quic.len() as f64 / lanes);
                    handle.share_rate(rate);
                }
                (Transport::Tcp, ceiling) => {
                    handle.set_rate(ceiling.map(|most| BitRate((most.0 as f64 * TCP_USABLE / lanes) as u64)));
                }
            }
        }
    }

    /// Returns the common transport of all live lanes; `None` if they differ or if there is no lane.
    pub fn transport(&self) -> Option<Transport> {
        let live = self.live();
        let first = live.first()?.transport();
        live.iter().all(|lane| lane.transport() == first).then_some(first)
    }

    /// Returns the lanes if the window limits every one of them. `rate` is the rate of the path, if given.
    pub fn held(&self, rate: Option<BitRate>) -> Option<HeldLanes> {
        let live = self.live();
        let windows = live.iter().map(|lane| lane.held_to()).collect::<Option<Vec<_>>>()?;
        let rtt = live.iter().map(|lane| lane.stats().rtt_min).min()?;
        let window = ByteCount(windows.iter().map(|window| window.0).sum::<u64>() / windows.len() as u64);
        Some(HeldLanes { lanes: windows.len() as u32, window, rtt, rate })
    }

    /// Changes the congestion control of TCP lanes that lose packets; returns one reason for each changed lane.
    pub fn adapt_congestion(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        for lane in self.live.lock().iter_mut().filter(|lane| !lane.settled) {
            let Some(handle) = lane.handle.upgrade().filter(|handle| handle.transport() == Transport::Tcp) else {
                continue;
            };
            let stats = handle.stats();
            let Some(choice) = choose_congestion(stats.rtt_min, stats.packets_sent, stats.packets_lost) else {
                continue;
            };
            lane.settled = true;
            reasons.push(match handle.set_congestion(choice.value) {
                Ok(()) => choice.rationale,
                Err(error) => format!("{}, but {}", choice.rationale, error.chain()),
            });
        }
        reasons
    }
}

/// Closes lanes in parallel. Each close may take up to 2 s and a round trip when the peer or the path is slow.
pub(crate) fn close_all(lanes: impl IntoIterator<Item = Arc<dyn LaneHandle>>, reason: &'static str) {
    all_within(CLOSE_ALL_TIME_MAX, lanes.into_iter().map(|lane| move || lane.close(reason)));
}

/// Longest time for the ends of lanes to leave this host. Reason: they wait for the threads and the pace of the lanes,
/// not for a window. A packet of 9000 bytes takes 29 ms at 2.5 Mbit/s, and 0.5 s at 144 kbit/s.
const LAST_PACKETS_TIME_MAX: Duration = Duration::from_millis(500);

/// Ends lanes at once, and waits until the packets of their ends have left this host: the process may end then.
pub(crate) fn cut_all(lanes: impl IntoIterator<Item = Arc<dyn LaneHandle>>, reason: &'static str) {
    let lanes: Vec<Arc<dyn LaneHandle>> = lanes.into_iter().collect();
    lanes.iter().for_each(|lane| lane.cut(reason));
    let deadline = Instant::now() + LAST_PACKETS_TIME_MAX;
    lanes.iter().for_each(|lane| lane.wait_until_cut(deadline));
}

/// Runs each job on a separate thread and waits for all jobs, at most `time_max`. Unfinished jobs continue in the
/// background. A job for which no thread can be started is dropped.
pub(crate) fn all_within(time_max: Duration, jobs: impl IntoIterator<Item = impl FnOnce() + Send + 'static>) {
    let (running, ended) = channel::<()>();
    for job in jobs {
        let running = running.clone();
        // The host is out of threads: waiting would not help.
        let _ = thread::Builder::new().name("ending".to_owned()).spawn(move || {
            job();
            drop(running);
        });
    }
    drop(running);
    // Nothing is sent on this channel: it closes when the last job ends.
    let _ = ended.recv_timeout(time_max);
}

/// Joins a lane to a session: a new thread feeds the lane, and the calling thread reads it until it dies.
///
/// The state machine counts the lane as up from the start of this call to its end. `on_welcome` is called when the
/// agent accepts the hello. Returns the reason for the end; `Ok` if the peer closed the lane in order or the session
/// is over.
pub fn attach(
    end: Arc<dyn End>,
    id: LaneId,
    lane: Lane,
    first_frame: Option<Frame>,
    on_welcome: &(dyn Fn() + Sync),
) -> Result<(), Error> {
    let Lane { tx, rx, handle, .. } = lane;
    if end.is_over() {
        // No abort would follow the hello, and the agent would hold the session open.
        handle.close(SESSION_OVER);
        return Ok(());
    }
    let mut sink = WelcomedSink { sink: SessionSink::new(Arc::clone(&end), id), on_welcome };
    let joined = JoinedLane::new(&end, id, &handle);
    let feeder = spawn_feeder(Arc::clone(&end), id, tx, first_frame, Arc::clone(&handle));
    let read_outcome = rx.run(&mut sink);
    // The feeder may block in the transport: closing the lane releases it.
    let over = end.is_over();
    handle.close(if over { SESSION_OVER } else { "lane ended" });
    drop(joined);
    let fed = feeder.map(|f| f.join().unwrap_or_else(|_| Err(panicked()))).unwrap_or_else(Err);
    if over { Ok(()) } else { read_outcome.and(fed) }
}

/// Keeps a lane counted as up for its session. Drop, also after a panic, closes the lane and marks it as down. Its
/// blocks then go to other lanes.
pub(crate) struct JoinedLane {
    end: Arc<dyn End>,
    id: LaneId,
    handle: Arc<dyn LaneHandle>,
}

impl JoinedLane {
    pub(crate) fn new(end: &Arc<dyn End>, id: LaneId, handle: &Arc<dyn LaneHandle>) -> Self {
        end.limits().lane_up(id, handle);
        end.lane_up(id);
        Self { end: Arc::clone(end), id, handle: Arc::clone(handle) }
    }
}

impl Drop for JoinedLane {
    fn drop(&mut self) {
        self.handle.close("lane ended");
        self.end.limits().lane_down(self.id);
        self.end.lane_down(self.id);
    }
}

/// Closes a lane when its feeder ends, also by a panic. The reader of the lane then ends too.
struct FedLane {
    handle: Arc<dyn LaneHandle>,
    reason: &'static str,
}

impl Drop for FedLane {
    fn drop(&mut self) {
        self.handle.close(self.reason);
    }
}

/// Starts the thread that feeds a lane.
pub(crate) fn spawn_feeder(
    end: Arc<dyn End>,
    id: LaneId,
    tx: Box<dyn LaneTx>,
    first_frame: Option<Frame>,
    handle: Arc<dyn LaneHandle>,
) -> Result<thread::JoinHandle<Result<(), Error>>, Error> {
    thread::Builder::new()
        .name(format!("feed-{}", id.0))
        .spawn(move || {
            let mut lane = FedLane { handle, reason: "lane ended" };
            end.limits().begin_feeding(id);
            let fed = feed(&*end, id, tx, first_frame);
            if fed.is_ok() && end.is_over() {
                lane.reason = SESSION_OVER;
            }
            fed
        })
        .map_err(|e| crate::no_thread("start the thread of a lane", e))
}

/// Reports the end of the feeding of a lane, also after a panic.
struct Fed<'a> {
    end: &'a dyn End,
    id: LaneId,
}

impl Drop for Fed<'_> {
    fn drop(&mut self) {
        self.end.lane_fed(self.id);
    }
}

/// Feeds a lane until it dies or the session is over.
pub(crate) fn feed(end: &dyn End, id: LaneId, tx: Box<dyn LaneTx>, first_frame: Option<Frame>) -> Result<(), Error> {
    let meter = end.limits().feeder(id);
    let mut tx = MeteredTx::new(tx, Arc::clone(&meter));
    if let Some(frame) = first_frame {
        tx.control(&frame.encode())?;
    }
    let _fed = Fed { end, id };
    let mut flushed = false;
    loop {
        let seen = end.wake().seen();
        match end.next_work(id) {
            Work::Frame(frame) => tx.control(&frame.encode())?,
            Work::Block(task) => end.send_block(id, task, &mut tx)?,
            Work::Over => {
                // The frame that was sent last may have ended the session: other threads wait for that.
                end.wake().notify();
                return tx.flush();
            }
            Work::Down => return Ok(()),
            // Ask once more after a flush: the flush can take long, and work may have arrived.
            Work::Idle(_) if !flushed => {
                tx.flush()?;
                flushed = true;
                continue;
            }
            Work::Idle(until) => meter.during(Wait::Work, 0, || end.wake().wait_to(seen, until)),
        }
        flushed = false;
    }
}

fn panicked() -> Error {
    crate::internal("a thread of a lane ended by a panic")
}

/// Sink that reports the welcome of the agent.
struct WelcomedSink<'a> {
    sink: SessionSink,
    on_welcome: &'a (dyn Fn() + Sync),
}

impl LaneSink for WelcomedSink<'_> {
    fn control(&mut self, frame: &[u8]) -> Result<(), Error> {
        let Some(frame) = Frame::decode(frame)? else { return Ok(()) };
        if matches!(frame, Frame::Welcome(_)) {
            (self.on_welcome)();
        }
        self.sink.handle(frame)
    }

    fn block_begin(&mut self, block: u64, header: &[u8], data_len: u64) -> Result<(), Error> {
        self.sink.block_begin(block, header, data_len)
    }

    fn block_data(&mut self, block: u64, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.sink.block_data(block, offset, data)
    }

    fn block_end(&mut self, block: u64, trailer: &[u8]) -> Result<(), Error> {
        self.sink.block_end(block, trailer)
    }

    fn block_abandoned(&mut self, block: u64) -> Result<(), Error> {
        self.sink.block_abandoned(block)
    }
}

/// Sink for the reading half of a lane that has joined a session.
pub(crate) struct SessionSink {
    end: Arc<dyn End>,
    blocks: Box<dyn BlockSink>,
}

impl SessionSink {
    pub(crate) fn new(end: Arc<dyn End>, id: LaneId) -> Self {
        let blocks = Arc::clone(&end).block_sink(id);
        Self { end, blocks }
    }

    fn handle(&mut self, frame: Frame) -> Result<(), Error> {
        match frame {
            Frame::Refuse(error) => Err(error),
            frame => self.end.handle_frame(frame),
        }
    }
}

impl LaneSink for SessionSink {
    fn control(&mut self, frame: &[u8]) -> Result<(), Error> {
        Frame::decode(frame)?.map_or(Ok(()), |frame| self.handle(frame))
    }

    fn block_begin(&mut self, block: u64, header: &[u8], data_len: u64) -> Result<(), Error> {
        self.blocks.begin(block, header, data_len)
    }

    fn block_data(&mut self, block: u64, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.blocks.data(block, offset, data)
    }

    fn block_end(&mut self, block: u64, trailer: &[u8]) -> Result<(), Error> {
        self.blocks.end(block, trailer)
    }

    fn block_abandoned(&mut self, block: u64) -> Result<(), Error> {
        self.blocks.abandoned(block)
    }
}
