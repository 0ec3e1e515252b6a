//! Transfers to HTTP and WebDAV storages: prepare, move, verify, give the file its name.
//!
//! The bytes go to a temporary name in the directory of the destination. Its size and digest are compared before it
//! gets the final name, so that a transfer that fails destroys nothing. Refuses to retry: the service decides.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sha1::{Digest as _, Sha1};
use sterna_net::agent::OutgoingFile;
use sterna_proto::session::Overwrite;
use sterna_proto::{Algorithm, Checks, Digest, Error, ErrorKind, FileDigests, Phase, Retry, Scope};
use tokio::time::timeout;

use super::address::ConnectRules;
use super::cleanup::{Temporary, delete_written, noted};
use super::client::{Client, End};
use super::connection::{Connections, Identity};
use super::digest::Check;
use super::directories::Directories;
use super::modes::{Mode, Modes, Pair};
use super::progress::Progress;
use super::reader::Reader;
use super::source::Source;
use super::storage::{Renamed, Stat};
use super::stream::{Stream, read_digest};
use super::third_party::{Failed, Then, ThirdParty};
use super::tls::Tls;
use super::{failure, location, storage};
use crate::auth::Trust;
use crate::credentials::{Credentials, Secret};
use crate::job::{Moved, Placed, Task};

/// Memory of all streamed transfers together, in blocks of 16 MiB. Reason: half a GiB, which a small server has.
const MEMORY_BLOCKS: usize = 32;

/// Time limit of an attempt with an empty file, unless the job has one. Reason: queues of disk servers.
const ATTEMPT_TIME_MIN: Duration = Duration::from_secs(3600);

/// Least mean rate of an attempt, unless the job has a limit. Reason: 100 GB in a bit more than a day; stalls end much
/// earlier.
const ATTEMPT_BYTES_PER_S: u64 = 1_000_000;

/// Maximum time limit of an attempt, unless the job has one. Reason: a server can claim any size, and its transfer
/// holds a place and memory that others need. 5 TB arrive in 7 days at 8.3 MB/s.
const ATTEMPT_TIME_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Words that clients look for. Source: FTS3.
const DESTINATION_EXISTS: &str = "Destination file exists and overwrite is not enabled";

/// Digits of a temporary name. Reason: two files with the same name are as rare as equal random numbers of 80 bits.
const NAME_DIGITS: usize = 20;

/// Worker for HTTP and WebDAV storages.
#[derive(Clone)]
pub struct Web {
    client: Arc<Client>,
    modes: Arc<Modes>,
    directories: Arc<Directories>,
    /// Part of temporary names. Reason: another service may write to the same directory.
    name: Arc<str>,
}

/// Transfer under way.
struct Transfer<'a> {
    web: &'a Web,
    task: &'a Task,
    source: Source,
    destination: End,
    check: Option<Check>,
    progress: &'a Progress,
    /// True from the first request that may write to the final name.
    has_touched_final_name: AtomicBool,
}

/// File that was moved, and compared in part.
struct Arrived {
    /// Digests of the bytes that were read, if this worker has read them.
    read: Option<FileDigests>,
}

impl Web {
    /// Creates it. `trust`: authorities of storages, besides those of the system; `name`: name of the service, which
    /// no other has. Runs within a tokio runtime. Errors: `Internal`.
    pub async fn open(trust: Option<Arc<Trust>>, rules: ConnectRules, name: &str) -> Result<Self, Error> {
        let connections = Connections::new(Tls::new(trust)?, rules).await?;
        let client = Arc::new(Client::new(connections, MEMORY_BLOCKS));
        Ok(Self { client, modes: Arc::default(), directories: Arc::default(), name: name.into() })
    }

    /// Returns the client of all storages.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Returns true if both ends are such storages.
    pub fn can_run(source: &str, destination: &str) -> bool {
        location::is_web(source) && location::is_web(destination)
    }

    /// Returns true if files at such a location can be deleted.
    pub fn can_delete(location: &str) -> bool {
        location::is_web(location)
    }

    /// Runs a transfer. `progress` has what is known about it, also if it fails.
    ///
    /// Cancel safety: drop it; connections close, and the temporary file is deleted in the background.
    pub async fn transfer(&self, task: &Task, progress: &Progress) -> Result<Moved, Error> {
        let source = end_of(&task.source, (&task.credentials, &task.credentials.source), Scope::Source)?;
        self.run(task, Source::Storage(source), progress).await
    }

