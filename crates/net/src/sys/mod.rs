//! The few system calls for which no safe wrapper exists, made safe.
//!
//! What it does: `getsockopt` and `setsockopt` of options that neither rustix nor socket2 know, watching a socket for one direction, and leases on files. The only place of this
//! crate where `unsafe` is allowed.

#[cfg(test)]
mod holes;
mod lease;
mod socket_option;
mod tcp_info;
mod watch;

pub use lease::is_open_for_writing;
pub use socket_option::{SocketMemory, set_pacing_rate, socket_memory};
#[cfg(test)]
pub use holes::report_only_holes;
pub use tcp_info::{TcpInfo, tcp_info};
pub use watch::{Watch, watch_for};
