//! Flags of the commands that talk to a transfer service: submit, status, list, watch, cancel, explain and ban.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};
use sterna_proto::ByteCount;
use sterna_service::api::native::types::STRATEGIES;
use ureq::http::Uri;

use super::duration::{Moment, parse_moment, parse_time};

/// Usage of `sterna submit`: the destination is the last location.
pub const SUBMIT_USAGE: &str =
    "sterna submit [OPTIONS] <SOURCE>... <DESTINATION>\n       sterna submit [OPTIONS] --from <FILE>";

/// Examples of `sterna submit`.
pub const SUBMIT_EXAMPLES: &str = "Examples:
  sterna submit 'mock://a/f?size=10' mock://b/f      # to that of sterna serve --dev
  sterna submit sterna://gs.example.org/p.h5 sterna://hub.example.org/in/p.h5
  sterna submit --wait --priority 5 --retries 10 sterna://gs.example.org/p.h5 \\
      sterna://archive.example.org/p.h5 sterna://hub.example.org/in/p.h5    # two replicas
  sterna submit --recursive sterna://gs.example.org/pass7/ davs://se.example.org/pass7/
  sterna submit --from passes.ndjson --service https://fts.example.org:8446

The job's identifier is printed on stdout as soon as the service has stored the job.
A manifest has one JSON object per line: the first is the job, each other is a file:
  {\"activity\": \"passes\", \"retries\": 5}
  {\"sources\": [\"sterna://gs.example.org/1\"], \"destination\": \"sterna://hub.example.org/1\"}
  {\"sources\": [\"davs://se.example/d/\"], \"destination\": \"sterna://hub/d/\", \"recursive\": true}

Exit codes: 0 the job is stored; with --wait those of `sterna watch`.";

/// Examples of `sterna status`.
pub const STATUS_EXAMPLES: &str = "Examples:
  sterna status 6f2c1c9e-0f5b-4f6a-9d0a-3a4a5d3c8a11
  sterna status --files 6f2c1c9e-0f5b-4f6a-9d0a-3a4a5d3c8a11
  sterna status --json 6f2c1c9e-0f5b-4f6a-9d0a-3a4a5d3c8a11 | jq .state";

/// Examples of `sterna list`.
pub const LIST_EXAMPLES: &str = "Examples:
  sterna list                            # jobs that have not ended
  sterna list --only failed,partly_finished --limit 20
  sterna list --all --json";

/// Examples of `sterna watch`.
pub const WATCH_EXAMPLES: &str = "Examples:
  sterna watch 6f2c1c9e-0f5b-4f6a-9d0a-3a4a5d3c8a11

Ctrl-C ends the command and not the job. With --json, a line for each change.
Exit codes: 0 every file has arrived   1 some files failed and others did not
  3 no file has arrived: source   4 the same: destination
  5 the same: path, agent or service; or the service cannot be reached or refuses
  6 credentials   130 the job was cancelled";

/// Examples of `sterna cancel`.
pub const CANCEL_EXAMPLES: &str = "Examples:
  sterna cancel 6f2c1c9e-0f5b-4f6a-9d0a-3a4a5d3c8a11   # files that have not arrived
  sterna cancel 4711 4712                              # two files, by their numbers

Files that have arrived stay.
Exit codes: 0 all is cancelled   1 a job or a file had ended before";

/// Examples of `sterna explain`.
pub const EXPLAIN_EXAMPLES: &str = "Examples:
  sterna explain 6f2c1c9e-0f5b-4f6a-9d0a-3a4a5d3c8a11   # files that have not arrived
  sterna explain 4711                                   # a file, by its number";

/// Examples of `sterna ban`.
pub const BAN_EXAMPLES: &str = "Examples:
  sterna ban --wait --message 'new disks until 18:00' sterna://hub.example.org
  sterna ban --list
  sterna ban --lift sterna://hub.example.org

Without --wait, files from and to the endpoint are cancelled, and new jobs with it are
refused. With --wait they wait until the ban is lifted, and transfers that are under way
go on.";

/// URL of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceUrl {
    /// URL without a slash at its end.
    text: String,
    /// Host, without brackets and port.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl FromStr for ServiceUrl {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        let expected = || "expected https://HOST[:PORT], such as https://fts.example.org:8446".to_owned();
        let text = given.trim_end_matches('/').to_owned();
        let uri: Uri = text.parse().map_err(|_| expected())?;
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        // The library takes a port that is no number for none.
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
        let is_plain = uri.query().is_none() && !authority.contains('@') && has_port == uri.port_u16().is_some();
        let host = uri.host().unwrap_or_default();
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host).to_owned();
        match uri.scheme_str() == Some("https") && is_plain && !host.is_empty() {
            // The default of the protocol, as that of every URL.
            true => Ok(Self { text, host, port: uri.port_u16().unwrap_or(443) }),
            false => Err(expected()),
        }
    }
}

