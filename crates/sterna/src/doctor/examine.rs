//! `sterna doctor TARGET`: runs an examination and shows its report.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use sterna_doctor::bundle::{Bundle, Proof, SignedBundle};
use sterna_doctor::report::{About, text};
use sterna_doctor::run::examine;
use sterna_doctor::steps::Bounds;
use sterna_net::engine::{Cancel, Engine, Trust};
use sterna_net::identity::Identity;
use sterna_proto::location::RemoteLocation;
use sterna_proto::{Error, ErrorKind, Location, Phase, Scope};

use super::bundle;
use crate::flags::{ExamineFlags, MeasureFlags};
use crate::output::say;
use crate::state;
use crate::trust::{AskedTrust, cancel_at_signal};

/// Examines the path to an agent.
pub fn run(flags: &ExamineFlags) -> Result<u8, Error> {
    let agent = target(flags)?;
    let examiner = Examiner::new(&flags.measure, 1)?;
    let bundle = examiner.examine(&agent, !flags.json)?;
    let (mut proof, mut written) = (Proof::default(), Ok(()));
    if let Some(path) = &flags.bundle {
        let (bytes, signed) = bundle.sign(&examiner.identity)?;
        written = bundle::write(path, &bytes);
        proof = signed;
    }
    // A file that cannot be written does not lose the examination: its report is shown first.
    let code = bundle::show_report(&SignedBundle { bundle, proof }, &flags.files, flags.json)?;
    written.map(|()| code)
}

/// Runs examinations with the identity of this host, until a signal.
pub struct Examiner<'a> {
    flags: &'a MeasureFlags,
    /// Key that signs the bundles.
    pub identity: Identity,
    cancel: Cancel,
    engine: Engine,
}

impl<'a> Examiner<'a> {
    /// Loads the identity, and stops the examinations at a signal. `agents` is the number of agents that it will meet.
    pub fn new(flags: &'a MeasureFlags, agents: usize) -> Result<Self, Error> {
        let directory = state::directory(flags.state.as_deref())?;
        let identity = state::identity(flags.state.as_deref())?;
        let trust = Arc::new(AskedTrust::new(&directory, flags.trust.into_iter().collect(), agents > 1));
        let cancel = Cancel::default();
        cancel_at_signal(&cancel).map_err(|e| {
            Error::new(ErrorKind::Internal, Scope::Client, Phase::Prepare, "listen for signals").caused_by(e)
        })?;
        let engine = Engine::new(identity.clone(), trust as Arc<dyn Trust>);
        Ok(Self { flags, identity, cancel, engine })
    }

    /// Examines the path to an agent. Tells on a terminal which experiment runs, if `tells`.
    pub fn examine(&self, agent: &RemoteLocation, tells: bool) -> Result<Bundle, Error> {
        let flags = self.flags;
        let mut measurement = self.engine.measure(agent, flags.from, &self.cancel)?;
        let bounds = Bounds {
            time: flags.time,
            rate_max: flags.max_rate,
            near_disk: flags.disk.as_deref().map(Path::display).map(|path| path.to_string()),
            far_disk: flags.disk.as_ref().map(|_| String::from_utf8_lossy(&agent.path).into_owned()),
        };
        let tells = tells && std::io::stderr().is_terminal();
        let evidence = examine(&mut measurement, &bounds, &self.cancel, |next| {
            if tells {
                say(&format!("{}: {}", text::words(next.direction), text::purpose(next.purpose)));
            }
        })?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let lasted = evidence.records.last().map_or(0, |last| (last.start_ms + last.time_ms) / 1000);
        let about = About {
            target: agent.to_string(),
            address: measurement.remote().to_string(),
            local: measurement.local().map_or_else(String::new, |local| local.ip().to_string()),
            agent_key: measurement.agent_key().to_string(),
            started: now.saturating_sub(lasted),
            rate_max_bps: flags.max_rate.map(|most| most.0),
        };
        Ok(Bundle { about, evidence })
    }
}

/// Returns the agent that the user has named.
fn target(flags: &ExamineFlags) -> Result<RemoteLocation, Error> {
    let given = flags.target.clone().unwrap_or_default();
    match Location::parse(&given)? {
        Location::Remote(remote) => Ok(remote),
        _ => {
            let text = format!(
                "{} is no agent: give sterna://HOST, iperf3://HOST or ndt7://HOST; or for one side only, HOST:PORT of a TCP \
                 server with the port as a number, or the URL of a file",
                given.display()
            );
            Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text))
        }
    }
}
