//! Tools of others at the other end: their locations, and the tests that they get.

use std::time::Duration;

use serde_json::{Map, Value, json};
use sterna_doctor::one_end::ReceiverView;
use sterna_net::measure::iperf3::IPERF3_PORT;
use sterna_net::measure::ndt7::{NDT7_CLEAR_PORT, NDT7_PORT, Ndt7Security};
use sterna_net::measure::{STAMP_PORT, TIME_MAX};
use sterna_proto::limit::LimitTimes;
use sterna_proto::location::HostPort;
use sterna_proto::path_cache::DataDirection;
use sterna_proto::quantity::readable_time;
use sterna_proto::web::WebLocation;
use sterna_proto::{BitRate, Error, ErrorKind, Phase, Scope};

use crate::flags::{ExamineFlags, ToolDirection};

/// Time of each direction by default. Reason: the default of iperf3.
const TIME_DEFAULT: Duration = Duration::from_secs(10);

/// Tool at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tool {
    /// A server of iperf3.
    Iperf3(HostPort),
    /// A reflector of STAMP or TWAMP Light.
    Stamp(HostPort),
    /// A server of NDT7.
    Ndt7(HostPort, Ndt7Security),
    /// Any TCP server.
    Server(HostPort),
    /// A file on a web server.
    File(WebLocation),
}

/// Returns the tool that a location names; `None`: it is another location.
///
/// Errors: `Usage`: the host or the port cannot be read, or flags of tools are given for another location.
pub fn tool_of(flags: &ExamineFlags) -> Result<Option<Tool>, Error> {
    let given = flags.target.clone().unwrap_or_default();
    let (scheme, rest) = given.to_str().and_then(|text| text.split_once("://")).unwrap_or_default();
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    let host = |port| HostPort::parse(authority, port).map_err(|why| usage(format!("{}: {why}", given.display())));
    if matches!(scheme, "iperf3" | "ndt7" | "ndt7+ws" | "stamp") {
        let is_needless = flags.measure.trust.is_some() && scheme != "ndt7";
        if is_of_agents(flags) || is_needless {
            let text = "--bundle, --html, --svg, --disk and --trust need an agent at the other end: sterna://HOST (--trust \
                        is for ndt7:// too)";
            return Err(usage(text.to_owned()));
        }
    }
    Ok(match scheme {
        "iperf3" => Some(Tool::Iperf3(host(IPERF3_PORT)?)),
        "ndt7" | "ndt7+ws" if flags.streams.is_some() || flags.udp.is_some() => {
            return Err(usage("--streams and --udp are for iperf3: NDT7 has one connection over TCP".to_owned()));
        }
        "stamp" if flags.streams.is_some() || flags.direction.is_some() || flags.udp.is_some() => {
            return Err(usage("--streams, --direction and --udp are for iperf3: STAMP has small packets".to_owned()));
        }
        "stamp" => Some(Tool::Stamp(host(STAMP_PORT)?)),
        "ndt7" => {
            let security = flags.measure.trust.map_or(Ndt7Security::Authorities, Ndt7Security::Key);
            Some(Tool::Ndt7(host(NDT7_PORT)?, security))
        }
        "ndt7+ws" => Some(Tool::Ndt7(host(NDT7_CLEAR_PORT)?, Ndt7Security::Clear)),
        "" if is_server(&given.to_string_lossy()) => {
            one_side_flags(flags)?;
            let server = HostPort::parse(&given.to_string_lossy(), HTTPS_PORT);
            Some(Tool::Server(server.map_err(|why| usage(format!("{}: {why}", given.display())))?))
        }
        _ if WebLocation::is_meant(given.as_encoded_bytes()) && flags.measure.from.is_some() => {
            let text = "--from is not for downloads, which take the route of the system; give HOST:PORT with it";
            return Err(usage(text.to_owned()));
        }
        _ if WebLocation::is_meant(given.as_encoded_bytes()) => {
            one_side_flags(flags)?;
            Some(Tool::File(WebLocation::parse(&given.to_string_lossy())?))
        }
        _ if flags.streams.is_some() || flags.direction.is_some() || flags.udp.is_some() => {
            let text = "--streams, --direction and --udp are for iperf3://HOST and ndt7://HOST; an examination of the path to an agent \
                        decides them itself";
            return Err(usage(text.to_owned()));
        }
        _ => None,
    })
}

