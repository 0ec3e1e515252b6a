//! Hidden files beside a final name: their names, their lock, and the step that gives a part file its final name.
//!
//! What it refuses to do: read or write the content of either file.

use std::fmt;
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use sterna_proto::session::Overwrite;
use sterna_proto::{Error, ErrorKind, RelPath, Retry};

use super::HIDDEN_PREFIX;
use super::fault::{FINALISING, PREPARING};

/// The names of our files beside a final name.
#[derive(Debug)]
pub(super) struct HiddenNames {
    pub(super) part: String,
    pub(super) journal: String,
}

/// Characters of the hash in [`HiddenNames`]. Reason: 128 bits, which no two names in one directory share.
const HIDDEN_HASH_CHARS: usize = 32;

impl HiddenNames {
    /// A hash of the name and not the name itself: it may be 255 bytes long already.
    pub(super) fn of(path: &RelPath) -> Self {
        let hash = blake3::hash(path.name()).to_hex();
        let hash = &hash[..HIDDEN_HASH_CHARS];
        Self { part: format!(".sterna-{hash}.part"), journal: format!(".sterna-{hash}.journal") }
    }

    /// The names of which `name` is one; `None` when it is none of ours. Other names that begin as ours are somebody's.
    pub(super) fn that_have(name: &[u8]) -> Option<Self> {
        let name = std::str::from_utf8(name).ok()?;
        let stem = name.strip_suffix(".part").or_else(|| name.strip_suffix(".journal"))?;
        let hash = stem.as_bytes().strip_prefix(HIDDEN_PREFIX)?;
        let is_ours = hash.len() == HIDDEN_HASH_CHARS && hash.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        is_ours.then(|| Self { part: format!("{stem}.part"), journal: format!("{stem}.journal") })
    }

    /// Deletes both files, of which the caller holds the lock on `part`. Best effort: what stays costs space, and the next
    /// session tries again. Someone may have removed the part file, and then the names are another session's.
    pub(super) fn delete_locked(&self, directory: BorrowedFd<'_>, part: &File) {
        if is_named(directory, self.part.as_bytes(), part).is_ok_and(|ours| ours) {
            let _ = unlink(directory, &self.journal);
            let _ = unlink(directory, &self.part);
        }
    }
}

/// Opens and locks the part file `name`, and makes it if it is missing; also what it is.
///
/// `root` is what errors call the place: peers read them and need not know where it lies.
/// Errors: `Busy`, after, when a live session of this or another process holds it.
pub(super) fn lock_part(
    directory: BorrowedFd<'_>,
    name: &str,
    path: &RelPath,
    root: &dyn fmt::Display,
) -> Result<(File, Stat), Error> {
    let failed = |errno: Errno| PREPARING.failed(errno, format_args!("create {name} for {path} beneath {root}"));
    let busy = || {
        let text = format!("write {path}: another session is writing it; it can be tried again when that has ended");
        PREPARING.refused(ErrorKind::Busy, text).retry(Retry::After)
    };
    // Neither a symlink nor a fifo that someone put there may be followed or waited for.
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    for _ in 0..LOCK_TRIES_MAX {
        let part = match rustix::fs::openat(directory, name, flags, HIDDEN_MODE) {
            Err(Errno::ACCESS) if take_back_mode(directory, name) => continue,
            opened => opened.map_err(failed)?,
        };
        match rustix::fs::flock(&part, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(busy()),
            Err(errno) => return Err(failed(errno)),
        }
        // Between open and lock the holder may have renamed the file: then the lock is on what is published now.
        let part = File::from(part);
        if !is_named(directory, name.as_bytes(), &part).map_err(failed)? {
            continue;
        }
        let stat = rustix::fs::fstat(&part).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_nlink != 1 {
            let text = format!("create {name} for {path}: something else has this name, or it has a second name");
            return Err(PREPARING.refused(ErrorKind::Denied, text));
        }
        return Ok((part, stat));
    }
    Err(busy())
}

/// Makes our own part file `name` writable again; whether it was not. A crash between its last two steps leaves it with the mode of its
/// source, which may be read-only, and without its name.
fn take_back_mode(directory: BorrowedFd<'_>, name: &str) -> bool {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(part) = rustix::fs::openat(directory, name, flags, Mode::empty()) else { return false };
    let Ok(stat) = rustix::fs::fstat(&part) else { return false };
    let is_ours = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        && stat.st_uid == rustix::process::geteuid().as_raw()
        && stat.st_nlink == 1;
    // Of the file that is open, whatever has its name by now.
    let opened = format!("/proc/self/fd/{}", part.as_raw_fd());
    is_ours
        && Mode::from_raw_mode(stat.st_mode) & HIDDEN_MODE != HIDDEN_MODE
        && rustix::fs::chmod(opened, HIDDEN_MODE).is_ok()
}

/// Whether `name` is that of the open file `part`. Errors: those of the system, but a name that is not there is no error.
fn is_named(directory: BorrowedFd<'_>, name: &[u8], part: &File) -> rustix::io::Result<bool> {
    let opened = rustix::fs::fstat(part)?;
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(named) => Ok((named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Gives the part file, by its name and open, its final name.
///
/// Errors: `Exists` when the name was taken meanwhile and may not be replaced; `NotFound` when someone removed the part file:
/// what has its name now, or got the final name in that moment, is another session's and not verified.
pub(super) fn rename_into_place(
    directory: BorrowedFd<'_>,
    (part, opened): (&str, &File),
    path: &RelPath,
    overwrite: Overwrite,
) -> Result<(), Error> {
    let failed = |errno: Errno| FINALISING.failed(errno, format_args!("give {path} its name"));
    let check = |name: &[u8]| match is_named(directory, name, opened) {
        Ok(true) => Ok(()),
        Ok(false) => {
            let text = format!("give {path} its name: someone removed its unfinished file {part}; copy it again");
            Err(FINALISING.refused(ErrorKind::NotFound, text).retry(Retry::After))
        }
        Err(errno) => Err(failed(errno)),
    };
    check(part.as_bytes())?;
    let renamed = match overwrite {
        Overwrite::Never => {
            match rustix::fs::renameat_with(directory, part, directory, path.name(), RenameFlags::NOREPLACE) {
                // A file system without it: look, then rename; a race within microseconds is the price.
                Err(Errno::INVAL | Errno::NOSYS) => {
                    match rustix::fs::statat(directory, path.name(), AtFlags::SYMLINK_NOFOLLOW) {
                        Ok(_) => Err(Errno::EXIST),
                        Err(Errno::NOENT) => rustix::fs::renameat(directory, part, directory, path.name()),
                        Err(errno) => Err(errno),
                    }
                }
                other => other,
            }
        }
        Overwrite::Always | Overwrite::IfChanged => rustix::fs::renameat(directory, part, directory, path.name()),
    };
    renamed.map_err(failed)?;
    check(path.name())
}

/// Deletes `name`; one that is not there is deleted already.
pub(super) fn unlink(directory: BorrowedFd<'_>, name: &str) -> rustix::io::Result<()> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// Mode of our hidden files: the source's may be for other people than these are.
pub(super) const HIDDEN_MODE: Mode = Mode::from_raw_mode(0o600);

/// How often a part file is opened again when another session renames or deletes it at that moment.
const LOCK_TRIES_MAX: u32 = 16;
