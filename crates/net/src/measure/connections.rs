//! TCP connections of this host, of all programs, as the kernel reports them (`NETLINK_SOCK_DIAG`).
//!
//! One request returns the state of every connection in the network namespace of this process; no privilege is needed.
//! The kernel sends the same structures as for the options `TCP_INFO` and `SO_MEMINFO`, which [`crate::sys`] parses.
//! Refuses to judge a connection.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};
use sterna_proto::limit::TcpSample;
use sterna_proto::{BitRate, Error, ErrorKind, Phase, Scope};

use crate::lane::tcp;
use crate::sys::{SocketMemory, TcpInfo};

/// State of one end of a TCP connection.
#[derive(Clone, Debug, PartialEq)]
pub struct Connection {
    /// Number of the socket, unique until the host restarts.
    pub cookie: u64,
    /// Address of this end.
    pub local: SocketAddr,
    /// Address of the other end.
    pub remote: SocketAddr,
    /// Number of the socket in the file system of sockets, by which processes are found; 0: no process has it open.
    pub inode: u64,
    /// Congestion control, such as `cubic`.
    pub congestion: String,
    /// Rate that bbr measures as that of the bottleneck; `None` with other congestion controls.
    pub bbr_rate: Option<BitRate>,
    /// State of TCP.
    pub info: TcpInfo,
    /// Memory of the socket.
    pub memory: SocketMemory,
}

impl Connection {
    /// Returns the measurements of its sending direction.
    pub fn sample(&self) -> TcpSample {
        tcp::tcp_sample(&self.info, &self.memory, &self.congestion)
    }

    /// Returns the smallest round-trip time; the smoothed one if the kernel has no smallest one.
    pub fn rtt_min(&self) -> Duration {
        self.info.min_rtt.unwrap_or(self.info.rtt)
    }
}

/// Reader of the connections of this host.
#[derive(Debug)]
pub struct Connections {
    socket: OwnedFd,
    buffer: Vec<u8>,
    /// Sequence number of the last request.
    sequence: u32,
}

/// `SOCK_DIAG_BY_FAMILY` of include/uapi/linux/sock_diag.h.
const BY_FAMILY: u16 = 20;

/// `NLMSG_ERROR` and `NLMSG_DONE` of include/uapi/linux/netlink.h.
const MESSAGE_ERROR: u16 = 2;
const MESSAGE_DONE: u16 = 3;

/// `NLM_F_REQUEST` and `NLM_F_DUMP` of include/uapi/linux/netlink.h.
const FLAGS_REQUEST_DUMP: u16 = 0x301;

/// `NLM_F_DUMP_INTR` of include/uapi/linux/netlink.h: the table has changed during the dump, which may be incomplete.
const FLAG_INTERRUPTED: u16 = 0x10;

/// Maximum number of dumps for one answer. Reason: changes of the table can interrupt one; four in a row are a fault.
const DUMPS_MAX: u32 = 4;

/// Address families of include/linux/socket.h.
const INET: u8 = 2;
const INET6: u8 = 10;

/// Number of TCP among the protocols of IP.
const TCP: u8 = 6;

/// Attributes of include/uapi/linux/inet_diag.h.
const ATTRIBUTE_INFO: u16 = 2;
const ATTRIBUTE_VEGAS: u16 = 3;
const ATTRIBUTE_CONGESTION: u16 = 4;
const ATTRIBUTE_MEMORY: u16 = 7;
const ATTRIBUTE_BBR: u16 = 16;

/// States `TCP_ESTABLISHED`, `TCP_FIN_WAIT1` and `TCP_CLOSE_WAIT` of include/net/tcp_states.h. Reason for the last two:
/// one end has closed, and data may still be on its way.
const STATES: u32 = 1 << 1 | 1 << 4 | 1 << 8;

/// Lengths of `struct nlmsghdr`, `struct inet_diag_msg` and `struct inet_diag_sockid` in bytes.
const HEADER_BYTES: usize = 16;
const BODY_BYTES: usize = 72;
const SOCKET_ID_BYTES: usize = 48;

/// Size of the receive buffer in bytes. Reason: the kernel fills at most 32 KiB at a time.
const BUFFER_BYTES: usize = 64 << 10;

/// Maximum number of connections that are read. Reason: a host with more has a reading time of over a second.
pub const CONNECTIONS_MAX: usize = 1 << 18;

