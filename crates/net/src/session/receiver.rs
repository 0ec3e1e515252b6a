//! The receiving end: looks files up, writes and verifies blocks, publishes files.
//!
//! Threads beside those of the lanes, all ended by the session: one looks files up ahead of their blocks, some publish
//! (they wait for the disk, so that lanes do not), one makes journals durable about once a second.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver as Jobs, Sender as JobQueue, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use sterna_proto::session::{
    ActiveFile, BlockClaim, BlockHeader, BlockTask, FileId, Frame, LaneId, Overwrite, PrepareOutcome, RecvEvent,
    RecvSession, corrupt_block,
};
use sterna_proto::{Checks, Digest, EntryKind, Error, ErrorKind, FileDigests, FileEntry, RangeSet, RelPath};

use super::writer::BlockWriter;
use super::{AskedNames, BlockSink, End, Observer, Progress, SessionEvent, SettledPaths, Work, lock};
use crate::disk::{Destination, IncomingFile, Inspected, PackedFile, Prepared, Terms};
use crate::lane::LaneTx;

/// How often what has arrived is made durable. Reason: at most this much of a transfer is sent again after a power cut.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);

/// Threads that publish. Reason: publishing waits for the disk; two overlap that with the bookkeeping of the next.
const PUBLISHERS: usize = 2;

/// Packed blocks that may wait to be published. Reason: bounds memory at 8 x 1 MiB; past that the lanes wait.
const WAITING_PACKS_MAX: usize = 8;

/// How long a file that another session holds is waited for. Reason: a client that was killed and started again finds its own
/// former session, whose QUIC lanes count as deserted after 12 s.
const BUSY_PATIENCE: Duration = Duration::from_secs(15);

/// How often a file that another session holds is tried again.
const BUSY_NAP: Duration = Duration::from_millis(100);

/// What is called with a destination that another session holds.
pub type OnBusy = Box<dyn Fn(&Destination, &RelPath) + Send + Sync>;

/// How a receiver treats what comes.
pub struct ReceiverOptions {
    /// Where files go.
    pub destination: Destination,
    /// What to do when they exist. With `expect`, a file that looks up to date is copied again: only its bytes can tell.
    pub overwrite: Overwrite,
    /// Digests wanted beside BLAKE3.
    pub checks: Checks,
    /// The digest that the (one) file must have.
    pub expect: Option<Digest>,
    /// Nothing is written.
    pub dry_run: bool,
    /// How long the session outlives its last lane.
    pub linger: Duration,
    /// This end is the client: it leaves as soon as it has told all.
    pub leaves_first: bool,
    /// First names that entries may have; another one ends the session before anything of it is looked up.
    pub asked: AskedNames,
    /// Files that count as up to date: an earlier session of the same copy has settled them.
    pub settled: Arc<SettledPaths>,
    /// Called with a destination path that another session holds, so that an abandoned one can be ended.
    pub on_busy: OnBusy,
}

/// What is known of a file's place on disk.
struct Slot {
    entry: FileEntry,
    /// `None` until the storage was asked; then the file that takes blocks, if it takes any.
    prepared: Mutex<Option<Option<Arc<IncomingFile>>>>,
}

enum Job {
    File(FileId),
    Packed { files: Vec<(FileId, FileEntry, [u8; 32])>, data: Vec<u8> },
}

/// The receiving end of a session.
pub struct Receiver {
    session: Mutex<RecvSession>,
    wake: Condvar,
    options: ReceiverOptions,
    slots: Mutex<HashMap<FileId, Arc<Slot>>>,
    prepare: Mutex<Option<JobQueue<FileId>>>,
    publish: Mutex<Option<JobQueue<Job>>>,
    /// Packed blocks that wait to be published; lanes wait while there are too many.
    packs: Mutex<usize>,
    pack_published: Condvar,
    checkpointer: Mutex<Option<thread::JoinHandle<()>>>,
    observer: Arc<dyn Observer>,
}

