//! Sending half of a QUIC lane. One plain thread calls it and passes pieces of blocks to a task on the lane's
//! runtime.
//!
//! The queue between them is short. Reason for the queue: a thread that waits on the engine directly is woken for
//! every acknowledgement, and competes with the engine for its lock.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use noq::{Connection, SendStream, VarInt, WriteError};
use sterna_proto::{Error, ErrorKind, Phase, Scope};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::close::CODE_FAULT;
use super::pace::Pace;
use super::shared::Shared;
use super::stretch::{ABANDONED, Prefix};
use crate::lane::{BLOCK_BYTES_MAX, BLOCK_HEADER_BYTES_MAX, BLOCK_TRAILER_BYTES_MAX, CONTROL_FRAME_BYTES_MAX, LaneTx};

/// Feeds a lane.
pub(super) struct QuicTx {
    shared: Arc<Shared>,
    orders: mpsc::Sender<Order>,
    /// Data bytes that the open block still lacks; `None` while no block is open.
    left: Option<u64>,
}

/// Next action of the feeding task.
pub(super) enum Order {
    /// Opens a block.
    Begin {
        header: Bytes,
        data_len: u64,
    },
    Data(Bytes),
    /// Sends the trailer and ends the block.
    End(Bytes),
    Abandon,
}

/// Creates the queue of a lane.
pub(super) fn queue() -> (mpsc::Sender<Order>, mpsc::Receiver<Order>) {
    mpsc::channel(ORDERS)
}

/// Executes orders until the lane ends or the queue is closed.
///
/// Started with the lane on its runtime; woken by orders and by room in the engine's window; a turn is one order.
pub(super) async fn feed(connection: Connection, mut orders: mpsc::Receiver<Order>, pace: Arc<Pace>) {
    let mut feeder = Feeder { connection: connection.clone(), pace: Arc::clone(&pace), next_block: 0, open: None };
    let mut ended = std::pin::pin!(connection.closed());
    loop {
        pace.set_dry(orders.is_empty());
        // An order that waits in the engine's window fails when the lane ends. Here the lane may end between
        // orders.
        let order = tokio::select! {
            order = orders.recv() => order,
            _ = &mut ended => return,
        };
        pace.set_dry(false);
        // The queue is closed: an open block will never be complete.
        let last = order.is_none();
        if let Err(error) = feeder.carry_out(order.unwrap_or(Order::Abandon)).await {
            if !matches!(error, WriteError::ConnectionLost(_)) {
                // A peer that stops one of our streams breaks the protocol.
                connection.close(CODE_FAULT, b"a block was refused");
            }
            return;
        }
        if last {
            return;
        }
    }
}

/// Sends the current block, cut into stretches.
struct Feeder {
    connection: Connection,
    pace: Arc<Pace>,
    next_block: u64,
    open: Option<OpenBlock>,
}

struct OpenBlock {
    prefix: Prefix,
    stream: SendStream,
    /// Data bytes that the stretch still lacks.
    left: u64,
}

impl Feeder {
    async fn carry_out(&mut self, order: Order) -> Result<(), WriteError> {
        match order {
            Order::Begin { header, data_len } => {
                let prefix = Prefix { block: self.next_block, data_len, index: 0, header_len: header.len() };
                self.next_block += 1;
                self.open = Some(self.start(prefix, header).await?);
                Ok(())
            }
            Order::Data(data) => self.write(data).await,
            Order::End(trailer) => {
                let Some(mut block) = self.open.take() else { return Ok(()) };
                if !trailer.is_empty() {
                    block.stream.write_chunk(trailer).await?;
                }
                self.end_stretch(block.stream);
                Ok(())
            }
            Order::Abandon => {
                let Some(OpenBlock { prefix, mut stream, .. }) = self.open.take() else { return Ok(()) };
                // The data sent for the stretch need not arrive; the abandon notice must.
                let _ = stream.reset(CODE_ABANDONED);
                let notice = Prefix { index: ABANDONED, header_len: 0, ..prefix };
                let notice = self.start(notice, Bytes::new()).await?;
                self.pace.undelivered.add();
                self.end_stretch(notice.stream);
                Ok(())
            }
        }
    }

    /// Opens the stream of a stretch; sends its prefix and header.
    async fn start(&self, prefix: Prefix, header: Bytes) -> Result<OpenBlock, WriteError> {
        let mut stream = self.connection.open_uni().await?;
        let mut front = prefix.write();
        front.extend_from_slice(&header);
        stream.write_chunk(front.freeze()).await?;
        Ok(OpenBlock { prefix, stream, left: prefix.length() })
    }

