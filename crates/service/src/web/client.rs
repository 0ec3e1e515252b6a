//! Requests to storages and the heads of their answers, with redirects.
//!
//! Follows redirects by hand: only to HTTP and HTTPS, without the token if the host changes, without the proxy if the
//! domain changes, and never from a public host to an address that is not public. DELETE and MOVE stay in their domain.
//! Refuses to know other verbs and their statuses: `storage` and others do.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION, USER_AGENT};
use hyper::{Method, Request as HttpRequest};
use parking_lot::Mutex;
use sterna_proto::web::WebLocation;
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::address::Reach;
use super::connection::{Connection, Connections, Identity};
use super::failure;
use super::payload::Payload;
use crate::credentials::Secret;

/// Maximum number of redirects of a request. Source: dCache follows 20; real chains have one or two.
const REDIRECTS_MAX: usize = 10;

/// Maximum number of times that a request which changes nothing is sent again when its connection fails.
const HARMLESS_REPEATS_MAX: u32 = 2;

/// Maximum bytes of an answer that are read for its text. Reason: error texts are shorter.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// Time limit to read such a text. Reason: the status is there already.
const TEXT_TIME_MAX: Duration = Duration::from_secs(10);

/// Maximum number of requests for digests at one storage at the same time. Reason: XRootD 5.5.3 computes four at once,
/// and answered 9 of 66 simultaneous requests never.
const DIGESTS_MAX: usize = 8;

/// Maximum number of storages whose requests are counted. Reason: some MB of memory.
const STORAGES_MAX: usize = 10_000;

/// Methods that follow no redirect to another domain. Reason: a hostile storage would name a file of the user
/// elsewhere. Within the domain: redirectors of XRootD and dCache send them to their disk servers.
const METHODS_OF_ONE_DOMAIN: [&str; 2] = ["DELETE", "MOVE"];

/// Labels below a domain of a country under which strangers register names (`ac.uk`). Guess: covers the storages of
/// research networks.
const SHARED_LABELS: [&str; 7] = ["ac", "co", "com", "edu", "gov", "net", "org"];

/// Header with the token of the passive party of a third-party copy.
const TRANSFER_AUTHORIZATION: HeaderName = HeaderName::from_static("transferheaderauthorization");

/// Storage of a transfer at one end: a file there, and the credential for it.
#[derive(Clone, Debug)]
pub(super) struct End {
    /// File.
    pub at: WebLocation,
    /// Identity of the user there.
    pub identity: Identity,
    /// End of the transfer.
    pub scope: Scope,
}

impl End {
    /// Returns the same storage with another file.
    pub fn with(&self, at: WebLocation) -> Self {
        Self { at, ..self.clone() }
    }
}

/// Request for a file.
pub(super) struct Request<'a> {
    /// Method.
    pub method: &'static str,
    /// File and credential.
    pub end: &'a End,
    /// Headers.
    pub headers: Vec<(&'static str, String)>,
    /// Time limit to the head of the answer.
    pub time: Duration,
    /// Phase of the transfer.
    pub phase: Phase,
    /// Token of the other party of a third-party copy.
    pub passive_token: Option<&'a Secret>,
}

impl Request<'_> {
    /// Returns method and location, for errors.
    pub fn tried(&self) -> String {
        format!("{} {}", self.method, self.end.at)
    }

    /// Returns a text of the storage without the tokens of the request.
    pub fn hide_in(&self, text: &str) -> String {
        let tokens = [self.end.identity.token.as_ref(), self.passive_token];
        tokens.into_iter().flatten().fold(text.to_owned(), |text, token| token.hide_in(&text))
    }

    /// Creates an error of the end that gets the request.
    pub fn failed(&self, kind: ErrorKind, text: &str) -> Error {
        failure::error(kind, self.end.scope, self.phase, format!("{}: {text}", self.tried()))
    }
}

/// Place of the next request of a chain of redirects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    /// Location.
    pub at: WebLocation,
    /// True if the token may be sent there.
    pub is_authorized: bool,
    /// True if the proxy may be shown there.
    shows_proxy: bool,
    reach: Reach,
    count: usize,
}

impl Route {
    /// Returns the beginning of a chain.
    pub fn new(at: WebLocation) -> Self {
        Self { at, is_authorized: true, shows_proxy: true, reach: Reach::Named, count: 0 }
    }

