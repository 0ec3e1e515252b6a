//! Downloads of a file over one or several connections, with samples of the receiving sockets.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;
use sterna_proto::web::WebLocation;
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};

use crate::measure::flow;
use crate::measure::message::FlowReport;
use crate::web::{Fetcher, Found};

/// Bytes of one read. Reason: a pause for a rate of 10 Mbit/s is then 50 ms.
const READ_BYTES: usize = 64 << 10;

/// Requests of one connection. Reason: a small file is read again, and a server must not be flooded.
const REQUESTS_MAX: u64 = 8;

/// File on a web server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebFile(Found);

impl WebFile {
    /// Finds a file: asks for its first byte, and follows redirects. No credentials are sent.
    ///
    /// Errors: the server refuses the file, is not trusted, or cannot be reached.
    pub fn find(location: &WebLocation) -> Result<Self, Error> {
        Fetcher::new(location, 1)?.find().map(Self)
    }

    /// Returns the location after all redirects.
    pub fn location(&self) -> &WebLocation {
        &self.0.at
    }

    /// Returns the size; `None`: the server does not announce it.
    pub fn size(&self) -> Option<u64> {
        self.0.size
    }

    /// Returns true if the server sends ranges of it.
    pub fn takes_ranges(&self) -> bool {
        self.0.takes_ranges
    }

    /// Returns true if connections end at a proxy, of which the path is then measured.
    pub fn is_proxied(&self) -> bool {
        self.0.is_proxied
    }
}

/// Download of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DownloadSpec {
    /// Connections at once.
    pub streams: u32,
    /// Time after the answers of the server have begun.
    pub time: Duration,
    /// Maximum number of bytes, over all connections.
    pub bytes_max: u64,
    /// Highest rate of all connections together, bit/s; `None`: any.
    pub rate_max_bps: Option<u64>,
}

/// Download that has ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DownloadReport {
    /// Connections at once.
    pub streams: u32,
    /// Samples of the receiving sockets.
    #[serde(skip)]
    pub near: FlowReport,
    /// Bytes of the file received.
    pub bytes: u64,
    /// Time from the first answers to the end.
    #[serde(skip)]
    pub time: Duration,
    /// Requests sent.
    pub requests: u64,
    /// The file ended early, so that pauses between requests are part of the rate.
    pub is_short: bool,
    /// Reason for which a connection ended early.
    pub failure: Option<String>,
}

/// State that the connections of a download share.
struct Shared<'a> {
    file: &'a Found,
    spec: DownloadSpec,
    fetcher: &'a Fetcher,
    /// Passed when each connection has its first answer or an error.
    answered: Barrier,
    /// Time of that.
    start: Mutex<Option<Instant>>,
    waits: Thread,
    ended: AtomicUsize,
    bytes: AtomicU64,
    requests: AtomicU64,
    is_short: AtomicBool,
    failure: Mutex<Option<Error>>,
}

/// Downloads a file.
///
/// Errors: no connection has received anything: that of the first one.
pub fn download(file: &WebFile, spec: &DownloadSpec) -> Result<DownloadReport, Error> {
    let fetcher = Fetcher::new(&file.0.at, spec.streams)?;
    let shared = Shared {
        file: &file.0,
        spec: *spec,
        fetcher: &fetcher,
        // The connections and this thread.
        answered: Barrier::new(spec.streams as usize + 1),
        start: Mutex::new(None),
        waits: thread::current(),
        ended: AtomicUsize::new(0),
        bytes: AtomicU64::new(0),
        requests: AtomicU64::new(0),
        is_short: AtomicBool::new(false),
        failure: Mutex::new(None),
    };
    let (near, time) = thread::scope(|scope| {
        for index in 0..spec.streams {
            let shared = &shared;
            scope.spawn(move || {
                shared.run(index);
                shared.ended.fetch_add(1, Ordering::Release);
                shared.waits.unpark();
            });
        }
        shared.observe()
    });
    let bytes = shared.bytes.into_inner();
    let failure = shared.failure.into_inner();
    match failure {
        Some(error) if bytes == 0 => Err(error),
        _ if bytes == 0 => {
            let text = format!("GET {}: the answer has no bytes; name a larger file", file.0.at);
            Err(Error::new(ErrorKind::Io, Scope::Source, Phase::Transfer, text).retry(Retry::Never))
        }
        failure => Ok(DownloadReport {
            streams: spec.streams,
            near,
            bytes,
            time,
            requests: shared.requests.into_inner(),
            is_short: shared.is_short.into_inner(),
            failure: failure.map(|error| error.text().to_owned()),
        }),
    }
}

