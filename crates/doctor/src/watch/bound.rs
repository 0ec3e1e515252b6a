//! Names of the limits of a connection that is observed from outside.

use serde::{Serialize, Serializer};
use sterna_proto::limit::{Limit, WindowCause};

/// Limit of a connection in a period of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bound {
    /// The receive window of the other end, or of this end for data that comes in.
    ReceiveWindow,
    /// No window is above 64 KiB: window scaling is off. Only verdicts have this name.
    NoWindowScaling,
    /// The program at the receiver reads late, so the window closes.
    Reader,
    /// The send buffer of the sender's kernel.
    SendBuffer,
    /// The program at the sender gives too little data.
    Writer,
    /// The congestion window still grows.
    Growing,
    /// The path is full.
    Full,
    /// Losses without a queue.
    Loss,
    /// A device that drops packets above a rate.
    Policer,
    /// The return direction delays acknowledgements.
    AckPath,
    /// The program capped its rate (`SO_MAX_PACING_RATE`).
    RateCap,
    /// Nothing came back while data was in flight.
    Silence,
    /// The sender or the path, seen from the receiver.
    SenderOrPath,
    /// This host did not run the observer, or lacks processors.
    Cpu,
}

impl Bound {
    /// Returns the bound for a limit of the accountant and the cause of the window's size.
    pub fn of(limit: Limit, cause: Option<WindowCause>) -> Self {
        match limit {
            Limit::ReceiveWindow => Self::ReceiveWindow,
            Limit::SendBuffer => Self::SendBuffer,
            Limit::CongestionWindow if cause == Some(WindowCause::Growing) => Self::Growing,
            Limit::CongestionWindow => Self::Full,
            Limit::Loss => Self::Loss,
            Limit::Policer => Self::Policer,
            Limit::SourceDisk | Limit::NothingToSend => Self::Writer,
            Limit::DestinationDisk => Self::Reader,
            Limit::Cpu => Self::Cpu,
            Limit::RateCap => Self::RateCap,
            Limit::ServerOrPath => Self::SenderOrPath,
            Limit::Silence => Self::Silence,
            Limit::AckPath => Self::AckPath,
        }
    }

    /// Returns the name for people.
    pub fn words(self) -> &'static str {
        match self {
            Self::ReceiveWindow => "receive window",
            Self::NoWindowScaling => "no window scaling",
            Self::Reader => "program at the receiver",
            Self::SendBuffer => "send buffer",
            Self::Writer => "program at the sender",
            Self::Growing => "window grows",
            Self::Full => "path full",
            Self::Loss => "loss",
            Self::Policer => "policer",
            Self::AckPath => "return direction",
            Self::RateCap => "rate cap",
            Self::Silence => "silence",
            Self::SenderOrPath => "sender or path",
            Self::Cpu => "CPU",
        }
    }

    /// Returns the name for programs, which the verdicts of the active doctor use too.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReceiveWindow => "receive_buffer",
            Self::NoWindowScaling => "no_window_scaling",
            Self::Reader => "application_write",
            Self::SendBuffer => "send_buffer",
            Self::Writer => "application_read",
            Self::Growing => "slow_ramp",
            Self::Full => "path_full",
            Self::Loss => "random_loss",
            Self::Policer => "policer",
            Self::AckPath => "ack_path",
            Self::RateCap => "rate_cap",
            Self::Silence => "silence",
            Self::SenderOrPath => "sender_or_path",
            Self::Cpu => "cpu",
        }
    }
}

impl Serialize for Bound {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
