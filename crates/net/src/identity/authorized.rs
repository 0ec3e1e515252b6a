//! The peers that an agent lets in, and what each may do.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use sterna_proto::{Error, ErrorKind, Phase, Scope};

use super::{Fingerprint, files};
use crate::session::lock;

/// Largest file that is read, in bytes. Reason: 10,000 peers with a few rights each, read in some milliseconds.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What a peer may do with a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rights {
    /// Nothing; the root is not there for this peer.
    None,
    /// Read and list.
    Read,
    /// Read, list, write and replace.
    ReadWrite,
}

impl Rights {
    /// Whether reading and listing is granted.
    pub const fn may_read(self) -> bool {
        matches!(self, Self::Read | Self::ReadWrite)
    }

    /// Whether writing is granted.
    pub const fn may_write(self) -> bool {
        matches!(self, Self::ReadWrite)
    }

    fn parse(word: &str) -> Option<Self> {
        match word {
            "none" => Some(Self::None),
            "ro" => Some(Self::Read),
            "rw" => Some(Self::ReadWrite),
            _ => None,
        }
    }
}

/// What one peer may do, root by root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    other_roots: Rights,
    roots: BTreeMap<String, Rights>,
}

impl Grant {
    /// The same rights on every root, as `--authorize-any` gives them to everybody.
    pub fn everywhere(rights: Rights) -> Self {
        Self { other_roots: rights, roots: BTreeMap::new() }
    }

    /// The rights on the root `name`; an unnamed root has the empty name.
    pub fn rights(&self, name: &str) -> Rights {
        self.roots.get(name).copied().unwrap_or(self.other_roots)
    }

    /// Reads the words after the fingerprint: none of them is everything; naming roots grants these roots only,
    /// unless a bare `ro`, `rw` or `none` speaks for the others.
    fn parse<'a>(words: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let mut others = None;
        let mut roots = BTreeMap::new();
        for word in words {
            let (name, rights) = match word.rsplit_once('=') {
                Some((name, rights)) => (Some(name), rights),
                None => (None, word),
            };
            let rights =
                Rights::parse(rights).ok_or_else(|| format!("\"{word}\" is not ro, rw, none or NAME=ro|rw|none"))?;
            let twice = match name {
                Some(name) => roots.insert(name.to_owned(), rights).is_some(),
                None => others.replace(rights).is_some(),
            };
            if twice {
                return Err(format!("\"{word}\" says again what was said before"));
            }
        }
        let silent = if roots.is_empty() { Rights::ReadWrite } else { Rights::None };
        Ok(Self { other_roots: others.unwrap_or(silent), roots })
    }
}

/// The file given by `sterna agent --authorize`: `SHA256:… [NAME=ro|rw|none]… [ro|rw|none] [# comment]`, one a line.
///
/// It is read at each question: what a person adds or removes counts for the next lane, with no signal and no clock. While
/// it cannot be read, in the middle of an edit as a rule, the last list that could be read stays in force.
#[derive(Debug)]
pub struct Authorized {
    path: PathBuf,
    last: Mutex<LastRead>,
}

#[derive(Debug)]
struct LastRead {
    /// The last list that could be read.
    grants: BTreeMap<Fingerprint, Grant>,
    /// What was wrong when the file was read last; `None` when it was well.
    damage: Option<String>,
}

/// What the file says of a peer.
#[derive(Debug)]
pub struct Answer {
    /// The grant of the peer; `None` when it is not in the list.
    pub grant: Option<Grant>,
    /// Why the file could not be read and the list of before was asked, for the log of the operator: it names path and
    /// line. Given once for each change of what is wrong.
    pub damage: Option<Error>,
}

impl Authorized {
    /// Opens `path` and reads it once, so that a wrong file stops the start.
    ///
    /// Errors: the file is not there, or a line cannot be read (its number is in the text).
    pub fn open(path: &Path) -> Result<Self, Error> {
        let last = LastRead { grants: read(path)?, damage: None };
        Ok(Self { path: path.to_owned(), last: Mutex::new(last) })
    }

