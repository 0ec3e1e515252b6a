//! Listing of a prefix: the files beneath it, in batches, and the state that the interfaces show.
//!
//! An agent or a client of WebDAV lists; the runner adds the files to the job. Holds values and pure functions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use sterna_proto::{Error, RelPath, Retry};
use sterna_sched::time::UnixTime;
use uuid::Uuid;

use crate::job::{Failure, Prefix};

/// Maximum number of files of a batch, and of bytes of their paths. Reason: a message of an agent has 1 MiB, and other
/// writes to the store wait some 10 ms.
pub const BATCH_FILES_MAX: usize = 2000;
/// Maximum number of bytes of the paths of a batch, percent-encoded. One more path is added after that.
pub const BATCH_BYTES_MAX: usize = 512 << 10;

/// Maximum number of batches on their way from a lister to the store. Reason: some MB of memory, and a round trip of
/// 660 ms carries 12,000 files/s.
pub const BATCHES_MAX: usize = 4;

/// Bytes that are percent-encoded in a path: all but those that RFC 3986 allows in a path without.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'+')
    .remove(b',')
    .remove(b'=')
    .remove(b':')
    .remove(b'@');

/// File that was found beneath a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundFile {
    /// Path beneath the prefix.
    pub path: RelPath,
    /// Size in bytes, if the server reports it.
    pub size: Option<u64>,
}

/// Batch of a listing.
#[derive(Debug)]
pub enum Batch {
    /// Files.
    Files(Vec<FoundFile>),
    /// The listing has ended.
    Ended(Result<(), Error>),
}

/// Returns a path for a location: percent-encoded.
pub fn encoded(path: &RelPath) -> String {
    percent_encode(path.as_bytes(), ENCODED).to_string()
}

/// Reads a path of a location. A `%` without two hexadecimal digits stands for itself: some servers do not encode it.
///
/// Errors: `Usage`, for a path that could lead out of the prefix, or is too long.
pub fn decoded(text: &str) -> Result<RelPath, Error> {
    RelPath::new(&percent_decode_str(text).collect::<Vec<u8>>())
}

/// Names that could not be listed. The listing goes on without them, and has failed at its end.
#[derive(Debug, Default)]
pub struct Unlisted {
    count: u64,
    shown: Option<Error>,
}

impl Unlisted {
    /// Adds a name or a directory. The error that another attempt may avoid is shown, if there is one.
    pub fn add(&mut self, error: Error) {
        self.count += 1;
        let is_better = |shown: &Error| shown.retry != Retry::After && error.retry == Retry::After;
        if self.shown.as_ref().is_none_or(is_better) {
            self.shown = Some(error);
        }
    }

    /// Returns the outcome of the listing. Errors: that of one name, with the number of all.
    pub fn outcome(self) -> Result<(), Error> {
        let Some(shown) = self.shown else { return Ok(()) };
        let text = match self.count {
            1 => "1 name or directory could not be listed, and the files found beside it are copied".to_owned(),
            count => format!("{count} names or directories could not be listed, and all other files are copied; one"),
        };
        Err(Error::new(shown.kind, shown.scope, shown.phase, text).retry(shown.retry).caused_by(shown))
    }
}

/// Phase of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListingPhase {
    /// Files are being found.
    Runs,
    /// The maximum of listings is under way.
    Queued,
    /// No agent of this site is connected.
    Absent(String),
    /// No connected agent of this site can list.
    Unable(String),
    /// An operator has banned this endpoint.
    Banned(String),
    /// The last listing has failed; the next one starts at this time.
    Retry(UnixTime),
}

/// State of a listing, as interfaces show it.
#[derive(Clone, Debug)]
pub struct ListingState {
    /// Job.
    pub job: Uuid,
    /// Source.
    pub source: String,
    /// Destination.
    pub destination: String,
    /// Number of files that the present or last listing has found.
    pub found: u64,
    /// Number of listings that have failed.
    pub failures: u32,
    /// Failure of the last one.
    pub failure: Option<Failure>,
    /// Phase.
    pub phase: ListingPhase,
}

impl ListingState {
    /// Returns the state of a prefix.
    pub fn new(prefix: &Prefix, phase: ListingPhase, found: &Arc<AtomicU64>) -> Self {
        Self {
            job: prefix.job,
            source: prefix.file.source.clone(),
            destination: prefix.file.destination.clone(),
            found: found.load(Ordering::Relaxed),
            failures: prefix.failures,
            failure: prefix.failure.clone(),
            phase,
        }
    }
}

#[cfg(test)]
mod tests {
    use sterna_proto::{ErrorKind, Phase, Scope};

    use super::*;

    #[test]
    fn every_name_survives_a_location() {
        for (path, text) in [
            (&b"a/b.c"[..], "a/b.c"),
            (b"a b/100%/x?y#z", "a%20b/100%25/x%3Fy%23z"),
            (b"\xff\xfe/\n\t\x1b", "%FF%FE/%0A%09%1B"),
            ("ü*[1]{2}'\"".as_bytes(), "%C3%BC%2A%5B1%5D%7B2%7D'%22"),
            (b"..a/...", "..a/..."),
        ] {
            let path = RelPath::new(path).unwrap();
            assert_eq!(encoded(&path), text);
            assert_eq!(decoded(text).unwrap(), path);
        }
        assert_eq!(decoded("100%").unwrap().as_bytes(), b"100%");
    }

    #[test]
    fn a_path_that_leads_out_of_the_prefix_is_refused() {
        for text in ["", "/etc", "../x", "a/../../x", "a/%2e%2e/x", "%2E", "a//b", "a/", "%2fa", "a%00"] {
            assert!(decoded(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_failure_that_may_pass_is_the_one_of_the_listing() {
        let error = |retry, text: &str| Error::new(ErrorKind::Io, Scope::Source, Phase::Prepare, text).retry(retry);
        assert!(Unlisted::default().outcome().is_ok());
        let mut unlisted = Unlisted::default();
        unlisted.add(error(Retry::Never, "denied"));
        unlisted.add(error(Retry::After, "busy"));
        unlisted.add(error(Retry::After, "later"));
        let outcome = unlisted.outcome().unwrap_err();
        assert_eq!(
            (outcome.retry, outcome.chain().contains("3 names") && outcome.chain().ends_with("busy")),
            (Retry::After, true)
        );
    }
}
