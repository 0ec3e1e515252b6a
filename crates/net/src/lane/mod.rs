//! A lane: one live connection to a peer. It carries control frames both ways and blocks from the sender to the
//! receiver.
//!
//! Two engines, TCP and QUIC, implement the same four shapes, so that the driver does not depend on a transport:
//! - [`LaneTx`] is called by the thread that feeds the lane.
//! - [`LaneRx`] runs on a separate thread and calls a [`LaneSink`].
//! - [`LaneHandle`] is shared between threads; it returns measurements and changes settings.
//! - [`Lane`] holds these three after the handshake.
//!
//! All calls here block: a lane is a pair of plain threads. Asynchronous code stays inside its engine.

pub mod frame;
pub mod in_process;
pub mod quic;
pub mod tcp;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::Serialize;
use sterna_proto::limit::TransportSample;
use sterna_proto::plan::Via;
use sterna_proto::{BitRate, ByteCount, Error};

/// Longest control frame that a lane carries, in bytes. The lane ends when the peer announces a longer one. Reason:
/// a file entry is a path of at most 4096 bytes and some fixed fields; batches of entries stay below this limit.
pub const CONTROL_FRAME_BYTES_MAX: usize = 256 << 10;

/// Longest header of a block, in bytes. A packed block carries up to 64 KiB of file entries.
pub const BLOCK_HEADER_BYTES_MAX: usize = 128 << 10;

/// Longest trailer of a block, in bytes. It holds the digests of every file in a packed block.
pub const BLOCK_TRAILER_BYTES_MAX: usize = 64 << 10;

/// Bytes that are read, hashed and passed to a lane in one call. Reason: the data stays in a core's second-level
/// cache from the read to the encryption (512 KiB on the smallest machine measured). Control frames wait for at
/// most this much data.
pub const PIECE_BYTES: usize = 128 << 10;

/// Most data of one block, in bytes: the largest block size of a plan.
pub const BLOCK_BYTES_MAX: u64 = 16 << 20;

/// Transport of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// TLS 1.3 over TCP.
    Tcp,
    /// QUIC (TLS 1.3 inside) over UDP.
    Quic,
}

impl From<Transport> for Via {
    fn from(transport: Transport) -> Self {
        match transport {
            Transport::Tcp => Self::Tcp,
            Transport::Quic => Self::Quic,
        }
    }
}

impl fmt::Display for Transport {
    /// Writes `tcp` or `quic`, the form for users and programs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Quic => "quic",
        })
    }
}

/// Connection that has finished its handshake.
pub struct Lane {
    /// Fingerprint of the peer's key, which the handshake has proven. No frame has been sent to the peer yet. The
    /// caller decides if the peer is trusted.
    pub peer: crate::identity::Fingerprint,
    /// Sending half.
    pub tx: Box<dyn LaneTx>,
    /// Receiving half.
    pub rx: Box<dyn LaneRx>,
    /// Measurements and control from any thread.
    pub handle: Arc<dyn LaneHandle>,
}

/// Sending half of a lane; used by one thread.
///
/// The lane sends control frames and blocks in the order of the calls. A control frame may overtake a block in
/// progress. Each call blocks until the transport has room. Through this back-pressure, lanes *pull* blocks from
/// the pool. Errors: after a failed call the lane is dead. The caller drops it and returns its blocks to the pool.
pub trait LaneTx: Send {
    /// Sends one control frame of at most [`CONTROL_FRAME_BYTES_MAX`] bytes. May be called between the data of a
    /// block.
    fn control(&mut self, frame: &[u8]) -> Result<(), Error>;
    /// Starts a block of exactly `data_len` bytes of data.
    fn block_begin(&mut self, header: &[u8], data_len: u64) -> Result<(), Error>;
    /// Returns the best size for one call of `block_data`, in bytes. A lane buffers several such pieces.
    fn piece_bytes(&self) -> usize {
        PIECE_BYTES
    }
    /// Sends the next data of the block. `data` returns to its buffer pool when the transport drops it.
    fn block_data(&mut self, data: Bytes) -> Result<(), Error>;
    /// Ends the block, after all of its `data_len` bytes were passed.
    fn block_end(&mut self, trailer: &[u8]) -> Result<(), Error>;
    /// Abandons the block in progress, because its source cannot be read. The lane stays usable. The receiver's
    /// sink gets `block_abandoned`.
    fn block_abandon(&mut self) -> Result<(), Error>;
    /// Sends the data that a buffer still holds. Called when there is no more data to send for now.
    fn flush(&mut self) -> Result<(), Error>;
}

