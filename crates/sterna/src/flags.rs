//! Every flag of the command line, in one table. Names are API: see `docs/operating.md`.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use sterna_proto::{Algorithm, BitRate, ByteCount, Digest};

/// Exit codes, as listed in `--help`.
const EXIT_CODES: &str = "Exit codes:
  0 done   1 some files failed   2 wrong usage   3 source   4 destination
  5 path (network)   6 credentials   70 a bug of sterna   74 this host (state
  directory, output, sockets)   130 interrupted";

/// Moves science data across long fat networks as fast as the path allows, encrypted, verified, resumable.
#[derive(Debug, Parser)]
#[command(name = "sterna", version, after_help = EXIT_CODES, propagate_version = true)]
pub struct Flags {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
// Parsed once in the life of the process: its size matters to nobody.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve directories of this host to other sterna hosts
    Agent(AgentFlags),
    /// Copy files between this host and an agent
    #[command(after_help = COPY_EXAMPLES)]
    Copy(Box<CopyFlags>),
    /// Print the fingerprint of this host
    Id(IdFlags),
    /// Emulate a long fat network between two hosts on this machine
    #[command(subcommand)]
    Lab(sterna_lab::command::LabCommand),
}

const COPY_EXAMPLES: &str = "Examples:
  sterna copy pass-0412.h5 sterna://archive.example.org/incoming/
  sterna copy --rate 50Mbit /data/passes sterna://gs.example.org/
  sterna copy 'sterna://hub.example.org/S1A/*.SAFE' /data/

Exit codes:
  0 done   1 some files failed   2 wrong usage   3 source   4 destination
  5 path (network)   6 credentials   70 a bug of sterna   74 this host (state
  directory, output, sockets)   130 interrupted

Run the same command again after any failure: it goes on where it was.";

/// Flags of `sterna agent`.
#[derive(Debug, Args)]
pub struct AgentFlags {
    /// Directory to serve: DIR as the only root, or NAME=DIR for paths sterna://host/NAME/…; :ro makes it read-only
    #[arg(long = "root", value_name = "[NAME=]DIR[:ro]", required = true)]
    pub roots: Vec<OsString>,
    /// Address and port to listen on, TCP and UDP
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:7373")]
    pub listen: SocketAddr,
    /// Fingerprints that may use this agent, a line each with optional rights (see docs/operating.md)
    #[arg(long, value_name = "FILE", conflicts_with = "authorize_any")]
    pub authorize: Option<PathBuf>,
    /// Let everybody who can connect use this agent
    #[arg(long)]
    pub authorize_any: bool,
    /// How long a session waits for its client to come back after the last connection is lost
    #[arg(long, value_name = "TIME", default_value = "10min", value_parser = parse_time)]
    pub linger: std::time::Duration,
    /// Where this host keeps its identity
    #[arg(long, value_name = "DIR", env = "STERNA_STATE")]
    pub state: Option<PathBuf>,
}

/// Flags of `sterna id`.
#[derive(Debug, Args)]
pub struct IdFlags {
    /// Where this host keeps its identity
    #[arg(long, value_name = "DIR", env = "STERNA_STATE")]
    pub state: Option<PathBuf>,
}

/// `--via`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ViaFlag {
    /// sterna chooses: QUIC when --rate is given, TCP otherwise
    Auto,
    /// TLS over parallel TCP connections
    Tcp,
    /// rate-controlled QUIC over UDP
    Quic,
}

/// `--overwrite`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OverwriteFlag {
    /// an existing file is an error
    Never,
    /// an existing file is replaced
    Always,
    /// an existing file is replaced when its size or time differ, and counts as done otherwise
    IfChanged,
}

/// Flags of `sterna copy`.
#[derive(Debug, Args)]
pub struct CopyFlags {
    /// Local path or sterna://host[:port]/path; wildcards and directories too
    #[arg(value_name = "SOURCE", required = true)]
    pub sources: Vec<OsString>,
    /// Local path or sterna://host[:port]/path
    #[arg(value_name = "DESTINATION", required = true)]
    pub destination: OsString,
    /// Transport
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub via: ViaFlag,
    /// Number of connections, or auto
    #[arg(long, value_name = "N|auto", default_value = "auto", value_parser = parse_lanes)]
    pub lanes: Lanes,
    /// The rate of the path, such as 50Mbit: never exceeded on the wire, headers and repeats included
    #[arg(long, value_name = "RATE")]
    pub rate: Option<BitRate>,
    /// Share of packets that may be lost without slowing down (QUIC with --rate)
    #[arg(long, value_name = "PERCENT", default_value = "2%", value_parser = parse_percent)]
    pub loss_ceiling: Ppm,
    /// Congestion control of TCP connections, such as bbr or cubic (default: the kernel's; bbr once packets are lost)
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<String>,
    /// Accept the agent with this fingerprint (as `sterna id` prints it there) and remember it
    #[arg(long, value_name = "FINGERPRINT")]
    pub trust: Option<sterna_net::identity::Fingerprint>,
    /// What to do with files that exist
    #[arg(long, value_name = "WHEN", default_value = "if-changed")]
    pub overwrite: OverwriteFlag,
    /// The digest that the file must have, such as sha256:9f86d0…; it is not published otherwise
    #[arg(long, value_name = "ALG:HEX")]
    pub expect: Option<Digest>,
    /// Print this digest of each file: adler32, crc32c, md5, sha256 or blake3
    #[arg(long, value_name = "ALG")]
    pub checksum: Vec<Algorithm>,
    /// Most memory for data under way
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub memory: ByteCount,
    /// Print one JSON event a line on stdout
    #[arg(long)]
    pub json: bool,
    /// Say what would be copied, and copy nothing
    #[arg(long)]
    pub dry_run: bool,
    /// How long to keep trying after the last connection is lost
    #[arg(long, value_name = "TIME", default_value = "10min", value_parser = parse_time)]
    pub linger: std::time::Duration,
    /// Explain decisions, and name every file and every failure
    #[arg(short, long)]
    pub verbose: bool,
    /// Print nothing but errors
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Where this host keeps its identity and the agents it knows
    #[arg(long, value_name = "DIR", env = "STERNA_STATE")]
    pub state: Option<PathBuf>,
}

/// `--lanes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lanes {
    /// sterna decides.
    Auto,
    /// This many.
    Count(u32),
}

/// Parts per million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ppm(pub u32);

fn parse_lanes(text: &str) -> Result<Lanes, String> {
    if text == "auto" {
        return Ok(Lanes::Auto);
    }
    match text.parse() {
        Ok(count @ 1..=sterna_proto::plan::LANES_MAX) => Ok(Lanes::Count(count)),
        _ => Err(format!("expected auto or a number from 1 to {}", sterna_proto::plan::LANES_MAX)),
    }
}

fn parse_percent(text: &str) -> Result<Ppm, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    match number.trim().parse::<f64>() {
        Ok(percent) if (0.0..=50.0).contains(&percent) => Ok(Ppm((percent * 10_000.0).round() as u32)),
        _ => Err("expected a percentage from 0% to 50%".to_owned()),
    }
}

/// Reads `90s`, `10min`, `2h` or `500ms`.
fn parse_time(text: &str) -> Result<std::time::Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let millis: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        _ => return Err("expected a time such as 30s, 10min or 2h".to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| "expected a time such as 30s, 10min or 2h".to_owned())?;
    // A year: past that a number is a slip of the finger.
    match number.checked_mul(millis) {
        Some(total) if total <= 366 * 24 * 3_600_000 => Ok(std::time::Duration::from_millis(total)),
        _ => Err("longer than a year".to_owned()),
    }
}
