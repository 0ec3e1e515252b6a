//! Settings of a TCP lane.

use std::net::SocketAddr;
use std::time::Duration;

use sterna_proto::BitRate;

/// Time limit for the connect and the handshake together. Reason: three round trips of 800 ms take 2.4 s. A SYN and
/// two flights that are each lost twice add 3 s and 2 × 5 s. The limit is twice that sum.
pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(30);

/// Time without any acknowledgement after which a path is dead. Reason: the kernel doubles its timeout from about
/// 1 s. After an outage of 10 s at 660 ms of round trip it retries at 15 s; the limit is twice that. The limit also
/// applies to the time without a message from the peer's process. Beyond it, the peer counts as stuck; a live peer
/// sends one every 2 s.
pub const DEAD_AFTER: Duration = Duration::from_secs(30);

/// Settings of a TCP lane that have a default.
#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// Congestion control by its name in the kernel; `None` keeps the system default.
    pub congestion: Option<String>,
    /// Cap on the wire rate, from the first byte after the handshake.
    pub rate: Option<BitRate>,
    /// Time limit for the connect and the handshake together.
    pub handshake_time_max: Duration,
    /// Time without any acknowledgement after which the path is dead.
    pub dead_after: Duration,
    /// Most records that one key encrypts, if the cipher allows more. A lower value makes a lane replace its keys
    /// sooner.
    pub key_records_max: u64,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            congestion: None,
            rate: None,
            handshake_time_max: HANDSHAKE_TIME_MAX,
            dead_after: DEAD_AFTER,
            key_records_max: u64::MAX,
        }
    }
}

/// Destination and settings of a connection.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Address of the peer.
    pub remote: SocketAddr,
    /// Local address, which selects the network; port 0 means any port.
    pub local: Option<SocketAddr>,
    /// Other settings of the lane.
    pub tcp: TcpOptions,
}

impl ConnectOptions {
    /// Creates options to connect to `remote` with all defaults.
    pub fn new(remote: SocketAddr) -> Self {
        Self { remote, local: None, tcp: TcpOptions::default() }
    }
}
