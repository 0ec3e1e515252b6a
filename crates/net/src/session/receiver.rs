//! Receiving end of a session: looks files up, writes and verifies blocks, publishes files.
//!
//! Besides the lane threads, a receiver has these threads, which end with the session:
//! - one looks files up before their blocks arrive, and again if another session holds them;
//! - one rereads the data of earlier sessions;
//! - some publish files, because publishing waits for the disk and lanes must not;
//! - one makes journals durable about once a second.

mod durable;
mod options;
mod replicas;
mod tail;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver as Jobs, Sender as JobQueue, channel};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use sterna_proto::compress::Slab;
use sterna_proto::rate::RateContract;
use sterna_proto::session::{
    ActiveFile, BlockClaim, BlockData, BlockHeader, BlockTask, FileId, Frame, LaneId, Overwrite, PathNumber,
    PrepareOutcome, RecvEvent, RecvSession, corrupt_block,
};
use sterna_proto::{
    Checks, Counters, EntryKind, Error, ErrorKind, FileDigests, FileEntry, Phase, RangeSet, Retry, Scope,
};

use super::encode::Carried;
use super::holes::HoleCount;
use super::limits::{LimitMonitor, Role, Wait};
use super::recheck::recheck;
use super::silence::{SilenceDetector, close_aside};
use super::slabs::{BlockSlabs, Decoding};
use super::slot::{BUSY_PATIENCE, OpenCount, Slot, patience};
use super::writer::BlockWriter;
use super::{BlockSink, End, Observer, Progress, SessionEvent, Work};
use crate::descriptors;
use crate::lane::LaneTx;
use crate::sink::{DirectoryModes, Inspected, PackedFile, Place, Prepared, SinkFile, Terms};
use crate::wake::Wake;

/// Interval between checkpoints. Reason: after a power loss, at most this much of a transfer is sent again.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);

/// Number of threads that publish. Reason: publishing waits for the disk; two threads overlap that wait with the
/// bookkeeping of the next file.
const PUBLISHERS: usize = 2;

/// Maximum of packed blocks that wait for a publisher; above it, lanes wait. Reason: bounds memory to 8 x 1 MiB.
const WAITING_PACKS_MAX: usize = 8;

/// Maximum of large files that wait for a publisher before lanes begin another file. Reason: bounds descriptors, and
/// keeps the publishers busy.
const WAITING_FILES_MAX: usize = 32;

/// Maximum of large files that are looked up and have no block yet. Reason: each file holds two descriptors. The
/// sender learns early enough which data is present, and a lane that is ahead looks its files up itself.
const PREPARED_AHEAD_MAX: usize = 64;

/// Maximum of large files that a session keeps open. Reason: 10 Gbit/s over 660 ms keep 3,100 of the smallest large
/// files in transfer.
const INCOMING_FILES_MAX: usize = 4096;

/// Divisor of the descriptor limit of the process: the part that a session uses for open large files. Reason: each
/// file takes up to three descriptors. One session thus leaves more than half of all descriptors to small files,
/// lanes and other sessions.
const DESCRIPTORS_DIVISOR: usize = 8;

/// Interval between attempts to open a file that another session holds.
const BUSY_NAP: Duration = Duration::from_millis(100);

/// Wait for a file that another session holds, before the wait is reported. Reason: a client that ends takes about
/// this long to do so.
const BUSY_REPORTED_AFTER: Duration = Duration::from_secs(1);

/// Maximum of waiting files that are retried in one turn. Reason: bounds the duration of a turn.
const BUSY_A_TURN: usize = 64;

pub use self::options::{Expected, ReceiverOptions};
pub(super) use self::replicas::Judge;

enum Job {
    File(FileId),
    Discard(FileId),
    Packed {
        files: Vec<(FileId, FileEntry, [u8; 32])>,
        data: Vec<u8>,
    },
    /// Finishes the directories, after the last file.
    Directories(DirectoryModes),
}

/// Queues to the threads of a session. They are dropped when the session is over, which ends the threads.
struct Queues {
    /// Files to look up. `None`: a file was added to [`Receiver::later`].
    prepare: JobQueue<Option<FileId>>,
    recheck: JobQueue<FileId>,
    publish: JobQueue<Job>,
}

/// Number of jobs that wait for a publisher.
#[derive(Default)]
struct Waiting {
    files: usize,
    packs: usize,
}

impl Waiting {
    fn of(&mut self, job: &Job) -> &mut usize {
        match job {
            Job::File(_) | Job::Discard(_) | Job::Directories(_) => &mut self.files,
            Job::Packed { .. } => &mut self.packs,
        }
    }
}