impl fmt::Display for ServiceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Service and credentials: flags of every command that talks to a service, and of its subcommands.
#[derive(Debug, Args)]
pub struct ServiceFlags {
    /// URL of the service
    #[arg(long, global = true, value_name = "URL", env = "STERNA_SERVICE", default_value = "https://localhost:8446")]
    pub service: ServiceUrl,
    /// Certificate of the user with those of its issuers, in PEM; a proxy certificate too. Default: $X509_USER_PROXY,
    /// or $X509_USER_CERT with $X509_USER_KEY, or that of the trial (`sterna serve --dev`) for a service on this host,
    /// or /tmp/x509up_uUID
    #[arg(long, global = true, value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// Private key of the certificate, in PEM without a passphrase (default: in the file of the certificate)
    #[arg(long, global = true, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// Directory with the certificates of the authorities of services, in PEM. Default: that of the trial, or the
    /// authorities of this host with /etc/grid-security/certificates
    #[arg(long, global = true, value_name = "DIR", env = "X509_CERT_DIR")]
    pub capath: Option<PathBuf>,
    /// State directory with the files of the trial (default: sterna in $XDG_STATE_HOME, or ~/.local/state/sterna)
    #[arg(long, global = true, value_name = "DIR", env = "STERNA_STATE")]
    pub state: Option<PathBuf>,
    /// Print each reply of the service as one line of JSON on stdout
    #[arg(long, global = true)]
    pub json: bool,
}

/// `--overwrite` of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum JobOverwrite {
    /// an existing file is an error and stays
    Never,
    /// an existing file is replaced
    Always,
    /// an existing file is replaced from the second attempt on
    OnRetry,
}

/// `--checksum` of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum JobChecksum {
    /// no comparison
    None,
    /// the expected checksum with that of the source
    Source,
    /// the expected checksum with that of the destination
    Target,
    /// source and destination with each other, and with the expected checksum
    Both,
}

/// State of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum JobStateFlag {
    /// files are still being added
    Open,
    /// no file is or was under way
    Waiting,
    /// files are under way, or some have ended
    Active,
    /// all files have arrived
    Finished,
    /// some files have arrived, some have failed
    PartlyFinished,
    /// no file has arrived, and some have failed
    Failed,
    /// the files that had not arrived were cancelled
    Cancelled,
}

