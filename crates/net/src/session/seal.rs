//! Reads files that were sent while they grew once more, as a whole, when they have ended.
//!
//! What was read of a growing file when its blocks were sent says nothing of what it holds at its end: writers patch headers, and no kernel tells. So each is read
//! once more, while its last blocks are still on their way; the receiver publishes what has the same digest, and nothing else.

use std::sync::mpsc::{Receiver, Sender as JobQueue, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use sterna_proto::session::FileId;
use sterna_proto::{Error, FileEntry, RelPath};

use super::sender::Sender;
use super::{End, lock};
use crate::disk::{Root, SourceFile};

/// Threads that read files once more. Reason: a small file does not wait for one of a terabyte that ended before it.
const SEALERS: usize = 2;

/// Bytes read at once. Guess: large enough that a system call costs nothing beside it.
const SEAL_BYTES: usize = 1 << 20;

/// A file that has ended: where it is, and its entry.
type Job = (FileId, (Root, RelPath), FileEntry);

/// Files that wait to be read; the threads end when it is dropped.
pub(super) struct SealQueue(JobQueue<Job>);

impl SealQueue {
    /// Starts the threads. Errors: the host has none.
    pub(super) fn start(sender: &Arc<Sender>) -> Result<Self, Error> {
        let (queue, jobs) = channel();
        let jobs = Arc::new(Mutex::new(jobs));
        for _ in 0..SEALERS {
            let (sender, jobs) = (Arc::clone(sender), Arc::clone(&jobs));
            let spawned = thread::Builder::new().name("seal".to_owned()).spawn(move || run(&sender, &jobs));
            spawned.map_err(|e| crate::internal("start a thread that reads followed files").caused_by(e))?;
        }
        Ok(Self(queue))
    }

    /// Has a file read.
    pub(super) fn push(&self, id: FileId, source: (Root, RelPath), entry: FileEntry) {
        // The threads end later than their queue.
        let _ = self.0.send((id, source, entry));
    }
}

fn run(sender: &Sender, jobs: &Mutex<Receiver<Job>>) {
    loop {
        let job = lock(jobs).recv();
        let Ok((id, source, entry)) = job else { return };
        let (root, path) = &source;
        match root.open_source(path).and_then(|open| seal(sender, id, &open, &entry)) {
            Ok(Some(blake3)) => sender.seal(id, blake3),
            Ok(None) => {}
            Err(error) => sender.withdraw(id, error),
        }
    }
}

/// The BLAKE3 of the whole file; `None` when nobody wants to know any more. Errors: it cannot be read, or changed.
fn seal(sender: &Sender, id: FileId, source: &SourceFile, entry: &FileEntry) -> Result<Option<[u8; 32]>, Error> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; SEAL_BYTES.min(entry.size as usize)];
    let mut at = 0;
    while at < entry.size {
        if sender.is_over() || !sender.is_unsettled(id) {
            return Ok(None);
        }
        let piece = &mut buffer[..SEAL_BYTES.min((entry.size - at) as usize)];
        source.read_at(at, piece)?;
        hasher.update(piece);
        at += piece.len() as u64;
    }
    // After the last read: what was hashed is what the file was at its end.
    source.check_unchanged(entry)?;
    Ok(Some(*hasher.finalize().as_bytes()))
}
