//! The state directory: the identity of this host and the agents it knows.

use std::path::{Path, PathBuf};

use sterna_net::identity::Identity;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

/// The state directory: as given, or the XDG state directory's `sterna`.
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

/// The identity of this host, made at the first start.
pub fn identity(given: Option<&Path>) -> Result<Identity, Error> {
    Identity::load_or_create(&directory(given)?)
}
