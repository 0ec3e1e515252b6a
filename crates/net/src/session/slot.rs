//! A file's place on disk, from its offer to its outcome.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use sterna_proto::FileEntry;

use crate::disk::IncomingFile;

/// What is known of a file's place on disk.
pub(super) struct Slot {
    /// The file.
    pub(super) entry: FileEntry,
    /// Held by the thread that asks the storage; until when it is asked again, once it was asked.
    pub(super) asked: Mutex<Option<Instant>>,
    /// What the storage said: the file that takes blocks, if it takes any.
    found: OnceLock<Option<OpenFile>>,
    begun: AtomicBool,
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
        Self { entry: entry.clone(), asked: Mutex::default(), found: OnceLock::new(), begun: AtomicBool::new(false) }
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
