//! Passive diagnosis: limits of the connections that any program of this host has open.
//!
//! Its input is the list of all connections, about ten times a second ([`Watch::handle`]). Connections above a rate are
//! judged by the accountant of limits (`sterna_proto::limit`), those between the same two addresses together. Once a
//! second it returns a [`Row`] for each, and at the end a [`Verdict`] for each limit of a path. Refuses to read a clock
//! or a socket.

mod bound;
mod ends;
mod path;
mod remedy;
mod share;
mod socket;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use serde::Serialize;
use sterna_net::measure::Connection;
use sterna_proto::limit::{LaneSample, TcpSample};
use sterna_proto::session::LaneId;
use sterna_proto::{BitRate, ByteCount};

pub use self::bound::Bound;
use self::ends::JUDGED_MAX;
pub use self::ends::{Direction, HostLimits};
use self::path::Path;
pub use self::path::PathSummary;
pub use self::remedy::{Basis, Verdict};
pub use self::share::Share;
use self::share::{Times, shares, thousandths};
use self::socket::{Counters, Judged, Socket, State, moved, reads_late};

/// Connection in one interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Number of the socket, which stays the same in all intervals.
    pub socket: u64,
    /// Number by which processes are found.
    #[serde(skip)]
    pub inode: u64,
    /// Address of this end.
    pub local: SocketAddr,
    /// Address of the other end.
    pub remote: SocketAddr,
    /// Direction that is judged.
    pub direction: Direction,
    /// Rate of TCP payload in that direction, bit/s.
    pub rate_bps: u64,
    /// Smoothed round-trip time, µs.
    pub rtt_us: u64,
    /// Smallest round-trip time, µs.
    pub rtt_min_us: u64,
    /// Congestion control of this end.
    pub congestion: String,
    /// Rate that bbr measures as that of the bottleneck, bit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bbr_bps: Option<u64>,
    /// Congestion window, bytes.
    pub congestion_window_bytes: u64,
    /// Bytes in flight.
    pub in_flight_bytes: u64,
    /// Bytes that were given to the kernel and not sent.
    pub unsent_bytes: u64,
    /// Window that the other end announces, bytes.
    pub peer_window_bytes: u64,
    /// Window that this end announces, bytes.
    pub own_window_bytes: u64,
    /// Send buffer, bytes.
    pub send_buffer_bytes: u64,
    /// Receive buffer, bytes.
    pub receive_buffer_bytes: u64,
    /// Memory of data that arrived and was not read, bytes.
    pub unread_bytes: u64,
    /// Share of the segments sent that were retransmissions.
    pub retransmitted: f64,
    /// Shares of time by limit, the largest first; empty for data whose sender on this host has the account.
    pub limits: Vec<Share>,
}

/// Two addresses and a direction: connections of the same path are judged together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PathKey {
    local: IpAddr,
    remote: IpAddr,
    direction: Direction,
}

/// Observer of the connections of this host.
#[derive(Debug)]
pub struct Watch {
    host: HostLimits,
    rate_min: BitRate,
    sockets: BTreeMap<u64, Socket>,
    paths: BTreeMap<PathKey, Path>,
    lanes: u32,
}

/// Maximum number of paths with an account. Reason: a server that is observed for days meets many clients.
const PATHS_MAX: usize = 4096;

/// Lane samples of one path, and the reports about its receivers on this host.
#[derive(Default)]
struct Turn {
    lanes: Vec<(LaneId, LaneSample)>,
    sockets: BTreeMap<LaneId, u64>,
}

impl Watch {
    /// Creates an observer that judges connections from `rate_min` on.
    pub fn new(host: HostLimits, rate_min: BitRate) -> Self {
        Self { host, rate_min, sockets: BTreeMap::new(), paths: BTreeMap::new(), lanes: 0 }
    }

    /// Processes the state of all connections at `now`. Call it about ten times a second.
    pub fn handle(&mut self, now: Instant, connections: &[Connection]) {
        let ends: BTreeMap<(SocketAddr, SocketAddr), &Connection> =
            connections.iter().map(|one| ((one.local, one.remote), one)).collect();
        let mut turns: BTreeMap<PathKey, Turn> = BTreeMap::new();
        for connection in connections {
            let peer = ends.get(&(connection.remote, connection.local)).copied();
            let Some(socket) = self.sockets.get_mut(&connection.cookie) else {
                self.sockets.insert(connection.cookie, Socket::new(now, connection.clone()));
                continue;
            };
            let (time, before) = socket.add(now, connection.clone());
            let State::Judged(judged) = &mut socket.state else { continue };
            let key =
                PathKey { local: connection.local.ip(), remote: connection.remote.ip(), direction: judged.direction };
            let Some(path) = self.paths.get_mut(&key) else { continue };
            let sample = match judged.direction {
                Direction::Out => {
                    let sample = judged.sending(&before, connection, time, &self.host);
                    path.add_sender(
                        (connection, now),
                        judged.send_buffer,
                        peer.map(|peer| (peer, reads_late(peer))),
                        time,
                    );
                    sample
                }
                Direction::In => {
                    let (sample, look) = judged.receiving(now, &before, connection, time);
                    path.add_receiver((connection, now), look);
                    sample
                }
            };
            let counters = Counters::of(connection).since(&Counters::of(&before));
            path.add_moved(moved(&counters, judged.direction), time);
            let turn = turns.entry(key).or_default();
            turn.lanes.push((judged.lane, sample));
            turn.sockets.insert(judged.lane, connection.cookie);
        }
        self.sockets.retain(|_, socket| socket.at == now);
        for (key, turn) in turns {
            self.judge(now, &key, &turn);
        }
    }

