//! Deadlines of operations over TCP. An operation has many reads and writes; a timeout of each would let a peer that
//! sends byte by byte hold it for hours. All of them end at one moment here.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::net::RecvFlags;

/// Shortest timeout of a socket: 0 is none.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);

/// Moment at which an operation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Deadline(pub(super) Instant);

impl Deadline {
    /// Returns the deadline of an operation that begins now and may take this time.
    pub(super) fn after(time: Duration) -> Self {
        Self(Instant::now() + time)
    }

    /// Returns the time until the moment, for the timeout of one call. Errors: `WouldBlock`: it has passed.
    pub(super) fn left(self) -> io::Result<Duration> {
        let left = self.0.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(left.max(TIMEOUT_MIN)) }
    }
}

/// Socket whose calls end at a deadline, with `WouldBlock`: TLS and WebSocket take it for a pause, and lose nothing.
pub(super) struct Bounded {
    pub(super) socket: TcpStream,
    /// End of every call.
    pub(super) deadline: Deadline,
    /// False: a read takes only data that has arrived.
    pub(super) waits: bool,
}

impl Bounded {
    /// Takes a connection, for an operation with a deadline.
    pub(super) fn new(socket: TcpStream, deadline: Deadline) -> Self {
        Self { socket, deadline, waits: true }
    }
}

impl Read for Bounded {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if !self.waits {
            return Ok(rustix::net::recv(&self.socket, bytes, RecvFlags::DONTWAIT)?.0);
        }
        loop {
            self.socket.set_read_timeout(Some(self.deadline.left()?))?;
            match self.socket.read(bytes) {
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                outcome => return outcome,
            }
        }
    }
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            self.socket.set_write_timeout(Some(self.deadline.left()?))?;
            match self.socket.write(bytes) {
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                outcome => return outcome,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the error of a call, for people: one that ended at its deadline has timed out.
pub(super) fn in_words(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::TcpListener;
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    /// Time of an operation in tests. A peer that drips takes several times as long for 500 bytes.
    pub(in crate::measure) const SHORT: Duration = Duration::from_millis(200);

    /// Pause of a peer between two bytes.
    const BETWEEN: Duration = Duration::from_millis(5);

    /// Returns both ends of a connection.
    pub(in crate::measure) fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    /// Sends byte by byte, until all are sent or the other end has closed.
    pub(in crate::measure) fn drip(mut to: TcpStream, bytes: Vec<u8>) {
        thread::spawn(move || {
            let (_never, wait) = channel::<()>();
            bytes.iter().all(|byte| {
                // Ends by its time.
                let _ = wait.recv_timeout(BETWEEN);
                to.write_all(&[*byte]).is_ok()
            })
        });
    }

    #[test]
    fn bytes_that_drip_do_not_move_the_deadline() {
        let (near, far) = pair();
        drip(far, vec![7; 1000]);
        let mut bounded = Bounded::new(near, Deadline::after(SHORT));
        let error = bounded.read_exact(&mut [0; 1000]).unwrap_err();
        assert_eq!((error.kind(), in_words(error).kind()), (io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut));
        // The rest is read by an operation with another deadline.
        bounded.deadline = Deadline::after(Duration::from_secs(60));
        bounded.read_exact(&mut [0; 10]).unwrap();
    }

    #[test]
    fn a_peer_that_reads_nothing_ends_a_write() {
        let (near, _far) = pair();
        let mut bounded = Bounded::new(near, Deadline::after(SHORT));
        assert_eq!(bounded.write_all(&vec![7; 64 << 20]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
