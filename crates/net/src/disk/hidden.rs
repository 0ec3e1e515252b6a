//! Hidden files beside a final name: their names, their lock, and the step that gives a part file its final name.
//!
//! What it refuses to do: read or write the content of either file.

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use sterna_proto::session::Overwrite;
use sterna_proto::{Error, ErrorKind, RelPath, Retry};

use super::HIDDEN_PREFIX;
use super::claims::Claims;
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
            let _ = unlink_ours(directory, &self.journal);
            let _ = unlink(directory, &self.part);
        }
    }
}

/// A part file that is open, locked and owned by us.
#[derive(Debug)]
pub(super) struct LockedPart {
    pub(super) file: File,
    /// Its inode and size; its mode as it was found, which is [`HIDDEN_MODE`] by now.
    pub(super) stat: Stat,
    /// An earlier session left it; `false`: this call made it.
    pub(super) is_left: bool,
}

impl LockedPart {
    /// Deletes it and makes a new one under its name: what others may have written or opened is not gone on with.
    ///
    /// Errors: `Busy`, after, when another session makes one in that moment.
    pub(super) fn renew(self, directory: BorrowedFd<'_>, name: &str, path: &RelPath) -> Result<Self, Error> {
        let failed =
            |errno: Errno| PREPARING.failed(errno, format_args!("delete {name}, an unfinished file of {path}"));
        unlink(directory, name).map_err(failed)?;
        let new = lock_part(directory, name, path)?;
        if new.is_left { Err(busy(path)) } else { Ok(new) }
    }
}

/// Opens and locks the part file `name`, or makes it if it is missing.
///
/// One that an earlier session left must be a regular file with one name and belong to the user that this runs as: others
/// can put files of theirs into a directory that they may write to, and keep them open. Whether its bytes count is for the
/// caller to decide. Errors: `Denied` for any other file, which stays as it is; `Busy`, after, when a live session of this
/// or another process holds it.
pub(super) fn lock_part(directory: BorrowedFd<'_>, name: &str, path: &RelPath) -> Result<LockedPart, Error> {
    // Peers read this: it does not name the directory, whose place is this host's affair.
    let failed = |errno: Errno| PREPARING.failed(errno, format_args!("create {name} beside {path}"));
    // Neither a symlink nor a fifo that someone put there may be followed or waited for.
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut mode_taken_back = None;
    for _ in 0..LOCK_TRIES_MAX {
        let (file, is_left) = match rustix::fs::openat(directory, name, flags, Mode::empty()) {
            Ok(file) => (File::from(file), true),
            Err(Errno::NOENT) => {
                match rustix::fs::openat(directory, name, flags | OFlags::CREATE | OFlags::EXCL, HIDDEN_MODE) {
                    Ok(file) => (File::from(file), false),
                    Err(Errno::EXIST) => continue,
                    Err(errno) => return Err(failed(errno)),
                }
            }
            Err(Errno::ACCESS) => {
                mode_taken_back = take_back_mode(directory, name, path)?;
                if mode_taken_back.is_none() {
                    return Err(failed(Errno::ACCESS));
                }
                continue;
            }
            Err(errno) => return Err(failed(errno)),
        };
        if is_left {
            // Before the lock: its owner may hold that for ever.
            refuse_foreign(&rustix::fs::fstat(&file).map_err(failed)?, name, path)?;
        }
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(busy(path)),
            Err(errno) => return Err(failed(errno)),
        }
        // Between open and lock the holder may have renamed the file: then the lock is on what is published now.
        if !is_named(directory, name.as_bytes(), &file).map_err(failed)? {
            continue;
        }
        let mut stat = rustix::fs::fstat(&file).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_nlink != 1 {
            let text = format!("create {name} for {path}: something else has this name, or it has a second name");
            return Err(PREPARING.refused(ErrorKind::Denied, text));
        }
        if is_left {
            let found = make_private(&file, &stat).map_err(failed)?;
            stat.st_mode = mode_taken_back.unwrap_or(found);
        }
        return Ok(LockedPart { file, stat, is_left });
    }
    Err(busy(path))
}

fn busy(path: &RelPath) -> Error {
    let text = format!("write {path}: another session is writing it; it can be tried again when that has ended");
    PREPARING.refused(ErrorKind::Busy, text).retry(Retry::After)
}

/// Errors: `Denied` when the hidden file `name` belongs to another user than this runs as.
pub(super) fn refuse_foreign(stat: &Stat, name: &str, path: &RelPath) -> Result<(), Error> {
    let ours = rustix::process::geteuid().as_raw();
    if stat.st_uid == ours {
        return Ok(());
    }
    let text = format!(
        "write {path}: {name}, its unfinished file, belongs to user {}, and this runs as user {ours}; it is not used and \
         stays as it is; remove it to copy {path}",
        stat.st_uid
    );
    Err(PREPARING.refused(ErrorKind::Denied, text))
}

