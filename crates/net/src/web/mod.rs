//! Files on web servers, as sources of a session.
//!
//! What it does: asks each server for a file's size and version, and reads ranges of it, with at most one request a lane. What is
//! cut is asked for again from where it stopped; a server that has too much to do is left alone as long as it asks for.
//! What it refuses to do: take anything else for the file: another version, a short body, a page where people sign in. It
//! decides nothing about blocks, and reads the clock to wait.

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

/// Files that are asked about at once. Reason: as many as there are connections at most, and with sixteen a thousand files
/// over 150 ms are known in 10 s, while lanes are busy with the first.
const PROBES_MAX: usize = 16;

/// How web servers are spoken with.
#[derive(Clone, Debug)]
pub struct WebOptions {
    /// Where a bearer token comes from.
    pub token: Option<TokenSource>,
    /// A file of certificates of authorities to be trusted beside those of this host.
    pub authority: Option<PathBuf>,
    /// Requests that each server gets at once, at most.
    pub connections: u32,
    /// How long what fails is tried again.
    pub patience: Duration,
    /// A digest says what the file must be.
    pub is_expected: bool,
}

/// The web servers of one session.
pub struct Web {
    exchange: Exchange,
    locations: Vec<WebLocation>,
    connections: u32,
    patience: Duration,
    held: Arc<Held>,
    /// What each lane is reading.
    runs: Mutex<HashMap<LaneId, OpenRun>>,
    /// This lane carries control frames and no blocks.
    control: Option<LaneId>,
}

impl Web {
    /// The files at `locations`; nothing is asked yet. `control`: a lane that is kept free of blocks.
    ///
    /// Errors: `Usage`; an authority's file cannot be read.
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

    /// Asks for every file, several at once, and hands each to `found` as soon as it is known; ends early when `is_over`.
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
                // Fewer threads are slower and no failure.
                let _ = thread::Builder::new().name("probe".to_owned()).spawn_scoped(scope, probe_all);
            }
            probe_all();
        });
    }

    /// The locations whose names are good and differ; the others are told to `found`.
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

    /// Tells the person something.
    pub(crate) fn notice(&self, text: String) {
        self.exchange.notice(text);
    }

    /// Whether `lane` may take blocks.
    pub(crate) fn takes_blocks(&self, lane: LaneId) -> bool {
        self.control != Some(lane)
    }

    /// Lanes that take blocks, at most.
    pub(crate) fn connections(&self) -> u32 {
        self.connections
    }

    /// `lane` has nothing to read now: what is left of its answer is of no use.
    pub(crate) fn rest(&self, lane: LaneId) {
        // Dropped without the lock.
        let _open = lock(&self.runs).remove(&lane);
    }

    /// `lane` is down: nothing is waited for any more on its behalf.
    pub(crate) fn lane_down(&self, lane: LaneId) {
        self.exchange.hosts.lane_down(lane);
    }

    /// The feeder of `lane` has ended: its answer, and the right to its connection, are another's.
    pub(crate) fn lane_fed(&self, lane: LaneId) {
        self.exchange.hosts.lane_fed(lane);
        self.rest(lane);
    }

    /// Whether a read for `lane` failed since that is down, or the session over.
    pub(crate) fn is_over(&self, lane: LaneId) -> bool {
        self.exchange.hosts.is_over(Some(lane))
    }

    /// Ends every request and every wait: the session is over.
    pub fn stop(&self) {
        self.exchange.stop();
    }

    /// Bytes that servers have sent of files, whatever became of them.
    pub fn received_bytes(&self) -> u64 {
        self.exchange.received_bytes()
    }

    /// What is measured of the connections, all together.
    pub(crate) fn measured(&self) -> WebSample {
        self.exchange.measured()
    }

    /// The least round trip to a server, or zero where it is not known.
    pub(crate) fn round_trip(&self) -> Duration {
        self.exchange.round_trip()
    }

    /// Lanes with an answer that they are reading.
    pub fn reading(&self) -> usize {
        lock(&self.runs).len()
    }
}
