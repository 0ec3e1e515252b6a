//! The `sterna` binary: parses flags, runs one command, prints its messages, and sets the exit code.

mod agent;
mod agent_log;
mod brevity;
mod copy;
#[cfg(test)]
mod documents;
mod flags;
mod generate;
#[cfg(test)]
mod golden;
mod limits;
mod log;
mod page;
mod paths;
mod plan;
mod progress;
mod state;

use std::process::ExitCode;

use clap::Parser;
use sterna_proto::file::plain;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use flags::{Command, Flags};

/// Signal for a write beyond RLIMIT_FSIZE, on every architecture that Rust runs on with Linux.
const SIGXFSZ: i32 = 25;

fn main() -> ExitCode {
    sterna_net::descriptors::raise_limit();
    // A write beyond RLIMIT_FSIZE then fails with EFBIG, and its file fails. Without a handler the
    // signal ends the process with all other copies.
    let _ = signal_hook::flag::register(SIGXFSZ, std::sync::Arc::default());
    let flags = match Flags::try_parse() {
        Ok(flags) => flags,
        Err(error) => {
            // Help and version go to stdout with code 0, usage errors to stderr with code 2.
            let _ = error.print();
            if error.kind() == clap::error::ErrorKind::MissingRequiredArgument
                && std::env::args_os().nth(1).is_some_and(|command| command == "copy")
            {
                // For a single argument, the parser reports a missing source although the user left out the
                // destination.
                say(
                    "a copy needs a SOURCE and, last, a DESTINATION, one of them at an agent: sterna copy FILE sterna://host/",
                );
            }
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    let outcome = match flags.command {
        Command::Agent(flags) => agent::run(flags),
        Command::Copy(flags) => copy::run(&flags),
        Command::Id(flags) => show_id(&flags),
        Command::Lab(command) => sterna_lab::command::execute(&command),
        Command::Completions(flags) => generate::completions(flags.shell),
        Command::Man(flags) => generate::manual(&flags.directory),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            say(&format!("sterna: {}", flags::worded(&error)));
            ExitCode::from(error.exit_code())
        }
    }
}

fn show_id(flags: &flags::IdFlags) -> Result<u8, Error> {
    let identity = state::identity(flags.state.as_deref())?;
    print_line(identity.fingerprint().to_string().as_bytes())?;
    Ok(0)
}

/// Writes a message for users to stderr; parts of it can be texts from peers. Ignores write errors, so that the work
/// continues without a reader. Keeps the line breaks of an error with several lines.
pub(crate) fn say(line: &str) {
    use std::io::Write;
    // One write, so that lines of several processes in one log do not mix.
    let lines: Vec<_> = line.split('\n').map(plain).collect();
    let _ = std::io::stderr().lock().write_all(format!("{}\n", lines.join("\n")).as_bytes());
}

/// Writes a line of output to stdout. Errors: the write fails, for example because the reader has closed the pipe.
pub(crate) fn print_line(line: &[u8]) -> Result<(), Error> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    out.write_all(line)
        .and_then(|()| out.write_all(b"\n"))
        .and_then(|()| out.flush())
        .map_err(|e| Error::new(ErrorKind::Io, Scope::Client, Phase::Finalise, "write to standard output").caused_by(e))
}
