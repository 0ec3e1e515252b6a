//! Sink in memory, for tests: a storage whose state after a crash is a value.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use sterna_proto::file::PACKED_FILE_BYTES_MAX;
use sterna_proto::session::Overwrite;
use sterna_proto::{
    BlockDigest, BlockMap, Checks, Digest, EntryKind, Error, ErrorKind, FileDigester, FileDigests, FileEntry, FileTime,
    Phase, RangeSet, RelPath, Retry, Scope,
};

use super::super::{
    DirectoryModes, Inspected, PackedFile, PackedOutcome, Place, Prepared, Seen, Sink, SinkFile, Terms,
};

/// Storage that the sinks of all sessions share. It holds only data that is durable.
#[derive(Default)]
pub(crate) struct Storage(Mutex<Stored>);

#[derive(Default)]
pub(super) struct Stored {
    pub(super) files: BTreeMap<RelPath, Published>,
    /// Directories, with mode and time once they are finished.
    pub(super) directories: BTreeMap<RelPath, Option<(u16, FileTime)>>,
    unfinished: BTreeMap<RelPath, Unfinished>,
    /// Large files that a session has prepared.
    held: BTreeSet<RelPath>,
    /// Number of published files so far.
    versions: u64,
}

/// File under its name.
pub(super) struct Published {
    pub(super) bytes: Vec<u8>,
    pub(super) mode: u16,
    pub(super) mtime: FileTime,
    version: u64,
}

/// Checkpoint of a file: the data and its record are one value.
struct Unfinished {
    entry: FileEntry,
    bytes: Vec<u8>,
    blocks: BTreeMap<u64, BlockDigest>,
}

impl Storage {
    pub(super) fn stored(&self) -> MutexGuard<'_, Stored> {
        self.0.lock()
    }

    /// Writes a file without a session.
    pub(super) fn write(&self, path: &RelPath, bytes: &[u8]) {
        let mut stored = self.stored();
        stored.publish(path, 0o644, FileTime::default(), bytes.to_vec());
    }

    /// Changes a byte of a checkpoint, as a failing disk does.
    pub(super) fn damage(&self, path: &RelPath, offset: usize) {
        self.stored().unfinished.get_mut(path).unwrap().bytes[offset] ^= 1;
    }
}

impl Stored {
    /// Returns the state of a name and true if its file is complete. Errors: the name cannot be given.
    fn look(&self, entry: &FileEntry, overwrite: Overwrite) -> Result<(bool, Seen), Error> {
        let path = &entry.path;
        if self.directories.contains_key(path) {
            return Err(refused(ErrorKind::Exists, Phase::Prepare, format!("write {path}: it is a directory")));
        }
        let Some(file) = self.files.get(path) else { return Ok((false, Seen::default())) };
        let seen = Seen::version([file.version, 0, 0]);
        let is_same = (file.bytes.len() as u64, file.mtime) == (entry.size, entry.mtime) && !entry.is_growing();
        match overwrite {
            Overwrite::Never => Err(refused(ErrorKind::Exists, Phase::Prepare, format!("write {path}: it exists"))),
            Overwrite::IfChanged => Ok((is_same, seen)),
            Overwrite::Always => Ok((false, seen)),
        }
    }

    fn make_parents(&mut self, path: &RelPath) {
        let mut parent = path.parent();
        while let Some(directory) = parent {
            parent = directory.parent();
            self.directories.entry(directory).or_default();
        }
    }

    fn publish(&mut self, path: &RelPath, mode: u16, mtime: FileTime, bytes: Vec<u8>) {
        self.versions += 1;
        self.files.insert(path.clone(), Published { bytes, mode, mtime, version: self.versions });
    }

    /// Returns the checkpoint to resume from, and the reason if there was one that cannot be used.
    fn resume(&mut self, entry: &FileEntry) -> (Option<Unfinished>, Option<String>) {
        let Some(mut found) = self.unfinished.remove(&entry.path) else { return (None, None) };
        let count = entry.blocks().count();
        if entry.is_growing() {
            // An earlier session took this incomplete block for the end of the file.
            found.blocks.remove(&count);
        }
        let is_beyond = found.blocks.last_key_value().is_some_and(|(index, _)| *index >= count);
        if is_beyond || !found.entry.same_version(entry) {
            return (None, Some(format!("{} starts over: its source is another version", entry.path)));
        }
        (Some(found), None)
    }

