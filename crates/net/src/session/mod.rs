//! The session driver: carries out what the session machines of `sterna-proto` decide.
//!
//! What it does: one [`Sender`] or [`Receiver`] owns a machine behind a lock; each lane of the session has two threads,
//! one that feeds it ([`attach`]) and one that reads it. Files are read and written here, blocks are hashed here.
//! What it refuses to do: dial and accept lanes (`client` and `agent` do), decide anything about blocks.
//!
//! The loop of a lane: started by [`attach`]; woken by the machine having something for the lane; one turn sends one
//! control frame or one block; it ends when the lane dies or the session is over.

mod encode;
mod follow;
mod holes;
pub mod limits;
mod names;
mod origin;
mod receiver;
mod recheck;
mod replicas;
mod seal;
mod sender;
mod silence;
mod slabs;
mod slot;
#[cfg(test)]
mod tests;
mod then;
mod watch;
mod writer;

pub use follow::{Follow, FollowRules};
pub use limits::{LimitWatch, LimitsNow};
pub use names::{AskedNames, SETTLED_PATHS_MAX, SettledPaths};
pub use origin::Origins;
pub use receiver::{Receiver, ReceiverOptions};
pub use replicas::{ReplicaEnd, Replicas};
pub use sender::{Sender, Source};
pub(crate) use silence::SILENT_AFTER;
pub use then::Then;
pub use watch::{Watch, progress_of};

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use sterna_proto::plan::{HeldLanes, choose_congestion};
use sterna_proto::session::{ActiveFile, FileOutcome, Frame, LaneId};
use sterna_proto::{BitRate, ByteCount, Counters, Error, FileEntry};

use self::limits::MeteredTx;
use self::limits::Wait;
use self::sender::NoBlocks;
use crate::lane::quic::SharedRate;
use crate::lane::{Lane, LaneHandle, LaneSink, LaneTx, Transport};

/// How long a feeder sleeps when nothing wakes it. Reason: time-outs of the machine are seconds; reports every 25 ms.
const FEEDER_NAP: Duration = Duration::from_millis(25);

/// How often an end says that it lives. Reason: as QUIC keeps its lanes alive; a peer that hears nothing for
/// three times this takes the client for gone when another wants its place, and for fifteen times this the lane for dead.
pub const ALIVE_EVERY: Duration = Duration::from_secs(2);

/// Longest time that closing all lanes takes. Reason: a lane bounds itself to 2 s and a round trip.
const CLOSE_ALL_TIME_MAX: Duration = Duration::from_secs(3);

/// What a session tells the one who started it, in order.
#[derive(Debug)]
pub enum SessionEvent {
    /// A file ended.
    Settled {
        /// Its entry.
        entry: FileEntry,
        /// How.
        outcome: FileOutcome,
    },
    /// A remark for the person.
    Notice(String),
    /// A decision, with its reason.
    Decision {
        /// What about: `compression`.
        subject: &'static str,
        /// Why.
        rationale: String,
    },
    /// Something in the sources could not be read.
    Unreadable(Error),
    /// A source has arrived, and could not be deleted or moved as it should.
    Left(Error),
    /// The session ended early.
    Aborted(Error),
}

/// Who hears the events of a session; called from lane threads, must not block for long.
pub trait Observer: Send + Sync {
    /// An event has happened.
    fn session_event(&self, event: SessionEvent);
}

/// Progress of a session: a snapshot for displays.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Files, bytes and blocks so far.
    pub counters: Counters,
    /// True once the manifest is complete.
    pub manifest_complete: bool,
    /// Lanes that are up; at a client, those that the agent has welcomed.
    pub lanes: usize,
}

/// What a feeder does next.
pub enum Work {
    /// Sends this frame.
    Frame(Frame),
    /// Sends a block: calls [`End::send_block`].
    Block(sterna_proto::session::BlockTask),
    /// Nothing now.
    Idle,
    /// The session is over: flushes and ends.
    Over,
}

