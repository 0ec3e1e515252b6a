//! Commission: a copy of files that a transfer service asks of this agent, with another agent or a web server.
//!
//! The session with another agent is the one of a third-party copy, numbered, with the grant of the service in its
//! hellos. Runs in the thread of its caller. Refuses to retry: the service decides.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use sterna_proto::location::RemoteLocation;
use sterna_proto::session::{
    ActiveEnd, Answer, DeleteDirectories, DigestQuery, FileOutcome, Hello, ListOptions, ListedKind, Overwrite, Query,
    Request, SignedGrant, Target, ThirdParty, number_of_name,
};
use sterna_proto::web::{WebLocation, canonical_host};
use sterna_proto::{Checks, Digest, Error, ErrorKind, FileDigests, Location, Phase, Retry, Scope};

use super::log::{SessionLog, paths_of};
use super::query::exact_path;
use super::third_party::{PassiveKeys, at, record, spec_of};
use super::{Shared, one_root};
use crate::client::random_session;
use crate::engine::{
    Cancel, CopyEvent, CopyFailure, CopyProgress, CopySpec, CopySummary, Engine, Granted, Next, PathOptions, Trust,
};
use crate::identity::{Fingerprint, Grant, Rights};
use crate::lister::{Lister, QueryPlace};
use crate::session::{Progress, SessionEvent};
use crate::web::{Secret, TokenSource};

mod outgoing;

pub use outgoing::OutgoingFile;

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

/// Work of a commission.
#[derive(Clone, Debug)]
pub enum Work {
    /// Copy of files with another agent.
    WithAgent {
        /// Copy. Source N goes to target N, and its own destination and digest do not count.
        request: Box<ThirdParty>,
        /// Targets: one for each source.
        targets: Vec<Target>,
        /// Grant of the service for the other agent.
        grant: Box<SignedGrant>,
    },
    /// Copy of one file from a web server.
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
        /// Number of lanes; `None`: found by measurement.
        lanes: Option<u32>,
    },
    /// To a web server. The caller writes there what [`Commission::open_source`] reads.
    ToWeb {
        /// Source path beneath the roots of this agent.
        source: Vec<u8>,
        /// File.
        destination: WebLocation,
    },
}

/// Web servers that an agent uses for a transfer service: it reads from them and writes to them.
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
    pub fn check(&self, at: &WebLocation) -> Result<(), Error> {
        let host = canonical_host(at.host());
        match self {
            Self::Any => Ok(()),
            Self::These(hosts) if hosts.iter().any(|known| canonical_host(known) == host) => Ok(()),
            Self::These(_) => {
                let text =
                    format!("this agent does not connect to {host}: its operator can allow it with --web {host}");
                Err(Error::new(ErrorKind::Denied, Scope::Service, Phase::Prepare, text))
            }
        }
    }
}

/// Copy that is allowed, and ready to run.
pub struct Commission {
    spec: CopySpec,
    engine: Engine,
    files: Vec<CommissionedFile>,
    log: Arc<SessionLog>,
}

/// File of a commission.
struct CommissionedFile {
    /// Place of the file at this agent.
    place: Vec<QueryPlace>,
    /// Location of the file at the other agent; `None`: it is not at an agent.
    other: Option<Location>,
}

/// End of a file of a commission.
#[derive(Clone, Debug)]
pub struct FileEnd {
    /// Number of the file.
    pub number: usize,
    /// Size in bytes, and the digests of the file that has arrived. Errors: of the file.
    pub outcome: Result<(u64, Option<FileDigests>), Error>,
}