/// Port of a target that names none; [`is_server`] wants one.
const HTTPS_PORT: u16 = 443;

/// Returns true if a target without a scheme is a host and a port. A local path has a slash, or no colon; no location
/// of Sterna is `HOST:PATH`.
fn is_server(target: &str) -> bool {
    let (host, port) = target.rsplit_once(':').unwrap_or_default();
    !target.contains('/') && !host.is_empty() && (port.is_empty() || port.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns true if a flag needs an agent at the other end.
fn is_of_agents(flags: &ExamineFlags) -> bool {
    let files = flags.bundle.is_some() || flags.files.html.is_some() || flags.files.svg.is_some();
    files || flags.measure.disk.is_some()
}

/// Checks the flags of an examination from one side. Errors: `Usage`: a flag that needs another program at the other
/// end.
fn one_side_flags(flags: &ExamineFlags) -> Result<(), Error> {
    if is_of_agents(flags) || flags.measure.trust.is_some() {
        let text = "--bundle, --html, --svg, --disk and --trust need an agent at the other end: sterna://HOST";
        return Err(usage(text.to_owned()));
    }
    if flags.streams.is_some() || flags.direction.is_some() || flags.udp.is_some() {
        let text = "--streams, --direction and --udp are for iperf3://HOST and ndt7://HOST; an examination from one \
                    side decides them itself";
        return Err(usage(text.to_owned()));
    }
    Ok(())
}

/// Returns the directions of the tests, in order.
pub fn directions(flags: &ExamineFlags) -> Vec<DataDirection> {
    match flags.direction {
        Some(ToolDirection::Up) => vec![DataDirection::Out],
        Some(ToolDirection::Down) => vec![DataDirection::In],
        None => vec![DataDirection::Out, DataDirection::In],
    }
}

/// Returns the time of each direction, in whole seconds.
pub fn time_of_each(flags: &ExamineFlags) -> Duration {
    // At most two directions.
    let count = u32::try_from(directions(flags).len()).unwrap_or(1);
    let time = flags.measure.time.map_or(TIME_DEFAULT, |time| (time / count).min(TIME_MAX));
    Duration::from_secs(time.as_secs().max(1))
}

/// Returns the name of a direction, as in the report of an examination.
pub fn name(direction: DataDirection) -> &'static str {
    match direction {
        DataDirection::Out => "forward",
        DataDirection::In => "reverse",
    }
}

/// Returns a direction in words.
pub fn words(direction: DataDirection, of: &str) -> String {
    match direction {
        DataDirection::Out => format!("to the {of}"),
        DataDirection::In => format!("from the {of}"),
    }
}

/// Returns the limits as an object: shares of time by name.
pub fn limits_json(times: &LimitTimes) -> Value {
    let share = |(limit, share): (sterna_proto::limit::Limit, f64)| (limit.name().to_owned(), json!(share));
    Value::Object(times.shares().into_iter().map(share).collect::<Map<_, _>>())
}

/// Returns the limits as lines for people.
pub fn limit_lines(times: &LimitTimes) -> Vec<String> {
    times.shares().iter().map(|(limit, share)| format!("  {:>5}  {}", percent(*share), limit.words())).collect()
}

/// Returns a line about the windows of this end, which receives.
pub fn receiver_line(view: &ReceiverView) -> String {
    let window = sterna_proto::ByteCount(view.window);
    match view.allows() {
        Some(rate) => format!(
            "  window of this end: up to {window}, which allows {rate} at {}; unread at most {} of the buffer",
            readable_time(view.rtt),
            percent(view.unread)
        ),
        None => "  this kernel does not report the windows of this end".to_owned(),
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Returns the mean rate of bytes in a time.
pub fn rate(bytes: u64, time: Duration) -> BitRate {
    // Saturates.
    BitRate((bytes as f64 * 8.0 / time.as_secs_f64().max(1e-3)) as u64)
}

/// Returns an error of usage.
pub fn usage(text: String) -> Error {
    Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text)
}
