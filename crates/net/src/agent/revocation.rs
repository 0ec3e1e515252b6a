//! Revocation: ends sessions whose peers have lost their rights. Checks the file of authorized keys twice a second.
//!
//! When the file has changed, checks the request of every session again, and ends the session if the rights do not
//! suffice. A third-party copy is a session of its command. Never extends rights. Runs in a separate thread, so that a
//! file system or a session that hangs does not delay other work.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use sterna_proto::Error;

use super::Shared;
use super::sessions::AgentSession;
use crate::identity::Authorized;

/// Interval of the checks of the file. Reason: revoked rights end within a second.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Time for the peer to receive the reason before its lanes are cut. Reason: the same time as for every final message.
const FAREWELL: Duration = Duration::from_secs(2);

/// Work that is left for the next check.
#[derive(Default)]
pub(super) struct Revocation {
    /// True if sessions are checked once more: a session may have started by the previous contents of the file.
    is_due: bool,
    /// Sessions that were ended, with the time; their lanes are still open.
    ended: Vec<(Arc<AgentSession>, Instant)>,
}

impl Shared {
    /// Checks rights until the agent stops.
    ///
    /// Started by `Agent::start`. Woken by the clock. One turn is one check of the file.
    pub(super) fn watch_rights(self: &Arc<Self>, list: &Authorized) {
        let mut revocation = Revocation::default();
        while !self.stopping.load(Ordering::Relaxed) {
            thread::sleep(LOOK_EVERY);
            self.check_rights(list, &mut revocation, Instant::now());
        }
    }

    fn check_rights(self: &Arc<Self>, list: &Authorized, revocation: &mut Revocation, now: Instant) {
        let has_changed = list.has_changed();
        if has_changed || std::mem::take(&mut revocation.is_due) {
            revocation.is_due = has_changed;
            for (_, session) in self.sessions.all() {
                // A session that is not started yet is checked again later.
                revocation.is_due |= session.started().is_none();
                if let Err(error) = self.grant_for(&session.peer, &session.claim, &session.request) {
                    session.abort(&no_longer(&error));
                    revocation.ended.push((session, now));
                }
            }
        }
        // Cuts the lanes of a peer that does not accept the final message.
        revocation.ended.retain(|(session, ended)| {
            let is_late = now.saturating_duration_since(*ended) >= FAREWELL;
            if is_late {
                session.live.live().iter().for_each(|lane| lane.cut("no longer authorized"));
            }
            !is_late
        });
    }
}

/// Converts the error of a missing right to that of a revoked right.
fn no_longer(error: &Error) -> Error {
    let text = format!("no longer authorized: {}", error.chain());
    Error::new(error.kind, error.scope, error.phase, text).retry(error.retry)
}
