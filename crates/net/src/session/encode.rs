//! Blocks on their way out: chooses how each is encoded, measures what that costs, and encodes it.
//!
//! A block that is not encoded never comes here but for the choice and the clock. One that is becomes whole slabs before its
//! lane hears of it, since a lane announces how long its data is; that memory has an end ([`ENCODED_BYTES_MAX`]), and what would
//! exceed it travels as it is. Refuses: to decide; `sterna_proto::compress` does.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::time::{ClockId, clock_gettime};
use sterna_proto::compress::{
    Chooser, Encoder, LaneWork, Method, PathMeter, Plan, SAMPLE_BYTES, SLAB_BYTES, Slab, SlabEncoding, Wish, measure,
    sample_offsets,
};
use sterna_proto::session::FileId;
use sterna_proto::{BitRate, Error, FileEntry};

use super::limits::Meter;
use super::lock;
use super::sender::READ_BYTES;
use crate::buffer::BufferPool;

/// Encoded bytes that the lanes of one session hold at most. Reason: a block of 16 MiB for each of sixteen lanes, as much as QUIC
/// may have in flight unless told otherwise.
const ENCODED_BYTES_MAX: u64 = 256 << 20;

/// Bytes after which a lane says what it has done. Reason: reading the clock of a thread is a system call.
const LAP_BYTES: u64 = 1 << 20;

/// Time after which it does in any case: a slow path takes seconds for [`LAP_BYTES`].
const LAP_TIME: Duration = Duration::from_millis(50);

/// Small files that share a block are encoded from this many bytes on. Reason: below it a header costs as much as is saved.
const PACKED_BYTES_MIN: usize = 1024;

/// File bytes that lanes have carried, and what they became for it. Each block counts as often as it travels.
#[derive(Debug, Default)]
pub(super) struct Carried {
    file_bytes: AtomicU64,
    data_bytes: AtomicU64,
}

impl Carried {
    /// A block of `file_bytes` has travelled as `data_bytes`.
    pub(super) fn add(&self, file_bytes: u64, data_bytes: u64) {
        self.file_bytes.fetch_add(file_bytes, Ordering::Relaxed);
        self.data_bytes.fetch_add(data_bytes, Ordering::Relaxed);
    }

    /// Both so far.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.file_bytes.load(Ordering::Relaxed), self.data_bytes.load(Ordering::Relaxed))
    }
}

/// What a lane needs to encode; kept from block to block.
#[derive(Default)]
struct Bench {
    encoder: Encoder,
    raw: Vec<u8>,
    encoded: Vec<u8>,
}

/// The encoding of one session.
pub(super) struct Encoding {
    wish: Wish,
    chooser: Mutex<Chooser>,
    meter: Mutex<PathMeter>,
    benches: Mutex<Vec<Bench>>,
    held_bytes: AtomicU64,
    pool: Arc<BufferPool>,
    pub(super) carried: Carried,
}

/// A block, ready for a lane.
pub(super) struct EncodedBlock<'a> {
    /// Its slabs, in order.
    pub(super) slabs: Vec<Slab>,
    /// Their bytes, one behind the other.
    pub(super) data: VecDeque<Bytes>,
    _held: HeldBytes<'a>,
}

impl EncodedBlock<'_> {
    /// How many bytes it has become.
    pub(super) fn length(&self) -> u64 {
        self.slabs.iter().map(|slab| u64::from(slab.length)).sum()
    }

    /// Whether no slab became smaller.
    pub(super) fn is_raw(&self) -> bool {
        self.slabs.iter().all(|slab| slab.encoding == SlabEncoding::Raw)
    }
}

/// A part of [`ENCODED_BYTES_MAX`].
pub(super) struct HeldBytes<'a> {
    total: &'a AtomicU64,
    bytes: u64,
}

