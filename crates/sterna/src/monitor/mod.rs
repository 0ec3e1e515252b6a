//! Monitor of an agent: visits its peers by the schedule, stores the rounds, logs alarms, and reports to the service.
//!
//! One thread visits one peer at a time. It holds the place for measurements of its own agent meanwhile, so that tests
//! never overlap on a host, and gives the place up if an examination waits. Decisions are in `sterna_doctor::monitor`.

mod http;
pub mod store;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use sterna_doctor::evidence::{Direction, Purpose, Record};
use sterna_doctor::monitor::{
    Change, ECHOES, Echoes, Failure, Measured, Outcome, Present, Round, Schedule, Series, Settings, Test, TestPlan,
    Turn, evidence, metrics,
};
use sterna_net::agent::{Agent, OwnPlace};
use sterna_net::engine::{Cancel, Engine, Observed, Trust, observe_path};
use sterna_net::identity::{Fingerprint, Identity, KnownHosts};
use sterna_net::measure::{FlowSpec, Measurement, SocketSettings, host_facts};
use sterna_proto::location::RemoteLocation;
use sterna_proto::{BitRate, Error, ErrorKind, Phase, Scope};
use sterna_service::agent::Visits;
use sterna_service::worker::Visited;

use self::store::Journal;
use crate::flags::MonitorFlags;
use crate::trust::AskedTrust;

/// Maximum number of peers. Reason: they are visited one after the other, within five minutes with some tests.
const PEERS_MAX: usize = 64;

/// First of the source ports of echoes. Reason: above those that Linux gives to connections (32768 to 60999), so that a
/// flow has the same port in each round.
const FIRST_PORT: u16 = 61_000;

/// Round trips that the path cache takes, seconds.
const RTT_S: std::ops::Range<f64> = 1e-6..60.0;

/// Intervals of visits that find other measurements, after which the path counts as not measured.
const BUSY_ROUNDS: u32 = 3;

/// Time over which spent bytes count after a restart, seconds.
const DAY_S: u64 = 86_400;

/// Running monitor. It ends with [`Monitor::stop`].
pub struct Monitor {
    cancel: Cancel,
}

/// Path to a peer, with its rounds so far.
struct MonitoredPath {
    name: String,
    series: Series,
}

type Paths = Arc<Mutex<Vec<MonitoredPath>>>;

/// Peer that is visited.
struct Peer {
    location: RemoteLocation,
    journal: Journal,
    /// Key of the peer, as it was seen last; `None`: before the first contact.
    key: Option<Fingerprint>,
    /// The last visit had no measurements.
    is_absent: bool,
    /// Start of the visits in a row that found another measurement.
    busy_since: Option<Duration>,
}

/// Thread that visits the peers.
struct Worker {
    agent: Arc<Agent>,
    engine: Engine,
    state: PathBuf,
    peers: Vec<Peer>,
    paths: Paths,
    /// Way to the service of the agent.
    visits: Option<Visits>,
    schedule: Schedule,
    /// Time between two visits of a peer.
    every: Duration,
    cancel: Cancel,
    start: Instant,
}

/// End of a visit.
enum Visit {
    /// This host or the peer has a measurement with somebody else.
    Busy,
    /// No measurements.
    Failed(Failure),
    /// Measurements, the address of the peer, and the test that ran.
    Measured(Measured, SocketAddr, Option<TestPlan>),
}

