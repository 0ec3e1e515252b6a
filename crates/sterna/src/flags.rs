//! Every flag of the command line, in one table. Names are API: see `docs/operating.md`.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use sterna_net::report::Event;
use sterna_net::source::SourceDisposition;
use sterna_proto::limit::Advice;
use sterna_proto::location::{DEFAULT_PORT, HostPort};
use sterna_proto::{Algorithm, BitRate, ByteCount, Digest, Error, Setting};
use sterna_service::agent::ReachableAt;
use tracing::level_filters::LevelFilter;

use crate::paths::{PathFlag, ViaFlag};

mod case;
pub mod config;
mod doctor;
mod duration;
mod measure;
mod monitor;
mod perfsonar;
pub mod service;

pub use case::{
    CaseAddFlags, CaseCloseFlags, CaseCommand, CaseFactFlags, CaseListFlags, CaseNewFlags, CaseNoteFlags,
    CaseReportFlags, CaseRetestFlags, CaseRunFlags, EntryFlags,
};
use config::ConfigFlags;
pub use doctor::{
    CompareFlags, DoctorCommand, DoctorFlags, DoctorWatchFlags, ExamineFlags, HistoryFlags, HostFlags, PlanFlags,
    ReportFiles, ShowFlags,
};
use duration::parse_time;
pub use measure::{MeasureFlags, ToolDirection};
pub use monitor::MonitorFlags;
pub use perfsonar::{PerfsonarCommand, PerfsonarFlags, PerfsonarReadFlags, PerfsonarRunFlags, PerfsonarServerFlags};
use service::{BanFlags, CancelFlags, ExplainFlags, ListFlags, ServiceUrl, StatusFlags, SubmitFlags, WatchFlags};

