//! Sources of a session: what a sender needs of the place that its files come from.
//!
//! A [`Source`] lists its files into [`Offers`], which the sender implements. Each file is an [`OfferedFile`]; a lane
//! opens it and reads ranges with a [`FileReader`]. When the receiver has the file, [`OfferedFile::settle`] deletes or
//! moves it. Refuses to know sessions, lanes and blocks: a source calls its sender only through [`Offers`].
//!
//! Implementations: [`Roots`] (files of this host, all blocks or on demand), [`FollowSession`] (growing files, and
//! directories in which files appear), [`crate::web::Web`], and [`Generated`] (data of a probe). Every implementation
//! with files runs the promises in `tests`.
//!
//! Cost: a reader is one allocation and one virtual call per block, and one virtual call per read.

mod disposition;
mod file;
mod final_digest;
mod follow;
mod generated;
mod held;
mod names;
mod place;
mod roots;
#[cfg(test)]
mod tests;

pub use disposition::SourceDisposition;
pub use file::DiskFile;
pub use follow::{Follow, FollowRules, FollowSession};
pub use generated::Generated;
pub(crate) use names::{PathHash, first_name, hash_of};
pub use place::SourcePlace;
pub use roots::Roots;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sterna_proto::limit::WebSample;
use sterna_proto::session::{BlockOrder, FileId, FileOutcome, LaneId};
use sterna_proto::{Error, FileEntry};

use crate::wake::Wake;

/// Place from which the files of a session come.
pub trait Source: Send + Sync {
    /// Lists every file into `offers`. Returns when all files are listed, or as soon as [`Offers::is_closed`]. A source
    /// without an end returns only then.
    ///
    /// No two offers have the same path; the second is reported with [`Offers::unreadable`]. A file for which
    /// [`Offers::has_settled`] is true is not offered.
    ///
    /// Errors: each goes to [`Offers::unreadable`], and the listing continues. [`Offers::fail`] ends the session.
    fn list(self: Arc<Self>, offers: &Arc<dyn Offers>);

    /// Returns the largest number of lanes that read at once; `None` for no limit.
    fn lanes_max(&self) -> Option<u32> {
        None
    }

    /// Returns true if `lane` may read.
    fn takes_blocks(&self, _lane: LaneId) -> bool {
        true
    }

    /// Returns true if reads out of order are expensive, so that no samples are read.
    fn is_sequential(&self) -> bool {
        false
    }

    /// Handles a change of a lane: releases what it holds, and ends the reads that nobody waits for.
    fn handle_lane(&self, _lane: LaneId, _change: LaneChange) {}

    /// Handles the outcome of a file that this source has offered.
    fn handle_settled(&self, _file: FileId, _outcome: &FileOutcome) {}

    /// Ends every read and every wait, because the session is over. They fail with `Cancelled`.
    fn stop(&self) {}

    /// Returns the measurements of the network connections to the source; `None` if it has none.
    fn measured(&self) -> Option<WebSample> {
        None
    }

    /// Returns the round trip to the source; `None` if there is no network between.
    fn round_trip(&self) -> Option<Duration> {
        None
    }
}

/// Change of a lane that a source can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneChange {
    /// The lane has nothing to read now.
    Idle,
    /// The lane is down, and its thread may still read.
    Down,
    /// The thread of the lane has ended.
    Ended,
}

/// File of a source, from its offer to its outcome. Displays as its name at the source.
pub trait OfferedFile: Send + Sync + fmt::Display {
    /// Opens the file for reads of `lane`; `None`: the reads belong to no lane.
    ///
    /// Errors: the file does not exist, or cannot be read.
    fn open(&self, lane: Option<LaneId>, extent: Extent) -> Result<Box<dyn FileReader>, Error>;

    /// Deletes or moves the file, whose bytes of version `entry` are durable at the receiver.
    ///
    /// Errors: the file remains; the error gives the reason. It has changed, or the source does not support it.
    fn settle(&self, disposition: &SourceDisposition, entry: &FileEntry) -> Result<(), Error>;
}

