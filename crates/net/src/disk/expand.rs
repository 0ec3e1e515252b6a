//! Expands a path with wildcards and directories to the files that it means, one at a time.

use std::fmt;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use sterna_proto::file::{FILE_BYTES_MAX, plain};
use sterna_proto::{EntryKind, Error, ErrorKind, FileEntry, RelPath};

use super::fault::LISTING;
use super::hidden::is_ours;
use super::is_hidden_name;
use super::metadata::{describe, entry_from};
use super::pattern::{has_wildcards, is_meant};
use super::root::Root;

/// Maximum number of names in one directory. They are held in memory for sorting, about 64 bytes each.
/// Reason: 40 times the 100,000 that archives are known to keep in one directory.
pub const DIRECTORY_NAMES_MAX: usize = 4_000_000;

/// File or directory to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceItem {
    /// Entry for the receiver. Its path is the name that `cp -r` would give beneath the destination.
    pub entry: FileEntry,
    /// Path of the source beneath the root.
    pub source: RelPath,
}

/// Number of things to copy that a path can mean. It decides how a destination is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sources {
    /// One named file or directory.
    One,
    /// A wildcard, the contents of a directory, or more than one path.
    Many,
}

/// Iterator over the files that a path means. Names are sorted by their bytes in each directory; a directory comes
/// before its contents.
///
/// Every `Err` is about one name, or about the contents of one directory; the iteration continues after it. An
/// expansion that finds nothing yields `NotFound`. Cost: the names of one directory per level are held, and one
/// descriptor.
pub struct Expansion {
    root: Root,
    wanted: Vec<Box<[u8]>>,
    sources: Sources,
    /// Part that is sent of a directory which the last name means: the directory with its contents, or only its
    /// contents.
    top: Top,
    frames: Vec<Frame>,
    found: Found,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Top {
    Named,
    ContentsOnly,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    Something,
}

/// Directory that is being listed.
pub(super) struct Frame {
    /// Path of the directory; empty for the root.
    pub(super) directory: Vec<u8>,
    pub(super) stage: Stage,
    pub(super) names: Option<std::vec::IntoIter<Box<[u8]>>>,
    /// Open while the directory is on top of the stack. It is reopened when the walk returns to it, so that depth costs
    /// no descriptors.
    pub(super) open: Option<OwnedFd>,
}

#[derive(Clone, Copy)]
pub(super) enum Stage {
    /// Names are compared with the wanted name of this index.
    Match(usize),
    /// Every name is wanted. In an expansion: number of leading bytes that are removed from paths. In a listing: level
    /// below the path that was asked for.
    Below(usize),
}

/// Returns the name, with wildcards, that the files of a source path get at the destination. `None` if the path means
/// the contents of a directory, which keep their own names.
pub(crate) fn last_name(path: &[u8]) -> Option<&[u8]> {
    let mut names = path.rsplit(|&b| b == b'/');
    match names.next() {
        Some(b".") => None,
        last => last.into_iter().chain(names).find(|name| !matches!(*name, b"" | b".")),
    }
}

impl Root {
    /// Returns this directory as an item with the name `name`. `expand(b"")` returns its contents.
    pub fn as_item(&self, name: &RelPath) -> Result<SourceItem, Error> {
        let stat = rustix::fs::fstat(self).map_err(|errno| LISTING.failed(errno, format_args!("look at {self}")))?;
        Ok(SourceItem { entry: entry_from(&stat, EntryKind::Directory, name.clone()), source: name.clone() })
    }

