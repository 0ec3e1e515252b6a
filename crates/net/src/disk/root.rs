//! A directory that no path resolved beneath it can leave.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use sterna_proto::{Error, ErrorKind, RelPath};

use super::fault::{At, LISTING, PREPARING};
use super::pattern::has_wildcards;
use crate::sink::Place;

/// Access that is allowed beneath a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Files may be read.
    ReadOnly,
    /// Files may be read, created and replaced.
    ReadWrite,
}

/// Author of the paths, which decides how far a symlink may lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Authority {
    /// A peer: no path leaves the directory.
    Peer,
    /// The user who gave the path on the command line: symlinks may lead anywhere.
    Person,
}

/// Directory beneath which paths are resolved; cheap to clone.
///
/// The kernel resolves the paths (`openat2` with `RESOLVE_BENEATH`). It refuses absolute symlinks, and symlinks or `..`
/// that lead out, without a race. Needs Linux 5.6.
#[derive(Clone)]
pub struct Root {
    inner: Arc<Inner>,
    /// Name of the root in error texts.
    name: Arc<str>,
}

struct Inner {
    directory: OwnedFd,
    access: Access,
    authority: Authority,
}

impl Root {
    /// Opens the directory `path` for peers.
    ///
    /// Errors: `NotFound`, `Denied`. `path` may be a symlink or contain symlinks, because the operator gave it.
    pub fn open(path: &Path, access: Access) -> Result<Self, Error> {
        Self::open_with(path, access, Authority::Peer)
    }

    /// Opens the root for a source path that the user gave. Also returns the pattern for [`Root::expand`].
    ///
    /// The root is the directory that holds the named file, or the directory before the first wildcard. Symlinks are
    /// followed wherever they lead: the user could read those files anyway.
    pub fn for_local_source(path: &[u8]) -> Result<(Self, Vec<u8>), Error> {
        let trimmed = trim_slashes(path);
        let last = trimmed.rsplit(|&b| b == b'/').next().unwrap_or_default();
        // The last names `.`, `..` and `/` stand for the contents of a directory.
        if matches!(last, b"" | b"." | b"..") {
            let directory: &[u8] = if path.is_empty() { b"." } else { path };
            return Ok((Self::open_local(directory, Access::ReadOnly, Authority::Person)?, b".".to_vec()));
        }
        let exists = as_path(trimmed).symlink_metadata().is_ok();
        let mut split = trimmed.len() - last.len();
        if !exists {
            let mut start = 0;
            for name in trimmed.split(|&b| b == b'/') {
                if has_wildcards(name) {
                    split = start;
                    break;
                }
                start += name.len() + 1;
            }
        }
        let (parent, pattern) = trimmed.split_at(split);
        let parent: &[u8] = if parent.is_empty() { b"." } else { parent };
        Ok((Self::open_local(parent, Access::ReadOnly, Authority::Person)?, pattern.to_vec()))
    }

    /// Opens the root for a destination path that the user gave. Also returns the path for `Destination::resolve`.
    ///
    /// The root is the deepest directory of `path` that exists. Files that a peer sends cannot leave it.
    pub fn for_local_destination(path: &[u8]) -> Result<(Self, Vec<u8>), Error> {
        let mut split = path.len();
        loop {
            let directory: &[u8] = if split == 0 { b"." } else { &path[..split] };
            if as_path(directory).is_dir() {
                let root = Self::open_local(directory, Access::ReadWrite, Authority::Peer)?;
                return Ok((root, path[split..].iter().skip_while(|&&b| b == b'/').copied().collect()));
            }
            if split == 0 {
                return Err(PREPARING.refused(ErrorKind::NotFound, "the current directory does not exist"));
            }
            let trimmed = trim_slashes(&path[..split]);
            split = trimmed.iter().rposition(|&b| b == b'/').map_or(0, |slash| slash + 1);
        }
    }

    /// Opens the directory of a file path. The user wrote no directory for `.`: error texts name it the current
    /// directory.
    fn open_local(directory: &[u8], access: Access, authority: Authority) -> Result<Self, Error> {
        let root = Self::open_with(as_path(directory), access, authority)?;
        Ok(if directory == b"." { root.called("the current directory") } else { root })
    }

