//! Copy with both ends in this process: from web servers to this host.
//!
//! Starts a sender that reads by HTTP, and a receiver. Joins them by lanes within the process, and ticks both. The
//! receiver is the same as in every copy, with its journal, its digests and its rules for existing files. Does not
//! dial: there is no agent. Lane 0 carries control frames in both directions. Every other lane carries blocks, and has
//! at most one request at a web server.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sterna_proto::compress::CompressionPolicy;
use sterna_proto::plan::{self, Decision};
use sterna_proto::rate::{Fairness, RateContract};
use sterna_proto::session::{FileOutcome, LaneId};
use sterna_proto::web::WebLocation;
use sterna_proto::{Error, ErrorKind, Location, Phase, SaidBy, Scope, Setting};

use super::place::PullPlace;
use super::run::{Driven, drive};
use super::spec::{
    ACTIVE_FILES_SHOWN, CopyEvent, CopyObserver, CopyProgress, CopySpec, CopySummary, Granted, PathOptions, ViaChoice,
};
use super::stall::StallDetector;
use super::totals::CopyTotals;
use crate::buffer::BufferPool;
use crate::disk::Sources;
use crate::lane::LaneStats;
use crate::lane::in_process::InProcessTx;
use crate::session::{AskedNames, End, Observer, Receiver, ReceiverOptions, Sender, SessionEvent, SessionSink, feed};
use crate::sink::Sink;
use crate::web::{Web, WebOptions};

/// Settings that only apply to hosts that send.
const OF_SENDERS: &[Setting] = &[
    Setting::Rate,
    Setting::RateMin,
    Setting::RateMax,
    Setting::Scavenger,
    Setting::LossCeiling,
    Setting::Transport,
    Setting::Paths,
    Setting::Congestion,
];

/// Error text for sources of two kinds.
pub(super) const URLS_AND_OTHERS: &str = "the sources are of two kinds, URLs and others: copy each kind by itself";

/// Lane of control frames.
pub(super) const CONTROL: LaneId = LaneId(0);

fn lane_count(options: &CopySpec) -> Decision<u32> {
    match options.lanes() {
        Some(lanes) => Decision { value: lanes, rationale: format!("{lanes}, as given") },
        None => plan::choose_web_lanes(),
    }
}

/// Copy from web servers to this host.
pub(crate) struct Direct {
    locations: Vec<WebLocation>,
    destination: PullPlace,
}

