//! A model of the receiver's disk: written data, journaled data and published files. It survives crashes and panics on
//! every forbidden operation.

use std::collections::BTreeMap;

use sterna_proto::session::{LaneId, PrepareOutcome};
use sterna_proto::{Checks, EntryKind, FileDigests, FileEntry, RangeSet, RelPath};

/// A file that receives blocks.
struct Incoming {
    entry: FileEntry,
    /// Verified blocks, in memory or in the page cache.
    verified: RangeSet,
    /// Verified blocks at the time of the look-up.
    found: RangeSet,
    /// Verified blocks that survive a crash.
    journaled: RangeSet,
    /// Blocks that a lane is writing now.
    writing: BTreeMap<u64, LaneId>,
}

impl Incoming {
    fn new(entry: &FileEntry) -> Self {
        let [verified, found, journaled] = [(); 3].map(|()| RangeSet::new());
        Self { entry: entry.clone(), verified, found, journaled, writing: BTreeMap::new() }
    }

    fn grow(&mut self, entry: &FileEntry) {
        if self.entry.grows_into(entry) {
            self.entry = entry.clone();
        }
    }

    fn block_count(&self) -> u64 {
        if self.entry.is_packed() { 1 } else { self.entry.blocks().count() }
    }
}

#[derive(Default)]
pub struct Store {
    incoming: BTreeMap<RelPath, Incoming>,
    /// Published files and their versions.
    pub published: BTreeMap<RelPath, i64>,
    /// Number of blocks written, without the discarded ones.
    pub written_blocks: u64,
}

impl Store {
    /// Does the driver's work before the first block of a file.
    pub fn prepare(&mut self, entry: &FileEntry) -> PrepareOutcome {
        if entry.kind == EntryKind::Directory {
            self.published.insert(entry.path.clone(), entry.mtime.seconds);
            return PrepareOutcome::Complete(FileDigests::of(b"", Checks::NONE));
        }
        if self.published.get(&entry.path) == Some(&entry.mtime.seconds) {
            return PrepareOutcome::UpToDate;
        }
        let incoming = self.incoming.entry(entry.path.clone()).or_insert_with(|| Incoming::new(entry));
        // A small file is written as a whole and never has a journal.
        let mut notice = None;
        if entry.is_packed() || !incoming.entry.same_version(entry) {
            notice = (!incoming.verified.is_empty()).then(|| "the source has changed".to_owned());
            *incoming = Incoming::new(entry);
        }
        assert!(incoming.writing.is_empty(), "a file is looked up while a lane of a former session writes it");
        incoming.entry = entry.clone();
        incoming.found = incoming.verified.clone();
        PrepareOutcome::Ready { have: incoming.verified.clone(), notice }
    }

    /// Reads the blocks that an earlier session left. Removes and returns the blocks that are `rotten`.
    pub fn recheck(&mut self, path: &RelPath, mut rotten: impl FnMut() -> bool) -> RangeSet {
        let incoming = self.incoming.get_mut(path).expect("a file that was looked up");
        let mut lost = RangeSet::new();
        for index in incoming.found.iter().flatten().filter(|_| rotten()) {
            lost.insert(index..index + 1);
        }
        for range in lost.iter() {
            incoming.verified.remove(range.clone());
            incoming.journaled.remove(range);
        }
        lost
    }

    /// Begins to write a block from a lane.
    pub fn begin(&mut self, entry: &FileEntry, index: u64, lane: LaneId) {
        let incoming = self.incoming.get_mut(&entry.path).expect("a block of a file that was looked up");
        incoming.grow(entry);
        let same = incoming.entry == *entry || entry.grows_into(&incoming.entry);
        assert!(same, "{}: a block of another version", entry.path);
        assert!(!incoming.verified.contains(index), "{} block {index}: written over a verified one", entry.path);
        let other = incoming.writing.insert(index, lane);
        assert!(other.is_none(), "{} block {index}: written by {lane:?} and {other:?} at once", entry.path);
    }

    /// Records that a file has grown or ended.
    pub fn grow(&mut self, entry: &FileEntry) {
        if let Some(incoming) = self.incoming.get_mut(&entry.path) {
            incoming.grow(entry);
        }
    }

    /// Ends a lane's block, verified or not.
    pub fn end(&mut self, path: &RelPath, index: u64, lane: LaneId, verified: bool) {
        // Discarded in the meantime: the writer writes to a file without a name.
        let Some(incoming) = self.incoming.get_mut(path) else { return };
        if incoming.writing.get(&index) != Some(&lane) {
            return;
        }
        incoming.writing.remove(&index);
        if verified {
            self.written_blocks += 1;
            incoming.verified.insert(index..index + 1);
        }
    }

    /// Makes all verified blocks durable.
    pub fn checkpoint(&mut self) {
        for incoming in self.incoming.values_mut() {
            if !incoming.entry.is_packed() {
                incoming.journaled = incoming.verified.clone();
            }
        }
    }

    /// Crashes the receiver's host, which loses all blocks that are not journaled.
    pub fn crash(&mut self) {
        for incoming in self.incoming.values_mut() {
            incoming.verified = incoming.journaled.clone();
            incoming.writing.clear();
        }
    }

    /// Ends all writing. Publishes complete files and keeps the verified blocks of the others.
    pub fn end_session(&mut self) {
        self.incoming.values_mut().for_each(|incoming| incoming.writing.clear());
        // Only the sender of a growing file can decide that it is complete.
        let may_end = self.incoming.values().filter(|file| file.entry.growth.is_none());
        let complete = may_end.filter(|file| file.verified.len() == file.block_count());
        let complete: Vec<FileEntry> = complete.map(|file| file.entry.clone()).collect();
        complete.iter().for_each(|entry| self.publish(entry));
        self.checkpoint();
    }

    pub fn discard(&mut self, path: &RelPath) {
        self.incoming.remove(path);
    }

    /// Publishes a file. All blocks must be verified, and no lane may be writing.
    pub fn publish(&mut self, entry: &FileEntry) {
        let incoming = self.incoming.remove(&entry.path).expect("a published file was looked up");
        assert_eq!(incoming.entry, *entry, "{}: published in another version", entry.path);
        assert_eq!(incoming.verified.len(), incoming.block_count(), "{}: published with blocks missing", entry.path);
        assert!(incoming.writing.is_empty(), "{}: published while a block is written", entry.path);
        self.published.insert(entry.path.clone(), entry.mtime.seconds);
    }

    /// Returns the number of blocks that a crash now would lose.
    pub fn unjournaled_blocks(&self) -> u64 {
        self.incoming.values().map(|incoming| incoming.verified.len() - incoming.journaled.len()).sum()
    }
}
