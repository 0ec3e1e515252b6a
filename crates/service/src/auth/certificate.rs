//! One certificate: its fields as x509-parser reads them, and the bytes that its signature covers.
//!
//! Checks signature, validity and key usage of one certificate. Refuses to know chains and authorities. Bytes come in
//! as DER; time is an argument, in seconds since 1970, UTC.

use std::time::SystemTime;

use rustls::CertificateError;
use rustls::pki_types::{SubjectPublicKeyInfoDer, UnixTime};
use webpki::RawPublicKeyEntity;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{KeyUsage, X509Extension};
use x509_parser::parse_x509_certificate;

use super::der::{BIT_STRING, Element, INTEGER, Malformed, SEQUENCE, whole_bytes};
use super::dn;
use super::refusal::{Refusal, utc};

/// Largest certificate in bytes. Source: rustls refuses a message of a handshake that has more.
const CERTIFICATE_BYTES_MAX: usize = 64 << 10;

/// Signed object of X.509: `SEQUENCE { body, algorithm, signature }`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signed<'a> {
    /// Bytes that the signature covers.
    pub body: Element<'a>,
    /// Content of the algorithm identifier beside the signature, which no signature covers.
    pub algorithm: &'a [u8],
    signature: &'a [u8],
}

impl<'a> Signed<'a> {
    /// Reads a signed object that fills the input.
    pub fn read(input: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Element::only(SEQUENCE, input)?.reader();
        let body = reader.read(SEQUENCE)?;
        let algorithm = reader.read(SEQUENCE)?.content;
        let signature = whole_bytes(&reader.read(BIT_STRING)?)?;
        reader.finish()?;
        Ok(Self { body, algorithm, signature })
    }

    /// Verifies the signature with a key. `key`: its SubjectPublicKeyInfo in DER.
    ///
    /// Algorithms are those of webpki: ECDSA with P-256 and P-384, Ed25519, RSA of 2048 to 8192 bits with SHA-2.
    /// Errors: the algorithm is not one of them, does not fit the key, or the signature is wrong.
    pub fn verify(&self, key: &[u8]) -> Result<(), &'static str> {
        let key = SubjectPublicKeyInfoDer::from(key);
        let key = RawPublicKeyEntity::try_from(&key).map_err(|_| "the key of the issuer is unreadable")?;
        let is_named = |of_signature: &[u8]| of_signature == self.algorithm;
        let mut verdict =
            Err("the algorithm of the signature is not supported (SHA-1, or an RSA key below 2048 bits?)");
        for algorithm in webpki::ALL_VERIFICATION_ALGS.iter().filter(|known| is_named(&known.signature_alg_id())) {
            match key.verify_signature(*algorithm, self.body.raw, self.signature) {
                Ok(()) => return Ok(()),
                Err(webpki::Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_)) => {}
                Err(_) => verdict = Err("the signature is wrong"),
            }
        }
        verdict
    }
}

/// Certificate.
#[derive(Debug)]
pub(super) struct Certificate<'a> {
    /// All bytes.
    pub der: &'a [u8],
    /// Fields.
    pub parsed: X509Certificate<'a>,
    /// Subject in the slash form.
    pub subject: String,
    signed: Signed<'a>,
}

impl<'a> Certificate<'a> {
    /// Reads a certificate. Errors: it is damaged, too large, or has an extension twice.
    pub fn parse(der: &'a [u8]) -> Result<Self, Refusal> {
        let damaged = |what: &str| Refusal::new(CertificateError::BadEncoding, format!("a certificate {what}"));
        if der.len() > CERTIFICATE_BYTES_MAX {
            return Err(damaged(&format!("has {} bytes, at most {CERTIFICATE_BYTES_MAX}", der.len())));
        }
        let signed = Signed::read(der).map_err(|Malformed| damaged("is not in DER"))?;
        let (_, parsed) = parse_x509_certificate(der).map_err(|e| damaged(&format!("is unreadable: {e}")))?;
        if algorithm_of_body(&signed).ok() != Some(signed.algorithm) {
            return Err(damaged("names two algorithms of its signature"));
        }
        let certificate = Self { der, subject: dn::slash_form(parsed.subject()), parsed, signed };
        if let Err(error) = certificate.parsed.extensions_map() {
            return Err(damaged(&format!("({}) is unreadable: {error}", certificate.subject)));
        }
        Ok(certificate)
    }

