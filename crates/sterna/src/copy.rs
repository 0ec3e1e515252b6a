//! Runs `sterna copy`: turns flags into a copy specification, starts the copy, and shows its progress and result.
//!
//! Decides nothing about the transfer. Reads the clock, signals and the terminal; messages go to stderr, JSON and
//! digests to stdout.

use std::fs::File;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use sterna_net::engine::{
    CopyEvent, CopyFailure, CopyHandle, CopyProgress, CopySpec, CopySummary, Engine, MEMORY_DEFAULT, Next, PathOptions,
    ReplicaSummary, Trust, ViaChoice,
};
use sterna_net::identity::{Fingerprint, Identity};
use sterna_net::report::{self, Event, Reporter};
use sterna_net::session::SessionEvent;
use sterna_net::web::TokenSource;
use sterna_proto::compress::CompressionPolicy;
use sterna_proto::follow::EndRule;
use sterna_proto::location::HostPort;
use sterna_proto::plan::Via;
use sterna_proto::rate::{Fairness, RATE_LEAST, RateContract};
use sterna_proto::session::{FileOutcome, Overwrite, PATHS_MAX};
use sterna_proto::{Algorithm, ByteCount, Checks, Error, ErrorKind, Location, Phase, RelPath, Scope};

use crate::coalesce::{AlikeFailures, LanesDown};
use crate::flags::{CompressFlag, CopyFlags, Lanes, OverwriteFlag, worded, worded_event};
use crate::log::SampleLog;
use crate::output::{CopyOutput, print_line, say};
use crate::paths::PathFlag;
use crate::paths::ViaFlag;
use crate::progress::{Display, compression_ratio};
use crate::trust::{AskedTrust, cancel_at_signal};
use crate::{limits, plan, state};

/// Runs one copy and returns its exit code.
pub fn run(flags: &CopyFlags) -> Result<u8, Error> {
    let (options, identity, person) = prepare(flags).inspect_err(|error| {
        if flags.json {
            // A program that reads the output waits for a last line, even when the copy ends this early. Ignores a
            // closed pipe.
            let _ = print_line(report::line(&worded_event(Event::failure(error))).as_bytes());
        }
    })?;
    let outcome = start(options, identity, &person).and_then(|copy| follow_to_end(copy, &person));
    person.tell_rest();
    person.display.finish();
    match outcome {
        Ok(summary) => {
            person.summarise(&summary);
            Ok(person.code_with_output(exit_code(&summary)))
        }
        Err(CopyFailure { error, summary }) => {
            let error = with_remedy(with_fingerprint(error));
            if let Some(summary) = summary.filter(|summary| person.speaks() && summary.done > 0) {
                person.display.line(&summary_line(&summary, person.dry_run));
            }
            let end = worded_event(Event::failure(&error));
            person.write_log(|log| log.finish(&end, &[worded(&error)]));
            if person.output == Output::Json {
                person.print(report::line(&end).as_bytes());
            }
            Err(error)
        }
    }
}

/// Adds the fingerprint that an agent does not have in its authorized keys. It is alone on its line, so that the user
/// can paste it into a mail to the operator.
fn with_fingerprint(error: Error) -> Error {
    let Some(refused) = error.refused_key() else { return error };
    let text = format!("{}\nLine for the list of authorized keys:\n{}", error.text(), Fingerprint(refused));
    error.reworded(text)
}

/// Adds the next step to the error of a copy that the user stopped.
fn with_remedy(error: Error) -> Error {
    if error.kind != ErrorKind::Cancelled || error.phase != Phase::Transfer || error.is_from_peer() {
        return error;
    }
    error.reworded("the copy was stopped; run the same command again to resume it".to_owned())
}

/// Starts the copy. The path cache is in the state directory.
fn start(spec: CopySpec, identity: Identity, person: &Arc<ConsoleReporter>) -> Result<CopyHandle, CopyFailure> {
    let engine =
        Engine::new(identity, Arc::clone(&person.trust) as Arc<dyn Trust>).with_path_cache(person.state.clone());
    engine.start(spec).map_err(|error| CopyFailure { error, summary: None })
}

