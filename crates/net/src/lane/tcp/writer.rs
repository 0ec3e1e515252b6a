//! Sending half of a TCP lane.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use rustix::io::Errno;
use rustix::net::SendFlags;
use sterna_proto::{Error, ErrorKind, Phase, Scope};

use super::record::Sealer;
use super::shared::{Half, Shared};
use crate::lane::frame::{CLOSE_REASON_BYTES_MAX, DATA_FRAME_BYTES_MAX, FrameKind};
use crate::lane::{BLOCK_BYTES_MAX, LaneTx};

/// Writes frames to records and records to the socket.
pub(super) struct Writer {
    sealer: Sealer,
    /// Data bytes that the open block still lacks; `None` while no block is open.
    block_missing: Option<u64>,
}

impl Writer {
    pub(super) fn new(sealer: Sealer) -> Self {
        Self { sealer, block_missing: None }
    }

    /// Sends the remaining data, the close frame and the TLS close, before `deadline`.
    pub(super) fn finish(&mut self, shared: &Shared, reason: &str, deadline: Instant) -> Result<(), Error> {
        let longest = reason.len().min(CLOSE_REASON_BYTES_MAX);
        let cut_at = (0..=longest).rev().find(|at| reason.is_char_boundary(*at)).unwrap_or(0);
        let reason = &reason.as_bytes()[..cut_at];
        let head = FrameKind::Close.head(reason.len());
        for mut bytes in [head.as_slice(), reason] {
            while !bytes.is_empty() {
                self.sealer.push(&mut bytes)?;
                self.write_sealed(shared, Some(deadline))?;
            }
        }
        self.sealer.close_notify()?;
        self.write_sealed(shared, Some(deadline))
    }

    /// Queues a frame whose payload is in two pieces; writes to the socket when the buffer is full.
    fn put(&mut self, shared: &Shared, kind: FrameKind, pieces: [&[u8]; 2]) -> Result<(), Error> {
        let length = pieces[0].len() + pieces[1].len();
        if !kind.allows(length) {
            return Err(misuse(&format!("send a {kind:?} frame of {length} bytes")));
        }
        if shared.owes_key_update() {
            // Before the next data, as RFC 8446, section 4.6.3 requires.
            self.sealer.update_key(shared.next_tx_key()?)?;
        }
        let head = kind.head(length);
        for mut bytes in [head.as_slice(), pieces[0], pieces[1]] {
            loop {
                self.sealer.push(&mut bytes)?;
                if bytes.is_empty() {
                    break;
                }
                self.write_sealed(shared, None)?;
            }
        }
        Ok(())
    }

    fn block_begin(&mut self, shared: &Shared, header: &[u8], data_len: u64) -> Result<(), Error> {
        if self.block_missing.is_some() || data_len > BLOCK_BYTES_MAX {
            return Err(misuse(&format!("begin a block of {data_len} bytes, or one within another")));
        }
        self.block_missing = Some(data_len);
        self.put(shared, FrameKind::BlockBegin, [&data_len.to_le_bytes(), header])
    }

    fn block_data(&mut self, shared: &Shared, data: &[u8]) -> Result<(), Error> {
        let Some(missing) = self.block_missing.and_then(|missing| missing.checked_sub(data.len() as u64)) else {
            return Err(misuse(&format!("send {} bytes outside or beyond a block", data.len())));
        };
        self.block_missing = Some(missing);
        for piece in data.chunks(DATA_FRAME_BYTES_MAX) {
            self.put(shared, FrameKind::Data, [piece, &[]])?;
        }
        // Full records leave at once. A record that is still growing waits for the next data.
        self.write_sealed(shared, None)
    }

    fn block_end(&mut self, shared: &Shared, trailer: &[u8]) -> Result<(), Error> {
        if self.block_missing.take() != Some(0) {
            return Err(misuse("end a block before its data is complete"));
        }
        self.put(shared, FrameKind::BlockEnd, [trailer, &[]])
    }

    fn block_abandon(&mut self, shared: &Shared) -> Result<(), Error> {
        if self.block_missing.take().is_none() {
            return Err(misuse("abandon a block that was not begun"));
        }
        self.put(shared, FrameKind::Abandon, [&[], &[]])
    }

