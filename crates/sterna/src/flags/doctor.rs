//! Flags of `sterna doctor`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use sterna_doctor::kernel::KernelVersion;
use sterna_net::measure::STREAMS_MAX;
use sterna_proto::BitRate;
use sterna_proto::location::RemoteLocation;

use super::case::CaseFlags;
use super::duration::{parse_rtt, parse_time};
use super::measure::{MeasureFlags, ToolDirection};
use super::perfsonar::PerfsonarFlags;

const PLAN_EXAMPLES: &str = "\
Examples:
  sterna doctor plan --rate 10Gbit --rtt 148ms                 # this kernel
  sterna doctor plan --rate 1Gbit --rtt 11.9ms --kernel 5.14   # another
  sterna doctor plan --rate 100Mbit --rtt 660ms --loss 1%      # a satellite";

/// Examples at the end of `doctor --help`.
pub const DOCTOR_EXAMPLES: &str = "\
Examples:
  sterna doctor sterna://hub.example.org               # both ends: limits and remedies
  sterna doctor sterna://hub.example.org --json        # one object for programs
  sterna doctor sterna://hub.example.org --html page.html --bundle before.json
  sterna doctor compare before.json after.json         # what a fix changed
  sterna doctor case new cases/tigo --target sterna://hub.example.org --title 'TIGO to JIVE'
  sterna doctor case retest cases/tigo --claim 'limit lifted'   # is it?
  sterna doctor iperf3://speed.example.org --streams 4 # a server of iperf3, up and down
  sterna doctor ndt7://ndt.example.org                 # a server of NDT7
  sterna doctor stamp://router.example.org             # delay and loss (RFC 8762)
  sterna doctor perfsonar run rtt --source ps1.example.org --dest ps2.example.org
  sterna doctor www.example.org:443                    # one side: any TCP server
  sterna doctor https://data.example.org/big.iso       # one side: and downloads of a file
  sterna doctor --watch                                # connections of this host
  sterna doctor host                                   # settings of this host
  sterna doctor plan --rate 10Gbit --rtt 148ms         # arithmetic, without a network
  sterna doctor history                                # paths that the agent monitors

The HTML page is for the operators of another network, and the bundle is its evidence.";

const SHOW_EXAMPLES: &str = "\
Examples:
  sterna doctor show before.json
  sterna doctor show before.json --html page.html
  sterna doctor show before.json --pscheduler     # for an archive of perfSONAR";

const HISTORY_EXAMPLES: &str = "\
Examples:
  sterna doctor history --state /var/lib/sterna          # all paths of the agent
  sterna doctor history sterna://hub.example.org --since 30d --html hub.html

The rounds are those of sterna agent --monitor, in its state directory.";

const COMPARE_EXAMPLES: &str = "\
Examples:
  sterna doctor compare before.json after.json";

const WATCH_EXAMPLES: &str = "\
Examples:
  sterna doctor --watch                      # until Ctrl-C
  sterna doctor --watch --pid 4242 --time 30s
  sterna doctor watch --rate-min 100kbit --json

Reads the TCP connections of every program in this network namespace from the kernel, and
sends nothing. Names of programs of other users need root. The kernel knows no connections
of QUIC.";

const HOST_EXAMPLES: &str = "\
Examples:
  sterna doctor host                         # against the paths of this host
  sterna doctor host --rate 10Gbit           # against a wish
  sudo sterna doctor host --rate 10Gbit --apply
  sudo sterna doctor host --rollback";

/// Flags of `sterna doctor`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct DoctorFlags {
    /// Command to run.
    #[command(subcommand)]
    pub command: Option<DoctorCommand>,
    /// Flags of an examination.
    #[command(flatten)]
    pub examine: ExamineFlags,
}

