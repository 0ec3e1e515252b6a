//! Meter of a streamed transfer: which end waits for the other, and the state of the connection to the destination.
//!
//! Gives the samples of a lane to the accountant of all copies (`proto::limit`): the task that reads from the source
//! and writes to the destination is its feeder. Refuses to decide anything: the accountant does.

use std::convert::Infallible;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sterna_net::lane::tcp;
use sterna_proto::limit::{
    Accountant, LaneSample, Limit, LimitTimes, SourceSample, TcpSample, TransportSample, Waits, WebSample,
};
use sterna_proto::session::LaneId;
use tokio::net::TcpStream;
use tokio::time::{MissedTickBehavior, interval};

use super::progress::Progress;

/// Interval between samples. Reason: the same as for lanes of agents.
const SAMPLE_EVERY: Duration = Duration::from_millis(100);

/// Reason of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Bytes of the source.
    Source,
    /// Room on the connection to the destination.
    Destination,
    /// An answer of the destination.
    Answer,
}

/// Meter of a streamed transfer.
pub(super) struct Meter<'a> {
    progress: &'a Progress,
    /// The source is a file of this host.
    is_local: bool,
    state: Mutex<State>,
}

struct State {
    begun: Instant,
    /// Times of waits that have ended, by [`Wait`].
    ended: [Duration; 3],
    now: Option<(Wait, Instant)>,
    connection: Weak<TcpStream>,
    accountant: Accountant,
    /// Times of waits before the connection.
    before: LimitTimes,
}

impl<'a> Meter<'a> {
    /// Creates it. `is_local`: the source is a file of this host.
    pub fn new(progress: &'a Progress, is_local: bool) -> Self {
        let state = State {
            begun: Instant::now(),
            ended: [Duration::ZERO; 3],
            now: None,
            connection: Weak::new(),
            accountant: Accountant::to_web_server(),
            before: LimitTimes::default(),
        };
        Self { progress, is_local, state: Mutex::new(state) }
    }

    /// Records that this worker has waited for the source before it had a connection to the destination.
    pub fn opened(&self, time: Duration) {
        let limit = if self.is_local { Limit::SourceDisk } else { Limit::ServerOrPath };
        self.state.lock().before.add(limit, time);
    }

    /// Waits, and records the time.
    pub async fn during<T>(&self, wait: Wait, work: impl Future<Output = T>) -> T {
        self.state.lock().now = Some((wait, Instant::now()));
        let outcome = work.await;
        let mut state = self.state.lock();
        if let Some((wait, since)) = state.now.take() {
            state.ended[wait as usize] += since.elapsed();
        }
        outcome
    }

    /// Measures a connection to the destination from now on.
    pub fn watch(&self, connection: &Arc<TcpStream>) {
        let mut state = self.state.lock();
        state.connection = Arc::downgrade(connection);
        self.sample(&mut state, Instant::now());
    }

    /// Takes samples until it is dropped.
    pub async fn run(&self) -> Infallible {
        let mut ticks = interval(SAMPLE_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.sample(&mut self.state.lock(), Instant::now());
        }
    }

    /// Takes the last sample.
    pub fn finish(&self) {
        self.sample(&mut self.state.lock(), Instant::now());
    }

    fn sample(&self, state: &mut State, now: Instant) {
        let transport = state.connection.upgrade().and_then(|stream| tcp::sample_of(&*stream).ok());
        let feeder = state.waits(now);
        let lane = |tcp: TcpSample| (LaneId(0), LaneSample { feeder, transport: TransportSample::Tcp(tcp) });
        let lanes: Vec<_> = transport.map(lane).into_iter().collect();
        let source = SourceSample { web: (!self.is_local).then(WebSample::default), ..SourceSample::default() };
        state.accountant.handle_samples(now, &lanes, &source);
        let mut times = state.before;
        times.merge(&state.accountant.report().total);
        self.progress.set_limits(times);
    }
}

impl State {
    fn waits(&self, now: Instant) -> Waits {
        let mut waits = self.ended;
        if let Some((wait, since)) = self.now {
            waits[wait as usize] += now.saturating_duration_since(since);
        }
        let [storage, transport, idle] = waits;
        let all = now.saturating_duration_since(self.begun);
        Waits { storage, transport, idle, compute: all.saturating_sub(storage + transport + idle) }
    }
}