/// Exit codes, as listed in `--help`; a macro, since text for several commands is put together when it is compiled.
macro_rules! exit_codes {
    () => {
        "Exit codes:
  0 done   1 some files failed   2 wrong usage   3 source   4 destination
  5 path (the network), agent or service   6 credentials   70 a bug of sterna
  74 this host (state directory, output, sockets; an agent's roots and port)
  130 interrupted"
    };
}

/// Copies files between hosts over long and fast networks: encrypted, verified and resumable.
#[derive(Debug, Parser)]
#[command(name = "sterna", version, after_help = exit_codes!(), propagate_version = true)]
pub struct Flags {
    /// Command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
// Parsed once per process, so the size is not important.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve directories of this host to sterna on other hosts
    #[command(after_help = AGENT_EXAMPLES)]
    Agent(AgentFlags),
    /// Copy files to or from an agent, between two agents, or from web servers
    #[command(after_help = COPY_EXAMPLES, override_usage = "sterna copy [OPTIONS] <SOURCE>... <DESTINATION>")]
    Copy(Box<CopyFlags>),
    /// Run the transfer service: takes jobs over HTTPS and gets them done
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(ServeFlags),
    /// Submit a job to a service: files that it shall copy
    #[command(after_help = service::SUBMIT_EXAMPLES, override_usage = service::SUBMIT_USAGE)]
    Submit(SubmitFlags),
    /// Show a job of a service, and its files
    #[command(after_help = service::STATUS_EXAMPLES)]
    Status(StatusFlags),
    /// List jobs of a service, the latest first
    #[command(after_help = service::LIST_EXAMPLES)]
    List(ListFlags),
    /// Watch a job of a service until it has ended
    #[command(after_help = service::WATCH_EXAMPLES)]
    Watch(WatchFlags),
    /// Cancel jobs of a service: their files that have not arrived
    #[command(after_help = service::CANCEL_EXAMPLES)]
    Cancel(CancelFlags),
    /// Explain why files of a service wait or have failed
    #[command(after_help = service::EXPLAIN_EXAMPLES)]
    Explain(ExplainFlags),
    /// Ban an endpoint at a service, list the bans or lift one (operators)
    #[command(after_help = service::BAN_EXAMPLES)]
    Ban(BanFlags),
    /// Show or change the settings of a service: limits, shares, defaults, grants (operators)
    #[command(after_help = config::EXAMPLES)]
    Config(Box<ConfigFlags>),
    /// Print the fingerprint of this host, by which other hosts identify it
    #[command(after_help = ID_EXAMPLES)]
    Id(IdFlags),
    /// Find what limits transfers on a path, prove it, and predict the gain of each fix
    #[command(after_help = doctor::DOCTOR_EXAMPLES)]
    Doctor(DoctorFlags),
    /// Emulate a long network path between two hosts on this machine (as root)
    #[command(subcommand, after_help = sterna_lab::command::EXAMPLES)]
    Lab(sterna_lab::command::LabCommand),
    /// Print the completion script of a shell
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions(CompletionsFlags),
    /// Write the manual pages, one for each command
    #[command(after_help = MAN_EXAMPLES)]
    Man(ManFlags),
}

const AGENT_EXAMPLES: &str = "Examples:
  sterna agent --root /data --authorize /etc/sterna/authorized
  sterna agent --root passes=/data/passes:ro --root incoming=/data/incoming \\
      --listen '[::]:7373' --authorize /etc/sterna/authorized
  sterna agent --root /data --authorize /etc/sterna/authorized \\
      --third-party hub.example.org                  # may copy to and from that agent
  sterna agent --root /data --authorize /etc/sterna/authorized \\
      --monitor sterna://hub.example.org --metrics 127.0.0.1:7375
  sterna agent --root . --listen 127.0.0.1:7373 --authorize-any    # to try it

It prints one line on stdout when it is ready and its log on stderr, and runs until
SIGTERM or SIGINT. Exit codes: 0 after these, 2 wrong usage, 74 when a root, the port,
the state directory or the file of fingerprints cannot be used.";

const SERVE_EXAMPLES: &str = "Examples:
  sterna serve --dev                     # to try it: makes all that it needs
  sterna serve --tls-cert /etc/sterna/host.pem --tls-key /etc/sterna/host.key \\
      --client-ca /etc/grid-security/certificates --voms-dir /etc/grid-security/vomsdir

It prints one line on stdout when it is ready and its log on stderr, and runs until
SIGTERM or SIGINT. Clients of FTS3 use it unchanged: fts-rest-transfer-submit -s URL …";

const ID_EXAMPLES: &str = "Examples:
  sterna id                              # at a client: a line for the agent's --authorize
  sterna id --state /var/lib/sterna      # at the agent: what clients give to --trust";

const COMPLETIONS_EXAMPLES: &str = "Examples:
  sterna completions bash > /usr/share/bash-completion/completions/sterna
  sterna completions zsh > /usr/share/zsh/site-functions/_sterna
  sterna completions fish > /usr/share/fish/vendor_completions.d/sterna.fish";

const MAN_EXAMPLES: &str = "Examples:
  sterna man /usr/share/man/man1";

const COPY_EXAMPLES: &str = concat!(
    "Examples:
  sterna copy pass-0412.h5 sterna://archive.example.org/incoming/
  sterna copy --rate 50Mbit /data/passes sterna://gs.example.org/
  sterna copy 'sterna://hub.example.org/S1A/*.SAFE' /data/
  sterna copy sterna://gs.example.org/S1A sterna://hub.example.org/   # from agent to agent
  sterna copy https://archive.example.org/S1A/pass-0412.h5 /data/
  sterna copy --same sterna://gs.example.org/pass-0412.h5 \\
      https://archive.example.org/S1A/pass-0412.h5 /data/
  sterna copy --path remote=gs-a.example.org,rate=50Mbit \\
      --path remote=gs-b.example.org,rate=30Mbit /data/passes sterna://gs-a.example.org/
  sterna copy --follow --then delete /data/spool/. sterna://archive.example.org/incoming/

",
    exit_codes!(),
    "

A symlink is copied as the file that it points to. Within a source, symlinks to
directories and broken symlinks are not copied: they are reported and count as failed
(exit code 1).

After any failure, run the same command again: it resumes."
);

/// Flags of `sterna agent`.
#[derive(Debug, Args)]
pub struct AgentFlags {
    /// Directory to serve. DIR alone is sterna://host/; NAME=DIR is sterna://host/NAME/ and can be repeated. With :ro
    /// no client can write to it
    #[arg(long = "root", value_name = "[NAME=]DIR[:ro]", required = true)]
    pub roots: Vec<OsString>,
    /// Address of this host to listen on, for TCP and UDP; the default port is 7373
    #[arg(long, value_name = "ADDR[:PORT]", default_value = "0.0.0.0:7373", value_parser = parse_listen)]
    pub listen: SocketAddr,
    /// File with the fingerprints of the clients that may use this agent, one per line, as `sterna id` prints them
    /// there. Rights such as ro or NAME=rw can follow
    #[arg(long, value_name = "FILE", conflicts_with = "authorize_any")]
    pub authorize: Option<PathBuf>,
    /// Let every host that can connect read and write
    #[arg(long)]
    pub authorize_any: bool,
    /// Allow copies between this agent and the agent at HOST, written as clients write it; any allows every host. Can
    /// be repeated (default: none)
    #[arg(long, value_name = "HOST[:PORT]|any", value_parser = parse_reachable)]
    pub third_party: Vec<ThirdPartyFlag>,
    /// Take work from the transfer service at this URL. It may use every root, unless the file of --authorize gives
    /// less to its key
    #[arg(long, value_name = "URL")]
    pub service: Option<ServiceUrl>,
    /// Directory with the certificates of the authorities of the service, in PEM (default: the authorities of this host
    /// with /etc/grid-security/certificates)
    #[arg(long, value_name = "DIR", requires = "service")]
    pub capath: Option<PathBuf>,
    /// Address at which the agents of the service reach this one; none if they cannot (default: that of --listen, or of
    /// the connection to the service)
    #[arg(long, value_name = "HOST[:PORT]|none", requires = "service", value_parser = parse_reachable_at)]
    pub reachable_at: Option<ReachableAt>,
    /// Read from and write to this web server for transfers of the service; any allows every server, also on this host.
    /// Can be repeated (default: none)
    #[arg(long, value_name = "HOST|any", requires = "service")]
    pub web: Vec<String>,
    /// Answer clients of iperf3 at this address, one test at a time; the default port is 5201. iperf3 has no
    /// authentication: give an address that only friends reach (default: none)
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = parse_listen_for_iperf3)]
    pub iperf3: Option<SocketAddr>,
    /// Answer clients of NDT7 at this address, with TLS and without, one test at a time; the default port is 443. NDT7
    /// has no authentication: give an address that only friends reach (default: none)
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = parse_listen_for_ndt7)]
    pub ndt7: Option<SocketAddr>,
    /// Wait this long for a client that has lost all connections; received data stays for a later run
    #[arg(long, value_name = "TIME", default_value = "10min", value_parser = parse_time)]
    pub linger: std::time::Duration,
    /// UDP port of the packet trains of measurements, to open in firewalls (default: a free one for each measurement)
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub measure_port: Option<u16>,
    /// Send every packet of STAMP (RFC 8762) or TWAMP Light back that arrives at this address, up to 1000 a second from
    /// each host, for anybody; the default port is 862; can be repeated
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = parse_listen_for_stamp)]
    pub stamp: Vec<SocketAddr>,
    /// Measurements of paths to other agents.
    #[command(flatten)]
    pub monitor: MonitorFlags,
    /// Format of the log on stderr
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// Least level of the lines in the log
    #[arg(long, value_name = "LEVEL", default_value = "info", conflicts_with = "verbose")]
    pub log_level: LogLevel,
    /// Log every connection (lane) too, beside sessions and files: --log-level debug
    #[arg(short, long)]
    pub verbose: bool,
    /// Where this host keeps its identity (default: sterna in $XDG_STATE_HOME, or ~/.local/state/sterna)
    #[arg(long, value_name = "DIR", env = "STERNA_STATE")]
    pub state: Option<PathBuf>,
}

