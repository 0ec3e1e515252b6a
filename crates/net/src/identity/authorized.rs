//! Peers that an agent admits, and the rights of each.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use super::{Fingerprint, files};

/// Maximum size of the file in bytes. Reason: 10,000 peers with a few rights each, read in a few milliseconds.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Rights of a peer on a root. Higher rights include all lower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rights {
    /// No rights; the root does not exist for this peer.
    None,
    /// Read and list.
    Read,
    /// Read, list, write and replace.
    ReadWrite,
    /// Read, list, write, replace, delete and rename. Only a line that names this right grants it.
    Manage,
}

impl Rights {
    /// Returns true if reading and listing are allowed.
    pub const fn may_read(self) -> bool {
        matches!(self, Self::Read | Self::ReadWrite | Self::Manage)
    }

    /// Returns true if writing is allowed.
    pub const fn may_write(self) -> bool {
        matches!(self, Self::ReadWrite | Self::Manage)
    }

    fn parse(word: &str) -> Option<Self> {
        match word {
            "none" => Some(Self::None),
            "ro" => Some(Self::Read),
            "rw" => Some(Self::ReadWrite),
            "manage" => Some(Self::Manage),
            _ => None,
        }
    }
}

/// Rights of one peer, root by root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    other_roots: Rights,
    roots: BTreeMap<String, Rights>,
}

impl Grant {
    /// Creates a grant of the same rights on every root, as `--authorize-any` gives to everybody.
    pub fn everywhere(rights: Rights) -> Self {
        Self { other_roots: rights, roots: BTreeMap::new() }
    }

    /// Returns the rights on the root `name`; an unnamed root has the empty name.
    pub fn rights(&self, name: &str) -> Rights {
        self.roots.get(name).copied().unwrap_or(self.other_roots)
    }

    /// Returns the rights that both grants allow.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let names = self.roots.keys().chain(other.roots.keys());
        let roots = names.map(|name| (name.clone(), self.rights(name).min(other.rights(name)))).collect();
        Self { other_roots: self.other_roots.min(other.other_roots), roots }
    }

    /// Reads the words after the fingerprint. No words grant `rw`. If roots are named, only these roots are
    /// granted, unless a bare `ro`, `rw`, `manage` or `none` sets the rights on the others.
    fn parse<'a>(words: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let mut others = None;
        let mut roots = BTreeMap::new();
        for word in words {
            let (name, rights) = match word.rsplit_once('=') {
                Some((name, rights)) => (Some(name), rights),
                None => (None, word),
            };
            let rights = Rights::parse(rights)
                .ok_or_else(|| format!("\"{word}\" is not ro, rw, manage, none or NAME=ro|rw|manage|none"))?;
            let twice = match name {
                Some(name) => roots.insert(name.to_owned(), rights).is_some(),
                None => others.replace(rights).is_some(),
            };
            if twice {
                return Err(format!("\"{word}\" repeats an earlier word"));
            }
        }
        let silent = if roots.is_empty() { Rights::ReadWrite } else { Rights::None };
        Ok(Self { other_roots: others.unwrap_or(silent), roots })
    }
}

/// File given by `sterna agent --authorize`. Each line is `SHA256:… [NAME=RIGHT]… [RIGHT] [# comment]`, with the rights
/// `ro`, `rw`, `manage` and `none`.
///
/// [`Authorized::ask`] reads the file at each call, so an edit counts for the next lane, without a signal or a timer.
/// While the file cannot be read, usually in the middle of an edit, the last readable list stays in force. If a line
/// names a root that the agent does not have, the last grant of that peer stays in force.
#[derive(Debug)]
pub struct Authorized {
    path: PathBuf,
    /// Names of the agent's roots, as messages list them; empty if the only root has no name.
    roots: Vec<String>,
    last: Mutex<LastRead>,
    /// State of the file at the last check; `None` if it did not exist.
    stamp: Mutex<Option<Stamp>>,
}

/// Values that change with a file: device, inode, size, and the times of data and inode with nanoseconds.
type Stamp = [i64; 7];

