//! Transfers that this agent runs for a service: their threads, their progress, and the ends that are not recorded yet.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use sterna_net::agent::{Agent, Commission, CommissionSpec, FileEnd, Work};
use sterna_net::engine::{Cancel, CopyProgress};
use sterna_net::identity::Fingerprint;
use sterna_net::web::Secret;
use sterna_proto::compress::CompressionPolicy;
use sterna_proto::limit::LimitTimes;
use sterna_proto::location::{HostPort, RemoteLocation};
use sterna_proto::plan::LANES_MAX;
use sterna_proto::rate::RateContract;
use sterna_proto::session::{ActiveEnd, Overwrite, PassiveAgent, SignedGrant, Target, ThirdParty};
use sterna_proto::web::WebLocation;
use sterna_proto::{Algorithm, Checks, Digest, Error, ErrorKind, FileDigests, Location, Phase, Retry, Scope};
use tokio::sync::Notify;
use tracing::{info, warn};

use super::put::Storages;
use crate::checksum;
use crate::job::{ChecksumPolicy, Failure, Moved, PathFacts, Placed, Task};
use crate::worker::{End, FromAgent, Key, Order, Other, from_base64};

/// Name of this way of moving files, in replies.
const BY_AGENTS: &str = "sterna";

/// Time between two looks at the progress of a transfer.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

/// Time that a transfer waits without a lane before it fails. Reason: short interruptions pass; after longer ones the
/// service decides, and the next attempt resumes.
const LINGER: Duration = Duration::from_secs(120);

/// Transfer under way.
struct Running {
    cancel: Cancel,
    /// Bytes that have arrived, and those that were reported.
    bytes: (u64, u64),
    /// The lease is over: the end is not reported, because the service starts the transfer elsewhere.
    is_dropped: bool,
}

/// State of all transfers.
#[derive(Default)]
struct State {
    running: BTreeMap<Key, Running>,
    /// Ends that the service has not recorded.
    ended: BTreeMap<Key, FromAgent>,
    /// Outcomes of deletions that were not sent. The service asks again for one that gets lost.
    deleted: Vec<FromAgent>,
}

/// Transfers of this agent.
pub(super) struct Transfers {
    agent: Arc<Agent>,
    storages: Storages,
    state: Mutex<State>,
    /// Notified when a transfer or a deletion has ended.
    ended: Notify,
    /// The same, for a thread that waits for all.
    idle: Condvar,
}

/// Service that gives orders.
#[derive(Clone, Copy, Debug)]
pub(super) struct Service {
    /// Fingerprint of its key.
    pub(super) key: Fingerprint,
    /// Its address.
    pub(super) address: SocketAddr,
}

impl Transfers {
    pub(super) fn new(agent: Arc<Agent>) -> Arc<Self> {
        let (storages, state) = (Storages::default(), Mutex::default());
        Arc::new(Self { agent, storages, state, ended: Notify::new(), idle: Condvar::new() })
    }

    /// Returns the agent.
    pub(super) fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Returns the agent, for a thread.
    pub(super) fn shared_agent(&self) -> &Arc<Agent> {
        &self.agent
    }

    /// Waits until a transfer or a deletion ends.
    pub(super) async fn wait_for_end(&self) {
        self.ended.notified().await;
    }

    /// Returns the transfers that the service may expect here.
    pub(super) fn keys(&self) -> Vec<Key> {
        let state = self.state.lock();
        let running = state.running.iter().filter(|(_, running)| !running.is_dropped);
        running.map(|(key, _)| *key).chain(state.ended.keys().copied()).collect()
    }

    /// Returns the ends that the service has not recorded.
    pub(super) fn ends(&self) -> Vec<(Key, FromAgent)> {
        self.state.lock().ended.iter().map(|(key, ended)| (*key, ended.clone())).collect()
    }

    /// Returns the bytes of transfers that have changed since the last call.
    pub(super) fn take_progress(&self) -> Vec<(Key, u64)> {
        let mut state = self.state.lock();
        let changed = state.running.iter_mut().filter(|(_, running)| running.bytes.0 != running.bytes.1);
        changed
            .map(|(key, running)| {
                running.bytes.1 = running.bytes.0;
                (*key, running.bytes.0)
            })
            .collect()
    }

    /// Forgets an end that the service has recorded.
    pub(super) fn handle_recorded(&self, key: Key) {
        self.state.lock().ended.remove(&key);
    }

