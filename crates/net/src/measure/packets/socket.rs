//! UDP sockets of measurements.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::sys::{self, Inbox};

/// Receive buffer, bookkeeping included. Reason: 1 Gbit/s for 100 ms in which the reader does not run.
const RECEIVE_BUFFER: u64 = 32 << 20;

/// Send buffer. Reason: a batch of packets, so that a sender waits only if its interface is slower.
const SEND_BUFFER: usize = 1 << 20;

/// Time after which a send that waits for the interface looks for the end of the train.
const SEND_WITHIN: Duration = Duration::from_millis(200);

/// TTL or hop limit of packets (RFC 8762 section 4.2, as in RFC 5357): the receiver can count the hops.
const TTL: u32 = 255;

/// Opens a UDP socket of a measurement.
///
/// Errors: those of the system.
pub(super) fn open(local: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(local), Type::DGRAM, Some(Protocol::UDP))?;
    if local.is_ipv6() {
        socket.set_only_v6(true)?;
        socket.set_unicast_hops_v6(TTL)?;
    } else {
        socket.set_ttl_v4(TTL)?;
    }
    sys::set_up_datagrams(&socket, local.is_ipv4())?;
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.set_write_timeout(Some(SEND_WITHIN))?;
    socket.bind(&local.into())?;
    Ok(socket.into())
}

/// Opens a UDP socket of a measurement, connected to an address.
///
/// Errors: those of the system.
pub(super) fn connect(local: SocketAddr, to: SocketAddr) -> io::Result<UdpSocket> {
    let socket = open(local)?;
    socket.connect(to)?;
    Ok(socket)
}

/// Returns the port of a socket.
pub(super) fn port_of(socket: &UdpSocket) -> u16 {
    socket.local_addr().map_or(0, |address| address.port())
}

/// Enlarges the receive buffer of a socket. Without `CAP_NET_ADMIN` the kernel takes at most the maximum of the host.
pub(super) fn enlarge(socket: &UdpSocket) -> io::Result<()> {
    let half = usize::try_from(RECEIVE_BUFFER / 2).unwrap_or(usize::MAX);
    sys::force_receive_buffer(socket, RECEIVE_BUFFER).or_else(|_| SockRef::from(socket).set_recv_buffer_size(half))
}

/// Returns an address with another port, and in the form of IPv4 if it is one.
pub(super) fn with_port(address: SocketAddr, port: u16) -> SocketAddr {
    match address.ip().to_canonical() {
        ip if ip.is_ipv4() => SocketAddr::new(ip, port),
        _ => {
            let mut address = address;
            address.set_port(port);
            address
        }
    }
}

/// Errors read at once. Reason: a queue of errors holds some hundred.
const ERRORS_MAX: usize = 1000;

/// Errors of the packets of a train or of echoes, from all sockets.
#[derive(Debug)]
pub(super) struct SocketErrors {
    /// Smallest MTU of an ICMP message; `u32::MAX`: none came.
    mtu: AtomicU32,
}

impl SocketErrors {
    /// Begins without errors.
    pub(super) fn new() -> Self {
        Self { mtu: AtomicU32::new(u32::MAX) }
    }

    /// Reads the error queue of a socket. A queue that is not read makes each wait for packets end at once.
    pub(super) fn take(&self, socket: &UdpSocket, inbox: &mut Inbox) {
        for _ in 0..ERRORS_MAX {
            let Some(error) = inbox.next_error(socket) else { return };
            if error.number == Errno::MSGSIZE.raw_os_error() && !error.is_local {
                self.mtu.fetch_min(error.info, Ordering::Relaxed);
            }
        }
    }

    /// Returns the smallest MTU of an ICMP message "fragmentation needed" or "packet too big".
    pub(super) fn too_big_mtu(&self) -> Option<u32> {
        Some(self.mtu.load(Ordering::Relaxed)).filter(|mtu| *mtu != u32::MAX)
    }
}
