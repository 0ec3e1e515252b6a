//! A lane: one live connection to a peer that carries control frames both ways and blocks from sender to receiver.
//!
//! Both engines (TCP and QUIC) hide behind the same four shapes, so that the driver knows no transport:
//! [`LaneTx`] is called by the thread that feeds the lane, [`LaneRx`] runs on a thread of its own and calls a [`LaneSink`],
//! [`LaneHandle`] is shared and answers questions, and a [`Lane`] is the three of them fresh from the handshake.
//!
//! Everything here blocks: a lane is a pair of plain threads. What is asynchronous inside an engine stays inside it.

pub mod frame;
pub mod inside;
pub mod quic;
pub mod tcp;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sterna_proto::limit::TransportSample;
use sterna_proto::plan::Via;
use sterna_proto::{BitRate, ByteCount, Error};

/// Longest control frame, in bytes, that a lane carries; a peer that announces more is cut off.
/// Reason: a file entry is a path of at most 4096 bytes and some fixed fields; batches of them stay below this.
pub const CONTROL_FRAME_BYTES_MAX: usize = 256 << 10;

/// Longest header of a block, in bytes: a packed block carries up to 64 KiB of file entries.
pub const BLOCK_HEADER_BYTES_MAX: usize = 128 << 10;

/// Longest trailer of a block, in bytes: digests of every file in a packed block.
pub const BLOCK_TRAILER_BYTES_MAX: usize = 64 << 10;

/// Bytes that are read, hashed and handed to a lane at once. Reason: stays in a core's second-level cache from the read to the
/// encryption (512 KiB on the smallest machine measured), and control frames wait for no more than this.
pub const PIECE_BYTES: usize = 128 << 10;

/// Most data that one block carries, in bytes (the largest block of the plan).
pub const BLOCK_BYTES_MAX: u64 = 16 << 20;

/// The transport of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// As people and programs read it: `tcp`, `quic`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Quic => "quic",
        })
    }
}

/// A connection that has finished its handshake.
pub struct Lane {
    /// Who is at the other end: the fingerprint of its key, proven in the handshake. Nothing has been sent to it yet,
    /// and the caller decides whether it is trusted.
    pub peer: crate::identity::Fingerprint,
    /// Feeds the lane.
    pub tx: Box<dyn LaneTx>,
    /// Reads the lane.
    pub rx: Box<dyn LaneRx>,
    /// Asks and steers the lane from any thread.
    pub handle: Arc<dyn LaneHandle>,
}

/// The sending half of a lane; used by one thread.
///
/// Control frames and blocks are taken in the order of the calls, and control frames may overtake a block that is under way.
/// Each call blocks until the transport has room: this is the back-pressure that makes lanes *pull*.
/// Errors: once any call has failed the lane is dead; the caller drops it and gives its blocks back.
pub trait LaneTx: Send {
    /// Sends one control frame of at most [`CONTROL_FRAME_BYTES_MAX`] bytes; may be called between the data of a block.
    fn control(&mut self, frame: &[u8]) -> Result<(), Error>;
    /// Starts a block whose data will be exactly `data_len` bytes.
    fn block_begin(&mut self, header: &[u8], data_len: u64) -> Result<(), Error>;
    /// Bytes that are best given at once: a lane holds some such pieces on their way.
    fn piece_bytes(&self) -> usize {
        PIECE_BYTES
    }
    /// Sends the next data of the block. `data` is given back to its pool when the transport drops it.
    fn block_data(&mut self, data: Bytes) -> Result<(), Error>;
    /// Ends the block: `data_len` bytes have been given.
    fn block_end(&mut self, trailer: &[u8]) -> Result<(), Error>;
    /// Gives up the block under way (its source could not be read). The lane stays usable; the receiver's sink hears
    /// `block_abandoned`.
    fn block_abandon(&mut self) -> Result<(), Error>;
    /// Pushes out what a buffer still holds; called when there is nothing more to send for now.
    fn flush(&mut self) -> Result<(), Error>;
}

/// The receiving half of a lane.
pub trait LaneRx: Send {
    /// Reads until the lane ends, calling `sink` for everything that arrives.
    ///
    /// Returns `Ok` when the peer closed the lane in order. An error of the sink closes the lane and is returned.
    fn run(self: Box<Self>, sink: &mut dyn LaneSink) -> Result<(), Error>;
}

/// What a receiving lane calls; every call may block (a full disk queue is back-pressure on the peer).
///
/// `block` names one block transfer on this lane, unique within the lane; several may be open at once (QUIC).
/// The bytes of a block may come in any order but never twice.
pub trait LaneSink: Send {
    /// Whether no block may be given before the next control frame (an agent must hear the hello first). A transport whose
    /// streams overtake each other holds blocks back while this is so.
    fn awaits_control(&self) -> bool {
        false
    }
    /// A control frame.
    fn control(&mut self, frame: &[u8]) -> Result<(), Error>;
    /// A block starts; always the first call for it. `data_len` is at most [`BLOCK_BYTES_MAX`].
    fn block_begin(&mut self, block: u64, header: &[u8], data_len: u64) -> Result<(), Error>;
    /// Data of the block at `offset` within it; `offset + data.len() <= data_len`.
    fn block_data(&mut self, block: u64, offset: u64, data: &[u8]) -> Result<(), Error>;
    /// All data of the block has been given; the last call for it.
    fn block_end(&mut self, block: u64, trailer: &[u8]) -> Result<(), Error>;
    /// The block ended before its data was complete (the sender gave it up); the last call for it.
    fn block_abandoned(&mut self, block: u64) -> Result<(), Error>;
}

