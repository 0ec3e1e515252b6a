//! Keys of services that this agent has worked for, in its state directory: a restarted agent accepts their grants
//! before it is connected again.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use sterna_net::identity::PublicKey;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use crate::worker::{from_base64, to_base64};

/// File in the state directory: lines `HOST:PORT KEY`.
const FILE: &str = "services";

/// Maximum bytes of the file. Reason: a host works for a few services.
const FILE_BYTES_MAX: usize = 64 << 10;

/// File with the keys of services.
pub(super) struct KnownServices(PathBuf);

impl KnownServices {
    pub(super) fn new(state_dir: &std::path::Path) -> Self {
        Self(state_dir.join(FILE))
    }

    /// Returns the key of a service; `None`: it is not known, or the file cannot be read. The connection gives it anew.
    pub(super) fn key(&self, service: &str) -> Option<PublicKey> {
        let text = fs::read_to_string(&self.0).ok().filter(|text| text.len() <= FILE_BYTES_MAX)?;
        let line = text.lines().find_map(|line| line.strip_prefix(service)?.strip_prefix(' '))?;
        Some(PublicKey(from_base64(line.trim()).ok()?.try_into().ok()?))
    }

    /// Records the key of a service. Errors: the file cannot be written.
    pub(super) fn record(&self, service: &str, key: PublicKey) -> Result<(), Error> {
        if self.key(service) == Some(key) {
            return Ok(());
        }
        let others = fs::read_to_string(&self.0).ok().filter(|text| text.len() <= FILE_BYTES_MAX).unwrap_or_default();
        let is_other = |line: &&str| line.split(' ').next() != Some(service);
        let mut lines: Vec<String> = others.lines().filter(is_other).map(str::to_owned).collect();
        lines.push(format!("{service} {}", to_base64(&key.0)));
        let temporary = self.0.with_extension("new");
        let write = || {
            let mut file =
                fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
            file.write_all((lines.join("\n") + "\n").as_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, &self.0)
        };
        write().map_err(|e| {
            let text = format!("record the key of the service in {}", self.0.display());
            Error::new(ErrorKind::Io, Scope::Client, Phase::Prepare, text).caused_by(e)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_by_service_and_the_last_one_counts() {
        let state = tempfile::tempdir().unwrap();
        let known = KnownServices::new(state.path());
        assert_eq!(known.key("a:1"), None);
        for (service, key) in [("a:1", 1), ("a:11", 2), ("b:1", 3), ("a:1", 4)] {
            known.record(service, PublicKey([key; 32])).unwrap();
        }
        let keys = ["a:1", "a:11", "b:1", "a", "c:1"].map(|service| known.key(service).map(|key| key.0[0]));
        assert_eq!(keys, [Some(4), Some(2), Some(3), None, None]);
        fs::write(state.path().join(FILE), "a:1 damaged\nb:1\n").unwrap();
        assert_eq!((known.key("a:1"), known.key("b:1")), (None, None));
        known.record("a:1", PublicKey([5; 32])).unwrap();
        assert_eq!(known.key("a:1"), Some(PublicKey([5; 32])));
    }
}
