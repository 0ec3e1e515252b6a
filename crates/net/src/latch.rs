//! Flag that one thread sets and others wait for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::wake::Wake;

/// Flag that is set once and ends the waits of other threads.
#[derive(Debug, Default)]
pub(crate) struct Latch {
    is_set: AtomicBool,
    wake: Wake,
}

impl Latch {
    pub(crate) fn set(&self) {
        self.is_set.store(true, Ordering::Release);
        self.wake.notify();
    }

    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// Waits for `time`, or until the flag is set.
    pub(crate) fn wait(&self, time: Duration) {
        self.wake.wait_until(time, || self.is_set());
    }
}