/// Shows events and progress until the copy ends.
fn follow_to_end(copy: CopyHandle, person: &ConsoleReporter) -> Result<CopySummary, CopyFailure> {
    let mut shown = Instant::now();
    loop {
        match copy.next(SHOWN_EVERY.saturating_sub(shown.elapsed())) {
            Next::Event(event) => person.event(&event),
            Next::Nothing => {}
            Next::Ended => break,
        }
        if shown.elapsed() >= SHOWN_EVERY {
            shown = Instant::now();
            copy.snapshot().iter().for_each(|progress| person.progress(progress));
        }
    }
    copy.snapshot().iter().for_each(|progress| person.progress(progress));
    copy.wait()
}

/// Time between two displays of progress. Reason: the engine takes snapshots at the same interval.
const SHOWN_EVERY: Duration = Duration::from_millis(50);

/// Prepares a copy before any data is sent. Returns the specification, the identity of this host, and the reporter.
fn prepare(flags: &CopyFlags) -> Result<(CopySpec, Identity, Arc<ConsoleReporter>), Error> {
    let options = options(flags)?;
    let is_between_agents = is_between_agents(&options);
    check_flags(flags, is_between_agents && !flags.same)?;
    let directory = state::directory(flags.state.as_deref())?;
    let identity = state::identity(flags.state.as_deref())?;
    cancel_at_signal(&options.cancel).map_err(|e| {
        Error::new(ErrorKind::Internal, Scope::Client, Phase::Prepare, "listen for signals").caused_by(e)
    })?;
    let log = flags.log.as_deref().map(|path| SampleLog::create(path, &options)).transpose()?;
    let stdout = CopyOutput::new(std::io::stdout(), &options.cancel)
        .map_err(|e| this_host("prepare standard output").caused_by(e))?;
    let person = Arc::new(ConsoleReporter {
        log: Mutex::new(log),
        stdout,
        trust: Arc::new(AskedTrust::new(&directory, flags.trust.clone(), is_between_agents || flags.same)),
        agent: agent_of(&options).filter(|_| !is_between_agents),
        state: directory,
        output: match (flags.json, flags.quiet) {
            (true, _) => Output::Json,
            (false, true) => Output::Quiet,
            (false, false) => Output::Words,
        },
        verbose: flags.verbose,
        dry_run: options.dry_run,
        reporter: Reporter::new(&options),
        explain: flags.explain,
        checksums: flags.checksum.clone(),
        // A dry run has no progress to draw; it names each file instead.
        display: Display::new(
            !flags.json && !flags.quiet && !flags.dry_run && !flags.explain && std::io::stderr().is_terminal(),
        ),
        untold: Mutex::default(),
        lost: Mutex::default(),
    });
    Ok((options, identity, person))
}

/// Returns 0, or 1 if some files failed. If no file was copied or up to date, returns the code of the first failure.
fn exit_code(summary: &CopySummary) -> u8 {
    match (summary.failed, summary.done + summary.skipped, summary.failures.first()) {
        (0, _, _) => 0,
        (_, 0, Some(first)) => first.exit_code(),
        _ => 1,
    }
}

/// Builds the contract for the rate of a path from the flags. Errors: `Usage`.
fn contract(flags: &CopyFlags) -> Result<RateContract, Error> {
    let ceiling = flags.rate.or(flags.rate_max);
    if let (Some(least), Some(most)) = (flags.rate_min, ceiling)
        && least > most
    {
        let text = format!("--rate-min {least} is above the maximum rate, {most}: give a lower one");
        return Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text));
    }
    Ok(RateContract {
        ceiling,
        minimum: flags.rate_min,
        target: flags.rate,
        loss_ceiling_ppm: flags.loss_ceiling.0,
        fairness: if flags.polite { Fairness::Scavenger } else { Fairness::Fair },
        ..RateContract::default()
    })
}

