//! Event count: wakes threads that wait for a change of a state, without a lost wake-up.
//!
//! A waiter takes [`Wake::seen`], looks at the state, and waits only if there is nothing to do. A change between the
//! look and the wait ends the wait at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Counter of changes, with the threads that wait for the next one.
#[derive(Debug, Default)]
pub struct Wake {
    changes: AtomicU64,
    /// Held from the check of the counter to the wait, and for each notification.
    turn: Mutex<()>,
    changed: Condvar,
}

/// Changes up to a time.
#[derive(Clone, Copy, Debug)]
pub struct Seen(u64);

impl Wake {
    /// Returns the changes up to now. To be taken before the state is looked at.
    pub fn seen(&self) -> Seen {
        Seen(self.changes.load(Ordering::Acquire))
    }

    /// Counts a change and wakes all waiters. To be called after the change.
    pub fn notify(&self) {
        self.changes.fetch_add(1, Ordering::Release);
        // A waiter that has checked the counter waits before this lock is taken, so that the notification reaches it.
        drop(self.turn.lock());
        self.changed.notify_all();
    }

    /// Waits for `time`, or until `is_done` returns true. Looks again after each change.
    pub fn wait_until(&self, time: Duration, is_done: impl Fn() -> bool) {
        let until = Instant::now() + time;
        loop {
            let seen = self.seen();
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || is_done() {
                return;
            }
            self.wait(seen, left);
        }
    }

    /// Waits for a change after `seen`, at most for `time`.
    pub fn wait(&self, seen: Seen, time: Duration) {
        self.wait_to(seen, Some(Instant::now() + time));
    }

    /// Waits for a change after `seen`, at most until the deadline, if there is one.
    pub fn wait_to(&self, seen: Seen, deadline: Option<Instant>) {
        let mut turn = self.turn.lock();
        while self.changes.load(Ordering::Acquire) == seen.0 {
            let Some(deadline) = deadline else {
                self.changed.wait(&mut turn);
                continue;
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.changed.wait_for(&mut turn, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    /// Longer than any test runs.
    const FOREVER: Duration = Duration::from_secs(3600);

    #[test]
    fn a_change_before_the_wait_ends_it() {
        let wake = Wake::default();
        let seen = wake.seen();
        wake.notify();
        wake.wait(seen, FOREVER);
    }

    #[test]
    fn no_change_of_another_thread_is_lost() {
        let (wake, count) = (Arc::new(Wake::default()), Arc::new(AtomicU64::new(0)));
        let (notifier, counter) = (Arc::clone(&wake), Arc::clone(&count));
        let changes = 10_000;
        let thread = thread::spawn(move || {
            for _ in 0..changes {
                counter.fetch_add(1, Ordering::Relaxed);
                notifier.notify();
            }
        });
        loop {
            let seen = wake.seen();
            if count.load(Ordering::Relaxed) == changes {
                break;
            }
            wake.wait(seen, FOREVER);
        }
        thread.join().unwrap();
    }
}
