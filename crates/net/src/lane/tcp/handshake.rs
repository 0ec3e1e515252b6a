//! The TLS handshake of a lane, over a blocking socket with a deadline.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, UnbufferedConnectionCommon, UnbufferedStatus};
use rustls::{AlertDescription, CommonState, ConnectionTrafficSecrets, ExtractedSecrets, SupportedCipherSuite};
use sterna_proto::location::DEFAULT_PORT;
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};

use super::record::{KEY_RECORDS_MIN, RECORD_HEAD_BYTES, RecordKey};
use crate::identity::{self, Fingerprint, Identity, peer_fingerprint};

/// Most bytes that a peer may send in a handshake. Reason: ours takes under 2 KiB; another certificate might be larger.
const HANDSHAKE_BYTES_MAX: usize = 64 << 10;

/// Most bytes that one step of the handshake sends: a flight of ours is under 2 KiB.
const FLIGHT_BYTES_MAX: usize = 32 << 10;

/// What a finished handshake leaves.
pub(super) struct Established {
    /// Who is at the other end.
    pub(super) peer: Fingerprint,
    /// Key for what we send.
    pub(super) tx: RecordKey,
    /// Key for what we receive.
    pub(super) rx: RecordKey,
    /// Derives the keys after these.
    pub(super) secrets: Secrets,
    /// What came behind the handshake.
    pub(super) early: Vec<u8>,
}

/// Derives the next keys of a lane when one is worn.
pub(super) struct Secrets {
    connection: Connection,
    records_max: u64,
}

enum Connection {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

impl Secrets {
    /// The next key for what we send.
    pub(super) fn next_tx(&mut self) -> Result<RecordKey, Error> {
        let next = match &mut self.connection {
            Connection::Client(connection) => connection.update_tx_secret(),
            Connection::Server(connection) => connection.update_tx_secret(),
        };
        Self::key(next, self.records_max)
    }

    /// The next key for what we receive.
    pub(super) fn next_rx(&mut self) -> Result<RecordKey, Error> {
        let next = match &mut self.connection {
            Connection::Client(connection) => connection.update_rx_secret(),
            Connection::Server(connection) => connection.update_rx_secret(),
        };
        Self::key(next, u64::MAX)
    }

    fn key(next: Result<(u64, ConnectionTrafficSecrets), rustls::Error>, records_max: u64) -> Result<RecordKey, Error> {
        let (sequence, secrets) = next.map_err(|e| Error::protocol(format!("derive the next key of a lane: {e}")))?;
        RecordKey::new(sequence, secrets, records_max)
    }
}

/// Runs the handshake as the end that connects.
pub(super) fn connect(link: &mut Link<'_>, identity: &Identity, key_records_max: u64) -> Result<Established, Error> {
    link.is_dialled = true;
    let mut connection = UnbufferedClientConnection::new(identity.client_config(), identity::server_name())
        .map_err(|e| link.tls_error(&e))?;
    let early =
        link.drive(&mut *connection, UnbufferedConnectionCommon::<ClientConnectionData>::process_tls_records)?;
    let peer = link.check_peer(&connection)?;
    let suite = connection.negotiated_cipher_suite();
    let (secrets, kernel) = connection.dangerous_into_kernel_connection().map_err(|e| link.tls_error(&e))?;
    established(peer, secrets, Connection::Client(kernel), early, records_max(suite, key_records_max))
}

/// Runs the handshake as the end that accepts.
pub(super) fn accept(link: &mut Link<'_>, identity: &Identity, key_records_max: u64) -> Result<Established, Error> {
    let mut connection = UnbufferedServerConnection::new(identity.server_config()).map_err(|e| link.tls_error(&e))?;
    let early =
        link.drive(&mut *connection, UnbufferedConnectionCommon::<ServerConnectionData>::process_tls_records)?;
    let peer = link.check_peer(&connection)?;
    let suite = connection.negotiated_cipher_suite();
    let (secrets, kernel) = connection.dangerous_into_kernel_connection().map_err(|e| link.tls_error(&e))?;
    established(peer, secrets, Connection::Server(kernel), early, records_max(suite, key_records_max))
}

/// How many records may be sealed with one key: what the cipher allows (2^24, or 256 GiB, for AES-GCM), or less.
fn records_max(suite: Option<SupportedCipherSuite>, key_records_max: u64) -> u64 {
    let wanted = key_records_max.max(KEY_RECORDS_MIN);
    // Every suite that we offer is one of TLS 1.3; without one there is no secret to extract either.
    suite.and_then(|suite| suite.tls13()).map_or(0, |suite| suite.common.confidentiality_limit.min(wanted))
}

fn established(
    peer: Fingerprint,
    secrets: ExtractedSecrets,
    connection: Connection,
    early: Vec<u8>,
    records_max: u64,
) -> Result<Established, Error> {
    let ExtractedSecrets { tx: (tx_sequence, tx), rx: (rx_sequence, rx) } = secrets;
    Ok(Established {
        peer,
        tx: RecordKey::new(tx_sequence, tx, records_max)?,
        // When to replace that one is for the peer to say.
        rx: RecordKey::new(rx_sequence, rx, u64::MAX)?,
        secrets: Secrets { connection, records_max },
        early,
    })
}

/// What a step of the handshake asks for.
enum Step {
    /// Bytes to send lie ready behind those that did before.
    Encoded(usize),
    /// What lies ready has to be sent now.
    Send,
    /// The peer's turn.
    Receive,
    /// The handshake is complete.
    Done,
}

/// A socket with the deadline of its handshake.
pub(super) struct Link<'s> {
    pub(super) stream: &'s TcpStream,
    pub(super) peer_addr: SocketAddr,
    pub(super) deadline: Instant,
    /// We have connected, to whatever listens there.
    pub(super) is_dialled: bool,
}

