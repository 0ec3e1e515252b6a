//! Deletes or moves source files that have arrived at the destination.
//!
//! Another process can give the name of a file to another file at any moment, also between a check and the deletion. So
//! a file first gets a name that no other process uses. It is checked again under that name, and gets its old name back
//! if it is not the file that was sent. A crash in between leaves the file as `.sterna-<random>.leaving`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, RenameFlags};
use rustix::io::Errno;
use sterna_proto::{Error, ErrorKind, FileEntry, RelPath, Retry};

use super::fault::SWEEPING;
use super::hidden::leaving_name;
use super::metadata::parent_of;
use super::root::{Access, Root};
use super::source::SourceFile;

impl Root {
    /// Deletes the file `path`, which was sent as `entry`. A missing file is not an error.
    ///
    /// Errors: `Changed` if the file is not the one that was sent any more, and errors of the system. The file then
    /// stays in place.
    pub fn delete_source(&self, path: &RelPath, entry: &FileEntry) -> Result<(), Error> {
        match self.same_source(path, entry) {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
            found => found?.delete(entry),
        }
    }

    /// Moves the file `path`, which was sent as `entry`, to the name `to` beneath `directory`. Creates missing
    /// directories beneath it. No symlink beneath `directory` leads the file out of it.
    ///
    /// Errors: as [`Root::delete_source`], and four more. `NotFound` if the file is gone: a user who looks for it at
    /// `to` must get a report. `Exists` if the name `to` is taken. `Usage` if `to` is on another file system. `Denied`
    /// if a symlink leads out of `directory`.
    pub fn move_source(
        &self,
        path: &RelPath,
        entry: &FileEntry,
        (directory, to): (&Path, &RelPath),
    ) -> Result<(), Error> {
        // The access limits peers, and decides that errors are those of a source.
        let target = Self::open(directory, Access::ReadOnly)?;
        let parent = target.make_directory(parent_of(to), SWEEPING, &mut |_| {})?;
        self.same_source(path, entry)?.move_to(entry, (&target, parent.as_fd(), to))
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

    /// Finds the file `path`, if it is still the one that was sent as `entry`.
    ///
    /// Errors: `Changed` if it is another file or was modified; `NotFound` if the name does not exist; errors of the
    /// system.
    pub fn same_source(&self, path: &RelPath, entry: &FileEntry) -> Result<SameSource, Error> {
        let failed = |errno: Errno| match errno {
            Errno::NOENT | Errno::NOTDIR => gone(path),
            errno => SWEEPING.failed(errno, format_args!("look at {path}, which has arrived; it stays")),
        };
        let directory = self.open_directory(parent_of(path)).map_err(failed)?;
        let named = rustix::fs::statat(&directory, path.name(), AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        if named.st_ino != entry.inode {
            return Err(stays(path, "its name is that of another file now, or of a symlink"));
        }
        match self.open_source(path).and_then(|source| source.check_unchanged(entry).map(|()| source)) {
            Ok(source) => Ok(SameSource { directory, source, path: path.clone() }),
            Err(_) => Err(stays(path, CHANGED)),
        }
    }
}

/// Source file that is still the one that was sent, as far as a check can show that.
#[derive(Debug)]
pub struct SameSource {
    directory: OwnedFd,
    /// Kept open, so that its inode is not that of a later file.
    source: SourceFile,
    path: RelPath,
}

impl SameSource {
    /// Deletes the file. A missing file is not an error. Errors: as [`Root::delete_source`].
    fn delete(self, entry: &FileEntry) -> Result<(), Error> {
        let path = &self.path;
        let failed = |errno: Errno| SWEEPING.failed(errno, format_args!("delete {path}, which has arrived; it stays"));
        let hidden = leaving_name().map_err(|error| {
            SWEEPING.failed(std::io::Error::other(error), format_args!("delete {path}, which has arrived; it stays"))
        })?;
        let was_written = self.source.is_being_written();
        match rustix::fs::renameat(&self.directory, path.name(), &self.directory, &*hidden) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(failed(errno)),
        }
        let place = (self.directory.as_fd(), hidden.as_bytes());
        let checked = self.check_at(entry, place).and_then(|()| match self.source.is_being_written() {
            true if !was_written => Err(stays(path, "a process has it open for writing")),
            _ => Ok(()),
        });
        if let Err(error) = checked {
            return Err(self.put_back(place, error));
        }
        rustix::fs::unlinkat(&self.directory, &*hidden, AtFlags::empty())
            .map_err(|errno| self.put_back(place, failed(errno)))
    }

    /// Moves the file to the name `to` in the directory `parent`, beneath `root`. Errors: as [`Root::move_source`].
    fn move_to(self, entry: &FileEntry, (root, parent, to): (&Root, BorrowedFd<'_>, &RelPath)) -> Result<(), Error> {
        let path = &self.path;
        let failed = |errno: Errno| {
            let tried = format!("move {path}, which has arrived, to {root}/{to}");
            match errno {
                Errno::NOENT => gone(path),
                Errno::EXIST => {
                    SWEEPING.refused(ErrorKind::Exists, format!("{tried}: the name is taken; it stays where it is"))
                }
                Errno::XDEV => SWEEPING
                    .refused(ErrorKind::Usage, format!("{tried}: that is another file system; it stays where it is")),
                errno => SWEEPING.failed(errno, format_args!("{tried}; it stays where it is")),
            }
        };
        match rustix::fs::renameat_with(&self.directory, path.name(), parent, to.name(), RenameFlags::NOREPLACE) {
            Ok(()) => {
                let place = (parent, to.name());
                self.check_at(entry, place).map_err(|error| self.put_back(place, error))
            }
            // The file system does not support `NOREPLACE`. `linkat` does not replace an existing name either.
            Err(Errno::INVAL | Errno::NOSYS) => {
                rustix::fs::linkat(&self.directory, path.name(), parent, to.name(), AtFlags::empty())
                    .map_err(failed)?;
                if let Err(error) = self.check_at(entry, (parent, to.name())) {
                    // A second name of the other file, which keeps its first.
                    let _ = rustix::fs::unlinkat(parent, to.name(), AtFlags::empty());
                    return Err(error);
                }
                self.delete(entry)
            }
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Checks that the name at `place`, which no other process uses, is that of the file that was sent.
    fn check_at(&self, entry: &FileEntry, (directory, name): (BorrowedFd<'_>, &[u8])) -> Result<(), Error> {
        let looked = |errno| SWEEPING.failed(errno, format_args!("look at {}, which has arrived; it stays", self.path));
        let named = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(looked)?;
        self.source.check_renamed(entry, &named).map_err(|_| stays(&self.path, CHANGED))
    }

    /// Gives the file at `place` its old name back. Returns `error`, or an error that names the place if the old name
    /// is taken.
    fn put_back(&self, (directory, name): (BorrowedFd<'_>, &[u8]), error: Error) -> Error {
        let old = self.path.name();
        let moved = match rustix::fs::renameat_with(directory, name, &self.directory, old, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS) => {
                rustix::fs::linkat(directory, name, &self.directory, old, AtFlags::empty())
                    .and_then(|()| rustix::fs::unlinkat(directory, name, AtFlags::empty()))
            }
            moved => moved,
        };
        match moved {
            Ok(()) => error,
            Err(errno) => {
                let text = format!(
                    "give {} its name back: it has the name {} now, because it was not the file that has arrived any more",
                    self.path,
                    String::from_utf8_lossy(name)
                );
                SWEEPING.failed(errno, text)
            }
        }
    }
}

/// Reason why a changed file stays.
const CHANGED: &str = "it has changed since it was sent";

fn stays(path: &RelPath, what: &str) -> Error {
    SWEEPING.refused(ErrorKind::Changed, format!("{path} has arrived and stays where it is: {what}"))
}

fn gone(path: &RelPath) -> Error {
    let text = format!("{path} has arrived, and its source is gone: somebody else has deleted or moved it");
    SWEEPING.refused(ErrorKind::NotFound, text)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A file that was found unchanged; then `change` is made, as another process can at any moment.
    fn changed(
        change: impl Fn(&dyn Fn(&str) -> std::path::PathBuf),
    ) -> (tempfile::TempDir, Root, SameSource, FileEntry) {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("file"), b"sent").unwrap();
        let root = Root::open(directory.path(), Access::ReadOnly).unwrap();
        let path = RelPath::new(b"file").unwrap();
        let entry = root.open_source(&path).unwrap().entry().unwrap();
        let same = root.same_source(&path, &entry).unwrap();
        change(&at);
        (directory, root, same, entry)
    }

    fn names(directory: &tempfile::TempDir) -> Vec<String> {
        let items = fs::read_dir(directory.path()).unwrap();
        let mut names: Vec<String> = items.map(|item| item.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_that_is_replaced_between_check_and_removal_stays() {
        let replace = |at: &dyn Fn(&str) -> std::path::PathBuf| {
            fs::write(at("new"), b"data").unwrap();
            fs::rename(at("new"), at("file")).unwrap();
        };
        let (directory, _, same, entry) = changed(replace);
        assert_eq!(same.delete(&entry).unwrap_err().kind, ErrorKind::Changed);
        assert_eq!(
            (names(&directory), fs::read(directory.path().join("file")).unwrap()),
            (vec!["file".into()], b"data".into())
        );
        let (directory, root, same, entry) = changed(replace);
        let to = RelPath::new(b"moved").unwrap();
        assert_eq!(same.move_to(&entry, (&root, root.as_fd(), &to)).unwrap_err().kind, ErrorKind::Changed);
        assert_eq!(
            (names(&directory), fs::read(directory.path().join("file")).unwrap()),
            (vec!["file".into()], b"data".into())
        );
    }

    #[test]
    fn a_file_that_is_written_between_check_and_removal_stays() {
        let append = |at: &dyn Fn(&str) -> std::path::PathBuf| fs::write(at("file"), b"sent, and more").unwrap();
        let (directory, _, same, entry) = changed(append);
        assert_eq!(same.delete(&entry).unwrap_err().kind, ErrorKind::Changed);
        assert_eq!(fs::read(directory.path().join("file")).unwrap(), b"sent, and more");
        let (directory, root, same, entry) = changed(append);
        let to = RelPath::new(b"moved").unwrap();
        assert_eq!(same.move_to(&entry, (&root, root.as_fd(), &to)).unwrap_err().kind, ErrorKind::Changed);
        assert_eq!(
            (names(&directory), fs::read(directory.path().join("file")).unwrap()),
            (vec!["file".into()], b"sent, and more".into())
        );
    }

    /// The name is part of the work of others; one of several hard links is only a name.
    #[test]
    fn one_of_several_names_of_a_file_is_removed_and_the_others_stay() {
        let (directory, _, same, entry) = changed(|at| fs::hard_link(at("file"), at("link")).unwrap());
        same.delete(&entry).unwrap();
        assert_eq!(names(&directory), ["link"]);
    }
}
