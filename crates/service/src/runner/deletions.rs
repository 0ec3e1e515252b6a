//! Deletions of copies between the hops of jobs: at storages by this process, at sites by their agents.
//!
//! The store has the copies that are to be deleted. A copy is deleted only if this job wrote it where no file was, and
//! if no transfer of the job reads or writes it. Refuses to try without end: a copy that stays has a line in the log,
//! and its reason in the record of its file.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};
use sterna_sched::queue::FileNumber;
use tracing::info;

use super::Runner;
use super::cleanup::{Sent, after, is_deletable};
use crate::credentials::Credentials;
use crate::endpoint::{loggable, site_of};
use crate::job::{Cleanup, File};
use crate::service::now;
use crate::store::{Deletion, DeletionStep, FileFilter};
use crate::web::Web;
use crate::worker::{End, ToAgent};

/// Maximum number of deletions at the same time. Reason: a storage that is busy with them has no time for transfers.
const TOGETHER_MAX: usize = 100;

/// Time without a report after which a deletion counts as failed. Reason: a request to a storage has 60 s; an agent
/// whose connection is lost reports nothing.
const REPORT_WITHIN: Duration = Duration::from_secs(120);

/// Wait before another look at a copy that a transfer of its job may still use.
const USED_WAIT: Duration = Duration::from_secs(1);

impl Runner {
    /// Starts deletions that are due, and gives up those without a report.
    pub(super) async fn delete_copies(&mut self) {
        let silent = self.deletions.0.iter().filter(|(_, sent)| sent.since.elapsed() >= REPORT_WITHIN);
        let silent: Vec<FileNumber> = silent.map(|(file, _)| *file).collect();
        let silence = || {
            let text = format!("no report within {} s", REPORT_WITHIN.as_secs());
            Some(Error::new(ErrorKind::Unreachable, Scope::Service, Phase::Finalise, text).retry(Retry::After))
        };
        let ended = silent.into_iter().map(|file| (file, silence())).collect();
        self.handle_deleted(ended).await;
        // Those under way are due too.
        let limit = u32::try_from(TOGETHER_MAX).unwrap_or(u32::MAX);
        let due = self.insist("read deletions", async || self.store().deletions(now(), limit).await).await;
        let mut steps = Vec::new();
        for deletion in due {
            if self.deletions.0.len() >= TOGETHER_MAX {
                break;
            }
            if !self.deletions.0.contains_key(&deletion.file) {
                steps.extend(self.delete_copy(&deletion).await.map(|step| (deletion.file, step)));
            }
        }
        self.step_deletions(steps).await;
    }

    /// Starts a deletion. Returns what follows if it does not start.
    async fn delete_copy(&mut self, deletion: &Deletion) -> Option<DeletionStep> {
        let files = self.files(FileFilter { jobs: vec![deletion.job], ..FileFilter::default() }).await;
        let Some(file) = files.iter().find(|file| file.number == deletion.file) else {
            return Some(DeletionStep::Ends { cleanup: None });
        };
        if self.is_used(file) {
            return Some(DeletionStep::Waits { not_before: now() + USED_WAIT });
        }
        if let Err(cleanup) = is_deletable(file, &files) {
            if let Some(Cleanup::Kept { reason }) = &cleanup {
                info!(
                    "file {} of job {}: {} stays: {reason}",
                    file.number.0,
                    file.job,
                    loggable(&file.new.destination)
                );
            }
            return Some(DeletionStep::Ends { cleanup });
        }
        let (location, attempts) = (file.new.destination.clone(), deletion.attempts);
        let (worker, refused) = match self.send_deletion(file, location.clone()).await {
            Ok(worker) => (worker, None),
            Err(error) => (Arc::clone(self.embedded.name()), Some(error)),
        };
        let sent = Sent { since: Instant::now(), worker, attempts, location };
        match refused {
            Some(error) => Some(after(file.number, &sent, Some(error))),
            None => {
                self.deletions.0.insert(file.number, sent);
                None
            }
        }
    }

    /// Returns true if a transfer of the job may still write or read the copy of a hop.
    fn is_used(&self, file: &File) -> bool {
        let running = self.service.shared.running.lock();
        let next = file.new.entry + 1;
        running
            .values()
            .any(|one| one.file.job == file.job && (one.file.number == file.number || one.file.new.entry == next))
    }

    /// Sends a deletion to a worker. Returns the worker.
    ///
    /// Errors: an operator has taken the access away; no agent of the site is connected.
    async fn send_deletion(&self, file: &File, location: String) -> Result<Arc<str>, Error> {
        self.service.check_sites(&file.vo, &file.new)?;
        if let Some(site) = site_of(&file.new.destination_endpoint) {
            let agent = self.agents.single(self.members(site), End::Destination).ok_or_else(|| {
                let text = format!("no agent of {site} is connected");
                Error::new(ErrorKind::Unreachable, Scope::Destination, Phase::Finalise, text).retry(Retry::After)
            })?;
            let age_ms = file.age_of_copy(now()).as_millis().try_into().unwrap_or(u64::MAX);
            self.agents.send(&agent.worker, ToAgent::Delete { file: file.number.0, location, age_ms });
            return Ok(agent.worker);
        }
        if !Web::can_delete(&location) {
            let text = format!("no worker deletes {}", loggable(&location));
            return Err(Error::new(ErrorKind::Usage, Scope::Service, Phase::Finalise, text));
        }
        let tag = file.moved.tag.clone().ok_or_else(|| {
            let text =
                "the storage gave the copy no ETag and no checksum: it stays, because another file may be there now";
            Error::new(ErrorKind::Usage, Scope::Destination, Phase::Finalise, text)
        })?;
        let credentials = self.credentials_of(file).await;
        self.embedded.delete(file.number, (location, tag), credentials);
        Ok(Arc::clone(self.embedded.name()))
    }

    /// Returns the credentials of a file, with the proxy of its owner.
    async fn credentials_of(&self, file: &File) -> Credentials {
        let number = file.number;
        let read = async || self.store().credentials(vec![number]).await;
        let mut credentials = self.insist("read credentials", read).await.remove(&number).unwrap_or_default();
        let options = self.options_of(std::slice::from_ref(file)).await;
        let owner = options.into_values().next().map(|(_, credential)| credential);
        let mut proxies = self.proxies_of(owner.iter().map(String::as_str)).await;
        credentials.proxy = owner.and_then(|owner| proxies.remove(&owner));
        credentials
    }

    /// Records the ends of deletions.
    pub(super) async fn handle_deleted(&mut self, ended: Vec<(FileNumber, Option<Error>)>) {
        let mut steps = Vec::new();
        for (file, error) in ended {
            let Some(sent) = self.deletions.0.remove(&file) else { continue };
            steps.push((file, after(file, &sent, error)));
        }
        self.step_deletions(steps).await;
    }

    async fn step_deletions(&self, steps: Vec<(FileNumber, DeletionStep)>) {
        if !steps.is_empty() {
            self.insist("change deletions", async || self.store().step_deletions(steps.clone()).await).await;
        }
    }
}
