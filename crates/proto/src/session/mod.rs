//! The two ends of a session: which blocks go, which have come, and what each end tells the other.
//!
//! A session is a pool of blocks and a set of lanes; each lane takes the next block whenever it can send. The receiver
//! owns the truth about what is missing and says so; the sender starts with everything, in order, and takes corrections.
//! Nothing here reads a clock, a file or a socket: the driver brings time, entries, frames and outcomes, and carries out
//! what the machines ask for.

mod log;
mod message;
mod receive;
mod send;

pub use log::{ControlLog, LOG_BYTES_MAX};
pub use message::{
    BlockHeader, Frame, Hello, Message, Overwrite, PACK_BYTES_MAX, PACK_FILES_MAX, PROTOCOL_VERSION, Request,
    SOURCES_MAX,
};
pub use receive::{BlockClaim, PrepareOutcome, RecvEvent, RecvSession, corrupt_block};
pub use send::{BlockTask, FileOutcome, SendEvent, SendSession};

use std::time::Duration;

use crate::error::Error;
use crate::file::RelPath;

/// A file of a session, numbered by the sender from 0 in the order of the manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// A lane of a session, numbered by each end for itself; never used again within a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub u32);

/// A session, named by the client with 128 random bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId(pub [u8; 16]);

/// A large file under way, for a progress display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveFile {
    /// Its path beneath the destination.
    pub path: RelPath,
    /// Its size in bytes.
    pub size: u64,
    /// Bytes of it at the receiver, as far as this end knows.
    pub done: u64,
}

/// Most files that may be offered and not yet settled. Reason: at 100 KB a file this covers 6.5 GB, above the
/// bandwidth-delay product of any path that Sterna is for, and bounds the memory of both ends.
pub const UNSETTLED_FILES_MAX: usize = 65_536;

/// Most bytes of paths in files offered and not yet settled. Reason: bounds memory where paths are long.
pub const UNSETTLED_PATH_BYTES_MAX: usize = 32 << 20;

/// How long a session outlives its last lane unless told otherwise. Reason: a ground station's outage of some minutes
/// is normal; past that a person wants to know.
pub const LINGER_DEFAULT: Duration = Duration::from_secs(600);

/// How often one block may fail its check before its file is given up. Reason: chance corruption does not strike one
/// block this often; a broken disk or a liar does.
pub const BLOCK_FAILURES_MAX: u32 = 5;

/// The same failure with its causes as words, for the peer.
fn copied(error: &Error) -> Error {
    Error::new(error.kind, error.scope, error.phase, error.chain()).retry(error.retry)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::send::FAREWELL_TIME_MAX;
    use super::*;
    use crate::error::{ErrorKind, Phase, Scope};

    #[test]
    fn an_end_whose_last_words_no_lane_takes_leaves_all_the_same() {
        let stopped = || Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Transfer, "stopped");
        let (mut sender, mut receiver) = (SendSession::new(LINGER_DEFAULT), RecvSession::new(LINGER_DEFAULT));
        // The lane is up and its feeder is stuck in the transport: it asks for no frame.
        sender.handle_lane_up(LaneId(0));
        receiver.handle_lane_up(LaneId(0));
        sender.abort(stopped());
        receiver.abort(stopped());
        let start = Instant::now();
        for (time, over) in [(Duration::ZERO, false), (FAREWELL_TIME_MAX / 2, false), (FAREWELL_TIME_MAX, true)] {
            sender.handle_timeout(start + time);
            receiver.handle_timeout(start + time);
            assert_eq!((sender.is_over(), receiver.is_over()), (over, over), "{time:?}");
        }
    }
}
