//! HTTP server of the metrics: `GET /metrics`, and nothing else.
//!
//! Everybody who reaches the address can read. Connections, their time and the size of a request are bounded.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use sterna_doctor::monitor::metrics;
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use tokio::sync::Semaphore;

/// Maximum number of connections. Reason: some Prometheus servers and a person; more wait in the kernel.
const CONNECTIONS_MAX: usize = 16;

/// Time of a connection. Reason: Prometheus waits 10 s by default.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(10);

/// Maximum size of the head of a request. Reason: that of Prometheus has some hundred bytes; the least of hyper.
const HEAD_BYTES_MAX: usize = 8192;

/// Wait after a connection that could not be accepted, usually because no descriptor is free.
const ACCEPT_AGAIN: Duration = Duration::from_millis(250);

/// Serves a text at an address until the process ends. Returns the address.
///
/// Errors: the port is in use, or the process has no permission to use it.
pub fn serve(listen: SocketAddr, text: impl Fn() -> String + Clone + Send + 'static) -> Result<SocketAddr, Error> {
    let failed = |e: std::io::Error| {
        let kind = match e.kind() {
            std::io::ErrorKind::AddrInUse => ErrorKind::Busy,
            std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
            _ => ErrorKind::Io,
        };
        let text = format!("listen on TCP {listen} for metrics");
        Error::new(kind, Scope::Client, Phase::Prepare, text).caused_by(e)
    };
    let listener = TcpListener::bind(listen).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let at = listener.local_addr().map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let run = move || runtime.block_on(accept(listener, text));
    thread::Builder::new().name("metrics".to_owned()).spawn(run).map_err(failed)?;
    Ok(at)
}

async fn accept(listener: TcpListener, text: impl Fn() -> String + Clone + Send + 'static) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::warn!("serve metrics: {error}"),
    };
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!("accept a connection for metrics: {error}");
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        let text = text.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| std::future::ready(Ok::<_, Infallible>(answer(&request, &text))));
            let mut server = http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(CONNECTION_TIME_MAX);
            server.keep_alive(false).max_buf_size(HEAD_BYTES_MAX);
            let served = server.serve_connection(TokioIo::new(stream), service);
            // A client that leaves or is slow needs no line in the log.
            let _ = tokio::time::timeout(CONNECTION_TIME_MAX, served).await;
            drop(place);
        });
    }
}

fn answer(request: &Request<Incoming>, text: &impl Fn() -> String) -> Response<Full<Bytes>> {
    let (status, body) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => (StatusCode::OK, text()),
        (_, "/metrics") => (StatusCode::METHOD_NOT_ALLOWED, "GET only\n".to_owned()),
        _ => (StatusCode::NOT_FOUND, "the metrics are at /metrics\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(metrics::CONTENT_TYPE));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;

    fn ask(at: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        // A connection that is refused may be reset.
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    #[test]
    fn metrics_are_at_one_address_and_a_large_head_is_refused() {
        let at = serve("127.0.0.1:0".parse().unwrap(), || "sterna_up{peer=\"a\"} 1\n".to_owned()).unwrap();
        let answer = ask(at, "GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n");
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nsterna_up{peer=\"a\"} 1\n"),
            "{answer}"
        );
        assert!(answer.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{answer}");
        for (request, status) in [
            ("GET / HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(), "404"),
            ("POST /metrics HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n".to_owned(), "405"),
            ("HEAD /metrics HTTP/1.0\r\n\r\n".to_owned(), "200"),
            (format!("GET /{} HTTP/1.1\r\n", "x".repeat(20_000)), "4"),
            ("\u{1}\u{2}\r\n\r\n".to_owned(), "400"),
        ] {
            let answer = ask(at, &request);
            // The reset of a head that is too large may overtake its answer.
            let is_reset = answer.is_empty() && request.len() > 10_000;
            assert!(
                is_reset || answer.split(' ').nth(1).is_some_and(|code| code.starts_with(status)),
                "{request}: {answer}"
            );
        }
        // The port is in use now.
        assert_eq!(serve(at, String::new).unwrap_err().kind, ErrorKind::Busy);
    }
}
