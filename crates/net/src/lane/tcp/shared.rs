//! State that the two halves and the handle of a TCP lane share, and the end of a lane.
//!
//! A lane ends once, for the first reason: closed by this end in order, closed by the peer in order, or cut. The
//! writer is a token: the thread that has taken it may write to the socket, and holds no lock meanwhile. Closing
//! takes the token too, so that the close frame never enters another frame.

use std::io::{self, Read};
use std::net::Shutdown;
use std::sync::atomic::AtomicBool;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};

use super::connection::Connection;
use super::writer::{WriteFailure, Writer};
use crate::sys;

/// Time limit for closing in order, in addition to one round trip.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(2);

/// Longest round trip that closing waits for.
const CLOSE_RTT_MAX: Duration = Duration::from_secs(2);

/// State of a lane that all its parts share.
pub(super) struct Shared {
    pub(super) connection: Connection,
    /// True while the reading half waits for the peer, and not for its sink.
    pub(super) listens: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    writer: Option<Box<Writer>>,
    ending: Option<Ending>,
    reader: ReaderState,
}

/// Reason why a lane ends or has ended.
#[derive(Clone, Debug)]
pub(super) enum Ending {
    /// This end closes it in order.
    ByUs {
        /// Reason that is sent to the peer.
        reason: String,
        /// Time by which the peer has to finish.
        deadline: Instant,
    },
    /// The peer closed it in order.
    ByPeer {
        /// Reason that the peer sent, escaped.
        reason: String,
    },
    /// The connection was cut, or the peer broke the protocol.
    Cut(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReaderState {
    Idle,
    Running(ThreadId),
    Ended,
}

/// Half of a lane in which an operation failed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Half {
    Sending,
    Receiving,
}

impl Shared {
    pub(super) fn new(connection: Connection, writer: Writer) -> Self {
        Self {
            connection,
            listens: AtomicBool::new(false),
            state: Mutex::new(State { writer: Some(Box::new(writer)), ending: None, reader: ReaderState::Idle }),
            changed: Condvar::new(),
        }
    }

    /// Takes the writer for one call; waits while a sign of life is written. Errors: the lane has ended.
    pub(super) fn take_writer(&self) -> Result<Box<Writer>, Error> {
        let mut state = self.lock();
        loop {
            if let Some(ending) = &state.ending {
                return Err(self.ended(ending));
            }
            match state.writer.take() {
                Some(writer) => return Ok(writer),
                None => self.changed.wait(&mut state),
            }
        }
    }

    /// Takes the writer if it is free and the lane has not ended.
    pub(super) fn writer_if_free(&self) -> Option<Box<Writer>> {
        let mut state = self.lock();
        if state.ending.is_some() { None } else { state.writer.take() }
    }

    /// Puts the writer back after a successful call.
    pub(super) fn return_writer(&self, writer: Box<Writer>) {
        self.lock().writer = Some(writer);
        self.changed.notify_all();
    }

    /// Returns the reason why the lane ends, if it does.
    pub(super) fn ending(&self) -> Option<Ending> {
        self.lock().ending.clone()
    }

    /// Records that this thread reads the lane from now on; the guard records the end of the reading.
    pub(super) fn start_reading(&self) -> ReadingGuard<'_> {
        self.lock().reader = ReaderState::Running(thread::current().id());
        ReadingGuard { shared: self }
    }

    /// Cuts the lane, because an operation of one half failed with `error`. Returns the error for the caller of
    /// that half.
    pub(super) fn cut(&self, half: Half, error: &io::Error) -> Error {
        let what = match error.kind() {
            io::ErrorKind::UnexpectedEof => "cut by the peer without a word".to_owned(),
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => "cut".to_owned(),
            _ => format!("cut: {error}"),
        };
        let what = match half {
            Half::Sending => format!("{what} while sending"),
            Half::Receiving => format!("{what} while receiving"),
        };
        self.cut_because(what)
    }

    /// Cuts the lane, because a call of the writer failed. Returns the error for the caller of the sending half.
    pub(super) fn cut_by_writer(&self, failure: WriteFailure) -> Error {
        match failure {
            WriteFailure::Socket(error) => self.cut(Half::Sending, &error),
            WriteFailure::Other(error) => {
                self.cut_because(error.text().to_owned());
                error
            }
        }
    }

    /// Cuts the lane for the reason `what`; an earlier ending stays the reason.
    pub(super) fn cut_because(&self, what: String) -> Error {
        let mut state = self.lock();
        let ending = state.ending.get_or_insert(Ending::Cut(what)).clone();
        drop(state);
        self.shut_down(Shutdown::Both);
        self.changed.notify_all();
        self.ended(&ending)
    }

