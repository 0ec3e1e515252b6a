//! Certificates for a trial of the service on one host: an authority, a server and a user.
//!
//! Makes them once, and again when they are about to expire. Files appear complete or not at all. Refuses to be of use
//! elsewhere: the key of the authority lies beside the others. Time is an argument; random bits come from the system.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rsa::RsaPrivateKey;
use rsa::pkcs8::{EncodePrivateKey, LineEnding};
use rsa::rand_core::OsRng;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use serde_json::json;
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use webpki::{EndEntityCert, KeyUsage};
use x509_parser::parse_x509_certificate;

use crate::auth::dn::subject_hash;

/// Directory in the state directory.
const DIR: &str = "dev";

/// Directory with the authority alone, as clients expect it: `HASH.0`.
const AUTHORITY_DIR: &str = "certificates";

/// Remaining validity at which a certificate is made again. Reason: a trial lasts hours.
const REMAKE_BEFORE: Duration = Duration::from_secs(24 * 3600);

/// Validity of the authority: ten years, so that clients import it once.
const AUTHORITY_VALIDITY: Duration = Duration::from_secs(3650 * 24 * 3600);

/// Validity of server and user: a year, as grid authorities give.
const VALIDITY: Duration = Duration::from_secs(365 * 24 * 3600);

/// Time before now when certificates begin. Reason: the clock of a container may be behind.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(3600);

/// Bits of the RSA key of the user. Source: the least that TLS libraries accept.
const RSA_BITS: usize = 2048;

/// File with the name of this host.
const HOST_NAME_FILE: &str = "/proc/sys/kernel/hostname";

/// Files for a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dev {
    /// Directory with the authority, for clients (`--capath`, `X509_CERT_DIR`) and for the service.
    pub capath: PathBuf,
    /// Certificate of the user.
    pub cert: PathBuf,
    /// Key of the user: RSA in PKCS#8, because the client of FTS3 loads RSA keys only.
    pub key: PathBuf,
    /// Certificate of the server: `localhost`, 127.0.0.1, ::1, the name of the host and the address that was given.
    pub server_cert: PathBuf,
    /// Key of the server.
    pub server_key: PathBuf,
    /// Bearer token of a user with all rights.
    pub token: PathBuf,
    /// Keys of the issuer of that token.
    pub issuer_keys: PathBuf,
}

/// Issuer of the token of a trial. Its keys are in a file, so that nothing is dialled.
pub const TOKEN_ISSUER: &str = "https://localhost/sterna-dev";

/// Audience of the token of a trial.
pub const TOKEN_AUDIENCE: &str = "sterna-dev";

/// Scope of the token of a trial.
pub const TOKEN_SCOPE: &str = "sterna-dev";

/// Name of the key of the issuer.
const TOKEN_KEY: &str = "dev";

/// Validity of a token.
const TOKEN_VALIDITY: Duration = Duration::from_secs(30 * 24 * 3600);

impl Dev {
    fn in_dir(dir: &Path) -> Self {
        let (server, user) = (Pair::in_dir(dir, "server"), Pair::in_dir(dir, "user"));
        Self {
            capath: dir.join(AUTHORITY_DIR),
            cert: user.cert,
            key: user.key,
            server_cert: server.cert,
            server_key: server.key,
            token: dir.join("token"),
            issuer_keys: dir.join("issuer.jwks"),
        }
    }

