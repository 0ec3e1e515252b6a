//! Action on a source after it has arrived.
//!
//! Acts only on a file whose outcome is *done*: it is verified and durable at the receiver, which reports the BLAKE3
//! of its file. Refuses to trust that report: compares it with the data that this end has read. Refuses any source
//! that is no longer the file that was sent.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread;

use sterna_proto::session::FileId;
use sterna_proto::{
    BlockDigest, BlockHasher, BlockMap, Checks, EntryKind, Error, ErrorKind, FileDigester, FileDigests, FileEntry,
    Phase, RelPath, Retry, Scope, Setting,
};

use super::follow::MARKER_ENDING;
use super::lock;
use super::origin::Origin;
use super::sender::{READ_BYTES, Sender};
use crate::disk::{Root, SourceFile};

/// Maximum of arrived files in the queue. Reason: about 500 bytes each. The thread that adds one more waits, as for
/// any other deletion.
const ARRIVED_MAX: usize = 1024;

/// Action on a source that has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Then {
    /// Delete the source.
    Delete,
    /// Move the source beneath this directory, with the path that it has beneath the destination.
    Move(PathBuf),
}

impl Then {
    /// Checks that the action is possible for the files beneath `roots`, before anything is sent.
    ///
    /// Errors: `Usage` if the directory does not exist, is on another file system, or lies within a source.
    pub fn check<'a>(&self, sources: impl IntoIterator<Item = &'a (Root, PathBuf)>) -> Result<(), Error> {
        let Self::Move(directory) = self else { return Ok(()) };
        let shown = directory.display();
        let usage = |text: String| Error::usage(&[Setting::Then], text);
        let looked = |error: std::io::Error| usage(format!("{shown}, where sources are to be moved")).caused_by(error);
        let real = directory.canonicalize().map_err(looked)?;
        if !real.is_dir() {
            return Err(usage(format!("{shown}, where sources are to be moved, is not a directory")));
        }
        let device = rustix::fs::stat(&real).map_err(|errno| looked(errno.into()))?.st_dev;
        for (root, path) in sources {
            let ours = rustix::fs::fstat(root.as_fd()).map_err(|errno| looked(errno.into()))?.st_dev;
            if ours != device {
                return Err(usage(format!(
                    "{shown}, where sources are to be moved, is on another file system than {}; name a directory on the same one",
                    path.display()
                )));
            }
            if path.is_dir() && path.canonicalize().is_ok_and(|source| real.starts_with(source)) {
                return Err(usage(format!(
                    "{shown}, where sources are to be moved, lies within {}: moved files would be sent again; name a directory outside",
                    path.display()
                )));
            }
        }
        Ok(())
    }
}

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
    pub(super) origin: Origin,
    pub(super) entry: FileEntry,
    /// Digests that the receiver reports.
    pub(super) digests: FileDigests,
    sent: SentDigests,
}

/// Deletes or moves sources that have arrived, on a separate thread. That thread also reads the blocks that an
/// earlier run has sent.
#[derive(Debug)]
pub(super) struct Sweeper {
    then: Then,
    sent: Mutex<HashMap<FileId, SentDigests>>,
    queue: SyncSender<Arrived>,
    /// Number of files in the queue or in progress.
    waiting: AtomicUsize,
    is_stopped: AtomicBool,
}

impl Sweeper {
    /// Starts the thread, which ends with `sender`. Errors: the host cannot start a thread.
    pub(super) fn start(then: Then, sender: &Arc<Sender>) -> Result<Self, Error> {
        let (queue, arrived) = sync_channel(ARRIVED_MAX);
        let sender = Arc::downgrade(sender);
        let spawned = thread::Builder::new().name("sweep".to_owned()).spawn(move || run(&sender, &arrived));
        spawned.map_err(|e| crate::internal("start the thread that takes sources away").caused_by(e))?;
        Ok(Self {
            then,
            sent: Mutex::default(),
            queue,
            waiting: AtomicUsize::new(0),
            is_stopped: AtomicBool::new(false),
        })
    }

    /// Records the chaining value of a block that was read.
    pub(super) fn record_block(&self, file: FileId, index: u64, chaining_value: [u8; 32]) {
        lock(&self.sent).entry(file).or_default().blocks.insert(index, chaining_value);
    }

    /// Records the BLAKE3 of a file that was read as a whole.
    pub(super) fn record_whole(&self, file: FileId, blake3: [u8; 32]) {
        lock(&self.sent).entry(file).or_default().whole = Some(blake3);
    }

    /// Drops the records of a file with any other outcome.
    pub(super) fn forget(&self, file: FileId) {
        lock(&self.sent).remove(&file);
    }

