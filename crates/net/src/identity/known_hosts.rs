//! Hosts that this client has connected to, and their keys.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use sterna_proto::location::RemoteLocation;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use super::{Fingerprint, files};

/// Name of the file in the state directory.
const FILE: &str = "known_hosts";

/// Maximum size of the file in bytes. Reason: 100,000 hosts of 80 bytes.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// Result of a look-up of a host and its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownHost {
    /// The host is recorded with this key.
    Match,
    /// The host is not recorded.
    Unknown,
    /// The host is recorded with another key: it was installed again, or somebody intercepts the connection.
    Changed {
        /// Recorded key.
        expected: Fingerprint,
    },
}

/// File `known_hosts` of the state directory: one `host:port SHA256:…` per line, with `#` comments.
///
/// A host may have several lines (several hosts behind one name); any of its keys matches. The file is read at each
/// look-up, so additions by another process count at once.
#[derive(Clone, Debug)]
pub struct KnownHosts {
    path: PathBuf,
}

impl KnownHosts {
    /// Creates the known hosts of `state_dir`; reads nothing yet.
    pub fn new(state_dir: &Path) -> Self {
        Self { path: state_dir.join(FILE) }
    }

    /// Returns the name of an agent in the file: `host:port`, as the user wrote the host.
    pub fn name_of(remote: &RemoteLocation) -> String {
        match remote.host.contains(':') {
            true => format!("[{}]:{}", remote.host, remote.port),
            false => format!("{}:{}", remote.host, remote.port),
        }
    }

    /// Returns the path of the file, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Looks up `host` (see [`KnownHosts::name_of`]), which has shown the key `fingerprint`.
    ///
    /// Errors: a line that cannot be read, with its number.
    pub fn lookup(&self, host: &str, fingerprint: &Fingerprint) -> Result<KnownHost, Error> {
        let text = files::read_text(&self.path, FILE_BYTES_MAX)?.unwrap_or_default();
        self.find(&text, host, fingerprint)
    }

    /// Returns every key that is recorded for `host`.
    ///
    /// Errors: a line that cannot be read, with its number.
    pub fn keys(&self, host: &str) -> Result<Vec<Fingerprint>, Error> {
        let text = files::read_text(&self.path, FILE_BYTES_MAX)?.unwrap_or_default();
        self.keys_in(&text, host)
    }

