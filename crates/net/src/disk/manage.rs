//! Deletes and renames names beneath a root.
//!
//! No path leaves the root, and no symlink is followed in its last name. A change is durable when the call returns: the
//! directories that lost or got a name are synced. Our hidden files are never deleted or renamed, because a running
//! session may own them.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use sterna_proto::session::{DeleteDirectories, Overwrite};
use sterna_proto::{Error, ErrorKind, Phase, RelPath, Scope};

use super::fault::MANAGING;
use super::is_hidden_name;
use super::metadata::parent_of;
use super::root::Root;

/// Maximum depth of a directory that is deleted with its contents. Reason: each level holds a descriptor, so that no
/// rename meanwhile leads the deletion elsewhere.
pub const DELETED_LEVELS_MAX: usize = 128;

/// Reports a deleted name, or the reason why one remains. Returns false to stop.
type Report<'a> = dyn FnMut(Result<RelPath, Error>) -> bool + 'a;

impl Root {
    /// Deletes the file, symlink or directory `path`. Calls `report` for every name, when its absence is durable.
    ///
    /// The contents of a directory go first. If one of them remains, the directory remains.
    pub fn delete(&self, path: &RelPath, directories: DeleteDirectories, report: &mut Report<'_>) {
        let opened = self.open_parent(path, "delete");
        let outcome = opened.and_then(|parent| {
            let mut deletion = Deletion { directories, report, is_stopped: false };
            let is_gone = deletion.delete(&parent, path, 0)?;
            if is_gone { sync(&parent, path).map(|()| true) } else { Ok(false) }
        });
        match outcome {
            Ok(true) => {
                report(Ok(path.clone()));
            }
            Ok(false) => {}
            Err(error) => {
                report(Err(error));
            }
        }
    }

    /// Renames `from` to `to`, whose directory exists. With [`Overwrite::Never`] an existing `to` is an error;
    /// otherwise a file at `to` is replaced in one step.
    ///
    /// Errors: `NotFound`, `Exists`, `Denied`; `to` is beneath `from` (`Usage`); the ends are on different file
    /// systems.
    pub fn rename(&self, from: &RelPath, to: &RelPath, overwrite: Overwrite) -> Result<(), Error> {
        if to.as_bytes().strip_prefix(from.as_bytes()).is_some_and(|rest| rest.starts_with(b"/")) {
            let text = format!("rename {from} to {to}: the new name is beneath the old one");
            return Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text));
        }
        let (old, new) = (self.open_parent(from, "rename")?, self.open_parent(to, "rename to")?);
        let failed = |errno: Errno| MANAGING.failed(errno, format_args!("rename {from} to {to} in {self}"));
        match overwrite {
            Overwrite::Never => {
                rustix::fs::renameat_with(&old, from.name(), &new, to.name(), RenameFlags::NOREPLACE)
                    .map_err(failed)?;
            }
            Overwrite::Always | Overwrite::IfChanged => {
                rustix::fs::renameat(&old, from.name(), &new, to.name()).map_err(failed)?;
            }
        }
        // The new name first: after a power cut between the two, the file has both names or one of them.
        sync(&new, to)?;
        sync(&old, from)
    }

    /// Opens the directory of `path`. Errors: the last name is one of ours.
    fn open_parent(&self, path: &RelPath, tried: &str) -> Result<OwnedFd, Error> {
        if is_hidden_name(path.name()) {
            return Err(ours(path, tried));
        }
        self.open_directory(parent_of(path)).map_err(|errno| MANAGING.failed(errno, format_args!("{tried} {path}")))
    }
}

struct Deletion<'a, 'r> {
    directories: DeleteDirectories,
    report: &'a mut Report<'r>,
    is_stopped: bool,
}

impl Deletion<'_, '_> {
    /// Deletes the name `path` in `parent`. Returns false if something in it remains, which was reported.
    fn delete(&mut self, parent: &OwnedFd, path: &RelPath, level: usize) -> Result<bool, Error> {
        let failed = |errno: Errno| MANAGING.failed(errno, format_args!("delete {path}"));
        let stat = rustix::fs::statat(parent, path.name(), AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return rustix::fs::unlinkat(parent, path.name(), AtFlags::empty()).map(|()| true).map_err(failed);
        }
        if self.directories == DeleteDirectories::WithContents && !self.empty(parent, path, level)? {
            return Ok(false);
        }
        rustix::fs::unlinkat(parent, path.name(), AtFlags::REMOVEDIR).map(|()| true).map_err(failed)
    }

    /// Deletes the contents of the directory `path` in `parent`. Returns false if something remains.
    fn empty(&mut self, parent: &OwnedFd, path: &RelPath, level: usize) -> Result<bool, Error> {
        let failed = |errno: Errno| MANAGING.failed(errno, format_args!("delete the contents of {path}"));
        if level == DELETED_LEVELS_MAX {
            let text = format!("delete the contents of {path}: it is more than {DELETED_LEVELS_MAX} levels deep");
            return Err(MANAGING.refused(ErrorKind::Limit, text));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(parent, path.name(), flags, Mode::empty()).map_err(failed)?;
        let mut gone = Vec::new();
        let mut is_empty = true;
        for item in Dir::read_from(&directory).map_err(failed)? {
            let item = item.map_err(failed)?;
            let name = item.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            if self.is_stopped {
                is_empty = false;
                break;
            }
            let outcome = match path.join(name) {
                Ok(child) if is_hidden_name(name) => Err(ours(&child, "delete")),
                Ok(child) => self.delete(&directory, &child, level + 1).map(|is_gone| is_gone.then_some(child)),
                Err(error) => Err(error),
            };
            match outcome {
                Ok(Some(child)) => gone.push(child),
                Ok(None) => is_empty = false,
                Err(error) => {
                    is_empty = false;
                    self.is_stopped |= !(self.report)(Err(error));
                }
            }
            if gone.len() == REPORTED_TOGETHER {
                self.flush(&directory, path, &mut gone)?;
            }
        }
        self.flush(&directory, path, &mut gone)?;
        Ok(is_empty)
    }

    /// Makes the absence of names in `directory` durable, and reports them.
    fn flush(&mut self, directory: &OwnedFd, path: &RelPath, gone: &mut Vec<RelPath>) -> Result<(), Error> {
        if gone.is_empty() {
            return Ok(());
        }
        sync(directory, path)?;
        for child in gone.drain(..) {
            self.is_stopped |= !(self.report)(Ok(child));
        }
        Ok(())
    }
}

/// Number of deleted names of a directory that are synced and reported together. Reason: one sync takes milliseconds.
const REPORTED_TOGETHER: usize = 1024;

fn sync(directory: impl AsFd, path: &RelPath) -> Result<(), Error> {
    let failed = |errno: Errno| MANAGING.failed(errno, format_args!("make the change of {path} durable"));
    rustix::fs::fsync(directory).map_err(failed)
}

fn ours(path: &RelPath, tried: &str) -> Error {
    let text = format!("{tried} {path}: names that begin with .sterna- are those of unfinished copies");
    MANAGING.refused(ErrorKind::Busy, text)
}
