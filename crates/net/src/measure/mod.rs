//! Measurements of a path, with an agent at the other end: the hands of the path doctor.
//!
//! A client connects to the port of the agent with a TLS application protocol for measurements. Its first connection
//! controls them with JSON messages ([`message`]). Each stream of a flow is a further connection that both ends
//! authenticate by TLS, and then use as a bare TCP connection. So the cost of encryption does not limit what is
//! measured. The data is generated, and the receiver discards it.
//!
//! The passive half needs no agent: [`Connections`] reads every TCP connection of this host.
//!
//! An agent takes part in one measurement at a time, only with authorized peers. Those of monitors yield to
//! examinations. Each flow has a time and a maximum of bytes. Refuses to judge what it observes.

mod again;
pub mod any_server;
mod channel;
mod client;
mod connections;
mod deadline;
mod dial;
mod flow;
mod host;
pub mod iperf3;
pub mod message;
pub mod ndt7;
mod packets;
mod processes;
mod serve;
mod stamp;

use std::time::Duration;

pub use self::client::{FlowPair, Measurement};
pub use self::connections::{Connection, Connections};
pub use self::host::{backlog_drops, facts as host_facts, memory};
pub use self::message::{
    EchoPort, EchoReport, EchoSpec, FlowReport, FlowSample, FlowSpec, HostFacts, PortCount, SizeCount, SocketSettings,
    StreamReport, TrainBin, TrainReport, TrainSpec,
};
pub use self::packets::{StampReflector, stamp_echoes};
pub use self::processes::{Process, family_of, is_in_other_network, sockets_of};
pub(crate) use self::serve::{Guest, Measurements, Party, Place, is_measurement};
pub use self::stamp::STAMP_PORT;
pub(crate) use self::stamp::fuzz as fuzz_stamp;

/// Application protocol of measurements. It contains the version of the framing.
pub const ALPN: &[u8] = b"sterna-measure/1";

/// Maximum number of streams of a flow. Reason: tests with more show nothing new, and each has a thread at each end.
pub const STREAMS_MAX: u32 = 64;

/// Maximum time of a flow. Reason: the slowest ramp, of a long path, ends within it.
pub const TIME_MAX: Duration = Duration::from_secs(60);

/// Interval between samples of a stream. Reason: the kernel counts times in steps of 4 ms; a ramp over 8 ms of round
/// trip has some samples.
pub const SAMPLE_EVERY: Duration = Duration::from_millis(50);

/// Maximum time of a packet train. Reason: a queue of seconds fills within it, and it shows a policer's refill.
pub const TRAIN_TIME_MAX: Duration = Duration::from_secs(30);

/// Interval of the counts of a packet train. Reason: the refill of a small policer and the filling of a queue show in
/// steps of it; a train of 30 s has 3000.
pub const TRAIN_BIN: Duration = Duration::from_millis(10);

/// Maximum number of lost packets whose numbers are reported. Reason: they show the pattern of the first losses.
pub const LOST_MAX: usize = 4096;