    /// Expands `path` beneath this root to a file, to a directory with its contents, or to the matches of its
    /// wildcards.
    ///
    /// `*`, `?`, `[a-z]`, `[!a-z]` and `\` work in every name. A name that exists literally is taken literally. An
    /// empty path, `.` or a final `/.` means the contents of the directory. Symlinks to files beneath the root are
    /// followed; other symlinks are reported. Errors: `NotFound`, `Denied`.
    pub fn expand(&self, path: &[u8]) -> Result<Expansion, Error> {
        let wanted = wanted_names(path)?;
        let top = if last_name(path).is_none() { Top::ContentsOnly } else { Top::Named };
        let plain = wanted.join(&b'/');
        let is_plain = match self.open_at(&plain, OFlags::PATH, Mode::empty()) {
            Ok(_) => true,
            Err(Errno::NOENT | Errno::NOTDIR) if wanted.iter().any(|name| has_wildcards(name)) => false,
            Err(errno) if self.leads_nowhere(errno, &plain) => {
                let text = format!("{} in {self} {LEADS_NOWHERE}", shown(path));
                return Err(LISTING.refused(ErrorKind::NotFound, text));
            }
            Err(errno) => return Err(LISTING.failed(errno, format_args!("look for {} in {self}", shown(path)))),
        };
        let first = match (wanted.is_empty(), is_plain) {
            (true, _) => Frame::new(Vec::new(), Stage::Below(0)),
            (false, true) => {
                let parent = wanted[..wanted.len() - 1].join(&b'/');
                let names = vec![wanted[wanted.len() - 1].clone()];
                let last = wanted.len() - 1;
                Frame { names: Some(names.into_iter()), ..Frame::new(parent, Stage::Match(last)) }
            }
            (false, false) => Frame::new(Vec::new(), Stage::Match(0)),
        };
        let sources = if is_plain && top == Top::Named { Sources::One } else { Sources::Many };
        // An empty directory has no contents, and that is not an error.
        let found = if wanted.is_empty() { Found::Something } else { Found::Nothing };
        Ok(Expansion { root: self.clone(), wanted, sources, top, frames: vec![first], found })
    }

    /// Returns true if `errno` occurred for `path` because it is a symlink to a target that does not exist.
    fn leads_nowhere(&self, errno: Errno, path: &[u8]) -> bool {
        let look = || self.open_at(path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty()).and_then(rustix::fs::fstat);
        errno == Errno::NOENT && look().is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
    }

    /// Returns the error for a name that cannot be inspected.
    fn unseen(&self, errno: Errno, path: &RelPath) -> Error {
        if matches!(errno, Errno::LOOP | Errno::XDEV) {
            let text = format!("{path} is a symlink that loops or leads out of the root; skipped");
            return LISTING.refused(ErrorKind::NotFound, text);
        }
        match self.leads_nowhere(errno, path.as_bytes()) {
            true => LISTING.refused(ErrorKind::NotFound, format!("{path} {LEADS_NOWHERE}; skipped")),
            false => LISTING.failed(errno, format_args!("look at {path}; skipped")),
        }
    }
}

/// Description of a dangling symlink.
const LEADS_NOWHERE: &str = "is a symlink whose target does not exist";

impl Expansion {
    /// Returns the number of things that the path can mean; see [`super::Destination::resolve`].
    pub fn sources(&self) -> Sources {
        self.sources
    }

    /// Processes the next name of the directory on top of the stack. Returns `None` if nothing to send was found.
    fn step(&mut self) -> Result<Option<SourceItem>, Error> {
        let Some(frame) = self.frames.last_mut() else {
            return Ok(None);
        };
        let Some(name) = frame.next_name(&self.root, &self.wanted) else {
            self.frames.pop();
            return Ok(None);
        };
        let (name, stage) = (name?, frame.stage);
        let path = frame.path_of(&name)?;
        if is_hidden_name(&name) {
            let text = format!(
                "{path} is not copied: names that begin with .sterna- are those of our unfinished files; give it another name"
            );
            return Err(LISTING.refused(ErrorKind::NotFound, text));
        }
        let looked = look(&self.root, frame, &path, &name);
        match stage {
            Stage::Match(index) => self.matched(index, path, looked),
            Stage::Below(strip) => {
                let (stat, via) = looked.map_err(|errno| self.root.unseen(errno, &path))?;
                self.send(path, &stat, via, strip)
            }
        }
    }