impl AgentFlags {
    /// Returns the least level of the lines in the log.
    pub fn log_level(&self) -> LevelFilter {
        if self.verbose { LevelFilter::DEBUG } else { self.log_level.filter() }
    }
}

/// Port of the service. Source: FTS3.
pub const SERVICE_PORT: u16 = 8446;

/// Flags of `sterna serve`.
#[derive(Debug, Args)]
pub struct ServeFlags {
    /// Make an authority, certificates and a database for a trial in the state directory, and listen on this host only
    #[arg(long, conflicts_with_all = ["tls_cert", "tls_key", "client_ca"])]
    pub dev: bool,
    /// Address of this host to listen on (default: 0.0.0.0:8446, with --dev 127.0.0.1:8446)
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = parse_listen_for_jobs)]
    pub listen: Option<SocketAddr>,
    /// Database of jobs: a file, or sqlite://FILE (default: in the state directory)
    #[arg(long, value_name = "URL")]
    pub database: Option<String>,
    /// Certificate of this server and those of its issuers, in PEM
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of this server, in PEM
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// Directory with the certificates of the authorities of clients, such as /etc/grid-security/certificates
    #[arg(long, value_name = "DIR")]
    pub client_ca: Option<PathBuf>,
    /// Directory with the VOMS servers of each VO, such as /etc/grid-security/vomsdir
    #[arg(long, value_name = "DIR")]
    pub voms_dir: Option<PathBuf>,
    /// File with the levels of callers, the issuers of tokens and the rules for storages, in TOML
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Format of the log on stderr
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// Least level of the lines in the log
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: LogLevel,
    /// Where the service keeps its data (default: sterna in $XDG_STATE_HOME, or ~/.local/state/sterna)
    #[arg(long, value_name = "DIR", env = "STERNA_STATE")]
    pub state: Option<PathBuf>,
}

