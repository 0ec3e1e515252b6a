//! Runs many third-party copies in one process, and prints what they cost this process. `bench/many.py` calls it.
//!
//! ```text
//! third_party_copies RATE SECONDS < LIST
//! ```
//! RATE limits each copy. LIST has one copy a line: source, key of its agent, destination, key of its agent. Once every
//! copy has a lane between its agents, prints a line of JSON: threads, resident bytes, and processor time over the next
//! SECONDS. Then it cancels the copies. Ends with 1 if a copy failed before.

// An example prints.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::collections::BTreeMap;
use std::error::Error as Failure;
use std::io::BufRead;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sterna_net::engine::{Cancel, CopyEvent, CopyHandle, CopySpec, Engine, Next, Trust};
use sterna_net::identity::{Fingerprint, Identity};
use sterna_proto::location::{HostPort, RemoteLocation};
use sterna_proto::rate::RateContract;
use sterna_proto::{BitRate, Error, ErrorKind, Location, Phase, Scope};

/// Keys of all agents, by host and port.
struct Keys(BTreeMap<String, Fingerprint>);

impl Keys {
    fn of(&self, agent: &HostPort) -> Result<Fingerprint, Error> {
        let unknown = || {
            Error::new(ErrorKind::Untrusted, Scope::Client, Phase::Prepare, format!("the key of {agent} is not given"))
        };
        self.0.get(&agent.to_string()).copied().ok_or_else(unknown)
    }
}

impl Trust for Keys {
    fn check(&self, remote: &RemoteLocation, peer: &Fingerprint, _: &Cancel) -> Result<(), Error> {
        let agent = remote.host_port();
        if self.of(&agent)? == *peer {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Untrusted, Scope::Client, Phase::Prepare, format!("{agent} has the key {peer}")))
    }

    fn expected_keys(&self, remote: &RemoteLocation, _: &Fingerprint) -> Result<Vec<Fingerprint>, Error> {
        self.of(&remote.host_port()).map(|key| vec![key])
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Failure>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [rate, seconds] = &arguments[..] else { return Err("usage: third_party_copies RATE SECONDS < LIST".into()) };
    let (rate, time): (BitRate, _) = (rate.parse()?, Duration::from_secs(seconds.parse()?));
    let (mut keys, mut specs) = (BTreeMap::new(), Vec::new());
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let [source, source_key, destination, destination_key] = words[..] else {
            return Err(format!("not a source, a key, a destination and a key: {line}").into());
        };
        let [source, destination] = [Location::parse(source.as_ref())?, Location::parse(destination.as_ref())?];
        for (location, key) in [(&source, source_key), (&destination, destination_key)] {
            let Location::Remote(remote) = location else { return Err(format!("{location} is no agent").into()) };
            keys.insert(remote.host_port().to_string(), key.parse()?);
        }
        let mut spec = CopySpec::new(vec![source], destination);
        spec.paths[0].contract = RateContract::of_rate(Some(rate));
        spec.paths[0].lanes = Some(1);
        specs.push(spec);
    }
    let engine = Engine::new(Identity::ephemeral()?, Arc::new(Keys(keys)));
    let started = Instant::now();
    let copies = specs.into_iter().map(|spec| engine.start(spec)).collect::<Result<Vec<_>, _>>()?;
    for copy in &copies {
        wait_for_lane(copy)?;
    }
    let up = started.elapsed();
    let before = cpu_time()?;
    let measured = Instant::now();
    // The handles are read as a service reads them: each a few times a second.
    while measured.elapsed() < time {
        for copy in &copies {
            while let Next::Event(_) = copy.next(Duration::ZERO) {}
        }
        std::thread::sleep(Duration::from_millis(250));
    }
    let (cpu, over) = (cpu_time()? - before, measured.elapsed());
    let [threads, resident] = ["Threads:", "VmRSS:"].map(status);
    println!(
        "{{\"copies\":{},\"up_s\":{:.3},\"threads\":{},\"resident_bytes\":{},\"cpu_share\":{:.4}}}",
        copies.len(),
        up.as_secs_f64(),
        threads?,
        resident? * 1024,
        cpu.as_secs_f64() / over.as_secs_f64()
    );
    copies.iter().for_each(CopyHandle::cancel);
    copies.into_iter().for_each(|copy| drop(copy.wait()));
    Ok(())
}

/// Waits until the two agents of a copy have a lane. Errors: the copy has ended before.
fn wait_for_lane(copy: &CopyHandle) -> Result<(), Box<dyn Failure>> {
    loop {
        match copy.next(Duration::from_secs(600)) {
            Next::Event(CopyEvent::LaneUp { .. }) => return Ok(()),
            Next::Event(event) => eprintln!("{event:?}"),
            Next::Nothing => return Err("no lane in ten minutes".into()),
            Next::Ended => return Err("a copy ended before it was measured".into()),
        }
    }
}

/// Returns the number after `name` in the status of this process.
fn status(name: &str) -> Result<u64, Box<dyn Failure>> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)).ok_or("a status without this line")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// Returns the processor time of this process.
fn cpu_time() -> Result<Duration, Box<dyn Failure>> {
    let text = std::fs::read_to_string("/proc/self/stat")?;
    let after_name = text.rsplit(") ").next().ok_or("no fields")?;
    // utime and stime are fields 14 and 15, in hundredths of a second.
    let ticks: u64 = after_name.split_whitespace().skip(11).take(2).map(str::parse::<u64>).sum::<Result<_, _>>()?;
    Ok(Duration::from_millis(ticks * 10))
}
