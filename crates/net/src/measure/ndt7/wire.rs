//! WebSocket of a test over TCP or TLS. Every wait has an end, so that no peer can hold a test.

use std::io::{self, Read, Write};
use std::time::Instant;

use rustls::{ClientConnection, ServerConnection, StreamOwned};
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tungstenite::{Bytes, Message, WebSocket};

use super::message::Measurement;
use super::{CLOSE_TIME_MAX, RECEIVED_BYTES_MAX, TEST_TIME};
use crate::measure::deadline::{Bounded, Deadline};

/// Maximum number of measurements of a peer in a test. Source: the specification allows ten a second. Without a limit,
/// a flood of them would keep this end reading after the end of the test.
const TEXTS_MAX: u32 = 10 * (TEST_TIME.as_secs() + CLOSE_TIME_MAX.as_secs()) as u32;

/// Maximum size of a measurement in bytes. Reason: those of `ndt-server` have 2 kB.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// Connection of a test.
pub(super) trait Wire: Read + Write + Send {
    fn bounded(&mut self) -> &mut Bounded;
}

impl Wire for Bounded {
    fn bounded(&mut self) -> &mut Bounded {
        self
    }
}

impl Wire for StreamOwned<ClientConnection, Bounded> {
    fn bounded(&mut self) -> &mut Bounded {
        &mut self.sock
    }
}

impl Wire for StreamOwned<ServerConnection, Bounded> {
    fn bounded(&mut self) -> &mut Bounded {
        &mut self.sock
    }
}

/// Message of the peer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Incoming {
    /// Binary message, with its size.
    Data(u64),
    /// Measurement.
    Text(String),
    /// None, in the given time.
    Nothing,
    /// The peer has closed the connection, in order or not.
    Closed,
}

/// WebSocket of a test.
pub(super) struct Session {
    websocket: WebSocket<Box<dyn Wire>>,
    /// Measurements that the peer may still send.
    texts_left: u32,
}

impl Session {
    /// Takes a WebSocket at the start of a test.
    pub(super) fn new(websocket: WebSocket<Box<dyn Wire>>) -> Self {
        Self { websocket, texts_left: TEXTS_MAX }
    }

    /// Returns the next message: waits for it until a moment, or takes one that has arrived.
    ///
    /// Errors: `Protocol`, also after more or larger measurements than a peer in order sends.
    pub(super) fn incoming(&mut self, until: Option<Instant>) -> Result<Incoming, Error> {
        let bounded = self.websocket.get_mut().bounded();
        bounded.waits = until.is_some();
        if let Some(until) = until {
            bounded.deadline = Deadline(until);
        }
        match self.websocket.read() {
            Ok(message) => {
                let incoming = incoming_of(&message, &mut self.texts_left);
                if matches!(incoming, Ok(Incoming::Closed)) {
                    // The answer to a close; the peer may be gone.
                    let _ = self.websocket.flush();
                }
                incoming
            }
            Err(error) => of_failure(error),
        }
    }

    /// Sends a binary message before a moment. Returns false if the time is over, or the peer has closed the
    /// connection.
    pub(super) fn send(&mut self, data: &Bytes, until: Instant) -> Result<bool, Error> {
        self.websocket.get_mut().bounded().deadline = Deadline(until);
        self.sent(Message::Binary(data.clone()))
    }

    /// Sends a measurement.
    pub(super) fn send_text(&mut self, json: String, until: Instant) -> Result<bool, Error> {
        self.websocket.get_mut().bounded().deadline = Deadline(until);
        self.sent(Message::text(json))
    }

    fn sent(&mut self, message: Message) -> Result<bool, Error> {
        match self.websocket.send(message) {
            Ok(()) => Ok(true),
            Err(error) => of_failure(error).map(|_| false),
        }
    }