/// `--log-format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// a line for people
    Text,
    /// a JSON object per line, with the time, the level, and the session, its peer and its path
    Json,
}

/// `--log-level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// refused peers, files that failed, and sessions that ended early
    Warn,
    /// sessions and files too
    Info,
    /// connections (lanes) and decisions too
    Debug,
}

impl LogLevel {
    /// Returns the least level of the lines in the log.
    pub fn filter(self) -> LevelFilter {
        match self {
            Self::Warn => LevelFilter::WARN,
            Self::Info => LevelFilter::INFO,
            Self::Debug => LevelFilter::DEBUG,
        }
    }
}

/// Flags of `sterna id`.
#[derive(Debug, Args)]
pub struct IdFlags {
    /// Directory with the key of this host (default: sterna in $XDG_STATE_HOME, or ~/.local/state/sterna)
    #[arg(long, value_name = "DIR", env = "STERNA_STATE")]
    pub state: Option<PathBuf>,
}

/// Flags of `sterna completions`.
#[derive(Debug, Args)]
pub struct CompletionsFlags {
    /// Shell that reads the script
    pub shell: Shell,
}

/// A shell that completes words by a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// for a file in /usr/share/bash-completion/completions
    Bash,
    /// for a file in a directory of fpath
    Zsh,
    /// for a file in /usr/share/fish/vendor_completions.d
    Fish,
}

/// Flags of `sterna man`.
#[derive(Debug, Args)]
pub struct ManFlags {
    /// Directory for the pages (sterna.1, sterna-copy.1, …); made if it is missing
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

/// `--overwrite`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OverwriteFlag {
    /// an existing file is an error and stays
    Never,
    /// an existing file is replaced
    Always,
    /// an existing file is replaced if its size or modification time differs; otherwise it is up to date
    IfChanged,
}

/// `--compress`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompressFlag {
    /// if it makes the copy faster, by samples of the files, the path and the processors
    Auto,
    /// no compression
    Never,
    /// all data that becomes smaller
    Always,
}

