//! State of a file at its sink, from its offer to its outcome.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sterna_proto::{Error, ErrorKind, FileEntry, Retry};

use crate::sink::{Seen, SinkFile};

/// Longest wait for a file that another session holds. Reason: a client that was killed and restarted finds its own
/// previous session. The QUIC lanes of that session count as deserted after 6 s.
pub(super) const BUSY_PATIENCE: Duration = Duration::from_secs(15);

/// Returns the deadline for retries of a file that the storage refused with `error`; `None` if the file fails.
/// `until` is the deadline from the previous call for this file.
///
/// Another session may hold the file, or too many files are open. In the second case, the `open` files of this
/// session will end and release their descriptors. The deadline then moves, because a wait for these descriptors must
/// not use up the patience of the file.
pub(super) fn patience(error: &Error, until: Option<Instant>, now: Instant, open: usize) -> Option<Instant> {
    let crowded = error.kind == ErrorKind::Limit && error.retry == Retry::After;
    let fresh = now + BUSY_PATIENCE;
    if crowded && open > 0 {
        return Some(fresh);
    }
    let until = until.unwrap_or(fresh);
    (now < until && (crowded || error.kind == ErrorKind::Busy)).then_some(until)
}

/// State of a file at its sink.
pub(super) struct Slot {
    /// File entry.
    pub(super) entry: FileEntry,
    /// Locked by the thread that asks the storage. Deadline for retries; `None` before the storage was asked.
    pub(super) asked: Mutex<Option<Instant>>,
    /// Answer of the storage: the file that takes blocks, if any.
    found: OnceLock<Option<OpenFile>>,
    /// True once the file waits for no first block any more: one has arrived, or the file has settled.
    begun: AtomicBool,
    /// State of the existing file that a small file replaces.
    seen: OnceLock<Seen>,
}

/// File that takes blocks and holds descriptors.
struct OpenFile {
    incoming: Arc<dyn SinkFile>,
    _counted: OpenCount,
}

/// Reference count of open files: each open file holds one clone.
#[derive(Clone, Default)]
pub(super) struct OpenCount(Arc<()>);

impl OpenCount {
    /// Returns the number of other clones.
    pub(super) fn others(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

impl Slot {
    /// Creates the slot of a file before the storage is asked.
    pub(super) fn new(entry: &FileEntry) -> Self {
        Self {
            entry: entry.clone(),
            asked: Mutex::default(),
            found: OnceLock::new(),
            begun: AtomicBool::new(false),
            seen: OnceLock::new(),
        }
    }

    /// Records the existing file that a small file replaces. Called once, like [`Slot::set_found`].
    pub(super) fn set_seen(&self, seen: Seen) {
        let _ = self.seen.set(seen);
    }

    /// Returns the state of the existing file that a small file replaces.
    pub(super) fn seen(&self) -> Seen {
        self.seen.get().copied().unwrap_or_default()
    }

    /// Records the answer of the storage. Called once, by the thread that holds `asked`.
    pub(super) fn set_found(&self, incoming: Option<Arc<dyn SinkFile>>, open: &OpenCount) {
        // A second value would need two threads that ask, which the lock of `asked` prevents.
        let _ = self.found.set(incoming.map(|incoming| OpenFile { incoming, _counted: open.clone() }));
    }

    /// True if the storage has answered.
    pub(super) fn is_found(&self) -> bool {
        self.found.get().is_some()
    }

    /// Returns the file that takes blocks; `None` if the file takes none, or before the storage has answered. Never
    /// waits.
    pub(super) fn incoming(&self) -> Option<Arc<dyn SinkFile>> {
        self.found.get()?.as_ref().map(|open| Arc::clone(&open.incoming))
    }

    /// Records the arrival of a block. Returns true for the first one.
    pub(super) fn begin(&self) -> bool {
        !self.begun.swap(true, Ordering::Relaxed)
    }

    /// Records that the file has settled.
    pub(super) fn settle(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    /// True if a block has arrived, or the file has settled.
    pub(super) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    /// True if the file is open and no block has arrived yet.
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
        // Another session now holds the file.
        assert_eq!(patience(&busy, until, late, 1), Some(late + BUSY_PATIENCE));
        assert_eq!(patience(&busy, until, late + BUSY_PATIENCE, 1), None);
        // A wait that does not depend on files of this session ends, whatever its reason.
        let until = patience(&crowded, None, start, 0);
        assert_eq!((until, patience(&crowded, until, start + BUSY_PATIENCE, 0)), (Some(start + BUSY_PATIENCE), None));
        assert_eq!(patience(&error(ErrorKind::NoSpace), None, start, 1), None);
    }
}
