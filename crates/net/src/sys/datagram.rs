//! Batches of UDP packets in one system call, with the receive time of the kernel, and the error queue of a socket.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use libc::{c_int, c_uint, c_void, iovec, mmsghdr};

use super::socket_option::set;

/// Largest payload of UDP over IPv4 in bytes: a packet of 65,535 bytes less headers of 20 and 8 bytes (RFC 791 and
/// RFC 768).
pub const UDP_PAYLOAD_MAX: usize = 65_507;

/// Room for the name of a packet's origin: `sockaddr_in6` is the largest.
const NAME_BYTES: usize = 28;

/// Room for the control data of a packet: a time stamp, a TTL and an ICMP error with its origin take 136 bytes.
const CONTROL_BYTES: usize = 192;

/// Size of `struct cmsghdr`, and the alignment of what follows it.
const CONTROL_HEADER: usize = WORD + 8;
const WORD: usize = size_of::<usize>();

/// Size of `struct sock_extended_err`.
const ERROR_BYTES: usize = 16;

/// `SO_EE_ORIGIN_LOCAL` (include/uapi/linux/errqueue.h).
const ORIGIN_LOCAL: u8 = 1;

/// Sets up a UDP socket for measurements: packets are never fragmented and may exceed the known MTU of the path
/// (`IP_PMTUDISC_PROBE`); each packet arrives with its time and TTL; ICMP errors go to the error queue.
pub fn set_up_datagrams(socket: &impl AsFd, is_ipv4: bool) -> io::Result<()> {
    let on: c_int = 1;
    let options = if is_ipv4 {
        [
            (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE),
            (libc::IPPROTO_IP, libc::IP_RECVERR, on),
            (libc::IPPROTO_IP, libc::IP_RECVTTL, on),
        ]
    } else {
        [
            (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE),
            (libc::IPPROTO_IPV6, libc::IPV6_RECVERR, on),
            (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, on),
        ]
    };
    for (level, name, value) in options {
        set(socket, level, name, &value.to_ne_bytes())?;
    }
    set(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &on.to_ne_bytes())
}

/// Received packet.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Payload, cut to the room of the [`Inbox`].
    pub data: &'a [u8],
    /// Length of the whole payload, bytes.
    pub length: usize,
    /// Origin; `None`: of another family than IP.
    pub from: Option<SocketAddr>,
    /// Time of arrival by the kernel, since 1970.
    pub at: Option<Duration>,
    /// TTL or hop limit.
    pub ttl: Option<u8>,
}

/// Error of a packet that was sent, from the error queue of its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuedError {
    /// Number of the error (`errno`).
    pub number: i32,
    /// The error is of this host, and no ICMP message.
    pub is_local: bool,
    /// Further value; the MTU for `EMSGSIZE`.
    pub info: u32,
    /// Type and code of the ICMP message; zeros for an error of this host.
    pub icmp: (u8, u8),
    /// Address of the device that sent the ICMP message.
    pub from: Option<IpAddr>,
    /// First four bytes of the payload, if the device returned them. Devices return at least the header of UDP.
    pub mark: Option<u32>,
}

/// Room for packets that one system call receives.
pub struct Inbox {
    data: Vec<u8>,
    room: usize,
    names: Vec<[u8; NAME_BYTES]>,
    controls: Vec<[u8; CONTROL_BYTES]>,
    vectors: Vec<iovec>,
    headers: Vec<mmsghdr>,
}

impl Inbox {
    /// Makes room for `packets` packets, of which the first `room` bytes are kept.
    pub fn new(packets: usize, room: usize) -> Self {
        Self {
            data: vec![0; packets * room],
            room,
            names: vec![[0; NAME_BYTES]; packets],
            controls: vec![[0; CONTROL_BYTES]; packets],
            vectors: vec![iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; packets],
            headers: vec![empty_header(); packets],
        }
    }

    /// Receives the packets that wait in a socket, as many as there is room for. Returns their number; 0: none waits.
    ///
    /// Errors: those of the system. An ICMP error of an earlier packet is one of them, and returned once.
    pub fn receive(&mut self, socket: &impl AsFd) -> io::Result<usize> {
        self.call(socket, libc::MSG_DONTWAIT | libc::MSG_TRUNC)
    }

