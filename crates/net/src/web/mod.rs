//! Files on web servers, as sources of a session.
//!
//! Requests the size and version of each file and reads ranges of it, with at most one request per lane. An interrupted
//! read continues from where it stopped. A server that reports overload gets no request for the time that it requests.
//! Refuses to accept anything else as the file: another version, a short body, a login page. It decides nothing about
//! blocks, and reads the clock to wait.

mod certificates;
mod exchange;
mod fetch;
mod file;
mod hosts;
mod lanes;
mod options;
mod prefix;
mod reply;
mod secrets;
mod socket;

pub(crate) use certificates::refusal;
pub(crate) use exchange::{fuzz_redirect, roots, said, tls_error};
pub(crate) use fetch::{FetchBody, Fetcher, Found};
pub use options::WebOptions;
pub(crate) use reply::fuzz as fuzz_reply;
pub use secrets::{Secret, TokenSource};

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use sterna_proto::limit::WebSample;
use sterna_proto::session::LaneId;
use sterna_proto::web::WebLocation;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use self::exchange::Exchange;
use self::file::{ProbeKind, Prober, WebFile};
use self::lanes::{OfferedWebFile, Runs};
use crate::observer::Observer;
use crate::source::{LaneChange, Offers, Source};

/// Most files that are probed at once. Reason: at most as many as there are connections. With sixteen, a thousand
/// files over 150 ms are probed in 10 s, while lanes are busy with the first.
const PROBES_MAX: usize = 16;

/// Web servers of one session.
pub struct Web {
    exchange: Arc<Exchange>,
    locations: Vec<WebLocation>,
    connections: u32,
    prober: Prober,
    runs: Arc<Runs>,
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
        let exchange = Arc::new(Exchange::new(options, &locations, observer)?);
        Ok(Self {
            locations,
            connections: options.connections,
            prober: Prober::new(&exchange, options.patience),
            runs: Runs::new(&exchange, options.patience),
            exchange,
            control,
        })
    }

    /// Probes every file, several at once, and passes each to `found` when it is known. Ends early when `is_over`
    /// is true.
    fn probe_all(&self, found: &(dyn Fn(Result<WebFile, Error>) + Sync), is_over: &(dyn Fn() -> bool + Sync)) {
        // The session is over only after its last message; its requests end before.
        let is_over = &|| is_over() || self.exchange.hosts.is_stopped();
        let wanted = self.named(found);
        let kind = if wanted.len() == 1 { ProbeKind::ReadOn } else { ProbeKind::Head };
        let next = AtomicUsize::new(0);
        let probe_all = || {
            while let Some(location) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.prober.wait_for_room(is_over);
                if is_over() {
                    return;
                }
                found(self.prober.probe(location, kind));
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

    /// Ends every request and every wait, because the session is over.
    pub fn stop(&self) {
        self.exchange.stop();
        self.prober.stop();
    }

    /// Returns the bytes of files that servers have sent, used or not.
    pub fn received_bytes(&self) -> u64 {
        self.exchange.received_bytes()
    }

    /// Returns the number of lanes that are reading an answer.
    pub fn reading(&self) -> usize {
        self.runs.count()
    }
}

impl Source for Web {
    fn list(self: Arc<Self>, offers: &Arc<dyn Offers>) {
        let found = |found: Result<WebFile, Error>| match found {
            Ok(file) if offers.has_settled(file.entry()) => {}
            Ok(file) => {
                if let Some(text) = file.notice() {
                    self.exchange.notice(text.to_owned());
                }
                let (entry, order) = (file.entry().clone(), file.order());
                offers.offer(entry, order, Arc::new(OfferedWebFile::new(&self.runs, file)));
            }
            // The request was cancelled because the session is over: its error does not concern the file.
            Err(_) if offers.is_closed() || self.exchange.hosts.is_stopped() => {}
            Err(error) => offers.unreadable(error),
        };
        self.probe_all(&found, &|| offers.is_closed());
    }

    fn lanes_max(&self) -> Option<u32> {
        Some(self.connections)
    }

    fn takes_blocks(&self, lane: LaneId) -> bool {
        self.control != Some(lane)
    }

    /// A connection would lose its read position through samples out of order.
    fn is_sequential(&self) -> bool {
        true
    }

    fn handle_lane(&self, lane: LaneId, change: LaneChange) {
        match change {
            LaneChange::Idle => self.runs.end(lane),
            LaneChange::Down => self.exchange.hosts.lane_down(lane),
            LaneChange::Ended => {
                self.exchange.hosts.lane_fed(lane);
                self.runs.end(lane);
            }
        }
    }

    fn stop(&self) {
        Self::stop(self);
    }

    fn measured(&self) -> Option<WebSample> {
        Some(self.exchange.measured())
    }

    fn round_trip(&self) -> Option<Duration> {
        Some(self.exchange.round_trip())
    }
}
