//! A file on its way in: blocks at their offsets, a journal of what is durable, and its name at the end.
//!
//! The order of steps, and what a crash after each leaves, is in the module above.

mod forgetting;
mod growing;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::fs::{AtFlags, Dir, FallocateFlags, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use sterna_proto::digest::InOrder;
use sterna_proto::journal::{HEADER_BYTES, JournalHeader, JournalRecord, RECORD_BYTES, RecordCodec};
use sterna_proto::{
    BlockDigest, BlockMap, ByteCount, Checks, Digest, Error, ErrorKind, FileDigester, FileDigests, FileEntry, RangeSet,
    RelPath, Retry,
};

use sterna_proto::session::Overwrite;

use super::destination::{Destination, Terms, Verdict, times};
use super::fault::{FINALISING, PREPARING, VERIFYING, WRITING};
use super::hidden::{
    Finished, HIDDEN_MODE, HiddenNames, LockedPart, is_private, lock_part, make_private, refuse_foreign,
    rename_into_place, unlink, unlink_ours,
};

/// A file that takes blocks in any order, shared by the threads of all lanes.
///
/// Dropping it keeps what was checkpointed for the next session, and nothing else, and lets that session in.
#[derive(Debug)]
pub struct IncomingFile {
    destination: Destination,
    directory: OwnedFd,
    part: File,
    names: HiddenNames,
    path: RelPath,
    /// Changes only while its source grows.
    entry: RwLock<FileEntry>,
    overwrite: Overwrite,
    checks: Checks,
    restarted: Option<String>,
    records: Mutex<Records>,
    journal: Mutex<Journal>,
}

/// What is known of the blocks that are here.
#[derive(Debug)]
struct Records {
    have: RangeSet,
    /// Blocks of `have` that only the journal of an earlier session speaks for.
    claimed: BTreeMap<u64, BlockDigest>,
    /// Recorded since the last checkpoint.
    unsaved: Vec<JournalRecord>,
    /// Digests behind a gap; those before it are merged already.
    ahead: BTreeMap<u64, BlockDigest>,
    digester: FileDigester,
    /// The digest of every block of `have` that was compared, of a file of which blocks may be forgotten.
    kept: Option<BTreeMap<u64, BlockDigest>>,
}

/// The journal file, and whether this file may still be checkpointed and published.
#[derive(Debug)]
enum Journal {
    /// No checkpoint yet: a file that is done within the first second never gets a journal.
    None,
    Open {
        file: File,
        codec: RecordCodec,
        end: u64,
    },
    /// A write was lost or it ended: nothing more may be claimed.
    Closed(&'static str),
}

impl IncomingFile {
    /// Locks the part file of `path` in `directory`, and takes up its journal if that is of the same version; `None` when
    /// the file is there already.
    pub(super) fn open(
        destination: Destination,
        directory: OwnedFd,
        path: RelPath,
        entry: &FileEntry,
        terms: &Terms,
    ) -> Result<Option<Self>, Error> {
        let names = HiddenNames::of(&path);
        let mut part = lock_part(directory.as_fd(), &names.part, &path)?;
        // Looked at under the lock: whoever held it until now may have given the file its name.
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
                    // In this order, each durable before the next: no journal claims blocks of a new part file.
                    unlink_ours(directory.as_fd(), &names.journal).map_err(failed)?;
                    rustix::fs::fsync(&directory).map_err(failed)?;
                }
                // A journal that outlived its published file says nothing to anyone.
                let restarted = reason.filter(|_| part.stat.st_size != 0);
                if part.is_left {
                    part = part.renew(directory.as_fd(), &names.part, &path)?;
                }
                records = Records::new(blocks);
                (Journal::None, restarted)
            }
        };
        let LockedPart { file: part, stat, .. } = part;
        // What is here of a growing file may be more than is known of it yet.
        let length =
            if entry.is_growing() && !records.have.is_empty() { stat.st_size as u64 } else { 0 }.max(entry.size);
        let occupied = if records.have.is_empty() { 0 } else { (stat.st_blocks as u64).saturating_mul(512) };
        let room = check_space(directory.as_fd(), &path, entry.allocated.saturating_sub(occupied))
            // The length only: the file is a hole until blocks come, so that holes of the source can stay.
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
            journal: Mutex::new(journal),
        }))
    }

    /// Deletes what an earlier session left beside a file that is complete, unless a live session holds it.
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

    /// Deletes what earlier sessions left in the directory `path` and no journal speaks for, unless a live session holds it:
    /// a file whose source is gone is never looked up again. Best effort. Cost: reads the directory.
    pub(super) fn sweep_directory(directory: &OwnedFd, path: &RelPath) {
        let Ok(items) = Dir::read_from(directory) else { return };
        for names in items.flatten().filter_map(|item| HiddenNames::that_have(item.file_name().to_bytes())) {
            // Made where only a journal is left: who holds the part file may delete both.
            let Ok(part) = lock_part(directory.as_fd(), &names.part, path) else { continue };
            let journal = rustix::fs::statat(directory, &*names.journal, AtFlags::SYMLINK_NOFOLLOW);
            if part.stat.st_size == 0 || journal.is_err_and(|errno| errno == Errno::NOENT) {
                names.delete_locked(directory.as_fd(), &part.file);
            }
        }
    }

    /// The entry that it was prepared for, or what that has grown into.
    pub fn entry(&self) -> FileEntry {
        self.entry_now().clone()
    }

    /// Its final path beneath the root.
    pub fn path(&self) -> &RelPath {
        &self.path
    }

    /// The cut of the file into blocks.
    pub fn blocks(&self) -> BlockMap {
        self.entry_now().blocks()
    }

    /// The digests that its blocks are to carry beside BLAKE3.
    pub fn checks(&self) -> Checks {
        self.checks
    }

    /// Why an earlier attempt could not be gone on with, in words for a person; `None` when there was none or it is.
    pub fn restarted(&self) -> Option<&str> {
        self.restarted.as_deref()
    }

    /// The blocks that are here: recorded now, or claimed by the journal of an earlier session.
    pub fn have(&self) -> RangeSet {
        self.records().have.clone()
    }

    /// Whether every block is here.
    pub fn is_complete(&self) -> bool {
        self.records().have.len() == self.blocks().count()
    }

    /// Writes `data` at its own offset; blocks may arrive in any order.
    ///
    /// Errors: `NoSpace`, never, when the disk is full; `Protocol` beyond the end of the file; `Corrupt`, after, when the
    /// part file was cut. Cost: one `pwrite`; nothing is synced, which [`IncomingFile::checkpoint`] does for many blocks at
    /// once.
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

    /// Makes `[offset, offset + length)` zeros: a hole, where the file system has them.
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

    /// Reads back what was written, to hash what a lane left half done.
    ///
    /// Errors: `Protocol` beyond the end of the file, `Io`.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        self.check_range(offset, buffer.len() as u64)?;
        self.part
            .read_exact_at(buffer, offset)
            .map_err(|error| WRITING.failed(error, format_args!("read back {offset} of {}", self.path)))
    }

    /// Takes note that block `index` is written and its digest was found right; a second time changes nothing.
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

    /// The next block that only the journal of an earlier session speaks for, and its digest; `None` when each was read.
    ///
    /// A disk may have lost what it had said is durable, so the bytes are to be compared before they count.
    pub fn next_claim(&self) -> Option<(u64, BlockDigest)> {
        self.records().claimed.first_key_value().map(|(index, digest)| (*index, *digest))
    }

    /// Settles a claim: the block's bytes have this `digest`, or are not what the journal says (`None`) and the block is
    /// missing again. Where there is no such claim nothing changes.
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

    /// Makes everything recorded so far durable, so that no crash sends it again; how many blocks that were.
    ///
    /// To be called by one thread about once a second; others may write and record meanwhile. Errors: after any, nothing
    /// of this call counts as durable and the file is to be dropped and prepared again: once a kernel has reported a lost
    /// write, a second `fdatasync` would not. Cost: two syncs, three more the first time.
    pub fn checkpoint(&self) -> Result<u64, Error> {
        let mut journal = self.journal();
        self.save(&mut journal)
    }

    /// Verifies the whole file, makes it durable and gives it its name; the digests that were asked for.
    ///
    /// Every digest of `expected` must be met. Errors: `Corrupt`, other replica, when one is not: the data is deleted;
    /// `Exists` when the name was taken meanwhile under [`Overwrite::Never`]; `Internal` when blocks are missing. After
    /// other errors the blocks stay for the next session. Cost: two syncs, and one pass over the file for MD5 and SHA-256.
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
            // It stays ours alone while it is hidden. Best effort: the error is told in any case.
            let _ = rustix::fs::fchmod(&self.part, HIDDEN_MODE);
            return Err(error);
        }
        *journal = Journal::Closed("it was published");
        self.destination.settle()?;
        rustix::fs::fsync(&self.directory)
            .map_err(|errno| FINALISING.failed(errno, format_args!("sync the directory of {}", self.path)))?;
        // Last, and not synced: left behind it does no harm, and the next session deletes it. The lock went away with the
        // part file's name, so a part file that is there now, and the journal with it, are another session's.
        let part = rustix::fs::statat(&self.directory, &*self.names.part, AtFlags::SYMLINK_NOFOLLOW);
        if part.is_err_and(|errno| errno == Errno::NOENT) {
            let _ = unlink_ours(self.directory.as_fd(), &self.names.journal);
        }
        Ok(digests)
    }

    /// Gives the part file its mode, time and name, and makes it durable before it has that.
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
        let part = Finished { name: &self.names.part, file: &self.part, size };
        let renamed =
            rename_into_place(self.directory.as_fd(), part, &self.path, (self.overwrite, self.destination.claims()));
        if renamed.as_ref().is_err_and(|error| error.kind == ErrorKind::NotFound) {
            *journal = Journal::Closed("its part file was removed");
        }
        renamed
    }

    /// Deletes what was received, for a file that will not be gone on with.
    pub fn discard(&self) -> Result<(), Error> {
        let mut journal = self.journal();
        self.refuse_closed(&journal)?;
        self.remove(&mut journal, "it was discarded")
    }

    /// The body of [`IncomingFile::checkpoint`].
    fn save(&self, journal: &mut Journal) -> Result<u64, Error> {
        self.refuse_closed(journal)?;
        // Taken before the sync begins: what is recorded during it may not be on disk yet.
        let unsaved = std::mem::take(&mut self.records().unsaved);
        if unsaved.is_empty() {
            return Ok(0);
        }
        let saved = self.append(journal, &unsaved);
        if let Err(error) = saved {
            if is_crowded(&error) {
                // Nothing was lost: the next checkpoint makes the journal.
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
            // One that is there was left by a session that published; see step 6 in the module above.
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
                // The names of both files must outlive a power cut too.
                rustix::fs::fsync(&self.directory)?;
            }
        }
        Ok(())
    }

    /// Merges the blocks' digests, and reads the file once for those that `checks` wants and blocks did not carry.
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

    /// Deletes the journal and then the part file.
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

    /// Looks whether the part file still has `size` bytes; to be called before each write that would give it that length.
    ///
    /// It has its whole length from the start. Whoever cuts it takes blocks away that are recorded, and a write at its end
    /// would make zeros of them. Errors: `Corrupt`, after: the next attempt finds out which blocks are left.
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

    /// Errors: `Protocol` beyond the end of the file. Returns the size of the file.
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
        // An entry is replaced as a whole, so a panic elsewhere leaves it usable.
        self.entry.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn entry_mut(&self) -> RwLockWriteGuard<'_, FileEntry> {
        self.entry.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        // Records are whole between any two statements, so a panic elsewhere leaves them usable.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        // As above: a half-written journal is closed before the lock is given up.
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for IncomingFile {
    fn drop(&mut self) {
        // What no journal speaks for would be emptied when it is next looked up, which may never be.
        if matches!(*self.journal(), Journal::None) {
            self.names.delete_locked(self.directory.as_fd(), &self.part);
        }
        // Said aloud: closing is not enough while a process that is just being started still has a copy of the descriptor.
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

    /// Adds a block whose digest was compared, and merges what is now without a gap.
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

/// Bytes read at once for digests that do not combine. Guess: large enough that a system call costs nothing beside it.
const READ_BACK_BYTES: usize = 1 << 20;

/// Bytes of journal read at once.
const JOURNAL_READ_BYTES: usize = 1024 * RECORD_BYTES;

/// What was there of an earlier session.
enum Found {
    /// A journal to go on with; `cut` says, for people, that its part file was found shorter than the file.
    Journal { journal: Journal, cut: Option<String> },
    /// Nothing to go on with; the reason is given when there was a journal.
    Nothing { reason: Option<String> },
}

/// Reads the journal of a part file, if it speaks of this version of the source and of this part file.
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
        // Killed between making the journal and writing to it: it never claimed anything, and the next one replaces it.
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
    // Blocks are written twice only where they were found damaged; what is beyond this is not read, and is sent again.
    // What is here of a file that grows may be more than is known of it yet.
    let size = part.stat.st_size as u64;
    let whole = if entry.is_growing() { entry.size.max(size) } else { entry.size };
    let blocks = FileEntry { size: whole, ..entry.clone() }.blocks();
    let end = end.min(HEADER_BYTES as u64 + blocks.count().saturating_mul(RECORD_BYTES as u64 * 2));
    // A part file has its whole length from the start. One of a growing file may have any: what is missing is found when it
    // is read.
    let is_fixed = entry.growth.is_none();
    let mut cut = RangeSet::new();
    let mut at = HEADER_BYTES as u64;
    while at < end {
        let step = (end - at).min(JOURNAL_READ_BYTES as u64) as usize;
        let taken = read_up_to(&file, &mut buffer[..step], at).map_err(failed)?;
        for record in buffer[..taken].chunks_exact(RECORD_BYTES).filter_map(|bytes| codec.decode(bytes)) {
            let index = record.index;
            if is_fixed && index < blocks.count() && blocks.offset(index) + blocks.length(index) > size {
                // It was there when the journal was written: something has cut the part file since.
                cut.insert(index..index + 1);
                continue;
            }
            // A later record of a block is of a later writing: what the first spoke of was found damaged meanwhile.
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

/// Opens the journal `name` of `path`, and looks at it; `None` when there is none.
///
/// Errors: `Denied` when it belongs to another user.
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

/// Why a journal, with what it is and the mode that it was found with, does not count for `part`, in words for a person.
///
/// Both must be closed to others. A part file that is open to them counts only with the mode of its source, which publishing
/// gives it right before its name: its journal, which nobody else can have made, names its inode.
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
    // A part file that was just made may have got the inode number of the one that is gone.
    if header.data_inode != part.stat.st_ino || !part.is_left {
        return Some("its unfinished data was replaced");
    }
    let is_closed = is_private(part.stat.st_mode) || part.stat.st_mode & 0o7777 == u32::from(entry.mode);
    (!is_closed).then_some("its unfinished data was open to other users")
}

/// Deletes what has the name of a journal and is no file. Errors: `Exists` for a directory, which may hold something;
/// `Denied` for what belongs to another user.
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

/// Reads until `buffer` is full or the file ends; how many bytes came.
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

/// Refuses a file that the file system has no room for, before a byte of it is sent.
fn check_space(directory: BorrowedFd<'_>, path: &RelPath, needed: u64) -> Result<(), Error> {
    let Ok(space) = rustix::fs::fstatvfs(directory) else {
        return Ok(());
    };
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    // Some network file systems know nothing of their size and say 0 blocks.
    if space.f_blocks == 0 || needed <= free {
        return Ok(());
    }
    let (needed, free) = (ByteCount(needed), ByteCount(free));
    Err(PREPARING.refused(ErrorKind::NoSpace, format!("write {path}: it needs {needed} more, {free} are free")))
}

/// Whether no descriptor was free: of what a checkpoint does, only making its journal takes one.
fn is_crowded(error: &std::io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// A number that no other journal has: the standard library seeds its hasher at random for each.
fn nonce() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}