    /// Returns the outcomes of deletions since the last call.
    pub(super) fn take_deleted(&self) -> Vec<FromAgent> {
        std::mem::take(&mut self.state.lock().deleted)
    }

    /// Deletes a file for a service, in a thread, unless it is younger than `age`.
    pub(super) fn delete(self: &Arc<Self>, service: Service, file: u64, location: String, age: Duration) {
        let transfers = Arc::clone(self);
        let delete = move || {
            let outcome = remote(&location).and_then(|at| transfers.agent.delete_for(&service.key, at.path, age));
            match &outcome {
                Ok(()) => info!("{location}, a copy between two hops, is deleted"),
                Err(error) => warn!("delete {location}, a copy between two hops: {}", error.chain()),
            }
            transfers.end_deletion(file, outcome.err());
        };
        if let Err(e) = thread::Builder::new().name("delete".to_owned()).spawn(delete) {
            self.end_deletion(file, Some(no_thread("start a thread that deletes a file", e)));
        }
    }

    fn end_deletion(&self, file: u64, error: Option<Error>) {
        let failure = error.as_ref().map(Failure::from);
        self.state.lock().deleted.push(FromAgent::Deleted { file, failure });
        self.ended.notify_one();
    }

    /// Stops a transfer, and those that share its session. Their ends are reported.
    pub(super) fn cancel(&self, key: Key) {
        let cancel = self.state.lock().running.get(&key).map(|running| running.cancel.clone());
        cancel.iter().for_each(Cancel::cancel);
    }

    /// Stops all transfers, and reports none of their ends.
    pub(super) fn drop_all(&self) {
        let mut state = self.state.lock();
        state.running.values_mut().for_each(|running| running.is_dropped = true);
        let cancels: Vec<Cancel> = state.running.values().map(|running| running.cancel.clone()).collect();
        drop(state);
        cancels.iter().for_each(Cancel::cancel);
    }

    /// Waits until no transfer is under way, at most for `time`.
    pub(super) fn wait_until_idle(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut state = self.state.lock();
        while !state.running.is_empty() {
            if self.idle.wait_until(&mut state, until).timed_out() {
                return;
            }
        }
    }

    /// Starts the transfers of an order in a thread. One that has arrived before is left out.
    pub(super) fn start(self: &Arc<Self>, service: Service, mut order: Order) {
        let cancel = Cancel::default();
        {
            let mut state = self.state.lock();
            order.tasks.retain(|task| {
                let key = Key::of(task);
                !state.running.contains_key(&key) && !state.ended.contains_key(&key)
            });
            for task in &order.tasks {
                let running = Running { cancel: cancel.clone(), bytes: (0, 0), is_dropped: false };
                state.running.insert(Key::of(task), running);
            }
        }
        let keys: Vec<Key> = order.tasks.iter().map(Key::of).collect();
        let transfers = Arc::clone(self);
        let run = move || {
            if let Err(error) = transfers.run(service, &order, &cancel) {
                order.tasks.iter().for_each(|task| transfers.end(Key::of(task), Moved::default(), Some(&error)));
            }
        };
        if let Err(e) = thread::Builder::new().name("transfer".to_owned()).spawn(run) {
            let error = no_thread("start a thread for the transfer", e);
            keys.into_iter().for_each(|key| self.end(key, Moved::default(), Some(&error)));
        }
    }

    /// Records the end of a transfer. One that has ended before keeps its end. A failed one has the bytes that were
    /// shown as its progress.
    fn end(&self, key: Key, moved: Moved, error: Option<&Error>) {
        let mut state = self.state.lock();
        if let Some(running) = state.running.remove(&key).filter(|running| !running.is_dropped) {
            let bytes = if error.is_some() { moved.bytes.max(running.bytes.0) } else { moved.bytes };
            let (moved, failure) = (Moved { bytes, ..moved }, error.map(Failure::from));
            state.ended.insert(key, FromAgent::Ended { key, moved, failure });
        }
        drop(state);
        self.ended.notify_one();
        self.idle.notify_all();
    }

    /// Records the bytes that a session has brought, at the first of its transfers that runs.
    fn show(&self, order: &Order, bytes: u64) {
        let mut state = self.state.lock();
        let first = order.tasks.iter().find(|task| state.running.contains_key(&Key::of(task))).map(Key::of);
        first.and_then(|key| state.running.get_mut(&key)).into_iter().for_each(|running| running.bytes.0 = bytes);
    }

