//! Connection of a TCP lane after its handshake: the socket, both addresses, and the source of later keys.
//!
//! Both halves of a lane use it at the same time. Refuses to read, write or end a lane: `reader`, `writer` and `shared`
//! do.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use sterna_proto::Error;

use super::handshake::Secrets;
use super::record::RecordKey;

/// Connection whose handshake is done.
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) local_addr: SocketAddr,
    pub(super) peer_addr: SocketAddr,
    secrets: Mutex<Secrets>,
    /// True if the peer requested that this end replaces its key.
    key_update_owed: AtomicBool,
}

impl Connection {
    /// Creates the connection of `stream` with its local address and that of the peer.
    pub(super) fn new(stream: TcpStream, addresses: (SocketAddr, SocketAddr), secrets: Secrets) -> Self {
        let (local_addr, peer_addr) = addresses;
        Self { stream, local_addr, peer_addr, secrets: Mutex::new(secrets), key_update_owed: AtomicBool::new(false) }
    }

    /// Returns the next key for sent records.
    pub(super) fn next_tx_key(&self) -> Result<RecordKey, Error> {
        self.key_update_owed.store(false, Ordering::Relaxed);
        self.secrets.lock().next_tx()
    }

    /// Returns the next key for received records. With `requested`, the sending half replaces its key before it
    /// sends more data.
    pub(super) fn next_rx_key(&self, requested: bool) -> Result<RecordKey, Error> {
        if requested {
            self.key_update_owed.store(true, Ordering::Relaxed);
        }
        self.secrets.lock().next_rx()
    }

    /// Returns true if the peer waits for a key update of this end.
    pub(super) fn owes_key_update(&self) -> bool {
        self.key_update_owed.load(Ordering::Relaxed)
    }
}
