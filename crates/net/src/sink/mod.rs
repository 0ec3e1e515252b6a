//! Sinks of a session: what a receiver needs of the place that its files go to.
//!
//! A [`Sink`] prepares each offered file. A small file is published whole, in a batch. A large file becomes a
//! [`SinkFile`]: lanes write ranges, the receiver records verified blocks, and [`SinkFile::publish`] gives the complete
//! file its name. Refuses to know sessions, lanes and hashing: a sink calls nobody, and the receiver compares digests
//! before it records a block.
//!
//! Implementations: [`crate::disk::Destination`] (files of this host) and [`Discard`] (data of a probe). Every
//! implementation that keeps files runs the promises in `tests`.
//!
//! # Order of durability
//!
//! Every implementation keeps this order, so that a crash at any moment neither shows half a file nor claims data that
//! is lost:
//!
//! 1. Data before its record. [`SinkFile::checkpoint`] makes data durable, and only then the record that claims it. It
//!    takes blocks that were recorded before it began. A record may claim less than the sink holds, never more.
//! 2. Record before name. [`SinkFile::publish`] verifies the file, makes all data durable, and then gives the name in
//!    one atomic step. A reader of the name gets the old file or the complete new one. The record is deleted after the
//!    name is durable, so data and record cannot both be lost.
//! 3. Name before outcome. [`SinkFile::publish`] returns when a crash cannot take the name back.
//! 4. Record before data when data is deleted. [`SinkFile::discard`], [`SinkFile::forget`] and a restart from zero
//!    delete the record durably first.
//!
//! A disk may lose data that it reported as durable. Claims of an earlier session therefore count only after
//! [`SinkFile::settle_claim`].

mod discard;
#[cfg(test)]
pub(crate) mod tests;

pub use discard::Discard;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use sterna_proto::session::Overwrite;
use sterna_proto::{BlockDigest, BlockMap, Checks, Digest, Error, FileDigests, FileEntry, RangeSet, RelPath};

/// Place to which the files of a session go. All threads of a session share it.
pub trait Sink: Send + Sync {
    /// Returns the place of the entry named `path`. Places of all sinks are comparable.
    ///
    /// Errors: the sink cannot have an entry of this name.
    fn place_of(&self, path: &RelPath) -> Result<Place, Error>;

    /// Prepares for `entry`: creates directories, checks if the file is complete already, or opens it for writing.
    ///
    /// Errors: `Exists` under [`Overwrite::Never`], or if a directory has the name of the file; `Busy` with
    /// `Retry::After` if another session writes the file; `Limit` with `Retry::After` if too many files are open;
    /// `NoSpace`; `Denied`.
    fn prepare(&self, entry: &FileEntry, terms: &Terms) -> Result<Prepared, Error>;

    /// Checks if `entry` exists already, as [`Sink::prepare`] does, but changes nothing.
    ///
    /// Errors: as [`Sink::prepare`], as far as they can be foreseen.
    fn inspect(&self, entry: &FileEntry, overwrite: Overwrite) -> Result<Inspected, Error>;

    /// Records that an earlier session of this copy has settled the file `entry`, so that no other file of the copy
    /// replaces it. Best effort.
    fn claim_settled(&self, entry: &FileEntry);

    /// Verifies small files, makes them durable and gives them their names, in the order of this module: data before
    /// name, name before outcome. Returns the outcome of each file, in the order of `files`.
    ///
    /// Errors, for each file: `Corrupt` if a digest differs; `Exists` under [`Overwrite::Never`]; `Busy` with
    /// `Retry::After` if another session has the file, or has changed the name since it was prepared; `NoSpace`.
    fn publish_packed(&self, files: &[PackedFile<'_>], terms: &Terms) -> Vec<PackedOutcome>;

    /// Sets mode and time of directories, after the last file. [`Sink::sync_names`] makes their names durable.
    ///
    /// Errors: the first one; the other directories are processed nevertheless.
    fn finish(&self, modes: DirectoryModes) -> Result<(), Error>;

    /// Makes the names of all created directories durable. Errors: of the storage; the next call tries again.
    fn sync_names(&self) -> Result<(), Error>;
}

/// Place of an entry: its storage, and its path there.
#[derive(Clone)]
pub struct Place {
    /// Storage, for example an opened directory. Compared by its address, which it keeps while a place refers to it.
    storage: Arc<dyn Any + Send + Sync>,
    path: RelPath,
}

impl Place {
    /// Creates the place `path` of a storage that all its sinks share.
    pub fn new(storage: Arc<dyn Any + Send + Sync>, path: RelPath) -> Self {
        Self { storage, path }
    }
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.storage, &other.storage) && self.path == other.path
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Place({})", self.path)
    }
}

