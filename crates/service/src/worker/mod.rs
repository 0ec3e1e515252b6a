//! Workers: who runs transfers, and what the service and a worker send each other.
//!
//! A worker gets tasks, reports their progress in batches and their end once. Refuses to retry: the service decides.

use std::sync::Arc;

use sterna_proto::Error;
use sterna_sched::queue::FileNumber;
use tokio::sync::mpsc;

use crate::job::Moved;

mod embedded;

pub use embedded::Embedded;

/// Report of a worker.
#[derive(Clone, Debug)]
pub enum Report {
    /// Bytes of transfers under way.
    Progress(Vec<(FileNumber, u64)>),
    /// A transfer has ended.
    Ended {
        /// Number of the file.
        file: FileNumber,
        /// Bytes and limits.
        moved: Moved,
        /// Failure, if it failed.
        failure: Option<Error>,
    },
}

/// Reports of all workers, each with the name of its worker.
pub type Reports = mpsc::UnboundedSender<(Arc<str>, Report)>;