    fn publish_packed(&mut self, file: &PackedFile<'_>, terms: &Terms) -> PackedOutcome {
        let PackedFile { entry, data, blake3, expected, seen } = *file;
        let path = &entry.path;
        if entry.size != data.len() as u64 || entry.size > PACKED_FILE_BYTES_MAX {
            return Err(Error::protocol(format!("{path}: {} bytes came for a file of {}", data.len(), entry.size)));
        }
        let checks = expected.iter().fold(terms.checks, |checks, digest| checks.with(digest.algorithm()));
        let digests = FileDigests::of(data, checks);
        if blake3.is_some_and(|blake3| blake3 != digests.blake3) {
            return Err(refused(ErrorKind::Corrupt, Phase::Verify, format!("verify {path}")).retry(Retry::After));
        }
        expected.iter().try_for_each(|digest| digest.check(&digests, path))?;
        let (is_complete, now) = self.look(entry, terms.overwrite)?;
        if is_complete {
            return Ok(None);
        }
        if now != seen || self.held.contains(path) {
            return Err(busy(path));
        }
        self.make_parents(path);
        self.unfinished.remove(path);
        self.publish(path, entry.mode, entry.mtime, data.to_vec());
        Ok(Some(digests))
    }
}

/// Sink of one session.
pub(super) struct MemorySink {
    storage: Arc<Storage>,
    /// Directories of the source, with the mode and time that they get at the end.
    directories: Mutex<BTreeMap<RelPath, (u16, FileTime)>>,
}

impl MemorySink {
    pub(super) fn new(storage: &Arc<Storage>) -> Self {
        Self { storage: Arc::clone(storage), directories: Mutex::default() }
    }
}

impl Sink for MemorySink {
    fn place_of(&self, path: &RelPath) -> Result<Place, Error> {
        Ok(Place::new(Arc::clone(&self.storage) as _, path.clone()))
    }

    fn prepare(&self, entry: &FileEntry, terms: &Terms) -> Result<Prepared, Error> {
        let mut stored = self.storage.stored();
        stored.make_parents(&entry.path);
        if entry.kind == EntryKind::Directory {
            stored.directories.entry(entry.path.clone()).or_default();
            self.directories.lock().insert(entry.path.clone(), (entry.mode, entry.mtime));
            return Ok(Prepared::Directory);
        }
        let (is_complete, seen) = stored.look(entry, terms.overwrite)?;
        if is_complete {
            return Ok(Prepared::UpToDate);
        }
        if entry.is_packed() {
            return Ok(Prepared::Packed(seen));
        }
        if !stored.held.insert(entry.path.clone()) {
            return Err(busy(&entry.path));
        }
        let (found, restarted) = stored.resume(entry);
        let (mut bytes, claimed) = found.map_or_else(Default::default, |found| (found.bytes, found.blocks));
        if !entry.is_growing() || (bytes.len() as u64) < entry.size {
            bytes.resize(entry.size as usize, 0);
        }
        let received = Received {
            entry: entry.clone(),
            bytes,
            claimed,
            verified: BTreeMap::new(),
            unsaved: 0,
            keeps_digests: false,
            is_closed: false,
            has_ended: false,
        };
        let file = MemoryFile {
            storage: Arc::clone(&self.storage),
            path: entry.path.clone(),
            terms: *terms,
            restarted,
            received: Mutex::new(received),
        };
        file.save(&mut stored, &file.received.lock());
        Ok(Prepared::Incoming(Arc::new(file)))
    }

    fn inspect(&self, entry: &FileEntry, overwrite: Overwrite) -> Result<Inspected, Error> {
        let stored = self.storage.stored();
        let is_complete = match entry.kind {
            EntryKind::Directory => stored.directories.contains_key(&entry.path),
            EntryKind::File => stored.look(entry, overwrite)?.0,
        };
        Ok(if is_complete { Inspected::UpToDate } else { Inspected::Wanted })
    }

    fn claim_settled(&self, _: &FileEntry) {}

