//! Reads of a lane: one answer after the other, each as long as the lane's run, resumed where it was cut.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sterna_proto::session::LaneId;
use sterna_proto::web::WebLocation;
use sterna_proto::{Error, ErrorKind, FileEntry, Setting};

use super::exchange::{Answer, Ask, Body, Exchange, Fault};
use super::file::{PAUSE_MAX, WebFile};
use super::prefix::{AnswerDigest, CutBlock};
use crate::source::{Extent, FileReader, OfferedFile, SourceDisposition};

/// Wait before a failed request is repeated, doubled after each failure up to [`PAUSE_MAX`]. Reason: a cut connection
/// is replaced at once, and a server that restarts takes seconds.
const PAUSE_MIN: Duration = Duration::from_millis(200);

/// Bytes that are read and dropped instead of a new request. Reason: on any path this costs about as much as a new
/// connection, or less.
const READ_PAST_MAX: u64 = 256 << 10;

/// Answer that a lane is reading.
pub(super) struct OpenRun {
    file: Arc<WebFile>,
    /// Offset of its next byte in the file.
    offset: u64,
    body: Body,
    /// Comparison with earlier answers, for a file without a version.
    digest: AnswerDigest,
}

impl OpenRun {
    fn new(file: &Arc<WebFile>, offset: u64, body: Body) -> Self {
        Self { file: Arc::clone(file), offset, body, digest: AnswerDigest::default() }
    }

    /// Reads some bytes into `buffer`, at least one. `cut`: the bytes that the reader has of its block from an earlier
    /// answer. Errors: the body was cut, or it is that of another file.
    fn read(&mut self, buffer: &mut [u8], cut: Option<&CutBlock>) -> Result<usize, Fault> {
        let named = &self.file.named;
        let most = match &self.file.digests {
            Some(digests) => self.digest.bytes_to_compare(digests, cut).min(buffer.len() as u64) as usize,
            None => buffer.len(),
        };
        let count = match self.body.read(&mut buffer[..most]) {
            Ok(count) if count > 0 => count,
            Ok(_) => return Err(Fault::cut(named, self.offset, "the body ended")),
            Err(error) => return Err(Fault::cut(named, self.offset, &error.to_string())),
        };
        self.offset += count as u64;
        let is_same = |digests| self.digest.add(&buffer[..count], digests, cut);
        if self.file.digests.as_ref().is_none_or(is_same) {
            return Ok(count);
        }
        Err(Fault::changed(named, "another answer of the server has other bytes, and no ETag or Last-Modified"))
    }

    /// Reads and drops the bytes before `offset`.
    fn read_past(&mut self, offset: u64, cut: Option<&CutBlock>) -> Result<(), Fault> {
        let mut useless = vec![0; (offset - self.offset).min(64 << 10) as usize];
        while self.offset < offset {
            let most = (offset - self.offset).min(useless.len() as u64) as usize;
            self.read(&mut useless[..most], cut)?;
        }
        Ok(())
    }
}

/// Answers that lanes are reading.
pub(super) struct Runs {
    exchange: Arc<Exchange>,
    /// Time for which a failed request is retried.
    patience: Duration,
    by_lane: Mutex<HashMap<LaneId, OpenRun>>,
}

impl Runs {
    pub(super) fn new(exchange: &Arc<Exchange>, patience: Duration) -> Arc<Self> {
        Arc::new(Self { exchange: Arc::clone(exchange), patience, by_lane: Mutex::default() })
    }

    /// Drops the rest of the answer that `lane` reads.
    pub(super) fn end(&self, lane: LaneId) {
        // Dropped after the lock is released.
        let _open = self.by_lane.lock().remove(&lane);
    }

    /// Returns the number of lanes that are reading an answer.
    pub(super) fn count(&self) -> usize {
        self.by_lane.lock().len()
    }
}

/// File of a session, with the answers that its lanes are reading.
pub(super) struct OfferedWebFile {
    runs: Arc<Runs>,
    file: Arc<WebFile>,
}

impl OfferedWebFile {
    pub(super) fn new(runs: &Arc<Runs>, file: WebFile) -> Self {
        Self { runs: Arc::clone(runs), file: Arc::new(file) }
    }
}

impl fmt::Display for OfferedWebFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.file.named, f)
    }
}

impl OfferedFile for OfferedWebFile {
    fn open(&self, lane: Option<LaneId>, extent: Extent) -> Result<Box<dyn FileReader>, Error> {
        let run_end = match extent {
            Extent::Whole => self.file.entry().size,
            Extent::Run { until, is_start_wanted } => {
                if !is_start_wanted {
                    self.file.drop_first_answer();
                }
                until
            }
        };
        let (runs, file) = (Arc::clone(&self.runs), Arc::clone(&self.file));
        let open = lane.and_then(|lane| runs.by_lane.lock().remove(&lane));
        Ok(Box::new(WebReader { runs, lane, file, run_end, open, cut: None }))
    }

    fn settle(&self, _disposition: &SourceDisposition, _entry: &FileEntry) -> Result<(), Error> {
        let text = format!("{self} has arrived and stays where it is: files on web servers are not deleted or moved");
        Err(Error::usage(&[Setting::SourceDisposition], text))
    }
}

/// Reads one file for one lane.
struct WebReader {
    runs: Arc<Runs>,
    lane: Option<LaneId>,
    file: Arc<WebFile>,
    /// End of the range that the lane will most likely read without a gap.
    run_end: u64,
    open: Option<OpenRun>,
    /// Bytes of the current block that came in an answer that was cut, for a file without a version.
    cut: Option<CutBlock>,
}