impl Shared {
    /// Prepares a copy for a transfer service. Errors: as [`super::Agent::commission`].
    pub(super) fn commission(&self, spec: CommissionSpec) -> Result<Commission, Error> {
        let CommissionSpec { service, from, work } = spec;
        let (rights, session) = (self.grant_of_service(&service), random_session()?);
        let (spec, engine, files, asked) = match work {
            Work::WithAgent { request, targets, grant } => {
                let (granted, files) = self.files_with_agent(&request, &targets, &rights)?;
                let spec = CopySpec { targets, expect: None, ..spec_of(&request, granted) };
                let trust = Arc::new(PassiveKeys(request.passive.clone()));
                let mut engine = Engine::new(self.identity.clone(), trust).with_grant(*grant);
                if let Some(directory) = &self.third_party.path_cache {
                    engine = engine.with_path_cache(directory.clone());
                }
                (spec, engine, files, Request::ThirdParty(request))
            }
            Work::FromWeb { source, token, destination, overwrite, checks, expect, lanes } => {
                self.web.check(&source)?;
                let place = self.query_places(&list(&destination), &rights)?;
                let target = self.place(&destination, &rights, Rights::ReadWrite)?;
                let web = Location::Web(source);
                let spec = CopySpec {
                    granted: Some(Granted::Destination(target.root, target.pattern)),
                    web_token: token.map(TokenSource::Given),
                    web_hosts: self.web.hosts(),
                    overwrite,
                    checks,
                    expect,
                    paths: vec![PathOptions { lanes, ..PathOptions::default() }],
                    ..CopySpec::new(vec![web.clone()], web)
                };
                let engine = Engine::new(self.identity.clone(), Arc::new(Nobody));
                let files = vec![CommissionedFile { place, other: None }];
                let (several, dry_run, targets) = (false, false, Vec::new());
                (
                    spec,
                    engine,
                    files,
                    Request::Push { destination, several, overwrite, checks, expect, dry_run, targets },
                )
            }
            Work::ToWeb { source, destination } => self.outgoing(source, destination, &rights)?,
        };
        let hello = Hello { on_behalf_of: Some(service.0), ..Hello::new(session, asked) };
        let names = match &hello.request {
            Request::ThirdParty(copy) if copy.active == ActiveEnd::Source => copy.sources.clone(),
            _ => paths_of(&spec.targets),
        };
        let log = SessionLog::start(&self.log, (&service, &session), from, &hello, self.linger).with_names(names);
        let log = Arc::new(log);
        Ok(Commission { spec, engine, files, log })
    }

    /// Deletes a file for a transfer service. Errors: as [`super::Agent::delete_for`].
    pub(super) fn delete_for(&self, service: &Fingerprint, path: Vec<u8>, age: Duration) -> Result<(), Error> {
        let rights = self.grant_of_service(service);
        let query = Query::Delete { paths: vec![path], directories: DeleteDirectories::Empty };
        self.query_places(&query, &rights)?.iter().try_for_each(|place| delete_here(place, age))
    }

    /// Returns the end at this agent of a copy with another one, and its files. Errors: `Protocol`; of the paths.
    fn files_with_agent(
        &self,
        request: &ThirdParty,
        targets: &[Target],
        rights: &Grant,
    ) -> Result<(Granted, Vec<CommissionedFile>), Error> {
        if request.sources.is_empty() || request.sources.len() != targets.len() {
            return Err(Error::protocol("a copy needs as many sources as targets, and at least one"));
        }
        let is_source = request.active == ActiveEnd::Source;
        let needed = if is_source { Rights::Read } else { Rights::ReadWrite };
        let (mut places, mut files) = (Vec::with_capacity(targets.len()), Vec::with_capacity(targets.len()));
        for (source, target) in request.sources.iter().zip(targets) {
            let (own, there) = if is_source { (source, &target.path) } else { (&target.path, source) };
            places.push(self.place(own, rights, needed)?);
            files.push(CommissionedFile {
                place: self.query_places(&list(own), rights)?,
                other: Some(at(&request.passive, there)),
            });
        }
        if is_source {
            return Ok((Granted::Sources(places), files));
        }
        let (root, paths) = one_root(places)?;
        Ok((Granted::Targets(root, paths), files))
    }
}

