//! One UDP packet after the other to a host, and the ICMP message that each causes.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::SockRef;

use crate::sys::{self, Inbox, QueuedError};

/// Number of the error of a packet that is too large.
const TOO_BIG: i32 = rustix::io::Errno::MSGSIZE.raw_os_error();

/// Type of the ICMP message "time exceeded", in IPv4 and IPv6.
const EXPIRED: [u8; 2] = [11, 3];

/// Bytes of a packet that are kept: its number.
const ROOM: usize = 16;

/// Outcome of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Its TTL ended at a router.
    Expired(IpAddr),
    /// It arrived at the host.
    Arrived,
    /// A router refuses to forward it.
    Refused(IpAddr),
    /// A router, or this host (`None`), reports that it is larger than the MTU of the next link.
    TooBig(Option<IpAddr>, u32),
    /// Nothing came back.
    Silent,
}

/// Sender of packets with the same addresses and ports: routers that spread flows see one flow.
pub(super) struct Prober {
    socket: UdpSocket,
    remote: IpAddr,
    inbox: Inbox,
    number: u32,
    end: Instant,
    /// Packets and bytes sent.
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

impl Prober {
    /// Opens the socket. No packet is sent after `end`. Errors: those of the system.
    pub(super) fn open(local: IpAddr, remote: SocketAddr, end: Instant) -> io::Result<Self> {
        let socket = UdpSocket::bind(SocketAddr::new(local, 0))?;
        sys::set_up_datagrams(&socket, remote.is_ipv4())?;
        socket.connect(remote)?;
        let (remote, inbox) = (remote.ip(), Inbox::new(1, ROOM));
        Ok(Self { socket, remote, inbox, number: 0, end, packets: 0, bytes: 0 })
    }

    /// Returns true if no more packets may be sent.
    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }

    /// Sends a packet of `size` bytes, with headers, and waits for its outcome and the time of it.
    pub(super) fn send(&mut self, ttl: u8, size: u32, wait: Duration) -> io::Result<(Outcome, Duration)> {
        let socket = SockRef::from(&self.socket);
        match self.remote {
            IpAddr::V4(_) => socket.set_ttl_v4(ttl.into())?,
            IpAddr::V6(_) => socket.set_unicast_hops_v6(ttl.into())?,
        }
        self.number += 1;
        let headers = if self.remote.is_ipv4() { 28 } else { 48 };
        let mut payload = vec![0; (size.saturating_sub(headers) as usize).max(4)];
        payload[..4].copy_from_slice(&self.number.to_be_bytes());
        // Late messages of earlier packets.
        while self.inbox.next_error(&self.socket).is_some() {}
        let began = Instant::now();
        let sent = self.socket.send(&payload);
        if let Err(error) = &sent {
            if error.raw_os_error() == Some(TOO_BIG) {
                let mtu = self.inbox.next_error(&self.socket).map_or(0, |error| error.info);
                return Ok((Outcome::TooBig(None, mtu), Duration::ZERO));
            }
            // The error is that of an earlier packet: it is gone now.
            self.socket.send(&payload)?;
        }
        self.packets += 1;
        self.bytes += u64::from(size);
        Ok(self.wait(began, wait))
    }

    fn wait(&mut self, began: Instant, wait: Duration) -> (Outcome, Duration) {
        let end = (began + wait).min(self.end);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return (Outcome::Silent, wait);
            }
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
            // An interrupted wait is a short one.
            let _ = poll(&mut polled, Some(&timeout));
            let events = polled[0].revents();
            if events.contains(PollFlags::ERR)
                && let Some(outcome) = self.next_outcome()
            {
                return (outcome, began.elapsed());
            }
            if events.contains(PollFlags::IN) && self.inbox.receive(&self.socket).is_ok_and(|count| count > 0) {
                // A program has answered.
                return (Outcome::Arrived, began.elapsed());
            }
        }
    }

    /// Returns the outcome of the last packet, if the error queue has it.
    fn next_outcome(&mut self) -> Option<Outcome> {
        while let Some(error) = self.inbox.next_error(&self.socket) {
            // Many routers return the head of a packet without its payload.
            if error.mark.is_none_or(|mark| mark == self.number) {
                return Some(outcome_of(&error, self.remote));
            }
        }
        None
    }
}

/// Returns the outcome that an ICMP message reports.
fn outcome_of(error: &QueuedError, remote: IpAddr) -> Outcome {
    let expired = EXPIRED[usize::from(remote.is_ipv6())];
    match error.from {
        _ if error.number == TOO_BIG => Outcome::TooBig(error.from.filter(|_| !error.is_local), error.info),
        Some(from) if from == remote => Outcome::Arrived,
        Some(from) if error.icmp.0 == expired => Outcome::Expired(from),
        Some(from) => Outcome::Refused(from),
        None => Outcome::Silent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn icmp_messages_have_their_outcomes() {
        let (router, server) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 9]));
        let error = |from, number, icmp| {
            let error = QueuedError { number, is_local: false, info: 1400, icmp, from: Some(from), mark: None };
            outcome_of(&error, server)
        };
        assert_eq!(error(router, 113, (11, 0)), Outcome::Expired(router));
        assert_eq!(error(server, 111, (3, 3)), Outcome::Arrived);
        assert_eq!(error(router, 113, (3, 13)), Outcome::Refused(router));
        assert_eq!(error(router, TOO_BIG, (3, 4)), Outcome::TooBig(Some(router), 1400));
    }

    #[test]
    fn a_closed_port_of_this_host_is_an_arrival() {
        for local in [IpAddr::from([127, 0, 0, 1]), IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])] {
            let Ok(closed) = UdpSocket::bind(SocketAddr::new(local, 0)) else { continue };
            let at = closed.local_addr().unwrap();
            drop(closed);
            let end = Instant::now() + Duration::from_secs(60);
            let mut prober = Prober::open(local, at, end).unwrap();
            for size in [100, 1400, 9000] {
                let (outcome, _) = prober.send(1, size, Duration::from_secs(10)).unwrap();
                assert_eq!(outcome, Outcome::Arrived, "{size}");
            }
            assert_eq!((prober.packets, prober.bytes), (3, 10_500));
        }
    }
}