impl Receiver {
    /// A receiver; starts its threads.
    pub fn start(options: ReceiverOptions, observer: Arc<dyn Observer>) -> Result<Arc<Self>, Error> {
        let (prepare, to_prepare) = channel();
        let (publish, to_publish) = channel();
        let mut options = options;
        if options.expect.is_some() && options.overwrite == Overwrite::IfChanged {
            options.overwrite = Overwrite::Always;
        }
        let mut session = RecvSession::new(options.linger);
        if options.leaves_first {
            session.leave_first();
        }
        let receiver = Arc::new(Self {
            session: Mutex::new(session),
            wake: Condvar::new(),
            options,
            slots: Mutex::new(HashMap::new()),
            prepare: Mutex::new(Some(prepare)),
            publish: Mutex::new(Some(publish)),
            packs: Mutex::new(0),
            pack_published: Condvar::new(),
            checkpointer: Mutex::new(None),
            observer,
        });
        // The threads that did start end with the queues.
        receiver.start_threads(to_prepare, to_publish).inspect_err(|_| receiver.drop_queues())?;
        Ok(receiver)
    }

    fn start_threads(self: &Arc<Self>, to_prepare: Jobs<FileId>, to_publish: Jobs<Job>) -> Result<(), Error> {
        let to_publish = Arc::new(Mutex::new(to_publish));
        for _ in 0..PUBLISHERS {
            let (receiver, jobs) = (Arc::clone(self), Arc::clone(&to_publish));
            spawn("publish", move || receiver.run_publisher(&jobs))?;
        }
        let preparer = Arc::clone(self);
        spawn("prepare", move || preparer.run_preparer(&to_prepare))?;
        let checkpointer = Arc::clone(self);
        *lock(&self.checkpointer) = Some(spawn("checkpoint", move || checkpointer.run_checkpoints())?);
        Ok(())
    }

    /// Ends the threads that wait for work of this session.
    fn drop_queues(&self) {
        lock(&self.prepare).take();
        lock(&self.publish).take();
    }

    /// Looks files up in the order of the manifest; ends when the session has.
    fn run_preparer(&self, files: &Jobs<FileId>) {
        while let Ok(file) = files.recv() {
            let slot = lock(&self.slots).get(&file).cloned();
            if let Some(slot) = slot {
                self.prepared(file, &slot);
            }
        }
    }

    /// Publishes files and packed blocks; ends when the session has.
    fn run_publisher(&self, jobs: &Mutex<Jobs<Job>>) {
        loop {
            let job = lock(jobs).recv();
            match job {
                Ok(Job::File(file)) => self.publish_file(file),
                Ok(Job::Packed { files, data }) => {
                    self.publish_packed(files, &data);
                    *lock(&self.packs) -= 1;
                    self.pack_published.notify_all();
                }
                Err(_) => return,
            }
            self.after_change();
        }
    }

    /// Makes what has arrived durable about once a second; ends when the session has, with a last turn.
    fn run_checkpoints(&self) {
        loop {
            let over = self.is_over();
            self.checkpoint();
            if over {
                self.finish_directories();
                self.drop_queues();
                lock(&self.slots).clear();
                return;
            }
            let until = Instant::now() + CHECKPOINT_INTERVAL;
            while Instant::now() < until && !self.is_over() {
                self.wait_for_work(CHECKPOINT_INTERVAL / 4);
            }
        }
    }

    /// The file that takes the blocks of `id`, looked up now if that has not happened yet; `None` when it takes none.
    fn prepared(&self, id: FileId, slot: &Slot) -> Option<Arc<IncomingFile>> {
        let mut prepared = lock(&slot.prepared);
        if let Some(known) = &*prepared {
            return known.clone();
        }
        let (incoming, outcome) = self.look_up(&slot.entry);
        *prepared = Some(incoming.clone());
        if let PrepareOutcome::Ready { notice: Some(text), .. } = &outcome {
            self.observer.session_event(SessionEvent::Notice(text.clone()));
        }
        let mut session = lock(&self.session);
        if !matches!(outcome, PrepareOutcome::Ready { .. }) {
            self.finish_before_last(&session, 1);
        }
        session.handle_prepared(id, outcome);
        drop(session);
        drop(prepared);
        self.after_change();
        incoming
    }