/// Returns the question for the file at a path, with its digest.
fn list(path: &[u8]) -> Query {
    Query::List { paths: vec![path.to_vec()], options: Box::new(of_digest(Checks::NONE)) }
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
    /// has begun, and `ended` once for each file, as soon as its end is known. Returns the summary.
    ///
    /// Errors: as [`crate::engine::CopyHandle::wait`]; files without an end until then have it.
    pub fn run(
        &self,
        cancel: &Cancel,
        every: Duration,
        report: impl Fn(&CopyProgress),
        ended: impl FnMut(FileEnd),
    ) -> Result<CopySummary, CopyFailure> {
        let mut ends = Ends { is_open: vec![true; self.files.len()], unreadable: Vec::new(), ended };
        let outcome = self.run_copy(cancel, every, report, &mut ends);
        ends.finish(outcome.as_ref().err().map(|failure| &failure.error));
        outcome
    }

    fn run_copy(
        &self,
        cancel: &Cancel,
        every: Duration,
        report: impl Fn(&CopyProgress),
        ends: &mut Ends<impl FnMut(FileEnd)>,
    ) -> Result<CopySummary, CopyFailure> {
        let spec = CopySpec { cancel: cancel.clone(), ..self.spec.clone() };
        self.check_own_end(cancel).map_err(|error| CopyFailure { error, summary: None })?;
        let copy = self.engine.start(spec).map_err(|error| CopyFailure { error, summary: None })?;
        let mut progress = Progress::default();
        let outcome = loop {
            match copy.next(every) {
                Next::Event(event) => {
                    ends.handle(&event, !self.spec.targets.is_empty());
                    record(&self.log, event);
                }
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

    /// Checks that the destination of a copy from a web server is no directory: the file would go beneath it. Other
    /// copies are numbered, and go to exactly their targets. Errors: `Exists`.
    fn check_own_end(&self, cancel: &Cancel) -> Result<(), Error> {
        let Some(Granted::Destination(..)) = self.spec.granted else { return Ok(()) };
        let places = self.files.iter().flat_map(|file| file.place.clone()).collect();
        let found = Lister::new(places, ListOptions::new(Some(0)), cancel.clone()).next();
        match found {
            Some(Answer::Listed(listed)) if listed.kind == ListedKind::Directory => {
                let text = "the destination is a directory: a transfer needs the name of the file";
                Err(Error::new(ErrorKind::Exists, Scope::Destination, Phase::Prepare, text))
            }
            _ => Ok(()),
        }
    }

    fn file(&self, number: usize) -> Result<&CommissionedFile, Error> {
        self.files.get(number).ok_or_else(|| crate::internal("a file that the copy does not have"))
    }

    /// Returns true if the destination of a file at an agent exists. Errors: the other agent is not reached; of the
    /// storage.
    pub fn has_destination(&self, number: usize, cancel: &Cancel) -> Result<bool, Error> {
        let (file, options) = (self.file(number)?, ListOptions::new(Some(0)));
        let answer = match (&self.spec.granted, &file.other) {
            (Some(Granted::Sources(_)), Some(there)) => {
                self.engine.list(std::slice::from_ref(there), &options)?.next().transpose()?
            }
            _ => Lister::new(file.place.clone(), options, cancel.clone()).next(),
        };
        match answer {
            None if cancel.is_cancelled() => Err(cancelled()),
            None => Ok(false),
            Some(Answer::Failed(error)) if error.kind == ErrorKind::NotFound => Ok(false),
            Some(Answer::Failed(error)) => Err(error),
            Some(Answer::Listed(_) | Answer::Deleted { .. }) => Ok(true),
        }
    }

    /// Returns the size of a source at this or at the other agent; `None`: it has no file there, or is on a web server.
    /// Errors: the other agent is not reached.
    pub fn source_size(&self, number: usize, cancel: &Cancel) -> Result<Option<u64>, Error> {
        let (file, options) = (self.file(number)?, ListOptions::new(Some(0)));
        let answer = match (&self.spec.granted, &file.other) {
            (Some(Granted::Sources(_)), _) => Lister::new(file.place.clone(), options, cancel.clone()).next(),
            (_, Some(there)) => self.engine.list(std::slice::from_ref(there), &options)?.next().transpose()?,
            _ => None,
        };
        match answer {
            Some(Answer::Listed(listed)) if listed.kind == ListedKind::File => Ok(Some(listed.size)),
            _ => Ok(None),
        }
    }

    /// Returns for each file of `numbers` if the one at this agent and the one at the other agent have the same digest.
    /// Errors: `Cancelled`; the other agent is not reached; a digest is not known, to be tried again.
    pub fn are_same(&self, numbers: &[usize], cancel: &Cancel) -> Result<Vec<Result<bool, Error>>, Error> {
        let files = numbers.iter().map(|number| self.file(*number)).collect::<Result<Vec<_>, _>>()?;
        let there: Option<Vec<Location>> = files.iter().map(|file| file.other.clone()).collect();
        let there = there.ok_or_else(|| crate::internal("a comparison with an agent, and the file is at none"))?;
        let check = || if cancel.is_cancelled() { Err(cancelled()) } else { Ok(()) };
        check()?;
        let mut answers = self.engine.list(&there, &of_digest(Checks::NONE))?;
        let mut same = Vec::with_capacity(files.len());
        for number in numbers {
            // Each path has one answer.
            let there = found(answers.next().transpose()?);
            let here = self.digests_here(*number, Checks::NONE, cancel);
            check()?;
            same.push(here.and_then(|here| {
                let (here, there) = (here.map(blake3_of), there?.map(blake3_of));
                Ok(here.is_some() && here == there)
            }));
        }
        Ok(same)
    }

    /// Returns size and digests of a file at this agent; `None`: a directory or another thing that is no file has its
    /// name. `checks`: digests in addition to BLAKE3. Errors: `Cancelled`; not known, to be tried again.
    pub fn digests_here(
        &self,
        number: usize,
        checks: Checks,
        cancel: &Cancel,
    ) -> Result<Option<(u64, FileDigests)>, Error> {
        let answer = Lister::new(self.file(number)?.place.clone(), of_digest(checks), cancel.clone()).next();
        if cancel.is_cancelled() { Err(cancelled()) } else { found(answer) }
    }
}

/// Ends of the files of a copy.
struct Ends<F> {
    /// True for each file whose end is not known.
    is_open: Vec<bool>,
    /// Errors of sources, in the order of their numbers.
    unreadable: Vec<Error>,
    ended: F,
}

impl<F: FnMut(FileEnd)> Ends<F> {
    fn handle(&mut self, event: &CopyEvent, is_numbered: bool) {
        match event {
            CopyEvent::Session(SessionEvent::Settled { entry, outcome }) => {
                let number = if is_numbered { number_of_name(&entry.path) } else { Some(0) };
                let outcome = match outcome {
                    FileOutcome::Done(digests) => Ok((entry.size, Some(*digests))),
                    FileOutcome::Skipped => Ok((entry.size, None)),
                    FileOutcome::Failed(error) => Err(error.clone()),
                };
                number.into_iter().for_each(|number| self.end(number, outcome.clone()));
            }
            CopyEvent::Session(SessionEvent::Unreadable(error)) => self.unreadable.push(error.clone()),
            // The new session lists the sources again.
            CopyEvent::Restarted => self.unreadable.clear(),
            _ => {}
        }
    }

    fn end(&mut self, number: usize, outcome: Result<(u64, Option<FileDigests>), Error>) {
        if let Some(is_open) = self.is_open.get_mut(number).filter(|is_open| **is_open) {
            *is_open = false;
            (self.ended)(FileEnd { number, outcome });
        }
    }

    /// Ends the files that are left: with the error of the copy, or with those of their sources.
    fn finish(&mut self, failure: Option<&Error>) {
        let mut unreadable = std::mem::take(&mut self.unreadable).into_iter();
        for number in 0..self.is_open.len() {
            if self.is_open[number] {
                let error = failure.cloned().or_else(|| unreadable.next());
                let silent =
                    || Error::protocol("the session ended, and the other agent reported nothing about the file");
                self.end(number, Err(error.unwrap_or_else(silent)));
            }
        }
    }
}

/// Error of the age of a file that a service knows. Reason: the service stores milliseconds, and file systems have the
/// time of the last tick of the kernel; an order is some time on its way, which only makes the age lower.
const AGE_ERROR: Duration = Duration::from_millis(100);

/// Deletes the file of a place, unless it is younger than `age`. Errors: as [`super::Agent::delete_for`].
fn delete_here(place: &QueryPlace, age: Duration) -> Result<(), Error> {
    let path = exact_path(place, "delete")?;
    let file = place.root.open_source(&path)?;
    let changed = UNIX_EPOCH + Duration::from_nanos(file.entry()?.version);
    // Both times are of this host. Writes, renamings and changes of rights count.
    if changed.elapsed().is_ok_and(|old| old + AGE_ERROR < age) {
        let text = format!("delete {}: it was written or changed since: another file is there, and stays", file.path());
        return Err(Error::new(ErrorKind::Changed, Scope::Destination, Phase::Finalise, text));
    }
    drop(file);
    let mut outcome = Ok(());
    place.root.delete(&path, DeleteDirectories::Empty, &mut |deleted| {
        outcome = deleted.map(drop);
        outcome.is_ok()
    });
    outcome
}

/// Returns the list that has the digests of one file: BLAKE3, and those of `checks`.
fn of_digest(checks: Checks) -> ListOptions {
    let digest = Some(DigestQuery { checks, range: None });
    ListOptions { digest, ..ListOptions::new(Some(0)) }
}

/// Returns size and digests of the file in an answer; `None`: the name is that of no file. Errors: not known, to be
/// tried again.
fn found(answer: Option<Answer>) -> Result<Option<(u64, FileDigests)>, Error> {
    let unknown = || Error::protocol("compare a file that was there with its source: no digest").retry(Retry::After);
    match answer {
        Some(Answer::Listed(listed)) if listed.kind != ListedKind::File => Ok(None),
        Some(Answer::Listed(listed)) => listed.digests.map(|digests| Some((listed.size, digests))).ok_or_else(unknown),
        Some(Answer::Failed(error)) => Err(error.retry(Retry::After)),
        Some(Answer::Deleted { .. }) | None => Err(unknown()),
    }
}

fn blake3_of((_, digests): (u64, FileDigests)) -> [u8; 32] {
    digests.blake3
}

fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Prepare, "the transfer was cancelled")
}
