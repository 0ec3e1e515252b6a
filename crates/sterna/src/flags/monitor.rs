//! Flags of the monitor of an agent.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use sterna_net::identity::Fingerprint;
use sterna_proto::location::RemoteLocation;
use sterna_proto::{BitRate, ByteCount, Location};

use super::duration::parse_time;

/// Port of the metrics. Reason: beside the port of agents, and not in the list of exporters of Prometheus.
const METRICS_PORT: u16 = 7375;

/// Shortest time between two visits. Reason: a visit takes 4 s, so that a shorter one is the same.
const EVERY_MIN: Duration = Duration::from_secs(1);

/// Longest time between two visits. Reason: an alarm needs three of them.
const EVERY_MAX: Duration = Duration::from_secs(86_400);

/// Flags of the monitor of an agent.
#[derive(Debug, Args)]
pub struct MonitorFlags {
    /// Measure the path to this agent from time to time: delay, loss, route and rate, with alarms in the log. Can be
    /// repeated (default: none)
    #[arg(long = "monitor", value_name = "sterna://HOST[:PORT]", value_parser = parse_peer)]
    pub peers: Vec<RemoteLocation>,
    /// Time between two measurements of a path
    #[arg(long = "monitor-every", value_name = "TIME", default_value = "5min", value_parser = parse_every,
          requires = "peers")]
    pub every: Duration,
    /// Bytes of throughput tests over all paths in a day; 0 for none
    #[arg(long = "monitor-budget", value_name = "SIZE", default_value = "1GB", requires = "peers")]
    pub budget: ByteCount,
    /// Highest rate of a throughput test
    #[arg(long = "monitor-rate", value_name = "RATE", default_value = "100Mbit", requires = "peers")]
    pub rate: BitRate,
    /// Accept a monitored agent with this fingerprint (`sterna id` prints it there) and remember it. Can be repeated
    #[arg(long, value_name = "FINGERPRINT", requires = "peers")]
    pub trust: Vec<Fingerprint>,
    /// Serve the measurements at http://ADDR:PORT/metrics for Prometheus, to everybody who reaches the address; the
    /// default port is 7375 (default: none)
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = parse_listen_for_metrics, requires = "peers")]
    pub metrics: Option<SocketAddr>,
}

/// Reads the location of an agent, without a path.
pub fn parse_peer(text: &str) -> Result<RemoteLocation, String> {
    match Location::parse(text.as_ref()) {
        Ok(Location::Remote(remote)) if remote.path.is_empty() => Ok(remote),
        Err(error) => Err(error.text().to_owned()),
        Ok(_) => Err("expected an agent without a path, such as sterna://hub.example.org".to_owned()),
    }
}

fn parse_every(text: &str) -> Result<Duration, String> {
    let every = parse_time(text)?;
    match (EVERY_MIN..=EVERY_MAX).contains(&every) {
        true => Ok(every),
        false => Err("expected 1s to 24h".to_owned()),
    }
}

fn parse_listen_for_metrics(text: &str) -> Result<SocketAddr, String> {
    super::parse_listen_with(text, METRICS_PORT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_an_agent_without_a_path() {
        let peer = parse_peer("sterna://hub.example.org").unwrap();
        assert_eq!((peer.host.as_str(), peer.port), ("hub.example.org", 7373));
        assert_eq!(parse_peer("sterna://[::1]:80/").unwrap().host, "::1");
        for wrong in ["", "hub", "sterna://hub/x", "https://hub/", "sterna://"] {
            assert!(parse_peer(wrong).is_err(), "{wrong}");
        }
        assert!(parse_every("999ms").is_err() && parse_every("25h").is_err() && parse_every("1s").is_ok());
    }
}
