//! Largest packet that passes up to a hop, by packets that must not be fragmented.
//!
//! A packet that passes causes an answer of the hop where its TTL ends. A router with a smaller link reports its MTU by
//! ICMP. Silence for a large packet alone means that it vanished without a report, which TCP cannot notice.

use std::net::IpAddr;
use std::time::Duration;

use serde::Serialize;

use super::probe::Outcome;

/// Largest size that is tried, bytes. Reason: no link of a wide area carries more.
pub(super) const SIZE_MAX: u32 = 9216;

/// Smallest sizes that are tried, bytes: those that every host of IPv4 and every link of IPv6 takes.
pub(super) const LEAST_V4: u32 = 576;
pub(super) const LEAST_V6: u32 = 1280;

/// Time in which a router that limits its answers sends another one. Source: Linux sends one a second to a host, after
/// a burst of six (`icmp_ratelimit`).
pub(super) const NEXT_ANSWER: Duration = Duration::from_millis(1100);

/// Times that the border of a size that vanishes is confirmed. Reason: at a hop that answers half of the packets, a
/// false border then shows once in some hundred searches.
const CONFIRMATIONS: u32 = 2;

/// Packets of a size without an answer.
const TRIES: u32 = 3;

/// Maximum number of reports that are followed. Reason: each link of a path is smaller than the one before.
const REPORTS_MAX: usize = 8;

/// Steps between two sizes at which the search ends, bytes. Reason: MTUs of tunnels differ by more.
const PRECISION: u32 = 8;

/// Report of a router, or of this host, about a packet that is too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TooBig {
    /// Router; `None`: this host.
    pub router: Option<IpAddr>,
    /// Size of the packet, bytes.
    pub bytes: u32,
    /// Reported MTU of the next link, bytes; 0: an old router that reports none.
    pub mtu: u32,
}

/// Sizes of packets that pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MtuReport {
    /// TTL of the farthest hop that answers: sizes are tested up to there.
    pub hop: u8,
    /// Largest size that passed, bytes; `None`: the hop stopped answering.
    pub passes: Option<u32>,
    /// Reports of packets that are too large.
    pub reports: Vec<TooBig>,
    /// Smallest size that vanished without a report, bytes.
    pub vanishes: Option<u32>,
    /// TTL of the last hop that such a packet reached; 0: none.
    pub vanishes_after: Option<u8>,
}

/// Searches the largest size that passes to the last of the answering hops. `send` sends a packet with a TTL and a
/// size; `None`: no more packets may be sent.
pub(super) fn search(
    hops: &[u8],
    link_mtu: u32,
    least: u32,
    send: &mut dyn FnMut(u8, u32) -> Option<Outcome>,
) -> MtuReport {
    let hop = hops.last().copied().unwrap_or(0);
    let mut report = MtuReport { hop, ..MtuReport::default() };
    let mut size = link_mtu.clamp(least, SIZE_MAX);
    for _ in 0..REPORTS_MAX {
        match ask(hop, size, send) {
            Some(Outcome::TooBig(router, mtu)) => {
                report.reports.push(TooBig { router, bytes: size, mtu });
                // A router of before 1990 reports no MTU: RFC 1191 has plateaus, of which this is the next.
                let next = if mtu >= least && mtu < size { mtu } else { (size / 4 * 3).max(least) };
                if next == size {
                    return report;
                }
                size = next;
            }
            Some(Outcome::Silent) => {
                vanished(hops, size, least, send, &mut report);
                return report;
            }
            Some(_) => {
                report.passes = Some(size);
                return report;
            }
            None => return report,
        }
    }
    report
}

