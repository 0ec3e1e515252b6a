//! Client of NDT7: runs one test with a server, in one direction.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use sterna_proto::location::HostPort;
use sterna_proto::path_cache::DataDirection;
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};
use tungstenite::client::{IntoClientRequest, client_with_config};
use tungstenite::handshake::{HandshakeError, HandshakeRole};
use tungstenite::http::{HeaderValue, StatusCode};

use super::load::messages;
use super::message::{KernelReport, Measurement};
use super::wire::{Incoming, Session, Wire, config, failed, late};
use super::{CLOSE_TIME_MAX, DOWNLOAD, HANDSHAKE_TIME_MAX, MEASURE_EVERY, PROTOCOL, TEST_TIME, UPLOAD};
use crate::identity::{self, Fingerprint, Identity, peer_fingerprint};
use crate::measure::again::until_begun;
use crate::measure::deadline::{Bounded, Deadline, in_words};
use crate::measure::dial;
use crate::measure::flow;
use crate::measure::message::{FlowReport, SocketSettings};

/// Test with a server, in one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ndt7Test {
    /// Direction of the data, as the client sees it.
    pub direction: DataDirection,
    /// Time of the test, up to [`TEST_TIME`].
    pub time: Duration,
    /// Highest rate of payload, bit/s. It holds for data that this end sends: a server has no way to be asked.
    pub rate_max_bps: Option<u64>,
}

/// Proof that a server is the one that is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ndt7Security {
    /// TLS with a certificate of an authority of this host.
    Authorities,
    /// TLS with the key of an agent.
    Key(Fingerprint),
    /// None: no TLS.
    Clear,
}

/// Outcome of a test.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ndt7Outcome {
    /// Address of the server.
    pub server: Option<SocketAddr>,
    /// Observations of this end.
    pub near: FlowReport,
    /// Bytes of messages that the receiver has received: by its own count, or if the server sends none, by the
    /// acknowledgements.
    pub bytes: u64,
    /// Time of these bytes.
    pub time: Duration,
    /// Last counters of the server's kernel.
    pub kernel: Option<KernelReport>,
}

/// Runs a test. `local`: address of this host, which selects the network.
///
/// Errors: `Busy`: the server runs another test; `Untrusted`; `Denied`; `Unreachable`; `Protocol`.
pub fn run(
    server: &HostPort,
    local: Option<IpAddr>,
    security: Ndt7Security,
    identity: &Identity,
    test: &Ndt7Test,
) -> Result<Ndt7Outcome, Error> {
    let begun = until_begun(|| open(server, local, security, identity, test));
    let (session, socket, remote) = begun.map_err(|error| error.named(server.clone()))?;
    let start = Instant::now();
    let mut running =
        Running { session, start, end: start + test.time.min(TEST_TIME), bytes: 0, last: start, heard: None };
    let watched = [Arc::new(socket)];
    let is_over = AtomicBool::new(false);
    let (moved, near) = thread::scope(|scope| {
        let sampler = scope.spawn(|| flow::sample(&watched, start, &is_over));
        let moved = match test.direction {
            DataDirection::Out => running.send(),
            DataDirection::In => running.receive(),
        };
        is_over.store(true, Ordering::Relaxed);
        // A panic of the sampler is a bug of ours, and the test has no samples then.
        (moved, sampler.join().unwrap_or_default())
    });
    moved.map_err(|error| error.named(server.clone()))?;
    Ok(Ndt7Outcome { server: Some(remote), ..running.outcome(test.direction, near) })
}