impl Monitor {
    /// Starts the monitor of an agent; `None` if it has no peers. `visits`: the way to the service of the agent.
    ///
    /// Errors: `Usage`: too many peers, or one twice; the address for metrics is in use; the file for rounds cannot be
    /// opened.
    pub fn start(
        flags: &MonitorFlags,
        agent: &Arc<Agent>,
        identity: &Identity,
        state: &Path,
        visits: Option<Visits>,
    ) -> Result<Option<Self>, Error> {
        let mut names: Vec<String> = flags.peers.iter().map(KnownHosts::name_of).collect();
        if names.len() > PEERS_MAX {
            let text = format!("--monitor for {} agents: at most {PEERS_MAX}", names.len());
            return Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text));
        }
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            let text = format!("--monitor for {} twice: name it once", twice[0]);
            return Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text));
        }
        if names.is_empty() {
            return Ok(None);
        }
        let (mut peers, mut paths, known) = (Vec::new(), Vec::new(), KnownHosts::new(state));
        for location in &flags.peers {
            let name = KnownHosts::name_of(location);
            let journal = Journal::open(state, &name)?;
            let keys = known.keys(&name).unwrap_or_default();
            let key = Some(keys).filter(|keys| keys.len() == 1).and_then(|keys| keys.first().copied());
            peers.push(Peer { location: location.clone(), journal, key, is_absent: false, busy_since: None });
            paths.push(MonitoredPath { name, series: Series::default() });
        }
        let settings = Settings { every: flags.every, budget_bytes: flags.budget.0, rate: flags.rate };
        let seed = getrandom::u64().map_err(|e| internal("ask the kernel for random bytes").caused_by(e))?;
        let paths = Arc::new(Mutex::new(paths));
        if let Some(listen) = flags.metrics {
            let of = Arc::clone(&paths);
            let at = http::serve(listen, move || metrics::text(&present(&of)))?;
            tracing::warn!("serves metrics at http://{at}/metrics to everybody who reaches this address");
        }
        let trust: Arc<dyn Trust> = Arc::new(AskedTrust::without_questions(state, flags.trust.clone()));
        let cancel = Cancel::default();
        let (agent, engine) = (Arc::clone(agent), Engine::new(identity.clone(), trust));
        let (state, cancelled, every) = (state.to_owned(), cancel.clone(), flags.every);
        // Stored rounds of many paths take seconds, in which the agent serves already.
        let run = move || {
            let spent: Vec<u64> =
                (0..peers.len()).map(|peer| recalled(&peers[peer].journal, &paths, peer, &cancelled)).collect();
            let schedule = Schedule::new(settings, &spent, seed);
            let start = Instant::now();
            Worker { agent, engine, state, peers, paths, visits, schedule, every, cancel: cancelled, start }.run();
        };
        let spawned = thread::Builder::new().name("monitor".to_owned()).spawn(run);
        spawned.map_err(|e| internal("start the thread of the monitor").caused_by(e))?;
        Ok(Some(Self { cancel }))
    }

    /// Ends the monitor: a wait and a question end at once, and the connection to a peer closes.
    pub fn stop(&self) {
        self.cancel.cancel();
    }
}

/// Reads the stored rounds of a path. Returns the bytes of its tests in the last day.
fn recalled(journal: &Journal, paths: &Paths, peer: usize, cancel: &Cancel) -> u64 {
    let rounds = journal.rounds().unwrap_or_else(|error| {
        tracing::warn!("read the stored rounds of the monitor; it begins without them: {}", error.chain());
        Vec::new()
    });
    let (mut series, mut bytes, now) = (Series::default(), 0_u64, unix_time());
    for round in &rounds {
        if cancel.is_cancelled() {
            break;
        }
        series.observe(round);
        // A clock that was ahead has left rounds of the future.
        if let Outcome::Measured(measured) = &round.outcome
            && round.at <= now
            && now - round.at < DAY_S
        {
            bytes = bytes.saturating_add(measured.test_bytes);
        }
    }
    series.begin_counts();
    paths.lock()[peer].series = series;
    bytes
}

/// Returns what holds on all paths.
fn present(paths: &Paths) -> Vec<(String, Present)> {
    paths.lock().iter().map(|path| (path.name.clone(), path.series.present())).collect()
}