/// Receiving end of a session.
pub struct Receiver {
    session: Mutex<RecvSession>,
    wake: Arc<Wake>,
    options: ReceiverOptions,
    slots: Mutex<HashMap<FileId, Arc<Slot>>>,
    queues: Mutex<Option<Queues>>,
    /// Files that the storage could not take yet. The preparer retries them.
    later: Mutex<VecDeque<FileId>>,
    /// True once the sender has received a notice that another session holds a file.
    has_reported_busy: AtomicBool,
    /// Large files that are open, and their maximum.
    open: OpenCount,
    open_max: usize,
    /// Jobs that wait for a publisher. Lanes wait while there are too many.
    waiting: Mutex<Waiting>,
    job_done: Condvar,
    checkpointer: Mutex<Option<thread::JoinHandle<()>>>,
    /// True once no file takes blocks any more. Set while `slots` is locked.
    has_ended: AtomicBool,
    holes: HoleCount,
    limits: Arc<LimitMonitor>,
    silence: Mutex<SilenceDetector>,
    carried: Carried,
    observer: Arc<dyn Observer>,
    /// Held while events are passed to the observer. The next holder can rely on the delivery of all earlier events.
    telling: Mutex<()>,
    /// Judge of a file that comes from several replicas.
    judge: OnceLock<Weak<dyn Judge>>,
}

impl Receiver {
    /// Starts a receiver with its threads.
    pub fn start(options: ReceiverOptions, observer: Arc<dyn Observer>) -> Result<Arc<Self>, Error> {
        let (prepare, to_prepare) = channel();
        let (recheck, to_recheck) = channel();
        let (publish, to_publish) = channel();
        let mut options = options;
        if options.expect != Expected::Nothing && options.overwrite == Overwrite::IfChanged {
            options.overwrite = Overwrite::Always;
        }
        let mut session = RecvSession::new(options.linger);
        if options.leaves_first {
            session.leave_first();
        }
        let wake = Arc::<Wake>::default();
        let receiver = Arc::new(Self {
            session: Mutex::new(session),
            wake: Arc::clone(&wake),
            options,
            slots: Mutex::new(HashMap::new()),
            queues: Mutex::new(Some(Queues { prepare, recheck, publish })),
            later: Mutex::default(),
            has_reported_busy: AtomicBool::new(false),
            open: OpenCount::default(),
            open_max: (descriptors::limit() / DESCRIPTORS_DIVISOR).clamp(1, INCOMING_FILES_MAX),
            waiting: Mutex::default(),
            job_done: Condvar::new(),
            checkpointer: Mutex::new(None),
            has_ended: AtomicBool::new(false),
            holes: HoleCount::default(),
            limits: LimitMonitor::start(Role::Receiver, &wake)?,
            silence: Mutex::default(),
            carried: Carried::default(),
            observer,
            telling: Mutex::default(),
            judge: OnceLock::new(),
        });
        // Dropping the queues ends the threads that did start.
        receiver.start_threads(to_prepare, to_recheck, to_publish).inspect_err(|_| receiver.drop_queues())?;
        Ok(receiver)
    }

    fn start_threads(
        self: &Arc<Self>,
        to_prepare: Jobs<Option<FileId>>,
        to_recheck: Jobs<FileId>,
        to_publish: Jobs<Job>,
    ) -> Result<(), Error> {
        let to_publish = Arc::new(Mutex::new(to_publish));
        for _ in 0..PUBLISHERS {
            let (receiver, jobs) = (Arc::clone(self), Arc::clone(&to_publish));
            spawn("publish", move || receiver.run_publisher(&jobs))?;
        }
        let preparer = Arc::clone(self);
        spawn("prepare", move || preparer.run_preparer(&to_prepare))?;
        let rechecker = Arc::clone(self);
        spawn("recheck", move || rechecker.run_rechecker(&to_recheck))?;
        let checkpointer = Arc::clone(self);
        *self.checkpointer.lock() = Some(spawn("checkpoint", move || checkpointer.run_checkpoints())?);
        Ok(())
    }

    /// Drops the queues, which ends the threads that wait for work of this session.
    fn drop_queues(&self) {
        self.queues.lock().take();
        self.wake.notify();
    }

