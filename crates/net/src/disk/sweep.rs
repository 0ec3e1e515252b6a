//! Sources that have arrived and are to go: deleted, or moved.

use std::path::Path;

use rustix::fs::{AtFlags, CWD, RenameFlags};
use rustix::io::Errno;
use sterna_proto::{Error, ErrorKind, FileEntry, RelPath, Retry};

use super::destination::parent_of;
use super::fault::SWEEPING;
use super::root::Root;

impl Root {
    /// Deletes the file `path`, which was sent as `entry`; one that is gone already is gone as wanted.
    ///
    /// Errors: it is not what was sent any more (`Changed`), or the system refuses; it stays where it is. A writer that appends between the look and the
    /// deletion, within microseconds, is not seen.
    pub fn delete_source(&self, path: &RelPath, entry: &FileEntry) -> Result<(), Error> {
        let directory = match self.same_source(path, entry) {
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(()),
            found => found?,
        };
        match rustix::fs::unlinkat(directory, path.name(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(SWEEPING.failed(errno, format_args!("delete {path}, which has arrived; it stays"))),
        }
    }

    /// Moves the file `path`, which was sent as `entry`, to `to`; directories above that are made.
    ///
    /// Errors: as [`Root::delete_source`]; `NotFound` when it is gone, so that whoever looks for it there is told; `Exists` when the name is taken; `Usage` when it is on another file system.
    pub fn move_source(&self, path: &RelPath, entry: &FileEntry, to: &Path) -> Result<(), Error> {
        let shown = to.display();
        let failed = |errno: Errno| match errno {
            Errno::EXIST => {
                let text =
                    format!("move {path}, which has arrived, to {shown}: the name is taken; it stays where it is");
                SWEEPING.refused(ErrorKind::Exists, text)
            }
            Errno::XDEV => {
                let text = format!(
                    "move {path}, which has arrived, to {shown}: that is another file system; it stays where it is"
                );
                SWEEPING.refused(ErrorKind::Usage, text)
            }
            errno => {
                SWEEPING.failed(errno, format_args!("move {path}, which has arrived, to {shown}; it stays where it is"))
            }
        };
        if let Some(parent) = to.parent() {
            std::fs::create_dir_all(parent)
                .map_err(|error| SWEEPING.failed(error, format_args!("make directory {}", parent.display())))?;
        }
        // Nothing but the move follows the look.
        let directory = self.same_source(path, entry)?;
        match rustix::fs::renameat_with(&directory, path.name(), CWD, to, RenameFlags::NOREPLACE) {
            // A file system without it: a link takes no name that is taken either.
            Err(Errno::INVAL | Errno::NOSYS) => {
                rustix::fs::linkat(&directory, path.name(), CWD, to, AtFlags::empty()).map_err(failed)?;
                rustix::fs::unlinkat(&directory, path.name(), AtFlags::empty()).map_err(failed)
            }
            moved => moved.map_err(failed),
        }
    }

    /// Whether some process of this host has the file `path` open for writing; not, where the kernel does not say.
    pub fn is_being_written(&self, path: &RelPath) -> bool {
        self.open_source(path).is_ok_and(|source| source.is_being_written())
    }

    /// Errors: `Changed`: [`Root::is_being_written`], so that the file must not be taken away.
    pub fn refuse_written(&self, path: &RelPath) -> Result<(), Error> {
        if !self.is_being_written(path) {
            return Ok(());
        }
        let text = format!("{path} has arrived and stays where it is: a process has it open for writing");
        Err(SWEEPING.refused(ErrorKind::Changed, text).retry(Retry::After))
    }

    /// Deletes the marker `path`; one that is not there is deleted already. Errors: those of the system.
    pub fn delete_marker(&self, path: &RelPath) -> Result<(), Error> {
        let deleted = self
            .open_directory(parent_of(path))
            .and_then(|directory| rustix::fs::unlinkat(directory, path.name(), AtFlags::empty()));
        match deleted {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => {
                Err(SWEEPING.failed(errno, format_args!("delete {path}, the marker of a file that has arrived")))
            }
        }
    }

    /// The directory of `path`, when what has that name is what was sent as `entry`. Errors: it is not (`Changed`), nothing has that name
    /// (`NotFound`), or the system refuses.
    pub fn same_source(&self, path: &RelPath, entry: &FileEntry) -> Result<std::os::fd::OwnedFd, Error> {
        let stays = |what: &str| {
            let text = format!("{path} has arrived and stays where it is: {what}");
            SWEEPING.refused(ErrorKind::Changed, text)
        };
        let failed = |errno: Errno| match errno {
            Errno::NOENT | Errno::NOTDIR => {
                let text = format!("{path} has arrived, and its source is gone: somebody else has deleted or moved it");
                SWEEPING.refused(ErrorKind::NotFound, text)
            }
            errno => SWEEPING.failed(errno, format_args!("look at {path}, which has arrived; it stays")),
        };
        let directory = self.open_directory(parent_of(path)).map_err(failed)?;
        let named = rustix::fs::statat(&directory, path.name(), AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        if named.st_ino != entry.inode {
            return Err(stays("its name is that of another file now, or of a symlink"));
        }
        match self.open_source(path).and_then(|source| source.check_unchanged(entry)) {
            Ok(()) => Ok(directory),
            Err(_) => Err(stays("it has changed since it was sent")),
        }
    }
}
