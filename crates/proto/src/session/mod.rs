//! State machines of the two ends of a session: blocks to send, blocks received, and messages between the ends.
//!
//! A session is a pool of blocks and a set of lanes; each lane takes the next block whenever it can send. The receiver
//! alone decides what is missing, and reports it. The sender starts with everything, in order, and applies these
//! corrections.
//!
//! Reads no clock, file or socket. The driver passes in time, entries, frames and outcomes, and carries out the actions
//! that the state machines request.

mod grant;
mod hello;
mod life;
mod log;
mod message;
mod notices;
mod probe;
mod query;
mod receive;
mod replicas;
mod request;
mod runs;
mod send;
mod third_party;
mod values;

pub use grant::{Grant, GrantedAccess, SignedGrant};
pub use hello::{Agreed, Capabilities, Features, Hello, PATHS_MAX, PathNumber};
pub use log::{ControlLog, LOG_BYTES_MAX};
pub use message::{BlockData, BlockHeader, Frame, Message, PACK_BYTES_MAX, PACK_FILES_MAX};
pub use probe::{PROBE_BYTES_MAX, PROBE_BYTES_MIN, Probe};
pub use query::{
    Answer, Attributes, DeleteDirectories, Details, DigestQuery, FILTER_NAMES_MAX, Filter, ListOptions, Listed,
    ListedKind, Owner, Query, Symlinks, XATTRS_BYTES_MAX, XATTRS_MAX, Xattr,
};
pub use receive::{BlockClaim, PrepareOutcome, RecvEvent, RecvSession, corrupt_block};
pub use replicas::{
    Arrival, BlockUse, CONTROL, CopyId, REPLICAS_MAX, ReplicaAccount, ReplicaEvent, ReplicaId, ReplicaPlan,
    ReplicaSession,
};
pub use request::{Request, Target, number_of_name};
pub use runs::BlockOrder;
pub use send::{BlockTask, SendEvent, SendSession};
pub use third_party::{
    ActiveEnd, AgentReport, Conclusion, ControlEvent, ControlSession, ControlSide, IpBytes, KEYS_MAX, LaneFigures,
    PassiveAgent, PeerAddress, SETTLED_REPORTED_MAX, Snapshot, Subject, ThirdParty,
};
pub use values::{Overwrite, SOURCES_MAX};

use std::time::Duration;

use crate::digest::FileDigests;
use crate::error::Error;
use crate::file::RelPath;

/// File of a session, numbered by the sender from 0 in the order of the manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// Lane of a session. Each end numbers lanes independently; a number is never reused within a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub u32);

/// Session, identified by 128 random bits of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId(pub [u8; 16]);

/// Outcome of a file.
#[derive(Clone, Debug)]
pub enum FileOutcome {
    /// The file is verified, durable and in place.
    Done(FileDigests),
    /// The destination was up to date.
    Skipped,
    /// The file failed.
    Failed(Error),
}

/// Large file in transfer, for a progress display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveFile {
    /// File path beneath the destination.
    pub path: RelPath,
    /// Size in bytes.
    pub size: u64,
    /// Bytes that the receiver has, as recorded at this end.
    pub done: u64,
}

/// Maximum number of files that are offered and not yet settled. Reason: bounds the memory of both ends. At 100 KB
/// a file this covers 6.5 GB, which is above the bandwidth-delay product of any path that Sterna is for.
pub const UNSETTLED_FILES_MAX: usize = 65_536;

/// Maximum bytes of file paths of files that are offered and not yet settled. Reason: bounds memory where file paths
/// are long.
pub const UNSETTLED_PATH_BYTES_MAX: usize = 32 << 20;

/// Default linger time of a session. Reason: outages of some minutes are normal at a ground station; after longer
/// outages a user wants to be notified.
pub const LINGER_DEFAULT: Duration = Duration::from_secs(600);