/// Flags of an examination of a path.
#[derive(Debug, Args)]
pub struct ExamineFlags {
    /// Agent at the other end of the path, as sterna://HOST or sterna://HOST:PORT; or a server of iperf3 or NDT7, as
    /// iperf3://HOST, ndt7://HOST, or ndt7+ws://HOST without TLS; or a reflector of STAMP or TWAMP Light, as
    /// stamp://HOST; or, seen from one side, any TCP server as HOST:PORT, or a file as https://HOST/FILE. A server gets
    /// at most 130 connections, ten a second, each closed after its handshake
    #[arg(value_name = "TARGET", required = true)]
    pub target: Option<OsString>,
    /// Flags of the measurement.
    #[command(flatten)]
    pub measure: MeasureFlags,
    /// With iperf3: number of streams at once (default: 1)
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=i64::from(STREAMS_MAX)))]
    pub streams: Option<u32>,
    /// With iperf3 and NDT7: direction of the data (default: first up, then down)
    #[arg(long, value_name = "DIRECTION")]
    pub direction: Option<ToolDirection>,
    /// With iperf3: send datagrams at this rate, without headers, instead of TCP
    #[arg(long, value_name = "RATE")]
    pub udp: Option<BitRate>,
    /// Print one JSON object at the end
    #[arg(long)]
    pub json: bool,
    /// Write the evidence to a file, signed by the key of this host; `sterna doctor show` makes the report again
    #[arg(long, value_name = "FILE")]
    pub bundle: Option<PathBuf>,
    /// Files of the report.
    #[command(flatten)]
    pub files: ReportFiles,
}

/// Files that show a report.
#[derive(Debug, Args)]
pub struct ReportFiles {
    /// Write the report as one HTML page with its plots, for the operators of another network
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write each plot as an SVG file to this directory
    #[arg(long, value_name = "DIR")]
    pub svg: Option<PathBuf>,
}

/// The commands of the doctor.
#[derive(Debug, Subcommand)]
pub enum DoctorCommand {
    /// Compute buffers, windows, connections, ramp and loss that a rate over a path needs, without a network
    #[command(after_help = PLAN_EXAMPLES)]
    Plan(PlanFlags),
    /// Watch the TCP connections of this host, of any program, and tell what limits each (also: doctor --watch)
    #[command(long_flag = "watch", after_help = WATCH_EXAMPLES)]
    Watch(DoctorWatchFlags),
    /// Check the settings of this host against the paths that it is used on; change them on request
    #[command(after_help = HOST_EXAMPLES)]
    Host(HostFlags),
    /// Show the report of an examination again, from its bundle, after a check of its signature
    #[command(after_help = SHOW_EXAMPLES)]
    Show(ShowFlags),
    /// Keep a case file: measurements, notes and facts about networks over weeks, and re-tests of limits
    Case(CaseFlags),
    /// Compare two examinations of a path: the effect of a fix, and whether the prediction was met
    #[command(after_help = COMPARE_EXAMPLES)]
    Compare(CompareFlags),
    /// Run tests on nodes of perfSONAR, and read their archives
    Perfsonar(PerfsonarFlags),
    /// Show the paths that an agent of this host monitors: what holds now, open alarms, and changes
    #[command(after_help = HISTORY_EXAMPLES)]
    History(HistoryFlags),
}

/// Flags of `sterna doctor history`.
#[derive(Debug, Args)]
pub struct HistoryFlags {
    /// Agent at the other end of the path, as --monitor names it (default: all)
    #[arg(value_name = "sterna://HOST[:PORT]", value_parser = super::monitor::parse_peer)]
    pub peer: Option<RemoteLocation>,
    /// Age of the oldest change that is shown, such as 24h or 30d
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = parse_time)]
    pub since: Duration,
    /// Print JSON: an object with all paths, their changes and their rounds
    #[arg(long)]
    pub json: bool,
    /// Write a page with plots
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// State directory of the agent (default: sterna in $XDG_STATE_HOME, or ~/.local/state/sterna)
    #[arg(long, value_name = "DIR", env = "STERNA_STATE")]
    pub state: Option<PathBuf>,
}

/// Flags of `sterna doctor show`.
#[derive(Debug, Args)]
pub struct ShowFlags {
    /// Bundle that an examination wrote
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Refuse the bundle unless the key with this fingerprint signed it
    #[arg(long, value_name = "FINGERPRINT")]
    pub signer: Option<sterna_net::identity::Fingerprint>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print the flows and echoes in the form of pScheduler: a JSON object on each line, as an archive takes it
    #[arg(long, conflicts_with_all = ["json", "html", "svg"])]
    pub pscheduler: bool,
    /// Files of the report.
    #[command(flatten)]
    pub files: ReportFiles,
}