#[derive(Debug)]
struct LastRead {
    /// Last list that could be read.
    grants: BTreeMap<Fingerprint, Grant>,
    /// Problem at the last read of the file; `None` if there was none.
    damage: Option<String>,
    /// True if `grants` is the list of the last read.
    is_in_use: bool,
}

/// Answer of the file about a peer.
#[derive(Debug)]
pub struct Answer {
    /// Grant of the peer; `None` if the peer is not in the list.
    pub grant: Option<Grant>,
    /// Problem of the file and the rights that count instead, for the log of the operator; names path and line. Set
    /// once for each change of the problem.
    pub damage: Option<String>,
}

/// Content of the file.
struct Listed {
    grants: BTreeMap<Fingerprint, Grant>,
    /// Lines that name a root which the agent does not have.
    strays: Vec<Stray>,
}

/// Line that names a root which the agent does not have.
struct Stray {
    peer: Fingerprint,
    error: Error,
}

impl Authorized {
    /// Opens `path` and reads it once, so that a wrong file prevents the start. `roots` are the names of the agent's
    /// roots; empty if the only root has no name.
    ///
    /// Errors: the file does not exist, a line cannot be read, or a line names another root (the text contains its
    /// number).
    pub fn open(path: &Path, roots: Vec<String>) -> Result<Self, Error> {
        // Taken before the read: the next check then detects a change in between.
        let stamp = stamp_of(path);
        let Listed { grants, strays } = read(path, &roots)?;
        match strays.into_iter().next() {
            Some(stray) => Err(stray.error),
            None => Ok(Self {
                path: path.to_owned(),
                roots,
                last: Mutex::new(LastRead { grants, damage: None, is_in_use: true }),
                stamp: Mutex::new(stamp),
            }),
        }
    }

    /// Returns the grant of a peer in the current file, or in the last list that could be read.
    ///
    /// Cost: reads the file; call it once or twice per handshake.
    pub fn ask(&self, peer: &Fingerprint) -> Answer {
        let read = read(&self.path, &self.roots);
        let mut last = self.last.lock();
        last.is_in_use = read.is_ok();
        let damage = match read {
            Ok(Listed { mut grants, strays }) => {
                for stray in &strays {
                    // A typing error in the name of a root must not widen the rights of the peer: the line may be meant
                    // to say `none`.
                    match last.grants.get(&stray.peer) {
                        Some(before) => grants.insert(stray.peer, before.clone()),
                        None => grants.remove(&stray.peer),
                    };
                }
                last.grants = grants;
                strays_text(&strays)
            }
            Err(error) => {
                Some(format!("{}; the file is not in use, and the previous list stays in force", error.chain()))
            }
        };
        let is_new = last.damage != damage;
        last.damage.clone_from(&damage);
        Answer { grant: last.grants.get(peer).cloned(), damage: damage.filter(|_| is_new) }
    }

    /// Returns true if the file has changed since the last check, or since it was opened.
    ///
    /// Cost: one system call.
    pub fn has_changed(&self) -> bool {
        let now = stamp_of(&self.path);
        std::mem::replace(&mut *self.stamp.lock(), now) != now
    }

    /// Returns the reason why the file was not used at the last read. `None` if it was used, even if some lines name
    /// another root.
    pub fn why_not_in_use(&self) -> Option<String> {
        let last = self.last.lock();
        last.damage.clone().filter(|_| !last.is_in_use)
    }
}

fn stamp_of(path: &Path) -> Option<Stamp> {
    let found = path.metadata().ok()?;
    // Bits of the numbers, which are only compared.
    let (device, inode, size) = (found.dev() as i64, found.ino() as i64, found.size() as i64);
    Some([device, inode, size, found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()])
}

/// Returns the message about lines that name no root of the agent; `None` if there are no such lines.
fn strays_text(strays: &[Stray]) -> Option<String> {
    let first = strays.first()?.error.chain();
    let more = match strays.len() {
        1 => String::new(),
        count => format!(" (and {} more such lines)", count - 1),
    };
    Some(format!("{first}{more}; what was granted there before stays in force, and all other lines count"))
}

fn read(path: &Path, roots: &[String]) -> Result<Listed, Error> {
    let text = files::read_text(path, FILE_BYTES_MAX)?.ok_or_else(|| {
        let text = format!("read the authorized fingerprints from {}: no such file", path.display());
        Error::new(ErrorKind::NotFound, Scope::Client, Phase::Prepare, text)
    })?;
    parse(path, &text, roots)
}

