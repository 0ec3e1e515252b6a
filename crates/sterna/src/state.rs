//! Finds the state directory, and loads the identity of this host from it. Reads environment variables and files of the
//! state directory.

use std::path::{Path, PathBuf};

use sterna_net::identity::Identity;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

/// Returns the state directory: `given`, else `sterna` in `$XDG_STATE_HOME`, else `.local/state/sterna` in `$HOME`.
///
/// Errors: `Usage` if neither variable has an absolute path.
pub fn directory(given: Option<&Path>) -> Result<PathBuf, Error> {
    if let Some(given) = given {
        return Ok(given.to_owned());
    }
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(xdg) = absolute("XDG_STATE_HOME") {
        return Ok(xdg.join("sterna"));
    }
    absolute("HOME").map(|home| home.join(".local/state/sterna")).ok_or_else(|| {
        let text = "no place for the identity of this host: neither HOME nor XDG_STATE_HOME is set; give --state DIR";
        Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text)
    })
}

/// Returns the identity of this host; creates it at the first start.
pub fn identity(given: Option<&Path>) -> Result<Identity, Error> {
    Identity::load_or_create(&directory(given)?)
}
