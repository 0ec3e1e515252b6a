//! Observations of one side.

use sterna_net::measure::HostFacts;
use sterna_net::measure::any_server::{AgreedCount, DownloadReport, HandshakeReport, RouteReport};

use crate::echoes::rtt_modes;
use crate::kernel::KernelVersion;
use crate::verdict::RttMode;

/// Observations of one side.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// Target as the user gave it.
    pub target: String,
    /// Location of the file after redirects, if it is another.
    pub redirected: Option<String>,
    /// Handshakes.
    pub handshakes: HandshakeReport,
    /// Hops and sizes; `None`: not measured.
    pub route: Option<RouteReport>,
    /// Reason for which there are no hops.
    pub failed_route: Option<String>,
    /// Downloads with a growing number of connections; empty: the target is no file.
    pub downloads: Vec<DownloadReport>,
    /// Reason for which a download has no result.
    pub failed_download: Option<String>,
    /// The server sends ranges of the file.
    pub takes_ranges: bool,
    /// Connections of the downloads end at a proxy.
    pub is_proxied: bool,
    /// Facts of this host.
    pub host: HostFacts,
    /// Highest rate that the user has allowed, bit/s; `None`: any.
    pub rate_max_bps: Option<u64>,
    /// Time of everything, seconds.
    pub time_s: f64,
}

impl Observed {
    /// Returns the smallest round trip of a handshake, seconds; 0: none was measured.
    pub fn rtt_s(&self) -> f64 {
        let all = self.handshakes.ports.iter().flat_map(|port| &port.rtt_us);
        all.min().map_or(0.0, |rtt| *rtt as f64 / 1e6)
    }

    /// Returns the most frequent properties of the connections.
    pub(super) fn agreed(&self) -> Option<AgreedCount> {
        self.handshakes.agreed.first().copied()
    }

    pub(super) fn modes(&self) -> Vec<RttMode> {
        rtt_modes(&self.handshakes.ports, self.rtt_s())
    }

    /// Returns the numbers of a setting of this host.
    pub(super) fn setting(&self, name: &str) -> Vec<u64> {
        let text = self.host.settings.get(name).map_or("", String::as_str);
        text.split_whitespace().filter_map(|value| value.parse().ok()).collect()
    }

    pub(super) fn kernel(&self) -> KernelVersion {
        self.host.kernel.parse().unwrap_or(KernelVersion::new(6, 6))
    }
}