/// Returns the paths of `--path`, or one path with the values of the other flags. Errors: `Usage`.
fn paths(flags: &CopyFlags) -> Result<Vec<PathOptions>, Error> {
    let usage = |text: String| Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text));
    let lanes = match flags.lanes {
        Lanes::Auto => None,
        Lanes::Count(count) => Some(count),
    };
    let contract = contract(flags)?;
    let only = PathOptions { via: via(flags.via), lanes, contract, ..PathOptions::default() };
    if flags.paths.is_empty() {
        check_contract(&only)?;
        return Ok(vec![only]);
    }
    if flags.paths.len() > usize::from(PATHS_MAX) {
        return usage(format!("{} paths: at most {PATHS_MAX} are used together", flags.paths.len()));
    }
    if flags.paths.iter().all(|path| path.standby) {
        return usage("every --path is a standby path: at least one must not be a standby path".to_owned());
    }
    let path = |flag: &PathFlag| PathOptions {
        local: flag.local,
        remote: flag.remote.clone(),
        via: flag.via.map_or(only.via, via),
        lanes: flag.lanes.or(only.lanes),
        contract: RateContract { ceiling: flag.rate.or(flag.rate_max), target: flag.rate, ..contract },
        standby: flag.standby,
    };
    let paths: Vec<PathOptions> = flags.paths.iter().map(path).collect();
    paths.iter().try_for_each(check_contract)?;
    Ok(paths)
}

/// Checks that the requested transport can keep the contract. Errors: `Usage`.
fn check_contract(path: &PathOptions) -> Result<(), Error> {
    let contract = &path.contract;
    if let Some(rate) = contract.ceiling.filter(|rate| *rate < RATE_LEAST) {
        let text =
            format!("the rate {rate} is too low: sterna sends at least {RATE_LEAST}, to detect whether the path is up");
        return Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text));
    }
    let what = match () {
        () if path.via != ViaChoice::Only(Via::Tcp) => return Ok(()),
        () if contract.fairness == Fairness::Scavenger => "--polite",
        () if contract.minimum.is_some() => "--rate-min",
        () if contract.loss_ceiling_ppm != RateContract::default().loss_ceiling_ppm => "--loss-ceiling",
        () => return Ok(()),
    };
    let text = format!(
        "{what} works over QUIC only, and --via tcp selects TCP, whose rate the kernel controls: leave out one of them"
    );
    Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text))
}

fn via(flag: ViaFlag) -> ViaChoice {
    match flag {
        ViaFlag::Auto => ViaChoice::Auto,
        ViaFlag::Tcp => ViaChoice::Only(Via::Tcp),
        ViaFlag::Quic => ViaChoice::Only(Via::Quic),
    }
}

fn options(flags: &CopyFlags) -> Result<CopySpec, Error> {
    let locations = flags.locations.iter().map(|text| Location::parse(text)).collect::<Result<Vec<_>, _>>();
    let mut sources = locations?;
    let destination = sources.pop().filter(|_| !sources.is_empty()).ok_or_else(|| {
        let text = "nothing to copy: give a source, and last the destination";
        Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text)
    })?;
    let several = sources.len() > 1 && !flags.same;
    if flags.expect.is_some() && several {
        let text = "--expect names the digest of one file: give one source";
        return Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text));
    }
    let wanted = flags.checksum.iter().copied().chain(flags.expect.map(|digest| digest.algorithm()));
    Ok(CopySpec {
        paths: paths(flags)?,
        congestion: flags.congestion.clone(),
        compress: match flags.compress {
            CompressFlag::Auto => CompressionPolicy::Auto,
            CompressFlag::Never => CompressionPolicy::Never,
            CompressFlag::Always => CompressionPolicy::Always,
        },
        overwrite: match flags.overwrite {
            OverwriteFlag::Never => Overwrite::Never,
            OverwriteFlag::Always => Overwrite::Always,
            OverwriteFlag::IfChanged => Overwrite::IfChanged,
        },
        checks: wanted.collect::<Checks>(),
        expect: flags.expect,
        memory: flags.memory,
        dry_run: flags.dry_run || flags.explain,
        linger: flags.linger,
        web_token: match (&flags.http_token_file, &flags.http_token_command) {
            (Some(file), _) => Some(TokenSource::File(file.clone())),
            (None, Some(command)) => Some(TokenSource::Command(command.clone())),
            (None, None) => None,
        },
        web_authority: flags.http_ca.clone(),
        follow: flags.follow.map(|idle| idle.map_or(EndRule::DEFAULT, EndRule::after)),
        disposition: flags.then.clone(),
        same: flags.same,
        recording: flags.record_samples.as_deref().map(recording).transpose()?,
        ..CopySpec::new(sources, destination)
    })
}

/// Creates the file of `--record-samples`.
fn recording(path: &Path) -> Result<Arc<File>, Error> {
    File::create(path).map(Arc::new).map_err(|e| {
        let text = format!("write the recording {}", path.display());
        Error::new(ErrorKind::Io, Scope::Client, Phase::Prepare, text).caused_by(e)
    })
}

