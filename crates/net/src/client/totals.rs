//! Outcomes of a copy, over all its sessions.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sterna_proto::session::FileOutcome;
use sterna_proto::{
    Checks, Digest, Earlier, EntryKind, Error, ErrorKind, FileDigests, FileEntry, Location, Phase, Scope,
};

use super::spec::{CopyEvent, CopyObserver, CopySummary, FAILURES_KEPT_MAX};
use crate::session::{Observer, SessionEvent, SettledPaths};

/// Counts outcomes over all sessions of one copy, and forwards events to the observer.
pub(super) struct CopyTotals {
    pub(super) observer: Arc<dyn CopyObserver>,
    pub(super) state: Mutex<TotalsState>,
}

#[derive(Default)]
pub(super) struct TotalsState {
    pub(super) summary: CopySummary,
    /// Files that earlier sessions of this copy copied or found up to date. The next session leaves them out.
    pub(super) earlier: Arc<SettledPaths>,
    /// Files that the current session copied or found up to date.
    settled: SettledPaths,
    /// Bytes that the last session delivered for files that it did not settle. The next session resumes from them.
    pub(super) unsettled_bytes: u64,
    pub(super) aborted: Option<Error>,
    /// True if settled files are not remembered here: followed files are recorded elsewhere, and the same name may come
    /// again.
    pub(super) remembers_none: bool,
    /// Destination of the copy, which the failures of files there name; `None`: the texts are those of the receiver.
    pub(super) destination: Option<Location>,
    /// Digests that every copied file must have; `None`: the copy writes nothing.
    pub(super) asked: Option<AskedDigests>,
}

/// Digests that the request of a copy asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct AskedDigests {
    pub(super) checks: Checks,
    pub(super) expect: Option<Digest>,
}

impl AskedDigests {
    /// Checks the digests of a file that the receiver reports as copied. Reason: the receiver is another host, and may
    /// have stored other bytes or have left the checks out. Errors: `Corrupt`.
    fn check(&self, entry: &FileEntry, digests: &FileDigests) -> Result<(), Error> {
        let corrupt = |text: String| {
            let text = format!("{}: {text}", entry.path);
            Err(Error::new(ErrorKind::Corrupt, Scope::Destination, Phase::Verify, text))
        };
        if let Some(expected) = self.expect
            && digests.digest(expected.algorithm()) != Some(expected)
        {
            return corrupt(format!("the receiver reports another digest than {expected}"));
        }
        match digests.missing(self.checks) {
            Checks::NONE => Ok(()),
            _ => corrupt("the receiver reports no digest of a kind that was asked for".to_owned()),
        }
    }
}

impl CopyTotals {
    pub(super) fn new(observer: &Arc<dyn CopyObserver>) -> Arc<Self> {
        Arc::new(Self { observer: Arc::clone(observer), state: Mutex::default() })
    }

    /// Returns the files that earlier sessions of the copy copied or found up to date.
    pub(super) fn settled(&self) -> Arc<SettledPaths> {
        Arc::clone(&self.state.lock().earlier)
    }

    /// Returns the summary of the copy after `elapsed`. If the copy ended with an error, the observer receives the
    /// summary.
    pub(super) fn conclude(&self, outcome: Result<(), Error>, elapsed: Duration) -> Result<CopySummary, Error> {
        let summary = CopySummary { elapsed, ..std::mem::take(&mut self.state.lock().summary) };
        match outcome {
            Ok(()) => Ok(summary),
            Err(error) => {
                self.observer.cut_short(summary);
                Err(error)
            }
        }
    }

    /// Leaves out files that were settled before this copy began.
    pub(super) fn leave_out(&self, settled: SettledPaths) {
        Arc::make_mut(&mut self.state.lock().earlier).extend(settled);
    }
}

impl Observer for CopyTotals {
    fn session_event(&self, mut event: SessionEvent) {
        let mut state = self.state.lock();
        if let (SessionEvent::Settled { entry, outcome }, Some(asked)) = (&mut event, state.asked)
            && let FileOutcome::Done(digests) = outcome
            && entry.kind == EntryKind::File
            && let Err(error) = asked.check(entry, digests)
        {
            *outcome = FileOutcome::Failed(error);
        }
        if let SessionEvent::Settled { outcome, .. } = &mut event {
            state.locate(outcome);
        }
        match &event {
            SessionEvent::Settled { entry, outcome } => state.count(entry, outcome),
            SessionEvent::Unreadable(error) => state.fail(error),
            SessionEvent::Left(error) => {
                state.summary.left += 1;
                state.fail(error);
            }
            SessionEvent::Aborted(error) => {
                state.aborted.get_or_insert_with(|| error.clone());
            }
            SessionEvent::Notice(_) | SessionEvent::Decision { .. } => {}
        }
        drop(state);
        self.observer.event(CopyEvent::Session(event));
    }
}

impl TotalsState {
    /// Returns the counters of the sessions up to now. `are_found_again`: the next session offers settled files again.
    pub(super) fn earlier(&self, are_found_again: bool) -> Earlier {
        Earlier {
            counters: self.summary.counters,
            unsettled_bytes: self.unsettled_bytes,
            copied_bytes: self.summary.bytes,
            are_found_again,
        }
    }

