//! TLS to a node: authorities, or keys that the user has compared.
//!
//! The HTTP library verifies by authorities only, so this connector takes the place of its own.

use std::fmt;
use std::io::{Read, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme,
    StreamOwned,
};
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, Either, LazyBuffers, NextTimeout, Transport, TransportAdapter,
};

use super::NodeTrust;
use crate::identity::Fingerprint;
use crate::web;

/// Decides about the certificate of a node, and remembers its key for messages.
#[derive(Debug)]
pub(super) struct NodeVerifier {
    /// Absent if keys are given.
    authorities: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
    keys: Vec<Fingerprint>,
    seen: Mutex<Option<Fingerprint>>,
}

impl NodeVerifier {
    /// Creates the verifier. Errors: `Usage` if the file of authorities cannot be read; `Untrusted` if this host has no
    /// authorities and no key is given.
    pub(super) fn new(trust: &NodeTrust) -> Result<Self, Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let authorities = match trust.keys.is_empty() {
            true => Some(authorities(trust, &provider)?),
            false => None,
        };
        Ok(Self { authorities, provider, keys: trust.keys.clone(), seen: Mutex::default() })
    }

    /// Returns the key that the server has shown last.
    pub(super) fn seen(&self) -> Option<Fingerprint> {
        *self.seen.lock()
    }

    /// Returns the keys that are accepted.
    pub(super) fn keys(&self) -> &[Fingerprint] {
        &self.keys
    }
}

/// Returns the verifier of the authorities that the user has given, or of those of this host.
fn authorities(trust: &NodeTrust, provider: &Arc<CryptoProvider>) -> Result<Arc<WebPkiServerVerifier>, Error> {
    let mut roots = RootCertStore::empty();
    let found = web::roots(trust.authority.as_deref())?;
    roots.add_parsable_certificates(found.iter().map(|root| CertificateDer::from(root.der())));
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider)).build();
    verifier.map_err(|e| {
        let text = "read the authorities of this host; install them (ca-certificates), or give the key of the server \
                    with --trust";
        Error::new(ErrorKind::Untrusted, Scope::Client, Phase::Prepare, text).caused_by(e)
    })
}

impl ServerCertVerifier for NodeVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let key = Fingerprint::of_key_info(&ParsedCertificate::try_from(end_entity)?.subject_public_key_info());
        *self.seen.lock() = Some(key);
        if let Some(authorities) = &self.authorities {
            return authorities.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        }
        match self.keys.contains(&key) {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Puts TLS on the connections to nodes whose URL demands it.
pub(super) struct NodeTls(Arc<ClientConfig>);

impl NodeTls {
    /// Creates the connector. Errors: a provider without TLS versions, which is a bug.
    pub(super) fn new(verifier: Arc<NodeVerifier>) -> Result<Self, Error> {
        let config = ClientConfig::builder_with_provider(Arc::clone(&verifier.provider));
        let config = config.with_safe_default_protocol_versions();
        let config = config.map_err(|e| crate::internal("choose the versions of TLS").caused_by(e))?;
        let config = config.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
        Ok(Self(Arc::new(config)))
    }
}

impl fmt::Debug for NodeTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeTls")
    }
}

impl<In: Transport> Connector<In> for NodeTls {
    type Out = Either<In, NodeTransport>;

    fn connect(&self, details: &ConnectionDetails<'_>, chained: Option<In>) -> Result<Option<Self::Out>, ureq::Error> {
        let Some(transport) = chained else { return Ok(None) };
        if !details.needs_tls() || transport.is_tls() {
            return Ok(Some(Either::A(transport)));
        }
        let host = details.uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host).map_err(|_| ureq::Error::Tls("the host is no name for TLS"))?;
        let mut connection = ClientConnection::new(Arc::clone(&self.0), name)?;
        let mut socket = TransportAdapter::new(transport.boxed(), details.current_time.clone());
        socket.set_timeout(details.timeout);
        connection.complete_io(&mut socket)?;
        let buffers = LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Some(Either::B(NodeTransport { buffers, stream: StreamOwned { conn: connection, sock: socket } })))
    }
}

/// Connection with TLS.
pub(super) struct NodeTransport {
    buffers: LazyBuffers,
    stream: StreamOwned<ClientConnection, TransportAdapter>,
}

impl fmt::Debug for NodeTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeTransport")
    }
}

impl Transport for NodeTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.stream.get_mut().set_timeout(timeout);
        Ok(self.stream.write_all(&self.buffers.output()[..amount])?)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.stream.get_mut().set_timeout(timeout);
        let count = self.stream.read(self.buffers.input_append_buf())?;
        self.buffers.input_appended(count);
        Ok(count > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.get_mut().get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}