impl Connections {
    /// Opens the reader. Errors: the kernel has no `NETLINK_SOCK_DIAG` for this process.
    pub fn open() -> Result<Self, Error> {
        let socket = open_socket().map_err(refused)?;
        Ok(Self { socket, buffer: vec![0; BUFFER_BYTES], sequence: 0 })
    }

    /// Reads all connections of both families. Cost: about 2 µs for each.
    ///
    /// Errors: the kernel refuses the request, as without the module `tcp_diag`, or interrupts each of four dumps.
    pub fn read(&mut self) -> Result<Vec<Connection>, Error> {
        let mut found = Vec::new();
        for family in [INET, INET6] {
            self.read_family(family, &mut found).map_err(refused)?;
        }
        Ok(found)
    }

    fn read_family(&mut self, family: u8, found: &mut Vec<Connection>) -> io::Result<()> {
        let mut last = io::Error::from(io::ErrorKind::Interrupted);
        for _ in 0..DUMPS_MAX {
            self.sequence = self.sequence.wrapping_add(1);
            let mut dump = Dump::new(self.sequence, CONNECTIONS_MAX - found.len().min(CONNECTIONS_MAX));
            match self.read_dump(family, &mut dump) {
                Ok(State::Failed(error)) => last = error,
                Ok(_) => {
                    found.append(&mut dump.found);
                    return Ok(());
                }
                Err(error) => {
                    last = error;
                    // The rest of an answer may be left, before whose end the socket takes no request.
                    self.socket = open_socket()?;
                }
            }
        }
        Err(last)
    }

