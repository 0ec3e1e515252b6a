//! A file that is being received: blocks at their offsets, a journal of durable blocks, and the final name at the end.
//!
//! The parent module describes the order of the steps, and what a crash after each of them leaves behind.

mod forgetting;
mod growing;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustix::fs::{AtFlags, Dir, FallocateFlags, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use sterna_proto::digest::InOrder;
use sterna_proto::journal::{HEADER_BYTES, JournalHeader, JournalRecord, RECORD_BYTES, RecordCodec};
use sterna_proto::{
    BlockDigest, BlockMap, ByteCount, Checks, Digest, Error, ErrorKind, FileDigester, FileDigests, FileEntry, RangeSet,
    RelPath, Retry,
};

use sterna_proto::session::Overwrite;

use super::destination::{Destination, Verdict};
use super::fault::{FINALISING, PREPARING, VERIFYING, WRITING};
use super::hidden::{
    Finished, HIDDEN_MODE, HiddenNames, LockedPart, is_private, lock_part, make_private, refuse_foreign,
    rename_into_place, unlink, unlink_ours,
};
use super::history::version_of;
use super::metadata::times;
use crate::sink::Terms;

/// File that accepts blocks in any order. The threads of all lanes share it.
///
/// Dropping it keeps the checkpointed blocks for the next session, and nothing else. It also releases the lock, so that
/// this session can begin.
#[derive(Debug)]
pub struct IncomingFile {
    destination: Destination,
    directory: OwnedFd,
    part: File,
    names: HiddenNames,
    path: RelPath,
    /// Changes only while the source grows.
    entry: RwLock<FileEntry>,
    overwrite: Overwrite,
    checks: Checks,
    restarted: Option<String>,
    records: Mutex<Records>,
    journal: Mutex<Journal>,
    /// True once a journal claims blocks. Can be read while `journal` is locked.
    has_journal: AtomicBool,
}

/// State of the received blocks.
#[derive(Debug)]
struct Records {
    have: RangeSet,
    /// Blocks of `have` that only the journal of an earlier session claims.
    claimed: BTreeMap<u64, BlockDigest>,
    /// Blocks recorded since the last checkpoint.
    unsaved: Vec<JournalRecord>,
    /// Digests of blocks behind a gap; the digests before the gap are merged already.
    ahead: BTreeMap<u64, BlockDigest>,
    digester: FileDigester,
    /// Digest of every compared block of `have`; `Some` for a file whose blocks may be forgotten.
    kept: Option<BTreeMap<u64, BlockDigest>>,
}

/// Journal file. Its state also tells if this file can still be checkpointed and published.
#[derive(Debug)]
enum Journal {
    /// No checkpoint yet. A file that completes within the first second never gets a journal.
    None,
    Open {
        file: File,
        codec: RecordCodec,
        end: u64,
    },
    /// A write was lost, or the file was published or deleted: no more blocks may be claimed. Holds the reason.
    Closed(&'static str),
}

impl IncomingFile {
    /// Locks the part file of `path` in `directory`, and resumes from its journal if both are of the same version.
    /// Returns `None` if the file is up to date.
    pub(super) fn open(
        destination: Destination,
        directory: OwnedFd,
        path: RelPath,
        entry: &FileEntry,
        terms: &Terms,
    ) -> Result<Option<Self>, Error> {
        let names = HiddenNames::of(&path);
        let mut part = lock_part(directory.as_fd(), &names.part, &path)?;
        // Checked under the lock: its previous holder may have published the file.
        let verdict = destination.look(&directory, &path, entry, terms.overwrite).map(|(verdict, _)| verdict);
        if !matches!(verdict, Ok(Verdict::Wanted)) {
            names.delete_locked(directory.as_fd(), &part.file);
            return verdict.map(|_| None);
        }
        let blocks = entry.blocks();
        let mut records = Records::new(blocks);
        let failed = |errno: Errno| PREPARING.failed(errno, format_args!("make ready {} for {path}", names.part));
        let found = take_up(directory.as_fd(), &names, &path, entry, &part, &mut records).inspect_err(|_| {
            if !part.is_left {
                names.delete_locked(directory.as_fd(), &part.file);
            }
        })?;
        let (journal, restarted) = match found {
            Found::Journal { journal, cut } => (journal, cut),
            Found::Nothing { reason } => {
                if reason.is_some() {
                    // In this order, each step durable before the next: no journal may claim blocks of a new part file.
                    unlink_ours(directory.as_fd(), &names.journal).map_err(failed)?;
                    rustix::fs::fsync(&directory).map_err(failed)?;
                }
                // A journal left over from a published file is not worth a message.
                let restarted = reason.filter(|_| part.stat.st_size != 0);
                if part.is_left {
                    part = part.renew(directory.as_fd(), &names.part, &path)?;
                }
                records = Records::new(blocks);
                (Journal::None, restarted)
            }
        };
        let LockedPart { file: part, stat, .. } = part;
        // The part file of a growing file may hold more than the recorded size of its source.
        let length =
            if entry.is_growing() && !records.have.is_empty() { stat.st_size as u64 } else { 0 }.max(entry.size);
        let occupied = if records.have.is_empty() { 0 } else { (stat.st_blocks as u64).saturating_mul(512) };
        let room = check_space(directory.as_fd(), &path, entry.allocated.saturating_sub(occupied))
            // Sets only the length: the file is a hole until blocks arrive, so that holes of the source can stay holes.
            .and_then(|()| rustix::fs::ftruncate(&part, length).map_err(failed));
        if let Err(error) = room {
            if records.have.is_empty() {
                let _ = unlink(directory.as_fd(), &names.part);
            }
            return Err(error);
        }
        Ok(Some(Self {
            destination,
            directory,
            part,
            names,
            path,
            entry: RwLock::new(entry.clone()),
            overwrite: terms.overwrite,
            checks: terms.checks,
            restarted,
            records: Mutex::new(records),
            has_journal: AtomicBool::new(matches!(journal, Journal::Open { .. })),
            journal: Mutex::new(journal),
        }))
    }