    /// Queues a file that is done. Waits while the queue is full.
    pub(super) fn push(&self, file: FileId, origin: Origin, entry: FileEntry, digests: FileDigests) {
        let sent = lock(&self.sent).remove(&file).unwrap_or_default();
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
        let (Origin::Disk { root, path }, EntryKind::File) = (&arrived.origin, arrived.entry.kind) else {
            return Ok(());
        };
        if arrived.entry.is_growing() {
            return Err(Error::protocol(format!(
                "the peer reports {path} as done, and it grows: it stays where it is"
            )));
        }
        let ours = match arrived.sent.whole {
            Some(blake3) => blake3,
            None => self.digest_of_blocks(root, path, arrived)?,
        };
        if ours == arrived.digests.blake3 {
            return Ok(());
        }
        let short = |blake3: [u8; 32]| blake3[..4].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let text = format!(
            "verify {}: the peer reports BLAKE3 {}…, and {}… was read here: the destination holds other bytes; the \
             source {path} stays where it is",
            arrived.entry.path,
            short(arrived.digests.blake3),
            short(ours)
        );
        Err(Error::new(ErrorKind::Corrupt, Scope::Destination, Phase::Verify, text).retry(Retry::After))
    }

    fn digest_of_blocks(&self, root: &Root, path: &RelPath, arrived: &Arrived) -> Result<[u8; 32], Error> {
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
                        "{path} has arrived and stays where it is: the copy was stopped before it was compared"
                    );
                    return Err(Error::new(ErrorKind::Cancelled, Scope::Client, Phase::Verify, text));
                }
                None => {
                    let open = match source.take() {
                        Some(open) => open,
                        None => root.open_source(path)?,
                    };
                    read_block(source.insert(open), &blocks, index, &mut buffer)?
                }
            };
            file.push(&BlockDigest { chaining_value, adler32: None, crc32c: None });
        }
        // This check follows the last read. Blocks of this session were checked against the entry when they were
        // sent.
        source.map_or(Ok(()), |source| source.check_unchanged(&arrived.entry))?;
        Ok(file.finish().blake3)
    }

    /// Deletes or moves the source of a file that is done. Also deletes its marker, if it may have one.
    ///
    /// Errors: the source remains; the error gives the reason.
    pub(super) fn sweep(&self, origin: &Origin, entry: &FileEntry, may_be_marked: bool) -> Result<(), Error> {
        let (Origin::Disk { root, path }, EntryKind::File) = (origin, entry.kind) else {
            return Ok(());
        };
        // A name that is too long for a marker has no marker.
        let marker = RelPath::new(&[path.as_bytes(), MARKER_ENDING].concat()).ok().filter(|_| may_be_marked);
        let marker = marker.and_then(|marker| root.look(&marker).ok().flatten().map(|look| (marker, look)));
        match marker {
            // Markers are never copied, so the data of this marker would be lost. The file must not be removed
            // without its marker.
            Some((marker, look)) if look.size > 0 => {
                let text = format!(
                    "{path} has arrived and stays where it is: its marker {marker} has {} bytes, which nobody has \
                     copied; empty or delete the marker",
                    look.size
                );
                return Err(Error::new(ErrorKind::Exists, Scope::Source, Phase::Finalise, text));
            }
            Some((marker, _)) => {
                // If the source differs from the file that was sent, it stays, and the marker belongs to the new
                // file.
                match root.same_source(path, entry) {
                    Err(error) if error.kind == ErrorKind::NotFound && self.then == Then::Delete => {}
                    found => drop(found?),
                }
                // The marker is deleted before its file: a remaining marker would end the next file with that name at
                // once.
                root.delete_marker(&marker)?;
            }
            // A marked file has ended, even if a process still has it open. Only a file without a marker is checked
            // for writers.
            None => root.refuse_written(path)?,
        }
        match &self.then {
            Then::Delete => root.delete_source(path, entry),
            Then::Move(directory) => {
                use std::os::unix::ffi::OsStrExt;
                let name = Path::new(std::ffi::OsStr::from_bytes(entry.path.as_bytes()));
                root.move_source(path, entry, &directory.join(name))
            }
        }
    }
}

fn run(sender: &Weak<Sender>, arrived: &Receiver<Arrived>) {
    for arrived in arrived {
        let Some(sender) = sender.upgrade() else { return };
        let name = arrived.entry.path.clone();
        if catch_unwind(AssertUnwindSafe(|| sender.sweep(arrived))).is_err() {
            sender.handle_sweep_panic(&name);
        }
    }
}

/// Reads a block and returns its chaining value.
fn read_block(source: &SourceFile, blocks: &BlockMap, index: u64, buffer: &mut [u8]) -> Result<[u8; 32], Error> {
    let mut hasher = BlockHasher::new(blocks, index, Checks::NONE);
    while hasher.left_bytes() > 0 {
        let at = blocks.offset(index) + blocks.length(index) - hasher.left_bytes();
        let piece = &mut buffer[..READ_BYTES.min(hasher.left_bytes() as usize)];
        source.read_at(at, piece)?;
        hasher.update(piece);
    }
    Ok(hasher.finish().chaining_value)
}
