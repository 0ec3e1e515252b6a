//! Encoding of blocks that are sent: chooses an encoding for each block, measures its cost, and encodes the block.
//!
//! A raw block uses only the choice and the clock of this module. A compressed block is fully encoded before it is
//! handed to a lane, because a lane announces the length of its data. The memory for encoded blocks is bounded
//! ([`ENCODED_BYTES_MAX`]); a block that would exceed it travels raw. Refuses to decide: `sterna_proto::compress`
//! does.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use sterna_proto::compress::{
    Chooser, CompressionPolicy, Encoder, LaneWork, Method, PathMeter, Plan, SAMPLE_BYTES, SLAB_BYTES, Slab,
    SlabEncoding, measure, sample_offsets,
};
use sterna_proto::session::FileId;
use sterna_proto::{BitRate, Error, FileEntry};

use super::READ_BYTES;
use super::limits::Meter;
use crate::buffer::BufferPool;

/// Maximum of encoded bytes that the lanes of one session hold. Reason: one block of 16 MiB for each of sixteen
/// lanes, as much as QUIC may have in flight by default.
const ENCODED_BYTES_MAX: u64 = 256 << 20;

/// Bytes after which a lane reports its work. Reason: a read of the CPU clock of a thread is a system call.
const LAP_BYTES: u64 = 1 << 20;

/// Time after which a lane reports its work in any case. Reason: a slow path takes seconds for [`LAP_BYTES`].
const LAP_TIME: Duration = Duration::from_millis(50);

/// Minimum size of a block of small files that is encoded. Reason: below it, a header costs as much as the encoding
/// saves.
const PACKED_BYTES_MIN: usize = 1024;

/// File bytes that lanes have carried, and their size on the lanes. Each block counts as often as it travels.
#[derive(Debug, Default)]
pub(super) struct Carried {
    file_bytes: AtomicU64,
    data_bytes: AtomicU64,
}

impl Carried {
    /// Adds a block of `file_bytes` that travelled as `data_bytes`.
    pub(super) fn add(&self, file_bytes: u64, data_bytes: u64) {
        self.file_bytes.fetch_add(file_bytes, Ordering::Relaxed);
        self.data_bytes.fetch_add(data_bytes, Ordering::Relaxed);
    }

    /// Returns the file bytes and the bytes on the lanes up to now.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.file_bytes.load(Ordering::Relaxed), self.data_bytes.load(Ordering::Relaxed))
    }
}

/// Buffers and state that a lane needs to encode; reused for later blocks.
#[derive(Default)]
struct Bench {
    encoder: Encoder,
    raw: Vec<u8>,
    encoded: Vec<u8>,
}

/// Encoding of one session.
pub(super) struct Encoding {
    policy: CompressionPolicy,
    chooser: Mutex<Chooser>,
    meter: Mutex<PathMeter>,
    benches: Mutex<Vec<Bench>>,
    held_bytes: AtomicU64,
    pool: Arc<BufferPool>,
    pub(super) carried: Carried,
}

/// Encoded block, ready for a lane.
pub(super) struct EncodedBlock<'a> {
    /// Slabs of the block, in order.
    pub(super) slabs: Vec<Slab>,
    /// Bytes of the slabs, one after the other.
    pub(super) data: VecDeque<Bytes>,
    _held: HeldBytes<'a>,
}

impl EncodedBlock<'_> {
    /// Returns the encoded length in bytes.
    pub(super) fn length(&self) -> u64 {
        self.slabs.iter().map(|slab| u64::from(slab.length)).sum()
    }

    /// True if no slab became smaller.
    pub(super) fn is_raw(&self) -> bool {
        self.slabs.iter().all(|slab| slab.encoding == SlabEncoding::Raw)
    }
}

