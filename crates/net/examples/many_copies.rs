//! Copies many files to one agent at once through one [`Engine`]. Each file has a separate copy.
//!
//! ```text
//! cargo run --release -p sterna-net --example many_copies -- FINGERPRINT sterna://host/in/ FILE...
//! ```
//! FINGERPRINT is the key of the agent, as `sterna id` prints it on its host. The agent must authorize the key that this program prints
//! first. Ends with 1 if a copy failed.

// An example prints.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use sterna_net::engine::{Cancel, CopyHandle, CopySpec, Engine, Next, Trust};
use sterna_net::identity::{Fingerprint, Identity};
use sterna_proto::location::RemoteLocation;
use sterna_proto::{BitRate, ByteCount, Error, ErrorKind, Location, Phase, Scope};

/// Trusts agents with one key.
struct OneKey(Fingerprint);

impl Trust for OneKey {
    fn check(&self, remote: &RemoteLocation, peer: &Fingerprint, _: &Cancel) -> Result<(), Error> {
        if *peer == self.0 {
            return Ok(());
        }
        let text = format!("{} has the key {peer} and not {}", remote.host, self.0);
        Err(Error::new(ErrorKind::Untrusted, Scope::Client, Phase::Prepare, text))
    }

    fn expected_keys(&self, _: &RemoteLocation, _: &Fingerprint) -> Result<Vec<Fingerprint>, Error> {
        Ok(vec![self.0])
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failed) => {
            eprintln!("{failed} copies failed");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<usize, Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(key), Some(destination)) = (arguments.next(), arguments.next()) else {
        return Err("usage: many_copies FINGERPRINT sterna://host/in/ FILE...".into());
    };
    let key = key.to_str().ok_or("the fingerprint is not text")?.parse()?;
    let destination = Location::parse(&destination)?;
    let identity = Identity::ephemeral()?;
    println!("our key: {}", identity.fingerprint());

    let engine = Engine::new(identity, Arc::new(OneKey(key)));
    let mut copies: Vec<(String, CopyHandle)> = Vec::new();
    for file in arguments {
        let spec = CopySpec::new(vec![Location::parse(&file)?], destination.clone());
        copies.push((file.to_string_lossy().into_owned(), engine.start(spec)?));
    }
    let mut failed = 0;
    // One thread serves all copies: it reads what each has to report, and shows the sum about twice a second.
    while !copies.is_empty() {
        let mut running = Vec::new();
        let patience = Duration::from_millis(500) / copies.len() as u32;
        for (name, copy) in copies {
            match drain(&name, &copy, patience) {
                Drained::Running => running.push((name, copy)),
                Drained::Ended => match copy.wait() {
                    Ok(summary) => println!("{name}: {}, {}", ByteCount(summary.bytes), summary.goodput()),
                    Err(failure) => {
                        failed += 1;
                        println!("{name}: {}", failure.error.chain());
                    }
                },
            }
        }
        copies = running;
        let rates = copies
            .iter()
            .filter_map(|(_, copy)| copy.snapshot())
            .map(|now| BitRate::mean(ByteCount(now.session.counters.bytes_brought()), now.elapsed).0);
        println!("{} copies run, at {} together", copies.len(), BitRate(rates.sum()));
    }
    Ok(failed)
}

enum Drained {
    Running,
    Ended,
}

/// Prints the events of a copy until it has none for `patience`.
fn drain(name: &str, copy: &CopyHandle, patience: Duration) -> Drained {
    loop {
        match copy.next(patience) {
            Next::Event(event) => println!("{name}: {event:?}"),
            Next::Nothing => return Drained::Running,
            Next::Ended => return Drained::Ended,
        }
    }
}
