//! Action on a source after it has arrived.

use std::os::fd::AsFd;
use std::path::PathBuf;

use sterna_proto::{Error, Setting};

use crate::disk::Root;

/// Action on a source that has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceDisposition {
    /// Delete the source.
    Delete,
    /// Move the source beneath this directory, with the path that it has beneath the destination.
    Move(PathBuf),
}

impl SourceDisposition {
    /// Checks that the action is possible for the files beneath `roots`, before anything is sent.
    ///
    /// Errors: `Usage` if the directory does not exist, is on another file system, or lies within a source.
    pub fn check<'a>(&self, sources: impl IntoIterator<Item = &'a (Root, PathBuf)>) -> Result<(), Error> {
        let Self::Move(directory) = self else { return Ok(()) };
        let shown = directory.display();
        let usage = |text: String| Error::usage(&[Setting::SourceDisposition], text);
        let looked = |error: std::io::Error| usage(format!("{shown}, where sources are to be moved")).caused_by(error);
        let real = directory.canonicalize().map_err(looked)?;
        if !real.is_dir() {
            return Err(usage(format!("{shown}, where sources are to be moved, is not a directory")));
        }
        let device = rustix::fs::stat(&real).map_err(|errno| looked(errno.into()))?.st_dev;
        for (root, path) in sources {
            let ours = rustix::fs::fstat(root.as_fd()).map_err(|errno| looked(errno.into()))?.st_dev;
            if ours != device {
                return Err(usage(format!(
                    "{shown}, where sources are to be moved, is on another file system than {}; name a directory on the same one",
                    path.display()
                )));
            }
            if path.is_dir() && path.canonicalize().is_ok_and(|source| real.starts_with(source)) {
                return Err(usage(format!(
                    "{shown}, where sources are to be moved, lies within {}: moved files would be sent again; name a directory outside",
                    path.display()
                )));
            }
        }
        Ok(())
    }
}