/// Options for the preparation of a file.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Action if the name is already taken by a file.
    pub overwrite: Overwrite,
    /// Digests that are wanted besides BLAKE3.
    pub checks: Checks,
}

/// Result of [`Sink::prepare`]. `F` is the file that accepts blocks.
#[derive(Debug)]
pub enum Prepared<F = Arc<dyn SinkFile>> {
    /// The file is complete already; nothing needs to be sent.
    UpToDate,
    /// The directory exists.
    Directory,
    /// A small file, which must be sent whole for [`Sink::publish_packed`]. Holds the state of the name that it
    /// replaces.
    Packed(Seen),
    /// A file that accepts blocks; some may be present already.
    Incoming(F),
}

/// State of a name when it was checked: nothing, or a version of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen(Option<[u64; 3]>);

impl Seen {
    /// Creates the state of a name that has a file. The sink chooses numbers that differ between all versions.
    pub fn version(numbers: [u64; 3]) -> Self {
        Self(Some(numbers))
    }
}

/// Result of [`Sink::inspect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inspected {
    /// The entry exists already.
    UpToDate,
    /// The entry would be written.
    Wanted,
}

/// Modes that directories get at the end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryModes {
    /// Modes of the source.
    OfSource,
    /// Modes of the source, with full access for the owner: files are missing that another run must write.
    Writable,
}

/// Small file with all its bytes.
#[derive(Clone, Copy, Debug)]
pub struct PackedFile<'a> {
    /// Entry of the file.
    pub entry: &'a FileEntry,
    /// Bytes of the file.
    pub data: &'a [u8],
    /// BLAKE3 of the bytes that the sender read; `None` if it is not compared here.
    pub blake3: Option<[u8; 32]>,
    /// Digests that the user expects.
    pub expected: &'a [Digest],
    /// State of the final name before this file replaces it.
    pub seen: Seen,
}

/// Outcome of a small file: its digests, or `None` if another session has completed it since it was checked.
pub type PackedOutcome = Result<Option<FileDigests>, Error>;

/// File that accepts blocks in any order. The threads of all lanes share it.
///
/// No other session can prepare the same file until this value is dropped, published or discarded. Dropping it keeps
/// the checkpointed blocks for the next session. After an error of [`SinkFile::checkpoint`] the file must be dropped
/// and prepared again.
///
/// Cost: one virtual call per write of some 64 KiB; a write neither copies its data nor allocates.
pub trait SinkFile: Send + Sync {
    /// Returns the final path, as text for the user.
    fn path(&self) -> &RelPath;

    /// Returns the division of the file into blocks. It changes only in [`SinkFile::grow`].
    fn blocks(&self) -> BlockMap;

    /// Returns the reason why an earlier attempt could not be resumed, or only in part, as text for the user. `None`
    /// if there was no earlier attempt, or it was fully resumed.
    fn restarted(&self) -> Option<&str>;

    /// Returns the blocks that are present: recorded by this session, or claimed by an earlier one.
    fn have(&self) -> RangeSet;

    /// Records that the source has grown or has ended, and makes room for all its blocks. An entry that is older than
    /// the recorded one changes nothing.
    ///
    /// Errors: of the storage.
    fn grow(&self, entry: &FileEntry) -> Result<(), Error>;

