//! Path cache: file of the state directory with the measured properties of paths.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sterna_proto::path_cache::{DataDirection, PathKey, PathRecord, PathRecords};
use sterna_proto::plan::Via;
use sterna_proto::{BitRate, Error, ErrorKind, Phase, Scope};

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

/// Observation of a path beside a copy, over TCP.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observed {
    /// Direction of the data.
    pub direction: DataDirection,
    /// Address of the agent.
    pub remote: SocketAddr,
    /// Rate that the path carried at least, on the wire; `None`: none was measured.
    pub rate: Option<BitRate>,
    /// Smallest round-trip time.
    pub rtt: Duration,
    /// Packets lost without load, in parts per million.
    pub loss_ppm: u32,
}

/// Records an observation in the path cache of a state directory.
///
/// A rate is a lower bound, so a short or capped measurement never lowers a recorded one: the round trip and the loss
/// of that record are updated, and its rate and its age stay. Errors: no route to the agent; of the storage.
pub fn observe_path(state_dir: &Path, observed: &Observed) -> Result<(), Error> {
    let cache = PathCache::new(state_dir);
    let key = key_of(observed.direction, None, observed.remote)?;
    let known = cache.recall(&key).into_iter().find(|record| record.via == Via::Tcp);
    let (rtt, loss_ppm) = (observed.rtt, observed.loss_ppm);
    let record = match (known, observed.rate) {
        (Some(known), rate) if rate.is_none_or(|rate| rate < known.rate) => PathRecord { rtt, loss_ppm, ..known },
        (_, Some(rate)) => {
            let mtu = known.map_or(0, |known| known.mtu);
            PathRecord { key, via: Via::Tcp, rate, is_full: false, rtt, loss_ppm, mtu, at: unix_time() }
        }
        (_, None) => return Ok(()),
    };
    cache.learn(record)
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
    use super::*;

    #[test]
    fn a_capped_rate_lowers_nothing_that_a_copy_has_learnt() {
        let dir = tempfile::tempdir().unwrap();
        let remote = ([127, 0, 0, 1], 7373).into();
        let (millis, rate) = (Duration::from_millis, |megabits| Some(BitRate::megabits(megabits)));
        let observed = Observed { direction: DataDirection::Out, remote, rate: None, rtt: millis(8), loss_ppm: 0 };
        observe_path(dir.path(), &observed).unwrap();
        assert_eq!(recorded_paths(dir.path()), [], "a round trip alone is no record");
        observe_path(dir.path(), &Observed { rate: rate(100), ..observed }).unwrap();
        let known = recorded_paths(dir.path())[0];
        assert_eq!((known.rate, known.is_full, known.via), (BitRate::megabits(100), false, Via::Tcp));
        let full = PathRecord { rate: BitRate::megabits(940), is_full: true, mtu: 1500, at: known.at - 9, ..known };
        PathCache::new(dir.path()).learn(full).unwrap();
        for rate in [rate(100), None] {
            observe_path(dir.path(), &Observed { rate, rtt: millis(12), loss_ppm: 7, ..observed }).unwrap();
            assert_eq!(recorded_paths(dir.path()), [PathRecord { rtt: millis(12), loss_ppm: 7, ..full }]);
        }
        observe_path(dir.path(), &Observed { rate: rate(2000), ..observed }).unwrap();
        let faster = recorded_paths(dir.path())[0];
        assert_eq!((faster.rate, faster.is_full, faster.mtu), (BitRate::megabits(2000), false, 1500));
    }

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
