//! Streams of iperf3 over UDP: numbered datagrams at a rate, and their loss, order and jitter.
//!
//! A datagram begins with the time of its departure (seconds and microseconds) and its number, from 1. A stream begins
//! with a greeting of 4 bytes and its reply. A server takes greetings only from the address that controls the test: a
//! forged address would otherwise get the data of the test.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use sterna_proto::Error;

use super::failed;
use crate::measure::flow::Role;
use crate::measure::packets::{Pace, Step, TRAIN_RATE_MAX, nanos, unix_time};

/// Greeting of a stream, and its reply, in the byte order of the host. Source: UDP_CONNECT_MSG, UDP_CONNECT_REPLY and
/// LEGACY_UDP_CONNECT_REPLY of iperf3.
const GREETING: u32 = 0x3637_3839;
const REPLY: u32 = 0x3938_3736;
const REPLY_BEFORE_3_11: u32 = 987_654_321;

/// Datagrams that are read before the reply to a greeting. Reason: a server that sends may overtake its reply.
const BEFORE_REPLY_MAX: u32 = 64;

/// Interval at which a stream looks whether the test is over.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Receive buffer in bytes, as far as the kernel gives it. Reason: 4 MiB hold 30 ms at 1 Gbit/s, the pause of a busy
/// host.
const RECEIVE_BUFFER: usize = 4 << 20;

/// Maximum size of a datagram.
const BUFFER_BYTES: usize = 1 << 16;

/// Datagrams of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Datagrams {
    /// Size without headers, from 16 bytes on.
    pub(super) bytes: usize,
    /// Rate of each stream without headers, bit/s.
    pub(super) rate_bps: u64,
    /// Numbers have 8 bytes, and not 4.
    pub(super) has_long_numbers: bool,
}

impl Datagrams {
    /// Describes the datagrams of a test. `rate_bps`: rate of each stream; 0: without limit. All streams together get
    /// at most the rate of the fastest packet train.
    pub(super) fn new(bytes: usize, rate_bps: u64, streams: u64, has_long_numbers: bool) -> Self {
        let share = TRAIN_RATE_MAX / streams.max(1);
        let rate_bps = if rate_bps == 0 { share } else { rate_bps.min(share) };
        Self { bytes, rate_bps, has_long_numbers }
    }
}

/// Observations of the datagrams of a test, at the receiver, summed over its streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DatagramReport {
    /// Datagrams sent, by the highest number.
    pub packets: u64,
    /// Datagrams lost.
    pub lost: u64,
    /// Datagrams that arrived behind one with a higher number; `None`: not reported.
    pub out_of_order: Option<u64>,
    /// Mean jitter of the streams (RFC 1889), microseconds.
    pub jitter_us: u64,
}

/// Counts of one end of a stream. The time to omit is not part of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Counts {
    pub(super) bytes: u64,
    /// Highest number of a datagram.
    pub(super) highest: u64,
    pub(super) lost: u64,
    pub(super) out_of_order: u64,
    /// Jitter in seconds.
    pub(super) jitter: f64,
    /// Highest number, and datagrams lost, in the time to omit.
    pub(super) omitted: (u64, u64),
    /// Time from the departure to the arrival of the last datagram by the clocks of both hosts, seconds.
    transit: Option<f64>,
}

impl Counts {
    /// Adds a datagram that arrived.
    pub(super) fn add(&mut self, number: u64, transit: f64, bytes: u64) {
        self.bytes += bytes;
        if number > self.highest {
            self.lost += number - self.highest - 1;
            self.highest = number;
        } else {
            self.out_of_order += 1;
            // It was counted as lost when a higher number arrived.
            self.lost = self.lost.saturating_sub(1);
        }
        let change = (transit - self.transit.unwrap_or(transit)).abs();
        self.transit = Some(transit);
        // RFC 1889, section 6.3.1.
        self.jitter += (change - self.jitter) / 16.0;
    }

    /// Begins to count: the time to omit is over.
    fn begin(&mut self) {
        *self = Self { omitted: (self.highest, self.lost), highest: self.highest, lost: self.lost, ..Self::default() };
    }
}

/// Times of a stream.
#[derive(Clone, Copy)]
pub(super) struct Times {
    pub(super) begin: Instant,
    pub(super) end: Instant,
}

/// Runs one end of a stream until the end of the test.
///
/// Errors: the kernel refuses a datagram.
pub(super) fn run(
    role: Role,
    socket: &UdpSocket,
    of: &Datagrams,
    times: Times,
    is_over: &AtomicBool,
) -> io::Result<Counts> {
    match role {
        Role::Sends => send(socket, of, times, is_over),
        Role::Receives => receive(socket, of, times, is_over),
    }
}

