//! Identity of this host and trust in other hosts: keys, fingerprints, known hosts and authorized peers.
//!
//! Creates and loads the key of this host, and builds the TLS settings of both transports. Keeps the two files in which
//! people record their trust. Refuses to trust anybody. The handshake proves that the peer holds the key of its
//! certificate. The caller decides from [`peer_fingerprint`], before any byte is sent, if this key is trusted.

mod authorized;
pub(crate) mod files;
mod fingerprint;
mod key;
mod known_hosts;
mod tls;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use ring::signature::{Ed25519KeyPair, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use sterna_proto::{Error, ErrorKind, Phase, Scope};

#[doc(hidden)]
pub use authorized::grants_in;
pub use authorized::{Answer, Authorized, Grant, Rights};
pub use fingerprint::{Fingerprint, ParseFingerprintError, peer_fingerprint};
pub use key::PublicKey;
pub use known_hosts::{KnownHost, KnownHosts};
pub use tls::{ALPN, server_name};

/// Name of the file in the state directory that holds the key and the certificate of this host.
pub const IDENTITY_FILE: &str = "identity.pem";

/// Maximum size of an identity file in bytes. Reason: an Ed25519 key and certificate have less than 1 KiB.
const IDENTITY_FILE_BYTES_MAX: u64 = 64 << 10;

/// Key and certificate of this host, and the TLS settings that are made from them.
///
/// The secret key leaves this type only as part of the TLS settings.
#[derive(Clone)]
pub struct Identity {
    fingerprint: Fingerprint,
    key: Arc<Ed25519KeyPair>,
    client: Arc<rustls::ClientConfig>,
    server: Arc<rustls::ServerConfig>,
    reset_secret: [u8; 32],
}

impl Identity {
    /// Loads the identity of `state_dir`, or creates one there at the first start.
    ///
    /// Two processes that start at the same time get the same identity. A file that is damaged or open to other users
    /// is an error and is never replaced: peers know this host by it.
    pub fn load_or_create(state_dir: &Path) -> Result<Self, Error> {
        let path = state_dir.join(IDENTITY_FILE);
        if let Some(identity) = Self::load(&path)? {
            return Ok(identity);
        }
        files::create_state_dir(state_dir)?;
        create_once(&path, generate_pem()?.as_bytes())?;
        // Read back, because another process may have created the file a moment earlier.
        Self::load(&path)?.ok_or_else(|| files::storage_error(format!("{} vanished while it was made", path.display())))
    }

    /// Creates an identity that is not stored.
    pub fn ephemeral() -> Result<Self, Error> {
        Self::from_pem(generate_pem()?.as_bytes(), "a fresh identity")
    }

    /// Returns the fingerprint by which peers know this host.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Returns the public key.
    pub fn public_key(&self) -> PublicKey {
        let mut key = PublicKey([0; 32]);
        // An Ed25519 key has 32 bytes.
        key.0.copy_from_slice(self.key.public_key().as_ref());
        key
    }

    /// Signs bytes. They begin with the purpose of the signature, so that it serves no other one.
    pub fn sign(&self, bytes: &[u8]) -> [u8; 64] {
        let mut signature = [0; 64];
        // An Ed25519 signature has 64 bytes.
        signature.copy_from_slice(self.key.sign(bytes).as_ref());
        signature
    }

    /// Returns the TLS settings for the end that connects; use [`server_name`] as the name of the server.
    pub fn client_config(&self) -> Arc<rustls::ClientConfig> {
        Arc::clone(&self.client)
    }

    /// Returns the TLS settings for the end that accepts.
    pub fn server_config(&self) -> Arc<rustls::ServerConfig> {
        Arc::clone(&self.server)
    }

    /// Returns the secret of QUIC stateless resets (RFC 9000, section 10.3). It is the same after a restart, so a
    /// restarted agent can reset the connections of its earlier run.
    pub(crate) fn reset_secret(&self) -> &[u8; 32] {
        &self.reset_secret
    }

    fn load(path: &Path) -> Result<Option<Self>, Error> {
        let Some(pem) = files::read_bounded(path, IDENTITY_FILE_BYTES_MAX)? else { return Ok(None) };
        let mode = fs::metadata(path)
            .map_err(|e| files::storage_error(format!("look at {}", path.display())).caused_by(e))?
            .permissions()
            .mode();
        if mode & 0o077 != 0 {
            let text = format!("{} is open to other users (mode {:03o}); make it 600", path.display(), mode & 0o777);
            return Err(Error::new(ErrorKind::Denied, Scope::Client, Phase::Prepare, text));
        }
        Self::from_pem(&pem, &path.display().to_string()).map(Some)
    }

