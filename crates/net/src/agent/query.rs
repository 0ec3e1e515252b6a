//! Answers to queries: lists files with their attributes and digests, and deletes and renames names.
//!
//! Runs in a separate thread. Waits while the control log is full, so that a slow command needs no memory.

use std::sync::Arc;
use std::time::Duration;

use sterna_proto::session::{Answer, Conclusion, DeleteDirectories, Overwrite, Query};
use sterna_proto::{Error, ErrorKind, Phase, RelPath, Scope};

use super::log::SessionLog;
use super::runner::Runner;
use crate::engine::Cancel;
use crate::lister::{Lister, QueryPlace, shown_path};
use crate::session::{Observer, SessionEvent};

/// Maximum time that a query waits for a command without a lane. Reason: the command dials again within seconds. A
/// listing is cheap to repeat.
const LINGER_MAX: Duration = Duration::from_secs(60);

/// Starts the answer to `query` in a separate thread. Errors: the host refuses a thread.
pub(super) fn start(
    query: Query,
    places: Vec<QueryPlace>,
    linger: Duration,
    log: &Arc<SessionLog>,
) -> Result<Arc<Runner>, Error> {
    let answer_log = Arc::clone(log);
    Runner::start("query", linger.min(LINGER_MAX), Cancel::default(), log, move |runner| {
        let mut answering = Answering { runner, log: &answer_log, conclusion: Conclusion::default() };
        let outcome = answering.run(&query, places);
        let conclusion = answering.conclusion;
        match outcome {
            _ if runner.is_leaving() => {}
            Ok(()) => runner.control().conclude(conclusion),
            Err(error) => runner.control().fail(error),
        }
    })
}

struct Answering<'a> {
    runner: &'a Runner,
    log: &'a SessionLog,
    /// Answers so far: `done` and `failed` count them, `bytes` adds the sizes of files.
    conclusion: Conclusion,
}

impl Answering<'_> {
    fn run(&mut self, query: &Query, places: Vec<QueryPlace>) -> Result<(), Error> {
        match query {
            Query::List { options, .. } => {
                let mut lister = Lister::new(places, (**options).clone(), self.runner.cancel().clone());
                while lister.next().is_some_and(|answer| self.answer(answer)) {}
                Ok(())
            }
            Query::Delete { directories, .. } => self.delete(&places, *directories),
            Query::Rename { overwrite, .. } => self.rename(&places, *overwrite),
        }
    }

    /// Sends an answer. Returns false if the query is over, so that no more answers are needed.
    fn answer(&mut self, answer: Answer) -> bool {
        match &answer {
            Answer::Failed(error) => {
                self.conclusion.failed += 1;
                self.conclusion.first_failure.get_or_insert_with(|| error.clone());
            }
            Answer::Listed(listed) => {
                self.conclusion.done += 1;
                self.conclusion.bytes = self.conclusion.bytes.saturating_add(listed.size);
            }
            Answer::Deleted { .. } => self.conclusion.done += 1,
        }
        self.runner.control().answer(answer, || self.runner.cancel().is_cancelled())
    }

    fn delete(&mut self, places: &[QueryPlace], directories: DeleteDirectories) -> Result<(), Error> {
        for place in places {
            let path = exact_path(place, "delete")?;
            let log = self.log;
            place.root.delete(&path, directories, &mut |outcome| {
                let answer = outcome.and_then(|path| shown_path(place.prefix.as_ref(), Some(&path)));
                self.answer(match answer {
                    Ok(Some(path)) => {
                        log.session_event(SessionEvent::Notice(format!("deleted {path}")));
                        Answer::Deleted { path }
                    }
                    Ok(None) => return true,
                    Err(error) => Answer::Failed(error),
                })
            });
            if self.runner.cancel().is_cancelled() {
                break;
            }
        }
        Ok(())
    }

    fn rename(&mut self, places: &[QueryPlace], overwrite: Overwrite) -> Result<(), Error> {
        let [from, to] = places else { return Err(crate::internal("a rename without two places")) };
        if !from.root.is_same(&to.root) {
            let text = format!(
                "rename from {} to {}: a rename stays in one root; copy and delete instead",
                from.root, to.root
            );
            return Err(Error::new(ErrorKind::Usage, Scope::Destination, Phase::Prepare, text));
        }
        let (old, new) = (exact_path(from, "rename")?, exact_path(to, "rename to")?);
        from.root.rename(&old, &new, overwrite)?;
        self.log.session_event(SessionEvent::Notice(format!("renamed {old} to {new} in {}", from.root)));
        self.conclusion.done = 1;
        Ok(())
    }
}

/// Returns the path of a place, without wildcards. Errors: the place is a root.
pub(super) fn exact_path(place: &QueryPlace, tried: &str) -> Result<RelPath, Error> {
    let names = place.pattern.split(|&b| b == b'/').filter(|name| !matches!(*name, b"" | b"."));
    let path = names.collect::<Vec<_>>().join(&b'/');
    if path.is_empty() {
        let text = format!("{tried} {}: a root itself cannot be deleted or renamed", place.root);
        return Err(Error::new(ErrorKind::Usage, Scope::Destination, Phase::Prepare, text));
    }
    RelPath::new(&path)
}