impl Direct {
    /// Returns the copy that the options describe; `None`: it is a copy of another kind. Errors: `Usage`.
    pub(super) fn plan(options: &CopySpec) -> Result<Option<Self>, Error> {
        let usage = |text: &str| Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text));
        let is_web = |source: &Location| matches!(source, Location::Web(_));
        let destination = match (&options.granted, &options.destination) {
            (Some(Granted::Destination(root, path)), _) => PullPlace::Beneath(root.clone(), path.clone()),
            (None, Location::Local(path)) => PullPlace::Local(path.clone()),
            _ => return Ok(None),
        };
        if !options.sources.iter().any(is_web) {
            return Ok(None);
        }
        let locations: Vec<WebLocation> = options
            .sources
            .iter()
            .filter_map(|source| match source {
                Location::Web(location) => Some(location.clone()),
                _ => None,
            })
            .collect();
        if locations.len() < options.sources.len() {
            return usage(URLS_AND_OTHERS);
        }
        let is_said = |path: &PathOptions| {
            path.contract.ceiling.is_some()
                || path.via != ViaChoice::Auto
                || path.local.is_some()
                || path.remote.is_some()
                || path.contract.minimum.is_some()
                || path.contract.fairness == Fairness::Scavenger
                || path.contract.loss_ceiling_ppm != RateContract::default().loss_ceiling_ppm
        };
        if options.paths.len() > 1 || options.paths.iter().any(is_said) || options.congestion.is_some() {
            let text =
                "here a web server sends and not Sterna: leave these settings out, or set the limits at the server";
            return Err(Error::usage(OF_SENDERS, text));
        }
        Ok(Some(Self { locations, destination }))
    }

    /// Runs the copy to its end. Errors: as [`super::run`].
    pub(super) fn copy(self, options: &CopySpec, observer: &Arc<dyn CopyObserver>) -> Result<CopySummary, Error> {
        let started = Instant::now();
        let totals = CopyTotals::new(observer);
        // The command of a granted copy names the destination itself.
        totals.state.lock().destination = options.granted.is_none().then(|| options.destination.clone());
        let ends = self.start_ends(options, &totals)?;
        let lanes = lane_count(options);
        observer.event(CopyEvent::Decision { subject: "lanes", rationale: lanes.rationale });
        // If the host refuses a thread, the abort of both ends ends the threads that run.
        let feeders = ends.start_lanes(lanes.value).inspect_err(|error| ends.abort(error.clone()))?;
        drive(&ends, &**observer, started, Some(StallDetector::of_web()));
        // Cancels requests that still wait for a web server. A feeder ends when its end is over.
        ends.web.stop();
        feeders.into_iter().for_each(|feeder| drop(feeder.join()));
        ends.receiver.join();
        let mut state = totals.state.lock();
        state.summary.counters = ends.receiver.progress().counters;
        state.summary.limits = ends.sender.limits().now().report;
        let outcome = state.aborted.take().map_or(Ok(()), Err);
        drop(state);
        totals.conclude(outcome, started.elapsed())
    }

    fn start_ends(self, options: &CopySpec, totals: &Arc<CopyTotals>) -> Result<Ends, Error> {
        let observer = Arc::clone(totals) as Arc<dyn Observer>;
        let many = self.locations.len() > 1;
        let web = Web::new(&web_options(options), self.locations, Some(CONTROL), Arc::clone(&observer))?;
        let web = Arc::new(web);
        let sink = Arc::new(self.destination.resolve(if many { Sources::Many } else { Sources::One })?);
        // The sender in this process names the files, by the URLs that were given.
        let options_of_receiver = receiver_options(options, sink, AskedNames::Any, totals);
        let receiver = Receiver::start(options_of_receiver, Arc::new(InOneProcess(observer)))?;
        let (settled, pool) = (totals.settled(), BufferPool::new());
        // Reason: the receiver reports the same events.
        let silent = Arc::new(Silent);
        let sender = Sender::start(
            Arc::clone(&web) as _,
            options.linger,
            options.dry_run,
            settled,
            CompressionPolicy::Never,
            pool,
            silent,
        )?;
        if let Some(file) = &options.recording {
            sender.limits().record(Arc::clone(file));
        }
        Ok(Ends { sender, receiver, web })
    }
}

/// Observer of a session with both ends in this process: no peer has reported its errors.
struct InOneProcess(Arc<dyn Observer>);

impl Observer for InOneProcess {
    fn session_event(&self, mut event: SessionEvent) {
        match &mut event {
            SessionEvent::Settled { outcome: FileOutcome::Failed(error), .. }
            | SessionEvent::Unreadable(error)
            | SessionEvent::Left(error)
            | SessionEvent::Aborted(error) => error.said_by = SaidBy::Us,
            SessionEvent::Settled { .. } | SessionEvent::Notice(_) | SessionEvent::Decision { .. } => {}
        }
        self.0.session_event(event);
    }
}

/// Both ends of the session.
struct Ends {
    sender: Arc<Sender>,
    receiver: Arc<Receiver>,
    web: Arc<Web>,
}

impl Ends {
    /// Starts the threads that feed the lanes.
    fn start_lanes(&self, lanes: u32) -> Result<Vec<thread::JoinHandle<()>>, Error> {
        let sender: Arc<dyn End> = Arc::clone(&self.sender) as _;
        let receiver: Arc<dyn End> = Arc::clone(&self.receiver) as _;
        start_lanes(&sender, &receiver, lanes)
    }
}

impl Driven for Ends {
    fn is_over(&self) -> bool {
        let ends: [&dyn End; 2] = [&*self.sender, &*self.receiver];
        ends.iter().all(|end| end.is_over()) && ends.iter().all(|end| end.has_followed_up())
    }

    /// Waits for `time`, or until both ends are over. Reason: a copy that is done does not wait for the next tick.
    fn wait(&self, time: Duration) {
        // The receiver is over last, and wakes its waiters at each change.
        self.receiver.wake().wait_until(time, || self.is_over());
    }

