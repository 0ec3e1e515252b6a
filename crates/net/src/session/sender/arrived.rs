//! Handles files with an outcome for a sender, and the digests and reads that sources to be removed need.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use sterna_proto::session::{FileId, FileOutcome};
use sterna_proto::{BlockHasher, Error, FileEntry, RelPath};

use super::super::SessionEvent;
use super::super::sweep::{Arrived, Sweeper};
use super::{OutgoingBlock, READ_BYTES, Sender};
use crate::lane::LaneTx;
use crate::source::{FileReader, SourceDisposition};

impl Sender {
    /// Sets the action on sources that have arrived. To be called before the first lane. Errors: the host cannot
    /// start the thread.
    pub fn set_disposition(self: &Arc<Self>, disposition: SourceDisposition) -> Result<(), Error> {
        let sender = Arc::downgrade(self);
        let sweeper = Sweeper::start(disposition, move |arrived| {
            let Some(sender) = sender.upgrade() else { return false };
            let name = arrived.entry.path.clone();
            if catch_unwind(AssertUnwindSafe(|| sender.sweep(arrived))).is_err() {
                sender.handle_sweep_panic(&name);
            }
            true
        })?;
        // Set once: a copy has one action.
        let _ = self.sweeper.set(sweeper);
        Ok(())
    }

    /// Handles the outcome of a file at the receiver. Returns the event to report; `None` if [`Sender::sweep`]
    /// reports it later.
    pub(super) fn handle_settled(&self, file: FileId, entry: FileEntry, outcome: FileOutcome) -> Option<SessionEvent> {
        let origin = self.files.lock().remove(&file);
        self.holes.settle(file, &outcome);
        self.encoding.forget(file);
        if let Some(sweeper) = self.sweeper.get() {
            if let (Some(origin), FileOutcome::Done(digests)) = (origin, &outcome) {
                sweeper.push(file, origin, entry, *digests);
                return None;
            }
            sweeper.forget(file);
        }
        self.source.handle_settled(file, &outcome);
        Some(SessionEvent::Settled { entry, outcome })
    }

    /// Compares the received file with the data that was read, then deletes or moves its source. Runs on the sweep
    /// thread only.
    fn sweep(&self, arrived: Arrived) {
        let Some(sweeper) = self.sweeper.get() else { return };
        let compared = sweeper.compare(&arrived);
        let Arrived { file, origin, entry, digests, .. } = arrived;
        let outcome = match compared {
            Ok(()) => FileOutcome::Done(digests),
            Err(error) => FileOutcome::Failed(error),
        };
        let left = match outcome {
            FileOutcome::Done(_) => sweeper.sweep(&*origin, &entry).err(),
            _ => None,
        };
        match left {
            Some(error) => {
                // A source that should be gone but remains is sent again once it may be removed.
                self.source.handle_settled(file, &FileOutcome::Failed(error.clone()));
                self.observer.session_event(SessionEvent::Left(error));
            }
            None => self.source.handle_settled(file, &outcome),
        }
        self.observer.session_event(SessionEvent::Settled { entry, outcome });
        sweeper.handle_swept();
        self.wake.notify();
    }

    /// Handles a panic of the sweep thread on a file: its source remains, and the thread continues with the next
    /// file.
    fn handle_sweep_panic(&self, name: &RelPath) {
        let text = format!("{name} has arrived and stays where it is: comparing it or taking it away ended by a panic");
        self.observer.session_event(SessionEvent::Left(crate::internal(&text)));
        self.sweeper.get().into_iter().for_each(Sweeper::handle_swept);
        self.wake.notify();
    }

    /// Records the digest of data that was read, if the sweeper needs it once the file has arrived.
    pub(super) fn record(&self, file: FileId, record: impl FnOnce(&Sweeper)) {
        let Some(sweeper) = self.sweeper.get() else { return };
        // The lock is held here: a file that has settled in the meantime is no longer recorded.
        let files = self.files.lock();
        if files.contains_key(&file) {
            record(sweeper);
        }
    }

    /// Ends a block that was read as a whole.
    pub(super) fn end_block(
        &self,
        block: &OutgoingBlock,
        hasher: BlockHasher,
        tx: &mut dyn LaneTx,
    ) -> Result<(), Error> {
        let chaining_value = hasher.finish().chaining_value;
        self.record(block.id, |sweeper| sweeper.record_block(block.id, block.index, chaining_value));
        tx.block_end(&chaining_value)
    }

    /// True if these bytes of a source are zeros that need not travel. Some file systems report data as holes: if the
    /// source is removed afterwards, the holes are read and checked.
    pub(super) fn is_hole(&self, source: &mut dyn FileReader, offset: u64, length: u64) -> Result<bool, Error> {
        Ok(source.is_hole(offset, length)? && (self.sweeper.get().is_none() || is_zero(source, offset, length)?))
    }
}

/// Reads the bytes `[offset, offset + length)`; true if all of them are zero.
fn is_zero(source: &mut dyn FileReader, offset: u64, length: u64) -> Result<bool, Error> {
    let mut buffer = vec![0; READ_BYTES.min(length as usize)];
    let end = offset + length;
    let mut at = offset;
    while at < end {
        let piece = &mut buffer[..READ_BYTES.min((end - at) as usize)];
        source.read_at(at, piece)?;
        if piece.iter().any(|&byte| byte != 0) {
            return Ok(false);
        }
        at += piece.len() as u64;
    }
    Ok(true)
}