/// Whether a mode lets only the owner in.
pub(super) fn is_private(mode: u32) -> bool {
    mode & RIGHTS_OF_OTHERS == 0
}

/// Takes the rights of group and others from a hidden file of ours; the mode that it had.
///
/// Where the file system keeps no modes (FAT, some network mounts) the bits stay whatever is asked: they say nothing of
/// this file, and count as not set.
pub(super) fn make_private(file: &File, stat: &Stat) -> rustix::io::Result<u32> {
    if is_private(stat.st_mode) {
        return Ok(stat.st_mode);
    }
    // Refused where modes are not kept; the look behind it tells.
    let _ = rustix::fs::fchmod(file, HIDDEN_MODE);
    let now = rustix::fs::fstat(file)?.st_mode;
    Ok(if is_private(now) { stat.st_mode } else { now & !RIGHTS_OF_OTHERS })
}

/// Makes our own part file `name` writable again; the mode that it had, or `None` when that was not the reason. A crash
/// between the last two steps of publishing leaves it with the mode of its source, which may be read-only, and without its
/// final name.
fn take_back_mode(directory: BorrowedFd<'_>, name: &str, path: &RelPath) -> Result<Option<u32>, Error> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(part) = rustix::fs::openat(directory, name, flags, Mode::empty()) else { return Ok(None) };
    let Ok(stat) = rustix::fs::fstat(&part) else { return Ok(None) };
    refuse_foreign(&stat, name, path)?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_nlink == 1;
    // Of the file that is open, whatever has its name by now.
    let opened = format!("/proc/self/fd/{}", part.as_raw_fd());
    let is_taken_back = is_file
        && Mode::from_raw_mode(stat.st_mode) & HIDDEN_MODE != HIDDEN_MODE
        && rustix::fs::chmod(opened, HIDDEN_MODE).is_ok();
    Ok(is_taken_back.then_some(stat.st_mode))
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

/// A part file with all its bytes, durable, that is to get its final name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finished<'a> {
    pub(super) name: &'a str,
    pub(super) file: &'a File,
    /// Size in bytes that it must have.
    pub(super) size: u64,
}

/// Gives a part file its final name.
///
/// Errors: `Exists` when the name was taken meanwhile and may not be replaced, or is that of another file of this session
/// ([`Claims`]); `NotFound` when someone removed the part file:
/// what has its name now, or got the final name in that moment, is another session's and not verified; `Corrupt`, after, when
/// someone cut it.
pub(super) fn rename_into_place(
    directory: BorrowedFd<'_>,
    part: Finished<'_>,
    path: &RelPath,
    (overwrite, claims): (Overwrite, &Claims),
) -> Result<(), Error> {
    let failed = |errno: Errno| FINALISING.failed(errno, format_args!("give {path} its name"));
    let check = |name: &[u8]| match is_named(directory, name, part.file) {
        Ok(true) => Ok(()),
        Ok(false) => {
            let part = part.name;
            let text = format!("give {path} its name: someone removed its unfinished file {part}; copy it again");
            Err(FINALISING.refused(ErrorKind::NotFound, text).retry(Retry::After))
        }
        Err(errno) => Err(failed(errno)),
    };
    check(part.name.as_bytes())?;
    let stat = rustix::fs::fstat(part.file).map_err(failed)?;
    let size = stat.st_size as u64;
    if size != part.size {
        let text = format!("give {path} its name: something cut its {} bytes to {size}; copy it again", part.size);
        return Err(FINALISING.refused(ErrorKind::Corrupt, text).retry(Retry::After));
    }
    let mut claims = claims.lock();
    // In the common case the name is free, and nothing is to be looked at.
    match rustix::fs::renameat_with(directory, part.name, directory, path.name(), RenameFlags::NOREPLACE) {
        // INVAL, NOSYS: a file system without it; a race within microseconds is the price.
        Err(Errno::EXIST | Errno::INVAL | Errno::NOSYS) => {
            match rustix::fs::statat(directory, path.name(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(_) if overwrite == Overwrite::Never => return Err(failed(Errno::EXIST)),
                Ok(stat) => {
                    claims.check(&stat, path)?;
                    claims.remove(&stat);
                }
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(failed(errno)),
            }
            rustix::fs::renameat(directory, part.name, directory, path.name()).map_err(failed)?;
        }
        renamed => renamed.map_err(failed)?,
    }
    check(path.name())?;
    claims.insert(&stat, path);
    Ok(())
}

/// Deletes the hidden file `name`, unless it belongs to another user (`PERM`); one that is not there is deleted already.
pub(super) fn unlink_ours(directory: BorrowedFd<'_>, name: &str) -> rustix::io::Result<()> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if stat.st_uid != rustix::process::geteuid().as_raw() => Err(Errno::PERM),
        Ok(_) => unlink(directory, name),
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
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

/// Bits of a mode that let group and others in.
const RIGHTS_OF_OTHERS: u32 = 0o077;