/// A lane as seen from any thread.
pub trait LaneHandle: Send + Sync {
    /// The transport.
    fn transport(&self) -> Transport;
    /// Our address.
    fn local_addr(&self) -> SocketAddr;
    /// The address of the peer.
    fn peer_addr(&self) -> SocketAddr;
    /// What the transport knows of the path now.
    fn stats(&self) -> LaneStats;
    /// What the transport says of what holds the lane back; `None` when it says nothing.
    fn sample(&self) -> Option<TransportSample> {
        None
    }
    /// The memory of the socket at this end and the window that it announces, where the kernel keeps them.
    fn receive_memory(&self) -> Option<ReceiveMemory> {
        None
    }
    /// Grows whenever the process of the peer has said something; what its kernel answers by itself does not count. `None`
    /// while this end does not listen, since it is busy with what it heard last.
    fn heard(&self) -> Option<u64> {
        Some(self.stats().wire_bytes_received)
    }
    /// Sets this lane's part of the rate of the path, on the wire; `None` lifts the cap. For a transport that cannot share.
    fn set_rate(&self, _rate: Option<BitRate>) {}
    /// Lets this lane share one rate with the other lanes of its path: a lane that has nothing to send leaves its share
    /// to the others. A transport that cannot share keeps to [`LaneHandle::set_rate`].
    fn share_rate(&self, _rate: &quic::SharedRate) {}
    /// The receiving host dropped `packets` that the path had brought.
    fn handle_overrun(&self, _packets: u64) {}
    /// Lets the peer send as much as the lane takes. Until then the peer of a lane that was accepted may send as much as a hello
    /// and a first flight need, since nobody knows it: call it when it is authorized and has joined. Calling it twice is harmless.
    fn admit(&self) {}
    /// Most that this lane can have in flight by what the kernels at both ends allow; `None` when they do not limit it, or
    /// do not say.
    fn window_max(&self) -> Option<ByteCount> {
        None
    }
    /// The window that this lane is held to now, as measured; `None` while its window does not limit it.
    fn held_to(&self) -> Option<ByteCount> {
        None
    }
    /// Changes the congestion control of a live TCP lane; other transports have their own and ignore it.
    ///
    /// Errors: the kernel has it not, or does not allow it; the lane goes on as it was.
    fn set_congestion(&self, _name: &str) -> Result<(), Error> {
        Ok(())
    }
    /// Why the peer closed the lane, in its words; `None` while it has not, or when the transport does not carry them.
    fn closed_by_peer(&self) -> Option<String> {
        None
    }
    /// Tells the peer that this end lives; never blocks. For transports whose kernel answers for a process that is stuck.
    fn say_alive(&self) {}
    /// Closes the lane. With `reason`, in order: what has been given to the transport is still delivered (bounded by 2 s
    /// and one round trip) and the peer learns the reason; both halves end soon after. Calling it twice is harmless.
    fn close(&self, reason: &str);
    /// Ends the lane now: waits for nothing, so that no peer can draw it out. Both halves end at once, and the peer's with
    /// `Cancelled`: this end has left for good. A transport that has no such end closes.
    fn cut(&self, reason: &str) {
        self.close(reason);
    }
}

/// What a transport knows of its path.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LaneStats {
    /// Smoothed round-trip time; zero while unknown.
    pub rtt: Duration,
    /// Smallest round-trip time seen; zero while unknown.
    pub rtt_min: Duration,
    /// Packets (QUIC) or segments (TCP) with data sent, repeats included.
    pub packets_sent: u64,
    /// Those of them found lost (QUIC) or sent again (TCP).
    pub packets_lost: u64,
    /// Bytes on the wire sent by this end, IP headers included as far as the transport can tell.
    pub wire_bytes_sent: u64,
    /// Bytes on the wire received by this end, likewise.
    pub wire_bytes_received: u64,
    /// Congestion window in bytes.
    pub window_bytes: u64,
    /// Bytes sent and not yet acknowledged.
    pub in_flight_bytes: u64,
    /// Path MTU in use, bytes of an IP packet; zero while unknown.
    pub mtu: u16,
}

/// The receiving side of a lane's socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveMemory {
    /// What came and was not read yet, as memory.
    pub unread: ByteCount,
    /// Limit of the buffer, as the kernel has tuned it.
    pub buffer: ByteCount,
    /// The window that this end announces.
    pub window: ByteCount,
    /// Packets that the kernel dropped for lack of memory since the lane came up; several lanes may have one socket.
    pub dropped: u64,
    /// Tells sockets of this process apart; 0 for a lane with a socket of its own.
    pub socket: usize,
}
