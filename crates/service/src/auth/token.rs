//! Bearer tokens: JSON Web Tokens (RFC 7519) of issuers that the configuration names.
//!
//! Verifies signature, issuer, audience, times and scopes. Keys of an issuer are found by its discovery document and
//! cached. Refuses tokens without an end, symmetric keys, and issuers that are not configured.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jsonwebtoken::dangerous::insecure_decode_claims;
use jsonwebtoken::jwk::{Jwk, JwkSet};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use parking_lot::Mutex;
use rustls::crypto::ring;
use serde::Deserialize;
use sha1::{Digest, Sha1};
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use crate::caller::Levels;

/// Longest token in bytes. Reason: servers take about 8,000 bytes in all headers together.
const TOKEN_BYTES_MAX: usize = 16 << 10;

/// Time for which the keys of an issuer count without another look.
const KEYS_TIME: Duration = Duration::from_secs(3600);

/// Least time between two looks for the keys of an issuer. Reason: tokens with made-up keys must not make this service
/// flood the issuer.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Time limit of a request to an issuer.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(10);

/// Maximum bytes of a document of an issuer. Reason: a key set has some kB.
const DOCUMENT_BYTES_MAX: u64 = 1 << 20;

/// Difference of clocks that is allowed, in seconds. Source: the usual default of libraries.
const LEEWAY_S: u64 = 60;

/// Algorithms of signatures. Those with a shared key are no proof of an issuer.
const ALGORITHMS: [Algorithm; 9] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

/// Digits of the identifier of a credential. Source: FTS3 cuts the SHA-1 digest of issuer and subject.
const CREDENTIAL_DIGITS: usize = 16;

/// Issuer of tokens.
#[derive(Clone, Debug)]
pub struct Issuer {
    /// `iss` of its tokens.
    pub url: String,
    /// Audiences, of which a token must have one.
    pub audiences: Vec<String>,
    /// Virtual organisation of its tokens.
    pub vo: String,
    /// Levels by scope.
    pub scopes: BTreeMap<String, Levels>,
    /// File with its keys, instead of those at its URL.
    pub keys: Option<PathBuf>,
    /// File with additional authorities for its URL.
    pub authority: Option<PathBuf>,
}

/// Verified token.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenIdentity {
    /// Issuer and subject, separated by a space: subjects of two issuers may be the same.
    pub name: String,
    /// Identifier of the credential.
    pub credential: String,
    /// Virtual organisation.
    pub vo: String,
    /// Levels of the scopes.
    pub levels: Levels,
}

/// Claims of a token that Sterna reads.
#[derive(Deserialize)]
struct Claims {
    iss: String,
    sub: Option<String>,
    /// Scopes, separated by spaces (RFC 8693).
    scope: Option<String>,
}

/// Part of a discovery document (OpenID Connect Discovery 1.0).
#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    jwks_uri: String,
}

struct Cached {
    keys: Arc<JwkSet>,
    read: Instant,
}

/// Issuers, with their cached keys.
pub struct Tokens {
    issuers: Vec<Issuer>,
    cached: Mutex<HashMap<String, Cached>>,
}

fn untrusted(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Untrusted, Scope::Client, Phase::Prepare, text)
}

impl Tokens {
    /// Creates it. Dials nothing.
    pub fn new(issuers: Vec<Issuer>) -> Arc<Self> {
        Arc::new(Self { issuers, cached: Mutex::default() })
    }

