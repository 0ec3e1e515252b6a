//! One observed connection: its samples, the waits of its program, and its limits by time.

use std::time::{Duration, Instant};

use sterna_net::measure::Connection;
use sterna_net::sys::TcpInfo;
use sterna_proto::ByteCount;
use sterna_proto::limit::{LaneSample, TcpSample, TransportSample, Waits};
use sterna_proto::session::LaneId;

use super::ends::{Direction, HostLimits};
use super::share::Times;

/// One end of a connection, observed since `begun`.
#[derive(Debug)]
pub struct Socket {
    /// Latest sample, and its time.
    pub latest: Connection,
    /// Time of the latest sample.
    pub at: Instant,
    /// State at the start of the current interval, and its time.
    pub interval: (Instant, Counters),
    /// Limits in the current interval.
    pub times: Times,
    /// State of the observation.
    pub state: State,
}

/// State of the observation of a socket.
#[derive(Debug)]
pub enum State {
    /// It carries too little to be judged.
    Quiet {
        /// True if data waited to be sent at every sample of the interval.
        has_backlog: bool,
    },
    /// It is judged.
    Judged(Box<Judged>),
}

/// Accounts of a judged socket.
#[derive(Debug)]
pub struct Judged {
    /// Number among the lanes of its accountant.
    pub lane: LaneId,
    /// Direction that is judged.
    pub direction: Direction,
    /// Waits of its program since it is judged.
    pub waits: Waits,
    /// Earlier state, for the window of a receiver.
    look: Option<(Instant, TcpInfo)>,
    /// Time of the last byte that came in.
    heard: Instant,
    /// Kind of the send buffer.
    pub send_buffer: SendBuffer,
}

/// Who sets the size of a send buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendBuffer {
    /// The kernel tunes it.
    Tuned,
    /// The program has set it (`SO_SNDBUF`).
    Set,
}

/// Counters of a connection since it opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes that the other end has acknowledged.
    pub acked: u64,
    /// Bytes received in order.
    pub received: u64,
    /// Segments with data sent, retransmissions included.
    pub sent: u64,
    /// Segments retransmitted.
    pub resent: u64,
}

impl Counters {
    /// Returns the counters of a connection.
    pub fn of(connection: &Connection) -> Self {
        let info = &connection.info;
        Self {
            acked: info.bytes_acked.unwrap_or_default().0,
            received: info.bytes_received.unwrap_or_default().0,
            sent: u64::from(info.data_segs_out.unwrap_or(0)),
            resent: u64::from(info.total_retrans),
        }
    }

    /// Returns the difference to earlier counters.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            acked: self.acked.saturating_sub(before.acked),
            received: self.received.saturating_sub(before.received),
            sent: self.sent.saturating_sub(before.sent),
            resent: self.resent.saturating_sub(before.resent),
        }
    }
}

impl Socket {
    /// Creates the record of a socket at its first sample.
    pub fn new(now: Instant, connection: Connection) -> Self {
        let interval = (now, Counters::of(&connection));
        let has_backlog = has_backlog(&connection);
        let state = State::Quiet { has_backlog };
        Self { latest: connection, at: now, interval, times: Times::new(), state }
    }

    /// Adds a sample. Returns the time since the one before, and the sample before.
    pub fn add(&mut self, now: Instant, connection: Connection) -> (Duration, Connection) {
        let time = now.saturating_duration_since(self.at);
        self.at = now;
        let is_waiting = has_backlog(&connection);
        if let State::Quiet { has_backlog } = &mut self.state {
            *has_backlog &= is_waiting;
        }
        (time, std::mem::replace(&mut self.latest, connection))
    }
}

fn has_backlog(connection: &Connection) -> bool {
    connection.info.notsent.is_some_and(|bytes| bytes.0 > 0)
}

/// Part of a receive buffer with unread data, from which its program reads late. Reason: a reader that keeps up leaves
/// less than a round trip's data for a moment.
const UNREAD: u64 = 4;

/// Returns true if the program at a receiver reads late.
pub fn reads_late(receiver: &Connection) -> bool {
    receiver.memory.receive_used.0 * UNREAD > receiver.memory.receive_limit.0
}

/// Shortest time between two checks of a receive window; a round trip if that is longer.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Time without a byte, at least four round trips, from which a sender has nothing to send.
const RESTS: Duration = Duration::from_secs(1);

/// Check of the receive window of this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Time since the check before.
    pub time: Duration,
    /// True if as much arrived in each round trip as the window allows.
    pub is_full: bool,
    /// True if packets arrived out of order.
    pub is_disordered: bool,
}

impl Judged {
    /// Creates the accounts of a socket.
    pub fn new(now: Instant, lane: LaneId, direction: Direction) -> Self {
        let waits = Waits::default();
        Self { lane, direction, waits, look: None, heard: now, send_buffer: SendBuffer::Tuned }
    }

