//! Source of a commission to a web server: a file of this agent, opened beneath a root and read by offset.
//!
//! Notices a change of the file between the first byte and the last. Refuses to speak HTTP: the caller does.

use std::fmt;
use std::sync::Arc;

use sterna_proto::compress::CompressionPolicy;
use sterna_proto::digest::InOrder;
use sterna_proto::session::{FileOutcome, Request};
use sterna_proto::web::WebLocation;
use sterna_proto::{
    Algorithm, Checks, Digest, EntryKind, Error, ErrorKind, FileDigests, FileEntry, Location, Phase, Retry, Scope,
};

use super::super::Shared;
use super::{Commission, CommissionedFile, Nobody, list};
use crate::disk::{SourceFile, Sources};
use crate::engine::{Cancel, CopySpec, Engine, Granted};
use crate::identity::{Grant, Rights};
use crate::session::{Observer, Progress, SessionEvent};

/// Algorithm that compares two reads of a file. Reason: a process that writes to it cannot make them equal by chance.
const SECOND_READ: Algorithm = Algorithm::Sha256;

/// Bytes of a block of the second read. Reason: few system calls, and a cancellation is noticed within milliseconds.
const SECOND_READ_BLOCK_BYTES: u64 = 1 << 20;

/// File of this agent that is open for a transfer to a web server.
#[derive(Debug)]
pub struct OutgoingFile {
    file: SourceFile,
    /// State of the file when it was opened.
    entry: FileEntry,
    /// A process had it open for writing then. Reason: a write through a memory map changes neither size nor times, so
    /// that only a second read finds it.
    is_held: bool,
    cancel: Cancel,
}

impl OutgoingFile {
    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.entry.size
    }

    /// Returns the digests that the caller computes: those that it wants, and those for [`OutgoingFile::confirm`].
    pub fn checks(&self, wanted: Checks) -> Checks {
        if self.is_held { wanted.with(SECOND_READ) } else { wanted }
    }

    /// Returns the bytes `[offset, offset + length)`, which lie within the file. Checks the file with the last of them,
    /// so that no caller sends the end of a file that has changed. Blocks.
    ///
    /// Errors: `Changed`; of the storage.
    pub fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; length];
        self.file.read_at(offset, &mut bytes)?;
        if offset + length as u64 >= self.entry.size {
            self.check()?;
        }
        Ok(bytes)
    }

    /// Checks that the bytes which were read are one state of the file. `read`: their digests, with those of
    /// [`OutgoingFile::checks`]. Reads a file again that a process has open for writing. Blocks.
    ///
    /// Errors: `Changed`; `Cancelled`; of the storage.
    pub fn confirm(&self, read: &FileDigests) -> Result<(), Error> {
        if self.is_held && self.read_again()? != read.digest(SECOND_READ) {
            let text = format!("{self} changed while it was read: a process that has it open writes to it");
            return Err(Error::new(ErrorKind::Changed, Scope::Source, Phase::Transfer, text).retry(Retry::After));
        }
        self.check()
    }

    fn check(&self) -> Result<(), Error> {
        match self.is_held {
            true => self.file.check_unchanged(&self.entry),
            false => self.file.check_unwritten(&self.entry),
        }
    }

    fn read_again(&self) -> Result<Option<Digest>, Error> {
        let mut again = InOrder::new(self.checks(Checks::NONE));
        let mut offset = 0;
        while offset < self.entry.size {
            if self.cancel.is_cancelled() {
                let text = format!("read {self} again: the transfer was cancelled");
                return Err(Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Verify, text));
            }
            let length = SECOND_READ_BLOCK_BYTES.min(self.entry.size - offset);
            again.update(&self.read(offset, length as usize)?);
            offset += length;
        }
        let mut digests = FileDigests::of(b"", Checks::NONE);
        again.finish_into(&mut digests);
        Ok(digests.digest(SECOND_READ))
    }
}

impl fmt::Display for OutgoingFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.file.path(), f)
    }
}

impl Shared {
    /// Prepares a copy to a web server. Returns it with the file and with what the log shows. Errors: as
    /// [`super::super::Agent::commission`].
    pub(super) fn outgoing(
        &self,
        source: Vec<u8>,
        destination: WebLocation,
        rights: &Grant,
    ) -> Result<(CopySpec, Engine, Vec<CommissionedFile>, Request), Error> {
        self.web.check(&destination)?;
        let place = self.query_places(&list(&source), rights)?;
        let granted = Some(Granted::Sources(vec![self.place(&source, rights, Rights::Read)?]));
        // The place is that of a pull by somebody else.
        let asked = Request::Pull {
            sources: vec![source],
            dry_run: false,
            compress: CompressionPolicy::Never,
            on_demand: false,
            numbered: false,
        };
        let web = Location::Web(destination);
        let spec = CopySpec { granted, ..CopySpec::new(vec![web.clone()], web) };
        let engine = Engine::new(self.identity.clone(), Arc::new(Nobody));
        Ok((spec, engine, vec![CommissionedFile { place, other: None }], asked))
    }
}

