//! Flags of `sterna config`: one command for each kind of settings.

use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use sterna_net::identity::Fingerprint;
use sterna_service::api::native::types::AccessView;

use super::duration::parse_time;
use super::service::ServiceFlags;

/// Examples of `sterna config`.
pub const EXAMPLES: &str = "Examples:
  sterna config                                    # shows all settings
  sterna config service --max 2000
  sterna config link sterna://gs.example.org sterna://hub.example.org --max 20
  sterna config link '*' sterna://hub.example.org --max default
  sterna config endpoint sterna://hub.example.org --in 50 --out 50
  sterna config share atlas 70 --destination sterna://hub.example.org
  sterna config activities atlas production=3 default=1 --guarantee production=0.5
  sterna config vo mission --order submission --max 10
  sterna config grant '/DC=org/DC=example/CN=Operator' config
  sterna config site gs.example.org --add SHA256:PXnRV7Viz07LCS3q+EGKVef/8GfRAaO0qTW3vRXksbU
  sterna config drain on
  sterna config audit --limit 20

Needs the level `vo` of the operation config to read, and `all` to change. The scheduler
follows a change at once; transfers that are under way go on. Bans: sterna ban.";

/// Flags of `sterna config`.
#[derive(Debug, Args)]
pub struct ConfigFlags {
    /// Setting to change; without one all are shown.
    #[command(subcommand)]
    pub change: Option<Change>,
    /// Service and credentials.
    #[command(flatten)]
    pub service: ServiceFlags,
}

/// Change of a setting.
#[derive(Debug, Subcommand)]
pub enum Change {
    /// Limit the transfers of the whole service
    #[command(after_help = "Examples:\n  sterna config service --max 2000\n  sterna config service --max default")]
    Service(ServiceLimitFlags),
    /// Limit the transfers from one endpoint to another
    #[command(
        after_help = "Examples:\n  sterna config link sterna://gs.example.org sterna://hub.example.org --max 20\n  sterna config link '*' sterna://hub.example.org --remove"
    )]
    Link(LinkFlags),
    /// Limit the transfers to and from an endpoint
    #[command(after_help = "Examples:\n  sterna config endpoint sterna://hub.example.org --in 50 --out default")]
    Endpoint(EndpointFlags),
    /// Give a virtual organisation a share of the bytes of links
    #[command(
        after_help = "Examples:\n  sterna config share atlas 70 --destination sterna://hub.example.org\n  sterna config share public 30 --guarantee 0.1"
    )]
    Share(ShareFlags),
    /// Give activities shares within their virtual organisation
    #[command(
        after_help = "Examples:\n  sterna config activities atlas production=3 default=1\n  sterna config activities atlas production=3 default=1 --guarantee production=0.5"
    )]
    Activities(ActivitiesFlags),
    /// Set defaults, the limit and the order of a virtual organisation
    #[command(
        after_help = "Examples:\n  sterna config vo mission --order submission --max 10\n  sterna config vo '*' --retries 5 --queue-time 72h"
    )]
    Vo(VoFlags),
    /// Let a user do an operation on everybody's resources
    #[command(after_help = "Examples:\n  sterna config grant '/DC=org/DC=example/CN=Operator' config")]
    Grant(GrantFlags),
    /// Show the sites, or set the agents of a site and who may use it
    #[command(
        after_help = "Examples:\n  sterna config site                                 # shows all sites and their agents\n  sterna config site gs.example.org --add SHA256:PXnRV7Viz07LCS3q+EGKVef/8GfRAaO0qTW3vRXksbU\n  sterna config site gs.example.org --allow atlas=write:data/atlas --allow cms=read\n  sterna config site gs.example.org --remove"
    )]
    Site(SiteFlags),
    /// Start no transfers from now on, or start them again
    #[command(after_help = "Examples:\n  sterna config drain on")]
    Drain(DrainFlags),
    /// Show the changes that operators made, the latest first
    #[command(after_help = "Examples:\n  sterna config audit --limit 20")]
    Audit(AuditFlags),
}

/// Number, or the default of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrDefault<T>(pub Option<T>);

/// Reads a number, or `default`.
fn parse_number(text: &str) -> Result<OrDefault<u32>, String> {
    match text {
        "default" => Ok(OrDefault(None)),
        _ => text.parse().map(|number| OrDefault(Some(number))).map_err(|_| "expected a number, or default".to_owned()),
    }
}

/// Reads a time, or `default`.
fn parse_time_or_default(text: &str) -> Result<OrDefault<Duration>, String> {
    match text {
        "default" => Ok(OrDefault(None)),
        _ => parse_time(text).map(|time| OrDefault(Some(time))).map_err(|why| format!("{why}; or default")),
    }
}

/// Reads a weight.
fn parse_weight(text: &str) -> Result<f64, String> {
    let weight = text.parse().ok().filter(|weight| (0.0..=1e9).contains(weight));
    weight.ok_or_else(|| "expected a number from 0 to 1000000000".to_owned())
}

