//! Rules: from the observations of one side to verdicts.
//!
//! Each verdict is an inference, so its confidence stays below that of an examination of both ends.

use std::time::Duration;

use sterna_proto::{BitRate, ByteCount};

use super::download::DownloadView;
use super::observed::Observed;
use crate::evidence::Direction;
use crate::kernel;
use crate::response;
use crate::verdict::{Cause, Verdict};
use crate::words::{percent, time};

/// Smallest ratio of the rates of several connections and one at which each connection is limited separately.
const SCALES: f64 = 1.5;

/// Ports that show another round trip. Reason: of eight routes, one has five of 40 ports.
const PORTS_MIN: f64 = 2.0;

/// Largest ratio of them at which connections share one limit.
const SHARES: f64 = 1.2;

/// Share of the time in which a window is the limit.
const WINDOW_LIMITS: f64 = 0.5;

/// Part of segments out of order that shows losses, or packets that overtake others.
const DISORDER: f64 = 0.0005;

/// Growth in a quarter of a download with which the ramp has not ended.
const GROWS: f64 = 1.2;

/// Part of a given rate from which on it is the limit.
const GIVEN: f64 = 0.9;

/// Multiple of the round trip under load, over the smallest, that shows a queue.
const QUEUE: f64 = 1.3;

/// Unevenness below which arrivals are even.
const EVEN: f64 = 0.1;

/// Bytes that a segment can be smaller than the path without a clamp. Reason: options of TCP.
const CLAMP_MIN: u32 = 24;

/// Size above which a smaller segment is no clamp of a device. Reason: hosts of one path may have different MTUs.
const JUMBO_MIN: u32 = 1500;

/// SYN packets sent again from which on losses are trouble. Reason: fewer may be a full queue of the server.
const LOST_SYNS: u64 = 3;

/// Spare part of a buffer for a window.
const SPARE: f64 = 1.1;

/// Headers of IP and TCP, bytes.
const HEADERS: [u32; 2] = [40, 60];

/// Returns the verdicts, those that bind first, and of these the lowest rate first.
pub(super) fn verdicts(observed: &Observed, flows: &[DownloadView]) -> Vec<Verdict> {
    let case = Case { observed, flows, rtt_s: observed.rtt_s() };
    let mut verdicts: Vec<Verdict> = case.options();
    verdicts.extend(case.window_scaling());
    verdicts.extend(case.sizes());
    verdicts.extend(case.clamp());
    verdicts.extend(case.modes());
    verdicts.extend(case.lost_syns());
    verdicts.extend(case.rates());
    verdicts.sort_by_key(|verdict| (verdict.limits_to_bps.is_none(), verdict.limits_to_bps));
    verdicts
}

struct Case<'a> {
    observed: &'a Observed,
    flows: &'a [DownloadView],
    rtt_s: f64,
}