    /// The slot of a file; `None` when it has settled, or the session is over and has dropped its slots.
    fn slot(&self, file: FileId, entry: &FileEntry) -> Option<Arc<Slot>> {
        // Both locks: a slot is made only while its file is open, and its settling, which drops it, comes later.
        let mut session = lock(&self.session);
        if !session.is_open(file) || session.is_over() {
            return None;
        }
        // Whatever is to be done with a file needs its slot first.
        if let Err(error) = self.options.asked.check(&entry.path) {
            session.abort(error);
            return None;
        }
        let mut slots = lock(&self.slots);
        let slot =
            slots.entry(file).or_insert_with(|| Arc::new(Slot { entry: entry.clone(), prepared: Mutex::new(None) }));
        Some(Arc::clone(slot))
    }

    /// Makes everything that has arrived durable now.
    pub fn checkpoint(&self) {
        let slots: Vec<(FileId, Arc<Slot>)> =
            lock(&self.slots).iter().map(|(id, slot)| (*id, Arc::clone(slot))).collect();
        for (id, slot) in slots {
            let Some(incoming) = lock(&slot.prepared).clone().flatten() else { continue };
            if !lock(&self.session).is_receiving(id) {
                continue;
            }
            if let Err(error) = incoming.checkpoint() {
                lock(&self.session).fail(id, error);
                self.after_change();
            }
        }
    }

    /// Waits until the last journals are durable; called when the session is over.
    pub fn join(&self) {
        let checkpointer = lock(&self.checkpointer).take();
        // A panic there has been reported by its thread.
        checkpointer.map(|thread| thread.join());
    }

    /// Whether this receiver writes `path` beneath the root of `destination`, for another session that wants it.
    pub fn holds(&self, destination: &Destination, path: &RelPath) -> bool {
        let ours = &self.options.destination;
        if !ours.root().is_same(destination.root()) {
            return false;
        }
        let slots: Vec<Arc<Slot>> = lock(&self.slots).values().cloned().collect();
        slots.iter().any(|slot| ours.place(&slot.entry.path).is_ok_and(|placed| placed == *path))
    }

    fn look_up(&self, entry: &FileEntry) -> (Option<Arc<IncomingFile>>, PrepareOutcome) {
        let ReceiverOptions { destination, overwrite, dry_run, .. } = &self.options;
        // A directory gets its mode and time when its session ends, so a session that took over makes it again.
        if entry.kind == EntryKind::File && self.options.settled.contains(&entry.path) {
            return (None, PrepareOutcome::UpToDate);
        }
        if *dry_run {
            let nothing = FileDigests::of(b"", Checks::NONE);
            return match destination.inspect(entry, *overwrite) {
                Ok(Inspected::UpToDate) => (None, PrepareOutcome::UpToDate),
                Ok(Inspected::Wanted) => (None, PrepareOutcome::Complete(nothing)),
                Err(error) => (None, PrepareOutcome::Failed(error)),
            };
        }
        match self.prepare_when_free(entry) {
            Ok(Prepared::UpToDate) => (None, PrepareOutcome::UpToDate),
            Ok(Prepared::Directory) => (None, PrepareOutcome::Complete(FileDigests::of(b"", Checks::NONE))),
            Ok(Prepared::Packed) => (None, PrepareOutcome::Ready { have: RangeSet::default(), notice: None }),
            Ok(Prepared::Incoming(incoming)) => {
                let outcome =
                    PrepareOutcome::Ready { have: incoming.have(), notice: incoming.restarted().map(str::to_owned) };
                (Some(Arc::from(incoming)), outcome)
            }
            Err(error) => (None, PrepareOutcome::Failed(error)),
        }
    }

    /// Looks a file up; while another session holds it, asks the agent to end that one if its client is gone, and
    /// tries again for [`BUSY_PATIENCE`].
    fn prepare_when_free(&self, entry: &FileEntry) -> Result<Prepared, Error> {
        let ReceiverOptions { destination, overwrite, checks, on_busy, .. } = &self.options;
        let until = Instant::now() + BUSY_PATIENCE;
        loop {
            let terms = Terms { overwrite: *overwrite, checks: *checks };
            match destination.prepare(entry, &terms) {
                Err(error) if error.kind == ErrorKind::Busy && Instant::now() < until && !self.is_over() => {
                    destination.place(&entry.path).iter().for_each(|path| on_busy(destination, path));
                    thread::sleep(BUSY_NAP);
                }
                outcome => return outcome,
            }
        }
    }

