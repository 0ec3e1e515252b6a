//! NDT7, the speed test of Measurement Lab over a WebSocket: a client for any NDT7 server, and a server for any NDT7
//! client.
//!
//! A test is one connection in one direction, up to [`TEST_TIME`]. Its sender sends binary messages. Both ends may send
//! measurements as JSON, with the counters of their kernel. So a client that receives sees the limits of the sender.
//! Source: version 0.11 of the specification in `m-lab/ndt-server`. Refuses to look servers up at Measurement Lab,
//! whose policy makes tests public.

mod client;
mod load;
mod message;
mod server;
mod wire;

use std::time::Duration;

pub use self::client::{Ndt7Outcome, Ndt7Security, Ndt7Test, run};
pub use self::message::KernelReport;
pub(crate) use self::server::Ndt7Server;
pub(crate) use self::wire::fuzz;

/// Port of NDT7 over TLS.
pub const NDT7_PORT: u16 = 443;

/// Port of NDT7 without TLS.
pub const NDT7_CLEAR_PORT: u16 = 80;

/// Duration of a test. Source: the specification.
pub const TEST_TIME: Duration = Duration::from_secs(10);

/// Time after the end of a test in which the connection closes. Source: the specification allows 13 s together.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(3);

/// Time of the connect, and of both handshakes together. Reason: some round trips with losses.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);

/// Interval between measurements. Source: the mean of `ndt-server`.
const MEASURE_EVERY: Duration = Duration::from_millis(250);

/// WebSocket protocol.
const PROTOCOL: &str = "net.measurementlab.ndt.v7";

/// Paths of the two tests at the server.
const DOWNLOAD: &str = "/ndt/v7/download";
const UPLOAD: &str = "/ndt/v7/upload";

/// Maximum size of a message received. Source: the specification.
const RECEIVED_BYTES_MAX: usize = 1 << 24;