impl Case<'_> {
    /// Returns the direction of the data that the user looks at: downloads come from the server.
    fn direction(&self) -> Direction {
        if self.flows.is_empty() { Direction::Forward } else { Direction::Reverse }
    }

    fn one(&self) -> Option<&DownloadView> {
        self.flows.iter().find(|flow| flow.streams == 1)
    }

    /// Returns the download with the most connections, if it has several.
    fn most(&self) -> Option<&DownloadView> {
        self.flows.iter().filter(|flow| flow.streams > 1 && !flow.is_too_short()).max_by_key(|flow| flow.streams)
    }

    fn verdict(&self, limit: Cause, confidence: f64, evidence: Vec<String>, remedy: impl Into<String>) -> Verdict {
        let now = self.one().map_or(0, |one| one.measured_bps);
        Verdict {
            limit,
            direction: self.direction(),
            share: 0.0,
            confidence,
            evidence,
            remedy: remedy.into(),
            predicted_bps: now,
            predicted_is_least: false,
            limits_to_bps: None,
            rate_bps: None,
            burst_bytes: None,
            packets: None,
            modes: Vec::new(),
        }
    }

    /// Returns the headers of a segment of this path, bytes.
    fn headers(&self) -> u32 {
        HEADERS[usize::from(self.observed.handshakes.server.is_some_and(|server| server.is_ipv6()))]
    }

    fn options(&self) -> Vec<Verdict> {
        let Some(count) = self.observed.agreed() else { return Vec::new() };
        let missing = [
            (
                Cause::NoSack,
                count.agreed.sack,
                "ipv4.tcp_sack",
                "after a burst of losses, one loss a round trip is repaired",
            ),
            (
                Cause::NoTimestamps,
                count.agreed.timestamps,
                "ipv4.tcp_timestamps",
                "round trips are measured less often, and numbers may wrap at high rates",
            ),
        ];
        let absent = missing.into_iter().filter(|(_, is_used, _, _)| !is_used);
        absent
            .map(|(cause, _, setting, effect)| {
                let because = format!("{}: {effect}", self.without(cause.words()));
                self.verdict(cause, 0.9, vec![because], self.place(setting))
            })
            .collect()
    }

    fn without(&self, option: &str) -> String {
        let all: u64 = self.observed.handshakes.agreed.iter().map(|count| count.connections).sum();
        format!("{option} on {} of {all} connections", self.observed.agreed().map_or(0, |count| count.connections))
    }

    /// Returns the fix of a missing option.
    fn place(&self, setting: &str) -> String {
        match self.observed.setting(setting)[..] {
            [0] => format!("it is off at this host: sysctl -w net.{setting}=1"),
            _ => format!(
                "this host offers it, so it is off at the server (sysctl net.{setting} there), or a device on the way \
                 removes it; which of the two is not visible from one side: ask the operator of the server first"
            ),
        }
    }

    fn window_scaling(&self) -> Option<Verdict> {
        self.observed.agreed().filter(|count| !count.agreed.window_scaling)?;
        let most = of_window(kernel::WINDOW_FIELD_MAX as f64, self.rtt_s);
        let because = format!(
            "{}: at most {} bytes in flight, which is {} over {}",
            self.without(Cause::NoWindowScaling.words()),
            kernel::WINDOW_FIELD_MAX,
            shown(most),
            time(self.rtt_s)
        );
        let mut verdict =
            self.verdict(Cause::NoWindowScaling, 0.9, vec![because], self.place("ipv4.tcp_window_scaling"));
        verdict.limits_to_bps = Some(most as u64);
        verdict.predicted_bps = self.most().map_or(0, |most| most.measured_bps).max(verdict.predicted_bps);
        Some(shared(verdict))
    }

    fn sizes(&self) -> Option<Verdict> {
        let route = self.observed.route.as_ref()?;
        let mtu = route.mtu.as_ref()?;
        let (passes, vanishes) = (mtu.passes?, mtu.vanishes?);
        let place = match mtu.vanishes_after {
            Some(0) => "before the first hop that answers".to_owned(),
            Some(hop) => format!("after hop {hop}"),
            None => format!("before hop {}", mtu.hop),
        };
        let because = format!(
            "packets of {passes} bytes pass to hop {}, those of {vanishes} bytes vanish {place}, and no device \
             reports it (ICMP)",
            mtu.hop
        );
        let remedy = "let ICMP \"fragmentation needed\" pass, or set the MTU of the hosts to what passes; until then: \
                      sysctl -w net.ipv4.tcp_mtu_probing=1 at both hosts";
        // A router may also drop the packets of this test only.
        let confidence = if route.is_reached { 0.8 } else { 0.6 };
        Some(self.verdict(Cause::PmtuBlackHole, confidence, vec![because], remedy))
    }

    fn clamp(&self) -> Option<Verdict> {
        let agreed = self.observed.agreed()?.agreed;
        let link = agreed.own_mss + self.headers();
        let mtu = self.observed.route.as_ref().and_then(|route| route.mtu.as_ref());
        let passes = mtu.and_then(|mtu| mtu.passes).unwrap_or(link).min(link).min(JUMBO_MIN);
        if agreed.mss + self.headers() + CLAMP_MIN > passes || agreed.path_mtu < link.min(JUMBO_MIN) {
            return None;
        }
        let mut evidence =
            vec![format!("the server asks for segments of {} bytes, and this host for {}", agreed.mss, agreed.own_mss)];
        let is_tested = mtu.is_some_and(|mtu| mtu.passes.is_some());
        evidence
            .extend(mtu.filter(|_| is_tested).map(|mtu| format!("packets of {passes} bytes pass to hop {}", mtu.hop)));
        let remedy = "a device changes the segment size that the hosts agree on, or the interface of the server has a \
                      small MTU: raise or remove the MSS clamp, or the MTU of the server";
        let is_reached = self.observed.route.as_ref().is_some_and(|route| route.is_reached);
        Some(self.verdict(Cause::MssClamped, if is_tested && is_reached { 0.8 } else { 0.5 }, evidence, remedy))
    }

    fn modes(&self) -> Option<Verdict> {
        let modes = self.observed.modes();
        let (first, last) = (modes.first()?, modes.last()?);
        // A single port may have met a busy moment of the server in all its connections.
        let ports = self.observed.handshakes.ports.len() as f64;
        if modes.len() < 2 || !modes[1..].iter().any(|mode| mode.share * ports >= PORTS_MIN) {
            return None;
        }
        let remedy = format!(
            "ask the operators of the path for its equal-cost routes, and of the server for its load balancer: {} of \
             the ports take one that is {} longer",
            percent(last.share),
            time(last.rtt_s - first.rtt_s)
        );
        let words: Vec<String> =
            modes.iter().map(|mode| format!("{} on {} of the ports", time(mode.rtt_s), percent(mode.share))).collect();
        let mut verdict = self.verdict(Cause::RttModes, 0.8, vec![words.join(", ")], remedy);
        verdict.modes = modes;
        Some(verdict)
    }

    fn lost_syns(&self) -> Option<Verdict> {
        let lost = self.observed.handshakes.lost_syns;
        let begun = self.observed.handshakes.connections();
        if lost < LOST_SYNS {
            return None;
        }
        let part = lost as f64 / (begun + lost).max(1) as f64;
        let because = format!(
            "{lost} SYN packets of {begun} connections were sent again ({}): lost on the way there or back, or \
             dropped by a server with a full queue",
            percent(part)
        );
        let remedy = "measure the loss with both ends: an agent at the server's site, or a reflector (stamp://HOST)";
        let mut verdict = self.verdict(Cause::RandomLoss, 0.4, vec![because], remedy);
        verdict.packets = Some(part);
        Some(verdict)
    }

    /// Returns the verdict on the rates of the downloads.
    fn rates(&self) -> Option<Verdict> {
        let one = self.one().filter(|one| one.measured_bps > 0 && !one.is_too_short())?;
        let given = self.observed.rate_max_bps.map(|bps| bps as f64);
        if let Some(given) = given.filter(|given| one.measured_bps as f64 >= given * GIVEN) {
            let because = format!("one connection has {} of the {} of --max-rate", rate(one), shown(given));
            let verdict = self.verdict(Cause::RateCap, 0.95, vec![because], "raise --max-rate to see the next limit");
            return Some(self.binds(verdict, one.measured_bps as f64));
        }
        if self.observed.agreed().is_some_and(|count| !count.agreed.window_scaling) {
            return None;
        }
        let most = self.most();
        let gain = most.map(|most| most.measured_bps as f64 / one.measured_bps as f64);
        match gain {
            _ if one.window_share >= WINDOW_LIMITS && gain.is_none_or(|gain| gain > SHARES) => {
                Some(self.own_window(one))
            }
            Some(gain) if gain >= SCALES => Some(self.of_one_connection(one, gain)),
            Some(gain) if gain <= SHARES => Some(self.of_all(one, gain)),
            Some(gain) => Some(self.between(one, gain)),
            // Nothing to compare with.
            None => None,
        }
    }

    fn binds(&self, mut verdict: Verdict, reachable: f64) -> Verdict {
        verdict.limits_to_bps = self.one().map(|one| one.measured_bps);
        verdict.predicted_bps = reachable as u64;
        shared(verdict)
    }

    /// Returns the sentence on the rates by number of connections.
    fn ratios(&self) -> String {
        let all: Vec<String> = self
            .flows
            .iter()
            .map(|flow| {
                format!("{} over {} connection{}", rate(flow), flow.streams, if flow.streams == 1 { "" } else { "s" })
            })
            .collect();
        all.join(", ")
    }

    fn own_window(&self, one: &DownloadView) -> Verdict {
        let window = ByteCount(one.window_bytes);
        let reachable = self.most().map_or(one.measured_bps * 2, |most| most.measured_bps);
        let needed = reachable as f64 / 8.0 * one.rtt_s;
        // The part of a buffer that is window depends on the network card: it is measured here.
        let part = one.window_bytes as f64 / (one.receive_buffer as f64).max(1.0);
        let by_kernel = kernel::buffer_for(ByteCount((needed * SPARE) as u64), self.observed.kernel());
        let buffer = by_kernel.max(ByteCount((needed * SPARE / part) as u64));
        let mut evidence = vec![format!(
            "in {} of the time a whole window of this host ({window} of a buffer of {}) arrived in each round trip of {}, \
             which is {}",
            percent(one.window_share),
            ByteCount(one.receive_buffer),
            time(one.rtt_s),
            shown(of_window(window.0 as f64, one.rtt_s))
        )];
        evidence.push(self.ratios());
        let most = self.observed.setting("ipv4.tcp_rmem").get(2).copied();
        if one.growth > GROWS || most.is_some_and(|most| one.receive_buffer < most / 10 * 9) {
            evidence.push(format!(
                "the window still grows, up to net.ipv4.tcp_rmem: longer transfers get more (buffer {} now)",
                ByteCount(one.receive_buffer)
            ));
            let text =
                "a window that is ready at the start needs a larger middle value of net.ipv4.tcp_rmem at this host";
            return self.binds(self.verdict(Cause::SlowRamp, 0.6, evidence, text), reachable as f64);
        }
        let remedy = format!(
            "at this host: {} (a window of {} for {} over {}); until then, several connections",
            kernel::receive_setting(buffer.min(kernel::BUFFER_MAX)),
            ByteCount(needed as u64),
            shown(reachable as f64),
            time(one.rtt_s)
        );
        let confidence = if self.most().is_some() { 0.85 } else { 0.7 };
        self.binds(self.verdict(Cause::ReceiveBuffer, confidence, evidence, remedy), reachable as f64)
    }

    /// Returns the verdict where connections have a limit each.
    fn of_one_connection(&self, one: &DownloadView, gain: f64) -> Verdict {
        let reachable = self.most().map_or(0.0, |most| most.measured_bps as f64);
        let mut evidence = vec![format!(
            "{}: {gain:.1} times as much, so the limit is of each connection and not of the path",
            self.ratios()
        )];
        evidence.push(format!(
            "the window of this host, {}, is not the limit: it allows {}",
            ByteCount(one.window_bytes),
            shown(of_window(one.window_bytes as f64, one.rtt_s))
        ));
        if one.growth > GROWS {
            evidence.push(format!("the rate still grows: {:.1} times in a quarter of the time", one.growth));
            let text = "transfers of small files end before they are fast: use connections again, or several at once";
            return self.binds(self.verdict(Cause::SlowRamp, 0.5, evidence, text), reachable);
        }
        if one.out_of_order > DISORDER {
            evidence.push(format!(
                "{} of the segments arrived out of order: after a loss, or overtaken on the way",
                percent(one.out_of_order)
            ));
            let text = "several connections, or another congestion control at the server (bbr); with an agent at the \
                        site of the server, sterna doctor separates loss from reordering";
            let mut verdict = self.verdict(Cause::RandomLoss, 0.5, evidence, text);
            verdict.packets = Some(one.out_of_order);
            return self.binds(verdict, reachable);
        }
        let in_flight = one.each_bps() / 8.0 * one.rtt_s;
        let is_even = if one.unevenness < EVEN { "evenly" } else { "unevenly" };
        evidence.push(format!(
            "nothing arrived out of order, and data came {is_even}: {} in each round trip; the send buffer of the \
             server, or a cap of each connection there, would do this",
            ByteCount(in_flight as u64)
        ));
        let remedy = format!(
            "ask the operator of the server for a larger send buffer: {} (twice the data of {} over {}), or for its \
             cap of a connection; until then, several connections",
            kernel::send_setting(
                kernel::send_buffer_for(ByteCount((reachable / 4.0 * one.rtt_s) as u64)).min(kernel::BUFFER_MAX)
            ),
            shown(reachable),
            time(one.rtt_s)
        );
        self.binds(self.verdict(Cause::SendBuffer, 0.5, evidence, remedy), reachable)
    }

    /// Returns the verdict where all connections share a limit.
    fn of_all(&self, one: &DownloadView, gain: f64) -> Verdict {
        let mut evidence = vec![format!("{}: {gain:.1} times as much, so connections share a limit", self.ratios())];
        let has_queue = one.loaded_rtt_s > one.rtt_s * QUEUE && one.rtt_s > 0.0;
        if has_queue {
            evidence.push(format!(
                "a queue stands on the way: {} under load, {} without",
                time(one.loaded_rtt_s),
                time(one.rtt_s)
            ));
        }
        let text = if has_queue {
            "the path is full: more connections gain nothing"
        } else {
            "the path, or the server as a whole, carries no more; more connections gain nothing"
        };
        let verdict = self.verdict(Cause::Clean, if has_queue { 0.8 } else { 0.6 }, evidence, text);
        self.binds(verdict, one.measured_bps as f64)
    }

    /// Returns the verdict where several connections have a little more: they yield less to others.
    fn between(&self, one: &DownloadView, gain: f64) -> Verdict {
        let why = format!("{}: {gain:.1} times as much", self.ratios());
        let window = format!(
            "the window of this host ({}) is not the limit: it allows {}",
            ByteCount(one.window_bytes),
            shown(of_window(one.window_bytes as f64, one.rtt_s))
        );
        let text = "several connections take more of a path that others fill, or they fill a short queue better: \
                    examine it with an agent at the other end (sterna://HOST), at another time of the day too";
        let verdict = self.verdict(Cause::Congestion, 0.3, vec![why, window], text);
        let reachable = self.most().map_or(one.measured_bps, |most| most.measured_bps);
        self.binds(verdict, reachable as f64)
    }
}

