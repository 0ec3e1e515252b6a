//! Lists names beneath a root with their metadata, one at a time.
//!
//! An [`super::Expansion`] finds the files that a copy sends. A listing shows every name: symlinks, devices, and
//! directories down to a depth.

use std::fmt;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use sterna_proto::session::{ListedKind, Symlinks, XATTRS_BYTES_MAX, XATTRS_MAX, Xattr};
use sterna_proto::{Error, ErrorKind, RelPath};

use super::expand::{Frame, Stage, shown, wanted_names};
use super::fault::LISTING;
use super::metadata::time_from;
use super::pattern::has_wildcards;
use super::root::Root;

/// Name that a listing found.
#[derive(Debug)]
pub struct ListedName {
    /// Path beneath the root; `None`: the root itself.
    pub path: Option<RelPath>,
    /// Kind of the object.
    pub kind: ListedKind,
    /// Target, if the name is a symlink.
    pub target: Option<Vec<u8>>,
    stat: Stat,
}

impl ListedName {
    /// Returns the size of a regular file in bytes, and 0 for everything else.
    pub fn size(&self) -> u64 {
        // The size of a regular file is never negative.
        if self.kind == ListedKind::File { self.stat.st_size as u64 } else { 0 }
    }

    /// Returns the modification time.
    pub fn mtime(&self) -> sterna_proto::FileTime {
        time_from(&self.stat)
    }

    /// Returns the permission bits, with setuid, setgid and sticky.
    pub fn mode(&self) -> u16 {
        (self.stat.st_mode & 0o7777) as u16
    }

    /// Returns the allocated bytes.
    pub fn allocated(&self) -> u64 {
        // `st_blocks` counts units of 512 bytes (POSIX), whatever the block size of the file system.
        (self.stat.st_blocks as u64).saturating_mul(512)
    }

    /// Returns the numbers of user and group.
    pub fn owner(&self) -> (u32, u32) {
        (self.stat.st_uid, self.stat.st_gid)
    }

    /// Returns file system and inode of a file with several names; `None` for any other object.
    pub fn hard_link(&self) -> Option<(u64, u64)> {
        (self.kind == ListedKind::File && self.stat.st_nlink > 1).then_some((self.stat.st_dev, self.stat.st_ino))
    }
}

/// Iterator over names, sorted by their bytes in each directory; a directory comes before its contents.
///
/// Every `Err` is about one name, or about the contents of one directory; the iteration continues after it. A listing
/// that finds nothing yields `NotFound`. Cost: the names of one directory per level are held, and one descriptor.
pub struct Listing {
    root: Root,
    wanted: Vec<Box<[u8]>>,
    depth: Option<u32>,
    symlinks: Symlinks,
    frames: Vec<Frame>,
    /// True while the root itself has not been listed, if the path means it.
    is_root_due: bool,
    has_found: bool,
}

impl Root {
    /// Lists `path` and the names below it, down to `depth` levels (`None`: all). `path` has wildcards as in
    /// [`Root::expand`]; an empty path means the root itself.
    ///
    /// Errors: `Usage` for a path with `..` or a NUL byte.
    pub fn list(&self, path: &[u8], depth: Option<u32>, symlinks: Symlinks) -> Result<Listing, Error> {
        let wanted = wanted_names(path)?;
        let is_root_due = wanted.is_empty();
        let frames = if is_root_due { Vec::new() } else { vec![self.first_frame(&wanted)] };
        Ok(Listing { root: self.clone(), wanted, depth, symlinks, frames, is_root_due, has_found: false })
    }

    /// Returns the frame of the first name with wildcards, or of the last name. A path that exists literally is taken
    /// literally.
    fn first_frame(&self, wanted: &[Box<[u8]>]) -> Frame {
        let exists = self.open_at(&wanted.join(&b'/'), OFlags::PATH | OFlags::NOFOLLOW, Mode::empty()).is_ok();
        if exists || !wanted.iter().any(|name| has_wildcards(name)) {
            let last = wanted.len() - 1;
            let names = vec![wanted[last].clone()];
            return Frame {
                names: Some(names.into_iter()),
                ..Frame::new(wanted[..last].join(&b'/'), Stage::Match(last))
            };
        }
        Frame::new(Vec::new(), Stage::Match(0))
    }

