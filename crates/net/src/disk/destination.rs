//! Destination of entries: gives names as `cp` does, creates directories, and checks what has a name already.
//!
//! Refuses to write files: `prepare` opens those with a journal, and `packed` writes small ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use sterna_proto::session::{Overwrite, number_of_name};
use sterna_proto::{EntryKind, Error, ErrorKind, FileEntry, FileTime, RelPath, Setting};

use super::claims::Claims;
use super::durable::SyncRound;
use super::expand::Sources;
use super::fault::{FINALISING, PREPARING};
use super::history::{SessionHistory, Version, version_of};
use super::is_hidden_name;
use super::metadata::{parent_of, time_from, times};
use super::root::{Access, Root};
use crate::sink::{DirectoryModes, Inspected, Seen};

/// Place beneath a root that accepts entries; cheap to clone. All threads of a session share it.
#[derive(Clone, Debug)]
pub struct Destination {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    root: Root,
    names: Names,
    made: Mutex<Made>,
    /// Locked while directories are synced.
    settling: Mutex<()>,
    claims: Claims,
    /// History of the agent; unset at other hosts.
    history: OnceLock<SessionHistory>,
}

/// Paths of entries beneath the root.
#[derive(Debug)]
enum Names {
    /// Beneath a directory; empty for the root.
    Beneath(Vec<u8>),
    /// As the only source, in a directory and with a new first name.
    Only {
        /// Directory.
        directory: Vec<u8>,
        /// New name.
        name: Box<[u8]>,
        /// First name that is replaced; set by the first entry.
        replaced: OnceLock<Box<[u8]>>,
    },
    /// By the number that is the name of the entry.
    Numbered(Vec<Result<RelPath, Error>>),
}

/// Directories that are not finished.
#[derive(Debug, Default)]
struct Made {
    /// Directories that contain a new name which is not durable yet.
    unsynced: BTreeSet<Vec<u8>>,
    /// Directories of the source, with the mode and time that they get at the end.
    unfinished: BTreeMap<RelPath, (u16, FileTime)>,
}

/// Maximum number of directories whose mode and time are stored until the end. Later directories keep the mode and time
/// of their creation.
/// Reason: limits the memory that a peer can occupy to about 10 MB.
pub const UNFINISHED_DIRECTORIES_MAX: usize = 1 << 16;

/// Rights that the owner of a directory needs to list it and to write to it.
const OWNER_MODE: Mode = Mode::RWXU;

impl Destination {
    /// Interprets the destination `path` as `cp` does.
    ///
    /// Entries are written beneath `path` if it is empty, ends in `/`, or is a directory, or if there are several
    /// sources. Otherwise the only source gets exactly this name. Missing directories are created when the first entry
    /// arrives.
    /// Errors: `Denied` beneath a read-only root, or if the path leaves the root; `Exists` if a file is where a
    /// directory is needed.
    pub fn resolve(root: &Root, path: &[u8], sources: Sources) -> Result<Self, Error> {
        check_writable(root)?;
        let names = names_of(path);
        let ends_in_slash = path.ends_with(b"/") || path.ends_with(b"/.");
        let names = match names.split_last() {
            None => Names::Beneath(Vec::new()),
            Some((last, parents)) => {
                let whole = RelPath::new(&names.join(&b'/'))?;
                refuse_hidden(&whole)?;
                let is_directory = match root.open_at(whole.as_bytes(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty())
                {
                    Ok(_) => true,
                    Err(Errno::NOENT) => ends_in_slash || sources == Sources::Many,
                    Err(Errno::NOTDIR) if !ends_in_slash && sources == Sources::One => false,
                    Err(errno) => return Err(PREPARING.failed(errno, format_args!("copy into {whole} in {root}"))),
                };
                match is_directory {
                    true => Names::Beneath(whole.as_bytes().to_vec()),
                    false => {
                        let directory = parents.join(&b'/');
                        match root.open_at(&directory, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()) {
                            Ok(_) | Err(Errno::NOENT) => {}
                            Err(errno) => return Err(root.not_made(errno, &directory, PREPARING)),
                        }
                        Names::Only { directory, name: (*last).into(), replaced: OnceLock::new() }
                    }
                }
            }
        };
        Ok(Self::with(root, names))
    }

    /// Creates the destination of a numbered copy: entry N is written to exactly path N. A path that cannot be written
    /// fails when its entry arrives.
    ///
    /// Errors: `Denied` beneath a read-only root.
    pub fn numbered<'a>(root: &Root, paths: impl IntoIterator<Item = &'a [u8]>) -> Result<Self, Error> {
        check_writable(root)?;
        let checked = |path: &[u8]| {
            let path = RelPath::new(&names_of(path).join(&b'/'))?;
            refuse_hidden(&path).map(|()| path)
        };
        Ok(Self::with(root, Names::Numbered(paths.into_iter().map(checked).collect())))
    }