/// Returns true if the destination and at least one source are at agents.
fn is_between_agents(options: &CopySpec) -> bool {
    let is_remote = |location: &Location| matches!(location, Location::Remote(_));
    is_remote(&options.destination) && options.sources.iter().any(is_remote)
}

/// Returns the first agent of a copy.
fn agent_of(options: &CopySpec) -> Option<HostPort> {
    std::iter::once(&options.destination).chain(&options.sources).find_map(|location| match location {
        Location::Remote(remote) => Some(remote.host_port()),
        _ => None,
    })
}

/// Checks that the flags fit the ends of the copy. Some flags apply to this host only, and a third-party copy moves no
/// data through this host. Errors: `Usage`.
fn check_flags(flags: &CopyFlags, is_between_agents: bool) -> Result<(), Error> {
    let text = if flags.same && flags.log.is_some() {
        "--log samples the connections to one agent and cannot be used with --same; --json reports the progress"
    } else if !is_between_agents && !flags.same && flags.trust.len() > 1 {
        "--trust was given more than once, and this copy has one agent: give the fingerprint of that agent only"
    } else if !is_between_agents {
        return Ok(());
    } else if flags.log.is_some() {
        "--log samples the connections of this host, and this copy has its connections between the two agents: leave it out; \
         --json reports the progress"
    } else if flags.memory != MEMORY_DEFAULT {
        "--memory applies to this host, and the data of this copy does not pass through it: leave it out"
    } else if flags.trust.len() > 2 {
        "--trust was given more than twice, and a copy has at most two agents: give one fingerprint for each"
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Output {
    Words,
    Json,
    Quiet,
}

/// Console reporter: shows a copy to the user at the terminal, or to the program that reads the JSON.
struct ConsoleReporter {
    trust: Arc<AskedTrust>,
    state: PathBuf,
    /// Agent at the other end of the copy, if there is one.
    agent: Option<HostPort>,
    output: Output,
    verbose: bool,
    dry_run: bool,
    reporter: Reporter,
    explain: bool,
    checksums: Vec<Algorithm>,
    display: Display,
    untold: Mutex<Untold>,
    /// Log of `--log`; `None` without the flag, or after a write failed.
    log: Mutex<Option<SampleLog>>,
    stdout: CopyOutput,
    /// First error of standard output or of the log, if any.
    lost: Mutex<Option<Error>>,
}

/// Messages that wait to be combined with similar ones.
#[derive(Default)]
struct Untold {
    lanes_down: LanesDown,
    failures: AlikeFailures,
}

impl ConsoleReporter {
    fn event(&self, event: &CopyEvent) {
        if self.output == Output::Json {
            if let Some(event) = self.reporter.event(event) {
                self.print(report::line(&worded_event(event)).as_bytes());
            }
            return;
        }
        self.tell(event);
        self.print_checksums(event);
    }

    fn progress(&self, progress: &CopyProgress) {
        let due = self.untold().lanes_down.poll_lines(Instant::now());
        due.iter().for_each(|line| self.display.line(line));
        self.display.show(progress);
        self.write_log(|log| log.add(progress));
        if self.output == Output::Json && self.display.json_due() {
            self.print(report::line(&self.reporter.progress(progress)).as_bytes());
        }
    }
}

impl ConsoleReporter {
    /// Prints the message of an event at once, keeps it to combine it with others, or drops it.
    fn tell(&self, event: &CopyEvent) {
        let mut lines = Vec::new();
        let mut untold = self.untold();
        match event {
            CopyEvent::LaneDown { lane, reason, again: true } if self.speaks() => {
                untold.lanes_down.handle_down(*lane, reason, Instant::now());
            }
            CopyEvent::LaneUp { .. } if self.verbose => lines = untold.lanes_down.take_lines(),
            CopyEvent::Restarted => {
                lines = untold.lanes_down.take_lines();
                // The restarted session retries failed files.
                untold.failures = AlikeFailures::default();
            }
            _ => {}
        }
        if let Some(line) = self.words(event)
            && failure_of(event).is_none_or(|error| untold.failures.handle_failure(error, &line) || self.verbose)
        {
            lines.push(line);
        }
        drop(untold);
        lines.iter().for_each(|line| self.display.line(line));
    }

    /// Prints the messages that still wait to be combined, after the end of the copy.
    fn tell_rest(&self) {
        let Untold { mut lanes_down, mut failures } = std::mem::take(&mut *self.untold());
        let failures = if self.verbose { Vec::new() } else { failures.take_lines() };
        lanes_down.take_lines().iter().chain(&failures).for_each(|line| self.display.line(line));
    }

    fn untold(&self) -> MutexGuard<'_, Untold> {
        self.untold.lock()
    }

    /// Returns the line that an event prints at once, if any.
    fn words(&self, event: &CopyEvent) -> Option<String> {
        match event {
            CopyEvent::Session(SessionEvent::Settled { entry, outcome: FileOutcome::Failed(error) }) => {
                Some(format!("{}: {}", entry.path, worded(error)))
            }
            CopyEvent::Session(SessionEvent::Settled { entry, outcome: FileOutcome::Skipped }) => {
                self.names_files().then(|| format!("up to date  {}", entry.path))
            }
            CopyEvent::Session(SessionEvent::Settled { entry, .. }) => self.names_files().then(|| {
                let verb = if self.dry_run { "would copy " } else { "copied     " };
                format!("{verb} {} ({})", entry.path, ByteCount(entry.size))
            }),
            CopyEvent::Session(SessionEvent::Notice(text)) => Some(text.clone()),
            CopyEvent::Session(SessionEvent::Unreadable(error) | SessionEvent::Left(error)) => Some(worded(error)),
            // Printed at the end.
            CopyEvent::Session(SessionEvent::Aborted(_)) => None,
            CopyEvent::Restarted => Some("the agent was restarted; going on from its journal".to_owned()),
            // Combined with other lanes that go down at the same time.
            CopyEvent::LaneDown { .. } => None,
            CopyEvent::LaneUp { lane, transport, peer, .. } => {
                self.verbose.then(|| format!("lane {lane} is up: {transport} to {peer}"))
            }
            CopyEvent::Decision { subject, rationale }
            | CopyEvent::Session(SessionEvent::Decision { subject, rationale }) => {
                (self.verbose || self.explain).then(|| format!("{subject}: {rationale}"))
            }
        }
    }

    fn speaks(&self) -> bool {
        self.output == Output::Words
    }

    fn names_files(&self) -> bool {
        self.speaks() && (self.verbose || self.dry_run && !self.explain)
    }

    /// Prints the digests of `--checksum`, one line each, in the format of `sha256sum` and similar tools.
    fn print_checksums(&self, event: &CopyEvent) {
        let CopyEvent::Session(SessionEvent::Settled { entry, outcome: FileOutcome::Done(digests) }) = event else {
            return;
        };
        if self.dry_run || entry.kind == sterna_proto::EntryKind::Directory {
            return;
        }
        let shown = match std::io::stdout().is_terminal() {
            true => Shown::ToPeople,
            false => Shown::ToPrograms,
        };
        for digest in self.checksums.iter().filter_map(|algorithm| digests.digest(*algorithm)) {
            let line = checksum_line(&digest.hex(), &entry.path, shown);
            self.display.suspend(|| self.print(&line));
        }
    }

    /// Writes a line of output; continues the copy if that fails. Reports the first failure of output or log only.
    fn print(&self, line: &[u8]) {
        let Err(error) = self.stdout.print_line(line) else { return };
        let mut lost = self.lost.lock();
        if lost.is_none() {
            say(&format!("{}; the copy goes on", error.chain()));
            *lost = Some(error);
        }
    }

    /// Returns the exit code of the copy: `code`, or the code of lost output if `code` is 0. A reader that closed the
    /// pipe is no failure.
    fn code_with_output(&self, code: u8) -> u8 {
        let lost = self.lost.lock();
        let failed = lost.as_ref().filter(|error| !is_broken_pipe(error));
        failed.filter(|_| code == 0).map_or(code, Error::exit_code)
    }

    /// Writes to the log, if there is one. Closes the log at the first failure and reports the failure once.
    fn write_log(&self, write: impl FnOnce(&mut SampleLog) -> Result<(), Error>) {
        let mut log = self.log.lock();
        if let Some(Err(error)) = log.as_mut().map(write) {
            *log = None;
            self.display.line(&format!("{}; the copy itself is not affected", error.chain()));
            self.lost.lock().get_or_insert(error);
        }
    }

    /// Returns the last lines: what was copied, and what limited the copy.
    fn ending(&self, summary: &CopySummary) -> Vec<String> {
        // Without transferred data there is no limit.
        let limits = if self.dry_run || summary.bytes == 0 { None } else { limits::line(&summary.limits) };
        let plan = if self.explain { plan::lines(summary) } else { Vec::new() };
        let replicas = if self.dry_run { Vec::new() } else { replica_lines(summary) };
        let doctor = limits.as_ref().and(self.agent.as_ref());
        let doctor = doctor.and_then(|agent| limits::doctor_line(&summary.limits, agent));
        let first = std::iter::once(summary_line(summary, self.dry_run));
        first.chain(replicas).chain(limits).chain(plan).chain(doctor).collect()
    }

    fn summarise(&self, summary: &CopySummary) {
        let end = self.reporter.summary(summary);
        match self.output {
            Output::Json => self.print(report::line(&end).as_bytes()),
            Output::Quiet => {}
            Output::Words => self.ending(summary).iter().for_each(|line| say(line)),
        }
        self.write_log(|log| log.finish(&end, &self.ending(summary)));
    }
}

/// Returns true if output was lost because the reader closed the pipe, as `head` does.
fn is_broken_pipe(error: &Error) -> bool {
    use std::error::Error as _;
    let cause = error.source().and_then(|cause| cause.downcast_ref::<std::io::Error>());
    cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
}

fn this_host(text: &str) -> Error {
    Error::new(ErrorKind::Io, Scope::Client, Phase::Prepare, text)
}

/// Returns the error of an event about one failed file or source, if it is one.
fn failure_of(event: &CopyEvent) -> Option<&Error> {
    match event {
        CopyEvent::Session(SessionEvent::Settled { outcome: FileOutcome::Failed(error), .. })
        | CopyEvent::Session(SessionEvent::Unreadable(error) | SessionEvent::Left(error)) => Some(error),
        _ => None,
    }
}

/// Reader of a line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    /// User at a terminal. Control characters of a name are escaped, because the terminal would obey them.
    ToPeople,
    /// Program, which needs every byte of a name.
    ToPrograms,
}

