//! Files on web servers, as sources of a session.
//!
//! What it does: requests the size and version of each file and reads ranges of it, with at most one request per
//! lane. An interrupted read continues from where it stopped. A server that reports overload gets no request for
//! the time that it requests. What it refuses to do: accept anything else as the file: another version, a short
//! body, a login page. It decides nothing about blocks, and reads the clock to wait.

mod certificates;
mod exchange;
mod file;
mod hosts;
mod lanes;
mod reply;
mod secrets;
mod socket;

pub(crate) use exchange::fuzz_redirect;
pub(crate) use file::WebFile;
pub(crate) use lanes::WebReader;
pub(crate) use reply::fuzz as fuzz_reply;
pub use secrets::TokenSource;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use sterna_proto::limit::WebSample;
use sterna_proto::session::LaneId;
use sterna_proto::web::WebLocation;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use self::exchange::Exchange;
use self::file::{Held, ProbeKind};
use self::lanes::OpenRun;
use crate::session::{Observer, lock};

/// Most files that are probed at once. Reason: at most as many as there are connections. With sixteen, a thousand
/// files over 150 ms are probed in 10 s, while lanes are busy with the first.
const PROBES_MAX: usize = 16;

/// Settings for web servers.
#[derive(Clone, Debug)]
pub struct WebOptions {
    /// Source of a bearer token.
    pub token: Option<TokenSource>,
    /// File with certificates of authorities that are trusted in addition to those of this host.
    pub authority: Option<PathBuf>,
    /// Most requests that each server gets at once.
    pub connections: u32,
    /// Time for which a failed request is retried.
    pub patience: Duration,
    /// True if the user gave a digest that the file must have.
    pub is_expected: bool,
}

/// Web servers of one session.
pub struct Web {
    exchange: Exchange,
    locations: Vec<WebLocation>,
    connections: u32,
    patience: Duration,
    held: Arc<Held>,
    /// Answer that each lane is reading.
    runs: Mutex<HashMap<LaneId, OpenRun>>,
    /// Lane that carries control frames and no blocks.
    control: Option<LaneId>,
}

impl Web {
    /// Creates the servers for the files at `locations`; sends no request yet. `control`: a lane that is kept free
    /// of blocks.
    ///
    /// Errors: `Usage`, also when an authority's file cannot be read.
    pub fn new(
        options: &WebOptions,
        locations: Vec<WebLocation>,
        control: Option<LaneId>,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, Error> {
        Ok(Self {
            exchange: Exchange::new(options, &locations, observer)?,
            locations,
            connections: options.connections,
            patience: options.patience,
            held: Arc::default(),
            runs: Mutex::default(),
            control,
        })
    }

    /// Probes every file, several at once, and passes each to `found` when it is known. Ends early when `is_over`
    /// is true.
    pub(crate) fn list(&self, found: &(dyn Fn(Result<WebFile, Error>) + Sync), is_over: &(dyn Fn() -> bool + Sync)) {
        let wanted = self.named(found);
        let kind = if wanted.len() == 1 { ProbeKind::ReadOn } else { ProbeKind::Head };
        let next = AtomicUsize::new(0);
        let probe_all = || {
            while let Some(location) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.held.wait_for_room(is_over);
                if is_over() {
                    return;
                }
                found(self.probe(location, kind));
            }
        };
        let count = wanted.len().min(PROBES_MAX).min(self.connections as usize);
        thread::scope(|scope| {
            for _ in 1..count {
                // With fewer threads the probes are slower, which is no failure.
                let _ = thread::Builder::new().name("probe".to_owned()).spawn_scoped(scope, probe_all);
            }
            probe_all();
        });
    }

    /// Returns the locations whose names are valid and differ; reports the others to `found`.
    fn named(&self, found: &(dyn Fn(Result<WebFile, Error>) + Sync)) -> Vec<WebLocation> {
        let mut names = HashSet::new();
        let mut wanted = Vec::new();
        for location in &self.locations {
            match location.name() {
                Ok(name) if names.insert(name.clone()) => wanted.push(location.clone()),
                Ok(name) => {
                    let text = format!(
                        "two sources have the name {name}: {location} is the second and is not copied; give it a destination \
                         of its own"
                    );
                    found(Err(Error::new(ErrorKind::Exists, Scope::Source, Phase::Prepare, text)));
                }
                Err(error) => found(Err(error)),
            }
        }
        wanted
    }

    /// Reports a message to the user.
    pub(crate) fn notice(&self, text: String) {
        self.exchange.notice(text);
    }

    /// Returns true if `lane` may take blocks.
    pub(crate) fn takes_blocks(&self, lane: LaneId) -> bool {
        self.control != Some(lane)
    }

    /// Returns the largest number of lanes that take blocks.
    pub(crate) fn connections(&self) -> u32 {
        self.connections
    }

    /// Drops the rest of the answer that `lane` reads, because the lane has nothing to read now.
    pub(crate) fn rest(&self, lane: LaneId) {
        // Dropped after the lock is released.
        let _open = lock(&self.runs).remove(&lane);
    }

    /// Records that `lane` is down, and ends every wait for it.
    pub(crate) fn lane_down(&self, lane: LaneId) {
        self.exchange.hosts.lane_down(lane);
    }

    /// Records that the feeder of `lane` has ended. Its answer and the permit for its connection become free.
    pub(crate) fn lane_fed(&self, lane: LaneId) {
        self.exchange.hosts.lane_fed(lane);
        self.rest(lane);
    }

    /// Returns true if a read for `lane` failed because the lane is down or the session is over.
    pub(crate) fn is_over(&self, lane: LaneId) -> bool {
        self.exchange.hosts.is_over(Some(lane))
    }

    /// Ends every request and every wait, because the session is over.
    pub fn stop(&self) {
        self.exchange.stop();
    }

    /// Returns the bytes of files that servers have sent, used or not.
    pub fn received_bytes(&self) -> u64 {
        self.exchange.received_bytes()
    }

    /// Returns the measurements of all connections together.
    pub(crate) fn measured(&self) -> WebSample {
        self.exchange.measured()
    }

    /// Returns the smallest round trip to a server; zero where it is not measured.
    pub(crate) fn round_trip(&self) -> Duration {
        self.exchange.round_trip()
    }

    /// Returns the number of lanes that are reading an answer.
    pub fn reading(&self) -> usize {
        lock(&self.runs).len()
    }
}