    /// Returns the sample of a sending socket, after `time` since the sample `before`.
    ///
    /// The program of a backlogged socket waits for the transport. If nothing is left to send and the buffer has room,
    /// the transport waits for the program.
    pub fn sending(&mut self, before: &Connection, now: &Connection, time: Duration, host: &HostLimits) -> LaneSample {
        let mut tcp = now.sample();
        // The last part of a write waits until it fills a segment: that is no backlog.
        if tcp.unsent.0 < u64::from(now.info.snd_mss.max(1)) {
            tcp.unsent = ByteCount(0);
        }
        if self.send_buffer == SendBuffer::Tuned && is_set_by_program(before, &tcp, host) {
            self.send_buffer = SendBuffer::Set;
        }
        let send_buffer_max = match self.send_buffer {
            SendBuffer::Tuned => host.buffers.send_max,
            SendBuffer::Set => tcp.send_buffer,
        };
        let idle = idle_time(before, now, &tcp, (time, send_buffer_max));
        self.waits.idle += idle;
        self.waits.transport += time.saturating_sub(idle);
        let tcp = TcpSample { send_buffer_max, ..tcp };
        LaneSample { feeder: self.waits, transport: TransportSample::Tcp(tcp) }
    }

    /// Returns the sample of a receiving socket at `at`, after `time` since the sample `before`, and the check of its
    /// window if one was due.
    pub fn receiving(
        &mut self,
        at: Instant,
        before: &Connection,
        now: &Connection,
        time: Duration,
    ) -> (LaneSample, Option<Look>) {
        if now.info.bytes_received != before.info.bytes_received {
            self.heard = at;
        }
        let silent = at.saturating_duration_since(self.heard);
        let wait = match () {
            () if reads_late(now) => &mut self.waits.transport,
            () if silent > RESTS.max(now.rtt_min() * 4) => &mut self.waits.idle,
            () => &mut self.waits.storage,
        };
        *wait += time;
        let sample = LaneSample { feeder: self.waits, transport: TransportSample::InProcess };
        (sample, self.look(at, &now.info, now.rtt_min()))
    }

    fn look(&mut self, at: Instant, info: &TcpInfo, rtt: Duration) -> Option<Look> {
        let (since, before) = *self.look.get_or_insert((at, *info));
        let time = at.saturating_duration_since(since);
        if time < LOOK_EVERY.max(rtt) {
            return None;
        }
        self.look = Some((at, *info));
        let is_disordered = info.rcv_ooopack > before.rcv_ooopack;
        Some(Look { time, is_full: info.fills_window(&before, time), is_disordered })
    }
}

/// Part of a send buffer in use, from which it is full: a program that was woken writes again when a third is free.
const BUFFER_FULL: f64 = 0.6;

/// Returns the part of `time` in which a sender had too little data from its program.
fn idle_time(
    before: &Connection,
    now: &Connection,
    tcp: &TcpSample,
    (time, buffer_max): (Duration, ByteCount),
) -> Duration {
    let busy = now.info.busy.unwrap_or(time).saturating_sub(before.info.busy.unwrap_or_default());
    let without_data = if now.info.busy.is_some() { time.saturating_sub(busy) } else { Duration::ZERO };
    let earlier = before.sample();
    let is_held = tcp.rwnd_limited > earlier.rwnd_limited || tcp.sndbuf_limited > earlier.sndbuf_limited;
    // Data is always in flight on a long path, and the kernel counts the connection as busy.
    // A smaller buffer than the maximum grows when it is full.
    let has_room = !is_buffer_full(tcp) || tcp.send_buffer.0 < buffer_max.0 / 10 * 9;
    if tcp.unsent.0 == 0 && has_room && !is_held { time } else { without_data.min(time) }
}

fn is_buffer_full(tcp: &TcpSample) -> bool {
    tcp.send_queued.0 as f64 > tcp.send_buffer.0 as f64 * BUFFER_FULL
}

/// Returns true if the program has set the send buffer: it is full and did not grow, though the kernel gives a buffer
/// of twice the congestion window and more.
fn is_set_by_program(before: &Connection, tcp: &TcpSample, host: &HostLimits) -> bool {
    let stays = before.memory.send_limit == tcp.send_buffer && is_buffer_full(&before.sample());
    let is_small = tcp.send_buffer.0 < host.buffers.send_max.0 / 10 * 9 && tcp.send_buffer.0 < tcp.window.0 * 2;
    stays && is_small && is_buffer_full(tcp) && tcp.in_flight < tcp.window && tcp.unsent.0 < ONE_WRITE
}

/// Unsent bytes below which the buffer delays the next byte. Reason: the kernel sends at once what the windows allow.
const ONE_WRITE: u64 = 4096;

/// Returns the rate in a direction over an interval.
pub fn moved(counters: &Counters, direction: Direction) -> ByteCount {
    ByteCount(match direction {
        Direction::Out => counters.acked,
        Direction::In => counters.received,
    })
}
