//! Report of one side: verdicts, ladder, path, downloads and their cost.

use std::net::IpAddr;

use serde::Serialize;
use sterna_net::measure::any_server::{AgreedCount, Hop, MtuReport, RouteReport};
use sterna_proto::ByteCount;

use super::download::DownloadView;
use super::observed::Observed;
use super::rules;
use crate::evidence::Direction;
use crate::kernel;
use crate::verdict::{Cause, RttMode, Step, Verdict};

/// Subjects that are not visible from one side.
const NOT_VISIBLE: [&str; 4] = [
    "the rate to the server (only an agent, or a server of iperf3 or NDT7, takes data)",
    "in which direction a packet was lost, or a queue delayed it",
    "whether the server or a device on the way changed the options of the connection",
    "the settings of the server beyond its window scale",
];

/// Report of one side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OneSideReport {
    /// Target as the user gave it.
    pub target: String,
    /// Location of the file after redirects, if it is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redirected: Option<String>,
    /// Verdicts, the most binding one first.
    pub verdicts: Vec<Verdict>,
    /// Limits that windows and buffers set to one connection, by direction, the lowest first.
    pub ladder: Vec<Step>,
    /// Path.
    pub path: OneSidePath,
    /// Downloads.
    pub flows: Vec<DownloadView>,
    /// The server sends ranges of the file.
    pub takes_ranges: bool,
    /// Connections of the downloads end at a proxy.
    pub is_proxied: bool,
    /// Reasons for which a measurement has no result.
    pub failed: Vec<String>,
    /// Subjects that are not visible from one side.
    pub not_visible: Vec<&'static str>,
    /// Cost.
    pub cost: OneSideCost,
}

/// Path to a server.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OneSidePath {
    /// Address of the server.
    pub address: String,
    /// Address of this host.
    pub local: Option<IpAddr>,
    /// Smallest round trip of a handshake, seconds.
    pub rtt_s: f64,
    /// Round trips of the ports in groups.
    pub rtt_modes: Vec<RttMode>,
    /// Options of the connections.
    pub agreed: Vec<AgreedCount>,
    /// Setting of the server that follows from its window scale: the larger of tcp_rmem max and rmem_max.
    pub server_receive_buffer: Option<String>,
    /// Connections that were begun.
    pub connections: u64,
    /// Connections that the server has answered.
    pub answered: u64,
    /// SYN packets sent again: they or their answers were lost.
    pub lost_syns: u64,
    /// Ports from which no connection was answered.
    pub silent_ports: Vec<u16>,
    /// Hops.
    pub hops: Vec<Hop>,
    /// The server answered the packets that find hops.
    pub is_reached: bool,
    /// Sizes of packets.
    pub mtu: Option<MtuReport>,
}

/// Cost of an examination from one side.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OneSideCost {
    /// Connections, downloads included.
    pub connections: u64,
    /// UDP packets.
    pub packets: u64,
    /// Bytes of files and UDP packets.
    pub bytes: u64,
    /// Time, seconds.
    pub time_s: f64,
}

impl OneSideReport {
    /// Judges what one side has observed.
    pub fn new(observed: &Observed) -> Self {
        let flows: Vec<DownloadView> = observed.downloads.iter().map(DownloadView::new).collect();
        let handshakes = &observed.handshakes;
        let route = observed.route.as_ref();
        let of_route = |of: fn(&RouteReport) -> u64| route.map_or(0, of);
        let failed = observed.failed_route.as_ref().map(|why| format!("hops: {why}"));
        let failed_download = observed.failed_download.as_ref().map(|why| format!("download: {why}"));
        let received: u64 = flows.iter().map(|flow| flow.received_bytes).fold(0, u64::saturating_add);
        Self {
            target: observed.target.clone(),
            redirected: observed.redirected.clone(),
            verdicts: rules::verdicts(observed, &flows),
            ladder: ladder(observed),
            path: path(observed, route),
            takes_ranges: observed.takes_ranges,
            is_proxied: observed.is_proxied,
            failed: failed.into_iter().chain(failed_download).collect(),
            not_visible: NOT_VISIBLE.to_vec(),
            cost: OneSideCost {
                connections: handshakes.connections() + flows.iter().map(|flow| u64::from(flow.streams)).sum::<u64>(),
                packets: of_route(|route| route.packets),
                bytes: received.saturating_add(of_route(|route| route.bytes)),
                time_s: observed.time_s,
            },
            flows,
        }
    }
}

fn path(observed: &Observed, route: Option<&RouteReport>) -> OneSidePath {
    let handshakes = &observed.handshakes;
    let agreed = observed.agreed().map(|count| count.agreed).filter(|agreed| agreed.window_scaling);
    let silent = handshakes.ports.iter().filter(|port| port.sent > 1 && port.returned == 0 && port.port > 0);
    OneSidePath {
        address: handshakes.server.map_or_else(String::new, |server| server.to_string()),
        local: handshakes.local,
        rtt_s: observed.rtt_s(),
        rtt_modes: observed.modes(),
        agreed: handshakes.agreed.clone(),
        server_receive_buffer: agreed.map(|agreed| kernel::setting_of_scale(agreed.server_scale)),
        connections: handshakes.connections(),
        answered: handshakes.ports.iter().map(|port| port.returned).sum(),
        lost_syns: handshakes.lost_syns,
        silent_ports: silent.map(|port| port.port).collect(),
        hops: route.map_or_else(Vec::new, |route| route.hops.clone()),
        is_reached: route.is_some_and(|route| route.is_reached),
        mtu: route.and_then(|route| route.mtu.clone()),
    }
}

/// Returns the limits that windows and buffers set to one connection.
fn ladder(observed: &Observed) -> Vec<Step> {
    let (Some(agreed), rtt) = (observed.agreed(), observed.rtt_s()) else { return Vec::new() };
    if rtt <= 0.0 {
        return Vec::new();
    }
    let mut steps = Vec::new();
    let mut add = |limit, direction, window: ByteCount| {
        // Saturates.
        steps.push(Step { limit, direction, rate_bps: (window.0 as f64 * 8.0 / rtt) as u64 });
    };
    let (limit, scale) = match agreed.agreed.window_scaling {
        true => (Cause::ReceiveBuffer, agreed.agreed.server_scale),
        false => (Cause::NoWindowScaling, 0),
    };
    add(limit, Direction::Forward, kernel::window_of_scale(scale).min(kernel::WINDOW_MAX));
    if let Some(most) = observed.setting("ipv4.tcp_wmem").get(2) {
        add(Cause::SendBuffer, Direction::Forward, kernel::in_flight_of(ByteCount(*most)));
    }
    if !agreed.agreed.window_scaling {
        add(Cause::NoWindowScaling, Direction::Reverse, kernel::window_of_scale(0));
    } else if let Some(most) = observed.setting("ipv4.tcp_rmem").get(2) {
        add(Cause::ReceiveBuffer, Direction::Reverse, kernel::window_of(ByteCount(*most), observed.kernel()));
    }
    steps.sort_by_key(|step| (step.direction, step.rate_bps));
    steps
}