    /// Looks files up in the order of the manifest, some of them before their blocks arrive. Retries files that the
    /// storage could not take. Ends with the session.
    fn run_preparer(&self, files: &Jobs<Option<FileId>>) {
        let ahead_max = PREPARED_AHEAD_MAX.min(self.open_max.div_ceil(2));
        let mut ahead: Vec<Weak<Slot>> = Vec::new();
        let mut again = Instant::now();
        loop {
            let seen = self.wake.seen();
            if self.queues.lock().is_none() {
                return;
            }
            ahead.retain(|slot| slot.upgrade().is_some_and(|slot| slot.waits_for_blocks()));
            let mut turn = Vec::new();
            if ahead.len() >= ahead_max {
                let retry = (!self.later.lock().is_empty()).then_some(again);
                self.wake.wait_to(seen, retry);
            } else if self.later.lock().is_empty() {
                turn.extend(files.recv().ok().flatten().map(|file| (file, false)));
            } else {
                turn.extend(files.recv_timeout(BUSY_NAP).ok().flatten().map(|file| (file, false)));
            }
            let now = Instant::now();
            if now >= again {
                let mut later = self.later.lock();
                let count = later.len().min(BUSY_A_TURN);
                turn.extend(later.drain(..count).map(|file| (file, true)));
                again = now + BUSY_NAP;
            }
            for (file, again) in turn {
                let slot = self.slots.lock().get(&file).cloned();
                if let Some(slot) = slot {
                    self.look_up(file, &slot, again);
                    ahead.push(Arc::downgrade(&slot));
                }
            }
        }
    }

    /// Rereads the data of earlier sessions. Ends with the session.
    fn run_rechecker(&self, files: &Jobs<FileId>) {
        while let Ok(file) = files.recv() {
            let slot = self.slots.lock().get(&file).cloned();
            let Some(incoming) = slot.and_then(|slot| slot.incoming()) else { continue };
            let is_moot = || self.is_over() || !self.session.lock().is_receiving(file);
            let Some(lost) = self.limits.storage_work(|| recheck(&*incoming, self.options.checks, is_moot)) else {
                continue;
            };
            let notice = (!lost.is_empty()).then(|| {
                let (lost, path) = (lost.len(), incoming.path());
                format!("{path}: blocks of an earlier session that were damaged on disk and are sent again: {lost}")
            });
            if let Some(text) = &notice {
                self.observer.session_event(SessionEvent::Notice(text.clone()));
            }
            self.session.lock().handle_rechecked(file, &lost, notice);
            self.after_change();
        }
    }

    /// Publishes or discards files, publishes packed blocks, and finishes directories after the last file. Ends with
    /// the session.
    fn run_publisher(&self, jobs: &Mutex<Jobs<Job>>) {
        loop {
            let job = jobs.lock().recv();
            let Ok(job) = job else { return };
            self.limits.storage_work(|| match &job {
                // The next session receives these small files again. One more batch would delay the end of this one.
                Job::Packed { .. } if self.has_ended.load(Ordering::Relaxed) => {}
                Job::File(file) => self.publish_file(*file),
                Job::Discard(file) => self.discard_file(*file),
                Job::Packed { files, data } => self.publish_packed(files, data),
                Job::Directories(modes) => self.finish_directories(*modes),
            });
            *self.waiting.lock().of(&job) -= 1;
            self.job_done.notify_all();
            self.after_change();
        }
    }

    /// Looks a file up in the storage, if that was not done yet. With `again`: also if the storage could not take the
    /// file before.
    fn look_up(&self, id: FileId, slot: &Slot, again: bool) {
        let mut asked = slot.asked.lock();
        if slot.is_found() || asked.is_some() && !again {
            return;
        }
        let (incoming, outcome) = match self.ask_storage(slot) {
            Ok(found) => found,
            Err(error) => match patience(&error, *asked, Instant::now(), self.open.others()) {
                Some(until) => {
                    *asked = Some(until);
                    drop(asked);
                    self.look_up_later(id);
                    let waited = BUSY_PATIENCE.saturating_sub(until.saturating_duration_since(Instant::now()));
                    self.postpone(id, &slot.entry, &error, waited);
                    return;
                }
                None => (None, PrepareOutcome::Failed(error)),
            },
        };
        slot.set_found(incoming, &self.open);
        if let PrepareOutcome::Ready { notice: Some(text), .. } = &outcome {
            self.observer.session_event(SessionEvent::Notice(text.clone()));
        }
        self.session.lock().handle_prepared(id, outcome);
        drop(asked);
        self.after_change();
    }

    /// Reports to the sender that a file has to wait, and calls `on_busy`, which ends an abandoned session that holds
    /// the file.
    fn postpone(&self, id: FileId, entry: &FileEntry, error: &Error, waited: Duration) {
        let mut notice = None;
        if error.kind == ErrorKind::Busy {
            self.options.sink.place_of(&entry.path).iter().for_each(|place| (self.options.on_busy)(place));
            // One notice is enough for any number of waiting files. There is none if the other session ends within
            // `BUSY_REPORTED_AFTER`.
            notice =
                (waited >= BUSY_REPORTED_AFTER && !self.has_reported_busy.swap(true, Ordering::Relaxed)).then(|| {
                    let them = match self.later.lock().len() {
                        0 | 1 => entry.path.to_string(),
                        files => format!("{} and {} more", entry.path, files - 1),
                    };
                    let patience = BUSY_PATIENCE.as_secs();
                    format!("{them}: held by another session; waiting up to {patience} s for it to end")
                });
        }
        self.session.lock().handle_busy(id, notice);
        self.after_change();
    }

