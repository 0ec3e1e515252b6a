//! Receiving half of a QUIC lane.
//!
//! Tasks on the lane's runtime read streams as packets arrive. They pass batches to the thread that runs the sink,
//! through an inbox that holds at most [`INBOX_BYTES`], less where there are many lanes. When the sink is slow, the
//! inbox fills and streams are no longer read. The engine's flow-control windows fill and the peer stops: nothing
//! is buffered without limit.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use noq::{Connection, ReadError, RecvStream};
use sterna_proto::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;

use super::close::{CODE_FAULT, shortened};
use super::fault::is_orderly;
use super::shared::Shared;
use super::stretch::{Arrival, Blocks, StretchReading};
use super::transport::{INBOX_BYTES, INBOX_BYTES_MIN};
use crate::lane::{CONTROL_FRAME_BYTES_MAX, LaneRx, LaneSink};

/// Runs the sink of a lane.
pub(super) struct QuicRx {
    shared: Arc<Shared>,
    inbox: mpsc::Receiver<Parcel>,
}

/// Item that the tasks pass to the thread of the sink, with the room that it takes in the inbox.
struct Parcel {
    content: Content,
    _room: Option<OwnedSemaphorePermit>,
}

enum Content {
    Control(Vec<u8>),
    Block(Arrival),
    Fault(Error),
}

/// Inbox to which the tasks add what they read.
#[derive(Clone)]
pub(super) struct Inbox {
    parcels: mpsc::Sender<Parcel>,
    room: Arc<Semaphore>,
    /// Room for bytes of headers and trailers that are not complete yet.
    held: Arc<Semaphore>,
}

/// Error: the sink is gone, and no thread reads the inbox any more.
struct Gone;

impl Inbox {
    /// Adds an item to the inbox, once the inbox has room for its `bytes`.
    async fn put(&self, content: Content, bytes: usize) -> Result<(), Gone> {
        let room = if bytes == 0 { None } else { Some(self.reserve(bytes).await?) };
        self.put_in(content, room).await
    }

    /// Adds an item to the inbox, in the room that it has there.
    async fn put_in(&self, content: Content, room: Option<OwnedSemaphorePermit>) -> Result<(), Gone> {
        self.parcels.send(Parcel { content, _room: room }).await.map_err(|_| Gone)
    }