/// Returns a line of `--checksum` in the format that `sha256sum` and similar tools write, and read with `-c`. Line
/// breaks and backslashes of a name are escaped; such a line begins with a backslash.
fn checksum_line(hex: &str, path: &RelPath, shown: Shown) -> Vec<u8> {
    if shown == Shown::ToPeople {
        return format!("{hex}  {path}").into_bytes();
    }
    let mut name = Vec::with_capacity(path.as_bytes().len());
    for &byte in path.as_bytes() {
        match byte {
            b'\\' => name.extend_from_slice(b"\\\\"),
            b'\n' => name.extend_from_slice(b"\\n"),
            b'\r' => name.extend_from_slice(b"\\r"),
            _ => name.push(byte),
        }
    }
    let mark: &[u8] = if name.len() > path.as_bytes().len() { b"\\" } else { b"" };
    [mark, hex.as_bytes(), b"  ", &name].concat()
}

/// Returns one line per replica with the number of bytes from it; no line if there were no replicas.
fn replica_lines(summary: &CopySummary) -> Vec<String> {
    let line = |replica: &ReplicaSummary| {
        let ReplicaSummary { source, bytes, dropped } = replica;
        let why = dropped.as_ref().map_or(String::new(), |why| format!(", not used to the end: {why}"));
        format!("  {} from {source}{why}", ByteCount(*bytes))
    };
    summary.replicas.iter().map(line).collect()
}

