//! A lane within one process: what one end sends, the other end's sink takes in the same call.
//!
//! Nothing is copied, encrypted or queued: a call comes back when the sink has taken what it was given, which is its
//! back-pressure. It goes one way; what the other end has to say goes by a lane of its own.

use bytes::Bytes;
use sterna_proto::Error;

use super::{LaneSink, LaneTx};

/// The sending half of a lane whose other end is in this process.
pub struct InsideTx {
    sink: Box<dyn LaneSink>,
    block: u64,
    offset: u64,
}

impl InsideTx {
    /// A lane that ends at `sink`.
    pub fn new(sink: Box<dyn LaneSink>) -> Self {
        Self { sink, block: 0, offset: 0 }
    }
}

impl LaneTx for InsideTx {
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
