//! Messages of a measurement: what a client asks of an agent, and what both ends observe.
//!
//! They travel as JSON. A field that a peer does not have is skipped, so that later releases can add some.

mod check;
mod list;
mod packets;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sterna_proto::path_cache::DataDirection;

use self::list::{ITEMS_MAX, SAMPLES_MAX, list};
use super::STREAMS_MAX;
use crate::disk::DiskSpeed;

pub use self::packets::{
    EchoPort, EchoReport, EchoSpec, PortCount, SentSize, SentTrain, SizeCount, TrainBin, TrainReport, TrainSpec,
};

/// Version of the messages.
pub const VERSION: u32 = 1;

/// Occasion of measurements. One for a monitor yields to an examination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Occasion {
    /// A user waits for the result.
    #[default]
    Examination,
    /// An agent measures its paths from time to time.
    Monitoring,
}

/// Question of a client.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// First message of the connection that controls measurements. Answer: [`Answer::Host`].
    Hello {
        /// Version of the messages.
        version: u32,
        /// Occasion of the measurements.
        #[serde(default)]
        occasion: Occasion,
    },
    /// First message of a connection that carries data. Answer: [`Answer::Joined`]; afterwards the connection carries
    /// the data of a flow without TLS.
    Join {
        /// Token of the flow.
        token: String,
        /// Number of the stream in the flow, from 0.
        stream: u32,
    },
    /// Prepares a flow. Answer: [`Answer::Token`].
    Flow(FlowSpec),
    /// Starts the flow whose streams have joined. Answer: [`Answer::Started`].
    Start,
    /// Waits for the end of the flow. Answer: [`Answer::Flow`].
    Finish,
    /// Measures the disk of a directory that the client may write to. Answer: [`Answer::Disk`].
    Disk {
        /// Path, as in the location of a copy.
        path: String,
    },
    /// Prepares a packet train. Answer: [`Answer::Packets`]. The client then sends a packet from each port until the
    /// agent has sent one back.
    Train(TrainSpec),
    /// Starts the packet train. Answer: [`Answer::Started`].
    StartTrain,
    /// The client has sent its train. Answer, once the packets have arrived: [`Answer::Train`].
    TrainSent(Box<SentTrain>),
    /// Waits for the end of a train that the agent sends. Answer: [`Answer::TrainSent`].
    FinishTrain,
    /// Prepares echoes. Answer: [`Answer::Packets`].
    Echo(EchoSpec),
    /// Ends echoes. Answer: [`Answer::Echoed`].
    FinishEcho,
}

/// Answer of an agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// Facts of the agent's host.
    Host(Box<HostFacts>),
    /// The connection is a stream of a flow.
    Joined,
    /// Token with which the streams of the flow join.
    Token {
        /// Token.
        token: String,
    },
    /// The data of the flow moves, or the packet train starts.
    Started,
    /// Observations of the agent's end.
    Flow(FlowReport),
    /// The agent expects packets.
    Packets {
        /// UDP port, on the address of this connection.
        port: u16,
        /// Identifier of the packets (SSID of STAMP, RFC 8972).
        session: u16,
    },
    /// Observations of a packet train.
    Train(Box<TrainReport>),
    /// The agent has sent its train.
    TrainSent(Box<SentTrain>),
    /// Packets that the agent has sent back, by port of the client.
    Echoed {
        /// Counts, in the order of the ports.
        #[serde(deserialize_with = "list::<_, _, ITEMS_MAX>")]
        reflected: Vec<u64>,
    },
    /// Speed of a disk of the agent.
    Disk(DiskSpeed),
    /// The agent refuses, or could not do it.
    Refused {
        /// Kind of the failure, as on the wire.
        code: u8,
        /// Reason, for people.
        reason: String,
    },
}

/// Settings of the sockets at one end of a flow. The default leaves all to the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SocketSettings {
    /// Receive buffer in bytes, bookkeeping included. Ends the kernel's autotuning.
    pub receive_buffer: Option<u64>,
    /// Send buffer in bytes, bookkeeping included. Ends the kernel's autotuning.
    pub send_buffer: Option<u64>,
    /// Congestion control by its name in the kernel.
    pub congestion: Option<String>,
    /// Maximum payload of a segment, in bytes.
    pub mss: Option<u32>,
    /// Cap on the payload rate of each stream, bit/s.
    pub pacing_bps: Option<u64>,
}

/// Flow of generated data over TCP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowSpec {
    /// Direction of the data, as the client sees it.
    #[serde(with = "direction")]
    pub direction: DataDirection,
    /// Number of connections, from 1 to [`super::STREAMS_MAX`].
    pub streams: u32,
    /// Time for which the sender sends, in milliseconds, up to [`super::TIME_MAX`].
    pub time_ms: u64,
    /// Maximum of data, in bytes; the sender ends earlier with it.
    pub bytes_max: u64,
    /// Sockets of the sender.
    #[serde(default)]
    pub sender: SocketSettings,
    /// Sockets of the receiver.
    #[serde(default)]
    pub receiver: SocketSettings,
}

