//! `sterna doctor stamp://HOST`: echoes of any reflector of STAMP or TWAMP Light.

use std::time::Duration;

use serde::Serialize;
use sterna_doctor::echoes::EchoSummary;
use sterna_net::measure::{EchoReport, EchoSpec, stamp_echoes};
use sterna_proto::location::HostPort;
use sterna_proto::{BitRate, Error, ErrorKind, Phase, Scope};

use crate::flags::ExamineFlags;
use crate::output::print_line;

/// Source ports. Reason: 32 random flows see a path that one of eight flows takes, with 98.6 % probability.
const PORTS: u32 = 32;

/// Size of the packets. Reason: that of a small packet of TCP, and above the least of IPv6.
const PACKET_BYTES: u32 = 100;

/// Time between two packets. Reason: 80 kbit/s are no load.
const INTERVAL: Duration = Duration::from_millis(10);

/// Packets of a port without `--time`.
const PER_PORT: u32 = 10;

/// Packets of a port that a mode needs.
const PER_PORT_MIN: u32 = 3;

/// Maximum time of echoes (`sterna_net::measure`).
const TIME_MAX: Duration = Duration::from_secs(60);

/// Report for programs.
#[derive(Serialize)]
struct Report<'a> {
    target: &'a str,
    address: String,
    summary: EchoSummary,
    ports: EchoReport,
}

/// Measures delay and loss to a reflector. Returns the exit code.
pub fn run(reflector: &HostPort, flags: &ExamineFlags) -> Result<u8, Error> {
    let spec = spec(flags);
    let (address, ports) = stamp_echoes(reflector, flags.measure.from, &spec)?;
    let summary = EchoSummary::new(&ports);
    let target = format!("stamp://{reflector}");
    if flags.json {
        let report = Report { target: &target, address: address.to_string(), summary, ports };
        let json = serde_json::to_string(&report).map_err(|e| {
            Error::new(ErrorKind::Internal, Scope::Client, Phase::Finalise, "write the report as JSON").caused_by(e)
        })?;
        print_line(json.as_bytes())?;
        return Ok(0);
    }
    let every = Duration::from_micros(spec.interval_us).as_secs_f64() * 1e3;
    let head = format!(
        "{target} ({address}): {} packets of {} bytes over each of {} source ports, one every {every:.0} ms",
        spec.per_port, spec.packet_bytes, spec.ports
    );
    print_line(head.as_bytes())?;
    summary.lines().iter().try_for_each(|line| print_line(line.as_bytes()))?;
    Ok(0)
}

/// Returns the echoes that fit the time and the rate of the flags.
fn spec(flags: &ExamineFlags) -> EchoSpec {
    let at_rate = |most: BitRate| Duration::from_secs_f64(f64::from(PACKET_BYTES) * 8.0 / most.0.max(1) as f64);
    let turn = TIME_MAX / (PORTS * PER_PORT_MIN);
    let interval = INTERVAL.max(flags.measure.max_rate.map_or(Duration::ZERO, at_rate)).min(turn);
    let time = flags.measure.time.map_or(interval * PORTS * PER_PORT, |time| time.min(TIME_MAX)).min(TIME_MAX);
    // Below `TIME_MAX` by the interval.
    let per_port = (time.as_micros() / (interval * PORTS).as_micros().max(1)) as u32;
    EchoSpec {
        ports: PORTS,
        per_port: per_port.max(PER_PORT_MIN),
        // Not above `TIME_MAX`.
        interval_us: interval.as_micros() as u64,
        packet_bytes: PACKET_BYTES,
    }
}
