//! Versions of source files that later sessions of a peer have published, so that an earlier session does not replace
//! them with older versions.
//!
//! A client is killed and run again with changed files. Data of the killed client may still wait in buffers of the
//! network and of this host, and be processed after the second run has ended. Its session must then not bring the older
//! versions back.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::Stat;
use sterna_proto::FileEntry;

use super::claims::hash_of;
use crate::identity::Fingerprint;

/// Maximum number of files in one generation; the last two generations are kept. Reason: 2^16 files have 5 MB; buffers
/// hold fewer small files.
const GENERATION_MAX: usize = 1 << 16;

/// History of an agent.
#[derive(Debug, Default)]
pub struct History(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Number of the next session.
    next: u64,
    /// Sessions that may still publish files.
    active: BTreeMap<u64, Fingerprint>,
    /// Latest session that has published a recorded file.
    latest: u64,
    young: HashMap<Key, Published>,
    old: HashMap<Key, Published>,
}

/// Device and inode of a published file. A reused inode can only keep a file from being replaced, and only while an
/// earlier session of the same peer is active.
type Key = (u64, u64);

#[derive(Clone, Copy, Debug)]
struct Published {
    session: u64,
    peer: Fingerprint,
    version: Version,
}

/// Version of a source file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Version {
    /// Hash of the file name at the source. Reason: the path depends on the location that the copy was asked for; two
    /// runs name the same file as `t` and as `t/f`. Files of different names that are copied to one name at the same
    /// time are different sources.
    name: u64,
    /// Change time, which only the kernel of the source sets.
    changed: u64,
}

impl History {
    /// Returns the part of a new session of `peer`.
    pub fn begin(self: &Arc<Self>, peer: Fingerprint) -> SessionHistory {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.active.insert(number, peer);
        SessionHistory { history: Arc::clone(self), number, peer }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Consistent between any two statements, so it stays valid after a panic in another thread.
        self.0.lock()
    }
}

/// Part of one session in the [`History`]. It ends when the session can publish no more files.
#[derive(Debug)]
pub struct SessionHistory {
    history: Arc<History>,
    number: u64,
    peer: Fingerprint,
}

impl SessionHistory {
    /// Records that the file `stat`, which is about to get its name, has `version` at its source. Does nothing
    /// without an earlier session of the same peer.
    pub(super) fn record(&self, stat: &Stat, version: Version) {
        let mut state = self.history.lock();
        if !state.active.range(..self.number).any(|(_, peer)| *peer == self.peer) {
            return;
        }
        if state.young.len() >= GENERATION_MAX {
            state.old = std::mem::take(&mut state.young);
        }
        state.latest = state.latest.max(self.number);
        let published = Published { session: self.number, peer: self.peer, version };
        state.young.insert((stat.st_dev, stat.st_ino), published);
    }

    /// Returns true if the file `stat` is of a later session of the same peer, from a source of the same name, and
    /// newer than `version`.
    pub(super) fn is_superseded(&self, stat: &Stat, version: Version) -> bool {
        let state = self.history.lock();
        let key = (stat.st_dev, stat.st_ino);
        let published = state.young.get(&key).or_else(|| state.old.get(&key));
        published.is_some_and(|published| {
            let Version { name, changed } = published.version;
            let is_later = published.session > self.number && published.peer == self.peer;
            is_later && name == version.name && changed > version.changed
        })
    }
}

impl Drop for SessionHistory {
    fn drop(&mut self) {
        let mut state = self.history.lock();
        state.active.remove(&self.number);
        // Nothing is superseded once every session that began before a published file has ended. The session of the
        // file may have ended long before.
        if state.active.range(..state.latest).next().is_none() {
            (state.young, state.old) = (HashMap::new(), HashMap::new());
        }
    }
}

/// Returns the version of a file at its source; `None` if its change time is unknown.
pub(super) fn version_of(entry: &FileEntry) -> Option<Version> {
    let is_known = entry.growth.is_none() && entry.version != 0;
    is_known.then(|| Version { name: hash_of(entry.path.name()), changed: entry.version })
}
