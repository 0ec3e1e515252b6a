//! Account of one path: all judged connections between two addresses, in one direction.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use serde::Serialize;
use sterna_net::measure::Connection;
use sterna_proto::limit::{Accountant, Facts, LaneSample, LimitTimes, ReceiverReport, SourceSample, WebSample};
use sterna_proto::session::LaneId;
use sterna_proto::{BitRate, ByteCount};

use super::bound::Bound;
use super::ends::{Direction, HostLimits, JUDGED_MAX};
use super::remedy::{Case, Seen, Verdict, verdict};
use super::share::{Share, Times, shares};
use super::socket::{Look, SendBuffer};

/// Account of a path.
#[derive(Debug)]
pub struct Path {
    direction: Direction,
    accountant: Accountant,
    /// Totals of the accountant at the sample before.
    counted: LimitTimes,
    times: Times,
    judged_at: Option<Instant>,
    bytes: u64,
    /// Time in which they moved, and the part of it that was not judged yet.
    time: Duration,
    turn: Duration,
    sockets: BTreeSet<u64>,
    receivers: Receivers,
    incoming: WebSample,
    seen: Seen,
}

/// Receivers of a path's data, by what is known about them.
#[derive(Debug)]
enum Receivers {
    /// On another host.
    Remote,
    /// On this host too: sums of their waits.
    Local(ReceiverReport),
}

/// Path at the end of an observation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PathSummary {
    /// Address of this host.
    pub local: IpAddr,
    /// Address of the other host.
    pub remote: IpAddr,
    /// Direction of the data.
    pub direction: Direction,
    /// Number of connections that were judged.
    pub connections: usize,
    /// Bytes of TCP payload.
    pub bytes: u64,
    /// Mean rate while it was judged, bit/s.
    pub rate_bps: u64,
    /// Smallest round-trip time, µs.
    pub rtt_min_us: u64,
    /// Shares of time by limit, the largest first.
    pub limits: Vec<Share>,
    /// Verdicts, the most binding first.
    pub verdicts: Vec<Verdict>,
}

/// Smallest share of the time of a limit with a verdict.
const SHARE_MIN: f64 = 0.1;

/// Maximum number of verdicts of a path. Reason: the third limit rarely binds after the first two are fixed.
const VERDICTS_MAX: usize = 3;

/// Time without growth from which a window has its full size, at least ten round trips.
const SETTLED: Duration = Duration::from_secs(1);

impl Path {
    /// Opens an account.
    pub fn new(direction: Direction) -> Self {
        let accountant = match direction {
            Direction::Out => Accountant::of_strangers(),
            Direction::In => Accountant::default(),
        };
        Self {
            direction,
            accountant,
            counted: LimitTimes::default(),
            times: Times::new(),
            judged_at: None,
            bytes: 0,
            time: Duration::ZERO,
            turn: Duration::ZERO,
            sockets: BTreeSet::new(),
            receivers: Receivers::Remote,
            incoming: WebSample::default(),
            seen: Seen::default(),
        }
    }

    /// Adds payload that a connection has moved in `time`.
    pub fn add_moved(&mut self, bytes: ByteCount, time: Duration) {
        self.bytes += bytes.0;
        self.turn = self.turn.max(time);
    }

    /// Adds the sample of a sender. `receiver`: its other end on this host, and true if that reads late.
    pub fn add_sender(
        &mut self,
        now: (&Connection, Instant),
        buffer: SendBuffer,
        receiver: Option<(&Connection, bool)>,
        time: Duration,
    ) {
        let (connection, at) = now;
        self.see(connection);
        self.seen.receiver_scale = connection.info.snd_wnd_scale;
        self.seen.is_send_buffer_set |= buffer == SendBuffer::Set;
        rise(&mut self.seen.window, connection.info.snd_wnd.unwrap_or_default(), at);
        let Some((receiver, is_late)) = receiver else { return };
        if matches!(self.receivers, Receivers::Remote) {
            self.receivers = Receivers::Local(ReceiverReport::default());
        }
        let Receivers::Local(report) = &mut self.receivers else { return };
        report.lane_time += time;
        *(if is_late { &mut report.storage } else { &mut report.waiting }) += time;
        report.buffer = report.buffer.max(receiver.memory.receive_limit);
        report.unread = receiver.memory.receive_used;
        report.window = report.window.max(receiver.info.rcv_wnd.unwrap_or_default());
        rise(&mut self.seen.buffer, receiver.memory.receive_limit, at);
    }

