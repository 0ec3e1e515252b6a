//! Implementation of `sterna lab up|exec|down|run|profiles`; the binary only parses the flags.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use sterna_proto::error::ErrorKind;
use sterna_proto::{Error, Phase, Scope};

use crate::args::{HostArgs, PathArgs};
use crate::error::cannot;
use crate::lab::Lab;
use crate::profiles::PROFILES;
use crate::record::{self, Content, NAME_VARIABLE};
use crate::router::Counters;
use crate::sys;

/// Examples at the end of `lab --help`.
pub const EXAMPLES: &str = "Examples:
  sterna lab run --profile trollsat --loss 1% -- sh -c 'ping -c 3 $STERNA_LAB_B'
  sterna lab up --name x --rate 50Mbit --rtt 660ms
  sterna lab exec --name x b -- sterna agent --root /data --authorize-any
  sterna lab down --name x

Host a is where data comes from, host b where it goes to. STERNA_LAB_A and STERNA_LAB_B
hold their addresses for every command that runs on one of them. With a second network,
STERNA_LAB_A2 and STERNA_LAB_B2 hold the addresses in it. `sterna lab run --help` lists
what a path can do to packets: queues, policers, shapers, bursts, reordering and more.";

const RUN_EXAMPLES: &str = "Examples:
  sterna lab run --profile trollsat --loss 1% -- sh -c 'ping -c 3 $STERNA_LAB_B'
  sterna lab run --rate 1Gbit --rtt 260ms --loss 0.01% --buffers 512MB \\
      --counters counters.json -- sh push.sh

push.sh may start programs on the other host: sterna lab exec b -- CMD
With a second network, its addresses are STERNA_LAB_A2 and STERNA_LAB_B2.";

const UP_EXAMPLES: &str = "Examples:
  sterna lab up --name x --rate 50Mbit --rtt 660ms --loss 1% --buffers 512MB
  sterna lab up --name sack --profile tigo --sysctl-b net.ipv4.tcp_sack=0 --mss-clamp 1200
  sterna lab up --name dark --profile trollsat --outage 10s+5s/60s --counters counters.json";

const EXEC_EXAMPLES: &str = "Examples:
  sterna lab exec --name x b -- sterna agent --root /data --authorize-any
  sterna lab exec --name x a -- sh -c 'sterna copy --rate 50Mbit f sterna://$STERNA_LAB_B/'";

const DOWN_EXAMPLES: &str = "Examples:
  sterna lab down --name x";

const PROFILES_EXAMPLES: &str = "Examples:
  sterna lab profiles
  sterna lab run --profile trollsat -- sh -c 'ping -c 3 $STERNA_LAB_B'";

/// The sub-commands of `lab`.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum LabCommand {
    /// Run a command on host a while both hosts are up, and exit with the command's exit code
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// Bring up a lab in the background
    #[command(after_help = UP_EXAMPLES)]
    Up(UpArgs),
    /// Run a command on a host of a lab that is up
    #[command(after_help = EXEC_EXAMPLES)]
    Exec(ExecArgs),
    /// Take down a lab that is up
    #[command(after_help = DOWN_EXAMPLES)]
    Down(DownArgs),
    /// List the named paths and their sources
    #[command(after_help = PROFILES_EXAMPLES)]
    Profiles,
}

