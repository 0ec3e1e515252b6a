//! Options of a receiver.

use std::sync::Arc;
use std::time::Duration;

use sterna_proto::session::{FileId, LINGER_DEFAULT, Overwrite, Target, number_of_name};
use sterna_proto::{Checks, Digest, EntryKind, Error, FileEntry, RelPath, Setting};

use crate::session::{AskedNames, SettledPaths};
use crate::sink::{Place, Sink};

/// Callback for a place that another session holds.
pub type OnBusy = Box<dyn Fn(&Place) + Send + Sync>;

/// Digests that files must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// None.
    Nothing,
    /// That of the only file of the session.
    OfOnlyFile(Digest),
    /// Those of the files of a numbered copy, by number.
    Numbered(Vec<Option<Digest>>),
}

impl From<Option<Digest>> for Expected {
    fn from(digest: Option<Digest>) -> Self {
        digest.map_or(Self::Nothing, Self::OfOnlyFile)
    }
}

impl Expected {
    /// Returns the digests of the targets of a numbered copy.
    pub fn of_targets(targets: &[Target]) -> Self {
        Self::Numbered(targets.iter().map(|target| target.expect).collect())
    }

    /// Checks that an entry is one that these digests are for.
    ///
    /// Errors: `Usage` for any but the first file, if one digest is given; `Protocol` for an entry that a numbered copy
    /// does not have.
    pub(super) fn check(&self, file: FileId, entry: &FileEntry) -> Result<(), Error> {
        let is_file = entry.kind == EntryKind::File;
        match self {
            Self::Nothing => Ok(()),
            Self::OfOnlyFile(_) if file.0 == 0 && is_file => Ok(()),
            Self::OfOnlyFile(_) => {
                let text = "a digest was given, which is of one file: give one file as the source";
                Err(Error::usage(&[Setting::Expect], text))
            }
            Self::Numbered(digests) => match number_of_name(&entry.path) {
                Some(number) if is_file && number < digests.len() => Ok(()),
                _ => Err(Error::protocol(format!("the entry {} from the peer is none of this copy", entry.path))),
            },
        }
    }

    /// Returns the digest that a file must have.
    pub fn of(&self, path: &RelPath) -> &[Digest] {
        match self {
            Self::Nothing => &[],
            Self::OfOnlyFile(digest) => std::slice::from_ref(digest),
            Self::Numbered(digests) => {
                let digest = number_of_name(path).and_then(|number| digests.get(number));
                digest.map_or(&[], Option::as_slice)
            }
        }
    }
}

/// Options of a receiver.
pub struct ReceiverOptions {
    /// Sink of the files.
    pub sink: Arc<dyn Sink>,
    /// Rule for files that exist. With `expect`, even a file that looks up to date is copied again: only its bytes
    /// can prove the digest.
    pub overwrite: Overwrite,
    /// Digests to compute in addition to BLAKE3.
    pub checks: Checks,
    /// Digests that files must have.
    pub expect: Expected,
    /// True if nothing is written.
    pub dry_run: bool,
    /// Time that the session survives without a lane.
    pub linger: Duration,
    /// True if this end is the client: it leaves as soon as all its messages are sent.
    pub leaves_first: bool,
    /// First names that entries may have. Any other name ends the session before its entry is looked up.
    pub asked: AskedNames,
    /// Files that count as up to date, because an earlier session of the same copy has settled them.
    pub settled: Arc<SettledPaths>,
    /// Callback for the place of a file that another session holds. It can end that session if it is abandoned.
    pub on_busy: OnBusy,
}

impl ReceiverOptions {
    /// Returns the options of an agent that accepts every entry, with defaults for everything else.
    pub fn new(sink: Arc<dyn Sink>) -> Self {
        Self {
            sink,
            overwrite: Overwrite::IfChanged,
            checks: Checks::NONE,
            expect: Expected::Nothing,
            dry_run: false,
            linger: LINGER_DEFAULT,
            leaves_first: false,
            asked: AskedNames::Any,
            settled: Arc::default(),
            on_busy: Box::new(|_| {}),
        }
    }
}
