//! Bans of endpoints, and what they do to files.
//!
//! A ban is a setting: from then on no file starts at its endpoint. Then the files are brought into the state that the
//! bans require, some at a time, so that a queue of a million files delays no other write. This continues after the
//! reply, and after a restart of the service. Refuses to know the spelling of an interface.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sterna_proto::{Error, ErrorKind, Phase, Scope};
use sterna_sched::queue::FileNumber;
use sterna_sched::replica::Placed;
use sterna_sched::state::FileState;
use tracing::error;
use uuid::Uuid;

use crate::caller::Caller;
use crate::job::File;
use crate::service::{Reserves, Service, now};
use crate::settings::{Ban, BanKind, kind};
use crate::store::{Change, Changed, Event, LinkState};

/// Maximum number of files that are changed in one transaction. Reason: other writes wait about 20 ms meanwhile.
const CHANGED_TOGETHER_MAX: u32 = 100;

/// Time for which a command waits until its files have their states. Reason: clients see the effect on some thousand
/// files in the reply, and none gives up before it.
const REPLY_WITHIN: Duration = Duration::from_secs(2);

/// Wait after a failure of the store.
const STORE_RETRY: Duration = Duration::from_secs(1);

/// Change that the bans require of the files of a link in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Required {
    Cancel,
    Hold,
    Release,
}

