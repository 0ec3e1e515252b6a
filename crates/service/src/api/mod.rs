//! HTTPS server of the interfaces.
//!
//! Accepts connections, authenticates callers by certificate or token, and hands requests to the routes. Refuses to
//! carry out anything: routes translate to commands.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, Uri, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tower::ServiceExt;
use tracing::{debug, warn};

use crate::caller::{Caller, Level, Method};
use crate::settings::Applied;

mod agents;
mod app;
mod body;
mod description;
pub mod fts3;
pub mod native;
mod ui;

use app::Authenticated;
pub use app::{App, BODY_BYTES_MAX};
use body::Watched;

/// Maximum number of connections. Reason: each has a task, buffers and a descriptor; beyond it new ones wait.
const CONNECTIONS_MAX: usize = 4096;

/// Time limit for a TLS handshake. Reason: the longest round trip, 660 ms, several times.
const HANDSHAKE_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(20);

/// Time limit for the head of a request, and for a connection without requests. Reason: clients of FTS3 wait 30 s.
const HEADERS_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(60);

/// Maximum time for which bytes of a closing connection are discarded, and maximum time of silence then. Source: nginx.
const LINGER_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(30);
const SILENCE_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(5);

/// Number of bytes that are discarded at once.
const DISCARDED_TOGETHER: usize = 16 << 10;

/// Maximum bytes of the text of a failure that the router found.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// Returns all routes: those of the two descriptions, and no others.
pub fn routes(app: App) -> Router {
    Router::from(fts3::routes()).merge(Router::from(native::routes())).merge(agents::routes()).with_state(app)
}

/// Accepts connections until the listener fails.
///
/// Errors: the listener cannot accept any more.
pub async fn serve(listener: TcpListener, app: App) -> Result<(), Error> {
    let router = routes(app.clone());
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return Ok(()) };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            // A connection that ended before it was accepted, or no free descriptor.
            Err(e) => {
                warn!("accept a connection: {e}");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                continue;
            }
        };
        let (app, router) = (app.clone(), router.clone());
        tokio::spawn(async move {
            if let Err(e) = connection(stream, peer, app, router).await {
                debug!("connection from {peer}: {}", e.chain());
            }
            drop(place);
        });
    }
}

