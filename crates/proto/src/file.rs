//! Description of a file in a session: its path beneath the destination, its size and times, and its cut into blocks.
//!
//! Checks paths and texts, and computes blocks. Refuses to open a file, or accept a path that could leave its root.
//! Values come in as arguments; there is no clock.

use std::borrow::Cow;
use std::fmt;

use crate::error::{Error, ErrorKind, Phase, Scope};
use crate::growth::{Growth, block_bytes_of};

/// Maximum length of a relative path, in bytes: Linux's PATH_MAX.
pub const PATH_BYTES_MAX: usize = 4096;

/// Maximum length of a name in a path, in bytes: Linux's NAME_MAX.
pub const NAME_BYTES_MAX: usize = 255;

/// Maximum size of a file, in bytes: keeps every offset and sum below 2^63 (Linux's `off_t`).
pub const FILE_BYTES_MAX: u64 = 1 << 62;

/// Maximum mode of an entry: read, write and execute for owner, group and others. Reason: setuid, setgid and sticky
/// bits are never copied, because they would act with the rights of the receiving user.
pub const MODE_MAX: u16 = 0o777;

/// Maximum size of a file that travels in a packed block, in bytes. Reason: a block of 1 MiB then holds at least four
/// files, which share the cost of the block. Larger files fill a block well enough alone.
pub const PACKED_FILE_BYTES_MAX: u64 = 256 << 10;

/// A path beneath a root: names joined by `/`, of any bytes except NUL. Never empty or absolute, and without `.` and
/// `..`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelPath(Box<[u8]>);

impl RelPath {
    /// Returns the path that consists of the digits of a number.
    pub fn of_number(number: usize) -> Self {
        Self(number.to_string().into_bytes().into())
    }

    /// Checks that `bytes` is a relative path.
    ///
    /// Errors: `Usage` for an absolute path, an empty name, `.` or `..`, a NUL byte, or excessive length.
    pub fn new(bytes: &[u8]) -> Result<Self, Error> {
        let wrong = |why: &str| {
            let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).into_owned();
            Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, format!("path {shown:?}: {why}")))
        };
        if bytes.is_empty() {
            return wrong("is empty");
        }
        if bytes.len() > PATH_BYTES_MAX {
            return wrong("is longer than 4096 bytes");
        }
        if bytes.contains(&0) {
            return wrong("holds a NUL byte");
        }
        for name in bytes.split(|&b| b == b'/') {
            match name {
                b"" => return wrong("is absolute or has an empty name"),
                b"." | b".." => return wrong("has a . or .. in it, which could leave the root"),
                _ if name.len() > NAME_BYTES_MAX => return wrong("has a name longer than 255 bytes"),
                _ => {}
            }
        }
        Ok(Self(bytes.into()))
    }

    /// Returns the path as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the last name of the path.
    pub fn name(&self) -> &[u8] {
        self.0.rsplit(|&b| b == b'/').next().unwrap_or(&self.0)
    }

    /// Returns the path of the parent directory; `None` at the root.
    pub fn parent(&self) -> Option<Self> {
        let end = self.0.iter().rposition(|&b| b == b'/')?;
        Some(Self(self.0[..end].into()))
    }

    /// Returns this path with `name` appended. Errors: as [`RelPath::new`].
    pub fn join(&self, name: &[u8]) -> Result<Self, Error> {
        let mut joined = self.0.to_vec();
        joined.push(b'/');
        joined.extend_from_slice(name);
        Self::new(&joined)
    }
}

impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&plain(&String::from_utf8_lossy(&self.0)))
    }
}

/// Returns an untrusted text for display: on one line, with terminal control characters escaped.
pub fn plain(text: &str) -> Cow<'_, str> {
    if !text.chars().any(drives_terminal) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if drives_terminal(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

/// Returns true if a character in an untrusted name or text must not reach a terminal. These are control characters
/// (C0, DEL, C1), line ends, and characters that change the text direction, with which `txt.exe` can read as `exe.txt`.
///
/// Source: Unicode Standard Annex 9, table of the explicit formatting characters and marks.
pub fn drives_terminal(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')
}

impl fmt::Debug for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Timestamp of a file system: seconds since the epoch (negative before it) and nanoseconds in [0, 10^9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileTime {
    /// Seconds since 1970-01-01 UTC.
    pub seconds: i64,
    /// Nanoseconds within the second.
    pub nanoseconds: u32,
}

/// Kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory; sent so that empty directories arrive too.
    Directory,
}

/// One entry of a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FileEntry {
    /// Path beneath the destination.
    pub path: RelPath,
    /// Kind of the entry.
    pub kind: EntryKind,
    /// Size in bytes; 0 for a directory.
    pub size: u64,
    /// Modification time at the source, preserved at the destination.
    pub mtime: FileTime,
    /// Permission bits at the source, at most [`MODE_MAX`].
    pub mode: u16,
    /// Allocated bytes at the source; less than the size if the file has holes.
    pub allocated: u64,
    /// Inode at the source: distinguishes a replaced source from a resumed one if size and time are equal.
    pub inode: u64,
    /// Version at the source, used only for comparison. For most files the change time: it reveals bytes written under
    /// a modification time that was set back. For a growing file, whose change time keeps changing, the creation time;
    /// 0 if unknown.
    pub version: u64,
    /// State and block size of a file that is sent while it grows. `None`: the block size follows from the file size.
    pub growth: Option<Growth>,
}

