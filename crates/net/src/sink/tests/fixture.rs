//! Storage behind each implementation, and its content as a test sees it.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sterna_proto::{FileTime, RelPath};
use tempfile::TempDir;

use super::super::Sink;
use super::memory::{MemorySink, Storage};
use crate::disk::{Access, Destination, HIDDEN_PREFIX, Root, Sources};

/// Implementation of a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Disk,
    Memory,
}

pub(crate) const KINDS: [Kind; 2] = [Kind::Disk, Kind::Memory];

/// Storage of one kind. All its sinks write to the same place.
pub(crate) enum Fixture {
    Disk { directory: TempDir, root: Root },
    Memory(Arc<Storage>),
}

impl Fixture {
    pub(crate) fn new(kind: Kind) -> Self {
        match kind {
            Kind::Disk => {
                let directory = tempfile::tempdir().unwrap();
                let root = Root::open(directory.path(), Access::ReadWrite).unwrap();
                Self::Disk { directory, root }
            }
            Kind::Memory => Self::Memory(Arc::default()),
        }
    }

    /// Returns the sink of a new session.
    pub(crate) fn sink(&self) -> Arc<dyn Sink> {
        match self {
            Self::Disk { root, .. } => Arc::new(Destination::resolve(root, b"", Sources::Many).unwrap()),
            Self::Memory(storage) => Arc::new(MemorySink::new(storage)),
        }
    }

    /// Writes a file as another program does, without a sink.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        match self {
            Self::Disk { directory, .. } => fs::write(directory.path().join(name), bytes).unwrap(),
            Self::Memory(storage) => storage.write(&rel(name), bytes),
        }
    }

    /// Returns the bytes of a file; `None` if nothing has its name.
    pub(crate) fn read(&self, name: &str) -> Option<Vec<u8>> {
        match self {
            Self::Disk { directory, .. } => fs::read(directory.path().join(name)).ok(),
            Self::Memory(storage) => storage.stored().files.get(&rel(name)).map(|file| file.bytes.clone()),
        }
    }

    /// Returns mode and modification time of a file or a finished directory.
    pub(crate) fn metadata(&self, name: &str) -> Option<(u16, FileTime)> {
        match self {
            Self::Disk { directory, .. } => fs::metadata(directory.path().join(name)).ok().map(|meta| {
                let mtime = FileTime { seconds: meta.mtime(), nanoseconds: meta.mtime_nsec() as u32 };
                ((meta.mode() & 0o777) as u16, mtime)
            }),
            Self::Memory(storage) => {
                let stored = storage.stored();
                let file = stored.files.get(&rel(name)).map(|file| (file.mode, file.mtime));
                file.or_else(|| stored.directories.get(&rel(name)).copied().flatten())
            }
        }
    }

    /// Returns the paths of all files and directories that have a name.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names = match self {
            Self::Disk { directory, .. } => {
                let mut names = Vec::new();
                list(directory.path(), directory.path(), &mut names);
                names
            }
            Self::Memory(storage) => {
                let stored = storage.stored();
                stored.files.keys().chain(stored.directories.keys()).map(ToString::to_string).collect()
            }
        };
        names.sort();
        names
    }

    /// Changes a byte of the unfinished file `name`, as a failing disk does. The file is the only unfinished one.
    pub(crate) fn damage(&self, name: &str, offset: u64) {
        match self {
            Self::Disk { directory, .. } => {
                let is_unfinished = |path: &PathBuf| path.extension().is_some_and(|end| end == "part");
                let mut items = fs::read_dir(directory.path()).unwrap().map(|item| item.unwrap().path());
                let file = fs::File::options().read(true).write(true).open(items.find(is_unfinished).unwrap()).unwrap();
                let mut byte = [0];
                file.read_exact_at(&mut byte, offset).unwrap();
                file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
            }
            Self::Memory(storage) => storage.damage(&rel(name), offset as usize),
        }
    }
}

fn list(top: &Path, directory: &Path, names: &mut Vec<String>) {
    for item in fs::read_dir(directory).unwrap().map(|item| item.unwrap().path()) {
        if item.file_name().unwrap().as_encoded_bytes().starts_with(HIDDEN_PREFIX) {
            continue;
        }
        names.push(item.strip_prefix(top).unwrap().display().to_string());
        if item.is_dir() {
            list(top, &item, names);
        }
    }
}

pub(crate) fn rel(name: &str) -> RelPath {
    RelPath::new(name.as_bytes()).unwrap()
}