/// Flags of `lab run`.
#[derive(Clone, Debug, clap::Args)]
pub struct RunArgs {
    /// Flags of the path.
    #[command(flatten)]
    pub path: PathArgs,
    /// Flags of the hosts.
    #[command(flatten)]
    pub host: HostArgs,
    /// Write the packet counters of the path to FILE as JSON when the command ends
    #[arg(long, value_name = "FILE")]
    pub counters: Option<PathBuf>,
    /// Command to run on host a; `lab exec b -- …` inside it runs on host b. Addresses: STERNA_LAB_A, STERNA_LAB_B
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// Flags of `lab up`.
#[derive(Clone, Debug, clap::Args)]
pub struct UpArgs {
    /// Flags of the path.
    #[command(flatten)]
    pub path: PathArgs,
    /// Flags of the hosts.
    #[command(flatten)]
    pub host: HostArgs,
    /// Write the packet counters of the path to FILE as JSON when the lab goes down
    #[arg(long, value_name = "FILE")]
    pub counters: Option<PathBuf>,
}

/// Flags of `lab exec`.
#[derive(Clone, Debug, clap::Args)]
pub struct ExecArgs {
    /// Name of the lab [default: the lab of the calling command, or the only lab that is up]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Host to run the command on
    pub host: HostName,
    /// Command to run
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// Flags of `lab down`.
#[derive(Clone, Debug, clap::Args)]
pub struct DownArgs {
    /// Name of the lab [default: the only lab that is up]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
}

/// One of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum HostName {
    /// Source of the data.
    A,
    /// Destination of the data.
    B,
}

/// Executes the sub-command and returns the exit code of the process.
pub fn execute(command: &LabCommand) -> Result<u8, Error> {
    match command {
        LabCommand::Run(args) => run(args),
        LabCommand::Up(args) => up(args),
        LabCommand::Exec(args) => Err(exec(args)),
        LabCommand::Down(args) => down(args),
        LabCommand::Profiles => {
            print(&profiles())?;
            Ok(0)
        }
    }
}

/// Runs a command on host `a` of a new lab and returns the command's exit code (128 + N after signal N).
///
/// The terminal sends SIGINT to the command directly; this process forwards SIGTERM. In both cases the lab goes down
/// after the command ends.
pub fn run(args: &RunArgs) -> Result<u8, Error> {
    let lab = Lab::start(&args.path.model()?, &args.host.options())?;
    let mut command = lab.host_a().command(&args.command[0]);
    command.args(&args.command[1..]);
    sys::end_with_parent(&mut command);
    let name = args.command[0].display().to_string();
    let mut child = command.spawn().map_err(|e| cannot(&format!("run {name} in the lab"), e))?;
    let pid = rustix::process::Pid::from_child(&child);
    let mut signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM])
        .map_err(|e| cannot("wait for signals", e))?;
    let handle = signals.handle();
    let forwarder = std::thread::spawn(move || {
        for signal in signals.forever().filter(|signal| *signal == signal_hook::consts::SIGTERM) {
            // A command that has already ended needs no signal.
            let _ = rustix::process::Signal::from_named_raw(signal).map(|s| rustix::process::kill_process(pid, s));
        }
    });
    let status = child.wait().map_err(|e| cannot(&format!("wait for {name}"), e));
    handle.close();
    // The thread only forwards signals, so its result does not matter.
    drop(forwarder.join());
    let counters = lab.finish()?;
    write_counters(&counters, args.counters.as_deref())?;
    Ok(exit_code(status?))
}

/// Brings up a lab in a separate process and returns when the lab is ready.
///
/// The process is this program with the same arguments and [`ROUTER_VARIABLE`] set. The variable makes `up` keep the
/// lab.
pub fn up(args: &UpArgs) -> Result<u8, Error> {
    if std::env::var_os(ROUTER_VARIABLE).is_some() {
        return keep(args);
    }
    let mut child = Command::new("/proc/self/exe")
        .args(std::env::args_os().skip(1))
        .env(ROUTER_VARIABLE, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .process_group(0)
        .spawn()
        .map_err(|e| cannot("start the lab's process", e))?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).map_err(|e| cannot("read from the lab's process", e))?;
    }
    if line.is_empty() {
        // The process has already reported the error on stderr.
        return Ok(exit_code(child.wait().map_err(|e| cannot("wait for the lab's process", e))?));
    }
    print(&line)?;
    Ok(0)
}

/// Keeps a lab up until SIGTERM or SIGINT.
fn keep(args: &UpArgs) -> Result<u8, Error> {
    // Fails only for a process that already leads its session, which is the desired state.
    let _ = rustix::process::setsid();
    let mut signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM])
        .map_err(|e| cannot("wait for signals", e))?;
    let mut options = args.host.options();
    options.name.get_or_insert_with(|| DEFAULT_NAME.to_owned());
    let lab = Lab::start(&args.path.model()?, &options)?;
    print(&format!("lab {} is up: a {} b {}\n", lab.name(), lab.host_a().address(), lab.host_b().address()))?;
    // A reader of the output of `up` must see end of file although this process continues to run.
    let nowhere = std::fs::File::options().write(true).open("/dev/null").map_err(|e| cannot("open /dev/null", e))?;
    rustix::stdio::dup2_stdout(&nowhere)
        .and_then(|()| rustix::stdio::dup2_stderr(&nowhere))
        .map_err(|e| cannot("let go of the terminal", e.into()))?;
    signals.forever().next();
    let counters = lab.finish()?;
    write_counters(&counters, args.counters.as_deref())?;
    Ok(0)
}

