//! perfSONAR nodes: tests by the REST interface of pScheduler, and the archives that keep results.
//!
//! [`Node`] gives a task to a node, follows its first run, and returns the result. [`read_archive`] reads results from
//! OpenSearch (perfSONAR 5) or esmond (perfSONAR 4). Both are JSON over HTTPS, one request at a time. Every request has
//! a time and a maximum of bytes. Refuses to interpret results: `sterna_doctor::perfsonar` does.

mod archive;
mod exchange;
mod task;
#[cfg(test)]
mod tests;
mod tls;

use std::path::PathBuf;
use std::time::Duration;

pub use self::archive::{ArchiveKind, ArchiveQuery, ArchiveReply, EsmondSeries, read_archive};
pub use self::task::{Node, RunOutcome, RunProgress, RunState};
use crate::identity::Fingerprint;

/// Maximum bytes of a reply. Reason: the run of a test of 60 s with 64 streams has 10 MB, because pScheduler keeps the
/// output of the tool and three forms of the result.
pub const REPLY_BYTES_MAX: u64 = 32 << 20;

/// Proof that a server is the one that is meant. A URL without TLS (`http://`) needs none.
#[derive(Clone, Debug, Default)]
pub struct NodeTrust {
    /// File with certificates of authorities, beside those of this host.
    pub authority: Option<PathBuf>,
    /// Keys that are accepted, and then no other key and no authority. Empty: authorities decide. Reason: most nodes
    /// sign their own certificate.
    pub keys: Vec<Fingerprint>,
}

/// Times of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeTimes {
    /// Time limit of one request.
    pub request: Duration,
    /// Pause between two looks at a run.
    pub pause: Duration,
    /// Time for the requests after a cancellation: the last reply, and the removal of the task.
    pub after_cancel: Duration,
}

impl Default for NodeTimes {
    fn default() -> Self {
        Self {
            // A lead asks every other participant for 10 s at most before it accepts a task.
            request: Duration::from_secs(60),
            // Runs begin at whole seconds.
            pause: Duration::from_secs(1),
            // A user waits some seconds for the end of a command.
            after_cancel: Duration::from_secs(5),
        }
    }
}