    /// Deletes the hidden files that an earlier session left beside a complete file, unless a live session holds them.
    pub(super) fn sweep(directory: &OwnedFd, path: &RelPath) {
        let names = HiddenNames::of(path);
        match rustix::fs::statat(directory, &*names.part, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => {
                if let Ok(part) = lock_part(directory.as_fd(), &names.part, path) {
                    names.delete_locked(directory.as_fd(), &part.file);
                }
            }
            Err(Errno::NOENT) => drop(unlink_ours(directory.as_fd(), &names.journal)),
            Err(_) => {}
        }
    }

    /// Deletes hidden files of earlier sessions in the directory `path` that cannot be resumed. These are part files
    /// without a journal, and journals without a part file. Files of live sessions stay. Reason: a file whose source is
    /// gone is never prepared again. Best effort. Cost: reads the directory.
    pub(super) fn sweep_directory(directory: &OwnedFd, path: &RelPath) {
        let Ok(items) = Dir::read_from(directory) else { return };
        for names in items.flatten().filter_map(|item| HiddenNames::that_have(item.file_name().to_bytes())) {
            // Creates the part file if only a journal is left: the holder of the lock on a part file may delete both.
            let Ok(part) = lock_part(directory.as_fd(), &names.part, path) else { continue };
            let journal = rustix::fs::statat(directory, &*names.journal, AtFlags::SYMLINK_NOFOLLOW);
            if part.stat.st_size == 0 || journal.is_err_and(|errno| errno == Errno::NOENT) {
                names.delete_locked(directory.as_fd(), &part.file);
            }
        }
    }

    /// Returns the entry that the file was prepared for, or the latest entry of a growing file.
    pub fn entry(&self) -> FileEntry {
        self.entry_now().clone()
    }

    /// Returns the final path beneath the root.
    pub fn path(&self) -> &RelPath {
        &self.path
    }

    /// Returns the division of the file into blocks.
    pub fn blocks(&self) -> BlockMap {
        self.entry_now().blocks()
    }

    /// Returns the digests that blocks carry besides BLAKE3.
    pub fn checks(&self) -> Checks {
        self.checks
    }