impl Drop for WebReader {
    fn drop(&mut self) {
        if let (Some(open), Some(lane)) = (self.open.take(), self.lane) {
            self.runs.by_lane.lock().insert(lane, open);
        }
    }
}

impl FileReader for WebReader {
    /// Retries after a cut.
    ///
    /// Errors: the file changed, the server refuses it, or no byte arrived for the `patience` time.
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        // A wait for other requests to the same server does not count. A wait for this request does.
        let (mut done, mut waited, mut pause) = (0, Duration::ZERO, PAUSE_MIN);
        while done < buffer.len() {
            match self.read_some(offset + done as u64, &mut buffer[done..]) {
                Ok(count) => {
                    done += count;
                    (waited, pause) = (Duration::ZERO, PAUSE_MIN);
                }
                Err(fault) => {
                    self.drop_answer();
                    if self.runs.exchange.hosts.is_over(self.lane) {
                        return Err(Fault::stopped().error);
                    }
                    waited += pause + fault.wait + fault.tried;
                    if !fault.again || waited > self.runs.patience {
                        return Err(fault.error);
                    }
                    self.runs.exchange.hosts.wait(pause, self.lane);
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
        Ok(())
    }

    /// Every answer was checked when it came.
    fn check_unchanged(&self, _entry: &FileEntry) -> Result<(), Error> {
        Ok(())
    }
}

impl WebReader {
    fn read_some(&mut self, offset: u64, buffer: &mut [u8]) -> Result<usize, Fault> {
        let head = self.file.head.bytes.get(offset as usize..).unwrap_or_default();
        if !head.is_empty() {
            let count = head.len().min(buffer.len());
            buffer[..count].copy_from_slice(&head[..count]);
            return Ok(count);
        }
        let cut = self.cut;
        let open = self.open_at(offset)?;
        let began = Instant::now();
        open.read(buffer, cut.as_ref()).map_err(|fault| fault.after(began.elapsed()))
    }

    /// Drops the answer that is being read. Keeps a digest of its part of the current block, if the reader has that.
    fn drop_answer(&mut self) {
        if let Some(open) = self.open.take().filter(|open| open.file.digests.is_some()) {
            self.cut = Some(open.digest.cut());
        }
    }

    /// Returns the answer whose next byte is at `offset`.
    fn open_at(&mut self, offset: u64) -> Result<&mut OpenRun, Fault> {
        let mut open = self.open.take().filter(|open| Arc::ptr_eq(&open.file, &self.file) && !open.body.has_ended());
        let reach = if self.file.has_ranges() { READ_PAST_MAX } else { u64::MAX };
        let reaches = |open: &OpenRun| open.offset <= offset && offset - open.offset <= reach;
        if !open.as_ref().is_some_and(reaches) {
            open = self.first_answer(offset);
        }
        let mut open = match open {
            Some(open) => open,
            None => self.ask(offset)?,
        };
        open.read_past(offset, self.cut.as_ref())?;
        Ok(self.open.insert(open))
    }

    /// Returns the answer of the probe to the reader of the next bytes. Other readers get it only if the server has
    /// no ranges.
    fn first_answer(&self, offset: u64) -> Option<OpenRun> {
        let start = self.file.head.bytes.len() as u64;
        if offset != start && self.file.has_ranges() {
            return None;
        }
        let body = self.file.first.lock().take()?;
        Some(OpenRun::new(&self.file, start, body))
    }

    /// Requests the bytes from `offset` to the end of the run.
    fn ask(&self, offset: u64) -> Result<OpenRun, Fault> {
        let file = &self.file;
        let at = file.at.lock().clone();
        let end = self.run_end.clamp(offset + 1, file.entry().size);
        let range = file.has_ranges().then_some((offset, Some(end)));
        let ask = Ask { named: &file.named, at: &at, range, version: Some(&file.version), lane: self.lane };
        let answer = match self.runs.exchange.get(&ask) {
            // The target of a redirect is valid for a while only.
            Err(fault) if at != file.named && is_stale(&fault) => {
                self.runs.exchange.get(&Ask { at: &file.named, ..ask })?
            }
            answer => answer?,
        };
        let Answer { reply, at, body } = answer;
        let named = &file.named;
        if let Some(what) = file.version.difference(&reply.version) {
            return Err(Fault::changed(named, what));
        }
        let size = file.entry().size;
        if reply.status == 416 || reply.size.is_some_and(|now| now != size) {
            let now = reply.size.map_or("fewer".to_owned(), |now| now.to_string());
            return Err(Fault::changed(named, format_args!("{now} bytes instead of {size}")));
        }
        if range.is_some() && reply.status != 206 {
            return Err(no_range(named, offset));
        }
        // A server may send a range when the whole file was requested.
        let (start, end) = if range.is_some() { (offset, end) } else { (0, size) };
        if reply.start != start || reply.length.is_some_and(|length| length > end - start) {
            let text = format!("GET {named}: bytes from {} on where those from {start} on were asked for", reply.start);
            return Err(Fault::never(ErrorKind::Protocol, text));
        }
        *file.at.lock() = at;
        Ok(OpenRun::new(file, reply.start, body))
    }
}

/// Returns true if the target of a redirect may have moved.
fn is_stale(fault: &Fault) -> bool {
    matches!(fault.error.kind, ErrorKind::Denied | ErrorKind::NotFound)
}

/// Returns the fault of a server that has sent ranges and does not any more.
fn no_range(named: &WebLocation, start: u64) -> Fault {
    let text = format!(
        "GET {named}: the whole file where the bytes from {start} on were asked for, which the server has sent before; try again"
    );
    let mut fault = Fault::never(ErrorKind::Protocol, text);
    fault.error.retry = sterna_proto::Retry::After;
    fault
}
