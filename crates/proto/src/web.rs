//! Location of a file on a web server: `http://` or `https://host[:port]/path[?query]`.
//!
//! Reads URLs, resolves redirects, and derives file names. Refuses to send a request, or show a signed query in full.
//! There is no clock.

use std::cell::Cell;
use std::fmt;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use url::{Host, ParseError, Position, SyntaxViolation, Url};

use crate::error::{Error, ErrorKind, Phase, Scope};
use crate::file::RelPath;
use crate::host_port::percent_decode;

/// Maximum length of a URL as sent, in bytes. Reason: signed URLs have about 2,000 bytes; servers accept at most 8,000.
pub const URL_BYTES_MAX: usize = 8192;

/// Number of query characters shown to users. Reason: a signed URL is a secret; this prefix of a query is not.
const QUERY_SHOWN: usize = 6;

/// ASCII characters that no URL contains (RFC 3986, section 2). They are sent percent-encoded, because users write
/// names with blanks, and servers such as Tomcat refuse a request with one of them.
const NEVER_IN_A_URL: &AsciiSet =
    &CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>').add(b'\\').add(b'^').add(b'`').add(b'{').add(b'|').add(b'}');

/// A file on a web server.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct WebLocation {
    /// Scheme `http` or `https`; a host; no user and no fragment.
    url: Url,
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
        Self::read(None, text)
    }

    /// Resolves the `Location:` header of a response from this location (RFC 3986, section 5). Errors: as
    /// [`WebLocation::parse`].
    pub fn join(&self, reference: &str) -> Result<Self, Error> {
        Self::read(Some(&self.url), reference)
    }

    fn read(base: Option<&Url>, text: &str) -> Result<Self, Error> {
        let usage = |text: String| Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text));
        let wrong = |why: &str| {
            let shown: String = text.chars().take(100).take_while(|c| !matches!(c, '?' | '#')).collect();
            usage(format!("{shown}: {why}; expected https://host[:port]/path"))
        };
        let (has_user, has_slashes) = (Cell::new(false), Cell::new(true));
        let note = |violation| match violation {
            SyntaxViolation::EmbeddedCredentials => has_user.set(true),
            SyntaxViolation::ExpectedDoubleSlash => has_slashes.set(false),
            _ => {}
        };
        let encoded = utf8_percent_encode(text, NEVER_IN_A_URL).to_string();
        let parsed = Url::options().base_url(base).syntax_violation_callback(Some(&note)).parse(&encoded);
        if has_user.get() {
            // The text omits the URL, because the part before the @ is a secret.
            return usage("a URL with a user in it: give the password in ~/.netrc, or a token".to_owned());
        }
        let mut url = match parsed {
            Ok(url) => url,
            Err(ParseError::RelativeUrlWithoutBase) => return wrong("no scheme in front"),
            Err(ParseError::InvalidPort) => return wrong(BAD_PORT),
            Err(_) => return wrong(BAD_HOST),
        };
        if !matches!(url.scheme(), "http" | "https") {
            return wrong("neither http nor https");
        }
        if !has_slashes.get() || !url.host().is_some_and(|host| is_well_formed(&host)) {
            return wrong(BAD_HOST);
        }
        if url.port() == Some(0) {
            return wrong(BAD_PORT);
        }
        url.set_fragment(None);
        if url.as_str().len() > URL_BYTES_MAX {
            return wrong("longer than any server takes");
        }
        Ok(Self { url })
    }

    /// Returns the name for the file: the last name of the path, percent-decoded.
    ///
    /// Errors: `Usage` if there is none, or if it is no valid file name.
    pub fn name(&self) -> Result<RelPath, Error> {
        let wrong = |why: &str| {
            let text = format!("{self}: {why}; name a file at the destination (DIR/NAME), or another URL");
            Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text)
        };
        let last = self.path().rsplit('/').next().unwrap_or_default();
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

    /// Returns the URL for requests. A signed URL is a secret: for users, use [`fmt::Display`].
    pub fn url(&self) -> &str {
        self.url.as_str()
    }

    /// Returns scheme, host and port: the origin to which credentials belong (RFC 6454).
    pub fn origin(&self) -> &str {
        &self.url[..Position::BeforePath]
    }

    /// Returns the path without the query: the part that stays the same if a URL is signed again.
    pub fn path(&self) -> &str {
        self.url.path()
    }

    /// Returns true for `https`.
    pub fn is_encrypted(&self) -> bool {
        self.url.scheme() == "https"
    }

    /// Returns the host name or address, in lower case; an IPv6 address without its brackets.
    pub fn host(&self) -> &str {
        self.url.host_str().unwrap_or_default().trim_matches(['[', ']'])
    }

    /// Returns the port: the one in the URL, or that of the scheme.
    pub fn port(&self) -> u16 {
        self.url.port_or_known_default().unwrap_or(443)
    }

    /// Returns true if the server runs on this host: it has a loopback address, or the name `localhost` (RFC 6761,
    /// section 6.3).
    pub fn is_this_host(&self) -> bool {
        match self.url.host() {
            Some(Host::Domain(name)) => name == "localhost",
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        }
    }
}

const BAD_HOST: &str = "the host is not a host name or an IP address (IPv6 in brackets)";

const BAD_PORT: &str = "the port is not a number from 1 to 65535";

/// Returns true if a host is an address or a name that DNS can hold.
fn is_well_formed(host: &Host<&str>) -> bool {
    let is_plain = |c: u8| c.is_ascii_alphanumeric() || b"-._".contains(&c);
    match host {
        Host::Domain(name) => !name.is_empty() && name.bytes().all(is_plain),
        Host::Ipv4(_) | Host::Ipv6(_) => true,
    }
}

/// Returns the name or address of a host as [`WebLocation::host`] does: with one spelling for each address and each
/// international name. Returns other text in lower case.
pub fn canonical_host(text: &str) -> String {
    let bracketed = if text.contains(':') { format!("[{text}]") } else { text.to_owned() };
    let host = Host::parse(&bracketed).map(|host| host.to_string());
    host.map_or_else(|_| text.to_ascii_lowercase(), |host| host.trim_matches(['[', ']']).to_owned())
}

impl fmt::Display for WebLocation {
    /// Writes the URL for users: the query is cut, because it may be a signature.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin(), self.path())?;
        match self.url.query() {
            // A query is ASCII: all else is percent-encoded.
            Some(query) if query.len() > QUERY_SHOWN => write!(f, "?{}…", &query[..QUERY_SHOWN]),
            Some(query) => write!(f, "?{query}"),
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
            (
                "https://h/dé{1}|\\\t\u{202e}",
                "https://h/d%C3%A9%7B1%7D%7C%5C%09%E2%80%AE",
                "dé{1}|\\\t\u{202e}".as_bytes(),
            ),
            ("https://münchen.example/f", "https://xn--mnchen-3ya.example/f", b"f"),
            ("http://[0:0:0:0:0:0:0:1]/f", "http://[::1]/f", b"f"),
            ("https://h/a/./b/../c", "https://h/a/c", b"c"),
        ] {
            let read = web(text);
            assert_eq!(read.url(), url, "{text}");
            assert_eq!(read.name().unwrap().as_bytes(), name, "{text}");
            assert_eq!(web(read.url()), read);
        }
    }

    #[test]
    fn a_port_is_that_of_the_url_or_of_its_scheme() {
        let ports =
            ["https://h/f", "http://h/f", "http://h:8080/f", "https://[::1]:443/f"].map(|text| web(text).port());
        assert_eq!(ports, [443, 80, 8080, 443]);
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
            "https:/h/x",
            "https:h/x",
            "https://a!b/x",
            "https://h\\evil/x",
            "https://h\t/x",
            "\thttps://h/x",
            "https://@h/x",
        ] {
            assert!(WebLocation::parse(text).is_err(), "{text}");
        }
        for text in ["https://user:hunter2@h/x", "https://u@hunter2@h:x/", "ftp://user:hunter2@h/x", "http://:hunter2@"]
        {
            let error = WebLocation::parse(text).unwrap_err();
            assert!(error.chain().starts_with("a URL with a user") && !error.chain().contains("hunter2"), "{text}");
        }
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
            ("", "https://h/a/b?q=1"),
            ("../../../c#f", "https://h/c"),
            ("/\\evil/x", "https://h/%5Cevil/x"),
        ] {
            assert_eq!(from.join(reference).unwrap().url(), to, "{reference}");
        }
        for reference in ["file:///etc/passwd", "ftp://h/x", "data:text/plain,x", "x:y", "//u:p@h/x", "///h/x"] {
            assert!(from.join(reference).is_err(), "{reference}");
        }
        assert_eq!(from.join("./x:y").unwrap().url(), "https://h/a/x:y");
    }

    #[test]
    fn this_host_has_several_spellings() {
        for text in
            ["http://localhost/", "http://LOCALHOST:8080/", "http://127.0.0.1/", "http://127.1/", "http://[0::1]/"]
        {
            assert!(web(text).is_this_host(), "{text}");
        }
        for text in ["http://localhost.example/", "http://128.0.0.1/", "http://[::2]/", "http://h/"] {
            assert!(!web(text).is_this_host(), "{text}");
        }
        for (text, host) in
            [("H.example", "h.example"), ("0:0::1", "::1"), ("bücher.de", "xn--bcher-kva.de"), ("a b", "a b")]
        {
            assert_eq!(canonical_host(text), host);
        }
        assert_eq!(web("https://[0::1]:8080/x").host(), canonical_host("::1"));
    }
}