    /// Returns the reason why an earlier attempt could not be resumed, or only in part, as text for the user. `None` if
    /// there was no earlier attempt, or it was fully resumed.
    pub fn restarted(&self) -> Option<&str> {
        self.restarted.as_deref()
    }

    /// Returns the blocks that are present: recorded by this session, or claimed by the journal of an earlier one.
    pub fn have(&self) -> RangeSet {
        self.records().have.clone()
    }

    /// Returns true if every block is present.
    pub fn is_complete(&self) -> bool {
        self.records().have.len() == self.blocks().count()
    }

    /// Writes `data` at its offset; blocks may arrive in any order.
    ///
    /// Errors: `NoSpace` with `Retry::Never` if the disk is full; `Protocol` beyond the end of the file; `Corrupt` with
    /// `Retry::After` if the part file was truncated. Cost: one `pwrite` and no sync; [`IncomingFile::checkpoint`]
    /// syncs many blocks at once.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let size = self.check_range(offset, data.len() as u64)?;
        if offset + data.len() as u64 == size {
            self.check_uncut(size)?;
        }
        self.part.write_all_at(data, offset).map_err(|error| {
            let root = self.destination.root();
            WRITING.failed(error, format_args!("write {} bytes at {offset} of {} in {root}", data.len(), self.path))
        })
    }

    /// Fills `[offset, offset + length)` with zeros: with a hole, if the file system supports holes.
    ///
    /// Errors: as [`IncomingFile::write_at`].
    pub fn write_hole(&self, offset: u64, length: u64) -> Result<(), Error> {
        self.check_range(offset, length)?;
        if length == 0 {
            return Ok(());
        }
        let failed = |errno: Errno| WRITING.failed(errno, format_args!("write a hole at {offset} of {}", self.path));
        match rustix::fs::fallocate(&self.part, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, length)
        {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                let zeros = [0u8; 64 << 10];
                let mut at = offset;
                while at < offset + length {
                    let step = (offset + length - at).min(zeros.len() as u64);
                    self.write_at(at, &zeros[..step as usize])?;
                    at += step;
                }
                Ok(())
            }
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Reads written bytes back, to hash a block that a lane left incomplete.
    ///
    /// Errors: `Protocol` beyond the end of the file, `Io`.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        self.check_range(offset, buffer.len() as u64)?;
        self.part
            .read_exact_at(buffer, offset)
            .map_err(|error| WRITING.failed(error, format_args!("read back {offset} of {}", self.path)))
    }

    /// Records that block `index` is written and that its digest was correct. A second call changes nothing.
    ///
    /// Errors: `Protocol` for a block that the file does not have. Cost: memory only, until the next checkpoint.
    pub fn record(&self, index: u64, digest: BlockDigest) -> Result<(), Error> {
        let count = self.blocks().count();
        if index >= count {
            return Err(Error::protocol(format!("block {index} of {}, which has {count} blocks", self.path)));
        }
        let mut records = self.records();
        if !records.have.contains(index) {
            records.take(index, digest);
            records.unsaved.push(JournalRecord { index, digest });
        }
        Ok(())
    }

    /// Returns the next block that only the journal of an earlier session claims, and its digest. `None` after every
    /// such block was read.
    ///
    /// A disk may lose data that it reported as durable, so the bytes must be compared before they count.
    pub fn next_claim(&self) -> Option<(u64, BlockDigest)> {
        self.records().claimed.first_key_value().map(|(index, digest)| (*index, *digest))
    }

    /// Settles a claim. With `Some`, the block is present and has this `digest`. With `None`, its bytes differ from the
    /// journal, and the block is missing again. Without such a claim, nothing changes.
    pub fn settle_claim(&self, index: u64, digest: Option<BlockDigest>) {
        let mut records = self.records();
        if records.claimed.remove(&index).is_none() {
            return;
        }
        match digest {
            Some(digest) => records.take(index, digest),
            None => records.have.remove(index..index + 1),
        }
    }

