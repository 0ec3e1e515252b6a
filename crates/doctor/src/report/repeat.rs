//! Commands with which an operator repeats the decisive observation without Sterna.

use std::net::SocketAddr;

use super::{Report, text};
use crate::evidence::Direction;
use crate::verdict::{Cause, Verdict};

/// Command, and the result that confirms the verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// Command, for the host that sends the data.
    pub command: String,
    /// Result to expect.
    pub expect: String,
}

/// Returns the commands for a verdict; empty if common tools do not show it.
pub fn commands(verdict: &Verdict, report: &Report) -> Vec<Repeat> {
    let address = report.path.address.parse::<SocketAddr>().ok();
    let to = address.map_or_else(|| "B".to_owned(), |address| address.ip().to_string());
    let flag = match verdict.direction {
        Direction::Forward => "",
        Direction::Reverse => " -R",
    };
    let repeat = |command: String, expect: String| Repeat { command, expect };
    let above = verdict.rate_bps.unwrap_or(0) as f64;
    let sockets = |field: &str| {
        repeat(
            format!("iperf3 -c {to}{flag} -t 20 & sleep 5; ss -tin dst {to}    # at the end that sends"),
            format!("{field} with a large share of busy"),
        )
    };
    match verdict.limit {
        Cause::ReceiveBuffer | Cause::NoWindowScaling => vec![sockets("rwnd_limited")],
        Cause::SendBuffer => vec![sockets("sndbuf_limited")],
        Cause::Policer | Cause::Shaper if above > 0.0 => above_rate(verdict.limit, above, &to, flag),
        Cause::RandomLoss => vec![repeat(
            format!(
                "iperf3 -c {to}{flag} -u -b {} -l 130 -t 20",
                rate(report.measured_bps.max(1_000_000) as f64 / 20.0)
            ),
            match verdict.packets {
                Some(part) => format!("about {} lost, at any rate", text::percent(part)),
                None => "the same loss at any rate".to_owned(),
            },
        )],
        Cause::Congestion => vec![repeat(
            format!("ping -i 0.2 -c 300 {to}    # without a transfer, and at another time of day"),
            "round trips far above the smallest one while others load the path".to_owned(),
        )],
        Cause::RttModes => ports(verdict, &to, address.map_or(0, |address| address.port())),
        Cause::PmtuBlackHole | Cause::MssClamped => vec![repeat(
            format!("tracepath -n {to}; ping -M do -s 1472 -c 3 {to}"),
            "no reply to the large packets, and no report of a router".to_owned(),
        )],
        Cause::Reordering => vec![repeat(
            format!("iperf3 -c {to}{flag} -u -b {} -t 10", rate(report.measured_bps.max(1_000_000) as f64 / 2.0)),
            "datagrams out of order in the report of the receiver".to_owned(),
        )],
        Cause::NoSack | Cause::NoTimestamps => vec![repeat(
            format!("tcpdump -nvi any 'host {to} and tcp[tcpflags] & tcp-syn != 0'    # at both ends"),
            "the option is missing in the SYN or SYN/ACK at one end: where it is sent and does not arrive, a device \
             between removes it"
                .to_owned(),
        )],
        Cause::Cpu => vec![repeat(
            format!("iperf3 -c {to}{flag} -t 20 & mpstat -P ALL 1 15    # at both ends"),
            "a processor without idle time".to_owned(),
        )],
        _ => Vec::new(),
    }
}

/// Returns a rate as iperf3 reads it.
fn rate(bps: f64) -> String {
    format!("{:.0}k", bps / 1e3)
}

/// Rate of the train of the commands, as a multiple of the rate of a policer or shaper.
const OVERLOAD: f64 = 1.6;

/// Returns the commands that send above the rate of a policer or shaper.
fn above_rate(limit: Cause, bps: f64, to: &str, flag: &str) -> Vec<Repeat> {
    let send = rate(bps * OVERLOAD);
    let command = format!("iperf3 -c {to}{flag} -u -b {send} -l 1400 -t 5 & ping -i 0.2 -c 20 {to}");
    if limit == Cause::Shaper {
        let expect = "the round trip of ping rises while the train runs, and falls after it".to_owned();
        return vec![Repeat { command, expect }];
    }
    let lost = (1.0 - 1.0 / OVERLOAD) * 100.0;
    let received = text::rate(bps as u64);
    vec![
        Repeat {
            command,
            expect: format!(
                "about {lost:.0} % lost, at about {received} received, while the round trip of ping does not rise"
            ),
        },
        Repeat {
            command: format!("iperf3 -c {to}{flag} --fq-rate {} -t 10", rate(bps * 0.95)),
            expect: "almost no segment sent again (column Retr)".to_owned(),
        },
    ]
}

/// Returns a command for a port of the shortest and one of the longest path.
fn ports(verdict: &Verdict, to: &str, port_of_agent: u16) -> Vec<Repeat> {
    let ends = verdict.modes.first().into_iter().chain(verdict.modes.last().filter(|_| verdict.modes.len() > 1));
    ends.filter_map(|mode| {
        let port = mode.ports.first()?;
        Some(Repeat {
            command: format!("traceroute -n -U -p {port_of_agent} --sport={port} {to}"),
            expect: format!("other routers than with the other port, and {:.1} ms to the far end", mode.rtt_s * 1e3),
        })
    })
    .collect()
}
