//! Messages over TLS, and the change to a bare connection.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::ops::DerefMut;
use std::time::Duration;

use rustls::{AlertDescription, ConnectionCommon, SideData, StreamOwned};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};

/// TLS connection that carries messages: 4 bytes with the length, most significant first, and JSON.
pub(super) struct Channel<C: DerefMut<Target = ConnectionCommon<S>>, S: SideData>(StreamOwned<C, TcpStream>);

impl<C: DerefMut<Target = ConnectionCommon<S>>, S: SideData> Channel<C, S> {
    /// Runs the handshake, within `time_max`.
    ///
    /// Errors: `Unreachable`, `Protocol`.
    pub(super) fn open(connection: C, socket: TcpStream, time_max: Duration) -> Result<Self, Error> {
        let mut channel = Self(StreamOwned::new(connection, socket));
        channel.wait_up_to(time_max)?;
        while channel.0.conn.is_handshaking() {
            let StreamOwned { conn, sock } = &mut channel.0;
            conn.complete_io(sock).map_err(|e| {
                let tls = e.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
                match tls {
                    Some(rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol)) => no_measurements(),
                    _ => failed("run the TLS handshake of a measurement", e),
                }
            })?;
        }
        Ok(channel)
    }

    /// Returns the state of the TLS connection.
    pub(super) fn connection(&self) -> &C {
        &self.0.conn
    }

    /// Returns the socket, for its addresses and its state.
    pub(super) fn socket(&self) -> &TcpStream {
        &self.0.sock
    }

    /// Sets the maximum time of each read and write.
    pub(super) fn wait_up_to(&self, time: Duration) -> Result<(), Error> {
        let set = self.0.sock.set_read_timeout(Some(time)).and_then(|()| self.0.sock.set_write_timeout(Some(time)));
        set.map_err(|e| failed("set up the connection of a measurement", e))
    }

    /// Sends a message.
    pub(super) fn send(&mut self, message: &impl Serialize) -> Result<(), Error> {
        let json = serde_json::to_vec(message).map_err(|e| crate::internal("encode a message").caused_by(e))?;
        // A report is far smaller.
        let length = u32::try_from(json.len()).unwrap_or(u32::MAX);
        let sent = self.0.write_all(&length.to_be_bytes()).and_then(|()| self.0.write_all(&json));
        sent.and_then(|()| self.0.flush()).map_err(|e| failed("send a message of a measurement", e))
    }

    /// Receives a message of at most `bytes_max` bytes.
    ///
    /// Errors: `Unreachable`, also if the peer closed the connection; `Protocol`.
    pub(super) fn receive<M: DeserializeOwned>(&mut self, bytes_max: u32) -> Result<M, Error> {
        let mut length = [0; 4];
        self.0.read_exact(&mut length).map_err(|e| failed("wait for a message of a measurement", e))?;
        let length = u32::from_be_bytes(length);
        if length > bytes_max {
            return Err(Error::protocol(format!("a message of {length} bytes: at most {bytes_max} are expected")));
        }
        let mut json = Vec::new();
        let read = Read::by_ref(&mut self.0).take(u64::from(length)).read_to_end(&mut json);
        read.map_err(|e| failed("receive a message of a measurement", e))?;
        serde_json::from_slice(&json).map_err(|e| Error::protocol("a message of a measurement").caused_by(e))
    }

    /// Returns the bare connection. The peer must have sent nothing after its last message.
    pub(super) fn into_bare(self) -> TcpStream {
        self.0.sock
    }
}

/// Returns the error of a peer without measurements.
pub(super) fn no_measurements() -> Error {
    let text = "the peer takes part in no measurements: it is no sterna agent, or one of an earlier release";
    Error::new(ErrorKind::Protocol, Scope::Path, Phase::Prepare, text)
}

fn failed(what: &str, error: io::Error) -> Error {
    Error::new(ErrorKind::Unreachable, Scope::Path, Phase::Transfer, what).retry(Retry::After).caused_by(error)
}