    fn with(root: &Root, names: Names) -> Self {
        let (made, settling, claims, history) =
            (Mutex::default(), Mutex::default(), Claims::default(), OnceLock::new());
        Self { shared: Arc::new(Shared { root: root.clone(), names, made, settling, claims, history }) }
    }

    /// Returns the path beneath the root for an entry named `path`.
    ///
    /// Errors: `Denied` for a name that is reserved for our hidden files, or if the whole path is too long. `Exists` if
    /// another source has the only name that the destination gives.
    pub fn place(&self, path: &RelPath) -> Result<RelPath, Error> {
        refuse_hidden(path)?;
        let placed = match &self.shared.names {
            Names::Beneath(directory) => [directory, path.as_bytes()].join(&b'/'),
            Names::Only { directory, name, replaced } => {
                let end = path.as_bytes().iter().position(|&b| b == b'/').unwrap_or(path.as_bytes().len());
                let (first, behind) = path.as_bytes().split_at(end);
                if **replaced.get_or_init(|| first.into()) != *first {
                    let text = format!("write {path}: a second source cannot have the name {}", name.escape_ascii());
                    return Err(PREPARING.refused(ErrorKind::Exists, text));
                }
                [directory, &[name, behind].concat()[..]].join(&b'/')
            }
            Names::Numbered(paths) => {
                let unknown =
                    || Err(Error::protocol(format!("an entry from the peer has the name {path}, not a number")));
                return number_of_name(path).and_then(|number| paths.get(number)).cloned().unwrap_or_else(unknown);
            }
        };
        let placed = placed.strip_prefix(b"/").unwrap_or(&placed);
        RelPath::new(placed).map_err(|e| PREPARING.refused(ErrorKind::Denied, e.text()))
    }