/// Sends until the end of the test.
fn send(socket: &UdpSocket, of: &Datagrams, times: Times, is_over: &AtomicBool) -> io::Result<Counts> {
    // As for a train.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    socket.set_write_timeout(Some(LOOK_EVERY))?;
    let start = Instant::now();
    let (mut counts, mut is_omitting) = (Counts::default(), times.begin > start);
    let mut pace = Pace::new(of.rate_bps);
    let mut datagram = vec![0x5a; of.bytes];
    loop {
        let now = Instant::now();
        if now >= times.end || is_over.load(Ordering::Relaxed) {
            return Ok(counts);
        }
        if is_omitting && now >= times.begin {
            is_omitting = false;
            counts.begin();
        }
        let now_ns = nanos(now.saturating_duration_since(start));
        match pace.step(now_ns, of.bytes as u64) {
            Step::Wait(until) => thread::sleep(Duration::from_nanos(until - now_ns).min(LOOK_EVERY)),
            Step::Send(bytes) => {
                let mut used = 0;
                while used == 0 || used + of.bytes as u64 <= bytes {
                    used += of.bytes as u64;
                    if !send_one(socket, of, &mut datagram, &mut counts)? {
                        break;
                    }
                }
                pace.sent(now_ns, used);
            }
        }
    }
}

/// Sends the next datagram. Returns false if the kernel does not take it now: its time has passed, and its number is
/// that of the next one.
fn send_one(socket: &UdpSocket, of: &Datagrams, datagram: &mut [u8], counts: &mut Counts) -> io::Result<bool> {
    let number = counts.highest + 1;
    write_head(datagram, number, of.has_long_numbers);
    match socket.send(datagram) {
        Ok(count) => {
            counts.highest = number;
            counts.bytes += count as u64;
            Ok(true)
        }
        // Full queues, and reports of a peer that has closed its socket.
        Err(error) if is_passing(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Receives until the end of the test.
fn receive(socket: &UdpSocket, of: &Datagrams, times: Times, is_over: &AtomicBool) -> io::Result<Counts> {
    let mut counts = Counts::default();
    let mut is_omitting = times.begin > Instant::now();
    let mut datagram = vec![0; BUFFER_BYTES];
    socket.set_read_timeout(Some(LOOK_EVERY))?;
    while Instant::now() < times.end && !is_over.load(Ordering::Relaxed) {
        let count = match socket.recv(&mut datagram) {
            Ok(count) => count,
            Err(error) if is_passing(&error) => continue,
            Err(error) => return Err(error),
        };
        if is_omitting && Instant::now() >= times.begin {
            is_omitting = false;
            counts.begin();
        }
        if let Some((departure, number)) = read_head(&datagram[..count], of.has_long_numbers) {
            counts.add(number, unix_time().as_secs_f64() - departure, count as u64);
        }
    }
    Ok(counts)
}

/// Returns true for errors after which a stream goes on.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), ConnectionRefused | Interrupted | TimedOut | WouldBlock)
        || error.raw_os_error() == Some(libc::ENOBUFS)
}

fn write_head(datagram: &mut [u8], number: u64, is_long: bool) {
    let now = unix_time();
    // The seconds wrap in 2106.
    let seconds = (now.as_secs() as u32).to_be_bytes();
    let numbered = match is_long {
        true => number.to_be_bytes().to_vec(),
        false => (number as u32).to_be_bytes().to_vec(),
    };
    let head = [&seconds[..], &now.subsec_micros().to_be_bytes(), &numbered].concat();
    datagram[..head.len()].copy_from_slice(&head);
}

/// Returns the departure in seconds and the number; `None`: the datagram is too short.
pub(super) fn read_head(datagram: &[u8], is_long: bool) -> Option<(f64, u64)> {
    let word = |at: usize| Some(u32::from_be_bytes(*datagram.get(at..)?.first_chunk()?));
    let number = match is_long {
        true => u64::from(word(8)?) << 32 | u64::from(word(12)?),
        false => u64::from(word(8)?),
    };
    Some((f64::from(word(0)?) + f64::from(word(4)?) / 1e6, number))
}

/// Socket of a server that waits for the greeting of a stream.
pub(super) struct Door {
    at: SocketAddr,
    socket: UdpSocket,
}

impl Door {
    /// Binds the address that the client has reached. Errors: it is in use.
    pub(super) fn open(at: SocketAddr) -> Result<Self, Error> {
        let bind = || {
            let socket = Socket::new(Domain::for_address(at), Type::DGRAM, Some(Protocol::UDP))?;
            // Each stream has the same address of this end, and another of its peer.
            socket.set_reuse_address(true)?;
            // The kernel gives at most its maximum.
            socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
            socket.bind(&at.into())?;
            Ok(UdpSocket::from(socket))
        };
        Ok(Self { at, socket: bind().map_err(|e| failed(&format!("listen on UDP {at} for an iperf3 test"), e))? })
    }

    /// Waits for a greeting from `peer`, and answers it. Returns the stream, and the door for the next one.
    pub(super) fn welcome(self, peer: IpAddr, until: Instant) -> Result<(UdpSocket, Self), Error> {
        let Self { at, socket } = self;
        let lost = |e| failed("wait for a stream of an iperf3 test over UDP", e);
        let mut bytes = [0; 64];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(lost(io::ErrorKind::TimedOut.into()));
            }
            socket.set_read_timeout(Some(left)).map_err(lost)?;
            match socket.recv_from(&mut bytes) {
                Ok((count, from)) if count == GREETING.to_ne_bytes().len() && from.ip() == peer => {
                    socket.connect(from).map_err(lost)?;
                    let next = Self::open(at)?;
                    socket.send(&REPLY.to_ne_bytes()).map_err(lost)?;
                    return Ok((socket, next));
                }
                Ok(_) => {}
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(lost(error)),
            }
        }
    }
}

