//! Transfers between agents: one agent runs the session with the other, and no file data passes the service.
//!
//! Each transfer is one copy of the engine, which starts its threads. Refuses to retry.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sterna_net::engine::{Cancel, CopySpec, CopySummary, Engine, Next, Trust};
use sterna_net::identity::{Fingerprint, Identity, KnownHost, KnownHosts};
use sterna_proto::location::RemoteLocation;
use sterna_proto::session::{Answer, DigestQuery, ListOptions, Overwrite};
use sterna_proto::{Algorithm, Checks, Digest, Error, ErrorKind, Location, Phase, Retry, Scope};

use crate::job::{ChecksumPolicy, Moved, OverwritePolicy, Task};

/// Scheme of locations at agents.
const SCHEME: &str = "sterna";

/// Time between two reports of progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

/// Agents that the service connects to: those whose keys are in its list of known hosts.
struct KnownAgents(KnownHosts);

impl Trust for KnownAgents {
    fn check(&self, remote: &RemoteLocation, peer: &Fingerprint, _: &Cancel) -> Result<(), Error> {
        let name = KnownHosts::name_of(remote);
        let path = self.0.path().display();
        let text = match self.0.lookup(&name, peer)? {
            KnownHost::Match => return Ok(()),
            KnownHost::Changed { expected } => {
                format!("the key of {name} has changed from {expected} to {peer}, see {path}")
            }
            KnownHost::Unknown => format!("the key {peer} of {name} is not in {path}"),
        };
        Err(Error::new(ErrorKind::Untrusted, Scope::Service, Phase::Prepare, text))
    }

    fn expected_keys(&self, remote: &RemoteLocation, _: &Fingerprint) -> Result<Vec<Fingerprint>, Error> {
        self.0.keys(&KnownHosts::name_of(remote))
    }
}

/// Runs transfers between agents.
#[derive(Clone)]
pub struct Copies {
    engine: Engine,
}

impl Copies {
    /// Creates it with the identity and the known hosts of a state directory. Errors: these cannot be read.
    pub fn open(state_dir: &Path) -> Result<Self, Error> {
        let identity = Identity::load_or_create(state_dir)?;
        let known = Arc::new(KnownAgents(KnownHosts::new(state_dir)));
        Ok(Self { engine: Engine::new(identity, known).with_path_cache(state_dir.to_owned()) })
    }

    /// Returns true if both ends are at agents.
    pub fn can_run(source: &str, destination: &str) -> bool {
        let is_agent = |location: &str| location.split_once("://").is_some_and(|(scheme, _)| scheme == SCHEME);
        is_agent(source) && is_agent(destination)
    }

    /// Runs a transfer until it has ended, or `cancel` is called. `report` gets the bytes that have arrived.
    pub fn transfer(&self, task: &Task, cancel: &Cancel, report: impl Fn(u64)) -> Result<Moved, Error> {
        let (source, destination) = (location(&task.source)?, location(&task.destination)?);
        let mut spec = CopySpec::new(vec![source.clone()], destination.clone());
        spec.cancel = cancel.clone();
        spec.overwrite = match task.options.overwrite {
            OverwritePolicy::Never => Overwrite::Never,
            OverwritePolicy::Always => Overwrite::Always,
            OverwritePolicy::OnRetry if task.attempt > 1 => Overwrite::Always,
            OverwritePolicy::OnRetry => Overwrite::Never,
        };
        let checksum = task.checksum.as_deref().filter(|_| task.options.checksum != ChecksumPolicy::None);
        let (algorithm, expected) = checksum.map(read_checksum).transpose()?.unwrap_or_default();
        spec.checks = algorithm.map_or(Checks::NONE, |algorithm| Checks::NONE.with(algorithm));
        spec.expect = expected;
        match self.run(spec, &report) {
            // An earlier attempt may have published it before its worker or this service ended.
            Err(error) if error.kind == ErrorKind::Exists && task.is_repeated => {
                if self.is_same(&source, &destination)? { Ok(already_there()) } else { Err(error) }
            }
            outcome => outcome,
        }
    }

    fn run(&self, spec: CopySpec, report: &impl Fn(u64)) -> Result<Moved, Error> {
        let copy = self.engine.start(spec)?;
        while !matches!(copy.next(PROGRESS_EVERY), Next::Ended) {
            if let Some(snapshot) = copy.snapshot() {
                report(snapshot.session.counters.bytes_brought());
            }
        }
        let summary = copy.wait().map_err(|failure| failure.error)?;
        match summary.failures.first() {
            Some(error) => Err(error.clone()),
            None if summary.done + summary.skipped == 1 => Ok(moved(&summary)),
            None => {
                let text = "the source is no single file: a transfer moves one file";
                Err(Error::new(ErrorKind::Usage, Scope::Source, Phase::Prepare, text))
            }
        }
    }

    /// Returns true if both files have the same digest.
    fn is_same(&self, one: &Location, other: &Location) -> Result<bool, Error> {
        Ok(self.digest(one)?.is_some_and(|digest| self.digest(other).is_ok_and(|other| other == Some(digest))))
    }

    fn digest(&self, location: &Location) -> Result<Option<Digest>, Error> {
        let digest = Some(DigestQuery { checks: Checks::NONE, range: None });
        let options = ListOptions { digest, ..ListOptions::new(Some(0)) };
        for answer in self.engine.list(std::slice::from_ref(location), &options)? {
            match answer? {
                Answer::Listed(listed) => {
                    let digests = listed.digests.as_ref();
                    return Ok(digests.and_then(|digests| digests.digest(Algorithm::Blake3)));
                }
                Answer::Failed(error) => return Err(error),
                Answer::Deleted { .. } => {}
            }
        }
        Ok(None)
    }
}

fn location(text: &str) -> Result<Location, Error> {
    Location::parse(OsStr::new(text))
}

/// Reads `ALGORITHM:value` or `ALGORITHM`. Leaves out an algorithm that lanes do not compute: they verify BLAKE3.
fn read_checksum(text: &str) -> Result<(Option<Algorithm>, Option<Digest>), Error> {
    let (name, value) = text.split_once(':').map_or((text, None), |(name, value)| (name, Some(value)));
    let Ok(algorithm) = name.to_ascii_lowercase().parse::<Algorithm>() else { return Ok((None, None)) };
    let wrong = |e: Error| e.retry(Retry::Never);
    let digest = value.map(|value| format!("{}:{value}", name.to_ascii_lowercase()).parse::<Digest>().map_err(wrong));
    Ok((Some(algorithm), digest.transpose()?))
}

/// Returns what a transfer moved that had arrived before.
fn already_there() -> Moved {
    Moved { by: Some(SCHEME.to_owned()), ..Moved::default() }
}

fn moved(summary: &CopySummary) -> Moved {
    let bytes = summary.bytes + summary.bytes_skipped;
    let limits = summary.limits.total.shares();
    Moved {
        bytes,
        size: Some(bytes),
        time_ms: u64::try_from(summary.elapsed.as_millis()).unwrap_or(u64::MAX),
        checksum: None,
        by: Some(SCHEME.to_owned()),
        limits: limits.into_iter().map(|(limit, share)| (limit.name().to_owned(), share)).collect(),
    }
}
