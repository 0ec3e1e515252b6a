//! Transfers that this agent runs for a service: their threads, their progress, and the ends that are not recorded yet.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use sterna_net::agent::{Agent, Commission, CommissionSpec, Work};
use sterna_net::engine::{Cancel, CopyProgress, CopySummary};
use sterna_net::identity::Fingerprint;
use sterna_net::web::Secret;
use sterna_proto::compress::CompressionPolicy;
use sterna_proto::location::{HostPort, RemoteLocation};
use sterna_proto::rate::RateContract;
use sterna_proto::session::{ActiveEnd, Overwrite, PassiveAgent, SignedGrant, ThirdParty};
use sterna_proto::web::WebLocation;
use sterna_proto::{Algorithm, Checks, Digest, Error, ErrorKind, Location, Phase, Retry, Scope};
use tokio::sync::Notify;
use tracing::warn;

use crate::job::{ChecksumPolicy, Failure, Moved, OverwritePolicy, PathFacts};
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
    ended: BTreeMap<Key, Ended>,
}

/// End of a transfer.
struct Ended {
    /// Report.
    report: FromAgent,
    /// Copy whose source is deleted when the service has accepted the end: until then, it may start the transfer again.
    deletes: Option<Commission>,
}

/// Transfers of this agent.
pub(super) struct Transfers {
    agent: Arc<Agent>,
    state: Mutex<State>,
    /// Notified when a transfer has ended.
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
        Arc::new(Self { agent, state: Mutex::default(), ended: Notify::new(), idle: Condvar::new() })
    }

    /// Returns the agent.
    pub(super) fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Waits until a transfer ends.
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
        self.state.lock().ended.iter().map(|(key, ended)| (*key, ended.report.clone())).collect()
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

    /// Forgets an end that the service has recorded. Deletes the source of a file that has arrived, if it is a copy
    /// between hops.
    pub(super) fn handle_recorded(&self, key: Key, is_accepted: bool) {
        let ended = self.state.lock().ended.remove(&key);
        let Some(commission) = ended.and_then(|ended| ended.deletes).filter(|_| is_accepted) else { return };
        let delete = move || {
            if let Err(error) = commission.delete_source() {
                // The file has arrived; the copy in between only takes room.
                warn!("delete the copy between two hops: {}", error.chain());
            }
        };
        if let Err(e) = thread::Builder::new().name("delete".to_owned()).spawn(delete) {
            warn!("start a thread that deletes the copy between two hops: {e}");
        }
    }

    /// Stops a transfer. Its end is reported.
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

    /// Starts a transfer in a thread. An order that has arrived before changes nothing.
    pub(super) fn start(self: &Arc<Self>, service: Service, order: Order) {
        let key = Key::of(&order.task);
        let cancel = Cancel::default();
        {
            let mut state = self.state.lock();
            if state.running.contains_key(&key) || state.ended.contains_key(&key) {
                return;
            }
            let running = Running { cancel: cancel.clone(), bytes: (0, 0), is_dropped: false };
            state.running.insert(key, running);
        }
        let transfers = Arc::clone(self);
        let run = move || {
            let outcome = transfers.run(service, &order, &cancel);
            transfers.end(key, outcome);
        };
        if let Err(e) = thread::Builder::new().name("transfer".to_owned()).spawn(run) {
            let text = "start a thread for the transfer";
            let error = Error::new(ErrorKind::Limit, Scope::Service, Phase::Prepare, text);
            self.end(key, Err(error.retry(Retry::After).caused_by(e)));
        }
    }

    /// Records the end of a transfer.
    fn end(&self, key: Key, outcome: Result<(Moved, Option<Commission>), Error>) {
        let (moved, failure, deletes) = match outcome {
            Ok((moved, deletes)) => (moved, None, deletes),
            Err(error) => (Moved::default(), Some(Failure::from(&error)), None),
        };
        let mut state = self.state.lock();
        if state.running.remove(&key).is_some_and(|running| !running.is_dropped) {
            let report = FromAgent::Ended { key, moved, failure };
            state.ended.insert(key, Ended { report, deletes });
        }
        drop(state);
        self.ended.notify_one();
        self.idle.notify_all();
    }

    /// Runs a transfer. Returns its copy too, if the source is to be deleted.
    fn run(&self, service: Service, order: &Order, cancel: &Cancel) -> Result<(Moved, Option<Commission>), Error> {
        let (task, key) = (&order.task, Key::of(&order.task));
        let spec = CommissionSpec { service: service.key, from: service.address, work: work_of(order)? };
        let commission = self.agent.commission(spec)?;
        commission.check_own_end(cancel)?;
        let (started, is_late) = (Instant::now(), AtomicBool::new(false));
        let time_max = task.options.timeout_s.map(|seconds| Duration::from_secs(u64::from(seconds)));
        let facts = Mutex::new(PathFacts::default());
        let report = |progress: &CopyProgress| {
            if let Some(running) = self.state.lock().running.get_mut(&key) {
                running.bytes.0 = progress.session.counters.bytes_brought();
            }
            observe(&mut facts.lock(), progress);
            if time_max.is_some_and(|time| started.elapsed() > time) && !is_late.swap(true, Ordering::Relaxed) {
                cancel.cancel();
            }
        };
        let outcome = commission.run(cancel, PROGRESS_EVERY, report).map_err(|failure| failure.error);
        let facts = matches!(order.other, Other::Agent { .. }).then(|| facts.into_inner());
        let outcome = outcome.and_then(|summary| moved(&summary, facts));
        let outcome = match outcome {
            Err(_) if is_late.into_inner() => {
                let text = format!("the attempt took longer than {} s", task.options.timeout_s.unwrap_or_default());
                Err(Error::new(ErrorKind::Limit, Scope::Path, Phase::Transfer, text).retry(Retry::After))
            }
            // An earlier start may have published it before its worker or the service ended.
            Err(error) if error.kind == ErrorKind::Exists && task.is_repeated() => compare(&commission, cancel, error),
            outcome => outcome,
        };
        let moved = outcome?;
        Ok((moved, Some(commission).filter(|_| task.deletes_source)))
    }
}

