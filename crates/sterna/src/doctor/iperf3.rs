//! `sterna doctor iperf3://HOST`: tests with a server of iperf3, and what the kernel of this end saw.

use serde_json::{Value, json};
use sterna_doctor::one_end::{ReceiverView, sender_times};
use sterna_net::measure::SocketSettings;
use sterna_net::measure::iperf3::{Iperf3Outcome, Iperf3Test, Iperf3Transport, run as run_test};
use sterna_proto::location::HostPort;
use sterna_proto::path_cache::DataDirection;
use sterna_proto::{ByteCount, Error};

use super::tools;
use crate::flags::ExamineFlags;
use crate::output::print_line;

/// Size of a datagram without headers, bytes. Reason: packets of 1500 bytes pass over IPv6 too.
const DATAGRAM_BYTES: u64 = 1448;

/// Runs a test in each direction, and prints what came out. Returns the exit code.
pub fn run(server: &HostPort, flags: &ExamineFlags) -> Result<u8, Error> {
    let streams = flags.streams.unwrap_or(1);
    let transport = match flags.udp {
        Some(rate) => {
            if let Some(most) = flags.measure.max_rate.filter(|most| rate > *most) {
                return Err(tools::usage(format!("--udp {rate} is above --max-rate {most}")));
            }
            Iperf3Transport::Udp { rate_bps: rate.0 / u64::from(streams.max(1)), datagram_bytes: DATAGRAM_BYTES }
        }
        None => {
            let pacing_bps = flags.measure.max_rate.map(|most| most.0 / u64::from(streams.max(1)));
            let sockets = SocketSettings { pacing_bps, ..SocketSettings::default() };
            Iperf3Transport::Tcp { sockets }
        }
    };
    let mut flows = Vec::new();
    for direction in tools::directions(flags) {
        let test = Iperf3Test { direction, streams, time: tools::time_of_each(flags), transport: transport.clone() };
        let outcome = run_test(server, flags.measure.from, &test)?;
        if !flags.json {
            lines(&test, &outcome).iter().try_for_each(|line| print_line(line.as_bytes()))?;
        }
        flows.push((test, outcome));
    }
    if flags.json {
        print_line(report(server, &flows).to_string().as_bytes())?;
    }
    Ok(0)
}

/// Returns the lines about a test.
fn lines(test: &Iperf3Test, outcome: &Iperf3Outcome) -> Vec<String> {
    let rate = tools::rate(outcome.received_bytes, outcome.time);
    let connections = if test.streams == 1 { "1 stream".to_owned() } else { format!("{} streams", test.streams) };
    let resent = outcome.resent.map_or(String::new(), |count| format!(", {count} segments sent again"));
    let direction = tools::words(test.direction, "server");
    let bytes = ByteCount(outcome.received_bytes);
    let time = outcome.time.as_secs_f64();
    let mut lines = vec![format!("{direction}: {rate}, {connections}, {bytes} in {time:.1} s{resent}")];
    if let Some(datagrams) = &outcome.datagrams {
        let share = datagrams.lost as f64 / datagrams.packets.max(1) as f64;
        let order = datagrams.out_of_order.map_or(String::new(), |count| format!(", {count} out of order"));
        lines.push(format!(
            "  {} of {} datagrams lost ({:.2} %){order}, jitter {:.3} ms",
            datagrams.lost,
            datagrams.packets,
            share * 100.0,
            datagrams.jitter_us as f64 / 1e3
        ));
        return lines;
    }
    match test.direction {
        DataDirection::Out => match sender_times(&outcome.near) {
            Some(times) => {
                lines.push(
                    "  limits of this end, in shares of time by its kernel (receive window: of the server):".to_owned(),
                );
                lines.extend(tools::limit_lines(&times));
            }
            None => lines.push("  this kernel does not count the limits of a sender".to_owned()),
        },
        DataDirection::In => lines.push(tools::receiver_line(&ReceiverView::new(&outcome.near))),
    }
    lines
}

/// Returns the report for programs.
fn report(server: &HostPort, flows: &[(Iperf3Test, Iperf3Outcome)]) -> Value {
    let bytes: u64 = flows.iter().map(|(_, outcome)| outcome.sent_bytes).fold(0, u64::saturating_add);
    let address = flows.first().and_then(|(_, outcome)| outcome.server);
    json!({
        "target": format!("iperf3://{server}"),
        "address": address.map(|address| address.to_string()),
        "flows": flows.iter().map(|(test, outcome)| flow_json(test, outcome)).collect::<Vec<_>>(),
        "cost": {"bytes": bytes},
    })
}

fn flow_json(test: &Iperf3Test, outcome: &Iperf3Outcome) -> Value {
    let receives = test.direction == DataDirection::In && outcome.datagrams.is_none();
    let window = receives.then(|| ReceiverView::new(&outcome.near));
    let limits = if receives { None } else { sender_times(&outcome.near) };
    json!({
        "direction": tools::name(test.direction),
        "transport": if outcome.datagrams.is_some() { "udp" } else { "tcp" },
        "streams": test.streams,
        "measured_bps": tools::rate(outcome.received_bytes, outcome.time).0,
        "sent_bytes": outcome.sent_bytes,
        "received_bytes": outcome.received_bytes,
        "seconds": outcome.time.as_secs_f64(),
        "resent_segments": outcome.resent,
        "limits": limits.map(|times| tools::limits_json(&times)),
        "window_bytes": window.map(|view| view.window),
        "window_allows_bps": window.and_then(|view| view.allows()).map(|rate| rate.0),
        "rtt_us": window.map(|view| u64::try_from(view.rtt.as_micros()).unwrap_or(u64::MAX)),
        "datagrams": outcome.datagrams,
        "server_cpu_percent": outcome.server_cpu_percent,
        "server_congestion": outcome.server_congestion,
    })
}