    /// What the file says of a peer now, or said when it could last be read.
    ///
    /// Cost: reads the file; call it once or twice a handshake.
    pub fn ask(&self, peer: &Fingerprint) -> Answer {
        let read = read(&self.path);
        let mut last = lock(&self.last);
        let damage = match read {
            Ok(grants) => {
                *last = LastRead { grants, damage: None };
                None
            }
            Err(error) => {
                let text = error.chain();
                let is_new = last.damage.as_ref() != Some(&text);
                last.damage = Some(text);
                is_new.then_some(error)
            }
        };
        Answer { grant: last.grants.get(peer).cloned(), damage }
    }
}

fn read(path: &Path) -> Result<BTreeMap<Fingerprint, Grant>, Error> {
    let text = files::read_text(path, FILE_BYTES_MAX)?.ok_or_else(|| {
        let text = format!("{} does not exist; no peer is authorized", path.display());
        Error::new(ErrorKind::NotFound, Scope::Client, Phase::Prepare, text)
    })?;
    let mut grants = BTreeMap::new();
    for (index, line) in text.lines().enumerate() {
        let wrong = |what: String| files::line_error(path, index + 1, what);
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(peer) = words.next() else { continue };
        let peer: Fingerprint = peer.parse().map_err(|e: super::ParseFingerprintError| wrong(e.to_string()))?;
        let grant = Grant::parse(words).map_err(wrong)?;
        if grants.insert(peer, grant).is_some() {
            return Err(wrong(format!("{peer} is there twice")));
        }
    }
    Ok(grants)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const PEER: Fingerprint = Fingerprint([1; 32]);

    fn grant_of(line: &str) -> Grant {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("authorized");
        fs::write(&path, line).unwrap();
        Authorized::open(&path).unwrap().ask(&PEER).grant.unwrap()
    }

    #[test]
    fn rights_go_root_by_root() {
        use Rights::{None, Read, ReadWrite};
        let cases = [
            ("", [ReadWrite, ReadWrite, ReadWrite]),
            ("ro", [Read, Read, Read]),
            ("in=rw", [ReadWrite, None, None]),
            ("in=rw out=ro", [ReadWrite, Read, None]),
            ("in=rw ro", [ReadWrite, Read, Read]),
            ("rw out=none # by mail", [ReadWrite, None, ReadWrite]),
        ];
        for (words, expected) in cases {
            let grant = grant_of(&format!("# peers\n{PEER} {words}\n"));
            assert_eq!(["in", "out", ""].map(|name| grant.rights(name)), expected, "{words}");
        }
        assert!(ReadWrite.may_write() && Read.may_read() && !Read.may_write() && !None.may_read());
    }

    #[test]
    fn a_revoked_peer_is_out_at_the_next_question() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("authorized");
        fs::write(&path, format!("{PEER}\n")).unwrap();
        let authorized = Authorized::open(&path).unwrap();
        assert!(authorized.ask(&PEER).grant.is_some());
        fs::write(&path, format!("#{PEER}\n")).unwrap();
        assert!(authorized.ask(&PEER).grant.is_none());
    }

    #[test]
    fn a_damaged_file_leaves_the_last_list_in_force_and_is_told_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("authorized");
        fs::write(&path, format!("{PEER} ro\n")).unwrap();
        let authorized = Authorized::open(&path).unwrap();
        let asked = || {
            let Answer { grant, damage } = authorized.ask(&PEER);
            assert_eq!(grant.unwrap().rights(""), Rights::Read);
            damage.map(|error| error.kind)
        };
        fs::write(&path, format!("{PEER} r")).unwrap();
        assert_eq!(asked(), Some(ErrorKind::Corrupt));
        assert_eq!(asked(), None, "said already");
        fs::remove_file(&path).unwrap();
        assert_eq!(asked(), Some(ErrorKind::NotFound));
        fs::write(&path, format!("{PEER} ro\n")).unwrap();
        assert_eq!(asked(), None);
        fs::remove_file(&path).unwrap();
        assert_eq!(asked(), Some(ErrorKind::NotFound), "it was well in between");
    }

    #[test]
    fn bad_lines_are_named_by_number() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("authorized");
        for bad in ["ro", "SHA256:x ro", &format!("{PEER} r"), &format!("{PEER} ro rw"), &format!("{PEER}\n{PEER}")] {
            fs::write(&path, format!("\n# peers\n{bad}\n")).unwrap();
            let error = Authorized::open(&path).unwrap_err();
            assert!(error.text().contains("authorized line "), "{error}");
            assert_eq!(error.kind, ErrorKind::Corrupt);
        }
    }
}
