//! Hops to a host and the MTU of the path, by UDP packets of one flow with a rising TTL (Paris traceroute).

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use serde::Serialize;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use super::mtu::{self, MtuReport};
use super::probe::{Outcome, Prober};

/// Maximum number of hops. Reason: the default of traceroute; the longest paths of the Internet have fewer.
pub const HOPS_MAX: u8 = 30;

/// Destination port. Reason: that of traceroute, which firewalls know; no program listens there.
const PORT: u16 = 33_434;

/// Packets for a hop without an answer.
const TRIES: u32 = 2;

/// Silent hops in a row after which the walk ends. Reason: a firewall before the host drops the packets.
const SILENT_MAX: u8 = 4;

/// Size of the packets that find hops, bytes.
const SIZE: u32 = 60;

/// Time for an answer beyond the round trip. Reason: routers answer with low priority.
const SLOW: Duration = Duration::from_millis(300);

/// Maximum time for an answer.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// Maximum number of packets. Reason: 60 for hops, and some tries for each size.
const PACKETS_MAX: u64 = 200;

/// Path to trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceSpec {
    /// Host.
    pub remote: IpAddr,
    /// Address of this host on the path.
    pub local: IpAddr,
    /// Round trip to the host.
    pub rtt: Duration,
    /// Largest packet of the interface of this host, bytes.
    pub link_mtu: u32,
    /// Time for everything.
    pub time: Duration,
}

/// Hop of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Hop {
    /// TTL or hop limit of the packet.
    pub ttl: u8,
    /// Address that answered; `None`: silence.
    pub address: Option<IpAddr>,
    /// Round trip, microseconds.
    pub rtt_us: Option<u64>,
}

/// Hops of a path and its MTU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RouteReport {
    /// Hops, without the silent ones at the end.
    pub hops: Vec<Hop>,
    /// The host itself answered.
    pub is_reached: bool,
    /// Router that refuses to forward the packets.
    pub refused_by: Option<IpAddr>,
    /// Sizes of packets; `None`: no hop answered.
    pub mtu: Option<MtuReport>,
    /// Packets sent.
    pub packets: u64,
    /// Bytes sent.
    pub bytes: u64,
}

/// Traces a path. At most 200 packets, one at a time.
///
/// Errors: `Unreachable`: the system refuses the socket or the packets.
pub fn trace(spec: &TraceSpec) -> Result<RouteReport, Error> {
    let failed = |e: std::io::Error| {
        let text = format!("send UDP packets to {} to find the hops of the path", spec.remote);
        Error::new(ErrorKind::Unreachable, Scope::Path, Phase::Prepare, text).caused_by(e)
    };
    let end = Instant::now() + spec.time;
    let mut prober = Prober::open(spec.local, SocketAddr::new(spec.remote, PORT), end).map_err(failed)?;
    let wait = (spec.rtt + SLOW).min(WAIT_MAX);
    let mut fault = None;
    let mut send = |ttl: u8, size: u32, wait: Duration| {
        if prober.is_over() || prober.packets >= PACKETS_MAX {
            return None;
        }
        prober.send(ttl, size, wait).map_err(|e| fault = Some(e)).ok()
    };
    let mut report = walk(spec.remote, &mut |ttl| send(ttl, SIZE, wait));
    let answering: Vec<u8> = report.hops.iter().filter(|hop| hop.address.is_some()).map(|hop| hop.ttl).collect();
    if !answering.is_empty() {
        let least = if spec.remote.is_ipv4() { mtu::LEAST_V4 } else { mtu::LEAST_V6 };
        // A router that limits its answers sends the next one within a second.
        let patience = wait.max(mtu::NEXT_ANSWER);
        report.mtu =
            Some(mtu::search(&answering, spec.link_mtu, least, &mut |ttl, size| Some(send(ttl, size, patience)?.0)));
    }
    (report.packets, report.bytes) = (prober.packets, prober.bytes);
    match fault {
        Some(error) if report.hops.is_empty() => Err(failed(error)),
        _ => Ok(report),
    }
}

/// Finds the hops to a host. `send` sends a packet with a TTL; `None`: no more packets may be sent.
fn walk(host: IpAddr, send: &mut dyn FnMut(u8) -> Option<(Outcome, Duration)>) -> RouteReport {
    let mut report = RouteReport::default();
    let mut silent = 0;
    for ttl in 1..=HOPS_MAX {
        let answer = (0..TRIES).map_while(|_| send(ttl)).find(|(outcome, _)| *outcome != Outcome::Silent);
        let (address, is_last) = match answer.map(|(outcome, _)| outcome) {
            Some(Outcome::Expired(router)) => (Some(router), false),
            Some(Outcome::Arrived) => {
                report.is_reached = true;
                (Some(host), true)
            }
            Some(Outcome::Refused(router)) => {
                report.refused_by = Some(router);
                (Some(router), true)
            }
            _ => (None, false),
        };
        let rtt_us = answer.map(|(_, rtt)| u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX));
        report.hops.push(Hop { ttl, address, rtt_us });
        silent = if rtt_us.is_some() { 0 } else { silent + 1 };
        if is_last || silent >= SILENT_MAX {
            break;
        }
    }
    while report.hops.last().is_some_and(|hop| hop.rtt_us.is_none()) {
        report.hops.pop();
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn router(number: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, number])
    }

    #[test]
    fn hops_end_at_the_host_at_a_refusal_or_in_silence() {
        let reached = walk(router(9), &mut |ttl| match ttl {
            2 => Some((Outcome::Silent, MS)),
            4 => Some((Outcome::Arrived, MS * 4)),
            _ => Some((Outcome::Expired(router(ttl)), MS)),
        });
        assert!(reached.is_reached && reached.hops.len() == 4, "{reached:?}");
        assert_eq!((reached.hops[1].address, reached.hops[2].address), (None, Some(router(3))));
        assert_eq!(reached.hops[3].rtt_us, Some(4000));
        let mut packets = 0;
        let silent = walk(router(9), &mut |ttl| {
            packets += 1;
            Some((if ttl < 3 { Outcome::Expired(router(ttl)) } else { Outcome::Silent }, MS))
        });
        assert!(!silent.is_reached && silent.hops.len() == 2, "{silent:?}");
        assert_eq!(packets, 2 + u32::from(SILENT_MAX) * TRIES);
        let refused = walk(router(9), &mut |_| Some((Outcome::Refused(router(1)), MS)));
        assert_eq!((refused.refused_by, refused.hops.len()), (Some(router(1)), 1));
        assert_eq!(walk(router(9), &mut |_| None), RouteReport::default());
    }

    #[test]
    fn this_host_is_one_hop_away() {
        let local = IpAddr::from([127, 0, 0, 1]);
        let spec = TraceSpec { remote: local, local, rtt: MS, link_mtu: 65_535, time: Duration::from_secs(20) };
        let report = trace(&spec).unwrap();
        assert!(report.is_reached && report.hops.len() == 1 && report.hops[0].ttl == 1, "{report:?}");
        let mtu = report.mtu.unwrap();
        assert_eq!((mtu.passes, mtu.vanishes, mtu.hop), (Some(mtu::SIZE_MAX), None, 1));
    }
}