    /// Records the entry that came with a block. Errors: it contradicts the recorded entry; the session has ended.
    fn handle_entry(&self, file: FileId, entry: &FileEntry) -> Result<(), Error> {
        let handled = self.session.lock().handle_entry(file, entry);
        self.after_change();
        handled
    }

    /// Returns the slot of a file; `None` if the file has settled, or if the session is over and has dropped its
    /// slots.
    fn slot(&self, file: FileId, entry: &FileEntry) -> Option<Arc<Slot>> {
        // Both locks are held: a slot is created only while its file is open. The file settles later, and that
        // removes the slot.
        let mut session = self.session.lock();
        if !session.is_open(file) || session.is_ending() {
            return None;
        }
        // These checks come first, because all work on a file needs its slot.
        if let Err(error) = self.options.asked.check(&entry.path).and_then(|()| self.options.expect.check(file, entry))
        {
            session.abort(error);
            return None;
        }
        let mut slots = self.slots.lock();
        if self.has_ended.load(Ordering::Relaxed) {
            return None;
        }
        Some(Arc::clone(slots.entry(file).or_insert_with(|| Arc::new(Slot::new(entry)))))
    }

    /// True if this receiver writes the file at `place`. Asked for another session that wants this file.
    pub fn holds(&self, place: &Place) -> bool {
        let slots: Vec<Arc<Slot>> = self.slots.lock().values().cloned().collect();
        // Another session holds the files that this receiver still waits for: only open files count.
        let mut open = slots.iter().filter(|slot| slot.incoming().is_some());
        open.any(|slot| self.options.sink.place_of(&slot.entry.path).is_ok_and(|ours| ours == *place))
    }

    /// Asks the storage about a file. Errors: the storage cannot take the file now, or never.
    fn ask_storage(&self, slot: &Slot) -> Result<(Option<Arc<dyn SinkFile>>, PrepareOutcome), Error> {
        let entry = &slot.entry;
        let ReceiverOptions { sink, dry_run, settled, .. } = &self.options;
        // A directory gets its mode and time at the end of its session, so a takeover session creates it again.
        if entry.kind == EntryKind::File && settled.contains(&entry.path) {
            sink.claim_settled(entry);
            return Ok((None, PrepareOutcome::UpToDate));
        }
        let nothing = FileDigests::of(b"", Checks::NONE);
        if *dry_run {
            return Ok(match sink.inspect(entry, self.options.overwrite)? {
                Inspected::UpToDate => (None, PrepareOutcome::UpToDate),
                Inspected::Wanted => (None, PrepareOutcome::Complete(nothing)),
            });
        }
        if !entry.is_packed() && self.open.others() >= self.open_max {
            let text = format!("write {}: {} files of this session are open already", entry.path, self.open_max);
            return Err(Error::new(ErrorKind::Limit, Scope::Destination, Phase::Prepare, text).retry(Retry::After));
        }
        Ok(match sink.prepare(entry, &self.terms())? {
            Prepared::UpToDate => (None, PrepareOutcome::UpToDate),
            Prepared::Directory => (None, PrepareOutcome::Complete(nothing)),
            Prepared::Packed(seen) => {
                slot.set_seen(seen);
                (None, PrepareOutcome::Ready { have: RangeSet::default(), notice: None })
            }
            Prepared::Incoming(incoming) => {
                if self.judge.get().is_some() {
                    incoming.keep_digests();
                }
                let notice = incoming.restarted().map(str::to_owned);
                let outcome = PrepareOutcome::Ready { have: incoming.have(), notice };
                (Some(incoming), outcome)
            }
        })
    }

    /// Sets modes and times of directories and makes every name durable. The sender receives the end of the copy only
    /// after this step.
    fn finish_directories(&self, modes: DirectoryModes) {
        // The lock of the session is not held, so that a slow disk does not block lanes.
        let sink = &self.options.sink;
        // A failed mode or time is only a notice; a name that is not durable aborts the session.
        self.notice(sink.finish(modes));
        let durable = sink.sync_names();
        let mut session = self.session.lock();
        match durable {
            Ok(()) => session.handle_finished(),
            Err(error) => session.abort(error),
        }
    }

    fn terms(&self) -> Terms {
        Terms { overwrite: self.options.overwrite, checks: self.options.checks }
    }

    fn notice(&self, outcome: Result<(), Error>) {
        if let Err(error) = outcome {
            self.observer.session_event(SessionEvent::Notice(error.chain()));
        }
    }

