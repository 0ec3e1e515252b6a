//! Credentials of a transfer for its storages. They belong to the user, and not to the service.
//!
//! Holds bearer tokens. The store keeps them until their job has ended; no reply, log line or error text has them.
//! A delegated proxy (X.509) would be one more field of [`Credentials`], with the TLS settings that present it.
//! Refuses to write a secret as text or as JSON: [`Secret::reveal`] is the only way to its value.

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
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret of {} bytes", self.0.len())
    }
}

/// Credentials of a transfer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Credentials {
    /// Token for the source.
    pub source: Option<Secret>,
    /// Token for the destination.
    pub destination: Option<Secret>,
}

impl Credentials {
    /// Returns true if there are none.
    pub fn is_none(&self) -> bool {
        self.source.is_none() && self.destination.is_none()
    }

    /// Returns a text without the secrets. Reason: a storage can repeat the headers of a request in its answer.
    pub fn hide_in(&self, text: &str) -> String {
        let secrets = [&self.source, &self.destination].into_iter().flatten();
        secrets.fold(text.to_owned(), |text, secret| text.replace(secret.reveal(), "…"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown() {
        let credentials = Credentials { source: Secret::new("s3cret"), destination: None };
        assert!(!format!("{credentials:?}").contains("s3cret"), "{credentials:?}");
        assert_eq!(credentials.hide_in("401: no s3cret, s3cret"), "401: no …, …");
        assert!(!credentials.is_none() && Credentials::default().is_none());
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
