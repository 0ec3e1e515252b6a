//! Worker within the process of the service, for storages that need no agent.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use sterna_net::engine::Cancel;
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};
use sterna_sched::queue::FileNumber;
use tokio::task::AbortHandle;

use super::{Report, Reports};
use crate::copies::Copies;
use crate::job::{Moved, Task};
use crate::mock;
use crate::web::Web;

/// Worker within the process of the service, for storages that need no agent.
pub struct Embedded {
    name: Arc<str>,
    reports: Reports,
    running: Arc<Mutex<HashMap<FileNumber, Running>>>,
    copies: Copies,
    web: Web,
}

/// Transfer under way.
enum Running {
    /// Task of the runtime.
    Task(AbortHandle),
    /// Copy of the engine.
    Copy(Cancel),
}

impl Embedded {
    /// Creates a worker. Its name is new with each process, so that a restarted service knows the transfers of the last
    /// one as lost.
    pub fn new(name: Arc<str>, reports: Reports, copies: Copies, web: Web) -> Self {
        Self { name, reports, running: Arc::default(), copies, web }
    }

    /// Returns the name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns true if this worker can run a transfer.
    pub fn can_run(source: &str, destination: &str) -> bool {
        let is_mock = mock::is_mock(source) && mock::is_mock(destination);
        is_mock || Web::can_run(source, destination) || Copies::can_run(source, destination)
    }

    /// Starts a transfer. Runs within a tokio runtime.
    pub fn start(&self, task: Task) {
        if Copies::can_run(&task.source, &task.destination) {
            self.start_copy(task);
        } else if Web::can_run(&task.source, &task.destination) {
            self.start_web(task);
        } else {
            self.start_mock(task);
        }
    }

    /// Starts a transfer between agents, in a thread that waits for its end.
    fn start_copy(&self, task: Task) {
        let (file, cancel) = (FileNumber(task.file), Cancel::default());
        let (name, reports, copies) = (Arc::clone(&self.name), self.reports.clone(), self.copies.clone());
        let running = Arc::clone(&self.running);
        self.running.lock().insert(file, Running::Copy(cancel.clone()));
        let run = move || {
            let progress = |bytes| drop(reports.send((Arc::clone(&name), Report::Progress(vec![(file, bytes)]))));
            let (moved, failure) = match copies.transfer(&task, &cancel, progress) {
                Ok(moved) => (moved, None),
                Err(error) => (Moved::default(), Some(error)),
            };
            running.lock().remove(&file);
            let _ = reports.send((name, Report::Ended { file, moved, failure }));
        };
        if let Err(e) = thread::Builder::new().name("transfer".to_owned()).spawn(run) {
            self.running.lock().remove(&file);
            let error = Error::new(ErrorKind::Limit, Scope::Service, Phase::Prepare, "start a thread for the transfer");
            let failure = Some(error.retry(Retry::After).caused_by(e));
            let _ =
                self.reports.send((Arc::clone(&self.name), Report::Ended { file, moved: Moved::default(), failure }));
        }
    }

    fn start_web(&self, task: Task) {
        let (file, web) = (FileNumber(task.file), self.web.clone());
        let (name, reports) = (Arc::clone(&self.name), self.reports.clone());
        let progress = move |bytes| drop(reports.send((Arc::clone(&name), Report::Progress(vec![(file, bytes)]))));
        self.start_task(file, async move { web.transfer(&task, progress).await });
    }

    fn start_mock(&self, task: Task) {
        self.start_task(FileNumber(task.file), async move {
            if Self::can_run(&task.source, &task.destination) {
                return mock::transfer(&task).await;
            }
            let text = format!("no worker moves files from {} to {}", task.source, task.destination);
            Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text))
        });
    }

    /// Starts a transfer as a task of the runtime.
    fn start_task(&self, file: FileNumber, transfer: impl Future<Output = Result<Moved, Error>> + Send + 'static) {
        let (name, reports) = (Arc::clone(&self.name), self.reports.clone());
        let running = Arc::clone(&self.running);
        // Held until the transfer is in the table: its end must not come before.
        let mut table = self.running.lock();
        let ended = tokio::spawn(async move {
            let (moved, failure) = match transfer.await {
                Ok(moved) => (moved, None),
                Err(error) => (Moved::default(), Some(error)),
            };
            running.lock().remove(&file);
            // The service is stopping if nobody receives.
            let _ = reports.send((name, Report::Ended { file, moved, failure }));
        });
        table.insert(file, Running::Task(ended.abort_handle()));
    }

    /// Stops a transfer. It reports its end as cancelled.
    pub fn cancel(&self, file: FileNumber) {
        let transfer = match self.running.lock().get(&file) {
            Some(Running::Copy(cancel)) => {
                let cancel = cancel.clone();
                return cancel.cancel();
            }
            Some(Running::Task(transfer)) => transfer.clone(),
            None => return,
        };
        transfer.abort();
        if self.running.lock().remove(&file).is_none() {
            // It has ended meanwhile.
            return;
        }
        let failure = Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Transfer, "the transfer was cancelled");
        let _ = self
            .reports
            .send((Arc::clone(&self.name), Report::Ended { file, moved: Moved::default(), failure: Some(failure) }));
    }

    /// Returns the number of transfers under way.
    pub fn count(&self) -> usize {
        self.running.lock().len()
    }
}
