//! Hidden files beside a final name: their names, their lock, and the rename of a part file to its final name.
//!
//! Refuses to read or write the content of the hidden files.

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use sterna_proto::session::Overwrite;
use sterna_proto::{Error, ErrorKind, RelPath, Retry};

use super::HIDDEN_PREFIX;
use super::claims::Claims;
use super::fault::{FINALISING, PREPARING};

/// Names of our hidden files beside a final name.
#[derive(Debug)]
pub(super) struct HiddenNames {
    pub(super) part: String,
    pub(super) journal: String,
}

/// Characters of the hash in [`HiddenNames`]. Reason: 128 bits, so that no two names in one directory share a hash.
const HIDDEN_HASH_CHARS: usize = 32;

impl HiddenNames {
    /// Returns the hidden names for `path`. They contain a hash of its name and not the name, which may already have
    /// 255 bytes.
    pub(super) fn of(path: &RelPath) -> Self {
        let hash = blake3::hash(path.name()).to_hex();
        let hash = &hash[..HIDDEN_HASH_CHARS];
        Self { part: format!(".sterna-{hash}.part"), journal: format!(".sterna-{hash}.journal") }
    }

    /// Returns both hidden names if `name` is one of them, and `None` for any other name. Another name with our prefix
    /// may belong to somebody else.
    pub(super) fn that_have(name: &[u8]) -> Option<Self> {
        let name = std::str::from_utf8(name).ok()?;
        let stem = name.strip_suffix(".part").or_else(|| name.strip_suffix(".journal"))?;
        let hash = stem.as_bytes().strip_prefix(HIDDEN_PREFIX)?;
        let is_ours = hash.len() == HIDDEN_HASH_CHARS && hash.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        is_ours.then(|| Self { part: format!("{stem}.part"), journal: format!("{stem}.journal") })
    }

    /// Deletes both files. The caller holds the lock on `part`. Best effort: a file that stays costs space, and the
    /// next session tries again. If someone has removed the part file, both names may belong to another session and are
    /// left alone.
    pub(super) fn delete_locked(&self, directory: BorrowedFd<'_>, part: &File) {
        if is_named(directory, self.part.as_bytes(), part).is_ok_and(|ours| ours) {
            let _ = unlink_ours(directory, &self.journal);
            let _ = unlink(directory, &self.part);
        }
    }
}

/// Ending of the hidden name that a source has while it is deleted or moved.
const LEAVING_ENDING: &str = ".leaving";

/// Returns a hidden name for a source that is deleted or moved. It is random, so that nobody can use it before.
///
/// Errors: the kernel gives no random bytes.
pub(super) fn leaving_name() -> Result<String, getrandom::Error> {
    let (high, low) = (getrandom::u64()?, getrandom::u64()?);
    let prefix = String::from_utf8_lossy(HIDDEN_PREFIX);
    Ok(format!("{prefix}{high:016x}{low:016x}{LEAVING_ENDING}"))
}

/// Returns true if `name` has the form of a hidden name of ours, which a listing skips.
pub(super) fn is_ours(name: &[u8]) -> bool {
    let is_leaving = name.strip_suffix(LEAVING_ENDING.as_bytes()).is_some_and(|stem| {
        let hash = stem.strip_prefix(HIDDEN_PREFIX);
        hash.is_some_and(|hash| hash.len() == HIDDEN_HASH_CHARS && hash.iter().all(u8::is_ascii_hexdigit))
    });
    is_leaving || HiddenNames::that_have(name).is_some()
}

/// Part file that is open, locked and owned by us.
#[derive(Debug)]
pub(super) struct LockedPart {
    pub(super) file: File,
    /// Inode, size and original mode. The current mode is [`HIDDEN_MODE`].
    pub(super) stat: Stat,
    /// True if an earlier session left the file; false if this call created it.
    pub(super) is_left: bool,
}

impl LockedPart {
    /// Deletes the file and creates a new one with its name. Reason: others may have written to the old file, or have
    /// it open.
    ///
    /// Errors: `Busy` with `Retry::After` if another session creates one at the same moment.
    pub(super) fn renew(self, directory: BorrowedFd<'_>, name: &str, path: &RelPath) -> Result<Self, Error> {
        let failed =
            |errno: Errno| PREPARING.failed(errno, format_args!("delete {name}, an unfinished file of {path}"));
        unlink(directory, name).map_err(failed)?;
        let new = lock_part(directory, name, path)?;
        if new.is_left { Err(busy(path)) } else { Ok(new) }
    }
}

