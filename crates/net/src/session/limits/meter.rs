//! Meter of the waits of one lane thread, which other threads can read.
//!
//! The thread records the start and the end of each wait (two reads of the clock). Its computing time comes from the
//! kernel.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sterna_proto::Error;
use sterna_proto::limit::Waits;

use crate::lane::LaneTx;
use crate::thread_clock::ThreadClock;

/// Reason of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Wait for storage.
    Storage = 0,
    /// Wait for the transport.
    Transport = 1,
    /// Wait for work.
    Work = 2,
}

/// Waits and bytes of one thread. Only that thread writes them.
#[derive(Debug)]
pub struct Meter {
    begun: Instant,
    /// Nanoseconds of finished waits, by [`Wait`].
    ended: [AtomicU64; 3],
    /// Current wait: its [`Wait`] plus one in the lowest two bits, its start in nanoseconds in the other bits. 0 if
    /// there is none.
    now: AtomicU64,
    /// Bytes read from or written to storage.
    bytes: AtomicU64,
    thread: OnceLock<ThreadClock>,
}

/// Counters of a meter at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reading {
    at: Duration,
    waits: [Duration; 3],
    wanted: Option<Duration>,
}

impl Meter {
    pub(in crate::session) fn new() -> Self {
        Self {
            begun: Instant::now(),
            ended: [const { AtomicU64::new(0) }; 3],
            now: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            thread: OnceLock::new(),
        }
    }

    /// Registers the calling thread as the thread of this meter.
    pub(super) fn begin(&self) {
        if let Some(clock) = ThreadClock::of_this_thread() {
            // Only the first value counts; a second one would be the same thread.
            let _ = self.thread.set(clock);
        }
    }

    /// Runs `work`, which may wait for `wait`. The copy of `bytes` during the call, at 1 ns a byte, does not count as
    /// a wait.
    pub fn during<T>(&self, wait: Wait, bytes: usize, work: impl FnOnce() -> T) -> T {
        let start = self.nanos();
        self.now.store(start << 2 | (wait as u64 + 1), Ordering::Relaxed);
        let outcome = work();
        self.now.store(0, Ordering::Relaxed);
        let waited = (self.nanos() - start).saturating_sub(bytes as u64);
        self.ended[wait as usize].fetch_add(waited, Ordering::Relaxed);
        if wait == Wait::Storage {
            self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        outcome
    }

    /// Returns the bytes read from or written to storage.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn read(&self) -> Reading {
        let at = self.nanos();
        let mut waits = [0, 1, 2].map(|wait: usize| self.ended[wait].load(Ordering::Relaxed));
        let now = self.now.load(Ordering::Relaxed);
        if let Some(wait) = (now & 3).checked_sub(1) {
            waits[wait as usize] += at.saturating_sub(now >> 2);
        }
        let wanted = self.thread.get().and_then(ThreadClock::wanted);
        Reading { at: Duration::from_nanos(at), waits: waits.map(Duration::from_nanos), wanted }
    }

    fn nanos(&self) -> u64 {
        // 2^62 ns are 146 years.
        self.begun.elapsed().as_nanos() as u64
    }
}

/// Lane transmitter that records the time of each call as a wait of its feeder.
pub(in crate::session) struct MeteredTx {
    tx: Box<dyn LaneTx>,
    meter: Arc<Meter>,
}

impl MeteredTx {
    pub(in crate::session) fn new(tx: Box<dyn LaneTx>, meter: Arc<Meter>) -> Self {
        Self { tx, meter }
    }
}

impl LaneTx for MeteredTx {
    fn control(&mut self, frame: &[u8]) -> Result<(), Error> {
        self.meter.during(Wait::Transport, 0, || self.tx.control(frame))
    }

    fn block_begin(&mut self, header: &[u8], data_len: u64) -> Result<(), Error> {
        self.meter.during(Wait::Transport, 0, || self.tx.block_begin(header, data_len))
    }

    fn piece_bytes(&self) -> usize {
        self.tx.piece_bytes()
    }

    fn block_data(&mut self, data: Bytes) -> Result<(), Error> {
        self.meter.during(Wait::Transport, data.len(), || self.tx.block_data(data))
    }

    fn block_end(&mut self, trailer: &[u8]) -> Result<(), Error> {
        self.meter.during(Wait::Transport, 0, || self.tx.block_end(trailer))
    }

    fn block_abandon(&mut self) -> Result<(), Error> {
        self.meter.during(Wait::Transport, 0, || self.tx.block_abandon())
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.meter.during(Wait::Transport, 0, || self.tx.flush())
    }
}

impl Reading {
    /// Returns the times of a feeder since `before`. The kernel gives the computing time. The rest of the interval is
    /// divided in proportion to the recorded waits, which include some computing.
    pub(super) fn of_feeder(&self, before: &Self) -> Waits {
        let (elapsed, waits, compute) = self.since(before);
        let idle = waits[Wait::Work as usize].min(elapsed);
        let noted = waits[0] + waits[1];
        let compute = compute.unwrap_or(elapsed.saturating_sub(noted + idle)).min(elapsed - idle);
        let blocked = elapsed - idle - compute;
        if noted.is_zero() {
            return Waits { compute: compute + blocked, idle, ..Waits::default() };
        }
        let storage = blocked.mul_f64(waits[0].as_secs_f64() / noted.as_secs_f64());
        Waits { storage, compute, transport: blocked.saturating_sub(storage), idle }
    }

    /// Returns the times of a reader since `before`. A reader waits for data when it neither computes nor waits for
    /// storage.
    pub(super) fn of_reader(&self, before: &Self) -> Waits {
        let (elapsed, waits, compute) = self.since(before);
        let compute = compute.unwrap_or_default().min(elapsed);
        let storage = waits[0].min(elapsed - compute);
        Waits { storage, compute, transport: elapsed - compute - storage, idle: Duration::ZERO }
    }

    fn since(&self, before: &Self) -> (Duration, [Duration; 3], Option<Duration>) {
        let waits = [0, 1, 2].map(|wait: usize| self.waits[wait].saturating_sub(before.waits[wait]));
        let wanted = self.wanted.zip(before.wanted).map(|(now, before)| now.saturating_sub(before));
        (self.at.saturating_sub(before.at), waits, wanted)
    }
}
