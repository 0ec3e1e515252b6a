//! A source file, which any number of threads read block by block.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::fs::{Advice, AtFlags, FileType, Mode, OFlags, Stat, StatxFlags};
use rustix::io::Errno;
use sterna_proto::follow::Look;
use sterna_proto::{EntryKind, Error, ErrorKind, FileEntry, Growth, RelPath, Retry};

use super::fault::{LISTING, READING};
use super::metadata::{describe, entry_from, parent_of, time_from};
use super::root::Root;
use crate::sys;

/// Regular file that is open for reading.
#[derive(Debug)]
pub struct SourceFile {
    file: File,
    root: Root,
    path: RelPath,
}

impl Root {
    /// Opens the regular file `path` for reading.
    ///
    /// Errors: `NotFound`, also if it is not a regular file; `Denied` if it leads out of the root.
    pub fn open_source(&self, path: &RelPath) -> Result<SourceFile, Error> {
        let file = self.open_readable(path).map_err(|errno| LISTING.failed(errno, format_args!("open {path}")))?;
        let stat = rustix::fs::fstat(&file).map_err(|errno| LISTING.failed(errno, format_args!("open {path}")))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind != FileType::RegularFile {
            return Err(LISTING.refused(ErrorKind::NotFound, format!("open {path}: it is {}", describe(kind))));
        }
        // Only a hint: a failure costs speed and nothing else.
        let _ = rustix::fs::fadvise(&file, 0, None, Advice::Sequential);
        Ok(SourceFile { file, root: self.clone(), path: path.clone() })
    }
}

impl Root {
    /// Returns the reason why the object with the name `path` cannot be copied. `None` if it is a file or directory,
    /// also through a symlink, or if the name does not exist.
    pub fn refusal(&self, path: &RelPath) -> Option<Error> {
        let directory = self.open_directory(parent_of(path)).ok()?;
        rustix::fs::statat(directory, path.name(), AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let found = self.open_at(path.as_bytes(), OFlags::PATH, Mode::empty()).and_then(rustix::fs::fstat);
        match found.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            Ok(FileType::RegularFile | FileType::Directory) => None,
            Ok(_) | Err(_) => self.open_source(path).err(),
        }
    }

    /// Returns size, modification time and inode of the file `path`. `None` if it does not exist or is not a regular
    /// file.
    ///
    /// Errors: those of the system.
    pub fn look(&self, path: &RelPath) -> Result<Option<Look>, Error> {
        let looked = self.open_at(path.as_bytes(), OFlags::PATH, Mode::empty()).and_then(rustix::fs::fstat);
        match looked {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
                Ok(Some(Look { size: stat.st_size as u64, mtime: time_from(&stat), inode: stat.st_ino }))
            }
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(LISTING.failed(errno, format_args!("look at {path}"))),
        }
    }
}