    /// Returns the files in the state directory, and makes those that are missing, damaged or expire within a day.
    /// `address`: an address of the server besides those of this host.
    ///
    /// Errors: a file cannot be written. Cost: about a second if the key of the user is made.
    pub fn make(state_dir: &Path, address: Option<IpAddr>, now: SystemTime) -> Result<Self, Error> {
        let dir = state_dir.join(DIR);
        let capath = dir.join(AUTHORITY_DIR);
        for dir in [&dir, &capath] {
            create_private(dir)?;
        }
        let authority = Authority::load_or_make(&dir, &capath, now)?;
        let (server, user) = (Pair::in_dir(&dir, "server"), Pair::in_dir(&dir, "user"));
        let names: Vec<ServerName<'static>> = host_name().into_iter().chain(address.map(ServerName::from)).collect();
        if !authority.accepts(&server, KeyUsage::server_auth(), &names, now) {
            let key = KeyPair::generate().map_err(internal)?;
            let pem = key.serialize_pem();
            authority.issue(&server, &key, &pem, server_params(&names), now)?;
        }
        if !authority.accepts(&user, KeyUsage::client_auth(), &[], now) {
            let pem = rsa_key()?;
            let key = KeyPair::from_pem(&pem).map_err(internal)?;
            authority.issue(&user, &key, &pem, user_params(), now)?;
        }
        let files = Self::in_dir(&dir);
        if !files.has_token(now) {
            files.make_token(now)?;
        }
        Ok(files)
    }

    /// Returns true if the token was made lately.
    fn has_token(&self, now: SystemTime) -> bool {
        let made = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
        let age =
            made(&self.token).filter(|_| self.issuer_keys.is_file()).and_then(|made| now.duration_since(made).ok());
        age.is_some_and(|age| age + REMAKE_BEFORE < TOKEN_VALIDITY)
    }

    /// Makes a key of the issuer and a token. The keys come first: a token without its key is refused, and made again.
    fn make_token(&self, now: SystemTime) -> Result<(), Error> {
        let key = KeyPair::generate().map_err(internal)?;
        // An uncompressed point: 4, then both coordinates (SEC 1, section 2.3.3).
        let point = key.public_key_raw();
        let coordinate = |range: std::ops::Range<usize>| point.get(range).map(|bytes| URL_SAFE_NO_PAD.encode(bytes));
        let keys = json!({"keys": [{
            "kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": TOKEN_KEY,
            "x": coordinate(1..33), "y": coordinate(33..65),
        }]});
        let seconds = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let claims = json!({
            "iss": TOKEN_ISSUER, "sub": "dev", "aud": TOKEN_AUDIENCE, "scope": TOKEN_SCOPE,
            "nbf": seconds(now - CLOCK_DIFFERENCE), "exp": seconds(now + TOKEN_VALIDITY),
        });
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some(TOKEN_KEY.to_owned());
        let signing = EncodingKey::from_ec_pem(key.serialize_pem().as_bytes()).map_err(internal)?;
        let token = encode(&header, &claims, &signing).map_err(internal)?;
        replace(&self.issuer_keys, keys.to_string().as_bytes(), Mode::Public)?;
        replace(&self.token, token.as_bytes(), Mode::Private)
    }

    /// Returns the files in the state directory if a trial has made them. Makes nothing.
    pub fn find(state_dir: &Path) -> Option<Self> {
        let files = Self::in_dir(&state_dir.join(DIR));
        let is_made = files.cert.is_file() && files.key.is_file() && files.capath.is_dir();
        is_made.then_some(files)
    }
}

/// Certificate and key in two files.
struct Pair {
    cert: PathBuf,
    key: PathBuf,
}

impl Pair {
    fn in_dir(dir: &Path, name: &str) -> Self {
        Self { cert: dir.join(format!("{name}.pem")), key: dir.join(format!("{name}.key")) }
    }

    /// Loads both. `None`: one is missing or damaged, or they do not fit.
    fn load(&self) -> Option<(CertificateDer<'static>, KeyPair)> {
        let der = CertificateDer::from_pem_slice(&fs::read(&self.cert).ok()?).ok()?;
        let key = KeyPair::from_pem(&fs::read_to_string(&self.key).ok()?).ok()?;
        let (_, parsed) = parse_x509_certificate(&der).ok()?;
        let fits = parsed.public_key().raw == rcgen::PublicKeyData::subject_public_key_info(&key);
        fits.then_some((der, key))
    }

    /// Writes both. The key comes first: after a crash between them they do not fit, and are made again.
    fn write(&self, cert: &str, key: &str) -> Result<(), Error> {
        replace(&self.key, key.as_bytes(), Mode::Private)?;
        replace(&self.cert, cert.as_bytes(), Mode::Public)
    }
}