/// Searches between the smallest size and one that vanished.
fn vanished(
    hops: &[u8],
    size: u32,
    least: u32,
    send: &mut dyn FnMut(u8, u32) -> Option<Outcome>,
    report: &mut MtuReport,
) {
    let passes = |outcome: Outcome| matches!(outcome, Outcome::Expired(_) | Outcome::Arrived | Outcome::Refused(_));
    let (mut low, mut high) = (least, size);
    // A hop that is silent now says nothing about sizes.
    if size == least || !ask(report.hop, least, send).is_some_and(passes) {
        return;
    }
    report.passes = Some(low);
    while high - low > PRECISION {
        // Sizes are multiples of four, as MTUs are.
        let middle = (low + (high - low) / 2) / 4 * 4;
        match ask(report.hop, middle, send) {
            Some(Outcome::TooBig(router, mtu)) => {
                report.reports.push(TooBig { router, bytes: middle, mtu });
                return;
            }
            Some(Outcome::Silent) => high = middle,
            Some(_) => low = middle,
            None => break,
        }
        report.passes = Some(low);
    }
    // A hop that answers only some packets looks the same: the border must show again.
    for _ in 0..CONFIRMATIONS {
        let still_passes = ask(report.hop, low, send).is_some_and(passes);
        if !still_passes || !matches!(ask(report.hop, high, send), Some(Outcome::Silent)) {
            return;
        }
    }
    report.vanishes = Some(high);
    // The last hop that answers a packet of that size, by bisection.
    let (mut reached, mut lost) = (0, hops.len() - 1);
    while reached < lost {
        let middle = reached + (lost - reached) / 2;
        match ask(hops[middle], high, send) {
            None => return,
            Some(outcome) if passes(outcome) => reached = middle + 1,
            Some(_) => lost = middle,
        }
    }
    report.vanishes_after = Some(reached.checked_sub(1).map_or(0, |index| hops[index]));
}

/// Sends packets of a size until one has an outcome.
fn ask(ttl: u8, size: u32, send: &mut dyn FnMut(u8, u32) -> Option<Outcome>) -> Option<Outcome> {
    for _ in 0..TRIES {
        match send(ttl, size)? {
            Outcome::Silent => {}
            outcome => return Some(outcome),
        }
    }
    Some(Outcome::Silent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn router(number: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, number])
    }

    /// Returns the outcome on a path whose link after hop 2 has a smaller MTU.
    fn small_link(mtu: u32, reports: bool, ttl: u8, size: u32) -> Outcome {
        match (ttl > 2 && size > mtu, reports) {
            (true, true) => Outcome::TooBig(Some(router(2)), mtu),
            (true, false) => Outcome::Silent,
            _ => Outcome::Expired(router(ttl)),
        }
    }

    #[test]
    fn a_reported_mtu_is_found_with_its_router() {
        let report = search(&[1, 2, 4], 9000, LEAST_V4, &mut |ttl, size| Some(small_link(1400, true, ttl, size)));
        assert_eq!((report.passes, report.vanishes, report.hop), (Some(1400), None, 4));
        assert_eq!(report.reports, [TooBig { router: Some(router(2)), bytes: 9000, mtu: 1400 }]);
        let plain = search(&[1], 1500, LEAST_V4, &mut |_, _| Some(Outcome::Arrived));
        assert_eq!((plain.passes, plain.reports.len()), (Some(1500), 0));
    }

    #[test]
    fn large_packets_that_vanish_are_located() {
        let report = search(&[1, 2, 4, 5], 1500, LEAST_V4, &mut |ttl, size| Some(small_link(1400, false, ttl, size)));
        let (passes, vanishes) = (report.passes.unwrap(), report.vanishes.unwrap());
        assert!(passes <= 1400 && vanishes > 1400 && vanishes - passes <= PRECISION, "{report:?}");
        assert_eq!(report.vanishes_after, Some(2));
    }

    #[test]
    fn a_hop_that_falls_silent_proves_nothing() {
        let silent = search(&[3], 1500, LEAST_V4, &mut |_, _| Some(Outcome::Silent));
        assert_eq!((silent.passes, silent.vanishes), (None, None));
        // A router that reports no MTU, or a larger one than the packet, does not loop.
        for mtu in [0, 9000] {
            let odd = search(&[3], 1500, LEAST_V4, &mut |_, size| {
                Some(if size > 1000 { Outcome::TooBig(Some(router(1)), mtu) } else { Outcome::Arrived })
            });
            assert_eq!(odd.passes, Some(843), "{odd:?}");
        }
        assert_eq!(search(&[3], 1500, LEAST_V4, &mut |_, _| None).passes, None);
    }
}
