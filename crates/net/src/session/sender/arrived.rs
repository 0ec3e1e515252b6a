//! Handles files with an outcome for a sender, and the digests and reads that sources to be removed need.

use std::sync::Arc;

use sterna_proto::session::{FileId, FileOutcome};
use sterna_proto::{BlockHasher, Error, FileEntry, RelPath};

use super::super::origin::OpenSource;
use super::super::then::{Arrived, Sweeper, Then};
use super::super::{SessionEvent, lock};
use super::{OutgoingBlock, Sender};
use crate::lane::LaneTx;

impl Sender {
    /// Sets the action on sources that have arrived. To be called before the first lane. Errors: the host cannot
    /// start the thread.
    pub fn set_then(self: &Arc<Self>, then: Then) -> Result<(), Error> {
        let sweeper = Sweeper::start(then, self)?;
        // Set once: a copy has one action.
        let _ = self.sweeper.set(sweeper);
        Ok(())
    }

    /// Handles the outcome of a file at the receiver. Returns the event to report; `None` if [`Sender::sweep`]
    /// reports it later.
    pub(super) fn handle_settled(&self, file: FileId, entry: FileEntry, outcome: FileOutcome) -> Option<SessionEvent> {
        let origin = lock(&self.names).remove(&file);
        lock(&self.open).files.remove(&file);
        self.holes.settle(file, &outcome);
        self.encoding.forget(file);
        if let Some(sweeper) = self.sweeper.get() {
            if let (Some(origin), FileOutcome::Done(digests)) = (origin, &outcome) {
                sweeper.push(file, origin, entry, *digests);
                return None;
            }
            sweeper.forget(file);
        }
        self.tell_follow(file, &outcome);
        Some(SessionEvent::Settled { entry, outcome })
    }

    fn tell_follow(&self, file: FileId, outcome: &FileOutcome) {
        if let Some((follow, session)) = &self.follow {
            follow.handle_settled(*session, file, outcome);
        }
    }

    /// Compares the received file with the data that was read, then deletes or moves its source. Runs on the sweep
    /// thread only.
    pub(in crate::session) fn sweep(&self, arrived: Arrived) {
        let Some(sweeper) = self.sweeper.get() else { return };
        let compared = sweeper.compare(&arrived);
        let Arrived { file, origin, entry, digests, .. } = arrived;
        let outcome = match compared {
            Ok(()) => FileOutcome::Done(digests),
            Err(error) => FileOutcome::Failed(error),
        };
        let left = match outcome {
            FileOutcome::Done(_) => sweeper.sweep(&origin, &entry, self.follow.is_some()).err(),
            _ => None,
        };
        match left {
            Some(error) => {
                // A source that should be gone but remains is sent again once it may be removed.
                self.tell_follow(file, &FileOutcome::Failed(error.clone()));
                self.observer.session_event(SessionEvent::Left(error));
            }
            None => self.tell_follow(file, &outcome),
        }
        self.observer.session_event(SessionEvent::Settled { entry, outcome });
        sweeper.handle_swept();
    }

    /// Handles a panic of the sweep thread on a file: its source remains, and the thread continues with the next
    /// file.
    pub(in crate::session) fn handle_sweep_panic(&self, name: &RelPath) {
        let text = format!("{name} has arrived and stays where it is: comparing it or taking it away ended by a panic");
        self.observer.session_event(SessionEvent::Left(crate::internal(&text)));
        self.sweeper.get().into_iter().for_each(Sweeper::handle_swept);
    }

    /// Records the digest of data that was read, if the sweeper needs it once the file has arrived.
    pub(super) fn record(&self, file: FileId, record: impl FnOnce(&Sweeper)) {
        let Some(sweeper) = self.sweeper.get() else { return };
        // The lock is held here: a file that has settled in the meantime is no longer recorded.
        let names = lock(&self.names);
        if names.contains_key(&file) {
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
    pub(super) fn is_hole(&self, source: &mut OpenSource<'_>, offset: u64, length: u64) -> Result<bool, Error> {
        Ok(source.is_hole(offset, length)? && (self.sweeper.get().is_none() || source.is_zero(offset, length)?))
    }
}