    /// Verifies a token. Blocks while keys are read.
    ///
    /// Errors: `Untrusted`, with the reason and never with the token; `Unreachable`, when the keys cannot be read.
    pub fn verify(&self, token: &str) -> Result<TokenIdentity, Error> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(untrusted(format!("a token of {} bytes: the maximum is {TOKEN_BYTES_MAX}", token.len())));
        }
        let header = decode_header(token).map_err(|e| untrusted("the token is no JSON Web Token").caused_by(e))?;
        if !ALGORITHMS.contains(&header.alg) {
            return Err(untrusted(format!("the token is signed by {:?}, which proves no issuer", header.alg)));
        }
        // Only to find the issuer. Everything is verified below.
        let claimed: Claims = insecure_decode_claims(token)
            .map_err(|e| untrusted("the claims of the token are unreadable").caused_by(e))?;
        let issuer = self.issuers.iter().find(|issuer| is_same(&issuer.url, &claimed.iss));
        let issuer =
            issuer.ok_or_else(|| untrusted("the issuer of the token is not one of those that the service trusts"))?;
        let key = self.key(issuer, header.kid.as_deref())?;
        let key =
            DecodingKey::from_jwk(&key).map_err(|e| untrusted("the key of the token is unusable").caused_by(e))?;
        let mut validation = Validation::new(header.alg);
        validation.leeway = LEEWAY_S;
        validation.validate_nbf = true;
        validation.set_audience(&issuer.audiences);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        validation.set_issuer(&[&claimed.iss]);
        let verified = decode::<Claims>(token, &key, &validation);
        let claims = verified.map_err(|e| untrusted("the token is not valid here").caused_by(e))?.claims;
        let subject =
            claims.sub.filter(|subject| !subject.is_empty()).ok_or_else(|| untrusted("the token has no subject"))?;
        let levels = levels_of(issuer, claims.scope.as_deref().unwrap_or_default());
        Ok(TokenIdentity {
            name: format!("{} {subject}", issuer.url),
            credential: credential_id(&issuer.url, &subject),
            vo: issuer.vo.clone(),
            levels,
        })
    }

    /// Returns the key of a token. Reads the keys of the issuer again if it is not among those that are cached.
    fn key(&self, issuer: &Issuer, id: Option<&str>) -> Result<Jwk, Error> {
        let missing = || untrusted("the issuer has no key with the identifier of the token");
        let (keys, age) = match self.cached.lock().get(&issuer.url) {
            Some(cached) => (Some(Arc::clone(&cached.keys)), cached.read.elapsed()),
            None => (None, Duration::MAX),
        };
        let found = keys.as_ref().and_then(|keys| find(keys, id));
        match found {
            Some(key) if age < KEYS_TIME => return Ok(key),
            None if age < LOOK_AGAIN => return Err(missing()),
            _ => {}
        }
        match read_keys(issuer) {
            Ok(keys) => {
                let keys = Arc::new(keys);
                let cached = Cached { keys: Arc::clone(&keys), read: Instant::now() };
                self.cached.lock().insert(issuer.url.clone(), cached);
                find(&keys, id).ok_or_else(missing)
            }
            // An issuer that cannot be reached for a time does not stop the service.
            Err(error) => found.ok_or(error),
        }
    }
}

/// Returns true if two issuers are the same: some write a slash at the end.
fn is_same(one: &str, other: &str) -> bool {
    one.trim_end_matches('/') == other.trim_end_matches('/')
}

/// Returns the key with an identifier; the only key, if the token names none.
fn find(keys: &JwkSet, id: Option<&str>) -> Option<Jwk> {
    match (id, keys.keys.as_slice()) {
        (Some(id), _) => keys.find(id).cloned(),
        (None, [only]) => Some(only.clone()),
        (None, _) => None,
    }
}

/// Returns the highest level of each operation that the scopes give. A scope with a path (`storage.read:/x`) counts as
/// itself only.
fn levels_of(issuer: &Issuer, scopes: &str) -> Levels {
    let mut levels = Levels::default();
    for more in scopes.split_ascii_whitespace().filter_map(|scope| issuer.scopes.get(scope)) {
        levels.iter_mut().zip(more).for_each(|(level, more)| *level = (*level).max(*more));
    }
    levels
}

/// Returns the identifier of the credential of a subject.
fn credential_id(issuer: &str, subject: &str) -> String {
    let digest = Sha1::new_with_prefix(issuer).chain_update(subject).finalize();
    digest.iter().take(CREDENTIAL_DIGITS / 2).map(|byte| format!("{byte:02x}")).collect()
}

