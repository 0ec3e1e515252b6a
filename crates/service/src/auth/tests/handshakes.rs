//! Handshakes of TLS 1.2 and 1.3, with rustls and with `openssl s_client` as the client.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::fixture::{Credential, Draft, NOW, PROXY_CERT_INFO, World, at, full, openssl, proxy_cert_info, write_pem};
use crate::auth::tls::server_config;
use crate::auth::{ServerFiles, ServerTls, Trust};
use crate::dev::Dev;

const VERSIONS: [&SupportedProtocolVersion; 2] = [&rustls::version::TLS12, &rustls::version::TLS13];
const USER: &str = "/DC=ch/DC=cern/CN=Test User";

/// Clock of both ends.
#[derive(Debug)]
struct Fixed;

impl TimeProvider for Fixed {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(std::time::Duration::from_secs(NOW as u64)))
    }
}

/// Files of the server, made once: an RSA key takes a second.
fn dev() -> &'static Dev {
    static DEV: OnceLock<(TempDir, Dev)> = OnceLock::new();
    let (_, dev) = DEV.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let dev = Dev::make(dir.path(), None, at(0)).unwrap();
        (dir, dev)
    });
    dev
}

fn files() -> ServerFiles {
    ServerFiles { certificate: dev().server_cert.clone(), key: dev().server_key.clone() }
}

fn server(trust: &Arc<Trust>) -> Arc<ServerConfig> {
    let mut config = server_config(&files(), Arc::clone(trust)).unwrap();
    config.time_provider = Arc::new(Fixed);
    Arc::new(config)
}

/// Certificates and key that a client shows.
struct Shown<'a> {
    chain: Vec<&'a Credential>,
    key: &'a Credential,
}

fn shown<'a>(chain: &[&'a Credential]) -> Option<Shown<'a>> {
    Some(Shown { chain: chain.to_vec(), key: chain[0] })
}

fn client(version: &'static SupportedProtocolVersion, shown: Option<&Shown<'_>>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let authority = std::fs::read_dir(&dev().capath).unwrap().next().unwrap().unwrap().path();
    roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_details(Arc::new(ring::default_provider()), Arc::new(Fixed));
    let builder = builder.with_protocol_versions(&[version]).unwrap().with_root_certificates(roots);
    let mut config = match shown {
        None => builder.with_no_client_auth(),
        Some(shown) => {
            let key = PrivatePkcs8KeyDer::from(shown.key.key.serialized_der().to_vec()).into();
            let chain = shown.chain.iter().map(|credential| credential.cert.clone()).collect();
            let key = CertifiedKey::new(chain, ring::sign::any_supported_type(&key).unwrap());
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(key)))
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config)
}

/// Runs a handshake in memory. Returns the name that the server learns, or its error.
async fn handshake(
    world: &World,
    version: &'static SupportedProtocolVersion,
    shown: Option<Shown<'_>>,
) -> Result<Option<String>, String> {
    let trust = Arc::new(world.trust());
    let (near, far) = tokio::io::duplex(1 << 16);
    let connector = TlsConnector::from(client(version, shown.as_ref()));
    let name = ServerName::try_from("localhost").unwrap();
    let client = tokio::spawn(async move {
        let mut stream = connector.connect(name, near).await?;
        // In TLS 1.3 the client learns of a refusal when it reads.
        stream.read_u8().await
    });
    let accepted = TlsAcceptor::from(server(&trust)).accept(far).await;
    let result = match accepted {
        Err(error) => Err(error.to_string()),
        Ok(mut stream) => {
            let (_, connection) = stream.get_ref();
            assert_eq!(connection.alpn_protocol(), Some(&b"http/1.1"[..]));
            assert_eq!(connection.protocol_version(), Some(version.version));
            let chain = connection.peer_certificates().map(<[_]>::to_vec);
            stream.write_u8(1).await.unwrap();
            stream.flush().await.unwrap();
            Ok(chain.map(|chain| trust.identify(&chain, at(0)).unwrap().dn))
        }
    };
    assert_eq!(client.await.unwrap().is_ok(), result.is_ok(), "both ends agree");
    result
}

#[tokio::test]
async fn a_client_is_known_by_its_certificate_its_proxy_or_not_at_all() {
    let world = World::new();
    let user = &world.user;
    let proxy = user.proxy("1", full);
    let second = proxy.proxy("2", full);
    for version in VERSIONS {
        let run = |shown| handshake(&world, version, shown);
        assert_eq!(run(None).await, Ok(None));
        for chain in [&[user][..], &[&proxy, user], &[&second, &proxy, user]] {
            assert_eq!(run(shown(chain)).await, Ok(Some(USER.to_owned())), "{version:?}, {}", chain.len());
        }
    }
}

#[tokio::test]
async fn a_client_whose_certificate_does_not_verify_is_refused_with_an_alert() {
    let world = World::new();
    let user = &world.user;
    let expired = user.proxy("1", |draft| Draft { end: NOW - 1, ..full(draft) });
    let independent =
        user.proxy("1", |draft| draft.with(PROXY_CERT_INFO, true, &proxy_cert_info(None, super::fixture::INDEPENDENT)));
    let unknown = Credential::authority("/CN=Other").user(USER);
    let proxy = user.proxy("1", full);
    for version in VERSIONS {
        for (chain, words) in [
            (vec![&expired, user], "Expired"),
            (vec![&independent, user], "inherits no rights"),
            (vec![&unknown], "UnknownIssuer"),
            (vec![&proxy], "UnknownIssuer"),
        ] {
            let refused = handshake(&world, version, shown(&chain)).await.unwrap_err();
            assert!(refused.contains(words), "{version:?}: {refused}");
        }
    }
}

