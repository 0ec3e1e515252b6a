//! Files of the rounds: one JSON object a line, appended to `monitor/PEER.jsonl` of the state directory.
//!
//! A line that a crash has torn is skipped. A file that is full becomes `PEER.jsonl.old`, in place of the one before.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind as Io, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sterna_doctor::monitor::Round;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

/// Size from which a file is full. Reason: a round every 5 min has 100 kB a day, so both files hold some months; they
/// are read in a second.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// Bytes beyond it that are read: the last line.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// Directory in the state directory.
const DIRECTORY: &str = "monitor";

const SUFFIX: &str = ".jsonl";

/// Rounds of one path.
pub struct Journal {
    path: PathBuf,
}

impl Journal {
    /// Opens the file of a peer. Makes its directory.
    ///
    /// Errors: of the storage.
    pub fn open(state: &Path, peer: &str) -> Result<Self, Error> {
        let directory = state.join(DIRECTORY);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
        made.map_err(|e| failed("make", &directory).caused_by(e))?;
        Ok(Self::of(&directory, peer))
    }

    fn of(directory: &Path, peer: &str) -> Self {
        // A host name has no other characters that a file may not have.
        Self { path: directory.join(format!("{}{SUFFIX}", peer.replace(['/', '\0'], "_"))) }
    }

    /// Returns the files of all peers in a state directory, by name, in order.
    ///
    /// Errors: of the storage. A directory that does not exist has none.
    pub fn all(state: &Path) -> Result<Vec<(String, Self)>, Error> {
        let directory = state.join(DIRECTORY);
        let unread = |e: std::io::Error| failed("read", &directory).caused_by(e);
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == Io::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(unread)?,
        };
        let mut peers = Vec::new();
        for entry in entries {
            let name = entry.map_err(unread)?.file_name();
            let peer = name.to_str().and_then(|name| name.strip_suffix(SUFFIX).or(name.strip_suffix(".jsonl.old")));
            peers.extend(peer.map(str::to_owned));
        }
        peers.sort_unstable();
        peers.dedup();
        Ok(peers.into_iter().map(|peer| (peer.clone(), Self::of(&directory, &peer))).collect())
    }

    /// Returns the rounds in the order of the files. Lines that cannot be read are skipped.
    ///
    /// Errors: of the storage.
    pub fn rounds(&self) -> Result<Vec<Round>, Error> {
        let mut rounds = Vec::new();
        for path in [&self.old(), &self.path] {
            let mut bytes = Vec::new();
            let read =
                File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + LINE_BYTES_MAX).read_to_end(&mut bytes));
            match read {
                Err(error) if error.kind() == Io::NotFound => continue,
                read => read.map_err(|e| failed("read", path).caused_by(e))?,
            };
            rounds.extend(bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()));
        }
        Ok(rounds)
    }

    /// Appends a round. It is not made durable at once: a round that is lost with the host is no harm.
    ///
    /// Errors: of the storage.
    pub fn append(&self, round: &Round) -> Result<(), Error> {
        let mut line = serde_json::to_vec(round).map_err(|e| failed("write to", &self.path).caused_by(e))?;
        line.push(b'\n');
        let mut write = || -> std::io::Result<()> {
            let open = || OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&self.path);
            let mut file = open()?;
            let mut length = file.metadata()?.len();
            if length >= FILE_BYTES_MAX {
                fs::rename(&self.path, self.old())?;
                (file, length) = (open()?, 0);
            }
            let mut last = [b'\n'];
            if let Some(at) = length.checked_sub(1) {
                file.read_exact_at(&mut last, at)?;
            }
            if last != [b'\n'] {
                line.insert(0, b'\n');
            }
            file.write_all(&line)
        };
        write().map_err(|e| failed("write to", &self.path).caused_by(e))
    }

    fn old(&self) -> PathBuf {
        self.path.with_extension("jsonl.old")
    }
}

fn failed(what: &str, path: &Path) -> Error {
    Error::new(ErrorKind::Io, Scope::Client, Phase::Prepare, format!("{what} {}", path.display()))
}

#[cfg(test)]
mod tests {
    use sterna_doctor::monitor::{Failure, Outcome};

    use super::*;

    fn round(at: u64) -> Round {
        Round { at, outcome: Outcome::Failed(Failure::Unreachable("x".repeat(400))) }
    }

    #[test]
    fn rounds_read_back_without_the_torn_line() {
        let state = tempfile::tempdir().unwrap();
        assert!(Journal::all(state.path()).unwrap().is_empty());
        let journal = Journal::open(state.path(), "[::1]:7373").unwrap();
        assert_eq!(journal.rounds().unwrap(), []);
        journal.append(&round(1)).unwrap();
        let mut file = OpenOptions::new().append(true).open(&journal.path).unwrap();
        file.write_all(b"{\"at\":2,\"fai\xff").unwrap();
        journal.append(&round(3)).unwrap();
        assert_eq!(journal.rounds().unwrap(), [round(1), round(3)]);
        Journal::open(state.path(), "a:1").unwrap().append(&round(1)).unwrap();
        let names: Vec<String> = Journal::all(state.path()).unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["[::1]:7373", "a:1"]);
        // A name from outside stays in the directory.
        assert_eq!(Journal::open(state.path(), "../../x").unwrap().path.parent(), journal.path.parent());
    }

    #[test]
    fn files_are_bounded_and_the_last_rounds_stay() {
        let state = tempfile::tempdir().unwrap();
        let journal = Journal::open(state.path(), "a:1").unwrap();
        let full = |at: u64| {
            let line = serde_json::to_string(&round(at)).unwrap() + "\n";
            fs::write(&journal.path, line.repeat(FILE_BYTES_MAX as usize / line.len() + 1)).unwrap();
        };
        for at in [1, 2, 3] {
            full(at);
            journal.append(&round(at + 10)).unwrap();
        }
        let rounds = journal.rounds().unwrap();
        assert_eq!((rounds.first(), rounds.last()), (Some(&round(3)), Some(&round(13))));
        let sizes: u64 =
            fs::read_dir(state.path().join(DIRECTORY)).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
        assert!(sizes <= 2 * (FILE_BYTES_MAX + LINE_BYTES_MAX), "{sizes}");
    }
}
