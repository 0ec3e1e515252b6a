//! JSON of the samples that a copy takes ten times a second.

use std::time::{Duration, SystemTime};

use serde::Serialize;
use sterna_proto::limit::{LaneJudgement, Limit, QuicSample, TcpSample, TransportSample};
use sterna_proto::rate::RateState;

use super::{Shares, mean_rtt, measured, shares};
use crate::engine::{CopyProgress, CopySpec};

/// Line of a log of samples. The last line of a log is an [`super::Event`].
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum LogLine<'a> {
    /// First line.
    Session(&'a SessionHead),
    /// Sample.
    Sample(&'a Sample),
}

/// Description of the copy at the start of a log, for readers years later.
#[derive(Clone, Debug, Serialize)]
pub struct SessionHead {
    /// Version of Sterna.
    pub version: &'static str,
    /// Name of this host.
    pub host: String,
    /// Start of the copy, seconds since 1970-01-01 UTC.
    pub started_unix_s: f64,
    /// Sources.
    pub sources: Vec<String>,
    /// Destination.
    pub destination: String,
}

impl SessionHead {
    /// Describes a copy that started at `started` on this `host`.
    pub fn new(spec: &CopySpec, host: String, started: SystemTime) -> Self {
        let started = started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self {
            version: env!("CARGO_PKG_VERSION"),
            host,
            started_unix_s: started.as_secs_f64(),
            sources: spec.sources.iter().map(ToString::to_string).collect(),
            destination: spec.destination.to_string(),
        }
    }
}

/// Totals over all lanes of a copy, including those that have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WireTotals {
    /// Bytes on the wire, in the direction of the data.
    pub wire_bytes: u64,
    /// Packets sent.
    pub packets_sent: u64,
    /// Packets lost, of those sent.
    pub packets_lost: u64,
}

/// Sample of a copy. Counts are sums since the start.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// Time since the start.
    pub elapsed_s: f64,
    /// File bytes that lanes brought to the receiver.
    pub bytes_carried: u64,
    /// Totals over all lanes.
    #[serde(flatten)]
    pub totals: WireTotals,
    /// Mean RTT of the lanes.
    pub rtt_s: Option<f64>,
    /// Shares of the limits in the last 5 s.
    pub recent: Shares,
    /// Lanes, if this end sends.
    pub lanes: Vec<LaneReport>,
}

impl Sample {
    /// Converts a snapshot.
    pub fn new(progress: &CopyProgress, totals: WireTotals) -> Self {
        Self {
            elapsed_s: progress.elapsed.as_secs_f64(),
            bytes_carried: progress.session.counters.bytes_brought(),
            totals,
            rtt_s: mean_rtt(&progress.lanes).map(|rtt| rtt.as_secs_f64()),
            recent: shares(&progress.limits.report.recent),
            lanes: progress.limits.lanes.iter().map(LaneReport::from).collect(),
        }
    }
}

/// Sample of one lane. Times and counts are sums since the lane came up.
#[derive(Clone, Debug, Serialize)]
pub struct LaneReport {
    /// Number of the lane.
    pub lane: u32,
    /// Limit of the lane in the last tenth of a second.
    pub limit: Limit,
    /// Time in which the feeder thread waited for storage.
    pub storage_s: f64,
    /// Time in which it computed, or waited for a processor.
    pub compute_s: f64,
    /// Time in which it waited for the transport.
    pub transport_s: f64,
    /// Time in which it had nothing to do.
    pub idle_s: f64,
    /// Measurements of the transport.
    #[serde(flatten)]
    pub transport: LaneTransport,
}

impl From<&LaneJudgement> for LaneReport {
    fn from(judged: &LaneJudgement) -> Self {
        let feeder = &judged.sample.feeder;
        Self {
            lane: judged.lane.0,
            limit: judged.limit,
            storage_s: feeder.storage.as_secs_f64(),
            compute_s: feeder.compute.as_secs_f64(),
            transport_s: feeder.transport.as_secs_f64(),
            idle_s: feeder.idle.as_secs_f64(),
            transport: match &judged.sample.transport {
                TransportSample::Tcp(tcp) => LaneTransport::Tcp(tcp.into()),
                TransportSample::Quic(quic) => LaneTransport::Quic(quic.into()),
                TransportSample::InProcess => LaneTransport::InProcess,
            },
        }
    }
}

/// Measurements of a transport.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "transport", rename_all = "snake_case")]
pub enum LaneTransport {
    /// TCP.
    Tcp(TcpLane),
    /// QUIC.
    Quic(QuicLane),
    /// The lane is within this process and has no measurements. The name in JSON is API.
    #[serde(rename = "inside")]
    InProcess,
}

