//! Flags of `sterna doctor case`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use sterna_doctor::case::examination::RunId;
use sterna_doctor::case::facts::FactPair;
use sterna_doctor::case::moment::EntryTime;
use sterna_doctor::verdict::Cause;
use sterna_proto::BitRate;

use super::measure::{MeasureFlags, ToolDirection};

const CASE_EXAMPLES: &str = "\
Examples:
  sterna doctor case new tigo --target sterna://jive.example.org --title 'TIGO to JIVE'
  sterna doctor case run tigo                       # examine, and tell what changed
  sterna doctor case note tigo 'asked REUNA about the limit' --at '2006-08-22 14:30'
  sterna doctor case fact tigo --domain reuna.cl rate_limit=90Mbit burst=16MB
  sterna doctor case retest tigo --claim 'limit lifted to 90 Mbit/s' --to 90Mbit
  sterna doctor case report tigo --html tigo.html   # all of it, for everybody

A case is a directory: case.jsonl has one entry a line, and bundles/ the signed evidence. It
can be sent as an archive, or kept in a repository.";

const NEW_EXAMPLES: &str = "\
Examples:
  sterna doctor case new tigo --target sterna://jive.example.org --title 'TIGO to JIVE'";

const NOTE_EXAMPLES: &str = "\
Examples:
  sterna doctor case note tigo 'asked REUNA about the limit'
  sterna doctor case note tigo 'limit found' --at '2006-08-22 14:30' --by jose@reuna.cl
  sterna doctor case note tigo - < mail.txt";

const FACT_EXAMPLES: &str = "\
Examples:
  sterna doctor case fact tigo --domain reuna.cl rate_limit=90Mbit burst=16MB
  sterna doctor case fact tigo --domain reuna.cl --direction up rate_limit=none";

const RUN_EXAMPLES: &str = "\
Examples:
  sterna doctor case run tigo
  sterna doctor case run tigo --time 30s --max-rate 1Gbit";

const ADD_EXAMPLES: &str = "\
Examples:
  sterna doctor case add tigo before.json";

const LIST_EXAMPLES: &str = "\
Examples:
  sterna doctor case list tigo";

const REPORT_EXAMPLES: &str = "\
Examples:
  sterna doctor case report tigo
  sterna doctor case report tigo --html tigo.html";

const CLOSE_EXAMPLES: &str = "\
Examples:
  sterna doctor case close tigo 'REUNA upgrades to 310 Mbit/s'";

const RETEST_EXAMPLES: &str = "\
Examples:
  sterna doctor case retest tigo                                   # are its limits gone?
  sterna doctor case retest tigo --claim 'REUNA lifted the limit'
  sterna doctor case retest tigo --limit policer --direction up --to 90Mbit
  sterna doctor case retest tigo --since 20060822T143000Z

A limit is gone if more than its rate passed. Exit codes: 0 every limit is gone, or has the
rate of --to. 1 a limit is still there, or the measurement does not decide. Others: see
`sterna --help`.";

/// Flags of `sterna doctor case`.
#[derive(Debug, Args)]
#[command(after_help = CASE_EXAMPLES)]
pub struct CaseFlags {
    /// Command to run.
    #[command(subcommand)]
    pub command: CaseCommand,
}

/// The commands of a case.
// Parsed once per process, so the size is not important.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Subcommand)]
pub enum CaseCommand {
    /// Open a case
    #[command(after_help = NEW_EXAMPLES)]
    New(CaseNewFlags),
    /// Add a note
    #[command(after_help = NOTE_EXAMPLES)]
    Note(CaseNoteFlags),
    /// Add facts about a network, as its operator states them; a later value supersedes an earlier one
    #[command(after_help = FACT_EXAMPLES)]
    Fact(CaseFactFlags),
    /// Examine the targets, keep the signed evidence, and tell what changed since the last time
    #[command(after_help = RUN_EXAMPLES)]
    Run(CaseRunFlags),
    /// Examine the targets again, and tell for each limit whether it is gone
    #[command(after_help = RETEST_EXAMPLES)]
    Retest(CaseRetestFlags),
    /// Add the bundle of an examination that ran without the case
    #[command(after_help = ADD_EXAMPLES)]
    Add(CaseAddFlags),
    /// List the entries in order of time
    #[command(after_help = LIST_EXAMPLES)]
    List(CaseListFlags),
    /// Report: facts by domain, chronology, rates over time, re-tests, open questions
    #[command(after_help = REPORT_EXAMPLES)]
    Report(CaseReportFlags),
    /// Close the case; any later entry opens it again
    #[command(after_help = CLOSE_EXAMPLES)]
    Close(CaseCloseFlags),
}

