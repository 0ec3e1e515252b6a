//! `sterna doctor perfsonar`: tests on nodes of perfSONAR, and results of their archives.

use std::io::IsTerminal;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use sterna_doctor::perfsonar::history::History;
use sterna_doctor::perfsonar::judge::{self, Judgement, Known};
use sterna_doctor::perfsonar::result::TestResult;
use sterna_doctor::perfsonar::spec::{TestKind, TestPlan, TestSpec};
use sterna_net::engine::Cancel;
use sterna_net::identity::KnownHosts;
use sterna_net::perfsonar::{ArchiveQuery, Node, NodeTimes, NodeTrust, RunOutcome, RunProgress, read_archive};
use sterna_proto::file::plain;
use sterna_proto::quantity::readable_time;
use sterna_proto::web::WebLocation;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use super::tools::usage;
use crate::flags::{PerfsonarCommand, PerfsonarFlags, PerfsonarReadFlags, PerfsonarRunFlags, PerfsonarServerFlags};
use crate::jobs::table::json_of;
use crate::output::{print_line, say};
use crate::state;
use crate::trust::cancel_at_signal;

/// Time of a throughput test without `--time`. Reason: slow start of a long path ends within it.
const THROUGHPUT_TIME: Duration = Duration::from_secs(20);

/// Time of a test of round trips or delays without `--time`.
const PACKETS_TIME: Duration = Duration::from_secs(10);

/// Time beside the wait and the test itself: the start and the end of the tools, and of the results. Source: tools of
/// pScheduler add up to a minute to a test, and for a link of 660 ms some more.
const MARGIN: Duration = Duration::from_secs(120);

/// Report of a test for programs.
#[derive(Serialize)]
struct RunReport<'a> {
    target: String,
    task: &'a str,
    tool: Option<&'a str>,
    test: &'a Value,
    start: Option<&'a str>,
    participants: Option<&'a Value>,
    result: &'a TestResult,
    judgements: &'a [Judgement],
}

/// Report of an archive for programs.
#[derive(Serialize)]
struct ReadReport<'a> {
    target: String,
    source: &'a str,
    dest: &'a str,
    since_s: u64,
    #[serde(flatten)]
    history: &'a History,
}

/// Runs a command. Returns the exit code.
pub fn run(flags: &PerfsonarFlags) -> Result<u8, Error> {
    match &flags.command {
        PerfsonarCommand::Run(flags) => run_test(flags),
        PerfsonarCommand::Read(flags) => read(flags),
    }
}

fn run_test(flags: &PerfsonarRunFlags) -> Result<u8, Error> {
    let node = match &flags.node {
        Some(node) => node.clone(),
        None => node_of(&flags.source)?,
    };
    let spec = spec(flags, &node)?;
    let trust = trust(&node, &flags.server)?;
    let client = Node::new(&node, &trust, NodeTimes::default())?;
    let cancel = cancel()?;
    let tells = !flags.server.json && std::io::stderr().is_terminal();
    let task = spec.task(flags.wait);
    let outcome = client.run(&task, flags.wait + spec.time() + MARGIN, &cancel, |progress| {
        if tells {
            say(&words(&progress));
        }
    })?;
    remember(&node, &flags.server)?;
    let merged = outcome.run.get("result-merged").unwrap_or(&Value::Null);
    let spec_run = outcome.test.get("spec").unwrap_or(&Value::Null);
    let result = TestResult::read(spec.kind(), spec_run, merged).map_err(|why| {
        let text = format!("{}: {why}", outcome.task);
        Error::new(ErrorKind::Protocol, Scope::Service, Phase::Finalise, text).from_peer()
    })?;
    let known = Known { rate_max: flags.max_rate, rtt: flags.link_rtt };
    let judgements = judge::judge(&result, &known);
    if flags.server.json {
        let report = RunReport {
            target: node.to_string(),
            task: &outcome.task,
            tool: outcome.tool.as_deref(),
            test: &outcome.test,
            start: outcome.run.get("start-time").and_then(Value::as_str),
            participants: outcome.run.get("participants"),
            result: &result,
            judgements: &judgements,
        };
        print_line(json_of(&report)?.as_bytes())?;
        return Ok(0);
    }
    let lines = [vec![head(&spec, &outcome)], result.lines(), judge::lines(&judgements)].concat();
    // Names and errors come from the node.
    lines.iter().try_for_each(|line| print_line(plain(line).as_bytes()))?;
    Ok(0)
}

fn read(flags: &PerfsonarReadFlags) -> Result<u8, Error> {
    let (trust, cancel) = (trust(&flags.url, &flags.server)?, cancel()?);
    let kind = flags.test.kind();
    let query = ArchiveQuery {
        test: kind.name(),
        events: kind.events(),
        fields: kind.fields(),
        source: &flags.source,
        dest: &flags.dest,
        since_s: flags.since.as_secs(),
    };
    let reply = read_archive(&flags.url, &query, &trust, NodeTimes::default(), &cancel)?;
    remember(&flags.url, &flags.server)?;
    let history = History::new(kind, &reply);
    if flags.server.json {
        let report = ReadReport {
            target: flags.url.to_string(),
            source: &flags.source,
            dest: &flags.dest,
            since_s: flags.since.as_secs(),
            history: &history,
        };
        print_line(json_of(&report)?.as_bytes())?;
        return Ok(0);
    }
    let lines = history.lines(&flags.source, &flags.dest);
    lines.iter().try_for_each(|line| print_line(plain(line).as_bytes()))?;
    Ok(0)
}