impl SourceFile {
    /// Fills `buffer` with the bytes at `offset`.
    ///
    /// Errors: `Changed` if the file ends before the buffer is full; no byte is invented.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        self.file.read_exact_at(buffer, offset).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => {
                self.changed(format_args!("it ends before byte {}", offset + buffer.len() as u64))
            }
            _ => READING.failed(error, format_args!("read {} bytes at {offset} of {}", buffer.len(), self.path)),
        })
    }

    /// Returns true if the bytes `[offset, offset + length)` lie in a hole, so that they are zeros and need not be
    /// read.
    ///
    /// Errors: `Changed` if the file ends before the last of them. Cost: one or two system calls.
    pub fn is_hole(&self, offset: u64, length: u64) -> Result<bool, Error> {
        match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(offset)) {
            Ok(data) if data < offset + length => return Ok(false),
            // No data up to the end of the file. The end may have moved, so it is checked below.
            Ok(_) | Err(Errno::NXIO) => {}
            // A file system that cannot report holes counts as a file system without holes.
            Err(_) => return Ok(false),
        }
        let stat = self.stat()?;
        if (stat.st_size as u64) < offset + length {
            return Err(self.changed(format_args!("it ends before byte {}", offset + length)));
        }
        Ok(true)
    }

    /// Compares the open file, and the file that its path names now, with the listed entry.
    ///
    /// Errors: `Changed` with `Retry::After`: the next attempt lists the file again and starts over.
    pub fn check_unchanged(&self, entry: &FileEntry) -> Result<(), Error> {
        let named = self
            .root
            .open_at(self.path.as_bytes(), OFlags::PATH, Mode::empty())
            .and_then(rustix::fs::fstat)
            .map_err(|errno| self.changed("its name is gone").caused_by(std::io::Error::from(errno)))?;
        let (now, named) = (self.entry_of(&self.stat()?), self.entry_of(&named));
        if entry.growth.is_some() {
            return self.check_growing(entry, &now, &named);
        }
        // The open file also changes when it loses its name. The file that has the name now gives the better reason.
        if named.inode != now.inode
            && let Some(what) = difference(entry, &named)
        {
            return Err(self.changed(format_args!("another file has its name, with {what}")));
        }
        difference(entry, &now).map_or(Ok(()), |what| Err(self.changed(what)))
    }

    /// Compares the open file with the listed entry, except its change time, which a rename sets. `named`: what has the
    /// name of the file now.
    ///
    /// Errors: `Changed`, also if `named` is another file.
    pub(super) fn check_renamed(&self, entry: &FileEntry, named: &Stat) -> Result<(), Error> {
        let stat = self.stat()?;
        if (named.st_dev, named.st_ino) != (stat.st_dev, stat.st_ino) {
            return Err(self.changed("another file has its name"));
        }
        let now = self.entry_of(&stat);
        if entry.growth.is_some() {
            return self.check_growing(entry, &now, &now);
        }
        let before = FileEntry { version: now.version, ..entry.clone() };
        difference(&before, &now).map_or(Ok(()), |what| Err(self.changed(what)))
    }

    /// Returns true if a process of this host has the file open or mapped for writing. Returns false if the kernel
    /// cannot report it.
    pub fn is_being_written(&self) -> bool {
        sys::is_open_for_writing(&self.file) == Some(true)
    }

    /// Compares like [`SourceFile::check_unchanged`]. Used after a read of part of a file that no process had open for
    /// writing when it was listed.
    ///
    /// Errors: `Changed`, also if a process has it open for writing now. Reason: a write through a memory map changes
    /// neither size nor times.
    pub fn check_unwritten(&self, entry: &FileEntry) -> Result<(), Error> {
        self.check_unchanged(entry)?;
        match self.is_being_written() {
            true => Err(self.changed("a process has opened it for writing since it was listed")),
            false => Ok(()),
        }
    }

    /// Compares `bytes`, just read from `offset`, with a second read, if a process has the file open for writing.
    ///
    /// Errors: `Changed` if they differ. If they are equal, all of them were in the file at one moment between the two
    /// reads.
    pub fn check_steady(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        if !self.is_being_written() {
            return Ok(());
        }
        let mut again = vec![0; bytes.len()];
        self.read_at(offset, &mut again)?;
        match again == bytes {
            true => Ok(()),
            false => Err(self.changed("a process that has it open writes to it")),
        }
    }

    /// Compares a file that is followed: it may only grow, and after its end it must not change.
    fn check_growing(&self, entry: &FileEntry, now: &FileEntry, named: &FileEntry) -> Result<(), Error> {
        if named.inode != now.inode || now.inode != entry.inode {
            return Err(self.changed("another file has its name"));
        }
        if now.size < entry.size {
            return Err(self.changed(format_args!("it was cut to {} bytes, and {} were there", now.size, entry.size)));
        }
        if !entry.is_growing() && (now.size, now.mtime) != (entry.size, entry.mtime) {
            return Err(self.changed("it was written to after it had ended"));
        }
        Ok(())
    }

    /// Returns the entry of a growing file, with the name `path` at the destination. Its size covers the complete
    /// blocks, or all bytes if `growth` has ended.
    pub fn growing_entry(&self, path: RelPath, growth: Growth) -> Result<FileEntry, Error> {
        let now = self.entry()?;
        let size = if growth.has_ended() { now.size } else { growth.whole_bytes(now.size) };
        Ok(FileEntry { path, size, version: self.birth(), growth: Some(growth), ..now })
    }

    /// Returns the creation time in nanoseconds since 1970, or 0 if the file system does not know it. Only compared.
    fn birth(&self) -> u64 {
        let looked = rustix::fs::statx(&self.file, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME);
        let known = looked.ok().filter(|stat| stat.stx_mask & StatxFlags::BTIME.bits() != 0);
        known.map_or(0, |stat| {
            (stat.stx_btime.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(stat.stx_btime.tv_nsec.into())
        })
    }

    /// Returns the path of the file beneath its root.
    pub fn path(&self) -> &RelPath {
        &self.path
    }

    /// Returns the current entry of the file, for a caller that lists the file itself.
    pub fn entry(&self) -> Result<FileEntry, Error> {
        Ok(self.entry_of(&self.stat()?))
    }

    fn entry_of(&self, stat: &Stat) -> FileEntry {
        entry_from(stat, EntryKind::File, self.path.clone())
    }

    fn stat(&self) -> Result<Stat, Error> {
        rustix::fs::fstat(&self.file).map_err(|errno| READING.failed(errno, format_args!("look at {}", self.path)))
    }

    fn changed(&self, what: impl std::fmt::Display) -> Error {
        let text =
            format!("{} changed while it was read: {what}; the next attempt copies the file from its start", self.path);
        READING.refused(ErrorKind::Changed, text).retry(Retry::After)
    }
}

/// Returns the difference between two states of a file, in words. `None` if both show the same version.
fn difference(before: &FileEntry, now: &FileEntry) -> Option<String> {
    if before.size != now.size {
        return Some(format!("{} bytes instead of {}", now.size, before.size));
    }
    if before.mtime != now.mtime {
        return Some("another modification time".to_owned());
    }
    if before.inode != now.inode {
        return Some("another inode".to_owned());
    }
    (before.version != now.version).then(|| "another change time: bytes, mode or links were changed".to_owned())
}