    /// Closes the connection: waits until a moment for the peer's close, and drops its data.
    pub(super) fn close(&mut self, until: Instant) {
        self.websocket.get_mut().bounded().deadline = Deadline(until);
        // The peer may be gone.
        let _ = self.websocket.close(Some(CloseFrame { code: CloseCode::Normal, reason: "".into() }));
        let _ = self.websocket.flush();
        while Instant::now() < until && !matches!(self.incoming(Some(until)), Ok(Incoming::Closed) | Err(_)) {}
    }
}

/// Returns what a message stands for. Errors: `Protocol`: a measurement beyond the limits.
fn incoming_of(message: &Message, texts_left: &mut u32) -> Result<Incoming, Error> {
    let text = match message {
        Message::Binary(data) => return Ok(Incoming::Data(data.len() as u64)),
        Message::Close(_) => return Ok(Incoming::Closed),
        Message::Text(text) => text.as_str(),
        _ => return Ok(Incoming::Nothing),
    };
    let bytes = text.len();
    if bytes > TEXT_BYTES_MAX {
        return Err(Error::protocol(format!(
            "a measurement of {bytes} bytes in an NDT7 test: at most {TEXT_BYTES_MAX}"
        )));
    }
    *texts_left = texts_left
        .checked_sub(1)
        .ok_or_else(|| Error::protocol(format!("more than {TEXTS_MAX} measurements of one peer in an NDT7 test")))?;
    Ok(Incoming::Text(text.to_owned()))
}

/// See [`crate::fuzzing::ndt7`].
pub(crate) fn fuzz(input: &[u8], is_client: bool) {
    let role = if is_client { Role::Client } else { Role::Server };
    let mut websocket = WebSocket::from_raw_socket(io::Cursor::new(input.to_vec()), role, Some(config()));
    let mut texts_left = TEXTS_MAX;
    loop {
        let incoming = match websocket.read() {
            Ok(message) => incoming_of(&message, &mut texts_left),
            Err(error) => of_failure(error),
        };
        match incoming {
            Ok(Incoming::Text(json)) => {
                assert!(json.len() <= TEXT_BYTES_MAX);
                let _ = serde_json::from_str::<Measurement>(&json);
            }
            Ok(Incoming::Data(bytes)) => assert!(bytes <= RECEIVED_BYTES_MAX as u64),
            Ok(Incoming::Nothing) => {}
            Ok(Incoming::Closed) | Err(_) => return,
        }
    }
}

/// Returns the message that an error stands for. Errors: `Protocol`.
fn of_failure(error: tungstenite::Error) -> Result<Incoming, Error> {
    use tungstenite::Error::{AlreadyClosed, ConnectionClosed, Io, Protocol};
    use tungstenite::error::ProtocolError::{ResetWithoutClosingHandshake, SendAfterClosing};
    match error {
        Io(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Incoming::Nothing),
        // The specification tolerates an end without a close. A breach of TLS comes as `InvalidData`.
        Io(error) if error.kind() != io::ErrorKind::InvalidData => Ok(Incoming::Closed),
        ConnectionClosed | AlreadyClosed | Protocol(ResetWithoutClosingHandshake | SendAfterClosing) => {
            Ok(Incoming::Closed)
        }
        error => Err(Error::protocol("a message of an NDT7 test").caused_by(error)),
    }
}

/// Returns the limits of a WebSocket.
pub(super) fn config() -> WebSocketConfig {
    WebSocketConfig::default().max_message_size(Some(RECEIVED_BYTES_MAX)).max_frame_size(Some(RECEIVED_BYTES_MAX))
}

/// Returns the error of a connection that failed while `what` was tried.
pub(super) fn failed(what: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::Unreachable, Scope::Path, Phase::Prepare, what).retry(Retry::After).caused_by(error)
}

/// Returns the error of a handshake that was not over in time.
pub(super) fn late(what: &str) -> Error {
    failed(what, io::Error::from(io::ErrorKind::TimedOut))
}
