//! Measurements with any TCP server, which takes no part in them beyond its service.
//!
//! Handshakes show the options of the server and the round trips by port ([`handshakes`]). UDP packets with a small
//! TTL show the hops, and packets of several sizes the MTU ([`trace`]). Neither needs a privilege: the kernel hands
//! ICMP errors to the socket that caused them (`IP_RECVERR`). Downloads from a web server show rates, and the windows
//! of this end ([`download`]). Refuses to judge what it observes, and to send more than its fixed numbers of
//! connections and packets: a server must not take them for an attack.

mod download;
mod handshakes;
mod mtu;
mod probe;
mod route;

pub use download::{DownloadReport, DownloadSpec, WebFile, download};
pub use handshakes::{
    Agreed, AgreedCount, CONNECTIONS_A_SECOND, CONNECTIONS_MAX, HandshakeReport, PER_PORT, PORTS_MAX, handshakes,
};
pub use mtu::{MtuReport, TooBig};
pub use route::{HOPS_MAX, Hop, RouteReport, TraceSpec, trace};
