//! Credentials for a transfer service: certificate and key of the user, and the authorities of services.
//!
//! Finds them by flags, by the environment variables of grid clients, or as the files of a trial (`sterna serve
//! --dev`). Reads files and the environment. Refuses to verify a certificate: the service does.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::net::{IpAddr, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, KeyProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, Signer, SigningKey};
use rustls::{InconsistentKeys, RootCertStore, SignatureAlgorithm, SignatureScheme};
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use sterna_service::dev::Dev;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

use crate::flags::service::{ServiceFlags, ServiceUrl};
use crate::serve::{SERVICE_DIR, host_name};
use crate::state;

/// Authorities of the grid, beside those of this host. Source: the packages of the IGTF.
const GRID_AUTHORITIES: &str = "/etc/grid-security/certificates";

/// Maximum bytes of a file with certificates. Reason: a proxy with attributes has 20 KB; a larger file is a mistake.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Maximum number of files in a directory of authorities. Reason: the IGTF has a thousand, with their links.
const AUTHORITY_FILES_MAX: usize = 20_000;

/// Credentials, ready for a connection.
pub struct Credentials {
    /// Settings of TLS.
    pub tls: TlsConfig,
    /// File of the certificate; `None`: no certificate is sent.
    pub certificate: Option<PathBuf>,
    /// Place of the authorities, for messages.
    pub authorities: String,
}

impl Credentials {
    /// Finds and loads the credentials for a service. Errors: `Usage`, for a file that cannot be used.
    pub fn find(flags: &ServiceFlags) -> Result<Self, Error> {
        let found = Found::of(flags)?;
        let client = found.pair.as_ref().map(|(cert, key)| client_certificate(cert, key)).transpose()?;
        let (mut roots, mut authorities) = authorities(found.capath.as_deref())?;
        if let (None, Some(trial)) = (&found.capath, &found.trial)
            && read_authorities(trial, &mut roots).is_ok()
        {
            authorities.push_str(", or of the trial");
        }
        let roots: Vec<_> = roots.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
        let provider = CryptoProvider { key_provider: &AnyKeys, ..ring::default_provider() };
        let tls = TlsConfig::builder()
            .unversioned_rustls_crypto_provider(Arc::new(provider))
            .root_certs(RootCerts::from(roots))
            .client_cert(client)
            .build();
        Ok(Self { tls, certificate: found.pair.map(|(cert, _)| cert), authorities })
    }
}

/// Files of the credentials.
struct Found {
    /// Certificate and key; they can be the same file.
    pair: Option<(PathBuf, PathBuf)>,
    /// Directory of authorities that the user gave.
    capath: Option<PathBuf>,
    /// Directory of the authority of a trial on this host.
    trial: Option<PathBuf>,
}

impl Found {
    fn of(flags: &ServiceFlags) -> Result<Self, Error> {
        let capath = flags.capath.clone();
        // The trial has no use elsewhere, and without a state directory there is none.
        let dev = match is_this_host(&flags.service) {
            true => state::directory(flags.state.as_deref()).ok().and_then(|state| Dev::find(&state.join(SERVICE_DIR))),
            false => None,
        };
        let (trial, of_trial) = dev.map(|dev| (dev.capath, (dev.cert, dev.key))).unzip();
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let twice = |file: PathBuf| (file.clone(), file);
        let given = flags.cert.clone().map(|cert| (cert.clone(), flags.key.clone().unwrap_or(cert)));
        let of_user =
            || variable("X509_USER_CERT").map(|cert| (cert.clone(), variable("X509_USER_KEY").unwrap_or(cert)));
        // The order of grid clients: a proxy is there because its user has just made it.
        let pair = given
            .or_else(|| variable("X509_USER_PROXY").map(twice))
            .or_else(of_user)
            .or(of_trial)
            .or_else(|| default_proxy().map(twice));
        Ok(Self { pair, capath, trial })
    }
}

/// Returns true if the service runs on this host.
pub fn is_this_host(service: &ServiceUrl) -> bool {
    // Only an address of this host can be bound.
    let is_local = service.host.parse::<IpAddr>().is_ok_and(|address| UdpSocket::bind((address, 0)).is_ok());
    is_local || service.host == "localhost" || service.host == host_name()
}

