//! Rules of the deletion of a copy between hops: if it may be deleted, and what follows an attempt.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sterna_proto::{Error, ErrorKind, Retry};
use sterna_sched::queue::FileNumber;
use sterna_sched::state::FileState;
use tracing::{info, warn};

use crate::endpoint::{loggable, may_be_same};
use crate::job::{Cleanup, Failure, File, Placed};
use crate::service::now;
use crate::store::DeletionStep;

/// Wait after the first failed attempt; twice as long after each further one.
const FIRST_WAIT: Duration = Duration::from_secs(30);

/// Longest wait. Reason: a storage that is back has its room within an hour.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// Maximum number of attempts. Reason: together half a day, in which an outage is mended.
const ATTEMPTS_MAX: u32 = 18;

/// Deletion that a worker carries out.
pub(super) struct Sent {
    /// Time at which it was sent.
    pub since: Instant,
    /// Worker that carries it out.
    pub worker: Arc<str>,
    /// Number of attempts that have failed before.
    pub attempts: u32,
    /// Location of the copy.
    pub location: String,
}

/// Deletions under way.
#[derive(Default)]
pub(super) struct Deletions(pub BTreeMap<FileNumber, Sent>);

impl Deletions {
    /// Returns true if a worker carries out the deletion of the copy of a file.
    pub(super) fn is_at(&self, file: FileNumber, worker: &Arc<str>) -> bool {
        self.0.get(&file).is_some_and(|sent| sent.worker == *worker)
    }
}

/// Checks that the copy of a hop may be deleted. `files`: those of its job.
///
/// Errors: the outcome; `None`: there is no copy.
pub(super) fn is_deletable(file: &File, files: &[File]) -> Result<(), Option<Cleanup>> {
    let kept = |reason: &str| Err(Some(Cleanup::Kept { reason: reason.to_owned() }));
    let others = files.iter().filter(|other| other.number != file.number).map(|other| &other.new.destination);
    let sources = files.iter().filter(|file| file.new.entry == 0).map(|file| &file.new.source);
    if others.chain(sources).any(|location| may_be_same(location, &file.new.destination)) {
        return kept("its place is that of the source of the job, or the destination of another hop");
    }
    match file.moved.placed {
        Some(Placed::New) => Ok(()),
        Some(Placed::Replaced) => kept("it has replaced a file that was there before"),
        Some(Placed::Found) => kept("it was there when the last start of the hop began"),
        None if file.state == FileState::Finished => kept("its worker does not know if it was there before"),
        None => Err(None),
    }
}

/// Decides what follows an attempt.
pub(super) fn after(file: FileNumber, sent: &Sent, error: Option<Error>) -> DeletionStep {
    let (number, location, attempts) = (file.0, loggable(&sent.location), sent.attempts + 1);
    // One of an earlier attempt may have arrived without its report.
    let Some(error) = error.filter(|error| error.kind != ErrorKind::NotFound) else {
        info!("file {number}: {location}, a copy between two hops, is deleted");
        return DeletionStep::Ends { cleanup: Some(Cleanup::Deleted) };
    };
    if error.retry == Retry::Never || attempts >= ATTEMPTS_MAX {
        warn!(
            "file {number}: delete {location}, a copy between two hops: {}; given up after {attempts} attempts",
            error.chain()
        );
        let failure = Failure::from(&error);
        return DeletionStep::Ends { cleanup: Some(Cleanup::GivenUp { attempts, failure }) };
    }
    let wait = wait_after(attempts);
    let wait = error.wait().map_or(wait, |asked| wait.max(asked.min(WAIT_MAX)));
    warn!(
        "file {number}: delete {location}, a copy between two hops: {}; again in {} s",
        error.chain(),
        wait.as_secs()
    );
    DeletionStep::Again { not_before: now() + wait }
}

fn wait_after(attempts: u32) -> Duration {
    let doubled = 1_u32.checked_shl(attempts.saturating_sub(1)).unwrap_or(u32::MAX);
    FIRST_WAIT.saturating_mul(doubled).min(WAIT_MAX)
}

#[cfg(test)]
mod tests {
    use sterna_proto::{Phase, Scope};

    use super::*;

    #[test]
    fn attempts_have_an_end_within_a_day_and_hours_apart_at_most() {
        let waits: Vec<Duration> = (1..ATTEMPTS_MAX).map(wait_after).collect();
        assert_eq!((waits[0], waits[1], waits.last()), (FIRST_WAIT, FIRST_WAIT * 2, Some(&WAIT_MAX)));
        let all: Duration = waits.iter().sum();
        assert!((10..24).contains(&(all.as_secs() / 3600)), "{all:?}");
    }

    #[test]
    fn a_refusal_is_final_and_an_outage_is_not() {
        let location = || "https://h/f".to_owned();
        let sent = |attempts| Sent { since: Instant::now(), worker: "w".into(), attempts, location: location() };
        let error = |retry| {
            Some(Error::new(ErrorKind::Denied, Scope::Destination, Phase::Finalise, "DELETE: 403").retry(retry))
        };
        let is_given_up =
            |step: &DeletionStep| matches!(step, DeletionStep::Ends { cleanup: Some(Cleanup::GivenUp { .. }) });
        assert!(is_given_up(&after(FileNumber(1), &sent(0), error(Retry::Never))));
        assert!(matches!(after(FileNumber(1), &sent(0), error(Retry::After)), DeletionStep::Again { .. }));
        assert!(is_given_up(&after(FileNumber(1), &sent(ATTEMPTS_MAX - 1), error(Retry::After))));
        let missing = Error::new(ErrorKind::NotFound, Scope::Destination, Phase::Finalise, "DELETE: 404");
        let ended = DeletionStep::Ends { cleanup: Some(Cleanup::Deleted) };
        assert_eq!(after(FileNumber(1), &sent(3), Some(missing)), ended);
    }
}