/// Receiving half of a lane.
pub trait LaneRx: Send {
    /// Reads until the lane ends and calls `sink` for everything that arrives.
    ///
    /// Returns `Ok` when the peer closed the lane in order. When the sink fails, closes the lane and returns the
    /// sink's error.
    fn run(self: Box<Self>, sink: &mut dyn LaneSink) -> Result<(), Error>;
}

/// Receiver of the frames of a lane. Every call may block: a full disk queue is back-pressure on the peer.
///
/// `block` identifies one block transfer and is unique within the lane; several may be open at once (QUIC). The
/// bytes of a block may arrive in any order but never twice.
pub trait LaneSink: Send {
    /// True if the sink accepts no block before the next control frame. Reason: an agent needs the hello first. A
    /// transport whose streams overtake each other holds blocks back while this is true.
    fn awaits_control(&self) -> bool {
        false
    }
    /// Takes a control frame.
    fn control(&mut self, frame: &[u8]) -> Result<(), Error>;
    /// Starts a block; always the first call for it. `data_len` is at most [`BLOCK_BYTES_MAX`].
    fn block_begin(&mut self, block: u64, header: &[u8], data_len: u64) -> Result<(), Error>;
    /// Takes data of the block at `offset` within it; `offset + data.len() <= data_len`.
    fn block_data(&mut self, block: u64, offset: u64, data: &[u8]) -> Result<(), Error>;
    /// Ends the block: all its data has been passed. Last call for this block.
    fn block_end(&mut self, block: u64, trailer: &[u8]) -> Result<(), Error>;
    /// Ends a block whose data is incomplete, because the sender abandoned it. Last call for this block.
    fn block_abandoned(&mut self, block: u64) -> Result<(), Error>;
}

