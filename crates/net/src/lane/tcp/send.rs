//! Sending half of a TCP lane, and signs of life.

use std::sync::Arc;

use bytes::Bytes;
use sterna_proto::Error;

use super::connection::Connection;
use super::shared::Shared;
use super::writer::{WriteFailure, Writer};
use crate::lane::LaneTx;
use crate::lane::frame::FrameKind;

/// Sending half, as the driver uses it.
pub(super) struct TcpTx {
    pub(super) shared: Arc<Shared>,
}

impl TcpTx {
    fn with_writer(
        &mut self,
        call: impl FnOnce(&mut Writer, &Connection) -> Result<(), WriteFailure>,
    ) -> Result<(), Error> {
        run(&self.shared, self.shared.take_writer()?, call)
    }
}

/// Runs one call with the writer. After a failure the lane is dead and the writer is gone.
fn run(
    shared: &Shared,
    mut writer: Box<Writer>,
    call: impl FnOnce(&mut Writer, &Connection) -> Result<(), WriteFailure>,
) -> Result<(), Error> {
    match call(&mut writer, &shared.connection) {
        Ok(()) => {
            shared.return_writer(writer);
            Ok(())
        }
        Err(failure) => Err(shared.cut_by_writer(failure)),
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
        self.with_writer(|writer, connection| writer.put(connection, FrameKind::Control, [frame, &[]]))
    }

    fn block_begin(&mut self, header: &[u8], data_len: u64) -> Result<(), Error> {
        self.with_writer(|writer, connection| writer.block_begin(connection, header, data_len))
    }

    fn block_data(&mut self, data: Bytes) -> Result<(), Error> {
        self.with_writer(|writer, connection| writer.block_data(connection, &data))
    }

    fn block_end(&mut self, trailer: &[u8]) -> Result<(), Error> {
        self.with_writer(|writer, connection| writer.block_end(connection, trailer))
    }

    fn block_abandon(&mut self) -> Result<(), Error> {
        self.with_writer(Writer::block_abandon)
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.with_writer(Writer::flush)
    }
}