    async fn write(&mut self, mut data: Bytes) -> Result<(), WriteError> {
        while !data.is_empty() {
            let Some(mut block) = self.open.take() else { return Ok(()) };
            if block.left == 0 {
                let next = Prefix { index: block.prefix.index + 1, header_len: 0, ..block.prefix };
                self.pace.undelivered.add();
                self.end_stretch(block.stream);
                block = self.start(next, Bytes::new()).await?;
            }
            let here = usize::try_from(block.left).unwrap_or(usize::MAX).min(data.len());
            block.stream.write_chunk(data.split_to(here)).await?;
            block.left -= here as u64;
            self.open = Some(block);
        }
        Ok(())
    }

    /// Ends the stream of a stretch that was added to `undelivered`.
    fn end_stretch(&self, mut stream: SendStream) {
        let _ = stream.finish();
        let pace = Arc::clone(&self.pace);
        tokio::spawn(async move {
            // Acknowledged, refused or lost with the lane: in each case the lane waits for it no longer.
            let _ = stream.stopped().await;
            pace.undelivered.remove();
        });
    }
}

impl QuicTx {
    pub(super) fn new(shared: Arc<Shared>, orders: mpsc::Sender<Order>) -> Self {
        Self { shared, orders, left: None }
    }

    fn order(&mut self, order: Order) -> Result<(), Error> {
        // When the lane ends, its feeding task ends and the queue closes. A direct query would wait: the engine
        // holds its lock while it sends.
        self.orders.blocking_send(order).map_err(|_| self.ended())
    }

    /// Returns the error of a lane that takes no more data.
    fn ended(&self) -> Error {
        match self.shared.connection.close_reason() {
            Some(reason) => self.shared.lane_error(&reason),
            None => Error::protocol(format!("QUIC lane to {}: a block was refused", self.shared.peer_addr)),
        }
    }
}

impl LaneTx for QuicTx {
    fn control(&mut self, frame: &[u8]) -> Result<(), Error> {
        if frame.len() > CONTROL_FRAME_BYTES_MAX {
            return Err(misuse("a control frame is too long"));
        }
        let mut bytes = BytesMut::with_capacity(4 + frame.len());
        bytes.extend_from_slice(&(frame.len() as u32).to_be_bytes());
        bytes.extend_from_slice(frame);
        // Bypasses the queue, so that a frame overtakes the block in progress.
        let runtime: &Handle = &self.shared.runtime;
        let written = runtime.block_on(async {
            let mut control = self.shared.control.lock().await;
            self.shared.pace.note_control();
            control.write_chunk(bytes.freeze()).await
        });
        written.map_err(|error| match error {
            WriteError::ConnectionLost(reason) => self.shared.lane_error(&reason),
            other => Error::protocol(format!("send to {}", self.shared.peer_addr)).caused_by(other),
        })
    }

    fn block_begin(&mut self, header: &[u8], data_len: u64) -> Result<(), Error> {
        if self.left.is_some() || header.len() > BLOCK_HEADER_BYTES_MAX || data_len > BLOCK_BYTES_MAX {
            return Err(misuse("a block is open, or its header or data are too long"));
        }
        self.left = Some(data_len);
        self.order(Order::Begin { header: Bytes::copy_from_slice(header), data_len })
    }

    fn piece_bytes(&self) -> usize {
        super::transport::piece_bytes(self.shared.pace.share().lanes())
    }

    fn block_data(&mut self, data: Bytes) -> Result<(), Error> {
        let length = data.len() as u64;
        match &mut self.left {
            Some(left) if *left >= length => *left -= length,
            _ => return Err(misuse("more data than the block has")),
        }
        if length == 0 { Ok(()) } else { self.order(Order::Data(data)) }
    }

    fn block_end(&mut self, trailer: &[u8]) -> Result<(), Error> {
        if self.left != Some(0) || trailer.len() > BLOCK_TRAILER_BYTES_MAX {
            return Err(misuse("the block is not complete, or its trailer is too long"));
        }
        self.left = None;
        self.shared.pace.undelivered.add();
        self.order(Order::End(Bytes::copy_from_slice(trailer)))
    }

    fn block_abandon(&mut self) -> Result<(), Error> {
        if self.left.take().is_none() {
            return Err(misuse("no block is open"));
        }
        self.order(Order::Abandon)
    }

    fn flush(&mut self) -> Result<(), Error> {
        // The queue empties without a call; only the end of the lane has to be reported.
        if self.orders.is_closed() { Err(self.ended()) } else { Ok(()) }
    }
}

/// Pieces of [`LaneTx::piece_bytes`] between the thread and the feeding task. Reason: the engine has
/// [`super::transport::send_window`] bytes ahead of them. The queue only lets the thread read while the task
/// writes, and each of 64 lanes has one.
const ORDERS: usize = 2;

/// Reset code of a stream that the sender abandoned.
const CODE_ABANDONED: VarInt = VarInt::from_u32(1);

fn misuse(what: &str) -> Error {
    Error::new(ErrorKind::Internal, Scope::Path, Phase::Transfer, format!("QUIC lane used wrongly: {what}"))
}