impl FlowSpec {
    /// Returns the time for which the sender sends.
    pub fn time(&self) -> Duration {
        Duration::from_millis(self.time_ms)
    }
}

mod direction {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use sterna_proto::path_cache::DataDirection;

    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Named {
        Out,
        In,
    }

    pub(super) fn serialize<S: Serializer>(direction: &DataDirection, to: S) -> Result<S::Ok, S::Error> {
        match direction {
            DataDirection::Out => Named::Out,
            DataDirection::In => Named::In,
        }
        .serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<DataDirection, D::Error> {
        Ok(match Named::deserialize(from)? {
            Named::Out => DataDirection::Out,
            Named::In => DataDirection::In,
        })
    }
}

/// State of a stream at one moment, as its kernel sees it. Counters start with the connection. A value that the kernel
/// does not have is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FlowSample {
    /// Time since the start of the flow at this end, microseconds.
    pub at_us: u64,
    /// Bytes of data acknowledged.
    pub acked: u64,
    /// Bytes of data received in order.
    pub received: u64,
    /// Smoothed round-trip time, microseconds.
    pub rtt_us: u64,
    /// Smallest round-trip time, microseconds.
    pub rtt_min_us: u64,
    /// Round-trip time as a receiver estimates it, microseconds: with the delay of queues.
    pub receiver_rtt_us: u64,
    /// Congestion window, bytes.
    pub window: u64,
    /// Bytes in flight.
    pub in_flight: u64,
    /// Bytes in the send queue that were never sent.
    pub unsent: u64,
    /// Window that the peer announces, bytes.
    pub peer_window: u64,
    /// Window that this end announces, bytes.
    pub own_window: u64,
    /// Time with data to send, microseconds.
    pub busy_us: u64,
    /// Time in which the window of the peer was the limit, microseconds.
    pub peer_window_limited_us: u64,
    /// Time in which the send buffer was the limit, microseconds.
    pub send_buffer_limited_us: u64,
    /// Segments with data sent, with those sent again.
    pub data_segments_out: u64,
    /// Segments with data received.
    pub data_segments_in: u64,
    /// All segments sent.
    pub segments_out: u64,
    /// All segments received.
    pub segments_in: u64,
    /// Segments with data that arrived at the peer, in any order.
    pub delivered: u64,
    /// Segments sent again.
    pub resent: u64,
    /// Segments sent again without need.
    pub duplicates: u64,
    /// Events of reordering that the sender detected.
    pub reordered: u64,
    /// Segments received out of order.
    pub out_of_order: u64,
    /// Rate of delivery that the kernel measured last, bit/s.
    pub delivery_bps: u64,
    /// Receive buffer, bytes.
    pub receive_buffer: u64,
    /// Received data that the program has not read, with its bookkeeping, bytes.
    pub unread: u64,
    /// Send buffer, bytes.
    pub send_buffer: u64,
    /// Send queue with its bookkeeping, bytes.
    pub send_queue: u64,
}

/// Observations of one stream at one end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamReport {
    /// Port of this end.
    pub port: u16,
    /// Payload of a full segment, bytes.
    pub mss: u32,
    /// Segment size that the path allows by the kernel's record, bytes.
    pub path_mtu: u32,
    /// Congestion control.
    pub congestion: String,
    /// Selective acknowledgements are in use.
    pub sack: bool,
    /// Timestamps are in use.
    pub timestamps: bool,
    /// Window scaling is in use.
    pub window_scaling: bool,
    /// Shift count of the peer's windows.
    pub peer_scale: u8,
    /// Shift count of the windows of this end.
    pub own_scale: u8,
    /// Samples, in order of time.
    #[serde(deserialize_with = "list::<_, _, SAMPLES_MAX>")]
    pub samples: Vec<FlowSample>,
    /// Error that ended the stream early.
    pub error: Option<String>,
}

/// Observations of a flow at one end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FlowReport {
    /// Streams, by number.
    #[serde(deserialize_with = "list::<_, _, { STREAMS_MAX as usize }>")]
    pub streams: Vec<StreamReport>,
    /// Time of the processors that this process used, microseconds.
    pub cpu_us: u64,
    /// Time of all processors of the host that was not idle, microseconds.
    pub host_busy_us: u64,
    /// Longest time between two samples, microseconds: much more than [`super::SAMPLE_EVERY`] is a pause of the host.
    pub pause_us: u64,
    /// Duration of the flow at this end, microseconds.
    pub time_us: u64,
}

/// Facts of a host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostFacts {
    /// Version of the messages.
    pub version: u32,
    /// Release of the kernel, as in `6.1.0-25-amd64`.
    pub kernel: String,
    /// Release of Sterna.
    pub sterna: String,
    /// Number of processors.
    pub processors: u32,
    /// Settings of the kernel, by their names in `/proc/sys/net`, with `.` for `/`.
    pub settings: std::collections::BTreeMap<String, String>,
    /// The process may set buffers above the maximum of the host (`CAP_NET_ADMIN`).
    pub may_force_buffers: bool,
}
