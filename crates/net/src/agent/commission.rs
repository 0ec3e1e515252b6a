//! Commission: a copy of one file that a transfer service asks of this agent, with another agent or from a web server.
//!
//! The session with another agent is the one of a third-party copy, with the grant of the service in its hellos. Runs
//! in the thread of its caller. Refuses to retry: the service decides.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sterna_proto::location::RemoteLocation;
use sterna_proto::session::{
    ActiveEnd, Answer, DeleteDirectories, DigestQuery, Hello, ListOptions, ListedKind, Overwrite, Query, Request,
    SignedGrant, ThirdParty,
};
use sterna_proto::web::{WebLocation, canonical_host};
use sterna_proto::{Algorithm, Checks, Digest, Error, ErrorKind, Location, Phase, Scope};

use super::Shared;
use super::log::SessionLog;
use super::query::exact_path;
use super::third_party::{PassiveKeys, at, record, spec_of};
use crate::client::random_session;
use crate::engine::{Cancel, CopyFailure, CopyProgress, CopySpec, CopySummary, Engine, Granted, Next, Trust};
use crate::identity::Fingerprint;
use crate::lister::{Lister, QueryPlace};
use crate::session::Progress;
use crate::web::{Secret, TokenSource};

/// Copy that a transfer service asks of this agent.
#[derive(Clone, Debug)]
pub struct CommissionSpec {
    /// Service.
    pub service: Fingerprint,
    /// Address of the service, for the log.
    pub from: SocketAddr,
    /// Work.
    pub work: Work,
}

/// Work of a commission: a copy of one file.
#[derive(Clone, Debug)]
pub enum Work {
    /// With another agent.
    WithAgent {
        /// Copy.
        request: Box<ThirdParty>,
        /// Grant of the service for the other agent.
        grant: Box<SignedGrant>,
    },
    /// From a web server.
    FromWeb {
        /// File.
        source: WebLocation,
        /// Bearer token for the server.
        token: Option<Secret>,
        /// Destination path beneath the roots of this agent.
        destination: Vec<u8>,
        /// Policy for a file that exists.
        overwrite: Overwrite,
        /// Digests to compute in addition to BLAKE3.
        checks: Checks,
        /// Digest that the file must have.
        expect: Option<Digest>,
    },
}

/// Web servers from which an agent reads for a transfer service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebServers {
    /// Only these hosts. An empty list refuses all.
    These(Vec<String>),
    /// Any that this host can reach.
    Any,
}

impl WebServers {
    /// Returns the hosts; `None`: any.
    fn hosts(&self) -> Option<Vec<String>> {
        match self {
            Self::Any => None,
            Self::These(hosts) => Some(hosts.clone()),
        }
    }

    /// Checks that a server is allowed. Errors: `Denied`.
    fn check(&self, source: &WebLocation) -> Result<(), Error> {
        let host = canonical_host(source.host());
        match self {
            Self::Any => Ok(()),
            Self::These(hosts) if hosts.iter().any(|known| canonical_host(known) == host) => Ok(()),
            Self::These(_) => {
                let text = format!("this agent does not read from {host}: its operator can allow it with --web {host}");
                Err(Error::new(ErrorKind::Denied, Scope::Service, Phase::Prepare, text))
            }
        }
    }
}

/// Copy that is allowed, and ready to run.
pub struct Commission {
    spec: CopySpec,
    engine: Engine,
    /// Place of the file at this agent, for its digest.
    place: Vec<QueryPlace>,
    /// The same place, if the service may delete it.
    deletable: Result<Vec<QueryPlace>, Error>,
    /// Location of the file at the other agent; `None`: it is not at an agent.
    other: Option<Location>,
    log: Arc<SessionLog>,
}

impl Shared {
    /// Prepares a copy for a transfer service. Errors: as [`super::Agent::commission`].
    pub(super) fn commission(&self, spec: CommissionSpec) -> Result<Commission, Error> {
        let CommissionSpec { service, from, work } = spec;
        let rights = self.grant_of_service(&service);
        let list = |path: &[u8]| Query::List { paths: vec![path.to_vec()], options: Box::new(of_digest()) };
        let session = random_session()?;
        let start_log = |request| {
            let hello = Hello { on_behalf_of: Some(service.0), ..Hello::new(session, request) };
            Arc::new(SessionLog::start(&self.log, (&service, &session), from, &hello, self.linger))
        };
        match work {
            Work::WithAgent { request, grant } => {
                let source = request.sources.first().ok_or_else(|| crate::internal("a copy without a source"))?;
                let (own, there) = match request.active {
                    ActiveEnd::Source => (source, &request.destination),
                    ActiveEnd::Destination => (&request.destination, source),
                };
                let other = Some(at(&request.passive, there));
                let place = self.query_places(&list(own), &rights)?;
                let delete = Query::Delete { paths: vec![own.clone()], directories: DeleteDirectories::Empty };
                let deletable = self.query_places(&delete, &rights);
                let asked = Request::ThirdParty(request.clone());
                let spec = spec_of(&request, self.places(&asked, &rights)?)?;
                let trust = Arc::new(PassiveKeys(request.passive.clone()));
                let mut engine = Engine::new(self.identity.clone(), trust).with_grant(*grant);
                if let Some(directory) = &self.third_party.path_cache {
                    engine = engine.with_path_cache(directory.clone());
                }
                Ok(Commission { spec, engine, place, deletable, other, log: start_log(asked) })
            }
            Work::FromWeb { source, token, destination, overwrite, checks, expect } => {
                self.web.check(&source)?;
                let place = self.query_places(&list(&destination), &rights)?;
                // The place is that of a push by somebody else.
                let asked = Request::Push { destination, several: false, overwrite, checks, expect, dry_run: false };
                let places = self.places(&asked, &rights)?;
                let granted = places.into_iter().next().map(|place| Granted::Destination(place.root, place.pattern));
                let web = Location::Web(source);
                let spec = CopySpec {
                    granted,
                    web_token: token.map(TokenSource::Given),
                    web_hosts: self.web.hosts(),
                    overwrite,
                    checks,
                    expect,
                    ..CopySpec::new(vec![web.clone()], web)
                };
                let engine = Engine::new(self.identity.clone(), Arc::new(Nobody));
                Ok(Commission { spec, engine, place, deletable: Ok(Vec::new()), other: None, log: start_log(asked) })
            }
        }
    }
}