/// Returns the outcome of a transfer whose destination exists: it has arrived, if both files are the same.
fn compare(commission: &Commission, cancel: &Cancel, exists: Error) -> Result<Moved, Error> {
    match commission.is_same(cancel)? {
        true => Ok(Moved { by: Some(BY_AGENTS.to_owned()), ..Moved::default() }),
        false => Err(exists),
    }
}

/// Returns the copy that an order describes. Errors: `Usage`, `Protocol`.
fn work_of(order: &Order) -> Result<Work, Error> {
    let task = &order.task;
    let checksum = task.checksum.as_deref().filter(|_| task.options.checksum != ChecksumPolicy::None);
    let (algorithm, expect) = checksum.map(read_checksum).transpose()?.unwrap_or_default();
    let checks = algorithm.map_or(Checks::NONE, |algorithm| Checks::NONE.with(algorithm));
    let overwrite = match task.options.overwrite {
        OverwritePolicy::Never => Overwrite::Never,
        OverwritePolicy::Always => Overwrite::Always,
        OverwritePolicy::OnRetry if task.attempt > 1 => Overwrite::Always,
        OverwritePolicy::OnRetry => Overwrite::Never,
    };
    let (address, key, grant) = match &order.other {
        Other::Agent { address, key, grant } => (address, key, grant),
        Other::Web { token } if order.end == End::Destination => {
            let (source, token) = (WebLocation::parse(&http(&task.source))?, token.clone().map(Secret));
            let destination = remote(&task.destination)?.path;
            return Ok(Work::FromWeb { source, token, destination, overwrite, checks, expect });
        }
        Other::Web { .. } => {
            let text = format!("send to {}: an agent only reads from web servers", task.destination);
            return Err(Error::new(ErrorKind::Usage, Scope::Service, Phase::Prepare, text));
        }
    };
    let (source, destination) = (remote(&task.source)?, remote(&task.destination)?);
    let HostPort { host, port } =
        address.parse().map_err(|why| Error::protocol(format!("the address {address:?}: {why}")))?;
    let key: Fingerprint = key.parse().map_err(|e| Error::protocol("the key of the other agent").caused_by(e))?;
    let request = ThirdParty {
        active: match order.end {
            End::Source => ActiveEnd::Source,
            End::Destination => ActiveEnd::Destination,
        },
        passive: PassiveAgent { host, port, keys: vec![key.0] },
        sources: vec![source.path],
        destination: destination.path,
        overwrite,
        checks,
        expect,
        dry_run: false,
        compress: CompressionPolicy::Auto,
        via: None,
        lanes: None,
        congestion: None,
        contract: RateContract::default(),
        linger: LINGER,
        settled: Vec::new(),
    };
    let grant = SignedGrant::decode(&from_base64(grant)?)?;
    Ok(Work::WithAgent { request: Box::new(request), grant: Box::new(grant) })
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

/// Reads `ALGORITHM:value` or `ALGORITHM`. Leaves out an algorithm that lanes do not compute: they verify BLAKE3.
fn read_checksum(text: &str) -> Result<(Option<Algorithm>, Option<Digest>), Error> {
    let (name, value) = text.split_once(':').map_or((text, None), |(name, value)| (name, Some(value)));
    let Ok(algorithm) = name.to_ascii_lowercase().parse::<Algorithm>() else { return Ok((None, None)) };
    let digest = value.map(|value| format!("{}:{value}", name.to_ascii_lowercase()).parse::<Digest>());
    Ok((Some(algorithm), digest.transpose()?))
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

/// Returns the result of a copy. Errors: that of its file; `Usage`, if it was no single file.
fn moved(summary: &CopySummary, path: Option<PathFacts>) -> Result<Moved, Error> {
    if let Some(error) = summary.failures.first() {
        return Err(error.clone());
    }
    if summary.done + summary.skipped != 1 {
        let text = "the source is no single file: a transfer moves one file";
        return Err(Error::new(ErrorKind::Usage, Scope::Source, Phase::Prepare, text));
    }
    let bytes = summary.bytes + summary.bytes_skipped;
    let limits = summary.limits.total.shares();
    Ok(Moved {
        bytes,
        size: Some(bytes),
        time_ms: u64::try_from(summary.elapsed.as_millis()).unwrap_or(u64::MAX),
        checksum: None,
        by: Some(BY_AGENTS.to_owned()),
        limits: limits.into_iter().map(|(limit, share)| (limit.name().to_owned(), share)).collect(),
        path,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn checksums_name_their_algorithm_in_any_case() {
        let (algorithm, digest) = read_checksum("ADLER32:1a2b3c4d").unwrap();
        assert!(algorithm == Some(Algorithm::Adler32) && digest.is_some());
        assert_eq!(read_checksum("ADLER32").unwrap(), (Some(Algorithm::Adler32), None));
        assert_eq!(read_checksum("WHIRLPOOL:00").unwrap(), (None, None));
        assert!(read_checksum("adler32:xyz").is_err());
    }
}