/// Reads a guaranteed fraction.
fn parse_guarantee(text: &str) -> Result<f64, String> {
    let guarantee = text.parse().ok().filter(|guarantee| (0.0..=1.0).contains(guarantee));
    guarantee.ok_or_else(|| "expected a fraction from 0 to 1".to_owned())
}

/// Reads `NAME=FRACTION`.
fn parse_named_guarantee(text: &str) -> Result<(String, f64), String> {
    match text.rsplit_once('=') {
        Some((name, guarantee)) if !name.is_empty() => Ok((name.to_owned(), parse_guarantee(guarantee)?)),
        _ => Err("expected NAME=FRACTION, such as production=0.5".to_owned()),
    }
}

/// Reads `NAME=WEIGHT`.
fn parse_named_weight(text: &str) -> Result<(String, f64), String> {
    match text.rsplit_once('=') {
        Some((name, weight)) if !name.is_empty() => Ok((name.to_owned(), parse_weight(weight)?)),
        _ => Err("expected NAME=WEIGHT, such as production=3".to_owned()),
    }
}

/// Reads `VO=RIGHT` or `VO=RIGHT:DIR`.
fn parse_access(text: &str) -> Result<AccessView, String> {
    let expected = || "expected VO=read, VO=write, or VO=write:DIR".to_owned();
    let (vo, right) = text.split_once('=').filter(|(vo, _)| !vo.is_empty()).ok_or_else(expected)?;
    let (right, path) = right.split_once(':').unwrap_or((right, ""));
    let access = AccessView { vo: vo.to_owned(), right: right.to_owned(), path: path.to_owned() };
    access.to_access().map_err(|_| expected())?;
    Ok(access)
}

/// Flags of `sterna config site`.
#[derive(Debug, Args)]
pub struct SiteFlags {
    /// Site: the host of its locations; without one all are shown
    #[arg(required_if_eq("remove", "true"))]
    pub site: Option<String>,
    /// Add the agent with this fingerprint, as `sterna id` prints it there. Can be repeated
    #[arg(long, value_name = "FINGERPRINT", requires = "site", conflicts_with = "remove")]
    pub add: Vec<Fingerprint>,
    /// Take the agent with this fingerprint away. Can be repeated
    #[arg(long, value_name = "FINGERPRINT", requires = "site", conflicts_with = "remove")]
    pub drop: Vec<Fingerprint>,
    /// Let a virtual organisation read, or read and write, at the site, or beneath a directory of it. Can be repeated.
    /// Without any, every user of the service reads and writes
    #[arg(long, value_name = "VO=read|write[:DIR]", requires = "site", conflicts_with = "remove", value_parser = parse_access)]
    pub allow: Vec<AccessView>,
    /// Take all rights of a virtual organisation away. Can be repeated
    #[arg(long, value_name = "VO", requires = "site", conflicts_with = "remove")]
    pub disallow: Vec<String>,
    /// Remove the site
    #[arg(long)]
    pub remove: bool,
}

/// Flags of `sterna config service`.
#[derive(Debug, Args)]
pub struct ServiceLimitFlags {
    /// Maximum number of transfers under way; sterna config drain starts none
    #[arg(long, value_name = "N|default", required = true, value_parser = parse_number)]
    pub max: Option<OrDefault<u32>>,
}

/// Flags of `sterna config link`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("action").required(true).args(["max", "remove"]))]
pub struct LinkFlags {
    /// Source endpoint, such as sterna://gs.example.org; * is every endpoint, and the most precise setting counts
    pub source: String,
    /// Destination endpoint, or *
    pub destination: String,
    /// Maximum number of transfers under way
    #[arg(long, value_name = "N|default", value_parser = parse_number)]
    pub max: Option<OrDefault<u32>>,
    /// Remove the settings of the link
    #[arg(long)]
    pub remove: bool,
}

/// Flags of `sterna config endpoint`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("action").required(true).multiple(true).args(["max_in", "max_out", "remove"]))]
pub struct EndpointFlags {
    /// Endpoint, such as sterna://hub.example.org; * is every endpoint without settings
    pub endpoint: String,
    /// Maximum number of transfers to the endpoint
    #[arg(long = "in", value_name = "N|default", value_parser = parse_number, conflicts_with = "remove")]
    pub max_in: Option<OrDefault<u32>>,
    /// Maximum number of transfers from the endpoint
    #[arg(long = "out", value_name = "N|default", value_parser = parse_number, conflicts_with = "remove")]
    pub max_out: Option<OrDefault<u32>>,
    /// Remove the settings of the endpoint
    #[arg(long)]
    pub remove: bool,
}

/// Flags of `sterna config share`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("action").required(true).args(["weight", "remove"]))]
pub struct ShareFlags {
    /// Virtual organisation; public is every one without a share
    pub vo: String,
    /// Part of the bytes, relative to the weights of the others that have files
    #[arg(value_parser = parse_weight)]
    pub weight: Option<f64>,
    /// Minimum fraction of the bytes of a link while the virtual organisation has files, whatever the weights of the
    /// others (default: 0)
    #[arg(long, value_name = "FRACTION", requires = "weight", conflicts_with = "remove", value_parser = parse_guarantee)]
    pub guarantee: Option<f64>,
    /// Source endpoint of the links
    #[arg(long, value_name = "ENDPOINT", default_value = "*")]
    pub source: String,
    /// Destination endpoint of the links
    #[arg(long, value_name = "ENDPOINT", default_value = "*")]
    pub destination: String,
    /// Remove the share
    #[arg(long)]
    pub remove: bool,
}