    fn publish_file(&self, id: FileId) {
        let slot = self.slots.lock().get(&id).cloned();
        let found = slot.and_then(|slot| Some((slot.incoming()?, slot.entry.path.clone())));
        let outcome = match found {
            Some((incoming, path)) => {
                let expected = self.options.expect.of(&path);
                match self.take_wrong_blocks_back(id, &*incoming, expected) {
                    Ok(true) => return,
                    Ok(false) => self.close_growing(id, &*incoming).and_then(|()| incoming.publish(expected)),
                    Err(error) => Err(error),
                }
            }
            None => Err(crate::internal("publish a file that was never looked up")),
        };
        // The file has not failed: the next session publishes it.
        if outcome.is_err() && self.has_ended.load(Ordering::Relaxed) {
            return;
        }
        self.session.lock().handle_published(id, outcome);
    }

    /// Compares a file that was sent while it grew with the final digest of its sender.
    fn close_growing(&self, id: FileId, incoming: &dyn SinkFile) -> Result<(), Error> {
        let session = self.session.lock();
        let (entry, final_digest) =
            session.open_entry(id).map_or((None, None), |(entry, final_digest)| (Some(entry.clone()), final_digest));
        drop(session);
        if let Some(entry) = entry {
            incoming.grow(&entry)?;
        }
        final_digest.map_or(Ok(()), |blake3| incoming.check_final_digest(blake3))
    }

    fn discard_file(&self, id: FileId) {
        let slot = self.slots.lock().get(&id).cloned();
        if let Some(incoming) = slot.and_then(|slot| slot.incoming()) {
            // The next lookup of the file finds and empties any rest.
            let _ = incoming.discard();
        }
        self.session.lock().handle_discarded(id);
    }

    fn publish_packed(&self, files: &[(FileId, FileEntry, [u8; 32])], data: &[u8]) {
        let mut rest = data;
        let mut packed = Vec::with_capacity(files.len());
        for (id, entry, blake3) in files {
            let (data, behind) = rest.split_at(entry.size as usize);
            rest = behind;
            let seen = self.slots.lock().get(id).map(|slot| slot.seen()).unwrap_or_default();
            let expected = self.options.expect.of(&entry.path);
            packed.push(PackedFile { entry, data, blake3: Some(*blake3), expected, seen });
        }
        let outcomes = self.options.sink.publish_packed(&packed, &self.terms());
        for ((id, entry, _), outcome) in files.iter().zip(outcomes) {
            match outcome {
                Err(error) if error.kind == ErrorKind::Busy && self.publish_later(*id, entry, &error) => {}
                Err(error) => self.session.lock().handle_published(*id, Err(error)),
                Ok(Some(digests)) => self.session.lock().handle_published(*id, Ok(digests)),
                Ok(None) => self.session.lock().handle_up_to_date(*id),
            }
        }
    }

    /// Looks a small file up again and requests it again, because another session holds its place. Returns false if
    /// patience has ended.
    fn publish_later(&self, id: FileId, entry: &FileEntry, error: &Error) -> bool {
        let slot = self.slots.lock().get(&id).cloned();
        let asked = slot.and_then(|slot| *slot.asked.lock());
        let Some(until) = patience(error, asked, Instant::now(), 0) else { return false };
        let again = Slot::new(entry);
        *again.asked.lock() = Some(until);
        self.slots.lock().insert(id, Arc::new(again));
        if self.session.lock().handle_unpublished(id) {
            self.look_up_later(id);
        }
        true
    }

    /// Queues a file that the storage could not take for one more attempt.
    fn look_up_later(&self, id: FileId) {
        let mut later = self.later.lock();
        let was_empty = later.is_empty();
        later.push_back(id);
        drop(later);
        // The preparer waits without a time only while no file is to be looked up later. A session that is over has no
        // preparer and needs none.
        if was_empty {
            self.queues.lock().as_ref().map(|queues| queues.prepare.send(None));
            self.wake.notify();
        }
    }

    /// Carries out the requests of the state machine, passes its events to the observer, and wakes the feeders.
    fn after_change(&self) {
        self.pass_on(true);
    }