/// One end of a session, as its lanes see it.
pub trait End: Send + Sync + 'static {
    /// What `lane` should do now; never blocks.
    fn next_work(&self, lane: LaneId) -> Work;
    /// Blocks until there may be work, at most [`FEEDER_NAP`].
    fn wait_for_work(&self, nap: Duration);
    /// Reads and sends one block. Errors: of the lane only; a source that cannot be read is told to the session.
    fn send_block(
        &self,
        lane: LaneId,
        task: sterna_proto::session::BlockTask,
        tx: &mut dyn LaneTx,
    ) -> Result<(), Error>;
    /// A control frame of the session has come.
    fn handle_frame(&self, frame: Frame) -> Result<(), Error>;
    /// A lane is up.
    fn lane_up(&self, lane: LaneId);
    /// A lane is dead.
    fn lane_down(&self, lane: LaneId);
    /// The thread that feeds `lane` has ended: nothing is held for it any more.
    fn lane_fed(&self, _lane: LaneId) {}
    /// What reads blocks from `lane`.
    fn block_sink(self: Arc<Self>, lane: LaneId) -> Box<dyn BlockSink>;
    /// Whether the session is over.
    fn is_over(&self) -> bool;
    /// Waits for `time`, or until it is over and all that follows is done. Reason: a copy that is done does not wait for the next tick.
    fn wait_until_over(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.is_over() || !self.has_followed_up() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.wait_for_work(left);
        }
    }
    /// Whether all that follows is done too, once it is over: its observer has heard everything, and sources are deleted
    /// or moved.
    fn has_followed_up(&self) -> bool;
    /// Time has passed: called a few times a second by the owner of the session.
    fn tick(&self);
    /// What watches its lanes for what limits them.
    fn limits(&self) -> &LimitWatch;
    /// What may be sent on all paths together, at most and as their rate, as far as that is given.
    fn agree_rates(&self, ceiling: Option<BitRate>, _target: Option<BitRate>) {
        self.limits().set_rate_cap(ceiling);
    }
    /// How far it is.
    fn progress(&self) -> Progress;
    /// Large files under way, the first `most`.
    fn active_files(&self, most: usize) -> Vec<ActiveFile>;
    /// Bytes at the receiver of files without an outcome: what a session that takes over finds there.
    fn unsettled_bytes(&self) -> u64;
    /// Ends the session at both ends.
    fn abort(&self, error: Error);
}

/// The block calls of [`LaneSink`], for the end that they belong to.
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

/// Numbers the lanes of one end of a session.
#[derive(Debug, Default)]
pub struct LaneIds(AtomicU32);

