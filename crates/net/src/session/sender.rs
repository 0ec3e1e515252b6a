//! The sending end: reads directories into the manifest and files into blocks.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use sterna_proto::session::{
    ActiveFile, BlockHeader, BlockOrder, BlockTask, FileId, Frame, LaneId, SendEvent, SendSession,
};
use sterna_proto::{BlockHasher, Checks, EntryKind, Error, ErrorKind, FileEntry, RelPath};

use super::holes::HoleCount;
use super::names::{Admittance, FirstNames};
use super::origin::{OpenSource, Origin, Origins};
use super::{BlockSink, End, Observer, Progress, SessionEvent, SettledPaths, Work, lock};
use crate::buffer::BufferPool;
use crate::descriptors;
use crate::disk::{Root, SourceFile, SourceItem};
use crate::lane::LaneTx;
use crate::web::{Web, WebFile};

/// Bytes that are read, hashed and handed to a lane at once. Reason: stays in a core's second-level cache from the read to the
/// encryption (512 KiB on the smallest machine measured), and control frames wait for no more than this.
pub const PIECE_BYTES: usize = 128 << 10;

/// Files kept open for reading. Reason: lanes work on neighbouring blocks of few files; the limit bounds descriptors.
const OPEN_SOURCES_MAX: usize = 64;

/// The part of the process's descriptors, as a divisor, that a session keeps sources open for. Reason: as for what it receives.
const DESCRIPTORS_DIVISOR: usize = 8;

/// How often the reader of directories looks for room when nothing wakes it. Guess: short beside the time room takes.
const ROOM_NAP: Duration = Duration::from_millis(100);

/// Sources of one session: patterns beneath a root.
pub struct Source {
    /// The root.
    pub root: Root,
    /// A path beneath it, with wildcards.
    pub pattern: Vec<u8>,
    /// The root itself is sent, by this name, and the pattern is empty.
    pub name: Option<RelPath>,
}

impl Source {
    /// What it means, in the order of the manifest. Errors: as of [`Root::expand`].
    fn items(&self) -> Result<impl Iterator<Item = Result<SourceItem, Error>> + '_, Error> {
        let itself = self.name.as_ref().map(|name| self.root.as_item(name));
        let beneath = self.root.expand(&self.pattern)?.map(|item| {
            let mut item = item?;
            if let Some(name) = &self.name {
                item.entry.path = name.join(item.entry.path.as_bytes())?;
            }
            Ok(item)
        });
        Ok(itself.into_iter().chain(beneath))
    }

    /// The place that gave `item` its first name: what lies behind that name is the same at the source.
    pub(super) fn place_of<'a>(&self, item: &'a SourceItem, first: &[u8]) -> &'a [u8] {
        if self.name.is_some() {
            return b"";
        }
        let source = item.source.as_bytes();
        let behind = item.entry.path.as_bytes().len() - first.len();
        &source[..source.len() - behind]
    }
}

#[derive(Default)]
struct OpenSources {
    files: HashMap<FileId, (Arc<SourceFile>, u64)>,
    used: u64,
}

/// The sending end of a session.
pub struct Sender {
    session: Mutex<SendSession>,
    wake: Condvar,
    names: Mutex<HashMap<FileId, Origin>>,
    open: Mutex<OpenSources>,
    web: Option<Arc<Web>>,
    pool: Arc<BufferPool>,
    observer: Arc<dyn Observer>,
    /// Only the manifest travels.
    dry_run: bool,
    /// Files that are left out.
    settled: Arc<SettledPaths>,
    holes: HoleCount,
}

impl Sender {
    /// A sender of `sources`, but for the files that an earlier session of the same copy has `settled`; starts the thread that
    /// reads them.
    pub fn start(
        sources: impl Into<Origins>,
        linger: Duration,
        dry_run: bool,
        settled: Arc<SettledPaths>,
        pool: Arc<BufferPool>,
        observer: Arc<dyn Observer>,
    ) -> Result<Arc<Self>, Error> {
        let sources = sources.into();
        let sender = Arc::new(Self {
            session: Mutex::new(SendSession::new(linger)),
            wake: Condvar::new(),
            names: Mutex::new(HashMap::new()),
            open: Mutex::new(OpenSources::default()),
            web: sources.web(),
            pool,
            observer,
            dry_run,
            settled,
            holes: HoleCount::default(),
        });
        let scanner = Arc::clone(&sender);
        thread::Builder::new()
            .name("scan".to_owned())
            .spawn(move || scanner.scan(&sources))
            .map_err(|e| crate::internal("start the thread that reads directories").caused_by(e))?;
        Ok(sender)
    }

