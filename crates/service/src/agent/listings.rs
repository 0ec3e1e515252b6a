//! Listings of prefixes that this agent makes for a service: a thread for each, until the connection ends.
//!
//! The service asks for more batches as it stores them, so that neither end needs memory for the whole listing. A
//! service that connects again starts its listings again.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex};
use sterna_net::agent::Agent;
use sterna_net::engine::Cancel;
use sterna_proto::{Error, ErrorKind, Location, Phase, Retry, Scope};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::transfers::Service;
use crate::job::Failure;
use crate::listing::{BATCH_BYTES_MAX, BATCH_FILES_MAX, BATCHES_MAX, Unlisted, encoded};
use crate::worker::FromAgent;

/// Maximum number of listings at the same time. Reason: more than a service starts; each has a thread.
const LISTINGS_MAX: usize = 64;

/// Listings of one connection. They stop when it is dropped.
pub(super) struct Listings {
    running: BTreeMap<Uuid, Arc<Running>>,
    messages: mpsc::UnboundedSender<FromAgent>,
    /// Messages of all listings. Each listing has few that wait.
    received: mpsc::UnboundedReceiver<FromAgent>,
}

/// Listing under way.
struct Running {
    cancel: Cancel,
    /// Number of batches that may be sent now.
    room: Mutex<usize>,
    changed: Condvar,
}

impl Default for Listings {
    fn default() -> Self {
        let (messages, received) = mpsc::unbounded_channel();
        Self { running: BTreeMap::new(), messages, received }
    }
}

impl Drop for Listings {
    fn drop(&mut self) {
        self.running.values().for_each(|running| running.stop());
    }
}

impl Running {
    fn stop(&self) {
        self.cancel.cancel();
        // A thread that looks at the room sees the cancellation, or is woken.
        let _room = self.room.lock();
        self.changed.notify_all();
    }

    /// Waits until a batch may be sent. Returns false if the listing was stopped.
    fn take_room(&self) -> bool {
        let mut room = self.room.lock();
        while *room == 0 && !self.cancel.is_cancelled() {
            self.changed.wait(&mut room);
        }
        *room = room.saturating_sub(1);
        !self.cancel.is_cancelled()
    }
}

impl Listings {
    /// Returns the next message to the service.
    pub(super) async fn next(&mut self) -> Option<FromAgent> {
        let message = self.received.recv().await;
        if let Some(FromAgent::Listed { listing, .. }) = &message {
            self.running.remove(listing);
        }
        message
    }

    /// Starts a listing in a thread.
    pub(super) fn start(&mut self, agent: &Arc<Agent>, service: Service, listing: Uuid, prefix: String) {
        let (messages, agent) = (self.messages.clone(), Arc::clone(agent));
        let end = move |outcome: Result<(), Error>| {
            let failure = outcome.err().as_ref().map(Failure::from);
            // The connection has ended if nobody receives.
            let _ = messages.send(FromAgent::Listed { listing, failure });
        };
        if self.running.len() >= LISTINGS_MAX {
            let text = format!("{LISTINGS_MAX} listings are under way at the agent, the maximum");
            return end(Err(Error::new(ErrorKind::Busy, Scope::Source, Phase::Prepare, text).retry(Retry::After)));
        }
        let running = Running { cancel: Cancel::default(), room: Mutex::new(BATCHES_MAX), changed: Condvar::new() };
        let running = Arc::new(running);
        self.running.insert(listing, Arc::clone(&running));
        let (messages, report) = (self.messages.clone(), end.clone());
        let run = move || {
            let outcome = list(&agent, service, &prefix, &running, |files| {
                let _ = messages.send(FromAgent::Found { listing, files });
            });
            if !running.cancel.is_cancelled() {
                report(outcome);
            }
        };
        if let Err(e) = thread::Builder::new().name("list".to_owned()).spawn(run) {
            let text = "start a thread for the listing";
            let error = Error::new(ErrorKind::Limit, Scope::Source, Phase::Prepare, text).retry(Retry::After);
            end(Err(error.caused_by(e)));
        }
    }

    /// Lets a listing send one more batch.
    pub(super) fn more(&self, listing: Uuid) {
        if let Some(running) = self.running.get(&listing) {
            let mut room = running.room.lock();
            *room = (*room + 1).min(BATCHES_MAX);
            running.changed.notify_all();
        }
    }

    /// Stops a listing.
    pub(super) fn stop(&mut self, listing: Uuid) {
        self.running.remove(&listing).iter().for_each(|running| running.stop());
    }
}

/// Lists the files beneath a prefix, and sends them in batches. Errors: also those of single names.
fn list(
    agent: &Agent,
    service: Service,
    prefix: &str,
    running: &Running,
    send: impl Fn(Vec<(String, u64)>),
) -> Result<(), Error> {
    let Location::Remote(at) = Location::parse(OsStr::new(prefix))? else {
        return Err(Error::protocol(format!("{prefix} is not at an agent")));
    };
    let mut unlisted = Unlisted::default();
    let (mut batch, mut bytes) = (Vec::new(), 0);
    for found in agent.beneath((&service.key, service.address), &at.path, &running.cancel)? {
        match found {
            Err(error) => unlisted.add(error),
            Ok(file) => {
                let path = encoded(&file.path);
                bytes += path.len();
                batch.push((path, file.size));
            }
        }
        if batch.len() >= BATCH_FILES_MAX || bytes >= BATCH_BYTES_MAX {
            if !running.take_room() {
                return Ok(());
            }
            send(std::mem::take(&mut batch));
            bytes = 0;
        }
    }
    if !batch.is_empty() && running.take_room() {
        send(batch);
    }
    unlisted.outcome()
}
