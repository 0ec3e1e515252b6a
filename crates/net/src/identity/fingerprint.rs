//! Fingerprints of public keys, in the spelling of ssh.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use rustls::pki_types::CertificateDer;
use rustls::server::ParsedCertificate;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

/// Prefix of a fingerprint as text.
const PREFIX: &str = "SHA256:";

/// SubjectPublicKeyInfo of an Ed25519 key up to the key itself (RFC 8410, section 4).
pub(super) const ED25519_SPKI_PREFIX: [u8; 12] =
    [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// Length of such a SubjectPublicKeyInfo in bytes: the prefix and a key of 32 bytes.
const ED25519_SPKI_BYTES: usize = 44;

/// SHA-256 of a public key (the SubjectPublicKeyInfo of its certificate, in DER).
///
/// The text form is `SHA256:` and base64 without padding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub [u8; 32]);

/// Characters of base64 in [`Fingerprint::short`]. Reason: 72 bits; enough to find the line of a peer, never to trust
/// one.
const SHORT_CHARS: usize = 12;

impl Fingerprint {
    /// Returns the fingerprint of a SubjectPublicKeyInfo in DER.
    pub(crate) fn of_key_info(info: &[u8]) -> Self {
        let digest = ring::digest::digest(&ring::digest::SHA256, info);
        let mut fingerprint = Self([0; 32]);
        fingerprint.0.copy_from_slice(digest.as_ref());
        fingerprint
    }

    /// Returns the beginning of the text form, for lines of a log.
    pub fn short(&self) -> String {
        let mut text = self.to_string();
        text.truncate(PREFIX.len() + SHORT_CHARS);
        text
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", STANDARD_NO_PAD.encode(self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// Error for a text that is not a fingerprint; contains the text and the expected form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseFingerprintError(String);

impl fmt::Display for ParseFingerprintError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ParseFingerprintError {}

impl FromStr for Fingerprint {
    type Err = ParseFingerprintError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || {
            ParseFingerprintError(format!(
                "\"{}\" is not a fingerprint: SHA256: and 43 characters of base64, as `sterna id` prints it",
                text.escape_debug()
            ))
        };
        let digest = text.strip_prefix(PREFIX).ok_or_else(wrong)?;
        let bytes = STANDARD_NO_PAD.decode(digest).map_err(|_| wrong())?;
        Ok(Self(bytes.try_into().map_err(|_| wrong())?))
    }
}

/// Returns the fingerprint of a peer, from the certificates of its handshake (`peer_certificates` in rustls).
///
/// Errors: `Untrusted` unless there is exactly one certificate, with an Ed25519 key.
pub fn peer_fingerprint(certificates: &[CertificateDer<'_>]) -> Result<Fingerprint, Error> {
    let refused = |what: &str| {
        Error::new(
            ErrorKind::Untrusted,
            Scope::Path,
            Phase::Prepare,
            format!("certificate of the peer refused: {what}"),
        )
    };
    let [certificate] = certificates else {
        return Err(refused(&format!("{} certificates were shown and one is wanted", certificates.len())));
    };
    let parsed = ParsedCertificate::try_from(certificate).map_err(|e| refused("it is malformed").caused_by(e))?;
    let key = parsed.subject_public_key_info();
    if key.len() != ED25519_SPKI_BYTES || !key.starts_with(&ED25519_SPKI_PREFIX) {
        return Err(refused("its key is not an Ed25519 key"));
    }
    Ok(Fingerprint::of_key_info(&key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_reads_as_it_shows() {
        let fingerprint = Fingerprint(std::array::from_fn(|i| i as u8 * 7));
        let text = fingerprint.to_string();
        assert_eq!(text.len(), 50);
        assert!(!text.contains('='));
        assert!(text.starts_with(&fingerprint.short()) && fingerprint.short().len() == 19);
        assert_eq!(text.parse(), Ok(fingerprint));
    }

    #[test]
    fn texts_that_are_no_fingerprint_are_named() {
        let good = Fingerprint([9; 32]).to_string();
        let padded = format!("{good}=");
        let lower = good.to_lowercase();
        for text in ["", "SHA256:", "SHA256:abc", "MD5:00", &good[..49], &padded, &lower, &good[7..]] {
            let error = text.parse::<Fingerprint>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("\"{text}\" is not a fingerprint")), "{error}");
        }
    }

    #[test]
    fn the_fingerprint_is_of_the_key_and_not_of_the_certificate() {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let print = |name: &str| {
            let certificate = rcgen::CertificateParams::new([name.to_owned()]).unwrap().self_signed(&key).unwrap();
            peer_fingerprint(&[certificate.der().clone()]).unwrap()
        };
        assert_eq!(print("one"), print("two"));
    }

    #[test]
    fn only_one_certificate_of_an_ed25519_key_is_taken() {
        let make = |algorithm| {
            let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
            rcgen::CertificateParams::new(["x".to_owned()]).unwrap().self_signed(&key).unwrap().der().clone()
        };
        let good = make(&rcgen::PKCS_ED25519);
        let other = make(&rcgen::PKCS_ECDSA_P256_SHA256);
        let mut cut = good.to_vec();
        cut.truncate(cut.len() / 2);
        let cases = [vec![], vec![good.clone(), good], vec![other], vec![CertificateDer::from(cut)]];
        for certificates in cases {
            assert_eq!(peer_fingerprint(&certificates).unwrap_err().kind, ErrorKind::Untrusted);
        }
    }
}
