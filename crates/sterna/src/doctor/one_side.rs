//! `sterna doctor HOST:PORT` and `sterna doctor https://HOST/FILE`: a path to any TCP server, seen from one side.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use sterna_doctor::one_side::{Observed, OneSideReport, lines};
use sterna_net::measure::any_server::{
    CONNECTIONS_A_SECOND, CONNECTIONS_MAX, DownloadSpec, HandshakeReport, TraceSpec, WebFile, download, handshakes,
    trace,
};
use sterna_net::measure::host_facts;
use sterna_proto::Error;
use sterna_proto::location::HostPort;
use sterna_proto::web::WebLocation;

use crate::flags::ExamineFlags;
use crate::jobs::table::json_of;
use crate::output::{print_line, say};

/// Time of an examination without `--time`.
const TIME_DEFAULT: Duration = Duration::from_secs(60);

/// Time of all handshakes at their rate.
const HANDSHAKES_TIME: Duration = Duration::from_secs((CONNECTIONS_MAX / CONNECTIONS_A_SECOND) as u64);

/// Part of the time for the handshakes at most: a third of it for hops, and the rest for downloads.
const HANDSHAKES_PART: u32 = 4;
const HOPS_PART: u32 = 3;

/// Numbers of connections of the downloads, one after the other.
const STREAMS: [u32; 3] = [1, 2, 4];

/// Time of a download. Reason: slow start over a long path ends within half of the longest.
const DOWNLOAD_TIME: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];

/// Maximum number of bytes of a download. Reason: 800 Mbit/s for 10 s; a server of others must not be loaded for
/// longer.
const DOWNLOAD_BYTES_MAX: u64 = 1_000_000_000;

/// Headers of IP and TCP, bytes, for IPv4 and IPv6.
const HEADERS: [u32; 2] = [40, 60];

/// Examines the path to a server. Returns the exit code.
pub fn of_server(server: &HostPort, flags: &ExamineFlags) -> Result<u8, Error> {
    let started = Instant::now();
    let observed = Observed { target: server.to_string(), ..Observed::default() };
    show(path(server, flags, observed, started)?, flags, started)
}

/// Examines the path to the server of a file, and downloads it. Returns the exit code.
pub fn of_file(location: &WebLocation, flags: &ExamineFlags) -> Result<u8, Error> {
    let started = Instant::now();
    let file = WebFile::find(location)?;
    let at = file.location();
    let server = HostPort { host: at.host().to_owned(), port: at.port() };
    let observed = Observed {
        target: location.to_string(),
        redirected: (at != location).then(|| at.to_string()),
        takes_ranges: file.takes_ranges(),
        is_proxied: file.is_proxied(),
        ..Observed::default()
    };
    let mut observed = path(&server, flags, observed, started)?;
    let left = time(flags).saturating_sub(started.elapsed());
    let [least, most] = DOWNLOAD_TIME;
    // Three.
    let each = (left / STREAMS.len() as u32).clamp(least, most);
    for streams in STREAMS {
        announce(flags, &format!("from the server: a download with {streams} connections"));
        let rate_max_bps = flags.measure.max_rate.map(|most| most.0);
        match download(&file, &DownloadSpec { streams, time: each, bytes_max: DOWNLOAD_BYTES_MAX, rate_max_bps }) {
            Ok(report) => observed.downloads.push(report),
            // A server may refuse the second connection, which is a result.
            Err(error) if !observed.downloads.is_empty() => {
                observed.failed_download = Some(format!("{streams} connections: {}", error.chain()));
                break;
            }
            Err(error) => return Err(error),
        }
    }
    show(observed, flags, started)
}

fn time(flags: &ExamineFlags) -> Duration {
    flags.measure.time.unwrap_or(TIME_DEFAULT)
}

/// Observes the handshakes, hops and sizes of a path.
fn path(server: &HostPort, flags: &ExamineFlags, mut observed: Observed, started: Instant) -> Result<Observed, Error> {
    announce(flags, "to the server: handshakes from several ports");
    observed.handshakes = handshakes(server, flags.measure.from, HANDSHAKES_TIME.min(time(flags) / HANDSHAKES_PART))?;
    announce(flags, "to the server: hops and sizes of packets that pass");
    let left = time(flags).saturating_sub(started.elapsed());
    let rtt = Duration::from_secs_f64(observed.rtt_s());
    match spec(&observed.handshakes, rtt, left.min(time(flags) / HOPS_PART)).map(|spec| trace(&spec)) {
        Some(Ok(route)) => observed.route = Some(route),
        Some(Err(error)) => observed.failed_route = Some(error.chain()),
        None => {}
    }
    observed.host = host_facts();
    observed.rate_max_bps = flags.measure.max_rate.map(|most| most.0);
    Ok(observed)
}

fn spec(handshakes: &HandshakeReport, rtt: Duration, time: Duration) -> Option<TraceSpec> {
    let (remote, local) = (handshakes.server?.ip(), handshakes.local?);
    let link_mtu = handshakes.agreed.first()?.agreed.own_mss + HEADERS[usize::from(remote.is_ipv6())];
    Some(TraceSpec { remote, local, rtt, link_mtu, time })
}

fn show(mut observed: Observed, flags: &ExamineFlags, started: Instant) -> Result<u8, Error> {
    observed.time_s = started.elapsed().as_secs_f64();
    let report = OneSideReport::new(&observed);
    if flags.json {
        print_line(json_of(&report)?.as_bytes())?;
        return Ok(0);
    }
    lines(&report).iter().try_for_each(|line| print_line(line.as_bytes()))?;
    Ok(0)
}

/// Shows the next step to a user at a terminal.
fn announce(flags: &ExamineFlags, text: &str) {
    if !flags.json && std::io::stderr().is_terminal() {
        say(text);
    }
}