    fn publish_packed(&self, files: &[PackedFile<'_>], terms: &Terms) -> Vec<PackedOutcome> {
        let mut stored = self.storage.stored();
        files.iter().map(|file| stored.publish_packed(file, terms)).collect()
    }

    fn finish(&self, modes: DirectoryModes) -> Result<(), Error> {
        let kept = if modes == DirectoryModes::Writable { 0o700 } else { 0 };
        let mut stored = self.storage.stored();
        for (path, (mode, mtime)) in std::mem::take(&mut *self.directories.lock()) {
            stored.directories.insert(path, Some((mode | kept, mtime)));
        }
        Ok(())
    }

    fn sync_names(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// File that accepts blocks. Everything here is lost in a crash; [`Storage`] remains.
struct MemoryFile {
    storage: Arc<Storage>,
    path: RelPath,
    terms: Terms,
    restarted: Option<String>,
    received: Mutex<Received>,
}

struct Received {
    entry: FileEntry,
    bytes: Vec<u8>,
    claimed: BTreeMap<u64, BlockDigest>,
    verified: BTreeMap<u64, BlockDigest>,
    /// Number of blocks recorded since the last checkpoint.
    unsaved: u64,
    keeps_digests: bool,
    /// True once the file was published or discarded, and is held no longer.
    is_closed: bool,
    /// True once its session has ended. It is held until it is dropped.
    has_ended: bool,
}

impl Received {
    /// Returns the bytes of a range. Errors: `Protocol` beyond the end of the file.
    fn range(&mut self, offset: u64, length: usize) -> Result<&mut [u8], Error> {
        let text = format!("{length} bytes at {offset} of {}, which has {}", self.entry.path, self.entry.size);
        let whole = &mut self.bytes[..self.entry.size as usize];
        let range = whole.get_mut(offset as usize..).and_then(|behind| behind.get_mut(..length));
        range.ok_or_else(|| Error::protocol(text))
    }

    fn digests(&self, checks: Checks) -> Result<FileDigests, Error> {
        let mut digester = FileDigester::new(self.entry.blocks());
        for digest in (0..).map_while(|index| self.verified.get(&index)) {
            digester.push(digest);
        }
        if digester.next_index() != self.entry.blocks().count() {
            let text = format!("publish {}: block {} is missing", self.entry.path, digester.next_index());
            return Err(refused(ErrorKind::Internal, Phase::Finalise, text));
        }
        let whole = FileDigests::of(&self.bytes[..self.entry.size as usize], checks);
        assert_eq!(digester.finish().blake3, whole.blake3, "a block was recorded that is not what was written");
        Ok(whole)
    }
}

impl MemoryFile {
    fn checks(&self, expected: &[Digest]) -> Checks {
        expected.iter().fold(self.terms.checks, |checks, digest| checks.with(digest.algorithm()))
    }

    /// Makes the received blocks durable. Without a block, nothing is kept.
    fn save(&self, stored: &mut Stored, received: &Received) {
        let blocks: BTreeMap<_, _> = received.claimed.iter().chain(&received.verified).map(|(i, d)| (*i, *d)).collect();
        if blocks.is_empty() {
            stored.unfinished.remove(&self.path);
            return;
        }
        let unfinished = Unfinished { entry: received.entry.clone(), bytes: received.bytes.clone(), blocks };
        stored.unfinished.insert(self.path.clone(), unfinished);
    }

    fn close(&self, stored: &mut Stored, received: &mut Received) {
        stored.unfinished.remove(&self.path);
        stored.held.remove(&self.path);
        received.is_closed = true;
    }

    /// Returns the received data. Errors: the file was published or discarded.
    fn open(&self) -> Result<MutexGuard<'_, Received>, Error> {
        let received = self.received.lock();
        if received.is_closed || received.has_ended {
            let text = format!("go on with {}: prepare it again", self.path);
            return Err(refused(ErrorKind::Io, Phase::Transfer, text).retry(Retry::After));
        }
        Ok(received)
    }
}

impl SinkFile for MemoryFile {
    fn path(&self) -> &RelPath {
        &self.path
    }

    fn blocks(&self) -> BlockMap {
        self.received.lock().entry.blocks()
    }

    fn restarted(&self) -> Option<&str> {
        self.restarted.as_deref()
    }

    fn have(&self) -> RangeSet {
        let received = self.received.lock();
        received.claimed.keys().chain(received.verified.keys()).map(|index| *index..index + 1).collect()
    }

    fn grow(&self, entry: &FileEntry) -> Result<(), Error> {
        let mut received = self.received.lock();
        if !received.entry.grows_into(entry) || received.entry == *entry {
            return Ok(());
        }
        let size = entry.size as usize;
        let length = if entry.is_growing() { received.bytes.len().max(size) } else { size };
        received.bytes.resize(length, 0);
        received.entry = entry.clone();
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.received.lock().range(offset, data.len())?.copy_from_slice(data);
        Ok(())
    }

    fn write_hole(&self, offset: u64, length: u64) -> Result<(), Error> {
        self.received.lock().range(offset, length as usize)?.fill(0);
        Ok(())
    }

    fn write_tail(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let mut received = self.received.lock();
        let (start, end) = (offset as usize, offset as usize + data.len());
        let length = received.bytes.len().max(end);
        received.bytes.resize(length, 0);
        received.bytes[start..end].copy_from_slice(data);
        Ok(())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        buffer.copy_from_slice(self.received.lock().range(offset, buffer.len())?);
        Ok(())
    }

    fn record(&self, index: u64, digest: BlockDigest) -> Result<(), Error> {
        let mut received = self.received.lock();
        let count = received.entry.blocks().count();
        if index >= count {
            return Err(Error::protocol(format!("block {index} of {}, which has {count} blocks", self.path)));
        }
        if !received.claimed.contains_key(&index) && received.verified.insert(index, digest).is_none() {
            received.unsaved += 1;
        }
        Ok(())
    }

    fn checkpoint(&self) -> Result<u64, Error> {
        let mut received = self.open()?;
        self.save(&mut self.storage.stored(), &received);
        Ok(std::mem::take(&mut received.unsaved))
    }

    fn next_claim(&self) -> Option<(u64, BlockDigest)> {
        self.received.lock().claimed.first_key_value().map(|(index, digest)| (*index, *digest))
    }

    fn settle_claim(&self, index: u64, digest: Option<BlockDigest>) {
        let mut received = self.received.lock();
        if received.claimed.remove(&index).is_some() {
            received.verified.extend(digest.map(|digest| (index, digest)));
        }
    }

    fn keep_digests(&self) {
        self.received.lock().keeps_digests = true;
    }

    fn forget(&self, blocks: &RangeSet) -> Result<(), Error> {
        let mut received = self.open()?;
        assert!(received.keeps_digests, "blocks are forgotten whose digests were not kept");
        received.claimed.retain(|index, _| !blocks.contains(*index));
        received.verified.retain(|index, _| !blocks.contains(*index));
        received.unsaved = 0;
        self.save(&mut self.storage.stored(), &received);
        Ok(())
    }

    fn verify(&self, expected: &[Digest]) -> Result<(), Error> {
        let digests = self.received.lock().digests(self.checks(expected))?;
        expected.iter().try_for_each(|digest| digest.check(&digests, &self.path))
    }

    fn check_final_digest(&self, blake3: [u8; 32]) -> Result<(), Error> {
        let digests = self.received.lock().digests(Checks::NONE)?;
        if digests.blake3 == blake3 {
            return Ok(());
        }
        self.discard()?;
        let text = format!("{} was rewritten or cut while it was sent", self.path);
        Err(Error::new(ErrorKind::Changed, Scope::Source, Phase::Verify, text).retry(Retry::After))
    }

    fn publish(&self, expected: &[Digest]) -> Result<FileDigests, Error> {
        let mut received = self.open()?;
        let digests = received.digests(self.checks(expected))?;
        let mut stored = self.storage.stored();
        if let Some(wrong) = expected.iter().find_map(|digest| digest.check(&digests, &self.path).err()) {
            self.close(&mut stored, &mut received);
            return Err(wrong);
        }
        if self.terms.overwrite == Overwrite::Never && stored.files.contains_key(&self.path) {
            return Err(refused(ErrorKind::Exists, Phase::Finalise, format!("give {} its name", self.path)));
        }
        let mut bytes = std::mem::take(&mut received.bytes);
        bytes.truncate(received.entry.size as usize);
        stored.publish(&self.path, received.entry.mode, received.entry.mtime, bytes);
        self.close(&mut stored, &mut received);
        Ok(digests)
    }

    fn discard(&self) -> Result<(), Error> {
        let mut received = self.open()?;
        self.close(&mut self.storage.stored(), &mut received);
        Ok(())
    }

    fn end(&self) {
        let Ok(mut received) = self.open() else { return };
        self.save(&mut self.storage.stored(), &received);
        received.has_ended = true;
    }
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        if !self.received.lock().is_closed {
            self.storage.stored().held.remove(&self.path);
        }
    }
}

fn busy(path: &RelPath) -> Error {
    let text = format!("write {path}: another session writes it");
    refused(ErrorKind::Busy, Phase::Prepare, text).retry(Retry::After)
}

fn refused(kind: ErrorKind, phase: Phase, text: String) -> Error {
    Error::new(kind, Scope::Destination, phase, text)
}