/// Part of [`ENCODED_BYTES_MAX`]; released on drop.
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
    pub(super) fn new(policy: CompressionPolicy, pool: Arc<BufferPool>) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        Self {
            policy,
            chooser: Mutex::new(Chooser::new(policy)),
            meter: Mutex::new(PathMeter::new(cores)),
            benches: Mutex::default(),
            held_bytes: AtomicU64::new(0),
            pool,
            carried: Carried::default(),
        }
    }

    /// Sets the rate of all paths together, if one is given.
    pub(super) fn set_rate(&self, rate: Option<BitRate>) {
        self.meter.lock().set_rate(rate);
    }

    /// Returns the encoding for the next block of `entry`, `length` bytes long. `read` reads bytes for samples at an
    /// offset within the block.
    ///
    /// Errors: of `read`.
    pub(super) fn method(
        &self,
        file: FileId,
        entry: &FileEntry,
        length: u64,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), Error>,
    ) -> Result<Method, Error> {
        if self.policy == CompressionPolicy::Never {
            return Ok(Method::Raw);
        }
        let facts = self.meter.lock().facts(Instant::now());
        let mut sampled = false;
        loop {
            match self.chooser.lock().plan(file, entry, length, &facts) {
                Plan::Encode(method) => return Ok(method),
                // Another lane requested samples of the same file at the same time: the samples of one lane are
                // enough.
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
            self.chooser.lock().handle_measured(file, &entry.path, measured);
            sampled = true;
        }
    }

    /// Reads and encodes a block of `length` bytes. Calls `read` for all its bytes in order, and `between` after each
    /// slab.
    ///
    /// Returns `None`, and reads nothing, if too many encoded bytes are held: the block must then travel raw. The
    /// outer error comes from `between`, the inner error from `read`.
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
        // The encoded block holds only its encoded length.
        let encoded = block.length();
        self.held_bytes.fetch_sub(held.bytes - encoded, Ordering::Relaxed);
        held.bytes = encoded;
        block._held = held;
        Ok(Some(Ok(block)))
    }

    /// Encodes the small files of a block as one slab, with the method for one of the files. Returns `None` if that
    /// does not pay.
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

    /// Records the result of `method` for a block: `bytes` of a file became `encoded` bytes.
    pub(super) fn handle_encoded(&self, file: FileId, method: Method, bytes: u64, encoded: u64) {
        self.chooser.lock().handle_encoded(file, method, bytes, encoded);
    }

    /// Drops the state of a file that has its outcome.
    pub(super) fn forget(&self, file: FileId) {
        self.chooser.lock().forget(file);
    }

    /// Returns the next decision on the encoding of files, as text for the user.
    pub(super) fn poll_decision(&self) -> Option<String> {
        self.chooser.lock().poll_decision().map(|decision| decision.rationale)
    }

    /// Starts to measure the work of a lane on a block.
    pub(super) fn clock(&self, meter: Arc<Meter>) -> LaneClock {
        LaneClock { runs: (self.policy != CompressionPolicy::Never).then(Lap::start), meter }
    }

    /// Records that the transport took `bytes`.
    pub(super) fn handle_carried(&self, clock: &mut LaneClock, bytes: u64) {
        let Some(lap) = &mut clock.runs else { return };
        let now = Instant::now();
        lap.work.carried_bytes += bytes;
        if lap.work.carried_bytes >= LAP_BYTES || now.saturating_duration_since(lap.began) >= LAP_TIME {
            self.end_lap(clock, now);
        }
    }

    /// Ends the measurement of a block.
    pub(super) fn end_clock(&self, mut clock: LaneClock) {
        self.end_lap(&mut clock, Instant::now());
    }

    fn end_lap(&self, clock: &mut LaneClock, now: Instant) {
        let Some(lap) = &mut clock.runs else { return };
        let core = core_time();
        let whole = now.saturating_duration_since(lap.began);
        let mut work = lap.work;
        work.core_time = core.saturating_sub(lap.core_began);
        // The rest of the time is spent in calls of the transport. They also encrypt and copy, which is CPU time and
        // not a wait.
        work.waited = whole.saturating_sub(lap.own.max(work.core_time));
        work.worked = whole.saturating_sub(work.waited);
        *lap = Lap { work: LaneWork::default(), own: Duration::ZERO, began: now, core_began: core };
        self.meter.lock().handle_work(&work, now);
    }

    fn hold(&self, bytes: u64) -> Option<HeldBytes<'_>> {
        let before = self.held_bytes.fetch_add(bytes, Ordering::Relaxed);
        let held = HeldBytes { total: &self.held_bytes, bytes };
        (before + bytes <= ENCODED_BYTES_MAX).then_some(held)
    }

    /// Copies encoded bytes to buffers of the pool, which all have the same size.
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
        self.benches.lock().pop().unwrap_or_default()
    }

    fn return_bench(&self, bench: Bench) {
        self.benches.lock().push(bench);
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

    /// Returns the bytes of the last encoded slab.
    fn bytes_of(&self, slab: &Slab) -> &[u8] {
        let bytes = if slab.encoding == SlabEncoding::Raw { &self.raw } else { &self.encoded };
        &bytes[..slab.length as usize]
    }
}

/// Measures one lane while it reads, encodes and sends one block. Inactive if compression is never used.
pub(super) struct LaneClock {
    runs: Option<Lap>,
    /// Meter of the waits of the lane thread.
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
    /// Marks the start of reads, hashes or encoding. The result is for [`LaneClock::end_work`].
    pub(super) fn begin_work(&self) -> Option<Instant> {
        self.runs.as_ref().map(|_| Instant::now())
    }

    /// Adds the work on `bytes` of a file since `began`.
    pub(super) fn end_work(&mut self, bytes: u64, began: Option<Instant>) {
        if let (Some(lap), Some(began)) = (&mut self.runs, began) {
            lap.work.file_bytes += bytes;
            lap.own += began.elapsed();
        }
    }
}

/// Returns the CPU time of this thread.
fn core_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