    /// Deletes a file at a storage, if it has this tag. Errors: `NotFound`; `Changed`: another file is there; of the
    /// storage.
    pub async fn delete(&self, location: &str, tag: &str, credentials: &Credentials) -> Result<(), Error> {
        let end = end_of(location, (credentials, &credentials.destination), Scope::Destination)?;
        let there = storage::identity(&self.client, &end).await?;
        if let Some(now) = there.filter(|there| there.as_deref() != Some(tag)) {
            let now = now.as_deref().unwrap_or("not known");
            let text = format!(
                "HEAD {}: the ETag or checksum was {tag} and is {now}: another file is there, and stays",
                end.at
            );
            return Err(
                failure::error(ErrorKind::Changed, Scope::Destination, Phase::Finalise, text).retry(Retry::Never)
            );
        }
        match storage::delete(&self.client, &end).await? {
            true => Ok(()),
            false => {
                let text = format!("DELETE {}: 404: there is no such file", end.at);
                Err(failure::error(ErrorKind::NotFound, Scope::Destination, Phase::Finalise, text))
            }
        }
    }

    /// Writes a file of this host to the destination of a task. Does not look at its source. As [`Web::transfer`] in
    /// all else.
    pub async fn put(&self, task: &Task, file: Arc<OutgoingFile>, progress: &Progress) -> Result<Moved, Error> {
        self.run(task, Source::Local(file), progress).await
    }

    /// Returns the size of the source of a task. Errors: those of the storage.
    pub async fn size_of_source(&self, task: &Task) -> Result<u64, Error> {
        let end = end_of(&task.source, (&task.credentials, &task.credentials.source), Scope::Source)?;
        Source::Storage(end).stat(&self.client, None).await.map(|(size, _)| size)
    }

    /// Returns the digest of the source of a task, as its storage reports it, or computed from its bytes; `None`: its
    /// size is not `size`. Errors: those of the storage; the time limit of an attempt is over.
    pub async fn digest_of_source(
        &self,
        task: &Task,
        size: u64,
        algorithm: Algorithm,
    ) -> Result<Option<Digest>, Error> {
        let end = end_of(&task.source, (&task.credentials, &task.credentials.source), Scope::Source)?;
        let source = Source::Storage(end);
        let read = async {
            let (found, stat) = source.stat(&self.client, Some(algorithm)).await?;
            if found != size || stat.digest.is_some() {
                return Ok(stat.digest.filter(|_| found == size));
            }
            read_digest(source.open(&self.client, size, stat.tag, task.options.lanes).await?, algorithm).await
        };
        let limit = task.options.timeout_s.map(|seconds| Duration::from_secs(seconds.into()));
        let limit = limit.unwrap_or_else(|| time_for(size, ATTEMPT_TIME_MIN));
        timeout(limit, read).await.unwrap_or_else(|_| Err(too_long(limit)))
    }

    async fn run(&self, task: &Task, source: Source, progress: &Progress) -> Result<Moved, Error> {
        let transfer = Transfer {
            web: self,
            task,
            source,
            destination: end_of(
                &task.destination,
                (&task.credentials, &task.credentials.destination),
                Scope::Destination,
            )?,
            check: Check::of(task)?,
            progress,
            has_touched_final_name: AtomicBool::new(false),
        };
        let given = task.options.timeout_s.map(|seconds| Duration::from_secs(seconds.into()));
        let prepared = match given {
            Some(limit) => timeout(limit, transfer.run(None)).await.map_err(|_| limit),
            None => Ok(transfer.run(Some(ATTEMPT_TIME_MIN)).await),
        };
        prepared.unwrap_or_else(|limit| Err(transfer.too_long(limit)))
    }
}

/// Returns a file at a storage, at one end of a transfer. Errors: `Usage`.
fn end_of(location: &str, (credentials, token): (&Credentials, &Option<Secret>), scope: Scope) -> Result<End, Error> {
    // A token is for this storage; a proxy is for all.
    let proxy = credentials.proxy.clone().filter(|_| token.is_none());
    location::read(location).map(|at| End { at, identity: Identity { token: token.clone(), proxy }, scope })
}