/// Flags of `sterna doctor compare`.
#[derive(Debug, Args)]
pub struct CompareFlags {
    /// Bundle of the examination before the fix
    #[arg(value_name = "BEFORE")]
    pub before: PathBuf,
    /// Bundle of the examination after it
    #[arg(value_name = "AFTER")]
    pub after: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Flags of `sterna doctor watch`.
#[derive(Debug, Args)]
pub struct DoctorWatchFlags {
    /// Process whose connections are watched, with its descendants (default: all)
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// Time to watch, such as 30s or 10min (default: until Ctrl-C)
    #[arg(long, value_name = "TIME", value_parser = super::duration::parse_time)]
    pub time: Option<Duration>,
    /// Smallest rate of a connection that is shown, such as 100kbit
    #[arg(long, value_name = "RATE", default_value = "1Mbit")]
    pub rate_min: BitRate,
    /// Print JSON: an object for each connection and second, and one with the verdicts at the end
    #[arg(long)]
    pub json: bool,
}

/// Flags of `sterna doctor host`.
#[derive(Debug, Args)]
pub struct HostFlags {
    /// Rate that each path shall carry over one connection, such as 10Gbit (default: what was measured)
    #[arg(long, value_name = "RATE")]
    pub rate: Option<BitRate>,
    /// Set the recommended values, after a question; the old ones are kept in the state directory
    #[arg(long)]
    pub apply: bool,
    /// Write the settings to FILE too, so that they last, such as /etc/sysctl.d/90-sterna.conf
    #[arg(long, value_name = "FILE", requires = "apply")]
    pub persist: Option<PathBuf>,
    /// Set the values again that were there before --apply
    #[arg(long, conflicts_with_all = ["apply", "rate"])]
    pub rollback: bool,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
    /// State directory, with the path cache and the old values
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Flags of `sterna doctor plan`.
#[derive(Debug, Args)]
pub struct PlanFlags {
    /// Rate of the slowest part of the path, such as 10Gbit or 500Mbit
    #[arg(long, value_name = "RATE")]
    pub rate: BitRate,
    /// Round-trip time, such as 148ms, 11.9ms or 0.5s
    #[arg(long, value_name = "TIME", value_parser = parse_rtt)]
    pub rtt: Duration,
    /// Part of the packets that the path loses at random, such as 1e-6 or 0.1%
    #[arg(long, value_name = "PART", default_value = "0", value_parser = parse_loss)]
    pub loss: f64,
    /// Version of the Linux kernel at both ends, such as 6.1 (default: that of this host)
    #[arg(long, value_name = "VERSION")]
    pub kernel: Option<KernelVersion>,
    /// Maximum size of a packet on the path, in bytes
    #[arg(long, value_name = "BYTES", default_value = "1500", value_parser = clap::value_parser!(u16).range(576..))]
    pub mtu: u16,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Reads `1e-6` or `0.1%`.
fn parse_loss(text: &str) -> Result<f64, String> {
    let (number, scale) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 0.01));
    let loss = number.parse::<f64>().map(|number| number * scale);
    loss.ok()
        .filter(|loss| (0.0..1.0).contains(loss))
        .ok_or_else(|| "expected a part of the packets from 0 to below 1, such as 1e-6 or 0.1%".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_as_engineers_write_them() {
        assert_eq!(parse_rtt("11.9ms"), Ok(Duration::from_micros(11_900)));
        assert_eq!(
            (parse_rtt("500us"), parse_rtt("0.66s")),
            (Ok(Duration::from_micros(500)), Ok(Duration::from_millis(660)))
        );
        for wrong in ["", "148", "ms", "-1ms", "1.2.3ms", "1e3ms", "0ms", "61s", "nan", "9us"] {
            assert!(parse_rtt(wrong).is_err(), "{wrong}");
        }
        assert_eq!((parse_loss("1e-6"), parse_loss("0.1%"), parse_loss("0")), (Ok(1e-6), Ok(0.001), Ok(0.0)));
        for wrong in ["", "1", "100%", "-0.1", "nan", "inf", "%"] {
            assert!(parse_loss(wrong).is_err(), "{wrong}");
        }
    }
}
