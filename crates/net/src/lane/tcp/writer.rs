//! Writer of a TCP lane: frames to TLS records, and records to the socket.
//!
//! Refuses to end a lane: a failed call returns its reason, and `shared` ends the lane.

use std::io::{self, Write};
use std::net::TcpStream;
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::SendFlags;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use super::connection::Connection;
use super::record::Sealer;
use crate::lane::BLOCK_BYTES_MAX;
use crate::lane::frame::{CLOSE_REASON_BYTES_MAX, DATA_FRAME_BYTES_MAX, FrameKind};

/// Writes frames to records and records to the socket.
pub(super) struct Writer {
    sealer: Sealer,
    /// Data bytes that the open block still lacks; `None` while no block is open.
    block_missing: Option<u64>,
}

/// Reason why a call of the writer failed. The lane is dead after any of them.
pub(super) enum WriteFailure {
    /// The socket did not take the bytes.
    Socket(io::Error),
    /// Wrong use of the lane, or a failed encryption.
    Other(Error),
}

impl From<io::Error> for WriteFailure {
    fn from(error: io::Error) -> Self {
        Self::Socket(error)
    }
}

impl From<Error> for WriteFailure {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

impl Writer {
    pub(super) fn new(sealer: Sealer) -> Self {
        Self { sealer, block_missing: None }
    }

    /// Sends the remaining data, the close frame and the TLS close, before `deadline`.
    pub(super) fn finish(
        &mut self,
        connection: &Connection,
        reason: &str,
        deadline: Instant,
    ) -> Result<(), WriteFailure> {
        let longest = reason.len().min(CLOSE_REASON_BYTES_MAX);
        let cut_at = (0..=longest).rev().find(|at| reason.is_char_boundary(*at)).unwrap_or(0);
        let reason = &reason.as_bytes()[..cut_at];
        let head = FrameKind::Close.head(reason.len());
        for mut bytes in [head.as_slice(), reason] {
            while !bytes.is_empty() {
                self.sealer.push(&mut bytes)?;
                self.write_sealed(connection, Some(deadline))?;
            }
        }
        self.sealer.close_notify()?;
        self.write_sealed(connection, Some(deadline))
    }

    /// Queues a frame whose payload is in two pieces; writes to the socket when the buffer is full.
    pub(super) fn put(
        &mut self,
        connection: &Connection,
        kind: FrameKind,
        pieces: [&[u8]; 2],
    ) -> Result<(), WriteFailure> {
        let length = pieces[0].len() + pieces[1].len();
        if !kind.allows(length) {
            return Err(misuse(&format!("send a {kind:?} frame of {length} bytes")));
        }
        if connection.owes_key_update() {
            // Before the next data, as RFC 8446, section 4.6.3 requires.
            self.sealer.update_key(connection.next_tx_key()?)?;
        }
        let head = kind.head(length);
        for mut bytes in [head.as_slice(), pieces[0], pieces[1]] {
            loop {
                self.sealer.push(&mut bytes)?;
                if bytes.is_empty() {
                    break;
                }
                self.write_sealed(connection, None)?;
            }
        }
        Ok(())
    }

    pub(super) fn block_begin(
        &mut self,
        connection: &Connection,
        header: &[u8],
        data_len: u64,
    ) -> Result<(), WriteFailure> {
        if self.block_missing.is_some() || data_len > BLOCK_BYTES_MAX {
            return Err(misuse(&format!("begin a block of {data_len} bytes, or one within another")));
        }
        self.block_missing = Some(data_len);
        self.put(connection, FrameKind::BlockBegin, [&data_len.to_le_bytes(), header])
    }

    pub(super) fn block_data(&mut self, connection: &Connection, data: &[u8]) -> Result<(), WriteFailure> {
        let Some(missing) = self.block_missing.and_then(|missing| missing.checked_sub(data.len() as u64)) else {
            return Err(misuse(&format!("send {} bytes outside or beyond a block", data.len())));
        };
        self.block_missing = Some(missing);
        for piece in data.chunks(DATA_FRAME_BYTES_MAX) {
            self.put(connection, FrameKind::Data, [piece, &[]])?;
        }
        // Full records leave at once. A record that is still growing waits for the next data.
        self.write_sealed(connection, None)
    }

    pub(super) fn block_end(&mut self, connection: &Connection, trailer: &[u8]) -> Result<(), WriteFailure> {
        if self.block_missing.take() != Some(0) {
            return Err(misuse("end a block before its data is complete"));
        }
        self.put(connection, FrameKind::BlockEnd, [trailer, &[]])
    }

    pub(super) fn block_abandon(&mut self, connection: &Connection) -> Result<(), WriteFailure> {
        if self.block_missing.take().is_none() {
            return Err(misuse("abandon a block that was not begun"));
        }
        self.put(connection, FrameKind::Abandon, [&[], &[]])
    }

    pub(super) fn flush(&mut self, connection: &Connection) -> Result<(), WriteFailure> {
        self.sealer.seal_open()?;
        self.write_sealed(connection, None)
    }

    /// Sends a sign of life, as far as the kernel takes it without waiting. The next call sends the rest.
    pub(super) fn alive(&mut self, connection: &Connection) -> Result<(), WriteFailure> {
        if self.sealer.sealed().is_empty() {
            self.put(connection, FrameKind::Alive, [&[], &[]])?;
            self.sealer.seal_open()?;
        }
        while !self.sealer.sealed().is_empty() {
            match rustix::net::send(&connection.stream, self.sealer.sealed(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
            {
                Ok(count) => self.sealer.written(count),
                Err(Errno::INTR) => {}
                // The peer does not read, or the path is slow: the reading half finds out which.
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(io::Error::from(errno).into()),
            }
        }
        Ok(())
    }

    /// Writes the records that are ready, and replaces the key when it is due.
    fn write_sealed(&mut self, connection: &Connection, deadline: Option<Instant>) -> Result<(), WriteFailure> {
        if !self.sealer.sealed().is_empty() {
            match deadline {
                None => (&connection.stream).write_all(self.sealer.sealed())?,
                Some(deadline) => write_until(&connection.stream, self.sealer.sealed(), deadline)?,
            }
            self.sealer.written(self.sealer.sealed().len());
        }
        if self.sealer.key_is_worn() {
            self.sealer.update_key(connection.next_tx_key()?)?;
        }
        Ok(())
    }
}

/// Writes all of `bytes`, or fails at the deadline.
fn write_until(mut stream: &TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(left))?;
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the failure of a call that the contract of [`crate::lane::LaneTx`] does not allow.
fn misuse(what: &str) -> WriteFailure {
    Error::new(ErrorKind::Internal, Scope::Path, Phase::Transfer, format!("{what} on a lane")).into()
}
