//! Service with several users: issuers of tokens for two virtual organisations, and a certificate.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

use crate::client::Serve;
use crate::http::{Http, Reply};

/// Time after which the tokens of the tests are not valid any more: the year 2100.
const EXPIRES: u64 = 4_102_444_800;

/// Levels by scope, as in the configuration.
const SCOPES: &str = r#"{ own = { deleg = "own", transfer = "own" }, vo = { deleg = "own", transfer = "vo" },
    read = { config = "vo" }, operator = { deleg = "own", transfer = "all", config = "all" } }"#;

/// Somebody who sends requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Without credentials.
    Nobody,
    /// With a token that has another signature.
    Forger,
    /// With a token without a scope that counts.
    Powerless,
    /// Owner of the jobs, with the level `own`.
    Owner,
    /// Another user of the same VO, with the level `own`.
    Colleague,
    /// Another user of the same VO, with the level `vo`.
    Coordinator,
    /// User of another VO, with the level `vo`.
    Stranger,
    /// With a certificate, and the levels of everybody.
    Certificate,
    /// May read settings.
    Reader,
    /// May do everything.
    Operator,
}

impl Who {
    pub const ALL: [Self; 10] = [
        Self::Nobody,
        Self::Forger,
        Self::Powerless,
        Self::Owner,
        Self::Colleague,
        Self::Coordinator,
        Self::Stranger,
        Self::Certificate,
        Self::Reader,
        Self::Operator,
    ];
}

/// Issuer of tokens.
struct Issuer {
    url: String,
    key: EncodingKey,
}

impl Issuer {
    /// Creates an issuer with a new key, and adds it to a configuration.
    fn new(directory: &Path, vo: &str, config: &mut String) -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        // An uncompressed point: 4, then both coordinates (SEC 1, section 2.3.3).
        let point = key.public_key_raw();
        let keys = json!({"keys": [{
            "kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": vo,
            "x": URL_SAFE_NO_PAD.encode(&point[1..33]), "y": URL_SAFE_NO_PAD.encode(&point[33..65]),
        }]});
        let file = directory.join(format!("{vo}.jwks"));
        std::fs::write(&file, keys.to_string()).unwrap();
        let url = format!("https://{vo}.example");
        let scopes = SCOPES.replace('\n', " ");
        config.push_str(&format!(
            "[[issuer]]\nurl = \"{url}\"\naudiences = [\"fts\"]\nvo = \"{vo}\"\nkeys = \"{}\"\nscopes = {scopes}\n",
            file.display()
        ));
        Self { url, key: EncodingKey::from_ec_pem(key.serialize_pem().as_bytes()).unwrap() }
    }

    /// Returns a token of a user.
    fn token(&self, vo: &str, user: &str, scope: &str) -> String {
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some(vo.to_owned());
        let claims = json!({"iss": self.url, "sub": user, "aud": "fts", "scope": scope, "nbf": 0, "exp": EXPIRES});
        encode(&header, &claims, &self.key).unwrap()
    }
}

/// Service with its users.
pub struct People {
    pub serve: Serve,
    anonymous: Http,
    certified: Http,
    tokens: Vec<(Who, String)>,
}

impl People {
    /// Starts a service. `arguments`: more of `sterna serve`.
    pub fn start(arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut config = String::new();
        let alpha = Issuer::new(directory.path(), "alpha", &mut config);
        let beta = Issuer::new(directory.path(), "beta", &mut config);
        let file = directory.path().join("config.toml");
        std::fs::write(&file, config).unwrap();
        let mut tokens = vec![
            (Who::Powerless, alpha.token("alpha", "paul", "openid")),
            (Who::Owner, alpha.token("alpha", "alice", "own")),
            (Who::Colleague, alpha.token("alpha", "bob", "own")),
            (Who::Coordinator, alpha.token("alpha", "clara", "openid vo")),
            (Who::Stranger, beta.token("beta", "alice", "vo")),
            (Who::Reader, alpha.token("alpha", "rita", "read")),
            (Who::Operator, beta.token("beta", "omar", "operator")),
        ];
        let forged = format!("{}AAAA", &tokens[1].1[..tokens[1].1.len() - 4]);
        tokens.push((Who::Forger, forged));
        let serve = Serve::start_with_users(&file, directory, arguments);
        let pair: (PathBuf, PathBuf) = serve.pair();
        let capath = Path::new(serve.capath()).to_owned();
        let anonymous = Http::new(serve.url(), &capath, None);
        let certified = Http::new(serve.url(), &capath, Some((&pair.0, &pair.1)));
        Self { serve, anonymous, certified, tokens }
    }

    /// Returns the token of somebody.
    pub fn token(&self, who: Who) -> Option<&str> {
        self.tokens.iter().find(|(other, _)| *other == who).map(|(_, token)| token.as_str())
    }

    /// Sends a request of somebody.
    pub fn send(&self, who: Who, method: &str, path: &str, body: &Value) -> Reply {
        let http = if who == Who::Certificate { &self.certified } else { &self.anonymous };
        let body = if body.is_null() { String::new() } else { body.to_string() };
        http.send(method, path, self.token(who), body.as_bytes())
    }

    /// Returns the client without a certificate.
    pub fn anonymous(&self) -> &Http {
        &self.anonymous
    }

    /// Submits a job of the owner that does not end by itself. Returns it and its file.
    pub fn job(&self) -> (String, u64) {
        let file = json!({"sources": ["mock://a.example/f?size=1"], "destination": "mock://b.example/f?time=600"});
        let reply = self.send(Who::Owner, "POST", "/api/v1/jobs", &json!({"files": [file]}));
        assert_eq!(reply.status, 201, "{reply:?}");
        let id = reply.json()["id"].as_str().unwrap().to_owned();
        let files = self.send(Who::Owner, "GET", &format!("/api/v1/jobs/{id}/files"), &Value::Null).json();
        (id, files["files"][0]["number"].as_u64().unwrap())
    }
}