/// Flags of `sterna copy`.
#[derive(Debug, Args)]
pub struct CopyFlags {
    /// Sources, and last the DESTINATION. Each is a local path or sterna://host[:port]/path. A source can be a file, a
    /// directory, a name with wildcards, or the URL of a file (https://host/path)
    // One list: clap accepts no flag between the values of two lists.
    #[arg(value_name = "SOURCE", required = true)]
    pub locations: Vec<OsString>,
    /// Transport of the connections
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub via: ViaFlag,
    /// Number of connections (lanes), 1 to 64, or auto
    #[arg(long, value_name = "N|auto", default_value = "auto", value_parser = parse_lanes)]
    pub lanes: Lanes,
    /// Network path to the agent: any of local=ADDR, remote=HOST[:PORT], via=tcp|quic, lanes=N, rate=RATE,
    /// rate-max=RATE and standby, with commas and no spaces between them. Can be repeated: all paths are used together,
    /// a standby path only while no other is up
    #[arg(long = "path", value_name = "PATH", conflicts_with_all = ["rate", "rate_max", "rate_min"])]
    pub paths: Vec<PathFlag>,
    /// Rate that you may use, such as 50Mbit. It is used from the first packet on and never exceeded on the wire, with
    /// headers and retransmissions
    #[arg(long, value_name = "RATE")]
    pub rate: Option<BitRate>,
    /// Upper limit for the rate on the wire; sterna measures the rate of the path below it
    #[arg(long, value_name = "RATE", conflicts_with = "rate")]
    pub rate_max: Option<BitRate>,
    /// Lower limit for the rate, kept at any loss: for a circuit of which this rate is yours (QUIC)
    #[arg(long, value_name = "RATE")]
    pub rate_min: Option<BitRate>,
    /// Scavenger mode: yield to all other traffic (QUIC)
    #[arg(long, conflicts_with = "rate_min")]
    pub polite: bool,
    /// Loss up to this share counts as noise and does not slow down the copy (QUIC)
    #[arg(long, value_name = "PERCENT", default_value = "2%", value_parser = parse_percent)]
    pub loss_ceiling: Ppm,
    /// Congestion control of TCP connections, such as bbr or cubic (default: that of the kernel; bbr after packet loss)
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<String>,
    /// Accept the agent with this fingerprint (`sterna id` prints it there) and remember it. Give it twice for a copy
    /// between two agents
    #[arg(long, value_name = "FINGERPRINT")]
    pub trust: Vec<sterna_net::identity::Fingerprint>,
    /// When the sender compresses; the files arrive uncompressed
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub compress: CompressFlag,
    /// Send a file while it grows, until its writer closes it during the copy, until FILE.done exists beside it, or
    /// until it is unchanged for 10s. With IDLE, a close does not end it, and IDLE replaces the 10s. From a directory,
    /// send every file that appears, until Ctrl-C
    #[arg(long, value_name = "IDLE", num_args = 0..=1, require_equals = true,
          value_parser = parse_time, conflicts_with_all = ["dry_run", "explain", "expect"])]
    pub follow: Option<Option<std::time::Duration>>,
    /// Action on each source after it is verified at the destination: delete, or move=DIR (on the same file system)
    #[arg(long, value_name = "delete|move=DIR", value_parser = OsStringValueParser::new().try_map(parse_then),
          conflicts_with_all = ["dry_run", "explain"])]
    pub then: Option<SourceDisposition>,
    /// The sources (2 to 8) are replicas of one file, at agents, on web servers or on this host. The file is read from
    /// all of them together, and a replica that differs is left out. Without --expect, only its size and some blocks
    /// are compared: the majority decides, then the first source. --rate and --lanes apply to each agent
    #[arg(long, conflicts_with_all = ["follow", "then", "explain", "paths"])]
    pub same: bool,
    /// Action on files that exist at the destination
    #[arg(long, value_name = "WHEN", default_value = "if-changed")]
    pub overwrite: OverwriteFlag,
    /// Digest that the file must have, such as sha256:9f86d0…; a file with another digest does not get its name
    #[arg(long, value_name = "ALG:HEX")]
    pub expect: Option<Digest>,
    /// Print this digest of each copied file on stdout: adler32, crc32c, md5, sha256 or blake3. Can be repeated
    #[arg(long, value_name = "ALG")]
    pub checksum: Vec<Algorithm>,
    /// Maximum memory for data in flight over QUIC, all connections together
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub memory: ByteCount,
    /// File with the bearer token for the web server; read again when the token expires or is refused
    #[arg(long, value_name = "FILE", conflicts_with = "http_token_command")]
    pub http_token_file: Option<PathBuf>,
    /// Shell command that prints the bearer token; run again when the token expires or is refused
    #[arg(long, value_name = "COMMAND")]
    pub http_token_command: Option<String>,
    /// File with certificates (PEM) of authorities for web servers, in addition to those of this host
    #[arg(long, value_name = "FILE")]
    pub http_ca: Option<PathBuf>,
    /// Print events as JSON on stdout, one per line
    #[arg(long)]
    pub json: bool,
    /// Write ten samples per second of all connections to FILE, one JSON object per line. If FILE ends in .html, write
    /// a page with plots at the end instead
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Write what the account of limits is given to FILE; for tests that replay it, see CONTRIBUTING.md
    #[arg(long, value_name = "FILE", hide = true)]
    pub record_samples: Option<PathBuf>,
    /// List the files that would be copied, and copy nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print the plan (paths, transports, connections, blocks, memory, expected time), and copy nothing
    #[arg(long)]
    pub explain: bool,
    /// Dial again for this long after all connections are lost; received data stays for a later run
    #[arg(long, value_name = "TIME", default_value = "10min", value_parser = parse_time)]
    pub linger: std::time::Duration,
    /// Print decisions, and name every file and every failure
    #[arg(short, long)]
    pub verbose: bool,
    /// Print errors only
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Directory with the key of this host, the recorded agents and the properties of paths (default: sterna in
    /// $XDG_STATE_HOME, or ~/.local/state/sterna)
    #[arg(long, value_name = "DIR", env = "STERNA_STATE")]
    pub state: Option<PathBuf>,
}

