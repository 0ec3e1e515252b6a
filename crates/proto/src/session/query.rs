//! Queries: questions about files at an agent, and changes of names there. No block travels.
//!
//! A [`Query`] is the request of a control session. The agent answers with one [`Answer`] for each name, in the control
//! log, so that answers survive the loss of lanes. The result ([`super::Conclusion`]) counts them. Refuses to open a
//! file, or to trust a length or a count that the peer sent.

use crate::digest::{Checks, FileDigests};
use crate::error::Error;
use crate::file::{FILE_BYTES_MAX, FileTime, RelPath};
use crate::session::values::{
    Overwrite, SOURCES_MAX, read_checks, read_digests, read_flag, read_many, read_overwrite, write_checks,
    write_digests, write_overwrite,
};
use crate::wire::{Reader, Writer};

/// Maximum number of name patterns in a filter. Reason: each is compared with each name that the agent lists.
pub const FILTER_NAMES_MAX: usize = 64;

/// Maximum number of extended attributes of one entry. Reason: Linux lists at most 64 KiB of names; archives use a few.
pub const XATTRS_MAX: usize = 64;

/// Maximum bytes of the extended attributes of one entry, names and values together. Reason: an area of fields holds 32
/// KiB.
pub const XATTRS_BYTES_MAX: usize = 24 << 10;

/// Maximum length of a user or group name, in bytes: Linux's LOGIN_NAME_MAX.
const OWNER_NAME_BYTES_MAX: usize = 256;

/// Maximum permission bits of a listed entry, with setuid, setgid and sticky. They are shown and never applied.
const LISTED_MODE_MAX: u64 = 0o7777;

/// Question about files at an agent, or change of names there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// Lists files, with their digests if asked. Needs the right to read.
    List {
        /// Paths, with wildcards.
        paths: Vec<Vec<u8>>,
        /// Extent of the list.
        options: Box<ListOptions>,
    },
    /// Deletes names. Needs the right to manage.
    Delete {
        /// Paths, without wildcards.
        paths: Vec<Vec<u8>>,
        /// Treatment of directories.
        directories: DeleteDirectories,
    },
    /// Renames a file or a directory within its root. Needs the right to manage.
    Rename {
        /// Present path.
        from: Vec<u8>,
        /// New path; its directory exists.
        to: Vec<u8>,
        /// Treatment of an existing file at the new path; `IfChanged` is `Always`.
        overwrite: Overwrite,
    },
}

/// Treatment of a directory that is to be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteDirectories {
    /// Only an empty directory is deleted.
    Empty,
    /// The contents are deleted first. Symlinks are deleted and never followed.
    WithContents,
}

/// Extent of a list of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListOptions {
    /// Levels below each path; 0: the path itself; `None`: all.
    pub depth: Option<u32>,
    /// Treatment of symlinks.
    pub symlinks: Symlinks,
    /// Filter of the answers. Directories that do not pass are still searched.
    pub filter: Filter,
    /// Attributes wanted in each answer.
    pub details: Details,
    /// Digest wanted of each regular file.
    pub digest: Option<DigestQuery>,
}

impl ListOptions {
    /// Returns a list down to `depth`, without filter, details or digests.
    pub fn new(depth: Option<u32>) -> Self {
        let (symlinks, filter, details) = (Symlinks::Listed, Filter::default(), Details::default());
        Self { depth, symlinks, filter, details, digest: None }
    }
}

/// Treatment of symlinks in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symlinks {
    /// Listed as symlinks.
    Listed,
    /// A symlink to a file beneath the root is listed as that file, as a copy would send it.
    Followed,
}

/// Filter of a list. An answer passes if all conditions that are given hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Patterns with wildcards; the last name matches one of them. Empty: every name.
    pub names: Vec<Vec<u8>>,
    /// Lowest size of a file, in bytes. A directory does not pass.
    pub size_min: Option<u64>,
    /// Highest size of a file, in bytes. A directory does not pass.
    pub size_max: Option<u64>,
    /// Earliest modification time.
    pub modified_from: Option<FileTime>,
    /// Modification times before this time pass.
    pub modified_before: Option<FileTime>,
}

