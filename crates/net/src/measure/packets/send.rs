//! Sender of a packet train.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::io::Errno;
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};

use super::super::TRAIN_BIN;
use super::super::message::{SentSize, SentTrain};
use super::super::stamp::{BASE_BYTES, NtpTime, Probe};
use super::pace::{Pace, Step};
use super::plan::Plan;
use super::socket::SocketErrors;
use crate::sys::{Inbox, Outbox, UDP_PAYLOAD_MAX};

/// Packets of one system call at most. Reason: a batch of 250 us at 3 Gbit/s; the time stamp of the last one is early
/// by the time of the call.
const BATCH_PACKETS: usize = 64;

/// Attempts to send a packet. Reason: an ICMP error of earlier packets fails one call, and more may come meanwhile.
const ATTEMPTS: u32 = 4;

/// Longest wait without a look for the end of the train.
const WAIT_MAX: Duration = Duration::from_millis(200);

/// Time after a size sweep of an agent in which ICMP errors arrive. Reason: the longest round trip to a router.
const ICMP_WITHIN: Duration = Duration::from_secs(1);

/// Part of the rate that a sender keeps that is not behind, in percent.
const KEPT_PERCENT: u64 = 98;

/// Ports between which a train goes.
pub(super) enum Route<'a> {
    /// From these connected sockets of the client.
    FromPorts(&'a [UdpSocket]),
    /// From the socket of the agent to these ports of the client.
    ToPorts(&'a UdpSocket, &'a [SocketAddr]),
}

/// Sends a train until its end, or until `stop`. Returns what was sent.
///
/// Errors: `Unreachable`: the system refused all packets.
pub(super) fn send(
    plan: &Plan,
    session: u16,
    route: &Route<'_>,
    errors: &SocketErrors,
    stop: &AtomicBool,
) -> Result<SentTrain, Error> {
    // Without it, the kernel wakes a thread up to 50 us late. It holds for this thread, which ends with the train.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let mut sender = Sender {
        plan,
        session,
        route,
        errors,
        outbox: Outbox::new(BATCH_PACKETS, BASE_BYTES, padding()?),
        inbox: Inbox::new(1, BASE_BYTES),
        sent: SentTrain {
            sizes: vec![SentSize::default(); plan.sizes().len()],
            ports: vec![0; plan.ports as usize],
            ..SentTrain::default()
        },
        last_error: None,
    };
    let (start, epoch) = (Instant::now(), unix_time());
    let mut pace = Pace::new(plan.rate_bps);
    while sender.sent.packets < plan.packets && !stop.load(Ordering::Relaxed) {
        let now = start.elapsed();
        if now > plan.time_max() {
            break;
        }
        let now_ns = nanos(now);
        match pace.step(now_ns, u64::from(plan.size(sender.sent.packets))) {
            Step::Wait(until) => thread::sleep(Duration::from_nanos(until - now_ns).min(WAIT_MAX)),
            Step::Send(bytes) => pace.sent(now_ns, sender.batch(bytes, now, epoch + now)),
        }
    }
    // A client reads its errors again once the agent has reported, which waits for lost packets.
    if plan.sizes().len() > 1 && matches!(route, Route::ToPorts(..)) {
        wait_for(ICMP_WITHIN, stop);
    }
    sender.take_errors();
    let mut sent = sender.sent;
    if let Some(error) = sender.last_error.filter(|_| sent.drops == sent.packets) {
        let text = "send the packets of a train by UDP: the system refuses all of them";
        let failed = Error::new(ErrorKind::Unreachable, Scope::Path, Phase::Transfer, text);
        return Err(failed.retry(Retry::After).caused_by(error));
    }
    sent.too_big_mtu = errors.too_big_mtu();
    sent.pause_us = pace.pause() / 1000;
    let is_short = sent.packets < plan.packets * KEPT_PERCENT / 100;
    sent.behind = is_short || pace.shifted() * 100 > nanos(plan.time) * (100 - KEPT_PERCENT);
    Ok(sent)
}

struct Sender<'a> {
    plan: &'a Plan,
    session: u16,
    route: &'a Route<'a>,
    errors: &'a SocketErrors,
    outbox: Outbox,
    inbox: Inbox,
    sent: SentTrain,
    last_error: Option<io::Error>,
}

/// Outcome of a packet.
enum Fate {
    Sent,
    /// The interface takes no packet of this size.
    Refused,
    /// A queue or a filter of this host dropped it.
    Dropped,
    /// The interface has taken nothing for some time; the packet is not used.
    Blocked,
}

