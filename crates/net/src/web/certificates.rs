//! Error texts for the certificates of web servers.

use std::time::{Duration, UNIX_EPOCH};

use rustls::CertificateError;
use rustls::pki_types::UnixTime;
use sterna_proto::Setting;

/// Most names of a certificate that are shown. Reason: those of a large site fill a page.
const NAMES_SHOWN_MAX: usize = 4;

/// Last second of 31 December 9999, where the dates of certificates and of HTTP end, in seconds since 1970.
const TIME_MAX: u64 = 253_402_300_799;

/// Reason why a certificate is refused.
pub(crate) struct Refusal {
    pub(crate) text: String,
    /// Settings that may help.
    pub(crate) settings: &'static [Setting],
}

/// Returns why a certificate is refused, and what helps. `has_authority`: the user gave one.
pub(crate) fn refusal(error: &CertificateError, has_authority: bool) -> Refusal {
    let settings: &[Setting] =
        if matches!(error, CertificateError::UnknownIssuer) { &[Setting::WebAuthority] } else { &[] };
    Refusal { text: reason(error, has_authority), settings }
}

fn reason(error: &CertificateError, has_authority: bool) -> String {
    match error {
        CertificateError::UnknownIssuer if has_authority => {
            "no trusted authority of this host issued the server's certificate, nor did the given one".to_owned()
        }
        CertificateError::UnknownIssuer => {
            "no trusted authority of this host issued the server's certificate; give the certificate of a private one".to_owned()
        }
        CertificateError::ExpiredContext { time, not_after } => format!(
            "the server's certificate ran out on {}; by this host's clock it is {}",
            date(*not_after),
            date(*time)
        ),
        CertificateError::NotValidYetContext { time, not_before } => format!(
            "the server's certificate is valid from {} on; by this host's clock it is {}",
            date(*not_before),
            date(*time)
        ),
        CertificateError::NotValidForNameContext { expected, presented } => {
            format!("the server's certificate is for {} and not for {}", names(presented), expected.to_str())
        }
        CertificateError::BadSignature => {
            "the server's certificate names a trusted authority, but another key has signed it".to_owned()
        }
        // The library has no variant for this error of its verifier, which is only reachable in this way.
        CertificateError::Other(other) if other.to_string() == "CaUsedAsEndEntity" => {
            "the server shows the certificate of an authority (CA:TRUE) as its own, as some tools make them for itself to sign; it \
             needs one with CA:FALSE"
                .to_owned()
        }
        other => format!("the server's certificate is not taken: {other}"),
    }
}

fn date(time: UnixTime) -> String {
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(time.as_secs().min(TIME_MAX)))
}

/// Returns the names of a certificate as text; the library writes them as `DnsName("a.example")`.
fn names(presented: &[String]) -> String {
    if presented.is_empty() {
        return "no name".to_owned();
    }
    let bare = |name: &String| {
        let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
        inner.unwrap_or(name).trim_matches('"').escape_debug().to_string()
    };
    let mut shown: Vec<String> = presented.iter().take(NAMES_SHOWN_MAX).map(bare).collect();
    if presented.len() > NAMES_SHOWN_MAX {
        shown.push(format!("{} more", presented.len() - NAMES_SHOWN_MAX));
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_of_many_names_are_shown() {
        let of = |count: usize| (0..count).map(|n| format!("DnsName(\"{n}.example\")")).collect::<Vec<_>>();
        assert_eq!(names(&of(2)), "0.example, 1.example");
        assert_eq!(names(&of(9)), "0.example, 1.example, 2.example, 3.example, 5 more");
        assert_eq!(names(&["IpAddress(127.0.0.1)".to_owned()]), "127.0.0.1");
        assert_eq!(names(&["DnsName(\"a\nb\")".to_owned()]), "a\\nb");
    }

    #[test]
    fn no_date_is_too_late() {
        assert!(date(UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX))).contains("9999"));
    }
}
