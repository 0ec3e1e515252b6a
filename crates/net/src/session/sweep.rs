//! Action on a source after it has arrived.
//!
//! Acts only on a file whose outcome is *done*: it is verified and durable at the receiver, which reports the BLAKE3
//! of its file. Refuses to trust that report: compares it with the data that this end has read.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use parking_lot::Mutex;
use sterna_proto::session::FileId;
use sterna_proto::{
    BlockDigest, BlockHasher, BlockMap, Checks, EntryKind, Error, ErrorKind, FileDigester, FileDigests, FileEntry,
    Phase, Retry, Scope,
};

use super::READ_BYTES;
use crate::source::{Extent, FileReader, OfferedFile, SourceDisposition};

/// Maximum of arrived files in the queue. Reason: about 500 bytes each. The thread that adds one more waits, as for
/// any other deletion.
const ARRIVED_MAX: usize = 1024;

/// Digests of the data that this session has read of one file.
#[derive(Debug, Default)]
pub(super) struct SentDigests {
    /// BLAKE3 of the file, if the file was read as a whole.
    whole: Option<[u8; 32]>,
    /// Chaining values of blocks, by index.
    blocks: BTreeMap<u64, [u8; 32]>,
}

/// File that the receiver has reported as done.
pub(super) struct Arrived {
    pub(super) file: FileId,
    pub(super) origin: Arc<dyn OfferedFile>,
    pub(super) entry: FileEntry,
    /// Digests that the receiver reports.
    pub(super) digests: FileDigests,
    sent: SentDigests,
}

/// Deletes or moves sources that have arrived, on a separate thread. That thread also reads the blocks that an
/// earlier run has sent.
#[derive(Debug)]
pub(super) struct Sweeper {
    disposition: SourceDisposition,
    sent: Mutex<HashMap<FileId, SentDigests>>,
    queue: SyncSender<Arrived>,
    /// Number of files in the queue or in progress.
    waiting: AtomicUsize,
    is_stopped: AtomicBool,
}

impl Sweeper {
    /// Starts the thread, which passes each queued file to `sweep`. It ends with this value, or when `sweep` returns
    /// false. Errors: the host cannot start a thread.
    pub(super) fn start(
        disposition: SourceDisposition,
        sweep: impl Fn(Arrived) -> bool + Send + 'static,
    ) -> Result<Self, Error> {
        let (queue, arrived) = sync_channel(ARRIVED_MAX);
        let spawned = thread::Builder::new().name("sweep".to_owned()).spawn(move || arrived.into_iter().all(sweep));
        spawned.map_err(|e| crate::no_thread("start the thread that takes sources away", e))?;
        Ok(Self {
            disposition,
            sent: Mutex::default(),
            queue,
            waiting: AtomicUsize::new(0),
            is_stopped: AtomicBool::new(false),
        })
    }

    /// Records the chaining value of a block that was read.
    pub(super) fn record_block(&self, file: FileId, index: u64, chaining_value: [u8; 32]) {
        self.sent.lock().entry(file).or_default().blocks.insert(index, chaining_value);
    }

    /// Records the BLAKE3 of a file that was read as a whole.
    pub(super) fn record_whole(&self, file: FileId, blake3: [u8; 32]) {
        self.sent.lock().entry(file).or_default().whole = Some(blake3);
    }

    /// Drops the records of a file with any other outcome.
    pub(super) fn forget(&self, file: FileId) {
        self.sent.lock().remove(&file);
    }

    /// Queues a file that is done. Waits while the queue is full.
    pub(super) fn push(&self, file: FileId, origin: Arc<dyn OfferedFile>, entry: FileEntry, digests: FileDigests) {
        let sent = self.sent.lock().remove(&file).unwrap_or_default();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        // The thread ends later than this queue.
        let _ = self.queue.send(Arrived { file, origin, entry, digests, sent });
    }

    /// Counts a queued file as finished.
    pub(super) fn handle_swept(&self) {
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// True if no file is queued or in progress.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) == 0
    }

    /// Stops all further reads. Files that would have to be read remain at their place.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Compares the digest from the receiver with the data that this end has read. Blocks from earlier sessions are
    /// read now.
    ///
    /// Errors: `Corrupt` if the digests differ; the file cannot be read, has changed, or the copy was stopped.
    pub(super) fn compare(&self, arrived: &Arrived) -> Result<(), Error> {
        if arrived.entry.kind != EntryKind::File {
            return Ok(());
        }
        let origin = &arrived.origin;
        if arrived.entry.is_growing() {
            return Err(Error::protocol(format!(
                "the peer reports {origin} as done, and it grows: it stays where it is"
            )));
        }
        let ours = match arrived.sent.whole {
            Some(blake3) => blake3,
            None => self.digest_of_blocks(arrived)?,
        };
        if ours == arrived.digests.blake3 {
            return Ok(());
        }
        let short = |blake3: [u8; 32]| blake3[..4].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let text = format!(
            "verify {}: the peer reports BLAKE3 {}…, and {}… was read here: the destination holds other bytes; the \
             source {origin} stays where it is",
            arrived.entry.path,
            short(arrived.digests.blake3),
            short(ours)
        );
        Err(Error::new(ErrorKind::Corrupt, Scope::Destination, Phase::Verify, text).retry(Retry::After))
    }

    fn digest_of_blocks(&self, arrived: &Arrived) -> Result<[u8; 32], Error> {
        let blocks = arrived.entry.blocks();
        let mut file = FileDigester::new(blocks);
        let mut source = None;
        let mut buffer = vec![0; READ_BYTES];
        while file.next_index() < blocks.count() {
            let index = file.next_index();
            let chaining_value = match arrived.sent.blocks.get(&index) {
                Some(chaining_value) => *chaining_value,
                None if self.is_stopped.load(Ordering::Relaxed) => {
                    let text = format!(
                        "{} has arrived and stays where it is: the copy was stopped before it was compared",
                        arrived.origin
                    );
                    return Err(Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Verify, text));
                }
                None => {
                    let open = match source.take() {
                        Some(open) => open,
                        None => arrived.origin.open(None, Extent::Whole)?,
                    };
                    read_block(&mut **source.insert(open), &blocks, index, &mut buffer)?
                }
            };
            file.push(&BlockDigest { chaining_value, adler32: None, crc32c: None });
        }
        // This check follows the last read. Blocks of this session were checked against the entry when they were
        // sent.
        source.map_or(Ok(()), |source| source.check_unchanged(&arrived.entry))?;
        Ok(file.finish().blake3)
    }

    /// Deletes or moves the source of a file that is done. Errors: the source remains; the error gives the reason.
    pub(super) fn sweep(&self, origin: &dyn OfferedFile, entry: &FileEntry) -> Result<(), Error> {
        match entry.kind {
            EntryKind::File => origin.settle(&self.disposition, entry),
            EntryKind::Directory => Ok(()),
        }
    }
}

/// Reads a block and returns its chaining value.
fn read_block(
    source: &mut dyn FileReader,
    blocks: &BlockMap,
    index: u64,
    buffer: &mut [u8],
) -> Result<[u8; 32], Error> {
    let mut hasher = BlockHasher::new(blocks, index, Checks::NONE);
    while hasher.left_bytes() > 0 {
        let at = blocks.offset(index) + blocks.length(index) - hasher.left_bytes();
        let piece = &mut buffer[..READ_BYTES.min(hasher.left_bytes() as usize)];
        source.read_at(at, piece)?;
        hasher.update(piece);
    }
    Ok(hasher.finish().chaining_value)
}