impl Sender<'_> {
    /// Sends the next packets, up to `bytes` bytes and at least one. Returns the bytes of those that were used.
    fn batch(&mut self, bytes: u64, since_start: Duration, at: Duration) -> u64 {
        let first = self.sent.packets;
        // With several sockets, each call sends one packet, so that the ports keep their turn.
        let count_max = match self.route {
            Route::FromPorts(sockets) if sockets.len() > 1 => 1,
            _ => BATCH_PACKETS.min(usize::try_from(self.plan.packets - first).unwrap_or(BATCH_PACKETS)),
        };
        let (mut prepared, mut count) = (0, 0);
        while count < count_max {
            let number = first + count as u64;
            prepared += u64::from(self.plan.size(number));
            // A refused size ends a batch: it is counted at its turn, without an attempt.
            if count > 0 && (prepared > bytes || self.plan.is_refused(number, &self.sent)) {
                break;
            }
            self.prepare(count, number, since_start, at);
            count += 1;
        }
        if self.plan.is_refused(first, &self.sent) {
            return self.count(&Fate::Refused, since_start);
        }
        let (mut used, mut done) = (0, 0);
        while done < count {
            let socket = self.socket(first + done as u64);
            let (fate, packets) = match self.outbox.send(socket, done..count) {
                Ok(sent) => (Fate::Sent, sent),
                Err(error) => (self.try_again(done, socket, error), 1),
            };
            used += (0..packets).map(|_| self.count(&fate, since_start)).sum::<u64>();
            done += packets;
            // After a refusal the rest of the batch has other packets of its size.
            if matches!(fate, Fate::Blocked | Fate::Refused) {
                break;
            }
        }
        used
    }

    fn prepare(&mut self, index: usize, number: u64, since_start: Duration, at: Duration) {
        let length = self.plan.size(number) - self.plan.header;
        let to = match self.route {
            Route::FromPorts(_) => None,
            Route::ToPorts(_, ports) => ports.get(self.plan.port_index(number)).copied(),
        };
        let probe = Probe {
            // Smaller than `TRAIN_PACKETS_MAX`.
            number: number as u32,
            sent: NtpTime::of_unix(at),
            session: self.session,
            in_train: nanos(since_start) + 1,
        };
        if let Ok(head) = self.outbox.prepare(index, length as usize, to).try_into() {
            probe.write(head);
        }
    }

    /// Sends a packet again after an error of its call, which may be that of an earlier packet.
    fn try_again(&mut self, index: usize, socket: &UdpSocket, mut error: io::Error) -> Fate {
        for _ in 0..ATTEMPTS {
            match Errno::from_io_error(&error) {
                Some(Errno::NOBUFS | Errno::PERM) => break,
                Some(Errno::AGAIN) => return Fate::Blocked,
                _ => self.errors.take(socket, &mut self.inbox),
            }
            match self.outbox.send(socket, index..index + 1) {
                Ok(_) => return Fate::Sent,
                Err(again) => error = again,
            }
        }
        if Errno::from_io_error(&error) == Some(Errno::MSGSIZE) {
            return Fate::Refused;
        }
        self.last_error = Some(error);
        Fate::Dropped
    }

    /// Counts the next packet. Returns its size.
    fn count(&mut self, fate: &Fate, since_start: Duration) -> u64 {
        let number = self.sent.packets;
        let (bytes, index) = (u64::from(self.plan.size(number)), self.plan.size_index(number));
        let size = &mut self.sent.sizes[index];
        match fate {
            Fate::Blocked => return 0,
            Fate::Refused => {
                size.refused += 1;
                size.refused_from.get_or_insert(number);
                self.sent.packets += 1;
                return bytes;
            }
            Fate::Dropped => self.sent.drops += 1,
            Fate::Sent => {}
        }
        size.sent += 1;
        self.sent.packets += 1;
        self.sent.ports[self.plan.port_index(number)] += 1;
        let bin = usize::try_from(since_start.as_nanos() / TRAIN_BIN.as_nanos()).unwrap_or(usize::MAX);
        if bin >= self.sent.bins.len() {
            // Below `Plan::time_max`.
            self.sent.bins.resize(bin + 1, (0, 0));
        }
        self.sent.bins[bin].0 += 1;
        self.sent.bins[bin].1 += bytes;
        bytes
    }

    /// Reads the ICMP errors of all sockets.
    fn take_errors(&mut self) {
        match self.route {
            Route::FromPorts(sockets) => {
                sockets.iter().for_each(|socket| self.errors.take(socket, &mut self.inbox));
            }
            Route::ToPorts(socket, _) => self.errors.take(socket, &mut self.inbox),
        }
    }
}

impl<'a> Sender<'a> {
    /// Returns the socket from which a packet goes.
    fn socket(&self, number: u64) -> &'a UdpSocket {
        match self.route {
            Route::FromPorts(sockets) => &sockets[self.plan.port_index(number) % sockets.len()],
            Route::ToPorts(socket, _) => socket,
        }
    }
}

/// Waits for a time, or until `stop`.
fn wait_for(time: Duration, stop: &AtomicBool) {
    let end = Instant::now() + time;
    while !stop.load(Ordering::Relaxed) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::sleep(left.min(WAIT_MAX));
    }
}

/// Returns the padding of packets: random, so that no device compresses it.
fn padding() -> Result<Vec<u8>, Error> {
    let mut padding = vec![0; UDP_PAYLOAD_MAX - BASE_BYTES];
    getrandom::fill(&mut padding).map_err(|e| crate::internal("ask the kernel for random bytes").caused_by(e))?;
    Ok(padding)
}

/// Returns the time since 1970; zero before.
pub(in crate::measure) fn unix_time() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Returns a time in nanoseconds.
pub(in crate::measure) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
