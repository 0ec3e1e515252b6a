//! State of each web server: how many requests it takes at once, and until when it gets none.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sterna_proto::session::LaneId;

use crate::wake::Wake;

/// First wait after a server reported overload without a time; doubled each time.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// Longest such wait. Reason: the end of a server's restart is noticed within this time.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Time without overload after which a paused server gets one more connection. Guess: long compared with the time
/// over which such a server counts requests.
const GROWS_AFTER: Duration = Duration::from_secs(30);

/// Servers of one copy.
pub(super) struct Hosts {
    state: Mutex<HashMap<String, Host>>,
    /// Notified after each change that can end a wait.
    changed: Wake,
    /// Most requests that each server gets at once, until it reports overload.
    budget: u32,
    stopped: AtomicBool,
    /// Lanes that are down while their feeders still run. The data that these feeders wait for has no reader.
    gone: Mutex<HashSet<LaneId>>,
}

#[derive(Debug)]
struct Host {
    in_use: u32,
    budget: u32,
    paused_until: Option<Instant>,
    /// Time of the last change of the budget, or the end of the pause that caused it.
    changed: Instant,
    /// Number of pauses in a row, which sets the length of the next.
    pauses: u32,
}

/// Permit for one request at a server, from its sending to the end of its body.
pub(super) struct Permit {
    hosts: Arc<Hosts>,
    origin: String,
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(host) = self.hosts.state.lock().get_mut(&self.origin) {
            host.in_use -= 1;
        }
        self.hosts.changed.notify();
    }
}

impl Hosts {
    /// Creates the state of servers that take `budget` requests at once.
    pub(super) fn new(budget: u32) -> Arc<Self> {
        let (state, changed, gone) = (Mutex::default(), Wake::default(), Mutex::default());
        Arc::new(Self { state, changed, budget: budget.max(1), stopped: AtomicBool::new(false), gone })
    }

    /// Waits until the server takes one more request; `None` when the copy has stopped or the lane of the request
    /// is down.
    pub(super) fn enter(self: &Arc<Self>, origin: &str, lane: Option<LaneId>) -> Option<Permit> {
        loop {
            let seen = self.changed.seen();
            if self.is_over(lane) {
                return None;
            }
            let mut state = self.state.lock();
            let now = Instant::now();
            let fresh = || Host { in_use: 0, budget: self.budget, paused_until: None, changed: now, pauses: 0 };
            let host = state.entry(origin.to_owned()).or_insert_with(fresh);
            if host.budget < self.budget && now.saturating_duration_since(host.changed) >= GROWS_AFTER {
                (host.budget, host.changed) = (host.budget + 1, now);
            }
            let pause = host.paused_until.map(|until| until.saturating_duration_since(now)).unwrap_or_default();
            if pause.is_zero() && host.in_use < host.budget {
                host.in_use += 1;
                return Some(Permit { hosts: Arc::clone(self), origin: origin.to_owned() });
            }
            // The next change of this server by time alone.
            let grows_at = (host.budget < self.budget).then(|| host.changed + GROWS_AFTER);
            let next = if pause.is_zero() { grows_at } else { host.paused_until };
            drop(state);
            self.changed.wait_to(seen, next);
        }
    }

    /// Pauses a server that reports overload: it gets no request for `wait`, or for increasing times when it names
    /// none. Halves its connections from then on. Returns the wait and the number of connections, if the pause is a
    /// new one.
    pub(super) fn pause(&self, origin: &str, wait: Option<Duration>, jitter: f64) -> Option<(Duration, u32)> {
        let mut state = self.state.lock();
        let host = state.get_mut(origin)?;
        let now = Instant::now();
        let is_paused = host.paused_until.is_some_and(|until| until > now);
        let backoff = PAUSE_MIN.saturating_mul(1 << host.pauses.min(6)).min(PAUSE_MAX).mul_f64(0.5 + jitter / 2.0);
        let until = now + wait.unwrap_or(backoff);
        if is_paused {
            // The other requests of the same moment: one overload of the server, reported several times.
            host.paused_until = host.paused_until.max(wait.map(|_| until));
            host.changed = host.changed.max(until);
            return None;
        }
        host.pauses += 1;
        // One request alone was not too many. The number that is too many is then unknown.
        let were_many = if host.in_use > 1 { host.in_use.min(host.budget) } else { host.budget };
        (host.budget, host.changed) = ((were_many / 2).max(1), until);
        host.paused_until = Some(until);
        Some((until - now, host.budget))
    }

