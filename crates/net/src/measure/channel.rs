//! Messages over TLS, and the change to a bare connection.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::ops::DerefMut;

use rustls::{AlertDescription, ConnectionCommon, SideData, StreamOwned};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};

use super::deadline::{Bounded, Deadline, in_words};

/// Size from which a message is compressed, in bytes. Reason: smaller ones fit in a packet. Reports have some 100 kB,
/// which over long paths cost round trips of slow start; compressed they have a tenth of that.
const COMPRESSED_FROM: usize = 1200;

/// Level of zstd. Reason: a report of 200 kB takes 2 ms.
const LEVEL: i32 = 3;

/// Bit of the length of a compressed message.
const IS_COMPRESSED: u32 = 1 << 31;

/// TLS connection that carries messages: 4 bytes with the length, most significant first, and JSON. If the highest bit
/// of the length is set, 4 bytes with the size of the JSON and a zstd frame follow instead.
pub(super) struct Channel<C: DerefMut<Target = ConnectionCommon<S>>, S: SideData>(StreamOwned<C, Bounded>);

impl<C: DerefMut<Target = ConnectionCommon<S>>, S: SideData> Channel<C, S> {
    /// Runs the handshake.
    ///
    /// Errors: `Unreachable`, `Protocol`.
    pub(super) fn open(connection: C, socket: TcpStream, deadline: Deadline) -> Result<Self, Error> {
        let mut channel = Self(StreamOwned::new(connection, Bounded::new(socket, deadline)));
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
        &self.0.sock.socket
    }

    /// Sends a message.
    ///
    /// Errors: `Unreachable`, also if the peer has not taken it before the deadline.
    pub(super) fn send(&mut self, message: &impl Serialize, deadline: Deadline) -> Result<(), Error> {
        self.0.sock.deadline = deadline;
        let json = serde_json::to_vec(message).map_err(|e| crate::internal("encode a message").caused_by(e))?;
        let (flag, parts) = match compressed(&json) {
            Some((size, frame)) => (IS_COMPRESSED, [size.to_vec(), frame]),
            None => (0, [Vec::new(), json]),
        };
        // A report is far smaller than 2 GiB.
        let length = u32::try_from(parts.iter().map(Vec::len).sum::<usize>()).unwrap_or(u32::MAX) | flag;
        let mut sent = self.0.write_all(&length.to_be_bytes());
        for part in &parts {
            sent = sent.and_then(|()| self.0.write_all(part));
        }
        sent.and_then(|()| self.0.flush()).map_err(|e| failed("send a message of a measurement", e))
    }

    /// Receives a message of at most `bytes_max` bytes of JSON.
    ///
    /// Errors: `Unreachable`, also if the peer closed the connection, or has not sent all of it before the deadline;
    /// `Protocol`.
    pub(super) fn receive<M: DeserializeOwned>(&mut self, bytes_max: u32, deadline: Deadline) -> Result<M, Error> {
        self.0.sock.deadline = deadline;
        let mut length = [0; 4];
        self.0.read_exact(&mut length).map_err(|e| failed("wait for a message of a measurement", e))?;
        let header = u32::from_be_bytes(length);
        let length = header & !IS_COMPRESSED;
        let bounded = |length: u32| match length > bytes_max {
            true => Err(Error::protocol(format!("a message of {length} bytes: at most {bytes_max} are expected"))),
            false => Ok(()),
        };
        bounded(length)?;
        let mut json = Vec::new();
        let read = Read::by_ref(&mut self.0).take(u64::from(length)).read_to_end(&mut json);
        read.map_err(|e| failed("receive a message of a measurement", e))?;
        if header & IS_COMPRESSED != 0 {
            let (size, frame) =
                json.split_first_chunk().ok_or_else(|| Error::protocol("a compressed message without its size"))?;
            let size = u32::from_be_bytes(*size);
            bounded(size)?;
            json = decompressed(size, frame)?;
        }
        serde_json::from_slice(&json).map_err(|e| Error::protocol("a message of a measurement").caused_by(e))
    }

    /// Returns the bare connection. The peer must have sent nothing after its last message.
    pub(super) fn into_bare(self) -> TcpStream {
        self.0.sock.socket
    }
}

/// Returns the size of a message, and its zstd frame; `None`: the message is too small for compression.
fn compressed(json: &[u8]) -> Option<([u8; 4], Vec<u8>)> {
    if json.len() < COMPRESSED_FROM {
        return None;
    }
    let mut frame = vec![0; zstd_safe::compress_bound(json.len())];
    // An error is one of the room, and there is enough.
    let length = zstd_safe::compress(&mut frame[..], json, LEVEL).ok()?;
    frame.truncate(length);
    Some((u32::try_from(json.len()).ok()?.to_be_bytes(), frame))
}

/// Returns a message of `size` bytes from its zstd frame. Errors: `Protocol`.
fn decompressed(size: u32, frame: &[u8]) -> Result<Vec<u8>, Error> {
    let mut json = vec![0; size as usize];
    let wrong = |reason: &str| Error::protocol(format!("a compressed message of {size} bytes: {reason}"));
    let length = zstd_safe::decompress(&mut json[..], frame);
    match length.map_err(|code| wrong(zstd_safe::get_error_name(code)))? {
        length if length == json.len() => Ok(json),
        length => Err(wrong(&format!("its frame has {length}"))),
    }
}