impl Worker {
    /// Visits peers until the cancellation.
    fn run(mut self) {
        while let Some((peer, due)) = self.schedule.next() {
            self.cancel.wait(due.saturating_sub(self.start.elapsed()));
            if self.cancel.is_cancelled() {
                return;
            }
            let visit = self.visit(peer);
            if self.cancel.is_cancelled() {
                return;
            }
            self.finish(peer, visit);
        }
    }

    /// Records the end of a visit.
    fn finish(&mut self, peer: usize, visit: Visit) {
        let now = self.start.elapsed();
        let since = *self.peers[peer].busy_since.get_or_insert(now);
        if !matches!(visit, Visit::Busy) {
            self.peers[peer].busy_since = None;
        }
        match visit {
            Visit::Busy if now.saturating_sub(since) > self.every * BUSY_ROUNDS => {
                let text = format!(
                    "this agent or the peer took part in other measurements at each try for {} s",
                    now.saturating_sub(since).as_secs()
                );
                self.peers[peer].busy_since = None;
                self.schedule.handle_failure(peer, now);
                self.record(peer, Outcome::Failed(Failure::Refused(text)));
            }
            Visit::Busy => self.schedule.handle_busy(peer, now),
            Visit::Failed(failure) => {
                self.schedule.handle_failure(peer, now);
                self.record(peer, Outcome::Failed(failure.cut()));
            }
            Visit::Measured(measured, remote, test) => {
                self.schedule.handle_round(peer, now, measured.test_bytes, test);
                if let Some(fastest) = measured.echoes.as_ref().and_then(Echoes::fastest_s) {
                    self.schedule.handle_rtt(peer, Duration::from_secs_f64(fastest));
                }
                self.learn(&measured, remote);
                self.record(peer, Outcome::Measured(measured));
            }
        }
    }

    /// Visits a peer, with the place of this agent.
    fn visit(&mut self, peer: usize) -> Visit {
        let Ok(place) = self.agent.take_place() else { return Visit::Busy };
        let is_wanted = self.paths.lock()[peer].series.wants_test();
        let test = self.schedule.test(peer, self.start.elapsed(), is_wanted);
        let mut measurement = match self.engine.monitor(&self.peers[peer].location, &self.cancel) {
            Ok(measurement) => measurement,
            Err(error) => return failed(&error),
        };
        let _end = measurement.end_at(&self.cancel);
        let remote = measurement.remote();
        self.peers[peer].key = Some(measurement.agent_key());
        match measure(&mut measurement, &place, test) {
            Ok((measured, test)) => Visit::Measured(measured, remote, test),
            Err(error) => failed(&error),
        }
    }

    /// Stores a round, logs what it shows, and reports it to the service.
    fn record(&mut self, peer: usize, outcome: Outcome) {
        let round = Round { at: unix_time(), outcome };
        let Peer { journal, key, is_absent, .. } = &mut self.peers[peer];
        let mut paths = self.paths.lock();
        let MonitoredPath { name, series } = &mut paths[peer];
        let changes = series.observe(&round);
        match &round.outcome {
            Outcome::Failed(failure) if !*is_absent => {
                tracing::warn!("path to {name}: not measured, trying again: {}", failure.text());
            }
            Outcome::Measured(_) if series.present().counts.rounds == 1 => {
                tracing::info!("path to {name}: first round measured");
            }
            _ => {}
        }
        *is_absent = matches!(round.outcome, Outcome::Failed(_));
        changes.iter().for_each(|change| log(name, change));
        let alarms = series.alarms().to_vec();
        drop(paths);
        if let (Some(visits), Some(key)) = (&self.visits, key) {
            visits.report(Visited { peer: key.to_string(), round: round.clone(), alarms });
        }
        if let Err(error) = journal.append(&round) {
            tracing::warn!("store a round of the monitor: {}", error.chain());
        }
    }

