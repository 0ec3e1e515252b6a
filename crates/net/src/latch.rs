//! Flag that one thread sets and others wait for.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::sync::lock;

/// Flag that is set once and ends the waits of other threads.
#[derive(Default)]
pub(crate) struct Latch(Mutex<bool>, Condvar);

impl Latch {
    pub(crate) fn set(&self) {
        *lock(&self.0) = true;
        self.1.notify_all();
    }

    pub(crate) fn is_set(&self) -> bool {
        *lock(&self.0)
    }

    /// Waits for `time`, or until the flag is set.
    pub(crate) fn wait(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut is_set = lock(&self.0);
        while !*is_set {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            is_set = self.1.wait_timeout(is_set, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
