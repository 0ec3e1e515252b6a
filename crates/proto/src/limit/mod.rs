//! Limits of a transfer, and the time in which each limit applied.
//!
//! Names limits ([`Limit`]) and adds up time by limit ([`LimitTimes`]). It decides for each tenth of a second from
//! samples of the kernel, the QUIC engine and our own threads ([`Accountant`]). It proposes a [`remedy`]. Refuses to
//! read a clock, query a kernel or change anything. Samples come in with their time, shares of time leave.
//!
//! The sending end decides, since only it sees what delays the next byte. Where the sender is a web server, the
//! requesting end decides what delayed itself. The receiver reports the waits of its own threads ([`ReceiverReport`]).
//! A sender that is an agent reports its result to the client ([`LimitReport`]). Reports of a peer are shown to people;
//! they decide nothing else.

mod account;
mod path;
mod receiver;
mod remedy;
mod report;
mod split;
pub mod trace;
mod web;

use std::time::Duration;

pub use account::{Accountant, LaneJudgement, LaneSample, QuicSample, SourceSample, TcpSample, TransportSample, Waits};
pub use path::{Flow, PathHistory, PolicedRate, WindowCause};
pub use remedy::{Advice, Facts, RECEIVE_SHARE, Remedy, SEND_SHARE, remedy};
pub use report::{LimitReport, ReceiverReport};
pub(crate) use report::{read_time, write_time};
pub use web::WebSample;

/// Limit of a transfer in a period of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// The window that the receiver announces.
    ReceiveWindow,
    /// The send buffer of the sender's kernel, or the memory of a QUIC lane.
    SendBuffer,
    /// The congestion window: it still grows, or the path is full.
    CongestionWindow,
    /// Losses without a full queue.
    Loss,
    /// A device that drops packets above a rate.
    Policer,
    /// Reading the source.
    SourceDisk,
    /// Writing, verifying or publishing at the destination.
    DestinationDisk,
    /// The processors of one end.
    Cpu,
    /// The given rate.
    RateCap,
    /// The sender had nothing that it could send: names are still read, outcomes awaited, round trips at start and end.
    NothingToSend,
    /// A web server, or the path to it. Only the server knows its own limit, and nothing at this end delayed it.
    ServerOrPath,
    /// Nothing came back while data was in flight: the path or the remote host was down.
    Silence,
    /// The return direction is full: acknowledgements are delayed there, and windows open late.
    AckPath,
}

impl Limit {
    /// Every limit, in the order of their encoding.
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

    /// Returns the name for people.
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

    /// Returns the name for programs.
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
    /// Returns the time of one limit.
    pub fn of(&self, limit: Limit) -> Duration {
        self.0[limit.index()]
    }

    /// Adds to the time of one limit.
    pub fn add(&mut self, limit: Limit, time: Duration) {
        self.0[limit.index()] += time;
    }

    /// Moves `time` from limit `from` to limit `to`, at most the time of `from`.
    pub fn rename(&mut self, from: Limit, to: Limit, time: Duration) {
        let time = time.min(self.of(from));
        self.0[from.index()] -= time;
        self.0[to.index()] += time;
    }

    /// Adds other times.
    pub fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(ours, theirs)| *ours += theirs);
    }

    /// Returns the sum of all times.
    pub fn total(&self) -> Duration {
        self.0.iter().sum()
    }

    /// Returns the share of the time in which the path, or a window over it, was the limit. Range: 0 to 1.
    pub fn of_path(&self) -> f64 {
        let windows = [Limit::ReceiveWindow, Limit::SendBuffer, Limit::CongestionWindow];
        let paths = [Limit::Loss, Limit::Policer, Limit::AckPath];
        let time: Duration = windows.into_iter().chain(paths).map(|limit| self.of(limit)).sum();
        time.as_secs_f64() / self.total().as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Returns the share of each limit, the largest first, without limits of share 0. Range: (0, 1]; the sum is 1.
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

    /// Returns the limit with the largest share; `None` if no time has passed.
    pub fn first(&self) -> Option<Limit> {
        self.shares().first().map(|(limit, _)| *limit)
    }
}
