//! Locations of files: a local path, `sterna://host[:port]/path`, or a URL of a web server.
//!
//! Reads and writes locations as text. Refuses to resolve a name or open a file. There is no clock.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

pub use crate::host_port::{DEFAULT_PORT, HostPort};

use crate::error::{Error, ErrorKind, Phase, Scope};
use crate::host_port::percent_decode;
use crate::web::WebLocation;

/// Maximum length of a location, in bytes: a path of Linux's PATH_MAX with every byte percent-encoded, and a host.
pub const LOCATION_BYTES_MAX: usize = 4096 * 3 + 512;

/// Bytes that are shown percent-encoded in the path of an agent. Wildcards are not: users copy what they see.
const NEVER_IN_A_PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/')
    .remove(b'*')
    .remove(b'?')
    .remove(b'[')
    .remove(b']')
    .remove(b'{')
    .remove(b'}')
    .remove(b'!')
    .remove(b',')
    .remove(b'+')
    .remove(b'=')
    .remove(b'@')
    .remove(b':');

/// Source or destination of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A path on this host.
    Local(PathBuf),
    /// A path at an agent.
    Remote(RemoteLocation),
    /// A file on a web server.
    Web(WebLocation),
}

/// A path at an agent: `sterna://host[:port]/path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteLocation {
    /// Host name or address; an IPv6 address without its brackets.
    pub host: String,
    /// Port, TCP and UDP.
    pub port: u16,
    /// Path beneath the agent's root, percent-decoded, without the leading slash. Any bytes except NUL.
    pub path: Vec<u8>,
}

impl Location {
    /// Reads a location from the command line.
    ///
    /// Anything that does not start with a scheme (`xyz://`) is a local path, byte for byte. Errors: `Usage` for an
    /// unknown scheme, a missing host, a bad port or a bad percent escape.
    pub fn parse(text: &OsStr) -> Result<Self, Error> {
        let bytes = text.as_bytes();
        if bytes.is_empty() {
            let text = "an empty location: expected a local path, sterna://host[:port]/path, or the URL of a file";
            return Err(usage(text.to_owned()));
        }
        let Some(scheme_end) = find_scheme(bytes) else {
            return Ok(Self::Local(PathBuf::from(text)));
        };
        if WebLocation::is_meant(bytes) {
            let not_text = || usage("a URL that is not UTF-8: write its other bytes as %XX".to_owned());
            let text = text.to_str().ok_or_else(not_text)?;
            return WebLocation::parse(text).map(Self::Web);
        }
        if &bytes[..scheme_end] != b"sterna" {
            return Err(usage(format!(
                "{}: only local paths, sterna://host[:port]/path, and https:// or http:// as a source can be copied",
                text.to_string_lossy()
            )));
        }
        RemoteLocation::parse(bytes).map(Self::Remote)
    }
}

impl RemoteLocation {
    /// Returns host and port of the agent.
    pub fn host_port(&self) -> HostPort {
        HostPort { host: self.host.clone(), port: self.port }
    }

    /// Reads `sterna://host[:port]/path`; see [`Location::parse`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).into_owned();
        let wrong = |why: &str| usage(format!("{shown}: {why}; expected sterna://host[:port]/path"));
        if bytes.len() > LOCATION_BYTES_MAX {
            return Err(wrong("longer than any path can be"));
        }
        let rest = bytes.strip_prefix(b"sterna://").ok_or_else(|| wrong("no sterna:// in front"))?;
        let slash = rest.iter().position(|&b| b == b'/').unwrap_or(rest.len());
        let (authority, path) = rest.split_at(slash);
        let authority = std::str::from_utf8(authority).map_err(|_| wrong("the host is not text"))?;
        let HostPort { host, port } = authority.parse().map_err(wrong)?;
        let path = percent_decode(path.strip_prefix(b"/").unwrap_or(path))
            .ok_or_else(|| wrong("a % is not followed by two hexadecimal digits"))?;
        if path.contains(&0) {
            return Err(wrong("a path cannot hold a NUL byte"));
        }
        Ok(Self { host, port, path })
    }
}

/// Returns the length of the scheme in front of `://`, if `bytes` starts with one (RFC 3986, section 3.1).
fn find_scheme(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(3).position(|w| w == b"://")?;
    let scheme = &bytes[..end];
    let well_formed = scheme.first().is_some_and(u8::is_ascii_alphabetic)
        && scheme.iter().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(b));
    well_formed.then_some(end)
}

fn usage(text: String) -> Error {
    Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text)
}

impl fmt::Display for RemoteLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "sterna://[{}]", self.host)
        } else {
            write!(f, "sterna://{}", self.host)
        }?;
        if self.port != DEFAULT_PORT {
            write!(f, ":{}", self.port)?;
        }
        write!(f, "/{}", percent_encode(&self.path, NEVER_IN_A_PATH))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(path) => write!(f, "{}", path.display()),
            Self::Remote(remote) => remote.fmt(f),
            Self::Web(web) => web.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(text: &str) -> RemoteLocation {
        match Location::parse(OsStr::new(text)) {
            Ok(Location::Remote(remote)) => remote,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn remote_locations_read_and_show() {
        for (text, host, port, path) in [
            ("sterna://gs1/pass/a.h5", "gs1", 7373, &b"pass/a.h5"[..]),
            ("sterna://gs1:99/", "gs1", 99, b""),
            ("sterna://gs1", "gs1", 7373, b""),
            ("sterna://[::1]:8000/x", "::1", 8000, b"x"),
            ("sterna://h/a%20b%ff", "h", 7373, b"a b\xff"),
        ] {
            let read = remote(text);
            assert_eq!((read.host.as_str(), read.port, read.path.as_slice()), (host, port, path), "{text}");
            assert_eq!(remote(&read.to_string()), read);
        }
    }

    #[test]
    fn what_is_no_url_is_a_local_path() {
        for text in ["a", "/a/b", "./x://y", "c:\\x", "a b"] {
            assert_eq!(Location::parse(OsStr::new(text)).unwrap(), Location::Local(text.into()));
        }
    }

    #[test]
    fn wrong_locations_are_refused() {
        for text in [
            "",
            "ftp://h/x",
            "https://u:p@h/x",
            "sterna://",
            "sterna:///x",
            "sterna://h:0/x",
            "sterna://h:+7/x",
            "sterna://h:70000/x",
            "sterna://::1/x",
            "sterna://[::1/x",
            "sterna://h/%2",
            "sterna://h/%zz",
            "sterna://h/%00",
            "sterna://u@h/x",
        ] {
            assert!(Location::parse(OsStr::new(text)).is_err(), "{text}");
        }
    }
}
