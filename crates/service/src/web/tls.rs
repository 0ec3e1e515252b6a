//! TLS of the connections to storages.
//!
//! A certificate is verified by the authorities of the service, with their revocation lists, and else by those of the
//! system. `SSL_CERT_FILE` and `SSL_CERT_DIR` replace those of the system. Refuses to skip a verification.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme};
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use crate::auth::Trust;

/// Creates the TLS settings. Reads the authorities of the system once. Errors: TLS does not start.
pub(super) fn client_config(trust: Arc<Trust>) -> Result<Arc<ClientConfig>, Error> {
    let failed = |e: rustls::Error| {
        let text = "make the TLS settings for storages";
        Error::new(ErrorKind::Internal, Scope::Service, Phase::Prepare, text).caused_by(e)
    };
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
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(failed)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(StorageVerifier { trust, system, algorithms }))
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// Verifier of the certificates of storages.
#[derive(Debug)]
struct StorageVerifier {
    trust: Arc<Trust>,
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
        let refused = match self.trust.check_server(end_entity, intermediates, at) {
            Ok(()) => return Ok(ServerCertVerified::assertion()),
            Err(error) => error,
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
