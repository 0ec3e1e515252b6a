//! Reason why a certificate chain is refused, for the alert of TLS, the log and the user.

use std::sync::Arc;

use rustls::{CertificateError, OtherError};
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Reason why a chain is refused.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    /// Kind of problem, which determines the alert that the client receives. `None`: the certificate breaks a rule that
    /// TLS has no alert for.
    alert: Option<CertificateError>,
    /// Problem in words.
    pub text: String,
}

impl Refusal {
    /// Creates a refusal.
    pub fn new(alert: CertificateError, text: impl Into<String>) -> Self {
        Self { alert: Some(alert), text: text.into() }
    }

    /// Creates the refusal of a certificate that breaks a rule. TLS reports it as "certificate unknown".
    pub fn rule(text: impl Into<String>) -> Self {
        Self { alert: None, text: text.into() }
    }

    /// Puts words before the text.
    #[must_use]
    pub fn before(self, words: &str) -> Self {
        Self { text: format!("{words}: {}", self.text), ..self }
    }

    /// Returns the error that ends a handshake with the alert of this kind of problem.
    pub fn into_tls(self) -> rustls::Error {
        let alert = self.alert.clone();
        alert.unwrap_or_else(|| CertificateError::Other(OtherError(Arc::new(Error::from(self))))).into()
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::new(ErrorKind::Untrusted, Scope::Client, Phase::Prepare, refusal.text)
    }
}

/// Returns a time as text, such as `2026-11-25T22:12:00Z`. `seconds`: since 1970, UTC.
pub(super) fn utc(seconds: i64) -> String {
    let time = OffsetDateTime::from_unix_timestamp(seconds).ok().and_then(|time| time.format(&Rfc3339).ok());
    time.unwrap_or_else(|| format!("{seconds} s after 1970"))
}
