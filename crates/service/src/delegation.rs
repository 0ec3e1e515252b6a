//! Delegation of proxies (RFC 3820): keys of the service that users sign, and the proxies that follow.
//!
//! A user signs a request of the service with the own certificate, so that no private key leaves its host. Keeps keys
//! in memory until then. Refuses to verify a chain: the rules of access do.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rcgen::{CertificateParams, KeyPair, PublicKeyData};
use rustls::pki_types::CertificateDer;
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use x509_parser::parse_x509_certificate;

use crate::credentials::Proxy;

/// Time for which a key waits for its signature. Reason: a client signs within a second; commands of the same user at
/// the same time sign the same key.
const KEY_TIME_MAX: Duration = Duration::from_secs(600);

/// Maximum number of keys that wait. Reason: some MB of memory.
const KEYS_MAX: usize = 10_000;

/// Delegation of proxies.
#[derive(Default)]
pub struct Delegations {
    is_wanted: bool,
    keys: Mutex<HashMap<String, (Arc<KeyPair>, Instant)>>,
}

impl Delegations {
    /// Creates it. `is_wanted`: storages need proxies of users, so that clients are asked for them.
    pub fn new(is_wanted: bool) -> Self {
        Self { is_wanted, keys: Mutex::default() }
    }

    /// Returns true if clients are asked for proxies, and these are kept.
    pub fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// Returns a request for a certificate, in PEM. Errors: `Internal`.
    pub fn request(&self, credential: &str, now: Instant) -> Result<String, Error> {
        let failed = |e: rcgen::Error| {
            let text = "make a request for a certificate";
            Error::new(ErrorKind::Internal, Scope::Service, Phase::Prepare, text).caused_by(e)
        };
        let known = self.key(credential, now);
        let key = known.map_or_else(|| KeyPair::generate().map(Arc::new).map_err(failed), Ok)?;
        let request = CertificateParams::default().serialize_request(&*key).map_err(failed)?.pem().map_err(failed)?;
        let mut keys = self.keys.lock();
        if keys.len() >= KEYS_MAX {
            keys.retain(|_, (_, since)| now.saturating_duration_since(*since) < KEY_TIME_MAX);
        }
        if keys.len() < KEYS_MAX {
            keys.entry(credential.to_owned()).or_insert((key, now));
        }
        Ok(request)
    }

    /// Returns the key that waits for a credential.
    fn key(&self, credential: &str, now: Instant) -> Option<Arc<KeyPair>> {
        let mut keys = self.keys.lock();
        let (key, since) = keys.get(credential)?;
        if now.saturating_duration_since(*since) < KEY_TIME_MAX {
            return Some(Arc::clone(key));
        }
        keys.remove(credential);
        None
    }

    /// Returns the proxy that a chain makes with the key that waits. `chain`: certificates of `pem`, which were
    /// verified.
    ///
    /// Errors: `Usage`, when the chain is of another key.
    pub fn proxy(
        &self,
        credential: &str,
        pem: &[u8],
        chain: &[CertificateDer<'_>],
        now: Instant,
    ) -> Result<Proxy, Error> {
        let wrong = |text: &str| Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text);
        let key =
            self.key(credential, now).ok_or_else(|| wrong("no request for a proxy is open: ask for one first"))?;
        let mut expires = i64::MAX;
        for (index, der) in chain.iter().enumerate() {
            let (_, certificate) = parse_x509_certificate(der).map_err(|_| wrong("the proxy is damaged"))?;
            if index == 0 && certificate.public_key().raw != key.subject_public_key_info() {
                return Err(wrong("the proxy is not for the last request of this service"));
            }
            expires = expires.min(certificate.validity().not_after.timestamp());
        }
        Ok(Proxy {
            credential: credential.to_owned(),
            expires,
            certificates: String::from_utf8_lossy(pem).into(),
            key: key.serialize_pem().into(),
        })
    }
}
