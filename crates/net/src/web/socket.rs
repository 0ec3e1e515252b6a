//! Connections to web servers that measure their limits.
//!
//! Opens a connection for the HTTP library. While bytes are awaited, it reads the kernel's state ten times a second. It
//! checks if a round trip brought as much as the local window allows, and if packets arrived out of order. Refuses to
//! decide anything, or identify a lane. All connections of a copy share one set of measurements.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::sys::{self, TcpInfo};
use parking_lot::Mutex;
use sterna_proto::limit::WebSample;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, Either, LazyBuffers, NextTimeout, ShutdownHandle, Transport,
};
use ureq::{Error, Timeout};

/// Interval at which a connection is measured while bytes are awaited. Reason: the same as for sterna lanes.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Measurements of all connections of a copy, and their sockets.
#[derive(Debug, Default)]
pub(super) struct Measured {
    sample: Mutex<WebSample>,
    sockets: Mutex<Vec<Weak<TcpStream>>>,
}

impl Measured {
    pub(super) fn sample(&self) -> WebSample {
        *self.sample.lock()
    }

    /// Returns the sockets of the open connections, in the order of their opening.
    pub(super) fn sockets(&self) -> Vec<Arc<TcpStream>> {
        self.sockets.lock().iter().filter_map(Weak::upgrade).collect()
    }

    fn add(&self, stream: &Arc<TcpStream>) {
        let mut sockets = self.sockets.lock();
        sockets.retain(|socket| socket.strong_count() > 0);
        sockets.push(Arc::downgrade(stream));
    }
}

/// Opens connections for the HTTP library.
#[derive(Debug)]
pub(super) struct WatchedConnector {
    measured: Arc<Measured>,
}

impl WatchedConnector {
    pub(super) fn new(measured: Arc<Measured>) -> Self {
        Self { measured }
    }
}

impl<In: Transport> Connector<In> for WatchedConnector {
    type Out = Either<In, WatchedSocket>;

    fn connect(&self, details: &ConnectionDetails<'_>, chained: Option<In>) -> Result<Option<Self::Out>, Error> {
        // The connection goes through a proxy, to which this connector has connected before.
        if let Some(chained) = chained {
            return Ok(Some(Either::A(chained)));
        }
        let connect_end = details.timeout.not_zero().map(|time| Instant::now() + *time);
        let stream = Arc::new(connect(details)?);
        self.measured.add(&stream);
        (details.register_shutdown)(Arc::downgrade(&stream) as Weak<dyn ShutdownHandle>)?;
        let buffers = LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Some(Either::B(WatchedSocket {
            stream,
            buffers,
            connect_end,
            read_time: None,
            look: Look::default(),
            measured: Arc::clone(&self.measured),
        })))
    }
}

/// Connects to the addresses in turn. Each gets half of the remaining time, and the last gets all of it.
fn connect(details: &ConnectionDetails<'_>) -> Result<TcpStream, Error> {
    let began = Instant::now();
    let mut outcome = Err(Error::HostNotFound);
    let count = details.addrs.len();
    for (index, address) in details.addrs.iter().enumerate() {
        let tried = match details.timeout.not_zero() {
            None => TcpStream::connect(address),
            Some(timeout) => {
                let left = timeout.saturating_sub(began.elapsed());
                let part = if index + 1 < count { left / 2 } else { left };
                TcpStream::connect_timeout(address, part.max(CONNECT_TIME_MIN))
            }
        };
        outcome = match tried {
            Ok(stream) => {
                // The library requests this option. Without it requests leave later, but are correct.
                let _ = stream.set_nodelay(details.config.no_delay());
                return Ok(stream);
            }
            Err(error) => Err(timed_out(error, details.timeout)),
        };
    }
    outcome
}

/// Least time for an address. Reason: a system call with a time of 0 fails as wrong usage.
const CONNECT_TIME_MIN: Duration = Duration::from_millis(10);

/// Returns the library's error for an error of a socket with timeouts.
fn timed_out(error: io::Error, timeout: NextTimeout) -> Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::Timeout(timeout.reason),
        _ => Error::Io(error),
    }
}

/// Connection to a web server.
pub(super) struct WatchedSocket {
    stream: Arc<TcpStream>,
    buffers: LazyBuffers,
    /// Time by which it must be usable, including the answers of a proxy and TLS; `None` for no limit.
    connect_end: Option<Instant>,
    /// Current read timeout; `None` waits without limit.
    read_time: Option<Duration>,
    look: Look,
    measured: Arc<Measured>,
}