    /// Checks if `entry` exists already, as [`Destination::prepare`] does, but changes nothing.
    ///
    /// Errors: as [`Destination::prepare`], as far as they can be foreseen.
    pub fn inspect(&self, entry: &FileEntry, overwrite: Overwrite) -> Result<Inspected, Error> {
        let path = self.place(&entry.path)?;
        let directory = match self.shared.root.open_directory(parent_of(&path)) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Ok(Inspected::Wanted),
            Err(errno) => return Err(PREPARING.failed(errno, format_args!("look for {path}"))),
        };
        if entry.kind == EntryKind::Directory {
            return match self.shared.root.open_directory(path.as_bytes()) {
                Ok(_) => Ok(Inspected::UpToDate),
                Err(Errno::NOENT) => Ok(Inspected::Wanted),
                Err(errno) => Err(PREPARING.failed(errno, format_args!("look for directory {path}"))),
            };
        }
        match self.look(&directory, &path, entry, overwrite)?.0 {
            Verdict::UpToDate => Ok(Inspected::UpToDate),
            Verdict::Wanted => Ok(Inspected::Wanted),
        }
    }

    /// Ends a session: sets mode and time of directories. [`Destination::settle`] makes their names durable.
    ///
    /// Errors: the first one; the other directories are processed nevertheless. Cost: three system calls per directory.
    pub fn finish(&self, modes: DirectoryModes) -> Result<(), Error> {
        let kept = if modes == DirectoryModes::Writable { OWNER_MODE } else { Mode::empty() };
        let unfinished = std::mem::take(&mut self.made().unfinished);
        let mut first = Ok(());
        // Deepest first: a directory that loses its write permission may still contain another one of the list.
        for (path, (mode, mtime)) in unfinished.into_iter().rev() {
            let done = self.shared.root.open_directory(path.as_bytes()).and_then(|directory| {
                rustix::fs::fchmod(&directory, Mode::from_raw_mode(u32::from(mode)) | kept)?;
                rustix::fs::futimens(&directory, &times(mtime))
            });
            first =
                first.and(done.map_err(|errno| FINALISING.failed(errno, format_args!("set mode and time of {path}"))));
        }
        first
    }

    /// Returns the root that contains this destination.
    pub fn root(&self) -> &Root {
        &self.shared.root
    }

    /// Makes the names of all created directories durable. Errors: those of the disk; the next call tries again.
    pub fn settle(&self) -> Result<(), Error> {
        // Held to the end: a caller that finds nothing left to sync must know that the sync has ended, not just begun.
        let _turn = self.shared.settling.lock();
        let unsynced = std::mem::take(&mut self.made().unsynced);
        self.sync_directories(&unsynced).map_err(|errno| {
            let error = FINALISING.failed(errno, format_args!("sync directories in {}", self.shared.root));
            self.made().unsynced.extend(unsynced);
            error
        })
    }

    /// Blocks [`Destination::settle`], as a slow disk does.
    #[cfg(test)]
    pub(crate) fn hold_up(&self) -> MutexGuard<'_, ()> {
        self.shared.settling.lock()
    }

    fn sync_directories(&self, paths: &BTreeSet<Vec<u8>>) -> rustix::io::Result<()> {
        let mut round = SyncRound::of(paths.len());
        for path in paths {
            match self.shared.root.open_directory(path) {
                Ok(directory) => round.sync(directory)?,
                // Deleted meanwhile: nothing is left to make durable.
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Opens the directory `path` (empty: the root). Creates this directory and its parents if they are missing.
    pub(super) fn make_directory(&self, path: &[u8]) -> Result<OwnedFd, Error> {
        self.shared.root.make_directory(path, PREPARING, &mut |parent| {
            self.made().unsynced.insert(parent.to_vec());
        })
    }

    /// Creates the directory `path` for `entry`, without rights that the source does not grant. [`Destination::finish`]
    /// sets its mode and time.
    pub(super) fn make_directory_of(&self, entry: &FileEntry, path: &RelPath) -> Result<OwnedFd, Error> {
        let directory = self.make_directory(path.as_bytes())?;
        narrow(&directory, entry.mode);
        let mut made = self.made();
        if made.unfinished.len() < UNFINISHED_DIRECTORIES_MAX {
            made.unfinished.insert(path.clone(), (entry.mode, entry.mtime));
        }
        Ok(directory)
    }

    /// Records that an earlier session of this copy has settled the file `entry`. Best effort. Cost: two system calls.
    pub fn claim_settled(&self, entry: &FileEntry) {
        let Ok(path) = self.place(&entry.path) else { return };
        let Ok(directory) = self.shared.root.open_directory(parent_of(&path)) else { return };
        if let Ok(stat) = rustix::fs::statat(directory, path.name(), AtFlags::SYMLINK_NOFOLLOW) {
            self.shared.claims.lock().insert(&stat, &path);
        }
    }

    /// Sets the part of this session in the history of its agent, once.
    pub fn set_history(&self, history: SessionHistory) {
        // There is one session for each destination.
        let _ = self.shared.history.set(history);
    }

    /// Records the version of a complete part file that is about to get its name. Best effort.
    pub(super) fn record_version(&self, part: &File, version: Option<Version>) {
        if let (Some(history), Some(version)) = (self.shared.history.get(), version)
            && let Ok(stat) = rustix::fs::fstat(part)
        {
            history.record(&stat, version);
        }
    }

    /// Returns the names that this session has given to its files.
    pub(super) fn claims(&self) -> &Claims {
        &self.shared.claims
    }

    /// Checks what has the name of the file. Errors: `Exists` for a directory, for any file under [`Overwrite::Never`],
    /// and for a file that this session has under another name.
    pub(super) fn look(
        &self,
        directory: &OwnedFd,
        path: &RelPath,
        entry: &FileEntry,
        overwrite: Overwrite,
    ) -> Result<(Verdict, Seen), Error> {
        let stat = match rustix::fs::statat(directory, path.name(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok((Verdict::Wanted, Seen::default())),
            Err(errno) => return Err(PREPARING.failed(errno, format_args!("look at {path}"))),
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            return Err(PREPARING.refused(ErrorKind::Exists, format!("write {path}: a directory has this name")));
        }
        self.shared.claims.lock().check(&stat, path)?;
        match overwrite {
            Overwrite::Never => {
                let text = format!("write {path}: it exists, and this copy replaces no file");
                Err(PREPARING.refused(ErrorKind::Exists, text).about(&[Setting::Overwrite]))
            }
            Overwrite::IfChanged
                if kind == FileType::RegularFile
                    && !entry.is_growing()
                    && stat.st_size as u64 == entry.size
                    && time_from(&stat) == entry.mtime =>
            {
                self.shared.claims.lock().insert(&stat, path);
                Ok((Verdict::UpToDate, seen_of(&stat)))
            }
            Overwrite::IfChanged | Overwrite::Always => {
                let superseded = |version| Some(self.shared.history.get()?.is_superseded(&stat, version));
                if version_of(entry).and_then(superseded) == Some(true) {
                    let text = format!(
                        "write {path}: a copy that the same client began later has written a newer version of it, which stays"
                    );
                    return Err(PREPARING.refused(ErrorKind::Exists, text));
                }
                Ok((Verdict::Wanted, seen_of(&stat)))
            }
        }
    }

    fn made(&self) -> MutexGuard<'_, Made> {
        // The data is consistent between any two statements, so it stays valid after a panic in another thread.
        self.shared.made.lock()
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.shared.root)?;
        let (directory, name) = match &self.shared.names {
            Names::Beneath(directory) => (directory.as_slice(), None),
            Names::Only { directory, name, .. } => (directory.as_slice(), Some(&**name)),
            Names::Numbered(paths) => return write!(f, " ({} files)", paths.len()),
        };
        let names = directory.split(|&b| b == b'/').chain(name);
        names.filter(|name| !name.is_empty()).try_for_each(|name| write!(f, "/{}", name.escape_ascii()))
    }
}

/// Checks that a root may be written. Errors: `Denied`.
fn check_writable(root: &Root) -> Result<(), Error> {
    if root.access() == Access::ReadWrite {
        return Ok(());
    }
    Err(PREPARING.refused(ErrorKind::Denied, format!("write beneath {root}: this root is read-only")))
}

/// Returns the names in a path.
fn names_of(path: &[u8]) -> Vec<&[u8]> {
    path.split(|&b| b == b'/').filter(|name| !matches!(*name, b"" | b".")).collect()
}

/// Decision about a file: complete already, or to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    UpToDate,
    Wanted,
}

/// Returns the version of the file that has a name: inode and change time.
fn seen_of(stat: &Stat) -> Seen {
    Seen::version([stat.st_ino, stat.st_ctime as u64, stat.st_ctime_nsec])
}

/// Removes rights from a directory that its source does not grant, before files get their names in it.
/// [`Destination::finish`] sets the mode of the source. Best effort: `finish` reports a failure.
fn narrow(directory: &OwnedFd, mode: u16) {
    let Ok(stat) = rustix::fs::fstat(directory) else { return };
    let kept = Mode::from_raw_mode(stat.st_mode & (u32::from(mode) | !0o777)) | OWNER_MODE;
    if kept != Mode::from_raw_mode(stat.st_mode) {
        let _ = rustix::fs::fchmod(directory, kept);
    }
}

fn refuse_hidden(path: &RelPath) -> Result<(), Error> {
    match path.as_bytes().split(|&b| b == b'/').any(is_hidden_name) {
        true => {
            let text = format!(
                "write {path}: names that begin with .sterna- are kept for our unfinished files; give it another name"
            );
            Err(PREPARING.refused(ErrorKind::Denied, text))
        }
        false => Ok(()),
    }
}
