//! Safe calls for the few system calls that no other crate wraps safely.
//!
//! Provides `getsockopt` and `setsockopt` of options that neither rustix nor socket2 has, a watch on a socket for one
//! direction, batches of UDP packets, and leases on files. This is the only place of this crate where `unsafe` is
//! allowed.

mod datagram;
#[cfg(test)]
mod holes;
mod lease;
#[cfg(test)]
mod map;
mod readiness;
mod socket_option;
mod tcp_info;

pub use datagram::{Inbox, Outbox, QueuedError, Received, UDP_PAYLOAD_MAX, set_up_datagrams};
#[cfg(test)]
pub use holes::report_only_holes;
pub use lease::is_open_for_writing;
#[cfg(test)]
pub use map::MappedFile;
pub use readiness::{Readiness, readiness_of};
pub use socket_option::{SocketMemory, force_receive_buffer, force_send_buffer, set_pacing_rate, socket_memory};
pub use tcp_info::{TcpInfo, tcp_info};