impl LaneTransport {
    /// Bytes sent and not acknowledged, and the congestion window; `None` without measurements.
    pub fn in_flight_and_window(&self) -> Option<(u64, u64)> {
        match self {
            Self::Tcp(tcp) => Some((tcp.in_flight_bytes, tcp.window_bytes)),
            Self::Quic(quic) => Some((quic.in_flight_bytes, quic.window_bytes)),
            Self::InProcess => None,
        }
    }
}

/// Measurements of the kernel for a TCP lane; zero if the kernel does not provide a value.
#[derive(Clone, Debug, Serialize)]
pub struct TcpLane {
    /// Smoothed RTT; `None`: not measured yet.
    pub rtt_s: Option<f64>,
    /// Smallest RTT; `None`: not measured yet.
    pub rtt_min_s: Option<f64>,
    /// Congestion window.
    pub window_bytes: u64,
    /// Bytes sent and not acknowledged.
    pub in_flight_bytes: u64,
    /// Bytes given to the kernel and not sent.
    pub unsent_bytes: u64,
    /// Window that the peer announces.
    pub receive_window_bytes: u64,
    /// Current limit of the send buffer.
    pub send_buffer_bytes: u64,
    /// Memory of the data in the send buffer.
    pub send_queued_bytes: u64,
    /// Time in which the peer's window stopped the lane.
    pub rwnd_limited_s: f64,
    /// Time in which the send buffer stopped the lane.
    pub sndbuf_limited_s: f64,
    /// Segments sent, repeats included.
    pub packets_sent: u64,
    /// Segments sent again.
    pub packets_lost: u64,
    /// Bytes acknowledged.
    pub delivered_bytes: u64,
    /// The lane's part of the given rate; `None` without a given rate.
    pub cap_bps: Option<u64>,
    /// True if the window was never cut.
    pub is_growing: bool,
    /// True if the congestion control yields to loss.
    pub yields_to_loss: bool,
}

impl From<&TcpSample> for TcpLane {
    fn from(tcp: &TcpSample) -> Self {
        Self {
            rtt_s: measured(tcp.rtt),
            rtt_min_s: measured(tcp.rtt_min),
            window_bytes: tcp.window.0,
            in_flight_bytes: tcp.in_flight.0,
            unsent_bytes: tcp.unsent.0,
            receive_window_bytes: tcp.receive_window.0,
            send_buffer_bytes: tcp.send_buffer.0,
            send_queued_bytes: tcp.send_queued.0,
            rwnd_limited_s: seconds(tcp.rwnd_limited),
            sndbuf_limited_s: seconds(tcp.sndbuf_limited),
            packets_sent: tcp.sent,
            packets_lost: tcp.lost,
            delivered_bytes: tcp.delivered,
            cap_bps: tcp.cap.map(|cap| cap.0),
            is_growing: tcp.is_growing,
            yields_to_loss: tcp.yields_to_loss,
        }
    }
}

/// Measurements of the rate control and the engine for a QUIC lane.
#[derive(Clone, Debug, Serialize)]
pub struct QuicLane {
    /// Smoothed RTT; `None`: not measured yet.
    pub rtt_s: Option<f64>,
    /// Smallest RTT; `None`: not measured yet.
    pub rtt_min_s: Option<f64>,
    /// Window of the rate control.
    pub window_bytes: u64,
    /// Bytes sent and not acknowledged.
    pub in_flight_bytes: u64,
    /// Rate at which the lane may send.
    pub pace_bps: u64,
    /// State of the rate control: `searching`, `given`, `found`, `losing` or `policed`.
    pub state: &'static str,
    /// Time in which the engine's thread computed or waited for a processor.
    pub engine_s: f64,
    /// Packets sent.
    pub packets_sent: u64,
    /// Packets found lost.
    pub packets_lost: u64,
    /// Bytes sent on the wire.
    pub wire_bytes: u64,
}

impl From<&QuicSample> for QuicLane {
    fn from(quic: &QuicSample) -> Self {
        Self {
            rtt_s: measured(quic.rtt),
            rtt_min_s: measured(quic.rtt_min),
            window_bytes: quic.window.0,
            in_flight_bytes: quic.in_flight.0,
            pace_bps: quic.rate.0,
            state: match quic.state {
                RateState::Searching => "searching",
                RateState::Given => "given",
                RateState::Found => "found",
                RateState::Losing => "losing",
                RateState::Policed(_) => "policed",
            },
            engine_s: seconds(quic.engine),
            packets_sent: quic.sent,
            packets_lost: quic.lost,
            wire_bytes: quic.wire_bytes,
        }
    }
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}