impl Drop for HeldBytes<'_> {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Encoding {
    pub(super) fn new(wish: Wish, pool: Arc<BufferPool>) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        Self {
            wish,
            chooser: Mutex::new(Chooser::new(wish)),
            meter: Mutex::new(PathMeter::new(cores)),
            benches: Mutex::default(),
            held_bytes: AtomicU64::new(0),
            pool,
            carried: Carried::default(),
        }
    }

    /// The rate that is given of all paths together, if it is.
    pub(super) fn set_rate(&self, rate: Option<BitRate>) {
        lock(&self.meter).set_rate(rate);
    }

    /// How the next block of `entry`, `length` bytes long, is encoded; `read` gives bytes of it for samples, at an offset within it.
    ///
    /// Errors: of `read`.
    pub(super) fn method(
        &self,
        file: FileId,
        entry: &FileEntry,
        length: u64,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), Error>,
    ) -> Result<Method, Error> {
        if self.wish == Wish::Never {
            return Ok(Method::Raw);
        }
        let facts = lock(&self.meter).facts(Instant::now());
        let mut sampled = false;
        loop {
            match lock(&self.chooser).plan(file, entry, length, &facts) {
                Plan::Encode(method) => return Ok(method),
                // Another lane asked for samples of the same file at once: one of the two is enough.
                Plan::Sample if sampled => return Ok(Method::Raw),
                Plan::Sample => {}
            }
            let mut samples = Vec::new();
            for offset in sample_offsets(length as usize) {
                let mut sample = vec![0; SAMPLE_BYTES.min(length as usize)];
                read(offset as u64, &mut sample)?;
                samples.push(sample);
            }
            let samples: Vec<&[u8]> = samples.iter().map(Vec::as_slice).collect();
            let mut bench = self.take_bench();
            bench.encoded.resize(SLAB_BYTES as usize, 0);
            let Bench { encoder, encoded, .. } = &mut bench;
            let measured = measure(encoder, &samples, encoded, core_time);
            self.return_bench(bench);
            lock(&self.chooser).handle_measured(file, &entry.path, measured);
            sampled = true;
        }
    }

    /// Reads and encodes a block of `length` bytes. `read` is called for all of it in order; `between` whenever a slab is done.
    ///
    /// `None` when too much is held already: the block is then to travel as it is, and nothing of it was read. The outer error is
    /// that of `between`, the inner one that of `read`.
    pub(super) fn encode(
        &self,
        method: Method,
        length: u64,
        clock: &mut LaneClock,
        mut read: impl FnMut(&mut [u8]) -> Result<(), Error>,
        mut between: impl FnMut() -> Result<(), Error>,
    ) -> Result<Option<Result<EncodedBlock<'_>, Error>>, Error> {
        let Some(mut held) = self.hold(length) else { return Ok(None) };
        let mut bench = self.take_bench();
        let (mut slabs, mut data) = (Vec::new(), VecDeque::new());
        let mut left = length;
        while left > 0 {
            let size = left.min(SLAB_BYTES) as usize;
            let began = clock.begin_work();
            bench.raw.resize(SLAB_BYTES as usize, 0);
            if let Err(error) = bench.raw[..size].chunks_mut(READ_BYTES).try_for_each(&mut read) {
                self.return_bench(bench);
                return Ok(Some(Err(error)));
            }
            let slab = bench.encode(method, size, clock);
            slabs.push(slab);
            self.append(bench.bytes_of(&slab), &mut data);
            clock.end_work(size as u64, began);
            left -= size as u64;
            if let Err(error) = between() {
                self.return_bench(bench);
                return Err(error);
            }
        }
        self.return_bench(bench);
        let mut block = EncodedBlock { slabs, data, _held: HeldBytes { total: &self.held_bytes, bytes: 0 } };
        // What has become smaller holds less.
        let encoded = block.length();
        self.held_bytes.fetch_sub(held.bytes - encoded, Ordering::Relaxed);
        held.bytes = encoded;
        block._held = held;
        Ok(Some(Ok(block)))
    }

    /// Encodes small files that share a block, as one slab, by what is known of one of them; `None` when that does not pay.
    pub(super) fn encode_packed(
        &self,
        one: &(FileId, FileEntry),
        data: &[u8],
        clock: &mut LaneClock,
    ) -> Option<(Slab, VecDeque<Bytes>)> {
        if data.len() < PACKED_BYTES_MIN {
            return None;
        }
        let (file, entry) = one;
        let read = |offset: u64, sample: &mut [u8]| {
            sample.copy_from_slice(&data[offset as usize..][..sample.len()]);
            Ok(())
        };
        let method = self.method(*file, entry, data.len() as u64, read).unwrap_or(Method::Raw);
        if method == Method::Raw {
            return None;
        }
        let mut bench = self.take_bench();
        bench.raw.resize(SLAB_BYTES as usize, 0);
        bench.raw[..data.len()].copy_from_slice(data);
        let slab = bench.encode(method, data.len(), clock);
        let mut encoded = VecDeque::new();
        if slab.encoding != SlabEncoding::Raw {
            self.append(bench.bytes_of(&slab), &mut encoded);
        }
        self.return_bench(bench);
        self.handle_encoded(*file, method, data.len() as u64, u64::from(slab.length));
        (!encoded.is_empty()).then_some((slab, encoded))
    }

    /// A block was encoded by `method`: `bytes` of a file have become `encoded`.
    pub(super) fn handle_encoded(&self, file: FileId, method: Method, bytes: u64, encoded: u64) {
        lock(&self.chooser).handle_encoded(file, method, bytes, encoded);
    }

    /// A file has its outcome.
    pub(super) fn forget(&self, file: FileId) {
        lock(&self.chooser).forget(file);
    }

    /// What the person is told next of how files are encoded.
    pub(super) fn poll_decision(&self) -> Option<String> {
        lock(&self.chooser).poll_decision().map(|decision| decision.rationale)
    }

    /// Measures the work of a lane on a block that begins now.
    pub(super) fn clock(&self, meter: Arc<Meter>) -> LaneClock {
        LaneClock { runs: (self.wish != Wish::Never).then(Lap::start), meter }
    }

    /// The transport took `bytes`.
    pub(super) fn handle_carried(&self, clock: &mut LaneClock, bytes: u64) {
        let Some(lap) = &mut clock.runs else { return };
        let now = Instant::now();
        lap.work.carried_bytes += bytes;
        if lap.work.carried_bytes >= LAP_BYTES || now.saturating_duration_since(lap.began) >= LAP_TIME {
            self.end_lap(clock, now);
        }
    }

    /// The block has ended.
    pub(super) fn end_clock(&self, mut clock: LaneClock) {
        self.end_lap(&mut clock, Instant::now());
    }

    fn end_lap(&self, clock: &mut LaneClock, now: Instant) {
        let Some(lap) = &mut clock.runs else { return };
        let core = core_time();
        let whole = now.saturating_duration_since(lap.began);
        let mut work = lap.work;
        work.core_time = core.saturating_sub(lap.core_began);
        // All the rest are calls of the transport, which also seal and copy: that is time of a core and no waiting.
        work.waited = whole.saturating_sub(lap.own.max(work.core_time));
        work.worked = whole.saturating_sub(work.waited);
        *lap = Lap { work: LaneWork::default(), own: Duration::ZERO, began: now, core_began: core };
        lock(&self.meter).handle_work(&work, now);
    }

    fn hold(&self, bytes: u64) -> Option<HeldBytes<'_>> {
        let before = self.held_bytes.fetch_add(bytes, Ordering::Relaxed);
        let held = HeldBytes { total: &self.held_bytes, bytes };
        (before + bytes <= ENCODED_BYTES_MAX).then_some(held)
    }

    /// Copies encoded bytes to buffers of the pool, which are all of one size.
    fn append(&self, bytes: &[u8], data: &mut VecDeque<Bytes>) {
        for bytes in bytes.chunks(READ_BYTES) {
            let mut buffer = self.pool.take();
            // A copy cannot fail.
            let _ = buffer.fill(bytes.len(), |room| {
                room.copy_from_slice(bytes);
                Ok(())
            });
            data.push_back(buffer.freeze());
        }
    }

    fn take_bench(&self) -> Bench {
        lock(&self.benches).pop().unwrap_or_default()
    }

    fn return_bench(&self, bench: Bench) {
        lock(&self.benches).push(bench);
    }
}