    /// Handles a name that matches the wanted name `index`.
    fn matched(
        &mut self,
        index: usize,
        path: RelPath,
        looked: rustix::io::Result<(Stat, Via)>,
    ) -> Result<Option<SourceItem>, Error> {
        let is_last = index + 1 == self.wanted.len();
        let (stat, via) = match looked {
            Ok(looked) => looked,
            // `*/b` looks for `b` in many directories and need not find it in all. A match of a final `*` was listed.
            Err(Errno::NOENT | Errno::NOTDIR) if !is_last || !has_wildcards(&self.wanted[index]) => return Ok(None),
            Err(errno) => return Err(self.root.unseen(errno, &path)),
        };
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if !is_last {
            if is_directory {
                self.push(path.as_bytes().to_vec(), Stage::Match(index + 1));
            }
            return Ok(None);
        }
        self.found = Found::Something;
        if is_directory && self.top == Top::ContentsOnly {
            let strip = path.as_bytes().len() + 1;
            self.push(path.as_bytes().to_vec(), Stage::Below(strip));
            return Ok(None);
        }
        let strip = path.as_bytes().len() - path.name().len();
        // A directory that the user names literally may be a symlink to one: the user asked for it.
        let via = if self.sources == Sources::One { Via::Name } else { via };
        self.send(path, &stat, via, strip)
    }

    /// Creates the item for `path`, and descends into it if it is a directory.
    fn send(&mut self, path: RelPath, stat: &Stat, via: Via, strip: usize) -> Result<Option<SourceItem>, Error> {
        let target = RelPath::new(&path.as_bytes()[strip..])?;
        let kind = match (FileType::from_raw_mode(stat.st_mode), via) {
            (FileType::RegularFile, _) => EntryKind::File,
            (FileType::Directory, Via::Name) => EntryKind::Directory,
            (FileType::Directory, Via::Symlink) => {
                let text = format!(
                    "{path} is a symlink to a directory, which is not followed within a source; skipped: \
                     name it as a source to copy it"
                );
                return Err(LISTING.refused(ErrorKind::NotFound, text));
            }
            (other, _) => {
                return Err(LISTING.refused(ErrorKind::NotFound, format!("{path} is {}; skipped", describe(other))));
            }
        };
        let entry = entry_from(stat, kind, target);
        if entry.size > FILE_BYTES_MAX {
            return Err(LISTING.refused(ErrorKind::Limit, format!("{path} is larger than 2^62 bytes; skipped")));
        }
        if kind == EntryKind::Directory {
            self.push(path.as_bytes().to_vec(), Stage::Below(strip));
        }
        Ok(Some(SourceItem { entry, source: path }))
    }

    fn push(&mut self, directory: Vec<u8>, stage: Stage) {
        if let Some(above) = self.frames.last_mut() {
            above.open = None;
        }
        self.frames.push(Frame::new(directory, stage));
    }
}

impl Iterator for Expansion {
    type Item = Result<SourceItem, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.frames.is_empty() {
            match self.step() {
                Ok(None) => {}
                Ok(Some(item)) => return Some(Ok(item)),
                Err(error) => {
                    self.found = Found::Something;
                    return Some(Err(error));
                }
            }
        }
        if self.found == Found::Something {
            return None;
        }
        self.found = Found::Something;
        let pattern = shown(&self.wanted.join(&b'/'));
        Some(Err(LISTING.refused(ErrorKind::NotFound, format!("nothing in {} matches {pattern}", self.root))))
    }
}

impl fmt::Debug for Expansion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Expansion({} in {})", shown(&self.wanted.join(&b'/')), self.root)
    }
}

impl Frame {
    pub(super) fn new(directory: Vec<u8>, stage: Stage) -> Self {
        Self { directory, stage, names: None, open: None }
    }