impl Commission {
    /// Opens the source at this agent. `cancel` ends a second read of it.
    ///
    /// Errors: `NotFound`, `Denied`; `Usage`, if the path means no single file.
    pub fn open_source(&self, cancel: &Cancel) -> Result<OutgoingFile, Error> {
        let Some(Granted::Sources(places)) = &self.spec.granted else {
            return Err(crate::internal("open the source of a copy that has none at this agent"));
        };
        let several = || {
            let text = "the source is no single file: a transfer moves one file";
            Error::new(ErrorKind::Usage, Scope::Source, Phase::Prepare, text)
        };
        let [place] = places.as_slice() else { return Err(several()) };
        let mut found = place.root.expand(&place.pattern)?;
        if found.sources() != Sources::One {
            return Err(several());
        }
        let item = found.next().transpose()?.filter(|item| item.entry.kind == EntryKind::File).ok_or_else(several)?;
        let file = place.root.open_source(&item.source)?;
        let (entry, is_held) = (file.entry()?, file.is_being_written());
        Ok(OutgoingFile { file, entry, is_held, cancel: cancel.clone() })
    }

    /// Logs the end of a copy to a web server. `file`: the source, if it was opened.
    pub fn log_end(&self, file: Option<&OutgoingFile>, failure: Option<&Error>) {
        if let Some(file) = file {
            let outcome = match failure {
                // The log shows no digest.
                None => FileOutcome::Done(FileDigests::of(b"", Checks::NONE)),
                Some(error) => FileOutcome::Failed(error.clone()),
            };
            self.log.session_event(SessionEvent::Settled { entry: file.entry.clone(), outcome });
        }
        self.log.end(&Progress::default(), failure.map(Error::chain).as_deref());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use sterna_proto::RelPath;

    use super::*;
    use crate::disk::{Access, Root};

    fn open(directory: &std::path::Path) -> OutgoingFile {
        let file = Root::open(directory, Access::ReadOnly).unwrap().open_source(&RelPath::new(b"f").unwrap()).unwrap();
        let (entry, is_held) = (file.entry().unwrap(), file.is_being_written());
        OutgoingFile { file, entry, is_held, cancel: Cancel::default() }
    }

    /// A write through a memory map can leave size and times as they were. Other bytes of the first read stand for it.
    #[test]
    fn a_file_that_a_process_has_open_is_read_twice() {
        let directory = tempfile::tempdir().unwrap();
        let bytes = vec![7; SECOND_READ_BLOCK_BYTES as usize + 1];
        fs::write(directory.path().join("f"), &bytes).unwrap();
        let writer = fs::OpenOptions::new().append(true).open(directory.path().join("f")).unwrap();
        let held = open(directory.path());
        let (same, other) = [&bytes[..], b"other"].map(|read| FileDigests::of(read, held.checks(Checks::NONE))).into();
        held.confirm(&same).unwrap();
        let changed = held.confirm(&other).unwrap_err();
        assert_eq!((changed.kind, changed.retry), (ErrorKind::Changed, Retry::After));
        held.cancel.cancel();
        assert_eq!(held.confirm(&same).unwrap_err().kind, ErrorKind::Cancelled);
        drop(writer);
        let loose = open(directory.path());
        assert_eq!(loose.checks(Checks::NONE), Checks::NONE);
        loose.confirm(&other).unwrap();
    }

    #[test]
    fn the_last_bytes_of_a_file_that_has_changed_are_not_returned() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        fs::write(&path, b"some bytes").unwrap();
        let file = open(directory.path());
        assert_eq!(file.read(0, 4).unwrap(), b"some");
        // A process that has opened it for writing counts, too: its writes may come later.
        let writer = fs::OpenOptions::new().append(true).open(&path).unwrap();
        assert_eq!(file.read(0, 10).unwrap_err().kind, ErrorKind::Changed);
        drop(writer);
        assert_eq!(file.read(0, 10).unwrap(), b"some bytes");
        fs::rename(&path, directory.path().join("g")).unwrap();
        fs::write(&path, b"more bytes").unwrap();
        assert_eq!(file.read(4, 4).unwrap(), b" byt");
        assert_eq!(file.read(0, 10).unwrap_err().kind, ErrorKind::Changed);
        assert!(open(directory.path()).read(5, 100).is_err_and(|error| error.kind == ErrorKind::Changed));
    }
}
