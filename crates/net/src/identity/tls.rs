//! TLS settings of every lane: TLS 1.3, both ends authenticated, no session resumption.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring as provider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, PeerMisbehaved, SignatureScheme};

use super::peer_fingerprint;

/// Application protocol of every lane, for both transports (RFC 7301). It contains the version of the wire protocol.
pub const ALPN: &[u8] = b"sterna/1";

/// Name in every certificate. It has no meaning: peers are known by their keys.
pub(super) const SERVER_NAME: &str = "sterna";

/// Returns the server name that rustls and QUIC need to connect; nobody checks it.
pub fn server_name() -> ServerName<'static> {
    // The constant is a valid DNS name; the tests of this module check it.
    #[allow(clippy::expect_used)]
    ServerName::try_from(SERVER_NAME).expect("a constant DNS name")
}

/// Creates the settings for both roles. Errors: the key is not the key of the certificate.
pub(super) fn configs(
    certificate: &CertificateDer<'static>,
    key: &PrivatePkcs8KeyDer<'static>,
) -> Result<(rustls::ClientConfig, rustls::ServerConfig), rustls::Error> {
    let provider = Arc::new(crypto_provider());
    let proof = Arc::new(ProofOfKey { provider: Arc::clone(&provider) });
    let chain = || vec![certificate.clone()];

    let mut client = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(proof.clone())
        .with_client_auth_cert(chain(), key.clone_key().into())?;
    client.alpn_protocols = vec![ALPN.to_vec()];
    client.enable_sni = false;
    // A lane lives for minutes to days: one full handshake per lane is cheap, and a ticket would be one more secret to
    // keep.
    client.resumption = rustls::client::Resumption::disabled();
    client.enable_early_data = false;
    // A TCP lane takes over the traffic keys after the handshake: see `lane::tcp`.
    client.enable_secret_extraction = true;

    let mut server = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(proof)
        .with_single_cert(chain(), key.clone_key().into())?;
    server.alpn_protocols = vec![ALPN.to_vec()];
    server.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    server.max_early_data_size = 0;
    server.enable_secret_extraction = true;
    Ok((client, server))
}

/// Returns the cryptography of ring. AES-128-GCM comes first: processors of servers have instructions for it, and it is
/// a third cheaper than AES-256. ChaCha20 is for processors without these instructions.
fn crypto_provider() -> CryptoProvider {
    CryptoProvider {
        cipher_suites: vec![
            provider::cipher_suite::TLS13_AES_128_GCM_SHA256,
            provider::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        kx_groups: vec![provider::kx_group::X25519],
        ..provider::default_provider()
    }
}

/// Verifier that accepts any single Ed25519 certificate if the peer proves that it holds the key.
///
/// Names, dates and issuer of the certificate are ignored. Trust depends on the fingerprint of the key, and is decided
/// after the handshake.
#[derive(Debug)]
struct ProofOfKey {
    provider: Arc<CryptoProvider>,
}

impl ProofOfKey {
    fn check_certificate(certificate: &CertificateDer<'_>, more: &[CertificateDer<'_>]) -> Result<(), rustls::Error> {
        let wrong = || rustls::Error::InvalidCertificate(CertificateError::BadEncoding);
        if !more.is_empty() {
            return Err(wrong());
        }
        peer_fingerprint(std::slice::from_ref(certificate)).map(|_| ()).map_err(|_| wrong())
    }

    fn check_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        if signature.scheme != SignatureScheme::ED25519 {
            return Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into());
        }
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }
}

/// Returns the error for a TLS 1.2 signature. TLS 1.2 is not offered, so none should need verification.
fn no_tls12() -> Result<HandshakeSignatureValid, rustls::Error> {
    Err(rustls::Error::PeerIncompatible(rustls::PeerIncompatible::Tls12NotOffered))
}

impl ServerCertVerifier for ProofOfKey {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Self::check_certificate(end_entity, intermediates).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.check_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

impl ClientCertVerifier for ProofOfKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Self::check_certificate(end_entity, intermediates).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.check_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
    use rustls::sign::{CertifiedKey, SingleCertAndKey};

    use super::super::Identity;
    use super::*;