/// Sets the part of the reachable rate that a limit takes.
fn shared(mut verdict: Verdict) -> Verdict {
    let limit = verdict.limits_to_bps.unwrap_or(0) as f64;
    let reachable = verdict.predicted_bps as f64;
    verdict.share = if reachable > limit && reachable > 0.0 { 1.0 - limit / reachable } else { 0.0 };
    verdict
}

/// Returns the rate that a window gives, bit/s; infinite without a round trip.
fn of_window(window: f64, rtt_s: f64) -> f64 {
    let rtt = Duration::try_from_secs_f64(rtt_s).unwrap_or_default();
    if rtt.is_zero() { f64::INFINITY } else { response::of_window(ByteCount(window as u64), rtt) }
}

fn rate(flow: &DownloadView) -> String {
    BitRate(flow.measured_bps).to_string()
}

fn shown(bps: f64) -> String {
    if bps.is_finite() { BitRate(bps as u64).to_string() } else { "any rate".to_owned() }
}

#[cfg(test)]
mod tests {
    use sterna_net::measure::EchoPort;
    use sterna_net::measure::any_server::{Agreed, AgreedCount, HandshakeReport, MtuReport, RouteReport};

    use super::*;

    const AGREED: Agreed = Agreed {
        sack: true,
        timestamps: true,
        window_scaling: true,
        server_scale: 7,
        own_scale: 10,
        mss: 1460,
        own_mss: 1460,
        path_mtu: 1500,
    };

