//! Tests of the disk module, on real directories.

mod destination;
mod forgetting;
mod full_disk;
mod growing;
mod history;
mod incoming;
mod intruders;
mod packed;
mod source;
mod speed;

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use sterna_proto::file::PACKED_FILE_BYTES_MAX;
use sterna_proto::session::Overwrite;
use sterna_proto::{BlockDigest, BlockMap, Checks, EntryKind, FileEntry, FileTime, RelPath};
use sterna_seeded::Seeded;
use tempfile::TempDir;

use super::*;
use crate::sink::{DirectoryModes, PackedFile, Prepared, Seen, Terms};

const MIB: u64 = 1 << 20;

fn scratch() -> TempDir {
    tempfile::Builder::new().prefix("disk-").tempdir().unwrap()
}

fn rel(path: impl AsRef<[u8]>) -> RelPath {
    RelPath::new(path.as_ref()).unwrap()
}

fn file_entry(path: impl AsRef<[u8]>, size: u64) -> FileEntry {
    FileEntry {
        path: rel(path),
        kind: EntryKind::File,
        size,
        mtime: FileTime { seconds: 1_700_000_000, nanoseconds: 123_456_789 },
        mode: 0o640,
        allocated: size,
        inode: 4711,
        version: 42,
        growth: None,
    }
}

fn directory_entry(path: impl AsRef<[u8]>) -> FileEntry {
    FileEntry { kind: EntryKind::Directory, mode: 0o755, ..file_entry(path, 0) }
}

fn terms(overwrite: Overwrite) -> Terms {
    Terms { overwrite, checks: Checks { adler32: true, crc32c: true, ..Checks::NONE } }
}

fn writable(directory: &TempDir) -> Destination {
    let root = Root::open(directory.path(), Access::ReadWrite).unwrap();
    Destination::resolve(&root, b"", Sources::Many).unwrap()
}

/// Returns bytes that differ from block to block.
fn pattern(length: u64) -> Vec<u8> {
    Seeded::new(1).bytes(length as usize)
}

/// Prepares a file that must accept blocks.
fn incoming(destination: &Destination, entry: &FileEntry) -> IncomingFile {
    match destination.prepare(entry, &terms(Overwrite::Always)).unwrap() {
        Prepared::Incoming(incoming) => *incoming,
        other => panic!("{other:?}"),
    }
}

/// Writes and records one block of `data`.
fn put_block(file: &IncomingFile, data: &[u8], index: u64) {
    let blocks = file.blocks();
    let (start, length) = (blocks.offset(index), blocks.length(index));
    let bytes = &data[start as usize..(start + length) as usize];
    file.write_at(start, bytes).unwrap();
    file.record(index, BlockDigest::of(&blocks, index, file.checks(), bytes)).unwrap();
}

/// Reads the blocks of an earlier session, as a session does. Returns the blocks that differ from their journal.
fn recheck(file: &IncomingFile) -> Vec<u64> {
    let blocks = file.blocks();
    let mut lost = Vec::new();
    while let Some((index, claimed)) = file.next_claim() {
        let mut bytes = vec![0; blocks.length(index) as usize];
        file.read_at(blocks.offset(index), &mut bytes).unwrap();
        let digest = BlockDigest::of(&blocks, index, file.checks(), &bytes);
        let sound = digest.chaining_value == claimed.chaining_value;
        file.settle_claim(index, sound.then_some(digest));
        lost.extend((!sound).then_some(index));
    }
    lost
}

/// Returns the names in a directory, hidden files included.
fn names_in(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .unwrap()
        .map(|item| String::from_utf8_lossy(item.unwrap().file_name().as_encoded_bytes()).into_owned())
        .collect();
    names.sort();
    names
}

fn hidden_file(directory: &Path, ending: &str) -> std::path::PathBuf {
    let name = names_in(directory).into_iter().find(|name| name.starts_with(".sterna-") && name.ends_with(ending));
    directory.join(name.unwrap_or_else(|| panic!("no hidden file ends in {ending}")))
}

fn assert_matches_entry(path: &Path, entry: &FileEntry, data: &[u8]) {
    let meta = std::fs::symlink_metadata(path).unwrap();
    assert!(std::fs::read(path).unwrap() == data, "{} differs", path.display());
    assert_eq!((meta.mtime(), meta.mtime_nsec()), (entry.mtime.seconds, i64::from(entry.mtime.nanoseconds)));
    assert_eq!(meta.mode() & 0o7777, u32::from(entry.mode));
}

fn is_superuser() -> bool {
    rustix::process::geteuid().is_root()
}

/// Size of a file that is just too large for a packed block: one block.
const ONE_BLOCK: u64 = PACKED_FILE_BYTES_MAX + 1;
