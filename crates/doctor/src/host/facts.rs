//! Facts of a host and the results of its rules, as values.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use serde::Serialize;
use sterna_proto::quantity::readable_time;
use sterna_proto::{BitRate, ByteCount};

use crate::kernel::{self, KernelVersion};
use crate::response;

/// Host, as its kernel and its connections describe it.
#[derive(Clone, Debug, PartialEq)]
pub struct HostPicture {
    /// Kernel.
    pub kernel: KernelVersion,
    /// Settings by name without `net.`, such as `ipv4.tcp_rmem`; numbers separated by one space.
    pub settings: BTreeMap<String, String>,
    /// Memory of the host; 0 if unknown.
    pub memory: ByteCount,
    /// Size of a page of memory.
    pub page: ByteCount,
    /// Packets that the host dropped because its queue of arrived packets was full, since its start.
    pub backlog_drops: u64,
    /// Paths that it is used on.
    pub paths: Vec<PathUse>,
}

/// Use of a path by this host.
#[derive(Clone, Debug, PartialEq)]
pub struct PathUse {
    /// Address of the other host.
    pub remote: IpAddr,
    /// Smallest round-trip time.
    pub rtt: Duration,
    /// Payload of a full segment, bytes.
    pub mss: u32,
    /// Open connections.
    pub connections: usize,
    /// Rate that data left with, the highest that is known.
    pub rate_out: BitRate,
    /// Rate that data came with, the highest that is known.
    pub rate_in: BitRate,
    /// Share of the segments that were lost, from 0 to 1.
    pub loss: f64,
    /// Most data that a connection had in flight, or that came in a round trip.
    pub in_flight: ByteCount,
}

/// Path with the rate that one connection shall have there.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Demand {
    /// Address of the other host.
    pub remote: IpAddr,
    /// Round-trip time, µs.
    pub rtt_us: u64,
    /// Rate that one connection shall have, bit/s.
    pub target_bps: u64,
    /// Reason for the rate.
    pub basis: DemandBasis,
    /// Window that it needs, bytes.
    pub window_bytes: u64,
    /// Open connections.
    pub connections: usize,
    /// Payload of a full segment, bytes.
    #[serde(skip)]
    pub mss: u32,
    /// Share of the segments that were lost, from 0 to 1.
    #[serde(skip)]
    pub loss: f64,
    /// Rate that data left with, bit/s.
    #[serde(skip)]
    pub rate_out_bps: u64,
    /// Round-trip time.
    #[serde(skip)]
    pub rtt: Duration,
}

/// Reason for the rate of a [`Demand`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DemandBasis {
    /// The user asked for it.
    Asked,
    /// It was measured.
    Measured,
    /// A window or buffer of this host was full at the measured rate, so twice as much is assumed.
    TwiceMeasured,
}

/// Effect of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// It holds a path below its target.
    Hurts,
    /// It costs something in certain cases.
    Costs,
    /// It is right for these paths.
    Fits,
}

/// Result for one setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Name, as for `sysctl`.
    pub setting: String,
    /// Value now.
    pub value: String,
    /// Effect of the value.
    pub effect: Effect,
    /// Path that it hurts most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<IpAddr>,
    /// Rate to which it holds one connection there, bit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_bps: Option<u64>,
    /// Value that is right; `None`: the value now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recommended: Option<String>,
    /// Reason, in words and numbers.
    pub reason: String,
}

impl Demand {
    /// Computes the demand on a path. `wish`: rate that one connection shall have.
    pub fn new(path: &PathUse, host: &HostPicture, wish: Option<BitRate>) -> Self {
        let measured = path.rate_out.max(path.rate_in);
        let allowed = host.window_in().min(host.window_out());
        let is_held = path.in_flight.0 as f64 > allowed.0 as f64 * WINDOW_FULL;
        let (target, basis) = match wish {
            Some(rate) => (rate, DemandBasis::Asked),
            None if is_held => (BitRate(measured.0.saturating_mul(2)), DemandBasis::TwiceMeasured),
            None => (measured, DemandBasis::Measured),
        };
        let window = sterna_proto::quantity::bandwidth_delay_product(target, path.rtt);
        Self {
            remote: path.remote,
            rtt_us: u64::try_from(path.rtt.as_micros()).unwrap_or(u64::MAX),
            target_bps: target.0,
            basis,
            window_bytes: window.0,
            connections: path.connections,
            mss: path.mss.max(1),
            loss: path.loss,
            rate_out_bps: path.rate_out.0,
            rtt: path.rtt,
        }
    }

    /// Returns the window that one connection needs; one has at most the largest window of TCP.
    pub fn window(&self) -> ByteCount {
        ByteCount(self.window_bytes).min(kernel::WINDOW_MAX)
    }

    /// Returns the rate to which a window holds one connection.
    pub fn held(&self, window: ByteCount) -> BitRate {
        BitRate(response::of_window(window, self.rtt) as u64)
    }

    /// Returns the path in words.
    pub fn words(&self) -> String {
        format!("{} ({})", self.remote, readable_time(self.rtt))
    }
}

impl HostPicture {
    /// Returns the value of a setting; `None` if the kernel does not have it.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }

    /// Returns the numbers of a setting; none if it is absent or has other text.
    pub fn numbers(&self, name: &str) -> Vec<u64> {
        let text = self.text(name).unwrap_or_default();
        text.split_whitespace().map_while(|number| number.parse().ok()).collect()
    }

    /// Returns the first number of a setting.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.numbers(name).first().copied()
    }

    /// Returns the largest window of a connection that the kernel tunes.
    pub fn window_in(&self) -> ByteCount {
        let max = self.numbers("ipv4.tcp_rmem").get(2).copied();
        max.map_or(kernel::WINDOW_MAX, |max| kernel::window_of(ByteCount(max), self.kernel))
    }

    /// Returns the most data that a connection may have in flight.
    pub fn window_out(&self) -> ByteCount {
        let max = self.numbers("ipv4.tcp_wmem").get(2).copied();
        max.map_or(kernel::WINDOW_MAX, |max| kernel::in_flight_of(ByteCount(max)))
    }
}

/// Part of a window in use, from which it may be the limit. Reason: the last segment may not fit, and the smallest
/// round trip is shorter than most.
const WINDOW_FULL: f64 = 0.8;
