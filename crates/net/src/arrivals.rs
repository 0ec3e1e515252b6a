//! TCP connections that have not sent their ClientHello yet: one thread accepts and watches all of them.
//!
//! Accepts connections, and waits for the first bytes of many sockets at once with epoll. Reads them with `MSG_PEEK`,
//! which leaves the bytes in the socket. Hands a socket on when its whole first record is there. When all places are
//! taken, [`Crowd`] chooses the socket that is reset. Refuses to take bytes out of a socket, answer, or start a thread.
//! A place costs a socket and about 200 bytes.
//!
//! The arithmetic: a client sends its ClientHello together with the acknowledgement that opens the connection. So an
//! honest client is here for a few milliseconds, whatever its round-trip time. Assume 2,000 bare connections per second
//! from any number of prefixes. The honest client then stays with a probability of `exp(-2000 x 0.005 / 4096)`, above
//! 0.99. If the packet with its ClientHello is lost, the repetition arrives after up to 2 s at an RTT of 660 ms. The
//! probability is then 0.38, and 0.61 at 1,000 connections per second. The next try of the client has the first
//! probability again.

use std::io;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use socket2::SockRef;

use crate::crowd::Crowd;
use crate::lane::tcp;

/// Maximum number of connections without a ClientHello, if the process may have enough descriptors. Reason: 2 s at
/// 2,000 per second; 16 MB of kernel memory for the sockets.
pub const ARRIVALS_MAX: usize = 4096;

/// Maximum time to the ClientHello. Reason: a packet that is lost twice arrives after 6 s at an RTT of 660 ms.
const ARRIVAL_TIME_MAX: Duration = Duration::from_secs(10);

/// Maximum number of connections that wait in the kernel to be accepted. Reason: 2 s at 2,000 per second; kernels allow
/// as many by default.
const BACKLOG: i32 = 4096;

/// Maximum number of bytes of a first record to wait for. Reason: a ClientHello of ours has less than 1 KiB; a longer
/// one is read after the handover.
const RECORD_BYTES_MAX: usize = 4096;

/// Maximum number of connections accepted in a turn, and of sockets checked in a turn.
const TURN_MAX: usize = 256;

/// Number of the listener among the numbers of connections.
const LISTENER: u64 = u64::MAX;

/// Listener, and the connections that wait for their ClientHello.
pub struct Arrivals {
    listener: TcpListener,
    epoll: OwnedFd,
    waiting: Crowd<Arrival>,
    swept: Instant,
}

struct Arrival {
    stream: TcpStream,
    from: SocketAddr,
    since: Instant,
}

/// Outcome of a connection.
pub enum Arrived {
    /// The first record is there.
    Ready(TcpStream),
    /// The peer has closed the connection, or was silent for too long.
    Left,
    /// The connection was reset to make room for another one.
    Evicted,
}

impl Arrivals {
    /// Watches `listener`, for at most `places_max` connections.
    ///
    /// Errors: the system cannot create an epoll instance.
    pub fn new(listener: TcpListener, places_max: usize) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        rustix::net::listen(&listener, BACKLOG)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
        Ok(Self { listener, epoll, waiting: Crowd::new(places_max), swept: Instant::now() })
    }

    /// Waits up to `time_max` for an event, and reports the outcome of connections.
    ///
    /// Errors: no connection can be accepted, usually because no descriptor is free.
    pub fn turn(&mut self, time_max: Duration, mut report: impl FnMut(SocketAddr, Arrived)) -> io::Result<()> {
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; TURN_MAX];
        // Every duration in this program fits into a `Timespec`.
        let timeout = Timespec::try_from(time_max).ok();
        let ready = match epoll::wait(&self.epoll, &mut events[..], timeout.as_ref()) {
            Ok((ready, _)) => ready,
            Err(Errno::INTR) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        };
        let mut knocks = false;
        for event in ready {
            match event.data.u64() {
                LISTENER => knocks = true,
                number => self.look_at(number, &mut report),
            }
        }
        let now = Instant::now();
        if now.saturating_duration_since(self.swept) >= ARRIVAL_TIME_MAX / 10 {
            self.swept = now;
            let is_late = |arrival: &Arrival| now.saturating_duration_since(arrival.since) > ARRIVAL_TIME_MAX;
            self.waiting.remove_all(is_late).into_iter().for_each(|late| report(late.reset(), Arrived::Left));
        }
        if knocks { self.accept(now, &mut report) } else { Ok(()) }
    }

    fn accept(&mut self, now: Instant, report: &mut impl FnMut(SocketAddr, Arrived)) -> io::Result<()> {
        for _ in 0..TURN_MAX {
            let (stream, from) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // The peer closed the connection before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => match self.waiting.evict() {
                    // No descriptor is free: evicting one of our own connections frees one.
                    Some(evicted) => {
                        report(evicted.reset(), Arrived::Evicted);
                        continue;
                    }
                    None => return Err(error),
                },
            };
            // Usually the ClientHello is here already.
            match first_record(&stream) {
                FirstRecord::Whole => report(from, Arrived::Ready(stream)),
                FirstRecord::Never => report(from, Arrived::Left),
                FirstRecord::Awaited => self.watch(Arrival { stream, from, since: now }, report)?,
            }
        }
        Ok(())
    }

    fn watch(&mut self, arrival: Arrival, report: &mut impl FnMut(SocketAddr, Arrived)) -> io::Result<()> {
        let (number, evicted) = self.waiting.add(arrival.from.ip(), arrival);
        evicted.into_iter().for_each(|evicted| report(evicted.reset(), Arrived::Evicted));
        // Edge-triggered: bytes of an incomplete record must not wake this thread for as long as they are in the
        // socket.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        self.waiting.find(number).map_or(Ok(()), |arrival| {
            Ok(epoll::add(&self.epoll, &arrival.stream, epoll::EventData::new_u64(number), flags)?)
        })
    }

    /// Checks a connection on which something has arrived.
    fn look_at(&mut self, number: u64, report: &mut impl FnMut(SocketAddr, Arrived)) {
        // A connection that was evicted in this turn does not exist any more.
        let Some(record) = self.waiting.find(number).map(|arrival| first_record(&arrival.stream)) else { return };
        if record == FirstRecord::Awaited {
            return;
        }
        let Some(Arrival { stream, from, .. }) = self.waiting.remove(number) else { return };
        if record == FirstRecord::Never {
            return report(from, Arrived::Left);
        }
        // Fails only for a descriptor that is not watched.
        let _ = epoll::delete(&self.epoll, &stream);
        report(from, Arrived::Ready(stream));
    }
}