impl Service {
    /// Bans an endpoint. Returns the jobs with files that it concerns. Needs the level `all` of `config`.
    ///
    /// Errors: `Denied`.
    pub async fn ban(
        self: &Arc<Self>,
        caller: &Caller,
        endpoint: &str,
        kind: BanKind,
        allows_submission: bool,
        message: &str,
    ) -> Result<Vec<Uuid>, Error> {
        let ban = Ban {
            kind,
            allows_submission,
            vo: caller.vo().to_owned(),
            message: message.to_owned(),
            by: caller.name.clone(),
            at: now().0,
        };
        let value = serde_json::to_value(&ban).map_err(|e| {
            Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, "write the ban as JSON").caused_by(e)
        })?;
        // The ban comes first: no file starts after it.
        self.set(caller, kind::BAN, endpoint, Some(value), "ban-se").await?;
        let jobs = self.store().jobs_at(endpoint).await?;
        self.settle_soon(Some(endpoint)).await;
        Ok(jobs)
    }

    /// Lifts the ban of an endpoint. Needs the level `all` of `config`.
    ///
    /// Errors: `Denied`.
    pub async fn unban(self: &Arc<Self>, caller: &Caller, endpoint: &str) -> Result<(), Error> {
        self.set(caller, kind::BAN, endpoint, None, "unban-se").await?;
        self.settle_soon(Some(endpoint)).await;
        Ok(())
    }

    /// Brings the files of an endpoint, or all, into the states that the bans require. Returns when that is done, or
    /// after a short time, and continues in the background.
    pub(crate) async fn settle_soon(self: &Arc<Self>, endpoint: Option<&str>) {
        let (service, endpoint) = (Arc::clone(self), endpoint.map(str::to_owned));
        let task = tokio::spawn(async move {
            while let Err(e) = service.settle(endpoint.as_deref()).await {
                error!("hold, release or cancel files of a ban: {}; trying again in {STORE_RETRY:?}", e.chain());
                tokio::time::sleep(STORE_RETRY).await;
            }
        });
        // Dropped, the handle lets the task go on.
        let _ = tokio::time::timeout(REPLY_WITHIN, task).await;
    }

    async fn settle(&self, endpoint: Option<&str>) -> Result<(), Error> {
        let mut links = self.store().links_in_use().await?;
        let has_end = |link: &LinkState, end: &str| link.source == end || link.destination == end;
        links.retain(|link| endpoint.is_none_or(|endpoint| has_end(link, endpoint)));
        // Transfers under way are stopped first.
        links.sort_by_key(|link| link.state != FileState::Active);
        for link in links {
            let mut after = FileNumber(0);
            loop {
                // Held for each step: files are not held after the ban was lifted, nor released after a new one.
                let _turn = self.operator_turn().await;
                let Some(required) = self.required(&link) else { break };
                let files = self.store().files_of_link(&link, after, CHANGED_TOGETHER_MAX).await?;
                let Some(last) = files.last() else { break };
                after = last.number;
                match required {
                    Required::Cancel => self.cancel_banned(&files).await?,
                    Required::Hold => self.change_files(&files, &Event::Holds).await?,
                    Required::Release => self.change_files(&files, &Event::Releases).await?,
                }
            }
        }
        Ok(())
    }

    /// Returns what the bans require of the files of a link; `None`: nothing.
    fn required(&self, link: &LinkState) -> Option<Required> {
        let applied = self.applied();
        let ban = |endpoint: &str| applied.bans.get(endpoint).map(|ban| ban.kind);
        match (link.state, ban(&link.source), ban(&link.destination)) {
            (_, Some(BanKind::Cancel), _) | (_, _, Some(BanKind::Cancel)) => Some(Required::Cancel),
            (FileState::Waiting, Some(_), _) | (FileState::Waiting, _, Some(_)) => Some(Required::Hold),
            (FileState::Held, None, None) => Some(Required::Release),
            _ => None,
        }
    }

    /// Changes files whose state is still the one that was read.
    async fn change_files(&self, files: &[File], what: &Event) -> Result<(), Error> {
        let at = now();
        let change = |file: &File| Change {
            file: file.number,
            from: file.state,
            of_worker: None,
            what: what.clone(),
            decision: None,
            at,
        };
        let (mut waiting, mut held) = (Vec::new(), Vec::new());
        for changed in self.store().change(files.iter().map(change).collect()).await? {
            match changed {
                Changed::Done { file, .. } if file.state == FileState::Waiting => waiting.push(*file),
                Changed::Done { file, .. } => held.push(file.number),
                Changed::Conflict => {}
            }
        }
        self.handle_waiting(waiting);
        self.handle_cancelled(held);
        Ok(())
    }

    /// Cancels files whose endpoint was banned.
    async fn cancel_banned(&self, files: &[File]) -> Result<(), Error> {
        const REASON: &str = "Storage banned";
        let successors = self.successors_of(files).await?;
        let at = now();
        let change = |file: &File| self.cancellation(file, file.state, REASON, successors.get(&file.number), at);
        let changed = self.store().change(files.iter().map(change).collect()).await?;
        let (mut cancelled, mut waits) = (Vec::with_capacity(files.len()), Vec::new());
        let mut moved_on = Vec::new();
        for (file, changed) in files.iter().zip(changed) {
            match changed {
                Changed::Done { waiting, .. } => {
                    cancelled.push(file.number);
                    waits.extend(waiting);
                }
                Changed::Conflict => moved_on.push(file),
            }
        }
        self.handle_waiting(waits);
        self.handle_cancelled(cancelled);
        // These started, were held or ended since they were read.
        for file in moved_on {
            self.cancel_file(file, REASON, successors.get(&file.number)).await?;
        }
        Ok(())
    }

    /// Returns for each file the replica that goes next, with the reason: none that is at a banned endpoint too.
    async fn successors_of(&self, files: &[File]) -> Result<BTreeMap<FileNumber, (FileNumber, String)>, Error> {
        // Only files with replicas have a strategy.
        let replicated: Vec<&File> = files.iter().filter(|file| file.new.strategy.is_some()).collect();
        let mut reserves = self.reserves_of(&replicated).await?;
        let applied = self.applied();
        let mut placed = Placed::default();
        let successor = |file: &&File| {
            let mut left = reserves.remove(&(file.job, file.new.entry))?;
            left.retain(|file| {
                let ends = [&file.new.source_endpoint, &file.new.destination_endpoint];
                !ends.into_iter().any(|endpoint| applied.bans.contains_key(endpoint))
            });
            Some((file.number, self.successor(file, &left, Reserves::All, &mut placed)?))
        };
        Ok(replicated.iter().filter_map(successor).collect())
    }
}
