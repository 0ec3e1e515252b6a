//! Files of this host that were offered, and the few of them that stay open between blocks.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use sterna_proto::session::LaneId;
use sterna_proto::{Error, ErrorKind, FileEntry, Phase, RelPath, Scope};

use super::{Extent, FileReader, OfferedFile, SourceDisposition};
use crate::descriptors;
use crate::disk::{Root, SourceFile};

/// Suffix of the name of a marker. A marker reports that the file without this suffix has ended.
pub(super) const MARKER_ENDING: &[u8] = b".done";

/// Maximum of files kept open for reading. Reason: lanes work on neighbouring blocks of few files, and descriptors
/// must be bounded.
const OPEN_FILES_MAX: usize = 64;

/// Divisor of the descriptor limit of the process: the part that a session uses for open sources. Reason: the same as
/// for the files of a receiver.
const DESCRIPTORS_DIVISOR: usize = 8;

/// Files that are kept open between blocks: those used last.
#[derive(Default)]
pub(super) struct OpenFiles(Mutex<Open>);

#[derive(Default)]
struct Open {
    /// Open files by their number, each with the time of its last use.
    files: HashMap<u64, (Arc<SourceFile>, u64)>,
    /// Counter of uses and of file numbers.
    used: u64,
}

impl OpenFiles {
    /// Returns the number for a new file.
    fn next_number(&self) -> u64 {
        let mut open = self.0.lock();
        open.used += 1;
        open.used
    }

    fn get(&self, file: &DiskFile) -> Result<Arc<SourceFile>, Error> {
        let mut open = self.0.lock();
        open.used += 1;
        let used = open.used;
        if let Some((source, last_used)) = open.files.get_mut(&file.number) {
            *last_used = used;
            return Ok(Arc::clone(source));
        }
        drop(open);
        let source = Arc::new(file.root.open_source(&file.path)?);
        let mut open = self.0.lock();
        if open.files.len() >= OPEN_FILES_MAX.min(descriptors::limit() / DESCRIPTORS_DIVISOR) {
            let oldest = open.files.iter().min_by_key(|(_, (_, used))| *used).map(|(number, _)| *number);
            oldest.and_then(|number| open.files.remove(&number));
        }
        open.files.insert(file.number, (Arc::clone(&source), used));
        Ok(source)
    }

    fn close(&self, number: u64) {
        // Dropped after the lock is released.
        let _source = self.0.lock().files.remove(&number);
    }
}

/// Way in which a file came to be offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listed {
    /// By a listing.
    Once,
    /// By a follower. A marker may stand beside it.
    Followed,
}

/// File of this host that was offered.
pub struct DiskFile {
    pub(super) root: Root,
    pub(super) path: RelPath,
    pub(super) listed: Listed,
    open_files: Arc<OpenFiles>,
    /// Number of the file in `open_files`.
    number: u64,
}

impl DiskFile {
    pub(super) fn new(root: &Root, path: RelPath, listed: Listed, open_files: &Arc<OpenFiles>) -> Arc<Self> {
        let number = open_files.next_number();
        Arc::new(Self { root: root.clone(), path, listed, open_files: Arc::clone(open_files), number })
    }
}

impl Drop for DiskFile {
    fn drop(&mut self) {
        self.open_files.close(self.number);
    }
}

impl fmt::Display for DiskFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.path, f)
    }
}

impl OfferedFile for DiskFile {
    fn open(&self, _lane: Option<LaneId>, extent: Extent) -> Result<Box<dyn FileReader>, Error> {
        let file = match extent {
            Extent::Whole => Arc::new(self.root.open_source(&self.path)?),
            Extent::Run { .. } => self.open_files.get(self)?,
        };
        Ok(Box::new(DiskReader(file)))
    }

    /// Also deletes the marker of the file, if it has one. Refuses a file that is no longer the one that was sent.
    fn settle(&self, disposition: &SourceDisposition, entry: &FileEntry) -> Result<(), Error> {
        let Self { root, path, .. } = self;
        // On a network file system, a file that is deleted while it is open leaves a hidden file.
        self.open_files.close(self.number);
        // A name that is too long for a marker has no marker.
        let marker = RelPath::new(&[path.as_bytes(), MARKER_ENDING].concat()).ok();
        let marker = marker.filter(|_| self.listed == Listed::Followed);
        let marker = marker.and_then(|marker| root.look(&marker).ok().flatten().map(|look| (marker, look)));
        match marker {
            // Markers are never copied, so the data of this marker would be lost. The file must not be removed without
            // its marker.
            Some((marker, look)) if look.size > 0 => {
                let text = format!(
                    "{path} has arrived and stays where it is: its marker {marker} has {} bytes, which nobody has copied; \
                     empty or delete the marker",
                    look.size
                );
                return Err(Error::new(ErrorKind::Exists, Scope::Source, Phase::Finalise, text));
            }
            Some((marker, _)) => {
                // If the source differs from the file that was sent, it stays, and the marker belongs to the new file.
                match root.same_source(path, entry) {
                    Err(error) if error.kind == ErrorKind::NotFound && *disposition == SourceDisposition::Delete => {}
                    found => drop(found?),
                }
                // The marker is deleted before its file: a remaining marker would end the next file with that name at
                // once.
                root.delete_marker(&marker)?;
            }
            // A marked file has ended, even if a process still has it open. Only a file without a marker is checked for
            // writers.
            None => root.refuse_written(path)?,
        }
        match disposition {
            SourceDisposition::Delete => root.delete_source(path, entry),
            SourceDisposition::Move(directory) => root.move_source(path, entry, (directory, &entry.path)),
        }
    }
}

struct DiskReader(Arc<SourceFile>);

impl FileReader for DiskReader {
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        self.0.read_at(offset, buffer)
    }

    fn is_hole(&self, offset: u64, length: u64) -> Result<bool, Error> {
        self.0.is_hole(offset, length)
    }

    fn check_unchanged(&self, entry: &FileEntry) -> Result<(), Error> {
        self.0.check_unchanged(entry)
    }

    /// A growing file may be open for writing, because it is read again as a whole once all its blocks have arrived.
    fn check_block(&self, entry: &FileEntry) -> Result<(), Error> {
        match entry.growth {
            None => self.0.check_unwritten(entry),
            Some(_) => self.0.check_unchanged(entry),
        }
    }

    fn check_whole(&self, entry: &FileEntry, bytes: &[u8]) -> Result<(), Error> {
        self.0.check_unchanged(entry)?;
        self.0.check_steady(0, bytes)
    }
}