/// Returns the name of a value, as in the interface.
pub fn name_of<T: ValueEnum>(value: T) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Flags of `sterna submit`.
#[derive(Debug, Args)]
pub struct SubmitFlags {
    /// Sources, and last the DESTINATION, as URLs. Several sources are replicas of one file
    // One list: clap accepts no flag between the values of two lists.
    #[arg(value_name = "SOURCE", required_unless_present = "from", conflicts_with = "from")]
    pub locations: Vec<String>,
    /// Manifest of a job with many files, in JSON, one object per line; - is stdin. Other flags change its first line
    #[arg(long, value_name = "FILE|-")]
    pub from: Option<PathBuf>,
    /// Copy all files beneath the SOURCE directory to the same paths beneath the DESTINATION directory. Both end with
    /// a slash. The service lists the source while the first files are under way
    #[arg(long, conflicts_with_all = ["from", "expect", "size", "strategy"])]
    pub recursive: bool,
    /// Priority in the queue of the virtual organisation, from 1 to 5, the highest (default: 3)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=5))]
    pub priority: Option<u8>,
    /// Activity, to which operators give a share of the transfers (default: default)
    #[arg(long, value_name = "NAME")]
    pub activity: Option<String>,
    /// Maximum number of further attempts of a file (default: that of the service)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub retries: Option<u32>,
    /// Action on a file that exists at the destination (default: never)
    #[arg(long, value_name = "WHEN")]
    pub overwrite: Option<JobOverwrite>,
    /// Comparison of checksums, beyond the digest that agents always verify (default: none, with --expect both)
    #[arg(long, value_name = "WHERE")]
    pub checksum: Option<JobChecksum>,
    /// Checksum that the file must have, such as adler32:1f2e3d4c
    #[arg(long, value_name = "ALGORITHM:VALUE", value_parser = parse_checksum, conflicts_with = "from")]
    pub expect: Option<String>,
    /// Size of the file, such as 4GiB: the scheduler counts with it, and another size at the source is a failure
    #[arg(long, value_name = "SIZE", conflicts_with = "from")]
    pub size: Option<ByteCount>,
    /// Strategy that chooses among several sources, such as orderly or throughput (default: best)
    #[arg(long, value_name = "NAME", value_parser = parse_strategy, conflicts_with = "from")]
    pub strategy: Option<String>,
    /// Maximum time in the queue; files that still wait then fail
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub queue_time: Option<Duration>,
    /// Time at which the files shall have arrived: a time from now, such as 2h, or a date and time, such as
    /// 2027-01-31T18:00:00Z. A file goes before others of its virtual organisation when it must. It is transferred
    /// after the deadline too
    #[arg(long, value_name = "TIME|DATE", value_parser = parse_moment)]
    pub deadline: Option<Moment>,
    /// Time limit of one attempt (default: that of the service, by the size of the file)
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub timeout: Option<Duration>,
    /// Data of the job in JSON, which the service returns as it came
    #[arg(long, value_name = "JSON", value_parser = parse_json)]
    pub metadata: Option<serde_json::Value>,
    /// Key that finds the first job when the command is repeated, instead of submitting a second one (default: a
    /// random one)
    #[arg(long, value_name = "KEY", value_parser = parse_key)]
    pub idempotency_key: Option<String>,
    /// Watch the job until it has ended
    #[arg(long)]
    pub wait: bool,
    /// Service and credentials.
    #[command(flatten)]
    pub service: ServiceFlags,
}

/// Flags of `sterna status`.
#[derive(Debug, Args)]
pub struct StatusFlags {
    /// Identifier of the job
    pub job: String,
    /// Show each file too
    #[arg(long)]
    pub files: bool,
    /// Service and credentials.
    #[command(flatten)]
    pub service: ServiceFlags,
}

/// Flags of `sterna list`.
#[derive(Debug, Args)]
pub struct ListFlags {
    /// States of the jobs, separated by commas (default: those of jobs that have not ended)
    // Not --state, which is the state directory in every command.
    #[arg(long = "only", value_name = "STATE", value_delimiter = ',', conflicts_with = "all")]
    pub states: Vec<JobStateFlag>,
    /// List jobs in every state
    #[arg(long)]
    pub all: bool,
    /// Maximum number of jobs
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub limit: u32,
    /// Service and credentials.
    #[command(flatten)]
    pub service: ServiceFlags,
}

/// Flags of `sterna watch`.
#[derive(Debug, Args)]
pub struct WatchFlags {
    /// Identifier of the job
    pub job: String,
    /// Service and credentials.
    #[command(flatten)]
    pub service: ServiceFlags,
}

