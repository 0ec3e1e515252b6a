//! Replies to packets of STAMP and TWAMP Light.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::super::stamp::{NtpTime, Probe, Reflection, reflect};
use super::send::unix_time;
use crate::sys::Inbox;

/// Bytes of a packet that are kept. Reason: packets of 9 kB get a reply of their size; larger ones get none.
pub(super) const ROOM: usize = 9216;

/// Replies to plain STAMP each second, and at once. Reason: monitoring sends 1 to 100 packets a second.
const REPLIES_PER_SECOND: f64 = 1000.0;

/// Sends a received packet back. Ignores packets that are too short, or larger than the room.
pub(super) fn answer(socket: &UdpSocket, inbox: &mut Inbox, index: usize, to: SocketAddr) {
    let packet = inbox.packet(index);
    let Some(probe) = Probe::read(packet.data).filter(|_| packet.length == packet.data.len()) else { return };
    let now = unix_time();
    let reflection = Reflection {
        // A stateless reflector (RFC 8762 section 4).
        number: probe.number,
        received: NtpTime::of_unix(packet.at.unwrap_or(now)),
        sent: NtpTime::of_unix(now),
        ttl: packet.ttl.unwrap_or(0),
    };
    let data = inbox.data_mut(index);
    if reflect(data, &reflection) {
        // A reply that cannot be sent is a lost packet to its receiver.
        let _ = socket.send_to(data, to);
    }
}

/// Allowance of replies for an origin: a token bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    replies: f64,
    at: Instant,
}

impl Allowance {
    /// Begins with a full bucket.
    pub(super) fn new(now: Instant) -> Self {
        Self { replies: REPLIES_PER_SECOND, at: now }
    }

    /// Takes one reply. Returns false if none is left.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let more = now.saturating_duration_since(self.at).as_secs_f64() * REPLIES_PER_SECOND;
        self.replies = (self.replies + more).min(REPLIES_PER_SECOND);
        self.at = self.at.max(now);
        let may_reply = self.replies >= 1.0;
        if may_reply {
            self.replies -= 1.0;
        }
        may_reply
    }

    /// Returns true if the bucket is full again, so that the origin can be forgotten.
    pub(super) fn is_full(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) >= Duration::from_secs(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_gets_a_thousand_replies_a_second() {
        let start = Instant::now();
        let mut allowance = Allowance::new(start);
        assert_eq!((0..5000).filter(|_| allowance.take(start)).count(), 1000);
        assert!(!allowance.is_full(start));
        let later = start + Duration::from_millis(100);
        assert_eq!((0..5000).filter(|_| allowance.take(later)).count(), 100);
        // A clock that goes back gives nothing.
        assert_eq!((0..5000).filter(|_| allowance.take(start)).count(), 0);
        assert!(allowance.is_full(start + Duration::from_secs(2)));
    }
}