    /// Returns the observations of a path of 100 ms to a server.
    fn observed(agreed: Agreed) -> Observed {
        let port =
            |number| EchoPort { port: number, sent: 3, returned: 3, rtt_us: vec![100_000; 3], ..EchoPort::default() };
        let handshakes = HandshakeReport {
            server: Some(([192, 0, 2, 1], 443).into()),
            ports: (1..=10).map(port).collect(),
            agreed: vec![AgreedCount { agreed, connections: 30 }],
            ..HandshakeReport::default()
        };
        let mut observed = Observed { handshakes, ..Observed::default() };
        "6.18.0".clone_into(&mut observed.host.kernel);
        observed.host.settings.insert("ipv4.tcp_rmem".to_owned(), "4096 131072 6291456".to_owned());
        observed
    }

    /// Returns downloads with 1, 2 and 4 connections, of which the first has these properties.
    fn flows(one: &DownloadView, megabits: [u64; 3]) -> Vec<DownloadView> {
        let flow = |(streams, megabits): (u32, u64)| DownloadView {
            streams,
            measured_bps: megabits * 1_000_000,
            rtt_s: 0.1,
            seconds: 5.0,
            growth: 1.0,
            ..one.clone()
        };
        [1, 2, 4].into_iter().zip(megabits).map(flow).collect()
    }