    /// Carries out the requests of the state machine, and passes its events to the observer. Wakes the feeders if there
    /// were any, or something else `has_changed`.
    fn pass_on(&self, mut has_changed: bool) {
        let mut settled = Vec::new();
        let turn = self.telling.lock();
        loop {
            let event = self.session.lock().poll_event();
            let Some(event) = event else { break };
            has_changed = true;
            match event {
                RecvEvent::Prepare { file, entry } => {
                    if self.slot(file, &entry).is_some() {
                        // A session that is over has no preparer and needs none.
                        self.queues.lock().as_ref().map(|queues| queues.prepare.send(Some(file)));
                    }
                }
                RecvEvent::Recheck { file } => {
                    self.queues.lock().as_ref().map(|queues| queues.recheck.send(file));
                }
                RecvEvent::Discard { file } => self.queue(Job::Discard(file)),
                RecvEvent::Publish { file } => self.queue(Job::File(file)),
                RecvEvent::Settled { file, entry, outcome } => {
                    self.holes.settle(file, &outcome);
                    self.observer.session_event(SessionEvent::Settled { entry, outcome });
                    settled.extend(self.slots.lock().remove(&file).inspect(|slot| slot.settle()));
                }
                RecvEvent::Finish { whole } => {
                    let modes = if whole { DirectoryModes::OfSource } else { DirectoryModes::Writable };
                    self.queue(Job::Directories(modes));
                }
                RecvEvent::Notice(text) => self.observer.session_event(SessionEvent::Notice(text.to_owned())),
                RecvEvent::Unreadable(error) => self.observer.session_event(SessionEvent::Unreadable(error)),
                RecvEvent::Aborted(error) => self.observer.session_event(SessionEvent::Aborted(error)),
            }
        }
        drop(turn);
        if has_changed {
            self.wake.notify();
        }
        // This drop is last: the operating system takes a while to close a large file that was removed.
        drop(settled);
    }

    fn queue(&self, job: Job) {
        // Without publishers the session is over; the journal keeps the received data.
        if let Some(queues) = &*self.queues.lock() {
            *self.waiting.lock().of(&job) += 1;
            // The publishers end later than their queue.
            let _ = queues.publish.send(job);
        }
    }