    /// Makes all blocks recorded so far durable, so that no crash causes them to be sent again. Returns the number of
    /// these blocks.
    ///
    /// One thread must call this about once a second; others may write and record meanwhile. Errors: after any error,
    /// nothing of this call counts as durable, and the file must be dropped and prepared again. Reason: once a kernel
    /// has reported a lost write, a second `fdatasync` does not report it. Cost: two syncs, and a third one the first
    /// time.
    pub fn checkpoint(&self) -> Result<u64, Error> {
        let mut journal = self.journal();
        self.save(&mut journal)
    }

    /// Verifies the whole file, makes it durable and gives it its final name. Returns the requested digests.
    ///
    /// Every digest of `expected` must match. Errors: `Corrupt` with `Retry::OtherReplica` if a digest differs; the
    /// data is then deleted. `Exists` if the name was taken meanwhile under [`Overwrite::Never`]. `Internal` if blocks
    /// are missing. After other errors the blocks stay for the next session. Cost: two syncs, and one pass over the
    /// file for MD5 and SHA-256.
    pub fn publish(&self, expected: &[Digest]) -> Result<FileDigests, Error> {
        let mut journal = self.journal();
        self.refuse_closed(&journal)?;
        let checks = expected.iter().fold(self.checks, |checks, digest| checks.with(digest.algorithm()));
        let digests = self.file_digests(checks)?;
        if let Some(wrong) = expected.iter().find_map(|digest| digest.check(&digests, &self.path).err()) {
            self.remove(&mut journal, "it was corrupt")?;
            return Err(wrong);
        }
        if let Err(error) = self.finish_part(&mut journal) {
            // A hidden file stays private. Best effort: the error is returned in any case.
            let _ = rustix::fs::fchmod(&self.part, HIDDEN_MODE);
            return Err(error);
        }
        *journal = Journal::Closed("it was published");
        self.destination.settle()?;
        rustix::fs::fsync(&self.directory)
            .map_err(|errno| FINALISING.failed(errno, format_args!("sync the directory of {}", self.path)))?;
        // Last, and not synced: a leftover journal does no harm, and the next session deletes it. The lock ended with
        // the name of the part file. So a part file that exists now belongs to another session, and its journal too.
        let part = rustix::fs::statat(&self.directory, &*self.names.part, AtFlags::SYMLINK_NOFOLLOW);
        if part.is_err_and(|errno| errno == Errno::NOENT) {
            let _ = unlink_ours(self.directory.as_fd(), &self.names.journal);
        }
        Ok(digests)
    }

    /// Sets mode and time of the part file, makes it durable, and then gives it its final name.
    fn finish_part(&self, journal: &mut Journal) -> Result<(), Error> {
        let failed = |what: &str, errno: Errno| {
            FINALISING.failed(errno, format_args!("{what} {}; its blocks are kept", self.path))
        };
        let FileEntry { size, mode, mtime, .. } = self.entry();
        rustix::fs::fchmod(&self.part, Mode::from_raw_mode(u32::from(mode)))
            .and_then(|()| rustix::fs::futimens(&self.part, &times(mtime)))
            .map_err(|errno| failed("set mode and time of", errno))?;
        if let Err(errno) = rustix::fs::fsync(&self.part) {
            *journal = Journal::Closed("a write was lost");
            return Err(failed("sync", errno));
        }
        self.destination.record_version(&self.part, version_of(&self.entry()));
        let part = Finished { name: &self.names.part, file: &self.part, size };
        let renamed =
            rename_into_place(self.directory.as_fd(), part, &self.path, (self.overwrite, self.destination.claims()));
        if renamed.as_ref().is_err_and(|error| error.kind == ErrorKind::NotFound) {
            *journal = Journal::Closed("its part file was removed");
        }
        renamed
    }

    /// Deletes the received data of a file that will not be resumed.
    pub fn discard(&self) -> Result<(), Error> {
        let mut journal = self.journal();
        self.refuse_closed(&journal)?;
        self.remove(&mut journal, "it was discarded")
    }

