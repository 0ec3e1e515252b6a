//! Next step after a failed attempt: another attempt, another replica, or the end of the file.
//!
//! The typed error decides, never its text. Waits double up to a maximum and are spread at random. Refuses to draw
//! random numbers: the caller gives one.

use std::time::Duration;

use sterna_proto::quantity::readable_time;
use sterna_proto::{Error, ErrorKind, Retry, Scope};

/// Rules for the retries of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryRules {
    /// Maximum number of further attempts at one source.
    pub attempts: u32,
    /// First wait.
    pub wait: Duration,
}

impl Default for RetryRules {
    /// Returns three attempts after 120 s. Source of the wait: FTS3.
    fn default() -> Self {
        Self { attempts: 3, wait: Duration::from_secs(120) }
    }
}

/// Maximum wait. Reason: an operator who has mended a storage sees its transfers go on within an hour.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// Kind of the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The same source after this wait.
    Again(Duration),
    /// The next replica, now.
    NextReplica,
    /// The file has failed.
    Fails,
}

/// Next step, with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AfterFailure {
    /// Step.
    pub next: Next,
    /// Reason, for the log and the API.
    pub rationale: String,
}

/// Attempts of a file up to now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tried {
    /// Failed attempts at the present source, this one included.
    pub at_source: u32,
    /// Number of replicas that have not been tried.
    pub replicas_left: usize,
}

/// Decides what follows the failure of an attempt. `random` is from 0 to 1, and spreads the waits of files that failed
/// at the same time: from half of the wait to the wait.
pub fn after_failure(error: &Error, tried: Tried, rules: &RetryRules, random: f64) -> AfterFailure {
    let step = |next, rationale: String| AfterFailure { next, rationale };
    if error.kind == ErrorKind::Cancelled {
        return step(Next::Fails, "the transfer was cancelled".to_owned());
    }
    let may_repeat = error.retry == Retry::After && tried.at_source <= rules.attempts;
    // Another replica helps against a source that fails, and at once. Who met a failure of its source for all time may
    // not have known that there are others.
    let is_of_source = error.scope == Scope::Source || error.retry != Retry::Never;
    if tried.replicas_left > 0 && (error.retry == Retry::OtherReplica || !may_repeat && is_of_source) {
        return step(Next::NextReplica, format!("one of {} other replicas, at once", tried.replicas_left));
    }
    if may_repeat {
        let doubled = rules.wait.saturating_mul(1 << tried.at_source.saturating_sub(1).min(16)).min(WAIT_MAX);
        let spread = doubled.mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0);
        // The end that failed may have asked for a longer pause.
        let asked = error.wait().unwrap_or_default().min(WAIT_MAX);
        let wait = spread.max(asked);
        let why = match asked > spread {
            true => "the storage asked for this pause".to_owned(),
            false => format!("the pause is {} to {}, at random", readable_time(doubled / 2), readable_time(doubled)),
        };
        let (attempt, all) = (tried.at_source + 1, rules.attempts + 1);
        let text =
            format!("attempt {attempt} of {all} in {}, because the failure may pass: {why}", readable_time(wait));
        return step(Next::Again(wait), text);
    }
    let rationale = match error.retry {
        Retry::Never => "another attempt would fail too".to_owned(),
        Retry::After => format!("{} attempts have failed", tried.at_source),
        Retry::OtherReplica => "no other replica is left".to_owned(),
    };
    step(Next::Fails, rationale)
}

#[cfg(test)]
mod tests {
    use sterna_proto::Phase;

    use super::*;

    fn after(retry: Retry, at_source: u32, replicas_left: usize) -> Next {
        let error = Error::new(ErrorKind::Unreachable, Scope::Source, Phase::Transfer, "refused").retry(retry);
        after_failure(&error, Tried { at_source, replicas_left }, &RetryRules::default(), 1.0).next
    }

    #[test]
    fn the_typed_error_decides() {
        let again = |seconds| Next::Again(Duration::from_secs(seconds));
        // Error, failed attempts at the source, replicas left.
        for (retry, at_source, replicas_left, expected) in [
            (Retry::After, 1, 0, again(120)),
            (Retry::After, 1, 2, again(120)),
            (Retry::After, 2, 0, again(240)),
            (Retry::After, 3, 2, again(480)),
            (Retry::After, 4, 2, Next::NextReplica),
            (Retry::After, 4, 0, Next::Fails),
            (Retry::OtherReplica, 1, 1, Next::NextReplica),
            (Retry::OtherReplica, 1, 0, Next::Fails),
            (Retry::Never, 1, 2, Next::NextReplica),
            (Retry::Never, 1, 0, Next::Fails),
        ] {
            let next = after(retry, at_source, replicas_left);
            assert_eq!(next, expected, "{retry:?} after {at_source} attempts with {replicas_left} replicas");
        }
    }

    #[test]
    fn another_replica_does_not_help_a_destination_that_refuses_for_all_time() {
        let error = Error::new(ErrorKind::Exists, Scope::Destination, Phase::Prepare, "exists");
        let tried = Tried { at_source: 1, replicas_left: 2 };
        assert_eq!(after_failure(&error, tried, &RetryRules::default(), 0.0).next, Next::Fails);
    }

    #[test]
    fn a_cancelled_transfer_is_not_tried_again() {
        let error = Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Transfer, "stopped").retry(Retry::After);
        let tried = Tried { at_source: 1, replicas_left: 3 };
        assert_eq!(after_failure(&error, tried, &RetryRules::default(), 0.0).next, Next::Fails);
    }

    #[test]
    fn waits_double_up_to_an_hour_and_are_spread_by_half() {
        let rules = RetryRules { attempts: 100, ..RetryRules::default() };
        let error = Error::new(ErrorKind::Busy, Scope::Destination, Phase::Prepare, "busy").retry(Retry::After);
        let wait = |at_source, random| {
            let tried = Tried { at_source, replicas_left: 0 };
            match after_failure(&error, tried, &rules, random).next {
                Next::Again(wait) => wait.as_secs(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!([1, 2, 3, 4, 5, 6, 90].map(|tries| wait(tries, 1.0)), [120, 240, 480, 960, 1920, 3600, 3600]);
        assert_eq!((wait(1, 0.0), wait(90, 0.0)), (60, 1800));
    }

    #[test]
    fn an_end_may_ask_for_a_longer_pause_and_not_for_a_shorter_one() {
        let wait = |asked: u64| {
            let error = Error::new(ErrorKind::Busy, Scope::Source, Phase::Prepare, "busy").retry(Retry::After);
            let error = error.wait_for(Duration::from_secs(asked));
            after_failure(&error, Tried { at_source: 1, replicas_left: 0 }, &RetryRules::default(), 1.0).next
        };
        let again = |seconds| Next::Again(Duration::from_secs(seconds));
        assert_eq!([wait(1), wait(500), wait(90_000)], [again(120), again(500), again(3600)]);
    }
}
