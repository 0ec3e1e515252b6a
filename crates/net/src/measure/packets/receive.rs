//! Receiving end of trains and echoes: waits for packets on sockets and hands them on.

use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::stamp::Probe;
use super::log::Arrival;
use super::send::nanos;
use super::socket::SocketErrors;
use crate::sys::{self, Inbox, Received};

/// Packets of one system call.
const BATCH: usize = 64;

/// Longest wait for packets without a look for the end.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// Time between two reads of a train. Reason: one wakeup for many packets. The kernel records their times, and the
/// buffer of a host with default settings takes 90 packets, 1 ms at 1 Gbit/s.
const READ_EVERY: Duration = Duration::from_micros(200);

/// Time without packets after which a train or echoes have ended, once the sender has. Reason: a packet waits for the
/// timeout of nobody; only a queue of this length without other packets of the train is cut.
const SILENCE: Duration = Duration::from_secs(1);

/// The same time if no packet has come. Reason: half a round trip of 660 ms and a queue of 2 s.
const FIRST_WITHIN: Duration = Duration::from_secs(3);

/// Time after the record of the sender within which a train ends in any case. Reason: no queue is longer.
const LATE_MAX: Duration = Duration::from_secs(10);

/// Sockets and room for their packets.
pub(super) struct Receiver<'a> {
    sockets: &'a [UdpSocket],
    polled: Vec<PollFd<'a>>,
    errors: &'a SocketErrors,
    inbox: Inbox,
}

impl<'a> Receiver<'a> {
    /// Makes a receiver that keeps the first `room` bytes of each packet.
    pub(super) fn new(sockets: &'a [UdpSocket], errors: &'a SocketErrors, room: usize) -> Self {
        let polled = sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        Self { sockets, polled, errors, inbox: Inbox::new(BATCH, room) }
    }

    /// Waits for packets, up to [`WAIT_MAX`]. Hands each to `handle`, with the index of its socket, and its own index
    /// in the room. Returns the number of packets.
    pub(super) fn receive(&mut self, mut handle: impl FnMut(usize, &mut Inbox, usize)) -> usize {
        let timeout = Timespec { tv_sec: 0, tv_nsec: WAIT_MAX.subsec_nanos().into() };
        // An interrupted wait is a short one.
        if poll(&mut self.polled, Some(&timeout)).is_err() {
            return 0;
        }
        let mut received = 0;
        for (index, (socket, polled)) in self.sockets.iter().zip(&self.polled).enumerate() {
            if polled.revents().contains(PollFlags::ERR) {
                self.errors.take(socket, &mut self.inbox);
            }
            if !polled.revents().contains(PollFlags::IN) {
                continue;
            }
            // An error is that of an earlier packet, and its details are in the error queue.
            let count = self.inbox.receive(socket).unwrap_or(0);
            (0..count).for_each(|packet| handle(index, &mut self.inbox, packet));
            received += count;
        }
        received
    }
}

/// Waits before the next read of a train, if the last one emptied the sockets.
pub(super) fn gather(received: usize) {
    if received > 0 && received < BATCH {
        thread::sleep(READ_EVERY);
    }
}

/// Reads a packet of a train; `None`: of something else. `header`: bytes of its headers.
pub(super) fn arrival(session: u16, header: u32, packet: &Received<'_>) -> Option<Arrival> {
    let probe = Probe::read(packet.data).filter(|probe| probe.session == session)?;
    let sent_ns = probe.in_train.checked_sub(1)?;
    // A payload of UDP is below 64 KiB.
    let bytes = header + packet.length as u32;
    Some(Arrival { number: probe.number.into(), sent_ns, arrived_ns: nanos(packet.at?), bytes })
}

/// Judge of the end of packets that arrive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silence {
    /// Time from which the silence counts: the last packet, or the end of the sender.
    since: Instant,
    has_packets: bool,
    /// Time at which the sender ended.
    sender_end: Option<Instant>,
}

impl Silence {
    /// Begins at a time.
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, has_packets: false, sender_end: None }
    }

    /// Records packets.
    pub(super) fn handle_packets(&mut self, count: usize, now: Instant) {
        if count > 0 {
            (self.since, self.has_packets) = (now, true);
        }
    }

    /// Records that the sender has ended.
    pub(super) fn handle_sender_end(&mut self, now: Instant) {
        if self.sender_end.is_none() {
            (self.since, self.sender_end) = (now, Some(now));
        }
    }

    /// Returns true if no packet is expected any more.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        let Some(end) = self.sender_end else { return false };
        let silence = if self.has_packets { SILENCE } else { FIRST_WITHIN };
        now.saturating_duration_since(self.since) >= silence || now.saturating_duration_since(end) >= LATE_MAX
    }
}

/// Returns the number of packets that sockets have dropped since they were opened.
pub(super) fn drops(sockets: &[UdpSocket]) -> u64 {
    let dropped = |socket| sys::socket_memory(socket).unwrap_or_default().dropped_packets;
    sockets.iter().map(|socket| u64::from(dropped(socket))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_train_ends_a_second_after_its_last_packet_and_ten_after_its_sender() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut silence = Silence::new(start);
        assert!(!silence.is_over(start + 100 * second), "the sender has not ended");
        silence.handle_sender_end(start + second);
        assert!(!silence.is_over(start + 3 * second) && silence.is_over(start + 4 * second));
        for at in 2..11 {
            silence.handle_packets(1, start + at * second);
            assert!(!silence.is_over(start + at * second + second / 2));
        }
        assert!(silence.is_over(start + 11 * second), "a queue without end");
        silence.handle_packets(0, start + 20 * second);
        silence.handle_sender_end(start + 20 * second);
        assert!(silence.is_over(start + 20 * second));
    }
}
