//! TLS handshake of a lane, over a blocking socket with a deadline.

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

/// Most bytes that a peer may send in a handshake. Reason: sterna's handshake takes under 2 KiB; another
/// certificate may be larger.
const HANDSHAKE_BYTES_MAX: usize = 64 << 10;

/// Most bytes that one step of the handshake sends. Reason: a flight of this end is under 2 KiB.
const FLIGHT_BYTES_MAX: usize = 32 << 10;

/// Result of a finished handshake.
pub(super) struct Established {
    /// Fingerprint of the peer's key.
    pub(super) peer: Fingerprint,
    /// Key for sent records.
    pub(super) tx: RecordKey,
    /// Key for received records.
    pub(super) rx: RecordKey,
    /// Source of the keys that follow these.
    pub(super) secrets: Secrets,
    /// Bytes of the lane that arrived with the end of the handshake.
    pub(super) early: Vec<u8>,
}

/// Derives the next keys of a lane when one is near its record limit.
pub(super) struct Secrets {
    connection: Connection,
    records_max: u64,
}

enum Connection {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

impl Secrets {
    /// Returns the next key for sent records.
    pub(super) fn next_tx(&mut self) -> Result<RecordKey, Error> {
        let next = match &mut self.connection {
            Connection::Client(connection) => connection.update_tx_secret(),
            Connection::Server(connection) => connection.update_tx_secret(),
        };
        Self::key(next, self.records_max)
    }

    /// Returns the next key for received records.
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

/// Returns how many records one key may encrypt: the limit of the cipher (2^24 records, or 256 GiB, for AES-GCM),
/// or less if `key_records_max` is less.
fn records_max(suite: Option<SupportedCipherSuite>, key_records_max: u64) -> u64 {
    let wanted = key_records_max.max(KEY_RECORDS_MIN);
    // Every offered suite belongs to TLS 1.3. Without a suite, there is no secret to extract either.
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
        // The peer decides when to replace this key.
        rx: RecordKey::new(rx_sequence, rx, u64::MAX)?,
        secrets: Secrets { connection, records_max },
        early,
    })
}

/// Next action that the handshake needs.
enum Step {
    /// Number of bytes appended to the outgoing flight.
    Encoded(usize),
    /// The outgoing flight has to be sent now.
    Send,
    /// Data from the peer is needed.
    Receive,
    /// The handshake is complete.
    Done,
}

/// Socket with the deadline of its handshake.
pub(super) struct Link<'s> {
    pub(super) stream: &'s TcpStream,
    pub(super) peer_addr: SocketAddr,
    pub(super) deadline: Instant,
    /// True if this end has connected; any service may listen at the other end.
    pub(super) is_dialled: bool,
}

impl Link<'_> {
    /// Drives `connection` to the end of its handshake; returns the bytes of the lane that arrived after it.
    ///
    /// Passes one record at a time to rustls, so that rustls never gets a record that belongs to the lane.
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

    /// Checks the application protocol, which rustls leaves to its user, and returns the fingerprint of the peer.
    fn check_peer(&self, connection: &CommonState) -> Result<Fingerprint, Error> {
        if connection.alpn_protocol() != Some(identity::ALPN) {
            return Err(match self.is_dialled {
                true => self.no_agent("uses TLS but not the protocol sterna/1: no sterna agent"),
                false => self.protocol_error("uses TLS but not the protocol sterna/1"),
            });
        }
        peer_fingerprint(connection.peer_certificates().unwrap_or_default())
    }

    /// Sends the peer a TLS alert about the error, if rustls has one and the socket takes it.
    fn send_alert<D>(
        &mut self,
        connection: &mut UnbufferedConnectionCommon<D>,
        given: &mut [u8],
        process: impl for<'c, 'i> Fn(&'c mut UnbufferedConnectionCommon<D>, &'i mut [u8]) -> UnbufferedStatus<'c, 'i, D>,
    ) {
        let mut alert = [0; 1024];
        // Passes the same input again: rustls may hold positions in it for an incomplete message, and panics
        // without it.
        if let Ok(ConnectionState::EncodeTlsData(mut data)) = process(connection, given).state
            && let Ok(bytes) = data.encode(&mut alert)
        {
            // The caller gets the handshake error, which is more useful than a failure to send the alert.
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

    /// Reads the available bytes. Errors: the peer closed the connection, or the deadline has passed.
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

    /// Returns the error for a port where another service listens.
    fn no_agent(&self, what: &str) -> Error {
        let text = format!("{} {what}; is the port right? agents listen on {DEFAULT_PORT} by default", self.peer_addr);
        Error::new(ErrorKind::Protocol, Scope::Path, Phase::Prepare, text)
    }

    /// Returns the error for a handshake that rustls refused.
    fn tls_error(&self, error: &rustls::Error) -> Error {
        match error {
            rustls::Error::InvalidMessage(_) if self.is_dialled => {
                self.no_agent("answers, but does not use TLS: no sterna agent")
            }
            // Alerts of other servers, which do not have the only protocol and key type that this end offers.
            rustls::Error::AlertReceived(
                AlertDescription::HandshakeFailure
                | AlertDescription::ProtocolVersion
                | AlertDescription::NoApplicationProtocol,
            )
            | rustls::Error::PeerIncompatible(_)
                if self.is_dialled =>
            {
                self.no_agent("uses TLS, but is no sterna agent")
            }
            rustls::Error::AlertReceived(alert) => {
                let alert = super::record::alert_error(u8::from(*alert));
                let text = format!("connect with {}: {}", self.peer_addr, alert.text());
                Error::new(alert.kind, Scope::Path, Phase::Prepare, text)
            }
            rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented => {
                self.error(ErrorKind::Untrusted, &format!("shows no certificate that can be used: {error}"))
            }
            rustls::Error::InvalidMessage(_) => self.protocol_error(&format!("does not use TLS: {error}")),
            other => self.protocol_error(&format!("does not use TLS as sterna does: {other}")),
        }
    }
}

/// Returns true if the record at the front of `bytes` is complete.
pub fn is_whole_record(bytes: &[u8]) -> bool {
    record_bytes(bytes).is_some()
}

/// Returns the length of the record at the front of `bytes`, head included; `None` unless it is complete.
///
/// Treats a head that is not TLS as complete, so that rustls sees and refuses it.
fn record_bytes(bytes: &[u8]) -> Option<usize> {
    let (&[kind, _, _, high, low], rest) = bytes.split_first_chunk::<RECORD_HEAD_BYTES>()?;
    // Kinds of TLS: change cipher spec, alert, handshake, application data.
    if !(20..=23).contains(&kind) {
        return Some(bytes.len());
    }
    let length = usize::from(u16::from_be_bytes([high, low]));
    (rest.len() >= length).then_some(RECORD_HEAD_BYTES + length)
}
