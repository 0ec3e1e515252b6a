//! Destination of a copy to this host.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use sterna_proto::Error;

use crate::disk::Root;

/// Destination of a copy to this host.
pub(super) enum PullPlace {
    /// File path on this host.
    Local(PathBuf),
    /// File path beneath a root of an agent.
    Beneath(Root, Vec<u8>),
}

impl PullPlace {
    /// Returns the root and the file path beneath it. Errors: this host denies access to the root.
    pub(super) fn resolve(&self) -> Result<(Root, Vec<u8>), Error> {
        match self {
            Self::Local(path) => Root::for_local_destination(path.as_os_str().as_bytes()),
            Self::Beneath(root, path) => Ok((root.clone(), path.clone())),
        }
    }
}