    /// Writes the file of an order to a web storage.
    fn put(
        self: &Arc<Self>,
        service: Service,
        order: &Order,
        task: &Task,
        commission: Commission,
        cancel: &Cancel,
    ) -> Result<(), Error> {
        let (transfers, shown) = (Arc::clone(self), order.clone());
        let report = move |bytes| transfers.show(&shown, bytes);
        let to = (service.key, self.agent.web_servers());
        let (moved, outcome) = self.storages.put(to, order, task, &commission, cancel, report);
        self.end(Key::of(task), moved, outcome.as_ref().err());
        Ok(())
    }

    /// Runs the transfers of an order, and records their ends. Errors: no transfer has begun.
    fn run(self: &Arc<Self>, service: Service, order: &Order, cancel: &Cancel) -> Result<(), Error> {
        let Some(first) = order.tasks.first() else { return Ok(()) };
        let spec = CommissionSpec { service: service.key, from: service.address, work: work_of(order)? };
        let commission = self.agent.commission(spec)?;
        if matches!(order.other, Other::Web { .. }) && order.end == End::Source {
            return self.put(service, order, first, commission, cancel);
        }
        if let Some(rest) = self.end_wrong_sizes(service, order, &commission, cancel)? {
            // The others need another session. Each turn has fewer of them.
            return self.run(service, &rest, cancel);
        }
        let (started, is_late) = (Instant::now(), AtomicBool::new(false));
        let time_max = first.options.timeout_s.map(|seconds| Duration::from_secs(u64::from(seconds)));
        let measured = Mutex::new(Measured::default());
        let report = |progress: &CopyProgress| {
            let mut measured = measured.lock();
            let brought = progress.session.counters.bytes_brought();
            self.show(order, brought.saturating_sub(measured.ended));
            measured.observe(progress);
            if time_max.is_some_and(|time| started.elapsed() > time) && !is_late.swap(true, Ordering::Relaxed) {
                cancel.cancel();
            }
        };
        let placed = placed(&commission, first, cancel);
        let mut ending =
            Ending { order, commission: &commission, placed, last: Duration::ZERO, held: None, exist: Vec::new() };
        let outcome = commission.run(cancel, PROGRESS_EVERY, report, |end| {
            let took = ending.took(started.elapsed());
            measured.lock().ended += end.outcome.as_ref().map_or(0, |(bytes, _)| *bytes);
            let end = match end.outcome {
                Err(_) if is_late.load(Ordering::Relaxed) => FileEnd { outcome: Err(too_late(first)), ..end },
                _ => end,
            };
            // The last one waits for the summary, which has the limits of the whole session.
            if let Some((end, took)) = ending.held.replace((end, took)) {
                let measured = measured.lock();
                self.end_file(&mut ending, end, took, (&measured.limits, None));
            }
        });
        let summary = outcome.as_ref().map_or_else(|failure| failure.summary.as_deref(), Some);
        if let Some(summary) = summary {
            measured.lock().limits = shares_of(&summary.limits.total);
        }
        if let Some((end, took)) = ending.held.take() {
            let measured = measured.into_inner();
            let facts = matches!(order.other, Other::Agent { .. }).then_some(measured.facts);
            self.end_file(&mut ending, end, took, (&measured.limits, facts));
        }
        self.compare(service, &ending, cancel, is_late.load(Ordering::Relaxed));
        Ok(())
    }

    /// Ends the transfers whose source has another size than the user gave. Returns an order for the others; `None`:
    /// there are no such transfers.
    ///
    /// Errors: a source is not reached.
    fn end_wrong_sizes(
        &self,
        service: Service,
        order: &Order,
        commission: &Commission,
        cancel: &Cancel,
    ) -> Result<Option<Order>, Error> {
        let mut rest = order.clone();
        rest.tasks.clear();
        for (number, task) in order.tasks.iter().enumerate() {
            let size = match (task.size.filter(|size| *size != 0), &order.other) {
                (None, _) => None,
                (Some(_), Other::Web { .. }) => {
                    let from = (service.key, self.agent.web_servers());
                    Some(self.storages.size_of_source(from, order, task, cancel)?)
                }
                // The session reports a source that is missing.
                (Some(_), Other::Agent { .. }) => commission.source_size(number, cancel)?,
            };
            match size.map_or(Ok(()), |size| task.check_size(size)) {
                Ok(()) => rest.tasks.push(task.clone()),
                Err(error) => self.end(Key::of(task), Moved::default(), Some(&error)),
            }
        }
        Ok((rest.tasks.len() < order.tasks.len()).then_some(rest))
    }

