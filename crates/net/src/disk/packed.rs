//! Small files, which are written whole and made durable in batches.
//!
//! An `fsync` for each of 10,000 small files costs 10,000 disk flushes, one after the other. A batch writes its files
//! under hidden names, makes all of them durable with one `syncfs`, and only then renames them. No name ever shows half
//! a file, and a crash leaves hidden files that the next session deletes. The disadvantage of `syncfs`: it also writes
//! the cached data of other programs on that file system. Where `syncfs` may hide a lost write, each file is synced
//! separately.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{FlockOperation, Mode};
use rustix::io::Errno;
use sterna_proto::file::PACKED_FILE_BYTES_MAX;
use sterna_proto::session::Overwrite;
use sterna_proto::{
    Checks, EntryKind, Error, ErrorKind, FileDigests, FileEntry, FileTime, Phase, RelPath, Retry, Scope,
};

use super::destination::{Destination, Verdict};
use super::durable::SyncRound;
use super::fault::{At, FINALISING, WRITING};
use super::hidden::{Finished, HiddenNames, lock_part, rename_into_place, unlink, unlink_ours};
use super::history::{Version, version_of};
use super::metadata::{parent_of, times};
use crate::descriptors;
use crate::sink::{PackedFile, PackedOutcome};

/// Small files that are written, and not yet durable or renamed.
///
/// Dropping a batch deletes its unpublished files. A batch belongs to one thread; any number of batches may be open at
/// once.
#[derive(Debug)]
pub struct PackedBatch {
    destination: Destination,
    overwrite: Overwrite,
    checks: Checks,
    /// Maximum number of open files, and of open directories.
    open_max: usize,
    /// Open directories of the files.
    directories: HashMap<Vec<u8>, Arc<OwnedFd>>,
    written: Vec<Written>,
    /// Outcome of each file, in the order of [`PackedBatch::add`].
    outcomes: Vec<PackedOutcome>,
}

/// File under its hidden name. Its descriptor holds the lock that excludes other sessions.
#[derive(Debug)]
struct Written {
    directory: Arc<OwnedFd>,
    part: File,
    part_name: String,
    path: RelPath,
    size: u64,
    mode: u16,
    mtime: FileTime,
    digests: FileDigests,
    version: Option<Version>,
    /// Index in `outcomes`.
    place: usize,
}

/// Maximum number of files that a batch holds open. A full batch publishes itself.
/// Reason: divided by so many files, one `syncfs` costs each of them little.
pub const OPEN_FILES_MAX: usize = 256;

/// Divisor of the process's limit of descriptors. A batch uses at most this fraction for files, and the same for their
/// directories.
/// Reason: the two batches of a session then use a quarter of the descriptors, and its large files less than half.
const DESCRIPTORS_DIVISOR: usize = 16;

impl Destination {
    /// Creates an empty batch of small files.
    pub fn packed(&self, overwrite: Overwrite, checks: Checks) -> PackedBatch {
        PackedBatch {
            destination: self.clone(),
            overwrite,
            checks,
            open_max: (descriptors::limit() / DESCRIPTORS_DIVISOR).clamp(1, OPEN_FILES_MAX),
            directories: HashMap::new(),
            written: Vec::new(),
            outcomes: Vec::new(),
        }
    }
}

impl PackedBatch {
    /// Verifies a file and writes it under a hidden name. [`PackedBatch::publish`] returns its outcome.
    ///
    /// Cost: eight system calls. None of them waits for the disk, unless the batch is full.
    pub fn add(&mut self, file: PackedFile<'_>) {
        let place = self.outcomes.len();
        match self.write(&file, place) {
            Ok(Some(written)) => {
                self.outcomes.push(Ok(Some(written.digests)));
                self.written.push(written);
            }
            Ok(None) => self.outcomes.push(Ok(None)),
            Err(error) => self.outcomes.push(Err(error)),
        }
        if self.written.len() >= self.open_max || self.directories.len() >= self.open_max {
            self.flush();
        }
    }

    /// Makes every file durable and gives it its final name. Returns the outcome of each file, in the order of
    /// [`PackedBatch::add`]: its digests, or `None` if another session has completed it since it was checked.
    ///
    /// Errors, for each file: `Corrupt` if a digest differs; `Exists` under [`Overwrite::Never`]; `Busy`; `NoSpace`.
    /// Cost: one `syncfs` and one sync of each directory for every [`OPEN_FILES_MAX`] files. Where `syncfs` may hide a
    /// lost write, one sync of each file.
    pub fn publish(&mut self) -> Vec<PackedOutcome> {
        self.flush();
        std::mem::take(&mut self.outcomes)
    }

    /// Returns the number of files that wait to be published.
    pub fn len(&self) -> usize {
        self.written.len()
    }

    /// Returns true if no file waits to be published.
    pub fn is_empty(&self) -> bool {
        self.written.is_empty()
    }

