//! TLS of the REST interfaces: certificate of the server, optional certificates of clients with proxies.
//!
//! Accepts a client without certificate: tokens come without one. Ends a handshake with an alert if a certificate does
//! not verify, and logs the reason. Refuses to keep sessions: each handshake verifies the certificate anew. Reads the
//! files of the server again when they change; the clock is that of rustls.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature_with_raw_key};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ServerConfig};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, PeerMisbehaved, SignatureScheme};
use sterna_net::identity::{Fingerprint, peer_fingerprint};
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use webpki::RawPublicKeyEntity;

use super::certificate::Certificate;
use super::x509::Trust;

/// Time between two looks at the files of the server. Reason: two system calls; certificates are renewed days before
/// they end.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Application protocol (RFC 7301). The interfaces use HTTP/1.1 alone.
const ALPN: &[u8] = b"http/1.1";

/// Files with the identity of the server, in PEM.
#[derive(Clone, Debug)]
pub struct ServerFiles {
    /// Certificate of the server, followed by those of its issuers.
    pub certificate: PathBuf,
    /// Private key: PKCS#8, PKCS#1 or SEC 1.
    pub key: PathBuf,
}

/// Creates the TLS settings of the server: TLS 1.2 and 1.3, cryptography of ring.
///
/// The certificates of a client are verified in the handshake. They, and not more, are known to the connection
/// afterwards: call [`Trust::identify`] with them. Errors: a file cannot be read, or the key does not fit.
pub(super) fn server_config(files: &ServerFiles, trust: Arc<Trust>) -> Result<ServerConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let damaged = |path: &Path, what: &str| {
        let text = format!("load the identity of the server from {}: {what}", path.display());
        Error::new(ErrorKind::Corrupt, Scope::Client, Phase::Prepare, text)
    };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(&files.certificate)?).collect();
    let chain = chain.map_err(|e| damaged(&files.certificate, "it is no PEM").caused_by(e))?;
    if chain.is_empty() {
        return Err(damaged(&files.certificate, "it has no certificate"));
    }
    let key = PrivateKeyDer::from_pem_slice(&read(&files.key)?)
        .map_err(|e| damaged(&files.key, "it has no readable private key").caused_by(e))?;
    let mut config = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(|e| damaged(&files.key, "TLS does not start").caused_by(e))?
        .with_client_cert_verifier(Arc::new(ProxyVerifier::new(trust, &provider)))
        .with_single_cert(chain, key)
        .map_err(|e| damaged(&files.key, "the key does not fit the certificate").caused_by(e))?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    // A resumed session would keep a certificate that has expired or was revoked since, and no client of FTS3 resumes.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// TLS settings of the server, which follow its files: certificates are renewed while the service runs.
pub struct ServerTls {
    files: ServerFiles,
    trust: Arc<Trust>,
    state: Mutex<TlsState>,
}

struct TlsState {
    config: Arc<ServerConfig>,
    /// Modification times of certificate and key, when they were read last.
    times: [Option<SystemTime>; 2],
    looked: Instant,
}

impl ServerTls {
    /// Reads the files. Errors: as [`server_config`].
    pub fn open(files: ServerFiles, trust: Arc<Trust>) -> Result<Self, Error> {
        let times = files.times();
        let config = Arc::new(server_config(&files, Arc::clone(&trust))?);
        Ok(Self { files, trust, state: Mutex::new(TlsState { config, times, looked: Instant::now() }) })
    }

    /// Returns the settings of the next connection. While the files cannot be used, for example between the renewal of
    /// one and the other, the last ones stay in force.
    pub fn current(&self) -> Arc<ServerConfig> {
        let mut state = self.state.lock();
        if state.looked.elapsed() >= LOOK_EVERY {
            state.looked = Instant::now();
            self.follow(&mut state);
        }
        Arc::clone(&state.config)
    }