    fn limits(observed: &Observed, flows: &[DownloadView]) -> Vec<Cause> {
        verdicts(observed, flows).iter().map(|verdict| verdict.limit).collect()
    }

    #[test]
    fn a_clean_server_has_no_verdict_and_missing_options_have_theirs() {
        assert_eq!(limits(&observed(AGREED), &[]), []);
        let none = Agreed { sack: false, timestamps: false, window_scaling: false, ..AGREED };
        let found = verdicts(&observed(none), &[]);
        let causes: Vec<Cause> = found.iter().map(|verdict| verdict.limit).collect();
        assert_eq!(causes, [Cause::NoWindowScaling, Cause::NoSack, Cause::NoTimestamps]);
        // 65535 bytes in 100 ms.
        assert_eq!(found[0].limits_to_bps, Some(5_242_800));
        assert!(found[1].remedy.contains("not visible from one side"), "{found:?}");
        let mut off = observed(none);
        off.host.settings.insert("ipv4.tcp_sack".to_owned(), "0".to_owned());
        assert_eq!(verdicts(&off, &[])[1].remedy, "it is off at this host: sysctl -w net.ipv4.tcp_sack=1");
    }

    #[test]
    fn sizes_and_ports_have_verdicts() {
        let mut path = observed(AGREED);
        let mtu =
            MtuReport { hop: 6, passes: Some(1400), vanishes: Some(1408), vanishes_after: Some(3), reports: vec![] };
        path.route = Some(RouteReport { mtu: Some(mtu), is_reached: true, ..RouteReport::default() });
        let hole = &verdicts(&path, &[])[0];
        assert!(hole.limit == Cause::PmtuBlackHole && hole.evidence[0].contains("vanish after hop 3"), "{hole:?}");
        assert_eq!(limits(&observed(Agreed { mss: 1160, ..AGREED }), &[]), [Cause::MssClamped]);
        // A smaller path MTU that a router reported is no clamp.
        assert_eq!(limits(&observed(Agreed { mss: 1360, path_mtu: 1400, ..AGREED }), &[]), []);
        let mut long = observed(AGREED);
        long.handshakes.ports[3].rtt_us = vec![140_000; 3];
        assert_eq!(limits(&long, &[]), [], "a single port is no route");
        long.handshakes.ports[5].rtt_us = vec![140_000; 3];
        let modes = &verdicts(&long, &[])[0];
        assert_eq!((modes.limit, modes.modes.len(), &modes.modes[1].ports[..]), (Cause::RttModes, 2, &[4, 6][..]));
        let mut lossy = observed(AGREED);
        lossy.handshakes.lost_syns = 3;
        assert_eq!(limits(&lossy, &[]), [Cause::RandomLoss]);
    }