    /// Returns the extension of this OID. `oid`: content in DER.
    pub fn extension(&self, oid: &[u8]) -> Option<&X509Extension<'a>> {
        self.parsed.extensions().iter().find(|extension| extension.oid.as_bytes() == oid)
    }

    /// Public key: SubjectPublicKeyInfo in DER.
    pub fn key(&self) -> &'a [u8] {
        self.parsed.tbs_certificate.subject_pki.raw
    }

    /// Start and end of the validity, both inclusive.
    pub fn validity(&self) -> (i64, i64) {
        let validity = self.parsed.validity();
        (validity.not_before.timestamp(), validity.not_after.timestamp())
    }

    /// Returns true if the issuer of this certificate has the name of `issuer`.
    pub fn names_issuer(&self, issuer: &Self) -> bool {
        dn::is_same(self.parsed.issuer(), issuer.parsed.subject())
    }

    /// Verifies the signature with the key of `issuer`.
    pub fn verify_signature(&self, issuer: &Self) -> Result<(), Refusal> {
        self.signed.verify(issuer.key()).map_err(|what| {
            let text = format!("{} with the key of {}: {what}", self.subject, issuer.subject);
            Refusal::new(CertificateError::BadSignature, text)
        })
    }

    /// Checks that the certificate is valid at `now`.
    pub fn check_validity(&self, now: i64) -> Result<(), Refusal> {
        let (start, end) = self.validity();
        let minutes = |seconds: i64| seconds / 60;
        if now < start {
            let text = format!(
                "{} is valid from {}, in {} min; check the clocks of both hosts",
                self.subject,
                utc(start),
                minutes(start.saturating_sub(now))
            );
            return Err(Refusal::new(CertificateError::NotValidYet, text));
        }
        if now > end {
            let text =
                format!("{} expired at {}, {} min ago", self.subject, utc(end), minutes(now.saturating_sub(end)));
            return Err(Refusal::new(CertificateError::Expired, text));
        }
        Ok(())
    }

    /// Key usage; `None` if the certificate does not limit it.
    pub fn key_usage(&self) -> Result<Option<KeyUsage>, Refusal> {
        let unreadable = |_| Refusal::rule(format!("{} has an unreadable key usage", self.subject));
        Ok(self.parsed.key_usage().map_err(unreadable)?.map(|usage| *usage.value))
    }

    /// Checks that the key may sign: a handshake, or a proxy (RFC 3820, section 3.6).
    pub fn check_may_sign(&self) -> Result<(), Refusal> {
        match self.key_usage()? {
            Some(usage) if !usage.digital_signature() => {
                Err(Refusal::rule(format!("the key usage of {} lacks digitalSignature", self.subject)))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the algorithm that the signed bytes name. It must be the one beside the signature (RFC 5280, 4.1.1.2).
fn algorithm_of_body<'a>(signed: &Signed<'a>) -> Result<&'a [u8], Malformed> {
    /// Tag of the version, `[0] EXPLICIT`.
    const VERSION: u8 = 0xa0;
    let mut body = signed.body.reader();
    body.optional(VERSION)?;
    body.read(INTEGER)?;
    Ok(body.read(SEQUENCE)?.content)
}

/// Returns seconds since 1970. A clock before 1970 counts as 1970, when no certificate is valid.
pub(super) fn seconds(now: SystemTime) -> i64 {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// Returns the time of a number of seconds since 1970, for rustls and webpki.
pub(super) fn unix_time(seconds: i64) -> UnixTime {
    UnixTime::since_unix_epoch(std::time::Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}