    /// Writes `data` at its offset.
    ///
    /// Errors: `NoSpace`; `Protocol` beyond the end of the file; `Corrupt` with `Retry::After` if recorded data is
    /// known to be lost.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), Error>;

    /// Fills `[offset, offset + length)` with zeros, which occupy no space if the storage supports that.
    ///
    /// Errors: as [`SinkFile::write_at`].
    fn write_hole(&self, offset: u64, length: u64) -> Result<(), Error>;

    /// Writes the beginning of a block of a growing file. The block does not exist yet: it lies behind all blocks.
    ///
    /// Errors: as [`SinkFile::write_at`].
    fn write_tail(&self, offset: u64, data: &[u8]) -> Result<(), Error>;

    /// Reads back bytes of this file that were written by any thread or an earlier session.
    ///
    /// Errors: `Protocol` beyond the end of the file, `Io`.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Error>;

    /// Records that block `index` is written and that its digest was correct. A second call changes nothing.
    ///
    /// Errors: `Protocol` for a block that the file does not have. Cost: memory only, until the next checkpoint.
    fn record(&self, index: u64, digest: BlockDigest) -> Result<(), Error>;

    /// Makes all blocks recorded so far durable, so that no crash causes them to be sent again. Returns the number of
    /// these blocks.
    ///
    /// One thread calls this about once a second; others may write and record meanwhile. Errors: nothing of this call
    /// counts as durable.
    fn checkpoint(&self) -> Result<u64, Error>;

    /// Returns the next block that only an earlier session claims, and its digest. `None` after every claim is
    /// settled.
    fn next_claim(&self) -> Option<(u64, BlockDigest)>;

    /// Settles a claim. With `Some`, the block is present and has this `digest`. With `None`, its bytes are wrong, and
    /// the block is missing again. Without such a claim, nothing changes.
    fn settle_claim(&self, index: u64, digest: Option<BlockDigest>);

    /// Keeps the digest of every block from now on, so that blocks can be forgotten. Called before the first block is
    /// recorded.
    fn keep_digests(&self);

    /// Removes blocks from those that are present, durably: no later session finds them. Range: digests are kept, and
    /// no lane writes any of these blocks.
    ///
    /// A crash meanwhile may lose more blocks, and never restores a forgotten one. Errors: as
    /// [`SinkFile::checkpoint`].
    fn forget(&self, blocks: &RangeSet) -> Result<(), Error>;

    /// Compares the whole file with every digest of `expected`. Changes nothing.
    ///
    /// Errors: `Corrupt` with `Retry::OtherReplica` if a digest differs; others as [`SinkFile::publish`].
    fn verify(&self, expected: &[Digest]) -> Result<(), Error>;

    /// Compares a file that has grown with the BLAKE3 of its ended source.
    ///
    /// Errors: `Changed` with `Retry::After` if it differs; the data is then deleted.
    fn check_final_digest(&self, blake3: [u8; 32]) -> Result<(), Error>;

    /// Verifies the whole file, makes it durable and gives it its final name. Returns the requested digests.
    ///
    /// Errors: `Corrupt` with `Retry::OtherReplica` if a digest of `expected` differs; the data is then deleted.
    /// `Exists` if the name was taken meanwhile and must not be replaced. `Internal` if blocks are missing or claims
    /// are not settled. After other errors the blocks stay for the next session.
    fn publish(&self, expected: &[Digest]) -> Result<FileDigests, Error>;

    /// Deletes the received data of a file that will not be resumed.
    ///
    /// Errors: of the storage; the next session finds and deletes any rest.
    fn discard(&self) -> Result<(), Error>;

    /// Ends the work on the file, because its session ends and the process may end before the file is dropped. Makes
    /// all recorded blocks durable, and deletes the data of a file without any.
    ///
    /// A running [`SinkFile::publish`] goes on; later calls of it fail. Best effort: after an error, the blocks that
    /// are not durable are sent again.
    fn end(&self);
}