/// Value of `--lanes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lanes {
    /// Sterna selects the number.
    Auto,
    /// Fixed number of lanes.
    Count(u32),
}

/// Parts per million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ppm(pub u32);

/// Value of `--third-party`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ThirdPartyFlag {
    /// Any host.
    Any,
    /// One host.
    Host(HostPort),
}

/// Reads `any`, `hub.example.org`, `10.0.0.7:7373` or `[::1]:7373`.
fn parse_reachable(text: &str) -> Result<ThirdPartyFlag, String> {
    if text == "any" {
        return Ok(ThirdPartyFlag::Any);
    }
    text.parse::<HostPort>().map(ThirdPartyFlag::Host).map_err(|why| {
        format!("{why}; expected any, or a host with or without a port, such as hub.example.org or [::1]:7373")
    })
}

/// Reads `none`, or a host with or without a port.
fn parse_reachable_at(text: &str) -> Result<ReachableAt, String> {
    if text == "none" {
        return Ok(ReachableAt::Nowhere);
    }
    text.parse::<HostPort>().map(ReachableAt::Address).map_err(|why| {
        format!("{why}; expected none, or a host with or without a port, such as gs.example.org or [2001:db8::1]:7373")
    })
}

/// Reads `127.0.0.1:7373`, `[::]:7373`, or an address alone.
fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    parse_listen_with(text, DEFAULT_PORT)
}

/// Reads the same for the service.
fn parse_listen_for_jobs(text: &str) -> Result<SocketAddr, String> {
    parse_listen_with(text, SERVICE_PORT)
}

/// Reads the same for clients of iperf3.
fn parse_listen_for_iperf3(text: &str) -> Result<SocketAddr, String> {
    parse_listen_with(text, sterna_net::measure::iperf3::IPERF3_PORT)
}

/// Reads the same for clients of NDT7.
fn parse_listen_for_ndt7(text: &str) -> Result<SocketAddr, String> {
    parse_listen_with(text, sterna_net::measure::ndt7::NDT7_PORT)
}

/// Reads the same for senders of STAMP.
fn parse_listen_for_stamp(text: &str) -> Result<SocketAddr, String> {
    parse_listen_with(text, sterna_net::measure::STAMP_PORT)
}

