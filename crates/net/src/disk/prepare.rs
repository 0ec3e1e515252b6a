//! Preparation of entries: creates their directories, and opens files for writing.
//!
//! [`Destination`] decides what an entry needs, and [`IncomingFile`] resumes what an earlier session left of it.

use sterna_proto::{EntryKind, Error, FileEntry};

use super::destination::{Destination, Verdict};
use super::incoming::IncomingFile;
use super::metadata::parent_of;
use crate::sink::{Prepared, Terms};

impl Destination {
    /// Prepares for `entry`: creates directories, checks if the file is complete already, or opens it for writing.
    ///
    /// Errors: `Exists` if the terms replace no file, or if a directory has the name of the file; `Busy` with
    /// `Retry::After` if another session writes the file; `NoSpace`; `Denied`; `Limit`.
    pub fn prepare(&self, entry: &FileEntry, terms: &Terms) -> Result<Prepared<Box<IncomingFile>>, Error> {
        let path = self.place(&entry.path)?;
        if entry.kind == EntryKind::Directory {
            let directory = self.make_directory_of(entry, &path)?;
            IncomingFile::sweep_directory(&directory, &path);
            return Ok(Prepared::Directory);
        }
        let directory = self.make_directory(parent_of(&path))?;
        let (verdict, seen) = self.look(&directory, &path, entry, terms.overwrite)?;
        match verdict {
            Verdict::UpToDate => {
                IncomingFile::sweep(&directory, &path);
                Ok(Prepared::UpToDate)
            }
            Verdict::Wanted if entry.is_packed() => Ok(Prepared::Packed(seen)),
            Verdict::Wanted => {
                let incoming = IncomingFile::open(self.clone(), directory, path, entry, terms)?;
                Ok(incoming.map_or(Prepared::UpToDate, |incoming| Prepared::Incoming(Box::new(incoming))))
            }
        }
    }
}
