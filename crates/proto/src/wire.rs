//! Encoding of values on the wire: variable-length integers, byte strings, and entries of a manifest.
//!
//! Integers are unsigned LEB128 (7 bits per byte, lowest first, at most 10 bytes). A byte string is its length, then
//! its bytes. Refuses to read beyond the frame that contains the value, so a peer cannot cause an allocation larger
//! than the data it has sent. There is no clock.
//!
//! Numbers of types and fields from [`OPTIONAL_FROM`] on are optional: a reader that does not know one skips what it
//! names. A *field* is a number (one byte) and a byte string. Fields stand at the end of a frame, message or header,
//! and in an *area*, a byte string that holds nothing else. Skipping copies nothing.

use crate::error::{Error, ErrorKind, Phase, Retry, Scope};
use crate::file::{EntryKind, FILE_BYTES_MAX, FileEntry, FileTime, MODE_MAX, RelPath, drives_terminal};
use crate::growth::Growth;
use crate::setting::Setting;

/// Lowest number of an optional type or field. Readers skip unknown numbers from here on, and refuse those below.
pub const OPTIONAL_FROM: u8 = 0x80;

/// Maximum length of an area of fields, in bytes. Reason: a packed block carries 64 KiB of entries. One more entry with
/// its path and a full area stays below the limit of a lane for headers (128 KiB).
pub const AREA_BYTES_MAX: usize = 32 << 10;

/// Field of an error: names of the settings that the user can change.
const ERROR_SETTINGS: u8 = 128;
/// Field of an error: its error number.
const ERROR_OS_CODE: u8 = 129;
/// Field of an error: fingerprint of the key that is not authorized.
const ERROR_REFUSED_KEY: u8 = 130;