    /// Ends the work on the file, because its session ends and the process may end before the file is dropped. Makes
    /// all recorded blocks durable. Deletes the part file if there is none.
    ///
    /// A running [`IncomingFile::publish`] goes on, and later calls of it fail. Waits for it only if the file has no
    /// journal, because the file is then too young to take long. Best effort: after an error, the blocks that are not
    /// durable are sent again.
    pub fn end(&self) {
        let mut journal = match self.journal.try_lock() {
            Some(journal) => journal,
            None if self.has_journal.load(Ordering::Relaxed) => return,
            None => self.journal(),
        };
        let _ = self.save(&mut journal);
        match *journal {
            Journal::Closed(_) => return,
            Journal::Open { .. } => {}
            Journal::None => self.names.delete_locked(self.directory.as_fd(), &self.part),
        }
        *journal = Journal::Closed("its session has ended");
    }

    /// Implements [`IncomingFile::checkpoint`].
    fn save(&self, journal: &mut Journal) -> Result<u64, Error> {
        self.refuse_closed(journal)?;
        // Taken before the sync begins: blocks that are recorded during the sync may not be on disk yet.
        let unsaved = std::mem::take(&mut self.records().unsaved);
        if unsaved.is_empty() {
            return Ok(0);
        }
        let saved = self.append(journal, &unsaved);
        if let Err(error) = saved {
            if is_crowded(&error) {
                // Nothing was lost: the next checkpoint creates the journal.
                self.records().unsaved.splice(0..0, unsaved);
                return Ok(0);
            }
            *journal = Journal::Closed("a write was lost");
            let count = unsaved.len();
            return Err(WRITING.failed(error, format_args!("make {count} blocks of {} durable", self.path)));
        }
        Ok(unsaved.len() as u64)
    }