/// Opens the WebSocket of a test. Returns its socket too.
fn open(
    server: &HostPort,
    local: Option<IpAddr>,
    security: Ndt7Security,
    identity: &Identity,
    test: &Ndt7Test,
) -> Result<(Session, TcpStream, SocketAddr), Error> {
    let deadline = Deadline::after(HANDSHAKE_TIME_MAX);
    let rate = test.rate_max_bps.filter(|_| test.direction == DataDirection::Out);
    let settings = SocketSettings { pacing_bps: rate, ..SocketSettings::default() };
    let connected = |remote| {
        let (stream, _) = dial::connect("the NDT7 server", remote, local, &settings, deadline)?;
        Ok((stream, remote))
    };
    let (stream, remote) = dial::first_of(server, local, connected)?;
    let socket = stream.try_clone().map_err(|e| crate::internal("duplicate a socket").caused_by(e))?;
    let (wire, scheme): (Box<dyn Wire>, _) = match security {
        Ndt7Security::Clear => (Box::new(Bounded::new(stream, deadline)), "ws"),
        _ => (Box::new(encrypted(stream, server, security, identity, deadline)?), "wss"),
    };
    let path = if test.direction == DataDirection::Out { UPLOAD } else { DOWNLOAD };
    let version = env!("CARGO_PKG_VERSION");
    let url = format!("{scheme}://{server}{path}?client_name=sterna&client_version={version}");
    let wrong = |e: tungstenite::Error| Error::protocol("make the request of an NDT7 test").caused_by(e);
    let mut request = url.into_client_request().map_err(wrong)?;
    request.headers_mut().insert("Sec-WebSocket-Protocol", HeaderValue::from_static(PROTOCOL));
    request.headers_mut().insert("User-Agent", HeaderValue::from_static(concat!("sterna/", env!("CARGO_PKG_VERSION"))));
    match client_with_config(request, wire, Some(config())) {
        Ok((websocket, _)) => Ok((Session::new(websocket), socket, remote)),
        Err(error) => Err(handshake_error(error)),
    }
}

/// Returns the error of a WebSocket handshake.
fn handshake_error<R: HandshakeRole>(error: HandshakeError<R>) -> Error {
    const WHAT: &str = "run the WebSocket handshake with an NDT7 server";
    let refused =
        |kind, text: String, retry| Error::new(kind, Scope::Service, Phase::Prepare, text).retry(retry).from_peer();
    match error {
        HandshakeError::Interrupted(_) => late(WHAT),
        HandshakeError::Failure(tungstenite::Error::Http(response)) => match response.status() {
            StatusCode::SERVICE_UNAVAILABLE => {
                let text = "the NDT7 server runs another test, or has no place; try again in a minute".to_owned();
                refused(ErrorKind::Busy, text, Retry::After)
            }
            status => {
                refused(ErrorKind::Denied, format!("the NDT7 server refuses the test with {status}"), Retry::Never)
            }
        },
        HandshakeError::Failure(tungstenite::Error::Io(e)) => failed(WHAT, e),
        HandshakeError::Failure(error) => Error::protocol(WHAT).caused_by(error),
    }
}

