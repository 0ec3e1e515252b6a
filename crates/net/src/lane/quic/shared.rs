//! State that the two halves and the handle of a QUIC lane share.

use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use noq::{Connection, ConnectionError, SendStream, VarInt};
use sterna_proto::{ByteCount, Error};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, watch};

use super::close::CODE_ORDERLY;
use super::fault;
use super::pace::Pace;
use crate::thread_clock::ThreadClock;

/// State that the parts of a lane share. Dropping the last reference closes the lane.
pub(super) struct Shared {
    pub(super) connection: Connection,
    pub(super) control: ControlStream,
    pub(super) pace: Arc<Pace>,
    pub(super) peer_addr: SocketAddr,
    pub(super) local_addr: SocketAddr,
    pub(super) runtime: Handle,
    /// Reason why this end closes the lane, once it does.
    pub(super) closing: OnceLock<Box<str>>,
    pub(super) header_bytes: u64,
    /// Clock of the thread that runs the engine.
    pub(super) engine: Option<ThreadClock>,
    pub(super) memory: ByteCount,
    /// Receive window in bytes; 0 until the path is known.
    pub(super) receive_window: Arc<AtomicU64>,
    /// True once the peer may send as much as the lane accepts.
    pub(super) admitted: watch::Sender<bool>,
}

impl Shared {
    /// Closes the connection, unless it has ended: the engine would replace the reason of the peer by this close.
    pub(super) fn close(&self, code: VarInt, reason: &[u8]) {
        if self.connection.close_reason().is_none() {
            self.connection.close(code, reason);
        }
    }

    /// Returns the error of a lane that ended for `reason`.
    pub(super) fn lane_error(&self, reason: &ConnectionError) -> Error {
        fault::lane_error(reason, self.peer_addr, self.closing.get().map(|why| &**why))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.close(CODE_ORDERLY, b"lane dropped");
    }
}

/// Control stream, shared with the task that closes the lane.
pub(super) type ControlStream = Arc<Mutex<SendStream>>;
