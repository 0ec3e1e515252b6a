//! Ends what a peer may not do any more: the list of authorized peers is looked at twice a second.
//!
//! What it does: when the file has changed, every session is held against it again, with its request, and ended where the
//! rights do not suffice; a third-party copy is a session of its command. What it refuses to do: widen anything. A thread of
//! its own: a file system or a session that hangs holds up nobody else.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use sterna_proto::Error;

use super::Shared;
use super::sessions::AgentSession;
use crate::identity::Authorized;

/// How often the file is looked at. Reason: rights that were taken away are gone within a second.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Time for the peer to hear why its session ended, before its lanes are cut. Reason: as of every farewell.
const FAREWELL: Duration = Duration::from_secs(2);

/// What is left to do.
#[derive(Default)]
pub(super) struct Revocation {
    /// Sessions are held against the list once more: one may have begun by what the list said before.
    is_due: bool,
    /// Sessions that were ended, and when: their lanes are still there.
    ended: Vec<(Arc<AgentSession>, Instant)>,
}

impl Shared {
    /// Looks after revocations until the agent stops.
    ///
    /// Started by `Agent::start`; woken by the clock; a turn is one look at the file.
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
                // It is about to be started, and is looked at again then.
                revocation.is_due |= session.started().is_none();
                if let Err(error) = self.places_allowed(&session.peer, session.on_behalf_of, &session.request) {
                    session.abort(&no_longer(&error));
                    revocation.ended.push((session, now));
                }
            }
        }
        // A peer that takes no farewell is not waited for.
        revocation.ended.retain(|(session, ended)| {
            let is_late = now.saturating_duration_since(*ended) >= FAREWELL;
            if is_late {
                session.live.live().iter().for_each(|lane| lane.cut("no longer authorized"));
            }
            !is_late
        });
    }
}

/// The error of a right that is missing, as one of a right that was there.
fn no_longer(error: &Error) -> Error {
    let text = format!("no longer authorized: {}", error.chain());
    Error::new(error.kind, error.scope, error.phase, text).retry(error.retry)
}
