//! Sampler of the limits of a session: reads its lanes and the waits of its threads ten times a second.
//!
//! Keeps a [`Meter`] for each thread of a lane, reads the meters and the transports, and passes them to the
//! [`Accountant`]. Exchanges reports with the other end, and wakes the feeders when one is due. Refuses to decide
//! anything: the [`Accountant`] does. Its one thread (`limits`) ends with the session.

mod meter;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sterna_proto::limit::trace::Input;
use sterna_proto::limit::{
    Accountant, LaneJudgement, LaneSample, LimitReport, ReceiverReport, SourceSample, TransportSample, Waits, WebSample,
};
use sterna_proto::session::{Frame, LaneId};
use sterna_proto::{BitRate, ByteCount, Error};

use self::meter::Reading;
use crate::lane::{LaneHandle, tcp};
use crate::pace::Pace;
use crate::wake::Wake;

pub(in crate::session) use self::meter::MeteredTx;
pub use self::meter::{Meter, Wait};

/// Interval between samples of the lanes. Reason: the kernel counts in steps of 4 ms, and users notice half a second.
const SAMPLE_EVERY: Duration = Duration::from_millis(100);

/// Number of additional lanes that lengthen the interval between samples by one more [`SAMPLE_EVERY`]. Reason: a lane
/// costs about 10 µs, so 64 lanes at ten samples a second would take 0.7 % of a core.
const LANES_SAMPLED: u32 = 32;

/// Interval between samples while no data moves. Reason: a host runs a thousand sessions that mostly wait. Lanes that
/// are silent for a second have another limit.
const SAMPLE_IDLE_EVERY: Duration = Duration::from_millis(500);

/// Interval between reports to the other end: [`REPORT_EVERY_OFTEN`] while the session is younger than [`YOUNG`],
/// then [`REPORT_EVERY`]. Reason: a copy of one second still sends some reports. A long session that waits for
/// storage sends few bytes of reports, so that the stall detector sees the session as idle.
const REPORT_EVERY_OFTEN: Duration = Duration::from_millis(200);
const REPORT_EVERY: Duration = Duration::from_secs(1);
const YOUNG: Duration = Duration::from_secs(10);

/// Interval between reads of the buffer limits of the kernel. Reason: administrators change them by hand.
const BUFFER_LIMITS_EVERY: Duration = Duration::from_secs(5);

/// Role of this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sends blocks, and decides what limits the session.
    Sender,
    /// Receives blocks, and reports its waits to the sender.
    Receiver,
}

/// Current limits of a session.
#[derive(Clone, Debug, Default)]
pub struct LimitsNow {
    /// Counter of samples and reports. The same number means the same data.
    pub number: u64,
    /// Shares of time, and facts.
    pub report: LimitReport,
    /// Judgement of each lane in the last interval; only at a sender.
    pub lanes: Vec<LaneJudgement>,
}

/// Sampler of the lanes of one end of a session.
pub struct LimitMonitor {
    role: Role,
    begun: Instant,
    /// Notified when a report is due.
    wake: Arc<Wake>,
    state: Mutex<State>,
    storage_work: Mutex<StorageWork>,
    /// Measures the web servers of the sources.
    web: OnceLock<Box<dyn Fn() -> WebSample + Send + Sync>>,
    /// Recording of the inputs of the accountant, for tests that replay it.
    recording: OnceLock<Arc<File>>,
    /// Packets dropped by the receiving host, as of the last look or the last report.
    dropped: AtomicU64,
}

#[derive(Default)]
struct State {
    lanes: BTreeMap<LaneId, WatchedLane>,
    /// Sums of the lanes that have ended.
    ended: ReceiverReport,
    accountant: Accountant,
    /// Last report of the sender, at a receiver.
    latest: LimitReport,
    number: u64,
    reported: Option<Instant>,
    buffer_limits: (ByteCount, ByteCount),
    limits_read: Option<Instant>,
    /// Bytes that lanes which have ended read from the source, and the sum of their waits for the source.
    source_bytes: u64,
    source_time: Duration,
    pace: Option<Pace>,
}

struct WatchedLane {
    link: Link,
    feeder: Arc<Meter>,
    reader: Arc<Meter>,
    fed: (Reading, Waits),
    read: (Reading, Waits),
}

/// State of the next report to the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReportDue {
    No,
    /// Due if this host has dropped packets. Reason: a sender that sends more than this host can read must learn of it
    /// soon.
    WithNews,
    Yes,
}

/// Connection between the ends of a lane.
enum Link {
    /// Network.
    Transport(Weak<dyn LaneHandle>),
    /// No network: both ends are in this process.
    InProcess,
}

