//! A copy that an agent runs for a command: the client of a session, with one end beneath the agent's own roots.
//!
//! What it does: makes of a request the job that every copy is. What it refuses to do: decide who may ask for it, and for what
//! (`agent::third_party` has).

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use sterna_proto::location::RemoteLocation;
use sterna_proto::session::ThirdParty;
use sterna_proto::{Error, Location};

use super::job::{Direction, Job, PushSources, may_mean_many};
use super::tally::Tally;
use super::{CopyObserver, CopySpec, CopySummary, Initiator, PathOptions, ViaChoice, copy_job};
use crate::disk::Root;
use crate::session::{SettledPaths, Source};

/// Where a pull writes.
pub(super) enum PullPlace {
    /// A path on this host.
    Local(PathBuf),
    /// A path beneath a root of an agent.
    Beneath(Root, Vec<u8>),
}

impl PullPlace {
    /// The root and the path beneath it. Errors: this host does not let us open it.
    pub(super) fn resolve(&self) -> Result<(Root, Vec<u8>), Error> {
        match self {
            Self::Local(path) => Root::for_local_destination(path.as_os_str().as_bytes()),
            Self::Beneath(root, path) => Ok((root.clone(), path.clone())),
        }
    }
}

/// Where the copy's end at this agent is.
pub(crate) enum Place {
    /// It pushes these.
    Sources(Vec<Source>),
    /// It pulls to this path beneath this root.
    Destination(Root, Vec<u8>),
}

/// A request with all that the agent adds to it.
pub(crate) struct Errand<'a> {
    pub(crate) request: &'a ThirdParty,
    pub(crate) place: Place,
}

/// Runs the copy to its end. Errors: as [`super::run`].
pub(crate) fn run_errand(
    errand: Errand<'_>,
    initiator: &Initiator,
    observer: &Arc<dyn CopyObserver>,
) -> Result<CopySummary, Error> {
    let Errand { request, place } = errand;
    let passive = |path: &[u8]| RemoteLocation {
        host: request.passive.host.clone(),
        port: request.passive.port,
        path: path.to_vec(),
    };
    let remote = passive(&request.destination);
    // Both ends as the command wrote them, as far as anybody asks: the job has what is copied.
    let sources = request.sources.iter().map(|source| Location::Remote(passive(source))).collect();
    let options = CopySpec {
        paths: vec![PathOptions {
            via: request.via.map_or(ViaChoice::Auto, ViaChoice::Only),
            lanes: request.lanes,
            contract: request.contract,
            ..PathOptions::default()
        }],
        congestion: request.congestion.clone(),
        overwrite: request.overwrite,
        checks: request.checks,
        expect: request.expect,
        compress: request.compress,
        dry_run: request.dry_run,
        linger: request.linger,
        // Memory is this host's, so that no command has a say in it.
        ..CopySpec::new(sources, Location::Remote(remote.clone()))
    };
    let direction = match place {
        Place::Sources(places) => {
            let several = request.sources.len() > 1 || request.sources.iter().any(|path| may_mean_many(path));
            let sources = PushSources::Places { places, several };
            Direction::Push { sources, destination: request.destination.clone() }
        }
        Place::Destination(root, path) => {
            Direction::Pull { sources: request.sources.clone(), destination: PullPlace::Beneath(root, path) }
        }
    };
    let tally = Tally::new(observer);
    tally.leave_out(SettledPaths::of_hashes(request.settled.iter().copied()));
    copy_job(&options, &Job { remote, direction, follow: None }, initiator, &tally)
}
