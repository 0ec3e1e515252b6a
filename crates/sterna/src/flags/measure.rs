//! Flags that every measurement of a path has.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use sterna_proto::BitRate;

use super::duration::parse_time;

/// Flags of every measurement of a path.
#[derive(Debug, Args)]
pub struct MeasureFlags {
    /// Time of the experiments (default: 60s, and up to 2min on paths above 200 ms to an agent)
    #[arg(long, value_name = "TIME", value_parser = parse_examination)]
    pub time: Option<Duration>,
    /// Highest rate of all packets together (default: none for TCP; packet trains have up to 2 Gbit/s)
    #[arg(long, value_name = "RATE")]
    pub max_rate: Option<BitRate>,
    /// Accept the agent with this fingerprint (`sterna id` prints it there) and remember it
    #[arg(long, value_name = "FINGERPRINT")]
    pub trust: Option<sterna_net::identity::Fingerprint>,
    /// Measure the disk of this directory too, and that of the directory in TARGET: writes and reads a file without a
    /// name
    #[arg(long, value_name = "DIR")]
    pub disk: Option<PathBuf>,
    /// Address of this host, which selects the network
    #[arg(long, value_name = "ADDRESS")]
    pub from: Option<IpAddr>,
    /// Directory with the key of this host and the recorded agents (default: sterna in $XDG_STATE_HOME, or
    /// ~/.local/state/sterna)
    #[arg(long, value_name = "DIR", env = "STERNA_STATE")]
    pub state: Option<PathBuf>,
}

/// `--direction`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ToolDirection {
    /// from this host
    Up,
    /// to this host
    Down,
}

/// Reads a time of an examination.
fn parse_examination(text: &str) -> Result<Duration, String> {
    let time = parse_time(text)?;
    match (TIME_LEAST..=TIME_MOST).contains(&time) {
        true => Ok(time),
        false => Err(format!("from {} s to {} s", TIME_LEAST.as_secs(), TIME_MOST.as_secs())),
    }
}

/// Shortest examination. Reason: one connection and one packet train.
const TIME_LEAST: Duration = Duration::from_secs(10);

/// Longest examination. Reason: others want to measure with the agent too.
const TIME_MOST: Duration = Duration::from_secs(600);