    /// Reads the sources into the manifest; waits while the manifest is far enough ahead.
    fn scan(&self, sources: &Origins) {
        match sources {
            Origins::Roots(sources) => self.scan_roots(sources),
            Origins::Web(web) => self.scan_web(web),
        }
        if self.is_over() {
            return;
        }
        lock(&self.session).end_files();
        self.after_change();
    }

    fn scan_web(&self, web: &Web) {
        lock(&self.session).expect_lanes(web.connections());
        let found = |found: Result<WebFile, Error>| match found {
            Ok(file) if self.settled.contains(&file.entry().path) => {}
            Ok(file) => {
                if let Some(text) = file.notice() {
                    web.notice(text.to_owned());
                }
                self.offer_in(file.entry().clone(), file.order(), Origin::Web(Arc::new(file)));
            }
            // A request that was broken off because the session is over says nothing of the file.
            Err(_) if self.is_over() => {}
            Err(error) => self.unreadable(error),
        };
        web.list(&found, &|| self.is_over());
    }

    fn scan_roots(&self, sources: &[Source]) {
        let mut names = FirstNames::new(sources);
        'sources: for (index, source) in sources.iter().enumerate() {
            let items = match source.items() {
                Ok(items) => items,
                Err(error) => {
                    self.unreadable(error);
                    continue;
                }
            };
            for item in items {
                let admitted = item.map(|item| (names.admit(index, source, &item), item));
                match admitted {
                    Ok((Admittance::Offered, item)) => self.offer(source, item),
                    Ok((Admittance::RefusedBefore, _)) => {}
                    Ok((Admittance::Refused(error), _)) | Err(error) => self.unreadable(error),
                    Ok((Admittance::Full(error), _)) => {
                        self.unreadable(error);
                        break 'sources;
                    }
                }
                if self.is_over() {
                    return;
                }
            }
        }
    }

    fn offer(&self, source: &Source, item: SourceItem) {
        // A directory gets its mode and time when its session ends, so a session that took over needs it again.
        if item.entry.kind == EntryKind::File && self.settled.contains(&item.entry.path) {
            return;
        }
        let origin = Origin::Disk { root: source.root.clone(), path: item.source };
        self.offer_in(item.entry, BlockOrder::Next, origin);
    }

    fn offer_in(&self, entry: FileEntry, order: BlockOrder, origin: Origin) {
        let mut session = self.session_with_room();
        let id = session.add_file_in(entry, order);
        // Before a lane can take its blocks: the lock of the session is still held.
        lock(&self.names).insert(id, origin);
        drop(session);
        self.wake.notify_all();
    }

    /// Waits until the manifest may grow, or the session is over.
    fn session_with_room(&self) -> MutexGuard<'_, SendSession> {
        let mut session = lock(&self.session);
        while !session.has_room() && !session.is_over() {
            let waited = self.wake.wait_timeout(session, ROOM_NAP);
            session = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        session
    }

    /// Something that was asked for cannot be sent; the manifest has not ended yet.
    pub fn unreadable(&self, error: Error) {
        self.session_with_room().add_unreadable(crate::copy_of(&error));
        self.observer.session_event(SessionEvent::Unreadable(error));
        self.wake.notify_all();
    }

    /// Passes on what the machine has to say, and wakes the feeders.
    fn after_change(&self) {
        loop {
            let event = lock(&self.session).poll_event();
            let Some(event) = event else { break };
            self.observer.session_event(match event {
                SendEvent::Settled { file, entry, outcome } => {
                    lock(&self.names).remove(&file);
                    lock(&self.open).files.remove(&file);
                    self.holes.settle(file, &outcome);
                    SessionEvent::Settled { entry, outcome }
                }
                SendEvent::Notice { text, .. } => SessionEvent::Notice(text),
                SendEvent::Aborted(error) => {
                    // Lanes that wait for a web server have nothing to wait for any more.
                    self.web.iter().for_each(|web| web.stop());
                    SessionEvent::Aborted(error)
                }
            });
        }
        self.wake.notify_all();
    }

    /// What `lane` reads block `index` of a file from.
    fn open_block(&self, lane: LaneId, id: FileId, entry: &FileEntry, index: u64) -> Result<OpenSource<'_>, Error> {
        let origin = lock(&self.names).get(&id).cloned();
        let (Some(Origin::Web(file)), Some(web)) = (origin, &self.web) else {
            return self.open_source(id).map(OpenSource::Disk);
        };
        let blocks = entry.blocks();
        let session = lock(&self.session);
        let run = session.run_of(lane).filter(|(file, _)| *file == id);
        let begins_here = session.is_missing(id, 0);
        drop(session);
        if !begins_here {
            file.drop_first_answer();
        }
        let last = run.map_or(index, |(_, end)| end.saturating_sub(1).max(index));
        Ok(OpenSource::Web(Box::new(web.reader(lane, file, blocks.offset(last) + blocks.length(last)))))
    }

    fn open_source(&self, id: FileId) -> Result<Arc<SourceFile>, Error> {
        let mut open = lock(&self.open);
        open.used += 1;
        let used = open.used;
        if let Some((file, last_used)) = open.files.get_mut(&id) {
            *last_used = used;
            return Ok(Arc::clone(file));
        }
        drop(open);
        let name = lock(&self.names).get(&id).cloned();
        let Some(Origin::Disk { root, path }) = name else { return Err(crate::internal("a block of a settled file")) };
        let file = Arc::new(root.open_source(&path)?);
        let mut open = lock(&self.open);
        if open.files.len() >= OPEN_SOURCES_MAX.min(descriptors::limit() / DESCRIPTORS_DIVISOR) {
            let oldest = open.files.iter().min_by_key(|(_, (_, used))| *used).map(|(id, _)| *id);
            oldest.and_then(|id| open.files.remove(&id));
        }
        open.files.insert(id, (Arc::clone(&file), used));
        Ok(file)
    }

    /// Sends one block of a large file. The outer error is the lane's, the inner one the source's.
    fn send_single(
        &self,
        lane: LaneId,
        (id, entry, index): (FileId, FileEntry, u64),
        tx: &mut dyn LaneTx,
    ) -> Result<Result<(), Error>, Error> {
        let mut source = match self.open_block(lane, id, &entry, index) {
            Ok(source) => source,
            Err(error) => return Ok(Err(error)),
        };
        let blocks = entry.blocks();
        let (offset, length) = (blocks.offset(index), blocks.length(index));
        let hole = match source.is_hole(offset, length) {
            Ok(hole) => hole,
            Err(error) => return Ok(Err(error)),
        };
        let mut hasher = BlockHasher::new(&blocks, index, Checks::NONE);
        let header = BlockHeader::Single { file: id, entry: entry.clone(), index, hole }.encode();
        tx.block_begin(&header, if hole { 0 } else { length })?;
        let mut done = 0;
        while done < length {
            let mut piece = self.pool.take();
            let size = (length - done).min(PIECE_BYTES as u64) as usize;
            if hole {
                piece.zeroed(size);
            } else if let Err(error) = piece.fill(size, |bytes| source.read_at(offset + done, bytes)) {
                tx.block_abandon()?;
                return Ok(Err(error));
            }
            hasher.update(&piece);
            done += size as u64;
            if !hole {
                tx.block_data(piece.freeze())?;
                self.send_waiting_frames(lane, tx)?;
            }
        }
        // Every byte of this block was read while the file was as offered: this look comes after the reads.
        if let Err(error) = source.check_unchanged(&entry) {
            tx.block_abandon()?;
            return Ok(Err(error));
        }
        tx.block_end(&hasher.finish().chaining_value)?;
        // Held: a file that has settled meanwhile, since it was up to date, is counted no more.
        let names = lock(&self.names);
        if hole && names.contains_key(&id) {
            self.holes.add(id, offset..offset + length);
        }
        drop(names);
        Ok(Ok(()))
    }

    /// Sends small files, whole. Those that cannot be read are told to the session and left out.
    fn send_packed(&self, lane: LaneId, files: Vec<(FileId, FileEntry)>, tx: &mut dyn LaneTx) -> Result<(), Error> {
        let mut packed = Vec::with_capacity(files.len());
        let (mut data, mut trailer) = (Vec::new(), Vec::with_capacity(files.len() * 32));
        for (id, entry) in files {
            match self.read_whole(lane, id, &entry, &mut data) {
                Ok(()) => {
                    let start = data.len() - entry.size as usize;
                    trailer.extend_from_slice(blake3::hash(&data[start..]).as_bytes());
                    packed.push((id, entry));
                }
                Err(error) => self.withdraw(id, error),
            }
        }
        if packed.is_empty() {
            return Ok(());
        }
        let header = BlockHeader::Packed { files: packed }.encode();
        tx.block_begin(&header, data.len() as u64)?;
        let mut data = bytes::Bytes::from(data);
        while !data.is_empty() {
            tx.block_data(data.split_to(data.len().min(PIECE_BYTES)))?;
            self.send_waiting_frames(lane, tx)?;
        }
        tx.block_end(&trailer)
    }

    /// Appends a small file to `data`; leaves `data` as it was on an error.
    fn read_whole(&self, lane: LaneId, id: FileId, entry: &FileEntry, data: &mut Vec<u8>) -> Result<(), Error> {
        if entry.size == 0 {
            return Ok(());
        }
        let name = lock(&self.names).get(&id).cloned().ok_or_else(|| crate::internal("a settled file"))?;
        let start = data.len();
        data.resize(start + entry.size as usize, 0);
        let open = match (name, &self.web) {
            (Origin::Disk { root, path }, _) => root.open_source(&path).map(|file| OpenSource::Disk(Arc::new(file))),
            (Origin::Web(file), Some(web)) => Ok(OpenSource::Web(Box::new(web.reader(lane, file, entry.size)))),
            (Origin::Web(_), None) => Err(crate::internal("a web file without a web")),
        };
        let read = open.and_then(|mut source| {
            source.read_at(0, &mut data[start..])?;
            source.check_unchanged(entry)
        });
        if read.is_err() {
            data.truncate(start);
        }
        read
    }

    fn withdraw(&self, id: FileId, error: Error) {
        // The session is ending, and was when the file was left: it has not failed.
        if error.kind == ErrorKind::Cancelled {
            return;
        }
        lock(&self.session).withdraw(id, error);
        self.after_change();
    }

    /// Lets control frames slip in between the data of a block.
    fn send_waiting_frames(&self, lane: LaneId, tx: &mut dyn LaneTx) -> Result<(), Error> {
        loop {
            let frame = lock(&self.session).poll_frame(lane);
            match frame {
                Some(frame) => tx.control(&frame.encode())?,
                None => return Ok(()),
            }
        }
    }
}