    fn write(&mut self, file: &PackedFile<'_>, place: usize) -> Result<Option<Written>, Error> {
        let entry = file.entry;
        let path = self.destination.place(&entry.path)?;
        if entry.kind != EntryKind::File || entry.size != file.data.len() as u64 || entry.size > PACKED_FILE_BYTES_MAX {
            let text = format!("{path}: {} bytes came for a file of {}", file.data.len(), entry.size);
            return Err(Error::protocol(text));
        }
        let checks = file.expected.iter().fold(self.checks, |checks, digest| checks.with(digest.algorithm()));
        let digests = FileDigests::of(file.data, checks);
        if file.blake3.is_some_and(|blake3| blake3 != digests.blake3) {
            let text = format!("verify {path}: its bytes changed on the way; it is asked for again");
            return Err(Error::new(ErrorKind::Corrupt, Scope::Path, Phase::Verify, text).retry(Retry::After));
        }
        file.expected.iter().try_for_each(|digest| digest.check(&digests, &path))?;
        let directory = self.directory(&path)?;
        let names = HiddenNames::of(&path);
        let mut part = lock_part(directory.as_fd(), &names.part, &path)?;
        // Checked under the lock. The session of a killed client may have waited for the disk, and another session may
        // have written newer data since.
        let looked = self.destination.look(&directory, &path, entry, self.overwrite).and_then(|(verdict, seen)| {
            if verdict == Verdict::UpToDate || seen == file.seen {
                return Ok(verdict);
            }
            let text = format!("write {path}: another session has written it since it was looked at");
            Err(WRITING.refused(ErrorKind::Busy, text).retry(Retry::After))
        });
        if !matches!(looked, Ok(Verdict::Wanted)) {
            names.delete_locked(directory.as_fd(), &part.file);
            return looked.map(|_| None);
        }
        if part.is_left {
            // The part file may belong to a larger version of this file, which had a journal.
            let _ = unlink_ours(directory.as_fd(), &names.journal);
            part = part.renew(directory.as_fd(), &names.part, &path)?;
        }
        let part = part.file;
        if let Err(error) = part.write_all_at(file.data, 0) {
            let _ = unlink(directory.as_fd(), &names.part);
            return Err(WRITING.failed(
                error,
                format_args!("write {} bytes of {path} in {}", file.data.len(), self.destination.root()),
            ));
        }
        let FileEntry { size, mode, mtime, .. } = *entry;
        let version = version_of(entry);
        Ok(Some(Written { directory, part, part_name: names.part, path, size, mode, mtime, digests, version, place }))
    }

    fn directory(&mut self, path: &RelPath) -> Result<Arc<OwnedFd>, Error> {
        let parent = parent_of(path);
        if let Some(directory) = self.directories.get(parent) {
            return Ok(directory.clone());
        }
        let directory = Arc::new(self.destination.make_directory(parent)?);
        self.directories.insert(parent.to_vec(), directory.clone());
        Ok(directory)
    }

    /// Publishes the written files: first the data, then the names, then the directories that hold the names.
    fn flush(&mut self) {
        let written = std::mem::take(&mut self.written);
        let directories = std::mem::take(&mut self.directories);
        if written.is_empty() {
            return;
        }
        for file in &written {
            if let Err(errno) = file.set_mode_and_time() {
                self.fail(file, FINALISING, errno, "set mode and time of");
            }
        }
        if let Err(errno) = sync(written.iter().map(|file| &file.part)) {
            for file in &written {
                self.fail(file, FINALISING, errno, "make durable");
                let _ = unlink(file.directory.as_fd(), &file.part_name);
            }
            return;
        }
        let destination = self.destination.clone();
        let terms = (self.overwrite, destination.claims());
        for file in &written {
            if self.outcomes[file.place].is_err() {
                let _ = unlink(file.directory.as_fd(), &file.part_name);
                continue;
            }
            destination.record_version(&file.part, file.version);
            let part = Finished { name: &file.part_name, file: &file.part, size: file.size };
            let renamed = rename_into_place(file.directory.as_fd(), part, &file.path, terms);
            if let Err(error) = renamed {
                self.outcomes[file.place] = Err(error);
                let _ = unlink(file.directory.as_fd(), &file.part_name);
            }
        }
        let named =
            self.destination.settle().map_err(|error| error.chain()).and_then(|()| {
                sync(directories.values().map(|directory| &**directory)).map_err(|errno| errno.to_string())
            });
        if let Err(reason) = named {
            for file in written.iter().filter(|file| self.outcomes[file.place].is_ok()).collect::<Vec<_>>() {
                let text = format!("make the name of {} durable: {reason}", file.path);
                self.outcomes[file.place] = Err(FINALISING.refused(ErrorKind::Io, text).retry(Retry::After));
            }
        }
    }

    fn fail(&mut self, file: &Written, at: At, errno: Errno, tried: &str) {
        self.outcomes[file.place] = Err(at.failed(errno, format_args!("{tried} {}", file.path)));
    }
}

impl Drop for PackedBatch {
    fn drop(&mut self) {
        for file in &self.written {
            let _ = unlink(file.directory.as_fd(), &file.part_name);
        }
    }
}

impl Written {
    fn set_mode_and_time(&self) -> rustix::io::Result<()> {
        rustix::fs::fchmod(&self.part, Mode::from_raw_mode(u32::from(self.mode)))?;
        rustix::fs::futimens(&self.part, &times(self.mtime))
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        // As in `IncomingFile`: closing does not release the lock while another process holds a copy of the descriptor.
        let _ = rustix::fs::flock(&self.part, FlockOperation::Unlock);
    }
}

fn sync<F: AsFd>(mut files: impl ExactSizeIterator<Item = F>) -> rustix::io::Result<()> {
    let mut round = SyncRound::of(files.len());
    files.try_for_each(|file| round.sync(file))
}