    /// Records the end of a file of a session.
    fn end_file(
        &self,
        ending: &mut Ending<'_>,
        end: FileEnd,
        took: Duration,
        (limits, path): (&[(String, f64)], Option<PathFacts>),
    ) {
        let Some(task) = ending.order.tasks.get(end.number) else { return };
        let mut moved = Moved {
            time_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            by: Some(BY_AGENTS.to_owned()),
            limits: limits.to_vec(),
            path,
            ..Moved::default()
        };
        match end.outcome {
            // An earlier start may have published it before its worker or the service ended.
            Err(error) if error.kind == ErrorKind::Exists && task.is_repeated() => {
                ending.exist.push((end.number, error));
            }
            Err(error) => self.end(Key::of(task), moved, Some(&error)),
            Ok((bytes, digests)) => {
                (moved.bytes, moved.size) = (bytes, Some(bytes));
                // Without digests no byte was needed: the file was there.
                moved.placed = Some(if digests.is_some() { ending.placed } else { Placed::Found });
                moved.checksum = digests.and_then(|digests| checksum_of(task, &digests));
                self.end(Key::of(task), moved, None);
            }
        }
    }

    /// Records the ends of files that existed and that an earlier start may have published. They have arrived, if both
    /// ends have the same bytes. `is_late`: the time of the attempt is over, so that the copy was cancelled.
    fn compare(&self, service: Service, ending: &Ending<'_>, cancel: &Cancel, is_late: bool) {
        if ending.exist.is_empty() {
            return;
        }
        let numbers: Vec<usize> = ending.exist.iter().map(|(number, _)| *number).collect();
        let same = match ending.order.other {
            Other::Agent { .. } => ending.commission.are_same(&numbers, cancel),
            Other::Web { .. } => Ok(vec![self.is_same_as_web(service, ending, cancel)]),
        };
        for (at, (number, exists)) in ending.exist.iter().enumerate() {
            let Some(task) = ending.order.tasks.get(*number) else { continue };
            let same = same.as_ref().map_err(Error::clone);
            let same = same.and_then(|same| same.get(at).cloned().unwrap_or(Ok(false)));
            let arrived = Moved { by: Some(BY_AGENTS.to_owned()), placed: Some(Placed::Found), ..Moved::default() };
            match same {
                Ok(true) => self.end(Key::of(task), arrived, None),
                Ok(false) => self.end(Key::of(task), Moved::default(), Some(exists)),
                Err(error) if error.kind == ErrorKind::Cancelled && is_late => {
                    self.end(Key::of(task), Moved::default(), Some(&too_late(task)));
                }
                Err(error) => self.end(Key::of(task), Moved::default(), Some(&error)),
            }
        }
    }

    /// Returns true if the file of an order has the digest that its job gives, or without one the bytes that the web
    /// server has. Errors: `Cancelled`; those of the server; a digest is not known, to be tried again.
    fn is_same_as_web(&self, service: Service, ending: &Ending<'_>, cancel: &Cancel) -> Result<bool, Error> {
        let Some(task) = ending.order.tasks.first() else { return Ok(false) };
        let (wanted, given) = checksum_wanted(task)?;
        // Adler-32 and CRC-32C are enough only for a user who has given one.
        let algorithm = wanted.filter(|_| given.is_some()).unwrap_or(Algorithm::Sha256);
        let here = ending.commission.digests_here(0, Checks::NONE.with(algorithm), cancel)?;
        let Some((size, digests)) = here else { return Ok(false) };
        let here = digests.digest(algorithm);
        let there = match given {
            Some(given) => Some(given),
            None => {
                let with = (service.key, self.agent.web_servers());
                self.storages.digest_of_source(with, ending.order, task, (size, algorithm), cancel)?
            }
        };
        Ok(here.is_some() && here == there)
    }
}

/// Returns how a file that arrives gets to its destination. Looks there only if the service needs that.
fn placed(commission: &Commission, task: &Task, cancel: &Cancel) -> Placed {
    match task.overwrite() {
        // A file that appears meanwhile makes the transfer fail.
        Overwrite::Never => Placed::New,
        _ if !task.notes_replaced => Placed::Replaced,
        _ => match commission.has_destination(0, cancel) {
            Ok(false) => Placed::New,
            Ok(true) | Err(_) => Placed::Replaced,
        },
    }
}

