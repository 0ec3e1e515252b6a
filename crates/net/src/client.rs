//! Client: runs one copy, from its options to the outcome of every file.
//!
//! Runs one session at a time until the copy is done. Starts a new session only when the agent was restarted. Module
//! `supervisor` runs a session.

mod control;
pub(crate) mod dial;
mod direct;
mod follow;
mod job;
mod path;
mod path_cache;
mod place;
pub(crate) mod probe;
pub(crate) mod query;
mod replicas;
mod run;
pub(crate) mod spec;
mod stall;
mod supervisor;
mod third_party;
mod totals;

use std::sync::Arc;
use std::time::Instant;

use sterna_proto::Error;

use self::direct::Direct;
use self::job::Job;
pub use self::path_cache::{Observed, observe_path, recorded_paths};
use self::replicas::ReplicaCopy;
pub(crate) use self::run::random_session;
use self::run::{Again, Restarts};
use self::spec::{CopyEvent, CopyKind, CopyObserver, CopySpec, CopySummary, Initiator};
use self::supervisor::run_session;
use self::third_party::ThirdPartyCopy;
use self::totals::{AskedDigests, CopyTotals};

/// Copy that has been checked, by the kind of its ends.
pub(crate) enum PlannedCopy {
    /// From several replicas of one file to this host.
    Replicas(ReplicaCopy),
    /// From web servers to this host.
    Direct(Direct),
    /// From one agent to another.
    ThirdParty(ThirdPartyCopy),
    /// Between this host, or web servers, and one agent.
    Agent(Job),
}

impl PlannedCopy {
    /// Returns the kind of the copy.
    pub(crate) fn kind(&self) -> CopyKind {
        match self {
            Self::Replicas(_) => CopyKind::Replicas,
            Self::Direct(_) => CopyKind::Direct,
            Self::ThirdParty(_) => CopyKind::ThirdParty,
            Self::Agent(_) => CopyKind::Agent,
        }
    }
}

/// Checks a copy and decides its kind. Does not dial.
///
/// Errors: `Usage`; a source on this host does not exist, if it is followed, deleted or moved.
pub(crate) fn plan(options: &CopySpec) -> Result<PlannedCopy, Error> {
    if let Some(granted) = &options.granted {
        if let Some(direct) = Direct::plan(options)? {
            return Ok(PlannedCopy::Direct(direct));
        }
        return Job::granted(options, granted).map(PlannedCopy::Agent);
    }
    if let Some(replicas) = ReplicaCopy::plan(options)? {
        return Ok(PlannedCopy::Replicas(replicas));
    }
    follow::check(options)?;
    if let Some(direct) = Direct::plan(options)? {
        return Ok(PlannedCopy::Direct(direct));
    }
    if let Some(third_party) = ThirdPartyCopy::plan(options)? {
        return Ok(PlannedCopy::ThirdParty(third_party));
    }
    Job::plan(options).map(PlannedCopy::Agent)
}

/// Runs one copy to its end.
///
/// Errors: nothing was copied (no agent, or agent not trusted), or the session ended early. Failures of single files
/// are in the summary.
pub(crate) fn run(
    copy: PlannedCopy,
    options: &CopySpec,
    initiator: &Initiator,
    observer: &Arc<dyn CopyObserver>,
) -> Result<CopySummary, Error> {
    match copy {
        PlannedCopy::Replicas(replicas) => replicas.copy(options, initiator, observer),
        PlannedCopy::Direct(direct) => direct.copy(options, observer),
        PlannedCopy::ThirdParty(third_party) => third_party.copy(options, initiator, observer),
        PlannedCopy::Agent(job) => {
            let totals = CopyTotals::new(observer);
            totals.state.lock().remembers_none = options.follow.is_some();
            // The command of a granted copy names the destination itself.
            totals.state.lock().destination = options.granted.is_none().then(|| options.destination.clone());
            totals.leave_out(options.settled.clone());
            let CopySpec { checks, expect, dry_run, .. } = *options;
            totals.state.lock().asked = (!dry_run).then_some(AskedDigests { checks, expect });
            copy_job(options, &job, initiator, &totals)
        }
    }
}

/// Runs one job to its end. Errors: as [`run`].
fn copy_job(
    options: &CopySpec,
    job: &Job,
    initiator: &Initiator,
    totals: &Arc<CopyTotals>,
) -> Result<CopySummary, Error> {
    let mut started = Instant::now();
    let observer = &totals.observer;
    let mut restarts = Restarts::new(options.linger, started);
    loop {
        let outcome = run_session(options, job, initiator, totals, &mut started);
        let again = outcome.as_ref().err().filter(|_| !observer.cancel().is_cancelled() && job.may_start_again());
        match again.and_then(|error| restarts.after(error, Instant::now())) {
            Some(Again::Restarted(wait)) => {
                totals.state.lock().start_over();
                observer.event(CopyEvent::Restarted);
                observer.cancel().wait(wait);
            }
            Some(Again::NotYetBack(wait)) => observer.cancel().wait(wait),
            None => {
                let outcome = outcome.and_then(|()| job.check(&totals.state.lock().summary));
                let outcome = outcome.map_err(|error| error.named(job.remote.host_port()));
                return totals.conclude(outcome, started.elapsed());
            }
        }
    }
}
