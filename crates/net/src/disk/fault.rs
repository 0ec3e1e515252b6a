//! Converts file system errors into [`Error`]: kind and retry are set here, where the error is seen first.

use std::fmt;
use std::io;

use rustix::io::Errno;
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};

/// End of the transfer, and its phase.
#[derive(Clone, Copy, Debug)]
pub(super) struct At(pub(super) Scope, pub(super) Phase);

/// Reading a source before any byte has moved.
pub(super) const LISTING: At = At(Scope::Source, Phase::Prepare);
/// Reading a source while bytes move.
pub(super) const READING: At = At(Scope::Source, Phase::Transfer);
/// Preparing to write.
pub(super) const PREPARING: At = At(Scope::Destination, Phase::Prepare);
/// Writing while bytes move.
pub(super) const WRITING: At = At(Scope::Destination, Phase::Transfer);
/// Comparing digests.
pub(super) const VERIFYING: At = At(Scope::Destination, Phase::Verify);
/// Making a file durable and giving it its final name.
pub(super) const FINALISING: At = At(Scope::Destination, Phase::Finalise);

/// Deleting or moving a source that has arrived.
pub(super) const SWEEPING: At = At(Scope::Source, Phase::Finalise);

/// Deleting and renaming names on request.
pub(super) const MANAGING: At = At(Scope::Destination, Phase::Finalise);

impl At {
    /// Creates the error for the action `tried` that the file system refused with `error`.
    pub(super) fn failed(self, error: impl Into<io::Error>, tried: impl fmt::Display) -> Error {
        let error = error.into();
        let (kind, retry, said) = self.classify(Errno::from_io_error(&error));
        let text = match said {
            "" => tried.to_string(),
            said => format!("{tried}: {said}"),
        };
        self.refused(kind, text).retry(retry).caused_by(error)
    }

    /// Creates an error for a failure that Sterna detected itself.
    pub(super) fn refused(self, kind: ErrorKind, text: impl Into<String>) -> Error {
        Error::new(kind, self.0, self.1, text)
    }

    /// Returns kind and retry of an error number, and an explanation for the user where the text of the system is not
    /// enough.
    fn classify(self, errno: Option<Errno>) -> (ErrorKind, Retry, &'static str) {
        let is_source = self.0 == Scope::Source;
        let Some(errno) = errno else {
            return (ErrorKind::Io, Retry::After, "");
        };
        match errno {
            Errno::NOSPC | Errno::DQUOT => {
                (ErrorKind::NoSpace, Retry::Never, "the file system is full or a quota is reached")
            }
            Errno::ACCESS | Errno::PERM | Errno::ROFS => (ErrorKind::Denied, Retry::Never, ""),
            Errno::XDEV | Errno::LOOP => {
                (ErrorKind::Denied, Retry::Never, "a symlink, .. or mount on the way leaves the root or loops")
            }
            Errno::NOSYS => {
                (ErrorKind::Denied, Retry::Never, "the kernel has no openat2; Linux 5.6 or later is needed")
            }
            Errno::NOENT => (ErrorKind::NotFound, Retry::Never, ""),
            Errno::NOTDIR if is_source => (ErrorKind::NotFound, Retry::Never, ""),
            Errno::NOTDIR => (ErrorKind::Exists, Retry::Never, "a file is where a directory is needed"),
            Errno::EXIST | Errno::ISDIR | Errno::NOTEMPTY => (ErrorKind::Exists, Retry::Never, ""),
            Errno::NAMETOOLONG | Errno::FBIG | Errno::OVERFLOW => (ErrorKind::Limit, Retry::Never, ""),
            Errno::MFILE | Errno::NFILE => (
                ErrorKind::Limit,
                Retry::After,
                "too many files are open; a higher limit of open files (ulimit -n) allows more",
            ),
            Errno::NOMEM => (ErrorKind::Limit, Retry::After, ""),
            Errno::BUSY | Errno::TXTBSY | Errno::WOULDBLOCK => (ErrorKind::Busy, Retry::After, ""),
            // A medium that cannot be read stays unreadable; another replica may be intact.
            Errno::IO if is_source => (ErrorKind::Io, Retry::OtherReplica, ""),
            _ => (ErrorKind::Io, Retry::After, ""),
        }
    }
}
