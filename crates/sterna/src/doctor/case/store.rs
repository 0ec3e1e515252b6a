//! Files of a case: `case.jsonl`, to which entries are appended, and `bundles/`, whose files are never replaced.
//!
//! An entry is durable before its command ends. The bundle of an examination is durable before its entry, so a crash
//! between the two leaves a bundle without an entry, which the report names. A write that a crash cuts leaves a line
//! without an end; the next entry begins a new one. One process writes at a time, by a lock on `case.jsonl`.
//!
//! A case may come from strangers as an archive. So no symbolic link is followed inside of it, and reads are bounded.

use std::fs::{DirBuilder, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use sterna_doctor::bundle::{BYTES_MAX, Bundle, SignedBundle};
use sterna_doctor::case::entry::Entry;
use sterna_doctor::case::examination::{Examination, RunId};
use sterna_doctor::case::moment::EntryTime;
use sterna_doctor::case::report::BundleState;
use sterna_doctor::case::{Case, ENTRIES_MAX, EXAMINATIONS_MAX, FILE_BYTES_MAX};
use sterna_proto::{Error, ErrorKind, Phase, Scope};

/// Name of the file of entries.
const ENTRIES: &str = "case.jsonl";

/// Name of the directory of bundles.
const BUNDLES: &str = "bundles";

/// Name of a bundle that is being written. There is one writer, so there is one such file at most.
const UNFINISHED: &str = ".unfinished";

/// Longest wait for the lock. Reason: a writer holds it while it makes a bundle of some MB durable.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(10);

/// Time between two attempts to lock.
const LOCK_EVERY: Duration = Duration::from_millis(20);

/// Maximum number of examinations that begin in one second. Reason: one takes at least ten.
const SAME_SECOND_MAX: usize = 99;

/// Maximum number of names that are read from the directory of bundles. Reason: twice as many as a case has.
const NAMES_MAX: usize = 2 * EXAMINATIONS_MAX;

/// Directory of a case.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    directory: OwnedFd,
}

impl Store {
    /// Makes the directory of a case, unless it exists.
    pub fn create(path: &Path) -> Result<Self, Error> {
        let create = || -> std::io::Result<OwnedFd> {
            DirBuilder::new().recursive(true).create(path)?;
            let directory = open_directory(path)?;
            make_bundles(&directory)?;
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            rustix::fs::openat(&directory, ENTRIES, flags, Mode::from_raw_mode(0o666))?;
            rustix::fs::fsync(&directory)?;
            // The name of the directory itself.
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(parent)?.sync_all()?;
            Ok(directory)
        };
        let directory = create().map_err(|e| failed("make the case", path).caused_by(e))?;
        Ok(Self { path: path.to_owned(), directory })
    }

