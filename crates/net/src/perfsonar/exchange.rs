//! One request to a server, and its reply: bounded in bytes and time, and ended by a cancellation.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use serde_json::Value;
use sterna_proto::web::WebLocation;
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope, Setting};
use ureq::Agent;
use ureq::http::{Method, Request, StatusCode};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{ConnectProxyConnector, Connector, TcpConnector};

use super::tls::{NodeTls, NodeVerifier};
use super::{NodeTrust, REPLY_BYTES_MAX};
use crate::engine::Cancel;
use crate::web;

/// Maximum characters of a text from a server in an error. Reason: some lines; the diagnostics of limits have pages.
const TEXT_CHARS_MAX: usize = 1000;

/// Time after the limit of a request at which it is given up. Reason: the library checks its limit between reads, and a
/// server that sends byte by byte keeps it in one.
const LATE_MAX: Duration = Duration::from_secs(1);

/// Client of one server.
pub(super) struct Exchange {
    agent: Agent,
    verifier: Arc<NodeVerifier>,
    at: WebLocation,
    base: String,
    has_authority: bool,
}

/// Reply with any status.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    /// Method and URL, for messages.
    pub(super) tried: String,
    body: Vec<u8>,
}

/// Request: everything but the server.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) method: Method,
    /// Path below the URL of the server, or an absolute URL of the same server.
    pub(super) path: String,
    pub(super) body: Option<Value>,
    pub(super) time: Duration,
}

impl Ask {
    pub(super) fn get(path: impl Into<String>, time: Duration) -> Self {
        Self { method: Method::GET, path: path.into(), body: None, time }
    }

    pub(super) fn post(path: impl Into<String>, body: Value, time: Duration) -> Self {
        Self { method: Method::POST, path: path.into(), body: Some(body), time }
    }
}

impl Exchange {
    /// Creates the client of a server. Connects to nothing. Errors: `Usage`, also for a file that cannot be read.
    pub(super) fn new(at: &WebLocation, trust: &NodeTrust) -> Result<Self, Error> {
        let verifier = Arc::new(NodeVerifier::new(trust)?);
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            // A certificate for one host is not for another, and a task must not be posted twice.
            .max_redirects(0)
            .user_agent(concat!("sterna/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity");
        if at.is_this_host() {
            config = config.proxy(None);
        }
        let connector = ().chain(ConnectProxyConnector::default()).chain(TcpConnector::default());
        let connector = connector.chain(NodeTls::new(Arc::clone(&verifier))?);
        Ok(Self {
            agent: Agent::with_parts(config.build(), connector, DefaultResolver::default()),
            verifier,
            base: at.url().trim_end_matches('/').to_owned(),
            at: at.clone(),
            has_authority: trust.authority.is_some(),
        })
    }

    /// Returns the URL of the server without a slash at its end.
    pub(super) fn base(&self) -> &str {
        &self.base
    }

    /// Returns the URL of the server.
    pub(super) fn at(&self) -> &WebLocation {
        &self.at
    }

    /// Sends a request and waits for its reply, or for the cancellation.
    ///
    /// Errors: `Cancelled`; `Untrusted`; `Unreachable`, `Retry::After`; `Limit` for a reply that is too large.
    pub(super) fn send(&self, ask: &Ask, cancel: &Cancel) -> Result<Reply, Error> {
        self.send_with_grace(ask, cancel, Duration::ZERO)
    }

    /// Sends a request whose reply matters also after a cancellation: waits for `grace` from then on.
    pub(super) fn send_with_grace(&self, ask: &Ask, cancel: &Cancel, grace: Duration) -> Result<Reply, Error> {
        let (sender, steps) = mpsc::channel();
        let (agent, url, request, done) = (self.agent.clone(), self.url(&ask.path), ask.clone(), sender.clone());
        let exchange = move || {
            // Fails only after a cancellation, when nobody waits for the reply.
            let _ = done.send(Step::Done(exchange(&agent, &url, &request)));
        };
        let started = std::thread::Builder::new().name("perfsonar".to_owned()).spawn(exchange);
        started.map_err(|e| crate::no_thread("send a request to a perfSONAR node", e))?;
        // Fails only if the reply has arrived.
        let _at_cancel = cancel.on_cancel(move || drop(sender.send(Step::Cancelled)));
        match steps.recv_timeout(ask.time + LATE_MAX) {
            Ok(Step::Done(outcome)) => self.outcome(ask, outcome),
            Ok(Step::Cancelled) => match steps.recv_timeout(grace) {
                Ok(Step::Done(outcome)) => self.outcome(ask, outcome),
                _ => Err(cancelled()),
            },
            Err(_) => self.outcome(ask, Err(ureq::Error::Timeout(ureq::Timeout::Global))),
        }
    }

    fn outcome(&self, ask: &Ask, outcome: Result<(StatusCode, Vec<u8>), ureq::Error>) -> Result<Reply, Error> {
        let tried = format!("{} {}", ask.method, self.url(&ask.path));
        match outcome {
            Ok((status, body)) => Ok(Reply { status: status.as_u16(), tried, body }),
            Err(error) => Err(self.unanswered(&tried, &error, ask.time)),
        }
    }

    fn url(&self, path: &str) -> String {
        if path.starts_with("https://") || path.starts_with("http://") {
            return path.to_owned();
        }
        format!("{}{path}", self.base)
    }

    /// Returns the error of a request without a reply.
    fn unanswered(&self, tried: &str, error: &ureq::Error, time: Duration) -> Error {
        let failed = |kind, scope, text: String| Error::new(kind, scope, Phase::Prepare, format!("{tried}: {text}"));
        if let Some(rustls::Error::InvalidCertificate(why)) = web::tls_error(error) {
            return self.untrusted(tried, why);
        }
        match error {
            ureq::Error::BodyExceedsLimit(_) => failed(
                ErrorKind::Limit,
                Scope::Service,
                format!("the reply has more than {} MB, which no result has", REPLY_BYTES_MAX / 1_000_000),
            ),
            ureq::Error::Timeout(_) => {
                failed(ErrorKind::Unreachable, Scope::Path, format!("no reply within {} s", time.as_secs_f64()))
                    .retry(Retry::After)
            }
            ureq::Error::Io(_) | ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => {
                failed(ErrorKind::Unreachable, Scope::Path, web::said(error)).retry(Retry::After)
            }
            _ => failed(ErrorKind::Protocol, Scope::Service, web::said(error)),
        }
    }

    fn untrusted(&self, tried: &str, why: &rustls::CertificateError) -> Error {
        let failed =
            |text: String| Error::new(ErrorKind::Untrusted, Scope::Client, Phase::Prepare, format!("{tried}: {text}"));
        let Some(seen) = self.verifier.seen() else { return failed("the certificate cannot be read".to_owned()) };
        if let Some(expected) = self.verifier.keys().first() {
            let text = format!(
                "the server shows the key {seen}, and not {expected} as recorded or given: it was set up anew, or \
                 somebody is in between"
            );
            return failed(text).about(&[Setting::Trust]);
        }
        let refusal = web::refusal(why, self.has_authority);
        let text = format!("{}; or compare its key with the operator of the node, and accept it: {seen}", refusal.text);
        failed(text).about(&[Setting::WebAuthority, Setting::Trust])
    }
}

/// Event that ends a wait.
enum Step {
    /// The reply, or its failure.
    Done(Result<(StatusCode, Vec<u8>), ureq::Error>),
    /// The user has cancelled.
    Cancelled,
}

fn exchange(agent: &Agent, url: &str, ask: &Ask) -> Result<(StatusCode, Vec<u8>), ureq::Error> {
    let request = Request::builder().method(&ask.method).uri(url).header("accept", "application/json");
    let response = match &ask.body {
        Some(body) => {
            let request = request.header("content-type", "application/json").body(body.to_string())?;
            agent.run(agent.configure_request(request).timeout_global(Some(ask.time)).build())?
        }
        None => {
            let request = agent.configure_request(request.body(())?);
            agent.run(request.timeout_global(Some(ask.time)).build())?
        }
    };
    let status = response.status();
    let body = response.into_body().into_with_config().limit(REPLY_BYTES_MAX).read_to_vec()?;
    Ok((status, body))
}

impl Reply {
    /// Returns the JSON of a reply with status 200. Errors: the server refuses, or the reply is not JSON.
    pub(super) fn json(&self) -> Result<Value, Error> {
        if self.status != 200 {
            return Err(self.refusal());
        }
        serde_json::from_slice(&self.body).map_err(|e| {
            let begin: String = String::from_utf8_lossy(&self.body).chars().take(40).collect();
            self.foreign(&format!("the reply is not JSON; it begins with {:?}", begin)).caused_by(e)
        })
    }

