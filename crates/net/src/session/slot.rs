//! A file's place on disk, from its offer to its outcome.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use sterna_proto::{Error, ErrorKind, FileEntry, Retry};

use crate::disk::{IncomingFile, Seen};

/// How long a file that another session holds is waited for. Reason: a client that was killed and started again finds its own
/// former session, whose QUIC lanes count as deserted after 6 s.
pub(super) const BUSY_PATIENCE: Duration = Duration::from_secs(15);

/// Until when a file is asked for again that the storage could not take, by `error`; `None`: it fails. `until` is what was
/// said of it before.
///
/// Another session may hold the file, or too much is open. In the second case the `open` files of this session end and give
/// their descriptors back: who waits for those loses no patience by it.
pub(super) fn patience(error: &Error, until: Option<Instant>, now: Instant, open: usize) -> Option<Instant> {
    let crowded = error.kind == ErrorKind::Limit && error.retry == Retry::After;
    let fresh = now + BUSY_PATIENCE;
    if crowded && open > 0 {
        return Some(fresh);
    }
    let until = until.unwrap_or(fresh);
    (now < until && (crowded || error.kind == ErrorKind::Busy)).then_some(until)
}

/// What is known of a file's place on disk.
pub(super) struct Slot {
    /// The file.
    pub(super) entry: FileEntry,
    /// Held by the thread that asks the storage; until when it is asked again, once it was asked.
    pub(super) asked: Mutex<Option<Instant>>,
    /// What the storage said: the file that takes blocks, if it takes any.
    found: OnceLock<Option<OpenFile>>,
    begun: AtomicBool,
    /// What a small file takes the place of.
    seen: OnceLock<Seen>,
}

/// A file that takes blocks, and holds descriptors.
struct OpenFile {
    incoming: Arc<IncomingFile>,
    _counted: OpenCount,
}

/// Counts its own clones: each open file holds one.
#[derive(Clone, Default)]
pub(super) struct OpenCount(Arc<()>);

impl OpenCount {
    /// How many there are beside this one.
    pub(super) fn others(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

impl Slot {
    /// The place of a file that the storage was not asked for.
    pub(super) fn new(entry: &FileEntry) -> Self {
        Self {
            entry: entry.clone(),
            asked: Mutex::default(),
            found: OnceLock::new(),
            begun: AtomicBool::new(false),
            seen: OnceLock::new(),
        }
    }

    /// Takes note of what a small file takes the place of. Once, as [`Slot::set_found`].
    pub(super) fn set_seen(&self, seen: Seen) {
        let _ = self.seen.set(seen);
    }

    /// What a small file takes the place of.
    pub(super) fn seen(&self) -> Seen {
        self.seen.get().copied().unwrap_or_default()
    }

    /// Takes note of what the storage said. Once: by the thread that holds `asked`.
    pub(super) fn set_found(&self, incoming: Option<Arc<IncomingFile>>, open: &OpenCount) {
        // It is set already only if two threads asked, which the lock of `asked` forbids.
        let _ = self.found.set(incoming.map(|incoming| OpenFile { incoming, _counted: open.clone() }));
    }

    /// Whether the storage has said what becomes of it.
    pub(super) fn is_found(&self) -> bool {
        self.found.get().is_some()
    }

    /// The file that takes blocks; `None` when it takes none, or that is not known yet. Never waits.
    pub(super) fn incoming(&self) -> Option<Arc<IncomingFile>> {
        self.found.get()?.as_ref().map(|open| Arc::clone(&open.incoming))
    }

    /// Its first block has come.
    pub(super) fn begin(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    /// Whether a block has come.
    pub(super) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    /// Whether it is open and no block has come yet.
    pub(super) fn waits_for_blocks(&self) -> bool {
        self.incoming().is_some() && !self.has_begun()
    }
}

#[cfg(test)]
mod tests {
    use sterna_proto::{Phase, Scope};

    use super::*;

    #[test]
    fn a_file_that_waited_for_its_own_session_has_all_its_patience_for_another() {
        let error = |kind| Error::new(kind, Scope::Destination, Phase::Prepare, "not now").retry(Retry::After);
        let (crowded, busy) = (error(ErrorKind::Limit), error(ErrorKind::Busy));
        let start = Instant::now();
        let late = start + BUSY_PATIENCE * 4;
        let until = patience(&crowded, None, start, 1);
        let until = patience(&crowded, until, late, 1);
        assert!(until.is_some());
        // Now another session holds it.
        assert_eq!(patience(&busy, until, late, 1), Some(late + BUSY_PATIENCE));
        assert_eq!(patience(&busy, until, late + BUSY_PATIENCE, 1), None);
        // What nothing of this session holds up has an end, whatever it is.
        let until = patience(&crowded, None, start, 0);
        assert_eq!((until, patience(&crowded, until, start + BUSY_PATIENCE, 0)), (Some(start + BUSY_PATIENCE), None));
        assert_eq!(patience(&error(ErrorKind::NoSpace), None, start, 1), None);
    }
}
