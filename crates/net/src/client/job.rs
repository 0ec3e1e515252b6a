//! Job of a copy, derived from its locations; start of the local end of its session.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sterna_proto::compress::CompressionPolicy;
use sterna_proto::location::RemoteLocation;
use sterna_proto::path_cache::DataDirection;
use sterna_proto::session::{Overwrite, Probe, ReplicaId, Request, SOURCES_MAX};
use sterna_proto::web::WebLocation;
use sterna_proto::{ByteCount, Error, ErrorKind, Location, Phase, Scope};

use super::direct::{URLS_AND_OTHERS, receiver_options, web_options};
use super::follow;
use super::place::PullPlace;
use super::spec::{CopySpec, CopySummary, Granted};
use super::third_party::{TWO_KINDS, one_agent, refuse_upward};
use super::totals::CopyTotals;
use crate::buffer::BufferPool;
use crate::disk::{Root, Sources, has_wildcards, last_name};
use crate::session::{
    AskedNames, End, Expected, LaneIds, Observer, Receiver, ReceiverOptions, ReplicaEnd, Replicas, Sender,
};
use crate::sink::Discard;
use crate::source::{Follow, Generated, Roots, Source, SourcePlace};
use crate::web::Web;

/// Local end of a session, and the same end as a receiver if it is one.
pub(super) type OurEnd = (Arc<dyn End>, Option<Arc<Receiver>>);

/// Job of a copy, derived from its locations.
pub(crate) struct Job {
    pub(super) remote: RemoteLocation,
    pub(super) direction: Direction,
    /// Follower of the sources, over all sessions.
    pub(super) follow: Option<Arc<Follow>>,
}

pub(super) enum Direction {
    Push {
        sources: PushSources,
        destination: Vec<u8>,
    },
    Pull {
        sources: Vec<Vec<u8>>,
        destination: PullPlace,
    },
    /// Pull of one of several replicas of a file.
    Replica {
        source: Vec<u8>,
        replica: ReplicaId,
        /// All replicas of the file. The session joins them.
        replicas: Arc<Replicas>,
        /// Counter that numbers the lanes of all agents.
        lanes: Arc<LaneIds>,
    },
    /// Generated data that the receiving end discards.
    Probe(Probe),
}

impl Direction {
    /// Returns the direction of the data.
    pub(super) fn of_data(&self) -> DataDirection {
        match self {
            Self::Push { .. } => DataDirection::Out,
            Self::Pull { .. } | Self::Replica { .. } => DataDirection::In,
            Self::Probe(probe) => probe.direction,
        }
    }
}

pub(super) enum PushSources {
    Local(Vec<PathBuf>),
    Web(Vec<WebLocation>),
    /// Sources beneath roots of an agent.
    Places {
        places: Vec<SourcePlace>,
        several: bool,
    },
}

impl PushSources {
    /// Returns the sources of a push. Errors: `Usage`: some sources are at an agent, or they are of two kinds.
    fn of(sources: &[Location]) -> Result<Self, Error> {
        let usage = |text: &str| Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text));
        let (mut local, mut web) = (Vec::new(), Vec::new());
        for source in sources {
            match source {
                Location::Local(path) => local.push(path.clone()),
                Location::Web(location) => web.push(location.clone()),
                Location::Remote(_) => return usage(TWO_KINDS),
            }
        }
        match (local.is_empty(), web.is_empty()) {
            (_, true) => Ok(Self::Local(local)),
            (true, false) => Ok(Self::Web(web)),
            (false, false) => usage(URLS_AND_OTHERS),
        }
    }

    /// Returns true if the sources can match several files, so that the destination must be a directory.
    fn are_many(&self) -> bool {
        match self {
            Self::Local(paths) => paths.len() > 1 || paths.iter().any(|path| means_many(path)),
            Self::Web(locations) => locations.len() > 1,
            Self::Places { several, .. } => *several,
        }
    }
}