/// Measurements of a session.
#[derive(Default)]
struct Measured {
    facts: PathFacts,
    /// Limits, each with its share of the time.
    limits: Vec<(String, f64)>,
    /// Bytes of the files that have ended.
    ended: u64,
}

impl Measured {
    fn observe(&mut self, progress: &CopyProgress) {
        observe(&mut self.facts, progress);
        self.limits = shares_of(&progress.limits.report.total);
    }
}

/// Ends of the files of a session.
struct Ending<'a> {
    order: &'a Order,
    commission: &'a Commission,
    /// State of the destination before, for a file that arrives.
    placed: Placed,
    /// Time of the last end, since the start.
    last: Duration,
    /// Last end, with its time, that is not recorded yet.
    held: Option<(FileEnd, Duration)>,
    /// Files that existed, with their errors.
    exist: Vec<(usize, Error)>,
}

impl Ending<'_> {
    /// Returns the time since the last end: that of the file that ends `now`.
    fn took(&mut self, now: Duration) -> Duration {
        now.saturating_sub(std::mem::replace(&mut self.last, now))
    }
}

fn no_thread(text: &str, e: std::io::Error) -> Error {
    Error::new(ErrorKind::Limit, Scope::Service, Phase::Prepare, text).retry(Retry::After).caused_by(e)
}

/// Returns the error of an attempt that took too long.
fn too_late(task: &Task) -> Error {
    let text = format!("the attempt took longer than {} s", task.options.timeout_s.unwrap_or_default());
    Error::new(ErrorKind::Limit, Scope::Path, Phase::Transfer, text).retry(Retry::After)
}

fn shares_of(times: &LimitTimes) -> Vec<(String, f64)> {
    times.shares().into_iter().map(|(limit, share)| (limit.name().to_owned(), share)).collect()
}

/// Returns the checksum of a file that has arrived, in the algorithm that its job wants.
fn checksum_of(task: &Task, digests: &FileDigests) -> Option<String> {
    let (algorithm, _) = checksum_wanted(task).ok()?;
    let digest = digests.digest(algorithm?)?;
    Some(format!("{}:{}", algorithm?.name().to_ascii_uppercase(), digest.hex()))
}

/// Returns the copy that an order describes. Errors: `Usage`, `Protocol`.
fn work_of(order: &Order) -> Result<Work, Error> {
    let first = order.tasks.first().ok_or_else(|| Error::protocol("an order without a transfer"))?;
    let overwrite = first.overwrite();
    match &order.other {
        Other::Agent { address, key, grant } => with_agent(order, (address, key, grant), overwrite),
        Other::Web { .. } if order.tasks.len() > 1 => {
            Err(Error::protocol("an order of several files with a web server"))
        }
        Other::Web { token } if order.end == End::Destination => {
            let (source, token) = (WebLocation::parse(&http(&first.source))?, token.clone().map(Secret));
            let destination = remote(&first.destination)?.path;
            let (algorithm, expect) = checksum_wanted(first)?;
            let checks = algorithm.map_or(Checks::NONE, |algorithm| Checks::NONE.with(algorithm));
            let lanes = lanes_of(first);
            Ok(Work::FromWeb { source, token, destination, overwrite, checks, expect, lanes })
        }
        Other::Web { .. } => {
            let source = remote(&first.source)?.path;
            Ok(Work::ToWeb { source, destination: WebLocation::parse(&http(&first.destination))? })
        }
    }
}

