//! Errors of the lab.

use std::io;

use sterna_proto::{Error, ErrorKind, Phase, Scope};

/// Returns the error of an `action` that the system refused.
pub(crate) fn cannot(action: &str, error: io::Error) -> Error {
    Error::new(ErrorKind::Io, Scope::Client, Phase::Prepare, format!("cannot {action}")).caused_by(error)
}