/// State of the first record of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FirstRecord {
    Awaited,
    /// Complete, or long enough to be read.
    Whole,
    /// The peer has closed the connection.
    Never,
}

/// Checks the first bytes of a connection and leaves them in the socket.
fn first_record(stream: &TcpStream) -> FirstRecord {
    let mut bytes = [0; RECORD_BYTES_MAX];
    match rustix::net::recv(stream, &mut bytes[..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((0, _)) => FirstRecord::Never,
        Ok((count, _)) if count == RECORD_BYTES_MAX || tcp::is_whole_record(&bytes[..count]) => FirstRecord::Whole,
        Ok(_) | Err(Errno::AGAIN | Errno::INTR) => FirstRecord::Awaited,
        Err(_) => FirstRecord::Never,
    }
}

impl Arrival {
    /// Resets the connection at once: the kernel keeps no state of it.
    fn reset(self) -> SocketAddr {
        // Without this option the close is orderly, and the kernel keeps the connection for a minute.
        let _ = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
        self.from
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    fn arrivals(places_max: usize) -> (Arrivals, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        (Arrivals::new(listener, places_max).unwrap(), addr)
    }

    /// Runs turns until something is reported.
    fn next(arrivals: &mut Arrivals) -> (SocketAddr, Arrived) {
        let mut reports = Vec::new();
        while reports.is_empty() {
            arrivals.turn(Duration::from_secs(1), |from, arrived| reports.push((from, arrived))).unwrap();
        }
        assert_eq!(reports.len(), 1);
        reports.remove(0)
    }

    #[test]
    fn a_connection_is_handed_on_with_its_whole_first_record_and_not_before() {
        let (mut arrivals, addr) = arrivals(4);
        let mut silent = TcpStream::connect(addr).unwrap();
        let mut slow = TcpStream::connect(addr).unwrap();
        slow.write_all(&[22, 3, 1, 0, 4, 1, 0]).unwrap();
        let mut quick = TcpStream::connect(addr).unwrap();
        quick.write_all(&[22, 3, 1, 0, 4, 1, 0, 0, 0]).unwrap();
        let (from, Arrived::Ready(mut stream)) = next(&mut arrivals) else { panic!("a record was due") };
        assert_eq!(from, quick.local_addr().unwrap());
        let mut record = [0; 9];
        stream.read_exact(&mut record).unwrap();
        assert_eq!(record, [22, 3, 1, 0, 4, 1, 0, 0, 0], "nothing is taken from the handshake");
        slow.write_all(&[0, 0]).unwrap();
        let (from, Arrived::Ready(_)) = next(&mut arrivals) else { panic!("a record was due") };
        assert_eq!(from, slow.local_addr().unwrap());
        let from = silent.local_addr().unwrap();
        silent.shutdown(std::net::Shutdown::Both).unwrap();
        assert!(matches!(next(&mut arrivals), (left, Arrived::Left) if left == from));
        assert_eq!(silent.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn garbage_is_handed_on_to_be_refused() {
        let (mut arrivals, addr) = arrivals(4);
        TcpStream::connect(addr).unwrap().write_all(b"GET / HTTP/1.1").unwrap();
        assert!(matches!(next(&mut arrivals), (_, Arrived::Ready(_))));
    }

    #[test]
    fn one_more_than_there_are_places_ends_another_at_once() {
        let (mut arrivals, addr) = arrivals(2);
        let mut peers: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(addr).unwrap()).collect();
        let (evicted, Arrived::Evicted) = next(&mut arrivals) else { panic!("an eviction was due") };
        let peer = peers.iter_mut().find(|peer| peer.local_addr().unwrap() == evicted).unwrap();
        assert_eq!(peer.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(arrivals.waiting.len(), 2);
    }
}