impl Job {
    /// Derives the job from the options. Errors: `Usage`.
    pub(super) fn plan(options: &CopySpec) -> Result<Self, Error> {
        let usage = |text: &str| Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text));
        if options.sources.is_empty() {
            return usage("nothing to copy: name at least one source");
        }
        if options.sources.len() > SOURCES_MAX {
            return usage("more than 4096 sources: name their directory, or use a wildcard in quotes");
        }
        match &options.destination {
            Location::Web(_) => usage("a web server is no destination: copy from one to this host or to an agent"),
            Location::Remote(remote) => {
                refuse_upward(remote)?;
                let sources = PushSources::of(&options.sources)?;
                let follow = match &sources {
                    PushSources::Local(paths) => follow::prepare(options, paths)?,
                    PushSources::Web(_) | PushSources::Places { .. } => None,
                };
                let direction = Direction::Push { sources, destination: remote.path.clone() };
                Ok(Self { remote: remote.clone(), direction, follow })
            }
            Location::Local(destination) => {
                let mut remotes = Vec::new();
                for source in &options.sources {
                    match source {
                        Location::Local(_) => {
                            let text = "neither end is at an agent: write that one as sterna://host[:port]/path, or use cp \
                                        for copies on one host";
                            return usage(text);
                        }
                        Location::Remote(remote) => remotes.push(remote),
                        Location::Web(_) => return usage(URLS_AND_OTHERS),
                    }
                }
                let first = one_agent(&remotes)?.clone();
                let sources = remotes.iter().map(|remote| remote.path.clone()).collect();
                let direction = Direction::Pull { sources, destination: PullPlace::Local(destination.clone()) };
                Ok(Self { remote: first, direction, follow: None })
            }
        }
    }

    /// Derives the job of a copy whose end at this host is `granted`. Errors: `Usage`: an end is not at an agent.
    pub(super) fn granted(options: &CopySpec, granted: &Granted) -> Result<Self, Error> {
        let at_agent = |location: &Location| match location {
            Location::Remote(remote) => Ok(remote.clone()),
            _ => Err(Error::usage(&[], "a granted copy has both ends at agents")),
        };
        let remote = at_agent(&options.destination)?;
        let sources: Vec<Vec<u8>> =
            options.sources.iter().map(|source| at_agent(source).map(|at| at.path)).collect::<Result<_, _>>()?;
        let direction = match granted {
            Granted::Sources(places) => {
                let several = sources.len() > 1 || sources.iter().any(|path| may_mean_many(path));
                let sources = PushSources::Places { places: places.clone(), several };
                Direction::Push { sources, destination: remote.path.clone() }
            }
            Granted::Destination(root, path) => {
                Direction::Pull { sources, destination: PullPlace::Beneath(root.clone(), path.clone()) }
            }
            Granted::Targets(root, paths) => {
                Direction::Pull { sources, destination: PullPlace::Numbered(root.clone(), paths.clone()) }
            }
        };
        Ok(Self { remote, direction, follow: None })
    }

    /// Returns the request to the agent.
    pub(super) fn request(&self, options: &CopySpec) -> Request {
        match &self.direction {
            Direction::Push { sources, destination } => Request::Push {
                destination: if options.targets.is_empty() { destination.clone() } else { Vec::new() },
                several: sources.are_many(),
                overwrite: follow::overwrite(options),
                checks: options.checks,
                expect: options.expect,
                dry_run: options.dry_run,
                targets: options.targets.clone(),
            },
            Direction::Pull { sources, .. } => {
                let CopySpec { dry_run, compress, .. } = *options;
                let numbered = !options.targets.is_empty();
                Request::Pull { sources: sources.clone(), dry_run, compress, on_demand: false, numbered }
            }
            Direction::Replica { source, .. } => {
                let CopySpec { dry_run, compress, .. } = *options;
                let sources = vec![source.clone()];
                Request::Pull { sources, dry_run, compress, on_demand: true, numbered: false }
            }
            Direction::Probe(probe) => Request::Probe(*probe),
        }
    }

    /// Checks the result of a session that ended in order. Errors: a probe has not carried all its data. The agent may
    /// report files as done that were never sent.
    pub(super) fn check(&self, summary: &CopySummary) -> Result<(), Error> {
        let Direction::Probe(probe) = &self.direction else { return Ok(()) };
        if let Some(error) = summary.failures.first() {
            return Err(error.clone());
        }
        let files = probe.files().count() as u64;
        if summary.done == files && summary.failed == 0 && summary.counters.bytes_carried >= probe.bytes {
            return Ok(());
        }
        Err(Error::protocol(format!(
            "the probe of {} ended with {} of {files} files after {}: the agent did not take part in all of it",
            ByteCount(probe.bytes),
            summary.done,
            ByteCount(summary.counters.bytes_carried)
        )))
    }

    /// Returns true if another session may continue after a lost one. A probe has no journal to continue from, and
    /// would exceed its budget.
    pub(super) fn may_start_again(&self) -> bool {
        !matches!(self.direction, Direction::Probe(_))
    }

    /// Returns the counter that numbers the lanes of the session.
    pub(super) fn lanes(&self) -> Arc<LaneIds> {
        match &self.direction {
            Direction::Replica { lanes, .. } => Arc::clone(lanes),
            Direction::Push { .. } | Direction::Pull { .. } | Direction::Probe(_) => Arc::default(),
        }
    }

    /// Starts the local end of the session.
    pub(super) fn start_end(&self, options: &CopySpec, totals: &Arc<CopyTotals>) -> Result<OurEnd, Error> {
        match &self.direction {
            Direction::Push { sources, .. } => self.start_sender(sources, options, totals),
            Direction::Pull { sources, destination } => start_receiver(sources, destination, options, totals),
            Direction::Replica { replicas, replica, .. } => Ok((ReplicaEnd::join(replicas, *replica)?, None)),
            Direction::Probe(probe) if probe.direction == DataDirection::Out => {
                let (pool, observer) = (BufferPool::new(), Arc::clone(totals) as Arc<dyn Observer>);
                let (source, compress) = (Generated::new(*probe)?, CompressionPolicy::Never);
                let sender = Sender::start(source, options.linger, false, Arc::default(), compress, pool, observer)?;
                // The agent has none of these files: it cannot report one as up to date.
                sender.set_overwrite(Overwrite::Always);
                Ok((sender, None))
            }
            Direction::Probe(probe) => {
                let sink = Arc::new(Discard::new(*probe));
                let ours = receiver_options(options, sink, AskedNames::Any, totals);
                start_receiving(ReceiverOptions { leaves_first: true, ..ours }, totals)
            }
        }
    }

    fn start_sender(&self, from: &PushSources, options: &CopySpec, totals: &Arc<CopyTotals>) -> Result<OurEnd, Error> {
        let observer = Arc::clone(totals) as Arc<dyn Observer>;
        let mut missing = Vec::new();
        let source: Arc<dyn Source> = match from {
            PushSources::Web(locations) => {
                let options = web_options(options);
                Arc::new(Web::new(&options, locations.clone(), None, Arc::clone(&observer))?)
            }
            PushSources::Places { places, .. } if options.targets.is_empty() => Roots::new(places.clone()),
            PushSources::Places { places, .. } => Roots::numbered(places.clone()),
            PushSources::Local(paths) => {
                let found = |path: &PathBuf| local_source(path).map_err(|error| missing.push(error)).ok();
                let sources: Vec<SourcePlace> = paths.iter().filter_map(found).collect();
                if sources.is_empty() {
                    return Err(missing.swap_remove(0));
                }
                match &self.follow {
                    Some(follow) => follow.session()?,
                    None => Roots::new(sources),
                }
            }
        };
        let (settled, pool) = (totals.settled(), BufferPool::new());
        let sender = Sender::start(source, options.linger, options.dry_run, settled, options.compress, pool, observer)?;
        sender.set_overwrite(match (follow::overwrite(options), options.expect) {
            // Only its bytes prove that a file has the expected digest, so the receiver copies it again.
            (Overwrite::IfChanged, Some(_)) => Overwrite::Always,
            (overwrite, _) => overwrite,
        });
        if options.expect.is_some() {
            sender.expect_one_file();
        }
        // In a dry run, files that are reported as done have not arrived.
        if let Some(disposition) = options.disposition.clone().filter(|_| !options.dry_run) {
            sender.set_disposition(disposition)?;
        }
        missing.into_iter().for_each(|error| sender.unreadable(error));
        Ok((sender, None))
    }
}