    /// Gives directories their mode and time when the `count` files that settle now are the last: the sender may leave as soon
    /// as it has heard of them. The lock of the session is held, so that no other thread settles files meanwhile.
    fn finish_before_last(&self, session: &RecvSession, count: usize) {
        if session.are_last(count) {
            self.finish_directories();
        }
    }

    fn finish_directories(&self) {
        if let Err(error) = self.options.destination.finish() {
            self.observer.session_event(SessionEvent::Notice(error.chain()));
        }
    }

    fn publish_file(&self, id: FileId) {
        let slot = lock(&self.slots).get(&id).cloned();
        let incoming = slot.and_then(|slot| lock(&slot.prepared).clone().flatten());
        let outcome = match incoming {
            Some(incoming) => incoming.publish(self.options.expect.as_slice()),
            None => Err(crate::internal("publish a file that was never looked up")),
        };
        let mut session = lock(&self.session);
        self.finish_before_last(&session, 1);
        session.handle_published(id, outcome);
    }

    fn publish_packed(&self, files: Vec<(FileId, FileEntry, [u8; 32])>, data: &[u8]) {
        let mut rest = data;
        let ReceiverOptions { destination, overwrite, checks, expect, .. } = &self.options;
        let mut batch = destination.packed(*overwrite, *checks);
        for (_, entry, blake3) in &files {
            let (data, tail) = rest.split_at(entry.size as usize);
            rest = tail;
            batch.add(PackedFile { entry, data, blake3: Some(*blake3), expected: expect.as_slice() });
        }
        let outcomes = batch.publish();
        let mut session = lock(&self.session);
        self.finish_before_last(&session, files.len());
        for ((id, _, _), outcome) in files.iter().zip(outcomes) {
            session.handle_published(*id, outcome);
        }
    }

    /// Carries out what the machine asks for, passes on what it says, and wakes the feeders.
    fn after_change(&self) {
        loop {
            let event = lock(&self.session).poll_event();
            let Some(event) = event else { break };
            match event {
                RecvEvent::Prepare { file, entry } => {
                    if self.slot(file, &entry).is_some() {
                        // A session that is over has no preparer, and needs none.
                        lock(&self.prepare).as_ref().map(|prepare| prepare.send(file));
                    }
                }
                RecvEvent::Discard { file } => {
                    let slot = lock(&self.slots).remove(&file);
                    if let Some(incoming) = slot.and_then(|slot| lock(&slot.prepared).clone().flatten()) {
                        // What is left is found and emptied when the file is next looked up.
                        let _ = incoming.discard();
                    }
                }
                RecvEvent::Publish { file } => self.queue(Job::File(file)),
                RecvEvent::Settled { file, entry, outcome } => {
                    lock(&self.slots).remove(&file);
                    self.observer.session_event(SessionEvent::Settled { entry, outcome });
                }
                RecvEvent::Unreadable(error) => self.observer.session_event(SessionEvent::Unreadable(error)),
                RecvEvent::Aborted(error) => self.observer.session_event(SessionEvent::Aborted(error)),
            }
        }
        self.wake.notify_all();
    }