impl Transport for WatchedSocket {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        let timeout = timeout.for_write();
        let outcome = self.stream.set_write_timeout(timeout.not_zero().map(|time| *time)).and_then(|()| {
            let output = &self.buffers.output()[..amount];
            (&*self.stream).write_all(output)
        });
        outcome.map_err(|error| timed_out(error, timeout))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        let timeout = self.while_connecting(timeout)?.for_read();
        let began = Instant::now();
        let mut time = timeout.not_zero().map(|time| *time);
        let count = loop {
            self.set_read_time(time)?;
            match (&*self.stream).read(self.buffers.input_append_buf()) {
                // A signal interrupted the read; the rest of the time is still waited.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    time = timeout.not_zero().map(|time| time.saturating_sub(began.elapsed()).max(READ_TIME_MIN));
                }
                outcome => break outcome.map_err(|error| timed_out(error, timeout))?,
            }
        };
        self.buffers.input_appended(count);
        self.look.waited(&self.stream, &self.measured, began);
        Ok(count > 0)
    }

    fn is_open(&mut self) -> bool {
        // Bytes without a request, or an end, are both a reason to open another connection.
        let mut byte = [0];
        let peeked = self.stream.set_nonblocking(true).and_then(|()| self.stream.peek(&mut byte));
        let is_silent = peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        is_silent && self.stream.set_nonblocking(false).is_ok()
    }
}

impl WatchedSocket {
    /// Limits a timeout to the rest of the time to connect. Reason: the library gives each read of a proxy's answer
    /// all of that time. A proxy that sends a byte now and then would be waited for without end. Errors: no time is
    /// left.
    fn while_connecting(&self, mut timeout: NextTimeout) -> Result<NextTimeout, Error> {
        if let Some(end) = self.connect_end.filter(|_| timeout.reason == Timeout::Connect) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Timeout(Timeout::Connect));
            }
            timeout.after = (*timeout.after).min(left).into();
        }
        Ok(timeout)
    }

    /// Sets the read timeout, which is nearly always equal to the one before.
    fn set_read_time(&mut self, time: Option<Duration>) -> Result<(), Error> {
        if self.read_time != time {
            self.stream.set_read_timeout(time)?;
            self.read_time = time;
        }
        Ok(())
    }
}

/// Least read timeout, for the same reason as [`CONNECT_TIME_MIN`].
const READ_TIME_MIN: Duration = Duration::from_millis(1);

impl fmt::Debug for WatchedSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchedSocket").field("peer", &self.stream.peer_addr().ok()).finish()
    }
}

/// Last measurement of a connection, and the time waited since then.
#[derive(Default)]
struct Look {
    before: Option<(Instant, TcpInfo)>,
    waited: Duration,
    ended: Option<Instant>,
}

impl Look {
    /// Records that bytes were awaited since `began`; measures the connection when it is due.
    fn waited(&mut self, stream: &TcpStream, measured: &Measured, began: Instant) {
        let now = Instant::now();
        // Between waits, the connection was idle or the reader slow. Neither is information about the path.
        let rested = self.ended.is_none_or(|ended| began.saturating_duration_since(ended) > LOOK_EVERY);
        self.ended = Some(now);
        if rested {
            (self.before, self.waited) = (sys::tcp_info(stream).ok().map(|info| (now, info)), Duration::ZERO);
            return;
        }
        self.waited += now - began;
        let Some((at, before)) = self.before.filter(|(at, _)| now.saturating_duration_since(*at) >= LOOK_EVERY) else {
            return;
        };
        let Ok(info) = sys::tcp_info(stream) else { return };
        let window = info.rcv_wnd.unwrap_or_default();
        let waited = std::mem::take(&mut self.waited);
        let mut sample = measured.sample.lock();
        sample.waited += waited;
        if info.fills_window(&before, now - at) {
            sample.window_full += waited;
        }
        if info.rcv_ooopack > before.rcv_ooopack {
            sample.disordered += waited;
        }
        if let Some(rtt) = info.min_rtt.filter(|rtt| sample.rtt_min.is_zero() || *rtt < sample.rtt_min) {
            sample.rtt_min = rtt;
        }
        if window >= sample.receive_window {
            sample.receive_window = window;
            sample.receive_buffer = sys::socket_memory(stream).unwrap_or_default().receive_limit;
        }
        sample.is_unscaled = !info.window_scaling;
        self.before = Some((now, info));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_trickles_is_of_use_in_time_or_never() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = Arc::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let (mut peer, _) = listener.accept().unwrap();
        let mut socket = WatchedSocket {
            stream,
            buffers: LazyBuffers::new(64, 64),
            connect_end: Some(Instant::now() + Duration::from_secs(60)),
            read_time: None,
            look: Look::default(),
            measured: Arc::default(),
        };
        let whole = |reason| NextTimeout { after: Duration::from_secs(60).into(), reason, ..NextTimeout::default() };
        let mut read = |socket: &mut WatchedSocket, reason| {
            peer.write_all(b"x").unwrap();
            socket.await_input(whole(reason))
        };
        assert!(read(&mut socket, Timeout::Connect).unwrap());
        // A byte is there each time, and the library gives each read all of the time.
        socket.connect_end = Some(Instant::now());
        assert!(matches!(read(&mut socket, Timeout::Connect), Err(Error::Timeout(Timeout::Connect))));
        // Once the connection is usable, other timeouts apply.
        assert!(read(&mut socket, Timeout::RecvResponse).unwrap());
    }
}
