//! Ports for clients of other tools, which nobody has authenticated: each has its own address, and none is open unless
//! the operator asks for it.
//!
//! Accepts connections, and serves each on a thread of its own. Refuses connections above [`GUESTS_MAX`] by a close.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use tracing::Level;

use super::limiter::{Kind, Origin, cut, warn_operator};
use super::{Agent, Shared, TICK, spawn, why_not_listening};
use crate::measure::iperf3::Iperf3Server;
use crate::measure::ndt7::Ndt7Server;
use crate::measure::{Guest, STREAMS_MAX};

/// Maximum number of connections of a port. Reason: the streams of a test, its control, and some that are refused.
const GUESTS_MAX: usize = STREAMS_MAX as usize + 16;

impl Agent {
    /// Answers clients of iperf3 at an address from now on, one test at a time and never beside another measurement.
    /// Returns the address. iperf3 has no authentication: everybody who reaches the address can use it.
    ///
    /// Errors: the port is in use, or the process has no permission to use it.
    pub fn answer_iperf3(&self, listen: SocketAddr) -> Result<SocketAddr, Error> {
        let server = Iperf3Server(Arc::clone(&self.shared.measurements));
        self.shared.open_port("iperf3", listen, move |shared, stream, from| {
            shared.serve_guest("an iperf3", from, |log| server.serve(stream, from, log));
        })
    }

    /// Answers clients of NDT7 at an address from now on, over TLS with the certificate of the agent and without TLS,
    /// one test at a time and never beside another measurement. Returns the address. Everybody who reaches the address
    /// can use it.
    ///
    /// Errors: the port is in use, or the process has no permission to use it.
    pub fn answer_ndt7(&self, listen: SocketAddr) -> Result<SocketAddr, Error> {
        let server = Ndt7Server::new(Arc::clone(&self.shared.measurements), &self.shared.identity)?;
        self.shared.open_port("NDT7", listen, move |shared, stream, from| {
            shared.serve_guest("an NDT7", from, |log| server.serve(stream, from, log));
        })
    }
}

impl Shared {
    /// Listens on an address, and serves its connections until the agent stops.
    fn open_port(
        self: &Arc<Self>,
        tool: &'static str,
        listen: SocketAddr,
        serve: impl Fn(&Self, TcpStream, SocketAddr) + Send + Sync + 'static,
    ) -> Result<SocketAddr, Error> {
        let failed = |e: std::io::Error| {
            let kind = match e.kind() {
                std::io::ErrorKind::AddrInUse => ErrorKind::Busy,
                std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
                _ => ErrorKind::Io,
            };
            let text = format!("listen on TCP {listen} for {tool}{}", why_not_listening(&e));
            Error::new(kind, Scope::Client, Phase::Prepare, text).caused_by(e)
        };
        let listener = TcpListener::bind(listen).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let at = listener.local_addr().map_err(failed)?;
        let shared = Arc::clone(self);
        spawn("accept-guests", move || shared.accept_guests(tool, &listener, &Arc::new(serve)))?;
        warn_operator(&format!(
            "answers {tool} clients at {at}: {tool} has no authentication, so everybody who reaches this address can \
             fill the path"
        ));
        Ok(at)
    }

    fn accept_guests(
        self: &Arc<Self>,
        tool: &str,
        listener: &TcpListener,
        serve: &Arc<impl Fn(&Self, TcpStream, SocketAddr) + Send + Sync + 'static>,
    ) {
        let guests = Arc::new(AtomicUsize::new(0));
        // A constant of less than a second.
        let tick = Timespec::try_from(TICK).ok();
        while !self.stopping.load(Ordering::Relaxed) {
            // An error is found out by the accept.
            let _ = poll(&mut [PollFd::new(listener, PollFlags::IN)], tick.as_ref());
            let (stream, from) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
                Err(error) => {
                    // Usually the process is out of descriptors: waits until connections end.
                    self.log_stranger(&format!("accept a connection of {tool}: {error}; trying again"));
                    thread::sleep(TICK);
                    continue;
                }
            };
            if guests.fetch_add(1, Ordering::Relaxed) >= GUESTS_MAX {
                guests.fetch_sub(1, Ordering::Relaxed);
                self.log_stranger(&format!("{tool} connection from {from} refused: {GUESTS_MAX} are open"));
                continue;
            }
            let (shared, serve, place) = (Arc::clone(self), Arc::clone(serve), GuestPlace(Arc::clone(&guests)));
            // If the host refuses a thread, the connection is dropped.
            let _ = spawn("guest", move || {
                let _place = place;
                serve(&shared, stream, from);
            });
        }
    }

    /// Serves a connection of a tool, named with its article, and writes its lines in the log.
    fn serve_guest(&self, tool: &str, from: SocketAddr, serve: impl FnOnce(&dyn Fn(&str)) -> Result<Guest, Error>) {
        let log = |line: &str| self.log_guest(Level::INFO, &format!("{from}: {line}"));
        match serve(&log) {
            Ok(Guest::Stream) => {}
            Ok(Guest::Test(line)) => log(&line),
            Ok(Guest::Busy) => {
                self.log_stranger_detail(&format!("{from}: {tool} test refused: a measurement is under way"));
            }
            Err(error) => self.log_guest_error(from, tool, &error),
        }
    }

    fn log_guest_error(&self, from: SocketAddr, tool: &str, error: &Error) {
        let line = format!("{from}: {tool} test failed: {}", cut(&error.chain()));
        match error.kind {
            // Scanners of ports and clients that leave.
            ErrorKind::Unreachable => self.log_stranger_detail(&line),
            _ => self.log_guest(Level::WARN, &line),
        }
    }

    fn log_guest(&self, level: Level, line: &str) {
        self.log.line(&Origin::strangers(), (Kind::Sessions, level), line, Instant::now());
    }
}

/// Place of a connection, until it is dropped.
struct GuestPlace(Arc<AtomicUsize>);

impl Drop for GuestPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