    /// Returns extended attributes of users, and the access control lists, of the file or directory `path`. Attributes
    /// above [`XATTRS_MAX`] and [`XATTRS_BYTES_MAX`] are left out. A file system without attributes has none.
    ///
    /// Errors: the file cannot be opened, or its attributes cannot be read.
    pub fn xattrs(&self, path: Option<&RelPath>) -> Result<Vec<Xattr>, Error> {
        let named = path.map_or(&b""[..], RelPath::as_bytes);
        let failed =
            |errno: Errno| LISTING.failed(errno, format_args!("read the extended attributes of {}", shown(named)));
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
        let file = self.open_at(named, flags, Mode::empty()).map_err(failed)?;
        let mut names = vec![0; XATTR_NAMES_BYTES_MAX];
        let length = match rustix::fs::flistxattr(&file, &mut names[..]) {
            Ok(length) => length,
            Err(Errno::NOTSUP) => return Ok(Vec::new()),
            Err(errno) => return Err(failed(errno)),
        };
        let mut room = XATTRS_BYTES_MAX;
        let mut attributes = Vec::new();
        let is_shown = |name: &&[u8]| name.starts_with(b"user.") || name.starts_with(b"system.posix_acl_");
        let mut sorted: Vec<&[u8]> = names[..length].split(|&b| b == 0).filter(is_shown).collect();
        sorted.sort_unstable();
        for name in sorted {
            let mut value = vec![0; room];
            match rustix::fs::fgetxattr(&file, name, &mut value[..]) {
                Ok(length) if name.len() + length <= room && attributes.len() < XATTRS_MAX => {
                    value.truncate(length);
                    room -= name.len() + length;
                    attributes.push(Xattr { name: name.to_vec(), value });
                }
                // Too long, or removed meanwhile.
                Ok(_) | Err(Errno::RANGE | Errno::NODATA) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        Ok(attributes)
    }
}

impl Listing {
    /// Processes the next name of the directory on top of the stack. Returns `None` if it is not listed.
    fn step(&mut self) -> Result<Option<ListedName>, Error> {
        let Some(frame) = self.frames.last_mut() else { return Ok(None) };
        let Some(name) = frame.next_name(&self.root, &self.wanted) else {
            self.frames.pop();
            return Ok(None);
        };
        let (name, stage) = (name?, frame.stage);
        let path = frame.path_of(&name)?;
        let stat = match frame.directory(&self.root) {
            Ok(directory) => rustix::fs::statat(directory, &*name, AtFlags::SYMLINK_NOFOLLOW),
            Err(errno) => Err(errno),
        };
        let stat = match (stat, stage) {
            (Ok(stat), _) => stat,
            // A pattern looks in many directories and need not find the name in all; a name may go during the listing.
            (Err(Errno::NOENT | Errno::NOTDIR), _) => return Ok(None),
            (Err(errno), _) => return Err(LISTING.failed(errno, format_args!("look at {path}; skipped"))),
        };
        match stage {
            Stage::Match(index) if index + 1 < self.wanted.len() => {
                let is_directory = self.followed(&path).is_some_and(|stat| kind_of(&stat) == ListedKind::Directory);
                if is_directory {
                    self.push(&path, Stage::Match(index + 1));
                }
                Ok(None)
            }
            Stage::Match(_) => Ok(Some(self.meet(path, stat, 0))),
            Stage::Below(level) => Ok(Some(self.meet(path, stat, level))),
        }
    }

    /// Creates the item of a name at `level`, and descends into a directory.
    fn meet(&mut self, path: RelPath, stat: Stat, level: usize) -> ListedName {
        self.has_found = true;
        let mut name = ListedName { kind: kind_of(&stat), target: None, stat, path: None };
        if name.kind == ListedKind::Symlink {
            name.target = self.target(&path);
            let followed = if self.symlinks == Symlinks::Followed { self.followed(&path) } else { None };
            if let Some(stat) = followed.filter(|stat| kind_of(stat) == ListedKind::File) {
                (name.kind, name.stat) = (ListedKind::File, stat);
            }
        }
        if name.kind == ListedKind::Directory && self.descends(level) {
            self.push(&path, Stage::Below(level + 1));
        }
        name.path = Some(path);
        name
    }

    fn descends(&self, level: usize) -> bool {
        self.depth.is_none_or(|depth| level < depth as usize)
    }

    /// Returns the metadata of the target of `path`; `None` if it does not exist or is not beneath the root.
    fn followed(&self, path: &RelPath) -> Option<Stat> {
        self.root.open_at(path.as_bytes(), OFlags::PATH, Mode::empty()).and_then(rustix::fs::fstat).ok()
    }

    fn target(&self, path: &RelPath) -> Option<Vec<u8>> {
        let link = self.root.open_at(path.as_bytes(), OFlags::PATH | OFlags::NOFOLLOW, Mode::empty()).ok()?;
        rustix::fs::readlinkat(link, c"", Vec::new()).ok().map(std::ffi::CString::into_bytes)
    }

    fn push(&mut self, path: &RelPath, stage: Stage) {
        if let Some(above) = self.frames.last_mut() {
            above.open = None;
        }
        self.frames.push(Frame::new(path.as_bytes().to_vec(), stage));
    }
}

impl Iterator for Listing {
    type Item = Result<ListedName, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if std::mem::take(&mut self.is_root_due) {
            self.has_found = true;
            if self.descends(0) {
                self.frames.push(Frame::new(Vec::new(), Stage::Below(1)));
            }
            let stat = rustix::fs::fstat(&self.root);
            let root = stat.map(|stat| ListedName { path: None, kind: ListedKind::Directory, target: None, stat });
            return Some(root.map_err(|errno| LISTING.failed(errno, format_args!("look at {}", self.root))));
        }
        while !self.frames.is_empty() {
            match self.step() {
                Ok(None) => {}
                Ok(Some(name)) => return Some(Ok(name)),
                Err(error) => {
                    self.has_found = true;
                    return Some(Err(error));
                }
            }
        }
        if std::mem::replace(&mut self.has_found, true) {
            return None;
        }
        let pattern = shown(&self.wanted.join(&b'/'));
        Some(Err(LISTING.refused(ErrorKind::NotFound, format!("nothing in {} matches {pattern}", self.root))))
    }
}

impl fmt::Debug for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listing({} in {})", shown(&self.wanted.join(&b'/')), self.root)
    }
}

fn kind_of(stat: &Stat) -> ListedKind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => ListedKind::File,
        FileType::Directory => ListedKind::Directory,
        FileType::Symlink => ListedKind::Symlink,
        _ => ListedKind::Other,
    }
}

/// Maximum bytes of the names of extended attributes: Linux's XATTR_LIST_MAX.
const XATTR_NAMES_BYTES_MAX: usize = 65_536;