fn summary_line(summary: &CopySummary, dry_run: bool) -> String {
    let files = |count: u64| if count == 1 { "1 file".to_owned() } else { format!("{count} files") };
    let mut line = match (dry_run, summary.done) {
        (true, 0) => "would copy nothing".to_owned(),
        (false, 0) if summary.failed == 0 => "nothing to copy".to_owned(),
        (false, 0) => "copied nothing".to_owned(),
        (true, _) => format!("would copy {}, {}", files(summary.done), ByteCount(summary.bytes)),
        (false, _) => format!(
            "copied {}, {} in {:.1} s ({} goodput)",
            files(summary.done),
            ByteCount(summary.bytes),
            summary.elapsed.as_secs_f64(),
            summary.goodput(),
        ),
    };
    if summary.counters.bytes_held > 0 && !dry_run {
        line.push_str(&format!(", {} of them from an earlier run", ByteCount(summary.counters.bytes_held)));
    }
    if summary.counters.bytes_holes > 0 && !dry_run {
        line.push_str(&format!(", {} of them holes", ByteCount(summary.counters.bytes_holes)));
    }
    if let Some(ratio) =
        compression_ratio(summary.counters.bytes_carried, summary.counters.bytes_encoded).filter(|_| !dry_run)
    {
        line.push_str(&format!(", compressed {ratio:.1} : 1"));
    }
    if summary.skipped > 0 {
        let size = if dry_run { format!(" ({})", ByteCount(summary.bytes_skipped)) } else { String::new() };
        line.push_str(&format!(", {} up to date{size}", files(summary.skipped)));
    }
    match summary.failed.saturating_sub(summary.left) {
        0 => {}
        failed => line.push_str(&format!(", {} failed", files(failed))),
    }
    // The files of these sources have arrived, so they do not count as failed.
    if summary.left > 0 {
        let sources = if summary.left == 1 { "source" } else { "sources" };
        line.push_str(&format!(", {} {sources} could not be deleted or moved", summary.left));
    }
    if summary.counters.blocks_again > 0 {
        line.push_str(&format!(", {} blocks sent again", summary.counters.blocks_again));
    }
    line
}

