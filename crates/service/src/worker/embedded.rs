//! Worker within the process of the service, for storages that need no agent.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use tokio::task::AbortHandle;

use super::{Key, Report, Reports};
use crate::job::{Moved, Task};
use crate::mock;
use crate::web::Web;

/// Worker within the process of the service, for storages that need no agent.
pub struct Embedded {
    name: Arc<str>,
    reports: Reports,
    running: Arc<Mutex<HashMap<Key, AbortHandle>>>,
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
        let running = Arc::clone(&self.running);
        // Held until the transfer is in the table: its end must not come before.
        let mut table = self.running.lock();
        let ended = tokio::spawn(async move {
            let (by, to) = (Arc::clone(&name), reports.clone());
            let progress = move |bytes| drop(to.send((Arc::clone(&by), Report::Progress(vec![(key, bytes)]))));
            let (moved, failure) = match transfer(&task, &web, progress).await {
                Ok(moved) => (moved, None),
                Err(error) => (Moved::default(), Some(error)),
            };
            running.lock().remove(&key);
            // The service is stopping if nobody receives.
            let _ = reports.send((name, Report::Ended { key, moved, failure }));
        });
        table.insert(key, ended.abort_handle());
    }

    /// Stops a transfer. It reports its end as cancelled.
    pub fn cancel(&self, key: Key) {
        // It may have ended meanwhile.
        let Some(transfer) = self.running.lock().remove(&key) else { return };
        transfer.abort();
        let failure = Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Transfer, "the transfer was cancelled");
        let ended = Report::Ended { key, moved: Moved::default(), failure: Some(failure) };
        let _ = self.reports.send((Arc::clone(&self.name), ended));
    }

    /// Returns the number of transfers under way.
    pub fn count(&self) -> usize {
        self.running.lock().len()
    }
}

/// Runs a transfer. Errors: also `Usage`, for storages that no worker of this process moves files between.
async fn transfer(task: &Task, web: &Web, progress: impl Fn(u64) + Send + Sync + 'static) -> Result<Moved, Error> {
    if Web::can_run(&task.source, &task.destination) {
        return web.transfer(task, progress).await;
    }
    if mock::is_mock(&task.source) && mock::is_mock(&task.destination) {
        return mock::transfer(task).await;
    }
    let text = format!("no worker moves files from {} to {}", task.source, task.destination);
    Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text))
}