    fn flush(&mut self, shared: &Shared) -> Result<(), Error> {
        self.sealer.seal_open()?;
        self.write_sealed(shared, None)
    }

    /// Sends a sign of life, as far as the kernel takes it without waiting. The next call sends the rest.
    fn alive(&mut self, shared: &Shared) -> Result<(), Error> {
        if self.sealer.sealed().is_empty() {
            self.put(shared, FrameKind::Alive, [&[], &[]])?;
            self.sealer.seal_open()?;
        }
        while !self.sealer.sealed().is_empty() {
            match rustix::net::send(&shared.stream, self.sealer.sealed(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => self.sealer.written(count),
                Err(Errno::INTR) => {}
                // The peer does not read, or the path is slow: the reading half finds out which.
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(shared.cut(Half::Sending, &error.into())),
            }
        }
        Ok(())
    }

    /// Writes the records that are ready, and replaces the key when it is due.
    fn write_sealed(&mut self, shared: &Shared, deadline: Option<Instant>) -> Result<(), Error> {
        if !self.sealer.sealed().is_empty() {
            let written = match deadline {
                None => (&shared.stream).write_all(self.sealer.sealed()),
                Some(deadline) => write_until(shared, self.sealer.sealed(), deadline),
            };
            written.map_err(|e| shared.cut(Half::Sending, &e))?;
            self.sealer.written(self.sealer.sealed().len());
        }
        if self.sealer.key_is_worn() {
            self.sealer.update_key(shared.next_tx_key()?)?;
        }
        Ok(())
    }
}

/// Writes all of `bytes`, or fails at the deadline.
fn write_until(shared: &Shared, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        shared.stream.set_write_timeout(Some(left))?;
        match (&shared.stream).write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the error for a call that the contract of [`LaneTx`] does not allow.
fn misuse(what: &str) -> Error {
    Error::new(ErrorKind::Internal, Scope::Path, Phase::Transfer, format!("{what} on a lane"))
}

/// Sending half, as the driver uses it.
pub(super) struct TcpTx {
    pub(super) shared: Arc<Shared>,
}

impl TcpTx {
    fn with_writer(&mut self, call: impl FnOnce(&mut Writer, &Shared) -> Result<(), Error>) -> Result<(), Error> {
        run(&self.shared, self.shared.take_writer()?, call)
    }
}

/// Runs one call with the writer. After a failure the lane is dead and the writer is gone.
fn run(
    shared: &Shared,
    mut writer: Box<Writer>,
    call: impl FnOnce(&mut Writer, &Shared) -> Result<(), Error>,
) -> Result<(), Error> {
    match call(&mut writer, shared) {
        Ok(()) => {
            shared.return_writer(writer);
            Ok(())
        }
        Err(error) => {
            shared.cut_because(error.text().to_owned());
            Err(error)
        }
    }
}

/// Sends a sign of life, unless a call of the sending half is running. Such a call sends data, or it waits because
/// the peer does not read. Never blocks.
pub(super) fn say_alive(shared: &Shared) {
    if let Some(writer) = shared.writer_if_free() {
        // A failure ends the lane, and both halves detect that.
        let _ = run(shared, writer, Writer::alive);
    }
}

impl LaneTx for TcpTx {
    fn control(&mut self, frame: &[u8]) -> Result<(), Error> {
        self.with_writer(|writer, shared| writer.put(shared, FrameKind::Control, [frame, &[]]))
    }

    fn block_begin(&mut self, header: &[u8], data_len: u64) -> Result<(), Error> {
        self.with_writer(|writer, shared| writer.block_begin(shared, header, data_len))
    }

    fn block_data(&mut self, data: Bytes) -> Result<(), Error> {
        self.with_writer(|writer, shared| writer.block_data(shared, &data))
    }

    fn block_end(&mut self, trailer: &[u8]) -> Result<(), Error> {
        self.with_writer(|writer, shared| writer.block_end(shared, trailer))
    }

    fn block_abandon(&mut self) -> Result<(), Error> {
        self.with_writer(Writer::block_abandon)
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.with_writer(Writer::flush)
    }
}
