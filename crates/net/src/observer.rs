//! Events of a session, and their receiver.

use sterna_proto::session::FileOutcome;
use sterna_proto::{Error, FileEntry};

/// Events that a session reports to its owner, in order.
#[derive(Debug)]
pub enum SessionEvent {
    /// A file has its outcome.
    Settled {
        /// File entry.
        entry: FileEntry,
        /// Outcome of the file.
        outcome: FileOutcome,
    },
    /// Message for the user.
    Notice(String),
    /// Decision with its reason.
    Decision {
        /// Subject of the decision: `compression`.
        subject: &'static str,
        /// Reason as one sentence.
        rationale: String,
    },
    /// Part of the sources cannot be read.
    Unreadable(Error),
    /// A source has arrived, but cannot be deleted or moved as requested.
    Left(Error),
    /// The session ended early.
    Aborted(Error),
}

/// Receives the events of a session. Lane threads call it, so it must not block for long.
pub trait Observer: Send + Sync {
    /// Handles one event.
    fn session_event(&self, event: SessionEvent);
}