    /// Returns the place after a redirect to `reference`. `is_public`: the storage that sent it has a public address.
    ///
    /// Errors: the text names what is wrong.
    fn after(&self, reference: &str, is_public: bool) -> Result<Self, String> {
        if self.count >= REDIRECTS_MAX {
            return Err(format!("more than {REDIRECTS_MAX} redirects"));
        }
        let at = self.at.join(reference).map_err(|e| format!("a redirect to {}", e.text()))?;
        let is_downgraded = self.at.is_encrypted() && !at.is_encrypted();
        let is_same_host = at.host() == self.at.host();
        Ok(Self {
            is_authorized: self.is_authorized && is_same_host && !is_downgraded,
            shows_proxy: self.shows_proxy && (is_same_host || is_same_domain(self.at.host(), at.host())),
            reach: if is_public { Reach::Public } else { self.reach },
            count: self.count + 1,
            at,
        })
    }
}

/// Returns true if two host names look like names of one owner: they share the last two labels, or the last three
/// below a domain like `ac.uk`. An address has no owner.
fn is_same_domain(one: &str, other: &str) -> bool {
    let domain = |host: &str| {
        let host = host.trim_end_matches('.');
        let mut labels = host.rsplit('.');
        let (top, second) = (labels.next()?, labels.next()?);
        let is_shared = top.len() == 2 && SHARED_LABELS.contains(&second);
        let third = if is_shared { Some(labels.next()?.to_owned()) } else { None };
        host.parse::<IpAddr>().is_err().then(|| (top.to_owned(), second.to_owned(), third))
    };
    domain(one).is_some_and(|owner| domain(other) == Some(owner))
}

/// Answer to a request.
pub(super) struct Reply {
    /// Status.
    pub status: u16,
    /// Headers.
    pub headers: HeaderMap,
    body: Incoming,
    connection: Connection,
}