impl Shared<'_> {
    /// Samples the sockets until the connections have ended or the time is over.
    fn observe(&self) -> (FlowReport, Duration) {
        self.answered.wait();
        let start = *self.start.lock().get_or_insert_with(Instant::now);
        self.answered.wait();
        let (sockets, is_over) = (self.fetcher.sockets(), AtomicBool::new(false));
        let end = start + self.spec.time;
        thread::scope(|scope| {
            let sampler = scope.spawn(|| flow::sample(&sockets, start, &is_over));
            while self.ended.load(Ordering::Acquire) < self.spec.streams as usize {
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                thread::park_timeout(left);
            }
            let time = start.elapsed();
            is_over.store(true, Ordering::Relaxed);
            // A panic of the sampler is a bug of ours, and the download has no samples then.
            let mut near = sampler.join().unwrap_or_default();
            near.time_us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            // Ends the reads that wait for a silent server.
            self.fetcher.stop();
            (near, time)
        })
    }

    /// Runs one connection.
    fn run(&self, index: u32) {
        let from = self.file.takes_ranges.then(|| self.file.size.unwrap_or(0) / u64::from(self.spec.streams));
        let from = from.map(|part| part * u64::from(index));
        self.requests.fetch_add(1, Ordering::Relaxed);
        let opened = self.fetcher.open(from);
        self.answered.wait();
        self.answered.wait();
        let start = *self.start.lock().get_or_insert_with(Instant::now);
        let outcome = opened.and_then(|body| self.read(body, from, start));
        if let Err(error) = outcome {
            // The end of the download cuts the reads.
            if start.elapsed() < self.spec.time {
                self.failure.lock().get_or_insert(error);
            }
        }
    }

    fn read(&self, mut body: crate::web::FetchBody, from: Option<u64>, start: Instant) -> Result<(), Error> {
        let streams = u64::from(self.spec.streams.max(1));
        let (most, rate) = (self.spec.bytes_max / streams, self.spec.rate_max_bps.map(|bps| bps / streams));
        let (mut buffer, mut received, mut requests) = (vec![0; READ_BYTES], 0, 1);
        while received < most && start.elapsed() < self.spec.time {
            let count = body.read(&mut buffer).map_err(|e| {
                let text = format!("read {}: cut after {received} bytes", self.file.at);
                Error::new(ErrorKind::Unreachable, Scope::Path, Phase::Transfer, text).caused_by(e)
            })?;
            received += count as u64;
            self.bytes.fetch_add(count as u64, Ordering::Relaxed);
            if count == 0 {
                self.is_short.store(true, Ordering::Relaxed);
                if requests == REQUESTS_MAX || received == 0 {
                    break;
                }
                requests += 1;
                self.requests.fetch_add(1, Ordering::Relaxed);
                // From the start for the first connection, and for others from their offset again.
                body = self.fetcher.open(from)?;
            }
            // Seconds that these bytes take at the given rate.
            if let Some(rate) = rate {
                let due = start + Duration::from_secs_f64(received as f64 * 8.0 / rate.max(1) as f64);
                let end = start + self.spec.time;
                thread::sleep(due.min(end).saturating_duration_since(Instant::now()));
            }
        }
        Ok(())
    }
}