/// Returns the proxy that `voms-proxy-init` makes without other orders. One of another user does not count: every user
/// can make a file of this name.
fn default_proxy() -> Option<PathBuf> {
    let uid = rustix::process::getuid().as_raw();
    let path = PathBuf::from(format!("/tmp/x509up_u{uid}"));
    let metadata = fs::symlink_metadata(&path).ok()?;
    (metadata.is_file() && metadata.uid() == uid).then_some(path)
}

fn usage(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text)
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let wrong = |e| usage(format!("read {}", path.display())).caused_by(e);
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)).map_err(wrong)?;
    match bytes.len() as u64 <= FILE_BYTES_MAX {
        true => Ok(bytes),
        false => Err(usage(format!("{} has more than {FILE_BYTES_MAX} bytes: expected certificates", path.display()))),
    }
}

/// Loads the certificate of the user and its key.
fn client_certificate(cert: &Path, key: &Path) -> Result<ClientCert, Error> {
    let (cert_shown, key_shown) = (cert.display(), key.display());
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(&read(cert)?).filter_map(Result::ok).collect();
    if chain.is_empty() {
        return Err(usage(format!("{cert_shown} has no certificate in PEM")));
    }
    let pem = read(key)?;
    let unusable = || usage(format!("{key_shown} has no private key in PEM that can be used without a passphrase"));
    let der = PrivateKeyDer::from_pem_slice(&pem).map_err(|_| unusable())?;
    ring::sign::any_supported_type(&der).map_err(|e| unusable().caused_by(e))?;
    // Other errors do not count: the library does not read the certificate of a proxy (RFC 3820).
    let mismatch = rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch);
    if CertifiedKey::from_der(chain.clone(), der, &ring::default_provider()).is_err_and(|error| error == mismatch) {
        return Err(usage(format!("the key in {key_shown} does not belong to the certificate in {cert_shown}")));
    }
    let key = PrivateKey::from_pem(&pem).map_err(|_| unusable())?;
    let chain: Vec<_> = chain.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
    Ok(ClientCert::new_with_certs(&chain, key))
}

/// Returns the authorities of services, for an agent. Errors: `Usage`, for a directory without any.
pub fn root_store(capath: Option<&Path>) -> Result<RootCertStore, Error> {
    let (found, _) = authorities(capath)?;
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(found.into_iter().map(CertificateDer::from));
    Ok(store)
}

/// Returns the certificates of the authorities of services, with their place in words.
fn authorities(capath: Option<&Path>) -> Result<(BTreeSet<Vec<u8>>, String), Error> {
    let mut found = BTreeSet::new();
    let place = match capath {
        Some(directory) => {
            read_authorities(directory, &mut found)?;
            directory.display().to_string()
        }
        None => {
            // Authorities that cannot be read count as missing: a service that needs one causes an error later.
            let of_host = rustls_native_certs::load_native_certs().certs;
            found.extend(of_host.into_iter().map(|der| der.to_vec()));
            let _ = read_authorities(Path::new(GRID_AUTHORITIES), &mut found);
            format!("the list of this host or in {GRID_AUTHORITIES}")
        }
    };
    Ok((found, place))
}

/// Reads the certificates in the files of a directory. Such directories have other files too, and a certificate under
/// several names.
fn read_authorities(directory: &Path, found: &mut BTreeSet<Vec<u8>>) -> Result<(), Error> {
    let shown = directory.display();
    let entries =
        fs::read_dir(directory).map_err(|e| usage(format!("read the authorities in {shown}")).caused_by(e))?;
    for entry in entries.take(AUTHORITY_FILES_MAX).filter_map(Result::ok) {
        let path = entry.path();
        if !path.is_file() {
            continue;
        }
        let Ok(pem) = read(&path) else { continue };
        found.extend(CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok).map(|der| der.to_vec()));
    }
    match found.is_empty() {
        true => Err(usage(format!("no file in {shown} has a certificate in PEM"))),
        false => Ok(()),
    }
}

