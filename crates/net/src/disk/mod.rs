//! Storage on a POSIX file system: reads sources; writes, resumes and publishes destinations.
//!
//! Resolves every path beneath a [`Root`], and lists sources under the names that `cp -r` gives them. It reads and
//! writes blocks at their offsets, and makes files durable before they get their final names. Refuses to decide what is
//! sent, hash or verify blocks, start threads, or read a clock. All calls are synchronous and may come from many
//! threads.
//!
//! [`Destination`] is a [`crate::sink::Sink`], and [`IncomingFile`] a [`crate::sink::SinkFile`].
//!
//! # What a crash leaves behind
//!
//! The steps below implement the order of durability that [`crate::sink`] demands.
//!
//! A file larger than [`sterna_proto::file::PACKED_FILE_BYTES_MAX`] is written to `.sterna-<hash>.part` beside its
//! final name. Its journal is `.sterna-<hash>.journal`. The hash is computed from the final name. Each step below
//! states what `kill -9` or a power cut after it leaves behind:
//!
//! 1. The part file is created without access for other users, locked, and set to its full length. *Left:* a part file
//!    without a journal. The next session deletes it and creates a new one; no block was claimed.
//! 2. Blocks are written, and recorded in memory. *Left:* bytes that no journal claims; they are sent again.
//! 3. [`IncomingFile::checkpoint`]: the part file is synced with `fdatasync`. Then the records of the blocks that were
//!    recorded *before* the `fdatasync` began are appended to the journal, and the journal is synced. *Left:* a journal
//!    that may claim less than the disk holds, never more. A torn record fails its checksum, and its block is sent
//!    again. A `kill -9` does not lose the page cache, so it has no effect here.
//! 4. [`IncomingFile::publish`]: digests are compared. Then mode and time are set, and the part file is synced with
//!    `fsync`. *Left:* a complete part file and its journal. The next session finds every block, reads them all, and
//!    publishes the file.
//! 5. `rename` to the final name. This step is atomic: a process that opens the name gets the old file or the complete
//!    new one. *Left after a power cut:* the state of step 4 or of step 6.
//! 6. `fsync` of the directory: the name is durable. *Left:* a journal without a part file; the next session deletes
//!    it.
//! 7. The journal is deleted. This step is the last one. In whatever order the disk executes steps 5 and 7, part file
//!    and journal cannot both be lost.
//!
//! A restart from zero uses the reverse order. The journal is deleted and the directory is synced *before* the part
//! file is deleted and created again. So no journal ever claims blocks of an empty file. A journal also records the
//! inode of its part file, and is valid for no other file.
//!
//! # Other users of the directory
//!
//! Other users may put files in place of ours, and may open ours if the modes allow it. So we create each part file
//! with `O_EXCL`. A part file that exists already counts only if a journal of ours records its inode. Part file and
//! journal must belong to our effective user, have one hard link, and be closed to group and others. Files of other
//! users are left alone. Modes are widened only in step 4, after the whole file was verified.
//!
//! Another process of our own user can still truncate a part file. The file has its full length from step 1, so its
//! size shows the truncation until something writes at its end. The size is checked before each write at the end, and
//! again before step 5.
//!
//! A session that ends without a crash deletes its part files that have no journal ([`IncomingFile::end`]), also when a
//! signal ends its process. Small files have no journal: see [`PackedBatch`].

mod claims;
mod destination;
mod directory_watcher;
mod durable;
mod expand;
mod fault;
mod hidden;
mod history;
mod incoming;
mod listing;
mod manage;
mod metadata;
mod packed;
mod pattern;
mod prepare;
mod root;
mod sink;
mod source;
mod speed;
mod sweep;

pub use destination::{Destination, UNFINISHED_DIRECTORIES_MAX};
pub(crate) use directory_watcher::{DirectoryWatcher, Happened, Noticed, wait};
pub(crate) use expand::last_name;
pub use expand::{DIRECTORY_NAMES_MAX, Expansion, SourceItem, Sources};
pub use history::{History, SessionHistory};
pub use incoming::IncomingFile;
pub use listing::{ListedName, Listing};
pub use manage::DELETED_LEVELS_MAX;
pub use packed::{OPEN_FILES_MAX, PackedBatch};
pub(crate) use pattern::{has_wildcards, is_meant};
pub use root::{Access, Root};
pub use source::SourceFile;
pub use speed::{BYTES_MAX as SPEED_BYTES_MAX, DiskSpeed, TIME_MAX as SPEED_TIME_MAX};

#[cfg(test)]
mod tests;

/// Prefix of the names of our hidden files. Such names are never listed and never accepted from a peer.
pub const HIDDEN_PREFIX: &[u8] = b".sterna-";

/// Returns true if `name` is reserved for our hidden files.
fn is_hidden_name(name: &[u8]) -> bool {
    name.starts_with(HIDDEN_PREFIX)
}