impl End for Sender {
    fn next_work(&self, lane: LaneId) -> Work {
        let mut session = lock(&self.session);
        if let Some(frame) = session.poll_frame(lane) {
            return Work::Frame(frame);
        }
        if session.is_over() {
            return Work::Over;
        }
        if !self.dry_run
            && self.web.as_ref().is_none_or(|web| web.takes_blocks(lane))
            && let Some(task) = session.next_block(lane)
        {
            return Work::Block(task);
        }
        drop(session);
        if let Some(web) = &self.web {
            web.rest(lane);
        }
        Work::Idle
    }

    fn wait_for_work(&self, nap: Duration) {
        let session = lock(&self.session);
        // A poisoned lock only ends the nap early.
        let _ = self.wake.wait_timeout(session, nap);
    }

    fn send_block(&self, lane: LaneId, task: BlockTask, tx: &mut dyn LaneTx) -> Result<(), Error> {
        match task {
            BlockTask::Packed { files } => self.send_packed(lane, files, tx),
            BlockTask::Single { file, entry, index } => {
                if let Err(error) = self.send_single(lane, (file, entry, index), tx)? {
                    self.withdraw(file, error);
                }
                Ok(())
            }
        }
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

    fn block_sink(self: Arc<Self>, _lane: LaneId) -> Box<dyn BlockSink> {
        Box::new(NoBlocks)
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
            bytes_done: session.confirmed_bytes(),
            bytes_held: session.held_bytes(),
            bytes_up_to_date: session.up_to_date_bytes(),
            bytes_holes: self.holes.bytes(),
            blocks_again: session.sent_again_blocks(),
            lanes: session.lane_count(),
        }
    }

    fn active_files(&self, most: usize) -> Vec<ActiveFile> {
        lock(&self.session).active_files(most)
    }

    fn unsettled_bytes(&self) -> u64 {
        lock(&self.session).unsettled_bytes()
    }

    fn abort(&self, error: Error) {
        lock(&self.session).abort(error);
        self.after_change();
    }
}

/// A sender takes no blocks.
struct NoBlocks;

impl BlockSink for NoBlocks {
    fn begin(&mut self, _block: u64, _header: &[u8], _data_len: u64) -> Result<(), Error> {
        Err(Error::protocol("a receiver sent a block"))
    }
    fn data(&mut self, _block: u64, _offset: u64, _data: &[u8]) -> Result<(), Error> {
        Err(Error::protocol("a receiver sent a block"))
    }
    fn end(&mut self, _block: u64, _trailer: &[u8]) -> Result<(), Error> {
        Err(Error::protocol("a receiver sent a block"))
    }
    fn abandoned(&mut self, _block: u64) -> Result<(), Error> {
        Err(Error::protocol("a receiver sent a block"))
    }
}
