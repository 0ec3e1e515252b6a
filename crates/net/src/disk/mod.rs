//! Storage on a POSIX file system: sources that are read, destinations that are written, resumed and published.
//!
//! What it does: resolves every path beneath a [`Root`], lists sources as `cp -r` would name them, reads and writes blocks at
//! their offsets, and makes files durable before they get their name. What it refuses to do: decide what is sent, hash or
//! check blocks, start threads, or read a clock. Everything is synchronous and may be called from many threads.
//!
//! # What a crash can leave behind
//!
//! A file above [`sterna_proto::file::PACKED_FILE_BYTES_MAX`] is written to `.sterna-<hash>.part` beside its final name,
//! with its journal in `.sterna-<hash>.journal`; the hash is of the final name. The steps, and what `kill -9` or a power
//! cut after each of them leaves:
//!
//! 1. The part file is made, closed to other users, and locked, and gets its full length. *Left:* a part file and no journal.
//!    The next session deletes it and makes a new one; nothing was claimed.
//! 2. Blocks are written, and recorded in memory. *Left:* bytes that no journal claims; they are sent again.
//! 3. [`IncomingFile::checkpoint`]: `fdatasync` of the part file, and only then the records of the blocks that were recorded
//!    *before* that `fdatasync` began are appended to the journal, which is then synced. *Left:* a journal that claims less
//!    than the disk holds, never more. A record that was torn fails its own check and its block is sent again. A `kill -9`
//!    loses no page cache, so there it is the same as nothing happening.
//! 4. [`IncomingFile::publish`]: digests are compared, then mode and time are set and the part file is `fsync`ed. *Left:* a
//!    complete part file and its journal; the next session finds every block there, reads them, and publishes.
//! 5. `rename` to the final name: atomic; whoever opens the name sees the old file or the whole new one. *Left after a power
//!    cut:* either the state of 4 or that of 6.
//! 6. `fsync` of the directory: the name is durable. *Left:* a journal without a part file; the next session deletes it.
//! 7. The journal is deleted. It goes last, so that no order in which the disk takes 5 and 7 can lose both.
//!
//! Starting over goes the other way round: the journal is deleted and the directory synced *before* the part file is
//! deleted and made anew, so that no journal ever claims blocks of an empty file. A journal also names the inode of its part
//! file and speaks of no other.
//!
//! # Other users of the directory
//!
//! Others may put files where ours are to be, and open ours if their modes let them. So a part file is made by us
//! (`O_EXCL`), and one that is found counts only with a journal of ours that names its inode; both must belong to our effective
//! user, have one name, and be closed to group and others. What belongs to another user is left alone. Modes are widened
//! in step 4 only, where the whole file is verified.
//!
//! Something that runs as our own user may still cut a part file. It has its full length from step 1, so a cut shows in its
//! size until something writes at its end: that is looked at before each such write, and again before step 5.
//!
//! A session that ends by itself deletes the part files that no journal speaks for. Small files have no journal: see [`PackedBatch`].

mod claims;
mod destination;
mod durable;
mod expand;
mod fault;
mod hidden;
mod incoming;
mod packed;
mod pattern;
mod root;
mod source;
mod sweep;
mod watch;

pub use destination::{Destination, DirectoryModes, Inspected, Prepared, Seen, Terms, UNFINISHED_DIRECTORIES_MAX};
pub(crate) use expand::last_name;
pub use expand::{DIRECTORY_NAMES_MAX, Expansion, SourceItem, Sources};
pub use incoming::IncomingFile;
pub use packed::{OPEN_FILES_MAX, PackedBatch, PackedFile};
pub(crate) use pattern::{has_wildcards, is_meant};
pub use root::{Access, Root};
pub use source::SourceFile;
pub(crate) use watch::{Happened, Noticed, Watch, wait};

#[cfg(test)]
mod tests;

/// How the names of our hidden files begin; they are never listed and never accepted from a peer.
pub const HIDDEN_PREFIX: &[u8] = b".sterna-";

/// Whether `name` is kept for our hidden files.
fn is_hidden_name(name: &[u8]) -> bool {
    name.starts_with(HIDDEN_PREFIX)
}
