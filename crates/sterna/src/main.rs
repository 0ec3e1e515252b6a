//! The `sterna` binary: parses flags, runs one command, prints its messages, and sets the exit code.

mod agent;
mod agent_log;
mod coalesce;
mod copy;
mod doctor;
#[cfg(test)]
mod documents;
mod flags;
mod generate;
#[cfg(test)]
mod golden;
mod jobs;
mod limits;
mod log;
mod monitor;
mod output;
mod page;
mod paths;
mod plan;
mod progress;
mod serve;
mod state;
mod trust;

use std::process::ExitCode;

use clap::Parser;
use sterna_proto::Error;

use flags::{Command, Flags};
use output::{print_line, say};

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
        Command::Serve(flags) => serve::run(&flags),
        Command::Submit(flags) => jobs::submit::run(&flags),
        Command::Status(flags) => jobs::status::run(&flags),
        Command::List(flags) => jobs::status::list(&flags),
        Command::Watch(flags) => jobs::watch::run(&flags),
        Command::Cancel(flags) => jobs::status::cancel(&flags),
        Command::Explain(flags) => jobs::explain::run(&flags),
        Command::Ban(flags) => jobs::ban::run(&flags),
        Command::Config(flags) => jobs::config::run(&flags),
        Command::Id(flags) => show_id(&flags),
        Command::Doctor(flags) => doctor::run(&flags),
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
