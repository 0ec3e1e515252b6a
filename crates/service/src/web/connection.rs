//! Connections to storages: dialled, kept for later requests, and closed at once when their request is dropped.
//!
//! HTTP/1.1 with one request at a time: XRootD mixes up answers to pipelined requests. Names, addresses and TLS are
//! handled here. Refuses to know requests and redirects.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::http::Extensions;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use socket2::SockRef;
use sterna_proto::web::WebLocation;
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::address::{AddressKind, ConnectRules, Reach, kind_of};
use super::failure;
use super::payload::Payload;
use super::tls::Tls;
use crate::credentials::{Proxy, Secret};

/// Time limit to resolve a name, connect and shake hands. Reason: ten times a bad round trip, and a lost packet each.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(30);

/// Time limit to connect to one address of several. Reason: a host without IPv6 connectivity has another one.
const ADDRESS_TIME_MAX: Duration = Duration::from_secs(10);

/// Time for which an unused connection is kept. Reason: shorter than the limits of servers (Apache: 5 s, nginx: 75 s,
/// XRootD: none) matters little, because a connection that was closed is noticed.
const IDLE_TIME_MAX: Duration = Duration::from_secs(20);

/// Time limit for the end of the last request of a kept connection.
const READY_TIME_MAX: Duration = Duration::from_secs(1);

/// Maximum number of unused connections to one host. Reason: the transfers of a busy link end in bursts.
const IDLE_MAX: usize = 32;

/// Names of headers that no storage may receive in another case. XRootD 5 compares the first 14 letters of the first,
/// and sends the rest as the name of a header.
const MIXED_CASE: [&str; 2] = ["TransferHeaderAuthorization", "RequireChecksumVerification"];

/// Identity of a user at a storage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    /// Token.
    pub token: Option<Secret>,
    /// Proxy that TLS presents.
    pub proxy: Option<Proxy>,
}

/// Connection to a storage. Closed when dropped.
pub(super) struct Connection {
    sender: SendRequest<Payload>,
    driver: AbortHandle,
    stream: Arc<TcpStream>,
    key: Key,
    peer: SocketAddr,
    /// True if an earlier request has used it: the storage may have closed it since.
    pub is_used: bool,
}

/// Host and credential of a connection. Reason for the credential: a storage may remember it for the connection.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    origin: String,
    identity: Identity,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Closes the socket: the storage notices a cancelled request.
        self.driver.abort();
    }
}

impl Connection {
    /// Returns true if the storage is at a public address.
    pub fn is_public(&self) -> bool {
        kind_of(self.peer.ip()) == AddressKind::Public
    }

    /// Returns the socket, to measure it.
    pub fn stream(&self) -> &Arc<TcpStream> {
        &self.stream
    }

    /// Returns the sender of requests.
    pub fn sender(&mut self) -> &mut SendRequest<Payload> {
        &mut self.sender
    }
}

/// Connections to all storages.
pub(super) struct Connections {
    tls: Tls,
    rules: ConnectRules,
    idle: Mutex<HashMap<Key, Vec<(Instant, Connection)>>>,
    /// Original case of the names in [`MIXED_CASE`].
    case: Extensions,
}

impl Connections {
    /// Creates it. Runs within a tokio runtime. Errors: `Internal`.
    pub async fn new(tls: Tls, rules: ConnectRules) -> Result<Self, Error> {
        let case = mixed_case().await.map_err(|e| {
            let text = "prepare the names of headers";
            Error::new(ErrorKind::Internal, Scope::Service, Phase::Prepare, text).caused_by(e)
        })?;
        Ok(Self { tls, rules, idle: Mutex::default(), case })
    }

    /// Returns the extension of a request that keeps the case of names.
    pub fn case(&self) -> Extensions {
        self.case.clone()
    }

    /// Checks that a host is allowed. Errors: `Denied`.
    pub fn check_host(&self, at: &WebLocation) -> Result<(), Error> {
        self.rules.check(at)
    }