    /// Waits while the publishers have too many jobs. Publishers need no lane, so there is no deadlock.
    fn wait_for_publishers(&self, too_many: impl Fn(&Waiting) -> bool) {
        let mut waiting = self.waiting.lock();
        while too_many(&waiting) && !self.is_over() {
            self.job_done.wait_for(&mut waiting, CHECKPOINT_INTERVAL);
        }
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<thread::JoinHandle<()>, Error> {
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(run);
    spawned.map_err(|e| crate::no_thread("start a thread of a session", e))
}

impl End for Receiver {
    fn next_work(&self, lane: LaneId) -> Work {
        let (mut session, now) = (self.session.lock(), Instant::now());
        match session.poll_frame(lane, now) {
            Some(frame) => Work::Frame(frame),
            None if session.is_over() => Work::Over,
            None if !session.is_up(lane) => Work::Down,
            None => {
                let report = session.next_report(now);
                drop(session);
                self.limits.poll_frame(now).map_or(Work::Idle(report), Work::Frame)
            }
        }
    }

    fn wake(&self) -> &Wake {
        &self.wake
    }

    fn send_block(&self, _lane: LaneId, _task: BlockTask, _tx: &mut dyn LaneTx) -> Result<(), Error> {
        Err(crate::internal("a receiver was asked to send a block"))
    }

    fn handle_frame(&self, frame: Frame) -> Result<(), Error> {
        if let Frame::Limits(report) = &frame {
            self.limits.handle_limits(report);
            return Ok(());
        }
        let mut session = self.session.lock();
        let handled = match frame {
            Frame::Messages { first, encoded } => session.handle_messages(first, &encoded),
            Frame::Acknowledge { next } => session.handle_acknowledgement(next),
            Frame::Welcome(capabilities) => {
                session.handle_welcome(capabilities.features);
                Ok(())
            }
            _ => Err(Error::protocol("a frame from the peer out of place")),
        };
        drop(session);
        // An error has ended the session: the other lanes have to send that.
        self.after_change();
        handled
    }

    fn lane_up(&self, lane: LaneId) {
        self.session.lock().handle_lane_up(lane);
        self.wake.notify();
    }

    fn lane_down(&self, lane: LaneId) {
        self.session.lock().handle_lane_down(lane, Instant::now());
        self.after_change();
    }

    fn block_sink(self: Arc<Self>, lane: LaneId) -> Box<dyn BlockSink> {
        Box::new(ReceiverLane { receiver: self, lane, open: HashMap::new(), decoding: Decoding::default() })
    }

    fn is_over(&self) -> bool {
        self.session.lock().is_over()
    }

    fn has_followed_up(&self) -> bool {
        self.pass_on(false);
        true
    }

    fn tick(&self) {
        let now = Instant::now();
        let silent = self.silence.lock().observe(&self.limits.heard(), now);
        let (given_up, is_due) = {
            let mut session = self.session.lock();
            let is_due = session.poll_timeout(now).is_some_and(|due| due <= now);
            session.handle_timeout(now);
            (session.handle_silence(&silent, now), is_due || !silent.is_empty())
        };
        close_aside(self.limits.handles(&given_up));
        self.pass_on(is_due);
    }

    fn deadline(&self) -> Option<Instant> {
        self.session.lock().poll_timeout(Instant::now())
    }

    fn limits(&self) -> &LimitMonitor {
        &self.limits
    }

    fn progress(&self) -> Progress {
        let session = self.session.lock();
        let (files_known, bytes_known, manifest_complete) = session.offered();
        let (bytes_carried, bytes_encoded) = self.carried.bytes();
        let counters = Counters {
            files_known,
            bytes_known,
            bytes_done: session.arrived_bytes() + session.up_to_date_bytes(),
            bytes_held: session.held_bytes(),
            bytes_up_to_date: session.up_to_date_bytes(),
            bytes_holes: self.holes.bytes(),
            bytes_carried,
            bytes_encoded,
            blocks_again: session.failed_blocks(),
        };
        Progress { counters, manifest_complete, lanes: session.lane_count() }
    }

    fn active_files(&self, most: usize) -> Vec<ActiveFile> {
        self.session.lock().active_files(most)
    }

    fn unsettled_bytes(&self) -> u64 {
        self.session.lock().unsettled_bytes()
    }

    fn send_contract(&self, path: PathNumber, contract: RateContract) {
        self.session.lock().send_contract(path, contract);
        self.wake.notify();
    }

    fn abort(&self, error: Error) {
        self.session.lock().abort(error);
        self.after_change();
    }
}

/// Block that a lane is receiving.
enum OpenBlock {
    /// Block whose data is read and dropped.
    Discard,
    Single {
        writer: Box<BlockWriter>,
        /// Encoding of the data.
        slabs: Option<BlockSlabs>,
        entry: FileEntry,
        data_len: u64,
        /// True once the disk refused the block: the file has failed, and the rest of the data is dropped.
        broken: bool,
    },
    /// Part of a block of a growing file.
    Tail { file: FileId, entry: FileEntry, offset: u64, data: Vec<u8> },
    Packed {
        /// Files, each with the claim that states if this lane may write it.
        files: Vec<(FileId, FileEntry, BlockClaim)>,
        /// Encoding of the data.
        slab: Option<Slab>,
        data: Vec<u8>,
    },
}

/// Blocks that one lane is receiving.
struct ReceiverLane {
    receiver: Arc<Receiver>,
    lane: LaneId,
    open: HashMap<u64, OpenBlock>,
    decoding: Decoding,
}

impl ReceiverLane {
    fn begin_single(
        &self,
        (file, entry, index): (FileId, FileEntry, u64),
        data: BlockData,
        data_len: u64,
    ) -> Result<OpenBlock, Error> {
        let receiver = &self.receiver;
        receiver.handle_entry(file, &entry)?;
        let Some(slot) = receiver.slot(file, &entry) else { return Ok(OpenBlock::Discard) };
        let meter = receiver.limits.reader(self.lane);
        if !slot.has_begun() {
            // With few descriptors, the maximum is lower: some descriptors must remain for files in transfer.
            let files_max = WAITING_FILES_MAX.min(receiver.open_max.div_ceil(4));
            meter.during(Wait::Storage, 0, || {
                receiver.wait_for_publishers(|waiting| waiting.files >= files_max);
                receiver.look_up(file, &slot, false);
            });
        }
        if receiver.session.lock().claim(self.lane, file, index) == BlockClaim::Discard {
            return Ok(OpenBlock::Discard);
        }
        let incoming = slot.incoming().ok_or_else(|| crate::internal("a block of a file that was never looked up"))?;
        if slot.begin() {
            // The preparer may look up one more file.
            receiver.wake.notify();
        }
        let grown = if entry.growth.is_some() { incoming.grow(&entry) } else { Ok(()) };
        let mut writer = BlockWriter::new(file, index, &entry.blocks(), receiver.options.checks, incoming, meter);
        let mut broken = false;
        if let Err(error) = grown {
            receiver.session.lock().fail(file, error);
            receiver.after_change();
            broken = true;
        } else if data == BlockData::Hole {
            // The hole is counted before the block counts as present: none of its bytes ever counts as carried.
            let offset = entry.blocks().offset(index);
            let slots = receiver.slots.lock();
            // The lock is held here: a file that has settled in the meantime is no longer counted.
            if slots.contains_key(&file) {
                receiver.holes.add(file, offset..offset + entry.blocks().length(index));
            }
            drop(slots);
            if let Err(error) = writer.hole() {
                receiver.session.lock().fail(file, error);
                receiver.after_change();
                broken = true;
            }
        }
        let slabs = match data {
            BlockData::Slabs(slabs) => Some(BlockSlabs::new(slabs, entry.blocks().length(index))),
            BlockData::Raw | BlockData::Hole => None,
        };
        Ok(OpenBlock::Single { writer: Box::new(writer), slabs, entry, data_len, broken })
    }

    fn begin_packed(
        &self,
        files: Vec<(FileId, FileEntry)>,
        slab: Option<Slab>,
        data_len: u64,
    ) -> Result<OpenBlock, Error> {
        let receiver = &self.receiver;
        let mut claimed = Vec::with_capacity(files.len());
        for (file, entry) in files {
            receiver.handle_entry(file, &entry)?;
            if let Some(slot) = receiver.slot(file, &entry) {
                receiver.look_up(file, &slot, false);
            }
            let claim = receiver.session.lock().claim(self.lane, file, 0);
            claimed.push((file, entry, claim));
        }
        Ok(OpenBlock::Packed { files: claimed, slab, data: vec![0; data_len as usize] })
    }

    fn end_single(
        &self,
        writer: BlockWriter,
        slabs: Option<&BlockSlabs>,
        entry: &FileEntry,
        trailer: &[u8],
    ) -> Result<(), Error> {
        let (file, index) = (writer.file, writer.index);
        let incoming = Arc::clone(writer.incoming());
        let malformed = slabs.is_some_and(BlockSlabs::is_malformed);
        // Data that does not decode counts as corrupt, like a wrong digest, and is sent again as often.
        let finished = if malformed { Ok(None) } else { writer.finish().map(Some) };
        let outcome = finished.and_then(|digest| match digest.filter(|digest| trailer == digest.chaining_value) {
            Some(digest) => incoming.record(index, digest).map(Ok),
            None => Ok(Err(corrupt_block(entry, index))),
        });
        let mut session = self.receiver.session.lock();
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
        &mut self,
        files: Vec<(FileId, FileEntry, BlockClaim)>,
        slab: Option<Slab>,
        data: Vec<u8>,
        trailer: &[u8],
    ) -> Result<(), Error> {
        let (digests, left) = trailer.as_chunks::<32>();
        if digests.len() != files.len() || !left.is_empty() {
            return Err(Error::protocol("packed block from the peer: digests do not match its files"));
        }
        let length = files.iter().map(|(_, entry, _)| entry.size).sum::<u64>();
        self.receiver.carried.add(length, data.len() as u64);
        let data = match &slab {
            None => &data,
            // Data that does not decode gives wrong digests, so its files are sent again.
            Some(slab) => self.decoding.decode_or_zeros(slab, &data, length as usize),
        };
        let (mut verified, mut kept, mut offset) = (Vec::new(), Vec::new(), 0);
        let mut session = self.receiver.session.lock();
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
            let meter = self.receiver.limits.reader(self.lane);
            let bytes = kept.len();
            meter.during(Wait::Storage, bytes, || {
                self.receiver.wait_for_publishers(|waiting| waiting.packs >= WAITING_PACKS_MAX);
            });
            self.receiver.queue(Job::Packed { files: verified, data: kept });
        }
        self.receiver.after_change();
        Ok(())
    }
}

impl BlockSink for ReceiverLane {
    fn begin(&mut self, block: u64, header: &[u8], data_len: u64) -> Result<(), Error> {
        let open = match BlockHeader::decode(header, data_len)? {
            BlockHeader::Single { file, entry, index, data } => {
                self.begin_single((file, entry, index), data, data_len)?
            }
            BlockHeader::Packed { files, slab } => self.begin_packed(files, slab, data_len)?,
            BlockHeader::Tail { file, entry, offset } => self.begin_tail(file, entry, offset, data_len)?,
        };
        self.open.insert(block, open);
        Ok(())
    }

