//! Sending end of a session: reads directories into the manifest and files into blocks.

mod arrived;
mod offers;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use sterna_proto::compress::{CompressionPolicy, Method};
use sterna_proto::rate::RateContract;
use sterna_proto::session::{
    ActiveFile, BlockData, BlockHeader, BlockOrder, BlockTask, FileId, Frame, LaneId, Overwrite, PathNumber, SendEvent,
    SendSession,
};
use sterna_proto::{BitRate, BlockHasher, Checks, Counters, Error, ErrorKind, FileEntry};

use super::encode::{Encoding, LaneClock};
use super::holes::HoleCount;
use super::limits::{LimitMonitor, Role, Wait};
use super::silence::{SilenceDetector, close_aside};
use super::sweep::Sweeper;
use super::{BlockSink, End, NoBlocks, Observer, Progress, READ_BYTES, SessionEvent, SettledPaths, Work};
use crate::buffer::BufferPool;
use crate::lane::LaneTx;
use crate::source::{Extent, FileReader, LaneChange, OfferedFile, Offers, Source};
use crate::wake::Wake;

/// Block of a large file that is being sent.
struct OutgoingBlock {
    id: FileId,
    entry: FileEntry,
    index: u64,
    /// Start of the block in the file, and its length.
    offset: u64,
    length: u64,
}

impl OutgoingBlock {
    fn header(&self, data: BlockData) -> Vec<u8> {
        BlockHeader::Single { file: self.id, entry: self.entry.clone(), index: self.index, data }.encode()
    }
}

/// Sending end of a session.
pub struct Sender {
    session: Mutex<SendSession>,
    wake: Arc<Wake>,
    source: Arc<dyn Source>,
    /// Files without an outcome.
    files: Mutex<HashMap<FileId, Arc<dyn OfferedFile>>>,
    sweeper: OnceLock<Sweeper>,
    pool: Arc<BufferPool>,
    observer: Arc<dyn Observer>,
    /// Held while events are passed to the observer. The next holder can rely on the delivery of all earlier events.
    telling: Mutex<()>,
    /// True if only the manifest is sent.
    dry_run: bool,
    /// Files that are not sent.
    settled: Arc<SettledPaths>,
    holes: HoleCount,
    limits: Arc<LimitMonitor>,
    silence: Mutex<SilenceDetector>,
    encoding: Encoding,
}

impl Sender {
    /// Starts a sender of the files of `source` with the thread that lists them. Leaves out `settled` files, which an
    /// earlier session of the same copy has settled.
    pub fn start(
        source: Arc<dyn Source>,
        linger: Duration,
        dry_run: bool,
        settled: Arc<SettledPaths>,
        compress: CompressionPolicy,
        pool: Arc<BufferPool>,
        observer: Arc<dyn Observer>,
    ) -> Result<Arc<Self>, Error> {
        let compress = if source.is_sequential() { CompressionPolicy::Never } else { compress };
        let wake = Arc::<Wake>::default();
        let limits = LimitMonitor::start(Role::Sender, &wake)?;
        let sender = Arc::new(Self {
            session: Mutex::new(SendSession::new(linger)),
            wake,
            source,
            files: Mutex::default(),
            sweeper: OnceLock::new(),
            encoding: Encoding::new(compress, Arc::clone(&pool)),
            pool,
            observer,
            telling: Mutex::default(),
            dry_run,
            settled,
            holes: HoleCount::default(),
            limits,
            silence: Mutex::default(),
        });
        if sender.source.measured().is_some() {
            let source = Arc::clone(&sender.source);
            sender.limits.set_web(move || source.measured().unwrap_or_default());
        }
        if let Some(lanes) = sender.source.lanes_max() {
            sender.session.lock().expect_lanes(lanes);
        }
        let scanner = Arc::clone(&sender);
        thread::Builder::new()
            .name("scan".to_owned())
            .spawn(move || scanner.scan())
            .map_err(|e| crate::no_thread("start the thread that reads directories", e))?;
        Ok(sender)
    }