/// Access to a lane from any thread.
pub trait LaneHandle: Send + Sync {
    /// Returns the transport.
    fn transport(&self) -> Transport;
    /// Returns the local address.
    fn local_addr(&self) -> SocketAddr;
    /// Returns the address of the peer.
    fn peer_addr(&self) -> SocketAddr;
    /// Returns the transport's current measurements of the path.
    fn stats(&self) -> LaneStats;
    /// Returns the transport's measurements of what limits the lane; `None` when it has none.
    fn sample(&self) -> Option<TransportSample> {
        None
    }
    /// Returns the memory of the local socket and the window that it announces; `None` where the kernel does not
    /// report them.
    fn receive_memory(&self) -> Option<ReceiveMemory> {
        None
    }
    /// Returns a counter that grows with every message from the peer's process. Automatic answers of the peer's
    /// kernel do not count. `None` while this end does not read, because it still processes earlier data.
    fn heard(&self) -> Option<u64> {
        Some(self.stats().wire_bytes_received)
    }
    /// Sets this lane's part of the path's rate, on the wire; `None` removes the cap. For transports that cannot
    /// share a rate.
    fn set_rate(&self, _rate: Option<BitRate>) {}
    /// Makes this lane share one rate with the other lanes of its path. A lane that has no data to send leaves its
    /// share to the others. A transport that cannot share a rate ignores the call and uses
    /// [`LaneHandle::set_rate`].
    fn share_rate(&self, _rate: &quic::SharedRate) {}
    /// Records that the receiving host dropped `packets` after the path had delivered them.
    fn handle_overrun(&self, _packets: u64) {}
    /// Allows the peer to send as much as the lane accepts. Before that, the peer of an accepted lane may send only
    /// a hello and a first flight, because it is not authorized yet. Call it when the peer is authorized and has
    /// joined. A second call has no effect.
    fn admit(&self) {}
    /// Returns the largest number of bytes that this lane can have in flight under the limits of both kernels.
    /// `None` when the kernels set no limit or do not report one.
    fn window_max(&self) -> Option<ByteCount> {
        None
    }
    /// Returns the measured window that limits this lane now; `None` while its window does not limit it.
    fn held_to(&self) -> Option<ByteCount> {
        None
    }
    /// Changes the congestion control of a live TCP lane. Other transports have fixed congestion control and ignore
    /// the call.
    ///
    /// Errors: the kernel does not have this congestion control or does not allow it. The lane then keeps its
    /// current one.
    fn set_congestion(&self, _name: &str) -> Result<(), Error> {
        Ok(())
    }
    /// Returns the reason that the peer sent when it closed the lane. `None` while the peer has not closed it, or
    /// when the transport carries no reason.
    fn closed_by_peer(&self) -> Option<String> {
        None
    }
    /// Sends a sign of life to the peer; never blocks. Needed where the kernel acknowledges data for a process that
    /// is stuck.
    fn say_alive(&self) {}
    /// Closes the lane in order and sends `reason` to the peer. Data already passed to the transport is still
    /// delivered, within 2 s and one round trip. Both halves end soon after. A second call waits at most for the first.
    fn close(&self, reason: &str);
    /// Ends the lane at once and waits for nothing, so that no peer can delay the end. Both halves of this end stop
    /// at once. Those of the peer end with `Cancelled`, because this end does not reconnect. A transport without
    /// such an end closes the lane.
    fn cut(&self, reason: &str) {
        self.close(reason);
    }
    /// Waits until the packets of [`LaneHandle::cut`] have left this host, at most until the deadline: the process may
    /// end then. Waits for the thread and the pace of the lane, and not for the peer.
    fn wait_until_cut(&self, _deadline: Instant) {}
}

/// Measurements of a path by its transport.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LaneStats {
    /// Smoothed round-trip time; zero while unknown.
    pub rtt: Duration,
    /// Smallest round-trip time seen; zero while unknown.
    pub rtt_min: Duration,
    /// Packets (QUIC) or segments (TCP) with data that were sent, retransmissions included.
    pub packets_sent: u64,
    /// Packets found lost (QUIC) or segments retransmitted (TCP), out of `packets_sent`.
    pub packets_lost: u64,
    /// Bytes on the wire sent by this end, IP headers included as far as the transport can count them.
    pub wire_bytes_sent: u64,
    /// Bytes on the wire received by this end, counted in the same way.
    pub wire_bytes_received: u64,
    /// Congestion window in bytes.
    pub window_bytes: u64,
    /// Bytes sent and not yet acknowledged.
    pub in_flight_bytes: u64,
    /// Path MTU in use, in bytes of an IP packet; zero while unknown.
    pub mtu: u16,
}

impl LaneStats {
    /// Returns the bytes on the wire in both directions.
    pub fn wire_bytes(&self) -> u64 {
        self.wire_bytes_sent + self.wire_bytes_received
    }
}

/// Receiving side of a lane's socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveMemory {
    /// Memory of the data that has arrived and is not read yet.
    pub unread: ByteCount,
    /// Limit of the buffer, as the kernel has tuned it.
    pub buffer: ByteCount,
    /// Window that this end announces.
    pub window: ByteCount,
    /// Packets that the kernel dropped for lack of memory since the lane came up. Lanes that share a socket count
    /// the same drops.
    pub dropped: u64,
    /// Identifier of the socket within this process; 0 for a lane that does not share its socket.
    pub socket: usize,
}