impl Filter {
    /// Returns true if an entry passes. `matches` compares a pattern with a name.
    pub fn passes(&self, name: &[u8], entry: &Listed, matches: impl Fn(&[u8], &[u8]) -> bool) -> bool {
        let size = (entry.kind != ListedKind::Directory).then_some(entry.size);
        (self.names.is_empty() || self.names.iter().any(|pattern| matches(pattern, name)))
            && self.size_min.is_none_or(|min| size.is_some_and(|size| size >= min))
            && self.size_max.is_none_or(|max| size.is_some_and(|size| size <= max))
            && self.modified_from.is_none_or(|from| entry.mtime >= from)
            && self.modified_before.is_none_or(|before| entry.mtime < before)
    }
}

/// Set of attributes that an answer may carry, beyond those of every answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// User and group, by number and by name.
    pub owner: bool,
    /// Extended attributes of users, and POSIX access control lists.
    pub xattrs: bool,
}

/// Digest wanted of each file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DigestQuery {
    /// Digests in addition to BLAKE3.
    pub checks: Checks,
    /// Offset and length in bytes; `None`: the whole file. A file that ends before the end of the range is an error.
    pub range: Option<(u64, u64)>,
}

/// Answer about one name.
#[derive(Debug)]
pub enum Answer {
    /// A name of a list.
    Listed(Box<Listed>),
    /// The name was deleted, and its absence is durable.
    Deleted {
        /// Path of the name.
        path: RelPath,
    },
    /// A name, or the contents of a directory, could not be listed, read or deleted.
    Failed(Error),
}

/// Kind of a listed name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ListedKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symlink.
    Symlink,
    /// A device, FIFO or socket.
    Other,
}

/// Name of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Path at the agent, as a location names it; `None`: the agent's only root itself.
    pub path: Option<RelPath>,
    /// Kind.
    pub kind: ListedKind,
    /// Size in bytes; 0 for everything but regular files.
    pub size: u64,
    /// Modification time.
    pub mtime: FileTime,
    /// Permission bits, with setuid, setgid and sticky.
    pub mode: u16,
    /// Allocated bytes.
    pub allocated: u64,
    /// Attributes, as far as they were asked for and exist.
    pub attributes: Attributes,
    /// Digests of the file, or of the range that was asked for.
    pub digests: Option<FileDigests>,
}

/// Optional attributes of a name. On the wire each is a field that a reader may lack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Target of a symlink, also of one that was followed.
    pub target: Option<Vec<u8>>,
    /// User and group.
    pub owner: Option<Owner>,
    /// Extended attributes, sorted by name; POSIX access control lists are among them (`system.posix_acl_access`).
    pub xattrs: Vec<Xattr>,
    /// File system and inode of a file with several names: equal for the names of one file.
    pub hard_link: Option<(u64, u64)>,
}

/// Extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xattr {
    /// Name with its namespace, as `user.mission`.
    pub name: Vec<u8>,
    /// Value.
    pub value: Vec<u8>,
}

/// User and group of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Number of the user.
    pub user: u32,
    /// Number of the group.
    pub group: u32,
    /// Name of the user; empty if the host has none.
    pub user_name: Vec<u8>,
    /// Name of the group; empty if the host has none.
    pub group_name: Vec<u8>,
}

// Fields of an area of attributes.
const TARGET: u8 = 128;
const OWNER: u8 = 129;
const XATTRS: u8 = 130;
const HARD_LINK: u8 = 131;

// Fields of a filter.
const NAMES: u8 = 1;
const SIZE_MIN: u8 = 2;
const SIZE_MAX: u8 = 3;
const MODIFIED_FROM: u8 = 4;
const MODIFIED_BEFORE: u8 = 5;

impl Query {
    /// Returns the paths of the query.
    pub fn paths(&self) -> Vec<&[u8]> {
        match self {
            Self::List { paths, .. } | Self::Delete { paths, .. } => paths.iter().map(Vec::as_slice).collect(),
            Self::Rename { from, to, .. } => vec![from, to],
        }
    }

