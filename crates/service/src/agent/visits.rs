//! Visits of the agent to peers that it monitors, on their way to the service.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::worker::Visited;

/// Maximum number of visits that wait while the service is away; older ones are dropped. Reason: 64 peers every 5
/// minutes for over an hour. The agent has all of them in its own files.
const WAITING_MAX: usize = 1000;

/// Visits that wait for the connection to the service.
#[derive(Clone, Default)]
pub struct Visits {
    waiting: Arc<Mutex<VecDeque<Visited>>>,
}

impl Visits {
    /// Adds a visit.
    pub fn report(&self, visited: Visited) {
        let mut waiting = self.waiting.lock();
        if waiting.len() == WAITING_MAX {
            waiting.pop_front();
        }
        waiting.push_back(visited);
    }

    /// Takes the oldest visit.
    pub(super) fn take(&self) -> Option<Visited> {
        self.waiting.lock().pop_front()
    }
}

#[cfg(test)]
mod tests {
    use sterna_doctor::monitor::{Failure, Outcome, Round};

    use super::*;

    #[test]
    fn the_latest_visits_wait() {
        let visits = Visits::default();
        for at in 0..WAITING_MAX as u64 + 5 {
            let round = Round { at, outcome: Outcome::Failed(Failure::Refused(String::new())) };
            visits.report(Visited { peer: String::new(), round, alarms: Vec::new() });
        }
        assert_eq!(visits.take().map(|visited| visited.round.at), Some(5));
        assert_eq!(visits.waiting.lock().len(), WAITING_MAX - 1);
    }
}