    fn from_pem(pem: &[u8], origin: &str) -> Result<Self, Error> {
        let damaged = |what: &str| {
            let text = format!("{origin} is damaged: {what}; restore it, or remove it to start with a new identity");
            Error::new(ErrorKind::Corrupt, Scope::Client, Phase::Prepare, text)
        };
        let key = PrivatePkcs8KeyDer::from_pem_slice(pem).map_err(|_| damaged("no readable private key"))?;
        let certificate = CertificateDer::from_pem_slice(pem).map_err(|_| damaged("no readable certificate"))?;
        let fingerprint = peer_fingerprint(std::slice::from_ref(&certificate))
            .map_err(|_| damaged("the certificate is not an Ed25519 one"))?;
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(key.secret_pkcs8_der())
            .map_err(|e| damaged("its key is not an Ed25519 key").caused_by(std::io::Error::other(e.to_string())))?;
        let (client, server) =
            tls::configs(&certificate, &key).map_err(|e| damaged("key and certificate do not fit").caused_by(e))?;
        let reset_secret = blake3::derive_key("sterna 2026-11-21 QUIC stateless reset", key.secret_pkcs8_der());
        Ok(Self { fingerprint, key: Arc::new(pair), client: Arc::new(client), server: Arc::new(server), reset_secret })
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}

/// Creates a key and a certificate for it, as the text of an identity file.
fn generate_pem() -> Result<String, Error> {
    let make = || -> Result<String, rcgen::Error> {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519)?;
        let certificate = rcgen::CertificateParams::new([tls::SERVER_NAME.to_owned()])?.self_signed(&key)?;
        Ok(key.serialize_pem() + &certificate.pem())
    };
    make().map_err(|e| {
        Error::new(ErrorKind::Internal, Scope::Client, Phase::Prepare, "make an Ed25519 identity").caused_by(e)
    })
}

/// Writes `bytes` to `path`, readable by its owner only, unless the name is taken already.
///
/// The file appears complete or not at all: it is written and synced under another name, and then linked. A link never
/// replaces a file, so the second of two processes finds the file of the first.
fn create_once(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let write = || -> std::io::Result<()> {
        let temporary = files::temporary_beside(path)?;
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        let written =
            file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| fs::hard_link(&temporary, path));
        fs::remove_file(&temporary)?;
        match written {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
            _ => files::sync_dir_of(path),
        }
    };
    write().map_err(|e| files::storage_error(format!("make {}", path.display())).caused_by(e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_outlives_the_process_and_is_private() {
        let state = tempfile::tempdir().unwrap();
        let dir = state.path().join("deep/state");
        let first = Identity::load_or_create(&dir).unwrap();
        let again = Identity::load_or_create(&dir).unwrap();
        assert_eq!(first.fingerprint(), again.fingerprint());
        let mode = fs::metadata(dir.join(IDENTITY_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1, "no temporary file stays behind");
    }

    #[test]
    fn starts_at_the_same_time_end_with_one_identity() {
        let state = tempfile::tempdir().unwrap();
        let barrier = std::sync::Barrier::new(8);
        let prints: Vec<_> = std::thread::scope(|scope| {
            let starts: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        barrier.wait();
                        Identity::load_or_create(state.path()).unwrap().fingerprint()
                    })
                })
                .collect();
            starts.into_iter().map(|start| start.join().unwrap()).collect()
        });
        assert!(prints.iter().all(|p| *p == prints[0]), "{prints:?}");
    }

    #[test]
    fn a_damaged_identity_is_an_error_and_is_not_replaced() {
        let state = tempfile::tempdir().unwrap();
        Identity::load_or_create(state.path()).unwrap();
        let path = state.path().join(IDENTITY_FILE);
        let good = fs::read_to_string(&path).unwrap();
        let other = generate_pem().unwrap();
        let (key, _) = good.split_at(good.find("-----BEGIN CERTIFICATE").unwrap());
        let (_, certificate) = other.split_at(other.find("-----BEGIN CERTIFICATE").unwrap());
        let mixed = format!("{key}{certificate}");
        for damaged in ["", "not pem", key, certificate, &good[..good.len() / 2], mixed.as_str()] {
            fs::write(&path, damaged).unwrap();
            let error = Identity::load_or_create(state.path()).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Corrupt, "{}", error.chain());
            assert!(error.text().contains("identity.pem is damaged"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), damaged);
        }
    }

    #[test]
    fn a_fifo_in_place_of_a_file_is_an_error_and_no_wait() {
        let state = tempfile::tempdir().unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, state.path().join(IDENTITY_FILE), mode).unwrap();
        let error = Identity::load_or_create(state.path()).unwrap_err();
        assert!(error.text().contains("identity.pem: it is a fifo"), "{error}");
    }

    #[test]
    fn an_identity_open_to_others_is_refused() {
        let state = tempfile::tempdir().unwrap();
        Identity::load_or_create(state.path()).unwrap();
        let path = state.path().join(IDENTITY_FILE);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = Identity::load_or_create(state.path()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Denied);
        assert!(error.text().contains("mode 640"), "{error}");
    }

    #[test]
    fn an_identity_file_of_any_size_is_read_only_up_to_its_limit() {
        let state = tempfile::tempdir().unwrap();
        fs::write(state.path().join(IDENTITY_FILE), vec![b'x'; IDENTITY_FILE_BYTES_MAX as usize + 1]).unwrap();
        assert_eq!(Identity::load_or_create(state.path()).unwrap_err().kind, ErrorKind::Limit);
    }

    #[test]
    fn debug_output_holds_no_secret() {
        let identity = Identity::ephemeral().unwrap();
        assert_eq!(
            format!("{identity:?}"),
            format!("Identity {{ fingerprint: Fingerprint({}), .. }}", identity.fingerprint())
        );
    }
}