async fn connection(stream: TcpStream, peer: SocketAddr, app: App, router: Router) -> Result<(), Error> {
    let failed = |text: &str| Error::new(ErrorKind::Unreachable, Scope::Client, Phase::Prepare, text);
    stream.set_nodelay(true).map_err(|e| failed("set TCP_NODELAY").caused_by(e))?;
    let acceptor = TlsAcceptor::from(app.access.tls());
    let handshake = tokio::time::timeout(HANDSHAKE_TIME_MAX, acceptor.accept(stream)).await;
    let stream = handshake.map_err(|_| failed("TLS handshake: the time is over"))?;
    let stream = stream.map_err(|e| failed("TLS handshake").caused_by(e))?;
    let certificates = stream.get_ref().1.peer_certificates().map(<[_]>::to_vec).unwrap_or_default();
    let by_certificate = app.access.caller_of_certificate(&certificates);
    let is_agent = by_certificate.as_ref().is_ok_and(|caller| caller.method == Method::Key);
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let (app, router, by_certificate) = (app.clone(), router.clone(), by_certificate.clone());
        async move {
            let (head, body) = request.into_parts();
            let body = Watched::new(body);
            let request = Request::from_parts(head, Body::new(body.clone()));
            let mut response = answer(request, peer, &app, router, by_certificate).await;
            if !body.is_read() {
                // The connection ends after the reply: the client must not send another request on it.
                response.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEADERS_TIME_MAX);
    if is_agent {
        // Its connection becomes a WebSocket.
        let served = server.serve_connection(TokioIo::new(stream), service).with_upgrades().await;
        return served.map_err(|e| failed(&format!("serve: {e}")));
    }
    let served = server.serve_connection(TokioIo::new(stream), service).without_shutdown().await;
    let served = served.map_err(|e| failed(&format!("serve: {e}")))?;
    linger(served.io.into_inner()).await.map_err(|e| failed("end the connection").caused_by(e))
}

/// Ends a connection: sends that there is no more, and discards bytes until the other end has closed, or for a time.
///
/// Reason: a client that still sends a refused body when the connection closes gets a reset, and not the refusal.
async fn linger(mut stream: TlsStream<TcpStream>) -> std::io::Result<()> {
    stream.shutdown().await?;
    let discard = async {
        let mut discarded = vec![0; DISCARDED_TOGETHER];
        while let Ok(Ok(1..)) = tokio::time::timeout(SILENCE_TIME_MAX, stream.read(&mut discarded)).await {}
    };
    // The reply is sent in any case.
    let _ = tokio::time::timeout(LINGER_TIME_MAX, discard).await;
    Ok(())
}

/// Answers a request.
async fn answer(
    mut request: Request<Body>,
    peer: SocketAddr,
    app: &App,
    router: Router,
    by_certificate: Result<Caller, Error>,
) -> Response<Body> {
    collapse_slashes(request.uri_mut());
    let token = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = token.and_then(|value| value.strip_prefix("Bearer ")).map(str::to_owned);
    let caller = match token {
        Some(token) => app.access.caller_of_token(&token).await,
        None => by_certificate,
    };
    let grants = app.service.applied();
    let caller = caller.map(|caller| with_grants(caller, &grants));
    debug!("{peer}: {} {}", request.method(), request.uri().path());
    request.extensions_mut().insert(Authenticated(caller));
    let is_native = request.uri().path().starts_with(native::PREFIX);
    match router.oneshot(request).await {
        Ok(response) => in_shape(response, is_native).await,
        Err(never) => match never {},
    }
}

/// Gives a failure that the router found, such as a method or a query that is not allowed, the shape of its interface.
async fn in_shape(response: Response<Body>, is_native: bool) -> Response<Body> {
    let status = response.status();
    let media = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if status.as_u16() < 400 || media.starts_with("application/json") || media.starts_with("text/html") {
        return response;
    }
    let (head, body) = response.into_parts();
    let text = axum::body::to_bytes(body, TEXT_BYTES_MAX).await.unwrap_or_default();
    let text = match text.is_empty() {
        true => status.canonical_reason().unwrap_or("the request was refused").to_owned(),
        false => String::from_utf8_lossy(&text).into_owned(),
    };
    let mut response = if is_native { native::failure(status, text) } else { fts3::failure(status, text) };
    // A refused method names those that are allowed.
    if let Some(allowed) = head.headers.get(header::ALLOW) {
        response.headers_mut().insert(header::ALLOW, allowed.clone());
    }
    response
}

/// Adds the operations that operators have granted to a caller.
fn with_grants(mut caller: Caller, settings: &Applied) -> Caller {
    if caller.is_user() {
        for operation in settings.grants.get(&caller.name).into_iter().flatten() {
            caller.levels[*operation as usize] = Level::All;
        }
    }
    caller
}

/// Makes one slash of several at the same place. Reason: FTS3 clients put two between the endpoint and the path.
///
/// Removes the slash at the end, except that of the page for people. Reason: links in replies of FTS3 have one.
fn collapse_slashes(uri: &mut Uri) {
    let path = uri.path();
    if !path.contains("//") && !path.ends_with('/') {
        return;
    }
    let mut collapsed = String::with_capacity(path.len());
    for character in path.chars() {
        if character != '/' || !collapsed.ends_with('/') {
            collapsed.push(character);
        }
    }
    if collapsed.ends_with('/') && !["/", "/ui/"].contains(&collapsed.as_str()) {
        collapsed.pop();
    }
    if let Some(query) = uri.query() {
        collapsed.push('?');
        collapsed.push_str(query);
    }
    let mut parts = std::mem::take(uri).into_parts();
    // A URI that was valid stays valid with fewer slashes.
    parts.path_and_query = collapsed.parse().ok();
    *uri = Uri::from_parts(parts).unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slashes_are_collapsed_in_paths_only() {
        for (given, expected) in [
            ("//", "/"),
            ("//jobs", "/jobs"),
            ("///jobs//a,b", "/jobs/a,b"),
            ("/ban/se?storage=https://a//b", "/ban/se?storage=https://a//b"),
            ("//ban/se?storage=https://a", "/ban/se?storage=https://a"),
            ("/jobs/", "/jobs"),
            ("/jobs///?limit=1", "/jobs?limit=1"),
            ("/ui/", "/ui/"),
            ("//ui//", "/ui/"),
            ("/", "/"),
        ] {
            let mut uri: Uri = given.parse().unwrap();
            collapse_slashes(&mut uri);
            assert_eq!(uri.to_string(), expected);
        }
    }
}