/// Opens and locks the part file `name`; creates it if it is missing.
///
/// A file that an earlier session left must be a regular file with one hard link, and belong to the user of this
/// process. Reason: other users can put their files into a directory that they may write to, and keep them open. The
/// caller decides if the bytes of the file count. Errors: `Denied` for any other file, which is not changed; `Busy`
/// with `Retry::After` if a live session of this or another process holds the lock.
pub(super) fn lock_part(directory: BorrowedFd<'_>, name: &str, path: &RelPath) -> Result<LockedPart, Error> {
    // Peers read this text: it does not name the directory, because peers need not know the place.
    let failed = |errno: Errno| PREPARING.failed(errno, format_args!("create {name} beside {path}"));
    // Must not follow a symlink, or wait for a FIFO, that someone else put there.
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
            // Checked before the lock: another owner may hold the lock forever.
            refuse_foreign(&rustix::fs::fstat(&file).map_err(failed)?, name, path)?;
        }
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(busy(path)),
            Err(errno) => return Err(failed(errno)),
        }
        // The holder may have renamed the file between open and lock. Then the lock is on the published file.
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

/// Refuses a hidden file `name` of another user than the one of this process. Errors: `Denied`.
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

/// Returns true if a mode gives access to the owner only.
pub(super) fn is_private(mode: u32) -> bool {
    mode & RIGHTS_OF_OTHERS == 0
}

/// Removes the rights of group and others from our own hidden file. Returns its previous mode.
///
/// Some file systems do not store modes (FAT, some network mounts), so the bits never change. Such bits say nothing
/// about this file, and count as not set.
pub(super) fn make_private(file: &File, stat: &Stat) -> rustix::io::Result<u32> {
    if is_private(stat.st_mode) {
        return Ok(stat.st_mode);
    }
    // Refused where modes are not stored; the check below detects that.
    let _ = rustix::fs::fchmod(file, HIDDEN_MODE);
    let now = rustix::fs::fstat(file)?.st_mode;
    Ok(if is_private(now) { stat.st_mode } else { now & !RIGHTS_OF_OTHERS })
}

/// Makes our own part file `name` writable again. Returns its previous mode, or `None` if the mode was not the problem.
/// Reason: a crash between the last two steps of publishing leaves the part file without its final name, but with the
/// mode of its source. That mode may be read-only.
fn take_back_mode(directory: BorrowedFd<'_>, name: &str, path: &RelPath) -> Result<Option<u32>, Error> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(part) = rustix::fs::openat(directory, name, flags, Mode::empty()) else { return Ok(None) };
    let Ok(stat) = rustix::fs::fstat(&part) else { return Ok(None) };
    refuse_foreign(&stat, name, path)?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_nlink == 1;
    // Changes the mode of the open file, whatever has its name by now.
    let opened = format!("/proc/self/fd/{}", part.as_raw_fd());
    let is_taken_back = is_file
        && Mode::from_raw_mode(stat.st_mode) & HIDDEN_MODE != HIDDEN_MODE
        && rustix::fs::chmod(opened, HIDDEN_MODE).is_ok();
    Ok(is_taken_back.then_some(stat.st_mode))
}

/// Returns true if `name` is the name of the open file `part`. Errors: those of the system; a missing name is not an
/// error.
fn is_named(directory: BorrowedFd<'_>, name: &[u8], part: &File) -> rustix::io::Result<bool> {
    let opened = rustix::fs::fstat(part)?;
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(named) => Ok((named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Durable part file with all its bytes, which is ready for its final name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finished<'a> {
    pub(super) name: &'a str,
    pub(super) file: &'a File,
    /// Size in bytes that the file must have.
    pub(super) size: u64,
}

/// Renames a part file to its final name.
///
/// Errors:
/// - `Exists` if the name was taken meanwhile and may not be replaced, or belongs to another file of this session
///   ([`Claims`]).
/// - `NotFound` with `Retry::After` if someone removed the part file. A file that has its name now, or got the final
///   name at this moment, belongs to another session and is not verified.
/// - `Corrupt` with `Retry::After` if someone truncated the part file.
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
    // Common case: the name is free, and nothing needs to be checked.
    match rustix::fs::renameat_with(directory, part.name, directory, path.name(), RenameFlags::NOREPLACE) {
        // INVAL, NOSYS: the file system does not support `NOREPLACE`. The cost is a race within microseconds.
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

/// Deletes the hidden file `name`. Errors: `PERM` if it belongs to another user; a missing file is not an error.
pub(super) fn unlink_ours(directory: BorrowedFd<'_>, name: &str) -> rustix::io::Result<()> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if stat.st_uid != rustix::process::geteuid().as_raw() => Err(Errno::PERM),
        Ok(_) => unlink(directory, name),
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Deletes `name`. A missing file is not an error.
pub(super) fn unlink(directory: BorrowedFd<'_>, name: &str) -> rustix::io::Result<()> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// Mode of our hidden files. Reason: the mode of the source may give access to people who have no right to it on this
/// host.
pub(super) const HIDDEN_MODE: Mode = Mode::from_raw_mode(0o600);

/// Maximum number of tries to open a part file that other sessions rename or delete at the same moment.
const LOCK_TRIES_MAX: u32 = 16;

/// Mode bits that give access to group and others.
const RIGHTS_OF_OTHERS: u32 = 0o077;