    fn append(&self, journal: &mut Journal, unsaved: &[JournalRecord]) -> std::io::Result<()> {
        rustix::fs::fdatasync(&self.part)?;
        let mut bytes = Vec::with_capacity(HEADER_BYTES + unsaved.len() * RECORD_BYTES);
        if matches!(journal, Journal::None) {
            let header = JournalHeader::new(&self.entry(), rustix::fs::fstat(&self.part)?.st_ino, nonce());
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            // An existing journal was left by a session that published; see step 6 in the parent module.
            unlink_ours(self.directory.as_fd(), &self.names.journal)?;
            let file = File::from(rustix::fs::openat(&self.directory, &*self.names.journal, flags, HIDDEN_MODE)?);
            bytes.extend_from_slice(&header.encode());
            *journal = Journal::Open { file, codec: header.records(), end: 0 };
        }
        if let Journal::Open { file, codec, end } = journal {
            let is_new = *end == 0;
            for record in unsaved {
                bytes.extend_from_slice(&codec.encode(record));
            }
            file.write_all_at(&bytes, *end)?;
            rustix::fs::fdatasync(&*file)?;
            *end += bytes.len() as u64;
            if is_new {
                // The names of both files must survive a power cut too.
                rustix::fs::fsync(&self.directory)?;
                self.has_journal.store(true, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Merges the digests of the blocks. Reads the file once for the digests of `checks` that blocks do not carry.
    fn file_digests(&self, checks: Checks) -> Result<FileDigests, Error> {
        let digester = self.records().digester.clone();
        let entry = self.entry();
        if digester.next_index() != entry.blocks().count() {
            let text = format!("publish {}: block {} is missing", self.path, digester.next_index());
            return Err(FINALISING.refused(ErrorKind::Internal, text));
        }
        let mut digests = digester.finish();
        let failed = |error: std::io::Error| VERIFYING.failed(error, format_args!("read back {}", self.path));
        let size = rustix::fs::fstat(&self.part).map_err(|errno| failed(errno.into()))?.st_size;
        if size as u64 != entry.size {
            let text = format!("publish {}: something cut its part file to {size} bytes", self.path);
            return Err(VERIFYING.refused(ErrorKind::Corrupt, text).retry(Retry::After));
        }
        let missing = digests.missing(checks);
        if !missing.is_none() {
            let mut rest = InOrder::new(missing);
            let mut buffer = vec![0u8; READ_BACK_BYTES];
            let mut offset = 0;
            while offset < entry.size {
                let step = (entry.size - offset).min(READ_BACK_BYTES as u64) as usize;
                self.part.read_exact_at(&mut buffer[..step], offset).map_err(failed)?;
                rest.update(&buffer[..step]);
                offset += step as u64;
            }
            rest.finish_into(&mut digests);
        }
        Ok(FileDigests {
            adler32: digests.adler32.filter(|_| checks.adler32),
            crc32c: digests.crc32c.filter(|_| checks.crc32c),
            ..digests
        })
    }

    /// Deletes first the journal and then the part file.
    fn remove(&self, journal: &mut Journal, reason: &'static str) -> Result<(), Error> {
        *journal = Journal::Closed(reason);
        let directory = self.directory.as_fd();
        unlink_ours(directory, &self.names.journal)
            .and_then(|()| rustix::fs::fsync(directory))
            .and_then(|()| unlink(directory, &self.names.part))
            .map_err(|errno| FINALISING.failed(errno, format_args!("delete what was received of {}", self.path)))
    }

    fn refuse_closed(&self, journal: &Journal) -> Result<(), Error> {
        match journal {
            Journal::Closed(reason) => {
                let text = format!("go on with {}: {reason}; prepare it again", self.path);
                Err(WRITING.refused(ErrorKind::Io, text).retry(Retry::After))
            }
            Journal::None | Journal::Open { .. } => Ok(()),
        }
    }

    /// Checks that the part file still has `size` bytes. Must be called before each write that would give it that
    /// length.
    ///
    /// The part file has its full length from the start. A truncation removes recorded blocks, and a write at the end
    /// would then turn them into zeros. Errors: `Corrupt` with `Retry::After`; the next attempt finds out which blocks
    /// are left.
    fn check_uncut(&self, size: u64) -> Result<(), Error> {
        let failed =
            |errno: Errno| VERIFYING.failed(errno, format_args!("look at the unfinished data of {}", self.path));
        let now = rustix::fs::fstat(&self.part).map_err(failed)?.st_size as u64;
        if now >= size {
            return Ok(());
        }
        let text = format!(
            "write {}: something cut its unfinished data to {now} of {size} bytes; what is left is checked by the next attempt",
            self.path
        );
        Err(VERIFYING.refused(ErrorKind::Corrupt, text).retry(Retry::After))
    }

    /// Returns the size of the file. Errors: `Protocol` if the range exceeds the end of the file.
    fn check_range(&self, offset: u64, length: u64) -> Result<u64, Error> {
        let size = self.entry_now().size;
        match offset.checked_add(length).is_some_and(|end| end <= size) {
            true => Ok(size),
            false => {
                Err(Error::protocol(format!("{length} bytes at {offset} of {}, which has {size} bytes", self.path)))
            }
        }
    }

    fn entry_now(&self) -> RwLockReadGuard<'_, FileEntry> {
        // An entry is replaced as a whole, so it stays valid after a panic in another thread.
        self.entry.read()
    }

    fn entry_mut(&self) -> RwLockWriteGuard<'_, FileEntry> {
        self.entry.write()
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        // Records are consistent between any two statements, so they stay valid after a panic in another thread.
        self.records.lock()
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        // As above: a half-written journal is closed before the lock is released.
        self.journal.lock()
    }
}

impl Drop for IncomingFile {
    fn drop(&mut self) {
        // A part file without a journal would be emptied at the next attempt, and that attempt may never come.
        if matches!(*self.journal(), Journal::None) {
            self.names.delete_locked(self.directory.as_fd(), &self.part);
        }
        // Explicit, because closing is not enough: a process that is just being started may still hold a copy of the
        // descriptor.
        let _ = rustix::fs::flock(&self.part, FlockOperation::Unlock);
    }
}

impl Records {
    fn new(blocks: BlockMap) -> Self {
        Self {
            have: RangeSet::new(),
            claimed: BTreeMap::new(),
            unsaved: Vec::new(),
            ahead: BTreeMap::new(),
            digester: FileDigester::new(blocks),
            kept: None,
        }
    }

    /// Adds a block whose digest was compared, and merges all digests before the next gap.
    fn take(&mut self, index: u64, digest: BlockDigest) {
        self.have.insert(index..index + 1);
        if let Some(kept) = &mut self.kept {
            kept.insert(index, digest);
        }
        self.ahead.insert(index, digest);
        while let Some(digest) = self.ahead.remove(&self.digester.next_index()) {
            self.digester.push(&digest);
        }
    }
}

/// Bytes per read for digests that cannot be merged. Guess: so many that the cost of the system call does not matter.
const READ_BACK_BYTES: usize = 1 << 20;

/// Bytes of a journal per read.
const JOURNAL_READ_BYTES: usize = 1024 * RECORD_BYTES;

/// State that an earlier session left.
enum Found {
    /// A journal to resume from. `cut` is a message for the user if the part file was truncated.
    Journal { journal: Journal, cut: Option<String> },
    /// Nothing to resume from. `reason` is set if there was a journal.
    Nothing { reason: Option<String> },
}

/// Reads the journal of a part file, if it belongs to this version of the source and to this part file.
fn take_up(
    directory: BorrowedFd<'_>,
    names: &HiddenNames,
    path: &RelPath,
    entry: &FileEntry,
    part: &LockedPart,
    records: &mut Records,
) -> Result<Found, Error> {
    let Some((file, stat)) = open_journal(directory, &names.journal, path)? else {
        return Ok(Found::Nothing { reason: None });
    };
    let failed = |error: std::io::Error| PREPARING.failed(error, format_args!("read the journal of {path}"));
    let over = |why: &str| Ok(Found::Nothing { reason: Some(format!("{path} starts over: {why}")) });
    let mode = make_private(&file, &stat).map_err(|errno| failed(errno.into()))?;
    let mut buffer = vec![0u8; JOURNAL_READ_BYTES];
    let taken = read_up_to(&file, &mut buffer[..HEADER_BYTES], 0).map_err(failed)?;
    if taken == 0 {
        // The process was killed after it created the journal and before it wrote to it. The journal never claimed
        // anything, and the next one replaces it.
        return Ok(Found::Nothing { reason: None });
    }
    let header = match JournalHeader::decode(&buffer[..taken]) {
        Ok(header) => header,
        Err(error) => return over(error.text()),
    };
    if let Some(why) = reason_against(&header, (&stat, mode), entry, part) {
        return over(why);
    }
    let codec = header.records();
    let end = RecordCodec::append_offset(stat.st_size as u64);
    // A block is written again only if it was found damaged. Records beyond two per block are not read, and their
    // blocks are sent again.
    // The part file of a growing file may hold more than the recorded size of its source.
    let size = part.stat.st_size as u64;
    let whole = if entry.is_growing() { entry.size.max(size) } else { entry.size };
    let blocks = FileEntry { size: whole, ..entry.clone() }.blocks();
    let end = end.min(HEADER_BYTES as u64 + blocks.count().saturating_mul(RECORD_BYTES as u64 * 2));
    // A part file has its full length from the start. The part file of a growing file may have any length: missing
    // bytes are detected when it is read.
    let is_fixed = entry.growth.is_none();
    let mut cut = RangeSet::new();
    let mut at = HEADER_BYTES as u64;
    while at < end {
        let step = (end - at).min(JOURNAL_READ_BYTES as u64) as usize;
        let taken = read_up_to(&file, &mut buffer[..step], at).map_err(failed)?;
        for record in buffer[..taken].chunks_exact(RECORD_BYTES).filter_map(|bytes| codec.decode(bytes)) {
            let index = record.index;
            if is_fixed && index < blocks.count() && blocks.offset(index) + blocks.length(index) > size {
                // The block was there when the journal was written: something has truncated the part file since.
                cut.insert(index..index + 1);
                continue;
            }
            // A later record of a block replaces an earlier one: the block was found damaged and was written again.
            records.have.insert(index..index + 1);
            records.claimed.insert(index, record.digest);
        }
        if taken < step {
            break;
        }
        at += step as u64;
    }
    if entry.is_growing() {
        records.forget_end(&entry.blocks());
    }
    if records.are_beyond(&entry.blocks()) {
        return over("the source is shorter than what an earlier session received of it");
    }
    let cut = (!cut.is_empty()).then(|| {
        let blocks = cut.len();
        format!("{path}: something cut its unfinished data to {size} bytes; blocks that are sent again: {blocks}")
    });
    Ok(Found::Journal { journal: Journal::Open { file, codec, end }, cut })
}

/// Opens the journal `name` of `path`, and returns its metadata too. `None` if it does not exist.
///
/// Errors: `Denied` if it belongs to another user.
fn open_journal(directory: BorrowedFd<'_>, name: &str, path: &RelPath) -> Result<Option<(File, Stat)>, Error> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let failed = |errno: Errno| PREPARING.failed(errno, format_args!("open {name}, the journal of {path}"));
    clear_journal_name(directory, name, path)?;
    let file = match rustix::fs::openat(directory, name, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(failed(errno)),
    };
    let stat = rustix::fs::fstat(&file).map_err(failed)?;
    refuse_foreign(&stat, name, path)?;
    Ok(Some((file, stat)))
}

/// Returns the reason why a journal does not count for `part`, as text for the user. `journal_mode` is the mode that
/// the journal was found with.
///
/// Both files must be closed to other users. A part file that is open to them counts only if it has the mode of its
/// source, which publishing sets just before the final name. Its journal records its inode, and nobody else can have
/// created that journal.
fn reason_against(
    header: &JournalHeader,
    (journal, journal_mode): (&Stat, u32),
    entry: &FileEntry,
    part: &LockedPart,
) -> Option<&'static str> {
    if journal.st_nlink != 1 || !is_private(journal_mode) {
        return Some("its journal was open to other users or has a second name");
    }
    if !header.same_version(entry) {
        return Some("the source is not the version that an earlier session began with");
    }
    // A new part file may have received the inode number of the deleted one.
    if header.data_inode != part.stat.st_ino || !part.is_left {
        return Some("its unfinished data was replaced");
    }
    let is_closed = is_private(part.stat.st_mode) || part.stat.st_mode & 0o7777 == u32::from(entry.mode);
    (!is_closed).then_some("its unfinished data was open to other users")
}

/// Deletes an object that has the name of a journal and is not a regular file. Errors: `Exists` for a directory, which
/// may contain data; `Denied` if the object belongs to another user.
fn clear_journal_name(directory: BorrowedFd<'_>, name: &str, path: &RelPath) -> Result<(), Error> {
    let failed = |errno: Errno| PREPARING.failed(errno, format_args!("look at {name}, the journal of {path}"));
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => refuse_foreign(&stat, name, path),
            FileType::Directory => {
                let text = format!("write {path}: {name}, the name of its journal, is a directory; remove it");
                Err(PREPARING.refused(ErrorKind::Exists, text))
            }
            _ => {
                refuse_foreign(&stat, name, path)?;
                unlink(directory, name).map_err(failed)
            }
        },
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(failed(errno)),
    }
}

/// Reads until `buffer` is full or the file ends. Returns the number of bytes.
fn read_up_to(file: &File, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
    let mut taken = 0;
    while taken < buffer.len() {
        match file.read_at(&mut buffer[taken..], offset + taken as u64) {
            Ok(0) => break,
            Ok(count) => taken += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(taken)
}

/// Refuses a file that does not fit into the file system, before any byte of it is sent.
fn check_space(directory: BorrowedFd<'_>, path: &RelPath, needed: u64) -> Result<(), Error> {
    let Ok(space) = rustix::fs::fstatvfs(directory) else {
        return Ok(());
    };
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    // Some network file systems do not know their size and report 0 blocks.
    if space.f_blocks == 0 || needed <= free {
        return Ok(());
    }
    let (needed, free) = (ByteCount(needed), ByteCount(free));
    Err(PREPARING.refused(ErrorKind::NoSpace, format!("write {path}: it needs {needed} more, {free} are free")))
}

/// Returns true if no descriptor was free. In a checkpoint, only the creation of the journal needs one.
fn is_crowded(error: &std::io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// Returns a number that no other journal has: the standard library seeds each hasher at random.
fn nonce() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}