/// Opens a stream to a server: sends a greeting and waits for its reply until `until`.
pub(super) fn open(remote: SocketAddr, local: Option<IpAddr>, until: Instant) -> Result<UdpSocket, Error> {
    let lost = |e| failed(&format!("open a stream to {remote} by UDP for an iperf3 test"), e);
    let any = if remote.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((local.unwrap_or(any), 0)).map_err(lost)?;
    // The kernel gives at most its maximum.
    SockRef::from(&socket).set_recv_buffer_size(RECEIVE_BUFFER).map_err(lost)?;
    socket.connect(remote).map_err(lost)?;
    socket.send(&GREETING.to_ne_bytes()).map_err(lost)?;
    let mut bytes = [0; 64];
    for _ in 0..BEFORE_REPLY_MAX {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        socket.set_read_timeout(Some(left)).map_err(lost)?;
        let count = socket.recv(&mut bytes).map_err(lost)?;
        if [REPLY, REPLY_BEFORE_3_11].iter().any(|reply| reply.to_ne_bytes() == bytes[..count]) {
            return Ok(socket);
        }
    }
    Err(lost(io::ErrorKind::TimedOut.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_losses_until_the_datagram_arrives_late() {
        let mut counts = Counts::default();
        for (number, transit) in [(1, 5.0), (2, 5.016), (5, 5.016), (4, 5.016), (6, 5.016)] {
            counts.add(number, transit, 100);
        }
        assert_eq!((counts.highest, counts.lost, counts.out_of_order, counts.bytes), (6, 1, 1, 500));
        // One change of 16 ms, smoothed by 16, and three times 15/16 of it.
        assert!((counts.jitter - 0.001 * (15.0_f64 / 16.0).powi(3)).abs() < 1e-9, "{}", counts.jitter);
        counts.begin();
        counts.add(8, 0.0, 100);
        assert_eq!((counts.omitted, counts.lost, counts.bytes), ((6, 1), 2, 100));
    }

    #[test]
    fn heads_are_read_as_they_are_written() {
        for (number, is_long) in [(1, false), (u64::from(u32::MAX), false), (1 << 40, true)] {
            let mut datagram = vec![0; 16];
            write_head(&mut datagram, number, is_long);
            let (departure, read) = read_head(&datagram, is_long).unwrap();
            assert!(read == number && departure > 1e9, "{departure} {read}");
        }
        assert_eq!((read_head(&[0; 11], false), read_head(&[0; 15], true)), (None, None));
    }

    #[test]
    fn no_test_exceeds_the_rate_of_the_fastest_train() {
        let rate = |rate_bps, streams| Datagrams::new(1250, rate_bps, streams, false).rate_bps;
        assert_eq!((rate(1_000_000, 64), rate(TRAIN_RATE_MAX, 1)), (1_000_000, TRAIN_RATE_MAX));
        for (wanted, streams) in [(0, 1), (0, 64), (u64::MAX, 1), (u64::MAX, 64), (TRAIN_RATE_MAX, 2)] {
            assert_eq!(rate(wanted, streams), TRAIN_RATE_MAX / streams, "{wanted} {streams}");
        }
    }
}