    /// Waits for room for so many bytes, at most the size of the smallest inbox: more would never fit.
    async fn reserve(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Gone> {
        let wanted = u32::try_from(bytes.min(INBOX_BYTES_MIN)).unwrap_or(u32::MAX);
        Arc::clone(&self.room).acquire_many_owned(wanted).await.map_err(|_| Gone)
    }

    /// Reserves room for bytes that wait for the end of their header or trailer. Limited, because the peer chooses
    /// how many.
    fn hold(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Error> {
        let wanted = u32::try_from(bytes).unwrap_or(u32::MAX);
        Arc::clone(&self.held)
            .try_acquire_many_owned(wanted)
            .map_err(|_| Error::protocol("too many stretches have a header or a trailer that does not end"))
    }
}

/// Creates the receiving half, the inbox that [`pump`] fills for it, and the room of the inbox.
pub(super) fn receiver(shared: Arc<Shared>) -> (QuicRx, Inbox, Room) {
    let (sender, inbox) = mpsc::channel(INBOX_PARCELS);
    let room = Arc::new(Semaphore::new(INBOX_BYTES));
    let size = Room { semaphore: Arc::clone(&room), bytes: INBOX_BYTES };
    (QuicRx { shared, inbox }, Inbox { parcels: sender, room, held: Arc::new(Semaphore::new(HELD_BYTES_MAX)) }, size)
}

/// Room of an inbox.
pub(super) struct Room {
    semaphore: Arc<Semaphore>,
    bytes: usize,
}

impl Room {
    /// Makes the room larger; or smaller, as far as it is free now.
    pub(super) fn resize(&mut self, bytes: usize) {
        match bytes.checked_sub(self.bytes) {
            Some(more) => {
                self.semaphore.add_permits(more);
                self.bytes = bytes;
            }
            None => self.bytes -= self.semaphore.forget_permits(self.bytes - bytes),
        }
    }
}

impl LaneRx for QuicRx {
    fn run(mut self: Box<Self>, sink: &mut dyn LaneSink) -> Result<(), Error> {
        let mut blocks = Blocks::default();
        // Blocks that arrived before the frame that the sink needs first: streams overtake each other when packets
        // are lost. They keep their room in the inbox, which limits them.
        let mut early = VecDeque::new();
        while let Some(parcel) = self.inbox.blocking_recv() {
            let delivered = match parcel.content {
                Content::Block(_) if sink.awaits_control() => {
                    early.push_back(parcel);
                    Ok(())
                }
                Content::Block(arrival) => blocks.handle(arrival, sink),
                Content::Control(frame) => sink.control(&frame).and_then(|()| {
                    if sink.awaits_control() {
                        return Ok(());
                    }
                    early.drain(..).try_for_each(|parcel| match parcel.content {
                        Content::Block(arrival) => blocks.handle(arrival, sink),
                        _ => Ok(()),
                    })
                }),
                Content::Fault(error) => Err(error),
            };
            if let Err(error) = delivered {
                self.shared.close(CODE_FAULT, shortened(error.text()));
                return Err(error);
            }
        }
        match self.shared.connection.close_reason() {
            Some(reason) if !is_orderly(&reason) => Err(self.shared.lane_error(&reason)),
            _ => Ok(()),
        }
    }
}

/// Reads everything that the peer sends, until the lane ends and the last data is in the inbox.
///
/// Started with the lane on its runtime; woken by the engine; a turn is one stream accepted or one ended.
pub(super) async fn pump(connection: Connection, control: RecvStream, inbox: Inbox) {
    let mut streams = JoinSet::new();
    streams.spawn(read_control(control, inbox.clone()));
    loop {
        tokio::select! {
            accepted = connection.accept_uni() => match accepted {
                Ok(stream) => { streams.spawn(read_stretch(stream, inbox.clone())); }
                Err(_) => break,
            },
            Some(_) = streams.join_next() => {}
            () = inbox.parcels.closed() => break,
        }
    }
    // Data that arrived before the end is still delivered; the tasks end with the connection.
    while streams.join_next().await.is_some() {}
}

async fn read_control(mut stream: RecvStream, inbox: Inbox) {
    // The first frame takes no room: blocks that wait for it may have taken all.
    let mut first = true;
    loop {
        let mut length = [0; 4];
        if stream.read_exact(&mut length).await.is_err() {
            // The stream ended in order, or with the connection. The sink's thread looks up the reason of the
            // connection.
            return;
        }
        let length = u32::from_be_bytes(length) as usize;
        if length > CONTROL_FRAME_BYTES_MAX {
            let text = format!("a control frame of {length} bytes; at most {CONTROL_FRAME_BYTES_MAX} are taken");
            let _ = inbox.put(Content::Fault(Error::protocol(text)), 0).await;
            return;
        }
        let mut frame = vec![0; length];
        let room = if std::mem::take(&mut first) { 0 } else { length };
        if stream.read_exact(&mut frame).await.is_err() || inbox.put(Content::Control(frame), room).await.is_err() {
            return;
        }
    }
}

/// Reason why the reading of a stretch ended early.
enum StretchEnd {
    /// The lane ended, the block was abandoned, or the sink is gone.
    Over,
    /// The peer broke the protocol.
    Fault(Error),
}

impl From<Gone> for StretchEnd {
    fn from(_: Gone) -> Self {
        Self::Over
    }
}

impl From<ReadError> for StretchEnd {
    fn from(_: ReadError) -> Self {
        Self::Over
    }
}

impl From<Error> for StretchEnd {
    fn from(error: Error) -> Self {
        Self::Fault(error)
    }
}

async fn read_stretch(stream: RecvStream, inbox: Inbox) {
    if let Err(StretchEnd::Fault(error)) = receive_stretch(stream, &inbox).await {
        let _ = inbox.put(Content::Fault(error), 0).await;
    }
}

/// Reads one stretch, in order. Data behind a lost packet waits in the engine for the retransmission; other
/// stretches do not wait.
///
/// Data that was read from the engine gives the peer credit for more. So a stretch reads at most one packet before
/// it has room in the inbox. Otherwise, with a slow sink, each of a thousand stretches would hold a batch that no
/// window counts.
async fn receive_stretch(mut stream: RecvStream, inbox: &Inbox) -> Result<(), StretchEnd> {
    let mut reading = StretchReading::default();
    let mut known = None;
    let mut held: Option<OwnedSemaphorePermit> = None;
    let mut pieces = Vec::new();
    while let Some(chunk) = stream.read_chunk(CHUNK_BYTES).await? {
        let read = reading.take(chunk, &mut pieces)?;
        let mut room = inbox.reserve(BATCH_BYTES).await?;
        read_batch(&mut stream, &mut reading, &mut pieces, read).await?;
        if let Some((prefix, header)) = reading.take_front() {
            known = Some(prefix);
            let taken = room.split(header.len().min(room.num_permits()));
            inbox.put_in(Content::Block(Arrival::Front(prefix, header)), taken).await?;
        }
        drop(held.take());
        match reading.held_bytes() {
            0 => {}
            bytes => held = Some(inbox.hold(bytes)?),
        }
        if let (Some(prefix), false) = (known, pieces.is_empty()) {
            let bytes: usize = pieces.iter().map(|(_, data): &(u64, Bytes)| data.len()).sum();
            let rest = room.num_permits();
            drop(room.split(rest.saturating_sub(bytes)));
            let data = Arrival::Data(prefix.block, std::mem::take(&mut pieces));
            inbox.put_in(Content::Block(data), Some(room)).await?;
        }
    }
    let trailer = reading.finish()?;
    let bytes = trailer.len();
    let Some(prefix) = known else { return Ok(()) };
    Ok(inbox.put(Content::Block(Arrival::End(prefix, trailer)), bytes).await?)
}

/// Reads all data that arrives within [`GATHER`], so that the batch reaches up to [`BATCH_BYTES`]. `bytes` of it
/// were read before.
async fn read_batch(
    stream: &mut RecvStream,
    rest: &mut StretchReading,
    pieces: &mut Vec<(u64, Bytes)>,
    mut bytes: usize,
) -> Result<(), StretchEnd> {
    let mut gathered = false;
    while bytes < BATCH_BYTES {
        let next = poll_fn(|cx| {
            Poll::Ready(match pin!(stream.read_chunk(BATCH_BYTES - bytes)).poll(cx) {
                Poll::Ready(read) => Some(read),
                Poll::Pending => None,
            })
        });
        match next.await {
            // Each parcel wakes the thread of the sink: a thousand times a second is enough.
            None if !gathered && bytes < GATHER_BYTES => {
                tokio::time::sleep(GATHER).await;
                gathered = true;
            }
            Some(Ok(Some(chunk))) => bytes += rest.take(chunk, pieces)?,
            // The end of the stream is read once more, by the caller.
            None | Some(Ok(None)) => break,
            Some(Err(error)) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Most parcels in the inbox; each is at least one wake-up of the sink's thread.
const INBOX_PARCELS: usize = 256;

/// Most bytes of incomplete headers and trailers. Reason: 32 stretches that have lost their first packet.
const HELD_BYTES_MAX: usize = 32 << 20;

/// Time that a parcel smaller than [`GATHER_BYTES`] waits for more data; timers are no finer.
const GATHER: Duration = Duration::from_millis(1);

/// Size from which a parcel leaves at once, in bytes. Reason: compared with so many bytes, a wake-up of the sink's
/// thread costs nothing.
const GATHER_BYTES: usize = 128 << 10;

/// Most data in one parcel, so that the sink starts before a whole block has arrived. The smallest inbox has room
/// for one.
const BATCH_BYTES: usize = INBOX_BYTES_MIN;

/// Most data that a stretch reads before it has room. Reason: the engine returns the data of one packet, which is
/// no more.
const CHUNK_BYTES: usize = 16 << 10;
