//! Sinks of a session: what a receiver needs of the place that its files go to.
//!
//! A [`SinkFile`] is one file that accepts blocks. Lanes write ranges, the receiver records verified blocks, and
//! [`SinkFile::publish`] gives the complete file its name. Refuses to know sessions, lanes and hashing: a sink calls
//! nobody, and the receiver compares digests before it records a block.
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

use sterna_proto::{BlockDigest, BlockMap, Digest, Error, FileDigests, FileEntry, RangeSet, RelPath};

/// File that accepts blocks in any order. The threads of all lanes share it.
///
/// No other session can prepare the same file while this value exists. Dropping it keeps the checkpointed blocks for
/// the next session. After an error of [`SinkFile::checkpoint`] the file must be dropped and prepared again.
///
/// Cost: one virtual call per write of some 64 KiB; no call allocates or copies file data.
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
    fn check_seal(&self, blake3: [u8; 32]) -> Result<(), Error>;

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
}