    fn open_with(path: &Path, access: Access, authority: Authority) -> Result<Self, Error> {
        let at = if access == Access::ReadOnly { LISTING } else { PREPARING };
        let shown = path.display();
        let directory = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| at.failed(errno, format_args!("open directory {shown}")))?;
        let root = Self { inner: Arc::new(Inner { directory, access, authority }), name: shown.to_string().into() };
        root.open_at(b".", OFlags::PATH, Mode::empty())
            .map_err(|errno| at.failed(errno, format_args!("resolve paths beneath {shown}")))?;
        Ok(root)
    }

    /// Returns the same root with another name in error texts. Reason: peers read these texts, and need not know where
    /// the root is.
    pub fn called(self, name: &str) -> Self {
        Self { name: name.into(), ..self }
    }

    /// Returns true if both are the same opened directory.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Returns the place `path` beneath this root.
    pub(super) fn place(&self, path: RelPath) -> Place {
        Place::new(Arc::clone(&self.inner) as _, path)
    }

    /// Returns the access that is allowed beneath the root.
    pub fn access(&self) -> Access {
        self.inner.access
    }

    /// Opens `path` beneath the root; an empty path is the root itself.
    pub(super) fn open_at(&self, path: &[u8], flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
        let resolve = match self.inner.authority {
            Authority::Peer => ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
            Authority::Person => ResolveFlags::NO_MAGICLINKS,
        };
        let path = if path.is_empty() { b"." } else { path };
        for _ in 0..RESOLVE_TRIES_MAX {
            match rustix::fs::openat2(&self.inner.directory, path, flags | OFlags::CLOEXEC, mode, resolve) {
                // A rename elsewhere prevented the kernel from deciding if the path leaves the root; it asks for
                // another try.
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return other,
            }
        }
        Err(Errno::AGAIN)
    }

    /// Opens the directory `path` (empty: the root itself), to list it, to create files in it, and to sync it.
    pub(super) fn open_directory(&self, path: &[u8]) -> rustix::io::Result<OwnedFd> {
        self.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
    }

    /// Opens the directory `path` (empty: the root). Creates this directory and its parents if they are missing, and
    /// reports the parent of each new one to `made`.
    ///
    /// Errors: those of the system, as errors of `at`. `Denied` if a symlink on the way leads out of the root.
    pub(super) fn make_directory(&self, path: &[u8], at: At, made: &mut dyn FnMut(&[u8])) -> Result<OwnedFd, Error> {
        let mut missing: Vec<usize> = Vec::new();
        let mut end = path.len();
        let mut directory = loop {
            match self.open_directory(&path[..end]) {
                Ok(directory) => break directory,
                Err(Errno::NOENT) if end > 0 => {
                    missing.push(end);
                    end = path[..end].iter().rposition(|&b| b == b'/').unwrap_or(0);
                }
                Err(errno) => return Err(self.not_made(errno, &path[..end], at)),
            }
        };
        while let Some(next) = missing.pop() {
            let name = &path[if end == 0 { 0 } else { end + 1 }..next];
            match rustix::fs::mkdirat(&directory, name, Mode::from_raw_mode(0o777)) {
                Ok(()) => made(&path[..end]),
                // Another thread or session created it meanwhile.
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(self.not_made(errno, &path[..next], at)),
            }
            directory = self.open_directory(&path[..next]).map_err(|errno| self.not_made(errno, &path[..next], at))?;
            end = next;
        }
        Ok(directory)
    }

    /// Returns the error for a directory that could not be created or opened.
    pub(super) fn not_made(&self, errno: Errno, path: &[u8], at: At) -> Error {
        at.failed(errno, format_args!("make directory {:?} in {self}", String::from_utf8_lossy(path)))
    }

    /// Opens the file `path` for reading. Does not wait for the other end of a FIFO.
    pub(super) fn open_readable(&self, path: &RelPath) -> rustix::io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        self.open_at(path.as_bytes(), flags, Mode::empty()).map(File::from)
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.directory.as_fd()
    }
}

impl fmt::Display for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl fmt::Debug for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Root({:?}, {:?})", self.name, self.inner.access)
    }
}

/// Maximum number of tries to resolve a path while renames race with it. Guess: each further try needs another rename
/// within the same microseconds.
const RESOLVE_TRIES_MAX: u32 = 64;

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

fn trim_slashes(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&b| b != b'/').map_or(0, |last| last + 1);
    &path[..end]
}