/// Replaces this process by a command on a host of a running lab. Returns only on error.
pub fn exec(args: &ExecArgs) -> Error {
    let content = match find(args.name.as_deref()) {
        Ok(content) => content,
        Err(error) => return error,
    };
    // A command of `lab run` belongs to one lab, so no message is needed. Only the command writes output.
    if args.name.is_none() && std::env::var_os(NAME_VARIABLE).is_none() {
        tell(&format!("in lab {}, the only one that is up", content.name));
    }
    let path = content.namespace_path(args.host as usize);
    let namespace = match std::fs::File::open(&path) {
        Ok(namespace) => namespace,
        Err(error) => return cannot(&format!("enter a host of lab {} (are you root?)", content.name), error),
    };
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]).envs(content.environment);
    sys::start_inside(&mut command, std::os::fd::AsRawFd::as_raw_fd(&namespace));
    cannot(&format!("run {} in the lab", args.command[0].display()), command.exec())
}

/// Takes down a running lab and waits until it is gone.
pub fn down(args: &DownArgs) -> Result<u8, Error> {
    record::sweep();
    let content = find(args.name.as_deref())?;
    let pid = rustix::process::Pid::from_raw(content.pid as i32);
    if let Some(pid) = pid {
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .map_err(|e| cannot(&format!("end lab {}", content.name), e.into()))?;
    }
    for _ in 0..DOWN_ROUNDS {
        if !content.is_alive() {
            // The message names the lab: without `--name` the choice was automatic, and the lab may belong to another
            // user.
            tell(&format!("lab {} is down", content.name));
            return Ok(0);
        }
        std::thread::sleep(DOWN_ROUND);
    }
    let text = format!("lab {} (process {}) does not end; end it by hand", content.name, content.pid);
    Err(Error::new(ErrorKind::Busy, Scope::Client, Phase::Finalise, text))
}

/// Returns the list of profiles as text.
pub fn profiles() -> String {
    let mut text = String::new();
    for profile in PROFILES {
        let model = profile.model();
        let rtt_ms = model.rtt.as_secs_f64() * 1000.0;
        text.push_str(&format!("{:<16} {:>12} {rtt_ms:>7.1} ms", profile.name, model.forward.rate.to_string()));
        if model.forward.loss > 0.0 {
            text.push_str(&format!("  loss {} %", model.forward.loss * 100.0));
        }
        text.push_str(&format!("\n    {}\n", profile.source));
    }
    text
}

fn find(name: Option<&str>) -> Result<Content, Error> {
    let missing = |text: String| Error::new(ErrorKind::NotFound, Scope::Client, Phase::Prepare, text);
    let inside = std::env::var(NAME_VARIABLE).ok();
    let mut alive: Vec<Content> = record::all().into_iter().filter(Content::is_alive).collect();
    if let Some(name) = name.or(inside.as_deref()) {
        let position = alive.iter().position(|content| content.name == name);
        return position
            .map(|index| alive.swap_remove(index))
            .ok_or_else(|| missing(format!("no lab named {name} is up")));
    }
    match alive.len() {
        0 => Err(missing("no lab is up: start one with lab up".into())),
        1 => Ok(alive.swap_remove(0)),
        count => Err(missing(format!("{count} labs are up: select one with --name"))),
    }
}

fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    // Both values are below 256 on Linux.
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(70)
}

/// Writes the counters to `path`, if given. Stdout belongs to the lab's command.
fn write_counters(counters: &Counters, path: Option<&Path>) -> Result<(), Error> {
    let Some(path) = path else { return Ok(()) };
    let mut text = serde_json::to_string(counters).map_err(|e| cannot("write the lab's counters", e.into()))?;
    text.push('\n');
    std::fs::write(path, text).map_err(|e| cannot(&format!("write the lab's counters to {}", path.display()), e))
}

/// Writes a line to stderr. A write error is ignored, because the action itself is complete.
fn tell(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn print(text: &str) -> Result<(), Error> {
    let mut stdout = std::io::stdout();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(|e| cannot("write to stdout", e))
}

/// Environment variable of the process that keeps a lab for `up`.
const ROUTER_VARIABLE: &str = "STERNA_LAB_ROUTER";

/// Name of a lab that `up` starts without `--name`.
const DEFAULT_NAME: &str = "default";

/// A lab gives its programs two seconds to end; `down` waits five seconds.
const DOWN_ROUNDS: u32 = 100;
const DOWN_ROUND: std::time::Duration = std::time::Duration::from_millis(50);