impl LaneIds {
    /// The next number.
    pub fn next(&self) -> LaneId {
        LaneId(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// The part of the given rate that TCP lanes are paced at. Reason: the rest pays for what the kernel sends unpaced (handshakes, acknowledgements,
/// repeats): measured, a second of eight lanes had 0.15 % more than they were given.
const TCP_USABLE: f64 = 0.996;

/// The lanes of a session, for figures and for what is decided about all of them together.
#[derive(Default)]
pub struct Lanes {
    live: Mutex<Vec<KnownLane>>,
}

struct KnownLane {
    handle: Weak<dyn LaneHandle>,
    /// The rate of its path.
    rate: SharedRate,
    /// Its congestion control was chosen, by the person or by us.
    settled: bool,
}

impl Lanes {
    /// Takes note of a lane and of the rate of its path. `congestion_given`: the person has chosen its congestion control.
    pub fn add(&self, handle: &Arc<dyn LaneHandle>, rate: SharedRate, congestion_given: bool) {
        let mut live = lock(&self.live);
        live.retain(|lane| lane.handle.strong_count() > 0);
        live.push(KnownLane { handle: Arc::downgrade(handle), rate, settled: congestion_given });
    }

    /// Forgets a lane that has ended, whoever still holds it.
    pub fn remove(&self, handle: &Arc<dyn LaneHandle>) {
        lock(&self.live).retain(|lane| !std::ptr::addr_eq(lane.handle.as_ptr(), Arc::as_ptr(handle)));
    }

    /// Every lane that is up.
    pub fn live(&self) -> Vec<Arc<dyn LaneHandle>> {
        lock(&self.live).iter().filter_map(|lane| lane.handle.upgrade()).collect()
    }

    /// Says on every lane that this end lives; its owner calls it every [`ALIVE_EVERY`], whatever storage does.
    pub fn say_alive(&self) {
        self.live().iter().for_each(|lane| lane.say_alive());
    }

    /// Divides the rate of each path: TCP lanes get equal parts of its ceiling, QUIC lanes share the parts that are theirs.
    pub fn share_rate(&self) {
        let known: Vec<(Arc<dyn LaneHandle>, SharedRate)> =
            lock(&self.live).iter().filter_map(|lane| Some((lane.handle.upgrade()?, lane.rate.clone()))).collect();
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
                (Transport::Tcp, Some(ceiling)) => {
                    handle.set_rate(Some(BitRate((ceiling.0 as f64 * TCP_USABLE / lanes) as u64)));
                }
                (Transport::Tcp, None) => {}
            }
        }
    }

    /// The transport of every lane that is up; `None` when they differ, or there is none.
    pub fn transport(&self) -> Option<Transport> {
        let live = self.live();
        let first = live.first()?.transport();
        live.iter().all(|lane| lane.transport() == first).then_some(first)
    }

    /// The lanes, when every one of them is held back by its window; `rate` is that of the path, if given.
    pub fn held(&self, rate: Option<BitRate>) -> Option<HeldLanes> {
        let live = self.live();
        let windows = live.iter().map(|lane| lane.held_to()).collect::<Option<Vec<_>>>()?;
        let rtt = live.iter().map(|lane| lane.stats().rtt_min).min()?;
        let window = ByteCount(windows.iter().map(|window| window.0).sum::<u64>() / windows.len() as u64);
        Some(HeldLanes { lanes: windows.len() as u32, window, rtt, rate })
    }

    /// Changes lanes that lose packets to another congestion control; returns why, for each that was changed.
    pub fn adapt_congestion(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        for lane in lock(&self.live).iter_mut().filter(|lane| !lane.settled) {
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

/// Closes lanes, all at once: each may take up to 2 s and a round trip when its peer or its path is slow.
pub(crate) fn close_all(lanes: impl IntoIterator<Item = Arc<dyn LaneHandle>>, reason: &'static str) {
    all_within(CLOSE_ALL_TIME_MAX, lanes.into_iter().map(|lane| move || lane.close(reason)));
}

/// Runs each job on a thread of its own and waits for all of them, but no longer than `time_max`: what is left goes on by
/// itself. A job that gets no thread is left out.
pub(crate) fn all_within(time_max: Duration, jobs: impl IntoIterator<Item = impl FnOnce() + Send + 'static>) {
    let (running, ended) = channel::<()>();
    for job in jobs {
        let running = running.clone();
        // Out of threads: waiting would not help either.
        let _ = thread::Builder::new().name("ending".to_owned()).spawn(move || {
            job();
            drop(running);
        });
    }
    drop(running);
    // Nothing is ever sent: the channel ends with its last job.
    let _ = ended.recv_timeout(time_max);
}

/// Locks a mutex whose data stays consistent even when a holder panicked: every change under our locks is complete
/// before anything that can panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Joins a lane to a session: feeds it from a new thread and reads it on the calling thread until it dies.
///
/// The lane counts as up for the machine from the start of this call to its end. `on_welcome` is called when the agent
/// has accepted the hello. Returns why it ended; `Ok` when the
/// peer closed it in order or the session is over.
pub fn attach(
    end: Arc<dyn End>,
    id: LaneId,
    lane: Lane,
    first_frame: Option<Frame>,
    on_welcome: &(dyn Fn() + Sync),
) -> Result<(), Error> {
    let Lane { tx, rx, handle, .. } = lane;
    let mut sink = WelcomedSink { sink: SessionSink::new(Arc::clone(&end), id), on_welcome };
    let joined = JoinedLane::new(&end, id, &handle);
    let feeder = spawn_feeder(Arc::clone(&end), id, tx, first_frame, Arc::clone(&handle));
    let read_outcome = rx.run(&mut sink);
    // The feeder may be blocked in the transport: closing the lane frees it.
    let over = end.is_over();
    handle.close(if over { "session over" } else { "lane ended" });
    drop(joined);
    let fed = feeder.map(|f| f.join().unwrap_or_else(|_| Err(panicked()))).unwrap_or_else(Err);
    if over { Ok(()) } else { read_outcome.and(fed) }
}

/// A lane counts as up for its session while this lives. Dropped, also by a panic, it closes the lane and takes it down, so
/// that the blocks on it go to other lanes.
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

/// Closes a lane when its feeder ends, also by a panic: its reader then ends too.
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
            if fed.is_ok() {
                lane.reason = "session over";
            }
            fed
        })
        .map_err(|e| crate::internal("start the thread of a lane").caused_by(e))
}

/// Says when a lane is fed no more, also after a panic.
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
        match end.next_work(id) {
            Work::Frame(frame) => tx.control(&frame.encode())?,
            Work::Block(task) => end.send_block(id, task, &mut tx)?,
            Work::Over => return tx.flush(),
            // Ask once more after a flush: it may have taken long, and work may have come.
            Work::Idle if !flushed => {
                tx.flush()?;
                flushed = true;
                continue;
            }
            Work::Idle => meter.during(Wait::Work, 0, || end.wait_for_work(FEEDER_NAP)),
        }
        flushed = false;
    }
}

fn panicked() -> Error {
    crate::internal("a thread of a lane ended by a panic")
}

/// A sink that tells when the agent has said welcome.
struct WelcomedSink<'a> {
    sink: SessionSink,
    on_welcome: &'a (dyn Fn() + Sync),
}

impl LaneSink for WelcomedSink<'_> {
    fn control(&mut self, frame: &[u8]) -> Result<(), Error> {
        let frame = Frame::decode(frame)?;
        if matches!(frame, Frame::Welcome) {
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

/// What the reading half of a lane calls once the lane has joined a session.
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
        self.handle(Frame::decode(frame)?)
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