fn read_keys(issuer: &Issuer) -> Result<JwkSet, Error> {
    if let Some(path) = &issuer.keys {
        let tried = || format!("read the keys of an issuer from {}", path.display());
        let failed = |text: String| Error::new(ErrorKind::Io, Scope::Service, Phase::Prepare, text);
        let bytes = std::fs::read(path).map_err(|e| failed(tried()).caused_by(e))?;
        return serde_json::from_slice(&bytes).map_err(|e| failed(tried()).caused_by(e));
    }
    let agent = agent(issuer)?;
    let url = format!("{}/.well-known/openid-configuration", issuer.url.trim_end_matches('/'));
    let discovery: Discovery = get(&agent, &url)?;
    if !is_same(&discovery.issuer, &issuer.url) {
        let text = format!("{url} is of the issuer {}, and not of {}", discovery.issuer, issuer.url);
        return Err(Error::new(ErrorKind::Untrusted, Scope::Service, Phase::Prepare, text));
    }
    get(&agent, &discovery.jwks_uri)
}

/// Returns a client of the servers of an issuer. It speaks HTTPS only.
fn agent(issuer: &Issuer) -> Result<ureq::Agent, Error> {
    let mut roots: Vec<Certificate<'static>> = rustls_native_certs::load_native_certs()
        .certs
        .iter()
        .map(|der| Certificate::from_der(der).to_owned())
        .collect();
    if let Some(path) = &issuer.authority {
        let failed = |text: &str| {
            let text = format!("read the authorities of an issuer from {}{text}", path.display());
            Error::new(ErrorKind::Io, Scope::Service, Phase::Prepare, text)
        };
        let bytes = std::fs::read(path).map_err(|e| failed("").caused_by(e))?;
        for item in parse_pem(&bytes) {
            if let PemItem::Certificate(certificate) = item.map_err(|e| failed(": no PEM").caused_by(e))? {
                roots.push(certificate);
            }
        }
    }
    let tls = TlsConfig::builder()
        .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
        .root_certs(RootCerts::from(roots))
        .build();
    let config = ureq::Agent::config_builder().tls_config(tls).https_only(true).max_redirects(0);
    Ok(ureq::Agent::new_with_config(config.timeout_global(Some(REQUEST_TIME_MAX)).build()))
}

fn get<T: for<'de> Deserialize<'de>>(agent: &ureq::Agent, url: &str) -> Result<T, Error> {
    let failed = || {
        let text = format!("read {url}");
        Error::new(ErrorKind::Unreachable, Scope::Service, Phase::Prepare, text).retry(Retry::After)
    };
    let mut reply = agent.get(url).call().map_err(|e| failed().caused_by(e))?;
    let mut bytes = Vec::new();
    let body = reply.body_mut().as_reader();
    body.take(DOCUMENT_BYTES_MAX).read_to_end(&mut bytes).map_err(|e| failed().caused_by(e))?;
    serde_json::from_slice(&bytes).map_err(|e| failed().caused_by(e))
}

#[cfg(test)]
mod tests {
    use jsonwebtoken::{EncodingKey, Header, encode};
    use rcgen::{KeyPair, PublicKeyData};
    use serde_json::{Value, json};

    use super::*;
    use crate::caller::{Level, Operation};

    const NOW: u64 = 4_000_000_000;

    /// Issuer with one key, whose keys are in a file.
    struct World {
        key: KeyPair,
        tokens: Arc<Tokens>,
        _directory: tempfile::TempDir,
    }

    impl World {
        fn new() -> Self {
            use base64::Engine;
            let key = KeyPair::generate().unwrap();
            let point = key.der_bytes();
            let part = |at: usize| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(&point[at..at + 32]);
            let jwk = json!({"kty": "EC", "crv": "P-256", "kid": "k", "x": part(1), "y": part(33)});
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("keys");
            std::fs::write(&file, json!({"keys": [jwk]}).to_string()).unwrap();
            let mut own = Levels::default();
            own[Operation::Transfer as usize] = Level::Own;
            let mut all = own;
            all[Operation::Config as usize] = Level::All;
            let issuer = Issuer {
                url: "https://iam.example/".to_owned(),
                audiences: vec!["fts".to_owned(), "https://fts.example:8446".to_owned()],
                vo: "testvo".to_owned(),
                scopes: BTreeMap::from([("fts".to_owned(), own), ("fts:admin".to_owned(), all)]),
                keys: Some(file),
                authority: None,
            };
            Self { key, tokens: Tokens::new(vec![issuer]), _directory: directory }
        }

