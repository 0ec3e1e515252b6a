//! Destination of a copy to this host.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use sterna_proto::Error;

use crate::disk::{Destination, Root, Sources};

/// Destination of a copy to this host.
pub(super) enum PullPlace {
    /// File path on this host.
    Local(PathBuf),
    /// File path beneath a root of an agent.
    Beneath(Root, Vec<u8>),
    /// File paths beneath a root of an agent, for a numbered copy.
    Numbered(Root, Vec<Vec<u8>>),
}

impl PullPlace {
    /// Returns the destination for one or several sources. Errors: this host denies access to the root; as
    /// [`Destination::resolve`].
    pub(super) fn resolve(&self, sources: Sources) -> Result<Destination, Error> {
        match self {
            Self::Local(path) => {
                let (root, path) = Root::for_local_destination(path.as_os_str().as_bytes())?;
                Destination::resolve(&root, &path, sources)
            }
            Self::Beneath(root, path) => Destination::resolve(root, path, sources),
            Self::Numbered(root, paths) => Destination::numbered(root, paths.iter().map(Vec::as_slice)),
        }
    }
}