    /// Returns a connection: one that is kept, or a new one. `is_fresh`: only a new one.
    pub async fn connect(
        &self,
        at: &WebLocation,
        identity: &Identity,
        (scope, reach): (Scope, Reach),
        is_fresh: bool,
    ) -> Result<Connection, Error> {
        self.check_host(at)?;
        let key = Key { origin: at.origin().to_owned(), identity: identity.clone() };
        while let Some(mut kept) = (!is_fresh).then(|| self.take(&key)).flatten() {
            let is_allowed = self.rules.allows(reach, kept.peer.ip());
            if is_allowed && timeout(READY_TIME_MAX, kept.sender.ready()).await.is_ok_and(|ready| ready.is_ok()) {
                return Ok(kept);
            }
        }
        let dialled = timeout(CONNECT_TIME_MAX, self.dial(at, key, (scope, reach))).await;
        dialled.unwrap_or_else(|_| {
            let text = format!("connect to {}: no answer within {} s", at.origin(), CONNECT_TIME_MAX.as_secs());
            Err(failure::error(ErrorKind::Unreachable, scope, Phase::Prepare, text))
        })
    }

    /// Keeps a connection whose last answer was read to its end.
    pub fn keep(&self, mut connection: Connection) {
        if connection.sender.is_closed() {
            return;
        }
        connection.is_used = true;
        let now = Instant::now();
        let mut idle = self.idle.lock();
        idle.retain(|_, kept| {
            kept.retain(|(since, kept)| {
                now.saturating_duration_since(*since) < IDLE_TIME_MAX && !kept.sender.is_closed()
            });
            !kept.is_empty()
        });
        let kept = idle.entry(connection.key.clone()).or_default();
        if kept.len() < IDLE_MAX {
            kept.push((now, connection));
        }
    }

    fn take(&self, key: &Key) -> Option<Connection> {
        let mut idle = self.idle.lock();
        let kept = idle.get_mut(key)?;
        let (since, connection) = kept.pop()?;
        if kept.is_empty() {
            idle.remove(key);
        }
        // The others of this host are older.
        (since.elapsed() < IDLE_TIME_MAX).then_some(connection)
    }

    async fn dial(&self, at: &WebLocation, key: Key, (scope, reach): (Scope, Reach)) -> Result<Connection, Error> {
        let (stream, peer) = self.dial_tcp(at, (scope, reach)).await?;
        let tried = || format!("connect to {}", at.origin());
        let unreachable =
            |e: std::io::Error| failure::error(ErrorKind::Unreachable, scope, Phase::Prepare, tried()).caused_by(e);
        stream.set_nodelay(true).map_err(unreachable)?;
        let socket = Arc::new(stream);
        let stream = Socket(Arc::clone(&socket));
        let stream: Box<dyn Stream> = match at.is_encrypted() {
            false => Box::new(stream),
            true => {
                let name = ServerName::try_from(at.host().to_owned())
                    .map_err(|e| failure::error(ErrorKind::Usage, scope, Phase::Prepare, tried()).caused_by(e))?;
                let shaken =
                    TlsConnector::from(self.tls.config(key.identity.proxy.as_ref())?).connect(name, stream).await;
                Box::new(shaken.map_err(|e| {
                    let kind = if is_refused_certificate(&e) { ErrorKind::Untrusted } else { ErrorKind::Unreachable };
                    let refused = failure::error(kind, scope, Phase::Prepare, tried());
                    match own_refusal(&e) {
                        Some(text) => refused.reworded(format!("{}: {text}", tried())),
                        None => refused.caused_by(e),
                    }
                })?)
            }
        };
        let (sender, driver) = handshake(stream)
            .await
            .map_err(|e| failure::error(ErrorKind::Unreachable, scope, Phase::Prepare, tried()).caused_by(e))?;
        Ok(Connection { sender, driver, stream: socket, key, peer, is_used: false })
    }

    async fn dial_tcp(
        &self,
        at: &WebLocation,
        (scope, reach): (Scope, Reach),
    ) -> Result<(TcpStream, SocketAddr), Error> {
        let tried = || format!("connect to {}", at.origin());
        let failed = |kind, text: String| failure::error(kind, scope, Phase::Prepare, text);
        let addresses = lookup_host((at.host(), port_of(at)))
            .await
            .map_err(|e| failed(ErrorKind::Unreachable, format!("resolve the name {}", at.host())).caused_by(e))?;
        let mut last = None;
        for address in addresses {
            if !self.rules.allows(reach, address.ip()) {
                let why = match reach {
                    Reach::Named => "the rules of this host allow no storage at this address",
                    Reach::Public => "a redirect from a public host leads to an address that is not public",
                };
                last = Some(failed(ErrorKind::Denied, format!("{}: {}: {why}", tried(), address.ip())));
                continue;
            }
            match timeout(ADDRESS_TIME_MAX, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok((stream, address)),
                Ok(Err(e)) => last = Some(failed(ErrorKind::Unreachable, tried()).caused_by(e)),
                Err(_) => {
                    let text = format!("{}: no answer within {} s", tried(), ADDRESS_TIME_MAX.as_secs());
                    last = Some(failed(ErrorKind::Unreachable, text));
                }
            }
        }
        Err(last.unwrap_or_else(|| failed(ErrorKind::Unreachable, format!("{}: the name has no address", tried()))))
    }
}