    /// Runs a handshake in memory until both ends complete it or one of them fails.
    fn handshake(
        client: Arc<rustls::ClientConfig>,
        server: Arc<rustls::ServerConfig>,
    ) -> Result<(rustls::ClientConnection, rustls::ServerConnection), rustls::Error> {
        let mut client = rustls::ClientConnection::new(client, server_name())?;
        let mut server = rustls::ServerConnection::new(server)?;
        while client.is_handshaking() || server.is_handshaking() {
            let mut wire = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut wire).unwrap();
            }
            server.read_tls(&mut wire.as_slice()).unwrap();
            server.process_new_packets()?;
            let mut wire = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut wire).unwrap();
            }
            client.read_tls(&mut wire.as_slice()).unwrap();
            client.process_new_packets()?;
        }
        Ok((client, server))
    }

    #[test]
    fn both_ends_learn_the_proven_fingerprint_of_the_other() {
        let (a, b) = (Identity::ephemeral().unwrap(), Identity::ephemeral().unwrap());
        let (client, server) = handshake(a.client_config(), b.server_config()).unwrap();
        assert_eq!(peer_fingerprint(client.peer_certificates().unwrap()).unwrap(), b.fingerprint());
        assert_eq!(peer_fingerprint(server.peer_certificates().unwrap()).unwrap(), a.fingerprint());
        assert_eq!(client.alpn_protocol(), Some(ALPN));
        assert_eq!(client.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
        let suite = client.negotiated_cipher_suite().unwrap().suite();
        assert_eq!(suite, rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
    }

    #[test]
    fn a_certificate_without_its_key_proves_nothing() {
        let (a, b) = (Identity::ephemeral().unwrap(), Identity::ephemeral().unwrap());
        let stolen = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let victim = rcgen::CertificateParams::new(["x".to_owned()]).unwrap().self_signed(&stolen).unwrap();
        let own = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let key = PrivatePkcs8KeyDer::from(own.serialized_der().to_vec());
        let signer = provider::sign::any_eddsa_type(&key).unwrap();
        let liar = CertifiedKey::new(vec![victim.der().clone()], signer);
        let liar = Arc::new(SingleCertAndKey::from(liar));

        let mut server = (*b.server_config()).clone();
        server.cert_resolver = liar.clone();
        let error = handshake(a.client_config(), Arc::new(server)).unwrap_err();
        assert_eq!(error, rustls::Error::InvalidCertificate(CertificateError::BadSignature));

        let mut client = (*a.client_config()).clone();
        client.client_auth_cert_resolver = liar;
        let error = handshake(Arc::new(client), b.server_config()).unwrap_err();
        assert_eq!(error, rustls::Error::InvalidCertificate(CertificateError::BadSignature));
    }

    #[test]
    fn a_client_without_certificate_is_refused() {
        let b = Identity::ephemeral().unwrap();
        let provider = Arc::new(crypto_provider());
        let mut client = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(ProofOfKey { provider }))
            .with_no_client_auth();
        client.alpn_protocols = vec![ALPN.to_vec()];
        let error = handshake(Arc::new(client), b.server_config()).unwrap_err();
        assert_eq!(error, rustls::Error::NoCertificatesPresented);
    }

    #[test]
    fn another_application_protocol_is_refused() {
        let (a, b) = (Identity::ephemeral().unwrap(), Identity::ephemeral().unwrap());
        let mut client = (*a.client_config()).clone();
        client.alpn_protocols = vec![b"h2".to_vec()];
        let error = handshake(Arc::new(client), b.server_config()).unwrap_err();
        assert_eq!(error, rustls::Error::NoApplicationProtocol);
    }

    #[test]
    fn settings_refuse_a_key_of_another_certificate() {
        let make = || {
            let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
            let certificate = rcgen::CertificateParams::new(["x".to_owned()]).unwrap().self_signed(&key).unwrap();
            (certificate.der().clone(), PrivatePkcs8KeyDer::from(key.serialized_der().to_vec()))
        };
        let ((one, _), (_, two)): ((CertificateDer<'static>, _), (_, _)) = (make(), make());
        assert!(configs(&one, &two).is_err());
    }
}
