//! Location of a file on a web server: `http://` or `https://host[:port]/path[?query]`.
//!
//! What it does: reads URLs, resolves redirects, and derives file names. What it refuses to do: send a request, or show
//! a signed query in full. There is no clock.

use std::fmt;

use crate::error::{Error, ErrorKind, Phase, Scope};
use crate::file::{RelPath, drives_terminal};
use crate::location::percent_decode;

/// Maximum length of a URL, in bytes. Reason: signed URLs have about 2,000 bytes; servers accept at most 8,000.
pub const URL_BYTES_MAX: usize = 8192;

/// Number of query characters shown to users. Reason: a signed URL is a secret; this prefix of a query is not.
const QUERY_SHOWN: usize = 6;

/// A file on a web server.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct WebLocation {
    /// True for `https`.
    pub is_encrypted: bool,
    /// Host name or address, in lower case; an IPv6 address in brackets.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Path and query as sent, from the first slash.
    pub target: String,
}

impl WebLocation {
    /// Returns true if `text` starts like a web location.
    pub fn is_meant(text: &[u8]) -> bool {
        let begins = |scheme: &[u8]| text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
        begins(b"http://") || begins(b"https://")
    }

    /// Reads a URL. Errors: `Usage` if the URL is malformed or contains a user. Reason: everybody on the host can read
    /// credentials on a command line.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let wrong = |why: &str| {
            let shown: String = text.chars().take(100).take_while(|c| !matches!(c, '?' | '#')).collect();
            let text = format!("{shown}: {why}; expected https://host[:port]/path");
            Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text))
        };
        let Some((scheme, rest)) = text.split_once("://") else { return wrong("no scheme in front") };
        let is_encrypted = scheme.eq_ignore_ascii_case("https");
        if !is_encrypted && !scheme.eq_ignore_ascii_case("http") {
            return wrong("neither http nor https");
        }
        let rest = rest.split('#').next().unwrap_or_default();
        let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if authority.contains('@') {
            // The text omits the URL, because the part before the @ is a secret.
            let text = "a URL with a user in it: give the password in ~/.netrc, or a token";
            return Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text));
        }
        if text.len() > URL_BYTES_MAX {
            return wrong("longer than any server takes");
        }
        let bracket = authority.rfind(']').unwrap_or(0);
        let (host, port) = match authority[bracket..].rfind(':') {
            Some(colon) => (&authority[..bracket + colon], Some(&authority[bracket + colon + 1..])),
            None => (authority, None),
        };
        let is_host = |c: u8| c.is_ascii_alphanumeric() || b"-._".contains(&c);
        let is_address = host.starts_with('[') && host.ends_with(']') && host[1..].parse_address();
        if host.is_empty() || !is_address && !host.bytes().all(is_host) {
            return wrong("the host is not well formed");
        }
        let default = if is_encrypted { 443 } else { 80 };
        let port = match port {
            None | Some("") => default,
            Some(digits) => match digits.parse::<u16>() {
                Ok(port) if port != 0 && digits.bytes().all(|b| b.is_ascii_digit()) => port,
                _ => return wrong("the port is not a number from 1 to 65535"),
            },
        };
        let slash = if target.starts_with('/') { "" } else { "/" };
        let target = format!("{slash}{}", encoded(target));
        Ok(Self { is_encrypted, host: host.to_ascii_lowercase(), port, target })
    }

    /// Returns the name for the file: the last name of the path, percent-decoded.
    ///
    /// Errors: `Usage` if there is none, or if it is no valid file name.
    pub fn name(&self) -> Result<RelPath, Error> {
        let wrong = |why: &str| {
            let text = format!("{self}: {why}; name a file at the destination (DIR/NAME), or another URL");
            Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text)
        };
        let path = self.target.split('?').next().unwrap_or_default();
        let last = path.rsplit('/').next().unwrap_or_default();
        let name = percent_decode(last.as_bytes()).ok_or_else(|| wrong("a % without two hexadecimal digits"))?;
        if name.is_empty() {
            return Err(wrong(
                "ends with no name: sterna copies single files from web servers, and lists no directories",
            ));
        }
        if name.contains(&b'/') {
            return Err(wrong("its last name has a / in it"));
        }
        RelPath::new(&name).map_err(|_| wrong("its last name is none that a file can have"))
    }

    /// Resolves the `Location:` header of a response from this location (RFC 3986, section 5). Errors: as
    /// [`WebLocation::parse`].
    pub fn join(&self, reference: &str) -> Result<Self, Error> {
        if has_scheme(reference) {
            return Self::parse(reference);
        }
        if let Some(rest) = reference.strip_prefix("//") {
            return Self::parse(&format!("{}://{rest}", self.scheme()));
        }
        let reference = reference.split('#').next().unwrap_or_default();
        let path = self.target.split('?').next().unwrap_or_default();
        let joined = match reference.as_bytes().first() {
            Some(b'/') => reference.to_owned(),
            Some(b'?') => format!("{path}{reference}"),
            None => self.target.clone(),
            Some(_) => {
                let directory = path.rfind('/').map_or("/", |slash| &path[..=slash]);
                format!("{directory}{reference}")
            }
        };
        Ok(Self { target: without_dots(&encoded(&joined)), ..self.clone() })
    }

    /// Returns the URL for requests. A signed URL is a secret: for users, use [`fmt::Display`].
    pub fn url(&self) -> String {
        format!("{}{}", self.origin(), self.target)
    }

    /// Returns scheme, host and port: the origin to which credentials belong (RFC 6454).
    pub fn origin(&self) -> String {
        format!("{}://{}{}", self.scheme(), self.host, self.shown_port())
    }

    /// Returns the path without the query: the part that stays the same if a URL is signed again.
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    fn scheme(&self) -> &'static str {
        if self.is_encrypted { "https" } else { "http" }
    }

    fn shown_port(&self) -> String {
        match (self.is_encrypted, self.port) {
            (true, 443) | (false, 80) => String::new(),
            (_, port) => format!(":{port}"),
        }
    }
}