    /// Sets the treatment of existing files that this end has requested. To be called before the first lane: a receiver
    /// that leaves a file out although its data was requested ends the session.
    pub fn set_overwrite(&self, overwrite: Overwrite) {
        self.session.lock().set_overwrite(overwrite);
    }

    /// Limits the source to one file, because a digest of one file was given. Another source ends the session.
    pub fn expect_one_file(&self) {
        self.session.lock().expect_one_file();
        self.after_change();
    }

    /// Lists the source into the manifest. Waits while the manifest is far enough ahead.
    fn scan(self: &Arc<Self>) {
        let offers = Arc::clone(self) as Arc<dyn Offers>;
        Arc::clone(&self.source).list(&offers);
        if self.is_over() {
            return;
        }
        self.session.lock().end_files();
        self.after_change();
    }

    fn add_file(
        &self,
        mut session: MutexGuard<'_, SendSession>,
        entry: FileEntry,
        order: BlockOrder,
        file: Arc<dyn OfferedFile>,
    ) -> FileId {
        let id = session.add_file_in(entry, order);
        // The lock of the session is still held: no lane can take a block of the file before the file is stored.
        self.files.lock().insert(id, file);
        id
    }

    /// Waits until the manifest may grow or the session is over.
    fn session_with_room(&self) -> MutexGuard<'_, SendSession> {
        loop {
            let seen = self.wake.seen();
            let session = self.session.lock();
            if session.has_room() || session.is_over() {
                return session;
            }
            drop(session);
            self.wake.wait_to(seen, None);
        }
    }

    /// Reports a requested source that cannot be sent. To be called before the manifest ends.
    pub fn unreadable(&self, error: Error) {
        self.session_with_room().add_unreadable(error.clone());
        self.observer.session_event(SessionEvent::Unreadable(error));
        self.wake.notify();
    }

    /// Passes the events of the state machine to the observer, and wakes the feeders.
    pub(super) fn after_change(&self) {
        self.pass_on();
        self.wake.notify();
    }

    /// Passes the events of the state machine to the observer. Returns true if there were any.
    fn pass_on(&self) -> bool {
        let _turn = self.telling.lock();
        let mut is_any = false;
        loop {
            let event = self.session.lock().poll_event();
            let Some(event) = event else { return is_any };
            is_any = true;
            self.observer.session_event(match event {
                SendEvent::Settled { file, entry, outcome } => match self.handle_settled(file, entry, outcome) {
                    Some(settled) => settled,
                    None => continue,
                },
                SendEvent::Notice { text, .. } => SessionEvent::Notice(text),
                SendEvent::Aborted(error) => {
                    // Lanes that wait for the source must stop waiting.
                    self.source.stop();
                    SessionEvent::Aborted(error)
                }
            });
        }
    }

    /// Returns a file that has no outcome yet.
    fn file(&self, id: FileId) -> Result<Arc<dyn OfferedFile>, Error> {
        self.files.lock().get(&id).cloned().ok_or_else(|| crate::internal("a block of a settled file"))
    }

    /// Opens the file from which `lane` reads block `index`.
    fn open_block(
        &self,
        lane: LaneId,
        (id, entry, index): (FileId, &FileEntry, u64),
    ) -> Result<Box<dyn FileReader>, Error> {
        let file = self.file(id)?;
        let session = self.session.lock();
        let run = session.run_of(lane).filter(|(file, _)| *file == id);
        let is_start_wanted = session.is_missing(id, 0);
        drop(session);
        let last = run.map_or(index, |(_, end)| end.saturating_sub(1).max(index));
        let blocks = entry.blocks();
        file.open(Some(lane), Extent::Run { until: blocks.offset(last) + blocks.length(last), is_start_wanted })
    }

    /// Sends one block of a large file. The outer error comes from the lane, the inner error from the source.
    fn send_single(
        &self,
        lane: LaneId,
        (id, entry, index): (FileId, FileEntry, u64),
        tx: &mut dyn LaneTx,
    ) -> Result<Result<(), Error>, Error> {
        let meter = self.limits.feeder(lane);
        let mut source = match meter.during(Wait::Storage, 0, || self.open_block(lane, (id, &entry, index))) {
            Ok(source) => source,
            Err(error) => return Ok(Err(error)),
        };
        let block = OutgoingBlock {
            id,
            offset: entry.blocks().offset(index),
            length: entry.blocks().length(index),
            entry,
            index,
        };
        match meter.during(Wait::Storage, 0, || self.is_hole(&mut *source, block.offset, block.length)) {
            Ok(true) => return self.send_hole(&block, &*source, tx),
            Ok(false) => {}
            Err(error) => return Ok(Err(error)),
        }
        let mut clock = self.encoding.clock(meter);
        let sample = |offset, bytes: &mut [u8]| source.read_at(block.offset + offset, bytes);
        let began = clock.begin_work();
        let method = self.encoding.method(id, &block.entry, block.length, sample);
        clock.end_work(0, began);
        let sent = match method {
            Err(error) => Ok(Err(error)),
            Ok(Method::Raw) => self.send_raw(lane, &block, &mut *source, &mut clock, tx),
            Ok(method) => self.send_encoded(lane, (&block, method), &mut *source, &mut clock, tx),
        };
        self.encoding.end_clock(clock);
        self.tell_decisions();
        sent
    }

    /// Sends a block that contains only zeros, as a hole.
    fn send_hole(
        &self,
        block: &OutgoingBlock,
        source: &dyn FileReader,
        tx: &mut dyn LaneTx,
    ) -> Result<Result<(), Error>, Error> {
        let OutgoingBlock { id, entry, index, offset, length } = block;
        tx.block_begin(&block.header(BlockData::Hole), 0)?;
        let mut hasher = BlockHasher::new(&entry.blocks(), *index, Checks::NONE);
        let mut zeros = self.pool.take();
        zeros.zeroed(READ_BYTES);
        let mut left = *length as usize;
        while left > 0 {
            let size = left.min(READ_BYTES);
            hasher.update(&zeros[..size]);
            left -= size;
        }
        if let Err(error) = source.check_block(entry) {
            tx.block_abandon()?;
            return Ok(Err(error));
        }
        self.end_block(block, hasher, tx)?;
        // The lock is held here: a file that has settled as up to date in the meantime is no longer counted.
        let files = self.files.lock();
        if files.contains_key(id) {
            self.holes.add(*id, *offset..offset + length);
        }
        Ok(Ok(()))
    }

    /// Sends a block without encoding, while the block is read.
    fn send_raw(
        &self,
        lane: LaneId,
        block: &OutgoingBlock,
        source: &mut dyn FileReader,
        clock: &mut LaneClock,
        tx: &mut dyn LaneTx,
    ) -> Result<Result<(), Error>, Error> {
        let OutgoingBlock { entry, index, offset, length, .. } = block;
        let mut hasher = BlockHasher::new(&entry.blocks(), *index, Checks::NONE);
        tx.block_begin(&block.header(BlockData::Raw), *length)?;
        let mut done = 0;
        while done < *length {
            let began = clock.begin_work();
            let mut piece = self.pool.take();
            let size = (length - done).min(tx.piece_bytes() as u64) as usize;
            let read = |bytes: &mut [u8]| source.read_at(offset + done, bytes);
            if let Err(error) = clock.meter.during(Wait::Storage, size, || piece.fill(size, read)) {
                tx.block_abandon()?;
                return Ok(Err(error));
            }
            hasher.update(&piece);
            clock.end_work(size as u64, began);
            done += size as u64;
            self.send_data(lane, piece.freeze(), clock, tx)?;
        }
        // This check follows all reads, so every byte of the block was read while the file still matched its offer.
        if let Err(error) = clock.meter.during(Wait::Storage, 0, || source.check_block(entry)) {
            tx.block_abandon()?;
            return Ok(Err(error));
        }
        self.end_block(block, hasher, tx)?;
        self.encoding.carried.add(*length, *length);
        Ok(Ok(()))
    }

    /// Reads and encodes a whole block, then sends it.
    fn send_encoded(
        &self,
        lane: LaneId,
        (block, method): (&OutgoingBlock, Method),
        source: &mut dyn FileReader,
        clock: &mut LaneClock,
        tx: &mut dyn LaneTx,
    ) -> Result<Result<(), Error>, Error> {
        let OutgoingBlock { id, entry, index, offset, length } = block;
        let mut hasher = BlockHasher::new(&entry.blocks(), *index, Checks::NONE);
        let mut done = 0;
        let meter = Arc::clone(&clock.meter);
        let read = |bytes: &mut [u8]| {
            meter.during(Wait::Storage, bytes.len(), || source.read_at(offset + done, bytes))?;
            hasher.update(bytes);
            done += bytes.len() as u64;
            Ok(())
        };
        let encoded = self.encoding.encode(method, *length, clock, read, || self.send_waiting_frames(lane, tx))?;
        let mut encoded = match encoded {
            None => return self.send_raw(lane, block, source, clock, tx),
            Some(Err(error)) => return Ok(Err(error)),
            Some(Ok(encoded)) => encoded,
        };
        if let Err(error) = source.check_block(entry) {
            return Ok(Err(error));
        }
        let data_len = encoded.length();
        self.encoding.handle_encoded(*id, method, *length, data_len);
        let data = if encoded.is_raw() { BlockData::Raw } else { BlockData::Slabs(std::mem::take(&mut encoded.slabs)) };
        tx.block_begin(&block.header(data), data_len)?;
        while let Some(data) = encoded.data.pop_front() {
            self.send_data(lane, data, clock, tx)?;
        }
        self.end_block(block, hasher, tx)?;
        self.encoding.carried.add(*length, data_len);
        Ok(Ok(()))
    }

    /// Passes data to the lane, then the control frames that wait.
    fn send_data(&self, lane: LaneId, data: Bytes, clock: &mut LaneClock, tx: &mut dyn LaneTx) -> Result<(), Error> {
        let bytes = data.len() as u64;
        tx.block_data(data)?;
        self.encoding.handle_carried(clock, bytes);
        self.send_waiting_frames(lane, tx)
    }

    /// Passes decisions on the encoding of files to the observer.
    fn tell_decisions(&self) {
        while let Some(rationale) = self.encoding.poll_decision() {
            self.observer.session_event(SessionEvent::Decision { subject: "compression", rationale });
        }
    }

    /// Sends whole small files in one block. Unreadable files are reported to the session and left out.
    fn send_packed(&self, lane: LaneId, files: Vec<(FileId, FileEntry)>, tx: &mut dyn LaneTx) -> Result<(), Error> {
        let mut clock = self.encoding.clock(self.limits.feeder(lane));
        let began = clock.begin_work();
        let mut packed = Vec::with_capacity(files.len());
        let (mut data, mut trailer) = (Vec::new(), Vec::with_capacity(files.len() * 32));
        for (id, entry) in files {
            let size = entry.size as usize;
            match clock.meter.during(Wait::Storage, size, || self.read_whole(lane, id, &entry, &mut data)) {
                Ok(()) => {
                    let start = data.len() - entry.size as usize;
                    let blake3 = *blake3::hash(&data[start..]).as_bytes();
                    trailer.extend_from_slice(&blake3);
                    self.record(id, |sweeper| sweeper.record_whole(id, blake3));
                    packed.push((id, entry));
                }
                Err(error) => self.give_up(id, error),
            }
        }
        // The largest file decides the encoding of all files in the block.
        let Some(largest) = packed.iter().max_by_key(|(_, entry)| entry.size) else { return Ok(()) };
        let file_bytes = data.len() as u64;
        let encoded = self.encoding.encode_packed(largest, &data, &mut clock);
        clock.end_work(file_bytes, began);
        self.tell_decisions();
        let (slab, data) = match encoded {
            Some((slab, data)) => (Some(slab), data),
            None => {
                let mut data = Bytes::from(data);
                let count = data.len().div_ceil(READ_BYTES);
                (None, (0..count).map(|_| data.split_to(data.len().min(READ_BYTES))).collect())
            }
        };
        let data_len = data.iter().map(|bytes| bytes.len() as u64).sum();
        let header = BlockHeader::Packed { files: packed, slab }.encode();
        tx.block_begin(&header, data_len)?;
        for bytes in data {
            self.send_data(lane, bytes, &mut clock, tx)?;
        }
        tx.block_end(&trailer)?;
        self.encoding.end_clock(clock);
        self.encoding.carried.add(file_bytes, data_len);
        Ok(())
    }

    /// Appends a small file to `data`. Leaves `data` unchanged on an error.
    fn read_whole(&self, lane: LaneId, id: FileId, entry: &FileEntry, data: &mut Vec<u8>) -> Result<(), Error> {
        if entry.size == 0 {
            return Ok(());
        }
        let file = self.file(id)?;
        let start = data.len();
        data.resize(start + entry.size as usize, 0);
        let read = file.open(Some(lane), Extent::Whole).and_then(|mut source| {
            source.read_at(0, &mut data[start..])?;
            source.check_whole(entry, &data[start..])
        });
        if read.is_err() {
            data.truncate(start);
        }
        read
    }

    /// Sends part of an incomplete block. Errors: of the lane; an unreadable source is reported to the session.
    fn send_tail(
        &self,
        lane: LaneId,
        (id, entry): (FileId, &FileEntry),
        range: Range<u64>,
        tx: &mut dyn LaneTx,
    ) -> Result<(), Error> {
        let meter = self.limits.feeder(lane);
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let read = meter.during(Wait::Storage, bytes.len(), || {
            let extent = Extent::Run { until: range.end, is_start_wanted: true };
            let mut source = self.file(id)?.open(Some(lane), extent)?;
            source.read_at(range.start, &mut bytes)?;
            source.check_unchanged(entry)
        });
        if let Err(error) = read {
            self.give_up(id, error);
            return Ok(());
        }
        let header = BlockHeader::Tail { file: id, entry: entry.clone(), offset: range.start };
        let digest = blake3::hash(&bytes);
        let length = bytes.len() as u64;
        tx.block_begin(&header.encode(), length)?;
        let mut bytes = Bytes::from(bytes);
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(READ_BYTES));
            tx.block_data(piece)?;
            self.send_waiting_frames(lane, tx)?;
        }
        tx.block_end(digest.as_bytes())
    }

    /// Withdraws a file that cannot be read.
    fn give_up(&self, id: FileId, error: Error) {
        // The session was already ending when the read was cancelled: the file itself has not failed.
        if error.kind == ErrorKind::Cancelled {
            return;
        }
        self.session.lock().withdraw(id, error);
        self.after_change();
    }

    /// Sends waiting control frames between the data of a block.
    fn send_waiting_frames(&self, lane: LaneId, tx: &mut dyn LaneTx) -> Result<(), Error> {
        loop {
            let frame = self.session.lock().poll_frame(lane);
            match frame.or_else(|| self.limits.poll_frame(Instant::now())) {
                Some(frame) => tx.control(&frame.encode())?,
                None => return Ok(()),
            }
        }
    }
}