impl Link<'_> {
    /// Drives `connection` to the end of its handshake; returns what came behind it.
    ///
    /// rustls is given one record at a time, so that it never sees one that belongs to the lane.
    fn drive<D>(
        &mut self,
        connection: &mut UnbufferedConnectionCommon<D>,
        process: impl for<'c, 'i> Fn(&'c mut UnbufferedConnectionCommon<D>, &'i mut [u8]) -> UnbufferedStatus<'c, 'i, D>,
    ) -> Result<Vec<u8>, Error> {
        let mut incoming = Vec::new();
        let mut given = 0;
        let mut outgoing = vec![0; FLIGHT_BYTES_MAX];
        let mut ready = 0;
        let mut received = 0;
        loop {
            let UnbufferedStatus { discard, state } = process(connection, &mut incoming[..given]);
            let step = match state {
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    let encoded = data.encode(&mut outgoing[ready..]);
                    Step::Encoded(encoded.map_err(|e| self.protocol_error(&e.to_string()))?)
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    Step::Send
                }
                Ok(ConnectionState::BlockedHandshake) => Step::Receive,
                Ok(ConnectionState::WriteTraffic(_)) => Step::Done,
                Ok(state) => return Err(self.protocol_error(&format!("the peer is at {state:?} too early"))),
                Err(error) => {
                    self.send_alert(connection, &mut incoming[..given], &process);
                    return Err(self.tls_error(&error));
                }
            };
            incoming.drain(..discard);
            given -= discard;
            match step {
                Step::Encoded(bytes) => ready += bytes,
                Step::Send => self.send(&outgoing[..std::mem::take(&mut ready)])?,
                Step::Done => return Ok(incoming.split_off(given)),
                Step::Receive => {
                    while record_bytes(&incoming[given..]).is_none() {
                        if received >= HANDSHAKE_BYTES_MAX {
                            let text = format!("sent over {HANDSHAKE_BYTES_MAX} bytes before its handshake was done");
                            return Err(self.protocol_error(&text));
                        }
                        received += self.receive(&mut incoming)?;
                    }
                    given += record_bytes(&incoming[given..]).unwrap_or(0);
                }
            }
        }
    }

    /// Checks what rustls leaves to us: that both speak this protocol, and who the peer is.
    fn check_peer(&self, connection: &CommonState) -> Result<Fingerprint, Error> {
        if connection.alpn_protocol() != Some(identity::ALPN) {
            return Err(match self.is_dialled {
                true => self.no_agent("speaks TLS but not the protocol sterna/1: no sterna agent"),
                false => self.protocol_error("speaks TLS but not the protocol sterna/1"),
            });
        }
        peer_fingerprint(connection.peer_certificates().unwrap_or_default())
    }

    /// Tells the peer what was wrong, as far as that is possible at once.
    fn send_alert<D>(
        &mut self,
        connection: &mut UnbufferedConnectionCommon<D>,
        given: &mut [u8],
        process: impl for<'c, 'i> Fn(&'c mut UnbufferedConnectionCommon<D>, &'i mut [u8]) -> UnbufferedStatus<'c, 'i, D>,
    ) {
        let mut alert = [0; 1024];
        // With what was given before: rustls may hold places in it of a message that was not complete, and panics without.
        if let Ok(ConnectionState::EncodeTlsData(mut data)) = process(connection, given).state
            && let Ok(bytes) = data.encode(&mut alert)
        {
            // The error that is on its way to the caller says more than one about the alert would.
            let _ = self.send(&alert[..bytes]);
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let time_left = self.time_left()?;
        self.stream
            .set_write_timeout(Some(time_left))
            .and_then(|()| (&mut &*self.stream).write_all(bytes))
            .map_err(|e| self.io_error(&e))
    }

    /// Reads what there is; the first bytes must look like TLS.
    fn receive(&mut self, incoming: &mut Vec<u8>) -> Result<usize, Error> {
        let time_left = self.time_left()?;
        let mut bytes = [0; 4096];
        let count = self
            .stream
            .set_read_timeout(Some(time_left))
            .and_then(|()| (&mut &*self.stream).read(&mut bytes))
            .map_err(|e| self.io_error(&e))?;
        if count == 0 {
            let error = self.error(ErrorKind::Unreachable, "closed the connection during the handshake");
            return Err(error.cut_in_handshake());
        }
        incoming.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn time_left(&self) -> Result<Duration, Error> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            Err(self.error(ErrorKind::Unreachable, "did not finish the handshake in time"))
        } else {
            Ok(left)
        }
    }

    fn error(&self, kind: ErrorKind, what: &str) -> Error {
        let retry = if kind == ErrorKind::Unreachable { Retry::After } else { Retry::Never };
        Error::new(kind, Scope::Path, Phase::Prepare, format!("connect with {}: peer {what}", self.peer_addr))
            .retry(retry)
    }

    fn protocol_error(&self, what: &str) -> Error {
        self.error(ErrorKind::Protocol, what)
    }

    fn io_error(&self, error: &std::io::Error) -> Error {
        let unreachable = |what: &str| self.error(ErrorKind::Unreachable, what);
        match error.kind() {
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
                unreachable("did not finish the handshake in time")
            }
            std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe => {
                unreachable("cut the connection during the handshake").cut_in_handshake()
            }
            _ => unreachable(&format!("is out of reach: {error}")),
        }
    }

    /// The error of a port where something else listens.
    fn no_agent(&self, what: &str) -> Error {
        let text = format!(
            "{} {what}; is the port right? agents listen on {DEFAULT_PORT} unless --listen says otherwise",
            self.peer_addr
        );
        Error::new(ErrorKind::Protocol, Scope::Path, Phase::Prepare, text)
    }

    /// The error of a handshake that rustls refused.
    fn tls_error(&self, error: &rustls::Error) -> Error {
        match error {
            rustls::Error::InvalidMessage(_) if self.is_dialled => {
                self.no_agent("answers, but does not speak TLS: no sterna agent")
            }
            // What other servers say to who offers the one protocol and the one kind of key that agents have.
            rustls::Error::AlertReceived(
                AlertDescription::HandshakeFailure
                | AlertDescription::ProtocolVersion
                | AlertDescription::NoApplicationProtocol,
            )
            | rustls::Error::PeerIncompatible(_)
                if self.is_dialled =>
            {
                self.no_agent("speaks TLS, but is no sterna agent")
            }
            rustls::Error::AlertReceived(alert) => {
                let alert = super::record::alert_error(u8::from(*alert));
                let text = format!("connect with {}: {}", self.peer_addr, alert.text());
                Error::new(alert.kind, Scope::Path, Phase::Prepare, text)
            }
            rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented => {
                self.error(ErrorKind::Untrusted, &format!("shows no certificate that can be used: {error}"))
            }
            rustls::Error::InvalidMessage(_) => self.protocol_error(&format!("does not speak TLS: {error}")),
            other => self.protocol_error(&format!("does not speak TLS as sterna does: {other}")),
        }
    }
}

/// Whether the record at the front of `bytes` is complete.
pub fn is_whole_record(bytes: &[u8]) -> bool {
    record_bytes(bytes).is_some()
}

/// Length of the record at the front of `bytes`, head included; `None` unless it is complete.
///
/// A head that is none of TLS counts as complete, so that rustls sees and refuses it.
fn record_bytes(bytes: &[u8]) -> Option<usize> {
    let (&[kind, _, _, high, low], rest) = bytes.split_first_chunk::<RECORD_HEAD_BYTES>()?;
    // Change cipher spec, alert, handshake, application data.
    if !(20..=23).contains(&kind) {
        return Some(bytes.len());
    }
    let length = usize::from(u16::from_be_bytes([high, low]));
    (rest.len() >= length).then_some(RECORD_HEAD_BYTES + length)
}
