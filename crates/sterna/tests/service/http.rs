//! Requests over connections that are kept: tests of every route send thousands.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use ureq::Agent;
use ureq::http::Request;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

/// Method of a request that has a body.
const WITH_BODY: [&str; 3] = ["POST", "PUT", "PATCH"];

/// Client with or without a certificate.
pub struct Http {
    agent: Agent,
    url: String,
}

/// Reply.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub media: String,
    pub body: String,
}

impl Reply {
    /// Returns the body as JSON. Panics if it is none.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

fn certificates(path: &Path) -> Vec<Certificate<'static>> {
    let pem = std::fs::read(path).unwrap();
    let items = parse_pem(&pem).map(Result::unwrap);
    items
        .filter_map(|item| if let PemItem::Certificate(certificate) = item { Some(certificate) } else { None })
        .collect()
}

impl Http {
    /// Creates a client. `capath`: directory with the authority of the service. `pair`: certificate and key.
    pub fn new(url: &str, capath: &Path, pair: Option<(&Path, &Path)>) -> Self {
        let authorities = std::fs::read_dir(capath).unwrap().map(|entry| entry.unwrap().path());
        let roots: Vec<_> = authorities.flat_map(|path| certificates(&path)).collect();
        let client = pair.map(|(cert, key)| {
            let key = PrivateKey::from_pem(&std::fs::read(key).unwrap()).unwrap();
            ClientCert::new_with_certs(&certificates(cert), key)
        });
        let tls = TlsConfig::builder()
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .root_certs(RootCerts::from(roots))
            .client_cert(client)
            .build();
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .tls_config(tls);
        Self { agent: config.build().new_agent(), url: url.to_owned() }
    }

    /// Sends a request with JSON, and a token if there is one.
    pub fn send(&self, method: &str, path: &str, token: Option<&str>, body: &[u8]) -> Reply {
        self.send_as(method, path, token, "application/json", body)
    }

    /// Sends a request with a body of this media type.
    pub fn send_as(&self, method: &str, path: &str, token: Option<&str>, media: &str, body: &[u8]) -> Reply {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.url));
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let sent = if WITH_BODY.contains(&method) {
            self.agent.run(request.header("content-type", media).body(body).unwrap())
        } else {
            self.agent.run(request.body(()).unwrap())
        };
        let mut response = sent.unwrap_or_else(|e| panic!("{method} {path}: {e}"));
        let media = response.headers().get("content-type").map_or("", |media| media.to_str().unwrap()).to_owned();
        let body = response.body_mut().read_to_vec().unwrap();
        Reply { status: response.status().as_u16(), media, body: String::from_utf8_lossy(&body).into_owned() }
    }
}

/// Returns a name as a part of a path.
pub fn encoded(name: &str) -> String {
    percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// Paths of the descriptions of both interfaces.
pub const DESCRIPTIONS: [&str; 2] = ["/api-docs/openapi.json", "/api/v1/openapi.json"];

/// Returns the operations of both descriptions: method, path and operation.
pub fn operations(http: &Http) -> Vec<(String, String, Value)> {
    let mut found = Vec::new();
    for path in DESCRIPTIONS {
        let description = http.send("GET", path, None, b"").json();
        for (path, item) in description["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                found.push((method.to_uppercase(), path.clone(), operation.clone()));
            }
        }
    }
    assert!(found.len() > 60, "{} operations", found.len());
    found
}