fn parse_listen_with(text: &str, port: u16) -> Result<SocketAddr, String> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let with_default = || bare.parse().map(|ip: IpAddr| SocketAddr::new(ip, port));
    text.parse().or_else(|_| with_default()).map_err(|_| {
        // A name can resolve to several addresses, and an agent listens on one.
        "expected an IP address of this host, with or without a port (0 to 65535), such as 127.0.0.1:7373 for \
         clients on this host, 0.0.0.0 for all clients by IPv4, or [::]:7373 for IPv4 and IPv6"
            .to_owned()
    })
}

fn parse_lanes(text: &str) -> Result<Lanes, String> {
    if text == "auto" {
        return Ok(Lanes::Auto);
    }
    match text.parse() {
        Ok(count @ 1..=sterna_proto::plan::LANES_MAX) => Ok(Lanes::Count(count)),
        _ => Err(format!("expected auto or a number from 1 to {}", sterna_proto::plan::LANES_MAX)),
    }
}

/// Reads `delete` or `move=DIR`.
fn parse_then(text: OsString) -> Result<SourceDisposition, String> {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    match text.as_bytes() {
        b"delete" => Ok(SourceDisposition::Delete),
        bytes => match bytes.strip_prefix(b"move=").filter(|directory| !directory.is_empty()) {
            Some(directory) => Ok(SourceDisposition::Move(PathBuf::from(OsString::from_vec(directory.to_vec())))),
            None => Err("expected delete, or move=DIR with a directory".to_owned()),
        },
    }
}

fn parse_percent(text: &str) -> Result<Ppm, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    match number.trim().parse::<f64>() {
        Ok(percent) if (0.0..=50.0).contains(&percent) => Ok(Ppm((percent * 10_000.0).round() as u32)),
        _ => Err("expected a percentage from 0% to 50%".to_owned()),
    }
}

/// Returns the text of an error, with the flags that change it, on one line. Keeps the line breaks of an error with
/// several lines.
pub fn worded(error: &Error) -> String {
    with_flags(error.chain(), error.settings())
}

/// Returns the event as `--json` prints it: the text of an error ends with the flags of its settings.
pub fn worded_event(mut event: Event) -> Event {
    if let Some(error) = event.error_mut() {
        error.text = with_flags(std::mem::take(&mut error.text), &error.settings);
    }
    if let Some(limits) = event.limits_mut() {
        for (limit, text) in &mut limits.remedies {
            *text = with_advice(std::mem::take(text), limits.advice.get(limit).copied());
        }
    }
    event
}

/// Adds an advice to the cause of a limit, with the flags that follow it.
pub fn with_advice(cause: String, advice: Option<Advice>) -> String {
    let advice = match advice {
        None => return cause,
        Some(Advice::Memory) => "give more --memory".to_owned(),
        Some(Advice::MemoryOfReceiver) => "give the receiver more --memory".to_owned(),
        Some(Advice::LossCeiling) => {
            "the rate yields to more than --loss-ceiling, and to losses beside a queue".to_owned()
        }
        Some(Advice::QuicForFewerAcknowledgements) => "--via quic sends fewer".to_owned(),
        Some(Advice::QuicForPacing) => "--via quic spreads packets, and finds the rate".to_owned(),
        Some(Advice::QuicForWindow) => "--via quic has no such window".to_owned(),
        Some(Advice::QuicAtPathRate) => "--via quic --rate RATE does not slow down for it".to_owned(),
        Some(Advice::QuicBelowPolicer { rate_bps }) => {
            format!("--via quic --rate {} avoids the losses", rate_of_flag(rate_bps))
        }
    };
    format!("{cause}; {advice}")
}

/// Returns a rate in the format of `--rate`.
fn rate_of_flag(rate_bps: u64) -> String {
    match rate_bps {
        bits if bits >= 10_000_000 => format!("{}Mbit", bits / 1_000_000),
        bits => format!("{}kbit", bits / 1000),
    }
}

/// Adds the flags of `settings` to a text, in parentheses.
fn with_flags(text: String, settings: &[Setting]) -> String {
    let flags: Vec<&str> = settings.iter().map(|setting| flag_of(*setting)).collect();
    match flags.is_empty() {
        true => text,
        false => format!("{text} ({})", flags.join(", ")),
    }
}