    /// Records the rates of tests in the path cache, with the round trip and the loss of the echoes.
    fn learn(&self, measured: &Measured, remote: SocketAddr) {
        let Some(echoes) = &measured.echoes else { return };
        let Some(fastest) = echoes.fastest_s().filter(|rtt| RTT_S.contains(rtt)) else { return };
        for test in &measured.tests {
            let (lost, sent) = echoes.losses(test.direction);
            let observed = Observed {
                direction: test.direction.of_data(),
                remote,
                // The report is that of the peer in one direction: no more than was allowed.
                rate: Some(BitRate(test.rate_bps.min(test.cap_bps))),
                rtt: Duration::from_secs_f64(fastest),
                // Not above a million.
                loss_ppm: (lost as f64 / sent.max(1) as f64 * 1e6) as u32,
            };
            if let Err(error) = observe_path(&self.state, &observed) {
                tracing::debug!("{}", error.chain());
            }
        }
    }
}

/// Measures with a peer: echoes, and the test in both directions unless an examination waits. A visit that must end
/// early keeps what was measured. Returns the test that ran.
fn measure(
    measurement: &mut Measurement,
    place: &OwnPlace,
    test: Option<TestPlan>,
) -> Result<(Measured, Option<TestPlan>), Error> {
    let report = measurement.echo_from(&ECHOES, FIRST_PORT)?;
    let echoes = Echoes::new(&report);
    let (mut flows, mut begun) = (Vec::new(), 0_u64);
    for direction in Direction::ALL {
        let Some(plan) = test.filter(|_| !place.is_wanted()) else { break };
        let spec = FlowSpec {
            direction: direction.of_data(),
            streams: 1,
            // At most some seconds.
            time_ms: plan.time.as_millis() as u64,
            bytes_max: plan.bytes_max,
            sender: SocketSettings { pacing_bps: Some(plan.rate.0), ..SocketSettings::default() },
            receiver: SocketSettings::default(),
        };
        begun += 1;
        match measurement.flow(&spec) {
            Ok(pair) => flows.push((direction, spec, pair)),
            Err(error) if error.kind == ErrorKind::Busy => {
                // The peer gives its place to an examination, before data moves.
                begun -= 1;
                break;
            }
            Err(error) => {
                tracing::debug!("throughput test, {}: {}", direction.name(), error.chain());
                break;
            }
        }
    }
    // A test that fails may have moved all its data.
    let failed = (begun - flows.len() as u64) * test.map_or(0, |plan| plan.bytes_max);
    let near = host_facts();
    let evidence =
        evidence((&near, measurement.far_host()), measurement.remote().is_ipv6(), Some((ECHOES, report)), flows);
    let cost = |purpose: Option<Purpose>| {
        let records = evidence.records.iter().filter(|record| purpose.is_none_or(|purpose| record.purpose == purpose));
        records.map(Record::cost_bytes).fold(failed, u64::saturating_add)
    };
    let (bytes, test_bytes) = (cost(None), cost(Some(Purpose::Baseline)));
    let tests: Vec<Test> = Direction::ALL.into_iter().filter_map(|direction| Test::of(&evidence, direction)).collect();
    let ran = test.filter(|_| begun > 0);
    Ok((Measured { echoes: Some(echoes), tests, bytes, test_bytes }, ran))
}

fn failed(error: &Error) -> Visit {
    match error.kind {
        ErrorKind::Busy => Visit::Busy,
        ErrorKind::Unreachable => Visit::Failed(Failure::Unreachable(error.chain())),
        _ => Visit::Failed(Failure::Refused(error.chain())),
    }
}

fn log(name: &str, change: &Change) {
    match change.turn {
        Turn::Raised | Turn::Moved => tracing::warn!("path to {name}: {}", change.words()),
        Turn::Cleared | Turn::Settled | Turn::Improved => tracing::info!("path to {name}: {}", change.words()),
    }
}

fn internal(text: &str) -> Error {
    Error::new(ErrorKind::Internal, Scope::Client, Phase::Prepare, text)
}

/// Returns the seconds since 1970.
fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