    /// Takes the next error from the error queue of a socket; `None`: the queue is empty. With the last one, the error
    /// of the next call on the socket is gone too.
    pub fn next_error(&mut self, socket: &impl AsFd) -> Option<QueuedError> {
        // An error of the call itself would be one of the arguments, which are ours.
        if !matches!(self.call(socket, libc::MSG_DONTWAIT | libc::MSG_ERRQUEUE), Ok(1..)) {
            return None;
        }
        let header = &self.headers[0].msg_hdr;
        let found = controls(&self.controls[0], header.msg_controllen).find(|(level, name, _)| {
            matches!((*level, *name), (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR))
        });
        // struct sock_extended_err: errno, origin, type, code, padding, info, data.
        let (_, _, value) = found?;
        let returned = &self.data[..(self.headers[0].msg_len as usize).min(self.room)];
        let is_local = *value.get(4)? == ORIGIN_LOCAL;
        Some(QueuedError {
            number: i32::try_from(u32_at(value, 0)?).ok()?,
            is_local,
            info: u32_at(value, 8)?,
            icmp: if is_local { (0, 0) } else { (*value.get(5)?, *value.get(6)?) },
            // The address of the device follows.
            from: value.get(ERROR_BYTES..).and_then(address_of).map(|address| address.ip()),
            mark: returned.get(..4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes),
        })
    }

    fn call(&mut self, socket: &impl AsFd, flags: c_int) -> io::Result<usize> {
        let packets = self.headers.len();
        for index in 0..packets {
            self.vectors[index] =
                iovec { iov_base: self.data[index * self.room..].as_mut_ptr().cast::<c_void>(), iov_len: self.room };
            let header = &mut self.headers[index].msg_hdr;
            header.msg_name = self.names[index].as_mut_ptr().cast::<c_void>();
            header.msg_namelen = NAME_BYTES as libc::socklen_t;
            header.msg_iov = &raw mut self.vectors[index];
            header.msg_iovlen = 1;
            header.msg_control = self.controls[index].as_mut_ptr().cast::<c_void>();
            header.msg_controllen = CONTROL_BYTES as _;
            header.msg_flags = 0;
        }
        let count = c_uint::try_from(packets).unwrap_or(c_uint::MAX);
        // SAFETY: every header points to a name, a vector and a control area of the stated sizes in vectors of `self`,
        // which is borrowed mutably; each vector points to `room` bytes of `data` that no other one has. The file
        // descriptor is borrowed from `socket`, which outlives the call.
        #[allow(unsafe_code)]
        let status = unsafe {
            libc::recvmmsg(
                socket.as_fd().as_raw_fd(),
                self.headers.as_mut_ptr(),
                count,
                flags as _,
                std::ptr::null_mut(),
            )
        };
        match usize::try_from(status) {
            Ok(received) => Ok(received),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
                error => Err(error),
            },
        }
    }

    /// Returns a packet that the last call received. `index` is smaller than its number of packets.
    pub fn packet(&self, index: usize) -> Received<'_> {
        let (header, length) = (&self.headers[index].msg_hdr, self.headers[index].msg_len as usize);
        let name_length = (header.msg_namelen as usize).min(NAME_BYTES);
        let from = address_of(&self.names[index][..name_length]);
        let (mut at, mut ttl) = (None, None);
        for (level, name, value) in controls(&self.controls[index], header.msg_controllen) {
            match (level, name) {
                (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS) => at = time_of(value),
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    ttl = u32_at(value, 0).and_then(|ttl| u8::try_from(ttl).ok());
                }
                _ => {}
            }
        }
        let start = index * self.room;
        Received { data: &self.data[start..start + length.min(self.room)], length, from, at, ttl }
    }

    /// Returns the payload of a received packet for a change in place, cut to the room.
    pub fn data_mut(&mut self, index: usize) -> &mut [u8] {
        let (start, length) = (index * self.room, self.headers[index].msg_len as usize);
        &mut self.data[start..start + length.min(self.room)]
    }
}

/// Packets that one system call sends: a head of each, and padding that all share.
pub struct Outbox {
    heads: Vec<u8>,
    head: usize,
    padding: Vec<u8>,
    names: Vec<([u8; NAME_BYTES], usize)>,
    lengths: Vec<usize>,
    vectors: Vec<[iovec; 2]>,
    headers: Vec<mmsghdr>,
}