/// Author and time of an entry.
#[derive(Debug, Args)]
pub struct EntryFlags {
    /// Author (default: user@host)
    #[arg(long, value_name = "NAME")]
    pub by: Option<String>,
    /// Time of an earlier event, as 2006-08-22, 2006-08-22 14:30 (UTC), or with a time zone 2006-08-22T14:30:00+02:00
    #[arg(long, value_name = "TIME", value_parser = EntryTime::parse)]
    pub at: Option<EntryTime>,
}

/// Flags of `sterna doctor case new`.
#[derive(Debug, Args)]
pub struct CaseNewFlags {
    /// Directory of the case, which is made
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Agent at the other end of a path, as sterna://HOST or sterna://HOST:PORT. Repeat it for more paths
    #[arg(long, value_name = "TARGET", required = true)]
    pub target: Vec<String>,
    /// Title
    #[arg(long, value_name = "TEXT")]
    pub title: String,
    /// Author and time.
    #[command(flatten)]
    pub entry: EntryFlags,
}

/// Flags of `sterna doctor case note`.
#[derive(Debug, Args)]
pub struct CaseNoteFlags {
    /// Directory of the case
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Text; `-` reads it from standard input
    #[arg(value_name = "TEXT")]
    pub text: String,
    /// Author and time.
    #[command(flatten)]
    pub entry: EntryFlags,
}

/// Flags of `sterna doctor case fact`.
#[derive(Debug, Args)]
pub struct CaseFactFlags {
    /// Directory of the case
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Network or host that the facts are about, such as geant.net
    #[arg(long, value_name = "NAME")]
    pub domain: String,
    /// Facts: rate_limit=90Mbit or rate_limit=none, burst=16MB, buffer=4MB, mtu=9000, and any other KEY=TEXT
    #[arg(value_name = "KEY=VALUE", required = true)]
    pub facts: Vec<FactPair>,
    /// Direction of the data (default: both)
    #[arg(long, value_name = "DIRECTION")]
    pub direction: Option<ToolDirection>,
    /// Author and time.
    #[command(flatten)]
    pub entry: EntryFlags,
}

/// Flags of `sterna doctor case run`.
#[derive(Debug, Args)]
pub struct CaseRunFlags {
    /// Directory of the case
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Target of the case (default: all)
    #[arg(long, value_name = "TARGET")]
    pub target: Option<String>,
    /// Author (default: user@host)
    #[arg(long, value_name = "NAME")]
    pub by: Option<String>,
    /// Print a JSON object for each target
    #[arg(long)]
    pub json: bool,
    /// Flags of the measurement.
    #[command(flatten)]
    pub measure: MeasureFlags,
}

/// Flags of `sterna doctor case retest`.
#[derive(Debug, Args)]
pub struct CaseRetestFlags {
    /// Flags of an examination.
    #[command(flatten)]
    pub run: CaseRunFlags,
    /// Change that an operator reported, for the report
    #[arg(long, value_name = "TEXT")]
    pub claim: Option<String>,
    /// Rate to which the limit was raised (default: it was removed)
    #[arg(long, value_name = "RATE")]
    pub to: Option<BitRate>,
    /// Limit to answer for, such as policer or receive_buffer (default: each that held a connection, and each policer
    /// and shaper)
    #[arg(long, value_name = "LIMIT", value_parser = parse_limit)]
    pub limit: Option<Cause>,
    /// Direction of the limit (default: both)
    #[arg(long, value_name = "DIRECTION")]
    pub direction: Option<ToolDirection>,
    /// Examination to compare with, as `sterna doctor case list` shows it (default: the last one)
    #[arg(long, value_name = "BUNDLE")]
    pub since: Option<RunId>,
}

/// Flags of `sterna doctor case add`.
#[derive(Debug, Args)]
pub struct CaseAddFlags {
    /// Directory of the case
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Bundle of an examination
    #[arg(value_name = "FILE")]
    pub bundle: PathBuf,
    /// Author (default: user@host)
    #[arg(long, value_name = "NAME")]
    pub by: Option<String>,
}

/// Flags of `sterna doctor case list`.
#[derive(Debug, Args)]
pub struct CaseListFlags {
    /// Directory of the case
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Print a JSON object for each entry
    #[arg(long)]
    pub json: bool,
}

/// Flags of `sterna doctor case report`.
#[derive(Debug, Args)]
pub struct CaseReportFlags {
    /// Directory of the case
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Write the report as one HTML page with its plots
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Flags of `sterna doctor case close`.
#[derive(Debug, Args)]
pub struct CaseCloseFlags {
    /// Directory of the case
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Result; `-` reads it from standard input
    #[arg(value_name = "TEXT")]
    pub text: String,
    /// Author and time.
    #[command(flatten)]
    pub entry: EntryFlags,
}

/// Reads the name of a limit as `--json` has it.
fn parse_limit(text: &str) -> Result<Cause, String> {
    serde_json::from_value(text.into()).map_err(|_| {
        "expected the name of a limit as in --json, such as policer, shaper, receive_buffer or random_loss".to_owned()
    })
}