/// Flags of `sterna config activities`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("action").required(true).args(["weights", "remove"]))]
pub struct ActivitiesFlags {
    /// Virtual organisation
    pub vo: String,
    /// Weights of all its activities; default is every one without a share
    #[arg(value_name = "NAME=WEIGHT", value_parser = parse_named_weight)]
    pub weights: Vec<(String, f64)>,
    /// Minimum fraction of the bytes of the virtual organisation while the activity has files. Can be repeated
    #[arg(long = "guarantee", value_name = "NAME=FRACTION", requires = "weights", value_parser = parse_named_guarantee)]
    pub guarantees: Vec<(String, f64)>,
    /// Keep the shares, but do not follow them
    #[arg(long, requires = "weights")]
    pub ignored: bool,
    /// Remove the shares
    #[arg(long)]
    pub remove: bool,
}

/// Order of the queues of a virtual organisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum QueueOrder {
    /// files of a higher priority go first
    Priority,
    /// first in, first out, without activities
    Submission,
}

/// Flags of `sterna config vo`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("action").required(true).multiple(true)
    .args(["retries", "queue_time", "timeout", "max", "order", "remove"]))]
pub struct VoFlags {
    /// Virtual organisation; * is every one without defaults
    pub vo: String,
    /// Maximum number of further attempts of a file, for jobs that ask for none
    #[arg(long, value_name = "N|default", value_parser = parse_number, conflicts_with = "remove")]
    pub retries: Option<OrDefault<u32>>,
    /// Maximum time in the queue, in whole hours, for jobs that ask for none
    #[arg(long, value_name = "TIME|default", value_parser = parse_time_or_default, conflicts_with = "remove")]
    pub queue_time: Option<OrDefault<Duration>>,
    /// Time limit of an attempt, for jobs that ask for none
    #[arg(long, value_name = "TIME|default", value_parser = parse_time_or_default, conflicts_with = "remove")]
    pub timeout: Option<OrDefault<Duration>>,
    /// Maximum number of transfers under way
    #[arg(long, value_name = "N|default", value_parser = parse_number, conflicts_with = "remove")]
    pub max: Option<OrDefault<u32>>,
    /// Order of the queues
    #[arg(long, conflicts_with = "remove")]
    pub order: Option<QueueOrder>,
    /// Remove these settings; shares stay
    #[arg(long)]
    pub remove: bool,
}

/// Operation that a user may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GrantedOperation {
    /// see, change and cancel the jobs of everybody
    Transfer,
    /// change settings and bans
    Config,
    /// delegate credentials, which is not needed
    Deleg,
}

/// Flags of `sterna config grant`.
#[derive(Debug, Args)]
pub struct GrantFlags {
    /// Distinguished name of a certificate, or issuer and subject of a token with a space between
    pub user: String,
    /// Operation
    pub operation: GrantedOperation,
    /// Take the operation back
    #[arg(long)]
    pub remove: bool,
}

/// State of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DrainState {
    /// no transfer starts; those under way go on
    On,
    /// transfers start
    Off,
}

/// Flags of `sterna config drain`.
#[derive(Debug, Args)]
pub struct DrainFlags {
    /// State
    // Not `state`, which is the state directory.
    #[arg(value_name = "STATE")]
    pub drained: DrainState,
}

/// Flags of `sterna config audit`.
#[derive(Debug, Args)]
pub struct AuditFlags {
    /// Maximum number of changes, from 1 to 1000
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub limit: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_times_and_weights_are_checked_here() {
        assert_eq!(parse_number("default"), Ok(OrDefault(None)));
        assert_eq!(parse_number("0"), Ok(OrDefault(Some(0))));
        assert!(parse_number("-1").is_err() && parse_number("many").is_err());
        assert_eq!(parse_time_or_default("2h"), Ok(OrDefault(Some(Duration::from_secs(7200)))));
        assert!(parse_time_or_default("2").unwrap_err().ends_with("or default"));
        assert_eq!(parse_named_weight("a=b=0.5"), Ok(("a=b".to_owned(), 0.5)));
        for wrong in ["a", "=1", "a=", "a=-1", "a=NaN", "a=inf", "a=1e10"] {
            assert!(parse_named_weight(wrong).is_err(), "{wrong}");
        }
        assert_eq!((parse_guarantee("1"), parse_named_guarantee("a=b=0.5")), (Ok(1.0), Ok(("a=b".to_owned(), 0.5))));
        for wrong in ["a", "=1", "a=", "a=-0.1", "a=1.1", "a=NaN", "a=50%"] {
            assert!(parse_named_guarantee(wrong).is_err(), "{wrong}");
        }
    }
}