/// Returns the copy of an order with another agent.
fn with_agent(order: &Order, (address, key, grant): (&str, &str, &str), overwrite: Overwrite) -> Result<Work, Error> {
    let (mut sources, mut targets, mut checks) = (Vec::new(), Vec::new(), Checks::NONE);
    for task in &order.tasks {
        let (algorithm, expect) = checksum_wanted(task)?;
        checks = algorithm.map_or(checks, |algorithm| checks.with(algorithm));
        sources.push(remote(&task.source)?.path);
        targets.push(Target { path: remote(&task.destination)?.path, expect });
    }
    let HostPort { host, port } =
        address.parse().map_err(|why| Error::protocol(format!("the address {address:?}: {why}")))?;
    let key: Fingerprint = key.parse().map_err(|e| Error::protocol("the key of the other agent").caused_by(e))?;
    let request = ThirdParty {
        active: match order.end {
            End::Source => ActiveEnd::Source,
            End::Destination => ActiveEnd::Destination,
        },
        passive: PassiveAgent { host, port, keys: vec![key.0] },
        sources,
        // For the log.
        destination: targets.first().map(|target| target.path.clone()).unwrap_or_default(),
        overwrite,
        checks,
        expect: None,
        dry_run: false,
        compress: CompressionPolicy::Auto,
        via: None,
        // Files that share a session are of one job.
        lanes: order.tasks.first().and_then(lanes_of),
        congestion: None,
        contract: RateContract::default(),
        linger: LINGER,
        settled: Vec::new(),
    };
    let grant = SignedGrant::decode(&from_base64(grant)?)?;
    Ok(Work::WithAgent { request: Box::new(request), targets, grant: Box::new(grant) })
}

/// Returns the algorithm of the checksum that a job wants of its file, and the value that the file must have.
fn checksum_wanted(task: &Task) -> Result<(Option<Algorithm>, Option<Digest>), Error> {
    let checksum = task.checksum.as_deref().filter(|_| task.options.checksum != ChecksumPolicy::None);
    let read = checksum.map(checksum::read).transpose()?;
    Ok(read.map_or((None, None), |(algorithm, digest)| (Some(algorithm), digest)))
}

/// Returns the number of lanes that a job asks for, up to the maximum of a session.
fn lanes_of(task: &Task) -> Option<u32> {
    task.options.lanes.map(|lanes| lanes.clamp(1, LANES_MAX))
}

/// Returns a location with the scheme of HTTP, if it has that of WebDAV (`dav`, `davs`).
fn http(location: &str) -> String {
    match location.split_once("://") {
        Some(("dav", rest)) => format!("http://{rest}"),
        Some(("davs", rest)) => format!("https://{rest}"),
        _ => location.to_owned(),
    }
}

fn remote(location: &str) -> Result<RemoteLocation, Error> {
    match Location::parse(OsStr::new(location))? {
        Location::Remote(remote) => Ok(remote),
        _ => Err(Error::protocol(format!("{location} is not at an agent"))),
    }
}

/// Adds what the lanes of a session have measured.
fn observe(facts: &mut PathFacts, progress: &CopyProgress) {
    let lanes = || progress.lanes.iter();
    let rtt = lanes().map(|lane| lane.rtt_min).filter(|rtt| !rtt.is_zero()).min();
    if let Some(rtt) = rtt {
        facts.rtt_ms = rtt.as_secs_f64() * 1000.0;
    }
    let (sent, lost) = (lanes().map(|lane| lane.packets_sent).sum(), lanes().map(|lane| lane.packets_lost).sum());
    // Lanes that have ended are not in the list any more.
    facts.packets_sent = facts.packets_sent.max(sent);
    facts.packets_lost = facts.packets_lost.max(lost);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobOptions;

    #[test]
    fn webdav_is_read_as_http() {
        for (given, expected) in [
            ("davs://se.example:1094/f", "https://se.example:1094/f"),
            ("dav://se.example/f", "http://se.example/f"),
            ("https://se.example/dav://f", "https://se.example/dav://f"),
        ] {
            assert_eq!(http(given), expected);
        }
    }

    #[test]
    fn an_unknown_checksum_fails_its_file_and_lanes_are_those_of_the_job() {
        let task = |checksum: &str, lanes| Task {
            source: "sterna://a/f".to_owned(),
            destination: "sterna://b/f".to_owned(),
            checksum: Some(checksum.to_owned()),
            options: JobOptions { checksum: ChecksumPolicy::Both, lanes, ..JobOptions::default() },
            ..Task::default()
        };
        let error = checksum_wanted(&task("WHIRLPOOL:00", None)).unwrap_err();
        assert!(error.kind == ErrorKind::Usage && error.text().contains("adler32"), "{error:?}");
        let without = Task { options: JobOptions::default(), ..task("WHIRLPOOL:00", None) };
        assert_eq!(checksum_wanted(&without).unwrap(), (None, None), "nothing is compared");
        for (given, expected) in [(None, None), (Some(3), Some(3)), (Some(1_000_000), Some(LANES_MAX))] {
            assert_eq!(lanes_of(&task("ADLER32", given)), expected);
        }
    }
}
