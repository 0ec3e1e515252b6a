//! One request and its answer: connections, redirects, credentials, and the meaning of each status.

use std::io::Read;
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use sterna_proto::limit::WebSample;
use sterna_proto::session::LaneId;
use sterna_proto::web::{WebLocation, canonical_host};
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope, Setting};
use ureq::http::{Response, header};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{ConnectProxyConnector, Connector, RustlsConnector};
use ureq::{Agent, BodyReader, ProxyProtocol};

use super::WebOptions;
use super::certificates;
use super::hosts::{Hosts, Permit};
use super::reply::{Reply, Version};
use super::secrets::Secrets;
use super::socket::{Measured, WatchedConnector};
use crate::observer::{Observer, SessionEvent};

/// Most redirects that are followed. Source: curl's manual and browsers use limits above ten; real chains are
/// shorter.
const REDIRECTS_MAX: usize = 10;

/// Time limit to connect, over all addresses of a host together.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(30);

/// Time for which a server may be silent, before its answer or within it. Reason: twice the limit of a sterna lane,
/// because a server may first have to fetch the file from another site, and sends nothing meanwhile.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Least value of that time, for a copy whose patience is shorter. Reason: a round trip and a disk that wakes up.
const SILENCE_MIN: Duration = Duration::from_secs(5);

/// Time for which an idle connection is kept. Reason: servers close theirs after 5 s (Apache) to 75 s (nginx). A
/// connection that is already closed is noticed and costs nothing.
const IDLE_TIME_MAX: Duration = Duration::from_secs(60);

/// Largest body of an error or a redirect that is read to its end, so that its connection can be reused.
const USELESS_BYTES_MAX: u64 = 64 << 10;

/// Longest time for that read. Reason: a new connection costs less on any path.
const USELESS_TIME_MAX: Duration = Duration::from_secs(2);

/// Names in the path of a login page.
const LOGIN_NAMES: [&str; 9] = ["login", "signin", "sign-in", "sign_in", "sso", "oauth", "oauth2", "saml", "idp"];

/// Failure of a request.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) error: Error,
    /// True if the same request may succeed soon.
    pub(super) again: bool,
    /// Time for which the server wants no request; the next request waits for it.
    pub(super) wait: Duration,
    /// Duration of the attempt.
    pub(super) tried: Duration,
}

impl Fault {
    /// Sets the duration of the attempt.
    pub(super) fn after(self, time: Duration) -> Self {
        Self { tried: time, ..self }
    }

    fn again(kind: ErrorKind, scope: Scope, text: String) -> Self {
        Self {
            error: Error::new(kind, scope, Phase::Transfer, text).retry(Retry::After),
            again: true,
            wait: Duration::ZERO,
            tried: Duration::ZERO,
        }
    }

    pub(super) fn never(kind: ErrorKind, text: String) -> Self {
        Self::from(Error::new(kind, Scope::Source, Phase::Transfer, text))
    }

    /// Names the settings that avoid the fault.
    fn about(mut self, settings: &'static [Setting]) -> Self {
        self.error = self.error.about(settings);
        self
    }

    /// Returns the fault of a file that changed.
    pub(super) fn changed(at: &WebLocation, what: impl std::fmt::Display) -> Self {
        let text = format!("{at} changed while it was read: {what}; the next attempt copies the file from its start");
        Self::from(Error::new(ErrorKind::Changed, Scope::Source, Phase::Transfer, text).retry(Retry::After))
    }

    /// Returns the fault of a body that ended too early.
    pub(super) fn cut(named: &WebLocation, offset: u64, why: &str) -> Self {
        let text = format!("read {named}: cut at byte {offset}: {why}");
        Self::again(ErrorKind::Unreachable, Scope::Source, text)
    }

    /// Returns the fault of a session that is over: the answer has no reader.
    pub(super) fn stopped() -> Self {
        Self::from(Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Transfer, "the copy was stopped"))
    }
}

impl From<Error> for Fault {
    /// Converts a failure that a retry would meet again.
    fn from(error: Error) -> Self {
        Self { error, again: false, wait: Duration::ZERO, tried: Duration::ZERO }
    }
}

