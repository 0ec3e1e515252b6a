//! What the two halves and the handle of a TCP lane share, and how a lane ends.
//!
//! A lane ends once, for the first reason that is given: by us (in order), by the peer (in order), or cut. The writer is
//! a token: whoever has taken it out of its place may write to the socket, and no lock is held while it does. Closing
//! takes the token too, so that the close frame never lands in the middle of another.

use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use sterna_proto::{Error, ErrorKind, Phase, Retry, Scope};

use super::handshake::Secrets;
use super::record::RecordKey;
use super::writer::Writer;
use crate::sys;

/// Longest time for closing in order, beside one round trip.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(2);

/// Longest round trip that closing waits for.
const CLOSE_RTT_MAX: Duration = Duration::from_secs(2);

/// State of a lane that all its parts share.
pub(super) struct Shared {
    pub(super) stream: TcpStream,
    pub(super) local_addr: SocketAddr,
    pub(super) peer_addr: SocketAddr,
    secrets: Mutex<Secrets>,
    /// The peer asked us to replace our key.
    key_update_owed: AtomicBool,
    /// The reading half waits for the peer, and not for its sink.
    pub(super) listens: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    writer: Option<Box<Writer>>,
    ending: Option<Ending>,
    reader: ReaderState,
}

/// Why a lane ends or has ended.
#[derive(Clone, Debug)]
pub(super) enum Ending {
    /// We close it in order.
    ByUs {
        /// What the peer is told.
        reason: String,
        /// When the peer has to be done.
        deadline: Instant,
    },
    /// The peer closed it in order.
    ByPeer {
        /// What it told us, escaped.
        reason: String,
    },
    /// It was cut or the peer broke the protocol.
    Cut(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReaderState {
    Idle,
    Running(ThreadId),
    Ended,
}

/// Which half of a lane saw something.
#[derive(Clone, Copy, Debug)]
pub(super) enum Half {
    Sending,
    Receiving,
}

impl Shared {
    pub(super) fn new(
        stream: TcpStream,
        addresses: (SocketAddr, SocketAddr),
        secrets: Secrets,
        writer: Writer,
    ) -> Self {
        let (local_addr, peer_addr) = addresses;
        Self {
            stream,
            local_addr,
            peer_addr,
            secrets: Mutex::new(secrets),
            key_update_owed: AtomicBool::new(false),
            listens: AtomicBool::new(false),
            state: Mutex::new(State { writer: Some(Box::new(writer)), ending: None, reader: ReaderState::Idle }),
            changed: Condvar::new(),
        }
    }

    /// Takes the writer for one call; waits while a sign of life goes out. Errors: the lane has ended.
    pub(super) fn take_writer(&self) -> Result<Box<Writer>, Error> {
        let mut state = self.lock();
        loop {
            if let Some(ending) = &state.ending {
                return Err(self.ended(ending));
            }
            match state.writer.take() {
                Some(writer) => return Ok(writer),
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Takes the writer, if nobody has it and the lane has not ended.
    pub(super) fn writer_if_free(&self) -> Option<Box<Writer>> {
        let mut state = self.lock();
        if state.ending.is_some() { None } else { state.writer.take() }
    }

    /// Puts the writer back after a call that went well.
    pub(super) fn return_writer(&self, writer: Box<Writer>) {
        self.lock().writer = Some(writer);
        self.changed.notify_all();
    }

    /// The next key for what we send.
    pub(super) fn next_tx_key(&self) -> Result<RecordKey, Error> {
        self.key_update_owed.store(false, Ordering::Relaxed);
        self.lock_secrets().next_tx()
    }

    /// The next key for what we receive. With `requested`, the sending half replaces its key before it sends more data.
    pub(super) fn next_rx_key(&self, requested: bool) -> Result<RecordKey, Error> {
        if requested {
            self.key_update_owed.store(true, Ordering::Relaxed);
        }
        self.lock_secrets().next_rx()
    }

    /// Whether the peer waits for us to replace our key.
    pub(super) fn owes_key_update(&self) -> bool {
        self.key_update_owed.load(Ordering::Relaxed)
    }

    /// Why the lane ends, if it does.
    pub(super) fn ending(&self) -> Option<Ending> {
        self.lock().ending.clone()
    }

    /// Notes that this thread reads the lane from now on; the guard notes the end of it.
    pub(super) fn start_reading(&self) -> ReadingGuard<'_> {
        self.lock().reader = ReaderState::Running(thread::current().id());
        ReadingGuard { shared: self }
    }

    /// Cuts the lane: an operation of one half came back with `error`. Returns the error for the caller of that half.
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

    /// Cuts the lane for `what`; an ending that was there first stays the reason.
    pub(super) fn cut_because(&self, what: String) -> Error {
        let mut state = self.lock();
        let ending = state.ending.get_or_insert(Ending::Cut(what)).clone();
        drop(state);
        self.shut_down(Shutdown::Both);
        self.changed.notify_all();
        self.ended(&ending)
    }

    /// The peer has closed the lane; answers in kind. Called by the reading thread.
    pub(super) fn closed_by_peer(&self, reason: &str) {
        let deadline = self.close_deadline();
        let mut state = self.lock();
        if state.ending.is_some() {
            return;
        }
        state.ending = Some(Ending::ByPeer { reason: reason.escape_debug().to_string() });
        self.finish_sending(state, "closed by the peer", deadline);
    }

    /// Closes the lane in order and waits for the peer to take it, but not for longer than the close time.
    ///
    /// On the reading thread it does not wait: the reader goes on until the peer is done or the time is over.
    pub(super) fn close(&self, reason: &str) {
        let deadline = self.close_deadline();
        let mut state = self.lock();
        if state.ending.is_some() {
            return;
        }
        state.ending = Some(Ending::ByUs { reason: reason.to_owned(), deadline });
        self.finish_sending(state, reason, deadline);
        let mut state = self.lock();
        match state.reader {
            ReaderState::Running(reader) if reader == thread::current().id() => return,
            ReaderState::Idle => {
                drop(state);
                self.drain(deadline);
                return;
            }
            ReaderState::Running(_) | ReaderState::Ended => {}
        }
        while matches!(state.reader, ReaderState::Running(_)) {
            let Some(woken) = self.wait(state, deadline) else { return self.shut_down(Shutdown::Both) };
            state = woken;
        }
    }

    /// Reads and forgets what the peer still sends, until it is done or the time is over.
    ///
    /// A socket that is closed with unread data answers with a reset, which would overtake our close frame.
    pub(super) fn drain(&self, deadline: Instant) {
        let mut bytes = vec![0; 64 << 10];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.stream.set_read_timeout(Some(left)).is_err() {
                break;
            }
            match (&self.stream).read(&mut bytes) {
                Ok(0) => break,
                Err(error) if error.kind() != io::ErrorKind::Interrupted => break,
                Ok(_) | Err(_) => {}
            }
        }
        self.shut_down(Shutdown::Both);
    }

    /// The error of a call on a lane that ends.
    pub(super) fn ended(&self, ending: &Ending) -> Error {
        let (kind, scope, what) = match ending {
            Ending::ByUs { reason, .. } => (ErrorKind::Cancelled, Scope::Client, format!("closed: {reason}")),
            Ending::ByPeer { reason } => (ErrorKind::Unreachable, Scope::Path, format!("closed by the peer: {reason}")),
            Ending::Cut(what) => (ErrorKind::Unreachable, Scope::Path, what.clone()),
        };
        Error::new(kind, scope, Phase::Transfer, format!("lane to {}: {what}", self.peer_addr)).retry(Retry::After)
    }

    /// Takes the writer and sends the last words with it; a call of the sending half that is under way comes first.
    fn finish_sending(&self, mut state: MutexGuard<'_, State>, reason: &str, deadline: Instant) {
        let mut writer = loop {
            if let Some(writer) = state.writer.take() {
                break writer;
            }
            let Some(woken) = self.wait(state, deadline) else { return self.shut_down(Shutdown::Both) };
            state = woken;
        };
        drop(state);
        match writer.finish(self, reason, deadline) {
            Ok(()) => self.shut_down(Shutdown::Write),
            Err(_) => self.shut_down(Shutdown::Both),
        }
    }

    /// Waits for a change of the state; `None` when the deadline passes first.
    fn wait<'g>(&self, state: MutexGuard<'g, State>, deadline: Instant) -> Option<MutexGuard<'g, State>> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        Some(self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0)
    }

    fn close_deadline(&self) -> Instant {
        let rtt = sys::tcp_info(&self.stream).map_or(Duration::ZERO, |info| info.rtt);
        Instant::now() + CLOSE_TIME_MAX + rtt.min(CLOSE_RTT_MAX)
    }

    fn shut_down(&self, how: Shutdown) {
        // Fails only on a socket that is no longer connected, which is what is wanted.
        let _ = self.stream.shutdown(how);
    }

    /// A thread that panicked in between left the state whole: every change of it is one assignment.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_secrets(&self) -> MutexGuard<'_, Secrets> {
        self.secrets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lives as long as a thread reads the lane.
pub(super) struct ReadingGuard<'s> {
    shared: &'s Shared,
}

impl Drop for ReadingGuard<'_> {
    fn drop(&mut self) {
        self.shared.lock().reader = ReaderState::Ended;
        self.shared.changed.notify_all();
    }
}