fn cancel() -> Result<Cancel, Error> {
    let cancel = Cancel::default();
    cancel_at_signal(&cancel).map_err(|e| {
        Error::new(ErrorKind::Internal, Scope::Client, Phase::Prepare, "listen for signals").caused_by(e)
    })?;
    Ok(cancel)
}

/// Returns the node of pScheduler on a host.
fn node_of(host: &str) -> Result<WebLocation, Error> {
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    WebLocation::parse(&format!("https://{host}/"))
}

/// Returns the test of the flags. Errors: `Usage` for a flag that the test does not have.
fn spec(flags: &PerfsonarRunFlags, node: &WebLocation) -> Result<TestSpec, Error> {
    let kind = flags.test.kind();
    let of_throughput = flags.streams.is_some() || flags.max_rate.is_some() || flags.link_rtt.is_some();
    if kind != TestKind::Throughput && of_throughput {
        let text =
            format!("--streams, --max-rate and --link-rtt are for throughput tests, and not for {}", kind.name());
        return Err(usage(text));
    }
    let plan = match kind {
        TestKind::Throughput => TestPlan::Throughput {
            time: flags.time.unwrap_or(THROUGHPUT_TIME),
            streams: flags.streams.unwrap_or(1),
            rate_max: flags.max_rate,
            link_rtt: flags.link_rtt,
        },
        TestKind::Rtt => TestPlan::Rtt { time: flags.time.unwrap_or(PACKETS_TIME) },
        TestKind::Latency => TestPlan::Latency { time: flags.time.unwrap_or(PACKETS_TIME) },
        TestKind::Trace if flags.time.is_some() => {
            return Err(usage("--time is not for a trace: it ends at the destination".to_owned()));
        }
        TestKind::Trace => TestPlan::Trace,
    };
    let is_other = node.host() != sterna_proto::web::canonical_host(&flags.source);
    // The node is the first participant, whatever the source is called.
    let source_node = is_other.then(|| node.origin().split("://").last().unwrap_or_default().to_owned());
    let (source, dest) = (flags.source.clone(), flags.dest.clone());
    Ok(TestSpec { source, dest, source_node, dest_node: flags.dest_node.clone(), plan })
}

/// Returns the trust in a server: the given key, else the recorded ones, else authorities.
///
/// Errors: `Usage`: a proof is demanded of a server without TLS.
fn trust(server: &WebLocation, flags: &PerfsonarServerFlags) -> Result<NodeTrust, Error> {
    if !server.is_encrypted() && (flags.trust.is_some() || flags.http_ca.is_some()) {
        let text = "--trust and --http-ca need https://: a server at http:// proves nothing";
        return Err(super::tools::usage(text.to_owned()));
    }
    let keys = match flags.trust {
        Some(key) => vec![key],
        // The file of authorities decides, if it is given.
        None if flags.http_ca.is_some() || !server.is_encrypted() => Vec::new(),
        None => known(flags)?.keys(server.origin())?,
    };
    Ok(NodeTrust { authority: flags.http_ca.clone(), keys })
}

/// Records the key that the user gave, after the server has proven it.
fn remember(server: &WebLocation, flags: &PerfsonarServerFlags) -> Result<(), Error> {
    match flags.trust.filter(|_| server.is_encrypted()) {
        Some(key) => known(flags)?.add(server.origin(), &key),
        None => Ok(()),
    }
}

fn known(flags: &PerfsonarServerFlags) -> Result<KnownHosts, Error> {
    Ok(KnownHosts::new(&state::directory(flags.state.as_deref())?))
}

/// Returns the first line about a test.
fn head(spec: &TestSpec, outcome: &RunOutcome) -> String {
    let tool = outcome.tool.as_ref().map_or(String::new(), |tool| format!(" by {tool}"));
    let time = match spec.plan {
        TestPlan::Trace => String::new(),
        _ => format!(" for {}", readable_time(spec.time())),
    };
    let (source, dest, name) = (&spec.source, &spec.dest, spec.kind().name());
    format!("{source} to {dest}: {name}{time}{tool} ({})", outcome.task)
}

/// Returns a step of a task in words.
fn words(progress: &RunProgress) -> String {
    match progress {
        RunProgress::Accepted { task, tool } => {
            let tool = tool.as_ref().map_or(String::new(), |tool| format!(", by {tool}"));
            format!("accepted: {task}{tool}")
        }
        RunProgress::State { state, start } => {
            let start = start.as_ref().map_or(String::new(), |start| format!(" (start {start})"));
            format!("the run {}{start}", state.words())
        }
    }
}
