//! The peers that an agent lets in, and what each may do.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sterna_proto::{Error, ErrorKind, Phase, Scope};

use super::{Fingerprint, files};

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
/// It is read at each question: what a person adds or removes counts for the next lane, with no signal and no clock.
#[derive(Clone, Debug)]
pub struct Authorized {
    path: PathBuf,
}

impl Authorized {
    /// Opens `path` and reads it once, so that a wrong file stops the start.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let authorized = Self { path: path.to_owned() };
        authorized.read()?;
        Ok(authorized)
    }

    /// The grant of a peer; `None` when it is not in the file.
    ///
    /// Errors: the file is gone, or a line cannot be read (its number is in the text); nobody is let in then.
    /// Cost: reads the file; call it once a handshake.
    pub fn grant(&self, peer: &Fingerprint) -> Result<Option<Grant>, Error> {
        Ok(self.read()?.remove(peer))
    }

    fn read(&self) -> Result<BTreeMap<Fingerprint, Grant>, Error> {
        let text = files::read_text(&self.path, FILE_BYTES_MAX)?.ok_or_else(|| {
            let text = format!("{} does not exist; no peer is authorized", self.path.display());
            Error::new(ErrorKind::NotFound, Scope::Client, Phase::Prepare, text)
        })?;
        let mut grants = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            let wrong = |what: String| files::line_error(&self.path, index + 1, what);
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
        Authorized::open(&path).unwrap().grant(&PEER).unwrap().unwrap()
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
        assert!(authorized.grant(&PEER).unwrap().is_some());
        fs::write(&path, format!("#{PEER}\n")).unwrap();
        assert!(authorized.grant(&PEER).unwrap().is_none());
        fs::remove_file(&path).unwrap();
        assert_eq!(authorized.grant(&PEER).unwrap_err().kind, ErrorKind::NotFound);
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