    /// Returns the size of the body in bytes.
    pub(super) fn size(&self) -> usize {
        self.body.len()
    }

    /// Returns the error of a reply that is none of this interface.
    pub(super) fn foreign(&self, why: &str) -> Error {
        let text = format!("{}: {why}: is this the URL of a perfSONAR server?", self.tried);
        Error::new(ErrorKind::Protocol, Scope::Service, Phase::Prepare, text)
    }

    /// Returns the error of a status that is not 200, with the text of the server.
    pub(super) fn refusal(&self) -> Error {
        let reason = StatusCode::from_u16(self.status).ok().and_then(|status| status.canonical_reason());
        let body = String::from_utf8_lossy(&self.body);
        let body = body.trim();
        let mut said: String = match body.starts_with('<') {
            // A page of a web server in front of the node.
            true => String::new(),
            false => body.chars().take(TEXT_CHARS_MAX).collect(),
        };
        if said.chars().count() < body.chars().count() && !said.is_empty() {
            said.push('…');
        }
        let colon = if said.is_empty() { "" } else { ": " };
        let text = format!("{}: {} {}{colon}{said}", self.tried, self.status, reason.unwrap_or_default());
        let failed = |kind, scope| Error::new(kind, scope, Phase::Prepare, text).from_peer();
        match self.status {
            401 | 403 => failed(ErrorKind::Denied, Scope::Service),
            404 | 410 => failed(ErrorKind::NotFound, Scope::Service),
            409 => failed(ErrorKind::Busy, Scope::Service).retry(Retry::After),
            429 | 500 | 502 | 503 | 504 => failed(ErrorKind::Unreachable, Scope::Path).retry(Retry::After),
            _ => failed(ErrorKind::Protocol, Scope::Service),
        }
    }
}

/// Returns the URL of a server; one without a path gets `path`. Errors: `Usage` for a URL with a query.
pub(super) fn with_path(url: &WebLocation, path: &str) -> Result<WebLocation, Error> {
    if url.url().contains('?') {
        let text = format!("{url}: a URL with a query; give the URL without ? and what follows");
        return Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text));
    }
    if url.path() == "/" { WebLocation::parse(&format!("{}{path}", url.origin())) } else { Ok(url.clone()) }
}

/// Returns the error of a cancellation.
pub(super) fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Transfer, "stopped")
}