/// Loads keys for certificates that rustls does not read: it would refuse the certificate of a proxy (RFC 3820), which
/// has a critical extension, to compare its key.
#[derive(Debug)]
struct AnyKeys;

impl KeyProvider for AnyKeys {
    fn load_private_key(&self, der: PrivateKeyDer<'static>) -> Result<Arc<dyn SigningKey>, rustls::Error> {
        Ok(Arc::new(AnyKey(ring::sign::any_supported_type(&der)?)))
    }
}

/// Key without its public half, which rustls would compare with the certificate.
#[derive(Debug)]
struct AnyKey(Arc<dyn SigningKey>);

impl SigningKey for AnyKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        self.0.choose_scheme(offered)
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.0.algorithm()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, CustomExtension, KeyPair};

    use super::*;

    /// Writes a certificate and its key. A proxy has a critical extension (RFC 3820). Returns their paths.
    fn write_pair(directory: &Path, name: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        if name == "proxy" {
            let mut proxy = CustomExtension::from_oid_content(&[1, 3, 6, 1, 5, 5, 7, 1, 14], vec![0x30, 0]);
            proxy.set_criticality(true);
            params.custom_extensions.push(proxy);
        }
        let certificate = params.self_signed(&key).unwrap();
        let paths = (directory.join(format!("{name}.pem")), directory.join(format!("{name}.key")));
        fs::write(&paths.0, certificate.pem()).unwrap();
        fs::write(&paths.1, key.serialize_pem()).unwrap();
        paths
    }

    #[test]
    fn a_proxy_is_loaded_from_one_file_or_two() {
        let directory = tempfile::tempdir().unwrap();
        let (cert, key) = write_pair(directory.path(), "proxy");
        assert!(client_certificate(&cert, &key).is_ok());
        let both = directory.path().join("both");
        fs::write(&both, [fs::read(&cert).unwrap(), fs::read(&key).unwrap()].concat()).unwrap();
        let loaded = client_certificate(&both, &both).unwrap();
        let tls = rustls::ClientConfig::builder_with_provider(Arc::new(CryptoProvider {
            key_provider: &AnyKeys,
            ..ring::default_provider()
        }));
        let chain = loaded.certs().iter().map(|one| CertificateDer::from(one.der().to_vec())).collect();
        let der = PrivateKeyDer::from_pem_slice(&fs::read(&both).unwrap()).unwrap();
        let tls = tls.with_safe_default_protocol_versions().unwrap();
        let tls = tls.with_root_certificates(rustls::RootCertStore::empty());
        assert!(tls.with_client_auth_cert(chain, der).is_ok(), "the HTTP library expects that this succeeds");
    }

    #[test]
    fn a_file_that_is_of_no_use_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let (cert, key) = write_pair(directory.path(), "user");
        let (_, other) = write_pair(directory.path(), "other");
        let missing = directory.path().join("missing");
        for (cert, key, expected) in [
            (&missing, &key, "missing: No such file"),
            (&key, &key, "user.key has no certificate"),
            (&cert, &cert, "user.pem has no private key"),
            (&cert, &other, "other.key does not belong to the certificate"),
        ] {
            let error = client_certificate(cert, key).map(drop).unwrap_err();
            assert!(error.chain().contains(expected), "{}", error.chain());
            assert_eq!(error.exit_code(), 2);
        }
        let empty = tempfile::tempdir().unwrap();
        let error = authorities(Some(empty.path())).map(drop).unwrap_err();
        assert!(error.chain().contains("has a certificate"), "{}", error.chain());
        let found = authorities(Some(directory.path())).unwrap().0;
        assert_eq!(found.len(), 2, "keys are left out");
    }

    #[test]
    fn the_trial_counts_for_services_on_this_host_only() {
        for (url, expected) in [
            ("https://localhost:8446", true),
            ("https://127.0.0.1", true),
            ("https://[::1]:1", true),
            ("https://fts.example.org", false),
            ("https://192.0.2.1", false),
        ] {
            assert_eq!(is_this_host(&url.parse().unwrap()), expected, "{url}");
        }
    }
}