impl Bench {
    /// Encodes the first `size` bytes of `raw`.
    fn encode(&mut self, method: Method, size: usize, clock: &mut LaneClock) -> Slab {
        self.encoded.resize(SLAB_BYTES as usize, 0);
        let began = clock.runs.as_ref().map(|_| core_time());
        let slab = self.encoder.encode(method, &self.raw[..size], &mut self.encoded[..size]);
        if let (Some(lap), Some(began)) = (&mut clock.runs, began) {
            lap.work.encoding_time += core_time().saturating_sub(began);
        }
        slab
    }

    /// The bytes of the slab that was encoded last.
    fn bytes_of(&self, slab: &Slab) -> &[u8] {
        let bytes = if slab.encoding == SlabEncoding::Raw { &self.raw } else { &self.encoded };
        &bytes[..slab.length as usize]
    }
}

/// Measures one lane while it reads, encodes and sends one block; stands still when nothing is to be chosen.
pub(super) struct LaneClock {
    runs: Option<Lap>,
    /// What the thread of the lane waits for.
    pub(super) meter: Arc<Meter>,
}

struct Lap {
    work: LaneWork,
    /// Time in which the lane read, hashed and encoded.
    own: Duration,
    began: Instant,
    core_began: Duration,
}

impl Lap {
    fn start() -> Self {
        let (began, core_began) = (Instant::now(), core_time());
        Self { work: LaneWork::default(), own: Duration::ZERO, began, core_began }
    }
}

impl LaneClock {
    /// The lane begins to read, hash or encode. For [`LaneClock::end_work`].
    pub(super) fn begin_work(&self) -> Option<Instant> {
        self.runs.as_ref().map(|_| Instant::now())
    }

    /// It has done so for `bytes` of a file since `began`.
    pub(super) fn end_work(&mut self, bytes: u64, began: Option<Instant>) {
        if let (Some(lap), Some(began)) = (&mut self.runs, began) {
            lap.work.file_bytes += bytes;
            lap.own += began.elapsed();
        }
    }
}

/// Time of a core that this thread has used.
fn core_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
