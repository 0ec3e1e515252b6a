//! What is done with a source after it has arrived.
//!
//! Acts only on a file whose outcome is *done*: verified and durable at the receiver. Refuses whatever is not what was sent any more.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use sterna_proto::{EntryKind, Error, ErrorKind, FileEntry, Phase, RelPath, Scope};

use super::follow::MARKER_ENDING;
use super::origin::Origin;
use crate::disk::Root;

/// What is done with a source that has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Then {
    /// It is deleted.
    Delete,
    /// It is moved beneath this directory, by the path that it has beneath the destination.
    Move(PathBuf),
}

impl Then {
    /// Looks whether it can be done with what lies beneath `roots`, before anything is sent.
    ///
    /// Errors: `Usage`: the directory is not there, on another file system, or within what is sent.
    pub fn check<'a>(&self, sources: impl IntoIterator<Item = &'a (Root, PathBuf)>) -> Result<(), Error> {
        let Self::Move(directory) = self else { return Ok(()) };
        let shown = directory.display();
        let usage = |text: String| Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text);
        let looked =
            |error: std::io::Error| usage(format!("--then move={shown}: look at this directory")).caused_by(error);
        let real = directory.canonicalize().map_err(looked)?;
        if !real.is_dir() {
            return Err(usage(format!("--then move={shown}: it is no directory")));
        }
        let device = rustix::fs::stat(&real).map_err(|errno| looked(errno.into()))?.st_dev;
        for (root, path) in sources {
            let ours = rustix::fs::fstat(root.as_fd()).map_err(|errno| looked(errno.into()))?.st_dev;
            if ours != device {
                return Err(usage(format!(
                    "--then move={shown}: it is on another file system than {}; name a directory on the same one",
                    path.display()
                )));
            }
            if path.is_dir() && path.canonicalize().is_ok_and(|source| real.starts_with(source)) {
                return Err(usage(format!(
                    "--then move={shown}: it lies within {}, so that what is moved would be sent again; name a directory outside",
                    path.display()
                )));
            }
        }
        Ok(())
    }
}

/// Deletes or moves sources; one at a time, so that whoever asks last finds everything done.
#[derive(Debug)]
pub(super) struct Sweeper {
    then: Then,
    turn: Mutex<()>,
}

impl Sweeper {
    pub(super) fn new(then: Then) -> Self {
        Self { then, turn: Mutex::new(()) }
    }

    /// Held while outcomes are heard.
    pub(super) fn turn(&self) -> &Mutex<()> {
        &self.turn
    }

    /// Does with the source of a file that is done what is to be done, and deletes its marker, if it may have one.
    ///
    /// Errors: it stays where it is, and why.
    pub(super) fn sweep(&self, origin: &Origin, entry: &FileEntry, may_be_marked: bool) -> Result<(), Error> {
        let (Origin::Disk { root, path }, EntryKind::File) = (origin, entry.kind) else {
            return Ok(());
        };
        // A name that is too long for a marker has none.
        let marker = RelPath::new(&[path.as_bytes(), MARKER_ENDING].concat()).ok().filter(|_| may_be_marked);
        match marker.filter(|marker| matches!(root.look(marker), Ok(Some(_)))) {
            Some(marker) => {
                // A file that is not what was sent stays, and its marker is that of the new one.
                match root.same_source(path, entry) {
                    Err(error) if error.kind == ErrorKind::NotFound && self.then == Then::Delete => {}
                    found => drop(found?),
                }
                // Before its file: a marker that outlives it would end the next file of that name at once.
                root.delete_marker(&marker)?;
            }
            // What its writer has marked has ended, whoever has it open still.
            None => root.refuse_written(path)?,
        }
        match &self.then {
            Then::Delete => root.delete_source(path, entry),
            Then::Move(directory) => {
                use std::os::unix::ffi::OsStrExt;
                let name = Path::new(std::ffi::OsStr::from_bytes(entry.path.as_bytes()));
                root.move_source(path, entry, &directory.join(name))
            }
        }
    }
}