/// Parses the text of the file; `path` is for messages.
fn parse(path: &Path, text: &str, roots: &[String]) -> Result<Listed, Error> {
    let (mut named, mut strays) = (BTreeMap::<Fingerprint, (usize, Grant)>::new(), Vec::new());
    for (index, line) in text.lines().enumerate() {
        let wrong = |what: String| files::line_error(path, index + 1, what);
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(peer) = words.next() else { continue };
        let peer: Fingerprint = peer.parse().map_err(|e: super::ParseFingerprintError| wrong(e.to_string()))?;
        let grant = Grant::parse(words).map_err(wrong)?;
        if let Some(name) = grant.roots.keys().find(|name| !roots.contains(name)) {
            strays.push(Stray { peer, error: wrong(no_such_root(name, roots)) });
        }
        match named.get(&peer) {
            None => drop(named.insert(peer, (index + 1, grant))),
            // Repeated line, for example if two people add the same one.
            Some((_, before)) if *before == grant => {}
            Some((first, _)) => {
                let lines = (*first, index + 1);
                return Err(files::lines_error(path, lines, format!("{peer}, with other rights: delete one")));
            }
        }
    }
    let grants = named.into_iter().map(|(peer, (_, grant))| (peer, grant)).collect();
    Ok(Listed { grants, strays })
}

/// Returns the grants in the text of such a file, for fuzzing.
#[doc(hidden)]
pub fn grants_in(text: &str, roots: &[String]) -> Result<BTreeMap<Fingerprint, Grant>, Error> {
    parse(Path::new("authorized"), text, roots).map(|listed| listed.grants)
}

