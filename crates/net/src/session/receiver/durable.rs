//! Journals of the received files: about once a second, and at the end of the session or the process.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sterna_proto::session::FileId;

use super::{CHECKPOINT_INTERVAL, Receiver, Slot};
use crate::session::End;

/// Longest wait for the batch of small files that is being published when the session ends. Reason: it takes some
/// syncs, on a slow disk seconds; a disk that hangs must not hold up the end of the process.
const LAST_BATCH_TIME_MAX: Duration = Duration::from_secs(10);

impl Receiver {
    /// Makes received data durable about once a second. Ends with the session, after a last turn.
    pub(super) fn run_checkpoints(&self) {
        loop {
            let over = self.is_over();
            self.limits.storage_work(|| self.checkpoint());
            if over {
                // Directories that miss some of their files keep their initial mode, so that the next session can
                // write to them.
                self.notice(self.options.sink.sync_names());
                self.end_files();
                return;
            }
            self.wake.wait_until(CHECKPOINT_INTERVAL, || self.is_over());
        }
    }

    /// Makes all received data durable now.
    pub fn checkpoint(&self) {
        let slots: Vec<(FileId, Arc<Slot>)> =
            self.slots.lock().iter().map(|(id, slot)| (*id, Arc::clone(slot))).collect();
        for (id, slot) in slots {
            let Some(incoming) = slot.incoming() else { continue };
            if !self.session.lock().is_receiving(id) {
                continue;
            }
            if let Err(error) = incoming.checkpoint() {
                self.session.lock().fail(id, error);
                self.after_change();
            }
        }
    }

    /// Ends the work on all files, so that the process may end: each file either has a journal of all its blocks, or no
    /// part file. Blocks that arrive later are lost, and are sent again in the next session.
    pub fn end_files(&self) {
        self.checkpoint();
        let slots = {
            let mut slots = self.slots.lock();
            self.has_ended.store(true, Ordering::Relaxed);
            std::mem::take(&mut *slots)
        };
        self.drop_queues();
        for slot in slots.values() {
            // Waits for a thread that asks the storage now. A thread that comes later finds the answer that the file
            // takes no blocks.
            let _asked = slot.asked.lock();
            slot.set_found(None, &self.open);
            slot.incoming().iter().for_each(|incoming| incoming.end());
        }
        // A batch of small files has part files until it is published.
        let until = Instant::now() + LAST_BATCH_TIME_MAX;
        let mut waiting = self.waiting.lock();
        while waiting.packs > 0 && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            self.job_done.wait_for(&mut waiting, left);
        }
    }

    /// Waits until the last journals are durable. To be called when the session is over.
    pub fn join(&self) {
        let checkpointer = self.checkpointer.lock().take();
        // The thread itself has reported its panic.
        checkpointer.map(|thread| thread.join());
    }
}
