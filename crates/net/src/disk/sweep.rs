//! Deletes or moves source files that have arrived at the destination.

use std::path::Path;

use rustix::fs::{AtFlags, CWD, RenameFlags};
use rustix::io::Errno;
use sterna_proto::{Error, ErrorKind, FileEntry, RelPath, Retry};

use super::fault::SWEEPING;
use super::metadata::parent_of;
use super::root::Root;

impl Root {
    /// Deletes the file `path`, which was sent as `entry`. A missing file is not an error.
    ///
    /// Errors: `Changed` if the file is not the one that was sent any more, and errors of the system. The file then
    /// stays in place. A writer that appends in the microseconds between the check and the deletion is not detected.
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

    /// Moves the file `path`, which was sent as `entry`, to `to`. Creates missing directories above `to`.
    ///
    /// Errors: as [`Root::delete_source`], and three more. `NotFound` if the file is gone: a user who looks for it at
    /// `to` must get a report. `Exists` if the name `to` is taken. `Usage` if `to` is on another file system.
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
        // Last check: only the move follows it.
        let directory = self.same_source(path, entry)?;
        match rustix::fs::renameat_with(&directory, path.name(), CWD, to, RenameFlags::NOREPLACE) {
            // The file system does not support `NOREPLACE`. `linkat` does not replace an existing name either.
            Err(Errno::INVAL | Errno::NOSYS) => {
                rustix::fs::linkat(&directory, path.name(), CWD, to, AtFlags::empty()).map_err(failed)?;
                rustix::fs::unlinkat(&directory, path.name(), AtFlags::empty()).map_err(failed)
            }
            moved => moved.map_err(failed),
        }
    }

    /// Returns true if a process of this host has the file `path` open for writing. Returns false if the kernel cannot
    /// report it.
    pub fn is_being_written(&self, path: &RelPath) -> bool {
        self.open_source(path).is_ok_and(|source| source.is_being_written())
    }

    /// Refuses a file for which [`Root::is_being_written`] is true, because the file must not be deleted or moved.
    ///
    /// Errors: `Changed` with `Retry::After`.
    pub fn refuse_written(&self, path: &RelPath) -> Result<(), Error> {
        if !self.is_being_written(path) {
            return Ok(());
        }
        let text = format!("{path} has arrived and stays where it is: a process has it open for writing");
        Err(SWEEPING.refused(ErrorKind::Changed, text).retry(Retry::After))
    }

    /// Deletes the marker `path`. A missing marker is not an error. Errors: those of the system.
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

    /// Opens the directory of `path`, if the file under that name is still the one that was sent as `entry`.
    ///
    /// Errors: `Changed` if it is another file or was modified; `NotFound` if the name does not exist; errors of the
    /// system.
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