    pub(super) fn write(&self, w: &mut Writer) {
        match self {
            Self::List { paths, options: list } => {
                w.byte(1);
                write_paths(w, paths);
                w.integer(list.depth.map_or(0, |depth| u64::from(depth) + 1));
                w.byte(u8::from(list.symlinks == Symlinks::Followed));
                list.filter.write(w);
                w.byte(u8::from(list.details.owner));
                w.byte(u8::from(list.details.xattrs));
                w.byte(u8::from(list.digest.is_some()));
                if let Some(DigestQuery { checks, range }) = list.digest {
                    write_checks(w, checks);
                    w.byte(u8::from(range.is_some()));
                    range.iter().for_each(|(offset, length)| {
                        w.integer(*offset);
                        w.integer(*length);
                    });
                }
            }
            Self::Delete { paths, directories } => {
                w.byte(2);
                write_paths(w, paths);
                w.byte(u8::from(*directories == DeleteDirectories::WithContents));
            }
            Self::Rename { from, to, overwrite } => {
                w.byte(3);
                w.bytes(from);
                w.bytes(to);
                write_overwrite(w, *overwrite);
            }
        }
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(match r.byte()? {
            1 => Self::List {
                paths: read_paths(r)?,
                options: Box::new(ListOptions {
                    depth: r.integer_up_to(1 << 32)?.checked_sub(1).map(|depth| depth as u32),
                    symlinks: if read_flag(r)? { Symlinks::Followed } else { Symlinks::Listed },
                    filter: Filter::read(r)?,
                    details: Details { owner: read_flag(r)?, xattrs: read_flag(r)? },
                    digest: read_flag(r)?.then(|| DigestQuery::read(r)).transpose()?,
                }),
            },
            2 => Self::Delete {
                paths: read_paths(r)?,
                directories: match read_flag(r)? {
                    true => DeleteDirectories::WithContents,
                    false => DeleteDirectories::Empty,
                },
            },
            3 => Self::Rename { from: r.bytes()?.to_vec(), to: r.bytes()?.to_vec(), overwrite: read_overwrite(r)? },
            code => return Err(malformed(format_args!("kind {code}"))),
        })
    }
}

impl DigestQuery {
    fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        let checks = read_checks(r)?;
        let range = read_flag(r)?.then(|| {
            let offset = r.integer_up_to(FILE_BYTES_MAX)?;
            Ok::<_, Error>((offset, r.integer_up_to(FILE_BYTES_MAX - offset)?))
        });
        Ok(Self { checks, range: range.transpose()? })
    }
}