fn start_receiver(
    sources: &[Vec<u8>],
    destination: &PullPlace,
    options: &CopySpec,
    totals: &Arc<CopyTotals>,
) -> Result<OurEnd, Error> {
    let many = sources.len() > 1 || sources.iter().any(|source| may_mean_many(source));
    let sink = Arc::new(destination.resolve(if many { Sources::Many } else { Sources::One })?);
    let mut ours = match destination {
        PullPlace::Local(_) | PullPlace::Beneath(..) => {
            let asked = AskedNames::of(sources.iter().map(Vec::as_slice));
            receiver_options(options, sink, asked, totals)
        }
        // The expected files check the names.
        PullPlace::Numbered(..) => {
            let expect = Expected::of_targets(&options.targets);
            ReceiverOptions { expect, ..receiver_options(options, sink, AskedNames::Any, totals) }
        }
    };
    ours.leaves_first = true;
    start_receiving(ours, totals)
}

fn start_receiving(options: ReceiverOptions, totals: &Arc<CopyTotals>) -> Result<OurEnd, Error> {
    let receiver = Receiver::start(options, Arc::clone(totals) as Arc<dyn Observer>)?;
    Ok((Arc::clone(&receiver) as Arc<dyn End>, Some(receiver)))
}

pub(super) fn local_source(path: &Path) -> Result<SourcePlace, Error> {
    let (root, pattern) = Root::for_local_source(path.as_os_str().as_bytes())?;
    Ok(SourcePlace { root, pattern, name: None })
}

/// Returns true if a local source can match several files, so that the destination must be a directory.
pub(super) fn means_many(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    means_contents(bytes) || !path.exists() && has_wildcards(bytes)
}

/// Returns true if a remote source can match several files. Only the agent can check if a file exists whose name
/// contains the wildcard characters.
pub(super) fn may_mean_many(path: &[u8]) -> bool {
    last_name(path).is_none() || has_wildcards(path)
}

/// Returns true if a local file path means the contents of a directory and not the directory. Such file paths are `.`,
/// `..` and `/`, or end in one of these.
fn means_contents(path: &[u8]) -> bool {
    let end = path.iter().rposition(|&b| b != b'/').map_or(0, |last| last + 1);
    matches!(path[..end].rsplit(|&b| b == b'/').next(), None | Some(b"" | b"." | b".."))
}