    /// Records that the peer has closed the lane, and closes the other direction. Called by the reading thread.
    pub(super) fn closed_by_peer(&self, reason: &str) {
        let deadline = self.close_deadline();
        let mut state = self.lock();
        if state.ending.is_some() {
            return;
        }
        state.ending = Some(Ending::ByPeer { reason: reason.escape_debug().to_string() });
        self.finish_sending(state, "closed by the peer", deadline);
    }

    /// Closes the lane in order and waits until the reader has ended, at most for the close time.
    ///
    /// Does not wait on the reading thread: the reader continues until the peer is done or the time is over.
    pub(super) fn close(&self, reason: &str) {
        let deadline = self.close_deadline();
        let mut state = self.lock();
        if let Some(ending) = &state.ending {
            // If this process ends now, the kernel resets the connection and discards unsent data, with the last
            // control frames.
            if let Ending::ByUs { deadline, .. } = *ending
                && self.has_unsent()
            {
                self.wait_for_reader(state, deadline);
            }
            return;
        }
        state.ending = Some(Ending::ByUs { reason: reason.to_owned(), deadline });
        self.finish_sending(state, reason, deadline);
        let state = self.lock();
        match state.reader {
            ReaderState::Idle => {
                drop(state);
                self.drain(deadline);
            }
            ReaderState::Running(_) | ReaderState::Ended => self.wait_for_reader(state, deadline),
        }
    }

    /// Waits until the reader has ended, at most until the deadline. Does not wait on the reading thread.
    fn wait_for_reader(&self, mut state: MutexGuard<'_, State>, deadline: Instant) {
        while matches!(state.reader, ReaderState::Running(reader) if reader != thread::current().id()) {
            if !self.wait(&mut state, deadline) {
                return self.shut_down(Shutdown::Both);
            }
        }
    }

    /// Returns true if the kernel has data that it has not sent yet.
    fn has_unsent(&self) -> bool {
        sys::tcp_info(&self.connection.stream).is_ok_and(|info| info.notsent.is_some_and(|bytes| bytes.0 > 0))
    }

    /// Reads and drops the data that the peer still sends, until the peer is done or the time is over.
    ///
    /// Reason: a socket that is closed with unread data sends a reset, which would overtake the close frame.
    pub(super) fn drain(&self, deadline: Instant) {
        let mut bytes = vec![0; 64 << 10];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.connection.stream.set_read_timeout(Some(left)).is_err() {
                break;
            }
            match (&self.connection.stream).read(&mut bytes) {
                Ok(0) => break,
                Err(error) if error.kind() != io::ErrorKind::Interrupted => break,
                Ok(_) | Err(_) => {}
            }
        }
        self.shut_down(Shutdown::Both);
    }

    /// Returns the error of a call on a lane that ends.
    pub(super) fn ended(&self, ending: &Ending) -> Error {
        let (kind, scope, what) = match ending {
            Ending::ByUs { reason, .. } => (ErrorKind::Cancelled, Scope::Client, format!("closed: {reason}")),
            Ending::ByPeer { reason } => (ErrorKind::Unreachable, Scope::Path, format!("closed by the peer: {reason}")),
            Ending::Cut(what) => (ErrorKind::Unreachable, Scope::Path, what.clone()),
        };
        Error::new(kind, scope, Phase::Transfer, format!("lane to {}: {what}", self.connection.peer_addr))
            .retry(Retry::After)
    }

    /// Takes the writer and sends the close frame with it. Waits first for a running call of the sending half.
    fn finish_sending(&self, mut state: MutexGuard<'_, State>, reason: &str, deadline: Instant) {
        let mut writer = loop {
            if let Some(writer) = state.writer.take() {
                break writer;
            }
            if !self.wait(&mut state, deadline) {
                return self.shut_down(Shutdown::Both);
            }
        };
        drop(state);
        match writer.finish(&self.connection, reason, deadline) {
            Ok(()) => self.shut_down(Shutdown::Write),
            Err(_) => self.shut_down(Shutdown::Both),
        }
    }

    /// Waits for a change of the state. Returns false if the deadline has passed.
    fn wait(&self, state: &mut MutexGuard<'_, State>, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        self.changed.wait_for(state, left);
        true
    }

    fn close_deadline(&self) -> Instant {
        let rtt = sys::tcp_info(&self.connection.stream).map_or(Duration::ZERO, |info| info.rtt);
        Instant::now() + CLOSE_TIME_MAX + rtt.min(CLOSE_RTT_MAX)
    }

    fn shut_down(&self, how: Shutdown) {
        // Fails only on a socket that is no longer connected, which is the wanted result.
        let _ = self.connection.stream.shutdown(how);
    }

    /// Locks the state. A panic of another thread leaves it consistent: every change of it is one assignment.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// Guard that exists as long as a thread reads the lane.
pub(super) struct ReadingGuard<'s> {
    shared: &'s Shared,
}

impl Drop for ReadingGuard<'_> {
    fn drop(&mut self) {
        self.shared.lock().reader = ReaderState::Ended;
        self.shared.changed.notify_all();
    }
}