/// Part of a file that will be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The whole file, once.
    Whole,
    /// Some blocks.
    Run {
        /// Offset up to which the lane will most likely read without a gap.
        until: u64,
        /// True if the receiver lacks the first block of the file.
        is_start_wanted: bool,
    },
}

/// File that is open for reading.
pub trait FileReader {
    /// Fills `buffer` with the bytes at `offset`.
    ///
    /// Errors: `Changed` if the file is known to be another version; no byte is invented. `Cancelled` if the lane is
    /// down or the session is over.
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), Error>;

    /// Returns true if the range is a hole, whose zeros need not be read. Errors: `Changed`.
    fn is_hole(&self, _offset: u64, _length: u64) -> Result<bool, Error> {
        Ok(false)
    }

    /// Checks that the file is still the listed one. Called after the last read: the bytes that were read are then of
    /// the listed version. Errors: `Changed`.
    fn check_unchanged(&self, entry: &FileEntry) -> Result<(), Error>;

    /// Checks the file after the read of one of several blocks, which may be hours apart. Errors: `Changed`.
    fn check_block(&self, entry: &FileEntry) -> Result<(), Error> {
        self.check_unchanged(entry)
    }

    /// Checks the file after its `bytes` were read as a whole. Errors: `Changed`.
    fn check_whole(&self, entry: &FileEntry, _bytes: &[u8]) -> Result<(), Error> {
        self.check_unchanged(entry)
    }
}

/// Receiver of the files of a source: the manifest of a session.
///
/// [`Offers::try_offer`] and the calls on offered files never wait and pass no event on. A source may make them under
/// a lock that [`Source::handle_settled`] takes too. [`Offers::deliver`] passes the events on, without such a lock.
pub trait Offers: Send + Sync {
    /// Offers a file. Waits until the manifest has room, or the session is over. Then the returned number is not used.
    fn offer(&self, entry: FileEntry, order: BlockOrder, file: Arc<dyn OfferedFile>) -> FileId;

    /// Offers a file if the manifest has room now.
    fn try_offer(&self, entry: FileEntry, file: Arc<dyn OfferedFile>) -> Option<FileId>;

    /// Returns true if the manifest has room now.
    fn has_room(&self) -> bool;

    /// Reports part of the source that cannot be sent. Waits like [`Offers::offer`].
    fn unreadable(&self, error: Error);

    /// Sends a notice to the user.
    fn notice(&self, text: String);

    /// Returns true if an earlier session of the same copy has settled the file. It is then not offered.
    fn has_settled(&self, entry: &FileEntry) -> bool;

    /// Returns true if no block will be read.
    fn is_dry_run(&self) -> bool;

    /// Returns true if no offer is needed any more: the session is over.
    fn is_closed(&self) -> bool;

    /// Returns the event count that is notified after each change of the session.
    fn wake(&self) -> &Wake;

    /// Updates a growing file to `entry`.
    fn grow(&self, file: FileId, entry: FileEntry);

    /// Reports that the writer of a growing file pauses at `size` bytes.
    fn set_tail(&self, file: FileId, size: u64);

    /// Sets the final digest of a growing file: its BLAKE3, read as a whole.
    fn final_digest(&self, file: FileId, blake3: [u8; 32]);

    /// Withdraws a file that cannot be sent after all.
    fn withdraw(&self, file: FileId, error: Error);

    /// Returns true if the receiver has confirmed every block of a file, or wants no more of it.
    fn has_arrived(&self, file: FileId) -> bool;

    /// Returns true if a file has no outcome yet.
    fn is_unsettled(&self, file: FileId) -> bool;

    /// Passes on the events that earlier calls have caused.
    fn deliver(&self);

    /// Ends the session: the source cannot be read at all.
    fn fail(&self, error: Error);
}