/// Returns the error of a peer without measurements.
pub(super) fn no_measurements() -> Error {
    let text = "the peer takes part in no measurements: it is no sterna agent, or one of an earlier release";
    Error::new(ErrorKind::Protocol, Scope::Path, Phase::Prepare, text)
}

fn failed(what: &str, error: io::Error) -> Error {
    Error::new(ErrorKind::Unreachable, Scope::Path, Phase::Transfer, what)
        .retry(Retry::After)
        .caused_by(in_words(error))
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use rustls::{ClientConnection, ServerConnection};

    use super::super::deadline::tests::{SHORT, drip, pair};
    use super::*;
    use crate::identity::{self, Identity};

    /// Time of what must not fail on a busy host.
    const LONG: Duration = Duration::from_secs(60);

    fn client() -> ClientConnection {
        ClientConnection::new(Identity::ephemeral().unwrap().client_config(), identity::server_name()).unwrap()
    }

    /// Returns text that hardly compresses.
    fn random(length: usize) -> String {
        let mut bytes = vec![0; length / 2];
        getrandom::fill(&mut bytes).unwrap();
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn server() -> ServerConnection {
        ServerConnection::new(Identity::ephemeral().unwrap().server_config()).unwrap()
    }

    #[test]
    fn a_handshake_that_drips_ends_at_its_deadline() {
        let (near, far) = pair();
        let mut hello = Vec::new();
        client().write_tls(&mut hello).unwrap();
        drip(far, hello);
        let error = Channel::open(server(), near, Deadline::after(SHORT)).err().unwrap();
        assert!(error.kind == ErrorKind::Unreachable && error.chain().contains("timed out"), "{}", error.chain());
    }

    #[test]
    fn a_message_that_drips_ends_at_its_deadline() {
        let (near, far) = pair();
        let peer = thread::spawn(|| {
            let mut channel = Channel::open(client(), far, Deadline::after(LONG)).unwrap();
            channel.send(&"in time", Deadline::after(LONG)).unwrap();
            let json = serde_json::to_vec(&"x".repeat(1000)).unwrap();
            channel.0.conn.writer().write_all(&u32::try_from(json.len()).unwrap().to_be_bytes()).unwrap();
            channel.0.conn.writer().write_all(&json).unwrap();
            let mut bytes = Vec::new();
            while channel.0.conn.wants_write() {
                channel.0.conn.write_tls(&mut bytes).unwrap();
            }
            drip(channel.into_bare(), bytes);
        });
        let mut channel = Channel::open(server(), near, Deadline::after(LONG)).unwrap();
        assert_eq!(channel.receive::<String>(2000, Deadline::after(LONG)).unwrap(), "in time");
        let error = channel.receive::<String>(2000, Deadline::after(SHORT)).unwrap_err();
        assert!(error.kind == ErrorKind::Unreachable && error.chain().contains("timed out"), "{}", error.chain());
        peer.join().unwrap();
    }

    #[test]
    fn large_messages_travel_compressed_and_their_sizes_are_bounds() {
        let (near, far) = pair();
        let text = "a report ".repeat(10_000);
        let sent = text.clone();
        let peer = thread::spawn(move || {
            let mut channel = Channel::open(client(), far, Deadline::after(LONG)).unwrap();
            for _ in 0..2 {
                channel.send(&sent, Deadline::after(LONG)).unwrap();
            }
            channel
        });
        let mut channel = Channel::open(server(), near, Deadline::after(LONG)).unwrap();
        assert_eq!(channel.receive::<String>(100_000, Deadline::after(LONG)).unwrap(), text);
        // Its frame is small, and its content too large.
        let error = channel.receive::<String>(80_000, Deadline::after(LONG)).unwrap_err();
        assert!(error.chain().contains("a message of 90002 bytes"), "{}", error.chain());
        peer.join().unwrap();
        let (_, frame) = compressed(text.as_bytes()).unwrap();
        assert!(frame.len() < 1000 && decompressed(90_000, &frame).is_ok());
        assert!(decompressed(89_999, &frame).is_err() && decompressed(90_001, &frame).is_err());
        assert!(decompressed(90_000, &frame[1..]).is_err() && decompressed(90_000, b"").is_err());
    }

    #[test]
    fn a_message_that_is_not_taken_ends_at_its_deadline() {
        let (near, far) = pair();
        let peer = thread::spawn(|| Channel::open(client(), far, Deadline::after(LONG)).unwrap());
        let mut channel = Channel::open(server(), near, Deadline::after(LONG)).unwrap();
        let _peer = peer.join().unwrap();
        let error = channel.send(&random(32 << 20), Deadline::after(SHORT)).unwrap_err();
        assert!(error.kind == ErrorKind::Unreachable && error.chain().contains("timed out"), "{}", error.chain());
    }
}
