//! Server of NDT7: carries out the tests of clients that nobody has authenticated, one at a time.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use rustls::{ServerConfig, ServerConnection, StreamOwned};
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use tungstenite::accept_hdr_with_config;
use tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tungstenite::handshake::{HandshakeError, HandshakeRole};
use tungstenite::http::{HeaderValue, StatusCode};

use super::load::messages;
use super::message::{AppInfo, ConnectionInfo, KernelReport, Measurement};
use super::wire::{Incoming, Session, Wire, config, failed, late};
use super::{CLOSE_TIME_MAX, DOWNLOAD, HANDSHAKE_TIME_MAX, MEASURE_EVERY, PROTOCOL, TEST_TIME, UPLOAD};
use crate::identity::Identity;
use crate::measure::deadline::{Bounded, Deadline, in_words};
use crate::measure::flow::{self, micros};
use crate::measure::message::SocketSettings;
use crate::measure::serve::{Guest, Measurements, Party, Place};
use crate::sys;

/// Maximum size of the query of a client in bytes. Source: the specification.
const QUERY_BYTES_MAX: usize = 4096;

/// First byte of a TLS connection: a handshake record (RFC 8446, section 5.1).
const TLS_HANDSHAKE: u8 = 22;

/// Server of NDT7, at the place of an agent's measurements.
pub(crate) struct Ndt7Server {
    measurements: Arc<Measurements>,
    tls: Arc<ServerConfig>,
}

/// Direction of a test.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Download,
    Upload,
}

/// Answer to the request of a client.
enum Asked {
    Test(Kind, Place),
    Busy,
    Refused(StatusCode),
}

impl Ndt7Server {
    /// Creates a server. Its certificate is that of the agent, and clients need none.
    pub(crate) fn new(measurements: Arc<Measurements>, identity: &Identity) -> Result<Self, Error> {
        let agents = identity.server_config();
        let mut tls = ServerConfig::builder_with_provider(Arc::clone(agents.crypto_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|e| crate::internal("set TLS up for NDT7").caused_by(e))?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&agents.cert_resolver));
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { measurements, tls: Arc::new(tls) })
    }

    /// Serves a connection until it ends. `log` gets a line when a test begins.
    ///
    /// Errors: `Protocol`, `Unreachable`; `Denied`: the client asks for something else, which it has been sent.
    pub(crate) fn serve(&self, stream: TcpStream, from: SocketAddr, log: &dyn Fn(&str)) -> Result<Guest, Error> {
        let lost = |e: std::io::Error| failed("accept an NDT7 connection", e);
        stream.set_nonblocking(false).and_then(|()| stream.set_nodelay(true)).map_err(lost)?;
        // The specification asks for bbr where the kernel has it.
        let settings = SocketSettings { congestion: Some("bbr".to_owned()), ..SocketSettings::default() };
        let _ = flow::apply(&settings, &stream);
        let watched = stream.try_clone().map_err(lost)?;
        let local = stream.local_addr().map_err(lost)?;
        let wire = self.wire(stream, Deadline::after(HANDSHAKE_TIME_MAX))?;
        let mut asked = None;
        #[allow(clippy::result_large_err, reason = "the type is that of the library")]
        let callback = |request: &Request, response: Response| {
            let answer = self.answer(request, from);
            let reply = reply(&answer, response);
            asked = Some(answer);
            reply
        };
        let accepted = accept_hdr_with_config(wire, callback, Some(config())).map_err(handshake_error);
        let (kind, place) = match asked {
            Some(Asked::Test(kind, place)) => (kind, place),
            Some(Asked::Busy) => return Ok(Guest::Busy),
            Some(Asked::Refused(status)) => {
                let text = format!("an NDT7 client was refused: {status}");
                return Err(Error::new(ErrorKind::Denied, Scope::Client, Phase::Prepare, text));
            }
            None => return Err(accepted.err().unwrap_or_else(|| late(HANDSHAKE))),
        };
        let session = Session::new(accepted?);
        let name = if kind == Kind::Download { "download" } else { "upload" };
        log(&format!("an NDT7 {name} begins, for up to {} s", TEST_TIME.as_secs()));
        let connection = ConnectionInfo::new(from, local);
        let mut test = Test { session, watched, kind, connection, start: Instant::now(), bytes: 0, place };
        test.run()?;
        let (bytes, time) = (test.bytes, test.start.elapsed());
        // The next test of the client comes when it sees the end of the connection.
        let Test { place, session, .. } = test;
        drop(place);
        drop(session);
        Ok(Guest::Test(format!("an NDT7 {name} has ended: {bytes} bytes in {:.1} s", time.as_secs_f64())))
    }

    /// Begins TLS if the client does.
    fn wire(&self, stream: TcpStream, deadline: Deadline) -> Result<Box<dyn Wire>, Error> {
        let lost = |e| failed("wait for the request of an NDT7 client", in_words(e));
        stream.set_read_timeout(Some(deadline.left().map_err(lost)?)).map_err(lost)?;
        let mut first = [0];
        if stream.peek(&mut first).map_err(lost)? == 0 || first[0] != TLS_HANDSHAKE {
            return Ok(Box::new(Bounded::new(stream, deadline)));
        }
        let connection = ServerConnection::new(Arc::clone(&self.tls))
            .map_err(|e| crate::internal("start TLS for NDT7").caused_by(e))?;
        let mut tls = StreamOwned::new(connection, Bounded::new(stream, deadline));
        while tls.conn.is_handshaking() {
            let done = tls.conn.complete_io(&mut tls.sock);
            done.map_err(|e| failed("run the TLS handshake of an NDT7 client", in_words(e)))?;
        }
        Ok(Box::new(tls))
    }

    /// Checks a request, and takes the place of a measurement for it.
    fn answer(&self, request: &Request, from: SocketAddr) -> Asked {
        let kind = match request.uri().path() {
            DOWNLOAD => Kind::Download,
            UPLOAD => Kind::Upload,
            _ => return Asked::Refused(StatusCode::NOT_FOUND),
        };
        let protocols = request.headers().get_all("Sec-WebSocket-Protocol").iter();
        let is_ndt7 = protocols
            .filter_map(|value| value.to_str().ok())
            .any(|value| value.split(',').any(|name| name.trim() == PROTOCOL));
        if !is_ndt7 || request.uri().query().is_some_and(|query| query.len() > QUERY_BYTES_MAX) {
            return Asked::Refused(StatusCode::BAD_REQUEST);
        }
        self.measurements.enter(Party::Guest, Some(from)).map_or(Asked::Busy, |place| Asked::Test(kind, place))
    }
}

