//! What `sterna lab up|exec|down|run|profiles` do; the binary only reads the flags.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use sterna_proto::error::ErrorKind;
use sterna_proto::{Error, Phase, Scope};

use crate::args::{HostArgs, PathArgs};
use crate::lab::{Lab, cannot};
use crate::profiles::PROFILES;
use crate::record::{self, Content, NAME_VARIABLE};
use crate::router::Counters;
use crate::sys;

/// What the help of `lab` ends with.
pub const EXAMPLES: &str = "Examples:
  sterna lab run --profile trollsat --loss 1% -- sh -c 'ping -c 3 $STERNA_LAB_B'
  sterna lab up --name x --rate 50Mbit --rtt 660ms
  sterna lab exec --name x b -- sterna agent --root /data --authorize-any
  sterna lab down --name x

Host a is where data comes from, host b where it goes to. STERNA_LAB_A and STERNA_LAB_B
hold their addresses for every command that runs on one of them. `sterna lab run --help`
lists what a path can do to packets: queues, policers, bursts, reordering and more.";

const RUN_EXAMPLES: &str = "Examples:
  sterna lab run --profile trollsat --loss 1% -- sh -c 'ping -c 3 $STERNA_LAB_B'
  sterna lab run --rate 1Gbit --rtt 260ms --loss 0.01% --buffers 512MB \\
      --counters counters.json -- sh push.sh

push.sh may start programs on the other host: sterna lab exec b -- CMD";

const UP_EXAMPLES: &str = "Examples:
  sterna lab up --name x --rate 50Mbit --rtt 660ms --loss 1% --buffers 512MB
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
    /// Run a command on host a, with both hosts up, and end with its exit code
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
    /// List the paths that have a name, with their source
    #[command(after_help = PROFILES_EXAMPLES)]
    Profiles,
}

/// Flags of `lab run`.
#[derive(Clone, Debug, clap::Args)]
pub struct RunArgs {
    /// The path.
    #[command(flatten)]
    pub path: PathArgs,
    /// The hosts.
    #[command(flatten)]
    pub host: HostArgs,
    /// Write what the path did to the packets here as JSON when the command ends
    #[arg(long, value_name = "FILE")]
    pub counters: Option<PathBuf>,
    /// The command; STERNA_LAB_A and STERNA_LAB_B hold the addresses, `lab exec b -- …` inside it works on host b
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// Flags of `lab up`.
#[derive(Clone, Debug, clap::Args)]
pub struct UpArgs {
    /// The path.
    #[command(flatten)]
    pub path: PathArgs,
    /// The hosts.
    #[command(flatten)]
    pub host: HostArgs,
    /// Write what the path did to the packets here as JSON when the lab goes down
    #[arg(long, value_name = "FILE")]
    pub counters: Option<PathBuf>,
}

/// Flags of `lab exec`.
#[derive(Clone, Debug, clap::Args)]
pub struct ExecArgs {
    /// Name of the lab [default: the one this runs in, or the only one that is up]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// The host
    pub host: HostName,
    /// The command
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// Flags of `lab down`.
#[derive(Clone, Debug, clap::Args)]
pub struct DownArgs {
    /// Name of the lab [default: the only one that is up]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
}

/// One of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum HostName {
    /// Where data comes from.
    A,
    /// Where data goes to.
    B,
}

/// Does what the sub-command says and returns the exit code for the process.
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

/// Runs a command on host `a` of a lab of its own; returns the command's exit code (128 + N after signal N).
///
/// An interrupt from the terminal reaches the command by itself; SIGTERM is handed on to it. Either way the lab is taken
/// down after the command has ended.
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
            // A command that has ended already is as good.
            let _ = rustix::process::Signal::from_named_raw(signal).map(|s| rustix::process::kill_process(pid, s));
        }
    });
    let status = child.wait().map_err(|e| cannot(&format!("wait for {name}"), e));
    handle.close();
    // The thread only forwards signals; what it might say of itself changes nothing.
    drop(forwarder.join());
    let counters = lab.finish()?;
    write_counters(&counters, args.counters.as_deref())?;
    Ok(exit_code(status?))
}

