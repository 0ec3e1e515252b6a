//! Flags of `sterna doctor perfsonar`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use sterna_doctor::perfsonar::spec::TestKind;
use sterna_net::identity::Fingerprint;
use sterna_net::measure::STREAMS_MAX;
use sterna_proto::BitRate;
use sterna_proto::web::WebLocation;

use super::duration::{parse_rtt, parse_time};

const RUN_EXAMPLES: &str = "\
Examples:
  sterna doctor perfsonar run throughput --source ps1.example.org --dest ps2.example.org
  sterna doctor perfsonar run throughput --source ps1.example.org --dest ps2.example.org \\
      --time 60s --streams 4 --link-rtt 660ms
  sterna doctor perfsonar run trace --source ps1.example.org --dest www.example.org --json

Asks the node of the source by the REST interface of pScheduler, follows the run, and
judges its result. Ctrl-C removes the task from the node.";

const READ_EXAMPLES: &str = "\
Examples:
  sterna doctor perfsonar read https://archive.example.org --test throughput \\
      --source ps1.example.org --dest ps2.example.org
  sterna doctor perfsonar read https://old.example.org/esmond/perfsonar/archive/ \\
      --test rtt --source ps1.example.org --dest ps2.example.org --since 24h --json

A URL whose path names esmond is read as an archive of perfSONAR 4, any other as the
OpenSearch of perfSONAR 5.";

/// Flags of `sterna doctor perfsonar`.
#[derive(Debug, Args)]
pub struct PerfsonarFlags {
    /// Command to run.
    #[command(subcommand)]
    pub command: PerfsonarCommand,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum PerfsonarCommand {
    /// Run a test between two hosts on a node of perfSONAR, and judge its result
    #[command(after_help = RUN_EXAMPLES)]
    Run(Box<PerfsonarRunFlags>),
    /// Read the results of an archive of perfSONAR, and tell what changed
    #[command(after_help = READ_EXAMPLES)]
    Read(Box<PerfsonarReadFlags>),
}

/// Flags of `sterna doctor perfsonar run`.
#[derive(Debug, Args)]
pub struct PerfsonarRunFlags {
    /// Test to run
    #[arg(value_name = "TEST")]
    pub test: TestFlag,
    /// Host that sends, as its node of perfSONAR knows it
    #[arg(long, value_name = "HOST", value_parser = parse_host)]
    pub source: String,
    /// Host that receives; throughput and latency need a node of perfSONAR there
    #[arg(long, value_name = "HOST", value_parser = parse_host)]
    pub dest: String,
    /// Node of perfSONAR for the source, if it is another host (default: https://SOURCE/pscheduler)
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    pub node: Option<WebLocation>,
    /// Node of perfSONAR for the destination, if it is another host
    #[arg(long, value_name = "HOST[:PORT]", value_parser = parse_host_port)]
    pub dest_node: Option<String>,
    /// Time of the test (default: throughput 20s, rtt and latency 10s)
    #[arg(long, value_name = "TIME", value_parser = parse_test_time)]
    pub time: Option<Duration>,
    /// Number of streams of a throughput test (default: 1)
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=i64::from(STREAMS_MAX)))]
    pub streams: Option<u32>,
    /// Highest rate of all streams of a throughput test together (default: the limits of the nodes)
    #[arg(long, value_name = "RATE")]
    pub max_rate: Option<BitRate>,
    /// Round-trip time of the path, for tools whose timeouts are too short for it: above 200ms
    #[arg(long, value_name = "TIME", value_parser = parse_rtt)]
    pub link_rtt: Option<Duration>,
    /// Time to wait until the nodes are free: a node runs one throughput test at a time
    #[arg(long, value_name = "TIME", default_value = "5min", value_parser = parse_wait)]
    pub wait: Duration,
    /// Trust, state and output.
    #[command(flatten)]
    pub server: PerfsonarServerFlags,
}

/// Flags of `sterna doctor perfsonar read`.
#[derive(Debug, Args)]
pub struct PerfsonarReadFlags {
    /// Archive, as https://HOST, or with the path of OpenSearch or esmond
    #[arg(value_name = "URL", value_parser = parse_url)]
    pub url: WebLocation,
    /// Test whose results are read
    #[arg(long, value_name = "TEST")]
    pub test: TestFlag,
    /// Source of the test: its host name or address
    #[arg(long, value_name = "HOST", value_parser = parse_host)]
    pub source: String,
    /// Destination of the test
    #[arg(long, value_name = "HOST", value_parser = parse_host)]
    pub dest: String,
    /// Time before now from which results are read
    #[arg(long, value_name = "TIME", default_value = "168h", value_parser = parse_time)]
    pub since: Duration,
    /// Trust, state and output.
    #[command(flatten)]
    pub server: PerfsonarServerFlags,
}