fn no_such_root(name: &str, roots: &[String]) -> String {
    let name = name.escape_debug();
    match roots {
        [] => format!("rights for a root \"{name}\", but the only root has no name: write ro, rw or none alone"),
        roots => format!("rights for a root \"{name}\", which this agent has not; its roots are {}", roots.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const PEER: Fingerprint = Fingerprint([1; 32]);

    fn open(path: &Path) -> Result<Authorized, Error> {
        Authorized::open(path, vec!["in".to_owned(), "out".to_owned()])
    }

    fn grant_of(line: &str) -> Grant {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("authorized");
        fs::write(&path, line).unwrap();
        open(&path).unwrap().ask(&PEER).grant.unwrap()
    }

    #[test]
    fn rights_go_root_by_root() {
        use Rights::{Manage, None, Read, ReadWrite};
        let cases = [
            ("", [ReadWrite, ReadWrite, ReadWrite]),
            ("manage", [Manage, Manage, Manage]),
            ("in=manage ro", [Manage, Read, Read]),
            ("ro", [Read, Read, Read]),
            ("in=rw", [ReadWrite, None, None]),
            ("in=rw out=ro", [ReadWrite, Read, None]),
            ("in=rw ro", [ReadWrite, Read, Read]),
            ("rw out=none # by mail", [ReadWrite, None, ReadWrite]),
        ];
        for (words, expected) in cases {
            let grant = grant_of(&format!("# peers\n{PEER} {words}\n"));
            assert_eq!(["in", "out", "other"].map(|name| grant.rights(name)), expected, "{words}");
        }
        assert!(ReadWrite.may_write() && Read.may_read() && !Read.may_write() && !None.may_read());
        assert!(None < Read && Read < ReadWrite && ReadWrite < Manage && Manage.may_write());
    }

    #[test]
    fn two_grants_together_are_the_lesser_of_both() {
        use Rights::{None, Read, ReadWrite};
        let cases = [
            ("", "", [ReadWrite, ReadWrite, ReadWrite]),
            ("rw", "ro", [Read, Read, Read]),
            ("in=rw", "out=rw", [None, None, None]),
            ("in=rw ro", "in=ro out=rw", [Read, Read, None]),
            ("none", "rw", [None, None, None]),
        ];
        for (one, other, expected) in cases {
            let (one, other) = (grant_of(&format!("{PEER} {one}")), grant_of(&format!("{PEER} {other}")));
            for both in [one.and(&other), other.and(&one)] {
                assert_eq!(["in", "out", "other"].map(|name| both.rights(name)), expected);
            }
        }
    }

    #[test]
    fn a_revoked_peer_is_out_at_the_next_question() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("authorized");
        fs::write(&path, format!("{PEER}\n")).unwrap();
        let authorized = open(&path).unwrap();
        assert!(authorized.ask(&PEER).grant.is_some());
        fs::write(&path, format!("#{PEER}\n")).unwrap();
        assert!(authorized.ask(&PEER).grant.is_none());
    }

    #[test]
    fn a_damaged_file_leaves_the_last_list_in_force_and_is_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("authorized");
        fs::write(&path, format!("{PEER} ro\n")).unwrap();
        let authorized = open(&path).unwrap();
        let asked = || {
            let Answer { grant, damage } = authorized.ask(&PEER);
            assert_eq!(grant.unwrap().rights("in"), Rights::Read);
            damage.unwrap_or_default()
        };
        fs::write(&path, format!("{PEER} r")).unwrap();
        let said = asked();
        assert!(said.contains("authorized line 1") && said.ends_with("the previous list stays in force"), "{said}");
        assert_eq!(asked(), "", "said already");
        fs::remove_file(&path).unwrap();
        assert!(asked().contains("no such file"));
        fs::write(&path, format!("{PEER} ro\n")).unwrap();
        assert_eq!(asked(), "");
        fs::remove_file(&path).unwrap();
        assert!(asked().contains("no such file"), "it was well in between");
    }

    #[test]
    fn a_root_that_is_not_there_stops_the_start_and_later_counts_for_its_line_alone() {
        const OTHER: Fingerprint = Fingerprint([2; 32]);
        const NEW: Fingerprint = Fingerprint([3; 32]);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("authorized");
        fs::write(&path, format!("# peers\n{PEER} inn=ro\n")).unwrap();
        let said = open(&path).unwrap_err().chain();
        assert!(said.contains("authorized line 2: rights for a root \"inn\"") && said.contains("in, out"), "{said}");
        let said = Authorized::open(&path, Vec::new()).unwrap_err().chain();
        assert!(said.contains("the only root has no name"), "{said}");

        fs::write(&path, format!("{PEER} in=none rw\n")).unwrap();
        let authorized = open(&path).unwrap();
        fs::write(&path, format!("{PEER} inn=none rw\n{OTHER}\n{NEW} up=rw\n")).unwrap();
        let Answer { grant, damage } = authorized.ask(&PEER);
        let said = damage.unwrap();
        assert!(said.contains("line 1") && said.contains("\"inn\"") && said.contains("1 more such line"), "{said}");
        assert_eq!(grant.unwrap().rights("in"), Rights::None, "as before, and not widened by the slip");
        assert!(authorized.ask(&OTHER).grant.is_some(), "the other lines count");
        assert!(authorized.ask(&NEW).grant.is_none());
        assert!(authorized.ask(&PEER).damage.is_none(), "said already");
    }

    #[test]
    fn a_peer_that_is_named_twice_has_the_rights_that_both_lines_say() {
        assert!(grant_of(&format!("{PEER} ro\n# again\n{PEER} ro # by mail\n")).rights("in") == Rights::Read);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("authorized");
        fs::write(&path, format!("# peers\n{PEER} rw\n{PEER} ro\n")).unwrap();
        let error = open(&path).unwrap_err();
        let expected = format!("authorized lines 2 and 3 both name {PEER}, with other rights: delete one");
        assert!(error.text().ends_with(&expected), "{error}");
        assert_eq!(error.kind, ErrorKind::Corrupt);
    }

    #[test]
    fn bad_lines_are_named_by_number() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("authorized");
        for bad in ["ro", "SHA256:x ro", &format!("{PEER} r"), &format!("{PEER} ro rw")] {
            fs::write(&path, format!("\n# peers\n{bad}\n")).unwrap();
            let error = open(&path).unwrap_err();
            assert!(error.text().contains("authorized line "), "{error}");
            assert_eq!(error.kind, ErrorKind::Corrupt);
        }
    }
}