impl Outbox {
    /// Makes room for `packets` packets with heads of `head` bytes. A payload is a head and the start of `padding`.
    pub fn new(packets: usize, head: usize, padding: Vec<u8>) -> Self {
        let nothing = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self {
            heads: vec![0; packets * head],
            head,
            padding,
            names: vec![([0; NAME_BYTES], 0); packets],
            lengths: vec![head; packets],
            vectors: vec![[nothing; 2]; packets],
            headers: vec![empty_header(); packets],
        }
    }

    /// Prepares a packet with a payload of `length` bytes, at least a head. `to`: its destination; `None`: that of the
    /// socket. Returns its head to fill.
    pub fn prepare(&mut self, index: usize, length: usize, to: Option<SocketAddr>) -> &mut [u8] {
        self.names[index] = to.map_or(([0; NAME_BYTES], 0), name_of);
        self.lengths[index] = length.clamp(self.head, self.head + self.padding.len());
        &mut self.heads[index * self.head..(index + 1) * self.head]
    }

    /// Sends the prepared packets of a range. Returns the number of those sent, from the start of the range.
    ///
    /// Errors: that of the first packet, if it was not sent.
    pub fn send(&mut self, socket: &impl AsFd, range: std::ops::Range<usize>) -> io::Result<usize> {
        for index in range.clone() {
            let head = self.heads[index * self.head..(index + 1) * self.head].as_mut_ptr().cast::<c_void>();
            let padding = self.padding.as_mut_ptr().cast::<c_void>();
            self.vectors[index] = [
                iovec { iov_base: head, iov_len: self.head },
                iovec { iov_base: padding, iov_len: self.lengths[index] - self.head },
            ];
            let header = &mut self.headers[index].msg_hdr;
            let (name, length) = &mut self.names[index];
            header.msg_name = if *length == 0 { std::ptr::null_mut() } else { name.as_mut_ptr().cast::<c_void>() };
            header.msg_namelen = libc::socklen_t::try_from(*length).unwrap_or(0);
            header.msg_iov = self.vectors[index].as_mut_ptr();
            header.msg_iovlen = 2;
        }
        let headers = &mut self.headers[range];
        let count = c_uint::try_from(headers.len()).unwrap_or(c_uint::MAX);
        // SAFETY: every header of the range points to a name, vectors and bytes of `self` of the stated sizes, which
        // the kernel only reads, and `self` is borrowed mutably. The file descriptor is borrowed from `socket`, which
        // outlives the call.
        #[allow(unsafe_code)]
        let status = unsafe { libc::sendmmsg(socket.as_fd().as_raw_fd(), headers.as_mut_ptr(), count, 0) };
        usize::try_from(status).map_err(|_| io::Error::last_os_error())
    }
}

fn empty_header() -> mmsghdr {
    // SAFETY: the type is a C structure of integers and pointers, for which zero bytes are valid; some C libraries give
    // it private padding, so that a literal does not build.
    #[allow(unsafe_code)]
    unsafe {
        std::mem::zeroed()
    }
}

/// Control messages in the first `length` bytes of `bytes`: level, type, and the value.
fn controls(bytes: &[u8], length: usize) -> impl Iterator<Item = (c_int, c_int, &[u8])> {
    let mut left = &bytes[..length.min(bytes.len())];
    std::iter::from_fn(move || {
        let size = usize::from_ne_bytes(left.get(..WORD)?.try_into().ok()?);
        let level = i32::from_ne_bytes(left.get(WORD..WORD + 4)?.try_into().ok()?);
        let name = i32::from_ne_bytes(left.get(WORD + 4..CONTROL_HEADER)?.try_into().ok()?);
        let value = left.get(CONTROL_HEADER..size)?;
        left = left.get(size.next_multiple_of(WORD)..).unwrap_or_default();
        Some((level, name, value))
    })
}

fn u32_at(bytes: &[u8], start: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(start..start + 4)?.try_into().ok()?))
}

/// Reads a `struct timespec`.
fn time_of(value: &[u8]) -> Option<Duration> {
    let (seconds, nanos) = value.split_at_checked(value.len() / 2)?;
    let number = |bytes: &[u8]| match bytes.len() {
        8 => Some(u64::from_ne_bytes(bytes.try_into().ok()?)),
        4 => Some(u32::from_ne_bytes(bytes.try_into().ok()?).into()),
        _ => None,
    };
    Some(Duration::new(number(seconds)?, u32::try_from(number(nanos)?).ok().filter(|nanos| *nanos < 1_000_000_000)?))
}