/// Stream of bytes in both directions: TCP, with or without TLS.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// TCP connection that can be measured while HTTP uses it.
struct Socket(Arc<TcpStream>);

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(context))?;
            match self.0.try_read_buf(buffer) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                outcome => return Poll::Ready(outcome.map(drop)),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(context))?;
            match self.0.try_write_vectored(bytes) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                outcome => return Poll::Ready(outcome),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The kernel sends what was written.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&*self.0).shutdown(Shutdown::Write))
    }
}

/// Starts HTTP on a stream, and a task that drives it.
async fn handshake(stream: Box<dyn Stream>) -> Result<(SendRequest<Payload>, AbortHandle), hyper::Error> {
    let mut builder = Builder::new();
    // XRootD 5 knows the names of headers in this case only, and takes a body without Content-Length for empty.
    builder.title_case_headers(true).preserve_header_case(true);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
    // Its errors reach the request under way.
    let driver = tokio::spawn(async move { drop(connection.await) });
    // A request before the task runs would be refused.
    sender.ready().await?;
    Ok((sender, driver.abort_handle()))
}

/// Returns the extension of a request that makes hyper write the names of [`MIXED_CASE`] as they are.
///
/// The type of this extension is private in hyper. A client gets a value of it with each answer that it reads, and so
/// an answer with these names is read once.
async fn mixed_case() -> Result<Extensions, std::io::Error> {
    use std::io::Error;
    let (ours, theirs) = UnixStream::pair()?;
    let headers: String = MIXED_CASE.iter().map(|name| format!("{name}: x\r\n")).collect();
    let head = format!("HTTP/1.1 200 OK\r\n{headers}Content-Length: 0\r\n\r\n");
    let (mut sender, driver) = handshake(Box::new(ours)).await.map_err(Error::other)?;
    let answered = async {
        // An answer before the request would be an error.
        theirs.readable().await?;
        // A few bytes, which the buffer of the socket takes.
        theirs.try_write(head.as_bytes())
    };
    let (answer, written) = tokio::join!(sender.send_request(hyper::Request::new(Payload::Empty)), answered);
    driver.abort();
    written?;
    Ok(answer.map_err(Error::other)?.extensions().clone())
}

/// Returns the port of a location.
fn port_of(at: &WebLocation) -> u16 {
    let port = url::Url::parse(at.url()).ok().and_then(|url| url.port_or_known_default());
    port.unwrap_or(if at.is_encrypted() { 443 } else { 80 })
}

/// Returns the text of a refusal by the rules of this service, which the library shows as a structure.
fn own_refusal(error: &std::io::Error) -> Option<String> {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::InvalidCertificate(rustls::CertificateError::Other(other))) => Some(other.0.to_string()),
        _ => None,
    }
}

fn is_refused_certificate(error: &std::io::Error) -> bool {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(tls, Some(rustls::Error::InvalidCertificate(_)))
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn names_of_headers_have_the_case_that_xrootd_knows() {
        let case = mixed_case().await.unwrap();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (mut sender, _driver) = handshake(Box::new(ours)).await.unwrap();
        let mut request = hyper::Request::builder()
            .method("COPY")
            .uri("/f")
            .header("host", "h")
            .header("x-number-of-streams", "1")
            .header("transferheaderauthorization", "Bearer x")
            .body(Payload::Empty)
            .unwrap();
        *request.extensions_mut() = case;
        let sent = tokio::spawn(async move { sender.send_request(request).await.map(drop) });
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            assert!(theirs.read_buf(&mut head).await.unwrap() > 0);
        }
        drop(theirs);
        assert!(sent.await.unwrap().is_err(), "closed without an answer");
        let head = String::from_utf8(head).unwrap();
        for line in ["COPY /f HTTP/1.1", "Host: h", "X-Number-Of-Streams: 1", "TransferHeaderAuthorization: Bearer x"] {
            assert!(head.lines().any(|found| found == line), "{line} in {head}");
        }
    }
}
