//! State of one followed file.

use std::time::{Duration, Instant};

use sterna_proto::follow::{Followed, Look};
use sterna_proto::session::FileId;
use sterna_proto::{Error, ErrorKind, FileEntry, RelPath};

use super::super::hash_of;

/// First pause before a failed file of a spool is tried again; doubled up to [`AGAIN_AFTER_MAX`]. Guess: a full disk
/// does not become free faster.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Longest pause before the next attempt. Reason: a repair takes effect within this time, and there are few notices
/// until then.
const AGAIN_AFTER_MAX: Duration = Duration::from_secs(3600);

/// Pause before the next attempt for a file of a spool that changed during its transfer. Guess: its writer may still
/// be active.
const CHANGED_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// File that is followed or in transfer.
pub(super) struct Active {
    pub(super) target: RelPath,
    pub(super) followed: Followed,
    pub(super) sent: Sent,
    /// True for a file that the user named; false for a file of a spool.
    pub(super) is_named: bool,
    pub(super) not_before: Instant,
    /// Number of failed attempts.
    pub(super) failures: u32,
}

impl Active {
    /// Counts a failed attempt and returns the pause before the next one.
    pub(super) fn pause_after(&mut self, error: &Error) -> Duration {
        if error.kind == ErrorKind::Changed {
            return CHANGED_AGAIN_AFTER;
        }
        self.failures += 1;
        AGAIN_AFTER_MAX.min(AGAIN_AFTER * 2u32.saturating_pow(self.failures - 1))
    }
}

/// State of a file in the session.
pub(super) enum Sent {
    Nothing,
    /// The file was offered while it grows.
    Growing(FileId, FileEntry),
    /// The file was offered as ended, or its end was reported, in this version. Its outcome is pending.
    Whole(FileId, u64),
}

/// Returns the version of a file, which changes with the file.
pub(super) fn version_of(active: &Active) -> u64 {
    version(active.followed.look())
}

/// Returns the version of a file that was sent, from its entry.
pub(super) fn version_of_entry(entry: &FileEntry) -> u64 {
    version(Look { size: entry.size, mtime: entry.mtime, inode: entry.inode })
}

fn version(look: Look) -> u64 {
    let parts = [look.size, look.mtime.seconds as u64, look.mtime.nanoseconds.into(), look.inode];
    let hash = hash_of(&parts.map(u64::to_le_bytes).concat());
    u64::from_le_bytes(std::array::from_fn(|index| hash[index]))
}
