//! TCP connections of measurements: to agents, and to servers of other tools.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};
use sterna_proto::location::HostPort;
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};

use super::deadline::{Deadline, in_words};
use super::flow;
use super::message::SocketSettings;
use crate::client::dial::resolve;

/// Tries the addresses of a host one after the other. Returns the first success, or the last error.
pub(super) fn first_of<T>(
    host: &HostPort,
    local: Option<IpAddr>,
    mut attempt: impl FnMut(SocketAddr) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut last = crate::internal("a host name without an address");
    for remote in resolve(host, local)? {
        match attempt(remote) {
            Ok(done) => return Ok(done),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Connects to an address of `peer`, such as `the iperf3 server`. `local`: address of this host, which selects the
/// network. Returns the time of the TCP handshake too.
///
/// Errors: `Unreachable`; the kernel refuses a setting.
pub(super) fn connect(
    peer: &str,
    remote: SocketAddr,
    local: Option<IpAddr>,
    settings: &SocketSettings,
    deadline: Deadline,
) -> Result<(TcpStream, Duration), Error> {
    let failed = |e: io::Error| {
        let text = format!("connect to {peer} {remote} by TCP");
        let failed = Error::new(ErrorKind::Unreachable, Scope::Path, Phase::Prepare, text);
        failed.retry(Retry::After).caused_by(in_words(e))
    };
    let socket = Socket::new(Domain::for_address(remote), Type::STREAM, Some(Protocol::TCP)).map_err(failed)?;
    // Before the connection is open: the shift count of its windows depends on the receive buffer.
    flow::apply(settings, &socket)?;
    if let Some(local) = local {
        socket.bind(&SocketAddr::new(local, 0).into()).map_err(failed)?;
    }
    let start = Instant::now();
    socket.connect_timeout(&remote.into(), deadline.left().map_err(failed)?).map_err(failed)?;
    let rtt = start.elapsed();
    socket.set_tcp_nodelay(true).map_err(failed)?;
    Ok((socket.into(), rtt))
}
