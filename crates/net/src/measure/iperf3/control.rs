//! Connection that controls a test of iperf3: states of one byte, and JSON behind its length.
//!
//! Every message has a deadline, so that a peer that sends byte by byte cannot hold a test.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use sterna_proto::Error;

use super::message::{Code, State};
use super::{COOKIE_BYTES, Cookie, failed};
use crate::measure::deadline::{Bounded, Deadline};

/// Connection that controls a test.
pub(super) struct Control {
    stream: Bounded,
    /// Time of each message.
    time_max: Duration,
}

impl Control {
    /// Takes a connection. Each message may take `time_max`.
    pub(super) fn new(stream: TcpStream, time_max: Duration) -> Result<Self, Error> {
        let set = stream.set_nonblocking(false).and_then(|()| stream.set_nodelay(true));
        set.map_err(|e| failed("set up the control connection of an iperf3 test", e))?;
        Ok(Self { stream: Bounded::new(stream, Deadline::after(time_max)), time_max })
    }

    /// Returns the addresses of this end and of the peer.
    pub(super) fn addresses(&self) -> Result<(SocketAddr, SocketAddr), Error> {
        let socket = &self.stream.socket;
        let of = socket.local_addr().and_then(|local| Ok((local, socket.peer_addr()?)));
        of.map_err(|e| failed("ask for the addresses of an iperf3 test", e))
    }

    /// Returns the connection: its first message has shown that it is a stream.
    pub(super) fn into_stream(self) -> TcpStream {
        self.stream.socket
    }

    /// Sends a cookie.
    pub(super) fn send_cookie(&mut self, cookie: &Cookie) -> Result<(), Error> {
        self.write(cookie, "send the cookie of an iperf3 test")
    }

    /// Receives a cookie.
    pub(super) fn receive_cookie(&mut self) -> Result<Cookie, Error> {
        let mut cookie = [0; COOKIE_BYTES];
        self.read(&mut cookie, Deadline::after(self.time_max), "wait for the cookie of an iperf3 client")?;
        Ok(cookie)
    }

    /// Sends a state.
    pub(super) fn send_state(&mut self, state: State) -> Result<(), Error> {
        self.write(&[state.byte()], "send the state of an iperf3 test")
    }

    /// Waits for a state for the time of a message.
    pub(super) fn receive_state(&mut self) -> Result<State, Error> {
        match self.state_before(Deadline::after(self.time_max))? {
            Some(state) => Ok(state),
            None => Err(failed("wait for the peer of an iperf3 test", io::ErrorKind::TimedOut.into())),
        }
    }

    /// Waits for a state until a deadline. Returns `None` if none came.
    pub(super) fn state_before(&mut self, deadline: Deadline) -> Result<Option<State>, Error> {
        let mut byte = [0];
        self.stream.deadline = deadline;
        match self.stream.read_exact(&mut byte) {
            Ok(()) => State::of(byte[0])
                .map(Some)
                .ok_or_else(|| Error::protocol(format!("the state {} of an iperf3 test: unknown", byte[0]))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(failed("wait for the peer of an iperf3 test", error)),
        }
    }

    /// Sends the error of a server.
    pub(super) fn send_error(&mut self, code: Code) -> Result<(), Error> {
        // The second number is the error of the system, of which there is none.
        let message = [&[State::ServerError.byte()][..], &code.number().to_be_bytes(), &[0; 4]].concat();
        self.write(&message, "send an error of an iperf3 test")
    }

    /// Receives the numbers behind [`State::ServerError`]: those of iperf3 and of the system.
    pub(super) fn receive_error(&mut self) -> Result<(u32, u32), Error> {
        let mut numbers = [0; 8];
        self.read(&mut numbers, Deadline::after(self.time_max), "receive the error of an iperf3 server")?;
        let [a, b, c, d, e, f, g, h] = numbers;
        Ok((u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])))
    }

    /// Sends JSON.
    pub(super) fn send(&mut self, message: &impl Serialize) -> Result<(), Error> {
        let json = serde_json::to_vec(message).map_err(|e| crate::internal("encode a message").caused_by(e))?;
        // Results of 64 streams are far smaller.
        let length = u32::try_from(json.len()).unwrap_or(u32::MAX);
        let bytes = [&length.to_be_bytes()[..], &json].concat();
        self.write(&bytes, "send a message of an iperf3 test")
    }

    /// Receives JSON of at most `bytes_max` bytes.
    ///
    /// Errors: `Unreachable`; `Protocol`.
    pub(super) fn receive<M: DeserializeOwned>(&mut self, bytes_max: u32) -> Result<M, Error> {
        let deadline = Deadline::after(self.time_max);
        let mut length = [0; 4];
        self.read(&mut length, deadline, "wait for a message of an iperf3 test")?;
        let length = u32::from_be_bytes(length);
        if length > bytes_max {
            let text = format!("a message of an iperf3 test of {length} bytes: at most {bytes_max} are expected");
            return Err(Error::protocol(text));
        }
        // The limit above is small.
        let mut json = vec![0; length as usize];
        self.read(&mut json, deadline, "receive a message of an iperf3 test")?;
        serde_json::from_slice(&json).map_err(|e| Error::protocol("a message of an iperf3 test").caused_by(e))
    }

    fn read(&mut self, bytes: &mut [u8], deadline: Deadline, what: &str) -> Result<(), Error> {
        self.stream.deadline = deadline;
        self.stream.read_exact(bytes).map_err(|e| failed(what, e))
    }

    fn write(&mut self, bytes: &[u8], what: &str) -> Result<(), Error> {
        self.stream.deadline = Deadline::after(self.time_max);
        self.stream.write_all(bytes).map_err(|e| failed(what, e))
    }
}