impl Link {
    fn handle(&self) -> Option<Arc<dyn LaneHandle>> {
        match self {
            Self::Transport(handle) => handle.upgrade(),
            Self::InProcess => None,
        }
    }

    fn sample(&self) -> Option<TransportSample> {
        match self {
            Self::Transport(handle) => handle.upgrade()?.sample(),
            Self::InProcess => Some(TransportSample::InProcess),
        }
    }
}

/// Time in which storage works for no particular lane.
#[derive(Debug, Default)]
struct StorageWork {
    workers: u32,
    since: Option<Instant>,
    total: Duration,
}

impl StorageWork {
    fn total(&self, now: Instant) -> Duration {
        self.total + self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

impl LimitMonitor {
    /// Returns a sampler that takes no samples. Reason: a session without blocks has no limits.
    pub(crate) fn idle(role: Role) -> Arc<Self> {
        Self::new(role, Arc::default())
    }

    fn new(role: Role, wake: Arc<Wake>) -> Arc<Self> {
        let (state, storage_work) = (Mutex::default(), Mutex::default());
        Arc::new(Self {
            role,
            begun: Instant::now(),
            wake,
            state,
            storage_work,
            web: OnceLock::new(),
            recording: OnceLock::new(),
            dropped: AtomicU64::new(0),
        })
    }

    /// Starts a sampler of an end with this `role`, which notifies `wake` when a report is due. Its thread ends with
    /// the sampler.
    pub fn start(role: Role, wake: &Arc<Wake>) -> Result<Arc<Self>, Error> {
        let monitor = Self::new(role, Arc::clone(wake));
        let sampled = Arc::downgrade(&monitor);
        let spawned = thread::Builder::new().name("limits".to_owned()).spawn(move || {
            while let Some(monitor) = sampled.upgrade() {
                let pause = monitor.turn(Instant::now());
                drop(monitor);
                thread::sleep(pause);
            }
        });
        spawned.map_err(|e| crate::no_thread("start the thread that samples lanes", e))?;
        Ok(monitor)
    }

    /// Samples every lane, and wakes the feeders if a report may be due. Returns the time to the next turn.
    fn turn(&self, now: Instant) -> Duration {
        let (lanes, is_idle) = self.sample(now);
        if self.is_report_due(&self.state.lock(), now) != ReportDue::No {
            self.wake.notify();
        }
        match is_idle {
            true => SAMPLE_IDLE_EVERY,
            false => SAMPLE_EVERY * (1 + lanes as u32 / LANES_SAMPLED),
        }
    }

    /// Sets the function that measures the web servers of the sources.
    pub(crate) fn set_web(&self, measure: impl Fn() -> WebSample + Send + Sync + 'static) {
        // Set once, at the start of the session.
        let _ = self.web.set(Box::new(measure));
    }

    /// Starts a recording of the inputs of the accountant of a sender in `file`.
    pub(crate) fn record(&self, file: Arc<File>) {
        // Set once, at the start of the session.
        let _ = self.recording.set(file);
    }

    /// Passes an input to the accountant, and records it.
    fn account(&self, state: &mut State, now: Instant, input: &Input) {
        input.apply(now, &mut state.accountant);
        if let Some(mut file) = self.recording.get().map(|file| &**file) {
            // The person who made the recording notices a missing end.
            let _ = file.write_all(input.lines(now.saturating_duration_since(self.begun)).as_bytes());
        }
    }

    /// Sets the rate cap of the session.
    pub fn set_rate_cap(&self, rate: Option<BitRate>) {
        self.account(&mut self.state.lock(), Instant::now(), &Input::RateCap(rate));
    }

    /// Adds a lane that is up. The calling thread reads it.
    pub(crate) fn lane_up(&self, lane: LaneId, handle: &Arc<dyn LaneHandle>) {
        self.watch(lane, Link::Transport(Arc::downgrade(handle)));
    }

    /// Adds a lane within this process. The calling thread feeds and reads it.
    pub(crate) fn inside_up(&self, lane: LaneId) {
        self.watch(lane, Link::InProcess);
        self.begin_feeding(lane);
    }

    fn watch(&self, lane: LaneId, link: Link) {
        let (feeder, reader) = (Arc::new(Meter::new()), Arc::new(Meter::new()));
        reader.begin();
        let (fed, read) = ((feeder.read(), Waits::default()), (reader.read(), Waits::default()));
        let watched = WatchedLane { link, feeder, reader, fed, read };
        self.state.lock().lanes.insert(lane, watched);
    }

    /// Removes a lane that has ended, and keeps its sums.
    pub(crate) fn lane_down(&self, lane: LaneId) {
        let mut state = self.state.lock();
        if let Some(mut watched) = state.lanes.remove(&lane) {
            watched.look();
            let (bytes, time) = watched.source();
            state.source_bytes += bytes;
            state.source_time += time;
            watched.add_to(&mut state.ended);
        }
    }

    /// Returns the amount received on every lane that is up; see [`LaneHandle::heard`].
    pub(crate) fn heard(&self) -> Vec<(LaneId, Option<u64>)> {
        let state = self.state.lock();
        let of_lane = |(lane, watched): (&LaneId, &WatchedLane)| Some((*lane, watched.link.handle()?.heard()));
        state.lanes.iter().filter_map(of_lane).collect()
    }

    /// Returns the handles of those of `lanes` that are up.
    pub(crate) fn handles(&self, lanes: &[LaneId]) -> Vec<Arc<dyn LaneHandle>> {
        let state = self.state.lock();
        lanes.iter().filter_map(|lane| state.lanes.get(lane)?.link.handle()).collect()
    }

    /// Registers the calling thread as the feeder of `lane`.
    pub(crate) fn begin_feeding(&self, lane: LaneId) {
        self.feeder(lane).begin();
    }

    /// Returns the meter of the thread that feeds `lane`. The meter of an ended lane is not counted.
    pub(crate) fn feeder(&self, lane: LaneId) -> Arc<Meter> {
        let found = self.state.lock().lanes.get(&lane).map(|watched| Arc::clone(&watched.feeder));
        found.unwrap_or_else(|| Arc::new(Meter::new()))
    }

    /// Returns the meter of the thread that reads `lane`. The meter of an ended lane is not counted.
    pub(crate) fn reader(&self, lane: LaneId) -> Arc<Meter> {
        let found = self.state.lock().lanes.get(&lane).map(|watched| Arc::clone(&watched.reader));
        found.unwrap_or_else(|| Arc::new(Meter::new()))
    }

    /// Runs `work` on storage that no lane waits for, and counts its time.
    pub(crate) fn storage_work<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut counted = self.storage_work.lock();
        counted.workers += 1;
        counted.since.get_or_insert_with(Instant::now);
        drop(counted);
        let outcome = work();
        let mut counted = self.storage_work.lock();
        counted.workers -= 1;
        if counted.workers == 0 {
            counted.total = counted.total(Instant::now());
            counted.since = None;
        }
        outcome
    }

    /// Returns a report for the other end, if one is due.
    pub(crate) fn poll_frame(&self, now: Instant) -> Option<Frame> {
        let mut state = self.state.lock();
        let due = self.is_report_due(&state, now);
        let frame = match self.role {
            _ if due == ReportDue::No => return None,
            Role::Sender => Frame::Limits(Box::new(state.accountant.report())),
            Role::Receiver => {
                let report = self.receiver_report(&state, now);
                let is_news = self.dropped.swap(report.dropped, Ordering::Relaxed) < report.dropped;
                (due == ReportDue::Yes || is_news).then_some(Frame::Receiver(report))?
            }
        };
        state.reported = Some(now);
        Some(frame)
    }

    fn is_report_due(&self, state: &State, now: Instant) -> ReportDue {
        let age = now.saturating_duration_since(self.begun);
        let since = state.reported.map_or(Duration::MAX, |at| now.saturating_duration_since(at));
        match self.role {
            _ if since < REPORT_EVERY_OFTEN => ReportDue::No,
            _ if age < YOUNG || since >= REPORT_EVERY => ReportDue::Yes,
            Role::Sender => ReportDue::No,
            Role::Receiver => ReportDue::WithNews,
        }
    }

    /// Handles a report of the receiver.
    ///
    /// Reports to the lanes the packets that the receiving host dropped: these packets are no losses of the path.
    pub(crate) fn handle_receiver(&self, now: Instant, report: &ReceiverReport) {
        let dropped = self.dropped.swap(report.dropped, Ordering::Relaxed);
        let handles =
            || self.state.lock().lanes.values().filter_map(|watched| watched.link.handle()).collect::<Vec<_>>();
        // The count can fall, because lanes that have ended are no longer counted.
        if let Some(packets) = report.dropped.checked_sub(dropped).filter(|packets| *packets > 0) {
            handles().iter().for_each(|handle| handle.handle_overrun(packets));
        }
        self.account(&mut self.state.lock(), now, &Input::Report(*report));
    }

    /// Handles a report of the sender.
    pub(crate) fn handle_limits(&self, report: &LimitReport) {
        let mut state = self.state.lock();
        state.latest = *report;
        state.number += 1;
    }

    /// Returns the current limits.
    pub fn now(&self) -> LimitsNow {
        let state = self.state.lock();
        let (report, lanes) = match self.role {
            Role::Sender => (state.accountant.report(), state.accountant.judgements().to_vec()),
            Role::Receiver => (state.latest, Vec::new()),
        };
        LimitsNow { number: state.number, report, lanes }
    }

    /// Samples every lane. Returns the number of lanes, and true if the session is idle.
    fn sample(&self, now: Instant) -> (usize, bool) {
        let mut state = self.state.lock();
        state.read_buffer_limits(now);
        let limits = state.buffer_limits;
        let mut samples = Vec::with_capacity(state.lanes.len());
        let (mut source_bytes, mut source_time) = (state.source_bytes, state.source_time);
        for (lane, watched) in &mut state.lanes {
            watched.look();
            let (bytes, time) = watched.source();
            source_bytes += bytes;
            source_time += time;
            let transport = watched.link.sample();
            if let Some(mut transport) = transport.filter(|_| self.role == Role::Sender) {
                if let TransportSample::Tcp(tcp) = &mut transport {
                    tcp.send_buffer_max = limits.0;
                }
                samples.push((*lane, LaneSample { feeder: watched.fed.1, transport }));
            }
        }
        if self.role == Role::Sender {
            // Lanes wait for the source at the same time, so the sum is divided by their number.
            let rate = BitRate::mean(ByteCount(source_bytes), source_time / samples.len().max(1) as u32);
            let source = SourceSample { rate, web: self.web.get().map(|web| web()) };
            self.account(&mut state, now, &Input::Samples(samples, source));
            state.number += 1;
        }
        let carried = state.lanes.values().map(WatchedLane::carried).sum::<u64>();
        let is_idle = state.pace.get_or_insert_with(|| Pace::new(now)).observe(carried, now);
        (state.lanes.len(), is_idle)
    }

    fn receiver_report(&self, state: &State, now: Instant) -> ReceiverReport {
        let mut report = state.ended;
        let mut sockets = BTreeSet::new();
        for watched in state.lanes.values() {
            watched.add_to(&mut report);
            let memory = watched.link.handle().and_then(|handle| handle.receive_memory()).unwrap_or_default();
            report.buffer = report.buffer.max(memory.buffer);
            report.unread = report.unread.max(memory.unread);
            report.window = report.window.max(memory.window);
            if memory.socket == 0 || sockets.insert(memory.socket) {
                report.dropped += memory.dropped;
            }
        }
        let engines: Vec<Duration> = state.lanes.values().filter_map(WatchedLane::engine).collect();
        report.engine = engines.iter().sum::<Duration>() / engines.len().max(1) as u32;
        report.sent_at = now.saturating_duration_since(self.begun);
        report.buffer_max = state.buffer_limits.1;
        report.publishing = self.storage_work.lock().total(now);
        report
    }
}

impl State {
    fn read_buffer_limits(&mut self, now: Instant) {
        if self.limits_read.is_none_or(|at| now.saturating_duration_since(at) >= BUFFER_LIMITS_EVERY) {
            self.buffer_limits = tcp::buffer_limits();
            self.limits_read = Some(now);
        }
    }
}

impl WatchedLane {
    /// Reads both meters.
    fn look(&mut self) {
        let fed = self.feeder.read();
        add(&mut self.fed.1, &fed.of_feeder(&self.fed.0));
        self.fed.0 = fed;
        let read = self.reader.read();
        add(&mut self.read.1, &read.of_reader(&self.read.0));
        self.read.0 = read;
    }