    /// Names the destination in a failure that occurred there.
    pub(super) fn locate(&self, outcome: &mut FileOutcome) {
        if let (FileOutcome::Failed(error), Some(destination)) = (outcome, &self.destination)
            && error.scope == Scope::Destination
        {
            *error = error.clone().at(destination);
        }
    }

    pub(super) fn count(&mut self, entry: &FileEntry, outcome: &FileOutcome) {
        match outcome {
            FileOutcome::Failed(error) => self.fail(error),
            _ if entry.kind == EntryKind::Directory => {}
            // The receiver of a later session reports files again that an earlier session had settled.
            _ if self.earlier.contains(&entry.path) => {}
            FileOutcome::Done(_) => {
                self.remember(entry);
                self.summary.done += 1;
                self.summary.bytes += entry.size;
                self.summary.blocks += entry.blocks().count().max(1);
            }
            FileOutcome::Skipped => {
                self.remember(entry);
                self.summary.skipped += 1;
                self.summary.bytes_skipped += entry.size;
            }
        }
    }

    fn remember(&mut self, entry: &FileEntry) {
        if !self.remembers_none {
            self.settled.insert(&entry.path);
        }
    }

    /// Prepares for the session after a lost one: it leaves out files that settled without an error, and tries failed
    /// files again.
    pub(super) fn start_over(&mut self) {
        Arc::make_mut(&mut self.earlier).extend(std::mem::take(&mut self.settled));
        (self.summary.failed, self.summary.left) = (0, 0);
        self.summary.failures.clear();
    }

    pub(super) fn fail(&mut self, error: &Error) {
        self.summary.failed += 1;
        if self.summary.failures.len() < FAILURES_KEPT_MAX {
            self.summary.failures.push(error.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use sterna_proto::{Algorithm, FileTime, RelPath};

    use super::*;

    fn entry(path: &str, kind: EntryKind) -> FileEntry {
        let path = RelPath::new(path.as_bytes()).unwrap();
        let mtime = FileTime { seconds: 1, nanoseconds: 0 };
        FileEntry { path, kind, size: 7, mtime, mode: 0o644, allocated: 7, inode: 1, version: 1, growth: None }
    }

    fn counts(state: &TotalsState) -> (u64, u64, u64) {
        (state.summary.done, state.summary.skipped, state.summary.failed)
    }

    #[test]
    fn outcomes_count_once_for_a_copy_and_failures_always() {
        let mut state = TotalsState::default();
        let done = || FileOutcome::Done(FileDigests::of(b"", Checks::NONE));
        let failed = || FileOutcome::Failed(Error::new(ErrorKind::Busy, Scope::Destination, Phase::Prepare, "busy"));
        let (file, other) = (entry("f", EntryKind::File), entry("g", EntryKind::File));
        state.count(&file, &done());
        // Another file of the same name in the same session is a failure, and the user must see it.
        state.count(&file, &failed());
        state.count(&other, &failed());
        state.count(&entry("d", EntryKind::Directory), &FileOutcome::Skipped);
        assert_eq!(counts(&state), (1, 0, 2));
        assert!(!state.earlier.contains(&file.path), "only what an earlier session has settled is left out");
        state.start_over();
        assert!(state.earlier.contains(&file.path) && !state.earlier.contains(&other.path));
        // Later session: does not count again what had settled, and gives failed files another attempt.
        state.count(&file, &FileOutcome::Skipped);
        state.count(&other, &done());
        assert_eq!(counts(&state), (2, 0, 0));
        state.count(&file, &failed());
        assert_eq!(counts(&state), (2, 0, 1));
    }

    #[test]
    fn a_failure_at_the_destination_names_its_host_and_root() {
        let destination = Location::parse("sterna://hub/in/x".as_ref()).unwrap();
        let state = TotalsState { destination: Some(destination), ..TotalsState::default() };
        let text = |scope| {
            let full = std::io::Error::from_raw_os_error(28);
            let error = Error::new(ErrorKind::NoSpace, scope, Phase::Transfer, "write a.h5").caused_by(full);
            let mut outcome = FileOutcome::Failed(error);
            state.locate(&mut outcome);
            let FileOutcome::Failed(error) = outcome else { panic!() };
            assert_eq!(error.os_code(), Some(28));
            error.text().to_owned()
        };
        assert_eq!(text(Scope::Destination), "sterna://hub/in/x: write a.h5");
        assert_eq!(text(Scope::Source), "write a.h5");
    }

    #[test]
    fn digests_that_the_receiver_reports_are_those_that_were_asked_for() {
        let file = entry("f", EntryKind::File);
        let sha256 = Checks::NONE.with(Algorithm::Sha256);
        let expect = FileDigests::of(b"right", sha256).digest(Algorithm::Sha256);
        let check = |asked: AskedDigests, data: &[u8], checks| {
            asked.check(&file, &FileDigests::of(data, checks)).map_err(|error| error.kind)
        };
        let asked = AskedDigests { checks: sha256, expect };
        assert_eq!(check(asked, b"right", sha256), Ok(()));
        assert_eq!(check(asked, b"wrong", sha256), Err(ErrorKind::Corrupt));
        assert_eq!(check(asked, b"right", Checks::NONE), Err(ErrorKind::Corrupt), "the digest is missing");
        let asked = AskedDigests { checks: sha256, expect: None };
        assert_eq!(check(asked, b"any", Checks::NONE), Err(ErrorKind::Corrupt));
        assert_eq!(check(asked, b"any", sha256), Ok(()));
    }
}