/// Flags of both commands.
#[derive(Debug, Args)]
pub struct PerfsonarServerFlags {
    /// File with certificates (PEM) of authorities for the server, in addition to those of this host
    #[arg(long, value_name = "FILE", conflicts_with = "trust")]
    pub http_ca: Option<PathBuf>,
    /// Accept a server with this key, which the error of the first attempt shows, and remember it
    #[arg(long, value_name = "FINGERPRINT")]
    pub trust: Option<Fingerprint>,
    /// Directory with the recorded keys of servers (default: sterna in $XDG_STATE_HOME, or ~/.local/state/sterna)
    #[arg(long, value_name = "DIR", env = "STERNA_STATE")]
    pub state: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `TEST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TestFlag {
    /// rate of TCP
    Throughput,
    /// round trips
    Rtt,
    /// one-way delays
    Latency,
    /// routers on the way
    Trace,
}

impl TestFlag {
    /// Returns the type of the test.
    pub fn kind(self) -> TestKind {
        match self {
            Self::Throughput => TestKind::Throughput,
            Self::Rtt => TestKind::Rtt,
            Self::Latency => TestKind::Latency,
            Self::Trace => TestKind::Trace,
        }
    }
}

/// Longest test. Reason: nodes refuse longer ones, and others wait for the end.
const TEST_TIME_MAX: Duration = Duration::from_secs(3600);

/// Longest wait. Reason: a schedule of a day is none of a test that somebody watches.
const WAIT_MAX: Duration = Duration::from_secs(24 * 3600);

/// Longest host name (RFC 1035).
const HOST_CHARS_MAX: usize = 255;

/// Reads the time of a test: whole seconds.
fn parse_test_time(text: &str) -> Result<Duration, String> {
    let time = parse_time(text)?;
    match time.subsec_millis() == 0 && (Duration::from_secs(1)..=TEST_TIME_MAX).contains(&time) {
        true => Ok(time),
        false => Err(format!("from 1 s to {} s, in whole seconds", TEST_TIME_MAX.as_secs())),
    }
}

fn parse_wait(text: &str) -> Result<Duration, String> {
    parse_time(text).and_then(|time| match time <= WAIT_MAX {
        true => Ok(time),
        false => Err(format!("at most {} h", WAIT_MAX.as_secs() / 3600)),
    })
}

/// Reads a host name or an address, as pScheduler takes it.
fn parse_host(text: &str) -> Result<String, String> {
    let is_label = |label: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        !label.is_empty() && !label.starts_with('-') && label.bytes().all(is_plain)
    };
    let is_name = text.len() <= HOST_CHARS_MAX && text.trim_end_matches('.').split('.').all(is_label);
    match text.parse::<IpAddr>().is_ok() || is_name {
        true => Ok(text.to_owned()),
        false => Err("expected a host name or an address, without a scheme and a port".to_owned()),
    }
}

/// Reads `HOST` or `HOST:PORT`.
fn parse_host_port(text: &str) -> Result<String, String> {
    match text.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok_and(|port| port > 0) && !host.contains(':') => {
            parse_host(host).map(|_| text.to_owned())
        }
        _ => parse_host(text),
    }
}

/// Reads a URL; a host alone is `https://HOST`.
fn parse_url(text: &str) -> Result<WebLocation, String> {
    let url = if text.contains("://") { text.to_owned() } else { format!("https://{text}") };
    WebLocation::parse(&url).map_err(|error| error.text().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_or_addresses() {
        for host in ["ps1.example.org", "ps1", "_x.example", "192.0.2.7", "2001:db8::7", "ps1.example.org."] {
            assert_eq!(parse_host(host).as_deref(), Ok(host));
        }
        for wrong in ["", "https://ps1", "a b", "a..b", "-a", "a:443", "é.example", &"a".repeat(256)] {
            assert!(parse_host(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_host_port("n.example:8443").as_deref(), Ok("n.example:8443"));
        assert!(parse_host_port("n.example:0").is_err() && parse_host_port("n.example:x").is_err());
        assert_eq!(parse_url("n.example").map(|url| url.url().to_owned()), Ok("https://n.example/".to_owned()));
        assert!(parse_url("ftp://n.example").is_err());
    }
}
