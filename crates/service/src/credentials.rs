//! Credentials of a transfer for its storages. They belong to the user, and not to the service.
//!
//! Holds bearer tokens and delegated proxies. The store keeps tokens until their job has ended, and proxies until they
//! expire; no reply, log line or error text has them. Refuses to write a secret as text or as JSON:
//! [`Secret::reveal`] is the only way to its value.

use std::fmt;
use std::sync::Arc;

/// Maximum bytes of a token. Source: XRootD accepts header values of 100 kB; real tokens have 1 to 2 kB.
const SECRET_BYTES_MAX: usize = 16 << 10;

/// Secret of a user: a bearer token (RFC 6750).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Creates a secret; `None`: the text cannot be the value of a header, or is too long.
    pub fn new(text: &str) -> Option<Self> {
        let is_good =
            !text.is_empty() && text.len() <= SECRET_BYTES_MAX && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_good.then(|| Self(text.into()))
    }

    /// Returns the value, for a header or the store.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns a text without the secret. Reason: a storage can repeat the headers of a request in its answer.
    pub fn hide_in(&self, text: &str) -> String {
        text.replace(self.reveal(), "…")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret of {} bytes", self.0.len())
    }
}

/// Delegated proxy of a user (RFC 3820): the service presents it to storages in TLS.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Proxy {
    /// Identifier of the credential of the user.
    pub credential: String,
    /// Time when the first certificate expires, in seconds since 1970.
    pub expires: i64,
    /// Certificates in PEM, that of the proxy first.
    pub certificates: Arc<str>,
    /// Private key of the proxy in PEM.
    pub key: Arc<str>,
}

impl Proxy {
    /// Returns a name that no other proxy has, without a secret.
    pub fn name(&self) -> String {
        format!("{} until {}", self.credential, self.expires)
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "proxy of {}", self.name())
    }
}

/// Credentials of a transfer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Credentials {
    /// Token for the source.
    pub source: Option<Secret>,
    /// Token for the destination.
    pub destination: Option<Secret>,
    /// Proxy for a storage without a token.
    pub proxy: Option<Proxy>,
}

impl Credentials {
    /// Returns true if there are no tokens.
    pub fn has_no_token(&self) -> bool {
        self.source.is_none() && self.destination.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown() {
        let credentials = Credentials { source: Secret::new("s3cret"), ..Credentials::default() };
        assert!(!format!("{credentials:?}").contains("s3cret"), "{credentials:?}");
        assert_eq!(Secret::new("s3cret").unwrap().hide_in("401: no s3cret, s3cret"), "401: no …, …");
        assert!(!credentials.has_no_token() && Credentials::default().has_no_token());
    }

    #[test]
    fn a_value_that_would_break_a_header_is_no_secret() {
        for text in ["", "a b", "a\r\nX: y", "ä", "a\0"] {
            assert_eq!(Secret::new(text), None, "{text:?}");
        }
        assert_eq!(Secret::new(&"x".repeat(SECRET_BYTES_MAX + 1)), None);
        assert_eq!(Secret::new("eyJ.a-b_c~+/=").unwrap().reveal(), "eyJ.a-b_c~+/=");
    }
}
