//! Parts of locations: host and port, and percent escapes.

use std::fmt;
use std::str::FromStr;

/// Default port of an agent, TCP and UDP.
pub const DEFAULT_PORT: u16 = 7373;

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// Host name or address; an IPv6 address without its brackets.
    pub host: String,
    /// Port, TCP and UDP.
    pub port: u16,
}

impl FromStr for HostPort {
    type Err = &'static str;

    /// Reads `host`, `host:port`, `[::1]` or `[::1]:port`. The default port is [`DEFAULT_PORT`].
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text, DEFAULT_PORT)
    }
}

impl HostPort {
    /// Reads the same with the default port of another protocol.
    pub fn parse(text: &str, default_port: u16) -> Result<Self, &'static str> {
        const NO_HOST: &str = "the host is not a host name or an IP address (IPv6 in brackets)";
        let (host, port) = split_authority(text).ok_or(NO_HOST)?;
        let port = match port {
            None => default_port,
            Some(digits) => match digits.parse::<u16>() {
                Ok(port) if port != 0 && digits.bytes().all(|b| b.is_ascii_digit()) => port,
                _ => return Err("the port is not a number from 1 to 65535"),
            },
        };
        if !Self::is_host(host) {
            return Err(NO_HOST);
        }
        Ok(Self { host: host.to_owned(), port })
    }

    /// Returns true if `host` can be a host name or address.
    pub fn is_host(host: &str) -> bool {
        let is_odd = |b: u8| b.is_ascii_whitespace() || b.is_ascii_control() || b"@/".contains(&b);
        !host.is_empty() && !host.bytes().any(is_odd)
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

fn split_authority(authority: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, after) = rest.split_once(']')?;
        return match after {
            "" => Some((host, None)),
            _ => after.strip_prefix(':').map(|port| (host, Some(port))),
        };
    }
    match authority.split_once(':') {
        None => Some((authority, None)),
        // A second colon means an IPv6 address without brackets, where the port is ambiguous.
        Some((host, port)) => (!port.contains(':')).then_some((host, Some(port))),
    }
}

/// Decodes percent escapes; `None` if a `%` has no two hexadecimal digits.
pub(crate) fn percent_decode(bytes: &[u8]) -> Option<Vec<u8>> {
    let is_whole = |rest: &[u8]| rest.get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit));
    let is_valid = bytes.split(|&b| b == b'%').skip(1).all(is_whole);
    is_valid.then(|| percent_encoding::percent_decode(bytes).collect())
}