/// Returns the flag of a setting.
const fn flag_of(setting: Setting) -> &'static str {
    match setting {
        Setting::Paths => "--path",
        Setting::Transport => "--via",
        Setting::Lanes => "--lanes",
        Setting::Congestion => "--congestion",
        Setting::Rate => "--rate",
        Setting::RateMin => "--rate-min",
        Setting::RateMax => "--rate-max",
        Setting::Scavenger => "--polite",
        Setting::LossCeiling => "--loss-ceiling",
        Setting::Memory => "--memory",
        Setting::Overwrite => "--overwrite",
        Setting::Expect => "--expect",
        Setting::Follow => "--follow",
        Setting::SourceDisposition => "--then",
        Setting::Replicas => "--same",
        Setting::DryRun => "--dry-run",
        Setting::Linger => "--linger",
        Setting::Trust => "--trust",
        Setting::WebToken => "--http-token-file",
        Setting::WebTokenCommand => "--http-token-command",
        Setting::WebAuthority => "--http-ca",
        Setting::Listen => "--listen",
        Setting::Authorize => "--authorize",
        Setting::ThirdParty => "--third-party",
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// Collects the lines of a help text that call the program, of `command` and its subcommands.
    fn examples(command: &clap::Command, found: &mut Vec<String>) {
        let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(text.lines().all(|line| line.chars().count() <= 92), "lines that are broken in two: {text}");
        let text = text.replace("\\\n", "");
        let lines = text.lines().filter_map(|line| line.strip_prefix("  sterna "));
        let before = found.len();
        found.extend(lines.map(|line| format!("sterna {line}")));
        let mut subcommands = command.get_subcommands().peekable();
        assert!(found.len() > before || subcommands.peek().is_some(), "{} has no example", command.get_name());
        subcommands.for_each(|command| examples(command, found));
    }

    #[test]
    fn an_address_to_listen_on_needs_no_port() {
        let cases = [
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("0.0.0.0", "0.0.0.0:7373"),
            ("::", "[::]:7373"),
            ("[::1]", "[::1]:7373"),
            ("[::1]:80", "[::1]:80"),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_listen(text).unwrap().to_string(), expected);
        }
        for wrong in ["localhost", "localhost:7373", "7373", ":7373", "", "127.0.0.1:", "1.2.3.4:70000"] {
            assert!(parse_listen(wrong).unwrap_err().contains("127.0.0.1:7373"), "{wrong}");
        }
    }

    #[test]
    fn hosts_that_copies_may_reach_are_those_of_locations() {
        let host = |host: &str, port| ThirdPartyFlag::Host(HostPort { host: host.to_owned(), port });
        for (text, expected) in [
            ("any", ThirdPartyFlag::Any),
            ("hub", host("hub", 7373)),
            ("10.0.0.7:80", host("10.0.0.7", 80)),
            ("[::1]:80", host("::1", 80)),
        ] {
            assert_eq!(parse_reachable(text).unwrap(), expected);
        }
        for wrong in ["", "hub/x", "hub:", "hub:0", "::1", "a@hub", "sterna://hub"] {
            assert!(parse_reachable(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_setting_has_a_flag_and_an_error_names_it() {
        let command = Flags::command();
        let has = |flag: &str| {
            let names = |arg: &clap::Arg| arg.get_long().is_some_and(|long| flag.strip_prefix("--") == Some(long));
            command.get_subcommands().any(|command| command.get_arguments().any(names))
        };
        for setting in Setting::ALL {
            assert!(has(flag_of(*setting)), "{setting:?}");
        }
        let error = Error::usage(&[Setting::Memory, Setting::Lanes], "1 MB of memory are too little");
        assert_eq!(worded(&error), "1 MB of memory are too little (--memory, --lanes)");
    }

    #[test]
    fn every_command_has_an_example_that_is_right() {
        let mut found = Vec::new();
        examples(&Flags::command(), &mut found);
        assert!(found.len() >= 12, "{found:?}");
        for line in found {
            assert_eq!(crate::documents::parse(&line).map(|calls| calls > 0), Ok(true));
        }
    }
}