impl End for Sender {
    fn next_work(&self, lane: LaneId) -> Work {
        let mut session = self.session.lock();
        if let Some(frame) = session.poll_frame(lane) {
            return Work::Frame(frame);
        }
        if session.is_over() {
            return Work::Over;
        }
        if !session.is_up(lane) {
            return Work::Down;
        }
        if !self.dry_run
            && self.source.takes_blocks(lane)
            && let Some(task) = session.next_block(lane)
        {
            return Work::Block(task);
        }
        drop(session);
        self.source.handle_lane(lane, LaneChange::Idle);
        self.limits.poll_frame(Instant::now()).map_or(Work::Idle(None), Work::Frame)
    }

    fn wake(&self) -> &Wake {
        &self.wake
    }

    fn send_block(&self, lane: LaneId, task: BlockTask, tx: &mut dyn LaneTx) -> Result<(), Error> {
        match task {
            BlockTask::Packed { files } => self.send_packed(lane, files, tx),
            BlockTask::Tail { file, entry, range } => self.send_tail(lane, (file, &entry), range, tx),
            BlockTask::Single { file, entry, index } => {
                let Err(error) = self.send_single(lane, (file, entry, index), tx)? else { return Ok(()) };
                if error.kind == ErrorKind::Cancelled {
                    // The source has stopped with the session: the lane stays, to send the reason to the peer.
                    if self.session.lock().is_ending() {
                        return Ok(());
                    }
                    // This lane may no longer take the block, so the block was not read. Another lane delivers it.
                    return Err(error);
                }
                self.give_up(file, error);
                Ok(())
            }
        }
    }

