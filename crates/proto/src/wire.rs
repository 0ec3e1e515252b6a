//! Encoding of values on the wire: variable-length integers, byte strings, and entries of a manifest.
//!
//! Integers are unsigned LEB128 (7 bits per byte, lowest first, at most 10 bytes). A byte string is its length, then
//! its bytes. What it refuses to do: read beyond the frame that contains the value, so a peer cannot cause an
//! allocation larger than the data it has sent. There is no clock.

use crate::error::{Error, ErrorKind, Phase, Retry, Scope};
use crate::file::{EntryKind, FILE_BYTES_MAX, FileEntry, FileTime, MODE_MAX, RelPath, drives_terminal};
use crate::growth::Growth;

/// Maximum length of an error text on the wire, in bytes; longer texts are cut. Reason: room for two paths and a
/// sentence.
pub const ERROR_TEXT_BYTES_MAX: usize = 10_000;

/// Writes consecutive values.
#[derive(Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Returns the written bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Returns the number of written bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns true if nothing has been written.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Writes one byte.
    pub fn byte(&mut self, value: u8) {
        self.bytes.push(value);
    }

    /// Writes an integer.
    pub fn integer(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    /// Writes a byte string, preceded by its length.
    pub fn bytes(&mut self, value: &[u8]) {
        self.integer(value.len() as u64);
        self.bytes.extend_from_slice(value);
    }

    /// Writes bytes whose length the reader knows.
    pub fn raw(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
    }

    /// Writes an entry of a manifest.
    pub fn entry(&mut self, entry: &FileEntry) {
        self.byte(match entry.kind {
            EntryKind::File => 0,
            EntryKind::Directory => 1,
        });
        self.bytes(entry.path.as_bytes());
        self.integer(entry.size);
        self.integer(zigzag(entry.mtime.seconds));
        self.integer(u64::from(entry.mtime.nanoseconds));
        self.integer(u64::from(entry.mode));
        self.integer(entry.allocated);
        self.integer(entry.inode);
        self.integer(entry.version);
        match entry.growth {
            None => self.byte(0),
            Some(growth) => {
                let (ended, block_log2) = growth.to_codes();
                self.byte(1 + ended);
                self.byte(block_log2);
            }
        }
    }

    /// Writes an error: its four codes, then its text with the texts of its causes.
    pub fn error(&mut self, error: &Error) {
        for code in [error.kind.code(), error.scope.code(), error.phase.code(), error.retry.code()] {
            self.byte(code);
        }
        let text = error.chain();
        let mut end = text.len().min(ERROR_TEXT_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.bytes(&text.as_bytes()[..end]);
    }
}

/// Reads consecutive values. Every read returns a protocol error if the bytes do not contain the value.
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Returns a reader of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Returns true if everything has been read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Ends the reading. Errors: bytes are left over.
    pub fn finish(self) -> Result<(), Error> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(Error::protocol(format!("frame from the peer: {} bytes left over", self.rest.len())))
    }

    /// Returns all remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Reads `count` bytes.
    pub fn raw(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let (head, tail) =
            self.rest.split_at_checked(count).ok_or_else(|| Error::protocol("frame from the peer: cut short"))?;
        self.rest = tail;
        Ok(head)
    }

    /// Reads an array of known length.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut out = [0; N];
        out.copy_from_slice(self.raw(N)?);
        Ok(out)
    }

    /// Reads one byte.
    pub fn byte(&mut self) -> Result<u8, Error> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Reads an integer. Errors: longer than 10 bytes, or above 2^64 - 1.
    pub fn integer(&mut self) -> Result<u64, Error> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Error::protocol("frame from the peer: an integer above 2^64"))
    }

    /// Reads an integer. Errors: above `max`.
    pub fn integer_up_to(&mut self, max: u64) -> Result<u64, Error> {
        let value = self.integer()?;
        if value > max {
            return Err(Error::protocol(format!("frame from the peer: {value} where at most {max} is allowed")));
        }
        Ok(value)
    }

    /// Reads a byte string.
    pub fn bytes(&mut self) -> Result<&'a [u8], Error> {
        let len = self.integer()?;
        // A length above usize exceeds any frame, so the read below reports the error.
        self.raw(usize::try_from(len).unwrap_or(usize::MAX))
    }

    /// Reads an entry of a manifest.
    pub fn entry(&mut self) -> Result<FileEntry, Error> {
        let kind = match self.byte()? {
            0 => EntryKind::File,
            1 => EntryKind::Directory,
            code => return Err(Error::protocol(format!("manifest from the peer: entry of unknown kind {code}"))),
        };
        let path = RelPath::new(self.bytes()?);
        let path = path.map_err(|e| Error::protocol(format!("entry from the peer: {}", e.text())))?;
        let size = self.integer_up_to(FILE_BYTES_MAX)?;
        if kind == EntryKind::Directory && size != 0 {
            return Err(Error::protocol(format!("manifest from the peer: directory {path} of {size} bytes")));
        }
        let seconds = unzigzag(self.integer()?);
        let nanoseconds = self.integer_up_to(999_999_999)? as u32;
        let mode = self.mode(&path)?;
        let allocated = self.integer()?;
        let inode = self.integer()?;
        let version = self.integer()?;
        let growth = self.growth(kind, size)?;
        let mtime = FileTime { seconds, nanoseconds };
        Ok(FileEntry { path, kind, size, mtime, mode, allocated, inode, version, growth })
    }

    /// Reads the permission bits of the entry `path`.
    ///
    /// Errors: `Protocol` above [`MODE_MAX`]. A setuid file from a peer would run with the rights of the receiving
    /// user.
    fn mode(&mut self, path: &RelPath) -> Result<u16, Error> {
        let mode = self.integer()?;
        if mode > u64::from(MODE_MAX) {
            let text = format!(
                "manifest from the peer: {path} has mode {mode:o}; modes above {MODE_MAX:o} (setuid, setgid, sticky) \
                 are refused, and the copy ends"
            );
            return Err(Error::protocol(text));
        }
        Ok(mode as u16)
    }

    /// Reads the growth of an entry of `size`, if any.
    fn growth(&mut self, kind: EntryKind, size: u64) -> Result<Option<Growth>, Error> {
        let code = self.byte()?;
        match (code, kind) {
            (0, _) => Ok(None),
            (1 | 2, EntryKind::File) => Growth::from_codes(code == 2, self.byte()?, size).map(Some),
            _ => Err(Error::protocol(format!("entry from the peer: growth of code {code}"))),
        }
    }

    /// Reads an error of the peer.
    pub fn error(&mut self) -> Result<Error, Error> {
        let unknown = || Error::protocol("error from the peer: unknown code");
        let kind = ErrorKind::from_code(self.byte()?).ok_or_else(unknown)?;
        let scope = Scope::from_code(self.byte()?).ok_or_else(unknown)?;
        let phase = Phase::from_code(self.byte()?).ok_or_else(unknown)?;
        let retry = Retry::from_code(self.byte()?).ok_or_else(unknown)?;
        let text = self.bytes()?;
        if text.len() > ERROR_TEXT_BYTES_MAX {
            return Err(Error::protocol("error from the peer: its text is too long"));
        }
        // The text comes from the peer and goes to a terminal: replace control characters.
        let text: String =
            String::from_utf8_lossy(text).chars().map(|c| if drives_terminal(c) { '\u{fffd}' } else { c }).collect();
        Ok(Error::new(kind, scope, phase, text).retry(retry))
    }
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_read_back_at_every_edge() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut writer = Writer::default();
            writer.integer(value);
            let bytes = writer.into_bytes();
            let mut reader = Reader::new(&bytes);
            assert_eq!(reader.integer().unwrap(), value);
            reader.finish().unwrap();
            assert!(Reader::new(&bytes[..bytes.len() - 1]).integer().is_err());
        }
        assert!(Reader::new(&[0xff; 11]).integer().is_err());
        for value in [i64::MIN, -1, 0, 1, i64::MAX] {
            assert_eq!(unzigzag(zigzag(value)), value);
        }
    }

    #[test]
    fn a_length_beyond_the_frame_is_an_error_and_allocates_nothing() {
        let mut writer = Writer::default();
        writer.integer(u64::MAX);
        assert!(Reader::new(&writer.into_bytes()).bytes().is_err());
    }
}
