//! What bound a transfer in a stretch of time.
//!
//! What it does: names limits ([`Limit`]), adds up time by limit ([`LimitTimes`]), decides for each tenth of a second from what
//! the kernel, the QUIC engine and our own threads say ([`Accountant`]), and says what can be done ([`remedy`]). What it
//! refuses to do: read a clock, ask a kernel, change anything. Snapshots come in with their time, shares of time leave.
//!
//! The end that sends decides, since it alone sees what holds the next byte back; where that is a web server, the end that asks
//! it says what held it back itself. The receiver tells it what its own threads
//! waited for ([`ReceiverReport`]); a sender that is an agent tells the client what it found ([`LimitReport`]). What a peer says
//! is shown to people and decides nothing else.

mod account;
mod path;
mod remedy;
mod report;
pub mod trace;
mod web;

use std::time::Duration;

pub use account::{Accountant, LaneJudgement, LaneSample, QuicSample, SourceSample, TcpSample, TransportSample, Waits};
pub use path::{Flow, PathHistory, PolicedRate, WindowCause};
pub use remedy::{Facts, remedy};
pub use report::{LimitReport, ReceiverReport};
pub(crate) use report::{read_time, write_time};
pub use web::WebSample;

/// What bound a transfer in a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// The window that the receiver announces.
    ReceiveWindow,
    /// The send buffer of the sender's kernel, or the memory of a QUIC lane.
    SendBuffer,
    /// The congestion window: it grows still, or the path is full.
    CongestionWindow,
    /// Losses that are not caused by a full queue.
    Loss,
    /// A device that drops what exceeds a rate.
    Policer,
    /// Reading the source.
    SourceDisk,
    /// Writing, verifying or publishing at the destination.
    DestinationDisk,
    /// The processors of one end.
    Cpu,
    /// The rate that was given.
    RateCap,
    /// The sender had nothing that it could send: names still being read, outcomes awaited, round trips at start and end.
    NothingToSend,
    /// A web server, or the path to it: what holds a server back only that knows, and nothing at this end did.
    ServerOrPath,
    /// Nothing came back of what was in flight: the path was away, or the host at its other end.
    Silence,
    /// The return direction is full: acknowledgements wait there, and windows open late.
    AckPath,
}

impl Limit {
    /// Every limit, in the order in which they are encoded.
    pub const ALL: [Self; 13] = [
        Self::ReceiveWindow,
        Self::SendBuffer,
        Self::CongestionWindow,
        Self::Loss,
        Self::Policer,
        Self::SourceDisk,
        Self::DestinationDisk,
        Self::Cpu,
        Self::RateCap,
        Self::NothingToSend,
        Self::ServerOrPath,
        Self::Silence,
        Self::AckPath,
    ];

    /// As people read it.
    pub fn words(self) -> &'static str {
        match self {
            Self::ReceiveWindow => "receive window",
            Self::SendBuffer => "send buffer",
            Self::CongestionWindow => "congestion window",
            Self::Loss => "loss",
            Self::Policer => "policer",
            Self::SourceDisk => "source disk",
            Self::DestinationDisk => "destination disk",
            Self::Cpu => "CPU",
            Self::RateCap => "rate cap",
            Self::NothingToSend => "nothing to send",
            Self::ServerOrPath => "server or path",
            Self::Silence => "silence",
            Self::AckPath => "return direction",
        }
    }

    /// As programs read it.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReceiveWindow => "receive_window",
            Self::SendBuffer => "send_buffer",
            Self::CongestionWindow => "congestion_window",
            Self::Loss => "loss",
            Self::Policer => "policer",
            Self::SourceDisk => "source_disk",
            Self::DestinationDisk => "destination_disk",
            Self::Cpu => "cpu",
            Self::RateCap => "rate_cap",
            Self::NothingToSend => "nothing_to_send",
            Self::ServerOrPath => "server_or_path",
            Self::Silence => "silence",
            Self::AckPath => "ack_path",
        }
    }

    fn index(self) -> usize {
        self as usize
    }
}

/// Time by limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitTimes([Duration; Limit::ALL.len()]);

impl LimitTimes {
    /// The time of one limit.
    pub fn of(&self, limit: Limit) -> Duration {
        self.0[limit.index()]
    }

    /// Adds to the time of one limit.
    pub fn add(&mut self, limit: Limit, time: Duration) {
        self.0[limit.index()] += time;
    }

    /// What was taken for one limit was another.
    pub fn rename(&mut self, from: Limit, to: Limit, time: Duration) {
        let time = time.min(self.of(from));
        self.0[from.index()] -= time;
        self.0[to.index()] += time;
    }

    /// Adds other times.
    pub fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(ours, theirs)| *ours += theirs);
    }

    /// All of it.
    pub fn total(&self) -> Duration {
        self.0.iter().sum()
    }

    /// The share of the time in which the path, or a window over it, was the limit. Range: 0 to 1.
    pub fn of_path(&self) -> f64 {
        let windows = [Limit::ReceiveWindow, Limit::SendBuffer, Limit::CongestionWindow];
        let paths = [Limit::Loss, Limit::Policer, Limit::AckPath];
        let time: Duration = windows.into_iter().chain(paths).map(|limit| self.of(limit)).sum();
        time.as_secs_f64() / self.total().as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// The share of each limit, the largest first, without those that have none. Range: (0, 1], summing up to 1.
    pub fn shares(&self) -> Vec<(Limit, f64)> {
        let total = self.total().as_secs_f64();
        let mut shares: Vec<(Limit, f64)> = Limit::ALL
            .into_iter()
            .map(|limit| (limit, self.of(limit).as_secs_f64() / total))
            .filter(|(_, share)| *share > 0.0)
            .collect();
        shares.sort_by(|a, b| b.1.total_cmp(&a.1));
        shares
    }

    /// The limit with the largest share, if any time has passed.
    pub fn first(&self) -> Option<Limit> {
        self.shares().first().map(|(limit, _)| *limit)
    }
}