/// Flags of `sterna cancel`.
#[derive(Debug, Args)]
pub struct CancelFlags {
    /// Identifiers of jobs, or numbers of files
    #[arg(value_name = "JOB|FILE_NUMBER", required = true)]
    pub what: Vec<String>,
    /// Service and credentials.
    #[command(flatten)]
    pub service: ServiceFlags,
}

/// Flags of `sterna explain`.
#[derive(Debug, Args)]
pub struct ExplainFlags {
    /// Identifier of a job, or number of a file
    #[arg(value_name = "JOB|FILE_NUMBER")]
    pub what: String,
    /// Service and credentials.
    #[command(flatten)]
    pub service: ServiceFlags,
}

/// Flags of `sterna ban`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("action").required(true).args(["endpoint", "list", "lift"]))]
pub struct BanFlags {
    /// Endpoint to ban: scheme and host, such as sterna://hub.example.org
    pub endpoint: Option<String>,
    /// Let the files wait until the ban is lifted, and take new jobs, which wait too
    #[arg(long, requires = "endpoint")]
    pub wait: bool,
    /// Reason, for users
    #[arg(long, value_name = "TEXT", requires = "endpoint")]
    pub message: Option<String>,
    /// List the bans
    #[arg(long)]
    pub list: bool,
    /// Lift the ban of this endpoint
    #[arg(long, value_name = "ENDPOINT")]
    pub lift: Option<String>,
    /// Service and credentials.
    #[command(flatten)]
    pub service: ServiceFlags,
}

/// Reads the name of a strategy.
fn parse_strategy(text: &str) -> Result<String, String> {
    match STRATEGIES.contains(&text) {
        true => Ok(text.to_owned()),
        false => Err(format!("expected one of {}", STRATEGIES.join(", "))),
    }
}

/// Reads a value in JSON.
fn parse_json(text: &str) -> Result<serde_json::Value, String> {
    serde_json::from_str(text).map_err(|e| format!("{e}: expected JSON, such as '{{\"run\": 7}}'"))
}

/// Reads `ALGORITHM:VALUE`.
fn parse_checksum(text: &str) -> Result<String, String> {
    match text.split_once(':') {
        Some((algorithm, value)) if !algorithm.is_empty() && !value.is_empty() => Ok(text.to_owned()),
        _ => Err("expected ALGORITHM:VALUE, such as adler32:1f2e3d4c".to_owned()),
    }
}

/// Reads an idempotency key: 1 to 255 printable ASCII characters, as the interface takes it.
fn parse_key(text: &str) -> Result<String, String> {
    match (1..=255).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(text.to_owned()),
        false => Err("expected 1 to 255 ASCII characters without spaces".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_a_url_with_https_and_a_host() {
        for (given, text, host) in [
            ("https://localhost:8446", "https://localhost:8446", "localhost"),
            ("https://fts.example.org/", "https://fts.example.org", "fts.example.org"),
            ("https://[::1]:8446//", "https://[::1]:8446", "::1"),
            ("https://x/behind/a/proxy", "https://x/behind/a/proxy", "x"),
        ] {
            let url: ServiceUrl = given.parse().unwrap();
            assert_eq!((url.to_string().as_str(), url.host.as_str()), (text, host));
        }
        for wrong in ["", "localhost:8446", "http://x", "https://", "https://u:p@x", "https://x?y", "https://x:y"] {
            assert!(wrong.parse::<ServiceUrl>().unwrap_err().contains("https://HOST"), "{wrong}");
        }
    }

    #[test]
    fn names_of_values_are_those_of_the_interface() {
        assert_eq!(name_of(JobOverwrite::OnRetry), "on_retry");
        assert_eq!(name_of(JobChecksum::Both), "both");
        assert_eq!(name_of(JobStateFlag::PartlyFinished), "partly_finished");
    }
}