/// Request for a file.
#[derive(Clone, Copy)]
pub(super) struct Ask<'a> {
    /// Location that the user gave, and that errors name.
    pub(super) named: &'a WebLocation,
    /// Location where the file was found last.
    pub(super) at: &'a WebLocation,
    /// First byte, and end (exclusive); `None` requests the whole file, not as a range.
    pub(super) range: Option<(u64, Option<u64>)>,
    /// Version that the range must belong to.
    pub(super) version: Option<&'a Version>,
    /// Lane that reads the answer; `None` before a lane does.
    pub(super) lane: Option<LaneId>,
}

/// Answer with status 200 or 206, or 416 to a range request.
pub(super) struct Answer {
    pub(super) reply: Reply,
    /// Location that sent the answer, after all redirects.
    pub(super) at: WebLocation,
    pub(super) body: Body,
}

/// Client for the servers of one copy.
pub(super) struct Exchange {
    agent: Agent,
    pub(super) hosts: Arc<Hosts>,
    secrets: Secrets,
    observer: Arc<dyn Observer>,
    /// True if the user gave a digest of the file; the file may then be an HTML page.
    is_expected: bool,
    /// Hosts to which redirects may lead, in their canonical form; `None`: all.
    hosts_allowed: Option<Vec<String>>,
    /// True if the user gave an authority in addition to those of this host.
    has_authority: bool,
    patience: Duration,
    received: Arc<AtomicU64>,
    measured: Arc<Measured>,
    /// True if connections end at a proxy.
    is_proxied: bool,
}

