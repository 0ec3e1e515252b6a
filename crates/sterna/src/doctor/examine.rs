//! `sterna doctor TARGET`: runs an examination and shows its report.

use std::fs;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sterna_doctor::evidence::Evidence;
use sterna_doctor::report::{About, Report, text};
use sterna_doctor::run::examine;
use sterna_doctor::steps::{Bounds, default_time};
use sterna_net::engine::{Cancel, Engine, Trust};
use sterna_proto::location::RemoteLocation;
use sterna_proto::{BitRate, Error, ErrorKind, Location, Phase, Scope};

use crate::flags::{ExamineFlags, ShowFlags};
use crate::output::{print_line, say};
use crate::state;
use crate::trust::{AskedTrust, cancel_at_signal};

/// Evidence of an examination, and what it is about.
#[derive(Serialize, Deserialize)]
struct Bundle {
    target: String,
    address: String,
    started: u64,
    rate_max_bps: u64,
    evidence: Evidence,
}

impl Bundle {
    fn report(&self) -> Report {
        let about = About {
            target: self.target.clone(),
            address: self.address.clone(),
            started: self.started,
            rate_max: BitRate(self.rate_max_bps),
        };
        Report::new(&self.evidence, &about)
    }
}

/// Examines the path to an agent.
pub fn run(flags: &ExamineFlags) -> Result<u8, Error> {
    let agent = target(flags)?;
    let directory = state::directory(flags.state.as_deref())?;
    let identity = state::identity(flags.state.as_deref())?;
    let trust = Arc::new(AskedTrust::new(&directory, flags.trust.into_iter().collect(), false));
    let cancel = Cancel::default();
    cancel_at_signal(&cancel).map_err(|e| {
        Error::new(ErrorKind::Internal, Scope::Client, Phase::Prepare, "listen for signals").caused_by(e)
    })?;
    let engine = Engine::new(identity, trust as Arc<dyn Trust>);
    let mut measurement = engine.measure(&agent, flags.from, &cancel)?;
    let time = flags.time.unwrap_or_else(|| default_time(measurement.connect_time()));
    let bounds = Bounds { time, rate_max: flags.max_rate };
    let tells = !flags.json && std::io::stderr().is_terminal();
    let evidence = examine(&mut measurement, &bounds, &cancel, |_, next| {
        if tells {
            say(&format!("{}: {}", text::words(next.direction), text::purpose(next.purpose)));
        }
    })?;
    let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let bundle = Bundle {
        target: agent.to_string(),
        address: measurement.remote().to_string(),
        started,
        rate_max_bps: flags.max_rate.0,
        evidence,
    };
    if let Some(path) = &flags.bundle {
        write(path, &bundle)?;
    }
    print(&bundle.report(), flags.json)
}

/// Shows the report of a bundle.
pub fn show(flags: &ShowFlags) -> Result<u8, Error> {
    let path = &flags.file;
    let wrong = |text: &str| {
        let text = format!("read the bundle {}: {text}", path.display());
        Error::new(ErrorKind::Io, Scope::Client, Phase::Prepare, text)
    };
    let bytes = fs::read(path).map_err(|e| wrong("open").caused_by(e))?;
    let bundle: Bundle = serde_json::from_slice(&bytes).map_err(|e| wrong("no bundle of the doctor").caused_by(e))?;
    print(&bundle.report(), flags.json)
}

fn print(report: &Report, json: bool) -> Result<u8, Error> {
    if json {
        let line = serde_json::to_vec(report).map_err(|e| internal("write the report as JSON").caused_by(e))?;
        print_line(&line)?;
    } else {
        text::lines(report).iter().try_for_each(|line| print_line(line.as_bytes()))?;
    }
    Ok(0)
}

fn write(path: &Path, bundle: &Bundle) -> Result<(), Error> {
    let json = serde_json::to_vec(bundle).map_err(|e| internal("write the bundle as JSON").caused_by(e))?;
    fs::write(path, json).map_err(|e| {
        let text = format!("write the bundle {}", path.display());
        Error::new(ErrorKind::Io, Scope::Client, Phase::Finalise, text).caused_by(e)
    })
}

fn internal(text: &str) -> Error {
    Error::new(ErrorKind::Internal, Scope::Client, Phase::Finalise, text)
}

/// Returns the agent that the user has named.
fn target(flags: &ExamineFlags) -> Result<RemoteLocation, Error> {
    let given = flags.target.clone().unwrap_or_default();
    match Location::parse(&given)? {
        Location::Remote(remote) => Ok(remote),
        _ => {
            let text = format!("{} is no agent: give sterna://HOST or sterna://HOST:PORT", given.display());
            Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text))
        }
    }
}