/// Brings up a lab in a process of its own and returns when it is ready.
///
/// The process is this very program with the same arguments and [`ROUTER_VARIABLE`] set, which makes `up` keep the lab.
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
        BufReader::new(stdout).read_line(&mut line).map_err(|e| cannot("hear from the lab's process", e))?;
    }
    if line.is_empty() {
        // It has said on stderr what is wrong.
        return Ok(exit_code(child.wait().map_err(|e| cannot("wait for the lab's process", e))?));
    }
    print(&line)?;
    Ok(0)
}

/// Keeps a lab until SIGTERM or SIGINT.
fn keep(args: &UpArgs) -> Result<u8, Error> {
    // Fails only for a process that leads its session already, which is what we want.
    let _ = rustix::process::setsid();
    let mut signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM])
        .map_err(|e| cannot("wait for signals", e))?;
    let mut options = args.host.options();
    options.name.get_or_insert_with(|| DEFAULT_NAME.to_owned());
    let lab = Lab::start(&args.path.model()?, &options)?;
    print(&format!("lab {} is up: a {} b {}\n", lab.name(), lab.host_a().address(), lab.host_b().address()))?;
    // Whoever reads what `up` prints must see its end although this process lives on.
    let nowhere = std::fs::File::options().write(true).open("/dev/null").map_err(|e| cannot("open /dev/null", e))?;
    rustix::stdio::dup2_stdout(&nowhere)
        .and_then(|()| rustix::stdio::dup2_stderr(&nowhere))
        .map_err(|e| cannot("let go of the terminal", e.into()))?;
    signals.forever().next();
    let counters = lab.finish()?;
    write_counters(&counters, args.counters.as_deref())?;
    Ok(0)
}

/// Replaces this process by a command on a host of a lab that is up; returns only what went wrong.
pub fn exec(args: &ExecArgs) -> Error {
    let content = match find(args.name.as_deref()) {
        Ok(content) => content,
        Err(error) => return error,
    };
    // Within the lab of `lab run` it is clear which one is meant, and the output is that of the command alone.
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

/// Takes down a lab that is up and waits until it is gone.
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
            // By its name, which may have been given by nobody: it is the only one that was up, and may be somebody else's.
            tell(&format!("lab {} is down", content.name));
            return Ok(0);
        }
        std::thread::sleep(DOWN_ROUND);
    }
    let text = format!("lab {} (process {}) does not end; end it by hand", content.name, content.pid);
    Err(Error::new(ErrorKind::Busy, Scope::Client, Phase::Finalise, text))
}

/// The profiles as text.
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
        count => Err(missing(format!("{count} labs are up: say which one with --name"))),
    }
}

fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    // Both are below 256 on Linux.
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(70)
}

/// Writes the counters where they are wanted. Only there: the output of the lab's command is for whoever reads that.
fn write_counters(counters: &Counters, path: Option<&Path>) -> Result<(), Error> {
    let Some(path) = path else { return Ok(()) };
    let mut text = serde_json::to_string(counters).map_err(|e| cannot("write the lab's counters", e.into()))?;
    text.push('\n');
    std::fs::write(path, text).map_err(|e| cannot(&format!("write the lab's counters to {}", path.display()), e))
}

/// Says a line on stderr; when nobody can read it, what was done is done all the same.
fn tell(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn print(text: &str) -> Result<(), Error> {
    let mut stdout = std::io::stdout();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(|e| cannot("write to stdout", e))
}

/// Set for the process that keeps a lab which `up` started.
const ROUTER_VARIABLE: &str = "STERNA_LAB_ROUTER";

/// Name of a lab that `up` was given none for.
const DEFAULT_NAME: &str = "default";

/// A lab gives the programs inside two seconds to end; `down` waits for five.
const DOWN_ROUNDS: u32 = 100;
const DOWN_ROUND: std::time::Duration = std::time::Duration::from_millis(50);