    /// Opens the directory of a case.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let directory = open_directory(path).map_err(|e| failed("open the case", path).caused_by(e))?;
        Ok(Self { path: path.to_owned(), directory })
    }

    /// Reads the entries. Errors: `NotFound`: the directory is no case; `Busy`: a writer holds the lock for too long.
    pub fn read(&self) -> Result<Case, Error> {
        let file = self.entries(OFlags::RDONLY)?;
        // File systems without locks can be read.
        match self.lock(&file, Access::Shared, LOCK_WAIT_MAX) {
            Err(error) if error.kind == ErrorKind::Busy => return Err(error),
            _ => {}
        }
        let case = self.parse(&file)?;
        match case.entries.is_empty() {
            true => Err(self.no_case()),
            false => Ok(case),
        }
    }

    /// Locks the case for a writer. Errors: `Busy`: another one holds it for too long.
    pub fn write(&self) -> Result<Writer<'_>, Error> {
        self.write_within(LOCK_WAIT_MAX)
    }

    fn write_within(&self, wait_max: Duration) -> Result<Writer<'_>, Error> {
        let file = self.entries(OFlags::RDWR | OFlags::APPEND)?;
        self.lock(&file, Access::Exclusive, wait_max)?;
        let case = self.parse(&file)?;
        Ok(Writer { store: self, file, case })
    }

    /// Reads a bundle and verifies its signatures; `None`: it is not there.
    pub fn bundle(&self, id: &RunId) -> Result<Option<SignedBundle>, Error> {
        let of_bundle = |error: Error| {
            let (kind, scope, phase) = (error.kind, error.scope, error.phase);
            let text = format!("read the bundle {}", self.path_of(id).display());
            Error::new(kind, scope, phase, text).caused_by(error)
        };
        let read = || -> std::io::Result<Option<Vec<u8>>> {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let opened = open_bundles(&self.directory)
                .and_then(|bundles| rustix::fs::openat(&bundles, id.file_name(), flags, Mode::empty()));
            let file = match opened {
                Err(Errno::NOENT) => return Ok(None),
                opened => regular(opened?)?,
            };
            let mut bytes = Vec::new();
            file.take(BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
            Ok(Some(bytes))
        };
        let bytes = read().map_err(|e| of_bundle(failed("read", &self.path_of(id)).caused_by(e)))?;
        bytes.map(|bytes| Bundle::read(&bytes).map_err(of_bundle)).transpose()
    }

    /// Returns the state of the bundle of an examination, and the bundle if its numbers count.
    pub fn check(&self, examination: &Examination) -> (BundleState, Option<SignedBundle>) {
        match self.bundle(&examination.id) {
            Ok(None) => (BundleState::Missing, None),
            Ok(Some(signed)) => {
                let state = BundleState::of(examination, &signed);
                let signed = state.is_used().then_some(signed);
                (state, signed)
            }
            Err(error) => (BundleState::Changed(error.chain()), None),
        }
    }

    /// Returns the names of the bundles. Read them before the entries, so that each finished one has its entry.
    pub fn bundles(&self) -> Result<Vec<RunId>, Error> {
        let names = || -> std::io::Result<Vec<RunId>> {
            let bundles = match open_bundles(&self.directory) {
                Err(Errno::NOENT) => return Ok(Vec::new()),
                opened => opened?,
            };
            let mut found = Vec::new();
            for entry in Dir::read_from(bundles)?.take(NAMES_MAX) {
                found.extend(entry?.file_name().to_str().ok().and_then(RunId::of_file_name));
            }
            found.sort();
            Ok(found)
        };
        names().map_err(|e| failed("list the bundles of", &self.path).caused_by(e))
    }

    /// Returns the file of a bundle, for messages.
    pub fn path_of(&self, id: &RunId) -> PathBuf {
        self.path.join(BUNDLES).join(id.file_name())
    }

    fn entries(&self, access: OFlags) -> Result<File, Error> {
        let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.directory, ENTRIES, flags, Mode::empty()) {
            Err(Errno::NOENT) => Err(self.no_case()),
            opened => {
                let file = opened.map_err(Into::into).and_then(regular);
                file.map_err(|e| failed("open", &self.path.join(ENTRIES)).caused_by(e))
            }
        }
    }

    fn no_case(&self) -> Error {
        let text = format!(
            "{} is no case: it has no entry in {ENTRIES}; `sterna doctor case new` opens one",
            self.path.display()
        );
        Error::new(ErrorKind::NotFound, Scope::Client, Phase::Prepare, text)
    }

    fn parse(&self, file: &File) -> Result<Case, Error> {
        let mut bytes = Vec::new();
        let path = self.path.join(ENTRIES);
        file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(|e| failed("read", &path).caused_by(e))?;
        Case::read(&bytes).map_err(|error| error.at(path.display()))
    }

    fn lock(&self, file: &File, access: Access, wait_max: Duration) -> Result<(), Error> {
        let operation = match access {
            Access::Shared => FlockOperation::NonBlockingLockShared,
            Access::Exclusive => FlockOperation::NonBlockingLockExclusive,
        };
        let begun = Instant::now();
        loop {
            match rustix::fs::flock(file, operation) {
                Ok(()) => return Ok(()),
                Err(Errno::WOULDBLOCK) if begun.elapsed() < wait_max => thread::sleep(LOCK_EVERY),
                Err(Errno::WOULDBLOCK) => {
                    let text = format!(
                        "another process writes to the case {} for {} s: try again when it has ended",
                        self.path.display(),
                        wait_max.as_secs()
                    );
                    return Err(Error::new(ErrorKind::Busy, Scope::Client, Phase::Prepare, text));
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed("lock the case", &self.path).caused_by(std::io::Error::from(errno))),
            }
        }
    }
}

/// Access to the entries.
#[derive(Clone, Copy)]
enum Access {
    /// With other readers.
    Shared,
    /// Alone.
    Exclusive,
}

/// Case that this process alone writes to, until it is dropped.
#[derive(Debug)]
pub struct Writer<'a> {
    store: &'a Store,
    file: File,
    case: Case,
}

