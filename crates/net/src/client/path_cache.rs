//! Path cache: file of the state directory with the measured properties of paths.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use sterna_proto::path_cache::{DataDirection, PathKey, PathRecord, PathRecords};
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use crate::identity::files;

/// Name of the file in the state directory.
const FILE: &str = "paths";

/// Maximum size of a file that is read, in bytes. Reason: maximum number of records, at 120 bytes each.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// File `paths` of the state directory.
///
/// Two copies that end at the same time can each write what they have read. Then the record of one copy is lost, and a
/// later copy measures the path again.
#[derive(Clone, Debug)]
pub(super) struct PathCache {
    path: PathBuf,
}

impl PathCache {
    pub(super) fn new(state_dir: &Path) -> Self {
        Self { path: state_dir.join(FILE) }
    }

    /// Returns the records of the path. Returns none if the file cannot be read: the copy then measures the path, and
    /// does not fail.
    pub(super) fn recall(&self, key: &PathKey) -> Vec<PathRecord> {
        self.read().recall(key, unix_time())
    }

    /// Records the properties of a path that a session has measured.
    ///
    /// Errors: those of the storage, without the name of the file. Reason: an agent reports them to the command that it
    /// copies for.
    pub(super) fn learn(&self, record: PathRecord) -> Result<(), Error> {
        self.write(record).map_err(|error| {
            let said = std::error::Error::source(&error).map_or(String::new(), |said| format!(": {said}"));
            let text = format!("keep what was learnt about paths in the state directory{said}");
            Error::new(error.kind, error.scope, error.phase, text)
        })
    }

    fn write(&self, record: PathRecord) -> Result<(), Error> {
        if let Some(dir) = self.path.parent() {
            files::create_state_dir(dir)?;
        }
        let mut memory = self.read();
        memory.learn(record);
        files::replace(&self.path, memory.to_text().as_bytes())
    }

    fn read(&self) -> PathRecords {
        let text = files::read_text(&self.path, FILE_BYTES_MAX).ok().flatten();
        PathRecords::parse(&text.unwrap_or_default())
    }
}

/// Returns the records of all paths in a state directory. Returns none if the file cannot be read.
pub fn recorded_paths(state_dir: &Path) -> Vec<PathRecord> {
    PathCache::new(state_dir).read().young(unix_time())
}

/// Returns the seconds since 1970.
pub(super) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Returns the key of the path to `remote` from `local`, or from the address that the kernel chooses.
///
/// Errors: no route to `remote`.
pub(super) fn key_of(direction: DataDirection, local: Option<IpAddr>, remote: SocketAddr) -> Result<PathKey, Error> {
    if let Some(local) = local {
        return Ok(PathKey { direction, local, remote });
    }
    let any: SocketAddr = if remote.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
    let local = UdpSocket::bind(any).and_then(|socket| {
        // Sends nothing: the kernel only looks up the route.
        socket.connect(remote)?;
        socket.local_addr()
    });
    let local = local.map_err(|e| {
        let text = format!("look up the route to {remote}");
        Error::new(ErrorKind::Unreachable, Scope::Path, Phase::Prepare, text).caused_by(e)
    })?;
    Ok(PathKey { direction, local: local.ip(), remote })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sterna_proto::BitRate;
    use sterna_proto::plan::Via;

    use super::*;

    #[test]
    fn what_one_copy_learns_the_next_one_recalls_and_damage_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = PathCache::new(&dir.path().join("state"));
        let key = key_of(DataDirection::Out, None, ([127, 0, 0, 1], 7373).into()).unwrap();
        assert_eq!(file.recall(&key), []);
        let record = PathRecord {
            key,
            via: Via::Quic,
            is_full: true,
            rate: BitRate::megabits(43),
            rtt: Duration::from_millis(660),
            loss_ppm: 3,
            mtu: 1500,
            at: unix_time(),
        };
        file.learn(record).unwrap();
        assert_eq!(file.recall(&key), [record]);
        std::fs::write(&file.path, b"\xff\xff\n").unwrap();
        assert_eq!(file.recall(&key), []);
        file.learn(record).unwrap();
        assert_eq!(file.recall(&key), [record]);
    }

    #[test]
    fn a_state_directory_that_cannot_be_written_is_not_named_to_the_command() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("state"), b"a file").unwrap();
        let file = PathCache::new(&dir.path().join("state"));
        let key = key_of(DataDirection::Out, None, ([127, 0, 0, 1], 7373).into()).unwrap();
        let (via, rate, rtt) = (Via::Tcp, BitRate::megabits(1), Duration::from_millis(1));
        let record = PathRecord { key, via, is_full: true, rate, rtt, loss_ppm: 0, mtu: 1500, at: 1 };
        let said = file.learn(record).unwrap_err().chain();
        assert!(!said.contains(dir.path().to_str().unwrap()) && said.contains("(os error "), "{said}");
    }
}
