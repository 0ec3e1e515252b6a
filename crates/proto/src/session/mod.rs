//! The two ends of a session: which blocks go, which have come, and what each end tells the other.
//!
//! A session is a pool of blocks and a set of lanes; each lane takes the next block whenever it can send. The receiver
//! owns the truth about what is missing and says so; the sender starts with everything, in order, and takes corrections.
//! Nothing here reads a clock, a file or a socket: the driver brings time, entries, frames and outcomes, and carries out
//! what the machines ask for.

mod hello;
mod log;
mod message;
mod receive;
mod replicas;
mod runs;
mod send;
mod third_party;

pub use hello::{Hello, PATHS_MAX, PathNumber};
pub use log::{ControlLog, LOG_BYTES_MAX};
pub use message::{
    BlockData, BlockHeader, Frame, Message, Overwrite, PACK_BYTES_MAX, PACK_FILES_MAX, PROTOCOL_VERSION, Request,
    SOURCES_MAX,
};
pub use receive::{BlockClaim, PrepareOutcome, RecvEvent, RecvSession, corrupt_block};
pub use replicas::{
    Arrival, BlockUse, CONTROL, CopyId, REPLICAS_MAX, ReplicaAccount, ReplicaEvent, ReplicaId, ReplicaPlan,
    ReplicaSession,
};
pub use runs::BlockOrder;
pub use send::{BlockTask, FileOutcome, SendEvent, SendSession};
pub use third_party::{
    ActiveEnd, Conclusion, IpBytes, KEYS_MAX, LaneFigures, PassiveAgent, PeerAddress, SETTLED_TOLD_MAX, Snapshot,
    Subject, ThirdParty, Told, WatchEvent, WatchSession, WatchSide,
};

use std::time::Duration;

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

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::send::FAREWELL_TIME_MAX;
    use super::*;
    use crate::error::{Error, ErrorKind, Phase, Scope};

    /// A file of two blocks.
    fn large(name: &[u8]) -> crate::FileEntry {
        let mtime = crate::FileTime { seconds: 1, nanoseconds: 0 };
        let (path, kind, size) = (RelPath::new(name).unwrap(), crate::EntryKind::File, 2 << 20);
        let (mode, allocated, inode, version) = (0o644, size, 1, 1);
        crate::FileEntry { path, kind, size, mtime, mode, allocated, inode, version, growth: None }
    }

    #[test]
    fn a_file_that_has_to_wait_is_left_out_until_it_is_wanted() {
        let mut sender = SendSession::new(LINGER_DEFAULT);
        let (held, other) = (sender.add_file(large(b"held")), sender.add_file(large(b"other")));
        let lane = LaneId(0);
        sender.handle_lane_up(lane);
        let next = |sender: &mut SendSession| match sender.next_block(lane) {
            Some(BlockTask::Single { file, index, .. }) => Some((file, index)),
            Some(_) => panic!("no file is small"),
            None => None,
        };
        assert_eq!(next(&mut sender), Some((held, 0)));
        sender.handle_messages(0, &Message::Wait { file: held }.encode()).unwrap();
        assert_eq!(next(&mut sender), Some((other, 0)));
        // What its lane loses waits with the rest.
        sender.handle_lane_down(lane, Instant::now());
        sender.handle_lane_up(lane);
        assert_eq!(
            [next(&mut sender), next(&mut sender), next(&mut sender)],
            [Some((other, 0)), Some((other, 1)), None]
        );
        let again = sender.sent_again_blocks();
        let have = Message::Have { file: held, blocks: vec![(0, 1)] }.encode();
        let want = Message::Want { file: held, blocks: vec![(1, 2)] }.encode();
        sender.handle_messages(1, &[have, want].concat()).unwrap();
        assert_eq!([next(&mut sender), next(&mut sender)], [Some((held, 1)), None]);
        assert_eq!((sender.held_bytes(), sender.sent_again_blocks()), (1 << 20, again), "it was never sent");
    }

    #[test]
    fn what_arrived_by_a_lane_that_died_is_not_from_an_earlier_run() {
        let mut sender = SendSession::new(LINGER_DEFAULT);
        let file = sender.add_file(large(b"file"));
        for lane in [LaneId(0), LaneId(1)] {
            sender.handle_lane_up(lane);
        }
        assert!(sender.next_block(LaneId(0)).is_some());
        sender.handle_lane_down(LaneId(0), Instant::now());
        let have = Message::Have { file, blocks: vec![(0, 1)] }.encode();
        sender.handle_messages(0, &have).unwrap();
        assert_eq!((sender.held_bytes(), sender.confirmed_bytes()), (0, 1 << 20));
        let (before, rest) = (Message::Have { file, blocks: vec![(1, 2)] }.encode(), sender.held_bytes());
        sender.handle_messages(1, &before).unwrap();
        assert_eq!(sender.held_bytes() - rest, 1 << 20, "no lane had taken the second");
    }

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