impl Writer<'_> {
    /// Returns the entries at the time of the lock.
    pub fn case(&self) -> &Case {
        &self.case
    }

    /// Appends an entry, durably.
    ///
    /// Errors: `Usage`: a text is too long; `Limit`: the case is full; `Io`.
    pub fn append(&mut self, entry: &Entry) -> Result<(), Error> {
        let line = entry.line()?;
        let path = self.store.path.join(ENTRIES);
        let end = self.file.metadata().map_err(|e| failed("read the size of", &path).caused_by(e))?.len();
        let is_full = self.case.entries.len() + self.case.unreadable.len() >= ENTRIES_MAX
            || end + line.len() as u64 >= FILE_BYTES_MAX as u64
            || entry.examination().is_some() && self.case.examinations().count() >= EXAMINATIONS_MAX;
        if is_full {
            let text = format!("the case {} is full: open another one", self.store.path.display());
            return Err(Error::new(ErrorKind::Limit, Scope::Client, Phase::Finalise, text));
        }
        let write = |file: &mut File| -> std::io::Result<()> {
            // A line that a crash has cut ends here.
            let line = if ends_a_line(file, end)? { line } else { [&b"\n"[..], &line].concat() };
            file.write_all(&line)?;
            file.sync_data()
        };
        write(&mut self.file).map_err(|e| {
            // Without this, half a line stays; the reader names it.
            let _ = self.file.set_len(end);
            failed("append to", &path).caused_by(e)
        })?;
        self.case.entries.push(entry.clone());
        Ok(())
    }

    /// Returns the name of an examination that begins at a time: one that no entry and no bundle has.
    pub fn free_id(&self, started: EntryTime) -> Result<RunId, Error> {
        let of = |number| RunId::new(started, number);
        let is_free = |id: &RunId| -> bool {
            let bundles = open_bundles(&self.store.directory).ok();
            let exists =
                |bundles: &OwnedFd| rustix::fs::statat(bundles, id.file_name(), AtFlags::SYMLINK_NOFOLLOW).is_ok();
            self.case.examination(id).is_none() && !bundles.as_ref().is_some_and(exists)
        };
        (1..=SAME_SECOND_MAX).map(of).find(is_free).ok_or_else(|| {
            let text = format!("the case has {SAME_SECOND_MAX} examinations that begin at {started}");
            Error::new(ErrorKind::Limit, Scope::Client, Phase::Finalise, text)
        })
    }

    /// Writes a bundle under a free name, durably.
    pub fn save(&self, id: &RunId, bytes: &[u8]) -> Result<(), Error> {
        let save = || -> std::io::Result<()> {
            let bundles = match open_bundles(&self.store.directory) {
                // A repository does not keep an empty directory.
                Err(Errno::NOENT) => make_bundles(&self.store.directory)?,
                opened => opened?,
            };
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mut file = regular(rustix::fs::openat(&bundles, UNFINISHED, flags, Mode::from_raw_mode(0o666))?)?;
            let written = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| {
                publish(&bundles, &id.file_name())?;
                Ok(rustix::fs::fsync(&bundles)?)
            });
            if written.is_err() {
                // The first error is the reason; the next bundle replaces a file that stays.
                let _ = rustix::fs::unlinkat(&bundles, UNFINISHED, AtFlags::empty());
            }
            written
        };
        save().map_err(|e| failed("write", &self.store.path_of(id)).caused_by(e))
    }
}

/// Gives the unfinished bundle its name, which no file has: names are given under the lock.
fn publish(bundles: &OwnedFd, name: &str) -> std::io::Result<()> {
    match rustix::fs::renameat_with(bundles, UNFINISHED, bundles, name, RenameFlags::NOREPLACE) {
        // File systems without the flag.
        Err(Errno::INVAL | Errno::NOSYS) => Ok(rustix::fs::renameat(bundles, UNFINISHED, bundles, name)?),
        other => Ok(other?),
    }
}

fn open_directory(path: &Path) -> std::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
}

fn open_bundles(directory: impl AsFd) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, BUNDLES, flags, Mode::empty())
}

/// Makes the directory of the bundles, unless it exists, durably.
fn make_bundles(directory: &OwnedFd) -> std::io::Result<OwnedFd> {
    match rustix::fs::mkdirat(directory, BUNDLES, Mode::from_raw_mode(0o777)) {
        Ok(()) => rustix::fs::fsync(directory)?,
        Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    Ok(open_bundles(directory)?)
}

/// Returns a file. Errors: it is a device, a socket or a named pipe.
fn regular(opened: OwnedFd) -> std::io::Result<File> {
    match FileType::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode) {
        FileType::RegularFile => Ok(File::from(opened)),
        _ => Err(std::io::Error::other("it is no file")),
    }
}

/// Returns true if a file of this size is empty or ends with the end of a line.
fn ends_a_line(file: &File, size: u64) -> std::io::Result<bool> {
    let Some(last) = size.checked_sub(1) else { return Ok(true) };
    let mut byte = [0];
    std::os::unix::fs::FileExt::read_exact_at(file, &mut byte, last)?;
    Ok(byte == [b'\n'])
}