impl Reply {
    /// Returns true for a status that reports success.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Returns the next bytes of the body; `None` at its end.
    pub async fn bytes(&mut self) -> Result<Option<Bytes>, hyper::Error> {
        while let Some(frame) = self.body.frame().await {
            // Another kind of frame has trailers.
            if let Ok(bytes) = frame?.into_data() {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }
}

/// Client for all storages.
pub(super) struct Client {
    connections: Connections,
    /// Memory of streamed transfers, in blocks.
    pub memory: Arc<Semaphore>,
    /// Places for requests for digests, by storage.
    digests: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl Client {
    /// Creates it. `memory_blocks`: blocks of file data that all streamed transfers together may hold.
    pub fn new(connections: Connections, memory_blocks: usize) -> Self {
        Self { connections, memory: Arc::new(Semaphore::new(memory_blocks)), digests: Mutex::default() }
    }

    /// Waits for a place for a request for a digest.
    pub async fn digest_place(&self, end: &End) -> Option<OwnedSemaphorePermit> {
        let places = {
            let mut storages = self.digests.lock();
            if storages.len() >= STORAGES_MAX {
                // Those without a request have no other owner.
                storages.retain(|_, places| Arc::strong_count(places) > 1);
            }
            let places = storages.entry(end.at.origin().to_owned());
            Arc::clone(places.or_insert_with(|| Arc::new(Semaphore::new(DIGESTS_MAX))))
        };
        // The semaphore is never closed.
        places.acquire_owned().await.ok()
    }

    /// Sends a request without a body, and follows redirects. Errors: no answer, or a redirect that is refused. Every
    /// other status is an answer.
    pub async fn send(&self, request: &Request<'_>) -> Result<Reply, Error> {
        self.send_with(request, None).await
    }

    /// Sends a request with a small body. As [`Client::send`] in all else.
    pub async fn send_with(&self, request: &Request<'_>, body: Option<&'static str>) -> Result<Reply, Error> {
        let payload = || body.map_or(Payload::Empty, |body| Payload::Whole(Some(Bytes::from_static(body.as_bytes()))));
        let mut route = Route::new(request.end.at.clone());
        loop {
            let exchange = self.exchange(request, &route, payload(), |_, _| {});
            let reply = match timeout(request.time, exchange).await {
                Ok(reply) => reply?,
                Err(_) => {
                    let text = format!("no answer within {} s", request.time.as_secs());
                    return Err(request.failed(ErrorKind::Unreachable, &text));
                }
            };
            match self.redirected(request, &route, &reply)? {
                None => return Ok(reply),
                Some(next) => {
                    route = next;
                    self.finish(reply).await;
                }
            }
        }
    }

    /// Returns the place to which an answer redirects; `None`: it is no redirect.
    pub fn redirected(&self, request: &Request<'_>, route: &Route, reply: &Reply) -> Result<Option<Route>, Error> {
        if !matches!(reply.status, 301 | 302 | 303 | 307 | 308) {
            return Ok(None);
        }
        let Some(reference) = reply.headers.get(LOCATION).and_then(|value| value.to_str().ok()) else {
            return Err(request.failed(ErrorKind::Protocol, "a redirect without Location"));
        };
        let next = route.after(reference, reply.connection.is_public());
        let next = next.map_err(|text| request.failed(ErrorKind::Protocol, &text))?;
        // A proxy follows the same rule.
        if METHODS_OF_ONE_DOMAIN.contains(&request.method) && !next.shows_proxy {
            let text = format!("a redirect to {}: {} is sent to no other domain", next.at, request.method);
            return Err(request.failed(ErrorKind::Denied, &text));
        }
        self.connections.check_host(&next.at).map_err(|e| {
            let text = format!("a redirect to {}: {}", next.at, e.text());
            request.failed(ErrorKind::Denied, &text)
        })?;
        if request.passive_token.is_some() && route.at.is_encrypted() && !next.at.is_encrypted() {
            return Err(request.failed(ErrorKind::Denied, "a redirect to plain HTTP, which would show a token"));
        }
        Ok(Some(next))
    }

    /// Sends one request. A connection that was kept may be closed: then a new one is tried, once, if the storage
    /// cannot have seen the request, or the request changes nothing. Such a request has one more try: an XRootD under
    /// load resets new connections. `prepare` gets the head, and the connection that it goes to.
    pub async fn exchange(
        &self,
        request: &Request<'_>,
        route: &Route,
        mut body: Payload,
        prepare: impl Fn(&mut HttpRequest<()>, &Arc<TcpStream>),
    ) -> Result<Reply, Error> {
        let mut identity = request.end.identity.clone();
        identity.token = identity.token.filter(|_| route.is_authorized);
        // Nobody can use a proxy without its key, but a storage elsewhere would carry out the request as the user.
        identity.proxy = identity.proxy.filter(|_| route.shows_proxy);
        let is_harmless = matches!(request.method, "HEAD" | "GET" | "DELETE" | "PROPFIND");
        let repeated = body.again().filter(|_| is_harmless);
        let mut tries = 0;
        loop {
            let to = (request.end.scope, route.reach);
            let mut connection = self.connections.connect(&route.at, &identity, to, tries > 0).await?;
            let mut head = self.head(request, route, identity.token.as_ref())?;
            prepare(&mut head, connection.stream());
            let sent = connection.sender().try_send_request(head.map(|()| body)).await;
            let mut error = match sent {
                Ok(answer) => {
                    let (parts, body) = answer.into_parts();
                    return Ok(Reply { status: parts.status.as_u16(), headers: parts.headers, body, connection });
                }
                Err(error) => error,
            };
            body = match error.take_message() {
                Some(unsent) if connection.is_used && tries == 0 => unsent.into_body(),
                _ => match repeated.as_ref().filter(|_| tries < HARMLESS_REPEATS_MAX).and_then(Payload::again) {
                    Some(body) => body,
                    None => {
                        return Err(request.failed(ErrorKind::Unreachable, "no answer").caused_by(error.into_error()));
                    }
                },
            };
            tries += 1;
        }
    }

    /// Returns the head of a request.
    fn head(&self, request: &Request<'_>, route: &Route, token: Option<&Secret>) -> Result<HttpRequest<()>, Error> {
        let wrong = |e: hyper::http::Error| request.failed(ErrorKind::Usage, "it cannot be sent").caused_by(e);
        let target = &route.at.url()[route.at.origin().len()..];
        let method = Method::from_bytes(request.method.as_bytes()).map_err(|e| wrong(e.into()))?;
        let authority = route.at.origin().split_once("://").map_or("", |(_, authority)| authority);
        let mut head = HttpRequest::builder().method(method).uri(target).body(()).map_err(wrong)?;
        *head.extensions_mut() = self.connections.case();
        let headers = head.headers_mut();
        let value = |text: &str| HeaderValue::from_str(text).map_err(|e| wrong(e.into()));
        headers.insert(HOST, value(authority)?);
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("sterna/", env!("CARGO_PKG_VERSION"))));
        for (name, text) in &request.headers {
            headers.insert(HeaderName::from_static(name), value(text)?);
        }
        for (name, token) in [(AUTHORIZATION, token), (TRANSFER_AUTHORIZATION, request.passive_token)] {
            let Some(token) = token else { continue };
            // The scheme is `Bearer`: XRootD refuses `bearer`.
            let mut authorization = value(&format!("Bearer {}", token.reveal()))?;
            authorization.set_sensitive(true);
            headers.insert(name, authorization);
        }
        Ok(head)
    }

    /// Returns the text of an answer, and keeps its connection.
    pub async fn text(&self, mut reply: Reply) -> String {
        let mut text = Vec::new();
        let read = async {
            while text.len() < TEXT_BYTES_MAX {
                match reply.bytes().await {
                    Ok(Some(bytes)) => text.extend_from_slice(&bytes),
                    Ok(None) => return true,
                    Err(_) => return false,
                }
            }
            false
        };
        let is_all = timeout(TEXT_TIME_MAX, read).await.unwrap_or(false);
        if is_all {
            self.connections.keep(reply.connection);
        }
        text.truncate(TEXT_BYTES_MAX);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Reads the rest of an answer that has no use, and keeps its connection.
    pub async fn finish(&self, reply: Reply) {
        drop(self.text(reply).await);
    }

    /// Returns the error of an answer with a status that is no success.
    pub async fn refused(&self, request: &Request<'_>, reply: Reply) -> Error {
        let (status, headers) = (reply.status, reply.headers.clone());
        let text = request.hide_in(&self.text(reply).await);
        failure::of_status(&request.tried(), (request.end.scope, request.phase), status, &headers, &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(url: &str) -> Route {
        Route::new(WebLocation::parse(url).unwrap())
    }

    #[test]
    fn a_token_stays_at_its_host_and_within_tls() {
        let from = route("https://se.example/a/f");
        for (reference, url, is_authorized) in [
            ("/b?x", "https://se.example/b?x", true),
            ("https://se.example:1094//a/f?opaque", "https://se.example:1094//a/f?opaque", true),
            ("https://disk1.example/a/f", "https://disk1.example/a/f", false),
            ("http://se.example/a/f", "http://se.example/a/f", false),
        ] {
            let next = from.after(reference, false).unwrap();
            assert_eq!((next.at.url(), next.is_authorized), (url, is_authorized));
        }
        // A token that was left behind does not come back.
        let away = from.after("https://disk1.example/f", false).unwrap();
        assert!(!away.after("https://disk1.example/g", false).unwrap().is_authorized);
        assert!(!away.after("https://se.example/a/f", false).unwrap().is_authorized);
    }

    #[test]
    fn a_proxy_stays_within_its_domain() {
        for (host, reference, shows_proxy) in [
            ("se.example.org", "https://se.example.org:1094/f", true),
            ("se.example.org", "https://disk1.example.org/f", true),
            ("door.se.example.org", "https://disk1.pool.example.org./f", true),
            ("se.example.org", "https://example.org.evil.net/f", false),
            ("se.example.org", "https://se.example.net/f", false),
            ("se.rl.ac.uk", "https://disk1.rl.ac.uk/f", true),
            ("se.rl.ac.uk", "https://disk1.evil.ac.uk/f", false),
            ("rl.ac.uk", "https://ac.uk/f", false),
            ("se.psi.ch", "https://disk1.psi.ch/f", true),
            ("localhost", "https://localhost:7/f", true),
            ("localhost", "https://127.0.0.1/f", false),
            ("10.0.0.1", "https://10.9.0.1/f", false),
            ("[2001:db8::1]", "https://[2001:db8::2]/f", false),
        ] {
            let next = route(&format!("https://{host}/f")).after(reference, false).unwrap();
            assert_eq!(next.shows_proxy, shows_proxy, "{host} {reference}");
        }
        // A proxy that was left behind does not come back.
        let away = route("https://se.example.org/f").after("https://evil.net/f", false).unwrap();
        assert!(!away.after("https://se.example.org/g", false).unwrap().shows_proxy);
    }

    #[test]
    fn redirects_to_other_schemes_and_without_end_are_refused() {
        let from = route("https://se.example/a/f");
        for reference in ["file:///etc/passwd", "ftp://x/f", "gopher://x", "https://user:x@se.example/f"] {
            assert!(from.after(reference, false).is_err(), "{reference}");
        }
        let mut route = from;
        for _ in 0..REDIRECTS_MAX {
            route = route.after("/again", false).unwrap();
        }
        assert!(route.after("/again", false).is_err());
    }

    #[test]
    fn a_public_host_leads_to_public_hosts_for_ever() {
        let from = route("https://se.example/f");
        assert_eq!(from.after("http://10.0.0.1/f", false).unwrap().reach, Reach::Named);
        let led = from.after("http://10.0.0.1/f", true).unwrap();
        assert_eq!(led.reach, Reach::Public);
        assert_eq!(led.after("/g", false).unwrap().reach, Reach::Public);
    }
}
