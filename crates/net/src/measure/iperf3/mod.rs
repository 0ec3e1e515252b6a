//! iperf3: a client for any iperf3 server, and a server that answers any iperf3 client, over the wire format of
//! iperf 3.x.
//!
//! One TCP connection controls a test, with one byte for each state and with JSON ([`message`], [`control`]). Each
//! stream is a further connection, which begins with the cookie of the test. The data of TCP streams moves as in every
//! other flow of the path doctor, and is sampled in the same way ([`super::FlowReport`]). Source of the format:
//! iperf 3.12 to 3.21, as they behave on the wire. Refuses tests in both directions at once, SCTP, and authentication,
//! which iperf3 encrypts with the password only.

mod client;
mod control;
mod fuzz;
mod message;
mod results;
mod server;
mod udp;

use std::io;

use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};

pub use self::client::{Iperf3Outcome, Iperf3Test, Iperf3Transport, run};
pub(crate) use self::fuzz::fuzz;
pub(crate) use self::server::Iperf3Server;
pub use self::udp::DatagramReport;

use super::deadline::in_words;

/// Port of iperf3.
pub const IPERF3_PORT: u16 = 5201;

/// Size of a cookie in bytes: 36 characters and a zero.
const COOKIE_BYTES: usize = 37;

/// Cookie of a test. A stream of the test begins with it.
type Cookie = [u8; COOKIE_BYTES];

/// Returns the error of a connection that failed while `what` was tried.
fn failed(what: &str, error: io::Error) -> Error {
    Error::new(ErrorKind::Unreachable, Scope::Path, Phase::Transfer, what)
        .retry(Retry::After)
        .caused_by(in_words(error))
}