        fn verify(&self, change: impl FnOnce(&mut Value, &mut Header)) -> Result<TokenIdentity, Error> {
            self.verify_signed_by(&self.key, change)
        }

        fn verify_signed_by(
            &self,
            key: &KeyPair,
            change: impl FnOnce(&mut Value, &mut Header),
        ) -> Result<TokenIdentity, Error> {
            let mut claims =
                json!({"iss": "https://iam.example", "sub": "me", "aud": "fts", "exp": NOW, "scope": "openid fts"});
            let mut header = Header::new(Algorithm::ES256);
            header.kid = Some("k".to_owned());
            change(&mut claims, &mut header);
            let key = match header.alg {
                Algorithm::HS256 => EncodingKey::from_secret(self.key.der_bytes()),
                _ => EncodingKey::from_ec_pem(key.serialize_pem().as_bytes()).unwrap(),
            };
            self.tokens.verify(&encode(&header, &claims, &key).unwrap())
        }
    }

    #[test]
    fn a_token_has_the_levels_of_its_scopes_and_no_others() {
        let world = World::new();
        let good = world.verify(|_, _| {}).unwrap();
        assert_eq!((good.name.as_str(), good.vo.as_str()), ("https://iam.example/ me", "testvo"));
        let level = |identity: &TokenIdentity, operation| identity.levels[operation as usize];
        assert_eq!(level(&good, Operation::Transfer), Level::Own);
        assert_eq!(level(&good, Operation::Config), Level::None);
        let more = world.verify(|claims, _| claims["scope"] = "fts fts:admin".into()).unwrap();
        assert_eq!((level(&more, Operation::Transfer), level(&more, Operation::Config)), (Level::Own, Level::All));
        assert_eq!(more.credential, good.credential);
        for scope in [json!("openid"), json!("fts:/path"), Value::Null] {
            let none = world.verify(|claims, _| claims["scope"] = scope.clone()).unwrap();
            assert_eq!(none.levels, Levels::default(), "{scope}");
        }
    }

    #[test]
    fn a_token_that_proves_nothing_is_refused() {
        let world = World::new();
        let refused = |what: &str, change: &dyn Fn(&mut Value, &mut Header)| {
            let error = world.verify(change).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Untrusted, "{what}: {}", error.chain());
        };
        refused("expired", &|claims, _| claims["exp"] = 1_000_000_000.into());
        refused("no end", &|claims, _| drop(claims.as_object_mut().unwrap().remove("exp")));
        refused("not valid yet", &|claims, _| claims["nbf"] = NOW.into());
        refused("another audience", &|claims, _| claims["aud"] = "other".into());
        refused("no audience", &|claims, _| drop(claims.as_object_mut().unwrap().remove("aud")));
        refused("another issuer", &|claims, _| claims["iss"] = "https://evil.example".into());
        refused("a subject that is empty", &|claims, _| claims["sub"] = "".into());
        refused("an unknown key", &|_, header| header.kid = Some("x".to_owned()));
        refused("a shared key", &|_, header| header.alg = Algorithm::HS256);
        let other = KeyPair::generate().unwrap();
        assert_eq!(world.verify_signed_by(&other, |_, _| {}).unwrap_err().kind, ErrorKind::Untrusted);
        let unsigned = "eyJhbGciOiJub25lIn0.eyJpc3MiOiJodHRwczovL2lhbS5leGFtcGxlIn0.";
        for text in ["", "a.b.c", "....", unsigned, &"x".repeat(TOKEN_BYTES_MAX + 1)] {
            let error = world.tokens.verify(text).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Untrusted, "{text}");
        }
    }

    #[test]
    fn no_error_has_a_part_of_the_token() {
        let world = World::new();
        let secret = "c2VjcmV0";
        for token in [format!("{secret}.{secret}.{secret}"), secret.to_owned()] {
            let error = world.tokens.verify(&token).unwrap_err().chain();
            assert!(!error.contains(secret), "{error}");
        }
    }
}