    /// Adds the sample of a receiver whose sender is on another host.
    pub fn add_receiver(&mut self, now: (&Connection, Instant), look: Option<Look>) {
        let (connection, at) = now;
        self.see(connection);
        self.seen.receiver_scale = connection.info.rcv_wnd_scale;
        let window = connection.info.rcv_wnd.unwrap_or_default();
        rise(&mut self.seen.window, window, at);
        rise(&mut self.seen.buffer, connection.memory.receive_limit, at);
        let incoming = &mut self.incoming;
        let rtt = connection.rtt_min();
        if incoming.rtt_min.is_zero() || !rtt.is_zero() && rtt < incoming.rtt_min {
            incoming.rtt_min = rtt;
        }
        if window >= incoming.receive_window {
            (incoming.receive_window, incoming.receive_buffer) = (window, connection.memory.receive_limit);
        }
        incoming.is_unscaled = !connection.info.window_scaling;
        let Some(look) = look else { return };
        incoming.waited += look.time;
        incoming.window_full += if look.is_full { look.time } else { Duration::ZERO };
        incoming.disordered += if look.is_disordered { look.time } else { Duration::ZERO };
    }

    fn see(&mut self, connection: &Connection) {
        if self.sockets.len() < JUDGED_MAX {
            self.sockets.insert(connection.cookie);
        }
        self.seen.mss = connection.info.snd_mss;
        if self.seen.congestion != connection.congestion {
            self.seen.congestion.clone_from(&connection.congestion);
        }
    }

    /// Judges the time since the samples before. Returns the limit of each lane, and that time.
    pub fn judge(&mut self, now: Instant, lanes: &[(LaneId, LaneSample)]) -> Vec<(LaneId, Bound, Duration)> {
        if let Receivers::Local(report) = &mut self.receivers {
            report.written = ByteCount(self.bytes);
            self.accountant.handle_report(now, report);
        }
        self.time += std::mem::take(&mut self.turn);
        let web = (self.direction == Direction::In).then_some(self.incoming);
        self.accountant.handle_samples(now, lanes, &SourceSample { web, ..SourceSample::default() });
        let (total, cause) = (self.accountant.report().total, self.accountant.window_cause());
        for limit in sterna_proto::limit::Limit::ALL {
            let time = total.of(limit).saturating_sub(self.counted.of(limit));
            if !time.is_zero() {
                *self.times.entry(Bound::of(limit, cause)).or_default() += time;
            }
        }
        self.counted = total;
        let since = self.judged_at.replace(now).unwrap_or(now);
        let time = now.saturating_duration_since(since);
        let judged = self.accountant.judgements().iter();
        judged.map(|judgement| (judgement.lane, Bound::of(judgement.limit, cause), time)).collect()
    }

    /// Returns the summary; `None` if nothing was judged.
    pub fn summary(&self, local: IpAddr, remote: IpAddr, host: &HostLimits) -> Option<PathSummary> {
        let limits = shares(&self.times);
        if limits.is_empty() {
            return None;
        }
        let facts = self.facts(host);
        let rate = BitRate::mean(ByteCount(self.bytes), self.time);
        let case = Case {
            direction: self.direction,
            facts,
            seen: &self.seen,
            host,
            remote,
            rate,
            connections: self.sockets.len(),
            is_receiver_here: self.direction == Direction::In || matches!(self.receivers, Receivers::Local(_)),
            is_window_settled: self.is_settled(self.seen.window, facts.rtt),
            is_buffer_settled: self.is_settled(self.seen.buffer, facts.rtt),
        };
        let named = limits.iter().filter(|share| share.share >= SHARE_MIN).take(VERDICTS_MAX);
        Some(PathSummary {
            local,
            remote,
            direction: self.direction,
            connections: self.sockets.len(),
            bytes: self.bytes,
            rate_bps: rate.0,
            rtt_min_us: u64::try_from(facts.rtt.as_micros()).unwrap_or(u64::MAX),
            verdicts: named.map(|share| verdict(*share, &case)).collect(),
            limits,
        })
    }

    /// Returns the measurements of the accountant, with the maximum of the receiver's buffer if that is on this host.
    fn facts(&self, host: &HostLimits) -> Facts {
        let facts = self.accountant.report().facts;
        let receive_buffer_max = match (self.direction, &self.receivers) {
            (Direction::Out, Receivers::Remote) => ByteCount(0),
            _ => host.buffers.receive_max,
        };
        Facts { receive_buffer_max, ..facts }
    }

    fn is_settled(&self, size: Option<(ByteCount, Instant)>, rtt: Duration) -> bool {
        let since = |at: Instant| self.judged_at.unwrap_or(at).saturating_duration_since(at);
        size.is_some_and(|(_, at)| since(at) >= SETTLED.max(rtt * 10))
    }
}

/// Records a size that has risen by more than a tenth.
fn rise(largest: &mut Option<(ByteCount, Instant)>, size: ByteCount, at: Instant) {
    if largest.is_none_or(|(before, _)| size.0 > before.0 + before.0 / 10) {
        *largest = Some((size, at));
    }
}