    /// Returns the bytes that the lane has carried in both directions.
    fn carried(&self) -> u64 {
        match &self.link {
            Link::Transport(handle) => handle.upgrade().map_or(0, |handle| handle.stats().wire_bytes()),
            Link::InProcess => self.feeder.bytes() + self.reader.bytes(),
        }
    }

    /// Returns the bytes that the feeder read from sources, and the time for it.
    fn source(&self) -> (u64, Duration) {
        (self.feeder.bytes(), self.fed.1.storage)
    }

    /// Returns the time in which the thread of a QUIC engine wanted a processor; `None` for other lanes.
    fn engine(&self) -> Option<Duration> {
        match self.link.sample()? {
            TransportSample::Quic(quic) => Some(quic.engine),
            TransportSample::Tcp(_) | TransportSample::InProcess => None,
        }
    }

    fn add_to(&self, report: &mut ReceiverReport) {
        let waits = &self.read.1;
        report.lane_time += waits.storage + waits.compute + waits.transport;
        report.waiting += waits.transport;
        report.storage += waits.storage;
        report.written += ByteCount(self.reader.bytes());
    }
}

fn add(sum: &mut Waits, more: &Waits) {
    sum.storage += more.storage;
    sum.compute += more.compute;
    sum.transport += more.transport;
    sum.idle += more.idle;
}