#[tokio::test]
async fn certificates_without_their_key_prove_nothing() {
    let world = World::new();
    let user = &world.user;
    let (proxy, own) = (user.proxy("1", full), world.authority.user("/CN=Thief"));
    for version in VERSIONS {
        for chain in [vec![user], vec![&proxy, user]] {
            let refused = handshake(&world, version, Some(Shown { chain, key: &own })).await.unwrap_err();
            assert!(refused.contains("BadSignature"), "{version:?}: {refused}");
        }
    }
}

/// Runs `openssl s_client` against a server on loopback. Returns the name that the server learns, or its error.
async fn with_openssl(world: &World, version: &str, chain: &[&Credential]) -> Result<Option<String>, String> {
    let trust = Arc::new(world.trust());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let path = |name: &str| world.dir.path().join(name).to_str().unwrap().to_owned();
    let mut args = vec!["s_client".to_owned(), "-connect".to_owned(), address, version.to_owned(), "-quiet".to_owned()];
    args.extend(["-alpn", "http/1.1", "-no-CAfile", "-no-CAstore", "-CApath"].map(str::to_owned));
    args.push(dev().capath.to_str().unwrap().to_owned());
    args.extend(["-attime".to_owned(), NOW.to_string(), "-verify_return_error".to_owned()]);
    if let Some((client, rest)) = chain.split_first() {
        write_pem(Path::new(&path("client.pem")), &[&client.cert]);
        std::fs::write(path("client.key"), client.key.serialize_pem()).unwrap();
        write_pem(Path::new(&path("rest.pem")), &rest.iter().map(|other| &other.cert).collect::<Vec<_>>());
        args.extend(["-cert".to_owned(), path("client.pem"), "-key".to_owned(), path("client.key")]);
        if !rest.is_empty() {
            args.extend(["-cert_chain".to_owned(), path("rest.pem")]);
        }
    }
    let client =
        tokio::task::spawn_blocking(move || openssl(&args.iter().map(String::as_str).collect::<Vec<_>>(), &[]));
    let (stream, _) = listener.accept().await.unwrap();
    let result = match TlsAcceptor::from(server(&trust)).accept(stream).await {
        Err(error) => Err(error.to_string()),
        Ok(mut stream) => {
            let chain = stream.get_ref().1.peer_certificates().map(<[_]>::to_vec);
            let name = chain.map(|chain| trust.identify(&chain, at(0)).unwrap().dn);
            stream.write_all(name.as_deref().unwrap_or("nobody").as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
            Ok(name)
        }
    };
    let answer = client.await.unwrap();
    if let Ok(name) = &result {
        assert_eq!(answer.stdout, name.as_deref().unwrap_or("nobody"), "{}", answer.stderr);
    } else {
        assert!(answer.stderr.contains("alert"), "{}", answer.stderr);
    }
    result
}

#[tokio::test]
async fn openssl_as_the_client_is_known_by_its_proxy() {
    let world = World::new();
    let user = &world.user;
    let proxy = user.proxy("1", full);
    let second = proxy.proxy("2", full);
    let expired = user.proxy("1", |draft| Draft { end: NOW - 1, ..full(draft) });
    for version in ["-tls1_2", "-tls1_3"] {
        assert_eq!(with_openssl(&world, version, &[]).await, Ok(None), "{version}");
        for chain in [&[user][..], &[&proxy, user], &[&second, &proxy, user]] {
            assert_eq!(with_openssl(&world, version, chain).await, Ok(Some(USER.to_owned())), "{version}");
        }
        let refused = with_openssl(&world, version, &[&expired, user]).await.unwrap_err();
        assert!(refused.contains("Expired"), "{version}: {refused}");
    }
}

#[test]
fn settings_refuse_files_without_certificate_or_with_another_key() {
    let world = World::new();
    let trust = Arc::new(world.trust());
    let with = |certificate: &Path, key: &Path| {
        let files = ServerFiles { certificate: certificate.to_owned(), key: key.to_owned() };
        server_config(&files, Arc::clone(&trust)).unwrap_err().chain()
    };
    let (dev, missing) = (dev(), world.dir.path().join("missing"));
    assert!(with(&missing, &dev.server_key).contains("missing: No such file"));
    assert!(with(&dev.server_key, &dev.server_key).contains("has no certificate"));
    assert!(with(&dev.server_cert, &dev.server_cert).contains("has no readable private key"));
    assert!(with(&dev.server_cert, &dev.key).contains("does not fit"));
}

#[test]
fn a_renewed_certificate_is_used_and_a_damaged_one_is_not() {
    let world = World::new();
    let dir = tempfile::tempdir().unwrap();
    let files = ServerFiles { certificate: dir.path().join("cert"), key: dir.path().join("key") };
    let write = |path: &Path, bytes: &[u8], age: u64| {
        std::fs::write(path, bytes).unwrap();
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_modified(at(0) - std::time::Duration::from_secs(age)).unwrap();
    };
    let copy = |dev: &Dev, age| {
        write(&files.certificate, &std::fs::read(&dev.server_cert).unwrap(), age);
        write(&files.key, &std::fs::read(&dev.server_key).unwrap(), age);
    };
    copy(dev(), 30);
    let tls = ServerTls::open(files.clone(), Arc::new(world.trust())).unwrap();
    let first = tls.current();
    assert!(Arc::ptr_eq(&tls.after_a_look(), &first), "nothing has changed");
    write(&files.certificate, b"half of a certificate", 20);
    assert!(Arc::ptr_eq(&tls.after_a_look(), &first), "it cannot be used");
    let renewed = tempfile::tempdir().unwrap();
    copy(&Dev::make(renewed.path(), None, at(0)).unwrap(), 10);
    assert!(!Arc::ptr_eq(&tls.after_a_look(), &first));
}