    /// Returns the next name. After an error the directory has no more names.
    pub(super) fn next_name(&mut self, root: &Root, wanted: &[Box<[u8]>]) -> Option<Result<Box<[u8]>, Error>> {
        if self.names.is_none() {
            let listed = list(root, self, wanted);
            let (names, error) = listed.map_or_else(|error| (Vec::new(), Some(error)), |names| (names, None));
            self.names = Some(names.into_iter());
            if let Some(error) = error {
                return Some(Err(error));
            }
        }
        self.names.as_mut()?.next().map(Ok)
    }

    /// Returns the path of `name` in this directory. Errors: it is too long.
    pub(super) fn path_of(&self, name: &[u8]) -> Result<RelPath, Error> {
        let path = match self.directory.is_empty() {
            true => RelPath::new(name),
            false => RelPath::new(&[&self.directory[..], b"/", name].concat()),
        };
        path.map_err(|e| LISTING.refused(ErrorKind::Limit, format!("{}; skipped", e.text())))
    }

    /// Returns the directory; opens it if it is not open.
    pub(super) fn directory(&mut self, root: &Root) -> rustix::io::Result<&OwnedFd> {
        match self.open.take() {
            Some(open) => Ok(self.open.insert(open)),
            None => Ok(self.open.insert(root.open_directory(&self.directory)?)),
        }
    }
}

/// Relation of a name to the object that it means.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Via {
    Name,
    Symlink,
}

/// Inspects `name` in the directory of `frame`. Follows a symlink as far as the root allows.
fn look(root: &Root, frame: &mut Frame, path: &RelPath, name: &[u8]) -> rustix::io::Result<(Stat, Via)> {
    let stat = rustix::fs::statat(frame.directory(root)?, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
        return Ok((stat, Via::Name));
    }
    let target = root.open_at(path.as_bytes(), OFlags::PATH, Mode::empty())?;
    Ok((rustix::fs::fstat(target)?, Via::Symlink))
}

/// Returns the names of `path`, without empty ones and `.`. Errors: `Usage` for `..`, a NUL byte, or excessive length.
pub(super) fn wanted_names(path: &[u8]) -> Result<Vec<Box<[u8]>>, Error> {
    let names = path.split(|&b| b == b'/').filter(|name| !matches!(*name, b"" | b"."));
    names.map(|name| Ok(RelPath::new(name)?.as_bytes().into())).collect()
}

/// Returns the names of a directory that its stage wants, sorted.
fn list(root: &Root, frame: &mut Frame, wanted: &[Box<[u8]>]) -> Result<Vec<Box<[u8]>>, Error> {
    let wanted = match frame.stage {
        Stage::Match(index) if !has_wildcards(&wanted[index]) => return Ok(vec![wanted[index].clone()]),
        Stage::Match(index) => Some(&wanted[index]),
        Stage::Below(_) => None,
    };
    let directory = shown(&frame.directory);
    let failed = |errno: Errno| LISTING.failed(errno, format_args!("list directory {directory:?} in {root}; skipped"));
    let mut names: Vec<Box<[u8]>> = Vec::new();
    for item in Dir::read_from(frame.directory(root).map_err(failed)?).map_err(failed)? {
        let item = item.map_err(failed)?;
        let name = item.file_name().to_bytes();
        let is_wanted = wanted.is_none_or(|wanted| is_meant(wanted, name));
        if matches!(name, b"." | b"..") || is_ours(name) || !is_wanted {
            continue;
        }
        if names.len() == DIRECTORY_NAMES_MAX {
            let text = format!("directory {directory:?} in {root} has over {DIRECTORY_NAMES_MAX} names; skipped");
            return Err(LISTING.refused(ErrorKind::Limit, text));
        }
        names.push(name.into());
    }
    names.sort_unstable();
    // A directory that changes during the listing may return a name twice.
    names.dedup();
    Ok(names)
}

/// Formats a path for an error text, without bytes that could control a terminal.
pub(super) fn shown(path: &[u8]) -> String {
    plain(&String::from_utf8_lossy(path)).into_owned()
}