    /// Returns the settings after a look at the files.
    #[cfg(test)]
    pub(super) fn after_a_look(&self) -> Arc<ServerConfig> {
        let mut state = self.state.lock();
        self.follow(&mut state);
        Arc::clone(&state.config)
    }

    fn follow(&self, state: &mut TlsState) {
        let times = self.files.times();
        if times == state.times {
            return;
        }
        match server_config(&self.files, Arc::clone(&self.trust)) {
            Ok(config) => {
                tracing::info!("read the certificate of the server again from {}", self.files.certificate.display());
                state.config = Arc::new(config);
                state.times = times;
            }
            Err(error) => tracing::warn!("{}; the certificate of before stays in use", error.chain()),
        }
    }
}

impl ServerFiles {
    fn times(&self) -> [Option<SystemTime>; 2] {
        [&self.certificate, &self.key].map(|path| fs::metadata(path).and_then(|found| found.modified()).ok())
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|e| {
        let text = format!("read {}", path.display());
        Error::new(ErrorKind::Io, Scope::Client, Phase::Prepare, text).caused_by(e)
    })
}

/// Verifier of the certificates of clients.
#[derive(Debug)]
struct ProxyVerifier {
    trust: Arc<Trust>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ProxyVerifier {
    fn new(trust: Arc<Trust>, provider: &CryptoProvider) -> Self {
        Self { trust, algorithms: provider.signature_verification_algorithms }
    }
}

/// Returns the public key of a certificate. rustls would let webpki read it, which refuses a proxy.
fn key_of(certificate: &CertificateDer<'_>) -> Result<SubjectPublicKeyInfoDer<'static>, rustls::Error> {
    let certificate = Certificate::parse(certificate).map_err(|refusal| refusal.into_tls())?;
    Ok(SubjectPublicKeyInfoDer::from(certificate.key().to_vec()))
}

/// Returns the key of an agent: that of a single certificate with an Ed25519 key which names itself as its issuer. Such
/// a certificate is nobody's user certificate, since an authority issues those.
pub fn agent_key(chain: &[CertificateDer<'_>]) -> Option<Fingerprint> {
    let [certificate] = chain else { return None };
    let parsed = Certificate::parse(certificate).ok()?;
    parsed.names_issuer(&parsed).then(|| peer_fingerprint(chain).ok()).flatten()
}

impl ClientCertVerifier for ProxyVerifier {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    /// Names no authority, so that a client sends any certificate it has. A client that compares the hints with the
    /// issuer of its certificate finds a user there, if the certificate is a proxy. All grid authorities are 10 KB.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let all = std::iter::once(end_entity).chain(intermediates);
        let chain: Vec<CertificateDer<'_>> = all.map(|der| CertificateDer::from(der.as_ref())).collect();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(now.as_secs());
        // The handshake proves that an agent has its key. Whether it may do anything is decided later, by the
        // fingerprint.
        if agent_key(&chain).is_some() {
            return Ok(ClientCertVerified::assertion());
        }
        match self.trust.check(&chain, now) {
            Ok(()) => Ok(ClientCertVerified::assertion()),
            Err(refusal) => {
                tracing::warn!("{}; the connection ends", refusal.text);
                Err(refusal.into_tls())
            }
        }
    }

    /// Verifies as `rustls::crypto::verify_tls12_signature` does, with the bare key: one scheme may stand for several
    /// algorithms (ECDSA with a digest and any curve).
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let candidates = self.algorithms.mapping.iter().find(|(scheme, _)| *scheme == dss.scheme);
        let (_, candidates) = candidates.ok_or(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme)?;
        let key = key_of(cert)?;
        let key = RawPublicKeyEntity::try_from(&key).map_err(|_| CertificateError::BadEncoding)?;
        let is_valid = |algorithm| key.verify_signature(algorithm, message, dss.signature()).is_ok();
        match candidates.iter().any(|algorithm| is_valid(*algorithm)) {
            true => Ok(HandshakeSignatureValid::assertion()),
            false => Err(CertificateError::BadSignature.into()),
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature_with_raw_key(message, &key_of(cert)?, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
