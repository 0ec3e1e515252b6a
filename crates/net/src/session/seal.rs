//! Reads files that were sent while they grew once more, as a whole, when they have ended.
//!
//! What was read of a growing file when its blocks were sent says nothing of what it holds at its end: writers patch headers, and no kernel tells. So each is read
//! once more, while its last blocks are still on their way; the receiver publishes what has the same digest, and nothing else.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use sterna_proto::session::FileId;
use sterna_proto::{Error, FileEntry, RelPath};

use super::sender::Sender;
use super::{End, lock};
use crate::disk::{Root, SourceFile};

/// Threads that read files once more. Reason: a small file does not wait for one of a terabyte that ended before it.
const SEALERS: usize = 2;

/// Bytes read at once. Guess: large enough that a system call costs nothing beside it.
const SEAL_BYTES: usize = 1 << 20;

/// How often it is looked whether the blocks of a file have arrived. Guess: short beside the round trip that they take.
const ARRIVAL_NAP: Duration = Duration::from_millis(50);

/// A file that has ended.
struct Job {
    id: FileId,
    source: (Root, RelPath),
    entry: FileEntry,
    /// A process has it open for writing: it is read when all its blocks have arrived, and so were read before.
    is_held: bool,
}

/// Files that wait to be read; the threads end when it is dropped, once they have read them.
pub(super) struct SealQueue(Arc<Jobs>);

#[derive(Default)]
struct Jobs {
    waiting: Mutex<Waiting>,
    wake: Condvar,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    is_closed: bool,
}

impl SealQueue {
    /// Starts the threads. Errors: the host has none.
    pub(super) fn start(sender: &Arc<Sender>) -> Result<Self, Error> {
        let queue = Self(Arc::default());
        for _ in 0..SEALERS {
            let (sender, jobs) = (Arc::clone(sender), Arc::clone(&queue.0));
            let spawned = thread::Builder::new().name("seal".to_owned()).spawn(move || run(&sender, &jobs));
            spawned.map_err(|e| crate::internal("start a thread that reads followed files").caused_by(e))?;
        }
        Ok(queue)
    }

    /// Has a file read.
    pub(super) fn push(&self, id: FileId, source: (Root, RelPath), entry: FileEntry) {
        self.0.push(Job { id, source, entry, is_held: false });
    }
}

impl Drop for SealQueue {
    fn drop(&mut self) {
        lock(&self.0.waiting).is_closed = true;
        self.0.wake.notify_all();
    }
}

impl Jobs {
    fn push(&self, job: Job) {
        lock(&self.waiting).jobs.push_back(job);
        self.wake.notify_one();
    }

    /// The first job that can be done; waits for it. `None`: there is none left, or the session is over.
    fn next(&self, sender: &Sender) -> Option<Job> {
        let mut waiting = lock(&self.waiting);
        loop {
            if sender.is_over() || waiting.is_closed && waiting.jobs.is_empty() {
                return None;
            }
            if let Some(at) = waiting.jobs.iter().position(|job| !job.is_held || sender.has_arrived(job.id)) {
                return waiting.jobs.remove(at);
            }
            let waited = self.wake.wait_timeout(waiting, ARRIVAL_NAP);
            waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn run(sender: &Sender, jobs: &Jobs) {
    while let Some(job) = jobs.next(sender) {
        let (root, path) = &job.source;
        match root.open_source(path).and_then(|open| seal(sender, &job, &open)) {
            Ok(Sealed::Whole(blake3)) => sender.seal(job.id, blake3),
            Ok(Sealed::Held) => jobs.push(Job { is_held: true, ..job }),
            Ok(Sealed::Unwanted) => {}
            Err(error) => sender.withdraw(job.id, error),
        }
    }
}

/// What has become of a job.
enum Sealed {
    /// The BLAKE3 of the whole file.
    Whole([u8; 32]),
    /// A process has the file open for writing, and not every block has arrived.
    Held,
    /// Nobody wants to know any more.
    Unwanted,
}

/// Reads a whole file. Errors: it cannot be read, or changed.
fn seal(sender: &Sender, job: &Job, source: &SourceFile) -> Result<Sealed, Error> {
    // Asked in this order: what has arrived was read before the writer was seen.
    let is_complete = sender.has_arrived(job.id);
    if !is_complete && source.is_being_written() {
        return Ok(Sealed::Held);
    }
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; SEAL_BYTES.min(job.entry.size as usize)];
    let mut at = 0;
    while at < job.entry.size {
        if sender.is_over() || !sender.is_unsettled(job.id) {
            return Ok(Sealed::Unwanted);
        }
        let piece = &mut buffer[..SEAL_BYTES.min((job.entry.size - at) as usize)];
        source.read_at(at, piece)?;
        hasher.update(piece);
        at += piece.len() as u64;
    }
    // After the last read: what was hashed is what the file was at its end.
    source.check_unchanged(&job.entry)?;
    if !is_complete && source.is_being_written() {
        return Ok(Sealed::Held);
    }
    Ok(Sealed::Whole(*hasher.finalize().as_bytes()))
}