    /// Adds `host` with its key, and keeps the rest of the file. Does nothing if the host is recorded with this key.
    ///
    /// Errors: `Usage` if the name cannot be written to the file. `Untrusted` if the host is recorded with another key:
    /// a person must remove that line first.
    pub fn add(&self, host: &str, fingerprint: &Fingerprint) -> Result<(), Error> {
        if host.is_empty() || host.starts_with('#') || host.contains(|c: char| c.is_whitespace() || c.is_control()) {
            let text = format!("\"{}\" cannot be kept as a known host", host.escape_debug());
            return Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text));
        }
        if let Some(dir) = self.path.parent() {
            files::create_state_dir(dir)?;
        }
        let _lock = self.lock()?;
        let mut text = files::read_text(&self.path, FILE_BYTES_MAX)?.unwrap_or_default();
        match self.find(&text, host, fingerprint)? {
            KnownHost::Match => return Ok(()),
            KnownHost::Changed { expected } => {
                let text = format!(
                    "{host} shows {fingerprint} and {} has {expected} for it; remove that line if the host is new",
                    self.path.display()
                );
                return Err(Error::new(ErrorKind::Untrusted, Scope::Client, Phase::Prepare, text));
            }
            KnownHost::Unknown => {}
        }
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&format!("{host} {fingerprint}\n"));
        files::replace(&self.path, text.as_bytes())
    }

    fn find(&self, text: &str, host: &str, fingerprint: &Fingerprint) -> Result<KnownHost, Error> {
        let keys = self.keys_in(text, host)?;
        Ok(match keys.first() {
            _ if keys.contains(fingerprint) => KnownHost::Match,
            Some(expected) => KnownHost::Changed { expected: *expected },
            None => KnownHost::Unknown,
        })
    }

    /// Returns the keys of `host` in the text of the file.
    fn keys_in(&self, text: &str, host: &str) -> Result<Vec<Fingerprint>, Error> {
        let mut keys = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_whitespace();
            let Some(name) = words.next() else { continue };
            let key = words.next().ok_or_else(|| files::line_error(&self.path, index + 1, "no fingerprint"))?;
            let key: Fingerprint = key.parse().map_err(|e| files::line_error(&self.path, index + 1, e))?;
            if let Some(word) = words.next() {
                return Err(files::line_error(&self.path, index + 1, format!("\"{word}\" is not expected")));
            }
            if name == host {
                keys.push(key);
            }
        }
        Ok(keys)
    }

    /// Looks up `host` in the text of such a file, for fuzzing.
    #[doc(hidden)]
    pub fn find_in(text: &str, host: &str, fingerprint: &Fingerprint) -> Result<KnownHost, Error> {
        Self::new(Path::new("")).find(text, host, fingerprint)
    }

    /// Prevents other processes from adding at the same time; the lock ends when the returned file is closed.
    fn lock(&self) -> Result<fs::File, Error> {
        let path = self.path.with_extension("lock");
        let failed = |e| files::storage_error(format!("lock {}", path.display())).caused_by(e);
        let file =
            fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path).map_err(failed)?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).map_err(|e| failed(e.into()))?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Fingerprint = Fingerprint([1; 32]);
    const TWO: Fingerprint = Fingerprint([2; 32]);

    #[test]
    fn a_host_is_unknown_then_known_then_changed() {
        let state = tempfile::tempdir().unwrap();
        let hosts = KnownHosts::new(&state.path().join("new"));
        assert_eq!(hosts.lookup("a:7373", &ONE).unwrap(), KnownHost::Unknown);
        hosts.add("a:7373", &ONE).unwrap();
        hosts.add("a:7373", &ONE).unwrap();
        assert_eq!(hosts.lookup("a:7373", &ONE).unwrap(), KnownHost::Match);
        assert_eq!(hosts.lookup("a:7374", &ONE).unwrap(), KnownHost::Unknown);
        assert_eq!(hosts.lookup("a:7373", &TWO).unwrap(), KnownHost::Changed { expected: ONE });
        assert_eq!(hosts.add("a:7373", &TWO).unwrap_err().kind, ErrorKind::Untrusted);
        assert_eq!(fs::read_to_string(hosts.path()).unwrap(), format!("a:7373 {ONE}\n"));
    }

    #[test]
    fn adding_keeps_comments_and_a_last_line_without_end() {
        let state = tempfile::tempdir().unwrap();
        let hosts = KnownHosts::new(state.path());
        let text = format!("# site list\n\n[::1]:7373 {ONE} # lab\nb:1 {TWO}");
        fs::write(hosts.path(), &text).unwrap();
        hosts.add("c:1", &ONE).unwrap();
        assert_eq!(fs::read_to_string(hosts.path()).unwrap(), format!("{text}\nc:1 {ONE}\n"));
        assert_eq!(hosts.lookup("[::1]:7373", &ONE).unwrap(), KnownHost::Match);
    }

    #[test]
    fn any_of_several_keys_of_a_name_matches() {
        let state = tempfile::tempdir().unwrap();
        let hosts = KnownHosts::new(state.path());
        fs::write(hosts.path(), format!("a:1 {ONE}\na:1 {TWO}\n")).unwrap();
        assert_eq!(hosts.lookup("a:1", &TWO).unwrap(), KnownHost::Match);
        let third = Fingerprint([3; 32]);
        assert_eq!(hosts.lookup("a:1", &third).unwrap(), KnownHost::Changed { expected: ONE });
    }

    #[test]
    fn bad_lines_are_named_by_number() {
        let state = tempfile::tempdir().unwrap();
        let hosts = KnownHosts::new(state.path());
        for bad in ["a:1".to_owned(), "a:1 SHA256:short".to_owned(), format!("a:1 {ONE} ro")] {
            fs::write(hosts.path(), format!("# first\n{bad}\n")).unwrap();
            let error = hosts.lookup("z:1", &ONE).unwrap_err();
            assert!(error.text().contains("known_hosts line 2: "), "{error}");
        }
    }

    #[test]
    fn hosts_that_would_break_the_file_are_refused() {
        let state = tempfile::tempdir().unwrap();
        let hosts = KnownHosts::new(state.path());
        for host in ["", "a b:1", "a:1\nb:1", "#a:1", "a\0:1"] {
            assert_eq!(hosts.add(host, &ONE).unwrap_err().kind, ErrorKind::Usage);
        }
    }

    #[test]
    fn many_writers_lose_no_line() {
        let state = tempfile::tempdir().unwrap();
        let hosts = KnownHosts::new(state.path());
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let hosts = &hosts;
                scope.spawn(move || (0..8).for_each(|n| hosts.add(&format!("h{writer}-{n}:1"), &ONE).unwrap()));
            }
        });
        assert_eq!(fs::read_to_string(hosts.path()).unwrap().lines().count(), 32);
    }
}