    #[test]
    fn rates_of_several_connections_tell_the_limit_of_one() {
        let path = observed(AGREED);
        let full = DownloadView {
            window_share: 1.0,
            window_bytes: 5_600_000,
            receive_buffer: 6_291_456,
            ..DownloadView::default()
        };
        let own = &verdicts(&path, &flows(&full, [448, 890, 1700]))[0];
        assert_eq!(
            (own.limit, own.direction, own.predicted_bps),
            (Cause::ReceiveBuffer, Direction::Reverse, 1_700_000_000)
        );
        // 1.7 Gbit/s over 100 ms are 21.25 MB of window, and 10 % more in a buffer of which 0.89 is window.
        assert!(own.remedy.contains("tcp_rmem='4096 131072 26261"), "{}", own.remedy);
        assert!((own.share - (1.0 - 448.0 / 1700.0)).abs() < 1e-9, "{own:?}");
        let growing = DownloadView { receive_buffer: 1_000_000, ..full };
        assert_eq!(limits(&path, &flows(&growing, [100, 200, 400])), [Cause::SlowRamp]);
        let open = DownloadView { window_bytes: 30_000_000, ..DownloadView::default() };
        assert_eq!(limits(&path, &flows(&open, [100, 200, 400])), [Cause::SendBuffer]);
        let lossy = DownloadView { out_of_order: 0.01, ..open.clone() };
        assert_eq!(limits(&path, &flows(&lossy, [100, 200, 400])), [Cause::RandomLoss]);
        assert_eq!(limits(&path, &flows(&open, [100, 101, 102])), [Cause::Clean]);
        assert_eq!(limits(&path, &flows(&open, [100, 110, 130])), [Cause::Congestion]);
        let capped = Observed { rate_max_bps: Some(100_000_000), ..observed(AGREED) };
        assert_eq!(limits(&capped, &flows(&open, [99, 99, 99])), [Cause::RateCap]);
        // A small file.
        let mut short = flows(&open, [100, 200, 400]);
        short[0].seconds = 0.1;
        assert_eq!(limits(&path, &short), []);
        // One download only, as the server refuses more.
        assert_eq!(limits(&path, &flows(&open, [100, 0, 0])[..1]), []);
    }
}