    fn handle_frame(&self, frame: Frame) -> Result<(), Error> {
        if let Frame::Receiver(report) = &frame {
            self.limits.handle_receiver(Instant::now(), report);
            return Ok(());
        }
        let mut session = self.session.lock();
        let handled = match frame {
            Frame::Messages { first, encoded } => session.handle_messages(first, &encoded),
            Frame::Acknowledge { next } => session.handle_acknowledgement(next),
            Frame::Welcome(_) => Ok(()),
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
        self.source.handle_lane(lane, LaneChange::Down);
        self.session.lock().handle_lane_down(lane, Instant::now());
        self.after_change();
    }

    fn lane_fed(&self, lane: LaneId) {
        self.source.handle_lane(lane, LaneChange::Ended);
    }

    fn block_sink(self: Arc<Self>, _lane: LaneId) -> Box<dyn BlockSink> {
        Box::new(NoBlocks)
    }

    fn is_over(&self) -> bool {
        self.session.lock().is_over()
    }

    fn tick(&self) {
        let now = Instant::now();
        let silent = self.silence.lock().observe(&self.limits.heard(), now);
        let round_trip = self.source.round_trip();
        let (given_up, is_due) = {
            let mut session = self.session.lock();
            let is_due = session.poll_timeout(now).is_some_and(|due| due <= now);
            session.handle_timeout(now);
            // The blocks that a lane may take from the run of another lane change with time.
            round_trip.iter().for_each(|round_trip| session.handle_round_trip(*round_trip, now));
            (session.handle_silence(&silent), is_due || round_trip.is_some() || !silent.is_empty())
        };
        close_aside(self.limits.handles(&given_up));
        if self.pass_on() || is_due {
            self.wake.notify();
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.session.lock().poll_timeout(Instant::now())
    }

    fn limits(&self) -> &LimitMonitor {
        &self.limits
    }

    fn agree_rates(&self, ceiling: Option<BitRate>, target: Option<BitRate>) {
        self.limits.set_rate_cap(ceiling);
        self.encoding.set_rate(target);
    }

    fn take_contracts(&self) -> BTreeMap<PathNumber, RateContract> {
        self.session.lock().take_contracts()
    }

    fn progress(&self) -> Progress {
        let session = self.session.lock();
        let (files_known, bytes_known, manifest_complete) = session.offered();
        let (bytes_carried, bytes_encoded) = self.encoding.carried.bytes();
        let counters = Counters {
            files_known,
            bytes_known,
            bytes_done: session.confirmed_bytes(),
            bytes_held: session.held_bytes(),
            bytes_up_to_date: session.up_to_date_bytes(),
            bytes_holes: self.holes.bytes(),
            bytes_carried,
            bytes_encoded,
            blocks_again: session.sent_again_blocks(),
        };
        Progress { counters, manifest_complete, lanes: session.lane_count() }
    }

    fn active_files(&self, most: usize) -> Vec<ActiveFile> {
        self.session.lock().active_files(most)
    }

    fn unsettled_bytes(&self) -> u64 {
        self.session.lock().unsettled_bytes()
    }

    fn has_followed_up(&self) -> bool {
        self.pass_on();
        self.sweeper.get().is_none_or(Sweeper::is_idle)
    }

    fn abort(&self, error: Error) {
        self.sweeper.get().into_iter().for_each(Sweeper::stop);
        self.session.lock().abort(error);
        self.after_change();
    }
}