impl Exchange {
    /// Creates the client for the servers of `locations`. Errors: `Usage`, also when the authority's file cannot be
    /// read.
    pub(super) fn new(
        options: &WebOptions,
        locations: &[WebLocation],
        observer: Arc<dyn Observer>,
    ) -> Result<Self, Error> {
        let tls = if locations.iter().any(|location| location.is_encrypted()) {
            Some(roots(options.authority.as_deref())?)
        } else {
            None
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = TlsConfig::builder()
            .unversioned_rustls_crypto_provider(provider)
            .root_certs(RootCerts::from(tls.unwrap_or_default()))
            .build();
        let is_elsewhere = locations.iter().any(|location| !location.is_this_host());
        let silence = options.patience.clamp(SILENCE_MIN, SILENCE_MAX);
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // Redirects are followed in `get`, which sends credentials only to their server.
            .max_redirects(0)
            .user_agent(concat!("sterna/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .tls_config(tls)
            .max_idle_connections(sterna_proto::plan::LANES_MAX as usize)
            .max_idle_connections_per_host(sterna_proto::plan::LANES_MAX as usize)
            .max_idle_age(IDLE_TIME_MAX)
            .timeout_resolve(Some(CONNECT_TIME_MAX))
            .timeout_connect(Some(CONNECT_TIME_MAX))
            .timeout_send_request(Some(silence))
            .timeout_recv_response(Some(silence))
            .timeout_per_read(Some(silence))
            .build();
        let proxy = config.proxy().filter(|_| is_elsewhere);
        if proxy.is_some_and(|proxy| !matches!(proxy.protocol(), ProxyProtocol::Http | ProxyProtocol::Https)) {
            let text = "the environment names a SOCKS proxy (ALL_PROXY, HTTPS_PROXY or HTTP_PROXY), which is not spoken with: name an HTTP proxy, or \
                        unset it for this command";
            return Err(Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text));
        }
        let (measured, is_proxied) = (Arc::new(Measured::default()), proxy.is_some());
        // The same chain as in the library, with connections that are measured.
        let connector = ().chain(ConnectProxyConnector::default());
        let connector = connector.chain(WatchedConnector::new(Arc::clone(&measured))).chain(RustlsConnector::default());
        let agent = Agent::with_parts(config, connector, DefaultResolver::default());
        Ok(Self {
            agent,
            measured,
            is_proxied,
            hosts: Hosts::new(options.connections),
            secrets: match options.uses_netrc {
                true => Secrets::new(options.token.clone(), locations)?,
                false => Secrets::new(options.token.clone(), locations)?.without_passwords(),
            },
            observer,
            is_expected: options.is_expected,
            hosts_allowed: options.hosts.as_ref().map(|hosts| hosts.iter().map(|host| canonical_host(host)).collect()),
            has_authority: options.authority.is_some(),
            patience: options.patience,
            received: Arc::default(),
        })
    }

    /// Ends every request, and every wait for one.
    pub(super) fn stop(&self) {
        self.hosts.stop();
        self.agent.clone().shutdown();
        self.secrets.stop();
    }

    /// Returns the bytes of bodies that have arrived.
    pub(super) fn received_bytes(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Returns the measurements of all connections together.
    pub(super) fn measured(&self) -> WebSample {
        self.measured.sample()
    }

    /// Returns the sockets of the open connections.
    pub(super) fn sockets(&self) -> Vec<Arc<TcpStream>> {
        self.measured.sockets()
    }

    /// Returns true if connections to other hosts end at a proxy.
    pub(super) fn is_proxied(&self) -> bool {
        self.is_proxied
    }

    /// Returns the smallest round trip to a server; zero where it is not measured: behind a proxy.
    pub(super) fn round_trip(&self) -> Duration {
        if self.is_proxied { Duration::ZERO } else { self.measured.sample().rtt_min }
    }

    pub(super) fn notice(&self, text: String) {
        self.observer.session_event(SessionEvent::Notice(text));
    }

    /// Sends requests until the answer is final: follows redirects, and renews a refused token once. Errors: a
    /// refusal, a page instead of data, or too many redirects.
    pub(super) fn get(&self, ask: &Ask<'_>) -> Result<Answer, Fault> {
        let mut at = ask.at.clone();
        let mut is_renewed = false;
        for _ in 0..=REDIRECTS_MAX {
            let permit = self.hosts.enter(at.origin(), ask.lane).ok_or_else(Fault::stopped)?;
            let authorization = self.secrets.authorization(&at)?;
            let began = Instant::now();
            let response = self
                .send(&at, ask, authorization.as_deref())
                .map_err(|error| self.unanswered(&at, error).after(began.elapsed()))?;
            let (head, body) = response.into_parts();
            let reply = Reply::read(&head, SystemTime::now()).map_err(|(retry, why)| match retry {
                Retry::Never => Fault::never(ErrorKind::Protocol, format!("GET {at}: {why}")),
                _ => Fault::again(ErrorKind::Protocol, Scope::Source, format!("GET {at}: {why}")),
            })?;
            let body = Body {
                reader: body.into_reader(),
                left: reply.length,
                received: Arc::clone(&self.received),
                permit: Some(permit),
            };
            match reply.status {
                // The body of this answer does not belong to the file, and is not read as such.
                416 if ask.range.is_some() => {
                    self.hosts.answered(at.origin());
                    return Ok(Answer { reply, at, body });
                }
                200 | 206 => {
                    self.hosts.answered(at.origin());
                    self.refuse_other_than_data(ask.named, &at, &reply)?;
                    return Ok(Answer { reply, at, body });
                }
                301 | 302 | 303 | 307 | 308 => {
                    body.read_past();
                    at = redirected(&at, &reply)?;
                    self.check_host(ask.named, &at)?;
                }
                401 if !is_renewed && authorization.as_deref().is_some_and(|sent| self.secrets.renew(sent)) => {
                    body.read_past();
                    is_renewed = true;
                }
                _ => {
                    body.read_past();
                    return Err(self.refused(ask.named, &at, &reply));
                }
            }
        }
        let text = format!("GET {}: more than {REDIRECTS_MAX} redirects, the last to {at}", ask.named);
        Err(Fault::never(ErrorKind::Protocol, text))
    }

    fn send(
        &self,
        at: &WebLocation,
        ask: &Ask<'_>,
        authorization: Option<&str>,
    ) -> Result<Response<ureq::Body>, ureq::Error> {
        let mut request = self.agent.get(at.url());
        if let Some((start, end)) = ask.range {
            let last = end.map(|end| (end - 1).to_string()).unwrap_or_default();
            request = request.header(header::RANGE, format!("bytes={start}-{last}"));
            if let Some(if_range) = ask.version.and_then(Version::if_range) {
                request = request.header(header::IF_RANGE, if_range);
            }
        }
        if let Some(authorization) = authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        if at.is_this_host() {
            // Plain-text requests carry credentials to this host only, and a proxy is another host.
            request = request.config().proxy(None).build();
        }
        request.call()
    }

    /// Returns the fault of a request without an answer: an error of the network or of TLS.
    fn unanswered(&self, at: &WebLocation, error: ureq::Error) -> Fault {
        if self.hosts.is_stopped() {
            return Fault::stopped();
        }
        if let Some(rustls::Error::InvalidCertificate(why)) = tls_error(&error) {
            let refusal = certificates::refusal(why, self.has_authority);
            return Fault::never(ErrorKind::Untrusted, format!("GET {at}: {}", refusal.text)).about(refusal.settings);
        }
        let text = format!("GET {at}: {}", said(&error));
        match &error {
            ureq::Error::Io(_)
            | ureq::Error::Timeout(_)
            | ureq::Error::HostNotFound
            | ureq::Error::ConnectProxyFailed(_)
            | ureq::Error::ConnectionFailed => Fault::again(ErrorKind::Unreachable, Scope::Path, text),
            _ => Fault::never(ErrorKind::Protocol, text),
        }
    }

    /// Returns the fault for a status that brings no data.
    /// Checks that a redirect leads to a host that is allowed.
    fn check_host(&self, named: &WebLocation, at: &WebLocation) -> Result<(), Fault> {
        let host = canonical_host(at.host());
        match &self.hosts_allowed {
            Some(hosts) if !hosts.contains(&host) => {
                let text = format!("GET {named}: a redirect to {host}, which is not allowed here (--web {host})");
                Err(Fault::never(ErrorKind::Denied, text))
            }
            _ => Ok(()),
        }
    }

    fn refused(&self, named: &WebLocation, at: &WebLocation, reply: &Reply) -> Fault {
        let status = reply.status;
        let reason = ureq::http::StatusCode::from_u16(status).ok().and_then(|code| code.canonical_reason());
        let via = if named == at { String::new() } else { format!(" (redirected to {at})") };
        let text = format!("GET {named}{via}: {status} {}", reason.unwrap_or("without a name"));
        match status {
            401 | 407 => {
                if self.secrets.has_token() {
                    return Fault::never(ErrorKind::Denied, format!("{text}; the server refuses the given token"));
                }
                let text = format!("{text}; give a token, or a password in ~/.netrc");
                Fault::never(ErrorKind::Denied, text).about(&[Setting::WebToken])
            }
            403 | 451 => Fault::never(ErrorKind::Denied, text),
            404 | 410 => Fault::never(ErrorKind::NotFound, text),
            412 => Fault::changed(named, "it is not the version that was begun"),
            416 => Fault::never(ErrorKind::Protocol, format!("{text} to a request for the whole file, not for a part")),
            429 | 503 => self.paused(at, reply.retry_after, text),
            408 | 425 | 500 | 502 | 504 => Fault::again(ErrorKind::Unreachable, Scope::Source, text),
            _ => Fault::never(ErrorKind::Io, text),
        }
    }

    /// Pauses a server that reports overload; returns the fault.
    fn paused(&self, at: &WebLocation, retry_after: Option<Duration>, text: String) -> Fault {
        if let Some(wait) = retry_after.filter(|wait| *wait > self.patience) {
            let (wait, patience) = (wait.as_secs(), self.patience.as_secs());
            let text = format!("{text}; the server requests a pause of {wait} s, and this copy waits {patience} s");
            let mut fault = Fault::never(ErrorKind::Unreachable, text).about(&[Setting::Linger]);
            fault.error.retry = Retry::After;
            return fault;
        }
        let mut random = [0; 1];
        // Without random numbers all connections come back at once, which is only inefficient.
        let _ = getrandom::fill(&mut random);
        let paused = self.hosts.pause(at.origin(), retry_after, f64::from(random[0]) / 256.0);
        if let Some((wait, connections)) = paused {
            let seconds = wait.as_secs_f64();
            let plural = if connections == 1 { "" } else { "s" };
            self.notice(format!("{text}; waiting {seconds:.1} s, then {connections} connection{plural} to it"));
        }
        let wait = paused.map_or(retry_after.unwrap_or_default(), |(wait, _)| wait);
        Fault { wait, ..Fault::again(ErrorKind::Unreachable, Scope::Source, text) }
    }

    /// Checks that an answer is data. Errors: it is a login page, or its bytes are not those of the file.
    fn refuse_other_than_data(&self, named: &WebLocation, at: &WebLocation, reply: &Reply) -> Result<(), Fault> {
        if let Some(encoding) = &reply.encoding {
            let text = format!("GET {named}: the bytes come encoded as {encoding:?} though that was not asked for");
            return Err(Fault::never(ErrorKind::Protocol, text));
        }
        if let Some(fault) = &reply.framing_fault {
            return Err(Fault::never(ErrorKind::Protocol, format!("GET {named}: {fault}; not copied")));
        }
        if reply.is_page() { self.refuse_page(named, at) } else { Ok(()) }
    }

    /// Checks an answer that is an HTML page. Errors: the user did not mean a page.
    pub(super) fn refuse_page(&self, named: &WebLocation, at: &WebLocation) -> Result<(), Fault> {
        if self.is_expected {
            return Ok(());
        }
        let lower = named.path().to_ascii_lowercase();
        let names_page = [".html", ".htm", ".xhtml"].iter().any(|ending| lower.ends_with(ending));
        let is_elsewhere = at.origin() != named.origin();
        let path = at.path().to_ascii_lowercase();
        let is_login = at != named && path.split(['/', '.']).any(|name| LOGIN_NAMES.contains(&name));
        if names_page && !is_elsewhere && !is_login {
            return Ok(());
        }
        let from = if at == named { String::new() } else { format!(", after a redirect to {at}") };
        let text = format!(
            "GET {named}: the answer{from} is an HTML page and looks like a login page; it is not copied; give a token, or \
             the digest of the page if a page is meant"
        );
        Err(Fault::never(ErrorKind::Denied, text).about(&[Setting::WebToken, Setting::Expect]))
    }
}

/// Body of an answer, and the permit for its connection.
pub(super) struct Body {
    reader: BodyReader<'static>,
    /// Bytes that are left; `None` if the framing shows the end.
    left: Option<u64>,
    received: Arc<AtomicU64>,
    /// Permit, held until the end of the body.
    permit: Option<Permit>,
}

impl Body {
    /// Returns true if all of it has arrived.
    pub(super) fn has_ended(&self) -> bool {
        self.permit.is_none()
    }

    /// Reads some bytes; returns 0 at the end, which the framing has proven. Errors: the body was cut.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, std::io::Error> {
        let most = self.left.map_or(buffer.len(), |left| left.min(buffer.len() as u64) as usize);
        if most == 0 {
            return Ok(0);
        }
        let count = self.reader.read(&mut buffer[..most])?;
        self.received.fetch_add(count as u64, Ordering::Relaxed);
        if let Some(left) = &mut self.left {
            *left -= count as u64;
            if *left == 0 {
                // Reads the end of the body, so that the connection is free for the next request.
                if self.reader.read(&mut [0; 1]).is_ok_and(|more| more > 0) {
                    return Err(std::io::Error::other("more came than was announced"));
                }
                self.permit = None;
            } else if count == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        } else if count == 0 {
            self.permit = None;
        }
        Ok(count)
    }

    /// Reads the rest of a short body to its end, so that its connection can be reused.
    pub(super) fn read_past(mut self) {
        let mut useless = [0; 4096];
        if self.left.is_some_and(|left| left <= USELESS_BYTES_MAX) {
            let began = Instant::now();
            while began.elapsed() < USELESS_TIME_MAX && self.read(&mut useless).is_ok_and(|count| count > 0) {}
        }
    }
}

/// Returns the target of a redirect. Errors: no valid target, or a redirect from https to http.
fn redirected(at: &WebLocation, reply: &Reply) -> Result<WebLocation, Fault> {
    let status = reply.status;
    let refused = |text: String| Fault::never(ErrorKind::Protocol, format!("GET {at}: {status}, a redirect {text}"));
    let Some(location) = &reply.location else { return Err(refused("without a Location".to_owned())) };
    let to = at.join(location).map_err(|error| refused(format!("to {}", error.text())))?;
    if at.is_encrypted() && !to.is_encrypted() {
        return Err(refused(format!("from https to {to}, which is not followed")));
    }
    Ok(to)
}

/// Follows a redirect that a fuzzer generates; checks that it never leads from https to http.
pub(crate) fn fuzz_redirect(location: &str) {
    let Ok(at) = WebLocation::parse("https://host.example:8443/dir/file?query") else { return };
    let reply = Reply { status: 302, location: Some(location.to_owned()), ..Reply::default() };
    let Ok(to) = redirected(&at, &reply) else { return };
    assert!(to.is_encrypted(), "{location:?} leads to {to}");
    assert_eq!(WebLocation::parse(to.url()).ok().as_ref().map(WebLocation::url), Some(to.url()), "{location:?}");
}

/// Returns the text of a library error, without the prefix of the library.
pub(crate) fn said(error: &ureq::Error) -> String {
    if matches!(tls_error(error), Some(rustls::Error::InvalidMessage(_))) {
        return "what came back is not TLS: is http:// or another port meant?".to_owned();
    }
    match error {
        ureq::Error::Io(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            "the connection ended before the answer did".to_owned()
        }
        ureq::Error::Io(error) => error.to_string(),
        ureq::Error::HostNotFound => "the host name has no address".to_owned(),
        // The text of the library would show the URL with its query.
        ureq::Error::BadUri(_) | ureq::Error::Http(_) => "not a URL or header that can be sent".to_owned(),
        ureq::Error::Protocol(error) => {
            format!("what came back is not HTTP ({error}): is https:// or another port meant?")
        }
        ureq::Error::Timeout(what) => format!("no answer in time ({what})"),
        error => error.to_string(),
    }
}

/// Returns the TLS error, direct or wrapped by the socket it was read from.
pub(crate) fn tls_error(error: &ureq::Error) -> Option<&rustls::Error> {
    match error {
        ureq::Error::Rustls(error) => Some(error),
        ureq::Error::Io(error) => error.get_ref().and_then(|inner| inner.downcast_ref()),
        _ => None,
    }
}

/// Returns the trusted authorities: those of this host, and the one given.
pub(crate) fn roots(authority: Option<&Path>) -> Result<Vec<Certificate<'static>>, Error> {
    // Errors in the system's list are ignored here. A server whose authority is missing causes an error later.
    let found = rustls_native_certs::load_native_certs();
    let mut roots: Vec<Certificate<'static>> =
        found.certs.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
    if let Some(path) = authority {
        roots.extend(authorities_in(path)?);
    }
    Ok(roots)
}

fn authorities_in(path: &Path) -> Result<Vec<Certificate<'static>>, Error> {
    let wrong = |text: String| Error::new(ErrorKind::Usage, Scope::Client, Phase::Prepare, text);
    let shown = path.display();
    let pem = std::fs::read(path).map_err(|e| wrong(format!("read the authority {shown}")).caused_by(e))?;
    let items = parse_pem(&pem).filter_map(Result::ok);
    let found: Vec<Certificate<'static>> = items
        .filter_map(|item| match item {
            PemItem::Certificate(certificate) => Some(certificate),
            _ => None,
        })
        .collect();
    if found.is_empty() {
        return Err(wrong(format!("{shown} holds no certificate in PEM format")));
    }
    Ok(found)
}