impl fmt::Display for WebLocation {
    /// Writes the URL for users: the query is cut, because it may be a signature.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin(), self.path())?;
        match self.target.split_once('?') {
            Some((_, query)) if query.len() > QUERY_SHOWN => write!(f, "?{}…", &query[..QUERY_SHOWN]),
            Some((_, query)) => write!(f, "?{query}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for WebLocation {
    /// Writes the same as [`fmt::Display`]: a signature must not reach a log either.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

trait AddressText {
    fn parse_address(&self) -> bool;
}

impl AddressText for str {
    /// Returns true if the text is an IPv6 address followed by a closing bracket.
    fn parse_address(&self) -> bool {
        self.strip_suffix(']').is_some_and(|address| address.parse::<std::net::Ipv6Addr>().is_ok())
    }
}

/// Percent-encodes characters of path and query that are invalid in a request: users write names with blanks and
/// accents.
fn encoded(target: &str) -> String {
    let mut out = String::with_capacity(target.len());
    for c in target.chars() {
        let is_plain = c.is_ascii_graphic() && !matches!(c, '"' | '<' | '>' | '\\' | '^' | '`' | '{' | '|' | '}');
        if is_plain && !drives_terminal(c) {
            out.push(c);
        } else {
            let mut bytes = [0; 4];
            c.encode_utf8(&mut bytes).bytes().for_each(|byte| out.push_str(&format!("%{byte:02X}")));
        }
    }
    out
}

/// Removes `.` and `..` from a path (RFC 3986, section 5.2.4); keeps the part after a `?`.
fn without_dots(target: &str) -> String {
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    let mut names: Vec<&str> = Vec::new();
    for name in path.split('/').skip(1) {
        match name {
            "." => {}
            ".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    let mut out = format!("/{}", names.join("/"));
    if let Some(query) = query {
        out.push('?');
        out.push_str(query);
    }
    out
}

/// Returns true if a reference starts with a scheme (RFC 3986, section 3.1) and is therefore absolute.
fn has_scheme(reference: &str) -> bool {
    let Some((scheme, _)) = reference.split_once(':') else { return false };
    let is_allowed = |c: u8| c.is_ascii_alphanumeric() || b"+-.".contains(&c);
    scheme.as_bytes().first().is_some_and(u8::is_ascii_alphabetic) && scheme.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn web(text: &str) -> WebLocation {
        WebLocation::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn urls_read_and_name_their_file() {
        for (text, url, name) in [
            ("https://data.example.org/a/b.h5", "https://data.example.org/a/b.h5", &b"b.h5"[..]),
            ("HTTP://Host:8080/x%20y?sig=1#frag", "http://host:8080/x%20y?sig=1", b"x y"),
            ("https://h:443/f", "https://h/f", b"f"),
            ("http://[::1]:80/a b", "http://[::1]/a%20b", b"a b"),
            ("https://h/d%C3%A9", "https://h/d%C3%A9", "dé".as_bytes()),
        ] {
            let read = web(text);
            assert_eq!(read.url(), url, "{text}");
            assert_eq!(read.name().unwrap().as_bytes(), name, "{text}");
            assert_eq!(web(&read.url()), read);
        }
    }

    #[test]
    fn names_that_could_leave_the_destination_are_refused() {
        for text in [
            "https://h",
            "https://h/",
            "https://h/a/",
            "https://h/..",
            "https://h/%2e%2e",
            "https://h/a%2fb",
            "https://h/%00",
            "https://h/a%zz",
            "https://h/.",
        ] {
            assert!(web(text).name().is_err(), "{text}");
        }
    }

    #[test]
    fn wrong_urls_are_refused_and_secrets_not_shown() {
        for text in [
            "https://",
            "https:///x",
            "https://h:0/x",
            "https://h:x/",
            "https://a b/",
            "https://[::1/x",
            "ftp://h/x",
            "https://::1/x",
        ] {
            assert!(WebLocation::parse(text).is_err(), "{text}");
        }
        let error = WebLocation::parse("https://user:hunter2@h/x").unwrap_err();
        assert!(!error.chain().contains("hunter2"));
        assert_eq!(web("https://h/f?X-Signature=0123456789").to_string(), "https://h/f?X-Sign…");
        assert_eq!(format!("{:?}", web("https://h/f?a=1")), "https://h/f?a=1");
    }

    #[test]
    fn redirects_are_resolved_as_browsers_do() {
        let from = web("https://h/a/b?q=1");
        for (reference, to) in [
            ("http://other/x", "http://other/x"),
            ("//other/x", "https://other/x"),
            ("/x?y", "https://h/x?y"),
            ("c", "https://h/a/c"),
            ("../c", "https://h/c"),
            ("?z", "https://h/a/b?z"),
        ] {
            assert_eq!(from.join(reference).unwrap().url(), to, "{reference}");
        }
        for reference in ["file:///etc/passwd", "ftp://h/x", "data:text/plain,x", "x:y"] {
            assert!(from.join(reference).is_err(), "{reference}");
        }
        assert_eq!(from.join("./x:y").unwrap().url(), "https://h/a/x:y");
    }
}
