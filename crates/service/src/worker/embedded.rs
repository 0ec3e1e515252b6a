//! Worker within the process of the service, for storages that need no agent.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use sterna_sched::queue::FileNumber;
use tokio::sync::Notify;

use super::{Key, Report, Reports};
use crate::credentials::Credentials;
use crate::job::{Moved, Task};
use crate::mock;
use crate::web::{Progress, Web};

/// Worker within the process of the service, for storages that need no agent.
pub struct Embedded {
    name: Arc<str>,
    reports: Reports,
    /// Wakes each transfer when it is cancelled.
    running: Arc<Mutex<HashMap<Key, Arc<Notify>>>>,
    web: Web,
}

impl Embedded {
    /// Creates a worker. Its name is new with each process, so that a restarted service knows the transfers of the last
    /// one as lost.
    pub fn new(name: Arc<str>, reports: Reports, web: Web) -> Self {
        Self { name, reports, running: Arc::default(), web }
    }

    /// Returns the name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns the client of web storages.
    pub fn web(&self) -> &Web {
        &self.web
    }

    /// Starts a transfer. Runs within a tokio runtime.
    pub fn start(&self, task: Task) {
        let (key, web) = (Key::of(&task), self.web.clone());
        let (name, reports) = (Arc::clone(&self.name), self.reports.clone());
        let (running, cancelled) = (Arc::clone(&self.running), Arc::new(Notify::new()));
        self.running.lock().insert(key, Arc::clone(&cancelled));
        tokio::spawn(async move {
            let (by, to) = (Arc::clone(&name), reports.clone());
            let report = move |bytes| drop(to.send((Arc::clone(&by), Report::Progress(vec![(key, bytes)]))));
            let progress = Progress::new(report);
            let outcome = tokio::select! {
                // A transfer that has ended is not cancelled any more.
                biased;
                outcome = transfer(&task, &web, &progress) => outcome,
                () = cancelled.notified() => {
                    let text = "the transfer was cancelled";
                    Err(Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Transfer, text))
                }
            };
            let (moved, failure) = match outcome {
                Ok(moved) => (moved, None),
                Err(error) => (progress.moved(Instant::now()), Some(error)),
            };
            running.lock().remove(&key);
            // The service is stopping if nobody receives.
            let _ = reports.send((name, Report::Ended { key, moved, failure }));
        });
    }

    /// Deletes the copy that a file of a job has written at a storage, if it still has its tag. Reports the outcome.
    /// Runs within a tokio runtime.
    pub fn delete(&self, file: FileNumber, (location, tag): (String, String), credentials: Credentials) {
        let (web, name, reports) = (self.web.clone(), Arc::clone(&self.name), self.reports.clone());
        tokio::spawn(async move {
            let failure = web.delete(&location, &tag, &credentials).await.err();
            let _ = reports.send((name, Report::Deleted { file, failure }));
        });
    }

    /// Stops a transfer. It reports its end as cancelled.
    pub fn cancel(&self, key: Key) {
        // It may have ended meanwhile.
        self.running.lock().get(&key).into_iter().for_each(|cancelled| cancelled.notify_one());
    }

    /// Returns the number of transfers under way.
    pub fn count(&self) -> usize {
        self.running.lock().len()
    }
}

/// Runs a transfer. Errors: also `Usage`, for storages that no worker of this process moves files between.
async fn transfer(task: &Task, web: &Web, progress: &Progress) -> Result<Moved, Error> {
    if Web::can_run(&task.source, &task.destination) {
        return web.transfer(task, progress).await;
    }
    if mock::is_mock(&task.source) && mock::is_mock(&task.destination) {
        return mock::transfer(task).await;
    }
    let text = format!("no worker moves files from {} to {}", task.source, task.destination);
    Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text))
}