    fn judge(&mut self, now: Instant, key: &PathKey, turn: &Turn) {
        let Some(path) = self.paths.get_mut(key) else { return };
        for (lane, limit, time) in path.judge(now, &turn.lanes) {
            let socket = turn.sockets.get(&lane).and_then(|cookie| self.sockets.get_mut(cookie));
            socket.into_iter().for_each(|socket| *socket.times.entry(limit).or_default() += time);
        }
    }

    /// Ends an interval. Returns its connections, the fastest first, and decides which are judged in the next one.
    pub fn end_interval(&mut self, now: Instant) -> Vec<Row> {
        let ends: BTreeMap<(SocketAddr, SocketAddr), u64> =
            self.sockets.iter().map(|(cookie, one)| ((one.latest.local, one.latest.remote), *cookie)).collect();
        let judged = self.sockets.values().filter(|socket| matches!(socket.state, State::Judged(_))).count();
        let mut room = JUDGED_MAX.saturating_sub(judged);
        let mut rows = Vec::new();
        for socket in self.sockets.values_mut() {
            let counters = Counters::of(&socket.latest);
            let (since, before) = std::mem::replace(&mut socket.interval, (now, counters));
            let moved = counters.since(&before);
            let time = now.saturating_duration_since(since);
            let direction = if moved.received > moved.acked { Direction::In } else { Direction::Out };
            // The sender has the account, if it is on this host too.
            let is_counted_there =
                ends.contains_key(&(socket.latest.remote, socket.latest.local)) && direction == Direction::In;
            let times = std::mem::take(&mut socket.times);
            match &mut socket.state {
                State::Judged(judged) => {
                    if moved.received.max(moved.acked) > 0 && judged.direction != direction {
                        **judged = Judged::new(now, judged.lane, direction);
                    }
                    rows.push(row(&socket.latest, judged.direction, &moved, time, &times));
                }
                State::Quiet { has_backlog } => {
                    let rate = BitRate::mean(ByteCount(moved.received.max(moved.acked)), time);
                    let is_wanted = (rate >= self.rate_min || *has_backlog) && !time.is_zero() && !is_counted_there;
                    *has_backlog = socket.latest.info.notsent.is_some_and(|bytes| bytes.0 > 0);
                    if !is_wanted || room == 0 {
                        continue;
                    }
                    room -= 1;
                    self.lanes = self.lanes.wrapping_add(1);
                    socket.state = State::Judged(Box::new(Judged::new(now, LaneId(self.lanes), direction)));
                    rows.push(row(&socket.latest, direction, &moved, time, &times));
                }
            }
        }
        self.open_paths();
        rows.retain(|row| row.rate_bps > 0 || row.in_flight_bytes > 0 || row.unsent_bytes > 0);
        rows.sort_by_key(|row| std::cmp::Reverse(row.rate_bps));
        rows
    }

    /// Opens the accounts of paths with judged connections.
    fn open_paths(&mut self) {
        for socket in self.sockets.values() {
            let State::Judged(judged) = &socket.state else { continue };
            let (local, remote) = (socket.latest.local.ip(), socket.latest.remote.ip());
            let key = PathKey { local, remote, direction: judged.direction };
            if self.paths.len() < PATHS_MAX {
                self.paths.entry(key).or_insert_with(|| Path::new(judged.direction));
            }
        }
    }

    /// Returns the verdicts of all paths, those with the most bytes first.
    pub fn summary(&self) -> Vec<PathSummary> {
        let mut paths: Vec<PathSummary> =
            self.paths.iter().filter_map(|(key, path)| path.summary(key.local, key.remote, &self.host)).collect();
        paths.sort_by_key(|path| std::cmp::Reverse(path.bytes));
        paths
    }
}

/// Returns the row of a connection.
fn row(latest: &Connection, direction: Direction, counters: &Counters, time: Duration, times: &Times) -> Row {
    let TcpSample { window, in_flight, unsent, receive_window, send_buffer, rtt, rtt_min, .. } = latest.sample();
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    Row {
        socket: latest.cookie,
        inode: latest.inode,
        local: latest.local,
        remote: latest.remote,
        direction,
        rate_bps: BitRate::mean(moved(counters, direction), time).0,
        rtt_us: micros(rtt),
        rtt_min_us: micros(rtt_min),
        congestion: latest.congestion.clone(),
        bbr_bps: latest.bbr_rate.map(|rate| rate.0),
        congestion_window_bytes: window.0,
        in_flight_bytes: in_flight.0,
        unsent_bytes: unsent.0,
        peer_window_bytes: receive_window.0,
        own_window_bytes: latest.info.rcv_wnd.unwrap_or_default().0,
        send_buffer_bytes: send_buffer.0,
        receive_buffer_bytes: latest.memory.receive_limit.0,
        unread_bytes: latest.memory.receive_used.0,
        retransmitted: thousandths(counters.resent as f64 / counters.sent.max(1) as f64),
        limits: shares(times),
    }
}