impl Filter {
    /// Writes an area. Its fields are mandatory: an agent that does not know one refuses the query, instead of an
    /// answer with too many names.
    fn write(&self, w: &mut Writer) {
        let mut area = Writer::default();
        if !self.names.is_empty() {
            area.field(NAMES, |w| write_paths(w, &self.names));
        }
        for (number, size) in [(SIZE_MIN, self.size_min), (SIZE_MAX, self.size_max)] {
            size.iter().for_each(|size| area.field(number, |w| w.integer(*size)));
        }
        for (number, time) in [(MODIFIED_FROM, self.modified_from), (MODIFIED_BEFORE, self.modified_before)] {
            time.iter().for_each(|time| area.field(number, |w| w.time(*time)));
        }
        w.bytes(&area.into_bytes());
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        let mut filter = Self::default();
        r.area(|number, value| {
            match number {
                NAMES => filter.names = read_many(value, FILTER_NAMES_MAX, |r| r.bytes().map(<[u8]>::to_vec))?,
                SIZE_MIN => filter.size_min = Some(value.integer()?),
                SIZE_MAX => filter.size_max = Some(value.integer()?),
                MODIFIED_FROM => filter.modified_from = Some(value.time()?),
                MODIFIED_BEFORE => filter.modified_before = Some(value.time()?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(filter)
    }
}

impl Answer {
    pub(super) fn write(&self, w: &mut Writer) {
        match self {
            Self::Listed(listed) => {
                w.byte(1);
                listed.write(w);
            }
            Self::Deleted { path } => {
                w.byte(2);
                w.bytes(path.as_bytes());
            }
            Self::Failed(error) => {
                w.byte(3);
                w.error(error);
            }
        }
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(match r.byte()? {
            1 => Self::Listed(Box::new(Listed::read(r)?)),
            2 => Self::Deleted { path: read_path(r.bytes()?)? },
            3 => Self::Failed(r.error()?),
            code => return Err(Error::protocol(format!("answer from the peer: unknown kind {code}"))),
        })
    }
}

impl Listed {
    fn write(&self, w: &mut Writer) {
        w.bytes(self.path.as_ref().map_or(b"", RelPath::as_bytes));
        w.byte(match self.kind {
            ListedKind::File => 0,
            ListedKind::Directory => 1,
            ListedKind::Symlink => 2,
            ListedKind::Other => 3,
        });
        w.integer(self.size);
        w.time(self.mtime);
        w.integer(u64::from(self.mode));
        w.integer(self.allocated);
        w.byte(u8::from(self.digests.is_some()));
        self.digests.iter().for_each(|digests| write_digests(w, digests));
        self.attributes.write(w);
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Self {
            path: match r.bytes()? {
                b"" => None,
                path => Some(read_path(path)?),
            },
            kind: match r.byte()? {
                0 => ListedKind::File,
                1 => ListedKind::Directory,
                2 => ListedKind::Symlink,
                3 => ListedKind::Other,
                code => return Err(Error::protocol(format!("answer from the peer: name of unknown kind {code}"))),
            },
            size: r.integer_up_to(FILE_BYTES_MAX)?,
            mtime: r.time()?,
            mode: r.integer_up_to(LISTED_MODE_MAX)? as u16,
            allocated: r.integer()?,
            digests: read_flag(r)?.then(|| read_digests(r)).transpose()?,
            attributes: Attributes::read(r)?,
        })
    }
}

impl Attributes {
    fn write(&self, w: &mut Writer) {
        let mut area = Writer::default();
        self.target.iter().for_each(|target| area.field(TARGET, |w| w.raw(target)));
        self.owner.iter().for_each(|owner| {
            area.field(OWNER, |w| {
                w.integer(u64::from(owner.user));
                w.integer(u64::from(owner.group));
                w.bytes(&owner.user_name);
                w.bytes(&owner.group_name);
            });
        });
        if !self.xattrs.is_empty() {
            area.field(XATTRS, |w| {
                w.integer(self.xattrs.len() as u64);
                self.xattrs.iter().for_each(|Xattr { name, value }| {
                    w.bytes(name);
                    w.bytes(value);
                });
            });
        }
        self.hard_link.iter().for_each(|(device, inode)| {
            area.field(HARD_LINK, |w| {
                w.integer(*device);
                w.integer(*inode);
            });
        });
        w.bytes(&area.into_bytes());
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        let mut attributes = Self::default();
        r.area(|number, value| {
            match number {
                TARGET => attributes.target = Some(value.rest().to_vec()),
                OWNER => attributes.owner = Some(Owner::read(value)?),
                XATTRS => {
                    attributes.xattrs = read_many(value, XATTRS_MAX, |r| {
                        Ok(Xattr { name: r.bytes()?.to_vec(), value: r.bytes()?.to_vec() })
                    })?;
                }
                HARD_LINK => attributes.hard_link = Some((value.integer()?, value.integer()?)),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(attributes)
    }
}

impl Owner {
    fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        let mut number = || r.integer_up_to(u64::from(u32::MAX)).map(|number| number as u32);
        let (user, group) = (number()?, number()?);
        let mut name = || match r.bytes()? {
            name if name.len() <= OWNER_NAME_BYTES_MAX => Ok(name.to_vec()),
            name => Err(Error::protocol(format!("answer from the peer: name of an owner with {} bytes", name.len()))),
        };
        Ok(Self { user, group, user_name: name()?, group_name: name()? })
    }
}

fn write_paths(w: &mut Writer, paths: &[Vec<u8>]) {
    w.integer(paths.len() as u64);
    paths.iter().for_each(|path| w.bytes(path));
}

fn read_paths(r: &mut Reader<'_>) -> Result<Vec<Vec<u8>>, Error> {
    let paths = read_many(r, SOURCES_MAX, |r| r.bytes().map(<[u8]>::to_vec))?;
    if paths.is_empty() { Err(malformed(format_args!("no path"))) } else { Ok(paths) }
}

fn read_path(bytes: &[u8]) -> Result<RelPath, Error> {
    RelPath::new(bytes).map_err(|e| Error::protocol(format!("answer from the peer: {}", e.text())))
}

fn malformed(what: std::fmt::Arguments<'_>) -> Error {
    Error::protocol(format!("query from the peer: {what}"))
}