fn failed(what: &str, path: &Path) -> Error {
    Error::new(ErrorKind::Io, Scope::Client, Phase::Prepare, format!("{what} {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use sterna_doctor::case::FORMAT;
    use sterna_doctor::case::entry::Event;

    use super::*;

    fn entry(event: Event) -> Entry {
        Entry { time: EntryTime::from_unix(0), recorded: None, by: "ann".to_owned(), event }
    }

    fn note(text: &str) -> Entry {
        entry(Event::Note { text: text.to_owned() })
    }

    fn opened() -> (tempfile::TempDir, Store) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::create(&directory.path().join("case")).unwrap();
        let event = Event::Opened { format: FORMAT, title: "x".to_owned(), targets: Vec::new() };
        store.write().unwrap().append(&entry(event)).unwrap();
        (directory, store)
    }

    #[test]
    fn one_process_writes_at_a_time() {
        let (_directory, store) = opened();
        let mut first = store.write().unwrap();
        let busy = store.write_within(Duration::ZERO).unwrap_err();
        assert_eq!(busy.kind, ErrorKind::Busy);
        assert!(busy.chain().contains("another process writes"), "{}", busy.chain());
        first.append(&note("one")).unwrap();
        drop(first);
        store.write_within(Duration::ZERO).unwrap().append(&note("two")).unwrap();
        assert_eq!(store.read().unwrap().entries.len(), 3);
    }

    #[test]
    fn a_line_that_a_crash_has_cut_is_left_alone() {
        let (directory, store) = opened();
        let path = directory.path().join("case").join(ENTRIES);
        let whole = fs::read(&path).unwrap();
        let torn = &note("torn").line().unwrap()[..20];
        fs::write(&path, [&whole, torn].concat()).unwrap();
        assert_eq!(store.read().unwrap().unreadable.len(), 1);
        store.write().unwrap().append(&note("next")).unwrap();
        let case = store.read().unwrap();
        assert_eq!((case.entries.len(), case.unreadable[0].line), (2, 2), "{case:?}");
        assert!(fs::read(&path).unwrap().starts_with(&[&whole, torn, b"\n"].concat()), "old lines never change");
    }

    #[test]
    fn a_bundle_has_a_name_of_its_own_and_is_never_replaced() {
        let (directory, store) = opened();
        let (writer, start) = (store.write().unwrap(), EntryTime::from_unix(1_156_257_000));
        // A crash left half a bundle.
        let bundles = directory.path().join("case").join(BUNDLES);
        fs::write(bundles.join(UNFINISHED), "half of another bundle").unwrap();
        for (name, bytes) in [("20060822T143000Z", b"1"), ("20060822T143000Z-2", b"2")] {
            let id = writer.free_id(start).unwrap();
            assert_eq!(id.to_string(), name);
            writer.save(&id, bytes).unwrap();
            assert_eq!(fs::read(bundles.join(id.file_name())).unwrap(), bytes);
        }
        assert!(writer.save(&RunId::new(start, 1), b"3").is_err());
        assert_eq!(fs::read(bundles.join("20060822T143000Z.json")).unwrap(), b"1");
        assert_eq!(fs::read_dir(&bundles).unwrap().count(), 2);
        let found = store.bundles().unwrap();
        assert_eq!(found.len(), 2, "{found:?}");
        // Half of a bundle is an error with its name, and a repository without the directory gets it.
        assert!(store.bundle(&found[0]).unwrap_err().chain().contains("20060822T143000Z.json"));
        fs::remove_dir_all(&bundles).unwrap();
        assert_eq!((store.bundle(&found[0]).unwrap(), store.bundles().unwrap()), (None, vec![]));
        writer.save(&found[0], b"4").unwrap();
    }

    #[test]
    fn links_and_devices_of_strangers_are_not_followed() {
        let (directory, store) = opened();
        let (case, id) = (directory.path().join("case"), RunId::new(EntryTime::from_unix(0), 1));
        let victim = directory.path().join("victim");
        fs::write(&victim, "secret").unwrap();
        let link = |target: &Path, name: &Path| {
            let _ = fs::remove_file(name);
            std::os::unix::fs::symlink(target, name).unwrap();
        };
        for target in [victim.as_path(), Path::new("/dev/zero")] {
            link(target, &store.path_of(&id));
            assert!(store.bundle(&id).is_err(), "{}", target.display());
            link(target, &case.join(ENTRIES));
            assert!(store.read().is_err() && store.write().is_err());
        }
        // Opening a pipe would wait for a writer.
        for name in [store.path_of(&id), case.join(ENTRIES)] {
            fs::remove_file(&name).unwrap();
            rustix::fs::mknodat(CWD, &name, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        }
        assert!(store.bundle(&id).is_err() && store.read().is_err() && store.write().is_err());
        fs::remove_dir_all(case.join(BUNDLES)).unwrap();
        link(directory.path(), &case.join(BUNDLES));
        assert!(store.bundle(&id).is_err() && store.bundles().is_err());
        assert_eq!(fs::read_to_string(&victim).unwrap(), "secret");
    }
}
