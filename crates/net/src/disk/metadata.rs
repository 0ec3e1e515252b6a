//! Metadata of files: conversion between the structures of the system and file entries.

use rustix::fs::{FileType, Stat, Timespec, Timestamps};
use sterna_proto::{EntryKind, FileEntry, FileTime, RelPath};

/// Returns the directory that holds `path`; empty for the root.
pub(super) fn parent_of(path: &RelPath) -> &[u8] {
    let bytes = path.as_bytes();
    &bytes[..bytes.iter().rposition(|&b| b == b'/').unwrap_or(0)]
}

/// Returns the times for a file: `mtime` as the times of last modification and last access.
pub(super) fn times(mtime: FileTime) -> Timestamps {
    let time = Timespec { tv_sec: mtime.seconds, tv_nsec: mtime.nanoseconds.into() };
    Timestamps { last_access: time, last_modification: time }
}

/// Creates the entry of a file from its metadata.
pub(super) fn entry_from(stat: &Stat, kind: EntryKind, path: RelPath) -> FileEntry {
    // The size of a regular file is never negative.
    let size = if kind == EntryKind::File { stat.st_size as u64 } else { 0 };
    FileEntry {
        path,
        kind,
        size,
        // `st_blocks` counts units of 512 bytes (POSIX), whatever the block size of the file system.
        allocated: (stat.st_blocks as u64).saturating_mul(512).min(size),
        mtime: time_from(stat),
        mode: (stat.st_mode & 0o777) as u16,
        inode: stat.st_ino,
        // Nanoseconds since 1970; only compared.
        version: (stat.st_ctime as u64).wrapping_mul(1_000_000_000).wrapping_add(stat.st_ctime_nsec),
        growth: None,
    }
}

/// Returns the modification time from the metadata of a file.
pub(super) fn time_from(stat: &Stat) -> FileTime {
    FileTime { seconds: stat.st_mtime, nanoseconds: stat.st_mtime_nsec as u32 }
}

/// Returns the kind of a file in words.
pub(super) fn describe(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "a file",
        FileType::Directory => "a directory",
        FileType::Symlink => "a symlink",
        FileType::Fifo => "a fifo, which is not copied",
        FileType::Socket => "a socket, which is not copied",
        FileType::CharacterDevice | FileType::BlockDevice => "a device, which is not copied",
        FileType::Unknown => "of an unknown kind, which is not copied",
    }
}
