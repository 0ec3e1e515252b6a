//! What one thread of a lane waits for, as another thread may ask.
//!
//! The thread notes when it begins to wait and when it ends (two reads of the clock); what it computes is the kernel's account.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sterna_proto::Error;
use sterna_proto::limit::Waits;

use crate::lane::LaneTx;
use crate::thread_clock::ThreadClock;

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Storage.
    Storage = 0,
    /// The transport.
    Transport = 1,
    /// Something to do.
    Work = 2,
}

/// The account of one thread. Written by that thread alone.
#[derive(Debug)]
pub struct Meter {
    begun: Instant,
    /// Nanoseconds by [`Wait`].
    ended: [AtomicU64; 3],
    /// What it waits for now, plus one, in the lowest two bits; since when, in nanoseconds, in the others. 0 for nothing.
    now: AtomicU64,
    /// Bytes read or written.
    bytes: AtomicU64,
    thread: OnceLock<ThreadClock>,
}

/// What a meter has counted.
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

    /// The thread of this meter is the calling one.
    pub(super) fn begin(&self) {
        if let Some(clock) = ThreadClock::of_this_thread() {
            // Begun once; a second time would name the same thread.
            let _ = self.thread.set(clock);
        }
    }

    /// Does `work` that may wait for `wait`; `bytes` are copied meanwhile, which is no waiting.
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

    /// Bytes read from or written to storage.
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

/// A lane whose every call its feeder waits for, as its meter notes.
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
    /// What a feeder did since `before`: the processor time is the kernel's account, and what is left of the interval is divided
    /// as the thread noted its waits, which hold some computing too.
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

    /// What a reader did since `before`: it waits for data when it neither computes nor waits for storage.
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