/// Maximum number of failed checks of one block before its file fails. Reason: random corruption does not affect one
/// block this often; a broken disk or a malicious peer does.
pub const BLOCK_FAILURES_MAX: u32 = 5;

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::life::{Ending, FAREWELL_TIME_MAX, Life};
    use super::*;
    use crate::error::{ErrorKind, Phase, Scope};

    /// Returns a file of two blocks.
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
        // Blocks that the lane loses wait with the rest of the file.
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

    /// Returns a receiver whose files have all settled and whose directories are finished.
    fn complete_receiver(leaves_first: bool) -> RecvSession {
        let mut receiver = RecvSession::new(LINGER_DEFAULT);
        if leaves_first {
            receiver.leave_first();
        }
        receiver.handle_lane_up(LaneId(0));
        receiver.handle_messages(0, &Message::OffersEnd { files: 0, bytes: 0 }.encode()).unwrap();
        receiver.handle_finished();
        receiver
    }

    fn complete_sender() -> SendSession {
        let mut sender = SendSession::new(LINGER_DEFAULT);
        sender.handle_lane_up(LaneId(0));
        sender.end_files();
        sender.handle_messages(0, &Message::Finished.encode()).unwrap();
        sender
    }

    #[test]
    fn every_edge_of_the_life_is_taken_by_a_real_end() {
        let stopped = || Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Transfer, "stopped");
        let (start, farewell) = (Instant::now(), FAREWELL_TIME_MAX);
        let (complete, aborted) = (Ending::Complete, Ending::Aborted);

        let mut sender = complete_sender();
        assert_eq!(sender.core.life(), Life::Leaving(complete));
        sender.abort(stopped());
        sender.handle_messages(1, &Message::Abort { error: stopped() }.encode()).unwrap();
        assert_eq!(sender.core.life(), Life::Leaving(complete), "the first ending counts");
        [start, start + farewell].into_iter().for_each(|now| sender.handle_timeout(now));
        assert_eq!(sender.core.life(), Life::Left(complete));
        assert!(sender.is_complete() && sender.poll_event().is_none());

        let mut receiver = complete_receiver(false);
        assert_eq!(receiver.core.life(), Life::Waiting(complete));
        receiver.handle_messages(1, &Message::Bye.encode()).unwrap();
        assert_eq!(receiver.core.life(), Life::Left(complete));
        let mut receiver = complete_receiver(false);
        receiver.abort(stopped());
        assert_eq!(receiver.core.life(), Life::Leaving(complete));
        assert_eq!(complete_receiver(true).core.life(), Life::Leaving(complete));

        let mut receiver = RecvSession::new(LINGER_DEFAULT);
        receiver.handle_lane_up(LaneId(0));
        receiver.abort(stopped());
        assert_eq!(receiver.core.life(), Life::Leaving(aborted));
        while receiver.poll_frame(LaneId(0), start).is_some() {}
        receiver.handle_lane_down(LaneId(0), start);
        assert_eq!(receiver.core.life(), Life::Left(aborted), "its last message was on a lane");

        let agent = || ControlSession::new(ControlSide::Agent, LINGER_DEFAULT);
        let (mut kept, mut dropped) = (agent(), agent());
        kept.fail(stopped());
        dropped.fail(stopped());
        assert_eq!(kept.core.life(), Life::Waiting(aborted));
        [start, start + LINGER_DEFAULT].into_iter().for_each(|now| kept.handle_timeout(now));
        assert_eq!(kept.core.life(), Life::Left(aborted));
        dropped.abort(stopped());
        assert_eq!(dropped.core.life(), Life::Leaving(aborted));
    }

    #[test]
    fn an_end_whose_last_words_no_lane_takes_leaves_all_the_same() {
        let stopped = || Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Transfer, "stopped");
        let (mut sender, mut receiver) = (SendSession::new(LINGER_DEFAULT), RecvSession::new(LINGER_DEFAULT));
        // The lane is up, but its feeder is blocked in the transport and requests no frame.
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