    /// Records that the server has answered, which ends a row of pauses.
    pub(super) fn answered(&self, origin: &str) {
        if let Some(host) = self.state.lock().get_mut(origin)
            && host.paused_until.is_none_or(|until| until <= Instant::now())
        {
            host.pauses = 0;
        }
    }

    /// Waits for `time`. Returns true if the copy continues, and the lane for which it waits is up.
    pub(super) fn wait(&self, time: Duration, lane: Option<LaneId>) -> bool {
        self.changed.wait_until(time, || self.is_over(lane));
        !self.is_over(lane)
    }

    /// Ends every wait, now and later.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.changed.notify();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Records that a lane is down; ends every wait for it.
    pub(super) fn lane_down(&self, lane: LaneId) {
        self.gone.lock().insert(lane);
        self.changed.notify();
    }

    /// Records that the feeder of a lane has ended.
    pub(super) fn lane_fed(&self, lane: LaneId) {
        self.gone.lock().remove(&lane);
    }

    /// Returns true if the answer to a request of the lane has no reader any more.
    pub(super) fn is_over(&self, lane: Option<LaneId>) -> bool {
        self.is_stopped() || lane.is_some_and(|lane| self.gone.lock().contains(&lane))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_has_too_much_to_do_gets_half_of_it_once() {
        let hosts = Hosts::new(16);
        let permits: Vec<Permit> = (0..16).map(|_| hosts.enter("a", None).unwrap()).collect();
        let other = hosts.enter("b", None);
        assert_eq!(hosts.pause("a", Some(Duration::ZERO), 0.0), Some((Duration::ZERO, 8)));
        drop(permits);
        assert_eq!(hosts.pause("a", Some(Duration::from_secs(3600)), 0.0).map(|(_, budget)| budget), Some(4));
        // The other fifteen requests get the same answer.
        assert_eq!(hosts.pause("a", Some(Duration::from_secs(3600)), 0.0), None);
        assert!(other.is_some() && hosts.enter("b", None).is_some(), "another server has no part in it");
        hosts.stop();
        assert!(hosts.enter("a", None).is_none() && !hosts.wait(Duration::from_secs(3600), None));
    }

    #[test]
    fn who_waits_for_a_lane_that_is_down_waits_no_longer() {
        let hosts = Hosts::new(1);
        let _all = hosts.enter("a", Some(LaneId(1)));
        let waits = std::thread::spawn({
            let hosts = Arc::clone(&hosts);
            move || {
                hosts.enter("a", Some(LaneId(2))).is_none() && !hosts.wait(Duration::from_secs(3600), Some(LaneId(2)))
            }
        });
        hosts.lane_down(LaneId(2));
        assert!(waits.join().unwrap() && !hosts.is_over(Some(LaneId(1))));
    }

    #[test]
    fn waits_grow_where_the_server_names_none() {
        let hosts = Hosts::new(1);
        drop(hosts.enter("a", None));
        let waits: Vec<Duration> = (0..9)
            .map(|_| {
                hosts.state.lock().get_mut("a").unwrap().paused_until = None;
                hosts.pause("a", None, 1.0).unwrap().0
            })
            .collect();
        assert!(waits[0] < PAUSE_MIN * 2 && waits[1] > waits[0] && *waits.last().unwrap() <= PAUSE_MAX, "{waits:?}");
    }
}
