//! Computes the final digest of growing files: reads each file again as a whole after its end.
//!
//! The data read for earlier blocks of a growing file can differ from the final data: writers patch headers, and no
//! kernel reports this. So each file is read again while its last blocks are in flight. The receiver publishes only a
//! file with the same digest.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use sterna_proto::session::FileId;
use sterna_proto::{Error, FileEntry, RelPath};

use super::Offers;
use crate::disk::{Root, SourceFile};
use crate::wake::Wake;

/// Number of threads that compute final digests. Reason: a small file does not wait behind a file of a terabyte that
/// ended earlier.
const THREADS: usize = 2;

/// Bytes per read. Guess: large enough to make the cost of a system call negligible.
const READ_BYTES: usize = 1 << 20;

/// File that has ended.
struct Job {
    id: FileId,
    source: (Root, RelPath),
    entry: FileEntry,
    /// True if a process has the file open for writing. The file is then read only after all its blocks were read and
    /// have arrived.
    is_held: bool,
}

/// Queue of files to read. After its drop, the threads read the remaining files and end.
pub(super) struct FinalDigestQueue {
    jobs: Arc<Jobs>,
    offers: Arc<dyn Offers>,
}

#[derive(Default)]
struct Jobs {
    waiting: Mutex<Waiting>,
    /// Notified when there is one more job, and at the end.
    wake: Wake,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    is_closed: bool,
}

impl FinalDigestQueue {
    /// Starts the threads. Errors: the host cannot start a thread.
    pub(super) fn start(offers: &Arc<dyn Offers>) -> Result<Self, Error> {
        let queue = Self { jobs: Arc::default(), offers: Arc::clone(offers) };
        for _ in 0..THREADS {
            let (offers, jobs) = (Arc::clone(offers), Arc::clone(&queue.jobs));
            let spawned = thread::Builder::new().name("final-digest".to_owned()).spawn(move || run(&*offers, &jobs));
            spawned.map_err(|e| crate::no_thread("start a thread that reads followed files", e))?;
        }
        Ok(queue)
    }

    /// Queues a file.
    pub(super) fn push(&self, id: FileId, source: (Root, RelPath), entry: FileEntry) {
        self.jobs.push(&*self.offers, Job { id, source, entry, is_held: false });
    }
}

impl Drop for FinalDigestQueue {
    fn drop(&mut self) {
        self.jobs.waiting.lock().is_closed = true;
        self.jobs.notify(&*self.offers);
    }
}

impl Jobs {
    fn push(&self, offers: &dyn Offers, job: Job) {
        self.waiting.lock().jobs.push_back(job);
        self.notify(offers);
    }

    /// Wakes all threads: those that wait for a job, and those that wait for the arrival of a file.
    fn notify(&self, offers: &dyn Offers) {
        self.wake.notify();
        offers.wake().notify();
    }

    /// Waits for the first job that can run, and returns it. `None` if no job is left or the session is over.
    fn next(&self, offers: &dyn Offers) -> Option<Job> {
        loop {
            let (pushed, changed) = (self.wake.seen(), offers.wake().seen());
            let mut waiting = self.waiting.lock();
            if offers.is_closed() || waiting.is_closed && waiting.jobs.is_empty() {
                return None;
            }
            if let Some(at) = waiting.jobs.iter().position(|job| !job.is_held || offers.has_arrived(job.id)) {
                return waiting.jobs.remove(at);
            }
            let is_any_held = !waiting.jobs.is_empty();
            drop(waiting);
            // A session changes often, so only the jobs that wait for one of its changes watch it.
            if is_any_held {
                offers.wake().wait_to(changed, None);
            } else {
                self.wake.wait_to(pushed, None);
            }
        }
    }
}

fn run(offers: &dyn Offers, jobs: &Jobs) {
    while let Some(job) = jobs.next(offers) {
        let (root, path) = &job.source;
        match root.open_source(path).and_then(|open| digest(offers, &job, &open)) {
            Ok(FinalDigest::Whole(blake3)) => offers.final_digest(job.id, blake3),
            Ok(FinalDigest::Held) => jobs.push(offers, Job { is_held: true, ..job }),
            Ok(FinalDigest::Unwanted) => {}
            Err(error) => {
                offers.withdraw(job.id, error);
                offers.deliver();
            }
        }
    }
}

/// Outcome of a job.
enum FinalDigest {
    /// BLAKE3 of the whole file.
    Whole([u8; 32]),
    /// A process has the file open for writing, and some blocks have not arrived.
    Held,
    /// The digest is no longer needed.
    Unwanted,
}

/// Reads a whole file. Errors: the file cannot be read, or has changed.
fn digest(offers: &dyn Offers, job: &Job, source: &SourceFile) -> Result<FinalDigest, Error> {
    // The order of these two checks matters: blocks that have arrived were read before the check for a writer.
    let is_complete = offers.has_arrived(job.id);
    if !is_complete && source.is_being_written() {
        return Ok(FinalDigest::Held);
    }
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; READ_BYTES.min(job.entry.size as usize)];
    let mut at = 0;
    while at < job.entry.size {
        if offers.is_closed() || !offers.is_unsettled(job.id) {
            return Ok(FinalDigest::Unwanted);
        }
        let piece = &mut buffer[..READ_BYTES.min((job.entry.size - at) as usize)];
        source.read_at(at, piece)?;
        hasher.update(piece);
        at += piece.len() as u64;
    }
    // This check follows the last read: the hashed data is the final data of the file.
    source.check_unchanged(&job.entry)?;
    if !is_complete && source.is_being_written() {
        return Ok(FinalDigest::Held);
    }
    Ok(FinalDigest::Whole(*hasher.finalize().as_bytes()))
}