struct Authority {
    der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn load_or_make(dir: &Path, capath: &Path, now: SystemTime) -> Result<Self, Error> {
        let pair = Pair::in_dir(dir, "authority");
        let loaded = pair.load().filter(|(der, _)| {
            let end = parse_x509_certificate(der).map_or(0, |(_, parsed)| parsed.validity().not_after.timestamp());
            u64::try_from(end).is_ok_and(|end| end > unix_time(now + REMAKE_BEFORE).as_secs())
        });
        let (der, key) = match loaded {
            Some(loaded) => loaded,
            None => {
                let key = KeyPair::generate().map_err(internal)?;
                let params = with_validity(authority_params(), AUTHORITY_VALIDITY, now);
                let certificate = params.self_signed(&key).map_err(internal)?;
                pair.write(&certificate.pem(), &key.serialize_pem())?;
                (certificate.der().clone(), key)
            }
        };
        let (_, parsed) = parse_x509_certificate(&der).map_err(internal)?;
        let published = capath.join(format!("{:08x}.0", subject_hash(parsed.subject())));
        let pem = fs::read(&pair.cert).map_err(|e| storage("read", &pair.cert, e))?;
        if fs::read(&published).ok().as_ref() != Some(&pem) {
            replace(&published, &pem, Mode::Public)?;
        }
        let issuer = Issuer::from_ca_cert_der(&der, key).map_err(internal)?;
        Ok(Self { der, issuer })
    }

    /// Returns true if a pair is complete, of this authority, for all these names, and valid for a day more.
    fn accepts(&self, pair: &Pair, usage: KeyUsage, names: &[ServerName<'static>], now: SystemTime) -> bool {
        let Some((der, _)) = pair.load() else { return false };
        let Ok(anchor) = webpki::anchor_from_trusted_cert(&self.der) else { return false };
        let Ok(entity) = EndEntityCert::try_from(&der) else { return false };
        let algorithms = webpki::ALL_VERIFICATION_ALGS;
        let anchors = [anchor];
        let verified =
            entity.verify_for_usage(algorithms, &anchors, &[], unix_time(now + REMAKE_BEFORE), usage, None, None);
        verified.is_ok() && names.iter().all(|name| entity.verify_is_valid_for_subject_name(name).is_ok())
    }

    /// Issues a certificate and writes it. `pem`: the key.
    fn issue(
        &self,
        pair: &Pair,
        key: &KeyPair,
        pem: &str,
        params: CertificateParams,
        now: SystemTime,
    ) -> Result<(), Error> {
        let certificate = with_validity(params, VALIDITY, now).signed_by(key, &self.issuer).map_err(internal)?;
        pair.write(&certificate.pem(), pem)
    }
}

fn authority_params() -> CertificateParams {
    let mut params = named("Sterna dev authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn server_params(names: &[ServerName<'static>]) -> CertificateParams {
    let mut params = named("localhost");
    let mut addresses = vec![IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let mut hosts = vec!["localhost".to_owned()];
    for name in names {
        match name {
            ServerName::IpAddress(address) if addresses.contains(&IpAddr::from(*address)) => {}
            ServerName::IpAddress(address) => addresses.push(IpAddr::from(*address)),
            name => hosts.push(name.to_str().into_owned()),
        }
    }
    let hosts = hosts.into_iter().filter_map(|name| name.try_into().ok()).map(SanType::DnsName);
    params.subject_alt_names = hosts.chain(addresses.into_iter().map(SanType::IpAddress)).collect();
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params
}

fn user_params() -> CertificateParams {
    let mut params = named("Sterna dev user");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}

/// Returns settings for `/O=Sterna/OU=dev/CN=…`.
fn named(common_name: &str) -> CertificateParams {
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, "Sterna");
    name.push(DnType::OrganizationalUnitName, "dev");
    name.push(DnType::CommonName, common_name);
    let mut params = CertificateParams::default();
    params.distinguished_name = name;
    params.use_authority_key_identifier_extension = true;
    params
}

fn with_validity(mut params: CertificateParams, validity: Duration, now: SystemTime) -> CertificateParams {
    params.not_before = (now - CLOCK_DIFFERENCE).into();
    params.not_after = (now + validity).into();
    params
}

/// Makes an RSA key, as PKCS#8 in PEM.
fn rsa_key() -> Result<String, Error> {
    let key = RsaPrivateKey::new(&mut OsRng, RSA_BITS).map_err(internal)?;
    Ok(key.to_pkcs8_pem(LineEnding::LF).map_err(internal)?.to_string())
}

/// Returns the name of this host, if certificates can have it.
fn host_name() -> Option<ServerName<'static>> {
    let name = fs::read_to_string(HOST_NAME_FILE).ok()?;
    ServerName::try_from(name.trim().to_owned()).ok().filter(|name| matches!(name, ServerName::DnsName(_)))
}

fn unix_time(time: SystemTime) -> UnixTime {
    UnixTime::since_unix_epoch(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

/// Readers of a file.
#[derive(Clone, Copy)]
enum Mode {
    /// The owner.
    Private = 0o600,
    /// Everybody who can read the directory.
    Public = 0o644,
}

/// Creates a directory for its owner only.
fn create_private(dir: &Path) -> Result<(), Error> {
    const OWNER: u32 = 0o700;
    DirBuilder::new().recursive(true).mode(OWNER).create(dir).map_err(|e| storage("create", dir, e))?;
    fs::set_permissions(dir, Permissions::from_mode(OWNER)).map_err(|e| storage("close to others", dir, e))
}

/// Replaces a file. After a crash, the old or the new one is there, complete.
fn replace(path: &Path, bytes: &[u8], mode: Mode) -> Result<(), Error> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(internal)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.{:016x}", u64::from_le_bytes(random)));
    let write = || -> std::io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode as u32).open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().map_err(|e| {
        // The first error is the reason; a file that stays is found by its name.
        let _ = fs::remove_file(&temporary);
        storage("write", path, e)
    })
}

fn storage(what: &str, path: &Path, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, Scope::Client, Phase::Prepare, format!("{what} {}", path.display())).caused_by(error)
}