#[cfg(test)]
mod tests {
    use sterna_proto::Counters;

    use super::*;

    fn line(name: &[u8], shown: Shown) -> Vec<u8> {
        checksum_line("00ff", &RelPath::new(name).unwrap(), shown)
    }

    #[test]
    fn checksum_lines_are_those_of_sha256sum() {
        // Output of GNU coreutils 9.
        let cases: &[(&[u8], &[u8])] = &[
            (b"a/b c", b"00ff  a/b c"),
            (b"new\nline", b"\\00ff  new\\nline"),
            (b"car\rriage", b"\\00ff  car\\rriage"),
            (b"back\\slash", b"\\00ff  back\\\\slash"),
            (b"\xff\x1b", b"00ff  \xff\x1b"),
        ];
        for (name, expected) in cases {
            assert_eq!(line(name, Shown::ToPrograms), *expected, "{}", name.escape_ascii());
        }
        assert_eq!(line("a\u{202e}b\x1b".as_bytes(), Shown::ToPeople), b"00ff  a\\u{202e}b\\u{1b}");
    }

    #[test]
    fn the_summary_reads_well_whatever_happened() {
        let said = |done, skipped, failed, dry_run| {
            let (bytes, bytes_skipped) = (done * 1000, skipped * 500);
            let summary = CopySummary { done, skipped, failed, bytes, bytes_skipped, ..CopySummary::default() };
            summary_line(&summary, dry_run)
        };
        assert_eq!(said(0, 4, 0, false), "nothing to copy, 4 files up to date");
        assert_eq!(said(0, 4, 0, true), "would copy nothing, 4 files up to date (2.00 kB)");
        assert_eq!(said(1, 0, 0, true), "would copy 1 file, 1.00 kB");
        assert_eq!(said(0, 1, 2, false), "copied nothing, 1 file up to date, 2 files failed");
        let left = CopySummary { done: 3, failed: 2, left: 1, ..CopySummary::default() };
        let line = summary_line(&left, false);
        assert!(line.ends_with(", 1 file failed, 1 source could not be deleted or moved"), "{line}");
        let counters = Counters { bytes_carried: 9000, bytes_encoded: 4286, ..Counters::default() };
        let dense = CopySummary { done: 1, bytes: 9000, counters, ..CopySummary::default() };
        assert!(summary_line(&dense, false).ends_with(" goodput), compressed 2.1 : 1"));
        let counters = Counters { bytes_holes: 8000, ..Counters::default() };
        let sparse = CopySummary { done: 1, bytes: 9000, counters, ..CopySummary::default() };
        assert!(summary_line(&sparse, false).ends_with(" goodput), 8.00 kB of them holes"));
        assert!(said(2, 1, 0, false).starts_with("copied 2 files, 2.00 kB in 0.0 s"), "{}", said(2, 1, 0, false));
    }
}