/// Runs the TLS handshake, and checks the server.
fn encrypted(
    stream: TcpStream,
    server: &HostPort,
    security: Ndt7Security,
    identity: &Identity,
    deadline: Deadline,
) -> Result<StreamOwned<ClientConnection, Bounded>, Error> {
    let untrusted = |text: String| Error::new(ErrorKind::Untrusted, Scope::Client, Phase::Prepare, text);
    let (mut config, name) = match security {
        Ndt7Security::Key(_) => ((*identity.client_config()).clone(), identity::server_name()),
        _ => {
            let name = ServerName::try_from(server.host.clone())
                .map_err(|e| untrusted(format!("{} can have no certificate", server.host)).caused_by(e))?;
            (by_authorities(identity)?, name)
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let connection = ClientConnection::new(Arc::new(config), name)
        .map_err(|e| crate::internal("start TLS for NDT7").caused_by(e))?;
    let mut tls = StreamOwned::new(connection, Bounded::new(stream, deadline));
    while tls.conn.is_handshaking() {
        tls.conn.complete_io(&mut tls.sock).map_err(|e| {
            let is_tls = e.get_ref().is_some_and(|inner| inner.downcast_ref::<rustls::Error>().is_some());
            match is_tls {
                true => untrusted(format!(
                    "the NDT7 server {server} has no certificate that this host trusts; give --trust FINGERPRINT for \
                     an agent, or ndt7+ws:// without TLS"
                ))
                .caused_by(e),
                false => failed("run the TLS handshake with an NDT7 server", in_words(e)),
            }
        })?;
    }
    if let Ndt7Security::Key(expected) = security {
        let key = peer_fingerprint(tls.conn.peer_certificates().unwrap_or_default())?;
        if key != expected {
            return Err(untrusted(format!("{server} has the key {key}, not {expected}: not connected")));
        }
    }
    Ok(tls)
}

/// Returns the TLS settings for servers with a certificate of an authority of this host.
fn by_authorities(identity: &Identity) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    // Errors in the system's list are ignored here. A server whose authority is missing causes an error later.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::clone(identity.client_config().crypto_provider());
    let all = rustls::crypto::CryptoProvider {
        cipher_suites: rustls::crypto::ring::ALL_CIPHER_SUITES.to_vec(),
        kx_groups: rustls::crypto::ring::ALL_KX_GROUPS.to_vec(),
        ..(*provider).clone()
    };
    let config = ClientConfig::builder_with_provider(Arc::new(all))
        .with_safe_default_protocol_versions()
        .map_err(|e| crate::internal("set TLS up for NDT7").caused_by(e))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// Test under way.
struct Running {
    session: Session,
    start: Instant,
    end: Instant,
    /// Bytes of binary messages that this end has sent or received.
    bytes: u64,
    /// Time of the last one.
    last: Instant,
    /// Last measurement of the server.
    heard: Option<Measurement>,
}

impl Running {
    fn send(&mut self) -> Result<(), Error> {
        let mut data = messages()?;
        let mut listened = self.start;
        loop {
            let now = Instant::now();
            if now >= self.end {
                break;
            }
            if now.saturating_duration_since(listened) >= MEASURE_EVERY {
                listened = now;
                if !self.listen()? {
                    return Ok(());
                }
            }
            let message = data.next(self.bytes);
            if !self.session.send(&message, self.end)? {
                break;
            }
            self.bytes += message.len() as u64;
            self.last = Instant::now();
        }
        self.listen()?;
        self.session.close(Instant::now() + CLOSE_TIME_MAX);
        Ok(())
    }

    /// Takes the measurements that have arrived. Returns false if the server has closed the connection.
    fn listen(&mut self) -> Result<bool, Error> {
        loop {
            match self.session.incoming(None)? {
                Incoming::Nothing => return Ok(true),
                Incoming::Closed => return Ok(false),
                Incoming::Text(json) => self.hear(&json)?,
                Incoming::Data(_) => return Err(Error::protocol("data of a server in an NDT7 upload")),
            }
        }
    }

    fn receive(&mut self) -> Result<(), Error> {
        // The server ends a test of the full time itself.
        let is_full = self.end.saturating_duration_since(self.start) >= TEST_TIME;
        let end = if is_full { self.end + CLOSE_TIME_MAX } else { self.end };
        loop {
            match self.session.incoming(Some(end))? {
                Incoming::Data(bytes) => {
                    self.bytes += bytes;
                    self.last = Instant::now();
                }
                Incoming::Text(json) => self.hear(&json)?,
                Incoming::Closed => return Ok(()),
                Incoming::Nothing => {}
            }
            if Instant::now() >= end {
                self.session.close(Instant::now() + CLOSE_TIME_MAX);
                return Ok(());
            }
        }
    }

    fn hear(&mut self, json: &str) -> Result<(), Error> {
        let heard = serde_json::from_str(json);
        self.heard = Some(heard.map_err(|e| Error::protocol("a measurement of an NDT7 server").caused_by(e))?);
        Ok(())
    }

    fn outcome(self, direction: DataDirection, near: FlowReport) -> Ndt7Outcome {
        let app = self.heard.as_ref().and_then(|heard| heard.app);
        let by_server = app.and_then(|app| Some((app.num_bytes?, Duration::from_micros(app.elapsed_time?))));
        let acked = near.streams.iter().filter_map(|stream| stream.samples.last()).map(|sample| sample.acked).sum();
        let own_time = self.last.saturating_duration_since(self.start);
        let (bytes, time) = match direction {
            DataDirection::In => (self.bytes, own_time),
            DataDirection::Out => by_server.unwrap_or((acked, own_time)),
        };
        Ndt7Outcome { server: None, near, bytes, time, kernel: self.heard.and_then(|heard| heard.kernel) }
    }
}
