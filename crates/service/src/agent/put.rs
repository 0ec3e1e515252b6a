//! Transfers from this agent to web storages: it writes its file there, with the client that the service has too. That
//! client also reads a source again, to compare it with a file that was there.
//!
//! The client is asynchronous, and each transfer has a thread that waits for it. All share one runtime, which deletes
//! temporary files also after their transfer has ended.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use sterna_net::agent::{Commission, WebServers};
use sterna_net::engine::Cancel;
use sterna_net::identity::Fingerprint;
use sterna_proto::{Algorithm, Digest, Error, ErrorKind, Phase, Retry, Scope};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;

use crate::credentials::Secret;
use crate::job::{Moved, Task};
use crate::web::{AddressRules, ConnectRules, Progress, Web};
use crate::worker::{End, Order, Other};

/// Addresses of the hosts that the operator allows: those of this host and of private networks too, as when the agent
/// reads. Link-local ones stay refused: no storage has one.
const ADDRESSES: AddressRules = AddressRules { loopback: true, private: true };

/// Client of web storages, which the first transfer that needs it starts.
#[derive(Default)]
pub struct Storages(Mutex<Option<Started>>);

/// Client that was started for a service.
#[derive(Clone)]
struct Started {
    runtime: Arc<Background>,
    service: Fingerprint,
    web: Web,
}

/// Runtime that does not wait for its tasks when it is dropped. Reason: the last owner can be a task of another one,
/// which must not wait.
struct Background(Option<Runtime>);

impl Drop for Background {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

impl Background {
    fn start() -> Result<Self, Error> {
        let runtime = Builder::new_multi_thread().thread_name("storages").enable_all().build().map_err(|e| {
            let text = "start the threads for web storages";
            Error::new(ErrorKind::Limit, Scope::Service, Phase::Prepare, text).retry(Retry::After).caused_by(e)
        })?;
        Ok(Self(Some(runtime)))
    }

    /// Waits for the end of a future. Errors: `Internal`.
    fn wait<T>(&self, future: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        // Taken by the drop only.
        let runtime = self.0.as_ref().ok_or_else(|| {
            Error::new(ErrorKind::Internal, Scope::Service, Phase::Prepare, "the threads for web storages have ended")
        })?;
        runtime.block_on(future)
    }
}

impl Storages {
    /// Writes the file of an order to a web storage. Waits for the end. Returns the bytes and limits, also of a failed
    /// write. `hosts`: those that the operator allows;
    /// `report` gets the bytes that have moved.
    ///
    /// Errors: `Cancelled`; those of the file and of the storage.
    pub fn put(
        &self,
        (service, hosts): (Fingerprint, &WebServers),
        order: &Order,
        task: &Task,
        commission: &Commission,
        cancel: &Cancel,
        report: impl Fn(u64) + Send + Sync + 'static,
    ) -> (Moved, Result<(), Error>) {
        let progress = Progress::new(report);
        let file = commission.open_source(cancel).map(Arc::new);
        let outcome = file.as_ref().map_err(Error::clone).and_then(|file| {
            let started = self.client(service, hosts)?;
            let task = task_of(order, task);
            let put = started.web.put(&task, Arc::clone(file), &progress);
            started.runtime.wait(until_cancelled(put, cancel, || format!("write to {}", task.destination)))
        });
        commission.log_end(file.as_deref().ok(), outcome.as_ref().err());
        match outcome {
            Ok(moved) => (moved, Ok(())),
            Err(error) => (progress.moved(Instant::now()), Err(error)),
        }
    }

    /// Returns the size of the source of an order, which is at a web server. Waits for the reply.
    ///
    /// Errors: `Cancelled`; those of the server.
    pub fn size_of_source(
        &self,
        (service, hosts): (Fingerprint, &WebServers),
        order: &Order,
        task: &Task,
        cancel: &Cancel,
    ) -> Result<u64, Error> {
        let started = self.client(service, hosts)?;
        let task = task_of(order, task);
        let size = started.web.size_of_source(&task);
        started.runtime.wait(until_cancelled(size, cancel, || format!("look at {}", task.source)))
    }

    /// Returns the digest of the source of an order, which is at a web server; `None`: its size is not `size`. Reads
    /// the file if the server reports no digest, and waits for the end.
    ///
    /// Errors: `Cancelled`; those of the server.
    pub fn digest_of_source(
        &self,
        (service, hosts): (Fingerprint, &WebServers),
        order: &Order,
        task: &Task,
        (size, algorithm): (u64, Algorithm),
        cancel: &Cancel,
    ) -> Result<Option<Digest>, Error> {
        let started = self.client(service, hosts)?;
        let task = task_of(order, task);
        let digest = started.web.digest_of_source(&task, size, algorithm);
        started.runtime.wait(until_cancelled(digest, cancel, || format!("read {} again", task.source)))
    }

    /// Returns the client for a service. Names of temporary files have the key of the service: another agent that
    /// starts the transfer again deletes what this one has left.
    fn client(&self, service: Fingerprint, hosts: &WebServers) -> Result<Started, Error> {
        let mut started = self.0.lock();
        if let Some(known) = started.as_ref().filter(|known| known.service == service) {
            return Ok(known.clone());
        }
        let runtime = match started.as_ref() {
            Some(known) => Arc::clone(&known.runtime),
            None => Arc::new(Background::start()?),
        };
        let rules = ConnectRules { hosts: hosts.clone(), addresses: ADDRESSES };
        let web = runtime.wait(Web::open(None, rules, &service.to_string()))?;
        Ok(started.insert(Started { runtime, service, web }).clone())
    }
}

/// Waits for the end of a transfer, or drops it at a cancellation: its connections close, and its temporary file is
/// deleted in the background. `tried`: what it does.
async fn until_cancelled<T>(
    transfer: impl Future<Output = Result<T, Error>>,
    cancel: &Cancel,
    tried: impl Fn() -> String,
) -> Result<T, Error> {
    let cancelled = Arc::new(Notify::new());
    let wakes = Arc::clone(&cancelled);
    let _waits = cancel.on_cancel(move || wakes.notify_one());
    tokio::select! {
        outcome = transfer => outcome,
        () = cancelled.notified() => {
            let text = format!("{}: the transfer was cancelled", tried());
            Err(Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Transfer, text))
        }
    }
}

/// Returns the task of an order, with the credential of the user for the storage.
fn task_of(order: &Order, task: &Task) -> Task {
    let mut task = task.clone();
    if let Other::Web { token } = &order.other {
        let secret = token.as_deref().and_then(Secret::new);
        match order.end {
            End::Source => task.credentials.destination = secret,
            End::Destination => task.credentials.source = secret,
        }
    }
    task
}
