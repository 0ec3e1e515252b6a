//! Workers: who runs transfers, and what the service and a worker send each other.
//!
//! A worker gets tasks, reports their progress in batches and their end once. Refuses to retry: the service decides.

use std::sync::Arc;

use sterna_proto::Error;
use sterna_sched::queue::FileNumber;
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::job::Moved;
use crate::listing::Batch;

mod agents;
mod embedded;
mod messages;

pub use agents::{Agents, Assignment, Connection, NoLister, Unpaired, agent_of, worker_name};
pub use embedded::Embedded;
pub use messages::{
    End, FromAgent, Hello, Key, LEASE, MESSAGE_BYTES_MAX, Order, Other, PATH, PING_EVERY, RUNNING_MAX, SILENCE_MAX,
    SentVisit, ToAgent, Visited, decode, encode, from_base64, to_base64,
};

/// Report of a worker.
#[derive(Debug)]
pub enum Report {
    /// An agent has connected.
    Connected(Box<Connection>),
    /// The connection of an agent has ended.
    Disconnected(Uuid),
    /// Bytes of transfers under way.
    Progress(Vec<(Key, u64)>),
    /// A transfer has ended.
    Ended {
        /// Start of the transfer.
        key: Key,
        /// Bytes and limits.
        moved: Moved,
        /// Failure, if it failed.
        failure: Option<Error>,
    },
    /// Batch of a listing.
    Listing {
        /// Listing.
        id: Uuid,
        /// Batch.
        batch: Batch,
    },
    /// An agent has visited a peer that it monitors.
    Visited(Box<Visited>),
    /// A copy between hops was deleted, or not.
    Deleted {
        /// File that had written it.
        file: FileNumber,
        /// Failure, if it failed.
        failure: Option<Error>,
    },
}

/// Reports of the worker of this process, with its name.
pub type Reports = mpsc::UnboundedSender<(Arc<str>, Report)>;

/// Reports of agents, each with the name of its worker. An agent that sends many waits.
pub type AgentReports = mpsc::Sender<(Arc<str>, Report)>;
