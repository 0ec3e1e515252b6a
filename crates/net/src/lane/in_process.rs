//! A lane within one process: the sink of the other end gets the data in the same call that sends it.
//!
//! Nothing is copied, encrypted or queued. A call returns when the sink has taken its data, which is the
//! back-pressure. The lane works in one direction; the other end answers on a second lane.

use bytes::Bytes;
use sterna_proto::Error;

use super::{LaneSink, LaneTx};

/// Sending half of a lane whose other end is in this process.
pub struct InProcessTx {
    sink: Box<dyn LaneSink>,
    block: u64,
    offset: u64,
}

impl InProcessTx {
    /// Creates a lane that ends at `sink`.
    pub fn new(sink: Box<dyn LaneSink>) -> Self {
        Self { sink, block: 0, offset: 0 }
    }
}

impl LaneTx for InProcessTx {
    fn control(&mut self, frame: &[u8]) -> Result<(), Error> {
        self.sink.control(frame)
    }

    fn block_begin(&mut self, header: &[u8], data_len: u64) -> Result<(), Error> {
        self.block += 1;
        self.offset = 0;
        self.sink.block_begin(self.block, header, data_len)
    }

    fn block_data(&mut self, data: Bytes) -> Result<(), Error> {
        self.sink.block_data(self.block, self.offset, &data)?;
        self.offset += data.len() as u64;
        Ok(())
    }

    fn block_end(&mut self, trailer: &[u8]) -> Result<(), Error> {
        self.sink.block_end(self.block, trailer)
    }

    fn block_abandon(&mut self) -> Result<(), Error> {
        self.sink.block_abandoned(self.block)
    }

    fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }
}