fn internal(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    let text = "make a certificate for the trial";
    Error::new(ErrorKind::Internal, Scope::Client, Phase::Prepare, text).caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::tests::fixture::{NOW, at, openssl};

    const DAY: i64 = 24 * 3600;

    fn text(path: &Path) -> &str {
        path.to_str().unwrap()
    }

    /// Verifies a certificate by the directory of authorities, as clients do.
    fn verify(dev: &Dev, cert: &Path, purpose: &[&str]) {
        let now = NOW.to_string();
        let capath = ["-CApath", text(&dev.capath), "-no-CAfile", "-no-CAstore"];
        let args = [&["verify", "-attime", &now][..], &capath, purpose, &[text(cert)]].concat();
        let answer = openssl(&args, &[]);
        assert!(answer.is_ok, "{}{}", answer.stdout, answer.stderr);
    }

    /// Returns true if a key is that of a certificate.
    fn fits(cert: &Path, key: &Path) -> bool {
        let of_key = openssl(&["pkey", "-pubout", "-in", text(key)], &[]).stdout;
        !of_key.is_empty() && openssl(&["x509", "-noout", "-pubkey", "-in", text(cert)], &[]).stdout == of_key
    }

    fn files(dev: &Dev) -> Vec<Vec<u8>> {
        let of_dev = [&dev.cert, &dev.key, &dev.server_cert, &dev.server_key].map(PathBuf::clone);
        let authorities = fs::read_dir(&dev.capath).unwrap().map(|entry| entry.unwrap().path());
        of_dev.into_iter().chain(authorities).map(|path| fs::read(path).unwrap()).collect()
    }

    #[test]
    fn openssl_verifies_server_and_user_by_the_directory_of_authorities() {
        let state = tempfile::tempdir().unwrap();
        let dev = Dev::make(state.path(), None, at(0)).unwrap();
        let server = ["-purpose", "sslserver", "-verify_hostname", "localhost"];
        verify(&dev, &dev.server_cert, &server);
        verify(&dev, &dev.server_cert, &["-verify_ip", "127.0.0.1"]);
        verify(&dev, &dev.server_cert, &["-verify_ip", "::1"]);
        if let Some(host) = host_name() {
            verify(&dev, &dev.server_cert, &["-verify_hostname", &host.to_str()]);
        }
        verify(&dev, &dev.cert, &["-purpose", "sslclient"]);
        let address = "192.0.2.7".parse().ok();
        verify(&Dev::make(state.path(), address, at(0)).unwrap(), &dev.server_cert, &["-verify_ip", "192.0.2.7"]);
        let authority = fs::read_dir(&dev.capath).unwrap().next().unwrap().unwrap();
        let hash = openssl(&["x509", "-noout", "-hash", "-in", text(&authority.path())], &[]).stdout;
        assert_eq!(authority.file_name().to_str().unwrap(), format!("{}.0", hash.trim()));
        let key = openssl(&["rsa", "-noout", "-check", "-in", text(&dev.key)], &[]);
        assert!(key.is_ok && format!("{}{}", key.stdout, key.stderr).contains("RSA key ok"), "{}", key.stderr);
        assert!(fits(&dev.cert, &dev.key) && fits(&dev.server_cert, &dev.server_key));
    }

    #[test]
    fn files_are_private_and_complete() {
        let state = tempfile::tempdir().unwrap();
        let dev = Dev::make(state.path(), None, at(0)).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let dir = dev.capath.parent().unwrap();
        assert_eq!(
            [mode(dir), mode(&dev.key), mode(&dev.server_key), mode(&dir.join("authority.key"))],
            [0o700, 0o600, 0o600, 0o600]
        );
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let names: Vec<String> = names.collect();
        assert!(names.iter().all(|name| !name.starts_with('.')), "no temporary file stays: {names:?}");
        fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
        Dev::make(state.path(), None, at(0)).unwrap();
        assert_eq!(mode(dir), 0o700);
    }

    #[test]
    fn files_are_made_once_and_again_a_day_before_they_expire() {
        let state = tempfile::tempdir().unwrap();
        let first = files(&Dev::make(state.path(), None, at(0)).unwrap());
        let again = files(&Dev::make(state.path(), None, at(364 * DAY - 60)).unwrap());
        assert_eq!(first, again);
        let renewed = files(&Dev::make(state.path(), None, at(364 * DAY + 60)).unwrap());
        assert!((0..4).all(|file| renewed[file] != first[file]), "server and user");
        assert_eq!(renewed[4], first[4], "the authority stays");
        let all = files(&Dev::make(state.path(), None, at(3649 * DAY + 60)).unwrap());
        assert_eq!(all.len(), 5, "one authority, under the same name");
        assert!((0..5).all(|file| all[file] != renewed[file]));
    }

    #[test]
    fn what_is_missing_damaged_or_of_another_is_made_again() {
        let state = tempfile::tempdir().unwrap();
        let dev = Dev::make(state.path(), None, at(0)).unwrap();
        let before = files(&dev);
        fs::remove_file(&dev.server_key).unwrap();
        fs::remove_dir_all(&dev.capath).unwrap();
        let again = files(&Dev::make(state.path(), None, at(0)).unwrap());
        assert_eq!((&again[0], &again[1], &again[4]), (&before[0], &before[1], &before[4]));
        assert!(again[2] != before[2] && again[3] != before[3]);
        fs::copy(&dev.server_key, &dev.key).unwrap();
        fs::write(&dev.server_cert, "damaged").unwrap();
        let dev = Dev::make(state.path(), None, at(0)).unwrap();
        verify(&dev, &dev.server_cert, &["-purpose", "sslserver"]);
        verify(&dev, &dev.cert, &["-purpose", "sslclient"]);
        assert!(fits(&dev.cert, &dev.key) && fits(&dev.server_cert, &dev.server_key));
        // Another authority: its certificates do not verify any more.
        fs::remove_file(state.path().join("dev/authority.key")).unwrap();
        let dev = Dev::make(state.path(), None, at(0)).unwrap();
        verify(&dev, &dev.server_cert, &["-purpose", "sslserver"]);
        verify(&dev, &dev.cert, &["-purpose", "sslclient"]);
    }
}
