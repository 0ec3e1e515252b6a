//! Data of a lane that is on its way.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Count of stretches that were passed whole and are not acknowledged yet. A lane that closes in order waits for
/// them.
#[derive(Debug, Default)]
pub(super) struct Undelivered {
    count: AtomicUsize,
    all_delivered: Notify,
}

impl Undelivered {
    /// Counts a stretch that was passed whole.
    pub(super) fn add(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// Removes a stretch that is acknowledged, or that the lane waits for no longer.
    pub(super) fn remove(&self) {
        if self.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.all_delivered.notify_waiters();
        }
    }

    /// Returns true if a stretch is not acknowledged.
    pub(super) fn any(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// Waits until everything is acknowledged.
    pub(super) async fn none(&self) {
        loop {
            let mut delivered = std::pin::pin!(self.all_delivered.notified());
            // Registers before the check, so that the last delivery is not missed in between.
            delivered.as_mut().enable();
            if !self.any() {
                return;
            }
            delivered.await;
        }
    }
}