impl FileEntry {
    /// Returns the cut of this file into blocks.
    pub fn blocks(&self) -> BlockMap {
        self.growth.map_or_else(|| BlockMap::new(self.size), |growth| BlockMap::growing(self.size, growth))
    }

    /// Returns true if this file travels in a packed block.
    pub fn is_packed(&self) -> bool {
        self.kind == EntryKind::Directory || self.growth.is_none() && self.size <= PACKED_FILE_BYTES_MAX
    }

    /// Returns true if `other` is the same version of the same file, so that blocks of one may complete the other.
    pub fn same_version(&self, other: &Self) -> bool {
        if self.growth.is_some() || other.growth.is_some() {
            return self.same_growing_file(other);
        }
        let version = |entry: &Self| (entry.kind, entry.size, entry.mtime, entry.inode, entry.version);
        version(self) == version(other)
    }

    /// Returns true if the file may still grow.
    pub fn is_growing(&self) -> bool {
        self.growth.is_some_and(|growth| !growth.has_ended())
    }

    /// Returns true if `other` is the same growing file at any stage, so that the blocks of both are the same.
    pub fn same_growing_file(&self, other: &Self) -> bool {
        let (Some(ours), Some(theirs)) = (self.growth, other.growth) else { return false };
        let identity = |entry: &Self| (entry.kind, entry.inode, entry.version);
        ours.block_bytes() == theirs.block_bytes() && identity(self) == identity(other)
    }

    /// Returns true if `later` may follow this entry of a growing file: it has grown or has ended.
    pub fn grows_into(&self, later: &Self) -> bool {
        self.is_growing() && self.path == later.path && self.same_growing_file(later) && self.size <= later.size
    }
}

/// Cut of a file into blocks of equal size, a power of two; the last block is shorter.
///
/// A pure function of the size, or of the rate for a growing file, so that a later run cuts the same file in the same
/// way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockMap {
    size: u64,
    block_bytes: u64,
    /// True if more blocks follow.
    grows: bool,
}

impl BlockMap {
    /// Returns the cut of a file of `size` bytes.
    pub fn new(size: u64) -> Self {
        Self { size, block_bytes: block_bytes_of(size), grows: false }
    }

    /// Returns the cut of a growing file. `size` is the bytes in complete blocks, or the final size once the file has
    /// ended.
    pub fn growing(size: u64, growth: Growth) -> Self {
        Self { size, block_bytes: growth.block_bytes(), grows: !growth.has_ended() }
    }

    /// Returns true if the first block is the whole file, so that its digest is the digest of the file.
    pub fn is_one_block(&self) -> bool {
        self.count() == 1 && !self.grows
    }

    /// Returns the size of the file in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the size of every block except the last, in bytes.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Returns the number of blocks; an empty file has none.
    pub fn count(&self) -> u64 {
        self.size.div_ceil(self.block_bytes)
    }

    /// Returns the offset of block `index` in the file, in bytes. Range: `index < count()`.
    pub fn offset(&self, index: u64) -> u64 {
        index * self.block_bytes
    }

    /// Returns the length of block `index` in bytes. Range: `index < count()`.
    pub fn length(&self, index: u64) -> u64 {
        self.block_bytes.min(self.size - self.offset(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_could_leave_the_root_are_refused() {
        for bad in [&b""[..], b"/a", b"a/", b"a//b", b".", b"..", b"a/../b", b"../a", b"a/.", b"a\0b"] {
            assert!(RelPath::new(bad).is_err(), "{bad:?}");
        }
        assert!(RelPath::new(&[b'x'; 256]).is_err());
        assert!(RelPath::new(&b"abc/".repeat(2000)).is_err());
        for good in [&b"a"[..], b"a/b", b"...", b"a b", b"\xff\xfe", b"-rf", &[b'x'; 255]] {
            assert!(RelPath::new(good).is_ok(), "{good:?}");
        }
        let path = RelPath::new(b"a/b/c").unwrap();
        assert_eq!((path.name(), path.parent().unwrap().as_bytes()), (&b"c"[..], &b"a/b"[..]));
    }

    #[test]
    fn names_cannot_drive_a_terminal() {
        assert_eq!(RelPath::new(b"a\x1b[2Jb\n").unwrap().to_string(), "a\\u{1b}[2Jb\\n");
        assert_eq!(RelPath::new("a\u{202e}txt.b".as_bytes()).unwrap().to_string(), "a\\u{202e}txt.b");
        assert_eq!(RelPath::new("\u{3b1} \u{5d0}".as_bytes()).unwrap().to_string(), "\u{3b1} \u{5d0}");
    }

    #[test]
    fn blocks_cover_a_file_exactly_once() {
        let mib = 1 << 20;
        // Sizes one byte around each block boundary, and the largest files.
        for size in [0, 1, mib - 1, mib, mib + 1, 1024 * mib, 1024 * mib + 1, 5_000_000_000_000, FILE_BYTES_MAX] {
            let map = BlockMap::new(size);
            let count = map.count();
            if count > 0 {
                assert_eq!(map.offset(count - 1) + map.length(count - 1), size);
                assert!(map.length(count - 1) > 0 && map.length(0) <= 16 << 20);
            }
            assert_eq!(count == 0, size == 0);
        }
        assert_eq!((BlockMap::new(1 << 30).count(), BlockMap::new((1 << 30) + 1).count()), (1024, 513));
        assert_eq!(BlockMap::new(5_000_000_000_000).count(), 298_024);
    }
}