    fn tick(&self) {
        self.sender.tick();
        self.receiver.tick();
    }

    fn progress(&self) -> Option<CopyProgress> {
        let mut session = self.receiver.progress();
        session.lanes = self.web.reading();
        let lanes = vec![LaneStats { wire_bytes_received: self.web.received_bytes(), ..LaneStats::default() }];
        let (files, limits) = (self.receiver.active_files(ACTIVE_FILES_SHOWN), self.sender.limits().now());
        Some(CopyProgress { session, lanes, files, limits, ..CopyProgress::default() })
    }

    fn abort(&self, error: Error) {
        self.receiver.abort(error.clone());
        self.sender.abort(error);
        self.web.stop();
    }
}

/// Joins two ends in this process, and starts the threads that feed the lanes: two for control frames, one for each
/// lane of blocks.
pub(super) fn start_lanes(
    sender: &Arc<dyn End>,
    receiver: &Arc<dyn End>,
    lanes: u32,
) -> Result<Vec<thread::JoinHandle<()>>, Error> {
    for lane in (0..=lanes).map(LaneId) {
        sender.lane_up(lane);
        receiver.lane_up(lane);
    }
    let mut feeders = vec![start_lane(receiver, sender, CONTROL)?];
    for lane in (0..=lanes).map(LaneId) {
        feeders.push(start_lane(sender, receiver, lane)?);
    }
    Ok(feeders)
}

/// Feeds `lane` from one end to the other, in a separate thread.
fn start_lane(from: &Arc<dyn End>, to: &Arc<dyn End>, lane: LaneId) -> Result<thread::JoinHandle<()>, Error> {
    let (from, to) = (Arc::clone(from), Arc::clone(to));
    let sink = SessionSink::new(Arc::clone(&to), lane);
    let run = move || {
        let lost = LostLane { from, to, lane };
        if lane != CONTROL {
            lost.from.limits().inside_up(lane);
            lost.to.limits().inside_up(lane);
        }
        if let Err(error) = feed(&*lost.from, lane, Box::new(InProcessTx::new(Box::new(sink))), None) {
            // There is no network between the ends: an error of one lane would occur on every lane.
            lost.to.abort(error.clone());
            lost.from.abort(error);
        }
    };
    let spawned = thread::Builder::new().name(format!("feed-{}", lane.0)).spawn(run);
    spawned.map_err(|e| crate::no_thread("start the thread of a lane", e))
}

/// Takes a lane down when its feeder ends, also by a panic. Other lanes send its blocks.
struct LostLane {
    from: Arc<dyn End>,
    to: Arc<dyn End>,
    lane: LaneId,
}

impl Drop for LostLane {
    fn drop(&mut self) {
        if thread::panicking() {
            let text = "a thread of a lane ended by a panic";
            self.from.abort(crate::internal(text));
            self.to.abort(crate::internal(text));
        }
        for end in [&self.from, &self.to] {
            end.limits().lane_down(self.lane);
            end.lane_down(self.lane);
        }
    }
}

/// Observer that ignores all events.
pub(super) struct Silent;

impl Observer for Silent {
    fn session_event(&self, _event: SessionEvent) {}
}

/// Returns the options for connections to web servers.
pub(super) fn web_options(options: &CopySpec) -> WebOptions {
    WebOptions {
        token: options.web_token.clone(),
        authority: options.web_authority.clone(),
        // A copy for others has none of the passwords of this user.
        uses_netrc: options.granted.is_none(),
        hosts: options.web_hosts.clone(),
        connections: lane_count(options).value,
        patience: options.linger,
        is_expected: options.expect.is_some(),
    }
}

/// Returns the options of a receiver on this host. The receiver waits until its sender has received the outcomes.
pub(super) fn receiver_options(
    options: &CopySpec,
    sink: Arc<dyn Sink>,
    asked: AskedNames,
    totals: &CopyTotals,
) -> ReceiverOptions {
    ReceiverOptions {
        sink,
        overwrite: options.overwrite,
        checks: options.checks,
        expect: options.expect.into(),
        dry_run: options.dry_run,
        linger: options.linger,
        leaves_first: false,
        asked,
        settled: totals.settled(),
        on_busy: Box::new(|_| {}),
    }
}