/// Largest error number. Source: Linux, MAX_ERRNO.
const OS_CODE_MAX: u64 = 4095;

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

    /// Writes a timestamp.
    pub fn time(&mut self, time: FileTime) {
        self.integer(zigzag(time.seconds));
        self.integer(u64::from(time.nanoseconds));
    }

    /// Writes an entry of a manifest.
    pub fn entry(&mut self, entry: &FileEntry) {
        self.byte(match entry.kind {
            EntryKind::File => 0,
            EntryKind::Directory => 1,
        });
        self.bytes(entry.path.as_bytes());
        self.integer(entry.size);
        self.time(entry.mtime);
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
        self.empty_area();
    }

    /// Writes a field whose value `write` writes.
    pub fn field(&mut self, number: u8, write: impl FnOnce(&mut Self)) {
        let mut value = Self::default();
        write(&mut value);
        self.byte(number);
        self.bytes(&value.bytes);
    }

    /// Writes an area with the fields that `write` writes.
    pub fn area(&mut self, write: impl FnOnce(&mut Self)) {
        let mut fields = Self::default();
        write(&mut fields);
        self.bytes(&fields.bytes);
    }

    /// Writes an area without fields.
    pub fn empty_area(&mut self) {
        self.bytes(b"");
    }

    /// Writes an error: its four codes, its text with the texts of its causes, and an area with the settings, the
    /// error number and the refused key.
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
        let mut area = Self::default();
        if !error.settings().is_empty() {
            area.field(ERROR_SETTINGS, |w| {
                error.settings().iter().for_each(|setting| w.bytes(setting.name().as_bytes()));
            });
        }
        if let Some(code) = error.os_code().and_then(|code| u64::try_from(code).ok()) {
            area.field(ERROR_OS_CODE, |w| w.integer(code));
        }
        if let Some(fingerprint) = error.refused_key() {
            area.field(ERROR_REFUSED_KEY, |w| w.bytes(&fingerprint));
        }
        self.bytes(&area.bytes);
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

    /// Skips the fields that follow, up to the end. Errors: as [`Self::fields`].
    pub fn skip_fields(self) -> Result<(), Error> {
        self.fields(|_, _| Ok(false))
    }

    /// Skips an area. Errors: as [`Self::area`].
    pub fn skip_area(&mut self) -> Result<(), Error> {
        self.area(|_, _| Ok(false))
    }

    /// Reads an area of fields, as [`Self::fields`] does. Errors: also an area above [`AREA_BYTES_MAX`].
    pub fn area(&mut self, known: impl FnMut(u8, &mut Self) -> Result<bool, Error>) -> Result<(), Error> {
        let area = self.bytes()?;
        if area.len() > AREA_BYTES_MAX {
            let text = format!("fields from the peer: {} bytes, at most {AREA_BYTES_MAX}", area.len());
            return Err(Error::protocol(text));
        }
        Reader::new(area).fields(known)
    }

    /// Reads the fields that follow, up to the end. Passes the number and the value of each to `known`, which returns
    /// false for a number that it does not know.
    ///
    /// Errors: an unknown field that is not optional, and fields that are not in ascending order. The order makes each
    /// field unique, so there are at most 256.
    pub fn fields(mut self, mut known: impl FnMut(u8, &mut Self) -> Result<bool, Error>) -> Result<(), Error> {
        let mut least = 0u16;
        while !self.is_empty() {
            let number = self.byte()?;
            let mut value = Self::new(self.bytes()?);
            if u16::from(number) < least {
                return Err(Error::protocol(format!("fields from the peer: field {number} is out of order")));
            }
            least = u16::from(number) + 1;
            if known(number, &mut value)? {
                value.finish()?;
            } else if number < OPTIONAL_FROM {
                return Err(Error::protocol(format!("fields from the peer: unknown mandatory field {number}")));
            }
        }
        Ok(())
    }

    /// Reads a timestamp.
    pub fn time(&mut self) -> Result<FileTime, Error> {
        let seconds = unzigzag(self.integer()?);
        let nanoseconds = self.integer_up_to(999_999_999)? as u32;
        Ok(FileTime { seconds, nanoseconds })
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
        let mtime = self.time()?;
        let mode = self.mode(&path)?;
        let allocated = self.integer()?;
        let inode = self.integer()?;
        let version = self.integer()?;
        let growth = self.growth(kind, size)?;
        self.skip_area()?;
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

    /// Reads an error of the peer. An unknown kind keeps its code, scope, phase and retry.
    ///
    /// Errors: an unknown scope, phase or retry. These sets are complete, and handlers decide by them.
    pub fn error(&mut self) -> Result<Error, Error> {
        let unknown = |what: &str, code: u8| Error::protocol(format!("error from the peer: unknown {what} {code}"));
        let kind = ErrorKind::of_peer(self.byte()?);
        let code = self.byte()?;
        let scope = Scope::from_code(code).ok_or_else(|| unknown("scope", code))?;
        let code = self.byte()?;
        let phase = Phase::from_code(code).ok_or_else(|| unknown("phase", code))?;
        let code = self.byte()?;
        let retry = Retry::from_code(code).ok_or_else(|| unknown("retry", code))?;
        let text = self.bytes()?;
        if text.len() > ERROR_TEXT_BYTES_MAX {
            return Err(Error::protocol("error from the peer: its text is too long"));
        }
        // The text comes from the peer and goes to a terminal: replace control characters.
        let text: String =
            String::from_utf8_lossy(text).chars().map(|c| if drives_terminal(c) { '\u{fffd}' } else { c }).collect();
        let (mut settings, mut os_code, mut refused_key) = (Vec::new(), None, None);
        self.area(|number, value| {
            match number {
                ERROR_SETTINGS => settings = value.settings()?,
                ERROR_OS_CODE => os_code = Some(value.integer()?).filter(|code| (1..=OS_CODE_MAX).contains(code)),
                ERROR_REFUSED_KEY => refused_key = value.bytes()?.try_into().ok(),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let error = Error::new(kind, scope, phase, text).retry(retry).about(settings).from_peer();
        let os_code = os_code.and_then(|code| i32::try_from(code).ok());
        Ok(error.with_peer_os_code(os_code).refusing_key(refused_key))
    }

    /// Reads names of settings up to the end. Skips unknown names and repeated ones.
    fn settings(&mut self) -> Result<Vec<Setting>, Error> {
        let mut settings = Vec::new();
        while !self.is_empty() {
            let setting = Setting::of(self.bytes()?);
            settings.extend(setting.filter(|setting| !settings.contains(setting)));
        }
        Ok(settings)
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

    /// Returns the bytes of fields with these numbers and values.
    fn fields(all: &[(u8, &[u8])]) -> Vec<u8> {
        let mut writer = Writer::default();
        for (number, value) in all {
            writer.byte(*number);
            writer.bytes(value);
        }
        writer.into_bytes()
    }

    #[test]
    fn unknown_optional_fields_are_skipped_and_mandatory_ones_refused_by_number() {
        let skip = |all: &[(u8, &[u8])]| Reader::new(&fields(all)).skip_fields();
        assert!(skip(&[]).is_ok() && skip(&[(OPTIONAL_FROM, b""), (200, b"later"), (255, &[7; 1000])]).is_ok());
        let mandatory = skip(&[(OPTIONAL_FROM - 1, b"later")]).unwrap_err();
        assert!(mandatory.text().contains("unknown mandatory field 127"), "{mandatory}");
        assert!(skip(&[(200, b""), (200, b"")]).is_err(), "twice");
        assert!(skip(&[(201, b""), (200, b"")]).is_err(), "out of order");
        let bytes = fields(&[(200, b"later")]);
        assert!((1..bytes.len()).all(|length| Reader::new(&bytes[..length]).skip_fields().is_err()), "cut short");
    }

    #[test]
    fn known_fields_are_read_between_unknown_ones_and_to_their_end() {
        let read = |value: &[u8]| {
            let bytes = fields(&[(3, value), (200, b"later")]);
            let mut found = None;
            let outcome = Reader::new(&bytes).fields(|number, value| {
                if number == 3 {
                    found = Some(value.integer()?);
                }
                Ok(number == 3)
            });
            outcome.map(|()| found)
        };
        assert_eq!(read(&[9]).unwrap(), Some(9));
        assert!(read(&[9, 9]).is_err() && read(&[]).is_err());
    }

    #[test]
    fn an_area_has_a_limit() {
        let area = |value: usize| {
            let mut writer = Writer::default();
            writer.bytes(&fields(&[(200, &vec![0; value])]));
            Reader::new(&writer.into_bytes()).skip_area()
        };
        // A number and a length of three bytes precede the value.
        assert!(area(AREA_BYTES_MAX - 4).is_ok() && area(AREA_BYTES_MAX - 3).is_err());
    }

    #[test]
    fn an_error_keeps_its_settings_and_an_unknown_kind_its_code() {
        let settings: &[_] = &[Setting::Memory, Setting::Lanes];
        let mut writer = Writer::default();
        let error = Error::usage(settings, "too little").refusing_key(Some([7; 32]));
        writer.error(&error.caused_by(std::io::Error::from_raw_os_error(28)));
        let mut bytes = writer.into_bytes();
        bytes[0] = 99;
        let read = Reader::new(&bytes).error().unwrap();
        assert_eq!((read.kind, read.scope, read.retry), (ErrorKind::Other(99), Scope::Client, Retry::Never));
        assert_eq!((read.settings(), read.kind.code()), (settings, 99));
        assert_eq!((read.os_code(), read.refused_key()), (Some(28), Some([7; 32])));
        assert!(read.is_from_peer(), "no other end writes errors");
        for position in 1..4 {
            let mut bytes = bytes.clone();
            bytes[position] = 99;
            assert!(Reader::new(&bytes).error().unwrap_err().text().contains("99"));
        }
    }

    #[test]
    fn settings_of_a_newer_peer_are_skipped_and_each_counts_once() {
        let mut writer = Writer::default();
        for name in [&b"lanes"[..], b"warp", b"\xff", b"lanes", b"memory"] {
            writer.bytes(name);
        }
        let bytes = writer.into_bytes();
        assert_eq!(Reader::new(&bytes).settings().unwrap(), [Setting::Lanes, Setting::Memory]);
    }

    #[test]
    fn a_length_beyond_the_frame_is_an_error_and_allocates_nothing() {
        let mut writer = Writer::default();
        writer.integer(u64::MAX);
        assert!(Reader::new(&writer.into_bytes()).bytes().is_err());
    }
}
