//! TLS of the connections to storages.
//!
//! A certificate is verified by the authorities of the service, with their revocation lists, and else by those of the
//! system. An agent has those of the system only, as when it reads. `SSL_CERT_FILE` and `SSL_CERT_DIR` replace those of
//! the system. Refuses to skip a verification.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme};
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use crate::auth::Trust;
use crate::credentials::Proxy;

/// Maximum number of proxies whose settings are kept. Reason: each has a cache of sessions; users are some hundred.
const PROXIES_MAX: usize = 1000;

/// TLS settings: one without a proxy, and one for each proxy.
pub(super) struct Tls {
    verifier: Arc<StorageVerifier>,
    anonymous: Arc<ClientConfig>,
    proxies: Mutex<HashMap<String, Arc<ClientConfig>>>,
}

impl Tls {
    /// Creates them. Reads the authorities of the system once. `trust`: others. Errors: TLS does not start.
    pub fn new(trust: Option<Arc<Trust>>) -> Result<Self, Error> {
        let provider = Arc::new(ring::default_provider());
        let found = rustls_native_certs::load_native_certs();
        for error in &found.errors {
            tracing::warn!("read the authorities of the system: {error}; those that were read count");
        }
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(found.certs);
        // The verifier needs at least one authority.
        let system = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build().ok();
        let algorithms = provider.signature_verification_algorithms;
        let verifier = Arc::new(StorageVerifier { trust, system, algorithms });
        let anonymous = config(Arc::clone(&verifier), None)?;
        Ok(Self { verifier, anonymous, proxies: Mutex::default() })
    }

    /// Returns the settings that present a proxy. Errors: its key or its certificates are damaged.
    pub fn config(&self, proxy: Option<&Proxy>) -> Result<Arc<ClientConfig>, Error> {
        let Some(proxy) = proxy else { return Ok(Arc::clone(&self.anonymous)) };
        let name = proxy.name();
        if let Some(known) = self.proxies.lock().get(&name) {
            return Ok(Arc::clone(known));
        }
        let damaged = |e: rustls::pki_types::pem::Error| failed("read a delegated proxy").caused_by(e);
        let certificates = CertificateDer::pem_slice_iter(proxy.certificates.as_bytes());
        let certificates = certificates.collect::<Result<Vec<_>, _>>().map_err(damaged)?;
        let key = PrivateKeyDer::from_pem_slice(proxy.key.as_bytes()).map_err(damaged)?;
        let key = ring::sign::any_supported_type(&key).map_err(|e| failed("read a delegated proxy").caused_by(e))?;
        let made = config(Arc::clone(&self.verifier), Some(CertifiedKey::new(certificates, key)))?;
        let mut proxies = self.proxies.lock();
        if proxies.len() >= PROXIES_MAX {
            proxies.clear();
        }
        proxies.insert(name, Arc::clone(&made));
        Ok(made)
    }
}

fn failed(tried: &str) -> Error {
    Error::new(ErrorKind::Internal, Scope::Service, Phase::Prepare, tried)
}

fn config(verifier: Arc<StorageVerifier>, key: Option<CertifiedKey>) -> Result<Arc<ClientConfig>, Error> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(|e| failed("make the TLS settings for storages").caused_by(e))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    Ok(Arc::new(match key {
        None => builder.with_no_client_auth(),
        // Not compared with its certificate: the library cannot read that of a proxy.
        Some(key) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(key))),
    }))
}

/// Verifier of the certificates of storages.
#[derive(Debug)]
struct StorageVerifier {
    trust: Option<Arc<Trust>>,
    /// Authorities of the system; `None`: it has none.
    system: Option<Arc<WebPkiServerVerifier>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for StorageVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(now.as_secs());
        let refused = match self.trust.as_ref().map(|trust| trust.check_server(end_entity, intermediates, at)) {
            Some(Ok(())) => return Ok(ServerCertVerified::assertion()),
            Some(Err(error)) => error,
            None => rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer),
        };
        match &self.system {
            // A certificate that the service's own authorities have revoked stays refused.
            Some(system) if refused == rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
                system.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
            }
            _ => Err(refused),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