/// Trust of a copy without another agent.
struct Nobody;

impl Trust for Nobody {
    fn check(&self, remote: &RemoteLocation, _: &Fingerprint, _: &Cancel) -> Result<(), Error> {
        Err(crate::internal(&format!("a copy from a web server dialled {}", remote.host)))
    }

    fn expected_keys(&self, _: &RemoteLocation, _: &Fingerprint) -> Result<Vec<Fingerprint>, Error> {
        Ok(Vec::new())
    }
}

impl Commission {
    /// Runs the copy to its end, or until `cancel` is called. Calls `report` at least once in `every` after the session
    /// has begun.
    ///
    /// Errors: as [`crate::engine::CopyHandle::wait`].
    pub fn run(
        &self,
        cancel: &Cancel,
        every: Duration,
        report: impl Fn(&CopyProgress),
    ) -> Result<CopySummary, CopyFailure> {
        let spec = CopySpec { cancel: cancel.clone(), ..self.spec.clone() };
        let copy = self.engine.start(spec).map_err(|error| CopyFailure { error, summary: None })?;
        let mut progress = Progress::default();
        let outcome = loop {
            match copy.next(every) {
                Next::Event(event) => record(&self.log, event),
                Next::Nothing => {}
                Next::Ended => break copy.wait(),
            }
            if let Some(snapshot) = copy.snapshot() {
                report(&snapshot);
                progress = snapshot.session;
            }
        };
        let reason = outcome.as_ref().err().map(|failure| failure.error.chain());
        self.log.end(&progress, reason.as_deref());
        outcome
    }

    /// Checks the end at this agent: a copy moves one file to one name.
    ///
    /// Errors: `Usage`, if the source is no single file; `Exists`, if the destination is a directory.
    pub fn check_own_end(&self, cancel: &Cancel) -> Result<(), Error> {
        let is_source = matches!(self.spec.granted, Some(Granted::Sources(_)));
        let mut found = Lister::new(self.place.clone(), ListOptions::new(Some(0)), cancel.clone());
        let (first, more) = (found.next(), found.next());
        match (first, is_source) {
            (Some(Answer::Listed(listed)), true) if listed.kind == ListedKind::File && more.is_none() => Ok(()),
            (Some(Answer::Listed(_)), true) => {
                let text = "the source is no single file: a transfer moves one file";
                Err(Error::new(ErrorKind::Usage, Scope::Source, Phase::Prepare, text))
            }
            (Some(Answer::Listed(listed)), false) if listed.kind == ListedKind::Directory => {
                let text = "the destination is a directory: a transfer needs the name of the file";
                Err(Error::new(ErrorKind::Exists, Scope::Destination, Phase::Prepare, text))
            }
            // The copy reports what is missing.
            _ => Ok(()),
        }
    }

    /// Deletes the source after the copy. Errors: `Denied`; of the storage.
    pub fn delete_source(&self) -> Result<(), Error> {
        match (&self.spec.granted, &self.other) {
            (Some(Granted::Sources(_)), _) => self.deletable.clone()?.iter().try_for_each(delete_here),
            (_, Some(there)) => {
                let mut answers = self.engine.delete(std::slice::from_ref(there), DeleteDirectories::Empty)?;
                answers.try_for_each(|answer| match answer? {
                    Answer::Failed(error) => Err(error),
                    Answer::Listed(_) | Answer::Deleted { .. } => Ok(()),
                })
            }
            (_, None) => Err(crate::internal("delete a source on a web server")),
        }
    }

    /// Returns true if the files at both ends have the same digest; false if the other one is not at an agent. Errors:
    /// a file cannot be read.
    pub fn is_same(&self, cancel: &Cancel) -> Result<bool, Error> {
        let Some(there) = &self.other else { return Ok(false) };
        let here = Lister::new(self.place.clone(), of_digest(), cancel.clone()).map(Ok);
        let Some(here) = digest_in(here)? else { return Ok(false) };
        Ok(digest_in(self.engine.list(std::slice::from_ref(there), &of_digest())?)? == Some(here))
    }
}

/// Deletes the file of a place. Errors: as [`Commission::delete_source`].
fn delete_here(place: &QueryPlace) -> Result<(), Error> {
    let mut outcome = Ok(());
    place.root.delete(&exact_path(place, "delete")?, DeleteDirectories::Empty, &mut |deleted| {
        outcome = deleted.map(drop);
        outcome.is_ok()
    });
    outcome
}

/// Returns the list that has the digest of one file.
fn of_digest() -> ListOptions {
    let digest = Some(DigestQuery { checks: Checks::NONE, range: None });
    ListOptions { digest, ..ListOptions::new(Some(0)) }
}

/// Returns the digest of the first file in answers. Errors: that of the first answer.
fn digest_in(answers: impl Iterator<Item = Result<Answer, Error>>) -> Result<Option<Digest>, Error> {
    for answer in answers {
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
