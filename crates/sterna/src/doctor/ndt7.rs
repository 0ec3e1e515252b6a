//! `sterna doctor ndt7://HOST`: tests with a server of NDT7. The server sends the counters of its kernel, so that the
//! limits of both directions are seen.

use std::time::Duration;

use serde_json::{Value, json};
use sterna_doctor::one_end::{ReceiverView, SenderClock, sender_times};
use sterna_net::measure::ndt7::{KernelReport, Ndt7Outcome, Ndt7Security, Ndt7Test, TEST_TIME, run as run_test};
use sterna_proto::limit::LimitTimes;
use sterna_proto::location::HostPort;
use sterna_proto::path_cache::DataDirection;
use sterna_proto::quantity::readable_time;
use sterna_proto::{ByteCount, Error};

use super::tools;
use crate::flags::ExamineFlags;
use crate::output::print_line;
use crate::state;

/// Runs a test in each direction, and prints what came out. Returns the exit code.
pub fn run(server: &HostPort, security: Ndt7Security, flags: &ExamineFlags) -> Result<u8, Error> {
    let identity = state::identity(flags.measure.state.as_deref())?;
    let mut flows = Vec::new();
    for direction in tools::directions(flags) {
        let time = tools::time_of_each(flags).min(TEST_TIME);
        let test = Ndt7Test { direction, time, rate_max_bps: flags.measure.max_rate.map(|most| most.0) };
        let outcome = run_test(server, flags.measure.from, security, &identity, &test)?;
        if !flags.json {
            lines(direction, &outcome).iter().try_for_each(|line| print_line(line.as_bytes()))?;
        }
        flows.push((direction, outcome));
    }
    if flags.json {
        print_line(report(server, &flows).to_string().as_bytes())?;
    }
    Ok(0)
}

/// Returns the limits of the sender by its kernel; `None`: it has sent no counters.
fn limits(direction: DataDirection, outcome: &Ndt7Outcome) -> Option<LimitTimes> {
    match direction {
        DataDirection::Out => sender_times(&outcome.near),
        DataDirection::In => clock(&outcome.kernel?).map(|clock| clock.times()),
    }
}

/// Returns the times of a server.
fn clock(kernel: &KernelReport) -> Option<SenderClock> {
    let time = |micros: Option<u64>| micros.map(Duration::from_micros);
    Some(SenderClock {
        elapsed: time(kernel.elapsed_time)?,
        busy: time(kernel.busy_time)?,
        receive_window: time(kernel.receive_window_limited).unwrap_or_default(),
        send_buffer: time(kernel.send_buffer_limited).unwrap_or_default(),
    })
}

/// Returns the lines about a test.
fn lines(direction: DataDirection, outcome: &Ndt7Outcome) -> Vec<String> {
    let rate = tools::rate(outcome.bytes, outcome.time);
    let (bytes, time) = (ByteCount(outcome.bytes), outcome.time.as_secs_f64());
    let resent = resent(direction, outcome).map_or(String::new(), |part| format!(", {:.2} % sent again", part * 100.0));
    let mut lines = vec![format!("{}: {rate}, {bytes} in {time:.1} s{resent}", tools::words(direction, "server"))];
    let (sender, receiver) = match direction {
        DataDirection::Out => ("this end", "the server"),
        DataDirection::In => ("the server", "this end"),
    };
    match limits(direction, outcome) {
        Some(times) => {
            let of = format!("limits of {sender}, in shares of time by its kernel (receive window: of {receiver})");
            lines.push(format!("  {of}:"));
            lines.extend(tools::limit_lines(&times));
        }
        None => lines.push(format!("  {sender} does not report its limits")),
    }
    if direction == DataDirection::In {
        lines.push(tools::receiver_line(&ReceiverView::new(&outcome.near)));
    }
    if let Some(rtt) = outcome.kernel.and_then(|kernel| kernel.min_rtt) {
        let rtt = readable_time(Duration::from_micros(rtt));
        lines.push(format!("  smallest round trip that the server saw: {rtt}"));
    }
    lines
}

/// Returns the part of the data that was sent again; `None`: the kernel of the sender is older than 4.19.
fn resent(direction: DataDirection, outcome: &Ndt7Outcome) -> Option<f64> {
    match direction {
        DataDirection::In => {
            let kernel = outcome.kernel?;
            Some(kernel.bytes_retrans? as f64 / kernel.bytes_sent?.max(1) as f64)
        }
        DataDirection::Out => {
            let last = outcome.near.streams.first()?.samples.last()?;
            Some(last.resent as f64 / last.data_segments_out.max(1) as f64)
        }
    }
}

/// Returns the report for programs.
fn report(server: &HostPort, flows: &[(DataDirection, Ndt7Outcome)]) -> Value {
    let bytes: u64 = flows.iter().map(|(_, outcome)| outcome.bytes).fold(0, u64::saturating_add);
    let address = flows.first().and_then(|(_, outcome)| outcome.server);
    json!({
        "target": format!("ndt7://{server}"),
        "address": address.map(|address| address.to_string()),
        "flows": flows.iter().map(|(direction, outcome)| flow_json(*direction, outcome)).collect::<Vec<_>>(),
        "cost": {"bytes": bytes},
    })
}

fn flow_json(direction: DataDirection, outcome: &Ndt7Outcome) -> Value {
    let window = (direction == DataDirection::In).then(|| ReceiverView::new(&outcome.near));
    json!({
        "direction": tools::name(direction),
        "transport": "tcp",
        "streams": 1,
        "measured_bps": tools::rate(outcome.bytes, outcome.time).0,
        "received_bytes": outcome.bytes,
        "seconds": outcome.time.as_secs_f64(),
        "resent_share": resent(direction, outcome),
        "limits": limits(direction, outcome).map(|times| tools::limits_json(&times)),
        "window_bytes": window.map(|view| view.window),
        "window_allows_bps": window.and_then(|view| view.allows()).map(|rate| rate.0),
        "server_kernel": outcome.kernel,
    })
}