    /// Reads the answer to one request. Errors: the kernel refuses the request.
    fn read_dump(&mut self, family: u8, dump: &mut Dump) -> io::Result<State> {
        sendto(&self.socket, &request(family, dump.sequence), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        loop {
            let length = match recv(&self.socket, &mut self.buffer[..], RecvFlags::empty()) {
                Ok((_, 0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((_, length)) => length.min(self.buffer.len()),
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            match dump.handle(&self.buffer[..length])? {
                State::More => {}
                state => return Ok(state),
            }
        }
    }
}

fn open_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::NETLINK, SocketType::DGRAM, SocketFlags::CLOEXEC, Some(SOCK_DIAG))?)
}

fn refused(error: io::Error) -> Error {
    let text = "read the TCP connections of this host (NETLINK_SOCK_DIAG); try: modprobe tcp_diag";
    Error::new(ErrorKind::Io, Scope::Client, Phase::Prepare, text).caused_by(error)
}

/// Returns the request for all connections of a family: `struct nlmsghdr` and `struct inet_diag_req_v2`.
fn request(family: u8, sequence: u32) -> Vec<u8> {
    // The request for Vegas stands for every congestion control, and the answer has its own attribute.
    let attributes = [ATTRIBUTE_INFO, ATTRIBUTE_VEGAS, ATTRIBUTE_CONGESTION, ATTRIBUTE_MEMORY];
    let attributes = attributes.iter().fold(0, |bits, attribute| bits | 1 << (attribute - 1));
    let length = HEADER_BYTES + 8 + SOCKET_ID_BYTES;
    let mut bytes = Vec::with_capacity(length);
    bytes.extend((length as u32).to_ne_bytes());
    bytes.extend(BY_FAMILY.to_ne_bytes());
    bytes.extend(FLAGS_REQUEST_DUMP.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    // Port of the sender, which the kernel fills in.
    bytes.extend([0; 4]);
    bytes.extend([family, TCP, attributes, 0]);
    bytes.extend(STATES.to_ne_bytes());
    // Any addresses and ports.
    bytes.extend([0; SOCKET_ID_BYTES]);
    bytes
}

/// State of a dump.
#[derive(Debug)]
enum State {
    More,
    Complete,
    /// The dump has ended, and is not complete.
    Failed(io::Error),
}

/// Answer to a request.
#[derive(Debug)]
struct Dump {
    /// Sequence number of the request. Messages with another one are the rest of an answer that was given up.
    sequence: u32,
    /// Maximum number of connections.
    found_max: usize,
    found: Vec<Connection>,
    is_interrupted: bool,
}

impl Dump {
    fn new(sequence: u32, found_max: usize) -> Self {
        Self { sequence, found_max, found: Vec::new(), is_interrupted: false }
    }

    /// Parses the messages of one datagram. Messages that are cut short are skipped. Errors: the kernel refuses the
    /// request.
    fn handle(&mut self, mut bytes: &[u8]) -> io::Result<State> {
        while bytes.len() >= HEADER_BYTES {
            let length = (number(bytes, 0) as usize).clamp(HEADER_BYTES, bytes.len());
            let body = &bytes[HEADER_BYTES..length];
            if number(bytes, 8) == self.sequence {
                self.is_interrupted |= u16::from_ne_bytes([bytes[6], bytes[7]]) & FLAG_INTERRUPTED != 0;
                // The number of an error is negative.
                let errno = (number(body, 0) as i32).wrapping_neg();
                match u16::from_ne_bytes([bytes[4], bytes[5]]) {
                    MESSAGE_DONE if errno > 0 => return Ok(State::Failed(io::Error::from_raw_os_error(errno))),
                    MESSAGE_DONE if self.is_interrupted => {
                        return Ok(State::Failed(io::ErrorKind::Interrupted.into()));
                    }
                    MESSAGE_DONE => return Ok(State::Complete),
                    MESSAGE_ERROR => return Err(io::Error::from_raw_os_error(errno)),
                    BY_FAMILY if self.found.len() < self.found_max => self.found.extend(parse(body)),
                    _ => {}
                }
            }
            bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
        }
        Ok(State::More)
    }
}

/// Parses a `struct inet_diag_msg` and its attributes. Returns `None` if it is cut short.
fn parse(body: &[u8]) -> Option<Connection> {
    let (fixed, mut attributes) = body.split_at_checked(BODY_BYTES)?;
    let port = |offset: usize| u16::from_be_bytes([fixed[offset], fixed[offset + 1]]);
    let address = |offset: usize| {
        let bytes: [u8; 16] = fixed[offset..offset + 16].try_into().ok()?;
        let [a, b, c, d, ..] = bytes;
        Some(match fixed[0] {
            INET => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
            // An IPv6 socket may carry an IPv4 connection.
            _ => IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical(),
        })
    };
    let mut connection = Connection {
        cookie: u64::from(number(fixed, 44)) | u64::from(number(fixed, 48)) << 32,
        local: SocketAddr::new(address(8)?, port(4)),
        remote: SocketAddr::new(address(24)?, port(6)),
        inode: u64::from(number(fixed, 68)),
        congestion: String::new(),
        bbr_rate: None,
        info: TcpInfo::default(),
        memory: SocketMemory::default(),
    };
    while attributes.len() >= 4 {
        let length = usize::from(u16::from_ne_bytes([attributes[0], attributes[1]])).clamp(4, attributes.len());
        let value = &attributes[4..length];
        match u16::from_ne_bytes([attributes[2], attributes[3]]) {
            ATTRIBUTE_INFO => connection.info = TcpInfo::parse(value),
            ATTRIBUTE_MEMORY => connection.memory = SocketMemory::parse(value),
            ATTRIBUTE_BBR => {
                let bytes = u64::from(number(value, 0)) | u64::from(number(value, 4)) << 32;
                connection.bbr_rate = Some(BitRate::from_bytes_per_second(bytes));
            }
            ATTRIBUTE_CONGESTION => {
                let name = value.split(|byte| *byte == 0).next().unwrap_or_default();
                connection.congestion = String::from_utf8_lossy(name).into_owned();
            }
            _ => {}
        }
        attributes = &attributes[length.next_multiple_of(4).min(attributes.len())..];
    }
    Some(connection)
}

/// Returns the number of 32 bits at `offset`; 0 if the bytes end before.
fn number(bytes: &[u8], offset: usize) -> u32 {
    let bytes = bytes.get(offset..offset + 4).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use sterna_seeded::{Seeded, for_seeds};

    use super::*;

    #[test]
    fn both_ends_of_a_connection_of_this_host_are_read() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // A host without IPv6 has the first case only.
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let mut here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut there, _) = listener.accept().unwrap();
            here.write_all(&[7; 5000]).unwrap();
            there.read_exact(&mut [0; 5000]).unwrap();
            let (local, remote) = (here.local_addr().unwrap(), here.peer_addr().unwrap());
            let all = Connections::open().unwrap().read().unwrap();
            let find = |local, remote| all.iter().find(|one| (one.local, one.remote) == (local, remote)).unwrap();
            let (sends, receives) = (find(local, remote), find(remote, local));
            assert_eq!(receives.info.bytes_received.unwrap().0, 5000);
            assert!(sends.inode > 0 && sends.cookie != receives.cookie, "{sends:?}");
            assert!(sends.info.snd_mss > 0 && !sends.congestion.is_empty(), "{sends:?}");
            assert!(sends.memory.send_limit.0 > 0 && receives.memory.receive_limit.0 > 0, "{receives:?}");
            assert_eq!(sends.bbr_rate.is_some(), sends.congestion == "bbr", "{sends:?}");
            assert_eq!(sends.sample().sent, u64::from(sends.info.data_segs_out.unwrap()));
        }
    }

    const SEQUENCE: u32 = 7;

    /// Message of a kernel.
    fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(HEADER_BYTES + body.len()).unwrap().to_ne_bytes();
        let (kind, flags, sequence) = (kind.to_ne_bytes(), flags.to_ne_bytes(), sequence.to_ne_bytes());
        [&length[..], &kind, &flags, &sequence, &[0; 4], body].concat()
    }

    #[test]
    fn only_a_complete_answer_to_the_request_counts() {
        let connection = |flags, sequence| message(BY_FAMILY, flags, sequence, &[0; BODY_BYTES]);
        let done = |flags, sequence, errno: i32| message(MESSAGE_DONE, flags, sequence, &(-errno).to_ne_bytes());
        let handle = |messages: &[Vec<u8>]| {
            let mut dump = Dump::new(SEQUENCE, 4);
            let state = dump.handle(&messages.concat()).unwrap();
            let failure = match state {
                State::Failed(error) => Some(error.to_string()),
                State::Complete => None,
                State::More => Some("more".to_owned()),
            };
            (dump.found.len(), failure)
        };
        assert_eq!(handle(&[connection(2, SEQUENCE), done(2, SEQUENCE, 0)]), (1, None));
        // The rest of an answer that was given up.
        let stale = [connection(2, 6), done(2, 6, 0), message(MESSAGE_ERROR, 0, 6, &(-1_i32).to_ne_bytes())];
        assert_eq!(handle(&stale), (0, Some("more".to_owned())));
        assert_eq!(handle(&[&stale[..], &[connection(2, SEQUENCE), done(2, SEQUENCE, 0)]].concat()), (1, None));
        // The table has changed meanwhile, as the first or the last message tells.
        let interrupted = Some(io::Error::from(io::ErrorKind::Interrupted).to_string());
        let flags = 2 | FLAG_INTERRUPTED;
        assert_eq!(handle(&[connection(flags, SEQUENCE), done(2, SEQUENCE, 0)]), (1, interrupted.clone()));
        assert_eq!(handle(&[connection(2, SEQUENCE), done(flags, SEQUENCE, 0)]), (1, interrupted));
        let no_memory = Some(io::Error::from_raw_os_error(libc::ENOMEM).to_string());
        assert_eq!(handle(&[connection(2, SEQUENCE), done(2, SEQUENCE, libc::ENOMEM)]), (1, no_memory));
        let refused = message(MESSAGE_ERROR, 0, SEQUENCE, &(-libc::EPERM).to_ne_bytes());
        let error = Dump::new(SEQUENCE, 4).handle(&refused).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
    }

    /// A reader that has given an answer up reads the next one, and not its rest. The kernel takes no request before.
    #[test]
    fn an_answer_that_was_given_up_is_not_read() {
        let mut connections = Connections::open().unwrap();
        let given_up = request(INET, u32::MAX);
        sendto(&connections.socket, &given_up, SendFlags::empty(), &SocketAddrNetlink::new(0, 0)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let local = here.local_addr().unwrap();
        let all = connections.read().unwrap();
        assert_eq!(all.iter().filter(|one| one.local == local).count(), 1);
    }

    #[test]
    fn damaged_messages_never_panic() {
        for_seeds("connections: damaged messages", 2000, |seed| {
            let mut random = Seeded::new(seed);
            let length = random.below(400) as usize;
            let mut bytes = random.bytes(length);
            // Most messages have the type of a connection, so that the parser of the body runs.
            if bytes.len() > 6 && random.below(4) > 0 {
                bytes[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
                bytes[..4].copy_from_slice(&(length as u32).to_ne_bytes());
            }
            // And half of them belong to the request.
            if bytes.len() > 12 && random.below(2) > 0 {
                bytes[8..12].copy_from_slice(&SEQUENCE.to_ne_bytes());
            }
            let _ = Dump::new(SEQUENCE, 4).handle(&bytes);
        });
    }
}