/// Returns the time limit for a file: that of an empty one, and more with its size.
fn time_for(size: u64, empty: Duration) -> Duration {
    ATTEMPT_TIME_MAX.min(empty + Duration::from_secs(size / ATTEMPT_BYTES_PER_S))
}

/// Returns the error of an attempt that took too long.
fn too_long(limit: Duration) -> Error {
    let text = format!("the transfer did not end within {} s", limit.as_secs());
    failure::error(ErrorKind::Unreachable, Scope::Path, Phase::Transfer, text)
}

impl Transfer<'_> {
    /// Runs. `time`: time limit for an empty file; a larger one has more.
    async fn run(&self, time: Option<Duration>) -> Result<Moved, Error> {
        let (size, source) = self.prepare_source().await?;
        self.progress.set_size(size);
        let limit = time.map(|time| time_for(size, time));
        match limit {
            None => self.run_prepared(size, &source).await,
            Some(limit) => {
                let moved = timeout(limit, self.run_prepared(size, &source)).await;
                moved.unwrap_or_else(|_| Err(self.too_long(limit)))
            }
        }
    }

    /// Looks at the destination, and delivers the file unless it is there.
    async fn run_prepared(&self, size: u64, source: &Stat) -> Result<Moved, Error> {
        let placed = self.prepare_destination(size, source).await?;
        if placed == Placed::Found {
            return Ok(Moved { size: Some(size), placed: Some(placed), ..Moved::default() });
        }
        let checksum = self.deliver(size, source).await?;
        let (placed, tag) = (Some(placed), self.tag_of_copy().await);
        Ok(Moved { bytes: size, size: Some(size), checksum, placed, tag, ..self.progress.moved(Instant::now()) })
    }

    /// Returns the identity of a file that has arrived and may be deleted later. Without one it stays.
    async fn tag_of_copy(&self) -> Option<String> {
        if !self.task.notes_replaced {
            return None;
        }
        storage::identity(self.client(), &self.destination).await.ok().flatten()?
    }

    /// Returns the error of an attempt that took too long.
    fn too_long(&self, limit: Duration) -> Error {
        let error = too_long(limit);
        match self.has_touched_final_name.load(Ordering::Relaxed) {
            true => noted(error, &self.destination),
            false => error,
        }
    }

    fn client(&self) -> &Arc<Client> {
        &self.web.client
    }

    /// Looks at the source, and compares its digest and its size with the given ones. Returns size and state.
    async fn prepare_source(&self) -> Result<(u64, Stat), Error> {
        let wanted = self.check.filter(|check| check.has_source()).map(|check| check.algorithm);
        let (size, stat) = self.source.stat(self.client(), wanted).await?;
        if let (Some(check), Some(found)) = (self.check, stat.digest) {
            self.compare_with_given(check, found)?;
        }
        self.task.check_size(size).map(|()| (size, stat))
    }

    fn may_replace(&self) -> bool {
        self.task.overwrite() != Overwrite::Never
    }

    /// Looks at the destination. Returns `Found` if an earlier attempt, whose worker was lost, has delivered the file.
    ///
    /// Errors: `Exists`.
    async fn prepare_destination(&self, size: u64, source: &Stat) -> Result<Placed, Error> {
        let may_replace = self.may_replace();
        if may_replace && !self.task.notes_replaced {
            return Ok(Placed::Replaced);
        }
        // FTS3 takes Adler-32 if a request names no algorithm.
        let algorithm = self.check.map_or(Algorithm::Adler32, |check| check.algorithm);
        let wanted = Some(algorithm).filter(|_| self.task.is_repeated() && !may_replace);
        let Some(there) = storage::stat(self.client(), &self.destination, Phase::Prepare, wanted).await? else {
            return Ok(Placed::New);
        };
        if may_replace {
            return Ok(Placed::Replaced);
        }
        if self.task.is_repeated() && there.size == Some(size) && self.is_same(algorithm, size, source, &there).await? {
            return Ok(Placed::Found);
        }
        Err(Error::new(ErrorKind::Exists, Scope::Destination, Phase::Prepare, DESTINATION_EXISTS))
    }

    /// Compares a file at the destination with the source by digests: the given one, those that storages report, or of
    /// bytes that are read here. A digest that is not known equals none.
    async fn is_same(&self, algorithm: Algorithm, size: u64, source: &Stat, there: &Stat) -> Result<bool, Error> {
        let of_target = match there.digest {
            Some(digest) => Some(digest),
            None => {
                let reader = Reader::open(self.client(), &self.destination, size, there.tag.clone(), None).await;
                let read = async { read_digest(reader?, algorithm).await };
                match read.await {
                    // A user who may only write there.
                    Err(error) if error.kind == ErrorKind::Denied => None,
                    read => read?,
                }
            }
        };
        let Some(of_target) = of_target else { return Ok(false) };
        let of_source = match self.check.and_then(|check| check.given).or(source.digest) {
            Some(digest) => Some(digest),
            None => {
                let reader = self.source.open(self.client(), size, source.tag.clone(), None).await?;
                read_digest(reader, algorithm).await?
            }
        };
        Ok(of_source == Some(of_target))
    }

    /// Moves the file, and gives it its name. Returns the checksum that was compared.
    async fn deliver(&self, size: u64, source: &Stat) -> Result<Option<String>, Error> {
        self.web.directories.prepare(self.client(), &self.destination).await;
        if location::can_be_renamed_to(&self.destination.at) {
            let name = location::beside(&self.destination.at, &self.temporary_name())?;
            let target = self.destination.with(name);
            // A worker that was lost may have left it behind.
            if self.task.is_repeated()
                && let Err(error) = storage::delete(self.client(), &target).await
            {
                tracing::warn!("{}; the file is written again", error.chain());
            }
            let temporary = Temporary::new(Arc::clone(self.client()), target.clone());
            let arrived = match self.fetch(&target, size, source, true).await {
                Ok(arrived) => arrived,
                Err(error) => {
                    if self.task.options.keeps_partial {
                        temporary.keep();
                    }
                    return Err(error);
                }
            };
            let checksum = self.verify(&target, size, source, &arrived).await?;
            if self.publish(&target, size).await? == Renamed::Done {
                temporary.keep();
                return Ok(checksum);
            }
            tracing::info!("{}: the storage renames no file; writing to the final name", self.destination.at);
        }
        self.deliver_directly(size, source).await
    }

    /// Moves the file to its final name. Returns the checksum that was compared.
    ///
    /// Anybody else may write to that name too. Only a file that this attempt has written as a new one, and that is
    /// wrong, is deleted, before the attempt ends. Nothing is deleted after a failed or cancelled request to write.
    async fn deliver_directly(&self, size: u64, source: &Stat) -> Result<Option<String>, Error> {
        let target = &self.destination;
        self.has_touched_final_name.store(true, Ordering::Relaxed);
        let arrived = match self.fetch(target, size, source, false).await {
            Ok(arrived) => arrived,
            Err(error) if error.kind == ErrorKind::Exists => {
                let text = format!("{DESTINATION_EXISTS}: {}", error.text());
                return Err(error.reworded(text));
            }
            Err(error) => return Err(noted(error, target)),
        };
        match self.verify(target, size, source, &arrived).await {
            Err(error) if matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Changed) => {
                // A file that was replaced may be the one that another writer has put there meanwhile.
                match !self.may_replace() && !self.task.options.keeps_partial {
                    true => Err(delete_written(self.client(), target, error).await),
                    false => Err(noted(error, target)),
                }
            }
            Err(error) => Err(noted(error, target)),
            Ok(checksum) => Ok(checksum),
        }
    }

    /// Returns the temporary name. It is the same for a repeated attempt, so that a restarted service finds it.
    fn temporary_name(&self) -> String {
        let task = self.task;
        let text = format!("{} {} {} {}", self.web.name, task.file, task.attempt, self.destination.at.url());
        let digest: String = Sha1::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
        format!(".sterna-{}", &digest[..NAME_DIGITS])
    }

    /// Moves the bytes by the first way that works.
    async fn fetch(&self, target: &End, size: u64, source: &Stat, is_temporary: bool) -> Result<Arrived, Error> {
        let Some(from) = self.source.storage() else {
            self.progress.begin(Mode::Put, Instant::now());
            let read = self.stream(target, size, source).await;
            self.progress.end(Instant::now());
            return Ok(Arrived { read: Some(read?) });
        };
        let pair: Pair = (from.at.origin().to_owned(), self.destination.at.origin().to_owned());
        let (mut last, mut refused) = (None, Vec::new());
        let modes = match self.task.forbids_streams {
            true => self.web.modes.third_party(&pair, Instant::now()),
            false => self.web.modes.order(&pair, Instant::now()),
        };
        for mode in modes {
            // A server that takes a push for a copy within itself leaves a file of the same name there.
            if mode == Mode::Push && !is_temporary {
                continue;
            }
            self.progress.begin(mode, Instant::now());
            let fetched = self.fetch_by(mode, from, target, size, source).await;
            self.progress.end(Instant::now());
            match fetched {
                Ok(read) => {
                    // Not before: a source that is down looks like one that the destination cannot reach.
                    self.web.modes.handle_worked(&pair, mode, &refused, Instant::now());
                    return Ok(Arrived { read });
                }
                Err(Failed { error, then: Then::Ends }) => return Err(error),
                Err(Failed { error, then }) => {
                    tracing::info!("{}: {} does not work: {}", self.destination.at, mode.name(), error.chain());
                    refused.extend((then == Then::Refused).then_some(mode));
                    last = Some(error);
                }
            }
        }
        // The last way ends in any case, unless streams are forbidden.
        let (source, destination) = (&pair.0, &pair.1);
        let text = format!(
            "{source} and {destination} do not copy to each other, and the virtual organisation forbids streams through \
             the service (no_streaming)"
        );
        Err(match last {
            Some(error) => {
                let text = format!("{text}: {}", error.text());
                error.reworded(text)
            }
            None => Error::new(ErrorKind::Denied, Scope::Path, Phase::Transfer, text).retry(Retry::OtherReplica),
        })
    }

    async fn fetch_by(
        &self,
        mode: Mode,
        from: &End,
        target: &End,
        size: u64,
        source: &Stat,
    ) -> Result<Option<FileDigests>, Failed> {
        if mode == Mode::Streamed {
            return Ok(Some(self.stream(target, size, source).await?));
        }
        let (client, progress, streams) = (self.client(), self.progress, self.task.options.lanes);
        let may_replace = self.may_replace_at(target);
        let copy = ThirdParty { client, source: from, target, size, may_replace, streams, progress };
        copy.run(mode).await?;
        Ok(None)
    }

    /// Returns true if a file at a temporary or final name may be replaced.
    fn may_replace_at(&self, target: &End) -> bool {
        target.at != self.destination.at || self.may_replace()
    }

    /// Writes what this worker reads from the source. Returns the digests of the bytes.
    async fn stream(&self, target: &End, size: u64, source: &Stat) -> Result<FileDigests, Error> {
        let checks = self.check.map_or(Checks::NONE, |check| Checks::NONE.with(check.algorithm));
        let stream = Stream {
            client: self.client(),
            source: &self.source,
            tag: source.tag.clone(),
            target,
            may_replace: self.may_replace_at(target),
            size,
            ranges: self.task.options.lanes,
            checks: self.source.checks(checks),
            progress: self.progress,
        };
        stream.run().await
    }

    /// Compares size and digests of the file that has arrived. Returns the checksum that was compared.
    async fn verify(&self, target: &End, size: u64, source: &Stat, arrived: &Arrived) -> Result<Option<String>, Error> {
        let wanted = self.check.filter(|check| check.has_destination()).map(|check| check.algorithm);
        if let Some(read) = &arrived.read {
            self.source.confirm(read).await?;
        }
        let corrupt = |text: String| failure::error(ErrorKind::Corrupt, Scope::Destination, Phase::Verify, text);
        let there = storage::stat(self.client(), target, Phase::Verify, wanted).await?;
        let Some(there) = there else {
            return Err(corrupt(format!("HEAD {}: 404: the file did not arrive", target.at)));
        };
        if there.size != Some(size) {
            let found = there.size.map_or_else(|| "unknown".to_owned(), |size| size.to_string());
            // Source of the text: FTS3.
            return Err(corrupt(format!("Source and destination file size mismatch: {size} and {found}")));
        }
        let Some(check) = self.check else { return Ok(None) };
        let digest = self.compare(check, target, size, source, &there, arrived).await?;
        Ok(digest.map(|digest| format!("{}:{}", check.algorithm.name().to_ascii_uppercase(), digest.hex())))
    }

    /// Compares the digests that count. Returns the one that all have.
    async fn compare(
        &self,
        check: Check,
        target: &End,
        size: u64,
        source: &Stat,
        there: &Stat,
        arrived: &Arrived,
    ) -> Result<Option<Digest>, Error> {
        let at_source = async || {
            let reader = self.source.open(self.client(), size, source.tag.clone(), None).await?;
            let digest = read_digest(reader, check.algorithm).await?;
            digest.map_or(Ok(()), |digest| self.compare_with_given(check, digest)).map(|()| digest)
        };
        let read_here = arrived.read.as_ref().and_then(|read| read.digest(check.algorithm));
        if let (Some(read), Some(reported)) = (read_here, source.digest)
            && read != reported
        {
            let (name, read, reported) = (check.algorithm, read.hex(), reported.hex());
            let text = format!("{name} checksums of the source and of its bytes here differ: {reported} and {read}");
            return Err(failure::error(ErrorKind::Corrupt, Scope::Path, Phase::Verify, text));
        }
        let mut of_source = read_here.or(source.digest).filter(|_| check.has_source());
        if let Some(digest) = of_source {
            self.compare_with_given(check, digest)?;
        } else if check.has_source() && check.given.is_none() == check.has_destination() {
            // The source has no digest, and no other comparison stands for it.
            of_source = at_source().await?;
        }
        let known = of_source.or(check.given);
        if !check.has_destination() {
            return Ok(known);
        }
        let of_target = match there.digest {
            Some(digest) => Some(digest),
            None => {
                let reader = Reader::open(self.client(), target, size, there.tag.clone(), None).await?;
                read_digest(reader, check.algorithm).await?
            }
        };
        let (Some(expected), Some(found)) = (known, of_target) else { return Ok(known.or(of_target)) };
        if expected == found {
            return Ok(known);
        }
        if check.has_source() && of_source.is_none() {
            // Tells which end is wrong.
            at_source().await?;
        }
        let (name, of) = (check.algorithm, if of_source.is_some() { "source" } else { "user" });
        let text = format!("{name} checksums of {of} and destination differ: {} and {}", expected.hex(), found.hex());
        Err(failure::error(ErrorKind::Corrupt, Scope::Destination, Phase::Verify, text))
    }

    fn compare_with_given(&self, check: Check, found: Digest) -> Result<(), Error> {
        match check.given.filter(|given| *given != found) {
            None => Ok(()),
            Some(given) => {
                let text = format!(
                    "{} checksums of user and source differ: {} and {}",
                    check.algorithm,
                    given.hex(),
                    found.hex()
                );
                let error = Error::new(ErrorKind::Corrupt, Scope::Source, Phase::Verify, text);
                Err(error.retry(Retry::OtherReplica))
            }
        }
    }

    /// Gives a verified file its name.
    async fn publish(&self, target: &End, size: u64) -> Result<Renamed, Error> {
        let (may_replace, to) = (self.may_replace(), &self.destination);
        let stat = async |end: &End| storage::stat(self.client(), end, Phase::Finalise, None).await;
        // XRootD replaces a file in any case.
        if !may_replace && stat(to).await?.is_some() {
            return Err(Error::new(ErrorKind::Exists, Scope::Destination, Phase::Finalise, DESTINATION_EXISTS));
        }
        let renamed = storage::rename(self.client(), target, &to.at, may_replace).await;
        let failed = match renamed {
            Ok(Renamed::Unsupported) => {
                storage::delete(self.client(), target).await?;
                return Ok(Renamed::Unsupported);
            }
            Ok(Renamed::Done) => None,
            // The storage may have renamed it before the connection broke.
            Err(error) if error.kind == ErrorKind::Unreachable => Some(error),
            Err(error) => return Err(error),
        };
        let is_there = stat(to).await?.is_some_and(|stat| stat.size == Some(size));
        match failed {
            None if is_there => Ok(Renamed::Done),
            None => {
                let text = format!("MOVE to {}: done, but no file of {size} bytes is there", to.at);
                Err(failure::error(ErrorKind::Protocol, Scope::Destination, Phase::Finalise, text))
            }
            Some(_) if is_there && stat(target).await?.is_none() => Ok(Renamed::Done),
            Some(error) => Err(error),
        }
    }
}