    fn data(&mut self, block: u64, offset: u64, data: &[u8]) -> Result<(), Error> {
        match self.open.get_mut(&block) {
            Some(OpenBlock::Single { writer, slabs, broken, .. }) if !*broken => {
                let written = match slabs {
                    None => writer.write(offset, data),
                    Some(slabs) => slabs.write(offset, data, writer, &mut self.decoding),
                };
                if let Err(error) = written {
                    *broken = true;
                    self.receiver.session.lock().fail(writer.file, error);
                    self.receiver.after_change();
                }
            }
            Some(OpenBlock::Packed { data: whole, .. } | OpenBlock::Tail { data: whole, .. }) => {
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
            Some(OpenBlock::Single { writer, slabs, entry, data_len, broken: false }) => {
                if data_len > 0 {
                    self.receiver.carried.add(entry.blocks().length(writer.index), data_len);
                }
                self.end_single(*writer, slabs.as_ref(), &entry, trailer)
            }
            Some(OpenBlock::Packed { files, slab, data }) => self.end_packed(files, slab, data, trailer),
            Some(OpenBlock::Tail { file, entry, offset, data }) => {
                self.end_tail((file, &entry), offset, &data, trailer);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn abandoned(&mut self, block: u64) -> Result<(), Error> {
        let mut session = self.receiver.session.lock();
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