    fn queue(&self, job: Job) {
        let publish = lock(&self.publish).clone();
        // Without publishers the session is over; the journal keeps what has come.
        publish.map(|publish| publish.send(job));
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<thread::JoinHandle<()>, Error> {
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(run);
    spawned.map_err(|e| crate::internal("start a thread of a session").caused_by(e))
}

impl End for Receiver {
    fn next_work(&self, lane: LaneId) -> Work {
        let mut session = lock(&self.session);
        match session.poll_frame(lane, Instant::now()) {
            Some(frame) => Work::Frame(frame),
            None if session.is_over() => Work::Over,
            None => Work::Idle,
        }
    }

    fn wait_for_work(&self, nap: Duration) {
        let session = lock(&self.session);
        // A poisoned lock only ends the nap early.
        let _ = self.wake.wait_timeout(session, nap);
    }

    fn send_block(&self, _lane: LaneId, _task: BlockTask, _tx: &mut dyn LaneTx) -> Result<(), Error> {
        Err(crate::internal("a receiver was asked to send a block"))
    }

    fn handle_frame(&self, frame: Frame) -> Result<(), Error> {
        let mut session = lock(&self.session);
        match frame {
            Frame::Messages { first, encoded } => session.handle_messages(first, &encoded)?,
            Frame::Acknowledge { next } => session.handle_acknowledgement(next)?,
            Frame::Welcome => {}
            Frame::Hello(_) | Frame::Refuse(_) => return Err(Error::protocol("a frame from the peer out of place")),
        }
        drop(session);
        self.after_change();
        Ok(())
    }

    fn lane_up(&self, lane: LaneId) {
        lock(&self.session).handle_lane_up(lane);
        self.wake.notify_all();
    }

    fn lane_down(&self, lane: LaneId) {
        lock(&self.session).handle_lane_down(lane, Instant::now());
        self.after_change();
    }

    fn block_sink(self: Arc<Self>, lane: LaneId) -> Box<dyn BlockSink> {
        Box::new(ReceiverLane { receiver: self, lane, open: HashMap::new() })
    }

    fn is_over(&self) -> bool {
        lock(&self.session).is_over()
    }

    fn tick(&self) {
        lock(&self.session).handle_timeout(Instant::now());
        self.after_change();
    }

    fn progress(&self) -> Progress {
        let session = lock(&self.session);
        let (files_known, bytes_known, manifest_complete) = session.offered();
        Progress {
            files_known,
            bytes_known,
            manifest_complete,
            bytes_done: session.arrived_bytes(),
            bytes_held: session.held_bytes(),
            blocks_again: session.failed_blocks(),
            lanes: session.lane_count(),
        }
    }

    fn active_files(&self, most: usize) -> Vec<ActiveFile> {
        lock(&self.session).active_files(most)
    }

    fn abort(&self, error: Error) {
        lock(&self.session).abort(error);
        self.after_change();
    }
}

/// A block that a lane is bringing.
enum OpenBlock {
    /// Read past.
    Discard,
    Single {
        writer: Box<BlockWriter>,
        entry: FileEntry,
        /// The disk refused it; the file has failed and the rest is read past.
        broken: bool,
    },
    Packed {
        /// Each with whether this lane may write it.
        files: Vec<(FileId, FileEntry, BlockClaim)>,
        data: Vec<u8>,
    },
}

/// The blocks that one lane is bringing.
struct ReceiverLane {
    receiver: Arc<Receiver>,
    lane: LaneId,
    open: HashMap<u64, OpenBlock>,
}

impl ReceiverLane {
    fn begin_single(&self, file: FileId, entry: FileEntry, index: u64, hole: bool) -> Result<OpenBlock, Error> {
        let receiver = &self.receiver;
        lock(&receiver.session).handle_entry(file, &entry)?;
        receiver.after_change();
        let slot = receiver.slot(file, &entry);
        let Some(incoming) = slot.and_then(|slot| receiver.prepared(file, &slot)) else {
            return Ok(OpenBlock::Discard);
        };
        if lock(&receiver.session).claim(self.lane, file, index) == BlockClaim::Discard {
            return Ok(OpenBlock::Discard);
        }
        let mut writer = BlockWriter::new(file, index, &entry.blocks(), receiver.options.checks, incoming);
        let mut broken = false;
        if hole && let Err(error) = writer.hole() {
            lock(&receiver.session).fail(file, error);
            receiver.after_change();
            broken = true;
        }
        Ok(OpenBlock::Single { writer: Box::new(writer), entry, broken })
    }

    fn begin_packed(&self, files: Vec<(FileId, FileEntry)>, data_len: u64) -> Result<OpenBlock, Error> {
        let receiver = &self.receiver;
        let mut claimed = Vec::with_capacity(files.len());
        for (file, entry) in files {
            lock(&receiver.session).handle_entry(file, &entry)?;
            receiver.after_change();
            let slot = receiver.slot(file, &entry);
            slot.and_then(|slot| receiver.prepared(file, &slot));
            let claim = lock(&receiver.session).claim(self.lane, file, 0);
            claimed.push((file, entry, claim));
        }
        Ok(OpenBlock::Packed { files: claimed, data: vec![0; data_len as usize] })
    }

    fn end_single(&self, writer: BlockWriter, entry: &FileEntry, trailer: &[u8]) -> Result<(), Error> {
        let (file, index) = (writer.file, writer.index);
        let incoming = Arc::clone(writer.incoming());
        let outcome = writer.finish().and_then(|digest| {
            if trailer != digest.chaining_value {
                return Ok(Err(corrupt_block(entry, index)));
            }
            incoming.record(index, digest).map(Ok)
        });
        let mut session = lock(&self.receiver.session);
        match outcome {
            Ok(verified) => {
                session.handle_block(self.lane, file, index, verified);
            }
            Err(error) => session.fail(file, error),
        }
        drop(session);
        self.receiver.after_change();
        Ok(())
    }

    fn end_packed(
        &self,
        files: Vec<(FileId, FileEntry, BlockClaim)>,
        data: Vec<u8>,
        trailer: &[u8],
    ) -> Result<(), Error> {
        let (digests, left) = trailer.as_chunks::<32>();
        if digests.len() != files.len() || !left.is_empty() {
            return Err(Error::protocol("packed block from the peer: digests do not match its files"));
        }
        let (mut verified, mut kept, mut offset) = (Vec::new(), Vec::new(), 0);
        let mut session = lock(&self.receiver.session);
        for ((file, entry, claim), digest) in files.into_iter().zip(digests) {
            let bytes = &data[offset..offset + entry.size as usize];
            offset += bytes.len();
            if claim == BlockClaim::Discard {
                continue;
            }
            let check = if blake3::hash(bytes).as_bytes() == digest { Ok(()) } else { Err(corrupt_block(&entry, 0)) };
            if session.handle_block(self.lane, file, 0, check) == BlockClaim::Take {
                kept.extend_from_slice(bytes);
                verified.push((file, entry, *digest));
            }
        }
        drop(session);
        if !verified.is_empty() {
            let mut packs = lock(&self.receiver.packs);
            while *packs >= WAITING_PACKS_MAX && !self.receiver.is_over() {
                packs = self
                    .receiver
                    .pack_published
                    .wait_timeout(packs, CHECKPOINT_INTERVAL)
                    .unwrap_or_else(|p| p.into_inner())
                    .0;
            }
            *packs += 1;
            drop(packs);
            self.receiver.queue(Job::Packed { files: verified, data: kept });
        }
        self.receiver.after_change();
        Ok(())
    }
}

impl BlockSink for ReceiverLane {
    fn begin(&mut self, block: u64, header: &[u8], data_len: u64) -> Result<(), Error> {
        let open = match BlockHeader::decode(header, data_len)? {
            BlockHeader::Single { file, entry, index, hole } => self.begin_single(file, entry, index, hole)?,
            BlockHeader::Packed { files } => self.begin_packed(files, data_len)?,
        };
        self.open.insert(block, open);
        Ok(())
    }

    fn data(&mut self, block: u64, offset: u64, data: &[u8]) -> Result<(), Error> {
        match self.open.get_mut(&block) {
            Some(OpenBlock::Single { writer, broken, .. }) if !*broken => {
                if let Err(error) = writer.write(offset, data) {
                    *broken = true;
                    lock(&self.receiver.session).fail(writer.file, error);
                    self.receiver.after_change();
                }
            }
            Some(OpenBlock::Packed { data: whole, .. }) => {
                let start = offset as usize;
                let place = whole.get_mut(start..start + data.len());
                place.ok_or_else(|| crate::internal("a lane gave data beyond its block"))?.copy_from_slice(data);
            }
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, block: u64, trailer: &[u8]) -> Result<(), Error> {
        match self.open.remove(&block) {
            Some(OpenBlock::Single { writer, entry, broken: false }) => self.end_single(*writer, &entry, trailer),
            Some(OpenBlock::Packed { files, data }) => self.end_packed(files, data, trailer),
            _ => Ok(()),
        }
    }

    fn abandoned(&mut self, block: u64) -> Result<(), Error> {
        let mut session = lock(&self.receiver.session);
        match self.open.remove(&block) {
            Some(OpenBlock::Single { writer, .. }) => {
                session.handle_block_abandoned(self.lane, writer.file, writer.index);
            }
            Some(OpenBlock::Packed { files, .. }) => {
                for (file, _, claim) in files {
                    if claim == BlockClaim::Take {
                        session.handle_block_abandoned(self.lane, file, 0);
                    }
                }
            }
            _ => {}
        }
        drop(session);
        self.receiver.after_change();
        Ok(())
    }
}