/// Returns the reply to a request.
#[allow(clippy::result_large_err, reason = "the type is that of the library")]
fn reply(asked: &Asked, mut response: Response) -> Result<Response, ErrorResponse> {
    let refused = |status| {
        let mut response = ErrorResponse::new(None);
        *response.status_mut() = status;
        Err(response)
    };
    match asked {
        Asked::Test(..) => {
            response.headers_mut().insert("Sec-WebSocket-Protocol", HeaderValue::from_static(PROTOCOL));
            Ok(response)
        }
        Asked::Busy => refused(StatusCode::SERVICE_UNAVAILABLE),
        Asked::Refused(status) => refused(*status),
    }
}

/// Returns the error of a WebSocket handshake.
fn handshake_error<R: HandshakeRole>(error: HandshakeError<R>) -> Error {
    match error {
        HandshakeError::Failure(tungstenite::Error::Io(e)) => failed(HANDSHAKE, e),
        HandshakeError::Failure(error) => Error::protocol(HANDSHAKE).caused_by(error),
        HandshakeError::Interrupted(_) => late(HANDSHAKE),
    }
}

/// Work that a failure of the handshake has ended.
const HANDSHAKE: &str = "run the WebSocket handshake of an NDT7 client";

/// Test under way.
struct Test {
    session: Session,
    /// The socket, for the counters of its kernel.
    watched: TcpStream,
    kind: Kind,
    connection: ConnectionInfo,
    start: Instant,
    /// Bytes of binary messages that this end has sent or received.
    bytes: u64,
    place: Place,
}

impl Test {
    /// Runs the test, and closes the connection.
    fn run(&mut self) -> Result<(), Error> {
        let end = self.start + TEST_TIME;
        match self.kind {
            Kind::Download => self.send(end),
            Kind::Upload => self.receive(end),
        }?;
        let until = Instant::now() + CLOSE_TIME_MAX;
        self.measure(until)?;
        self.session.close(until);
        Ok(())
    }

    fn send(&mut self, end: Instant) -> Result<(), Error> {
        let mut data = messages()?;
        let mut measured = self.start;
        loop {
            let now = Instant::now();
            if now >= end {
                return Ok(());
            }
            if now.saturating_duration_since(measured) >= MEASURE_EVERY {
                measured = now;
                self.measure(end)?;
                match self.session.incoming(None)? {
                    Incoming::Closed => return Ok(()),
                    Incoming::Data(_) => return Err(Error::protocol("data of a client in an NDT7 download")),
                    Incoming::Text(_) | Incoming::Nothing => {}
                }
            }
            let message = data.next(self.bytes);
            if !self.session.send(&message, end)? {
                return Ok(());
            }
            self.bytes += message.len() as u64;
        }
    }

    fn receive(&mut self, end: Instant) -> Result<(), Error> {
        let mut measured = self.start;
        loop {
            let now = Instant::now();
            if now >= end {
                return Ok(());
            }
            if now.saturating_duration_since(measured) >= MEASURE_EVERY {
                measured = now;
                self.measure(end)?;
            }
            match self.session.incoming(Some(end.min(measured + MEASURE_EVERY)))? {
                Incoming::Data(bytes) => self.bytes += bytes,
                Incoming::Closed => return Ok(()),
                Incoming::Text(_) | Incoming::Nothing => {}
            }
        }
    }

    /// Sends a measurement.
    fn measure(&mut self, until: Instant) -> Result<(), Error> {
        let elapsed = self.start.elapsed();
        let measurement = Measurement {
            app: Some(AppInfo { elapsed_time: Some(micros(elapsed)), num_bytes: Some(self.bytes) }),
            connection: Some(self.connection.clone()),
            origin: Some("server".to_owned()),
            test: Some(if self.kind == Kind::Download { "download" } else { "upload" }.to_owned()),
            kernel: sys::tcp_info(&self.watched).ok().map(|info| KernelReport::new(&info, elapsed)),
        };
        let json = serde_json::to_string(&measurement).map_err(|e| crate::internal("encode a message").caused_by(e))?;
        // The client may be gone, which the next read shows.
        self.session.send_text(json, until).map(drop)
    }
}