/// Reads a `struct sockaddr_in` or `struct sockaddr_in6`.
fn address_of(name: &[u8]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes(name.get(..2)?.try_into().ok()?);
    let port = u16::from_be_bytes(name.get(2..4)?.try_into().ok()?);
    match c_int::from(family) {
        libc::AF_INET => {
            let octets: [u8; 4] = name.get(4..8)?.try_into().ok()?;
            Some((Ipv4Addr::from(octets), port).into())
        }
        libc::AF_INET6 => {
            let octets: [u8; 16] = name.get(8..24)?.try_into().ok()?;
            Some(SocketAddrV6::new(Ipv6Addr::from(octets), port, 0, u32_at(name, 24)?).into())
        }
        _ => None,
    }
}

/// Writes an address as `struct sockaddr_in` or `struct sockaddr_in6`. Returns its length too.
fn name_of(address: SocketAddr) -> ([u8; NAME_BYTES], usize) {
    let mut name = [0; NAME_BYTES];
    name[2..4].copy_from_slice(&address.port().to_be_bytes());
    let (family, length) = match address {
        SocketAddr::V4(address) => {
            name[4..8].copy_from_slice(&address.ip().octets());
            (libc::AF_INET, 16)
        }
        SocketAddr::V6(address) => {
            name[8..24].copy_from_slice(&address.ip().octets());
            name[24..28].copy_from_slice(&address.scope_id().to_ne_bytes());
            (libc::AF_INET6, NAME_BYTES)
        }
    };
    name[..2].copy_from_slice(&libc::sa_family_t::try_from(family).unwrap_or(0).to_ne_bytes());
    (name, length)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    fn received(inbox: &mut Inbox, socket: &UdpSocket) -> usize {
        (0..1_000_000).map(|_| inbox.receive(socket).unwrap()).find(|count| *count > 0).unwrap()
    }

    #[test]
    fn batches_arrive_with_their_origin_time_and_ttl() {
        for local in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(to) = UdpSocket::bind(local) else { continue };
            let from = UdpSocket::bind(local).unwrap();
            set_up_datagrams(&to, to.local_addr().unwrap().is_ipv4()).unwrap();
            let mut outbox = Outbox::new(4, 4, vec![7; 100]);
            for index in 0..4 {
                outbox.prepare(index, 4 + index * 10, Some(to.local_addr().unwrap())).copy_from_slice(&[9; 4]);
            }
            assert_eq!(outbox.send(&from, 1..4).unwrap(), 3);
            let mut inbox = Inbox::new(8, 20);
            assert_eq!(received(&mut inbox, &to), 3);
            let packet = inbox.packet(2);
            assert_eq!((packet.length, packet.data.len(), packet.from), (34, 20, from.local_addr().ok()));
            assert_eq!((packet.data[3], packet.data[4]), (9, 7));
            assert!(packet.at.is_some_and(|at| at.as_secs() > 1_700_000_000) && packet.ttl == Some(64), "{packet:?}");
            assert_eq!(inbox.receive(&to).unwrap(), 0);
        }
    }

    #[test]
    fn the_error_queue_names_closed_ports() {
        let (from, closed) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        set_up_datagrams(&from, true).unwrap();
        let to = closed.local_addr().unwrap();
        drop(closed);
        let (mut outbox, mut inbox) = (Outbox::new(1, 4, vec![0; 100]), Inbox::new(4, 64));
        outbox.prepare(0, 8, Some(to));
        outbox.send(&from, 0..1).unwrap();
        let error = inbox.next_error(&from).unwrap();
        assert_eq!((error.number, error.is_local), (libc::ECONNREFUSED, false));
        // ICMP "port unreachable", with the head of the packet, which is zero.
        assert_eq!((error.icmp, error.from, error.mark), ((3, 3), Some(to.ip()), Some(0)));
        assert_eq!(inbox.next_error(&from), None);
        assert_eq!(inbox.receive(&from).unwrap(), 0, "the read of the queue takes the error of the next call");
        outbox.send(&from, 0..1).unwrap();
        assert_eq!(inbox.receive(&from).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn a_cut_control_area_has_no_messages() {
        assert_eq!(controls(&[0xff; 40], 40).count(), 0);
        assert_eq!(controls(&[0; 40], 40).count(), 0);
        assert_eq!(address_of(&[]), None);
        assert_eq!(time_of(&[0xff; 16]), None);
    }
}
