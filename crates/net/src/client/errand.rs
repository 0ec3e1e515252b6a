//! Copy that an agent runs for a command. The agent is the client of a session, and one end is beneath its own roots.
//!
//! Converts a request to the job that every copy runs. Does not decide who may request a copy, or what:
//! `agent::third_party` has decided that before.

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

/// Destination of a pull.
pub(super) enum PullPlace {
    /// File path on this host.
    Local(PathBuf),
    /// File path beneath a root of an agent.
    Beneath(Root, Vec<u8>),
}

impl PullPlace {
    /// Returns the root and the file path beneath it. Errors: this host denies access to the root.
    pub(super) fn resolve(&self) -> Result<(Root, Vec<u8>), Error> {
        match self {
            Self::Local(path) => Root::for_local_destination(path.as_os_str().as_bytes()),
            Self::Beneath(root, path) => Ok((root.clone(), path.clone())),
        }
    }
}

/// End of the copy at this agent.
pub(crate) enum Place {
    /// Sources that the agent pushes.
    Sources(Vec<Source>),
    /// File path beneath this root that the agent pulls to.
    Destination(Root, Vec<u8>),
}

/// Request, with the end that the agent adds to it.
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
    // Both ends as the command wrote them, for checks of the options. The job has the sources and destination that are
    // used.
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
        // This host alone sets the memory limit; a command cannot change it.
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
