//! Epochs of a replica: each session with its sender begins a new one.
//!
//! Events of an earlier epoch may still arrive from its lanes. [`Epoch::with_session`] drops them. Data that was
//! written counts in any epoch, and lanes report it directly. Refuses to interpret an event.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sterna_proto::session::{ReplicaId, ReplicaSession};

use super::Replicas;

/// Epoch of a replica, in which one session with its sender counts. Clones are of the same session.
#[derive(Clone)]
pub(super) struct Epoch {
    pub(super) replicas: Arc<Replicas>,
    pub(super) replica: ReplicaId,
    /// Number of this session among those of the replica. A later session ends this one.
    number: u64,
}

impl Epoch {
    /// Begins the next epoch of a replica.
    pub(super) fn begin(replicas: &Arc<Replicas>, replica: ReplicaId) -> Self {
        let number = replicas.epochs[replica.0 as usize].fetch_add(1, Ordering::Relaxed) + 1;
        Self { replicas: Arc::clone(replicas), replica, number }
    }

    /// True if no later session has replaced this one.
    pub(super) fn is_current(&self) -> bool {
        self.replicas.epochs[self.replica.0 as usize].load(Ordering::Relaxed) == self.number
    }

    /// Passes an event of this session to the state machine, if the session is the current one of its replica.
    pub(super) fn with_session<T>(&self, what: impl FnOnce(&mut ReplicaSession) -> T) -> Option<T> {
        let mut session = self.replicas.session.lock();
        let result = self.is_current().then(|| what(&mut session));
        drop(session);
        self.replicas.wake().notify();
        result
    }
}
